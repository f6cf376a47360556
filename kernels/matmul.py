"""matmul: C[m, n] = f(A[m, k] B[k, n]), row-major, and its template for GPUs.

Attributes choose the product:

- `layout`: nn, or which operand lies in memory transposed: tn has A as (k, m), nt has B as (n, k).
  Operands of one byte are nt unless a shape says otherwise, since matrix units take them with k innermost.
- `accumulate`: float32, or float16 for float16 operands.
- `scales`: of the operands, in float32: one for each `tensor`, or one for each `row` of A and column of B;
  those of float8 also for 128 elements of a row of A and for 128 x 128 elements of B (`block128`).
- `fuse`: what follows the product: a bias (n,), a residual (m, n) that is added, an activation (gelu in its
  form with tanh).

C has the dtype of the operands; bfloat16 for float8 and for int8 with scales, int32 for int8 without.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Parts, shape
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import matmul as search_space
from ..search_spaces.cluster_sums import TOGETHER
from ..search_spaces.stored_parts import part_columns
from ..target.spec import Target
from ._cluster_sums import added_in_cluster, device_function
from ._exact_products import exact_products
from ._float8 import BLOCK, FLOAT8_TERMS, LARGEST_FLOAT8, OUTPUTS, largest, short_sums, spread
from ._matmul_vendor import products
from ._promoted_sums import promoting_consumer, promotion_registers
from ._scheduled_tiles import GROUP, RANGES, SharedTiles, in_order, scheduled_tiles
from ._stored_parts import columns_of, stored_by_parts
from ._warp_policy import warp_policy

if TYPE_CHECKING:
    import torch

PANEL = 1024  # rows whose scales are spread at once
SCALE_AXES: Mapping[str, tuple[tuple[Axis, ...], tuple[Axis, ...]]] = {
    "tensor": ((1,), (1,)),
    "row": (("m",), ("n",)),
    "block128": (("m", Parts("k", BLOCK)), (Parts("k", BLOCK), Parts("n", BLOCK))),
}
ADDED_AXES: Mapping[str, tuple[Axis, ...]] = {"bias": ("n",), "residual": ("m", "n")}
ACTIVATIONS = ("relu", "gelu", "silu")
STEEPEST = 1.13  # slope of these activations, at most
SCALED_OUTPUT = "bfloat16"  # of int8 operands with scales
INT8_SPREAD = 73.6  # root mean square of whole numbers of -127 to 127


class Matmul(Operator):
    name = "matmul"
    dims = ("m", "n", "k")
    dtypes = ("bfloat16", "float16", "float32", "float8_e4m3fn", "int8")
    attrs: ClassVar[Mapping[str, Value]] = {
        "layout": "nn",
        "accumulate": "float32",
        "scales": "none",
        "fuse": "none",
    }
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "layout": ("nn", "nt", "tn"),
        "accumulate": ("float32", "float16"),
        "scales": ("none", *SCALE_AXES),
        "fuse": ("none", "bias", *ACTIVATIONS, "bias_gelu", "residual"),
    }
    later_attrs = ("layout", "accumulate", "scales", "fuse")
    axes: ClassVar[Axes] = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
    # M0 .. M7: TileLang paper, appendix A. D16 .. D512: a layer of M1 in decoding, by tokens of the batch.
    # S512 and S1024 are small enough for one CPU core
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "M0": {"m": 4096, "n": 1024, "k": 8192},
        "M1": {"m": 4096, "n": 8192, "k": 8192},
        "M2": {"m": 4096, "n": 28672, "k": 8192},
        "M3": {"m": 4096, "n": 8192, "k": 28672},
        "M4": {"m": 8192, "n": 1024, "k": 8192},
        "M5": {"m": 8192, "n": 8192, "k": 8192},
        "M6": {"m": 8192, "n": 28672, "k": 8192},
        "M7": {"m": 8192, "n": 8192, "k": 28672},
        "D16": {"m": 16, "n": 8192, "k": 8192},
        "D32": {"m": 32, "n": 8192, "k": 8192},
        "D64": {"m": 64, "n": 8192, "k": 8192},
        "D128": {"m": 128, "n": 8192, "k": 8192},
        "D256": {"m": 256, "n": 8192, "k": 8192},
        "D512": {"m": 512, "n": 8192, "k": 8192},
        "S512": {"m": 512, "n": 512, "k": 512},
        "S1024": {"m": 1024, "n": 1024, "k": 1024},
    }
    default_names = ("M0", "M1", "M7")
    cpu_default_names: ClassVar[tuple[str, ...]] = ("S512", "S1024")

    def workload(self, shape: str, dtype: str | None = None) -> Workload:
        """As of every operator. Operands of one byte are nt where the shape names no layout."""
        found = super().workload(shape, dtype)
        if DTYPE_BYTES[found.dtype] > 1 or "layout" in shape.lower() or "layout" in found.attrs:
            return found
        return replace(found, attrs={**found.attrs, "layout": "nt"})

    def default_workloads(self, dtype: str | None = None) -> list[Workload]:
        workloads = super().default_workloads(dtype)
        if workloads[0].dtype != "float32":
            return workloads
        # only CPU targets compute in float32, where the published shapes take minutes
        return [self.workload(name, dtype) for name in self.cpu_default_names]

    def text(self, workload: Workload, name: str) -> str:
        """The value of an attribute of `workload`."""
        return str(self.attribute(workload.attrs, name))

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        layout, scales, fuse = (str(self.attribute(attrs, name)) for name in ("layout", "scales", "fuse"))
        a, b = ("k", "m") if layout[0] == "t" else ("m", "k"), ("n", "k") if layout[1] == "t" else ("k", "n")
        scaled = dict(zip(("A_scale", "B_scale"), SCALE_AXES.get(scales, ()), strict=False))
        added = {name: ADDED_AXES[name] for name in fuse.split("_") if name in ADDED_AXES}
        return {"A": a, "B": b, **scaled, **added, "C": ("m", "n")}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        output = OUTPUTS.get(dtype, dtype)
        if dtype == "int8" and self.attribute(attrs, "scales") != "none":
            output = SCALED_OUTPUT
        result = dict.fromkeys(("C", *ADDED_AXES), output) if output != dtype else {}
        return {**result, "A_scale": "float32", "B_scale": "float32"}

    def validate(self, workload: Workload) -> None:
        m, n, k = (workload.dims[d] for d in self.dims)
        for name, rows, cols, extents in (("A", m, k, "m*k"), ("B", k, n, "k*n"), ("C", m, n, "m*n")):
            if rows * cols > MAX_DIMENSION:
                raise WorkloadError(
                    f"matmul: {name} would have {extents}={rows * cols} elements, and the kernels index at "
                    f"most {MAX_DIMENSION}; "
                    "split the product along its largest dimension"
                )
        floats = ("bfloat16", "float16", "float8_e4m3fn")
        scales = self.text(workload, "scales")
        for name, legal in (
            ("accumulate", ("float16",)),
            ("scales", ("float8_e4m3fn",) if scales == "block128" else (*floats, "int8")),
            ("fuse", floats if scales == "none" else (*floats, "int8")),
        ):
            value, default = self.text(workload, name), self.attrs[name]
            if value != default and workload.dtype not in legal:
                way_out = f"take {name}={default}"
                if name == "fuse" and workload.dtype == "int8":
                    way_out += ", or scales=row, which makes C bfloat16"
                if scales == "block128" and name == "scales" and workload.dtype != "float32":
                    way_out = "take scales=row or scales=tensor"
                raise WorkloadError(
                    f"matmul: {name}={value} needs dtype {' or '.join(legal)}, and this workload has "
                    f"{workload.dtype}; {way_out}"
                )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1) and B ~ N(0, 1/k), so that C ~ N(0, 1) for every k.

        Float8 operands are quantised by the largest magnitude of what shares a scale; without scales they are
        those of N(0, 1). int8 operands have all values alike. Their scales, and those of 16-bit operands, are
        between half of and twice what makes C ~ N(0, 1).
        """
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        found = self._operands(workload, generator)
        output, axes = getattr(torch, self.dtype_of("C", workload)), self.tensor_axes(workload.attrs)
        for name in ADDED_AXES:
            if name in axes:
                extents = shape(axes[name], workload.dims, {})
                found[name] = torch.randn(*extents, generator=generator, device=device, dtype=output)
        return found

    def _operands(self, workload: Workload, generator: "torch.Generator") -> "dict[str, torch.Tensor]":
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        device, axes = generator.device, self.tensor_axes(workload.attrs)
        extents = {name: shape(axes[name], workload.dims, {}) for name in ("A", "B")}
        if workload.dtype == "int8":
            whole = {
                name: torch.randint(-127, 128, sizes, generator=generator, device=device, dtype=torch.int8)
                for name, sizes in extents.items()
            }
            # each of the two scales takes half of 1 / sqrt(k)
            return {**whole, **self._scales(workload, generator, INT8_SPREAD * k**0.25)}
        if workload.dtype != "float8_e4m3fn":
            dtype = getattr(torch, workload.dtype)
            a = torch.randn(*extents["A"], generator=generator, device=device, dtype=dtype)
            b = torch.randn(*extents["B"], generator=generator, device=device, dtype=dtype).mul_(k**-0.5)
            return {"A": a, "B": b, **self._scales(workload, generator, 1.0)}
        found, scales = {}, {}
        blocks = _blocks(workload, self.text(workload, "scales"))
        for name, sizes in (("A", (m, k)), ("B", (k, n))):
            values = torch.randn(*sizes, generator=generator, device=device)
            if "A_scale" in axes:
                values *= 1.0 if name == "A" else k**-0.5
                scale = largest(values, blocks[name]).div_(LARGEST_FLOAT8)
                values /= spread(scale, blocks[name], slice(0, sizes[0]), sizes[1])
                scales[f"{name}_scale"] = scale.view(shape(axes[f"{name}_scale"], workload.dims, {}))
            quantised = values.to(torch.float8_e4m3fn)
            found[name] = (quantised if extents[name] == sizes else quantised.T).contiguous()
        return {**found, **scales}

    def _scales(
        self, workload: Workload, generator: "torch.Generator", size: float
    ) -> "dict[str, torch.Tensor]":
        """Scales of whole operands or their rows: 1 / `size`, times 1/2 to 2."""
        import torch

        axes = self.tensor_axes(workload.attrs)
        names = [name for name in ("A_scale", "B_scale") if name in axes]
        drawn = {
            name: torch.rand(
                *shape(axes[name], workload.dims, {}), generator=generator, device=generator.device
            )
            for name in names
        }
        return {name: values.mul_(2).sub_(1).exp2_().div_(size) for name, values in drawn.items()}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32 (int8 in float64), by panels of rows that keep wide copies small."""
        import torch

        fused = self.text(workload, "fuse").split("_")
        total = self._product(workload, inputs)
        if self.dtype_of("C", workload) == "int32":
            return {"C": total.to(torch.int32)}
        for name in fused:
            if name in ADDED_AXES:
                total += inputs[name].float()
            elif name == "gelu":
                total = torch.nn.functional.gelu(total, approximate="tanh")
            elif name != "none":
                total = getattr(torch.nn.functional, name)(total)
        return {"C": total}

    def _product(self, workload: Workload, inputs: Tensors) -> "torch.Tensor":
        import torch

        wide = torch.float64 if workload.dtype == "int8" else torch.float32
        layout, kind = self.text(workload, "layout"), self.text(workload, "scales")
        a = inputs["A"].T if layout[0] == "t" else inputs["A"]
        b = (inputs["B"].T if layout[1] == "t" else inputs["B"]).to(wide)
        scales = {name: inputs[f"{name}_scale"].float() for name in ("A", "B") if f"{name}_scale" in inputs}
        blocks = _blocks(workload, kind)
        grids = {
            name: scale.view(-(-rows // blocks[name][0]), -1)
            for (name, scale), rows in zip(scales.items(), (a.shape[0], b.shape[0]), strict=False)
        }

        def scaled(operand: torch.Tensor, name: str, first: int) -> torch.Tensor:
            for start in range(0, len(operand) if name in grids else 0, PANEL):
                part = operand[start : start + PANEL]
                rows = slice(first + start, first + start + len(part))
                part *= spread(grids[name], blocks[name], rows, operand.shape[1])
            return operand

        b = scaled(b, "B", 0)
        with exact_products():
            panels = enumerate(a.split(4096))
            return torch.cat([scaled(panel.to(wide), "A", 4096 * i) @ b for i, panel in panels])

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Products of the vendor's library under its name, with its own epilogue or a kernel of torch."""
        chosen = {name: self.text(workload, name) for name in self.attrs}
        return products(inputs, workload.dtype, self.dtype_of("C", workload), chosen)

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        return sum(
            math.prod(shape(axes, workload.dims, {})) * DTYPE_BYTES[self.dtype_of(name, workload)]
            for name, axes in self.tensor_axes(workload.attrs).items()
        )

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding C; detects one missing term of 28672 in bfloat16.

        Sums in float16 are rounded after each 16 terms, those of float8 after each 32: errors grow with the
        root of k. int8 is exact.
        """
        limit = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 2e-5, "float8_e4m3fn": 4e-3, "int8": 0.0}
        if self.text(workload, "accumulate") == "float16":
            return limit["float16"] + 2.0**-11 * math.sqrt(workload.dims["k"] / 16)
        if workload.dtype == "float8_e4m3fn":
            return limit[workload.dtype] + 2.0**-13 * math.sqrt(workload.dims["k"] / FLOAT8_TERMS)
        if self.dtype_of("C", workload) == SCALED_OUTPUT:
            return limit[SCALED_OUTPUT]
        return limit[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding | None:
        if workload.dtype == "int8":
            # sums are exact; with scales one is rounded to float32, multiplied by two scales, and a bias or a
            # residual is added
            return Rounding(1 if self.text(workload, "scales") == "none" else 4)
        if self.text(workload, "accumulate") == "float16":
            return None
        k = workload.dims["k"]
        short = None
        if workload.dtype == "float8_e4m3fn":
            # scales of blocks: each block has a sum of its own, and float32 adds the blocks
            depth = min(k, BLOCK) if self.text(workload, "scales") == "block128" else k
            short = short_sums(depth)
        return Rounding(k, cuts=True, short_sums=short)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The root of the sum of the products' squares, times the largest slope of an activation."""
        import torch

        if self.dtype_of("C", workload) == "int32":
            return {}
        squares = {
            name: tensor.to(torch.bfloat16).square()
            for name, tensor in inputs.items()
            if name not in ADDED_AXES
        }
        total = self._product(workload, squares).sqrt_()
        is_steep = any(name in ACTIVATIONS for name in self.text(workload, "fuse").split("_"))
        return {"C": total.mul_(STEEPEST) if is_steep else total}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Whole numbers -2 .. 2 (-1 .. 1 if float16 sums them), and powers of two as scales.

        Sums are below 2^24 (2^11 in float16) and exact, but activations round.
        """
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        axes, most = self.tensor_axes(workload.attrs), 1 if "accumulate" in workload.attrs else 2
        found = {}
        for name, of in list(axes.items())[:-1]:
            sizes = shape(of, workload.dims, {})
            dtype = getattr(torch, self.dtype_of(name, workload))
            if name.endswith("_scale"):
                found[name] = whole_numbers(sizes, 1, dtype, generator).exp2_()
            else:
                found[name] = whole_numbers(sizes, most, dtype, generator)
        fused = self.text(workload, "fuse")
        return SecondInputs(found, is_exact="gelu" not in fused and "silu" not in fused)


def _blocks(workload: Workload, scales: str) -> dict[str, tuple[int, int]]:
    """Rows and columns of A[m, k] and B[k, n] that share a scale."""
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    return {
        "tensor": {"A": (m, k), "B": (k, n)},
        "row": {"A": (1, k), "B": (k, 1)},
        "block128": {"A": (1, BLOCK), "B": (BLOCK, BLOCK)},
    }.get(scales, {"A": (m, k), "B": (k, n)})


OPERATOR = Matmul()

# Rows beyond the edge of A cost time: their copies access memory as well, and blocks that share columns of B
# get out of step. So the last tile of rows begins early enough to be whole, and rows of two tiles are
# computed twice, with equal results. For tiles of up to this many columns this saves up to 43 % of the time
# and costs at most 3 %; wider tiles lose more than they gain (experiments/partial_tiles).
MOVED_COLUMNS = 128
PARTED_TILES = ((256, 160), (128, 256))  # tried first where C leaves by parts; no registers spill
FEW_ROWS = 128  # of A, for which tiles of C^T are tried first
ADDED_THREADS = 256  # of a block that adds partial sums
ADDED_COLUMNS = 1024
SCHEDULES = ("stream_k", "cluster_m", "cluster_n")  # parameters of tiles with explicit pipelines
PARTIAL: Mapping[str, str] = {"int8": "int32"}  # dtype of partial sums, by that of the operands
LOG2_E = math.log2(math.e)
GELU = 2 * (2 / math.pi) ** 0.5 * LOG2_E  # gelu(x) = x / (1 + 2^-(GELU x + GELU_CUBE x^3))
GELU_CUBE = GELU * 0.044715


def whole_tiles(m: Any, block_m: int) -> Any:
    """The rows of all tiles of `m` rows; `m` may be a variable of a kernel, or a formula.

    Partial sums have so many rows that no store of a tile needs a check, and the rows are their first
    dimension, since a stride that depends on a variable `m` makes all offsets longer. Both together shorten a
    kernel with a dynamic m from 3,600 to 760 instructions (experiments/shipped).
    """
    return (m + block_m - 1) // block_m * block_m


class MatmulGpu(KernelTemplate):
    """One output tile per block: operands and C pass through shared memory, in a pipelined loop over k.

    Blocks may each compute a part of k; a second kernel adds their sums, or they do so as a cluster. Blocks
    may loop over tiles, and share the iterations of those that are left. Two blocks may read an operand
    together. Tiles may be those of C^T, for few rows of A.
    """

    operator = OPERATOR
    name = "matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16", "float8_e4m3fn", "int8")
    scales: ClassVar[Mapping[str, Scale]] = {
        "m": Scale(("block_m",), search_space.GPU_TILES, "cluster_m"),
        "n": Scale(("block_n",), search_space.COLUMN_TILES, "cluster_n"),
        "k": Scale(("block_k",), search_space.GPU_DEPTHS, "split_k"),
    }
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "n": ("rows of B and C are n elements apart, and the copies need rows that start at whole 16 bytes"),
        "k": ("rows of A are k elements apart, and the copies need rows that start at whole 16 bytes"),
    }
    # the ranges of iterations follow from the size in long expressions, which take half a minute
    static_parameters = ("stream_k",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        panel = config.int("swizzle")
        if not panel or any(config.int(name, 0) > 1 for name in ("persistent", *SCHEDULES)):
            return None
        return Config({**config, "swizzle": 0}), Rasterization("row", panel)

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        parts, blocks = config.int("split_k", 1), config.int("stream_k", 0)
        if blocks:
            sizes = (RANGES * blocks, config.int("block_m"), config.int("block_n"))
        elif parts > 1 and config.get("reduce", "kernel") == "kernel":
            sizes = (whole_tiles(workload.dims["m"], config.int("block_m")), parts, workload.dims["n"])
        else:
            return {}
        return {"P": (sizes, PARTIAL.get(workload.dtype, "float32"))}

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """The largest of a few tried tiles with a block for most cores; else the nearest legal config.

        For many tiles, blocks that stay on Hopper. For few rows of A, tiles of C^T that have all of them, and
        parts of k so that no core is idle. What follows a product of 16 bits spills registers if a large tile
        is finished at once: tiles whose C leaves by parts, of which the cores compute the fewest elements one
        after the other.
        """
        space = self.space(workload, target)
        m, n = workload.dims["m"], workload.dims["n"]
        cores = target.int("core.count")
        given: dict[str, Value] = {
            "block_k": 64 if DTYPE_BYTES[workload.dtype] > 1 else 128,
            "num_stages": 1 if target.kind == "hip" else 4,
            "policy": "square",
            "epilogue": "shared",
        }
        rows = next((tile for tile in search_space.GPU_TILES if tile >= m), m)
        parts = max(p for p in search_space.SPLITS if p * -(-n // 128) <= max(cores, -(-n // 128)))
        few = {
            "block_m": rows,
            "block_n": 128,
            "threads": 128,
            "swizzle": 0,
            "split_k": parts,
            "swapped": True,
        }
        # two blocks add their sums faster than a second kernel; clusters of more leave cores idle
        together: dict[str, Value] = {"reduce": "cluster"} if parts == 2 else {}
        for more in (together, {}):
            if m <= FEW_ROWS and (found := space.config({**given, **few, **more})) in space:
                return found
        # of more tiles than cores, blocks that stay and copy ahead
        stays: dict[str, Value] = {"threads": 2 * GROUP, "policy": "full_row", "swizzle": 8}
        ahead: dict[str, Value] = {"persistent": cores, "schedule": "overlapped"}
        for block_n in (256, 128) if self.operator.text(workload, "scales") == "block128" else (256,):
            wanted = Config({**given, **stays, **ahead, "block_m": 128, "block_n": block_n})
            if self.operator.text(workload, "fuse") == "none" and wanted in space:
                return wanted
        by_parts = {**given, "threads": 2 * GROUP, "policy": "full_row", "epilogue": "parts"}
        filling = []
        for block_m, block_n in PARTED_TILES if DTYPE_BYTES[workload.dtype] > 1 else ():
            blocks = -(-m // block_m) * -(-n // block_n)
            sizes = {"block_m": block_m, "block_n": block_n, "swizzle": 8 if blocks > cores else 0}
            wanted = Config({**by_parts, **sizes})
            if wanted in space and blocks >= 0.9 * cores:
                filling.append((-(-blocks // cores) * block_m * block_n, wanted))
        if filling:
            return min(filling, key=lambda one: one[0])[1]
        legal = []
        for block_m, block_n, threads in ((256, 128, 256), (128, 128, 256), (64, 128, 128), (64, 64, 128)):
            for swizzle in (8, 0):
                sizes = {"block_m": block_m, "block_n": block_n, "threads": threads, "swizzle": swizzle}
                wanted = Config({**given, **sizes})
                if wanted in space:
                    legal.append(wanted)
                    if -(-m // block_m) * -(-n // block_n) >= 0.9 * cores:
                        return wanted
                    break
        return legal[-1] if legal else next(iter(space.nearest(wanted, 1)), None)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
        layout, scales, fuse = (self.operator.text(workload, name) for name in ("layout", "scales", "fuse"))
        dtype, output = workload.dtype, self.operator.dtype_of("C", workload)
        accumulator = "int32" if dtype == "int8" else self.operator.text(workload, "accumulate")
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        split_k, persistent = config.int("split_k", 1), config.int("persistent", 0)
        stream_k, cluster_m, cluster_n = (config.int(name, 0) or 1 for name in SCHEDULES)
        swapped = bool(config.get("swapped", False))
        adds_in_cluster = split_k > 1 and config.get("reduce", "kernel") == "cluster"
        adds_later = split_k > 1 and not adds_in_cluster  # in a second kernel
        # "overlapped" is a pipeline across tiles; "serial" is TileLang's own, which ends with each tile
        stays_ahead = config.get("schedule", "serial") == "overlapped"
        by_parts = stays_ahead or config["epilogue"] == "parts"
        through_shared = config["epilogue"] == "shared"
        is_whole = isinstance(m, int) and (m % block_m == 0 or m < block_m)
        # parts of k add up in another order: rows of two tiles would depend on which one is written last
        is_moved = block_n <= MOVED_COLUMNS and not is_whole and stream_k == 1
        policy = warp_policy(config.str("policy"))

        axes = self.operator.tensor_axes(workload.attrs)
        sizes = {name: shape(of, {"m": m, "n": n, "k": k}, {}) for name, of in axes.items()}

        def tensor(name: str, dtype: str) -> Any:
            # its annotation; the type of None makes no parameter of the kernel
            return T.Tensor(sizes[name], dtype) if name in sizes else type(None)

        wide = PARTIAL.get(dtype, "float32")  # of partial sums
        partial_shape = (
            (RANGES * stream_k, block_m, block_n) if stream_k > 1 else (whole_tiles(m, block_m), split_k, n)
        )
        partial: Any = T.Tensor(partial_shape, wide) if adds_later or stream_k > 1 else type(None)

        a_by_rows, b_by_depth = layout[0] == "n", layout[1] == "n"
        a_shape = (block_m, block_k) if a_by_rows else (block_k, block_m)
        b_shape = (block_k, block_n) if b_by_depth else (block_n, block_k)
        sum_shape = (block_n, block_m) if swapped else (block_m, block_n)
        depths = -(-k // block_k)  # iterations for all of k
        trips = -(-depths // split_k)
        by_blocks = scales == "block128"
        scaled_cols = min(block_n, BLOCK)  # columns that have one scale, in each iteration
        sum_parts = block_n // scaled_cols
        tile_rows, tile_cols = (m + block_m - 1) // block_m, (n + block_n - 1) // block_n
        activation = next((name for name in fuse.split("_") if name in ACTIVATIONS), "")
        has_root = activation in ("gelu", "silu")
        has_bias, has_residual = "bias" in sizes, "residual" in sizes
        is_plain = not (activation or has_bias or has_residual or scales in ("tensor", "row"))
        integer_sums = dtype == "int8" and not is_plain  # which cannot hold what follows a product
        pair = cluster_m * cluster_n  # blocks of a cluster
        is_open = not isinstance(m, int)  # known when the kernel is called
        is_pair, is_scheduled = pair > 1, stays_ahead or max(stream_k, pair) > 1
        part_cols = part_columns(block_n, DTYPE_BYTES[output])  # columns of C stored together
        added_rows = 1 << (ADDED_COLUMNS // block_n).bit_length() - 1  # of a block that adds sums of ranges
        # of clusters, which are blocks unless two of these read an operand together
        cluster_rows = (tile_rows + cluster_m - 1) // cluster_m
        cluster_cols = (tile_cols + cluster_n - 1) // cluster_n
        shared_tiles = SharedTiles(cluster_rows * cluster_cols, depths, stream_k)
        grid = (
            (persistent // pair * pair,)
            if persistent
            else (stream_k,)
            if stream_k > 1
            else (cluster_rows * cluster_cols * 2,)
            if is_pair
            else (tile_cols, tile_rows, split_k)
            if split_k > 1
            else (T.ceildiv(n, block_n), T.ceildiv(m, block_m))
        )

        # blocks of a cluster, along the axes of the grid
        cluster = 2 if is_pair else (1, 1, split_k) if adds_in_cluster else None

        def at(tensor: Any, by_depth: bool, depth: Any, other: Any) -> Any:
            return tensor[depth, other] if by_depth else tensor[other, depth]

        def first_row(by: Any) -> Any:
            return T.min(by * block_m, T.max(m - block_m, 0)) if is_moved else by * block_m

        def place(tile: Any) -> tuple[Any, Any]:
            # column and row of a tile, by panels of rows
            panel = max(swizzle, 1)
            first = tile // (panel * cluster_cols) * panel
            rows = T.min(panel, cluster_rows - first)
            inner = tile % (panel * cluster_cols)
            return inner // rows, first + inner % rows

        def inner(cluster: tuple[Any, Any], block: Any) -> tuple[Any, Any]:
            # the tile of a block of a cluster
            return cluster[0] * cluster_n + block % cluster_n, cluster[1] * cluster_m + block % cluster_m

        def product(a_tile: Any, b_tile: Any, total: Any, clear: bool) -> Any:
            if swapped:
                return T.gemm(b_tile, a_tile, total, b_by_depth, a_by_rows, policy=policy, clear_accum=clear)
            return T.gemm(
                a_tile, b_tile, total, not a_by_rows, not b_by_depth, policy=policy, clear_accum=clear
            )

        def summed(total: Any, others: tuple[Any, ...], row: Any, col: Any, kept: Any = None) -> Any:
            # one element with its scales and what is added; `kept`: that of the residual
            a_scale, b_scale, bias, residual = others
            value = total if accumulator == "float32" else T.cast(total, "float32")
            if scales == "tensor":
                value = value * (a_scale[0] * b_scale[0])
            elif scales == "row":
                value = value * a_scale[row] * b_scale[col]
            if has_bias:
                value = value + T.cast(bias[col], "float32")
            if has_residual:
                value = value + T.cast(residual[row, col] if kept is None else kept, "float32")
            return value

        def root(value: Any) -> Any:
            # its square is what gelu and silu multiply a value by; faster than a division
            steep = value * (GELU + GELU_CUBE * value * value if activation == "gelu" else LOG2_E)
            return T.rsqrt(T.float32(1) + T.exp2(-steep))

        def activated(value: Any) -> Any:
            if activation == "relu":
                return T.max(value, T.float32(0))
            if has_root:
                factor = root(value)
                return value * (factor * factor)
            return value

        def finished(total: Any, others: tuple[Any, ...], row: Any, col: Any, kept: Any = None) -> Any:
            # what follows the product, for one element
            if is_plain:
                return total
            return activated(summed(total, others, row, col, kept))

        @T.macro
        def fill(where, c_sum, first, c_parts, slot):  # type: ignore[no-untyped-def]
            others, row, bx = where[0], where[2], where[3]
            c_part = c_parts[slot, :, :]
            if is_plain:
                T.copy(columns_of(c_sum, first).all(part_cols), c_part)
            else:
                if has_residual:
                    # in rows, of which a thread's sums have two neighbours each
                    start = bx * block_n + first
                    kept_part = others[3][row : row + block_m, start : start + part_cols]
                    T.copy(kept_part, c_part, disable_tma=True)
                # step by step, since TileLang repeats an expression wherever it is used
                values = T.alloc_fragment((block_m, part_cols), "float32")
                for i, j in T.Parallel(block_m, part_cols):
                    col = bx * block_n + first + j
                    kept = c_parts[slot, i, j] if has_residual else None
                    values[i, j] = summed(columns_of(c_sum, first).sum(i, j), others, row + i, col, kept)
                if activation == "relu":
                    for i, j in T.Parallel(block_m, part_cols):
                        values[i, j] = T.max(values[i, j], T.float32(0))
                elif has_root:
                    roots = T.alloc_fragment((block_m, part_cols), "float32")
                    for i, j in T.Parallel(block_m, part_cols):
                        roots[i, j] = root(values[i, j])
                    for i, j in T.Parallel(block_m, part_cols):
                        values[i, j] *= roots[i, j] * roots[i, j]
                T.copy(values, c_part)

        @T.macro
        def send(where, first, c_parts, slot):  # type: ignore[no-untyped-def]
            C, row = where[1], where[2]  # noqa: N806
            col = where[3] * block_n + first
            T.tma_copy(c_parts[slot, :, :], C[row : row + block_m, col : col + part_cols])

        store_parts = stored_by_parts(fill, send, block_m, block_n, output)

        @T.macro
        def finish(others, C, row, bx, c_sum, results):  # type: ignore[no-untyped-def]  # noqa: N803
            if through_shared:
                c_tile = T.alloc_shared((block_m, block_n), output)
                if has_residual and not is_scheduled:
                    T.copy(others[3][row, bx * block_n], c_tile)
            if not is_plain:
                for i, j in T.Parallel(*sum_shape):
                    r, c = (j, i) if swapped else (i, j)
                    in_tile = through_shared and has_residual and not is_scheduled
                    kept = c_tile[r, c] if in_tile else None
                    results[i, j] = finished(c_sum[i, j], others, row + r, bx * block_n + c, kept)
            if not through_shared:
                T.copy(results, C[row, bx * block_n])
            else:
                if swapped:
                    for i, j in T.Parallel(*sum_shape):
                        c_tile[j, i] = results[i, j]
                else:
                    T.copy(results, c_tile)
                T.copy(c_tile, C[row, bx * block_n])

        @T.macro
        def store(others, C, row, bx, c_sum):  # type: ignore[no-untyped-def]  # noqa: N803
            if by_parts:
                store_parts((others, C, row, bx), c_sum)
            elif integer_sums:
                results = T.alloc_fragment(sum_shape, "float32")
                finish(others, C, row, bx, c_sum, results)
            else:
                finish(others, C, row, bx, c_sum, c_sum)

        @T.macro
        def finish_vector(others, C, row, col, sums, first, results, start):  # type: ignore[no-untyped-def]  # noqa: N803
            if not is_plain:
                # step by step, since TileLang repeats an expression wherever it is used
                for v in T.unroll(TOGETHER):
                    results[start + v] = summed(sums[first + v], others, row, col + v)
                for v in T.unroll(TOGETHER):
                    results[start + v] = activated(results[start + v])
            values = T.alloc_local((TOGETHER,), output)
            for v in T.unroll(TOGETHER):
                values[v] = T.cast(results[start + v], output)
            for v in T.vectorized(TOGETHER) if n % TOGETHER == 0 else T.unroll(TOGETHER):
                C[row, col + v] = values[v]

        @T.macro
        def write(where, row, col, sums, first):  # type: ignore[no-untyped-def]
            others, C = where[0], where[1]  # noqa: N806
            in_row, in_col = where[2] + row, where[3] * block_n + col
            if integer_sums:
                results = T.alloc_local((TOGETHER,), "float32")
                finish_vector(others, C, in_row, in_col, sums, first, results, 0)
            else:
                finish_vector(others, C, in_row, in_col, sums, first, sums, first)

        @T.macro
        def tile(A, B, A_scale, B_scale, bias, residual, C, P, place, a_tile, b_tile, c_sum):  # type: ignore[no-untyped-def]  # noqa: N803
            others = (A_scale, B_scale, bias, residual)
            bx, by, part = place
            T.clear(c_sum)
            row = first_row(by)
            if by_blocks:
                block_sum = T.alloc_fragment(sum_shape, accumulator)
                a_factors = T.alloc_fragment((block_m,), "float32")
                b_factor = T.alloc_local((1,), "float32")
                for i in T.Parallel(block_m):
                    a_factors[i] = A_scale[row + i, part * trips]
                b_factor[0] = B_scale[part * trips, bx * block_n // BLOCK]
            # copies beyond an edge read zeros, which add nothing, and write nothing
            for ko in T.Pipelined(trips, num_stages=num_stages):
                T.copy(at(A, not a_by_rows, (part * trips + ko) * block_k, row), a_tile)
                T.copy(at(B, b_by_depth, (part * trips + ko) * block_k, bx * block_n), b_tile)
                if by_blocks:
                    product(a_tile, b_tile, block_sum, True)
                    for i, j in T.Parallel(*sum_shape):
                        c_sum[i, j] += block_sum[i, j] * (a_factors[j if swapped else i] * b_factor[0])
                    # the scales of the next iteration, which arrive during its product
                    for i in T.Parallel(block_m):
                        a_factors[i] = A_scale[row + i, part * trips + ko + 1]
                    b_factor[0] = B_scale[part * trips + ko + 1, bx * block_n // BLOCK]
                else:
                    product(a_tile, b_tile, c_sum, False)
            if adds_in_cluster:
                add = added_in_cluster(block_m, block_n, split_k, wide, swapped, threads, write)
                add((others, C, row, bx), c_sum, part)
            elif split_k > 1:
                if swapped:
                    for i, j in T.Parallel(*sum_shape):
                        P[row + j, part, bx * block_n + i] = T.cast(c_sum[i, j], wide)
                else:
                    rows, cols = slice(row, row + block_m), slice(bx * block_n, (bx + 1) * block_n)
                    T.copy(c_sum, P[rows, part, cols])
            else:
                store(others, C, row, bx, c_sum)

        def issued(a: Any, b: Any, total: Any, clear: Any) -> Any:
            return T.wgmma_gemm(a, b, total, not a_by_rows, not b_by_depth, policy=policy, clear_accum=clear)

        def span(first: Any, size: int) -> slice:
            return slice(first, first + size)

        def issue(source: Any, tile: Any, barrier: Any, is_shared: bool) -> Any:
            # what blocks of a cluster share is copied by the first one, for both
            mask = 3 if is_shared else None
            return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=32, cluster_mask=mask)

        @T.macro
        def load(tensors, place, depth, a_tile, b_tile, stage, full):  # type: ignore[no-untyped-def]
            row, col, deep = first_row(place[1]), place[0] * block_n, depth * block_k
            rows, cols, deeps = (
                slice(row, row + block_m),
                slice(col, col + block_n),
                slice(deep, deep + block_k),
            )
            a_part = at(tensors[0], not a_by_rows, deeps, rows)
            b_part = at(tensors[1], b_by_depth, deeps, cols)
            issue(a_part, a_tile[stage, :, :], full[stage], cluster_n > 1)
            issue(b_part, b_tile[stage, :, :], full[stage], cluster_m > 1)

        @T.macro
        def keep(tensors, place, target, c_sum):  # type: ignore[no-untyped-def]
            if target is None:
                store(tensors[2:6], tensors[6], first_row(place[1]), place[0], c_sum)
            else:
                T.copy(c_sum, tensors[7][target, 0, 0])

        @T.macro
        def partial_tile(role, tensors, buffers, barriers, block, number, done):  # type: ignore[no-untyped-def]
            index, first, count = shared_tiles.part(block, number)
            if count > 0:
                where = place(T.min(index, shared_tiles.tiles - 1))
                target = block * RANGES + number
                role(tensors, buffers, barriers, where, (first, count), done, target)

        @T.macro
        def walk(role, tensors, buffers, barriers, block):  # type: ignore[no-untyped-def]
            if persistent:
                stay, clusters = persistent // pair, cluster_rows * cluster_cols
                for turn in T.serial((clusters - block // pair + stay - 1) // stay):
                    # the model evaluates turns that the last blocks do not have
                    cluster = T.min(turn * stay + block // pair, clusters - 1)
                    whole = inner(place(cluster), block)
                    if is_open:  # divisions by sizes known at run time: once a tile, not before each copy
                        kept = T.alloc_local((2,), "int32")
                        kept[0], kept[1] = whole[0], whole[1]
                        whole = kept[0], kept[1]
                    role(tensors, buffers, barriers, whole, (0, depths), turn * depths, None)
            elif is_pair:
                role(tensors, buffers, barriers, inner(place(block // 2), block), (0, depths), 0, None)
            else:
                whole_turns = shared_tiles.turns
                for turn in T.serial(whole_turns):
                    whole = place(turn * stream_k + block)
                    role(tensors, buffers, barriers, whole, (0, depths), turn * depths, None)
                # not a loop, so that the model knows the length of each
                partial_tile(role, tensors, buffers, barriers, block, 0, whole_turns * depths)
                done = whole_turns * depths + shared_tiles.part(block, 0)[2]
                partial_tile(role, tensors, buffers, barriers, block, 1, done)

        def scale_of_row(tensors: Any, place: Any, row: Any, depth: Any) -> Any:
            return tensors[2][T.min(first_row(place[1]) + row, m - 1), depth]

        def scale_of_columns(tensors: Any, place: Any, part: Any, depth: Any) -> Any:
            # the last tile may end before its last part
            return tensors[3][depth, T.min(place[0] * block_n // BLOCK + part, (n - 1) // BLOCK)]

        def sum_registers() -> Any:
            if is_scheduled and by_blocks:
                return promotion_registers(sum_parts, (block_m, scaled_cols))
            return T.alloc_fragment(sum_shape, accumulator)

        consumer = in_order()
        if by_blocks:
            consumer = promoting_consumer(
                scale_of_row, scale_of_columns, depths, sum_parts, block_m * scaled_cols // threads
            )
        run = scheduled_tiles(load, issued, keep, num_stages, threads, is_pair, consumer)
        reported = T.alloc_cluster_barrier if is_pair else T.alloc_barrier

        @T.prim_func
        def matmul(  # type: ignore[no-untyped-def]
            A: T.Tensor(sizes["A"], dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor(sizes["B"], dtype),  # type: ignore[valid-type]  # noqa: N803
            A_scale: tensor("A_scale", "float32"),  # type: ignore[valid-type]  # noqa: N803
            B_scale: tensor("B_scale", "float32"),  # type: ignore[valid-type]  # noqa: N803
            bias: tensor("bias", output),  # type: ignore[valid-type]
            residual: tensor("residual", output),  # type: ignore[valid-type]
            C: T.Tensor((m, n), output),  # type: ignore[valid-type]  # noqa: N803
            P: partial,  # noqa: N803
        ):
            launch = {"threads": threads + GROUP if is_scheduled else threads}
            with T.Kernel(*grid, **launch, cluster_dims=cluster) as blocks:
                if adds_in_cluster:
                    T.import_source(device_function(split_k, wide))
                a_tile = T.alloc_shared((num_stages, *a_shape) if is_scheduled else a_shape, dtype)
                b_tile = T.alloc_shared((num_stages, *b_shape) if is_scheduled else b_shape, dtype)
                c_sum = sum_registers()
                tensors = (A, B, A_scale, B_scale, bias, residual, C, P)
                buffers = (a_tile, b_tile, c_sum)
                if is_scheduled:
                    full = T.alloc_barrier([1] * num_stages)
                    free = reported([pair * threads // 32] * num_stages)
                    run(tensors, buffers, (full, free), walk, blocks)
                elif persistent:
                    for turn in T.serial(T.ceildiv(tile_rows * tile_cols - blocks, persistent)):
                        tile(*tensors, (*place(turn * persistent + blocks), 0), *buffers)
                else:
                    T.use_swizzle(swizzle, enable=swizzle > 0)
                    tile(*tensors, (blocks[0], blocks[1], blocks[2] if split_k > 1 else 0), *buffers)
                if by_parts:
                    T.tma_store_wait(0)  # a block keeps its tiles until they have been read
            if adds_later:
                with T.Kernel(m, T.ceildiv(n, ADDED_COLUMNS), threads=ADDED_THREADS) as (by, bx):
                    total = T.alloc_fragment((ADDED_COLUMNS,), wide)
                    T.clear(total)
                    for part in T.unroll(split_k):
                        for j in T.Parallel(ADDED_COLUMNS):
                            total[j] += P[by, part, bx * ADDED_COLUMNS + j]
                    for j in T.Parallel(ADDED_COLUMNS):
                        col = bx * ADDED_COLUMNS + j
                        C[by, col] = T.cast(
                            finished(total[j], (A_scale, B_scale, bias, residual), by, col), output
                        )

            if stream_k > 1:
                with T.Kernel(T.max(shared_tiles.rest, 1), block_m // added_rows, threads=ADDED_THREADS) as (
                    tile_index,
                    strip,
                ):
                    rows_sum = T.alloc_fragment((added_rows, block_n), wide)
                    T.clear(rows_sum)
                    block, count, number = shared_tiles.slots(tile_index)
                    for other in T.serial(count):
                        slot = (block + other) * RANGES + T.if_then_else(other == 0, number, 0)
                        for i, j in T.Parallel(added_rows, block_n):
                            rows_sum[i, j] += P[slot, strip * added_rows + i, j]
                    bx, by = place(shared_tiles.turns * stream_k + tile_index)
                    for i, j in T.Parallel(added_rows, block_n):
                        row, col = first_row(by) + strip * added_rows + i, bx * block_n + j
                        if tile_index < shared_tiles.rest:
                            C[row, col] = T.cast(
                                finished(rows_sum[i, j], (A_scale, B_scale, bias, residual), row, col), output
                            )

        return matmul


TEMPLATES = (MatmulGpu(),)
