"""Kernel profiles: the work of a kernel as numbers, and parametric profiles that hold for many shapes."""
