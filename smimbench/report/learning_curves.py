"""Figures of learning curves: error or overlap against the samples processed, beside what that many samples could give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric, is_in_trajectory, theory_of
from smimbench.report.aggregate import ZERO
from smimbench.report.figures import is_cheap
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import draws_fresh
from smimbench.report.style import (
    COLOURS,
    decades_to_zero,
    finish,
    floor_of,
    line_name,
    literal,
    log_axis,
    looks_of,
    new_figure,
    panel_title,
    save_figure,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["PANELS", "chosen_panels", "draw_learning_curves", "left_out", "spread"]

PANELS = 12
"""Panels of the figure at the most; doubled, it has eight rows and panels are still of the same size."""

POINTS = 40
"""Points of the Bayes-optimal line; doubled, theory takes twice as long and the line looks the same."""

ROOM = 3.0
"""Height of a panel in units of the largest error at the start: what is above it has diverged. Doubled, curves are flatter."""

Pair = tuple["Cell", dict[str, Any]]
Place = tuple[str, float, int]
"""Label of a problem, sample ratio, dimension."""


def draw_learning_curves(
    suite: Suite, pairs: Sequence[Pair], theorist: TheoryCache, store: Store, folder: Path
) -> list[Path]:
    """Draw one panel per problem and sample ratio of what algorithms that count their samples learned, sample by sample.

    A sample that is processed again counts again. Thin lines are runs, thick ones their median. The Bayes-optimal line is
    the best that is possible with as many samples, up to all of a run's data; from there on it is flat, since repeated
    samples bring nothing new. Where an algorithm draws fresh ones (``online``), a second line goes on. Where theory is
    dear, the line is that of all samples.

    Parameters
    ----------
    pairs : sequence of (Cell, dict)
        Cells and their records.

    Returns
    -------
    list of Path
        PNG and SVG; empty where no algorithm counts samples (message passing and one-step methods do not).

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    metric = next((name for name in suite.run.metrics if is_in_trajectory(find_metric(name))), None)
    if metric is None:
        return []
    panels: dict[Place, dict[str, list[Any]]] = {}
    whole: list[tuple[Any, str, Any]] = []
    for cell, record in pairs:
        trajectory = store.trajectory(record)
        found, place = _counted_curve(trajectory, metric), (cell.problem_label, cell.alpha, cell.dimension)
        if found is not None:
            panels.setdefault(place, {}).setdefault(cell.algorithm_label, []).append((record, *found))
        elif trajectory is not None and metric in trajectory and len(trajectory["iteration"]) > 2:
            whole.append((place, cell.algorithm_label, (record, *_passes(trajectory, record, metric))))
    for place, label, run in whole:  # beside those that count their samples
        if place in panels:
            panels[place].setdefault(label, []).append(run)
    if not panels:
        return []
    chosen = chosen_panels(suite, panels)
    figure, axes = new_figure(suite.title, len(chosen))
    data: list[dict[str, Any]] = []
    marked = [
        _learning_panel(axis, suite, place, metric, panels[place], theorist, data) for axis, place in zip(axes, chosen)
    ]
    note = "A sample that is processed again counts again"
    names = sorted({label for place, label, _ in whole if place in chosen})
    note += f"; an iteration of {', '.join(names)} counts all samples." if names else "."
    if any(marked):
        note += " Upright line: every sample of the data set once."
    note += left_out(chosen, panels)
    finish(figure, axes, note)
    label = find_metric(metric).label
    caption = f"{suite.title}: {label} against the samples processed. Thin lines: runs; thick: their median. {note}"
    return save_figure(figure, folder, "learning", data, caption)


def _counted_curve(trajectory: dict[str, Any] | None, metric: str) -> tuple[Any, Any] | None:
    """Samples processed (t,) and values (t, P) from the first step on; None if samples were not counted."""
    if trajectory is None or "samples" not in trajectory or metric not in trajectory:
        return None
    samples = np.asarray(trajectory["samples"], dtype=float)
    counted = np.isfinite(samples) & (samples > 0)
    return (samples[counted], np.asarray(trajectory[metric])[counted]) if counted.sum() > 1 else None


def _passes(trajectory: dict[str, Any], record: dict[str, Any], metric: str) -> tuple[Any, Any]:
    """The same of an algorithm that goes through all samples in every iteration."""
    iterations = np.asarray(trajectory["iteration"], dtype=float)
    later = iterations > 0
    return iterations[later] * float(record["samples"]), np.asarray(trajectory[metric])[later]


def chosen_panels(suite: Suite, places: Iterable[Place]) -> list[Place]:
    """What is drawn, in the order of the suite: all there is, or of each problem the largest dimension, and not too many."""
    order = {plan.label: i for i, plan in enumerate(suite.plans)}
    found = sorted(places, key=lambda place: (order[place[0]], *place[1:]))
    if len(found) > PANELS:
        largest = {label: max(d for _, _, d in own) for label, own in grouped(found, lambda place: place[0]).items()}
        found = [place for place in found if place[2] == largest[place[0]]]
    return spread(found, PANELS)


def left_out(chosen: Sequence[Place], places: Collection[Place]) -> str:
    """What a figure says of the panels that it does not show; nothing if it shows all."""
    if len(chosen) == len(places):
        return ""
    return f" {len(chosen)} of {len(places)} combinations of problem, sample ratio and dimension."


def spread(places: list[Any], most: int) -> list[Any]:
    """At most so many of them, first and last included."""
    if len(places) <= most:
        return places
    return [places[int(i)] for i in np.unique(np.linspace(0, len(places) - 1, most).round())]


def _learning_panel(
    axis: Any,
    suite: Suite,
    place: Place,
    metric: str,
    algorithms: dict[str, list[Any]],
    theorist: TheoryCache,
    data: list[dict[str, Any]],
) -> bool:
    """Draw one panel; whether it shows where the data set has been gone through once."""
    label, alpha, dimension = place
    problem = next(plan.problem for plan in suite.plans if plan.label == label)
    curve = is_cheap(problem)
    runs = [run for members in algorithms.values() for run in members]
    components = runs[0][2].shape[1]
    first = min(run[1][0] for run in runs)
    last = max(run[1][-1] for run in runs)
    held = float(runs[0][0].get("samples", problem.model.sample_count(alpha, dimension)))
    fresh = max((run[1][-1] for run in runs if draws_fresh(run[0]["cell"]["algorithm"])), default=0.0)
    about, word = find_metric(metric), component_word(problem)
    single = components == 1
    # Without a curve (costly theory) the line is that of the whole data set, and says so.
    name = "Bayes-optimal" if curve or first >= held else "Bayes-optimal, whole data set"
    lines = [(first, held, name, "--")]
    if curve and fresh > held:
        lines.append((max(first, held), fresh, "Bayes-optimal, fresh samples", ":"))
    reaches_zero = False
    for start, stop, name, dashes in lines:
        seen = np.geomspace(start, stop, POINTS) if curve and start < stop else np.array([stop])
        ratios = [problem.model.sample_ratio(max(1, round(n)), dimension) for n in seen]
        points = [branches[0] for branches in theorist.points(problem, ratios)]
        expected = [theory_of(about, problem, point, components)[0] for point in points]
        for component in range(components):
            values = [found[component] for found in expected]
            if values[-1] is None:
                continue
            reaches_zero = reaches_zero or values[-1] <= ZERO * suite.run.target
            several = len(seen) > 1
            axis.plot(
                [*(seen if several else [first]), max(last, stop)],
                [*(values if several else values[-1:]), values[-1]],
                color="black" if single else COLOURS[component],
                lw=1.4,
                ls=dashes,
                label=line_name(name, word, None if single else component),
                zorder=2,
            )
            at = {"problem": label, "alpha": alpha, "dimension": dimension}
            at["what"] = line_name(name, word, None if single else component)
            data += [{**at, "samples": x, "value": y} for x, y in zip(*axis.lines[-1].get_data())]
    looks = looks_of(suite)
    for i, (algorithm, members) in enumerate(algorithms.items()):
        for component in range(components):
            colour = looks[algorithm].colour if single else COLOURS[component % len(COLOURS)]
            style: Any = "-" if single else ("-", "-.", ":", (0, (5, 1)))[i % 4]
            for _, samples, values in members:
                axis.plot(samples, values[:, component], color=colour, lw=0.6, alpha=0.3, ls=style, zorder=1)
            name = line_name(algorithm, word, None if single else component)
            median = _median_curve(members, component)
            if len(median[0]):
                # In grey, colours do not tell two algorithms apart.
                end = {"marker": looks[algorithm].marker, "markevery": [-1], "ms": 4.5}
                axis.plot(*median, color=colour, lw=1.8, ls=style, label=name, zorder=3, **end)
                at = {"problem": label, "alpha": alpha, "dimension": dimension, "what": name}
                data += [{**at, "samples": x, "value": y} for x, y in zip(*median)]
    once = bool(first < held < last)
    if once:
        axis.axvline(held, color="0.6", lw=0.9, zorder=0)
    log_axis(axis, "x")
    panel_title(axis, f"{literal(label)}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}")
    axis.set_xlabel("samples processed")
    axis.set_ylabel(about.label)
    axis.set_ylim(bottom=0.0)
    if about.direction == "lower":  # a run that diverges leaves the panel, not the others on its floor
        top = min(float(axis.get_ylim()[1]), ROOM * max(run[2][0].max() for run in runs))
        axis.set_ylim(top=top)
        if reaches_zero:
            floor = floor_of([float(value) for run in runs for value in run[2].ravel()], suite.run.target)
            decades_to_zero(axis, floor, top)
    return once


def _median_curve(members: Iterable[tuple[Any, Any, Any]], component: int) -> tuple[Any, Any]:
    """Median over runs where all of them still run; between the samples at which a run was looked at, its last value."""
    curves = [(samples, values[:, component]) for _, samples, values in members]
    start = max(samples[0] for samples, _ in curves)
    end = min(samples[-1] for samples, _ in curves)
    grid = np.unique(np.concatenate([samples for samples, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    read = [values[np.searchsorted(samples, grid, side="right") - 1] for samples, values in curves]
    return grid, np.median(read, axis=0)
