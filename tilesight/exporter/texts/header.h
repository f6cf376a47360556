/* @LABEL@. Written by TileSight @VERSION@.
 *
 * Kernels for @RANGES@, on @WHERE@: @TARGET@.
 * Tensors are contiguous, row by row@ALIGNED@, and outputs share no memory with other tensors.
 * All functions may be called from several threads at once. */
#ifndef @GUARD@
#define @GUARD@

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct @NAME@_args {
@MEMBERS@
} @NAME@_args;

/* Loads the kernels for a device, once; calls for it may follow. Returns 0, or another number and a text in
 * @NAME@_error. On a GPU it uses the primary context of the device, as the CUDA runtime and torch do. */
int @NAME@_init(int device);

/* Launches the kernel of these sizes into a stream (CUstream or cudaStream_t; NULL: the default stream).
 * Returns 0, or another number and a text in @NAME@_error. It allocates nothing and waits for nothing, so it may be
 * captured in a CUDA graph. */
int @NAME@_call(const @NAME@_args *args, void *stream);

/* The index of the kernel for these sizes, in the order of manifest.json; -1: there is none. */
int @NAME@_select(@SIZES@);

/* Bytes of workspace for these sizes; 0 if there is no kernel for them. */
size_t @NAME@_workspace(@SIZES@);

/* The text of this thread's last error. */
const char *@NAME@_error(void);

#ifdef __cplusplus
}
#endif

#endif
