"""The space of a layer of experts over ranks: one schedule of both products."""

from __future__ import annotations

import pytest

from tilesight.errors import WorkloadError
from tilesight.kernels import template_for
from tilesight.kernels.all_to_all_grouped_matmul import OPERATOR
from tilesight.problem.space import Config
from tilesight.search_spaces import grouped_matmul
from tilesight.search_spaces.all_to_all_grouped_matmul import of_second
from tilesight.search_spaces.rank_products import product_config
from tilesight.target.spec import load_target

NODE = load_target("h200x4")


@pytest.mark.parametrize("name", ["DSD", "MXP"])
def test_every_config_is_one_of_both_products(name: str) -> None:
    template = template_for(OPERATOR.name, NODE, "bfloat16")
    workload = OPERATOR.workload_on(NODE, name)
    space = template.space(workload, NODE)
    tokens = workload.dims["tokens"] * workload.dims["topk"]
    first, second = (grouped_matmul.space(one, NODE) for one in OPERATOR.products(workload, tokens))
    configs = space.configs()
    assert {config["algorithm"] for config in configs} == {"sequential", "push"}
    for config in configs[:: len(configs) // 40]:
        assert product_config(config) in first
        assert second.works(of_second(config))
        assert of_second(config)["block_n"] == 2 * config.int("block_n")
    assert template.default_config(workload, NODE) in space


def test_what_the_second_product_cannot_have_is_refused_with_a_reason() -> None:
    template = template_for(OPERATOR.name, NODE, "bfloat16")
    space = template.space(OPERATOR.workload_on(NODE, "DSP"), NODE)
    default = template.default_config(OPERATOR.workload_on(NODE, "DSP"), NODE)
    assert default is not None
    reasons = [one.reason for one in space.violations(Config({**default, "block_n": 192}))]
    assert any("one half of 384 columns of the second product" in reason for reason in reasons)
    table = Config({**default, "persistent": 132, "schedule": "serial", "block_n": 64})
    assert any("tiles of all rows that may come" in one.reason for one in space.violations(table))


def test_shapes_that_do_not_fit_are_refused() -> None:
    small = "tokens=8,hidden=64,inner=64,experts=2"
    with pytest.raises(WorkloadError, match=r"topk=9 must be 1 to 8: there are 8 experts"):
        OPERATOR.workload_on(NODE, f"{small},topk=9")
    with pytest.raises(WorkloadError, match=r"inner=60 must be a multiple of 8"):
        OPERATOR.workload_on(NODE, "tokens=8,hidden=64,inner=60,experts=2,topk=2")
    with pytest.raises(WorkloadError, match="split the tokens or the experts"):
        OPERATOR.workload_on(NODE, "tokens=65536,hidden=8192,inner=64,experts=2,topk=8")


@pytest.mark.parametrize("routing", ["even", "skewed"])
def test_experts_of_a_token_differ_and_contents_are_those_of_rank_0(routing: str) -> None:
    import numpy as np

    workload = OPERATOR.workload_on(
        NODE, f"tokens=256,hidden=64,inner=64,experts=16,topk=4,routing={routing}"
    )
    chosen = OPERATOR.routing(workload)
    assert chosen.shape == (4, 256, 4)
    assert all(len(set(row)) == 4 for row in chosen.reshape(-1, 4).tolist())
    counts = np.bincount(chosen.reshape(-1), minlength=64)
    assert (counts[15::16] == 0).all() == (routing == "skewed")
    assert (counts.max() > 2 * counts.mean()) == (routing == "skewed")
    contents = OPERATOR.contents(workload)
    assert np.diff(contents["ends"]).tolist() == counts[:16].tolist()
    rows = contents["row_of"]
    assert ((rows >= 0) == (chosen.reshape(-1, 4) < 16)).all()
    local = np.sort(rows[rows >= 0])
    assert local.tolist() == list(range(int(contents["ends"][-1])))
