"""The C function that finds the kernel of a size: a binary search over the segments."""

from __future__ import annotations

from .kernel_set import KernelSet


def selector(kernels: KernelSet) -> str:
    """C source of `NAME_select`."""
    name = kernels.name
    if not kernels.sizes:
        return f"int {name}_select(void) {{ return 0; }}"
    parameters = ", ".join(f"int64_t {one.name}" for one in kernels.sizes)
    outside = " || ".join(f"{one.name} < {one.first} || {one.name} > {one.last}" for one in kernels.sizes)
    lines = [f"int {name}_select({parameters}) {{", f"  if ({outside}) return -1;"]
    by, segments = kernels.sizes[0].name, kernels.segments
    if len(segments) == 1:
        return "\n".join([*lines, f"  return {segments[0].kernel};", "}"])
    for field in ("first", "last", "kernel"):
        kind = "int" if field == "kernel" else "int64_t"
        values = _wrapped([str(getattr(segment, field)) for segment in segments])
        lines.append(f"  static const {kind} {field}s[] = {{\n{values}}};")
    lines += [
        f"  unsigned low = 0, count = {len(segments)};",
        "  while (count > 1) {",
        "    const unsigned half = count / 2;",
        f"    low += lasts[low + half - 1] < {by} ? half : 0;",
        "    count -= half;",
        "  }",
        f"  return firsts[low] <= {by} ? kernels[low] : -1;",
        "}",
    ]
    return "\n".join(lines)


def _wrapped(values: list[str], count: int = 12) -> str:
    rows = [", ".join(values[i : i + count]) for i in range(0, len(values), count)]
    return "".join(f"      {row},\n" for row in rows)
