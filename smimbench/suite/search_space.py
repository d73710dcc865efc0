"""The space that ``smimbench tune`` searches, and the settings that it tries."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from smimbench.suite.schema import Range

Key = tuple[str, ...]
"""Where a parameter is written: its name, after that of the table that it is in (``("of", "learning_rate")``)."""

Setting = dict[Key, Any]
"""Values of parameters in place of those that are written."""


@dataclass(frozen=True)
class SearchSpace:
    """What is searched: for each parameter a list of values, or the ends of a range, and how many settings are tried."""

    trials: int
    parameters: dict[Key, list[Any] | Range]

    def document(self) -> dict[str, object]:
        """As JSON, with the parameters by names such as ``of.learning_rate``."""
        space = {
            ".".join(path): values.model_dump() if isinstance(values, Range) else values
            for path, values in self.parameters.items()
        }
        return {"trials": self.trials, "space": space}

    def settings(self, written: dict[str, Any]) -> list[Setting]:
        """The setting as written, and scrambled Sobol points of the space, the same for all algorithms.

        Where lists have no more combinations than there may be trials, all are tried. Two settings may be the same.

        Parameters
        ----------
        written : dict
            The parameters of the algorithm as it is, which also say where a range is one of integers.
        """
        from smimbench.numerics.qmc import uniform_points

        as_written: Setting = {}
        for path in self.parameters:
            value = _value_of(written, path)
            if value is not None:
                as_written[path] = value
        lists = [v for v in self.parameters.values() if isinstance(v, list)]
        all_lists = len(lists) == len(self.parameters)
        if all_lists and math.prod(map(len, lists)) <= self.trials:
            combinations = itertools.product(*lists)
            return [as_written, *(dict(zip(self.parameters, c)) for c in combinations)]
        settings = [as_written]
        points = uniform_points(len(self.parameters), self.trials - 1, "tuning")
        for point in points:
            setting: Setting = {}
            for u, (path, values) in zip(point, self.parameters.items()):
                setting[path] = _value_at(values, float(u), as_written.get(path))
            settings.append(setting)
        return settings


def _value_of(written: object, path: Key) -> object:
    """The value of a parameter as written, or None."""
    for name in path:
        written = written.get(name) if isinstance(written, dict) else None
    return written


def _value_at(values: list[Any] | Range, u: float, written: object) -> object:
    """The value at a number between 0 and 1, to four digits; of a range of integers, an integer."""
    if isinstance(values, list):
        return values[int(u * len(values))]
    low, high = values.low, values.high
    integers = (
        isinstance(low, int)
        and isinstance(high, int)
        and not isinstance(written, float)
    )
    # The largest integer has as large a share as the others.
    end = high + 1 if integers else high
    value = low * (end / low) ** u if values.log else low + (end - low) * u
    return math.floor(value) if integers else min(max(float(f"{value:.4g}"), low), high)
