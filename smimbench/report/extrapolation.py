"""Extrapolation of rows from several dimensions to infinite dimension, where theory holds.

Theory is a statement about D -> infinity; at finite D a mean differs from it by its finite-size correction. A row at one D says
how far it is from theory, and the extrapolation whether that is a correction or a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace

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
        row, fit = self.row.document(), self.fit
        return {
            **{key: row[key] for key in OF_ROW},
            **{key: getattr(self.solved, name, None) for key, name in SOLVED.items()},
            **{key: row[key] for key in ("difference", "z", "own_z")},
            "refusal": fit.refusal,
            "chi2": fit.chi2,
            "dof": fit.free,
            "p_value": fit.p_value,
            "n": row["n"],
            "status_counts": row["status_counts"],
            "points": [asdict(point) for point in self.points],
        }


OF_ROW = ("problem", "algorithm", "backend", "metric", "component", "bayes", "identity", "component_word", "dimension_letter",
          "own_theory", "own_theory_error", "no_theory", "own_coefficient", "theory", "theory_error", "alpha")  # fmt: skip
"""Keys of its JSON that a limit has as its row."""

SOLVED = {"value": "limit", "error": "error", "error_dof": "dof", "coefficient": "coefficient",
          "coefficient_error": "coefficient_error", "second": "second"}  # fmt: skip
"""Keys of its JSON with fields of the fit, where there is a limit."""


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
    lines = grouped(rows, _line).values()
    limits = (
        _limit(sorted(line, key=lambda row: row.place.dimension), target)
        for line in lines
    )
    return [limit for limit in limits if limit is not None]


def _line(row: Row) -> tuple[object, ...]:
    """Key that rows share which differ only in their dimension."""
    at, problem = row.place, row.identity.problem
    inputs, label = problem.get("inputs", {}), at.problem
    if "features" in inputs:  # one problem at every dimension
        problem, label = {**problem, "inputs": {**inputs, "features": None}}, ""
    items = canonical_json([label, problem, row.identity.algorithm])
    line = at.algorithm, at.backend, at.nominal_alpha, row.metric, row.component
    return *line, items


def _limit(line: Sequence[Row], target: float) -> Limit | None:
    rows = [row for row in line if row.estimate.mean is not None]
    if len(rows) < FEWEST:
        return None
    largest = rows[-1]
    theory = largest.theory.value
    counts = [row.estimate.n for row in rows]
    sizes = [row.place.dimension for row in rows]
    factors = [
        theory / row.theory.value if row.theory.value and theory else 1.0
        for row in rows
    ]
    sems = [
        math.nan if row.estimate.sem is None else row.estimate.sem * factor
        for row, factor in zip(rows, factors)
    ]
    errors, dof = pooled_errors(sizes, np.array(sems) * np.sqrt(counts), counts)
    points = []
    for row, factor, error in zip(rows, factors, errors):
        mean = row.estimate.mean or 0.0
        moved = mean * factor
        if math.isfinite(error):
            error = max(float(error), 1e-9 * abs(moved), 1e-9 * target)
            point = SizePoint(row.place.dimension, row.estimate.n, mean, moved, error)
            points.append(point)
    if len(points) < FEWEST:
        return None
    second = SECOND
    if largest.dimension_letter == "d":
        second = max(SECOND, ONE_SAMPLE / largest.place.alpha)
    dimensions, _, _, moved_means, moved_errors = zip(*map(astuple, points))
    fit = extrapolate(dimensions, moved_means, moved_errors, dof, second)
    difference = z = None
    if theory is not None and not fit.refusal:
        difference = fit.limit - theory
        z = _z(fit, difference, largest.theory.error or 0.0, 0.0 if theory else target)
    row = replace(
        largest,
        place=replace(largest.place, alpha=largest.place.nominal_alpha),
        estimate=replace(largest.estimate, n=sum(counts)),
        prediction=replace(
            largest.prediction, z=None if largest.prediction.value is None else z
        ),
        theory=replace(largest.theory, difference=difference, z=z),
        runs=replace(
            largest.runs, status_counts=summed_statuses(line), still_moving=None
        ),
    )
    return Limit(row, fit, points)


def _z(fit: Extrapolation, difference: float, *errors: float) -> float:
    """A difference in units of all errors: by Student's law, as the normal score that is as unlikely."""
    score = difference / math.hypot(fit.error, *errors)
    return math.copysign(normal_score(abs(score), fit.dof), score)
