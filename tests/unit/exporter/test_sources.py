"""What can be exported and what is refused: one clear line, and no folder."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.exports import matmul_table
from tests.unit.cli.documented import check_fields
from tests.unit.exporter.conftest import Sample
from tilesight.api.exporting import export
from tilesight.cli.commands import run
from tilesight.dispatch.table.table_file import DispatchTable, read_table, write_table
from tilesight.errors import (
    Failure,
    FailureKind,
    InputError,
    NoCandidateError,
    TileSightError,
    ToolchainError,
)
from tilesight.exporter.kernel_source import kernel_by_name
from tilesight.exporter.table_source import kernels_of_table
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.trial import BuildResult
from tilesight.records.winners import Winner

SMALL = "block_k=64,block_m=32,block_n=64,tile_m=4,tile_n=64,unroll=8"


@pytest.fixture(scope="module")
def small_table() -> DispatchTable:
    """What is refused needs no kernel."""
    return matmul_table("h200", "bfloat16", {"n": 256, "k": 1024}, [{}], [(1, 512, 0)])


@pytest.fixture
def table(small_table: DispatchTable, tmp_path: Path) -> Path:
    """The file of a table."""
    write_table(small_table, tmp_path / "product.json")
    return tmp_path / "product.json"


def changed(table: Path, **changes: Any) -> DispatchTable:
    return replace(read_table(table), **changes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "cobol"}, "unknown format 'cobol'"),
        (
            {"arch": "sm_80"},
            "--arch sm_80: these kernels are for h200, whose architecture is sm_90a; name a table",
        ),
        ({"target": "a100"}, "the table was made for h200 and not for a100"),
        ({"target": "h100"}, "the table was made for h200 and not for h100"),
        ({"name": "two words"}, "name 'two words' must be letters, digits and _"),
        ({"name": "7up"}, "name '7up' must be letters"),
        ({"name": "struct"}, "name 'struct' is a word of C, C\\+\\+, Rust or Python"),
        ({"name": "json"}, "name 'json' is a module of Python"),
        *(
            ({"name": name}, f"name '{name}' is a (module of Python|word of)")
            for name in ("vllm", "triton", "flashinfer", "flashinfer_bench", "torch", "numpy", "tvm_ffi")
        ),
        ({"name": "a" * 64}, "must have at most 63 letters"),
        ({"shape": "M0"}, "a table states its shapes and configs: leave out --shape"),
        ({"sizes": [16]}, "--sizes: the kernels of this table take m at run time; leave it out"),
        ({"workers": 0}, "workers=0 must lie in 1"),
    ],
)
def test_wrong_arguments_are_refused(
    given: dict[str, Any], message: str, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^.*{message}"):
        export(table, tmp_path / "made", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["product.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "sm_80"}, "architecture: the table was made for sm_80, here it is sm_90a"),
        ({"template": "other"}, "template: the table was made for other, here it is matmul"),
        (
            {"target": "mine"},
            "the table was made for target mine, which is none of the shipped ones; name its file",
        ),
        ({"operator": "matmul_all_reduce"}, "matmul_all_reduce runs on several devices together"),
        ({"kernels": (Config({"block_m": 7}),)}, ".*"),
    ],
)
def test_tables_of_something_else_are_refused(
    changes: dict[str, Any], message: str, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        export(changed(table, **changes), tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_other_software_is_noted(table: Path) -> None:
    older = changed(table, software={"tilelang": "0.0.1"}, template_version="0" * 12)
    notes = kernels_of_table(older, "product", None).notes
    assert any(note.startswith("software tilelang: the table was made with 0.0.1") for note in notes)
    assert any(note.startswith("template version") for note in notes)


def test_kernels_for_amd_gpus_are_refused(tmp_path: Path) -> None:
    made = matmul_table("mi300x", "bfloat16", {"n": 256, "k": 1024}, [{}], [(1, 512, 0)])
    with pytest.raises(
        InputError, match="kernels for mi300x cannot be exported: libraries for AMD GPUs are linked"
    ):
        export(made, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def full(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").touch()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (full, "is a folder with files in it"),
        (lambda folder: folder.touch(), "is no folder"),
        (lambda folder: folder.symlink_to("/nowhere"), "is no folder"),
    ],
)
def test_places_that_are_taken_are_refused(
    prepare: Callable[[Path], None], message: str, table: Path, tmp_path: Path
) -> None:
    prepare(tmp_path / "made")
    with pytest.raises(InputError, match=rf"^--out .*made {message}"):
        export(table, tmp_path / "made")
    assert {path.name for path in tmp_path.iterdir()} == {"product.json", "made"}


@pytest.mark.parametrize(
    ("out", "message"), [("/nowhere/made", "there is no folder"), ("/proc/made", "cannot be written")]
)
def test_places_that_cannot_be_written_are_refused(out: str, message: str, table: Path) -> None:
    with pytest.raises(InputError, match=rf"^--out {out}:? {message}"):
        export(table, out)


def test_two_plans_with_one_name_are_refused(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_table(changed(table), other / "product.json")
    with pytest.raises(InputError, match=r"^two dispatch tables have the name 'product'"):
        export([table, other / "product.json"], tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("step", ["compile_library", "manifest", "file_hash"])
def test_a_failure_leaves_nothing_behind(
    step: str, cpu_sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ToolchainError("no") if step == "compile_library" else OSError(28, "No space left on device")

    monkeypatch.setattr(f"tilesight.exporter.folder_writer.{step}", fail)
    with pytest.raises(TileSightError, match=r"^no$|^--out .*cannot be written: No space left on device"):
        export(cpu_sample.file, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_filled_meanwhile_stays(
    cpu_sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "tilesight.exporter.folder_writer.compile_library", lambda *_: full(tmp_path / "made")
    )
    monkeypatch.setattr("tilesight.exporter.folder_writer.file_hash", lambda _: "0" * 64)
    with pytest.raises(InputError, match=r"^--out .* cannot be written"):
        export(cpu_sample.file, tmp_path / "made")
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "file"]


@pytest.mark.usefixtures("export_cache")
def test_a_kernel_that_does_not_build_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = BuildResult(None, Failure(FailureKind.BUILD_ERROR, "too many registers"))
    monkeypatch.setattr(
        "tilesight.exporter.libraries.KernelBuilder.build", lambda _, choices: [failed for _ in choices]
    )
    monkeypatch.setattr("tilesight.exporter.libraries.missing_compiler", lambda _: None)
    with pytest.raises(NoCandidateError, match=r"^block_k=.*cannot be built for h200: too many registers"):
        export(table, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_an_empty_folder_is_taken_and_several_tables_have_a_folder_each(
    cpu_sample: Sample, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    other = tmp_path / "other.json"
    other.write_bytes(cpu_sample.file.read_bytes())
    found = export([cpu_sample.file, other], tmp_path / "made")
    assert [one.name for one in found] == ["product", "other"]
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"product", "other"}
    assert (tmp_path / "made" / "other" / "libother.so").exists()


@pytest.mark.usefixtures("export_cache")
def test_kernels_of_one_size_each(tmp_path: Path) -> None:
    """A static table: sizes without a library are refused by name."""
    table = matmul_table("cpu", "float32", {"n": 16, "k": 32}, [{}], [(1, 200, 0)], dynamic=())
    with pytest.raises(
        InputError, match=r"serve one size of m each, and 1 \.\. 200 are more than 64 libraries"
    ):
        export(table, tmp_path / "made", name="fixed")
    with pytest.raises(InputError, match="m=201 is outside the table"):
        export(table, tmp_path / "made", name="fixed", sizes=[201])
    export(table, tmp_path / "made", name="fixed", sizes=[24, 8])
    library = ctypes.CDLL(str(tmp_path / "made" / "libfixed.so"))
    assert [library.fixed_select(ctypes.c_int64(m)) for m in (7, 8, 9, 23, 24, 25)] == [-1, 0, -1, -1, 1, -1]
    library.fixed_error.restype = ctypes.c_char_p
    numbers = ctypes.c_float * (24 * 32)
    a, b, c = numbers(*[1.0] * 24 * 32), numbers(*[2.0] * 24 * 32), numbers()

    class Args(ctypes.Structure):
        _fields_ = (
            ("device", ctypes.c_int),
            ("m", ctypes.c_int64),
            *((name, ctypes.c_void_p) for name in "ABC"),
        )

    assert library.fixed_init(0) == 0
    for m, status in ((8, 0), (24, 0), (9, -1)):
        args = Args(0, m, ctypes.addressof(a), ctypes.addressof(b), ctypes.addressof(c))
        assert library.fixed_call(ctypes.byref(args), None) == status
        if not status:
            assert list(c[: m * 16]) == [64.0] * m * 16
    assert library.fixed_error() == (
        b"fixed: m=9 is outside of the plan, which covers m = 8 .. 24, of which it has some sizes"
    )


@pytest.mark.usefixtures("export_cache")
def test_a_kernel_of_one_shape_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["matmul", "--target", "cpu", "--shape", "m=8,n=16,k=32", "--config", SMALL, "--format", "python"]
    assert run(["export", *words, "--name", "single", "--out", str(tmp_path / "made"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    [made] = printed["exports"]
    assert (made["name"], made["sizes"], made["arch"]) == ("single", [], "native")
    assert "single.py" in made["files"]
    library = ctypes.CDLL(str(tmp_path / "made" / "libsingle.so"))
    assert library.single_select() == 0
    header = (tmp_path / "made" / "single.h").read_text(encoding="utf-8")
    assert "int single_select(void);" in header
    assert "float32 (8, 32)" in header


@pytest.mark.usefixtures("cpu_sample")
def test_a_kernel_with_a_dynamic_dimension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config of the sample, whose library is in the cache."""
    words = ["matmul", "--target", "cpu", "--shape", "m=8,n=48,k=32", "--dynamic", "m", "--config", SMALL]
    assert run(["export", *words, "--out", str(tmp_path / "made"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_fields("export", [printed])
    [made] = printed["exports"]
    last = 2**31 // 48  # of C, the largest tensor
    assert made["sizes"] == [{"dim": "m", "first": 1, "last": last}]
    library = ctypes.CDLL(str(tmp_path / "made" / "libmatmul.so"))
    found = [library.matmul_select(ctypes.c_int64(m)) for m in (0, 1, last, last + 1)]
    assert found == [-1, 0, 0, -1]


class FakeStore:
    """A database with a winner of one device."""

    def __init__(self, device: str, winner: Winner) -> None:
        self.device, self.winner, self.asked = device, winner, []

    def winners(self, context: Any, fixed: Any) -> list[Winner]:
        self.asked.append(context)
        return [self.winner] if context.device == self.device and fixed == self.winner.workload.dims else []


def test_the_recorded_winner_of_any_card_of_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = {"m": 256, "n": 256, "k": 1024}
    workload = Workload("matmul", shape, "bfloat16", {})
    table = matmul_table("h200", "bfloat16", {"n": 256, "k": 1024}, [{}], [(256, 512, 0)])
    winner = Winner(replace(workload, attrs=table.attrs), table.kernels[0], 4.5, ("m",))
    store = FakeStore("NVIDIA H200", winner)

    @contextmanager
    def opened(*_: object) -> Any:
        yield store

    monkeypatch.setattr("tilesight.database.open_layers", opened)
    monkeypatch.setattr("tilesight.exporter.kernel_source.find_devices", list)
    found = kernel_by_name("matmul", "x", "h200", shape, None, None, ["m"], "default", None, None)
    assert found.kernels[0].config == winner.config
    assert found.kernels[0].expected_us == 4.5
    assert [one.name for one in found.sizes] == ["m"]
    assert found.sizes[0].last == 2**31 // 1024  # A has the most elements
    assert store.asked[-1].dynamic == ("m",)
    store.device = "another"
    with pytest.raises(
        InputError, match=r"no winner is recorded of matmul m=256 .*tilesight tune matmul --target h200"
    ):
        export("matmul", tmp_path / "made", target="h200", shape=shape)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "unknown kernel 'nothing'"),
        (["nothing.json"], "dispatch table 'nothing.json' cannot be read"),
        (["matmul", "gemv"], "several kernels are exported by one call each"),
        (["matmul_all_reduce", "--target", "h200"], "runs on several devices together"),
        (["matmul", "--sizes", "1,x"], "--sizes '1,x' must be whole numbers with commas"),
        (["matmul", "--sizes", "16"], "--sizes is for tables"),
        (["matmul", "--target", "h200", "--config", "block_m=7"], "unknown|block_m|outside"),
    ],
)
def test_commands_end_with_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", *words, "--out", "made"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error or any(part in error for part in message.split("|"))
    assert list(tmp_path.iterdir()) == []
