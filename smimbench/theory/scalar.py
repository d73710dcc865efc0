"""State evolution of a single overlap: the Bayes-optimal error as a function of the sample ratio.

Solved without iterating. The fixed point ``Qhat = kappa alpha I(Q(Qhat))`` is linear in alpha, so the whole curve is known as
``alpha(Qhat) = Qhat / (kappa I(Q(Qhat)))`` and alpha is read off. Where alpha falls with Qhat, branches compete: the
uninformed one (from the prior mean upwards) ends at the first Qhat whose alpha reaches the one asked for, the informed one
(from the signal downwards) at the last.

Several components are one, too, where labels do not see rotations of them: the map is monotone and keeps multiples of the
identity, so that its lowest and its highest fixed point are such multiples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics.roots import bracketed_roots
from smimbench.problem.problem import Problem
from smimbench.theory.curve import (
    NEVER,
    PRIOR_OVERLAP,
    Curve,
    Segment,
    TurningPoint,
    aitken,
    branch_ends,
    thresholds_with_reasons,
)
from smimbench.theory.information import (
    information_at,
    overlap_at,
    overlap_error_at,
    prior_moments,
)
from smimbench.theory.tracing import ComponentRatios, polynomial
from smimbench.theory.types import (
    NOTHING,
    Bifurcation,
    Prediction,
    Threshold,
    Thresholds,
)

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

UNSURE = 0.5
"""Relative error of sampled information with which a curve ends; doubled, it ends later, at values that may be wrong."""
INTERPOLATION = 1e-3
"""Relative error of alpha that is aimed at between nodes of a sampled curve, where chance leaves less; doubled, half as sure."""
LATE, RISING = 3.0, 1.02
"""Whether the error falls to 0 at a finite alpha: by how much alpha may rise along the last factor of Qhat. The first doubled,
earlier values count; the second, slower rises are taken for noise."""
ROUNDING = 1e-13
"""Relative error of a root of a closed form; doubled, so is the smallest error that is stated."""
SMALL, SLOWEST = 1e-3, 0.5
"""Errors below the first (of what the prior mean leaves) fall at least with this power of Qhat; else the curve ends."""
SMALL_QHAT = 4e-4
"""Qhat at which an overlap is tested for still having its lowest value; doubled, twice as large critical Qhat are missed."""


class ScalarCurve(Curve):
    """Parametric curve alpha(Qhat) of a problem with one component, or with several that share one overlap.

    Attributes
    ----------
    log_qhat : ndarray
        Nodes to begin with, which are evaluated when they are needed.
    nodes, alpha, alpha_error : ndarray (G,)
        log Qhat, the sample ratio and its error (interpolation included) at all nodes.
    """

    lowest, highest, per_decade = 1e-9, 1e15, 8
    """Range of Qhat, and nodes in every factor of 10."""
    faintest = 1e-150
    """Error (of what the prior mean leaves) with which the curve ends."""
    small_overlaps = 1e-4, 1e-5, 1e-6, 1e-7
    """Qhat at which alpha tends to its limit where nothing is learned."""

    def __init__(self, problem: Problem, method: str) -> None:
        self.problem, self.method = problem, method
        self.kappa, self.identity = (
            float(problem.model.kappa),
            np.eye(problem.components),
        )
        self.second, self.prior_mean_overlap = (
            float(moment[0, 0]) for moment in prior_moments(problem)
        )
        self.unknown = (
            self.second - self.prior_mean_overlap
        )  # what the prior mean leaves; a wide Wishart matrix is nearly its mean
        count = round(np.log10(self.highest / self.lowest) * self.per_decade) + 1
        nodes = np.linspace(np.log(self.lowest), np.log(self.highest), count)
        end = resolved(self._overlap(nodes)[1], nodes, self.unknown, self.faintest)
        self.log_qhat = self._resolved_nodes(nodes, end)

    def _resolved_nodes(self, nodes: Host, end: int) -> Host:
        """Nodes at which double precision still resolves the MSE."""
        return nodes[:end]

    @cached_property
    def _table(self) -> tuple[Host, Host, Host]:
        """Nodes of the curve, with alpha and its error."""
        return self.log_qhat, *self.alpha_of(self.log_qhat)

    nodes = property(lambda self: self._table[0])
    alpha = property(lambda self: self._table[1])
    alpha_error = property(lambda self: self._table[2])

    def _overlap(self, log_qhat: Array) -> tuple[Array, Array]:
        Q, V = overlap_at(
            self.problem,
            np.exp(np.asarray(log_qhat, dtype=float))[..., None, None] * self.identity,
        )
        return Q[..., 0, 0], V[..., 0, 0]

    def _information_at(self, Q: Array, V: Array) -> Uncertain:
        matrices = (
            np.asarray(values)[..., None, None] * self.identity for values in (Q, V)
        )
        information = information_at(self.problem, *matrices)
        return Uncertain(
            information.value[..., 0, 0],
            information.error[..., 0, 0],
            information.method,
        )

    @cached_property
    def _information_at_prior_mean(self) -> Uncertain:
        """Information at the prior mean, the lowest overlap."""
        return self._information_at(self.prior_mean_overlap, self.unknown)

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """Sample ratio alpha(Qhat) and its numerical error."""
        information = self._information_at(*self._overlap(log_qhat))
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = np.exp(log_qhat) / (self.kappa * information.value)
            relative = np.abs(information.error / information.value)
        alpha = np.where(information.value > 0, alpha, np.inf)
        return alpha, np.where(np.isfinite(relative), relative, 1.0) * np.where(
            np.isfinite(alpha), alpha, 0
        ) + 0.0

    def _alpha_at(self, log_qhat: float) -> float:
        return float(self.alpha_of(np.array([log_qhat]))[0][0])

    @cached_property
    def _monotonic_nodes(self) -> tuple[Host, Host]:
        """Nodes of log Qhat and their alpha, including turning points, so that alpha is monotonic in between."""
        turning = [(x, point.threshold.value) for x, point in self._extrema]
        nodes, ratios = np.hstack(
            [[self.nodes, self.alpha], np.reshape(turning, (-1, 2)).T]
        )
        order = np.argsort(nodes)
        return nodes[order], ratios[order]

    # -- branches -----------------------------------------------------------------------------------------------

    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch at every sample ratio."""
        ratios_asked = np.asarray(alphas, dtype=float)
        nodes, ratios = self._monotonic_nodes
        upper = branch_ends(ratios, ratios_asked, branch)
        if branch == "informed" and self.perfect is not None:
            upper[ratios_asked >= self.perfect.value] = len(
                ratios
            )  # counting says where V = 0 is stable, whatever the last node is
        inside = (upper > 0) & (upper < len(ratios))
        log_qhat = np.where(upper == 0, -np.inf, np.inf)
        if inside.any():
            targets, end = np.log(ratios_asked[inside]), upper[inside]
            log_qhat[inside] = bracketed_roots(
                lambda x, index: np.log(self.alpha_of(x)[0]) - targets[index],
                nodes[end - 1],
                nodes[end],
                values=(
                    np.log(ratios[end - 1]) - targets,
                    np.log(ratios[end]) - targets,
                ),
                tolerance=ROUNDING,
            )
        on_curve = np.isfinite(log_qhat)
        predictions = iter(
            self._on_curve(ratios_asked[on_curve], log_qhat[on_curve], branch)
            if on_curve.any()
            else ()
        )
        return [
            next(predictions)
            if is_on_curve
            else self._beyond(alpha, bool(x > 0), branch)
            for alpha, x, is_on_curve in zip(ratios_asked, log_qhat, on_curve)
        ]

    def _beyond(self, alpha: float, informed: bool, branch: str) -> Prediction:
        """Prediction at a sample ratio beyond an end of the curve."""
        if informed:
            Q, V = self._overlap(self.nodes[-1])
            if self.perfect is not None:
                return self._build_prediction(alpha, self.second, 0.0, 0.0, 0.0, branch)
            return self._build_prediction(alpha, Q, V, V, 1.0, branch)
        # Either the prior mean is the fixed point, or alpha is so small that nothing was learned yet.
        information = self._information_at_prior_mean
        if information.value > NOTHING:
            Q, V = self._overlap(np.log(alpha * self.kappa * information.value))
            relative = information.error / information.value
            return self._build_prediction(
                alpha,
                Q,
                V,
                abs(Q - self.prior_mean_overlap) * relative,
                relative,
                branch,
            )
        return self._build_prediction(
            alpha, self.prior_mean_overlap, self.unknown, 0.0, 0.0, branch
        )

    def _on_curve(self, alphas: Array, x: Array, branch: str) -> list[Prediction]:
        """Predictions at the points of the curve with given alpha; errors of V follow from those of log alpha."""
        Q, V = self._overlap(x)
        step = 1e-3
        nearby = x + step * np.array([-1.0, 1.0])[:, None]
        alpha, errors = (
            values.reshape(nearby.shape) for values in self.alpha_of(nearby.ravel())
        )
        relative = np.max(errors / alpha, axis=0)
        values = self._overlap(nearby.ravel())[1].reshape(nearby.shape)
        slope, response = (
            (pair[1] - pair[0]) / (2 * step) for pair in (np.log(alpha), values)
        )
        # Priors that the engine integrates or simulates say how well they know V at a Qhat; closed forms have nothing to say.
        # What that makes of the information is an error of alpha, too.
        stated = np.array(
            [overlap_error_at(self.problem, qhat * self.identity) for qhat in np.exp(x)]
        )
        if stated.any():
            move = np.minimum(stated, 0.5) * V
            information, moved_information = (
                self._information_at(Q, V).value,
                self._information_at(Q - move, V + move).value,
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = relative + np.nan_to_num(
                    np.abs(moved_information / information - 1)
                )
        relative = relative + ROUNDING
        error = (
            np.abs(response) * relative / np.maximum(np.abs(slope), 1e-12)
            + (stated + 1e-10) * V
        )
        return [
            self._build_prediction(*row, branch)
            for row in zip(alphas, Q, V, error, relative)
        ]

    def _build_prediction(
        self,
        alpha: Array,
        Q: Array,
        V: Array,
        error: Array,
        relative: Array,
        branch: str,
    ) -> Prediction:
        """Build the prediction at an overlap Q; ``relative`` is the error of log alpha there."""
        each_component = np.ones(len(self.identity))
        error, ratio_error = (
            float(error) * each_component,
            float(alpha * relative) * each_component,
        )
        matrices = float(Q) * self.identity, float(V) * self.identity
        return Prediction(
            float(alpha), *matrices, error, branch, self.method, alpha_error=ratio_error
        )

    def segments(self) -> list[Segment]:
        """Complete curve on one fine grid."""
        x = np.linspace(self.nodes[0], self.nodes[-1], 2001)
        relative = np.interp(
            x,
            self.nodes,
            self.alpha_error / np.where(np.isfinite(self.alpha), self.alpha, 1.0),
        )
        each_component = np.ones((1, len(self.identity)))
        V = np.minimum.accumulate(self._overlap(x)[1])
        return [
            Segment(
                x,
                np.log(self.alpha_of(x)[0]),
                relative,
                np.exp(x)[:, None] * each_component,
                V[:, None] * each_component,
            )
        ]

    # -- thresholds ---------------------------------------------------------------------------------------------

    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem."""
        weak = self.weak_limit()
        reasons = {
            "weak_recovery": PRIOR_OVERLAP if self.prior_mean_overlap > 0 else NEVER
        }
        sequential = [Bifurcation(0, weak.value, weak.error)] if weak else []
        if len(self.identity) > 1:
            sequential = []
            reasons["sequential"] = (
                "components are learned at once: labels do not see rotations of them"
            )
        return thresholds_with_reasons(
            weak, self.perfect, sequential, self.hard_phase(), reasons
        )

    def weak_limit(self) -> Threshold | None:
        """Weak-recovery threshold, where the prior mean becomes unstable: the limit of alpha at the lowest overlap.

        0 when the prior mean itself is informative and holds nothing (a linear channel); None when the prior mean holds
        something from the beginning, so that learning starts smoothly at alpha = 0.
        """
        information, P = self._information_at_prior_mean, self.problem.components
        # In the small-width limit the overlap stays at its lowest value up to a finite Qhat.
        is_held = self._overlap(np.log(SMALL_QHAT))[1] >= self.unknown
        if not is_held and information.value > max(NOTHING, 3 * information.error):
            return None if self.prior_mean_overlap > 0 else Threshold(0.0, 0.0)
        if is_held or (
            self.prior_mean_overlap == 0
            and P == 1
            and self.problem.channel.susceptibility is not None
        ):
            ratios = ComponentRatios(self.problem)
            log_ratio, error = ratios.log_ratios(np.zeros(P), [])
            value, relative = (
                float(np.exp(log_ratio[0])),
                float(error[0] + (0.0 if is_held else ratios.response_error[0])),
            )
            return Threshold(value, value * relative) if np.isfinite(value) else None
        log_overlaps = np.log(self.small_overlaps)
        limit = limit_of([self._alpha_at(x) for x in log_overlaps])
        return replace(
            limit,
            error=limit.error + limit.value * float(self._rounding(log_overlaps[-1])),
        )

    def _rounding(self, log_qhat: Array) -> Array:
        """Relative rounding error of alpha at small overlaps, which are differences of numbers of order 1."""
        gained = np.maximum(
            self._overlap(log_qhat)[0] - self.prior_mean_overlap, np.finfo(float).tiny
        )
        return 4 * np.finfo(float).eps * self.second / gained

    @cached_property
    def perfect(self) -> Threshold | None:
        """Perfect-recovery threshold, the limit of alpha as the error goes to 0; None if the error never vanishes."""
        if self.alpha[-1] < NOTHING and self._overlap(self.nodes[-1])[1] < NOTHING:
            return Threshold(
                0.0, 0.0
            )  # a discrete signal: once known, it stays known at any sample ratio
        # A prior may not know more than rounding allows: the sequence ends where it does.
        end = min(1e10, float(np.exp(self.nodes[-1])))
        (end_ratio, late_ratio), (error, _) = self.alpha_of(
            np.log(end / np.array([1.0, LATE]))
        )
        if not end_ratio <= max(RISING * late_ratio, late_ratio + 3 * error):
            return None  # noise decides at last, however little there is of it
        values = [self._alpha_at(np.log(end / 10**k)) for k in range(5, -1, -1)]
        if not (np.isfinite(values).all() and values[-1] <= 1.5 * values[-4]):
            return None
        limit = limit_of(values)
        # A smooth sequence does not show an error of the prior's map that all of its terms share.
        return replace(
            limit,
            error=limit.error
            + limit.value * overlap_error_at(self.problem, end * self.identity),
        )

    @cached_property
    def states_equations(self) -> bool:
        """Whether labels act as equations for the latents (V I has a limit); not for noisy or rounded labels."""
        equations = self.problem.channel.equations
        if equations is not None:
            return float(equations) > 0
        V = self.second * np.array([1e-6, 1e-8])
        stated = V * self._information_at(self.second - V, V).value
        return bool(stated[1] > max(0.5 * stated[0], 0.0))

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Turning points: local extrema of alpha(Qhat), empty if the branch is unique."""
        points = [point for _, point in self._extrema]
        has_peak = any(point.is_peak for point in points)
        weak = (
            None if has_peak or self.alpha[-1] >= self.alpha[0] else self.weak_limit()
        )
        if weak and weak.value > 0 and self.alpha[-1] < weak.value:
            # The curve falls from the very beginning: the prior mean itself is the branch that is stuck.
            return [TurningPoint(weak, True), *points]
        return points

    @cached_property
    def _extrema(self) -> list[tuple[float, TurningPoint]]:
        """Positions (log Qhat) and values of the local extrema of alpha."""
        finite = np.isfinite(self.alpha)
        nodes, alpha, error = (
            self.nodes[finite],
            self.alpha[finite],
            self.alpha_error[finite],
        )
        noise = 3 * error + (1e-9 + self._rounding(nodes)) * alpha
        return [
            self._extremum(nodes, alpha, error, j, is_peak)
            for j, is_peak in turns(alpha, noise)
        ]

    def _extremum(
        self, nodes: Host, alpha: Host, error: Host, j: int, is_peak: bool
    ) -> tuple[float, TurningPoint]:
        """Refine the local extremum of alpha next to node j."""
        from scipy.optimize import minimize_scalar

        sign = -1.0 if is_peak else 1.0
        lowest = minimize_scalar(
            lambda x: sign * min(self._alpha_at(x), 1e300),
            bounds=nodes[[j - 1, j + 1]],
            method="bounded",
            options={"xatol": 1e-9},
        )
        value = float(sign * lowest.fun)
        uncertain = float(self.alpha_of(np.array([lowest.x]))[1][0]) + 1e-12 * value
        return float(lowest.x), TurningPoint(Threshold(value, uncertain), is_peak)


class GridCurve(ScalarCurve):
    """Curve of one overlap whose information is sampled at nodes and interpolated between them.

    Sampling costs thousands of times more than a formula. The fit through sampled values of a channel is smooth, and is none.
    """

    lowest, highest, per_decade = 1e-4, 1e8, 4
    faintest = 1e-11
    small_overlaps = 1e-1, 1e-2, 1e-3, 1e-4

    def _resolved_nodes(self, nodes: Host, end: int) -> Host:
        """Nodes of the curve whose information exceeds rounding; beyond them labels no longer change the posterior mean."""
        inside, beyond = nodes[:end], nodes[end : end + 1]
        level = self.faintest * self.unknown
        if not len(beyond) or self._overlap(beyond)[1][0] >= level:
            return inside

        def gap(x: Host, index: Host) -> Host:
            V: Host = np.maximum(self._overlap(x)[1], 1e-300)
            return np.log(V / level)

        # The error of a discrete signal falls by many orders of magnitude from one node to the next.
        return np.append(inside, bracketed_roots(gap, inside[-1:], beyond))

    @cached_property
    def _table(self) -> tuple[Host, Host, Host]:
        """Nodes with alpha and its error, refined until the interpolation is accurate."""
        alpha, error = super().alpha_of(self.log_qhat)
        sure = np.flatnonzero(np.isfinite(alpha) & (error < UNSURE * alpha))
        end = int(sure[-1]) + 1 if len(sure) else len(alpha)
        table = np.array([self.log_qhat, alpha, error])[:, :end]
        for _ in range(3):
            nodes, alpha, error = table
            doubt = interpolation_error(nodes, alpha)
            poor = doubt > np.maximum(
                INTERPOLATION, error / np.where(np.isfinite(alpha), alpha, 1.0)
            )
            gaps = np.flatnonzero(poor[:-1] | poor[1:])
            if not len(gaps):
                break
            between = (nodes[gaps] + nodes[gaps + 1]) / 2
            table = np.hstack([table, [between, *super().alpha_of(between)]])
            table = table[:, np.argsort(table[0])]
        nodes, alpha, error = table
        uncertain = np.where(np.isfinite(alpha), alpha, 0.0) * interpolation_error(
            nodes, alpha
        )
        return nodes, alpha, np.hypot(error, uncertain)

    @cached_property
    def _interpolants(self) -> tuple[CubicSpline, Callable[[Array], Array]]:
        """Interpolants of log alpha and of its error over log Qhat."""
        from scipy.interpolate import CubicSpline

        finite = np.isfinite(self.alpha)
        nodes, alpha, error = (
            self.nodes[finite],
            self.alpha[finite],
            self.alpha_error[finite],
        )
        return CubicSpline(nodes, np.log(alpha)), lambda x: np.interp(
            x, nodes, error / alpha
        )

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """Sample ratio alpha(Qhat) and its numerical error, interpolated between the nodes."""
        curve, relative = self._interpolants
        x = np.clip(log_qhat, curve.x[0], curve.x[-1])
        alpha = np.exp(curve(x))
        return alpha, alpha * relative(x)


def scalar_curve(problem: Problem) -> ScalarCurve | None:
    """Curve of a problem with a single overlap, from closed forms or sampled on a grid; None for other problems."""
    if not shares_overlap(problem):
        return None
    method = information_at(
        problem, *overlap_at(problem, np.eye(problem.components))
    ).method
    is_sampled = method.startswith(("Monte Carlo", "nested"))
    return (GridCurve if is_sampled else ScalarCurve)(problem, method)


def shares_overlap(problem: Problem) -> bool:
    """Whether one overlap suffices: one component, or channel and prior that are invariant under rotations."""
    if problem.components == 1:
        return True
    identity = np.eye(problem.components)
    V = overlap_at(problem, identity)[1]
    return problem.channel.symmetry == "rotations" and np.allclose(
        V, V[0, 0] * identity, rtol=1e-9, atol=1e-12
    )


def limit_of(values: Sequence[float]) -> Threshold:
    """Extrapolate the limit of a sequence (four or more values at geometric spacing), with an error estimate."""
    limit, previous_limit = aitken(*values[-3:]), aitken(*values[-4:-1])
    return Threshold(limit, abs(limit - previous_limit) + 1e-12 * abs(limit))


def turns(values: Array, noise: Array) -> list[tuple[int, bool]]:
    """Find the interior local extrema of a sequence: pairs of an index and whether it is a maximum.

    From each of them it moves away by more than its noise on both sides.
    """
    extrema: list[tuple[int, bool]] = []
    direction, extreme = 1, 0
    for j in range(1, len(values)):
        if direction * (values[j] - values[extreme]) > 0:
            extreme = j
        elif abs(values[j] - values[extreme]) > max(noise[j], noise[extreme]):
            extrema.append((extreme, direction > 0))
            direction, extreme = -direction, j
    # The first may be the beginning itself, or no further from it than noise.
    if extrema and abs(values[extrema[0][0]] - values[0]) <= max(
        noise[extrema[0][0]], noise[0]
    ):
        del extrema[0]
    return extrema


def interpolation_error(nodes: Array, alpha: Array) -> Array:
    """Relative interpolation error (G,) of alpha: distance of each node from the cubic through its four neighbors.

    Without a node, the gap is twice as wide, and a cubic interpolant about eight times worse.
    """
    errors, finite = np.zeros(len(nodes)), np.flatnonzero(np.isfinite(alpha))
    x, y = nodes[finite], np.log(alpha[finite])
    for i in range(1, len(x) - 1):
        near = [k for k in range(max(0, i - 2), min(len(x), i + 3)) if k != i]
        errors[finite[i]] = abs(float(polynomial(x[near], y[near], x[i])) - y[i]) / 8
    return errors


def resolved(V: Array, log_qhat: Array, scale: float, faintest: float) -> int:
    """Number of nodes up to which V still decreases; beyond them double precision cannot resolve it."""
    if not (SMALL * scale > V).any():
        return len(V)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = -np.diff(np.log(V)) / np.diff(log_qhat)
    is_unresolved = (V[1:] < SMALL * scale) & ~(
        (fall > SLOWEST) & (V[1:] > faintest * scale)
    )
    return int(np.argmax(is_unresolved)) + 1 if is_unresolved.any() else len(V)
