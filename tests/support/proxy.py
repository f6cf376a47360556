"""A proxy between a client and a server's socket, which cuts connections where the test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Self


class Cut(Enum):
    """How a connection is cut at a message of the client."""

    BEFORE = auto()  # the message is lost, and both ends notice
    AFTER = auto()  # the server gets the message, and its answer is lost
    UNSEEN = auto()  # the message is lost, and the server does not notice


class Proxy:
    """Forwards connections to `127.0.0.1:port`; `rule` returns for each message whether and how to cut."""

    def __init__(self, target: Path) -> None:
        self.rule: Callable[[bytes], Cut | None] = lambda _message: None
        self.cuts = 0
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # a thread that waits in accept() would keep the port
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            _close(end)

    def cut_at(self, needle: bytes, how: Cut, times: int = 1) -> None:
        """Cut at the next `times` messages that contain `needle`."""
        left = times

        def rule(message: bytes) -> Cut | None:
            nonlocal left
            if not left or needle not in message:
                return None
            left -= 1
            return how

        self.rule = rule

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            self._open += [client, server]
            try:
                server.connect(self._target)
            except OSError:
                _close(client)
                continue
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while message := client.recv(1 << 16):
                how = self.rule(message)
                if how is not None:
                    self.cuts += 1
                    if how is Cut.AFTER:
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(message)
                        server.settimeout(1.0)
                        server.recv(1)  # it has answered: it is done
                    if how is not Cut.UNSEEN:
                        _close(server)
                    break
                server.sendall(message)
            else:
                _close(server)
        _close(client)


def _pass_on(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while message := server.recv(1 << 16):
            client.sendall(message)
    _close(client)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
