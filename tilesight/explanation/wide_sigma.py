"""Why a prediction is wide: the causes that the model knows of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..costmodel.analytical.occupancy import occupancy
from ..costmodel.learned.hybrid import CORRECTION, UNLIKE
from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..reports.numbers import WIDE
from ..target.spec import Target

MOST_CALLS = 3  # that a sentence names


def why_wide(prediction: Prediction, kernels: Sequence[KernelProfile], target: Target) -> str:
    """A sentence on the causes of a sigma beyond `WIDE`; "" if sigma is not that wide."""
    if prediction.uncertainty <= WIDE:
        return ""
    causes = list(_causes(prediction, kernels, target))
    if not causes:
        if CORRECTION not in prediction.terms_us:
            return "Sigma is wide, and the model knows no single cause."
        return (
            "Sigma is wide, and the model knows no single cause: its errors on kernels with such work were "
            "as large."
        )
    return f"Sigma is wide because {'; '.join(causes)}."


def _causes(prediction: Prediction, kernels: Sequence[KernelProfile], target: Target) -> Iterator[str]:
    if target.is_gpu and any(kernel.roles and occupancy(kernel, target).spilled for kernel in kernels):
        yield "registers spill, and which ones do is an estimate until the kernel is built"
    calls = list(dict.fromkeys(call for kernel in kernels for call in kernel.unknown_calls))
    if calls:
        more = f" and {len(calls) - MOST_CALLS} more" if len(calls) > MOST_CALLS else ""
        yield f"calls are not understood ({', '.join(calls[:MOST_CALLS])}{more})"
    assumed = list(dict.fromkeys(note for kernel in kernels for note in kernel.notes))
    if assumed:
        yield f"something was assumed that the IR does not say ({assumed[0]})"
    for note in prediction.notes:
        if note.startswith(UNLIKE):
            yield f"it is {note}"
    if not target.is_gpu:
        return
    figures = target.figures.values()
    if not any(figure.provenance == "measured" for figure in figures):
        yield f"no figure of {target.name} was measured"
