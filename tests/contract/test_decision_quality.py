"""A replay of recorded measurements: effort `quick` must find a kernel that is nearly the fastest recorded
one. Needs no GPU.

The tuner, the shipped model and the search run as for a user; a recorded row answers each job of the
executor. All recorded configs of a case are explored and at most 16 of them are measured. A case is in the
list because a model whose times are off by a random factor (0.8 to 1.3, or more) misses the share there, or
because few of its configs are fast.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.support.recorded import tune_recorded
from tilesight.costmodel import default_model
from tilesight.costmodel.model import CostModel
from tilesight.datasets.replay.cases import replayable_rows
from tilesight.records.dataset import read_dataset
from tilesight.records.session import Effort
from tilesight.tuner.request import EFFORT_LIMITS

DATASET = Path(__file__).parents[2] / "experiments" / "datasets" / "h200"
SHARE = 0.98  # best recorded time over the time of the kernel that was chosen
CASES = [
    ("matmul", "bfloat16", "m=256,n=4096,k=4096"),
    ("matmul", "bfloat16", "m=64,n=4096,k=4096"),
    ("matmul", "float16", "m=300,n=3000,k=4000"),
    ("dequant_matmul", "bfloat16", "D17"),
    ("dequant_matmul", "float16", "D8"),
    ("flash_attention", "bfloat16", "FA1"),
    ("flash_attention", "bfloat16", "FA4"),
    ("gemv", "bfloat16", "V5"),
    ("gemv", "bfloat16", "n=5003,k=5001"),
    ("gemv", "float16", "V6"),
    ("rms_norm", "bfloat16", "R8"),
    ("rms_norm", "float16", "m=20000,n=770"),
    ("chunk_state", "bfloat16", "batch=8,seq_len=2048,nheads=32,head_dim=128,d_state=128"),
    ("chunk_state", "float16", "CT4"),
]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    if not list(DATASET.glob("*.parquet")):
        pytest.skip("experiments/datasets/h200 is not in this checkout")
    return replayable_rows(read_dataset(DATASET))


@pytest.fixture(scope="module")
def model() -> CostModel:
    return default_model()


@pytest.mark.parametrize(("operator", "dtype", "shape"), CASES)
def test_quick_finds_nearly_the_fastest_recorded_kernel(
    operator: str, dtype: str, shape: str, rows: pd.DataFrame, model: CostModel
) -> None:
    own = rows[(rows["operator"] == operator) & (rows["dtype"] == dtype) & (rows["shape"] == shape)]
    found = tune_recorded(own, Effort.QUICK, model)
    limits = EFFORT_LIMITS[Effort.QUICK]
    assert limits.explore is not None
    assert limits.measure is not None
    assert found.explored <= limits.explore
    assert found.measured <= limits.measure
    assert found.share >= SHARE, f"{found.chosen_us:.4g} us was chosen, {found.best_us:.4g} us was recorded"
