"""What the operators here share: float32 tensors on one processor, checked against torch."""

from collections.abc import Callable, Mapping
from typing import Any

from tilesight import Operator, Workload


class FloatOperator(Operator):
    """An operator on one float32 tensor `x` with one result `y` of the same shape.

    A subclass gives `name`, `dims`, `named`, `default_names` and these:

    Attributes:
        function: the result of the input, in torch.
        flops_per_element: floating-point operations for an element.
    """

    dtypes = ("float32",)
    function: Callable[[Any], Any]
    flops_per_element: int
    axes: Mapping[str, tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls.axes = {"x": tuple(cls.dims), "y": tuple(cls.dims)}

    def inputs(self, workload: Workload, device: str, seed: int) -> Mapping[str, Any]:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(self._shape(workload), generator=generator, device=device)}

    def outputs(self, workload: Workload) -> Mapping[str, tuple[int, ...]]:
        return {"y": self._shape(workload)}

    def reference(self, workload: Workload, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": type(self).function(inputs["x"])}

    def vendor(self, workload: Workload, inputs: Mapping[str, Any]) -> Mapping[str, Callable[[], Any]]:
        return {"torch": lambda: type(self).function(inputs["x"])}

    def flops(self, workload: Workload) -> int:
        return self.flops_per_element * self._elements(workload)

    def min_bytes(self, workload: Workload) -> int:
        return 8 * self._elements(workload)

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-5

    def _shape(self, workload: Workload) -> tuple[int, ...]:
        return tuple(workload.dims[d] for d in self.dims)

    def _elements(self, workload: Workload) -> int:
        count = 1
        for extent in self._shape(workload):
            count *= extent
        return count
