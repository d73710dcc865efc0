"""Performance profiles over all problems of a suite: when runs reach their targets, and how close algorithms get to the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import grouped
from smimbench.report.optimum import limit_of
from smimbench.report.rows import LOST, bayes_point, used_fresh
from smimbench.report.statistics import EPSILONS, instance_of, near_goal, time_near
from smimbench.report.style import end_marker, looks_of
from smimbench.report.verdict import errors
from smimbench.run.external import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        of their own, see ``errors``, and without problems whose theory is not stored.
    """
    found = []
    for cell, record in results.pairs:
        problem = results.problem(cell.problem_label)
        n = problem.model.sample_count(cell.alpha, cell.dimension)
        trajectory = None if record["status"] in LOST else results.store.trajectory(record)
        if used_fresh(record) and record["fresh_samples"] > 1.5 * n:
            continue
        point = bayes_point(results.cache, problem, problem.model.sample_ratio(n, cell.dimension))
        best = results.optima.get((cell.problem_label, cell.alpha, cell.dimension)) or (
            limit_of(point) if point else None
        )
        if best is None:
            continue
        lost = (record.get("timing") or {}).get("lost_seconds") or 0.0
        where = (cell.problem_label, cell.alpha, cell.dimension, f"{cell.seed}/{cell.replicate}")
        for epsilon in EPSILONS:
            at = time_near(trajectory, near_goal(best.goal(instance_of(record)), epsilon, results.suite.run.target))
            # An algorithm that does not count its samples goes through all of them in every iteration.
            samples = at["iteration"] * n if math.isnan(at["samples"]) else at["samples"]
            at |= {"seconds": at["seconds"] + lost, "samples": samples}
            found.append({"algorithm": cell.algorithm_label, "instance": where, "epsilon": epsilon, **at})
    return found


def share_within(entries: Sequence[Mapping[str, Any]], axis: str) -> dict[str, tuple[Any, Any]]:
    """For each algorithm the share of (instance, nearness) that it has reached by then: sorted abscissae and shares."""
    curves = {}
    for name, own in grouped(entries, lambda e: e["algorithm"]).items():
        times = np.sort([e[axis] for e in own])
        reached = times[np.isfinite(times)]
        curves[name] = reached, np.arange(1, len(reached) + 1) / len(times)
    return curves


def performance(results: Results) -> dict[str, tuple[Any, Any]]:
    """For each algorithm, of how many instances its error is at most so many times the least of all, up to ``CUT``."""
    rows = results.rows
    # Every backend sees the same instances: one of them says how near to the best each algorithm comes.
    known = errors([row for row in rows if row["backend"] in (rows[0]["backend"], ELSEWHERE)])
    places = {place for own in known.values() for place in own}
    best = {place: min(own[place][0] for own in known.values() if place in own) for place in places}
    curves = {}
    for name, own in known.items():
        ratios = np.sort([own[p][0] / best[p] if p in own and best[p] > 0 else math.inf for p in places])
        inside = ratios[ratios <= CUT]
        curves[name] = inside, np.searchsorted(ratios, inside, side="right") / len(places)
    return curves


def profile_chart(results: Results) -> Chart | None:
    """Shares of targets reached against seconds, iterations and samples, and how near to the best error each comes."""
    entries = hits(results)
    if len({e["algorithm"] for e in entries}) < 2:
        return None
    looks, title = looks_of(results.suite), results.suite.title
    ratio, targets = "error over that of the best algorithm", "share of targets reached"
    panels = []
    for axis, xlabel, ylabel, curves in (
        ("seconds", "seconds", targets, share_within(entries, "seconds")),
        ("iterations", "iterations", targets, share_within(entries, "iteration")),
        ("samples", "samples processed", targets, share_within(entries, "samples")),
        ("error over the best", ratio, "share of instances", performance(results)),
    ):
        last = CUT if xlabel == ratio else max((x[-1] for x, _ in curves.values() if len(x)), default=1.0)
        # What is near from the start stands at the left end.
        least = min((x[x > 0].min(initial=last) for x, _ in curves.values()), default=last) / 1.5
        series = []
        for name, (x, y) in curves.items():
            if name in looks:
                style = {
                    "color": looks[name].color,
                    "ls": looks[name].dashes,
                    "drawstyle": "steps-post",
                    "clip_on": False,
                }
                csv = table({"axis": axis, "algorithm": name}, x=x, share=y)
                ends, heights = np.concatenate([x[:1], x, [last]]), np.concatenate([[0.0], y, y[-1:]])
                style = {**end_marker(looks[name]), **style, "zorder": 2}
                series.append(Series(name, np.maximum(ends, least), heights, style, csv, algorithm=name))
        panels.append(Panel("", xlabel, ylabel, series, xlog=xlabel != ratio, top=1.0))
    caption, head = f"{title}: profiles over all problems. {READING}", "Profiles over all problems"
    return Chart("profiles", title, panels, caption, READING, head, READING, many=True)
