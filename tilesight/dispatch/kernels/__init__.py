"""Kernels of a dispatcher: found, built, loaded and bound to calls."""
