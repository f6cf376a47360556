"""Detects CUDA-graph captures."""

from __future__ import annotations

import sys


def is_capturing() -> bool:
    """Whether this thread's current CUDA stream is being captured. It loads no torch and no driver."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())
