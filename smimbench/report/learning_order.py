"""Which layer is learned when: times to half of the overlap, the order of the layers, and how far apart they are."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.aggregate import mean_of
from smimbench.report.labels import grouped, place
from smimbench.report.tables import make_table, number, place_columns, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["learning_order", "learning_tables"]


AXES = ("iteration", "samples", "seconds")
LAYER = ("target", "fraction", "iterations", "samples", "epochs", "seconds")


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
    targets = [half if (half := 0.5 * value) > 1e-3 / 2 else None for value in bayes]
    wanted = [layer for layer, target in enumerate(targets) if target is not None]
    times = [[_reach(t, layer, target) for layer, target in enumerate(targets)] for t in trajectories]
    layers = []
    for target, hits in zip(targets, zip(*times) if times else ((),) * len(targets)):
        if target is None:
            layers.append(dict.fromkeys(LAYER))
            continue
        iterations, seen, seconds = (_median_time([hit[axis] for hit in hits]) for axis in AXES)
        share = mean_of([math.isfinite(hit["iteration"]) for hit in hits])
        epochs = None if seen is None or math.isnan(samples) else seen / samples
        layers.append(dict(zip(LAYER, (target, share, iterations, seen, epochs, seconds))))
    sequences: Counter[tuple[int, ...]] = Counter()
    complete = []
    for run in times:
        reached = [layer for layer in wanted if math.isfinite(run[layer]["iteration"])]
        ordered = sorted((run[layer]["iteration"], layer) for layer in reached)
        sequences[tuple(layer + 1 for _, layer in ordered)] += 1
        complete.append(len(reached) == len(wanted))
    order = {
        "sequences": [{"layers": list(key), "runs": count} for key, count in sequences.most_common()],
        "success": mean_of(complete),
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


def _median_time(values: Sequence[float]) -> float | None:
    if not values or any(math.isnan(value) for value in values):
        return None
    middle = float(np.median(values))
    return middle if math.isfinite(middle) else None


def learning_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem with several layers, from rows of the metric that comes first."""
    chosen = [
        row
        for row in rows
        if row.get("learning_order") and row["component"] is not None and row["metric"] == rows[0]["metric"]
    ]
    return [
        _order_table(problem, list(grouped(members, place).values()))
        for problem, members in grouped(chosen, lambda row: row["problem"]).items()
    ]


def _order_table(problem: str, members: list[list[dict[str, Any]]]) -> RenderableType:
    epochs = all(
        # No median at all (most runs never get there) says nothing about whether samples were counted.
        row["half_overlap"]["epochs"] is not None or row["half_overlap"]["iterations"] is None
        for layers in members
        for row in layers
    )
    unit = "epochs" if epochs else "iterations"
    word = members[0][0].get("component_word", "component")
    columns: list[Column] = [
        *place_columns([layers[0] for layers in members])[:2],
        *(
            (f"{word} {row['component']}", "r", lambda r, i=i: _half(r["layers"][i]["half_overlap"], unit))
            for i, row in enumerate(members[0])
        ),
        ("order (runs)", "l", lambda r: _sequences(r["learning_order"])),
        ("last / first", "r", lambda r: _last_over_first(r["learning_order"]["factor"])),
        ("all", "r", lambda r: shown(r["learning_order"]["success"], ".0%")),
    ]
    rows = [{**layers[0], "layers": layers} for layers in members]
    return make_table(f"{problem}: order of learning", columns, rows, f"median {unit} to half of the optimal overlap")


def _half(half: dict[str, Any], unit: str) -> str:
    return "-" if half["target"] is None else number(half[unit], 2) or "never"


def _sequences(order: dict[str, Any]) -> str:
    most = order["sequences"][:3]
    return ", ".join(f"{' '.join(map(str, item['layers'])) or 'none'} ({item['runs']})" for item in most)


def _last_over_first(factor: dict[str, Any] | None) -> str:
    if factor is None:
        return ""
    return f"{factor['mean']:.3g}" + ("" if factor["sem"] is None else f"±{factor['sem']:.2g}")
