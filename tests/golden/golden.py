"""Profiles of a few kernels as text, kept in profiles/: a change in TileLang or in how we read its IR shows as a diff.

python tests/golden/golden.py      writes them anew; read the diff before you commit it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilesight.costmodel.profile import read_profiles
from tilesight.kernels import operator, template_for
from tilesight.lowering import lower
from tilesight.profile_json import plain_profile
from tilesight.target import load_target

PROFILES = Path(__file__).parent / "profiles"

# file name -> target, kernel, shape; each with the config that a careful engineer would start from
CASES = {
    "matmul-M0-h200": ("h200", "matmul", "M0"),
    "matmul-M0-a100": ("a100", "matmul", "M0"),
    "matmul-M0-mi300x": ("mi300x", "matmul", "M0"),
    "matmul-odd-h200": ("h200", "matmul", "m=1000,n=999,k=1003"),
    "flash_attention-FA4-h200": ("h200", "flash_attention", "FA4"),
    "flash_attention-FA4-mi300x": ("mi300x", "flash_attention", "FA4"),
    "matmul-S512-cpu": ("cpu", "matmul", "S512"),
}


def current(case: str) -> str:
    """The case's profiles as they are read today, as JSON text."""
    name, kernel, shape = CASES[case]
    target = load_target(name)
    template = template_for(kernel, target, "float32" if name == "cpu" else "bfloat16")
    workload = operator(kernel).workload(shape, template.dtypes[0])
    config = template.default_config(workload, target)
    assert config is not None
    kernels = read_profiles(lower(template.build(workload, config), target), target)
    return json.dumps({"config": dict(config), "kernels": [_rounded(plain_profile(k)) for k in kernels]}, indent=1) + "\n"


def _rounded(value: Any) -> Any:
    """Numbers to what matters."""
    if isinstance(value, dict):
        return {name: _rounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_rounded(member) for member in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    for case in CASES:
        (PROFILES / f"{case}.json").write_text(current(case), encoding="utf-8")
        print(case)
