"""Critical sample ratios: weak recovery, the order in which components are learned, perfect recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.theory.scalar import ScalarCurve, Threshold

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

__all__ = ["thresholds"]


def thresholds(problem: Problem) -> dict[str, Any]:
    """All thresholds of a problem as plain data.

    Returns
    -------
    dict
        ``weak_recovery`` and ``perfect_recovery``: ``{"value", "error"}`` or None; ``sequential``: a list of
        ``{"layer", "value", "error"}`` in the order learned; ``hard_phase``: ``[from, to]`` or None.
    """
    if problem.components > 1:
        from smimbench.theory.coupled import matrix_thresholds

        return matrix_thresholds(problem)
    curve = ScalarCurve.of(problem)
    weak, perfect = curve.weak_limit(), curve.perfect_limit()
    hard = curve.hard_phase() if curve.turning_points() else None
    found: dict[str, Any] = {
        "weak_recovery": document(weak),
        "perfect_recovery": document(perfect),
        "sequential": [{"layer": 1, **document(weak)}] if weak else [],  # type: ignore[dict-item]
        "hard_phase": list(hard) if hard else None,
    }
    if hard and perfect is not None:
        # Two perfect-recovery thresholds: where V = 0 becomes stable, and where the uninformed branch gets there.
        found["perfect_recovery"] = {
            "value": max(perfect.value, hard[1]),
            "error": perfect.error,
            "branch": "uninformed",
            "informed": document(perfect),
        }
    return found


def document(threshold: Threshold | None) -> dict[str, float] | None:
    """A threshold as plain data."""
    return None if threshold is None else {"value": threshold.value, "error": threshold.error}
