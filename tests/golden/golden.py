"""Profiles of a few kernels and predictions from them, stored as text, so that changes show as diffs.

`profiles/` shows changes of TileLang and of the code that reads its IR. `predictions.json` shows changes of
predictions and the versions of the models. Stored predictions are reused while the version stays, so
predictions may change only with the version.

`python tests/golden/golden.py` writes both; read the diff before you commit it. It fails if predictions
changed and the version did not: then raise CODE_VERSION in costmodel/analytical/analytical_model.py.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilesight.costmodel import default_model
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.extract import read_profiles
from tilesight.kernels import operator, template_for
from tilesight.lowering.lower import lower
from tilesight.profile.codec import plain_profile, read_profile
from tilesight.records.trial import Prediction
from tilesight.target.spec import load_target

PROFILES = Path(__file__).parent / "profiles"
PREDICTIONS = Path(__file__).parent / "predictions.json"

# (target, kernel, shape) by file name, each with the default config of the template
CASES = {
    "matmul-M0-h200": ("h200", "matmul", "M0"),
    "matmul-M0-a100": ("a100", "matmul", "M0"),
    "matmul-M0-mi300x": ("mi300x", "matmul", "M0"),
    "matmul-odd-h200": ("h200", "matmul", "m=1000,n=999,k=1003"),
    "flash_attention-FA4-h200": ("h200", "flash_attention", "FA4"),
    "flash_attention-FA4-mi300x": ("mi300x", "flash_attention", "FA4"),
    "gemv-V5-h200": ("h200", "gemv", "V5"),
    "gemv-V5-mi300x": ("mi300x", "gemv", "V5"),
    "rms_norm-R0-h200": ("h200", "rms_norm", "R0"),
    "dequant_matmul-D17-h200": ("h200", "dequant_matmul", "D17"),
    "dequant_matmul-D9-a100": ("a100", "dequant_matmul", "D9"),
    "chunk_state-CT0-h200": ("h200", "chunk_state", "CT0"),
    "matmul-S512-cpu": ("cpu", "matmul", "S512"),
}
COMPILED = {"registers": 168, "spill_bytes": 64}  # made-up figures of a compiler
CLOSE = 1e-5  # relative and absolute difference that is allowed between machines

Stored = dict[str, Any]


def current(case: str) -> tuple[str, str]:
    """The profiles of a case as the current code reads them (JSON text), and the fingerprint of its code."""
    name, kernel, shape = CASES[case]
    target = load_target(name)
    template = template_for(kernel, target, "float32" if name == "cpu" else "bfloat16")
    workload = operator(kernel).workload(shape, template.dtypes[0])
    config = template.default_config(workload, target)
    assert config is not None
    lowered = lower(template.build(workload, config), target, only_read=True)
    flags = template.compile_flags.get(target.kind, ())
    kernels = [_rounded(plain_profile(k)) for k in read_profiles(lowered, target, flags=flags)]
    return json.dumps({"config": dict(config), "kernels": kernels}, indent=1) + "\n", lowered.fingerprint


def predictions(case: str) -> Stored:
    """Predictions from the stored profiles of a case.

    They are those of the analytical model with and without a compiler's figures, and those of the default
    model.
    """
    target = load_target(CASES[case][0])
    kernels = [
        read_profile(k)
        for k in json.loads((PROFILES / f"{case}.json").read_text(encoding="utf-8"))["kernels"]
    ]
    analytical, shown = AnalyticalModel(), default_model()
    return {
        "target": target.fingerprint,
        "analytical": {"model": analytical.version, **_plain(analytical.predict(kernels, target))},
        "compiled": {"model": analytical.version, **_plain(analytical.predict(kernels, target, COMPILED))},
        "shown": {"model": shown.version, **_plain(shown.predict(kernels, target))},
    }


def changed_under_same_version(stored: Stored, now: Stored) -> list[str]:
    """The predictions that differ although target and version are equal, with their values."""
    if stored["target"] != now["target"]:
        return []
    found = []
    for name in ("analytical", "compiled", "shown"):
        old, new = stored[name], now[name]
        if old["model"] == new["model"] and not _is_close(old, new):
            found.append(f"{name}: {old['latency_us']} us, now {new['latency_us']} us, both {new['model']}")
    return found


def outdated(stored: Stored, now: Stored) -> bool:
    """Whether the target or a version has changed since."""
    return stored["target"] != now["target"] or any(
        stored[name]["model"] != now[name]["model"] for name in ("analytical", "shown")
    )


def stored_predictions() -> dict[str, Stored]:
    """The stored predictions by case."""
    found: dict[str, Stored] = (
        json.loads(PREDICTIONS.read_text(encoding="utf-8")) if PREDICTIONS.exists() else {}
    )
    return found


def _plain(prediction: Prediction) -> Stored:
    return {
        "latency_us": _rounded(prediction.latency_us, 8),
        "uncertainty": _rounded(prediction.uncertainty, 8),
        "limiting": prediction.limiting,
        "utilization": _rounded(dict(prediction.utilization), 8),
        "terms_us": _rounded(dict(prediction.terms_us), 8),
    }


def _is_close(old: Any, new: Any) -> bool:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_is_close(old[name], new[name]) for name in old)
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(old == new)


def _rounded(value: Any, digits: int = 5) -> Any:
    """`value` with its numbers rounded to `digits` significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(member, digits) for name, member in value.items()}
    if isinstance(value, list):
        return [_rounded(member, digits) for member in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def main() -> int:
    stored, made, refused = stored_predictions(), {}, []
    for case in CASES:
        profiles, code = current(case)
        (PROFILES / f"{case}.json").write_text(profiles, encoding="utf-8")
        made[case] = {"code": code, **predictions(case)}
        before = stored.get(case)
        if before is not None and before["code"] == code:  # another program may have another time
            refused += [f"{case}: {line}" for line in changed_under_same_version(before, made[case])]
        print(case)
    if refused:
        print(
            "predictions changed and the version did not: "
            "raise CODE_VERSION in costmodel/analytical/analytical_model.py",
            *refused,
            sep="\n",
            file=sys.stderr,
        )
        return 1
    PREDICTIONS.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
