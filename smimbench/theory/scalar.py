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
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.roots import bracketed_roots
from smimbench.problem.problem import Problem
from smimbench.theory.curve import (
    NEVER,
    PRIOR_OVERLAP,
    Curve,
    Segment,
    TurningPoint,
    aitken,
    branch_crossings,
    thresholds_with_reasons,
)
from smimbench.theory.information import information_at, overlap_at, overlap_error_at
from smimbench.theory.tracing import ComponentRatios, interpolated_value
from smimbench.theory.types import (
    NEGLIGIBLE,
    Bifurcation,
    Prediction,
    Threshold,
    Thresholds,
)

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

LARGEST_RELATIVE_ERROR = 0.5
"""Relative error of sampled information above which a curve ends; doubled, it ends later, at values that may be wrong."""
INTERPOLATION_TOLERANCE = 1e-3
"""Relative interpolation error of alpha at which a sampled curve is refined no more; doubled, fewer nodes."""
RECOVERY_QHAT_FACTOR, LARGEST_RATIO_RISE = 3.0, 1.02
"""Whether the error falls to 0 at a finite alpha: by how much alpha may rise along the last factor of Qhat. The first doubled,
earlier values count; the second, slower rises are taken for noise."""
ROUNDING = 1e-13
"""Relative error of a root of a closed form; doubled, so is the smallest error that is stated."""
SMALL_ERROR, SLOWEST_FALL = 1e-3, 0.5
"""Errors below the first (of what the prior mean leaves) fall at least with this power of Qhat; else the curve ends."""
SMALL_QHAT = 4e-4
"""Qhat at which an overlap is tested for still having its lowest value; doubled, twice as large critical Qhat are missed."""


class ScalarCurve(Curve):
    """Curve ``alpha(Qhat) = Qhat / (kappa I(Q(Qhat)))`` of fixed points over the scalar information Qhat, for one component or
    several that share one overlap Q; kappa is the model's factor, 1 or 2. It is computed at nodes, values of log Qhat,
    ``nodes_per_decade`` of Qhat between ``lowest_qhat`` and ``highest_qhat``; ``small_qhats`` give the limit of alpha without
    overlap, and ``smallest_error`` is a share of the prior variance.

    Attributes
    ----------
    log_qhat : ndarray
        Nodes to begin with, which are evaluated when they are needed.
    nodes, alpha, alpha_error : ndarray (G,)
        log Qhat, the sample ratio and its error (interpolation included) at all nodes.
    """

    lowest_qhat, highest_qhat, nodes_per_decade = 1e-9, 1e15, 8
    """Range of Qhat, and nodes in every factor of 10."""
    smallest_error = 1e-150
    """Smallest MSE, as a share of the prior variance, that the curve reaches."""
    small_qhats = 1e-4, 1e-5, 1e-6, 1e-7
    """Qhat at which alpha tends to its limit where nothing is learned."""

    def __init__(self, problem: Problem, method: str) -> None:
        """Set the nodes, the values of log Qhat where the curve is computed and at which double precision resolves the MSE;
        ``method`` is how the information is obtained.
        """
        self.problem = problem
        self.method = method
        self.kappa = float(problem.model.kappa)
        self.identity = np.eye(problem.components)
        self.second_moment, self.prior_mean_overlap = (
            float(moment[0, 0]) for moment in prior_moments(problem)
        )
        self.prior_variance = (
            self.second_moment - self.prior_mean_overlap
        )  # prior variance; that of a wide Wishart matrix is small
        node_count = (
            round(
                np.log10(self.highest_qhat / self.lowest_qhat) * self.nodes_per_decade
            )
            + 1
        )
        nodes = np.linspace(
            np.log(self.lowest_qhat), np.log(self.highest_qhat), node_count
        )
        resolved_end = resolved_count(
            self._overlap(nodes)[1], nodes, self.prior_variance, self.smallest_error
        )
        self.log_qhat = self._resolved_nodes(nodes, resolved_end)

    def _resolved_nodes(self, nodes: Host, end: int) -> Host:
        """The first ``end`` of the ``nodes`` (values of log Qhat), at which double precision still resolves the MSE."""
        return nodes[:end]

    @cached_property
    def _table(self) -> tuple[Host, Host, Host]:
        """Nodes (values of log Qhat) of the curve, alpha at each of them, and the error of alpha."""
        return self.log_qhat, *self.alpha_of(self.log_qhat)

    nodes = property(lambda self: self._table[0])
    alpha = property(lambda self: self._table[1])
    alpha_error = property(lambda self: self._table[2])

    def _overlap(self, log_qhat: Array) -> tuple[Array, Array]:
        """Overlap Q and error V of one component under the prior's state-evolution map, at values of log Qhat."""
        Q, V = overlap_at(
            self.problem,
            np.exp(np.asarray(log_qhat, dtype=float))[..., None, None] * self.identity,
        )
        return Q[..., 0, 0], V[..., 0, 0]

    def _information_at(self, Q: Array, V: Array) -> Uncertain:
        """Information of the labels on one component at scalar overlap Q and error V."""
        matrices = (
            np.asarray(scalars)[..., None, None] * self.identity for scalars in (Q, V)
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
        return self._information_at(self.prior_mean_overlap, self.prior_variance)

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """Sample ratio ``alpha(Qhat)`` whose fixed point has this log Qhat, and its numerical error."""
        information = self._information_at(*self._overlap(log_qhat))
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = np.exp(log_qhat) / (self.kappa * information.value)
            relative_error = np.abs(information.error / information.value)
        alpha = np.where(information.value > 0, alpha, np.inf)
        return alpha, np.where(
            np.isfinite(relative_error), relative_error, 1.0
        ) * np.where(np.isfinite(alpha), alpha, 0) + 0.0

    def _alpha_at(self, log_qhat: float) -> float:
        """Sample ratio alpha(Qhat) at one log Qhat, as a float."""
        return float(self.alpha_of(np.array([log_qhat]))[0][0])

    @cached_property
    def _monotonic_nodes(self) -> tuple[Host, Host]:
        """Nodes (computed points, in log Qhat) and alpha there, with the curve's local extrema added, so that alpha is monotonic
        in between.
        """
        extremum_positions = [
            (log_qhat, point.threshold.value) for log_qhat, point in self._extrema
        ]
        nodes, node_alphas = np.hstack(
            [[self.nodes, self.alpha], np.reshape(extremum_positions, (-1, 2)).T]
        )
        node_order = np.argsort(nodes)
        return nodes[node_order], node_alphas[node_order]

    # -- branches -----------------------------------------------------------------------------------------------

    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch (uninformed, informed) at every sample ratio. The position on the curve is log
        Qhat, -inf or inf beyond its ends; ``upper_node`` is the node at the upper end of the interval that holds it.
        """
        requested_ratios = np.asarray(alphas, dtype=float)
        nodes, node_alphas = self._monotonic_nodes
        upper_node = branch_crossings(node_alphas, requested_ratios, branch)
        if branch == "informed" and self.perfect is not None:
            upper_node[requested_ratios >= self.perfect.value] = len(
                node_alphas
            )  # above this alpha V = 0 is stable, whatever the last node is
        has_node_pair = (upper_node > 0) & (upper_node < len(node_alphas))
        log_qhat = np.where(upper_node == 0, -np.inf, np.inf)
        if has_node_pair.any():
            log_targets = np.log(requested_ratios[has_node_pair])
            upper_index = upper_node[has_node_pair]
            log_qhat[has_node_pair] = bracketed_roots(
                lambda position, index: (
                    np.log(self.alpha_of(position)[0]) - log_targets[index]
                ),
                nodes[upper_index - 1],
                nodes[upper_index],
                values=(
                    np.log(node_alphas[upper_index - 1]) - log_targets,
                    np.log(node_alphas[upper_index]) - log_targets,
                ),
                tolerance=ROUNDING,
            )
        is_position_on_curve = np.isfinite(log_qhat)
        predictions = iter(
            self._predict_on_curve(
                requested_ratios[is_position_on_curve],
                log_qhat[is_position_on_curve],
                branch,
            )
            if is_position_on_curve.any()
            else ()
        )
        return [
            next(predictions)
            if is_on_curve
            else self._predict_beyond_curve(alpha, bool(position > 0), branch)
            for alpha, position, is_on_curve in zip(
                requested_ratios, log_qhat, is_position_on_curve
            )
        ]

    def _predict_beyond_curve(
        self, alpha: float, beyond_last_node: bool, branch: str
    ) -> Prediction:
        """Build the prediction (Q, V) of a branch at a sample ratio alpha beyond either end of the curve: perfect recovery or the
        last computed point if ``beyond_last_node``, else by the information at the prior mean.
        """
        if beyond_last_node:
            Q, V = self._overlap(self.nodes[-1])
            if self.perfect is not None:
                return self._build_prediction(
                    alpha, self.second_moment, 0.0, 0.0, 0.0, branch
                )
            return self._build_prediction(alpha, Q, V, V, 1.0, branch)
        # Either the prior mean is the fixed point, or alpha is so small that nothing was learned yet.
        information = self._information_at_prior_mean
        if information.value > NEGLIGIBLE:
            Q, V = self._overlap(np.log(alpha * self.kappa * information.value))
            relative_error = information.error / information.value
            return self._build_prediction(
                alpha,
                Q,
                V,
                abs(Q - self.prior_mean_overlap) * relative_error,
                relative_error,
                branch,
            )
        return self._build_prediction(
            alpha, self.prior_mean_overlap, self.prior_variance, 0.0, 0.0, branch
        )

    def _predict_on_curve(
        self, alphas: Array, log_qhats: Array, branch: str
    ) -> list[Prediction]:
        """Build predictions of a branch at points (alpha, log Qhat) of the curve, of overlap Q and error V. The errors of V
        follow from those of log alpha, through the slopes of log alpha and V in log Qhat.
        """
        Q, V = self._overlap(log_qhats)
        log_qhat_step = 1e-3
        neighbors = log_qhats + log_qhat_step * np.array([-1.0, 1.0])[:, None]
        alpha, neighbor_errors = (
            neighbor_V.reshape(neighbors.shape)
            for neighbor_V in self.alpha_of(neighbors.ravel())
        )
        relative_error = np.max(neighbor_errors / alpha, axis=0)
        neighbor_V = self._overlap(neighbors.ravel())[1].reshape(neighbors.shape)
        alpha_slope, V_response = (
            (neighbor_pair[1] - neighbor_pair[0]) / (2 * log_qhat_step)
            for neighbor_pair in (np.log(alpha), neighbor_V)
        )
        # Priors that the engine integrates or simulates say how well they know V at a Qhat; closed forms have nothing to say.
        # The change of the information with V by that error is an error of alpha, too.
        stated_error = np.array(
            [
                overlap_error_at(self.problem, qhat * self.identity)
                for qhat in np.exp(log_qhats)
            ]
        )
        if stated_error.any():
            V_shift = np.minimum(stated_error, 0.5) * V
            information = self._information_at(Q, V).value
            shifted_information = self._information_at(Q - V_shift, V + V_shift).value
            with np.errstate(divide="ignore", invalid="ignore"):
                relative_error = relative_error + np.nan_to_num(
                    np.abs(shifted_information / information - 1)
                )
        relative_error = relative_error + ROUNDING
        error = (
            np.abs(V_response) * relative_error / np.maximum(np.abs(alpha_slope), 1e-12)
            + (stated_error + 1e-10) * V
        )
        return [
            self._build_prediction(*point, branch)
            for point in zip(alphas, Q, V, error, relative_error)
        ]

    def _build_prediction(
        self,
        alpha: Array,
        Q: Array,
        V: Array,
        error: Array,
        relative_error: Array,
        branch: str,
    ) -> Prediction:
        """Build the prediction of a branch at sample ratio alpha and scalar Q and V, with ``error`` of V and ``relative_error``
        of alpha.
        """
        ones_per_component = np.ones(len(self.identity))
        error = float(error) * ones_per_component
        ratio_error = float(alpha * relative_error) * ones_per_component
        Q_and_V = float(Q) * self.identity, float(V) * self.identity
        return Prediction(
            float(alpha), *Q_and_V, error, branch, self.method, alpha_error=ratio_error
        )

    def segments(self) -> list[Segment]:
        """Return the complete curve as one segment on a fine grid of log Qhat, with log alpha, its error, Qhat and V."""
        log_qhat = np.linspace(self.nodes[0], self.nodes[-1], 2001)
        relative_error = np.interp(
            log_qhat,
            self.nodes,
            self.alpha_error / np.where(np.isfinite(self.alpha), self.alpha, 1.0),
        )
        ones_per_component = np.ones((1, len(self.identity)))
        V = np.minimum.accumulate(self._overlap(log_qhat)[1])
        return [
            Segment(
                log_qhat,
                np.log(self.alpha_of(log_qhat)[0]),
                relative_error,
                np.exp(log_qhat)[:, None] * ones_per_component,
                V[:, None] * ones_per_component,
            )
        ]

    # -- thresholds ---------------------------------------------------------------------------------------------

    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem."""
        weak_recovery = self.weak_limit()
        reasons = {
            "weak_recovery": PRIOR_OVERLAP if self.prior_mean_overlap > 0 else NEVER
        }
        sequential = (
            [Bifurcation(0, weak_recovery.value, weak_recovery.error)]
            if weak_recovery
            else []
        )
        if len(self.identity) > 1:
            sequential = []
            reasons["sequential"] = (
                "components are learned at once: labels do not see rotations of them"
            )
        return thresholds_with_reasons(
            weak_recovery, self.perfect, sequential, self.hard_phase(), reasons
        )

    def weak_limit(self) -> Threshold | None:
        """Weak-recovery threshold, where the prior mean becomes unstable: the limit of alpha at the lowest overlap. Under some
        priors the overlap stays there up to a positive Qhat (``is_overlap_held``). It is 0 if labels inform already at a zero
        prior mean, None if the prior mean has an overlap and learning starts at alpha = 0.
        """
        information, P = self._information_at_prior_mean, self.problem.components
        # In the small-width limit the overlap stays at its lowest value up to a finite Qhat.
        is_overlap_held = self._overlap(np.log(SMALL_QHAT))[1] >= self.prior_variance
        if not is_overlap_held and information.value > max(
            NEGLIGIBLE, 3 * information.error
        ):
            return None if self.prior_mean_overlap > 0 else Threshold(0.0, 0.0)
        if is_overlap_held or (
            self.prior_mean_overlap == 0
            and P == 1
            and self.problem.channel.susceptibility is not None
        ):
            ratios = ComponentRatios(self.problem)
            log_ratio, error = ratios.log_ratios(np.zeros(P), [])
            limit_alpha = float(np.exp(log_ratio[0]))
            relative_error = float(
                error[0] + (0.0 if is_overlap_held else ratios.response_error[0])
            )
            return (
                Threshold(limit_alpha, limit_alpha * relative_error)
                if np.isfinite(limit_alpha)
                else None
            )
        log_qhats = np.log(self.small_qhats)
        extrapolated_limit = limit_of(
            [self._alpha_at(log_qhat) for log_qhat in log_qhats]
        )
        return replace(
            extrapolated_limit,
            error=extrapolated_limit.error
            + extrapolated_limit.value * float(self._rounding(log_qhats[-1])),
        )

    def _rounding(self, log_qhat: Array) -> Array:
        """Relative rounding error of alpha at log Qhat, where a small gain of overlap over the prior mean's is a difference of
        numbers of order 1.
        """
        overlap_gain = np.maximum(
            self._overlap(log_qhat)[0] - self.prior_mean_overlap, np.finfo(float).tiny
        )
        return 4 * np.finfo(float).eps * self.second_moment / overlap_gain

    @cached_property
    def perfect(self) -> Threshold | None:
        """Perfect-recovery threshold, the limit of alpha as the error goes to 0; None if the error never vanishes."""
        if (
            self.alpha[-1] < NEGLIGIBLE
            and self._overlap(self.nodes[-1])[1] < NEGLIGIBLE
        ):
            return Threshold(
                0.0, 0.0
            )  # a discrete signal: once known, it stays known at any sample ratio
        # Qhat of the sequence goes no further than the last node, beyond which rounding hides V.
        end_qhat = min(1e10, float(np.exp(self.nodes[-1])))
        (end_ratio, earlier_ratio), (end_error, _) = self.alpha_of(
            np.log(end_qhat / np.array([1.0, RECOVERY_QHAT_FACTOR]))
        )
        if not end_ratio <= max(
            LARGEST_RATIO_RISE * earlier_ratio, earlier_ratio + 3 * end_error
        ):
            return None  # alpha rises without limit: some noise of the labels remains
        end_ratios = [
            self._alpha_at(np.log(end_qhat / 10**decades))
            for decades in range(5, -1, -1)
        ]
        if not (
            np.isfinite(end_ratios).all() and end_ratios[-1] <= 1.5 * end_ratios[-4]
        ):
            return None
        extrapolated_limit = limit_of(end_ratios)
        # A smooth sequence does not show an error of the prior's map that all of its terms share.
        return replace(
            extrapolated_limit,
            error=extrapolated_limit.error
            + extrapolated_limit.value
            * overlap_error_at(self.problem, end_qhat * self.identity),
        )

    @cached_property
    def states_equations(self) -> bool:
        """Whether labels act as equations for the latents (V times the information has a positive limit at V = 0);
        not if noisy.
        """
        equations = self.problem.channel.equations
        if equations is not None:
            return float(equations) > 0
        V = self.second_moment * np.array([1e-6, 1e-8])
        equation_counts = V * self._information_at(self.second_moment - V, V).value
        return bool(equation_counts[1] > max(0.5 * equation_counts[0], 0.0))

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Local extrema of the curve ``alpha(Qhat)``, between which branches compete; empty if the branch is unique."""
        extrema = [point for _, point in self._extrema]
        has_peak = any(point.is_peak for point in extrema)
        weak_recovery = (
            None if has_peak or self.alpha[-1] >= self.alpha[0] else self.weak_limit()
        )
        if (
            weak_recovery
            and weak_recovery.value > 0
            and self.alpha[-1] < weak_recovery.value
        ):
            # The curve falls from the very beginning: the prior mean itself is the branch that is stuck.
            return [TurningPoint(weak_recovery, True), *extrema]
        return extrema

    @cached_property
    def _extrema(self) -> list[tuple[float, TurningPoint]]:
        """Local extrema of ``alpha(Qhat)``: pairs of log Qhat and turning point (alpha with its error, peak or minimum)."""
        is_finite = np.isfinite(self.alpha)
        nodes = self.nodes[is_finite]
        alpha = self.alpha[is_finite]
        alpha_error = self.alpha_error[is_finite]
        noise_of_alpha = 3 * alpha_error + (1e-9 + self._rounding(nodes)) * alpha
        return [
            self._extremum(nodes, alpha, alpha_error, index, is_peak)
            for index, is_peak in local_extrema(alpha, noise_of_alpha)
        ]

    def _extremum(
        self, nodes: Host, alpha: Host, error: Host, index: int, is_peak: bool
    ) -> tuple[float, TurningPoint]:
        """Refine the local extremum of alpha next to the computed point (node) with this ``index``, a minimum of ``sign`` times
        alpha; return its log Qhat and the turning point. ``nodes``, ``alpha``, ``error`` are the curve's, ``is_peak`` asks for a
        maximum.
        """
        from scipy.optimize import minimize_scalar

        sign = -1.0 if is_peak else 1.0
        minimum = minimize_scalar(
            lambda log_qhat: sign * min(self._alpha_at(log_qhat), 1e300),
            bounds=nodes[[index - 1, index + 1]],
            method="bounded",
            options={"xatol": 1e-9},
        )
        extreme_alpha = float(sign * minimum.fun)
        extreme_alpha_error = (
            float(self.alpha_of(np.array([minimum.x]))[1][0]) + 1e-12 * extreme_alpha
        )
        return float(minimum.x), TurningPoint(
            Threshold(extreme_alpha, extreme_alpha_error), is_peak
        )


class GridCurve(ScalarCurve):
    """Curve ``alpha(Qhat)`` of one overlap whose information is sampled at nodes (values of log Qhat) and interpolated between
    them. The class's settings are those of ``ScalarCurve``, for fewer nodes.
    """

    lowest_qhat, highest_qhat, nodes_per_decade = 1e-4, 1e8, 4
    smallest_error = 1e-11
    small_qhats = 1e-1, 1e-2, 1e-3, 1e-4

    def _resolved_nodes(self, nodes: Host, end: int) -> Host:
        """Nodes (log Qhat), the first ``end`` of them, at which V exceeds the smallest V that is resolved, and the point where
        it falls to that.
        """
        resolved_nodes = nodes[:end]
        next_node = nodes[end : end + 1]
        smallest_V = self.smallest_error * self.prior_variance
        if not len(next_node) or self._overlap(next_node)[1][0] >= smallest_V:
            return resolved_nodes

        def log_V_over_resolution(x: Host, index: Host) -> Host:
            """Logarithm of V over the smallest V that is resolved, at log Qhat = x (``index`` is not used)."""
            V: Host = np.maximum(self._overlap(x)[1], 1e-300)
            return np.log(V / smallest_V)

        # The error of a discrete signal falls by many orders of magnitude from one node to the next.
        return np.append(
            resolved_nodes,
            bracketed_roots(log_V_over_resolution, resolved_nodes[-1:], next_node),
        )

    @cached_property
    def _table(self) -> tuple[Host, Host, Host]:
        """Nodes (computed points) of the curve, refined by halving the gaps between them until the interpolation of log alpha is
        accurate: arrays of log Qhat, alpha, and the error of alpha (interpolation included), the rows of ``table``.
        """
        alpha, error = super().alpha_of(self.log_qhat)
        resolved_indices = np.flatnonzero(
            np.isfinite(alpha) & (error < LARGEST_RELATIVE_ERROR * alpha)
        )
        end = int(resolved_indices[-1]) + 1 if len(resolved_indices) else len(alpha)
        table = np.array([self.log_qhat, alpha, error])[:, :end]
        for _ in range(3):
            nodes, alpha, error = table
            interpolation_errors = interpolation_error(nodes, alpha)
            is_inaccurate = interpolation_errors > np.maximum(
                INTERPOLATION_TOLERANCE,
                error / np.where(np.isfinite(alpha), alpha, 1.0),
            )
            gap_indices = np.flatnonzero(is_inaccurate[:-1] | is_inaccurate[1:])
            if not len(gap_indices):
                break
            midpoints = (nodes[gap_indices] + nodes[gap_indices + 1]) / 2
            table = np.hstack([table, [midpoints, *super().alpha_of(midpoints)]])
            table = table[:, np.argsort(table[0])]
        nodes, alpha, error = table
        interpolation_errors = np.where(
            np.isfinite(alpha), alpha, 0.0
        ) * interpolation_error(nodes, alpha)
        return nodes, alpha, np.hypot(error, interpolation_errors)

    @cached_property
    def _interpolants(self) -> tuple[CubicSpline, Callable[[Array], Array]]:
        """Two functions of log Qhat that interpolate between the curve's nodes (computed points): log alpha (a cubic spline), and
        its error.
        """
        from scipy.interpolate import CubicSpline

        is_finite = np.isfinite(self.alpha)
        nodes = self.nodes[is_finite]
        alpha = self.alpha[is_finite]
        alpha_error = self.alpha_error[is_finite]
        return CubicSpline(nodes, np.log(alpha)), lambda log_qhat: np.interp(
            log_qhat, nodes, alpha_error / alpha
        )

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """Sample ratio ``alpha(Qhat)`` at values of log Qhat and its error, interpolated between the computed points."""
        log_alpha_spline, relative_error_at = self._interpolants
        log_qhat = np.clip(log_qhat, log_alpha_spline.x[0], log_alpha_spline.x[-1])
        alpha = np.exp(log_alpha_spline(log_qhat))
        return alpha, alpha * relative_error_at(log_qhat)


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
    """Whether one scalar overlap Q (and error V) suffices: one component, or channel and prior invariant under rotations."""
    if problem.components == 1:
        return True
    identity = np.eye(problem.components)
    V = overlap_at(problem, identity)[1]
    return problem.channel.symmetry == "rotations" and np.allclose(
        V, V[0, 0] * identity, rtol=1e-9, atol=1e-12
    )


def limit_of(values: Sequence[float]) -> Threshold:
    """Extrapolate the limit of a sequence (``values``, four or more, at geometric spacing), with an error estimate."""
    limit = aitken(*values[-3:])
    previous_limit = aitken(*values[-4:-1])
    return Threshold(limit, abs(limit - previous_limit) + 1e-12 * abs(limit))


def local_extrema(values: Array, noise: Array) -> list[tuple[int, bool]]:
    """Find the interior local extrema of a sequence of ``values``: pairs of an index and whether it is a maximum. On both sides
    of an extremum the sequence changes by more than the ``noise`` of the two values compared.
    """
    extrema: list[tuple[int, bool]] = []
    search_direction, extreme_index = 1, 0
    for index in range(1, len(values)):
        if search_direction * (values[index] - values[extreme_index]) > 0:
            extreme_index = index
        elif abs(values[index] - values[extreme_index]) > max(
            noise[index], noise[extreme_index]
        ):
            extrema.append((extreme_index, search_direction > 0))
            search_direction = -search_direction
            extreme_index = index
    # The first extremum found may be the first value itself, or no further from it than noise: it does not count.
    if extrema and abs(values[extrema[0][0]] - values[0]) <= max(
        noise[extrema[0][0]], noise[0]
    ):
        del extrema[0]
    return extrema


def interpolation_error(nodes: Array, alpha: Array) -> Array:
    """Relative error (G,) of interpolating alpha between G computed points (``nodes``, values of log Qhat): an eighth of each
    one's distance in log alpha from the cubic through its four neighbors, whose gap is twice as wide.
    """
    errors = np.zeros(len(nodes))
    finite_nodes = np.flatnonzero(np.isfinite(alpha))
    log_qhat = nodes[finite_nodes]
    log_alpha = np.log(alpha[finite_nodes])
    for index in range(1, len(log_qhat) - 1):
        neighbors = [
            neighbor
            for neighbor in range(max(0, index - 2), min(len(log_qhat), index + 3))
            if neighbor != index
        ]
        errors[finite_nodes[index]] = (
            abs(
                float(
                    interpolated_value(
                        log_qhat[neighbors], log_alpha[neighbors], log_qhat[index]
                    )
                )
                - log_alpha[index]
            )
            / 8
        )
    return errors


def resolved_count(
    V: Array, log_qhat: Array, prior_variance: float, smallest_error: float
) -> int:
    """Number of the first entries of ``log_qhat`` up to which the error V there still falls as a power of Qhat; beyond them
    double precision cannot resolve it. ``smallest_error`` is the smallest V allowed, as a share of ``prior_variance``.
    """
    if not (SMALL_ERROR * prior_variance > V).any():
        return len(V)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall_power = -np.diff(np.log(V)) / np.diff(log_qhat)
    is_unresolved = (V[1:] < SMALL_ERROR * prior_variance) & ~(
        (fall_power > SLOWEST_FALL) & (V[1:] > smallest_error * prior_variance)
    )
    return int(np.argmax(is_unresolved)) + 1 if is_unresolved.any() else len(V)
