"""Predictions for products that wait for what copy engines bring."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.headroom import limits
from tilesight.costmodel.analytical.network import NETWORK, copies_us, network_use
from tilesight.errors import InputError
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.explanation.view import view
from tilesight.kernels import template_for
from tilesight.problem.candidate import Candidate
from tilesight.profile.codec import profiles_of, profiles_text
from tilesight.profile.values import EngineCopies, KernelProfile
from tilesight.target.spec import Target, load_target

NODE = load_target("h200x4")
CHUNK = 128 * 1024 * 2  # bytes


@cache
def kernels() -> tuple[KernelProfile, ...]:
    """The barrier, and a product of 4096 rows, 1024 of each of four ranks, in 8 chunks."""
    template = template_for("all_gather_matmul", NODE, "bfloat16")
    workload = template.operator.workload_on(NODE, "m=4096,n=4096,k=1024")
    wanted = {"mechanism": "copy_engine", "block_m": 128, "block_n": 256, "chunk_rows": 128}
    config = next(
        c
        for c in template.space(workload, NODE).configs()
        if all(c.get(name) == value for name, value in wanted.items())
    )
    found = lower_and_profile(Candidate(workload, NODE, template, config))
    assert isinstance(found, Profiled)
    return found.kernels


def product() -> KernelProfile:
    return kernels()[1]


def with_chunks(chunks: int, chunk_bytes: int) -> KernelProfile:
    return replace(product(), copies=EngineCopies(3, chunks, chunk_bytes))


def chunk_us(node: Target, chunk_bytes: int = CHUNK) -> float:
    """The time of a chunk and its flag to one peer: each starts and ends in the time of a flag."""
    rate = node["node.network.copy_engine.peer_gb_per_s"] * 1e3
    return (chunk_bytes + 4) / rate + 2 * node["node.network.flag_us"]


def test_copies_are_read_off_the_function() -> None:
    barrier, _ = kernels()
    assert (barrier.meetings, barrier.copies) == (1, None)
    assert product().copies == EngineCopies(peers=3, chunks=8, chunk_bytes=CHUNK)
    assert (product().waits, product().blocks) == (1, NODE.int("core.count"))
    assert product().communicates
    assert not any(a.peer for r in product().roles for p in r.phases for a in p.work.accesses)
    assert not any(kernel.notes or kernel.unknown_calls for kernel in kernels())
    assert profiles_of(profiles_text(kernels())) == kernels()


def test_they_cross_the_network_to_one_peer_at_a_time() -> None:
    found = network_use(product(), NODE)
    assert found.sent_us == pytest.approx(3 * 8 * chunk_us(NODE)) == copies_us(product().copies, NODE)  # type: ignore[arg-type]
    assert found.first_us == pytest.approx(chunk_us(NODE))
    assert (found.last_share, found.waiting_share) == (1 / 32, 3 / 4)
    assert AnalyticalModel().predict([product()], NODE).terms_us[NETWORK] == pytest.approx(found.sent_us)
    pair = load_target("h200x2")
    rate = pair["node.network.copy_engine.gb_per_s"] * 1e3
    one = replace(product(), copies=EngineCopies(1, 8, CHUNK))
    assert network_use(one, pair).sent_us == pytest.approx(
        8 * ((CHUNK + 4) / rate + 2 * pair["node.network.flag_us"])
    )


def test_what_overlaps_and_what_cannot() -> None:
    """A product beside copies, one that ends with the last chunk, and one that begins with the first one."""
    model = AnalyticalModel()
    alone = replace(product(), copies=None, waits=0)
    busy_us = model.predict([alone], NODE).latency_us
    use = network_use(product(), NODE)
    for busy in (10 * use.sent_us, 4 * use.sent_us):  # copies are hidden, but for their traffic
        slowed = busy + (1 - NODE["node.network.product_share"]) * use.sent_us
        assert use.beside(busy) == pytest.approx(slowed)
    assert use.beside(0.1 * use.sent_us) == pytest.approx(use.sent_us * (1 + 0.1 / 32))
    # one chunk that takes longer than the own rows: the rest of the work follows it
    single = network_use(with_chunks(1, 64 * CHUNK), NODE)
    assert single.beside(single.first_us) == pytest.approx(
        max(single.first_us * 1.75, single.sent_us + single.first_us / 4)
    )
    two = replace(single, sent_us=single.first_us, last_share=0.0)
    assert two.beside(single.first_us) == pytest.approx(1.75 * single.first_us)
    # the whole kernel: more bytes take as much longer as the network does
    late, later = (model.predict([with_chunks(8, number * CHUNK)], NODE) for number in (40, 80))
    assert late.limiting == later.limiting == NETWORK
    more = later.terms_us[NETWORK] - late.terms_us[NETWORK]
    assert later.latency_us - late.latency_us == pytest.approx(more, rel=0.02)
    assert late.latency_us > late.terms_us[NETWORK] > busy_us


def test_many_small_chunks_take_longer_than_few_large_ones() -> None:
    use, fine = network_use(product(), NODE), network_use(with_chunks(32, CHUNK // 4), NODE)
    assert fine.sent_us - use.sent_us == pytest.approx(3 * 24 * 2 * NODE["node.network.flag_us"], rel=0.01)
    assert fine.first_us < use.first_us


def test_without_figures_there_is_no_prediction() -> None:
    (level,) = NODE.levels
    figures = {path: figure for path, figure in level.figures.items() if "copy_engine" not in path}
    without = replace(NODE, levels=(replace(level, figures=figures),))
    with pytest.raises(InputError, match=r"figure 'node.network.copy_engine.gb_per_s' is missing"):
        network_use(product(), without)
    with pytest.raises(ValueError, match="needs several devices"):
        network_use(product(), load_target("h200"))


def test_an_explanation_names_the_copy_engines() -> None:
    model = AnalyticalModel()
    explained = view(kernels(), model.predict(kernels(), NODE), NODE)
    sent_us = copies_us(product().copies, NODE)  # type: ignore[arg-type]
    (sentence,) = (text for text in explained.findings if "copy engines" in text)
    assert sentence.startswith(
        "The copy engines bring 2.1 MB to each of 3 peers in 8 chunks while the kernel"
    )
    assert f"{sent_us:.2f} us" in sentence
    assert sentence.endswith("they take no cores.")
    gains = {limit.name: limit.gain for limit in limits(kernels(), NODE, 1.0).limits}
    assert gains["network"] > 0
    (pair,) = (
        text
        for text in view(
            [replace(product(), copies=EngineCopies(1, 1, CHUNK))], model.predict(kernels(), NODE), NODE
        ).findings
        if "copy engines" in text
    )
    assert "0.3 MB to a peer in 1 chunk while" in pair


def test_figures_that_are_predicted_are_named() -> None:
    predicted = load_target("h100x8")
    (note,) = network_use(replace(product(), copies=EngineCopies(7, 8, CHUNK)), predicted).notes
    assert "node.network.copy_engine.peer_gb_per_s" in note
