"""Rows "best of 3": an algorithm that chooses one of its settings on other seeds than those that it is scored with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from smimbench.files import JsonObject
from smimbench.report.labels import grouped
from smimbench.run.choice import log_error
from smimbench.suite.cells import Cell

Pair = tuple["Cell", "JsonObject"]

NO_THEORY = "on every seed its setting is the one that is best on all other seeds"


def best_of(pairs: Sequence[Pair], target: float) -> list[Pair]:
    """Leave one out: for every seed, the runs of the setting that is best on all other seeds of the problem.

    One setting for all sample ratios and dimensions of a problem: that with the fewest runs without an estimate, then by the mean
    of the logarithms of the errors where all settings have one. A seed never takes part in the choice that it is scored with, so
    the mean over seeds is that of an algorithm tuned on one seed less. Settings are compared once all their cells have run, and
    on two seeds or more.

    Parameters
    ----------
    target : float
        Smaller errors count as equal to it.
    """
    found: list[Pair] = []
    families = grouped(
        (pair for pair in pairs if pair[0].family), lambda p: (p[0].problem_label, p[0].family, p[0].backend)
    )
    for (_, family, _), members in families.items():
        runs: dict[str, dict[tuple[int, float, int], Pair]] = {}
        for cell, record in members:
            runs.setdefault(cell.algorithm_label, {})[cell.replicate, cell.alpha, cell.dimension] = cell, record
        places = next(iter(runs.values())).keys()
        replicates = {replicate for replicate, *_ in places}
        if len(runs) < 2 or len(replicates) < 2 or any(own.keys() != places for own in runs.values()):
            continue
        errors = {name: {place: log_error(own[place][1], target) for place in own} for name, own in runs.items()}
        origin = f"best of {len(runs)}"
        as_one: JsonObject = {
            "algorithm_label": f"{family}, {origin}",
            "family": None,
            "tuning": None,
            "origin": origin,
        }
        algorithm = {"name": members[0][0].algorithm["name"], "best_of": list(runs)}
        for held_out in replicates:
            others = [place for place in places if place[0] != held_out]
            whole = [place for place in others if all(math.isfinite(own[place]) for own in errors.values())]
            scores = {
                n: (sum(math.isinf(own[place]) for place in others), fmean([own[place] for place in whole] or [0.0]))
                for n, own in errors.items()
            }
            chosen = runs[min(scores, key=scores.__getitem__)]
            found += [
                (replace(cell, algorithm=algorithm, **as_one), record)
                for place, (cell, record) in chosen.items()
                if place[0] == held_out
            ]
    return found
