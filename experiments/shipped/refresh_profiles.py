"""Takes the shipped profiles over to the present code that lowers and reads, and lowers some of them again.

    python experiments/shipped/refresh_profiles.py --again topk_gate,dequant_matmul:format [--check 2]

Profiles of one version of that code are not used by another. When a change concerns some templates alone,
those named by `--again` are lowered again at the same sizes, and all others get the key of the present code.
`dequant_matmul:format` are the profiles of `dequant_matmul` with an attribute `format`.
`--check N` lowers N others of each template and architecture, and prints how far their predictions change.
Profiles of templates that have changed since are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.database.shipped import PROFILES, ProfileArchive, write_archive
from tilesight.database.store import open_store
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import lower_all
from tilesight.executor.local import LocalExecutor
from tilesight.executor.profile_cache import ProfileCache, reader_version
from tilesight.executor.tasks import Profiled
from tilesight.kernels import operators, templates
from tilesight.problem.candidate import Candidate
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.profile.parametric import ParametricProfile, ProfileKey
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import Target, load_target

sys.path.insert(0, str(Path(__file__).resolve().parent))

from candidates import PACKAGE

TARGETS = {"sm_90a": "h200", "sm_80": "a100", "gfx942": "mi300x"}  # by architecture

Found = dict[ProfileKey, list[ParametricProfile]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--again", default="", help="templates, or template:attribute, by commas")
    parser.add_argument("--check", type=int, default=0, help="others that are lowered, of each template")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--folder", type=Path, default=PACKAGE, help="[default: that of the package]")
    given = parser.parse_args()
    path, again = given.folder / PROFILES, set(given.again.split(","))
    known = {template.name: template for name in operators() for template in templates(name)}
    shipped = read_archive(path, known)
    outdated = {key: found for key, found in shipped.items() if is_named(key, again)}
    kept = {key: found for key, found in shipped.items() if key not in outdated}
    lowered = lowered_again(outdated, known, given.workers)
    check(kept, known, given.check, given.workers)
    reader = reader_version()
    write_archive(path, lowered | {replace(key, reader=reader): found for key, found in kept.items()})
    counts = [sum(map(len, found.values())) for found in (lowered, kept)]
    print(f"{counts[0]} profiles lowered again, {counts[1]} taken over, into {path}")


def read_archive(path: Path, known: Mapping[str, KernelTemplate]) -> Found:
    """The profiles of the present templates."""
    archive = ProfileArchive(path)
    present = [key for key in archive_keys(archive) if key.template_version == known[key.template].version]
    return {key: archive.cached_profiles(key) for key in present}


def archive_keys(archive: ProfileArchive) -> list[ProfileKey]:
    """The keys of all profiles of an archive."""
    names = [field.name for field in fields(ProfileKey)]
    return [ProfileKey(**{name: str(stated[name]) for name in names}) for stated in archive.keys.values()]


def lowered_again(shipped: Found, known: Mapping[str, KernelTemplate], workers: int) -> Found:
    """The same configs at the same sizes, by the present code."""
    wanted = [
        candidate
        for key, found in shipped.items()
        for profile in found
        for candidate in candidates(key, profile, known[key.template])
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(f"{folder}/profiles.db") as store,
        LocalExecutor(workers, load_settings().cache_dir) as executor,
    ):
        caching = CachingExecutor(executor, ProfileCache(store))
        failed = sum(not isinstance(outcome, Profiled) for _, outcome in lower_all(caching, wanted))
        if failed:
            print(f"{failed} of {len(wanted)} candidates do not lower any more")
        keys = [replace(key, reader=reader_version()) for key in shipped]
        return {key: list(store.cached_profiles(key)) for key in keys}


def candidates(key: ProfileKey, profile: ParametricProfile, template: KernelTemplate) -> Iterable[Candidate]:
    """The config of a profile at each of its sizes."""
    target = target_of(key)
    for sample in profile.samples:
        workload = workload_of(key, sample.dims, template)
        yield Candidate(workload, target, template, profile.config, profile.dynamic)


def is_named(key: ProfileKey, names: Collection[str]) -> bool:
    """Whether `names` has a profile's template, or `template:attribute` with an attribute that it has."""
    return key.template in names or any(f"{key.template}:{name}" in names for name in attrs_of(key))


def attrs_of(key: ProfileKey) -> dict[str, str]:
    """Attributes and `dtype` of a shape class, such as `gemv(n=1024,k=4096;dtype=bfloat16)`."""
    pairs = key.shape_class.rstrip(")").partition(";")[2].split(",")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def workload_of(key: ProfileKey, dims: Mapping[str, int], template: KernelTemplate) -> Workload:
    """The workload of a shape class at some sizes."""
    attrs = attrs_of(key)
    dtype = attrs.pop("dtype")
    return Workload(template.operator.name, dict(dims), dtype, {n: plain(v) for n, v in attrs.items()})


def plain(value: str) -> object:
    """An attribute's value: a number, a truth value, or a text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def target_of(key: ProfileKey) -> Target:
    return load_target(next(name for arch, name in TARGETS.items() if arch in key.arch))


def check(shipped: Found, known: Mapping[str, KernelTemplate], count: int, workers: int) -> None:
    """Print how far predictions change for some profiles that are taken over."""
    groups: defaultdict[tuple[str, str], list[tuple[ProfileKey, ParametricProfile]]] = defaultdict(list)
    for key, found in shipped.items():
        groups[key.template, key.arch] += [(key, profile) for profile in found]
    chosen = random.Random(0)
    before: dict[Candidate, float] = {}
    model = AnalyticalModel()
    for members in groups.values():
        for key, profile in chosen.sample(members, min(count, len(members))):
            candidate = next(iter(candidates(key, profile, known[key.template])))
            kernels = profile.kernels(candidate.workload.dims)
            if kernels is not None:
                before[candidate] = model.predict(kernels, candidate.target).latency_us
    if not before:
        return
    changes = []
    with LocalExecutor(workers, load_settings().cache_dir) as executor:
        for candidate, outcome in lower_all(executor, before):
            if isinstance(outcome, Profiled):
                us = model.predict(outcome.kernels, candidate.target).latency_us
                changes.append(
                    (abs(math.log(us / before[candidate])), f"{candidate.workload.label} {candidate.config}")
                )
    changes.sort(reverse=True)
    worst = "; ".join(f"{change:.2%} {label}" for change, label in changes[:5])
    print(f"{len(changes)} of the profiles that are taken over were lowered: largest changes {worst}")


if __name__ == "__main__":
    main()
