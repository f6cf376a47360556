"""Operators on the rows of x[m, n], and how the threads of a block hold rows: what their kernels share.

`reduce_threads` neighbouring threads (lanes) have a row; the block has `threads / reduce_threads` rows at a
time. A lane has vectors of neighbouring elements, and vectors of neighbouring lanes are neighbours: together
they are a step. A trip loads as many steps at once as a thread keeps, before it uses the first. A kernel
sweeps over its rows twice; in between a row is in registers (then it is one trip), in shared memory, in both
(the first `unroll` steps in registers), or in device memory (read twice, the second time from L2 if it is
still there).

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.operator import Operator, Tensors
from ..problem.space import Config, SearchSpace
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import row_reduction
from ..target.spec import Target

if TYPE_CHECKING:
    import torch

PANEL = 1 << 26  # most elements that a reference converts to float32 at once
LOG2_E = 1.4426950408889634
LOWEST = -3.4028234663852886e38  # of float32. Minus infinity minus itself would be no number
WAITS = 4  # parts of a row that are used as soon as they have come


class RowOperator(Operator):
    """An operator on each row of x[m, n]."""

    dims = ("m", "n")

    def validate(self, workload: Workload) -> None:
        m, n = workload.dims["m"], workload.dims["n"]
        if m * n > MAX_DIMENSION:
            raise WorkloadError(
                f"{self.name}: a tensor would have m*n={m * n} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; split the rows"
            )


class RowTemplate(KernelTemplate):
    """A template whose blocks have whole rows, with the search space of all of these.

    Attributes:
        weights: number of inputs of n elements that all rows share.
        sweeps: how often a kernel uses each element; after one, no row is kept.
        splits: whether a kernel can keep the first steps of a row in registers and the rest in shared memory.
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # n changes the code, since a whole row is in registers or shared memory
    scales: ClassVar[Mapping[str, Scale]] = {"m": Scale(("block_m",), row_reduction.ROWS)}
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "n": "registers or shared memory hold a whole row of n elements"
    }
    weights: ClassVar[int] = 0
    sweeps: ClassVar[int] = 2
    splits: ClassVar[bool] = False

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return row_reduction.row_space(
            target,
            workload.dims["m"],
            workload.dims["n"],
            DTYPE_BYTES[workload.dtype],
            weights=self.weights,
            tensors=2 if has_residual(workload) else 1,
            sweeps=self.sweeps,
            reduced=self.reduced(workload),
            splits=self.splits,
        )

    def reduced(self, workload: Workload) -> int:
        """Elements of a row that are reduced together."""
        return workload.dims["n"]

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Rows in registers, 256 threads per long row, 32 or 16 per short one; else the nearest config.

        Rows of a vocabulary have 1024 threads, which keep what shared memory has no room for; else L2 holds
        those that are at work.
        """
        space, n = self.space(workload, target), self.reduced(workload)
        lanes = 1024 if n > 65536 else 256 if n >= 2048 else 32 if n > 128 else 16
        wanted = Config(
            {
                "block_m": max(1, 256 // lanes),
                "threads": max(256, lanes),
                "reduce_threads": lanes,
                "vector": 8,
                "keep": "registers",
                "unroll": 1,
            }
        )
        steps = (*row_reduction.LOADS, *row_reduction.REGISTER_STEPS)  # the fewest that leave enough
        kept = (Config({**wanted, "keep": "both", "unroll": count}) for count in steps)
        return next((config for config in kept if config in space), None) or space.closest(wanted)


class RowTiles:
    """The rows of a block, for a config of `row_reduction.row_space`.

    Attributes:
        rows: rows of the block.
        lanes: threads that share a row.
        vector: neighbouring elements of a lane.
        step: elements of a row that its lanes have at a time.
        together: steps that a thread has at once.
        trips: passes over `together` steps that a row takes.
        part: shape of the fragment that holds `together` steps of all rows.
        kept: shape of the rows in shared memory; of one element if they are not there.
    """

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.rows, self.threads = n, config.int("block_m"), config.int("threads")
        self.lanes, self.vector = config.int("reduce_threads"), config.int("vector")
        self.keep = config.str("keep")
        self.groups, self.step = self.threads // self.lanes, self.lanes * self.vector
        steps = -(-n // self.step)
        self.together = {"registers": steps, "shared": 1}.get(self.keep, config.int("unroll"))
        self.trips = -(-steps // self.together)
        self.is_whole = self.trips * self.together * self.step == n
        self.part = (self.together, self.rows, self.step)
        self.kept = (self.rows, steps * self.step) if self.keep == "shared" else (1, 1)

    @classmethod
    def by_place(cls, config: Config, n: int) -> "tuple[RowTiles, RowTiles | None]":
        """The rows of a block, and what of them is kept elsewhere: with keep=both, in shared memory."""
        if config.str("keep") != "both":
            return cls(config, n), None
        first = config.int("unroll") * config.int("reduce_threads") * config.int("vector")
        places = (("registers", first), ("shared", n - first))
        near, far = (cls(Config({**config, "keep": keep}), length) for keep, length in places)
        return near, far

    # layouts of fragments: (thread, register) of each element

    def part_layout(self) -> Any:
        import tilelang.language as T  # noqa: N812

        groups, lanes, vector, each = self.groups, self.lanes, self.vector, self.rows // self.groups

        def place(u: Any, i: Any, j: Any) -> tuple[Any, Any]:
            return i % groups * lanes + j // vector, (u * each + i // groups) * vector + j % vector

        return T.Fragment(self.part, forward_fn=place)

    def weight_layout(self) -> Any:
        """Of what all rows share: (together, step), the same in each group of lanes."""
        import tilelang.language as T  # noqa: N812

        lanes, vector = self.lanes, self.vector

        def place(u: Any, j: Any, group: Any = 0) -> tuple[Any, Any]:
            return group * lanes + j // vector, u * vector + j % vector

        return T.Fragment((self.together, self.step), forward_fn=place, replicate=self.groups)

    def lane_layout(self) -> Any:
        """Of one number for each row and lane: (rows, lanes)."""
        import tilelang.language as T  # noqa: N812

        groups, lanes = self.groups, self.lanes

        def place(i: Any, lane: Any) -> tuple[Any, Any]:
            return i % groups * lanes + lane, i // groups

        return T.Fragment((self.rows, self.lanes), forward_fn=place)

    # what a kernel does with them

    def loader(self) -> Any:
        """A macro (x, part, row, trip, first) that loads a trip of the rows from x[row, first] on.

        Elements beyond an edge are read as zeros.
        """
        import tilelang.language as T  # noqa: N812

        rows, step, together = self.rows, self.step, self.together

        @T.macro
        def load(x: T.Buffer, part: T.Buffer, row: Any, trip: Any, first: Any = 0):  # type: ignore[no-untyped-def]
            # all loads precede their first use, so that they are in flight together
            for u in T.unroll(together):
                col = first + (trip * together + u) * step
                T.copy(x[row : row + rows, col : col + step], part[u, :, :])

        return load

    def reader(self) -> Any:
        """A macro (x, kept, part, row, trip, first) as `loader`, or from shared memory if rows are there."""
        import tilelang.language as T  # noqa: N812

        step, load, is_kept = self.step, self.loader(), self.keep == "shared"

        @T.macro
        def read(  # type: ignore[no-untyped-def]
            x: T.Buffer, kept: T.Buffer, part: T.Buffer, row: Any, trip: Any, first: Any = 0
        ):
            if is_kept:
                T.copy(kept[:, trip * step : trip * step + step], part[0, :, :])
            else:
                load(x, part, row, trip, first)

        return read

    def chunks(self) -> list[tuple[int, int, int]]:
        """The copies of `fetcher`: first trip, last trip plus one, and how many copies come later."""
        most = -(-self.trips // WAITS)
        begins = range(0, self.trips, most)
        return [(at, min(at + most, self.trips), len(begins) - 1 - i) for i, at in enumerate(begins)]

    def fetcher(self) -> Any:
        """A macro (x, kept, row, first) that begins to copy rows to shared memory, from x[row, first] on."""
        import tilelang.language as T  # noqa: N812

        rows, step, chunks = self.rows, self.step, self.chunks()

        @T.macro
        def fetch(x: T.Buffer, kept: T.Buffer, row: Any, first: Any):  # type: ignore[no-untyped-def]
            for begin, end, _ in chunks:
                T.async_copy(
                    x[row : row + rows, first + begin * step : first + end * step],
                    kept[:, begin * step : end * step],
                )

        return fetch

    def number(self, part: Any, u: Any, i: Any, j: Any, trip: Any, beyond: float) -> Any:
        """An element of a trip in float32; `beyond` where the row has ended."""
        import tilelang.language as T  # noqa: N812

        value = T.cast(part[u, i, j], "float32")
        if self.is_whole:
            return value
        inside = (trip * self.together + u) * self.step + j < self.n
        return T.if_then_else(inside, value, T.cast(beyond, "float32"))

    def vectors(self, lane: Any, trips: Any) -> Any:
        """Number of a lane's vectors within the row in the first `trips` trips, in float32."""
        import tilelang.language as T  # noqa: N812

        if self.is_whole:
            return T.cast(trips * self.together, "float32")
        own = (self.n - lane * self.vector + self.step - 1) // self.step
        return T.cast(T.min(own, trips * self.together), "float32")

    def softmax_sums(self) -> Any:
        """A macro (part, trip, highest, before, total) that adds a trip to each lane's online softmax.

        `highest`, `before`, `total` are float32 fragments of a lane's layout: the largest number so far, a
        scratch, and the sum of exp(number - highest). The caller starts with `LOWEST` and 0.
        """
        import tilelang.language as T  # noqa: N812

        rows, lanes, vector, together, number = self.rows, self.lanes, self.vector, self.together, self.number

        @T.macro
        def add(part: T.Buffer, trip: Any, highest: T.Buffer, before: T.Buffer, total: T.Buffer):  # type: ignore[no-untyped-def]
            T.copy(highest, before)
            for u in T.unroll(together):
                for i, lane in T.Parallel(rows, lanes):
                    for v in T.unroll(vector):
                        highest[i, lane] = T.max(
                            highest[i, lane], number(part, u, i, lane * vector + v, trip, LOWEST)
                        )
            for i, lane in T.Parallel(rows, lanes):
                total[i, lane] *= T.exp2((before[i, lane] - highest[i, lane]) * LOG2_E)
            for u in T.unroll(together):
                for i, lane in T.Parallel(rows, lanes):
                    for v in T.unroll(vector):
                        total[i, lane] += T.exp2(
                            (number(part, u, i, lane * vector + v, trip, -float("inf")) - highest[i, lane])
                            * LOG2_E
                        )

        return add

    def softmax_of_rows(self) -> Any:
        """A macro (highest, total, row_highest, row_total) that joins the lanes' online softmax by rows."""
        import tilelang.language as T  # noqa: N812

        rows, lanes = self.rows, self.lanes

        @T.macro
        def join(highest: T.Buffer, total: T.Buffer, row_highest: T.Buffer, row_total: T.Buffer):  # type: ignore[no-untyped-def]
            T.reduce_max(highest, row_highest, dim=1)
            for i, lane in T.Parallel(rows, lanes):
                total[i, lane] *= T.exp2((highest[i, lane] - row_highest[i]) * LOG2_E)
            T.reduce_sum(total, row_total, dim=1)

        return join


def residual_adder(tiles: RowTiles) -> Any:
    """A macro (part, added, h, kept, row, trip, u, first) that adds what `added` has to a step of `part`.

    The sum is rounded to the dtype of the rows and written to h, from h[row, first] on, and to shared memory
    if rows are kept there.
    """
    import tilelang.language as T  # noqa: N812

    rows, step, keeps = tiles.rows, tiles.step, tiles.keep == "shared"

    @T.macro
    def add(  # type: ignore[no-untyped-def]
        part: T.Buffer,
        added: T.Buffer,
        h: T.Buffer,
        kept: T.Buffer,
        row: Any,
        trip: Any,
        u: Any,
        first: Any = 0,
    ):
        for i, j in T.Parallel(rows, step):
            part[u, i, j] = T.cast(
                T.cast(part[u, i, j], "float32") + T.cast(added[u, i, j], "float32"), part.dtype
            )
        col = (trip * tiles.together + u) * step
        T.copy(part[u, :, :], h[row : row + rows, first + col : first + col + step])
        if keeps:
            T.copy(part[u, :, :], kept[:, col : col + step])

    return add


def has_residual(workload: Workload) -> bool:
    """Whether rows `r` are added to those of x, and the sums, rounded to the dtype, are the output `h`."""
    return bool(workload.attrs.get("residual"))


def rows_and_sums(inputs: Tensors) -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
    """The rows that an operator is about, and its reference for `h`: with a residual, the sums in float32."""
    x = inputs["x"]
    if "r" not in inputs:
        return x, {}
    sums = x.float() + inputs["r"].float()
    return sums.to(x.dtype), {"h": sums}


def random_rows(workload: Workload, device: str, generator: "torch.Generator") -> "torch.Tensor":
    """x ~ N(0, 1), each row scaled by 1/4 to 4, so that norms of rows differ."""
    import torch

    m, n, dtype = workload.dims["m"], workload.dims["n"], getattr(torch, workload.dtype)
    x = torch.randn(m, n, generator=generator, device=device, dtype=dtype)
    return x.mul_(torch.rand(m, 1, generator=generator, device=device).mul_(4).sub_(2).exp2_().to(dtype))


def by_panels(rows: "torch.Tensor", function: Callable[["torch.Tensor"], "torch.Tensor"]) -> "torch.Tensor":
    """`function` of the rows in float32, by panels that keep the copies small."""
    import torch

    panels = rows.split(max(1, PANEL // max(1, rows[0].numel())))
    return torch.cat([function(panel.float()) for panel in panels])


_compiled_for: list[object] = []  # what torch holds compiled functions of


def _forget_unless(held: object) -> None:
    """Drop what torch has compiled of others: it compiles a function for a few shapes, and then no more."""
    import torch

    if _compiled_for != [held]:
        torch.compiler.reset()
        _compiled_for[:] = [held]


def with_compiled(
    name: str, function: Callable[[], object], tensor: "torch.Tensor"
) -> dict[str, Callable[[], object]]:
    """`function` as a vendor's implementation, and on a GPU as compiled by torch, if that works."""
    import torch

    found = {name: function}
    if tensor.device.type == "cuda":
        _forget_unless((name, tensor.shape, tensor.dtype))
        compiled = torch.compile(function, dynamic=False)
        try:
            compiled()
        except Exception:  # a compiler of any kind is missing, or fails
            return found
        found["torch.compile"] = compiled
    return found
