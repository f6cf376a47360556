"""A kernel's PTX from a front end of NVIDIA's that has read the headers already; see `front_ends.py`, which keeps such ones."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from .cache import cache_key
from .front_end_hook import BODY, DONE
from .steps import Steps


class UnavailableError(Exception):
    """There is no PTX; nvcc may know why."""


def split_source(source: str) -> tuple[str, str]:
    """(headers, kernel) of a generated source. Raises `UnavailableError` where they are mixed."""
    lines = source.splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    headers, kernel = lines[:first], lines[first:]
    opened = sum(line.startswith("#if") for line in headers) - sum(line.startswith("#endif") for line in headers)
    if opened or not any("#include" in line for line in headers) or any(line.lstrip().startswith("#include") for line in kernel):
        raise UnavailableError("headers and kernel are mixed")
    # the line numbers are those of the whole file, as nvcc would see it
    return "".join(headers), f'# {first + 1} "kernel.cu"\n' + "".join(kernel)


def compile_to_ptx(folder: Path, source: str, steps: Steps, cxx: Path, versions: str, front_ends: str) -> None:
    """Write `kernel.ptx` in `folder`. `versions`: of the compilers and headers that the steps name. `front_ends`: the address
    of who keeps them. Raises `UnavailableError`."""
    headers, kernel = split_source(source)
    name, _, secret = front_ends.partition("/")
    key = cache_key(headers, versions, *steps.preprocess, *steps.front_end)
    (folder / BODY).write_text(kernel, encoding="utf-8")
    request = {
        "key": key,
        "headers": headers,
        "preprocess": steps.preprocess,
        "front_end": steps.front_end,
        "cxx": str(cxx),
        "secret": secret,
    }
    try:
        try:
            server = connected(f"{name}-{key}")
        except ConnectionRefusedError:
            _ask(name, request)
            server = connected(f"{name}-{key}")
        with server:
            server.sendall(f"{folder}\n".encode())
            said = b""
            while part := server.recv(4096):
                said += part
    except OSError as error:
        raise UnavailableError(f"no answer: {error}") from error
    ptx = folder / "kernel.ptx"
    if said != DONE.encode() or not ptx.exists() or not ptx.stat().st_size:
        raise UnavailableError("the front end wrote no PTX")


def _ask(name: str, request: Mapping[str, object]) -> None:
    """Have a front end started. Raises `UnavailableError` where it cannot be, `OSError`."""
    with connected(name) as keeper, keeper.makefile("rw", encoding="utf-8") as lines:
        lines.write(json.dumps(request) + "\n")
        lines.flush()
        answer = lines.readline().strip()
    if answer != "started":
        raise UnavailableError(answer or "it was not started")


def connected(name: str) -> socket.socket:
    """A connection to the socket of this name, if it is this user's. Raises `OSError`."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(f"\0{name}")
        if peer(server) != os.getuid():
            raise ConnectionRefusedError(f"'{name}' belongs to another user")
    except OSError:
        server.close()
        raise
    return server


def peer(connection: socket.socket) -> int:
    """The user at the other end. Raises `OSError`."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)
