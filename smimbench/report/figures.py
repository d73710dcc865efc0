"""Figures of a suite, a panel per problem and component: theory as a line (of one algorithm: dashed) or bars, runs as
marks, thresholds, values of others, the caption.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.aggregate import ZERO
from smimbench.report.labels import component_word, letter
from smimbench.report.style import (
    Look,
    decades_to_zero,
    finish,
    floor_of,
    literal,
    log_axis,
    looks,
    looks_of,
    new_figure,
    panel_title,
    save_figure,
    threshold_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from smimbench.problem.problem import Problem
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Suite

__all__ = ["FEWEST", "Line", "draw_suite", "is_cheap", "smooth", "suite_figure", "theory_lines", "threshold_marks"]

POINTS = 120
"""Points of a theory line; doubled, theory takes twice as long and the line looks the same."""

VISIBLE = 2e-3
"""Relative numerical error of theory from which on it is drawn as a band; doubled, errors up to a line's width go undrawn."""


WIDE = 20.0
"""Largest over least sample ratio from which on they are drawn by decades: what draws fresh samples stands far to the right.
Doubled, the marks of all others are a strip at the left."""

NARROW = 0.1
"""Width of an axis over its right end below which it has fewer ticks; doubled, axes of a decade are spared."""

HEADROOM = 0.06
"""Free height above the highest mark, as a share of a panel; doubled, panels look half empty."""

FEWEST = 3
"""Points of theory from which on a line is drawn through them; doubled, coarse grids are drawn as bars."""

CROSSES = "x+1234"
PANELS = 12
"""Panels of a figure at the most; doubled, it is two pages high."""


class Line(NamedTuple):
    """Theory of one component: sample ratios, values and numerical errors."""

    alpha: Any
    value: Any
    error: Any


def draw_suite(suite: Suite, rows: Sequence[dict[str, Any]], theorist: TheoryCache, folder: Path) -> list[Path]:
    """Draw one panel per problem and component for every metric; write PNG, SVG, PDF and CSV.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    paths = []
    for metric in suite.run.metrics:
        found = suite_figure(suite, rows, theorist, metric)
        if found is not None:
            paths += save_figure(found.figure, folder, metric, found.data, found.caption)
    return paths


class Drawn(NamedTuple):
    """A figure, what is drawn in it, and what its caption says."""

    figure: Any
    data: list[dict[str, Any]]
    caption: str


def suite_figure(suite: Suite, rows: Sequence[dict[str, Any]], theorist: TheoryCache, metric: str) -> Drawn | None:
    """The figure of one metric, one panel per problem and component; None where ``--only`` leaves no problem."""
    look = looks_of(suite)
    for row in rows:  # labels that were told apart by their parameters
        look |= looks({row["algorithm"]: row["identity"]["algorithm"]["name"]}) if row["algorithm"] not in look else {}
    members = [row for row in rows if row["metric"] == metric]
    panels = [(p, c) for p in suite.chosen_plans for c in _components(p, metric)]
    if not panels:
        return None
    chosen = panels[:PANELS]
    figure, axes = new_figure(suite.title, len(chosen))
    data: list[dict[str, Any]] = []
    for axis, (plan, component) in zip(axes, chosen):
        own = [row for row in members if row["problem"] == plan.label and row["component"] == component]
        _suite_panel(axis, suite, plan, metric, component, own, theorist, look, data)
    finish(figure, axes, _note(suite, metric))
    return Drawn(figure, data, _caption(suite, metric, data, len(panels) - len(chosen)))


def _components(plan: Any, metric: str) -> Sequence[int | None]:
    several = plan.problem.components > 1 and find_metric(metric, plan.problem.model.name).per_component
    return range(1, plan.problem.components + 1) if several else (None,)


def _note(suite: Suite, metric: str) -> str:
    sources = sorted({r.source for plan in suite.chosen_plans for r in plan.references if r.metric == metric})
    return f"Crosses are values of others: {'; '.join(sources)}" if sources else ""


def _caption(suite: Suite, metric: str, data: Sequence[dict[str, Any]], left_out: int) -> str:
    """What is in the figure, said of what is really in it."""
    kinds = {entry["what"] for entry in data}
    parts = [f"{suite.title}: {find_metric(metric).label} against the sample ratio."]
    parts += _theory_words(data)
    runs = [entry for entry in data if entry["what"] == "runs"]
    if runs:
        counts = sorted({entry["n"] for entry in runs})
        many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts.append(f"Marks: mean and standard error over {many} runs.")
    if any(entry.get("hollow") for entry in runs):
        parts.append("Hollow: some of these runs did not converge.")
    if "reference" in kinds:
        parts.append("Crosses: values of others.")
    if left_out:
        parts.append(f"{left_out} further panels are left out.")
    return " ".join(parts)


def _theory_words(data: Sequence[dict[str, Any]]) -> list[str]:
    """Which line is which theory; where there are too few points for a line, that bars stand for it."""
    theory = [entry for entry in data if entry["what"] in ("Bayes-optimal", "predicted")]
    counts = Counter((e["what"], e["problem"], e["component"], e.get("algorithm")) for e in theory)
    words = []
    for what, line, whose in (
        ("Bayes-optimal", "Solid line", "Bayes-optimal"),
        ("predicted", "Dashed lines", "prediction for the algorithm"),
    ):
        drawn = {count >= FEWEST for key, count in counts.items() if key[0] == what}
        looks = [name for name, kind in ((line, True), ("Horizontal bars", False)) if kind in drawn]
        words += [f"{' and '.join(looks).capitalize()}: {whose}."] if looks else []
    return words


def is_cheap(problem: Problem) -> bool:
    """Whether theory on a fine grid costs next to nothing."""
    return problem.components == 1 and problem.channel.information is not None


UNINFORMED = "uninformed branch (reached by algorithms)"


def theory_lines(theorist: TheoryCache, plan: Any, metric: str, used: Sequence[float]) -> dict[str, dict[int, Line]]:
    """Theory by branch and component (from 0): on a fine grid, or smooth between the sample ratios that are used.

    The branches are ``"Bayes-optimal"`` and, where it is another one, that of an uninformed start. A fine grid is for theory
    that costs next to nothing, or is read off a curve that thresholds have followed already.
    """
    grid = np.asarray(sorted(used), dtype=float)
    low, high = grid[0], grid[-1]
    margin = 0.05 * (high - low) if high > low else 0.2 * high
    ends = (low / 1.3, high * 1.3) if high > WIDE * low else (max(low - margin, low / 2), high + margin)
    fine = np.unique([*_spread(*ends), *grid])
    found = theorist.thresholds_at_hand(plan.problem)
    breaks = [mark for mark, name in threshold_marks(found) if "recovery" in name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    steps = [s * 10.0**-k for k in (1.5, 2, 2.5, 3, 4) for s in (-1, 1)]
    near = [b * (1 + s) for b in breaks for s in steps if fine[0] < b * (1 + s) < fine[-1]]
    dense = np.unique([*fine, *near])
    about = find_metric(metric, plan.problem.model.name)
    read = theorist.read_off(plan.problem, list(dense)) if not is_cheap(plan.problem) else None
    if read and all(value is None for value in theory_of(about, plan.problem, read[0][0], plan.problem.components)[0]):
        read = None  # errors of prediction are not read off
    fine_grid = read is not None or is_cheap(plan.problem)
    grid = dense if fine_grid else grid
    points = theorist.points(plan.problem, list(grid)) if read is None else read
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
    return (np.geomspace if high > WIDE * low > 0 else np.linspace)(low, high, POINTS)


def smooth(line: Line, breaks: Iterable[float]) -> Line:
    """A line through the same points that overshoots nowhere (cubic, monotone), and is broken at thresholds.

    Where neither side comes near a threshold nothing is known beside it: a NaN there leaves a gap in what is drawn.
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


def _suite_panel(
    axis: Any, suite: Suite, plan: Any, metric: str, component: int | None, rows: list[dict[str, Any]], theorist: TheoryCache,
    look: dict[str, Look], data: list[dict[str, Any]],
) -> None:  # fmt: skip
    used = sorted({row["alpha"] for row in rows} | set(plan.alphas))
    about = find_metric(metric, plan.problem.model.name)
    branches = theory_lines(theorist, plan, metric, used)
    line, uninformed = (branches.get(name, {}).get((component or 1) - 1) for name in ("Bayes-optimal", UNINFORMED))
    measured = [row for row in rows if row["mean"] is not None]
    zero = line is not None and bool((line.value <= ZERO * suite.run.target).any())
    logarithmic = about.direction == "lower" and zero
    floor = floor_of([row["mean"] for row in measured], suite.run.target) if logarithmic else 0.0
    place = {"problem": plan.label, "component": component}
    if line is not None:
        _draw_theory_line(axis, line, "Bayes-optimal", "black", "-", floor)
        data += [{**place, "what": "Bayes-optimal", "alpha": float(a), "value": float(v), "error": float(e)}
                 for a, v, e in zip(*line) if np.isfinite(v)]  # fmt: skip
    if uninformed is not None:
        _draw_theory_line(axis, uninformed, UNINFORMED, "black", "--", floor)
        data += [{**place, "what": UNINFORMED, "alpha": float(a), "value": float(v), "error": float(e)}
                 for a, v, e in zip(*uninformed) if np.isfinite(v)]  # fmt: skip
    labels = list(dict.fromkeys(row["algorithm"] for row in measured))
    dimensions = sorted({row["dimension"] for row in measured})
    for name in labels:
        own = [row for row in measured if row["algorithm"] == name]
        _draw_runs(axis, own, look[name], name, floor, dimensions, letter(plan.problem.model))
        for r in own:
            where = {"what": "runs", "algorithm": name, "alpha": r["alpha"], "dimension": r["dimension"]}
            found = {"value": r["mean"], "error": r["sem"], "n": r["n"], "hollow": _hollow(r)}
            data.append({**place, **where, **found})
        says = {
            r["alpha"]: (r["own_theory"], r["own_theory_error"] or 0.0)
            for r in sorted(own, key=lambda r: r["dimension"])  # at one sample ratio the largest dimension is shown
            if r["own_theory"] is not None
        }
        theory = [(a, *says[a]) for a in sorted(says)]
        if theory and any(r["own_theory"] != r["bayes"] for r in own):
            known = Line(*(np.array(part, dtype=float) for part in zip(*theory)))
            dashes = "--" if look[name].dashes == "-" else ":"  # of another label of the same algorithm
            _draw_theory_line(axis, smooth(known, ()), f"{name}, predicted", look[name].colour, dashes, floor)
            data += [
                {**place, "what": "predicted", "algorithm": name, "alpha": a, "value": v, "error": e}
                for a, v, e in theory
            ]
    for j, reference in enumerate(plan.references):
        fits = reference.component is None or reference.component == (component or 1)
        if reference.metric == metric and fits:
            axis.errorbar(
                reference.alpha,
                reference.value,
                yerr=reference.tolerance,
                fmt=CROSSES[j % len(CROSSES)],
                ls="none",
                lw=0.8,
                capsize=2,
                color="0.45",
                ms=5,
                zorder=1,
                label=literal(reference.label),
            )
            data += [{**place, "what": "reference", "algorithm": reference.label, "alpha": a, "value": v}
                     for a, v in zip(reference.alpha, reference.value)]  # fmt: skip
    found = theorist.thresholds_at_hand(plan.problem)
    if logarithmic:
        # Up to the target at least: where all errors are far below it, an axis of one decade would have no tick but 0.
        highest = [row["mean"] + (row["sem"] or 0.0) for row in measured] + ([np.nanmax(line.value)] if line else [])
        top = 2.0 * max([*highest, suite.run.target / 2.0])
        decades_to_zero(axis, floor, top)
    else:
        low, high = axis.get_ylim()
        low = min(0.0, low)
        axis.set_ylim(
            low, max(high, axis.dataLim.y1 + HEADROOM * (axis.dataLim.y1 - low))
        )  # or marks at the top are cut
    seen = [row["alpha"] for row in measured]
    if seen and max(seen) > WIDE * min(seen):
        log_axis(axis, "x")
    marks = threshold_marks(found, component_word(plan.problem))
    levels = threshold_lines(axis, marks, found.get("hard_phase"))
    data += [{**place, "what": "threshold", "algorithm": name, "alpha": at} for at, name in marks]
    head = plan.label if component is None else f"{plan.label}, {component_word(plan.problem)} {component}"
    d = letter(plan.problem.model)
    panel_title(
        axis, literal(head) + (f", {d} = {dimensions[0]}" if len(dimensions) == 1 else ""), above=6 + 8 * levels
    )
    if axis.get_xscale() == "linear":
        left, right = axis.get_xlim()
        close = right - left < NARROW * right  # sample ratios that differ in late digits have long labels
        axis.locator_params(axis="x", nbins=3 if close else 6)
    if line is None and not measured:
        axis.text(0.5, 0.5, "no value", transform=axis.transAxes, ha="center", va="center", fontsize=8, color="0.4")
    axis.set_xlabel("sample ratio α")
    axis.set_ylabel(about.label)


def _draw_theory_line(axis: Any, line: Line, name: str, colour: str, dashes: Any, floor: float) -> None:
    value = np.maximum(line.value, floor) if floor else line.value
    if len(line.alpha) < FEWEST:
        # A straight line would say something of the sample ratios between, and one point has no line.
        bars = {"fmt": "_", "ms": 10 if dashes == ":" else 16, "mew": 1.5, "lw": 0.9, "capsize": 0}
        known = _uncertain(line).any()
        low = np.minimum(line.error, value - floor) if floor else line.error
        error = np.stack([low, line.error]) if known else None
        axis.errorbar(line.alpha, value, yerr=error, color=colour, label=literal(name), zorder=2, **bars)
        return
    axis.plot(line.alpha, value, color=colour, ls=dashes, lw=1.3, label=literal(name), zorder=2)
    if _uncertain(line).any():
        low, high = line.value - line.error, line.value + line.error
        axis.fill_between(
            line.alpha, *(np.maximum(v, floor) if floor else v for v in (low, high)), color=colour, alpha=0.18, lw=0
        )


def _uncertain(line: Line) -> Any:
    """Where the numerical error of theory can be seen."""
    return line.error > VISIBLE * np.maximum(np.abs(line.value), VISIBLE)


def _hollow(row: dict[str, Any]) -> bool:
    return bool(set(row["status_counts"]) - {"ok", "skipped"})


def _draw_runs(
    axis: Any, rows: Sequence[dict[str, Any]], look: Look, name: str, floor: float, dimensions: Sequence[int], d: str
) -> None:
    """Marks of one algorithm; larger ones for larger dimensions, hollow ones where a run has not ended as it should."""
    for dimension, hollow in sorted({(row["dimension"], _hollow(row)) for row in rows}):
        own = [r for r in rows if (r["dimension"], _hollow(r)) == (dimension, hollow)]
        k = dimensions.index(dimension)
        size = 4.2 if len(dimensions) == 1 else 3.0 + 2.4 * k / (len(dimensions) - 1)
        label = name + (f", {d} = {dimension}" if len(dimensions) > 1 else "")
        label += " (not all converged)" if hollow else ""
        axis.errorbar([r["alpha"] for r in own], [max(r["mean"], floor) if floor else r["mean"] for r in own],
                      yerr=[r["sem"] or 0.0 for r in own], fmt=look.marker, color=look.colour, ms=size, capsize=1.8,
                      lw=0.9, ls="none", mfc="white" if hollow else look.colour, mew=0.9, label=literal(label),
                      zorder=3 + 0.1 * (len(dimensions) - k))  # fmt: skip
