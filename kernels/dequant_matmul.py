"""dequant_matmul: C[m, n] = A[m, k] W[n, k]^T with weights of four or two bits, and its template.

W is quantised in groups along k: W[j, i] = values[q[j, i]] * S[i // group, j], with codes q of four bits. The
attribute `format` says what they mean: signed integers with an offset of 8 (int4), quantiles of a normal
distribution (nf4), or floating-point numbers of two bits of exponent and one more (fp4). With `zeros`,
weights of int4 are (q[j, i] - Z[i // group, j]) * S[i // group, j]. In mxfp4, numbers of fp4 have scales that
are powers of two, S = 2^(e - 127) with e of uint8, for groups of 32. Sums are in float32.

In int2, codes of two bits are the integers -2 .. 1, A is int8, and sums are in int32, exactly; a row has one
scale: C[i, j] = S[0, j] * sum. Scales of A's rows are left to the caller.

With dtype float8_e4m3fn A is of float8, and S and C of bfloat16. Weights of int4 are multiplied in float8,
where their integers are exact. `scales` says what A's numbers are multiplied by: nothing, one number for the
`tensor`, or one for each `row`, in float32.

B[n, ceil(k / 2)] (int2: 4) of uint8 packs neighbours along k into a byte, the first one in the lowest bits.
S and Z of [ceil(k / group), n] have the dtype of C. Scales of neighbouring rows of W are neighbours, so that
a block copies those of its rows at once.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Parts, shape
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, ShortSums, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import dequant_matmul as search_space
from ..search_spaces.matrix_unit import is_hopper
from ..target.spec import Target
from ._direct_weights import direct_product
from ._exact_products import exact_products
from ._float8 import FLOAT8, FLOAT8_SUM_DIGITS, LARGEST_FLOAT8, OUTPUTS, short_sums
from ._float8_activations import float8_product
from ._overlapped_weights import overlapped_product
from ._packed import (
    FORMATS,
    Packing,
    codes_of,
    constant_of,
    decoder,
    nearest_codes,
    packed_codes,
    scale_of,
    word_of,
)
from ._packed_vendor import packed_products
from ._streamed_weights import streamed_product
from ._vendor_calls import without_result
from ._warp_policy import warp_policy
from ._weight_fragments import Fragments, step_of

if TYPE_CHECKING:
    import torch

GROUPS = (32, 64, 128, 256, 512, 1024)
# weights that a thread unpacks at a time for shared memory, as in the search space
RUNS = {"shared": 8, "shared_wide": 32}
A_SCALES: Mapping[str, tuple[Axis, ...]] = {"tensor": (1,), "row": ("m",)}
PANEL = 1 << 25  # weights that are quantised or dequantised at once
DIRECT_ROWS = 8  # of A, for which weights that go from memory to registers are tried first
MOST_INT8_TERMS = (2**31 - 1) // (2 * 128)  # products of int2 and int8 whose sum an int32 holds


class DequantMatmul(Operator):
    name = "dequant_matmul"
    dims = ("m", "n", "k")
    # group: weights of a row that share a scale; -1: the whole row
    attrs: ClassVar[Mapping[str, Value]] = {
        "group": 128,
        "format": "int4",
        "zeros": False,
        "scales": "none",
    }
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "format": tuple(FORMATS),
        "scales": ("none", *A_SCALES),
    }
    later_attrs = ("format", "zeros", "scales")
    dtypes = ("float16", "bfloat16", FLOAT8)
    axes: ClassVar[Axes] = {
        "A": ("m", "k"),
        "B": ("n", Parts("k", 2)),
        "S": (Parts("k", "group"), "n"),
        "C": ("m", "n"),
    }
    # TileLang paper, appendix A: D0 .. D7 are V0 .. V7 (m = 1), D8 .. D15 are M0 .. M7.
    # D16 .. D19: V5 and V2 for batches of 16 and 64 tokens, between the two. The rest: V0, V5 and M1 in other
    # formats
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "D0": {"m": 1, "n": 16384, "k": 16384},
        "D1": {"m": 1, "n": 43008, "k": 14336},
        "D2": {"m": 1, "n": 14336, "k": 14336},
        "D3": {"m": 1, "n": 57344, "k": 14336},
        "D4": {"m": 1, "n": 14336, "k": 57344},
        "D5": {"m": 1, "n": 9216, "k": 9216},
        "D6": {"m": 1, "n": 36864, "k": 9216},
        "D7": {"m": 1, "n": 9216, "k": 36864},
        "D8": {"m": 4096, "n": 1024, "k": 8192},
        "D9": {"m": 4096, "n": 8192, "k": 8192},
        "D10": {"m": 4096, "n": 28672, "k": 8192},
        "D11": {"m": 4096, "n": 8192, "k": 28672},
        "D12": {"m": 8192, "n": 1024, "k": 8192},
        "D13": {"m": 8192, "n": 8192, "k": 8192},
        "D14": {"m": 8192, "n": 28672, "k": 8192},
        "D15": {"m": 8192, "n": 8192, "k": 28672},
        "D16": {"m": 16, "n": 9216, "k": 9216},
        "D17": {"m": 64, "n": 9216, "k": 9216},
        "D18": {"m": 16, "n": 14336, "k": 14336},
        "D19": {"m": 64, "n": 14336, "k": 14336},
        "Z5": {"m": 1, "n": 9216, "k": 9216, "zeros": True},
        "NF0": {"m": 1, "n": 16384, "k": 16384, "format": "nf4", "group": 64},
        "NF9": {"m": 4096, "n": 8192, "k": 8192, "format": "nf4", "group": 64},
        "FP0": {"m": 1, "n": 16384, "k": 16384, "format": "fp4"},
        "MX0": {"m": 1, "n": 16384, "k": 16384, "format": "mxfp4", "group": 32},
        "MX9": {"m": 4096, "n": 8192, "k": 8192, "format": "mxfp4", "group": 32},
        "T0": {"m": 1, "n": 16384, "k": 16384, "format": "int2", "group": -1},
        "T9": {"m": 4096, "n": 8192, "k": 8192, "format": "int2", "group": -1},
    }
    default_names = ("D0", "D8", "D17")

    def validate(self, workload: Workload) -> None:
        m, n, k = (workload.dims[d] for d in self.dims)
        for name, rows, cols, extents in (("A", m, k, "m*k"), ("W", n, k, "n*k"), ("C", m, n, "m*n")):
            if rows * cols > MAX_DIMENSION:
                raise WorkloadError(
                    f"dequant_matmul: {name} would have {extents}={rows * cols} elements, and the kernels "
                    f"index at most {MAX_DIMENSION}; "
                    "split the product along its largest dimension"
                )
        group = workload.attrs["group"]
        if group != -1 and group not in GROUPS:
            raise WorkloadError(
                f"dequant_matmul: group={group} is not supported; take {', '.join(map(str, GROUPS))}, or -1 "
                "for one scale a row"
            )
        format_name, packing = self.attribute(workload.attrs, "format"), self.packing(workload)
        if packing.group and group != packing.group:
            raise WorkloadError(
                f"dequant_matmul: format={format_name} has one scale for "
                f"{'a row' if packing.group == -1 else f'{packing.group} weights'}, not group={group}; take "
                f"group={packing.group}"
            )
        if format_name != "int4" and self.attribute(workload.attrs, "zeros"):
            raise WorkloadError(
                f"dequant_matmul: zeros=true is for format=int4, whose codes have zero points; "
                f"format={format_name} has a code for zero: take zeros=false"
            )
        is_float8, scales = workload.dtype == FLOAT8, self.attribute(workload.attrs, "scales")
        if is_float8 and (format_name != "int4" or group == 32 or self.attribute(workload.attrs, "zeros")):
            raise WorkloadError(
                f"dequant_matmul: dtype={FLOAT8} multiplies weights of format=int4 without zero points, at "
                f"least 64 by one scale, not format={format_name} with group={group}; take dtype=bfloat16"
            )
        if scales != "none" and not is_float8:
            raise WorkloadError(
                f"dequant_matmul: scales={scales} is for dtype={FLOAT8}, and this workload has "
                f"{workload.dtype}; take scales=none"
            )
        if packing.activations == "int8" and k > MOST_INT8_TERMS:
            raise WorkloadError(
                f"dequant_matmul: k={k} products of format={format_name} may exceed an int32; "
                f"split k into parts of at most {MOST_INT8_TERMS}"
            )

    def packing(self, workload: Workload) -> Packing:
        return FORMATS[str(self.attribute(workload.attrs, "format"))]

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        packing = FORMATS[str(self.attribute(attrs, "format"))]
        scales = self.axes["S"]
        zeros = {"Z": scales} if self.attribute(attrs, "zeros") else {}
        kind = str(self.attribute(attrs, "scales"))
        of_rows: Axes = {"A_scale": A_SCALES[kind]} if kind in A_SCALES else {}
        packed_weights = ("n", Parts("k", packing.per_byte))
        return {"A": ("m", "k"), "B": packed_weights, "S": scales, **zeros, **of_rows, "C": ("m", "n")}

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1); weights ~ N(0, 1), each group quantised by its largest magnitude; so C ~ N(0, k)."""
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype, group, groups = self._output(workload), group_of(workload), _groups(workload)
        packing, zeros = self.packing(workload), bool(self.attribute(workload.attrs, "zeros"))
        generator = torch.Generator(device).manual_seed(seed)
        of_a = torch.float32 if workload.dtype == FLOAT8 else dtype
        a = torch.randn(m, k, generator=generator, device=device, dtype=of_a)
        factor = 1.0
        if packing.activations == "int8":  # a unit of A is worth 4 / 127
            factor = 4 / 127
            a = (a / factor).round_().clamp_(-127, 127)
        of_rows: dict[str, torch.Tensor] = {}
        if (kind := self.attribute(workload.attrs, "scales")) != "none":
            largest = a.abs().amax(1) if kind == "row" else a.abs().amax()[None]
            of_rows["A_scale"] = largest.clamp_(min=2.0**-10) / LARGEST_FLOAT8
            a = a / of_rows["A_scale"][:, None]
        a = a.to(getattr(torch, self.dtype_of("A", workload)))
        bytes_of = torch.empty(n, -(-k // packing.per_byte), dtype=torch.uint8, device=device)
        scales, points = (torch.empty(groups, n, dtype=dtype, device=device) for _ in range(2))
        if packing.scales:
            scales = scales.to(torch.uint8)
        for rows in _panels(n, k):
            weights = torch.randn(rows.stop - rows.start, k, generator=generator, device=device)
            padded = torch.nn.functional.pad(weights, (0, groups * group - k)).view(-1, groups, group)
            if zeros:  # the range of a group, with 0, in 15 steps
                low, high = (padded.amin(-1).clamp(max=0), padded.amax(-1).clamp(min=0))
                scale = ((high - low) / 15).to(dtype)
                point = (-low / scale.float()).round_()
                points[:, rows] = point.T.to(dtype)
                codes = (padded / scale.float()[..., None] + point[..., None]).round_().clamp_(0, 15)
                codes = codes.to(torch.uint8)
            else:
                scale, number = _scales(packing, padded, dtype)
                codes = nearest_codes(packing, padded / number[..., None])
            bytes_of[rows] = packed_codes(packing, codes.view(len(weights), -1)[:, :k])
            scales[:, rows] = (scale * factor).T if factor != 1 else scale.T
        return {"A": a, "B": bytes_of, "S": scales, **({"Z": points} if zeros else {}), **of_rows}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        packing = FORMATS[str(self.attribute(attrs, "format"))]
        output = OUTPUTS.get(dtype, dtype)
        return {
            "A": packing.activations or dtype,
            "B": "uint8",
            "S": packing.scales or output,
            "A_scale": "float32",
            "C": output,
        }

    def _output(self, workload: Workload) -> "torch.dtype":
        import torch

        found: torch.dtype = getattr(torch, self.dtype_of("C", workload))
        return found

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, with weights dequantised exactly, by panels of rows."""
        return {"C": _product(workload, inputs, squared=False)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch.matmul on weights dequantised before: four times the bytes or more, and no unpacking.

        For int2 beside it a product of int8 that ends with the sums, where the library takes these shapes.
        bitsandbytes for nf4, if it is installed.
        """
        import torch

        (m, n, k), dtype = (workload.dims[d] for d in self.dims), self._output(workload)
        weights = torch.empty(n, k, dtype=dtype, device=inputs["A"].device)
        for rows in _panels(n, k):
            weights[rows] = dequantised(workload, inputs, rows).to(dtype)
        a = _activations(inputs).to(dtype)
        out = torch.empty(m, n, dtype=dtype, device=a.device)

        def product() -> object:
            return torch.matmul(a, weights.T, out=out)

        library = "torch" if a.device.type == "cpu" else "hipBLAS" if torch.version.hip else "cuBLAS"
        short = {"float16": "fp16", "bfloat16": "bf16"}[self.dtype_of("C", workload)]
        calls: dict[str, Callable[[], object]] = {
            f"{library} {short} (weights dequantised beforehand)": product
        }
        if inputs["A"].dtype == torch.int8 and library == "cuBLAS" and m > 16 and n % 8 == 0 and k % 8 == 0:
            whole = _integers(workload, inputs)

            def sums() -> object:
                return torch._int_mm(inputs["A"], whole.T)

            calls[f"{library} int8 (weights unpacked beforehand, sums without scales)"] = without_result(sums)
        if workload.dtype != FLOAT8 and "Z" not in inputs:
            format_name, group = str(self.attribute(workload.attrs, "format")), group_of(workload)
            calls |= packed_products(a, inputs["B"], inputs["S"], (n, k), format_name, group)
        return calls

    def flops(self, workload: Workload) -> int:
        """Operations of the product; unpacking and scaling are not counted."""
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        """A, packed weights, scales and zero points read once, C written once."""
        axes, dims = self.tensor_axes(workload.attrs), workload.dims
        return sum(
            math.prod(shape(tensor, dims, workload.attrs)) * DTYPE_BYTES[self.dtype_of(name, workload)]
            for name, tensor in axes.items()
        )

    def max_relative_error(self, workload: Workload) -> float:
        """Two to three times the error of rounding the dequantised weights and C to the dtype.

        Quantiles of nf4 are rounded before they are scaled, and their products again. Sums of float8 are
        rounded after each 32 terms of a group.
        """
        limit = {"bfloat16": 5e-3, "float16": 8e-4}[self.dtype_of("C", workload)]
        if workload.dtype == FLOAT8:
            return limit + 2.0**-FLOAT8_SUM_DIGITS * math.sqrt(self._short_sums(workload).additions)
        return limit

    def rounding(self, workload: Workload) -> Rounding:
        """Dequantised weights are rounded to the dtype. Sums of int2 are exact, and rounded once."""
        if self.packing(workload).activations == "int8":
            return Rounding(1)
        if workload.dtype == FLOAT8:
            return Rounding(workload.dims["k"], cuts=True, short_sums=self._short_sums(workload))
        return Rounding(workload.dims["k"], inner=workload.dtype, cuts=True)

    def _short_sums(self, workload: Workload) -> ShortSums:
        """Those of float8, of a group."""
        return short_sums(min(workload.dims["k"], group_of(workload)))

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"C": _product(workload, inputs, squared=True).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """A of whole numbers -2 .. 2, any weights, and scales 1/2, 1 and 2.

        Sums are exact but for nf4, whose numbers have no short fractions.
        """
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype, generator = self._output(workload), torch.Generator(device).manual_seed(seed)
        packing = self.packing(workload)
        a = whole_numbers((m, k), 2, getattr(torch, self.dtype_of("A", workload)), generator)
        bytes_of_row, groups = -(-k // packing.per_byte), _groups(workload)
        random = torch.randint(
            0, 256, (n, bytes_of_row), generator=generator, device=device, dtype=torch.uint8
        )
        # the rest of a row's last byte are zeros of the format
        random = packed_codes(packing, codes_of(packing, random, k))
        exponents = whole_numbers((groups, n), 1, torch.int8 if packing.scales else dtype, generator)
        scales = (exponents.int() + 127).to(torch.uint8) if packing.scales else exponents.exp2_()
        found = {"A": a, "B": random, "S": scales}
        if self.attribute(workload.attrs, "zeros"):
            found["Z"] = whole_numbers((groups, n), 7, dtype, generator) + 8
        if (kind := self.attribute(workload.attrs, "scales")) != "none":
            rows = m if kind == "row" else 1
            found["A_scale"] = whole_numbers((rows,), 1, torch.float32, generator).exp2_()
        return SecondInputs(found, is_exact=packing is not FORMATS["nf4"])


def group_of(workload: Workload) -> int:
    """Number of weights of a row that share a scale."""
    group = int(workload.attrs["group"])
    return workload.dims["k"] if group == -1 else group


def dequantised(workload: Workload, inputs: Tensors, rows: slice) -> "torch.Tensor":
    """W[rows, k] in float32, exactly (but for the last bit of nf4)."""
    import torch

    packing, k = OPERATOR.packing(workload), workload.dims["k"]
    codes = codes_of(packing, inputs["B"][rows], k)
    values = torch.tensor(packing.values, device=codes.device)

    def spread(of_groups: "torch.Tensor") -> "torch.Tensor":
        return of_groups[:, rows].float().T.repeat_interleave(group_of(workload), dim=1)[:, :k]

    scales = spread(inputs["S"])
    if packing.scales:
        scales = scales.sub_(127).exp2_()
    return (codes.float() - spread(inputs["Z"]) if "Z" in inputs else values[codes.int()]).mul_(scales)


def _integers(workload: Workload, inputs: Tensors) -> "torch.Tensor":
    """Codes of int2 as the int8 that they stand for."""
    import torch

    packing = OPERATOR.packing(workload)
    return codes_of(packing, inputs["B"], workload.dims["k"]).to(torch.int8) - packing.zero


def _scales(
    packing: Packing, groups: "torch.Tensor", dtype: "torch.dtype"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """The scales of groups along the last axis, as the operator stores them, and as numbers."""
    import torch

    if not packing.largest:
        scale = groups.abs().mean(-1).to(dtype)
        return scale, scale.float()
    largest = groups.abs().amax(-1)
    if not packing.scales:
        scale = (largest / packing.largest).to(dtype)
        return scale, scale.float()
    # the largest magnitude has the largest exponent, 2, of e2m1
    exponent = largest.clamp(min=2.0**-10).log2().floor_() - 2
    return (exponent + 127).to(torch.uint8), exponent.exp2()


def _product(workload: Workload, inputs: Tensors, squared: bool) -> "torch.Tensor":
    """C, or the sum of the squares of its terms, in float32."""
    import torch

    a = _activations(inputs)
    a = a.square() if squared else a
    out = torch.empty(workload.dims["m"], workload.dims["n"], device=a.device)
    with exact_products():
        for rows in _panels(workload.dims["n"], workload.dims["k"]):
            weights = dequantised(workload, inputs, rows)
            out[:, rows] = a @ (weights.square_() if squared else weights).T
    return out


def _activations(inputs: Tensors) -> "torch.Tensor":
    """A in float32, scaled."""
    a = inputs["A"].float()
    return a.mul_(inputs["A_scale"][:, None]) if "A_scale" in inputs else a


def _groups(workload: Workload) -> int:
    return -(-workload.dims["k"] // group_of(workload))


def _panels(n: int, k: int) -> list[slice]:
    """Slices of the rows of W, of at most `PANEL` weights each."""
    rows = max(1, PANEL // k)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


OPERATOR = DequantMatmul()


class DequantMatmulGpu(KernelTemplate):
    """One output tile per block; A, packed weights and scales pass through shared memory in a pipelined loop.

    The weights of an iteration are unpacked either to shared memory, as the right operand of C = A W^T, or to
    registers, as the left operand of C^T = W A^T. For few rows of A, W may go from memory to registers
    (`_direct_weights.py`) or stream through shared memory (`_streamed_weights.py`), for many it may be
    unpacked during the products before (`_overlapped_weights.py`).
    """

    operator: DequantMatmul = OPERATOR
    name = "dequant_matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("float16", "bfloat16", FLOAT8)
    scales: ClassVar[Mapping[str, Scale]] = {
        "m": Scale(("block_m",), search_space.OVERLAPPED_TILES),
        "n": Scale(("block_n",), search_space.COLUMN_TILES),
        "k": Scale(("block_k",), search_space.DEPTHS, "reduce_warps"),
    }
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "n": ("rows of S and C are n elements apart, and the copies need rows that start at whole 16 bytes"),
        "k": ("rows of A and W have k elements, and the copies need rows that start at whole 16 bytes"),
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        panel = config.int("swizzle")
        if config.get("overlapped", False):
            return None
        return (Config({**config, "swizzle": 0}), Rasterization("row", panel)) if panel else None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Weights in registers (16 rows per warp) for few rows of A, in shared memory for many, and unpacked
        during the products before where these have a block for nearly every core.

        Tiles of W have 128 rows if nearly every core gets a block, else 64.
        """
        space = self.space(workload, target)
        m, n = workload.dims["m"], workload.dims["n"]
        is_float8 = workload.dtype == FLOAT8
        few, hip = m <= 64 and not is_float8, target.kind == "hip"
        for direct in self._direct_configs(workload, target):
            if direct in space:
                return direct
        for block_m in (192 if is_float8 else 256, 128):
            blocks = -(-m // block_m) * -(-n // 128)
            if blocks >= 0.9 * target.int("core.count"):
                for num_stages in (4, 3):
                    overlapped = self._overlapped_config(workload, block_m, num_stages)
                    if overlapped in space:
                        return overlapped
        block_m = next((tile for tile in (16, 32, 64, 128) if tile >= m), 128)
        block_n = 128 if -(-m // block_m) * -(-n // 128) >= 0.9 * target.int("core.count") else 64
        wanted = {
            "block_m": block_m,
            "block_n": block_n,
            "block_k": 128 if few and not hip else 64,
            "num_stages": 1 if hip else 4 if few else 3,
            "threads": 2 * block_n,
            "weights": "registers" if few else "shared",
            "decode": "words" if is_float8 else self.operator.packing(workload).decoders[0],
            "swizzle": 0,
        }
        # full_row gives each weight to one warp; it is illegal where square does the same
        tried = [
            Config({**wanted, "policy": policy})
            for policy in (("full_row", "square") if few else ("square", "full_row"))
        ]
        return next(
            (config for config in tried if config in space), next(iter(space.nearest(tried[0], 1)), None)
        )

    def _overlapped_config(self, workload: Workload, block_m: int, num_stages: int) -> Config:
        """Two warpgroups with the weights of 128 rows."""
        is_float8, decoders = workload.dtype == FLOAT8, self.operator.packing(workload).decoders
        return Config(
            {
                "block_m": block_m,
                "block_n": 128,
                "block_k": 128 if is_float8 and workload.attrs["group"] != 64 else 64,
                "num_stages": num_stages,
                "threads": 256,
                "weights": "registers",
                "decode": "words" if "words" in decoders else "table",
                "policy": "full_row",
                "swizzle": 0,
                "overlapped": True,
            }
        )

    def _direct_configs(self, workload: Workload, target: Target) -> list[Config]:
        """On Hopper blocks that stay, to which weights stream; else few warps for 16 rows of W, since small
        blocks fill the chip, or eight for 32 of int4.

        Blocks that keep A have few tiles at a time; those whose stages have parts of A have more, for which
        these are read once.
        """
        packing, (m, k) = self.operator.packing(workload), (workload.dims[d] for d in ("m", "k"))
        hopper, cores = is_hopper(target), target.int("core.count")
        is_float = packing.values[0] == 0  # its words have the places of float16
        by_words = "words" in packing.decoders and not (is_float and workload.dtype == "bfloat16")
        common = {
            "block_m": 8 if m <= 8 else 16,
            "block_k": step_of(packing),
            "weights": "registers",
            "decode": "words" if by_words else "table",
            "policy": "square",
            "swizzle": 0,
        }
        sizes = []  # block_n, warps, of the same rows, num_stages, persistent
        if hopper and m <= 8:
            is_kept = search_space.keeps_a(m, k, 1 if packing.activations == "int8" else 2, 8)
            sizes += [(32, 8, 8, 4, cores)] if is_kept else [(64, 8, 4, 3, 2 * cores)]
        elif hopper:
            sizes += [(32, 8, 8, 2, cores)]
        if hopper and packing is FORMATS["int4"]:
            sizes += [(32, 8, 8, 2, 0)]
        if m <= DIRECT_ROWS:
            sizes += [(16, 4, 4, 2, 0), (16, 4, 4, 1, 0)]
        return [
            Config(
                {
                    **common,
                    "block_n": block_n,
                    "threads": 32 * warps,
                    "reduce_warps": together,
                    "num_stages": num_stages,
                    **({"persistent": persistent} if persistent else {}),
                }
            )
            for block_n, warps, together, num_stages, persistent in sizes
        ]

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812
        from tilelang.layout import make_swizzled_layout

        m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
        output, group = self.operator.dtype_of("C", workload), int(workload.attrs["group"])
        packing, zeros = (
            self.operator.packing(workload),
            bool(self.operator.attribute(workload.attrs, "zeros")),
        )
        dtype, scale_dtype = packing.activations or output, packing.scales or output
        in_integers = packing.activations == "int8"
        accumulator = "int32" if in_integers else "float32"
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        in_registers, swizzled = (
            config.str("weights").startswith("registers"),
            config["weights"] == "registers",
        )
        unpack = RUNS.get(config.str("weights"), 1)
        by_table, by_words = config["decode"] == "table", config["decode"] == "words"
        by_bytes = by_table or by_words  # registers take the weights of a byte at a time
        policy = warp_policy(config.str("policy"))

        groups = _groups(workload)
        scale_rows = 1 if group == -1 else -(-block_k // group)  # groups of an iteration
        per_byte, format_name = packing.per_byte, str(self.operator.attribute(workload.attrs, "format"))
        runs = block_k // unpack  # of weights unpacked at once, in a row of the tile
        tile_rows, tile_cols = (block_n, block_m) if in_registers else (block_m, block_n)
        # the last tile of rows begins early enough to be whole, as in matmul
        is_moved = not (isinstance(m, int) and (m % block_m == 0 or m < block_m))

        is_hoisted = packing.scales != ""  # the conversion of a scale
        word: Any = word_of(format_name, dtype) if by_words else None
        number, scaled = decoder(format_name, zeros, dtype, config.str("decode"))

        def scale_row(column: Any) -> Any:
            return column // group if scale_rows > 1 else 0

        def scale_at(s_tile: Any, z_tile: Any, factor: Any, column: Any, row: Any) -> tuple[Any, Any]:
            if in_integers:
                return None, None
            at = scale_row(column)
            scale = factor[0] if factor is not None else scale_of(s_tile[at, row], dtype)
            return scale, z_tile[at, row] if zeros else None

        def local_arrays(count: int) -> tuple[Any, Any, Any, Any]:
            if in_registers and not by_bytes:
                return None, None, None, None
            packed = T.alloc_local((count // per_byte,), "uint8")
            values = T.alloc_local((count,), dtype)
            words = T.view(values, (count // per_byte,), "uint32") if by_words else None
            return packed, values, words, T.alloc_local((1,), dtype) if is_hoisted else None

        def zero_tile() -> Any:
            return T.alloc_shared((scale_rows, block_n), output) if zeros else None

        def code_table() -> Any:
            return T.alloc_shared((len(packing.values),), dtype) if by_table else None

        def result(total: Any, scale: Any) -> Any:
            if not in_integers:
                return total
            return T.cast(T.cast(total, "float32") * T.cast(scale, "float32"), output)

        @T.macro
        def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
            with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
                a_tile = T.alloc_shared((block_m, block_k), dtype)
                b_tile = T.alloc_shared((block_n, block_k // per_byte), "uint8")
                s_tile = T.alloc_shared((scale_rows, block_n), scale_dtype)
                z_tile = zero_tile()
                c_tile = T.alloc_shared((block_m, block_n), output)
                c_sum = T.alloc_fragment((tile_rows, tile_cols), accumulator)
                table = code_table()
                T.use_swizzle(swizzle, enable=swizzle > 0)
                T.clear(c_sum)
                first = T.min(by * block_m, T.max(m - block_m, 0)) if is_moved else by * block_m
                if swizzled:
                    T.annotate_layout({b_tile: make_swizzled_layout(b_tile)})
                if by_table:
                    for i in T.Parallel(len(packing.values)):
                        table[i] = constant_of(packing.values, i, dtype)
                if in_integers:
                    T.copy(S[0, bx * block_n], s_tile)
                if in_registers:
                    weights = T.alloc_fragment((block_n, block_k), dtype)
                    packed, values, words, factor = local_arrays(per_byte)
                else:
                    weights = T.alloc_shared((block_n, block_k), dtype)
                    packed, values, words, factor = local_arrays(unpack)
                    thread = T.get_thread_binding()
                # copies beyond an edge read zeros; those of A cancel any weights beside them
                for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                    T.copy(A[first, ko * block_k], a_tile)
                    T.copy(B[bx * block_n, ko * (block_k // per_byte)], b_tile)
                    if not in_integers:
                        T.copy(S[0 if group == -1 else ko * block_k // group, bx * block_n], s_tile)
                    if zeros:
                        T.copy(Z[0 if group == -1 else ko * block_k // group, bx * block_n], z_tile)
                    if in_registers and by_bytes:
                        for i, byte in T.Parallel(block_n, block_k // per_byte):
                            if by_words:
                                words[0] = word(T.cast(b_tile[i, byte], "uint32"))
                            else:
                                packed[0] = b_tile[i, byte]
                                for v in T.unroll(per_byte):
                                    values[v] = number(packed[0], v, table)
                            if is_hoisted:
                                factor[0] = scale_of(s_tile[scale_row(byte * per_byte), i], dtype)
                            for v in T.vectorized(per_byte):
                                weights[i, byte * per_byte + v] = scaled(
                                    values[v], *scale_at(s_tile, z_tile, factor, byte * per_byte, i)
                                )
                        T.gemm(weights, a_tile, c_sum, transpose_B=True, policy=policy)
                    elif in_registers:
                        for i, j in T.Parallel(block_n, block_k):
                            weights[i, j] = number(b_tile[i, j // per_byte], j, table)
                        for i, j in T.Parallel(block_n, block_k):
                            weights[i, j] = scaled(weights[i, j], *scale_at(s_tile, z_tile, None, j, i))
                        T.gemm(weights, a_tile, c_sum, transpose_B=True, policy=policy)
                    else:
                        for step in T.serial(block_n * runs // threads):
                            row = (step * threads + thread) // runs
                            column = (step * threads + thread) % runs * unpack
                            for v in T.vectorized(unpack // per_byte):
                                packed[v] = b_tile[row, column // per_byte + v]
                            if by_words:
                                for v in T.unroll(unpack // per_byte):
                                    words[v] = word(T.cast(packed[v], "uint32"))
                            else:
                                for v in T.unroll(unpack):
                                    values[v] = number(packed[v // per_byte], v, table)
                            if is_hoisted:
                                factor[0] = scale_of(s_tile[scale_row(column), row], dtype)
                            for v in T.vectorized(unpack):
                                weights[row, column + v] = scaled(
                                    values[v], *scale_at(s_tile, z_tile, factor, column, row)
                                )
                        T.gemm(a_tile, weights, c_sum, transpose_B=True, policy=policy)
                if in_registers:
                    for i, j in T.Parallel(block_n, block_m):
                        c_tile[j, i] = result(c_sum[i, j], s_tile[0, i])
                elif in_integers:
                    for i, j in T.Parallel(block_m, block_n):
                        c_tile[i, j] = result(c_sum[i, j], s_tile[0, j])
                else:
                    T.copy(c_sum, c_tile)
                T.copy(c_tile, C[first, bx * block_n])

        given = (packing, format_name, output, (m, n, k), group, config, zeros)
        if workload.dtype == FLOAT8:
            kind = str(self.operator.attribute(workload.attrs, "scales"))
            if config.get("overlapped", False):
                program = overlapped_product(*given, kind)
            else:
                program = float8_product(output, (m, n, k), group, unpack, kind, config)
            # the type of None makes no parameter of the kernel
            a_scales: Any = {"row": T.Tensor((m,), "float32"), "tensor": T.Tensor((1,), "float32")}.get(
                kind, type(None)
            )

            @T.prim_func
            def dequant_matmul_float8(  # type: ignore[no-untyped-def]
                A: T.Tensor((m, k), FLOAT8),  # type: ignore[valid-type]  # noqa: N803
                B: T.Tensor((n, -(-k // per_byte)), "uint8"),  # type: ignore[valid-type]  # noqa: N803
                S: T.Tensor((groups, n), scale_dtype),  # type: ignore[valid-type]  # noqa: N803
                A_scale: a_scales,  # noqa: N803
                C: T.Tensor((m, n), output),  # type: ignore[valid-type]  # noqa: N803
            ):
                program(A, B, S, A_scale, C)

            return dequant_matmul_float8

        if config.int("reduce_warps", 0):
            product = streamed_product if config.int("persistent", 0) else direct_product
            program = product(Fragments(*given))
        elif config.get("overlapped", False):
            program = overlapped_product(*given)

        @T.prim_func
        def dequant_matmul(  # type: ignore[no-untyped-def]
            A: T.Tensor((m, k), dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor((n, -(-k // per_byte)), "uint8"),  # type: ignore[valid-type]  # noqa: N803
            S: T.Tensor((groups, n), scale_dtype),  # type: ignore[valid-type]  # noqa: N803
            C: T.Tensor((m, n), output),  # type: ignore[valid-type]  # noqa: N803
        ):
            program(A, B, S, S, C)

        if not zeros:
            return dequant_matmul

        @T.prim_func
        def dequant_matmul_zeros(  # type: ignore[no-untyped-def]
            A: T.Tensor((m, k), dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor((n, -(-k // per_byte)), "uint8"),  # type: ignore[valid-type]  # noqa: N803
            S: T.Tensor((groups, n), scale_dtype),  # type: ignore[valid-type]  # noqa: N803
            Z: T.Tensor((groups, n), output),  # type: ignore[valid-type]  # noqa: N803
            C: T.Tensor((m, n), output),  # type: ignore[valid-type]  # noqa: N803
        ):
            program(A, B, S, Z, C)

        return dequant_matmul_zeros


TEMPLATES = (DequantMatmulGpu(),)
