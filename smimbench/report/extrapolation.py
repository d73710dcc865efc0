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

from smimbench.files import JsonObject, canonical_json, pick
from smimbench.numerics.size_laws import (
    SECOND,
    Extrapolation,
    extrapolate,
    pooled_errors,
)
from smimbench.numerics.statistics import normal_score
from smimbench.registry.registry import metric_label
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.row import (
    Number,
    Row,
    RowEntry,
    common_dimension_letter,
    grouped,
    summed_statuses,
)
from smimbench.report.style import MARKERS
from smimbench.suite.cells import Suite

ONE_SAMPLE = 4.0
"""Allowance for the 1/n correction of matrix signals, in units of ``1 / n = 1 / (alpha d^2)``, which is of second order in 1/d.

Ratios within a run, like the Nishimori ratio, are off by 1/n to 3/n. Doubled, limits from fewer than 30 samples are half as
accurate."""

FEWEST = 3
"""Smallest number of dimensions for an extrapolation: a line through two of them would leave nothing to test the fit."""


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Mean over ``n`` runs at one dimension. ``moved`` is this mean rescaled to the sample ratio that all points share, by
    theory's dependence on it; ``error`` is the standard error of ``moved``.
    """

    dimension: int
    n: int
    mean: float
    moved: float
    error: float


@dataclass(frozen=True, slots=True)
class Limit(RowEntry):
    """Extrapolation to infinite D of one quantity (metric and component of an algorithm), from rows of results that differ only
    in their dimension: the ``fit``, its ``points`` (means over runs), and ``row``, a row of results that holds the limit.

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
    def accepted_fit(self) -> Extrapolation | None:
        """The fit, or None if it was rejected."""
        return None if self.fit.refusal else self.fit

    @property
    def z(self) -> Number:
        """Difference of the extrapolated limit from theory, in standard errors; None if the fit was rejected or there is no
        theory.
        """
        return self.row.z_from_limit

    @property
    def z_at_size(self) -> Number:
        """The same as ``z``: theory at infinite D needs no finite-size correction."""
        return self.z

    def document(self) -> JsonObject:
        """Return the JSON document of the extrapolation."""
        row, fit = self.row.document(), self.fit
        return {
            **pick(row, ROW_KEYS),
            **{
                key: getattr(self.accepted_fit, name, None)
                for key, name in FIT_FIELDS.items()
            },
            **pick(row, ("difference", "z", "own_z")),
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
    """Extrapolate every quantity that was measured at three or more different dimensions to infinite D; errors below
    ``target`` are not resolved.

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
    rows_by_series = grouped(rows, _series_key).values()
    limits = (
        _extrapolated(sorted(series_rows, key=lambda row: row.place.dimension), target)
        for series_rows in rows_by_series
    )
    return [limit for limit in limits if limit is not None]


def _series_key(row: Row) -> tuple[object, ...]:
    """Return the key of a row of results that is equal for rows that differ only in their dimension."""
    row_place, problem = row.place, row.identity.problem
    input_spec = problem.get("inputs", {})
    problem_label = row_place.problem
    if "features" in input_spec:  # one problem at every dimension
        problem = {**problem, "inputs": {**input_spec, "features": None}}
        problem_label = ""
    setup = canonical_json([problem_label, problem, row.identity.algorithm])
    grid_point = (
        row_place.algorithm,
        row_place.backend,
        row_place.nominal_alpha,
        row.metric,
        row.component,
    )
    return *grid_point, setup


def _extrapolated(series_rows: Sequence[Row], target: float) -> Limit | None:
    """Extrapolate one quantity to infinite D by ``limit + b / D + c / D^2`` from its rows at increasing dimension; None with
    fewer than three of them. ``theory_factors`` rescale the means over runs to the sample ratio of the largest dimension,
    ``largest_relative_c`` bounds c relative to the means, ``difference`` is the limit minus theory and ``z`` its normal score;
    errors below ``target`` are not resolved.
    """
    rows = [row for row in series_rows if row.estimate.mean is not None]
    if len(rows) < FEWEST:
        return None
    largest_row = rows[-1]
    theory_value = largest_row.theory.value
    run_counts = [row.estimate.n for row in rows]
    sizes = [row.place.dimension for row in rows]
    theory_factors = [
        theory_value / row.theory.value if row.theory.value and theory_value else 1.0
        for row in rows
    ]
    sems = [
        math.nan if row.estimate.sem is None else row.estimate.sem * theory_factor
        for row, theory_factor in zip(rows, theory_factors)
    ]
    errors, dof = pooled_errors(sizes, np.array(sems) * np.sqrt(run_counts), run_counts)
    points = []
    for row, theory_factor, error in zip(rows, theory_factors, errors):
        mean = row.estimate.mean or 0.0
        shifted_mean = mean * theory_factor
        if math.isfinite(error):
            error = max(float(error), 1e-9 * abs(shifted_mean), 1e-9 * target)
            point = SizePoint(
                row.place.dimension, row.estimate.n, mean, shifted_mean, error
            )
            points.append(point)
    if len(points) < FEWEST:
        return None
    largest_relative_c = SECOND
    if largest_row.dimension_letter == "d":
        largest_relative_c = max(SECOND, ONE_SAMPLE / largest_row.place.alpha)
    dimensions, _, _, shifted_means, shifted_errors = zip(*map(astuple, points))
    fit = extrapolate(
        dimensions, shifted_means, shifted_errors, dof, largest_relative_c
    )
    difference = z = None
    if theory_value is not None and not fit.refusal:
        difference = fit.limit - theory_value
        z = _normal_score(
            fit,
            difference,
            largest_row.theory.error or 0.0,
            0.0 if theory_value else target,
        )
    row = replace(
        largest_row,
        place=replace(largest_row.place, alpha=largest_row.place.nominal_alpha),
        estimate=replace(largest_row.estimate, n=sum(run_counts)),
        prediction=replace(
            largest_row.prediction,
            z=None if largest_row.prediction.value is None else z,
        ),
        theory=replace(largest_row.theory, difference=difference, z=z),
        runs=replace(
            largest_row.runs,
            status_counts=summed_statuses(series_rows),
            still_moving=None,
        ),
    )
    return Limit(row, fit, points)


def _normal_score(fit: Extrapolation, difference: float, *errors: float) -> float:
    """Return the difference of an extrapolated limit from theory over its error, that of the fit combined with the further
    ``errors``, converted from Student's law to the normal score of the same probability.
    """
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


Color = tuple[float, ...]
"""Red, green and blue, from 0 to 1."""


def size_charts(suite: Suite, limits: Sequence[Limit]) -> list[Chart]:
    """Make figures of means over runs against 1/D from extrapolations (``limits``), one figure per problem, with a panel for each
    metric, algorithm and component.

    Color and marker stand for the sample ratio.
    """
    charts = []
    limits_by_problem = grouped(limits, lambda limit: limit.place.problem)
    for number, (problem, problem_limits) in enumerate(limits_by_problem.items(), 1):
        alphas = sorted({limit.place.alpha for limit in problem_limits})
        limits_by_curve = grouped(
            problem_limits,
            lambda limit: (
                limit.metric,
                limit.place.algorithm,
                limit.place.backend,
                limit.component,
            ),
        )
        letter = common_dimension_letter(problem_limits)
        note = (
            f"Means over runs, at the sample ratio of the largest {letter}. Lines: fits with corrections of order 1/{letter} and "
            f"1/{letter}² (none if the fit was rejected). Diamonds: theory for the algorithm, or the Bayes optimum where the "
            f"algorithm has no theory. Bars: standard errors, pooled over all {letter} where the scatter follows a power law."
        )
        panels = [_size_panel(curve, alphas) for curve in limits_by_curve.values()]
        name = "finite-size" if len(limits_by_problem) == 1 else f"finite-size-{number}"
        charts.append(Chart(name, f"{suite.title}: {problem}", panels, note))
    return charts


def _size_panel(limits: Sequence[Limit], alphas: Sequence[float]) -> Panel:
    """Make the panel of one metric, algorithm and component: its extrapolations (``limits``) at all sample ratios, a line for
    each. ``alphas`` are the sample ratios of the whole figure, which set the colors.
    """
    series: list[Series] = []
    for limit in sorted(limits, key=lambda limit: limit.place.alpha):
        index = alphas.index(limit.place.alpha)
        # Not the colors of algorithms: light stands for many samples, in gray, too.
        position = (len(VIRIDIS) - 1) * index / max(1, len(alphas) - 1)
        stops = range(len(VIRIDIS))
        color = tuple(float(np.interp(position, stops, rgb)) for rgb in zip(*VIRIDIS))
        series += _limit_series(limit, color, MARKERS[index % len(MARKERS)])
    row = limits[0].row
    title = row.place.algorithm
    if row.place.backend != "numpy":
        title += f"@{row.place.backend}"
    if row.component is not None:
        title += f", {row.component_word} {row.component}"
    return Panel(
        title,
        f"1 / {common_dimension_letter(limits)}",
        metric_label(row.metric),
        series,
        row.place.problem,
        "inverse",
        starts_at_zero=False,
    )


def _limit_series(limit: Limit, color: Color, marker: str) -> list[Series]:
    """Make the marks and lines of one extrapolation (``limit``, at one sample ratio) against 1/D: means over runs, the fitted
    curve, its value at infinite D, and the theoretical value there.
    """
    place, fit, theory = limit.row.place, limit.accepted_fit, limit.row.theory
    about = {
        "problem": place.problem,
        "metric": limit.metric,
        "algorithm": place.algorithm,
        "backend": place.backend,
        "component": limit.component,
        "alpha": place.alpha,
    }
    columns: dict[str, Any] = {
        "dimension": [point.dimension for point in limit.points],
        "value": [point.moved for point in limit.points],
        "error": [point.error for point in limit.points],
        "inverse": [1 / point.dimension for point in limit.points],
        "n": [point.n for point in limit.points],
    }
    name = f"α = {place.alpha:.4g}"
    style: dict[str, object] = {"marker": marker, "s": 16}
    series = [Series(name, columns, {**about, "what": "runs"}, "marks", color, style)]
    at_infinity = {"dimension": ["inf"], "inverse": [0.0]}
    if fit is not None:
        inverse = np.linspace(0, max(columns["inverse"]), 100)
        fitted = fit.limit + inverse * (fit.coefficient + fit.second * inverse)
        line = {"inverse": inverse, "value": fitted}
        series.append(Series("", line, None, "line", color, {"lw": 1.0}))
        columns = {**at_infinity, "value": [fit.limit], "error": [fit.error]}
        style = {"marker": "_", "s": 30}
        series.append(
            Series("", columns, {**about, "what": "fit"}, "marks", color, style)
        )
    if theory.value is not None:
        columns = {**at_infinity, "value": [theory.value], "error": [theory.error]}
        columns["hollow"] = [True]
        style = {"marker": "D", "s": 30, "clip_on": False}
        series.append(
            Series("", columns, {**about, "what": "theory"}, "marks", color, style)
        )
    return series
