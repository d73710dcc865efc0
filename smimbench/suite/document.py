"""Finds suites and reads their TOML into tables, with ``extends`` and ``--set``; ``reader`` says what the tables mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smimbench.files import JsonObject, error_line, printable, read_text, suggestion
from smimbench.suite import SuiteError
from smimbench.suite.schema import Axes


def shipped_suites() -> dict[str, Path]:
    """Names and paths of the suites shipped with smimbench."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "suites", package.parent / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("[!.]*.toml"))}
    return {}


def shipped_figures() -> dict[str, Path]:
    """Names and paths of the suites that reproduce a figure of a paper."""
    folder = next(iter(shipped_suites().values())).parent / "papers"
    return {path.stem: path for path in sorted(folder.glob("[!.]*.toml"))}


def find_suite(name: str) -> Path:
    """Path of a suite, given as a path or as the name of a shipped suite or figure."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == ".toml":
        neighbors = sorted(map(str, path.parent.glob("[!.]*.toml")))
        hint = f"; {suggestion(name, neighbors, 8)}" if neighbors else ""
        raise SuiteError(name, "", f"no such file{hint}")
    shipped = shipped_suites() | shipped_figures()
    if name in shipped:
        return shipped[name]
    file = f"{name}.toml"
    if Path(file).is_file():
        hint = f"did you mean {file!r}?"
    else:
        files = (path.name for path in Path().glob("[!.]*.toml"))
        hint = suggestion(name, [*shipped_suites(), *files, *shipped_figures()])
    raise SuiteError(name, "", f"no such file and no shipped suite; {hint}")


def text_of(path: Path) -> str:
    """Text of a suite file."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", f"cannot be read: {error}") from None


def parse_toml(file: str, text: str) -> JsonObject:
    """Parse the TOML text of a suite into tables and lists."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = f"not valid TOML: {error}"
        if file.endswith(".json"):
            reason = "a file of results, not a suite; smimbench show, verify and compare read it"
        raise SuiteError(file, "", reason) from None


# -- extends ------------------------------------------------------------------------------------------------------


def with_base(
    path: Path, document: JsonObject, extending: tuple[Path, ...] = ()
) -> JsonObject:
    """Merge a suite into the suite that it extends, recursively; ``extending`` are the suites that extend this one."""
    if "extends" not in document:
        return document
    file, name = str(path), document.pop("extends")
    extending = (*extending, path.resolve())
    if not isinstance(name, str) or not name:
        raise SuiteError(
            file, "extends", f"must be the name or path of a suite, got {name!r}"
        )
    try:
        base = find_suite(str(path.parent / name) if name.endswith(".toml") else name)
        text = text_of(base)
    except (OSError, SuiteError) as error:
        raise SuiteError(file, "extends", printable(error, 300)) from None
    if base.resolve() in extending:
        raise SuiteError(
            file,
            "extends",
            f"{name!r} extends itself, directly or through other suites",
        )
    return _merged(with_base(base, parse_toml(str(base), text), extending), document)


def _merged(base: JsonObject, extension: JsonObject) -> JsonObject:
    """Merge a suite into the suite that it extends.

    Keys of tables override, problems replace those of the base, algorithms are appended. The duration of the base no longer
    holds; with other problems neither do published values, which belong to the problems of the base.
    """
    merged = {
        name: dict(table) if isinstance(table, dict) else table
        for name, table in base.items()
    }
    merged.get("suite", {}).pop("duration", None)
    if "problem" in extension or "problems" in extension:
        merged.pop("problem", None)
        merged.pop("problems", None)
        merged.get("run", {}).pop("reference", None)
        _drop_unread_axes(merged.get("grid", {}), extension)
    for name, table in extension.items():
        base_table = merged.get(name)
        if isinstance(base_table, dict) and isinstance(table, dict):
            merged[name] = base_table | table
        elif (
            name == "algorithms"
            and isinstance(base_table, list)
            and isinstance(table, list)
        ):
            merged[name] = base_table + table
        else:
            merged[name] = table
    return merged


def _drop_unread_axes(grid: JsonObject, extension: JsonObject) -> None:
    """Leave out grid axes of the extended suite that none of the new problems uses."""
    problems = extension.get("problems", [extension.get("problem")])
    if not isinstance(problems, list) or not problems:
        return
    grids = [
        problem.get("grid") if isinstance(problem, dict) else None
        for problem in problems
    ]
    for axis in Axes.model_fields:
        if all(isinstance(table, dict) and axis in table for table in grids):
            grid.pop(axis, None)


# -- --set --------------------------------------------------------------------------------------------------------


def override(document: JsonObject, text: str, file: str) -> None:
    """Apply one ``--set``: set a key of a parsed suite from ``path.to.key=value``, or append by ``path.to.list+=value``.

    The value is TOML, a bare word a string. Entries of lists are found by position from 0 (``problems[0]`` or
    ``problems.0``), by label or by name (``algorithms.adam.steps``).

    Raises
    ------
    SuiteError
    """
    path, equals, value_text = text.partition("=")
    keys = [key.strip() for key in re.sub(r"\[(\d+)\]", r".\1", path).split(".")]
    if not equals or not all(keys):
        raise SuiteError("--set", text, "must look like problem.prior.rho=0.2")
    value = _toml_value(value_text, path, text)
    _require_problem_table(document, keys[0], text)
    table = _table_at(document, keys[:-1], text, file)
    key = keys[-1]
    if isinstance(table, list):
        raise SuiteError(
            file,
            ".".join(keys),
            f"is a list of {len(table)} entries; name the entry to change",
        )
    if key.endswith("+"):
        _append(table, key.removesuffix("+").strip(), value, text, file)
    else:
        table[key] = value


def _toml_value(value_text: str, path: str, text: str) -> Any:
    """The value of a ``--set``, in TOML; a bare word is a string, so that a shell needs no nested quotes."""
    try:
        return tomllib.loads(f"value = {value_text}")["value"]
    except (ValueError, RecursionError) as error:
        word = value_text.strip()
        # What begins as a table, a list or a string was meant as one.
        if word.startswith(("{", "[", '"', "'")):
            place = ("--add", word) if path == "algorithms+" else ("--set", text)
            raise SuiteError(*place, f"not valid TOML: {error_line(error)}") from None
        return word


def _require_problem_table(document: Mapping[str, object], key: str, text: str) -> None:
    """Raise SuiteError for ``problem`` in a suite of several problems, or ``problems`` in a suite of one."""
    problems = document.get("problems")
    if key == "problem" and "problem" not in document and isinstance(problems, list):
        labels = [
            problem.get("label", k) if isinstance(problem, dict) else k
            for k, problem in enumerate(problems)
        ]
        choices = ", ".join(f"problems.{label}" for label in labels)
        raise SuiteError(
            f"--set {text}", key, f"this suite has several; choose from {choices}"
        )
    if key == "problems" and "problems" not in document and "problem" in document:
        raise SuiteError(
            f"--set {text}",
            key,
            "this suite has a single one; write problem.prior.rho=0.2",
        )


def _table_at(document: JsonObject, keys: list[str], text: str, file: str) -> Any:
    """The table (or list) at a path of keys, made where there is none; an item given by its name becomes a table."""
    table: Any = document
    for i, key in enumerate(keys):
        place = ".".join(keys[: i + 1])
        if isinstance(table, list):
            table = _entry(table, key, f"--set {text}", place)
        else:
            if key in ("model", "inputs", "channel", "prior") and isinstance(
                table.get(key), str
            ):
                table[key] = {"name": table[key]}
            table = table.setdefault(key, {})
        if not isinstance(table, (dict, list)):
            raise SuiteError(
                file, place, f"is not a table, so --set {text} cannot set a key in it"
            )
    return table


def _entry(tables: list[Any], key: str, file: str, place: str) -> Any:
    """Find an entry of a list of tables by its name or label, or by its position from 0."""
    names = []
    for table in tables:
        if isinstance(table, dict):
            if key in (table.get("label"), table.get("name")):
                return table
            names.append(str(table.get("label", table.get("name"))))
    if key.isdigit() and int(key) < len(tables):
        return tables[int(key)]
    raise SuiteError(file, place, f"no such entry; {suggestion(key, names)}")


def _append(table: JsonObject, key: str, value: Any, text: str, file: str) -> None:
    """Append to a list; of tables, a word is the name of another one."""
    entries = table.setdefault(key, []) if key == "algorithms" else table.get(key)
    if not isinstance(entries, list):
        raise SuiteError(
            file,
            key,
            f"is not a list in this suite, so --set {text} cannot append to it",
        )
    of_tables = key == "algorithms" or any(isinstance(entry, dict) for entry in entries)
    entries.append({"name": value} if of_tables and isinstance(value, str) else value)
