"""`predict_collective`: the predicted time of a collective on several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..target.spec import Target, of_world

if TYPE_CHECKING:
    from ..costmodel.network.collectives import CollectivePrediction


def predict_collective(
    collective: str,
    size_bytes: int,
    target: str | Target | None = None,
    *,
    world: int | None = None,
    algorithm: str | None = None,
    mechanism: str | None = None,
    cores: int | None = None,
) -> CollectivePrediction:
    """The predicted time of a collective; needs no GPU.

    Args:
        collective: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        size_bytes: Bytes of the whole tensor: what each device has before an all-reduce, a reduce-scatter or
            an all-to-all, and after an all-gather.
        target: Several devices by name (`h100x4`), by the path of their file or as a `Target`; or, with
            `world`, their chip (`h100`). None: that of the settings.
        world: Number of devices that take part; None: all of the target. Of several hosts the first ones.
        algorithm: `library`, the vendor's, or one of a kernel: `one_shot`, `two_shot`, `ring` or `direct`.
        mechanism: How the kernel moves data: `store`, `load`, `tma_store`, `tma_load`, `tma_add`,
            `copy_engine` or `put`; None: loads where ranks read their peers' tensors, else stores. Levels
            that are reached by network cards only (`put`) are reached so in any case.
        cores: Cores of each device that move data; None: all.

    Raises:
        UnknownNameError: There is no target, collective or algorithm of that name.
        TargetFileError: The target file is invalid.
        InputError: The target has fewer devices, or lacks a figure that is needed.
    """
    from ..costmodel.network.collectives import predict_collective as predict
    from ..machine.placement import named_target

    devices = of_world(named_target(target), world)
    return predict(devices, collective, size_bytes, world, algorithm, mechanism, cores)
