"""Figures of finite size: means against the inverse dimension, the fit that continues them to infinity, and theory there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.extrapolation_tables import law_text
from smimbench.report.labels import grouped, letter_of
from smimbench.report.style import MARKERS, finish, line_name, literal, new_figure, panel_title, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

__all__ = ["PREFIX", "draw_extrapolation"]

PREFIX = "finite-size"
"""What the names of these figures begin with."""

POINTS = 100
"""Points of a fitted curve; doubled, it looks the same."""

LIGHTEST = 0.85
"""Where the scale of colours ends; at 1 it is too light for paper."""


def draw_extrapolation(suite: Suite, entries: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """One figure per problem, a panel for every metric, algorithm and component; colour and marker stand for a sample ratio.

    Parameters
    ----------
    entries : sequence of dict
        As from ``extrapolated_rows``.

    Returns
    -------
    list of Path
        PNG, SVG, PDF and CSV; empty where nothing was extrapolated.

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
        alphas = sorted({entry["alpha"] for entry in members})
        data: list[dict[str, Any]] = []
        for axis, own in zip(axes, panels.values()):
            _size_panel(axis, own, alphas, data)
        d = letter_of(members)
        note = f"Lines: fitted corrections, 1/{d} unless the panel says otherwise. "
        note += "Diamonds: theory, of the algorithm if it has its own. "
        note += (
            "Bars: standard errors, from the scatter of all sizes together where one power of the size describes it."
        )
        finish(figure, axes, note)
        caption = (
            f"{suite.title}, {problem}: means over runs against 1/{d}, at the sample ratio of the largest {d}. {note}"
        )
        paths += save_figure(figure, folder, PREFIX if len(problems) == 1 else f"{PREFIX}-{number}", data, caption)
    return paths


def _size_panel(
    axis: Any, entries: Sequence[dict[str, Any]], alphas: Sequence[float], data: list[dict[str, Any]]
) -> None:
    import matplotlib

    first, d = entries[0], letter_of(entries)
    # Not the colours of algorithms: light stands for many samples, in grey, too.
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, LIGHTEST, len(alphas)))
    other = []
    for entry in sorted(entries, key=lambda e: e["alpha"]):
        place = alphas.index(entry["alpha"])
        colour, marker = shades[place], MARKERS[place % len(MARKERS)]
        about = {key: entry[key] for key in ("problem", "metric", "algorithm", "backend", "component", "alpha")}
        points, law = entry["points"], law_text(entry)
        if law != f"1/{d}":
            other.append(f"α = {entry['alpha']:.4g}: {law}")
        x = np.array([1 / p["dimension"] for p in points])
        axis.errorbar(x, [p["moved"] for p in points], yerr=[p["error"] for p in points], fmt=marker, color=colour, ms=4,
                      capsize=2.5, lw=1.2, ls="none", label=f"α = {entry['alpha']:.4g}", zorder=3)  # fmt: skip
        line = np.linspace(0, x.max(), POINTS)
        curve = entry["curve"]
        fitted = entry["value"] + sum(b * line**a for a, b in zip(curve["exponents"], curve["coefficients"]))
        axis.plot(line, fitted, color=colour, lw=1.0, zorder=2)
        axis.errorbar(
            [0], [entry["value"]], yerr=[entry["error"]], fmt="_", color=colour, capsize=2.5, lw=1.2, zorder=3
        )
        data += [
            {
                **about,
                "what": "runs",
                "dimension": p["dimension"],
                "n": p["n"],
                "value": p["moved"],
                "error": p["error"],
            }
            for p in points
        ]
        data.append(
            {**about, "what": f"fit {law}", "dimension": "inf", "value": entry["value"], "error": entry["error"]}
        )
        if entry["theory"] is not None:
            axis.plot([0], [entry["theory"]], "D", mfc="white", mec=colour, ms=6, zorder=4, clip_on=False)
            known = {"value": entry["theory"], "error": entry["theory_error"]}
            data.append({**about, "what": "theory", "dimension": "inf", **known})
    component = None if first["component"] is None else first["component"] - 1
    name = first["algorithm"] + ("" if first["backend"] == "numpy" else f"@{first['backend']}")
    head = line_name(name, first["component_word"] or "component", component)
    panel_title(axis, ", ".join([head, *map(literal, other)]))
    axis.set_xlabel(f"1 / {d}")
    axis.set_ylabel(find_metric(first["metric"]).label)
    axis.set_xlim(left=-0.02 * axis.get_xlim()[1])
    axis.locator_params(axis="x", nbins=5)
