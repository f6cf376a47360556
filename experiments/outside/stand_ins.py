"""A machine with one H200, as far as Python programs ask: torch's CUDA functions, and TileLang's compiler.

Tensors stay on the processor and say that they are on a GPU. Expensive operations on floating-point tensors
(references, mostly) return zeros at once: only integers and shapes matter for what is captured.
`install` changes this process for good.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

TARGET = {"kind": "cuda", "arch": "sm_90a"}
MISSING = (  # packages of references; what they compute is never needed
    *("flash_attn", "flash_attn_interface", "flash_attn_3", "fla", "triton", "transformers", "vllm"),
    *("bitblas", "mamba_ssm", "helion", "deep_gemm", "flashinfer", "sageattention", "xformers"),
    *("causal_conv1d", "native_sparse_attention", "flash_mla", "matplotlib", "fast_hadamard_transform"),
    *(
        "bitnet",
        "datasets",
        "lightning_attn",
        "quack",
        "cutlass",
        "tabulate",
        "apex",
        "flag_gems",
        "cuda",
        "cupti",
    ),
)
DEAR_ELEMENTS, DEAR_PRODUCT = 2**23, 2**27
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_mm", "linear", "matmul"}


def install(compile_kernel: Callable[..., Any], tune: Callable[..., Any]) -> None:
    """Put the stand-ins in place.

    Args:
        compile_kernel: Takes the arguments of `tilelang.compile`, and returns a kernel.
        tune: Takes the place of `AutoTuner.run`.
    """
    prepare()
    _torch()
    _tilelang(compile_kernel, tune)


def prepare() -> None:
    """Packages that are missing here, and names of earlier releases of TileLang; before anything is imported
    that needs them."""
    import tilelang  # noqa: F401
    import tilelang.backend.target as backend_target
    import torch.utils.flop_counter  # noqa: F401 - asks for triton, which is not here

    sys.modules["tilelang.utils.target"] = backend_target
    if any(type(finder).__name__ == "Finder" for finder in sys.meta_path):
        return

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name.partition(".")[0] in MISSING and not _torch_asks():
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            return None

        def create_module(self, spec: Any) -> types.ModuleType:
            return _Anything(spec.name)

        def exec_module(self, module: types.ModuleType) -> None:
            module.__path__ = []  # type: ignore[attr-defined]

    sys.meta_path.append(Finder())


def _torch_asks() -> bool:
    """Whether an import comes from torch, which does without these packages."""
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("torch")


class _Anything(types.ModuleType):
    __version__, __file__ = "3.0.0", "/missing/package.py"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, *_: Any) -> None: ...

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class _Stream(_Event):
    cuda_stream = 0
    device = None

    def wait_stream(self, *_: Any) -> None: ...
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


class _Device:
    def __init__(self, *_: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=150_000_000_000,
    warp_size=32,
    shared_memory_per_multiprocessor=233_472,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2048,
    L2_cache_size=62_914_560,
    uuid="",
)

FACTORIES = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "tensor", "eye"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("linspace", "as_tensor", "empty_strided"),
)
METHODS = ("to", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
QUIET = (
    *("synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all", "init", "_lazy_init"),
    *(
        "reset_peak_memory_stats",
        "set_stream",
        "ipc_collect",
        "check_error",
        "get_rng_state",
        "set_rng_state",
    ),
)


def _torch() -> None:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    gpu, read = torch.device("cuda", 0), torch._C.TensorBase.device.__get__

    def true_device(tensor: Any) -> Any:
        with torch._C.DisableTorchFunction():  # else a mode is asked, and asks us
            return read(tensor)

    def device_of(tensor: Any) -> Any:
        found = true_device(tensor)
        return gpu if found.type == "cpu" else found

    class OnProcessor(TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = {name: _on_processor(value) for name, value in (kwargs or {}).items()}
            kwargs.pop("pin_memory", None)
            name = getattr(func, "__name__", "")
            if name in ("cuda", "pin_memory", "record_stream"):
                return args[0]
            if name == "get_device":
                return 0
            return func(*(_on_processor(value) for value in args), **kwargs)

    def _on_processor(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "cuda" else value
        return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value

    def wrapped(function: Any) -> Callable[..., Any]:  # where the mode is off: in operators, in backward
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs = {name: _on_processor(value) for name, value in kwargs.items()}
            found = function(*(_on_processor(value) for value in args), **kwargs)
            is_empty = "empty" in function.__name__ and not found.is_floating_point()
            return found.zero_() if is_empty and found.device.type != "meta" else found

        return call

    for name in FACTORIES:
        setattr(torch, name, wrapped(getattr(torch, name)))
    for name in METHODS:
        setattr(torch.Tensor, name, wrapped(getattr(torch.Tensor, name)))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor

    class Cheap(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if _is_dear(func, args):
                try:
                    return _zeros_of(func, args, kwargs)
                except Exception:  # then it is computed
                    pass
            found = func(*args, **kwargs)
            if any(getattr(one, "unknown_content", False) for one in _tensors((args, kwargs))):
                for one in _tensors(found):
                    one.unknown_content = True
            return found

    true_generator = torch.Generator

    class AnyGenerator(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, true_generator)

    class Generator(metaclass=AnyGenerator):
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return true_generator("cpu")

    torch.Generator = Generator
    torch.Tensor.device = property(device_of)
    torch.Tensor.is_cuda = property(lambda tensor: true_device(tensor).type == "cpu")

    def answer(value: Any = None) -> Callable[..., Any]:  # a function of its own each: dynamo asks for that
        return lambda *_, **__: value

    same: Callable[..., Any] = lambda function=None, **_: (lambda f: f) if function is None else function  # noqa: E731
    torch.compile = same
    torch.random.fork_rng = lambda *_, **__: nullcontext()
    torch.testing.assert_close, torch.set_default_device = answer(), answer()
    torch.allclose, torch.equal = answer(True), answer(True)
    cuda = torch.cuda
    for name, value in {
        **{name: answer(True) for name in ("is_available", "is_initialized")},
        "device_count": answer(1),
        "current_device": answer(0),
        "get_device_name": answer(PROPERTIES.name),
        "get_device_capability": answer((9, 0)),
        "get_device_properties": answer(PROPERTIES),
        "mem_get_info": answer((140_000_000_000, 150_000_000_000)),
        "get_arch_list": answer(["sm_90a"]),
        "is_current_stream_capturing": answer(False),
        **{name: answer(_Stream()) for name in ("current_stream", "default_stream", "stream")},
        **{name: answer(0) for name in ("memory_allocated", "max_memory_allocated", "memory_reserved")},
        **{name: answer() for name in QUIET},
        "Event": _Event,
        "Stream": _Stream,
        "device": _Device,
        "_DeviceGuard": _Device,
        "device_of": _Device,
    }.items():
        setattr(cuda, name, value)
    OnProcessor().__enter__()
    Cheap().__enter__()


def _tensors(value: Any) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_dear(func: Any, args: Any) -> bool:
    name = func._schema.name.split("::")[-1]
    shapes = [tuple(tensor.shape) for tensor in _tensors(args)]
    if name in PRODUCTS or "attention" in name:
        return math.prod(extent for shape in shapes[:2] for extent in shape[-2:]) > DEAR_PRODUCT or any(
            math.prod(shape) > 2**20 for shape in shapes
        )
    if not shapes and args and isinstance(args[0], list | tuple):  # a factory
        return math.prod(args[0]) > DEAR_ELEMENTS and name not in ("empty", "zeros", "empty_strided")
    return max(map(math.prod, shapes), default=0) > DEAR_ELEMENTS


def _zeros_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation on floating-point tensors returns, as zeros. Raises if it must be computed."""
    import torch
    from torch.utils._pytree import tree_map

    returns = func._schema.returns
    if func._schema.name.endswith("_") and isinstance(args[0], torch.Tensor):
        if args[0].is_floating_point():
            return args[0]
        raise TypeError("integers are computed")
    if any(one.alias_info is not None for one in returns):
        raise TypeError("views are taken")

    def meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    kwargs = {name: meta(value) for name, value in kwargs.items()}
    if not any(True for _ in _tensors(args)):
        kwargs.pop("generator", None)
        kwargs["device"] = "meta"
    found = func(*tree_map(meta, args), **kwargs)
    if not all(one.is_floating_point() for one in _tensors(found)):
        raise TypeError("integers are computed")
    return tree_map(
        lambda one: torch.zeros(one.shape, dtype=one.dtype) if isinstance(one, torch.Tensor) else one, found
    )


def _tilelang(compile_kernel: Callable[..., Any], tune: Callable[..., Any]) -> None:
    import tilelang
    import tilelang.autotuner.tuner as tuner
    import tilelang.backend.target as backend_target
    import tilelang.testing
    from tvm.target import Target

    fixed = Target(TARGET)

    def determine(_: Any = "auto", return_object: bool = False) -> Any:
        return fixed if return_object else "cuda"

    for module in [*sys.modules.values()]:
        if "determine_target" in getattr(module, "__dict__", ()):
            module.determine_target = determine
    backend_target.auto_detect_target = lambda: TARGET
    driver = importlib.import_module("tilelang.carver.arch.driver.cuda_driver")
    driver.get_cuda_device_properties = lambda *_: PROPERTIES
    sys.modules["tilelang.jit"].compile = compile_kernel  # the name `tilelang.jit` is a function
    tilelang.compile = tuner.compile = compile_kernel
    tuner.AutoTuner.run = tune

    def do_bench(fn: Callable[[], Any] | None = None, *_: Any, **__: Any) -> float:
        if fn is not None:
            fn()
        return 1.0

    tilelang.profiler.do_bench = do_bench
    for module in [*sys.modules.values()]:
        if callable(getattr(module, "__dict__", {}).get("do_bench")):
            module.do_bench = do_bench
    for name in ("torch_assert_close", "assert_allclose"):
        if hasattr(tilelang.testing, name):
            setattr(tilelang.testing, name, lambda *_, **__: None)
    fixed.__enter__()


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after `seconds` of this process on a core: other work counts not."""
    import signal

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, max(0.01, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
