"""Kernels of files that list configs of their own: compared, or one of them chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.api import kernels_of_a_user as user
from tests.unit.api.test_foreign_kernels import FILE, one_pool, run  # noqa: F401 - a fixture of all tests
from tests.unit.cli.documented import check_fields
from tilesight.api.kernel_files import FileKernel, _profiles
from tilesight.api.own_configs import agreeing, chosen, own_choices
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.errors import InputError
from tilesight.target.spec import load_target

N = 1 << 24
PLACE = [f"--file={FILE}:listed", "--target=h200", f"--arg=n={N}"]


def told(name: str, config: str | None = None, **arguments: object) -> object:
    item = FileKernel(Path(FILE), name, load_target("h200"), arguments, RunTimeFacts(), config)
    return _profiles(item)


def test_configs_are_read_in_their_order() -> None:
    for tuned in (user.listed, user.listed_here):
        choices = own_choices(tuned, {"n": N})
        assert choices is not None
        assert [c["block"] for c in agreeing(choices, {}, "listed")] == [2048, 512, 1000]
    made = own_choices(user.made, {"n": 4096})
    assert made is not None
    assert [c["block"] for c in made.space.configs()] == [1024, 2048]
    assert own_choices(user.made, {"n": 4096, "block": 1024}) is None, "the rest goes to the function alone"
    assert own_choices(user.copy, {}) is None
    assert own_choices(user.listed, {"n": N, "block": 512}) is None, "nothing is left to choose"
    with pytest.raises(InputError, match="made: the function that makes its configs takes other arguments"):
        own_choices(user.made, {"m": 3})


def test_one_is_chosen_by_number_or_values() -> None:
    choices = own_choices(user.listed, {"n": N})
    assert choices is not None
    configs = agreeing(choices, {}, "listed")
    assert chosen(choices, configs, "2", "listed") == chosen(choices, configs, "block=512", "listed")
    with pytest.raises(InputError, match=r"listed has the configs 1 \.\. 3, not 4"):
        chosen(choices, configs, "4", "listed")
    with pytest.raises(InputError, match="none of its 3 own configs has block=7"):
        chosen(choices, configs, "block=7", "listed")
    with pytest.raises(InputError, match="none of its 3 own configs has block=64"):
        agreeing(choices, {"block": 64}, "listed")


def test_rank_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rank", *PLACE, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["kind"], found["kernel"], found["target"]) == ("rank", "listed", "h200")
    rows = found["own_configs"]
    assert [row["number"] for row in rows][-1] == 3, "the one that does not lower is last"
    assert rows[-1]["predicted_us"] is None
    assert "no tile of 1000" in rows[-1]["failure"]
    assert rows[0]["predicted_us"] <= rows[1]["predicted_us"]
    assert {row["number"]: row["config"]["block"] for row in rows} == {1: 2048, 2: 512, 3: 1000}
    code, out, _ = run(capsys, "rank", *PLACE, "--top=1")
    assert code == 0
    assert "1 slower one is not shown" in out
    assert "not predicted (3): ValueError: no tile of 1000" in out
    code, out, err = run(capsys, "predict", *PLACE, "--json")
    best = json.loads(out)
    check_fields("predict", [best])
    assert best["predicted_us"] == rows[0]["predicted_us"]
    assert best["config"] == rows[0]["config"]
    assert best["own_configs"] == rows


def test_explain_and_timeline_take_the_best_or_the_chosen_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", *PLACE)
    assert code == 0, err
    assert "(predicted fastest of the 3 configs of its own @autotune)" in out
    assert "The configs of its own @autotune by predicted time" in out
    explained = json.loads(run(capsys, "explain", *PLACE, "--config=2", "--json")[1])
    assert explained["this"]["config"] == {"block": 512}
    assert explained["own_configs"] == []
    assert explained["this"]["launch"]["blocks"] == N // 512
    same = json.loads(run(capsys, "explain", *PLACE, "--arg=block=512", "--json")[1])
    assert same["this"]["predicted_us"] == explained["this"]["predicted_us"]
    code, out, err = run(capsys, "timeline", *PLACE, "--config=block=2048")
    assert code == 0, err
    assert out.startswith(f"listed(n={N}, block=2048) on ")


def test_options_of_the_passes_of_a_config_count() -> None:
    plain, fast = (told("with_passes", config, n=4096) for config in ("1", "2"))
    assert not isinstance(plain, str), plain
    assert not isinstance(fast, str), fast

    def operations(found: object) -> float:
        (kernel,) = found.kernels  # type: ignore[attr-defined]
        return sum(p.trips.mean * p.work.vector_ops for role in kernel.roles for p in role.phases)

    assert operations(fast) < operations(plain)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("copy", "1", "copy lists no configs under an @autotune that --config could choose from"),
        ("listed", "9", "listed has the configs 1 .. 3, not 9"),
    ],
)
def test_what_is_wrong_is_said(name: str, config: str, message: str) -> None:
    assert message in str(told(name, config, n=N))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rank"], "rank needs a kernel: a name of `tilesight kernels`, or one of your own"),
        (["rank", "matmul", "--arg=a=1"], "--arg is for a kernel in --file"),
        (["rank", "matmul", "--file=x.py:k", "--dtype=float16"], "rank --file takes no KERNEL, --dtype"),
        (["rank", f"--file={FILE}:copy", "--arg=n=4096"], "has no configs of its own to rank"),
        (
            ["rank", f"--file={FILE}:listed", "--arg=n=7"],
            "3 own configs cannot be predicted; the first: ",
        ),
        (["explain", f"--file={FILE}:listed"], "needs a value of n: "),
    ],
)
def test_wrong_options_of_rank(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *arguments, "--target=h100")
    assert code == 2
    assert message in err
