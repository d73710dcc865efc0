"""Figures of what runs do on their way: error against the samples processed, against seconds, and against the clock of the
algorithm with the predicted trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric, is_in_trajectory, theory_of
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.figures import PANELS, is_cheap
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import draws_fresh, own_point, planned_ratio
from smimbench.report.statistics import ZERO
from smimbench.report.style import COLORS, FLOOR, Look, floor_of, line_name, looks_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["chosen_panels", "learning_chart", "left_out", "seconds_chart", "spread", "trajectory_chart"]


Pair = tuple["Cell", dict[str, Any]]
Place = tuple[str, float, int]
"""Label of a problem, sample ratio, dimension."""


def learning_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """One panel per problem and sample ratio of what algorithms that count their samples learned, sample by sample.

    A sample that is processed again counts again. Thin lines are runs, thick ones their median. The Bayes-optimal line is
    the best that is possible with as many samples, up to all of a run's data; from there on it is flat, since repeated
    samples bring nothing new. Where an algorithm draws fresh ones (``online``), a second line goes on. Where theory is
    costly, the line is that of all samples. None where no algorithm counts samples (message passing does not).
    """
    metric = next((name for name in suite.run.metrics if is_in_trajectory(find_metric(name))), None)
    if metric is None:
        return None
    panels: dict[Place, dict[str, list[Any]]] = {}
    whole: list[tuple[Any, str, Any]] = []
    for cell, record in pairs:
        trajectory = store.trajectory(record)
        found, place = _counted_curve(trajectory, metric), (cell.problem_label, cell.alpha, cell.dimension)
        if found is not None:
            panels.setdefault(place, {}).setdefault(cell.algorithm_label, []).append((record, *found))
        elif trajectory is not None and metric in trajectory and len(trajectory["iteration"]) > 2:
            whole.append((place, cell.algorithm_label, (record, *_passes(trajectory, record, metric))))
    for place, label, run in whole:  # next to those that count their samples
        if place in panels:
            panels[place].setdefault(label, []).append(run)
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    drawn = [_learning_panel(suite, place, metric, panels[place], cache) for place in chosen]
    note = "A sample that is processed again counts again"
    names = sorted({label for place, label, _ in whole if place in chosen})
    note += f"; an iteration of {', '.join(names)} counts all samples." if names else "."
    if any(panel.upright is not None for panel in drawn):
        note += " Upright line: every sample of the data set once."
    note += left_out(chosen, panels)
    caption = f"{suite.title}: {find_metric(metric).label} against the samples processed. "
    caption += f"Thin lines: runs; thick: their median. {note}"
    reading = "Median over runs; a sample that is processed again counts again."
    return Chart("learning", suite.title, drawn, caption, note, "Error against samples processed", reading, many=True)


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
    """How many of all panels a figure shows; empty if it shows all."""
    if len(chosen) == len(places):
        return ""
    return f" {len(chosen)} of {len(places)} combinations of problem, sample ratio and dimension."


def spread(places: list[Any], most: int) -> list[Any]:
    """At most so many of them, first and last included."""
    if len(places) <= most:
        return places
    return [places[int(i)] for i in np.unique(np.linspace(0, len(places) - 1, most).round())]


def _place_title(suite: Suite, place: Place) -> tuple[Any, str, dict[str, Any]]:
    """The problem of a panel, its title, and its columns in the CSV."""
    label, alpha, dimension = place
    problem = next(plan.problem for plan in suite.plans if plan.label == label)
    title = f"{label}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}"
    return problem, title, {"problem": label, "alpha": alpha, "dimension": dimension}


def _end_marker(look: Look) -> dict[str, Any]:
    """The marker of an algorithm at the end of its curve: in grey, colors do not tell two of them apart."""
    return {"marker": look.marker, "markevery": [-1], "ms": 4.5, "zorder": 3}


def _learning_panel(
    suite: Suite, place: Place, metric: str, algorithms: dict[str, list[Any]], cache: TheoryCache
) -> Panel:
    problem, title, at = _place_title(suite, place)
    _, alpha, dimension = place
    curve = is_cheap(problem)
    runs = [run for members in algorithms.values() for run in members]
    components = runs[0][2].shape[1]
    first, last = min(run[1][0] for run in runs), max(run[1][-1] for run in runs)
    held = float(runs[0][0].get("samples", problem.model.sample_count(alpha, dimension)))
    fresh = max((run[1][-1] for run in runs if draws_fresh(run[0]["cell"]["algorithm"])), default=0.0)
    about, word, single = find_metric(metric), component_word(problem), components == 1
    # Without a curve (costly theory) the line is that of the whole data set, and says so.
    lines = [(first, held, "Bayes-optimal" if curve or first >= held else "Bayes-optimal, whole data set", "--")]
    if curve and fresh > held:
        lines.append((max(first, held), fresh, "Bayes-optimal, fresh samples", ":"))
    series: list[Series] = []
    reaches_zero = False
    for start, stop, name, dashes in lines:
        seen = np.geomspace(start, stop, 40) if curve and start < stop else np.array([stop])
        ratios = [problem.model.sample_ratio(max(1, round(n)), dimension) for n in seen]
        found = cache.curve(problem, ratios) if curve else None
        points = [branches[0] for branches in found or cache.points(problem, ratios)]
        expected = [theory_of(about, problem, point, components)[0] for point in points]
        for component in range(components):
            values = [found[component] for found in expected]
            if values[-1] is None:
                continue
            reaches_zero = reaches_zero or values[-1] <= ZERO * suite.run.target
            several = len(seen) > 1
            x = [*(seen if several else [first]), max(last, stop)]
            y = [*(values if several else values[-1:]), values[-1]]
            title_of_line = line_name(name, word, None if single else component)
            style = {"color": "black" if single else COLORS[component], "lw": 1.4, "ls": dashes, "zorder": 2}
            rows = table({**at, "what": title_of_line}, samples=x, value=y)
            series.append(Series(title_of_line, x, y, style, rows))
    looks = looks_of(suite)
    for i, (algorithm, members) in enumerate(algorithms.items()):
        for component in range(components):
            style = {"color": looks[algorithm].color if single else COLORS[component % len(COLORS)]}
            style |= {"ls": "-" if single else ("-", "-.", ":", (0, (5, 1)))[i % 4]}
            thin = {**style, "lw": 0.6, "alpha": 0.3, "zorder": 1}
            series += [Series("", samples, values[:, component], thin) for _, samples, values in members]
            name = line_name(algorithm, word, None if single else component)
            x, y = _median_curve(members, component)
            if len(x):
                rows = table({**at, "what": name}, samples=x, value=y)
                style |= {"lw": 1.8, **_end_marker(looks[algorithm])}
                series.append(Series(name, x, y, style, rows, algorithm=algorithm))
    panel = Panel(title, "samples processed", about.label, series, place[0], xlog=True, ylim=(0.0, None))
    panel.upright = held if first < held < last else None
    if about.direction == "lower":  # a run that diverges leaves the panel, not the others on its floor
        panel.cap = 3.0 * max(run[2][0].max() for run in runs)
        if reaches_zero:
            panel.zero = floor_of([float(value) for run in runs for value in run[2].ravel()], suite.run.target)
    return panel


def _median_curve(members: Iterable[tuple[Any, Any, Any]], component: int) -> tuple[Any, Any]:
    """Median over runs where all of them still run; between the samples at which a run was looked at, its last value."""
    curves = [(samples, values[:, component]) for _, samples, values in members]
    start = max(samples[0] for samples, _ in curves)
    end = min(samples[-1] for samples, _ in curves)
    grid = np.unique(np.concatenate([samples for samples, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    read = [values[np.searchsorted(samples, grid, side="right") - 1] for samples, values in curves]
    return grid, np.median(read, axis=0)


# -- against seconds ------------------------------------------------------------------------------------------------------


def seconds_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """One panel per problem, sample ratio and dimension with the squared error, summed over components, against seconds.

    Lines are medians over the runs, each of which keeps its last error when it has ended; a mark is where the last one ended,
    a band the range from quartile to quartile. None where a single algorithm was run.
    """
    runs: list[tuple[Any, ...]] = []
    for cell, record in pairs:
        trajectory = store.trajectory(record)
        if trajectory is None or "mse" not in trajectory:
            continue
        lost = (record.get("timing") or {}).get("lost_seconds") or 0.0
        seconds = np.asarray(trajectory["seconds"], dtype=float) + lost
        error = np.asarray(trajectory["mse"]).sum(axis=1)
        there = np.isfinite(error) & (seconds > 0)
        if there.any():
            place = (cell.problem_label, cell.alpha, cell.dimension)
            runs.append((place, cell.algorithm_label, seconds[there], error[there], record))
    panels = {place: grouped(own, lambda run: run[1]) for place, own in grouped(runs, lambda run: run[0]).items()}
    panels = {place: own for place, own in panels.items() if len(own) > 1}
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    trusted = all((run[4].get("timing") or {}).get("trusted") for run in runs)
    note = "" if trusted else "Times are untrusted: cells may have run side by side."
    note = (note + left_out(chosen, panels)).strip()
    caption = (
        f"{suite.title}: squared error against seconds. Lines: median over runs; bands: quartiles; marks: the end. "
    )
    drawn = [_seconds_panel(suite, place, panels[place], cache) for place in chosen]
    return Chart(
        "seconds", suite.title, drawn, caption + note, note, "Error against seconds", "Median over runs.", many=True
    )


def _seconds_panel(suite: Suite, place: Place, algorithms: dict[str, list[Any]], cache: TheoryCache) -> Panel:
    problem, title, at = _place_title(suite, place)
    ratio = problem.model.sample_ratio(problem.model.sample_count(*place[1:]), place[2])
    bayes = float(np.sum(cache.points(problem, [ratio])[0][0]["mse"]))
    looks, series = looks_of(suite), []
    lowest = [float(run[3].min()) for members in algorithms.values() for run in members]
    highest = max(float(run[3][0]) for members in algorithms.values() for run in members)
    floor = floor_of([*lowest, bayes], suite.run.target)
    ends = [time for members in algorithms.values() for run in members for time in (run[2][0], run[2][-1])]
    for name, members in algorithms.items():
        first, last = max(run[2][0] for run in members), max(run[2][-1] for run in members)
        grid = np.geomspace(first, last, 200) if last > first else np.array([last])
        read = [run[3][np.searchsorted(run[2], grid, side="right") - 1] for run in members]
        low, middle, high = (np.maximum(part, floor) for part in np.quantile(read, [0.25, 0.5, 0.75], axis=0))
        look = looks[name]
        style = {"color": look.color, "ls": look.dashes, **_end_marker(look)}
        rows = table({**at, "what": name}, seconds=grid, value=middle, quartile_1=low, quartile_3=high)
        series.append(Series(name, grid, middle, style, rows, band=(low, high), algorithm=name))
    panel = Panel(title, "seconds", "MSE", series, place[0], xlog=True, ylog=True, top=3 * highest)
    if bayes > floor:
        rows = [{**at, "what": "Bayes-optimal", "value": bayes}]
        style = {"color": "black", "lw": 1.2, "zorder": 2}
        series.append(Series("Bayes-optimal", [min(ends), max(ends)], [bayes, bayes], style, rows))
        panel.ylim = (min(bayes, *lowest) / 1.5, 3 * highest)
    else:
        series.append(Series("Bayes-optimal: 0", [], [], {"color": FLOOR, "lw": 2.5}))
        panel.zero = floor
    return panel


# -- with the predicted trajectory ------------------------------------------------------------------------------------------


def trajectory_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """Runs against their own clock, with the predicted trajectory: thin lines are runs, dashed ones theory.

    One panel for every problem, algorithm, sample ratio and dimension whose theory has a trajectory: error and overlap of every
    component against iterations, or against samples / D where samples are counted. None where no theory has a trajectory.
    """
    problems = {plan.label: plan.problem for plan in suite.plans}
    panels = []
    for (label, name, _, dimension), members in grouped(
        pairs, lambda pair: (pair[0].problem_label, pair[0].algorithm_label, pair[0].alpha, pair[0].dimension)
    ).items():
        cell, problem = members[0][0], problems[label]
        records = [record for _, record in members]
        ratio = planned_ratio(problem, cell)
        found = own_point(cache, problem, cell, ratio, records, trajectory=True)
        if isinstance(found, str) or "trajectory" not in found:
            continue
        runs = [run for record in records if (run := store.trajectory(record)) is not None and "mse" in run]
        alpha = ratio if draws_fresh(cell.algorithm) else cell.alpha  # as in tables
        place = {"problem": label, "algorithm": name, "alpha": alpha, "dimension": dimension}
        panels.append((place, letter(problem.model), found["trajectory"], runs))
    if not panels:
        return None
    chosen = panels[:9]
    caption = "Thin lines: runs; dashed: the predicted trajectory; against the clock of the algorithm."
    if any("mse_limit" in theory for _, _, theory, _ in panels):
        caption += " Dotted: theory as the dimension grows, from the same starts."
    if len(panels) > len(chosen):
        caption += f" {len(chosen)} of {len(panels)} combinations of problem, algorithm, sample ratio and dimension."
    return Chart(
        "trajectories", suite.title, [_trajectory_panel(*panel) for panel in chosen], caption, caption,
        "Runs and their predicted trajectory", "Solid: mean of the runs; dashed: predicted from their starts.", many=True,
    )  # fmt: skip


def _trajectory_panel(place: dict[str, Any], d: str, theory: dict[str, Any], runs: Sequence[dict[str, Any]]) -> Panel:
    """One panel; the page has the mean of all runs in place of each."""
    counted = "samples" in theory
    clock, scale = ("samples", place["dimension"]) if counted else ("iteration", 1)
    at, series = np.asarray(theory[clock]) / scale, []
    paths = [name for name in ("mse", "overlap") if name in theory]
    for index, metric in enumerate(paths):
        values = np.asarray(theory[metric], dtype=float).reshape(len(theory[clock]), -1)
        for component in range(values.shape[1]):
            color = COLORS[(index * values.shape[1] + component) % len(COLORS)]
            name = find_metric(metric).label + (f" {component + 1}" if values.shape[1] > 1 else "")
            about = {**place, "metric": metric, "component": component + 1 if values.shape[1] > 1 else None}
            curves = [("predicted", at, values[:, component], {"ls": "--", "lw": 1.6})]
            if f"{metric}_limit" in theory:
                limit = np.asarray(theory[f"{metric}_limit"], dtype=float).reshape(len(at), -1)[:, component]
                curves.append(("predicted as D grows", at, limit, {"ls": ":", "lw": 1.2}))
            read = []
            for run in runs:
                # Before the first step nothing has been counted.
                ticks = np.where(run["iteration"] == 0, 0.0, run[clock]) / scale
                own = np.asarray(run[metric], dtype=float)[:, component]
                series.append(Series("", ticks, own, {"color": color, "lw": 0.6, "alpha": 0.35}))
                read.append(np.interp(at, ticks, own, right=np.nan))
            if read:
                seen = np.isfinite(read).all(axis=0)
                curves.append(("mean of runs", at[seen], np.mean(read, axis=0)[seen], {}))
            for what, x, y, style in curves:
                rows = table({**about, "what": what}, **{clock: x.tolist(), "value": y.tolist()})
                series.append(Series(f"{name}, {what}", x, y, {"color": color, **style}, rows,
                                     algorithm=place["algorithm"], hidden=what == "mean of runs"))  # fmt: skip
    title = f"{place['problem']}: {place['algorithm']}, α = {place['alpha']:.4g}, {d} = {place['dimension']}"
    ylabel = ", ".join(find_metric(metric).label for metric in paths)
    xlabel = f"samples / {d}" if counted else "iteration"
    return Panel(title, xlabel, ylabel, series, place["problem"], ylim=(0.0, None))
