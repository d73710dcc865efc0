"""Time, iterations and memory of the runs of one row, and how soon they come near theory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.roofline import fraction
from smimbench.report.aggregate import mean_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EPSILONS", "efficiency", "first_hit", "runtime"]

EPSILONS = (0.05, 0.2, 0.5)
"""How near to the Bayes-optimal error a run has to come, relative: the columns of the runtime tables."""


def runtime(
    records: Sequence[dict[str, Any]],
    trajectories: Sequence[dict[str, Any] | None],
    bayes: dict[str, Any],
    target: float,
) -> dict[str, Any]:
    """What the runtime tables show; ``trajectories`` are None for runs that are lost, ``bayes`` is a point of theory."""
    timings = [r["timing"] for r in records if "seconds" in r.get("timing", {})]
    iterations = [r["iterations"] for r in records if "iterations" in r]
    machines = sorted({t["machine"] for t in timings})
    expected = np.atleast_1d(np.asarray(bayes["mse"], dtype=float))
    reached: dict[str, Any] = {}
    for epsilon in EPSILONS:
        goal = np.where(expected > target, (1 + epsilon) * expected, target)
        hits = [first_hit(t, goal) for t in trajectories]
        # An attempt that was given up counts in the time to get there.
        times = [h[0] + (r.get("timing") or {}).get("lost_seconds", 0.0) for h, r in zip(hits, records)]
        steps = [h[1] for h in hits]
        # Runs that never get there count as infinity, so the median is the honest average.
        reached[f"{epsilon:g}"] = {
            "seconds": _finite(float(np.median(times))) if times else None,
            "iterations": _finite(float(np.median(steps))) if steps else None,
            "fraction": float(np.mean(np.isfinite(times))) if times else None,
        }
    return {
        "seconds": mean_of([t["seconds"] + t.get("lost_seconds", 0.0) for t in timings]),
        "cpu_seconds": mean_of([t["cpu_seconds"] for t in timings]),
        "iterations": mean_of(iterations),
        "first_iteration": mean_of([t["first_iteration"] for t in timings if t.get("first_iteration")]),
        "per_iteration": mean_of([t["per_iteration"] for t in timings if t.get("per_iteration")]),
        "peak_memory": max((t["peak_memory"] for t in timings if t.get("peak_memory")), default=None),
        **efficiency(records),
        "trusted": bool(timings) and all(t.get("trusted") for t in timings),
        "machines": machines,
        "time_to_theory": reached,
    }


def efficiency(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean fraction of the ceiling that bounds an iteration, and which ceiling that is; None where it is not known."""
    found = []
    for record in records:
        timing, cell = record.get("timing") or {}, record.get("cell") or {}
        if timing.get("per_iteration") and timing.get("cost") and timing.get("ceilings"):
            one = fraction(
                timing["per_iteration"],
                timing["cost"],
                timing["ceilings"],
                cell.get("dtype", "float64"),
                tf32=cell.get("tf32", False),
            )
            found += [one] if one else []
    return {
        "ceiling_fraction": mean_of([one.value for one in found]),
        "ceiling": found[0].bound if found else None,
        "device_seconds": mean_of(
            [r["timing"]["device_seconds"] for r in records if (r.get("timing") or {}).get("device_seconds")]
        ),
    }


def first_hit(trajectory: dict[str, Any] | None, goal: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Seconds and iterations until every component is within its goal."""
    if trajectory is None or not {"mse", "seconds", "iteration"} <= set(trajectory):
        return math.inf, math.inf
    within = (trajectory["mse"] <= goal).all(axis=1)
    if not within.any():
        return math.inf, math.inf
    first = int(np.argmax(within))
    return float(trajectory["seconds"][first]), float(trajectory["iteration"][first])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
