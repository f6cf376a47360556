"""`predict` and `explain` of kernels that are not shipped, in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilelang
import torch

import tilesight
from tests.unit.api import kernels_of_a_user as user
from tests.unit.cli.documented import check_fields
from tests.unit.costmodel import data_kernels
from tilesight.api.foreign_kernel import find_kernel, profiles_of
from tilesight.api.kernel_files import FileKernel, _profiles
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.cli.main import main
from tilesight.errors import InputError
from tilesight.executor.tasks import compiler_pool
from tilesight.reports.numbers import number
from tilesight.target.spec import load_target

FILE = str(Path(user.__file__))
N = 1 << 24


@pytest.fixture(scope="module", autouse=True)
def one_pool() -> Iterator[None]:
    """Each command reads a file in processes of its own; here, for all of them, in one pool's."""
    with (
        compiler_pool(60) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("tilesight.api.kernel_files.compiler_pool", lambda *_, **__: nullcontext(pool))
        yield


def test_functions_are_called_with_their_arguments() -> None:
    alone = tilesight.predict(user.whole, "h200")
    assert alone.limiting == "dram"
    arguments = {"n": N}
    assert tilesight.predict(user.copy, "h200", arguments=arguments) == alone
    assert tilesight.predict(user.jitted, "h200", arguments=arguments) == alone
    tuned = tilesight.autotune(configs=[{"block": 512}])(user.jitted)
    assert tilesight.predict(tuned, "h200", arguments=arguments) == alone
    larger = tilesight.predict(user.jitted, "h200", arguments={"n": 16 * N, "block": 2048})
    assert larger.latency_us > 5 * alone.latency_us
    eager = tilesight.predict(user.eager, "h200", arguments={"N": N})
    assert eager.latency_us > alone.latency_us, "it reads two tensors"


@pytest.mark.parametrize(
    "options",
    [
        {"pass_configs": {"tl.enable_fast_math": True}},
        {"pass_configs": {"tl.device_compile_flags": ["-O3", "--use_fast_math"]}},
        {"compile_flags": ["-O3", "-use_fast_math"]},
    ],
)
def test_fast_math_is_read_wherever_tilelang_takes_it(options: dict[str, Any]) -> None:
    h200 = load_target("h200")

    def operations(given: Any) -> float:
        (kernel,) = profiles_of(find_kernel(given, h200, {"n": N}), h200)
        return sum(p.trips.mean * p.work.vector_ops for role in kernel.roles for p in role.phases)

    assert operations(tilelang.jit(**options)(user.exponentials)) < operations(user.exponentials)


@pytest.mark.parametrize("target", ["h100", "h100x2"])
def test_names_make_no_kernel_of_several_devices(target: str) -> None:
    """A kernel of one device may have tensors x_0 and x_1, and a number named rank."""
    found = tilesight.predict(user.two_weights, target, {"rank": 1})
    other = tilesight.predict(user.other_names, target, {"factor": 1})
    assert found == other
    assert "network" not in found.terms_us


def test_sizes_of_run_time_are_given() -> None:
    few, many = (tilesight.predict(user.open_rows, "h200", f"m={m},offset=1") for m in (1024, 1 << 20))
    assert many.latency_us > 20 * few.latency_us
    again = tilesight.predict(user.rows, "h200", {"m": 1024, "offset": 1}, arguments={"width": 128})
    assert again == few


@pytest.mark.parametrize("offset", [0, -1])
def test_a_number_that_is_no_size_may_be_zero_or_negative(offset: int) -> None:
    other, one = (tilesight.predict(user.open_rows, "h200", {"m": 1024, "offset": n}) for n in (offset, 1))
    assert other == one
    assert tilesight.predict(user.open_rows, "h200", f"m=1024,offset={offset}") == one
    assert tilesight.predict(user.open_rows, "h200", "m=1024", inputs={"offset": offset}) == one


@pytest.mark.parametrize(
    ("given", "arguments", "dims", "message"),
    [
        (3, {}, None, "^an int is no kernel: give a TileLang PrimFunc, or a function that returns one$"),
        (int, {}, None, "^a type is no kernel"),
        (user.whole, {"n": 4}, None, "^main is traced already and takes no arguments; leave out n$"),
        (user.copy, {"m": 4}, None, "^unknown argument of copy 'm'; "),
        (user.copy, {"block": 4}, None, r"^copy\(n: int, block.* needs a value of n: arguments=\{'n': ...\}"),
        (user.raises, {"n": 4}, None, "^this kernel cannot be traced for h100: ValueError: no tile of 4$"),
        (user.nothing, {}, None, "^nothing returned a NoneType and no PrimFunc"),
        (user.open_rows, {}, None, "^scale takes m, offset at run time; give the sizes .*dims='m=4096,off"),
        (user.open_rows, {}, "m=1,k=1", "^unknown run-time size or variable of scale 'k'; known: m, offset"),
        (user.open_rows, {}, "m=0,offset=1", "^scale: m=0 must be a whole number in 1 .. "),
        (user.open_rows, {}, "m=1,offset=1.5", r"^scale: offset=1.5 must be a whole number in -\d+ .. "),
        (user.pairs, {}, "n=0", r"^pairs\(\): n=0 must be a whole number in 1 .. "),
        (user.whole, {}, "m=3", "^unknown run-time size or variable of main 'm'"),
    ],
)
def test_what_is_wrong_is_said(given: Any, arguments: dict[str, Any], dims: Any, message: str) -> None:
    for call in (tilesight.predict, tilesight.explain):
        with pytest.raises(InputError, match=message):
            call(given, target="h100", dims=dims, arguments=arguments)


def test_explains_what_limits_a_kernel() -> None:
    found = tilesight.explain(user.jitted, "h200", arguments={"n": 1 << 26})
    assert (found.title, found.workload, found.best, found.this.config) == (
        f"copy(n={1 << 26})",
        None,
        None,
        None,
    )
    assert found.this.largest_cost == "dram"
    assert found.this.launch["blocks"] == (1 << 26) // 1024
    assert found.this.requested[0].quantities["global_read_bytes"] == 4096
    assert "The largest cost is device memory" in found.this.findings[0]
    assert found.this.prediction == tilesight.predict(user.copy(1 << 26), "h200")


def test_explains_a_kernel_for_a_processor() -> None:
    found = tilesight.explain(user.copy(1 << 16), "cpu")
    assert found.this.prediction.latency_us > 0
    assert not any(work.registers for work in found.this.requested)


def test_explain_takes_either_a_name_or_a_kernel() -> None:
    with pytest.raises(InputError, match="explain of a kernel of your own takes no config, database"):
        tilesight.explain(user.whole, "h100", config="block=3", database="x.db")
    with pytest.raises(InputError, match="matmul is a kernel by name and takes no arguments"):
        tilesight.explain("matmul", "h100", arguments={"n": 3})


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("whole_", {}, "unknown name in kernels_of_a_user.py 'whole_'; did you mean whole?"),
        ("NUMBER", {}, "an int is no kernel: give"),
        ("nothing", {}, "nothing returned a NoneType and no PrimFunc"),
        ("copy", {}, "needs a value of n: arguments={'n': ...}, or --arg n=... on the command line"),
        ("open_rows", {}, "open_rows takes m, offset at run time"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(name: str, arguments: dict[str, Any], message: str) -> None:
    found = _profiles(FileKernel(Path(FILE), name, load_target("h100"), arguments, RunTimeFacts()))
    assert isinstance(found, str)
    assert message in found


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return (ended.value.code, *capsys.readouterr())


def test_kernels_of_files_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    place = [f"--file={FILE}:jitted", "--target=h200", f"--arg=n={N}", "--arg=dtype=float32"]
    code, out, err = run(capsys, "predict", *place)
    assert code == 0, err
    expected = tilesight.predict(user.whole, "h200")
    assert out.splitlines()[0].startswith(f"copy(n={N}, dtype=float32) on NVIDIA H200")
    assert f"predicted {number(expected.latency_us)} us" in out
    found = json.loads(run(capsys, "predict", *place, "--json")[1])
    assert found["predicted_us"] == pytest.approx(expected.latency_us)
    check_fields("predict", [found])
    code, out, err = run(capsys, "explain", *place)
    assert code == 0, err
    assert "config:" not in out
    assert "best" not in out
    assert "largest cost: dram" in out
    explained = json.loads(run(capsys, "explain", *place, "--json")[1])
    assert explained["workload"] is None
    assert explained["this"]["predicted_us"] == found["predicted_us"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aborts", ":aborts: the process was killed by SIGABRT\n"),
        ("raises --arg=n=7", ":raises: ValueError: no tile of 7 (kernels_of_a_user.py:"),
    ],
)
def test_a_file_that_crashes_or_raises_costs_one_line(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "predict", "--target=h100", *f"--file={FILE}:{name}".split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_ends_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_TEST_FILE_ENDS", "1")
    found = _profiles(FileKernel(Path(FILE), "whole", load_target("h100"), {}, None))
    assert "ends Python by itself (exit code 4); put its program under: if __name__ ==" in str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "--file=x.py:k", "matmul", "--dtype=half"], "explain --file takes no KERNEL, --dtype"),
        (["explain"], "explain needs a kernel: a name of `tilesight kernels`, or"),
        (["explain", "matmul", "--arg=a=1"], "--arg is for the function in --file"),
        (["predict", "--file=x.py"], "'x.py' names no kernel of a file; write it as kernel.py:name"),
        (["predict", "--file=x.py:k"], "x.py:k: there is no file 'x.py'"),
        (["predict", "--file=x.py:k", "--arg=3"], "--arg '3' is not of the form NAME=VALUE"),
        (["predict", "--file=x.py:k", "--arg=a=3", "--arg=a=4"], "--arg a is given twice"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments, "--target=h100")
    assert code == 2
    assert message in err


def test_example_inputs_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = [f"--file={data_kernels.__file__}:sequences", "--target=h200", "--arg=batch=128"]
    place.append("--arg=total=1048576")
    np.save(tmp_path / "even.npy", np.arange(129, dtype="int32") * 8192)
    np.save(tmp_path / "few.npy", np.minimum(np.arange(129, dtype="int32") * 64, 1024))

    def predicted(*more: str) -> dict[str, Any]:
        code, out, err = run(capsys, "predict", *place, *more, "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    even, few = (predicted(f"--input=Starts={tmp_path}/{name}.npy") for name in ("even", "few"))
    stated, assumed = predicted("--dims=kv_len=8192"), predicted()
    assert even["predicted_us"] > 5 * few["predicted_us"]
    assert stated["predicted_us"] == pytest.approx(even["predicted_us"], rel=0.02)
    assert not any("iterations" in note for note in even["notes"])
    assert any("iterations, as if the data divided" in note for note in assumed["notes"])
    assert assumed["predicted_uncertainty"] > 1.2 * even["predicted_uncertainty"]
    starts = np.arange(129, dtype="int32") * 8192
    kernel = data_kernels.sequences(128, 1048576)
    in_python = tilesight.predict(kernel, "h200", inputs={"Starts": torch.from_numpy(starts)})
    assert in_python.latency_us == pytest.approx(even["predicted_us"])
    assert tilesight.explain(kernel, "h200", inputs={"Starts": starts}).this.prediction == in_python
    code, out, _ = run(capsys, "explain", *place, f"--input=Starts={tmp_path}/few.npy")
    assert code == 0
    assert "iterations, as if" not in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--input", "Starts"], "--input 'Starts' is not of the form NAME=FILE, such as --input lengths="),
        (["--input", "Starts=nothing.npy"], "--input Starts: 'nothing.npy' is no file that numpy.save wrote"),
        (["--input=a=FILE", "--input=a=FILE"], "--input a is given twice"),
        (["--density", "2"], "density=2.0 must be a number in 0 .. 1"),
    ],
)
def test_wrong_facts_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], message: str
) -> None:
    np.save(tmp_path / "some.npy", np.arange(3))
    given = [text.replace("FILE", f"{tmp_path}/some.npy") for text in given]
    code, _, err = run(capsys, "predict", f"--file={data_kernels.__file__}:sequences", *given)
    assert code == 2
    assert message in err


def test_facts_are_for_kernels_in_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "explain", "matmul", "--target", "h200", "--density", "0.5", "--dims", "m=3")
    assert code == 2
    assert "--dims, --density is for a kernel in --file; shipped kernels take --shape" in err
    place = ["--file", f"{FILE}:jitted", "--target", "h200"]
    code, _, err = run(capsys, "explain", *place, "--shape", "m=3")
    assert code == 2
    assert "explain --file takes no --shape" in err
    with pytest.raises(InputError, match="matmul is a kernel by name and takes no dims: give shape"):
        tilesight.explain("matmul", "h200", dims="m=3")
    with pytest.raises(InputError, match="explain of a kernel of your own takes no shape"):
        tilesight.explain(user.whole, "h200", "m=3")
