"""Sums of parts of k that the blocks of a cluster add on Hopper, in place of a second kernel.

Each block of a cluster has the sums of one part, for the same tile of C. It writes them to its shared memory,
where its stages were. When all blocks have done so, each one finishes an even share of the tile's rows: it
reads their sums of all parts in order, so that results do not depend on which block came first.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from typing import Any

from ..search_spaces.cluster_sums import TOGETHER, row_elements

ADD = "add_parts"


def device_function(parts: int, dtype: str) -> str:
    """The text of `ADD`: sums of `parts` blocks of neighbours at one place of each block's shared memory.

    TileLang can write to another block's shared memory, but not read it.

    Args:
        parts: blocks of a cluster.
        dtype: float32 or int32.
    """
    name, kind, register = ("int", "s32", "r") if dtype == "int32" else ("float", "f32", "f")
    found = ", ".join(f'"={register}"(found[rank].{side})' for side in "xyzw")
    added = "\n".join(f"    sums[{v}] += found[rank].{side};" for v, side in enumerate("xyzw"))
    return f"""
__device__ __forceinline__ void {ADD}({name} *sums, const {name} *own) {{
  {name}4 found[{parts}];
#pragma unroll
  for (int rank = 0; rank < {parts}; ++rank) {{
    asm volatile("{{\\n\\t"
                 ".reg .b32 place;\\n\\t"
                 "mapa.shared::cluster.u32 place, %4, %5;\\n\\t"
                 "ld.shared::cluster.v4.{kind} {{%0, %1, %2, %3}}, [place];\\n\\t"
                 "}}"
                 : {found}
                 : "r"((unsigned int)__cvta_generic_to_shared(own)), "r"(rank)
                 : "memory");
  }}
#pragma unroll
  for (int rank = 0; rank < {parts}; ++rank) {{
{added}
  }}
}}
"""


def added_in_cluster(
    rows: int,
    columns: int,
    parts: int,
    dtype: str,
    swapped: bool,
    threads: int,
    write: Callable[..., Any],
) -> Any:
    """A macro `(where, c_sum, part)` that adds the sums of a tile's parts and hands over what it has added.

    Args:
        rows: of the tile of C.
        columns: of the tile of C.
        parts: blocks of a cluster, which divide `rows`. Their ranks are the numbers of the parts.
        dtype: of the sums that are added.
        swapped: whether `c_sum` is a tile of C^T.
        threads: that compute.
        write: a macro `(where, row, col, sums, first)` that takes `TOGETHER` neighbours in a row of the tile,
            which are those of `sums` from `first` on.
    """
    import tilelang.language as T  # noqa: N812

    share, per_row = rows // parts, columns // TOGETHER
    turns = -(-share * per_row // threads)
    is_even = share * per_row % threads == 0

    @T.macro
    def add(where, c_sum, part):  # type: ignore[no-untyped-def]
        own = T.alloc_shared((rows, row_elements(columns, swapped)), dtype)
        sums = T.alloc_local((turns * TOGETHER,), dtype)
        # threads that only copy come before or after those that compute
        thread = T.get_thread_binding() % threads
        for i, j in T.Parallel(*c_sum.shape):
            if swapped:
                own[j, i] = T.cast(c_sum[i, j], dtype)
            else:
                own[i, j] = T.cast(c_sum[i, j], dtype)
        T.sync_threads()
        T.cluster_sync()  # all parts are there
        for element in T.unroll(turns * TOGETHER):
            sums[element] = 0
        for turn in T.unroll(turns):
            at = turn * threads + thread
            if is_even or at < share * per_row:
                row, col = part * share + at // per_row, at % per_row * TOGETHER
                T.call_extern(
                    "handle",
                    ADD,
                    T.access_ptr(sums[turn * TOGETHER], "rw", TOGETHER),
                    T.access_ptr(own[row, col], "r", TOGETHER),
                )
        # all lanes of a warp arrive together, also those that had nothing to read or to store
        T.sync_warp()
        # a block leaves when all have read its sums; what they store meanwhile is not waited for
        T.cluster_arrive()
        for turn in T.unroll(turns):
            at = turn * threads + thread
            if is_even or at < share * per_row:
                row, col = part * share + at // per_row, at % per_row * TOGETHER
                write(where, row, col, sums, turn * TOGETHER)
        T.sync_warp()
        T.cluster_wait()

    return add
