"""What a user's kernel computes, as an `Operator`: inputs to try it on, and what its results are held against.

    ref_prog given     its results
    none               what the default config computes: whatever a config chooses, the kernel must compute the same
    skip_check         nothing: candidates are measured, not verified

It goes to worker processes, so it holds plain values; the user's own programs travel as code (cloudpickle).
"""

from __future__ import annotations

import pickle
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import FailureKind, InputError, ProgramError, headline
from ..template import Operator, Tensors
from ..workload import Workload
from .comparing import difference
from .content import is_library, python_function
from .drawing import AUTO, draw_all, supplied
from .interface import Interface

if TYPE_CHECKING:
    import torch

_PRESET_SEED = 1  # what a kernel goes on from is the same in every run
REFERENCE = "ref_prog"  # as a baseline is called
_NOTHING = "nothing"
_OF_THE_DEVICE = ("CUDA error", "HIP error")
_PACKING = threading.Lock()  # cloudpickle's list of modules is one for all threads


@dataclass(frozen=True, slots=True)
class Programs:
    """The user's own, any of them None."""

    reference: Callable[..., Any] | None = None
    supply: Callable[..., Any] | None = None
    manual_check: Callable[..., Any] | None = None

    def packed(self) -> bytes:
        """As code, for processes that cannot import it. Compressed, so that no worker takes names in it for its own. Raises
        `InputError` where something in them cannot travel."""
        parts = {"ref_prog": self.reference, "supply_prog": self.supply, "manual_check_prog": self.manual_check}
        return zlib.compress(pickle.dumps({name: None if program is None else _by_value(name, program) for name, program in parts.items()}))


@dataclass(frozen=True, slots=True)
class Checking:
    """How results are judged."""

    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip: bool = False
    supply: str = AUTO

    def __post_init__(self) -> None:
        for name in ("rtol", "atol", "max_mismatched_ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"autotune: {name}={value!r} must be a number of at least 0")
        if self.max_mismatched_ratio > 1:
            raise InputError(f"autotune: max_mismatched_ratio={self.max_mismatched_ratio} is a share of all elements: at most 1")


@dataclass(eq=False)
class UserOperator(Operator):
    """One kernel at one call's arguments: it has one workload. `agreed` is the library that others must agree with."""

    name: str  # type: ignore[misc] # of the value, where other operators have it of the class
    interface: Interface
    checking: Checking
    programs: bytes  # `Programs.packed`
    agreed: tuple[str, str] | None = None  # library and its entry
    has_reference: bool = False
    version: str = ""  # of its template
    _presets: dict[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    dims = ()
    named = {}  # noqa: RUF012
    default_names = ()

    @property
    def tensor_dtypes(self) -> Mapping[str, str]:  # type: ignore[override]
        return {tensor.name: tensor.dtype for tensor in self.interface.tensors}

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.version}"

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        drawn = self._drawn(device, seed)
        return {tensor.name: drawn[tensor.name] for tensor in self.interface.inputs}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.interface.outputs}

    def preset(self, workload: Workload, outputs: Tensors) -> bool:
        presets = self.interface.presets
        if presets and not self._presets:
            drawn = self._drawn(str(next(iter(outputs.values())).device), _PRESET_SEED)
            self._presets = {tensor.name: drawn[tensor.name] for tensor in presets}
        for name, value in self._presets.items():
            outputs[name].copy_(value)
        return bool(presets)

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        if self.checking.skip:
            return {_NOTHING: torch.zeros(1, device=next(iter(inputs.values())).device if inputs else None)}
        program = _unpacked(self.programs)["ref_prog"]
        if program is None:
            return self._agreed(inputs)
        with _users_own("ref_prog", self.name):
            return self._referenced(program, inputs)

    def own_check(self, workload: Workload, outputs: Tensors, reference: Tensors) -> tuple[float | None, str] | None:
        if self.checking.skip:
            return None, ""
        wrong, worst = "", 0.0
        manual = _unpacked(self.programs)["manual_check_prog"]
        for name, wanted in reference.items():
            error, text = difference(outputs[name], wanted, self.checking.rtol, self.checking.atol, self.checking.max_mismatched_ratio)
            worst = max(worst, error)
            if text and not wrong and manual is None:
                wrong = f"output '{name}': {text}"
        if manual is not None:
            try:
                manual([outputs[name] for name in reference], list(reference.values()))
            except Exception as error:
                wrong = f"manual_check_prog: {headline(str(error) or type(error).__name__)}"
        return worst, wrong

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        program = _unpacked(self.programs)["ref_prog"]
        if program is None:
            return {}
        given = self._given(inputs)
        return {REFERENCE: lambda: program(*given.values())}

    def flops(self, workload: Workload) -> int:
        return 0  # nobody says how many a user's function needs

    def min_bytes(self, workload: Workload) -> int:
        import torch

        return sum(t.count * getattr(torch, t.dtype).itemsize * max(1, t.is_read + t.is_written) for t in self.interface.tensors)

    def max_relative_error(self, workload: Workload) -> float:
        return self.checking.rtol  # `own_check` judges

    def element_bytes(self, workload: Workload) -> int:
        import torch

        return int(getattr(torch, workload.dtype).itemsize)

    def _drawn(self, device: str, seed: int) -> dict[str, torch.Tensor]:
        """All that a caller gives."""
        program = _unpacked(self.programs)["supply_prog"]
        if program is not None:
            with _users_own("supply_prog", self.name):
                return supplied(program, self.interface.given, device, seed)
        return draw_all(self.interface.given, self.checking.supply, device, seed)

    def _given(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """What `ref_prog` is called with: inputs, and fresh copies of what the kernel writes to."""
        import torch

        device = str(next(iter(inputs.values())).device) if inputs else "cpu"
        written = {t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=device) for t in self.interface.outputs}
        self.preset(Workload(self.name, {}, ""), written)
        return {t.name: inputs[t.name] if t.name in inputs else written[t.name] for t in self.interface.given}

    def _referenced(self, program: Callable[..., Any], inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        given = self._given(inputs)
        found = program(*given.values())
        results = self.interface.results
        if found is None:  # it writes to its arguments, as such a kernel does
            found = [given[tensor.name] for tensor in results if tensor.name in given]
        values = [found] if isinstance(found, torch.Tensor) else list(found)
        if len(values) != len(results):
            names = ", ".join(tensor.name for tensor in results)
            raise ProgramError(f"autotune: ref_prog gave {len(values)} results, and '{self.name}' has {len(results)}: {names}")
        return {tensor.name: value for tensor, value in zip(results, values, strict=True) if value is not None}

    def _agreed(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        from ..artifact import LoadedKernel
        from ..measuring.verify import poison

        if self.agreed is None:
            raise RuntimeError("no config was built to compare others with")
        device = next(iter(inputs.values())).device if inputs else torch.device("cpu")
        kernel = LoadedKernel(*self.agreed)
        shapes = self.outputs(Workload(self.name, {}, ""))
        outputs = {n: torch.empty(shape, dtype=getattr(torch, self.tensor_dtypes[n]), device=device) for n, shape in shapes.items()}
        poison(outputs)  # what no config writes agrees, too
        self.preset(Workload(self.name, {}, ""), outputs)
        stream = int(torch.cuda.current_stream().cuda_stream) if device.type == "cuda" else 0
        kernel.bind([*inputs.values(), *outputs.values()], stream)()
        if device.type == "cuda":
            torch.cuda.synchronize()
        kernel.close()
        return {tensor.name: outputs[tensor.name] for tensor in self.interface.results}


@contextmanager
def _users_own(program: str, kernel: str) -> Iterator[None]:
    """What a program of the user raises is told as its fault: it says nothing against any config. Not so a lack of memory, which
    passes, and an error of the device, which a kernel before may have left."""
    from ..measuring.kernel_run import run_failure

    try:
        yield
    except ProgramError:
        raise
    except Exception as error:
        if run_failure(error).kind is FailureKind.RUN_MEMORY or any(words in str(error) for words in _OF_THE_DEVICE):
            raise
        raise ProgramError(f"autotune: {program} of '{kernel}': {type(error).__name__}: {headline(str(error))}") from error


@lru_cache(maxsize=8)
def _unpacked(programs: bytes) -> dict[str, Any]:
    return {name: None if code is None else pickle.loads(code) for name, code in pickle.loads(zlib.decompress(programs)).items()}


def _by_value(name: str, program: Any) -> bytes:
    """`program` as code. Modules that are not installed travel with it: a worker need not find them."""
    import cloudpickle

    module = sys.modules.get(str(getattr(python_function(program), "__module__", "")))
    foreign = module is not None and module.__name__ != "__main__" and not is_library(getattr(module, "__file__", None), module.__name__)
    with _PACKING:
        if foreign:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(program))
        except Exception as error:  # whatever its parts raise
            raise InputError(
                f"autotune: {name} cannot be sent to the process that measures: {headline(str(error))}; "
                "take what it names out of its code, or move it to a module of its own"
            ) from error
        finally:
            if foreign:
                cloudpickle.unregister_pickle_by_value(module)
