"""Figures of errors during runs, against samples and seconds, with the predicted path; spectra of estimates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import ParameterError
from smimbench.registry.metrics import find_metric, metric_label, theory_of
from smimbench.registry.registry import RegistryError
from smimbench.report.charts import Chart, Kind, Panel, Series
from smimbench.report.columns import FEW
from smimbench.report.figures import PANELS, is_cheap
from smimbench.report.labels import component_word, grouped, letter
from smimbench.report.rows import (
    Pair,
    prediction_of,
    prediction_question,
    ratio_of_runs,
    sample_ratio,
    used_fresh,
)
from smimbench.report.statistics import ZERO
from smimbench.report.style import (
    COLORS,
    PREDICTED,
    end_marker,
    floor_of,
    line_name,
    looks_of,
)
from smimbench.run.answers import at_hand
from smimbench.theory.questions import LineQuestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.report.results import Results
    from smimbench.run.record import Record
    from smimbench.theory.questions import Question

GRID = 200
"""Places at which the median over runs is read; doubled, pages and CSV are twice as long and no line looks different."""


class Run(NamedTuple):
    """Values (t, P) of one run along its axis (t,), with its algorithm and record."""

    algorithm: str
    record: Record
    x: Any
    values: Any


Place = tuple[str, float, int]
"""Label of a problem, sample ratio, dimension."""

Clock = Callable[["Record", "JsonObject"], Any]
"""Times of a record and its trajectory."""

Cells = dict[tuple[Any, ...], list[Pair]]
"""Runs by ``Cell.place``."""


def chosen_panels(found: Mapping[tuple[Any, ...], Any]) -> tuple[list[Any], str]:
    """Places (problem, ..., dimension) to draw, and a note if those are not all: the largest dimensions, of too many some."""
    largest = {
        label: max(place[-1] for place in own)
        for label, own in grouped(found, lambda place: place[0]).items()
    }
    places = [place for place in found if place[-1] == largest[place[0]]]
    places = places[:: -(-len(places) // PANELS)]
    return places, "" if len(places) == len(
        found
    ) else f" {len(places)} of {len(found)} combinations are shown."


# -- against samples and seconds -------------------------------------------------------------------------------------------


def _counts(trajectory: JsonObject) -> bool:
    """Whether an algorithm counts its samples; if not, all of them go into every iteration."""
    return bool(
        np.isfinite(np.asarray(trajectory.get("samples", ()), dtype=float)).any()
    )


def _samples(record: Record, trajectory: JsonObject) -> Any:
    return (
        trajectory["samples"]
        if _counts(trajectory)
        else trajectory["iteration"]
        * (np.nan if record.samples is None else record.samples)
    )


def _seconds(record: Record, trajectory: JsonObject) -> Any:
    return trajectory["seconds"] + record.timing.lost_seconds


def learning_charts(results: Results) -> list[Chart]:
    """The first metric, and others whose path is predicted, sample by sample; see ``course_chart``.

    A sample that is processed again counts again. Nothing where no algorithm counts samples (message passing does not) and no
    path is predicted.
    """
    note = "A sample that is processed again counts again; an iteration of what takes no batches counts all samples."
    counted = any(
        _counts(results.store.trajectory(record) or {}) for _, record in results.pairs
    )
    found = []
    for metric in _drawn_metrics(results):
        chart = course_chart(
            results, f"learning-{metric}", metric, _samples, "samples processed", note
        )
        if chart and (
            counted
            or any(
                PREDICTED in one.name for panel in chart.panels for one in panel.series
            )
        ):
            found.append(chart)
        counted = False
    return found


def _drawn_metrics(results: Results) -> list[str]:
    return [
        name for name in results.suite.run.metrics if find_metric(name).in_trajectory
    ]


def seconds_chart(results: Results) -> Chart | None:
    """The squared error against seconds, see ``course_chart``; None where a single algorithm was run."""
    if len({cell.algorithm_label for cell, _ in results.pairs}) < 2:
        return None
    trusted = all(record.timing.trusted for _, record in results.pairs)
    note = "" if trusted else "Times are untrusted: cells may have run in parallel."
    return course_chart(results, "seconds", "mse", _seconds, "seconds", note)


def course_chart(
    results: Results, name: str, metric: str, clock: Clock, xlabel: str, note: str
) -> Chart | None:  # fmt: skip
    """A metric during runs against a clock, in a panel for each problem and sample ratio, at the largest dimension.

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
    chosen, left_out = chosen_panels(runs)
    cells = grouped(results.pairs, lambda pair: pair[0].place)
    panels = [
        _course_panel(results, place, runs[place], metric, xlabel, cells)
        for place in chosen
    ]
    key = (
        f"{metric_label(metric)} against {xlabel}. Lines: median over runs; bands: quartiles, of fewer than four runs all "
        "of them; dashed: predicted."
    )
    return Chart(name, results.suite.title, panels, (note + left_out).strip(), key)


def _runs_by_place(
    results: Results, metric: str, clock: Clock
) -> dict[Place, list[Run]]:
    """Runs that have a trajectory of a metric, by problem, sample ratio and dimension."""
    runs: dict[Place, list[Run]] = {}
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record)
        if trajectory is not None and metric in trajectory:
            x, values = (
                np.asarray(clock(record, trajectory), dtype=float),
                np.asarray(trajectory[metric]),
            )
            there = np.isfinite(x) & (x > 0) & np.isfinite(values).all(axis=1)
            if there.any():
                run = Run(cell.algorithm_label, record, x[there], values[there])
                runs.setdefault(
                    (cell.problem_label, cell.alpha, cell.dimension), []
                ).append(run)
    return runs


def _range(runs: Sequence[Run]) -> tuple[float, float]:
    """Start of the first run and end of the last one."""
    return min(run.x[0] for run in runs), max(run.x[-1] for run in runs)


def _fresh_samples(runs: Sequence[Run]) -> Any:
    """Numbers of samples at which the best that is possible with fresh samples is drawn; empty where no run draws any."""
    ends = [run.x[-1] for run in runs if used_fresh(run.record)]
    return np.geomspace(_range(runs)[0], max(ends), 40) if ends else np.array([])


def _fresh_ratios(problem: Problem, dimension: int, samples: Any) -> list[float]:
    return [problem.model.sample_ratio(max(1, round(n)), dimension) for n in samples]


def course_questions(results: Results) -> Iterator[Question]:
    """Questions that ``learning_charts`` and ``spectrum_chart`` need answered besides those of the tables."""
    if any(used_fresh(record) for _, record in results.pairs):
        for metric in _drawn_metrics(results):
            for (label, _, dimension), runs in _runs_by_place(
                results, metric, _samples
            ).items():
                problem, samples = results.suite.problems[label], _fresh_samples(runs)
                if len(samples) and is_cheap(problem):
                    yield LineQuestion(
                        problem, tuple(_fresh_ratios(problem, dimension, samples))
                    )
    for place, pairs in grouped(
        _pairs_with_spectra(results), lambda pair: pair[0].place
    ).items():
        problem, records = (
            results.suite.problems[place[0]],
            [record for _, record in pairs],
        )
        with contextlib.suppress(RegistryError, ParameterError):
            yield prediction_question(
                problem, pairs[0][0], sample_ratio(problem, *place[2:]), records
            )


def _course_panel(
    results: Results,
    place: Place,
    runs: Sequence[Run],
    metric: str,
    xlabel: str,
    cells: Cells,
) -> Panel:
    label, alpha, dimension = place
    problem, looks, about, x = (
        results.suite.problems[label],
        looks_of(results.suite),
        find_metric(metric),
        xlabel.split()[0],
    )
    known = {"problem": label, "alpha": alpha, "dimension": dimension}
    title = f"{label}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}"
    panel = Panel(title, xlabel, metric_label(metric), [], label, x, xlog=True)
    count, word, answers = (
        runs[0].values.shape[1],
        component_word(problem),
        results.answers,
    )
    held = problem.model.sample_count(alpha, dimension)

    def add(
        name: str,
        algorithm: str,
        color: str,
        style: JsonObject,
        grid: Any,
        **values: Any,
    ) -> None:
        """A line for each component, from values (t, P)."""
        for k in range(count):
            what = line_name(name, word, k if count > 1 else None)
            columns = {
                x: grid,
                **{column: value[:, k] for column, value in values.items()},
            }
            shown = COLORS[k % len(COLORS)] if count > 1 else color
            panel.series.append(
                Series(
                    what,
                    columns,
                    {**known, "what": what},
                    "line",
                    shown,
                    style,
                    algorithm,
                )
            )

    def optimum(name: str, dashes: str, grid: Any, ratios: Sequence[float]) -> None:
        line = at_hand(answers.line, problem, ratios) if len(ratios) > 2 else None
        points = line or at_hand(answers.points, problem, ratios)
        best = np.array(
            [theory_of(about, problem, one[0], count)[0] for one in points or ()],
            dtype=float,
        )
        if np.isfinite(best).any():
            add(name, "", "black", {"ls": dashes, "zorder": 2}, grid, value=best)
            if (
                about.direction == "lower"
                and (best <= ZERO * results.suite.run.target).any()
            ):
                panel.floor = floor_of(best[best > 0][:1], results.suite.run.target)

    optimum(
        "Bayes-optimal",
        "--",
        _range(runs),
        [sample_ratio(problem, alpha, dimension)] * 2,
    )
    if x == "samples":
        panel.series.append(
            Series(
                "",
                {"samples": [held], "algorithm": ["every sample once"]},
                None,
                "upright",
            )
        )
        samples = _fresh_samples(runs)
        if len(samples) and is_cheap(problem):
            ratios = _fresh_ratios(problem, dimension, samples)
            optimum("Bayes-optimal, fresh samples", ":", samples, ratios)
    if about.direction == "lower":  # a run that diverges leaves the panel
        panel.ylog, panel.cap = (
            True,
            3.0 * max(float(run.values[0].max()) for run in runs),
        )
    for i, (name, members) in enumerate(
        grouped(runs, lambda run: run.algorithm).items()
    ):
        first = max(run.x[0] for run in members)
        grid = np.unique(np.concatenate([run.x for run in members]))
        grid = (
            grid[grid >= first]
            if len(grid) <= GRID
            else np.geomspace(first, grid[-1], GRID)
        )
        read = [
            run.values[np.searchsorted(run.x, grid, side="right") - 1]
            for run in members
        ]
        edges = (
            (0.25, 0.75) if len(read) >= FEW else (0.0, 1.0)
        )  # of three runs there are no quartiles
        middle, (low, high) = np.median(read, axis=0), np.quantile(read, edges, axis=0)
        # Colors of components leave dashes to the algorithms.
        style = {
            "ls": ("-", "-.", ":", (0, (5, 1)))[i % 4] if count > 1 else "-",
            "zorder": 3,
            **end_marker(looks[name]),
        }
        add(
            name, name, looks[name].color, style, grid, value=middle, low=low, high=high
        )
        path = (
            _predicted_path(results, problem, cells[label, name, alpha, dimension])
            if x == "samples"
            else {}
        )
        if metric in path:
            at = np.asarray(
                path["samples"]
                if "samples" in path
                else np.multiply(held, path["iteration"]),
                dtype=float,
            )
            value = np.asarray(path[metric], dtype=float).reshape(len(at), -1)[at > 0]
            add(
                name + PREDICTED,
                name,
                looks[name].color,
                {"ls": "--", "zorder": 4},
                at[at > 0],
                value=value,
            )
    return panel


def _predicted_path(
    results: Results, problem: Problem, pairs: Sequence[Pair]
) -> JsonObject:
    """The trajectory that theory predicts for these runs; empty where it predicts none."""
    ratio, records = ratio_of_runs(problem, pairs), [record for _, record in pairs]
    theory = prediction_of(results.answers, problem, pairs[0][0], ratio, records)
    predicted = None if isinstance(theory, str) else theory.trajectory
    return {} if predicted is None or isinstance(predicted, str) else predicted


# -- spectra --------------------------------------------------------------------------------------------------------------


def spectrum_chart(results: Results) -> Chart | None:
    """Eigenvalues of estimates, a panel per problem, algorithm, sample ratio and dimension whose records hold them; None without.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    title.
    """
    groups = grouped(_pairs_with_spectra(results), lambda pair: pair[0].place)
    if not groups:
        return None
    chosen, left_out = chosen_panels(groups)
    note = "Bars: eigenvalues of the estimates of all runs, without those that are zero; lines: predicted."
    panels = [_spectrum_panel(results, place, groups[place]) for place in chosen]
    return Chart("spectrum", results.suite.title, panels, note + left_out)


def _pairs_with_spectra(results: Results) -> list[Pair]:
    return [pair for pair in results.pairs if pair[1].final.get("spectrum")]


def _spectrum_panel(
    results: Results, place: tuple[Any, ...], members: Sequence[Pair]
) -> Panel:
    cell, records = members[0][0], [record for _, record in members]
    problem = results.suite.problems[cell.problem_label]
    about = dict(zip(("problem", "algorithm", "alpha", "dimension"), place))
    title = f"{place[0]}: {place[1]}, α = {cell.alpha:.4g}, {letter(problem.model)} = {cell.dimension}"
    point = prediction_of(
        results.answers, problem, cell, sample_ratio(problem, *place[2:]), records
    )
    expected = None if isinstance(point, str) else point.more.get("spectrum")
    values = np.concatenate(
        [np.asarray(record.final["spectrum"], dtype=float) for record in records]
    )
    there = np.abs(values) > 1e-9 * np.abs(values).max(initial=1e-300)
    heights, edges = np.histogram(
        values[there], max(10, there.sum() // 8)
    )  # a bar holds eight on average
    density = heights / (len(values) * np.diff(edges))
    zero = 1 - there.mean()
    title += f"; zero: {zero:.1%}"

    def spectrum(
        what: str, kind: Kind, color: str, edges: Any, density: Any, zero: float
    ) -> Series:
        columns = {"from": edges[:-1], "to": edges[1:], "density": density}
        return Series(what, columns, {**about, "what": what, "zero": zero}, kind, color)

    series = [spectrum("runs", "bars", "#99C7E0", edges, density, zero)]
    if expected:
        edges, zero = np.asarray(expected["edges"]), expected["zeros"]
        density = np.asarray(expected["mass"]) / np.diff(edges)
        series.append(spectrum("predicted", "line", "black", edges, density, zero))
        title += f", predicted {zero:.1%}"
    label = cell.problem_label
    return Panel(title, "eigenvalue", "density", series, label, "from", "density")
