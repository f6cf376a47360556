"""Compiling many kernels with the headers read once: a small program stands for NVIDIA's front end, so nvcc is not needed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from sample_kernels import product, scale

from tilesight.build import build_kernel, device_source
from tilesight.building.cuda import build_cuda, cuda_flags
from tilesight.building.front_end import UnavailableError, compile_to_ptx, split_source
from tilesight.building.front_ends import FrontEnds
from tilesight.building.identity import binary_identity
from tilesight.building.plan import read_plan
from tilesight.building.steps import Steps, UnknownStepsError, parse_steps
from tilesight.lowering import lower
from tilesight.toolchain import find_cxx, find_nvcc

# reads the headers, then what they include last; does as that file says
FAKE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
  char line[4096], body[4096] = "";
  int reader = getpid(), defined = 0;
  FILE *headers = fopen(arguments[1], "r");
  while (fgets(line, sizeof line, headers)) {
    if (strstr(line, "#define BROKEN")) return 1;
    defined |= strstr(line, "#define THREE 3") != 0;
    if (strncmp(line, "#include \"", 10)) continue;
    *strchr(line + 10, '"') = 0;
    FILE *kernel = fopen(line + 10, "r");
    if (!kernel) return 1;
    body[fread(body, 1, sizeof body - 1, kernel)] = 0;
    if (strstr(body, "crash")) abort();
    if (strstr(body, "refuse")) return 1;
    if (strstr(body, "sleep")) sleep(60);
  }
  FILE *out = fopen(arguments[3], "w");
  fprintf(out, "%d %d\n%s", reader, defined, body);
  if (strstr(body, "killed")) {
    fflush(out);
    raise(SIGKILL);
  }
  fclose(out);
}
"""

DRYRUN = """
#$ _SPACE_=
#$ CICC_PATH=/cuda/bin/../nvvm/bin
#$ PATH=/cuda/bin:/usr/bin
#$ "/usr/bin"/g++ -std=c++20 -E -x c++ -D "A=b c" -I"/cuda/include" -m64 "prefix.cu" -o "/tmp/nvcc_1.ii"
#$ "$CICC_PATH/cicc" --c++20 --orig_src_file_name "prefix.cu" --orig_src_path_name "/x/prefix.cu" -arch compute_90a \
--include_file_name "nvcc_2.c" --gen_module_id_file --module_id_file_name "/tmp/nvcc_3.id" --gen_c_file_name "/tmp/nvcc_4.c" \
--stub_file_name "/tmp/nvcc_5.c" --gen_device_file_name "/tmp/nvcc_6.gpu" "/tmp/nvcc_1.ii" -o "/tmp/nvcc_7.ptx"
#$ ptxas -arch=sm_90a -v "/tmp/nvcc_7.ptx" -o "kernel.cubin"
"""


# nvcc's steps


def test_the_steps_of_nvcc_are_read() -> None:
    steps = parse_steps("nvcc warning: something\n" + DRYRUN)
    assert steps.preprocess[0] == "/usr/bin/g++"
    assert steps.preprocess[-3:] == ("prefix.cu", "-o", "prefix.ii")
    assert steps.preprocess[5:7] == ("-D", "A=b c")
    assert steps.front_end == (
        *("/cuda/bin/../nvvm/bin/cicc", "--c++20", "--orig_src_file_name", "kernel.cu", "--orig_src_path_name", "kernel.cu"),
        *("-arch", "compute_90a", "prefix.ii", "-o", "kernel.ptx"),
    )
    assert steps.assemble == ("ptxas", "-arch=sm_90a", "-v", "kernel.ptx", "-o", "kernel.cubin")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#$ ptxas", "#$ fatbinary"),
        ('"/tmp/nvcc_7.ptx" -o', '"/tmp/other.ptx" -o'),
        ("-E ", ""),
        ('-o "/tmp/nvcc_1.ii"', '> "/tmp/nvcc_1.ii"'),
        ("#$ ", ""),
    ],
)
def test_other_steps_are_not_taken_for_these(old: str, new: str) -> None:
    assert old in DRYRUN
    with pytest.raises(UnknownStepsError):
        parse_steps(DRYRUN.replace(old, new))


# headers and kernel


def test_a_source_is_split_where_its_headers_end() -> None:
    headers, kernel = split_source("#if X\n#include <a.h>\n#endif\n\nvoid f() {\n#pragma unroll\n}\n")
    assert headers == "#if X\n#include <a.h>\n#endif\n\n"
    assert kernel == '# 5 "kernel.cu"\nvoid f() {\n#pragma unroll\n}\n', "lines keep their numbers"


@pytest.mark.parametrize("source", ["void f();\n#include <a.h>\n", "#if X\n#include <a.h>\nvoid f();\n#endif\n", "void f();\n", ""])
def test_a_source_that_mixes_them_is_not_split(source: str) -> None:
    with pytest.raises(UnavailableError):
        split_source(source)


# the front end


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("needs Linux and g++: apt-get install g++")
    (tmp_path / "cicc.c").write_text(FAKE)
    subprocess.run(["g++", "-x", "c", "cicc.c", "-o", "cicc"], cwd=tmp_path, check=True)
    return Steps(("g++", "-E", "-x", "c++", "prefix.cu", "-o", "prefix.ii"), (f"{tmp_path}/cicc", "prefix.ii", "-o", "kernel.ptx"), ())


@pytest.fixture
def front_ends() -> Iterator[FrontEnds]:
    with FrontEnds() as started:
        yield started


Compiled = Callable[..., list[str]]


@pytest.fixture
def compiled(steps: Steps, front_ends: FrontEnds, tmp_path: Path) -> Compiled:
    """The lines of a kernel's PTX: process that has read the headers, whether it knows their macro, the kernel."""
    count = itertools.count()

    def compile_one(kernel: str, headers: str = "#include <stddef.h>\n#define THREE 3\n", folder: str = "") -> list[str]:
        where = tmp_path / (folder or str(next(count)))
        where.mkdir()
        compile_to_ptx(where, headers + kernel + "\n", steps, Path("g++"), "", front_ends.address)
        return (where / "kernel.ptx").read_text().splitlines()

    return compile_one


def reader(lines: list[str]) -> int:
    return int(lines[0].split()[0])


def test_the_headers_are_read_once_for_many_kernels(compiled: Compiled) -> None:
    first, second = compiled("kernel one"), compiled("kernel two")
    assert first[1:] == ['# 3 "kernel.cu"', "kernel one"]
    assert second[1:] == ['# 3 "kernel.cu"', "kernel two"]
    assert reader(first) == reader(second)
    assert first[0].endswith(" 1"), "the headers' macros are known where the kernel is read"


def test_other_headers_are_read_by_another_process(compiled: Compiled) -> None:
    assert reader(compiled("kernel")) != reader(compiled("kernel", "#include <stddef.h>\n#define FOUR 4\n"))


@pytest.mark.parametrize("fault", ["crash", "refuse", "killed while it writes"])
def test_a_kernel_that_fails_costs_nothing_else(compiled: Compiled, fault: str) -> None:
    first = compiled("kernel")
    with pytest.raises(UnavailableError, match="wrote no PTX"):
        compiled(fault)
    assert reader(compiled("kernel")) == reader(first)


def test_headers_that_do_not_compile_are_tried_a_few_times(compiled: Compiled) -> None:
    said = [""]
    until = time.monotonic() + 30
    # on a busy machine one that is ending may be asked several times before the next is started
    while "started 3 times" not in said[-1] and time.monotonic() < until:
        with pytest.raises(UnavailableError) as error:
            compiled("kernel", "#include <stddef.h>\n#define BROKEN\n")
        said.append(str(error.value))
    assert "PTX" in said[1] or "no answer" in said[1]
    assert "started 3 times" in said[-1]
    assert compiled("kernel")[2] == "kernel", "others are still compiled"


def test_headers_that_are_missing_are_named(compiled: Compiled) -> None:
    with pytest.raises(UnavailableError, match="no_such_header"):
        compiled("kernel", "#include <no_such_header.h>\n")


def test_a_killed_front_end_is_replaced(compiled: Compiled) -> None:
    first = reader(compiled("kernel"))
    os.kill(first, signal.SIGKILL)
    assert eventually_gone(first)
    assert reader(compiled("kernel")) != first


def test_all_workers_use_the_same(compiled: Compiled) -> None:
    with ThreadPoolExecutor(4) as workers:
        found = list(workers.map(lambda i: compiled(f"kernel {i}", folder=f"w{i}"), range(12)))
    assert len({reader(lines) for lines in found}) == 1
    assert [lines[2] for lines in found] == [f"kernel {i}" for i in range(12)]


def test_who_does_not_know_the_secret_is_not_served(tmp_path: Path, steps: Steps, front_ends: FrontEnds) -> None:
    name, _, secret = front_ends.address.partition("/")
    assert len(secret) == 32
    (tmp_path / "w").mkdir()
    with pytest.raises(UnavailableError, match="it was not started"):
        compile_to_ptx(tmp_path / "w", "#include <stddef.h>\nkernel\n", steps, Path("g++"), "", f"{name}/{'0' * 32}")


def test_they_end_with_their_owner(compiled: Compiled, front_ends: FrontEnds) -> None:
    first = reader(compiled("kernel"))
    front_ends.close()
    assert eventually_gone(first)
    front_ends.close()


@pytest.mark.parametrize("end", ["closes them", "is killed"])
def test_a_fork_of_the_owner_holds_nothing_up(end: str, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", FORKED_OWNER, end],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    keeper, fork = map(int, owner.stdout.readline().split())
    assert eventually_gone(keeper)
    os.kill(fork, signal.SIGKILL)
    owner.wait(10)
    assert list(tmp_path.iterdir()) == []


FORKED_OWNER = """
import os, signal, sys, time
from pathlib import Path
from tilesight.building.front_ends import FrontEnds
front_ends = FrontEnds()
front_ends.address
while not list(Path(os.environ["TMPDIR"]).iterdir()):
    time.sleep(0.01)
fork = os.fork()
if not fork:
    time.sleep(60)
    os._exit(0)
print(front_ends._keeper.pid, fork, flush=True)
if sys.argv[1] == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
front_ends.close()
"""


OWNER = """
import sys
from pathlib import Path
from tilesight.building.front_end import compile_to_ptx
from tilesight.building.front_ends import FrontEnds
from tilesight.building.steps import Steps
folder, cicc, kernel, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
folder.mkdir()
steps = Steps(("g++", "-E", "-x", "c++", "prefix.cu", "-o", "prefix.ii"), (cicc, "prefix.ii", "-o", "kernel.ptx"), ())
source = "#include <stddef.h>\\n#define THREE 3\\n" + kernel + "\\n"
compile_to_ptx(folder, source, steps, Path("g++"), "", address or FrontEnds().address)
print(open(folder / "kernel.ptx").readline(), flush=True)
sys.stdin.read()
"""


def other_process(folder: Path, steps: Steps, kernel: str, address: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, str(folder), steps.front_end[0], kernel, address]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def eventually_gone(pid: int) -> bool:
    for _ in range(400):
        with suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def test_a_killed_owner_leaves_nothing(steps: Steps, tmp_path: Path) -> None:
    owner = other_process(tmp_path / "a", steps, "kernel")
    assert owner.stdout is not None
    first = int(owner.stdout.readline().split()[0])
    owner.kill()
    owner.wait(10)
    assert eventually_gone(first)


def copies(server: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]


def test_a_killed_worker_leaves_no_copy(compiled: Compiled, steps: Steps, front_ends: FrontEnds, tmp_path: Path) -> None:
    server = reader(compiled("kernel"))
    if not Path(f"/proc/{server}/task/{server}/children").exists():
        pytest.skip("this Linux does not list the children of a process")
    worker = other_process(tmp_path / "worker", steps, "sleep", front_ends.address)
    for _ in range(400):
        if copies(server) and (tmp_path / "worker" / "front_end.log").exists():
            break
        time.sleep(0.05)
    (copy,) = copies(server)
    worker.kill()
    worker.wait(10)
    assert eventually_gone(copy)
    assert reader(compiled("kernel")) == server


# against nvcc itself


def test_the_code_is_that_of_nvcc(front_ends: FrontEnds, tmp_path: Path) -> None:
    nvcc, cxx = find_nvcc(), find_cxx()
    if nvcc is None or cxx is None:
        pytest.skip("needs nvcc")
    candidate = product("h100", tile=128, stages=2)
    lowered = lower(candidate.template.build(candidate.workload, candidate.config), candidate.target)
    source, plan, flags = device_source(lowered, candidate.target), read_plan(lowered), cuda_flags("sm_90a", ("--use_fast_math",))
    found = []
    for address in (front_ends.address, ""):
        folder = tmp_path / ("front end" if address else "nvcc")
        folder.mkdir()
        _, resources = build_cuda(folder, source, plan, flags, nvcc, cxx, address)
        found.append((binary_identity((folder / "kernel.cubin").read_bytes(), plan), resources))
        assert (folder / "kernel.ptx").exists() == bool(address), "nvcc itself leaves none"
    assert found[0] == found[1]


def test_what_does_not_compile_is_explained_by_nvcc(front_ends: FrontEnds, tmp_path: Path) -> None:
    if find_nvcc() is None or find_cxx() is None:
        pytest.skip("needs nvcc")
    failure = build_kernel(scale("h100", "uncompilable"), tmp_path, front_ends=front_ends.address).failure
    assert failure is not None
    assert failure.message.startswith("nvcc ended with exit code")
    assert "no_such_function" in failure.message
