"""``--set`` changes one key of a suite before it is checked; ``--only`` picks the cells to run or show."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from smimbench.files import error_line
from smimbench.suite.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Condition", "check_condition", "override", "read_condition", "selects"]

Condition = tuple[str, str]
"""Key and value of one ``--only``."""

CONDITIONS = ("algorithm", "alpha", "dimension", "seed", "problem")
"""What ``--only`` can ask for."""

LONGEST = 200
"""Letters of what was given that an error repeats; doubled, it fills the screen."""


def override(document: dict[str, Any], text: str, file: str) -> None:
    """Set one key of a parsed suite from ``path.to.key=value``, or append to a list of items by ``path.to.list+=value``.

    The value is TOML, a bare word a string. Entries of lists are found by position from 0 (``problems[0]`` or
    ``problems.0``), by label or by name (``algorithms.adam.steps``).

    Raises
    ------
    SuiteError
    """
    path, equals, value = text.partition("=")
    keys = [part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", path).split(".")]
    if not equals or not all(keys):
        raise SuiteError("--set", text, "must look like problem.prior.rho=0.2")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError) as error:
        parsed = value.strip()  # a bare word is a string, so that a shell needs no nested quotes
        if parsed.startswith(("{", "[", '"', "'")):  # but what begins as a table, a list or a text was meant as one
            option, given = ("--add", parsed) if path == "algorithms+" else ("--set", text)
            raise SuiteError(option, _shorten(given), f"not valid TOML: {error_line(error)}") from None
    node: Any = document
    for i, key in enumerate(keys[:-1]):
        where = ".".join(keys[: i + 1])
        if isinstance(node, list):
            node = _pick(node, key, f"--set {text}", where)
        elif isinstance(node.get(key), str) and key in ("model", "channel", "prior"):
            node[key] = {"name": node[key]}
            node = node[key]
        else:
            node = node.setdefault(key, {})
        if not isinstance(node, (dict, list)):
            raise SuiteError(file, where, f"is not a table, so --set {text} cannot reach into it")
    if not isinstance(node, list) and keys[-1].endswith("+"):
        _append(node, keys[-1].removesuffix("+").strip(), parsed, text, file)
        return
    if isinstance(node, list):
        raise SuiteError(file, ".".join(keys), f"name one of the {len(node)} entries of this list")
    node[keys[-1]] = parsed


def _shorten(text: str) -> str:
    """The beginning of a long text, for an error."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _append(table: dict[str, Any], key: str, value: Any, text: str, file: str) -> None:
    """Append to a list; in a list of tables, such as the algorithms, a bare word is the name of the new entry."""
    items = table.setdefault(key, []) if key == "algorithms" else table.get(key)
    if not isinstance(items, list):
        raise SuiteError(file, key, f"is not a list of this suite, so --set {text} cannot append to it")
    tables = key == "algorithms" or (items and isinstance(items[0], dict))
    items.append({"name": value} if tables and isinstance(value, str) else value)


def _pick(items: list[Any], key: str, file: str, where: str) -> Any:
    """An entry of a list of tables, by position from 0 or by its name or label."""
    for item in items:
        if isinstance(item, dict) and key in (item.get("label"), item.get("name")):
            return item
    if key.isdigit() and int(key) < len(items):
        return items[int(key)]
    names = [str(item.get("label", item.get("name", i))) for i, item in enumerate(items) if isinstance(item, dict)]
    raise SuiteError(file, where, f"no such entry; choose from {', '.join(names) or 'none'}")


def read_condition(text: str) -> Condition:
    """Key and value of ``--only KEY=VALUE``.

    Raises
    ------
    SuiteError
    """
    key, equals, value = text.partition("=")
    if not equals or key not in CONDITIONS:
        close = difflib.get_close_matches(key, CONDITIONS, 1) if equals else ()
        hint = f"did you mean {close[0]}={value}?" if close else f"keys are {', '.join(CONDITIONS)}"
        raise SuiteError("--only", text, f"must look like algorithm=gamp; {hint}")
    if key in ("alpha", "dimension", "seed"):
        try:
            float(value)
        except ValueError:
            raise SuiteError("--only", text, f"{key} must be a number") from None
    return key, value


def check_condition(condition: Condition, known: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a condition that nothing can meet: a word or a number that the suite does not have.

    Parameters
    ----------
    known : mapping
        For every key of a condition the labels, names or numbers that the suite has.

    Raises
    ------
    SuiteError
    """
    key, value = condition
    choices = list(dict.fromkeys(known[key]))
    if key == "problem":
        found = any(value in label for label in choices)
    elif key == "algorithm":
        found = value in choices
    else:
        found = any(math.isclose(choice, float(value), rel_tol=1e-12) for choice in choices)
    if found:
        return
    words = [str(choice) for choice in choices]
    close = difflib.get_close_matches(value, words, 1) if key in ("problem", "algorithm") else ()
    shown = words if len(words) <= 12 else [*words[:6], "...", words[-1]]
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(shown) or 'none'}"
    raise SuiteError("--only", f"{key}={value}", f"the suite has no such {key}; {hint}")


def selects(
    only: Sequence[Condition],
    *,
    problem: str | None = None,
    algorithm: Sequence[str] | None = None,
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> bool:
    """Whether conditions pick something; those on one key are alternatives, those on different keys must all hold.

    Parameters
    ----------
    problem : str or None
        Its label, of which a condition asks for a part; None leaves conditions on problems out.
    algorithm : sequence of str or None
        The words that pick the algorithm; None leaves conditions on algorithms out.
    numbers : mapping
        ``alpha``, ``dimension``, ``seed``; conditions on those that are not given are left out.
    """
    for key in {k for k, _ in only}:
        values = [v for k, v in only if k == key]
        if key == "algorithm":
            fits = algorithm is None or any(v in algorithm for v in values)
        elif key == "problem":
            fits = problem is None or any(v in problem for v in values)
        else:
            fits = key not in numbers or any(math.isclose(numbers[key], float(v), rel_tol=1e-12) for v in values)
        if not fits:
            return False
    return True
