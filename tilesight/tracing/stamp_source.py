"""Writes stamps into the CUDA source of a kernel.

TileLang 0.1.15 has instrumentation of its own (`tilelang.tools.cuda.iket`), which is of no use here: its
events are marks that a kernel's author writes into the program by hand, and they are records for a profiler
of NVIDIA's that is no part of the CUDA toolkit, has to start the process itself, and alone decodes them.

A stamp is some seven instructions in a row, none of them a branch: a branch would keep the compiler from
moving loads past it. The first thread of each warp writes, the one that `elect.sync` chooses where the chip
has it, since a role of one thread is run by that one. All other threads, and all blocks that are not sampled,
execute the same instructions without the store. Cores count cycles; blocks also read the clock of the whole
chip at their begin and end, which is too slow and on some chips too coarse for iterations.

The compiler moves no access to memory past a clock that is read. Where nothing in a loop waits, it would
overlap iterations otherwise, as in a product of a matrix and a vector: such a loop has stamps before and
after it, and counts its iterations.

A producer has few registers (24, where TileLang splits a kernel), and a compiler that unrolls its loop takes
more of them. With stamps it would spill, so the loops of producers are not unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..builder.launch_plan import Argument, KernelLaunch, LaunchPlan
from ..errors import LaunchError
from . import layout
from .source_places import KernelPlaces, find_places
from .values import StampedKernel

PARAMETER, PLACE = "tilesight_trace", "tilesight_place"
_HEAD = f"""
static __device__ __forceinline__ void tilesight_now(unsigned &low, unsigned &high, unsigned &cycles) {{
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles));
  low = (unsigned)time, high = (unsigned)(time >> 32);
}}
static __device__ __forceinline__ unsigned tilesight_block() {{
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}}
static __device__ __forceinline__ unsigned tilesight_thread() {{
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}}
template <unsigned rows, unsigned warps, bool elects, unsigned stride, unsigned phase, unsigned first>
static __device__ __forceinline__ unsigned tilesight_begin(unsigned *trace) {{
  unsigned leads = tilesight_thread() % 32 == 0;
#if __CUDA_ARCH__ >= 900
  if (elects)
    asm volatile("{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }}" : "=r"(leads));
#endif
  if (!leads) return 0;
  const unsigned block = tilesight_block(), warp = tilesight_thread() / 32;
  if (warp == 0 && block < rows) {{
    unsigned low, high, cycles, core;
    tilesight_now(low, high, cycles);
    asm volatile("mov.u32 %0, %%smid;" : "=r"(core));
    reinterpret_cast<uint4 *>(trace)[block * (1 + warps)] = make_uint4(low, high, cycles, core);
  }}
  const bool sampled = block < rows && block % stride == phase;
  return sampled ? first + (block / stride * warps + warp) * {layout.RECORDS}u + 1u : {layout.RECORDS}u;
}}
template <unsigned rows, unsigned warps>
static __device__ __forceinline__ void tilesight_end(unsigned *trace, unsigned place) {{
  const unsigned block = tilesight_block();
  if (place && block < rows) {{
    unsigned low, high, cycles;
    tilesight_now(low, high, cycles);
    reinterpret_cast<uint4 *>(trace)[block * (1 + warps) + 1 + tilesight_thread() / 32] =
        make_uint4(low, high, cycles, place);
  }}
}}
static __device__ __forceinline__ void tilesight_stamp(unsigned *trace, unsigned &place, unsigned code) {{
  asm volatile("{{ .reg .pred p; .reg .u32 word; .reg .u64 to;\\n"
               "  and.b32 word, %0, {layout.RECORDS - 1}; setp.ne.u32 p, word, 0;\\n"
               "  mov.u32 word, %%clock; mad.lo.u32 word, word, {layout.CODES}, %2;\\n"
               "  mad.wide.u32 to, %0, 4, %1; @p st.global.u32 [to], word; @p add.u32 %0, %0, 1; }}"
               : "+r"(place) : "l"(trace), "r"(code));
}}
static __device__ __forceinline__ void tilesight_write(unsigned *trace, unsigned &place, unsigned word) {{
  if (place % {layout.RECORDS}u) trace[place++] = word;
}}
"""


def with_stamps(
    source: str, plan: LaunchPlan, grids: Sequence[tuple[int, int, int]]
) -> tuple[str, LaunchPlan, tuple[StampedKernel, ...]]:
    """The source of a function with stamps in all its kernels.

    Args:
        source: CUDA source, as TileLang generates it.
        plan: Its launches.
        grids: Blocks along x, y and z of each launch.

    Returns:
        The source, its plan, and the kernels in the order of their launches. The plan has one more tensor
        for each launch, after the others: 32-bit words that the launch writes to (`layout.words`).

    Raises:
        LaunchError: A function is launched several times, or is not in the source.
    """
    names = [launch.function for launch in plan.launches]
    if len(set(names)) < len(names):
        raise LaunchError("a kernel that is launched several times in one call cannot be traced")
    text = source.encode()
    kernels: list[StampedKernel] = []
    edits: dict[int, str] = {}
    found = [find_places(text, name) for name in names]
    for launch, grid, places in zip(plan.launches, grids, found, strict=True):
        x, y, z = launch.block
        kernel = StampedKernel(launch.function, grid, x * y * z, tuple(p.loop for p in places.loops))
        kernels.append(kernel)
        for at, added in _edits(places, kernel).items():
            edits[at] = edits.get(at, "") + added
    head = min(places.declared for places in found)
    launches = tuple(
        _traced(launch, plan.tensors, number, len(names)) for number, launch in enumerate(plan.launches)
    )
    stamped = replace(plan, tensors=plan.tensors + len(names), launches=launches)
    return _edited(text, edits, head), stamped, tuple(kernels)


def _traced(launch: KernelLaunch, tensors: int, number: int, count: int) -> KernelLaunch:
    """A launch with its memory as a further argument. Numbers of the caller follow all tensors, so they
    move."""

    def moved(argument: Argument) -> Argument:
        if argument.kind != "number":
            return argument
        assert isinstance(argument.index, int)  # the place of a number
        return replace(argument, index=argument.index + count)

    return replace(launch, arguments=(*map(moved, launch.arguments), Argument("tensor", tensors + number)))


def _edits(places: KernelPlaces, kernel: StampedKernel) -> dict[int, str]:
    """Texts to insert, by the byte before which they belong."""
    rows, warps = layout.rows(kernel), kernel.warps
    chosen = layout.sampled(kernel)
    elects = str(kernel.threads % 32 == 0).lower()
    begin = (
        f" unsigned {PLACE} = tilesight_begin<{rows}u, {warps}u, {elects}, {chosen.step}u, {chosen.start}u, "
        f"{layout.first_record(kernel)}u>({PARAMETER});"
    )
    end = f"tilesight_end<{rows}u, {warps}u>({PARAMETER}, {PLACE});"
    found: dict[int, str] = {}

    def insert(at: int, text: str, *, first: bool = False) -> None:
        found[at] = text + found.get(at, "") if first else found.get(at, "") + text

    for at, is_empty in places.parameters:
        insert(at, f"{'' if is_empty else ', '}unsigned *{PARAMETER}")
    counts = [_count(place.loop.number) for place in places.loops if place.loop.overlaps]
    insert(places.begin, begin + "".join(f" unsigned {name} = 0;" for name in counts))
    for place in places.loops:
        number, overlaps = place.loop.number, place.loop.overlaps
        if not place.is_braced:
            insert(place.start, "{ ")
        stamp = _stamp(layout.begin_code(number))
        if overlaps:
            insert(place.before, f"{stamp} ")
        if place.may_unroll:
            insert(place.start, "\n#pragma unroll 1\n")
        begins = f"++{_count(number)};" if overlaps else stamp
        insert(place.body, f" {begins}" if place.body_is_braced else f"{{ {begins} ")
    for place in reversed(places.loops):  # of loops that end together, the inner one first
        number = place.loop.number
        if not place.body_is_braced:
            insert(place.body_end, " }")
        ended = _stamp(layout.end_code(number))
        if place.loop.overlaps:
            ended += f" tilesight_write({PARAMETER}, {PLACE}, {_count(number)}); {_count(number)} = 0;"
        insert(place.end, f" {ended}{'' if place.is_braced else ' }'}")
    for start, stop in places.returns:
        insert(start, f"{{ {end} ")
        insert(stop, " }", first=True)
    insert(places.end, f"{end}\n")
    return found


def _count(loop: int) -> str:
    """The variable that counts the iterations of a loop."""
    return f"tilesight_count_{loop}"


def _stamp(code: int) -> str:
    return f"tilesight_stamp({PARAMETER}, {PLACE}, {code}u);"


def _edited(source: bytes, edits: Mapping[int, str], head: int) -> str:
    pieces, last = [], 0
    for at in sorted({*edits, head}):
        pieces.append(source[last:at].decode())
        if at == head:
            pieces.append(_HEAD)
        pieces.append(edits.get(at, ""))
        last = at
    pieces.append(source[last:].decode())
    return "".join(pieces)
