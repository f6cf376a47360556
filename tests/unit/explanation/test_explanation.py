"""Explanations: sentences from the profile, the path to a better candidate, and rows of datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilesight
from tests.support.fakes import AxpyTemplate, FakeExecutor, FakeModel, failing, profile_of, true_us
from tests.unit.conftest import FakeLine
from tilesight.cli.main import main
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.hybrid import CORRECTION
from tilesight.errors import FailureKind, InputError
from tilesight.explanation import CandidateView, find_steps, view
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.problem.workload import Workload
from tilesight.profile.codec import profiles_text
from tilesight.profile.values import Access, KernelProfile, MatrixWork, Phase, Role, Space, Trips, Work
from tilesight.records.dataset import Dataset, write_dataset
from tilesight.records.trial import Prediction
from tilesight.target.spec import Figure, load_target

H200 = load_target("h200")
MATRIX = Work(matrix=(MatrixWork("wgmma.m64n256k16.bf16", 64, 524288.0, warps=4),))


def kernel(
    work: Work = MATRIX,
    *,
    blocks: int = 132,
    shared: int = 0,
    registers: float = 0.0,
    trips: Trips | None = None,
) -> KernelProfile:
    role = Role("all", 128, (Phase(trips or Trips((64.0,)), work, is_loop=True),), local_registers=registers)
    return KernelProfile("cuda", "sm_90a", (blocks, 1, 1), 128, 1, shared, (role,), ())


def seen(profile: KernelProfile, **given: Any) -> CandidateView:
    return view([profile], AnalyticalModel().predict([profile], H200), H200, **given)


def has_sentence(sentences: Iterable[str], *parts: str) -> bool:
    return any(all(part in sentence for part in parts) for sentence in sentences)


# --- findings and caveats ---


def test_the_limit_comes_first_with_its_cost() -> None:
    found = seen(kernel(blocks=1056))
    first = found.limits.limits[0]
    assert found.largest_cost == "matrix"
    assert found.findings[0].startswith("The largest cost is the matrix units (busy ")
    assert f"(-{first.gain:.0%})" in found.findings[0]


def test_a_small_grid_and_a_last_wave() -> None:
    assert has_sentence(seen(kernel(blocks=32)).findings, "32 blocks for 132 SMs: 100 have nothing to do")
    held = seen(kernel(blocks=132 + 66, shared=200_000)).findings
    assert has_sentence(held, "holds 1 block at a time: shared memory allows no more")
    assert has_sentence(held, "198 blocks: after 1 full wave the last wave fills 50% of the block slots")
    assert not has_sentence(seen(kernel(blocks=264, shared=200_000)).findings, "last wave")
    assert has_sentence(seen(kernel(blocks=264)).findings, "holds 2 blocks at a time: the grid has no more")


def test_blocks_of_different_length_have_no_waves() -> None:
    trips = Trips(tuple(float(1 + i % 7) for i in range(198)), frozenset("x"))
    found = seen(kernel(blocks=198, shared=200_000, trips=trips)).findings
    assert has_sentence(found, "Blocks differ in length: 1 to 7 iterations")
    assert not has_sentence(found, "last wave")


def test_spills_are_findings_and_caveats() -> None:
    found = seen(kernel(Work(vector_ops=128 * 200.0), blocks=1056, registers=800))
    assert has_sentence(
        found.findings, "Spills: about ", "registers of the threads do not fit: ", ". Without spills, "
    )
    assert has_sentence(found.findings, "Spills: ", " MB go to local memory and back, for ")
    assert has_sentence(found.caveats, "Less sure: ", "spill")


def test_arrays_in_local_memory_are_named_with_their_bytes() -> None:
    access = Access(Space.LOCAL, "b1", False, "ld", 512.0, 4, 4, 4, footprint_bytes=128 * 4096)
    found = seen(kernel(Work(vector_ops=128.0, accesses=(access,))))
    assert has_sentence(found.findings, "Local memory: arrays of 4,096 bytes a thread are indexed in a loop")
    assert not has_sentence(seen(kernel()).findings, "Local memory: ")
    # on a processor, local buffers are ordinary memory
    kept = replace(access, levels=((1.0, 512.0),))
    role = Role("all", 1, (Phase(Trips((64.0,)), Work(vector_ops=1e6, accesses=(kept,)), is_loop=True),))
    profile, cpu = KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (role,), ()), load_target("cpu")
    found = view([profile], AnalyticalModel().predict([profile], cpu), cpu)
    assert not has_sentence(found.findings, "Local memory: ")


def test_bank_conflicts_have_a_factor() -> None:
    conflict = Access(Space.SHARED, "", False, "ld", 2048.0, 64, 16, 4)
    found = seen(kernel(Work(accesses=(conflict,) * 8), blocks=1056))
    assert has_sentence(found.findings, "Bank conflicts: shared-memory accesses take 4.0 times")


def test_bulk_copies_beyond_the_edge() -> None:
    copy = Access(
        Space.GLOBAL,
        "x",
        False,
        "tma",
        4096.0,
        128,
        1,
        128,
        asynchronous=True,
        box_bytes=16384.0,
        footprint_bytes=4096.0,
    )
    assert has_sentence(
        seen(kernel(Work(accesses=(copy,)))).findings,
        "75% of the bytes of bulk copies lie outside the tensors",
    )


def test_unknown_calls_widen_the_spread() -> None:
    plain, strange = kernel(), replace(kernel(), unknown_calls=("mystery",))
    assert seen(strange).prediction.uncertainty > seen(plain).prediction.uncertainty
    assert has_sentence(seen(strange).caveats, "Less sure: ", "mystery is not understood")
    assert not has_sentence(seen(plain).caveats, "not understood")


def test_a_measured_time_is_compared_with_the_prediction() -> None:
    predicted = seen(kernel()).prediction.latency_us
    assert has_sentence(
        seen(kernel(), measured_us=predicted / 1.05).caveats,
        "The predicted time is 5% higher, within one sigma",
    )
    assert has_sentence(
        seen(kernel(), measured_us=predicted * 2).caveats, "The predicted time is 50% lower, beyond one sigma"
    )


def test_unmeasured_figures_are_named() -> None:
    guessed = replace(H200, figures={**H200.figures, "core.clock_mhz": Figure(1740, "spec")})
    profile = kernel()
    found = view([profile], AnalyticalModel().predict([profile], guessed), guessed)
    assert has_sentence(found.caveats, "core.clock_mhz of h200 was not measured")


def test_counters_that_disagree_are_named_and_shown() -> None:
    profile = kernel(blocks=1056)
    prediction = AnalyticalModel().predict([profile], H200)
    busy = prediction.utilization["matrix"]
    far = view([profile], prediction, H200, counters={"tensor_active": busy / 2, "duration_us": 10.0})
    near = view([profile], prediction, H200, counters={"tensor_active": busy, "duration_us": 10.0})
    assert has_sentence(far.findings, "Counters disagree: matrix busy")
    assert not has_sentence(near.findings, "Counters disagree")
    assert {c.name for c in far.counters} == {"matrix busy", "time without launch, us"}


def test_registers_of_the_compiler_replace_those_of_the_model() -> None:
    profile = kernel(registers=60)
    prediction = AnalyticalModel().predict([profile], H200)
    found = view([profile], prediction, H200, compiled={"registers": 200.0, "spill_bytes": 64.0})
    assert has_sentence(found.findings, "The compiler spills 64 bytes a thread where the model expects none")
    assert has_sentence(found.findings, "The compiler takes 200 registers a thread")


def test_limits_follow_the_compilers_spills() -> None:
    """Not the estimate from the IR: what is printed of spills and what they are said to cost agree."""
    work = Work(vector_ops=128 * 200.0)

    def spills(needed: float, **compiled: float) -> tuple[float, tuple[str, ...]]:
        found = seen(kernel(work, blocks=1056, registers=needed), compiled=compiled)
        return next(h.gain for h in found.limits.limits if h.name == "spills"), found.findings

    gain, findings = spills(60, registers=255.0, spill_bytes=4096.0)
    assert gain > 0.02
    assert has_sentence(findings, "Spills: the compiler spills 4096 bytes a thread. Without spills, ")
    gain, findings = spills(800, registers=255.0, spill_bytes=0.0)
    assert gain == 0.0
    assert not has_sentence(findings, "Spills: ")
    assert has_sentence(findings, "The compiler spills 0 bytes a thread where the model expects some")


def test_blocks_on_a_core_follow_the_compilers_registers() -> None:
    profile = kernel(blocks=4000, registers=20)
    prediction = AnalyticalModel().predict([profile], H200)
    found = view([profile], prediction, H200, compiled={"registers": 128.0, "spill_bytes": 0.0})
    assert has_sentence(
        found.findings,
        "Each SM holds 4 blocks at a time: the 128 registers a thread that it was compiled to allow no more",
    )


def test_scalar_loops_are_named_on_a_cpu() -> None:
    store = Access(
        Space.GLOBAL, "c", True, "st", 256.0, 64, 64, 4, levels=((1.0, 256.0),), footprint_bytes=256.0
    )
    role = Role("all", 1, (Phase(Trips((1e6,)), Work(accesses=(store,), vector_ops=4096.0), is_loop=True),))
    profile, cpu = KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (role,), ()), load_target("cpu")
    found = view([profile], AnalyticalModel().predict([profile], cpu), cpu)
    assert has_sentence(found.findings, "Scalar loops: 100% of the arithmetic", "at most 16 iterations")


# --- steps ---

SPACE = SearchSpace(
    (Parameter("a", (1, 2)), Parameter("b", (1, 2)), Parameter("c", (1, 2))),
    [Constraint("together", lambda c: None if c["b"] == c["c"] else "b and c go together")],
)


def answer(config: Config) -> Prediction:
    us = 100.0 - 10 * config.int("a") - 20 * config.int("b")
    return Prediction(us, {}, "x", {"x": us, "makespan": us, "still": 1.0})


def test_steps_are_ordered_by_gain_and_join_changes_that_are_illegal_alone() -> None:
    start, end = (Config({"a": n, "b": n, "c": n}) for n in (1, 2))
    asked: list[Config] = []

    def predict(configs: Sequence[Config]) -> dict[Config, Prediction]:
        asked.extend(configs)
        return {config: answer(config) for config in configs}

    steps = find_steps((start, answer(start)), (end, answer(end)), SPACE, predict, {end: 33.0})
    assert [dict(step.changes) for step in steps] == [{"a": (1, 2)}, {"b": (1, 2), "c": (1, 2)}]
    assert [step.predicted_us for step in steps] == [60.0, 40.0]
    assert [step.measured_us for step in steps] == [None, 33.0]
    assert [t.name for t in steps[0].terms] == ["x"]
    assert all(config in SPACE for config in asked)


def test_steps_skip_configs_that_do_not_lower() -> None:
    start, end = (Config({"a": n, "b": n, "c": n}) for n in (1, 2))
    (step,) = find_steps((start, answer(start)), (end, answer(end)), SPACE, lambda _: {}, {})
    assert set(step.changes) == {"a", "b", "c"}
    assert step.predicted_us == 40.0


# --- rows of datasets ---


def row(
    config: Config, *, version: str | None = None, n: int = 1024, fingerprint: str | None = None
) -> dict[str, Any]:
    template = AxpyTemplate()
    workload = Workload("axpy", {"n": n}, "float32")
    return {
        "operator": "axpy", "workload": workload.key, "shape": "X0" if n == 1024 else f"n={n}",
        "dims": json.dumps({"n": n}),
        "dtype": "float32", "attrs": "{}", "template": "axpy",
        "template_version": template.version if version is None else version,
        "target": "cpu", "config": config.key, "flops": 1.0, "min_bytes": 1.0, "status": "verified",
        "profile": profiles_text([profile_of(config)]),
        "measured_us": 2 * true_us(config), "registers": 40.0,
        "counters": json.dumps({"duration_us": 5.0}), "run": "r",
        "fingerprint": fingerprint,
    }  # fmt: skip


def config(block: int, stages: int = 3) -> Config:
    return Config({"block": block, "stages": stages, "swizzle": True})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    found = [
        row(config(4), version="old"),
        row(config(36), version="old") | {"measured_us": 1.0},
        *(row(config(block)) for block in (28, 36)),
        row(config(30), n=4096),
    ]
    write_dataset(tmp_path / "rows.parquet", Dataset.of(found, {"r": {"date": "2026-11-21"}}))
    return tmp_path / "rows.parquet"


@pytest.mark.usefixtures("fake_line")
def test_rows_of_datasets_replace_the_database(rows: Path) -> None:
    best = tilesight.explain("axpy", "cpu", "X0", measured=rows)
    assert best.best is None
    assert best.this.config == config(28)
    assert best.this.measured_us == 24.0
    assert not best.notes
    assert [c.name for c in best.this.counters] == ["time without launch, us"]
    assert best.this.compiled == {"registers": 40.0}
    worse = tilesight.explain("axpy", "cpu", "X0", config=dict(config(4)), measured=[rows])
    assert has_sentence(worse.notes, "another version of axpy")
    assert worse.best is not None
    assert worse.best.config == config(28)
    assert [dict(step.changes) for step in worse.steps] == [{"block": (4, 28)}]
    assert worse.steps[0].measured_us == 24.0
    assert "a factor of 3.00 between the two, the measurements 3.00" in worse.verdict


@pytest.mark.usefixtures("fake_line")
def test_a_config_without_a_row_is_lowered(rows: Path) -> None:
    found = tilesight.explain("axpy", "cpu", "X0", config="block=5,stages=1,swizzle=false", measured=rows)
    assert found.this.measured_us is None
    assert found.this.counters == ()
    assert found.largest_step.startswith("Largest step: block 5 -> 28, ")
    assert "only a measurement decides" not in found.verdict


def old_rows(folder: Path, **codes: str | None) -> Path:
    """Rows of an older template: config 28 is best, config 4 slower. `codes` are fingerprints by config."""
    rows = [
        row(config(block), version="old", fingerprint=codes.get(f"c{block}", f"code-{config(block)}"))
        for block in (28, 4)
    ]
    write_dataset(folder / "old.parquet", Dataset.of(rows, {"r": {"date": "2026-11-21"}}))
    return folder / "old.parquet"


@pytest.mark.usefixtures("fake_line")
def test_rows_of_an_older_template_that_made_other_code_are_named(tmp_path: Path) -> None:
    path = old_rows(tmp_path, c28="other code")
    best = tilesight.explain("axpy", "cpu", "X0", measured=path)
    [note] = best.notes
    assert note.startswith("the rows were measured with another version of axpy")
    worse = tilesight.explain("axpy", "cpu", "X0", config=dict(config(4)), measured=path)
    assert has_sentence(worse.notes, "another version of axpy", "the steps are predicted for")
    unknown = tilesight.explain("axpy", "cpu", "X0", measured=old_rows(tmp_path, c28=None))
    assert has_sentence(unknown.notes, "another version of axpy")


@pytest.mark.usefixtures("fake_line")
def test_rows_of_an_older_template_that_made_todays_code_are_not(tmp_path: Path) -> None:
    for wanted in (None, dict(config(4)), dict(config(5))):  # config 5 has no row: nothing was measured of it
        assert tilesight.explain("axpy", "cpu", "X0", config=wanted, measured=old_rows(tmp_path)).notes == ()


def test_rows_of_an_older_template_that_no_longer_lower_are_named(
    fake_line: FakeLine, tmp_path: Path
) -> None:
    path = old_rows(tmp_path)
    fake_line.executor = FakeExecutor(failing(FailureKind.LOWER_ERROR, "lower"))
    assert has_sentence(
        tilesight.explain("axpy", "cpu", "X0", measured=path).notes, "another version of axpy"
    )


def test_a_row_that_trained_the_model_is_no_evidence(
    fake_line: FakeLine, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trained(FakeModel):
        def predict(self, kernels: Sequence[Any], target: Any) -> Prediction:
            found = super().predict(kernels, target)
            return replace(found, terms_us={**found.terms_us, CORRECTION: -6.0})

        def was_trained_on(self, run: str) -> bool:
            return run == "r"

    warning = (
        "The learned model was trained on this measurement, so this agreement proves nothing about other "
        "kernels. The analytical model alone predicts 42 us (+75%)."
    )
    assert not has_sentence(
        tilesight.explain("axpy", "cpu", "X0", measured=rows).this.caveats, "was trained on this measurement"
    )
    fake_line.model = Trained()
    assert warning in tilesight.explain("axpy", "cpu", "X0", measured=rows).this.caveats
    worse = tilesight.explain("axpy", "cpu", "X0", config=dict(config(4)), measured=rows)
    assert worse.verdict.endswith("It was trained on both.")
    other = tilesight.explain("axpy", "cpu", "X0", config=dict(config(5)), measured=rows)
    assert not has_sentence(other.this.caveats, "was trained on this measurement")
    monkeypatch.setattr(Trained, "was_trained_on", lambda *_: False)
    assert not has_sentence(
        tilesight.explain("axpy", "cpu", "X0", measured=rows).this.caveats, "was trained on this measurement"
    )


@pytest.mark.usefixtures("fake_line")
def test_datasets_without_the_workload_list_their_workloads(rows: Path) -> None:
    with pytest.raises(
        InputError, match=r"no measured row of axpy .*n=7.*they have X0 \(float32\), n=4096 \(float32\)"
    ):
        tilesight.explain("axpy", "cpu", {"n": 7}, measured=rows)


@pytest.mark.usefixtures("fake_line")
def test_the_command_reads_rows_and_writes_json(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "axpy", "--target", "cpu", "--shape", "X0", "--measured", str(rows)]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main([*asked, "--config", str(config(4)), *more])
        assert ended.value.code == 0
    text, _, answer_text = capsys.readouterr().out.partition('{\n  "schema_version"')
    assert "Why it is slower than the best config: measured 72.00 us, the best 24.00 us (3.00x)" in text
    assert "block 4 -> 28" in text
    found = json.loads('{"schema_version"' + answer_text)
    assert found["steps"] == [
        {"changes": [{"name": "block", "this": 4, "best": 28}], "predicted_us": 36.0, "measured_us": 24.0,
         "terms": [{"name": "vector", "before_us": 107.0, "after_us": 35.0}]}
    ]  # fmt: skip
    assert found["this"]["findings"]
    assert found["this"]["counters"] == [
        {"name": "time without launch, us", "predicted": 107.0, "counted": 5.0}
    ]


def test_the_fake_model_predicts_as_these_tests_assume() -> None:
    assert FakeModel().predict([profile_of(config(28))], load_target("cpu")).latency_us == 36.0
