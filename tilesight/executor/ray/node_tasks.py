"""Runs on the nodes of a cluster: a task that lowers and builds, and an actor that measures on one device.

Ray's processes only wait: each job runs in one of TileSight's worker processes below them. A worker can be
killed, whereas Ray neither ends a hanging task nor cleans up after a crash.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from ...errors import ToolchainError, headline
from ...machine.device_lock import alone_on
from ...machine.devices import Device, cpu_device, find_devices, is_of, restricted_to, visible
from ...records.trial import BuildResult
from ...settings import load_settings
from ...target.spec import Target
from ...workers import Done, Outcome, Raised, WorkerPool, wait_for
from .. import tasks
from ..jobs import BuildJob, CompareJob, Job, LowerJob, MeasureJob
from ..local import is_cache_failure
from .artifacts import Artifact, key_of, pack, stored_at, unpack

FETCH_TIMEOUT_S = 120.0  # for a built library to arrive from another node


@dataclass(frozen=True, slots=True)
class NodeUnfit:
    """Reply: the node cannot do the job. The candidate is not at fault."""

    reason: str


@dataclass(frozen=True, slots=True)
class LibraryGone:
    """Reply: a library did not arrive from the node that built it, and must be sent again."""


Reply = Outcome[Any] | NodeUnfit | LibraryGone


def pack_job(job: Job) -> bytes:
    """A job as bytes; definitions of the running script are included by value.

    Raises any error of pickling.
    """
    import cloudpickle

    # compression also hides the name `__main__`, which would make a worker import the script of Ray's own
    # process
    return zlib.compress(cloudpickle.dumps(job), 1)


def unpack_job(payload: bytes) -> Any:
    return pickle.loads(zlib.decompress(payload))


# ---- lowering and building: tasks, whose processes Ray reuses


@cache
def _compiler_pool() -> WorkerPool:
    return WorkerPool(
        1,
        timeout_s=1.0,
        preload=tasks.preload_compiler,
        initializer=tasks.start_compiler,
        environment=tasks.COMPILER_ENVIRONMENT,
    )


def prepare(payload: bytes, limit_s: float) -> tuple[Reply, Artifact | None]:
    """Lower or build. Returns the reply and the built library, if there is one."""
    reply = _run_in(_compiler_pool(), _prepare, payload, limit_s)
    if not isinstance(reply, Done) or not isinstance(reply.value, BuildResult):
        return reply, None
    result = reply.value
    if result.failure is not None:
        return (NodeUnfit(result.failure.message) if is_cache_failure(result.failure) else reply), None
    assert result.artifact is not None
    try:
        return reply, pack(result.artifact)
    except OSError as error:
        return NodeUnfit(f"what was built there cannot be read: {error}"), None


def _prepare(payload: bytes) -> Any:
    job: LowerJob | BuildJob = unpack_job(payload)
    if isinstance(job, LowerJob):
        return tasks.lower_and_profile(job.candidate)
    return tasks.build(job.candidate, load_settings().cache_dir, runnable=job.runnable)


# ---- measuring: an actor for each device


class Measurer:
    """An actor that owns one device of its node: the processor, or the GPU that Ray has assigned to it."""

    def __init__(self, target: Target) -> None:
        # Ray limits its processes to one thread and a low priority, for tasks that share the machine
        os.environ.pop("OMP_NUM_THREADS", None)
        with suppress(OSError):  # only privileged users may raise the priority
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._device = _own_device(target)
        if self._device is not None:
            self._pool = WorkerPool(
                1,
                timeout_s=1.0,
                preload=tasks.preload_device,
                initializer=tasks.start_device,
                environments=[restricted_to(self._device)],
                # processes outside Ray may use the GPU too
                gate=partial(alone_on, self._device.uuid) if target.is_gpu else None,
            )
            self._pool.start()

    def device(self) -> Device | None:
        """The actor's device; None if it is not one of the target's."""
        return self._device

    def measure(self, payload: bytes, sources: Mapping[str, Any], limit_s: float, fresh: bool) -> Reply:
        """Check and time kernels.

        Args:
            payload: A packed `MeasureJob` or `CompareJob`.
            sources: By key, the source of each library that this node may lack: an `Artifact`, or a list with
                Ray's reference to one, which is fetched only if the library is missing.
            limit_s: Time limit.
            fresh: Run in a new process.
        """
        import ray

        cache_dir = load_settings().cache_dir
        try:
            paths = {
                key: stored_at(cache_dir, key) or unpack(_fetch(source), cache_dir)
                for key, source in sources.items()
            }
        except ray.exceptions.RayError:  # first: Ray's timeout is an OSError too
            return LibraryGone()
        except OSError as error:
            return NodeUnfit(f"kernel cache '{cache_dir}': {error}")
        return _run_in(self._pool, _measure, (payload, paths), limit_s, fresh)


def _own_device(target: Target) -> Device | None:
    if not target.is_gpu:
        return cpu_device()
    import ray

    # Ray names a GPU as CUDA_VISIBLE_DEVICES did when Ray was started: by the driver's index or, for example,
    # its UUID
    given = visible(find_devices(), ",".join(str(name) for name in ray.get_gpu_ids()))
    return next((device for device in given if is_of(device, target)), None)


def _fetch(source: Any) -> Artifact:
    if isinstance(source, Artifact):
        return source
    import ray

    artifact: Artifact = ray.get(source[0], timeout=FETCH_TIMEOUT_S)
    return artifact


def _measure(item: tuple[bytes, Mapping[str, str]]) -> Any:
    payload, paths = item
    job: MeasureJob | CompareJob = unpack_job(payload)

    def on_this_node(build: BuildResult) -> BuildResult:
        assert build.artifact is not None  # a failed build is not measured
        return replace(build, artifact=paths[key_of(build.artifact)])

    if isinstance(job, MeasureJob):
        return tasks.measure((job.candidate, on_this_node(job.build), job.protocol, job.rival_us))
    finalists = tuple((candidate, on_this_node(build)) for candidate, build in job.finalists)
    return tasks.measure_together(replace(job, finalists=finalists))


def _run_in(pool: WorkerPool, function: Any, item: Any, limit_s: float, fresh: bool = False) -> Reply:
    """Run one item in a pool, and wait for its outcome."""
    try:
        pool.submit(function, item, fresh=fresh, timeout_s=limit_s)
        ((_, _, outcome),) = wait_for([pool])
    except ToolchainError as error:  # no worker process can be started
        return NodeUnfit(str(error))
    if isinstance(outcome, Raised) and outcome.type_name == ToolchainError.__name__:
        return NodeUnfit(headline(outcome.message))
    return outcome
