"""Changes to a suite before it is checked (``--set``, ``extends``), and selection of cells by ``--only``."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from smimbench.files import JsonObject, error_line, suggestion
from smimbench.suite import SuiteError
from smimbench.suite.schema import Axes

Condition = tuple[str, str]
"""Key and value of one ``--only``."""

CONDITIONS = ("algorithm", "alpha", "dimension", "seed", "problem")
"""What ``--only`` can ask for."""


def override(document: JsonObject, text: str, file: str) -> None:
    """Apply one ``--set``: set a key of a parsed suite from ``path.to.key=value``, or append by ``path.to.list+=value``.

    The value is TOML, a bare word a string. Entries of lists are found by position from 0 (``problems[0]`` or
    ``problems.0``), by label or by name (``algorithms.adam.steps``).

    Raises
    ------
    SuiteError
    """
    path, equals, value = text.partition("=")
    *way, last = [
        part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    ]
    if not equals or not last or not all(way):
        raise SuiteError("--set", text, "must look like problem.prior.rho=0.2")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError) as error:
        parsed = (
            value.strip()
        )  # a bare word is a string, so that a shell needs no nested quotes
        if parsed.startswith(
            ("{", "[", '"', "'")
        ):  # but what begins as a table, a list or a text was meant as one
            option, given = (
                ("--add", parsed) if path == "algorithms+" else ("--set", text)
            )
            raise SuiteError(
                option, given, f"not valid TOML: {error_line(error)}"
            ) from None
    several = document.get("problems")
    if (
        [*way, last][0] == "problem"
        and "problem" not in document
        and isinstance(several, list)
    ):
        names = [
            one.get("label", k) if isinstance(one, dict) else k
            for k, one in enumerate(several)
        ]
        listed = ", ".join(f"problems.{name}" for name in names)
        raise SuiteError(
            f"--set {text}", "problem", f"this suite has several; choose from {listed}"
        )
    if (
        [*way, last][0] == "problems"
        and "problems" not in document
        and "problem" in document
    ):
        raise SuiteError(
            f"--set {text}",
            "problems",
            "this suite has a single one; write problem.prior.rho=0.2",
        )
    node: Any = document
    for i, key in enumerate(way):
        where = ".".join(way[: i + 1])
        if isinstance(node, list):
            node = _pick(node, key, f"--set {text}", where)
        else:
            if key in ("model", "inputs", "channel", "prior") and isinstance(
                node.get(key), str
            ):
                node[key] = {"name": node[key]}
            node = node.setdefault(key, {})
        if not isinstance(node, (dict, list)):
            raise SuiteError(
                file, where, f"is not a table, so --set {text} cannot set a key in it"
            )
    if isinstance(node, list):
        raise SuiteError(
            file,
            ".".join([*way, last]),
            f"is a list of {len(node)} entries; name the entry to change",
        )
    if not last.endswith("+"):
        node[last] = parsed
        return
    key = last.removesuffix("+").strip()
    items = node.setdefault(key, []) if key == "algorithms" else node.get(key)
    if not isinstance(items, list):
        raise SuiteError(
            file,
            key,
            f"is not a list in this suite, so --set {text} cannot append to it",
        )
    tables = key == "algorithms" or any(
        isinstance(item, dict) for item in items
    )  # of tables a word is the name
    items.append({"name": parsed} if tables and isinstance(parsed, str) else parsed)


def _pick(items: list[Any], key: str, file: str, where: str) -> Any:
    """Find an entry of a list of tables by its name or label, or by its position from 0."""
    tables = [item for item in items if isinstance(item, dict)]
    named = [item for item in tables if key in (item.get("label"), item.get("name"))]
    if named:
        return named[0]
    if key.isdigit() and int(key) < len(items):
        return items[int(key)]
    names = [str(item.get("label", item.get("name"))) for item in tables]
    raise SuiteError(file, where, f"no such entry; {suggestion(key, names)}")


def read_condition(text: str) -> Condition:
    """Split ``--only KEY=VALUE`` into key and value.

    Raises
    ------
    SuiteError
    """
    key, equals, value = text.partition("=")
    if not equals or key not in CONDITIONS:
        raise SuiteError(
            "--only",
            text,
            f"must look like algorithm=gamp; {suggestion(key, CONDITIONS)}",
        )
    if key in ("alpha", "dimension", "seed"):
        try:
            float(value)
        except ValueError:
            raise SuiteError("--only", text, f"{key} must be a number") from None
    return key, value


def check_condition(condition: Condition, known: Mapping[str, Sequence[Any]]) -> None:
    """Reject a condition that matches no label, name or number of the suite; ``known`` lists these by key.

    Raises
    ------
    SuiteError
    """
    key, value = condition
    words = list(dict.fromkeys(known[key]))
    if any(
        _meets(key, value, (word,) if key == "algorithm" else word) for word in words
    ):
        return
    # A number that is close to one of the suite was meant as it is.
    hint = suggestion(value if key in ("problem", "algorithm") else "", words, 12)
    raise SuiteError("--only", f"{key}={value}", f"the suite has no such {key}; {hint}")


def selects(only: Sequence[Condition], **found: Any) -> bool:
    """Whether a cell meets the conditions: those on one key are alternatives, those on different keys must all be true.

    Parameters
    ----------
    problem : str
        Its label, of which a condition asks for a part.
    algorithm : sequence of str
        The words that pick the algorithm.
    alpha, dimension, seed : float
        Conditions on keys that are not given are left out.
    """
    return all(
        any(_meets(k, v, found[key]) for k, v in only if k == key)
        for key in {k for k, _ in only} & found.keys()
    )


def _meets(key: str, value: str, found: Any) -> bool:
    if key in ("problem", "algorithm"):
        return value in found
    return math.isclose(found, float(value), rel_tol=1e-12)


def merged(base: JsonObject, own: JsonObject) -> JsonObject:
    """Merge a suite into the suite that it extends.

    Keys of tables override, problems replace those of the base, algorithms are appended. How long the base takes is no longer
    said; with other problems neither are values of others, which count the problems of the base.
    """
    found = {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in base.items()
    }
    found.get("suite", {}).pop("duration", None)
    if "problem" in own or "problems" in own:
        found = {
            name: value
            for name, value in found.items()
            if name not in ("problem", "problems")
        }
        found.get("run", {}).pop("reference", None)
        _drop_unread_axes(found.get("grid", {}), own)
    for name, value in own.items():
        before = found.get(name)
        if (
            name == "algorithms"
            and isinstance(before, list)
            and isinstance(value, list)
        ):
            found[name] = [*before, *value]
        elif isinstance(before, dict) and isinstance(value, dict):
            found[name] = before | value
        else:
            found[name] = value
    return found


def _drop_unread_axes(grid: JsonObject, own: JsonObject) -> None:
    """Leave out grid axes of the extended suite that none of the new problems uses."""
    problems = own.get("problems", [own.get("problem")])
    grids = (
        [one.get("grid") if isinstance(one, dict) else None for one in problems]
        if isinstance(problems, list)
        else []
    )
    for axis in Axes.model_fields:
        if grids and all(isinstance(one, dict) and axis in one for one in grids):
            grid.pop(axis, None)
