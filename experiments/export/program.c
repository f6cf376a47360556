/* A program without a CUDA toolkit that uses an exported matmul in bfloat16, called `product`, on GPUs.
 *
 *   gcc -O2 program.c -DN=8192 -DK=8192 -IFOLDER -LFOLDER -lproduct -Wl,-rpath,FOLDER -ldl -o program
 *   ./program check DEVICE M...    computes with each size, directly and in a CUDA graph, and compares with the product
 *   ./program first DEVICE M       milliseconds until the first product is there, as one line of JSON
 *   ./program time DEVICE M...     microseconds of the host for a call and for the bare launch, in turns
 *   ./program select DEVICE M      nanoseconds for a choice among all sizes up to M
 *
 * Compile with -DHAS_WORKSPACE if the export needs scratch memory. Rows of A and columns of B are constant, with few
 * bits, so that the product is exact. */
#define _GNU_SOURCE
#include "product.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BURST = 50, BURSTS = 40 };

static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGet)(int *, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuCtxPushCurrent_v2)(void *);
  int (*cuCtxPopCurrent_v2)(void **);
  int (*cuCtxSynchronize)(void);
  int (*cuMemAlloc_v2)(uint64_t *, size_t);
  int (*cuMemFree_v2)(uint64_t);
  int (*cuMemcpyHtoD_v2)(uint64_t, const void *, size_t);
  int (*cuMemcpyDtoH_v2)(void *, uint64_t, size_t);
  int (*cuMemsetD8_v2)(uint64_t, unsigned char, size_t);
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuStreamSynchronize)(void *);
  int (*cuStreamBeginCapture_v2)(void *, int);
  int (*cuStreamEndCapture)(void *, void **);
  int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long);
  int (*cuGraphLaunch)(void *, void *);
} driver;

static void must(int status, const char *what) {
  if (!status) return;
  printf("{\"error\": \"%s: %d %s\"}\n", what, status, product_error());
  exit(1);
}

#define CALL(name, ...) must(driver.name(__VA_ARGS__), #name)

static void synchronize(void) { must(driver.cuCtxSynchronize(), "cuCtxSynchronize"); }

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void open_driver(void) {
  const struct {
    const char *name;
    void *place;
  } functions[] = {
      {"cuInit", &driver.cuInit},
      {"cuDeviceGet", &driver.cuDeviceGet},
      {"cuDevicePrimaryCtxRetain", &driver.cuDevicePrimaryCtxRetain},
      {"cuCtxPushCurrent_v2", &driver.cuCtxPushCurrent_v2},
      {"cuCtxPopCurrent_v2", &driver.cuCtxPopCurrent_v2},
      {"cuCtxSynchronize", &driver.cuCtxSynchronize},
      {"cuMemAlloc_v2", &driver.cuMemAlloc_v2},
      {"cuMemFree_v2", &driver.cuMemFree_v2},
      {"cuMemcpyHtoD_v2", &driver.cuMemcpyHtoD_v2},
      {"cuMemcpyDtoH_v2", &driver.cuMemcpyDtoH_v2},
      {"cuMemsetD8_v2", &driver.cuMemsetD8_v2},
      {"cuStreamCreate", &driver.cuStreamCreate},
      {"cuStreamSynchronize", &driver.cuStreamSynchronize},
      {"cuStreamBeginCapture_v2", &driver.cuStreamBeginCapture_v2},
      {"cuStreamEndCapture", &driver.cuStreamEndCapture},
      {"cuGraphInstantiateWithFlags", &driver.cuGraphInstantiateWithFlags},
      {"cuGraphLaunch", &driver.cuGraphLaunch},
  };
  void *const library = dlopen("libcuda.so.1", RTLD_NOW);
  must(!library, "libcuda.so.1");
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *const found = dlsym(library, functions[i].name);
    must(!found, functions[i].name);
    memcpy(functions[i].place, &found, sizeof found);
  }
}

static void enter(int index) {
  void *context;
  int device;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, index);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxPushCurrent_v2, context);
}

static uint16_t bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static float row(int64_t i) { return (float)(i % 4); }
static float column(int64_t j) { return (float)(j % 2 + 1); }

static uint64_t memory(size_t bytes) {
  uint64_t address;
  CALL(cuMemAlloc_v2, &address, bytes);
  return address;
}

static uint64_t filled(int64_t rows, int64_t columns, int is_b) {
  uint16_t *const values = malloc((size_t)(rows * columns) * 2);
  must(!values, "malloc");
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) values[i * columns + j] = bfloat16(is_b ? column(j) : row(i));
  const uint64_t address = memory((size_t)(rows * columns) * 2);
  CALL(cuMemcpyHtoD_v2, address, values, (size_t)(rows * columns) * 2);
  free(values);
  return address;
}

static product_args arguments(int device, int64_t m) {
  product_args args;
  memset(&args, 0, sizeof args);
  args.device = device, args.m = m;
  args.A = (void *)filled(m, K, 0), args.B = (void *)filled(K, N, 1), args.C = (void *)memory((size_t)(m * N) * 2);
#ifdef HAS_WORKSPACE
  args.workspace_bytes = product_workspace(m);
  args.workspace = args.workspace_bytes ? (void *)memory(args.workspace_bytes) : NULL;
#endif
  CALL(cuMemsetD8_v2, (uint64_t)(uintptr_t)args.C, 0xff, (size_t)(m * N) * 2);
  return args;
}

static void release(const product_args *args) {
  CALL(cuMemFree_v2, (uint64_t)(uintptr_t)args->A);
  CALL(cuMemFree_v2, (uint64_t)(uintptr_t)args->B);
  CALL(cuMemFree_v2, (uint64_t)(uintptr_t)args->C);
#ifdef HAS_WORKSPACE
  if (args->workspace) CALL(cuMemFree_v2, (uint64_t)(uintptr_t)args->workspace);
#endif
}

static void compare(const product_args *args, const char *what) {
  const size_t bytes = (size_t)(args->m * N) * 2;
  uint16_t *const found = malloc(bytes);
  must(!found, "malloc");
  CALL(cuMemcpyDtoH_v2, found, (uint64_t)(uintptr_t)args->C, bytes);
  for (int64_t i = 0; i < args->m; i++)
    for (int64_t j = 0; j < N; j++)
      if (found[i * N + j] != bfloat16(row(i) * column(j) * (float)K)) {
        printf("{\"error\": \"%s: m=%lld: C[%lld][%lld] is wrong\"}\n", what, (long long)args->m, (long long)i,
               (long long)j);
        exit(1);
      }
  free(found);
}

static void check(int device, int64_t m) {
  product_args args = arguments(device, m);
  void *stream, *graph, *executable;
  CALL(cuStreamCreate, &stream, 1);
  must(product_call(&args, stream), "product_call");
  CALL(cuStreamSynchronize, stream);
  compare(&args, "call");
  CALL(cuMemsetD8_v2, (uint64_t)(uintptr_t)args.C, 0xff, (size_t)(m * N) * 2);
  synchronize();
  CALL(cuStreamBeginCapture_v2, stream, 0);
  must(product_call(&args, stream), "product_call in a capture");
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  compare(&args, "graph");
  release(&args);
  printf("{\"what\": \"check\", \"device\": %d, \"m\": %lld, \"kernel\": %d}\n", device, (long long)m,
         product_select(m));
}

static int ascending(const void *one, const void *other) {
  const double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

static void print_times(const char *what, int64_t m, double *times) {
  qsort(times, BURST * BURSTS, sizeof *times, ascending);
  printf("{\"what\": \"%s\", \"m\": %lld, \"p50_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f, \"n\": %d}\n", what,
         (long long)m, times[BURST * BURSTS / 2], times[BURST * BURSTS * 9 / 10], times[BURST * BURSTS * 99 / 100],
         BURST * BURSTS);
}

/* The bare launch is the function of the kernel's library that product_call calls. */
static void measure(int device, int64_t m, const char *folder) {
  static double calls[BURST * BURSTS], launches[BURST * BURSTS];
  char path[4096];
  product_args args = arguments(device, m);
  snprintf(path, sizeof path, "%s/kernels/product_%d.so", folder, product_select(m));
  void *const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *found = library ? dlsym(library, "tilesight_call") : NULL;
  must(!found, path);
  int (*launch)(void **, void *);
  memcpy(&launch, &found, sizeof found);
  void *bare[6] = {(void *)(uintptr_t)args.A, (void *)(uintptr_t)args.B, args.C};
  int count = 3;
#ifdef HAS_WORKSPACE
  if (args.workspace) bare[count++] = args.workspace;
#endif
  bare[count] = (void *)(intptr_t)m;
  for (int i = 0; i < BURST; i++) must(product_call(&args, NULL) || launch(bare, NULL), "warming up");
  for (int burst = 0; burst < BURSTS; burst++) {
    synchronize();
    for (int i = 0; i < BURST; i++) {
      const double begin = now();
      must(product_call(&args, NULL), "product_call");
      calls[burst * BURST + i] = (now() - begin) * 1e3;
    }
    synchronize();
    for (int i = 0; i < BURST; i++) {
      const double begin = now();
      must(launch(bare, NULL), "tilesight_call");
      launches[burst * BURST + i] = (now() - begin) * 1e3;
    }
  }
  synchronize();
  print_times("C: product_call", m, calls);
  print_times("C: bare launch", m, launches);
  release(&args);
}

static void first(int device, int64_t m) {
  const double begin = now();
  open_driver();
  enter(device);
  const double entered = now();
  must(product_init(device), "product_init");
  const double ready = now();
  product_args args = arguments(device, m);
  synchronize();
  const double filled_at = now();
  must(product_call(&args, NULL), "product_call");
  synchronize();
  const double done = now();
  compare(&args, "first");
  printf("{\"what\": \"C: first call\", \"m\": %lld, \"context_ms\": %.2f, \"init_ms\": %.2f, \"call_ms\": %.3f, "
         "\"init_and_call_ms\": %.2f, \"all_ms\": %.2f}\n",
         (long long)m, entered - begin, ready - entered, done - filled_at, ready - entered + done - filled_at,
         ready - begin + done - filled_at);
}

static void select_all(int64_t most) {
  const int64_t count = 20000000;
  uint64_t random = 1;
  int64_t sum = 0;
  for (int turn = 0; turn < 5; turn++) {
    double begin = now();
    for (int64_t i = 0; i < count; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      sum += product_select(1 + (int64_t)((random >> 33) % (uint64_t)most));
    }
    const double with = now() - begin;
    begin = now();
    for (int64_t i = 0; i < count; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      sum += 1 + (int64_t)((random >> 33) % (uint64_t)most);
    }
    const double without = now() - begin;
    printf("{\"what\": \"C: select\", \"m\": %lld, \"ns\": %.2f, \"ns_with_random_sizes\": %.2f, \"sum\": %lld}\n",
           (long long)most, (with - without) * 1e6 / (double)count, with * 1e6 / (double)count, (long long)sum);
  }
}

int main(int count, char **words) {
  if (count < 4) return 2;
  const char *const mode = words[1];
  const int device = atoi(words[2]);
  if (!strcmp(mode, "select")) return select_all(atoll(words[3])), 0;
  if (!strcmp(mode, "first")) return first(device, atoll(words[3])), 0;
  open_driver();
  enter(device);
  must(product_init(device), "product_init");
  const char *const folder = getenv("PRODUCT_FOLDER");
  for (int i = 3; i < count; i++) {
    if (!strcmp(mode, "check")) check(device, atoll(words[i]));
    if (!strcmp(mode, "time")) measure(device, atoll(words[i]), folder ? folder : ".");
  }
  return 0;
}
