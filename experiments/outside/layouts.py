"""Layouts of a function that was read from JSON.

A layout of TileLang is written in variables that exist once in a process (`_i`, `_j`, ... and `_rep`). A
function that is read from JSON has others of these names, and TileLang takes its layouts for constant. They
are therefore made again.
"""

from __future__ import annotations

from typing import Any

NAMED = "ijklmnopqrst"


def rebuilt(prim_func: Any) -> Any:
    """The function with its layouts made again; itself if it has none."""
    from tvm import tirx

    def change(node: Any) -> Any:
        annotations = {name: _value(value) for name, value in node.annotations.items()}
        return _with(node, annotations) if any(map(_was_made, annotations.values())) else None

    body = tirx.stmt_functor.ir_transform(prim_func.body, None, change, ["tirx.SBlock", "tirx.For"])
    return prim_func if body.same_as(prim_func.body) else prim_func.with_body(body)


def _was_made(value: Any) -> bool:
    from tilelang.layout import Layout

    return isinstance(value, dict | Layout)


def _with(node: Any, annotations: dict[str, Any]) -> Any:
    from tvm import tirx

    if isinstance(node, tirx.SBlock):
        parts = (node.iter_vars, node.reads, node.writes, node.name_hint, node.body, node.init)
        return tirx.SBlock(*parts, node.alloc_buffers, node.match_buffers, annotations)
    parts = (node.loop_var, node.min, node.extent, node.kind, node.body, node.thread_binding)
    return tirx.For(*parts, annotations, node.step)


def _value(value: Any) -> Any:
    """An annotation with its layouts made again; the same object if it has none."""
    import tvm_ffi
    from tilelang.layout import Layout

    if isinstance(value, Layout):
        return _layout(value)
    if isinstance(value, tvm_ffi.Map) and any(isinstance(one, Layout) for one in value.values()):
        return {key: _value(one) for key, one in value.items()}
    return value


def _layout(layout: Any) -> Any:
    import tvm_ffi
    from tilelang.layout import Fragment, Layout
    from tvm import tirx

    shape = list(layout.get_input_shape())
    is_fragment = isinstance(layout, Fragment)
    expressions = [*layout.forward_index, *([layout.forward_thread] if is_fragment else [])]
    known: dict[str, Any] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Var):
            known[str(node.name)] = node

    for expression in expressions:
        tirx.stmt_functor.post_order_visit(expression, visit)

    def put(variables: tuple[Any, ...]) -> list[Any]:
        names = [f"_{NAMED[place]}" for place in range(len(shape))] + ["_rep"]
        values = [getattr(one, "var", one) for one in variables]
        chosen = {known[name]: one for name, one in zip(names, values, strict=False) if name in known}
        if missing := set(known) - set(names[: len(values)]):
            raise ValueError(f"layout {layout} has unknown variables {', '.join(sorted(missing))}")
        return [tirx.stmt_functor.substitute(expression, chosen) for expression in expressions]

    if not is_fragment:
        return Layout(shape, lambda *variables: put(variables))

    def forward(*variables: Any) -> tuple[Any, Any]:
        *index, thread = put(variables)
        return thread, tvm_ffi.convert(index)

    return Fragment(shape, forward_fn=forward, replicate=int(layout.replicate_size))
