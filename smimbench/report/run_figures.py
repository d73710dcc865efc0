"""Figures of runs over time: learning curves with the predicted trajectory, spectra of estimates, performance profiles."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from smimbench.interfaces import Host, ParameterError
from smimbench.registry.registry import (
    RegistryError,
    find_metric,
    metric_label,
    theory_of,
)
from smimbench.report.charts import Chart, Dashes, Kind, Panel, Series
from smimbench.report.columns import FEW
from smimbench.report.figures import PANELS, is_cheap
from smimbench.report.prediction import limit_of
from smimbench.report.row import component_word, grouped, letter
from smimbench.report.rows import (
    Pair,
    bayes_point,
    prediction_of,
    prediction_question,
    ratio_of_runs,
    sample_ratio,
    used_fresh,
)
from smimbench.report.statistics import (
    EPSILONS,
    ZERO,
    instance_of,
    near_goal,
    time_near,
)
from smimbench.report.style import (
    COLORS,
    PREDICTED,
    end_marker,
    floor_of,
    line_name,
    looks_of,
)
from smimbench.report.verdict import errors, on_instance_data
from smimbench.run.answers import stored_or_none
from smimbench.run.external import EXTERNAL
from smimbench.run.loop import FAILED_STATUSES
from smimbench.theory.types import LineQuestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from smimbench.interfaces import Metric
    from smimbench.problem.problem import Problem
    from smimbench.report.results import Results
    from smimbench.report.style import Look
    from smimbench.run.record import Record
    from smimbench.theory.types import Question


GRID = 200
"""Number of points at which the median over runs is evaluated; doubled, files are twice as long and lines look the same."""


class Run(NamedTuple):
    """Trajectory of one run: values (t, P) of a metric along a clock (t,), with algorithm and record."""

    algorithm: str
    record: Record
    x: Host
    values: Host


Place = tuple[str, float, int]
"""Key of a panel: label of the problem, sample ratio, dimension."""

Trajectory = dict[str, "Host"]
"""Arrays by name, all of one length (t,)."""

Clock = Callable[["Record", Trajectory], "Host"]
"""Function from a record and its trajectory to times (t,), such as samples or seconds."""

CellPlace = tuple[str, str, float, int]
PanelPlace = TypeVar("PanelPlace", CellPlace, tuple[str, float, int])
Cells = dict[CellPlace, list[Pair]]
"""Runs by ``Cell.place``."""


def chosen_panels(places: Collection[PanelPlace]) -> tuple[list[PanelPlace], str]:
    """Choose the places to draw: those of the largest dimension, at most one figure full; a note says if some are omitted."""
    largest: dict[str, int] = {}
    for label, *_, dimension in places:
        largest[label] = max(dimension, largest.get(label, 0))
    chosen = [place for place in places if place[-1] == largest[place[0]]]
    chosen = chosen[:: -(-len(chosen) // PANELS)]
    if len(chosen) == len(places):
        return chosen, ""
    return chosen, f" {len(chosen)} of {len(places)} combinations are shown."


# -- against samples and seconds -------------------------------------------------------------------------------------------


def _counts(trajectory: Trajectory) -> bool:
    """Return whether a trajectory counts samples; if not, every iteration uses all of them."""
    samples = np.asarray(trajectory.get("samples", ()), dtype=float)
    return bool(np.isfinite(samples).any())


def _samples(record: Record, trajectory: Trajectory) -> Host:
    if _counts(trajectory):
        return trajectory["samples"]
    count = np.nan if record.samples is None else record.samples
    return trajectory["iteration"] * count


def _seconds(record: Record, trajectory: Trajectory) -> Host:
    return trajectory["seconds"] + record.timing.lost_seconds


def learning_charts(results: Results) -> list[Chart]:
    """Make learning curves against samples, of the first metric and of others with a predicted trajectory.

    A sample that is processed again counts again. Nothing where no algorithm counts samples (message passing does not) and no
    path is predicted.
    """
    note = "Samples count each time they are used; without batches, every iteration uses all samples."
    trajectories = (results.store.trajectory(record) for _, record in results.pairs)
    is_drawn = any(_counts(trajectory or {}) for trajectory in trajectories)
    charts = []
    for metric in _drawn_metrics(results):
        name = f"learning-{metric}"
        chart = course_chart(results, name, metric, _samples, "samples processed", note)
        if chart and (is_drawn or _has_prediction(chart)):
            charts.append(chart)
        is_drawn = False
    return charts


def _has_prediction(chart: Chart) -> bool:
    names = [series.name for panel in chart.panels for series in panel.series]
    return any(PREDICTED in name for name in names)


def _drawn_metrics(results: Results) -> list[str]:
    return [
        name for name in results.suite.run.metrics if find_metric(name).in_trajectory
    ]


def seconds_chart(results: Results) -> Chart | None:
    """Make learning curves of the squared error against seconds; None if there is a single algorithm."""
    if len({cell.algorithm_label for cell, _ in results.pairs}) < 2:
        return None
    trusted = all(record.timing.trusted for _, record in results.pairs)
    note = "" if trusted else "Times are untrusted: cells may have run in parallel."
    return course_chart(results, "seconds", "mse", _seconds, "seconds", note)


def course_chart(
    results: Results, name: str, metric: str, clock: Clock, xlabel: str, note: str
) -> Chart | None:  # fmt: skip
    """Make learning curves of a metric against a clock, one panel per problem and sample ratio, at the largest dimension.

    Lines are medians over the runs of an algorithm, each of which keeps its last value when it has ended; bands go from quartile
    to quartile, of fewer than four runs from the least value to the largest. The Bayes-optimal line is that of the whole data
    set; where an algorithm draws fresh samples, and theory is cheap, a second one is the best that is possible with as many
    samples. Against samples, the path that theory predicts for an algorithm, from the starts of its runs, is dashed.

    Parameters
    ----------
    clock : callable
        Times of a record and its trajectory; what is not a finite number > 0 is left out.
    """
    runs = _runs_by_place(results, metric, clock)
    if not runs:
        return None
    places, left_out = chosen_panels(runs)
    cells = grouped(results.pairs, lambda pair: pair[0].place)
    panels = []
    for place in places:
        panel = _CoursePanel(results, place, find_metric(metric), xlabel, runs[place])
        panels.append(panel.draw(cells))
    key = (
        f"{metric_label(metric)} against {xlabel}. Lines: median over runs; bands: quartiles, or the range of fewer "
        "than four runs; dashed: predicted."
    )
    return Chart(name, results.suite.title, panels, (note + left_out).strip(), key)


def _runs_by_place(
    results: Results, metric: str, clock: Clock
) -> dict[Place, list[Run]]:
    """Collect the runs with a trajectory of a metric, by problem, sample ratio and dimension."""
    runs: dict[Place, list[Run]] = {}
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record)
        if trajectory is None or metric not in trajectory:
            continue
        x = np.asarray(clock(record, trajectory), dtype=float)
        values = np.asarray(trajectory[metric])
        shown = np.isfinite(x) & (x > 0) & np.isfinite(values).all(axis=1)
        if shown.any():
            run = Run(cell.algorithm_label, record, x[shown], values[shown])
            place = cell.problem_label, cell.alpha, cell.dimension
            runs.setdefault(place, []).append(run)
    return runs


def _range(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the earliest start and the latest end of runs on their clock."""
    return min(run.x[0] for run in runs), max(run.x[-1] for run in runs)


def _fresh_grid(
    problem: Problem, dimension: int, runs: Sequence[Run]
) -> tuple[Host, tuple[float, ...]]:
    """Return the numbers of samples, and sample ratios, at which the Bayes-optimal error with fresh samples is drawn.

    Empty where no run draws any, or theory takes long.
    """
    ends = [run.x[-1] for run in runs if used_fresh(run.record)]
    if not ends or not is_cheap(problem):
        return np.array([]), ()
    samples = np.geomspace(_range(runs)[0], max(ends), 40)
    ratio = problem.model.sample_ratio
    return samples, tuple(ratio(max(1, round(n)), dimension) for n in samples)


def course_questions(results: Results) -> Iterator[Question]:
    """Yield the theory questions of learning curves and spectra that tables do not ask."""
    problems = results.suite.problems
    if any(used_fresh(record) for _, record in results.pairs):
        for metric in _drawn_metrics(results):
            runs_by_place = _runs_by_place(results, metric, _samples)
            for (label, _, dimension), runs in runs_by_place.items():
                _, ratios = _fresh_grid(problems[label], dimension, runs)
                if ratios:
                    yield LineQuestion(problems[label], ratios)
    spectra = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    for (label, _, alpha, dimension), pairs in spectra.items():
        problem, records = problems[label], [record for _, record in pairs]
        ratio = sample_ratio(problem, alpha, dimension)
        with contextlib.suppress(RegistryError, ParameterError):
            yield prediction_question(problem, pairs[0][0], ratio, records)


@dataclass
class _CoursePanel:
    """Panel of learning curves: a metric during the runs of one problem, sample ratio and dimension."""

    results: Results
    place: Place
    metric: Metric
    xlabel: str
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        label, alpha, dimension = self.place
        self.problem = problem = self.results.suite.problems[label]
        self.components = self.runs[0].values.shape[1]
        self.sample_count = problem.model.sample_count(alpha, dimension)
        self.panel = Panel(
            f"{label}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}",
            self.xlabel,
            metric_label(self.metric.name),
            [],
            label,
            self.xlabel.split()[0],
            xlog=True,
        )

    def draw(self, cells: Cells) -> Panel:
        """Draw the panel, with predictions for the runs of these cells."""
        panel, problem, runs = self.panel, self.problem, self.runs
        label, alpha, dimension = self.place
        ratio = sample_ratio(problem, alpha, dimension)
        is_error = self.metric.direction == "lower"
        self._add_optimum("Bayes-optimal", "--", np.array(_range(runs)), [ratio] * 2)
        if is_error:  # a run that diverges leaves the panel
            start = max(float(run.values[0].max()) for run in runs)
            panel.ylog, panel.cap = True, 3.0 * start
        if panel.x == "samples":
            names = ["every sample once"]
            columns = {"samples": [self.sample_count], "algorithm": names}
            panel.series.append(Series("", columns, None, "upright"))
            samples, ratios = _fresh_grid(problem, dimension, runs)
            if ratios:
                self._add_optimum("Bayes-optimal, fresh samples", ":", samples, ratios)
        looks = looks_of(self.results.suite)
        by_algorithm = grouped(runs, lambda run: run.algorithm)
        for i, (name, members) in enumerate(by_algorithm.items()):
            # Colors of components leave dashes to the algorithms.
            dashes = DASHES[i % len(DASHES)] if self.components > 1 else "-"
            self._add_median(name, members, looks[name], dashes)
            if panel.x == "samples":
                pairs = cells[label, name, alpha, dimension]
                self._add_prediction(name, pairs, looks[name])
        return panel

    def _add(
        self,
        name: str,
        algorithm: str,
        color: str,
        style: Mapping[str, object],
        x: Host,
        **values: Host,
    ) -> None:
        """Add a line per component, from values (t, P)."""
        place = dict(zip(("problem", "alpha", "dimension"), self.place))
        word, count = component_word(self.problem), self.components
        for k in range(count):
            if count > 1:
                color = COLORS[k % len(COLORS)]
            legend = line_name(name, word, k if count > 1 else None)
            columns = {column: numbers[:, k] for column, numbers in values.items()}
            columns = {self.panel.x: x, **columns}
            about = {**place, "what": legend}
            line = Series(legend, columns, about, "line", color, style, algorithm)
            self.panel.series.append(line)

    def _add_optimum(
        self, name: str, dashes: str, x: Host, ratios: Sequence[float]
    ) -> None:
        """Add the Bayes-optimal line at those of these sample ratios where theory is stored."""
        answers, problem = self.results.answers, self.problem
        line = (
            stored_or_none(answers.line, problem, ratios) if len(ratios) > 2 else None
        )
        optimum = [
            theory_of(self.metric, problem, branches[0], self.components)[0]
            for branches in line
            or stored_or_none(answers.points, problem, ratios)
            or ()
        ]
        values = np.array(optimum, dtype=float)
        if np.isfinite(values).any():
            style = {"ls": dashes, "zorder": 2}
            self._add(name, "", "black", style, x, value=values)
            target = self.results.suite.run.target
            if self.metric.direction == "lower" and (values <= ZERO * target).any():
                self.panel.floor = floor_of(values[values > 0][:1], target)

    def _add_median(
        self, name: str, runs: Sequence[Run], look: Look, dashes: Dashes
    ) -> None:
        """Add the median over an algorithm's runs, with a band for quartiles or range."""
        start = max(run.x[0] for run in runs)
        grid = np.unique(np.concatenate([run.x for run in runs]))
        grid = grid[grid >= start]
        if len(grid) > GRID:
            grid = np.geomspace(start, grid[-1], GRID)
        values = [r.values[np.searchsorted(r.x, grid, side="right") - 1] for r in runs]
        # Of three runs there are no quartiles.
        edges = (0.25, 0.75) if len(runs) >= FEW else (0.0, 1.0)
        median = np.median(values, axis=0)
        low, high = np.quantile(values, edges, axis=0)
        style = {"ls": dashes, "zorder": 3, **end_marker(look)}
        self._add(name, name, look.color, style, grid, value=median, low=low, high=high)

    def _add_prediction(self, name: str, pairs: Sequence[Pair], look: Look) -> None:
        """Add the predicted trajectory of an algorithm, if there is one."""
        path = _predicted_path(self.results, self.problem, pairs)
        if self.metric.name not in path:
            return
        x = path.get("samples")
        if x is None:
            x = np.multiply(self.sample_count, path["iteration"])
        x = np.asarray(x, dtype=float)
        values = np.asarray(path[self.metric.name], dtype=float).reshape(len(x), -1)
        style = {"ls": "--", "zorder": 4}
        shown = x > 0
        self._add(
            name + PREDICTED, name, look.color, style, x[shown], value=values[shown]
        )


DASHES: Sequence[Dashes] = ("-", "-.", ":", (0, (5, 1)))
"""Dash patterns of algorithms, for figures in which colors stand for components."""


def _predicted_path(
    results: Results, problem: Problem, pairs: Sequence[Pair]
) -> Trajectory:
    """Return the predicted trajectory of these runs; empty if there is none."""
    ratio, records = ratio_of_runs(problem, pairs), [record for _, record in pairs]
    theory = prediction_of(results.answers, problem, pairs[0][0], ratio, records)
    predicted = None if isinstance(theory, str) else theory.trajectory
    if predicted is None or isinstance(predicted, str):
        return {}
    return {name: np.asarray(column) for name, column in predicted.items()}


# -- spectra --------------------------------------------------------------------------------------------------------------


def spectrum_chart(results: Results) -> Chart | None:
    """Make the figure of eigenvalue spectra of estimates, one panel per place; None if no record has eigenvalues.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    title.
    """
    groups = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    if not groups:
        return None
    places, left_out = chosen_panels(groups)
    note = "Bars: nonzero eigenvalues of the estimates of all runs; lines: theory."
    panels = [_spectrum_panel(results, groups[place]) for place in places]
    return Chart("spectrum", results.suite.title, panels, note + left_out)


def _pairs_with_spectra(results: Results) -> list[Pair]:
    return [pair for pair in results.pairs if pair[1].final.get("spectrum")]


def _spectrum_panel(results: Results, pairs: Sequence[Pair]) -> Panel:
    cell, records = pairs[0][0], [record for _, record in pairs]
    label, algorithm, alpha, dimension = cell.place
    problem = results.suite.problems[label]
    about = dict(zip(("problem", "algorithm", "alpha", "dimension"), cell.place))
    ratio = sample_ratio(problem, alpha, dimension)
    prediction = prediction_of(results.answers, problem, cell, ratio, records)
    expected = None
    if not isinstance(prediction, str):
        expected = prediction.more.get("spectrum")
    spectra = [np.asarray(record.final["spectrum"], dtype=float) for record in records]
    values = np.concatenate(spectra)
    nonzero = np.abs(values) > 1e-9 * np.abs(values).max(initial=1e-300)
    # A bar holds eight on average.
    counts, edges = np.histogram(values[nonzero], max(10, nonzero.sum() // 8))
    density = counts / (len(values) * np.diff(edges))
    zero = 1 - nonzero.mean()
    title = f"{label}: {algorithm}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}; zero: {zero:.1%}"

    def spectrum(
        name: str, kind: Kind, color: str, edges: Host, density: Host, zero: float
    ) -> Series:
        columns = {"from": edges[:-1], "to": edges[1:], "density": density}
        return Series(name, columns, {**about, "what": name, "zero": zero}, kind, color)

    series = [spectrum("runs", "bars", "#99C7E0", edges, density, zero)]
    if expected:
        edges, zero = np.asarray(expected["edges"]), expected["zeros"]
        density = np.asarray(expected["mass"]) / np.diff(edges)
        series.append(spectrum("predicted", "line", "black", edges, density, zero))
        title += f", predicted {zero:.1%}"
    return Panel(title, "eigenvalue", "density", series, label, "from", "density")


# -- performance profiles --------------------------------------------------------------------------------------------------

CUT = 4.0
"""Largest ratio to the smallest error that the performance profile shows."""

READING = (
    "Higher is better. First three: share of targets reached; targets are errors within "
    f"{', '.join(f'{e:.0%}' for e in EPSILONS)} of the optimum on every instance; a curve is flat once its runs have ended. "
    "Last: share of instances on which the error is at "
    f"most x times the smallest one, up to {CUT:g}. Algorithms that draw their own samples are left out."
)
"""Note below performance profiles that explains how to read them."""


class Hit(NamedTuple):
    """Time at which a run came near the Bayes-optimal error; infinite if it never did.

    Attributes
    ----------
    instance : tuple
        Problem, sample ratio, dimension, root seed and replicate.
    epsilon : float
        Relative distance that all components reach; where the optimal error is 0, the suite's target replaces it.
    """

    algorithm: str
    instance: tuple[object, ...]
    epsilon: float
    seconds: float
    iteration: float
    samples: float


def hits(results: Results) -> list[Hit]:
    """List when each run came near the Bayes-optimal error (at its dimension if known), for each relative distance.

    Algorithms that draw fresh samples (see ``on_instance_data``) and problems without stored theory are excluded.
    """
    times = []
    for cell, record in results.pairs:
        label, name, alpha, dimension = cell.place
        problem = results.suite.problems[label]
        n = problem.model.sample_count(alpha, dimension)
        if (record.fresh_samples or 0) > 1.5 * n:
            continue
        ratio = problem.model.sample_ratio(n, dimension)
        point = bayes_point(results.answers, problem, ratio)
        optimum = results.optima.get((label, alpha, dimension))
        optimum = optimum or (limit_of(point) if point else None)
        if optimum is None:
            continue
        is_lost = record.status in FAILED_STATUSES
        trajectory = None if is_lost else results.store.trajectory(record)
        instance, target = instance_of(record), results.suite.run.target
        place = label, alpha, dimension, instance
        for epsilon in EPSILONS:
            goal = near_goal(optimum.goal(instance), epsilon, target)
            first_time = time_near(trajectory, goal)
            # An algorithm that does not count its samples goes through all of them in every iteration.
            samples = (
                first_time.iteration * n
                if math.isnan(first_time.samples)
                else first_time.samples
            )
            seconds = first_time.seconds + record.timing.lost_seconds
            times.append(
                Hit(name, place, epsilon, seconds, first_time.iteration, samples)
            )
    return times


def performance(results: Results) -> dict[str, list[float]]:
    """Compute the ratio of each algorithm's error to the smallest of all on every instance; infinite without an estimate."""
    rows = results.rows
    # Every backend sees the same instances: one of them says how near to the best each algorithm comes.
    backends = (rows[0].place.backend, EXTERNAL)
    backend_rows = [row for row in rows if row.place.backend in backends]
    by_algorithm = errors(on_instance_data(backend_rows))
    best: dict[object, float] = {}
    for by_place in by_algorithm.values():
        for place, (error, _) in by_place.items():
            best[place] = min(error, best.get(place, math.inf))
    ratios = {}
    for name, by_place in by_algorithm.items():
        ratios[name] = [
            by_place[place][0] / best[place]
            if place in by_place and best[place] > 0
            else math.inf
            for place in best
        ]
    return ratios


def share_within(
    numbers: Mapping[str, Sequence[float]], end: float = math.inf
) -> dict[str, tuple[Host, Host]]:
    """Compute cumulative distributions by algorithm: sorted numbers up to ``end``, and the share of all up to each."""
    curves = {}
    for name, unsorted in numbers.items():
        ordered = np.sort(unsorted)
        reached = ordered[np.isfinite(ordered) & (ordered <= end)]
        curves[name] = reached, np.arange(1, len(reached) + 1) / len(ordered)
    return curves


def profile_chart(results: Results) -> Chart | None:
    """Make the figure of performance profiles: targets reached against seconds, iterations and samples, and error ratios."""
    by_algorithm = grouped(hits(results), lambda hit: hit.algorithm)
    if len(by_algorithm) < 2:
        return None
    looks, panels = looks_of(results.suite), []
    for axis, xlabel in (
        ("seconds", "seconds"),
        ("iteration", "iterations"),
        ("samples", "samples processed"),
        ("ratio", "error over that of the best algorithm"),
    ):
        if axis == "ratio":
            ylabel, curves = "instances", share_within(performance(results), CUT)
            end = CUT
        else:
            ylabel, times = "targets reached", {}
            for name, members in by_algorithm.items():
                times[name] = [getattr(hit, axis) for hit in members]
            curves = share_within(times)
            end = max((x[-1] for x, _ in curves.values() if len(x)), default=1.0)
        series = []
        for name, (x, y) in curves.items():
            if name in looks:
                height = y[-1] if len(y) else 0.0
                columns = {"x": [*x, end], "share": [*y, height]}
                style = {"drawstyle": "steps-post", **end_marker(looks[name])}
                about, color = {"axis": xlabel, "algorithm": name}, looks[name].color
                series.append(Series(name, columns, about, "line", color, style, name))
        is_log = axis != "ratio"
        panel = Panel(
            "", xlabel, f"share of {ylabel}", series, None, "x", "share", is_log
        )
        panels.append(panel)
    return Chart("profiles", results.suite.title, panels, READING)
