"""The views `leaderboard` and `best` read no more trials than they need. The tables stay as they are.

Revision: 0007
"""

from __future__ import annotations

revision = "0007"
down_revision: str | None = "0006"


def upgrade() -> None:
    pass  # every migration makes the views anew
