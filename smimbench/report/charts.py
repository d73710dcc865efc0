"""Figures as data: panels of series, from which the drawing, its CSV and the chart of the page are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.style import (
    decades_to_zero,
    finish,
    literal,
    log_axis,
    new_figure,
    panel_title,
    save_figure,
    threshold_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from smimbench.files import JsonObject

SYMBOLS = dict(zip("osD^vPX*<>hp_", ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star",
                                      "triangle-left", "triangle-right", "hexagon", "pentagon", "line-ew-open")))  # fmt: skip
"""Plotly's names of the markers of figures."""


def table(about: Mapping[str, Any], **columns: Iterable[Any]) -> list[JsonObject]:
    """Rows of a CSV from shared values and columns, without points that have no value."""
    lists = [np.asarray(values).tolist() for values in columns.values()]
    rows = [{**about, **dict(zip(columns, values))} for values in zip(*lists)]
    return [row for row in rows if row.get("value") == row.get("value")]  # no NaN


@dataclass(frozen=True)
class Series:
    """One data series of a figure: a line, marks with error bars, or bars.

    ``style`` is that of Matplotlib, ``rows`` what the CSV holds, ``algorithm`` whose it is. Without a name it is in no legend and
    not on the page; ``hidden`` keeps it out of the drawing. Of ``bars``, ``x`` are the edges.
    """

    name: str
    x: Any
    y: Any
    style: Mapping[str, Any]
    rows: Sequence[JsonObject] = ()
    kind: str = "line"
    error: Any = None
    band: tuple[Any, Any] | None = None
    algorithm: str = ""
    runs: Sequence[int] = ()
    hidden: bool = False


@dataclass
class Panel:
    """One panel of a figure: series on two axes.

    ``zero``: where the axis of an error, then logarithmic, ends at its zero; it goes up to ``top`` at least. ``cap``: none goes
    higher. ``from_zero``: a linear one begins at 0. ``extra`` are rows of the CSV without a series.
    """

    title: str
    xlabel: str
    ylabel: str
    series: list[Series]
    problem: str | None = None
    xlog: bool = False
    ylog: bool = False
    zero: float | None = None
    top: float = 0.0
    cap: float = math.inf
    from_zero: bool = True
    thresholds: Sequence[tuple[float, str]] = ()
    hard: Sequence[float] | None = None
    image: tuple[Any, Any, Any, str] | None = None
    extra: list[JsonObject] = field(default_factory=list)


@dataclass
class Chart:
    """A figure; with a ``heading`` also charts on the page, which then thins its curves where there are ``many``."""

    name: str
    title: str
    panels: list[Panel]
    caption: str
    note: str = ""
    heading: str = ""
    reading: str = ""
    many: bool = False

    @property
    def rows(self) -> list[JsonObject]:
        """Rows of the figure's CSV."""
        return [row for p in self.panels for rows in (*(s.rows for s in p.series), p.extra) for row in rows]


# -- the drawing ----------------------------------------------------------------------------------------------------------


def draw(chart: Chart) -> Any:
    """The figure in Matplotlib.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    figure, axes = new_figure(chart.title, len(chart.panels))
    for axis, panel in zip(axes, chart.panels):
        _draw_panel(axis, panel)
    finish(figure, axes, chart.note)
    return figure


def save(chart: Chart | None, folder: Path) -> list[Path]:
    """Write a chart as PNG, SVG, PDF and CSV; do nothing if there is no chart."""
    return [] if chart is None else save_figure(draw(chart), folder, chart.name, chart.rows, chart.caption)


def _draw_panel(axis: Any, panel: Panel) -> None:
    for series in panel.series:
        if not series.hidden:
            _draw_series(axis, series, panel.zero)
    lowest, highest = axis.dataLim.y0, max(axis.dataLim.y1, panel.top)
    if panel.image is not None:
        x, y, values, label = panel.image
        image = axis.pcolormesh(x, y, values, cmap="cividis", shading="nearest", vmin=0.0, zorder=0)
        axis.figure.colorbar(image, ax=axis, label=label)
        axis.grid(visible=False)
        axis.set_xlim(x[0], x[-1])
    elif panel.zero is not None:
        decades_to_zero(axis, panel.zero, min(2.0 * highest, panel.cap))
    elif panel.ylog:
        axis.set_ylim(lowest / 1.5, min(1.5 * highest, panel.cap))
        log_axis(axis, "y")
    elif panel.from_zero and min(0.0, lowest) < highest < np.inf:
        lowest, highest = min(0.0, lowest), min(highest, panel.cap)
        room = 0.06 * (highest - lowest)  # or marks at the ends are cut
        axis.set_ylim(lowest - room, highest + room)
    if panel.xlog:
        log_axis(axis, "x")
    else:
        left, right = axis.get_xlim()
        close = right - left < 0.1 * right  # sample ratios that differ in late digits have long labels
        axis.locator_params(axis="x", nbins=3 if close else 6)
    names = threshold_lines(axis, panel.thresholds, panel.hard)
    panel_title(axis, literal(panel.title), above=6 + 8 * names)
    if not panel.series and panel.image is None:
        axis.text(0.5, 0.5, "no value", transform=axis.transAxes, ha="center", va="center", fontsize=8, color="0.4")
    axis.set_xlabel(panel.xlabel)
    axis.set_ylabel(panel.ylabel)


def _draw_series(axis: Any, series: Series, zero: float | None) -> None:
    label = literal(series.name) if series.name else "_"

    def lift(values: Any) -> Any:
        return values if zero is None else np.maximum(values, zero)

    if series.kind == "bars":
        axis.bar(series.x[:-1], series.y, np.diff(series.x), align="edge", label=label, **series.style)
    elif series.kind == "marks":
        error = series.error
        if error is not None and zero is not None:
            below = np.minimum(error, lift(series.y) - zero) if series.style["fmt"] == "_" else error
            error = np.stack([below, error])
        axis.errorbar(series.x, lift(series.y), yerr=error, label=label, **series.style)
    else:
        axis.plot(series.x, lift(series.y), label=label, **series.style)
        if series.band is not None:
            axis.fill_between(series.x, *map(lift, series.band), color=series.style["color"], alpha=0.18, lw=0)


# -- the page -------------------------------------------------------------------------------------------------------------


def page_charts(charts: Sequence[Chart], target: float) -> tuple[list[dict[str, str]], list[JsonObject]]:
    """Groups (name, title, caption) and charts for the page's script, one chart per panel.

    Parameters
    ----------
    target : float
        Absolute error that counts as reached where theory says 0.
    """
    shown = [chart for chart in charts if chart.heading]
    groups = [{"name": one.name, "title": one.heading, "caption": one.reading} for one in shown]
    found = [{"group": one.name, "target": target, **_page_panel(p, one.many)} for one in shown for p in one.panels]
    return groups, found


def _page_panel(panel: Panel, many: bool) -> JsonObject:
    traces = [_trace(series, many) for series in panel.series if series.name]
    ends = [x for trace in traces for x in trace["x"]] or [0.0]
    return {
        "problem": panel.problem,
        "title": panel.title.replace("α", "alpha"),
        "xlabel": panel.xlabel.replace("α", "alpha"),
        "ylabel": panel.ylabel,
        "zero": panel.zero is not None,
        "xlog": panel.xlog,
        "ylog": panel.ylog,
        "traces": traces,
        "thresholds": [{"at": at, "name": name} for at, name in panel.thresholds if min(ends) < at < max(ends)],
    }


def _trace(series: Series, many: bool) -> JsonObject:
    known = np.isfinite(np.asarray(series.y, dtype=float)).nonzero()[0]
    if many and len(known) > 80:
        known = known[np.unique(np.linspace(0, len(known) - 1, 80).round().astype(int))]

    def shown(values: Any) -> list[float]:
        """As many digits as a screen has."""
        return [float(f"{float(values[i]):.6g}") for i in known]

    style, color = series.style, series.style["color"]
    trace: JsonObject = {"name": series.name, "algorithm": series.algorithm, "x": shown(series.x), "y": shown(series.y)}
    trace["color"] = color if isinstance(color, str) and color.startswith("#") else None
    if series.error is not None:
        trace["error"] = shown(series.error)
    if len(series.runs):
        trace["runs"] = [series.runs[i] for i in known]
    if series.kind == "marks":
        symbol = SYMBOLS.get(style["fmt"], "x-thin-open")
        return trace | {"mode": "markers", "symbol": symbol, "open": style.get("mfc") == "white"}
    shape = "hv" if "drawstyle" in style else "linear"
    return trace | {"mode": "lines", "dash": _dash(style.get("ls", "-")), "shape": shape}


def _dash(dashes: Any) -> str:
    """Plotly's name for a dash style of the figures."""
    if isinstance(dashes, str):
        return {"-": "solid", "--": "dash", "-.": "dashdot"}.get(dashes, "dot")
    return ",".join(f"{2 * length}px" for length in dashes[1])
