"""Figures: theory as a line (of one algorithm: dashed), runs as dots with error bars, thresholds, values of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.labels import component_word

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite
    from smimbench.theory.cache import TheoryCache

__all__ = ["COLOURS", "SMALL", "draw_suite", "legend", "line_name", "new_figure", "save_figure"]

POINTS = 60
"""Points of a theory line between the suite's own; doubled, theory takes twice as long and the line looks the same."""

VISIBLE = 2e-3
"""Numerical error of theory from which on it is drawn as a band; doubled, errors up to a pixel's width go undrawn."""

MARKERS = "osD^vP*X<>d"  # one more than there are colours, so that no pair of both comes back before 110 algorithms
CROSSES = "x+1234"
COLOURS = [f"C{i}" for i in range(10)]
SMALL = {"fontsize": 7, "color": "0.4"}


def draw_suite(
    suite: Suite, rows: Sequence[dict[str, Any]], theorist: TheoryCache, folder: Path, *, curve: bool = True
) -> list[Path]:
    """Draw one panel per problem for every metric; write PNG and SVG.

    Parameters
    ----------
    curve : bool
        Compute theory on a fine grid between the suite's sample ratios; False uses the points already known.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    paths = []
    for metric in suite.run.metrics:
        members = [row for row in rows if row["metric"] == metric]
        plans = suite.chosen_plans
        figure, axes = new_figure(suite.title, len(plans))
        for axis, plan in zip(axes, plans):
            own = [row for row in members if row["problem"] == plan.label]
            _panel(axis, suite, plan, metric, own, theorist, curve)
        sources = sorted({r.source for r in suite.run.reference if r.metric == metric})
        if sources:
            figure.supxlabel(f"Crosses are values of others: {'; '.join(sources)}", **SMALL)
        paths += save_figure(figure, folder, metric)
    return paths


def new_figure(title: str, panels: int) -> tuple[Any, Any]:
    """A figure and the axes of so many panels, three in a row at the most."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, panels)
    height = -(-panels // columns)
    figure = Figure(figsize=(4.6 * columns, 3.6 * height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(height, columns, squeeze=False)).ravel()
    for axis in axes[panels:]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure, axes[:panels]


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG, the same bytes for the same figure."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def line_name(name: str, word: str, component: int | None) -> str:
    """What a legend calls a line: of all components (None), or of one, counted from 0."""
    return name if component is None else f"{name}, {word} {component + 1}"


def _panel(
    axis: Any, suite: Suite, plan: Any, metric: str, rows: list[dict[str, Any]], theorist: TheoryCache, curve: bool
) -> None:
    used = sorted({row["alpha"] for row in rows} | set(plan.alphas))
    grid = used
    if curve:
        low, high = used[0], used[-1]
        margin = 0.05 * (high - low) if high > low else 0.2 * high
        grid = sorted({*np.linspace(max(low - margin, low / 2), high + margin, POINTS), *used})
    points = theorist.points(plan.problem, grid)
    components = len(points[0][0]["overlap"])
    about = find_metric(metric, plan.problem.model.name)
    per_component, word = about.per_component, component_word(plan.problem)
    known = [(p["alpha"], theory_of(about, plan.problem, p, components)) for p, *_ in points]
    shown = range(components if per_component else 1)
    single = components == 1 or not per_component
    for component in shown:
        colour = "black" if single else COLOURS[component]
        line = [(alpha, values[component], errors[component]) for alpha, (values, errors) in known]
        line = [entry for entry in line if entry[1] is not None]
        if not line:
            continue
        x, y, e = (np.array(v, dtype=float) for v in zip(*line))
        name = line_name("Bayes-optimal", word, None if single else component)
        axis.plot(x, y, color=colour, lw=1.6, label=name, zorder=2)
        if (e > VISIBLE).any():
            axis.fill_between(x, y - e, y + e, color=colour, alpha=0.2, lw=0)
    measured = [row for row in rows if row["mean"] is not None]
    for i, algorithm in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        for component in shown:
            wanted = None if single else component + 1
            own = [r for r in measured if r["algorithm"] == algorithm and r["component"] == wanted]
            if not own:
                continue
            colour = COLOURS[(i if single else component) % 10]
            axis.errorbar(
                [r["alpha"] for r in own],
                [r["mean"] for r in own],
                yerr=[r["sem"] or 0.0 for r in own],
                fmt=MARKERS[i % len(MARKERS)],
                color=colour,
                ms=5,
                capsize=2.5,
                lw=1.2,
                ls="none",
                mfc=None if single or i == 0 else "white",
                label=line_name(algorithm, word, None if single else component),
                zorder=3,
            )
            # An algorithm with a theory of its own is measured against that, not against the Bayes-optimal line.
            if any(r["theory"] != r["bayes"] for r in own):
                theory = sorted({(r["alpha"], r["theory"]) for r in own if r["theory"] is not None})
                label = f"{algorithm}, theory" if single else None
                axis.plot(*zip(*theory), ls="--", lw=1.2, color=colour, label=label, zorder=2)
    for j, reference in enumerate(suite.run.reference):
        if reference.metric == metric and suite.plans[reference.problem - 1] is plan:
            look = {"color": "0.45", "ms": 6, "zorder": 1}
            axis.plot(reference.alpha, reference.value, CROSSES[j % len(CROSSES)], label=reference.label, **look)
    found = theorist.thresholds(plan.problem)
    low, high = axis.get_xlim()
    for key, name in (("weak_recovery", "weak"), ("perfect_recovery", "perfect")):
        if found.get(key) and low < found[key]["value"] < high and found[key]["value"] > 0:
            axis.axvline(found[key]["value"], color="0.6", lw=0.9, ls="--", zorder=0)
            axis.annotate(name, (found[key]["value"], 1.0), xycoords=("data", "axes fraction"), xytext=(2, -9),
                          textcoords="offset points", rotation=90, va="top", **SMALL)  # fmt: skip
    if found.get("hard_phase"):
        axis.axvspan(*found["hard_phase"], color="0.9", zorder=0, label="hard phase")
    dims = sorted({row["dimension"] for row in rows})
    axis.set_title(plan.label + (f", D = {dims[0]}" if len(dims) == 1 else ""), fontsize=9, wrap=True)
    axis.set_xlabel(r"sample ratio $\alpha$")
    axis.set_ylabel(about.label)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    legend(axis)
    axis.grid(alpha=0.25, lw=0.5)


def legend(axis: Any, *, beside: bool = False) -> None:
    """Inside where it is short, beside the panel where it would hide what is drawn or tells styles of lines apart."""
    outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "handlelength": 3.0}
    many = beside or len(axis.get_legend_handles_labels()[1]) > 7
    axis.legend(fontsize=7, edgecolor="none", framealpha=0.8, **(outside if many else {}))
