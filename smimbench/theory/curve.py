r"""Base class of curves of fixed points over the sample ratio: branches, phase transitions, thresholds.

Which of several fixed points is Bayes-optimal follows from the replica-symmetric free entropy. Its gradient is

.. math:: \frac{\partial \phi}{\partial Q} = \tfrac12 (\kappa \alpha I(Q) - \hat Q(Q)),

with ``Qhat(Q)`` the inverse of the prior's map: differences are integrals along any path between two overlaps (the rule of
equal areas), and need no normalizer of the channel. The larger one wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.problem.problem import Problem
from smimbench.theory.information import (
    diagonals,
    information_at,
    is_sampled,
    overlap_at,
    overlap_error_at,
    prior_moments,
)
from smimbench.theory.types import (
    HARD_PHASE,
    Bifurcation,
    HardPhase,
    Prediction,
    Threshold,
    Thresholds,
)

PRIOR_OVERLAP = "the prior mean already overlaps with the signal"
NEVER = "labels carry no information until the estimate overlaps with the signal, at any alpha"
NEVER_PERFECT = "with noisy or discrete labels the error never reaches zero"


class TurningPoint(NamedTuple):
    """Turning point of a curve of fixed points: the sample ratio, and whether it is a local maximum."""

    threshold: Threshold
    is_peak: bool


class Curve(ABC):
    """Curve of fixed points of a problem as a function of the sample ratio.

    Makers give ``predict``, ``turning_points`` and ``segments``; branches, hard phase and free entropy are read here.
    """

    problem: Problem

    @cached_property
    def perfect(self) -> Threshold | None:
        """Sample ratio above which perfect recovery (V = 0) is stable; None if errors never vanish."""
        return perfect_limit(self.problem)

    @cached_property
    def states_equations(self) -> bool:
        """Whether noiseless labels act as equations for the latents, so that the free entropy diverges at V = 0."""
        return True

    @abstractmethod
    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch at every sample ratio."""

    @abstractmethod
    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem."""

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Turning points of alpha along the curve, beyond numerical error; empty if the branch is unique."""
        raise NotImplementedError

    def segments(self) -> list[Segment]:
        """Complete curve, sampled on fine grids, one per segment."""
        raise NotImplementedError

    @cached_property
    def _potential(self) -> Potential:
        second, prior_mean_overlap = prior_moments(self.problem)
        return Potential(self.segments(), np.diagonal(second - prior_mean_overlap))

    def free_entropy(self, point: Prediction) -> tuple[float, float]:
        """Free entropy of a fixed point relative to the prior mean, and its numerical error."""
        if self.states_equations and not point.V.any():
            return float("inf"), 0.0
        return self._potential.at(point.alpha, np.diagonal(point.V))

    def meet(self, low: Prediction, high: Prediction) -> bool:
        """Whether two predictions are the same fixed point within their errors."""
        scale = float(np.max(np.diagonal(prior_moments(self.problem)[0])))
        apart = np.abs(np.diagonal(low.V) - np.diagonal(high.V))
        return bool(np.all(apart <= 1e-6 * scale + 2 * (low.error + high.error)))

    def competing(self, alphas: Sequence[float]) -> list[list[Prediction]]:
        """Predict all competing fixed points at every sample ratio, the Bayes-optimal one first.

        One prediction with branch ``"unique"`` where the two branches meet; otherwise both, each with its free entropy
        (larger is better; infinite for perfect recovery of continuous signals from noiseless labels).
        """
        if not self.turning_points:
            return [[replace(p, branch="unique")] for p in self.predict(alphas)]
        branches = []
        for low, high in zip(self.predict(alphas), self.predict(alphas, "informed")):
            if self.meet(low, high):
                branches.append([replace(low, branch="unique")])
                continue
            pair = [
                replace(p, free_entropy=self.free_entropy(p)[0]) for p in (low, high)
            ]
            branches.append(bayes_optimal_first(pair))
        return branches

    def batches(self, alphas: Sequence[float]) -> list[list[float]]:
        """Split sample ratios into groups that are solved together; predictions do not depend on the grouping."""
        return [list(alphas)] if alphas else []

    def hard_phase(self) -> HardPhase | None:
        """Hard phase: sample ratios where the Bayes-optimal error is below the uninformed branch; None if there is none."""
        turning = self.turning_points
        peaks = [point.threshold for point in turning if point.is_peak]
        if not peaks:
            return None
        top = max(peaks, key=lambda peak: peak.value)
        lows = [point.threshold for point in turning if not point.is_peak]
        if self.perfect is not None:
            lows.append(self.perfect)
        low = min(lows, key=lambda threshold: threshold.value, default=top)
        if low.value >= top.value:
            return None
        optimal = self.transition(low, top.value)
        return None if optimal is None else HardPhase(low, optimal, top)

    def _free_entropy_gap(self, alpha: float) -> tuple[float, float]:
        """Free entropy of the informed minus that of the uninformed branch, and its error; 0 where the branches meet."""
        low, high = (
            self.predict([alpha], branch)[0] for branch in ("uninformed", "informed")
        )
        if self.meet(low, high):
            return 0.0, 0.0
        (stuck, stuck_error), (free, free_error) = (
            self.free_entropy(low),
            self.free_entropy(high),
        )
        return free - stuck, stuck_error + free_error

    def transition(self, low: Threshold, top: float) -> Threshold | None:
        """Information-theoretic transition, where the informed branch becomes Bayes-optimal; None if it never does.

        Parameters
        ----------
        low : Threshold
            Where the informed branch begins. It is returned where that branch is ahead from there on.
        top : float
            Where the uninformed branch ends.
        """
        span = top - low.value
        if self._free_entropy_gap(low.value + 1e-6 * span)[0] > 0:
            return low
        inside = np.linspace(low.value, top, 33)[1:-1]  # shorter leads are not seen
        ahead = np.array([self._free_entropy_gap(alpha)[0] for alpha in inside]) > 0
        if not ahead.any():
            return None
        index = int(np.argmax(ahead))
        behind, ahead_at = (
            (float(inside[index - 1]) if index else low.value),
            float(inside[index]),
        )
        for _ in range(40):
            center = (behind + ahead_at) / 2
            behind, ahead_at = (
                (behind, center)
                if self._free_entropy_gap(center)[0] > 0
                else (center, ahead_at)
            )
        step = 1e-4 * span
        rise = (
            self._free_entropy_gap(ahead_at + step)[0]
            - self._free_entropy_gap(ahead_at - step)[0]
        ) / (2 * step)
        error = (
            self._free_entropy_gap(ahead_at)[1] / rise
            if np.isfinite(rise) and rise > 0
            else 0.0
        )
        return Threshold(ahead_at, float(error) + ahead_at - behind + 1e-12 * ahead_at)


@dataclass(frozen=True)
class Segment:
    """A smooth part of a curve of fixed points, at an odd number of positions along it.

    Attributes
    ----------
    position, log_alpha, error : ndarray (n,)
        Where along the curve, the logarithm of the sample ratio there, and its error.
    qhat, V : ndarray (n, P)
        Diagonals of Qhat and of the error.
    """

    position: Host
    log_alpha: Host
    error: Host
    qhat: Host
    V: Host


class Potential:
    r"""Free entropy along a curve of fixed points relative to the prior mean, by the equal-area rule.

    ``(1/2) \int \sum_a (kappa alpha I_aa - Qhat_aa) dQ_aa`` is linear in the sample ratio, and on the curve ``kappa I = Qhat /
    alpha(s)``: no normalizer of the channel is needed, and two integrals are all that there is.

    Parameters
    ----------
    segments : list of Segment
        From the prior mean onwards.
    start : ndarray (P,)
        V at the prior mean.
    """

    def __init__(self, segments: list[Segment], start: Host) -> None:
        from scipy.interpolate import CubicSpline

        self.segments = []
        self.before = np.zeros(3)
        for segment in segments:
            log_V = np.log(np.maximum(segment.V, 1e-300))
            prior = -(
                segment.qhat
                * segment.V
                * CubicSpline(segment.position, log_V)(segment.position, 1)
            ).sum(1)
            labels = prior * np.exp(-segment.log_alpha)
            terms = np.stack([labels, prior, labels * segment.error], axis=1)
            fine, coarse = (
                CubicSpline(segment.position[::k], terms[::k]).antiderivative()
                for k in (1, 2)
            )
            depth = np.maximum.accumulate(-np.log(np.maximum(segment.V.sum(1), 1e-300)))
            self.segments.append((depth, segment.position, fine, coarse))
        if segments:
            # From the prior mean to the first position Qhat is proportional to Q, and alpha hardly changes.
            area = 0.5 * float(segments[0].qhat[0] @ (start - segments[0].V[0]))
            self.before = area * np.array([np.exp(-segments[0].log_alpha[0]), 1.0, 0.0])

    def at(self, alpha: float, V: Host) -> tuple[float, float]:
        """Free entropy at the point of the curve with error V (P,), for a given sample ratio, and its numerical error."""
        goal = -np.log(max(float(V.sum()), 1e-300))
        fine, coarse = self.before, self.before
        for depth, position, fine_integral, coarse_integral in self.segments:
            if goal <= depth[0]:
                break
            end = float(np.interp(goal, depth, position))
            fine, coarse = fine + fine_integral(end), coarse + coarse_integral(end)
        labels, prior, noise = fine
        value, coarse_value = (
            0.5 * (alpha * integrals[0] - integrals[1]) for integrals in (fine, coarse)
        )
        rounding = 1e-12 * (alpha * abs(labels) + abs(prior))
        return float(value), float(
            abs(value - coarse_value) / 8 + 0.5 * alpha * noise + rounding
        )


def branch_ends(ratios: Host, ratios_asked: Host, branch: str) -> Host:
    """Index of the node on a curve (n,) where a branch reaches each requested sample ratio (k,); n if it never does.

    The uninformed branch comes from the first node and ends where the ratio is reached, the informed one from the last.
    """
    reached = ratios >= ratios_asked[:, None]
    if branch == "uninformed":
        return np.where(reached.any(1), reached.argmax(1), len(ratios))
    return np.where(reached.all(1), 0, len(ratios) - (~reached)[:, ::-1].argmax(1))


def aitken(a: float, b: float, c: float) -> float:
    """Extrapolate the limit of a sequence from three terms by Aitken's method, unless the step is only noise."""
    step, bend = c - b, (c - b) - (b - a)
    if not abs(bend) > 1e-13 * abs(c):
        return c
    limit = c - step**2 / bend
    return limit if abs(limit - c) <= 3 * abs(step) else c


def perfect_prediction(problem: Problem, alpha: float, branch: str) -> Prediction:
    """Prediction of perfect recovery: exactly zero error."""
    zero = np.zeros(problem.components)
    second = prior_moments(problem)[0]
    return Prediction(
        alpha,
        second,
        np.diag(zero),
        zero,
        branch,
        "counting of equations",
        alpha_error=zero,
    )


def bayes_optimal_first(pair: list[Prediction]) -> list[Prediction]:
    """Sort two competing predictions by free entropy, the largest (Bayes-optimal) first."""
    return sorted(
        pair, key=lambda p: -p.free_entropy if p.free_entropy is not None else 0.0
    )


def thresholds_with_reasons(
    weak: Threshold | None,
    perfect: Threshold | None,
    sequential: Iterable[Bifurcation],
    hard: HardPhase | None,
    reasons: dict[str, str],
) -> Thresholds:
    """Build the thresholds of a problem, with a reason for each one that does not exist."""
    thresholds = Thresholds(weak, perfect, tuple(sequential), hard)
    every = {
        "sequential": reasons["weak_recovery"],
        **dict.fromkeys(HARD_PHASE, "there is one branch only"),
        **reasons,
    }
    every.setdefault("perfect_recovery", NEVER_PERFECT)
    document = thresholds.document()
    missing = [name for name in (*every, "weak_recovery") if not document[name]]
    return replace(thresholds, reasons={name: every[name] for name in missing})


def perfect_limit(problem: Problem) -> Threshold | None:
    r"""Perfect-recovery threshold: sample ratio above which zero error is stable; None if errors never vanish.

    As V -> 0 noiseless labels become linear equations, ``kappa alpha tr(V I) -> kappa alpha E`` with E their number, and the
    prior allows ``tr(V Qhat) -> U``, its number of unknowns. Where all components share the equations, ``alpha = U / (kappa
    E)``. Otherwise the directions in which V vanishes are balanced by ``V_a <- V_a (U_a / E_a)``, ``E_a = V_aa I_aa``, and the
    component that is served worst decides.
    """
    P = problem.components
    kappa = float(problem.model.kappa)

    def at(qhat: Host) -> tuple[Host, Host, Host]:
        """Order parameters Q, V and ``diag(V Qhat)`` at small error."""
        Q, V = overlap_at(problem, np.diag(qhat))
        return Q, V, np.diagonal(V) * qhat

    unknowns = at(np.full(P, 1e9))[2]
    if not np.all(unknowns < 1e3):
        return None
    if not unknowns.any():
        return _limit_of_discrete_signals(problem)
    drift = min(1e-2, abs(float(at(np.full(P, 1e7))[2].sum() / unknowns.sum()) - 1))
    drift += overlap_error_at(problem, 1e9 * np.eye(P))
    equations = problem.channel.equations
    if equations is not None:
        value = float(unknowns.sum()) / (kappa * float(equations))
        return Threshold(value, value * drift)
    tilt = np.ones(P)

    def measure(scale: float) -> tuple[Host, float, float] | None:
        """Sample ratio of each component at a small error ``scale``, its relative error, and the number of equations."""
        Q, V, _ = at(scale / tilt)
        information = information_at(problem, Q, V)
        value, error = diagonals(information)
        shares = np.diagonal(V) * value
        if not (np.isfinite(shares).all() and (shares > 0).all()):
            return None
        return (
            unknowns / (kappa * shares),
            float(np.max(error / value)),
            float(np.trace(V @ information.value)),
        )

    rates = np.zeros(P)
    for _ in range(40):
        balanced = measure(1e5)
        if balanced is None:
            return None
        previous, rates = rates, balanced[0]
        # Components with equations of their own do not feel the balance.
        if np.ptp(np.log(rates)) < 1e-4 or np.allclose(
            rates, previous, rtol=1e-4, atol=0
        ):
            break
        tilt = np.clip(tilt * rates / rates.max(), 1e-6, 1.0)
    below, above = measure(1e4), measure(1e6)
    # Errors that vanish leave the number of equations where it is; otherwise it goes down with them.
    if below is None or balanced is None or above is None or above[2] < 0.8 * below[2]:
        return None
    noise = above[1] + drift
    low, at_middle, high = (
        float(rates.max()) for rates, *_ in (below, balanced, above)
    )
    limit = aitken(low, at_middle, high)
    # Where it is no geometric sequence, what is left is not known better than the last step.
    uncertain = abs(limit - high) if limit != high else abs(high - at_middle)
    return Threshold(limit, uncertain + limit * noise)


def _limit_of_discrete_signals(problem: Problem) -> Threshold | None:
    """Perfect-recovery threshold of discrete signals: 0 for noiseless labels, None for noisy labels.

    The error of a discrete signal vanishes faster than any power of Qhat. The sample ratio ``Qhat / (kappa I)`` that it takes
    falls along with it where the information of labels grows as V does not; noise stops that growth, and it rises.
    """
    from scipy.optimize import brentq

    P = problem.components
    second, prior_mean_overlap = prior_moments(problem)
    prior_variance = np.diagonal(second - prior_mean_overlap)

    def log_share(log_scale: float) -> float:
        """Logarithm of the largest MSE over second moment of a component."""
        V = overlap_at(problem, np.exp(log_scale) * np.eye(P))[1]
        return float(np.log(max(np.max(np.diagonal(V) / prior_variance), 1e-300)))

    def ratio(share: float) -> float:
        """Sample ratio at the fixed point with this fraction of unexplained variance."""
        x = brentq(
            lambda log_scale: log_share(log_scale) - np.log(share),
            -np.log(1e9),
            np.log(1e9),
        )
        information = diagonals(
            information_at(problem, *overlap_at(problem, np.exp(x) * np.eye(P)))
        )[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.max(np.exp(x) / (float(problem.model.kappa) * information)))

    method = information_at(problem, *overlap_at(problem, np.eye(P))).method
    # Unknown shares between which the sample ratio must fall; few labels carry sampled information below.
    shares = (
        (1e-2, 1e-5)
        if is_sampled(method) or method.startswith("nested")
        else (1e-4, 1e-9)
    )
    late, later = (ratio(share) for share in shares)
    return Threshold(0.0, 0.0) if later < late else None
