"""The numbers of the analytical model as a timeline: one iteration, one block, and the whole launch.

Nothing is simulated. Rows that add up are those sums from which the model makes its latency, in the order in
which a kernel does these things. Rows of units show how long a unit is busy; when it is, the model does not
state, so their spans begin with the span that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...profile.values import Phase, Role
from ...records.timeline import Span, SpanKind, TimelinePart, TimelineRow, View, in_turn
from ...records.trial import Prediction
from .demand import RESOURCES
from .kernel_terms import KernelTerms
from .network import NETWORK
from .pipeline import PhaseTime, iterations_in_flight
from .schedule import last_place

UNITS = {
    "matrix": "matrix pipe",
    "shared": "shared memory",
    "vector": "arithmetic lanes",
    "special": "special function unit",
    "issue": "warp schedulers",
    "copy": "copy engine (TMA)",
    "l2": "L2, share of the core",
    "cluster": "network of the cluster",
}
SHARED_UNITS = {
    "dram": "device memory",
    "l2": "L2",
    "llc": "last-level cache",
    "atomics": "atomics at one address",
    "dispatch": "dispatch of blocks",
}
MOST_WAVES = 24  # that are drawn one by one
MOST_BLOCKS = 60

Timed = tuple[Role, Phase, PhaseTime]
Step = tuple[str, float, SpanKind]


def kernel_parts(name: str, prediction: Prediction, terms: KernelTerms | None) -> list[TimelinePart]:
    """The parts of one kernel. `terms`: None for a kernel that only waits for the network."""
    if terms is None:
        return [_network_part(name, prediction)]
    cycles = 1 / terms.times.clock_mhz
    return [
        _launch(name, prediction, terms),
        _block(name, terms, cycles),
        *_iterations(name, terms, cycles),
    ]


def one_after_another(predictions: Sequence[Prediction]) -> list[TimelinePart]:
    """The kernels of a function, one after another."""
    steps = [
        (f"kernel {number}", prediction.latency_us, SpanKind.WORK)
        for number, prediction in enumerate(predictions, 1)
    ]
    lane = TimelineRow("kernels", in_turn(steps), adds_up=True)
    return [TimelinePart(View.KERNEL, "all kernels", sum(p.latency_us for p in predictions), (lane,))]


def _network_part(name: str, prediction: Prediction) -> TimelinePart:
    terms = prediction.terms_us
    steps = [
        ("launch", terms.get("launch", 0.0), SpanKind.WAIT),
        ("first blocks start", terms.get("fill", 0.0), SpanKind.WAIT),
        ("network", terms[NETWORK], SpanKind.WORK),
    ]
    lane = TimelineRow("launch", in_turn(steps), adds_up=True)
    return TimelinePart(View.KERNEL, f"{name}: launch", prediction.latency_us, (lane,))


# --- the whole launch ---


def _launch(name: str, prediction: Prediction, terms: KernelTerms) -> TimelinePart:
    times = terms.times
    launch = prediction.terms_us["launch"]  # of a kernel behind another one it is a share of `times.launch`
    body, tail = times.core - times.tail, times.tail
    blocks = list(_blocks(terms, body))
    last = f"last wave: {_count(terms.tail()[0], 'block')}"
    held_up = _held_up_by(terms)
    steps: list[Step] = [
        ("launch", launch, SpanKind.WAIT),
        ("first blocks start", times.fill, SpanKind.WAIT),
        *blocks,
        (held_up, times.body - body, SpanKind.WAIT),
        (last, tail, SpanKind.WORK),
        (f"last wave: {held_up}", times.last_wave - tail, SpanKind.WAIT),
        ("waits for the network", times.sending, SpanKind.WAIT),
        ("last bytes arrive at other devices", times.arrival, SpanKind.WAIT),
    ]
    start = launch + times.fill
    # a resource that is a term of the prediction has its time: `explain` and reports show the same number.
    # `times.shared` counts L2 in another way, see `LaunchTimes`
    busy_us = {unit: prediction.terms_us.get(unit, us) for unit, us in times.shared.items()}
    shown = "waves of blocks" if terms.is_uniform else "blocks of the busiest place on a core"
    lanes = [TimelineRow(f"launch and {shown}", in_turn(steps), adds_up=True)]
    lanes += [
        TimelineRow(SHARED_UNITS[unit], (Span("busy", start, us),)) for unit, us in busy_us.items() if us > 0
    ]
    if sent_us := terms.network.sent_us:
        lanes.append(TimelineRow(NETWORK, (Span("bytes for other devices", start, sent_us),)))
    lanes += [
        TimelineRow(
            f"{UNITS[unit]}, mean of the cores",
            (Span("busy", start, prediction.terms_us[unit]),),
        )
        for unit in RESOURCES
        if prediction.terms_us[unit] > 0 and unit != "l2"
    ]
    return TimelinePart(View.KERNEL, f"{name}: launch", prediction.latency_us, tuple(lanes))


def _held_up_by(terms: KernelTerms) -> str:
    shared = terms.times.shared
    most = max(shared, key=lambda unit: shared[unit])
    return f"held up by what all cores share, mostly {SHARED_UNITS[most]}"


def _stretch(terms: KernelTerms) -> float:
    """How much longer blocks take than their core needs, because of what all cores share; at least 1."""
    times = terms.times
    return max(1.0, (times.body + times.last_wave) / times.core) if times.core > 0 else 1.0


def _blocks(terms: KernelTerms, body_us: float) -> Iterator[Step]:
    """The blocks before the last wave: waves, or those of the place of a core that is busy longest."""
    clock = terms.times.clock_mhz
    if not terms.is_uniform:
        chosen = last_place(terms.durations(), terms.cores * terms.resident)
        if len(chosen) <= MOST_BLOCKS:
            yield from ((f"block {position}", cycles / clock, SpanKind.WORK) for position, cycles in chosen)
        else:
            yield f"{len(chosen)} blocks of different length", body_us, SpanKind.WORK
        return
    places = terms.cores * terms.resident
    full = terms.profile.blocks // places
    if not full:
        yield f"wave 1 of 1: {_count(terms.profile.blocks, 'block')}", body_us, SpanKind.WORK
    elif full <= MOST_WAVES:
        count = full + bool(terms.profile.blocks % places)
        for wave in range(1, full + 1):
            yield f"wave {wave} of {count}: {_count(places, 'block')}", body_us / full, SpanKind.WORK
    else:
        yield f"{full} waves of {_count(places, 'block')}", body_us, SpanKind.WORK


# --- one block ---


def _block(name: str, terms: KernelTerms, cycles: float) -> TimelinePart:
    """The life of a block of mean length, beside the others on its core."""
    timed, resident = terms.together, terms.resident
    names = _phase_names(terms, timed)
    steps: list[Step] = [
        ("start and end of the block", terms.constants.block_cycles / resident * cycles, SpanKind.WAIT)
    ]
    spans: list[tuple[str, Timed, Span]] = []
    at = steps[0][1]
    for phase_name, item in zip(names, timed, strict=True):
        _, phase, time = item
        fill, us = time.fill / resident * cycles, time.period * phase.trips.mean * cycles
        steps += [(f"{phase_name}: first loads arrive", fill, SpanKind.WAIT)]
        steps += [(phase_name, us, SpanKind.WORK)]
        spans.append((phase_name, item, Span(_in_trips(phase_name, phase), at + fill, us)))
        drain = time.drain / resident * cycles
        steps += [(f"{phase_name}: its last group of warps ends", drain, SpanKind.WAIT)]
        at += fill + us + drain
    total = at
    if terms.is_uniform:
        total = terms.block_cycles(resident) * cycles
        steps.append(("its own dependency chains take longer", total - at, SpanKind.WAIT))
    held_up_us = total * (_stretch(terms) - 1)
    steps.append((_held_up_by(terms), held_up_us, SpanKind.WAIT))
    lanes = [TimelineRow("block", in_turn(steps), adds_up=True), *_role_lanes(terms, spans)]
    for unit in RESOURCES:
        lanes += _lane_of(
            UNITS[unit],
            [
                (phase_name, span, getattr(time.demand, unit) * phase.trips.mean * resident * cycles)
                for phase_name, (_, phase, time), span in spans
            ],
        )
    others = f", one of {resident} on a core" if resident > 1 else ", alone on its core"
    return TimelinePart(View.BLOCK, f"{name}: block{others}", total + held_up_us, tuple(lanes))


def _role_lanes(terms: KernelTerms, spans: Sequence[tuple[str, Timed, Span]]) -> list[TimelineRow]:
    """The program of each role. A producer runs beside the phases that it feeds."""
    lanes: dict[str, list[Span]] = {}
    for phase_name, (role, phase, _), span in spans:
        feeding = terms.pipeline.parts(role, phase, terms.resident).feeding
        if feeding is not None:
            lanes.setdefault("producer", []).append(Span(f"loads for {phase_name}", span.start_us, span.us))
        lane = "epilogue" if phase_name.endswith("epilogue") else _role_name(terms, role)
        lanes.setdefault(lane, []).append(span)
    order = sorted(lanes, key=lambda lane: (lane != "producer", lane == "epilogue"))
    return [TimelineRow(lane, tuple(lanes[lane])) for lane in order]


def _lane_of(lane: str, busy: Sequence[tuple[str, Span, float]]) -> list[TimelineRow]:
    """The spans in which a unit is busy, each from the start of its phase, or when it is free again."""
    spans, free = [], 0.0
    for phase_name, phase, us in busy:
        if us > 0:
            spans.append(Span(f"busy for {phase_name}", max(free, phase.start_us), us))
            free = spans[-1].end_us
    return [TimelineRow(lane, tuple(spans))] if spans else []


def _role_name(terms: KernelTerms, role: Role) -> str:
    alike = [r for r in terms.profile.roles if r.name == role.name]
    name = "all threads" if role.name == "all" else role.name
    return name if len(alike) == 1 else f"{name} {1 + next(i for i, r in enumerate(alike) if r is role)}"


def _phase_names(terms: KernelTerms, timed: Sequence[Timed]) -> list[str]:
    """Unique names: loops by number, straight code by its place before, between or after them."""
    names = []
    for role, phase, _ in timed:
        loops = [i for i, p in enumerate(role.phases) if p.is_loop]
        place = next(i for i, p in enumerate(role.phases) if p is phase)
        if phase.is_loop:
            name = "loop" if len(loops) == 1 else f"loop {1 + loops.index(place)}"
        elif not loops:
            name = "straight code" if len(role.phases) == 1 else f"straight code {place + 1}"
        elif place < loops[0]:
            name = "prologue"
        else:
            name = (
                "epilogue" if place > loops[-1] else f"code before loop {1 + sum(i < place for i in loops)}"
            )
        owner = _role_name(terms, role)
        is_alone = len(terms.profile.roles) == 1 or owner == "consumer"
        names.append(name if is_alone else f"{name} of {owner}")
    return names


def _in_trips(name: str, phase: Phase) -> str:
    return f"{name}, {phase.trips.mean:g} iterations" if phase.is_loop else name


# --- one iteration ---


def _iterations(name: str, terms: KernelTerms, cycles: float) -> Iterator[TimelinePart]:
    """A steady iteration of each loop; the straight code of a kernel without loops."""
    timed = terms.together
    found = list(zip(_phase_names(terms, timed), timed, strict=True))
    for phase_name, item in [each for each in found if each[1][1].is_loop] or found:
        yield _iteration(f"{name}: {phase_name}", terms, item, cycles)


def _iteration(title: str, terms: KernelTerms, item: Timed, cycles: float) -> TimelinePart:
    """What a group of warps does and waits for until its next iteration, and how long the units are busy."""
    role, phase, time = item
    parts, resident = terms.pipeline.parts(role, phase, terms.resident), terms.resident
    flow, period = parts.flow, parts.period(resident, terms.constants.overlap_norm)
    # loops of several consumers run beside each other: the model shortens them alike
    scale = time.period / period * cycles if period else 0.0
    rest = flow.thinking - flow.latency
    hidden = max(0.0, -rest)  # arithmetic beside matrix work that is left in flight
    steps = [
        ("matrix instructions", flow.service[0], SpanKind.WORK),
        (
            "arithmetic" + (", beyond that beside matrix work" if hidden else ""),
            flow.service[1] - hidden,
            SpanKind.WORK,
        ),
        ("accesses to shared memory", flow.service[2], SpanKind.WORK),
        ("arrivals at barriers", flow.service[3], SpanKind.WAIT),
        ("latencies of instructions and barriers", max(0.0, rest), SpanKind.WAIT),
        ("waits for memory", flow.latency, SpanKind.WAIT),
        ("queues for units", parts.together - flow.chain, SpanKind.WAIT),
        ("waits for loaded data", max(0.0, parts.supply - parts.together), SpanKind.WAIT),
        (
            f"waits for other units, mostly {UNITS[parts.need.largest[0]]}",
            period - parts.spills - max(parts.together, parts.supply),
            SpanKind.WAIT,
        ),
        ("spills registers", parts.spills, SpanKind.WORK),
    ]
    us = time.period * cycles
    held_up_us = us * (_stretch(terms) - 1)
    groups = max(1, -int(-flow.groups * resident // 1))
    of = f", one of {groups} groups of warps" if groups > 1 else ", the only group of warps"
    lanes = [
        TimelineRow(
            f"{_role_name(terms, role)}{of}",
            in_turn(
                [
                    *((n, c * scale, kind) for n, c, kind in steps),
                    (_held_up_by(terms), held_up_us, SpanKind.WAIT),
                ]
            ),
            adds_up=True,
        )
    ]
    if phase.is_loop:
        lanes += _copy_lanes(terms, parts.feeding or phase, phase, cycles)
    for unit in RESOURCES:
        busy = getattr(parts.need, unit) * resident * cycles
        if busy > 0:
            lanes.append(TimelineRow(UNITS[unit], (Span("busy", 0.0, busy),)))
    trips = phase.trips.mean if phase.is_loop else 0.0
    return TimelinePart(View.ITERATION, title, us + held_up_us, tuple(lanes), trips)


def _copy_lanes(terms: KernelTerms, loading: Phase, consumer: Phase, cycles: float) -> Iterator[TimelineRow]:
    """Copies from their issue to their arrival, which may take longer than an iteration."""
    by = "threads" if loading is consumer else "producer"
    pipeline = terms.pipeline
    for number, (arrival, slots) in enumerate(pipeline.copies(loading, consumer), 1):
        name = f"{by}: bulk copy {number} in flight, {_count(slots, 'buffer')}"
        yield TimelineRow(name, (Span("from issue to arrival", 0.0, arrival * cycles, SpanKind.WAIT),))
    if arrival := pipeline.grouped_arrival(loading):
        together = _count(iterations_in_flight(loading), "iteration")
        name = f"{by}: group of copies in flight, of {together} together"
        yield TimelineRow(name, (Span("from issue to arrival", 0.0, arrival * cycles, SpanKind.WAIT),))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
