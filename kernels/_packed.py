"""Packed weights: formats of two and four bits, their quantisation in torch, and their decoders in kernels.

A weight is a code of a few bits, and its number is `values[code]`. Neighbours along k share a byte, the first
one in the lowest bits.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

OFFSET = 8  # the code of zero of int4
# a power of two whose last bit of the significand is worth 1, and its bits: `bits | q` is that power + q
UNITS: Mapping[str, tuple[int, int]] = {
    "float16": (1 << 10, 0x6400),
    "bfloat16": (1 << 7, 0x4300),
    "float32": (1 << 23, 0x4B000000),
}
# bits of the significand, and the bias of the exponent
LAYOUTS: Mapping[str, tuple[int, int]] = {"float16": (10, 15), "bfloat16": (7, 127)}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # a sign follows, two bits of exponent and one more
# quantiles of a normal distribution, seven below zero and eight above, from -1 to 1
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packing:
    """A format of packed weights.

    Attributes:
        values: the number of each code, in float32.
        largest: the number that the largest magnitude of a group becomes; 0: scales are mean magnitudes.
        decoders: ways to decode, as the search space names them.
        group: the only legal number of weights that share a scale; 0 if there are several.
        activations: dtype of the other operand; "" for that of the workload.
        scales: dtype of the scales; "" for that of the workload.
    """

    values: tuple[float, ...]
    largest: float
    decoders: tuple[str, ...]
    group: int = 0
    activations: str = ""
    scales: str = ""

    @property
    def bits(self) -> int:
        return (len(self.values) - 1).bit_length()

    @property
    def per_byte(self) -> int:
        return 8 // self.bits

    @property
    def zero(self) -> int:
        """The code of zero."""
        return self.values.index(0.0)


_SIGNED_E2M1 = (*E2M1, *(-value for value in E2M1))
FORMATS: Mapping[str, Packing] = {
    "int4": Packing(tuple(float(q - OFFSET) for q in range(16)), 7, ("bits", "convert", "words")),
    "nf4": Packing(NF4, 1, ("table",)),
    "fp4": Packing(_SIGNED_E2M1, 6, ("words", "table")),
    "mxfp4": Packing(_SIGNED_E2M1, 6, ("words", "table"), group=32, scales="uint8"),
    "int2": Packing((-2.0, -1.0, 0.0, 1.0), 0, ("words",), group=-1, activations="int8"),
}


def codes_of(packing: Packing, packed: "torch.Tensor", k: int) -> "torch.Tensor":
    """The codes of `packed`[n, bytes] as uint8[n, k]."""
    import torch

    shifts = range(0, 8, packing.bits)
    codes = torch.stack([packed >> shift & (1 << packing.bits) - 1 for shift in shifts], dim=-1)
    return codes.view(len(packed), -1)[:, :k]


def packed_codes(packing: Packing, codes: "torch.Tensor") -> "torch.Tensor":
    """uint8[n, bytes] from codes[n, k]; the rest of the last byte is zeros of the format."""
    import torch

    per_byte = packing.per_byte
    whole = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per_byte), value=packing.zero)
    parts = [whole[:, at::per_byte] << at * packing.bits for at in range(per_byte)]
    total = parts[0]
    for part in parts[1:]:
        total = total | part
    return total


def nearest_codes(packing: Packing, numbers: "torch.Tensor") -> "torch.Tensor":
    """The codes of the nearest numbers of the format."""
    import torch

    values = torch.tensor(packing.values, device=numbers.device)
    ordered, codes = values.sort(stable=True)
    between = (ordered[1:] + ordered[:-1]) / 2
    return codes.to(torch.uint8)[torch.bucketize(numbers, between, out_int32=True)]


def word_of(format_name: str, dtype: str) -> Callable[[Any], Any]:
    """A function of a byte, as uint32: the bits of its weights' numbers in `dtype`, side by side in a word.

    For int4 a number is `units` + q (see `UNITS`). For e2m1 it is the right one divided by 2^(bias - 1): the
    code is in the places of sign, exponent and significand. 0.5 becomes a subnormal number, so that one
    product by that power is right for all codes.
    """
    if format_name == "int2":

        def fours(byte: Any) -> Any:
            apart = byte * 0x1001  # two codes in each half
            codes = (apart & 0x00030003 | apart * 64 & 0x03000300) ^ 0x02020202  # -2 .. 1, in two bits
            return codes + (codes & 0x02020202) * 0x7E  # the sign in the other six

        return fours
    if format_name == "int4":
        bits = UNITS[dtype][1]
        return lambda byte: byte * 0x1001 & 0x000F000F | bits * 0x10001
    last = LAYOUTS[dtype][0] - 1  # place of the last bit of a code, in either half
    places = 1 << last | 1 << last + 12
    return lambda byte: byte * places & (7 << last) * 0x10001 | byte * 0x01001000 & 0x80008000


def decoder(
    format_name: str, zeros: bool, dtype: str, by: str
) -> tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """Two functions of a kernel's expressions: a code's number, and the weight that it stands for.

    Args:
        format_name: of `FORMATS`.
        zeros: whether weights of int4 have zero points.
        dtype: of the weights.
        by: one of the format's decoders.

    Returns:
        `number(byte, position, table)` of the weight at `position` along k, with a buffer of the format's
        values for `table`, for decoders but `words`; and `scaled(number, scale, zero)`, which also takes
        numbers of `word_of`.
    """
    import tilelang.language as T  # noqa: N812

    packing = FORMATS[format_name]

    def code(byte: Any, position: Any) -> Any:
        shift = T.cast(position % packing.per_byte * packing.bits, "uint8")
        return (byte >> shift) & T.uint8((1 << packing.bits) - 1)

    def constant(value: float) -> Any:
        return T.cast(value, dtype)

    def looked_up(byte: Any, position: Any, table: Any) -> Any:
        return table[T.cast(code(byte, position), "int32")]

    if by == "table":
        return looked_up, lambda value, scale, _zero: value * scale
    if format_name == "int2":
        return looked_up, lambda value, _scale, _zero: value
    if format_name != "int4":
        unit = 2.0 ** (LAYOUTS[dtype][1] - 1)
        return looked_up, lambda value, scale, _zero: value * constant(unit) * scale

    units, bits = UNITS[dtype]

    def number(byte: Any, position: Any, _table: Any) -> Any:
        q = code(byte, position)
        if by == "bits":
            word = f"uint{8 * DTYPE_BYTES[dtype]}"
            return T.reinterpret(T.cast(q, word) | T.cast(bits, word), dtype)
        return T.cast(T.cast(q, "int32") - (0 if zeros else OFFSET), dtype)

    def scaled(value: Any, scale: Any, zero: Any) -> Any:
        if zeros:  # each difference is exact if the zero point is a whole number
            return ((value if by == "convert" else value - constant(float(units))) - zero) * scale
        return value * scale if by == "convert" else (value - constant(float(units + OFFSET))) * scale

    return number, scaled


def byte_tables(values: tuple[float, ...], dtype: str) -> tuple[int, ...]:
    """The lower, then the upper bytes of numbers of 16 bits, four in a word."""
    import torch

    numbers = torch.tensor(values).to(getattr(torch, dtype)).view(torch.int16).tolist()
    found = [(number >> shift) & 0xFF for shift in (0, 8) for number in numbers]
    return tuple(sum(found[at + i] << 8 * i for i in range(4)) for at in range(0, len(found), 4))


def permuted(codes: Any, tables: Any, permute: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
    """The numbers of four codes in the lower bits of a uint32, from words of `byte_tables`, in two words.

    `permute` takes the lower and upper half of eight bytes, and places in them, of three bits. The fourth bit
    of a code says in which of two tables.
    """
    upper = permute(0xFF00, 0, codes >> 3 & 0x1111)

    def found(at: int) -> Any:
        first, second = (permute(tables[i], tables[i + 1], codes) for i in (at, at + 2))
        return first & ~upper | second & upper

    low, high = found(0), found(4)
    return permute(low, high, 0x5140), permute(low, high, 0x7362)


def scale_of(raw: Any, dtype: str) -> Any:
    """A scale in `dtype`: itself, or the power of two of a biased exponent (e8m0) of 1 .. 254."""
    import tilelang.language as T  # noqa: N812

    if raw.dtype != "uint8":
        return raw
    if dtype == "bfloat16":
        return T.reinterpret(T.cast(raw, "uint16") << T.uint16(7), dtype)
    return T.cast(T.reinterpret(T.cast(raw, "uint32") << T.uint32(23), "float32"), dtype)


def constant_of(values: tuple[float, ...], index: Any, dtype: str) -> Any:
    """`values[index]`, by comparisons."""
    import tilelang.language as T  # noqa: N812

    found = T.cast(values[-1], dtype)
    for at, value in reversed(list(enumerate(values[:-1]))):
        found = T.if_then_else(index == at, T.cast(value, dtype), found)
    return found
