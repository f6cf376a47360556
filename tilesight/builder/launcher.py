"""Writes the C source of a launcher: a launch plan as calls of the CUDA driver, of HIP, or of C functions."""

from __future__ import annotations

from ..problem.template import LAUNCHES, RANK
from .argument_checks import checks, prologue
from .copies_source import begin_copies, copy_functions, end_copies
from .launch_plan import Argument, KernelLaunch, LaunchPlan, PixelBox, TensorMap
from .size_expr import Expression, Size

_C_TYPES = {
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "bool": "int8_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "float32": "float",
    "float64": "double",
}

# The driver is opened when the library is first used, and not linked: building needs no driver.
_CUDA_HEAD = r"""
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

__asm__(".section .rodata\n.balign 64\ntilesight_image:\n.incbin \"kernel.cubin\"\n.byte 0\n.previous\n");
extern "C" const unsigned char tilesight_image[] __attribute__((visibility("hidden")));

static thread_local char error_text[512];

static struct {
  decltype(&::cuCtxGetCurrent) CtxGetCurrent;
  decltype(&::cuModuleLoadData) ModuleLoadData;
  decltype(&::cuModuleUnload) ModuleUnload;
  decltype(&::cuModuleGetFunction) ModuleGetFunction;
  decltype(&::cuFuncSetAttribute) FuncSetAttribute;
  decltype(&::cuTensorMapEncodeTiled) TensorMapEncodeTiled;
  decltype(&::cuTensorMapEncodeIm2col) TensorMapEncodeIm2col;
  decltype(&::cuLaunchKernelEx) LaunchKernelEx;
  decltype(&::cuGetErrorString) GetErrorString;
} driver;

static CUmodule module;

static int check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return 0;
  const char *text = nullptr;
  if (driver.GetErrorString) driver.GetErrorString(result, &text);
  snprintf(error_text, sizeof error_text, "%s: %s (CUDA error %d)", what, text ? text : "unknown",
           (int)result);
  return result;
}

template <typename F> static bool find(void *library, F &function, const char *name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function)
    snprintf(error_text, sizeof error_text, "the CUDA driver lacks %s; install a newer driver", name);
  return function;
}

static int prepare(CUfunction *function, const char *name, int shared_bytes, bool large_cluster) {
  if (int error = check(driver.ModuleGetFunction(function, module, name), name)) return error;
  CUresult result = CUDA_SUCCESS;
  if (shared_bytes)
    result = driver.FuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     shared_bytes);
  if (large_cluster && result == CUDA_SUCCESS)
    result = driver.FuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
  return check(result, name);
}

extern "C" const char *tilesight_error(void) { return error_text; }
"""

_CUDA_UNLOAD = r"""
extern "C" void tilesight_unload(void) {
  if (module) driver.ModuleUnload(module);
  module = nullptr;
}
"""

_CUDA_OPEN = r"""
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    snprintf(error_text, sizeof error_text, "there is no CUDA driver: %s", dlerror());
    return -1;
  }
  if (!find(library, driver.CtxGetCurrent, "cuCtxGetCurrent") ||
      !find(library, driver.ModuleLoadData, "cuModuleLoadData") ||
      !find(library, driver.ModuleUnload, "cuModuleUnload") ||
      !find(library, driver.ModuleGetFunction, "cuModuleGetFunction") ||
      !find(library, driver.FuncSetAttribute, "cuFuncSetAttribute") ||
      !find(library, driver.LaunchKernelEx, "cuLaunchKernelEx") ||
      !find(library, driver.GetErrorString, "cuGetErrorString"))
    return -1;
  CUcontext context = nullptr;
  if (int error = check(driver.CtxGetCurrent(&context), "cuCtxGetCurrent")) return error;
  if (!context) {
    snprintf(error_text, sizeof error_text, "no CUDA context is current; use the device with torch first");
    return -1;
  }
"""


def cuda_launcher(plan: LaunchPlan) -> str:
    """C++ source of a library that contains and launches `kernel.cubin`, a file in the folder of compilation.

    The module belongs to the CUDA context that is current in `tilesight_init`: a loaded library serves one
    device.
    """
    names = list(dict.fromkeys(launch.function for launch in plan.launches))
    copies = copy_functions(plan)
    unload = _CUDA_UNLOAD.replace("{\n", "{\n  release_copies();\n", 1) if copies else _CUDA_UNLOAD
    lines = [_CUDA_HEAD, *copies, unload, *prologue(plan, "error_text")]
    lines += [f"static CUfunction function_{i};" for i in range(len(names))]
    lines += ["", 'extern "C" int tilesight_init(void) {', _CUDA_OPEN.strip("\n")]
    for encoder in sorted({_encoder(descriptor) for descriptor in plan.descriptors}):
        lines.append(f'  if (!find(library, driver.{encoder}, "cu{encoder}")) return -1;')
    lines.append(
        "  if (int error = check(driver.ModuleLoadData(&module, tilesight_image), "
        '"loading the kernel")) return error;'
    )
    for i, name in enumerate(names):
        shared = max(launch.shared_bytes for launch in plan.launches if launch.function == name)
        large = any(
            launch.cluster and _volume(launch.cluster) > 8
            for launch in plan.launches
            if launch.function == name
        )
        lines.append(
            f'  if (int error = prepare(&function_{i}, "{name}", {shared}, {str(large).lower()})) '
            "return error;"
        )
    if RANK.name in plan.numbers:
        lines += _load_all(len(names))
    if copies:
        lines.append("  if (int error = prepare_copies(library)) return error;")
    lines += [
        "  return 0;",
        "}",
        "",
        'extern "C" int tilesight_call(void **arguments, void *stream) {',
        *checks(plan),
    ]
    for i, descriptor in enumerate(plan.descriptors):
        lines += _encode(i, descriptor, len(plan.sizes))
    chosen = LAUNCHES.name in plan.numbers
    place = plan.tensors + len(plan.sizes) + (plan.numbers.index(LAUNCHES.name) if chosen else 0)
    for i, launch in enumerate(plan.launches):
        if chosen:
            lines.append(f"  if (*(const int *)&arguments[{place}] >> {i} & 1)")
        lines += begin_copies(plan, i)
        lines += _launch(launch, names.index(launch.function))
    lines += [*end_copies(plan), "  return 0;", "}", ""]
    return "\n".join(lines)


def _load_all(count: int) -> list[str]:
    """C code that loads all functions now, of kernels that wait for other devices.

    The driver loads a function by its first launch, and may wait until the device is idle: behind a kernel
    that waits for another device this would be for ever.
    """
    return [
        "  int (*load)(CUfunction);",
        '  if (!find(library, load, "cuFuncLoad")) return -1;',
        *(
            f'  if (int error = check((CUresult)load(function_{i}), "loading a function")) return error;'
            for i in range(count)
        ),
    ]


def host_launcher(plan: LaunchPlan) -> str:
    """C++ source that calls the functions of a CPU target; to be appended to their source."""
    _no_copies(plan)
    calls = []
    for launch in plan.launches:
        arguments = ", ".join(_host_argument(a) for a in _no_descriptors(launch))
        calls.append(
            f"  if (int error = {launch.function}({arguments})) {{\n"
            "    snprintf(tilesight_error_text, sizeof tilesight_error_text, "
            '"the kernel returned error code %d", error);\n'
            "    return error;\n  }"
        )
    return "\n".join(
        [
            "struct tilesight_pointer {",
            "  void *address;",
            "  template <typename T> operator T *() const { return static_cast<T *>(address); }",
            "};",
            "#include <stdint.h>",
            "#include <stdio.h>",
            "#include <string.h>",
            "template <typename T> static T tilesight_number(void *const *place) {",
            "  T value;",
            "  memcpy(&value, place, sizeof value);",
            "  return value;",
            "}",
            "static thread_local char tilesight_error_text[512];",
            *prologue(plan, "tilesight_error_text"),
            'extern "C" int tilesight_init(void) { return 0; }',
            'extern "C" void tilesight_unload(void) {}',
            'extern "C" const char *tilesight_error(void) { return tilesight_error_text; }',
            'extern "C" int tilesight_call(void **arguments, void *) {',
            *checks(plan),
            *calls,
            "  return 0;",
            "}",
            "",
        ]
    )


def hip_launcher(plan: LaunchPlan) -> str:
    """HIP source that launches the kernels; to be appended to their source."""
    _no_copies(plan)
    lines = [
        "#include <stdint.h>",
        "#include <stdio.h>",
        "static thread_local char tilesight_error_text[512];",
        "static int tilesight_check(hipError_t result, const char *what) {",
        "  if (result == hipSuccess) return 0;",
        "  snprintf(tilesight_error_text, sizeof tilesight_error_text, "
        '"%s: %s (HIP error %d)", what, hipGetErrorString(result), (int)result);',
        "  return result;",
        "}",
        'extern "C" const char *tilesight_error(void) { return tilesight_error_text; }',
        *prologue(plan, "tilesight_error_text"),
        'extern "C" int tilesight_init(void) { return 0; }',
        'extern "C" void tilesight_unload(void) {}',
        'extern "C" int tilesight_call(void **arguments, void *stream) {',
        *checks(plan),
    ]
    for launch in plan.launches:
        setup, given = _arguments(_no_descriptors(launch))
        grid, block = (
            f"dim3({', '.join(_unsigned(extent) for extent in e)})" for e in (launch.grid, launch.block)
        )
        launched = f"(const void *)&{launch.function}, {grid}, {block}, given, {launch.shared_bytes}"
        call = f"hipLaunchKernel({launched}, (hipStream_t)stream)"
        lines += ["  {", *setup, f"    void *given[] = {{{given}}};"]
        lines += [f'    if (int error = tilesight_check({call}, "{launch.function}")) return error;', "  }"]
    return "\n".join([*lines, "  return 0;", "}", ""])


def _host_argument(argument: Argument) -> str:
    if argument.kind == "tensor":
        return f"tilesight_pointer{{arguments[{argument.index}]}}"
    if argument.kind == "number":
        return f"tilesight_number<{_C_TYPES[argument.dtype]}>(arguments + {argument.index})"
    return _integer(argument)


def _integer(argument: Argument) -> str:
    value = argument.index
    return f"({_C_TYPES[argument.dtype]})({value})" if isinstance(value, Expression) else str(value)


def _unsigned(extent: Size) -> str:
    return f"(unsigned){extent}" if isinstance(extent, Expression) else str(extent)


def _volume(extents: tuple[int, int, int]) -> int:
    return extents[0] * extents[1] * extents[2]


def _no_copies(plan: LaunchPlan) -> None:
    assert plan.copies is None, "copies to peers are started by the CUDA driver only"


def _no_descriptors(launch: KernelLaunch) -> tuple[Argument, ...]:
    assert all(a.kind != "descriptor" for a in launch.arguments), (
        f"{launch.function}: TMA descriptors exist on CUDA only"
    )
    return launch.arguments


def _arguments(arguments: tuple[Argument, ...]) -> tuple[list[str], str]:
    """Declarations of variables for the integers, and the list of the addresses of all arguments."""
    setup, addresses = [], []
    for i, argument in enumerate(arguments):
        if argument.kind == "integer":
            setup.append(f"    {_C_TYPES[argument.dtype]} integer_{i} = {_integer(argument)};")
        addresses.append(
            # a launch copies as many bytes as the kernel's parameter has, from the first byte on
            {
                "tensor": f"&arguments[{argument.index}]",
                "number": f"&arguments[{argument.index}]",
                "descriptor": f"&map_{argument.index}",
            }.get(argument.kind, f"&integer_{i}")
        )
    return setup, ", ".join(addresses)


def _encoder(d: TensorMap) -> str:
    return "TensorMapEncodeIm2col" if isinstance(d.box, PixelBox) else "TensorMapEncodeTiled"


def _encode(i: int, d: TensorMap, sizes: int) -> list[str]:
    """C code that encodes a descriptor, unless its tensor and sizes are those of this thread's last call."""
    rank = len(d.dims)

    def array(name: str, kind: str, values: tuple[Size, ...]) -> str:
        how = "const" if any(isinstance(value, Expression) for value in values) else "static const"
        listed = ", ".join(f"({kind}){v}" if isinstance(v, Expression) else str(v) for v in values)
        return f"    {how} {kind} {name}[{max(1, len(values))}] = {{{listed or '0'}}};"

    if isinstance(d.box, PixelBox):
        boxes = [array("lower", "int", d.box.lower), array("upper", "int", d.box.upper)]
        box = f"lower, upper, {d.box.channels}, {d.box.pixels}"
    else:
        boxes, box = [array("box", "cuuint32_t", d.box)], "box"
    varying = any(isinstance(value, Expression) for value in (*d.dims, *d.strides))
    cached_sizes = [f"size_{number}" for number in range(sizes)] if varying else []
    same = [
        f"cached_{i}.tensor",
        f"cached_{i}.tensor == arguments[{d.tensor}]",
        *(f"cached_{i}.{size} == {size}" for size in cached_sizes),
    ]
    members = "".join(
        ["void *tensor; ", *(f"int64_t {size}; " for size in cached_sizes), "CUtensorMap map; "]
    )
    updates = [
        f"cached_{i}.tensor = arguments[{d.tensor}]",
        *(f"cached_{i}.{size} = {size}" for size in cached_sizes),
    ]
    return [
        f"  static thread_local struct {{ {members}}} cached_{i};",
        f"  CUtensorMap &map_{i} = cached_{i}.map;",
        f"  if (!({' && '.join(same)})) {{",
        array("dims", "cuuint64_t", d.dims),
        array("strides", "cuuint64_t", d.strides),
        *boxes,
        array("steps", "cuuint32_t", d.element_strides),
        f"    cached_{i}.tensor = nullptr;",
        f"    if (int error = check(driver.{_encoder(d)}(&map_{i}, (CUtensorMapDataType){d.dtype}, {rank},",
        f"            arguments[{d.tensor}], dims, strides, {box}, steps,",
        f"            (CUtensorMapInterleave){d.interleave}, (CUtensorMapSwizzle){d.swizzle},",
        f"            (CUtensorMapL2promotion){d.l2_promotion}, (CUtensorMapFloatOOBfill){d.oob_fill}),",
        f'            "TMA descriptor {i}")) return error;',
        f"    {', '.join(updates)};",
        "  }",
    ]


def _launch(launch: KernelLaunch, function: int) -> list[str]:
    setup, given = _arguments(launch.arguments)
    lines = ["  {", *setup, f"    void *given[] = {{{given}}};" if given else "    void **given = nullptr;"]
    lines.append("    CUlaunchConfig config = {};")
    for axis, grid, block in zip("XYZ", launch.grid, launch.block, strict=True):
        lines.append(f"    config.gridDim{axis} = {_unsigned(grid)}, config.blockDim{axis} = {block};")
    lines.append(f"    config.sharedMemBytes = {launch.shared_bytes}, config.hStream = (CUstream)stream;")
    attributes = _attributes(launch)
    if attributes:
        lines.append(f"    CUlaunchAttribute attributes[{len(attributes)}] = {{}};")
        for i, (name, field, value) in enumerate(attributes):
            lines.append(
                f"    attributes[{i}].id = CU_LAUNCH_ATTRIBUTE_{name}, "
                f"attributes[{i}].value.{field} = {value};"
            )
        lines.append(f"    config.attrs = attributes, config.numAttrs = {len(attributes)};")
    call = f"driver.LaunchKernelEx(&config, function_{function}, given, nullptr)"
    lines.append(f'    if (int error = check({call}, "{launch.function}")) return error;')
    return [*lines, "  }"]


def _attributes(launch: KernelLaunch) -> list[tuple[str, str, str]]:
    """(name, field of its value, value) of each launch attribute that differs from its default."""
    attributes = []
    if launch.cluster:
        attributes.append(("CLUSTER_DIMENSION", "clusterDim", f"{{{', '.join(map(str, launch.cluster))}}}"))
    if launch.programmatic:
        attributes.append(
            ("PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed", "1")
        )
    if launch.cooperative:
        attributes.append(("COOPERATIVE", "cooperative", "1"))
    return attributes
