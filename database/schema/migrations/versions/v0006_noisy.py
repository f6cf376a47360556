"""The view `best` knows candidates whose measurement was disturbed. The tables stay as they are.

Revision: 0006
"""

from __future__ import annotations

revision = "0006"
down_revision: str | None = "0005"


def upgrade() -> None:
    pass  # every migration makes the views anew
