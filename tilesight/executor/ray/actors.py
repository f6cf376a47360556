"""The measuring actors of a cluster, one for each device; an actor that dies is replaced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...machine.devices import Device
from .cluster import Cluster, Node
from .node_tasks import Measurer

MAX_DEATHS = 3  # of measuring processes on one node, after which it measures no more


@dataclass(eq=False)
class DeviceActor:
    """One actor: its node, Ray's handle of it, and its state.

    `device` is None until it has reported its device.
    """

    node: Node
    handle: Any
    device: Device | None = None
    busy: bool = False


@dataclass
class DeviceActors:
    """All actors of a cluster.

    `pending` has, by Ray's reference, the actors that have yet to report their device.
    """

    cluster: Cluster
    actors: list[DeviceActor] = field(default_factory=list)
    pending: dict[Any, DeviceActor] = field(default_factory=dict)
    _deaths: dict[str, int] = field(default_factory=dict)  # by node
    _other_gpus: dict[str, int] = field(default_factory=dict)  # GPUs of a node that are not the target's

    def update(self) -> None:
        """Stop the actors on nodes that are gone, and start the missing ones."""
        for actor in [a for a in self.actors if not a.node.works or a.node.id not in self.cluster.nodes]:
            self.stop(actor)
        for node, wanted in self._wanted_by_node():
            for _ in range(wanted - sum(actor.node is node for actor in self.actors)):
                self._start(node)

    def wanted(self) -> int:
        """How many actors the cluster should have."""
        return sum(wanted for _, wanted in self._wanted_by_node())

    def idle(self) -> DeviceActor | None:
        """An actor that may measure now."""
        is_gpu = self.cluster.target.is_gpu
        return next(
            (
                a
                for a in self.actors
                if a.device is not None and not a.busy and (is_gpu or not a.node.running)
            ),
            None,
        )

    def preparers(self) -> list[Node]:
        """Nodes that may lower and build now.

        A processor that measures does nothing else meanwhile, and nothing else at all if other nodes can
        build. Building does not disturb a GPU that measures.
        """
        nodes = self.cluster.preparers()
        if self.cluster.target.is_gpu:
            return nodes
        measuring = [node for node, _ in self._wanted_by_node()]
        others = [node for node in nodes if node not in measuring]
        if any(not node.no_builds for node in others):
            return others
        busy = [actor.node for actor in self.actors if actor.busy]
        return [node for node in nodes if node not in busy]

    def receive_device(self, reference: Any) -> None:
        """Handle the report of an actor that has started, under its reference in `pending`."""
        actor, ray = self.pending.pop(reference), self.cluster.connection.ray
        if actor not in self.actors:
            return
        try:
            actor.device = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            self.stop(actor)
            cause = getattr(error, "cause", error)
            self.cluster.refuse(actor.node, f"its device cannot be used: {cause}")
            return
        except ray.exceptions.RayError:
            self.handle_death(actor)
            return
        expected = self.cluster.common.device
        if actor.device is None or (expected is not None and actor.device.name != expected.name):
            self._other_gpus[actor.node.id] = self._other_gpus.get(actor.node.id, 0) + 1
            self.stop(actor)

    def handle_death(self, actor: DeviceActor) -> None:
        """Stop an actor whose process or node is gone or does not answer, and count its death."""
        self.stop(actor)
        deaths = self._deaths[actor.node.id] = self._deaths.get(actor.node.id, 0) + 1
        if deaths >= MAX_DEATHS and actor.node.works:
            actor.node.no_measuring = f"measuring processes died there {deaths} times"

    def stop(self, actor: DeviceActor) -> None:
        if actor in self.actors:
            self.actors.remove(actor)
        with suppress(Exception):  # it may be gone
            self.cluster.connection.ray.kill(actor.handle)

    def close(self) -> None:
        for actor in list(self.actors):
            self.stop(actor)
        self.pending.clear()

    def _wanted_by_node(self) -> list[tuple[Node, int]]:
        able = self.cluster.measurers()
        if self.cluster.target.is_gpu:
            return [(node, node.gpus - self._other_gpus.get(node.id, 0)) for node in able]
        # a single processor measures, the smallest one; the other nodes build
        current = next((actor.node for actor in self.actors if actor.node in able), None)
        return [(current or min(able, key=lambda node: (node.cpus, node.id)), 1)] if able else []

    def _start(self, node: Node) -> None:
        target = self.cluster.target
        # without a core: builds on the node must not keep its device waiting
        resources = {"num_cpus": 0, "num_gpus": 1 if target.is_gpu else 0}
        options = {**resources, "max_restarts": 0, "max_task_retries": 0, **self.cluster.pinned_to(node)}
        handle = self.cluster.remote(Measurer).options(**options).remote(target)
        actor = DeviceActor(node, handle)
        self.actors.append(actor)
        self.pending[handle.device.remote()] = actor
