"""The executor for a Ray cluster. Ray is imported only when a cluster is used."""

from __future__ import annotations

from .ray_executor import RayExecutor

__all__ = ["RayExecutor"]
