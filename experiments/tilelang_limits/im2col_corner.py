"""Where T.im2col lets the last window begin, for 3x3 windows and paddings from 0 to 2.

A descriptor has two corners, relative to the image's first and last pixel: where the first window begins, and
where the last one does. With padding p, dilation d and k x k windows, these are -p and p - d (k - 1).
"""

import tilelang.language as T
from obstacle import lowered, report

SIZE, CHANNELS, PIXELS, WINDOW = 18, 64, 128, 3
CORNER = 19  # in the arguments of the call that encodes the descriptor; its two elements are equal


def windows(padding):
    @T.prim_func
    def copy(X: T.Tensor((1, SIZE, SIZE, CHANNELS), "bfloat16"), Y: T.Tensor((PIXELS, CHANNELS), "bfloat16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((PIXELS, CHANNELS), "bfloat16")
            T.im2col(X, tile, 0, 0, WINDOW, 1, 1, padding)
            T.copy(tile, Y)

    return copy


def corners(host):
    """The lower and the upper corner along one axis, from the host code."""
    (function,) = host.functions.values()
    (arguments,) = function.attrs["tma_descriptor_args"].values()
    return int(arguments[CORNER - 2]), int(arguments[CORNER])


if __name__ == "__main__":
    found, right = [], []
    for padding in (0, 1, 2):
        lower, upper = corners(lowered(windows(padding), "h100").host)
        assert lower == -padding, "the arguments have another order"
        found.append(upper)
        right.append(padding - (WINDOW - 1))
    report(found != right, f"upper corners {found} for paddings 0, 1 and 2; right are {right}")
