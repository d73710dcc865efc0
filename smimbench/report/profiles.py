"""Performance profiles over all problems: how fast runs reach their targets, and how close algorithms get to the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.labels import grouped
from smimbench.report.optimum import limit_of
from smimbench.report.rows import bayes_point
from smimbench.report.statistics import EPSILONS, instance_of, near_goal, time_near
from smimbench.report.style import end_marker, looks_of
from smimbench.report.verdict import errors, on_instance_data
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
