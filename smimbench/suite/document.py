"""The TOML of a suite: found and parsed, with ``extends`` and ``--set`` applied, or written for a problem given by options."""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from smimbench.files import (
    JsonObject,
    error_line,
    missing,
    plain_value,
    printable,
    read_text,
    suggestion,
)
from smimbench.interfaces import Host
from smimbench.registry.items import ENGINE_FILLED, Parameters, signature_of
from smimbench.registry.registry import get_registry
from smimbench.suite import SuiteError
from smimbench.suite.schema import Axes

REQUIRED_KINDS = ("model", "channel", "prior")
"""Kinds of items that a problem given by options must name."""
DEFAULT_TOKENS = 2
"""Number of tokens of a problem given by options, as in the papers."""
NOMINAL_DIMENSION = 100
"""Dimension in the suite of a problem given by options, which only theory is computed for; theory does not depend on it."""

RESERVED = ("theory", "tuning")
"""Folders under ``--results`` that do not hold the records of a suite; no suite may have their names."""


def shipped_suites() -> dict[str, Path]:
    """Names and paths of the suites shipped with smimbench."""
    package = Path(__file__).resolve().parent.parent
    for suites_folder in (package / "suites", package.parent / "suites"):
        if suites_folder.is_dir():
            return {
                path.stem: path for path in sorted(suites_folder.glob("[!.]*.toml"))
            }
    return {}


def shipped_figures() -> dict[str, Path]:
    """Names and paths of the shipped suites that reproduce a figure of a paper."""
    papers_folder = next(iter(shipped_suites().values())).parent / "papers"
    return {path.stem: path for path in sorted(papers_folder.glob("[!.]*.toml"))}


def find_suite(name: str) -> Path:
    """Return the path of a suite file, given its path or the name of a shipped suite or figure; SuiteError if there is none."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == ".toml":
        neighbor_files = sorted(map(str, path.parent.glob("[!.]*.toml")))
        hint = f"; {suggestion(name, neighbor_files, 8)}" if neighbor_files else ""
        raise SuiteError(name, "", f"there is no such file{hint}")
    shipped_paths = shipped_suites() | shipped_figures()
    if name in shipped_paths:
        return shipped_paths[name]
    file_name = f"{name}.toml"
    if Path(file_name).is_file():
        hint = f"did you mean {file_name!r}?"
    else:
        local_files = (path.name for path in Path().glob("[!.]*.toml"))
        hint = suggestion(name, [*shipped_suites(), *local_files, *shipped_figures()])
    raise SuiteError(
        name, "", f"there is neither a file nor a shipped suite of this name; {hint}"
    )


def require_name(path: Path) -> None:
    """Raise SuiteError unless the name of a suite can also be the name of its folder of results."""
    name = path.stem
    is_folder_name = re.fullmatch(r"[^.][^/\\]*", name) and printable(name) == name
    if not is_folder_name or name in RESERVED:
        reserved_text = ", ".join(map(repr, RESERVED))
        raise SuiteError(
            str(path),
            "",
            f"the folder of results is named after the suite, so its name must not start with a dot or be one of {reserved_text}",
        )


def suite_text(path: Path) -> str:
    """Read the text of a suite file; SuiteError if it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", f"cannot be read: {error}") from None


def parse_toml(file: str, text: str) -> JsonObject:
    """Parse the TOML text of a suite into tables and lists."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = f"this is not valid TOML: {error}"
        if file.endswith(".py"):
            reason = "this is a Python file, not a suite; load it with --plugins"
        if file.endswith(".json"):
            reason = "this is a file of results, not a suite; read it with smimbench show, verify or compare"
        raise SuiteError(file, "", reason) from None


# -- extends ------------------------------------------------------------------------------------------------------


def merge_with_base(
    path: Path, suite_document: JsonObject, extending_paths: tuple[Path, ...] = ()
) -> JsonObject:
    """Merge a parsed suite (``suite_document``) with the suite that it ``extends``, which may extend another one;
    ``extending_paths`` are the files that extend this one, to detect a cycle.

    ``extending_paths`` are the paths of the suites that extend this one, to detect cycles.
    """
    if "extends" not in suite_document:
        return suite_document
    file = str(path)
    base_name = suite_document.pop("extends")
    extending_paths = (*extending_paths, path.resolve())
    if not isinstance(base_name, str) or not base_name:
        raise SuiteError(
            file, "extends", f"must be the name or path of a suite, got {base_name!r}"
        )
    try:
        base_path = find_suite(
            str(path.parent / base_name) if base_name.endswith(".toml") else base_name
        )
        base_text = suite_text(base_path)
    except (OSError, SuiteError) as error:
        raise SuiteError(file, "extends", printable(error, 300)) from None
    if base_path.resolve() in extending_paths:
        raise SuiteError(
            file,
            "extends",
            f"{base_name!r} extends itself, directly or through other suites",
        )
    return _merge_documents(
        merge_with_base(
            base_path, parse_toml(str(base_path), base_text), extending_paths
        ),
        suite_document,
    )


def _merge_documents(base: JsonObject, extension: JsonObject) -> JsonObject:
    """Merge the tables of a suite (``extension``) into those of the suite that it extends (``base``).

    Keys of tables override, problems replace those of the base, algorithms are appended. The duration of the base no longer
    holds; with other problems neither do published values and stored optima, which belong to the problems of the base.
    """
    merged_document = {
        table_name: dict(table) if isinstance(table, dict) else table
        for table_name, table in base.items()
    }
    merged_document.get("suite", {}).pop("duration", None)
    if "problem" in extension or "problems" in extension:
        merged_document.pop("problem", None)
        merged_document.pop("problems", None)
        merged_document.get("run", {}).pop("reference", None)
        merged_document.pop("optimum", None)
        _drop_unused_axes(merged_document.get("grid", {}), extension)
    for table_name, table in extension.items():
        base_table = merged_document.get(table_name)
        if isinstance(base_table, dict) and isinstance(table, dict):
            merged_document[table_name] = base_table | table
        elif (
            table_name == "algorithms"
            and isinstance(base_table, list)
            and isinstance(table, list)
        ):
            merged_document[table_name] = base_table + table
        else:
            merged_document[table_name] = table
    return merged_document


def _drop_unused_axes(grid: JsonObject, extension: JsonObject) -> None:
    """Remove the axes of ``grid``, the extended suite's ``[grid]``, that every problem of the extension sets for itself."""
    problems = extension.get("problems", [extension.get("problem")])
    if not isinstance(problems, list) or not problems:
        return
    problem_grids = [
        problem.get("grid") if isinstance(problem, dict) else None
        for problem in problems
    ]
    for axis in Axes.model_fields:
        if all(
            isinstance(problem_grid, dict) and axis in problem_grid
            for problem_grid in problem_grids
        ):
            grid.pop(axis, None)


# -- --set --------------------------------------------------------------------------------------------------------


def apply_override(document: JsonObject, assignment: str, file: str) -> None:
    """Apply one ``--set`` assignment to a parsed suite (``document``): ``path.to.key=value`` sets a key,
    ``path.to.list+=value`` appends to a list.

    The value is TOML, a bare word a string. Entries of lists are found by position from 0 (``problems[0]`` or
    ``problems.0``), by label or by name (``algorithms.adam.steps``).

    Raises
    ------
    SuiteError
    """
    path, equals_sign, value_text = assignment.partition("=")
    keys = [key.strip() for key in re.sub(r"\[(\d+)\]", r".\1", path).split(".")]
    if not equals_sign or not all(keys):
        raise SuiteError(
            "--set", assignment, "a setting must look like problem.prior.rho=0.2"
        )
    value = _toml_value(value_text, path, assignment)
    _require_problem_table(document, keys[0], assignment)
    table = _table_at_path(document, keys[:-1], assignment, file)
    key = keys[-1]
    if isinstance(table, list):
        raise SuiteError(
            file,
            ".".join(keys),
            f"is a list of {len(table)} entries; give the name or the position of the entry to change",
        )
    if key.endswith("+"):
        _append_to_list(table, key.removesuffix("+").strip(), value, assignment, file)
    else:
        table[key] = value


def _toml_value(value_text: str, path: str, assignment: str) -> Any:
    """Parse the value of a ``--set`` assignment as TOML; a bare word is a string, so that a shell needs no nested quotes.
    ``path`` is the key.
    """
    try:
        return tomllib.loads(f"value = {value_text}")["value"]
    except (ValueError, RecursionError) as error:
        bare_word = value_text.strip()
        # What begins as a table, a list or a string was meant as one.
        if bare_word.startswith(("{", "[", '"', "'")):
            error_location = (
                ("--add", bare_word) if path == "algorithms+" else ("--set", assignment)
            )
            raise SuiteError(
                *error_location, f"the value is not valid TOML: {error_line(error)}"
            ) from None
        return bare_word


def _require_problem_table(
    document: Mapping[str, object], key: str, assignment: str
) -> None:
    """Raise SuiteError if the first ``key`` of a ``--set`` assignment is ``problem`` in a suite of several problems, or
    ``problems`` in a suite of one.
    """
    problems = document.get("problems")
    if key == "problem" and "problem" not in document and isinstance(problems, list):
        labels = [
            problem.get("label", position) if isinstance(problem, dict) else position
            for position, problem in enumerate(problems)
        ]
        choices = ", ".join(f"problems.{label}" for label in labels)
        raise SuiteError(
            f"--set {assignment}",
            key,
            f"this suite has several problems; choose from {choices}",
        )
    if key == "problems" and "problems" not in document and "problem" in document:
        raise SuiteError(
            f"--set {assignment}",
            key,
            "this suite has a single problem; write problem instead of problems, as in problem.prior.rho=0.2",
        )


def _table_at_path(
    document: JsonObject, keys: list[str], assignment: str, file: str
) -> Any:
    """Return the table or list of a parsed suite at a path of keys (those of a ``--set`` assignment), creating it if it does
    not exist.

    An item that is given by its name alone becomes a table.
    """
    table_or_list: Any = document
    for depth, key in enumerate(keys):
        key_path = ".".join(keys[: depth + 1])
        if isinstance(table_or_list, list):
            table_or_list = _table_in_list(
                table_or_list, key, f"--set {assignment}", key_path
            )
        else:
            if key in ("model", "inputs", "channel", "prior") and isinstance(
                table_or_list.get(key), str
            ):
                table_or_list[key] = {"name": table_or_list[key]}
            table_or_list = table_or_list.setdefault(key, {})
        if not isinstance(table_or_list, (dict, list)):
            raise SuiteError(
                file,
                key_path,
                f"is not a table, so --set {assignment} cannot set a key in it",
            )
    return table_or_list


def _table_in_list(tables: list[Any], key: str, file: str, key_path: str) -> Any:
    """Find the entry ``key`` of a list of tables, at ``key_path`` of the suite, by its name or label, or by its position
    from 0.
    """
    entry_names = []
    for table in tables:
        if isinstance(table, dict):
            if key in (table.get("label"), table.get("name")):
                return table
            entry_names.append(str(table.get("label", table.get("name"))))
    if key.isdigit() and int(key) < len(tables):
        return tables[int(key)]
    raise SuiteError(
        file, key_path, f"the list has no such entry; {suggestion(key, entry_names)}"
    )


def _append_to_list(
    table: JsonObject, key: str, value: object, assignment: str, file: str
) -> None:
    """Append a value of a ``--set`` assignment to the list ``key`` of a table of the suite; in a list of tables, a bare word
    becomes the name of a new table.
    """
    list_entries = table.setdefault(key, []) if key == "algorithms" else table.get(key)
    if not isinstance(list_entries, list):
        raise SuiteError(
            file,
            key,
            f"is not a list in this suite, so --set {assignment} cannot append to it",
        )
    holds_tables = key == "algorithms" or any(
        isinstance(list_entry, dict) for list_entry in list_entries
    )
    list_entries.append(
        {"name": value} if holds_tables and isinstance(value, str) else value
    )


# -- a problem given by options ------------------------------------------------------------------------------------


def parse_sample_ratios(text_or_numbers: object) -> list[float]:
    """Parse sample ratios: a number, several numbers, or a text such as ``0.1,0.2,0.5`` or ``0.1:0.3:20`` (equally spaced).

    Raises
    ------
    ValueError
        For anything else, or if a ratio is not positive and finite.
    """
    try:
        if not isinstance(text_or_numbers, str):
            ratios = np.asarray(text_or_numbers, dtype=float).ravel()
        elif ":" in text_or_numbers:
            ratios = _equally_spaced(*text_or_numbers.split(":"))
        else:
            ratios = np.array([float(number) for number in text_or_numbers.split(",")])
    except (TypeError, ValueError):
        raise ValueError(
            "sample ratios must be numbers, or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20 (2 to 10,000 of them), "
            f"got {text_or_numbers!r}"
        ) from None
    for ratio in ratios:
        if not 0 < ratio < math.inf:
            raise ValueError(f"a sample ratio must be > 0 and finite, got {ratio}")
    if not len(ratios):
        raise ValueError("give at least one sample ratio")
    return sorted(set(map(float, ratios)))


def _equally_spaced(low: str, high: str, count: str) -> Host:
    """Return ``count`` equally spaced sample ratios from ``low`` to ``high``; ValueError if an end or the count is invalid."""
    interval = float(low), float(high)
    if not (2 <= int(count) <= 10_000 and all(map(math.isfinite, interval))):
        raise ValueError
    # Rounded to 0.3 as a user types it, not a float next to it.
    return np.array(
        [float(f"{ratio:.14g}") for ratio in np.linspace(*interval, int(count))]
    )


def suite_of_items(
    items: Mapping[str, str | None],
    item_parameters: Parameters,
    alphas: Sequence[float],
) -> tuple[str, str, list[str]]:
    """Write the suite of one problem from the names of its items by kind, the parameters of these items and sample ratios
    ``alphas``: its name, its TOML text, and the parameters as ``--set`` assignments.

    Raises
    ------
    ValueError
        An item or the sample ratios are missing, or a parameter belongs to none of the items, or to several.
    """
    for kind in REQUIRED_KINDS:
        if items.get(kind) is None:
            raise ValueError(
                f"{kind} {missing(kind, item_parameters)}; without a suite, give {', '.join(REQUIRED_KINDS)} and alpha"
            )
    if not alphas:
        raise ValueError(
            f"alpha {missing('alpha', item_parameters)}; give sample ratios, such as 0.1 or 0.1:0.3:20"
        )
    given_kinds = (
        REQUIRED_KINDS if items.get("inputs") is None else (*REQUIRED_KINDS, "inputs")
    )
    item_names = {kind: str(items[kind]) for kind in given_kinds}
    accepted_parameters = {
        kind: _settable_parameter_names(kind, name, item_names["model"])
        for kind, name in item_names.items()
    }
    assignments = [
        _assignment(name, parameter_value, accepted_parameters)
        for name, parameter_value in item_parameters.items()
    ]
    problem_table: dict[str, Parameters] = {
        kind: {"name": name} for kind, name in item_names.items()
    }
    if "tokens" in accepted_parameters["model"]:
        problem_table["model"]["tokens"] = DEFAULT_TOKENS
    short_names = [name.rpartition(":")[2] for name in item_names.values()]
    suite_tables = {
        "suite": {"title": ", ".join(short_names)},
        "problem": problem_table,
        "grid": {"alpha": list(alphas), "dimension": [NOMINAL_DIMENSION]},
    }
    return "-".join(short_names), tomli_w.dumps(suite_tables), assignments


def _settable_parameter_names(kind: str, name: str, model: str) -> list[str]:
    """Names of the parameters of the item of this kind and name that a user may set, without those that the engine takes
    from the model.
    """
    engine_filled = ENGINE_FILLED.get(kind, ())
    parameter_names = signature_of(get_registry().get(kind, name, model).item)
    return [name for name in parameter_names if name not in engine_filled]


def _assignment(
    parameter_name: str,
    parameter_value: object,
    accepted_parameters: Mapping[str, Sequence[str]],
) -> str:
    """Return the ``--set`` assignment of a parameter to the only item that accepts it; ValueError if there is not exactly
    one. ``accepted_parameters`` are the names that each kind of item accepts.
    """
    value_text = (
        parameter_value
        if isinstance(parameter_value, str)
        else json.dumps(parameter_value, default=plain_value)
    )
    kinds = [
        item_kind
        for item_kind, parameter_names in accepted_parameters.items()
        if parameter_name in parameter_names
    ]
    if not kinds:
        valid_names = [
            *accepted_parameters,
            "alpha",
            *itertools.chain(*accepted_parameters.values()),
        ]
        raise ValueError(
            f"{parameter_name} is neither an option nor a parameter of this problem; {suggestion(parameter_name, valid_names)}"
        )
    assignment = f"problem.{kinds[0]}.{parameter_name}={value_text}"
    if len(kinds) > 1:
        raise ValueError(
            f"{' and '.join(kinds)} both have a parameter {parameter_name}; choose one, as with --set {assignment}"
        )
    return assignment
