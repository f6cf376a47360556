"""The nodes of a cluster for one target: which may lower, build and measure, and why others may not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...errors import ToolchainError, headline
from ...target.spec import Target
from .common_software import CommonSoftware, refusal
from .node_facts import NodeFacts, collect_facts
from .ray_connection import RayConnection

NODES_TIMEOUT_S = 60.0  # for nodes to report their facts, and for lost nodes to come back when none is left
REFRESH_S = 1.0  # between two requests for the list of nodes


@dataclass(eq=False)
class Node:
    """One node. `facts` is None until it has reported them; `running` counts its lowerings and builds."""

    id: str
    name: str
    cpus: int
    gpus: int
    facts: NodeFacts | None = None
    refused: str = ""  # why it gets no jobs
    no_builds: str = ""  # why it builds nothing
    no_measuring: str = ""  # why it measures nothing
    running: int = 0

    @property
    def works(self) -> bool:
        """Whether it gets jobs."""
        return self.facts is not None and not self.refused

    @property
    def text(self) -> str:
        """For messages: its resources, and why it is not used for everything."""
        devices = [device.name for device in self.facts.devices] if self.facts else []
        has = [f"{self.cpus} CPU{'s' * (self.cpus != 1)}"]
        has += [f"{count} x {name}" for name, count in Counter(devices).items()]
        name = self.facts.host if self.facts else self.name
        limits = list(dict.fromkeys(reason for reason in (self.no_builds, self.no_measuring) if reason))
        reasons = [self.refused] if self.refused else limits
        return f"{name} ({', '.join(has)}{''.join(f'; {reason}' for reason in reasons)})"


@dataclass
class Cluster:
    """The nodes of a connected cluster. `message` receives texts for the user about nodes."""

    connection: RayConnection
    target: Target
    measures: bool
    message: Callable[[str], None]
    common: CommonSoftware = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    _requests: dict[Any, Node] = field(default_factory=dict)  # for facts, by Ray's reference
    _removed: set[str] = field(default_factory=set)
    _remotes: dict[Any, Any] = field(default_factory=dict)
    _refreshed_at: float = 0.0
    _is_open: bool = False

    def open(self, timeout_s: float = NODES_TIMEOUT_S) -> None:
        """Collect the facts of all nodes. Raises `ToolchainError` if no node can do what the target needs."""
        begin = time.monotonic()
        self.refresh()
        while self._requests and time.monotonic() - begin < timeout_s:
            self._receive_facts(0.2)
        self.common = CommonSoftware.of(
            self.target, [node.facts for node in self.nodes.values() if node.facts]
        )
        self._is_open = True
        for node in self.nodes.values():
            self._classify(node)
        self.require()

    def require(self) -> None:
        """Raise `ToolchainError` if some kind of job has no node."""
        name, cluster = self.target.name, f"cluster {self.connection.address}"
        if self.nodes and not any(node.works for node in self.nodes.values()):
            raise ToolchainError(f"{cluster}: no node can work for this process; it has: {self.text}")
        if self.measures and not self.measurers():
            device = "this machine's processor, which target cpu means"
            if self.target.is_gpu:
                names = (
                    " or ".join(self.target.device_names) or "none has its name in the target's device_names"
                )
                device = f"a GPU of target {name} ({names})"
            raise ToolchainError(f"{cluster}: no node has {device}; it has: {self.text}")
        if not self.builders() if self.measures else not self.preparers():
            does = f"build for target {name}" if self.measures else "lower kernels"
            raise ToolchainError(f"{cluster}: no node can {does}; it has: {self.text}")

    @property
    def text(self) -> str:
        return ", ".join(node.text for node in self.nodes.values()) or "no node"

    def preparers(self) -> list[Node]:
        """Nodes that may lower."""
        return [node for node in self.nodes.values() if node.works and node.cpus]

    def builders(self) -> list[Node]:
        """Nodes that may build."""
        return [node for node in self.preparers() if not node.no_builds]

    def measurers(self) -> list[Node]:
        """Nodes that may measure."""
        return [
            node for node in self.nodes.values() if self.measures and node.works and not node.no_measuring
        ]

    @property
    def awaits_facts(self) -> bool:
        """Whether some nodes have yet to report their facts."""
        return bool(self._requests)

    # ---- the list of nodes

    def refresh(self) -> None:
        """Remove nodes that are gone, and request the facts of new ones."""
        if time.monotonic() - self._refreshed_at < REFRESH_S:
            self._receive_facts(0)
            return
        self._refreshed_at = time.monotonic()
        rows = self.connection.node_rows()
        if rows is None:
            return
        alive = {row["NodeID"]: row for row in rows if row["Alive"]}
        for gone in [node for id, node in self.nodes.items() if id not in alive]:
            self.remove(gone)
        for id, row in alive.items():
            if id not in self.nodes and id not in self._removed:
                resources = row["Resources"]
                cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
                node = self.nodes[id] = Node(id, str(row["NodeManagerHostname"]), cpus, gpus)
                # without a core: a node whose cores are all in use can still report its facts
                task = self.remote(collect_facts).options(num_cpus=0, max_retries=0, **self.pinned_to(node))
                self._requests[task.remote(self.target)] = node
        self._receive_facts(0)

    def pinned_to(self, node: Node) -> dict[str, Any]:
        """Ray's options for running on that node only."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}

    def remote(self, function: Any) -> Any:
        """The remote function or actor class that Ray makes of `function`, made once."""
        if function not in self._remotes:
            self._remotes[function] = self.connection.ray.remote(function)
        return self._remotes[function]

    def remove(self, node: Node) -> None:
        """Remove a dead node. Ray may list it for some more seconds; no other node ever gets its id."""
        if self.nodes.pop(node.id, None) is not None and node.works:
            self.message(
                f"cluster {self.connection.address}: node {node.name} has gone; its work is given to others"
            )
        self._removed.add(node.id)
        node.refused = node.refused or "it has gone"

    def refuse(self, node: Node, reason: str) -> None:
        """Give the node no more jobs."""
        if not node.refused:
            node.refused = reason
            self.message(f"cluster {self.connection.address}: node {node.name} is left out: {reason}")

    def _receive_facts(self, timeout_s: float) -> None:
        ray = self.connection.ray
        if not self._requests:
            return
        ready, _ = ray.wait(list(self._requests), num_returns=len(self._requests), timeout=timeout_s)
        for reference in ready:
            node = self._requests.pop(reference)
            try:
                node.facts = ray.get(reference)
            except ray.exceptions.RayError as error:
                # the node lacks TileSight, or has gone: then `refresh` removes it
                cause = getattr(error, "cause", None) or error
                self.refuse(node, f"it cannot run this TileSight: {headline(str(cause))}")
                continue
            if self._is_open:
                self._classify(node)

    def _classify(self, node: Node) -> None:
        """Decide from its facts what the node may do."""
        if node.facts is None or node.refused:
            return
        if reason := refusal(node.facts):
            self.refuse(node, reason)
            return
        node.no_builds = self.common.why_no_builds(node.facts)
        node.no_measuring = self.common.why_no_measuring(node.facts, node.cpus, node.gpus)
        for reason in (node.no_builds, node.no_measuring) if self.measures else ():
            if "another" in reason:  # users may not expect a difference in software or device
                self.message(f"cluster {self.connection.address}: node {node.name}: {reason}")
