"""Figures of what runs do on their way: error against the samples processed, against seconds, and against the clock of the
algorithm with the predicted trajectory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.figures import PANELS, is_cheap
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import Pair, bayes_point, own_point, ratio_of_runs, used_fresh
from smimbench.report.statistics import ZERO
from smimbench.report.style import COLORS, FLOOR, end_marker, floor_of, line_name, looks_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

Place = tuple[str, float, int]
"""Label of a problem, sample ratio, dimension."""


class Run(NamedTuple):
    """Values (t, P) of a run along its axis (t,), with its place, algorithm and record."""

    place: Place
    algorithm: str
    record: JsonObject
    x: Any
    values: Any


def spread(places: list[Any], most: int) -> list[Any]:
    """At most so many of them, first and last included."""
    if len(places) <= most:
        return places
    return [places[int(i)] for i in np.unique(np.linspace(0, len(places) - 1, most).round())]


def chosen_panels(suite: Suite, places: Collection[Place]) -> list[Place]:
    """What is drawn, in the order of the suite: all there is, or of each problem the largest dimension, and not too many."""
    order = {plan.label: i for i, plan in enumerate(suite.plans)}
    found = sorted(places, key=lambda place: (order[place[0]], *place[1:]))
    if len(found) > PANELS:
        largest = {label: max(d for _, _, d in own) for label, own in grouped(found, lambda place: place[0]).items()}
        found = [place for place in found if place[2] == largest[place[0]]]
    return spread(found, PANELS)


def left_out(chosen: Sequence[Any], places: Collection[Any], what: str = "problem, sample ratio and dimension") -> str:
    """How many of all panels a figure shows; empty if it shows all."""
    return "" if len(chosen) == len(places) else f" {len(chosen)} of {len(places)} combinations of {what}."


def _problem_of(suite: Suite, label: str) -> Problem:
    return next(plan.problem for plan in suite.plans if plan.label == label)


def _place_panel(suite: Suite, place: Place, xlabel: str, ylabel: str) -> tuple[Any, Panel, JsonObject]:
    """The problem of a place, its panel without series, and its columns in the CSV."""
    label, alpha, dimension = place
    problem = _problem_of(suite, label)
    title = f"{label}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}"
    about = {"problem": label, "alpha": alpha, "dimension": dimension}
    return problem, Panel(title, xlabel, ylabel, [], label, xlog=True), about


def _trajectories(
    pairs: Sequence[Pair], store: Store, metric: str
) -> Iterator[tuple[tuple[Place, str, JsonObject], JsonObject]]:
    """Place, algorithm and record, and the trajectory, of runs that measured a metric on their way."""
    for cell, record in pairs:
        trajectory = store.trajectory(record)
        if trajectory is not None and metric in trajectory:
            place = (cell.problem_label, cell.alpha, cell.dimension)
            yield (place, cell.algorithm_label, record), trajectory


# -- against samples ------------------------------------------------------------------------------------------------------


def learning_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """One panel per problem and sample ratio of what algorithms that count their samples learned, sample by sample.

    A sample that is processed again counts again. Thin lines are runs, thick ones their median. The Bayes-optimal line is
    the best that is possible with as many samples, up to all of a run's data; from there on it is flat, since repeated
    samples bring nothing new. Where an algorithm draws fresh ones (``online``), a second line goes on. Where theory is
    costly, the line is that of all samples. None where no algorithm counts samples (message passing does not).
    """
    metric = next((name for name in suite.run.metrics if find_metric(name).in_trajectory), None)
    if metric is None:
        return None
    counted: list[Run] = []
    whole: list[Run] = []
    for about, trajectory in _trajectories(pairs, store, metric):
        samples, values = np.asarray(trajectory.get("samples", ()), dtype=float), np.asarray(trajectory[metric])
        iterations = np.asarray(trajectory["iteration"], dtype=float)
        if (known := np.isfinite(samples) & (samples > 0)).sum() > 1:
            counted.append(Run(*about, samples[known], values[known]))
        elif len(iterations) > 2:  # all samples in every iteration
            later = iterations > 0
            whole.append(Run(*about, iterations[later] * float(about[-1]["samples"]), values[later]))
    places = {run.place for run in counted}
    panels = grouped([run for run in counted + whole if run.place in places], lambda run: run.place)
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    drawn = [_learning_panel(suite, place, metric, panels[place], cache) for place in chosen]
    note = "A sample that is processed again counts again"
    names = sorted({run.algorithm for run in whole if run.place in chosen})
    note += f"; an iteration of {', '.join(names)} counts all samples." if names else "."
    if any(panel.upright is not None for panel in drawn):
        note += " Upright line: every sample of the data set once."
    note += left_out(chosen, panels)
    caption = f"{suite.title}: {find_metric(metric).label} against the samples processed. "
    caption += f"Thin lines: runs; thick: their median. {note}"
    reading = "Median over runs; a sample that is processed again counts again."
    return Chart("learning", suite.title, drawn, caption, note, "Error against samples processed", reading, many=True)


def _learning_panel(suite: Suite, place: Place, metric: str, runs: list[Run], cache: TheoryCache) -> Panel:
    about, looks = find_metric(metric), looks_of(suite)
    problem, panel, at = _place_panel(suite, place, "samples processed", about.label)
    first, last = min(run.x[0] for run in runs), max(run.x[-1] for run in runs)
    held = float(runs[0].record.get("samples", problem.model.sample_count(*place[1:])))
    curve = is_cheap(problem)
    fresh = max((run.x[-1] for run in runs if used_fresh(run.record["cell"]["algorithm"], run.record)), default=0.0)
    count = runs[0].values.shape[1]

    def named(name: str, component: int) -> str:
        return line_name(name, component_word(problem), component if count > 1 else None)

    # Without a curve (costly theory) the line is that of the whole data set, and says so.
    lines = [(first, held, "Bayes-optimal" if curve or first >= held else "Bayes-optimal, whole data set", "--")]
    if curve and fresh > held:
        lines.append((max(first, held), fresh, "Bayes-optimal, fresh samples", ":"))
    for start, stop, name, dashes in lines:
        seen = np.geomspace(start, stop, 40) if curve and start < stop else np.array([stop])
        ratios = [problem.model.sample_ratio(max(1, round(n)), place[2]) for n in seen]
        points = (cache.curve(problem, ratios) if curve else None) or cache.points_at_hand(problem, ratios) or ()
        expected = [theory_of(about, problem, branches[0], count)[0] for branches in points]
        for component, values in enumerate(zip(*expected)):
            if values[-1] is None:
                continue
            x = [*(seen if len(seen) > 1 else [first]), max(last, stop)]
            y = [*values, values[-1]]
            title = named(name, component)
            style = {"color": "black" if count == 1 else COLORS[component], "lw": 1.4, "ls": dashes, "zorder": 2}
            panel.series.append(Series(title, x, y, style, table({**at, "what": title}, samples=x, value=y)))
    reaches_zero = any(series.y[-1] <= ZERO * suite.run.target for series in panel.series)
    for i, (algorithm, members) in enumerate(grouped(runs, lambda run: run.algorithm).items()):
        for component in range(count):
            style = {"color": looks[algorithm].color, "ls": "-"}
            if count > 1:
                style = {"color": COLORS[component % len(COLORS)], "ls": ("-", "-.", ":", (0, (5, 1)))[i % 4]}
            thin = {**style, "lw": 0.6, "alpha": 0.3, "zorder": 1}
            panel.series += [Series("", run.x, run.values[:, component], thin) for run in members]
            name = named(algorithm, component)
            x, y = median_curve([(run.x, run.values[:, component]) for run in members])
            if len(x):
                style |= {"lw": 1.8, **end_marker(looks[algorithm])}
                rows = table({**at, "what": name}, samples=x, value=y)
                panel.series.append(Series(name, x, y, style, rows, algorithm=algorithm))
    panel.ylim, panel.upright = (0.0, None), held if first < held < last else None
    if about.direction == "lower":  # a run that diverges leaves the panel, not the others on its floor
        panel.cap = 3.0 * max(run.values[0].max() for run in runs)
        if reaches_zero:
            panel.zero = floor_of([float(value) for run in runs for value in run.values.ravel()], suite.run.target)
    return panel


def median_curve(curves: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Median over runs where all of them still run; between the places at which a run was looked at, its last value."""
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= max(x[0] for x, _ in curves)) & (grid <= min(x[-1] for x, _ in curves))]
    return grid, np.median(_last_values(curves, grid), axis=0)


def _last_values(curves: Sequence[tuple[Any, Any]], grid: Any) -> list[Any]:
    """Of each curve its last value up to the places of a grid."""
    return [values[np.searchsorted(x, grid, side="right") - 1] for x, values in curves]


# -- against seconds ------------------------------------------------------------------------------------------------------


def seconds_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """One panel per problem, sample ratio and dimension with the squared error, summed over components, against seconds.

    Lines are medians over the runs, each of which keeps its last error when it has ended; a mark is where the last one ended,
    a band the range from quartile to quartile. None where a single algorithm was run.
    """
    runs: list[Run] = []
    for about, trajectory in _trajectories(pairs, store, "mse"):
        seconds = np.asarray(trajectory["seconds"], dtype=float) + (about[-1]["timing"].get("lost_seconds") or 0.0)
        error = np.asarray(trajectory["mse"]).sum(axis=1)
        if (there := np.isfinite(error) & (seconds > 0)).any():
            runs.append(Run(*about, seconds[there], error[there]))
    panels = grouped(runs, lambda run: run.place)
    panels = {place: own for place, own in panels.items() if len({run.algorithm for run in own}) > 1}
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    trusted = all(run.record["timing"].get("trusted") for run in runs)
    note = "" if trusted else "Times are untrusted: cells may have run side by side."
    note = (note + left_out(chosen, panels)).strip()
    caption = f"{suite.title}: squared error against seconds. Lines: median over runs; bands: quartiles; marks: the end. {note}"
    drawn = [_seconds_panel(suite, place, panels[place], cache) for place in chosen]
    return Chart("seconds", suite.title, drawn, caption, note, "Error against seconds", "Median over runs.", many=True)


def _seconds_panel(suite: Suite, place: Place, runs: list[Run], cache: TheoryCache) -> Panel:
    problem, panel, at = _place_panel(suite, place, "seconds", "MSE")
    point = bayes_point(cache, problem, problem.model.sample_ratio(problem.model.sample_count(*place[1:]), place[2]))
    bayes = float(np.sum(point["mse"])) if point else np.nan
    lowest, highest = [float(run.values.min()) for run in runs], max(float(run.values[0]) for run in runs)
    floor = floor_of([*lowest, bayes], suite.run.target)
    looks = looks_of(suite)
    for name, members in grouped(runs, lambda run: run.algorithm).items():
        first, last = max(run.x[0] for run in members), max(run.x[-1] for run in members)
        grid = np.geomspace(first, last, 200) if last > first else np.array([last])
        read = _last_values([(run.x, run.values) for run in members], grid)
        low, middle, high = np.maximum(np.quantile(read, [0.25, 0.5, 0.75], axis=0), floor)
        rows = table({**at, "what": name}, seconds=grid, value=middle, quartile_1=low, quartile_3=high)
        style = {"color": looks[name].color, "ls": looks[name].dashes, **end_marker(looks[name])}
        panel.series.append(Series(name, grid, middle, style, rows, band=(low, high), algorithm=name))
    panel.ylog, panel.top = True, 3 * highest
    if bayes > floor:
        ends = [min(run.x[0] for run in runs), max(run.x[-1] for run in runs)]
        style, rows = {"color": "black", "lw": 1.2, "zorder": 2}, [{**at, "what": "Bayes-optimal", "value": bayes}]
        panel.series.append(Series("Bayes-optimal", ends, [bayes, bayes], style, rows))
        panel.ylim = (min(bayes, *lowest) / 1.5, 3 * highest)
    elif point:
        panel.series.append(Series("Bayes-optimal: 0", [], [], {"color": FLOOR, "lw": 2.5}))
        panel.zero = floor
    return panel


# -- with the predicted trajectory ------------------------------------------------------------------------------------------


def trajectory_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache, store: Store) -> Chart | None:
    """Runs against their own clock, with the predicted trajectory: thin lines are runs, dashed ones theory.

    One panel for every problem, algorithm, sample ratio and dimension whose theory has a trajectory: error and overlap of every
    component against iterations, or against samples / D where samples are counted. None where no theory has a trajectory.
    """
    panels = []
    for members in _by_cell(pairs):
        cell, problem = members[0][0], _problem_of(suite, members[0][0].problem_label)
        ratio = ratio_of_runs(problem, members)
        found = own_point(cache, problem, cell, ratio, [record for _, record in members])
        if isinstance(found, str) or "trajectory" not in found:
            continue
        alpha = ratio if used_fresh(cell.algorithm, members[0][1]) else cell.alpha  # as in tables
        runs = [trajectory for _, trajectory in _trajectories(members, store, "mse")]
        panels.append(({**_about(cell), "alpha": alpha}, letter(problem.model), found["trajectory"], runs))
    if not panels:
        return None
    chosen = panels[:9]
    caption = "Thin lines: runs; dashed: the predicted trajectory; against the clock of the algorithm."
    if any("mse_limit" in theory for _, _, theory, _ in panels):
        caption += " Dotted: theory as the dimension grows, from the same starts."
    caption += left_out(chosen, panels, "problem, algorithm, sample ratio and dimension")
    return Chart(
        "trajectories", suite.title, [_trajectory_panel(*panel) for panel in chosen], caption, caption,
        "Runs and their predicted trajectory", "Solid: mean of the runs; dashed: predicted from their starts.", many=True,
    )  # fmt: skip


def _by_cell(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Runs of the same problem, algorithm, sample ratio and dimension."""
    return list(grouped(pairs, lambda pair: tuple(_about(pair[0]).values())).values())


def _about(cell: Cell) -> JsonObject:
    """Columns of the CSV that say what was run."""
    return {"problem": cell.problem_label, "algorithm": cell.algorithm_label, "alpha": cell.alpha,
            "dimension": cell.dimension}  # fmt: skip


def _trajectory_panel(place: JsonObject, d: str, theory: JsonObject, runs: Sequence[JsonObject]) -> Panel:
    """One panel; the page has the mean of all runs in place of each."""
    clock, scale, xlabel = ("iteration", 1, "iteration")
    if "samples" in theory:
        clock, scale, xlabel = "samples", place["dimension"], f"samples / {d}"
    at = np.asarray(theory[clock]) / scale
    # Before the first step nothing has been counted.
    ticks = [np.where(run["iteration"] == 0, 0.0, run[clock]) / scale for run in runs]
    paths: dict[str, Any] = {
        name: np.asarray(theory[name], dtype=float).reshape(len(at), -1)
        for name in ("mse", "overlap", "mse_limit", "overlap_limit")
        if name in theory
    }
    metrics = [name for name in ("mse", "overlap") if name in paths]
    count = paths[metrics[0]].shape[1]
    series: list[Series] = []
    for i, (metric, component) in enumerate(itertools.product(metrics, range(count))):
        color, label = COLORS[i % len(COLORS)], find_metric(metric).label
        name = f"{label} {component + 1}" if count > 1 else label
        about = {**place, "metric": metric, "component": component + 1 if count > 1 else None}
        curves = [("predicted", at, paths[metric][:, component], {"ls": "--", "lw": 1.6})]
        if f"{metric}_limit" in paths:
            limit = paths[f"{metric}_limit"][:, component]
            curves.append(("predicted as D grows", at, limit, {"ls": ":", "lw": 1.2}))
        read = []
        for run, x in zip(runs, ticks):
            own = np.asarray(run[metric], dtype=float)[:, component]
            series.append(Series("", x, own, {"color": color, "lw": 0.6, "alpha": 0.35}))
            read.append(np.interp(at, x, own, right=np.nan))
        if read:
            seen = np.isfinite(read).all(axis=0)
            curves.append(("mean of runs", at[seen], np.mean(read, axis=0)[seen], {}))
        for what, x, y, style in curves:
            rows = table({**about, "what": what}, **{clock: x, "value": y})
            series.append(Series(f"{name}, {what}", x, y, {"color": color, **style}, rows,
                                 algorithm=place["algorithm"], hidden=what == "mean of runs"))  # fmt: skip
    title = f"{place['problem']}: {place['algorithm']}, α = {place['alpha']:.4g}, {d} = {place['dimension']}"
    ylabel = ", ".join(find_metric(metric).label for metric in metrics)
    return Panel(title, xlabel, ylabel, series, place["problem"], ylim=(0.0, None))


# -- spectra --------------------------------------------------------------------------------------------------------------


def spectrum_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache) -> Chart | None:
    """Eigenvalues of estimates, a panel per problem, algorithm, sample ratio and dimension whose records hold them; None without.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    legend.
    """
    groups = _by_cell([pair for pair in pairs if (pair[1].get("final") or {}).get("spectrum")])
    if not groups:
        return None
    chosen = spread(groups, PANELS)
    note = "Eigenvalues of the estimates of all runs, without those that are zero; lines: predicted."
    note += left_out(chosen, groups, "problem, algorithm and sample ratio")
    panels = [_spectrum_panel(suite, members, cache) for members in chosen]
    return Chart("spectrum", suite.title, panels, f"{suite.title}: {note}", note)


def _spectrum_panel(suite: Suite, members: Sequence[Pair], cache: TheoryCache) -> Panel:
    cell, records = members[0][0], [record for _, record in members]
    problem = _problem_of(suite, cell.problem_label)
    ratio = problem.model.sample_ratio(problem.model.sample_count(cell.alpha, cell.dimension), cell.dimension)
    point = own_point(cache, problem, cell, ratio, records)
    expected = None if isinstance(point, str) else point.get("spectrum")
    values = np.concatenate([np.asarray(record["final"]["spectrum"], dtype=float) for record in records])
    there = np.abs(values) > 1e-9 * np.abs(values).max(initial=1e-300)
    low, high = values.min(initial=0.0), values.max(initial=1e-6)
    bins = np.linspace(low, high, 41)
    if expected:
        edges = np.asarray(expected["edges"])
        # A bar holds eight eigenvalues on average. Zero is an edge, and runs of finite size go beyond the ends of the law.
        width = (edges[-1] - edges[0]) / np.clip(there.sum() / 8, 10, len(edges) - 1)
        below, above = int(np.floor(min(low, edges[0]) / width)), int(np.ceil(max(high, edges[-1]) / width))
        bins = width * np.arange(below, max(above, below + 1) + 1)
    heights = np.histogram(values[there], bins)[0] / (len(values) * (bins[1] - bins[0]))
    about = _about(cell)
    place = f"{cell.problem_label}, {cell.algorithm_label}, α = {cell.alpha:.4g}"

    def rows(what: str, ends: Any, density: Any, share: float) -> list[JsonObject]:
        own = table({**about, "what": what}, **{"from": ends[:-1], "to": ends[1:], "density": density})
        return [*own, {**about, "what": what, "from": 0, "to": 0, "share": share}]

    zeros = 1 - there.mean()
    series = [Series(f"{place}: {len(members)} runs, zero: {zeros:.1%}", bins, heights, {"color": COLORS[0], "alpha": 0.4},
                     rows("runs", bins, heights, zeros), "bars")]  # fmt: skip
    if expected:
        density, middle = np.asarray(expected["mass"]) / np.diff(edges), (edges[1:] + edges[:-1]) / 2
        name = f"{place}: predicted, zero: {expected['zeros']:.1%}"
        law = rows("predicted", edges, density, expected["zeros"])
        series.append(Series(name, middle, density, {"color": "black", "lw": 1.4}, law))
    title = f"{place}, {letter(problem.model)} = {cell.dimension}"
    return Panel(title, "eigenvalue", "density", series, cell.problem_label)
