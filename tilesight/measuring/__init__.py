"""Checking and timing built kernels, in a process that owns the device."""
