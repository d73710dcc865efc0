"""Profiles over all problems of a suite: when runs hit their targets, the share of problems reached in time, how near
to the best an algorithm comes, and a summary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import grouped
from smimbench.report.rows import draws_fresh
from smimbench.report.statistics import EPSILONS
from smimbench.report.style import Look, looks_of
from smimbench.report.verdict import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["hits", "profile_chart", "share_within"]

CUT = 4.0
"""Where the performance profile ends: what is further from the best is no contender. Doubled, its interesting part shrinks."""

READING = (
    f"Higher is better. First three: share of (instance, nearness) reached, within {', '.join(f'{e:.0%}' for e in EPSILONS)} of "
    "optimal; a curve is level once its runs have ended. Last: share of instances on which its error is at most x times the "
    f"least of all; cut off at {CUT:g}. Without algorithms that draw samples of their own."
)
"""How to read a profile."""


def hits(
    suite: Suite, pairs: Sequence[tuple[Cell, dict[str, Any]]], cache: TheoryCache, store: Store
) -> list[dict[str, Any]]:
    """When each run came near the Bayes-optimal error: one entry for each run and nearness.

    Returns
    -------
    list of dict
        ``algorithm``; ``instance`` (problem, sample ratio, dimension, root seed and replicate); ``epsilon``; ``seconds``,
        ``iterations`` and ``samples`` at which every component was first within ``(1 + epsilon)`` of the Bayes-optimal
        error (within the suite's target where that is 0), infinity where it never was. Without algorithms that draw samples
        of their own, see ``errors``.
    """
    problems = {plan.label: plan.problem for plan in suite.plans}
    found = []
    for cell, record in pairs:
        model = problems[cell.problem_label].model
        n = model.sample_count(cell.alpha, cell.dimension)
        trajectory = None if record["status"] in ("failed", "diverged") else store.trajectory(record)
        counts: Any = () if trajectory is None else trajectory.get("samples", ())
        if draws_fresh(cell.algorithm) and not (len(counts) and counts[-1] <= 1.5 * n):
            continue
        point = cache.points(problems[cell.problem_label], [model.sample_ratio(n, cell.dimension)])[0][0]
        bayes = np.atleast_1d(np.asarray(point["mse"], dtype=float))
        lost = (record.get("timing") or {}).get("lost_seconds") or 0.0
        where = (cell.problem_label, cell.alpha, cell.dimension, f"{cell.seed}/{cell.replicate}")
        for epsilon in EPSILONS:
            goal = np.where(bayes > suite.run.target, (1 + epsilon) * bayes, suite.run.target)
            at = dict.fromkeys(("seconds", "iterations", "samples"), math.inf)
            if trajectory is not None and (within := (trajectory["mse"] <= goal).all(axis=1)).any():
                first = int(np.argmax(within))
                iteration = float(trajectory["iteration"][first])
                counted = trajectory.get("samples")
                seen = math.nan if counted is None else float(counted[first])
                at = {"seconds": float(trajectory["seconds"][first]) + lost, "iterations": iteration,
                      "samples": seen if math.isfinite(seen) else iteration * n}  # fmt: skip
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


def profile_chart(
    suite: Suite,
    rows: Sequence[dict[str, Any]],
    pairs: Sequence[tuple[Cell, dict[str, Any]]],
    cache: TheoryCache,
    store: Store,
) -> Chart | None:
    """Shares of targets reached against seconds, iterations and samples, and how near to the best error each comes."""
    entries = hits(suite, pairs, cache, store)
    known = errors(rows)
    if len({e["algorithm"] for e in entries}) < 2:
        return None
    looks, panels = looks_of(suite), []
    for key, label in (("seconds", "seconds"), ("iterations", "iterations"), ("samples", "samples processed")):
        curves = share_within(entries, key)
        last = max((x[-1] for x, _ in curves.values() if len(x)), default=1.0)
        # What is near from the start stands at the left end.
        least = min((x[x > 0].min(initial=last) for x, _ in curves.values()), default=last) / 1.5
        series = []
        for name, (x, y) in curves.items():
            steps = np.maximum(np.concatenate([x[:1], x, [last]]), least) if len(x) else np.array([last])
            heights = np.concatenate([[0.0], y, y[-1:]]) if len(x) else np.array([0.0])
            points = table({"axis": key, "algorithm": name}, x=x, share=y)
            series.append(Series(name, steps, heights, _steps(looks[name]), points, algorithm=name))
        panels.append(Panel("", label, "share of targets reached", series, xlog=True, ylim=(0, 1.02)))
    places = sorted({place for own in known.values() for place in own}, key=str)
    best = {place: min(own[place][0] for own in known.values() if place in own) for place in places}
    series = []
    for name, own in known.items():
        ratios = np.sort([own[p][0] / best[p] if p in own and best[p] > 0 else math.inf for p in places])
        if name not in looks:
            continue
        inside = ratios[ratios <= CUT]
        heights = np.searchsorted(ratios, inside, side="right") / len(places)
        top = heights[-1:] if len(heights) else np.zeros(1)
        points = table({"axis": "error over the best", "algorithm": name}, x=inside, share=heights)
        x, y = np.array([1.0, *inside, CUT]), np.array([(ratios <= 1).mean(), *heights, *top])
        series.append(Series(name, x, y, _steps(looks[name]), points, algorithm=name))
    panels.append(Panel("", "error over that of the best algorithm", "share of instances", series,
                        xlim=(1, CUT), ylim=(0, 1.02)))  # fmt: skip
    return Chart("profiles", suite.title, panels, f"{suite.title}: profiles over all problems. {READING}", READING,
                 "Profiles over all problems", READING, many=True)  # fmt: skip


def _steps(look: Look) -> dict[str, Any]:
    """Steps with the marker of an algorithm at their end: in grey, colors do not tell two of them apart."""
    return {"color": look.color, "ls": look.dashes, "drawstyle": "steps-post", "marker": look.marker, "markevery": [-1],
            "ms": 4.5, "clip_on": False}  # fmt: skip
