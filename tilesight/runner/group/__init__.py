"""Kernels that several devices of one host run together: checked and timed by one process that drives all."""
