"""The licences of what an export contains."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

EXPRESSION = "Apache-2.0 AND MIT AND BSD-3-Clause"
_TEXT = """\
The sources in this folder and the launchers in its libraries are parts of TileSight (Apache-2.0,
https://www.apache.org/licenses/LICENSE-2.0). Kernels for GPUs also contain code from the headers of TileLang
(MIT, below) and, through them, of CUTLASS (BSD-3-Clause, Copyright (c) 2017 and later NVIDIA CORPORATION &
AFFILIATES, https://github.com/NVIDIA/cutlass/blob/main/LICENSE.txt).
"""


def licence_text() -> str:
    """The file `LICENSE.txt`."""
    return "\n".join([_TEXT, *_installed("tilelang")])


def _installed(package: str) -> list[str]:
    """The licence files of an installed package."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        f"---- {package} ----\n\n{file.read_text(encoding='utf-8')}"
        for file in files
        if "licenses" in file.parts and Path(str(file.locate())).is_file()
    ]
