"""`experiments/datasets/choose.py`: candidates that no row of the datasets has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from tilesight.problem.config import Config

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "datasets"


def test_cases_with_few_rows_get_configs_that_no_row_has(tmp_path: Path) -> None:
    out, new = tmp_path / "chosen.jsonl", tmp_path / "new.txt"
    new.write_text("# further ones\nretention batch=3,seq_len=300,heads=2,head_k=64,head_v=128 bfloat16\n")
    columns = ["operator", "workload", "dims", "template", "target", "config", "status"]
    rows = pd.concat([pd.read_parquet(path, columns=columns) for path in FOLDER.glob("*/*.parquet")])
    here = rows[(rows["target"] == "h200") & (rows["operator"] == "retention")]
    there = (here["status"] == "verified").sum()
    wanted = there + 8
    call = [sys.executable, str(FOLDER / "choose.py"), str(out), "--target", "h200", "--only", "retention"]
    subprocess.run([*call, "--rows", str(wanted), "--new", str(new)], check=True)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == round(1.25 * 8)
    dims = {line["dims"]: json.loads(line["dims"]) for line in found}
    assert {"batch": 3, "seq_len": 300, "heads": 2, "head_k": 64, "head_v": 128} in dims.values()
    known = {
        (row.template, json.dumps(json.loads(row.dims), sort_keys=True), Config(json.loads(row.config)).key)
        for row in here.itertuples()
    }
    for line in found:
        case = line["template"], json.dumps(json.loads(line["dims"]), sort_keys=True)
        assert (*case, Config(json.loads(line["config"])).key) not in known
