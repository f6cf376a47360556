"""The corpus of captured kernels: a folder with an index, traced functions and contents of integer tensors.

    index.jsonl          one candidate a line (`Candidate`)
    functions/HASH.xz    a PrimFunc as TVM writes it (JSON)
    contents/HASH.xz     the bytes of an integer or bool tensor

A kernel is `repository/file:function`. A group is a kernel at one size: its candidates differ in their
config alone. Half of the kernels may be looked at (`half_of`).
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

HALVES = ("looked", "unopened")
SPREAD = 0.5  # standard deviation of random floating-point values
MOST_CONTENT_BYTES = 400_000  # compressed; a larger tensor is drawn again between its smallest and largest


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel.

    Attributes:
        name: As the kernel names it.
        dtype: As TVM names it.
        shape: Of a tensor; None: the argument is a number.
        value: Of a number.
        content: Of an integer tensor: "file:HASH", "uniform:LOW:HIGH" (drawn again), or "" (drawn freely).
        strides: In elements, where the tensor is not contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    value: int | float | None = None
    content: str = ""
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Drawn:
    """Floating-point numbers of the distribution that is measured, which are drawn if somebody reads them."""

    name: str
    shape: tuple[int, ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        import numpy as np

        generator = np.random.default_rng(zlib.crc32(self.name.encode()))
        return (SPREAD * generator.standard_normal(self.shape, dtype=np.float32)).astype(dtype or np.float32)


@dataclass(frozen=True)
class Candidate:
    """One function with one set of arguments. `sizes`: values of what it takes at run time, by name."""

    name: str  # repository/file:function
    group: str
    config: Mapping[str, Any]
    function: str  # hash of the PrimFunc
    arguments: tuple[Argument, ...]
    sizes: Mapping[str, int]
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    compile_flags: tuple[str, ...] = ()
    origin: str = "call"  # call | made (never called) | config | size (variants)

    @property
    def key(self) -> str:
        """12 hex digits of everything that a measurement depends on."""
        said = asdict(self)
        for name in ("group", "config", "origin"):
            del said[name]
        return digest(json.dumps(said, sort_keys=True, default=str).encode())

    @property
    def bytes(self) -> float:
        """Of all tensors."""
        return sum(math.prod(a.shape) * bits_of(a.dtype) / 8 for a in self.arguments if a.shape is not None)


class Corpus:
    """A corpus in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("functions", "contents"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def put(self, kind: str, data: bytes, most: int | None = None) -> str:
        """Keep bytes and return their hash; "" if they take more than `most` compressed bytes."""
        name = digest(data)
        path = self.folder / kind / f"{name}.xz"
        if not path.exists():
            packed = lzma.compress(data, preset=1)
            if most is not None and len(packed) > most:
                return ""
            path.write_bytes(packed)
        return name

    def get(self, kind: str, name: str) -> bytes:
        """Bytes that were kept; an unpacked archive has them as they are (`NAME.raw`)."""
        plain = self.folder / kind / f"{name}.raw"
        if plain.exists():
            return plain.read_bytes()
        return lzma.decompress((self.folder / kind / f"{name}.xz").read_bytes())

    def function(self, candidate: Candidate) -> Any:
        """The candidate's PrimFunc."""
        import tilelang  # noqa: F401 - before tvm
        from layouts import rebuilt
        from tvm.ir import load_json

        return rebuilt(load_json(self.get("functions", candidate.function).decode()))

    def content(self, argument: Argument) -> NDArray[Any] | None:
        """The integers of a tensor as they were measured; None for other arguments."""
        import numpy as np

        kind, _, rest = argument.content.partition(":")
        if kind == "file":
            return np.frombuffer(self.get("contents", rest), argument.dtype).reshape(argument.shape or ())
        if kind == "uniform":  # other numbers than those measured, of the same distribution
            low, high = map(int, rest.split(":"))
            drawn = np.random.default_rng(0).integers(low, max(high, low + 1), argument.shape)
            return drawn.astype(argument.dtype)
        return None

    def example(self, argument: Argument) -> NDArray[Any] | Drawn | None:
        """An example of an argument, as it was measured; None for numbers, and floats with strides."""
        is_float = argument.dtype.startswith(("float", "bfloat")) and argument.strides is None
        if argument.shape is not None and is_float and bits_of(argument.dtype) >= 8:
            return Drawn(argument.name, argument.shape)
        return self.content(argument)

    def add(self, candidate: Candidate) -> None:
        with (self.folder / "index.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(candidate), default=str) + "\n")

    def rewrite(self, candidates: Iterable[Candidate]) -> None:
        (self.folder / "index.jsonl").unlink(missing_ok=True)
        for candidate in candidates:
            self.add(candidate)

    def __iter__(self) -> Iterator[Candidate]:
        path = self.folder / "index.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            yield _read(json.loads(line))


def half_of(name: str) -> str:
    """Which half a kernel belongs to, by the hash of its name."""
    return HALVES[int(digest(name.encode()), 16) % 2]


def in_order(candidates: Iterable[Candidate], seed: int = 21) -> list[Candidate]:
    """Candidates with whole groups at random, one group of each kernel before the second of any."""
    groups: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for candidate in candidates:
        groups[candidate.name][candidate.group].append(candidate)
    generator = random.Random(seed)
    rounds: list[list[list[Candidate]]] = []
    for name in sorted(groups):
        mine = [groups[name][group] for group in sorted(groups[name])]
        generator.shuffle(mine)
        for number, group in enumerate(mine):
            rounds += [[]] * (number + 1 - len(rounds))
            rounds[number] = [*rounds[number], group]
    for one in rounds:
        generator.shuffle(one)
    return [candidate for one in rounds for group in one for candidate in group]


def subset(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """About `count` candidates: one of each kernel, then a second one of its group, while there is room."""
    found, taken = [], defaultdict(list)
    for candidate in candidates:
        taken[candidate.name].append(candidate)
    for turn in range(max(map(len, taken.values()), default=0)):
        for mine in taken.values():
            if turn < len(mine) and len(found) < count:
                found.append(mine[turn])
    return found


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def bits_of(dtype: str) -> int:
    """Bits of one element of a type that TVM names."""
    if dtype == "bool":
        return 8
    found = re.search(r"\d+", dtype)
    lanes = re.search(r"x(\d+)$", dtype)
    return int(found[0]) * (int(lanes[1]) if lanes else 1) if found else 32


def _read(said: dict[str, Any]) -> Candidate:
    arguments = tuple(
        Argument(**{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()})
        for one in said.pop("arguments")
    )
    flags = tuple(said.pop("compile_flags"))
    return Candidate(arguments=arguments, compile_flags=flags, **said)
