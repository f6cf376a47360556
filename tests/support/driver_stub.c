/* A CUDA driver without a device: it writes down what is encoded and launched, one line each, to the file STUB_LOG.
 *
 * STUB_DEVICES, STUB_CARD, STUB_CAPABILITY and STUB_VERSION are the number of devices, their name, their compute
 * capability (90) and the driver's version (13000). STUB_PARAMETERS is a file of lines `IMAGE FUNCTION BYTES BYTES ...`
 * with the sizes of each function's parameters, whose values are written down; IMAGE is the checksum of the module.
 * STUB_FAILS is a function that fails. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, STUB_MOST = 64, MOST_DEPTH = 16 };

typedef struct {
  int device;
} stub_context;

typedef struct {
  stub_context *context;
  uint64_t image;
} stub_module;

typedef struct {
  stub_context *context;
  uint64_t image;
  char name[256];
} stub_function;

typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  struct {
    int id;
    int padding;
    unsigned char value[64];
  } *attributes;
  unsigned attribute_count;
} launch_config;

static stub_context contexts[STUB_MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local stub_context *stack[MOST_DEPTH];
static _Thread_local int depth;

static const char *setting(const char *name, const char *otherwise) {
  const char *const found = getenv(name);
  return found ? found : otherwise;
}

static int fails(const char *name) { return !strcmp(setting("STUB_FAILS", ""), name); }

static void hex(FILE *file, const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) fprintf(file, "%02x", ((const unsigned char *)bytes)[i]);
}

static FILE *begin(void) {
  pthread_mutex_lock(&lock);
  return fopen(setting("STUB_LOG", "/dev/null"), "a");
}

static void end(FILE *file) {
  fputc('\n', file);
  fclose(file);
  pthread_mutex_unlock(&lock);
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
int cuDriverGetVersion(int *version) { return *version = atoi(setting("STUB_VERSION", "13000")), 0; }
int cuDeviceGetCount(int *count) { return *count = atoi(setting("STUB_DEVICES", "2")), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }

int cuDeviceGetName(char *name, int room, int device) {
  (void)device;
  snprintf(name, (size_t)room, "%s", setting("STUB_CARD", "NVIDIA H200"));
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  const int capability = atoi(setting("STUB_CAPABILITY", "90"));
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return attribute == 75 || attribute == 76 ? 0 : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(stub_context **context, int device) {
  contexts[device].device = device;
  *context = &contexts[device];
  FILE *const file = begin();
  fprintf(file, "retain %d", device);
  end(file);
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  FILE *const file = begin();
  fprintf(file, "release %d", device);
  end(file);
  return 0;
}

int cuCtxGetCurrent(stub_context **context) { return *context = depth ? stack[depth - 1] : NULL, 0; }

int cuCtxPushCurrent_v2(stub_context *context) {
  if (!context || depth == MOST_DEPTH) return INVALID_CONTEXT;
  stack[depth++] = context;
  return 0;
}

int cuCtxPopCurrent_v2(stub_context **context) {
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return 0;
}

/* FNV-1a of an ELF file, which ends with its table of sections or of segments. */
static uint64_t checksum(const unsigned char *image) {
  uint64_t sections, segments, hash = 14695981039346656037u;
  uint16_t sizes[6];
  memcpy(&segments, image + 32, 8);
  memcpy(&sections, image + 40, 8);
  memcpy(sizes, image + 52, sizeof sizes); /* header; size and number of segments, of sections; names */
  const uint64_t ends[] = {segments + sizes[1] * sizes[2], sections + sizes[3] * sizes[4]};
  const uint64_t size = ends[0] > ends[1] ? ends[0] : ends[1];
  for (uint64_t i = 0; i < size; i++) hash = (hash ^ image[i]) * 1099511628211u;
  return hash;
}

int cuModuleLoadData(stub_module **module, const void *image) {
  if (fails("cuModuleLoadData")) return INVALID_VALUE;
  if (memcmp(image, "\177ELF", 4)) return INVALID_VALUE;
  if (!depth) return INVALID_CONTEXT;
  *module = malloc(sizeof **module);
  (*module)->context = stack[depth - 1];
  (*module)->image = checksum(image);
  return 0;
}

int cuModuleUnload(stub_module *module) {
  FILE *const file = begin();
  fprintf(file, "unload %d", module->context->device);
  end(file);
  free(module);
  return 0;
}

int cuModuleGetFunction(stub_function **function, stub_module *module, const char *name) {
  *function = malloc(sizeof **function);
  (*function)->context = module->context;
  (*function)->image = module->image;
  snprintf((*function)->name, sizeof (*function)->name, "%s", name);
  return 0;
}

int cuFuncSetAttribute(stub_function *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}

/* A descriptor has a hash of all that it was encoded from, and the address. */
int cuTensorMapEncodeTiled(unsigned char *map, int dtype, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  if ((uintptr_t)address % 16) return INVALID_VALUE;
  memset(map, 0, 128);
  memcpy(map, &address, sizeof address);
  uint64_t hash = 14695981039346656037u;
  const uint64_t modes[] = {(uint64_t)dtype,   rank,
                            (uint64_t)interleave, (uint64_t)swizzle, (uint64_t)promotion, (uint64_t)fill};
#define ADD(value) hash = (hash ^ (uint64_t)(value)) * 1099511628211u
  for (int i = 0; i < 6; i++) ADD(modes[i]);
  for (unsigned i = 0; i < rank; i++) ADD(dims[i]), ADD(box[i]), ADD(steps[i]);
  for (unsigned i = 0; i + 1 < rank; i++) ADD(strides[i]);
  memcpy(map + 8, &hash, sizeof hash);
  return 0;
}

int cuTensorMapEncodeIm2col(void) { return INVALID_VALUE; }

static void write_parameters(FILE *log, const stub_function *function, void **parameters) {
  char line[4096], image[17];
  snprintf(image, sizeof image, "%016llx", (unsigned long long)function->image);
  FILE *const file = fopen(setting("STUB_PARAMETERS", "/dev/null"), "r");
  while (file && fgets(line, sizeof line, file)) {
    char *word = strtok(line, " \n");
    if (!word || strcmp(word, image)) continue;
    word = strtok(NULL, " \n");
    if (!word || strcmp(word, function->name)) continue;
    for (int i = 0; (word = strtok(NULL, " \n")); i++) {
      fputc(' ', log);
      hex(log, parameters[i], (size_t)atoi(word));
    }
  }
  if (file) fclose(file);
}

int cuLaunchKernelEx(const launch_config *config, stub_function *function, void **parameters, void **extra) {
  if (extra) return INVALID_VALUE;
  if (!depth || stack[depth - 1] != function->context) return INVALID_CONTEXT;
  if (fails("cuLaunchKernelEx")) return INVALID_VALUE;
  FILE *const file = begin();
  fprintf(file, "launch %d %s %u,%u,%u %u,%u,%u %u %p", function->context->device, function->name, config->grid[0],
          config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
          config->shared_bytes, config->stream);
  for (unsigned i = 0; i < config->attribute_count; i++) {
    fprintf(file, " %d:", config->attributes[i].id);
    hex(file, config->attributes[i].value, 64);
  }
  write_parameters(file, function, parameters);
  end(file);
  return 0;
}

int cuGetErrorString(int error, const char **text) {
  *text = error == INVALID_CONTEXT ? "invalid device context" : "invalid argument";
  return 0;
}
