"""Which layer is learned when: times to half of the overlap, the order of the layers, and how far apart they are."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.tables import number, plain_table, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["UNLEARNABLE", "learning_order", "learning_tables"]

UNLEARNABLE = 1e-3
"""A layer of which even the Bayes-optimal estimate holds less than this has no time to half overlap."""

AXES = ("iteration", "samples", "seconds")


def learning_order(
    trajectories: Sequence[dict[str, Any] | None], bayes: Sequence[float], samples: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """When each layer was learned, and in what order.

    A layer counts as learned when its overlap first reaches half of the Bayes-optimal one. Layers count from 1.

    Parameters
    ----------
    trajectories : sequence of dict or None
        Of every run: ``iteration``, ``samples`` (NaN where the algorithm does not count them), ``seconds`` (t,) and
        ``overlap`` (t, P).
    bayes : sequence of float
        Bayes-optimal overlap of every layer (P,).
    samples : float
        Samples of one run's data set: an epoch. NaN where runs draw fresh ones.

    Returns
    -------
    layers : list of dict
        For every layer ``target`` (None where nothing can be learned), ``fraction`` of runs that reach it, and the median
        ``iterations``, ``samples``, ``epochs`` and ``seconds`` over all runs (runs that never get there count as infinity;
        None stands for infinity or for samples that were not counted).
    order : dict
        ``sequences``: list of ``{"layers": [2, 1], "runs": 7}``, most frequent first, with the layers in the order in
        which they were learned; ``success``: fraction of runs that learned every layer that can be learned; ``factor``:
        time to the last learned layer over time to the first, ``{"mean", "sem", "runs", "axis"}``, geometric mean over
        the runs that learned all, or None.
    """
    targets = [half if (half := 0.5 * value) > UNLEARNABLE / 2 else None for value in bayes]
    wanted = [layer for layer, target in enumerate(targets) if target is not None]
    times = [[_reach(t, layer, target) for layer, target in enumerate(targets)] for t in trajectories]
    layers = []
    for layer, target in enumerate(targets):
        found = [run[layer] for run in times]
        medians = {
            axis: _median([hit[axis] for hit in found]) if target is not None else None for axis in AXES
        }
        seen = medians["samples"]
        layers.append(
            {
                "target": target,
                "fraction": _share([math.isfinite(hit["iteration"]) for hit in found])
                if target is not None
                else None,
                "iterations": medians["iteration"],
                "samples": seen,
                "epochs": None if seen is None or math.isnan(samples) else seen / samples,
                "seconds": medians["seconds"],
            }
        )
    sequences: Counter[tuple[int, ...]] = Counter()
    complete = []
    for run in times:
        reached = [layer for layer in wanted if math.isfinite(run[layer]["iteration"])]
        ordered = sorted((run[layer]["iteration"], layer) for layer in reached)
        sequences[tuple(layer + 1 for _, layer in ordered)] += 1
        complete.append(len(reached) == len(wanted))
    order = {
        "sequences": [{"layers": list(key), "runs": count} for key, count in sequences.most_common()],
        "success": _share(complete),
        "factor": _factor([run for run, whole in zip(times, complete) if whole], wanted),
    }
    return layers, order


def _reach(trajectory: dict[str, Any] | None, layer: int, target: float | None) -> dict[str, float]:
    """Iteration, samples and seconds at which a layer first reaches its target."""
    if trajectory is not None and target is not None:
        there = trajectory["overlap"][:, layer] >= target
        if there.any():
            first = int(np.argmax(there))
            counted = trajectory.get("samples")
            # Nothing has been processed before the first step, so its count of samples is missing, not unknown.
            seen = math.nan if counted is None else 0.0 if first == 0 else float(counted[first])
            return {
                "iteration": float(trajectory["iteration"][first]),
                "samples": seen,
                "seconds": float(trajectory["seconds"][first]),
            }
    return dict.fromkeys(AXES, math.inf)


def _factor(runs: Sequence[Sequence[dict[str, float]]], wanted: Sequence[int]) -> dict[str, Any] | None:
    counted = all(not math.isnan(run[layer]["samples"]) for run in runs for layer in wanted)
    axis = "samples" if counted else "iteration"
    ratios = []
    for run in runs:
        spans = [run[layer][axis] for layer in wanted]
        if len(spans) > 1 and min(spans) > 0:
            ratios.append(max(spans) / min(spans))
    if not ratios:
        return None
    logs = np.log(ratios)
    mean = float(np.exp(logs.mean()))
    sem = mean * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return {"mean": mean, "sem": sem, "runs": len(ratios), "axis": "samples" if counted else "iterations"}


def _median(values: Sequence[float]) -> float | None:
    if not values or any(math.isnan(value) for value in values):
        return None
    middle = float(np.median(values))
    return middle if math.isfinite(middle) else None


def _share(flags: Sequence[bool]) -> float | None:
    return float(np.mean(flags)) if flags else None


def learning_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem with several layers, from rows of the metric that comes first."""
    groups: dict[str, dict[tuple[Any, ...], list[dict[str, Any]]]] = {}
    for row in rows:
        if row.get("learning_order") and row["component"] is not None and row["metric"] == rows[0]["metric"]:
            key = (row["algorithm"], row["backend"], row["alpha"], row["dimension"])
            groups.setdefault(row["problem"], {}).setdefault(key, []).append(row)
    return [_table(problem, list(members.values())) for problem, members in groups.items()]


def _table(problem: str, members: list[list[dict[str, Any]]]) -> RenderableType:
    backends = len({cells[0]["backend"] for cells in members}) > 1
    epochs = all(
        # No median at all (most runs never get there) says nothing about whether samples were counted.
        row["half_overlap"]["epochs"] is not None or row["half_overlap"]["iterations"] is None
        for c in members
        for row in c
    )
    unit = "epochs" if epochs else "iterations"
    columns = [("algorithm", "l"), ("alpha", "r")]
    word = members[0][0].get("component_word", "component")
    columns += [(f"{word} {row['component']}", "r") for row in members[0]]
    columns += [("order (runs)", "l"), ("last / first", "r"), ("all", "r")]
    table = plain_table(columns)
    for cells in members:
        first = cells[0]
        order = first["learning_order"]
        name = f"{first['algorithm']}@{first['backend']}" if backends else str(first["algorithm"])
        shown = [name, f"{first['alpha']:.4g}"]
        for row in cells:
            half = row["half_overlap"]
            if half["target"] is None:
                shown.append("-")
            else:
                shown.append("never" if half[unit] is None else number(half[unit], 2))
        shown.append(
            ", ".join(
                f"{' '.join(map(str, item['layers'])) or 'none'} ({item['runs']})"
                for item in order["sequences"][:3]
            )
        )
        factor = order["factor"]
        if factor is None:
            shown.append("")
        else:
            shown.append(f"{factor['mean']:.3g}" + ("" if factor["sem"] is None else f"±{factor['sem']:.2g}"))
        shown.append("" if order["success"] is None else f"{100 * order['success']:.0f}%")
        table.add_row(*shown)
    note = (
        f"median {unit} until a {word} has half of its Bayes-optimal overlap (- where that is 0); order in which they got there "
        f"(number of runs); last / first: ratio of these times (geometric mean ± s.e.m.); all: share of runs that learned all"
    )
    return titled(table, f"{problem}: order of learning", note)
