"""`export`: kernels of a dispatch table, or one kernel, as a folder that other programs use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..dispatch.table.table_file import DispatchTable, read_table
from ..errors import InputError, UnknownNameError
from ..exporter.folder_writer import ExportFormat, ExportOptions, write_export
from ..exporter.kernel_set import KernelSet
from ..exporter.kernel_source import kernel_by_name
from ..exporter.libraries import built_kernels
from ..exporter.names import check_name, name_from
from ..exporter.new_folder import check_new_folder, new_folder
from ..exporter.table_source import kernels_of_table
from ..exporter.trace_folder import find_definition
from ..problem.space import Value
from ..target.spec import Target
from ..tuner.resolve import Shape, check_workers


@dataclass(frozen=True, slots=True)
class Exported:
    """One export: its folder, its name, and what it contains."""

    folder: Path
    kernels: KernelSet
    seconds: float
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.kernels.name


def export(
    source: str | Path | DispatchTable | Sequence[str | Path | DispatchTable],
    out: str | Path,
    *,
    format: str = "c",
    target: str | Target | None = None,
    arch: str | None = None,
    name: str | None = None,
    shape: Shape | None = None,
    dtype: str | None = None,
    config: str | Mapping[str, Value] | None = None,
    dynamic: str | Sequence[str] = (),
    sizes: Sequence[int] = (),
    any_card: bool = False,
    protocol: str = "default",
    database: str | None = None,
    layers: Sequence[str] | None = None,
    workers: int | None = None,
) -> list[Exported]:
    """Write built kernels and an interface for C, Python, torch or an engine into a new folder.

    The folder needs neither TileSight nor TileLang, TVM or a CUDA toolkit; on a GPU it needs the driver.

    Args:
        source: A dispatch table of `tilesight plan` (a value, or a file that ends in .json), several of them,
            or the name of a kernel.
        out: The folder, new or empty. Several tables have a folder each in it, by their names.
        format: `c`; `python`: a module beside it; `torch`: an operator of torch in C++ beside it; `vllm`: the
            module, and one for vLLM; `flashinfer-trace`: a data set of FlashInfer-Bench with these kernels.
        target: Of a kernel, as for `tune`; of a table None, or the file of a target that is not shipped.
        arch: An architecture that the target must have, such as sm_90a.
        name: Prefix of the functions, and name of the files; None: that of the table's file, or the kernel's.
        shape, dtype: Of a kernel, as for `tune`; of several default shapes the first.
        config: Of a kernel; None: the recorded winner of the shape.
        dynamic: Dimensions that a kernel takes at run time.
        sizes: Of a table whose kernels serve one size each, the sizes to export; all if they are few.
        any_card: Accept any card of the architecture, not only the target's.
        protocol, database, layers: Of the recorded winner, as for `tune`.
        workers: Number of processes that build; None: `TILESIGHT_WORKERS`, or one per core.

    Raises:
        InputError: An argument is wrong, or a table does not fit this machine's templates and targets.
        ToolchainError: There is no compiler.
        NoCandidateError: A kernel cannot be built.
    """
    begin = time.perf_counter()
    if format not in list(ExportFormat):
        raise UnknownNameError("format", format, [one.value for one in ExportFormat])
    check_workers(workers)
    sources = [source] if isinstance(source, str | Path | DispatchTable) else list(source)
    folder = Path(out)
    check_new_folder(folder)
    tables = [_table(one) for one in sources]
    if None in tables:
        if len(sources) != 1:
            raise InputError(
                "several kernels are exported by one call each; several tables may be named at once"
            )
        if sizes:
            raise InputError(f"--sizes is for tables; state the shape of {source}: --shape")
        kernel = str(sources[0])
        chosen = name or name_from(kernel)
        check_name(chosen)
        sets = [
            kernel_by_name(kernel, chosen, target, shape, dtype, config, dynamic, protocol, database, layers)
        ]
    else:
        given = {"shape": shape, "dtype": dtype, "config": config, "dynamic": dynamic}
        needless = [f"--{option}" for option, value in given.items() if value]
        if needless:
            raise InputError(f"a table states its shapes and configs: leave out {' and '.join(needless)}")
        names = _names(sources, name)
        sets = [
            kernels_of_table(table, chosen, target, sizes)
            for table, chosen in zip(tables, names, strict=True)
            if table is not None
        ]
    for kernels in sets:
        _check_arch(kernels, arch)
    options = ExportOptions(ExportFormat(format), any_card)
    if options.format is ExportFormat.FLASHINFER_TRACE:
        for kernels in sets:
            find_definition(kernels)  # before anything is built
    built = [built_kernels(kernels, workers) for kernels in sets]
    with new_folder(folder) as made:
        for kernels, results in zip(sets, built, strict=True):
            place = made if len(sets) == 1 else made / kernels.name
            place.mkdir(exist_ok=True)
            write_export(kernels, results, place, options)
    found = []
    for kernels in sets:
        place = folder if len(sets) == 1 else folder / kernels.name
        files = tuple(sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()))
        found.append(Exported(place, kernels, time.perf_counter() - begin, files))
    return found


def _table(source: str | Path | DispatchTable) -> DispatchTable | None:
    """The table, or None for the name of a kernel."""
    if isinstance(source, DispatchTable):
        return source
    is_file = isinstance(source, Path) or source.endswith(".json") or "/" in source
    return read_table(source) if is_file else None


def _names(sources: Sequence[str | Path | DispatchTable], name: str | None) -> list[str]:
    """The name of each table's export. Raises `InputError` if two are the same, or one is not legal."""
    if name is not None and len(sources) > 1:
        raise InputError("--name is for one table; several are called by their files")
    names: list[str] = []
    for source in sources:
        plain = source.operator if isinstance(source, DispatchTable) else Path(source).stem
        chosen = name or name_from(plain)
        check_name(chosen)
        if chosen in names:
            raise InputError(
                f"two dispatch tables have the name '{chosen}', and their functions would be the same: "
                "rename a file, or export them one by one with --name"
            )
        names.append(chosen)
    return names


def _check_arch(kernels: KernelSet, arch: str | None) -> None:
    target = kernels.problem.target
    if arch is not None and arch != target.arch:
        what = "table" if kernels.table else "target"
        raise InputError(
            f"--arch {arch}: these kernels are for {target.name}, whose architecture is {target.arch}; name "
            f"a {what} of that architecture"
        )
