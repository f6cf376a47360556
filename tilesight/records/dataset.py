"""Datasets: measured candidates as rows of Parquet files, for training and judging cost models.

A row is one candidate of one workload, failures included; `dataset_columns.COLUMNS` lists its columns. All
candidates of one workload on one target are a case, within which candidates are ranked. Missing values are
NaN in the frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, headline
from ..extras import missing_extra
from ..files import replacing
from ..problem.workload import Workload
from ..profile.codec import profiles_of
from .dataset_columns import CANDIDATE, COLUMNS, VERSION, Column
from .trial import Status

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Dataset", "DatasetCase", "profiles_of", "read_dataset", "write_dataset"]

METADATA_KEY = b"tilesight"
_KNOWN = frozenset(column.name for column in COLUMNS)
_BATCH = 256  # rows that are read at once
_MOST_BYTES = 2 << 30  # values of one file; the largest of TileSight's own have less than a tenth of that


@dataclass(frozen=True)
class DatasetCase:
    """All candidates of one workload on one target."""

    workload: str
    target: str
    operator: str
    shape: str
    dtype: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Dataset:
    """Rows with the columns of `COLUMNS`, and the metadata {"version": 1, "runs": {id: {...}}}."""

    frame: pd.DataFrame
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Any]) -> Dataset:
        """A dataset of `rows`, each a mapping of column names to values. Raises `InputError` as `check`."""
        import pandas as pd

        made = {c.name: pd.Series([row.get(c.name) for row in rows], dtype=_DTYPES[c.kind]) for c in COLUMNS}
        dataset = cls(pd.DataFrame(made), {"version": VERSION, "runs": dict(runs)})
        dataset.check("these rows")
        return dataset

    @classmethod
    def concat(cls, parts: Sequence[Dataset]) -> Dataset:
        """All rows of `parts`, each candidate once: verified before failed rows, later before earlier ones.

        Raises:
            InputError: two parts use one run id for different runs.
        """
        import pandas as pd

        if not parts:
            return cls.of([], {})
        runs: dict[str, Any] = {}
        for part in parts:
            for name, run in part.runs.items():
                earlier = runs.get(name, run)
                if earlier.get("date") != run.get("date"):
                    raise InputError(
                        f"datasets cannot be joined: run '{name}' stands for two different runs; collect one "
                        "of them anew"
                    )
                # a run that was continued, or had counters added, has more entries
                runs[name] = {**earlier, **run}
        frame = (
            pd.concat([part.frame for part in parts], ignore_index=True) if len(parts) > 1 else parts[0].frame
        )
        order = (frame["status"] == Status.VERIFIED).sort_values(kind="stable").index
        chosen = frame.loc[order].drop_duplicates(list(CANDIDATE), keep="last").index
        return cls(frame.loc[sorted(chosen)].reset_index(drop=True), {"version": VERSION, "runs": runs})

    @property
    def runs(self) -> Mapping[str, Any]:
        found = self.metadata.get("runs", {})
        assert isinstance(found, Mapping)
        return found

    def __len__(self) -> int:
        return len(self.frame)

    def verified(self) -> Dataset:
        """The rows with a time and a profile, which models are trained and judged on."""
        frame = self.frame
        return self.where(frame["measured_us"].notna() & frame["profile"].notna())

    def where(self, chosen: pd.Series[bool]) -> Dataset:
        """The rows for which `chosen` is true."""
        return Dataset(self.frame[chosen].reset_index(drop=True), self.metadata)

    def cases(self) -> Iterator[DatasetCase]:
        """Non-empty cases in the order of their keys, each with its rows in the dataset's order."""
        for (workload, target), rows in self.frame.groupby(["workload", "target"], sort=True):
            first = rows.iloc[0]
            yield DatasetCase(
                str(workload), str(target), first["operator"], first["shape"], first["dtype"], rows
            )

    def check(self, name: str) -> None:
        """Raise `InputError` that names `name`, the column and the way out, if a row is wrong."""
        for column in COLUMNS:
            if column.name not in self.frame:
                raise InputError(
                    f"{name}: column '{column.name}' ({column.meaning}) is missing; write the file with "
                    "`tilesight collect`"
                )
            missing = self.frame[column.name].isna()
            if column.required and missing.any():
                raise InputError(
                    f"{name}: {_rows(missing)}: column '{column.name}' is empty; each row needs "
                    f"{column.meaning}"
                )
        self._refuse(
            name, "status", ~self.frame["status"].isin(list(Status)), f"must be one of {', '.join(Status)}"
        )
        verified = self.frame["status"] == Status.VERIFIED
        self._refuse(
            name,
            "measured_us",
            verified & ~(self.frame["measured_us"] > 0),
            "must be above 0 if status is verified",
        )
        self._refuse(
            name,
            "measured_us",
            ~verified & self.frame["measured_us"].notna(),
            "must be empty unless status is verified",
        )
        failed = self.frame["status"] == Status.FAILED
        self._refuse(
            name,
            "failure_kind",
            failed & self.frame["failure_kind"].isna(),
            "must be given if status is failed",
        )
        self._refuse(
            name,
            "run",
            ~self.frame["run"].isin(list(self.runs)),
            "must be one of the runs in the file's metadata",
        )
        twice = self.frame.duplicated(list(CANDIDATE))
        self._refuse(
            name,
            "config",
            twice,
            "occurs twice for one workload, target and template; join files with Dataset.concat",
        )

    def _refuse(self, name: str, column: str, wrong: pd.Series[bool], rule: str) -> None:
        if wrong.any():
            value = self.frame[column][wrong].iloc[0]
            raise InputError(f"{name}: {_rows(wrong)}: {column}={value} {rule}")


_DTYPES: Mapping[str, Any] = {"text": "str", "number": "float64", "numbers": "object"}


def workload_of(row: Mapping[str, Any]) -> Workload:
    """The workload of a row, with its published name or its shape as its name."""
    dims, attrs = json.loads(row["dims"]), json.loads(row["attrs"])
    return Workload(row["operator"], dims, row["dtype"], attrs, row["shape"])


def read_dataset(paths: str | Path | Sequence[str | Path]) -> Dataset:
    """Several files as one dataset.

    Args:
        paths: Parquet files; a folder stands for the Parquet files in it, sorted by name.

    Raises:
        InputError: a file cannot be read, or its rows are wrong.
        ToolchainError: pyarrow is missing.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise InputError(
                f"dataset '{path}': no Parquet files are in this folder; name a file or a folder that has "
                "some"
            )
        files += inside
    if not files:
        raise InputError("no dataset was named; give the path of a Parquet file or of a folder of them")
    return Dataset.concat([_read(path) for path in files])


def write_dataset(path: str | Path, dataset: Dataset) -> None:
    """Write `dataset` to `path`; an existing file is replaced when the new one is complete.

    Raises:
        InputError: rows are wrong, or the path cannot be written.
        ToolchainError: pyarrow is missing.
    """
    pa, parquet = _pyarrow()
    path = Path(path)
    dataset.check(f"dataset '{path}'")
    kinds = {"text": pa.string(), "number": pa.float64(), "numbers": pa.list_(pa.float32())}
    columns = {c.name: pa.array(dataset.frame[c.name], kinds[c.kind], from_pandas=True) for c in COLUMNS}
    metadata = {METADATA_KEY: json.dumps(dataset.metadata, sort_keys=True).encode()}
    table = pa.table(columns, schema=pa.schema([(c.name, kinds[c.kind]) for c in COLUMNS], metadata=metadata))
    with (
        replacing(path, f"dataset '{path}' cannot be written") as partial_path,
        partial_path.open("wb") as file,  # pyarrow refuses names that are not UTF-8
    ):
        # large pages: each page is compressed by itself, and profiles resemble each other
        parquet.write_table(
            table,
            file,
            compression="zstd",
            compression_level=12,
            data_page_size=2**23,
            write_page_checksum=True,
        )


def _read(path: Path) -> Dataset:
    import pandas as pd

    pa, _ = _pyarrow()
    name = f"dataset '{path}'"
    try:
        table = _table(name, path)
        metadata = _metadata(name, (table.schema.metadata or {}).get(METADATA_KEY))
        columns: dict[str, Any] = {}
        for column in COLUMNS:
            if column.name in table.column_names:
                columns[column.name] = _column(name, column, table.column(column.name), pa)
            elif not column.required:  # the file is older than the column
                columns[column.name] = pd.Series([None] * len(table), dtype=_DTYPES[column.kind])
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file; `tilesight collect` writes one") from None
    except (OSError, MemoryError, ValueError, pa.ArrowException) as error:
        reason = headline(str(error)) if str(error) else type(error).__name__
        raise InputError(f"{name} cannot be read as Parquet: {reason}; copy or collect it anew") from error
    dataset = Dataset(pd.DataFrame(columns), metadata)
    dataset.check(name)
    return dataset


def _table(name: str, path: Path) -> Any:
    """The columns of datasets in a file, read piece by piece: a small file may hold very much.

    Raises `InputError` for what is no file or holds too much, and pyarrow's errors for a damaged one.
    """
    pa, parquet = _pyarrow()
    if path.exists() and not path.is_file():
        raise InputError(f"{name} is no file that can be read as Parquet; name one, or a folder of them")
    with (
        path.open("rb") as opened,  # pyarrow refuses names that are not UTF-8
        parquet.ParquetFile(opened, page_checksum_verification=True) as file,
    ):
        found = [field for field in file.schema_arrow if field.name in _KNOWN]
        batches, size = [], 0
        for batch in file.iter_batches(_BATCH, columns=[field.name for field in found]):
            size += batch.nbytes
            if size > _MOST_BYTES:
                raise InputError(
                    f"{name} holds more than {_MOST_BYTES >> 30} GB of values; split it: datasets may be a "
                    "folder of files"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, pa.schema(found, file.schema_arrow.metadata))


def _metadata(name: str, raw: bytes | None) -> Mapping[str, Any]:
    if raw is None:
        raise InputError(
            f"{name} has no metadata of TileSight: it is another kind of Parquet file; "
            "`tilesight collect` writes datasets"
        )
    try:
        found = json.loads(raw)
        version, runs = found["version"], found["runs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{name}: its metadata cannot be read ({error}); collect it anew") from error
    if version != VERSION or not isinstance(runs, dict):
        raise InputError(
            f"{name} has version {version} of the schema, and this TileSight reads version {VERSION}; use "
            "the one that wrote it"
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
        raise InputError(
            f"{name}: column '{column.name}' must hold {column.kind}, not {values.type}; write the file with "
            "write_dataset"
        )
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
        raise missing_extra("parquet", "a dataset (a Parquet file)") from error
    return pa, parquet
