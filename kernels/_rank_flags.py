"""Flags with which blocks of a kernel say to other ranks that what they have sent is there.

A block sends a tile to its owner and raises a flag there, with a number that grows from call to call. Blocks
of the owner wait for the flags of all ranks. Numbers of calls are counted beside the flags, so that no host
has to give them and no flag is reset. Blocks that wait must leave cores to those that do not, on each rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..problem.group_operator import ANNOUNCE_RESULT, AWAIT_ALL, AWAIT_RESULTS
from ._ranks import RAISE_AND_WAIT, Tensor, chosen_pointer, pointer_parameters

NUMBER = "number_of_call"
WAITING = 64  # blocks of a kernel that wait, at most


@dataclass(frozen=True)
class TileFlags:
    """The flags of one kernel.

    Attributes:
        world: number of ranks.
        tiles: of one owner, from each rank.
        readers: waits that are counted apart: one for each tile, or one for each block that waits for all.
    """

    world: int
    tiles: int
    readers: int

    @property
    def tensor(self) -> Tensor:
        """Of an owner: numbers that ranks raise for its tiles, then calls of tiles sent and of readers."""
        return (2 * self.world * self.tiles + self.readers,), "int32"

    def functions(self) -> str:
        """The text of the device functions that all threads of a block call.

        `NUMBER` gives the number of this call from that of the call before. `ANNOUNCE_RESULT` says to an
        owner that what the block has stored is there. `AWAIT_RESULTS` waits until all ranks have said so of a
        tile, and `AWAIT_ALL` of all tiles. All three then count the call.
        """
        world, tiles = self.world, self.tiles
        flags = pointer_parameters("flags", world)

        def chosen(index: str) -> str:
            return chosen_pointer("flags", index, world)

        # each kernel of a function brings the text along, and all must have the same one
        guard = f"TILESIGHT_FLAGS_OF_{tiles}_TILES"
        return f"""
#ifndef {guard}
#define {guard}
{RAISE_AND_WAIT}
__device__ __forceinline__ int {NUMBER}(int rank, int count, {flags}) {{
  const int *own = {chosen("rank")};
  return (int)((unsigned int)*(const volatile int *)(own + count) + 1u);
}}
__device__ __forceinline__ void {ANNOUNCE_RESULT}(int rank, int owner, int tile, int number, {flags}) {{
  __syncthreads();
  if (threadIdx.x == 0) {{
    int *peer = {chosen("owner")};
    int *own = {chosen("rank")};
    __threadfence_system();
    raise_flag(peer + rank * {tiles} + tile, number);
    own[({world} + owner) * {tiles} + tile] = number;
  }}
}}
__device__ __forceinline__ void {AWAIT_RESULTS}(int rank, int tile, int number, {flags}) {{
  int *own = {chosen("rank")};
  if (threadIdx.x < {world}) {{
    const int *flag = own + threadIdx.x * {tiles} + tile;
    while ((int)((unsigned int)read_flag(flag) - (unsigned int)number) < 0) {{
    }}
  }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    own[{2 * world * tiles} + tile] = number;
  }}
}}
__device__ __forceinline__ void {AWAIT_ALL}(int rank, int reader, int number, {flags}) {{
  int *own = {chosen("rank")};
  for (int at = threadIdx.x; at < {world * tiles}; at += blockDim.x) {{
    while ((int)((unsigned int)read_flag(own + at) - (unsigned int)number) < 0) {{
    }}
  }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    own[{2 * world * tiles} + reader] = number;
  }}
}}
#endif
"""

    def number_of_sent(self, flags: Sequence[Any], rank: Any, owner: Any, tile: Any) -> Any:
        """The number of this call, for a block that sends a tile."""
        return self._call("int32", NUMBER, flags, rank, (self.world + owner) * self.tiles + tile)

    def number_of_read(self, flags: Sequence[Any], rank: Any, reader: Any) -> Any:
        """The number of this call, for a block that waits."""
        return self._call("int32", NUMBER, flags, rank, 2 * self.world * self.tiles + reader)

    def raise_tile(self, flags: Sequence[Any], rank: Any, owner: Any, tile: Any, number: Any) -> Any:
        return self._call("handle", ANNOUNCE_RESULT, flags, rank, owner, tile, number)

    def await_tile(self, flags: Sequence[Any], rank: Any, tile: Any, number: Any) -> Any:
        return self._call("handle", AWAIT_RESULTS, flags, rank, tile, number)

    def await_all(self, flags: Sequence[Any], rank: Any, reader: Any, number: Any) -> Any:
        return self._call("handle", AWAIT_ALL, flags, rank, reader, number)

    def _call(self, kind: str, name: str, flags: Sequence[Any], *values: Any) -> Any:
        import tilelang.language as T  # noqa: N812

        size = self.tensor[0][0]
        return T.call_extern(kind, name, *values, *[T.access_ptr(one[0], "rw", size) for one in flags])
