"""Exchanges of small values among the processes of a group, and what follows if they disagree.

An exchange goes through the group's store, so it works with every backend, needs no device, and ends within
a time limit. All ranks get the values of all ranks, so all decide the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ...errors import GroupError, TileSightError

T = TypeVar("T")

WAIT_S = 600.0  # for ranks that are alive and late: they may load data meanwhile
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.02


class GroupStore(Protocol):
    """What is used of a store of torch.distributed."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def delete_key(self, key: str, /) -> bool: ...


@dataclass(frozen=True)
class RankStep(Generic[T]):
    """What a rank has done.

    Attributes:
        result: for this rank.
        same: what must be equal on all ranks, by name.
        told: for the other ranks; a value of JSON.
    """

    result: T
    same: Mapping[str, str] = field(default_factory=dict)
    told: Any = None


class Exchange:
    """The exchanges of one dispatcher. All ranks make the same ones in the same order, each on one thread.

    Args:
        store: of the group.
        rank: of this process.
        world: number of processes.
        wait_s: the longest wait for another rank.
    """

    def __init__(self, store: GroupStore, rank: int, world: int, wait_s: float = WAIT_S) -> None:
        self.rank, self.world, self.wait_s = rank, world, wait_s
        self.check_others: Callable[[], None] = lambda: None  # raises `GroupError` if one has ended
        self._store = store
        number = self._reach(lambda: store.add(f"tilesight/dispatchers of rank {rank}", 1))
        self._prefix = f"tilesight/dispatcher {number}"
        self._number = 0  # of the next exchange
        self._is_busy = False

    def attempt(self, what: str, work: Callable[[], RankStep[T]]) -> tuple[T, list[Any]]:
        """Do `work` on all ranks, and go on if it succeeds on all, with the same facts.

        Args:
            what: the step, for messages: "make a dispatcher".
            work: may raise any error.

        Returns:
            The own result, and what each rank tells.

        Raises:
            GroupError: the same message on all ranks. It names a rank and its error, or the difference.
            Exception: the own error, if all ranks have the same.
        """
        own: BaseException | None = None
        offer: dict[str, Any]
        try:
            step = work()
            offer = {"what": what, "same": dict(step.same), "told": step.told}
        except BaseException as error:
            own, offer = error, {"what": what, "error": _text(error)}
        try:
            offers = self._gather(what, offer)
        except GroupError:
            if own is not None:
                raise own from None
            raise
        errors = [found.get("error") for found in offers]
        if own is not None and (len(set(errors)) == 1 or not isinstance(own, Exception)):
            raise own
        message = fault(what, offers)
        if message is not None:
            raise GroupError(message) from own
        return step.result, [found["told"] for found in offers]

    def waiting_ranks(self) -> dict[int, str]:
        """The ranks that wait in an exchange for this one, which has not begun it, and for what."""
        if self._is_busy:
            return {}
        number = self._number
        found = {}
        for rank in self._others():
            key = self._key(number, rank)
            if self._reach(lambda key=key: self._store.check([key])):  # type: ignore[misc]
                text = self._reach(lambda key=key: self._store.get(key))  # type: ignore[misc]
                found[rank] = str(json.loads(text)["what"])
        return {} if self._is_busy or self._number != number else found

    def refuse(self, message: str) -> None:
        """Let the exchanges of other ranks fail with this message."""
        self._reach(lambda: self._store.set(self._refusal, message))

    def _gather(self, what: str, own: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._is_busy = True
        number = self._number
        try:
            self._reach(lambda: self._store.set(self._key(number, self.rank), json.dumps(own)))
            for rank in self._others():
                self._wait_for(what, number, rank)
            texts = self._reach(
                lambda: [self._store.get(self._key(number, rank)) for rank in range(self.world)]
            )
            if number:  # all ranks are in this exchange, so none reads the one before it any more
                self._reach(lambda: self._store.delete_key(self._key(number - 1, self.rank)))
            return [json.loads(text) for text in texts]
        finally:
            self._number, self._is_busy = number + 1, False

    def _wait_for(self, what: str, number: int, rank: int) -> None:
        key, begin, pause = self._key(number, rank), time.monotonic(), FIRST_PAUSE_S
        while not self._reach(lambda: self._store.check([key])):
            try:
                self.check_others()
            finally:  # a rank that refuses an exchange ends after that, and its reason is the one to tell
                self._check_refusal()
            if time.monotonic() - begin > self.wait_s:
                raise GroupError(
                    f"{what}: rank {rank} has not come within {self.wait_s:g} s, and rank {self.rank} waits "
                    "for it; all ranks must make the same calls in the same order"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _check_refusal(self) -> None:
        if self._reach(lambda: self._store.check([self._refusal])):
            raise GroupError(self._reach(lambda: self._store.get(self._refusal)).decode())

    def _reach(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except RuntimeError as error:  # of torch.distributed, whose store lives in one of the processes
            self.check_others()
            raise GroupError(
                f"rank {self.rank} cannot reach the store of its process group, so a process of it has "
                f"probably ended: {str(error).splitlines()[0]}"
            ) from error

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}/{number}/{rank}"

    @property
    def _refusal(self) -> str:
        return f"{self._prefix}/refused"


def fault(what: str, offers: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the values of all ranks, as every rank says it; None if nothing is."""
    steps = [offer["what"] for offer in offers]
    for rank, step in enumerate(steps):
        if step != steps[0]:
            return (
                f"rank {rank} does this: {step}; and rank 0: {steps[0]}; all ranks must make the same calls "
                "in the same order"
            )
    for rank, offer in enumerate(offers):
        if "error" in offer:
            return f"{what}: refused by all ranks, because rank {rank} failed: {offer['error']}"
    first = offers[0]["same"]
    for rank, offer in enumerate(offers):
        for name in first | offer["same"]:
            mine, theirs = first.get(name, "none"), offer["same"].get(name, "none")
            if mine != theirs:
                return (
                    f"{what}: refused by all ranks, because they disagree: {name} is {theirs} on rank {rank} "
                    f"and {mine} on rank 0; give all ranks the same"
                )
    return None


def _text(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if isinstance(error, TileSightError) else f"{type(error).__name__}: {text}"
