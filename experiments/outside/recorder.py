"""Records kernels instead of compiling them, and the arguments that they are called with."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arguments import NotCapturedError, declared, fit, shape_at, sizes_of, torch_dtype
from corpus import MOST_CONTENT_BYTES, Argument, Candidate, Corpus, digest
from variants import is_config, other_configs, other_sizes

MOST_BYTES = 20e9  # of a candidate's tensors
MOST_GROUPS, MOST_OF_GROUP = 8, 9  # captured of one kernel; the corpus keeps fewer


@dataclass
class Origin:
    """How a kernel was made: by `maker(*args, **kwargs)`, where it is known."""

    file: str
    function: str
    maker: Any = None  # tilelang's JITImpl
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def named(self) -> dict[str, Any]:
        """Arguments by name, with defaults."""
        if self.maker is None:
            return {}
        signature = getattr(self.maker, "signature", None) or inspect.signature(self.maker)
        try:
            bound = signature.bind_partial(*self.args, **self.kwargs)
        except TypeError:
            return {name: value for name, value in self.kwargs.items() if not hasattr(value, "shape")}
        bound.apply_defaults()
        named = dict(bound.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named |= named.pop(name, {})
        return {name: value for name, value in named.items() if not hasattr(value, "shape")}

    def closure(self) -> dict[str, Any]:
        """Plain values that the function has from the functions around it."""
        func = getattr(self.maker, "func", self.maker)
        func = getattr(func, "orig_func", func)
        names = getattr(getattr(func, "__code__", None), "co_freevars", ())
        cells = getattr(func, "__closure__", None) or ()
        found = {}
        for name, cell in zip(names, cells, strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if isinstance(value, int | float | str | bool):
                found[name] = value
        return found


class Kernel:
    """Takes the place of a compiled kernel."""

    latency = ref_latency = 1.0
    siblings: Sequence[Kernel] = ()  # of other configs, by an autotuner

    def __init__(
        self, recorder: Recorder, prim_func: Any, origin: Origin, options: Mapping[str, Any]
    ) -> None:
        self.recorder, self.prim_func, self.origin = recorder, prim_func, origin
        self.options = dict(options)
        self.config = {n: v for n, v in origin.named().items() if is_config(n, v)}
        self.called: list[Candidate] = []
        attrs = dict(prim_func.attrs or {})
        out = self.options.get("out_idx")
        if out is None and "tilelang_out_idx" in attrs:
            out = list(attrs["tilelang_out_idx"])
        out = [] if out is None else [out] if isinstance(out, int) else list(out)
        count = len(prim_func.params)
        self.out_idx = [int(index) % count for index in out]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: SimpleNamespace() if name != "get_kernel_source" else ""

    def get_kernel_source(self, *_: Any, **__: Any) -> str:
        return ""

    def get_profiler(self, *_: Any, **__: Any) -> Any:
        return Profiler(self)

    def __call__(self, *args: Any, **_: Any) -> Any:
        given = iter(args)
        names = [str(parameter.name) for parameter in self.prim_func.params]
        whole = len(args) == len(names)
        values = [
            None if index in self.out_idx and not whole else next(given, None) for index in range(len(names))
        ]
        sizes = sizes_of(self.prim_func, values)
        outputs = {}
        for index in self.out_idx:
            if values[index] is None:
                outputs[index] = self._output(index, sizes)
                values[index] = outputs[index]
        self.recorder.call(self, values, sizes, set(outputs))
        self._mark(outputs.values(), values)
        found = list(outputs.values())
        return found[0] if len(found) == 1 else tuple(found) if found else None

    def _output(self, index: int, sizes: Mapping[str, int]) -> Any:
        import torch

        parameter = self.prim_func.params[index]
        buffer = self.prim_func.buffer_map[parameter]
        return torch.zeros(shape_at(buffer.shape, sizes), dtype=torch_dtype(str(buffer.dtype)))

    @staticmethod
    def _mark(outputs: Any, values: Sequence[Any]) -> None:
        """Integers that a kernel writes are unknown to all that reads them."""
        for one in outputs:
            one.unknown_content = True
        for value in values:
            if hasattr(value, "shape") and not value.is_floating_point() and not bool(value.any()):
                value.unknown_content = True


class Profiler:
    """Takes the place of `tilelang.Profiler`: it calls the kernel with tensors of the declared shapes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def do_bench(self, func: Callable[..., Any] | None = None, *_: Any, **__: Any) -> float:
        if func is None:
            self.kernel.recorder.made(self.kernel)
        return 1.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.kernel.recorder.made(self.kernel)
        return lambda *_, **__: 1.0

    def __call__(self, *args: Any) -> Any:
        return self.kernel(*args)


class Recorder:
    """Writes what it is given into a corpus."""

    def __init__(self, corpus: Corpus, root: Path, repository: str) -> None:
        self.corpus, self.root, self.repository = corpus, root, repository
        self.kernels: dict[int, Kernel] = {}
        self.failures: Counter[str] = Counter()
        self._known: set[str] = set()
        self._groups: dict[str, dict[str, int]] = defaultdict(dict)

    # stand-ins of TileLang's functions
    def compile(self, func: Any = None, out_idx: Any = None, **options: Any) -> Kernel:
        """In place of `tilelang.compile`."""
        origin = self._origin(func)
        kernel = Kernel(self, func, origin, {"out_idx": out_idx, **options})
        self.kernels[len(self.kernels)] = kernel
        return kernel

    def tune(self, tuner: Any, *_: Any, **__: Any) -> Any:
        """In place of `AutoTuner.run`: some of the configs are captured, the first is the result."""
        configs = tuner.configs
        if callable(configs):
            args, kwargs = tuner._kernel_parameters
            configs = configs(*args, **dict(kwargs))
        configs = list(configs)
        first, kernels = None, []
        for config in configs[:: max(1, len(configs) // 6)][:8]:
            try:
                if getattr(tuner, "jit_compile", None) is not None:
                    kernel = tuner.jit_compile(**config)
                else:
                    prim = tuner.fn(**{n: v for n, v in config.items() if n != "pass_configs"})
                    kernel = self.compile(prim, **dict(getattr(tuner, "compile_args", None) or {}))
                    kernel.config = dict(config)
                kernels.append(kernel)
                first = first or (kernel, config)
            except Exception as error:
                self.failures[f"config of autotune: {type(error).__name__}"] += 1
        if first is None:
            raise NotCapturedError("no config of autotune can be traced")
        first[0].siblings = kernels[1:]
        return SimpleNamespace(
            kernel=first[0], config=first[1], latency=1.0, ref_latency=1.0, libcode="", func=None
        )

    def _origin(self, prim_func: Any) -> Origin:
        frame = sys._getframe(2)
        while frame is not None:
            mine = frame.f_locals.get("self")
            if frame.f_code.co_name == "compile" and type(mine).__name__ == "JITImpl":
                func = mine.func.orig_func
                args, kwargs = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})
                return Origin(func.__code__.co_filename, _qualified(func), mine, tuple(args), dict(kwargs))
            frame = frame.f_back
        func = getattr(prim_func, "orig_func", None)
        if func is None:
            frame = sys._getframe(2)
            while frame is not None and not str(frame.f_code.co_filename).startswith(str(self.root)):
                frame = frame.f_back
            file = frame.f_code.co_filename if frame else ""
            return Origin(file, str((prim_func.attrs or {}).get("global_symbol", "main")))
        return Origin(func.__code__.co_filename, _qualified(func))

    def call(self, kernel: Kernel, values: Sequence[Any], sizes: Mapping[str, int], fresh: set[int]) -> None:
        """A call with values for all parameters; those in `fresh` are new outputs."""
        try:
            arguments = self._arguments(kernel.prim_func, values, sizes, fresh)
            found = self._write(
                kernel, kernel.prim_func, kernel.config, kernel.origin.named(), arguments, sizes, "call"
            )
            if found is not None:
                kernel.called.append(found)
            for sibling in kernel.siblings:
                self._sibling(sibling, arguments, sizes)
        except NotCapturedError as error:
            self.failures[str(error)] += 1

    def made(self, kernel: Kernel) -> None:
        """A kernel whose arguments are as its function declares them."""
        for one in (kernel, *kernel.siblings):
            if one.called:
                continue
            try:
                arguments = declared(one.prim_func, {})
                found = self._write(one, one.prim_func, one.config, one.origin.named(), arguments, {}, "made")
                if found is not None:
                    one.called.append(found)
            except NotCapturedError as error:
                self.failures[str(error)] += 1

    def _sibling(self, kernel: Kernel, arguments: Sequence[Argument], sizes: Mapping[str, int]) -> None:
        fitted = fit(kernel.prim_func, arguments, sizes)
        self._write(kernel, kernel.prim_func, kernel.config, kernel.origin.named(), fitted, sizes, "config")

    def finish(self, until: float) -> None:
        """Kernels that were never called, then variants of all that were, until this time on a core."""
        for kernel in [*self.kernels.values()]:
            self.made(kernel)
        seen: Counter[str] = Counter()
        for kernel in [*self.kernels.values()]:
            for candidate in kernel.called[:2]:
                if seen[candidate.name] < 3 and kernel.origin.maker is not None:
                    seen[candidate.name] += 1
                    self._configs(kernel, candidate, until, {})
        seen.clear()
        for kernel in [*self.kernels.values()]:
            for candidate in kernel.called[:1]:
                if seen[candidate.name] < 2 and not _has_content(candidate.arguments):
                    seen[candidate.name] += 1
                    self._sizes(kernel, candidate, until)

    def _configs(self, kernel: Kernel, base: Candidate, until: float, sized: Mapping[str, int]) -> None:
        origin, named = kernel.origin, kernel.origin.named()
        only_schedule = _has_content(base.arguments)
        for change in other_configs(named | sized, only_schedule=only_schedule, most=8 if not sized else 4):
            if time.process_time() > until:
                return
            self._variant(kernel, base, named | sized | change, {**sized, **change}, origin, "config")

    def _sizes(self, kernel: Kernel, base: Candidate, until: float) -> None:
        named = kernel.origin.named()
        if any("stride" in name for name in base.sizes):
            return  # strides follow sizes in ways that only the caller knows
        changes = list(other_sizes(named)) if kernel.origin.maker is not None else []
        for change in changes:
            if time.process_time() > until:
                return
            if self._variant(kernel, base, named | change, change, kernel.origin, "size"):
                self._configs(kernel, base, until, change)
        for change in [] if changes else other_sizes({n: v for n, v in base.sizes.items() if v >= 64}):
            sizes = {**base.sizes, **change}
            try:
                arguments = declared(kernel.prim_func, sizes, base.arguments)
                self._write(kernel, kernel.prim_func, kernel.config, named, arguments, sizes, "size")
            except NotCapturedError as error:
                self.failures[str(error)] += 1

    def _variant(
        self,
        kernel: Kernel,
        base: Candidate,
        named: Mapping[str, Any],
        change: Mapping[str, Any],
        origin: Origin,
        kind: str,
    ) -> bool:
        try:
            prim_func = _traced(origin, change)
            sizes = base.sizes
            if kind == "size" or any(name not in kernel.config for name in change):
                arguments = declared(prim_func, sizes)
            else:
                arguments = fit(prim_func, base.arguments, sizes)
            config = {name: value for name, value in named.items() if is_config(name, value)}
            return self._write(kernel, prim_func, config, named, arguments, sizes, kind) is not None
        except NotCapturedError as error:
            self.failures[str(error)] += 1
        except TimeoutError:
            raise
        except Exception as error:  # TileLang and kernels' own checks raise many types of errors
            self.failures[f"variant refused: {type(error).__name__}"] += 1
        return False

    def _arguments(
        self, prim_func: Any, values: Sequence[Any], sizes: Mapping[str, int], fresh: set[int]
    ) -> tuple[Argument, ...]:
        found = []
        for index, (parameter, value) in enumerate(zip(prim_func.params, values, strict=True)):
            name = str(parameter.name)
            if parameter not in prim_func.buffer_map:
                if value is None:
                    raise NotCapturedError("a number is missing")
                found.append(Argument(name, str(parameter.dtype), value=_number(value)))
                continue
            buffer = prim_func.buffer_map[parameter]
            dtype = str(buffer.dtype)
            if value is None:  # the kernel gets a null pointer
                found.append(Argument(name, dtype, (), content="none"))
                continue
            shape = shape_at(buffer.shape, sizes)
            strides = None if value.is_contiguous() else tuple(map(int, value.stride()))
            content = "" if index in fresh else self._content(value, dtype)
            found.append(Argument(name, dtype, shape, content=content, strides=strides))
        return tuple(found)

    def _content(self, tensor: Any, dtype: str) -> str:
        if not any(word in dtype for word in ("int", "bool")) or tensor.numel() == 0:
            return ""
        if getattr(tensor, "unknown_content", False):
            raise NotCapturedError("integers come from another kernel")
        narrow = dtype.endswith(("int8", "int4", "int2")) and "x" not in dtype
        if narrow and tensor.numel() > 2**16:
            return ""  # packed weights: any values do
        data = tensor.contiguous().view(-1)
        if data.numel() * data.element_size() <= 2**26:
            raw = data.numpy().tobytes() if dtype != "bool" else data.to("cpu").byte().numpy().tobytes()
            if kept := self.corpus.put("contents", raw, MOST_CONTENT_BYTES):
                return f"file:{kept}"
        return f"uniform:{int(data.min())}:{int(data.max())}"

    def _write(
        self,
        kernel: Kernel,
        prim_func: Any,
        config: Mapping[str, Any],
        named: Mapping[str, Any],
        arguments: tuple[Argument, ...],
        sizes: Mapping[str, int],
        kind: str,
    ) -> Candidate | None:
        from tvm.ir import save_json

        name = f"{self.repository}/{self._file(kernel.origin.file)}:{kernel.origin.function}"
        plain = {**kernel.origin.closure(), **named}
        config = {n: v for n, v in {**plain, **config}.items() if n in config or is_config(n, v)}
        rest = {n: str(v) for n, v in plain.items() if n not in config and _is_plain(v)}
        shapes = [(a.shape, a.dtype, a.content) for a in arguments[: len(arguments) - len(kernel.out_idx)]]
        if config and "split" in "".join(config):  # workspaces follow the config
            shapes = [] if rest else shapes[:2]
        said = json.dumps([rest, shapes, dict(sizes)], sort_keys=True, default=str)
        group = f"{name}#{digest(said.encode())[:6]}"
        known = self._groups[name]
        if known.get(group, 0) >= MOST_OF_GROUP or (group not in known and len(known) >= MOST_GROUPS):
            return None
        options = kernel.options.get("pass_configs") or {}
        passes = {str(getattr(n, "value", n)): _plain(v) for n, v in options.items()}
        flags = kernel.options.get("compile_flags") or ()
        flags = (flags,) if isinstance(flags, str) else tuple(map(str, flags))
        candidate = Candidate(
            name,
            group,
            {n: _plain(v) for n, v in config.items()},
            "",
            arguments,
            dict(sizes),
            passes,
            flags,
            kind,
        )
        if candidate.bytes > MOST_BYTES:
            raise NotCapturedError("tensors of more than 20 GB")
        function = self.corpus.put("functions", save_json(prim_func).encode())
        candidate = replace(candidate, function=function)
        if candidate.key in self._known:
            return None
        self._known.add(candidate.key)
        known[group] = known.get(group, 0) + 1
        self.corpus.add(candidate)
        return candidate

    def _file(self, path: str) -> str:
        try:
            return str(Path(path).resolve().relative_to(self.root.resolve()))
        except ValueError:
            return Path(path).name


def _traced(origin: Origin, change: Mapping[str, Any]) -> Any:
    maker = origin.maker
    signature = maker.signature
    args = []
    positional = [
        n for n, p in signature.parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for index, value in enumerate(origin.args):
        name = positional[index] if index < len(positional) else ""
        args.append(change.get(name, value))
    kwargs = {**origin.kwargs, **{n: v for n, v in change.items() if n not in positional[: len(args)]}}
    return maker.get_tir(*args, **kwargs)


def _has_content(arguments: Sequence[Argument]) -> bool:
    return any(argument.content for argument in arguments)


def _qualified(func: Any) -> str:
    return str(func.__qualname__).replace(".<locals>", "")


def _number(value: Any) -> int | float:
    return value if isinstance(value, int | float) else float(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | tuple) or "dtype" in type(value).__name__.lower()


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else str(value)
