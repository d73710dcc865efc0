"""Figures of finite size: means against 1/D, the fit that continues them to infinite D, and theory there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.labels import grouped
from smimbench.report.style import COLOURS, SMALL, legend, line_name, new_figure, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

__all__ = ["PREFIX", "draw_extrapolation"]

PREFIX = "finite-size"
"""What the names of these figures begin with."""

POINTS = 100
"""Points of a fitted curve; doubled, it looks the same."""


def draw_extrapolation(suite: Suite, entries: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """One figure per problem, a panel for every metric, algorithm and component; a colour is a sample ratio.

    Parameters
    ----------
    entries : sequence of dict
        As from ``extrapolated_rows``.

    Returns
    -------
    list of Path
        PNG and SVG; empty where nothing was extrapolated.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    paths: list[Path] = []
    problems = grouped(entries, lambda entry: entry["problem"])
    for number, (problem, members) in enumerate(problems.items(), 1):
        panels = grouped(members, lambda e: (e["metric"], e["algorithm"], e["backend"], e["component"]))
        figure, axes = new_figure(f"{suite.title}: {problem}", len(panels))
        for axis, own in zip(axes, panels.values()):
            _panel(axis, own)
        figure.supxlabel("Diamonds: theory. Lines: fitted corrections, 1/D unless the legend says otherwise.", **SMALL)
        paths += save_figure(figure, folder, PREFIX if len(problems) == 1 else f"{PREFIX}-{number}")
    return paths


def _panel(axis: Any, entries: Sequence[dict[str, Any]]) -> None:
    first = entries[0]
    for i, entry in enumerate(sorted(entries, key=lambda e: e["alpha"])):
        colour = COLOURS[i % len(COLOURS)]
        points = entry["points"]
        x = np.array([1 / p["dimension"] for p in points])
        label = f"alpha {entry['alpha']:.4g}" + ("" if entry["law"] == "1/D" else f": {entry['law']}")
        axis.errorbar(x, [p["moved"] for p in points], yerr=[p["error"] for p in points], fmt="o", color=colour, ms=4,
                      capsize=2.5, lw=1.2, ls="none", label=label, zorder=3)  # fmt: skip
        line = np.linspace(0, x.max(), POINTS)
        curve = entry["curve"]
        fitted = entry["value"] + sum(b * line**a for a, b in zip(curve["exponents"], curve["coefficients"]))
        axis.plot(line, fitted, color=colour, lw=1.0, zorder=2)
        axis.errorbar(
            [0], [entry["value"]], yerr=[entry["error"]], fmt="_", color=colour, capsize=2.5, lw=1.2, zorder=3
        )
        if entry["theory"] is not None:
            axis.plot([0], [entry["theory"]], "D", mfc="white", mec=colour, ms=6, zorder=4, clip_on=False)
    component = None if first["component"] is None else first["component"] - 1
    name = first["algorithm"] + ("" if first["backend"] == "numpy" else f"@{first['backend']}")
    axis.set_title(line_name(name, first["component_word"] or "component", component), fontsize=9)
    axis.set_xlabel("1 / D")
    axis.set_ylabel(find_metric(first["metric"]).label)
    axis.set_xlim(left=-0.02 * axis.get_xlim()[1])
    legend(axis)
    axis.grid(alpha=0.25, lw=0.5)
