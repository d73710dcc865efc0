"""Figures as data: panels of series, from which the drawing, its CSV and the charts of the page are made."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smimbench.files import JsonObject, printable
from smimbench.report.style import (
    finish,
    floor_ticks,
    literal,
    log_ticks,
    new_figure,
    plain_matplotlib,
    save_figure,
    svg_text,
)

UPRIGHTS: Sequence[Any] = ("--", ":", "-.", (0, (8, 2)), (0, (1, 3)))
"""Dashes of upright lines, in the order of their names in a figure."""


@dataclass(frozen=True)
class Series:
    """A line, marks, bars or upright lines of one panel, and their rows in the figure's CSV.

    Parameters
    ----------
    name : str
        In the legend; empty: in none, and silent on the page.
    columns : dict of str to sequence
        Columns of the CSV; the panel says which two are drawn. ``error`` is drawn as bars of marks and as a band of a line, as
        are ``low`` and ``high``; marks are not filled where ``hollow``. Bars go ``from`` ``to``.
    about : dict or None
        Columns of the CSV with one value; None: not in the CSV.
    kind : str
        ``"line"``, ``"marks"``, ``"bars"`` or ``"upright"``, which are named by the column ``algorithm``.
    style : dict
        Further Matplotlib options, apart from the color.
    algorithm : str
        Whose it is: the page hides it with its algorithm.
    """

    name: str
    columns: Mapping[str, Any]
    about: JsonObject | None = None
    kind: str = "line"
    color: Any = "black"
    style: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""

    @property
    def rows(self) -> list[JsonObject]:
        """Rows of the CSV, without points that have no value."""
        if self.about is None:
            return []
        lists = (np.asarray(values).tolist() for values in self.columns.values())
        rows = [
            {**self.about, **dict(zip(self.columns, values))} for values in zip(*lists)
        ]
        return [row for row in rows if row.get("value") == row.get("value")]  # no NaN

    def numbers(self, column: str) -> Any:
        """A column as an array of floats; NaN where there is no number."""
        return np.asarray(self.columns[column], dtype=float)


@dataclass
class Panel:
    """One panel of a figure: series on two axes, ``x`` and ``y`` of their columns.

    ``floor``: an axis of errors is logarithmic and ends here; what is smaller is drawn at its end, marks as small triangles under
    the word "below". ``cap``: none goes higher. ``hard``: ends of a gray band. ``limits``: ends of the horizontal and of
    the vertical axis; default: of the data.
    """

    title: str
    xlabel: str
    ylabel: str
    series: list[Series]
    problem: str | None = None
    x: str = "alpha"
    y: str = "value"
    xlog: bool = False
    ylog: bool = False
    floor: float | None = None
    cap: float = math.inf
    from_zero: bool = True
    hard: Sequence[float] | None = None
    limits: Sequence[Sequence[float]] | None = None


@dataclass
class Chart:
    """A figure: a name for its files, a title, panels, and a note below them; ``key``: what only its caption says."""

    name: str
    title: str
    panels: list[Panel]
    note: str = ""
    key: str = ""

    @property
    def caption(self) -> str:
        """Caption of the figure in its files and on the page."""
        return f"{self.title}: {self.key} {self.note}".replace("  ", " ").strip()

    @property
    def rows(self) -> list[JsonObject]:
        """Rows of the figure's CSV."""
        return [
            row
            for panel in self.panels
            for series in panel.series
            for row in series.rows
        ]


# -- the drawing ----------------------------------------------------------------------------------------------------------


@plain_matplotlib()
def draw(
    chart: Chart, *, alone: bool = False, width: str | None = None, figure: Any = None
) -> Any:
    """The figure in Matplotlib; ``alone``: without a layout, as part of a page; for the rest see ``new_figure``.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    figure, axes = new_figure(
        chart.title, len(chart.panels), alone=alone, width=width, figure=figure
    )
    names = [
        n
        for p in chart.panels
        for s in p.series
        if s.kind == "upright"
        for n in s.columns["algorithm"]
    ]
    dashes = {
        name: UPRIGHTS[i % len(UPRIGHTS)] for i, name in enumerate(dict.fromkeys(names))
    }
    for axis, panel in zip(axes, chart.panels):
        _draw_panel(axis, panel, dashes)
    finish(figure, axes, chart.note)
    return figure


def save(
    chart: Chart | None,
    folder: Path,
    kinds: Sequence[str] = ("png", "svg", "pdf"),
    width: str | None = None,
) -> list[Path]:
    """Write a chart as pictures of these kinds and as CSV; do nothing if there is no chart."""
    if chart is None:
        return []
    return save_figure(
        draw(chart, width=width), folder, chart.name, chart.rows, chart.caption, kinds
    )


def show(chart: Chart, width: str | None = None) -> Any:
    """Draw with pyplot, as notebooks and windows show it; the axes, an array of them if there are several."""
    from matplotlib import pyplot

    figure = pyplot.figure(
        layout="constrained", dpi=150
    )  # before the style: a notebook changes settings here
    with plain_matplotlib():
        draw(chart, width=width, figure=figure)
        figure.draw_without_rendering()  # ticks that are made later have another style
    axes = figure.axes[: len(chart.panels)]
    return axes[0] if len(axes) == 1 else np.array(axes)


def _draw_panel(axis: Any, panel: Panel, dashes: Mapping[str, Any]) -> None:
    if panel.xlog:
        axis.set_xscale("log")
    if panel.ylog or panel.floor:
        axis.set_yscale("log")
    below: Counter[float] = Counter()
    for series in panel.series:
        if series.kind != "upright":
            _draw_series(axis, series, panel, below)
    if panel.from_zero and axis.get_yscale() == "linear":
        axis.update_datalim([(0, 0)], updatex=False)
        axis.autoscale_view(scalex=False)
    (left, right), (low, high) = panel.limits or (axis.get_xlim(), axis.get_ylim())
    axis.set_ylim(0.6 * panel.floor if panel.floor else low, min(high, panel.cap))
    for series in panel.series:
        for at, name in (
            zip(series.columns[panel.x], series.columns["algorithm"])
            if series.kind == "upright"
            else ()
        ):
            if left < at < right:
                axis.axvline(
                    at,
                    color="0.5",
                    lw=0.9,
                    ls=dashes[name],
                    zorder=0,
                    label=literal(name),
                )
    if panel.hard and min(panel.hard[1], right) - max(panel.hard[0], left) > 0.01 * (
        right - left
    ):  # or it has a name only
        axis.axvspan(*panel.hard, color="0.9", zorder=0, label="hard phase")
    axis.set_xlim(left, right)
    width = axis.figure.get_figwidth() / axis.get_subplotspec().get_gridspec().ncols
    if panel.xlog:
        log_ticks(axis.xaxis)
    else:
        # Sample ratios that differ in late digits have long labels.
        axis.locator_params(
            axis="x",
            nbins=3 if right - left < (0.1 if width > 3 else 0.5) * right else 6,
        )
    if panel.floor:
        floor_ticks(axis.yaxis, panel.floor)
        if below:
            at = max(below)
            place = {
                "xytext": (0, 3 + 6 * below[at]),
                "textcoords": "offset points",
                "ha": "center",
            }
            ground = {
                "fc": "white",
                "ec": "none",
                "pad": 0.5,
            }  # a threshold may stand behind it
            axis.annotate("below", (at, panel.floor), fontsize=8, bbox=ground, **place)
    elif panel.ylog:
        log_ticks(axis.yaxis)
    title = textwrap.fill(
        literal(panel.title).replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
        int(11.5 * width),
    )
    # With a height of its own, no layout looks for one: that took a fifth of the time of a figure.
    axis.set_title(title, fontsize=8, y=1.0)
    axis.set_xlabel(literal(panel.xlabel))
    axis.set_ylabel(literal(panel.ylabel))


def _draw_series(
    axis: Any, series: Series, panel: Panel, below: Counter[float]
) -> None:
    """Draw a series; ``below`` counts the triangles at every place, which are stacked."""
    x, y, color, columns = (
        series.numbers(panel.x),
        series.numbers(panel.y),
        series.color,
        series.columns,
    )
    how = {
        "color": color,
        "label": literal(series.name) if series.name else "_",
        **series.style,
    }
    error = (
        np.nan_to_num(series.numbers("error"))
        if "error" in columns
        else np.zeros(len(y))
    )
    low, high = y - error, y + error
    if "low" in columns:
        low, high = series.numbers("low"), series.numbers("high")
    floor = panel.floor or -math.inf
    under = y < floor
    y, low, high = (np.maximum(values, floor) for values in (y, low, high))
    if series.kind == "bars":
        drawn = list(axis.bar(x, y, series.numbers("to") - x, align="edge", **how))
    elif series.kind == "marks":
        runs = "hollow" in columns
        y[under & runs] = np.nan
        marks = axis.scatter(x, y, **{"zorder": 3, "linewidths": 0.9, **how})
        drawn = [marks]
        if (high > low).any():
            bars = axis.errorbar(
                x,
                y,
                (y - low, high - y),
                fmt="none",
                ecolor=color,
                elinewidth=0.9,
                capsize=1.8,
            )
            drawn += [*bars.lines[1], *bars.lines[2]]
        if runs:
            marks.set_facecolor(
                ["white" if hollow else color for hollow in columns["hollow"]]
            )
            drawn += [_triangle(axis, at, floor, color, below) for at in x[under]]
    else:
        drawn = axis.plot(x, y, **how)
        if (high > low).any():
            drawn.append(axis.fill_between(x, low, high, color=color, alpha=0.18, lw=0))
    if (
        series.algorithm and axis.figure.get_layout_engine() is None
    ):  # the page hides what belongs to an algorithm
        for artist in drawn:
            artist.set_gid(f"of {printable(series.algorithm)}")


def _triangle(
    axis: Any, x: float, floor: float, color: Any, below: Counter[float]
) -> Any:
    """A mark whose value is below the end of the axis, above others at its place."""
    from matplotlib.transforms import offset_copy

    place = offset_copy(axis.transData, axis.figure, y=4 + 6 * below[x], units="points")
    below[x] += 1
    return axis.plot(x, floor, "v", color=color, ms=4, transform=place, zorder=4)[0]


# -- the page -------------------------------------------------------------------------------------------------------------


def page_figures(chart: Chart) -> list[JsonObject]:
    """A figure for every panel of a chart: its title, problem, SVG, and the series that answer to the pointer.

    Of those: ``name``, ``algorithm``, ``at`` (places of the points in the SVG) and ``columns`` (what is said of them).
    """
    found = []
    for panel in chart.panels:
        figure = draw(replace(chart, panels=[panel], note=""), alone=True)
        svg, place = svg_text(figure)
        title = f"{panel.title}: {panel.ylabel} against {panel.xlabel}".removeprefix(
            ": "
        )
        shown = [
            _answers(one, panel, figure.axes[0], place)
            for one in panel.series
            if one.name and one.kind != "bars"
        ]
        found.append(
            {
                "title": title,
                "problem": panel.problem or "",
                "svg": svg,
                "series": shown,
            }
        )
    return found


def _answers(series: Series, panel: Panel, axis: Any, place: Any) -> JsonObject:
    height = np.maximum(series.numbers(panel.y), panel.floor or -math.inf)
    points = np.stack([series.numbers(panel.x), height], axis=1)
    known = np.isfinite(points).all(axis=1).nonzero()[0]
    columns = {
        name: [_short(values[i]) for i in known]
        for name, values in series.columns.items()
    }
    at = place(axis.transData.transform(points[known])).round(1).tolist()
    return {
        "name": series.name,
        "algorithm": printable(series.algorithm),
        "at": at,
        "columns": columns,
    }


def _short(value: Any) -> Any:
    """As many digits as a screen has."""
    return (
        float(f"{value:.6g}")
        if isinstance(value, (float, np.floating))
        else value
        if value is None
        else str(value)
    )
