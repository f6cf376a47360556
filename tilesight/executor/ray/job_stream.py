"""One stream of jobs through a cluster: assigns jobs to nodes, retries jobs whose process or node dies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import Failure, FailureKind, ToolchainError, headline
from ...records.trial import BuildResult, Measurement
from ...workers import Done, Raised, TimeLimit
from ..jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Job,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
)
from ..local import event_of
from .actors import DeviceActor, DeviceActors
from .artifacts import Artifact, key_of, pack, stored_at, unpack
from .cluster import NODES_TIMEOUT_S, Cluster, Node
from .node_tasks import FETCH_TIMEOUT_S, LibraryGone, NodeUnfit, pack_job, prepare

MAX_LOSSES = 2  # of the process or node under a job, after which the candidate has failed
TICK_S = 1.0  # the longest time between two refreshes of the cluster
# without an answer a job counts as lost; a device may be in use by other processes for long
ANSWER_TIMEOUT_S = {Lane.PREPARE: 900.0, Lane.DEVICE: 3600.0}


@dataclass(eq=False)
class RemoteJob:
    """A job with its history on the cluster."""

    job: Job
    losses: int = 0
    avoid: str = ""  # id of the node that was lost under it
    by_value: bool = False  # send libraries from this machine: the nodes that built them have lost them


@dataclass(eq=False)
class RunningJob:
    """A job in progress.

    `actor` is None for lowering and building; `artifact` is Ray's reference to what it builds.
    """

    remote: RemoteJob
    node: Node
    actor: DeviceActor | None = None
    artifact: Any = None
    began: float = field(default_factory=time.monotonic)

    @property
    def lane(self) -> Lane:
        return Lane.PREPARE if self.actor is None else Lane.DEVICE


@dataclass
class JobStream:
    """Runs the jobs of one source.

    `workers` limits the lowerings and builds in progress; None: one on each core. `built` has Ray's
    references to built artifacts that no device has received yet, by key.
    """

    cluster: Cluster
    actors: DeviceActors
    source: JobSource
    cache_dir: Path
    limits: Mapping[type[Job], TimeLimit]
    workers: int | None
    built: dict[str, Any]
    _running: dict[Any, RunningJob] = field(default_factory=dict)  # by Ray's reference to the reply
    _retries: dict[Lane, deque[RemoteJob]] = field(default_factory=lambda: {lane: deque() for lane in Lane})
    _exhausted: set[Lane] = field(
        default_factory=set
    )  # lanes for which the source had no job since the last event
    _events: deque[Event] = field(default_factory=deque)
    _idle_since: float | None = None

    def events(self) -> Generator[Event]:
        """Run jobs until the source has none left. Leaving early cancels the jobs in progress."""
        lanes = list(Lane) if self.cluster.measures else [Lane.PREPARE]
        try:
            while True:
                with self.cluster.connection.guarded():
                    self.cluster.refresh()
                    self.actors.update()
                    for lane in lanes:
                        self._fill(lane)
                    if not self._events:
                        pending = self._running or any(self._retries.values())
                        if not pending and self._exhausted.issuperset(lanes):
                            return
                        self._wait()
                while self._events:
                    self._exhausted.clear()
                    yield self._events.popleft()
        finally:
            for reference in list(self._running):
                self._cancel(reference, self._released(reference))

    # ---- assigning jobs

    def _fill(self, lane: Lane) -> None:
        """Start jobs of a lane while it has room."""
        retries = self._retries[lane]
        while self._has_room(lane) and not self._events:
            if retries:
                remote = retries.popleft()
            elif lane in self._exhausted:
                return
            elif (job := self.source.next(lane)) is not None:
                remote = RemoteJob(job)
            else:
                self._exhausted.add(lane)
                return
            if not self._submit(remote):
                retries.appendleft(remote)
                return

    def _has_room(self, lane: Lane) -> bool:
        return bool(self._free_nodes()) if lane is Lane.PREPARE else self.actors.idle() is not None

    def _free_nodes(self) -> list[Node]:
        running = sum(node.running for node in self.cluster.nodes.values())
        if self.workers is not None and running >= self.workers:
            return []
        return [node for node in self.actors.preparers() if node.running < node.cpus]

    def _submit(self, remote: RemoteJob) -> bool:
        """Start the job on a node. Returns False if no node has room for it now."""
        job = remote.job
        try:
            payload = pack_job(job)
            sources = {key_of(library): self._source(library, remote.by_value) for library in _libraries(job)}
        except Exception as error:  # of any type from pickling, or the library is gone
            raised = Raised(type(error).__name__, f"cannot be sent to a node: {error}", "", 0.0)
            self._events.append(event_of(job, raised))
            return True
        limit_s = self.limits[type(job)].seconds
        if isinstance(job, LowerJob | BuildJob):
            return self._prepare(remote, payload, limit_s)
        return self._measure(remote, payload, sources, limit_s)

    def _prepare(self, remote: RemoteJob, payload: bytes, limit_s: float) -> bool:
        able = self._free_nodes()
        if isinstance(remote.job, BuildJob) and self.cluster.measures:
            able = [node for node in able if not node.no_builds]
        if not able:
            return False
        node = min(able, key=lambda node: (node.id == remote.avoid, node.running / node.cpus))
        options = {"num_cpus": 1, "num_returns": 2, "max_retries": 0, **self.cluster.pinned_to(node)}
        reply, artifact = self.cluster.remote(prepare).options(**options).remote(payload, limit_s)
        self._running[reply] = RunningJob(remote, node, artifact=artifact)
        node.running += 1
        return True

    def _measure(self, remote: RemoteJob, payload: bytes, sources: dict[str, Any], limit_s: float) -> bool:
        actor = self.actors.idle()
        if actor is None:
            return False
        fresh = isinstance(remote.job, CompareJob)
        reply = actor.handle.measure.remote(payload, sources, limit_s, fresh)
        self._running[reply] = RunningJob(remote, actor.node, actor)
        actor.busy = True
        return True

    def _source(self, library: str, by_value: bool) -> Artifact | list[Any]:
        """The source of a library for a device: the node that built it, else this machine's cache."""
        reference = self.built.get(key_of(library))
        return pack(library) if by_value or reference is None else [reference]

    # ---- replies and losses

    def _wait(self) -> None:
        """Wait for replies, at most until the next refresh is due, and handle them."""
        ray = self.cluster.connection.ray
        references = [*self._running, *self.actors.pending]
        if not references:
            time.sleep(TICK_S / 5)
        else:
            ready, _ = ray.wait(references, num_returns=1, timeout=TICK_S)
            if ready:
                ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
            for reference in ready:
                if reference in self.actors.pending:
                    self.actors.receive_device(reference)
                else:
                    self._handle_reply(reference)
        now = time.monotonic()
        overdue = [r for r, run in self._running.items() if now - run.began > ANSWER_TIMEOUT_S[run.lane]]
        for reference in overdue:
            run = self._released(reference)
            self._cancel(reference, run)
            self._handle_loss(run, f"no answer for {ANSWER_TIMEOUT_S[run.lane]:g} s")
        self._check_progress()

    def _check_progress(self) -> None:
        """Raise `ToolchainError` if no job could run for a minute: nodes get that long to come back."""
        if self._running or self._events:
            self._idle_since = None
            return
        self._idle_since = self._idle_since or time.monotonic()
        if time.monotonic() - self._idle_since > NODES_TIMEOUT_S:
            self.cluster.require()
            raise ToolchainError(
                f"cluster {self.cluster.connection.address}: "
                f"nothing could be started for {NODES_TIMEOUT_S:g} s, so other work seems to hold "
                f"its devices; it has: {self.cluster.text}"
            )

    def _released(self, reference: Any) -> RunningJob:
        """A job that is no longer running; its actor or core is free."""
        run = self._running.pop(reference)
        if run.actor is not None:
            run.actor.busy = False
        else:
            run.node.running -= 1
        return run

    def _handle_reply(self, reference: Any) -> None:
        run, errors = self._released(reference), self.cluster.connection.ray.exceptions
        job = run.remote.job
        try:
            reply = self.cluster.connection.ray.get(reference)
            if isinstance(reply, NodeUnfit):
                self._refuse_node(run, reply.reason)
            elif isinstance(reply, LibraryGone):
                run.remote.by_value = True
                self._retries[run.lane].append(run.remote)
            else:
                if isinstance(reply, Done):
                    self.limits[type(job)].record(reply.seconds)
                self._events.append(self._with_library(event_of(job, reply), run))
        except errors.RayTaskError as error:  # raised by TileSight on the node
            self._refuse_node(run, headline(str(getattr(error, "cause", None) or error)))
        except (
            errors.TaskUnschedulableError,
            errors.ActorUnschedulableError,
        ):  # the node went before the job arrived
            self.cluster.remove(run.node)
            self._retries[run.lane].append(run.remote)
        except errors.RayError as error:
            if isinstance(error, errors.NodeDiedError):
                self.cluster.remove(run.node)
            self._handle_loss(run, headline(str(error)))

    def _with_library(self, event: Event, run: RunningJob) -> Event:
        """The event, after copying a built library into this machine's cache: nodes may go."""
        if isinstance(event, MeasureDone):
            for library in _libraries(event.job):
                self.built.pop(key_of(library), None)  # other nodes fetch it from this machine
        if not isinstance(event, BuildDone) or event.result.artifact is None:
            return event
        key = key_of(event.result.artifact)
        with self._local_cache():
            path = stored_at(self.cache_dir, key)
        if path is None:
            artifact = self.cluster.connection.ray.get(run.artifact, timeout=FETCH_TIMEOUT_S)
            with self._local_cache():
                path = unpack(artifact, self.cache_dir)
        self.built[key] = run.artifact
        return replace(event, result=replace(event.result, artifact=path))

    @contextmanager
    def _local_cache(self) -> Iterator[None]:
        """Turn an unusable kernel cache of this machine into `ToolchainError`."""
        try:
            yield
        except OSError as error:
            raise ToolchainError(
                f"kernel cache '{self.cache_dir}': {error}; "
                "set TILESIGHT_CACHE_DIR to a folder that can be written"
            ) from error

    def _refuse_node(self, run: RunningJob, reason: str) -> None:
        """Give the job to another node, and the node no more jobs."""
        self.cluster.refuse(run.node, reason)
        self._retries[run.lane].append(run.remote)
        if not self.cluster.awaits_facts:
            self.cluster.require()

    def _handle_loss(self, run: RunningJob, reason: str) -> None:
        """Retry a job whose process or node is gone.

        The job may have caused that: the second time it has failed.
        """
        remote = run.remote
        remote.losses, remote.avoid = remote.losses + 1, run.node.id
        if run.actor is not None:
            self.actors.handle_death(run.actor)
        if remote.losses < MAX_LOSSES:
            self._retries[run.lane].append(remote)
        else:
            message = f"{MAX_LOSSES} times the node or Ray's process under it was lost: {reason}"
            self._events.append(_lost_event(remote.job, message))

    def _cancel(self, reference: Any, run: RunningJob) -> None:
        """End a job in progress: Ray's process, and with it the worker process."""
        if run.actor is not None:
            self.actors.stop(run.actor)
            return
        with suppress(Exception):  # the cluster may be gone
            self.cluster.connection.ray.cancel(reference, force=True)


def _libraries(job: Job) -> list[str]:
    """Paths of the built libraries that a job runs."""
    builds: list[BuildResult] = []
    if isinstance(job, CompareJob):
        builds = [build for _, build in job.finalists]
    elif not isinstance(job, LowerJob | BuildJob):
        builds = [job.build]
    return [build.artifact for build in builds if build.artifact is not None]


def _lost_event(job: Job, message: str) -> Event:
    if isinstance(job, LowerJob):
        return LowerDone(job, Failure(FailureKind.LOWER_CRASH, message))
    if isinstance(job, BuildJob):
        return BuildDone(job, BuildResult(None, Failure(FailureKind.BUILD_CRASH, message)))
    failure = Failure(FailureKind.RUN_CRASH, message)
    if isinstance(job, CompareJob):
        return CompareDone(job, failure)
    return MeasureDone(job, Measurement(failure=failure))
