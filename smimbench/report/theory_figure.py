"""Figures of theory alone: curves with their thresholds, and a phase diagram where a suite varies one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.figures import PANELS, UNINFORMED, theory_lines, threshold_marks
from smimbench.report.labels import component_word
from smimbench.report.style import COLORS, line_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import ProblemPlan, Suite

__all__ = ["phase_chart", "theory_charts"]


def theory_charts(suite: Suite, cache: TheoryCache, alphas: Sequence[float] | None = None) -> list[Chart]:
    """Error and overlap against the sample ratio, one panel per problem, and the phase diagram if there is one."""
    charts = []
    for metric in ("mse", "overlap"):
        panels = [_theory_panel(plan, metric, cache, alphas or plan.alphas) for plan in suite.chosen_plans[:PANELS]]
        label = find_metric(metric).label
        caption = f"{suite.title}: Bayes-optimal {label} against the sample ratio; upright lines: thresholds."
        charts.append(Chart(f"theory-{metric}", suite.title, panels, caption))
    phases = phase_chart(suite, cache)
    return [*charts, phases] if phases else charts


def _theory_panel(plan: ProblemPlan, metric: str, cache: TheoryCache, alphas: Sequence[float]) -> Panel:
    word, series = component_word(plan.problem), []
    for what, lines in theory_lines(cache, plan, metric, alphas).items():
        for k, line in lines.items():
            single = len(lines) == 1
            about = {"problem": plan.label, "component": k + 1, "branch": what}
            rows = table(about, alpha=line.alpha, value=line.value, error=line.error)
            style = {"color": "black" if single else COLORS[k % len(COLORS)], "ls": "--" if what == UNINFORMED else "-"}
            visible = (line.error > 2e-3 * np.maximum(np.abs(line.value), 2e-3)).any()
            band = (line.value - line.error, line.value + line.error) if visible else None
            series.append(Series(line_name(what, word, None if single else k), *line[:2], style, rows, band=band))
    found = cache.thresholds(plan.problem)
    return Panel(plan.label, "sample ratio α", find_metric(metric).label, series, plan.label, headroom=0.06, ticks=6,
                 thresholds=threshold_marks(found, word), hard=found.get("hard_phase"))  # fmt: skip


def varied(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """The one numerical parameter in which at least three problems differ, with its value in each; None if there is none."""
    flat = [
        {f"{kind}.{key}": value for kind, spec in plan.problem.spec.items() for key, value in spec.items()}
        for plan in plans
    ]
    names = {key for one in flat for key in one}
    differing = [key for key in names if len({repr(one.get(key)) for one in flat}) > 1]
    if len(plans) < 3 or len(differing) != 1:
        return None
    values = [one.get(differing[0]) for one in flat]
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return (differing[0], numbers) if len(set(numbers)) == len(plans) else None


def phase_chart(suite: Suite, cache: TheoryCache) -> Chart | None:
    """Bayes-optimal error over the sample ratio and the one parameter that varies, with its thresholds as lines."""
    found = varied(suite.chosen_plans)
    if found is None:
        return None
    name, values = found
    plans = [plan for _, plan in sorted(zip(values, suite.chosen_plans), key=lambda pair: pair[0])]
    values = sorted(values)
    low, high = max(p.alphas[0] for p in plans), min(p.alphas[-1] for p in plans)
    if not low < high:
        return None
    grid = np.linspace(low, high, 60)
    error = np.array([_mean_error(theory_lines(cache, p, "mse", p.alphas)["Bayes-optimal"], grid) for p in plans])
    rows = [row for v, own in zip(values, error) for row in table({"what": "MSE", name: v}, alpha=grid, value=own)]
    marks = [{word: at for at, word in threshold_marks(cache.thresholds(p.problem))} for p in plans]
    series = []
    for kind in dict.fromkeys(word for one in marks for word in one):
        line = [(one[kind], value) for one, value in zip(marks, values) if kind in one]
        x, y = zip(*line)
        style = {"ls": "-" if kind.startswith("perfect") else "--"}
        points = table({"what": kind}, **{name: y, "alpha": x})
        series.append(Series("", x, y, {**style, "color": "white", "lw": 2.6}))
        series.append(Series(kind, x, y, {**style, "color": "black", "lw": 1.2, "marker": "o", "ms": 2.5}, points))
    panel = Panel(suite.title, "sample ratio α", name.partition(".")[2], series, xlim=(low, high),
                  image=(grid, values, error, "Bayes-optimal MSE"), extra=rows)  # fmt: skip
    caption = f"{suite.title}: Bayes-optimal squared error over the sample ratio and {name}; lines: thresholds."
    return Chart("phases", suite.title, [panel], caption)


def _mean_error(lines: dict[int, Any], grid: Any) -> Any:
    """Error over the grid, averaged over components."""
    return np.mean([np.interp(grid, line.alpha, line.value) for line in lines.values()], axis=0)
