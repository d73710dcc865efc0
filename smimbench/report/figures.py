"""Figures against the sample ratio: a metric with theory, runs, thresholds and published values; theory alone; the phase
diagram of a suite that varies one parameter.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.statistics import ZERO
from smimbench.report.style import COLORS, Look, floor_of, line_name, looks, looks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import ProblemPlan, Suite

PANELS = 12
"""Panels of a figure at the most; doubled, it is two pages high."""

UNINFORMED = "uninformed branch (reached by algorithms)"


# -- theory ---------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Theory of one component: sample ratios, values and numerical errors."""

    alpha: Any
    value: Any
    error: Any


def is_cheap(problem: Problem) -> bool:
    """Whether computing theory on a fine grid takes next to no time."""
    return problem.components == 1 and problem.channel.information is not None


def theory_lines(cache: TheoryCache, plan: Any, metric: str, used: Sequence[float]) -> dict[str, dict[int, Line]]:
    """Theory by branch and component (from 0): on a fine grid, or smooth between the sample ratios that are used.

    The branches are ``"Bayes-optimal"`` and, where it is another one, that of an uninformed start; none where theory is not
    stored. A fine grid is for theory that costs next to nothing, or is read off a curve that thresholds have followed already.
    """
    problem, grid = plan.problem, np.asarray(sorted(used), dtype=float)
    low, high = grid[0], grid[-1]
    margin = 0.05 * (high - low) if high > low else 0.2 * high
    ends = (low / 1.3, high * 1.3) if high > 20.0 * low else (max(low - margin, low / 2), high + margin)
    fine = np.unique([*_spread(*ends), *grid])
    breaks = [mark for mark, name in _threshold_marks(cache.thresholds_at_hand(problem)) if "recovery" in name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    steps = [s * 10.0**-k for k in (1.5, 2, 2.5, 3, 4) for s in (-1, 1)]
    dense = np.unique([*fine, *(b * (1 + s) for b in breaks for s in steps if fine[0] < b * (1 + s) < fine[-1])])
    about = find_metric(metric, problem.model.name)
    points = cache.curve(problem, list(dense)) if problem.components > 1 or is_cheap(problem) else None
    on_curve = points is not None and theory_of(about, problem, points[0][0], problem.components)[0][0] is not None
    if not on_curve:  # or without errors of prediction
        points = cache.points_at_hand(problem, list(grid))
    if not points:
        return {}
    grid = dense if on_curve else grid
    found = {}
    for name, chosen, there in _branches(points):
        values = [theory_of(about, problem, point, problem.components) for point in chosen]
        lines = {}
        for k in range(problem.components if about.per_component else 1):
            shown = [i for i in there if values[i][0][k] is not None]
            line = Line(grid[shown], *(np.array([values[i][j][k] or 0.0 for i in shown], dtype=float) for j in (0, 1)))
            if shown:
                lines[k] = line if on_curve else smooth(line, breaks)
        if lines:
            found[name] = lines
    return found


def _branches(points: Sequence[Any]) -> list[tuple[str, list[Any], Any]]:
    """Names of branches with their points, and the range in which they are shown."""
    best = [branches[0] for branches in points]
    uninformed = [next((p for p in branches if p["branch"] == "uninformed"), branches[0]) for branches in points]
    apart = np.array([one is not other for one, other in zip(uninformed, best)])
    apart[1:] |= apart[:-1].copy()  # with the point where they meet again
    return [("Bayes-optimal", best, range(len(best))), (UNINFORMED, uninformed, np.flatnonzero(apart))]


def _spread(low: float, high: float) -> Any:
    """Points of a line that are evenly spaced on the axis drawn."""
    return (np.geomspace if high > 20.0 * low > 0 else np.linspace)(low, high, 120)


def smooth(line: Line, breaks: Iterable[float]) -> Line:
    """A smooth monotone cubic through the given points without overshoot, broken at thresholds.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line.
    """
    from scipy.interpolate import PchipInterpolator

    parts: list[Line] = []
    for low, high in itertools.pairwise([-np.inf, *sorted(breaks), np.inf]):
        inside = (line.alpha > low) & (line.alpha <= high)
        x, *values = (part[inside] for part in line)
        if len(x) and parts:
            parts.append(Line([low], [np.nan], [np.nan]))
        if len(x) > 2:
            fine = _spread(x[0], x[-1])
            parts.append(Line(fine, *(PchipInterpolator(x, y)(fine) for y in values)))
        elif len(x):
            parts.append(Line(x, *values))
    return Line(*(np.concatenate(part) for part in zip(*parts)))


def _threshold_marks(found: Mapping[str, Any], word: str = "component") -> list[tuple[float, str]]:
    """Sample ratios and names of all known thresholds; each once, by its first name."""
    perfect = found.get("perfect_recovery") or {}
    named = [(perfect, "perfect recovery")]
    if perfect.get("informed"):
        named = [(perfect["informed"], "perfect recovery (informed)"), (perfect, "perfect recovery (uninformed)")]
    marks: list[tuple[float, str]] = []
    for entry, name in (
        (found.get("weak_recovery"), "weak recovery"),
        *named,
        *((step, f"{word} {step['layer']} learned") for step in found.get("sequential") or ()),
        *((found.get(key), key.replace("_", "-")) for key in ("information_theoretic", "algorithmic", "spinodal")),
    ):
        value = float((entry or {}).get("value") or 0.0)
        if value > 0 and not any(abs(value - other) <= 1e-6 * value for other, _ in marks):
            marks.append((value, name))
    return marks


def theory_series(line: Line, name: str, color: str, dashes: Any, about: Mapping[str, Any]) -> Series:
    """A line with a band where its numerical error can be seen; horizontal bars where two points have no line between them."""
    visible = (line.error > 2e-3 * np.maximum(np.abs(line.value), 2e-3)).any()
    rows = table(about, **line._asdict())
    if len(line.alpha) < 3:
        style = {"fmt": "_", "ms": 10 if dashes == ":" else 16, "mew": 1.5, "lw": 0.9, "color": color, "zorder": 2}
        return Series(name, *line[:2], style, rows, "marks", line.error if visible else None)
    band = (line.value - line.error, line.value + line.error) if visible else None
    style = {"color": color, "ls": dashes, "lw": 1.3, "zorder": 2}
    return Series(name, *line[:2], style, rows, band=band)


# -- a metric -------------------------------------------------------------------------------------------------------------

KEY = (
    "Solid line, or bars at one or two sample ratios: Bayes-optimal; dashed: predicted for the algorithm. Marks: mean and "
    "standard error over {} runs; hollow: some did not converge. Crosses: published values."
)
"""What is in the figure of a metric."""


def metric_chart(suite: Suite, rows: Sequence[JsonObject], cache: TheoryCache, metric: str) -> Chart | None:
    """The figure of one metric, a panel per problem and component; None where ``--only`` leaves no problem."""
    look = looks_of(suite)
    for row in rows:  # labels that were told apart by their parameters
        if row["algorithm"] not in look:
            look |= looks({row["algorithm"]: row["identity"]["algorithm"]["name"]})
    members = [row for row in rows if row["metric"] == metric]
    places = [(plan, component) for plan in suite.chosen_plans for component in _components(plan, metric)]
    if not places:
        return None
    panels = [
        _metric_panel(suite, plan, metric, component, members, cache, look) for plan, component in places[:PANELS]
    ]
    sources = sorted({r.source for plan in suite.chosen_plans for r in plan.references if r.metric == metric})
    head = f"{find_metric(metric).label} against the sample ratio"
    counts = sorted({row["n"] for row in members}) or [0]
    caption = f"{suite.title}: {head}. {KEY.format(' to '.join(map(str, dict.fromkeys((counts[0], counts[-1])))))}"
    if len(places) > PANELS:
        caption += f" {len(places) - PANELS} further panels are left out."
    note = f"Crosses: published values: {'; '.join(sources)}" if sources else ""
    return Chart(
        metric, suite.title, panels, caption, note, head, "Point at a mark for its numbers; the legend hides lines."
    )


def _components(plan: Any, metric: str) -> Sequence[int | None]:
    several = plan.problem.components > 1 and find_metric(metric, plan.problem.model.name).per_component
    return range(1, plan.problem.components + 1) if several else (None,)


def _metric_panel(
    suite: Suite, plan: Any, metric: str, component: int | None, rows: Sequence[JsonObject], cache: TheoryCache,
    look: dict[str, Look],
) -> Panel:  # fmt: skip
    problem, about, k = plan.problem, find_metric(metric, plan.problem.model.name), (component or 1) - 1
    rows = [row for row in rows if row["problem"] == plan.label and row["component"] == component]
    measured = [row for row in rows if row["mean"] is not None]
    used = sorted({row["alpha"] for row in rows} | set(plan.alphas))
    place = {"problem": plan.label, "component": component}
    lines = {what: found[k] for what, found in theory_lines(cache, plan, metric, used).items() if k in found}
    series = [
        theory_series(line, what, "black", "--" if what == UNINFORMED else "-", {**place, "what": what})
        for what, line in lines.items()
    ]
    d, dimensions = letter(problem.model), sorted({row["dimension"] for row in measured})
    for name, own in grouped(measured, lambda row: row["algorithm"]).items():
        series += [*_runs(own, look[name], name, place, dimensions, d), *_predicted(own, look[name], name, place)]
    for j, one in enumerate(plan.references):
        if one.metric == metric and one.component in (None, component or 1):
            style = {
                "fmt": "x+1234"[j % 6],
                "ls": "none",
                "lw": 0.8,
                "capsize": 2,
                "color": "#737373",
                "ms": 5,
                "zorder": 1,
            }
            points = table({**place, "what": "reference", "algorithm": one.label}, alpha=one.alpha, value=one.value)
            error = None if one.tolerance is None else np.full(len(one.alpha), one.tolerance)
            series.append(Series(one.label, one.alpha, one.value, style, points, "marks", error))
    found, word = cache.thresholds_at_hand(problem), component_word(problem)
    marks, seen = _threshold_marks(found, word), [row["alpha"] for row in measured]
    title = plan.label if component is None else f"{plan.label}, {word} {component}"
    panel = Panel(
        title + (f", {d} = {dimensions[0]}" if len(dimensions) == 1 else ""),
        "sample ratio α",
        about.label,
        series,
        plan.label,
        xlog=bool(seen) and max(seen) > 20.0 * min(seen),
        thresholds=marks,
        hard=found.get("hard_phase"),
        extra=table({**place, "what": "threshold"}, algorithm=[n for _, n in marks], alpha=[at for at, _ in marks]),
    )
    line = lines.get("Bayes-optimal")
    if about.direction == "lower" and line is not None and (line.value <= ZERO * suite.run.target).any():
        # Up to the target at least: where all errors are far below it, an axis of one decade would have no tick but 0.
        panel.zero, panel.top = floor_of([row["mean"] for row in measured], suite.run.target), suite.run.target / 2.0
    return panel


def _runs(
    rows: Sequence[JsonObject], look: Look, name: str, place: JsonObject, dimensions: Sequence[int], d: str
) -> list[Series]:
    """Marks of one algorithm: larger for larger dimensions, hollow where a run did not end properly."""
    several = len(dimensions) > 1
    points = [
        {**place, "what": "runs", "algorithm": name, "alpha": r["alpha"], "dimension": r["dimension"], "value": r["mean"],
         "error": r["sem"], "n": r["n"], "hollow": bool(set(r["status_counts"]) - {"ok", "skipped"})}
        for r in rows
    ]  # fmt: skip
    found: list[Series] = []
    for (dimension, hollow), own in sorted(grouped(points, lambda p: (p["dimension"], p["hollow"])).items()):
        k = dimensions.index(dimension)
        style = {"fmt": look.marker, "color": look.color, "ms": 3.0 + 2.4 * k / (len(dimensions) - 1) if several else 4.2,
                 "capsize": 1.8, "lw": 0.9, "ls": "none", "mfc": "white" if hollow else look.color, "mew": 0.9,
                 "zorder": 3 + 0.1 * (len(dimensions) - k)}  # fmt: skip
        label = name + (f", {d} = {dimension}" if several else "") + (" (not all converged)" if hollow else "")
        x, y, error = (np.array([p[key] or 0.0 for p in own], dtype=float) for key in ("alpha", "value", "error"))
        rows_of_csv = () if found else points  # in the order of the table
        found.append(
            Series(label, x, y, style, rows_of_csv, "marks", error, algorithm=name, runs=[p["n"] for p in own])
        )
    return found


def _predicted(rows: Sequence[JsonObject], look: Look, name: str, place: JsonObject) -> list[Series]:
    """Marks of the algorithm's own prediction, where that differs from the Bayes-optimal value."""
    says = {
        r["alpha"]: (r["own_theory"], r["own_theory_error"] or 0.0)
        for r in sorted(rows, key=lambda r: r["dimension"])  # at one sample ratio the largest dimension is shown
        if r["own_theory"] is not None
    }
    if not says or all(r["own_theory"] == r["bayes"] for r in rows):
        return []
    line = Line(*(np.array(part, dtype=float) for part in zip(*((alpha, *says[alpha]) for alpha in sorted(says)))))
    about = {**place, "what": "predicted", "algorithm": name}
    dashes = "--" if look.dashes == "-" else ":"  # of another label of the same algorithm
    drawn = theory_series(smooth(line, ()), f"{name}, predicted", look.color, dashes, about)
    return [replace(drawn, rows=table(about, **line._asdict()), algorithm=name)]


# -- theory alone ---------------------------------------------------------------------------------------------------------


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
            color, name = (COLORS[k % len(COLORS)], line_name(what, word, k)) if len(lines) > 1 else ("black", what)
            about = {"problem": plan.label, "component": k + 1, "branch": what}
            series.append(theory_series(line, name, color, "--" if what == UNINFORMED else "-", about))
    found = cache.thresholds(plan.problem)
    return Panel(plan.label, "sample ratio α", find_metric(metric).label, series, plan.label,
                 thresholds=_threshold_marks(found, word), hard=found.get("hard_phase"))  # fmt: skip


def varied(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """The one numerical parameter in which at least three problems differ, with its value in each; None if there is none."""
    flat = [
        {f"{kind}.{key}": value for kind, spec in plan.problem.spec.items() for key, value in spec.items()}
        for plan in plans
    ]
    differing = [key for key in {key for one in flat for key in one} if len({repr(one.get(key)) for one in flat}) > 1]
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
    curves = [theory_lines(cache, plan, "mse", plan.alphas).get("Bayes-optimal") for plan in plans]
    if low >= high or not all(curves):
        return None
    grid = np.linspace(low, high, 60)
    error = np.array([
        np.mean([np.interp(grid, line.alpha, line.value) for line in lines.values()], axis=0) for lines in curves if lines
    ])  # fmt: skip
    rows = [row for v, own in zip(values, error) for row in table({"what": "MSE", name: v}, alpha=grid, value=own)]
    marks = [
        (word, at, v)
        for p, v in zip(plans, values)
        for at, word in _threshold_marks(cache.thresholds_at_hand(p.problem))
    ]
    series = []
    for kind, line in grouped(marks, lambda mark: mark[0]).items():
        _, x, y = zip(*line)
        style = {"ls": "-" if kind.startswith("perfect") else "--"}
        points = table({"what": kind}, **{name: y, "alpha": x})
        series.append(Series("", x, y, {**style, "color": "white", "lw": 2.6}))
        series.append(Series(kind, x, y, {**style, "color": "black", "lw": 1.2, "marker": "o", "ms": 2.5}, points))
    panel = Panel(suite.title, "sample ratio α", name.partition(".")[2], series,
                  image=(grid, values, error, "Bayes-optimal MSE"), extra=rows)  # fmt: skip
    caption = f"{suite.title}: Bayes-optimal squared error over the sample ratio and {name}; lines: thresholds."
    return Chart("phases", suite.title, [panel], caption)
