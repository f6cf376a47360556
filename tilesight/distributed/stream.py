"""One stream of jobs through a cluster: where each of them runs, and what is done when a process or a node dies under it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import Failure, FailureKind, ToolchainError, headline
from ..executor import event_of
from ..trial import BuildResult, Measurement
from ..work import Build, Built, Compare, Compared, Event, Job, Lane, Lower, Lowered, Measured, Source
from ..workers import Done, Raised, TimeLimit
from .cluster import PATIENCE_S, Cluster, Node
from .crew import Crew, Post
from .node import FETCH_S, LibraryGone, Unfit, prepare, send
from .parcels import Parcel, key_of, pack, stored_at, unpack

STRIKES = 2  # times that a job may lose the process or the node under it
TICK_S = 1.0  # the longest time without a look at the cluster
FROZEN_S = {Lane.PREPARE: 900.0, Lane.DEVICE: 3600.0}  # without an answer: a device may be in other hands for long


@dataclass(eq=False)
class Task:
    job: Job
    strikes: int = 0
    avoid: str = ""  # the node that it lost
    by_value: bool = False  # libraries are sent from here: where they were built they are gone


@dataclass(eq=False)
class Running:
    task: Task
    node: Node
    post: Post | None = None  # None: it lowers or builds
    parcel: Any = None  # reference to the built library
    since: float = field(default_factory=time.monotonic)

    @property
    def lane(self) -> Lane:
        return Lane.PREPARE if self.post is None else Lane.DEVICE


@dataclass
class Stream:
    cluster: Cluster
    crew: Crew
    source: Source
    cache_dir: Path
    limits: Mapping[type[Job], TimeLimit]
    workers: int | None  # most jobs that lower and build at once; None: one a core
    built: dict[str, Any]  # references to built libraries that no device has had yet, by key
    _running: dict[Any, Running] = field(default_factory=dict)
    _again: dict[Lane, deque[Task]] = field(default_factory=lambda: {lane: deque() for lane in Lane})
    _dry: set[Lane] = field(default_factory=set)  # lanes that had nothing since the last event
    _ready: deque[Event] = field(default_factory=deque)
    _stuck_since: float | None = None

    def events(self) -> Generator[Event]:
        lanes = list(Lane) if self.cluster.measures else [Lane.PREPARE]
        try:
            while True:
                with self.cluster.connection.guarded():
                    self.cluster.look()
                    self.crew.fill()
                    for lane in lanes:
                        self._fill(lane)
                    if not self._ready:
                        if not self._running and not any(self._again.values()) and self._dry.issuperset(lanes):
                            return
                        self._wait()
                while self._ready:
                    self._dry.clear()
                    yield self._ready.popleft()
        finally:
            self._abandon()

    # ---- where jobs run

    def _fill(self, lane: Lane) -> None:
        again = self._again[lane]
        while self._has_room(lane) and not self._ready:
            if again:
                task = again.popleft()
            elif lane in self._dry:
                return
            elif (job := self.source.next(lane)) is not None:
                task = Task(job)
            else:
                self._dry.add(lane)
                return
            if not self._submit(task):
                again.appendleft(task)
                return

    def _has_room(self, lane: Lane) -> bool:
        return bool(self._free_nodes()) if lane is Lane.PREPARE else self.crew.idle() is not None

    def _free_nodes(self) -> list[Node]:
        if self.workers is not None and sum(node.running for node in self.cluster.nodes.values()) >= self.workers:
            return []
        return [node for node in self.crew.preparers() if node.running < node.cpus]

    def _submit(self, task: Task) -> bool:
        """Give the task to a node; False where none has room for it now."""
        try:
            payload = send(task.job)
            sources = {key_of(artifact): self._source(artifact, task.by_value) for artifact in _artifacts(task.job)}
        except Exception as error:  # pickle raises whatever it likes, and a library may be gone
            self._ready.append(event_of(task.job, Raised(type(error).__name__, f"cannot be sent to a node: {error}", "", 0.0)))
            return True
        limit_s = self.limits[type(task.job)].seconds
        if isinstance(task.job, Lower | Build):
            return self._prepare(task, payload, limit_s)
        return self._measure(task, payload, sources, limit_s)

    def _prepare(self, task: Task, payload: bytes, limit_s: float) -> bool:
        able = self._free_nodes()
        if isinstance(task.job, Build) and self.cluster.measures:
            able = [node for node in able if not node.no_builds]
        if not able:
            return False
        node = min(able, key=lambda node: (node.id == task.avoid, node.running / node.cpus))
        options = {"num_cpus": 1, "num_returns": 2, "max_retries": 0, **self.cluster.placed(node)}
        answer, parcel = self.cluster.remote(prepare).options(**options).remote(payload, limit_s)
        self._running[answer] = Running(task, node, parcel=parcel)
        node.running += 1
        return True

    def _measure(self, task: Task, payload: bytes, sources: dict[str, Any], limit_s: float) -> bool:
        post = self.crew.idle()
        if post is None:
            return False
        answer = post.actor.measure.remote(payload, sources, limit_s, isinstance(task.job, Compare))
        self._running[answer] = Running(task, post.node, post)
        post.busy = True
        return True

    def _source(self, artifact: str, by_value: bool) -> Parcel | list[Any]:
        """Where a device's node gets a library from: the node that built it, else this machine's own cache."""
        reference = self.built.get(key_of(artifact))
        return pack(artifact) if by_value or reference is None else [reference]

    # ---- what came of them

    def _wait(self) -> None:
        """Until something happens, or it is time to look at the cluster again."""
        ray = self.cluster.connection.ray
        references = [*self._running, *self.crew.pending]
        if not references:
            time.sleep(TICK_S / 5)
        else:
            ready, _ = ray.wait(references, num_returns=1, timeout=TICK_S)
            if ready:
                ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
            for reference in ready:
                if reference in self.crew.pending:
                    self.crew.hear(reference)
                else:
                    self._take(reference)
        for reference in [r for r, run in self._running.items() if time.monotonic() - run.since > FROZEN_S[run.lane]]:
            run = self._released(reference)
            self._cancel(reference, run)
            self._lost(run, f"no answer for {FROZEN_S[run.lane]:g} s")
        self._check_progress()

    def _check_progress(self) -> None:
        """Where nothing can run, wait for nodes to come back, but not for ever."""
        if self._running or self._ready:
            self._stuck_since = None
            return
        self._stuck_since = self._stuck_since or time.monotonic()
        if time.monotonic() - self._stuck_since > PATIENCE_S:
            self.cluster.require()
            raise ToolchainError(
                f"cluster {self.cluster.connection.address}: nothing could be started for {PATIENCE_S:g} s, so other work seems to hold "
                f"its devices; it has: {self.cluster.text}"
            )

    def _released(self, reference: Any) -> Running:
        run = self._running.pop(reference)
        if run.post is not None:
            run.post.busy = False
        else:
            run.node.running -= 1
        return run

    def _take(self, reference: Any) -> None:
        run, errors = self._released(reference), self.cluster.connection.ray.exceptions
        try:
            reply = self.cluster.connection.ray.get(reference)
            if isinstance(reply, Unfit):
                self._set_aside(run, reply.reason)
            elif isinstance(reply, LibraryGone):
                run.task.by_value = True
                self._again[run.lane].append(run.task)
            else:
                if isinstance(reply, Done):
                    self.limits[type(run.task.job)].saw(reply.seconds)
                self._ready.append(self._fetched(event_of(run.task.job, reply), run))
        except errors.RayTaskError as error:  # our own code on the node
            self._set_aside(run, headline(str(getattr(error, "cause", None) or error)))
        except (errors.TaskUnschedulableError, errors.ActorUnschedulableError):  # it had gone before the job came
            self.cluster.bury(run.node)
            self._again[run.lane].append(run.task)
        except errors.RayError as error:
            if isinstance(error, errors.NodeDiedError):
                self.cluster.bury(run.node)
            self._lost(run, headline(str(error)))

    def _fetched(self, event: Event, run: Running) -> Event:
        """A build's library comes to this machine too: records name it, and nodes may go."""
        if isinstance(event, Measured):
            for artifact in _artifacts(event.job):
                self.built.pop(key_of(artifact), None)  # further nodes get it from here
        if not isinstance(event, Built) or event.result.artifact is None:
            return event
        key = key_of(event.result.artifact)
        with self._own_cache():
            path = stored_at(self.cache_dir, key)
        if path is None:
            parcel = self.cluster.connection.ray.get(run.parcel, timeout=FETCH_S)
            with self._own_cache():
                path = unpack(parcel, self.cache_dir)
        self.built[key] = run.parcel
        return replace(event, result=replace(event.result, artifact=path))

    @contextmanager
    def _own_cache(self) -> Iterator[None]:
        """Where this machine's cache cannot be used, no node is at fault."""
        try:
            yield
        except OSError as error:
            raise ToolchainError(
                f"kernel cache '{self.cache_dir}': {error}; set TILESIGHT_CACHE_DIR to a folder that can be written"
            ) from error

    def _set_aside(self, run: Running, reason: str) -> None:
        self.cluster.refuse(run.node, reason)
        self._again[run.lane].append(run.task)
        if not self.cluster.is_asking:
            self.cluster.require()

    def _lost(self, run: Running, reason: str) -> None:
        """The process or node under a job is gone, perhaps by its fault."""
        task = run.task
        task.strikes, task.avoid = task.strikes + 1, run.node.id
        if run.post is not None:
            self.crew.died(run.post)
        if task.strikes < STRIKES:
            self._again[run.lane].append(task)
        else:
            self._ready.append(_gave_up(task.job, f"{STRIKES} times the node or Ray's process under it was lost: {reason}"))

    def _abandon(self) -> None:
        for reference in list(self._running):
            self._cancel(reference, self._released(reference))

    def _cancel(self, reference: Any, run: Running) -> None:
        """End what runs: Ray's process, with which ours ends."""
        if run.post is not None:
            self.crew.dismiss(run.post)
            return
        with suppress(Exception):  # the cluster may be gone
            self.cluster.connection.ray.cancel(reference, force=True)


def _artifacts(job: Job) -> list[str]:
    builds = [build for _, build in job.finalists] if isinstance(job, Compare) else [] if isinstance(job, Lower | Build) else [job.build]
    return [build.artifact for build in builds if build.artifact is not None]


def _gave_up(job: Job, message: str) -> Event:
    if isinstance(job, Lower):
        return Lowered(job, Failure(FailureKind.LOWER_CRASH, message))
    if isinstance(job, Build):
        return Built(job, BuildResult(None, Failure(FailureKind.BUILD_CRASH, message)))
    failure = Failure(FailureKind.RUN_CRASH, message)
    return Compared(job, failure) if isinstance(job, Compare) else Measured(job, Measurement(failure=failure))
