"""Evaluates boosted trees by XGBoost's C library, without importing its Python package.

The import of the package includes scikit-learn and SciPy and takes more than half a second. The C API is
public and documented ("XGBoost C Package"). Training uses the package.
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

from ...errors import headline

_LIBRARIES = {"win32": "xgboost.dll", "darwin": "libxgboost.dylib"}


def booster_of(content: bytes) -> Any:
    """A booster with `inplace_predict` from the bytes of a file in XGBoost's format.

    The library may end the process on input that it did not write.
    """
    library = _library()
    if library is not None:
        return Trees(library, content)
    import xgboost  # its library was not found

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
        # thousands of rows take milliseconds, less than starting threads
        self._call("XGBoosterSetParam", self._handle, b"nthread", b"1")

    def inplace_predict(
        self,
        features: NDArray[np.float32],
        predict_type: str = "value",
        base_margin: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Predict rows.

        Args:
            features: shape (n, f).
            predict_type: `value` for predictions, `margin` for margins.
            base_margin: shape (n,), replaces the base of the model.

        Returns:
            Shape (n,).
        """
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
            self._call(
                "XGBoosterPredictFromDense",
                self._handle,
                _interface(rows),
                json.dumps(how).encode(),
                meta,
                *outputs,
            )
            # copied, since the library reuses its memory
            return (
                np.ctypeslib.as_array(found, (len(rows),)).copy()
                if len(rows)
                else np.empty(0, dtype=np.float32)
            )
        finally:
            if meta:
                self._library.XGDMatrixFree(meta)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            message = self._library.XGBGetLastError()
            text = message.decode(errors="replace") if message else name
            raise ValueError(f"XGBoost: {headline(text)}")  # a stack trace follows


@cache
def _library() -> ctypes.CDLL | None:
    """XGBoost's library in its package; None if it is elsewhere."""
    spec = find_spec("xgboost")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / _LIBRARIES.get(sys.platform, "libxgboost.so")
        if path.is_file():
            library = ctypes.CDLL(str(path))
            library.XGBGetLastError.restype = ctypes.c_char_p
            return library
    return None


def _interface(values: NDArray[np.float32]) -> bytes:
    """NumPy's array interface as JSON text."""
    found = values.__array_interface__
    return json.dumps(
        {
            "data": [found["data"][0], True],
            "shape": list(values.shape),
            "typestr": found["typestr"],
            "version": 3,
        }
    ).encode()


__all__ = ["Trees", "booster_of"]
