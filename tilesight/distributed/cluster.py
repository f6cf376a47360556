"""The nodes of a cluster as one target sees them: which of them lower, build and measure, and why the others do not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ToolchainError, headline
from ..target import Target
from .connection import Connection
from .facts import Facts, facts
from .standard import Standard, refusal

PATIENCE_S = 60.0  # for nodes to say what they are, and to come back once none is left
LOOK_S = 1.0  # between two looks at which nodes there are


@dataclass(eq=False)
class Node:
    id: str
    name: str
    cpus: int
    gpus: int
    known: Facts | None = None  # None until it has answered
    refused: str = ""  # why it is given nothing
    no_builds: str = ""  # why nothing is built there
    no_measuring: str = ""
    running: int = 0  # lowerings and builds

    @property
    def works(self) -> bool:
        return self.known is not None and not self.refused

    @property
    def text(self) -> str:
        """For messages: what it has, and why that is not enough."""
        devices = [device.name for device in self.known.devices] if self.known else []
        has = [f"{self.cpus} CPU{'s' * (self.cpus != 1)}", *(f"{count} x {name}" for name, count in Counter(devices).items())]
        name = self.known.host if self.known else self.name
        reasons = [self.refused] if self.refused else list(dict.fromkeys(r for r in (self.no_builds, self.no_measuring) if r))
        return f"{name} ({', '.join(has)}{''.join(f'; {reason}' for reason in reasons)})"


@dataclass
class Cluster:
    """`message` is told what a user should know of the nodes."""

    connection: Connection
    target: Target
    measures: bool
    message: Callable[[str], None]
    standard: Standard = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    _probes: dict[Any, Node] = field(default_factory=dict)
    _buried: set[str] = field(default_factory=set)
    _functions: dict[Any, Any] = field(default_factory=dict)
    _looked: float = 0.0
    _is_open: bool = False

    def open(self, patience_s: float = PATIENCE_S) -> None:
        """Ask all nodes what they are. Raises `ToolchainError` where none can do what the target needs."""
        begin = time.monotonic()
        self.look()
        while self._probes and time.monotonic() - begin < patience_s:
            self._hear(0.2)
        self.standard = Standard.of(self.target, [node.known for node in self.nodes.values() if node.known])
        self._is_open = True
        for node in self.nodes.values():
            self._judge(node)
        self.require()

    def require(self) -> None:
        """Raises `ToolchainError` where work would wait for ever."""
        name = self.target.name
        if self.nodes and not any(node.works for node in self.nodes.values()):
            raise ToolchainError(f"cluster {self.connection.address}: no node can work for this process; it has: {self.text}")
        if self.measures and not self.measurers():
            wanted = " or ".join(self.target.device_names) or "none has its name in the target's device_names"
            device = f"a GPU of target {name} ({wanted})" if self.target.is_gpu else "this machine's processor, which target cpu means"
            raise ToolchainError(f"cluster {self.connection.address}: no node has {device}; it has: {self.text}")
        if not self.builders() if self.measures else not self.preparers():
            does = f"build for target {name}" if self.measures else "lower kernels"
            raise ToolchainError(f"cluster {self.connection.address}: no node can {does}; it has: {self.text}")

    @property
    def text(self) -> str:
        return ", ".join(node.text for node in self.nodes.values()) or "no node"

    def preparers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.works and node.cpus]

    def builders(self) -> list[Node]:
        return [node for node in self.preparers() if not node.no_builds]

    def measurers(self) -> list[Node]:
        return [node for node in self.nodes.values() if self.measures and node.works and not node.no_measuring]

    @property
    def is_asking(self) -> bool:
        """Whether nodes have yet to say what they are."""
        return bool(self._probes)

    # ---- which nodes there are

    def look(self) -> None:
        """Notice nodes that have gone, and ask new ones what they are."""
        if time.monotonic() - self._looked < LOOK_S:
            self._hear(0)
            return
        self._looked = time.monotonic()
        if not self.connection.has_head():
            return
        alive = {row["NodeID"]: row for row in self.connection.ray.nodes() if row["Alive"]}
        for gone in [node for id, node in self.nodes.items() if id not in alive]:
            self.bury(gone)
        for id, row in alive.items():
            if id not in self.nodes and id not in self._buried:
                has = row["Resources"]
                node = Node(id, str(row["NodeManagerHostname"]), int(has.get("CPU", 0)), int(has.get("GPU", 0)))
                self.nodes[id] = node
                # without a core of its own: whoever uses the node, it can say what it is
                probe = self.remote(facts).options(num_cpus=0, max_retries=0, **self.placed(node))
                self._probes[probe.remote(self.target)] = node
        self._hear(0)

    def placed(self, node: Node) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}

    def remote(self, function: Any) -> Any:
        """`function` as one of Ray's, made once."""
        if function not in self._functions:
            self._functions[function] = self.connection.ray.remote(function)
        return self._functions[function]

    def bury(self, node: Node) -> None:
        """It is dead, though Ray may list it for some seconds more. No other node ever gets its id."""
        if self.nodes.pop(node.id, None) is not None and node.works:
            self.message(f"cluster {self.connection.address}: node {node.name} has gone; its work is given to others")
        self._buried.add(node.id)
        node.refused = node.refused or "it has gone"

    def refuse(self, node: Node, reason: str) -> None:
        if not node.refused:
            node.refused = reason
            self.message(f"cluster {self.connection.address}: node {node.name} is left out: {reason}")

    def _hear(self, wait_s: float) -> None:
        ray = self.connection.ray
        if not self._probes:
            return
        ready, _ = ray.wait(list(self._probes), num_returns=len(self._probes), timeout=wait_s)
        for ref in ready:
            node = self._probes.pop(ref)
            try:
                node.known = ray.get(ref)
            except ray.exceptions.RayError as error:
                # TileSight may be missing there, or the node have gone; `look` will notice that
                cause = getattr(error, "cause", None) or error
                self.refuse(node, f"it cannot run this TileSight: {headline(str(cause))}")
                continue
            if self._is_open:
                self._judge(node)

    def _judge(self, node: Node) -> None:
        """Say what it is good for."""
        if node.known is None or node.refused:
            return
        if reason := refusal(node.known):
            self.refuse(node, reason)
            return
        node.no_builds = self.standard.why_no_builds(node.known)
        node.no_measuring = self.standard.why_no_measuring(node.known, node.cpus, node.gpus)
        for reason in (node.no_builds, node.no_measuring) if self.measures else ():
            if "another" in reason:  # what a user may not expect
                self.message(f"cluster {self.connection.address}: node {node.name}: {reason}")
