"""The figure of a metric, a panel per problem and component: theory as a line (of one algorithm: dashed) or bars, runs as
marks, thresholds, published values.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import component_word, letter
from smimbench.report.statistics import ZERO
from smimbench.report.style import Look, floor_of, looks, looks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Suite

__all__ = ["FEWEST", "PANELS", "UNINFORMED", "Line", "is_cheap", "metric_chart", "smooth", "theory_lines", "theory_series",
           "threshold_marks"]  # fmt: skip


FEWEST = 3
"""Points of theory from which on a line is drawn through them; doubled, coarse grids are drawn as bars."""

PANELS = 12
"""Panels of a figure at the most; doubled, it is two pages high."""


class Line(NamedTuple):
    """Theory of one component: sample ratios, values and numerical errors."""

    alpha: Any
    value: Any
    error: Any


def metric_chart(suite: Suite, rows: Sequence[dict[str, Any]], cache: TheoryCache, metric: str) -> Chart | None:
    """The figure of one metric; None where ``--only`` leaves no problem."""
    look = looks_of(suite)
    for row in rows:  # labels that were told apart by their parameters
        look |= looks({row["algorithm"]: row["identity"]["algorithm"]["name"]}) if row["algorithm"] not in look else {}
    members = [row for row in rows if row["metric"] == metric]
    places = [(p, c) for p in suite.chosen_plans for c in _components(p, metric)]
    if not places:
        return None
    panels = [
        _metric_panel(suite, plan, metric, component, own, cache, look)
        for plan, component in places[:PANELS]
        for own in [[row for row in members if row["problem"] == plan.label and row["component"] == component]]
    ]
    sources = sorted({r.source for plan in suite.chosen_plans for r in plan.references if r.metric == metric})
    label = find_metric(metric).label
    return Chart(
        metric,
        suite.title,
        panels,
        _caption(f"{suite.title}: {label} against the sample ratio.", panels, len(places) - len(panels)),
        f"Crosses: published values: {'; '.join(sources)}" if sources else "",
        f"{label} against the sample ratio",
        "Point at a mark for its numbers; the legend hides lines.",
    )


def _components(plan: Any, metric: str) -> Sequence[int | None]:
    several = plan.problem.components > 1 and find_metric(metric, plan.problem.model.name).per_component
    return range(1, plan.problem.components + 1) if several else (None,)


def _caption(head: str, panels: Sequence[Panel], left_out: int) -> str:
    """What is in the figure, said of what is really in it."""
    data = Chart("", "", list(panels), "").rows
    parts = [head]
    for what, line, whose in (
        ("Bayes-optimal", "Solid line", "Bayes-optimal"),
        ("predicted", "Dashed lines", "prediction for the algorithm"),
    ):
        kinds = {s.kind for panel in panels for s in panel.series if s.rows and s.rows[0]["what"] == what}
        shown = [name for name, kind in ((line, "line"), ("Horizontal bars", "marks")) if kind in kinds]
        parts += [f"{' and '.join(shown).capitalize()}: {whose}."] if shown else []
    runs = [entry for entry in data if entry["what"] == "runs"]
    if runs:
        counts = sorted({entry["n"] for entry in runs})
        many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts.append(f"Marks: mean and standard error over {many} runs.")
    if any(entry["hollow"] for entry in runs):
        parts.append("Hollow: some of these runs did not converge.")
    if any(entry["what"] == "reference" for entry in data):
        parts.append("Crosses: published values.")
    if left_out:
        parts.append(f"{left_out} further panels are left out.")
    return " ".join(parts)


def is_cheap(problem: Problem) -> bool:
    """Whether theory on a fine grid costs next to nothing."""
    return problem.components == 1 and problem.channel.information is not None


UNINFORMED = "uninformed branch (reached by algorithms)"


def theory_lines(cache: TheoryCache, plan: Any, metric: str, used: Sequence[float]) -> dict[str, dict[int, Line]]:
    """Theory by branch and component (from 0): on a fine grid, or smooth between the sample ratios that are used.

    The branches are ``"Bayes-optimal"`` and, where it is another one, that of an uninformed start. A fine grid is for theory
    that costs next to nothing, or is read off a curve that thresholds have followed already.
    """
    grid = np.asarray(sorted(used), dtype=float)
    low, high = grid[0], grid[-1]
    margin = 0.05 * (high - low) if high > low else 0.2 * high
    ends = (low / 1.3, high * 1.3) if high > 20.0 * low else (max(low - margin, low / 2), high + margin)
    fine = np.unique([*_spread(*ends), *grid])
    found = cache.thresholds_at_hand(plan.problem)
    breaks = [mark for mark, name in threshold_marks(found) if "recovery" in name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    steps = [s * 10.0**-k for k in (1.5, 2, 2.5, 3, 4) for s in (-1, 1)]
    near = [b * (1 + s) for b in breaks for s in steps if fine[0] < b * (1 + s) < fine[-1]]
    dense = np.unique([*fine, *near])
    about = find_metric(metric, plan.problem.model.name)
    line = cache.curve(plan.problem, list(dense)) if plan.problem.components > 1 or is_cheap(plan.problem) else None
    if line and all(value is None for value in theory_of(about, plan.problem, line[0][0], plan.problem.components)[0]):
        line = None  # without errors of prediction
    fine_grid = line is not None
    grid = dense if fine_grid else grid
    points = cache.points(plan.problem, list(grid)) if line is None else line
    components = len(points[0][0]["overlap"])
    uninformed = [next((p for p in branches if p["branch"] == "uninformed"), branches[0]) for branches in points]
    apart = np.array([one is not branches[0] for one, branches in zip(uninformed, points)])
    apart[1:] |= apart[:-1].copy()  # with the point where they meet again
    found_lines = {}
    for name, chosen, shown in (
        ("Bayes-optimal", [branches[0] for branches in points], np.ones(len(points), dtype=bool)),
        (UNINFORMED, uninformed, apart),
    ):
        known = [theory_of(about, plan.problem, p, components) for p in chosen]
        lines = {}
        for k in range(components if about.per_component else 1):
            there = [i for i, (values, _) in enumerate(known) if shown[i] and values[k] is not None]
            if there:
                x = grid[there]
                y = np.array([known[i][0][k] for i in there], dtype=float)
                e = np.array([known[i][1][k] or 0.0 for i in there], dtype=float)
                lines[k] = Line(x, y, e) if fine_grid else smooth(Line(x, y, e), breaks)
        if lines:
            found_lines[name] = lines
    return found_lines


def _spread(low: float, high: float) -> Any:
    """Points of a line, evenly spaced on the axis that is drawn."""
    return (np.geomspace if high > 20.0 * low > 0 else np.linspace)(low, high, 120)


def smooth(line: Line, breaks: Iterable[float]) -> Line:
    """A line through the same points that overshoots nowhere (cubic, monotone), and is broken at thresholds.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line.
    """
    from scipy.interpolate import PchipInterpolator

    edges = [-np.inf, *sorted(breaks), np.inf]
    parts: list[list[Any]] = [[], [], []]
    for low, high in itertools.pairwise(edges):
        inside = (line.alpha > low) & (line.alpha <= high)
        if inside.any() and parts[0]:
            for part, value in zip(parts, (low, np.nan, np.nan)):
                part.append([value])
        if inside.sum() > 2:
            x = line.alpha[inside]
            fine = _spread(x[0], x[-1])
            for part, values in zip(parts[1:], (line.value, line.error)):
                part.append(PchipInterpolator(x, values[inside])(fine))
            parts[0].append(fine)
        elif inside.any():
            for part, values in zip(parts, line):
                part.append(values[inside])
    return Line(*(np.concatenate(part) for part in parts))


def threshold_marks(found: dict[str, Any], word: str = "component") -> list[tuple[float, str]]:
    """Sample ratios of all thresholds that theory knows, and what they are called; each once, by its first name."""
    perfect = found.get("perfect_recovery") or {}
    if "informed" in perfect:
        named = [(perfect["informed"], "perfect recovery (informed)"), (perfect, "perfect recovery (uninformed)")]
    else:
        named = [(perfect, "perfect recovery")]
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


def theory_series(
    line: Line, name: str, color: str, dashes: Any, rows: list[dict[str, Any]], algorithm: str = ""
) -> Series:
    """A line with a band where its numerical error can be seen; horizontal bars where there are too few points for one."""
    visible = (line.error > 2e-3 * np.maximum(np.abs(line.value), 2e-3)).any()
    if len(line.alpha) < FEWEST:
        # A straight line would say something of the sample ratios between, and one point has no line.
        bars = {
            "fmt": "_",
            "ms": 10 if dashes == ":" else 16,
            "mew": 1.5,
            "lw": 0.9,
            "capsize": 0,
            "color": color,
            "zorder": 2,
        }
        return Series(name, *line[:2], bars, rows, "marks", line.error if visible else None, algorithm=algorithm)
    band = (line.value - line.error, line.value + line.error) if visible else None
    style = {"color": color, "ls": dashes, "lw": 1.3, "zorder": 2}
    return Series(name, *line[:2], style, rows, band=band, algorithm=algorithm)


def _metric_panel(
    suite: Suite, plan: Any, metric: str, component: int | None, rows: list[dict[str, Any]], cache: TheoryCache,
    look: dict[str, Look],
) -> Panel:  # fmt: skip
    used = sorted({row["alpha"] for row in rows} | set(plan.alphas))
    about, d = find_metric(metric, plan.problem.model.name), letter(plan.problem.model)
    place = {"problem": plan.label, "component": component}
    k = (component or 1) - 1
    lines = {what: found[k] for what, found in theory_lines(cache, plan, metric, used).items() if k in found}
    series = [
        theory_series(line, what, "black", "--" if what == UNINFORMED else "-", [
            row for row in table({**place, "what": what}, alpha=line.alpha.tolist(), value=line.value.tolist(),
                                 error=line.error.tolist()) if np.isfinite(row["value"])
        ])
        for what, line in lines.items()
    ]  # fmt: skip
    measured = [row for row in rows if row["mean"] is not None]
    dimensions = sorted({row["dimension"] for row in measured})
    for name in dict.fromkeys(row["algorithm"] for row in measured):
        own = [row for row in measured if row["algorithm"] == name]
        series += [*_runs(own, look[name], name, place, dimensions, d), *_predicted(own, look[name], name, place)]
    for j, reference in enumerate(plan.references):
        if reference.metric == metric and reference.component in (None, component or 1):
            style = {
                "fmt": "x+1234"[j % 6],
                "ls": "none",
                "lw": 0.8,
                "capsize": 2,
                "color": "0.45",
                "ms": 5,
                "zorder": 1,
            }
            points = table({**place, "what": "reference", "algorithm": reference.label}, alpha=reference.alpha,
                           value=reference.value)  # fmt: skip
            error = None if reference.tolerance is None else np.full(len(reference.alpha), reference.tolerance)
            series.append(Series(reference.label, reference.alpha, reference.value, style, points, "marks", error))
    found = cache.thresholds_at_hand(plan.problem)
    word = component_word(plan.problem)
    marks = threshold_marks(found, word)
    head = plan.label if component is None else f"{plan.label}, {word} {component}"
    seen = [row["alpha"] for row in measured]
    panel = Panel(
        head + (f", {d} = {dimensions[0]}" if len(dimensions) == 1 else ""),
        "sample ratio α",
        about.label,
        series,
        plan.label,
        xlog=bool(seen) and max(seen) > 20.0 * min(seen),
        headroom=0.06,
        ticks=6,
        thresholds=marks,
        hard=found.get("hard_phase"),
        extra=table({**place, "what": "threshold"}, algorithm=[n for _, n in marks], alpha=[at for at, _ in marks]),
    )
    line = lines.get("Bayes-optimal")
    if about.direction == "lower" and line is not None and (line.value <= ZERO * suite.run.target).any():
        # Up to the target at least: where all errors are far below it, an axis of one decade would have no tick but 0.
        highest = [row["mean"] + (row["sem"] or 0.0) for row in measured] + [float(np.nanmax(line.value))]
        panel.zero, panel.headroom = floor_of([row["mean"] for row in measured], suite.run.target), 0.0
        panel.top = 2.0 * max([*highest, suite.run.target / 2.0])
    return panel


def _runs(
    rows: Sequence[dict[str, Any]], look: Look, name: str, place: dict[str, Any], dimensions: Sequence[int], d: str
) -> list[Series]:
    """Marks of one algorithm; larger ones for larger dimensions, hollow ones where a run has not ended as it should."""
    hollow = [bool(set(row["status_counts"]) - {"ok", "skipped"}) for row in rows]
    found, several = [], len(dimensions) > 1
    points = [
        {**place, "what": "runs", "algorithm": name, "alpha": r["alpha"], "dimension": r["dimension"], "value": r["mean"],
         "error": r["sem"], "n": r["n"], "hollow": h}
        for r, h in zip(rows, hollow)
    ]  # fmt: skip
    for dimension, empty in sorted({(row["dimension"], h) for row, h in zip(rows, hollow)}):
        own = [r for r, h in zip(rows, hollow) if (r["dimension"], h) == (dimension, empty)]
        k = dimensions.index(dimension)
        style = {"fmt": look.marker, "color": look.color, "ms": 3.0 + 2.4 * k / (len(dimensions) - 1) if several else 4.2,
                 "capsize": 1.8, "lw": 0.9, "ls": "none", "mfc": "white" if empty else look.color, "mew": 0.9,
                 "zorder": 3 + 0.1 * (len(dimensions) - k)}  # fmt: skip
        label = name + (f", {d} = {dimension}" if several else "") + (" (not all converged)" if empty else "")
        x, y, error = (np.array([r[key] or 0.0 for r in own], dtype=float) for key in ("alpha", "mean", "sem"))
        found.append(Series(label, x, y, style, points, "marks", error, algorithm=name, runs=[r["n"] for r in own]))
        points = []
    return found


def _predicted(rows: Sequence[dict[str, Any]], look: Look, name: str, place: dict[str, Any]) -> list[Series]:
    """What theory predicts for the algorithm, where that is not the Bayes-optimal value."""
    says = {
        r["alpha"]: (r["own_theory"], r["own_theory_error"] or 0.0)
        for r in sorted(rows, key=lambda r: r["dimension"])  # at one sample ratio the largest dimension is shown
        if r["own_theory"] is not None
    }
    if not says or all(r["own_theory"] == r["bayes"] for r in rows):
        return []
    known = [(a, *says[a]) for a in sorted(says)]
    line = Line(*(np.array(part, dtype=float) for part in zip(*known)))
    points = table(
        {**place, "what": "predicted", "algorithm": name}, **dict(zip(("alpha", "value", "error"), zip(*known)))
    )
    dashes = "--" if look.dashes == "-" else ":"  # of another label of the same algorithm
    return [theory_series(smooth(line, ()), f"{name}, predicted", look.color, dashes, points, name)]
