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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.derive import predict, why_theory_only
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Host,
    Overlaps,
    Prior,
    Uncertain,
    is_symmetric,
)
from smimbench.numerics import monte_carlo_rng, symmetric
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.least_squares import (
    SAME,
    Linear,
    linear_observation,
)


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
    """Soft-threshold eigenvalues x (any shape): the proximal map of the nuclear norm."""
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


def _spectral_means(
    prior: Prior,
    function: Callable[[Host, Host, Host], Host],
    noise: float,
    breaks: Sequence[float] = (),
) -> Uncertain:
    """Mean of a function over the eigenvalues of the noisy matrix ``S + sqrt(noise) Z``."""
    assert prior.law.spectral_means is not None
    return prior.law.spectral_means(function, noise, breaks)


def shrunk(prior: Prior, noise: float, threshold: float, positive: bool) -> Shrunk:
    r"""Error, overlap and norms in the limit of the shrinkage denoiser of ``R = S + sqrt(noise) Z``, noise > 0.

    The prior needs a ``law`` with ``spectral_means``.

    The proximal map of ``theta |S|_*`` keeps the eigenvectors of R and moves its eigenvalues towards zero by theta,

    .. math:: f(x) = \operatorname{sign}(x)\, (|x| - \theta)_+, \qquad \text{among } S \succeq 0: \quad f(x) = (x - \theta)_+ .

    In the limit everything is a mean over the eigenvalues x of R, a free convolution with the semicircle. With mean xi(x) and
    variance of S in the direction of an eigenvector of R,

    .. math::

        \frac{|f(R) - S|_F^2}{D} \to E\,[(f - \xi)^2 + \mathrm{Var}], \qquad
        \frac{\operatorname{tr} f(R) S}{D} \to E f \xi, \qquad
        \frac{\operatorname{div} f}{D^2 / 2} \to \iint \frac{f(x) - f(y)}{x - y} = \frac{E f (x - \xi)}{\Delta} .
    """

    def properties(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        is_kept = (f != 0).astype(float)
        error, freedom = (f - mean) ** 2 + variance, f * (x - mean) / noise
        return np.stack([error, f * mean, f * f, np.abs(f), freedom, is_kept])

    breaks = (threshold,) if positive else (-threshold, threshold)
    means = _spectral_means(prior, properties, noise, breaks)
    uncertain = float(np.asarray(means.error)[0])
    return Shrunk(*map(float, means.value))._replace(uncertain=uncertain)


def shrunk_spectrum(
    prior: Prior, noise: float, threshold: float, positive: bool
) -> dict[str, object]:
    """Eigenvalue histogram of the denoised matrix f(R): ``mass`` between 61 ``edges``, and the mass of ``zeros``."""
    top = spectral_end(prior, noise, 1) - threshold
    lower_end = 0.0 if positive else -(spectral_end(prior, noise, -1) - threshold)
    edges = np.linspace(min(lower_end, 0.0), max(top, 1e-3), 61)

    def indicators(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        bins = np.searchsorted(edges, f, side="right") - 1
        inside = [(bins == k) & (f != 0) for k in range(len(edges) - 1)]
        return np.stack([*inside, f == 0]).astype(float)

    # An eigenvalue f of the estimate comes from f + theta, or from f - theta below zero.
    breaks = {float(edge) + math.copysign(threshold, edge) for edge in edges}
    breaks |= {threshold, -threshold}
    mass = _spectral_means(prior, indicators, noise, sorted(breaks)).value
    *mass, zeros = np.asarray(mass).tolist()
    return {"edges": edges.tolist(), "mass": mass, "zeros": zeros}


def spectral_end(prior: Prior, noise: float, sign: int) -> float:
    """Upper edge (``sign`` 1) or negative lower edge (-1) of the spectrum of ``S + sqrt(noise) Z``, up to a mass 1e-9."""
    from scipy.optimize import brentq

    def excess(end: float) -> float:
        def is_beyond(x: Host, *_: Host) -> Host:
            return (sign * x > end)[None, :].astype(float)

        fraction = _spectral_means(prior, is_beyond, noise, (sign * end,))
        return float(fraction.value[0]) - 1e-9

    high = 2 * math.sqrt(noise)
    while excess(high) > 0:
        high *= 2
    low = -high
    while excess(low) < 0:
        low *= 2
    return float(brentq(excess, low, high, rtol=1e-6, xtol=1e-9))


def null_eigenvalues(prior: Prior) -> float:
    """Fraction of zero eigenvalues of the signal S, counted as eigenvalues below a tiny noise."""
    noise = 1e-18
    size = 3 * math.sqrt(noise)

    def is_hidden(x: Host, *_: Host) -> Host:
        return (np.abs(x) < size)[None, :].astype(float)

    return float(_spectral_means(prior, is_hidden, noise, (-size, size)).value[0])


RECOVERED = 1e-13
"""Delta, in units of the second moment, below which the error of a problem without noise or penalty is 0."""

ENOUGH = 3e-3, 1e-8
"""Where a vanishing penalty is best: gain of a penalty ten times smaller, and error in units of the second moment, that are
too small to go on for. Doubled, the error is twice as far above its least value: 3e-4 of it."""


@dataclass(frozen=True)
class Observations:
    """Linear observations of a sample: weights (k,), noise variances (k,), and ``c = kappa alpha``."""

    weights: Host
    noise: Host
    c: float

    def stiffness(self, v: float) -> float:
        """Effective information ``Qhat`` of the labels at susceptibility v."""
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
        excess = self.c * size - freedom
        low = freedom / (self.weights.max() * excess)
        high = freedom / (self.weights.min() * excess)
        if high - low <= 1e-12 * high:
            return float(low)

        def equation(v: float) -> float:
            return v * self.stiffness(v) - freedom

        low, high = (1 - 1e-13) * low, (1 + 1e-13) * high
        return float(brentq(equation, low, high, xtol=1e-300, rtol=1e-14))

    def effective_noise(self, error: float, v: float) -> float:
        """Effective noise ``Delta`` of the observed matrix at error E and susceptibility v, which may be infinite."""
        if math.isinf(v):
            gains, stiffness = np.ones_like(self.weights), self.c * len(self.weights)
        else:
            gains = self.weights / (1 + v * self.weights)
            stiffness = self.stiffness(v)
        noise = gains**2 * (error + self.noise)
        return float(self.c * noise.sum() / stiffness**2)


@dataclass(frozen=True)
class NuclearFixedPoint:
    """Fixed point of state evolution: noise Delta, threshold theta, susceptibility v, properties of the estimate.

    ``fit`` is the loss that remains, ``sum_mu sum_k w_k r^2 / d^2``.
    """

    noise: float
    threshold: float
    susceptibility: float
    estimate: Shrunk
    fit: float

    @property
    def uncertain(self) -> float:
        """Numerical uncertainty of the predicted error, from the solver and from the means over the spectrum."""
        return 1e-8 * self.error + self.estimate.uncertain

    @property
    def error(self) -> float:
        """Predicted squared error ``|S_hat - S|_F^2 / D`` of the estimate."""
        return self.estimate.error


def no_theory(problem: Problem) -> str | None:
    """Reason why there is no theory of nuclear-norm regression for a problem, or None."""
    if problem.model.rank == "low" or problem.components != 1:
        return "theory exists for attention-indexed models with one component only"
    if problem.prior.law.spectral_means is None:
        name = problem.prior.name
        return f"prior {name!r} does not give the eigenvalues of its matrices under noise (law.spectral_means)"
    return why_theory_only(problem.prior, 1)


def minimum_point(
    problem: Problem, alpha: float, minimum: NuclearFixedPoint, positive: bool
) -> AlgorithmPrediction:
    """Prediction at a fixed point, with the spectrum of the estimate; the minimum is unique, so all starts end there."""
    truth = np.asarray(problem.prior.second_moment(1), dtype=float)
    cross, gram = (
        np.array([[value]])
        for value in (minimum.estimate.overlap, minimum.estimate.square)
    )
    # The error is truth - 2 cross + gram; its uncertainty is shared equally among the three.
    third = np.array([[minimum.uncertain / 3]])
    prediction = limit_point(
        problem,
        alpha,
        [[Overlaps(truth, cross, gram)]],
        method="state evolution of the convex problem",
        uncertain=Overlaps(0 * third, third, third),
    )
    # An error of 0 is that of the limit Delta -> 0.
    noise = minimum.noise or RECOVERED * float(truth[0, 0])
    spectrum = shrunk_spectrum(problem.prior, noise, minimum.threshold, positive)
    # The error itself, without the cancellation of the sum.
    return replace(
        prediction,
        mse=np.array([minimum.error]),
        between_students=gram,
        more=prediction.more | {"spectrum": spectrum},
    )


def observations(problem: Problem, linear: Linear, alpha: float) -> Observations:
    """Convert linear labels to observations with the weights of ``LeastSquares``."""
    smallest = float(linear.noise.min())
    weights = np.ones_like(linear.noise) if smallest == 0 else smallest / linear.noise
    return Observations(weights, linear.noise, problem.model.kappa * alpha)


def fixed_point(
    prior: Prior,
    observed: Observations,
    penalty: float,
    positive: bool,
    near: NuclearFixedPoint | None = None,
) -> NuclearFixedPoint:
    r"""Find the fixed point of state evolution at penalty tau >= 0; 0 means the limit of a vanishing penalty.

    At tau = 0 the estimate is the one of least nuclear norm among those of least loss. For a given Delta the threshold is
    unique, because ``theta Qhat`` increases with theta; then Delta is the root of ``Delta - c sum (...) / Qhat^2``. ``near``, the
    answer at a penalty close by, saves most of the time.
    """
    from scipy.optimize import brentq

    if near is not None and penalty > 0 and near.threshold > 0:
        neighbor = _fixed_point_near(prior, observed, penalty, positive, near)
        if neighbor is not None:
            return neighbor
    second = float(prior.second_moment(1)[0, 0])

    def solved(log_noise: float) -> tuple[float, float, Shrunk]:
        noise = math.exp(log_noise)
        threshold = _theta_of_penalty(prior, observed, noise, penalty, positive)
        estimate = shrunk(prior, noise, threshold, positive)
        return threshold, observed.susceptibility(estimate.freedom), estimate

    def excess(log_noise: float) -> float:
        _, v, estimate = solved(log_noise)
        return math.log(observed.effective_noise(estimate.error, v)) - log_noise

    # Without an estimate the error is the second moment.
    center = math.log(observed.effective_noise(second, 0.0))
    low = high = center
    lowest = math.log(RECOVERED * second)
    if excess(center) > 0:
        while excess(high) > 0:
            low, high = high, high + 1.0
    else:
        while low > lowest and excess(low) <= 0:
            low, high = max(low - 2.0, lowest), low
        if low <= lowest and excess(low) <= 0:
            signal = shrunk(prior, math.exp(lowest), 0.0, positive)._replace(
                error=0.0, overlap=second, square=second, uncertain=0.0
            )
            return NuclearFixedPoint(0.0, 0.0, 0.0, signal, 0.0)
    log_noise = brentq(excess, low, high, xtol=1e-12)
    return _point(observed, math.exp(log_noise), *solved(log_noise))


def _point(
    observed: Observations, noise: float, threshold: float, v: float, estimate: Shrunk
) -> NuclearFixedPoint:
    fit = 0.0
    if not math.isinf(v):
        residual = observed.weights * (estimate.error + observed.noise)
        residual = residual / (1 + v * observed.weights) ** 2
        fit = float(observed.c / 2 * np.sum(residual))
    return NuclearFixedPoint(noise, threshold, v, estimate, fit)


def _fixed_point_near(
    prior: Prior,
    observed: Observations,
    penalty: float,
    positive: bool,
    near: NuclearFixedPoint,
) -> NuclearFixedPoint | None:
    """Find a fixed point with a root finder in log Delta and log theta, started at a nearby one; None if it fails."""
    from scipy.optimize import root

    def state(x: Host) -> tuple[float, float, float, Shrunk]:
        noise, threshold = (
            math.exp(min(max(float(logarithm), -60.0), 60.0)) for logarithm in x
        )
        estimate = shrunk(prior, noise, threshold, positive)
        return noise, threshold, observed.susceptibility(estimate.freedom), estimate

    def excess(x: Host) -> list[float]:
        noise, threshold, v, estimate = state(x)
        of_noise = math.log(observed.effective_noise(estimate.error, v) / noise)
        if math.isinf(v):  # a penalty below zero
            return [of_noise, -50.0]
        return [of_noise, math.log(threshold * observed.stiffness(v) / penalty)]

    start = [math.log(near.noise), math.log(near.threshold)]
    solution = root(excess, start, options={"xtol": 1e-12})
    if max(map(abs, excess(solution.x))) > 1e-9:
        return None
    return _point(observed, *state(solution.x))


def _theta_of_penalty(
    prior: Prior, observed: Observations, noise: float, penalty: float, positive: bool
) -> float:
    """Threshold theta that solves ``theta Qhat(theta) = tau`` at a given effective noise."""
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


def vanishing_penalty(prior: Prior, observed: Observations, positive: bool) -> float:
    """Smallest penalty tau for which the estimate is zero: the spectral edge of ``Qhat (S + sqrt(Delta) Z)``."""
    noise = observed.effective_noise(float(prior.second_moment(1)[0, 0]), 0.0)
    signs = (1,) if positive else (1, -1)
    edge = max(0.0, *(spectral_end(prior, noise, sign) for sign in signs))
    return edge * observed.stiffness(0.0)


def best_penalty(
    prior: Prior, observed: Observations, positive: bool
) -> tuple[float, NuclearFixedPoint]:
    """Find the penalty tau with the smallest predicted error, and its fixed point."""
    from scipy.optimize import minimize_scalar

    fixed_points: dict[float, NuclearFixedPoint] = {}

    def error(log_penalty: float) -> float:
        near = None
        if fixed_points:
            nearest = min(fixed_points, key=lambda key: abs(key - log_penalty))
            near = fixed_points[nearest]
        penalty = math.exp(log_penalty)
        minimum = fixed_point(prior, observed, penalty, positive, near)
        fixed_points[log_penalty] = minimum
        return minimum.error

    decade, gain = math.log(10), 1 - ENOUGH[0]
    recovered = ENOUGH[1] * float(prior.second_moment(1)[0, 0])
    log_penalty = math.log(vanishing_penalty(prior, observed, positive))
    previous_error, lowest_error = math.inf, error(log_penalty)
    while recovered < lowest_error < gain * previous_error:
        log_penalty -= decade
        previous_error, lowest_error = lowest_error, error(log_penalty)
    bounds = log_penalty, log_penalty + 2 * decade
    minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    best = min(fixed_points, key=lambda key: fixed_points[key].error)
    return math.exp(best), fixed_points[best]


def perfect_recovery(
    prior: Prior, observations: int, kappa: float, positive: bool
) -> float:
    r"""Sample ratio above which noiseless labels and a vanishing penalty recover the signal perfectly.

    With a fraction p of eigenvalues zero and the semicircle sigma, ``kappa alpha K`` is

    .. math:: \min_t \; 1 - p^2 + (1 - p) t^2 + p \int \sigma(dx) (\sqrt p\, x - t)_+^2

    (twice the integral for matrices of both signs), the statistical dimension of the cone of descent.
    """
    from scipy.integrate import quad
    from scipy.optimize import minimize_scalar

    p = null_eigenvalues(prior)
    size, sides = 2 * math.sqrt(p), 1 if positive else 2

    def dimension(t: float) -> float:
        def integrand(angle: float) -> float:  # x = 2 cos(angle)
            square = (size * math.cos(angle) - t) ** 2
            return square * math.sin(angle) ** 2 * 2 / math.pi

        end = math.acos(min(t / size, 1.0)) if size > 0 else 0.0
        tail = quad(integrand, 0.0, end)[0]
        return float(1 - p * p + (1 - p) * t * t + sides * p * tail)

    minimum = minimize_scalar(
        dimension, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-10}
    )
    return float(min(minimum.fun, dimension(0.0)) / (kappa * observations))


# -- descent on a wide factor with weight decay has the same minimum ----------------------------------------------------


def label_observations(problem: Problem, alpha: float) -> Observations | str:
    """Observations weighted as in the squared error of the label, or the reason why that loss is not convex.

    The label has to be linear in the latents, one entry for each: ``y_c = b_c z_c + noise``; the weight is ``b_c^2``.
    """
    linear = linear_observation(problem)
    if isinstance(linear, str):
        return f"the squared error of the label is not convex in the signal: {linear}"
    sites = problem.model.sites
    rng = monte_carlo_rng("labels of single latents")
    random = rng.standard_normal((1, sites))
    z = np.concatenate([np.eye(sites), random])[:, None, :]
    y = np.asarray(predict(problem.channel, z), dtype=float).reshape(sites + 1, -1)
    gains, random_output = y[:-1], y[-1]
    noise = linear.rows.T @ np.diag(linear.noise) @ linear.rows
    if (
        y.shape[1] != sites
        or len(linear.rows) < sites
        or not _is_diagonal(gains)
        or not _is_diagonal(noise)
        or not np.allclose(random_output, random[0] @ gains, atol=SAME)
    ):
        return "theory needs labels that are single latents plus noise"
    scale = problem.model.kappa * alpha
    return Observations(np.diag(gains) ** 2, np.diag(noise), scale)


def _is_diagonal(matrix: Host) -> bool:
    return np.allclose(matrix, np.diag(np.diag(matrix)), atol=SAME)


def wide_factor_point(
    problem: Problem,
    alpha: float,
    decay: float,
    dimension: int | None,
    width: int | None,
) -> AlgorithmPrediction | str:
    r"""Predict the minimum of ``(1/D) [sum_mu |y - y_hat|^2 + (decay/2) |W|^2]``, or return why there is no theory.

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
    scale = prior_factor and prior_factor.gram_scale
    if prior_factor is None or scale is None:
        return (
            f"prior {problem.prior.name!r} does not make its signals of W W^T, or Q K^T"
        )
    if dimension is None:
        return "the minimum depends on the width of the factor over D: theory needs the dimension D of the runs"
    observed = label_observations(problem, alpha)
    if isinstance(observed, str):
        return observed
    rng = monte_carlo_rng("shape of a factor")
    factor = prior_factor.draw(rng, 1, dimension, width)
    columns = factor.shape[-1]
    penalty = decay / (2 * dimension * scale(factor))
    positive = is_symmetric(problem.model)
    minimum = fixed_point(problem.prior, observed, penalty, positive)
    if minimum.estimate.rank > columns / dimension:
        return (
            f"the factor has {columns} columns, fewer than the rank of the minimum "
            f"({minimum.estimate.rank * dimension:.0f} of D = {dimension}): descent can end in other minima"
        )
    return replace(
        minimum_point(problem, alpha, minimum, positive),
        method="minimum over a wide factor, if the steps are enough to reach it; state evolution",
    )
