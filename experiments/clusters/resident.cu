// How many clusters of blocks run at once, and on which cores the blocks of each cluster run.
//
//     nvcc -arch=sm_90a resident.cu -o resident && ./resident > h200-resident.txt
#include <cstdio>
#include <cuda_runtime.h>

constexpr int BLOCKS = 256, THREADS = 384;
constexpr long long HELD_CYCLES = 200000;  // of each block, so that all of a wave are there together

__global__ void core_of_block(int *cores) {
  extern __shared__ int shared[];
  unsigned core;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(core));
  if (threadIdx.x == 0) cores[blockIdx.x] = core;
  for (long long begin = clock64(); clock64() - begin < HELD_CYCLES;) {
  }
}

struct Launch {
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute[1];
  Launch(int shared, int cluster) {
    cudaFuncSetAttribute(core_of_block, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = cluster;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.gridDim = dim3(BLOCKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.attrs = attribute;
    config.numAttrs = 1;
  }
};

int main() {
  for (int shared : {32 << 10, 64 << 10, 100 << 10, 200 << 10})
    for (int cluster : {1, 2, 4, 8}) {
      Launch launch(shared, cluster);
      int count = 0;
      cudaError_t error = cudaOccupancyMaxActiveClusters(&count, core_of_block, &launch.config);
      printf("smem %d cluster %d: %d clusters, %d blocks %s\n", shared, cluster, count, count * cluster,
             cudaGetErrorString(error));
    }
  int *cores, found[BLOCKS];
  cudaMalloc(&cores, sizeof found);
  for (int shared : {64 << 10, 200 << 10})
    for (int cluster : {2, 4, 8}) {
      Launch launch(shared, cluster);
      cudaLaunchKernelEx(&launch.config, core_of_block, cores);
      cudaMemcpy(found, cores, sizeof found, cudaMemcpyDeviceToHost);
      printf("where smem %d cluster %d:", shared, cluster);
      for (int i = 0; i < BLOCKS; i++) printf("%s%d", i % cluster ? "," : " ", found[i]);
      printf("\n");
    }
}
