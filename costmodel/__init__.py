"""Cost models, which predict times from kernel profiles."""

from __future__ import annotations

from .model import CostModel

__all__ = ["CostModel", "default_model", "foreign_model"]


def foreign_model() -> CostModel:
    """The default model for kernels that are no template of TileSight: its times, and a wider sigma."""
    from .foreign import ForeignModel

    return ForeignModel(default_model())


def default_model() -> CostModel:
    """The default model of all commands: the analytical model, corrected by the learned model that ships.

    The analytical model predicts alone if no learned model ships, if it cannot be read, or if it was trained
    for another version of the analytical model. In the last two cases each prediction has a note on it.
    """
    from ..errors import InputError
    from .analytical.analytical_model import AnalyticalModel
    from .learned.model_file import CARD, load, read_card, shipped

    analytical = AnalyticalModel()
    folder = shipped()
    if not (folder / CARD).is_file():
        return analytical
    from .learned.hybrid import HybridModel, NotedModel

    named = "the learned model that ships"
    try:
        card = read_card(folder)
        named = f"{card['version']}, the learned model that ships,"
        if card["analytical"] != analytical.version:
            return NotedModel(
                analytical,
                f"the learned model corrects {card['analytical']}, not {analytical.version}: it is left out",
            )
        return HybridModel(analytical, load(folder, is_own=True))
    except InputError:
        # notes are stored and shown on other machines, so they do not repeat the error, which names local
        # files
        return NotedModel(
            analytical,
            (
                f"{named} cannot be read and is left out: "
                "`tilesight model show` says why, installing anew mends it"
            ),
        )
