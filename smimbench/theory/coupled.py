"""State evolution of several components that mix: the matrix-valued recursion, swept over the sample ratios, and its
linear response.

The uninformed branch goes upwards in alpha from the prior mean, the informed one downwards from the signal, each time from
the last fixed point, with Anderson's acceleration. Components that do not mix are learned one after the other: see
``smimbench.theory.continuation``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive.sampled_information import SCRAMBLES
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.control_variates import controlled_mean
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.free_entropy import bayes_optimal_first, branches_meet, free_entropy_between
from smimbench.theory.information import information_at, overlap_at, overlap_error_at, prior_moments
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.recursion import UNFINISHED, FixedPoint, Recursion, at, exponential
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
FASTEST = 1e3
"""Largest growth of Qhat that is followed towards perfect recovery; discrete signals have none. Doubled, nothing changes."""
NEARLY_KNOWN = 1e-6
"""Error below which perfect recovery is asked for; doubled, the walk to it ends a few steps earlier."""
SHIFT = 0.01
"""Relative distance of the second sample ratio that shows the response; doubled, it is known better, and less locally."""
ROUGH_SHIFT = 0.05
"""The same where it is found with rough values, which may jump by 1e-3."""
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


class Solved(NamedTuple):
    """A point of theory, and the fixed point that it was read off."""

    prediction: Prediction
    found: FixedPoint


def sweep(
    problem: Problem, alphas: Sequence[float], branch: str = "uninformed", other_branch: Sequence[Solved] | None = None
) -> list[Solved]:
    """Fixed points of one branch, each found from the one before.

    Upwards in alpha for the uninformed branch, downwards for the informed one: a branch only moves away from the other
    end when alpha does, so the last fixed point is on the right side of the next one. The error of V is what the numerical
    error of the information does to it, through the response of V to alpha, plus what is left of the residual.

    ``other_branch`` is what the other sweep found: where this one arrives at the same fixed point it is not looked at again.
    Perfect recovery is stable above its threshold: the informed branch is not looked for there.
    """
    P = problem.components
    upwards = branch == "uninformed"
    order = sorted(range(len(alphas)), key=lambda k: alphas[k] if upwards else -alphas[k])
    kappa = float(problem.model.kappa)
    perfect = perfect_limit(problem)
    start, offset = None if upwards else INFORMED * np.eye(P), None
    solved: dict[int, Solved] = {}
    seed = SEED_OVERLAP
    bottom = np.diagonal(prior_moments(problem)[1])
    for k in order:
        alpha = float(alphas[k])
        recursion = Recursion(problem, alpha)
        if not upwards and perfect is not None and alpha >= perfect.value:
            solved[k] = _perfect(problem, alpha, branch)
            start = solved[k].found.qhat
            continue
        if start is None:
            information = information_at(problem, *overlap_at(problem, np.zeros((P, P))))
            start = kappa * alpha * information.value
            seed = SAMPLED_SEED if "Monte Carlo" in information.method else SEED_OVERLAP
        start = start + seed * np.eye(P)
        if not upwards and (perfect is None or alpha < perfect.value):
            # An error of zero is unstable here: it grows by the same factor a step, from where that is soon seen.
            start = np.asarray(spectral_function(start, lambda values: np.minimum(values, NEARLY_PERFECT)))
        there = None if other_branch is None else other_branch[k]
        target = None if there is None or UNFINISHED in there.prediction.method else there.found
        found = recursion.fixed_point(start, target=target, offset=offset if target is None else target.offset)
        if there is not None and target is not None and at(target, symmetric_logarithm(found.qhat), found.relative):
            start = target.qhat
            solved[k] = Solved(replace(there.prediction, branch=branch), target)
            continue
        if upwards and perfect is not None and alpha > perfect.value:
            nearly = np.diagonal(overlap_at(problem, found.qhat)[1]).max() < NEARLY_KNOWN
            if nearly and perfect.value == 0:  # a discrete signal: what is nearly known is stable
                solved[k] = _perfect(problem, alpha, branch)
                start = solved[k].found.qhat
                continue
            if nearly or UNFINISHED in found.method:
                start = _walk_up(problem, alpha, start, alpha / max(perfect.value, alpha / FASTEST))
                if start is None:
                    solved[k] = _perfect(problem, alpha, branch)
                    start = solved[k].found.qhat
                    continue
                found = recursion.fixed_point(start, offset=offset)
        solved[k] = Solved(_prediction(problem, alpha, found, branch, bottom), found)
        start, offset = found.qhat, found.offset
    return [solved[k] for k in range(len(alphas))]


def _prediction(problem: Problem, alpha: float, found: FixedPoint, branch: str, bottom: Host) -> Prediction:
    """What a fixed point says, and how well: by the response to alpha, from a second fixed point close by."""
    size = SHIFT if found.offset is None else ROUGH_SHIFT
    shift = size if branch == "uninformed" else -size
    # A residual far below the shift is enough.
    beside = Recursion(problem, alpha * (1 - shift)).nearby(found, 0.05 * size)
    Q, V = overlap_at(problem, found.qhat)
    other = overlap_at(problem, beside)[1]
    response = np.abs(np.diagonal(V - other)) / size
    # The residual is one of log Qhat: what has hardly been learned cannot move V by more than that little.
    movable = np.minimum(np.diagonal(V), np.abs(np.diagonal(Q) - bottom))
    left = min(found.residual, 1.0)
    error = response * found.relative + movable * left * 10 + overlap_error_at(problem, found.qhat) * np.diagonal(V)
    ratio_error = np.full(len(V), alpha * (found.relative + left))
    return Prediction(alpha, Q, V, error + 1e-12, branch, found.method, alpha_error=ratio_error)


def _walk_up(problem: Problem, alpha: float, start: Host, growth: float) -> Host | None:
    """Walk up from below the uninformed fixed point: None if that leads to perfect recovery, else Qhat just below it.

    The map is monotone: from below its lowest fixed point, Qhat grows in all directions until that point, where the growth
    vanishes. So the way is free where the growth stays positive, however small it is between. Close to perfect recovery
    Qhat grows by the factor ``growth`` of the linearisation, for ever.

    A pass of slow growth takes very many iterations; here each step is at least ``WALK`` long, and every minimum of the
    growth on the way is looked at closely.
    """
    from scipy.optimize import minimize_scalar

    step_at = Recursion(problem, alpha).step

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
            return exponential(path[-1][0] if path else x)
        path = [*path[-2:], (x, slowest)]
        if len(path) == 3 and path[1][1] < min(path[0][1], path[2][1]):
            first, last = path[0][0], path[2][0]
            found = minimize_scalar(partial(growth_on_the_way, first, last), bounds=(0, 1), method="bounded")
            if found.fun <= 0:
                return exponential(first)
        fastest = float(np.linalg.eigvalsh(step)[-1])
        linear = max(abs(slowest / np.log(growth) - 1), abs(fastest / np.log(growth) - 1)) < CLOSE
        known = np.diagonal(overlap_at(problem, exponential(x))[1]).max() < NEARLY_KNOWN
        if (linear and known) or np.diagonal(x).min() > 2 * np.log(INFORMED):
            return None
        x = x + step * max(1.0, WALK / fastest)
        step = step_at(x)


def competing(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    """The fixed points of both sweeps for every sample ratio, the Bayes-optimal one first."""
    if not alphas:
        return []
    lower = sweep(problem, alphas, "uninformed")
    upper = sweep(problem, alphas, "informed", lower)
    result = []
    for (low, low_point), (high, high_point) in zip(lower, upper):
        if UNFINISHED in high.method and UNFINISHED not in low.method:
            # What was not reached in so many steps is no fixed point.
            result.append([replace(low, branch="unique", method=f"{low.method}, no other branch was found")])
            continue
        if branches_meet(problem, low, high):
            result.append([replace(low, branch="unique")])
        elif not high.V.any():
            result.append([replace(high, free_entropy=float("inf")), replace(low, free_entropy=0.0)])
        else:
            lead, _ = free_entropy_between(problem, low.alpha, low_point.qhat, high_point.qhat)
            result.append(bayes_optimal_first([replace(low, free_entropy=0.0), replace(high, free_entropy=lead)]))
    return result


def _perfect(problem: Problem, alpha: float, branch: str) -> Solved:
    P = problem.components
    zero, known = np.zeros(P), INFORMED**2 * np.eye(P)
    method = "counting of equations"
    prediction = Prediction(alpha, prior_moments(problem)[0], np.zeros((P, P)), zero, branch, method, alpha_error=zero)
    return Solved(prediction, FixedPoint(known, 0.0, 0.0, method))


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
