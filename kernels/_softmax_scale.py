"""The factor of attention's scores before their softmax."""

import math
from collections.abc import Mapping

from ..errors import WorkloadError
from ..problem.space import Value


def softmax_scale(attrs: Mapping[str, Value], width: int) -> float:
    """The attribute `scale`, or 1/sqrt(width) where it is 0: of products of that many random terms."""
    return float(attrs.get("scale", 0)) or width**-0.5


def check_scale(operator: str, attrs: Mapping[str, Value]) -> None:
    """Raise `WorkloadError` for a factor that would turn the order of scores around, or is no number."""
    scale = float(attrs.get("scale", 0))
    if not 0 <= scale < math.inf:
        raise WorkloadError(
            f"{operator}: scale={scale} must be a number above 0, by which scores are multiplied before the "
            "softmax; 0 means 1/sqrt(the width of a head)"
        )
