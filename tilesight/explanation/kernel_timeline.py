"""The timeline of a predicted kernel: the numbers of the analytical model, and what they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..profile.names import KernelNames
from ..profile.values import KernelProfile
from ..records.timeline import Note, NoteKind, Timeline
from ..records.trial import Prediction
from ..reports.numbers import number, spread
from ..target.spec import Target
from .view import view

if TYPE_CHECKING:
    from ..costmodel.model import CostModel

_SOURCE = (
    "All spans are numbers of the analytical model; nothing is simulated, and nothing here was measured."
)
_SIMPLIFIED = (
    "The order of what a group of warps does within an iteration is that of a typical program. Its waits for "
    "units are means of a queueing network (mean value analysis), not events.",
    "How long a unit is busy is known, when is not: its span begins with the code that it belongs to.",
    "Device memory and the network are known for the whole kernel only; an iteration knows the latency of "
    "its loads and its core's share of L2. The row L2 of the whole kernel is the mean of the cores' shares.",
    "What all cores share holds blocks up while they run. The model states by how much in sum, so that is "
    "drawn after them; a block and an iteration have their share of it at their end.",
    "A block is one of mean length. Its start and its end are one number of the model, drawn at its start.",
)
_SEVERAL_CONSUMERS = (
    "Consumers with programs of their own run beside each other. The model states the time of their loops "
    "together: each has its share of it, one after another."
)
_LENGTHS = (
    "Blocks differ in length. They start in order as places on the cores become free; the first row shows "
    "the place that is busy longest, which takes the makespan."
)


def kernel_timeline(
    title: str,
    kernels: Sequence[KernelProfile],
    target: Target,
    model: CostModel,
    names: Sequence[KernelNames] = (),
) -> Timeline:
    """The timeline of a function of one or more kernels; `names` are those in each, if they are known.

    Raises:
        ValueError: a kernel does not fit the target, or is one of a processor.
    """
    from ..costmodel.analytical.analytical_model import AnalyticalModel
    from ..costmodel.learned.hybrid import CORRECTION
    from ..costmodel.model import fast_part

    fast = fast_part(model)
    analytical = fast if isinstance(fast, AnalyticalModel) else AnalyticalModel()
    parts = tuple(analytical.timeline(kernels, target))
    drawn_us, prediction = parts[0].us, model.predict(kernels, target)
    simplified = list(_SIMPLIFIED)
    if any(sum(role.name == "consumer" for role in kernel.roles) > 1 for kernel in kernels):
        simplified.append(_SEVERAL_CONSUMERS)
    if any(phase.trips.axes for kernel in kernels for role in kernel.roles for phase in role.phases):
        simplified.append(_LENGTHS)
    factor = prediction.latency_us / drawn_us if CORRECTION in prediction.terms_us else None
    stated = [f"The model says: {note}" for note in prediction.notes]
    if factor is not None:
        stated.append(
            f"The learned model predicts {number(factor, 4)} times the analytical time. It does not state "
            "which part takes longer or shorter, so nothing is stretched: the rows add up to the analytical "
            "time."
        )
    return Timeline(
        title,
        parts,
        tuple(_facts(prediction, drawn_us, factor, analytical.version)),
        (
            Note(NoteKind.SOURCE, _SOURCE),
            *(Note(NoteKind.SIMPLIFIED, text) for text in simplified),
            *(Note(NoteKind.MODEL, text) for text in stated),
        ),
        findings=view(kernels, prediction, target, names=names).findings,
    )


def _facts(
    prediction: Prediction, drawn_us: float, factor: float | None, version: str
) -> list[tuple[str, str]]:
    interval = f"{number(prediction.latency_us)} us, {spread(prediction.uncertainty)}"
    return [
        ("predicted time", interval),
        ("analytical time, which the rows add up to", f"{number(drawn_us)} us"),
        ("factor of the learned correction, not drawn", "none" if factor is None else number(factor, 4)),
        ("limiting, predicted", prediction.limiting),
        ("model", prediction.model),
        ("drawn by", version),
    ]
