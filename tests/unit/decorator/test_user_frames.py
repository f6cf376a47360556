"""What a user sees of an error: the call, the function that raised, and no frames of TileSight between."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tests.unit.decorator import user_kernels
from tilesight.decorator import autotune, tune_task
from tilesight.errors import InputError, NoCandidateError

pytestmark = pytest.mark.usefixtures("places")


def broken(n: int, block: int = 16) -> Any:
    raise ValueError(f"no tile of {n}" if block else "no block")


def files(error: BaseException) -> list[str]:
    """The functions of its traceback; TileSight's own as `tilesight`."""
    found = traceback.extract_tb(error.__traceback__)
    return ["tilesight" if "/tilesight/decorator/" in frame.filename else frame.name for frame in found]


def test_an_error_shows_the_call_and_the_users_function() -> None:
    made = autotune(configs=[{"block": 16}], target="cpu")(broken)
    with pytest.raises(NoCandidateError, match="ValueError: no tile of 64") as raised:
        made(64)
    here = "test_an_error_shows_the_call_and_the_users_function"
    assert [name for name in files(raised.value) if name != "tilesight"] == [here]
    assert files(raised.value).count("tilesight") <= 1, "the call itself"
    cause = raised.value.__cause__
    assert isinstance(cause, ValueError)
    assert files(cause) == ["broken"]
    with pytest.raises(ValueError, match="no tile of 64") as given:
        made(64, block=3)
    assert [name for name in files(given.value) if name != "tilesight"][-1] == "broken"
    assert files(given.value).count("tilesight") <= 1


def test_an_error_of_tilesight_on_purpose_has_no_frames_of_it() -> None:
    made = autotune(configs=[{"block": 16}], target="cpu")(user_kernels.scalar_factory)
    with pytest.raises(InputError, match="known at run time only") as raised:
        made.tune(64)
    assert files(raised.value).count("tilesight") <= 1


def test_an_error_in_tilesight_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    made = autotune(configs=[{"block": 16}], target="cpu", out_idx=-1)(user_kernels.add_factory)
    monkeypatch.setattr(tune_task, "content_hash", None)
    with pytest.raises(TypeError, match="not callable") as raised:
        made(64)
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][-1] == "make_task"
    assert files(raised.value).count("tilesight") > 2
