"""The machine: its devices and their locks, its compilers, and which device serves a target."""
