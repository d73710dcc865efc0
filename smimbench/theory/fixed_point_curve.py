"""Predictions, errors, branches, folds and thresholds, read from a traced curve of fixed points."""

from __future__ import annotations

from collections.abc import Sequence
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
    branch_ends,
    perfect_prediction,
    thresholds_with_reasons,
)
from smimbench.theory.tracing import Stage, components_decouple, lengths
from smimbench.theory.types import Prediction, Threshold, Thresholds


class StageCurve:
    """Stage of a traced curve with its interpolants, sampled on a fine grid.

    Attributes
    ----------
    stage : Stage
    lengths : ndarray (k,)
        Positions of its nodes along the curve.
    log_alpha, error : ndarray (k,)
        At the nodes.
    smooth, cautious : callable
        See ``Stage.interpolants``.
    position : ndarray (n,)
        The fine grid.
    values : ndarray (n, P + 1)
        Coordinates and log alpha there.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage, self.lengths = stage, lengths(stage.nodes)
        self.log_alpha = np.array([node.log_alpha for node in stage.nodes])
        self.error = np.array([stage.mean_error(node) for node in stage.nodes])
        self.smooth, self.cautious = stage.interpolants()
        self.position = np.unique(np.linspace(self.lengths[:-1], self.lengths[1:], 17))
        self.values = self.smooth(self.position)

    def crossing(
        self, log_alpha: float, start: float, end: float
    ) -> tuple[float, float]:
        """Position in an interval where the curve crosses a value of log alpha, and its interpolation error."""
        from scipy.optimize import brentq

        position = brentq(
            lambda t: float(self.smooth(t)[-1]) - log_alpha, start, end, xtol=1e-13
        )
        slope = abs(float(self.smooth(position, 1)[-1]))
        return position, abs(float(self.cautious(position)[-1]) - log_alpha) / max(
            slope, 1e-3
        )


class Followed:
    """Curve as traced so far, sampled on a fine grid.

    Attributes
    ----------
    curves : list of StageCurve
    number, position, log_alpha : ndarray (n,)
        The fine grids of all in a row: index of the curve, length along it, log alpha.
    nodes, error : ndarray (k,)
        Log alpha of all nodes, and its error.
    """

    def __init__(self, count: int, curves: list[StageCurve]) -> None:
        self.count, self.curves = count, curves
        numbers = [
            np.full(len(curve.position), number) for number, curve in enumerate(curves)
        ]
        grids = [
            [number, curve.position, curve.values[:, -1]]
            for number, curve in zip(numbers, curves)
        ]
        self.number, self.position, self.log_alpha = np.hstack(
            [np.zeros((3, 0)), *grids]
        )
        self.nodes, self.error = np.hstack(
            [np.zeros((2, 0)), *([curve.log_alpha, curve.error] for curve in curves)]
        )


class FixedPointCurve(Continuation, Curve):
    """Curve of fixed points that starts at the prior mean, for components that decouple."""

    _read: Followed | None = None

    # -- reading the curve --------------------------------------------------------------------------------------------

    def _followed(self) -> Followed:
        """Curve as far as it has been traced."""
        count = sum(len(stage.nodes) for stage in self.stages)
        if self._read is None or self._read.count != count:
            self._read = Followed(
                count,
                [StageCurve(stage) for stage in self.stages if len(stage.nodes) > 1],
            )
        return self._read

    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Predict the fixed point of one branch at every sample ratio; the informed branch needs the complete curve."""
        return [self._predict(float(alpha), branch) for alpha in alphas]

    def batches(self, alphas: Sequence[float]) -> list[list[float]]:
        """Groups of one sample ratio each, because each is read from the traced curve."""
        return [[alpha] for alpha in alphas]

    def _predict(self, alpha: float, branch: str) -> Prediction:
        self.follow(until=alpha if branch == "uninformed" else None)
        followed = self._followed()
        target, end = np.log(alpha), np.inf
        if self.finished and self.perfect is not None:
            end = np.log(self.perfect.value) if self.perfect.value > 0 else -np.inf
        if branch == "informed" and target >= end:
            return perfect_prediction(self.problem, alpha, branch)
        k = int(branch_ends(followed.log_alpha, np.array([target]), branch)[0])
        if k == 0:
            return self._below(alpha, target, branch)
        if k == len(followed.log_alpha):
            return self._beyond(alpha, target, end, branch)
        curve = followed.curves[int(followed.number[k])]
        position, shift = followed.position[k], 0.0
        # Between two stages a component waits for its own sample ratio.
        if followed.number[k - 1] == followed.number[k]:
            position, shift = curve.crossing(target, followed.position[k - 1], position)
        x, along = curve.smooth(position)[:-1], curve.smooth(position, 1)
        stage = curve.stage
        spread = np.abs(x - curve.cautious(position)[:-1]) + shift * np.abs(along[:-1])
        x_error, ratio_error = self._errors(curve, position, spread, along)
        x_error = x_error + self._unlearned_error(self.stages.index(stage) + 1, target)
        widened = [
            *stage.learned,
            *(a for a in range(len(x)) if a not in stage.learned and x_error[a] > 0),
        ]
        free = [a not in self.ratios.informative for a in range(len(x))]
        ends = []
        for moved in (x + x_error, x - x_error):
            ends.append(
                self.ratios.qhat(np.where(free, np.maximum(moved, 0.0), moved), widened)
            )
        return self._build_prediction(
            alpha, self.ratios.qhat(x, stage.learned), ends, branch, alpha * ratio_error
        )

    def _errors(
        self, curve: StageCurve, position: float, spread: Host, along: Host
    ) -> tuple[Host, Host]:
        """Numerical errors of x at fixed alpha and of log alpha_a at fixed x, from nodes and interpolation."""
        s, moving = curve.lengths, curve.stage.moving
        k = int(np.clip(np.searchsorted(s, position), 1, len(s) - 1))
        share = np.clip((position - s[k - 1]) / (s[k] - s[k - 1]), 0, 1)
        previous, following = curve.stage.nodes[k - 1], curve.stage.nodes[k]
        block = ((1 - share) * previous.slope + share * following.slope)[
            np.ix_(moving, moving)
        ]
        # Secants know the slope across the curve; along it all log alpha_a change as log alpha does.
        tangent = along[moving]
        block = block + np.outer(along[-1] - block @ tangent, tangent) / (
            tangent @ tangent
        )
        error = ((1 - share) * previous.total_error + share * following.total_error)[
            moving
        ]
        x_error, ratio_error = np.zeros((2, len(previous.x)))
        x_error[moving] = (
            np.sqrt((np.linalg.pinv(block, rcond=1e-6) ** 2) @ error**2)
            + spread[moving]
        )
        ratio_error[moving] = error + np.abs(block) @ spread[moving]
        return np.minimum(x_error, 2.0), ratio_error

    def _unlearned_error(self, number: int, target: float) -> Host:
        """Error from a component whose threshold is so close that it may already be learned."""
        x_error = np.zeros(self.problem.components)
        stage = self.stages[number] if number < len(self.stages) else None
        learned = self.stages[number - 1].learned if number else []
        if stage is None or len(stage.learned) == len(learned) or len(stage.nodes) == 1:
            return x_error
        previous, following = stage.nodes[:2]
        component, rise = (
            stage.new_components[0],
            following.log_alpha - previous.log_alpha,
        )
        start = next(b for b in self.bifurcations if b.component == component)
        if start.alpha > 0 and rise > 0:
            missing = np.log(start.alpha) - target
            x_error[component] = (
                max(0.0, start.error / start.alpha - missing)
                * (following.x - previous.x)[component]
                / rise
            )
        return x_error

    def _below(self, alpha: float, target: float, branch: str) -> Prediction:
        """Prediction at a sample ratio below the first node of the curve."""
        qhat = np.zeros(self.problem.components)
        if not self.ratios.informative or not self.stages:
            grown = self.ratios.gain(self._unlearned_error(0, target))
            return self._build_prediction(alpha, qhat, [grown], branch)
        # far below the first node everything is proportional to alpha
        node = self.stages[0].nodes[0]
        qhat = self.ratios.qhat(node.x, self.stages[0].learned) * np.exp(
            target - node.log_alpha
        )
        return self._build_prediction(
            alpha, qhat, [qhat], branch, alpha * node.total_error
        )

    def _beyond(
        self, alpha: float, target: float, end: float, branch: str
    ) -> Prediction:
        """Prediction at a sample ratio beyond the last node of the curve."""
        curves = self._followed().curves
        if not curves:
            nothing = np.zeros(self.problem.components)
            return self._build_prediction(alpha, nothing, [nothing], branch)
        stage, node = curves[-1].stage, curves[-1].stage.nodes[-1]
        qhat = self.ratios.qhat(node.x, stage.learned)
        if end == np.inf or len(stage.learned) < len(qhat):
            # The curve ends where numbers do: the error that is left is as uncertain as it is small.
            return self._build_prediction(alpha, qhat, [qhat * np.exp(1.0)], branch)
        remaining = (
            (end - target) / (end - node.log_alpha) if end > node.log_alpha else 0.0
        )
        if remaining <= 0:
            return perfect_prediction(self.problem, alpha, branch)
        return self._build_prediction(
            alpha, qhat / remaining, [qhat / remaining * np.exp(0.5)], branch
        )

    def _build_prediction(
        self,
        alpha: float,
        qhat: Host,
        ends: list[Host],
        branch: str,
        alpha_error: Host | float = 0.0,
    ) -> Prediction:
        """Prediction at Qhat, with the error of V from the ends of the uncertainty interval of Qhat."""
        Q, V = self.ratios.overlap(qhat)
        errors = [np.abs(np.diagonal(self.ratios.overlap(end)[1] - V)) for end in ends]
        error = np.max(errors, axis=0) + 1e-10 * np.diagonal(V)
        return Prediction(
            alpha,
            Q,
            V,
            error,
            branch,
            ", ".join(self.ratios.methods),
            alpha_error=alpha_error,
        )

    # -- competing branches -------------------------------------------------------------------------------------------

    @cached_property
    def turning_points(self) -> list[TurningPoint]:
        """Turning points: the largest alpha from which the curve falls, and the smallest to which it falls."""
        self.follow()
        if not self._folds():
            return []
        log_alpha = self._followed().log_alpha
        highest = np.maximum.accumulate(log_alpha)
        # Where alpha has fallen the curve has been there before; beyond the largest of these it is alone again.
        fallen = log_alpha < highest
        fallen = fallen if fallen.any() else log_alpha == highest[-1]
        top, low = (
            self._threshold(highest[fallen].max()),
            self._threshold(log_alpha[fallen].min()),
        )
        return [TurningPoint(top, True), TurningPoint(low, False)]

    def _folds(self) -> bool:
        """Whether alpha decreases somewhere along the curve by more than its numerical error."""
        nodes, error = self._followed().nodes, self._followed().error
        if not len(nodes):
            return False
        highest = np.maximum.accumulate(nodes)
        record = np.maximum.accumulate(
            np.where(nodes == highest, np.arange(len(nodes)), 0)
        )
        if (highest - nodes > 1e-6 + 3 * np.hypot(error, error[record])).any():
            return True
        if (
            self.perfect is None or self.perfect.value == 0
        ):  # discrete signals stay known at any sample ratio
            return self.perfect is not None
        uncertain = 3 * np.hypot(
            error[record[-1]], self.perfect.error / self.perfect.value
        )
        return bool(highest[-1] - np.log(self.perfect.value) > 1e-6 + uncertain)

    def meet(self, low: Prediction, high: Prediction) -> bool:
        """Whether two predictions are the same fixed point; nonzero MSE never counts as perfect recovery."""
        return low.V.any() == high.V.any() and super().meet(low, high)

    def _threshold(self, log_alpha: float) -> Threshold:
        """Threshold at a value of log alpha, with its error from the nearest node of the curve."""
        followed, alpha = self._followed(), float(np.exp(log_alpha))
        return Threshold(
            alpha,
            alpha
            * float(followed.error[np.argmin(np.abs(followed.nodes - log_alpha))]),
        )

    def segments(self) -> list[Segment]:
        """Complete curve on fine grids, one for each stage."""
        self.follow()
        return [self._segment(curve) for curve in self._followed().curves]

    def _segment(self, curve: StageCurve) -> Segment:
        qhat = self.ratios.qhat(curve.values[:, :-1], curve.stage.learned)
        V = np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1)
        error = np.interp(curve.position, curve.lengths, curve.error)
        return Segment(curve.position, curve.values[:, -1], error, qhat, V)

    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem."""
        hard = self.hard_phase()
        learned, P = self.bifurcations, self.problem.components
        sequential = [
            b
            for b in learned
            if b.alpha > 0 or self.ratios.prior_mean_overlap[b.component] == 0
        ]
        is_weak = bool(learned) and learned[0] in sequential
        weak = learned[0].threshold if is_weak else None
        reasons = {
            "weak_recovery": PRIOR_OVERLAP if weak is None and learned else NEVER
        }
        if len(learned) < P:
            reasons["sequential"] = (
                f"{P - len(learned)} of {P} components are not learned before the curve ends"
            )
        return thresholds_with_reasons(weak, self.perfect, sequential, hard, reasons)


def fixed_point_curve(problem: Problem) -> FixedPointCurve | None:
    """Trace the curve of fixed points of a problem with decoupled components; None for coupled components."""
    return FixedPointCurve(problem) if components_decouple(problem) else None
