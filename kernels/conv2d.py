"""conv2d: the convolution of images with square filters, as one product, and its template for GPUs.

    Y[b, y, x, f] = sum over i, j, c of X[b, y s + i d - p, x s + j d - p, c] W[i, j, c, f]

with stride s, dilation d and padding p; X is zero outside the image. Channels are the last axis (NHWC).

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, Windows, shape, window
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import conv2d as search_space
from ..search_spaces.matrix_unit import is_hopper
from ..target.spec import Target
from ._exact_products import exact_products
from ._warp_policy import warp_policy

if TYPE_CHECKING:
    import torch

ITEM_BYTES = 1 << 28  # the reference pads about so many bytes of images at once, in float32
ASYNC_BYTES = 4  # the smallest asynchronous copy of a thread


class Conv2d(Operator):
    name = "conv2d"
    dims = ("batch", "height", "width", "channels", "filters")
    attrs: ClassVar[Mapping[str, Value]] = {"kernel": 3, "stride": 1, "padding": 1, "dilation": 1}
    axes: ClassVar[Axes] = {
        "X": ("batch", "height", "width", "channels"),
        "W": ("kernel", "kernel", "channels", "filters"),
        "Y": ("batch", Windows("height"), Windows("width"), "filters"),
    }
    # RN: ResNet-50 with 128 images: 3x3 of its first and third stage, a 1x1, and a 3x3 of stride 2.
    # SD0: the first level of Stable Diffusion's U-Net with 8 images
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "RN1": {"batch": 128, "height": 56, "width": 56, "channels": 64, "filters": 64},
        "RN2": {
            "batch": 128, "height": 56, "width": 56, "channels": 64, "filters": 256,
            "kernel": 1, "padding": 0,
        },
        "RN3": {"batch": 128, "height": 56, "width": 56, "channels": 128, "filters": 128, "stride": 2},
        "RN4": {"batch": 128, "height": 14, "width": 14, "channels": 256, "filters": 256},
        "SD0": {"batch": 8, "height": 64, "width": 64, "channels": 320, "filters": 320},
    }  # fmt: skip
    default_names = ("RN1", "RN4", "SD0")

    def validate(self, workload: Workload) -> None:
        attrs = {name: int(value) for name, value in workload.attrs.items()}
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            if attrs[name] < least:
                raise WorkloadError(f"conv2d: {name}={attrs[name]} must be at least {least}")
        reach = attrs["dilation"] * (attrs["kernel"] - 1)
        if attrs["padding"] > reach:
            raise WorkloadError(
                f"conv2d: padding={attrs['padding']} exceeds dilation * (kernel - 1) = {reach}, so windows "
                f"at the edge would see nothing of the image; take at most {reach}"
            )
        for dim in ("height", "width"):
            padded = workload.dims[dim] + 2 * attrs["padding"]
            if padded <= reach:
                raise WorkloadError(
                    f"conv2d: {dim}={workload.dims[dim]} with padding={attrs['padding']} has {padded} "
                    f"pixels, and a window spans {reach + 1}; take a larger {dim} or padding"
                )
        for name, axes in self.axes.items():
            elements = math.prod(shape(axes, workload.dims, workload.attrs))
            if elements > MAX_DIMENSION:
                raise WorkloadError(
                    f"conv2d: {name} would have {elements} elements, and the kernels index at most "
                    f"{MAX_DIMENSION}; split the batch"
                )

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """X ~ N(0, 1) and W ~ N(0, 1/terms), so that Y ~ N(0, 1) away from the edges."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        x, w = (
            torch.randn(*sizes, generator=generator, device=device, dtype=getattr(torch, workload.dtype))
            for sizes in self._operands(workload)
        )
        return {"X": x, "W": w.mul_(_terms(workload) ** -0.5)}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"Y": shape(self.axes["Y"], workload.dims, workload.attrs)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32: a product for each place in the filters, by panels of images."""
        import torch

        x, w = inputs["X"], inputs["W"].float()
        kernel, stride, padding, dilation = window(workload.attrs)
        out = torch.empty(self.outputs(workload)["Y"], device=x.device)
        rows, cols = ((size - 1) * stride + 1 for size in out.shape[1:3])
        panel = max(1, ITEM_BYTES // (4 * x[0].numel()))
        with exact_products():
            for images, sums in zip(x.split(panel), out.split(panel), strict=True):
                padded = torch.nn.functional.pad(images.float(), (0, 0, padding, padding, padding, padding))
                sums.zero_()
                for i in range(kernel):
                    for j in range(kernel):
                        top, left = i * dilation, j * dilation
                        seen = padded[:, top : top + rows : stride, left : left + cols : stride]
                        sums += seen @ w[i, j]
        return {"Y": out}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch.conv2d on tensors whose channels are last in memory, by the fastest algorithm of cuDNN."""
        import torch

        x = inputs["X"].permute(0, 3, 1, 2)
        w = inputs["W"].permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        _, stride, padding, dilation = window(workload.attrs)

        def convolution() -> object:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                y = torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)
            return y.permute(0, 2, 3, 1)

        library = "torch" if x.device.type == "cpu" else "MIOpen" if torch.version.hip else "cuDNN"
        return {library: convolution}

    def flops(self, workload: Workload) -> int:
        """Operations of all windows, with those on the padding."""
        return 2 * math.prod(self.outputs(workload)["Y"]) * _terms(workload)

    def min_bytes(self, workload: Workload) -> int:
        tensors = (shape(axes, workload.dims, workload.attrs) for axes in self.axes.values())
        return sum(map(math.prod, tensors)) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding Y, as for matmul."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        return Rounding(_terms(workload), cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        squares = {name: tensor.to(torch.bfloat16).square() for name, tensor in inputs.items()}
        return {"Y": self.reference(workload, squares)["Y"].sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """X and W of whole numbers -2 .. 2: Y is a whole number below 2^24."""
        import torch

        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        x, w = (whole_numbers(sizes, 2, dtype, generator) for sizes in self._operands(workload))
        return SecondInputs({"X": x, "W": w}, is_exact=True)

    def _operands(self, workload: Workload) -> tuple[tuple[int, ...], tuple[int, ...]]:
        x, w = (shape(self.axes[name], workload.dims, workload.attrs) for name in ("X", "W"))
        return x, w


def _terms(workload: Workload) -> int:
    """Terms of an element of Y."""
    return int(workload.attrs["kernel"]) ** 2 * workload.dims["channels"]


OPERATOR = Conv2d()


class Conv2dGpu(KernelTemplate):
    """One tile of pixels and filters per block, in a pipelined loop over the filters' places and channels.

    A row of the left operand has neighbouring channels of one pixel of the image, under one place of the
    filters. TMA finds the pixels of a tile by itself, or each thread computes the indices of its own.
    """

    operator = OPERATOR
    name = "conv2d"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    dynamic_dims = ("batch",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "height": "pixels of a tile are found by division by the output's height",
        "width": "pixels of a tile are found by division by the output's width",
        "channels": "pixels are `channels` elements apart, and the copies need those at whole vectors",
        "filters": "rows of W and Y are `filters` elements apart, and the copies need those at whole vectors",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        panel = config.int("swizzle")
        return (Config({**config, "swizzle": 0}), Rasterization("row", panel)) if panel else None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Tiles of up to 256 pixels; on Hopper blocks stay where filters are few; else the nearest config."""
        space = self.space(workload, target)
        filters, hopper = workload.dims["filters"], is_hopper(target)
        wanted = Config(
            {
                "block_m": 256 if hopper and (filters <= 64 or filters > 256) else 128,
                "block_n": 64 if filters <= 64 else 192 if hopper and filters > 256 else 128,
                "block_k": 64,
                "num_stages": 1 if target.kind == "hip" else 4,
                "threads": 256,
                "policy": "full_row" if hopper else "square",
                "copies": "bulk",
                "swizzle": 0,
                "persistent": target.int("core.count") if hopper and filters <= 64 else 0,
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, height, width, channels, filters = workload.dims.values()
        kernel, stride, padding, dilation = window(workload.attrs)
        dtype, accumulator = workload.dtype, "float32"
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        bulk, persistent = config["copies"] == "bulk", config.int("persistent")
        policy = warp_policy(config.str("policy"))

        x_shape, w_shape, y_shape = (
            shape(axes, workload.dims, workload.attrs) for axes in self.operator.axes.values()
        )
        _, rows, cols, _ = y_shape
        pixels, parts = batch * rows * cols, -(-channels // block_k)
        # copies of single elements of two bytes cannot be asynchronous: a choice makes them plain
        plain = channels * DTYPE_BYTES[dtype] % ASYNC_BYTES != 0

        depth, tiles_n = kernel * kernel * parts, -(-filters // block_n)
        tiles_m = (pixels + block_m - 1) // block_m
        grid = (persistent, 1) if persistent else (tiles_n, tiles_m)

        def trips(bx: Any) -> Any:
            return (tiles_m * tiles_n - bx + persistent - 1) // persistent * depth if persistent else depth

        def place(bx: Any, by: Any, step: Any) -> tuple[Any, Any]:
            """The row and column of the tile to which a block comes at an iteration."""
            tile = step // depth * persistent + bx
            return (tile // tiles_n, tile % tiles_n) if persistent else (by, bx)

        @T.prim_func
        def conv2d(  # type: ignore[no-untyped-def]
            X: T.Tensor(x_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            W: T.Tensor(w_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            Y: T.Tensor(y_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
        ):
            with T.Kernel(*grid, threads=threads) as (bx, by):
                x_tile = T.alloc_shared((block_m, block_k), dtype)
                w_tile = T.alloc_shared((block_k, block_n), dtype)
                y_tile = T.alloc_shared((block_m, block_n), dtype)
                y_sum = T.alloc_fragment((block_m, block_n), accumulator)
                y_rows = T.Tensor((pixels, filters), dtype, Y.data)
                T.use_swizzle(swizzle, enable=swizzle > 0)
                T.clear(y_sum)
                # copies beyond an edge read zeros, which add nothing, and write nothing
                for step in T.Pipelined(trips(bx), num_stages=num_stages):
                    tile_m, tile_n = place(bx, by, step)
                    ko = step % depth
                    i, j, first = ko // parts // kernel, ko // parts % kernel, ko % parts * block_k
                    if bulk:
                        T.im2col(X, x_tile, tile_m, ko, kernel, stride, dilation, padding)
                    else:
                        for p, c in T.Parallel(block_m, block_k):
                            pixel = tile_m * block_m + p
                            item, channel = pixel // (rows * cols), first + c
                            y = pixel // cols % rows * stride + i * dilation - padding
                            x = pixel % cols * stride + j * dilation - padding
                            if plain:
                                seen = (
                                    (item < batch) and (y >= 0) and (y < height) and (x >= 0) and (x < width)
                                )
                                x_tile[p, c] = T.if_then_else(
                                    seen and (channel < channels), X[item, y, x, channel], T.cast(0, dtype)
                                )
                            else:
                                x_tile[p, c] = X[item, y, x, channel]
                    left = tile_n * block_n
                    T.copy(
                        W[i, j, first : first + block_k, left : left + block_n], w_tile, disable_tma=not bulk
                    )
                    T.gemm(x_tile, w_tile, y_sum, policy=policy)
                    # the warpgroup that copies goes on with the next tile meanwhile
                    if persistent:  # noqa: SIM102
                        if ko == depth - 1:
                            T.copy(y_sum, y_tile)
                            T.copy(y_tile, y_rows[tile_m * block_m, tile_n * block_n])
                            T.clear(y_sum)
                if not persistent:
                    T.copy(y_sum, y_tile)
                    T.copy(y_tile, y_rows[by * block_m, bx * block_n])

        return conv2d


TEMPLATES = (Conv2dGpu(),)
