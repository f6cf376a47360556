"""The version of TileSight, in a module below all others that use it."""

__version__ = "0.1.0"
