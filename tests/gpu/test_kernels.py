"""The shipped kernels on a real GPU: right for every shape and dtype, over samples of their search spaces."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from tilesight.builder.build import build_kernel
from tilesight.kernels import operator, operators, template_for, templates
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.space import Value
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.measure import measure_kernel
from tilesight.settings import available_cores
from tilesight.target.spec import Target
from tilesight.workers import Done, WorkerPool

pytestmark = pytest.mark.gpu

QUICK = MeasurementProtocol(warmup_ms=2.0, min_samples=5, max_samples=10, max_ms=50.0)
# beside published shapes: remainders in every dimension, rows that TMA cannot copy, several groups of weights
# in an iteration, less than one tile
SHAPES = {
    "matmul": (
        "M0",
        "m=511,n=509,k=513",
        "m=300,n=512,k=8191",
        "m=1000,n=1000,k=1048",
        "m=16,n=4096,k=4096",
        "m=300,n=520,k=1040,scales=row,fuse=bias",
        "m=33,n=512,k=4096,scales=tensor,fuse=residual",
        "m=1,n=1,k=1",
    ),
    "flash_attention": (
        "FA0",
        "FA1",
        "batch=2,heads=3,seq_len=1000,head_dim=128",
        "batch=2,heads=3,seq_len=777,head_dim=72,causal=true",
        "batch=1,heads=5,seq_len=300,head_dim=100,causal=true",
        "batch=1,heads=2,seq_len=333,head_dim=256",
        "batch=1,heads=2,seq_len=1,head_dim=16",
    ),
    "gemv": ("V5", "n=1001,k=1003", "n=777,k=4104", "n=300,k=8190", "n=1,k=1"),
    "rms_norm": ("R0", "R4", "R8", "m=1000,n=1001", "m=77,n=770", "m=1,n=4096", "m=1,n=1"),
    "dequant_matmul": (
        "D5",
        "D17",
        "D8",
        "m=511,n=509,k=513",
        "m=1000,n=1000,k=2080,group=32",
        "m=8,n=1000,k=4096,group=-1",
        "m=1,n=1,k=1",
    ),
    "chunk_state": (
        "CT0",
        "batch=2,seq_len=1000,nheads=3,head_dim=64,d_state=128",
        "batch=3,seq_len=777,nheads=5,head_dim=100,d_state=60",
        "batch=2,seq_len=700,nheads=4,head_dim=128,d_state=256,chunk=128",
        "batch=1,seq_len=77,nheads=3,head_dim=7,d_state=1,chunk=32",
    ),
    "flash_decoding": (
        "FD5",
        "batch=3,heads=8,kv_heads=2,kv_len=1000,head_dim=128,lse=true",
        "batch=2,heads=6,kv_heads=6,kv_len=777,head_dim=80,q_len=3,lengths=mixed,lse=true",
        "batch=2,heads=64,kv_heads=1,kv_len=512,head_dim=256,page=32,lengths=mixed",
        "batch=5,heads=32,kv_heads=8,kv_len=777,head_dim=128,page=1,lengths=mixed,lse=true",
        "batch=1,heads=1,kv_heads=1,kv_len=1,head_dim=16",
    ),
    "flash_decoding_paged": (
        "FP1",
        "batch=5,heads=32,kv_heads=8,head_dim=128,page=1,indices=3001,pages=4000,lengths=mixed",
        "batch=3,heads=8,kv_heads=2,head_dim=128,page=16,indices=150,lengths=mixed",
        "batch=3,heads=6,kv_heads=6,head_dim=80,page=64,indices=40,pages=50,lengths=mixed,scale=0.2",
        "batch=2,heads=64,kv_heads=1,head_dim=256,page=64,indices=12",
        # some items have no page
        "batch=7,heads=8,kv_heads=2,head_dim=64,page=64,indices=4,lengths=mixed",
        "batch=1,heads=1,kv_heads=1,head_dim=16,page=1,indices=1",
    ),
    "mla_decode": (
        "MLA0",
        "batch=3,heads=128,kv_len=1000,lse=true",
        "batch=2,heads=20,kv_len=832,dim=256,q_len=3,page=64,lengths=mixed,lse=true",
        "batch=3,heads=16,kv_len=777,page=1,lengths=mixed,lse=true",
        "batch=2,heads=40,kv_len=1500,q_len=2,topk=1024,lse=true",
        "batch=2,heads=40,kv_len=1536,q_len=2,page=64,topk=1024,lse=true",
        "batch=16,heads=128,kv_len=2000,page=16,topk=2048,lse=true",
        "batch=2,heads=20,kv_len=832,dim=256,page=32,topk=512",
        "batch=1,heads=1,kv_len=1",
    ),
    "mla_decode_paged": (
        "MP1",
        "batch=3,heads=128,page=64,indices=60,pages=70,lengths=mixed",
        "batch=3,heads=16,page=1,indices=2001,lengths=mixed",
        "batch=3,heads=128,page=1,indices=1500,lengths=mixed,scale=0.07",
        "batch=2,heads=20,dim=256,page=16,indices=90,lengths=mixed",
        # some items have no page
        "batch=7,heads=128,page=64,indices=4,lengths=mixed",
        "batch=1,heads=1,page=1,indices=1",
    ),
    "layer_norm": ("L0", "L8", "m=7,n=1000", "m=33,n=1001", "m=33,n=1001,residual=true", "m=1,n=1"),
    "softmax": ("S4", "m=33,n=777", "m=7,n=8200", "m=1,n=1"),
    "cross_entropy": ("E5", "m=7,n=1001", "m=33,n=8200"),
    "silu_mul": ("U5", "m=7,n=1001", "m=33,n=520"),
    "quantize": (
        "Q5",
        "Q7",
        "m=7,n=1001",
        "m=33,n=640,group=128",
        "m=7,n=1001,residual=true",
        "m=33,n=1000,group=128,residual=true",
    ),
    "rope": ("P5", "tokens=77,heads=5,head_dim=40"),
    "topk_gate": ("T4", "m=77,experts=60,topk=4", "m=33,experts=8,topk=2,renormalize=true"),
    "grouped_matmul": (
        "DS2",
        "tokens=1000,groups=7,n=520,k=264,layout=nn",
        "tokens=777,groups=5,n=256,k=512,fuse=silu_mul",
        "tokens=100,groups=3,n=128,k=256,rows=masked",
    ),
    "conv2d": (
        "RN4",
        "batch=2,height=17,width=23,channels=35,filters=40,stride=2,padding=2,dilation=2",
        "batch=3,height=15,width=9,channels=64,filters=72",
        "batch=2,height=8,width=8,channels=64,filters=64,kernel=1,padding=0",
    ),
    "flash_attention_bwd": (
        "batch=1,heads=8,seq_len=1000,head_dim=96,group=2",
        "batch=2,heads=4,seq_len=777,head_dim=64,causal=true,window=100",
        "batch=1,heads=2,seq_len=1024,head_dim=128,causal=true",
        "batch=2,heads=6,seq_len=333,head_dim=64,causal=true,group=3,softcap=20,sinks=true",
        "batch=3,heads=4,seq_len=500,head_dim=128,lengths=mixed,sinks=true",
        "batch=1,heads=2,seq_len=333,head_dim=160",
        "batch=1,heads=6,seq_len=555,head_dim=192,causal=true,group=3",
        "batch=2,heads=4,seq_len=777,head_dim=256,causal=true,group=2,window=200,softcap=20",
        "batch=3,heads=2,seq_len=500,head_dim=256,lengths=mixed,sinks=true",
    ),
    "flash_attention_varlen": (
        "batch=5,heads=4,tokens=1000,head_dim=80,causal=true,softcap=30,lse=true,group=2",
        "batch=9,heads=4,tokens=3001,tokens_kv=5003,head_dim=128,causal=true,lse=true,sinks=true",
        "batch=7,heads=2,tokens=777,head_dim=64,causal=true,window=100,scale=0.2",
        "batch=3,heads=2,tokens=500,tokens_kv=400,head_dim=128,lse=true",
    ),
    "native_sparse_attention": (
        "batch=2,heads=32,seq_len=1500,head_dim=128",
        "batch=1,heads=80,seq_len=1000,head_dim=80,group=40,block=32,topk=8",
    ),
    "block_sparse_attention": (
        "batch=1,heads=8,seq_len=1000,head_dim=64,percent=30,group=4",
        "batch=2,heads=4,seq_len=2048,head_dim=128,causal=true,block=128",
    ),
    "chunk_scan": (
        "CC0",
        "batch=2,seq_len=1000,nheads=3,head_dim=40,d_state=24,chunk=64",
    ),
    "gated_delta_rule": (
        "batch=2,seq_len=333,heads=4,head_k=64,head_v=64",
        "batch=1,seq_len=300,heads=3,head_k=128,head_v=100",
    ),
    "gated_delta_rule_decode": ("QD1", "batch=3,heads=5,head_k=64,head_v=100"),
    "retention": ("batch=2,seq_len=333,heads=3,head_k=64,head_v=128", "RS2K"),
}
CASES = [
    (name, shape, dtype)
    for name in operators()
    for shape in SHAPES.get(name, ())
    for dtype in ("bfloat16", "float16")
]


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """Processes that build, and the one that owns the GPU."""
    with (
        WorkerPool(min(8, available_cores()), timeout_s=300) as builders,
        WorkerPool(1, timeout_s=120) as runner,
    ):
        yield builders, runner


def measure(item: tuple[BuildResult, Candidate]) -> Measurement:
    return measure_kernel(*item, QUICK)


def test_every_operator_of_one_gpu_has_shapes_here() -> None:
    """Those of several GPUs are tested in test_groups.py."""
    alone = {name for name in operators() if not isinstance(operator(name), GroupOperator)}
    assert set(SHAPES) == alone


@pytest.mark.parametrize(("name", "shape", "dtype"), CASES)
def test_kernels_are_right(
    name: str,
    shape: str,
    dtype: str,
    gpu_target: Target,
    pools: tuple[WorkerPool, WorkerPool],
    tmp_path: Path,
) -> None:
    template = template_for(name, gpu_target, dtype)
    assert template in templates(name)
    workload = operator(name).workload(shape, dtype)
    default = template.default_config(workload, gpu_target)
    assert default is not None
    configs = dict.fromkeys([default, *template.space(workload, gpu_target).sample(7, seed=1)])
    candidates = [Candidate(workload, gpu_target, template, config) for config in configs]
    assert default in [candidate.config for candidate in right_ones(candidates, pools, tmp_path)]


def right_ones(
    candidates: Sequence[Candidate], pools: tuple[WorkerPool, WorkerPool], folder: Path
) -> list[Candidate]:
    """The candidates that could be built, all of which are right."""
    builders, runner = pools
    built: list[tuple[BuildResult, Candidate]] = []
    for index, outcome in builders.run(partial(build_kernel, cache_dir=folder), candidates):
        assert isinstance(outcome, Done), (str(candidates[index].config), outcome)
        failure = outcome.value.failure
        if (
            failure is not None
        ):  # ptxas keeps no accumulator of a wgmma outside registers, and refuses what does not fit
            assert "C7602" in failure.message, (str(candidates[index].config), failure)
            continue
        built.append((outcome.value, candidates[index]))
    for index, measured in runner.run(measure, built):
        assert isinstance(measured, Done), (str(built[index][1].config), measured)
        assert measured.value.failure is None, (str(built[index][1].config), measured.value.failure)
    return [candidate for _, candidate in built]


# remainders in every dimension, parts of k that are empty, rows of two tiles, every type of sums
CLUSTERS: tuple[tuple[str, str, Mapping[str, Value]], ...] = (
    ("m=16,n=4096,k=4096", "bfloat16", {}),
    (
        "m=128,n=2048,k=4096",
        "bfloat16",
        {"block_m": 128, "block_n": 128, "threads": 256, "policy": "full_row"},
    ),
    ("m=1,n=1000,k=4104", "float16", {"block_n": 32, "threads": 64, "swapped": False, "split_k": 4}),
    ("m=17,n=1000,k=4104,fuse=bias_gelu", "float16", {"block_m": 32, "split_k": 8}),
    ("m=17,n=1001,k=4103,fuse=residual", "bfloat16", {"block_m": 32, "num_stages": 3}),
    ("m=16,n=1000,k=2112", "bfloat16", {"split_k": 8}),
    ("m=16,n=1001,k=2111", "bfloat16", {"split_k": 8, "num_stages": 3}),
    ("m=100,n=2000,k=8192,layout=tn", "bfloat16", {"block_m": 64, "swapped": False, "split_k": 4}),
    ("m=300,n=520,k=8192", "bfloat16", {"block_m": 192, "threads": 384, "swapped": False, "split_k": 3}),
    ("m=33,n=2048,k=4112,scales=row,fuse=bias", "float8_e4m3fn", {"block_m": 64, "block_k": 128}),
    ("m=64,n=2048,k=4096,scales=block128", "float8_e4m3fn", {"block_m": 64, "block_k": 128}),
    ("m=64,n=1000,k=4096", "int8", {"block_m": 64, "block_k": 128, "swapped": False, "split_k": 4}),
    ("m=33,n=1000,k=4112,scales=row,fuse=bias_gelu", "int8", {"block_m": 64, "block_k": 128}),
    ("m=200,n=520,k=8192,accumulate=float16", "float16", {"block_m": 64, "swapped": False}),
)


@pytest.mark.parametrize(("shape", "dtype", "changes"), CLUSTERS)
def test_sums_that_a_cluster_adds_are_right(
    shape: str,
    dtype: str,
    changes: Mapping[str, Value],
    gpu_target: Target,
    pools: tuple[WorkerPool, WorkerPool],
    tmp_path: Path,
) -> None:
    if not gpu_target.arch.startswith("sm_9"):
        pytest.skip(f"clusters need sm_90, this is {gpu_target.arch}")
    template = template_for("matmul", gpu_target, dtype)
    workload = operator("matmul").workload(shape, dtype)
    space = template.space(workload, gpu_target)
    tile: Mapping[str, Value] = {
        "block_m": 16,
        "block_n": 64,
        "block_k": 64,
        "num_stages": 4,
        "threads": 128,
        "policy": "square",
        "epilogue": "shared",
        "swizzle": 0,
        "swapped": True,
        "split_k": 2,
        "reduce": "cluster",
    }
    config = space.config({**tile, **changes})
    assert config in space, space.violations(config)
    candidate = Candidate(workload, gpu_target, template, config)
    assert right_ones([candidate], pools, tmp_path) == [candidate]


# edges of tiles within a block of scales, groups without rows, numbers of blocks of k that no chain divides
SCALED: tuple[tuple[str, str], ...] = (
    ("matmul", "m=2000,n=2600,k=2096,scales=block128"),
    ("matmul", "m=2500,n=2056,k=4096,scales=block128"),
    ("grouped_matmul", "tokens=1000,groups=9,n=1304,k=2096,scales=block128"),
    ("grouped_matmul", "tokens=300,groups=5,n=2056,k=1024,scales=block128,rows=masked"),
    ("grouped_matmul", "tokens=1000,groups=9,n=648,k=2096,scales=block128,fuse=silu_mul"),
    ("grouped_matmul", "tokens=300,groups=5,n=1032,k=1024,scales=block128,fuse=silu_mul,rows=masked"),
)


@pytest.mark.parametrize(("name", "shape"), SCALED)
def test_products_with_scales_of_blocks_are_right(
    name: str, shape: str, gpu_target: Target, pools: tuple[WorkerPool, WorkerPool], tmp_path: Path
) -> None:
    """The default config, tiles of two parts, and others."""
    if not gpu_target.arch.startswith("sm_9"):
        pytest.skip(f"scales of blocks need sm_90, this is {gpu_target.arch}")
    template = template_for(name, gpu_target, "float8_e4m3fn")
    workload = operator(name).workload(shape, "float8_e4m3fn")
    default = template.default_config(workload, gpu_target)
    assert default is not None
    sampled = template.space(workload, gpu_target).sample(300, seed=1)
    ahead = [config for config in sampled if config.get("schedule", "serial") != "serial"]
    wide = [config for config in ahead if config.int("block_n") == 256]
    configs = dict.fromkeys([default, *wide[:3], *ahead[:3], *sampled[:2]])
    candidates = [Candidate(workload, gpu_target, template, config) for config in configs]
    assert default in [candidate.config for candidate in right_ones(candidates, pools, tmp_path)]
