"""Reading one kernel in a test."""

from __future__ import annotations

from tilesight.costmodel.extract import read_profiles
from tilesight.lowering.lower import lower
from tilesight.profile.values import Access, KernelProfile, Role, Space
from tilesight.target.spec import load_target


def read(prim_func: object, target: str = "h200", flags: tuple[str, ...] = ()) -> KernelProfile:
    chip = load_target(target)
    (only,) = read_profiles(lower(prim_func, chip, only_read=True), chip, flags=flags)
    return only


def role(profile: KernelProfile, name: str) -> Role:
    (found,) = [r for r in profile.roles if r.name == name]
    return found


def accesses(profile: KernelProfile, space: Space = Space.GLOBAL, *, write: bool = False) -> list[Access]:
    return [
        a
        for r in profile.roles
        for p in r.phases
        for a in p.work.accesses
        if a.space is space and a.write is write
    ]


def flops(profile: KernelProfile) -> float:
    return profile.blocks * sum(
        p.trips.mean * m.count * m.flops for r in profile.roles for p in r.phases for m in p.work.matrix
    )


def total(profile: KernelProfile, count: str) -> float:
    return sum(p.trips.mean * getattr(p.work, count) for r in profile.roles for p in r.phases)
