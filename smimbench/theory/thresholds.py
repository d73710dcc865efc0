"""Critical sample ratios: weak recovery, the order in which components are learned, perfect recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.coupled import competing, linear_response
from smimbench.theory.fixed_point_curve import FixedPointCurve, fixed_point_curve
from smimbench.theory.free_entropy import branches_meet, transition
from smimbench.theory.information import information_at, overlap_at, prior_moments
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.scalar import ScalarCurve
from smimbench.theory.types import NOTHING, HardPhase, Host, Threshold

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

__all__ = ["curve_thresholds", "thresholds"]

HELD = "learned from alpha = 0 on, for the prior mean already has an overlap"
NEVER = "labels say nothing of a signal without an overlap, at any alpha"
NOISY = "labels are noisy or rounded: equations run out as the error falls"
ALONE = "there is one branch only"

PROBES = (0.5, 0.8, 0.97)
"""Shares of the perfect-recovery threshold at which mixing components are asked for a hard phase; more find shorter ones."""


def thresholds(problem: Problem) -> dict[str, Any]:
    """All thresholds of a problem as plain data.

    Returns
    -------
    dict
        ``weak_recovery``, ``perfect_recovery``, ``spinodal`` (the informed branch begins), ``information_theoretic`` (it becomes
        the Bayes-optimal one), ``algorithmic`` (the uninformed branch ends): ``{"value", "error"}`` or None; ``sequential``: a
        list of ``{"layer", "value", "error"}`` in the order learned (layers count from 1); ``hard_phase``: ``[from, to]`` or
        None; ``reasons``: for each that is None, or empty, why.
    """
    if problem.components == 1:
        return _scalar_thresholds(ScalarCurve.of(problem))
    curve = fixed_point_curve(problem)
    return _sweep_thresholds(problem) if curve is None else curve_thresholds(curve)


def _scalar_thresholds(curve: ScalarCurve) -> dict[str, Any]:
    """Thresholds of one component."""
    weak, perfect = curve.weak_limit(), curve.perfect_limit()
    hard = curve.hard_phase()
    sequential = [{"layer": 1, **weak.document()}] if weak else []
    reasons = {"weak_recovery": HELD if curve.bottom > 0 else NEVER, "perfect_recovery": NOISY}
    return _documents(weak, perfect, sequential, hard, reasons)


def curve_thresholds(curve: FixedPointCurve) -> dict[str, Any]:
    """Thresholds of components that are learned one after the other."""
    curve.continuation.follow_bifurcations()
    hard = _hard_phase(curve)
    sequence = [b for b in curve.bifurcations if b.alpha > 0 or curve.ratios.bottom[b.component] == 0]
    sequential = [{"layer": b.component + 1, "value": b.alpha, "error": b.error} for b in sequence]
    weak = curve.weak_recovery()
    held = weak is None and bool(curve.bifurcations)
    reasons = {"weak_recovery": HELD if held else NEVER, "perfect_recovery": NOISY}
    missing = curve.problem.components - len(curve.bifurcations)
    if missing:
        reasons["sequential"] = (
            f"{missing} of {curve.problem.components} components are not learned before the curve ends"
        )
    elif held:
        reasons["sequential"] = HELD
    return _documents(weak, curve.perfect, sequential, hard, reasons)


def _hard_phase(curve: FixedPointCurve) -> HardPhase | None:
    """Where the Bayes-optimal fixed point is better than what the uninformed branch reaches."""
    if not curve.folds():
        return None
    log_alpha = curve.path()[2]
    highest = np.maximum.accumulate(log_alpha)
    # Where alpha has fallen the curve has been there before; beyond the largest of these it is alone again.
    fallen = log_alpha < highest
    fallen = fallen if fallen.any() else log_alpha == highest[-1]
    bottom, top = (float(np.exp(v)) for v in (log_alpha[fallen].min(), highest[fallen].max()))
    low = Threshold(bottom, curve.error_at(bottom))
    if curve.perfect is not None and curve.perfect.value < low.value:
        low = curve.perfect

    def lead(alpha: float) -> tuple[float, float]:
        """Free entropy of the informed branch less that of the uninformed one; 0 where they meet."""
        pair = [curve.predict(alpha, branch) for branch in ("uninformed", "informed")]
        if branches_meet(curve.problem, *pair):
            return 0.0, 0.0
        (stuck, one), (free, two) = (curve.free_entropy(point) for point in pair)
        return free - stuck, one + two

    optimal = transition(lead, low, top)
    return None if optimal is None else HardPhase(low, optimal, Threshold(top, curve.error_at(top)))


def _sweep_thresholds(problem: Problem) -> dict[str, Any]:
    P = problem.components
    bottom = prior_moments(problem)[1]
    Q, V = overlap_at(problem, np.zeros((P, P)))
    value, error, _ = information_at(problem, Q, V)
    perfect = perfect_limit(problem)
    weak: Threshold | None = None
    reasons = {"weak_recovery": HELD if bottom.any() else NEVER, "perfect_recovery": NOISY}
    if bool((np.diagonal(value) > NOTHING + 3 * np.max(error)).any()):
        weak = Threshold(0.0, 0.0) if not bottom.any() else None
    elif not bottom.any():
        weak = _spectral_threshold(problem, Q, V)
    hard: HardPhase | None = None
    reasons["sequential"] = "components mix: they are not learned one after the other"
    if perfect is not None and perfect.value > 0:
        probes = [share * perfect.value for share in PROBES]
        ahead = [len(found) > 1 and found[0].branch == "informed" for found in competing(problem, probes)]
        if any(ahead):
            first = ahead.index(True)
            start = Threshold(probes[first], probes[first] - (probes[first - 1] if first else 0.0))
            hard = HardPhase(start, start, perfect)
        looked = ", ".join(f"{probe:.4g}" for probe in probes)
        for name in ("spinodal", "information_theoretic", "algorithmic"):
            reasons[name] = f"not seen at alpha = {looked}, where components that mix are asked"
    return _documents(weak, perfect, [], hard, reasons)


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
    hard: HardPhase | None,
    reasons: dict[str, str],
) -> dict[str, Any]:
    """``perfect`` is where V = 0 becomes stable; with a hard phase the uninformed branch may get there later."""
    recovery: dict[str, Any] | None = perfect.document() if perfect else None
    if hard and perfect and hard.algorithmic.value > perfect.value:
        recovery = {**hard.algorithmic.document(), "branch": "uninformed", "informed": recovery}
    names = ("spinodal", "information_theoretic", "algorithmic")
    ends = {name: getattr(hard, name) if hard else None for name in names}
    found: dict[str, Any] = {
        "weak_recovery": weak.document() if weak else None,
        "perfect_recovery": recovery,
        "sequential": sequential,
        **{name: end.document() if end else None for name, end in ends.items()},
        "hard_phase": [hard.information_theoretic.value, hard.algorithmic.value] if hard else None,
    }
    every = {"sequential": reasons["weak_recovery"], **dict.fromkeys(names, ALONE), **reasons}
    found["reasons"] = {name: every[name] for name in (*every, "weak_recovery") if not found[name]}
    return found
