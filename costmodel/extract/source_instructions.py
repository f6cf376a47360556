"""Tells the work of PTX instructions and of functions of CUDA's headers by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .mathematics import MATH, MATH_NAMES

REAL_TYPE = re.compile(r"float|double|half|bf(?:loat)?16|fp\d")
_PTX_REAL = re.compile(r"b?f\d+(?:x2)?")
CASTS = re.compile(r"(?:reinterpret|static|const|bit)_cast|__\w+_as_\w+|__cvta_\w+")
_TYPE = re.compile(r"u?int\d*(?:_t)?|float\d?|double|half\w*|bfloat\w*|bool|char|\w+_t|make_\w+")
_BITWISE = 0.5  # pairs become one LOP3, or a shift with a mask
# beginnings of names of functions of CUDA's headers that are one instruction
_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "shuffles": ("__shfl", "__match", "__ballot", "__any", "__all", "__reduce"),
    "integer_ops": ("__byte_perm", "__v", "__dp", "__popc", "__clz", "__ffs", "__brev", "__funnelshift"),
    "vector_ops": ("__h", "__f", "__low", "__high", "__double", "__bfloat", "__int", "__uint"),
}
# whole names of such functions: a kernel's own functions may begin like them
_INTRINSIC = re.compile(
    r"__(?:shfl|match|ballot|any|all|reduce)_\w*sync|__byte_perm|__(?:popc|clz|ffs|brev)(?:ll)?|__funnelshift_\w+"
    r"|__dp[24]a(?:_\w+)?|__v\w+[24]|__[hfd]?(?:add|sub|mul|mad|fma|maf|min|max|neg|abs|sad)(?:24|hi|_\w+)?2?"
    r"|__(?:low|high)s?2\w+|__(?:floats?|double|half|bfloat16|int|uint|ll|ull|short|ushort)2?2\w+"
)
_EXTREMES = ("min", "max", "fmin", "fmax", "fminf", "fmaxf")
_PTX_VECTOR, _PTX_BITS_OF = re.compile(r"v[248]"), re.compile(r"[busf](\d+)")
_PTX_FREE = ("mov", "bra", "ret", "cvta", "createpolicy", "elect", "fence", "pragma", "prefetch", "prefetchu")
_PTX_SPECIAL = ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt")
_PTX_INTEGER = ("mapa", "prmt", "lop3", "bfe", "bfi", "popc", "shf", "selp", "setp", "set")
_PTX_BITS = ("and", "or", "xor", "not", "shl", "shr")
_PTX_ARITHMETIC = ("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "div", "rem", "cvt")
_BITS = ("&", "|", "^", "<<", ">>")
_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=", "&&", "||")
_FREE_WORK: Mapping[str, float] = {}

Work = Mapping[str, float]  # lane operations by the keys of `PhaseCounts.counts`


def work_of_function(name: str) -> Work | None:
    """The work of a function of CUDA's headers, or of a cast; None if the function is not known."""
    function = MATH_NAMES.get(name)
    if function is not None:
        return {"special_ops": MATH[function].special, "vector_ops": MATH[function].vector}
    for key, beginnings in _FUNCTIONS.items():
        if name.startswith(beginnings):
            return {key: 1.0}
    if name in _EXTREMES:
        return {"integer_ops": 1.0}  # both kinds take the same pipe
    return _FREE_WORK if CASTS.fullmatch(name) or _TYPE.fullmatch(name) else None


def work_of_intrinsic(name: str) -> Work | None:
    """The work of a function of CUDA's headers that is one instruction; None if the name is not one's."""
    return work_of_function(name) if _INTRINSIC.fullmatch(name) or name in _EXTREMES else None


def work_of_ptx(mnemonic: str) -> Work | None:
    """The work of a PTX instruction; None if it is none of arithmetic, such as a copy or a matrix product."""
    operation, *modifiers = mnemonic.split(".")
    if operation in _PTX_FREE:
        return _FREE_WORK
    if operation in _PTX_SPECIAL:
        return {"special_ops": 1.0}
    if operation in _PTX_INTEGER:
        return {"integer_ops": 1.0}
    if operation in _PTX_BITS:
        return {"integer_ops": _BITWISE}
    if operation == "shfl":
        return {"shuffles": 1.0}
    if operation in _PTX_ARITHMETIC:
        return {"vector_ops" if any(map(_PTX_REAL.fullmatch, modifiers)) else "integer_ops": 1.0}
    return None


def access_of_ptx(mnemonic: str) -> tuple[bool, float, bool] | None:
    """Of a PTX load or store of each thread; None of others.

    Returns:
        Whether it stores, its bytes, and whether the shared memory of the whole cluster is addressed.
    """
    operation, *modifiers = mnemonic.split(".")
    bits = _PTX_BITS_OF.fullmatch(modifiers[-1]) if modifiers else None
    if operation not in ("ld", "st") or bits is None:
        return None
    wide = next((int(m[1:]) for m in modifiers if _PTX_VECTOR.fullmatch(m)), 1)
    return operation == "st", wide * int(bits[1]) / 8, "shared::cluster" in modifiers


def work_of_operator(symbol: str, *, is_real: bool) -> Work:
    """The work of a binary operator of C++; `is_real`: an operand is a floating-point number."""
    if symbol in _BITS:
        return {"integer_ops": _BITWISE}
    if symbol in _COMPARISONS or not is_real:
        return {"integer_ops": 1.0}
    if symbol == "/":
        return {"special_ops": MATH["divide"].special, "vector_ops": MATH["divide"].vector}
    return {"vector_ops": 1.0}
