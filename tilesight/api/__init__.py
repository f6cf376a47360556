"""The Python interface: one module a function, on an engine that holds what a call needs."""
