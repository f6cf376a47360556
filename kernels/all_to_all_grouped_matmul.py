"""all_to_all_grouped_matmul: a layer of experts that are spread over ranks, from tokens to tokens.

    C[t] = sum over j of Weights[t, j] Down[e] (silu(Gate[e] A[t]) * (Up[e] A[t]))      with e = Ids[t, j]

Each rank has some tokens, the choices of their experts (what `topk_gate` gives), and the weights of its own
experts: the numbers of those of rank 0 come first. A token's row goes to the ranks of its experts (dispatch),
these compute the two products of the layer, grouped by expert as in `grouped_matmul`, and the results of a
token return to its rank and are added there (combine). An expert of a negative number is none. A rank has
memory for the rows of all tokens of all ranks, so every routing is right: experts without rows, and all
tokens with the same experts.

`GateUp` has gate and up of an expert, (2, inner, hidden), and `Down` is (hidden, inner), as checkpoints store
them. tokens and experts are those of one rank. Sums of products are in float32. What is rounded to the dtype:
inner, the result of each expert, the sum of those of one rank, and C.

A layer is more than one product since no model adds the results of experts between the two.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, shape
from ..problem.group_operator import SEEDS, WORLD, GroupOperator, of_rank
from ..problem.index_values import outside
from ..problem.operator import Tensors
from ..problem.rounding import SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import RANK, Collective, KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import all_to_all_grouped_matmul as search_space
from ..search_spaces.all_to_all_grouped_matmul import of_second
from ..search_spaces.rank_products import product_config
from ..search_spaces.ways import PUSH, SEQUENTIAL
from ..target.spec import Target
from ._exact_products import exact_products
from ._expert_rows import VECTOR, ExpertRows, give_back, place, send, spread, weighted_sums
from ._ranks import FLAGS, kernel_of_ranks
from ._ranks import Tensor as RankTensor
from .grouped_matmul import GroupedMatmulGpu

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MOST_CHOSEN = 16
GOLDEN_RATIO = 0.618034
# rows, choices and weights of all tokens, from peers or from the library
ROWS, CHOICES, FACTORS = "rows_of_all", "choices_of_all", "weights_of_all"
SUMS, RETURNED = "sums", "flags_of_sums"
PLACES, ENDS, BY_EXPERT, INNER = "places", "ends", "by_expert", "inner_by_expert"
ROW_OF, WEIGHT_OF = "row_of", "weight_of"


class AllToAllGroupedMatmul(GroupOperator):
    name = "all_to_all_grouped_matmul"
    dims = ("tokens", "hidden", "inner", "experts", "topk", WORLD)
    dtypes = ("bfloat16", "float16")
    attrs: ClassVar[Mapping[str, Value]] = {"routing": "even"}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"routing": ("even", "skewed")}
    axes: ClassVar[Axes] = {
        "A": ("tokens", "hidden"),
        "Ids": ("tokens", "topk"),
        "Weights": ("tokens", "topk"),
        "GateUp": ("experts", 2, "inner", "hidden"),
        "Down": ("experts", "hidden", "inner"),
        "C": ("tokens", "hidden"),
    }
    vendor_name = "cuBLAS (one call an expert)"
    # the public config.json of the model; tokens and experts of one rank. DS: DeepSeek-V3, whose 256 experts
    # are 32 on each of 8. MX: Mixtral 8x7B, Q30: Qwen3-30B-A3B, Q235: Qwen3-235B-A22B, GPT: gpt-oss-120b, all
    # as on 4. Decoding of 128 tokens a rank, and prompts of 4096
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        f"{model}{kind}": {"tokens": tokens, **sizes}
        for model, sizes in {
            "DS": {"hidden": 7168, "inner": 2048, "experts": 32, "topk": 8},
            "MX": {"hidden": 4096, "inner": 14336, "experts": 2, "topk": 2},
            "Q30": {"hidden": 2048, "inner": 768, "experts": 32, "topk": 8},
            "Q235": {"hidden": 4096, "inner": 1536, "experts": 32, "topk": 8},
            "GPT": {"hidden": 2880, "inner": 2880, "experts": 32, "topk": 4},
        }.items()
        for kind, tokens in (("D", 128), ("P", 4096))
    }
    default_names = ("DSD", "DSP", "Q235P")

    def rows(self, workload: Workload) -> ExpertRows:
        tokens, hidden, _, experts, topk, world = workload.dims.values()
        return ExpertRows(tokens, hidden, experts, topk, world, workload.dtype)

    def products(self, workload: Workload, tokens: int) -> tuple[Workload, Workload]:
        """Both products of a rank with so many rows."""
        _, hidden, inner, experts, *_ = workload.dims.values()
        common: dict[str, Value] = {"layout": "nt", "rows": "contiguous"}
        return tuple(
            Workload(
                "grouped_matmul",
                {"tokens": tokens, "groups": experts, "n": n, "k": k},
                workload.dtype,
                {**common, "fuse": fuse},
            )
            for n, k, fuse in ((inner, hidden, "silu_mul"), (hidden, inner, "none"))
        )  # type: ignore[return-value]

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"Ids": "int32", "Weights": "float32"}

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        _, hidden, inner, experts, topk, world = workload.dims.values()
        self.check_reach(workload)
        if not topk <= min(experts * world, MOST_CHOSEN):
            raise WorkloadError(
                f"{self.name}: topk={topk} must be 1 to {min(experts * world, MOST_CHOSEN)}: there are "
                f"{experts * world} experts, and a thread keeps at most {MOST_CHOSEN} choices"
            )
        for name, size in (("hidden", hidden), ("inner", inner)):
            if size % VECTOR:
                raise WorkloadError(
                    f"{self.name}: {name}={size} must be a multiple of {VECTOR}: rows are copied by 16 bytes"
                )
        rows = self.rows(workload)
        most_rows, weights = rows.capacity * max(hidden, inner), 2 * experts * inner * hidden
        for name, size in (("rows of experts", most_rows), ("GateUp", weights)):
            if size > MAX_DIMENSION:
                raise WorkloadError(
                    f"{self.name}: {name} would have {size} elements, and the kernels index at most "
                    f"{MAX_DIMENSION}; split the tokens or the experts"
                )

    def routing(self, workload: Workload) -> "NDArray[Any]":
        """The choices of all ranks' tokens, (world, tokens, topk): the same for every seed.

        Experts of a token differ. All are equally likely (`even`), or some more than others and one of 16 not
        at all (`skewed`), as those of `grouped_matmul`.
        """
        import numpy as np

        tokens, _, _, experts, topk, world = workload.dims.values()
        at, draw = np.arange(experts * world), np.random.default_rng(0)
        odds = np.ones(experts * world)
        if workload.attrs["routing"] == "skewed":
            odds = 1 / (0.3 + (at + 1) * GOLDEN_RATIO % 1)
            if np.count_nonzero(at % 16 != 15) >= topk:
                odds[at % 16 == 15] = 0
        # the largest of logarithms of odds plus Gumbel noise: a draw without replacement
        with np.errstate(divide="ignore"):
            keys = np.log(odds) + draw.gumbel(size=(world * tokens, experts * world))
        chosen = np.argsort(-keys, axis=1, kind="stable")[:, :topk]
        return chosen.reshape(world, tokens, topk).astype(np.int32)

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Choices, and what kernels of rank 0 make of those of all ranks."""
        import numpy as np

        chosen, experts = self.routing(workload), workload.dims["experts"]
        counts = np.bincount(chosen.reshape(-1), minlength=experts)[:experts]
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        whole = chosen.reshape(-1, workload.dims["topk"])
        order = np.argsort(whole.reshape(-1), kind="stable")
        rows = np.empty(whole.size, np.int32)
        rows[order] = np.arange(whole.size, dtype=np.int32)
        row_of = np.where(whole < experts, rows.reshape(whole.shape), -1).astype(np.int32)
        of_all = dict.fromkeys((CHOICES, of_rank(CHOICES, 0)), whole)
        return {"Ids": chosen[0], **of_all, ENDS: ends, ROW_OF: row_of}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """A number of no expert: nobody would compute that choice, and nothing would tell."""
        experts = workload.dims["experts"] * workload.dims[WORLD]
        return outside("Ids", inputs["Ids"], None, experts - 1, "an expert of a rank; below 0: none")

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": shape(self.axes["C"], workload.dims, {})}

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1), matrices so that products are of the same size, and weights of a softmax."""
        import torch

        generator = torch.Generator(device).manual_seed(seed * SEEDS + rank)
        dtype = getattr(torch, workload.dtype)

        def normal(name: str, kind: torch.dtype) -> "torch.Tensor":
            return torch.randn(
                shape(self.axes[name], workload.dims, {}), generator=generator, device=device, dtype=kind
            )

        return {
            "A": normal("A", dtype),
            "Ids": torch.from_numpy(self.routing(workload)[rank]).to(device),
            "Weights": normal("Weights", torch.float32).softmax(-1),
            "GateUp": normal("GateUp", dtype).mul_(workload.dims["hidden"] ** -0.5),
            # silu(g) u of two normal numbers has a root mean square of 0.6
            "Down": normal("Down", dtype).mul_(workload.dims["inner"] ** -0.5 / 0.6),
        }

    def rank_second_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> SecondInputs:
        """All tokens have the last experts, so that all rows go to one rank; one token has none at all."""
        import torch

        tensors = self.rank_inputs(workload, rank, device, seed)
        experts, topk = workload.dims["experts"] * workload.dims[WORLD], workload.dims["topk"]
        last = torch.arange(experts - topk, experts, dtype=torch.int32, device=device)
        tensors["Ids"] = last.expand(workload.dims["tokens"], topk).contiguous()
        tensors["Ids"][-1] = -1
        return SecondInputs(tensors)

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        """In float32 without TF32, expert by expert; nothing is rounded on its way."""
        import torch

        experts = workload.dims["experts"]
        found = [torch.zeros(one["A"].shape, device=one["A"].device) for one in inputs]
        with exact_products():
            for rank, of_rank_ in enumerate(inputs):
                home = of_rank_["A"].device
                for expert in range(experts):
                    gate, up = of_rank_["GateUp"][expert].float()
                    down = of_rank_["Down"][expert].float()
                    for one, total in zip(inputs, found, strict=True):
                        token, choice = (one["Ids"] == rank * experts + expert).nonzero(as_tuple=True)
                        if not len(token):
                            continue
                        x = one["A"][token].to(home).float()
                        y = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
                        total.index_add_(0, token, y.to(total.device) * one["Weights"][token, choice, None])
        return [{"C": total} for total in found]

    def flops(self, workload: Workload) -> int:
        """Of one rank, if each has as many rows."""
        tokens, hidden, inner, _, topk, _ = workload.dims.values()
        return 2 * 3 * tokens * topk * hidden * inner

    def min_bytes(self, workload: Workload) -> int:
        """Of one rank, without what it sends: tokens, results, and matrices of the experts that have rows."""
        tokens, hidden, inner, experts, topk, world = workload.dims.values()
        used = min(experts, tokens * topk * world)
        elements = 2 * tokens * hidden + 3 * used * hidden * inner
        return elements * self.element_bytes(workload) + 8 * tokens * topk

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the errors of roundings: of inner, results, sums of ranks, and C.

        The library adds sums of ranks in the dtype; the sum of j of them has the share sqrt(j / world) of C.
        """
        once = {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]
        world = workload.dims[WORLD]
        return once * math.sqrt(4 + sum(j / world for j in range(2, world)))

    def vendor_scratch(self, workload: Workload) -> Mapping[str, RankTensor]:
        rows = self.rows(workload)
        return {
            ROWS: rows.rows_of_all,
            CHOICES: (rows.choices_of_all, "int32"),
            FACTORS: (rows.choices_of_all, "float32"),
            SUMS: rows.rows_of_all,
        }

    def vendor_collective(self, workload: Workload) -> Collective:
        """All rows go to all ranks: the library's all-to-all would need their numbers on the host."""
        rows = self.rows(workload)
        size = math.prod(rows.rows_of_all[0]) * DTYPE_BYTES[workload.dtype]
        small = math.prod(rows.choices_of_all) * 4
        return Collective(
            "all_gather",
            "A",
            ROWS,
            "before",
            size,
            others=(
                Collective("all_gather", "Ids", CHOICES, "before", small),
                Collective("all_gather", "Weights", FACTORS, "before", small),
                Collective("reduce_scatter", SUMS, "C", "after", size),
            ),
        )

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        return self.vendor_of_rank(workload, 0, tensors)

    def vendor_of_rank(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object]:
        """Three products for each expert with rows, of sizes that the host knows from the first call on."""
        import torch

        experts, inner = workload.dims["experts"], workload.dims["inner"]
        of_experts: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def call() -> None:
            x = tensors[ROWS]
            total = torch.zeros_like(x, dtype=torch.float32)
            if not of_experts:
                for expert in range(experts):
                    chosen = tensors[CHOICES] == rank * experts + expert
                    token, choice = chosen.nonzero(as_tuple=True)
                    if len(token):
                        of_experts.append((expert, token, choice))
            for expert, token, choice in of_experts:
                both = x[token] @ tensors["GateUp"][expert].flatten(0, 1).T
                values = torch.nn.functional.silu(both[:, :inner]).mul_(both[:, inner:])
                y = values @ tensors["Down"][expert].T
                total.index_add_(0, token, y * tensors[FACTORS][token, choice, None])
            tensors[SUMS].copy_(total)

        return call


OPERATOR = AllToAllGroupedMatmul()


class AllToAllGroupedMatmulGpu(KernelTemplate):
    """Rows to the ranks of their experts, the two products of `grouped_matmul` there, and sums back.

    Both products have one schedule, the second with tiles twice as wide: the two halves of a tile of the
    first one are as wide together. `push` is 5 kernels, of which the first and the last store to peers and
    wait (`_expert_rows`). `sequential` has 5 kernels, too, between the library's all-gather of all rows and
    its reduce-scatter of the sums.
    """

    operator = OPERATOR
    name = "all_to_all_grouped_matmul"
    target_kinds = ("cuda",)
    kind_reasons = dict.fromkeys(("hip", "cpu"), "its ranks wait for each other by instructions of PTX")
    dtypes = ("bfloat16", "float16")
    numbers = (RANK,)
    product: ClassVar[GroupedMatmulGpu] = GroupedMatmulGpu()
    static_reasons: ClassVar[Mapping[str, str]] = {
        "tokens": "tokens of a rank have places of their own at its peers",
        "hidden": "rows are copied by whole vectors",
        "inner": "rows of Down are inner elements apart, and the copies need rows that start at 16 bytes",
        "experts": "the search for a tile's expert has a fixed number of steps",
        "topk": "a thread keeps all choices of a token",
        WORLD: "the tensors of all ranks are arguments of the kernel",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        tokens, topk = workload.dims["tokens"], workload.dims["topk"]
        return search_space.space(*self.operator.products(workload, tokens * topk), target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """`push`, and the first product's own default."""
        tokens, topk = workload.dims["tokens"], workload.dims["topk"]
        first, _ = self.operator.products(workload, tokens * topk)
        alone, space = self.product.default_config(first, target.device_target), self.space(workload, target)
        way = space.parameters[0].values[-1]
        return None if alone is None else space.closest(Config({"algorithm": way, **alone}))

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, RankTensor]:
        if config["algorithm"] == SEQUENTIAL:
            return {}
        rows = self.operator.rows(workload)
        return {
            FLAGS: rows.sent.tensor,
            RETURNED: rows.returned.tensor,
            **self.operator.vendor_scratch(workload),
        }

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, RankTensor]:
        rows = self.operator.rows(workload)
        between = self.operator.vendor_scratch(workload) if config["algorithm"] == SEQUENTIAL else {}
        return {
            **between,
            PLACES: (rows.choices_of_all, "int32"),
            ENDS: rows.ends,
            BY_EXPERT: rows.rows_by_expert,
            INNER: ((rows.capacity, workload.dims["inner"]), workload.dtype),
            ROW_OF: (rows.choices_of_all, "int32"),
            WEIGHT_OF: (rows.choices_of_all, "float32"),
        }

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        return self.operator.vendor_collective(workload) if config["algorithm"] == SEQUENTIAL else None

    def build(self, workload: Workload, config: Config) -> Any:
        operator, rows = self.operator, self.operator.rows(workload)
        shared, own = self.shared_scratch(workload, config), self.scratch(workload, config)
        tensors: dict[str, RankTensor] = {
            name: (shape(axes, workload.dims, {}), operator.dtype_of(name, workload))
            for name, axes in operator.axes.items()
        }
        names = (*tensors, *shared, *own)
        first, second = operator.products(workload, rows.capacity)
        multiply = self.product.program(first, product_config(config))
        multiply_again = self.product.program(second, of_second(config))
        is_pushed = config["algorithm"] == PUSH

        def body(*given: Any) -> None:
            rank, of = given[-1], dict(zip(names, given, strict=False))
            placed = of[PLACES], of[ENDS]
            found = of[BY_EXPERT], of[ROW_OF], of[WEIGHT_OF]
            arrived = tuple(of[name] if is_pushed else (of[name],) for name in (ROWS, CHOICES, FACTORS))
            if is_pushed:
                send(rows)((of["A"], of["Ids"], of["Weights"]), arrived, of[FLAGS], *placed, rank)
            else:
                place(rows)(of[CHOICES], *placed, rank)
            spread(rows)(arrived, placed, found, rank)
            multiply(of[BY_EXPERT], of["GateUp"], None, None, of[ENDS], of[INNER])
            # the rows are read, and results take their memory
            multiply_again(of[INNER], of["Down"], None, None, of[ENDS], of[BY_EXPERT])
            if is_pushed:
                give_back(rows)(of["Ids"], found, of[SUMS], of[RETURNED], of["C"], rank)
            else:
                weighted_sums(rows)(found, of[SUMS])

        arguments = [(name, tensor, name in shared) for name, tensor in {**tensors, **shared, **own}.items()]
        return kernel_of_ranks(self.name, arguments, operator.rows(workload).world, body)


TEMPLATES = (AllToAllGroupedMatmulGpu(),)
