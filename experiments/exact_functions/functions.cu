// Cycles that a warp takes for one element of exact functions of float32 (no fast math), in code that handles
// independent elements one after another. Prints one CSV row for each function, number of warps and run.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 functions.cu -o functions && ./functions > h200.csv
//
// Each thread has ELEMENTS values in registers, and no element needs another one: only how the compiler orders
// the instructions decides whether a warp works on several at a time. One block runs, with 1 to 32 warps.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call) do { auto e = (call); if (e != 0) { fprintf(stderr, "%s: error %d\n", #call, int(e)); exit(1); } } while (0)

constexpr int ELEMENTS = 16;
constexpr int TURNS = 64;

enum Function { MULTIPLY, EXP, DIVIDE, DIVIDE_BY_ONE, RECIPROCAL, SQUARE_ROOT, SIGMOID, SWISH, FAST_SWISH, BY_CONSTANT, ERF, TANH, LOG };
constexpr const char* NAMES[] = {"multiply", "exp", "divide", "divide_by_one", "reciprocal", "sqrt", "sigmoid", "swish", "fast_swish", "by_constant", "erf", "tanh", "log"};

template <Function function>
__device__ __forceinline__ float apply(float x, float y) {
    if constexpr (function == MULTIPLY) return x * y;
    if constexpr (function == EXP) return expf(x);
    if constexpr (function == DIVIDE) return x / (y + x);
    if constexpr (function == DIVIDE_BY_ONE) return x / y;  // the same divisor for all elements
    if constexpr (function == RECIPROCAL) return 1.0f / (x + y);
    if constexpr (function == SQUARE_ROOT) return sqrtf(x * y);
    if constexpr (function == SIGMOID) return 1.0f / (1.0f + expf(-x));
    if constexpr (function == SWISH) return x / (1.0f + expf(-x));
    if constexpr (function == BY_CONSTANT) return x / 10.0f + 1.0f;
    if constexpr (function == ERF) return erff(x);
    if constexpr (function == TANH) return tanhf(x);
    if constexpr (function == LOG) return logf(x + 1.5f);
    return __fdividef(x, 1.0f + __expf(-x));
}

template <Function function>
__global__ void work(const float* from, float* to, long long* cycles) {
    float values[ELEMENTS];
    float y = from[threadIdx.x] + 1.0f;
    for (int i = 0; i < ELEMENTS; ++i) values[i] = from[threadIdx.x + 32 * i] + 1.0f;
    __syncthreads();
    long long begin = clock64();
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) values[i] = apply<function>(values[i], y);
    }
    __syncthreads();
    long long end = clock64();
    float sum = 0.0f;
    for (int i = 0; i < ELEMENTS; ++i) sum += values[i];
    to[threadIdx.x] = sum;
    if (threadIdx.x == 0) *cycles = end - begin;
}

template <Function function>
void run(const cudaDeviceProp& device, const float* from, float* to, long long* cycles) {
    for (int warps = 1; warps <= 32; warps *= 2)
        for (int run = 1; run <= 3; ++run) {
            work<function><<<1, 32 * warps>>>(from, to, cycles);
            CHECK(cudaDeviceSynchronize());
            printf("%s,%s,%d,%d,%.1f\n", device.name, NAMES[function], warps, run, double(*cycles) / (TURNS * ELEMENTS));
        }
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("device,function,warps,run,cycles_an_element\n");
    float *from, *to;
    long long* cycles;
    CHECK(cudaMallocManaged(&from, 2048 * sizeof(float)));
    CHECK(cudaMallocManaged(&to, 1024 * sizeof(float)));
    CHECK(cudaMallocManaged(&cycles, sizeof(*cycles)));
    for (int i = 0; i < 2048; ++i) from[i] = 0.5f + float(rand()) / float(RAND_MAX);
    run<MULTIPLY>(device, from, to, cycles);
    run<EXP>(device, from, to, cycles);
    run<DIVIDE>(device, from, to, cycles);
    run<DIVIDE_BY_ONE>(device, from, to, cycles);
    run<RECIPROCAL>(device, from, to, cycles);
    run<SQUARE_ROOT>(device, from, to, cycles);
    run<SIGMOID>(device, from, to, cycles);
    run<SWISH>(device, from, to, cycles);
    run<FAST_SWISH>(device, from, to, cycles);
    run<BY_CONSTANT>(device, from, to, cycles);
    run<ERF>(device, from, to, cycles);
    run<TANH>(device, from, to, cycles);
    run<LOG>(device, from, to, cycles);
    return 0;
}
