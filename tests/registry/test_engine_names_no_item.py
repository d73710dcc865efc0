"""The engine names no algorithm, channel or prior that ships: what it must know of one is an attribute of that item."""

import ast
from pathlib import Path

import smimbench
from smimbench.registry.registry import BUILT_IN, Registry

WORDS = {
    ("report/charts.py", "linear"),  # the scale of an axis
    ("problem/problem.py", "gaussian"),  # the inputs of a problem that names none
    (
        "report/prediction.py",
        "spectral",
    ),  # the kind of a fixed point, as uninformed is one
}
"""Where a word that is also the name of an item means something else."""


def strings(tree):
    """String constants of code, without docstrings and texts that stand alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in alone
    )
    return {node.value for node in constants if isinstance(node.value, str)}


def test_no_shipped_item_is_named():
    kinds = ("algorithm", "channel", "prior")
    names = {
        entry.name
        for kind in kinds
        for entry in Registry().entries(kind)
        if entry.distribution == BUILT_IN
    }
    root = Path(smimbench.__file__).parent
    named = {
        (path.relative_to(root).as_posix(), name)
        for path in root.rglob("*.py")
        for name in strings(ast.parse(path.read_text(encoding="utf-8"))) & names
    }
    assert named == WORDS
