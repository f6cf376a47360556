"""Writes the C code by which a launcher starts copies to peers, on a second stream beside a launch.

The second stream waits for what the caller's stream has before that launch, and the caller's stream waits for
the copies after its last launch. Two events say so, so a CUDA graph that is captured from the caller's stream
has the copies too. They are enqueued before the launch: then nothing that the host does for them can wait for
a kernel that waits for them.

The value of a flag is copied from the number of the last barrier in the rank's own memory. A number that the
host writes would be the same each time when a graph is launched again.
"""

from __future__ import annotations

from ..problem.template import RANK
from .launch_plan import LaunchPlan
from .planned_copies import FLAG_BYTES, PlannedCopies

_STATE = r"""
#include <pthread.h>

static struct {
  decltype(&::cuStreamCreate) StreamCreate;
  decltype(&::cuStreamDestroy) StreamDestroy;
  decltype(&::cuEventCreate) EventCreate;
  decltype(&::cuEventDestroy) EventDestroy;
  decltype(&::cuEventRecord) EventRecord;
  decltype(&::cuStreamWaitEvent) StreamWaitEvent;
  decltype(&::cuMemcpyAsync) MemcpyAsync;
} copying;

static CUstream copy_stream;
static CUevent copies_may_begin, copies_have_ended;

// a call of another thread must not record an event between its record and the wait for it
static pthread_mutex_t one_call = PTHREAD_MUTEX_INITIALIZER;
struct OneCall {
  OneCall() { pthread_mutex_lock(&one_call); }
  ~OneCall() { pthread_mutex_unlock(&one_call); }
};

static int prepare_copies(void *library) {
  if (!find(library, copying.StreamCreate, "cuStreamCreate") ||
      !find(library, copying.StreamDestroy, "cuStreamDestroy_v2") ||
      !find(library, copying.EventCreate, "cuEventCreate") ||
      !find(library, copying.EventDestroy, "cuEventDestroy_v2") ||
      !find(library, copying.EventRecord, "cuEventRecord") ||
      !find(library, copying.StreamWaitEvent, "cuStreamWaitEvent") ||
      !find(library, copying.MemcpyAsync, "cuMemcpyAsync"))
    return -1;
  // the default stream does not wait for it
  if (int error = check(copying.StreamCreate(&copy_stream, CU_STREAM_NON_BLOCKING), "a stream for copies"))
    return error;
  CUevent *const events[] = {&copies_may_begin, &copies_have_ended};
  for (CUevent *event : events)
    if (int error = check(copying.EventCreate(event, CU_EVENT_DISABLE_TIMING), "an event for copies"))
      return error;
  return 0;
}

static void release_copies() {
  if (copies_have_ended) copying.EventDestroy(copies_have_ended);
  if (copies_may_begin) copying.EventDestroy(copies_may_begin);
  if (copy_stream) copying.StreamDestroy(copy_stream);
  copies_have_ended = copies_may_begin = nullptr;
  copy_stream = nullptr;
}

static int copy_async(void *target, const void *source, size_t bytes) {
  return check(copying.MemcpyAsync((CUdeviceptr)target, (CUdeviceptr)source, bytes, copy_stream),
               "a copy to a peer");
}

extern "C" void *tilesight_copy_stream(void) { return copy_stream; }
"""


def copy_functions(plan: LaunchPlan) -> list[str]:
    """C code of the functions that prepare, start and release the copies of a plan; none without copies."""
    return [] if plan.copies is None else [_STATE, *_start(plan, plan.copies)]


def _start(plan: LaunchPlan, copies: PlannedCopies) -> list[str]:
    """The function that enqueues all copies of a call. The order is that of `PeerCopies`."""
    world, own = copies.world, copies.chunks * copies.chunk_bytes
    place = plan.tensors + len(plan.sizes) + plan.numbers.index(RANK.name)
    return [
        "static int start_copies(void **arguments, CUstream stream) {",
        f"  const int rank = *(const int *)&arguments[{place}];",
        f"  if (rank < 0 || rank >= {world}) {{",
        f'    snprintf(error_text, sizeof error_text, "rank=%d must lie in 0 .. {world - 1}", rank);',
        "    return -1;",
        "  }",
        *_checked("copying.EventRecord(copies_may_begin, stream)"),
        *_checked("copying.StreamWaitEvent(copy_stream, copies_may_begin, 0)"),
        f"  const char *const rows = (const char *)arguments[{copies.source} + rank];",
        f"  const char *const flags = (const char *)arguments[{copies.flags} + rank];",
        f"  const char *const number = flags + {world * FLAG_BYTES};",
        f"  for (int step = 1; step < {world}; ++step) {{",
        f"    const int peer = (rank + {world} - step) % {world};",
        f"    char *const there = (char *)arguments[{copies.target} + peer] + rank * INT64_C({own});",
        f"    char *const flag = (char *)arguments[{copies.arrived} + peer] + "
        f"rank * INT64_C({copies.chunks * FLAG_BYTES});",
        f"    for (int64_t chunk = 0; chunk < {copies.chunks}; ++chunk) {{",
        f"      const int64_t at = chunk * {copies.chunk_bytes};",
        f"      if (int error = copy_async(there + at, rows + at, {copies.chunk_bytes})) return error;",
        f"      if (int error = copy_async(flag + chunk * {FLAG_BYTES}, number, {FLAG_BYTES})) return error;",
        "    }",
        "  }",
        *_checked("copying.EventRecord(copies_have_ended, copy_stream)"),
        "  return 0;",
        "}",
    ]


def _checked(call: str) -> list[str]:
    """A statement that returns the error of a call of the driver, if there is one."""
    return [f'  if (int error = check({call}, "copies to peers")) return error;']


def begin_copies(plan: LaunchPlan, launch: int) -> list[str]:
    """Statements of `tilesight_call` before a launch: the start of the copies that run beside it."""
    if plan.copies is None or plan.copies.beside != launch:
        return []
    return [
        "  OneCall only;",
        "  if (int error = start_copies(arguments, (CUstream)stream)) return error;",
    ]


def end_copies(plan: LaunchPlan) -> list[str]:
    """Statements of `tilesight_call` after the last launch: what follows on the stream waits for copies."""
    if plan.copies is None:
        return []
    return _checked("copying.StreamWaitEvent((CUstream)stream, copies_have_ended, 0)")
