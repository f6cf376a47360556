"""Attention of packed items: its reference, its lengths and the tiles of its items."""

from __future__ import annotations

import itertools

import pytest
import torch

from tilesight.errors import WorkloadError
from tilesight.kernels import operator
from tilesight.kernels._packed_items import block_count

VARLEN, DENSE = operator("flash_attention_varlen"), operator("flash_attention")


@pytest.mark.parametrize("more", ["causal=true", "causal=true,window=9,sinks=true", "softcap=5,scale=0.3"])
def test_each_item_is_attention_of_its_own(more: str) -> None:
    workload = VARLEN.workload(f"batch=3,heads=4,tokens=70,head_dim=16,group=2,lse=true,{more}")
    inputs = VARLEN.inputs(workload, "cpu", 1)
    found = VARLEN.reference(workload, inputs)
    ends = inputs["cu_seqlens_q"].tolist()
    assert ends == inputs["cu_seqlens_k"].tolist()
    assert ends[0] == 0
    assert ends[-1] == 70
    for first, end in itertools.pairwise(ends):
        item = DENSE.workload(f"batch=1,heads=4,seq_len={end - first},head_dim=16,group=2,lse=true,{more}")
        rows = {name: inputs[name][None, first:end] for name in ("Q", "K", "V")}
        sinks = {"sink": inputs["sink"]} if "sink" in inputs else {}
        expected = DENSE.reference(item, {**rows, **sinks})
        torch.testing.assert_close(found["O"][first:end], expected["O"][0])
        torch.testing.assert_close(found["LSE"][:, first:end], expected["LSE"][0])


def test_the_last_query_is_at_the_last_key_and_a_query_may_see_none() -> None:
    workload = VARLEN.workload("batch=2,heads=1,tokens=5,head_dim=8,tokens_kv=7,causal=true,lse=true")
    inputs = VARLEN.inputs(workload, "cpu", 1)
    # two queries after four keys; three queries of which two come before the first key
    inputs["cu_seqlens_q"], inputs["cu_seqlens_k"] = torch.tensor([0, 2, 5]), torch.tensor([0, 6, 7])
    found = VARLEN.reference(workload, inputs)
    q, k, v = (inputs[name][:, 0].float() for name in ("Q", "K", "V"))
    for query, keys in ((0, 5), (1, 6)):
        weights = (q[query] @ k[:keys].T * 8**-0.5).softmax(-1)
        torch.testing.assert_close(found["O"][query, 0], weights @ v[:keys])
    assert not found["O"][2:4].any()
    assert (found["LSE"][0, 2:4] == -torch.inf).all()
    torch.testing.assert_close(found["O"][4, 0], v[6])


def test_work_is_that_of_the_items() -> None:
    whole = VARLEN.workload("batch=1,heads=2,tokens=64,head_dim=16,causal=true")
    assert VARLEN.flops(whole) == 4 * 2 * 16 * 64 * 65 // 2
    later = VARLEN.workload("batch=1,heads=2,tokens=64,head_dim=16,tokens_kv=100,causal=true,window=10")
    assert VARLEN.flops(later) == 4 * 2 * 16 * 64 * 10
    named = VARLEN.workload("VL1")
    lengths = VARLEN.contents(named)["cu_seqlens_q"]
    assert lengths[-1] == named.dims["tokens"]
    assert 4 < max(lengths[1:] - lengths[:-1]) / min(lengths[1:] - lengths[:-1]) < 8


@pytest.mark.parametrize("block", [32, 64, 192])
def test_each_row_lies_in_one_tile_of_its_item(block: int) -> None:
    ends = [0, 0, 1, 64, 64, 256, 449, 500, 500]
    items = len(ends) - 1
    covered = []
    for tile in range(block_count(ends[-1], items, block)):
        item = max(i for i in range(items) if ends[i] // block + i <= tile)
        first = ends[item] + (tile - ends[item] // block - item) * block
        covered += range(first, min(first + block, ends[item + 1]))
    assert covered == list(range(500))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=3,tokens=8,head_dim=16,group=2", "group=2 must be at least 1 and divide heads=3"),
        ("batch=1,heads=2,tokens=8,head_dim=16,window=4", "window=4 needs causal=true"),
        ("batch=1,heads=2,tokens=8,head_dim=512", "head_dim=512 exceeds 256"),
        ("batch=65536,heads=2,tokens=8,head_dim=16", "tiles of queries, 65536, exceeds the 65535"),
        ("batch=1,heads=2,tokens=8,head_dim=16,softcap=-1,causal=true", "softcap=-1 must not be negative"),
    ],
)
def test_bad_workloads_are_refused(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        VARLEN.workload(shape)
