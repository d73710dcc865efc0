"""State evolution of several coupled components: the matrix recursion at each sample ratio, and its linear response.

The uninformed branch is iterated from the prior mean, the informed one from the signal, with Anderson's acceleration, at every
sample ratio by itself. Components that do not mix are learned one after the other: see ``smimbench.theory.continuation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from smimbench.derive.sampled_information import SCRAMBLES
from smimbench.interfaces import Array, Host
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.numerics.statistics import controlled_mean
from smimbench.problem.problem import Problem
from smimbench.theory.curve import (
    NEVER,
    PRIOR_OVERLAP,
    Curve,
    bayes_optimal_first,
    perfect_prediction,
    thresholds_with_reasons,
)
from smimbench.theory.information import (
    information_at,
    is_sampled,
    overlap_at,
    overlap_error_at,
    prior_moments,
)
from smimbench.theory.recursion import (
    UNFINISHED,
    FixedPoint,
    Recursion,
    exponential,
    is_same_fixed_point,
)
from smimbench.theory.types import NOTHING, HardPhase, Prediction, Threshold, Thresholds

INFORMED, KNOWN_QHAT = 1e2, 1e16
"""Qhat at which the informed branch starts, for an error of zero that is unstable grows by the same factor a step; and that of a
known signal. Doubled, the start is twice as close to the signal, and the walk to it is longer."""
NEARLY_KNOWN = 1e-6
"""Error below which perfect recovery is asked for; doubled, the walk to it ends a few steps earlier."""
WALK = 0.2
"""Shortest step in log Qhat on the way to perfect recovery; doubled, half the steps, and minima of the growth are seen later."""
PROBES = (0.5, 0.8, 0.97)
"""Shares of the perfect-recovery threshold at which a hard phase is looked for; more find shorter ones."""


class SolvedFixedPoint(NamedTuple):
    """Prediction together with the fixed point from which it was computed."""

    prediction: Prediction
    fixed_point: FixedPoint


class CoupledCurve(Curve):
    """Fixed points of coupled components, solved at every sample ratio separately."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.identity = np.eye(problem.components)

    @cached_property
    def _from_prior_mean(self) -> tuple[Host, float]:
        """Information at the prior mean, and an initial Qhat, perturbed if the prior mean is an unstable fixed point."""
        information = information_at(
            self.problem, *overlap_at(self.problem, 0 * self.identity)
        )
        return information.value, 1e-2 if is_sampled(
            information.method
        ) else 1e-6  # less would be lost in noise

    def predict(
        self, alphas: Sequence[float], branch: str = "uninformed"
    ) -> list[Prediction]:
        """Solve for the fixed point of one branch at every sample ratio."""
        return [self.solve(alpha, branch).prediction for alpha in alphas]

    def competing(self, alphas: Sequence[float]) -> list[list[Prediction]]:
        """Solve for the fixed points of both branches at every sample ratio, the Bayes-optimal one first."""
        return [self._competing(alpha) for alpha in alphas]

    def _competing(self, alpha: float) -> list[Prediction]:
        lower = self.solve(alpha)
        (low, low_point), (high, high_point) = (
            lower,
            self.solve(alpha, "informed", lower),
        )
        if UNFINISHED in high.method and UNFINISHED not in low.method:
            # What was not reached in so many steps is no fixed point.
            return [
                replace(
                    low,
                    branch="unique",
                    method=f"{low.method}, no other branch was found",
                )
            ]
        if self.meet(low, high):
            return [replace(low, branch="unique")]
        if not high.V.any():
            return [
                replace(high, free_entropy=float("inf")),
                replace(low, free_entropy=0.0),
            ]
        lead, _ = free_entropy_between(
            self.problem, alpha, low_point.qhat, high_point.qhat
        )
        return bayes_optimal_first(
            [replace(low, free_entropy=0.0), replace(high, free_entropy=lead)]
        )

    def solve(
        self,
        alpha: float,
        branch: str = "uninformed",
        other_branch: SolvedFixedPoint | None = None,
    ) -> SolvedFixedPoint:
        """Solve for the fixed point of one branch at one sample ratio.

        The error of V is what the numerical error of the information does to it, through the response of V to alpha, plus what
        is left of the residual. ``other`` is the other branch: where this one arrives at the same fixed point it is not looked
        at again. Perfect recovery is stable above its threshold: the informed branch is not looked for there.
        """
        problem, perfect, upwards = self.problem, self.perfect, branch == "uninformed"
        if upwards:
            information, seed = self._from_prior_mean
            start = (
                float(problem.model.kappa) * alpha * information + seed * self.identity
            )
        elif perfect is not None and alpha >= perfect.value:
            return _perfect(problem, alpha, branch)
        else:
            start = INFORMED * self.identity
        recursion = Recursion(problem, alpha)
        if other_branch is None or UNFINISHED in other_branch.prediction.method:
            solution = recursion.fixed_point(start)
        else:
            target = other_branch.fixed_point
            solution = recursion.fixed_point(start, target=target, offset=target.offset)
            if is_same_fixed_point(
                target, symmetric_logarithm(solution.qhat), solution.relative
            ):
                return SolvedFixedPoint(
                    replace(other_branch.prediction, branch=branch), target
                )
        if upwards and perfect is not None and alpha > perfect.value:
            nearly = (
                np.diagonal(overlap_at(problem, solution.qhat)[1]).max() < NEARLY_KNOWN
            )
            if (
                nearly and perfect.value == 0
            ):  # a discrete signal: what is nearly known is stable
                return _perfect(problem, alpha, branch)
            if nearly or UNFINISHED in solution.method:
                below = _walk_up(
                    problem, alpha, start, alpha / max(perfect.value, alpha / 1e3)
                )
                if below is None:
                    return _perfect(problem, alpha, branch)
                solution = recursion.fixed_point(below, offset=solution.offset)
        return SolvedFixedPoint(_prediction(problem, alpha, solution, branch), solution)

    def thresholds(self) -> Thresholds:
        """Critical sample ratios of the problem; a hard phase is searched for at a few sample ratios."""
        problem, perfect = self.problem, self.perfect
        prior_mean_overlap = prior_moments(problem)[1]
        Q, V = overlap_at(problem, 0 * self.identity)
        value, error, _ = information_at(problem, Q, V)
        weak = hard = None
        if not prior_mean_overlap.any():
            informative = (np.diagonal(value) > NOTHING + 3 * np.max(error)).any()
            weak = (
                Threshold(0.0, 0.0) if informative else self._spectral_threshold(Q, V)
            )
        reasons = {
            "weak_recovery": PRIOR_OVERLAP if prior_mean_overlap.any() else NEVER,
            "sequential": "components mix, so they are not learned one after the other",
        }
        if perfect is not None and perfect.value > 0:
            probes = [share * perfect.value for share in PROBES]
            ahead = [
                len(branches) > 1 and branches[0].branch == "informed"
                for branches in self.competing(probes)
            ]
            if any(ahead):
                index = ahead.index(True)
                start = Threshold(
                    probes[index], probes[index] - (probes[index - 1] if index else 0.0)
                )
                hard = HardPhase(start, start, perfect)
            looked = ", ".join(f"{probe:.4g}" for probe in probes)
            missing = f"not found at alpha = {looked}, the only sample ratios that are tested where components mix"
            reasons |= dict.fromkeys(
                ("spinodal", "information_theoretic", "algorithmic"), missing
            )
        return thresholds_with_reasons(weak, perfect, [], hard, reasons)

    def _spectral_threshold(self, Q: Host, V: Host) -> Threshold | None:
        r"""Weak-recovery threshold, the sample ratio where the prior mean becomes unstable.

        There ``dQ -> E \sum_{cc'} G_cc' dQ G_cc'^T`` has the eigenvalue 1.
        """
        value, error = linear_response(self.problem, Q, V)
        P, kappa = len(Q), float(self.problem.model.kappa)
        eigenvalues, vectors = np.linalg.eig(value.reshape(P * P, P * P))
        leading = int(np.argmax(eigenvalues.real))
        rate = kappa * float(eigenvalues[leading].real)
        if not rate > 0:
            return None
        weights = np.abs(vectors[:, leading])
        return Threshold(
            1 / rate,
            kappa * float(weights @ error.reshape(P * P, P * P) @ weights) / rate**2,
        )


def _prediction(
    problem: Problem, alpha: float, solution: FixedPoint, branch: str
) -> Prediction:
    """Prediction at a fixed point, with its error from the response to a small change of alpha."""
    size = 0.01 if solution.offset is None else 0.05  # rough values may jump by 1e-3
    shift = size if branch == "uninformed" else -size
    # A residual far below the shift is enough.
    nearby = Recursion(problem, alpha * (1 - shift)).nearby(solution, 0.05 * size)
    Q, V = overlap_at(problem, solution.qhat)
    V_nearby = overlap_at(problem, nearby)[1]
    response = np.abs(np.diagonal(V - V_nearby)) / size * solution.relative
    # Where labels see one combination only, errors of the information feign another, which the sample ratio does not move.
    feigned = overlap_at(
        problem, solution.qhat + solution.relative * np.diag(np.diagonal(solution.qhat))
    )[1]
    response = np.maximum(response, np.abs(np.diagonal(V - feigned)))
    # The residual is one of log Qhat: what has hardly been learned cannot move V by more than that little.
    movable = np.minimum(
        np.diagonal(V), np.abs(np.diagonal(Q - prior_moments(problem)[1]))
    )
    residual = min(solution.residual, 1.0)
    error = (
        response
        + movable * residual * 10
        + overlap_error_at(problem, solution.qhat) * np.diagonal(V)
    )
    ratio_error = np.full(len(V), alpha * (solution.relative + residual))
    return Prediction(
        alpha, Q, V, error + 1e-12, branch, solution.method, alpha_error=ratio_error
    )


def _walk_up(problem: Problem, alpha: float, start: Host, growth: float) -> Host | None:
    """Iterate upwards to the uninformed fixed point; return Qhat just below it, or None at perfect recovery.

    The map is monotone: from below its lowest fixed point, Qhat grows in all directions until that point, where the growth
    vanishes. So the way is free where the growth stays positive, however small it is between. Close to perfect recovery
    Qhat grows by the factor ``growth`` of the linearization, for ever.

    A pass of slow growth takes very many iterations; here each step is at least ``WALK`` long, and every minimum of the
    growth on the way is looked at closely.
    """
    from scipy.optimize import minimize_scalar

    step_at = Recursion(problem, alpha).step

    def growth_on_the_way(share: float, start_log: Host, end_log: Host) -> float:
        return float(
            np.linalg.eigvalsh(step_at(start_log + share * (end_log - start_log)))[0]
        )

    x = symmetric_logarithm(start)
    path: list[tuple[Host, float]] = []
    while True:
        step = step_at(x)
        slowest, *_, fastest = np.linalg.eigvalsh(step).tolist()
        if not slowest > 0:
            return exponential(path[-1][0] if path else x)
        path = [*path[-2:], (x, slowest)]
        if len(path) == 3 and path[1][1] < min(path[0][1], path[2][1]):
            ends = path[0][0], path[2][0]
            if (
                minimize_scalar(
                    growth_on_the_way, args=ends, bounds=(0, 1), method="bounded"
                ).fun
                <= 0
            ):
                return exponential(ends[0])
        linear = (
            max(abs(slowest / np.log(growth) - 1), abs(fastest / np.log(growth) - 1))
            < 0.1
        )
        is_known = (
            np.diagonal(overlap_at(problem, exponential(x))[1]).max() < NEARLY_KNOWN
        )
        if (linear and is_known) or np.diagonal(x).min() > np.log(KNOWN_QHAT):
            return None
        x = x + step * max(1.0, WALK / fastest)


def _perfect(problem: Problem, alpha: float, branch: str) -> SolvedFixedPoint:
    prediction = perfect_prediction(problem, alpha, branch)
    return SolvedFixedPoint(
        prediction,
        FixedPoint(
            KNOWN_QHAT * np.eye(problem.components), 0.0, 0.0, prediction.method
        ),
    )


def linear_response(problem: Problem, Q: Host, V: Host) -> tuple[Host, Host]:
    r"""The linearized state evolution ``dI_ab / dQ_cd = E \sum_{kl} G_{ak,cl} G_{bk,dl}`` (P, P, P, P) and its error.

    ``G = V^{-1} (E[z z^T | y] - V) V^{-1}`` at a prior mean that says nothing (``E[z | y] = 0``), by sampled labels.
    """
    channel, sites, P = problem.channel, problem.model.sites, problem.components
    root, inverse = np.linalg.cholesky(V), np.linalg.inv(V)
    points = 2**10
    samples, controls = [], []
    for scramble in range(SCRAMBLES):
        z = root @ normal_points(
            P * sites, points, "perfect recovery: latents", scramble
        ).reshape(points, P, sites)
        rng = monte_carlo_rng("perfect recovery: labels", scramble)
        y = channel.forward(z, rng=rng)
        posterior = channel.posterior(
            y, np.zeros_like(z), V, second_moment=True, rng=rng
        )
        moment: Array = checked_posterior(
            posterior, z, second_moment=True
        ).second_moment
        G: Array = np.einsum("pq,nqcrd,rs->npcsd", inverse, moment, inverse)
        G[:, :, range(sites), :, range(sites)] -= inverse
        samples.append(np.einsum("nakcl,nbkdl->nabcd", G, G).reshape(points, -1))
        controls.append(np.einsum("npcqc->npq", G).reshape(points, -1))
    value, error = controlled_mean(samples, controls)
    return value.reshape(P, P, P, P), error.reshape(P, P, P, P)


def free_entropy_between(
    problem: Problem, alpha: float, start_qhat: Host, end_qhat: Host
) -> tuple[float, float]:
    """Free-entropy difference between two values of Qhat (P, P), end minus start, and its error.

    The path goes straight in ``log(1 + Qhat)``; 12 Gauss-Legendre nodes.
    """
    kappa, step = float(problem.model.kappa), 1e-4
    nodes, weights = gauss_legendre(12, 0.0, 1.0)
    start, end = (
        spectral_function(matrix, np.log1p) for matrix in (start_qhat, end_qhat)
    )
    # Every node, and its neighbors on both sides for the slope of the path.
    t = (nodes + step * np.array([[-1.0], [0.0], [1.0]]))[..., None, None]
    qhat = np.asarray(spectral_function((1 - t) * start + t * end, np.expm1))
    Q, V = overlap_at(problem, qhat)
    change = (V[0] - V[2]) / (2 * step)
    value, error, _ = information_at(problem, Q[1], V[1])
    force = (kappa * alpha * value - qhat[1]) * change
    uncertain = kappa * alpha * np.sum(error * np.abs(change), axis=(1, 2))
    total = 0.5 * float(weights @ np.sum(force, axis=(1, 2)))
    return total, 0.5 * float(np.sqrt(np.sum((weights * uncertain) ** 2)))
