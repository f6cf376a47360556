"""The plans that ship: how their file is made, and damaged files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilesight.database.shipped_plans import PLANS, PlanArchive, plan_of, write_plans
from tilesight.dispatch.table.dispatch_table import DispatchTable, Evidence, Segment
from tilesight.errors import DatabaseCorruptError
from tilesight.problem.space import Config


def table(n: int = 4096) -> DispatchTable:
    return DispatchTable(
        operator="matmul",
        dtype="bfloat16",
        attrs={},
        dims=("m", "n", "k"),
        fixed={"n": n, "k": 4096},
        vary="m",
        dynamic=("m",),
        template="matmul",
        template_version="0123456789ab",
        target="h200",
        target_fingerprint="f",
        arch="sm_90a",
        device="NVIDIA H200",
        protocol="default",
        software={"tilelang": "0.1.15"},
        model="model-1",
        kernels=(Config({"block_m": 64}), Config({"block_m": 128})),
        segments=(Segment(1, 64, 0), Segment(65, 16384, 1)),
        evidence=(Evidence(64, 0, 10.0, 10.0, True, True),),
    )


def test_plans_are_listed_and_read(tmp_path: Path) -> None:
    texts = {n: table(n).text() for n in (4096, 6144)}
    used_by = ["Llama 3.1 8B L8Q, tensor-parallel 1"]
    found = [(plan_of(text, "2026-11-27", used_by), text) for text in texts.values()]
    write_plans(tmp_path / PLANS, found)
    write_plans(tmp_path / "other.zip", reversed(found))
    assert (tmp_path / PLANS).read_bytes() == (tmp_path / "other.zip").read_bytes()
    archive = PlanArchive(tmp_path / PLANS)
    [plan, _] = archive.plans
    assert (plan.name, plan.first, plan.last) == ("matmul-h200-bfloat16-n4096-k4096.json", 1, 16384)
    assert (plan.device, plan.made, plan.kernels) == ("NVIDIA H200", "2026-11-27", 2)
    assert plan.used_by == ("Llama 3.1 8B L8Q, tensor-parallel 1",)
    assert [archive.text(plan) for plan in archive.plans] == [*texts.values()]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def no_list(content: bytes) -> bytes:
    return content.replace(b"plans.json", b"other.json")


@pytest.mark.parametrize("damage", [cut, no_list])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / PLANS
    write_plans(path, [(plan_of(text := table().text(), "2026-11-27", ()), text)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatabaseCorruptError, match=r"plans.zip' has no plans .*--force-reinstall"):
        PlanArchive(path)


def test_a_list_that_is_nested_too_deeply(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / PLANS, "w") as archive:
        archive.writestr("plans.json", "[" * 100_000 + "]" * 100_000)
    with pytest.raises(DatabaseCorruptError, match=r"plans.zip' has no plans .*--force-reinstall"):
        PlanArchive(tmp_path / PLANS)


def test_another_table_than_the_one_that_was_packed(tmp_path: Path) -> None:
    text = table().text()
    plan = plan_of(text, "2026-11-27", ())
    changed = json.loads(text)
    changed["segments"] = changed["segments"][:1]
    write_plans(tmp_path / PLANS, [(plan, json.dumps(changed))])
    archive = PlanArchive(tmp_path / PLANS)
    with pytest.raises(DatabaseCorruptError, match="is another table"):
        archive.text(plan)
    with pytest.raises(DatabaseCorruptError, match="no-such-h200"):
        archive.text(replace(plan, operator="no-such"))


def test_the_products_of_models_have_the_sizes_of_one_gpu(build: ModuleType) -> None:
    found = {(one.n, one.k): [str(use) for use in one.uses] for one in build.shapes()}
    assert len(found) == 101
    # published sizes: 64 heads and 8 of keys and values of 128; rows divide k
    assert found[1280, 8192] == ["Llama 3.1 70B L70Q, tensor-parallel 8"]
    assert found[8192, 3584] == ["Llama 3.1 70B L70D, tensor-parallel 8"]
    for use in ("Llama 3.1 8B L8Q", "Qwen3 8B Q8Q", "Mixtral 8x7B MXQ"):
        assert f"{use}, tensor-parallel 1" in found[6144, 4096]
    assert len(found[2112, 7168]) == 4, "DeepSeek-V3's latent ranks are not divided"
    assert "DeepSeek-V3 DSKVB, tensor-parallel 1" in found[32768, 512]
    assert len({use.model for one in build.shapes()[:8] for use in one.uses}) == 9
    assert all(use.model == "Qwen3 8B" for one in build.shapes(["Qwen3 8B"]) for use in one.uses)


def test_tables_are_packed_with_those_that_ship_already(build: ModuleType, tmp_path: Path) -> None:
    package, folders = tmp_path / "package", (tmp_path / "early", tmp_path / "late")
    package.mkdir()
    for folder, made, tables in zip(
        folders, ("2026-11-20", "2026-11-27"), ((table(), table(6144)), (table(),)), strict=True
    ):
        folder.mkdir()
        for one in tables:
            name = f"{one.fixed['n']}.json"
            (folder / name).write_text(one.text())
            with (folder / build.MADE).open("a") as file:
                file.write(json.dumps({"table": name, "made": made, "summary": ""}) + "\n")
    with pytest.raises(SystemExit, match="no plan has the name unknown"):
        build.pack([], package, folders, ["unknown"])
    assert not list(package.iterdir()), "nothing is written for a wrong name"
    build.pack([], package)
    assert not (package / PLANS).exists()
    for folder in reversed(folders):  # the later table of a shape stays, whatever the order
        build.pack([], package, [folder])
    found = {plan.fixed["n"]: plan for plan in PlanArchive(package / PLANS).plans}
    assert {n: plan.made for n, plan in found.items()} == {4096: "2026-11-27", 6144: "2026-11-20"}
    assert "Llama 3.1 8B L8O, tensor-parallel 1" in found[4096].used_by
    with pytest.raises(SystemExit, match="no plan has the name unknown; `tilesight db plans` lists"):
        build.plans_to_ship([], package, ["unknown"])
    [left] = [plan for plan in PlanArchive(package / PLANS).plans if plan.fixed["n"] == 6144]
    build.pack([], package, folders, [left.name])
    assert [plan.fixed["n"] for plan in PlanArchive(package / PLANS).plans] == [4096]
