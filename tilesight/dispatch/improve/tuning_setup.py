"""The setup that explorations and comparisons of a dispatcher share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...machine.placement import Placement
from ...records.protocol import MeasurementProtocol

if TYPE_CHECKING:
    from ...costmodel.model import CostModel
    from ...database.store import Store


@dataclass(frozen=True)
class TuningSetup:
    """Where and how to predict and measure, and the store that records it."""

    placement: Placement
    protocol: MeasurementProtocol
    model: CostModel
    store: Store
