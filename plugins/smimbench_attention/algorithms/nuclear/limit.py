r"""Nuclear-norm regression in the limit: state-evolution fixed point, best penalty, and perfect recovery.

.. math:: \min_S \; \tfrac{1}{d} \sum_\mu \sum_k w_k (t_{\mu k} - (A S)_{\mu k})^2 + \tau |S|_*, \qquad S = S^T \; (\succeq 0)

for labels ``t = A S* + noise`` of variance ``nu_k``. With ``c = kappa alpha`` (kappa = 2), E the error of the estimate and v
its susceptibility, the proximal operator of the loss at an observation is ``z = (omega + v w t)/(1 + v w)``, so that

.. math::

    \hat Q = c \sum_k \frac{w_k}{1 + v w_k}, \qquad
    \Delta = \frac{c}{\hat Q^2} \sum_k \frac{w_k^2 (E + \nu_k)}{(1 + v w_k)^2}, \qquad
    \theta = \frac{\tau}{\hat Q}, \qquad v \hat Q = \mathcal D(\Delta, \theta), \qquad E = \mathcal E(\Delta, \theta)

with error and degrees of freedom of the spectral denoiser with threshold theta at noise Delta (see ``shrunk_matrix``). For equal
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
from dataclasses import dataclass, replace

import numpy as np

from smimbench.derive import predict, why_theory_only
from smimbench.interfaces import (
    AlgorithmPrediction,
    Host,
    Overlaps,
    Prior,
    is_symmetric,
)
from smimbench.numerics import monte_carlo_rng
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.least_squares import (
    SAME,
    LinearObservation,
    linear_observation,
)
from smimbench_attention.algorithms.nuclear.shrinkage import (
    ShrunkMatrix,
    shrunk_histogram,
    shrunk_matrix,
    spectral_edge,
    zero_eigenvalue_fraction,
)

RECOVERED = 1e-13
"""Delta, in units of the second moment, below which the error of a problem without noise or penalty is 0."""

SMALL_GAIN, NEGLIGIBLE_ERROR = 3e-3, 1e-8
"""Where a vanishing penalty is best: gain of a penalty ten times smaller, and error in units of the second moment, that are
too small to go on for. Doubled, the error is twice as far above its least value: 3e-4 of it."""


@dataclass(frozen=True)
class Observations:
    """Linear observations of a sample, k in number: their weights (k,) in the loss, noise variances (k,), and
    ``kappa alpha``, the sample ratio times 2 for symmetric matrices.
    """

    weights: Host
    noise: Host
    kappa_alpha: float  # kappa times the sample ratio

    def stiffness(self, v: float) -> float:
        """Effective information ``Qhat`` of the labels on the matrix at susceptibility v of the estimate, the sum of
        ``kappa alpha w / (1 + v w)`` over weights w.
        """
        return float(self.kappa_alpha * (self.weights / (1 + v * self.weights)).sum())

    def susceptibility(self, degrees_of_freedom: float) -> float:
        """Susceptibility v of the estimate at which ``v Qhat(v)`` equals its degrees of freedom; infinite with fewer
        observations than degrees of freedom.
        """
        from scipy.optimize import brentq

        observation_count = len(self.weights)
        if degrees_of_freedom >= self.kappa_alpha * observation_count:
            return math.inf
        if degrees_of_freedom <= 0:
            return 0.0
        # Between the answers for all weights as the largest and as the smallest.
        unused_observations = self.kappa_alpha * observation_count - degrees_of_freedom
        smallest_v = degrees_of_freedom / (self.weights.max() * unused_observations)
        largest_v = degrees_of_freedom / (self.weights.min() * unused_observations)
        if largest_v - smallest_v <= 1e-12 * largest_v:
            return float(smallest_v)

        def excess_freedom(v: float) -> float:
            """Degrees of freedom ``v Qhat(v)`` at the susceptibility v, minus the given degrees of freedom."""
            return v * self.stiffness(v) - degrees_of_freedom

        smallest_v = (1 - 1e-13) * smallest_v
        largest_v = (1 + 1e-13) * largest_v
        return float(
            brentq(excess_freedom, smallest_v, largest_v, xtol=1e-300, rtol=1e-14)
        )

    def effective_noise(self, error: float, v: float) -> float:
        """Effective noise ``Delta`` of the observed matrix ``S + sqrt(Delta) Z`` at error E and susceptibility v of the
        estimate; v may be infinite.
        """
        if math.isinf(v):
            observation_gains = np.ones_like(self.weights)
            stiffness = self.kappa_alpha * len(self.weights)
        else:
            observation_gains = self.weights / (1 + v * self.weights)
            stiffness = self.stiffness(v)
        noise_terms = observation_gains**2 * (error + self.noise)
        return float(self.kappa_alpha * noise_terms.sum() / stiffness**2)


@dataclass(frozen=True)
class NuclearFixedPoint:
    """Fixed point of state evolution: effective noise Delta of the observed matrix, threshold theta of its eigenvalues,
    susceptibility v, properties of the estimate, and the loss that remains, ``sum_mu sum_k w_k r^2 / d^2`` of residuals r.
    """

    noise: float
    threshold: float
    susceptibility: float
    estimate: ShrunkMatrix
    remaining_loss: float  # training loss at the minimum

    @property
    def error_uncertainty(self) -> float:
        """Numerical uncertainty of the predicted squared error, from the solver and from the means over the spectrum."""
        return 1e-8 * self.error + self.estimate.numerical_error

    @property
    def error(self) -> float:
        """Predicted squared error ``|S_hat - S|_F^2 / D`` of the estimate."""
        return self.estimate.error


def why_no_theory(problem: Problem) -> str | None:
    """Reason why there is no theory of nuclear-norm regression for a problem, or None."""
    if problem.model.rank == "low" or problem.components != 1:
        return "theory exists for attention-indexed models with one component only"
    if problem.prior.law.spectral_means is None:
        prior_name = problem.prior.name
        return f"prior {prior_name!r} does not give the eigenvalues of its matrices under noise (law.spectral_means)"
    return why_theory_only(problem.prior, 1)


def minimum_point(
    problem: Problem, alpha: float, minimum: NuclearFixedPoint, positive: bool
) -> AlgorithmPrediction:
    """Prediction of errors and overlaps at the ``minimum`` of the objective (a fixed point) at sample ratio alpha, with the
    spectrum of the estimate, which has no negative eigenvalues if ``positive``.
    """
    second_moment = np.asarray(problem.prior.second_moment(1), dtype=float)
    signal_overlap = np.array([[minimum.estimate.signal_overlap]])
    self_overlap = np.array([[minimum.estimate.squared_norm]])
    # The error is truth - 2 cross + gram; its uncertainty is shared equally among the three.
    third_of_error = np.array([[minimum.error_uncertainty / 3]])
    prediction = limit_point(
        problem,
        alpha,
        [[Overlaps(second_moment, signal_overlap, self_overlap)]],
        method="state evolution of the convex problem",
        uncertain=Overlaps(0 * third_of_error, third_of_error, third_of_error),
    )
    # An error of 0 is that of the limit Delta -> 0.
    effective_noise = minimum.noise or RECOVERED * float(second_moment[0, 0])
    spectrum_histogram = shrunk_histogram(
        problem.prior, effective_noise, minimum.threshold, positive
    )
    # The error itself, without the cancellation of the sum.
    return replace(
        prediction,
        mse=np.array([minimum.error]),
        between_students=self_overlap,
        more=prediction.more | {"spectrum": spectrum_histogram},
    )


def weighted_observations(
    problem: Problem, observation: LinearObservation, alpha: float
) -> Observations:
    """Observations of nuclear-norm regression at sample ratio alpha from the linear ``observation`` that labels make, with
    weights in the loss as in ``LeastSquares``: the smallest noise variance over that of the observation.
    """
    smallest_noise = float(observation.noise.min())
    weights = np.ones_like(observation.noise)
    if smallest_noise > 0:
        weights = smallest_noise / observation.noise
    return Observations(weights, observation.noise, problem.model.kappa * alpha)


def fixed_point(
    prior: Prior,
    observations: Observations,
    penalty: float,
    positive: bool,
    nearby_solution: NuclearFixedPoint | None = None,
) -> NuclearFixedPoint:
    r"""Find the fixed point of state evolution at penalty tau >= 0, for signals of this prior and these observations; 0 means
    the limit of a vanishing penalty. Matrices are positive semidefinite if ``positive``; ``nearby_solution`` is a fixed point
    to start from.

    At tau = 0 the estimate is the one of least nuclear norm among those of least loss. For a given Delta the threshold is
    unique, because ``theta Qhat`` increases with theta; then Delta is the root of ``Delta - c sum (...) / Qhat^2``.
    ``nearby_solution``, the one at a penalty close by, saves most of the time.
    """
    from scipy.optimize import brentq

    if nearby_solution is not None and penalty > 0 and nearby_solution.threshold > 0:
        solution = _fixed_point_near(
            prior, observations, penalty, positive, nearby_solution
        )
        if solution is not None:
            return solution
    second_moment = float(prior.second_moment(1)[0, 0])

    def solve_at_noise(log_noise: float) -> tuple[float, float, ShrunkMatrix]:
        """Threshold theta, susceptibility v and properties of the estimate at the effective noise ``Delta = exp(log_noise)``."""
        noise = math.exp(log_noise)
        threshold = _threshold_of_penalty(prior, observations, noise, penalty, positive)
        estimate = shrunk_matrix(prior, noise, threshold, positive)
        return (
            threshold,
            observations.susceptibility(estimate.degrees_of_freedom),
            estimate,
        )

    def log_noise_excess(log_noise: float) -> float:
        """Log of the effective noise that the equations give at the trial noise ``exp(log_noise)`` and its susceptibility v,
        minus ``log_noise``.
        """
        _, v, estimate = solve_at_noise(log_noise)
        return math.log(observations.effective_noise(estimate.error, v)) - log_noise

    # Without an estimate the error is the second moment.
    log_noise_of_zero_estimate = math.log(
        observations.effective_noise(second_moment, 0.0)
    )
    lower_log_noise = upper_log_noise = log_noise_of_zero_estimate
    smallest_log_noise = math.log(RECOVERED * second_moment)
    if log_noise_excess(log_noise_of_zero_estimate) > 0:
        while log_noise_excess(upper_log_noise) > 0:
            lower_log_noise = upper_log_noise
            upper_log_noise = upper_log_noise + 1.0
    else:
        while (
            lower_log_noise > smallest_log_noise
            and log_noise_excess(lower_log_noise) <= 0
        ):
            upper_log_noise = lower_log_noise
            lower_log_noise = max(lower_log_noise - 2.0, smallest_log_noise)
        if (
            lower_log_noise <= smallest_log_noise
            and log_noise_excess(lower_log_noise) <= 0
        ):
            recovered_signal = shrunk_matrix(
                prior, math.exp(smallest_log_noise), 0.0, positive
            )._replace(
                error=0.0,
                signal_overlap=second_moment,
                squared_norm=second_moment,
                numerical_error=0.0,
            )
            return NuclearFixedPoint(0.0, 0.0, 0.0, recovered_signal, 0.0)
    log_noise = brentq(log_noise_excess, lower_log_noise, upper_log_noise, xtol=1e-12)
    return _fixed_point_at(
        observations, math.exp(log_noise), *solve_at_noise(log_noise)
    )


def _fixed_point_at(
    observations: Observations,
    noise: float,
    threshold: float,
    v: float,
    estimate: ShrunkMatrix,
) -> NuclearFixedPoint:
    """Build the fixed point from its order parameters (effective noise, threshold, susceptibility v, estimate), with the loss
    that remains at these observations.
    """
    remaining_loss = 0.0
    if not math.isinf(v):
        loss_terms = observations.weights * (estimate.error + observations.noise)
        loss_terms = loss_terms / (1 + v * observations.weights) ** 2
        remaining_loss = float(observations.kappa_alpha / 2 * np.sum(loss_terms))
    return NuclearFixedPoint(noise, threshold, v, estimate, remaining_loss)


def _fixed_point_near(
    prior: Prior,
    observations: Observations,
    penalty: float,
    positive: bool,
    nearby_solution: NuclearFixedPoint,
) -> NuclearFixedPoint | None:
    """Find the fixed point at a penalty, for these observations, with a root finder in the logarithms of the effective noise
    Delta and the threshold theta, started at ``nearby_solution``, a fixed point of a similar penalty; None if it fails. Matrices
    are positive semidefinite if ``positive``.
    """
    from scipy.optimize import root

    def order_parameters_at(
        log_noise_and_threshold: Host,
    ) -> tuple[float, float, float, ShrunkMatrix]:
        """Effective noise, threshold, susceptibility and estimate at the logarithms ``log_noise_and_threshold``."""
        noise, threshold = (
            math.exp(min(max(float(log_parameter), -60.0), 60.0))
            for log_parameter in log_noise_and_threshold
        )
        estimate = shrunk_matrix(prior, noise, threshold, positive)
        return (
            noise,
            threshold,
            observations.susceptibility(estimate.degrees_of_freedom),
            estimate,
        )

    def residuals(log_noise_and_threshold: Host) -> list[float]:
        """Residuals of the equations of effective noise and penalty, as logarithms of ratios, at the logarithms
        ``log_noise_and_threshold`` and the susceptibility v that belongs to them.
        """
        noise, threshold, v, estimate = order_parameters_at(log_noise_and_threshold)
        noise_residual = math.log(
            observations.effective_noise(estimate.error, v) / noise
        )
        if math.isinf(v):  # a penalty below zero
            return [noise_residual, -50.0]
        return [
            noise_residual,
            math.log(threshold * observations.stiffness(v) / penalty),
        ]

    initial_logarithms = [
        math.log(nearby_solution.noise),
        math.log(nearby_solution.threshold),
    ]
    root_solution = root(residuals, initial_logarithms, options={"xtol": 1e-12})
    if max(map(abs, residuals(root_solution.x))) > 1e-9:
        return None
    return _fixed_point_at(observations, *order_parameters_at(root_solution.x))


def _threshold_of_penalty(
    prior: Prior,
    observations: Observations,
    noise: float,
    penalty: float,
    positive: bool,
) -> float:
    """Threshold theta of the eigenvalues that belongs to the penalty tau at a given effective noise: the root of
    ``theta Qhat(theta) = tau``, with Qhat the information of the observations. Matrices are positive semidefinite if
    ``positive``.
    """
    from scipy.optimize import brentq

    observation_ratio = observations.kappa_alpha * len(observations.weights)

    def penalty_excess(threshold: float) -> float:
        """Penalty that belongs to a threshold and its susceptibility v, minus the given penalty; at penalty 0 the number of
        observations minus the estimate's degrees of freedom.
        """
        degrees_of_freedom = shrunk_matrix(
            prior, noise, threshold, positive
        ).degrees_of_freedom
        if penalty == 0:
            return observation_ratio - degrees_of_freedom
        v = observations.susceptibility(degrees_of_freedom)
        if math.isinf(v):
            return -penalty
        return threshold * observations.stiffness(v) - penalty

    smallest_threshold = penalty / observations.stiffness(0.0)
    if penalty_excess(smallest_threshold) >= 0:
        return smallest_threshold
    bracket_width = math.sqrt(noise) + smallest_threshold
    while penalty_excess(smallest_threshold + bracket_width) < 0:
        smallest_threshold = smallest_threshold + bracket_width
        bracket_width = 2 * bracket_width
    largest_threshold = smallest_threshold + bracket_width
    root_tolerances = {"xtol": 1e-14 * bracket_width, "rtol": 1e-13}
    return float(
        brentq(penalty_excess, smallest_threshold, largest_threshold, **root_tolerances)
    )


def penalty_of_zero_estimate(
    prior: Prior, observations: Observations, positive: bool
) -> float:
    """Smallest penalty tau for which the estimate, positive semidefinite if ``positive``, is zero: the spectral edge of
    ``Qhat (S + sqrt(Delta) Z)``, with Qhat the information of the observations and Delta the effective noise of a zero
    estimate.
    """
    effective_noise = observations.effective_noise(
        float(prior.second_moment(1)[0, 0]), 0.0
    )
    edge_signs = (1,) if positive else (1, -1)
    spectral_edges = (
        spectral_edge(prior, effective_noise, edge_sign) for edge_sign in edge_signs
    )
    largest_eigenvalue = max(0.0, *spectral_edges)
    return largest_eigenvalue * observations.stiffness(0.0)


def best_penalty(
    prior: Prior, observations: Observations, positive: bool
) -> tuple[float, NuclearFixedPoint]:
    """Find the penalty tau with the smallest predicted error for signals of this prior and these observations, and its fixed
    point, among positive semidefinite estimates if ``positive``.
    """
    from scipy.optimize import minimize_scalar

    fixed_points: dict[float, NuclearFixedPoint] = {}

    def error_at(log_penalty: float) -> float:
        """Predicted error at the penalty ``exp(log_penalty)``, from a fixed point that is started at that of the nearest penalty
        so far.
        """
        nearby_solution = None
        if fixed_points:
            nearest_log_penalty = min(
                fixed_points,
                key=lambda known_log_penalty: abs(known_log_penalty - log_penalty),
            )
            nearby_solution = fixed_points[nearest_log_penalty]
        penalty = math.exp(log_penalty)
        minimum = fixed_point(prior, observations, penalty, positive, nearby_solution)
        fixed_points[log_penalty] = minimum
        return minimum.error

    log_decade = math.log(10)
    required_error_ratio = 1 - SMALL_GAIN
    error_of_recovery = NEGLIGIBLE_ERROR * float(prior.second_moment(1)[0, 0])
    log_penalty = math.log(penalty_of_zero_estimate(prior, observations, positive))
    previous_error = math.inf
    lowest_error = error_at(log_penalty)
    while error_of_recovery < lowest_error < required_error_ratio * previous_error:
        log_penalty -= log_decade
        previous_error = lowest_error
        lowest_error = error_at(log_penalty)
    log_penalty_bounds = log_penalty, log_penalty + 2 * log_decade
    minimize_scalar(
        error_at, bounds=log_penalty_bounds, method="bounded", options={"xatol": 1e-3}
    )
    best_log_penalty = min(
        fixed_points,
        key=lambda known_log_penalty: fixed_points[known_log_penalty].error,
    )
    return math.exp(best_log_penalty), fixed_points[best_log_penalty]


def perfect_recovery(
    prior: Prior, observation_count: int, kappa: float, positive: bool
) -> float:
    r"""Sample ratio above which noiseless labels, ``observation_count`` observations a sample, and a vanishing penalty recover
    the signal perfectly, by estimates that are positive semidefinite if ``positive``: the statistical dimension over ``kappa
    observation_count``; kappa is 2 for symmetric matrices, else 1.

    With a fraction p of eigenvalues zero and the semicircle sigma, ``kappa alpha K`` is

    .. math:: \min_t \; 1 - p^2 + (1 - p) t^2 + p \int \sigma(dx) (\sqrt p\, x - t)_+^2

    (twice the integral for matrices of both signs), the statistical dimension of the cone of descent.
    """
    from scipy.integrate import quad
    from scipy.optimize import minimize_scalar

    zero_fraction = zero_eigenvalue_fraction(prior)
    bulk_edge = 2 * math.sqrt(zero_fraction)
    sign_count = 1 if positive else 2

    def statistical_dimension(threshold: float) -> float:
        """Upper bound, for a threshold t, of the statistical dimension of the cone of directions in which the nuclear norm
        decreases; its minimum over t is that dimension.
        """

        def integrand(angle: float) -> float:
            """Squared excess above the threshold of the eigenvalue ``bulk_edge cos(angle)`` of the semicircle law, weighted by
            that law.
            """
            squared_excess = (bulk_edge * math.cos(angle) - threshold) ** 2
            return squared_excess * math.sin(angle) ** 2 * 2 / math.pi

        largest_angle = 0.0
        if bulk_edge > 0:
            largest_angle = math.acos(min(threshold / bulk_edge, 1.0))
        tail_integral = quad(integrand, 0.0, largest_angle)[0]
        return float(
            1
            - zero_fraction * zero_fraction
            + (1 - zero_fraction) * threshold * threshold
            + sign_count * zero_fraction * tail_integral
        )

    minimization = minimize_scalar(
        statistical_dimension,
        bounds=(0.0, 2.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(
        min(minimization.fun, statistical_dimension(0.0)) / (kappa * observation_count)
    )


# -- descent on a wide factor with weight decay has the same minimum ----------------------------------------------------


def label_observations(problem: Problem, alpha: float) -> Observations | str:
    """Observations of single latents z by labels y at sample ratio alpha, with the weights that they have in the squared error of
    the label, or the reason why that loss is not convex. ``label_gains`` are the coefficients of the latents in the labels.

    The label has to be linear in the latents, one entry for each: ``y_c = b_c z_c + noise``; the weight is ``b_c^2``.
    """
    observation = linear_observation(problem)
    if isinstance(observation, str):
        return (
            f"the squared error of the label is not convex in the signal: {observation}"
        )
    sites = problem.model.sites
    rng = monte_carlo_rng("labels of single latents")
    random_latents = rng.standard_normal((1, sites))
    z = np.concatenate([np.eye(sites), random_latents])[:, None, :]
    y = np.asarray(predict(problem.channel, z), dtype=float).reshape(sites + 1, -1)
    label_gains, random_output = y[:-1], y[-1]
    noise_covariance = (
        observation.combinations.T
        @ np.diag(observation.noise)
        @ observation.combinations
    )
    if (
        y.shape[1] != sites
        or len(observation.combinations) < sites
        or not _is_diagonal(label_gains)
        or not _is_diagonal(noise_covariance)
        or not np.allclose(random_output, random_latents[0] @ label_gains, atol=SAME)
    ):
        return "theory needs labels that are single latents plus noise"
    kappa_alpha = problem.model.kappa * alpha
    return Observations(
        np.diag(label_gains) ** 2, np.diag(noise_covariance), kappa_alpha
    )


def _is_diagonal(matrix: Host) -> bool:
    """Whether a matrix is diagonal up to rounding."""
    return np.allclose(matrix, np.diag(np.diag(matrix)), atol=SAME)


def wide_factor_point(
    problem: Problem,
    alpha: float,
    decay: float,
    dimension: int | None,
    width: int | None,
) -> AlgorithmPrediction | str:
    r"""Predict the minimum over factors W (``width`` columns) of ``(1/D) [sum_mu |y - y_hat|^2 + (decay/2) |W|^2]``, the loss of
    labels y with weight decay, at sample ratio alpha, or return why there is no theory. ``gram_scale`` is s in ``S = s W W^T``,
    ``penalty`` is tau, that of the nuclear norm of S.

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
    if reason := why_no_theory(problem):
        return reason
    prior_factor = problem.prior.factor
    gram_scale = prior_factor and prior_factor.gram_scale
    if prior_factor is None or gram_scale is None:
        return (
            f"prior {problem.prior.name!r} does not make its signals of W W^T, or Q K^T"
        )
    if dimension is None:
        return "the minimum depends on the width of the factor over D: theory needs the dimension D of the runs"
    observations = label_observations(problem, alpha)
    if isinstance(observations, str):
        return observations
    rng = monte_carlo_rng("shape of a factor")
    factor = prior_factor.draw(rng, 1, dimension, width)
    column_count = factor.shape[-1]
    penalty = decay / (2 * dimension * gram_scale(factor))
    restrict_to_positive = is_symmetric(problem.model)
    minimum = fixed_point(problem.prior, observations, penalty, restrict_to_positive)
    if minimum.estimate.relative_rank > column_count / dimension:
        return (
            f"the factor has {column_count} columns, fewer than the rank of the minimum "
            f"({minimum.estimate.relative_rank * dimension:.0f} of D = {dimension}): descent can end in other minima"
        )
    return replace(
        minimum_point(problem, alpha, minimum, restrict_to_positive),
        method="minimum over a wide factor, if the steps are enough to reach it; state evolution",
    )
