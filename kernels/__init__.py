"""The registry of operators and their kernel templates.

A module of this package adds an operator by a module-level `OPERATOR`, and kernel templates by `TEMPLATES`; being
there is enough. Modules whose names begin with an underscore are not looked at. Loading the registry imports neither
torch nor tilelang.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache

from ..errors import InputError, UnknownNameError
from ..target import Target
from ..template import KernelTemplate, Operator

__all__ = ["default_dtype", "operator", "operators", "template_for", "templates"]


def operators() -> tuple[str, ...]:
    """Names of all operators, sorted."""
    return tuple(_registry()[0])


def operator(name: str) -> Operator:
    """The operator of that name; dashes may stand for underscores. Raises `UnknownNameError`."""
    known = _registry()[0]
    folded = name.lower().replace("-", "_")
    if folded not in known:
        own = "A kernel of your own is tuned where it is defined, by @tilesight.autotune." if "." in name else ""
        raise UnknownNameError("kernel", name, known, own)
    return known[folded]


def templates(operator_name: str) -> tuple[KernelTemplate, ...]:
    """All templates of an operator, sorted by name."""
    wanted = operator(operator_name)
    return tuple(template for template in _registry()[1].values() if template.operator is wanted)


def template_for(operator_name: str, target: Target, dtype: str) -> KernelTemplate:
    """The template that computes the operator on that kind of target in that dtype.

    Raises `InputError` that says which targets and dtypes work.
    """
    on_target = _on_target(operator_name, target)
    for template in on_target:
        if dtype in template.dtypes and dtype in target.dtypes:
            return template
    usable = _usable_dtypes(on_target, target)
    raise InputError(
        f"{on_target[0].operator.name} has no {dtype} kernel for target '{target.name}'; "
        + (f"there it takes {', '.join(usable)}: --dtype {usable[0]}" if usable else f"the target has only {', '.join(target.dtypes)}")
    )


def default_dtype(operator_name: str, target: Target) -> str:
    """The dtype that is taken where none is named: the operator's first one that has a kernel for `target`.

    Raises `InputError` where the operator has no kernel for that kind of target.
    """
    on_target = _on_target(operator_name, target)
    usable = _usable_dtypes(on_target, target)
    return usable[0] if usable else on_target[0].dtypes[0]


def _on_target(operator_name: str, target: Target) -> list[KernelTemplate]:
    ours = templates(operator_name)
    on_target = [template for template in ours if target.kind in template.target_kinds]
    if not on_target:
        kinds = sorted({kind for template in ours for kind in template.target_kinds})
        raise InputError(
            f"{operator(operator_name).name} has no kernel for target '{target.name}', which is of kind {target.kind}; "
            f"it runs on targets of kind {' and '.join(kinds)}: see `tilesight targets`"
        )
    return on_target


def _usable_dtypes(on_target: list[KernelTemplate], target: Target) -> list[str]:
    order = on_target[0].operator.dtypes
    return [dtype for dtype in order if dtype in target.dtypes and any(dtype in template.dtypes for template in on_target)]


@lru_cache(maxsize=1)
def _registry() -> tuple[Mapping[str, Operator], Mapping[str, KernelTemplate]]:
    found_operators: dict[str, Operator] = {}
    found_templates: dict[str, KernelTemplate] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f".{info.name}", __name__)
        for found in [module.OPERATOR] if hasattr(module, "OPERATOR") else []:
            found_operators[found.name] = found
        for template in getattr(module, "TEMPLATES", ()):
            if template.name in found_templates:
                raise ValueError(f"two kernel templates are named '{template.name}'")
            found_templates[template.name] = template
    return dict(sorted(found_operators.items())), dict(sorted(found_templates.items()))
