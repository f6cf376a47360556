"""Dispatch: choosing, building and calling the kernel for a shape, at run time."""

from .registration import register

__all__ = ["register"]
