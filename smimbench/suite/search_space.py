"""The space that ``smimbench tune`` searches, and its trials: settings of an algorithm's parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic

from smimbench.files import JsonObject
from smimbench.interfaces import ParameterError
from smimbench.registry.parameters import (
    build,
    explain_validation,
    require_known,
    signature_of,
)
from smimbench.suite.schema import Range, TuneTable, distinct

Key = tuple[str, ...]
"""Where a parameter is written: its name, after that of the table that it is in (``("of", "learning_rate")``)."""

Setting = dict[Key, Any]
"""Values of parameters in place of those that are written."""

LIST_OR_RANGE = "must be a list, or a range as { low = 0.01, high = 1.0, log = true }"


def product(axes: Mapping[Key, Sequence[Any]]) -> Iterator[Setting]:
    """All combinations of the values of these parameters."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def with_setting(parameters: JsonObject, setting: Setting) -> JsonObject:
    """Parameters with those of a setting in place of what is written."""
    changed = dict(parameters)
    for (name, *inner), value in setting.items():
        if not inner:
            changed[name] = value
            continue
        table = changed.get(name) or {}
        # An algorithm may be given by its name alone.
        table = {"name": table} if isinstance(table, str) else table
        changed[name] = with_setting(table, {tuple(inner): value})
    return changed


def tune_of(
    table: TuneTable,
    axes: Mapping[Key, Any],
    item: Any,
    parameters: JsonObject,
    budget: Callable[[Any], Any],
) -> JsonObject | None:
    """``trials`` and ``space`` of a search, the space by names of parameters (``of.learning_rate``), as JSON.

    Parameters that the algorithm itself has as lists, its ``axes``, are not tuned; None if nothing else is.

    Parameters
    ----------
    budget : callable
        From an algorithm to the steps and samples of its runs.

    Raises
    ------
    ParameterError
        If the algorithm cannot be made at an end of a range or at a value of a list, or would not be run for the same steps and
        samples.
    """
    require_known(
        table.model_extra or (), [*signature_of(item), *TuneTable.model_fields]
    )
    space = dict(_space(table.model_extra or {}))
    if not space:
        raise ParameterError(
            "",
            "must name a parameter to tune, such as learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    usual = budget(build(item, "algorithm", parameters))
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            changed = with_setting(parameters, {path: value})
            if budget(build(item, "algorithm", changed)) != usual:
                raise ParameterError(
                    ".".join(path),
                    "changes the steps or the samples of a run, which belong to the problem and are not tuned; remove it",
                )
    named = {
        ".".join(path): values.model_dump() if isinstance(values, Range) else values
        for path, values in space.items()
        if path not in axes
    }
    return {"trials": table.trials, "space": named} if named else None


def _space(table: JsonObject, *inside: str) -> Iterator[tuple[Key, list[Any] | Range]]:
    """Values, or the ends of a range, by parameter; ``inside`` names the tables that this one is in."""
    for name, value in table.items():
        path = (*inside, name)
        key = ".".join(path)
        if isinstance(value, list):
            try:
                yield path, list(distinct(value))
            except ValueError as error:
                raise ParameterError(key, str(error)) from None
        elif not isinstance(value, dict):
            raise ParameterError(key, f"{LIST_OR_RANGE}, got {value!r}")
        elif not value.keys() & Range.model_fields.keys():
            yield from _space(value, *path)
        else:
            require_known(value, Range.model_fields, *path)
            try:
                yield path, Range.model_validate(value)
            except pydantic.ValidationError as error:
                inner, message = explain_validation(error)
                raise ParameterError(f"{key}.{inner}".rstrip("."), message) from None


def trials_of(tune: JsonObject, written: JsonObject) -> list[Setting]:
    """The setting as written, and scrambled Sobol points of the space of ``tune_of``, the same for all algorithms.

    Where lists have no more combinations than there may be trials, all are tried. Two settings may be the same.

    Parameters
    ----------
    written : mapping
        The parameters of the algorithm as it is, which also say where a range is one of integers.
    """
    from smimbench.numerics.qmc import uniform_points

    space = {tuple(name.split(".")): values for name, values in tune["space"].items()}
    as_written: Setting = {}
    for path in space:
        value = _value(written, path)
        if value is not None:
            as_written[path] = value
    lists = {path: values for path, values in space.items() if isinstance(values, list)}
    if (
        len(lists) == len(space)
        and math.prod(map(len, lists.values())) <= tune["trials"]
    ):
        return [as_written, *product(lists)]
    sampled = [
        {
            path: _value_at(values, float(u), as_written.get(path))
            for u, (path, values) in zip(point, space.items())
        }
        for point in uniform_points(len(space), tune["trials"] - 1, "tuning")
    ]
    return [as_written, *sampled]


def _value(written: Any, path: Key) -> Any:
    """The value of a parameter as written, or None."""
    for name in path:
        written = written.get(name) if isinstance(written, dict) else None
    return written


def _value_at(values: list[Any] | JsonObject, u: float, written: Any) -> Any:
    """The value at a number between 0 and 1, to four digits; of a range of integers, an integer."""
    if isinstance(values, list):
        return values[int(u * len(values))]
    low, high = values["low"], values["high"]
    integers = (
        isinstance(low, int)
        and isinstance(high, int)
        and not isinstance(written, float)
    )
    # The largest integer has as large a share as the others.
    end = high + 1 if integers else high
    value = low * (end / low) ** u if values.get("log") else low + (end - low) * u
    return math.floor(value) if integers else min(max(float(f"{value:.4g}"), low), high)
