"""Which threshold a run that does not converge stands near, if any."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["near_threshold"]

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
