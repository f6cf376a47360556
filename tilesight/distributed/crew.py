"""The measuring actors of a cluster, one for each device: started where nodes can measure, replaced when they die."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..device import Device
from .cluster import Cluster, Node
from .node import Measurer

MOST_DEATHS = 3  # of measuring processes on one node, after which it measures no more


@dataclass(eq=False)
class Post:
    """One actor, and what it is known to do."""

    node: Node
    actor: Any
    device: Device | None = None  # None until it has answered
    busy: bool = False


@dataclass
class Crew:
    cluster: Cluster
    posts: list[Post] = field(default_factory=list)
    pending: dict[Any, Post] = field(default_factory=dict)  # by reference to the answer which device it has
    _deaths: dict[str, int] = field(default_factory=dict)  # by node
    _unfit: dict[str, int] = field(default_factory=dict)  # GPUs of a node that are none of the target's

    def fill(self) -> None:
        """Drop actors on nodes that are gone, and start them where there are too few."""
        for post in [post for post in self.posts if not post.node.works or post.node.id not in self.cluster.nodes]:
            self.dismiss(post)
        for node, wanted in self._places():
            for _ in range(wanted - sum(post.node is node for post in self.posts)):
                self._start(node)

    def wanted(self) -> int:
        """How many there are to be."""
        return sum(wanted for _, wanted in self._places())

    def idle(self) -> Post | None:
        """One that may measure now."""
        is_gpu = self.cluster.target.is_gpu
        return next((p for p in self.posts if p.device is not None and not p.busy and (is_gpu or not p.node.running)), None)

    def preparers(self) -> list[Node]:
        """Nodes that may lower and build. A processor that measures does nothing else meanwhile, and nothing else at all where
        others build; a GPU does not mind."""
        nodes = self.cluster.preparers()
        if self.cluster.target.is_gpu:
            return nodes
        places = [node for node, _ in self._places()]
        others = [node for node in nodes if node not in places]
        if any(not node.no_builds for node in others):
            return others
        busy = [post.node for post in self.posts if post.busy]
        return [node for node in nodes if node not in busy]

    def hear(self, ref: Any) -> None:
        """Take the answer of an actor that has started."""
        post, ray = self.pending.pop(ref), self.cluster.connection.ray
        if post not in self.posts:
            return
        try:
            post.device = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            self.dismiss(post)
            self.cluster.refuse(post.node, f"its device cannot be taken: {getattr(error, 'cause', error)}")
            return
        except ray.exceptions.RayError:
            self.died(post)
            return
        expected = self.cluster.standard.device
        if post.device is None or (expected is not None and post.device.name != expected.name):
            self._unfit[post.node.id] = self._unfit.get(post.node.id, 0) + 1
            self.dismiss(post)

    def died(self, post: Post) -> None:
        """Its process or node is gone, or does not answer."""
        self.dismiss(post)
        deaths = self._deaths[post.node.id] = self._deaths.get(post.node.id, 0) + 1
        if deaths >= MOST_DEATHS and post.node.works:
            post.node.no_measuring = f"measuring processes died there {deaths} times"

    def dismiss(self, post: Post) -> None:
        if post in self.posts:
            self.posts.remove(post)
        with suppress(Exception):  # it may be gone
            self.cluster.connection.ray.kill(post.actor)

    def close(self) -> None:
        for post in list(self.posts):
            self.dismiss(post)
        self.pending.clear()

    def _places(self) -> list[tuple[Node, int]]:
        able = self.cluster.measurers()
        if self.cluster.target.is_gpu:
            return [(node, node.gpus - self._unfit.get(node.id, 0)) for node in able]
        # one processor measures for all, the smallest: the others build
        held = next((post.node for post in self.posts if post.node in able), None)
        return [(held or min(able, key=lambda node: (node.cpus, node.id)), 1)] if able else []

    def _start(self, node: Node) -> None:
        target = self.cluster.target
        # no core is asked for: what builds on the node must not keep its device waiting
        options = {"num_cpus": 0, "num_gpus": 1 if target.is_gpu else 0, "max_restarts": 0, "max_task_retries": 0}
        actor = self.cluster.remote(Measurer).options(**options, **self.cluster.placed(node)).remote(target)
        post = Post(node, actor)
        self.posts.append(post)
        self.pending[actor.device.remote()] = post
