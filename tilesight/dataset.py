"""Datasets: measured candidates as rows of Parquet files, for training and judging cost models.

A row is one candidate on one workload, failures included. `COLUMNS` says what stands in it. All candidates of one
workload on one target are a case: within it candidates are ranked. Where a value is missing the frame has NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, ToolchainError
from .out_file import replacing
from .profile_json import profiles_of
from .trial import Status

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "VERSION", "Case", "Column", "Dataset", "profiles_of", "read_dataset", "write_dataset"]

VERSION = 1  # of the schema: raised when a column changes its meaning or goes away
METADATA_KEY = b"tilesight"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str  # text | number | numbers
    meaning: str
    required: bool = False  # never missing


COLUMNS = (
    Column("operator", "text", "what is computed, e.g. matmul", required=True),
    Column("workload", "text", "canonical key of operator, dimensions, attributes and dtype", required=True),
    Column("shape", "text", "published name (M0), else the dimensions as m=..,n=..", required=True),
    Column("dims", "text", "dimensions, a JSON object", required=True),
    Column("dtype", "text", "element type of inputs and output", required=True),
    Column("attrs", "text", "attributes (causal), a JSON object", required=True),
    Column("template", "text", "kernel template", required=True),
    Column("template_version", "text", "hash of the template's code", required=True),
    Column("target", "text", "target's name, e.g. h200", required=True),
    Column("config", "text", "the candidate's config, canonical JSON", required=True),
    Column("flops", "number", "floating-point operations that any implementation must do", required=True),
    Column("min_bytes", "number", "bytes that must cross device memory at least", required=True),
    Column("status", "text", "how far it came: " + ", ".join(Status), required=True),
    Column("failure_kind", "text", "at which stage it failed and how"),
    Column("failure", "text", "why it failed"),
    Column("fingerprint", "text", "hash of the generated device code; missing where it did not lower"),
    Column("profile", "text", "what its kernels ask of the hardware: JSON, read it with profiles_of"),
    Column("binary", "text", "hash of the machine code and of how it is launched: rows of one workload that share it are one kernel"),
    Column("registers", "number", "registers of a thread, as the compiler says"),
    Column("spill_bytes", "number", "bytes of a thread that the compiler spilled"),
    Column("smem_bytes", "number", "shared memory of a block in bytes, static and dynamic, as the compiler says"),
    Column("measured_us", "number", "median time in microseconds; only where the result was right"),
    Column("samples_us", "numbers", "the samples that it is the median of, in the order taken (single precision)"),
    Column("relative_error", "number", "||out - ref|| / ||ref||"),
    Column(
        "observed",
        "text",
        "what was seen while it was measured (clock, power, temperature, samples retaken, seed of inputs), JSON object of numbers",
    ),
    Column("vendor_us", "number", "the fastest vendor implementation's time on the same workload, in the run that finished the case"),
    Column("vendor", "text", "name of that implementation"),
    Column("counters", "text", "hardware counters, a JSON object of numbers"),
    Column("run", "text", "id of the run in the metadata: environment, protocol, date, program, seed", required=True),
)
# what makes two rows the same candidate; a template of another version is another program
CANDIDATE = ("workload", "target", "template", "template_version", "config")


@dataclass(frozen=True)
class Case:
    """All candidates of one workload on one target."""

    workload: str
    target: str
    operator: str
    shape: str
    dtype: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Dataset:
    """`frame` has the columns of `COLUMNS`; `metadata` is {"version": 1, "runs": {id: {...}}}."""

    frame: pd.DataFrame
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Any]) -> Dataset:
        """From rows by column name; columns that a row lacks are missing. Raises `InputError`."""
        import pandas as pd

        made = {c.name: pd.Series([row.get(c.name) for row in rows], dtype=_DTYPES[c.kind]) for c in COLUMNS}
        dataset = cls(pd.DataFrame(made), {"version": VERSION, "runs": dict(runs)})
        dataset.check("these rows")
        return dataset

    @classmethod
    def concat(cls, parts: Sequence[Dataset]) -> Dataset:
        """All rows of `parts`. A candidate that stands in several counts once: verified before failed, later before earlier.

        Raises `InputError` where two parts mean different things by one run id.
        """
        import pandas as pd

        if not parts:
            return cls.of([], {})
        runs: dict[str, Any] = {}
        for part in parts:
            for name, run in part.runs.items():
                known = runs.get(name, run)
                if known.get("date") != run.get("date"):
                    raise InputError(f"datasets cannot be joined: run '{name}' stands for two different runs; collect one of them anew")
                runs[name] = {**known, **run}  # a run that was continued, or had counters added, knows more
        frame = pd.concat([part.frame for part in parts], ignore_index=True) if len(parts) > 1 else parts[0].frame
        order = (frame["status"] == Status.VERIFIED).sort_values(kind="stable").index
        kept = frame.loc[order].drop_duplicates(list(CANDIDATE), keep="last").index
        return cls(frame.loc[sorted(kept)].reset_index(drop=True), {"version": VERSION, "runs": runs})

    @property
    def runs(self) -> Mapping[str, Any]:
        found = self.metadata.get("runs", {})
        assert isinstance(found, Mapping)
        return found

    def __len__(self) -> int:
        return len(self.frame)

    def verified(self) -> Dataset:
        """The rows that have a time and a profile: what a model learns from and is judged on."""
        frame = self.frame
        return self.where(frame["measured_us"].notna() & frame["profile"].notna())

    def where(self, chosen: pd.Series[bool]) -> Dataset:
        """The rows where `chosen` is true."""
        return Dataset(self.frame[chosen].reset_index(drop=True), self.metadata)

    def cases(self) -> Iterator[Case]:
        """Cases in the order of their keys, each with its rows in the dataset's order. Empty ones do not occur."""
        for (workload, target), rows in self.frame.groupby(["workload", "target"], sort=True):
            first = rows.iloc[0]
            yield Case(str(workload), str(target), first["operator"], first["shape"], first["dtype"], rows)

    def check(self, name: str) -> None:
        """Raise `InputError` that names `name`, the column and the way out where the rows do not hold together."""
        for column in COLUMNS:
            if column.name not in self.frame:
                raise InputError(f"{name}: column '{column.name}' ({column.meaning}) is missing; write the file with `tilesight collect`")
            missing = self.frame[column.name].isna()
            if column.required and missing.any():
                raise InputError(f"{name}: {_rows(missing)}: column '{column.name}' is empty; each row needs {column.meaning}")
        self._refuse(name, "status", ~self.frame["status"].isin(list(Status)), f"must be one of {', '.join(Status)}")
        verified = self.frame["status"] == Status.VERIFIED
        self._refuse(name, "measured_us", verified & ~(self.frame["measured_us"] > 0), "must be above 0 where status is verified")
        self._refuse(name, "measured_us", ~verified & self.frame["measured_us"].notna(), "must be empty where status is not verified")
        failed = self.frame["status"] == Status.FAILED
        self._refuse(name, "failure_kind", failed & self.frame["failure_kind"].isna(), "must be given where status is failed")
        self._refuse(name, "run", ~self.frame["run"].isin(list(self.runs)), "must be one of the runs in the file's metadata")
        twice = self.frame.duplicated(list(CANDIDATE))
        self._refuse(name, "config", twice, "stands there twice for one workload, target and template; join files with Dataset.concat")

    def _refuse(self, name: str, column: str, wrong: pd.Series[bool], rule: str) -> None:
        if wrong.any():
            value = self.frame[column][wrong].iloc[0]
            raise InputError(f"{name}: {_rows(wrong)}: {column}={value} {rule}")


_DTYPES: Mapping[str, Any] = {"text": "str", "number": "float64", "numbers": "object"}


def read_dataset(paths: str | Path | Sequence[str | Path]) -> Dataset:
    """Several files as one dataset; a folder stands for the Parquet files in it, in the order of their names.

    Raises `InputError` for files that cannot be read or do not hold together, `ToolchainError` where pyarrow is missing.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"dataset '{path}': no Parquet files are in this folder; name a file or a folder that has some")
        files += inside
    if not files:
        raise InputError("no dataset was named; give the path of a Parquet file or of a folder of them")
    return Dataset.concat([_read(path) for path in files])


def write_dataset(path: str | Path, dataset: Dataset) -> None:
    """Replace `path`, once the new file is whole. Raises `InputError` for rows that do not hold together and for a path
    that cannot be written, `ToolchainError` where pyarrow is missing."""
    pa, parquet = _pyarrow()
    path = Path(path)
    dataset.check(f"dataset '{path}'")
    kinds = {"text": pa.string(), "number": pa.float64(), "numbers": pa.list_(pa.float32())}
    columns = {c.name: pa.array(dataset.frame[c.name], kinds[c.kind], from_pandas=True) for c in COLUMNS}
    metadata = {METADATA_KEY: json.dumps(dataset.metadata, sort_keys=True).encode()}
    table = pa.table(columns, schema=pa.schema([(c.name, kinds[c.kind]) for c in COLUMNS], metadata=metadata))
    with replacing(path, f"dataset '{path}' cannot be written") as partial_path:
        # large pages: profiles resemble each other, and each page is compressed by itself
        parquet.write_table(table, partial_path, compression="zstd", compression_level=12, data_page_size=2**23)


def _read(path: Path) -> Dataset:
    import pandas as pd

    pa, parquet = _pyarrow()
    name = f"dataset '{path}'"
    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file; `tilesight collect` writes one") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{name} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    metadata = _metadata(name, (table.schema.metadata or {}).get(METADATA_KEY))
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        if column.name in table.column_names:
            columns[column.name] = _column(name, column, table.column(column.name), pa)
        elif not column.required:  # a file of the time before there was this column
            columns[column.name] = pd.Series([None] * len(table), dtype=_DTYPES[column.kind])
    dataset = Dataset(pd.DataFrame(columns), metadata)
    dataset.check(name)
    return dataset


def _metadata(name: str, raw: bytes | None) -> Mapping[str, Any]:
    if raw is None:
        raise InputError(f"{name} has no metadata of TileSight: it is another kind of Parquet file; `tilesight collect` writes datasets")
    try:
        found = json.loads(raw)
        version, runs = found["version"], found["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{name}: its metadata cannot be read ({error}); collect it anew") from error
    if version != VERSION or not isinstance(runs, dict):
        raise InputError(
            f"{name} has version {version} of the schema, and this TileSight reads version {VERSION}; use the one that wrote it"
        )
    assert isinstance(found, dict)
    return found


def _column(name: str, column: Column, values: Any, pa: Any) -> pd.Series[Any]:
    import pandas as pd

    types = pa.types
    fits = {
        "text": lambda t: types.is_string(t) or types.is_large_string(t) or types.is_null(t),
        "number": lambda t: types.is_floating(t) or types.is_integer(t) or types.is_null(t),
        "numbers": lambda t: types.is_null(t) or (types.is_list(t) and types.is_floating(t.value_type)),
    }
    if not fits[column.kind](values.type):
        raise InputError(f"{name}: column '{column.name}' must hold {column.kind}, not {values.type}; write the file with write_dataset")
    if column.kind == "numbers":
        return pd.Series([None if row is None else tuple(row) for row in values.to_pylist()], dtype="object")
    found: pd.Series[Any] = pd.Series(values.to_pandas(), dtype=_DTYPES[column.kind])
    return found


def _rows(wrong: pd.Series[bool]) -> str:
    first = int(wrong.to_numpy().argmax())
    count = int(wrong.sum())
    return f"row {first}" if count == 1 else f"row {first} and {count - 1} more"


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ToolchainError("datasets are Parquet files and need pyarrow: pip install pyarrow") from error
    return pa, parquet
