"""The tests' own PostgreSQL server ends with the tests, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.postgres import missing

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import sys
from tests.support.postgres import Server
server = Server()
print(server.folder, (server.data / "postmaster.pid").read_text().split()[0], flush=True)
sys.stdin.read()
server.remove()
"""


@pytest.mark.parametrize("how", [None, signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_the_tests(how: signal.Signals | None) -> None:
    if reason := missing():
        pytest.skip(reason)
    with subprocess.Popen(
        [sys.executable, "-c", CODE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdin is not None
        assert tests.stdout is not None
        folder, pid = tests.stdout.readline().split()
        assert is_running(int(pid))
        if how is not None:
            tests.send_signal(how)
        tests.stdin.close()
    deadline = time.monotonic() + 60
    while (Path(folder).exists() or is_running(int(pid))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not is_running(int(pid))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
