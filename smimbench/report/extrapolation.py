"""Extrapolation of rows from several dimensions to infinite dimension, where theory holds.

Theory is a statement about D -> infinity; at finite D a mean differs from it by its finite-size correction. A row at one D says
how far it is from theory, and the extrapolation whether that is a correction or a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from smimbench.files import JsonObject, canonical_json
from smimbench.numerics.size_laws import (
    SECOND,
    Extrapolation,
    extrapolate,
    pooled_errors,
)
from smimbench.numerics.statistics import normal_score
from smimbench.report.labels import grouped, summed_statuses
from smimbench.report.row import OfRow, Row

ONE_SAMPLE = 4.0
"""Allowance for matrices from few samples, in units of one of them: ``1 / n = 1 / (alpha d^2)`` is of second order, and a ratio
within a run, as the Nishimori ratio, is off by one to three times that. Doubled, limits from less than 30 samples are half as
sure."""

FEWEST = 3
"""Dimensions from which on rows are extrapolated: with two there is a line through both, and nothing tests it."""


@dataclass(frozen=True, slots=True)
class SizePoint:
    """The mean of a row at a dimension, what it is ``moved`` to at the common sample ratio, and the error of that."""

    dimension: int
    n: int
    mean: float
    moved: float
    error: float


@dataclass(frozen=True, slots=True)
class Limit(OfRow):
    """Extrapolation of rows that differ in their dimension.

    Attributes
    ----------
    row : Row
        Of the largest dimension, at the sample ratio asked for, with the distance of the limit from theory and the runs of all
        dimensions; the distance is None where there is no limit.
    fit : Extrapolation
        With the reason for its refusal where there is no limit.
    points : list of SizePoint
        What was fitted.
    """

    fit: Extrapolation
    points: list[SizePoint]

    @property
    def solved(self) -> Extrapolation | None:
        """The fit where there is a limit."""
        return None if self.fit.refusal else self.fit

    def document(self) -> JsonObject:
        """The limit as JSON has it."""
        row, fit, solved = self.row.document(), self.fit, self.solved
        return {
            **{key: row[key] for key in OF_ROW},
            "alpha": row["alpha"],
            "value": solved and solved.limit,
            "error": solved and solved.error,
            "error_dof": solved and solved.dof,
            "coefficient": solved and solved.coefficient,
            "coefficient_error": solved and solved.coefficient_error,
            "second": solved and solved.second,
            "difference": row["difference"],
            "z": row["z"],
            "own_z": row["own_z"],
            "refusal": fit.refusal,
            "chi2": fit.chi2,
            "dof": fit.free,
            "p_value": fit.p_value,
            "n": row["n"],
            "status_counts": row["status_counts"],
            "points": [asdict(point) for point in self.points],
        }


OF_ROW = ("problem", "algorithm", "backend", "metric", "component", "bayes", "identity", "component_word", "dimension_letter",
          "own_theory", "own_theory_error", "no_theory", "own_coefficient", "theory", "theory_error")  # fmt: skip
"""Keys that a limit has as its row."""


def extrapolated_rows(rows: Sequence[Row], target: float = 1e-3) -> list[Limit]:
    """The limit of every problem, algorithm, backend, nominal sample ratio, metric and component of three dimensions or more.

    Parameters
    ----------
    target : float
        Absolute error that counts as reached where theory says 0 (``run.target`` of the suite): there ``z`` takes it for an
        additional error. ``z`` is the difference in units of all errors together, as likely as a normal variable of that size.

    Notes
    -----
    The number of samples is rounded, so that the sample ratio really used depends a little on D. What is fitted are the values at
    the sample ratio of the largest D: the others are moved there by the ratio of theory at the two.
    """

    def line(row: Row) -> tuple[Any, ...]:
        problem: Any = row.identity.problem
        if "features" in problem.get("inputs", {}):  # one problem at every dimension
            problem = {**problem, "inputs": {**problem["inputs"], "features": None}}
        else:
            problem = [row.place.problem, problem]
        at, items = row.place, canonical_json([problem, row.identity.algorithm])
        return (
            at.algorithm,
            at.backend,
            at.nominal_alpha,
            row.metric,
            row.component,
            items,
        )

    groups = grouped(rows, line).values()
    limits = (
        _limit(sorted(members, key=lambda row: row.place.dimension), target)
        for members in groups
    )
    return [limit for limit in limits if limit is not None]


def _limit(members: Sequence[Row], target: float) -> Limit | None:
    runs = [
        (row, row.estimate, row.estimate.mean)
        for row in members
        if row.estimate.mean is not None
    ]
    if len(runs) < FEWEST:
        return None
    last = runs[-1][0]
    sizes, counts = (
        [row.place.dimension for row, *_ in runs],
        [estimate.n for _, estimate, _ in runs],
    )
    theory = last.theory.value
    factors = [
        theory / row.theory.value if row.theory.value and theory else 1.0
        for row, *_ in runs
    ]
    values = [mean * factor for (*_, mean), factor in zip(runs, factors)]
    errors = [
        math.nan if estimate.sem is None else estimate.sem * factor
        for (_, estimate, _), factor in zip(runs, factors)
    ]
    pooled, dof = pooled_errors(sizes, np.array(errors) * np.sqrt(counts), counts)
    points = [
        SizePoint(
            size, n, mean, value, max(float(error), 1e-9 * abs(value), 1e-9 * target)
        )
        for (*_, mean), size, n, value, error in zip(
            runs, sizes, counts, values, pooled
        )
        if math.isfinite(error)
    ]
    if len(points) < FEWEST:
        return None
    second = (
        max(SECOND, ONE_SAMPLE / last.place.alpha)
        if last.dimension_letter == "d"
        else SECOND
    )
    used, moved, stated = zip(
        *((point.dimension, point.moved, point.error) for point in points)
    )
    fit = extrapolate(used, moved, stated, dof, second)
    difference = z = None
    if theory is not None and not fit.refusal:
        difference, z = fit.limit - theory, _z(fit, last, target)
    row = replace(
        last,
        place=replace(last.place, alpha=last.place.nominal_alpha),
        estimate=replace(last.estimate, n=sum(counts)),
        prediction=replace(
            last.prediction, z=None if last.prediction.value is None else z
        ),
        theory=replace(last.theory, difference=difference, z=z),
        runs=replace(
            last.runs, status_counts=summed_statuses(members), still_moving=None
        ),
    )
    return Limit(row, fit, points)


def _z(fit: Extrapolation, last: Row, target: float) -> float | None:
    """Distance of a limit from theory in all errors: by Student's law, as the normal score that is as unlikely."""
    if last.theory.value is None:
        return None
    scale = math.hypot(
        fit.error, last.theory.error or 0.0, target if last.theory.value == 0 else 0.0
    )
    score = (fit.limit - last.theory.value) / scale
    return math.copysign(normal_score(abs(score), fit.dof), score)
