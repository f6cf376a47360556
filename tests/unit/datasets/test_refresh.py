"""Refreshing: profiles are replaced only where the same program comes out of lowering."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes import AxpyTemplate, FakeExecutor, profile_of
from tests.unit.conftest import FakeLine
from tilesight.datasets.refresh import reader_version, refresh
from tilesight.errors import Failure, FailureKind
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.profile.codec import profiles_text
from tilesight.records.dataset import Dataset, profiles_of, read_dataset, write_dataset


def config(block: int) -> Config:
    return Config({"block": block, "stages": 1, "swizzle": False})


def row(block: int, **changes: Any) -> dict[str, Any]:
    template = AxpyTemplate()
    workload = template.operator.workload("X0")
    return {
        "operator": "axpy", "workload": workload.key, "shape": "X0", "dims": '{"n":1024}',
        "dtype": "float32", "attrs": "{}",
        "template": "axpy", "template_version": template.version, "target": "cpu",
        "config": config(block).key,
        "flops": 2048, "min_bytes": 96.0, "status": "verified", "fingerprint": f"code-{config(block)}",
        "profile": profiles_text([profile_of(config(block))]), "measured_us": 2.0, "run": "r1", **changes,
    }  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    write_dataset(path, Dataset.of(rows, {"r1": {"date": "today"}}))


class NewReader(FakeExecutor):
    """Reads of an even block something that was not seen before."""

    def lowered(self, candidate: Candidate) -> Profiled | Failure:
        found = super().lowered(candidate)
        if isinstance(found, Profiled) and candidate.config.int("block") % 2 == 0:
            found = Profiled(
                tuple(replace(kernel, notes=(*kernel.notes, "new")) for kernel in found.kernels),
                found.fingerprint,
                0.0,
            )
        return found

    def __enter__(self) -> NewReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def notes(path: Path) -> dict[int, tuple[str, ...]]:
    frame = read_dataset(path).frame.dropna(subset=["profile"])
    return {
        json.loads(c)["block"]: profiles_of(p)[0].notes[1:]
        for c, p in zip(frame["config"], frame["profile"], strict=True)
    }


def test_profiles_are_replaced_if_the_code_is_the_same(fake_line: FakeLine, tmp_path: Path) -> None:
    fake_line.executor = NewReader(
        lambda _stage, c: Failure(FailureKind.LOWER_ERROR, "no") if c["block"] == 10 else None
    )
    path = tmp_path / "d.parquet"
    failed = {
        "status": "failed",
        "failure_kind": "lower_error",
        "measured_us": None,
        "profile": None,
        "fingerprint": None,
    }
    write(
        path,
        [
            row(1),
            row(2, counters='{"registers":3}'),
            row(4, template_version="older"),
            row(4, template_version="oldest", fingerprint="another"),
            row(6, fingerprint="other"),
            row(8, operator="unknown"),
            row(10),
            row(12, **failed),
        ],
    )
    before = read_dataset(path).frame
    found = refresh(path)
    assert found.counts()["changed"] == 2
    assert found.counts()["same"] == 1
    assert sorted(found.counts()["kept"].values()) == [1, 1, 2]
    frame = read_dataset(path).frame.set_index("template_version")
    # the version of the template says nothing, the code does
    assert "new" in frame.at["older", "profile"]
    assert "new" not in frame.at["oldest", "profile"]
    assert [block for block, new in notes(path).items() if new and block != 4] == [2]
    after = read_dataset(path).frame
    assert after.drop(columns="profile").equals(before.drop(columns="profile"))
    assert not (tmp_path / "d.parquet.refresh").exists()
    assert found.text().startswith("2 profiles changed, 1 are unchanged; 1 rows kept their profile: they ")


def test_an_interrupted_refresh_is_continued(fake_line: FakeLine, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write(path, [row(block) for block in range(1, 9)])

    def stop(_stage: str, c: Config) -> Failure | None:
        if c["block"] == 5:
            raise KeyboardInterrupt
        return None

    fake_line.executor = NewReader(stop)
    with pytest.raises(KeyboardInterrupt):
        refresh(path)
    assert set(notes(path).values()) == {()}
    second = fake_line.executor = NewReader()
    found = refresh(path)
    assert sorted(c.int("block") for c in second.done["lower"]) == [5, 6, 7, 8]
    assert found.counts() == {"changed": 4, "same": 4, "kept": {}}
    assert [block for block, new in notes(path).items() if new] == [2, 4, 6, 8]


def test_progress_of_another_reader_is_ignored(
    fake_line: FakeLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.parquet"
    write(path, [row(1), row(2)])
    fake_line.executor = NewReader(
        lambda _stage, c: (_ for _ in ()).throw(KeyboardInterrupt) if c["block"] == 2 else None
    )
    with pytest.raises(KeyboardInterrupt):
        refresh(path)
    monkeypatch.setattr("tilesight.datasets.refresh.reader_version", lambda: "newer")
    second = fake_line.executor = NewReader()
    refresh(path)
    assert len(second.done["lower"]) == 2


def test_a_cut_line_of_the_progress_is_repeated(fake_line: FakeLine, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write(path, [row(1), row(2), row(3)])
    fake_line.executor = NewReader(
        lambda _stage, c: (_ for _ in ()).throw(KeyboardInterrupt) if c["block"] == 3 else None
    )
    with pytest.raises(KeyboardInterrupt):
        refresh(path)
    progress = tmp_path / "d.parquet.refresh"
    progress.write_text(progress.read_text()[:-20])
    second = fake_line.executor = NewReader()
    refresh(path)
    assert [c["block"] for c in second.done["lower"]] == [2, 3]


def test_the_reader_version_is_stable() -> None:
    assert reader_version() == reader_version()
    assert len(reader_version()) == 12
