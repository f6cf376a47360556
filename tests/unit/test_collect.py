"""Collecting: which candidates, what becomes a row, what survives an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.conftest import FakeLine
from tests.unit.fakes import Axpy, AxpyTemplate, FakeExecutor, Journal, profile_of, true_us
from tilesight.candidate import Candidate
from tilesight.collect import collect
from tilesight.collector import Case, Collected, Collector
from tilesight.dataset import Dataset, profiles_of, read_dataset
from tilesight.errors import Failure, FailureKind, InputError, NoCandidateError, ToolchainError, UnknownNameError
from tilesight.jobs import Profiled
from tilesight.ledger import Ledger
from tilesight.preparing import Kept, Prepared
from tilesight.sampling import stratified
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.trial import BuildResult, Measurement

Fault = Callable[[str, Config], Failure | None]


class FakePreparer:
    """Prepares without compilers. Configs with the same block and stages generate the same code."""

    def __init__(self, fault: Fault = lambda _stage, _config: None) -> None:
        self.fault, self.is_closed = fault, False
        self.done: list[Config] = []

    def __call__(self, *_: object) -> FakePreparer:
        return self

    def __enter__(self) -> FakePreparer:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def prepare(self, candidates: Iterable[Candidate], kept: Kept) -> Iterator[Prepared]:
        for candidate in candidates:
            config = candidate.config
            self.done.append(config)
            failure = self.fault("lower", config)
            if failure:
                yield Prepared(candidate, None, failure=failure)
                continue
            lowered = Profiled((profile_of(config),), f"code-{config['block']}-{config['stages']}", 0.01)
            first = kept.setdefault((candidate.workload.key, lowered.fingerprint), config)
            failure = Failure(FailureKind.DUPLICATE, f"as {first}") if first != config else self.fault("build", config)
            if failure:
                yield Prepared(candidate, lowered, failure=failure)
            else:
                yield Prepared(
                    candidate, lowered, BuildResult("/cache/x.so", resources={"registers": 40, "spill_bytes": 0, "smem_bytes": 8})
                )


class Device(FakeExecutor):
    """Says what it measures with, as a real one does."""

    def measure(self, builds: Iterable[tuple[Candidate, BuildResult]]) -> Iterator[tuple[Candidate, Measurement]]:
        facts: dict[str, Any] = {"environment": {"device": "chip", "uuid": "GPU-1234"}, "protocol": {"warmup_ms": 20.0}}
        for candidate, found in super().measure(builds):
            yield candidate, Measurement(found.samples_us, found.failure, found.relative_error, **facts)


def cases(samples: int = 20, target: str = "h200", shapes: tuple[str, ...] = ("X0", "X1")) -> list[Case]:
    template = AxpyTemplate()
    found = []
    for shape in shapes:
        workload = template.operator.workload(shape)
        space = template.space(workload, load_target(target))
        found.append(Case(workload, template, load_target(target), len(space.configs()), stratified(space, samples)))
    return found


def gather(
    path: Path,
    wanted: list[Case],
    *,
    preparer: FakePreparer | None = None,
    device: FakeExecutor | None = None,
    run: str = "r1",
    observer: Journal | None = None,
    budget_s: float | None = None,
) -> Collected:
    ledger = Ledger(path, run, {"date": run, "seed": 0})
    return Collector(wanted, ledger, device or Device(), preparer or FakePreparer(), observer or Journal(), budget_s).run()


@pytest.mark.parametrize("target", ["h200", "cpu"])  # prepared in a thread ahead, and one after the other
def test_every_candidate_is_a_row(tmp_path: Path, target: str) -> None:
    path, preparer = tmp_path / "d.parquet", FakePreparer()
    found = gather(path, cases(target=target), preparer=preparer)
    assert found.complete
    assert preparer.is_closed
    dataset = read_dataset(path)
    assert len(dataset) == 40
    for case in dataset.cases():
        for _, row in case.frame.iterrows():
            config = Config(json.loads(row["config"]))
            assert profiles_of(row["profile"]) == (profile_of(config),)
            assert row["vendor_us"] == 12.0
            assert row["vendor"] == "vendor"
            if row["status"] == "verified":
                assert row["measured_us"] == true_us(config)
                assert row["samples_us"] == (true_us(config),)
                assert (row["registers"], row["spill_bytes"], row["smem_bytes"]) == (40, 0, 8)
            else:
                assert row["failure_kind"] == "duplicate"
    assert set(dataset.frame["shape"]) == {"X0", "X1"}
    assert dict(zip(dataset.frame["shape"], dataset.frame["flops"], strict=True)) == {"X0": 2048.0, "X1": 8192.0}


def test_the_run_says_how_and_not_where(tmp_path: Path) -> None:
    gather(tmp_path / "d.parquet", cases())
    (run,) = read_dataset(tmp_path / "d.parquet").runs.values()
    assert run["environment"] == {"device": "chip"}
    assert run["protocol"] == {"warmup_ms": 20.0}
    times = run["vendor"]["axpy(n=1024;dtype=float32)"]
    assert times["times_us"] == {"vendor": 12.0}
    assert len(times["fastest"]) == 3
    assert all(found["measured_us"] == found["again_us"] for found in times["fastest"])


def test_failures_of_each_stage_are_rows(tmp_path: Path) -> None:
    kinds = {"lower": FailureKind.LOWER_CRASH, "build": FailureKind.BUILD_ERROR, "measure": FailureKind.WRONG_RESULT}
    wanted = cases(samples=10**6, shapes=("X0",))

    def fault(stage: str, config: Config) -> Failure | None:
        bad = {"lower": 1, "build": 2, "measure": 3}
        text = "see /home/someone/.cache/tilesight/ab12/kernel.cu(7): error, and 3/4 of a.b/c"
        return Failure(kinds[stage], text) if config["block"] == bad.get(stage) else None

    gather(tmp_path / "d.parquet", wanted, preparer=FakePreparer(fault), device=Device(fault))
    frame = read_dataset(tmp_path / "d.parquet").frame
    blocks = frame["config"].map(lambda text: json.loads(text)["block"])
    lowered = frame[blocks == 1]
    assert set(lowered["failure_kind"]) == {"lower_crash"}
    assert lowered["profile"].isna().all()
    assert lowered["fingerprint"].isna().all()
    assert "build_error" in set(frame[blocks == 2]["failure_kind"])
    assert frame[blocks == 2]["profile"].notna().all()
    wrong = frame[(blocks == 3) & (frame["failure_kind"] == "wrong_result")]
    assert len(wrong) > 0
    assert wrong["measured_us"].isna().all()
    assert set(wrong["failure"]) == {"see kernel.cu(7): error, and 3/4 of a.b/c"}
    assert (frame[blocks > 3]["failure_kind"].dropna() == "duplicate").all()


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    gather(path, cases(samples=10))
    before = read_dataset(path).frame
    preparer, device = FakePreparer(), Device()
    gather(path, cases(samples=16), preparer=preparer, device=device, run="r2")
    after = read_dataset(path)
    assert len(preparer.done) == 12
    assert len(after) == 32
    assert set(after.runs) == {"r1", "r2"}
    assert after.frame["vendor_us"].notna().all()
    kept = after.frame[after.frame["run"] == "r1"].reset_index(drop=True)
    assert kept.equals(before)
    # nothing is left to do: nothing is done
    again, idle = FakePreparer(), Device()
    found = gather(path, cases(samples=16), preparer=again, device=idle, run="r3")
    assert (again.done, idle.done["measure"], idle.done["compare"]) == ([], [], [])
    assert found.complete
    assert "r3" not in read_dataset(path).runs


def test_duplicates_of_rows_in_the_file_are_known(tmp_path: Path) -> None:
    path, device = tmp_path / "d.parquet", Device()
    gather(path, cases(samples=120, shapes=("X0",)), device=device)
    gather(path, cases(samples=10**6, shapes=("X0",)), device=device, run="r2")
    codes = [(c["block"], c["stages"]) for c in device.done["measure"]]
    assert len(codes) == len(set(codes)) == 100  # 40 blocks with 3 stages, odd ones without 2


@pytest.mark.parametrize("target", ["h200", "cpu"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ToolchainError("the device went away")])
def test_what_was_measured_is_in_the_file_however_it_ends(tmp_path: Path, target: str, error: BaseException) -> None:
    path = tmp_path / "d.parquet"
    count = 0

    def stop(stage: str, _config: Config) -> Failure | None:
        nonlocal count
        count += stage == "measure"
        if count == 8:
            raise error
        return None

    with pytest.raises(type(error)):
        gather(path, cases(target=target), device=Device(stop))
    assert len(read_dataset(path).verified()) == 7
    found = gather(path, cases(target=target), run="r2")
    assert found.complete
    assert len(found.dataset) == 40
    assert found.dataset.frame["vendor_us"].notna().all()


def test_an_error_of_the_stream_stops_the_collection(tmp_path: Path) -> None:
    def full(stage: str, _config: Config) -> Failure | None:
        if stage == "build":
            raise ToolchainError("no space left")
        return None

    with pytest.raises(ToolchainError, match="no space left"):
        gather(tmp_path / "d.parquet", cases(), preparer=FakePreparer(full))


@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_a_spent_budget_is_said(tmp_path: Path, target: str) -> None:
    journal = Journal()
    found = gather(tmp_path / "d.parquet", cases(target=target), budget_s=1e-9, observer=journal)
    assert not found.complete
    assert len(found.dataset) == 0
    assert any("time budget" in str(text) for kind, text in journal.events if kind == "message")


def test_a_case_without_a_right_kernel_has_no_vendor_time(tmp_path: Path) -> None:
    journal = Journal()
    wrong = Failure(FailureKind.WRONG_RESULT, "differs")
    device = Device(lambda stage, _config: wrong if stage == "measure" else None)
    found = gather(tmp_path / "d.parquet", cases(shapes=("X0",)), device=device, observer=journal)
    assert device.done["compare"] == []
    assert found.dataset.frame["vendor_us"].isna().all()
    said = [text for kind, text in journal.events if kind == "message"]
    assert len(said) == 1
    assert "0 of 20 measured and right" in said[0]
    assert "fastest none" in said[0]


def test_a_comparison_that_fails_is_said_once(tmp_path: Path) -> None:
    journal = Journal()
    device = Device(lambda stage, _config: Failure(FailureKind.RUN_CRASH, "gone") if stage == "compare" else None)
    found = gather(tmp_path / "d.parquet", cases(shapes=("X0",)), device=device, observer=journal)
    assert found.complete
    assert len([text for kind, text in journal.events if kind == "message" and "no vendor time: gone" in text]) == 1


def test_the_file_is_written_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.collector.SAVE_S", 0.0)
    path, rows = tmp_path / "d.parquet", []

    def look(stage: str, _config: Config) -> Failure | None:
        if stage == "measure" and path.exists():
            rows.append(len(read_dataset(path)))
        return None

    gather(path, cases(shapes=("X0",)), device=Device(look))
    assert rows == sorted(rows)
    assert rows[-1] > rows[0]


class OtherTemplate(AxpyTemplate):
    name = "axpy_other"


class Triad(Axpy):
    name = "triad"
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"T0": {"n": 64}}
    default_names = ("T0",)


class TriadTemplate(AxpyTemplate):
    name = "triad"


@pytest.fixture
def line(fake_line: FakeLine, monkeypatch: pytest.MonkeyPatch) -> FakePreparer:
    """`collect` with the kernel `axpy` on the processor, without compilers."""
    preparer = FakePreparer()
    registry = (
        {"axpy": AxpyTemplate.operator, "triad": Triad()},
        {"axpy": AxpyTemplate(), "axpy_other": OtherTemplate(), "triad": TriadTemplate()},
    )
    monkeypatch.setattr(TriadTemplate, "operator", registry[0]["triad"])
    monkeypatch.setattr("tilesight.kernels._registry", lambda: registry)
    monkeypatch.setattr("tilesight.preparing.Preparer", preparer)
    fake_line.executor = Device()
    return preparer


class TestCollect:
    def test_shapes_and_dtypes_multiply(self, line: FakePreparer, tmp_path: Path) -> None:
        found = collect(["axpy", "triad"], tmp_path / "d.parquet", 5, "cpu", shapes=["X0", "n=64", "T0"], dtypes=["fp32", "float32"])
        keys = sorted({case.workload.key for case in found.cases})
        assert keys == ["axpy(n=1024;dtype=float32)", "axpy(n=64;dtype=float32)", "triad(n=64;dtype=float32)"]
        assert len(found.dataset) == 15
        (run,) = found.dataset.runs.values()
        assert run["seed"] == 0
        assert set(run["templates"]) == {"axpy", "triad"}

    def test_all_shapes_and_default_shapes(self, line: FakePreparer, tmp_path: Path) -> None:
        found = collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", shapes=["all"])
        assert [case.workload.name for case in found.cases] == ["X0", "X1"]
        found = collect(["axpy", "triad"], tmp_path / "e.parquet", 2, "cpu")
        assert [case.workload.name for case in found.cases] == ["X0", "T0"]

    def test_a_template_by_name(self, line: FakePreparer, tmp_path: Path) -> None:
        found = collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", template="axpy_other")
        assert set(found.dataset.frame["template"]) == {"axpy_other"}
        with pytest.raises(UnknownNameError, match="did you mean axpy_other"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", template="axpy_othr")

    def test_what_is_asked_wrongly(self, line: FakePreparer, tmp_path: Path) -> None:
        path = tmp_path / "d.parquet"
        with pytest.raises(UnknownNameError, match="unknown axpy shape 'X7'"):
            collect(["axpy", "triad"], path, 2, "cpu", shapes=["X7"])
        with pytest.raises(InputError, match="none of the shapes is one of triad; name one of T0, or `all`"):
            collect(["axpy", "triad"], path, 2, "cpu", shapes=["X0"])
        with pytest.raises(InputError, match="samples=0"):
            collect(["axpy"], path, 0, "cpu")
        with pytest.raises(InputError, match="budget"):
            collect(["axpy"], path, 1, "cpu", budget_s=-1.0)
        with pytest.raises(InputError, match=r"there is no folder '.*none'; make it"):
            collect(["axpy"], tmp_path / "none" / "d.parquet", 1, "cpu")
        (tmp_path / "text.parquet").write_text("no dataset")
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            collect(["axpy"], tmp_path / "text.parquet", 1, "cpu")
        assert line.done == []

    def test_a_file_of_workloads(self, line: FakePreparer, tmp_path: Path) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text("# kernel shape dtype samples\naxpy X1\n\ntriad n=64 fp32 3  # few\naxpy  n=64   float32\n")
        found = collect([], tmp_path / "d.parquet", 5, "cpu", workloads=listed)
        assert [(case.workload.key, len(case.wanted)) for case in found.cases] == [
            ("axpy(n=4096;dtype=float32)", 5),
            ("triad(n=64;dtype=float32)", 3),
            ("axpy(n=64;dtype=float32)", 5),
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("axpy", r"workloads.txt, line 2: 'axpy' must be: KERNEL SHAPE"),
            ("axpy X0 fp32 3 4", "line 2: .* must be: KERNEL SHAPE"),
            ("axpi X0 fp32 3", "line 2: unknown kernel 'axpi'; did you mean axpy"),
            ("axpy X9 fp32 3", "line 2: unknown axpy shape 'X9'"),
            ("axpy X0 int3 3", "line 2: axpy: dtype 'int3' is not supported"),
            ("axpy X0 fp32 none", "line 2: the number of samples 'none' must be"),
            ("axpy X0", "line 2: the number of samples '' must be"),
        ],
    )
    def test_what_is_wrong_in_a_file_of_workloads(self, line: FakePreparer, tmp_path: Path, text: str, message: str) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text(f"\n{text}\n")
        with pytest.raises(InputError, match=message):
            collect([], tmp_path / "d.parquet", None, "cpu", workloads=listed)
        assert line.done == []

    def test_a_file_of_workloads_stands_alone(self, line: FakePreparer, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            collect([], tmp_path / "d.parquet", 5, "cpu", workloads=tmp_path / "none.txt")
        with pytest.raises(InputError, match="takes the place of kernels"):
            collect(["axpy"], tmp_path / "d.parquet", 5, "cpu", workloads=tmp_path / "none.txt")
        with pytest.raises(InputError, match="number of samples"):
            collect(["axpy"], tmp_path / "d.parquet", None, "cpu")

    def test_needs_a_device(self, line: FakePreparer, tmp_path: Path) -> None:
        with pytest.raises(ToolchainError, match=r"a dataset is of measured candidates: .*no GPU was found"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "h200")
        assert list(tmp_path.glob("*.parquet")) == []

    @pytest.mark.parametrize("target", ["auto", "h200"])
    @pytest.mark.parametrize(
        ("names", "file", "given", "message"),
        [
            (["axpi"], "d.parquet", {}, "unknown kernel 'axpi'; did you mean axpy"),
            ([], "d.parquet", {}, "no kernel was named"),
            (["axpy"], "d.parquet", {"shapes": ["X7"]}, "unknown axpy shape 'X7'"),
            (["axpy"], "d.parquet", {"shapes": ["n=0"]}, "n=0"),
            (["axpy"], "d.parquet", {"dtypes": ["int3"]}, "axpy: dtype 'int3' is not supported"),
            (["axpy"], "d.csv", {}, r"--out .*d\.csv must end in \.parquet, as datasets do"),
            (["axpy"], "none/d.parquet", {}, "there is no folder '.*none'; make it, or name another file"),
            (["axpy"], "folder.parquet", {}, r"folder\.parquet is a folder; name a file in it"),
        ],
    )
    def test_what_is_asked_wrongly_is_said_before_a_gpu_is_looked_for(
        self, line: FakePreparer, tmp_path: Path, target: str, names: list[str], file: str, given: dict[str, Any], message: str
    ) -> None:
        (tmp_path / "folder.parquet").mkdir()
        with pytest.raises(InputError, match=message):
            collect(names, tmp_path / file, 2, target, **given)
        assert [path.name for path in tmp_path.iterdir()] == ["folder.parquet"]

    def test_a_wrong_line_is_said_before_a_gpu_is_looked_for(self, line: FakePreparer, tmp_path: Path) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text("axpy X9 fp32 3\n")
        with pytest.raises(InputError, match="line 1: unknown axpy shape 'X9'"):
            collect([], tmp_path / "d.parquet", None, workloads=listed)

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder that even root cannot write to")
    def test_a_folder_that_cannot_be_written(self, line: FakePreparer) -> None:
        with pytest.raises(InputError, match=r"--out /proc/d\.parquet: nothing can be written in folder '/proc': "):
            collect(["axpy"], "/proc/d.parquet", 2)

    def test_without_a_gpu_only_what_can_be_measured_is_offered(self, line: FakePreparer, tmp_path: Path) -> None:
        with pytest.raises(ToolchainError) as caught:
            collect(["axpy"], tmp_path / "d.parquet", 2)
        assert str(caught.value).endswith("could mean; --target cpu measures on this machine's processor")
        with pytest.raises(ToolchainError) as caught:
            collect(["axpy"], tmp_path / "d.parquet", 2, "h200")
        assert "a dataset is of measured candidates: no GPU was found here" in str(caught.value)
        assert "predict" not in str(caught.value)

    def test_a_missing_compiler_is_said_alone(self, line: FakePreparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tilesight.where.missing_compiler", lambda target: f"building for {target.name} needs a compiler")
        with pytest.raises(ToolchainError, match=r"building for cpu needs a compiler$"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu")

    def test_a_space_without_a_legal_config(self, line: FakePreparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.unit.fakes.AxpyTemplate.blocks", ())
        with pytest.raises(NoCandidateError, match="none of the workloads has a legal config on cpu"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu")


def test_a_ledger_keeps_what_others_added(tmp_path: Path) -> None:
    """Counters that a program added stay when the file is continued."""
    from tilesight.dataset import write_dataset

    path = tmp_path / "d.parquet"
    gather(path, cases(samples=5))
    dataset = read_dataset(path)
    write_dataset(path, Dataset(dataset.frame.assign(counters='{"sm_clock_mhz":1980.0}'), dataset.metadata))
    gather(path, cases(samples=6), run="r2")
    counters = read_dataset(path).frame["counters"]
    assert (counters == '{"sm_clock_mhz":1980.0}').sum() == 10
