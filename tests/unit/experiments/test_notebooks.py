"""experiments/notebooks: each is kept as text and runs as Jupyter runs it, on the shipped data."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.preloaded import PreloadedPython

FOLDER = Path(__file__).parents[3] / "experiments" / "notebooks"
DATA = FOLDER.parent / "datasets" / "h200"
NOTEBOOKS = (
    *("one_kernel", "model_terms", "held_out_errors", "counters"),
    *("search_strategies", "dynamic_dispatch", "paper_figure"),
)
FEW = '["gemv", "matmul", "rms_norm"]'
# fewer rows, operators and folds train as the whole does, in a small part of the time
SMALLER = {
    "paper_figure": {'SHAPES = ("M0", "M1", "M4", "m=64,n=4096,k=4096")': 'SHAPES = ("M0", "M4")'},
    "search_strategies": {"SEEDS, LIMIT = 2, 32": "SEEDS, LIMIT = 1, 8"},
    "counters": {'frame["profile"].notna()]': 'frame["profile"].notna()].iloc[::25]'},
    "held_out_errors": {
        "EVERY, FOLDS, MEMBERS = 3, 4, 2": "EVERY, FOLDS, MEMBERS = 9, 2, 1",
        "dataset.verified().frame": f"dataset.verified().frame.query('operator in {FEW}')",
    },
}
LIMIT_S = 600  # of one cell: only to end a kernel that hangs


@pytest.fixture
def jupytext() -> Any:
    return pytest.importorskip("jupytext", reason="the dev extra has it")


def pictures_and_tables(notebook: Any) -> tuple[int, int]:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("display_data", "execute_result")]
    return sum("image/png" in data for data in shown), sum("text/html" in data for data in shown)


def test_all_are_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NOTEBOOKS)
    assert not list(FOLDER.glob("*.ipynb")), "notebooks are kept as text"


@pytest.mark.ci
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_and_shows(name: str, jupytext: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the dev extra has it")
    pytest.importorskip("ipykernel", reason="the dev extra has it")
    if not list(DATA.glob("*.parquet")):
        pytest.skip("experiments/datasets/h200 is not in this checkout")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setattr("jupyter_client.launcher.Popen", PreloadedPython)
    notebook = jupytext.read(FOLDER / f"{name}.py")
    assert notebook.cells[0].cell_type == "markdown"
    for whole, smaller in SMALLER.get(name, {}).items():
        [cell] = [cell for cell in notebook.cells if whole in cell.source]
        cell.source = cell.source.replace(whole, smaller)
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client.execute()
    for number, handler in handlers.items():  # nbclient leaves its own
        signal.signal(number, handler)
    complaints = [
        o.text
        for c in notebook.cells
        if c.cell_type == "code"
        for o in c.outputs
        if o.get("name") == "stderr"
    ]
    assert not [text for text in complaints if "Warning" in text]
    pictures, tables = pictures_and_tables(notebook)
    assert pictures >= 1
    assert tables >= 1


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_text_and_notebook_are_the_same(name: str, jupytext: Any) -> None:
    """What `jupytext --to ipynb` makes and `jupytext --to py:percent` turns back is the file."""
    text = (FOLDER / f"{name}.py").read_text()
    notebook = jupytext.reads(
        jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="ipynb"), fmt="ipynb"
    )
    again = jupytext.reads(jupytext.writes(notebook, fmt="py:percent"), fmt="py:percent")
    cells = [(cell.cell_type, cell.source) for cell in jupytext.reads(text, fmt="py:percent").cells]
    assert [(cell.cell_type, cell.source) for cell in again.cells] == cells
