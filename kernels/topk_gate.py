"""topk_gate: the `topk` experts with the largest logits of each token of x[m, experts], and their weights.

score = "softmax": the weight of an expert is its softmax over all experts, in float32; "sigmoid": the sigmoid
of its logit. With `renormalize` the weights of a token are divided by their sum. Experts come in descending
order of their logits, which must be finite; of equal logits the one with the lower index comes first.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import topk_gate as search_space
from ..target.spec import Target
from ._row_tiles import LOG2_E, with_compiled

if TYPE_CHECKING:
    import torch

MOST_EXPERTS = 1024
MOST_CHOSEN = 16


class TopkGate(Operator):
    name = "topk_gate"
    dims = ("m", "experts")
    attrs: ClassVar[Mapping[str, Value]] = {"topk": 1, "score": "softmax", "renormalize": False}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"score": ("softmax", "sigmoid")}
    dtypes = ("float32", "bfloat16", "float16")
    axes: ClassVar[Axes] = {"x": ("m", "experts"), "weights": ("m", "topk"), "chosen": ("m", "topk")}
    # the public config.json of the model; m: tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        # Qwen3 30B A3B
        "T0": {"m": 16384, "experts": 128, "topk": 8, "score": "softmax", "renormalize": True},
        # DeepSeek-V3, without its groups and bias
        "T1": {"m": 16384, "experts": 256, "topk": 8, "score": "sigmoid", "renormalize": True},
        # DeepSeek-V2 Lite
        "T2": {"m": 16384, "experts": 64, "topk": 6, "score": "softmax", "renormalize": False},
        # Mixtral 8x7B
        "T3": {"m": 16384, "experts": 8, "topk": 2, "score": "softmax", "renormalize": True},
        # DeepSeek-V3, decoding 128 sequences
        "T4": {"m": 128, "experts": 256, "topk": 8, "score": "sigmoid", "renormalize": True},
    }
    default_names = ("T0", "T1", "T4")  # softmax, sigmoid, few tokens

    def validate(self, workload: Workload) -> None:
        m, experts, topk = *workload.dims.values(), int(workload.attrs["topk"])
        if experts > MOST_EXPERTS:
            raise WorkloadError(
                f"topk_gate: experts={experts} exceeds {MOST_EXPERTS}, the longest row that a few threads "
                "keep; take softmax and a sort"
            )
        if not 1 <= topk <= min(experts, MOST_CHOSEN):
            raise WorkloadError(
                f"topk_gate: topk={topk} must be 1 to {min(experts, MOST_CHOSEN)}: there are {experts} "
                f"experts, and a thread keeps at most {MOST_CHOSEN} choices"
            )
        if m * experts > MAX_DIMENSION:
            raise WorkloadError(
                f"topk_gate: x would have m*experts={m * experts} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; split the tokens"
            )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Logits N(0, 4): the largest of them have visible weights. In 16 bits some are equal."""
        import torch

        generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, workload.dtype)
        shape = tuple(workload.dims.values())
        return {"x": torch.randn(*shape, generator=generator, device=device, dtype=dtype).mul_(2)}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"weights": "float32", "chosen": "int32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        shape = (workload.dims["m"], int(workload.attrs["topk"]))
        return {"weights": shape, "chosen": shape}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """A stable sort of all logits, and their scores in float32."""
        import torch

        x = inputs["x"].float()
        order = x.sort(dim=-1, descending=True, stable=True).indices[:, : int(workload.attrs["topk"])]
        return {"weights": _weights(workload, x, order), "chosen": order.to(torch.int32)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Kernels of torch, and the one that its compiler makes. Equal logits are in any order."""
        import torch

        x, topk = inputs["x"], int(workload.attrs["topk"])

        def gate() -> tuple[torch.Tensor, torch.Tensor]:
            order = x.topk(topk, -1).indices
            return _weights(workload, x.float(), order), order.to(torch.int32)

        return with_compiled("torch topk", gate, x)

    def flops(self, workload: Workload) -> int:
        """A comparison with each logit for each choice."""
        return workload.dims["m"] * workload.dims["experts"] * int(workload.attrs["topk"])

    def min_bytes(self, workload: Workload) -> int:
        m, experts = workload.dims.values()
        return m * experts * self.element_bytes(workload) + 8 * m * int(workload.attrs["topk"])

    def max_relative_error(self, workload: Workload) -> float:
        """Weights are float32: tens of its roundings, since exponentials and divisions add some."""
        return 5e-6

    def rounding(self, workload: Workload) -> Rounding:
        """Exponentials do not cancel, so errors of their sum are relative to the weights."""
        return Rounding(workload.dims["experts"] + 64)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Whole numbers -3 .. 3: most logits are equal, so that their order counts; in the first row all."""
        x = self.inputs(workload, device, seed + 1)["x"].div_(2).round_().clamp_(-3, 3)
        x[0] = 3
        return SecondInputs({"x": x})


def _weights(workload: Workload, x: "torch.Tensor", order: "torch.Tensor") -> "torch.Tensor":
    scores = x.softmax(-1) if workload.attrs["score"] == "softmax" else x.sigmoid()
    weights = scores.gather(1, order.long())
    return weights / weights.sum(-1, keepdim=True) if workload.attrs["renormalize"] else weights


OPERATOR = TopkGate()


class TopkGateGpu(KernelTemplate):
    """`reduce_threads` lanes of a warp keep a token's logits and find the largest, again and again."""

    operator = OPERATOR
    name = "topk_gate"
    target_kinds = ("cuda", "hip")
    dtypes = ("float32", "bfloat16", "float16")
    scales: ClassVar[Mapping[str, Scale]] = {"m": Scale(("block_m",), search_space.ROWS)}
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {"experts": "threads keep all logits of a token"}

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """128 threads, 16 for each token; else the nearest config."""
        space = self.space(workload, target)
        wanted = Config({"block_m": 8, "threads": 128, "reduce_threads": 16, "vector": 4})
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, experts = workload.dims.values()
        dtype, accumulator = workload.dtype, "float32"
        topk, is_softmax = int(workload.attrs["topk"]), workload.attrs["score"] == "softmax"
        renormalize = bool(workload.attrs["renormalize"])
        rows, threads, lanes, vector = (
            config.int(name) for name in ("block_m", "threads", "reduce_threads", "vector")
        )
        groups, step = threads // lanes, lanes * vector
        width = -(-experts // step) * step

        def place(i: Any, j: Any) -> tuple[Any, Any]:
            own = i // groups * (width // lanes) + j // step * vector + j % vector
            return i % groups * lanes + j % step // vector, own

        def lane_place(i: Any, lane: Any) -> tuple[Any, Any]:
            return i % groups * lanes + lane, i // groups

        def row_place(i: Any, c: Any, lane: Any = 0) -> tuple[Any, Any]:
            return i % groups * lanes + lane, i // groups * topk + c

        tile, by_lane, by_row = (rows, width), (rows, lanes), (rows, topk)

        @T.prim_func
        def topk_gate(  # type: ignore[no-untyped-def]
            x: T.Tensor((m, experts), dtype),  # type: ignore[valid-type]
            weights: T.Tensor((m, topk), accumulator),  # type: ignore[valid-type]
            chosen: T.Tensor((m, topk), "int32"),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(m, rows), threads=threads) as b:
                part = T.alloc_fragment(tile, dtype)
                logits = T.alloc_fragment(tile, accumulator)
                best = T.alloc_fragment(by_lane, accumulator)
                which = T.alloc_fragment(by_lane, "int32")
                total = T.alloc_fragment(by_lane, accumulator)
                row_best = T.alloc_fragment((rows,), accumulator)
                row_first = T.alloc_fragment((rows,), accumulator)
                row_which = T.alloc_fragment((rows,), "int32")
                row_total = T.alloc_fragment((rows,), accumulator)
                values = T.alloc_fragment(by_row, accumulator)
                indices = T.alloc_fragment(by_row, "int32")
                T.annotate_layout(
                    {
                        part: T.Fragment(tile, forward_fn=place),
                        logits: T.Fragment(tile, forward_fn=place),
                        best: T.Fragment(by_lane, forward_fn=lane_place),
                        which: T.Fragment(by_lane, forward_fn=lane_place),
                        total: T.Fragment(by_lane, forward_fn=lane_place),
                        values: T.Fragment(by_row, forward_fn=row_place, replicate=lanes),
                        indices: T.Fragment(by_row, forward_fn=row_place, replicate=lanes),
                    }
                )
                T.copy(x[b * rows : b * rows + rows, 0:width], part)
                for i, j in T.Parallel(rows, width):
                    logits[i, j] = T.if_then_else(
                        j < experts, T.cast(part[i, j], accumulator), -T.infinity(accumulator)
                    )
                for c in T.unroll(topk):
                    T.fill(best, -T.infinity(accumulator))
                    T.fill(which, experts)
                    for i, lane in T.Parallel(rows, lanes):
                        for p in T.unroll(width // step):
                            for v in T.unroll(vector):
                                # strictly larger: of equal logits the first one stays
                                if logits[i, p * step + lane * vector + v] > best[i, lane]:
                                    best[i, lane] = logits[i, p * step + lane * vector + v]
                                    which[i, lane] = p * step + lane * vector + v
                    T.reduce_max(best, row_best, dim=1)
                    for i, lane in T.Parallel(rows, lanes):
                        which[i, lane] = T.if_then_else(best[i, lane] == row_best[i], which[i, lane], experts)
                    T.reduce_min(which, row_which, dim=1)
                    if c == 0:
                        T.copy(row_best, row_first)
                        if is_softmax and not renormalize:
                            T.clear(total)
                            for i, lane in T.Parallel(rows, lanes):
                                for p in T.unroll(width // step):
                                    for v in T.unroll(vector):
                                        total[i, lane] += T.exp2(
                                            (logits[i, p * step + lane * vector + v] - row_best[i]) * LOG2_E
                                        )
                            T.reduce_sum(total, row_total, dim=1)
                    for i, j in T.Parallel(rows, width):
                        logits[i, j] = T.if_then_else(
                            j == row_which[i], -T.infinity(accumulator), logits[i, j]
                        )
                    for i in T.Parallel(rows):
                        indices[i, c] = row_which[i]
                        values[i, c] = (
                            T.exp2((row_best[i] - row_first[i]) * LOG2_E)
                            if is_softmax
                            else 1 / (1 + T.exp2(row_best[i] * -LOG2_E))
                        )
                if renormalize:
                    T.clear(row_total)
                    for c in T.unroll(topk):
                        for i in T.Parallel(rows):
                            row_total[i] += values[i, c]
                if renormalize or is_softmax:
                    for i, c in T.Parallel(rows, topk):
                        values[i, c] /= row_total[i]
                T.copy(values, weights[b * rows : b * rows + rows, 0:topk])
                T.copy(indices, chosen[b * rows : b * rows + rows, 0:topk])

        return topk_gate


TEMPLATES = (TopkGateGpu(),)
