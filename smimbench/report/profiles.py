"""Performance profiles: over time, the share of targets that runs of an algorithm have reached; and the share of instances on
which its error is within a given factor of the smallest error of all algorithms.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.row import ZERO, grouped, optimum_at_limit
from smimbench.report.rows import bayes_point
from smimbench.report.statistics import (
    EPSILONS,
    instance_of,
    near_optimum,
    time_near_optimum,
)
from smimbench.report.style import end_marker, looks_of
from smimbench.report.verdict import errors_and_optima, on_instance_data
from smimbench.run.external import EXTERNAL
from smimbench.run.loop import FAILED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.report.results import Results


CUT = 4.0
"""Largest ratio to the smallest error that the performance profile shows."""


READING = (
    "Higher is better. First three: share of targets reached; targets are errors within "
    f"{', '.join(f'{e:.0%}' for e in EPSILONS)} of the optimum on every instance; a curve is flat once its runs have ended. "
    "Last: share of instances on which the error is at "
    f"most x times the smallest one, up to {CUT:g}. Algorithms that draw their own samples are left out."
)
"""Note below performance profiles that explains how to read them."""


class TargetTime(NamedTuple):
    """Time (seconds, iterations, samples) at which a run of an ``algorithm`` on an ``instance`` (data set) first came within a
    factor ``1 + epsilon`` of the Bayes-optimal error; infinite if it never did.

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


def target_times(results: Results) -> list[TargetTime]:
    """List, for every run and every ``epsilon`` in ``EPSILONS``, when the run first came within a factor ``1 + epsilon`` of the
    Bayes-optimal error (that at its dimension if known, otherwise that at infinite dimension).

    Algorithms that draw fresh samples (see ``on_instance_data``) and problems without stored theory are excluded.
    """
    target_times = []
    for cell, record in results.pairs:
        problem_label, algorithm, alpha, dimension = cell.place
        problem = results.suite.problems[problem_label]
        sample_count = problem.model.sample_count(alpha, dimension)
        if (record.fresh_samples or 0) > 1.5 * sample_count:
            continue
        sample_ratio = problem.model.sample_ratio(sample_count, dimension)
        point = bayes_point(results.answers, problem, sample_ratio)
        optimum = results.optima.get((problem_label, alpha, dimension))
        optimum = optimum or (optimum_at_limit(point) if point else None)
        if optimum is None:
            continue
        has_failed = record.status in FAILED_STATUSES
        trajectory = None if has_failed else results.store.trajectory(record)
        instance = instance_of(record)
        target = results.suite.run.target
        place = problem_label, alpha, dimension, instance
        for epsilon in EPSILONS:
            target_errors = near_optimum(
                optimum.reachable_errors(instance), epsilon, target
            )
            first_time = time_near_optimum(trajectory, target_errors)
            # An algorithm that does not count its samples goes through all of them in every iteration.
            samples = (
                first_time.iteration * sample_count
                if math.isnan(first_time.samples)
                else first_time.samples
            )
            seconds = first_time.seconds + record.timing.lost_seconds
            target_times.append(
                TargetTime(
                    algorithm, place, epsilon, seconds, first_time.iteration, samples
                )
            )
    return target_times


def error_ratios(results: Results) -> dict[str, list[float]]:
    """Compute for each algorithm the ratios of its error on an instance (data set) to the smallest error that any algorithm has
    on that instance, one ratio per instance; infinite where it has no estimate.

    Errors where theory says 0 count as the target if they are below it.
    """
    rows = results.rows
    # Every backend sees the same instances: one of them says how near to the best each algorithm comes.
    backends = (rows[0].place.backend, EXTERNAL)
    backend_rows = [row for row in rows if row.place.backend in backends]
    target = rows[0].target
    errors_by_algorithm = {
        algorithm: {
            instance: max(error, target) if optimum <= ZERO * target else error
            for instance, (error, optimum) in errors.items()
        }
        for algorithm, errors in errors_and_optima(
            on_instance_data(backend_rows)
        ).items()
    }
    smallest_errors: dict[object, float] = {}
    for errors in errors_by_algorithm.values():
        for instance, error in errors.items():
            smallest = smallest_errors.get(instance, math.inf)
            smallest_errors[instance] = min(error, smallest)
    return {
        algorithm: [
            errors[instance] / smallest
            if instance in errors and smallest > 0
            else math.inf
            for instance, smallest in smallest_errors.items()
        ]
        for algorithm, errors in errors_by_algorithm.items()
    }


def cumulative_shares(
    numbers_by_algorithm: Mapping[str, Sequence[float]],
    largest_number: float = sys.float_info.max,
) -> dict[str, tuple[Host, Host]]:
    """Compute the cumulative distribution of each algorithm's numbers (times or error ratios): its sorted numbers up to
    ``largest_number`` (``reached``), and for each of these the share of all its numbers that are at most as large.
    """
    distributions = {}
    for algorithm, numbers in numbers_by_algorithm.items():
        reached = np.sort([number for number in numbers if number <= largest_number])
        shares = np.arange(1, len(reached) + 1) / len(numbers)
        distributions[algorithm] = reached, shares
    return distributions


def profile_chart(results: Results) -> Chart | None:
    """Make the figure of performance profiles. Three panels show for each algorithm the share of its targets (a run and a factor
    of the optimum) that are reached, against seconds, iterations and samples; the last shows the share of instances on which its
    error is at most x times the smallest error of all algorithms.
    """
    times_by_algorithm = grouped(
        target_times(results), lambda target_time: target_time.algorithm
    )
    if len(times_by_algorithm) < 2:
        return None
    looks, panels = looks_of(results.suite), []
    for x_quantity, xlabel in (
        ("seconds", "seconds"),
        ("iteration", "iterations"),
        ("samples", "samples processed"),
        ("ratio", "error over that of the best algorithm"),
    ):
        if x_quantity == "ratio":
            ylabel = "instances"
            curves = cumulative_shares(error_ratios(results), CUT)
            largest_x = CUT
        else:
            ylabel, times = "targets reached", {}
            for algorithm, algorithm_times in times_by_algorithm.items():
                times[algorithm] = [
                    getattr(target_time, x_quantity) for target_time in algorithm_times
                ]
            curves = cumulative_shares(times)
            ends = [numbers[-1] for numbers, _ in curves.values() if len(numbers)]
            largest_x = max(ends, default=1.0)
        series = []
        for algorithm, (numbers, shares) in curves.items():
            look = looks.get(algorithm)
            if look is not None:
                last_share = shares.max(initial=0.0)
                columns = {"x": [*numbers, largest_x], "share": [*shares, last_share]}
                style = {"drawstyle": "steps-post", **end_marker(look)}
                about = {"axis": xlabel, "algorithm": algorithm}
                color = look.color
                curve = Series(
                    algorithm, columns, about, "line", color, style, algorithm
                )
                series.append(curve)
        is_log = x_quantity != "ratio"
        panel = Panel(
            "", xlabel, f"share of {ylabel}", series, None, "x", "share", is_log
        )
        panels.append(panel)
    return Chart("profiles", results.suite.title, panels, READING)
