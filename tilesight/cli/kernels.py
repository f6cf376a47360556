"""`tilesight kernels`: list the kernels and their published shapes."""

from __future__ import annotations

import click

from . import options, output, suggestions


@click.command()
@click.argument("kernel", required=False, shell_complete=suggestions.kernels)
@options.with_options(options.as_json, options.debug)
def kernels(kernel: str | None, as_json: bool) -> None:
    """List kernels, or the published shapes of KERNEL."""
    from .. import kernels as registry

    names = [registry.operator(kernel).name] if kernel else registry.operators()
    found = [registry.operator(name) for name in names]
    if as_json:
        fields = [
            {
                "name": op.name,
                "dims": op.dims,
                "attrs": dict(op.attrs),
                "dtypes": op.dtypes,
                "target_kinds": sorted(
                    {kind for t in registry.templates(op.name) for kind in t.target_kinds}
                ),
                "templates": [{"name": t.name, "version": t.version} for t in registry.templates(op.name)],
                "shapes": op.named,
                "default_shapes": op.default_names,
            }
            for op in found
        ]
        output.print_json("kernels", kernels=fields)
        return
    if kernel is None:
        columns = ["kernel", "dimensions", "dtypes", "targets", "shapes"]
        rows = [
            [
                op.name,
                ", ".join(
                    [*op.dims, *(f"{name} ({str(value).lower()})" for name, value in op.attrs.items())]
                ),
                ", ".join(op.dtypes),
                ", ".join(sorted({kind for t in registry.templates(op.name) for kind in t.target_kinds})),
                ", ".join(op.named),
            ]
            for op in found
        ]
        output.print_table(columns, rows, folded=["dimensions", "dtypes", "shapes"])
        return
    op = found[0]
    output.print_text(f"{op.name}: {', '.join(op.dims)}; {', '.join(op.dtypes)}", bold=True)
    names_of = [*op.dims, *op.attrs]
    rows = [
        [
            n,
            *(output.value(op.completed(s).get(d)) for d in names_of),
            "default" if n in op.default_names else "",
        ]
        for n, s in op.named.items()
    ]
    output.print_table(["shape", *names_of, ""], rows, right=names_of)
