"""The server of HTTP: on this machine alone, for reading alone, for those who know the token.

A page of another site, opened in a browser on this machine, can send requests here. It does not know the
token, and it reads no answer: a name of its own that it lets lead to this machine (DNS rebinding) stands in
the header Host, and only addresses of this machine are answered.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socketserver
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import InputError
from .site import Answer, Site

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_PATIENCE_S = 30.0  # for the rest of a request
_MOST_QUERY = 4096  # characters
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Listener(ThreadingHTTPServer):
    """A server with one thread for each request. Closing it ends it."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        """Listen on `port`; 0: on a free one. Raises `InputError` if that is not possible."""
        self.site, self.token = site, secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(_refusal(port, error)) from error

    def server_bind(self) -> None:
        # the parent's method asks the name service for the name of the host, which may take seconds
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def address(self) -> str:
        """The address of the first page, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that no longer wants its answer is no error of ours."""


def _refusal(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {HOST} is in use; name another with --port, or leave it out for a free one"
    reason = error.strerror or str(error)
    return f"port {port} of {HOST} cannot be used: {reason}; leave --port out for a free one"


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    server_version, sys_version = "TileSight", ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._send(Answer(405, "Only GET and HEAD: nothing can be changed here.\n"), with_body=True)

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if hosts not in [[f"{name}:{self.server.server_port}"] for name in _NAMES]:
            return Answer(421, f"This server answers to {HOST}:{self.server.server_port} alone.\n")
        try:
            split = urlsplit(self.path)
            parts = [unquote(part, errors="strict") for part in split.path.split("/")]
            if len(split.query) > _MOST_QUERY:
                raise ValueError("too long")
            query = dict(parse_qsl(split.query, errors="strict", max_num_fields=20))
        except ValueError:
            return Answer(400, "This address cannot be read.\n")
        if len(parts) < 3 or not hmac.compare_digest(parts[1].encode(), self.server.token.encode()):
            return Answer(
                403,
                "Open the whole address that `tilesight serve` printed, with its token and its last slash.\n",
            )
        return self.server.site.answer(parts[2:], query)

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        body = answer.html.encode("utf-8", "replace")
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            if name == "Content-Type" and not answer.html.startswith("<!DOCTYPE"):
                value = "text/plain; charset=utf-8"
            self.send_header(name, value)
        if answer.status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: an address has the token in it, and a log may be read by others."""
