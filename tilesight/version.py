"""The version of this package, where every module may ask for it: the package itself stands above them all."""

__version__ = "0.1.0"
