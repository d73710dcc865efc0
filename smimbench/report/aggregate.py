"""Statistics over the runs of one row: means, standard errors, change of a mean, distance from theory, ratio to Bayes,
means of diagnostics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.run.readings import READINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Change",
    "against_theory",
    "change_between",
    "half_interval",
    "mean_and_error",
    "mean_diagnostics",
    "mean_of",
    "ratio_to_bayes",
    "values_of",
]

ZERO = 1e-3
"""A Bayes-optimal error below this part of the target counts as 0: no ratio is formed. Doubled, a few more ratios are blank."""


def values_of(records: Sequence[dict[str, Any]], metric: str, component: int) -> dict[str, float]:
    """Finite values of a metric, component from 0, by instance (root seed and replicate), over the records that have one."""
    found = {}
    for i, record in enumerate(records):
        if len(record["metrics"].get(metric, ())) > component:
            cell = record.get("cell") or {}
            value = record["metrics"][metric][component]
            if value is not None and math.isfinite(value):
                found[f"{cell.get('seed', 'elsewhere')}/{cell.get('replicate', i)}"] = float(value)
    return found


class Change(NamedTuple):
    """A difference of two means and half of its interval; ``paired`` where both are of the same instances."""

    value: float
    half: float
    z: float
    paired: bool


def change_between(before: Mapping[str, float], after: Mapping[str, float], level: float) -> Change | None:
    """How much a mean changed, with its interval by Student's t.

    Runs on the same instances (at least two) are compared pair by pair, others by Welch's test. None where one run is all
    there is.

    Parameters
    ----------
    before, after : mapping
        Values by instance; or rows with ``mean``, ``sem`` and ``n``, where no more is known.
    """
    if "sem" in before or "sem" in after:
        return _of_means(before, after, level)
    common = [key for key in before if key in after]
    if len(common) > 1:
        differences = np.array([after[key] - before[key] for key in common])
        value, scale = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(common))
        return Change(value, *_student_interval(value, scale, len(common) - 1, level), True)
    sides = [np.array(list(side.values())) for side in (before, after)]
    if min(map(len, sides)) < 2:
        return None
    value = float(sides[1].mean() - sides[0].mean())
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    spread = sum(part * part / (len(side) - 1) for part, side in zip(parts, sides))
    freedom = sum(parts) ** 2 / spread if spread > 0 else math.inf
    return Change(value, *_student_interval(value, math.sqrt(sum(parts)), freedom, level), False)


def _of_means(before: Mapping[str, Any], after: Mapping[str, Any], level: float) -> Change | None:
    if before.get("sem") is None or after.get("sem") is None:
        return None
    value, scale = after["mean"] - before["mean"], math.hypot(before["sem"], after["sem"])
    freedom = min(before.get("n", math.inf), after.get("n", math.inf)) - 1
    return Change(value, *_student_interval(value, scale, freedom, level), False)


def _student_interval(value: float, scale: float, freedom: float, level: float) -> tuple[float, float]:
    """Half of the interval, and the difference in standard errors."""
    from scipy.special import stdtrit

    if scale == 0:
        return 0.0, math.copysign(math.inf, value) if value else 0.0
    return float(stdtrit(min(freedom, 1e9), (1 + level) / 2)) * scale, value / scale


def mean_and_error(values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    """Mean, and its standard error where there are two values."""
    n = len(values)
    return {
        "mean": float(values.mean()) if n else None,
        "sem": float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None,
    }


def against_theory(values: np.ndarray[Any, Any], expected: float | None, error: float | None) -> dict[str, Any]:
    """Mean, standard error, theory and its error; ``z`` is their difference in units of both errors together."""
    found = mean_and_error(values)
    mean, sem = found["mean"], found["sem"]
    difference = mean - expected if mean is not None and expected is not None else None
    z = None
    if difference is not None and sem is not None:
        scale = math.hypot(sem, error or 0.0)
        z = difference / scale if scale > 0 and expected != 0 else None
    return {**found, "theory": expected, "theory_error": error, "difference": difference, "z": z}


def half_interval(sem: float | None, n: int, error: float | None, level: float = 0.99) -> float:
    """How far a mean over n runs may be from theory of this error, by Student's t; infinite for a single run."""
    from scipy.special import stdtrit

    if sem is None or n < 2:
        return math.inf
    return float(stdtrit(n - 1, (1 + level) / 2)) * math.hypot(sem, error or 0.0)


def ratio_to_bayes(values: np.ndarray[Any, Any], bayes: float | None, target: float) -> float | None:
    """Ratio of the mean to the Bayes-optimal error; blank where theory says 0."""
    if not len(values) or bayes is None or bayes <= target * ZERO:
        return None
    return float(values.mean() / bayes)


def mean_diagnostics(records: Sequence[dict[str, Any]], theory: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Further numbers that runs report (see ``Algorithm.findings``), one entry for each number, with its theory."""
    found: dict[str, list[dict[str, Any]]] = {}
    reported = [r.get("final") or {} for r in records]
    names = {
        name
        for final in reported
        for name, values in final.items()
        if isinstance(values, list) and name not in {*READINGS, "spectrum"}
    }
    for name in sorted(names):
        lists = [final[name] for final in reported if isinstance(final.get(name), list)]
        expected = theory.get(name) or []
        expected = expected if isinstance(expected, list) else []
        found[name] = []
        for i in range(max(map(len, lists))):
            values = np.array([own[i] for own in lists if i < len(own) and own[i] is not None], dtype=float)
            found[name].append(
                {
                    **mean_and_error(values),
                    "found": len(values),
                    "runs": len(lists),
                    "theory": expected[i] if i < len(expected) else None,
                }
            )
    return found


def mean_of(values: Sequence[float]) -> float | None:
    """Mean; None of nothing."""
    return float(np.mean(values)) if values else None
