"""The connection to a Ray cluster.

Its failures are raised as `ToolchainError`; Ray's own output is suppressed.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import ToolchainError, headline
from ...extras import missing_extra
from ...settings import available_cores

CONNECT_S = 10.0
HEAD_TIMEOUT_S = 30.0
OBJECT_STORE_BYTES = 256 << 20  # of a local cluster: built libraries are small


class RayConnection:
    """A connected Ray.

    `ray` is the package itself. A connection that the process already has is used and left open.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        """Connect.

        Args:
            address: host:port of a cluster that includes this machine, `auto` for the cluster that runs on
                this machine, ray://host:port from any machine, or `local` to start a cluster on this machine.
            workers: Cores of a cluster that is started; by default all.

        Raises:
            ToolchainError: Ray is not installed, or the cluster cannot be reached.
        """
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", f"cluster {address}") from error
        self.address = address
        self.ray: Any = ray
        self._unreachable_since: float | None = None
        self._owns = not ray.is_initialized()
        if self._owns:
            self._connect(workers)
        else:
            self._check_address()

    def close(self) -> None:
        if self._owns and self.ray.is_initialized():
            with suppress(Exception), _keep_sigterm_handler():  # the cluster may be gone
                self.ray.shutdown()

    def node_rows(self) -> list[dict[str, Any]] | None:
        """Ray's rows of all nodes; None if the cluster's head does not answer now.

        Without an answer in `HEAD_TIMEOUT_S` it raises `ToolchainError`, or an error of Ray that `guarded`
        turns into one.
        """
        if "://" in self.address:
            rows: list[dict[str, Any]] = self.ray.nodes()
            return rows  # errors of the proxy show a loss
        return self._requested_rows() if self._has_head() else None

    def _has_head(self) -> bool:
        try:
            host, port = _parts(str(self.ray.get_runtime_context().gcs_address))
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError as error:
            self._unreachable_since = self._unreachable_since or time.monotonic()
            if time.monotonic() - self._unreachable_since > HEAD_TIMEOUT_S:
                raise self._lost(error) from error
            return False
        self._unreachable_since = None
        return True

    def _requested_rows(self) -> list[dict[str, Any]]:
        """What `ray.nodes()` lists of each node, requested with a limit of time, which that function lacks.

        A request without one that waits for a dead head makes Ray end this process after a minute.
        """
        client = self.ray._private.worker.global_worker.gcs_client
        return [
            {
                "NodeID": node.node_id.hex(),
                "Alive": node.state == node.GcsNodeState.ALIVE,
                "NodeManagerHostname": node.node_manager_hostname,
                "Resources": dict(node.resources_total),
            }
            for node in client.get_all_node_info(timeout=HEAD_TIMEOUT_S).values()
        ]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a loss of the connection into `ToolchainError`."""
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
        return any(
            kind.__module__.partition(".")[0] == "grpc" for kind in type(error).__mro__
        )  # ray:// connections

    def _lost(self, error: Exception) -> ToolchainError:
        reason = headline(str(error))
        return ToolchainError(
            f"cluster {self.address}: its head is gone: {reason}; "
            "what was finished is recorded, and the same call goes on from there"
        )

    def _connect(self, workers: int | None) -> None:
        options: dict[str, Any] = {
            "address": self.address,
            "log_to_driver": False,
            "logging_level": "critical",
        }
        if self.address == "local":
            options |= {
                "num_cpus": workers or available_cores(),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
            options["_system_config"] = {
                "worker_niceness": 0
            }  # the default, 15, is meant for shared machines
        _check_reachable(self.address)
        try:
            with _keep_sigterm_handler():
                self.ray.init(**options)
        except Exception as error:  # Ray raises many types of errors
            raise ToolchainError(f"cluster {self.address} cannot be reached: {_reason(error)}") from error
        self._silence()

    def _silence(self) -> None:
        """Suppress Ray's reports of dead processes on standard output, for which Ray has no setting."""
        worker: Any = getattr(getattr(self.ray, "_private", None), "worker", None)
        if hasattr(worker, "_worker_logs_enabled"):
            worker._worker_logs_enabled = False

    def _check_address(self) -> None:
        """Raise `ToolchainError` if this process is already connected to another cluster."""
        known = str(self.ray.get_runtime_context().gcs_address)
        if ":" not in self.address or "://" in self.address:
            return
        (host, port), (known_host, known_port) = _parts(self.address), _parts(known)
        if port != known_port or host not in (known_host, "localhost", "127.0.0.1", "::1"):
            raise ToolchainError(
                f"cluster {self.address}: this process is connected to {known} already; "
                "call ray.shutdown() first"
            )


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host.strip("[]"), port


def _reason(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "AuthenticationError":
            return (
                "it asks for Ray's token; set RAY_AUTH_MODE=token where the token is (ray get-auth-token), "
                "or RAY_AUTH_TOKEN_PATH"
            )
        seen = seen.__cause__ or seen.__context__
    return f"{type(error).__name__}: {headline(str(error))}"


def _check_reachable(address: str) -> None:
    """Raise `ToolchainError` if no process listens there; Ray itself would retry for minutes, noisily."""
    if ":" not in address:
        return
    host, port = _parts(address)
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ToolchainError(
            f"cluster {address} cannot be reached: {error}; "
            "give auto, local, host:port or ray://host:port of a running cluster (ray start --head)"
        ) from error


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
