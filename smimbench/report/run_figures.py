"""Figures of runs over time: learning curves with the predicted trajectory, and spectra of estimates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from smimbench.report.figures import PANELS, problem_titles
from smimbench.report.row import ZERO, component_word, dimension_letter_of, grouped
from smimbench.report.rows import (
    Pair,
    prediction_of,
    prediction_question,
    ratio_of_runs,
    sample_ratio,
    used_fresh_samples,
)
from smimbench.report.style import COLORS, PREDICTED, end_marker, floor_of, looks_of
from smimbench.report.theory_lines import is_cheap, optimum_name
from smimbench.run.answers import stored_or_none
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
    """Trajectory of one run: values (t, P) of a metric for P components at t recorded points, whose ``times`` (t,) count
    samples or seconds, with the algorithm's label and the run's record.
    """

    algorithm: str
    record: Record
    times: Host
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


def places_to_draw(places: Collection[PanelPlace]) -> tuple[list[PanelPlace], str]:
    """Choose the places (problem, sample ratio, dimension) to draw, one panel each: those of the largest dimension, at most
    one figure full; a note says if some are omitted.
    """
    largest: dict[str, int] = {}
    for problem_label, *_, dimension in places:
        largest[problem_label] = max(dimension, largest.get(problem_label, 0))
    chosen_places = [place for place in places if place[-1] == largest[place[0]]]
    chosen_places = chosen_places[:: -(-len(chosen_places) // PANELS)]
    if len(chosen_places) == len(places):
        return chosen_places, ""
    return (
        chosen_places,
        f" {len(chosen_places)} of {len(places)} combinations are shown.",
    )


# -- against samples and seconds -------------------------------------------------------------------------------------------


def _counts_samples(trajectory: Trajectory) -> bool:
    """Return whether a trajectory counts samples; if not, every iteration uses all of them."""
    samples = np.asarray(trajectory.get("samples", ()), dtype=float)
    return bool(np.isfinite(samples).any())


def _sample_times(record: Record, trajectory: Trajectory) -> Host:
    """Return the number of samples processed at each step of a run."""
    if _counts_samples(trajectory):
        return trajectory["samples"]
    sample_count = np.nan if record.samples is None else record.samples
    return trajectory["iteration"] * sample_count


def _second_times(record: Record, trajectory: Trajectory) -> Host:
    """Return the seconds at each step of a run, with those of attempts that were given up."""
    return trajectory["seconds"] + record.timing.lost_seconds


def learning_charts(results: Results) -> list[Chart]:
    """Make learning curves against samples, of the first metric and of others with a predicted trajectory.

    A sample that is processed again counts again. Nothing where no algorithm counts samples (message passing does not) and no
    path is predicted.
    """
    trajectories = (results.store.trajectory(record) for _, record in results.pairs)
    draws_without_prediction = any(
        _counts_samples(trajectory or {}) for trajectory in trajectories
    )
    charts = []
    for metric in _drawn_metrics(results):
        chart = clock_chart(results, f"learning-{metric}", metric, "samples")
        if chart and (draws_without_prediction or _has_prediction(chart)):
            charts.append(chart)
        draws_without_prediction = False
    return charts


def _has_prediction(chart: Chart) -> bool:
    """Return whether any line of a chart is a predicted trajectory."""
    legends = [series.name for panel in chart.panels for series in panel.series]
    return any(PREDICTED in name for name in legends)


def _drawn_metrics(results: Results) -> list[str]:
    """List the metrics of the suite that are measured during runs."""
    return [
        name for name in results.suite.run.metrics if find_metric(name).in_trajectory
    ]


def seconds_chart(results: Results) -> Chart | None:
    """Make learning curves of the squared error against seconds; None if there is a single algorithm."""
    if len({cell.algorithm_label for cell, _ in results.pairs}) < 2:
        return None
    return clock_chart(results, "seconds", "mse", "seconds")


def clock_chart(
    results: Results, name: str, metric: str, clock_name: str
) -> Chart | None:
    """Make learning curves of a metric against ``"samples"`` or ``"seconds"``; None if no run has any."""
    if clock_name == "samples":
        note = "Samples count each time they are used; without batches, every iteration uses all samples."
        return learning_curve_chart(
            results, name, metric, _sample_times, "samples processed", note
        )
    trusted = all(record.timing.trusted for _, record in results.pairs)
    note = "" if trusted else "Times are untrusted: cells may have run in parallel."
    return learning_curve_chart(results, name, metric, _second_times, "seconds", note)


def learning_curve_chart(
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
    places, omission_note = places_to_draw(runs)
    cells = grouped(results.pairs, lambda pair: pair[0].place)
    panels = []
    for place in places:
        panel = _LearningPanel(results, place, find_metric(metric), xlabel, runs[place])
        panels.append(panel.draw(cells))
    caption = (
        f"{metric_label(metric)} against {xlabel}. Lines: median over runs; bands: quartiles, or the range of fewer "
        "than four runs; dashed: predicted."
    )
    return Chart(
        name, results.suite.title, panels, (note + omission_note).strip(), caption
    )


def _runs_by_place(
    results: Results, metric: str, clock: Clock
) -> dict[Place, list[Run]]:
    """Collect the runs with a trajectory of a metric, by problem, sample ratio and dimension."""
    runs: dict[Place, list[Run]] = {}
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record)
        if trajectory is None or metric not in trajectory:
            continue
        times = np.asarray(clock(record, trajectory), dtype=float)
        values = np.asarray(trajectory[metric])
        is_shown = np.isfinite(times) & (times > 0) & np.isfinite(values).all(axis=1)
        if is_shown.any():
            run = Run(cell.algorithm_label, record, times[is_shown], values[is_shown])
            place = cell.problem_label, cell.alpha, cell.dimension
            runs.setdefault(place, []).append(run)
    return runs


def _time_range(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the earliest first and the latest last time of runs, in the unit of their clock (samples or seconds)."""
    return min(run.times[0] for run in runs), max(run.times[-1] for run in runs)


def _fresh_sample_grid(
    problem: Problem, dimension: int, runs: Sequence[Run]
) -> tuple[Host, tuple[float, ...]]:
    """Return the numbers of samples at which the Bayes-optimal error is drawn for ``runs`` that use fresh samples, and the
    sample ratios that correspond to them.

    Empty where no run draws any, or theory takes long.
    """
    fresh_sample_counts = [
        run.times[-1] for run in runs if used_fresh_samples(run.record)
    ]
    if not fresh_sample_counts or not is_cheap(problem):
        return np.array([]), ()
    samples = np.geomspace(_time_range(runs)[0], max(fresh_sample_counts), 40)
    ratio_of_count = problem.model.sample_ratio
    return samples, tuple(
        ratio_of_count(max(1, round(sample_count)), dimension)
        for sample_count in samples
    )


def learning_curve_questions(results: Results) -> Iterator[Question]:
    """Yield the theory questions of learning curves and spectra that tables do not ask."""
    problems = results.suite.problems
    if any(used_fresh_samples(record) for _, record in results.pairs):
        for metric in _drawn_metrics(results):
            runs_by_place = _runs_by_place(results, metric, _sample_times)
            for (problem_label, _, dimension), runs in runs_by_place.items():
                _, ratios = _fresh_sample_grid(problems[problem_label], dimension, runs)
                if ratios:
                    yield LineQuestion(problems[problem_label], ratios)
    pairs_by_place = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    for (problem_label, _, alpha, dimension), pairs in pairs_by_place.items():
        problem, records = problems[problem_label], [record for _, record in pairs]
        ratio = sample_ratio(problem, alpha, dimension)
        with contextlib.suppress(RegistryError, ParameterError):
            yield prediction_question(problem, pairs[0][0], ratio, records)


@dataclass
class _LearningPanel:
    """Panel of learning curves: a metric during the runs of one problem, sample ratio and dimension."""

    results: Results
    place: Place
    metric: Metric
    xlabel: str
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        """Begin the panel, without lines yet, with title and labels."""
        problem_label, alpha, dimension = self.place
        self.problem = problem = self.results.suite.problems[problem_label]
        self.components = self.runs[0].values.shape[1]
        self.sample_count = problem.model.sample_count(alpha, dimension)
        letter = dimension_letter_of(problem.model)
        title = problem_titles(self.results.suite)[problem_label]
        self.panel = Panel(
            f"{title}, α = {alpha:.4g}, {letter} = {dimension}",
            self.xlabel,
            metric_label(self.metric.name),
            [],
            problem_label,
            self.xlabel.split()[0],
            xlog=True,
        )

    def draw(self, cells: Cells) -> Panel:
        """Draw the panel, with predictions for the runs of these cells."""
        panel, problem, runs = self.panel, self.problem, self.runs
        problem_label, alpha, dimension = self.place
        ratio = sample_ratio(problem, alpha, dimension)
        is_error = self.metric.direction == "lower"
        optimum = optimum_name(self.metric, problem)
        self._add_optimum(optimum, "--", np.array(_time_range(runs)), [ratio] * 2)
        if is_error:  # a run that diverges leaves the panel
            largest_start_error = max(float(run.values[0].max()) for run in runs)
            panel.ylog, panel.axis_cap = True, 3.0 * largest_start_error
        if panel.x_column == "samples":
            if self.sample_count > 1.01 * _time_range(runs)[0]:
                columns = {
                    "samples": [self.sample_count],
                    "threshold": ["every sample once"],
                }
                panel.series.append(Series("", columns, None, "vertical", "0.5"))
            samples, ratios = _fresh_sample_grid(problem, dimension, runs)
            if ratios:
                self._add_optimum(f"{optimum}, fresh samples", ":", samples, ratios)
        looks = looks_of(self.results.suite)
        runs_by_algorithm = grouped(runs, lambda run: run.algorithm)
        for index, (algorithm, algorithm_runs) in enumerate(runs_by_algorithm.items()):
            # Colors of components leave dashes to the algorithms.
            dash_pattern = DASHES[index % len(DASHES)] if self.components > 1 else "-"
            self._add_median(algorithm, algorithm_runs, looks[algorithm], dash_pattern)
            if panel.x_column == "samples":
                pairs = cells[problem_label, algorithm, alpha, dimension]
                self._add_prediction(algorithm, pairs, looks[algorithm])
        return panel

    def _add_lines(
        self,
        name: str,
        algorithm: str,
        color: str,
        style: Mapping[str, object],
        times: Host,
        **values: Host,
    ) -> None:
        """Add a line per component at t times; each column of ``values`` is an array (t, P) for P components (the value, ends
        of its band).
        """
        place_columns = dict(zip(("problem", "alpha", "dimension"), self.place))
        component_name, components = component_word(self.problem), self.components
        for index in range(components):
            component = ""
            if components > 1:
                component = f"{component_name} {index + 1}"
                color = COLORS[index % len(COLORS)]
            columns = {
                column: component_values[:, index]
                for column, component_values in values.items()
            }
            columns = {self.panel.x_column: times, **columns}
            line = Series(
                name, columns, None, "line", color, style, algorithm, component
            )
            identity = {**place_columns, "what": line.full_name}
            self.panel.series.append(replace(line, constant_columns=identity))

    def _add_optimum(
        self, legend: str, dash_pattern: str, times: Host, ratios: Sequence[float]
    ) -> None:
        """Add the Bayes-optimal line, over the ``times`` (numbers of samples) that correspond to these sample ratios, where
        theory is stored.
        """
        answers, problem = self.results.answers, self.problem
        line_branches = (
            stored_or_none(answers.line, problem, ratios) if len(ratios) > 2 else None
        )
        optimum = [
            theory_of(self.metric, problem, branches[0], self.components)[0]
            for branches in line_branches
            or stored_or_none(answers.points, problem, ratios)
            or ()
        ]
        values = np.array(optimum, dtype=float)
        if np.isfinite(values).any():
            style = {"ls": dash_pattern, "zorder": 2}
            self._add_lines(legend, "", "black", style, times, value=values)
            target = self.results.suite.run.target
            if self.metric.direction == "lower" and (values <= ZERO * target).any():
                self.panel.axis_floor = floor_of(values[values > 0][:1], target)

    def _add_median(
        self, algorithm: str, runs: Sequence[Run], look: Look, dash_pattern: Dashes
    ) -> None:
        """Add the median over an algorithm's runs at common times (``grid``), with a band for quartiles, or for the range of
        few runs.
        """
        common_start = max(run.times[0] for run in runs)
        grid = np.unique(np.concatenate([run.times for run in runs]))
        grid = grid[grid >= common_start]
        if len(grid) > GRID:
            grid = np.geomspace(common_start, grid[-1], GRID)
        values_on_grid = [
            run.values[np.searchsorted(run.times, grid, side="right") - 1]
            for run in runs
        ]
        # Of three runs there are no quartiles.
        band_quantiles = (0.25, 0.75) if len(runs) >= FEW else (0.0, 1.0)
        median = np.median(values_on_grid, axis=0)
        lower, upper = np.quantile(values_on_grid, band_quantiles, axis=0)
        style = {"ls": dash_pattern, "zorder": 3, **end_marker(look)}
        self._add_lines(
            algorithm,
            algorithm,
            look.color,
            style,
            grid,
            value=median,
            low=lower,
            high=upper,
        )

    def _add_prediction(
        self, algorithm: str, pairs: Sequence[Pair], look: Look
    ) -> None:
        """Add the predicted trajectory of an algorithm, if there is one."""
        predicted_path = _predicted_path(self.results, self.problem, pairs)
        if self.metric.name not in predicted_path:
            return
        times = predicted_path.get("samples")
        if times is None:
            times = np.multiply(self.sample_count, predicted_path["iteration"])
        times = np.asarray(times, dtype=float)
        values = np.asarray(predicted_path[self.metric.name], dtype=float).reshape(
            len(times), -1
        )
        style = {"ls": "--", "zorder": 4}
        is_shown = times > 0
        self._add_lines(
            algorithm + PREDICTED,
            algorithm,
            look.color,
            style,
            times[is_shown],
            value=values[is_shown],
        )


DASHES: Sequence[Dashes] = ("-", "-.", ":", (0, (5, 1)))
"""Dash patterns of algorithms, for figures in which colors stand for components."""


def _predicted_path(
    results: Results, problem: Problem, pairs: Sequence[Pair]
) -> Trajectory:
    """Return the predicted trajectory of these runs; empty if there is none."""
    ratio, records = ratio_of_runs(problem, pairs), [record for _, record in pairs]
    prediction = prediction_of(results.answers, problem, pairs[0][0], ratio, records)
    predicted = None if isinstance(prediction, str) else prediction.trajectory
    if predicted is None or isinstance(predicted, str):
        return {}
    return {column: np.asarray(values) for column, values in predicted.items()}


# -- spectra --------------------------------------------------------------------------------------------------------------


def spectrum_chart(results: Results) -> Chart | None:
    """Make the figure of eigenvalue spectra of estimates, one panel per place; None if no record has eigenvalues.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    title.
    """
    pairs_by_place = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    if not pairs_by_place:
        return None
    places, omission_note = places_to_draw(pairs_by_place)
    note = "Bars: nonzero eigenvalues of the estimates of all runs; lines: theory."
    panels = [_spectrum_panel(results, pairs_by_place[place]) for place in places]
    return Chart("spectrum", results.suite.title, panels, note + omission_note)


def _pairs_with_spectra(results: Results) -> list[Pair]:
    """List the cells whose record has the eigenvalues of its estimate."""
    return [pair for pair in results.pairs if pair[1].final.get("spectrum")]


def _spectrum_panel(results: Results, pairs: Sequence[Pair]) -> Panel:
    """Make the panel of the eigenvalues of estimates in all runs at one place (problem, algorithm, sample ratio, dimension):
    the density of nonzero ones in bins, and the predicted density.
    """
    cell, records = pairs[0][0], [record for _, record in pairs]
    problem_label, algorithm, alpha, dimension = cell.place
    problem = results.suite.problems[problem_label]
    identity = dict(zip(("problem", "algorithm", "alpha", "dimension"), cell.place))
    ratio = sample_ratio(problem, alpha, dimension)
    prediction = prediction_of(results.answers, problem, cell, ratio, records)
    predicted_spectrum = None
    if not isinstance(prediction, str):
        predicted_spectrum = prediction.more.get("spectrum")
    spectra = [np.asarray(record.final["spectrum"], dtype=float) for record in records]
    eigenvalues = np.concatenate(spectra)
    is_nonzero = np.abs(eigenvalues) > 1e-9 * np.abs(eigenvalues).max(initial=1e-300)
    # A bar holds eight on average.
    bin_counts, edges = np.histogram(
        eigenvalues[is_nonzero], max(10, is_nonzero.sum() // 8)
    )
    density = bin_counts / (len(eigenvalues) * np.diff(edges))
    zero_fraction = 1 - is_nonzero.mean()
    letter = dimension_letter_of(problem.model)
    problem_title = problem_titles(results.suite)[problem_label]
    title = f"{problem_title}: {algorithm}, α = {alpha:.4g}, {letter} = {dimension}; zero: {zero_fraction:.1%}"

    def spectrum_series(
        legend: str,
        drawing: Kind,
        color: str,
        edges: Host,
        density: Host,
        zero_fraction: float,
    ) -> Series:
        """Make the bars of measured eigenvalues, or the line of predicted ones: their ``density`` between successive
        ``edges`` of bins, and the fraction of eigenvalues that are 0.
        """
        columns = {"from": edges[:-1], "to": edges[1:], "density": density}
        return Series(
            legend,
            columns,
            {**identity, "what": legend, "zero": zero_fraction},
            drawing,
            color,
        )

    series = [spectrum_series("runs", "bars", "#99C7E0", edges, density, zero_fraction)]
    if predicted_spectrum:
        edges, zero_fraction = (
            np.asarray(predicted_spectrum["edges"]),
            predicted_spectrum["zeros"],
        )
        density = np.asarray(predicted_spectrum["mass"]) / np.diff(edges)
        series.append(
            spectrum_series("predicted", "line", "black", edges, density, zero_fraction)
        )
        title += f", predicted {zero_fraction:.1%}"
    return Panel(
        title, "eigenvalue", "density", series, problem_label, "from", "density"
    )
