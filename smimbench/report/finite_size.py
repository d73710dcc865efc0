"""Figures of mean values against the dimension, with their extrapolated limit and theory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.registry.metrics import metric_label
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
"""Red, green and blue of a map of colors from dark to light; between them, colors are interpolated."""


def size_charts(suite: Suite, entries: Sequence[Limit]) -> list[Chart]:
    """One figure per problem, a panel for every metric, algorithm and component; color and marker stand for a sample ratio."""
    charts = []
    problems = grouped(entries, lambda entry: entry.place.problem)
    for number, (problem, members) in enumerate(problems.items(), 1):
        alphas = sorted({entry.place.alpha for entry in members})
        groups = grouped(
            members,
            lambda e: (e.metric, e.place.algorithm, e.place.backend, e.component),
        )
        d = letter_of(members)
        note = (
            f"Means over runs, at the sample ratio of the largest {d}. Lines: fitted corrections of order 1/{d} and 1/{d}², none "
            "where there is no limit. Diamonds: predicted, or optimal where there is no prediction. Bars: standard errors, from "
            "the scatter of all sizes together where one power describes it."
        )
        name = "finite-size" if len(problems) == 1 else f"finite-size-{number}"
        panels = [_size_panel(own, alphas) for own in groups.values()]
        charts.append(Chart(name, f"{suite.title}: {problem}", panels, note))
    return charts


def _size_panel(entries: Sequence[Limit], alphas: Sequence[float]) -> Panel:
    first, d = entries[0], letter_of(entries)
    series: list[Series] = []
    for entry in sorted(entries, key=lambda e: e.place.alpha):
        k = alphas.index(entry.place.alpha)
        # Not the colors of algorithms: light stands for many samples, in gray, too.
        place = (len(VIRIDIS) - 1) * k / max(1, len(alphas) - 1)
        shade = tuple(
            np.interp(place, range(len(VIRIDIS)), channel) for channel in zip(*VIRIDIS)
        )
        about = {
            "problem": entry.place.problem,
            "metric": entry.metric,
            "algorithm": entry.place.algorithm,
            "backend": entry.place.backend,
            "component": entry.component,
            "alpha": entry.place.alpha,
        }
        sizes = [point.dimension for point in entry.points]
        counts = [point.n for point in entry.points]
        means = [point.moved for point in entry.points]
        errors = [point.error for point in entry.points]

        marks = partial(_marks, about, shade)
        symbol = {"marker": MARKERS[k % len(MARKERS)], "s": 16}
        series.append(
            marks(
                f"α = {entry.place.alpha:.4g}",
                "runs",
                sizes,
                means,
                errors,
                symbol,
                n=counts,
            )
        )
        if (fit := entry.solved) is not None:
            line = np.linspace(0, 1 / min(sizes), 100)
            fitted = fit.limit + line * (fit.coefficient + fit.second * line)
            series.append(
                Series(
                    "",
                    {"inverse": line, "value": fitted},
                    None,
                    "line",
                    shade,
                    {"lw": 1.0},
                )
            )
            series.append(
                marks(
                    "",
                    "fit",
                    ["inf"],
                    [fit.limit],
                    [fit.error],
                    {"marker": "_", "s": 30},
                )
            )
        if entry.theory.value is not None:
            diamond = {"marker": "D", "s": 30, "clip_on": False}
            at = ["inf"], [entry.theory.value], [entry.theory.error]
            series.append(marks("", "theory", *at, diamond, hollow=[True]))
    component = None if first.component is None else first.component - 1
    backend = first.place.backend
    name = first.place.algorithm + ("" if backend == "numpy" else f"@{backend}")
    head = line_name(name, first.component_word, component)
    label = metric_label(first.metric)
    return Panel(
        head, f"1 / {d}", label, series, first.place.problem, "inverse", from_zero=False
    )


def _marks(
    about: JsonObject,
    shade: Any,
    name: str,
    what: str,
    sizes: Any,
    values: Any,
    errors: Any,
    style: JsonObject,
    **more: Any,
) -> Series:
    inverse = 1 / np.asarray(sizes, dtype=float)
    columns = {"dimension": sizes, "value": values, "error": errors, "inverse": inverse}
    return Series(name, columns | more, {**about, "what": what}, "marks", shade, style)
