"""Predictions, errors, branches, folds (where alpha decreases) and thresholds, read from a traced curve of fixed points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from smimbench.interfaces import Host
from smimbench.problem.problem import Problem
from smimbench.theory.continuation import Continuation
from smimbench.theory.curve import (
    NEVER,
    PRIOR_OVERLAP,
    Curve,
    Segment,
    TurningPoint,
    branch_crossings,
    perfect_prediction,
    thresholds_with_reasons,
)
from smimbench.theory.scouting import comes_back, rises, rough_bifurcations
from smimbench.theory.tracing import Stage, arc_lengths, components_decouple
from smimbench.theory.types import (
    HARD_PHASE,
    HardPhase,
    Prediction,
    Threshold,
    Thresholds,
)

NOT_COMPUTED = "not computed: noise of the sampled information hides it"


class StageCurve:
    """Stage (part between two bifurcations) of a traced curve of fixed points, with functions that interpolate coordinates x of
    Qhat and log alpha between its nodes (solved points) over arc length (``position``), and their values on a fine grid.

    Attributes
    ----------
    stage : Stage
    node_positions : ndarray (k,)
        Positions of its nodes along the curve, as arc lengths.
    log_alpha, error : ndarray (k,)
        At the nodes.
    interpolant, check_interpolant : callable
        See ``Stage.interpolants``.
    position : ndarray (n,)
        The fine grid.
    values : ndarray (n, P + 1)
        Coordinates and log alpha there.
    """

    def __init__(self, stage: Stage) -> None:
        """Interpolate a ``stage`` (part of the curve between two bifurcations) between its solved points, and sample it on a fine
        grid.
        """
        self.stage, self.node_positions = stage, arc_lengths(stage.nodes)
        self.log_alpha = np.array([node.log_alpha for node in stage.nodes])
        self.error = np.array([stage.mean_error(node) for node in stage.nodes])
        self.interpolant, self.check_interpolant = stage.interpolants()
        self.position = np.unique(
            np.linspace(self.node_positions[:-1], self.node_positions[1:], 17)
        )
        self.values = self.interpolant(self.position)

    def crossing(
        self, log_alpha: float, start: float, end: float
    ) -> tuple[float, float]:
        """Position t between ``start`` and ``end`` (arc lengths) where this part of the curve reaches this log alpha, and its
        interpolation error.
        """
        from scipy.optimize import brentq

        position = brentq(
            lambda t: float(self.interpolant(t)[-1]) - log_alpha, start, end, xtol=1e-13
        )
        log_alpha_slope = abs(float(self.interpolant(position, 1)[-1]))
        return position, abs(
            float(self.check_interpolant(position)[-1]) - log_alpha
        ) / max(log_alpha_slope, 1e-3)


class TracedCurve:
    """Curve of fixed points as traced so far, sampled on a fine grid: the stage (part of the curve between two bifurcations), the
    position in it, and log alpha of every grid point.

    Attributes
    ----------
    curves : list of StageCurve
    stage_index, position, log_alpha : ndarray (n,)
        The fine grids of all stages in a row: index of the stage, length along it, log alpha.
    node_log_alpha, node_error : ndarray (k,)
        Log alpha of all nodes, and its error.
    """

    def __init__(self, node_count: int, curves: list[StageCurve]) -> None:
        """Join the fine grids of the stages (parts of the curve between bifurcations, in ``curves``); ``node_count`` is the
        number of solved points in all of them.
        """
        self.node_count, self.curves = node_count, curves
        stage_indices = [
            np.full(len(curve.position), stage_index)
            for stage_index, curve in enumerate(curves)
        ]
        grids = [
            [stage_index, curve.position, curve.values[:, -1]]
            for stage_index, curve in zip(stage_indices, curves)
        ]
        self.stage_index, self.position, self.log_alpha = np.hstack(
            [np.zeros((3, 0)), *grids]
        )
        self.node_log_alpha, self.node_error = np.hstack(
            [np.zeros((2, 0)), *([curve.log_alpha, curve.error] for curve in curves)]
        )


class FixedPointCurve(Continuation, Curve):
    """Curve of fixed points that starts at the prior mean, for components that decouple; branches, errors, folds (where alpha
    decreases) and thresholds are read from what has been traced.
    """

    _traced_curve: TracedCurve | None = None
    _rest_rises: bool | None = None

    @property
    def is_costly(self) -> bool:
        """Whether the information of more than three components is sampled."""
        return self.ratios.uses_sampling and self.problem.components > 3

    # -- reading the curve --------------------------------------------------------------------------------------------

    def _traced_so_far(self) -> TracedCurve:
        """Curve as far as it has been traced, interpolated anew if solved points were added."""
        count = sum(len(stage.nodes) for stage in self.stages)
        if self._traced_curve is None or self._traced_curve.node_count != count:
            self._traced_curve = TracedCurve(
                count,
                [StageCurve(stage) for stage in self.stages if len(stage.nodes) > 1],
            )
        return self._traced_curve

    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch (uninformed, informed) at every sample ratio; the informed one needs the
        complete curve.
        """
        return [self._predict_one(float(alpha), branch) for alpha in alphas]

    def _predict_one(self, alpha: float, branch: str) -> Prediction:
        """Predict the fixed point of one branch at one sample ratio alpha, where the traced curve crosses it. The error of V
        follows from Qhat at coordinates x plus and minus their error; a component a may be learned where the error of x_a is
        nonzero. ``ratio_error`` is that of the alpha_a (sample ratio that component a requires) at fixed x, relative.
        """
        if self._is_beyond_rising_curve(alpha):
            return perfect_prediction(self.problem, alpha, branch)
        self.trace(until=alpha if branch == "uninformed" else None)
        traced_curve = self._traced_so_far()
        log_alpha, perfect_log_alpha = np.log(alpha), np.inf
        if self.is_finished and self.perfect is not None:
            perfect_log_alpha = (
                np.log(self.perfect.value) if self.perfect.value > 0 else -np.inf
            )
        if branch == "informed" and log_alpha >= perfect_log_alpha:
            return perfect_prediction(self.problem, alpha, branch)
        grid_index = int(
            branch_crossings(traced_curve.log_alpha, np.array([log_alpha]), branch)[0]
        )
        if grid_index == 0:
            return self._predict_below_curve(alpha, log_alpha, branch)
        if grid_index == len(traced_curve.log_alpha):
            return self._predict_beyond_curve(
                alpha, log_alpha, perfect_log_alpha, branch
            )
        stage_curve = traced_curve.curves[int(traced_curve.stage_index[grid_index])]
        position, position_error = traced_curve.position[grid_index], 0.0
        # If the curve reaches alpha between two stages, the fixed point is the start of the next one.
        if (
            traced_curve.stage_index[grid_index - 1]
            == traced_curve.stage_index[grid_index]
        ):
            position, position_error = stage_curve.crossing(
                log_alpha, traced_curve.position[grid_index - 1], position
            )
        x, curve_derivative = (
            stage_curve.interpolant(position)[:-1],
            stage_curve.interpolant(position, 1),
        )
        stage = stage_curve.stage
        interpolation_error = np.abs(
            x - stage_curve.check_interpolant(position)[:-1]
        ) + position_error * np.abs(curve_derivative[:-1])
        x_error, ratio_error = self._errors_at(
            stage_curve, position, interpolation_error, curve_derivative
        )
        x_error = x_error + self._unlearned_error(
            self.stages.index(stage) + 1, log_alpha
        )
        possibly_learned = [
            *stage.learned_components,
            *(
                a
                for a in range(len(x))
                if a not in stage.learned_components and x_error[a] > 0
            ),
        ]
        starts_at_zero = [
            a not in self.ratios.informative_components for a in range(len(x))
        ]
        qhat_bounds = []
        for x_bound in (x + x_error, x - x_error):
            qhat_bounds.append(
                self.ratios.qhat(
                    np.where(starts_at_zero, np.maximum(x_bound, 0.0), x_bound),
                    possibly_learned,
                )
            )
        return self._build_prediction(
            alpha,
            self.ratios.qhat(x, stage.learned_components),
            qhat_bounds,
            branch,
            alpha * ratio_error,
        )

    def _errors_at(
        self,
        stage_curve: StageCurve,
        position: float,
        interpolation_error: Host,
        curve_derivative: Host,
    ) -> tuple[Host, Host]:
        """Numerical errors (P,) at a ``position`` (arc length) of a stage, a part of the curve between two bifurcations: of
        coordinates x at fixed alpha, and of the log alpha_a (sample ratio that component a requires) at fixed x, from the errors
        of the solved points around it (Jacobians d log alpha_a / dx interpolated between them) and of the interpolation
        (``interpolation_error``, of x). ``curve_derivative`` is that of x and log alpha along the curve.
        """
        node_positions, moving_components = (
            stage_curve.node_positions,
            stage_curve.stage.moving_components,
        )
        next_index = int(
            np.clip(
                np.searchsorted(node_positions, position), 1, len(node_positions) - 1
            )
        )
        share_of_next = np.clip(
            (position - node_positions[next_index - 1])
            / (node_positions[next_index] - node_positions[next_index - 1]),
            0,
            1,
        )
        previous_node, next_node = (
            stage_curve.stage.nodes[next_index - 1],
            stage_curve.stage.nodes[next_index],
        )
        moving_jacobian = (
            (1 - share_of_next) * previous_node.jacobian
            + share_of_next * next_node.jacobian
        )[np.ix_(moving_components, moving_components)]
        # Secants know the slope across the curve; along it all log alpha_a change as log alpha does.
        moving_derivative = curve_derivative[moving_components]
        moving_jacobian = moving_jacobian + np.outer(
            curve_derivative[-1] - moving_jacobian @ moving_derivative,
            moving_derivative,
        ) / (moving_derivative @ moving_derivative)
        node_error = (
            (1 - share_of_next) * previous_node.total_error
            + share_of_next * next_node.total_error
        )[moving_components]
        x_error, ratio_error = np.zeros((2, len(previous_node.x)))
        x_error[moving_components] = (
            np.sqrt((np.linalg.pinv(moving_jacobian, rcond=1e-6) ** 2) @ node_error**2)
            + interpolation_error[moving_components]
        )
        ratio_error[moving_components] = (
            node_error
            + np.abs(moving_jacobian) @ interpolation_error[moving_components]
        )
        return np.minimum(x_error, 2.0), ratio_error

    def _unlearned_error(self, stage_index: int, log_alpha: float) -> Host:
        """Error of coordinates x (P,) from a component that may already be learned at this log alpha, because its threshold
        (start of the part of the curve with this index) is close.
        """
        x_error = np.zeros(self.problem.components)
        stage = self.stages[stage_index] if stage_index < len(self.stages) else None
        learned_components = (
            self.stages[stage_index - 1].learned_components if stage_index else []
        )
        if (
            stage is None
            or len(stage.learned_components) == len(learned_components)
            or len(stage.nodes) == 1
        ):
            return x_error
        first_node, second_node = stage.nodes[:2]
        component, log_alpha_change = (
            stage.new_components[0],
            second_node.log_alpha - first_node.log_alpha,
        )
        bifurcation = next(
            bifurcation
            for bifurcation in self.bifurcations
            if bifurcation.component == component
        )
        if bifurcation.alpha > 0 and log_alpha_change > 0:
            log_alpha_gap = np.log(bifurcation.alpha) - log_alpha
            x_error[component] = (
                max(0.0, bifurcation.error / bifurcation.alpha - log_alpha_gap)
                * (second_node.x - first_node.x)[component]
                / log_alpha_change
            )
        return x_error

    def _predict_below_curve(
        self, alpha: float, log_alpha: float, branch: str
    ) -> Prediction:
        """Predict the fixed point of a branch at a sample ratio alpha below the first solved point of the curve: Qhat is
        proportional to alpha, or 0.
        """
        qhat = np.zeros(self.problem.components)
        if not self.ratios.informative_components or not self.stages:
            possible_qhat = self.ratios.excess_qhat(self._unlearned_error(0, log_alpha))
            return self._build_prediction(alpha, qhat, [possible_qhat], branch)
        # far below the first node everything is proportional to alpha
        node = self.stages[0].nodes[0]
        qhat = self.ratios.qhat(node.x, self.stages[0].learned_components) * np.exp(
            log_alpha - node.log_alpha
        )
        return self._build_prediction(
            alpha, qhat, [qhat], branch, alpha * node.total_error
        )

    def _predict_beyond_curve(
        self, alpha: float, log_alpha: float, perfect_log_alpha: float, branch: str
    ) -> Prediction:
        """Predict the fixed point of a branch at a sample ratio alpha beyond the last solved point of the curve: Qhat grows as
        the inverse distance in log alpha to perfect recovery (``perfect_log_alpha``), beyond which recovery is perfect.
        """
        curves = self._traced_so_far().curves
        if not curves:
            zero_qhat = np.zeros(self.problem.components)
            return self._build_prediction(alpha, zero_qhat, [zero_qhat], branch)
        stage, node = curves[-1].stage, curves[-1].stage.nodes[-1]
        qhat = self.ratios.qhat(node.x, stage.learned_components)
        if perfect_log_alpha == np.inf or len(stage.learned_components) < len(qhat):
            # The curve ends at the resolution of numbers: the remaining error is uncertain by its own size.
            return self._build_prediction(alpha, qhat, [qhat * np.exp(1.0)], branch)
        remaining_share = (
            (perfect_log_alpha - log_alpha) / (perfect_log_alpha - node.log_alpha)
            if perfect_log_alpha > node.log_alpha
            else 0.0
        )
        if remaining_share <= 0:
            return perfect_prediction(self.problem, alpha, branch)
        return self._build_prediction(
            alpha,
            qhat / remaining_share,
            [qhat / remaining_share * np.exp(0.5)],
            branch,
        )

    def _build_prediction(
        self,
        alpha: float,
        qhat: Host,
        qhat_bounds: list[Host],
        branch: str,
        alpha_error: Host | float = 0.0,
    ) -> Prediction:
        """Build the prediction of a branch at sample ratio alpha and a diagonal Qhat (P,), which gives overlap Q and error V.
        The error of V follows from other values that Qhat may have (``qhat_bounds``); ``alpha_error`` is the error of alpha.
        """
        Q, V = self.ratios.overlap(qhat)
        V_changes = [
            np.abs(np.diagonal(self.ratios.overlap(qhat_bound)[1] - V))
            for qhat_bound in qhat_bounds
        ]
        V_error = np.max(V_changes, axis=0) + 1e-10 * np.diagonal(V)
        return Prediction(
            alpha,
            Q,
            V,
            V_error,
            branch,
            ", ".join(self.ratios.methods),
            alpha_error=alpha_error,
        )

    # -- competing branches -------------------------------------------------------------------------------------------

    def competing(self, alphas: Sequence[float]) -> list[list[Prediction]]:
        """Predict all competing fixed points at every sample ratio, the Bayes-optimal one first. The curve is traced up to the
        largest ratio below perfect recovery, if a rough look at its rest says that it does not come back there.
        """
        perfect_alpha = np.inf if self.perfect is None else self.perfect.value
        alphas_below = [alpha for alpha in alphas if alpha < perfect_alpha]
        if self.ratios.has_rough_information and perfect_alpha < np.inf:
            self.trace(until=max(alphas_below, default=1e-300))
        if self.is_finished or self._has_fold():
            return super().competing(alphas)
        is_alone = len(alphas_below) == len(alphas) and not comes_back(
            self, max(alphas)
        )
        if not (is_alone or self._rises()):
            return super().competing(alphas)
        return [
            [replace(prediction, branch="unique")]
            for prediction in self.predict(alphas)
        ]

    def hard_phase(self) -> HardPhase | None:
        """Hard phase; if a rough look at the curve beyond the learning of all components says that alpha rises, there is none."""
        if self.ratios.has_rough_information:
            while (
                not self.is_finished
                and len(self.bifurcations) < self.problem.components
            ):
                self.trace_next_node(self.stages[-1])
            if not self.is_finished and not self._has_fold() and self._rises():
                return None
        return super().hard_phase()

    def _rises(self) -> bool:
        """Whether alpha rises beyond what was traced at the first call, by a rough look, which is taken once."""
        if self._rest_rises is None:
            self._rest_rises = rises(self)
        return self._rest_rises

    def _is_beyond_rising_curve(self, alpha: float) -> bool:
        """Whether the curve ends below a sample ratio, by the rough look at its rest if there was one."""
        return (
            self._rest_rises is True
            and self.perfect is not None
            and alpha >= self.perfect.value
        )

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Turning points of alpha along the curve: the highest peak before a fall, and the lowest minimum after it; empty if
        alpha never decreases.
        """
        self.trace()
        if not self._has_fold():
            return []
        log_alpha = self._traced_so_far().log_alpha
        highest_so_far = np.maximum.accumulate(log_alpha)
        # Where alpha has fallen the curve has been there before; beyond the largest of these it is alone again.
        is_falling = log_alpha < highest_so_far
        is_falling = is_falling if is_falling.any() else log_alpha == highest_so_far[-1]
        peak, minimum = (
            self._threshold(highest_so_far[is_falling].max()),
            self._threshold(log_alpha[is_falling].min()),
        )
        return [TurningPoint(peak, True), TurningPoint(minimum, False)]

    def _has_fold(self) -> bool:
        """Whether alpha decreases somewhere along the curve, or from its highest value to perfect recovery, by more than its
        numerical error.
        """
        log_alpha, log_alpha_error = (
            self._traced_so_far().node_log_alpha,
            self._traced_so_far().node_error,
        )
        if not len(log_alpha):
            return False
        highest_so_far = np.maximum.accumulate(log_alpha)
        highest_index = np.maximum.accumulate(
            np.where(log_alpha == highest_so_far, np.arange(len(log_alpha)), 0)
        )
        if (
            highest_so_far - log_alpha
            > 1e-6 + 3 * np.hypot(log_alpha_error, log_alpha_error[highest_index])
        ).any():
            return True
        if (
            self.perfect is None or self.perfect.value == 0
        ):  # discrete signals stay known at any sample ratio
            return self.perfect is not None
        tolerance = 3 * np.hypot(
            log_alpha_error[highest_index[-1]], self.perfect.error / self.perfect.value
        )
        return bool(highest_so_far[-1] - np.log(self.perfect.value) > 1e-6 + tolerance)

    def is_same_prediction(self, uninformed: Prediction, informed: Prediction) -> bool:
        """Whether two predictions (``uninformed``, ``informed``) are the same fixed point within errors; nonzero MSE never
        counts as perfect recovery.
        """
        return uninformed.V.any() == informed.V.any() and super().is_same_prediction(
            uninformed, informed
        )

    def _threshold(self, log_alpha: float) -> Threshold:
        """Threshold at a value of log alpha, with the numerical error of log alpha at the solved point where it is nearest."""
        traced_curve, alpha = self._traced_so_far(), float(np.exp(log_alpha))
        return Threshold(
            alpha,
            alpha
            * float(
                traced_curve.node_error[
                    np.argmin(np.abs(traced_curve.node_log_alpha - log_alpha))
                ]
            ),
        )

    def segments(self) -> list[Segment]:
        """Complete curve on fine grids, one for each stage (part between two bifurcations)."""
        self.trace()
        return [self._segment(curve) for curve in self._traced_so_far().curves]

    def _segment(self, stage_curve: StageCurve) -> Segment:
        """Convert a stage (part of the curve between two bifurcations) to a segment (arrays of log alpha, Qhat and V along it)
        for the free entropy.
        """
        qhat = self.ratios.qhat(
            stage_curve.values[:, :-1], stage_curve.stage.learned_components
        )
        V = np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1)
        log_alpha_error = np.interp(
            stage_curve.position, stage_curve.node_positions, stage_curve.error
        )
        return Segment(
            stage_curve.position, stage_curve.values[:, -1], log_alpha_error, qhat, V
        )

    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem of P components, read from the bifurcations and turning points of the curve, or
        from the rough bifurcations of a costly one.
        """
        is_rough = self.is_costly and self.ratios.has_rough_information
        hard_phase = None if is_rough else self.hard_phase()
        bifurcations = rough_bifurcations(self) if is_rough else self.bifurcations
        P = self.problem.components
        sequential = [
            bifurcation
            for bifurcation in bifurcations
            if bifurcation.alpha > 0
            or self.ratios.prior_mean_overlap[bifurcation.component] == 0
        ]
        starts_without_overlap = bool(bifurcations) and bifurcations[0] in sequential
        weak_recovery = bifurcations[0].threshold if starts_without_overlap else None
        reasons = {
            "weak_recovery": PRIOR_OVERLAP
            if weak_recovery is None and bifurcations
            else NEVER
        }
        if len(bifurcations) < P:
            reasons["sequential"] = (
                f"{P - len(bifurcations)} of {P} components are not learned before the curve ends"
            )
        if is_rough:
            reasons |= dict.fromkeys(HARD_PHASE, NOT_COMPUTED)
        thresholds = thresholds_with_reasons(
            weak_recovery, self.perfect, sequential, hard_phase, reasons
        )
        if is_rough and len(bifurcations) < P:
            reason = f"{P - len(bifurcations)} of {P} components {NOT_COMPUTED}"
            thresholds.reasons["sequential"] = reason
        return thresholds


def fixed_point_curve(problem: Problem) -> FixedPointCurve | None:
    """Trace the curve of fixed points of a problem with decoupled components; None for coupled components."""
    return FixedPointCurve(problem) if components_decouple(problem) else None
