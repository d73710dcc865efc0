"""Performance profiles over all problems of a suite: when runs reach their targets, and how close algorithms get to the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.labels import grouped
from smimbench.report.optimum import limit_of
from smimbench.report.rows import bayes_point
from smimbench.report.statistics import EPSILONS, instance_of, near_goal, time_near
from smimbench.report.style import end_marker, looks_of
from smimbench.report.verdict import errors, on_their_data
from smimbench.run.choice import LOST
from smimbench.run.external import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.files import JsonObject
    from smimbench.report.results import Results

CUT = 4.0
"""Where the performance profile ends: what is further from the best is no contender. Doubled, its interesting part shrinks."""

READING = (
    f"Higher is better. First three: share of (instance, nearness) reached, within {', '.join(f'{e:.0%}' for e in EPSILONS)} of "
    "optimal; a curve is level once its runs have ended. Last: share of instances on which its error is at most x times the "
    f"least of all; cut off at {CUT:g}. Without algorithms that draw samples of their own."
)
"""How to read a profile."""


def hits(results: Results) -> list[JsonObject]:
    """When each run came near the Bayes-optimal error, at its size where that is known: one entry for each run and nearness.

    Returns
    -------
    list of dict
        ``algorithm``; ``instance`` (problem, sample ratio, dimension, root seed and replicate); ``epsilon``; ``seconds``,
        ``iteration`` and ``samples`` at which every component was first within ``(1 + epsilon)`` of the Bayes-optimal
        error (within the suite's target where that is 0), infinity where it never was. Without algorithms that draw samples
        of their own, see ``on_their_data``, and without problems whose theory is not stored.
    """
    found = []
    for cell, record in results.pairs:
        problem = results.suite.problems[cell.problem_label]
        n = problem.model.sample_count(cell.alpha, cell.dimension)
        trajectory = None if record.status in LOST else results.store.trajectory(record)
        if (record.fresh_samples or 0) > 1.5 * n:
            continue
        point = bayes_point(
            results.answers, problem, problem.model.sample_ratio(n, cell.dimension)
        )
        where = cell.problem_label, cell.alpha, cell.dimension
        best = results.optima.get(where) or (limit_of(point) if point else None)
        if best is None:
            continue
        lost = record.timing.lost_seconds
        for epsilon in EPSILONS:
            at = time_near(
                trajectory,
                near_goal(
                    best.goal(instance_of(record)), epsilon, results.suite.run.target
                ),
            )
            # An algorithm that does not count its samples goes through all of them in every iteration.
            samples = at.iteration * n if math.isnan(at.samples) else at.samples
            at = at._replace(seconds=at.seconds + lost, samples=samples)
            found.append(
                {
                    "algorithm": cell.algorithm_label,
                    "instance": (*where, instance_of(record)),
                    "epsilon": epsilon,
                    **at._asdict(),
                }
            )
    return found


def performance(results: Results) -> list[JsonObject]:
    """Error of each algorithm over the least of all on every instance, ``ratio``: infinity where it has none."""
    rows = results.rows
    # Every backend sees the same instances: one of them says how near to the best each algorithm comes.
    known = errors(
        on_their_data(
            [
                row
                for row in rows
                if row.place.backend in (rows[0].place.backend, ELSEWHERE)
            ]
        )
    )
    places = {place for own in known.values() for place in own}
    best = {
        place: min(own[place][0] for own in known.values() if place in own)
        for place in places
    }
    return [
        {
            "algorithm": name,
            "ratio": own[place][0] / best[place]
            if place in own and best[place] > 0
            else math.inf,
        }
        for name, own in known.items()
        for place in places
    ]


def share_within(
    entries: Sequence[JsonObject], axis: str, end: float = math.inf
) -> dict[str, tuple[Any, Any]]:
    """Share of entries that are at most so large, by algorithm: sorted finite abscissae up to ``end``, and shares."""
    curves = {}
    for name, own in grouped(entries, lambda e: e["algorithm"]).items():
        found = np.sort([e[axis] for e in own])
        reached = found[np.isfinite(found) & (found <= end)]
        curves[name] = reached, np.arange(1, len(reached) + 1) / len(found)
    return curves


def profile_chart(results: Results) -> Chart | None:
    """Shares of targets reached against seconds, iterations and samples, and how near to the best error each comes."""
    entries = hits(results)
    if len({e["algorithm"] for e in entries}) < 2:
        return None
    looks, panels = looks_of(results.suite), []
    for axis, found, xlabel, share in (
        ("seconds", entries, "seconds", "targets reached"),
        ("iteration", entries, "iterations", "targets reached"),
        ("samples", entries, "samples processed", "targets reached"),
        (
            "ratio",
            performance(results),
            "error over that of the best algorithm",
            "instances",
        ),
    ):
        curves = share_within(found, axis, CUT if axis == "ratio" else math.inf)
        last = (
            CUT
            if axis == "ratio"
            else max((x[-1] for x, _ in curves.values() if len(x)), default=1.0)
        )
        series = []
        for name, (x, y) in curves.items():
            if name in looks:
                columns = {
                    "x": [*x, last],
                    "share": [*y, *(y[-1:] if len(y) else [0.0])],
                }
                style = {"drawstyle": "steps-post", **end_marker(looks[name])}
                about = {"axis": xlabel, "algorithm": name}
                series.append(
                    Series(name, columns, about, "line", looks[name].color, style, name)
                )
        panels.append(
            Panel(
                "",
                xlabel,
                f"share of {share}",
                series,
                x="x",
                y="share",
                xlog=axis != "ratio",
            )
        )
    return Chart("profiles", results.suite.title, panels, READING)
