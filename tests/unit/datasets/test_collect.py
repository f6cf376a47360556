"""Collecting: which candidates, what becomes a row, what survives an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.support.fakes import (
    Axpy,
    AxpyTemplate,
    DisturbedExecutor,
    FakeExecutor,
    Journal,
    failing,
    profile_of,
    true_us,
)
from tests.unit.conftest import FakeLine
from tests.unit.problem.test_group_operator import Sum
from tilesight.datasets.collect import collect
from tilesight.datasets.collector import CollectionCase, CollectionResult, Collector
from tilesight.datasets.writer import DatasetWriter
from tilesight.errors import (
    Failure,
    FailureKind,
    InputError,
    NoCandidateError,
    ToolchainError,
    UnknownNameError,
)
from tilesight.executor.jobs import CompareJob, Event, Job, JobSource, Lane, MeasureDone, MeasureJob
from tilesight.executor.tasks import Profiled
from tilesight.machine.devices import Device as Gpu
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.dataset import Dataset, profiles_of, read_dataset, write_dataset
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison
from tilesight.records.trial import BuildResult, Measurement
from tilesight.search.stratified import stratified
from tilesight.target.spec import load_target

Fault = Callable[[str, Config], Failure | None]


class Device(FakeExecutor):
    """A device with a fake driver. Configs with the same block and stages generate the same code."""

    most_ready = 0  # built candidates that waited at once, or were being built

    def lowered(self, candidate: Candidate) -> Profiled | Failure:
        found, config = super().lowered(candidate), candidate.config
        return (
            found
            if isinstance(found, Failure)
            else replace(found, fingerprint=f"code-{config['block']}-{config['stages']}")
        )

    def built(self, candidate: Candidate) -> BuildResult:
        found = super().built(candidate)
        self.most_ready = max(self.most_ready, len(self.done["build"]) - len(self.done["measure"]))
        return replace(found, resources={"registers": 40, "spill_bytes": 0, "smem_bytes": 8})

    def event(self, job: Job) -> Event:
        found = super().event(job)
        if isinstance(found, MeasureDone):
            facts = {
                "environment": {"device": "chip", "uuid": "GPU-1234"},
                "observed": {"sm_clock_mhz": 1980.0},
            }
            return replace(
                found, measurement=replace(found.measurement, protocol=found.job.protocol.record(), **facts)
            )
        return found


def chip(name: str, index: int) -> Gpu:
    return Gpu(name, f"GPU-{index}", "580", "cuda", index, 10**11)


def cases(
    samples: int = 20, target: str = "h200", shapes: tuple[str, ...] = ("X0", "X1")
) -> list[CollectionCase]:
    template = AxpyTemplate()
    found = []
    for shape in shapes:
        workload = template.operator.workload(shape)
        space = template.space(workload, load_target(target))
        found.append(
            CollectionCase(
                workload, template, load_target(target), len(space.configs()), stratified(space, samples)
            )
        )
    return found


def gather(
    path: Path,
    wanted: list[CollectionCase],
    *,
    device: FakeExecutor | None = None,
    run: str = "r1",
    observer: Journal | None = None,
    budget_s: float | None = None,
) -> CollectionResult:
    writer = DatasetWriter(path, run, {"date": run, "seed": 0})
    protocol = MeasurementProtocol.named("default", wanted[0].target)
    return Collector(wanted, writer, device or Device(), protocol, observer or Journal(), budget_s).run()


def test_every_candidate_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    found = gather(path, cases())
    assert found.complete
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
                assert json.loads(row["observed"]) == {"sm_clock_mhz": 1980.0}
            else:
                assert row["failure_kind"] == "duplicate"
    assert set(dataset.frame["shape"]) == {"X0", "X1"}
    assert dict(zip(dataset.frame["shape"], dataset.frame["flops"], strict=True)) == {
        "X0": 2048.0,
        "X1": 8192.0,
    }


def test_metadata_of_a_run_has_no_private_facts(tmp_path: Path) -> None:
    gather(tmp_path / "d.parquet", cases())
    (run,) = read_dataset(tmp_path / "d.parquet").runs.values()
    assert run["environment"] == {"device": "chip"}
    assert run["protocol"] == MeasurementProtocol.named("default", load_target("h200")).record()
    times = run["vendor"]["axpy(n=1024;dtype=float32)"]
    assert times["times_us"] == {"vendor": 12.0}
    assert len(times["fastest"]) == 3
    assert all(found["measured_us"] == found["again_us"] for found in times["fastest"])


def test_failures_of_each_stage_are_rows(tmp_path: Path) -> None:
    kinds = {
        "lower": FailureKind.LOWER_CRASH,
        "build": FailureKind.BUILD_ERROR,
        "measure": FailureKind.WRONG_RESULT,
    }
    wanted = cases(samples=10**6, shapes=("X0",))

    def fault(stage: str, config: Config) -> Failure | None:
        bad = {"lower": 1, "build": 2, "measure": 3}
        text = "see /home/someone/.cache/tilesight/ab12/kernel.cu(7): error, and 3/4 of a.b/c"
        return Failure(kinds[stage], text) if config["block"] == bad.get(stage) else None

    gather(tmp_path / "d.parquet", wanted, device=Device(fault))
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
    device = Device()
    gather(path, cases(samples=16), device=device, run="r2")
    after = read_dataset(path)
    assert len(device.done["lower"]) == 12
    assert len(after) == 32
    assert set(after.runs) == {"r1", "r2"}
    assert after.frame["vendor_us"].notna().all()
    kept = after.frame[after.frame["run"] == "r1"].reset_index(drop=True)
    assert kept.equals(before)
    # nothing is left to do: nothing is done
    idle = Device()
    found = gather(path, cases(samples=16), device=idle, run="r3")
    assert not any(idle.done.values())
    assert found.complete
    assert "r3" not in read_dataset(path).runs


def test_duplicates_of_rows_in_the_file_are_recognised(tmp_path: Path) -> None:
    path, device = tmp_path / "d.parquet", Device()
    gather(path, cases(samples=120, shapes=("X0",)), device=device)
    gather(path, cases(samples=10**6, shapes=("X0",)), device=device, run="r2")
    codes = [(c["block"], c["stages"]) for c in device.done["measure"]]
    assert len(codes) == len(set(codes)) == 100  # 40 blocks with 3 stages, odd ones without 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ToolchainError("the device went away")])
def test_measured_rows_are_saved_however_the_collection_ends(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "d.parquet"
    count = 0

    def stop(stage: str, _config: Config) -> Failure | None:
        nonlocal count
        count += stage == "measure"
        if count == 8:
            raise error
        return None

    with pytest.raises(type(error)):
        gather(path, cases(), device=Device(stop))
    assert len(read_dataset(path).verified()) == 7
    found = gather(path, cases(), run="r2")
    assert found.complete
    assert len(found.dataset) == 40
    assert found.dataset.frame["vendor_us"].notna().all()


def test_an_error_of_the_stream_stops_the_collection(tmp_path: Path) -> None:
    def full(stage: str, _config: Config) -> Failure | None:
        if stage == "build":
            raise ToolchainError("no space left")
        return None

    with pytest.raises(ToolchainError, match="no space left"):
        gather(tmp_path / "d.parquet", cases(), device=Device(full))


def test_a_spent_budget_is_reported(tmp_path: Path) -> None:
    journal = Journal()
    found = gather(tmp_path / "d.parquet", cases(), budget_s=1e-9, observer=journal)
    assert not found.complete
    assert len(found.dataset) == 0
    assert any("time budget" in str(text) for kind, text in journal.events if kind == "message")


def test_a_budget_that_ends_in_the_middle_loses_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0

    def ticking(stage: str, _config: Config) -> Failure | None:
        nonlocal clock
        clock += stage == "measure"
        return None

    monkeypatch.setattr("tilesight.datasets.collector.time", SimpleNamespace(monotonic=lambda: clock))
    path, device = tmp_path / "d.parquet", Device(ticking)
    found = gather(path, cases(shapes=("X0",)), device=device, budget_s=5.5)
    assert not found.complete
    assert len(device.done["measure"]) == len(read_dataset(path).verified()) == 6
    assert device.done["compare"] == []
    again = Device()
    assert gather(path, cases(shapes=("X0",)), device=again, run="r2").complete
    assert again.done["measure"]
    assert not set(again.done["measure"]) & set(device.done["measure"])


def test_unfinished_builds_are_abandoned_when_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("tilesight.datasets.collector.time", SimpleNamespace(monotonic=lambda: clock))

    class Slow(Device):
        def stream(self, source: JobSource) -> Generator[Event]:
            nonlocal clock
            first, second = source.next(Lane.PREPARE), source.next(Lane.PREPARE)
            assert first is not None
            clock = 100.0
            yield self.event(first)
            raise AssertionError(f"waited for {second}")

    assert not gather(tmp_path / "d.parquet", cases(), device=Slow(), budget_s=50.0).complete


@pytest.mark.parametrize(("target", "setting"), [("h200", "AHEAD"), ("cpu", "AHEAD_IN_TURN")])
def test_builds_precede_lowerings_and_stay_a_fixed_number_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, setting: str
) -> None:
    monkeypatch.setattr(f"tilesight.datasets.collector.{setting}", 5)
    order: list[str] = []
    device = Device(lambda stage, _config: order.append(stage))  # type: ignore[func-returns-value]
    gather(tmp_path / "d.parquet", cases(samples=40, target=target), device=device)
    assert order.index("measure") < 20  # and not after all 80 were lowered
    assert device.most_ready <= 5 + device.width(Lane.PREPARE)
    gaps = [order[:place].count("lower") - order[:place].count("build") for place in range(len(order))]
    duplicates = len(device.done["lower"]) - len(device.done["build"])
    assert max(gaps) <= duplicates + device.width(Lane.PREPARE)


def test_a_device_continues_with_its_workload(tmp_path: Path) -> None:
    wanted = cases(samples=8)
    first, second = wanted
    collector = Collector(
        wanted, DatasetWriter(tmp_path / "d.parquet", "r1", {}), Device(), MeasurementProtocol(), Journal()
    )

    def is_built(case: CollectionCase, *numbers: int) -> None:
        case.ready.extend(
            (case.candidate(case.wanted[number]), BuildResult(f"/cache/{number}.so")) for number in numbers
        )

    def measured() -> CollectionCase:
        job = collector.next(Lane.DEVICE)
        assert isinstance(job, MeasureJob)
        return next(case for case in wanted if case.workload == job.candidate.workload)

    assert collector.next(Lane.DEVICE) is None
    is_built(first, 0, 1)
    is_built(second, 0, 1, 2)
    assert measured() is second
    is_built(first, 2, 3, 4)
    assert [measured() for _ in range(6)] == [second, second, *[first] * 4]
    is_built(second, 3, 4)
    assert [measured() for _ in range(3)] == [first, second, second]


def test_a_workload_is_begun_when_all_its_candidates_are_built(tmp_path: Path) -> None:
    wanted = cases(samples=4)
    first, second = wanted
    collector = Collector(
        wanted, DatasetWriter(tmp_path / "d.parquet", "r1", {}), Device(), MeasurementProtocol(), Journal()
    )
    first.left = second.left = 4
    collector._preparing = 1

    def is_built(case: CollectionCase, *numbers: int) -> None:
        case.ready.extend(
            (case.candidate(case.wanted[number]), BuildResult(f"/cache/{number}.so")) for number in numbers
        )

    is_built(first, 0, 1, 2)
    assert collector.next(Lane.DEVICE) is None
    is_built(second, 0, 1, 2, 3)
    job = collector.next(Lane.DEVICE)
    assert isinstance(job, MeasureJob)
    assert job.candidate.workload == second.workload
    second.ready.clear()
    assert collector.next(Lane.DEVICE) is None
    collector._preparing = 0
    job = collector.next(Lane.DEVICE)
    assert isinstance(job, MeasureJob)
    assert job.candidate.workload == first.workload


def test_the_vendor_can_be_left_out_and_measured_later(tmp_path: Path) -> None:
    path, device = tmp_path / "d.parquet", Device()
    for vendor in (False, True):
        wanted = cases(samples=4)
        writer = DatasetWriter(path, f"r{vendor}", {"date": "", "seed": 0})
        protocol = MeasurementProtocol.named("default", wanted[0].target)
        Collector(wanted, writer, device, protocol, Journal(), vendor=vendor).run()
        assert read_dataset(path).frame["vendor_us"].notna().any() == vendor
    assert len(device.done["measure"]) == 8


def test_several_devices_measure_each_candidate_once(tmp_path: Path) -> None:
    device = Device()
    device.widths = {Lane.PREPARE: 8, Lane.DEVICE: 4}  # type: ignore[misc]
    journal = Journal()
    found = gather(tmp_path / "d.parquet", cases(), device=device, observer=journal)
    assert found.complete
    assert len(device.done["measure"]) == len(found.dataset.verified())
    assert len(device.done["compare"]) == 2 * 3


def test_equal_binaries_are_measured_once(tmp_path: Path) -> None:
    class Reordering(Device):
        def built(self, candidate: Candidate) -> BuildResult:
            return replace(super().built(candidate), binary=f"machine code of {candidate.config['stages']}")

    device = Reordering()
    found = gather(tmp_path / "d.parquet", cases(samples=30), device=device)
    assert (
        len(device.done["measure"]) == 2 * 3
    )  # three stages of each workload: binaries of another are others
    again = Reordering()
    gather(tmp_path / "d.parquet", cases(samples=40), device=again, run="r2")
    assert again.done["build"]
    assert again.done["measure"] == []
    frame = found.dataset.frame
    same = frame[frame["failure"].fillna("").str.startswith("builds to the same binary as block=")]
    assert set(same["failure_kind"]) == {"duplicate"}
    assert (same["registers"] == 40).all()
    assert same["profile"].notna().all()
    assert len(same) == len(device.done["build"]) - len(device.done["measure"])


def test_finalists_of_an_earlier_call_are_built_again_and_compared(tmp_path: Path) -> None:
    def stop(stage: str, _config: Config) -> Failure | None:
        if stage == "compare":
            raise KeyboardInterrupt
        return None

    path = tmp_path / "d.parquet"
    with pytest.raises(KeyboardInterrupt):
        gather(path, cases(shapes=("X0",)), device=Device(stop))
    times = read_dataset(path).frame.set_index("config")["measured_us"].dropna().sort_values()

    class Careful(Device):
        compares: ClassVar[list[CompareJob]] = []

        def event(self, job: Job) -> Event:
            if isinstance(job, CompareJob):
                self.compares.append(job)
            return super().event(job)

    # one of them does not build any more
    device = Careful(
        lambda stage, c: (
            Failure(FailureKind.BUILD_ERROR, "no") if (stage, c.key) == ("build", times.index[0]) else None
        )
    )
    found = gather(path, cases(shapes=("X0",)), device=device, run="r2")
    assert (device.done["lower"], device.done["measure"]) == ([], [])
    assert {c.key for c in device.done["build"]} == set(times.index[:3])
    (job,) = device.compares
    assert {candidate.config.key for candidate, _ in job.finalists} == set(times.index[1:3])
    assert job.protocol == MeasurementProtocol().careful()
    assert found.complete
    frame = found.dataset.frame
    assert (frame["vendor_us"] == 12.0).all()
    assert frame.set_index("config")["measured_us"].dropna().sort_values().equals(times)
    # and where none builds, that is said
    journal = Journal()
    with pytest.raises(KeyboardInterrupt):
        gather(tmp_path / "e.parquet", cases(shapes=("X0",)), device=Device(stop))
    gather(
        tmp_path / "e.parquet",
        cases(shapes=("X0",)),
        device=Device(failing(FailureKind.BUILD_ERROR, "build")),
        observer=journal,
    )
    assert any("no kernel to compare with" in str(text) for kind, text in journal.events if kind == "message")


def test_a_finalist_that_turns_out_wrong_is_a_failure(tmp_path: Path) -> None:
    class Racy(Device):
        def compared(self, candidates: Sequence[Candidate]) -> Comparison | Failure:
            found = super().compared(candidates)
            assert isinstance(found, Comparison)
            kinds = FailureKind.NONDETERMINISTIC, FailureKind.RUN_TIMEOUT
            again = [Measurement(failure=Failure(kind, f"{kind}"), relative_error=0.5) for kind in kinds]
            return replace(found, measurements=(*again, *found.measurements[2:]))

    found = gather(tmp_path / "d.parquet", cases(shapes=("X0",)), device=Racy())
    (facts,) = found.dataset.runs.values()
    fastest = [entry["config"] for entry in facts["vendor"]["axpy(n=1024;dtype=float32)"]["fastest"]]
    rows = found.dataset.frame.set_index("config").loc[fastest]
    assert list(rows["failure_kind"].fillna("")) == [
        "nondeterministic",
        "",
        "",
    ]  # a time limit says nothing against a time
    assert list(rows["measured_us"].isna()) == [True, False, False]
    assert rows["samples_us"].iloc[0] is None
    read_dataset(tmp_path / "d.parquet")  # it holds together


def test_times_under_other_conditions_go_to_another_file(tmp_path: Path) -> None:
    path, target = tmp_path / "d.parquet", load_target("h200")
    usual = MeasurementProtocol.named("default", target)
    facts = {"date": "today", "target": {"name": "h200"}}
    Collector(cases(samples=4), DatasetWriter(path, "r1", facts), Device(), usual, Journal()).run()
    before = path.read_bytes()
    DatasetWriter(path, "r2", facts).check("h200", usual.careful())  # more effort, the same conditions
    DatasetWriter(path, "r2", facts).check("cpu", MeasurementProtocol.named("default", load_target("cpu")))
    with pytest.raises(
        InputError,
        match=r"times on h200 .* \(l2=cold, launch=eager, .*\) than protocol serving .*; name another file",
    ):
        DatasetWriter(path, "r2", facts).check("h200", MeasurementProtocol.named("serving", target))
    old = read_dataset(path)
    runs = {"r1": {**old.runs["r1"], "protocol": {"flush_l2": True, "warmup_ms": 20.0}}}
    write_dataset(path, Dataset(old.frame, {**old.metadata, "runs": runs}))
    with pytest.raises(InputError, match="those of an earlier version"):
        DatasetWriter(path, "r2", facts).check("h200", usual)
    write_dataset(path, old)
    assert path.read_bytes() == before


def test_noisy_times_are_no_rows_and_are_taken_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILESIGHT_MAX_NOISE", raising=False)
    path = tmp_path / "d.parquet"
    first = gather(path, cases(shapes=("X0",)), device=DisturbedExecutor("measure"))
    assert len(first.dataset) == 0
    found = gather(path, cases(shapes=("X0",)), device=DisturbedExecutor("vendor"))
    assert len(found.dataset.frame["measured_us"].dropna()) == 20
    assert found.dataset.frame["vendor_us"].isna().all()
    again = gather(path, cases(shapes=("X0",)))
    assert (again.dataset.frame["vendor_us"] == 12.0).all()


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


def test_a_failed_comparison_is_reported_once(tmp_path: Path) -> None:
    journal = Journal()
    device = Device(
        lambda stage, _config: Failure(FailureKind.RUN_CRASH, "gone") if stage == "compare" else None
    )
    found = gather(tmp_path / "d.parquet", cases(shapes=("X0",)), device=device, observer=journal)
    assert found.complete
    assert (
        len([text for kind, text in journal.events if kind == "message" and "no vendor time: gone" in text])
        == 1
    )


def test_the_file_is_written_during_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.datasets.collector.SAVE_S", 0.0)
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
def line(fake_line: FakeLine, monkeypatch: pytest.MonkeyPatch) -> Device:
    """`collect` with the kernel `axpy` on the processor, without compilers."""
    registry = (
        {"axpy": AxpyTemplate.operator, "triad": Triad()},
        {"axpy": AxpyTemplate(), "axpy_other": OtherTemplate(), "triad": TriadTemplate()},
    )
    monkeypatch.setattr(TriadTemplate, "operator", registry[0]["triad"])
    monkeypatch.setattr("tilesight.kernels._registry", lambda: registry)
    fake_line.executor = device = Device()
    return device


class SumTemplate(AxpyTemplate):
    name = "sum_of_ranks"
    operator = Sum()
    target_kinds = ("cuda",)
    dtypes = ("bfloat16",)


@pytest.fixture
def group_line(line: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """`collect` with `axpy`, and with the kernel `sum_of_ranks` on four GPUs."""
    registry = (
        {"axpy": AxpyTemplate.operator, "sum_of_ranks": SumTemplate.operator},
        {"axpy": AxpyTemplate(), "sum_of_ranks": SumTemplate()},
    )
    monkeypatch.setattr("tilesight.kernels._registry", lambda: registry)
    gpus = [chip("NVIDIA H100 80GB HBM3", index) for index in range(4)]
    monkeypatch.setattr("tilesight.machine.placement.find_devices", lambda: gpus)
    return line


class TestCollect:
    @pytest.mark.parametrize("listed", [False, True])
    def test_operators_of_several_devices(self, group_line: Device, tmp_path: Path, listed: bool) -> None:
        """Their shapes state no world, and a published one is that of one device of the target."""
        if listed:
            file = tmp_path / "workloads"
            file.write_text("sum_of_ranks m=8,k=5\nsum_of_ranks S0\n")
            found = collect([], tmp_path / "d.parquet", 3, "h100x4", workloads=file)
        else:
            shapes = ["m=8,k=5", "s0"]
            found = collect(["sum_of_ranks"], tmp_path / "d.parquet", 3, "h100x4", shapes=shapes)
        assert [case.workload.key for case in found.cases] == [
            "sum_of_ranks(m=8,k=5,world=4;dtype=bfloat16)",
            "sum_of_ranks(m=8,k=3,world=4;dtype=bfloat16)",
        ]
        assert {case.target.name for case in found.cases} == {"h100x4"}
        assert len(found.dataset) == 6

    def test_default_and_all_shapes_of_several_devices(self, group_line: Device, tmp_path: Path) -> None:
        for name, shapes in (("d", ()), ("e", ("all",))):
            found = collect(["sum_of_ranks"], tmp_path / f"{name}.parquet", 2, "h100x4", shapes=shapes)
            assert [case.workload.name for case in found.cases] == ["S0"]

    def test_wrong_arguments_for_several_devices(self, group_line: Device, tmp_path: Path) -> None:
        path, file = tmp_path / "d.parquet", tmp_path / "workloads"
        with pytest.raises(
            InputError, match="target h100 is one: name a target of several, h100x2 or h100x4"
        ):
            collect(["sum_of_ranks"], path, 2, "h100")
        with pytest.raises(
            InputError, match="sum_of_ranks runs on several devices together, and axpy on one"
        ):
            collect(["axpy", "sum_of_ranks"], path, 2, "h100x4")
        with pytest.raises(UnknownNameError, match="unknown sum_of_ranks shape 'S7'"):
            collect(["sum_of_ranks"], path, 2, "h100x4", shapes=["S7"])
        file.write_text("sum_of_ranks m=8,k=5,world=2")
        with pytest.raises(InputError, match=r"line 1: .*states world=2, and target h100x4 has 4 devices"):
            collect([], path, 2, "h100x4", workloads=file)
        file.write_text("# nothing")
        with pytest.raises(NoCandidateError, match="none of the workloads"):
            collect([], path, 2, "h100", workloads=file)

    def test_shapes_and_dtypes_multiply(self, line: Device, tmp_path: Path) -> None:
        found = collect(
            ["axpy", "triad"],
            tmp_path / "d.parquet",
            5,
            "cpu",
            shapes=["X0", "n=64", "T0"],
            dtypes=["fp32", "float32"],
        )
        keys = sorted({case.workload.key for case in found.cases})
        assert keys == ["axpy(n=1024;dtype=float32)", "axpy(n=64;dtype=float32)", "triad(n=64;dtype=float32)"]
        assert len(found.dataset) == 15
        (run,) = found.dataset.runs.values()
        assert run["seed"] == 0
        assert set(run["templates"]) == {"axpy", "triad"}

    def test_all_shapes_and_default_shapes(self, line: Device, tmp_path: Path) -> None:
        found = collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", shapes=["all"])
        assert [case.workload.name for case in found.cases] == ["X0", "X1"]
        found = collect(["axpy", "triad"], tmp_path / "e.parquet", 2, "cpu")
        assert [case.workload.name for case in found.cases] == ["X0", "T0"]

    def test_a_template_by_name(self, line: Device, tmp_path: Path) -> None:
        found = collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", template="axpy_other")
        assert set(found.dataset.frame["template"]) == {"axpy_other"}
        with pytest.raises(UnknownNameError, match="did you mean axpy_other"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", template="axpy_othr")

    def test_wrong_arguments(self, line: Device, tmp_path: Path) -> None:
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
        assert not any(line.done.values())

    def test_a_file_of_workloads(self, line: Device, tmp_path: Path) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text(
            "# kernel shape dtype samples\naxpy X1\n\ntriad n=64 fp32 3  # few\naxpy  n=64   float32\n"
        )
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
    def test_errors_in_a_file_of_workloads(
        self, line: Device, tmp_path: Path, text: str, message: str
    ) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text(f"\n{text}\n")
        with pytest.raises(InputError, match=message):
            collect([], tmp_path / "d.parquet", None, "cpu", workloads=listed)
        assert not any(line.done.values())

    def test_a_file_of_workloads_stands_alone(self, line: Device, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            collect([], tmp_path / "d.parquet", 5, "cpu", workloads=tmp_path / "none.txt")
        with pytest.raises(InputError, match="replaces kernels"):
            collect(["axpy"], tmp_path / "d.parquet", 5, "cpu", workloads=tmp_path / "none.txt")
        with pytest.raises(InputError, match="number of samples"):
            collect(["axpy"], tmp_path / "d.parquet", None, "cpu")

    def test_needs_a_device(self, line: Device, tmp_path: Path) -> None:
        with pytest.raises(ToolchainError, match=r"a dataset needs measurements: .*no GPU was found"):
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
    def test_wrong_arguments_are_reported_before_the_search_for_a_gpu(
        self,
        line: Device,
        tmp_path: Path,
        target: str,
        names: list[str],
        file: str,
        given: dict[str, Any],
        message: str,
    ) -> None:
        (tmp_path / "folder.parquet").mkdir()
        with pytest.raises(InputError, match=message):
            collect(names, tmp_path / file, 2, target, **given)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.parquet", "performance.db"]

    def test_a_wrong_line_is_reported_before_the_search_for_a_gpu(self, line: Device, tmp_path: Path) -> None:
        listed = tmp_path / "workloads.txt"
        listed.write_text("axpy X9 fp32 3\n")
        with pytest.raises(InputError, match="line 1: unknown axpy shape 'X9'"):
            collect([], tmp_path / "d.parquet", None, workloads=listed)

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder that even root cannot write to")
    def test_a_folder_that_cannot_be_written(self, line: Device) -> None:
        with pytest.raises(
            InputError, match=r"--out /proc/d\.parquet: nothing can be written in folder '/proc': "
        ):
            collect(["axpy"], "/proc/d.parquet", 2)

    def test_without_a_gpu_only_measurable_targets_are_offered(self, line: Device, tmp_path: Path) -> None:
        with pytest.raises(ToolchainError) as caught:
            collect(["axpy"], tmp_path / "d.parquet", 2)
        assert str(caught.value).endswith("target 'cpu' measures kernels for processors on this machine")
        with pytest.raises(ToolchainError) as caught:
            collect(["axpy"], tmp_path / "d.parquet", 2, "h200")
        assert "a dataset needs measurements: no GPU was found here" in str(caught.value)
        assert "predict" not in str(caught.value)

    def test_a_missing_compiler_is_the_only_error(
        self, line: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "tilesight.machine.placement.missing_compiler",
            lambda target: f"building for {target.name} needs a compiler",
        )
        with pytest.raises(ToolchainError, match=r"building for cpu needs a compiler$"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu")

    def test_the_protocol_is_handed_on(self, line: Device, tmp_path: Path) -> None:
        found = collect(["axpy"], tmp_path / "d.parquet", 2, "cpu", protocol="serving")
        (run,) = found.dataset.runs.values()
        assert run["protocol"]["name"] == "serving"
        with pytest.raises(UnknownNameError, match="unknown protocol 'servng'; did you mean serving"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "h200", protocol="servng")

    def test_all_devices_of_the_target_are_used(
        self, line: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpus = [
            chip(name, number)
            for number, name in enumerate(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"])
        ]
        made: list[Any] = []
        monkeypatch.setattr("tilesight.machine.placement.find_devices", lambda: gpus)
        monkeypatch.setattr(Device, "start", lambda *_, **given: made.append(given))
        monkeypatch.setattr("tilesight.datasets.collect.software_versions", lambda *_: {})
        monkeypatch.setattr(
            "tilesight.executor.local.LocalExecutor", lambda *given, **_: made.append(given) or line
        )
        collect(["axpy"], tmp_path / "d.parquet", 2, "h200", workers=3)
        (workers, _, devices), started = made
        assert (workers, devices, started) == (3, (gpus[0], gpus[2]), {"measures": True})
        made.clear()
        collect(["axpy"], tmp_path / "e.parquet", 2, "cpu", workers=3)
        assert [given[2] for given in made] == [()]  # a processor is measured alone

    def test_a_space_without_a_legal_config(
        self, line: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.support.fakes.AxpyTemplate.blocks", ())
        with pytest.raises(NoCandidateError, match="none of the workloads has a legal config on cpu"):
            collect(["axpy"], tmp_path / "d.parquet", 2, "cpu")


def test_a_writer_keeps_the_rows_of_earlier_runs(tmp_path: Path) -> None:
    """Counters that a program added stay when the file is continued."""
    path = tmp_path / "d.parquet"
    gather(path, cases(samples=5))
    dataset = read_dataset(path)
    write_dataset(path, Dataset(dataset.frame.assign(counters='{"sm_clock_mhz":1980.0}'), dataset.metadata))
    gather(path, cases(samples=6), run="r2")
    counters = read_dataset(path).frame["counters"]
    assert (counters == '{"sm_clock_mhz":1980.0}').sum() == 10
