// Clocks and flags between the GPUs of one host. A flag is written with release and read with acquire semantics of
// system scope, and counts upwards, so that none is ever reset.

typedef unsigned long long u64;
typedef unsigned int u32;

constexpr u32 MOST_PEERS = 8;
constexpr u32 FLAG_STRIDE = 128 / sizeof(u32);  // each flag has a line of its own

// Addresses in the memory of all ranks, mapped into this one's.
struct Peers {
  char *at[MOST_PEERS];
};

__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ void raise_flag(u32 *flag, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ bool is_raised(const u32 *flag, u32 value) {
  u32 found;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
  return int(found - value) >= 0;
}

__device__ __forceinline__ void await_flag(const u32 *flag, u32 value) {
  while (!is_raised(flag, value)) {
  }
}

// One barrier of all ranks; thread t of one block serves rank t.
__device__ __forceinline__ void meet(const Peers &ranks, u32 rank, u32 value) {
  raise_flag(reinterpret_cast<u32 *>(ranks.at[threadIdx.x]) + rank * FLAG_STRIDE, value);
  await_flag(reinterpret_cast<const u32 *>(ranks.at[rank]) + threadIdx.x * FLAG_STRIDE, value);
  __syncthreads();
}
