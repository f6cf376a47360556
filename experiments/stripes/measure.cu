// Bandwidth of L2 and device memory by what the blocks that run together touch: narrow stripes or whole rows of a
// wide matrix, from all cores or from a few.
//     nvcc -O3 -arch=sm_90 -o measure measure.cu && ./measure > rows.csv
// A block moves a tile of 64 rows, each `run` contiguous bytes of a row of `pitch` bytes. Blocks start along the
// rows first (`down`: those that run together share a stripe) or along the columns first (`across`: they share
// rows). A matrix of 1 GB is moved once, one of 16 MB, which stays in L2, 32 times. With `cores`, one block of 1024
// threads on each of so many cores moves all tiles. The time is the median of five launches.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

constexpr int ROWS = 64, LAUNCHES = 5;

enum Operation { LOAD, STORE, COPY, ADD };
constexpr const char* NAMES[] = {"load", "store", "copy", "atomic add"};

template <Operation OPERATION>
__global__ void run(const float4* in, float4* out, float* sum, size_t pitch, int run_bytes, int shift, int tiles,
                    int stripes, bool down, int rounds) {
  const int vectors = 1 << shift, total = vectors * ROWS;  // no divisions in the loop

  float got = 0;
  for (int round = 0; round < rounds; ++round)
    for (int tile = blockIdx.x; tile < tiles * stripes; tile += gridDim.x) {
      const int t = (tile + round * 17) % (tiles * stripes);  // another block's tile in each round
      const int row0 = (down ? t % tiles : t / stripes) * ROWS, stripe = down ? t / tiles : t % stripes;
      const size_t row = pitch / 16, first = row0 * row + (size_t(stripe) << shift);
#pragma unroll 8
      for (int i = threadIdx.x; i < total; i += blockDim.x) {
        const size_t at = first + (i >> shift) * row + (i & (vectors - 1));
        if (OPERATION == LOAD) got += __ldcg(in + at).x;  // past L1
        if (OPERATION == STORE) out[at] = make_float4(i, i, i, i);
        if (OPERATION == COPY) out[at] = in[at];
        if (OPERATION == ADD) atomicAdd(out + at, make_float4(1, 1, 1, 1));
      }
    }
  if (got == 12345.678f) *sum = got;  // never; without it the loads would be left out
}

template <Operation OPERATION>
void measure(const char* in, char* out, float* sum, int megabytes, size_t pitch, int run_bytes, bool down,
             int cores) {
  const size_t bytes = size_t(megabytes) << 20;
  const int rounds = megabytes < 100 ? (cores ? 4 : 32) : 1;
  const int tiles = int(bytes / pitch / ROWS), stripes = int(pitch / run_bytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int launch = 0; launch < LAUNCHES; ++launch) {
    cudaEventRecord(begin);
    run<OPERATION><<<cores ? cores : tiles * stripes, cores ? 1024 : 256>>>(
        (const float4*)in, (float4*)out, sum, pitch, run_bytes, __builtin_ctz(run_bytes / 16), tiles, stripes, down,
        rounds);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float milliseconds;
    cudaEventElapsedTime(&milliseconds, begin, end);
    times.push_back(milliseconds * 1e3f);
  }
  std::sort(times.begin(), times.end());
  const double us = times[LAUNCHES / 2];
  const double moved = double(tiles) * ROWS * stripes * run_bytes * rounds * (OPERATION == COPY ? 2 : 1);
  printf("%s,%s,%d,%d,%zu,%d,%.1f,%.1f\n", NAMES[OPERATION], down ? "down" : "across", cores, megabytes, pitch,
         run_bytes, us, moved / us / 1e3);
}

void measure_all(const char* in, char* out, float* sum, int megabytes, size_t pitch, int run_bytes, bool down,
                 int cores) {
  measure<LOAD>(in, out, sum, megabytes, pitch, run_bytes, down, cores);
  measure<STORE>(in, out, sum, megabytes, pitch, run_bytes, down, cores);
  measure<COPY>(in, out, sum, megabytes, pitch, run_bytes, down, cores);
  measure<ADD>(in, out, sum, megabytes, pitch, run_bytes, down, cores);
}

int main() {
  char *in, *out;
  float* sum;
  cudaMalloc(&in, (size_t(1) << 30) + (1 << 20));
  cudaMalloc(&out, (size_t(1) << 30) + (1 << 20));
  cudaMalloc(&sum, sizeof(float));
  cudaMemset(in, 1, size_t(1) << 30);
  printf("operation,order,cores,footprint_mb,pitch,run_bytes,us,gb_per_s\n");
  for (int megabytes : {16, 1024})
    for (size_t pitch : {4096, 5120, 16384, 24576, 65536})
      for (int run_bytes : {16, 32, 64, 128, 256, 512, 1024})
        for (bool down : {true, false}) measure_all(in, out, sum, megabytes, pitch, run_bytes, down, 0);
  for (int cores : {1, 2, 4, 8, 16, 32, 64, 96, 132}) measure_all(in, out, sum, 16, 65536, 4096, false, cores);
}
