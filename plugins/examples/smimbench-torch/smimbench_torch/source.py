"""What ``torch.optim`` offers, read from its source: importing PyTorch would slow down every command of smimbench."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
from pathlib import Path

__all__ = ["optimizers_in_source"]


@functools.cache
def optimizers_in_source() -> dict[str, tuple[inspect.Parameter, ...]]:
    """Every public optimiser of the PyTorch that is installed, with the parameters of its constructor; none without PyTorch.

    Raises
    ------
    ValueError
        If a default is no number, word or constant of its module; ``inspect`` on the imported class can still tell it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "optim"
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}
    if "__init__" not in trees:
        return {}
    public = {
        alias.asname or alias.name
        for node in trees["__init__"].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    classes = {
        node.name: (node, _constants(tree))
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = {}
    for name in sorted(public & set(classes)):
        family = _family(name, classes)
        if len(family) > 1 and family[-1] == "Optimizer":
            found[name] = _constructor(family, classes)
    return found


def _family(name: str, classes: dict[str, tuple[ast.ClassDef, dict[str, object]]]) -> list[str]:
    """The class, the one it derives from, and so on."""
    family = [name]
    while family[-1] in classes:
        bases = [base.id for base in classes[family[-1]][0].bases if isinstance(base, ast.Name)]
        if not bases or bases[0] in family:
            break
        family.append(bases[0])
    return family


def _constants(tree: ast.Module) -> dict[str, object]:
    """Numbers and words that a module gives names to."""
    found: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):  # it is computed, and no default of a constructor
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def _constructor(
    family: list[str], classes: dict[str, tuple[ast.ClassDef, dict[str, object]]]
) -> tuple[inspect.Parameter, ...]:
    """Parameters of the first constructor in the family, without ``self`` and ``params``."""
    for name in family:
        if name not in classes:
            continue
        node, constants = classes[name]
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                return tuple(_parameters(item.args, constants))
    return ()


def _parameters(arguments: ast.arguments, constants: dict[str, object]) -> list[inspect.Parameter]:
    plain = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(plain) - len(arguments.defaults))
    pairs = [*zip(plain, [*missing, *arguments.defaults]), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [
        inspect.Parameter(
            argument.arg,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is None else _value(default, constants),
            annotation=ast.unparse(argument.annotation) if argument.annotation else inspect.Parameter.empty,
        )
        for argument, default in pairs
        if argument.arg not in ("self", "params")
    ]


def _value(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.Tuple):
        return tuple(_value(one, constants) for one in node.elts)
    return ast.literal_eval(node)
