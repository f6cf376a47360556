"""Registry of operators and their kernel templates.

Each module of this package with an `OPERATOR` adds that operator, and with `TEMPLATES` those kernel
templates. Modules whose names begin with an underscore are ignored. Modules and files of the user are named
in `TILESIGHT_KERNELS`. Loading the registry imports neither torch nor tilelang.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from ..errors import InputError, UnknownNameError, headline
from ..problem.operator import Operator
from ..problem.template import KernelTemplate
from ..settings import load_settings
from ..target.spec import Target

__all__ = ["default_dtype", "operator", "operators", "template_for", "templates"]


def operators() -> tuple[str, ...]:
    """Names of all operators, sorted."""
    return tuple(_registry()[0])


def operator(name: str) -> Operator:
    """The operator of that name; dashes may stand for underscores. Raises `UnknownNameError`."""
    by_name = _registry()[0]
    folded = name.lower().replace("-", "_")
    if folded not in by_name:
        own = load_settings().kernel_modules
        hint = (
            f"{load_settings().sources['kernels']} names {', '.join(own)}."
            if own
            else "For a kernel of your own, name its module or file in TILESIGHT_KERNELS, or decorate it "
            "with @tilesight.autotune."
        )
        raise UnknownNameError("kernel", name, by_name, hint)
    return by_name[folded]


def templates(operator_name: str) -> tuple[KernelTemplate, ...]:
    """All templates of an operator: the shipped ones sorted by name, then those of the user."""
    wanted = operator(operator_name)
    return tuple(template for template in _registry()[1].values() if template.operator is wanted)


def template_for(operator_name: str, target: Target, dtype: str) -> KernelTemplate:
    """The template of an operator for a target and a dtype.

    Raises:
        UnknownNameError: no operator has that name.
        InputError: there is no such template; names the targets and dtypes that work.
    """
    on_target = _on_target(operator_name, target)
    for template in on_target:
        if dtype in template.dtypes and dtype in target.dtypes:
            return template
    usable = _usable_dtypes(on_target, target)
    raise InputError(
        f"{on_target[0].operator.name} has no {dtype} kernel for target '{target.name}'; "
        + (
            f"on this target it takes {', '.join(usable)}: --dtype {usable[0]}"
            if usable
            else f"the target has only {', '.join(target.dtypes)}"
        )
    )


def default_dtype(operator_name: str, target: Target) -> str:
    """The default dtype on `target`: the operator's first one with a kernel there.

    Raises:
        InputError: the operator has no kernel for that kind of target.
    """
    on_target = _on_target(operator_name, target)
    usable = _usable_dtypes(on_target, target)
    return usable[0] if usable else on_target[0].dtypes[0]


def _on_target(operator_name: str, target: Target) -> list[KernelTemplate]:
    ours = templates(operator_name)
    on_target = [template for template in ours if target.kind in template.target_kinds]
    if not on_target:
        kinds = sorted({kind for template in ours for kind in template.target_kinds})
        reasons = [t.kind_reasons[target.kind] for t in ours if target.kind in t.kind_reasons]
        raise InputError(
            f"{operator(operator_name).name} has no kernel for target '{target.name}', which is of kind "
            f"{target.kind}{''.join(f' ({reason})' for reason in reasons[:1])}; "
            f"it runs on targets of kind {' and '.join(kinds)}: see `tilesight targets`"
        )
    return on_target


def _usable_dtypes(on_target: list[KernelTemplate], target: Target) -> list[str]:
    order = on_target[0].operator.dtypes
    return [
        dtype
        for dtype in order
        if dtype in target.dtypes and any(dtype in template.dtypes for template in on_target)
    ]


@lru_cache(maxsize=1)
def _registry() -> tuple[Mapping[str, Operator], Mapping[str, KernelTemplate]]:
    found_operators: dict[str, Operator] = {}
    found_templates: dict[str, KernelTemplate] = {}
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    modules = [importlib.import_module(f".{name}", __name__) for name in names]
    for module in [*modules, *(_own(name) for name in load_settings().kernel_modules)]:
        operators = [module.OPERATOR] if hasattr(module, "OPERATOR") else []
        for kind, by_name, found in (
            ("operator", found_operators, operators),
            (
                "template",
                found_templates,
                sorted(getattr(module, "TEMPLATES", ()), key=lambda template: template.name),
            ),
        ):
            for one in found:
                if by_name.setdefault(one.name, one) is not one:
                    raise InputError(
                        f"{module.__name__}: another {kind} is named '{one.name}'; give it a name of its own"
                    )
    return dict(sorted(found_operators.items())), found_templates


def _own(name: str) -> ModuleType:
    """A module of the user, by its name or its file.

    Raises `InputError` if it cannot be imported or has no templates.
    """
    is_file = "/" in name or name.endswith(".py")
    kind = "file" if is_file else "module"
    subject = f"kernel {kind} '{name}' of {load_settings().sources['kernels']}"
    try:
        module = _of_file(Path(name)) if is_file else importlib.import_module(name)
    except Exception as error:  # any error of its code
        reason = headline(str(error) or type(error).__name__)
        hint = "" if is_file else "; its folder must be on PYTHONPATH, or name its file"
        raise InputError(f"{subject} cannot be imported: {reason}{hint}") from error
    templates = getattr(module, "TEMPLATES", ())
    if not templates or not all(isinstance(template, KernelTemplate) for template in templates):
        raise InputError(
            f"{subject} must have TEMPLATES, a tuple of instances of "
            "tilesight.problem.template.KernelTemplate"
        )
    if not isinstance(getattr(module, "OPERATOR", templates[0].operator), Operator):
        raise InputError(
            f"{subject} must have an instance of tilesight.problem.operator.Operator as OPERATOR"
        )
    return module


def _of_file(given: Path) -> ModuleType:
    """The module of a file, imported by the file's name: its folder joins the import path.

    Worker processes get this import path, so they import the same file. Raises whatever its code raises.
    """
    file = given.expanduser().absolute()
    if not file.is_file():
        raise FileNotFoundError("there is no such file")
    folder, name = str(file.parent), file.stem
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    module = importlib.import_module(name)
    other = Path(module.__file__ or "built into Python")
    if other.resolve() != file.resolve():
        raise ImportError(f"another module is named '{name}' ({other}); rename the file")
    return module
