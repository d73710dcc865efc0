"""Trials of ``smimbench tune``: the setting as written, and points of the space that it searches."""

from __future__ import annotations

import math
from typing import Any

from smimbench.files import JsonObject
from smimbench.suite.algorithms import Key, Setting, product


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
