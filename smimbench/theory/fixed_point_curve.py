"""Reading a finished curve of fixed points: predictions with their errors, branches, folds, thresholds and free entropies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.numerics.memo import kept
from smimbench.theory.component_ratios import components_decouple
from smimbench.theory.continuation import Continuation
from smimbench.theory.curve import HELD, NEVER, Curve, threshold_document
from smimbench.theory.types import Bifurcation, HardPhase, Host, Prediction, Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem
    from smimbench.theory.curve_stages import Stage

__all__ = ["FixedPointCurve", "fixed_point_curve"]


class FixedPointCurve(Curve):
    """The curve of fixed points that starts at the prior mean, for components that decouple.

    Parameters
    ----------
    problem : Problem
        Its components must decouple, see ``components_decouple``.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.continuation = Continuation(problem)
        self.ratios = self.continuation.ratios
        self._read: dict[str, Any] = {}

    @property
    def bifurcations(self) -> list[Bifurcation]:
        """The components in the order in which they are learned, as far as the curve has been followed."""
        return self.continuation.bifurcations

    @property
    def perfect(self) -> Threshold | None:
        """Where an error of zero becomes stable."""
        return self.continuation.perfect

    # -- reading the curve --------------------------------------------------------------------------------------------

    def _dense(self) -> tuple[Host, Host, Host]:
        """The whole curve on a fine grid: number of the stage, length along it, log alpha."""
        size = sum(len(stage.nodes) for stage in self.continuation.stages)
        if self._read.get("size") != size:
            self._read = {"size": size, "dense": self._sampled_finely()}
        found: tuple[Host, Host, Host] = self._read["dense"]
        return found

    def _sampled_finely(self) -> tuple[Host, Host, Host]:
        parts = []
        for number, stage in enumerate(self.continuation.stages):
            if len(stage.nodes) < 2:
                continue
            s, _, _ = stage.arrays()
            fine = np.unique(np.concatenate([np.linspace(a, b, 17) for a, b in itertools.pairwise(s)]))
            parts.append((np.full(len(fine), number), fine, stage.interpolants()[0](fine)[:, -1]))
        if not parts:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        first, second, third = (np.concatenate([part[k] for part in parts]) for k in range(3))
        return first, second, third

    def predict(self, alphas: Sequence[float], branch: str = "uninformed") -> list[Prediction]:
        """The fixed point of one branch at every sample ratio; the informed one asks for the whole curve."""
        return [self._predict(float(alpha), branch) for alpha in alphas]

    def batches(self, alphas: Sequence[float]) -> list[list[float]]:
        """One at a time: each is read off."""
        return [[alpha] for alpha in alphas]

    def _predict(self, alpha: float, branch: str) -> Prediction:
        self.continuation.follow(until=alpha if branch == "uninformed" else None)
        P = self.problem.components
        number, s, log_alpha = self._dense()
        target = np.log(alpha)
        end = None if self.perfect is None or not self.continuation.finished else _log(self.perfect.value)
        if branch == "uninformed":
            above = np.flatnonzero(log_alpha >= target)
            k = int(above[0]) if len(above) else len(log_alpha)
        else:
            below = np.flatnonzero(log_alpha < target)
            k = int(below[-1]) + 1 if len(below) else 0
            if end is not None and target >= end:
                return self._pack(alpha, np.full(P, np.inf), np.zeros(P), branch)
        if k == 0:
            if self.ratios.informative and len(log_alpha):
                # far below the first node everything is proportional to alpha
                node = self.continuation.stages[0].nodes[0]
                qhat = self.ratios.qhat(node.x, self.continuation.stages[0].learned) * np.exp(target - node.log_alpha)
                return replace(self._pack(alpha, qhat, np.zeros(P), branch), alpha_error=alpha * node.total_error)
            return self._pack(alpha, np.zeros(P), self._unlearned_error(0, target), branch)
        if k == len(log_alpha):
            return self._beyond(alpha, target, end, branch)
        stage = self.continuation.stages[int(number[k])]
        smooth, cautious = stage.interpolants()
        if number[k - 1] == number[k] and (log_alpha[k - 1] - target) * (log_alpha[k] - target) <= 0:
            from scipy.optimize import brentq

            where = brentq(lambda t: float(smooth(t)[-1]) - target, s[k - 1], s[k], xtol=1e-13)
            slope = abs(float(smooth(where, 1)[-1]))
            shift = abs(float(cautious(where)[-1]) - target) / max(slope, 1e-3)
        else:  # between two stages, while a component waits for its own sample ratio
            where, shift = s[k], 0.0
        x = smooth(where)[:-1]
        spread = np.abs(x - cautious(where)[:-1]) + shift * np.abs(smooth(where, 1)[:-1])
        x_error, shift = self._errors(stage, where, spread)
        x_error = x_error + self._unlearned_error(int(number[k]) + 1, target)
        found = self._pack(alpha, self.ratios.qhat(x, stage.learned), x_error, branch, x, stage.learned)
        return replace(found, alpha_error=alpha * shift)

    def _errors(self, stage: Stage, where: float, spread: Host) -> tuple[Host, Host]:
        """Error of x at fixed alpha, and of the log alpha_a at fixed x, from the errors of the nodes and the interpolation."""
        s, _, _ = stage.arrays()
        k = int(np.clip(np.searchsorted(s, where), 1, len(s) - 1))
        share = np.clip((where - s[k - 1]) / (s[k] - s[k - 1]), 0, 1)
        one, two = stage.nodes[k - 1], stage.nodes[k]
        moving = stage.moving
        block = ((1 - share) * one.slope + share * two.slope)[np.ix_(moving, moving)]
        # Secants know the slope across the curve; along it all log alpha_a change as log alpha does.
        along = stage.interpolants()[0](where, 1)
        tangent = along[moving]
        block = block + np.outer(along[-1] - block @ tangent, tangent) / (tangent @ tangent)
        error = ((1 - share) * one.total_error + share * two.total_error)[moving]
        result, shift = np.zeros(len(one.x)), np.zeros(len(one.x))
        result[moving] = np.sqrt((np.linalg.pinv(block, rcond=1e-6) ** 2) @ error**2) + spread[moving]
        shift[moving] = error + np.abs(block) @ spread[moving]
        return np.minimum(result, 2.0), shift

    def _unlearned_error(self, number: int, target: float) -> Host:
        """A component that is about to be learned may be so already, within the error of its threshold."""
        result = np.zeros(self.problem.components)
        fresh = 0 < number < len(self.continuation.stages) and len(self.continuation.stages[number].learned) > len(
            self.continuation.stages[number - 1].learned
        )
        if (fresh or number == 0 < len(self.continuation.stages)) and len(self.continuation.stages[number].nodes) > 1:
            stage = self.continuation.stages[number]
            one, two = stage.nodes[:2]
            new = stage.new[0]
            start = next((b for b in self.bifurcations if b.component == new and b.alpha > 0), None)
            rise = two.log_alpha - one.log_alpha
            if start is not None and rise > 0:
                missing = np.log(start.alpha) - target
                result[new] = max(0.0, start.error / start.alpha - missing) * (two.x - one.x)[new] / rise
        return result

    def _beyond(self, alpha: float, target: float, end: float | None, branch: str) -> Prediction:
        P = self.problem.components
        if not self.continuation.stages or not len(self.continuation.stages[-1].nodes) > 1:
            return self._pack(alpha, np.zeros(P), np.zeros(P), branch)
        stage = self.continuation.stages[-1]
        node = stage.nodes[-1]
        qhat = self.ratios.qhat(node.x, stage.learned)
        if end is not None and len(stage.learned) == P:
            left = (end - target) / (end - node.log_alpha) if end > node.log_alpha else 0.0
            if left <= 0:
                return self._pack(alpha, np.full(P, np.inf), np.zeros(P), branch)
            return self._pack(alpha, qhat / left, np.full(P, 0.5), branch)
        # The curve ends where numbers do: the error that is left is as uncertain as it is small.
        return self._pack(alpha, qhat, np.where(np.isin(np.arange(P), stage.learned), 1.0, 0.0), branch)

    def _pack(
        self, alpha: float, qhat: Host, x_error: Host, branch: str, x: Host | None = None, learned: Sequence[int] = ()
    ) -> Prediction:
        P = len(qhat)
        if np.isinf(qhat).all():
            second = np.asarray(self.problem.prior.second_moment(P), dtype=float)
            return Prediction(float(alpha), second, np.zeros((P, P)), np.zeros(P), branch, "counting of equations")
        Q, V = self.ratios.overlap(qhat)
        error = np.zeros(P)
        if x is None:
            grown = self.ratios.overlap(qhat * np.exp(x_error) + self.ratios.gain(x_error) * (qhat == 0))[1]
            error = np.abs(np.diagonal(grown) - np.diagonal(V))
        else:
            widened = [*learned, *(a for a in range(P) if a not in learned and x_error[a] > 0)]
            for sign in (1.0, -1.0):
                moved = x + sign * x_error
                for a in widened:
                    if a not in self.ratios.informative:
                        moved[a] = max(moved[a], 0.0)
                    elif a not in learned:
                        moved[a] = x[a]
                other = np.diagonal(self.ratios.overlap(self.ratios.qhat(moved, widened))[1])
                error = np.maximum(error, np.abs(other - np.diagonal(V)))
        return Prediction(float(alpha), Q, V, error + 1e-10 * np.diagonal(V), branch, ", ".join(self.ratios.methods))

    # -- competing branches -------------------------------------------------------------------------------------------

    def folds(self) -> bool:
        """Whether alpha falls somewhere along the curve by more than its numerical error."""
        self.continuation.follow()
        highest, x_error = -np.inf, 0.0
        for stage in self.continuation.stages:
            for node in stage.nodes if len(stage.nodes) > 1 else []:
                error = float(np.sqrt((node.total_error[stage.moving] ** 2).mean()))
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
        """Whether two branches are two points: a nonzero error is never perfect recovery, however uncertain it is."""
        return low.V.any() != high.V.any() or super().compete(low, high)

    def _threshold(self, alpha: float) -> Threshold:
        """A sample ratio, with its error where the curve comes nearest to it."""
        nodes = [(n, stage.moving) for stage in self.continuation.stages if len(stage.nodes) > 1 for n in stage.nodes]
        if not nodes:
            return Threshold(alpha, 0.0)
        node, moving = min(nodes, key=lambda pair: abs(pair[0].log_alpha - np.log(alpha)))
        return Threshold(alpha, float(alpha * np.sqrt((node.total_error[moving] ** 2).mean())))

    def path(self) -> tuple[Host, Host, Host, Host]:
        """The curve for integrals along it: Qhat (n, P), V (n, P), log alpha (n,) and its error (n,)."""
        number, s, log_alpha = self._dense()
        if "path" in self._read:
            found: tuple[Host, Host, Host, Host] = self._read["path"]
            return found
        P = self.problem.components
        qhat, error = np.zeros((len(s), P)), np.zeros(len(s))
        for k in np.unique(number).astype(int):
            here = number == k
            stage = self.continuation.stages[k]
            qhat[here] = self.ratios.qhat(stage.interpolants()[0](s[here])[:, :-1], stage.learned)
            errors = [np.sqrt((node.total_error[stage.moving] ** 2).mean()) for node in stage.nodes]
            error[here] = np.interp(s[here], stage.arrays()[0], errors)
        V = np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1) if len(s) else np.zeros((0, P))
        self._read["path"] = qhat, V, log_alpha, error
        return qhat, V, log_alpha, error

    def free_entropy(self, prediction: Prediction) -> tuple[float, float]:
        """Free entropy of a point of the curve, less that of the prior mean, and its error; infinite for perfect recovery."""
        V_end = np.diagonal(prediction.V)
        if not V_end.any():
            return float("inf"), 0.0
        qhat, V, log_alpha, error = self.path()
        # V falls along the curve in every component: the sum orders its points.
        below = V.sum(1) > V_end.sum()
        count = len(below) if below.all() else int(np.argmin(below))
        spread = self.ratios.second - self.ratios.bottom
        path = np.vstack([qhat[:count]]), np.vstack([V[:count], V_end]), log_alpha[:count]
        value = free_entropy_along(*path, prediction.alpha, spread)
        return value, abs(
            free_entropy_along(path[0], path[1], path[2] + error[:count], prediction.alpha, spread) - value
        )

    def thresholds(self) -> dict[str, Any]:
        """All critical sample ratios, see ``threshold_document``."""
        self.continuation.follow_bifurcations()
        hard = self._hard_phase()
        found, bottom = self.bifurcations, self.ratios.bottom
        sequence = [b for b in found if b.alpha > 0 or bottom[b.component] == 0]
        sequential = [{"layer": b.component + 1, "value": b.alpha, "error": b.error} for b in sequence]
        weak = Threshold(found[0].alpha, found[0].error) if found and found[0] in sequence else None
        held = weak is None and bool(found)
        reasons = {"weak_recovery": HELD if held else NEVER}
        missing = self.problem.components - len(found)
        if missing:
            reasons["sequential"] = (
                f"{missing} of {self.problem.components} components are not learned before the curve ends"
            )
        return threshold_document(weak, self.perfect, sequential, hard, reasons)

    def _hard_phase(self) -> HardPhase | None:
        """Where the Bayes-optimal fixed point is better than what the uninformed branch reaches."""
        if not self.folds():
            return None
        log_alpha = self.path()[2]
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
    r"""Free entropy at the end of a curve of fixed points, less that of the prior mean where the curve begins.

    On the curve ``kappa I = Qhat / alpha(s)``, so that at another sample ratio the integrand is known without further work:
    ``(1/2) \int \sum_a Qhat_aa (alpha / alpha(s) - 1) dQ_aa``.

    Parameters
    ----------
    qhat : ndarray (n, P)
        Diagonal of Qhat along the curve.
    V : ndarray (n, P) or (n + 1, P)
        Diagonal of V along the curve; one more row is the end point itself, between two points of the curve.
    log_alpha : ndarray (n,)
        Sample ratio of which each point is a fixed point.
    alpha : float
    start : ndarray (P,)
        V at the prior mean.
    """
    if not len(qhat):
        return 0.0
    force = 0.5 * qhat * np.expm1(np.log(alpha) - log_alpha)[:, None]
    if len(V) > len(qhat):
        force = np.vstack([force, np.zeros_like(start)])  # the end point is a fixed point at this alpha
    head = 0.5 * force[0] * (start - V[0])
    return float(head.sum() + np.sum(0.5 * (force[1:] + force[:-1]) * (V[:-1] - V[1:])))


def fixed_point_curve(problem: Problem) -> FixedPointCurve | None:
    """The curve of a problem whose components decouple, computed once per problem; None if they mix."""
    return kept(
        problem, "fixed_point_curve", lambda: FixedPointCurve(problem) if components_decouple(problem) else None
    )


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf
