// What isolated sectors cost: each lane of a warp loads, stores or adds a few bytes, `stride` bytes from its
// neighbour.
//     nvcc -O3 -arch=sm_90 -o measure measure.cu && ./measure > rows.csv
// Warps take pieces of 32 strides in random order. A footprint of 8 or 20 MB stays in L2, 1024 MB does not.
// The time is the median of nine launches. Sectors have 32 bytes, lines 128.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <random>
#include <vector>

constexpr int BLOCKS = 132 * 4, THREADS = 512, LAUNCHES = 9;

enum Operation { LOAD, STORE, ADD };
constexpr const char* NAMES[] = {"load", "store", "atomic add"};

template <typename Word, Operation OPERATION>
__global__ void run(char* memory, const int* order, int pieces, int stride, int rounds, float* out) {
  const int lane = threadIdx.x & 31;
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = (gridDim.x * blockDim.x) >> 5;
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll 8
    for (int i = first; i < pieces; i += warps) {
      char* piece = memory + size_t(order[(i + round * 977) % pieces]) * stride * 32;
      Word* word = reinterpret_cast<Word*>(piece + lane * stride);
      if constexpr (OPERATION == LOAD) {
        sum += float(reinterpret_cast<const unsigned short&>(*word));
      } else if constexpr (OPERATION == STORE) {
        Word value;
        reinterpret_cast<unsigned short&>(value) = static_cast<unsigned short>(i);
        *word = value;
      } else {
        Word one{};
        reinterpret_cast<float&>(one) = 1.0f;
        atomicAdd(word, one);
      }
    }
  }
  if (sum == 12345.678f) *out = sum;  // never; without it the loads would be left out
}

template <typename Word, Operation OPERATION = LOAD>
void measure(char* memory, int* order, float* out, int megabytes, int stride) {
  const size_t pieces = (size_t(megabytes) << 20) / (size_t(stride) * 32);
  if (stride < int(sizeof(Word)) || pieces < 1056 || pieces > (1u << 22)) return;
  std::vector<int> chosen(pieces);
  for (size_t i = 0; i < pieces; ++i) chosen[i] = int(i);
  std::shuffle(chosen.begin(), chosen.end(), std::mt19937(0));
  cudaMemcpy(order, chosen.data(), sizeof(int) * pieces, cudaMemcpyHostToDevice);
  const int rounds = std::max(1, int(400000 / pieces));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int launch = 0; launch < LAUNCHES; ++launch) {
    cudaEventRecord(begin);
    run<Word, OPERATION><<<BLOCKS, THREADS>>>(memory, order, int(pieces), stride, rounds, out);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float milliseconds;
    cudaEventElapsedTime(&milliseconds, begin, end);
    times.push_back(milliseconds * 1e3f);
  }
  std::sort(times.begin(), times.end());
  const double us = times[LAUNCHES / 2], requests = double(pieces) * rounds;
  const double sectors = requests * std::clamp(stride * 1.0, 1.0, 32.0);
  const double lines = requests * std::clamp(stride / 4.0, 1.0, 32.0);
  printf("%s,%zu,%d,%d,%.1f,%.1f,%.1f,%.1f\n", NAMES[OPERATION], sizeof(Word), stride, megabytes, us, sectors / us,
         sectors * 32 / us / 1e3, lines / us);
}

int main() {
  char* memory;
  int* order;
  float* out;
  const size_t bytes = size_t(1) << 30;
  cudaMalloc(&memory, bytes);
  cudaMalloc(&order, sizeof(int) << 22);
  cudaMalloc(&out, sizeof(float));
  cudaMemset(memory, 1, bytes);
  printf("operation,bytes,stride,footprint_mb,us,sectors_per_us,sector_gb_s,lines_per_us\n");
  for (int megabytes : {8, 20, 1024})
    for (int stride : {2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
      measure<unsigned short>(memory, order, out, megabytes, stride);
      measure<float>(memory, order, out, megabytes, stride);
      measure<float4>(memory, order, out, megabytes, stride);
      measure<unsigned short, STORE>(memory, order, out, megabytes, stride);
      measure<float, STORE>(memory, order, out, megabytes, stride);
      measure<float4, STORE>(memory, order, out, megabytes, stride);
      measure<float, ADD>(memory, order, out, megabytes, stride);
      measure<float4, ADD>(memory, order, out, megabytes, stride);
    }
}
