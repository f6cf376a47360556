/* The library of @NAME@, written by TileSight @VERSION@. Its functions are described in @NAME@.h.
 *
 * Compiled by: cc -std=c11 -O2 -fPIC -shared @NAME@.c -o lib@NAME@.so -ldl -lpthread
 *
 * The kernels lie in libraries of their own, in the folder `kernels` beside this one. Each of them holds the module of
 * one device, so that every device after the first one gets copies. */
#define _GNU_SOURCE
#include "@NAME@.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KERNELS = @KERNEL_COUNT@, MOST_DEVICES = 64, MOST_SCRATCH = @MOST_SCRATCH@, SCRATCH_ALIGNMENT = 256 };

typedef struct {
  int (*call)(void **arguments, void *stream);
  const char *(*error)(void);
  void (*unload)(void);
  void *handle;
} kernel_library;

typedef struct {
  void *context;
  kernel_library kernels[KERNELS];
} loaded_device;

static const struct {
  const char *file;
  const char *sha256;
  int arguments; /* tensors, with scratch memory */
  int sizes;
} files[KERNELS] = {
@FILES@
};

static _Thread_local char error_text[1024];
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(loaded_device *) devices[MOST_DEVICES];
static int loaded_devices;

static int refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Keeps an error text for this thread; returns -1. */
static int refuse(const char *format, ...) {
  va_list values;
  va_start(values, format);
  const int used = snprintf(error_text, sizeof error_text, "@NAME@: ");
  vsnprintf(error_text + used, sizeof error_text - (size_t)used, format, values);
  va_end(values);
  return -1;
}

const char *@NAME@_error(void) { return error_text; }

/* Looks up a function. It is copied as bytes: C has no conversion between functions and objects. */
static int find(void *library, const char *symbol, void *function) {
  void *const address = dlsym(library, symbol);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

@SHA256@
@DRIVER@
/* ---- loading */

static const char here = 0; /* an address in this library */

/* The path of a kernel's file, or an error. */
static int path_of(int kernel, char *path, size_t room) {
  Dl_info info;
  if (!dladdr(&here, &info)) return refuse("the path of this library is not known");
  char whole[PATH_MAX];
  if (!realpath(info.dli_fname, whole)) return refuse("'%s' cannot be found: %s", info.dli_fname, strerror(errno));
  char *const slash = strrchr(whole, '/');
  if (slash) *slash = 0;
  const int length = snprintf(path, room, "%s/%s", whole, files[kernel].file);
  return length < 0 || (size_t)length >= room ? refuse("the path of '%s' is too long", files[kernel].file) : 0;
}

/* The content of a file, for `free`; NULL and an error text if it cannot be read. */
static unsigned char *content_of(const char *path, size_t *size) {
  FILE *const file = fopen(path, "rb");
  unsigned char *content = NULL;
  long length = -1;
  if (file && !fseek(file, 0, SEEK_END)) length = ftell(file);
  if (length >= 0 && !fseek(file, 0, SEEK_SET)) content = malloc((size_t)length + 1);
  if (content && fread(content, 1, (size_t)length, file) != (size_t)length) {
    free(content);
    content = NULL;
  }
  if (!content) refuse("'%s' cannot be read: %s; export again", path, strerror(errno ? errno : EIO));
  if (file) fclose(file);
  *size = (size_t)length;
  return content;
}

/* Opens a copy in memory. The loader takes files of one path for one library, so the descriptor of the copy, which is a
 * part of its path, stays open as long as the process. */
static void *open_copy(const char *path, const unsigned char *content, size_t size) {
  const int copy = memfd_create("@NAME@", MFD_CLOEXEC);
  size_t done = 0;
  while (copy >= 0 && done < size) {
    const ssize_t written = write(copy, content + done, size - done);
    if (written <= 0 && errno != EINTR) break;
    if (written > 0) done += (size_t)written;
  }
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", copy);
  void *const handle = done == size && copy >= 0 ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!handle) {
    const char *const reason = done == size && copy >= 0 ? dlerror() : strerror(errno);
    refuse("'%s' cannot be copied for a further device: %s", path, reason ? reason : "unknown");
    if (copy >= 0) close(copy);
  }
  return handle;
}

static void close_library(kernel_library *library) {
  if (library->handle) {
    library->unload();
    dlclose(library->handle);
    library->handle = NULL;
  }
}

/* Loads the library of a kernel into the current context, after a check of its file. */
static int load(int kernel, kernel_library *library) {
  char path[PATH_MAX];
  size_t size;
  if (path_of(kernel, path, sizeof path)) return -1;
  unsigned char *const content = content_of(path, &size);
  if (!content) return -1;
  char digest[65];
  sha256(content, size, digest);
  void *handle = NULL;
  if (strcmp(digest, files[kernel].sha256))
    refuse("'%s' was altered since it was exported (its SHA-256 is another one); export again", path);
  else if (loaded_devices)
    handle = open_copy(path, content, size);
  else if (!(handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
    refuse("'%s' cannot be loaded: %s", path, dlerror());
  free(content);
  if (!handle) return -1;
  int (*start)(void), (*arguments)(void), (*sizes)(void);
  if (!find(handle, "tilesight_call", &library->call) || !find(handle, "tilesight_error", &library->error) ||
      !find(handle, "tilesight_unload", &library->unload) || !find(handle, "tilesight_init", &start) ||
      !find(handle, "tilesight_arity", &arguments) || !find(handle, "tilesight_sizes", &sizes) ||
      arguments() != files[kernel].arguments || sizes() != files[kernel].sizes) {
    dlclose(handle);
    return refuse("'%s' is no library of this export; export again", path);
  }
  library->handle = handle;
  const int error = start();
  if (error) {
    refuse("'%s' cannot be loaded: %s", path, library->error());
    close_library(library);
  }
  return error;
}

static int load_all(loaded_device *device) {
  for (int kernel = 0; kernel < KERNELS; kernel++) {
    const int error = load(kernel, &device->kernels[kernel]);
    if (error) {
      while (kernel--) close_library(&device->kernels[kernel]);
      return error;
    }
  }
  return 0;
}

static int start(int index) {
  loaded_device *const device = calloc(1, sizeof *device);
  if (!device) return refuse("no memory");
  int error = enter(index, &device->context);
  if (!error) {
    error = load_all(device);
    leave(index, error);
  }
  if (error) {
    free(device);
    return error;
  }
  loaded_devices++;
  atomic_store_explicit(&devices[index], device, memory_order_release);
  return 0;
}

int @NAME@_init(int device) {
  if (device < 0 || device >= MOST_DEVICES) return refuse("device %d: a device is 0 .. %d", device, MOST_DEVICES - 1);
  pthread_mutex_lock(&loading);
  const int error = atomic_load(&devices[device]) ? 0 : start(device);
  pthread_mutex_unlock(&loading);
  return error;
}

/* ---- choosing a kernel */

@SELECTOR@

/* The scratch memory of a kernel: returns its bytes, and the place of each part. */
static size_t scratch_of(int kernel@SIZE_PARAMETERS@, size_t *places) {
  size_t bytes = 0;
  (void)places;
@SIZES_UNUSED@  switch (kernel) {
@SCRATCH@
  default: break;
  }
  return bytes;
}

size_t @NAME@_workspace(@SIZE_LIST@) {
  size_t places[MOST_SCRATCH] = {0};
  const int kernel = @NAME@_select(@SIZE_NAMES@);
  return kernel < 0 ? 0 : scratch_of(kernel@SIZE_ARGUMENTS@, places);
}

/* ---- calling */

/* Refuses an address that no tensor can have. */
static int check_address(const char *name, const void *address) {
  if ((uintptr_t)address < 4096) return refuse("%s is %s", name, address ? "no address" : "a null pointer");
  if ((uintptr_t)address & (@ALIGNMENT@ - 1))
    return refuse("%s starts %d bytes off a multiple of @ALIGNMENT@, where kernels read whole vectors", name,
                  (int)((uintptr_t)address & (@ALIGNMENT@ - 1)));
  return 0;
}

static int overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes) {
  const uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
  return a < b + other_bytes && b < a + one_bytes;
}

int @NAME@_call(const @NAME@_args *args, void *stream) {
  if (!args) return refuse("args is a null pointer");
  const int index = args->device;
  const loaded_device *const device =
      index < 0 || index >= MOST_DEVICES ? NULL : atomic_load_explicit(&devices[index], memory_order_acquire);
  if (!device) return refuse("device %d is not initialised: call @NAME@_init(%d) first", index, index);
@READ_SIZES@  const int kernel = @NAME@_select(@SIZE_NAMES@);
  if (kernel < 0) return refuse(@OUTSIDE@);
@CHECKS@  size_t places[MOST_SCRATCH] = {0};
  const size_t needed = scratch_of(kernel@SIZE_ARGUMENTS@, places);
@WORKSPACE@  void *arguments[@MOST_ARGUMENTS@];
  int count = 0;
@ARGUMENTS@
  return launch(device, &device->kernels[kernel], arguments, stream);
}
