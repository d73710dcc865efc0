"""Writes every key of a suite as Markdown, from the tables of smimbench.suite.schema; the site adds them to docs/suite.md."""

from __future__ import annotations

import ast
import inspect
import itertools
import types
from typing import Any, Literal, Union, get_args, get_origin

from smimbench.suite.schema import (
    AlgorithmTable,
    Axes,
    CurveTable,
    FigureTable,
    GridTable,
    InKey,
    OptimumTable,
    ProblemTable,
    ReferenceTable,
    RunOptions,
    SuiteTable,
    Table,
    TuneTable,
    as_axis,
)

TABLES: dict[str, type[Table]] = {
    "[suite]": SuiteTable,
    "[problem] or [[problems]]": ProblemTable,
    "[grid]": GridTable,
    "[[algorithms]]": AlgorithmTable,
    "[algorithms.tune]": TuneTable,
    "[run]": RunOptions,
    "[[run.reference]]": ReferenceTable,
    "[[optimum]]": OptimumTable,
    "[figure]": FigureTable,
    "[[figure.curves]]": CurveTable,
}
WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    dict: "table",
}
KEY = """
The column "identity" says whether an option can change a result: then it is part of a cell's identity, and with another value
the cell is run again. The others only change what is shown. An option marked "unless default" came later: at its default it is
left out, so that older records stay valid.
"""


def keys() -> str:
    """Return a Markdown section for every table of a suite, with its keys."""
    sections = []
    for name, table in TABLES.items():
        sections.append(
            f"## {name}\n\n{_about(table)}\n" + (KEY if table is RunOptions else "")
        )
        sections.append(_keys(table))
        if table is ProblemTable:
            sections.append(f"### grid of a problem\n\n{_about(Axes)}\n")
    return "\n".join(sections)


def _about(table: type[Table]) -> str:
    """Return the docstring of a table as Markdown, without the name of the table, which is the heading already."""
    text = " ".join((table.__doc__ or "").split()).replace("``", "`")
    text = text.partition(": ")[2] if text.startswith("`[") else text
    return text[0].upper() + text[1:]


def meanings(table: type[Table]) -> dict[str, str]:
    """Return the meaning of every key of a table: the text below its definition."""
    inherited = (
        meanings(table.__base__) if issubclass(table.__base__ or object, Table) else {}
    )
    (definition,) = ast.parse(inspect.getsource(table)).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                inherited[name] = " ".join(text.split())
    return inherited


def _keys(table: type[Table]) -> str:
    """Return the keys of a table of a suite as a Markdown table: type, default, meaning, and for run options whether they
    are part of a cell's identity.
    """
    marked = table is RunOptions
    lines = [
        "| key | type | default | " + ("identity | " if marked else "") + "meaning |",
        "|---|---|---|" + ("---|" if marked else "") + "---|",
    ]
    meaning = meanings(table)
    for name, field in table.model_fields.items():
        cells = [f"`{name}`", _type(field), _default(field)]
        if marked:
            cells.append(_in_key(field))
        lines.append("| " + " | ".join([*cells, meaning[name]]) + " |")
    return "\n".join(lines) + "\n"


def _in_key(field: Any) -> str:
    """Return the text that says whether a run option (``field``) is part of a cell's identity."""
    marks = [mark for mark in field.metadata if isinstance(mark, InKey)]
    if not marks:
        return ""
    return "unless default" if marks[0].left_out_at_default else "yes"


def _default(field: Any) -> str:
    """Return the default of a key (its pydantic ``field``) as Markdown."""
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value in ("", (), {}) or isinstance(value, Table):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return (
        f'`"{value}"`'
        if isinstance(value, str)
        else f"`{value:g}`"
        if value < 1
        else f"`{value}`"
    )


def _type(field: Any) -> str:
    """Return the type and the bounds of a key (its pydantic ``field``) in words."""
    words = _words(field.annotation)
    bounds = [
        f"{sign} {getattr(mark, name):g}"
        for mark in field.metadata
        for name, sign in (("gt", ">"), ("ge", ">="))
        if getattr(mark, name, None) is not None
    ]
    return " ".join([words, *bounds])


def _words(annotation: Any) -> str:
    """Return a type annotation in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(kind) for kind in inner if kind is not types.NoneType)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in inner)
    if origin is tuple:
        return f"list of {_words(inner[0])}"
    if hasattr(annotation, "__metadata__"):
        words = _words(inner[0])
        axis = any(
            getattr(mark, "func", None) is as_axis for mark in annotation.__metadata__
        )
        return f"{words.removeprefix('list of ')} or {words}" if axis else words
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return "table"
    return WORDS[origin or annotation]


if __name__ == "__main__":
    print(keys())  # noqa: T201
