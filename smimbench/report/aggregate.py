"""Statistics over the runs of one row: means, standard errors, distance from theory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import STORED_NAMES
from smimbench.run.readings import READINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["against_theory", "diagnostics", "mean_and_error", "mean_of", "ratio_to_bayes", "values_of"]

ZERO = 1e-3
"""A Bayes-optimal error below this part of the target counts as 0: no ratio is formed. Doubled, a few more ratios are blank."""


def values_of(records: Sequence[dict[str, Any]], metric: str, component: int) -> np.ndarray[Any, Any]:
    """Finite values (n,) of a metric, component from 0, over the records that have one."""
    found = [r["metrics"][metric][component] for r in records if metric in r["metrics"]]
    return np.array([v for v in found if v is not None and math.isfinite(v)], dtype=float)


def mean_and_error(values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    """Mean, and its standard error where there are two values."""
    n = len(values)
    return {
        "mean": float(values.mean()) if n else None,
        "sem": float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None,
    }


def against_theory(values: np.ndarray[Any, Any], expected: float | None, error: float | None) -> dict[str, Any]:
    """Mean and standard error beside theory and its error; ``z`` is their difference in units of both errors together."""
    found = mean_and_error(values)
    mean, sem = found["mean"], found["sem"]
    difference = mean - expected if mean is not None and expected is not None else None
    z = None
    if difference is not None and sem is not None:
        scale = math.hypot(sem, error or 0.0)
        z = difference / scale if scale > 0 and expected != 0 else None
    return {**found, "theory": expected, "theory_error": error, "difference": difference, "z": z}


def ratio_to_bayes(values: np.ndarray[Any, Any], bayes: float | None, target: float) -> float | None:
    """Ratio of the mean to the Bayes-optimal error; blank where theory says 0."""
    if not len(values) or bayes is None or bayes <= target * ZERO:
        return None
    return float(values.mean() / bayes)


def diagnostics(records: Sequence[dict[str, Any]], theory: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What runs report beside their estimate (see ``Algorithm.findings``), one entry for each number, with its theory."""
    found: dict[str, list[dict[str, Any]]] = {}
    reported = [r.get("final") or {} for r in records]
    names = {
        name
        for final in reported
        for name, values in final.items()
        if isinstance(values, list) and name not in {*READINGS, *STORED_NAMES.values()}
    }
    for name in sorted(names):
        lists = [final[name] for final in reported if name in final]
        expected = theory.get(name) or []
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
