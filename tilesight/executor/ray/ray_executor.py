"""The executor for a Ray cluster: tasks on any node lower and build, one actor for each device measures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...errors import InputError
from ...machine.placement import Placement
from ...problem.candidate import Candidate
from ...target.spec import Target
from .. import local
from ..jobs import Event, JobSource, Lane
from ..tasks import Answer
from .actors import DeviceActors
from .cluster import Cluster
from .job_stream import JobStream
from .ray_connection import RayConnection


class RayExecutor:
    """Runs jobs on the nodes of a cluster; a context manager.

    Construction connects and collects facts about the nodes; processes start with the first jobs. Every node
    needs the versions of TileSight and TileLang of this process, and no shared file system: Ray copies built
    libraries to the node that measures and to `cache_dir` on this machine.
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
        """Connect to a cluster.

        Args:
            address: `auto`, `local`, host:port or ray://host:port.
            target: What is built and measured for.
            cache_dir: Folder of this machine's kernel cache.
            measures: The cluster must have a device of the target.
            workers: Maximum number of lowerings and builds at once; by default one on each core of the
                cluster.
            message: Receives texts for the user about nodes that go or are left out.

        Raises:
            InputError: `address` is empty.
            ToolchainError: Ray is missing, the cluster does not answer, or no node can do the work.
        """
        if not address:
            raise InputError("cluster '' is no address; give auto, local, host:port or ray://host:port")
        self._cache_dir, self._workers = cache_dir, workers
        self._limits = local.time_limits()
        self._built: dict[str, Any] = {}
        self._connection = RayConnection(address, workers)
        self._cluster = Cluster(self._connection, target, measures, message)
        self._actors = DeviceActors(self._cluster)
        try:
            with self._connection.guarded():
                self._cluster.open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def placement(self) -> Placement:
        """The target, with the device that measures as the nodes' drivers report it."""
        device = self._cluster.common.device if self._cluster.measures else None
        return Placement(self._cluster.target, (device,) if device else ())

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of the nodes' software, in the form of `toolchain.software_versions`."""
        return self._cluster.common.software

    def start(self, *, measures: bool = False, wait: bool = False) -> None:
        """With `measures`, start the measuring actors before there are jobs for them. They are not waited
        for.
        """
        if measures:
            with self._connection.guarded():
                self._actors.update()

    def close(self) -> None:
        self._actors.close()
        self._built.clear()
        self._connection.close()

    def width(self, lane: Lane) -> int:
        """How many jobs of a lane run at once on the nodes of this moment."""
        if lane is Lane.DEVICE:
            return self._actors.wanted()
        cores = sum(node.cpus for node in self._actors.preparers())
        return cores if self._workers is None else min(cores, self._workers)

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())

    def stream(self, source: JobSource) -> Generator[Event]:
        return JobStream(
            self._cluster, self._actors, source, self._cache_dir, self._limits, self._workers, self._built
        ).events()
