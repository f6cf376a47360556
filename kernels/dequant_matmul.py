"""dequant_matmul: C[m, n] = A[m, k] W[n, k]^T with four-bit weights, summed in float32, and its template.

W is quantised in groups along k: W[j, i] = (q[j, i] - 8) * S[i // group, j], where q is 0 .. 15 (signed int4
with an offset of 8, without zero points). B[n, ceil(k / 2)] of uint8 packs two neighbours along k into a
byte, the first one in the low half. S[ceil(k / group), n] has the dtype of A. Scales of neighbouring rows of
W are neighbours, so that a block copies those of its rows at once.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Parts
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import dequant_matmul as search_space
from ..target.spec import Target

if TYPE_CHECKING:
    import torch

GROUPS = (32, 64, 128, 256, 512, 1024)
OFFSET = 8  # q = 8 is zero
# weights that a thread unpacks at a time for shared memory, as in the search space
RUNS = {"shared": 8, "shared_wide": 32}
PANEL = 1 << 25  # weights that are quantised or dequantised at once
# a power of two whose last bit of the significand is worth 1, and its bits: `bits | q` is that power + q
UNITS: Mapping[str, tuple[int, int]] = {
    "float16": (1 << 10, 0x6400),
    "bfloat16": (1 << 7, 0x4300),
    "float32": (1 << 23, 0x4B000000),
}


class DequantMatmul(Operator):
    name = "dequant_matmul"
    dims = ("m", "n", "k")
    # group: weights of a row that share a scale; -1: the whole row
    attrs: ClassVar[Mapping[str, Value]] = {"group": 128}
    dtypes = ("float16", "bfloat16")
    axes: ClassVar[Axes] = {
        "A": ("m", "k"),
        "B": ("n", Parts("k", 2)),
        "S": (Parts("k", "group"), "n"),
        "C": ("m", "n"),
    }
    # TileLang paper, appendix A: D0 .. D7 are V0 .. V7 (m = 1), D8 .. D15 are M0 .. M7.
    # D16 .. D19: V5 and V2 for batches of 16 and 64 tokens, between the two
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

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1); weights ~ N(0, 1), each group quantised by its largest magnitude; so C ~ N(0, k)."""
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype, group, groups = getattr(torch, workload.dtype), group_of(workload), _groups(workload)
        generator = torch.Generator(device).manual_seed(seed)
        a = torch.randn(m, k, generator=generator, device=device, dtype=dtype)
        packed = torch.empty(n, -(-k // 2), dtype=torch.uint8, device=device)
        scales = torch.empty(groups, n, dtype=dtype, device=device)
        for rows in _panels(n, k):
            weights = torch.randn(rows.stop - rows.start, k, generator=generator, device=device)
            padded = torch.nn.functional.pad(weights, (0, groups * group - k)).view(-1, groups, group)
            scale = (padded.abs().amax(-1) / 7).to(dtype)
            q = (padded / scale.float()[..., None]).round_().clamp_(-8, 7).add_(OFFSET).to(torch.uint8)
            # for an odd k the last half byte is a quantised zero
            q = torch.nn.functional.pad(q.view(len(weights), -1)[:, :k], (0, k % 2), value=OFFSET)
            packed[rows] = q[:, 0::2] | q[:, 1::2] << 4
            scales[:, rows] = scale.T
        return {"A": a, "B": packed, "S": scales}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"B": "uint8"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, with weights dequantised exactly, by panels of rows."""
        return {"C": _product(workload, inputs, squared=False)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch.matmul on weights dequantised before: four times the bytes, and no unpacking."""
        import torch

        a, (n, k) = inputs["A"], (workload.dims["n"], workload.dims["k"])
        weights = torch.empty(n, k, dtype=a.dtype, device=a.device)
        for rows in _panels(n, k):
            weights[rows] = dequantised(workload, inputs, rows).to(a.dtype)
        out = torch.empty(a.shape[0], n, dtype=a.dtype, device=a.device)

        def product() -> object:
            return torch.matmul(a, weights.T, out=out)

        library = "torch" if a.device.type == "cpu" else "hipBLAS" if torch.version.hip else "cuBLAS"
        short = {"float16": "fp16", "bfloat16": "bf16"}[workload.dtype]
        return {f"{library} {short} (weights dequantised beforehand)": product}

    def flops(self, workload: Workload) -> int:
        """Operations of the product; unpacking and scaling are not counted."""
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        """A, packed weights and scales read once, C written once."""
        m, n, k = (workload.dims[d] for d in self.dims)
        return (m * k + _groups(workload) * n + m * n) * self.element_bytes(workload) + n * -(-k // 2)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to three times the error of rounding the dequantised weights and C to the dtype."""
        return {"bfloat16": 5e-3, "float16": 8e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Dequantised weights are rounded to the dtype."""
        return Rounding(workload.dims["k"], inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"C": _product(workload, inputs, squared=True).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """A of whole numbers -2 .. 2, any weights, and scales 1/2, 1 and 2: sums are exact."""
        import torch

        m, n, k = (workload.dims[d] for d in self.dims)
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        a = whole_numbers((m, k), 2, dtype, generator)
        packed = torch.randint(0, 256, (n, -(-k // 2)), generator=generator, device=device, dtype=torch.uint8)
        if k % 2:  # the last half byte is a quantised zero
            packed[:, -1] = packed[:, -1] & 15 | OFFSET << 4
        scales = whole_numbers((_groups(workload), n), 1, dtype, generator).exp2_()
        return SecondInputs({"A": a, "B": packed, "S": scales}, is_exact=True)


def group_of(workload: Workload) -> int:
    """Number of weights of a row that share a scale."""
    group = int(workload.attrs["group"])
    return workload.dims["k"] if group == -1 else group


def dequantised(workload: Workload, inputs: Tensors, rows: slice) -> "torch.Tensor":
    """W[rows, k] in float32, exactly."""
    import torch

    packed, k = inputs["B"][rows], workload.dims["k"]
    q = torch.stack([packed & 15, packed >> 4], dim=-1).view(len(packed), -1)[:, :k]
    scales = inputs["S"][:, rows].float().T.repeat_interleave(group_of(workload), dim=1)[:, :k]
    return (q.float() - OFFSET).mul_(scales)


def _product(workload: Workload, inputs: Tensors, squared: bool) -> "torch.Tensor":
    """C, or the sum of the squares of its terms, in float32."""
    import torch

    a = inputs["A"].float()
    a = a.square() if squared else a
    out = torch.empty(workload.dims["m"], workload.dims["n"], device=a.device)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        for rows in _panels(workload.dims["n"], workload.dims["k"]):
            weights = dequantised(workload, inputs, rows)
            out[:, rows] = a @ (weights.square_() if squared else weights).T
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return out


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
    registers, as the left operand of C^T = W A^T.
    """

    operator = OPERATOR
    name = "dequant_matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("float16", "bfloat16")
    scales: ClassVar[Mapping[str, Scale]] = {
        "m": Scale(("block_m",), search_space.TILES),
        "n": Scale(("block_n",), search_space.TILES),
        "k": Scale(("block_k",), search_space.DEPTHS),
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
        return (Config({**config, "swizzle": 0}), Rasterization("row", panel)) if panel else None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Weights in registers (16 rows per warp) for few rows of A, in shared memory for many.

        Tiles of W have 128 rows if nearly every core gets a block, else 64.
        """
        space = self.space(workload, target)
        m, n = workload.dims["m"], workload.dims["n"]
        few, hip = m <= 64, target.kind == "hip"
        block_m = next((tile for tile in (16, 32, 64, 128) if tile >= m), 128)
        block_n = 128 if -(-m // block_m) * -(-n // 128) >= 0.9 * target.int("core.count") else 64
        wanted = {
            "block_m": block_m,
            "block_n": block_n,
            "block_k": 128 if few and not hip else 64,
            "num_stages": 1 if hip else 4 if few else 3,
            "threads": 2 * block_n,
            "weights": "registers" if few else "shared",
            "decode": "bits",
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

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812
        from tilelang.layout import make_swizzled_layout

        m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
        dtype, accumulator, group = workload.dtype, "float32", int(workload.attrs["group"])
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        in_registers, swizzled = (
            config.str("weights").startswith("registers"),
            config["weights"] == "registers",
        )
        unpack = RUNS.get(config.str("weights"), 1)
        by_bits = config["decode"] == "bits"
        policy = {
            "square": T.GemmWarpPolicy.Square,
            "full_row": T.GemmWarpPolicy.FullRow,
            "full_col": T.GemmWarpPolicy.FullCol,
        }[config.str("policy")]

        groups = _groups(workload)
        scale_rows = 1 if group == -1 else -(-block_k // group)  # groups of an iteration
        units, bits = UNITS[dtype]
        word = f"uint{8 * self.operator.element_bytes(workload)}"
        runs = block_k // unpack  # of weights unpacked at once, in a row of the tile
        tile_rows, tile_cols = (block_n, block_m) if in_registers else (block_m, block_n)
        # the last tile of rows begins early enough to be whole, as in matmul
        is_moved = not (isinstance(m, int) and (m % block_m == 0 or m < block_m))

        def number(byte: Any, position: Any) -> Any:
            # q - 8, or units + q, in the dtype
            q = (byte >> T.cast(position % 2 * 4, "uint8")) & T.uint8(15)
            if by_bits:
                return T.reinterpret(T.cast(q, word) | T.cast(bits, word), dtype)
            return T.cast(T.cast(q, "int32") - OFFSET, dtype)

        def scaled(value: Any, scale: Any) -> Any:
            return (value - T.cast(float(units + OFFSET), dtype)) * scale if by_bits else value * scale

        def scale_row(column: Any) -> Any:
            return column // group if scale_rows > 1 else 0

        @T.prim_func
        def dequant_matmul(  # type: ignore[no-untyped-def]
            A: T.Tensor((m, k), dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor((n, -(-k // 2)), "uint8"),  # type: ignore[valid-type]  # noqa: N803
            S: T.Tensor((groups, n), dtype),  # type: ignore[valid-type]  # noqa: N803
            C: T.Tensor((m, n), dtype),  # type: ignore[valid-type]  # noqa: N803
        ):
            with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
                a_tile = T.alloc_shared((block_m, block_k), dtype)
                b_tile = T.alloc_shared((block_n, block_k // 2), "uint8")
                s_tile = T.alloc_shared((scale_rows, block_n), dtype)
                c_tile = T.alloc_shared((block_m, block_n), dtype)
                c_sum = T.alloc_fragment((tile_rows, tile_cols), accumulator)
                T.use_swizzle(swizzle, enable=swizzle > 0)
                T.clear(c_sum)
                first = T.min(by * block_m, T.max(m - block_m, 0)) if is_moved else by * block_m
                if swizzled:
                    T.annotate_layout({b_tile: make_swizzled_layout(b_tile)})
                if in_registers:
                    weights = T.alloc_fragment((block_n, block_k), dtype)
                else:
                    weights = T.alloc_shared((block_n, block_k), dtype)
                    packed = T.alloc_local((unpack // 2,), "uint8")
                    values = T.alloc_local((unpack,), dtype)
                    thread = T.get_thread_binding()
                # copies beyond an edge read zeros; those of A cancel any weights beside them
                for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                    T.copy(A[first, ko * block_k], a_tile)
                    T.copy(B[bx * block_n, ko * (block_k // 2)], b_tile)
                    T.copy(S[0 if group == -1 else ko * block_k // group, bx * block_n], s_tile)
                    if in_registers:
                        for i, j in T.Parallel(block_n, block_k):
                            weights[i, j] = number(b_tile[i, j // 2], j)
                        for i, j in T.Parallel(block_n, block_k):
                            weights[i, j] = scaled(weights[i, j], s_tile[scale_row(j), i])
                        T.gemm(weights, a_tile, c_sum, transpose_B=True, policy=policy)
                    else:
                        for step in T.serial(block_n * runs // threads):
                            row = (step * threads + thread) // runs
                            column = (step * threads + thread) % runs * unpack
                            for v in T.vectorized(unpack // 2):
                                packed[v] = b_tile[row, column // 2 + v]
                            for v in T.unroll(unpack):
                                values[v] = number(packed[v // 2], v)
                            for v in T.vectorized(unpack):
                                weights[row, column + v] = scaled(values[v], s_tile[scale_row(column), row])
                        T.gemm(a_tile, weights, c_sum, transpose_B=True, policy=policy)
                if in_registers:
                    for i, j in T.Parallel(block_n, block_m):
                        c_tile[j, i] = c_sum[i, j]
                else:
                    T.copy(c_sum, c_tile)
                T.copy(c_tile, C[first, bx * block_n])

        return dequant_matmul


TEMPLATES = (DequantMatmulGpu(),)
