"""Critical sample ratios: weak recovery, the order in which components are learned, perfect recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.coupled import competing, linear_response
from smimbench.theory.fixed_point_curve import FixedPointCurve, fixed_point_curve
from smimbench.theory.free_entropy import branches_meet
from smimbench.theory.information import information_at, overlap_at, prior_moments
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.scalar import ScalarCurve
from smimbench.theory.types import NOTHING, Host, Threshold

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

__all__ = ["curve_thresholds", "thresholds"]

PROBES = (0.5, 0.8, 0.97)
"""Shares of the perfect-recovery threshold at which mixing components are asked for a hard phase; more find shorter ones."""


def thresholds(problem: Problem) -> dict[str, Any]:
    """All thresholds of a problem as plain data.

    Returns
    -------
    dict
        ``weak_recovery`` and ``perfect_recovery``: ``{"value", "error"}`` or None; ``sequential``: a list of
        ``{"layer", "value", "error"}`` in the order learned (layers count from 1); ``hard_phase``: ``[from, to]`` or None.
    """
    if problem.components == 1:
        return _scalar_thresholds(ScalarCurve.of(problem))
    curve = fixed_point_curve(problem)
    return _sweep_thresholds(problem) if curve is None else curve_thresholds(curve)


def _scalar_thresholds(curve: ScalarCurve) -> dict[str, Any]:
    """Thresholds of one component."""
    weak, perfect = curve.weak_limit(), curve.perfect_limit()
    hard = curve.hard_phase() if curve.turning_points() else None
    sequential = [{"layer": 1, **weak.document()}] if weak else []
    jump = Threshold(max(perfect.value, hard[1]), perfect.error) if hard and perfect else None
    return _documents(weak, perfect, sequential, hard, jump)


def curve_thresholds(curve: FixedPointCurve) -> dict[str, Any]:
    """Thresholds of components that are learned one after the other."""
    curve.continuation.follow_bifurcations()
    hard = _hard_phase(curve)
    sequence = [b for b in curve.bifurcations if b.alpha > 0 or curve.ratios.bottom[b.component] == 0]
    sequential = [{"layer": b.component + 1, "value": b.alpha, "error": b.error} for b in sequence]
    perfect, jump = curve.perfect, None
    if hard and perfect is not None and hard[1] > perfect.value:
        jump = Threshold(hard[1], max(perfect.error, curve.error_at_top()))
    return _documents(curve.weak_recovery(), perfect, sequential, hard, jump)


def _hard_phase(curve: FixedPointCurve) -> tuple[float, float] | None:
    """Sample ratios between which the Bayes-optimal fixed point is better than what the uninformed branch reaches."""
    if not curve.folds():
        return None
    _, _, log_alpha = curve.path()
    low, top = float(np.exp(log_alpha.min())), float(np.exp(np.maximum.accumulate(log_alpha).max()))
    if curve.perfect is not None:
        low = min(low, curve.perfect.value)

    def lead(alpha: float) -> float:
        """Free entropy of the informed branch less that of the uninformed one; 0 where they meet."""
        uninformed, informed = curve.predict(alpha, "uninformed"), curve.predict(alpha, "informed")
        if branches_meet(curve.problem, uninformed, informed):
            return 0.0
        return curve.free_entropy(informed) - curve.free_entropy(uninformed)

    grid = np.exp(np.linspace(np.log(low), np.log(top), 201))[1:-1]
    ahead = np.array([lead(alpha) for alpha in grid]) > 0
    if not ahead.any():
        return None
    where = np.flatnonzero(ahead)
    ends = []
    for inside, outside in ((where[0], where[0] - 1), (where[-1], where[-1] + 1)):
        good = float(grid[inside])
        bad = low if outside < 0 else top if outside >= len(grid) else float(grid[outside])
        for _ in range(40):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if lead(middle) > 0 else (good, middle)
        ends.append(good)
    return ends[0], ends[1]


def _sweep_thresholds(problem: Problem) -> dict[str, Any]:
    P = problem.components
    bottom = prior_moments(problem)[1]
    Q, V = overlap_at(problem, np.zeros((P, P)))
    value, error, _ = information_at(problem, Q, V)
    perfect = perfect_limit(problem)
    weak: Threshold | None = None
    if bool((np.diagonal(value) > NOTHING + 3 * np.max(error)).any()):
        weak = Threshold(0.0, 0.0) if not bottom.any() else None
    elif not bottom.any():
        weak = _spectral_threshold(problem, Q, V)
    hard: tuple[float, float] | None = None
    if perfect is not None:
        for alpha, branches in zip(PROBES, competing(problem, [p * perfect.value for p in PROBES])):
            if len(branches) > 1 and branches[0].branch == "informed":
                start = alpha * perfect.value
                hard = min(start, hard[0]) if hard else start, perfect.value
    return _documents(weak, perfect, [], hard)


def _spectral_threshold(problem: Problem, Q: Host, V: Host) -> Threshold | None:
    r"""Where the prior mean becomes unstable: the linear map ``dQ -> E \sum_{cc'} G_cc' dQ G_cc'^T`` has the eigenvalue 1."""
    value, error = linear_response(problem, Q, V)
    P = len(Q)
    eigenvalues, vectors = np.linalg.eig(value.reshape(P * P, P * P))
    leading = int(np.argmax(eigenvalues.real))
    rate = float(problem.model.kappa) * float(eigenvalues[leading].real)
    if not rate > 0:
        return None
    error_of_rate = float(np.abs(vectors[:, leading]) @ error.reshape(P * P, P * P) @ np.abs(vectors[:, leading]))
    return Threshold(1 / rate, float(problem.model.kappa) * error_of_rate / rate**2)


def _documents(
    weak: Threshold | None,
    perfect: Threshold | None,
    sequential: list[dict[str, Any]],
    hard: tuple[float, float] | None,
    jump: Threshold | None = None,
) -> dict[str, Any]:
    """``perfect`` is where V = 0 becomes stable, ``jump`` where the uninformed branch gets there, if that is later."""
    recovery: dict[str, Any] | None = perfect.document() if perfect else None
    if jump is not None:
        recovery = {**jump.document(), "branch": "uninformed", "informed": recovery}
    return {
        "weak_recovery": weak.document() if weak else None,
        "perfect_recovery": recovery,
        "sequential": sequential,
        "hard_phase": list(hard) if hard else None,
    }
