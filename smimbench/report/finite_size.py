"""Finite-size figures: means over runs against 1/D, with the limit extrapolated to infinite D and theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smimbench.registry.registry import metric_label
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.extrapolation import Limit
from smimbench.report.labels import grouped, letter_of
from smimbench.report.style import MARKERS, line_name
from smimbench.suite.cells import Suite

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
