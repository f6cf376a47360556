"""Dispatch: which built kernel serves a shape, at run time."""
