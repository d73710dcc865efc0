"""Whether runs that made all their steps had come to rest, or their error still moved when they ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["still_moving"]

PART = 0.15
"""Share of the steps whose mean error is compared with that of the share before. Doubled, older progress counts as movement."""

MOVED = 0.05
"""Relative change from one part to the next that counts. Doubled, slow descent counts as rest."""


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
    moves = goes_on and abs(change) > MOVED and abs(after - before) > 4 * noise
    return (change if moves else 0.0), float(error.min() / error[-1]) if error[-1] > 0 else 1.0


def _noise(part: np.ndarray[Any, Any]) -> float:
    """Standard error of the mean of a part of a course about its straight line, by means of its quarters."""
    steps = np.arange(len(part))
    about = part - np.polyval(np.polyfit(steps, part, 1), steps)
    means = np.array([quarter.mean() for quarter in np.array_split(about, 4)])
    return float(max(means.std(ddof=1), about.std(ddof=1) / math.sqrt(len(part))) / 2)
