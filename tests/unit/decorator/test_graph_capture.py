"""Detection of CUDA-graph captures."""

from __future__ import annotations

import pytest
import torch

from tilesight.decorator.graph_capture import is_capturing


def test_captures_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for state in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda state=state: state)
        assert is_capturing() is state


def test_detection_starts_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise AssertionError("asked without a driver")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", refuse)
    assert not is_capturing()
