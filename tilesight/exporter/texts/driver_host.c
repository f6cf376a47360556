/* ---- the processor, which is device 0 */

static int enter(int index, void **context) {
  *context = NULL;
  return index ? refuse("device %d: the kernels run on the processor, which is device 0", index) : 0;
}

static void leave(int index, int error) { (void)index, (void)error; }

static int launch(const loaded_device *device, const kernel_library *library, void **arguments, void *stream) {
  (void)device;
  const int error = library->call(arguments, stream);
  if (error) refuse("%s", library->error());
  return error;
}
