"""Statistics over the runs of one row: time, iterations, memory, whether their error still moved, which threshold is near."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.roofline import fraction
from smimbench.report.aggregate import mean_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EPSILONS", "efficiency", "first_hit", "near_threshold", "runtime", "still_moving"]


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


PART = 0.15
"""Share of the steps whose mean error is compared with that of the share before. Doubled, older progress counts as movement."""


def still_moving(
    records: Sequence[dict[str, Any]], trajectories: Sequence[dict[str, Any] | None], target: float
) -> dict[str, Any] | None:
    """Of the runs of one row those whose error still moved; None where fewer than three in four did.

    Only runs that ended because their steps were over can: the others were ended by a rule. A run moves where the mean error of
    its last ``PART`` differs from that of the part before by ``MOVED`` and by 4 standard errors of the
    noise within them, and the part before those in the same direction; errors below ``target`` count as 0.

    Returns
    -------
    dict or None
        ``runs`` that moved; ``change``, the median of their relative changes; ``lowest``, the median over them of the lowest
        error on the way over that at the end.
    """
    changes = [
        found
        for record, trajectory in zip(records, trajectories)
        if record["status"] == "ok" and record["reason"].startswith("all ") and trajectory is not None
        if (found := _change(trajectory, target)) is not None
    ]
    moved = [one for one in changes if one[0]]
    up = [one for one in moved if one[0] > 0]
    moved = max(up, [one for one in moved if one[0] < 0], key=len)
    if not moved or 4 * len(moved) < 3 * len(changes):
        return None
    change, lowest = (float(np.median(values)) for values in zip(*moved))
    return {"runs": len(moved), "change": change, "lowest": lowest}


def _change(trajectory: dict[str, Any], target: float) -> tuple[float, float] | None:
    """Relative change of the error at the end of a run, 0 where it is noise, and its lowest error over the last one."""
    if "mse" not in trajectory:
        return None
    at, error = np.asarray(trajectory["iteration"]), np.asarray(trajectory["mse"], dtype=float).sum(axis=1)
    last = at[-1]
    parts = [error[(at > (1 - (i + 1) * PART) * last) & (at <= (1 - i * PART) * last)] for i in (2, 1, 0)]
    if min(map(len, parts)) < 4 or not np.isfinite(error).all():
        return None
    first, before, after = (float(part.mean()) for part in parts)
    if max(before, after) <= target:
        return 0.0, 1.0
    # Neighbours in time are alike: what a part goes about counts as few points, not as all that were measured.
    noise = math.hypot(*(_noise(part) for part in parts[1:]))
    change = after / before - 1 if before > 0 else math.inf
    # Swings about a floor turn; three parts in one direction are rarely chance.
    goes_on = (after - before) * (before - first) > 0
    moves = goes_on and abs(change) > 0.05 and abs(after - before) > 4 * noise
    return (change if moves else 0.0), float(error.min() / error[-1]) if error[-1] > 0 else 1.0


def _noise(part: np.ndarray[Any, Any]) -> float:
    """Standard error of the mean of a part of a course about its straight line, by means of its quarters."""
    steps = np.arange(len(part))
    about = part - np.polyval(np.polyfit(steps, part, 1), steps)
    means = np.array([quarter.mean() for quarter in np.array_split(about, 4)])
    return float(max(means.std(ddof=1), about.std(ddof=1) / math.sqrt(len(part))) / 2)


NAMES = {
    "weak_recovery": "weak-recovery threshold",
    "perfect_recovery": "perfect-recovery threshold",
    "algorithmic": "algorithmic threshold",
    "spinodal": "spinodal",
    "information_theoretic": "information-theoretic threshold",
}
"""Thresholds of a problem by their key, in words; those of components stand under ``sequential``."""


def near_threshold(found: Mapping[str, Any], alpha: float, count: int, word: str = "component") -> str | None:
    """Which threshold is nearest, if one is so near that a run of this size may honestly not converge; None if none is.

    The rate at which an overlap grows out of nothing, or falls to it, is ``alpha / alpha_c`` up to a fluctuation of order
    ``1 / sqrt(count)`` from one draw of the data to the next, with ``count = D`` directions for low rank, and n samples for
    extensive rank: within ``|alpha - alpha_c| <= alpha_c / sqrt(count)`` either may happen.

    Parameters
    ----------
    found : dict
        Thresholds as ``smimbench.theory.predictions.thresholds`` gives them.
    alpha : float
        Sample ratio that was really used.
    count : int
        What fluctuates so: D for low rank, n for extensive rank.
    word : str
        What a component is called.
    """
    known = [(f"threshold of {word} {step['layer']}", step["value"]) for step in found.get("sequential") or ()]
    for key, name in NAMES.items():
        entry = found.get(key)
        if entry and not (key == "weak_recovery" and known):  # the first of the components
            known.append((name, entry["value"]))
    distances = [(abs(alpha / value - 1), name, value) for name, value in known if value and math.isfinite(value)]
    if not distances:
        return None
    distance, name, value = min(distances)
    if distance > 1 / math.sqrt(count):
        return None
    return (
        f"alpha {alpha:.3g} is within 1/sqrt({count}) = {100 / math.sqrt(count):.2g}% of the {name} at {value:.3g}: "
        "increase D"
    )
