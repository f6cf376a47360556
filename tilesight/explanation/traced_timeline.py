"""Lays the rows of a traced launch under those of the predicted timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median

from ..records.timeline import Note, NoteKind, Span, SpanKind, Timeline, TimelinePart, TimelineRow, View
from ..reports.numbers import number
from ..tracing.compare_loops import PRODUCER, LoopComparison, compare_loops, kernel_name
from ..tracing.iterations import Basis, LoopTime, TracedRole, loop_times, roles_of, warp_of
from ..tracing.run_stamped import Trace
from ..tracing.values import BlockTime, BlockTrace, KernelTrace, LoopRun

TRACED = "traced: "  # begins the name of a traced row
CORES = 6  # whose blocks are shown one by one
MOST_SPANS = 60  # in one row
MOST_WAVES = 24
_SOURCE = (
    "Rows named 'traced' were measured: the kernel was built once more with time stamps in its code, and the "
    "first thread of each warp wrote them while it ran. All other rows are numbers of the analytical model; "
    "nothing is simulated."
)
_TRACED = (
    "Stamps do not show the launch: traced rows of the whole kernel begin where the predicted first blocks "
    "begin. Loops that are unrolled in the source have no iterations to stamp.",
    "A traced steady iteration is the median over the sampled blocks, without the iterations in which the "
    "pipeline fills and without the last one; each value is the mean of four iterations in a row, since "
    "buffers and unrolling make iterations differ in turn. Times of loops within it are not part of it. "
    "Where nothing in a loop waits, the compiler overlaps its iterations: the loop is stamped as a whole.",
)


def with_trace(timeline: Timeline, trace: Trace) -> Timeline:
    """The timeline of a kernel with the rows of a traced launch under the predicted ones."""
    compared = compare_loops(timeline, trace.kernels)
    parts = list(timeline.parts)
    details: list[TimelinePart] = []
    facts: list[tuple[str, str]] = []
    for position, kernel in enumerate(trace.kernels):
        name = kernel_name(position, len(trace.kernels))
        own = [one for one in compared if one.kernel == position]
        typical = typical_block(kernel)
        names = _loop_names(kernel, own)
        for index, part in enumerate(parts):
            if part.title.startswith(f"{name}: "):
                rows = _rows(part, kernel, own, typical, names)
                parts[index] = replace(part, lanes=(*part.lanes, *rows))
        facts += _kernel_facts(timeline, kernel, own, name, len(trace.kernels) > 1)
        details += _details(name, kernel, typical, names)
    return replace(
        timeline,
        parts=tuple(parts),
        facts=(*timeline.facts, *facts, *_facts(trace)),
        notes=(
            Note(NoteKind.SOURCE, _SOURCE),
            *(Note(NoteKind.TRACE, text) for text in _TRACED),
            *(Note(NoteKind.TRACE, f"{TRACED}{text}") for text in _cautions(trace)),
            *(note for note in timeline.notes if note.kind is not NoteKind.SOURCE),
        ),
        traced=True,
        details=tuple(details),
    )


def _loop_names(kernel: KernelTrace, compared: Sequence[LoopComparison]) -> dict[int, str]:
    """Names of loops as the prediction has them, and of the loops of a producer that feed them."""
    names = {one.traced.loop: one.name for one in compared}
    for timed in loop_times(kernel):
        fed = next((one for one in compared if _feeds(timed, one)), None)
        if fed is not None:
            names.setdefault(timed.loop, f"loads for {fed.name}")
    return names


def _feeds(timed: LoopTime, compared: LoopComparison) -> bool:
    """Whether it is the loop of a producer with as many iterations."""
    return timed.role.startswith(PRODUCER) and abs(timed.iterations - compared.traced.iterations) < 0.5


def typical_block(kernel: KernelTrace) -> BlockTrace | None:
    """The sampled block of median length; None if there is none."""
    by_length = sorted(kernel.sampled, key=lambda block: block.time.us)
    return by_length[len(by_length) // 2] if by_length else None


def _rows(
    part: TimelinePart,
    kernel: KernelTrace,
    compared: Sequence[LoopComparison],
    typical: BlockTrace | None,
    names: Mapping[int, str],
) -> list[TimelineRow]:
    if part.view is View.KERNEL:
        return list(_grid_rows(kernel, _first_work(part)))
    if part.view is View.BLOCK:
        return [] if typical is None else list(_block_rows(kernel, typical, names))
    return [row for one in compared if one.part.title == part.title for row in _iteration_rows(kernel, one)]


def _first_work(part: TimelinePart) -> float:
    """When the first blocks run, in the predicted part of a launch."""
    (row,) = part.summed
    return next((span.start_us for span in row.spans if span.kind is SpanKind.WORK), 0.0)


def _measured(name: str, start_us: float, end_us: float) -> Span:
    return Span(name, start_us, max(0.0, end_us - start_us), SpanKind.MEASURED)


# --- the whole launch ---


def _grid_rows(kernel: KernelTrace, offset_us: float) -> Iterator[TimelineRow]:
    places = places_of(kernel.blocks)
    cores = list(dict.fromkeys(core for core, _ in places))
    name = f"{TRACED}{len(kernel.blocks)} blocks on {len(cores)} cores"
    yield TimelineRow(
        name, (_measured("first block starts to last block ends", offset_us, offset_us + kernel.us),)
    )
    if waves := _waves(list(places.values()), offset_us):
        yield TimelineRow(f"{TRACED}waves of blocks, medians over the places on cores", waves)
    ends = {core: max(b.end_us for (c, _), row in places.items() if c == core for b in row) for core in cores}
    ordered = sorted(cores, key=lambda core: (ends[core], core))
    count = min(CORES, len(ordered))
    chosen = {ordered[i * (len(ordered) - 1) // max(1, count - 1)] for i in range(count)}
    for (core, place), blocks in places.items():
        if core in chosen:
            spans = _joined(blocks, offset_us) if len(blocks) > MOST_SPANS else _spans(blocks, offset_us)
            yield TimelineRow(f"{TRACED}core {core}, place {place + 1}", spans)


def places_of(blocks: Sequence[BlockTime]) -> dict[tuple[int, int], list[BlockTime]]:
    """The blocks of each place on a core, (core, place), one after another.

    A block takes the first place that is free, or that is free soonest: starts are less exact than lengths.
    """
    found: dict[tuple[int, int], list[BlockTime]] = {}
    by_core: dict[int, list[BlockTime]] = defaultdict(list)
    for block in blocks:
        by_core[block.core].append(block)
    for core, own in sorted(by_core.items()):
        rows: list[list[BlockTime]] = []
        most = _most_at_once(own)
        for block in sorted(own, key=lambda b: (b.start_us, b.block)):
            free = next((row for row in rows if row[-1].end_us <= block.start_us), None)
            if free is None and len(rows) < most:
                rows.append(free := [])
            (free if free is not None else min(rows, key=lambda row: row[-1].end_us)).append(block)
        found |= {(core, place): row for place, row in enumerate(rows)}
    return found


def _most_at_once(blocks: Sequence[BlockTime]) -> int:
    """How many blocks surely run together on a core: without the first and the last tenth of their time."""
    events = sorted(
        event
        for block in blocks
        for event in ((block.start_us + 0.1 * block.us, 1), (block.end_us - 0.1 * block.us, -1))
    )
    return max(1, *accumulate(change for _, change in events))


def _spans(blocks: Sequence[BlockTime], offset_us: float) -> tuple[Span, ...]:
    spans, until = [], 0.0
    for block in blocks:
        start = max(until, offset_us + block.start_us)
        spans.append(_measured(f"block {block.block}", start, offset_us + block.end_us))
        until = spans[-1].end_us
    return tuple(spans)


def _joined(blocks: Sequence[BlockTime], offset_us: float) -> tuple[Span, ...]:
    return (
        _measured(f"{len(blocks)} blocks", offset_us + blocks[0].start_us, offset_us + blocks[-1].end_us),
    )


def _waves(places: Sequence[Sequence[BlockTime]], offset_us: float) -> tuple[Span, ...]:
    """The first blocks of all places, the second ones, and so on; nothing if there are too many."""
    count = max(map(len, places))
    if count > MOST_WAVES:
        return ()
    spans, until = [], 0.0
    for wave in range(count):
        own = [row[wave] for row in places if len(row) > wave]
        start = max(until, offset_us + median(b.start_us for b in own))
        blocks = f"{len(own)} block{'' if len(own) == 1 else 's'}"
        spans.append(
            _measured(
                f"wave {wave + 1} of {count}: {blocks}", start, offset_us + median(b.end_us for b in own)
            )
        )
        until = spans[-1].end_us
    return tuple(spans)


# --- one block ---


def _block_rows(kernel: KernelTrace, block: BlockTrace, names: Mapping[int, str]) -> Iterator[TimelineRow]:
    begin, time = block.time.start_us, block.time
    title = f"block {time.block} on core {time.core}, of median length"
    yield TimelineRow(TRACED + title, (_measured("block", 0.0, time.us),))
    for role in roles_of(kernel):
        warp = warp_of(block, role)
        if warp is None:
            continue
        runs = _leaf_runs(kernel, warp.runs)
        runs = (
            runs
            if len(runs) <= MOST_SPANS
            else [r for r in warp.runs if kernel.kernel.loops[r.loop].outer is None]
        )
        spans: list[Span] = []
        until = 0.0
        for run in runs:
            start = run.starts[0] - begin
            spans.append(_measured("before the loop" if not spans else "between loops", until, start))
            end = run.starts[-1] - begin if run.end_us is None else run.end_us - begin
            spans.append(_measured(_run_name(run, names), start, end))
            until = end
        spans.append(_measured("after the loop" if runs else "block", until, warp.end_us - begin))
        yield TimelineRow(f"{TRACED}{role.name}", tuple(span for span in spans if span.us > 0))


def _leaf_runs(kernel: KernelTrace, runs: Sequence[LoopRun]) -> list[LoopRun]:
    """Runs of loops that have no stamped loop within them."""
    outer = {loop.outer for loop in kernel.kernel.loops}
    return [run for run in runs if run.loop not in outer and run.starts]


def _run_name(run: LoopRun, names: Mapping[int, str]) -> str:
    name = names.get(run.loop, f"loop {run.loop + 1} of the source")
    return f"{name}, {run.count} iterations"


# --- one iteration ---


def _iteration_rows(kernel: KernelTrace, compared: LoopComparison) -> Iterator[TimelineRow]:
    """The loop in each role that runs it, and the loop of a producer with as many iterations."""
    for timed in loop_times(kernel):
        if timed.loop == compared.traced.loop or _feeds(timed, compared):
            span = _measured(f"{timed.basis}, median", 0.0, timed.steady_us)
            yield TimelineRow(f"{TRACED}{timed.role}", (span,))


# --- everything, for tools that can scroll ---


def _details(
    name: str, kernel: KernelTrace, typical: BlockTrace | None, names: Mapping[int, str]
) -> Iterator[TimelinePart]:
    rows = [
        TimelineRow(f"core {core}, place {place + 1}", _spans(blocks, 0.0))
        for (core, place), blocks in places_of(kernel.blocks).items()
    ]
    yield TimelinePart(View.KERNEL, f"{name}: all blocks, traced", kernel.us, tuple(rows))
    if typical is None:
        return
    lanes = [lane for role in roles_of(kernel) for lane in _stamps(typical, role, names)]
    title = f"{name}: all iterations of block {typical.time.block}, traced"
    yield TimelinePart(View.BLOCK, title, typical.time.us, tuple(lanes))


def _stamps(block: BlockTrace, role: TracedRole, names: Mapping[int, str]) -> Iterator[TimelineRow]:
    warp = warp_of(block, role)
    for loop in role.loops if warp is not None else ():
        assert warp is not None
        spans = [
            _measured(
                f"iteration {index}" if run.count == len(run.starts) else "all",
                start - block.time.start_us,
                end - block.time.start_us,
            )
            for run in warp.runs
            if run.loop == loop
            for index, (start, end) in enumerate(run.spans)
        ]
        yield TimelineRow(f"{role.name}: {names.get(loop, f'loop {loop + 1} of the source')}", tuple(spans))


# --- facts ---


def _kernel_facts(
    timeline: Timeline, kernel: KernelTrace, compared: Sequence[LoopComparison], name: str, is_one_of: bool
) -> Iterator[tuple[str, str]]:
    of = f" of {name}" if is_one_of else ""
    for one in compared:
        what = "" if one.traced.basis is Basis.STEADY else f"; {one.traced.basis}"
        yield f"steady iteration, {one.name}{of}", _against(one.part.us, one.traced.steady_us) + what
    for part in timeline.of(View.BLOCK):
        if part.title.startswith(f"{name}: "):
            traced = median(block.us for block in kernel.blocks)
            yield f"block{of}", _against(part.us, traced) + f", median of {len(kernel.blocks)} blocks"
    yield f"blocks{of} from first start to last end, traced", f"{number(kernel.us)} us"
    yield f"clock of the cores{of}, traced", f"{number(kernel.clock_mhz)} MHz"


def _against(predicted_us: float, traced_us: float) -> str:
    error = f" ({100 * (predicted_us / traced_us - 1):+.1f} %)" if traced_us > 0 else ""
    return f"predicted {number(predicted_us)} us, traced {number(traced_us)} us{error}"


def _facts(trace: Trace) -> Iterator[tuple[str, str]]:
    plain, stamped = median(trace.plain_us), median(trace.stamped_us)
    yield "time without stamps, measured", f"{number(plain)} us"
    yield "time with stamps, measured", f"{number(stamped)} us ({100 * (stamped / plain - 1):+.1f} %)"
    device, driver = (trace.environment.get(key, "") for key in ("device", "driver"))
    yield "traced on", ", ".join(filter(None, (device, driver and f"driver {driver}", trace.date)))


def _cautions(trace: Trace) -> Iterator[str]:
    yield from trace.notes
    plain, stamped = (found.get("registers", 0) for found in (trace.plain, trace.stamped))
    if plain != stamped:
        yield f"a thread takes {stamped} registers with stamps, {plain} without: fewer blocks may fit a core."
    plain, stamped = (found.get("spill_bytes", 0) for found in (trace.plain, trace.stamped))
    if stamped > plain:
        yield f"with stamps a thread spills registers: {stamped} bytes, without them {plain}."
    for kernel in trace.kernels:
        name = kernel.kernel.function
        if kernel.is_cut:
            yield f"{name} has more iterations than room for stamps: the first ones are shown."
        if len(kernel.blocks) < kernel.kernel.blocks:
            yield f"{name}: times of the first {len(kernel.blocks)} of all {kernel.kernel.blocks} blocks."
        if not kernel.kernel.loops:
            yield f"{name} has no loop in its source that is not unrolled: there are no iterations."
        if kernel.timer_ns > 100:
            yield (
                f"{name}: the clock of the chip advances in steps of {number(kernel.timer_ns)} ns, so starts "
                "of blocks are no more exact than that; lengths are those of the cores' clocks."
            )
