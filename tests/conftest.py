"""What all tests share: tests marked `gpu` are skipped, with the reason, where nothing can be built or run on a GPU."""

from __future__ import annotations

import signal
from functools import cache

import pytest

from tilesight.device import find_devices, target_for
from tilesight.target import Target, load_target
from tilesight.toolchain import missing_compiler

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what runs in its background deaf to Ctrl-C, and the tests of Ctrl-C would wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def gpu_or_reason() -> Target | str:
    """The target of this machine's first GPU that can be built for and measured on, or why there is none."""
    devices = find_devices()
    if not devices:
        return "no GPU: neither nvidia-smi nor rocm-smi lists one"
    name = next((name for device in devices if (name := target_for(device))), None)
    if name is None:
        return f"no shipped target describes {', '.join(sorted({device.name for device in devices}))}"
    target = load_target(name)
    if missing := missing_compiler(target):
        return missing
    import torch

    return target if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and isinstance(reason := gpu_or_reason(), str):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu_target() -> Target:
    """The target of the GPU at hand; for tests marked `gpu`."""
    target = gpu_or_reason()
    assert isinstance(target, Target), target
    return target
