"""The plans that ship with TileSight: dispatchers choose from them, and commands show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import tilesight
from tilesight.cli.db import db
from tilesight.database import layers, shipped
from tilesight.database.shipped_plans import PLANS, plan_of, write_plans
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.table.dispatch_table import DispatchTable, Segment
from tilesight.errors import InputError
from tilesight.kernels import template_for
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

MADE = "2026-11-27"


def table(n: int, k: int, last: int = 16384) -> DispatchTable:
    """Two default configs of the real template, as if they were measured with other software."""
    target = load_target("h200")
    template = template_for("matmul", target, "bfloat16")
    kernels = []
    for size in (64, 4096):
        workload = Workload("matmul", {"m": size, "n": n, "k": k}, "bfloat16", {})
        config = template.default_config(workload, target)
        assert config is not None
        kernels.append(config)
    return DispatchTable(
        operator="matmul",
        dtype="bfloat16",
        attrs={},
        dims=("m", "n", "k"),
        fixed={"n": n, "k": k},
        vary="m",
        dynamic=("m",),
        template=template.name,
        template_version=template.version,
        target=target.name,
        target_fingerprint=target.fingerprint,
        arch=target.arch,
        device="NVIDIA H200",
        protocol="default",
        software={"tilelang": "0.0.1"},
        model="model-1",
        kernels=tuple(kernels),
        segments=(Segment(1, 2048, 0), Segment(2049, last, 1)),
    )


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that has two plans and nothing else."""
    tables = [table(4096, 4096), table(6144, 4096)]
    write_plans(tmp_path / PLANS, [(plan_of(one.text(), MADE, ()), one.text()) for one in tables])
    for module in (layers, shipped):
        monkeypatch.setattr(module, "shipped_file", lambda name: tmp_path / name if name == PLANS else None)
    monkeypatch.setenv("TILESIGHT_SHIPPED", "1")
    return tmp_path


def make(folder: Path, **options: object) -> Dispatcher:
    given = {"n": 4096, "k": 4096, "database": str(folder / "own.db"), "misses": False, **options}
    made = tilesight.dispatcher("matmul", "h200", **given)  # type: ignore[arg-type]
    assert isinstance(made, Dispatcher)
    return made


def test_a_shape_of_a_shipped_plan(ship: Path) -> None:
    with make(ship) as made:
        small, large = made.choose(m=64), made.choose(m=4096)
        assert (small.config, large.config) == table(4096, 4096).kernels
        assert (small.source, small.dynamic) == ("shipped plan", ("m",))
        assert "a plan that ships with TileSight, measured on NVIDIA H200 on 2026-11-27" in small.reason
        assert "software tilelang: the table was made with 0.0.1" in small.reason
        assert small.reason.endswith("has it for m=1..2048")
        assert made.choose(m=20000).source != "shipped plan"
        assert "plans that ship with TileSight: 1" in made.explain()
    with make(ship, n=4160) as other:
        assert other.choose(m=100).source != "shipped plan"


def test_several_plans_of_one_dispatcher(ship: Path) -> None:
    with tilesight.dispatcher("matmul", "h200", k=4096, database=str(ship / "own.db"), misses=False) as made:
        assert made.choose(m=64, n=4096).config == table(4096, 4096).kernels[0]
        assert made.choose(m=64, n=6144).config == table(6144, 4096).kernels[0]
        assert made.choose(m=64, n=6144).source == "shipped plan"


def test_the_users_own_table_comes_first(ship: Path) -> None:
    with make(ship, table=table(4096, 4096, last=3000)) as made:
        assert made.choose(m=64).source == "table"
        assert made.choose(m=4096).source == "shipped plan"


@pytest.mark.parametrize(
    "change", [{"template_version": "0123456789ab"}, {"arch": "sm_80"}, {"dtype": "float16"}]
)
def test_another_kernel_is_not_used(ship: Path, change: dict[str, str]) -> None:
    text = replace(table(4096, 4096), **change).text()  # type: ignore[arg-type]
    write_plans(ship / PLANS, [(plan_of(text, MADE, ()), text)])
    with make(ship) as made:
        assert made.choose(m=64).source != "shipped plan"


def test_the_user_may_leave_them_out(ship: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_SHIPPED", "0")
    with make(ship) as made:
        assert made.choose(m=64).source != "shipped plan"


def test_frozen_dispatchers_have_them_and_their_digest(ship: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(ship, frozen=True) as made:
        digest = made.digest()
        assert made.choose(m=64).source == "shipped plan"
        with pytest.raises(InputError, match="1 of the plans that ship with TileSight"):
            made.choose(m=20000)
    with make(ship, frozen=True, on_unknown="nearest") as made:
        assert made.choose(m=20000).config == table(4096, 4096).kernels[1]
        assert "m=16384, the nearest size" in made.choose(m=20000).reason
    text = replace(table(4096, 4096), segments=(Segment(1, 16384, 0),)).text()
    write_plans(ship / PLANS, [(plan_of(text, MADE, ()), text)])
    with make(ship, frozen=True) as made:
        assert made.digest() != digest
    monkeypatch.setenv("TILESIGHT_SHIPPED", "0")
    with make(ship, frozen=True) as made, pytest.raises(InputError, match="0 recorded shapes"):
        made.choose(m=64)


def test_db_plans_lists_them_and_writes_one(ship: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(db, ["plans", *arguments])
        assert (found.exit_code == 0) == (code == 0), found.output
        return found.output if code == 0 else str(found.exception)

    assert "n=6144 k=4096 layout=nn bfloat16" in run("matmul", "--target", "h200")
    assert "n=4096" in run("--shape", "layout=nn")
    assert "no plan of this kernel" in run("gemv")
    assert "no plan of this kernel" in run("--shape", "layout=nt")
    assert "unknown" in run("matmuul", code=2)
    assert "h201" in run("--target", "h201", code=2)
    assert [plan["fixed"]["n"] for plan in json.loads(run("--json"))["plans"]] == [4096, 6144]
    out = ship / "one.json"
    assert "2 plans match" in run("--out", str(out), code=1)
    assert "nothing to write" in run("gemv", "--out", str(out), code=1)
    assert not out.exists()
    run("matmul", "--shape", "n=4096,k=4096", "--out", str(out))
    assert tilesight.read_table(out) == table(4096, 4096)


def test_db_why_names_the_plan_of_a_workload(ship: Path) -> None:
    common = ["why", "matmul", "--target", "h200", "--db", str(ship / "own.db")]
    make(ship).close()  # the database is there then
    found = CliRunner().invoke(db, [*common, "--shape", "m=64,n=4096,k=4096"])
    assert "dispatch: a plan that ships with TileSight" in " ".join(found.output.split())
    found = CliRunner().invoke(db, [*common, "--shape", "m=64,n=4160,k=4096", "--json"])
    assert json.loads(found.output)["plan"] is None
