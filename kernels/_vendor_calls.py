"""Implementations of vendors and of torch that run here, and those of packages that may be installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..errors import CaptureError

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]

# what torch raises for what is not in its build, or not for this device, dtype or shape
UNUSABLE = (RuntimeError, TypeError, AttributeError, ValueError)
PACKAGES = ("bitsandbytes", "deep_gemm", "fla", "flash_mla", "flashinfer", "mamba_ssm")


def usable(calls: Mapping[str, Call], errors: tuple[type[Exception], ...] = UNUSABLE) -> dict[str, Call]:
    """The calls that succeed; those that raise one of `errors` are left out."""
    return {name: call for name, call in calls.items() if _works(call, errors)}


def of_packages(tensor: torch.Tensor, makers: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    """Calls of packages that the project does not depend on, if `tensor` is on a GPU.

    Args:
        tensor: one of the inputs.
        makers: by the name of the call, functions that import a package, prepare what a user of it prepares
            once for many calls, and return the call.

    Returns:
        The calls, `replayed`, without those whose package is not installed. A call whose maker failed
        otherwise raises that error, so that who measures can say why there is no time.
    """
    found: dict[str, Call] = {}
    for name, make in makers.items() if on_gpu(tensor) else ():
        try:
            found[name] = replayed(make())
        except ModuleNotFoundError as error:
            if error.name not in PACKAGES:  # of a package that is installed, one that it needs is missing
                found[name] = _raises(error)
        except Exception as error:
            found[name] = _raises(error)
    return found


def on_gpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cuda)


def replayed(call: Call) -> Call:
    """A call that runs `call` once, captures it into a CUDA graph, and replays that from then on.

    The Python code of these packages takes longer than a small kernel, 208 us for a decoding step of
    flash-linear-attention on an H200's host, and engines for serving replay graphs for that reason; without
    one a time would be the host's. Within the capture of a larger graph it is `call`.
    """
    import torch

    made: list[tuple[torch.cuda.CUDAGraph, object]] = []

    def replay() -> object:
        if torch.cuda.is_current_stream_capturing():
            return call()
        if not made:
            call()  # compiles, and chooses among configs
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    result = call()
            except Exception as error:
                torch.cuda.set_stream(stream)  # torch leaves its own where a capture ends with an error
                raise CaptureError(f"its calls cannot be captured into a CUDA graph: {error}") from error
            made.append((graph, result))
        graph, result = made[0]
        graph.replay()
        return result

    return replay


def without_result(call: Call) -> Call:
    """A call that computes something else than its operator, as its name says: nobody compares its result."""

    def timed() -> None:
        call()

    return timed


def _works(call: Call, errors: tuple[type[Exception], ...]) -> bool:
    try:
        call()
    except errors:
        return False
    return True


def _raises(error: Exception) -> Call:
    def call() -> object:
        raise error

    return call
