"""Least squares for labels that are linear in the signal plus noise, shared by the convex baselines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smimbench.backend import asarray_like, matching, namespace, sample_chunks
from smimbench.derive import predict
from smimbench.interfaces import (
    Algorithm,
    Array,
    Data,
    Host,
    Overlaps,
    checked_posterior,
)
from smimbench.numerics import monte_carlo_rng, outer_product, symmetric
from smimbench.problem import Problem

PROBES = 16
"""Random labels at which a posterior is tested for being Gaussian."""

SAME = 1e-6
"""Largest departure from a Gaussian posterior, or difference of penalties, that counts as rounding."""


class LinearObservation(NamedTuple):
    """Linear combinations of the latents z that a label observes, as rows (k, P C) for k combinations of P C latents, and the
    variances (k,) of their noise; on the host.

    Attributes
    ----------
    combinations : ndarray (k, P C)
        Orthonormal; the label is ``combinations @ vec(z)`` plus noise, and contains nothing else.
    noise : ndarray (k,)
        Variance of that noise.
    """

    combinations: Host
    noise: Host

    @property
    def has_equal_noise(self) -> bool:
        """Whether all observed combinations have the same noise, up to rounding."""
        return bool(np.ptp(self.noise) <= SAME * self.noise.max())


def linear_observation(problem: Problem) -> LinearObservation | str:
    r"""Linear observation of the latents z that a channel is equivalent to, or the reason why there is none. It is read from
    the channel's posteriors of z at random labels y, for priors N(omega, V), which must be Gaussian with one covariance. P
    and C are the numbers of components and sites.

    A label amounts to ``A z + noise`` exactly if the posterior of ``z ~ N(omega, I)`` is Gaussian with a covariance
    Sigma that depends on neither label nor omega, and a mean that is ``Sigma omega`` plus a function of the label.
    Along an eigenvector of Sigma with eigenvalue s the noise is ``s / (1 - s)``; ``s = 1`` is not seen at all. This holds
    for linear labels, and for the logarithms of softmax probabilities of one attention-indexed layer, which determine all
    latents up to one common shift. The posterior is tested at random labels, so that it works for any channel.
    """
    P, C = problem.components, problem.model.sites
    latent_count = P * C
    rng = monte_carlo_rng("what labels show: latents")
    channel = problem.channel
    y = channel.forward(rng.standard_normal((PROBES, P, C)), rng=rng)
    zero_means, V = np.zeros((PROBES, P, C)), np.eye(P)
    posterior = channel.posterior(y, zero_means, V, second_moment=True, rng=rng)
    posterior = checked_posterior(posterior, zero_means)
    if posterior.second_moment is None:
        return f"channel {channel.name!r} does not provide the second moment of its posterior"
    posterior_means = np.asarray(posterior.mean).reshape(PROBES, latent_count)
    second_moments = np.asarray(posterior.second_moment).reshape(
        PROBES, latent_count, latent_count
    )
    posterior_covariances = second_moments - outer_product(
        posterior_means, posterior_means
    )
    mean_covariance = posterior_covariances.mean(0)
    omega = rng.standard_normal((PROBES, P, C))
    shifted_means = np.asarray(channel.posterior(y, omega, V, rng=rng).mean)
    expected_means = (
        posterior_means + omega.reshape(PROBES, latent_count) @ mean_covariance
    )
    departure_from_gaussian = max(
        np.abs(posterior_covariances - mean_covariance).max(),
        np.abs(shifted_means.reshape(PROBES, latent_count) - expected_means).max(),
    )
    if departure_from_gaussian > SAME:
        return f"labels of channel {channel.name!r} are not linear in the signal"
    eigenvalues, eigenvectors = np.linalg.eigh(symmetric(mean_covariance))
    # A variance below this, in units of the prior's, is none; an eigenvalue this close to 1 is not identifiable.
    rounding_margin = max(1e-12, 10 * departure_from_gaussian)
    is_identifiable = eigenvalues < 1 - rounding_margin
    posterior_variances = np.clip(eigenvalues[is_identifiable], 0.0, None)
    noise_variances = np.where(
        posterior_variances < rounding_margin,
        0.0,
        posterior_variances / (1 - posterior_variances),
    )
    if not is_identifiable.any():
        return f"labels of channel {channel.name!r} contain no information about the signal"
    if (noise_variances == 0).any() and (noise_variances > 0).any():
        return f"channel {channel.name!r} gives some labels with noise and some without, which least squares cannot weigh"
    return LinearObservation(eigenvectors[:, is_identifiable].T, noise_variances)


def additive_noise(problem: Problem) -> Host | None:
    """Noise variances (P C,) of labels that are the latents z (P components, C sites) plus noise, with equal variances; None
    for all other labels.
    """
    rng = monte_carlo_rng("convex losses: what labels are")
    z = rng.standard_normal((4, problem.components, problem.model.sites))
    output = np.asarray(predict(problem.channel, z))
    if output.shape != z.shape or not np.allclose(output, z, rtol=0, atol=1e-12):
        return None
    observation = linear_observation(problem)
    if (
        isinstance(observation, str)
        or not observation.has_equal_noise
        or len(observation.combinations) != z[0].size
    ):
        return None
    return observation.noise


class RidgeAverages(NamedTuple):
    """Averages that determine the overlaps of ridge regression, over features of variance lambda, each learned to the share
    s: gain ``mean of lambda s``, squares of bias and gain, fitted share of a label, noise gain and the denominator of the
    error.

    The variances lambda of the features have mean 1.

    A feature is learned to the share ``s = lambda / (kappa + lambda)``, with ``penalty / kappa + mean of s = ratio``.

    Attributes
    ----------
    mean_gain, squared_bias, squared_gain : float
        Means of ``lambda s``, of ``lambda (1 - s)^2`` and of ``lambda s^2``.
    fitted_fraction : float
        ``v / (1 + v)`` of the susceptibility v, the mean of ``s`` over the ratio: how far a label pulls its latent.
    noise_gain, error_denominator : float
        Mean of ``s^2`` over the ratio, and 1 minus that: the error is
        ``(squared_bias T + noise_gain noise) / error_denominator``.
    """

    mean_gain: float  # mean of lambda s
    squared_bias: float  # mean of lambda (1 - s)^2
    squared_gain: float  # mean of lambda s^2
    fitted_fraction: float  # share of a label that is fitted
    noise_gain: float  # mean of s^2 over the ratio
    error_denominator: float  # 1 - noise_gain


def ridge_averages(
    latents_per_direction: float, penalty: float, feature_variances: Host | None = None
) -> RidgeAverages:
    """Averages over features that determine ridge regression at a penalty >= 0, with ``latents_per_direction`` observed latents
    for every dimension (alpha times sites), for features of variance 1 or given ``feature_variances``.

    From a quadratic equation for features of variance 1, otherwise from the one equation for kappa
    (arXiv:1903.08560, theorem 5).
    """
    if feature_variances is not None:
        return _averages_over_features(
            latents_per_direction, penalty, feature_variances
        )
    # The unlearned fraction u solves u^2 + 2 b u = penalty.
    half_linear_coefficient = (penalty + latents_per_direction - 1) / 2
    root_of_discriminant = float(np.hypot(half_linear_coefficient, np.sqrt(penalty)))
    # Each form avoids cancellation on its side.
    if half_linear_coefficient >= 0:
        unlearned_fraction = (
            penalty / (half_linear_coefficient + root_of_discriminant)
            if penalty
            else 0.0
        )
        fitted_fraction = 1 / (half_linear_coefficient + root_of_discriminant + 1)
        unfitted_fraction = (half_linear_coefficient + root_of_discriminant) / (
            half_linear_coefficient + root_of_discriminant + 1
        )
    else:
        unlearned_fraction = root_of_discriminant - half_linear_coefficient
        fitted_fraction = unlearned_fraction / (unlearned_fraction + penalty)
        unfitted_fraction = penalty / (unlearned_fraction + penalty)
    learned_fraction = latents_per_direction * fitted_fraction
    return RidgeAverages(
        mean_gain=learned_fraction,
        squared_bias=unlearned_fraction**2,
        squared_gain=learned_fraction**2,
        fitted_fraction=fitted_fraction,
        noise_gain=learned_fraction * fitted_fraction,
        error_denominator=unlearned_fraction * fitted_fraction + unfitted_fraction,
    )


def _averages_over_features(
    latents_per_direction: float, penalty: float, feature_variances: Host
) -> RidgeAverages:
    """Averages that determine ridge regression with ``latents_per_direction`` observed latents for every dimension, for features
    of variances lambda (``feature_variances``), each learned to the share ``lambda / (kappa + lambda)``; kappa, the effective
    penalty, is solved for.
    """
    from scipy.optimize import brentq

    def excess_latents(log_kappa: float) -> float:
        """Latents per direction that belong to the effective penalty ``kappa = exp(log_kappa)``, minus
        ``latents_per_direction``.
        """
        kappa = np.exp(log_kappa)
        return float(
            penalty / kappa
            + np.mean(feature_variances / (kappa + feature_variances))
            - latents_per_direction
        )

    kappa = 0.0
    if penalty > 0 or latents_per_direction < 1:
        # kappa < (penalty + 1) / ratio, as the mean of s is below 1 / kappa.
        largest_log_kappa = np.log((penalty + 1) / latents_per_direction)
        lower_bounds_of_log_kappa = largest_log_kappa - 2.0 ** np.arange(1, 12)
        smallest_log_kappa = next(
            bound for bound in lower_bounds_of_log_kappa if excess_latents(bound) > 0
        )
        root_tolerances = {"xtol": 1e-15, "rtol": 1e-15}
        log_kappa = brentq(
            excess_latents, smallest_log_kappa, largest_log_kappa, **root_tolerances
        )
        kappa = float(np.exp(log_kappa))
    learned_fractions = feature_variances / (kappa + feature_variances)
    unlearned_fractions = kappa / (kappa + feature_variances)
    # Without cancellation where nearly all is fitted: ratio - mean s^2 = penalty / kappa + mean s (1 - s).
    unfitted_per_direction = penalty / kappa if kappa else latents_per_direction - 1
    mean_learned_times_unlearned = float(
        np.mean(learned_fractions * unlearned_fractions)
    )
    return RidgeAverages(
        mean_gain=float(np.mean(feature_variances * learned_fractions)),
        squared_bias=float(np.mean(feature_variances * unlearned_fractions**2)),
        squared_gain=float(np.mean(feature_variances * learned_fractions**2)),
        fitted_fraction=float(np.mean(learned_fractions)) / latents_per_direction,
        noise_gain=float(np.mean(learned_fractions**2)) / latents_per_direction,
        error_denominator=(unfitted_per_direction + mean_learned_times_unlearned)
        / latents_per_direction,
    )


def ridge_overlaps(
    T: Host,
    noise: Host,
    latents_per_direction: float,
    penalty: float,
    feature_variances: Host | None = None,
) -> Overlaps:
    """Overlaps in the limit of ridge regression on labels ``z + noise``, for signals of second moment T and noise covariance (P,
    P), at a penalty >= 0, with ``latents_per_direction`` observed latents for every dimension and features of given variances
    (None: all 1).

    Raises
    ------
    ValueError
        Without a penalty and with noise, if the number of labels equals the number of directions: the error is infinite.
    """
    averages = ridge_averages(latents_per_direction, penalty, feature_variances)
    estimate_noise = averages.squared_bias * T + noise
    if averages.error_denominator:
        estimate_noise = (
            averages.noise_gain / averages.error_denominator * estimate_noise
        )
    elif estimate_noise.any():
        raise ValueError(
            "least squares without a penalty has an infinite error on noisy labels where there are as many labels as directions "
            "(alpha = 1 / sites); any penalty above 0 gives a finite error"
        )
    return Overlaps(
        T, averages.mean_gain * T, averages.squared_gain * T + estimate_noise
    )


class LinearRegression(Algorithm):
    """Base class of algorithms for labels that are linear in the signal."""

    validation_note = "; regularisation chosen by validation on a fifth of the samples"

    def refuses(self, problem: Problem) -> str | None:
        """Reason why linear regression does not apply: labels are not linear in the signal; otherwise None."""
        observation = linear_observation(problem)
        return observation if isinstance(observation, str) else None

    @staticmethod
    def observation_and_remark(problem: Problem) -> tuple[LinearObservation, str]:
        """Linear observation of the latents by the labels, and a remark on it for the user (empty if all latents are observed);
        ValueError if labels are not linear.
        """
        observation = linear_observation(problem)
        if isinstance(observation, str):
            raise ValueError(observation)
        observed_count = len(observation.combinations)
        latent_count = problem.components * problem.model.sites
        remark = "sees all latents"
        if observed_count < latent_count:
            remark = f"sees {observed_count} of {latent_count} combinations of the latents (the rest is not identifiable)"
        if observation.noise.max() == 0:
            return observation, f"{remark} without noise"
        return observation, f"{remark} with noise {observation.noise.min():.3g}"

    @staticmethod
    def split_for_validation(
        problem: Problem, data: Data, observation: LinearObservation
    ) -> tuple[LeastSquares, LeastSquares]:
        """Split the data into a training set and a validation set, on which a penalty is chosen, for labels with this linear
        observation of the latents.
        """
        sample_count = int(data.inputs.shape[0])
        if sample_count < 2:
            raise ValueError(
                f"validation needs at least two samples, this data has {sample_count}; give regularisation a number"
            )
        training_count = max(1, min(sample_count - 1, round((1 - 0.2) * sample_count)))
        training_set, validation_set = (
            LeastSquares(
                problem,
                observation,
                data.inputs[sample_range, ...],
                data.labels[sample_range, ...],
            )
            for sample_range in (
                slice(None, training_count),
                slice(training_count, None),
            )
        )
        return training_set, validation_set


class LeastSquares:
    r"""Weighted least-squares loss ``(1/2) sum_i w_i (t_i - (A S)_i)^2`` of a data set as a function of the signal S,
    matrix-free, with targets t, weights w and A the map from S to the combinations of latents that labels observe.

    ``A`` maps a signal to the combinations of latents that labels show; ``w_i`` is the smallest noise over that of the
    entry (1 without noise). Gradients are in the units of the model's ``adjoint``.

    Attributes
    ----------
    noise : float
        The smallest noise, in units of the latents: the weight that a Gaussian prior of the signal's second moment has.
    """

    def __init__(
        self,
        problem: Problem,
        observation: LinearObservation,
        inputs: Array,
        labels: Array,
    ) -> None:
        """Compute targets and weights of all samples, for labels with this linear ``observation`` of the latents. Targets are the
        observed combinations of posterior means of the latents at labels y, for priors N(omega = 0, V = I), without their
        shrinkage.
        """
        xp = namespace(inputs)
        device_and_dtype = matching(inputs)
        self.problem = problem
        self.inputs = inputs
        self.P, self.C = problem.components, problem.model.sites
        self.noise = float(observation.noise.min())
        weights = np.ones_like(observation.noise)
        if self.noise > 0:
            weights = self.noise / observation.noise
        self.combinations = xp.asarray(observation.combinations, **device_and_dtype)
        self.weights = xp.asarray(weights, **device_and_dtype)
        inverse_shrinkage = xp.asarray(1 + observation.noise, **device_and_dtype)
        self.chunks = list(sample_chunks(problem.model, inputs, self.P))
        chunks_of_targets = []
        V = xp.eye(self.P, **device_and_dtype)
        for chunk in self.chunks:
            omega = xp.zeros(
                (chunk.stop - chunk.start, self.P, self.C), **device_and_dtype
            )
            rng = monte_carlo_rng("what labels show: posterior")
            y = labels[chunk, ...]
            posterior_mean = problem.channel.posterior(y, omega, V, rng=rng).mean
            chunks_of_targets.append(
                self._observed_combinations(
                    xp.asarray(posterior_mean, **device_and_dtype)
                )
                * inverse_shrinkage
            )
        self.targets = xp.concat(chunks_of_targets, axis=0)

    def _observed_combinations(self, z: Array) -> Array:
        """Project latents z (..., P, C) to the linear combinations that the labels observe."""
        xp = namespace(z)
        flat_latents = xp.reshape(z, (*z.shape[:-2], self.P * self.C))
        return xp.matmul(flat_latents, xp.matrix_transpose(self.combinations))

    def normal_product(
        self, signal: Array, *, targets: bool = False
    ) -> tuple[Array, Array]:
        """Product ``A^T w (A S)`` for a signal S, with A the map to observed combinations and w the weights, or with ``targets``
        t ``A^T w (t - A S)``, in units of the model's ``adjoint``, and the weighted sum of squares; g is the residual as a
        gradient in the latents z.

        Leading axes of the signal (..., P, ...) are several candidates.
        """
        xp = namespace(signal)
        model = self.problem.model
        normal_product = xp.zeros_like(signal)
        weighted_square = 0.0
        for chunk in self.chunks:
            chunk_inputs = self.inputs[chunk, ...]
            z = model.forward(chunk_inputs, signal)
            residual = self._observed_combinations(z)
            if targets:
                residual = self.targets[chunk, ...] - residual
            weighted_residual = self.weights * residual
            weighted_square = weighted_square + xp.sum(
                weighted_residual * residual, axis=(-2, -1)
            )
            g = xp.reshape(xp.matmul(weighted_residual, self.combinations), z.shape)
            normal_product = normal_product + model.adjoint(chunk_inputs, g)
        return normal_product, weighted_square

    def lipschitz(self, rng: np.random.Generator) -> float:
        """Upper bound of the eigenvalues of ``A^T w A`` (units of ``adjoint``), the Lipschitz constant of the gradient: 2%
        above the result of 30 power iterations.
        """
        xp = namespace(self.inputs)
        initial_vector = self.problem.prior.sample(rng, self.P, self.inputs.shape[-1])
        unit_vector = asarray_like(initial_vector, self.inputs)
        largest_eigenvalue = 0.0
        for _ in range(30):
            unit_vector = unit_vector / xp.sqrt(xp.sum(unit_vector * unit_vector))
            unit_vector, _ = self.normal_product(unit_vector)
            largest_eigenvalue = float(xp.sqrt(xp.sum(unit_vector * unit_vector)))
        return 1.02 * largest_eigenvalue
