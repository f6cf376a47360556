"""Calibration of a network: figures from times, faults of steps, and the file of the new target."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.calibration.network import fake_network as fake
from tests.unit.calibration.network.fake_network import FakeNetwork
from tests.unit.target.test_network import NODE, POD
from tilesight.calibration.calibration import Calibration, compile_probes
from tilesight.calibration.network import calibrate, calibrate_network, check_network, device
from tilesight.calibration.network.calibrate import measure, product_candidate
from tilesight.calibration.network.figures import findings, slowest, unsettled_steps
from tilesight.calibration.network.ranks import Collected, RankLimits
from tilesight.calibration.network.rows import row_line, rows_of
from tilesight.calibration.network.steps import (
    COPIED_BYTES,
    CURVE_POWERS,
    SAMPLES,
    SLICE_BYTES,
    Kind,
    NetworkStep,
    Times,
    joined,
    plan,
)
from tilesight.costmodel.network.collectives import predict_collective
from tilesight.errors import InputError, ToolchainError
from tilesight.machine.devices import Device
from tilesight.machine.toolchain import missing_compiler
from tilesight.target.network import COLLECTIVES, MECHANISMS, size_name
from tilesight.target.spec import Target, load_target, parse_target

DEVICES = [Device("NVIDIA H200", f"GPU-{n}", "580.159.04", "cuda", n, 141 << 30) for n in range(8)]
Row = tuple[Times, ...]


def calibrated(name: str = "h200x4", network: FakeNetwork | None = None) -> Calibration:
    base = load_target(name)
    runner = (network or FakeNetwork(base.world)).run
    return calibrate_network(base, DEVICES[: base.world], "mine", runner=runner)


def expected(world: int) -> dict[str, float]:
    found = {"flag_us": fake.FLAG_US, "barrier_us": fake.BARRIER_US, "product_share": 0.94}
    for name, rate in fake.RATES.items():
        found[f"{name}.core_gb_per_s"] = fake.CORES[name]
        alone = rate * fake.PEER_SHARE.get(name, 1.0)
        found[f"{name}.gb_per_s"] = rate if world > 2 else alone
        found[f"{name}.half_bytes"] = fake.END_US * found[f"{name}.gb_per_s"] * 1e3
        if world > 2 and alone != rate:
            found[f"{name}.peer_gb_per_s"] = alone
    found["copy_engine.gb_per_s"] = fake.COPY_RATE
    for name in COLLECTIVES:
        for power in CURVE_POWERS:
            found[f"library.{name}.us.{size_name(1 << power)}"] = fake.library_us(1 << power)
    return {f"node.network.{path}": value for path, value in found.items()}


@pytest.mark.parametrize("name", ["h200x2", "h200x4", "h100x8"])
def test_every_figure_is_found(name: str) -> None:
    found = calibrated(name)
    wanted = expected(load_target(name).world)
    assert {r.path: r.value for r in found.readings} == pytest.approx(wanted, rel=1e-3)
    assert found.notes == ()


def test_the_file_is_read_back_with_the_unit_and_without_the_lines_of_the_library(tmp_path: Path) -> None:
    base, found = load_target("h200x4"), calibrated()
    path = tmp_path / "mine.toml"
    path.write_text(found.text())
    target = load_target(str(path))
    assert target == found.target
    assert (target.chip, target.unit, target.world) == (base.chip, "h200", 4)
    assert "[core" not in found.text()
    measured = expected(4)
    for figure_path, figure in target.figures.items():
        if figure_path in measured:
            assert figure.provenance == "measured"
            assert re.match(
                r"tilesight calibrate, 4 x NVIDIA H200, driver 580.159.04, .*, 20[-\d]{8}: .*; spread \d",
                figure.source,
            ), figure.source
        else:
            assert figure == base.figures[figure_path]
    assert not any(path.endswith((".latency_us", "all_reduce.gb_per_s")) for path in target.figures)
    assert target["node.network.link_gb_per_s"] == 450
    prediction = predict_collective(target, "all_reduce", 64 << 20)
    assert prediction.latency_us == pytest.approx(fake.library_us(64 << 20), rel=1e-3)
    assert prediction.provenance == "measured"
    assert "NCCL 2.28.9, bfloat16" in target.figures["node.network.library.all_reduce.us.1MiB"].source


def test_a_calibrated_target_can_be_calibrated_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(calibrated().text())
    again = calibrate_network(load_target(str(path)), DEVICES[:4], "again", runner=FakeNetwork(4).run)
    assert parse_target(again.text(), "again.toml") == again.target


def test_a_unit_with_a_file_of_its_own(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[4] / "tilesight" / "target" / "h200.toml"
    chip = shipped.read_text(encoding="utf-8").replace('name = "h200"', 'name = "mychip"')
    (tmp_path / "mychip.toml").write_text(chip)
    node = tmp_path / "node.toml"
    node.write_text(NODE.replace('unit = "h100"', 'unit = "./mychip.toml"'))
    found = calibrate_network(load_target(str(node)), DEVICES[:4], "mine", runner=FakeNetwork(4).run)
    elsewhere = tmp_path / "out" / "mine.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(found.text())
    assert load_target(str(elsewhere)).device_target.name == "mychip"


def test_the_time_is_that_of_the_slowest_rank() -> None:
    late = {r.path: r.value for r in calibrated(network=FakeNetwork(4, lag_us=3.0)).readings}
    size = "node.network.library.all_reduce.us.1MiB"
    assert late[size] == pytest.approx(fake.library_us(1 << 20) + 3)
    assert late["node.network.flag_us"] == pytest.approx(fake.FLAG_US)  # a constant drops out


def test_the_slowest_rank_is_that_of_each_sample() -> None:
    late = slowest(
        (Times((1.0, 9.0, 1.0), (5.0, 6.0, 7.0)), Times((2.0, 2.0, 2.0), (8.0, 8.0, 8.0)), Times())
    )
    assert late == Times((2.0, 9.0, 2.0), (8.0, 6.0, 8.0))


def test_spread_and_samples_of_a_rate() -> None:
    short = NetworkStep("t", Kind.COPY, "copy_engine", size_bytes=8 << 20)
    long = replace(short, size_bytes=32 << 20)
    bytes_ = 24 << 20
    rows = {
        short: (Times((10.0, 10.0, 10.0)),),
        long: (Times((10 + bytes_ / 100e3, 10 + bytes_ / 200e3, 10 + bytes_ / 125e3)),),
    }
    (found,) = findings(rows, "node")
    rate = found.reading
    assert (found.steps, found.is_unsettled) == ((short, long), True)
    assert rate.path == "node.network.copy_engine.gb_per_s"
    assert rate.samples == pytest.approx((100, 200, 125))
    assert (rate.value, rate.spread) == (pytest.approx(125), pytest.approx(0.8))
    short_too = {
        short: (Times((10.0, 10.0 + bytes_ / 1e6, 10.0)),),
        long: (Times((10 + bytes_ / 100e3,) * 3),),
    }
    assert findings(short_too, "node")[0].reading.samples == pytest.approx((100, 1e3 / 9, 100))


@dataclass(frozen=True)
class NoisyNetwork(FakeNetwork):
    """Times of one mechanism scatter: in a step's first samples, or by turns in all of them."""

    name: str = "copy_engine"
    first: int = 0
    turns: bool = False
    asked: list[NetworkStep] = field(default_factory=list)

    def row(self, step: NetworkStep) -> Row:
        self.asked.append(step)
        row = super().row(step)
        if step.name != self.name or step.size_bytes == COPIED_BYTES[0]:
            return row
        # the first of all samples, or every second one, take twice as long
        same = [
            one for one in self.asked[:-1] if (one.size_bytes, one.peers) == (step.size_bytes, step.peers)
        ]
        begun = sum(one.samples for one in same)
        places = range(begun, begun + step.samples)
        late = [place % 2 == 0 if self.turns else place < self.first for place in places]
        return tuple(
            Times(tuple(us * (1 + flag) for us, flag in zip(one.us, late, strict=True))) for one in row
        )


def test_steps_that_settle_no_figure_are_repeated_with_more_samples() -> None:
    network, told = NoisyNetwork(4, first=7), []
    base = load_target("h200x4")
    found = calibrate_network(base, DEVICES[:4], "mine", told.append, runner=network.run)
    assert found.notes == ()
    rate = {r.path: r for r in found.readings}["node.network.copy_engine.gb_per_s"]
    assert (rate.value, rate.spread) == (pytest.approx(fake.COPY_RATE), 0)
    assert len(rate.samples) == 15 + 60
    more = network.asked[len(plan(132, 4, True)) :]
    assert {(step.name, step.samples) for step in more} == {("copy_engine", 60)}
    assert [(step.size_bytes, step.peers) for step in more] == [(size, 3) for size in COPIED_BYTES]
    assert told[-1] == f"more of {MECHANISMS['copy_engine']}"


def test_a_figure_that_never_settles_is_left_out_with_its_reason() -> None:
    network, base = NoisyNetwork(4, turns=True), load_target("h200x4")
    found = calibrate_network(base, DEVICES[:4], "mine", runner=network.run)
    path = "node.network.copy_engine.gb_per_s"
    assert path not in {r.path for r in found.readings}
    assert found.target.figures[path] == base.figures[path]
    (note,) = (note for note in found.notes if path in note)
    assert re.fullmatch(
        rf"left out: {path}: [\d.]+ is the median of 375 samples, which tell it to \d+% and not to 10%", note
    )


def test_nothing_is_repeated_without_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "TOTAL_S", calibrate.REPEAT_S - 1)
    network = NoisyNetwork(4, first=7)
    found = calibrate_network(load_target("h200x4"), DEVICES[:4], "mine", runner=network.run)
    assert len(network.asked) == len(plan(132, 4, True))
    assert any("copy_engine.gb_per_s" in note and "15 samples" in note for note in found.notes)


def test_a_fault_while_steps_are_repeated_keeps_what_was_measured() -> None:
    network = NoisyNetwork(4, first=7)

    def run(steps: tuple[NetworkStep, ...], limits: RankLimits, on_row: Callable[[Row], None]) -> Collected:
        if not network.asked:
            return network.run(steps, limits, on_row)
        return Collected(fault="rank 0 did not start within 60 s")

    found = calibrate_network(load_target("h200x4"), DEVICES[:4], "mine", runner=run)
    assert "rank 0 did not start within 60 s" in found.notes
    assert any("copy_engine.gb_per_s" in note and "15 samples" in note for note in found.notes)
    assert {r.path for r in found.readings} > {"node.network.flag_us", "node.network.store.gb_per_s"}


def test_one_late_sample_is_no_spread() -> None:
    """A host that stands still for a millisecond delays one sample, and no figure."""
    step = NetworkStep("t", Kind.LIBRARY, "all_to_all", size_bytes=16 << 10)
    times = tuple(10 + 0.01 * place for place in range(14))
    (found,) = findings({step: (Times((*times, 1046.0)),)}, "node")
    assert found.refusal == ""
    assert found.reading.spread < 0.01


def test_ends_that_hide_behind_the_end_of_a_kernel_are_no_figure() -> None:
    class Hidden(FakeNetwork):
        def row(self, step: NetworkStep) -> Row:
            empty = step.kind is Kind.MOVE and step.name == "store" and not step.rounds
            return (Times((9.0,) * step.samples),) * self.world if empty else super().row(step)

    network = Hidden(4)
    found = calibrated(network=network)
    path = "node.network.store.half_bytes"
    assert found.notes == (
        f"left out: {path}: cannot be told, since a transfer of no bytes takes no longer than a kernel that "
        "moves nothing: 5.5 and 9 us",
    )
    assert path not in found.target.figures
    rows = {step: network.row(step) for step in plan(132, 4, True)}
    assert unsettled_steps(findings(rows, "node")) == [], "more samples would change nothing"


def test_figures_without_their_partner_are_left_out() -> None:
    """A mechanism of which a base knows nothing, and whose bandwidth the samples do not settle."""
    text = NODE.replace('unit = "h100"', 'unit = "h200"')
    base = parse_target(text, "mine.toml")
    network = NoisyNetwork(4, turns=True)
    network = replace(network, name="load")
    found = calibrate_network(base, DEVICES[:4], "calibrated", runner=network.run)
    assert not [r.path for r in found.readings if ".network.load." in r.path]
    assert parse_target(found.text(), "calibrated.toml") == found.target


def test_rows_as_lines() -> None:
    steps = [step for step in plan(132, 2, True) if step.kind in (Kind.PRODUCT, Kind.COPY)]
    network = FakeNetwork(2, lag_us=0.0123)
    rows = {replace(step, title="", samples=SAMPLES): network.row(step) for step in steps}
    lines = ['{"gpus": "two of mine"}', *(row_line(step, row) for step, row in rows.items())]
    again = rows_of(lines)
    assert list(again) == list(rows)
    for step, row in rows.items():
        for one, other in zip(again[step], row, strict=True):
            assert one.us == pytest.approx(other.us, abs=1e-3)
            assert one.pushed_gb_per_s == other.pushed_gb_per_s
    twice = rows_of([*lines, *lines])
    assert all(twice[step] == joined(again[step], again[step]) for step in rows)


def test_bytes_that_take_no_time_are_left_out_with_a_note() -> None:
    class Instant(FakeNetwork):
        def row(self, step: NetworkStep) -> Row:
            return (Times((5.0,) * step.samples),) * self.world if step.name == "store" else super().row(step)

    found = calibrated(network=Instant(4))
    assert "left out: node.network.store.gb_per_s: value 0 must be greater than zero, in GB/s" in found.notes
    assert (
        found.target.figures["node.network.store.gb_per_s"].source
        == load_target("h200x4").figures["node.network.store.gb_per_s"].source
    )


def broken(title: str, network: FakeNetwork) -> Callable[..., Collected]:
    """A runner that fails in the second step of that title."""

    def run(steps: tuple[NetworkStep, ...], limits: RankLimits, on_row: Callable[[Row], None]) -> Collected:
        own = [place for place, step in enumerate(steps) if step.title == title]
        found = network.run(steps[: own[1]] if own else steps, limits, on_row)
        if own:
            found.fault = "rank 2 was killed by SIGSEGV"
        return found

    return run


def test_a_fault_costs_the_rest_of_its_title_alone() -> None:
    title = MECHANISMS["tma_add"]
    steps, told = plan(132, 4, True), []
    found = measure(steps, broken(title, FakeNetwork(4)), told.append, lambda *_: None, 100.0)
    own = [step for step in steps if step.title == title]
    assert set(steps) - set(found.rows) == set(own[1:])
    assert found.notes == (f"{title}: not all was measured: rank 2 was killed by SIGSEGV",)
    assert told.count("starting a process on each device") == 2
    assert [one for one in told if one != told[0]] == list(dict.fromkeys(step.title for step in steps))
    base = load_target("h200x4")
    result = calibrate_network(base, DEVICES[:4], "mine", runner=broken(title, FakeNetwork(4)))
    kept = "node.network.tma_add.gb_per_s"
    assert result.target.figures[kept] == base.figures[kept]
    assert result.target.figures["node.network.store.gb_per_s"].provenance == "measured"


def test_ranks_that_do_not_start_end_the_calibration() -> None:
    calls = []

    def never(steps: tuple[NetworkStep, ...], *_: object) -> Collected:
        calls.append(steps)
        return Collected(fault="rank 0 failed: RuntimeError: no peer access")

    with pytest.raises(
        ToolchainError, match=r"h200x4: nothing was measured; rank 0 failed: .* no peer access"
    ):
        calibrate_network(load_target("h200x4"), DEVICES[:4], "mine", runner=never)
    assert len(calls) == 1


def test_without_a_product_everything_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a machine with GPUs, up to the processes."""
    held: list[str] = []
    network, base = FakeNetwork(4), load_target("h200x4")

    def ranks(function: object, world: int, setup: device.RankSetup, expected: int, *rest: Any) -> Collected:
        assert (function, world, setup.devices, setup.product) == (
            device.time_steps, 4, tuple(DEVICES[3::-1]), None,
        )  # fmt: skip
        assert expected == 1 + len(setup.steps)
        assert 0 < setup.port < 1 << 16
        assert held == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"], "in an order that all processes share"
        return network.run(setup.steps, *rest)

    @contextmanager
    def alone(uuid: str, _: object) -> Iterator[None]:
        held.append(uuid)
        yield
        held.remove(uuid)

    monkeypatch.setattr(calibrate, "compile_probes", lambda *_: b"")
    monkeypatch.setattr(calibrate, "_build_product", lambda _: "nvcc is missing")
    monkeypatch.setattr(calibrate, "alone_on_device", alone)
    monkeypatch.setattr(calibrate, "run_ranks", ranks)
    found = calibrate_network(base, DEVICES[3::-1], "mine")
    assert found.notes == ("a product beside pushes: not measured, nvcc is missing",)
    assert {r.path for r in found.readings} == set(expected(4)) - {"node.network.product_share"}
    assert held == []


def test_no_new_processes_are_started_when_the_time_is_over() -> None:
    title = MECHANISMS["store"]
    found = measure(
        plan(132, 4, True), broken(title, FakeNetwork(4)), lambda _: None, lambda *_: None, total_s=1.0
    )
    assert found.notes[-1].startswith("not measured for lack of time: ordinary loads")


def test_steps() -> None:
    for world in (2, 4, 8):
        steps = plan(132, world, True)
        assert len(set(steps)) == len(steps)
        titles = [step.title for step in steps]
        assert titles == sorted(titles, key=titles.index), "steps of one title follow each other"
        assert {step.peers for step in steps if step.kind is Kind.MOVE} == {1, world - 1}
    assert not any(step.name.startswith("tma") for step in plan(108, 4, False))
    assert NetworkStep("t", Kind.MOVE, "store", blocks=3, rounds=5).moved_bytes == 15 * SLICE_BYTES
    assert NetworkStep("t", Kind.COPY, "copy_engine", size_bytes=100, peers=3).moved_bytes == 300


def test_what_cannot_be_calibrated() -> None:
    with pytest.raises(InputError, match="target h200 is not the devices of one host"):
        check_network(load_target("h200"))
    pod = parse_target(
        NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod"]') + POD, "pod.toml"
    )
    with pytest.raises(InputError, match="mynode is not the devices of one host; describe and calibrate its"):
        check_network(pod)
    many = parse_target(NODE.replace("value = 4,", "value = 16,"), "many.toml")
    with pytest.raises(InputError, match="has 16 devices; 2 to 8 can be calibrated"):
        check_network(many)
    amd = parse_target(NODE.replace('"h100"', '"mi300x"'), "amd.toml")
    with pytest.raises(InputError, match="there are none in HIP"):
        check_network(amd)


@pytest.mark.parametrize("chip", ["h200", "a100"])
def test_the_probes_compile(chip: str) -> None:
    target = load_target(chip)
    if missing_compiler(target, runnable=False):
        pytest.skip("no nvcc here")
    code = compile_probes(target, "tilesight.calibration.network", "network_probes.cu")
    needed = {f"move_{step.name}" for step in plan(132, 4, chip == "h200") if step.kind is Kind.MOVE}
    for kernel in (*needed, "pass_flag", "barrier", "occupy", "await_occupied", "release_cores"):
        assert kernel.encode() in code


def test_host_and_device_agree_on_sizes() -> None:
    source = Path(device.__file__).with_name("network_probes.cu").read_text(encoding="utf-8")
    assert f"SLICE = {SLICE_BYTES}, WINDOW = 32u << 20, MOST_PEERS = {device.MOST_RANKS};" in source
    assert device.WINDOW_BYTES == 32 << 20
    assert SLICE_BYTES // 16 == device.LANES
    assert "SLOTS = 4;" in source
    assert device.BULK_SHARED == 4 * SLICE_BYTES
    assert ctypes.sizeof(device._Peers) == 8 * device.MOST_RANKS


@pytest.mark.parametrize("name", ["h200", "h100", "a100"])
def test_blocks_of_the_product_do_not_stay(name: str) -> None:
    target: Target = load_target(name)
    candidate = product_candidate(target)
    assert candidate.config in candidate.template.space(candidate.workload, target)
    assert "persistent" not in candidate.config
    assert candidate.template.scratch(candidate.workload, candidate.config) == {}
