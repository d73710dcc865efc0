"""Figures as data: panels of series, which are drawn by Matplotlib, written as CSV, and shown on the HTML page."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smimbench.files import printable, write_atomically
from smimbench.report.style import (
    FILE_TYPES,
    add_legend_and_note,
    file_type,
    floor_ticks,
    log_ticks,
    math_text,
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
        Kind of series; vertical lines are named by the column ``threshold``.
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
        """The legend entry with the component, where there are several."""
        return ", ".join(filter(None, (self.name, self.component)))

    @property
    def rows(self) -> list[CsvRow]:
        """The CSV rows of the series, one per point, without points that have no value."""
        if self.constant_columns is None:
            return []
        rows = []
        for row_values in zip(
            *(np.asarray(column).tolist() for column in self.columns.values())
        ):
            row = {**self.constant_columns, **dict(zip(self.columns, row_values))}
            if row.get("value") == row.get("value"):  # false for NaN
                rows.append(row)
        return rows

    def numbers(self, column: str) -> Host:
        """Return a column as an array of floats, with NaN where there is no number."""
        return np.asarray(self.columns[column], dtype=float)


@dataclass
class Panel:
    """Panel of a figure: series drawn against each other by the columns that ``x_column`` and ``y_column`` name.

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
    without_layout: bool = False,
    width: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a chart with Matplotlib; ``without_layout``: a single panel without layout, for the page; others as in ``new_figure``.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    panels = chart.panels
    figure, axes = new_figure(
        chart.title,
        len(panels),
        without_layout=without_layout,
        width=width,
        figure=figure,
    )
    vertical_line_names: dict[str, None] = {}
    for panel in panels:
        for series in panel.series:
            if series.kind == "vertical":
                vertical_line_names.update(dict.fromkeys(series.columns["threshold"]))
    dash_patterns = {
        name: VERTICAL_DASHES[index % len(VERTICAL_DASHES)]
        for index, name in enumerate(vertical_line_names)
    }
    for panel_axes, panel in zip(axes, panels):
        _draw_panel(panel_axes, panel, dash_patterns)
    component_colors: dict[str, Any] = {}
    colors_by_name: dict[str, set[Any]] = {}
    for series in itertools.chain(*(panel.series for panel in panels)):
        if series.component:
            component_colors[series.component] = series.color
        for name in series.columns.get("threshold", [series.name]):
            colors_by_name.setdefault(name, set()).add(series.color)
    shared_names = [name for name, colors in colors_by_name.items() if len(colors) > 1]
    add_legend_and_note(figure, axes, chart.note, component_colors, shared_names)
    return figure


def save(
    chart: Chart | None,
    folder: Path,
    file_types: Sequence[str] = FILE_TYPES,
    width: str | None = None,
    title: bool = True,
    name: str = "",
) -> list[Path]:
    """Write a chart as reproducible image files of these kinds and as CSV; write nothing for None.

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
    figure, paths = draw(chart if title else chart.without_title(), width=width), []
    name, caption = name or chart.name, printable(chart.caption)
    metadata = {
        "png": {"Description": caption},
        "svg": {"Date": None, "Description": caption},
        "pdf": {"CreationDate": None, "ModDate": None, "Subject": caption},
    }
    with plain_matplotlib():
        # One layout for all files: most of the time would go into finding the same one again.
        figure.set_layout_engine(None)
        for suffix in file_types:
            paths.append(folder / f"{name}.{suffix}")
            kind = suffix.lower()
            write_image = functools.partial(
                figure.savefig, format=kind, dpi=300, metadata=metadata[kind]
            )
            write_atomically(paths[-1], write_image)
    if rows := chart.rows:
        paths.append(folder / f"{name}.csv")
        column_names = dict.fromkeys(column_name for row in rows for column_name in row)
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

    With ``output``, also write it to this file, with its data as CSV.
    """
    from matplotlib import pyplot

    if output is not None:
        path = Path(output)
        save(chart, path.parent, (file_type(path),), width, title, path.stem)
    # Before the style: a notebook changes settings here.
    figure = pyplot.figure(layout="constrained", dpi=150)
    with plain_matplotlib():
        draw(chart if title else chart.without_title(), width=width, figure=figure)
        figure.draw_without_rendering()  # ticks that are made later have another style
    axes = figure.axes[: len(chart.panels)]
    return axes[0] if len(axes) == 1 else np.array(axes)


def _draw_panel(axis: Any, panel: Panel, dashes: Mapping[str, Dashes]) -> None:
    """Draw a panel: its series, vertical lines at thresholds, the hard phase, ticks, title and labels."""
    if panel.xlog:
        axis.set_xscale("log")
    if panel.ylog or panel.axis_floor:
        axis.set_yscale("log")
    triangle_counts: Counter[float] = Counter()
    for series in panel.series:
        if series.kind != "vertical":
            _draw_series(axis, series, panel, triangle_counts)
    if panel.starts_at_zero and axis.get_yscale() == "linear":
        axis.update_datalim([(0, 0)], updatex=False)
        axis.autoscale_view(scalex=False)
    (x_min, x_max), (y_min, y_max) = panel.axis_limits or (
        axis.get_xlim(),
        axis.get_ylim(),
    )
    axis.set_ylim(
        0.6 * panel.axis_floor if panel.axis_floor else y_min,
        min(y_max, panel.axis_cap),
    )
    for series in panel.series:
        if series.kind != "vertical":
            continue
        for x, name in zip(series.columns[panel.x_column], series.columns["threshold"]):
            if x_min < x < x_max:
                line_style = {"color": series.color, "lw": 0.9, "zorder": 0}
                axis.axvline(x, ls=dashes[name], label=math_text(name), **line_style)
    if panel.hard_phase:
        hard_start, hard_end = panel.hard_phase
        # A band that cannot be seen would have a name only.
        if min(hard_end, x_max) - max(hard_start, x_min) > 0.01 * (x_max - x_min):
            axis.axvspan(
                hard_start, hard_end, color="0.9", zorder=0, label="hard phase"
            )
    axis.set_xlim(x_min, x_max)
    if panel.xlog:
        log_ticks(axis.xaxis)
    else:
        axis.locator_params(axis="x", nbins=6)
    if panel.axis_floor:
        floor_ticks(axis.yaxis, panel.axis_floor)
    elif panel.ylog:
        log_ticks(axis.yaxis)
    if panel.axis_floor and triangle_counts:
        x = max(triangle_counts)
        axis.annotate(
            "below",
            (x, panel.axis_floor),
            xytext=(0, 3 + 6 * triangle_counts[x]),
            textcoords="offset points",
            ha="center",
            # A threshold may stand behind it.
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
    # With a height of its own, no layout looks for one: that took a fifth of the time of a figure.
    axis.set_title(math_text(panel.title), y=1.0)
    axis.set_xlabel(math_text(panel.xlabel))
    axis.set_ylabel(math_text(panel.ylabel))


def _draw_series(
    axis: Axes, series: Series, panel: Panel, triangle_counts: Counter[float]
) -> None:
    """Draw a series, with error bars or a band from ``y_lower`` to ``y_upper``; ``triangle_counts`` counts the triangles
    (values below the axis) already stacked at each horizontal position.
    """
    columns, color = series.columns, series.color
    x, y = series.numbers(panel.x_column), series.numbers(panel.y_column)
    artist_style = {
        "color": color,
        "label": math_text(series.name) or "_",
        **series.style,
    }
    y_lower = y_upper = y
    if "low" in columns:
        y_lower, y_upper = series.numbers("low"), series.numbers("high")
    elif "error" in columns:
        errors = np.nan_to_num(series.numbers("error"))
        y_lower, y_upper = y - errors, y + errors
    floor = panel.axis_floor or -math.inf
    is_below = y < floor
    y, y_lower, y_upper = (
        np.maximum(y_values, floor) for y_values in (y, y_lower, y_upper)
    )
    has_error = bool((y_upper > y_lower).any())
    artists: list[Artist]
    if series.kind == "bars":
        widths = series.numbers("to") - x
        artists = list(axis.bar(x, y, widths, align="edge", **artist_style))
    elif series.kind == "line":
        artists = list(axis.plot(x, y, **artist_style))
        if has_error:
            error_band = axis.fill_between(
                x, y_lower, y_upper, color=color, alpha=0.18, lw=0
            )
            artists.append(error_band)
    else:
        hollow = columns.get("hollow", ())
        if len(hollow):
            y[is_below] = np.nan
        mark_collection = axis.scatter(
            x, y, **{"zorder": 3, "linewidths": 0.9, **artist_style}
        )
        artists = [mark_collection]
        if has_error:
            artist_style = {"ecolor": color, "elinewidth": 0.9, "capsize": 1.8}
            error_bars = axis.errorbar(
                x, y, (y - y_lower, y_upper - y), fmt="none", **artist_style
            )
            artists += [*error_bars.lines[1], *error_bars.lines[2]]
        if len(hollow):
            face_colors = {True: "white", False: color}
            mark_collection.set_facecolor(
                [face_colors[bool(is_hollow)] for is_hollow in hollow]
            )
            artists += [
                _draw_triangle(axis, alpha_below, floor, color, triangle_counts)
                for alpha_below in x[is_below]
            ]
    if series.algorithm and axis.figure.get_layout_engine() is None:
        # The page hides what belongs to an algorithm.
        for artist in artists:
            artist.set_gid(f"of {printable(series.algorithm)}")


def _draw_triangle(
    axis: Any, x: float, floor: float, color: Any, triangle_counts: Counter[float]
) -> Any:
    """Draw a triangle at the horizontal position x for a value below the axis, whose lower end is ``floor``, stacked on the
    others at this position, which ``triangle_counts`` counts.
    """
    from matplotlib.transforms import offset_copy

    shifted_transform = offset_copy(
        axis.transData, axis.figure, y=4 + 6 * triangle_counts[x], units="points"
    )
    triangle_counts[x] += 1
    return axis.plot(
        x, floor, "v", color=color, ms=4, transform=shifted_transform, zorder=4
    )[0]


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
        figure = draw(replace(chart, panels=[panel], note=""), without_layout=True)
        svg, to_svg = svg_text(figure)
        title = f"{panel.title}: {panel.ylabel} against {panel.xlabel}"
        page_series = [
            _page_series(series, panel, figure.axes[0], to_svg)
            for series in panel.series
            if series.name and series.kind != "bars"
        ]
        figures.append(
            PageFigure(title.removeprefix(": "), panel.problem or "", svg, page_series)
        )
    return figures


def _page_series(series: Series, panel: Panel, axis: Axes, to_svg: ToSvg) -> PageSeries:
    """Return a series with the positions of its finite points in the SVG, and their tooltips."""
    y = np.maximum(series.numbers(panel.y_column), panel.axis_floor or -math.inf)
    points = np.stack([series.numbers(panel.x_column), y], axis=1)
    finite_indices = np.isfinite(points).all(axis=1).nonzero()[0]
    columns = {
        name: [_rounded_cell(column[point_index]) for point_index in finite_indices]
        for name, column in series.columns.items()
    }
    svg_points = (
        to_svg(axis.transData.transform(points[finite_indices])).round(1).tolist()
    )
    return PageSeries(
        series.full_name, printable(series.algorithm), svg_points, columns
    )


def _rounded_cell(cell: object) -> str | float | None:
    """Return a number rounded to six digits; anything else as text."""
    if isinstance(cell, (float, np.floating)):
        return float(f"{cell:.6g}")
    return None if cell is None else str(cell)
