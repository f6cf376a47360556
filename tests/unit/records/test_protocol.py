"""Protocols: what is a condition, what is effort, and what the names mean on each kind of target."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tilesight.errors import InputError, UnknownNameError
from tilesight.records.protocol import PROTOCOLS, MeasurementProtocol
from tilesight.target.spec import load_target


def test_the_default_of_gpus_is_cold_and_eager() -> None:
    found = MeasurementProtocol.named("default", load_target("h200"))
    assert (found.l2, found.launch) == ("cold", "eager")
    assert found == MeasurementProtocol()


def test_serving_is_warm_and_in_a_graph() -> None:
    found = MeasurementProtocol.named("serving", load_target("h200"))
    assert (found.l2, found.launch) == ("warm", "graph")
    assert found.stretch_us > 0, "a single launch in a graph is too short to be measured"


def test_the_default_rests_and_serving_keeps_the_device_busy() -> None:
    """Around the moment at which a power limit acts, times depend on chance."""
    default, serving = (
        MeasurementProtocol.named(name, load_target("h200")) for name in ("default", "serving")
    )
    assert default.rest > 0
    assert default.warmup_ms < default.burst_ms
    assert serving.rest == 0
    assert serving.warmup_ms >= 100
    assert "held" in MeasurementProtocol.named("default", load_target("cpu")).key


def test_keys_depend_on_conditions_alone() -> None:
    gpu, cpu = load_target("h200"), load_target("cpu")
    default, serving = (MeasurementProtocol.named(name, gpu) for name in PROTOCOLS)
    assert default.key != serving.key
    assert default.key == MeasurementProtocol.named("default", load_target("h100")).key
    assert default.key == default.careful().key
    assert default.key == replace(default, min_samples=5, precision=0.5, seed=7, checks=0, name="other").key
    for change in (
        {"l2": "warm", "launch": "call"},
        {"inputs": "ones"},
        {"input_sets": 1},
        {"version": 1},
        {"rest": 0.0},
        {"burst_ms": 4.0},
    ):
        assert replace(default, **change).key != default.key, change
    assert MeasurementProtocol.named("default", cpu).key == MeasurementProtocol.named("serving", cpu).key, (
        "a processor has one way only"
    )


def test_protocols_of_a_processor_keep_their_names() -> None:
    found = MeasurementProtocol.named("serving", load_target("cpu"))
    assert (found.name, found.launch, found.l2) == ("serving", "call", "warm")
    assert "no graph" in found.sample


def test_careful_takes_more_samples() -> None:
    for target in (load_target("h200"), load_target("cpu")):
        for name in PROTOCOLS:
            usual = MeasurementProtocol.named(name, target)
            careful = usual.careful()
            assert careful.min_samples > usual.min_samples
            assert careful.max_samples > usual.max_samples
            assert careful.checks > usual.checks
            assert careful.precision < usual.precision


def test_a_wrong_name_offers_the_right_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean serving"):
        MeasurementProtocol.named("servin", load_target("h200"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"l2": "warm"}, "l2=warm with launch=eager cannot be measured"),
        ({"launch": "graph"}, "known: l2=cold with launch=eager"),
        ({"input_sets": 0}, "input_sets=0"),
        ({"min_samples": 5, "max_samples": 4}, "max_samples=4"),
    ],
)
def test_impossible_conditions_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        replace(MeasurementProtocol(), **change)


def test_a_record_has_plain_values() -> None:
    protocol = MeasurementProtocol.named("serving", load_target("h200"))
    record = protocol.record()
    assert record["launch"] == "graph"
    assert record["version"] == protocol.version
    assert all(isinstance(value, str | int | float | bool) for value in record.values())
    assert MeasurementProtocol(**record) == protocol
    assert pickle.loads(pickle.dumps(protocol)) == protocol
