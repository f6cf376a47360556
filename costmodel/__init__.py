"""Cost models: from kernel profiles to predictions."""

from __future__ import annotations

from .model import CostModel

__all__ = ["CostModel", "default_model"]


def default_model() -> CostModel:
    """The model that commands use where none is named: the analytical one, corrected by the learned one that ships.

    Where the shipped model was trained for another version of the analytical one, or cannot be read, the analytical
    model answers alone and says so in each prediction's notes; where none ships, it answers alone.
    """
    from ..errors import InputError
    from .analytical import AnalyticalModel
    from .model_file import CARD, load, read_card, shipped

    analytical = AnalyticalModel()
    folder = shipped()
    if not (folder / CARD).is_file():
        return analytical
    from .hybrid import HybridModel, NotedModel

    named = "the learned model that ships"
    try:
        card = read_card(folder)
        named = f"{card['version']}, the learned model that ships,"
        if card["analytical"] != analytical.version:
            return NotedModel(analytical, f"the learned model corrects {card['analytical']}, not {analytical.version}: it is left out")
        return HybridModel(analytical, load(folder))
    except InputError:
        # notes are stored with predictions and read elsewhere: the error names files of this machine
        return NotedModel(analytical, f"{named} cannot be read and is left out: `tilesight model show` says why, installing anew mends it")
