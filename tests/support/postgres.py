"""A PostgreSQL server of the tests' own: started on first use, reached through a socket in its folder, gone
with the tests.

The server runs under a guard, which is this file run as a program. The guard waits for the end of its
standard input, so that the server ends and its folder goes even where the tests are killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

ADMIN, USER, PASSWORD = "admin", "tilesight", "never-to-be-shown"  # a superuser, and an ordinary role
INSTALL = (
    "no PostgreSQL server on this machine: apt-get install postgresql "
    "(initdb and postgres are looked for on PATH and in /usr/lib/postgresql)"
)
DRIVER = "PostgreSQL's driver is not installed: pip install 'psycopg[binary]'"
START_SECONDS = 60.0
_PORT = 5432  # a part of the socket's name; the server does not listen on the network
_SETTINGS = {
    "listen_addresses": "",
    # a crash of the server must lose nothing; a crash of the machine may
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "deadlock_timeout": "100ms",
}


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`: the one on PATH, else Debian's latest."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    numbered = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    folders += sorted(numbered, key=lambda path: -int(path.parent.name))
    return next(
        (folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()),
        None,
    )


def missing() -> str | None:
    """What must be installed to run a server; None if nothing is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return DRIVER
    return None if programs() else INSTALL


class Server:
    """A cluster in a folder of its own under the system's temporary one, which the server's user can
    reach."""

    def __init__(self) -> None:
        bin_folder = programs()
        assert bin_folder is not None, INSTALL
        self._programs = bin_folder
        self._guard: subprocess.Popen[str] | None = None
        self._count = 0
        self.folder = Path(tempfile.mkdtemp(prefix="tilesight-pg-"))
        self.data = self.folder / "data"
        self._account = _account()
        if self._account:
            shutil.chown(self.folder, self._account)
        try:
            self._initialise()
            self.start()
            self.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _initialise(self) -> None:
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        options = [
            "-U",
            ADMIN,
            "--auth=password",
            f"--pwfile={self.folder / 'password'}",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        made = subprocess.run(
            [self._programs / "initdb", "-D", self.data, *options],
            capture_output=True,
            text=True,
            cwd=self.folder,
            **_as(self._account),
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._guard = subprocess.Popen(
            [
                sys.executable,
                "-I",
                __file__,
                str(self._programs / "postgres"),
                str(self.folder),
                str(os.getpid()),
                self._account or "",
            ],
            stdin=subprocess.PIPE,
            cwd=self.folder,
            start_new_session=True,  # Ctrl-C is for the tests; the guard ends the server once they are gone
            text=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self.log()}")
            time.sleep(0.02)

    def stop(self, how: str = "fast") -> None:
        """Stop the server: `fast` ends its sessions, `crash` kills it in the middle of what it does. Its data
        stay."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(how)
            self._guard.stdin.close()
        self._guard.wait(timeout=START_SECONDS)
        self._guard = None

    def remove(self) -> None:
        if self._guard is not None:
            self.stop("crash")
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-2000:]
        return ""

    @property
    def socket(self) -> Path:
        return self.folder / f".s.PGSQL.{_PORT}"

    def url(self, database: str, user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@/{database}?host={quote(str(self.folder), safe='')}"

    def connect(self, database: str = "postgres") -> Any:
        """A psycopg connection that commits each statement, of the server's superuser."""
        import psycopg

        return psycopg.connect(
            host=str(self.folder), dbname=database, user=ADMIN, password=PASSWORD, autocommit=True
        )

    def execute(self, *statements: str, database: str = "postgres") -> None:
        with self.connect(database) as connection:
            for statement in statements:
                connection.execute(statement)

    def create(self, template: str = "template0", options: str = "") -> str:
        """A database of the ordinary role, made by copying `template`; its name."""
        self._count += 1
        name = f"test{self._count}"
        with self.connect() as connection:
            # the other strategy, and the default, writes a log of the copy, and is slower
            strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""
            connection.execute(
                f"CREATE DATABASE {name} OWNER {USER} TEMPLATE {template} {strategy} {options}"
            )
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def empty(self, name: str, tables: Sequence[object]) -> None:
        """End whatever is connected to a database, and delete the rows of `tables`, those first that others
        refer to. A database of its own for each test would take ten times as long."""
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        self.execute("; ".join(f"DELETE FROM {table}" for table in reversed(tables)), database=name)

    @contextlib.contextmanager
    def database(self, template: str = "template0", options: str = "") -> Iterator[str]:
        """The name of a database that lasts as long as the block."""
        name = self.create(template, options)
        try:
            yield name
        finally:
            self.drop(name)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


def _account() -> str | None:
    """The user of the server if this process runs as root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError(
        "PostgreSQL does not run as root, and there is no other user to run it: useradd --system postgres"
    )


def _as(account: str | None) -> dict[str, Any]:
    if not account:
        return {}
    return {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}


def _guard(postgres: str, folder: str, tests: int, account: str) -> None:
    """Run the server until standard input ends or the tests are gone. A word on it says that the server alone
    is to end."""
    command = [postgres, "-D", f"{folder}/data", "-k", folder, "-p", str(_PORT)]
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    with open(f"{folder}/log", "ab") as log:
        server = subprocess.Popen(
            command + settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            **_as(account),
        )
    how = None
    while how is None and server.poll() is None:
        # the pipe may be held open by a forked child of the tests: look for their process too
        if select.select([sys.stdin], [], [], 1.0)[0]:
            how = sys.stdin.read()
        elif os.getppid() != tests:
            how = ""
    server.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()  # its processes notice, and end
        server.wait()
    if not how:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
