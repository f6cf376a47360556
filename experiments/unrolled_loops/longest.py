"""Finds up to how many iterations nvcc unrolls loops over local arrays, by what an iteration does.

    python experiments/unrolled_loops/longest.py --out experiments/unrolled_loops/loops.csv

Needs nvcc, no GPU. A loop counts as unrolled if its PTX has no branch backwards. `operations` are those that
`costmodel/extract/code_size.py` counts for an iteration, with the two of the loop.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import tempfile
from pathlib import Path

# body of the loop over i, and its operations with those of the loop
BODIES = {
    "store": ("a[i] = s;", 3),
    "copy": ("a[i] = b[i];", 4),
    "sum": ("s += a[i];", 4),
    "largest": ("s = fmaxf(s, a[i]);", 4),
    "product and sum": ("s = s * u + a[i];", 5),
    "update": ("a[i] = a[i] * s + u;", 5),
    "update of integers": ("c[i] = c[i] * z + i;", 5),
    "fast exponential in place": ("a[i] = __expf(a[i]);", 4),
    "two sums": ("s += a[i]; u += b[i];", 6),
    "sum under a condition on data": ("if (c[i] < z) s += a[i];", 8),
    "sum under a condition on the loop": ("if (i % 4 < z) s += a[i];", 8),
    "choice": ("a[i] = b[i] == s ? u : a[i];", 7),
    "choice of integers": ("c[i] = b[i] == s ? z + i : c[i];", 8),
}
KERNEL = """extern "C" __global__ void k(float* o, const float* x, const int* p, int t) {{
  float a[{n}], b[{n}]; int c[{n}];
  #pragma unroll
  for (int i = 0; i < {n}; ++i) {{
    a[i] = x[i * 128 + threadIdx.x]; b[i] = x[i * 128 + threadIdx.x + 100000];
    c[i] = p[i * 128 + threadIdx.x];
  }}
  float s = x[t], u = x[t + 1]; int z = p[t];
  for (int i = 0; i < {n}; ++i) {{ {body} }}
  #pragma unroll
  for (int i = 0; i < {n}; ++i) o[i * 128 + threadIdx.x] = a[i] + b[i] + c[i];
  o[threadIdx.x + 12345678] = s + u + z;
}}"""
FEWEST, MOST, STEP = 0.7, 1.4, 1.03  # of the iterations that 2,400 operations are


def is_unrolled(body: str, iterations: int, folder: Path) -> bool:
    source, ptx = folder / "k.cu", folder / "k.ptx"
    source.write_text(KERNEL.format(n=iterations, body=body))
    subprocess.run(["nvcc", "-arch=sm_90a", "-O3", "-ptx", source, "-o", ptx], check=True)
    seen: set[str] = set()
    for line in ptx.read_text().splitlines():
        label = re.match(r"\$(\w+):", line.strip())
        if label:
            seen.add(label[1])
        target = re.search(r"bra(?:\.uni)?\s+\$(\w+);", line)
        if target and target[1] in seen:
            return False
    return True


def longest(body: str, operations: int, folder: Path) -> tuple[int, int]:
    """(most iterations that are unrolled, fewest that are not), of those that were tried."""
    expected = 2400 / operations
    low, high = round(FEWEST * expected), round(MOST * expected)
    if not is_unrolled(body, low, folder) or is_unrolled(body, high, folder):
        return 0, 0  # not between these
    while high > low * STEP:
        middle = (low + high) // 2
        if is_unrolled(body, middle, folder):
            low = middle
        else:
            high = middle
    return low, high


def main(out: Path) -> None:
    compiler = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", compiler)
    with out.open("w", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "body", "operations", "unrolled", "kept", "operations_at_most", "compiler"])
        for kind, (body, operations) in BODIES.items():
            low, high = longest(body, operations, Path(folder))
            name = f"nvcc {release[1]}" if release else ""
            writer.writerow([kind, body, operations, low, high, high * operations, name])
            file.flush()
            print(kind, low, high, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Find the longest loops that nvcc unrolls.")
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args().out)
