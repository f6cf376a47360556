"""What the programs of this folder share: lower a kernel, say in one line what came of it, and exit.

Exit status 0: the obstacle is there; 1: it is gone; 2: TileLang fails in another way.
"""

import logging
import sys
from importlib.metadata import version
from typing import NoReturn

from tilesight.builder.build import device_source
from tilesight.lowering.lower import Lowered, lower
from tilesight.target.spec import load_target


def lowered(kernel: object, chip: str) -> Lowered:
    """The IR of the kernel after TileLang's passes; no GPU is needed."""
    logging.disable()  # TileLang prints the IR of what it refuses
    return lower(kernel, load_target(chip))


def report(is_there: bool, found: str) -> NoReturn:
    """Print a line and exit."""
    print(f"TileLang {version('tilelang')}: {'still there' if is_there else 'gone'}: {found}")
    sys.exit(0 if is_there else 1)


def expect_error(kernel: object, chip: str, message: str) -> NoReturn:
    """The obstacle is that TileLang refuses the kernel with an error that contains `message`, as it lowers it
    or writes its CUDA source.
    """
    try:
        device_source(lowered(kernel, chip), load_target(chip))
    except Exception as error:  # of many types, and some with a dump of the IR after the first lines
        text = str(error)
        if message in text:
            line = next(line for line in text.splitlines() if message in line)
            report(True, f"{type(error).__name__}: {line.strip()[:160]}")
        lines = text.strip().splitlines() or [""]
        print(f"TileLang {version('tilelang')}: another error: {type(error).__name__}: {lines[-1][:160]}")
        sys.exit(2)
    report(False, "the kernel lowers, and TileLang writes its source")
