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
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import spectral_function
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.problem.problem import Problem
from smimbench.theory.information import (
    diagonals,
    information_at,
    is_sampled,
    overlap_at,
    overlap_error_at,
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
    """Turning point of a curve of fixed points: its sample ratio (``threshold``), and whether that is a local maximum of it along
    the curve.
    """

    threshold: Threshold
    is_peak: bool


class Curve(ABC):
    """Curve of fixed points of a problem as a function of the sample ratio alpha. Branches are the fixed points reached from
    the prior mean (uninformed) and from the signal (informed).

    Makers give ``predict``, ``turning_points`` and ``segments``; branches, hard phase and free entropy are read here.
    """

    problem: Problem

    @cached_property
    def perfect(self) -> Threshold | None:
        """Sample ratio above which perfect recovery (V = 0) is stable; None if errors never vanish."""
        return perfect_recovery_threshold(self.problem)

    @cached_property
    def states_equations(self) -> bool:
        """Whether noiseless labels act as equations for the latents, so that the free entropy diverges at error V = 0."""
        return True

    @property
    def is_costly(self) -> bool:
        """Whether thresholds and lines take minutes, so that figures do without them unless they are stored."""
        return False

    @abstractmethod
    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch (uninformed or informed) at every sample ratio."""

    @abstractmethod
    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem."""

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Turning points: local extrema of the sample ratio along the curve, beyond numerical error; empty if the branch is
        unique.
        """
        raise NotImplementedError

    def segments(self) -> list[Segment]:
        """Return the complete curve as segments (smooth parts), each sampled on a fine grid."""
        raise NotImplementedError

    @cached_property
    def _potential(self) -> Potential:
        """Free entropy along the complete curve."""
        second_moment, prior_mean_overlap = prior_moments(self.problem)
        return Potential(
            self.segments(), np.diagonal(second_moment - prior_mean_overlap)
        )

    def free_entropy(self, point: Prediction) -> tuple[float, float]:
        """Free entropy of a fixed point (``point``) relative to the prior mean, and its numerical error."""
        if self.states_equations and not point.V.any():
            return float("inf"), 0.0
        return self._potential.at(point.alpha, np.diagonal(point.V))

    def is_same_prediction(self, low: Prediction, high: Prediction) -> bool:
        """Whether two predictions, the uninformed (low) and the informed (high) one, are the same fixed point within their
        errors.
        """
        largest_second_moment = float(
            np.max(np.diagonal(prior_moments(self.problem)[0]))
        )
        mse_difference = np.abs(np.diagonal(low.V) - np.diagonal(high.V))
        return bool(
            np.all(
                mse_difference
                <= 1e-6 * largest_second_moment + 2 * (low.error + high.error)
            )
        )

    def competing(self, alphas: Sequence[float]) -> list[list[Prediction]]:
        """Predict all competing fixed points (uninformed, informed) at every sample ratio, the Bayes-optimal one first.

        One prediction with branch ``"unique"`` where the two branches meet; otherwise both, each with its free entropy
        (larger is better; infinite for perfect recovery of continuous signals from noiseless labels).
        """
        if not self.turning_points:
            return [
                [replace(prediction, branch="unique")]
                for prediction in self.predict(alphas)
            ]
        branches = []
        for uninformed, informed in zip(
            self.predict(alphas), self.predict(alphas, "informed")
        ):
            if self.is_same_prediction(uninformed, informed):
                branches.append([replace(uninformed, branch="unique")])
                continue
            competing_pair = [
                replace(prediction, free_entropy=self.free_entropy(prediction)[0])
                for prediction in (uninformed, informed)
            ]
            branches.append(bayes_optimal_first(competing_pair))
        return branches

    def batches(self, alphas: Sequence[float]) -> list[list[float]]:
        """Split sample ratios into groups that are solved together; predictions do not depend on the grouping."""
        return [list(alphas)] if alphas else []

    def hard_phase(self) -> HardPhase | None:
        """Hard phase: sample ratios where the Bayes-optimal error is below that of the uninformed branch; None if there is none.
        It ends at the highest local maximum of alpha along the curve and starts at its lowest local minimum.
        """
        turning_points = self.turning_points
        peaks = [point.threshold for point in turning_points if point.is_peak]
        if not peaks:
            return None
        highest_peak = max(peaks, key=lambda peak: peak.value)
        minima = [point.threshold for point in turning_points if not point.is_peak]
        if self.perfect is not None:
            minima.append(self.perfect)
        lowest_minimum = min(
            minima, key=lambda threshold: threshold.value, default=highest_peak
        )
        if lowest_minimum.value >= highest_peak.value:
            return None
        transition = self.transition(lowest_minimum, highest_peak.value)
        return (
            None
            if transition is None
            else HardPhase(lowest_minimum, transition, highest_peak)
        )

    def _free_entropy_gap(self, alpha: float) -> tuple[float, float]:
        """Free entropy of the informed minus that of the uninformed branch at sample ratio alpha, and its error; 0 where the
        branches meet.
        """
        uninformed_prediction, informed_prediction = (
            self.predict([alpha], branch)[0] for branch in ("uninformed", "informed")
        )
        if self.is_same_prediction(uninformed_prediction, informed_prediction):
            return 0.0, 0.0
        uninformed, uninformed_error = self.free_entropy(uninformed_prediction)
        informed, informed_error = self.free_entropy(informed_prediction)
        return informed - uninformed, uninformed_error + informed_error

    def transition(
        self, informed_start: Threshold, uninformed_end: float
    ) -> Threshold | None:
        """Information-theoretic transition, the alpha where the informed branch becomes Bayes-optimal; None if it never does.
        It is bracketed between ``informed_start`` and ``uninformed_end``, the sample ratios where these branches start and end.

        Parameters
        ----------
        informed_start : Threshold
            Where the informed branch begins. Returned if that branch is Bayes-optimal from there on.
        uninformed_end : float
            Where the uninformed branch ends.
        """
        bracket_width = uninformed_end - informed_start.value
        if self._free_entropy_gap(informed_start.value + 1e-6 * bracket_width)[0] > 0:
            return informed_start
        inner_alphas = np.linspace(informed_start.value, uninformed_end, 33)[
            1:-1
        ]  # a transition closer to the start is not seen
        is_informed_optimal = (
            np.array([self._free_entropy_gap(alpha)[0] for alpha in inner_alphas]) > 0
        )
        if not is_informed_optimal.any():
            return None
        first_informed = int(np.argmax(is_informed_optimal))
        lower_alpha = (
            float(inner_alphas[first_informed - 1])
            if first_informed
            else informed_start.value
        )
        upper_alpha = float(inner_alphas[first_informed])
        for _ in range(40):
            midpoint = (lower_alpha + upper_alpha) / 2
            lower_alpha, upper_alpha = (
                (lower_alpha, midpoint)
                if self._free_entropy_gap(midpoint)[0] > 0
                else (midpoint, upper_alpha)
            )
        alpha_step = 1e-4 * bracket_width
        gap_slope = (
            self._free_entropy_gap(upper_alpha + alpha_step)[0]
            - self._free_entropy_gap(upper_alpha - alpha_step)[0]
        ) / (2 * alpha_step)
        error = (
            self._free_entropy_gap(upper_alpha)[1] / gap_slope
            if np.isfinite(gap_slope) and gap_slope > 0
            else 0.0
        )
        return Threshold(
            upper_alpha, float(error) + upper_alpha - lower_alpha + 1e-12 * upper_alpha
        )


@dataclass(frozen=True)
class Segment:
    """A smooth part of a curve of fixed points, sampled at an odd number n of positions along it. Arrays hold the values there:
    position along the curve, log alpha and its error (n,), the diagonals of Qhat (n, P) and of V (n, P).

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
    r"""Free entropy along a curve of fixed points relative to the prior mean, by the equal-area rule: an integral over the
    curve of Qhat dV.

    ``(1/2) \int \sum_a (kappa alpha I_aa - Qhat_aa) dQ_aa`` is linear in the sample ratio, and on the curve ``kappa I = Qhat /
    alpha(s)``: no normalizer of the channel is needed, and two integrals are all that there is.

    Parameters
    ----------
    segments : list of Segment
        From the prior mean onwards.
    prior_mean_V : ndarray (P,)
        V at the prior mean.
    """

    def __init__(self, segments: list[Segment], prior_mean_V: Host) -> None:
        """Integrate the free entropy over the ``segments`` (smooth parts of the curve): a label term (multiplied by alpha later),
        a prior term, and the error from that of log alpha; ``coarse`` integrals use every second position, and ``negative_log_V``
        locates a point on a segment. ``prior_mean_V`` (P,) is V at the prior mean, and ``start_area`` closes the curve from there
        to its first point.
        """
        from scipy.interpolate import CubicSpline

        self.segments = []
        self.start_integrals = np.zeros(3)
        for segment in segments:
            log_V = np.log(np.maximum(segment.V, 1e-300))
            prior_term = -(
                segment.qhat
                * segment.V
                * CubicSpline(segment.position, log_V)(segment.position, 1)
            ).sum(1)
            label_term = prior_term * np.exp(-segment.log_alpha)
            integrands = np.stack(
                [label_term, prior_term, label_term * segment.error], axis=1
            )
            fine_integral, coarse_integral = (
                CubicSpline(
                    segment.position[::stride], integrands[::stride]
                ).antiderivative()
                for stride in (1, 2)
            )
            negative_log_V = np.maximum.accumulate(
                -np.log(np.maximum(segment.V.sum(1), 1e-300))
            )
            self.segments.append(
                (negative_log_V, segment.position, fine_integral, coarse_integral)
            )
        if segments:
            # From the prior mean to the first position Qhat is proportional to Q, and alpha hardly changes.
            start_area = 0.5 * float(
                segments[0].qhat[0] @ (prior_mean_V - segments[0].V[0])
            )
            self.start_integrals = start_area * np.array(
                [np.exp(-segments[0].log_alpha[0]), 1.0, 0.0]
            )

    def at(self, alpha: float, V: Host) -> tuple[float, float]:
        """Free entropy, at sample ratio alpha, of the point of the curve with error V (P,), and its numerical error; ``coarse``
        integrals use every second position.
        """
        negative_log_target = -np.log(max(float(V.sum()), 1e-300))
        fine_sum, coarse_sum = self.start_integrals, self.start_integrals
        for negative_log_V, position, fine_integral, coarse_integral in self.segments:
            if negative_log_target <= negative_log_V[0]:
                break
            end_position = float(
                np.interp(negative_log_target, negative_log_V, position)
            )
            fine_sum = fine_sum + fine_integral(end_position)
            coarse_sum = coarse_sum + coarse_integral(end_position)
        label_term, prior_term, alpha_error_term = fine_sum
        free_entropy, coarse_free_entropy = (
            0.5 * (alpha * integral_sums[0] - integral_sums[1])
            for integral_sums in (fine_sum, coarse_sum)
        )
        rounding_error = 1e-12 * (alpha * abs(label_term) + abs(prior_term))
        return float(free_entropy), float(
            abs(free_entropy - coarse_free_entropy) / 8
            + 0.5 * alpha * alpha_error_term
            + rounding_error
        )


def free_entropy_between(
    problem: Problem, alpha: float, start_qhat: Host, end_qhat: Host
) -> tuple[float, float]:
    """Difference of the free entropy between two values of Qhat (P, P) at sample ratio alpha, end minus start, and its error. Its
    gradient is integrated along a path between them, at positions 0 to 1, where overlap and error are Q and V; kappa is the
    model's factor, 1 or 2, in ``Qhat = kappa alpha I(Q)``.

    The path goes straight in ``log(1 + Qhat)``; 12 Gauss-Legendre nodes.
    """
    kappa = float(problem.model.kappa)
    position_step = 1e-4
    nodes, weights = gauss_legendre(12, 0.0, 1.0)
    path_start, path_end = (
        spectral_function(matrix, np.log1p) for matrix in (start_qhat, end_qhat)
    )
    # Rows of positions: before, at and after every node, for the slope of the path.
    path_positions = (nodes + position_step * np.array([[-1.0], [0.0], [1.0]]))[
        ..., None, None
    ]
    qhat = np.asarray(
        spectral_function(
            (1 - path_positions) * path_start + path_positions * path_end, np.expm1
        )
    )
    Q, V = overlap_at(problem, qhat)
    overlap_slope = (V[0] - V[2]) / (2 * position_step)
    information, information_error, _ = information_at(problem, Q[1], V[1])
    gradient_along_path = (kappa * alpha * information - qhat[1]) * overlap_slope
    gradient_error = (
        kappa * alpha * np.sum(information_error * np.abs(overlap_slope), axis=(1, 2))
    )
    free_entropy_gap = 0.5 * float(weights @ np.sum(gradient_along_path, axis=(1, 2)))
    return free_entropy_gap, 0.5 * float(
        np.sqrt(np.sum((weights * gradient_error) ** 2))
    )


def branch_crossings(ratios: Host, requested_ratios: Host, branch: str) -> Host:
    """Index of the node (solved point) at which a branch reaches each of k ``requested_ratios`` (sample ratios), on a curve with
    n nodes at these ``ratios``; n if it never does. The uninformed branch takes the first node that reaches it, the informed one
    the node from which on all do.

    The uninformed branch comes from the first node and ends where the ratio is reached, the informed one from the last.
    """
    has_reached = ratios >= requested_ratios[:, None]
    if branch == "uninformed":
        return np.where(has_reached.any(1), has_reached.argmax(1), len(ratios))
    return np.where(
        has_reached.all(1), 0, len(ratios) - (~has_reached)[:, ::-1].argmax(1)
    )


def aitken(a: float, b: float, c: float) -> float:
    """Extrapolate the limit of a sequence from three successive terms a, b, c by Aitken's method; c itself if the last step is
    only noise.
    """
    last_step = c - b
    second_difference = (c - b) - (b - a)
    if not abs(second_difference) > 1e-13 * abs(c):
        return c
    limit = c - last_step**2 / second_difference
    return limit if abs(limit - c) <= 3 * abs(last_step) else c


def perfect_prediction(problem: Problem, alpha: float, branch: str) -> Prediction:
    """Prediction of perfect recovery (error V = 0) on one branch at sample ratio alpha."""
    zero_error = np.zeros(problem.components)
    second_moment = prior_moments(problem)[0]
    return Prediction(
        alpha,
        second_moment,
        np.diag(zero_error),
        zero_error,
        branch,
        "counting of equations",
        alpha_error=zero_error,
    )


def bayes_optimal_first(competing_pair: list[Prediction]) -> list[Prediction]:
    """Sort a pair of competing predictions (two fixed points at one sample ratio) by free entropy, the largest (Bayes-optimal)
    first.
    """
    return sorted(
        competing_pair,
        key=lambda prediction: (
            -prediction.free_entropy if prediction.free_entropy is not None else 0.0
        ),
    )


def thresholds_with_reasons(
    weak_recovery: Threshold | None,
    perfect_recovery: Threshold | None,
    sequential: Iterable[Bifurcation],
    hard_phase: HardPhase | None,
    reasons: dict[str, str],
) -> Thresholds:
    """Build the thresholds of a problem from those of weak and perfect recovery, of sequential learning and of the hard phase,
    with a reason, from ``reasons`` by name, for each one that does not exist. ``sequential`` are the sample ratios at which
    components are learned one after the other.
    """
    thresholds_without_reasons = Thresholds(
        weak_recovery, perfect_recovery, tuple(sequential), hard_phase
    )
    all_reasons = {
        "sequential": reasons["weak_recovery"],
        **dict.fromkeys(HARD_PHASE, "there is one branch only"),
        **reasons,
    }
    all_reasons.setdefault("perfect_recovery", NEVER_PERFECT)
    document = thresholds_without_reasons.document()
    nonexistent_thresholds = [
        name for name in (*all_reasons, "weak_recovery") if not document[name]
    ]
    return replace(
        thresholds_without_reasons,
        reasons={name: all_reasons[name] for name in nonexistent_thresholds},
    )


def perfect_recovery_threshold(problem: Problem) -> Threshold | None:
    r"""Perfect-recovery threshold: sample ratio above which zero error is stable; None if errors never vanish. It is the limit of
    alpha at small error, extrapolated from three small errors at which all P components have the same ratio (balance);
    ``unknown_counts`` is diag(V Qhat), per component, and kappa the model's factor, 1 or 2, in ``Qhat = kappa alpha I(Q)``.

    As V -> 0 noiseless labels become linear equations, ``kappa alpha tr(V I) -> kappa alpha E`` with E their number, and the
    prior allows ``tr(V Qhat) -> U``, its number of unknowns. Where all components share the equations, ``alpha = U / (kappa
    E)``. Otherwise the directions in which V vanishes are balanced by ``V_a <- V_a (U_a / E_a)``, ``E_a = V_aa I_aa``, and the
    component that is served worst decides.
    """
    P = problem.components
    kappa = float(problem.model.kappa)

    def overlaps_at(qhat: Host) -> tuple[Host, Host, Host]:
        """Overlap Q, error V and ``diag(V Qhat)`` (P,), as many unknowns as the error leaves per component, at a large Qhat of
        diagonal ``qhat`` (P,).
        """
        Q, V = overlap_at(problem, np.diag(qhat))
        return Q, V, np.diagonal(V) * qhat

    unknown_counts = overlaps_at(np.full(P, 1e9))[2]
    if not np.all(unknown_counts < 1e3):
        return None
    if not unknown_counts.any():
        return _perfect_threshold_of_discrete_signals(problem)
    unknowns_error = min(
        1e-2,
        abs(float(overlaps_at(np.full(P, 1e7))[2].sum() / unknown_counts.sum()) - 1),
    )
    unknowns_error += overlap_error_at(problem, 1e9 * np.eye(P))
    equation_count = problem.channel.equations
    if equation_count is not None:
        counted_threshold = float(unknown_counts.sum()) / (
            kappa * float(equation_count)
        )
        return Threshold(counted_threshold, counted_threshold * unknowns_error)
    component_weights = np.ones(P)

    def ratios_at(scale: float) -> tuple[Host, float, float] | None:
        """Sample ratio (P,) at which each component would be at a fixed point with Qhat_aa equal to ``scale`` over the
        component's weight (at overlap Q, error V), the largest relative error of the information, and the number of equations
        that labels state; None without information.
        """
        Q, V, _ = overlaps_at(scale / component_weights)
        information = information_at(problem, Q, V)
        information_diagonal, information_error = diagonals(information)
        equation_counts = np.diagonal(V) * information_diagonal
        if not (np.isfinite(equation_counts).all() and (equation_counts > 0).all()):
            return None
        return (
            unknown_counts / (kappa * equation_counts),
            float(np.max(information_error / information_diagonal)),
            float(np.trace(V @ information.value)),
        )

    ratios = np.zeros(P)
    for _ in range(40):
        at_balance = ratios_at(1e5)
        if at_balance is None:
            return None
        previous_ratios = ratios
        ratios = at_balance[0]
        # Components with equations of their own do not feel the balance.
        if np.ptp(np.log(ratios)) < 1e-4 or np.allclose(
            ratios, previous_ratios, rtol=1e-4, atol=0
        ):
            break
        component_weights = np.clip(
            component_weights * ratios / ratios.max(), 1e-6, 1.0
        )
    at_larger_error = ratios_at(1e4)
    at_smaller_error = ratios_at(1e6)
    # Errors that vanish leave the number of equations where it is; otherwise it goes down with them.
    if (
        at_larger_error is None
        or at_balance is None
        or at_smaller_error is None
        or at_smaller_error[2] < 0.8 * at_larger_error[2]
    ):
        return None
    relative_noise = at_smaller_error[1] + unknowns_error
    ratio_below, ratio_at_balance, ratio_above = (
        float(ratios.max())
        for ratios, *_ in (at_larger_error, at_balance, at_smaller_error)
    )
    ratio_limit = aitken(ratio_below, ratio_at_balance, ratio_above)
    # If the sequence is not geometric, its limit is not known better than its last step.
    limit_error = (
        abs(ratio_limit - ratio_above)
        if ratio_limit != ratio_above
        else abs(ratio_above - ratio_at_balance)
    )
    return Threshold(ratio_limit, limit_error + ratio_limit * relative_noise)


def _perfect_threshold_of_discrete_signals(problem: Problem) -> Threshold | None:
    """Perfect-recovery threshold of discrete signals of P components: 0 if the sample ratio falls as the error (share of
    unexplained variance) shrinks, as for noiseless labels, else None.

    The error of a discrete signal vanishes faster than any power of Qhat. The sample ratio ``Qhat / (kappa I)`` that it takes
    falls along with it where the information of labels grows as V does not; noise stops that growth, and it rises.
    """
    from scipy.optimize import brentq

    P = problem.components
    second_moment, prior_mean_overlap = prior_moments(problem)
    prior_variance = np.diagonal(second_moment - prior_mean_overlap)

    def log_unknown_share(log_qhat: float) -> float:
        """Logarithm of the largest MSE (in V) over prior variance of a component, at Qhat = exp(log_qhat) times the identity."""
        V = overlap_at(problem, np.exp(log_qhat) * np.eye(P))[1]
        return float(np.log(max(np.max(np.diagonal(V) / prior_variance), 1e-300)))

    def ratio_at(unknown_share: float) -> float:
        """Sample ratio at the fixed point where this share of the prior variance is unexplained (``unknown_share``)."""
        log_qhat = brentq(
            lambda log_qhat: log_unknown_share(log_qhat) - np.log(unknown_share),
            -np.log(1e9),
            np.log(1e9),
        )
        information = diagonals(
            information_at(problem, *overlap_at(problem, np.exp(log_qhat) * np.eye(P)))
        )[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(
                np.max(np.exp(log_qhat) / (float(problem.model.kappa) * information))
            )

    method = information_at(problem, *overlap_at(problem, np.eye(P))).method
    # Unknown shares between which the sample ratio must fall; few labels carry sampled information below.
    unknown_shares = (
        (1e-2, 1e-5)
        if is_sampled(method) or method.startswith("nested")
        else (1e-4, 1e-9)
    )
    ratio_at_larger_error, ratio_at_smaller_error = (
        ratio_at(unknown_share) for unknown_share in unknown_shares
    )
    return (
        Threshold(0.0, 0.0) if ratio_at_smaller_error < ratio_at_larger_error else None
    )
