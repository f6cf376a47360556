"""Attention of sequences that are spread over ranks: results of its tile program on a CPU, and its tiles."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cpu_programs import built_c, on_cpu
from tests.support.recorded_ir import only_text
from tests.support.sending_blocks import check_senders
from tilesight.errors import WorkloadError
from tilesight.executor.tasks import lower_and_profile
from tilesight.kernels.context_parallel_flash_attention import OPERATOR, TEMPLATES
from tilesight.kernels.flash_attention import OPERATOR as ALONE
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import ANNOUNCE, AWAIT, MEET, argument_names
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

NODE = load_target("h200x2")
(TEMPLATE,) = TEMPLATES
LENGTH = 128  # positions of a rank
# of two tiles of queries and of keys in each part, or one tile of one of them
TILES = ((3, 32, 32, 2), (2, 64, 32, 1), (4, 32, 64, 1))


def small(world: int, causal: bool, batch: int = 1, dtype: str = "bfloat16") -> Workload:
    dims = {"batch": batch, "heads": 4, "seq_len": LENGTH, "head_dim": 16, "world": world}
    return Workload(OPERATOR.name, dims, dtype, {"causal": causal, "group": 2, "scale": 0.3})


def positions(world: int, causal: bool) -> list[torch.Tensor]:
    """Of each rank: a contiguous share, or one part from the front and one from the back."""
    if not causal:
        return list(torch.arange(world * LENGTH).split(LENGTH))
    parts = torch.arange(world * LENGTH).split(LENGTH // 2)
    return [torch.cat([parts[rank], parts[-1 - rank]]) for rank in range(world)]


def whole(inputs: list[dict[str, torch.Tensor]], places: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of all ranks in the order of positions."""
    order = torch.cat(places).argsort()
    return {name: torch.cat([one[name] for one in inputs], 1)[:, order] for name in "QKV"}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("world", "block_m", "block_n", "batch"), TILES)
def test_ranks_compute_attention_of_the_whole_sequence(
    world: int, block_m: int, block_n: int, batch: int, causal: bool, tmp_path: Path
) -> None:
    workload = small(world, causal, batch, "float32")
    inputs = [OPERATOR.rank_inputs(workload, rank, "cpu", 5) for rank in range(world)]
    places = positions(world, causal)
    together, given = OPERATOR.share(workload, world), whole(inputs, places)
    right, magnitude = (call(together, given)["O"] for call in (ALONE.reference, ALONE.magnitude))
    order = "by_length" if causal else "by_head"
    tile = {"block_m": block_m, "block_n": block_n, "num_stages": 1, "threads": 32, "block_order": order}
    with on_cpu():
        kernel = built_c(TEMPLATE.build(workload, Config({"algorithm": "sequential", **tile})), tmp_path)
    gathered = {
        name: torch.cat([one[key] for one in inputs])
        for name, key in (("gathered_keys", "K"), ("gathered_values", "V"))
    }
    references = OPERATOR.group_reference(workload, inputs)
    magnitudes = OPERATOR.group_magnitude(workload, inputs)
    for rank, place in enumerate(places):
        out = torch.full_like(inputs[rank]["Q"], torch.nan)
        kernel({**inputs[rank], **gathered, "O": out, "rank": rank})
        torch.testing.assert_close(references[rank]["O"], right[:, place], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(magnitudes[rank]["O"], magnitude[:, place], rtol=1e-5, atol=1e-6)
        assert (out - right[:, place]).norm() / right.norm() < 1e-5


@pytest.mark.parametrize("causal", [True, False])
def test_the_vendors_part_is_the_reference(causal: bool) -> None:
    workload = small(3, causal, batch=2, dtype="float32")
    inputs = [OPERATOR.rank_inputs(workload, rank, "cpu", 5) for rank in range(3)]
    gathered = {
        name: torch.cat([one[key] for one in inputs]).view(OPERATOR.gathered(workload)[0])
        for name, key in (("gathered_keys", "K"), ("gathered_values", "V"))
    }
    for rank, expected in enumerate(OPERATOR.group_reference(workload, inputs)):
        out = torch.full_like(inputs[rank]["Q"], torch.nan)
        OPERATOR.vendor_of_rank(workload, rank, {**inputs[rank], **gathered, "O": out})()
        torch.testing.assert_close(out, expected["O"], rtol=1e-5, atol=1e-5)


def test_all_ranks_have_as_much_to_compute() -> None:
    """With the zigzag order; and a rank's operations are those of the whole sequence, divided."""
    workload = small(4, causal=True)
    seen = [(place[:, None] >= torch.arange(4 * LENGTH)).sum() for place in positions(4, True)]
    assert len({int(one) for one in seen}) == 1
    assert OPERATOR.flops(workload) == 4 * 4 * 16 * int(seen[0])
    rows, keys = LENGTH * 4 * 16, 4 * LENGTH * 2 * 16
    assert OPERATOR.min_bytes(workload) == 2 * (2 * rows + 2 * keys)


def number(value: Any) -> int:
    from tilelang import tvm

    return int(tvm.arith.Analyzer().simplify(tvm.tirx.IntImm("int32", 0) + value))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block_m", "block_n"), [(32, 32), (64, 16), (32, 64)])
def test_tiles_are_visited_once_the_own_ones_first_and_others_as_they_come(
    block_m: int, block_n: int, causal: bool
) -> None:
    """All tiles with a key that a query of the block sees, and no other ones."""
    from tilesight.kernels._rank_attention import RankAttentionTiles

    world, places = 4, positions(4, causal)
    for rank in range(world):
        tiles = RankAttentionTiles(
            block_m, block_n, LENGTH, 16, causal, 0, 0, "bfloat16", 1.0, False, world, rank
        )
        for row in range(0, LENGTH, block_m):
            count = number(tiles.count(row, None))
            found = [tuple(map(number, tiles.place(row, tile))) for tile in range(count)]
            last = places[rank][row + block_m - 1]
            wanted = {
                (shard, tile)
                for shard in range(world)
                for tile in range(LENGTH // block_n)
                if not causal or places[shard][tile * block_n] <= last
            }
            assert set(found) == wanted
            assert len(found) == len(wanted)
            turns = [(shard - rank) % world for shard, _ in found]
            assert turns == sorted(turns)
            for turn in set(turns):
                of_turn = [tile for (_, tile), other in zip(found, turns, strict=True) if other == turn]
                assert of_turn == sorted(of_turn)


def candidate(shape: str, **wanted: Any) -> Candidate:
    workload = OPERATOR.workload_on(NODE, shape)
    default = TEMPLATE.default_config(workload, NODE)
    assert default is not None
    config = Config({**default, **wanted})
    assert config in TEMPLATE.space(workload, NODE)
    return Candidate(workload, NODE, TEMPLATE, config)


@cache
def attention(shape: str) -> str:
    """The kernel that sends and attends."""
    with only_text():
        lowered = lower_candidate(candidate(shape), only_read=True)
    texts = [function.script() for function in lowered.device.functions.values()]
    assert [MEET in text for text in texts] == [True, False]
    return texts[1]


@pytest.mark.parametrize("shape", ["L8_8K", "DIT_32K"])
def test_no_keys_of_a_peer_are_read_without_a_wait(shape: str) -> None:
    text = attention(shape)
    assert text.index(ANNOUNCE) < text.index(AWAIT) < text.index("T.tma_load(gathered_keys_0_desc")
    assert (text.count(f'"{ANNOUNCE}"'), text.count(f'"{AWAIT}"')) == (1, 1)
    reads = re.findall(r"T\.tma_load\((\w+)_desc", text)
    of_all = [f"gathered_{what}_{rank}" for what in ("keys", "values") for rank in range(2)]
    assert sorted(reads) == sorted(["Q", "K", "V", *of_all])
    # keys and values of a chunk are stored at the peer when its flag is raised
    stores = [at.start() for at in re.finditer(r"gathered_(keys|values)_\d_1\[[^\]]*\] = held", text)]
    assert len(stores) == 4
    assert max(stores) < text.index(ANNOUNCE)


def test_what_peers_write_is_not_read_as_constant() -> None:
    """TileLang makes parameters that a kernel only reads `const __restrict__`, so loads may miss writes."""
    text = attention("L8_8K")
    parameters = re.findall(r"(\w+): T\.", re.search(r"def \w+\((.*)\):", text)[1])  # type: ignore[index]
    found = re.search(r'"tl.readonly_param_indices": \[([\d, ]*)\]', text)
    assert found is not None
    constant = {parameters[int(index)] for index in found[1].split(",")}
    assert {name for name in constant if not name.endswith("_desc")} == {"K", "V"}


def test_blocks_send_or_attend_and_all_of_them_are_resident() -> None:
    senders = 4
    found = lower_and_profile(candidate("L8_8K", senders=senders))
    size, peers = check_senders(found, senders, NODE.int("core.count"))
    # keys and values of 4096 positions and 8 heads go to the peer
    assert size == pytest.approx(2 * 4096 * 8 * 128 * 2, rel=0.05)
    assert peers == {"store"}


def test_kernels_that_send_take_their_arguments_in_the_stated_order() -> None:
    one = candidate("L8_8K")
    shared, own = (call(one.workload, one.config) for call in (TEMPLATE.shared_scratch, TEMPLATE.scratch))
    wanted = [
        name if rank is None else f"{name}_{rank}"
        for name, rank in argument_names(OPERATOR, one.workload, shared, own)
    ]
    prim_func = TEMPLATE.build(one.workload, one.config)
    assert [str(prim_func.buffer_map[p].name) for p in prim_func.params[:-1]] == wanted
    assert not own
    assert str(prim_func.params[-1].name) == "rank"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            "seq_len=1088,causal=true",
            r"seq_len=1088 of a rank .* pad the sequence of all ranks to a multiple of 512",
        ),
        ("seq_len=1000", r"seq_len=1000 of a rank .* multiple of 256"),
        ("heads=6,seq_len=1024,group=4", r"group=4 must be at least 1 and divide heads=6"),
        ("seq_len=1024,head_dim=72", r"head_dim=72 must be a multiple of 16"),
        ("seq_len=1024,head_dim=512", r"head_dim=512 exceeds 256"),
        ("seq_len=1024,world=9", r"world=9 is more than the 8 devices of one host"),
        ("seq_len=1048576", r"the keys of world=4 devices .* split the batch"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: str, message: str) -> None:
    given = {"batch": "1", "heads": "8", "head_dim": "128", "world": "4"}
    given |= dict(part.split("=") for part in shape.split(","))
    with pytest.raises(WorkloadError, match=message):
        OPERATOR.workload(",".join(f"{name}={value}" for name, value in given.items()))


def test_a_published_sequence_that_the_world_does_not_divide_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"its whole seq_len=8192 cannot be divided among 3 devices"):
        OPERATOR.workload_of_world(3, "L8_8K")
