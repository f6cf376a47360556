"""What runs on the nodes of a cluster. Ray's processes only wait here: each job runs in a worker process of ours inside of
them, which can be killed, because Ray neither ends what hangs nor cleans up behind what crashes."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from .. import jobs
from ..device import Device, cpu_device, find_devices, is_of, restricted_to, visible
from ..device_lock import alone_on
from ..errors import ToolchainError, headline
from ..executor import blames_the_cache
from ..settings import load_settings
from ..target import Target
from ..trial import BuildResult
from ..work import Build, Compare, Job, Lower, Measure
from ..workers import Done, Outcome, Raised, WorkerPool, thread_limits, wait_for
from .parcels import Parcel, key_of, pack, stored_at, unpack

FETCH_S = 120.0  # for a library to come from where it was built


@dataclass(frozen=True, slots=True)
class Unfit:
    """The node cannot do such work; the job is no worse for it."""

    reason: str


@dataclass(frozen=True, slots=True)
class LibraryGone:
    """A library did not come from the node that built it: it must be sent again."""


Reply = Outcome[Any] | Unfit | LibraryGone


def send(job: Job) -> bytes:
    """A job for worker processes: what is defined in the running script travels by value. Raises whatever pickling raises."""
    import cloudpickle

    # compressed, also because a worker would take the name `__main__` in it for the script of Ray's own process
    return zlib.compress(cloudpickle.dumps(job), 1)


def receive(payload: bytes) -> Any:
    return pickle.loads(zlib.decompress(payload))


# ---- lowering and building: tasks of Ray, which keeps their processes for the next one


@cache
def _compiler() -> WorkerPool:
    return WorkerPool(1, timeout_s=1.0, preload=jobs.preload_compiler, initializer=jobs.start_compiler, environment=thread_limits(1))


def prepare(payload: bytes, limit_s: float) -> tuple[Reply, Parcel | None]:
    """Lower or build. A built library comes as bytes beside its result."""
    reply = _one(_compiler(), _prepare, payload, limit_s)
    if not isinstance(reply, Done) or not isinstance(reply.value, BuildResult):
        return reply, None
    result = reply.value
    if result.failure is not None:
        return (Unfit(result.failure.message) if blames_the_cache(result.failure) else reply), None
    assert result.artifact is not None
    try:
        return reply, pack(result.artifact)
    except OSError as error:
        return Unfit(f"what was built there cannot be read: {error}"), None


def _prepare(payload: bytes) -> Any:
    job: Lower | Build = receive(payload)
    if isinstance(job, Lower):
        return jobs.lower_and_profile(job.candidate)
    return jobs.build(job.candidate, load_settings().cache_dir)


# ---- measuring: an actor for each device


class Measurer:
    """Owns one device of its node: the processor, or the GPU that Ray has given it."""

    def __init__(self, target: Target) -> None:
        # Ray keeps its processes to one thread and behind all others of the machine, for tasks that share it
        os.environ.pop("OMP_NUM_THREADS", None)
        with suppress(OSError):  # only privileged users may
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._device = _own_device(target)
        if self._device is not None:
            self._pool = WorkerPool(
                1,
                timeout_s=1.0,
                preload=jobs.preload_device,
                initializer=jobs.start_device,
                environments=[restricted_to(self._device)],
                # Ray admits to a GPU and does not guard it
                gate=partial(alone_on, self._device.uuid) if target.is_gpu else None,
            )
            self._pool.start()

    def device(self) -> Device | None:
        """None where it is none of the target's."""
        return self._device

    def measure(self, payload: bytes, sources: Mapping[str, Any], limit_s: float, fresh: bool) -> Reply:
        """Check and time. `sources` has, by key, where each library comes from if this node lacks it: a `Parcel`, or a
        list with a reference to one, which is fetched only then. `fresh`: in a new process."""
        import ray

        cache_dir = load_settings().cache_dir
        try:
            paths = {key: stored_at(cache_dir, key) or unpack(_parcel(source), cache_dir) for key, source in sources.items()}
        except ray.exceptions.RayError:  # before the next: one that takes too long is an OSError too
            return LibraryGone()
        except OSError as error:
            return Unfit(f"kernel cache '{cache_dir}': {error}")
        return _one(self._pool, _measure, (payload, paths), limit_s, fresh)


def _own_device(target: Target) -> Device | None:
    if not target.is_gpu:
        return cpu_device()
    import ray

    # Ray names a GPU by the driver's index, or as CUDA_VISIBLE_DEVICES did where Ray was started: by its UUID, say
    given = visible(find_devices(), ",".join(str(name) for name in ray.get_gpu_ids()))
    return next((device for device in given if is_of(device, target)), None)


def _parcel(source: Any) -> Parcel:
    if isinstance(source, Parcel):
        return source
    import ray

    parcel: Parcel = ray.get(source[0], timeout=FETCH_S)
    return parcel


def _measure(item: tuple[bytes, Mapping[str, str]]) -> Any:
    payload, paths = item
    job: Measure | Compare = receive(payload)

    def here(build: BuildResult) -> BuildResult:
        assert build.artifact is not None  # only what was built is measured
        return replace(build, artifact=paths[key_of(build.artifact)])

    if isinstance(job, Measure):
        return jobs.measure((job.candidate, here(job.build), job.protocol, job.rival_us))
    return jobs.measure_together((tuple((candidate, here(build)) for candidate, build in job.finalists), job.protocol))


def _one(pool: WorkerPool, function: Any, item: Any, limit_s: float, fresh: bool = False) -> Reply:
    try:
        pool.submit(function, item, fresh=fresh, timeout_s=limit_s)
        ((_, _, outcome),) = wait_for([pool])
    except ToolchainError as error:  # no worker process can be started
        return Unfit(str(error))
    if isinstance(outcome, Raised) and outcome.type_name == ToolchainError.__name__:
        return Unfit(headline(outcome.message))
    return outcome
