"""The processes of a group: what each tells of itself, and a watch that notices the end of one of them.

A kernel that waits for a rank whose process has ended waits for ever, and no call of the host returns. So a
thread watches the other processes. If one has ended, and this one waits for it, the thread ends this process
with a message.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import GroupError, InputError

LOOK_S = 2.0  # between looks at ranks that wait
STUCK_S = 12.0  # after which this process is taken to wait for ever, if a rank has ended
LATE_S = 20.0  # as long as another rank may wait in an exchange before this process is looked at
FLUSH_S = 1.0
CLOSE_S = 5.0  # within which the thread ends
EXIT_CODE = 1


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process of a group. `space`: host and namespace in which its number is valid."""

    pid: int
    space: str
    device: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def own_member(device: str) -> RankProcess:
    """This process; `device` identifies its GPU, "" for the processor."""
    return RankProcess(os.getpid(), _host(), device)


def _host() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def check_members(members: Sequence[RankProcess]) -> None:
    """Raise `InputError` unless all are on one host, each with a device of its own."""
    first: dict[str, int] = {}
    for rank, member in enumerate(members):
        if member.space != members[0].space:
            raise InputError(
                f"rank {rank} runs on another host or in another container than rank 0: kernels reach the "
                "memory of GPUs of one host, in processes that see each other; start all ranks there"
            )
        if member.device and member.device in first:
            raise InputError(
                f"rank {rank} uses the same GPU as rank {first[member.device]} ({member.device}): each rank "
                'needs one of its own; call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first'
            )
        first[member.device] = rank


def _end(message: str) -> None:
    """End this process at once: a normal end would wait for its kernels."""
    os.write(2, f"tilesight: {message}\n".encode())
    flusher = threading.Thread(target=_flush, daemon=True)
    flusher.start()
    flusher.join(FLUSH_S)  # the main thread may be in the middle of a write
    os._exit(EXIT_CODE)


def _flush() -> None:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


class Watch:
    """Watches the other processes of a group, on a thread of its own, until `close`.

    Args:
        members: all processes, by rank.
        rank: of this process.
        settles: whether the work of this rank's device ends within so many seconds.
        waiting_ranks: ranks that wait in an exchange for this one, and for what.
        refuse: lets the exchanges of other ranks fail with a message.
        end: ends this process with a message.
    """

    def __init__(
        self,
        members: Sequence[RankProcess],
        rank: int,
        settles: Callable[[float], bool],
        waiting_ranks: Callable[[], Mapping[int, str]],
        refuse: Callable[[str], None],
        end: Callable[[str], None] = _end,
        *,
        look_s: float = LOOK_S,
        stuck_s: float = STUCK_S,
        late_s: float = LATE_S,
    ) -> None:
        self._members, self._rank = tuple(members), rank
        self._settles, self._waiting_ranks, self._refuse, self._end = settles, waiting_ranks, refuse, end
        self._look_s, self._stuck_s, self._late_s = look_s, stuck_s, late_s
        self._waiting_since: float | None = None
        self._ended: dict[int, str] = {}  # by rank, in words
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}  # by descriptor
        self._wake, self._alarm = os.pipe()
        self._poll.register(self._wake, select.POLLIN)
        for other, member in enumerate(self._members):
            if other != rank:
                self._open(other, member)
        self._thread = threading.Thread(target=self._run, name="tilesight group", daemon=True)
        self._is_closed, self._owner = False, os.getpid()
        self._thread.start()
        atexit.register(self.close)

    def check(self) -> None:
        """Raise `GroupError` if a process has ended."""
        for words in self._ended.values():
            raise GroupError(f"{words}; the others cannot go on without it: start all ranks again")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The host waits here for other ranks."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def close(self) -> None:
        """End the thread. The end of other processes is no fault from now on."""
        if self._is_closed or os.getpid() != self._owner:  # a fork has no thread, and the same pipe
            return
        self._is_closed = True
        atexit.unregister(self.close)
        os.write(self._alarm, b"x")
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _open(self, rank: int, member: RankProcess) -> None:
        try:
            descriptor = os.pidfd_open(member.pid)
        except ProcessLookupError:
            self._note(rank)
            return
        self._ranks[descriptor] = rank
        self._poll.register(descriptor, select.POLLIN)

    def _note(self, rank: int) -> None:
        self._ended[rank] = f"rank {rank} of the group (process {self._members[rank].pid}) has ended"

    def _run(self) -> None:
        late: dict[int, float] = {}  # ranks that wait for this one, and since when
        try:
            while True:
                for descriptor, _ in self._poll.poll(1e3 * self._look_s):
                    if descriptor == self._wake:
                        return
                    self._poll.unregister(descriptor)
                    self._note(self._ranks[descriptor])
                if self._ended:
                    if self._end_if_stuck(next(iter(self._ended.values()))):
                        return
                    continue
                waiting = self._ask()
                late = {rank: late.get(rank, time.monotonic()) for rank in waiting}
                limit = time.monotonic() - self._late_s
                oldest = next((rank for rank, since in late.items() if since < limit), None)
                if oldest is None:
                    continue
                if self._end_if_stuck(
                    f"rank {oldest} does this: {waiting[oldest]}; and rank {self._rank} waits in another "
                    "call; all ranks must make the same calls, with the same shapes, in the same order"
                ):
                    return
        finally:
            self._is_closed = True
            for descriptor in (*self._ranks, self._wake, self._alarm):
                os.close(descriptor)

    def _ask(self) -> Mapping[int, str]:
        try:
            return self._waiting_ranks()
        except GroupError:  # the store has ended, and soon a process
            return {}

    def _end_if_stuck(self, why: str) -> bool:
        since = self._waiting_since
        if since is not None:
            if time.monotonic() - since < self._stuck_s:
                return False
        elif self._settles(self._stuck_s):
            return False
        with suppress(GroupError):
            self._refuse(why)
        self._end(f"{why}. Rank {self._rank} waits for it and cannot go on, so its process ends too")
        return True
