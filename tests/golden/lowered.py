"""Candidates of every template that were lowered, so that tests lower only what has changed since.

`lowered.json` has a hash for each case: of the candidate, of the code of its template and of the lowering,
and of TileLang's version. A case with the same hash would be lowered as it was. Tests lower the other ones,
which takes seconds each.

`python tests/golden/lowered.py` lowers the other ones, too, checks them and writes the file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tilesight.code_hash import definition_hash, digest
from tilesight.kernels import default_dtype, operator, operators, template_for, templates
from tilesight.lowering.dynamic import lower_candidate, lowering_version
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import MEET
from tilesight.problem.template import NOT_CODE, KernelTemplate
from tilesight.target.spec import Target, load_target, node_names, target_names

FILE = Path(__file__).parent / "lowered.json"
# one target for each architecture
TARGETS = [name for name in target_names() if name != "h200"]


def targets_of(template: KernelTemplate, names: Sequence[str]) -> list[Target]:
    """The targets of these names that a template is for: two devices of each if it is for several."""
    if template.operator.communicates:
        names = [f"{name}x2" for name in names if f"{name}x2" in node_names()]
    return [target for target in map(load_target, names) if target.kind in template.target_kinds]


def static_case(template: KernelTemplate, target: Target) -> str:
    return f"{template.name} on {target.name}"


def static_candidate(template: KernelTemplate, target: Target) -> Candidate:
    """The first published workload with one legal config: on h100 any, since the default is lowered with
    dynamic dimensions, elsewhere the default.
    """
    ours, dtype = template.operator, next(d for d in template.dtypes if d in target.dtypes)
    workload = ours.workload_on(target, next(iter(ours.named)), dtype)
    config = template.default_config(workload, target)
    if target.device_target.name == "h100":
        (config,) = template.space(workload, target).sample(1, seed=3)
    assert config is not None
    return Candidate(workload, target, template, config)


def dynamic_case(name: str) -> str:
    return f"{name} with dynamic dimensions on h100"


def dynamic_candidate(name: str) -> Candidate:
    """The default config with every dimension taken at run time that the template declares."""
    target, ours = load_target("h100"), operator(name)
    dtype = default_dtype(name, target)
    template, workload = template_for(name, target, dtype), ours.default_workloads(dtype)[0]
    config = template.default_config(workload, target)
    assert config is not None
    return Candidate(workload, target, template, config, template.dynamic_dims)


def cases() -> dict[str, Callable[[], Candidate]]:
    """What makes the candidate of every case."""
    found: dict[str, Callable[[], Candidate]] = {
        static_case(template, target): partial(static_candidate, template, target)
        for name in operators()
        for template in templates(name)
        for target in targets_of(template, TARGETS)
    }
    alone = [name for name in operators() if not operator(name).communicates]
    return found | {dynamic_case(name): partial(dynamic_candidate, name) for name in alone}


def hash_of(candidate: Candidate) -> str:
    """A hash of everything that the lowering of a candidate depends on."""
    # not the version of the template: code that was declared to be the same has one version
    code = definition_hash(type(candidate.template), ignored=NOT_CODE)
    parts = [candidate.key, candidate.target.fingerprint, code, lowering_version(), version("tilelang")]
    return digest(json.dumps(parts))


def check(candidate: Candidate) -> None:
    """Lower a candidate: it has kernels of several blocks, which fit its target."""
    target = candidate.target
    kernels = list(lower_candidate(candidate, only_read=True).device.functions.values())
    assert kernels
    for kernel in kernels:
        assert kernel.attrs["target"].kind.name in ("cuda", "hip", "c")
        if not target.is_gpu:
            continue
        assert int(kernel.attrs.get("dyn_shared_memory_buf", 0)) <= target.int(
            "core.memory.shared.block_bytes"
        )
        if not candidate.dynamic:
            extents = kernel.attrs["thread_extent"].items()
            blocks = math.prod(int(v) for k, v in extents if k.startswith("blockIdx"))
            assert blocks > 1 or MEET in kernel.script()  # a barrier of ranks is one warp


def stored() -> dict[str, str]:
    """The hashes of `lowered.json` by case."""
    found: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def check_unless_known(case: str, candidate: Candidate) -> bool:
    """Check a candidate that differs from the one that was lowered for this case; whether it did."""
    if stored().get(case) == hash_of(candidate):
        return False
    check(candidate)
    return True


def main() -> int:
    made: dict[str, str] = {}
    for case, make in cases().items():
        candidate = make()
        if check_unless_known(case, candidate):
            print(case)
        made[case] = hash_of(candidate)
    FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
