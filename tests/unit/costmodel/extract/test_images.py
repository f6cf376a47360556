# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Im2col copies: the part of an image that the bulk copies of a convolution fetch."""

import itertools

import numpy as np
import pytest
import tilelang.language as T  # noqa: N812

from tests.unit.costmodel.extract.reading import accesses, read
from tilesight.profile.values import Space

IMAGES, SIZE, FILTERS = 4, 28, 128
PIXELS, DEPTH, STAGES = 128, 64, 3


def out_size(taps, stride):
    """Rows of the result. The padding keeps their number if the stride is 1."""
    return (SIZE + taps // 2 * 2 - taps) // stride + 1


def convolution(channels, taps, stride):
    out = out_size(taps, stride)

    @T.prim_func
    def main(
        X: T.Tensor((IMAGES, SIZE, SIZE, channels), "float16"),  # noqa: N803
        W: T.Tensor((taps * taps * channels, FILTERS), "float16"),  # noqa: N803
        Y: T.Tensor((IMAGES * out * out, FILTERS), "float16"),  # noqa: N803
    ):
        with T.Kernel(1, T.ceildiv(IMAGES * out * out, PIXELS), threads=256) as (bx, by):
            x = T.alloc_shared((PIXELS, DEPTH), "float16")
            w = T.alloc_shared((DEPTH, FILTERS), "float16")
            y = T.alloc_fragment((PIXELS, FILTERS), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(taps * taps * channels, DEPTH), num_stages=STAGES):
                T.c2d_im2col(X, x, by, k, taps, stride, 1, taps // 2)
                T.copy(W[k * DEPTH, bx * FILTERS], w)
                T.gemm(x, w, y)
            T.copy(y, Y[by * PIXELS, bx * FILTERS])

    return main


def inside(taps, stride):
    """The share without padding, computed block by block and tap by tap."""
    out, pad = out_size(taps, stride), taps // 2
    blocks = -(-IMAGES * out * out // PIXELS)
    pixel = np.arange(blocks * PIXELS)
    shares = []
    for row, column in itertools.product(range(taps), repeat=2):
        y, x = pixel // out % out * stride - pad + row, pixel % out * stride - pad + column
        held = (y >= 0) & (y < SIZE) & (x >= 0) & (x < SIZE) & (pixel < IMAGES * out * out)
        shares.append(held.reshape(blocks, PIXELS).mean(axis=1))
    return np.array(shares)


@pytest.mark.parametrize(("channels", "taps", "stride"), [(64, 3, 1), (128, 3, 1), (64, 3, 2), (64, 5, 1)])
def test_an_image_is_read_but_for_its_padding(channels: int, taps: int, stride: int) -> None:
    p = read(convolution(channels, taps, stride))
    assert p.unknown_calls == ()
    image, weights = sorted((a for a in accesses(p) if a.mechanism == "tma"), key=lambda a: -a.box_bytes)
    box = PIXELS * DEPTH * 2
    expected = inside(taps, stride)
    assert image.box_bytes == box
    assert image.bytes == pytest.approx(box * expected.mean(), rel=0.01)
    assert image.least_inside == pytest.approx(expected.min(), abs=0.1)
    assert image.slots == weights.slots == STAGES
    assert image.vector_bytes == 128
    # all taps of the filter look at the same channels of the same pixels
    assert image.loop_dependent == (channels > DEPTH)
    assert image.footprint_bytes == pytest.approx(image.bytes / (taps * taps if image.loop_dependent else 1))
    written = [a for a in accesses(p, Space.SHARED, write=True) if a.mechanism == "tma"]
    assert sum(a.bytes for a in written) == box + weights.bytes == 2 * box
