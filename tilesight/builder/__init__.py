"""Build candidates: lowered IR becomes a shared library in the kernel cache, for each kind of target.

launch_plan (how the kernels are launched, read from the host IR) -> cpu | cuda | hip (source and compiler) ->
binary_identity -> kernel_cache

Every library has the same C interface, and needs neither TileLang nor TVM (`loaded_kernel.py`)::

    int         tilesight_arity(void)                         how many tensors a call takes
    int         tilesight_init(void)                          once, before the first call; 0 or an error
    int         tilesight_call(void **tensors, void *stream)  inputs then outputs, in order; 0 or an error
    const char *tilesight_error(void)                         the text of the last error
    void        tilesight_unload(void)                        frees what tilesight_init allocated
"""
