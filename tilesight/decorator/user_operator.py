"""What a user's kernel computes, as an `Operator`: its inputs, and the results that it must give.

    ref_prog given     the results of ref_prog
    no ref_prog        the results of the default config: every config must compute the same
    skip_check         nothing is compared: candidates are measured, not verified

It is sent to worker processes, so it holds plain values; the user's programs travel as code (cloudpickle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import FailureKind, InputError, ProgramError, headline
from ..problem.operator import Operator, Tensors
from ..problem.rounding import SecondInputs
from ..problem.space import Value
from ..problem.workload import Workload
from .check_programs import unpack_programs
from .compare_tensors import difference
from .interface import Interface
from .random_inputs import AUTO, draw_all, supplied

if TYPE_CHECKING:
    import torch

_PRESET_SEED = 1  # tensors that a kernel updates begin with the same values in every run
REFERENCE = "ref_prog"  # its name as a baseline
_UNCHECKED = "nothing"
_DEVICE_ERRORS = ("CUDA error", "HIP error")


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How results are compared. Raises `InputError` for tolerances that are none."""

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
            raise InputError(
                f"autotune: max_mismatched_ratio={self.max_mismatched_ratio} must be at most 1: it is a share"
            )


@dataclass(eq=False)
class UserOperator(Operator):
    """One kernel at one call's arguments, which is its only workload."""

    name: str
    interface: Interface
    check: CheckOptions
    programs: bytes  # `CheckPrograms.packed`
    reference_build: tuple[str, str] | None = None  # library and entry that stand in for a missing `ref_prog`
    has_reference: bool = False
    version: str = ""  # of its template
    _presets: dict[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    dims = ()
    named = {}  # noqa: RUF012
    default_names = ()

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {tensor.name: tensor.dtype for tensor in self.interface.tensors}

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.version}"

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        drawn = self._drawn(device, seed)
        return {tensor.name: drawn[tensor.name] for tensor in self.interface.inputs}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.interface.outputs}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs | None:
        """Other values from the same source. A `supply_prog` may give the same ones again."""
        return None if self.check.skip else super().second_inputs(workload, device, seed)

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

        if self.check.skip:
            return {_UNCHECKED: torch.zeros(1, device=next(iter(inputs.values())).device if inputs else None)}
        program = unpack_programs(self.programs).reference
        if program is None:
            return self._results_of_build(inputs)
        with _errors_of("ref_prog", self.name):
            return self._results_of(program, inputs)

    def own_check(
        self, workload: Workload, outputs: Tensors, reference: Tensors
    ) -> tuple[float | None, str] | None:
        check = self.check
        if check.skip:
            return None, ""
        wrong, worst = "", 0.0
        manual = unpack_programs(self.programs).manual_check
        for name, wanted in reference.items():
            error, text = difference(
                outputs[name], wanted, check.rtol, check.atol, check.max_mismatched_ratio
            )
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
        program = unpack_programs(self.programs).reference
        if program is None:
            return {}
        given = self._given(inputs)
        return {REFERENCE: lambda: program(*given.values())}

    def flops(self, workload: Workload) -> int:
        return 0  # unknown for a user's function

    def min_bytes(self, workload: Workload) -> int:
        import torch

        tensors = self.interface.tensors
        return sum(
            t.count * getattr(torch, t.dtype).itemsize * max(1, t.is_read + t.is_written) for t in tensors
        )

    def max_relative_error(self, workload: Workload) -> float:
        return self.check.rtol  # not used: `own_check` compares

    def element_bytes(self, workload: Workload) -> int:
        import torch

        return int(getattr(torch, workload.dtype).itemsize)

    def _drawn(self, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Values of all tensors that a caller gives."""
        program = unpack_programs(self.programs).supply
        if program is not None:
            with _errors_of("supply_prog", self.name):
                return supplied(program, self.interface.given, device, seed)
        return draw_all(self.interface.given, self.check.supply, device, seed)

    def _given(self, inputs: Tensors) -> dict[str, Any]:
        """The arguments of `ref_prog`: inputs, numbers, and fresh copies of what the kernel writes."""
        import torch

        device = str(next(iter(inputs.values())).device) if inputs else "cpu"
        outputs = self.interface.outputs
        written = {
            t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=device) for t in outputs
        }
        self.preset(Workload(self.name, {}, ""), written)
        numbers = {number.name: number.value for number in self.interface.numbers}
        known = {**written, **inputs, **numbers}
        return {argument.name: known[argument.name] for argument in self.interface.given_arguments}

    def _results_of(self, program: Callable[..., Any], inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        given = self._given(inputs)
        found = program(*given.values())
        results = self.interface.results
        if found is None:  # it wrote to its arguments
            found = [given[tensor.name] for tensor in results if tensor.name in given]
        values = [found] if isinstance(found, torch.Tensor) else list(found)
        if len(values) != len(results):
            names = ", ".join(tensor.name for tensor in results)
            raise ProgramError(
                f"autotune: ref_prog gave {len(values)} results, "
                f"and '{self.name}' has {len(results)}: {names}"
            )
        return {t.name: value for t, value in zip(results, values, strict=True) if value is not None}

    def _results_of_build(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        from ..builder.loaded_kernel import LoadedKernel
        from ..runner.compare import poison

        if self.reference_build is None:
            raise RuntimeError("no config was built to compare others with")
        device = next(iter(inputs.values())).device if inputs else torch.device("cpu")
        kernel = LoadedKernel(*self.reference_build)
        outputs = {
            t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=device)
            for t in self.interface.outputs
        }
        poison(outputs)  # elements that no config writes agree too
        self.preset(Workload(self.name, {}, ""), outputs)
        stream = int(torch.cuda.current_stream().cuda_stream) if device.type == "cuda" else 0
        sizes = (size for _, size in self.interface.sizes)
        numbers = (number.slot for number in self.interface.numbers)
        kernel.bind([*inputs.values(), *outputs.values()], stream, [*sizes, *numbers])()
        if device.type == "cuda":
            torch.cuda.synchronize()
        kernel.close()
        return {tensor.name: outputs[tensor.name] for tensor in self.interface.results}


@contextmanager
def _errors_of(program: str, kernel: str) -> Iterator[None]:
    """Turn errors of a user's program into `ProgramError`, which counts against no config.

    A lack of memory is temporary and a device error may come from an earlier kernel: both pass unchanged.
    """
    from ..runner.kernel_run import run_failure

    try:
        yield
    except ProgramError:
        raise
    except Exception as error:
        is_memory = run_failure(error).kind is FailureKind.RUN_MEMORY
        if is_memory or any(words in str(error) for words in _DEVICE_ERRORS):
            raise
        reason = f"{type(error).__name__}: {headline(str(error))}"
        raise ProgramError(f"autotune: {program} of '{kernel}': {reason}") from error
