"""Figures as data: panels of series, which are drawn by Matplotlib, written as CSV, and shown on the HTML page."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from smimbench.files import printable, write_atomically
from smimbench.report.style import (
    FILE_TYPES,
    add_legend_and_note,
    arrange_panels,
    file_type,
    floor_ticks,
    log_ticks,
    make_room_for_labels,
    math_text,
    plain_matplotlib,
    svg_text,
)
from smimbench.report.text_files import csv_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smimbench.interfaces import Host

Kind = Literal["line", "marks", "bars", "vertical"]
CsvRow = dict[str, Any]
"""Row of a CSV file: numbers and texts by column."""

Dashes = str | tuple[int, tuple[int, ...]]

VERTICAL_DASHES: Sequence[Dashes] = ("--", ":", "-.", (0, (8, 2)), (0, (1, 3)))
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
    constant_columns : dict or None
        Constant columns of the CSV; None: the series is not in the CSV.
    kind : str
        Kind of series; vertical lines have no second coordinate.
    style : dict
        Further Matplotlib options, apart from the color.
    algorithm : str
        Label of the algorithm that it belongs to; the page hides both together.
    component : str
        Name of the component that its color stands for, which is a legend entry of its own.
    """

    name: str
    columns: Mapping[str, Any]
    constant_columns: CsvRow | None = None
    kind: Kind = "line"
    color: Any = "black"
    style: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""
    component: str = ""

    @property
    def full_name(self) -> str:
        """The legend entry with the algorithm that it belongs to, and the component where there are several."""
        names = dict.fromkeys((self.algorithm, self.name, self.component))
        return ", ".join(filter(None, names))

    @property
    def rows(self) -> list[CsvRow]:
        """The CSV rows of the series, one per point, without points that have no value."""
        if self.constant_columns is None:
            return []
        columns = [np.asarray(column).tolist() for column in self.columns.values()]
        rows = [
            {**self.constant_columns, **dict(zip(self.columns, values))}
            for values in zip(*columns)
        ]
        return [row for row in rows if row.get("value") == row.get("value")]  # no NaN

    def numbers(self, column: str) -> Host:
        """Return the CSV column of this name as an array of floats, with NaN where there is no number."""
        return np.asarray(self.columns[column], dtype=float)


@dataclass
class Panel:
    """Panel of a figure: ``series`` drawn against each other by the columns that ``x_column`` and ``y_column`` name, under a
    ``title``, with axis labels; ``problem`` is the label of its problem, ``xlog`` and ``ylog`` say which axes are logarithmic.

    ``axis_floor``: lower end of a logarithmic axis of errors; smaller values are drawn at its end, marks as small triangles under
    the word "below". ``axis_cap``: upper limit of the vertical axis. ``hard_phase``: ends of the gray band of the hard phase.
    ``axis_limits``: ranges of the horizontal and the vertical axis; default: those of the data.
    """

    title: str
    xlabel: str
    ylabel: str
    series: list[Series]
    problem: str | None = None
    x_column: str = "alpha"
    y_column: str = "value"
    xlog: bool = False
    ylog: bool = False
    axis_floor: float | None = None
    axis_cap: float = math.inf
    starts_at_zero: bool = True
    hard_phase: Sequence[float] | None = None
    axis_limits: Sequence[Sequence[float]] | None = None


@dataclass
class Chart:
    """Figure with panels and a note below them; ``legend_words`` is the legend in words, which only the caption contains."""

    name: str
    title: str
    panels: list[Panel]
    note: str = ""
    legend_words: str = ""

    @property
    def caption(self) -> str:
        """The caption of the figure, for its files and the page."""
        return f"{self.title}: {self.legend_words} {self.note}".replace(
            "  ", " "
        ).strip()

    def without_title(self) -> Chart:
        """Return the figure without title and note, for a caption that says both; several panels keep their titles."""
        panels = self.panels
        if len(panels) == 1:
            panels = [replace(panels[0], title="")]
        return replace(self, title="", note="", panels=panels)

    @property
    def series(self) -> Iterator[Series]:
        """All series, panel by panel."""
        return itertools.chain.from_iterable(panel.series for panel in self.panels)

    @property
    def rows(self) -> list[CsvRow]:
        """The rows of the figure's CSV."""
        return [row for series in self.series for row in series.rows]


# -- the drawing ----------------------------------------------------------------------------------------------------------


LEGEND_GRAY = "0.35"
"""Color of a legend entry whose lines or marks have several colors."""


@plain_matplotlib()
def draw(
    chart: Chart, width: str | None = None, figure: Figure | None = None
) -> Figure:
    """Draw a chart with Matplotlib and return the figure: a new one, or the empty ``figure`` with a constrained layout that is
    given.

    ``width`` is a length or a name as in ``width_in_inches``; default: a column for one panel, a page for several.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if figure is None:
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
    all_axes = arrange_panels(figure, chart.title, len(chart.panels), width)
    dashes: dict[str, Dashes] = {}
    title_words = chart.title.split(", ") if len(chart.panels) > 1 else []
    for axes, panel in zip(all_axes, chart.panels):
        words = [word for word in panel.title.split(", ") if word not in title_words]
        _draw_panel(axes, replace(panel, title=", ".join(words)), dashes)
    add_legend_and_note(figure, _legend_entries(chart, all_axes), chart.note)
    make_room_for_labels(figure)
    return figure


def _legend_entries(chart: Chart, all_axes: Sequence[Axes]) -> dict[str, Any]:
    """Return the lines and marks of a legend by their names, without duplicates: first a color patch for each component of the
    signal, then what is drawn on ``all_axes``, in gray if it has several colors.
    """
    from matplotlib.patches import Patch

    entries: dict[str, Any] = {}
    colors: dict[str, set[Any]] = {}
    for series in chart.series:
        if series.component:
            entries[series.component] = Patch(color=series.color)
        colors.setdefault(math_text(series.name), set()).add(series.color)
    for axes in all_axes:
        for handle, name in zip(*axes.get_legend_handles_labels()):
            if name not in entries:
                entries[name] = copy.copy(handle)
                if len(colors.get(name, ())) > 1:
                    entries[name].set_color(LEGEND_GRAY)
    return entries


def save(
    chart: Chart | None,
    folder: Path,
    file_types: Sequence[str] = FILE_TYPES,
    width: str | None = None,
    title: bool = True,
    name: str = "",
) -> list[Path]:
    """Write a chart as reproducible image files of these ``file_types`` and as CSV, in a ``folder``; return their paths.
    ``width`` is that of the figure; nothing is written if the chart is None.

    The caption goes into the files (``Description`` of PNG and SVG, ``Subject`` of the PDF).

    Parameters
    ----------
    title : bool
        Whether there is a title, and a note below.
    name : str
        Name of the files without suffix; default: that of the chart.
    """
    if chart is None:
        return []
    figure = draw(chart if title else chart.without_title(), width)
    return _write(figure, chart, folder / (name or chart.name), file_types)


def _write(
    figure: Figure, chart: Chart, stem: Path, file_types: Sequence[str]
) -> list[Path]:
    """Write the drawn figure of a chart as files of these ``file_types``, and its CSV rows; ``stem`` is the path of the files
    without suffix. Return all paths.
    """
    paths, caption = [], printable(chart.caption)
    metadata = {
        "png": {"Description": caption},
        "svg": {"Date": None, "Description": caption},
        "pdf": {"CreationDate": None, "ModDate": None, "Subject": caption},
    }
    with plain_matplotlib():
        # One layout for all files: most of the time would go into finding the same one again.
        figure.set_layout_engine(None)
        for suffix in file_types:
            paths.append(stem.with_name(f"{stem.name}.{suffix}"))
            kind = suffix.lower()
            write_image = functools.partial(
                figure.savefig, format=kind, dpi=300, metadata=metadata[kind]
            )
            write_atomically(paths[-1], write_image)
    if rows := chart.rows:
        paths.append(stem.with_name(f"{stem.name}.csv"))
        column_names = dict.fromkeys(itertools.chain(*rows))
        text = csv_text(rows, list(column_names))
        write_atomically(paths[-1], text.encode(), durable_name=False)
    return paths


def show(
    chart: Chart,
    width: str | None = None,
    title: bool = True,
    output: str | Path | None = None,
) -> Any:
    """Draw a chart with pyplot, in a notebook or a window; return its axes, an array of axes for several panels.

    ``width``: see ``draw``; without ``title`` there is no note either. With ``output``, also write it to this file, with its data
    as CSV.
    """
    from matplotlib import pyplot

    path = None if output is None else Path(output)
    file_types = [] if path is None else [file_type(path)]
    # Before the style: a notebook changes settings here.
    figure = pyplot.figure(layout="constrained", dpi=150)
    draw(chart if title else chart.without_title(), width, figure)
    if path is not None:
        _write(figure, chart, path.with_suffix(""), file_types)
    with plain_matplotlib():
        figure.draw_without_rendering()  # ticks that are made later have another style
    axes = figure.axes[: len(chart.panels)]
    return axes[0] if len(axes) == 1 else np.array(axes)


def _draw_panel(axes: Any, panel: Panel, dashes: dict[str, Dashes]) -> None:
    """Draw a panel on its ``axes``: series, vertical lines at thresholds, the hard phase, ticks, title and labels. ``dashes``
    maps names of thresholds to dash patterns, the same in all panels; thresholds of this panel are added to it.
    """
    if panel.xlog:
        axes.set_xscale("log")
    if panel.ylog or panel.axis_floor:
        axes.set_yscale("log")
    below = [
        (x, series)
        for series in panel.series
        if series.kind != "vertical"
        for x in _draw_series(axes, series, panel)
    ]
    if panel.starts_at_zero and axes.get_yscale() == "linear":
        axes.update_datalim([(0, 0)], updatex=False)
        axes.autoscale_view(scalex=False)
    limits = axes.get_xlim(), axes.get_ylim()
    (x_min, x_max), (y_min, y_max) = panel.axis_limits or limits
    if panel.axis_floor:
        y_min = 0.6 * panel.axis_floor
        _draw_triangles(axes, below, panel.axis_floor)
    axes.set_xlim(x_min, x_max)
    axes.set_ylim(y_min, min(y_max, panel.axis_cap))
    for series in panel.series:
        if series.kind == "vertical":
            dash = VERTICAL_DASHES[len(dashes) % len(VERTICAL_DASHES)]
            style = {"color": series.color, "lw": 0.9, "zorder": 0}
            style["ls"] = dashes.setdefault(series.name, dash)
            for x in series.numbers(panel.x_column):
                if x_min < x < x_max:
                    axes.axvline(x, label=math_text(series.name), **style)
    start, end = np.clip(panel.hard_phase or (0, 0), x_min, x_max)
    if end - start > 0.01 * (x_max - x_min):  # or there is a name for nothing to see
        axes.axvspan(start, end, color="0.9", zorder=0, label="hard phase")
    if panel.xlog:
        log_ticks(axes.xaxis)
    else:
        axes.locator_params(axis="x", nbins=6)
    if panel.axis_floor:
        floor_ticks(axes.yaxis, panel.axis_floor)
    elif panel.ylog:
        log_ticks(axes.yaxis)
    # With a height of its own, no layout looks for one: that took a fifth of the time of a figure.
    axes.set_title(math_text(panel.title), y=1.0)
    axes.set_xlabel(math_text(panel.xlabel))
    axes.set_ylabel(math_text(panel.ylabel))


def _draw_series(axes: Axes, series: Series, panel: Panel) -> Host:
    """Draw a series on the axes of its panel, with error bars or a band; return the x coordinates of its marks that lie below the
    lower end of the axis, which are not drawn yet.
    """
    columns = series.columns
    color = series.color
    below = np.array([])
    x = series.numbers(panel.x_column)
    y = series.numbers(panel.y_column)
    label = math_text(series.name) or "_"
    style = {"color": color, "label": label, **series.style}
    lower = upper = y
    if "low" in columns:
        lower = series.numbers("low")
        upper = series.numbers("high")
    elif "error" in columns:
        errors = np.nan_to_num(series.numbers("error"))
        lower, upper = y - errors, y + errors
    floor = panel.axis_floor or -math.inf
    is_below = y < floor
    y, lower, upper = np.maximum([y, lower, upper], floor)
    has_error = bool((upper > lower).any())
    artists: list[Artist] = []
    if series.kind == "bars":
        artists += axes.bar(x, y, series.numbers("to") - x, align="edge", **style)
    elif series.kind == "line":
        artists += axes.plot(x, y, **style)
        if has_error:
            band_style = {"color": color, "alpha": 0.18, "lw": 0}
            artists.append(axes.fill_between(x, lower, upper, **band_style))
    else:
        if "hollow" in columns:
            below = x[is_below]
            y[is_below] = np.nan
        marks = axes.scatter(x, y, **{"zorder": 3, "linewidths": 0.9, **style})
        artists.append(marks)
        if "hollow" in columns:
            marks.set_facecolor(
                ["white" if is_hollow else color for is_hollow in columns["hollow"]]
            )
        if has_error:
            bar_style = {"ecolor": color, "elinewidth": 0.9, "capsize": 1.8}
            bars = axes.errorbar(x, y, (y - lower, upper - y), fmt="none", **bar_style)
            artists += [*bars.lines[1], *bars.lines[2]]
    _mark_for_page(artists, series)
    return below


def _mark_for_page(artists: Iterable[Artist], series: Series) -> None:
    """Tag the drawn ``artists`` (lines, marks, bars) of a series with the label of its algorithm, so that the HTML page can hide
    them together.
    """
    for artist in artists:
        if series.algorithm:
            artist.set_gid(f"of {printable(series.algorithm)}")


def _draw_triangles(
    axes: Any, below: Sequence[tuple[float, Series]], floor: float
) -> None:
    """Draw a triangle for each mark that lies below the lower end of the axis (``floor``); ``below`` lists its x coordinate and
    its series. Triangles at one place are stacked under the word "below".
    """
    from matplotlib.transforms import offset_copy

    counts_by_x: Counter[float] = Counter()
    for x, series in below:
        height, counts_by_x[x] = 4 + 6 * counts_by_x[x], counts_by_x[x] + 1
        shifted_upwards = offset_copy(
            axes.transData, axes.figure, y=height, units="points"
        )
        style = {
            "color": series.color,
            "ms": 4,
            "transform": shifted_upwards,
            "zorder": 4,
        }
        _mark_for_page(axes.plot(x, floor, "v", **style), series)
    if counts_by_x:
        x = max(counts_by_x)
        axes.annotate(
            "below",
            (x, floor),
            xytext=(0, 3 + 6 * counts_by_x[x]),
            textcoords="offset points",
            ha="center",
            # A threshold may stand behind it.
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )


# -- the page -------------------------------------------------------------------------------------------------------------


class PageSeries(TypedDict):
    """Series on the HTML page: its name and algorithm, pixel positions ``at`` of its points in the SVG, and the CSV columns that
    the tooltips of these points show.
    """

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


def page_figures(chart: Chart) -> list[PageFigure]:
    """Draw every panel of a chart as an SVG for the HTML page."""
    figures = []
    for panel in chart.panels:
        figure = draw(replace(chart, panels=[panel], note=""))
        title = f"{panel.title}: {panel.ylabel} against {panel.xlabel}"
        page_series = [
            _page_series(series, panel, figure.axes[0])
            for series in panel.series
            if series.name and series.kind not in ("bars", "vertical")
        ]
        svg = svg_text(figure)
        problem = panel.problem or ""
        figures.append(PageFigure(title.removeprefix(": "), problem, svg, page_series))
    return figures


def _page_series(series: Series, panel: Panel, axes: Any) -> PageSeries:
    """Return a series of a panel, drawn on ``axes``, for the HTML page: the pixel positions of its finite points in the SVG, and
    the numbers that their tooltips show.
    """
    y = np.maximum(series.numbers(panel.y_column), panel.axis_floor or -math.inf)
    points = np.stack([series.numbers(panel.x_column), y], axis=1)
    indices = np.isfinite(points).all(axis=1).nonzero()[0]
    figure = axes.figure
    pixels = axes.transData.transform(points[indices])
    # The SVG counts points, of which an inch has 72, from its top.
    positions = 72 * np.abs(pixels / figure.dpi - [0, figure.get_figheight()])
    columns = {
        name: [_rounded_cell(column[index]) for index in indices]
        for name, column in series.columns.items()
    }
    return PageSeries(
        name=series.full_name,
        algorithm=printable(series.algorithm),
        at=positions.round(1).tolist(),
        columns=columns,
    )


def _rounded_cell(cell: object) -> str | float | None:
    """Return a number of a tooltip rounded to six digits; anything else as text."""
    if isinstance(cell, (float, np.floating)):
        return float(f"{cell:.6g}")
    return None if cell is None else str(cell)
