"""The attribute `scale` of attention: the factor of the scores before their softmax."""

from __future__ import annotations

import pytest
import torch

from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.target.spec import load_target

# small shapes; the second number is the width of a key
SHAPES = {
    "flash_attention": ("batch=2,heads=2,seq_len=40,head_dim=32,causal=true", 32),
    "flash_attention_bwd": ("batch=2,heads=2,seq_len=40,head_dim=32,causal=true", 32),
    "flash_decoding": ("batch=2,heads=4,kv_heads=2,kv_len=70,head_dim=32", 32),
    "block_sparse_attention": ("batch=1,heads=2,seq_len=200,head_dim=32,percent=40", 32),
    "mla_decode": ("batch=2,heads=4,kv_len=70,dim=64", 128),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_default_is_one_over_the_root_of_the_width(name: str) -> None:
    ours, (shape, width) = operator(name), SHAPES[name]
    plain, zero, same = (
        ours.workload(text) for text in (shape, f"{shape},scale=0", f"{shape},scale={width**-0.5}")
    )
    assert plain == zero
    assert "scale" not in plain.attrs
    assert f"scale={width**-0.5}" in same.key
    target = load_target("h100")
    (template,) = templates(name)
    config = template.default_config(plain, target)
    assert config is not None
    code, doubled = (template.build(w, config).script() for w in (plain, ours.workload(f"{shape},scale=2")))
    assert code != doubled


@pytest.mark.parametrize("name", SHAPES)
def test_a_factor_of_the_scores_is_a_factor_of_the_queries(name: str) -> None:
    ours, (shape, width) = operator(name), SHAPES[name]
    plain, scaled = ours.workload(shape), ours.workload(f"{shape},scale={2 * width**-0.5}")
    inputs = ours.inputs(scaled, "cpu", 1)
    doubled = {**inputs, "Q": inputs["Q"] * 2}
    found, expected = ours.reference(scaled, inputs), ours.reference(plain, doubled)
    if name == "flash_attention_bwd":  # d/dQ of a function of 2 Q
        expected["dQ"] = 2 * expected["dQ"]
    for key in found:
        torch.testing.assert_close(found[key], expected[key])
    first = next(iter(found.values()))
    for call in ours.vendor(scaled, inputs).values():
        result = call()
        out = result[0] if isinstance(result, tuple | list) else result
        assert isinstance(out, torch.Tensor)
        out = out if out.shape == first.shape else out.transpose(1, 2)
        assert (out.float() - first).norm() < 0.02 * first.norm()
    for key, magnitude in ours.magnitude(scaled, inputs).items():
        torch.testing.assert_close(
            magnitude * (0.5 if key == "dQ" else 1), ours.magnitude(plain, doubled)[key]
        )


@pytest.mark.parametrize("value", ["-0.5", "nan", "inf", "half"])
def test_other_factors_are_refused(value: str) -> None:
    for name, (shape, _) in SHAPES.items():
        with pytest.raises(WorkloadError, match=f"{name}: scale=.*must be a number"):
            operator(name).workload(f"{shape},scale={value}")


def test_a_fraction_may_be_given_as_a_whole_number() -> None:
    ours = operator("flash_attention")
    ours.check_attribute("scale", 1)
    assert ours.kept_attributes({"scale": 1})["scale"] == 1.0
    with pytest.raises(WorkloadError, match="scale=True must be like"):
        ours.check_attribute("scale", True)
