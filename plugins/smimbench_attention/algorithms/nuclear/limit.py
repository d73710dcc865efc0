r"""Nuclear-norm regression in the limit: state-evolution fixed point, best penalty, and perfect recovery.

.. math:: \min_S \; \tfrac{1}{d} \sum_\mu \sum_k w_k (t_{\mu k} - (A S)_{\mu k})^2 + \tau |S|_*, \qquad S = S^T \; (\succeq 0)

for labels ``t = A S* + noise`` of variance ``nu_k``. With ``c = kappa alpha`` (kappa = 2), E the error of the estimate and v
its susceptibility, the proximal operator of the loss at an observation is ``z = (omega + v w t)/(1 + v w)``, so that

.. math::

    \hat Q = c \sum_k \frac{w_k}{1 + v w_k}, \qquad
    \Delta = \frac{c}{\hat Q^2} \sum_k \frac{w_k^2 (E + \nu_k)}{(1 + v w_k)^2}, \qquad
    \theta = \frac{\tau}{\hat Q}, \qquad v \hat Q = \mathcal D(\Delta, \theta), \qquad E = \mathcal E(\Delta, \theta)

with error and degrees of freedom of the spectral denoiser with threshold theta at noise Delta (see ``shrunk``). For equal
weights and K observations a sample, ``c K Delta = E + nu`` and ``theta (c K - D) = tau``. The estimate has the spectrum of
``f(S* + sqrt(Delta) Z)``. Without symmetry kappa is 1, the first term has a factor 1/2, and eigenvalues are singular values
with both signs; all else is the same. The problem is convex, so that the fixed point is unique and describes its minimum.

References
----------
arXiv:2505.17958 (quadratic networks), arXiv:2509.24914 (attention); derived independently in the units of this package, checked
by tests/algorithms/test_nuclear.py against random matrices, runs of the algorithm and published values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.derive import predict, why_theory_only
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Host,
    Overlaps,
    is_symmetric,
)
from smimbench.numerics import monte_carlo_rng, symmetric
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.least_squares import SAME, Linear, seen_by_labels


class Shrunk(NamedTuple):
    """Properties of the shrunk matrix f(R) in the limit: error, overlap, norms, degrees of freedom, rank.

    Attributes
    ----------
    error : float
        ``|f(R) - S|_F^2 / D``.
    overlap, square, trace : float
        ``tr f(R) S / D``, ``|f(R)|_F^2 / D`` and ``|f(R)|_* / D``.
    freedom : float
        ``div f / (D^2 / 2)``, degrees of freedom over those of a symmetric matrix: 1 for the identity.
    rank : float
        Rank over D.
    uncertain : float
        Numerical error of ``error``.
    """

    error: float
    overlap: float
    square: float
    trace: float
    freedom: float
    rank: float
    uncertain: float = 0.0


def shrink(x: Array, threshold: float, positive: bool) -> Array:
    """Eigenvalues of the proximal map, for eigenvalues x of any shape."""
    moved = clip(x - threshold, 0.0, None)
    return moved if positive else moved - clip(-x - threshold, 0.0, None)


def singular_function(matrix: Array, function: Callable[[Array], Array]) -> Array:
    """Apply a function to the singular values of matrices (..., P, P), ``U diag(f(s)) V^T``."""
    xp = namespace(matrix)
    left_vectors, values, right_vectors = xp.linalg.svd(matrix)
    return xp.matmul(left_vectors * function(values)[..., None, :], right_vectors)


def spectrum(matrix: Array, is_symmetric: bool) -> Array:
    """Eigenvalues of matrices (..., d, d), or without symmetry their singular values with both signs (..., 2 d)."""
    xp = namespace(matrix)
    if is_symmetric:
        return xp.linalg.eigvalsh(symmetric(matrix))
    values = xp.linalg.svdvals(matrix)
    return xp.concat([values, -values], axis=-1)


def shrunk(prior: Any, noise: float, threshold: float, positive: bool) -> Shrunk:
    r"""Shrinkage denoiser of ``R = S + sqrt(noise) Z``, noise > 0, for a prior whose ``law`` has ``spectral_means``.

    The proximal map of ``theta |S|_*`` keeps the eigenvectors of R and moves its eigenvalues towards zero by theta,

    .. math:: f(x) = \operatorname{sign}(x)\, (|x| - \theta)_+, \qquad \text{among } S \succeq 0: \quad f(x) = (x - \theta)_+ .

    In the limit everything is a mean over the eigenvalues x of R, a free convolution with the semicircle. With mean xi(x) and
    variance of S in the direction of an eigenvector of R,

    .. math::

        \frac{|f(R) - S|_F^2}{D} \to E\,[(f - \xi)^2 + \mathrm{Var}], \qquad
        \frac{\operatorname{tr} f(R) S}{D} \to E f \xi, \qquad
        \frac{\operatorname{div} f}{D^2 / 2} \to \iint \frac{f(x) - f(y)}{x - y} = \frac{E f (x - \xi)}{\Delta} .
    """

    def function(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        squared_error = (f - mean) ** 2 + variance
        return np.stack(
            [
                squared_error,
                f * mean,
                f * f,
                np.abs(f),
                f * (x - mean) / noise,
                (f != 0).astype(float),
            ]
        )

    breaks = (threshold,) if positive else (-threshold, threshold)
    means = prior.law.spectral_means(function, noise, breaks)
    return Shrunk._make([*map(float, means.value), float(np.asarray(means.error)[0])])


def shrunk_spectrum(
    prior: Any, noise: float, threshold: float, positive: bool
) -> dict[str, Any]:
    """Spectrum of the denoised matrix f(R): ``mass`` between 61 ``edges``, and separately the mass of ``zeros``."""
    top = spectral_end(prior, noise, 1) - threshold
    bottom = 0.0 if positive else -(spectral_end(prior, noise, -1) - threshold)
    ends = np.linspace(min(bottom, 0.0), max(top, 1e-3), 61)

    def function(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        bins = np.searchsorted(ends, f, side="right") - 1
        inside = [(bins == k) & (f != 0) for k in range(len(ends) - 1)]
        return np.stack([*inside, f == 0]).astype(float)

    # An eigenvalue f of the estimate comes from f + theta, or from f - theta below zero.
    breaks = {float(e) + math.copysign(threshold, e) for e in ends} | {
        threshold,
        -threshold,
    }
    mass = np.asarray(prior.law.spectral_means(function, noise, sorted(breaks)).value)
    return {
        "edges": ends.tolist(),
        "mass": mass[:-1].tolist(),
        "zeros": float(mass[-1]),
    }


def spectral_end(prior: Any, noise: float, sign: int) -> float:
    """Largest ``sign x`` among the eigenvalues x of ``S + sqrt(noise) Z``, except for a fraction 1e-9."""
    from scipy.optimize import brentq

    def beyond(end: float) -> float:
        fraction = prior.law.spectral_means(
            lambda x, *_: (sign * x > end)[None, :].astype(float), noise, (sign * end,)
        )
        return float(fraction.value[0]) - 1e-9

    high = 2 * math.sqrt(noise)
    while beyond(high) > 0:
        high *= 2
    low = -high
    while beyond(low) < 0:
        low *= 2
    return float(brentq(beyond, low, high, rtol=1e-6, xtol=1e-9))


def null_eigenvalues(prior: Any) -> float:
    """Fraction of zero eigenvalues of S, counted as those hidden by a tiny noise."""
    noise = 1e-18
    size = 3 * math.sqrt(noise)

    def function(x: Host, mean: Host, variance: Host) -> Host:
        return (np.abs(x) < size)[None, :].astype(float)

    return float(prior.law.spectral_means(function, noise, (-size, size)).value[0])


RECOVERED = 1e-13
"""Delta, in units of the second moment, below which the error of a problem without noise or penalty is 0."""

ENOUGH = 3e-3, 1e-8
"""Where a vanishing penalty is best: gain of a penalty ten times smaller, and error in units of the second moment, that are
too small to go on for. Doubled, the error is twice as far above its least value: 3e-4 of it."""


@dataclass(frozen=True)
class Observations:
    """Linear observations made by a sample: ``weights`` and ``noise`` (k,), ``c = kappa alpha``."""

    weights: Host
    noise: Host
    c: float

    def stiffness(self, v: float) -> float:
        """Effective information ``Qhat`` at susceptibility v."""
        return float(self.c * (self.weights / (1 + v * self.weights)).sum())

    def susceptibility(self, freedom: float) -> float:
        """Susceptibility v with ``v Qhat(v) = freedom``; infinite with fewer observations than degrees of freedom."""
        from scipy.optimize import brentq

        size = len(self.weights)
        if freedom >= self.c * size:
            return math.inf
        if freedom <= 0:
            return 0.0
        # Between the answers for all weights as the largest and as the smallest.
        ends = [
            freedom / (w * (self.c * size - freedom))
            for w in (self.weights.max(), self.weights.min())
        ]
        if ends[1] - ends[0] <= 1e-12 * ends[1]:
            return float(ends[0])
        low, high = (1 - 1e-13) * ends[0], (1 + 1e-13) * ends[1]
        return float(
            brentq(
                lambda v: v * self.stiffness(v) - freedom,
                low,
                high,
                xtol=1e-300,
                rtol=1e-14,
            )
        )

    def spread(self, error: float, v: float) -> float:
        """Effective noise ``Delta`` at error E and susceptibility v, finite also for infinite v."""
        if math.isinf(v):
            shares, total = np.ones_like(self.weights), self.c * len(self.weights)
        else:
            shares = self.weights / (1 + v * self.weights)
            total = self.stiffness(v)
        return float(self.c * (shares**2 * (error + self.noise)).sum() / total**2)


@dataclass(frozen=True)
class NuclearFixedPoint:
    """Solution of state evolution: noise Delta, threshold theta, susceptibility v, and properties of the estimate.

    ``fit`` is the loss that remains, ``sum_mu sum_k w_k r^2 / d^2``.
    """

    noise: float
    threshold: float
    susceptibility: float
    estimate: Shrunk
    fit: float

    @property
    def uncertain(self) -> float:
        """Numerical error of the predicted error, from the solver and from the means over the spectrum."""
        return 1e-8 * self.error + self.estimate.uncertain

    @property
    def error(self) -> float:
        """Predicted error ``|S_hat - S|_F^2 / D``."""
        return self.estimate.error


def no_theory(problem: Problem) -> str | None:
    """Reason why there is no theory of nuclear-norm regression for this problem, or None."""
    if problem.model.rank == "low" or problem.components != 1:
        return "it is for attention-indexed models of one component"
    if problem.prior.law.spectral_means is None:
        name = problem.prior.name
        return f"prior {name!r} does not give the eigenvalues of its matrices under noise (law.spectral_means)"
    return why_theory_only(problem.prior, 1)


def minimum_point(
    problem: Problem, alpha: float, minimum: NuclearFixedPoint, positive: bool
) -> AlgorithmPrediction:
    """The prediction at a fixed point, with the spectrum. The minimum is unique, so all starts end there."""
    truth = np.asarray(problem.prior.second_moment(1), dtype=float)
    cross, gram = (
        np.array([[value]])
        for value in (minimum.estimate.overlap, minimum.estimate.square)
    )
    # The error is truth - 2 cross + gram; its uncertainty is shared equally among the three.
    third = np.array([[minimum.uncertain / 3]])
    method = "state evolution of the convex problem"
    point = limit_point(
        problem,
        alpha,
        [[Overlaps(truth, cross, gram)]],
        method=method,
        uncertain=Overlaps(0 * third, third, third),
    )
    # An error of 0 is that of the limit Delta -> 0.
    noise = minimum.noise or RECOVERED * float(truth[0, 0])
    spectrum = shrunk_spectrum(problem.prior, noise, minimum.threshold, positive)
    # The error itself, without the cancellation of the sum.
    return replace(
        point,
        mse=np.array([minimum.error]),
        between_students=gram,
        more=point.more | {"spectrum": spectrum},
    )


def observations(problem: Problem, linear: Linear, alpha: float) -> Observations:
    """Observations made by labels linear in the signal, with the weights of ``LeastSquares``."""
    smallest = float(linear.noise.min())
    weights = np.ones_like(linear.noise) if smallest == 0 else smallest / linear.noise
    return Observations(weights, linear.noise, problem.model.kappa * alpha)


def fixed_point(
    prior: Any,
    observed: Observations,
    penalty: float,
    positive: bool,
    near: NuclearFixedPoint | None = None,
) -> NuclearFixedPoint:
    r"""Fixed point of state evolution at penalty tau >= 0; 0 means the limit of a vanishing penalty.

    At tau = 0 the estimate is the one of least nuclear norm among those of least loss. For a given Delta the threshold is
    unique, because ``theta Qhat`` increases with theta; then Delta is the root of ``Delta - c sum (...) / Qhat^2``. ``near``, the
    answer at a penalty close by, saves most of the time.
    """
    from scipy.optimize import brentq

    nearby = None
    if near is not None and penalty > 0 and near.threshold > 0:
        nearby = _fixed_point_close_by(prior, observed, penalty, positive, near)
    if nearby is not None:
        return nearby
    second = float(prior.second_moment(1)[0, 0])

    def solved(log_noise: float) -> tuple[float, float, Shrunk]:
        noise = math.exp(log_noise)
        threshold = _theta_of_penalty(prior, observed, noise, penalty, positive)
        estimate = shrunk(prior, noise, threshold, positive)
        return threshold, observed.susceptibility(estimate.freedom), estimate

    def excess(log_noise: float) -> float:
        _, v, estimate = solved(log_noise)
        return math.log(observed.spread(estimate.error, v)) - log_noise

    # Without an estimate the error is the second moment.
    center = math.log(observed.spread(second, 0.0))
    low = high = center
    lowest = math.log(RECOVERED * second)
    if excess(center) > 0:
        while excess(high) > 0:
            low, high = high, high + 1.0
    else:
        while low > lowest and excess(low) <= 0:
            low, high = max(low - 2.0, lowest), low
        if low <= lowest and excess(low) <= 0:
            signal = shrunk(prior, math.exp(lowest), 0.0, positive)
            return NuclearFixedPoint(
                0.0,
                0.0,
                0.0,
                signal._replace(
                    error=0.0, overlap=second, square=second, uncertain=0.0
                ),
                0.0,
            )
    log_noise = brentq(excess, low, high, xtol=1e-12)
    return _point(observed, math.exp(log_noise), *solved(log_noise))


def _point(
    observed: Observations, noise: float, threshold: float, v: float, estimate: Shrunk
) -> NuclearFixedPoint:
    residual = (
        0.0
        if math.isinf(v)
        else observed.weights
        * (estimate.error + observed.noise)
        / (1 + v * observed.weights) ** 2
    )
    return NuclearFixedPoint(
        noise, threshold, v, estimate, float(observed.c / 2 * np.sum(residual))
    )


def _fixed_point_close_by(
    prior: Any,
    observed: Observations,
    penalty: float,
    positive: bool,
    near: NuclearFixedPoint,
) -> NuclearFixedPoint | None:
    """Fixed point by Powell's method in ``log Delta`` and ``log theta``, started at a nearby one; None if it fails."""
    from scipy.optimize import root

    def at(x: Host) -> tuple[float, float, float, Shrunk]:
        noise, threshold = (
            math.exp(min(max(float(value), -60.0), 60.0)) for value in x
        )
        estimate = shrunk(prior, noise, threshold, positive)
        return noise, threshold, observed.susceptibility(estimate.freedom), estimate

    def excess(x: Host) -> list[float]:
        noise, threshold, v, estimate = at(x)
        if math.isinf(v):  # a penalty below zero
            return [math.log(observed.spread(estimate.error, v) / noise), -50.0]
        return [
            math.log(observed.spread(estimate.error, v) / noise),
            math.log(threshold * observed.stiffness(v) / penalty),
        ]

    answer = root(
        excess,
        [math.log(near.noise), math.log(near.threshold)],
        options={"xtol": 1e-12},
    )
    if max(abs(value) for value in excess(answer.x)) > 1e-9:
        return None
    return _point(observed, *at(answer.x))


def _theta_of_penalty(
    prior: Any, observed: Observations, noise: float, penalty: float, positive: bool
) -> float:
    """Threshold theta with ``theta Qhat(theta) = tau`` at given noise; for tau = 0 the least that labels can resolve."""
    from scipy.optimize import brentq

    available = observed.c * len(observed.weights)

    def excess(threshold: float) -> float:
        freedom = shrunk(prior, noise, threshold, positive).freedom
        if penalty == 0:
            return available - freedom
        v = observed.susceptibility(freedom)
        return (0.0 if math.isinf(v) else threshold * observed.stiffness(v)) - penalty

    low = penalty / observed.stiffness(0.0)
    if excess(low) >= 0:
        return low
    step = math.sqrt(noise) + low
    while excess(low + step) < 0:
        low, step = low + step, 2 * step
    return float(brentq(excess, low, low + step, xtol=1e-14 * step, rtol=1e-13))


def vanishing_penalty(prior: Any, observed: Observations, positive: bool) -> float:
    """Smallest tau for which the estimate is zero, at the edge of the spectrum of ``Qhat (S + sqrt(Delta) Z)``."""
    noise = observed.spread(float(prior.second_moment(1)[0, 0]), 0.0)
    ends = [
        spectral_end(prior, noise, sign) for sign in ((1,) if positive else (1, -1))
    ]
    return max(*ends, 0.0) * observed.stiffness(0.0)


def best_penalty(
    prior: Any, observed: Observations, positive: bool
) -> tuple[float, NuclearFixedPoint]:
    """Penalty tau with the smallest error, and the fixed point there; small ``ENOUGH`` where a vanishing penalty is best."""
    from scipy.optimize import minimize_scalar

    fixed_points: dict[float, NuclearFixedPoint] = {}

    def error(log_penalty: float) -> float:
        near = min(fixed_points, key=lambda key: abs(key - log_penalty), default=None)
        fixed_points[log_penalty] = fixed_point(
            prior,
            observed,
            math.exp(log_penalty),
            positive,
            None if near is None else fixed_points[near],
        )
        return fixed_points[log_penalty].error

    decade, gain = math.log(10), 1 - ENOUGH[0]
    recovered = ENOUGH[1] * float(prior.second_moment(1)[0, 0])
    log_penalty = math.log(vanishing_penalty(prior, observed, positive))
    previous_error, lowest_error = math.inf, error(log_penalty)
    while recovered < lowest_error < gain * previous_error:
        log_penalty -= decade
        previous_error, lowest_error = lowest_error, error(log_penalty)
    minimize_scalar(
        error,
        bounds=(log_penalty, log_penalty + 2 * decade),
        method="bounded",
        options={"xatol": 1e-3},
    )
    best = min(fixed_points, key=lambda key: fixed_points[key].error)
    return math.exp(best), fixed_points[best]


def perfect_recovery(
    prior: Any, observations: int, kappa: float, positive: bool
) -> float:
    r"""Sample ratio above which labels without noise and a vanishing penalty recover the signal.

    With a part p of eigenvalues zero and the semicircle sigma, ``kappa alpha K`` is

    .. math:: \min_t \; 1 - p^2 + (1 - p) t^2 + p \int \sigma(dx) (\sqrt p\, x - t)_+^2

    (twice the integral for matrices of both signs), the statistical dimension of the cone of descent.
    """
    from scipy.integrate import quad
    from scipy.optimize import minimize_scalar

    p = null_eigenvalues(prior)
    size, sides = 2 * math.sqrt(p), 1 if positive else 2

    def dimension(t: float) -> float:
        end = math.acos(min(t / size, 1.0)) if size > 0 else 0.0  # x = 2 cos(angle)
        tail = quad(
            lambda angle: (
                (size * math.cos(angle) - t) ** 2 * math.sin(angle) ** 2 * 2 / math.pi
            ),
            0.0,
            end,
        )[0]
        return float(1 - p * p + (1 - p) * t * t + sides * p * tail)

    minimum = minimize_scalar(
        dimension, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-10}
    )
    return float(min(minimum.fun, dimension(0.0)) / (kappa * observations))


# -- descent on a wide factor with weight decay has the same minimum ----------------------------------------------------


def label_observations(problem: Problem, alpha: float) -> Observations | str:
    """Observations weighted as in the squared error of the label, or the reason why it has no such form.

    The label has to be linear in the latents, one entry for each: ``y_c = b_c z_c + noise``; the weight is ``b_c^2``.
    """
    linear = seen_by_labels(problem)
    if isinstance(linear, str):
        return f"the squared error of the label is not convex in the signal: {linear}"
    sites = problem.model.sites
    z = np.concatenate(
        [
            np.eye(sites),
            monte_carlo_rng("labels of single latents").standard_normal((1, sites)),
        ]
    )[:, None, :]
    y = np.asarray(predict(problem.channel, z), dtype=float).reshape(sites + 1, -1)
    noise = linear.rows.T @ np.diag(linear.noise) @ linear.rows
    diagonal = y.shape[1] == sites and all(
        np.allclose(m, np.diag(np.diag(m)), atol=SAME) for m in (y[:-1], noise)
    )
    if (
        not diagonal
        or len(linear.rows) < sites
        or not np.allclose(y[-1], z[-1, 0] @ y[:-1], atol=SAME)
    ):
        return "the label is not a latent in every entry"
    return Observations(
        np.diag(y[:-1]) ** 2, np.diag(noise), problem.model.kappa * alpha
    )


def wide_factor_point(
    problem: Problem,
    alpha: float,
    decay: float,
    dimension: int | None,
    width: int | None,
) -> AlgorithmPrediction | str:
    r"""Minimum of ``(1/D) [sum_mu |y - y_hat|^2 + (decay/2) |W|^2]`` in the limit, or why there is no theory of it.

    For ``S = s W W^T`` the squared norm of the factor is a trace, ``|W|^2 = tr(S) / s``: with a loss that is convex in S and a
    factor at least as wide as the rank of the minimum, every local minimum in W is the minimum over matrices ``S >= 0`` with the
    penalty ``tau tr S`` (Burer and Monteiro, Math. Program. 103, 2005). For ``S = s Q K^T`` the least
    ``|Q|^2 + |K|^2`` is ``2 |S|_* / s``, and in the units of ``fixed_point`` (kappa = 1) all counts half: tau is the same.

    Parameters
    ----------
    decay : float
        lambda > 0; ``tau = lambda / (2 D s)`` for ``S = s W W^T``.
    dimension, width : int or None
        D, and columns of W; a width of None is that of the prior's own factors.
    """
    if why := no_theory(problem):
        return why
    prior_factor = problem.prior.factor
    scale = None if prior_factor is None else prior_factor.gram_scale
    if scale is None:
        return (
            f"prior {problem.prior.name!r} does not make its signals of W W^T, or Q K^T"
        )
    if dimension is None:
        return "the width of the factor over D decides, and D is not known"
    observed = label_observations(problem, alpha)
    if isinstance(observed, str):
        return observed
    prior: Any = problem.prior
    factor = prior.factor.draw(
        monte_carlo_rng("shape of a factor"), 1, dimension, width
    )
    columns = factor.shape[-1]
    positive = is_symmetric(problem.model)
    minimum = fixed_point(
        prior, observed, decay / (2 * dimension * scale(factor)), positive
    )
    if minimum.estimate.rank > columns / dimension:
        return (
            f"a factor of {columns} columns is narrower than the minimum is of rank "
            f"({minimum.estimate.rank * dimension:.0f} of D = {dimension}), and can end in other minima"
        )
    point = minimum_point(problem, alpha, minimum, positive)
    return replace(
        point,
        method="minimum over a wide factor, if the steps are enough to reach it; state evolution",
    )
