"""Calibration of the network between the devices of one host: one process a device, times as data.

`steps.py` lists what is timed, `ranks.py` runs one process a device, `device.py` times the steps there,
`figures.py` derives figures from the times, and `calibrate.py` puts them together as a new target. `rows.py`
writes times as lines, and reads them.
"""

from __future__ import annotations

from .calibrate import calibrate_network, check_network
from .rows import row_line, rows_of

__all__ = ["calibrate_network", "check_network", "row_line", "rows_of"]
