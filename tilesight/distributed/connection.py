"""The connection to a Ray cluster: opened quietly, closed without a trace, its failures in our words."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import ToolchainError, headline
from ..settings import available_cores

CONNECT_S = 10.0
HEAD_PATIENCE_S = 30.0  # after 60 s Ray ends this process, with what it has open
OBJECT_STORE_BYTES = 256 << 20  # of a cluster that is started here: built libraries are small


class Connection:
    """`ray` is the package itself, connected. One that this process had already is used and left as it is."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        """`address`: host:port of a cluster that this machine is part of, `auto` for the one that runs here, ray://host:port
        from anywhere, or `local` to start one here, with `workers` cores. Raises `ToolchainError`."""
        try:
            import ray
        except ImportError as error:
            raise ToolchainError(f"cluster {address} needs Ray, which is not installed here: pip install ray") from error
        self.address = address
        self.ray: Any = ray
        self._silent_since: float | None = None
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect(workers)
        else:
            self._check_known()

    def close(self) -> None:
        if self._is_ours and self.ray.is_initialized():
            with suppress(Exception), _terminable():  # what has gone already need not be closed
                self.ray.shutdown()

    def has_head(self) -> bool:
        """Whether the cluster's head answers now. Raises `ToolchainError` where it has not for long."""
        if "://" in self.address:
            return True  # its proxy tells
        try:
            host, port = _parts(str(self.ray.get_runtime_context().gcs_address))
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError as error:
            self._silent_since = self._silent_since or time.monotonic()
            if time.monotonic() - self._silent_since > HEAD_PATIENCE_S:
                raise self._lost(error) from error
            return False
        self._silent_since = None
        return True

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the loss of the whole cluster into `ToolchainError`."""
        try:
            yield
        except Exception as error:
            if self._is_loss(error):
                raise self._lost(error) from error
            raise

    def _is_loss(self, error: Exception) -> bool:
        errors = self.ray.exceptions
        if isinstance(error, ConnectionError | errors.RaySystemError | errors.RpcError):
            return True
        return any(kind.__module__.partition(".")[0] == "grpc" for kind in type(error).__mro__)  # of a ray:// connection

    def _lost(self, error: Exception) -> ToolchainError:
        reason = headline(str(error))
        return ToolchainError(
            f"cluster {self.address}: its head is gone: {reason}; what was finished is recorded, and the same call goes on from there"
        )

    def _connect(self, workers: int | None) -> None:
        asked: dict[str, Any] = {"address": self.address, "log_to_driver": False, "logging_level": "critical"}
        if self.address == "local":
            asked |= {"num_cpus": workers or available_cores(), "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            asked["_system_config"] = {"worker_niceness": 0}  # 15 is for machines that somebody else uses
        _knock(self.address)
        try:
            with _terminable():
                self.ray.init(**asked)
        except Exception as error:  # Ray raises whatever it likes
            raise ToolchainError(f"cluster {self.address} cannot be reached: {_reason(error)}") from error
        self._silence()

    def _silence(self) -> None:
        """Without this Ray prints pages to our standard output for each process that dies; there is no setting for it."""
        worker: Any = getattr(getattr(self.ray, "_private", None), "worker", None)
        if hasattr(worker, "_worker_logs_enabled"):
            worker._worker_logs_enabled = False

    def _check_known(self) -> None:
        """The connection that this process had already must be the one that is asked for, as far as that can be seen."""
        known = str(self.ray.get_runtime_context().gcs_address)
        if ":" not in self.address or "://" in self.address:
            return
        (host, port), (known_host, known_port) = _parts(self.address), _parts(known)
        if port != known_port or host not in (known_host, "localhost", "127.0.0.1", "::1"):
            raise ToolchainError(f"cluster {self.address}: this process is connected to {known} already; call ray.shutdown() first")


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host.strip("[]"), port


def _reason(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "AuthenticationError":
            return "it asks for Ray's token; set RAY_AUTH_MODE=token where the token is (ray get-auth-token), or RAY_AUTH_TOKEN_PATH"
        seen = seen.__cause__ or seen.__context__
    return f"{type(error).__name__}: {headline(str(error))}"


def _knock(address: str) -> None:
    """Raises `ToolchainError` where nobody listens: Ray itself would try for many minutes, and print its tries."""
    if ":" not in address:
        return
    host, port = _parts(address)
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ToolchainError(
            f"cluster {address} cannot be reached: {error}; give auto, local, host:port or ray://host:port of a running cluster "
            "(ray start --head)"
        ) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Ray puts its own handler for SIGTERM in place of ours."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
