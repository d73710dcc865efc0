"""Suites that extend another: the merged document, and its text, which no longer needs the other."""

from __future__ import annotations

import json
import re
from typing import Any

Document = dict[str, Any]
AXES = ("alpha", "dimension", "seeds")


def merged(base: Document, own: Document) -> Document:
    """Merge a suite into the one that it extends.

    Keys of tables override, problems replace those of the base, algorithms are appended. How long the base takes is no longer
    said; with other problems neither are values of others, which count the problems of the base.
    """
    found = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    found.get("suite", {}).pop("duration", None)
    if "problem" in own or "problems" in own:
        found = {name: value for name, value in found.items() if name not in ("problem", "problems")}
        found.get("run", {}).pop("reference", None)
        _drop_unread_axes(found.get("grid", {}), own)
    for name, value in own.items():
        before = found.get(name)
        if name == "algorithms" and isinstance(before, list) and isinstance(value, list):
            found[name] = [*before, *value]
        elif isinstance(before, dict) and isinstance(value, dict):
            found[name] = before | value
        else:
            found[name] = value
    return found


def _drop_unread_axes(grid: Document, own: Document) -> None:
    """Leave out axes of the base that none of the new problems reads, since each has its own."""
    problems = own.get("problems", [own.get("problem")])
    grids = (
        [one.get("grid") if isinstance(one, dict) else None for one in problems] if isinstance(problems, list) else []
    )
    for axis in AXES:
        if grids and all(isinstance(one, dict) and axis in one for one in grids):
            grid.pop(axis, None)


def toml_text(document: Document) -> str:
    """TOML that reads as this document."""
    plain, tables = [], []
    for name, value in document.items():
        if isinstance(value, dict):
            tables += [f"\n[{_key(name)}]", *_entries(value)]
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            tables += [line for one in value for line in (f"\n[[{_key(name)}]]", *_entries(one))]
        else:
            plain += _entries({name: value})
    return "\n".join([*plain, *tables]) + "\n"


def _entries(table: Document) -> list[str]:
    return [f"{_key(name)} = {_inline_toml(value)}" for name, value in table.items()]


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _inline_toml(name)


def _inline_toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(_entries(value)) + "}"
    return str(value)
