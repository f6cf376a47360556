"""An executor of a Ray cluster: builds are tasks on any node, each device has an actor that measures on it alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .. import executor as local
from ..candidate import Candidate
from ..errors import InputError
from ..jobs import Answer
from ..target import Target
from ..where import Where
from ..work import Event, Lane, Source
from .cluster import Cluster
from .connection import Connection
from .crew import Crew
from .stream import Stream


class RayExecutor:
    """A context manager. The cluster is reached and its nodes are looked at on construction; processes start with the work.

    Every node needs this TileSight and this TileLang. Nothing else is shared: built libraries travel through Ray into the
    kernel cache of the node that measures and into `cache_dir` here.
    """

    def __init__(
        self,
        address: str,
        target: Target,
        cache_dir: Path,
        *,
        measures: bool = True,
        workers: int | None = None,
        message: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """`address`: `auto`, `local`, host:port or ray://host:port. `measures`: the cluster must have a device of the
        target. `workers`: most lowerings and builds at once; None: one a core of the cluster. `message` is told of nodes
        that go or are left out.

        Raises `ToolchainError` where Ray is missing, the cluster does not answer, or none of its nodes can do the work.
        """
        if not address:
            raise InputError("cluster '' is no address; give auto, local, host:port or ray://host:port")
        self._cache_dir, self._workers = cache_dir, workers
        self._limits = local.time_limits()
        self._built: dict[str, Any] = {}
        self._connection = Connection(address, workers)
        self._cluster = Cluster(self._connection, target, measures, message)
        self._crew = Crew(self._cluster)
        try:
            with self._connection.guarded():
                self._cluster.open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def where(self) -> Where:
        """The target with the device that measures, as the nodes' drivers report it."""
        device = self._cluster.standard.device if self._cluster.measures else None
        return Where(self._cluster.target, (device,) if device else ())

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of what the results depend on, as `toolchain.software_versions` has them, but of the nodes."""
        return self._cluster.standard.software

    def start(self, *, measures: bool = False) -> None:
        """Start the measuring actors, so that they are ready when there is work."""
        if measures:
            with self._connection.guarded():
                self._crew.fill()

    def close(self) -> None:
        self._crew.close()
        self._built.clear()
        self._connection.close()

    def width(self, lane: Lane) -> int:
        """As the cluster is now: nodes come and go."""
        if lane is Lane.DEVICE:
            return self._crew.wanted()
        cores = sum(node.cpus for node in self._crew.preparers())
        return cores if self._workers is None else min(cores, self._workers)

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())

    def stream(self, source: Source) -> Generator[Event]:
        return Stream(self._cluster, self._crew, source, self._cache_dir, self._limits, self._workers, self._built).events()
