"""What the shell completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ZshComplete

from tests.unit.cli.test_commands import Shell
from tilesight.cli.commands import cli
from tilesight.cli.suggestions import PROGRAM, VARIABLE, BashWords
from tilesight.target.spec import target_names

MAIN = "from tilesight.cli.main import main; main()"


def offered(*words: str) -> list[str]:
    *args, incomplete = words
    return [item.value for item in ZshComplete(cli, {}, PROGRAM, VARIABLE).get_completions(args, incomplete)]


def test_commands_kernels_targets_and_choices() -> None:
    assert "tune" in offered("tu")
    assert offered("rank", "gem") == ["gemv"]
    assert set(target_names()) < set(offered("tune", "matmul", "--target", ""))
    assert offered("tune", "matmul", "--effort", "q") == ["quick"]
    assert offered("space", "gemv", "--dtype", "b") == ["bfloat16"]
    assert "bf16" in offered("rank", "--dtype", "b")
    assert offered("collect", "gemv", "rms") == ["rms_norm"]


def test_shapes_are_published_names_and_dimensions_that_are_left() -> None:
    assert {"M0", "m=", "n=", "k="} <= set(offered("tune", "matmul", "--shape", ""))
    assert offered("tune", "matmul", "--shape", "m") == ["m="]
    assert offered("tune", "gemv", "--shape", "n=64,") == ["n=64,k="]
    assert {"m=64,n=", "m=64,k=", "m=64,layout="} <= set(offered("tune", "matmul", "--shape", "m=64,"))
    assert offered("tune", "matmul", "--shape", "m=6") == []
    assert offered("tune", "matmul_all_reduce", "--shape", "w") == []  # the target decides the world
    assert offered("plan", "matmul", "--vary", "m") == ["m="]
    assert offered("tune", "matmul", "--dynamic", "n") == ["n"]
    assert "causal=" in offered("rank", "flash_attention", "--shape", "c")


def test_a_kernel_that_does_not_exist_offers_nothing() -> None:
    assert offered("tune", "matmal", "--shape", "") == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = Shell(capsys)("completion", name)
    assert code == 0
    assert f"{VARIABLE}={name}_complete" in out


def ask(line: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """As bash asks: its words end at `=`."""
    words = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1), VARIABLE: "bash_complete"}
    return subprocess.run(
        [sys.executable, "-c", f"{MAIN}"], env={**os.environ, **words, **more}, capture_output=True, text=True
    )


def test_bash_words_that_end_at_equals_signs_are_joined() -> None:
    line = ["tilesight", "tune", "matmul", "--shape", "m", "=", "64,n"]
    assert ask(line).stdout.split() == ["plain,64,n="]
    assert ask([*line[:-3], "m"]).stdout.split() == ["plain,m="]
    assert ask(["tilesight", "rank", "matmul", "--target", "=", "mi"]).stdout.split() == ["plain,mi300x"]
    assert BashWords.name == "bash"


def test_an_error_offers_nothing(tmp_path: Path) -> None:
    found = ask(["tilesight", "tune", "m"], TILESIGHT_KERNELS=str(tmp_path / "gone.py"))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_a_key_press_runs_no_code_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tilesight.toml").write_text('kernels = ["mine.py"]')
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    assert ask(["tilesight", "rank", "gem"], PYTHONPATH=path).stdout.split() == ["plain,gemv"]
    assert not (tmp_path / "ran").exists()


def test_completion_loads_neither_torch_nor_tilelang() -> None:
    words = {
        "COMP_WORDS": "tilesight tune matmul --shape m",
        "COMP_CWORD": "4",
        VARIABLE: "bash_complete",
    }
    code = f"import sys, atexit\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{MAIN}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["plain,m="]
    heavy = {"torch", "tilelang", "tvm", "numpy", "pandas", "optuna", "sqlalchemy"}
    assert set(done.stderr.split()) & heavy == set()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_itself_completes(tmp_path: Path) -> None:
    command = tmp_path / "tilesight"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{MAIN}' \"$@\"\n")
    command.chmod(0o755)
    script = """eval "$(tilesight completion bash)"
COMP_WORDS=(tilesight tune matmul --shape m = 64,k); COMP_CWORD=6
_tilesight_completion tilesight
echo "${COMPREPLY[@]}"
"""
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout == "64,k=\n", done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_install_adds_one_line_to_the_shells_file(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    file = tmp_path / f".{shell}rc"
    file.write_bytes(b"alias x=y\xff")
    file.chmod(0o600)
    for expected in ("is set up in", "was set up already in"):
        code, out, _ = Shell(capsys)("--install-completion")
        assert (code, expected in " ".join(out.split())) == (0, True)
        first, line = file.read_bytes().splitlines()
        ends = line.endswith(f'eval "$(tilesight completion {shell})"'.encode())
        assert (first, ends) == (b"alias x=y\xff", True)
        assert file.stat().st_mode & 0o777 == 0o600


def test_install_writes_a_file_for_fish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert Shell(capsys)("--install-completion")[0] == 0
    script = (tmp_path / ".config/fish/completions/tilesight.fish").read_text()
    assert f"{VARIABLE}=fish_complete" in script


def test_install_refuses_other_shells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    code, _, error = Shell(capsys)("--install-completion")
    assert (code, "'tcsh' (SHELL) is none of bash, zsh, fish" in error) == (2, True)


def test_install_refuses_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    (tmp_path / ".bashrc").mkdir()
    code, _, error = Shell(capsys)("--install-completion")
    assert (code, ".bashrc' cannot be read: Is a directory" in " ".join(error.split())) == (2, True)
