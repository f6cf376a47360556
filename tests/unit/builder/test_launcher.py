"""What the launcher does for kernels of several devices."""

from __future__ import annotations

from dataclasses import replace

from tilesight.builder.launch_plan import KernelLaunch, LaunchPlan
from tilesight.builder.launcher import cuda_launcher

PLAN = LaunchPlan(1, (), (KernelLaunch("first", ()), KernelLaunch("second", ()), KernelLaunch("first", ())))


def test_functions_of_kernels_that_wait_for_other_devices_are_loaded_at_once() -> None:
    alone, of_ranks = cuda_launcher(PLAN), cuda_launcher(replace(PLAN, numbers=("rank",)))
    assert "cuFuncLoad" not in alone
    assert of_ranks.count("load(function_") == 2
    assert of_ranks.index("load(function_1)") < of_ranks.index("int tilesight_call")
