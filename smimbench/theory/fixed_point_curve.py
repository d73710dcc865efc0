"""Reads predictions with errors, branches, folds, thresholds and free entropies from a finished curve of fixed points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Host
from smimbench.numerics.memo import kept
from smimbench.problem.problem import Problem
from smimbench.theory.component_ratios import components_decouple
from smimbench.theory.continuation import Continuation
from smimbench.theory.curve import HELD, NEVER, Curve, branch_ends, perfect_prediction, threshold_document
from smimbench.theory.curve_stages import Stage, lengths
from smimbench.theory.types import HardPhase, Prediction, Threshold


class FixedPointCurve(Continuation, Curve):
    """The curve of fixed points that starts at the prior mean, for components that decouple."""

    # -- reading the curve --------------------------------------------------------------------------------------------

    def _dense(self) -> Host:
        """The whole curve on a fine grid (3, n): number of the stage, length along it, log alpha."""
        return kept(self, "dense", self._sampled_finely, sum(len(stage.nodes) for stage in self.stages))

    def _sampled_finely(self) -> Host:
        parts = [np.zeros((3, 0))]
        for number, stage in enumerate(self.stages):
            if len(stage.nodes) > 1:
                s = lengths(stage.nodes)
                fine = np.unique(np.linspace(s[:-1], s[1:], 17))
                parts.append(np.array([np.full(len(fine), number), fine, stage.interpolants()[0](fine)[:, -1]]))
        return np.hstack(parts)

    def predict(self, alphas: Sequence[float], branch: str = "uninformed") -> list[Prediction]:
        """The fixed point of one branch at every sample ratio; the informed branch needs the whole curve."""
        return [self._predict(float(alpha), branch) for alpha in alphas]

    def batches(self, alphas: Sequence[float]) -> list[list[float]]:
        """Sample ratios one at a time, since each is read from the finished curve."""
        return [[alpha] for alpha in alphas]

    def _predict(self, alpha: float, branch: str) -> Prediction:
        self.follow(until=alpha if branch == "uninformed" else None)
        number, s, log_alpha = self._dense()
        target = np.log(alpha)
        end = np.inf
        if self.finished and self.perfect is not None:
            end = np.log(self.perfect.value) if self.perfect.value > 0 else -np.inf
        if branch == "informed" and target >= end:
            return perfect_prediction(self.problem, alpha, branch)
        k = int(branch_ends(log_alpha, np.array([target]), branch)[0])
        if k == 0:
            return self._below(alpha, target, branch)
        if k == len(log_alpha):
            return self._beyond(alpha, target, end, branch)
        stage = self.stages[int(number[k])]
        smooth, cautious = stage.interpolants()
        where, shift = s[k], 0.0
        if number[k - 1] == number[k]:  # else between two stages, while a component waits for its own sample ratio
            from scipy.optimize import brentq

            where = brentq(lambda t: float(smooth(t)[-1]) - target, s[k - 1], s[k], xtol=1e-13)
            slope = abs(float(smooth(where, 1)[-1]))
            shift = abs(float(cautious(where)[-1]) - target) / max(slope, 1e-3)
        x, along = smooth(where)[:-1], smooth(where, 1)
        spread = np.abs(x - cautious(where)[:-1]) + shift * np.abs(along[:-1])
        x_error, ratio_error = self._errors(stage, where, spread, along)
        x_error = x_error + self._unlearned_error(int(number[k]) + 1, target)
        widened = [*stage.learned, *(a for a in range(len(x)) if a not in stage.learned and x_error[a] > 0)]
        free = [a not in self.ratios.informative for a in range(len(x))]
        ends = []
        for sign in (1.0, -1.0):
            moved = x + sign * x_error
            ends.append(self.ratios.qhat(np.where(free, np.maximum(moved, 0.0), moved), widened))
        return self._pack(alpha, self.ratios.qhat(x, stage.learned), ends, branch, alpha * ratio_error)

    def _errors(self, stage: Stage, where: float, spread: Host, along: Host) -> tuple[Host, Host]:
        """Error of x at fixed alpha, and of log alpha_a at fixed x, from errors of nodes and interpolation."""
        s, moving = lengths(stage.nodes), stage.moving
        k = int(np.clip(np.searchsorted(s, where), 1, len(s) - 1))
        share = np.clip((where - s[k - 1]) / (s[k] - s[k - 1]), 0, 1)
        one, two = stage.nodes[k - 1], stage.nodes[k]
        block = ((1 - share) * one.slope + share * two.slope)[np.ix_(moving, moving)]
        # Secants know the slope across the curve; along it all log alpha_a change as log alpha does.
        tangent = along[moving]
        block = block + np.outer(along[-1] - block @ tangent, tangent) / (tangent @ tangent)
        error = ((1 - share) * one.total_error + share * two.total_error)[moving]
        result, shift = np.zeros(len(one.x)), np.zeros(len(one.x))
        result[moving] = np.sqrt((np.linalg.pinv(block, rcond=1e-6) ** 2) @ error**2) + spread[moving]
        shift[moving] = error + np.abs(block) @ spread[moving]
        return np.minimum(result, 2.0), shift

    def _unlearned_error(self, number: int, target: float) -> Host:
        """Error from a component that may already be learned, within the error of its threshold."""
        result = np.zeros(self.problem.components)
        before = len(self.stages[number - 1].learned) if number else 0
        for stage in self.stages[number : number + 1]:
            if len(stage.learned) > before and len(stage.nodes) > 1:
                one, two = stage.nodes[:2]
                new, rise = stage.new[0], two.log_alpha - one.log_alpha
                start = next(b for b in self.bifurcations if b.component == new)
                if start.alpha > 0 and rise > 0:
                    missing = np.log(start.alpha) - target
                    result[new] = max(0.0, start.error / start.alpha - missing) * (two.x - one.x)[new] / rise
        return result

    def _below(self, alpha: float, target: float, branch: str) -> Prediction:
        """Prediction for sample ratios below the first node."""
        qhat = np.zeros(self.problem.components)
        if not self.ratios.informative or not self.stages:
            grown = self.ratios.gain(self._unlearned_error(0, target))
            return self._pack(alpha, qhat, [grown], branch)
        # far below the first node everything is proportional to alpha
        node = self.stages[0].nodes[0]
        qhat = self.ratios.qhat(node.x, self.stages[0].learned) * np.exp(target - node.log_alpha)
        return self._pack(alpha, qhat, [qhat], branch, alpha * node.total_error)

    def _beyond(self, alpha: float, target: float, end: float, branch: str) -> Prediction:
        """Prediction for sample ratios beyond the last node."""
        grown = [stage for stage in self.stages if len(stage.nodes) > 1]
        if not grown:
            nothing = np.zeros(self.problem.components)
            return self._pack(alpha, nothing, [nothing], branch)
        stage, node = grown[-1], grown[-1].nodes[-1]
        qhat = self.ratios.qhat(node.x, stage.learned)
        if end == np.inf or len(stage.learned) < len(qhat):
            # The curve ends where numbers do: the error that is left is as uncertain as it is small.
            return self._pack(alpha, qhat, [qhat * np.exp(1.0)], branch)
        left = (end - target) / (end - node.log_alpha) if end > node.log_alpha else 0.0
        if left <= 0:
            return perfect_prediction(self.problem, alpha, branch)
        return self._pack(alpha, qhat / left, [qhat / left * np.exp(0.5)], branch)

    def _pack(
        self, alpha: float, qhat: Host, ends: list[Host], branch: str, alpha_error: Host | float = 0.0
    ) -> Prediction:
        """The prediction at Qhat; its error is the change of V between Qhat and the ``ends`` of its interval."""
        Q, V = self.ratios.overlap(qhat)
        errors = [np.abs(np.diagonal(self.ratios.overlap(end)[1] - V)) for end in ends]
        error = np.max(errors, axis=0) + 1e-10 * np.diagonal(V)
        return Prediction(alpha, Q, V, error, branch, ", ".join(self.ratios.methods), alpha_error=alpha_error)

    # -- competing branches -------------------------------------------------------------------------------------------

    def folds(self) -> bool:
        """Whether alpha decreases somewhere along the curve by more than its numerical error."""
        self.follow()
        highest, x_error = -np.inf, 0.0
        for stage in self.stages:
            for node in stage.nodes if len(stage.nodes) > 1 else []:
                error = stage.mean_error(node)
                if highest - node.log_alpha > 1e-6 + 3 * np.hypot(error, x_error):
                    return True
                if node.log_alpha > highest:
                    highest, x_error = node.log_alpha, error
        if self.perfect is None:
            return False
        if self.perfect.value == 0:  # discrete signals stay known at any sample ratio
            return bool(np.isfinite(highest))
        error = 3 * float(np.hypot(x_error, self.perfect.error / self.perfect.value))
        return highest - float(np.log(self.perfect.value)) > 1e-6 + error

    def compete(self, low: Prediction, high: Prediction) -> bool:
        """Whether two branches have different fixed points; a nonzero error never counts as perfect recovery."""
        return low.V.any() != high.V.any() or super().compete(low, high)

    def _threshold(self, alpha: float) -> Threshold:
        """A threshold, with its error from the point where the curve comes nearest to it."""
        nodes = [(node, stage) for stage in self.stages if len(stage.nodes) > 1 for node in stage.nodes]
        node, stage = min(nodes, key=lambda pair: abs(pair[0].log_alpha - np.log(alpha)))
        return Threshold(alpha, alpha * stage.mean_error(node))

    def path(self) -> tuple[Host, Host, Host]:
        """Points for integrals along the curve: Qhat (n, P), V (n, P) and the error of log alpha (n,)."""
        number, s, _ = self._dense()
        qhat, error = np.zeros((len(s), self.problem.components)), np.zeros(len(s))
        for k in np.unique(number).astype(int):
            here, stage = number == k, self.stages[k]
            qhat[here] = self.ratios.qhat(stage.interpolants()[0](s[here])[:, :-1], stage.learned)
            error[here] = np.interp(s[here], lengths(stage.nodes), [stage.mean_error(node) for node in stage.nodes])
        return qhat, np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1), error

    def free_entropy(self, prediction: Prediction) -> tuple[float, float]:
        """Free entropy of a point of the curve minus that of the prior mean, and its error; infinite at perfect recovery."""
        V_end = np.diagonal(prediction.V)
        if not V_end.any():
            return float("inf"), 0.0
        log_alpha = self._dense()[2]
        qhat, V, error = kept(self, "path", self.path, len(log_alpha))
        # V falls along the curve in every component: the sum orders its points.
        below = V.sum(1) > V_end.sum()
        count = len(below) if below.all() else int(np.argmin(below))
        start, V = self.ratios.second - self.ratios.bottom, np.vstack([V[:count], V_end])
        value, moved = (
            free_entropy_along(qhat[:count], V, ratios[:count], prediction.alpha, start)
            for ratios in (log_alpha, log_alpha + error)
        )
        return value, abs(moved - value)

    def thresholds(self) -> JsonObject:
        """All critical sample ratios, see ``threshold_document``."""
        self.follow_bifurcations()
        hard = self._hard_phase()
        found, bottom = self.bifurcations, self.ratios.bottom
        sequence = [b for b in found if b.alpha > 0 or bottom[b.component] == 0]
        sequential = [{"layer": b.component + 1, "value": b.alpha, "error": b.error} for b in sequence]
        weak = Threshold(found[0].alpha, found[0].error) if found and found[0] in sequence else None
        reasons = {"weak_recovery": HELD if weak is None and found else NEVER}
        P = self.problem.components
        if len(found) < P:
            missing = f"{P - len(found)} of {P} components are not learned before the curve ends"
            reasons["sequential"] = missing
        return threshold_document(weak, self.perfect, sequential, hard, reasons)

    def _hard_phase(self) -> HardPhase | None:
        """Range of sample ratios where the Bayes-optimal fixed point is better than the uninformed branch."""
        if not self.folds():
            return None
        log_alpha = self._dense()[2]
        highest = np.maximum.accumulate(log_alpha)
        # Where alpha has fallen the curve has been there before; beyond the largest of these it is alone again.
        fallen = log_alpha < highest
        fallen = fallen if fallen.any() else log_alpha == highest[-1]
        low, top = (self._threshold(float(np.exp(v))) for v in (log_alpha[fallen].min(), highest[fallen].max()))
        if self.perfect is not None and self.perfect.value < low.value:
            low = self.perfect
        optimal = self.transition(low, top.value)
        return None if optimal is None else HardPhase(low, optimal, top)


def free_entropy_along(qhat: Host, V: Host, log_alpha: Host, alpha: float, start: Host) -> float:
    r"""Free entropy at the end of a curve of fixed points minus that at its start, the prior mean.

    On the curve ``kappa I = Qhat / alpha(s)``, so that at another sample ratio the integrand is known without further work:
    ``(1/2) \int \sum_a Qhat_aa (alpha / alpha(s) - 1) dQ_aa``.

    Parameters
    ----------
    qhat : ndarray (n, P)
        Diagonal of Qhat along the curve.
    V : ndarray (n + 1, P)
        Diagonal of V along the curve, and at the end point, which is a fixed point at ``alpha``.
    log_alpha : ndarray (n,)
        Sample ratio of which each point is a fixed point.
    alpha : float
    start : ndarray (P,)
        V at the prior mean.
    """
    if not len(qhat):
        return 0.0
    force = 0.5 * qhat * np.expm1(np.log(alpha) - log_alpha)[:, None]
    head = 0.5 * force[0] * (start - V[0])
    force = np.vstack([force, np.zeros_like(start)])
    return float(head.sum() + np.sum(0.5 * (force[1:] + force[:-1]) * (V[:-1] - V[1:])))


def fixed_point_curve(problem: Problem) -> FixedPointCurve | None:
    """The curve of a problem whose components decouple, computed once per problem; None for coupled components."""
    return kept(
        problem, "fixed_point_curve", lambda: FixedPointCurve(problem) if components_decouple(problem) else None
    )
