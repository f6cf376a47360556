"""Kernels with dynamic dimensions on a real GPU: one library is right at every awkward size."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tilesight.builder.build import build_kernel
from tilesight.errors import FailureKind
from tilesight.kernels import operator, operators, template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel
from tilesight.settings import available_cores
from tilesight.target.spec import Target
from tilesight.workers import Done, WorkerPool

pytestmark = pytest.mark.gpu

QUICK = MeasurementProtocol(warmup_ms=1.0, min_samples=5, max_samples=8, max_ms=30.0)
# dynamic dimensions, the shape whose search space is sampled, shapes at which each library must be right
CASES = {
    "matmul": (
        ("m",),
        "m=1000,n=1024,k=2048",
        [f"m={m},n=1024,k=2048" for m in (1, 15, 64, 127, 128, 129, 255, 257, 1000, 8192)],
    ),
    "flash_attention": (
        ("batch", "heads", "seq_len"),
        "batch=2,heads=3,seq_len=1000,head_dim=128,causal=true",
        [
            f"batch={b},heads={h},seq_len={s},head_dim=128,causal=true"
            for b, h, s in ((2, 3, 1), (1, 8, 127), (3, 1, 129), (2, 5, 1000))
        ],
    ),
    "gemv": (("n",), "n=1001,k=4096", [f"n={n},k=4096" for n in (1, 7, 8, 9, 127, 1001, 16384)]),
    "rms_norm": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 3, 64, 65, 1000, 9999)]),
    "dequant_matmul": (
        ("m",),
        "m=64,n=1024,k=2048",
        [f"m={m},n=1024,k=2048" for m in (1, 16, 17, 63, 65, 300, 1025)],
    ),
    "chunk_state": (
        ("batch", "seq_len", "nheads"),
        "batch=2,seq_len=1000,nheads=3,head_dim=64,d_state=128",
        [
            f"batch={b},seq_len={s},nheads={h},head_dim=64,d_state=128"
            for b, s, h in ((2, 1, 3), (1, 255, 8), (3, 257, 1), (2, 1024, 5), (1, 2049, 64))
        ],
    ),
    "flash_decoding": (
        ("batch", "pages"),
        "batch=4,heads=8,kv_heads=2,kv_len=512,head_dim=128,page=64,lengths=mixed",
        [
            f"batch={b},heads=8,kv_heads=2,kv_len=512,head_dim=128,page=64,lengths=mixed,pages={p}"
            for b, p in ((1, 8), (3, 100), (70, 560))
        ],
    ),
    "flash_decoding_paged": (
        ("batch", "indices", "pages"),
        "batch=4,heads=8,kv_heads=2,head_dim=128,page=64,indices=40,lengths=mixed",
        [
            f"batch={b},heads=8,kv_heads=2,head_dim=128,page=64,indices={i},pages={p},lengths=mixed"
            for b, i, p in ((1, 1, 1), (3, 50, 100), (70, 600, 560), (9, 5, 5))
        ],
    ),
    "mla_decode_paged": (
        ("batch", "indices", "pages"),
        "batch=4,heads=128,page=64,indices=40,lengths=mixed",
        [
            f"batch={b},heads=128,page=64,indices={i},pages={p},lengths=mixed"
            for b, i, p in ((1, 1, 1), (3, 50, 100), (70, 600, 560), (9, 5, 5))
        ],
    ),
    "mla_decode": (
        ("batch", "pages"),
        "batch=4,heads=16,kv_len=512,page=64,lengths=mixed",
        [
            f"batch={b},heads=16,kv_len=512,page=64,lengths=mixed,pages={p}"
            for b, p in ((1, 8), (3, 100), (70, 560))
        ],
    ),
    "layer_norm": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 65, 9999)]),
    "softmax": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 65, 9999)]),
    "cross_entropy": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 65, 9999)]),
    "silu_mul": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 65, 9999)]),
    "quantize": (("m",), "m=1000,n=2880", [f"m={m},n=2880" for m in (1, 65, 9999)]),
    "topk_gate": (("m",), "m=1000,experts=64,topk=6", [f"m={m},experts=64,topk=6" for m in (1, 65, 9999)]),
    "rope": (
        ("tokens",),
        "tokens=1000,heads=8,head_dim=128",
        [f"tokens={t},heads=8,head_dim=128" for t in (1, 65, 3000)],
    ),
    "grouped_matmul": (
        ("tokens",),
        "tokens=1000,groups=8,n=512,k=512",
        [f"tokens={t},groups=8,n=512,k=512" for t in (1, 100, 3001)],
    ),
    "conv2d": (
        ("batch",),
        "batch=4,height=14,width=14,channels=64,filters=64",
        [f"batch={b},height=14,width=14,channels=64,filters=64" for b in (1, 3, 33)],
    ),
    **{
        name: (
            ("batch", "seq_len"),
            "batch=2,heads=4,seq_len=1000,head_dim=128,causal=true",
            [f"batch={b},heads=4,seq_len={s},head_dim=128,causal=true" for b, s in ((1, 127), (3, 129))],
        )
        for name in ("flash_attention_bwd", "block_sparse_attention")
    },
    "flash_attention_varlen": (
        ("batch", "tokens", "tokens_kv"),
        "batch=4,heads=8,tokens=1000,head_dim=128,causal=true,group=2",
        [
            f"batch={b},heads=8,tokens={t},head_dim=128,tokens_kv={kv},causal=true,group=2"
            for b, t, kv in ((1, 1, 1), (3, 200, 500), (17, 3001, 3001))
        ],
    ),
    "native_sparse_attention": (
        ("batch", "seq_len"),
        "batch=2,heads=32,seq_len=1000,head_dim=128",
        [f"batch={b},heads=32,seq_len={s},head_dim=128" for b, s in ((1, 1), (3, 129), (1, 3001))],
    ),
    "chunk_scan": (
        ("batch", "seq_len", "nheads"),
        "batch=2,seq_len=1000,nheads=3,head_dim=64,d_state=128",
        [
            f"batch={b},seq_len={s},nheads={h},head_dim=64,d_state=128"
            for b, s, h in ((2, 1, 3), (3, 257, 1), (1, 2049, 64))
        ],
    ),
    **{
        name: (
            ("batch", "heads"),
            "batch=2,seq_len=300,heads=4,head_k=128,head_v=128",
            [f"batch={b},seq_len=300,heads={h},head_k=128,head_v=128" for b, h in ((1, 1), (3, 5))],
        )
        for name in ("gated_delta_rule", "retention")
    },
    "gated_delta_rule_decode": (
        ("batch", "heads"),
        "batch=4,heads=8,head_k=128,head_v=128",
        [f"batch={b},heads={h},head_k=128,head_v=128" for b, h in ((1, 1), (33, 5))],
    ),
}
# more cases: attention that is not causal, rows that TMA cannot copy
MORE = {
    "attention to all": (
        "flash_attention",
        ("seq_len",),
        "batch=1,heads=4,seq_len={},head_dim=64",
        (1, 63, 64, 65, 511, 2000),
    ),
    "pages of one key": (
        "flash_decoding_paged",
        ("batch", "indices", "pages"),
        "batch=5,heads=8,kv_heads=2,head_dim=64,page=1,indices={}",
        (1, 700, 3001),
    ),
    "latent pages of one key": (
        "mla_decode_paged",
        ("batch", "indices", "pages"),
        "batch=5,heads=16,page=1,indices={}",
        (1, 700, 3001),
    ),
    "odd rows": ("matmul", ("m",), "m={},n=509,k=513", (1, 63, 65, 300)),
    "odd heads": (
        "flash_attention",
        ("heads", "seq_len"),
        "batch=1,heads=5,seq_len={},head_dim=100,causal=true",
        (1, 65, 300),
    ),
}
ALL = {
    **{name: (name, *case) for name, case in CASES.items()},
    **{
        label: (name, dims, text.format(sizes[-1]), [text.format(s) for s in sizes])
        for label, (name, dims, text, sizes) in MORE.items()
    },
}


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """The processes that build, and the one that uses the GPU."""
    with (
        WorkerPool(min(8, available_cores()), timeout_s=300) as builders,
        WorkerPool(1, timeout_s=120) as runner,
    ):
        yield builders, runner


def measured_by(protocol: MeasurementProtocol, item: tuple[BuildResult, Candidate]) -> Measurement:
    return measure_kernel(*item, protocol)


def test_every_operator_of_one_gpu_is_here() -> None:
    alone = {name for name in operators() if not isinstance(operator(name), GroupOperator)}
    assert set(CASES) == alone


@pytest.mark.parametrize("case", ALL)
def test_one_library_is_right_at_every_size(
    case: str, gpu_target: Target, pools: tuple[WorkerPool, WorkerPool], tmp_path: Path
) -> None:
    name, dims, drawn, shapes = ALL[case]
    builders, runner = pools
    template, first = template_for(name, gpu_target, "bfloat16"), operator(name).workload(drawn, "bfloat16")
    default = template.default_config(first, gpu_target)
    assert default is not None
    configs = dict.fromkeys([default, *template.space(first, gpu_target).sample(3, seed=2)])
    candidates = [Candidate(first, gpu_target, template, config, dims) for config in configs]
    items: list[tuple[BuildResult, Candidate]] = []
    for index, outcome in builders.run(partial(build_kernel, cache_dir=tmp_path), candidates):
        assert isinstance(outcome, Done), (str(candidates[index].config), outcome)
        failure = outcome.value.failure
        if failure is not None:  # as with static kernels, ptxas refuses what does not fit
            assert "C7602" in failure.message, (str(candidates[index].config), failure)
            assert candidates[index].config != default
            continue
        workloads = [operator(name).workload(shape, "bfloat16") for shape in shapes]
        items += [(outcome.value, replace(candidates[index], workload=workload)) for workload in workloads]
    assert items
    for index, measured in runner.run(partial(measured_by, QUICK), items):
        where = f"{items[index][1].workload.label}, {items[index][1].config}"
        assert isinstance(measured, Done), (where, measured)
        assert measured.value.failure is None, (where, measured.value.failure)


def test_too_many_blocks_are_an_error_and_the_device_goes_on(
    gpu_target: Target, pools: tuple[WorkerPool, WorkerPool], tmp_path: Path
) -> None:
    template = template_for("matmul", gpu_target, "bfloat16")
    small = operator("matmul").workload("m=64,n=16,k=16", "bfloat16")
    config = template.default_config(small, gpu_target)
    assert config is not None
    candidate = Candidate(small, gpu_target, template, config, ("m",))
    built = build_kernel(candidate, tmp_path)
    assert built.artifact is not None, built.failure
    beyond = replace(
        candidate,
        workload=operator("matmul").workload(f"m={65536 * config.int('block_m')},n=16,k=16", "bfloat16"),
    )
    results = dict(pools[1].run(partial(measured_by, QUICK), [(built, beyond), (built, candidate)]))
    failed, fine = results[0], results[1]
    assert isinstance(failed, Done), failed
    assert failed.value.failure is not None
    assert failed.value.failure.kind is FailureKind.RUN_ERROR
    assert "65536 blocks along y" in failed.value.failure.message
    assert isinstance(fine, Done), fine
    assert fine.value.failure is None


def test_warps_that_load_nothing_do_not_hang(
    gpu_target: Target, pools: tuple[WorkerPool, WorkerPool], tmp_path: Path
) -> None:
    """As TileLang generates them, these kernels hang after thousands of launches (experiments/idle_warps)."""
    template = template_for("matmul", gpu_target, "bfloat16")
    workload = operator("matmul").workload("m=8192,n=1024,k=2048", "bfloat16")
    shared = {
        "block_m": 64,
        "block_n": 64,
        "threads": 512,
        "swizzle": 4,
        "policy": "square",
        "epilogue": "shared",
    }
    configs = [Config({**shared, "block_k": k, "num_stages": stages}) for k, stages in ((32, 5), (64, 3))]
    builds = [
        (build_kernel(c, tmp_path), c)
        for c in (Candidate(workload, gpu_target, template, config, ("m",)) for config in configs)
    ]
    often = MeasurementProtocol(warmup_ms=500.0, min_samples=4000, max_samples=4000, max_ms=8000.0)
    for _, measured in pools[1].run(partial(measured_by, often), builds):
        assert isinstance(measured, Done), measured
        assert measured.value.failure is None, measured.value.failure
