"""Extrapolation of means over runs from several dimensions D to the limit D -> infinity.

Theory describes D -> infinity; at finite D a mean differs from it by a finite-size correction. A single D shows the difference
from theory, the extrapolation shows whether that difference is a finite-size correction or an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
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
from smimbench.registry.registry import metric_label
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.row import Row, RowEntry, grouped, letter_of, summed_statuses
from smimbench.report.style import MARKERS, line_name
from smimbench.suite.cells import Suite

ONE_SAMPLE = 4.0
"""Allowance for the 1/n correction of matrix signals, in units of ``1 / n = 1 / (alpha d^2)``, which is of second order in 1/d.

Ratios within a run, like the Nishimori ratio, are off by 1/n to 3/n. Doubled, limits from fewer than 30 samples are half as
accurate."""

FEWEST = 3
"""Smallest number of dimensions for an extrapolation: a line through two of them would leave nothing to test the fit."""


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Mean over runs at one dimension, and its value ``moved`` to the common sample ratio with the standard error ``error``."""

    dimension: int
    n: int
    mean: float
    moved: float
    error: float


@dataclass(frozen=True, slots=True)
class Limit(RowEntry):
    """Extrapolation to infinite D of one quantity, from rows that differ only in their dimension.

    Attributes
    ----------
    row : Row
        Row of the largest dimension at the nominal sample ratio, with the difference between limit and theory (None if the fit
        was rejected) and the statuses of the runs of all dimensions.
    fit : Extrapolation
        Fit to the means; ``fit.refusal`` says why it was rejected.
    points : list of SizePoint
        The means that were fitted.
    """

    fit: Extrapolation
    points: list[SizePoint]

    @property
    def solved(self) -> Extrapolation | None:
        """The fit, or None if it was rejected."""
        return None if self.fit.refusal else self.fit

    def document(self) -> JsonObject:
        """Return the JSON document of the limit."""
        row, fit = self.row.document(), self.fit
        return {
            **{key: row[key] for key in ROW_KEYS},
            **{
                key: getattr(self.solved, name, None)
                for key, name in FIT_FIELDS.items()
            },
            **{key: row[key] for key in ("difference", "z", "own_z")},
            "refusal": fit.refusal,
            "chi2": fit.chi2,
            "dof": fit.free,
            "p_value": fit.p_value,
            "n": row["n"],
            "status_counts": row["status_counts"],
            "points": [asdict(point) for point in self.points],
        }


ROW_KEYS = ("problem", "algorithm", "backend", "metric", "component", "bayes", "identity", "component_word", "dimension_letter",
          "own_theory", "own_theory_error", "no_theory", "own_coefficient", "theory", "theory_error", "alpha")  # fmt: skip
"""Keys of the JSON document of a limit that are copied from its row."""

FIT_FIELDS = {"value": "limit", "error": "error", "error_dof": "dof", "coefficient": "coefficient",
          "coefficient_error": "coefficient_error", "second": "second"}  # fmt: skip
"""Keys of the JSON document of a limit and the fields of the fit that they hold."""


def extrapolated_rows(rows: Sequence[Row], target: float = 1e-3) -> list[Limit]:
    """Extrapolate every quantity that was measured at three or more different dimensions to infinite D.

    A quantity is a metric of a component, for one problem, algorithm, backend and nominal sample ratio.

    Parameters
    ----------
    target : float
        Error below which an optimal error of 0 counts as reached (``run.target`` of the suite). Where theory is 0, the target is
        added in quadrature to the errors in ``z``. ``z`` is the difference from theory over the combined error, converted from
        Student's law to the normal score of the same probability.

    Notes
    -----
    The number of samples is an integer, so the actual sample ratio depends slightly on D. Means at smaller D are moved to the
    sample ratio of the largest D: they are multiplied by the ratio of theory at the two sample ratios.
    """
    lines = grouped(rows, _line).values()
    limits = (
        _limit(sorted(line, key=lambda row: row.place.dimension), target)
        for line in lines
    )
    return [limit for limit in limits if limit is not None]


def _line(row: Row) -> tuple[object, ...]:
    """Return a key that is equal for rows that differ only in their dimension."""
    row_place, problem = row.place, row.identity.problem
    inputs, label = problem.get("inputs", {}), row_place.problem
    if "features" in inputs:  # one problem at every dimension
        problem, label = {**problem, "inputs": {**inputs, "features": None}}, ""
    items = canonical_json([label, problem, row.identity.algorithm])
    line = (
        row_place.algorithm,
        row_place.backend,
        row_place.nominal_alpha,
        row.metric,
        row.component,
    )
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
    """Return a difference over its combined error, converted from Student's law to the equally likely normal score."""
    score = difference / math.hypot(fit.error, *errors)
    return math.copysign(normal_score(abs(score), fit.dof), score)


# -- figures ---------------------------------------------------------------------------------------------------------------

VIRIDIS = (
    (0.27, 0.0, 0.33),
    (0.25, 0.28, 0.53),
    (0.15, 0.49, 0.56),
    (0.17, 0.69, 0.49),
    (0.61, 0.85, 0.24),
)
"""RGB colors of the viridis color map, from dark to light; colors in between are interpolated."""


Shade = tuple[float, ...]


def size_charts(suite: Suite, limits: Sequence[Limit]) -> list[Chart]:
    """Make one figure per problem, with a panel for each metric, algorithm and component.

    Color and marker stand for the sample ratio.
    """
    charts = []
    problems = grouped(limits, lambda limit: limit.place.problem)
    for number, (problem, problem_limits) in enumerate(problems.items(), 1):
        alphas = sorted({limit.place.alpha for limit in problem_limits})
        groups = grouped(
            problem_limits,
            lambda limit: (
                limit.metric,
                limit.place.algorithm,
                limit.place.backend,
                limit.component,
            ),
        )
        d = letter_of(problem_limits)
        note = (
            f"Means over runs, at the sample ratio of the largest {d}. Lines: fits with corrections of order 1/{d} and 1/{d}² "
            "(none if the fit was rejected). Diamonds: theory for the algorithm, or the Bayes optimum where the algorithm has no "
            "theory. Bars: standard errors, pooled over all {d} where the scatter follows a power law."
        )
        name = "finite-size" if len(problems) == 1 else f"finite-size-{number}"
        panels = [_size_panel(group, alphas) for group in groups.values()]
        charts.append(Chart(name, f"{suite.title}: {problem}", panels, note))
    return charts


def _size_panel(limits: Sequence[Limit], alphas: Sequence[float]) -> Panel:
    series: list[Series] = []
    for limit in sorted(limits, key=lambda limit: limit.place.alpha):
        k = alphas.index(limit.place.alpha)
        # Not the colors of algorithms: light stands for many samples, in gray, too.
        position = (len(VIRIDIS) - 1) * k / max(1, len(alphas) - 1)
        indices = range(len(VIRIDIS))
        shade = tuple(
            float(np.interp(position, indices, channel)) for channel in zip(*VIRIDIS)
        )
        series += _limit_series(limit, shade, MARKERS[k % len(MARKERS)])
    example, d = limits[0], letter_of(limits)
    component = None if example.component is None else example.component - 1
    backend, name = example.place.backend, example.place.algorithm
    if backend != "numpy":
        name += f"@{backend}"
    head = line_name(name, example.component_word, component)
    label = metric_label(example.metric)
    return Panel(
        head,
        f"1 / {d}",
        label,
        series,
        example.place.problem,
        "inverse",
        from_zero=False,
    )


def _limit_series(limit: Limit, shade: Shade, marker: str) -> list[Series]:
    """Make the marks and lines of one sample ratio: means over runs, fit, extrapolated limit and theory."""
    about = {
        "problem": limit.place.problem,
        "metric": limit.metric,
        "algorithm": limit.place.algorithm,
        "backend": limit.place.backend,
        "component": limit.component,
        "alpha": limit.place.alpha,
    }

    def marks(
        kind: str,
        style: dict[str, object],
        columns: dict[str, Any],
        name: str = "",
        **flags: object,
    ) -> Series:
        columns["inverse"] = 1 / np.asarray(columns["dimension"], dtype=float)
        about_marks = {**about, "what": kind}
        return Series(name, columns | flags, about_marks, "marks", shade, style)

    sizes = [point.dimension for point in limit.points]
    means = {
        "dimension": sizes,
        "value": [point.moved for point in limit.points],
        "error": [point.error for point in limit.points],
    }
    counts = [point.n for point in limit.points]
    label = f"α = {limit.place.alpha:.4g}"
    series = [marks("runs", {"marker": marker, "s": 16}, means, label, n=counts)]
    fit, theory = limit.solved, limit.theory
    if fit is not None:
        inverse = np.linspace(0, 1 / min(sizes), 100)
        fitted = fit.limit + inverse * (fit.coefficient + fit.second * inverse)
        line = {"inverse": inverse, "value": fitted}
        series.append(Series("", line, None, "line", shade, {"lw": 1.0}))
        ends = {"dimension": ["inf"], "value": [fit.limit], "error": [fit.error]}
        series.append(marks("fit", {"marker": "_", "s": 30}, ends))
    if theory.value is not None:
        ends = {"dimension": ["inf"], "value": [theory.value], "error": [theory.error]}
        diamond = {"marker": "D", "s": 30, "clip_on": False}
        series.append(marks("theory", diamond, ends, hollow=[True]))
    return series
