r"""Steps along a traced curve of fixed points: the sample ratio of each component, nodes (solved points), stages (parts between
bifurcations), and the corrector of points.

Component a is at a fixed point at the sample ratio ``alpha_a(Q) = Qhat_aa / (kappa I_aa(Q))``. A component that is not learned
(``Q_aa`` at its lowest value) is stable below ``alpha_a``, the limit of the same ratio: with ``I_aa = lambda_a Q_aa`` and
``Q_aa = chi_a Qhat_aa`` it is ``1 / (kappa lambda_a chi_a)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from smimbench.interfaces import Host, Uncertain
from smimbench.interfaces.problem import prior_moments
from smimbench.problem.problem import Problem
from smimbench.theory.information import (
    diagonals,
    information_at,
    is_sampled,
    offers_rough,
    overlap_at,
    susceptibility_at,
)
from smimbench.theory.types import NEGLIGIBLE

COORDINATE_SHIFT = 0.02
"""Shift of the coordinate of a component, in log(1 + Qhat). With 11 nodes of two layers errors are 4e-4; without it, 4e-3."""


@dataclass(frozen=True)
class TracingAccuracy:
    """Numerical settings for tracing a curve of fixed points. Steps are along the curve, in coordinates of log Qhat; mismatch (of
    a solved point from its extrapolation) and gap (to a bifurcation) are in log alpha, and corrections in coordinates.

    Lengths are in coordinates of Qhat (logarithms).

    Attributes
    ----------
    difference_step : float
        Length of finite differences.
    first_step : float
        First step of a stage; doubled, one or two nodes fewer at its beginning.
    shortest_step, longest_step : float
        Bounds of a step from node to node.
    target_mismatch : float
        Wanted difference of log alpha at a new node from its extrapolation; it sets the step. Doubled, steps grow by 1.4.
    largest_correction : float
        Largest correction across the curve that is not evaluated again, but counted as an error.
    measured_correction, counted_share : float
        The same where the slope across the curve is measured at the node, and the share of such a correction that is counted;
        doubled, fewer evaluations and larger errors.
    bifurcation_gap : float
        Largest distance from a bifurcation, in log alpha.
    bifurcation_gap_share : float
        The same as a share of the error there.
    recovered_qhat : float
        Qhat above which a component counts as recovered.
    step_growth : float
        Largest factor from step to step. Doubled: fewer nodes, and more that are found too early.
    """

    difference_step: float = 1e-3
    first_step: float = 0.04
    shortest_step: float = 2e-3
    longest_step: float = 1.5
    target_mismatch: float = 5e-4
    largest_correction: float = 1e-6
    measured_correction: float = 1e-6
    counted_share: float = 1.0
    bifurcation_gap: float = 1e-8
    bifurcation_gap_share: float = 0.1
    recovered_qhat: float = 1e8
    step_growth: float = 2.0


EXACT = TracingAccuracy()
SAMPLED = TracingAccuracy(
    difference_step=0.15,
    first_step=0.15,
    shortest_step=0.02,
    longest_step=0.5,
    target_mismatch=5e-3,
    largest_correction=2e-3,
    measured_correction=5e-3,
    counted_share=0.1,
    bifurcation_gap=2e-4,
    bifurcation_gap_share=0.7,
    recovered_qhat=1e6,
    step_growth=1.6,
)
"""For sampled information, which costs seconds and has errors of 1e-3."""


class ComponentRatios:
    """Sample ratios ``alpha_a = Qhat_aa / (kappa I_aa)`` at which component a would be at a fixed point, for all components that
    decouple, as functions of coordinates x of Qhat (about log Qhat_aa); kappa is the model's factor, 1 or 2. ``critical_a`` is
    the largest Qhat_aa at which the overlap of component a still has its lowest value.

    The coordinate of a component that has information at the prior mean is ``log Qhat_aa``; of any other it is ``sqrt(l + s) -
    sqrt(s)``, ``l = log(1 + Qhat_aa - critical_a)`` and ``s = COORDINATE_SHIFT``: beyond weak recovery alpha rises steeply at
    first, and a curve through few nodes is smoother as a function of a root.

    Attributes
    ----------
    second_moment, prior_mean_overlap : ndarray (P,)
        Diagonals of the second moment and of the overlap of the prior mean.
    critical_qhat : ndarray (P,)
        The largest Qhat at which the overlap still has its lowest value.
    response : ndarray (P,)
        dQ/dQhat at the lowest overlap.
    response_error : ndarray (P,)
        Its relative error.
    informative_components : set of int
        Components that have information at the prior mean.
    methods : dict
        How the information was obtained, in the order of first use.
    """

    def __init__(self, problem: Problem) -> None:
        """Compute the response of every component's overlap to a small Qhat, extrapolated to zero, and, where that response is 0,
        the critical Qhat up to which the overlap does not grow.
        """
        self.problem = problem
        self.kappa = float(problem.model.kappa)
        self.second_moment, self.prior_mean_overlap = (
            np.diagonal(moment) for moment in prior_moments(problem)
        )
        self.methods: dict[str, None] = {}
        self.informative_components: set[int] = set()
        # Richardson's extrapolation to second order in the step; that from larger steps tells its error.
        responses = [
            self._overlap_gain(step) / step for step in (8e-4, 4e-4, 2e-4, 1e-4)
        ]
        previous_response, self.response = (
            (at_step - 6 * at_half_step + 8 * at_quarter_step) / 3
            for at_step, at_half_step, at_quarter_step in (responses[:3], responses[1:])
        )
        extrapolation_error = np.abs(self.response - previous_response) / 7
        self.response_error = (
            extrapolation_error / np.where(self.response > 0, self.response, 1.0)
            + 1e-11
        )
        self.critical_qhat = np.zeros(len(self.response))
        for a in np.flatnonzero(self.response == 0):
            self.critical_qhat[a] = self._critical_qhat_of(int(a))

    def _overlap_gain(self, qhat: float) -> Host:
        """Increase (P,) of every component's overlap over its lowest value, if all have this ``qhat``: prior variance minus MSE
        (diagonal of V).
        """
        # At small gains Q - prior_mean_overlap loses its digits to cancellation; the gain is taken from V, which keeps them.
        V = np.diagonal(self.overlap(np.full(len(self.second_moment), qhat))[1])
        overlap_gain: Host = np.maximum(
            self.second_moment - self.prior_mean_overlap - V, 0.0
        )
        return overlap_gain

    def _critical_qhat_of(self, a: int) -> float:
        """Largest Qhat_aa at which the overlap of component a still has its lowest value, by bisection in log Qhat."""
        from scipy.optimize import brentq

        def sign_of_growth(log_qhat: float) -> float:
            """1 if the overlap Q_aa of component a is above its lowest value where all Qhat_aa have this logarithm, else -1."""
            Q = self.overlap(np.full(len(self.prior_mean_overlap), np.exp(log_qhat)))[0]
            return 1.0 if Q[a, a] > self.prior_mean_overlap[a] else -1.0

        log_qhat_grid = np.linspace(np.log(1e-9), np.log(1e15), 193)
        first_grown_index = next(
            (
                index
                for index, log_qhat in enumerate(log_qhat_grid)
                if sign_of_growth(log_qhat) > 0
            ),
            len(log_qhat_grid) - 1,
        )
        return float(
            np.exp(
                brentq(
                    sign_of_growth,
                    log_qhat_grid[first_grown_index - 1],
                    log_qhat_grid[first_grown_index],
                    xtol=1e-15,
                )
            )
        )

    @property
    def uses_sampling(self) -> bool:
        """Whether the information is estimated as a mean over random labels."""
        return any(is_sampled(method) for method in self.methods)

    @property
    def accuracy(self) -> TracingAccuracy:
        """Numerical settings for tracing the curve of this problem: coarser where the information is sampled."""
        return SAMPLED if self.uses_sampling else EXACT

    def qhat(self, x: Host, learned_components: Sequence[int]) -> Host:
        """Diagonal of Qhat (..., P) at coordinates x (..., P); 0 for components that are not among ``learned_components``."""
        qhat_diagonal = np.zeros(x.shape)
        for component in learned_components:
            qhat_diagonal[..., component] = (
                np.exp(x[..., component])
                if component in self.informative_components
                else self.critical_qhat[component] + self.excess_qhat(x[..., component])
            )
        return qhat_diagonal

    def excess_qhat(self, x: Host) -> Host:
        """Excess ``Qhat_aa - critical_a`` over ``critical_a``, up to which the overlap keeps its lowest value, at coordinate x,
        for components on which labels tell nothing at the prior mean.
        """
        return np.asarray(np.expm1(x * (x + 2 * np.sqrt(COORDINATE_SHIFT))))

    def overlap(self, qhat: Host) -> tuple[Host, Host]:
        """Overlap Q and error V (..., P, P) of the prior at a diagonal Qhat (..., P)."""
        return overlap_at(self.problem, qhat[..., :, None] * np.eye(qhat.shape[-1]))

    @property
    def has_rough_information(self) -> bool:
        """Whether the information is sampled and a cheaper estimate is accurate enough for finite differences."""
        return self.uses_sampling and offers_rough(self.problem)

    def log_ratios(
        self, x: Host, learned_components: Sequence[int], *, rough: bool = False
    ) -> tuple[Host, Host]:
        """Compute ``log alpha_a`` (P,) and its error at coordinates x (overlap Q, error V): where component a is at a fixed point
        if it is learned, else where it becomes unstable. alpha_a is 1 over a rate times kappa, the model's factor: information
        over Qhat, or for unlearned components the growth of the overlap (susceptibility times response); infinite at rate 0.
        ``rough`` values, from few labels, are for finite differences only.
        """
        qhat = self.qhat(x, learned_components)
        Q, V = self.overlap(qhat)
        information = information_at(self.problem, Q, V, rough=rough)
        self.methods[information.method] = None
        qhat_or_critical = np.where(qhat > 0, qhat, self.critical_qhat)
        is_unlearned = qhat_or_critical == 0
        rate, error = (
            column / np.where(is_unlearned, 1.0, qhat_or_critical)
            for column in diagonals(information)
        )
        if is_unlearned.any():
            susceptibility = susceptibility_at(self.problem, Q, V, rough=rough)
            self.methods[susceptibility.method] = None
            growth, growth_error = (
                column * self.response for column in diagonals(susceptibility)
            )
            rate = np.where(is_unlearned, growth, rate)
            error = np.where(is_unlearned, growth_error, error)
        rate, error = self.kappa * rate, self.kappa * error
        is_resolved = rate > np.where(qhat > 0, 0.0, np.maximum(3 * error, 1e-300))
        positive_rate = np.where(is_resolved, rate, 1.0)
        return np.where(is_resolved, -np.log(positive_rate), np.inf), np.where(
            is_resolved, error / positive_rate, np.inf
        )


def components_decouple(problem: Problem) -> bool:
    """Whether the P components decouple: diagonal overlaps stay diagonal, and unlearned components stay unlearned. Component a
    is learned alone to see whether labels then tell of others.

    The first by symmetry, where no label sees the sign of a component. Otherwise the information is probed at the prior mean
    and at two diagonal overlaps: its off-diagonal part has to vanish within its error. The second is what a channel claims
    that knows its ``susceptibility``; of any other it is probed. A product of two components is learned by both at once:
    knowing one teaches the other.
    """
    P = problem.components
    identity = np.eye(problem.components)
    prior_mean_overlap = prior_moments(problem)[1]
    if np.any(prior_mean_overlap != np.diag(np.diagonal(prior_mean_overlap))):
        return False

    def information_at_qhat(qhat_diagonal: Host) -> Uncertain:
        """Information (P, P) of the labels at the overlap that a Qhat with this diagonal (P,) gives."""
        return information_at(problem, *overlap_at(problem, np.diag(qhat_diagonal)))

    if P > 1 and problem.channel.susceptibility is None:
        information_values, information_error = diagonals(
            information_at_qhat(np.zeros(P))
        )
        is_uninformative = information_values <= np.maximum(
            NEGLIGIBLE, 4 * information_error
        )
        for a in range(P):
            information_values, information_error = diagonals(
                information_at_qhat(identity[a])
            )
            gains_information = is_uninformative & (
                information_values
                > 4 * information_error + 1e-4 * information_values.max()
            )
            if np.delete(gains_information, a).any():
                return False
    if problem.channel.symmetry in ("signs", "signed-permutations"):
        return True
    for qhat_diagonal in (
        np.zeros(P),
        0.7 * 1.9 ** np.arange(P),
        5.0 / 1.7 ** np.arange(P),
    ):
        information_values, information_error, _ = information_at_qhat(qhat_diagonal)
        information_scale = np.sqrt(
            np.outer(np.diagonal(information_values), np.diagonal(information_values))
        )
        if np.any(
            (
                np.abs(information_values)
                > 4 * information_error + 1e-6 * information_scale + 1e-12
            )
            & (identity == 0)
        ):
            return False
    return True


Interpolant = Callable[..., Host]
"""Function from arc length along a curve to its coordinates; with 1 as second argument, to their derivative."""


@dataclass
class Node:
    """Node of a traced curve, one computed fixed point: coordinates x (P,) of Qhat, ``log_ratios`` (log alpha_a of each component
    a, the sample ratio at which it is at a fixed point) and their error, ``jacobian`` d log_ratios / dx, and ``log_alpha`` of the
    curve. ``residual`` is how far log_ratios may be from log_alpha, ``rough_error`` their accurate minus rough values (from few
    labels).
    """

    x: Host
    log_ratios: Host
    error: Host
    jacobian: Host
    log_alpha: float
    residual: Host | float = 0.0
    rough_error: Host | None = None

    @property
    def total_error(self) -> Host:
        """Total numerical error (P,) of the curve's ``log_alpha``, as given by the log alpha_a of each component a, the sample
        ratio at which it is at a fixed point.
        """
        return self.error + self.residual


@dataclass(eq=False)
class Stage:
    """Stage of a traced curve: its ``nodes`` (solved points) between two bifurcations, on which the same ``learned_components``
    are learned. ``new_components`` set its initial direction, ``recovered_components`` have reached perfect recovery and keep
    their coordinates; ``step`` is the next step along the curve, ``direction`` that at its end, and ``nodes_ahead``, the farthest
    first, are computed but not yet needed.
    """

    learned_components: list[int]
    new_components: list[int]
    nodes: list[Node]
    recovered_components: list[int]
    step: float
    direction: Host | None = None
    nodes_ahead: list[Node] = field(default_factory=list)

    @property
    def moving_components(self) -> list[int]:
        """Learned components a that have not yet reached perfect recovery, whose coordinates change along the stage."""
        return [
            a for a in self.learned_components if a not in self.recovered_components
        ]

    def mean_error(self, node: Node) -> float:
        """Numerical error of ``log_alpha`` at a ``node`` (solved point): root mean square, over the moving components, of their
        total errors.
        """
        return float(np.sqrt((node.total_error[self.moving_components] ** 2).mean()))

    def interpolants(self) -> tuple[Interpolant, Interpolant]:
        """Two functions that interpolate (x, log alpha) over arc length along the curve: the one to use, and one to estimate
        its error.
        """
        from scipy.interpolate import CubicSpline, PchipInterpolator

        positions = arc_lengths(self.nodes)
        node_values = np.array([[*node.x, node.log_alpha] for node in self.nodes])
        if len(positions) == 2:
            positions = np.insert(positions, 1, positions.mean())
            node_values = np.insert(node_values, 1, node_values.mean(0), axis=0)
        monotone_cubic = PchipInterpolator(positions, node_values)
        if len(positions) <= 3:
            return monotone_cubic, monotone_cubic
        # The error of a cubic through four neighbors is about eight times that of the spline.
        local_cubic = LocalCubic(positions, node_values)
        cubic_spline = CubicSpline(positions, node_values)
        return cubic_spline, monotone_cubic if len(positions) == 4 else local_cubic


@dataclass
class LocalCubic:
    """Interpolation of points ``(s_k, values_k)`` by the cubic through the four points nearest to a position (three at the ends).
    ``s`` are arc lengths along the curve, and ``values`` are (x, log alpha).
    """

    s: Host
    values: Host

    def __call__(self, position: float) -> Host:
        """Interpolate the values at one ``position`` (an arc length)."""
        next_node = int(np.clip(np.searchsorted(self.s, position), 1, len(self.s) - 1))
        neighbors = slice(max(0, next_node - 2), next_node + 2)
        return interpolated_value(self.s[neighbors], self.values[neighbors], position)


def arc_lengths(nodes: list[Node]) -> Host:
    """Arc lengths (n,) of n ``nodes`` (solved points) along the polygon through their coordinates x, measured from the first."""
    x = np.array([node.x for node in nodes])
    return np.concatenate(
        [[0.0], np.cumsum(np.linalg.norm(np.diff(x, axis=0), axis=1))]
    )


def interpolated_value(
    nodes: Host, values: Host | Sequence[float] | Sequence[Host], position: float
) -> Host:
    """Value at ``position`` of the polynomial through all points ``(nodes_k, values_k)``, where nodes are positions."""
    from scipy.interpolate import krogh_interpolate

    return np.asarray(
        krogh_interpolate(nodes, np.asarray(values, dtype=float), position)
    )


def finite_change(start: Host, end: Host) -> Host:
    """Elementwise difference end - start where both are finite, 0 elsewhere."""
    is_finite = np.isfinite(start) & np.isfinite(end)
    return np.where(
        is_finite, np.where(is_finite, end, 0.0) - np.where(is_finite, start, 0.0), 0.0
    )


class Corrector:
    """Corrector of the continuation: finds coordinates x of Qhat at which the ``log alpha_a`` of all moving components a agree,
    where alpha_a is the sample ratio at which component a is at a fixed point.
    """

    def __init__(self, ratios: ComponentRatios) -> None:
        """Set the sample ratios of the components as functions of the coordinates."""
        self.ratios = ratios

    def differentiate(self, stage: Stage, node: Node) -> Host:
        """Set the Jacobian ``d log alpha_a / dx`` (P, P) of a ``node`` (solved point) by finite differences in coordinates x,
        alpha_a being the sample ratio at which component a is at a fixed point; return the log alpha_a there. The coordinate of
        one component a of the ``stage`` (part of the curve between bifurcations) at a time is shifted by ``difference_step``.

        Where information is sampled, all values come from few labels, the same at every overlap. Where a node's Jacobian has been
        computed so, only the columns of new components are added.
        """
        difference_step = self.ratios.accuracy.difference_step
        use_rough = self.ratios.has_rough_information
        base_log_ratios = (
            self.ratios.log_ratios(node.x, stage.learned_components, rough=True)[0]
            if use_rough
            else node.log_ratios
        )
        for a in (
            stage.moving_components
            if node.rough_error is None
            else stage.new_components
        ):
            x = node.x.copy()
            x[a] += difference_step
            node.jacobian[:, a] = (
                finite_change(
                    base_log_ratios,
                    self.ratios.log_ratios(
                        x, stage.learned_components, rough=use_rough
                    )[0],
                )
                / difference_step
            )
        return base_log_ratios

    def tangent(self, stage: Stage, jacobian: Host) -> Host:
        """Unit tangent (P,), the forward direction of the curve, at a point with this ``jacobian`` d log alpha_a / dx; alpha_a is
        the sample ratio at which component a is at a fixed point, the same for all moving components along the curve.
        """
        moving_components = stage.moving_components
        tangent = np.zeros(len(jacobian))
        if len(moving_components) == 1:
            tangent[moving_components] = 1.0
            return tangent
        moving_jacobian = jacobian[np.ix_(moving_components, moving_components)]
        tangent[moving_components] = np.linalg.svd(
            moving_jacobian[1:] - moving_jacobian[:1]
        )[2][-1]
        forward_component = (
            tangent[stage.new_components].sum()
            if stage.direction is None
            else tangent @ stage.direction
        )
        return tangent if forward_component > 0 else -tangent

    def _correction_system(
        self, moving_components: list[int], jacobian: Host, tangent: Host
    ) -> Host:
        """Matrix of the linear system for a correction of x on ``moving_components``: differences of the rows of the Jacobian d
        log alpha_a / dx to the first (the sample ratios ``alpha_a`` that components require must agree), and the tangent as last
        row (no step along the curve).
        """
        moving_jacobian = jacobian[np.ix_(moving_components, moving_components)]
        return np.vstack(
            [moving_jacobian[1:] - moving_jacobian[:1], tangent[moving_components]]
        )

    def _correction_noise(
        self, moving_components: list[int], error: Host, jacobian: Host, tangent: Host
    ) -> float:
        """Standard error of a correction of x on ``moving_components`` across the curve, perpendicular to the ``tangent``, from
        the standard ``error`` (P,) of the log alpha_a, the sample ratio that each component requires, whose derivatives in x are
        the ``jacobian``.
        """
        if len(moving_components) < 2:
            return 0.0
        inverse_system = np.linalg.pinv(
            self._correction_system(moving_components, jacobian, tangent), rcond=1e-10
        )[:, :-1]
        error_weights = np.hstack(
            [inverse_system.sum(axis=1, keepdims=True), -inverse_system]
        )
        return float(np.sqrt((error_weights**2 @ error[moving_components] ** 2).max()))

    def _correction(
        self,
        moving_components: list[int],
        log_ratios: Host,
        jacobian: Host,
        tangent: Host,
    ) -> Host:
        """Newton step (P,) in x, perpendicular to the ``tangent``, after which the ``log_ratios`` (log alpha_a, the sample ratio
        that component a requires) of moving components agree; ``jacobian`` is d log alpha_a / dx.
        """
        correction = np.zeros(len(log_ratios))
        if len(moving_components) > 1:
            log_ratio_differences = np.append(
                log_ratios[moving_components[0]] - log_ratios[moving_components[1:]],
                0.0,
            )
            correction[moving_components] = np.linalg.lstsq(
                self._correction_system(moving_components, jacobian, tangent),
                log_ratio_differences,
                rcond=1e-10,
            )[0]
        return correction

    def step_within_bounds(self, stage: Stage, start: Host, bounded_end: Host) -> Host:
        """Limit the step from x = ``start`` to ``bounded_end`` so that a learned component a on which labels tell nothing at
        the prior mean moves at most two thirds of the way back to its lowest overlap (x_a = 0).
        """
        bounded_components = [
            a
            for a in stage.moving_components
            if a not in self.ratios.informative_components
        ]
        bounded_end = bounded_end.copy()
        bounded_end[bounded_components] = np.maximum(
            bounded_end[bounded_components], start[bounded_components] / 3
        )
        return bounded_end

    def corrected_node(
        self, stage: Stage, origin: Node, x: Host, tangent: Host
    ) -> tuple[Node, float]:
        """Find the point of the curve near ``x``, where the log alpha_a (``log_ratios``; alpha_a is the sample ratio that
        component a requires) agree; return it and the largest correction of x (perpendicular to ``tangent``) beyond noise. Newton
        steps use the Jacobian of the earlier solved point ``origin``, updated on the way (Broyden) or measured again from rough
        values (few labels) at ``rough_x``; ``last_ratios`` are the log alpha_a at ``last_x``, and the change by the last
        correction is counted in the residual.
        """
        accuracy = self.ratios.accuracy
        moving_components = stage.moving_components
        largest_correction = 0.0
        jacobian = origin.jacobian.copy()
        last_x = origin.x
        last_ratios = origin.log_ratios
        # What is left is counted in full where the slope may be far off, and by a share where it is measured: there it may be as
        # large as the error.
        is_jacobian_measured = (
            self.ratios.has_rough_information and len(moving_components) > 1
        )
        rough_x, rough_ratios = x, None
        # A stage begins where a component's overlap is 0, and the error of rough values may be another one there.
        if (
            is_jacobian_measured
            and origin.rough_error is not None
            and len(stage.nodes) > 1
        ):
            rough_ratios = self.differentiate(
                stage, Node(x, last_ratios, last_ratios, jacobian, np.nan)
            )
            correction = self._correction(
                moving_components, rough_ratios + origin.rough_error, jacobian, tangent
            )
            correction_size = float(np.abs(correction).max())
            if np.isfinite(correction_size):
                largest_correction = correction_size
                x = self.step_within_bounds(
                    stage,
                    x,
                    x + correction * min(1.0, 1.0 / max(correction_size, 1e-300)),
                )
        # After 6 corrections without success the caller halves its step.
        for halving in range(6):
            log_ratios, error = self.ratios.log_ratios(x, stage.learned_components)
            x_change = x - last_x
            if is_jacobian_measured and halving == 0:
                if rough_ratios is None:
                    rough_ratios = self.differentiate(
                        stage, Node(x, log_ratios, error, jacobian, np.nan)
                    )
            elif x_change @ x_change > 0:
                jacobian = jacobian + np.outer(
                    finite_change(last_ratios, log_ratios) - jacobian @ x_change,
                    x_change,
                ) / (x_change @ x_change)
            correction = self._correction(
                moving_components, log_ratios, jacobian, tangent
            )
            correction_size = float(np.abs(correction).max())
            if not np.isfinite(correction_size):
                return Node(x, log_ratios, error, jacobian, np.nan), np.inf
            largest_correction = max(
                largest_correction,
                correction_size
                - self._correction_noise(moving_components, error, jacobian, tangent),
            )
            tolerance = (
                max(accuracy.measured_correction, float(error[moving_components].max()))
                if is_jacobian_measured
                else accuracy.largest_correction
            )
            if correction_size <= tolerance:
                break
            last_x = x
            last_ratios = log_ratios
            corrected_x = x + correction * min(1.0, 1.0 / correction_size)
            x = self.step_within_bounds(stage, x, corrected_x)
            if (x != corrected_x).any() and len(stage.nodes) == 1:
                # The correction leads back to the lowest overlap, just left: the step is too short to exceed the noise.
                correction = np.zeros_like(correction)
                largest_correction = np.inf
                x = last_x
                break
        else:
            correction = np.zeros_like(correction)
            largest_correction = np.inf
        rough_error = (
            None
            if rough_ratios is None
            else finite_change(rough_ratios + jacobian @ (x - rough_x), log_ratios)
        )
        ratio_change = jacobian @ correction
        log_ratios = np.where(
            np.isfinite(log_ratios), log_ratios + ratio_change, log_ratios
        )
        log_alpha = float(log_ratios[moving_components].mean())
        residual = np.zeros(len(x))
        residual[moving_components] = (
            accuracy.counted_share if is_jacobian_measured else 1.0
        ) * np.abs(ratio_change)[moving_components]
        residual[moving_components] += np.abs(log_ratios[moving_components] - log_alpha)
        return Node(
            self.step_within_bounds(stage, x, x + correction),
            log_ratios,
            error,
            jacobian,
            log_alpha,
            residual,
            rough_error,
        ), largest_correction
