"""The engine of a call: database, executor, cost model and observer, open while the call runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..errors import InputError, ToolchainError
from ..machine.load import notice_load
from ..machine.placement import Placement
from ..records.protocol import MeasurementProtocol
from ..records.session import Context, Effort
from ..settings import load_settings
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.tuning_lock import tuning_lock

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..database.layers import LayeredStore
    from ..executor.caching_executor import CachingExecutor
    from ..executor.local import LocalExecutor
    from ..executor.ray import RayExecutor


class Engine:
    """A context manager. It opens the database at once; processes start when there is work for them."""

    def __init__(
        self,
        placement: Placement,
        options: TuneOptions | None = None,
        observer: Observer | None = None,
        *,
        measures: bool = True,
        shares_time: bool = False,
    ) -> None:
        """
        Args:
            placement: The target, and the devices that are measured.
            options: Where the database is, who does the work, under which protocol; None: the defaults.
            observer: Receives messages and progress; None: nobody does.
            measures: Whether a cluster must have a device of the target.
            shares_time: Whether sessions share a time budget. Then the first of them begins when the
                processes have started, so that all pay for it alike.

        Raises:
            DatabaseError: the database cannot be opened.
            InputError: builds without measurements bring nothing for the target, or are asked of a cluster.
            ToolchainError: this machine or the cluster cannot do the work.
        """
        from ..costmodel import default_model
        from ..database import open_layers

        self.placement, self.options = placement, options or TuneOptions()
        if self.options.effort is Effort.BUILD:
            _check_builds(placement.target, self.options.cluster)
        self.observer, self._shares_time = observer or Observer(), shares_time
        self.protocol = MeasurementProtocol.named(self.options.protocol, placement.target)
        self._report_protocol()
        self._settings = load_settings()
        self.store: LayeredStore = open_layers(
            self.options.database or self._settings.database_url, self.options.layers
        )
        self.model: CostModel = self._with_recorded_errors(default_model())
        if self.options.cluster is not None:
            self._join_cluster(self.options.cluster, measures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if "executor" in self.__dict__:
                self.executor.close()
        finally:
            self.store.close()

    @cached_property
    def executor(self) -> LocalExecutor | RayExecutor:
        """Lowers, builds and measures: in worker processes of this machine, or on the cluster."""
        from ..executor.local import LocalExecutor

        if self.placement.devices:
            notice_load(self.placement.devices, self.observer.message)
        workers = self.options.workers or self._settings.workers
        return LocalExecutor(
            workers,
            self._settings.cache_dir,
            self.placement.gpus,
            world=self.placement.target.world,
            notice=self.observer.message,
        )

    def caching_executor(self) -> CachingExecutor:
        """The executor behind the profile cache of the database; its processes start now if it measures."""
        from ..executor.caching_executor import CachingExecutor
        from ..executor.profile_cache import ProfileCache

        if self.placement.devices:
            # what is measured is built first: the imports of these processes are done when the first jobs
            # come
            self.executor.start(measures=True, wait=self._shares_time)
        return CachingExecutor(self.executor, ProfileCache(self.store))

    @contextmanager
    def tuning_alone(self, context: Context) -> Iterator[None]:
        """While a session of `context` measures on this machine, an equal one of another process waits.

        It then finds the results in the database.
        """
        if not self.placement.devices or self.options.cluster is not None:
            yield
            return
        notice = self.observer.message
        with tuning_lock(self._settings.cache_dir, context.key, wait=True, notice=notice):
            yield

    def _with_recorded_errors(self, model: CostModel) -> CostModel:
        """A processor's predictions are as uncertain as those on record were wrong."""
        from ..costmodel.recorded_errors import RecordedErrorsModel
        from ..machine.devices import cpu_name

        if self.placement.target.is_gpu:
            return model
        errors = self.store.model_errors(model.version, self.placement.target, cpu_name())
        return RecordedErrorsModel(model, errors) if errors else model

    def _report_protocol(self) -> None:
        name, target = self.options.protocol, self.placement.target
        if name != "default" and self.protocol.key == MeasurementProtocol.named("default", target).key:
            self.observer.message(f"on {target.name} protocol {name} means the same as default")

    def _join_cluster(self, address: str, measures: bool) -> None:
        from ..executor.ray import RayExecutor

        try:
            cluster = RayExecutor(
                address,
                self.placement.target,
                self._settings.cache_dir,
                measures=measures,
                workers=self.options.workers,
                message=self.observer.message,
            )
        except BaseException:
            self.store.close()
            raise
        self.executor = cluster
        self.placement = replace(cluster.placement, software=cluster.software)


def _check_builds(target: Target, cluster: str | None) -> None:
    """Raise `InputError` where builds without measurements bring nothing, `ToolchainError` where they cannot
    be made."""
    from ..machine.toolchain import missing_compiler

    if cluster is not None:
        raise InputError(f"effort build builds on this machine: leave out cluster '{cluster}'")
    if not target.is_gpu:
        raise InputError(
            f"effort build is for GPUs: a compiler for target {target.name} reports no registers or spills; "
            "take effort predict or quick"
        )
    if missing := missing_compiler(target, runnable=False):
        raise ToolchainError(f"{missing}. Predictions need no compiler: --effort predict")
