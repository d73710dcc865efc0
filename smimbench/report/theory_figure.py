"""Figures of theory alone: curves with their thresholds, and a phase diagram where a suite varies one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.figures import PANELS, UNINFORMED, VISIBLE, theory_lines, threshold_marks
from smimbench.report.labels import component_word
from smimbench.report.style import (
    COLOURS,
    finish,
    line_name,
    literal,
    new_figure,
    panel_title,
    save_figure,
    threshold_lines,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import ProblemPlan, Suite

__all__ = ["draw_phases", "draw_theory"]

METRICS = ("mse", "overlap")
VALUES = 3
"""Values of a parameter from which on a phase diagram is drawn; with two it would be two stripes."""


def draw_theory(suite: Suite, theorist: TheoryCache, folder: Path, alphas: Sequence[float] | None = None) -> list[Path]:
    """Draw error and overlap against the sample ratio, one panel per problem, and the phase diagram if there is one.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    plans = suite.chosen_plans[:PANELS]
    paths: list[Path] = []
    for metric in METRICS:
        figure, axes = new_figure(suite.title, len(plans))
        data: list[dict[str, Any]] = []
        for axis, plan in zip(axes, plans):
            _theory_panel(axis, plan, metric, theorist, alphas or plan.alphas, data)
        finish(figure, axes)
        caption = (
            f"{suite.title}: Bayes-optimal {find_metric(metric).label} against the sample ratio; dashed: thresholds."
        )
        paths += save_figure(figure, folder, f"theory-{metric}", data, caption)
    return paths + draw_phases(suite, theorist, folder)


def _theory_panel(
    axis: Any,
    plan: ProblemPlan,
    metric: str,
    theorist: TheoryCache,
    alphas: Sequence[float],
    data: list[dict[str, Any]],
) -> None:
    branches, word = theory_lines(theorist, plan, metric, alphas), component_word(plan.problem)
    for (what, lines), k in ((one, k) for one in branches.items() for k in one[1]):
        line = lines[k]
        colour = "black" if len(lines) == 1 else COLOURS[k % len(COLOURS)]
        name = line_name(what, word, None if len(lines) == 1 else k)
        axis.plot(line.alpha, line.value, color=colour, ls="--" if what == UNINFORMED else "-", label=name)
        if (line.error > VISIBLE * np.maximum(np.abs(line.value), VISIBLE)).any():
            axis.fill_between(
                line.alpha, line.value - line.error, line.value + line.error, color=colour, alpha=0.18, lw=0
            )
        data += [
            {"problem": plan.label, "component": k + 1, "branch": what, "alpha": a, "value": v, "error": e}
            for a, v, e in zip(*line)
        ]
    found = theorist.thresholds(plan.problem)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    levels = threshold_lines(axis, threshold_marks(found, word), found.get("hard_phase"))
    axis.locator_params(axis="x", nbins=6)
    panel_title(axis, literal(plan.label), above=6 + 8 * levels)
    axis.set_xlabel("sample ratio α")
    axis.set_ylabel(find_metric(metric).label)


def varied(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """The one numerical parameter in which the problems of a suite differ, with its value in each; None if there is none."""
    if len(plans) < VALUES:
        return None
    flat = [
        {f"{kind}.{key}": value for kind, table in plan.problem.spec.items() for key, value in table.items()}
        for plan in plans
    ]
    names = {key for one in flat for key in one}
    differing = [key for key in names if len({repr(one.get(key)) for one in flat}) > 1]
    if len(differing) != 1:
        return None
    values = [one.get(differing[0]) for one in flat]
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return (differing[0], numbers) if len(set(numbers)) == len(plans) else None


def draw_phases(suite: Suite, theorist: TheoryCache, folder: Path) -> list[Path]:
    """Bayes-optimal error over the sample ratio and the one parameter that varies, with its thresholds as lines."""
    found = varied(suite.chosen_plans)
    if found is None:
        return []
    name, values = found
    plans = [plan for _, plan in sorted(zip(values, suite.chosen_plans), key=lambda pair: pair[0])]
    values = sorted(values)
    low, high = max(p.alphas[0] for p in plans), min(p.alphas[-1] for p in plans)
    if not low < high:
        return []
    figure, (axis,) = new_figure(suite.title, 1)
    grid = np.linspace(low, high, 60)
    error = np.array(
        [_mean_error(theory_lines(theorist, plan, "mse", plan.alphas)["Bayes-optimal"], grid) for plan in plans]
    )
    image = axis.pcolormesh(grid, values, error, cmap="cividis", shading="nearest", vmin=0.0)
    figure.colorbar(image, ax=axis, label="Bayes-optimal MSE")
    data = [
        {"what": "MSE", name: v, "alpha": a, "value": e} for v, row in zip(values, error) for a, e in zip(grid, row)
    ]
    found_marks = [{word: at for at, word in threshold_marks(theorist.thresholds(p.problem))} for p in plans]
    for kind in dict.fromkeys(word for marks_of_plan in found_marks for word in marks_of_plan):
        marks, dashes = [one.get(kind) for one in found_marks], "-" if kind.startswith("perfect") else "--"
        line = [(at, value) for at, value in zip(marks, values) if at is not None]
        if line:
            axis.plot(*zip(*line), color="white", ls=dashes, lw=2.6)
            axis.plot(*zip(*line), color="black", ls=dashes, lw=1.2, marker="o", ms=2.5, label=kind)
            data += [{"what": kind, name: value, "alpha": at} for at, value in line]
    axis.set_xlim(low, high)
    axis.set_xlabel("sample ratio α")
    axis.set_ylabel(name.partition(".")[2])
    panel_title(axis, literal(suite.title))
    axis.grid(visible=False)
    finish(figure, [axis])
    caption = f"{suite.title}: Bayes-optimal squared error over the sample ratio and {name}; lines: thresholds."
    return save_figure(figure, folder, "phases", data, caption)


def _mean_error(lines: dict[int, Any], grid: Any) -> Any:
    """Error over the grid, averaged over components."""
    return np.mean([np.interp(grid, line.alpha, line.value) for line in lines.values()], axis=0)
