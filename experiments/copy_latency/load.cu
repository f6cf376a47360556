// Cycles of one load that the next one depends on, of one thread: from shared memory, from the first-level
// cache and from L2. Prints one CSV row for each case and run.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 load.cu -o load && ./load > loads.csv
//
// Each element holds the address of the next one, so no load begins before the one before it has arrived, and
// nothing is computed between them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call) do { auto e = (call); if (e != 0) { fprintf(stderr, "%s: error %d\n", #call, int(e)); exit(1); } } while (0)

constexpr int STEPS = 4096;  // loads of one run
constexpr int COUNT = 2048;  // elements of eight bytes: 16 KiB, which each level holds

enum Level { SHARED, FIRST_LEVEL, L2 };
constexpr const char* NAMES[] = {"shared", "first_level", "l2"};

template <Level level>
__device__ __forceinline__ uint64_t load(uint64_t from) {
    uint64_t value;
    if constexpr (level == SHARED) {
        uint32_t next;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(uint32_t(from)));
        return next;
    }
    if constexpr (level == FIRST_LEVEL) asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(value) : "l"(from));
    else asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(from));
    return value;
}

template <Level level>
__global__ void chase(uint64_t* elements, int stride, long long* cycles, uint64_t* last) {
    __shared__ uint64_t shared[COUNT];
    uint64_t* held = level == SHARED ? shared : elements;
    uint64_t base = level == SHARED ? uint64_t(__cvta_generic_to_shared(shared)) : uint64_t(elements);
    for (int i = 0; i < COUNT; ++i) held[i] = base + 8ull * ((i + stride) % COUNT);
    __threadfence();
    uint64_t at = base;
    for (int i = 0; i < COUNT; ++i) at = load<level>(at);  // the elements come to their level
    long long begin = clock64();
#pragma unroll 16
    for (int i = 0; i < STEPS; ++i) at = load<level>(at);
    long long end = clock64();
    *cycles = end - begin;
    *last = at;
}

template <Level level>
void run(const cudaDeviceProp& device, uint64_t* elements, int stride) {
    long long* cycles;
    uint64_t* last;
    CHECK(cudaMallocManaged(&cycles, sizeof(*cycles)));
    CHECK(cudaMallocManaged(&last, sizeof(*last)));
    for (int run = 1; run <= 4; ++run) {
        chase<level><<<1, 1>>>(elements, stride, cycles, last);
        CHECK(cudaDeviceSynchronize());
        printf("%s,%s,%d,%d,%.1f\n", device.name, NAMES[level], stride * 8, run, double(*cycles) / STEPS);
    }
    CHECK(cudaFree(cycles));
    CHECK(cudaFree(last));
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("device,level,stride_bytes,run,cycles\n");
    uint64_t* elements;
    CHECK(cudaMalloc(&elements, COUNT * sizeof(*elements)));
    for (int stride : {1, 5, 17}) {  // the next element, another sector, another line
        run<SHARED>(device, elements, stride);
        run<FIRST_LEVEL>(device, elements, stride);
        run<L2>(device, elements, stride);
    }
    return 0;
}
