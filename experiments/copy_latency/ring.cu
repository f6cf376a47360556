// The period of a ring of bulk tensor copies: a producer thread fills slots, 128 consumer threads release them
// without reading. Prints one CSV row for each case.
//
//     nvcc -arch=sm_90a -O3 -std=c++17 ring.cu -o ring && ./ring > rows.csv
//
// `source` says where the bytes lie when they are copied:
//   same   each block copies its own tile again and again: L2 has it
//   shared all blocks copy the same tiles in the same order, which L2 has
//   fresh  all blocks copy the same tiles, which nobody has read before: one miss, all wait
//   own    each block copies tiles of its own that nobody has read before
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <algorithm>
#include <vector>
#include <cuda.h>
#include <cuda_runtime.h>

#define CHECK(call) do { auto e = (call); if (e != 0) { fprintf(stderr, "%s: error %d\n", #call, int(e)); exit(1); } } while (0)

constexpr int COLUMNS = 64;     // elements of 2 bytes: rows of 128 bytes, the widest swizzle
constexpr int MOST_SLOTS = 4;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}" :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Tile `t` of the whole tensor is its rows t * rows ... t * rows + rows - 1.
template <int slots>
__global__ void __launch_bounds__(256) ring(const __grid_constant__ CUtensorMap map, int rows, int turns,
                                            int per_block, int per_turn, int tiles, long long* cycles) {
    extern __shared__ __align__(1024) unsigned char buffer[];
    __shared__ uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    if (threadIdx.x == 0) {
        for (int s = 0; s < slots; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" :: "r"(shared_address(&empty[s])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    const int bytes = rows * COLUMNS * 2;
    const long long begin = clock64();
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) {
            int tile = blockIdx.x * per_block % tiles, s = 0;
            uint32_t parity = 1;
            for (int i = 0; i < turns; ++i) {
                wait(&empty[s], parity);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             :: "r"(shared_address(&full[s])), "r"(bytes) : "memory");
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                             " [%0], [%1, {%2, %3}], [%4];"
                             :: "r"(shared_address(buffer + s * bytes)), "l"(&map), "r"(0), "r"(tile * rows),
                                "r"(shared_address(&full[s])) : "memory");
                tile += per_turn;
                if (tile == tiles) tile = 0;
                if (++s == slots) { s = 0; parity ^= 1; }
            }
        }
    } else {
        int s = 0;
        uint32_t parity = 0;
        for (int i = 0; i < turns; ++i) {
            wait(&full[s], parity);
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(&empty[s])) : "memory");
            if (++s == slots) { s = 0; parity ^= 1; }
        }
        if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
    }
}

__global__ void touch(const uint4* data, size_t count, uint4* out) {
    uint4 sum = {0, 0, 0, 0};
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const uint4 v = data[i];
        sum.x ^= v.x; sum.y ^= v.y; sum.z ^= v.z; sum.w ^= v.w;
    }
    if (sum.x == 0x12345678u) *out = sum;
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    const int cores = device.multiProcessorCount;
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    const auto encode = reinterpret_cast<Encode>(entry);

    const size_t total = size_t(4) << 30, other = size_t(256) << 20;
    unsigned char *data, *flush;
    long long* cycles;
    CHECK(cudaMalloc(&data, total));
    CHECK(cudaMalloc(&flush, other));
    CHECK(cudaMalloc(&cycles, sizeof(long long) * 4 * cores));
    std::vector<uint32_t> noise(1 << 20);
    for (auto& word : noise) word = uint32_t(rand()) * 2654435761u;
    for (size_t at = 0; at < total; at += noise.size() * 4)
        CHECK(cudaMemcpy(data + at, noise.data(), noise.size() * 4, cudaMemcpyHostToDevice));
    using Ring = void (*)(CUtensorMap, int, int, int, int, int, long long*);
    const Ring rings[MOST_SLOTS] = {ring<1>, ring<2>, ring<3>, ring<4>};
    for (auto one : rings)
        CHECK(cudaFuncSetAttribute(one, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    printf("device,blocks,tile_bytes,slots,source,turns,run,mean_cycles,lowest_cycles,highest_cycles\n");
    std::vector<long long> host(4 * cores);
    for (int blocks : {1, cores / 4, cores})
        for (int rows : {8, 32, 64, 128, 256})
            for (int slots = 1; slots <= MOST_SLOTS; ++slots)
                for (const char* source : {"same", "shared", "fresh", "own"}) {
                    const long long tiles = total / (rows * COLUMNS * 2);
                    const int bytes = rows * COLUMNS * 2;
                    const bool once = source[0] == 'f' || source[0] == 'o';
                    const int turns = source[0] == 'o' ? int(std::min<long long>(512, tiles / cores)) : 512;
                    CUtensorMap map;
                    const cuuint64_t shape[2] = {COLUMNS, total / (COLUMNS * 2)}, stride[1] = {COLUMNS * 2};
                    const cuuint32_t box[2] = {COLUMNS, cuuint32_t(rows)}, step[2] = {1, 1};
                    CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, shape, stride, box, step,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
                    const long long per_block = source[0] == 's' && source[1] == 'a' ? 1 : source[0] == 'o' ? turns : 0;
                    const long long per_turn = source[0] == 's' && source[1] == 'a' ? 0 : 1;
                    // `shared`: as many tiles as fit L2 easily, walked through again and again
                    const long long walked = source[1] == 'h' ? std::min<long long>(tiles, (8 << 20) / bytes) : tiles;
                    for (int run = 0; run < 5; ++run) {
                        if (once) touch<<<cores * 4, 256>>>(reinterpret_cast<uint4*>(flush), other / 16, reinterpret_cast<uint4*>(flush));
                        rings[slots - 1]<<<blocks, 256, slots * bytes + 1024>>>(map, rows, turns, int(per_block), int(per_turn), int(walked), cycles);
                        CHECK(cudaDeviceSynchronize());
                        CHECK(cudaMemcpy(host.data(), cycles, sizeof(long long) * blocks, cudaMemcpyDeviceToHost));
                        double sum = 0, low = 1e18, high = 0;
                        for (int b = 0; b < blocks; ++b) {
                            const double each = double(host[b]) / turns;
                            sum += each; low = std::min(low, each); high = std::max(high, each);
                        }
                        if (run) printf("%s,%d,%d,%d,%s,%d,%d,%.1f,%.1f,%.1f\n", device.name, blocks, bytes, slots, source, turns, run, sum / blocks, low, high);
                    }
                }
    return 0;
}
