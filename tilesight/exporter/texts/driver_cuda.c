/* ---- the CUDA driver, which is opened when it is first needed */

enum { MAJOR = 75, MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_* */

static const char *const cards[] = {@CARDS@NULL};

static struct {
  int (*init)(unsigned);
  int (*version)(int *);
  int (*device_count)(int *);
  int (*device)(int *, int);
  int (*device_name)(char *, int, int);
  int (*attribute)(int *, int, int);
  int (*retain)(void **, int);
  int (*release)(int);
  int (*current)(void **);
  int (*push)(void *);
  int (*pop)(void **);
  int (*text)(int, const char **);
} driver;

static int driver_error(const char *what, int error) {
  const char *text = NULL;
  if (driver.text) driver.text(error, &text);
  refuse("%s: %s (CUDA error %d)", what, text ? text : "unknown", error);
  return error;
}

static int open_driver(void) {
  static int is_open;
  if (is_open) return 0;
  void *const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return refuse("there is no CUDA driver: %s", dlerror());
  if (!find(library, "cuInit", &driver.init) || !find(library, "cuDriverGetVersion", &driver.version) ||
      !find(library, "cuDeviceGetCount", &driver.device_count) || !find(library, "cuDeviceGet", &driver.device) ||
      !find(library, "cuDeviceGetName", &driver.device_name) ||
      !find(library, "cuDeviceGetAttribute", &driver.attribute) ||
      !find(library, "cuDevicePrimaryCtxRetain", &driver.retain) ||
      !find(library, "cuDevicePrimaryCtxRelease_v2", &driver.release) ||
      !find(library, "cuCtxGetCurrent", &driver.current) || !find(library, "cuCtxPushCurrent_v2", &driver.push) ||
      !find(library, "cuCtxPopCurrent_v2", &driver.pop) || !find(library, "cuGetErrorString", &driver.text))
    return refuse("the CUDA driver is too old: %s", dlerror());
  int version = 0, error = driver.init(0);
  if (error) return driver_error("cuInit", error);
  if ((error = driver.version(&version))) return driver_error("cuDriverGetVersion", error);
  if (version / 1000 < @CUDA_MAJOR@)
    return refuse("the driver supports CUDA %d.%d and the kernels need CUDA @CUDA_MAJOR@: install a newer driver, or "
                  "export with an older nvcc", version / 1000, version % 1000 / 10);
  is_open = 1;
  return 0;
}

/* Refuses a device on which the kernels cannot run, or for which they were not chosen. */
static int check_device(int index, int device) {
  char name[256] = "";
  int major = 0, minor = 0, error;
  if ((error = driver.device_name(name, sizeof name, device)) ||
      (error = driver.attribute(&major, MAJOR, device)) || (error = driver.attribute(&minor, MINOR, device)))
    return driver_error("reading the device", error);
  if (@OTHER_ARCH@)
    return refuse("device %d is '%s' of compute capability %d.%d, and the kernels are for @ARCH@ (@TARGET@)", index,
                  name, major, minor);
  if (!cards[0]) return 0;
  for (int i = 0; cards[i]; i++)
    if (!strcmp(name, cards[i])) return 0;
  return refuse("device %d is '%s', and these kernels were chosen for @TARGET@; export a plan for that card, or with "
                "--any-card", index, name);
}

/* Makes the primary context of a device current. */
static int enter(int index, void **context) {
  int count = 0, device = 0, error = open_driver();
  if (error) return error;
  if ((error = driver.device_count(&count))) return driver_error("cuDeviceGetCount", error);
  if (index >= count) return refuse("there is no device %d: the driver shows %d", index, count);
  if ((error = driver.device(&device, index))) return driver_error("cuDeviceGet", error);
  if ((error = check_device(index, device))) return error;
  if ((error = driver.retain(context, device))) return driver_error("cuDevicePrimaryCtxRetain", error);
  if ((error = driver.push(*context))) {
    driver.release(device);
    return driver_error("cuCtxPushCurrent", error);
  }
  return 0;
}

/* Ends `enter`. After an error the context is given back too. */
static void leave(int index, int error) {
  void *context;
  int device = 0;
  driver.pop(&context);
  if (error && !driver.device(&device, index)) driver.release(device);
}

static int launch(const loaded_device *device, const kernel_library *library, void **arguments, void *stream) {
  void *current = NULL, *popped;
  int error = driver.current(&current);
  if (error) return driver_error("cuCtxGetCurrent", error);
  const int is_other = current != device->context;
  if (is_other && (error = driver.push(device->context))) return driver_error("cuCtxPushCurrent", error);
  error = library->call(arguments, stream);
  if (error) refuse("%s", library->error());
  if (is_other) driver.pop(&popped);
  return error;
}
