"""Values of index tensors that kernels must not get: each operator that has such tensors finds them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch

from tilesight.kernels import operator, operators
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.index_values import not_rising, outside

CACHE = "flash_decoding", "batch=3,heads=4,kv_heads=2,kv_len=64,head_dim=16,page=16,lengths=mixed"
LATENT = "mla_decode", "batch=2,heads=16,kv_len=640,topk=512"
PAGED = "mla_decode", f"{LATENT[1]},page=64"
ROWS = "grouped_matmul", "tokens=64,groups=4,n=32,k=32"
MASKED = "grouped_matmul", "tokens=64,groups=4,n=32,k=32,rows=masked"
PACKED = "flash_attention_varlen", "batch=3,tokens=60,tokens_kv=90,heads=2,head_dim=16"
ITEMS = "flash_attention", "batch=2,heads=2,seq_len=32,head_dim=16,lengths=mixed"
LABELS = "cross_entropy", "m=20,n=30"
SELECTED = "native_sparse_attention", "batch=1,heads=16,seq_len=512,head_dim=64"
RANKS = "context_parallel_flash_decoding", f"{CACHE[1]},world=2"
LATENT_RANKS = "context_parallel_mla_decode", "batch=2,heads=16,kv_len=64,page=16,lengths=mixed,world=4"
EXPERTS = "all_to_all_grouped_matmul", "tokens=5,hidden=8,inner=8,experts=3,topk=2,world=4"
LISTS = "flash_decoding_paged", "batch=3,heads=4,kv_heads=2,head_dim=16,page=16,indices=11,pages=9"
SINGLE = "flash_decoding_paged", "batch=3,heads=4,kv_heads=2,head_dim=16,page=1,indices=11"
LISTED = "block_sparse_attention", "batch=1,heads=2,seq_len=512,head_dim=64"


def put(name: str, place: tuple[int, ...], value: int) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(inputs: dict[str, torch.Tensor]) -> None:
        inputs[name][place] = value

    return change


@pytest.mark.parametrize(
    ("of", "change", "message"),
    [
        (CACHE, put("Table", (0, 1), 12), r"Table\[0, 1\] is 12 and must be 0 to 11: the pool has that many"),
        (CACHE, put("Table", (0, 3), -1), r"Table\[0, 3\] is -1 and must be 0 to 11"),
        (CACHE, put("Lengths", (2,), 65), r"Lengths\[2\] is 65 and must be 0 to 64: an item has room for"),
        (LATENT, put("Indices", (1, 0, 7), 640), r"Indices\[1, 0, 7\] is 640 and must be -1 to 639"),
        (PAGED, put("Indices", (1, 0, 7), -2), r"Indices\[1, 0, 7\] is -2 and must be -1 to 639"),
        (PAGED, put("Table", (1, 9), 20), r"Table\[1, 9\] is 20 and must be 0 to 19: the pool has that many"),
        (ROWS, put("ends", (0,), 1), r"ends\[0\] is 1 and must be 0, where the first of the groups begins"),
        (ROWS, put("ends", (2,), 99), r"ends\[3\] is \d+, less than the 99 before it"),
        (ROWS, put("ends", (4,), 65), r"ends\[4\] is 65 and must be at most 64, the number of rows"),
        (MASKED, put("ends", (1,), 65), r"ends\[1\] is 65 and must be 0 to 64: rows of a group"),
        (PACKED, put("cu_seqlens_q", (3,), 61), r"cu_seqlens_q\[3\] is 61 and must be at most 60"),
        (PACKED, put("cu_seqlens_k", (1,), -4), r"cu_seqlens_k\[1\] is -4, less than the 0 before it"),
        (ITEMS, put("length", (1,), 33), r"length\[1\] is 33 and must be 0 to 32"),
        (LABELS, put("labels", (5,), 30), r"labels\[5\] is 30 and must be at most 29: a column of x"),
        (SELECTED, put("indices", (0, 3, 0, 0), 8), r"indices\[0, 3, 0, 0\] is 8 and must be -1 to 7"),
        (RANKS, put("Table", (0, 1), 12), r"Table\[0, 1\] is 12 and must be 0 to 11: the pool has that many"),
        (RANKS, put("Lengths", (1,), -1), r"Lengths\[1\] is -1 and must be 0 to 64: an item has room for"),
        (LATENT_RANKS, put("Table", (0, 0), 8), r"Table\[0, 0\] is 8 and must be 0 to 7"),
        (EXPERTS, put("Ids", (4, 1), 12), r"Ids\[4, 1\] is 12 and must be at most 11: an expert of a rank"),
        (
            LISTS,
            put("kv_indptr", (0,), 1),
            r"kv_indptr\[0\] is 1 and must be 0, where the first of the pages",
        ),
        (LISTS, put("kv_indptr", (1,), 9), r"kv_indptr\[2\] is 7, less than the 9 before it"),
        (
            LISTS,
            put("kv_indptr", (3,), 12),
            r"kv_indptr\[3\] is 12 .* at most 11, the number of listed pages",
        ),
        (LISTS, put("kv_indices", (10,), 9), r"kv_indices\[10\] is 9 and must be 0 to 8: the pool has that"),
        (LISTS, put("kv_last_page_len", (1,), 0), r"kv_last_page_len\[1\] is 0 and must be 1 to 16: keys of"),
        (LISTS, put("kv_last_page_len", (2,), 17), r"kv_last_page_len\[2\] is 17 and must be 1 to 16"),
        (SINGLE, put("kv_indices", (3,), -1), r"kv_indices\[3\] is -1 and must be 0 to 10"),
        (LISTED, put("counts", (0, 1, 2), 9), r"counts\[0, 1, 2\] is 9 and must be 0 to \d"),
        (LISTED, put("indices", (0, 1, 2, 0), 99), r"indices\[0, 1, 2, 0\] is 99 and must be 0 to \d"),
    ],
)
def test_the_first_wrong_value_is_named(
    of: tuple[str, str], change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    ours = operator(of[0])
    workload = ours.workload(of[1])
    inputs = ours.inputs(workload, "cpu", 1)
    assert ours.index_fault(workload, inputs) is None
    change(inputs)
    fault = ours.index_fault(workload, inputs)
    assert fault is not None
    assert re.match(message, fault), fault


def test_values_that_no_kernel_reads_may_be_anything() -> None:
    ours = operator(CACHE[0])
    workload = ours.workload(CACHE[1])
    inputs = ours.inputs(workload, "cpu", 1)
    inputs["Lengths"][1:] = torch.tensor([0, 16])
    inputs["Table"][1], inputs["Table"][2, 1:] = -7, 10**6
    assert ours.index_fault(workload, inputs) is None
    experts = operator(EXPERTS[0])
    chosen = experts.inputs(experts.workload(EXPERTS[1]), "cpu", 1)
    chosen["Ids"][0, 0] = -7
    assert experts.index_fault(experts.workload(EXPERTS[1]), chosen) is None
    latent = operator(PAGED[0])
    selected = latent.inputs(latent.workload(PAGED[1]), "cpu", 1)
    selected["Indices"][1] = torch.tensor([127, -1]).repeat(256)  # keys of the second page, and none
    selected["Table"][1, 0], selected["Table"][1, 2:] = -7, 10**6
    assert latent.index_fault(latent.workload(PAGED[1]), selected) is None
    paged = operator(LISTS[0])
    unused = paged.inputs(paged.workload(LISTS[1]), "cpu", 1)
    unused["kv_indptr"][1:] = torch.tensor([4, 4, 9])
    unused["kv_last_page_len"][1], unused["kv_indices"][9:] = -7, 10**6
    assert paged.index_fault(paged.workload(LISTS[1]), unused) is None
    lists = operator(LISTED[0])
    listed = lists.inputs(lists.workload(LISTED[1]), "cpu", 1)
    listed["counts"][0, 0, 0], listed["indices"][0, 0, 0, 1:] = 1, 99
    assert lists.index_fault(lists.workload(LISTED[1]), listed) is None


def test_each_operator_with_contents_looks_at_them() -> None:
    """Contents are the integers that decide about addresses and loops."""
    plain = type(operator("gemv")).index_fault
    for name in operators():
        ours = operator(name)
        made = partial(ours.workload_of_world, 2) if isinstance(ours, GroupOperator) else ours.workload
        has_contents = any(ours.contents(made(shape)) for shape in ours.named)
        assert not has_contents or type(ours).index_fault is not plain, name


def test_no_value_is_wrong_where_there_is_none() -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    assert outside("x", empty, 0, 1, "rule") is None
    assert not_rising("x", torch.zeros(1, dtype=torch.int32), 0, "parts") is None
