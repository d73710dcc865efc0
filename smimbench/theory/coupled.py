"""State evolution of several components that mix: the matrix-valued recursion, iterated with acceleration and swept
over the sample ratios, and its linear response.

The uninformed branch goes upwards in alpha from the prior mean, the informed one downwards from the signal, each time from
the last fixed point, with Anderson's acceleration. Components that do not mix are learned one after the other: see
``smimbench.theory.continuation``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.control_variates import controlled_mean
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.free_entropy import bayes_optimal_first, branches_meet, free_entropy_between
from smimbench.theory.information import diagonals, information_at, overlap_at, prior_moments
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.sampling import SCRAMBLES
from smimbench.theory.types import Host, Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem

__all__ = ["competing", "iterate", "linear_response", "sweep"]

SEED_OVERLAP = 1e-6
"""Qhat that is added to leave an unstable fixed point; doubled, thresholds are seen that much earlier."""
SAMPLED_SEED = 1e-2
"""The same where the information is sampled: below it is mostly noise."""
INFORMED = 1e8
"""Qhat at which the informed branch starts; doubled, the start is twice as close to the signal."""
NEARLY_PERFECT = 1e2
"""The same where an error of zero is unstable; doubled, branches with half the error are found, and some iterations more."""
MEMORY = 3
"""Steps that Anderson's acceleration remembers; doubled, it is faster on smooth maps and less robust on sampled ones."""
LONGEST_STEP = 3.0
"""Longest accelerated step in log Qhat; doubled, bad extrapolations go twice as far."""
NEARLY_KNOWN = 1e-6
"""Error below which perfect recovery is asked for; doubled, the walk to it ends a few steps earlier."""
SAME = 0.3
"""Distance in log Qhat, in errors of the information, within which two fixed points are one. Doubled: an iteration fewer."""
UNFINISHED = "iterations were not enough"
MOST_ITERATIONS = 60
"""Accelerated iterations per sample ratio; doubled, fewer points end with "were not enough"."""
WALK = 0.2
"""Shortest step in log Qhat on the way to perfect recovery; doubled, half the steps, and minima of the growth are seen later."""
CLOSE = 0.1
"""How near the growth must be to that of the linearisation, relatively; doubled, the walk ends a little earlier."""


def iterate(
    problem: Problem, alpha: float, branch: str = "uninformed", *, tolerance: float = 1e-9, max_iterations: int = 2000
) -> Prediction:
    """Iterate ``Qhat = kappa alpha I(Q)``, ``Q = overlap(Qhat)`` to its fixed point, without tricks.

    The uninformed branch starts at the prior mean plus a small overlap (so that an unstable fixed point is left), the
    informed one from a nearly perfect estimate. The error combines the last step, extrapolated with the observed rate of
    convergence, and the numerical error of the information.
    """
    P = problem.components
    start = SEED_OVERLAP if branch == "uninformed" else INFORMED
    Q, V = overlap_at(problem, start * np.eye(P))
    previous, rate = None, 0.0
    step = np.inf
    for _ in range(max_iterations):
        info = information_at(problem, Q, V)
        old, (Q, V) = Q, overlap_at(problem, problem.model.kappa * alpha * info.value)
        step = float(np.abs(Q - old).max())
        if previous:
            rate = min(step / previous, 0.999)
        previous = step
        if step <= tolerance:
            break
    relative = float(np.max(np.abs(info.error) / np.maximum(np.abs(info.value), 1e-300)))
    error = (step * rate + np.diagonal(V) * min(relative, 1.0)) / (1 - rate)
    method = info.method if step <= tolerance else f"{info.method}, {max_iterations} {UNFINISHED}"
    return Prediction(float(alpha), Q, V, np.asarray(error), branch, method)


def sweep(
    problem: Problem,
    alphas: Sequence[float],
    branch: str = "uninformed",
    other_branch: Sequence[tuple[Prediction, Host]] | None = None,
) -> list[tuple[Prediction, Host]]:
    """Fixed points of one branch with their Qhat (P, P), each found from the one before.

    Upwards in alpha for the uninformed branch, downwards for the informed one: a branch only moves away from the other
    end when alpha does, so the last fixed point is on the right side of the next one. The error of V is what the numerical
    error of the information does to it, through the response of V to alpha, plus what is left of the residual.

    ``other_branch`` is what the other sweep found: where this one arrives at the same fixed point it is not looked at again.
    """
    P = problem.components
    upwards = branch == "uninformed"
    order = sorted(range(len(alphas)), key=lambda k: alphas[k] if upwards else -alphas[k])
    kappa = float(problem.model.kappa)
    perfect = perfect_limit(problem)
    start = None if upwards else INFORMED * np.eye(P)
    solved: dict[int, tuple[Prediction, Host]] = {}
    seed = SEED_OVERLAP
    bottom = np.diagonal(prior_moments(problem)[1])
    for k in order:
        alpha = float(alphas[k])
        if start is None:
            information = information_at(problem, *overlap_at(problem, np.zeros((P, P))))
            start = kappa * alpha * information.value
            seed = SAMPLED_SEED if "Monte Carlo" in information.method else SEED_OVERLAP
        start = start + seed * np.eye(P)
        if not upwards and (perfect is None or alpha < perfect.value):
            # An error of zero is unstable here: it grows by the same factor a step, from where that is soon seen.
            start = np.asarray(spectral_function(start, lambda values: np.minimum(values, NEARLY_PERFECT)))
        there = None if other_branch is None else other_branch[k]
        target = None if there is None or UNFINISHED in there[0].method else symmetric_logarithm(there[1])
        qhat, relative, residual, method = _accelerated_iteration(problem, alpha, start, target=target)
        if (
            there is not None
            and target is not None
            and float(np.abs(symmetric_logarithm(qhat) - target).max()) < SAME * relative
        ):
            start = there[1]
            solved[k] = replace(there[0], branch=branch), start
            continue
        if upwards and perfect is not None and alpha > perfect.value:
            nearly = np.diagonal(overlap_at(problem, qhat)[1]).max() < NEARLY_KNOWN
            if nearly or UNFINISHED in method:
                start = _walk_up(problem, alpha, start, alpha / perfect.value)
                if start is None:
                    start = INFORMED**2 * np.eye(P)
                    solved[k] = _perfect(problem, Prediction(alpha, start, start, np.zeros(P), branch, "")), start
                    continue
                qhat, relative, residual, method = _accelerated_iteration(problem, alpha, start)
        # The response to alpha, from a second fixed point close by.
        shift = 0.01
        # A residual far below the shift is enough.
        beside = _accelerated_iteration(problem, alpha * (1 - shift if upwards else 1 + shift), qhat, 0.05 * shift)[0]
        Q, V = overlap_at(problem, qhat)
        other = overlap_at(problem, beside)[1]
        response = np.abs(np.diagonal(V - other)) / shift
        # The residual is one of log Qhat: what has hardly been learned cannot move V by more than that little.
        movable = np.minimum(np.diagonal(V), np.abs(np.diagonal(Q) - bottom))
        error = response * relative + movable * min(residual, 1.0) * 10
        ratio_error = np.full(P, alpha * (relative + min(residual, 1.0)))
        solved[k] = Prediction(alpha, Q, V, error + 1e-12, branch, method, alpha_error=ratio_error), qhat
        start = qhat
    return [solved[k] for k in range(len(alphas))]


def _walk_up(problem: Problem, alpha: float, start: Host, growth: float) -> Host | None:
    """Walk up from below the uninformed fixed point: None if that leads to perfect recovery, else Qhat just below it.

    The map is monotone: from below its lowest fixed point, Qhat grows in all directions until that point, where the growth
    vanishes. So the way is free where the growth stays positive, however small it is between. Close to perfect recovery
    Qhat grows by the factor ``growth`` of the linearisation, for ever.

    A pass of slow growth takes very many iterations; here each step is at least ``WALK`` long, and every minimum of the
    growth on the way is looked at closely.
    """
    from scipy.optimize import minimize_scalar

    def step_at(log: Host) -> Host:
        information = information_at(problem, *overlap_at(problem, _exponential(log)))
        return symmetric_logarithm(problem.model.kappa * alpha * information.value) - log

    def lowest(step: Host) -> float:
        return float(np.linalg.eigvalsh(step)[0])

    def growth_on_the_way(first: Host, last: Host, share: float) -> float:
        return lowest(step_at(first + share * (last - first)))

    x = symmetric_logarithm(start)
    step = step_at(x)
    path: list[tuple[Host, float]] = []
    while True:
        slowest = lowest(step)
        if not slowest > 0:
            return _exponential(path[-1][0] if path else x)
        path = [*path[-2:], (x, slowest)]
        if len(path) == 3 and path[1][1] < min(path[0][1], path[2][1]):
            first, last = path[0][0], path[2][0]
            found = minimize_scalar(partial(growth_on_the_way, first, last), bounds=(0, 1), method="bounded")
            if found.fun <= 0:
                return _exponential(first)
        fastest = float(np.linalg.eigvalsh(step)[-1])
        linear = max(abs(slowest / np.log(growth) - 1), abs(fastest / np.log(growth) - 1)) < CLOSE
        known = np.diagonal(overlap_at(problem, _exponential(x))[1]).max() < NEARLY_KNOWN
        if (linear and known) or np.diagonal(x).min() > 2 * np.log(INFORMED):
            return None
        x = x + step * max(1.0, WALK / fastest)
        step = step_at(x)


def _exponential(log: Host) -> Host:
    return np.asarray(spectral_function(log, lambda values: np.exp(np.minimum(values, 60.0))))


def _accelerated_iteration(
    problem: Problem, alpha: float, start: Host, enough: float = 1e-10, target: Host | None = None
) -> tuple[Host, float, float, str]:
    """Fixed point of ``Qhat -> kappa alpha I(overlap(Qhat))``: Qhat, relative error of I, residual, method.

    Anderson's acceleration in the matrix logarithm, where growth by a factor is a constant step. It ends early at the fixed point
    whose logarithm is ``target``.
    """
    kappa = float(problem.model.kappa)
    upper = np.triu_indices(len(start))

    def mapped(log: Host) -> tuple[Host, Any]:
        information = information_at(problem, *overlap_at(problem, _exponential(log)))
        return symmetric_logarithm(kappa * alpha * information.value), information

    x = symmetric_logarithm(start)
    points: list[Host] = []
    steps: list[Host] = []
    residual, best = np.inf, np.inf
    method = ""
    for _ in range(MOST_ITERATIONS):
        image, information = mapped(x)
        step, method = image - x, information.method
        residual = float(np.abs(step).max())
        value, error = diagonals(information)
        relative = float(np.max(error / np.maximum(value, 1e-300)))
        arrived = target is not None and float(np.abs(image - target).max()) < SAME * relative
        if arrived or residual <= max(enough, 0.02 * relative) or np.diagonal(x).min() > np.log(1e14):
            x = image
            break
        if residual > 2 * best:
            points, steps = [], []  # the history misleads
        best = min(best, residual)
        points, steps = [*points[-MEMORY:], x], [*steps[-MEMORY:], step]
        x = image
        if len(steps) > 1:
            changes = np.stack([(b - a)[upper] for a, b in itertools.pairwise(steps)], axis=-1)
            moves = np.stack([(b - a)[upper] for a, b in itertools.pairwise(points)], axis=-1)
            weights = np.linalg.lstsq(changes, step[upper], rcond=1e-8)[0]
            move = step[upper] - (moves + changes) @ weights
            if move @ step[upper] < 0:
                # Against the iteration itself: towards a fixed point that it moves away from.
                points, steps = [], []
                continue
            longest = float(np.abs(move).max())
            move = move * min(1.0, LONGEST_STEP / longest) if longest > 0 else move
            x = points[-1].copy()
            x[upper] += move
            x.T[upper] = x[upper]
    else:
        method += f", {MOST_ITERATIONS} {UNFINISHED}"
    return _exponential(x), relative, residual, method


def competing(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    """The fixed points of both sweeps for every sample ratio, the Bayes-optimal one first."""
    if not alphas:
        return []
    perfect = perfect_limit(problem)
    lower = sweep(problem, alphas, "uninformed")
    upper = sweep(problem, alphas, "informed", lower)
    result = []
    for (low, low_qhat), (high, high_qhat) in zip(lower, upper):
        if perfect is not None and high.alpha >= perfect.value:
            high = _perfect(problem, high)
        elif UNFINISHED in high.method and UNFINISHED not in low.method:
            # What was not reached in so many steps is no fixed point.
            result.append([replace(low, branch="unique", method=f"{low.method}, no other branch was found")])
            continue
        if branches_meet(problem, low, high):
            result.append([replace(low, branch="unique")])
        elif not high.V.any():
            result.append([replace(high, free_entropy=float("inf")), replace(low, free_entropy=0.0)])
        else:
            lead, _ = free_entropy_between(problem, low.alpha, low_qhat, high_qhat)
            result.append(bayes_optimal_first([replace(low, free_entropy=0.0), replace(high, free_entropy=lead)]))
    return result


def _perfect(problem: Problem, prediction: Prediction) -> Prediction:
    P = problem.components
    return replace(
        prediction,
        Q=prior_moments(problem)[0],
        V=np.zeros((P, P)),
        error=np.zeros(P),
        alpha_error=np.zeros(P),
        method="counting of equations",
    )


def linear_response(problem: Problem, Q: Host, V: Host) -> tuple[Host, Host]:
    r"""The linearised state evolution ``dI_ab / dQ_cd = E \sum_{kl} G_{ak,cl} G_{bk,dl}`` (P, P, P, P) and its error.

    ``G = V^{-1} (E[z z^T | y] - V) V^{-1}`` at a prior mean that says nothing (``E[z | y] = 0``), by sampled labels.
    """
    channel, sites, P = problem.channel, problem.model.sites, problem.components
    root, inverse = np.linalg.cholesky(V), np.linalg.inv(V)
    points = 2**10
    samples, controls = [], []
    for scramble in range(SCRAMBLES):
        z = root @ normal_points(P * sites, points, "perfect recovery: latents", scramble).reshape(points, P, sites)
        rng = monte_carlo_rng("perfect recovery: labels", scramble)
        y = channel.forward(z, rng=rng)
        found = channel.posterior(y, np.zeros_like(z), V, second_moment=True, rng=rng)
        moment: Any = checked_posterior(found, z, second_moment=True).second_moment
        G: Any = np.einsum("pq,nqcrd,rs->npcsd", inverse, moment, inverse)
        for c in range(sites):
            G[:, :, c, :, c] -= inverse
        samples.append(np.einsum("nakcl,nbkdl->nabcd", G, G).reshape(points, -1))
        controls.append(np.einsum("npcqc->npq", G).reshape(points, -1))
    value, error = controlled_mean(samples, controls)
    return value.reshape(P, P, P, P), error.reshape(P, P, P, P)
