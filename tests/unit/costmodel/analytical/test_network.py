"""Predictions for kernels that several devices run together."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.constants import UNMEASURED_UNCERTAINTY
from tilesight.costmodel.analytical.headroom import limits
from tilesight.costmodel.analytical.network import NETWORK, NOTE, network_use, sends
from tilesight.costmodel.learned.hybrid import HybridModel
from tilesight.costmodel.learned.model_file import LearnedModel
from tilesight.costmodel.network.collectives import predict_collective
from tilesight.costmodel.network.transfers import LevelNetwork
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.explanation.view import view
from tilesight.kernels import operator, template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.config import Config
from tilesight.problem.group_operator import GroupOperator
from tilesight.profile.codec import profiles_of, profiles_text
from tilesight.profile.values import KernelProfile
from tilesight.target.part import part_of
from tilesight.target.spec import load_target

NODE = load_target("h100x4")
SHAPE = "m=4096,n=4096,k=1024"
SENT = 4096 * 4096 * 2 * 3 / 4  # bytes of the tiles of peers


def profiles(way: str, name: str = "matmul_reduce_scatter") -> tuple[KernelProfile, ...]:
    return _profiles(way, name)


@cache
def _profiles(way: str, name: str) -> tuple[KernelProfile, ...]:
    ours = operator(name)
    assert isinstance(ours, GroupOperator)
    template = template_for(ours.name, NODE, "bfloat16")
    workload = ours.workload_on(NODE, SHAPE)
    space, default = template.space(workload, NODE), template.default_config(workload, NODE)
    assert default is not None
    assert default in space
    wanted = {"algorithm": way, "block_m": 128, "senders": 8, "summers": 0, "mechanism": "store"}
    config = next(
        c for c in space.configs() if all(c.get(name, value) == value for name, value in wanted.items())
    )
    assert config["algorithm"] == way
    found = lower_and_profile(Candidate(workload, NODE, template, config))
    assert isinstance(found, Profiled)
    return found.kernels


def sent(kernel: KernelProfile) -> dict[str, float]:
    found: dict[str, float] = {}
    for role in kernel.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.peer:
                    size = access.bytes * phase.trips.mean * kernel.blocks
                    found[access.peer] = found.get(access.peer, 0.0) + size
    return found


@pytest.mark.parametrize(("way", "mechanism"), [("push", "tma_store"), ("add", "tma_add")])
def test_bytes_to_peers_are_read_off_the_ir(way: str, mechanism: str) -> None:
    kernels = profiles(way)
    product = next(kernel for kernel in kernels if sent(kernel))
    assert sent(product) == {mechanism: pytest.approx(SENT, rel=0.04)}
    assert [kernel.meetings for kernel in kernels].count(1) == 2
    assert all(not kernel.unknown_calls and not kernel.notes for kernel in kernels)
    # the kernels of one rank alone: zeros, or sums of what has arrived
    assert sum(not kernel.communicates for kernel in kernels) == 1


def written(kernels: tuple[KernelProfile, ...]) -> float:
    """Bytes that bulk copies store, at the own rank and at peers."""
    return sum(
        access.bytes * phase.trips.mean * kernel.blocks
        for kernel in kernels
        for role in kernel.roles
        for phase in role.phases
        for access in phase.work.accesses
        if access.mechanism == "tma" and access.write and access.space == "global"
    )


def test_results_go_to_the_owners_of_their_heads_in_one_kernel_of_two() -> None:
    ours = operator("context_parallel_flash_decoding")
    template = template_for(ours.name, NODE, "bfloat16")
    workload = ours.workload_on(NODE, "batch=4,heads=32,kv_heads=8,kv_len=2048,head_dim=128")
    default = template.default_config(workload, NODE)
    assert default is not None
    assert default["algorithm"] == "push"
    found = lower_and_profile(Candidate(workload, NODE, template, default))
    assert isinstance(found, Profiled)
    parts, exchange = found.kernels
    assert not parts.communicates
    # of 3 ranks of 4 the sums of a row in float32, and their logarithms
    assert sent(exchange) == {"store": pytest.approx(4 * 32 * (128 + 1) * 4 * 3 / 4, rel=0.04)}
    assert not exchange.unknown_calls
    assert not exchange.notes
    prediction = AnalyticalModel().predict([exchange], NODE)
    assert prediction.terms_us[NETWORK] > 0


def test_rows_go_to_experts_and_sums_return() -> None:
    ours = operator("all_to_all_grouped_matmul")
    template = template_for(ours.name, NODE, "bfloat16")
    workload = ours.workload_on(NODE, "tokens=512,hidden=2048,inner=256,experts=32,topk=8")
    default = template.default_config(workload, NODE)
    assert default is not None
    assert default["algorithm"] == "push"
    candidate = Candidate(workload, NODE, template, default)
    found = lower_and_profile(candidate)
    assert isinstance(found, Profiled)
    first, *inner, last = found.kernels
    # nine of ten tokens have an expert on a peer; the model counts all
    row = 2048 * 2
    assert sent(first) == {"store": pytest.approx(3 * 512 * row, rel=0.12)}
    assert sent(last) == {"store": pytest.approx(3 * 512 * row, rel=0.12)}
    assert [kernel.communicates for kernel in inner] == [False] * 3
    assert not any(kernel.unknown_calls for kernel in found.kernels)
    # a quarter of all choices are of this rank; the model takes some tokens
    rows = written_to(inner[0], row)
    assert rows == pytest.approx(4 * 512 * 8 / 4, rel=0.2)
    alone = replace(candidate, config=Config({**default, "algorithm": "sequential"}))
    gathered = lower_and_profile(alone)
    assert isinstance(gathered, Profiled)
    names = [one.collective.name for one in gathered.kernels if one.collective]
    assert names == ["all_gather", "all_gather", "all_gather", "reduce_scatter"]
    assert gathered.kernels[0].collective is not None
    assert gathered.kernels[-1].collective is not None
    assert not any(kernel.collective for kernel in gathered.kernels[3:-1])


@pytest.mark.parametrize(("group", "limiting"), [(8, False), (1, True)])
def test_keys_cross_the_network_beside_attention(group: int, limiting: bool) -> None:
    """With as many heads of keys as of queries they take longer than attention of short sequences."""
    ours = operator("context_parallel_flash_attention")
    template = template_for(ours.name, NODE, "bfloat16")
    workload = ours.workload_on(NODE, f"batch=1,heads=64,seq_len=512,head_dim=128,group={group}")
    default = template.default_config(workload, NODE)
    assert default is not None
    assert default["algorithm"] == "push"
    library = {name: value for name, value in default.items() if name not in ("senders", "chunk_rows")}
    found = []
    for config in (default, Config({**library, "algorithm": "sequential"})):
        assert config in template.space(workload, NODE)
        profiled = lower_and_profile(Candidate(workload, NODE, template, config))
        assert isinstance(profiled, Profiled)
        found.append(profiled.kernels)
    meeting, attention = found[0]
    assert sent(attention) == {"store": pytest.approx(3 * 2 * 512 * 64 // group * 128 * 2, rel=0.04)}
    names = [one.collective.name for one in found[1] if one.collective]
    assert names == ["all_gather", "all_gather"]
    push, sequential = (AnalyticalModel().predict(kernels, NODE) for kernels in found)
    assert push.latency_us < sequential.latency_us
    assert (push.limiting == NETWORK) == limiting
    assert sequential.terms_us[NETWORK] > push.terms_us[NETWORK] > 0
    assert meeting.meetings == 1


def written_to(kernel: KernelProfile, row: int) -> float:
    """Rows that plain stores of 16 bytes write, of so many bytes each."""
    return sum(
        access.bytes * phase.trips.mean * kernel.blocks / row
        for role in kernel.roles
        for phase in role.phases
        for access in phase.work.accesses
        if access.write and access.space == "global"
    )


WHOLE = 4096 * 4096 * 2  # bytes of C


@pytest.mark.parametrize(
    ("name", "way", "peers", "stored"),
    [
        # each tile goes to one rank, or to all
        ("matmul_reduce_scatter", "push", {"tma_store": SENT}, WHOLE),
        ("matmul_all_reduce", "one_shot", {"tma_store": 3 * WHOLE}, 4 * WHOLE),
        ("matmul_all_reduce", "two_shot", {"tma_store": SENT, "store": SENT}, WHOLE),
        # each of 16 or more columns of tiles reads the rows of three peers again
        ("all_gather_matmul", "pull", {"tma_load": None}, WHOLE),
        # the own rows go to three peers, once
        ("all_gather_matmul", "push", {"store": 3 * 1024 * 1024 * 2}, WHOLE),
    ],
)
def test_every_tile_leaves_its_block(
    name: str, way: str, peers: dict[str, float | None], stored: float
) -> None:
    kernels = profiles(way, name)
    found: dict[str, float] = {}
    for kernel in kernels:
        found |= sent(kernel)
    assert found.keys() == peers.keys()
    for mechanism, size in peers.items():
        if size is None:
            product = next(kernel for kernel in kernels if sent(kernel))
            columns = found[mechanism] / (4096 * 1024 * 2 * 3 / 4)
            assert columns == pytest.approx(round(columns), rel=0.04)
            assert columns >= 16, product.grid
        else:
            assert found[mechanism] == pytest.approx(size, rel=0.04)
    assert written(kernels) == pytest.approx(stored, rel=0.04)


@pytest.mark.parametrize("way", ["sequential", "push", "add"])
def test_profiles_travel(way: str) -> None:
    assert profiles_of(profiles_text(profiles(way))) == profiles(way)


def test_one_after_the_other_is_the_product_and_the_librarys_collective() -> None:
    model, (product, library) = AnalyticalModel(), profiles("sequential")
    assert not product.communicates
    collective = predict_collective(NODE, "reduce_scatter", 4096 * 4096 * 2).latency_us
    alone = model.predict([product], NODE).latency_us
    both = model.predict([product, library], NODE)
    assert both.latency_us == pytest.approx(alone + collective)
    assert both.terms_us[NETWORK] == pytest.approx(collective)


def test_tiles_that_leave_cost_less_than_one_after_the_other_and_more_than_nothing() -> None:
    model = AnalyticalModel()
    product = next(kernel for kernel in profiles("push") if sent(kernel))
    alone = product.with_phases(lambda phase: phase.with_accesses(lambda access: replace(access, peer="")))
    quiet, loud = model.predict([alone], NODE), model.predict([product], NODE)
    network = loud.terms_us[NETWORK]
    assert network == pytest.approx(SENT / NODE["node.network.tma_store.gb_per_s"] / 1e3, rel=0.04)
    assert NETWORK not in quiet.terms_us
    assert max(quiet.latency_us, network) < loud.latency_us < quiet.latency_us + network + 5
    assert loud.uncertainty > quiet.uncertainty


def test_what_waits_for_peers_ends_after_the_last_of_them_and_is_slowed_by_sending() -> None:
    """Blocks that send take cores from the product; of it, what arrives last is computed at the end."""
    model, name, node = AnalyticalModel(), "all_gather_matmul", load_target("h200x4")
    product = next(kernel for kernel in profiles("push", name) if kernel.waits)
    senders = sum(
        count > 0
        for role in product.roles
        for phase in role.phases
        if sends(phase)
        for count in phase.trips.per_block
    )
    assert 0 < senders < product.blocks == node["core.count"]
    found = model.predict([product], node)
    rate = min(node["node.network.store.gb_per_s"], senders * node["node.network.store.core_gb_per_s"])
    size = sent(product)["store"]
    assert found.terms_us[NETWORK] == pytest.approx(size / rate / 1e3)
    alone = replace(product, waits=0).with_phases(
        lambda phase: phase.with_accesses(lambda access: replace(access, peer=""))
    )
    # without what it sends
    quiet = replace(
        alone,
        roles=tuple(
            replace(
                role, phases=tuple(p for p, q in zip(role.phases, marked.phases, strict=True) if not sends(q))
            )
            for role, marked in zip(alone.roles, product.roles, strict=True)
        ),
    )
    share = node["node.network.product_share"]
    slowed = model.predict([quiet], node).latency_us + (1 - share) * found.terms_us[NETWORK]
    assert found.latency_us == pytest.approx(slowed, rel=0.02)

    def times(number: float) -> KernelProfile:
        return product.with_phases(
            lambda phase: phase.with_accesses(
                lambda access: replace(access, bytes=access.bytes * (number if access.peer else 1))
            )
        )

    late, later = (model.predict([times(number)], node) for number in (20, 40))
    assert late.limiting == later.limiting == NETWORK
    more = later.terms_us[NETWORK] - late.terms_us[NETWORK]
    assert later.latency_us - late.latency_us == pytest.approx(more, rel=0.02)
    assert late.latency_us > late.terms_us[NETWORK]


def test_the_network_limits_what_sends_more_than_it_computes() -> None:
    product = next(kernel for kernel in profiles("push") if sent(kernel))
    more = product.with_phases(
        lambda phase: phase.with_accesses(
            lambda access: replace(access, bytes=access.bytes * (20 if access.peer else 1))
        )
    )
    assert AnalyticalModel().predict([more], NODE).limiting == NETWORK


@pytest.mark.parametrize("way", ["push", "sequential"])
def test_an_explanation_names_the_network_where_it_limits(way: str) -> None:
    """Barriers and collectives of the library have no registers to explain."""
    kernels, model = profiles(way), AnalyticalModel()
    explained = view(kernels, model.predict(kernels, NODE), NODE)
    gains = {limit.name: limit.gain for limit in explained.limits.limits}
    assert gains["network"] > 0
    assert (explained.limits.limits[0].name == "network") == (way == "push")
    text = " ".join(explained.findings)
    assert ("The largest cost is the network between devices" in text) == (way == "push")
    alone = [kernel for kernel in kernels if not kernel.communicates]
    assert "network" not in {limit.name for limit in limits(alone, NODE, 1.0).limits}


def test_a_barrier_takes_its_launch_and_a_flag() -> None:
    meeting = next(kernel for kernel in profiles("push") if kernel.meetings)
    found = AnalyticalModel().predict([meeting], NODE)
    assert found.terms_us[NETWORK] == NODE["node.network.barrier_us"]
    assert found.latency_us == pytest.approx(sum(found.terms_us.values()))
    assert found.limiting == NETWORK


def test_one_device_cannot_run_them() -> None:
    for way in ("sequential", "push"):
        with pytest.raises(ValueError, match="needs several devices"):
            AnalyticalModel().predict(profiles(way), load_target("h100"))


def test_the_learned_model_leaves_them_alone() -> None:
    analytical = AnalyticalModel()
    learned = SimpleNamespace(analytical_version=analytical.version, version="learned", archs=("sm_90a",))
    model = HybridModel(analytical, cast(LearnedModel, learned))
    for way in ("sequential", "push"):
        found = model.predict(profiles(way), NODE)
        assert found.latency_us == analytical.predict(profiles(way), NODE).latency_us
        assert NOTE in found.notes
        assert found.uncertainty > 0.2


@pytest.mark.parametrize(
    ("way", "figures"),
    [
        ("push", ["node.network.tma_store.gb_per_s", "node.network.barrier_us"]),
        ("sequential", ["node.network.library.reduce_scatter"]),
    ],
)
def test_figures_that_are_predicted_are_named_and_widen_sigma(way: str, figures: list[str]) -> None:
    model, predicted = AnalyticalModel(), load_target("h100x8")
    assert predicted["node.network.barrier_us"] != NODE["node.network.barrier_us"]
    sure, unsure = model.predict(profiles(way), NODE), model.predict(profiles(way), predicted)
    assert not any("predicted from" in note for note in sure.notes)
    notes = [note for note in unsure.notes if note.startswith("not measured on h100x8")]
    for figure in figures:
        assert any(figure in note for note in notes)
    each = [
        (model.predict([kernel], NODE).uncertainty, model.predict([kernel], predicted).uncertainty)
        for kernel in profiles(way)
        if kernel.communicates
    ]
    assert each
    for measured, wider in each:
        assert wider == pytest.approx(math.hypot(measured, UNMEASURED_UNCERTAINTY))


@pytest.mark.parametrize(("world", "name"), [(16, "matmul_reduce_scatter"), (64, "all_gather_matmul")])
def test_on_a_pod_the_product_and_the_collective_add_up(world: int, name: str) -> None:
    pod = part_of(load_target(str(Path(__file__).parents[4] / "docs" / "pod.toml")), world)
    ours, template = operator(name), template_for(name, pod, "bfloat16")
    assert isinstance(ours, GroupOperator)
    workload = ours.workload_on(pod, SHAPE)
    config = template.default_config(workload, pod)
    assert config is not None
    found = lower_and_profile(Candidate(workload, pod, template, config))
    assert isinstance(found, Profiled)
    (call,) = (kernel for kernel in found.kernels if kernel.collective)
    assert call.collective is not None
    whole = AnalyticalModel().predict(found.kernels, pod)
    library = predict_collective(pod, call.collective.name, call.collective.size_bytes)
    assert library.world == world
    assert whole.terms_us[NETWORK] == pytest.approx(library.latency_us)
    alone = AnalyticalModel().predict([k for k in found.kernels if not k.collective], pod)
    assert whole.latency_us == pytest.approx(alone.latency_us + library.latency_us, rel=0.02)
    (note,) = (note for note in whole.notes if "predicted" in note)
    collective = f"node.network.library.{call.collective.name}, pod.network.library;"
    assert f"not measured on h100-pod-{world}" in note
    assert collective in note


def test_what_goes_to_other_units_crosses_their_network_beside_that_within() -> None:
    """Of four ranks in two units of two, one of three peers is near and two are far."""
    near, count = NODE.levels[0], replace(NODE.levels[0].figures["devices"], value=2)
    inner = replace(near, figures={**near.figures, "devices": count})
    slow = {
        path: replace(figure, value=figure.value / 10)
        for path, figure in inner.figures.items()
        if path.startswith("network.tma_store.")
    }
    late = {"network.barrier_us": replace(near.figures["network.flag_us"], value=50.0)}
    outer = replace(inner, name="wafer", figures={**inner.figures, **slow, **late})
    wafer = replace(NODE, name="wafer", levels=(inner, outer))
    assert wafer.world == 4
    (product,) = (kernel for kernel in profiles("push") if sent(kernel))
    one, two = network_use(product, NODE), network_use(product, wafer)
    assert two.sent_us == pytest.approx(one.sent_us * 10 * 2 / 3)
    same = replace(NODE, levels=(inner, replace(inner, name="wafer")))
    assert network_use(product, same).sent_us == pytest.approx(one.sent_us * 2 / 3)
    (first, *_) = (kernel for kernel in profiles("push") if kernel.meetings)
    waits = [AnalyticalModel().predict([first], target).terms_us[NETWORK] for target in (same, wafer)]
    assert waits[1] - waits[0] == pytest.approx(
        first.meetings * (50.0 - LevelNetwork(inner, "").barrier_us), rel=1e-6
    )
    assert wafer.unreached is None
