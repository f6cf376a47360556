"""Check and time built kernels, in a process that owns the device."""
