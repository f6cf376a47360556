"""Exports kernels: built libraries with an interface in C, Python or torch that needs no TileSight."""
