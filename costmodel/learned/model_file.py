"""Writes and reads the learned model: boosters in XGBoost's format, networks as numbers, the rest in JSON.

Nothing in it is executed. A model folder holds `card.json` (facts on the model, and hashes of the other
files), `gate.json` and `references.bin` (the standardised training rows of the gate, in half precision,
little-endian), `correction-<n>.ubj` and `order-<n>.ubj` (the trees of a member for the time and for the
order), `network-<n>.bin` (the numbers of its network, in half precision, little-endian), `spread.ubj`, and
`card.md`, the card as text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...files import read_bounded
from .booster_checks import check_booster
from .boosting import Trained
from .correction import Correction, Member
from .features import NAMES, SURE, feature_digest
from .gate import Gate
from .network import Network, network_of
from .spread import KNOTS, Spread, SureColumns
from .trees import booster_of

if TYPE_CHECKING:
    from .estimator import LatencyCorrection

FORMAT = 5
CARD, GATE, REFERENCES, SPREAD, TEXT = "card.json", "gate.json", "references.bin", "spread.ubj", "card.md"
MOST_BYTES, MOST_CARD_BYTES = 64 << 20, 4 << 20  # of one file
MOST_MEMBERS = 100
MOST_WIDTH = 4096  # of a layer of a network
_REMAKE = "train it anew: tilesight model train DATASET... --out DIR"


@dataclass(frozen=True)
class LearnedModel:
    """A trained correction with its card."""

    correction: Correction
    card: Mapping[str, Any]

    @property
    def version(self) -> str:
        """The version of the learned model."""
        return str(self.card["version"])

    @property
    def analytical_version(self) -> str:
        """The version of the analytical model that it corrects. It cannot correct other versions."""
        return str(self.card["analytical"])

    @property
    def archs(self) -> tuple[str, ...]:
        """The instruction sets of its training rows."""
        return tuple(self.card["data"]["archs"])

    def was_trained_on(self, run: str) -> bool:
        """Whether rows of that run of a dataset were training rows; False if the card lists no runs."""
        return run in self.card["data"].get("runs", ())


def shipped() -> Traversable:
    """The folder of the model that ships with the package; it may be empty."""
    return files("tilesight.costmodel") / "pretrained"


def check_folder(folder: Path) -> None:
    """Create `folder` and test that it is writable, before minutes of training.

    Raises `InputError` if not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def save(
    folder: Path,
    estimator: LatencyCorrection,
    facts: Mapping[str, Any],
    text: Callable[[Mapping[str, Any]], str],
) -> Mapping[str, Any]:
    """Write a trained estimator.

    Args:
        folder: the model folder.
        estimator: the trained estimator.
        facts: entries of the card beside those that follow from the estimator and its files.
        text: formats the card as Markdown.

    Returns:
        The card.

    Raises:
        InputError: `folder` cannot be written.
    """
    check_folder(folder)
    trained, networks = _trained(estimator.members_), _networks(estimator.members_)
    parts = {name: bytes(trees.booster.save_raw("ubj")) for name, trees in trained.items()}
    parts |= {name: network.values.tobytes() for name, network in networks.items()}
    parts[SPREAD] = bytes(estimator.spread_.booster.save_raw("ubj"))
    parts[GATE] = json.dumps(_gate_plain(estimator.gate_)).encode()
    parts[REFERENCES] = estimator.gate_.references.astype("<f2").tobytes()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    level = list(estimator.spread_.level)
    described = json.dumps([hashes, level, facts["analytical"]], sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:8]
    card = {
        "format": FORMAT,
        "version": f"learned-{digest}",
        "features": list(NAMES),
        "feature_digest": feature_digest(),
        **facts,
        "parameters": estimator.get_params(),
        "members": len(estimator.members_),
        "trees": {
            name: {"scale": trees.scale, "intercept": trees.intercept} for name, trees in trained.items()
        },
        "networks": {
            name: {"scale": network.scale, "intercept": network.intercept, "widths": network.widths}
            for name, network in networks.items()
        },
        "level": level,
        "coverage": estimator.coverage_,
        "importances": dict(zip(NAMES, map(float, estimator.importances_), strict=True)),
        "files": hashes,
    }
    try:
        former = (
            old for what in ("correction-*.ubj", "order-*.ubj", "network-*.bin") for old in folder.glob(what)
        )
        for old in (*former, folder / CARD):
            old.unlink(
                missing_ok=True
            )  # without a card the folder holds no model, so an interrupted write is noticed
        for name, content in parts.items():
            (folder / name).write_bytes(content)
        write_card(folder, card, text(card))
    except OSError as error:
        raise _unwritable(folder, error) from error
    return card


def write_card(folder: Path, card: Mapping[str, Any], text: str) -> None:
    """Write the card of a model, and its text. Raises `OSError`."""
    (folder / TEXT).write_text(text, encoding="utf-8")
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"model folder '{folder}' cannot be written: {error.strerror or error}; name another with --out"
    )


def load(folder: Traversable, *, is_own: bool = False) -> LearnedModel:
    """Read a model.

    Args:
        folder: the model folder.
        is_own: it is part of this package, so only its hashes are checked. The files of others are checked
            for what XGBoost and predictions take for granted, which takes a quarter of a second.

    Raises:
        InputError: a file is missing or damaged, or the model was trained on other features. The message
            names the file and the remedy.
    """
    card = read_card(folder)
    if card["feature_digest"] != feature_digest():
        raise InputError(
            f"model '{folder}' was trained on other features "
            f"({card['feature_digest']}, now {feature_digest()}); {_REMAKE}"
        )
    try:
        _check_names(card)
        contents = {name: _checked(folder, name, expected) for name, expected in card["files"].items()}
        if not is_own:
            for name in contents.keys() - {GATE, REFERENCES, *card["networks"]}:
                _check_booster(name, contents[name])
        found = LearnedModel(_assembled(card, contents), card)
        found.archs  # noqa: B018 - raises now if it is missing, since each prediction needs it
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"model '{folder}': '{CARD}' does not hold together ({type(error).__name__}: {error}); {_REMAKE}"
        ) from error
    return found


def read_card(folder: Traversable) -> dict[str, Any]:
    """Read the card of a model. Raises `InputError`."""
    try:
        card = json.loads(read_bounded(folder / CARD, MOST_CARD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"model '{folder}' has no {CARD}: no model is there; {_REMAKE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"model '{folder}': '{CARD}' cannot be read ({error}); {_REMAKE}") from error
    if isinstance(card, dict) and card.get("format", FORMAT) != FORMAT:
        raise InputError(
            f"model '{folder}' has format {card['format']!r}, and this TileSight reads format {FORMAT}; "
            f"{_REMAKE}"
        )
    needed = {
        "format",
        "version",
        "analytical",
        "feature_digest",
        "files",
        "members",
        "trees",
        "networks",
        "level",
        "parameters",
        "data",
    }
    needed |= {"held_out", "importances"}  # for `tilesight model show`
    if not isinstance(card, dict) or not needed <= set(card):
        lacking = ", ".join(sorted(needed - set(card))) if isinstance(card, dict) else "everything"
        raise InputError(f"model '{folder}': '{CARD}' lacks {lacking}; {_REMAKE}")
    return card


def _checked(folder: Traversable, name: str, expected: str) -> bytes:
    try:
        content = read_bounded(folder / name, MOST_BYTES)
    except OSError as error:
        raise InputError(
            f"model '{folder}': '{name}' cannot be read ({error.strerror or error}); {_REMAKE}"
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(
            f"model '{folder}': '{name}' is damaged (its hash is not the one in '{CARD}'); {_REMAKE}"
        )
    return content


def _check_names(card: Mapping[str, Any]) -> None:
    """Check that a card lists the files of its members and no others. Raises `ValueError`."""
    members = card["members"]
    if not isinstance(members, int) or not 1 <= members <= MOST_MEMBERS:
        raise ValueError(f"members={members!r} must lie in 1 .. {MOST_MEMBERS}")
    times = {_time_name(number) for number in range(members)}
    orders = {_order_name(number) for number in range(members)}
    if not times <= set(card["trees"]) <= times | orders:
        raise ValueError("'trees' must be those of the members")
    if not set(card["networks"]) <= {_network_name(number) for number in range(members)}:
        raise ValueError("'networks' must be those of the members")
    if set(card["files"]) != {*card["trees"], *card["networks"], GATE, REFERENCES, SPREAD}:
        raise ValueError("'files' must be those of the members, the gate and the spread")


def _check_booster(name: str, content: bytes) -> None:
    try:
        check_booster(content, len(NAMES))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'{name}': {error}") from error


def _finite(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`values` as an array of this shape, where -1 is any size above 0. Raises `ValueError`."""
    found = np.array(values, dtype=np.float64)
    fits = len(found.shape) == len(shape) and all(
        size == wanted or (wanted == -1 and size > 0) for size, wanted in zip(found.shape, shape, strict=True)
    )
    if not fits or not np.isfinite(found).all():
        raise ValueError(f"'{name}' must be finite numbers of shape {shape}, and has shape {found.shape}")
    return found


def _assembled(card: Mapping[str, Any], contents: Mapping[str, bytes]) -> Correction:
    """The correction in the checked files.

    The latest one is cached for programs that load the model repeatedly.
    """
    parts = ("files", "members", "trees", "networks", "level")
    key = json.dumps([card[part] for part in parts], sort_keys=True)
    if key not in _ASSEMBLED:
        trained = {
            name: Trained(booster_of(contents[name]), *_scale_and_intercept(its))
            for name, its in card["trees"].items()
        }
        networks = {name: _network(name, contents[name], its) for name, its in card["networks"].items()}
        members = [
            Member(trained[_time_name(n)], trained.get(_order_name(n)), networks.get(_network_name(n)))
            for n in range(int(card["members"]))
        ]
        level = _finite("level", card["level"], (len(KNOTS),))
        spread = Spread(booster_of(contents[SPREAD]), tuple(map(float, level)), SureColumns(*SURE))
        gate = _gate(json.loads(contents[GATE]), contents[REFERENCES])
        found = Correction(tuple(members), gate, spread)
        _ASSEMBLED.clear()
        _ASSEMBLED[key] = found
    return _ASSEMBLED[key]


_ASSEMBLED: dict[str, Correction] = {}


def _scale_and_intercept(its: Mapping[str, Any]) -> tuple[float, float]:
    return float(_finite("scale", its["scale"], ())), float(_finite("intercept", its["intercept"], ()))


def _network(name: str, content: bytes, its: Mapping[str, Any]) -> Network:
    """The network in a file. Raises `ValueError`."""
    widths = its["widths"]
    if not isinstance(widths, list) or not all(
        isinstance(width, int) and 1 <= width <= MOST_WIDTH for width in widths
    ):
        raise ValueError(f"the widths of '{name}' must be whole numbers in 1 .. {MOST_WIDTH}")
    if len(widths) < 2 or (widths[0], widths[-1]) != (len(NAMES), 1):
        raise ValueError(f"the widths of '{name}' must begin with {len(NAMES)} features and end with 1")
    if len(content) % 2:
        raise ValueError(f"'{name}' must hold numbers of two bytes each")
    try:
        return network_of(np.frombuffer(content, dtype="<f2"), widths, *_scale_and_intercept(its))
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from error


def _time_name(number: int) -> str:
    return f"correction-{number}.ubj"


def _order_name(number: int) -> str:
    return f"order-{number}.ubj"


def _network_name(number: int) -> str:
    return f"network-{number}.bin"


def _networks(members: Sequence[Member]) -> dict[str, Network]:
    """The networks of all members by the name of their file."""
    return {
        _network_name(number): member.network
        for number, member in enumerate(members)
        if member.network is not None
    }


def _trained(members: Sequence[Member]) -> dict[str, Trained]:
    """The trees of all members by the name of their file."""
    found = {_time_name(number): member.trees for number, member in enumerate(members)}
    return {
        **found,
        **{
            _order_name(number): member.order
            for number, member in enumerate(members)
            if member.order is not None
        },
    }


def _gate_plain(gate: Gate) -> dict[str, Any]:
    return {
        "centre": gate.centre.tolist(),
        "spread": gate.spread.tolist(),
        "unit": gate.unit,
        "reach": None if np.isinf(gate.reach) else gate.reach,
        "common": gate.common,
    }


def _gate(plain: Mapping[str, Any], references: bytes) -> Gate:
    features = len(NAMES)
    if len(references) % (2 * features):
        raise ValueError(f"'{REFERENCES}' must hold rows of {features} numbers of two bytes each")
    rows = np.frombuffer(references, dtype="<f2").reshape(-1, features)
    unit = float(_finite("unit", plain["unit"], ()))
    spread = _finite("spread", plain["spread"], (features,))
    if unit <= 0 or not (spread > 0).all():
        raise ValueError("'unit' and 'spread' of the gate must be above 0")
    return Gate(
        references=_finite("references", rows, (-1, features)),
        centre=_finite("centre", plain["centre"], (features,)),
        spread=spread,
        unit=unit,
        reach=float("inf") if plain["reach"] is None else float(_finite("reach", plain["reach"], ())),
        common=float(_finite("common", plain["common"], ())),
    )
