// How long atomics of many warps take that go to few places, or to many.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 atomics.cu -o atomics && ./atomics > h200.csv
//
// Each warp executes STEPS atomics. Their places are drawn by a hash among `places` lines of 128 bytes. The
// active lanes of a warp add to one address (spread 0) or to neighbours (spread 1). Median of 5 runs.

#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

constexpr int STEPS = 32, THREADS = 256, LINE = 128;

struct FloatAdd { using T = float; static constexpr const char* name = "float add";
  static __device__ T run(T* p) { return atomicAdd(p, 1.0f); } };
struct IntAdd { using T = int; static constexpr const char* name = "int add";
  static __device__ T run(T* p) { return atomicAdd(p, 1); } };
struct IntMax { using T = int; static constexpr const char* name = "int max";
  static __device__ T run(T* p) { return atomicMax(p, static_cast<int>(threadIdx.x)); } };
struct Float4Add { using T = float4; static constexpr const char* name = "float4 add";
  static __device__ T run(T* p) { return atomicAdd(p, make_float4(1, 1, 1, 1)); } };

template <class Op, bool Returns>
__global__ void atomics(char* memory, unsigned places, int lanes, int spread, float* sink) {
  unsigned warp = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (lane >= lanes) return;
  float total = 0;
  for (int step = 0; step < STEPS; ++step) {
    unsigned place = (warp * 2654435761u + step * 40503u) >> 7;
    auto* line = reinterpret_cast<typename Op::T*>(memory + static_cast<size_t>(place % places) * LINE *
                                                   (spread ? sizeof(typename Op::T) / 4 : 1));
    auto old = Op::run(line + lane * spread);
    if (Returns) total += *reinterpret_cast<float*>(&old);
  }
  if (Returns && total == -1.0f) *sink = total;
}

template <class Op, bool Returns>
void measure(char* memory, float* sink, int cores, unsigned places, int lanes, int spread) {
  int blocks = cores * 8;
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> times;
  for (int run = 0; run < 6; ++run) {
    cudaEventRecord(start);
    atomics<Op, Returns><<<blocks, THREADS>>>(memory, places, lanes, spread, sink);
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    if (run) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  double count = static_cast<double>(blocks) * THREADS / 32 * STEPS;
  printf("%s,%d,%d,%d,%u,%.0f,%.2f,%.4f\n", Op::name, Returns, lanes, spread, places, count, times[2],
         times[2] * 1e3 / count);
  fflush(stdout);
}

template <class Op>
void all(char* memory, float* sink, int cores) {
  for (unsigned places : {1u, 2u, 4u, 16u, 64u, 256u, 1024u, 8192u, 65536u})
    for (int lanes : {1, 32})
      for (int spread : {0, 1}) {
        if (lanes == 1 && spread) continue;
        measure<Op, false>(memory, sink, cores, places, lanes, spread);
        measure<Op, true>(memory, sink, cores, places, lanes, spread);
      }
}

int main() {
  cudaDeviceProp device;
  cudaGetDeviceProperties(&device, 0);
  fprintf(stderr, "%s\n", device.name);
  char* memory;
  float* sink;
  cudaMalloc(&memory, size_t(65536) * LINE * 4 + 4096);
  cudaMemset(memory, 0, size_t(65536) * LINE * 4 + 4096);
  cudaMalloc(&sink, 4);
  printf("operation,returns,lanes,spread,places,instructions,us,ns_each\n");
  all<FloatAdd>(memory, sink, device.multiProcessorCount);
  all<IntAdd>(memory, sink, device.multiProcessorCount);
  all<IntMax>(memory, sink, device.multiProcessorCount);
  all<Float4Add>(memory, sink, device.multiProcessorCount);
  return cudaDeviceSynchronize() != cudaSuccess;
}
