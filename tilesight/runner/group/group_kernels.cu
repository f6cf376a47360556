// Kernels with which one process brings several GPUs together: a common start, and a rank that comes late.

#include "flags.cuh"

// Waits until the host has launched what follows on all ranks (it raises `ready`), at most `limit_ns`, and then for
// all ranks. One thread a rank.
extern "C" __global__ void start_together(Peers ranks, u32 rank, u32 value, const u32 *ready, u64 limit_ns) {
  for (u64 begin = now_ns(); !is_raised(ready, value) && now_ns() - begin < limit_ns;) __nanosleep(100);
  meet(ranks, rank, value);
}

// Occupies the stream for a while.
extern "C" __global__ void wait_ns(u64 duration_ns) {
  for (u64 begin = now_ns(); now_ns() - begin < duration_ns;) __nanosleep(100);
}
