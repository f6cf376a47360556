"""What kernels of several devices of one host share: flags, barriers between ranks, and their arguments.

Every rank has flags in memory that its peers reach: one for each rank, which that rank raises, and the number
of the last barrier. Numbers only grow, so flags are never reset, and no call needs a number from its host. A
rank may be one barrier ahead of a peer, never two.

Flags are written with release and read with acquire of system scope. A barrier is a kernel of its own between
two others of a stream: the earlier one, with all that it sent, is over when a rank raises its flags, and the
later one starts when all ranks have raised theirs.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..problem.group_operator import ANNOUNCE_TILE, MEET, of_ranks
from ..problem.template import RANK, RunTimeNumber

Tensor = tuple[tuple[int, ...], str]  # shape and dtype

MOST_RANKS = 8  # tensors of all ranks are arguments of a kernel, one by one
FLAGS, ARRIVED = "flags", "arrived"  # of shared scratch: those of barriers, and of what peers send meanwhile
LANES = 32

RAISE_AND_WAIT = """
#ifndef TILESIGHT_FLAGS
#define TILESIGHT_FLAGS
__device__ __forceinline__ void raise_flag(int *flag, int number) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" : : "l"(flag), "r"(number) : "memory");
}
__device__ __forceinline__ int read_flag(const int *flag) {
  int found;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
  return found;
}
#endif
"""


def shape_of_flags(world: int) -> Tensor:
    """Shape and dtype of the flags of a rank."""
    return (world + 1,), "int32"


def chosen_pointer(name: str, index: str, world: int) -> str:
    """An expression of C++: that of the parameters `name_0`, `name_1`, ... whose number is `index`."""
    return (
        "".join(f"{index} == {rank} ? {name}_{rank} : " for rank in range(world - 1)) + f"{name}_{world - 1}"
    )


def pointer_parameters(name: str, world: int) -> str:
    """The parameters of a device function that take flags of all ranks."""
    return ", ".join(f"int *{name}_{rank}" for rank in range(world))


def barrier_function(world: int) -> str:
    """The text of `MEET`, which one warp calls on each rank: returns when all ranks have called it.

    Lane p raises this rank's flag at rank p, and waits for the flag of rank p here.
    """
    # each kernel of a function brings the text along
    return f"""
#ifndef TILESIGHT_{MEET.upper()}
#define TILESIGHT_{MEET.upper()}
{RAISE_AND_WAIT}
__device__ __forceinline__ void {MEET}(int rank, {pointer_parameters("flags", world)}) {{
  int *own = {chosen_pointer("flags", "rank", world)};
  const int lane = threadIdx.x;
  const int number = (int)((unsigned int)read_flag(own + {world}) + 1u);
  __syncwarp();
  if (lane < {world}) {{
    int *peer = {chosen_pointer("flags", "lane", world)};
    __threadfence_system();
    raise_flag(peer + rank, number);
    while ((int)((unsigned int)read_flag(own + lane) - (unsigned int)number) < 0) {{
    }}
  }}
  __syncwarp();
  if (lane == 0) {{
    raise_flag(own + {world}, number);
  }}
}}
#endif
"""


def announcement(world: int, number: int) -> str:
    """The text of `ANNOUNCE_TILE`, by which one thread raises one of `number` flags of its rank at a peer.

    What it has sent is complete. The flag gets the number of the last barrier.
    """
    parameters = f"{pointer_parameters('flags', world)}, {pointer_parameters('arrived', world)}"
    return f"""
#ifndef TILESIGHT_{ANNOUNCE_TILE.upper()}
#define TILESIGHT_{ANNOUNCE_TILE.upper()}
{RAISE_AND_WAIT}
__device__ __forceinline__ void {ANNOUNCE_TILE}(int rank, int peer, int tile, {parameters}) {{
  const int *own = {chosen_pointer("flags", "rank", world)};
  int *there = {chosen_pointer("arrived", "peer", world)};
  const int number = read_flag(own + {world});
  __threadfence_system();
  raise_flag(there + rank * {number} + tile, number);
}}
#endif
"""


def barrier_between_ranks(world: int) -> Any:
    """A function `meet(flags, rank)` for a PrimFunc: the launch of a kernel that waits for all ranks.

    `flags` are those of all ranks.
    """
    import tilelang.language as T  # noqa: N812

    @T.macro
    def meet(flags, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(1, threads=LANES):
            T.import_source(barrier_function(world))
            T.call_extern("handle", MEET, rank, *[T.access_ptr(one[0], "rw", world + 1) for one in flags])

    return meet


def kernel_of_ranks(
    name: str,
    arguments: Sequence[tuple[str, Tensor, bool]],
    world: int,
    body: Callable[..., None],
    more: Sequence[RunTimeNumber] = (),
) -> Any:
    """A PrimFunc that takes tensors of its rank, shared ones of all ranks, and its rank.

    TileLang's decorator makes parameters from those of a Python function, whose number is fixed.

    Args:
        name: of the function.
        arguments: name, shape and dtype of each tensor, and whether it is shared.
        world: number of ranks.
        body: called with the tensors, each shared one as a tuple of those of all ranks, and the rank. It
            calls macros that launch kernels.
        more: numbers that follow the rank and that no kernel reads.
    """
    import tilelang.language as T  # noqa: N812
    from tilelang.language.eager.builder import Builder

    builder = Builder()

    def tensor(key: str, of: Tensor) -> Any:
        return builder.arg(key, T.Tensor(*of))

    with builder.prim_func(name):
        tensors = [
            tuple(tensor(one, of) for one in of_ranks(key, world)) if shared else tensor(key, of)
            for key, of, shared in arguments
        ]
        rank = builder.arg(RANK.name, T.int32())
        for number in more:
            builder.arg(number.name, getattr(T, number.dtype)())
        body(*tensors, rank)
    return builder.get()


def as_kernel_of_ranks(prim_func: Any, order: Sequence[str | tuple[str, Tensor]]) -> Any:
    """A kernel of one device as a kernel of ranks, which takes further tensors and its rank and uses neither.

    Args:
        prim_func: a traced function.
        order: of its arguments: names of those that it has, and names with shape and dtype of further ones.
            Those that are not named follow.
    """
    import tilelang.language as T  # noqa: F401, N812
    from tvm import tirx

    buffers = dict(prim_func.buffer_map)
    known = {str(buffers[parameter].name): parameter for parameter in prim_func.params}
    parameters = []
    for one in order:
        if isinstance(one, str):
            parameters.append(known.pop(one))
            continue
        handle = tirx.Var(one[0], "handle")
        parameters.append(handle)
        buffers[handle] = tirx.decl_buffer(*one[1], one[0])
    parameters += [*known.values(), tirx.Var(RANK.name, RANK.dtype)]
    return tirx.PrimFunc(parameters, prim_func.body, prim_func.ret_type, buffers, prim_func.attrs)


def on_rank(rank: Any, tensors: Sequence[Any], act: Callable[[Any], Any]) -> None:
    """Does `act` with the tensor of `rank`, among those of all ranks. For a macro."""
    import tilelang.language as T  # noqa: N812

    @T.macro
    def choose(first):  # type: ignore[no-untyped-def]
        if first == len(tensors) - 1:
            act(tensors[first])
        else:
            if rank == first:
                act(tensors[first])
            else:
                choose(first + 1)

    choose(0)


def on_each(tensors: Sequence[Any], act: Callable[[Any], Any]) -> None:
    """Does `act` with the tensor of each rank. For a macro, which alone makes statements of calls."""
    import tilelang.language as T  # noqa: N812

    @T.macro
    def go_on(first):  # type: ignore[no-untyped-def]
        act(tensors[first])
        if first < len(tensors) - 1:
            go_on(first + 1)

    go_on(0)
