// The time between two events around 1 to 8 launches of a kernel, one after another. Prints one CSV row a case.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 sequence.cu -o sequence && ./sequence > rows.csv
//
// Each launch adds 1 to `bytes` bytes of memory and reads what the launch before it wrote. L2 is filled with
// other, modified lines before each sequence. `data` says what the launches of a sequence touch:
//   same   the same bytes: from the second launch on they are in L2
//   other  other bytes each: they come from device memory
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call) do { auto e = (call); if (e != 0) { fprintf(stderr, "%s: error %d\n", #call, int(e)); exit(1); } } while (0)

__global__ void add(uint4* data, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        uint4 v = data[i];
        v.x += 1; v.y += 1; v.z += 1; v.w += 1;
        data[i] = v;
    }
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    const int cores = device.multiProcessorCount;
    const size_t total = size_t(1) << 30, flush = size_t(256) << 20;
    unsigned char* data;
    unsigned char* other;
    CHECK(cudaMalloc(&data, total));
    CHECK(cudaMalloc(&other, flush));
    CHECK(cudaMemset(data, 7, total));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    printf("device,bytes,data,launches,median_us,lowest_us,highest_us,samples\n");
    for (size_t bytes : {size_t(0), size_t(1) << 16, size_t(1) << 20, size_t(8) << 20})
        for (const char* touched : {"same", "other"})
            for (int launches : {1, 2, 3, 4, 6, 8}) {
                std::vector<float> times;
                for (int sample = 0; sample < 60; ++sample) {
                    add<<<cores * 4, 256>>>(reinterpret_cast<uint4*>(other), flush / 16);
                    CHECK(cudaEventRecord(begin));
                    for (int n = 0; n < launches; ++n) {
                        const size_t at = touched[0] == 's' ? 0 : (size_t(16) << 20) * n;
                        add<<<cores, 256>>>(reinterpret_cast<uint4*>(data + at), bytes / 16);
                    }
                    CHECK(cudaEventRecord(end));
                    CHECK(cudaEventSynchronize(end));
                    float ms;
                    CHECK(cudaEventElapsedTime(&ms, begin, end));
                    if (sample >= 10) times.push_back(ms * 1e3f);
                }
                std::sort(times.begin(), times.end());
                printf("%s,%zu,%s,%d,%.3f,%.3f,%.3f,%zu\n", device.name, bytes, touched, launches, times[times.size() / 2],
                       times.front(), times.back(), times.size());
            }
    return 0;
}
