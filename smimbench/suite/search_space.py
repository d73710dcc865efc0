"""The parameter space that ``smimbench tune`` searches, and the settings that it tries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smimbench.suite.schema import Range

Key = tuple[str, ...]
"""Where a parameter is written: its name, after that of the table that it is in (``("of", "learning_rate")``)."""

Setting = dict[Key, Any]
"""Values of parameters in place of those that are written."""


@dataclass(frozen=True)
class SearchSpace:
    """Search space of a tuning: a list of values or a range for each parameter, and the number of settings to try."""

    trials: int
    parameters: dict[Key, list[object] | Range]

    def document(self) -> dict[str, object]:
        """Return the search space as JSON, with parameters under dotted names such as ``of.learning_rate``."""
        space = {
            ".".join(path): values.model_dump() if isinstance(values, Range) else values
            for path, values in self.parameters.items()
        }
        return {"trials": self.trials, "space": space}

    def settings(self, written: Mapping[str, object]) -> list[Setting]:
        """Return the settings to try: the one in the suite, and scrambled Sobol points of the space.

        The points are the same for all algorithms. If every parameter has a list and there are no more combinations than trials,
        all combinations are tried instead. Two settings may be equal.

        Parameters
        ----------
        written : dict
            The parameters of the algorithm in the suite; a float among them makes its range one of floats.
        """
        from smimbench.numerics.qmc import uniform_points

        as_written: Setting = {}
        for path in self.parameters:
            value = _suite_value(written, path)
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
                setting[path] = _value_at_quantile(
                    values, float(u), as_written.get(path)
                )
            settings.append(setting)
        return settings


def _suite_value(written: object, path: Key) -> object:
    """Return the value of a parameter in the suite, or None if it is not set."""
    for name in path:
        written = written.get(name) if isinstance(written, dict) else None
    return written


def _value_at_quantile(
    values: list[object] | Range, u: float, written: object
) -> object:
    """Map u in [0, 1) to a value of a list or range: to four digits, or to an integer in a range of integers."""
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
