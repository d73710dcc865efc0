"""Figures of mean values against the dimension, with their extrapolated limit and theory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import grouped, letter_of
from smimbench.report.style import MARKERS, line_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.files import JsonObject
    from smimbench.suite.cells import Suite


def size_charts(suite: Suite, entries: Sequence[JsonObject]) -> list[Chart]:
    """One figure per problem, a panel for every metric, algorithm and component; color and marker stand for a sample ratio.

    Parameters
    ----------
    entries : sequence of dict
        As from ``extrapolated_rows``.
    """
    charts = []
    problems = grouped(entries, lambda entry: entry["problem"])
    for number, (problem, members) in enumerate(problems.items(), 1):
        alphas = sorted({entry["alpha"] for entry in members})
        groups = grouped(members, lambda e: (e["metric"], e["algorithm"], e["backend"], e["component"]))
        d = letter_of(members)
        note = (
            f"Lines: fitted corrections of order 1/{d} and 1/{d}², none where there is no limit. Diamonds: predicted, or optimal "
            "where there is no prediction. Bars: standard errors, from the scatter of all sizes together where one power "
            "describes it."
        )
        caption = (
            f"{suite.title}, {problem}: means over runs against 1/{d}, at the sample ratio of the largest {d}. {note}"
        )
        name = "finite-size" if len(problems) == 1 else f"finite-size-{number}"
        panels = [_size_panel(own, alphas) for own in groups.values()]
        charts.append(Chart(name, f"{suite.title}: {problem}", panels, caption, note))
    return charts


def _size_panel(entries: Sequence[JsonObject], alphas: Sequence[float]) -> Panel:
    import matplotlib

    first, d = entries[0], letter_of(entries)
    # Not the colors of algorithms: light stands for many samples, in grey, too.
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(alphas)))
    series: list[Series] = []
    for entry in sorted(entries, key=lambda e: e["alpha"]):
        k = alphas.index(entry["alpha"])
        color, marker = tuple(shades[k]), MARKERS[k % len(MARKERS)]
        about = {key: entry[key] for key in ("problem", "metric", "algorithm", "backend", "component", "alpha")}
        points = entry["points"]
        x = np.array([1 / p["dimension"] for p in points])
        y, error = (np.array([p[key] for p in points], dtype=float) for key in ("moved", "error"))
        sizes, counts = ([p[key] for p in points] for key in ("dimension", "n"))
        bars = {"color": color, "capsize": 2.5, "lw": 1.2, "zorder": 3}
        runs = table({**about, "what": "runs"}, dimension=sizes, n=counts, value=y, error=error)
        marks = {**bars, "fmt": marker, "ms": 4, "ls": "none"}
        series.append(Series(f"α = {entry['alpha']:.4g}", x, y, marks, runs, "marks", error))
        end = {**about, "dimension": "inf"}
        if entry["value"] is not None:
            line = np.linspace(0, x.max(), 100)
            fitted = entry["value"] + line * (entry["coefficient"] + entry["second"] * line)
            series.append(Series("", line, fitted, {"color": color, "lw": 1.0, "zorder": 2}))
            limit = table({**end, "what": "fit"}, value=[entry["value"]], error=[entry["error"]])
            value, error = np.array([entry["value"]]), np.array([entry["error"]])
            series.append(Series("", [0.0], value, {**bars, "fmt": "_"}, limit, "marks", error))
        if entry["theory"] is not None:
            known = table({**end, "what": "theory"}, value=[entry["theory"]], error=[entry["theory_error"]])
            diamond = {
                "ls": "none",
                "marker": "D",
                "mfc": "white",
                "color": color,
                "ms": 6,
                "zorder": 4,
                "clip_on": False,
            }
            series.append(Series("", [0.0], [entry["theory"]], diamond, known))
    component = None if first["component"] is None else first["component"] - 1
    name = first["algorithm"] + ("" if first["backend"] == "numpy" else f"@{first['backend']}")
    head = line_name(name, first["component_word"] or "component", component)
    label = find_metric(first["metric"]).label
    return Panel(head, f"1 / {d}", label, series, first["problem"], from_zero=False)
