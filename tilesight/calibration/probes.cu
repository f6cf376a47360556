// Kernels that each keep one part of the chip busy and say how long that took.
//
// Block b writes two numbers: out[2b] the cycles of its core, out[2b+1] nanoseconds, both between its first and its last
// thread's turn. Sums end in `sink` under a condition that never holds, so that the compiler keeps the work.

typedef unsigned long long u64;
typedef unsigned int u32;

__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

struct Watch {
  u64 cycles, ns;
  __device__ __forceinline__ void start() {
    __syncthreads();
    ns = now_ns();
    cycles = clock64();
  }
  __device__ __forceinline__ void stop(u64 *out) {
    __syncthreads();
    if (threadIdx.x == 0) {
      out[2 * blockIdx.x] = clock64() - cycles;
      out[2 * blockIdx.x + 1] = now_ns() - ns;
    }
  }
};

constexpr int CHAINS = 8;  // independent operations in flight of one thread
constexpr int UNROLL = 32;  // so that the loop itself takes a percent of the issue slots

// The loop of a throughput probe: `STEP` is one operation on r[i], eight chains deep, and `count` loops.
#define THROUGHPUT(name, STEP)                                            \
  extern "C" __global__ void name(u64 *out, u32 count, u32 seed, u32 *sink) { \
    u32 r[CHAINS];                                                        \
    u32 x = seed * 2654435761u + threadIdx.x, y = x | 1u;                 \
    _Pragma("unroll") for (int i = 0; i < CHAINS; ++i) r[i] = x + 77u * i; \
    Watch watch;                                                          \
    watch.start();                                                        \
    _Pragma("unroll 1") for (u32 n = 0; n < count; ++n) {                 \
      _Pragma("unroll") for (int u = 0; u < UNROLL; ++u) {                \
        _Pragma("unroll") for (int i = 0; i < CHAINS; ++i) { STEP; }      \
      }                                                                   \
    }                                                                     \
    u32 sum = 0;                                                          \
    _Pragma("unroll") for (int i = 0; i < CHAINS; ++i) sum += r[i];       \
    watch.stop(out);                                                      \
    if (sum == 0x5ea1ab1eu && count == 0) *sink = sum + y;                \
  }

THROUGHPUT(fp32_fma, asm volatile("{.reg .f32 a, b; mov.b32 a, %0; mov.b32 b, %1; fma.rn.f32 a, a, b, b; mov.b32 %0, a;}"
                                  : "+r"(r[i]) : "r"(y)))
THROUGHPUT(special_ex2, asm volatile("{.reg .f32 a; mov.b32 a, %0; ex2.approx.ftz.f32 a, a; mov.b32 %0, a;}" : "+r"(r[i])))
THROUGHPUT(int32_mad, asm volatile("mad.lo.s32 %0, %0, %1, %1;" : "+r"(r[i]) : "r"(y)))
// two floats to a pair of bf16: one instruction, two conversions
THROUGHPUT(convert_pair, asm volatile("{.reg .f32 a, b; mov.b32 a, %0; mov.b32 b, %1; cvt.rn.bf16x2.f32 %0, a, b;}"
                                      : "+r"(r[i]) : "r"(y)))

extern "C" __global__ void barrier_block(u64 *out, u32 count) {
  Watch watch;
  watch.start();
#pragma unroll 16
  for (u32 n = 0; n < count; ++n) __syncthreads();
  watch.stop(out);
}

// Shared memory: each thread reads 16 bytes at a time, a warp 512 in a row: no bank conflicts.
extern "C" __global__ void shared_read(u64 *out, u32 count, u32 *sink) {
  extern __shared__ uint4 shared_words[];
  u32 base = static_cast<u32>(__cvta_generic_to_shared(shared_words)), sum = 0;
  for (u32 i = threadIdx.x; i < 2048; i += blockDim.x) shared_words[i] = make_uint4(i, i * 3, i * 5, i * 7);
  Watch watch;
  watch.start();
#pragma unroll 1
  for (u32 n = 0; n < count; ++n) {
    u32 x[8], y[8], z[8], w[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      u32 address = base + ((threadIdx.x + i * 256 + n) & 2047u) * 16u;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[i]), "=r"(y[i]), "=r"(z[i]), "=r"(w[i]) : "r"(address));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum ^= x[i] ^ y[i] ^ z[i] ^ w[i];
  }
  watch.stop(out);
  if (sum == 0x5ea1ab1eu) *sink = sum;
}

extern "C" __global__ void shared_latency(u64 *out, u32 count, u32 *sink) {
  __shared__ u32 next[256];
  u32 base = static_cast<u32>(__cvta_generic_to_shared(next));
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) next[i] = base + ((i * 37u + 11u) & 255u) * 4u;
  u32 address = base;
  Watch watch;
  watch.start();
#pragma unroll 16
  for (u32 n = 0; n < count; ++n) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(address));
  watch.stop(out);
  if (address == 0x5ea1ab1eu) *sink = address;
}

// Each block reads all `words` (a power of two) words of 16 bytes `passes` times, past L1. It begins `apart` words after
// the block before it: with 0 all blocks ask for the same lines together.
extern "C" __global__ void l2_read(u64 *out, const uint4 *data, u32 words, u32 apart, u32 passes, u32 *sink) {
  u32 sum = 0, mask = words - 1, first = blockIdx.x * apart + threadIdx.x;
  Watch watch;
  watch.start();
#pragma unroll 1
  for (u32 pass = 0; pass < passes; ++pass) {
#pragma unroll 1
    for (u32 at = 0; at < words; at += 8 * blockDim.x) {
      uint4 got[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4 *from = data + ((first + at + i * blockDim.x) & mask);
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(got[i].x), "=r"(got[i].y), "=r"(got[i].z), "=r"(got[i].w) : "l"(from));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum ^= got[i].x ^ got[i].y ^ got[i].z ^ got[i].w;
    }
  }
  watch.stop(out);
  if (sum == 0x5ea1ab1eu) *sink = sum;
}

extern "C" __global__ void dram_read(u64 *out, const uint4 *data, u64 words, u32 *sink) {
  u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  u32 sum = 0;
  Watch watch;
  watch.start();
#pragma unroll 1
  for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at + 7 * step < words; at += 8 * step) {
    uint4 got[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) got[i] = __ldcs(data + at + i * step);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum ^= got[i].x ^ got[i].y ^ got[i].z ^ got[i].w;
  }
  watch.stop(out);
  if (sum == 0x5ea1ab1eu) *sink = sum;
}

extern "C" __global__ void dram_copy(u64 *out, const uint4 *data, uint4 *copy, u64 words) {
  u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  Watch watch;
  watch.start();
#pragma unroll 1
  for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at + 3 * step < words; at += 4 * step) {
    uint4 got[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) got[i] = __ldcs(data + at + i * step);
#pragma unroll
    for (int i = 0; i < 4; ++i) __stcs(copy + at + i * step, got[i]);
  }
  watch.stop(out);
}

// Follows `count` pointers from `start`, past L1. One thread.
extern "C" __global__ void chase(u64 *out, u64 start, u32 warm, u32 count, u64 *sink) {
  u64 address = start;
  for (u32 n = 0; n < warm; ++n) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(address));
  Watch watch;
  watch.start();
#pragma unroll 8
  for (u32 n = 0; n < count; ++n) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(address));
  watch.stop(out);
  if (address == 0x5ea1ab1eu) *sink = address;
}

extern "C" __global__ void empty(u64 *) {}

// After `wait_ns` nanoseconds, says for `ns` more how fast its core's clock runs. Sleeps meanwhile, so as not to disturb
// what runs beside it.
extern "C" __global__ void clock_rate(u64 *out, u64 wait_ns, u64 ns) {
  u64 begin_ns = now_ns(), end_ns = begin_ns;
  while (end_ns - begin_ns < wait_ns) {
    __nanosleep(1000);
    end_ns = now_ns();
  }
  u64 begin = clock64();
  begin_ns = end_ns;
  while (end_ns - begin_ns < ns) {
    __nanosleep(1000);
    end_ns = now_ns();
  }
  out[0] = clock64() - begin;
  out[1] = end_ns - begin_ns;
}

#if __CUDA_ARCH__ >= 800
// mma.sync m16n8k16 in bf16: `PARALLEL` independent ones in flight of a warp.
template <int PARALLEL> __device__ __forceinline__ void mma_loop(u64 *out, u32 count, u32 seed, u32 *sink) {
  float c[PARALLEL][4] = {};
  u32 a0 = 0x3f803f80u + (seed & threadIdx.x), a1 = a0 + 1, a2 = a0 + 2, a3 = a0 + 3, b0 = a0 ^ 5u, b1 = a0 ^ 9u;
  Watch watch;
  watch.start();
#pragma unroll 8
  for (u32 n = 0; n < count; ++n) {
#pragma unroll
    for (int i = 0; i < PARALLEL; ++i) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  }
  watch.stop(out);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < PARALLEL; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (sum == -1.25f) *sink = 1;
}
extern "C" __global__ void mma_rate(u64 *out, u32 count, u32 seed, u32 *sink) { mma_loop<4>(out, count, seed, sink); }
extern "C" __global__ void mma_latency(u64 *out, u32 count, u32 seed, u32 *sink) { mma_loop<1>(out, count, seed, sink); }
#endif
