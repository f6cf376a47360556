"""Measure the plain kernels on the local GPU, and write rows.csv line by line.

    python experiments/model_fit/measure.py rows.csv

16 processes build and this one measures: CUDA events, twelve samples after two warm-up launches, L2 flushed
before each, normal random inputs, results checked against torch's matrix product or cuDNN's attention.
"""

import csv
import itertools
import json
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor

from plain_kernels import build

SHAPES = {
    "M0": ((4096, 1024, 8192), 110),
    "M7": ((8192, 8192, 28672), 60),
    "M1": ((4096, 8192, 8192), 30),
    "S1": ((512, 512, 512), 30),
    "S2": ((2048, 2048, 2048), 40),
    "S3": ((16, 8192, 8192), 30),
    "O1": ((1000, 1000, 1008), 20),
    "S4": ((256, 4096, 4096), 30),
    "FA4": ((1, 32, 4096, 128, True), None),
    "FA1": ((1, 32, 512, 128, False), None),
    "FA3": ((1, 32, 1024, 128, False), None),
}


def matmul_configs(count, generator):
    tiles, policies = (64, 128, 192, 256), ("Square", "FullRow", "FullCol")
    space = [
        c
        for c in itertools.product(tiles, tiles, (32, 64, 128), (1, 2, 3, 4), (128, 256), policies, (0, 8))
        if c[3] * (c[0] + c[1]) * c[2] * 2 <= 225_000 and c[0] * c[1] / c[4] <= 256
    ]
    generator.shuffle(space)
    return space[:count]


def attention_configs(seq, dim):
    return [
        (m, n, stages, threads)
        for m, n, stages, threads in itertools.product(
            (64, 128, 192, 256), (32, 64, 128, 192, 256), (1, 2, 3), (128, 256, 384)
        )
        if (m + 2 * stages * n) * dim * 2 <= 225_000
        and m // 64 * 128 >= threads
        and m * n / threads <= 256
        and not m % (threads // 2)
        and not seq % n
        and not seq % m
    ]


def compiled(kind, shape, config):
    import tilelang
    from tvm.target import Target

    return tilelang.compile(build(kind, shape, config), target=Target({"kind": "cuda", "arch": "sm_90a"}))


def try_build(item):
    try:
        compiled(*item)  # into TileLang's disk cache, which the measuring process reads
    except Exception as error:
        return str(error)[-200:]
    return None


def main(path):
    import torch

    generator = random.Random(7)
    items = []
    for name, (shape, count) in SHAPES.items():
        kind = "matmul" if count else "attention"
        configs = matmul_configs(count, generator) if count else attention_configs(*shape[2:4])
        items += [(name, (kind, shape, c)) for c in configs]
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")

    def time_us(kernel, tensors):
        samples = []
        for round_ in range(14):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            kernel(*tensors)
            end.record()
            end.synchronize()
            if round_ > 1:
                samples.append(begin.elapsed_time(end) * 1e3)
        return sorted(samples)[6]

    spawn = multiprocessing.get_context("spawn")
    with open(path, "w", newline="") as file, ProcessPoolExecutor(16, mp_context=spawn) as pool:
        rows = csv.writer(file)
        rows.writerow(["name", "kind", "shape", "config", "latency_us", "relative_error", "failure"])
        tensors, reference, seen = [], None, None
        for (name, item), failure in zip(items, pool.map(try_build, [i for _, i in items]), strict=True):
            kind, shape, config = item
            row = [name, kind, json.dumps(shape), json.dumps(config)]
            if failure:
                rows.writerow([*row, "", "", failure])
                continue
            if seen != name:
                seen, (tensors, reference) = name, inputs(kind, shape)
            kernel = compiled(*item)
            tensors[-1].fill_(float("nan"))
            kernel(*tensors)
            error = ((tensors[-1].float() - reference.float()).norm() / reference.float().norm()).item()
            rows.writerow([*row, time_us(kernel, tensors), error, ""])
            file.flush()


def inputs(kind, shape):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    options = {"device": "cuda", "dtype": torch.bfloat16, "generator": torch.Generator("cuda").manual_seed(0)}
    if kind == "matmul":
        m, n, k = shape
        a, b = torch.randn(m, k, **options), torch.randn(k, n, **options)
        return [a, b, a.new_empty(m, n)], a @ b
    batch, heads, seq, dim, causal = shape
    q, k, v = (torch.randn(batch, seq, heads, dim, **options) for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal)
    return [q, k, v, torch.empty_like(q)], out.transpose(1, 2)


if __name__ == "__main__":
    main(sys.argv[1])
