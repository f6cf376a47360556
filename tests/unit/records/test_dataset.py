"""Datasets: what is written comes back, and a file that does not hold together is named with its column."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.fakes import profile_of
from tilesight.errors import InputError, ToolchainError
from tilesight.problem.space import Config
from tilesight.profile.codec import profiles_text
from tilesight.records.dataset import Dataset, profiles_of, read_dataset, write_dataset
from tilesight.records.dataset_columns import COLUMNS

RUNS = {"r1": {"date": "2026-01-01", "seed": 0}}


def row(block: int = 1, workload: str = "axpy(n=8;dtype=float32)", **changes: Any) -> dict[str, Any]:
    config = Config({"block": block, "stages": 1})
    return {
        "operator": "axpy", "workload": workload, "shape": "X0", "dims": '{"n":8}', "dtype": "float32",
        "attrs": "{}",
        "template": "axpy", "template_version": "abc", "target": "cpu", "config": config.key, "flops": 16,
        "min_bytes": 96.0,
        "status": "verified", "fingerprint": f"code-{block}", "profile": profiles_text([profile_of(config)]),
        "measured_us": 2.0, "samples_us": (1.5, 2.0, 2.5), "relative_error": 0.0, "run": "r1", **changes,
    }  # fmt: skip


def failed(block: int, **changes: Any) -> dict[str, Any]:
    nothing = {
        "measured_us": None,
        "samples_us": None,
        "relative_error": None,
        "profile": None,
        "fingerprint": None,
    }
    return row(block, status="failed", failure_kind="lower_error", failure="no", **nothing, **changes)


def test_round_trip(tmp_path: Path) -> None:
    dataset = Dataset.of([row(1, registers=40), failed(2), row(3, workload="axpy(n=9;dtype=float32)")], RUNS)
    write_dataset(tmp_path / "d.parquet", dataset)
    back = read_dataset(tmp_path / "d.parquet")
    pd.testing.assert_frame_equal(back.frame, dataset.frame)
    assert back.metadata == {"version": 1, "runs": RUNS}
    assert list(back.frame.columns) == [column.name for column in COLUMNS]
    assert back.frame["samples_us"][0] == (1.5, 2.0, 2.5)
    assert back.frame["samples_us"][1] is None
    assert pd.isna(back.frame["profile"][1])
    assert profiles_of(back.frame["profile"][0]) == (profile_of(Config({"block": 1, "stages": 1})),)
    assert list(tmp_path.iterdir()) == [tmp_path / "d.parquet"]


def test_empty_dataset_round_trips(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d.parquet", Dataset.of([], {}))
    back = read_dataset(tmp_path / "d.parquet")
    assert len(back) == 0
    assert list(back.cases()) == []


def test_files_older_than_a_column_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    _rewritten(path, lambda frame: frame.drop(columns=["binary", "observed", "counters"]))
    old = read_dataset(path)
    assert list(old.frame.columns) == [column.name for column in COLUMNS]
    assert old.frame[["binary", "observed", "counters"]].isna().all(axis=None)
    newer = Dataset.of([row(3, binary="ab12", run="r2")], {"r2": {"date": "2026-01-02"}})
    assert list(Dataset.concat([old, newer]).frame["binary"].fillna("-")) == ["-", "ab12"]


def test_a_column_without_any_value_keeps_its_type(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d.parquet", Dataset.of([row(1)], RUNS))
    back = read_dataset(tmp_path / "d.parquet")
    assert back.frame["vendor_us"].dtype == "float64"
    assert back.frame["counters"].isna().all()


def test_cases_and_verified() -> None:
    other = "axpy(n=9;dtype=float32)"
    dataset = Dataset.of([row(1), row(2, workload=other), failed(3), row(4)], RUNS)
    cases = {case.workload: case for case in dataset.cases()}
    assert set(cases) == {"axpy(n=8;dtype=float32)", other}
    assert len(cases["axpy(n=8;dtype=float32)"].frame) == 3
    assert (cases[other].operator, cases[other].shape, cases[other].target) == ("axpy", "X0", "cpu")
    assert len(dataset.verified()) == 3


def test_concat_counts_a_candidate_once() -> None:
    first = Dataset.of([row(1, measured_us=5.0), row(2), failed(3)], RUNS)
    second = Dataset.of(
        [row(1, run="r2", measured_us=4.0), failed(2, run="r2"), row(3, run="r2")], {"r2": {"date": "later"}}
    )
    joined = Dataset.concat([first, second])
    assert len(joined) == 3
    times = dict(zip(joined.frame["config"], joined.frame["run"], strict=True))
    assert times == {
        f'{{"block":{block},"stages":1}}': run for block, run in ((1, "r2"), (2, "r1"), (3, "r2"))
    }
    assert set(joined.runs) == {"r1", "r2"}
    joined.check("joined")


def test_concat_refuses_one_id_for_two_runs() -> None:
    first = Dataset.of([row(1)], RUNS)
    more = Dataset.of([row(2)], {"r1": {**RUNS["r1"], "counters": "ncu"}})
    assert Dataset.concat([first, more]).runs["r1"]["counters"] == "ncu"
    with pytest.raises(InputError, match="run 'r1' stands for two different runs"):
        Dataset.concat([first, Dataset.of([row(2)], {"r1": {"date": "another"}})])


def test_reads_folders_and_several_files(tmp_path: Path) -> None:
    for number in (1, 2):
        write_dataset(tmp_path / f"{number}.parquet", Dataset.of([row(number)], RUNS))
    assert len(read_dataset(tmp_path)) == 2
    assert len(read_dataset([tmp_path / "1.parquet", tmp_path / "2.parquet"])) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no Parquet files are in this folder"):
        read_dataset(tmp_path / "empty")
    with pytest.raises(InputError, match=r"nothing\.parquet': there is no such file"):
        read_dataset(tmp_path / "nothing.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "fine"}, "status=fine must be one of"),
        ({"measured_us": None}, "measured_us=nan must be above 0"),
        ({"measured_us": -1.0}, "measured_us=-1.0 must be above 0"),
        ({"status": "failed"}, "measured_us=2.0 must be empty"),
        ({"status": "failed", "measured_us": None}, "failure_kind=nan must be given"),
        ({"run": "r9"}, "run=r9 must be one of the runs"),
        ({"operator": None}, "column 'operator' is empty"),
    ],
)
def test_wrong_rows_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"row 1: .*{message}"):
        Dataset.of([row(1), row(2, **changes)], RUNS)


def test_one_candidate_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        Dataset.of([row(1), row(1)], RUNS)


def test_files_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(InputError, match=r"text\.parquet' cannot be read as Parquet"):
        read_dataset(tmp_path / "text.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no metadata of TileSight"):
        read_dataset(tmp_path / "other.parquet")


def _rewritten(path: Path, change: Any, metadata: bytes = b'{"version": 1, "runs": {"r1": {}}}') -> None:
    """A file as another program might write it."""
    import pyarrow as pa
    from pyarrow import parquet

    frame = change(Dataset.of([row(1)], RUNS).frame)
    parquet.write_table(
        pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata({"tilesight": metadata}),
        path,
    )


def test_columns_and_versions_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    _rewritten(path, lambda frame: frame)
    assert len(read_dataset(path)) == 1
    _rewritten(path, lambda frame: frame.drop(columns="config"))
    with pytest.raises(InputError, match=r"d\.parquet'.*column 'config'.*is missing"):
        read_dataset(path)
    _rewritten(path, lambda frame: frame.assign(measured_us="two"))
    with pytest.raises(InputError, match=r"column 'measured_us' must hold number, not"):
        read_dataset(path)
    _rewritten(path, lambda frame: frame, b'{"version": 2, "runs": {}}')
    with pytest.raises(InputError, match="version 2"):
        read_dataset(path)
    _rewritten(path, lambda frame: frame, b"[]")
    with pytest.raises(InputError, match="metadata cannot be read"):
        read_dataset(path)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory; name a file"):
        write_dataset(tmp_path / "no" / "d.parquet", Dataset.of([row(1)], RUNS))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.parquet"
    write_dataset(path, Dataset.of([row(1)], RUNS))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilesight.files.os.replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_dataset(path, Dataset.of([row(1), row(2)], RUNS))
    assert len(read_dataset(path)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_pyarrow_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ToolchainError, match=r"pip install pyarrow"):
        read_dataset(tmp_path / "d.parquet")


# ---- damaged files, and files that hold too much


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "d.parquet"
    write_dataset(file, Dataset.of([*map(row, range(20)), failed(30)], RUNS))
    sound, told = file.read_bytes(), list[str]()
    for at in range(0, len(sound), 23):
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged if at % 3 else damaged[:at])
        try:
            read_dataset(file)  # not every byte matters
        except InputError as error:
            told.append(str(error))
    assert len(told) > 0.6 * len(sound) / 23
    assert not [message for message in told if "\n" in message or len(message) > 600 + len(str(file))]


def test_a_changed_value_is_found_by_its_checksum(tmp_path: Path) -> None:
    file = tmp_path / "d.parquet"
    write_dataset(file, Dataset.of([row(block, failure=f"mark {block} " * 50) for block in range(20)], RUNS))
    content = file.read_bytes()
    at = content.index(b"\x28\xb5\x2f\xfd") + 12  # inside the first page that zstd compressed
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(InputError, match=r"d.parquet' cannot be read as Parquet: .*(CRC|checksum)"):
        read_dataset(file)


def test_a_small_file_that_holds_very_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "d.parquet"
    text = "x" * 100_000
    write_dataset(file, Dataset.of([row(block, failure=text) for block in range(1000)], RUNS))
    assert file.stat().st_size < 1_000_000
    monkeypatch.setattr("tilesight.records.dataset._MOST_BYTES", 50 << 20)
    with pytest.raises(InputError, match=r"d.parquet' holds more than 0 GB of values; split it"):
        read_dataset(file)


@pytest.mark.parametrize("name", ["/dev/zero", "zero.parquet", "pipe.parquet"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "zero.parquet").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(InputError, match="is no file that can be read as Parquet"):
        read_dataset(tmp_path / name)
