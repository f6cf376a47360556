"""Attention of each query to its own blocks of keys: lists, reference and costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilesight.errors import WorkloadError
from tilesight.kernels import operator

NSA, DENSE = operator("native_sparse_attention"), operator("flash_attention")


@pytest.mark.parametrize("topk", [4, 16])
def test_lists_have_distinct_blocks_with_the_first_and_the_last_ones(topk: int) -> None:
    workload = NSA.workload(f"batch=2,heads=8,seq_len=1500,head_dim=16,group=4,block=32,topk={topk}")
    indices = NSA.contents(workload)["indices"]
    assert indices.shape == (2, 1500, 2, topk)
    for query in (0, 31, 32, 100, topk * 32 - 1, topk * 32, 700, 1499):
        own = query // 32
        for blocks in indices[:, query].reshape(-1, topk).tolist():
            known = [b for b in blocks if b >= 0]
            assert len(known) == min(topk, own + 1)
            assert known == sorted(set(known))
            assert {0, max(0, own - 1), own} <= set(known)
            assert known[-1] == own
    assert len(np.unique(indices[:, 1400:])) > 2 * topk, "the others are spread"


def test_with_all_blocks_it_is_causal_attention() -> None:
    workload = NSA.workload("batch=1,heads=4,seq_len=250,head_dim=16,group=2,block=64,topk=4")
    inputs = NSA.inputs(workload, "cpu", 1)
    dense = DENSE.workload("batch=1,heads=4,seq_len=250,head_dim=16,group=2,causal=true")
    torch.testing.assert_close(NSA.reference(workload, inputs)["O"], DENSE.reference(dense, inputs)["O"])
    assert NSA.flops(workload) == DENSE.flops(dense)


def test_only_listed_blocks_count_in_any_order() -> None:
    workload = NSA.workload("batch=1,heads=2,seq_len=100,head_dim=16,group=2,block=16,topk=4")
    inputs = NSA.inputs(workload, "cpu", 1)
    inputs["indices"][:] = torch.tensor([3, -1, 1, -1])
    out = NSA.reference(workload, inputs)["O"]
    q, k, v = (inputs[name][0].float() for name in ("Q", "K", "V"))
    keys = [*range(48, 61), *range(16, 32)]  # of the query 60
    weights = (q[60] @ k[keys, 0].T * 0.25).softmax(-1)
    torch.testing.assert_close(out[0, 60], weights @ v[keys, 0])
    assert not out[0, :16].any(), "these queries see no key"
    for call in NSA.vendor(workload, inputs).values():
        found = call()
        assert isinstance(found, torch.Tensor)
        assert (found[0, 16:].float() - out[0, 16:]).norm() < 0.01 * out.norm()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=24,seq_len=64,head_dim=64", "group=16 must divide heads=24"),
        ("batch=1,heads=128,seq_len=64,head_dim=64,group=128", "lie in 1 .. 64"),
        ("batch=1,heads=16,seq_len=64,head_dim=40", "head_dim=40 must be a multiple of 16"),
        ("batch=1,heads=16,seq_len=64,head_dim=64,topk=5", "topk=5 must be one of: 4, 8"),
        ("batch=70000,heads=16,seq_len=1,head_dim=64", "batch=70000 or heads=16 exceeds"),
    ],
)
def test_bad_workloads_are_refused(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        NSA.workload(shape)
