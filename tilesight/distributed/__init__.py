"""Work on many machines, through Ray. Ray is imported when a cluster is asked for, and never before."""

from __future__ import annotations

from .executor import RayExecutor

__all__ = ["RayExecutor"]
