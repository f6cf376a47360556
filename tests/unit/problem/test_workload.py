from __future__ import annotations

import pickle

import pytest

from tilesight.dtypes import canonical_dtype
from tilesight.errors import InputError, WorkloadError
from tilesight.problem.assignments import parse_assignments
from tilesight.problem.workload import MAX_DIMENSION, Workload


def attention(**changes: object) -> Workload:
    values: dict[str, object] = {
        "operator": "attention",
        "dims": {"batch": 1, "heads": 8},
        "dtype": "bfloat16",
        "attrs": {"causal": True, "group": 4},
        "name": "A0",
    }
    return Workload(**{**values, **changes})  # type: ignore[arg-type]


def test_key_has_all_fields_but_the_name() -> None:
    workload = attention()
    assert workload.key == "attention(batch=1,heads=8;causal=true,group=4,dtype=bfloat16)"
    assert attention(attrs={"group": 4, "causal": True}).key == workload.key
    assert attention(name=None) == workload
    assert hash(attention(name=None)) == hash(workload)
    for other in (
        {"dtype": "float16"},
        {"attrs": {"causal": False, "group": 4}},
        {"dims": {"batch": 2, "heads": 8}},
    ):
        assert attention(**other).key != workload.key


def test_workload_is_frozen_and_can_be_pickled() -> None:
    workload = attention()
    copy = pickle.loads(pickle.dumps(workload))
    assert copy == workload
    assert copy.name == "A0"
    with pytest.raises(TypeError):
        workload.dims["batch"] = 2  # type: ignore[index]


def test_label_is_for_people() -> None:
    assert attention().label == "attention A0: batch=1 heads=8 causal=True group=4 bfloat16"
    assert "A0" not in attention(name=None).label


@pytest.mark.parametrize("value", [0, -1, MAX_DIMENSION + 1, True, 1.5, "8", None])
def test_bad_dimensions_are_named(value: object) -> None:
    with pytest.raises(WorkloadError, match=f"attention: heads={value!r}"):
        attention(dims={"batch": 1, "heads": value})


@pytest.mark.parametrize(
    ("said", "meant"),
    [("bf16", "bfloat16"), ("FP16", "float16"), ("half", "float16"), ("bfloat16", "bfloat16")],
)
def test_dtypes_have_one_spelling(said: str, meant: str) -> None:
    assert canonical_dtype(said, ("bfloat16", "float16"), "matmul") == meant


def test_dtype_that_is_not_allowed() -> None:
    with pytest.raises(
        WorkloadError, match="matmul: dtype 'fp32' is not supported; use one of: bfloat16, float16"
    ):
        canonical_dtype("fp32", ("bfloat16", "float16"), "matmul")


def test_assignments() -> None:
    assert parse_assignments(" m=1, n = two ", "shape") == {"m": "1", "n": "two"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m", "'m' is not of the form"),
        ("m=1,,n=2", "'' is not"),
        ("m=1=2", "m=1=2"),
        ("m=1,m=2", "m is given twice"),
    ],
)
def test_malformed_assignments_are_quoted(text: str, message: str) -> None:
    with pytest.raises(
        InputError, match=f"shape '{text}': .*{message}" if "twice" not in message else message
    ):
        parse_assignments(text, "shape")
