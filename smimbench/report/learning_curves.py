"""Figures of errors during runs, against samples, seconds and the algorithm's clock, with the predicted trajectory."""

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
    from collections.abc import Callable, Collection, Sequence

    from smimbench.files import JsonObject
    from smimbench.report.results import Results
    from smimbench.suite.cells import Cell, Suite

Place = tuple[str, float, int]
"""Label of a problem, sample ratio, dimension."""


class Run(NamedTuple):
    """Values (t, P) of one run along its axis (t,), with its place, algorithm and record."""

    place: Place
    algorithm: str
    record: JsonObject
    x: Any
    values: Any
    counts: bool


def _runs(results: Results, metric: str, axis: Callable[[JsonObject, JsonObject], Any]) -> list[Run]:
    """Runs that measured a metric on their way, where ``axis`` of record and trajectory is a finite number > 0."""
    found = []
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record)
        if trajectory is not None and metric in trajectory:
            x = np.asarray(axis(record, trajectory), dtype=float)
            there = np.isfinite(x) & (x > 0)
            place = (cell.problem_label, cell.alpha, cell.dimension)
            values = np.asarray(trajectory[metric])[there]
            found.append(Run(place, cell.algorithm_label, record, x[there], values, _counts(trajectory)))
    return found


def spread(places: list[Any], most: int) -> list[Any]:
    """At most this many evenly spaced elements, first and last included."""
    if len(places) <= most:
        return places
    return [places[int(i)] for i in np.unique(np.linspace(0, len(places) - 1, most).round())]


def chosen_panels(suite: Suite, places: Collection[Place]) -> list[Place]:
    """Panels to draw, in the order of the suite: all, or the largest dimension of each problem up to a limit."""
    order = {plan.label: i for i, plan in enumerate(suite.plans)}
    found = sorted(places, key=lambda place: (order[place[0]], *place[1:]))
    if len(found) > PANELS:
        largest = {label: max(d for _, _, d in own) for label, own in grouped(found, lambda place: place[0]).items()}
        found = [place for place in found if place[2] == largest[place[0]]]
    return spread(found, PANELS)


def left_out(chosen: Sequence[Any], places: Collection[Any], what: str = "problem, sample ratio and dimension") -> str:
    """Note on how many of all panels a figure shows; empty if it shows all."""
    return "" if len(chosen) == len(places) else f" {len(chosen)} of {len(places)} combinations of {what}."


def _place_panel(results: Results, place: Place, xlabel: str, ylabel: str) -> tuple[Any, Panel, JsonObject]:
    """The problem of a place, its panel without series, and its columns in the CSV."""
    label, alpha, dimension = place
    problem = results.problem(label)
    title = f"{label}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}"
    about = {"problem": label, "alpha": alpha, "dimension": dimension}
    return problem, Panel(title, xlabel, ylabel, [], label, xlog=True), about


# -- against samples ------------------------------------------------------------------------------------------------------


def _counts(trajectory: JsonObject) -> bool:
    """Whether an algorithm counts its samples; if not, all of them go into every iteration."""
    return bool(np.isfinite(np.asarray(trajectory.get("samples", ()), dtype=float)).any())


def _samples(record: JsonObject, trajectory: JsonObject) -> Any:
    return trajectory["samples"] if _counts(trajectory) else trajectory["iteration"] * record.get("samples", np.nan)


def learning_chart(results: Results) -> Chart | None:
    """One panel per problem and sample ratio of what algorithms that count their samples learned, sample by sample.

    A sample that is processed again counts again. Thin lines are runs, thick ones their median. The Bayes-optimal line is
    the best that is possible with as many samples, up to all of a run's data; from there on it is flat, since repeated
    samples bring nothing new. Where an algorithm draws fresh ones (``online``), a second line goes on. Where theory is
    costly, the line is that of all samples. None where no algorithm counts samples (message passing does not).
    """
    suite = results.suite
    metric = next((name for name in suite.run.metrics if find_metric(name).in_trajectory), "")
    runs = [run for run in _runs(results, metric, _samples) if len(run.x) > 1]
    panels = grouped(sorted(runs, key=lambda run: not run.counts), lambda run: run.place)
    panels = {place: own for place, own in panels.items() if own[0].counts}
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    whole = {run.algorithm for place in chosen for run in panels[place] if not run.counts}
    note = "A sample that is processed again counts again"
    note += f"; an iteration of {', '.join(sorted(whole))} counts all samples." if whole else "."
    note += left_out(chosen, panels)
    caption = f"{suite.title}: {find_metric(metric).label} against the samples processed. "
    caption += f"Thin lines: runs; thick: their median. {note}"
    drawn = [_learning_panel(results, place, metric, panels[place]) for place in chosen]
    reading = "Median over runs; a sample that is processed again counts again."
    return Chart("learning", suite.title, drawn, caption, note, "Error against samples processed", reading, many=True)


def _learning_panel(results: Results, place: Place, metric: str, runs: list[Run]) -> Panel:
    about, looks, cache, target = find_metric(metric), looks_of(results.suite), results.cache, results.suite.run.target
    problem, panel, at = _place_panel(results, place, "samples processed", about.label)
    first, last = min(run.x[0] for run in runs), max(run.x[-1] for run in runs)
    held = float(runs[0].record.get("samples", problem.model.sample_count(*place[1:])))
    count = runs[0].values.shape[1]

    def add(name: str, k: int, x: Any, y: Any, style: JsonObject, algorithm: str = "") -> None:
        name = line_name(name, component_word(problem), k if count > 1 else None)
        rows = table({**at, "what": name}, samples=x, value=y)
        panel.series.append(Series(name, x, y, style, rows, algorithm=algorithm))

    # Without a curve (costly theory) the line is that of the whole data set, and says so.
    curve = is_cheap(problem)
    lines = [(first, held, "Bayes-optimal" if curve or first >= held else "Bayes-optimal, whole data set", "--")]
    fresh = max((run.x[-1] for run in runs if used_fresh(run.record)), default=0.0)
    if curve and fresh > held:
        lines.append((max(first, held), fresh, "Bayes-optimal, fresh samples", ":"))
    for start, stop, name, dashes in lines:
        seen = np.geomspace(start, stop, 40) if curve and start < stop else np.array([stop])
        ratios = [problem.model.sample_ratio(max(1, round(n)), place[2]) for n in seen]
        points = (cache.curve(problem, ratios) if curve else None) or cache.points_at_hand(problem, ratios) or ()
        expected = [theory_of(about, problem, branches[0], count)[0] for branches in points]
        for k, values in enumerate(zip(*expected)):
            if values[-1] is not None:
                x = [*(seen if len(seen) > 1 else [first]), max(last, stop)]
                color = "black" if count == 1 else COLORS[k]
                add(name, k, x, [*values, values[-1]], {"color": color, "lw": 1.4, "ls": dashes, "zorder": 2})
    reaches_zero = any(series.y[-1] <= ZERO * target for series in panel.series)
    for i, (algorithm, members) in enumerate(grouped(runs, lambda run: run.algorithm).items()):
        for k in range(count):
            style: JsonObject = {"color": looks[algorithm].color, "ls": "-"}
            if count > 1:
                style = {"color": COLORS[k % len(COLORS)], "ls": ("-", "-.", ":", (0, (5, 1)))[i % 4]}
            curves = [(run.x, run.values[:, k]) for run in members]
            panel.series += [Series("", *one, {**style, "lw": 0.6, "alpha": 0.3, "zorder": 1}) for one in curves]
            x, y = median_curve(curves)
            if len(x):
                add(algorithm, k, x, y, {**style, "lw": 1.8, **end_marker(looks[algorithm])}, algorithm)
    panel.thresholds = [(held, "every sample once")]
    if about.direction == "lower":  # a run that diverges leaves the panel, not the others on its floor
        panel.cap = 3.0 * max(run.values[0].max() for run in runs)
        if reaches_zero:
            panel.zero = floor_of([float(value) for run in runs for value in run.values.ravel()], target)
    return panel


def median_curve(curves: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Median over runs where all of them still run; between the places at which a run was looked at, its last value."""
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= max(x[0] for x, _ in curves)) & (grid <= min(x[-1] for x, _ in curves))]
    return grid, np.median(_last_values(curves, grid), axis=0)


def _last_values(curves: Sequence[tuple[Any, Any]], grid: Any) -> list[Any]:
    """Last value of each curve at or before the places of a grid."""
    return [values[np.searchsorted(x, grid, side="right") - 1] for x, values in curves]


# -- against seconds ------------------------------------------------------------------------------------------------------


def _seconds(record: JsonObject, trajectory: JsonObject) -> Any:
    lost = record["timing"].get("lost_seconds") or 0.0
    return np.where(np.isfinite(trajectory["mse"]).all(axis=1), trajectory["seconds"] + lost, np.nan)


def seconds_chart(results: Results) -> Chart | None:
    """One panel per problem, sample ratio and dimension with the squared error, summed over components, against seconds.

    Lines are medians over the runs, each of which keeps its last error when it has ended; a mark is where the last one ended,
    a band the range from quartile to quartile. None where a single algorithm was run.
    """
    suite, runs = results.suite, [run for run in _runs(results, "mse", _seconds) if len(run.x)]
    panels = grouped(runs, lambda run: run.place)
    panels = {place: own for place, own in panels.items() if len({run.algorithm for run in own}) > 1}
    if not panels:
        return None
    chosen = chosen_panels(suite, panels)
    trusted = all(run.record["timing"].get("trusted") for run in runs)
    note = "" if trusted else "Times are untrusted: cells may have run side by side."
    note = (note + left_out(chosen, panels)).strip()
    caption = f"{suite.title}: squared error against seconds. Lines: median over runs; bands: quartiles; marks: the end. {note}"
    drawn = [_seconds_panel(results, place, panels[place]) for place in chosen]
    return Chart("seconds", suite.title, drawn, caption, note, "Error against seconds", "Median over runs.", many=True)


def _seconds_panel(results: Results, place: Place, runs: list[Run]) -> Panel:
    problem, panel, at = _place_panel(results, place, "seconds", "MSE")
    point = bayes_point(
        results.cache, problem, problem.model.sample_ratio(problem.model.sample_count(*place[1:]), place[2])
    )
    bayes = float(np.sum(point["mse"])) if point else np.nan
    runs = [run._replace(values=run.values.sum(axis=1)) for run in runs]
    floor = floor_of([*(float(run.values.min()) for run in runs), bayes], results.suite.run.target)
    looks = looks_of(results.suite)
    for name, members in grouped(runs, lambda run: run.algorithm).items():
        first, last = max(run.x[0] for run in members), max(run.x[-1] for run in members)
        grid = np.geomspace(first, last, 200) if last > first else np.array([last])
        read = _last_values([(run.x, run.values) for run in members], grid)
        low, middle, high = np.maximum(np.quantile(read, [0.25, 0.5, 0.75], axis=0), floor)
        rows = table({**at, "what": name}, seconds=grid, value=middle, quartile_1=low, quartile_3=high)
        style = {"color": looks[name].color, "ls": looks[name].dashes, **end_marker(looks[name])}
        panel.series.append(Series(name, grid, middle, style, rows, band=(low, high), algorithm=name))
    panel.ylog, panel.cap = True, 3.0 * max(float(run.values[0]) for run in runs)
    if bayes > 0:
        ends = [min(run.x[0] for run in runs), max(run.x[-1] for run in runs)]
        style, rows = {"color": "black", "lw": 1.2, "zorder": 2}, [{**at, "what": "Bayes-optimal", "value": bayes}]
        panel.series.append(Series("Bayes-optimal", ends, [bayes, bayes], style, rows))
    elif point:
        panel.series.append(Series("Bayes-optimal: 0", [], [], {"color": FLOOR, "lw": 2.5}))
        panel.zero = floor
    return panel


# -- with the predicted trajectory ------------------------------------------------------------------------------------------


def _by_cell(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Runs grouped by problem, algorithm, sample ratio and dimension."""
    return list(grouped(pairs, lambda pair: tuple(_about(pair[0]).values())).values())


def _about(cell: Cell) -> JsonObject:
    """Columns of the CSV that describe the run."""
    return {"problem": cell.problem_label, "algorithm": cell.algorithm_label, "alpha": cell.alpha,
            "dimension": cell.dimension}  # fmt: skip


def trajectory_chart(results: Results) -> Chart | None:
    """Runs against their own clock, with the predicted trajectory: thin lines are runs, dashed ones theory.

    One panel for every problem, algorithm, sample ratio and dimension whose theory has a trajectory: error and overlap of every
    component against iterations, or against samples / D where samples are counted. None where no theory has a trajectory.
    """
    panels = []
    for members in _by_cell(results.pairs):
        cell, records = members[0][0], [record for _, record in members]
        problem = results.problem(cell.problem_label)
        ratio = ratio_of_runs(problem, members)
        found = own_point(results.cache, problem, cell, ratio, records)
        if isinstance(found, str) or "trajectory" not in found:
            continue
        alpha = ratio if used_fresh(records[0]) else cell.alpha  # as in tables
        runs = [run for run in map(results.store.trajectory, records) if run is not None and "mse" in run]
        panels.append(({**_about(cell), "alpha": alpha}, letter(problem.model), found["trajectory"], runs))
    if not panels:
        return None
    chosen = panels[:9]
    caption = "Thin lines: runs; dashed: the predicted trajectory; against the clock of the algorithm."
    if any("mse_limit" in theory for _, _, theory, _ in panels):
        caption += " Dotted: theory as the dimension grows, from the same starts."
    caption += left_out(chosen, panels, "problem, algorithm, sample ratio and dimension")
    return Chart(
        "trajectories", results.suite.title, [_trajectory_panel(*panel) for panel in chosen], caption, caption,
        "Runs and their predicted trajectory", "Solid: mean of the runs; dashed: predicted from their starts.", many=True,
    )  # fmt: skip


def _trajectory_panel(place: JsonObject, d: str, theory: JsonObject, runs: Sequence[JsonObject]) -> Panel:
    """One panel of trajectories; the HTML page shows the mean of all runs instead of each."""
    clock, scale, xlabel = "iteration", 1, "iteration"
    if "samples" in theory:
        clock, scale, xlabel = "samples", place["dimension"], f"samples / {d}"
    at = np.asarray(theory[clock]) / scale
    # Before the first step nothing has been counted.
    ticks = [np.where(run["iteration"] == 0, 0.0, run[clock]) / scale for run in runs]
    metrics = [name for name in ("mse", "overlap") if name in theory]
    count = np.asarray(theory[metrics[0]]).reshape(len(at), -1).shape[1]
    series: list[Series] = []
    for i, (metric, k) in enumerate(itertools.product(metrics, range(count))):
        label = find_metric(metric).label
        name, component = (f"{label} {k + 1}", k + 1) if count > 1 else (label, None)
        about, color = {**place, "metric": metric, "component": component}, COLORS[i % len(COLORS)]
        paths = [np.asarray(run[metric], dtype=float)[:, k] for run in runs]
        series += [Series("", x, y, {"color": color, "lw": 0.6, "alpha": 0.35}) for x, y in zip(ticks, paths)]
        kinds = [("predicted", metric, "--", 1.6), ("predicted as D grows", f"{metric}_limit", ":", 1.2)]
        curves = [
            (what, np.asarray(theory[key], dtype=float).reshape(len(at), -1)[:, k], {"ls": dashes, "lw": width})
            for what, key, dashes, width in kinds
            if key in theory
        ]
        if runs:
            read = [np.interp(at, x, y, right=np.nan) for x, y in zip(ticks, paths)]
            curves.append(("mean of runs", np.mean(read, axis=0), {}))
        for what, y, style in curves:
            rows = table({**about, "what": what}, **{clock: at, "value": y})
            series.append(Series(f"{name}, {what}", at, y, {"color": color, **style}, rows,
                                 algorithm=place["algorithm"], hidden=what == "mean of runs"))  # fmt: skip
    title = f"{place['problem']}: {place['algorithm']}, α = {place['alpha']:.4g}, {d} = {place['dimension']}"
    return Panel(title, xlabel, ", ".join(find_metric(metric).label for metric in metrics), series, place["problem"])


# -- spectra --------------------------------------------------------------------------------------------------------------


def spectrum_chart(results: Results) -> Chart | None:
    """Eigenvalues of estimates, a panel per problem, algorithm, sample ratio and dimension whose records hold them; None without.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    legend.
    """
    groups = _by_cell([pair for pair in results.pairs if (pair[1].get("final") or {}).get("spectrum")])
    if not groups:
        return None
    chosen = spread(groups, PANELS)
    note = "Eigenvalues of the estimates of all runs, without those that are zero; lines: predicted."
    note += left_out(chosen, groups, "problem, algorithm and sample ratio")
    panels, title = [_spectrum_panel(results, members) for members in chosen], results.suite.title
    return Chart("spectrum", title, panels, f"{title}: {note}", note)


def _spectrum_panel(results: Results, members: Sequence[Pair]) -> Panel:
    cell, records = members[0][0], [record for _, record in members]
    problem = results.problem(cell.problem_label)
    ratio = problem.model.sample_ratio(problem.model.sample_count(cell.alpha, cell.dimension), cell.dimension)
    point = own_point(results.cache, problem, cell, ratio, records)
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
    place, about = f"{cell.problem_label}, {cell.algorithm_label}, α = {cell.alpha:.4g}", _about(cell)
    series = []

    def add(name: str, what: str, x: Any, ends: Any, density: Any, zeros: float, style: JsonObject, kind: str) -> None:
        rows = table({**about, "what": what}, **{"from": ends[:-1], "to": ends[1:], "density": density})
        rows.append({**about, "what": what, "from": 0, "to": 0, "share": zeros})
        series.append(Series(f"{place}: {name}, zero: {zeros:.1%}", x, density, style, rows, kind))

    bars = {"color": COLORS[0], "alpha": 0.4}
    add(f"{len(members)} runs", "runs", bins, bins, heights, 1 - there.mean(), bars, "bars")
    if expected:
        middle, density = (edges[1:] + edges[:-1]) / 2, np.asarray(expected["mass"]) / np.diff(edges)
        line = {"color": "black", "lw": 1.4}
        add("predicted", "predicted", middle, edges, density, expected["zeros"], line, "line")
    title = f"{place}, {letter(problem.model)} = {cell.dimension}"
    return Panel(title, "eigenvalue", "density", series, cell.problem_label)
