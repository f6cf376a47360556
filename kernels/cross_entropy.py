"""cross_entropy: loss[i] = log(sum(exp(x[i]))) - x[i, labels[i]] for each row of logits x[m, n], in float32.

A row with a negative label is ignored: its loss is 0. One sweep over x finds the largest logit and the sum
together, by online softmax.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes
from ..problem.index_values import outside
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ._row_tiles import LOWEST, RowOperator, RowTemplate, RowTiles, by_panels, random_rows, with_compiled

if TYPE_CHECKING:
    import torch

IGNORED = -100  # the label of ignored rows in the inputs, as torch's default
LN_2 = 0.6931471805599453


class CrossEntropy(RowOperator):
    name = "cross_entropy"
    axes: ClassVar[Axes] = {"x": ("m", "n"), "labels": ("m",), "loss": ("m",)}
    # n: vocab_size in the public config.json of the model; m: tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "E0": {"m": 4096, "n": 128256},  # Llama 3.1, 4096 tokens
        "E1": {"m": 4096, "n": 151936},  # Qwen3, 4096 tokens
        "E2": {"m": 8192, "n": 32000},  # Llama 2, 8192 tokens
        "E3": {"m": 8192, "n": 50257},  # GPT-2, 8192 tokens: odd rows
        "E4": {"m": 4096, "n": 129280},  # DeepSeek-V3, 4096 tokens
        "E5": {"m": 32768, "n": 1000},  # ImageNet, 32768 images
    }
    default_names = ("E0", "E2", "E5")  # long rows, usual ones, short ones

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        rule = "a column of x; a label below 0 leaves its row out"
        return outside("labels", inputs["labels"], None, workload.dims["n"] - 1, rule)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Logits N(0, 1), each row scaled by 1/4 to 4; random labels, of which every 16th row has none."""
        import torch

        m, n = workload.dims["m"], workload.dims["n"]
        generator = torch.Generator(device).manual_seed(seed)
        x = random_rows(workload, device, generator)
        labels = torch.randint(0, n, (m,), generator=generator, device=device, dtype=torch.int32)
        labels[15::16] = IGNORED
        return {"x": x, "labels": labels}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"labels": "int32", "loss": "float32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"loss": (workload.dims["m"],)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """logsumexp in float32, minus the label's logit."""
        sums, picked, is_kept = _parts(inputs)
        return {"loss": (sums - picked).where(is_kept, 0.0)}

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Of the two terms: the logarithm of the sum, which adds the largest logit to a part of its own."""
        sums, picked, is_kept = _parts(inputs)
        return {"loss": (sums.square() + picked.square()).sqrt_().where(is_kept, 0.0)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch's kernels, and the one that its compiler makes. torch wants labels of 64 bits."""
        import torch

        x, labels = inputs["x"], inputs["labels"].long()

        def losses() -> torch.Tensor:
            return torch.nn.functional.cross_entropy(x.float(), labels, reduction="none")

        return with_compiled("torch cross_entropy", losses, x)

    def flops(self, workload: Workload) -> int:
        """Three operations per element: compare, subtract, add. Exponentials are not counted."""
        return 3 * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        m, n = workload.dims["m"], workload.dims["n"]
        return m * n * self.element_bytes(workload) + 8 * m

    def max_relative_error(self, workload: Workload) -> float:
        """All is float32: hundreds of its roundings, since fast exponentials and logarithms add some."""
        return 2e-5

    def rounding(self, workload: Workload) -> Rounding:
        """Exponentials do not cancel; the loss is a difference of two terms."""
        return Rounding(workload.dims["n"] + 64)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Logits are 32 times as large: exp of one may exceed float32. Labels are others."""
        tensors = self.inputs(workload, device, seed + 1)
        tensors["x"].mul_(32)
        return SecondInputs(tensors)


def _parts(inputs: Tensors) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """By row: log of the sum of exponentials, the label's logit, and whether there is a label."""
    x, labels = inputs["x"], inputs["labels"].long()
    sums = by_panels(x, lambda panel: panel.logsumexp(-1))
    picked = x.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
    return sums, picked, labels >= 0


OPERATOR = CrossEntropy()


class CrossEntropyGpu(RowTemplate):
    """`reduce_threads` neighbouring threads share a row, each with an online softmax of its own elements."""

    operator = OPERATOR
    name = "cross_entropy"
    # exp2 and log2 as single instructions
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    sweeps = 1

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
        tiles = RowTiles(config, n)
        read, add, join = tiles.reader(), tiles.softmax_sums(), tiles.softmax_of_rows()
        rows, lanes = tiles.rows, tiles.lanes

        @T.prim_func
        def cross_entropy(  # type: ignore[no-untyped-def]
            x: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
            labels: T.Tensor((m,), "int32"),  # type: ignore[valid-type]
            loss: T.Tensor((m,), accumulator),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(m, rows), threads=tiles.threads) as b:
                kept = T.alloc_shared(tiles.kept, dtype)
                part = T.alloc_fragment(tiles.part, dtype)
                highest = T.alloc_fragment((rows, lanes), accumulator)
                before = T.alloc_fragment((rows, lanes), accumulator)
                total = T.alloc_fragment((rows, lanes), accumulator)
                row_highest = T.alloc_fragment((rows,), accumulator)
                row_total = T.alloc_fragment((rows,), accumulator)
                label = T.alloc_fragment((rows,), "int32")
                T.annotate_layout(
                    {
                        part: tiles.part_layout(),
                        highest: tiles.lane_layout(),
                        before: tiles.lane_layout(),
                        total: tiles.lane_layout(),
                    }
                )
                T.fill(highest, LOWEST)
                T.clear(total)
                # rows beyond the last are read as zeros, and their loss is not written
                T.copy(labels[b * rows : b * rows + rows], label)
                for trip in T.serial(tiles.trips):
                    read(x, kept, part, b * rows, trip)
                    add(part, trip, highest, before, total)
                join(highest, total, row_highest, row_total)
                for i in T.Parallel(rows):
                    picked = T.cast(x[b * rows + i, T.max(label[i], 0)], accumulator)
                    row_total[i] = T.if_then_else(
                        label[i] < 0, 0.0, row_highest[i] + T.log2(row_total[i]) * LN_2 - picked
                    )
                T.copy(row_total, loss[b * rows : b * rows + rows])

        return cross_entropy


TEMPLATES = (CrossEntropyGpu(),)
