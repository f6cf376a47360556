"""Calibration: measure on the GPU at hand what the cost model needs, and write it down as a target file of its own.

`probes.cu` has kernels that each keep one part of the chip busy, `gpu.py` runs them, `probes.py` and `loads.py` make
figures of their times, `document.py` writes the file. CUDA only: no AMD GPU was at hand to try HIP probes on.
"""

from __future__ import annotations

from .measuring import Calibration, calibrate, check_kind, check_name

__all__ = ["Calibration", "calibrate", "check_kind", "check_name"]
