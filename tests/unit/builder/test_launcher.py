"""What the launcher does for kernels of several devices, and for threads."""

from __future__ import annotations

from dataclasses import replace

from tilesight.builder.launch_plan import KernelLaunch, LaunchPlan
from tilesight.builder.launcher import cuda_launcher, hip_launcher, host_launcher

PLAN = LaunchPlan(1, (), (KernelLaunch("first", ()), KernelLaunch("second", ()), KernelLaunch("first", ())))


def test_functions_of_kernels_that_wait_for_other_devices_are_loaded_at_once() -> None:
    alone, of_ranks = cuda_launcher(PLAN), cuda_launcher(replace(PLAN, numbers=("rank",)))
    assert "cuFuncLoad" not in alone
    assert of_ranks.count("load(function_") == 2
    assert of_ranks.index("load(function_1)") < of_ranks.index("int tilesight_call")


def test_a_call_of_some_launches_makes_only_these() -> None:
    """The library's collective stands between others."""
    all_of_them, some = (
        cuda_launcher(replace(PLAN, numbers=("rank", *more))) for more in ((), ("launches",))
    )
    assert ">> " not in all_of_them
    chosen = [f"if (*(const int *)&arguments[2] >> {i} & 1)" for i in range(3)]
    places = [some.index(condition) for condition in chosen]
    launches = [i for i in range(len(some)) if some.startswith("driver.LaunchKernelEx(", i)]
    assert len(launches) == 3
    assert sorted([*places, *launches]) == [
        one for pair in zip(places, launches, strict=True) for one in pair
    ]


def test_each_thread_has_its_error_text() -> None:
    for write in (cuda_launcher, hip_launcher, host_launcher):
        [declared] = [line for line in write(PLAN).splitlines() if "error_text[512]" in line]
        assert declared.startswith("static thread_local char ")
