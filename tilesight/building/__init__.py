"""Building: from a candidate's lowered IR to a shared library in the kernel cache, one module a kind of target.

plan (how the kernels are launched, read off the host IR) -> cpu | cuda | hip (source and compiler) -> identity -> cache

For many CUDA kernels, `front_ends` keeps processes that have read the headers, and `front_end` has them compile.

Every library has the same C interface, so that it is loaded and called without TileLang or TVM (see `artifact.py`)::

    int         tilesight_arity(void)                         how many tensors a call takes
    int         tilesight_init(void)                          once, before the first call; 0 or an error
    int         tilesight_call(void **tensors, void *stream)  inputs then outputs, in order; 0 or an error
    const char *tilesight_error(void)                         the text of the last error
    void        tilesight_unload(void)                        gives back what tilesight_init took
"""
