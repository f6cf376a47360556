"""The server of HTTP: whom it answers, what it refuses, and that it only reads."""

from __future__ import annotations

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.server.conftest import Served
from tilesight.errors import InputError
from tilesight.server.listener import HOST, Listener
from tilesight.server.site import Site
from tilesight.server.source import ServedData


def test_it_listens_on_this_machine_alone(full: Served) -> None:
    assert full.listener.server_address[0] == HOST
    assert full.listener.address == f"http://{HOST}:{full.listener.server_port}/{full.listener.token}/"


def test_without_the_token_nothing_is_shown(full: Served) -> None:
    for token in ("", "x", full.listener.token[:-1], full.listener.token.lower() + "x", "é"):
        status, text, _ = full.ask("tables", token=token if token.isascii() else "%C3%A9")
        assert status == 403
        assert "Open the whole address" in text
    assert full.ask("tables")[0] == 200


def test_each_server_has_another_token() -> None:
    tokens = set()
    for _ in range(3):
        with Listener(Site(ServedData("none", lambda: None))) as listener:
            tokens.add(listener.token)
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", HOST, "localhost", "[::1]:{port}", ""]
)
def test_another_host_is_refused(full: Served, host: str) -> None:
    status, text, _ = full.ask(host=host.format(port=full.listener.server_port))
    assert status == 421
    assert text == f"This server answers to {HOST}:{full.listener.server_port} alone.\n"


def test_localhost_with_the_port_is_answered(full: Served) -> None:
    assert full.ask(host=f"localhost:{full.listener.server_port}")[0] == 200


def test_a_request_without_a_host_or_with_two_is_refused(full: Served) -> None:
    own = f"{HOST}:{full.listener.server_port}"
    for hosts in ("", f"Host: {own}\r\nHost: evil.example\r\n"):
        with socket.create_connection((HOST, full.listener.server_port), timeout=30) as connection:
            connection.sendall(f"GET /{full.listener.token}/ HTTP/1.1\r\n{hosts}\r\n".encode())
            assert b" 421 " in connection.makefile("rb").readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "ODD"])
def test_other_methods_are_refused(full: Served, method: str) -> None:
    status, text, answer = full.ask(method=method)
    assert (status, answer.getheader("Allow")) == (405, "GET, HEAD")
    assert text == "Only GET and HEAD: nothing can be changed here.\n"


def test_head_has_the_headers_alone(full: Served) -> None:
    status, text, answer = full.ask(method="HEAD")
    assert (status, text) == (200, "")
    assert int(answer.getheader("Content-Length") or 0) > 1000


def test_headers_keep_pages_to_themselves(full: Served) -> None:
    for path in ("", f"session/{full.sessions[0]}", "nothing"):
        _, _, answer = full.ask(path)
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("Referrer-Policy") == "no-referrer"  # the address has the token
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert "frame-ancestors 'none'" in (answer.getheader("Content-Security-Policy") or "")
        assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
        assert answer.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("path", ["%ff", "?a=%ff", "?" + "a=1&" * 30, "?a=" + "x" * 5000])
def test_an_address_that_cannot_be_read_is_refused(full: Served, path: str) -> None:
    assert full.ask(path)[:2] == (400, "This address cannot be read.\n")


def test_several_ask_at_once(full: Served) -> None:
    paths = ["", "records", f"session/{full.sessions[0]}", "tables", "dispatch", "kernel/matmul"] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(full.ask, paths))
    assert {status for status, _, _ in answers} == {200}
    for path, (_, text, _) in zip(paths, answers, strict=True):
        assert text == answers[paths.index(path)][1]


def test_nothing_is_written(full: Served) -> None:
    folder = Path(full.url.removeprefix("sqlite:///")).parent

    def state() -> dict[str, str]:
        files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith("-shm")]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    before = state()
    for path in (
        "",
        "records",
        f"session/{full.sessions[0]}",
        "tables",
        "table/best",
        "dispatch/matmul.json",
    ):
        assert full.ask(path)[0] == 200
    assert state() == before


def test_a_port_in_use_is_one_clear_line(full: Served) -> None:
    port = full.listener.server_port
    with pytest.raises(InputError) as refused:
        Listener(Site(ServedData("none", lambda: None)), port)
    assert str(refused.value) == (
        f"port {port} of {HOST} is in use; name another with --port, or leave it out for a free one"
    )
