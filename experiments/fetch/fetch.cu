// Cycles of an instruction in straight code of growing size, when it runs for the first time and again.
// run.py launches the kernels and prints a row for each pass.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 -cubin fetch.cu -o fetch.cubin     (some minutes)
//     python run.py fetch.cubin > rows.csv
//
// A loop of four passes goes through SIZE multiply-adds (16 bytes each) of four independent sums, so a warp
// alone can issue one in each cycle. Another kernel of the largest size runs before each case.
#include <cuda_runtime.h>

#define FMA(x) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(factor), "f"(term));
#define FOUR FMA(a) FMA(b) FMA(c) FMA(d)
#define SIXTEEN FOUR FOUR FOUR FOUR
#define SIXTY_FOUR SIXTEEN SIXTEEN SIXTEEN SIXTEEN
#define BLOCK SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR  // 256 instructions, 4 KiB

template <int BLOCKS>
__device__ __forceinline__ void code(float& a, float& b, float& c, float& d, float factor, float term) {
    if constexpr (BLOCKS > 0) {
        BLOCK
        code<BLOCKS - 1>(a, b, c, d, factor, term);
    }
}

// `KIND` makes kernels of equal size different code
template <int BLOCKS, int KIND>
__global__ void straight(float factor, float term, int passes, long long* cycles, float* out) {
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3 + KIND;
    __syncthreads();
    for (int pass = 0; pass < passes; ++pass) {
        long long begin = clock64();
        code<BLOCKS>(a, b, c, d, factor, term);
        long long end = clock64();
        if (threadIdx.x == 0 && blockIdx.x == 0) cycles[pass] = end - begin;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}

#define SIZE(BLOCKS) \
    template __global__ void straight<BLOCKS, 0>(float, float, int, long long*, float*);

SIZE(1)
SIZE(4)
SIZE(8)
SIZE(12)
SIZE(16)
SIZE(24)
SIZE(31)
SIZE(33)
SIZE(40)
SIZE(48)
SIZE(64)
SIZE(96)
template __global__ void straight<128, 1>(float, float, int, long long*, float*);
