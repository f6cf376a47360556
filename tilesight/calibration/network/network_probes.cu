// Kernels that move bytes between the GPUs of one host, and pass flags between them.
//
// Every rank runs the same launches. `Peers` are addresses in the memory of other ranks, mapped into this one's.
// Block b serves peer b % count. It moves slices of 16 KiB, whose places follow each other in a window of the peer's
// memory and begin again at its end; a window belongs to one pair of ranks. Flags are written with release and read
// with acquire semantics of system scope, and count upwards, so that none is ever reset.

#include "flags.cuh"

constexpr u32 SLICE = 16384, WINDOW = 32u << 20;
constexpr u32 LANES = SLICE / sizeof(uint4);  // threads of a block that moves by loads and stores

// The slices of this block, in the window of the peer that it serves.
struct Slices {
  char *window;
  u32 index, blocks;
  __device__ __forceinline__ Slices(const Peers &peers, u32 count) {
    u32 peer = blockIdx.x % count;
    window = peers.at[peer];
    index = blockIdx.x / count;
    blocks = (gridDim.x - peer + count - 1) / count;  // that serve this peer
  }
  __device__ __forceinline__ char *at(u32 round) const {
    return window + (u64(round) * blocks + index) % (WINDOW / SLICE) * SLICE;
  }
  __device__ __forceinline__ uint4 *lane(u32 round) const { return reinterpret_cast<uint4 *>(at(round)) + threadIdx.x; }
  __device__ __forceinline__ void store(u32 round) const {
    u32 word = round * 2654435761u + threadIdx.x;
    *lane(round) = make_uint4(word, ~word, word << 7, word >> 3);
  }
};

// Ordinary stores. The kernel ends when the peers have all data.
extern "C" __global__ void __launch_bounds__(LANES) move_store(u64 *, Peers peers, u32 count, u32 rounds, u32 *) {
  Slices slices(peers, count);
#pragma unroll 4
  for (u32 round = 0; round < rounds; ++round) slices.store(round);
  __threadfence_system();
}

// Ordinary loads, past L1: four slices are in flight.
extern "C" __global__ void __launch_bounds__(LANES) move_load(u64 *, Peers peers, u32 count, u32 rounds, u32 *sink) {
  Slices slices(peers, count);
  u32 sum = 0;
  for (u32 round = 0; round < rounds; round += 4) {
    uint4 word[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      word[i] = round + i < rounds ? __ldcg(slices.lane(round + i)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) sum += word[i].x ^ word[i].y ^ word[i].z ^ word[i].w;
  }
  if (sum == 0x5ea1ab1eu && rounds == ~0u) *sink = sum;  // never holds: keeps the loads
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr u32 SLOTS = 4;  // slices in flight of one block

__device__ __forceinline__ u32 shared_address(const void *p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Bulk copies or additions from shared memory, by one thread.
template <bool ADD>
__device__ __forceinline__ void push_bulk(const Peers &peers, u32 count, u32 rounds) {
  extern __shared__ __align__(128) uint4 slots[];
  for (u32 i = threadIdx.x; i < SLOTS * LANES; i += blockDim.x) slots[i] = make_uint4(0, 0, 0, 0);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  Slices slices(peers, count);
  for (u32 round = 0; round < rounds; ++round) {
    u32 from = shared_address(slots + round % SLOTS * LANES);
    char *to = slices.at(round);
    if (ADD)
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(to),
                   "r"(from), "r"(SLICE)
                   : "memory");
    else
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(SLICE)
                   : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(SLOTS - 1) : "memory");  // the next slot may be reused
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // not .read: the data are written
  __threadfence_system();
}

extern "C" __global__ void move_tma_store(u64 *, Peers peers, u32 count, u32 rounds, u32 *) {
  push_bulk<false>(peers, count, rounds);
}

extern "C" __global__ void move_tma_add(u64 *, Peers peers, u32 count, u32 rounds, u32 *) {
  push_bulk<true>(peers, count, rounds);
}

__device__ __forceinline__ void fetch(u32 slot, u32 full, const char *from) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(SLICE) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(slot),
               "l"(from), "r"(SLICE), "r"(full)
               : "memory");
}

__device__ __forceinline__ void await_slot(u32 full, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(full), "r"(parity)
        : "memory");
  } while (!done);
}

// Bulk copies into shared memory, by one thread.
extern "C" __global__ void move_tma_load(u64 *, Peers peers, u32 count, u32 rounds, u32 *) {
  extern __shared__ __align__(128) uint4 slots[];
  __shared__ u64 full[SLOTS];
  if (threadIdx.x != 0) return;
  for (u32 i = 0; i < SLOTS; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  Slices slices(peers, count);
  for (u32 round = 0; round < rounds; ++round) {
    u32 slot = round % SLOTS, barrier = shared_address(&full[slot]);
    if (round >= SLOTS) await_slot(barrier, (round / SLOTS - 1) & 1);
    fetch(shared_address(slots + slot * LANES), barrier, slices.at(round));
  }
  for (u32 round = rounds > SLOTS ? rounds - SLOTS : 0; round < rounds; ++round)
    await_slot(shared_address(&full[round % SLOTS]), (round / SLOTS) & 1);
}
#endif

// A flag goes to the partner and comes back, `rounds` times. One of the two leads.
extern "C" __global__ void pass_flag(u64 *, u32 *own, u32 *partners, u32 first, u32 rounds, u32 leads) {
  for (u32 value = first; value != first + rounds; ++value) {
    if (leads) raise_flag(partners, value);
    await_flag(own, value);
    if (!leads) raise_flag(partners, value);
  }
}

// `rounds` barriers of all ranks, after `delay_ns`, in which the host launches what follows. One thread a rank.
extern "C" __global__ void barrier(u64 *, Peers ranks, u32 rank, u32 first, u32 rounds, u64 delay_ns) {
  for (u64 begin = now_ns(); now_ns() - begin < delay_ns;) {
  }
  for (u32 value = first; value != first + rounds; ++value) meet(ranks, rank, value);
}

// Blocks that occupy cores until `state[1]` is set, and push by ordinary stores all the while, or idle.
extern "C" __global__ void __launch_bounds__(LANES) occupy(u64 *out, Peers peers, u32 count, u32 pushes, u32 *state) {
  Slices slices(peers, count);
  volatile u32 *stop = state + 1;
  u64 begin = now_ns();
  u32 rounds = 0;
  if (threadIdx.x == 0) atomicAdd(state, 1u);
  while (true) {
    u32 stopped = threadIdx.x == 0 ? *stop : 0;
    if (__syncthreads_or(stopped)) break;
    if (pushes) {
#pragma unroll
      for (u32 i = 0; i < 16; ++i) slices.store(rounds + i);
      rounds += 16;
    } else {
      __nanosleep(1000);
    }
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = u64(rounds) * SLICE;
    out[2 * blockIdx.x + 1] = now_ns() - begin;
  }
}

// Ends when `blocks` blocks of `occupy` run.
extern "C" __global__ void await_occupied(u64 *, volatile u32 *state, u32 blocks) {
  while (state[0] < blocks) {
  }
}

extern "C" __global__ void release_cores(u64 *, volatile u32 *state) {
  state[1] = 1;
  __threadfence();
}
