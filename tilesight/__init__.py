"""TileSight: tune GPU kernels written in TileLang by knowing before trying."""

__version__ = "0.1.0"
