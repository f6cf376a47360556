"""What is read of a kernel of several ranks, of which some blocks send to peers and the others compute."""

from __future__ import annotations

from tilesight.executor.tasks import Profiled


def check_senders(found: object, senders: int, cores: int) -> tuple[float, set[str]]:
    """Check that the first blocks only send, that all others only compute, and that all are resident.

    Args:
        found: what lowering and reading gave: a barrier, and the kernel.
        senders: blocks that send.
        cores: of a device.

    Returns:
        The bytes that go to peers, and the mechanisms that move them.
    """
    assert isinstance(found, Profiled)
    meeting, kernel = found.kernels
    assert (meeting.meetings, kernel.meetings, bool(kernel.waits)) == (1, 0, True)
    assert kernel.blocks <= cores
    assert not kernel.unknown_calls
    assert not kernel.notes
    phases = [phase for role in kernel.roles for phase in role.phases if phase.is_loop]
    sending = [p for p in phases if any(a.peer for a in p.work.accesses)]
    computing = [p for p in phases if p.work.matrix]
    assert sending
    assert computing
    for some, expected in ((sending, True), (computing, False)):
        for phase in some:
            assert [count > 0 for count in phase.trips.per_block] == [expected] * senders + [not expected] * (
                kernel.blocks - senders
            )
    size = sum(
        access.bytes * phase.trips.mean * kernel.blocks
        for phase in sending
        for access in phase.work.accesses
        if access.peer
    )
    return size, {access.peer for phase in sending for access in phase.work.accesses if access.peer}
