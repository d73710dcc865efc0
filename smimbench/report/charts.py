"""Figures as data: panels of series, which are drawn by Matplotlib, written as CSV, and shown on the HTML page."""

from __future__ import annotations

import functools
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smimbench.files import printable, write_atomically
from smimbench.report.style import (
    finish,
    floor_ticks,
    lay_out,
    literal,
    log_ticks,
    new_figure,
    plain_matplotlib,
    svg_text,
)
from smimbench.report.text_files import csv_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smimbench.interfaces import Host
    from smimbench.report.style import ToSvg

Kind = Literal["line", "marks", "bars", "upright"]
CsvRow = dict[str, Any]
"""Row of a CSV file: numbers and texts by column."""

Dashes = str | tuple[int, tuple[int, ...]]

UPRIGHTS: Sequence[Dashes] = ("--", ":", "-.", (0, (8, 2)), (0, (1, 3)))
"""Dash patterns of vertical lines, in the order of their names in a figure."""


@dataclass(frozen=True)
class Series:
    """Data series of a panel: a line, marks, bars or vertical lines, with its rows in the figure's CSV.

    Parameters
    ----------
    name : str
        Legend entry; empty: no entry, and no tooltips on the page.
    columns : dict of str to sequence
        Columns of the CSV; the panel names the two that are drawn. ``error``, or ``low`` and ``high``, become error bars of
        marks or the band of a line. Marks are hollow where ``hollow`` is true. Bars extend from ``from`` to ``to``.
    about : dict or None
        Constant columns of the CSV; None: the series is not in the CSV.
    kind : str
        Kind of series; vertical lines are named by the column ``algorithm``.
    style : dict
        Further Matplotlib options, apart from the color.
    algorithm : str
        Label of the algorithm that it belongs to; the page hides both together.
    """

    name: str
    columns: Mapping[str, Any]
    about: CsvRow | None = None
    kind: Kind = "line"
    color: Any = "black"
    style: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""

    @property
    def rows(self) -> list[CsvRow]:
        """The CSV rows of the series, without points that have no value."""
        if self.about is None:
            return []
        rows = []
        for numbers in zip(*(np.asarray(c).tolist() for c in self.columns.values())):
            row = {**self.about, **dict(zip(self.columns, numbers))}
            if row.get("value") == row.get("value"):  # no NaN
                rows.append(row)
        return rows

    def numbers(self, column: str) -> Host:
        """Return a column as an array of floats, with NaN where there is no number."""
        return np.asarray(self.columns[column], dtype=float)


@dataclass
class Panel:
    """Panel of a figure: series drawn against each other by their columns ``x`` and ``y``.

    ``floor``: lower end of a logarithmic axis of errors; smaller values are drawn at its end, marks as small triangles under
    the word "below". ``cap``: upper limit of the vertical axis. ``hard``: ends of the gray band of the hard phase.
    ``limits``: ranges of the horizontal and the vertical axis; default: those of the data.
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
    """Figure with panels and a note below them; ``key`` is the legend in words, which only the caption contains."""

    name: str
    title: str
    panels: list[Panel]
    note: str = ""
    key: str = ""

    @property
    def caption(self) -> str:
        """The caption of the figure, for its files and the page."""
        return f"{self.title}: {self.key} {self.note}".replace("  ", " ").strip()

    @property
    def rows(self) -> list[CsvRow]:
        """The rows of the figure's CSV."""
        rows: list[CsvRow] = []
        for panel in self.panels:
            for series in panel.series:
                rows += series.rows
        return rows


# -- the drawing ----------------------------------------------------------------------------------------------------------


@plain_matplotlib()
def draw(
    chart: Chart,
    *,
    alone: bool = False,
    width: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a chart with Matplotlib; ``alone``: a single panel without layout, for the page; others as in ``new_figure``.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    panels = chart.panels
    figure, axes = new_figure(
        chart.title, len(panels), alone=alone, width=width, figure=figure
    )
    names: dict[str, None] = {}
    for panel in panels:
        for series in panel.series:
            if series.kind == "upright":
                names.update(dict.fromkeys(series.columns["algorithm"]))
    dashes = {name: UPRIGHTS[i % len(UPRIGHTS)] for i, name in enumerate(names)}
    for axis, panel in zip(axes, panels):
        _draw_panel(axis, panel, dashes)
    finish(figure, axes, chart.note)
    return figure


def save(
    chart: Chart | None,
    folder: Path,
    kinds: Sequence[str] = ("png", "svg", "pdf"),
    width: str | None = None,
) -> list[Path]:
    """Write a chart as reproducible image files of these kinds and as CSV; write nothing for None.

    The caption goes into the files (``Description`` of PNG and SVG, ``Subject`` of the PDF).
    """
    if chart is None:
        return []
    figure, paths = draw(chart, width=width), []
    caption = printable(chart.caption)
    metadata = {
        "png": {"Description": caption},
        "svg": {"Date": None, "Description": caption},
        "pdf": {"CreationDate": None, "ModDate": None, "Subject": caption},
    }
    with plain_matplotlib():
        # One layout for all files: most of the time would go into finding the same one again.
        lay_out(figure)
        figure.set_layout_engine(None)
        for kind in kinds:
            paths.append(folder / f"{chart.name}.{kind}")
            write = functools.partial(
                figure.savefig, format=kind, dpi=300, metadata=metadata[kind]
            )
            write_atomically(paths[-1], write)
    if rows := chart.rows:
        paths.append(folder / f"{chart.name}.csv")
        columns = dict.fromkeys(name for row in rows for name in row)
        text = csv_text(rows, list(columns))
        write_atomically(paths[-1], text.encode(), durable_name=False)
    return paths


def show(chart: Chart, width: str | None = None) -> Any:
    """Draw a chart with pyplot, for notebooks and windows; return its axes, an array if there are several."""
    from matplotlib import pyplot

    # Before the style: a notebook changes settings here.
    figure = pyplot.figure(layout="constrained", dpi=150)
    with plain_matplotlib():
        draw(chart, width=width, figure=figure)
        figure.draw_without_rendering()  # ticks that are made later have another style
    axes = figure.axes[: len(chart.panels)]
    return axes[0] if len(axes) == 1 else np.array(axes)


def _draw_panel(axis: Any, panel: Panel, dashes: Mapping[str, Dashes]) -> None:
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
    (x_min, x_max), (low, high) = panel.limits or (axis.get_xlim(), axis.get_ylim())
    axis.set_ylim(0.6 * panel.floor if panel.floor else low, min(high, panel.cap))
    for series in panel.series:
        if series.kind != "upright":
            continue
        for x, name in zip(series.columns[panel.x], series.columns["algorithm"]):
            if x_min < x < x_max:
                style = {"color": "0.5", "lw": 0.9, "zorder": 0}
                axis.axvline(x, ls=dashes[name], label=literal(name), **style)
    if panel.hard:
        start, end = panel.hard
        # A band that cannot be seen would have a name only.
        if min(end, x_max) - max(start, x_min) > 0.01 * (x_max - x_min):
            axis.axvspan(start, end, color="0.9", zorder=0, label="hard phase")
    axis.set_xlim(x_min, x_max)
    width = axis.figure.get_figwidth() / axis.get_subplotspec().get_gridspec().ncols
    if panel.xlog:
        log_ticks(axis.xaxis)
    else:
        # Sample ratios that differ in late digits have long labels.
        are_close = x_max - x_min < (0.1 if width > 3 else 0.5) * x_max
        axis.locator_params(axis="x", nbins=3 if are_close else 6)
    if panel.floor:
        floor_ticks(axis.yaxis, panel.floor)
    elif panel.ylog:
        log_ticks(axis.yaxis)
    if panel.floor and below:
        x = max(below)
        axis.annotate(
            "below",
            (x, panel.floor),
            xytext=(0, 3 + 6 * below[x]),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            # A threshold may stand behind it.
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
    equation = literal(panel.title).replace(
        " = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    )
    title = textwrap.fill(equation, int(11.5 * width))
    # With a height of its own, no layout looks for one: that took a fifth of the time of a figure.
    axis.set_title(title, fontsize=8, y=1.0)
    axis.set_xlabel(literal(panel.xlabel))
    axis.set_ylabel(literal(panel.ylabel))


def _draw_series(
    axis: Axes, series: Series, panel: Panel, below: Counter[float]
) -> None:
    """Draw a series; ``below`` counts the triangles already stacked at each horizontal position."""
    columns, color = series.columns, series.color
    x, y = series.numbers(panel.x), series.numbers(panel.y)
    style = {"color": color, "label": literal(series.name) or "_", **series.style}
    low = high = y
    if "low" in columns:
        low, high = series.numbers("low"), series.numbers("high")
    elif "error" in columns:
        error = np.nan_to_num(series.numbers("error"))
        low, high = y - error, y + error
    floor = panel.floor or -math.inf
    under = y < floor
    y, low, high = (np.maximum(ends, floor) for ends in (y, low, high))
    has_error = bool((high > low).any())
    artists: list[Artist]
    if series.kind == "bars":
        widths = series.numbers("to") - x
        artists = list(axis.bar(x, y, widths, align="edge", **style))
    elif series.kind == "line":
        artists = list(axis.plot(x, y, **style))
        if has_error:
            band = axis.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
            artists.append(band)
    else:
        hollow = columns.get("hollow", ())
        if len(hollow):
            y[under] = np.nan
        marks = axis.scatter(x, y, **{"zorder": 3, "linewidths": 0.9, **style})
        artists = [marks]
        if has_error:
            style = {"ecolor": color, "elinewidth": 0.9, "capsize": 1.8}
            bars = axis.errorbar(x, y, (y - low, high - y), fmt="none", **style)
            artists += [*bars.lines[1], *bars.lines[2]]
        if len(hollow):
            fills = {True: "white", False: color}
            marks.set_facecolor([fills[bool(empty)] for empty in hollow])
            artists += [_triangle(axis, at, floor, color, below) for at in x[under]]
    if series.algorithm and axis.figure.get_layout_engine() is None:
        # The page hides what belongs to an algorithm.
        for artist in artists:
            artist.set_gid(f"of {printable(series.algorithm)}")


def _triangle(
    axis: Any, x: float, floor: float, color: Any, below: Counter[float]
) -> Any:
    """Draw a triangle for a value below the axis, stacked on others at the same position."""
    from matplotlib.transforms import offset_copy

    place = offset_copy(axis.transData, axis.figure, y=4 + 6 * below[x], units="points")
    below[x] += 1
    return axis.plot(x, floor, "v", color=color, ms=4, transform=place, zorder=4)[0]


# -- the page -------------------------------------------------------------------------------------------------------------


@dataclass
class PageSeries:
    """Series on the HTML page: positions of its points in the SVG, and their tooltips."""

    name: str
    algorithm: str
    at: list[list[float]]
    columns: dict[str, list[str | float | None]]


@dataclass
class PageFigure:
    """Panel on the HTML page: its SVG, the label of its problem, and its series."""

    title: str
    problem: str
    svg: str
    series: list[PageSeries]

    def document(self) -> list[CsvRow]:
        """Return the series as JSON for the page's script."""
        return [asdict(series) for series in self.series]


def page_figures(chart: Chart) -> list[PageFigure]:
    """Draw every panel of a chart as an SVG for the HTML page."""
    figures = []
    for panel in chart.panels:
        figure = draw(replace(chart, panels=[panel], note=""), alone=True)
        svg, to_svg = svg_text(figure)
        title = f"{panel.title}: {panel.ylabel} against {panel.xlabel}"
        shown = [
            _page_series(series, panel, figure.axes[0], to_svg)
            for series in panel.series
            if series.name and series.kind != "bars"
        ]
        figures.append(
            PageFigure(title.removeprefix(": "), panel.problem or "", svg, shown)
        )
    return figures


def _page_series(series: Series, panel: Panel, axis: Axes, to_svg: ToSvg) -> PageSeries:
    height = np.maximum(series.numbers(panel.y), panel.floor or -math.inf)
    points = np.stack([series.numbers(panel.x), height], axis=1)
    finite = np.isfinite(points).all(axis=1).nonzero()[0]
    columns = {
        name: [_short(column[i]) for i in finite]
        for name, column in series.columns.items()
    }
    places = to_svg(axis.transData.transform(points[finite])).round(1).tolist()
    return PageSeries(series.name, printable(series.algorithm), places, columns)


def _short(cell: object) -> str | float | None:
    """Return a number rounded to six digits as text, or a text unchanged."""
    if isinstance(cell, (float, np.floating)):
        return float(f"{cell:.6g}")
    return None if cell is None else str(cell)
