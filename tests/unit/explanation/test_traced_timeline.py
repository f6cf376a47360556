"""A traced launch under the prediction: rows, facts, files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.stamps import (
    ITERATION,
    SPECIALISED,
    TRIPS,
    specialised_program,
    specialised_trace,
    us,
    written,
)
from tilesight.explanation.traced_timeline import places_of, typical_block, with_trace
from tilesight.pages.chrome_trace import chrome_trace
from tilesight.pages.render import html
from tilesight.pages.timeline_page import timeline_page
from tilesight.records.timeline import (
    Note,
    NoteKind,
    Span,
    SpanKind,
    Timeline,
    TimelinePart,
    TimelineRow,
    View,
)
from tilesight.tracing.compare_loops import compare_loops
from tilesight.tracing.decode import read_trace
from tilesight.tracing.run_stamped import Trace
from tilesight.tracing.values import BlockTime, KernelTrace

ENVIRONMENT = {"device": "NVIDIA H200", "driver": "580.1"}


def predicted(name: str = "kernel", trips: float = TRIPS) -> list[TimelinePart]:
    """Parts as the model makes them: an iteration of 0.88 us where 0.8 are traced."""

    def row(*spans: Span) -> tuple[TimelineRow, ...]:
        return (TimelineRow("row", spans, adds_up=True),)

    launch = row(Span("launch", 0.0, 2.0, SpanKind.WAIT), Span("wave 1 of 1", 2.0, 100.0))
    return [
        TimelinePart(View.KERNEL, f"{name}: launch", 102.0, launch),
        TimelinePart(View.BLOCK, f"{name}: block, alone on its core", 100.0, row(Span("loop", 0.0, 100.0))),
        TimelinePart(View.ITERATION, f"{name}: loop", 0.88, row(Span("work", 0.0, 0.88)), trips),
    ]


def timeline(*parts: TimelinePart) -> Timeline:
    # the note on where numbers come from need not be the first one
    notes = Note(NoteKind.SIMPLIFIED, "kept"), Note(NoteKind.SOURCE, "nothing was measured")
    return Timeline("matmul", tuple(parts or predicted()), (("model", "m"),), notes)


def trace(*kernels: KernelTrace) -> Trace:
    return Trace(
        kernels or (specialised_trace(),),
        (100.0, 101.0, 102.0),
        (103.0, 104.03, 106.0),
        {"registers": 58},
        {"registers": 63, "spill_bytes": 8},
        ENVIRONMENT,
        {},
        "2026-11-27",
    )


def test_facts_have_predicted_beside_traced_times() -> None:
    facts = dict(with_trace(timeline(), trace()).facts)
    assert facts["model"] == "m"
    assert facts["steady iteration, loop"] == "predicted 0.8800 us, traced 0.7999 us (+10.0 %)"
    assert facts["block"].startswith("predicted 100.0 us, traced 107.4 us (-6.9 %)")
    assert facts["time without stamps, measured"] == "101.0 us"
    assert facts["time with stamps, measured"] == "104.0 us (+3.0 %)"
    assert facts["traced on"] == "NVIDIA H200, driver 580.1, 2026-11-27"
    assert facts["clock of the cores, traced"] == "1500 MHz"


def test_rows_lie_under_the_predicted_ones() -> None:
    found = with_trace(timeline(), trace())
    assert found.traced
    for part, before in zip(found.parts, predicted(), strict=True):
        assert part.lanes[: len(before.lanes)] == before.lanes
        for row in part.lanes[len(before.lanes) :]:
            assert row.name.startswith("traced: ")
            assert not row.adds_up
            assert {span.kind for span in row.spans} == {SpanKind.MEASURED}
            assert all(b.start_us >= a.end_us - 1e-9 for a, b in pairwise(row.spans)), row.name
    launch, block, iteration = (
        {row.name.removeprefix("traced: "): row for row in part.lanes[1:]} for part in found.parts
    )
    whole = launch["128 blocks on 128 cores"].spans[0]
    assert whole.start_us == 2.0  # where the predicted first blocks begin
    assert len([name for name in launch if name.startswith("core ")]) == 6
    assert [span.name for span in block["consumer 1"].spans] == [
        "before the loop",
        f"loop, {TRIPS} iterations",
        "after the loop",
    ]
    assert block["consumer 1"].us == pytest.approx(us(7_500 + TRIPS * ITERATION), rel=1e-3)
    assert list(iteration) == ["producer", "consumer 1", "consumer 2"]
    assert all(row.us == pytest.approx(us(ITERATION), rel=1e-3) for row in iteration.values())


def test_notes_say_what_was_measured_and_what_stamps_change() -> None:
    found = with_trace(timeline(), trace()).notes
    notes = [note.text for note in found]
    assert [note.kind for note in found].count(NoteKind.SOURCE) == 1
    assert "nothing was measured" not in notes
    assert "kept" in notes
    text = " ".join(notes)
    for words in (
        "'traced' were measured",
        "63 registers with stamps, 58 without",
        "spills registers: 8 bytes",
    ):
        assert words in text


def test_a_loop_with_another_number_of_iterations_is_not_compared() -> None:
    assert compare_loops(timeline(*predicted(trips=TRIPS / 3)), (specialised_trace(),)) == ()
    (one,) = compare_loops(timeline(*predicted(trips=TRIPS * 0.9)), (specialised_trace(),))
    assert (one.name, one.traced.role) == ("loop", "consumer 1")
    assert one.error == pytest.approx(0.88 / us(ITERATION) - 1, rel=1e-2)


def test_loops_with_as_many_iterations_are_compared_in_order() -> None:
    parts = predicted()
    second = replace(parts[2], title="kernel: loop 2", us=1.0)
    found = compare_loops(timeline(*parts, second), (specialised_trace(),))
    assert [one.part.us for one in found] == [0.88]  # the producer's loop is part of the consumers'


def test_each_kernel_of_a_function_has_its_rows() -> None:
    parts = [*predicted("kernel 1"), *predicted("kernel 2")]
    other = read_trace(written(SPECIALISED, specialised_program, cores=64), SPECIALISED)
    found = with_trace(timeline(*parts), trace(specialised_trace(), other))
    names = [row.name for row in found.parts[3].lanes]
    assert "traced: 128 blocks on 64 cores" in names
    assert dict(found.facts)["steady iteration, loop of kernel 2"].startswith("predicted 0.8800 us")


def test_blocks_of_a_core_take_places() -> None:
    """Two at a time; a coarse clock makes some of them overlap their predecessors."""
    blocks = [
        BlockTime(number, 7, start, start + 10.0)
        for number, start in enumerate((0.0, 0.5, 10.0, 10.0, 19.8, 20.9))
    ]
    places = places_of(blocks)
    assert [core for core, _ in places] == [7, 7]
    assert sorted(block.block for row in places.values() for block in row) == list(range(6))
    assert [len(row) for row in places.values()] == [3, 3]


def test_the_typical_block_has_the_median_length() -> None:
    found = typical_block(specialised_trace())
    assert found is not None
    assert found.time.block not in (0, SPECIALISED.blocks - 1)


def test_a_page_and_a_trace_file_have_the_traced_rows() -> None:
    found = with_trace(timeline(), trace())
    page = timeline_page(found)
    assert page.subtitle == "Predicted; rows named 'traced' were measured"
    columns = page.tables["timeline-one-iteration"].columns
    assert "measured" in columns
    assert "traced: consumer 1" in html(page)
    events = json.loads(chrome_trace(found))["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "whole kernel: kernel: all blocks, traced" in processes
    iterations = [event for event in events if event["name"] == "iteration 17"]
    assert len(iterations) == 3
    assert all(event["cat"] == "measured" and event["dur"] > 0 for event in iterations)
