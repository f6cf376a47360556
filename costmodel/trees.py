"""Boosted trees as XGBoost evaluates them, without its Python package.

Importing that package brings scikit-learn and SciPy, more than half a second before a first prediction. Its library is
called by the C API instead, which is public and documented ("XGBoost C Package"). Training uses the package.
"""

from __future__ import annotations

import ctypes
import json
import sys
import weakref
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBRARIES = {"win32": "xgboost.dll", "darwin": "libxgboost.dylib"}


def booster_of(content: bytes) -> Any:
    """A booster from the bytes of a file in XGBoost's format, with the package's `inplace_predict`. Hand it nothing else:
    the library may end the process over what it did not write."""
    library = _library()
    if library is not None:
        return Trees(library, content)
    import xgboost  # installed in a way that is not known here

    booster = xgboost.Booster()
    booster.load_model(bytearray(content))
    booster.set_param({"nthread": 1})
    return booster


class Trees:
    """A booster that can only predict."""

    def __init__(self, library: ctypes.CDLL, content: bytes) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("XGBoosterCreate", None, ctypes.c_uint64(0), ctypes.byref(self._handle))
        weakref.finalize(self, library.XGBoosterFree, self._handle)
        self._call("XGBoosterLoadModelFromBuffer", self._handle, content, ctypes.c_uint64(len(content)))
        # rows by the thousand take milliseconds; starting threads would cost more
        self._call("XGBoosterSetParam", self._handle, b"nthread", b"1")

    def inplace_predict(
        self, features: NDArray[np.float32], predict_type: str = "value", base_margin: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """(n,) predictions of rows (n, f), or their margins; `base_margin` (n,) takes the place of the model's own base."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        meta = ctypes.c_void_p()
        if base_margin is not None:
            start = np.ascontiguousarray(base_margin, dtype=np.float32)
            self._call("XGProxyDMatrixCreate", ctypes.byref(meta))
        try:
            if base_margin is not None:
                self._call("XGDMatrixSetInfoFromInterface", meta, b"base_margin", _interface(start))
            how = {
                "type": 1 if predict_type == "margin" else 0,
                "training": False,
                "iteration_begin": 0,
                "iteration_end": 0,
                "missing": float("nan"),
                "strict_shape": False,
                "cache_id": 0,
            }
            shape, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
            found = ctypes.POINTER(ctypes.c_float)()
            outputs = (ctypes.byref(shape), ctypes.byref(dimensions), ctypes.byref(found))
            self._call("XGBoosterPredictFromDense", self._handle, _interface(rows), json.dumps(how).encode(), meta, *outputs)
            # the library uses its memory again
            return np.ctypeslib.as_array(found, (len(rows),)).copy() if len(rows) else np.empty(0, dtype=np.float32)
        finally:
            if meta:
                self._library.XGDMatrixFree(meta)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            message = self._library.XGBGetLastError()
            raise ValueError(f"XGBoost: {message.decode(errors='replace').strip() if message else name}")


@cache
def _library() -> ctypes.CDLL | None:
    """XGBoost's library inside its package; None where it is elsewhere."""
    spec = find_spec("xgboost")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / _LIBRARIES.get(sys.platform, "libxgboost.so")
        if path.is_file():
            library = ctypes.CDLL(str(path))
            library.XGBGetLastError.restype = ctypes.c_char_p
            return library
    return None


def _interface(values: NDArray[np.float32]) -> bytes:
    """NumPy's array interface as JSON."""
    found = values.__array_interface__
    return json.dumps({"data": [found["data"][0], True], "shape": list(values.shape), "typestr": found["typestr"], "version": 3}).encode()


__all__ = ["Trees", "booster_of"]
