"""`tilesight space`: show a search space, or check one config against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options, output

if TYPE_CHECKING:
    from ..problem.space import SearchSpace


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shape,
    options.dtype,
    options.config,
    options.as_json,
    options.debug,
)
def space(
    kernel: str, target: str | None, shape: str | None, dtype: str | None, config: str | None, as_json: bool
) -> None:
    """Show the search space of KERNEL: parameters, legal configs, and the rules that other configs break.

    With --config, show whether that config is legal, every rule that it breaks, and the nearest legal
    configs.
    """
    from ..machine.placement import locate
    from ..problem.rejections import rejections
    from ..tuner.resolve import find_operator, find_template, find_workloads

    operator = find_operator(kernel)
    chosen = locate(target, measures=False, communicates=operator.communicates).target
    workload = find_workloads(operator, chosen, shape, dtype)[0]
    template = find_template(operator, chosen, workload.dtype)
    found = template.space(workload, chosen)
    if config is not None:
        _print_config(found, config, as_json)
        return
    default = template.default_config(workload, chosen)
    if as_json:
        census = found.census()
        output.print_json(
            "space",
            kernel=operator.name,
            workload=workload.key,
            target=chosen.name,
            size=census.size,
            legal=census.legal,
            parameters=[{"name": p.name, "values": p.values, "meaning": p.meaning} for p in found.parameters],
            rejected=[
                {"constraint": r.constraint, "count": r.count, "example": r.example}
                for r in rejections(found)
            ],
            default_config=default and dict(default),
        )
        return
    output.print_text(f"{workload.label} on {chosen.title}", bold=True)
    output.print_report(found.report())
    if default is not None:
        output.print_text()
        output.print_line(f"default config: {default}")


def _print_config(found: SearchSpace, text: str, as_json: bool) -> None:
    given = found.read(text)
    violations = found.violations(given)
    near = found.nearest(given) if violations else []
    if as_json:
        output.print_json(
            "config",
            config=dict(given),
            legal=not violations,
            violations=[{"constraint": v.constraint, "reason": v.reason} for v in violations],
            nearest=[dict(c) for c in near],
        )
        return
    if not violations:
        output.print_line(f"legal: {given}")
        return
    output.print_line(f"not legal: {given}")
    output.print_table(
        ["broken rule", "reason"], [[v.constraint, v.reason] for v in violations], folded=["reason"]
    )
    for legal in near:
        output.print_line(f"nearest legal: {legal}")
