"""`tilesight.dispatcher`, with real kernels of TileLang on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tilesight
from tests.unit.database.samples import empty_database
from tilesight import kernels
from tilesight.builder.build import build_kernel
from tilesight.database import open_layers
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.improve.paired_comparison import compare
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.dispatch.table.table_file import DispatchTable, Segment, write_table
from tilesight.errors import (
    ConfigError,
    DatabaseError,
    DatabaseReadOnlyError,
    InputError,
    UnknownNameError,
    WorkloadError,
)
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.trial import BuildResult
from tilesight.settings import load_settings
from tilesight.target.spec import load_target

FIXED: dict[str, dict[str, int]] = {
    "matmul": {"n": 1024, "k": 1024},
    "gemv": {"k": 4096},
    "rms_norm": {"n": 4096},
    "flash_attention": {"batch": 1, "heads": 8, "head_dim": 128},
    "dequant_matmul": {"n": 1024, "k": 1024},
    "chunk_state": {"nheads": 8, "head_dim": 64, "d_state": 128},
}


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESIGHT_DB", empty_database(tmp_path / "performance.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILESIGHT_LAYERS", raising=False)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dispatcher, str]]:
    """A dispatcher whose kernels take any m."""
    folder = tmp_path_factory.mktemp("dispatch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESIGHT_CACHE_DIR", str(folder / "cache"))
        url = f"sqlite:///{folder}/performance.db"
        with dispatcher("matmul", "cpu", database=url, dynamic=("m",), n=40, k=48, workers=1) as made:
            yield made, url


def close_to_torch(made: Dispatcher, m: int) -> bool:
    a, b = torch.randn(m, 40 if made.problem.fixed["k"] == 40 else 48), torch.randn(48, 40)
    found = made(a, b)
    return bool((found - a @ b).norm() < 1e-5 * (a @ b).norm())


def test_one_kernel_computes_for_any_m(real: tuple[Dispatcher, str]) -> None:
    made, _ = real
    assert all(close_to_torch(made, m) for m in (1, 7, 32, 100))
    first = made.choose(m=7)
    assert (first.source, first.dynamic) == (ChoiceSource.DEFAULT, ("m",))
    assert sum(miss.count for miss in made.misses) == 4


def test_compiled_by_torch_with_a_symbolic_m(real: tuple[Dispatcher, str]) -> None:
    made, _ = real
    b = torch.randn(48, 40)
    compiled = torch.compile(lambda a: made(a, b).relu(), fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (7, 32):
        a = torch.randn(m, 48)
        assert torch.allclose(compiled(a), (a @ b).relu(), atol=1e-4)
    result = torch.library.opcheck(made.op, (torch.randn(7, 48), b))
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.full
def test_a_comparison_is_recorded_for_the_next_dispatcher(real: tuple[Dispatcher, str]) -> None:
    made, url = real
    present = made.choose(m=32)
    unroll = 4 if present.config["unroll"] != 4 else 2
    other = replace(present, config=Config({**present.config, "unroll": unroll}), source=ChoiceSource.MODEL)
    improver = made._shapes.improver
    task = partial(
        compare, builder=made._shapes.builder, setup=improver._setup, present=present, challengers=[other]
    )
    found = improver.thread.submit(task).result()
    assert found.after.is_measured
    assert found.decision is not None
    assert found.after.config in (present.config, other.config)
    with dispatcher("matmul", "cpu", database=url, dynamic=("m",), n=40, k=48, workers=1) as again:
        recorded = again.choose(m=32)
        assert (recorded.source, recorded.config) == (ChoiceSource.RECORD, found.after.config)
        beside = again.choose(m=48)
        assert beside.source is ChoiceSource.NEIGHBOUR
        assert close_to_torch(again, 32)
    with dispatcher("matmul", "cpu", database=url, n=41, k=48, workers=1) as of_another_n:
        assert of_another_n.choose(m=32).source is ChoiceSource.DEFAULT


def test_misses_reach_the_database(real: tuple[Dispatcher, str]) -> None:
    made, url = real
    close_to_torch(made, 9)
    assert made._shapes.misses is not None
    assert made._shapes.misses.write()
    with open_layers(url) as store:
        found = {miss.workload.dims["m"]: miss for miss in store.misses()}
    assert found[9].count == 1
    assert found[9].workload.dims == {"m": 9, "n": 40, "k": 48}


@pytest.mark.parametrize("target", ["h200", "mi300x"])
@pytest.mark.parametrize("kernel", sorted(FIXED))
def test_choices_are_legal_for_every_operator_and_target_without_a_device(kernel: str, target: str) -> None:
    with dispatcher(kernel, target, **FIXED[kernel]) as made:  # type: ignore[arg-type]
        sizes: dict[str, int] = {name: {"batch": 2}.get(name, 300) for name in made.problem.free}
        chosen = made.choose(**sizes)
        template = made.problem.template
        assert chosen.config in template.space(chosen.workload, load_target(target))
        assert "note: nothing can be called or measured here" in made.explain() or torch.cuda.is_available()
        names = [*made.problem.inputs]
        inputs = [torch.empty(1, dtype=torch.float32) for _ in names]
        with pytest.raises(
            InputError,
            match=f"{names[0]} is float32 and must be|{names[0]} lies on cpu and target {target} runs on",
        ):
            made(*inputs)


def test_attributes_may_stand_beside_dimensions() -> None:
    with dispatcher("flash_attention", "h200", batch=1, heads=8, head_dim=128, causal=True) as made:  # type: ignore[arg-type]
        assert made.problem.attrs == {"causal": True}
        assert made.choose(seq_len=1000).workload.attrs["causal"] is True
        assert made.problem.free == ("seq_len",)


def test_all_dimensions_may_be_fixed() -> None:
    with dispatcher("matmul", "cpu", m=8, n=16, k=16) as made:
        assert made.choose().workload.dims == {"m": 8, "n": 16, "k": 16}
        assert "for any call" in repr(made)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kernel": "matmull"}, UnknownNameError, "did you mean matmul"),
        ({"target": "h20"}, UnknownNameError, "h200"),
        ({"q": 3}, UnknownNameError, "unknown matmul dimension 'q'"),
        ({"n": 0}, WorkloadError, "n=0 must lie in 1"),
        ({"n": 2.5}, WorkloadError, "n=2.5 must be a whole number"),
        ({"dtype": "float64"}, InputError, "float64"),
        ({"dtype": "bfloat16"}, InputError, "has no bfloat16 kernel for target 'cpu'"),
        ({"attrs": {"causal": True}}, UnknownNameError, "unknown matmul attribute 'causal'"),
        ({"dynamic": ("z",)}, UnknownNameError, "unknown matmul dimension 'z'"),
        ({"dynamic": ("n",), "n": 8}, InputError, "n=8 is fixed and cannot be dynamic too"),
        ({"on_miss": "hope"}, UnknownNameError, "wait, serve, refuse"),
        ({"protocol": "none"}, UnknownNameError, "default"),
        ({"workers": 0}, InputError, "workers=0 must lie in 1 .. 1024"),
        ({"table": "no/such.json"}, InputError, "dispatch table 'no/such.json'"),
        ({"database": "nonsense://x"}, InputError, "nonsense"),
    ],
)
def test_wrong_arguments_are_named_in_the_error(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"kernel": "matmul", "target": "cpu", **arguments}
    with pytest.raises(error, match=message):
        dispatcher(given.pop("kernel"), given.pop("target"), **given)


def test_an_unreadable_database_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("this is no database, and long enough to be told from one " * 20)
    with pytest.raises(DatabaseError):
        dispatcher("matmul", "cpu", database=str(broken), n=16, k=16)


def test_a_read_only_database_is_used_for_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/performance.db"
    open_layers(url).close()

    def opened(url: str, layers: Any = None, *, read_only: bool = False) -> Any:
        if not read_only:
            raise DatabaseReadOnlyError("database 'performance.db' cannot be written")
        return open_layers(url, layers, read_only=True)

    monkeypatch.setattr("tilesight.database.open_layers", opened)
    with dispatcher("matmul", "cpu", database=url, n=16, k=16) as made:
        assert (
            "nothing is recorded, misses neither: database 'performance.db' cannot be written"
            in made.explain()
        )
        assert made.choose(m=8).source is ChoiceSource.DEFAULT
        assert made.misses == []


def test_a_kernel_that_is_built_already_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has built it: a session, a plan, a benchmark."""
    target = load_target("cpu")
    template = kernels.template_for("matmul", target, "float32")
    workload = template.operator.workload("m=8,n=40,k=48", "float32")
    config = template.default_config(workload, target)
    assert config is not None
    built = build_kernel(Candidate(workload, target, template, config), load_settings().cache_dir)
    assert built.failure is None

    def no_process(*_: object, **__: object) -> None:
        raise AssertionError("a process was started to lower")

    monkeypatch.setattr("tilesight.executor.local.LocalExecutor.__init__", no_process)
    with dispatcher("matmul", "cpu", n=40, k=48) as made:
        assert close_to_torch(made, 8)
        with pytest.raises(AssertionError, match="to lower"):
            close_to_torch(made, 9)


def test_a_library_outside_of_the_cache_is_not_found(tmp_path: Path) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"x")
    with dispatcher("matmul", "cpu", n=16, k=16) as made:
        choice = made.choose(m=8)
        made._shapes.builder.add(choice, BuildResult(str(library), None, "call", {}, "g++", 1.0, "abc"))
    with dispatcher("matmul", "cpu", n=16, k=16) as again:
        assert again._shapes.builder.find(choice) is None


@pytest.mark.parametrize("size", [0, 100, 4096, 5000])
def test_a_changed_library_is_not_found(size: int) -> None:
    with dispatcher("matmul", "cpu", n=16, k=16) as made:
        choice = made.choose(m=8)
        library = load_settings().cache_dir / "kernels" / "kernel.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"x" * 5000)
        made._shapes.builder.add(choice, BuildResult(str(library), None, "call", {}, "g++", 1.0, "abc"))
    with dispatcher("matmul", "cpu", n=16, k=16) as again:
        assert again._shapes.builder.find(choice) is not None
    library.write_bytes(b"y" * size)
    with dispatcher("matmul", "cpu", n=16, k=16) as again:
        assert again._shapes.builder.find(choice) is None


def test_one_dynamic_dimension_may_be_given_by_its_name() -> None:
    with dispatcher("matmul", "cpu", dynamic="m", n=16, k=16) as made:
        assert made.problem.dynamic == ("m",)


def table_for(made: Dispatcher, **changes: Any) -> DispatchTable:
    problem, config = made.problem, made.choose(m=64).config
    template, target = problem.template, problem.target
    table = DispatchTable(
        "matmul",
        "float32",
        {},
        ("m", "n", "k"),
        {"n": 16, "k": 16},
        "m",
        (),
        template.name,
        template.version,
        target.name,
        target.fingerprint,
        target.arch,
        "another processor",
        "",
        {"tilelang": "0"},
        "a model",
        (config,),
        (Segment(32, 100, 0),),
    )
    return replace(table, **changes)


def test_a_table_is_used_for_its_sizes_and_mismatches_are_noted(tmp_path: Path) -> None:
    with dispatcher("matmul", "cpu", n=16, k=16) as made:
        table = table_for(made)
    path = tmp_path / "table.json"
    write_table(table, path)
    with dispatcher("matmul", "cpu", n=16, k=16, table=path) as made:
        assert made.choose(m=64).source is ChoiceSource.TABLE
        assert made.choose(m=101).source is ChoiceSource.DEFAULT
        assert "table: software tilelang: the table was made with 0" in made.explain()
    for wrong, message in (
        (replace(table, fixed={"n": 32, "k": 16}), "the table varies m with k=16, n=32 fixed"),
        (replace(table, dtype="float16"), "cannot be used for matmul.*dtype"),
        (replace(table, template="other"), "template: the table was made for other"),
    ):
        with pytest.raises(InputError, match=message):
            dispatcher("matmul", "cpu", n=16, k=16, table=wrong)


def test_kernel_names_differ_if_the_code_differs() -> None:
    from tilesight.builder.index_files import kernel_name

    target = load_target("cpu")
    operator = kernels.operator("matmul")
    template = kernels.template_for("matmul", target, "float32")
    one = operator.workload("m=8,n=16,k=16", "float32")
    other = operator.workload("m=9,n=16,k=16", "float32")
    config = template.default_config(one, target)
    assert config is not None
    static = [kernel_name(Candidate(w, target, template, config)) for w in (one, other)]
    dynamic = [kernel_name(Candidate(w, target, template, config, ("m",))) for w in (one, other)]
    assert len({*static, *dynamic}) == 3
    assert dynamic[0] == dynamic[1]


def test_the_line_of_a_report_makes_a_dispatcher_of_its_config() -> None:
    cpu = load_target("cpu")
    template = kernels.template_for("matmul", cpu, "float32")
    workload = template.operator.workload("m=64,n=40,k=48", "float32")
    config = template.default_config(workload, cpu)
    assert config is not None
    scope: dict[str, Any] = {"tilesight": tilesight}
    exec(template.usage(workload, cpu, config), scope)
    with scope["matmul"] as made:
        assert (made.choose().source, made.choose().config) == (ChoiceSource.GIVEN, config)
    exec(template.usage(workload, cpu, config, ("m",)), scope)
    with scope["matmul"] as made:
        chosen = made.choose(m=7)
        assert (chosen.source, chosen.config, chosen.dynamic) == (ChoiceSource.GIVEN, config, ("m",))


def test_a_given_config_is_checked_at_once_and_alone() -> None:
    sizes = {"m": 64, "n": 40, "k": 48}
    with pytest.raises(ConfigError, match="lacks "):
        dispatcher("matmul", "cpu", config={"block_m": 64}, **sizes)
    with pytest.raises(InputError, match="config= chooses the config of every shape: leave out explore"):
        dispatcher("matmul", "cpu", config={"block_m": 64}, explore=True, **sizes)
