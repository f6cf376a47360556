"""Calibration: measure the figures that the cost model needs on a GPU, and write them as a new target file.

`probes.cu` has kernels that each load one part of the chip, `gpu.py` runs them, `probes.py` and `loads.py`
derive figures from their times, and `document.py` writes the file. Probes exist for CUDA only: HIP probes
could not be tested.
"""

from __future__ import annotations

from .calibration import Calibration, calibrate, check_kind, check_name

__all__ = ["Calibration", "calibrate", "check_kind", "check_name"]
