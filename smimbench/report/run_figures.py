"""Figures of runs over time: learning curves with the predicted trajectory, and spectra of estimates."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from smimbench.interfaces import Host, ParameterError
from smimbench.registry.registry import (
    RegistryError,
    find_metric,
    metric_label,
    theory_of,
)
from smimbench.report.charts import Chart, CsvRow, Dashes, Kind, Panel, Series
from smimbench.report.columns import FEW
from smimbench.report.figures import PANELS, PREDICTED, figure_title, problem_titles
from smimbench.report.row import ZERO, component_word, dimension_letter_of, grouped
from smimbench.report.rows import (
    Pair,
    prediction_of,
    prediction_question,
    ratio_of_runs,
    sample_ratio,
    used_fresh_samples,
)
from smimbench.report.style import COLORS, end_marker, floor_of, looks_of
from smimbench.report.theory_lines import is_cheap, optimum_name
from smimbench.run.answers import stored_or_none
from smimbench.theory.types import Floor, LineQuestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.report.results import Results
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

Trajectory = dict[str, Any]
"""Arrays by name, all of one length (t,)."""

CellPlace = tuple[str, str, float, int]
PanelPlace = TypeVar("PanelPlace", CellPlace, tuple[str, float, int])


def places_to_draw(places: Collection[PanelPlace]) -> tuple[list[PanelPlace], str]:
    """Choose the places (problem, sample ratio, dimension) to draw, one panel each: those of the largest dimension of their
    problem, at most ``PANELS``; also return a note if some are left out.
    """
    largest: dict[str, int] = {}
    for problem_label, *_, dimension in places:
        largest[problem_label] = max(dimension, largest.get(problem_label, 0))
    chosen = [place for place in places if place[-1] == largest[place[0]]]
    chosen = chosen[:: -(-len(chosen) // PANELS)]
    is_complete = len(chosen) == len(places)
    note = f" {len(chosen)} of {len(places)} combinations are shown."
    return chosen, "" if is_complete else note


# -- against samples and seconds -------------------------------------------------------------------------------------------


def _counts_samples(trajectory: Trajectory) -> bool:
    """Return whether the algorithm of a trajectory counted the samples that it processed; if it did not, every iteration used all
    of them.
    """
    samples = np.asarray(trajectory.get("samples", ()), dtype=float)
    return bool(np.isfinite(samples).any())


def _times(record: Record, trajectory: Trajectory, clock: str) -> Any:
    """Return the time of each recorded step of a run by the ``clock``: the number of samples processed so far, or the seconds
    since the start, including attempts that failed before a restart.
    """
    if clock == "seconds":
        return trajectory["seconds"] + record.timing.lost_seconds
    if _counts_samples(trajectory):
        return trajectory["samples"]
    sample_count = np.nan if record.samples is None else record.samples
    return trajectory["iteration"] * sample_count


def learning_charts(results: Results) -> list[Chart]:
    """Make figures of learning curves against the number of processed samples: of the suite's first metric, and of other metrics
    for which theory predicts a trajectory.

    A sample that is processed again counts again. Nothing where no algorithm counts samples (message passing does not) and no
    path is predicted.
    """
    counts_samples = any(
        _counts_samples(results.store.trajectory(record) or {})
        for _, record in results.pairs
    )
    charts = []
    for index, metric in enumerate(_drawn_metrics(results)):
        chart = clock_chart(results, f"learning-{metric}", metric, "samples")
        if chart is None:
            continue
        is_predicted = any(series.name == PREDICTED for series in chart.series)
        if is_predicted or (counts_samples and index == 0):
            charts.append(chart)
    return charts


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


def clock_chart(results: Results, name: str, metric: str, clock: str) -> Chart | None:
    """Make the figure ``name`` of learning curves: a metric during runs against a ``clock`` (``"samples"`` or ``"seconds"``), one
    panel per problem and sample ratio, at the largest dimension; None if no run recorded it.

    Lines are medians over the runs of an algorithm, each of which keeps its last value when it has ended; bands go from quartile
    to quartile, of fewer than four runs from the least value to the largest. The Bayes-optimal line is that of the whole data
    set; where an algorithm draws fresh samples, and theory is cheap, a second one is the best that is possible with as many
    samples. Against samples, the path that theory predicts for an algorithm, from the starts of its runs, is dashed.
    """
    runs = _runs_by_place(results, metric, clock)
    if not runs:
        return None
    xlabel, note = "seconds", ""
    if clock == "samples":
        xlabel = "samples processed"
        note = "Samples count each time they are used; without batches, every iteration uses all samples."
    elif not all(record.timing.trusted for _, record in results.pairs):
        note = "Times are untrusted: cells may have run in parallel."
    places, omission_note = places_to_draw(runs)
    panels = [
        _learning_panel(results, place, metric, clock, xlabel, runs[place])
        for place in places
    ]
    floors = (
        _floor_of_panel(results, place, metric, clock, runs[place]) for place in places
    )
    floor_notes = {FLOOR_NOTES[floor.is_proven] for floor in floors if floor}
    note = " ".join((note, *sorted(floor_notes)))
    caption = (
        f"{metric_label(metric)} against {xlabel}. Lines: median over runs; bands: quartiles, or the range of fewer "
        "than four runs; dashed: predicted."
    )
    note = (note + omission_note).strip()
    return Chart(name, figure_title(results.suite), panels, note, caption)


def _runs_by_place(results: Results, metric: str, clock: str) -> dict[Place, list[Run]]:
    """Collect the runs whose trajectory records a metric, with times by the ``clock`` (samples or seconds), by problem, sample
    ratio and dimension.

    What is not a finite number, or has no time > 0, is left out.
    """
    runs: dict[Place, list[Run]] = {}
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record)
        if trajectory is None or metric not in trajectory:
            continue
        times = np.asarray(_times(record, trajectory, clock), dtype=float)
        values = np.asarray(trajectory[metric])
        is_shown = np.isfinite(times) & (times > 0) & np.isfinite(values).all(axis=1)
        if is_shown.any():
            run = Run(cell.algorithm_label, record, times[is_shown], values[is_shown])
            place = cell.problem_label, cell.alpha, cell.dimension
            runs.setdefault(place, []).append(run)
    return runs


def _time_range(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the earliest first time and the latest last time of ``runs``, in the unit of their clock (samples or seconds)."""
    return min(run.times[0] for run in runs), max(run.times[-1] for run in runs)


def _fresh_sample_grid(
    problem: Problem, dimension: int, runs: Sequence[Run]
) -> tuple[Host, tuple[float, ...]]:
    """Return the numbers of samples at which the Bayes-optimal error is drawn for ``runs`` that use fresh samples, and the sample
    ratio that each number corresponds to.

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
    """Yield the theory questions that learning curves and spectra need answered besides those of tables."""
    problems = results.suite.problems
    if any(used_fresh_samples(record) for _, record in results.pairs):
        for metric in _drawn_metrics(results):
            runs_by_place = _runs_by_place(results, metric, "samples")
            for (problem_label, _, dimension), runs in runs_by_place.items():
                _, ratios = _fresh_sample_grid(problems[problem_label], dimension, runs)
                if ratios:
                    yield LineQuestion(problems[problem_label], ratios)
    pairs_by_place = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    for (problem_label, _, alpha, dimension), pairs in pairs_by_place.items():
        problem = problems[problem_label]
        records = [record for _, record in pairs]
        ratio = sample_ratio(problem, alpha, dimension)
        with contextlib.suppress(RegistryError, ParameterError):
            yield prediction_question(problem, pairs[0][0], ratio, records)


FLOOR = "best first-order method"
"""Name of the line of the smallest error that is possible after as many passes over the data."""
FLOOR_NOTES = {
    True: "Low rank: no first-order method on full batches has a smaller error than the best one, as D grows (proven).",
    False: "Attention matrices, and inputs that are not independent and Gaussian: that none has a smaller error than the best "
    "first-order method is conjectured.",
}
"""Footnote on the line of the best first-order method, where it is a theorem and where a conjecture."""

PREDICTED_LIMIT = "predicted, limit"
"""Name of the line of a predicted trajectory in the limit, where one at the size of the runs is drawn, too."""

DASHES: Sequence[Dashes] = ("-", "-.", ":", (0, (5, 1)))
"""Dash patterns of algorithms, for figures in which colors stand for components."""


def _learning_panel(
    results: Results,
    place: Place,
    metric_name: str,
    clock: str,
    xlabel: str,
    runs: Sequence[Run],
) -> Panel:
    """Make the panel of learning curves at one place: a metric during its ``runs``, against a ``clock`` that ``xlabel`` names,
    with Bayes-optimal values (``optimal_lines``: dashes, times and sample ratios by legend) and the trajectories that theory
    predicts (``predicted_path``).
    """
    problem_label, alpha, dimension = place
    suite = results.suite
    metric = find_metric(metric_name)
    problem = suite.problems[problem_label]
    start, end = _time_range(runs)
    sample_count = problem.model.sample_count(alpha, dimension)
    ratio = sample_ratio(problem, alpha, dimension)
    optimum_legend = optimum_name(metric, problem)
    optimal_lines: dict[str, tuple[Dashes, Host, Sequence[float]]] = {}
    optimal_lines[optimum_legend] = ("--", np.array([start, end]), (ratio, ratio))
    if clock == "samples":
        fresh_samples = _fresh_sample_grid(problem, dimension, runs)
        optimal_lines[f"{optimum_legend}, fresh samples"] = (":", *fresh_samples)
    axis_floor = None
    target = suite.run.target
    is_error = metric.direction == "lower"
    components = runs[0].values.shape[1]
    unsplit_series = []
    floor = _floor_of_panel(results, place, metric_name, clock, runs)
    if floor is not None:
        last = min(len(floor.mse) - 1, int(end // sample_count))
        passes = np.append(np.arange(1, last + 1), max(end / sample_count, 1.0))
        columns = {
            clock: passes * sample_count,
            "value": np.stack([floor.after(passes, p) for p in range(components)], 1),
        }
        style = {"ls": (0, (1, 1)), "zorder": 2}
        unsplit_series.append(Series(FLOOR, columns, color="0.3", style=style))
    for name, (dashes, times, ratios) in optimal_lines.items():
        read_theory = (
            results.answers.line if len(ratios) > 2 else results.answers.points
        )
        points = stored_or_none(read_theory, problem, ratios) or ()
        optimal_values = [
            theory_of(metric, problem, branches[0], components)[0]
            for branches in points
        ]
        values = np.array(optimal_values, dtype=float)
        if np.isfinite(values).any():
            columns = {clock: times, "value": values}
            style = {"ls": dashes, "zorder": 2}
            unsplit_series.append(Series(name, columns, style=style))
            if is_error and (values <= ZERO * target).any():
                axis_floor = floor_of(values[values > 0][:1], target)
    looks = looks_of(suite)
    runs_by_algorithm = grouped(runs, lambda run: run.algorithm)
    for index, (algorithm, algorithm_runs) in enumerate(runs_by_algorithm.items()):
        look = looks[algorithm]
        # Colors of components leave dashes to the algorithms.
        dashes = DASHES[index % len(DASHES)] if components > 1 else "-"
        style = {"ls": dashes, "zorder": 3, **end_marker(look)}
        columns = _median_columns(algorithm_runs, clock)
        line = Series(algorithm, columns, None, "line", look.color, style, algorithm)
        unsplit_series.append(line)
        cell_place = problem_label, algorithm, alpha, dimension
        pairs = [pair for pair in results.pairs if pair[0].place == cell_place]
        predicted_path = (
            _predicted_path(results, problem, pairs) if clock == "samples" else {}
        )
        for column, name, line_dashes in (
            (metric_name, PREDICTED, "--"),
            (f"{metric_name}_limit", PREDICTED_LIMIT, ":"),
        ):
            if column not in predicted_path:
                continue
            iterations_times = np.multiply(sample_count, predicted_path["iteration"])
            times = np.asarray(
                predicted_path.get("samples", iterations_times), dtype=float
            )
            values = np.asarray(predicted_path[column], dtype=float).reshape(
                len(times), -1
            )
            columns = {clock: times[times > 0], "value": values[times > 0]}
            style = {"ls": line_dashes, "zorder": 4}
            unsplit_series.append(
                replace(line, name=name, columns=columns, style=style)
            )
    about = dict(zip(("problem", "alpha", "dimension"), place))
    series = [
        drawn
        for line in unsplit_series
        for drawn in _by_component(line, problem, components, about)
    ]
    if clock == "samples" and sample_count > 1.01 * start:
        one_pass_columns = {clock: [sample_count]}
        series.append(
            Series("every sample once", one_pass_columns, None, "vertical", "0.5")
        )
    largest_start = max(float(run.values[0].max()) for run in runs)
    letter = dimension_letter_of(problem.model)
    title = problem_titles(suite)[problem_label]
    return Panel(
        f"{title}, α = {alpha:.4g}, {letter} = {dimension}",
        xlabel,
        metric_label(metric_name),
        series,
        problem_label,
        clock,
        xlog=True,
        ylog=is_error,
        axis_floor=axis_floor,
        # A run that diverges leaves the panel.
        axis_cap=3.0 * largest_start if is_error else math.inf,
    )


def _floor_of_panel(
    results: Results, place: Place, metric: str, clock: str, runs: Sequence[Run]
) -> Floor | None:
    """Return the smallest errors of first-order methods at one place, if they are stored and belong in a figure of this metric
    against this clock, of ``runs`` of which some go through a data set.
    """
    problem_label, alpha, dimension = place
    all_are_fresh = all(used_fresh_samples(run.record) for run in runs)
    if (metric, clock) != ("mse", "samples") or all_are_fresh:
        return None
    problem = results.suite.problems[problem_label]
    ratio = sample_ratio(problem, alpha, dimension)
    floor = stored_or_none(results.answers.floor, problem, ratio)
    return floor if isinstance(floor, Floor) else None


def _by_component(
    series: Series, problem: Problem, components: int, about: CsvRow
) -> list[Series]:
    """Split a series whose columns (t, P) hold P ``components`` of a problem's signal into P series with a color each; ``about``
    are its constant CSV columns, to which each adds the name of its component.
    """
    split = []
    for index in range(components):
        columns = {
            name: column[:, index] if np.ndim(column) > 1 else column
            for name, column in series.columns.items()
        }
        line = replace(series, columns=columns)
        if components > 1:
            word = f"{component_word(problem)} {index + 1}"
            line = replace(line, component=word, color=COLORS[index % len(COLORS)])
        split.append(replace(line, constant_columns={**about, "what": line.full_name}))
    return split


def _median_columns(runs: Sequence[Run], clock: str) -> dict[str, Host]:
    """Return the median over runs at common times (t,), named by the clock, as an array (t, P), with the ends of a band:
    quartiles, or the range of few runs.
    """
    common_start = max(run.times[0] for run in runs)
    grid = np.unique(np.concatenate([run.times for run in runs]))
    grid = grid[grid >= common_start]
    if len(grid) > GRID:
        grid = np.geomspace(common_start, grid[-1], GRID)
    values_on_grid = [
        run.values[np.searchsorted(run.times, grid, side="right") - 1] for run in runs
    ]
    # Of three runs there are no quartiles.
    quantiles = (0.25, 0.75) if len(runs) >= FEW else (0.0, 1.0)
    lower, upper = np.quantile(values_on_grid, quantiles, axis=0)
    median = np.median(values_on_grid, axis=0)
    return {clock: grid, "value": median, "low": lower, "high": upper}


def _predicted_path(
    results: Results, problem: Problem, pairs: Sequence[Pair]
) -> Trajectory:
    """Return the trajectory that theory predicts for the runs in ``pairs`` (cell and record) of a problem, as arrays by name;
    empty if there is none.
    """
    ratio = ratio_of_runs(problem, pairs)
    records = [record for _, record in pairs]
    prediction = prediction_of(results.answers, problem, pairs[0][0], ratio, records)
    trajectory = None if isinstance(prediction, str) else prediction.trajectory
    return trajectory if isinstance(trajectory, dict) else {}


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
    return Chart("spectrum", figure_title(results.suite), panels, note + omission_note)


def _pairs_with_spectra(results: Results) -> list[Pair]:
    """List the pairs of cell and record whose record has the eigenvalues of the run's estimate."""
    return [pair for pair in results.pairs if pair[1].final.get("spectrum")]


def _spectrum_panel(results: Results, pairs: Sequence[Pair]) -> Panel:
    """Make the panel of the eigenvalues of estimates in all runs at one place (problem, algorithm, sample ratio, dimension):
    the density of nonzero ones in bins, and the predicted density.
    """
    cell = pairs[0][0]
    records = [record for _, record in pairs]
    problem_label, algorithm, alpha, dimension = cell.place
    problem = results.suite.problems[problem_label]
    ratio = sample_ratio(problem, alpha, dimension)
    spectra = [np.asarray(record.final["spectrum"], dtype=float) for record in records]
    eigenvalues = np.concatenate(spectra)
    is_nonzero = np.abs(eigenvalues) > 1e-9 * np.abs(eigenvalues).max(initial=1e-300)
    # A bar holds eight on average.
    bin_count = max(10, is_nonzero.sum() // 8)
    counts, edges = np.histogram(eigenvalues[is_nonzero], bin_count)
    mass = counts / len(eigenvalues)
    zeros = 1 - is_nonzero.mean()
    letter = dimension_letter_of(problem.model)
    problem_title = problem_titles(results.suite)[problem_label]
    title = f"{problem_title}: {algorithm}, α = {alpha:.4g}, {letter} = {dimension}; zero: {zeros:.1%}"
    spectra_by_name: dict[str, tuple[Kind, str, Host, Host, float]] = {}
    spectra_by_name["runs"] = ("bars", "#99C7E0", edges, mass, zeros)
    prediction = prediction_of(results.answers, problem, cell, ratio, records)
    predicted = None if isinstance(prediction, str) else prediction.more.get("spectrum")
    if predicted:
        edges = np.asarray(predicted["edges"])
        mass = np.asarray(predicted["mass"])
        zeros = predicted["zeros"]
        spectra_by_name[PREDICTED] = ("line", "black", edges, mass, zeros)
        title += f", predicted {zeros:.1%}"
    series = []
    for name, (kind, color, edges, mass, zeros) in spectra_by_name.items():
        about = dict(zip(("problem", "algorithm", "alpha", "dimension"), cell.place))
        about |= {"what": name, "zero": zeros}
        columns = {
            "from": edges[:-1],
            "to": edges[1:],
            "density": mass / np.diff(edges),
        }
        series.append(Series(name, columns, about, kind, color))
    return Panel(
        title, "eigenvalue", "density", series, problem_label, "from", "density"
    )
