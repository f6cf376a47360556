"""CPU time of the parts of a lowering: tracing the template, each pass, reading the profile, the fingerprint.

    python experiments/lowering_time/parts.py                  # the default cases, about three minutes
    python experiments/lowering_time/parts.py matmul M0 h200   # one case

Each case is an even sample of the configs of a workload that differ in more than the order of blocks. They
are lowered one after the other, as a worker process does it. Times are CPU seconds of this one process
(`time.process_time`), which other work on the machine changes little. Passes are those that TVM reports to
its instruments; a pass's time is without the passes that it calls.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CASES = (
    ("matmul", "M0", "h200"),
    ("matmul", "M0", "a100"),
    ("matmul", "M0", "mi300x"),
    ("flash_attention", "FA4", "h200"),
    ("dequant_matmul", "D17", "h200"),
    ("chunk_state", "CT0", "h200"),
    ("gemv", "V5", "h200"),
    ("rms_norm", "R0", "h200"),
    ("matmul", "S512", "cpu"),
)
SAMPLE = 24
MOST_ROWS = 12  # passes of a case that are listed; the rest is summed


class Clock:
    """CPU milliseconds by part."""

    def __init__(self) -> None:
        self.ms: Counter[str] = Counter()
        self._open: list[list[Any]] = []

    def begin(self, name: str) -> None:
        self._open.append([name, time.process_time(), 0.0])

    def end(self) -> None:
        name, begin, inner = self._open.pop()
        took = (time.process_time() - begin) * 1e3
        self.ms[name] += took - inner
        if self._open:
            self._open[-1][2] += took

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end()


def main(wanted: list[str]) -> None:
    begin = time.process_time()
    from tilesight.executor.tasks import preload_compiler

    preload_compiler()
    print(f"imports of a fork server: {time.process_time() - begin:.2f} CPU s")
    for case in [tuple(wanted)] if wanted else CASES:
        _case(*case)


def _case(kernel: str, shape: str, target_name: str) -> None:
    from tilesight.tuner.resolve import default_dtype, find_operator, find_template, find_workloads

    target = _target(target_name)
    operator = find_operator(kernel)
    dtype = default_dtype(operator, target)
    (workload,) = find_workloads(operator, target, shape, dtype)
    template = find_template(operator, target, dtype)
    configs = _sample(template, workload, target)
    clock = Clock()
    _lower(template, workload, configs[0], target, Clock())  # imports and caches of the first one
    done = sum(_lower(template, workload, config, target, clock) for config in configs)
    total = sum(clock.ms.values())
    case = f"{kernel} {shape} {target_name}"
    print(f"\n{case}: {done} of {len(configs)} configs, {total / len(configs):.0f} ms each")
    parts = Counter({name: ms for name, ms in clock.ms.items() if not name.startswith("pass ")})
    passes = Counter({name: ms for name, ms in clock.ms.items() if name.startswith("pass ")})
    shown = [*parts.most_common(), *passes.most_common(MOST_ROWS)]
    rest = sum(ms for _, ms in passes.most_common()[MOST_ROWS:])
    for name, ms in [*shown, (f"pass: the other {max(0, len(passes) - MOST_ROWS)}", rest)]:
        print(f"  {name} | {ms / len(configs):.1f} ms | {ms / total:.1%}")


def _lower(template: Any, workload: Any, config: Any, target: Any, clock: Clock) -> bool:
    from tvm.ir.instrument import pass_instrument
    from tvm.ir.transform import PassContext

    from tilesight.costmodel.extract import read_profiles
    from tilesight.lowering.lower import lower

    @pass_instrument
    class Timer:
        def run_before_pass(self, module: Any, info: Any) -> None:
            clock.begin(f"pass {info.name}")

        def run_after_pass(self, module: Any, info: Any) -> None:
            clock.end()

    try:
        with clock.part("trace"):
            traced = template.build(workload, config)
        with clock.part("between passes"), PassContext(opt_level=3, instruments=[Timer()]):
            lowered = lower(traced, target, only_read=True)
    except Exception as error:
        print(f"  {config}: {type(error).__name__}", file=sys.stderr)
        clock._open.clear()
        return False
    with clock.part("read"):
        read_profiles(lowered, target)
    with clock.part("fingerprint"):
        _ = lowered.fingerprint
    return True


def _sample(template: Any, workload: Any, target: Any) -> list[Any]:
    from tilesight.executor.shared_lowering import RasterizationGroups
    from tilesight.search.stratified import stratified

    space = template.space(workload, target)
    groups = RasterizationGroups(template, space.configs())
    return list(dict.fromkeys(groups.first(config) for config in stratified(space, SAMPLE)))


def _target(name: str) -> Any:
    from tilesight.target.spec import load_target

    return load_target(name)


if __name__ == "__main__":
    main(sys.argv[1:])
