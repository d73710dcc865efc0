"""State evolution of several coupled components: the matrix recursion at each sample ratio, and its linear response.

The uninformed branch is iterated from the prior mean, the informed one from the signal, with Anderson's acceleration in log
Qhat, at every sample ratio by itself. Where a channel that samples its information offers rough values, the way is found with
those, and few of the accurate ones correct it: the difference of the two logarithms hardly depends on the overlap. It is added
to the rough map, whose fixed point is then found again, until the accurate map agrees there. Components that do not mix are
learned one after the other: see ``smimbench.theory.continuation``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from smimbench.derive.sampled_information import SCRAMBLES
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.numerics.random_numbers import monte_carlo_rng, normal_points
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
    diagonals,
    information_at,
    is_sampled,
    offers_rough,
    overlap_at,
    overlap_error_at,
    prior_moments,
)
from smimbench.theory.types import NOTHING, HardPhase, Prediction, Threshold, Thresholds

UNFINISHED = "iterations were not enough"
BELOW_RESOLUTION = "information below resolution"
MOST_ITERATIONS = 60
"""Accelerated iterations per sample ratio; doubled, fewer points end with "were not enough"."""
SOLVED = 0.02
"""Residual that is left, in errors of the information; doubled, an iteration fewer, and twice its part in the stated error."""
KNOWN_LOG_QHAT = np.log(1e14)
"""Log Qhat from which on the signal counts as known; doubled, one iteration more."""
MOST_CORRECTIONS = 6
"""Accurate values that a fixed point may take on the way of rough ones; doubled, no change where differences vary slowly."""
INFORMED, KNOWN_QHAT = 1e2, 1e16
"""Qhat at which the informed branch starts, for an error of zero that is unstable grows by the same factor a step; and that of a
known signal. Doubled, the start is twice as close to the signal, and the walk to it is longer."""
NEARLY_KNOWN = 1e-6
"""Error below which perfect recovery is asked for; doubled, the walk to it ends a few steps earlier."""
WALK = 0.2
"""Shortest step in log Qhat on the way to perfect recovery; doubled, half the steps, and minima of the growth are seen later."""
PROBES = (0.5, 0.8, 0.97)
"""Shares of the perfect-recovery threshold at which a hard phase is looked for; more find shorter ones."""


class FixedPoint(NamedTuple):
    """Fixed point of matrix state evolution, with its residual and numerical error.

    Attributes
    ----------
    qhat : ndarray (P, P)
    relative : float
        Relative error of the information there.
    residual : float
        What is left of a step, see ``distance``.
    method : str
        How the information was obtained; it says so where iterations were not enough.
    offset : ndarray (P, P) or None
        Logarithm of the accurate information less that of the rough one; None where there are no rough values.
    """

    qhat: Host
    relative: float
    residual: float
    method: str
    offset: Host | None = None


def exponential(log: Host) -> Host:
    """Matrix exponential (P, P) of a symmetric matrix; eigenvalues of log are cut at 60."""
    return np.asarray(
        spectral_function(log, lambda values: np.exp(np.minimum(values, 60.0)))
    )


class Recursion:
    """State-evolution map ``log Qhat -> log(kappa alpha I(overlap(Qhat)))`` at one sample ratio.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample ratio.
    """

    def __init__(self, problem: Problem, alpha: float) -> None:
        self.problem, self.alpha = problem, alpha
        self.has_rough = offers_rough(problem)
        self.second = np.diagonal(prior_moments(problem)[0])

    def image(self, log: Host, *, rough: bool = False) -> tuple[Host, Uncertain]:
        """Image (P, P) of log Qhat under the map, and the information there; ``rough`` for finite differences only."""
        information = information_at(
            self.problem, *overlap_at(self.problem, exponential(log)), rough=rough
        )
        return symmetric_logarithm(
            self.problem.model.kappa * self.alpha * information.value
        ), information

    def step(self, log: Host) -> Host:
        """Change of log Qhat in one iteration of the rough map, if its eigenvalues are clearly positive."""
        if self.has_rough:
            image, information = self.image(log, rough=True)
            if float(np.linalg.eigvalsh(image - log)[0]) > 5 * _relative(information):
                return image - log
        return self.image(log)[0] - log

    def fixed_point(
        self,
        start: Host,
        enough: float = 1e-10,
        target: FixedPoint | None = None,
        offset: Host | None = None,
    ) -> FixedPoint:
        """Iterate from Qhat = ``start`` (P, P) to a fixed point.

        Parameters
        ----------
        enough : float
            Residual that need not be made smaller.
        target : FixedPoint, optional
            A fixed point that is known: iterations end early where they come to it.
        offset : ndarray (P, P), optional
            That of a fixed point nearby, to begin with.
        """
        if not self.has_rough:
            return self._iterated(start, enough, target)
        return self._corrected(start, enough, target, offset)

    def nearby(self, fixed_point: FixedPoint, enough: float) -> Host:
        """Find the Qhat of a fixed point, starting from a known one at another sample ratio."""
        relative = None if fixed_point.offset is None else fixed_point.relative
        return self._iterated(
            fixed_point.qhat, enough, None, fixed_point.offset, relative
        ).qhat

    def _corrected(
        self, start: Host, enough: float, target: FixedPoint | None, offset: Host | None
    ) -> FixedPoint:
        offset = np.zeros_like(start) if offset is None else offset
        relative = None if target is None else target.relative
        qhat, previous_gap = start, np.inf
        best: FixedPoint | None = None
        for _ in range(MOST_CORRECTIONS):
            solution = self._iterated(qhat, enough, target, offset, relative)
            solution = solution._replace(offset=offset)
            log = symmetric_logarithm(solution.qhat)
            if UNFINISHED in solution.method or (
                target is not None
                and is_same_fixed_point(target, log, solution.relative)
            ):
                return solution
            image, information = self.image(log)
            relative, residual = (
                _relative(information),
                distance(solution.qhat, exponential(image)),
            )
            solution = solution._replace(
                relative=relative, residual=residual, method=information.method
            )
            if np.diagonal(log).min() > KNOWN_LOG_QHAT:
                return solution
            if best is None or residual < best.residual:
                best = solution
            offset, qhat = image - self.image(log, rough=True)[0], solution.qhat
            remaining = residual * max(0.1, min(residual / previous_gap, 1.0))
            if min(remaining, residual) <= max(enough, SOLVED * relative):
                final = self._iterated(qhat, enough, None, offset, relative)
                return FixedPoint(
                    final.qhat,
                    relative,
                    max(remaining, final.residual),
                    information.method,
                    offset,
                )
            previous_gap = residual
        assert best is not None
        if (
            best.residual <= best.relative
        ):  # where values jump, nothing closer can be found
            return best
        return best._replace(method=f"{best.method}, {MOST_CORRECTIONS} {UNFINISHED}")

    def _iterated(
        self,
        start: Host,
        enough: float,
        target: FixedPoint | None,
        offset: Host | None = None,
        stated: float | None = None,
    ) -> FixedPoint:
        """Anderson acceleration in the matrix logarithm, where growth by a factor is a constant step.

        With an ``offset`` from rough values, corrected by it; ``stated`` is their relative error.
        """
        upper = np.triu_indices(len(start))
        x = symmetric_logarithm(start)
        points: list[Host] = []
        steps: list[Host] = []
        residual, best = np.inf, np.inf
        method = ""
        for count in range(MOST_ITERATIONS):
            unknown_shares = (
                np.diagonal(overlap_at(self.problem, exponential(x))[1]) / self.second
            )
            if not (unknown_shares > 1e-200).all():
                relative, residual, method = 1.0, 1.0, method or BELOW_RESOLUTION
                break
            image, information = self.image(x, rough=offset is not None)
            image = image if offset is None else image + offset
            relative, method = (
                _relative(information) if stated is None else stated,
                information.method,
            )
            if not relative < 0.5 and (unknown_shares < 1e-3).all():
                relative, residual, method = 1.0, 1.0, f"{method}, {BELOW_RESOLUTION}"
                break
            step = image - x
            residual = distance(exponential(x), exponential(image))
            arrived = target is not None and is_same_fixed_point(
                target, image, relative
            )
            # Sampled values may jump: after a while a residual below their error is enough.
            smallest_residual = (
                relative if offset is not None and count >= 12 else SOLVED * relative
            )
            if (
                arrived
                or residual <= max(enough, smallest_residual)
                or np.diagonal(x).min() > KNOWN_LOG_QHAT
            ):
                x = image
                break
            if residual > 2 * best:
                points, steps = [], []  # the history misleads
            best = min(best, residual)
            points, steps = [*points[-3:], x], [*steps[-3:], step]
            x = image
            if len(steps) > 1:
                changes = np.stack(
                    [(b - a)[upper] for a, b in itertools.pairwise(steps)], axis=-1
                )
                moves = np.stack(
                    [(b - a)[upper] for a, b in itertools.pairwise(points)], axis=-1
                )
                weights = np.linalg.lstsq(changes, step[upper], rcond=1e-8)[0]
                move = step[upper] - (moves + changes) @ weights
                if move @ step[upper] < 0:
                    # Against the iteration itself: towards a fixed point that it moves away from.
                    points, steps = [], []
                    continue
                longest = float(np.abs(move).max())
                move = move * min(1.0, 3.0 / longest) if longest > 0 else move
                x = points[-1].copy()
                x[upper] += move
                x.T[upper] = x[upper]
        else:
            method += f", {MOST_ITERATIONS} {UNFINISHED}"
        return FixedPoint(exponential(x), relative, residual, method)


def _relative(information: Uncertain) -> float:
    value, error = diagonals(information)
    return float(np.max(error / np.maximum(value, 1e-300)))


def is_same_fixed_point(target: FixedPoint, log: Host, relative: float) -> bool:
    """Whether log Qhat (P, P) equals that of a fixed point, within the ``relative`` error of the information."""
    return distance(target.qhat, exponential(log)) < 0.3 * relative


def distance(qhat: Host, other_qhat: Host) -> float:
    """Largest entry of the difference of two Qhat (P, P) in units of the diagonal of the first.

    The logarithms may differ by more: those of eigenvalues that are lost in the noise of the others.
    """
    scale = np.sqrt(np.diagonal(qhat))
    return float(np.abs((other_qhat - qhat) / np.outer(scale, scale)).max())


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
