"""The parameter `policy` of spaces: how a tile is divided over the warps."""

from __future__ import annotations

from typing import Any


def warp_policy(name: str) -> Any:
    """TileLang's policy of that name (`POLICIES` of the search spaces)."""
    import tilelang.language as T  # noqa: N812

    return {
        "square": T.GemmWarpPolicy.Square,
        "full_row": T.GemmWarpPolicy.FullRow,
        "full_col": T.GemmWarpPolicy.FullCol,
    }[name]
