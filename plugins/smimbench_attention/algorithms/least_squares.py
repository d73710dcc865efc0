"""Least squares for labels that are linear in the signal plus noise, shared by the convex baselines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smimbench.backend import matching, namespace, sample_chunks
from smimbench.derive import predict
from smimbench.interfaces import (
    Algorithm,
    Array,
    Data,
    Host,
    Overlaps,
    checked_posterior,
)
from smimbench.numerics import monte_carlo_rng, symmetric
from smimbench.problem import Problem

PROBES = 16
"""Random labels at which a posterior is tested for being Gaussian."""

SAME = 1e-6
"""Largest departure from a Gaussian posterior, or difference of penalties, that counts as rounding."""


class Linear(NamedTuple):
    """Linear combinations of the latents that a label observes, and their noise; on the host.

    Attributes
    ----------
    rows : ndarray (k, P C)
        Orthonormal; the label is ``rows @ vec(z)`` plus noise, and contains nothing else.
    noise : ndarray (k,)
        Variance of that noise.
    """

    rows: Host
    noise: Host

    @property
    def has_equal_noise(self) -> bool:
        """Whether all observed combinations have the same noise, up to rounding."""
        return bool(np.ptp(self.noise) <= SAME * self.noise.max())


def linear_observation(problem: Problem) -> Linear | str:
    r"""Linear observation of the latents that a channel is equivalent to, or the reason why there is none.

    A label amounts to ``A z + noise`` exactly if the posterior of ``z ~ N(omega, I)`` is Gaussian with a covariance
    Sigma that depends on neither label nor omega, and a mean that is ``Sigma omega`` plus a function of the label.
    Along an eigenvector of Sigma with eigenvalue s the noise is ``s / (1 - s)``; ``s = 1`` is not seen at all. This holds
    for linear labels, and for the logarithms of softmax probabilities of one attention-indexed layer, which determine all
    latents up to one common shift. The posterior is tested at random labels, so that it works for any channel.
    """
    P, C = problem.components, problem.model.sites
    size = P * C
    rng = monte_carlo_rng("what labels show: latents")
    channel = problem.channel
    y = channel.forward(rng.standard_normal((PROBES, P, C)), rng=rng)
    zero, V = np.zeros((PROBES, P, C)), np.eye(P)
    posterior = channel.posterior(y, zero, V, second_moment=True, rng=rng)
    posterior = checked_posterior(posterior, zero)
    if posterior.second_moment is None:
        return f"channel {channel.name!r} does not provide the second moment of its posterior"
    mean = np.asarray(posterior.mean).reshape(PROBES, size)
    moment = np.asarray(posterior.second_moment).reshape(PROBES, size, size)
    covariances = moment - mean[:, :, None] * mean[:, None, :]
    covariance = covariances.mean(0)
    omega = rng.standard_normal((PROBES, P, C))
    moved = np.asarray(channel.posterior(y, omega, V, rng=rng).mean)
    linear_mean = mean + omega.reshape(PROBES, size) @ covariance
    departure = max(
        np.abs(covariances - covariance).max(),
        np.abs(moved.reshape(PROBES, size) - linear_mean).max(),
    )
    if departure > SAME:
        return f"labels of channel {channel.name!r} are not linear in the signal"
    eigenvalues, vectors = np.linalg.eigh(symmetric(covariance))
    # A variance below this, in units of the prior's, is none; an eigenvalue this close to 1 is not identifiable.
    margin = max(1e-12, 10 * departure)
    is_identifiable = eigenvalues < 1 - margin
    variances = np.clip(eigenvalues[is_identifiable], 0.0, None)
    noise = np.where(variances < margin, 0.0, variances / (1 - variances))
    if not is_identifiable.any():
        return f"labels of channel {channel.name!r} contain no information about the signal"
    if (noise == 0).any() and (noise > 0).any():
        return f"channel {channel.name!r} gives some labels with noise and some without, which least squares cannot weigh"
    return Linear(vectors[:, is_identifiable].T, noise)


def noise_of_identity(problem: Problem) -> Host | None:
    """Noise variances (P C,) of labels ``z + noise`` with equal variances; None for all other labels."""
    rng = monte_carlo_rng("convex losses: what labels are")
    z = rng.standard_normal((4, problem.components, problem.model.sites))
    output = np.asarray(predict(problem.channel, z))
    if output.shape != z.shape or not np.allclose(output, z, rtol=0, atol=1e-12):
        return None
    linear = linear_observation(problem)
    if (
        isinstance(linear, str)
        or not linear.has_equal_noise
        or len(linear.rows) != z[0].size
    ):
        return None
    return linear.noise


class RidgeShares(NamedTuple):
    """Means over the features that determine the overlaps of ridge regression: learned signal, bias and noise.

    The variances lambda of the features have mean 1.

    A feature is learned to the share ``s = lambda / (kappa + lambda)``, with ``penalty / kappa + mean of s = ratio``.

    Attributes
    ----------
    learned, missing, square : float
        Means of ``lambda s``, of ``lambda (1 - s)^2`` and of ``lambda s^2``.
    fitted : float
        ``v / (1 + v)`` of the susceptibility v, the mean of ``s`` over the ratio: how far a label pulls its latent.
    noise_share, denominator : float
        Mean of ``s^2`` over the ratio, and 1 minus that: the error is ``(missing T + noise_share * noise) / denominator``.
    """

    learned: float
    missing: float
    square: float
    fitted: float
    noise_share: float
    denominator: float


def ridge_shares(
    ratio: float, penalty: float, features: Host | None = None
) -> RidgeShares:
    """Compute the learned shares of ridge regression at a penalty >= 0, with ``ratio`` observed latents per direction.

    From a quadratic equation for features of variance 1, otherwise from the one equation for kappa
    (arXiv:1903.08560, theorem 5).
    """
    if features is not None:
        return _shares_of_features(ratio, penalty, features)
    b = (penalty + ratio - 1) / 2
    root = float(np.hypot(b, np.sqrt(penalty)))
    # Each form avoids cancellation on its side.
    if b >= 0:
        unseen = penalty / (b + root) if penalty else 0.0
        fitted, free = 1 / (b + root + 1), (b + root) / (b + root + 1)
    else:
        unseen = root - b
        fitted, free = unseen / (unseen + penalty), penalty / (unseen + penalty)
    learned = ratio * fitted
    return RidgeShares(
        learned=learned,
        missing=unseen**2,
        square=learned**2,
        fitted=fitted,
        noise_share=learned * fitted,
        denominator=unseen * fitted + free,
    )


def _shares_of_features(ratio: float, penalty: float, features: Host) -> RidgeShares:
    """Learned shares of ridge regression for features of given variances."""
    from scipy.optimize import brentq

    def excess(x: float) -> float:
        kappa = np.exp(x)
        return float(penalty / kappa + np.mean(features / (kappa + features)) - ratio)

    kappa = 0.0
    if penalty > 0 or ratio < 1:
        # kappa < (penalty + 1) / ratio, as the mean of s is below 1 / kappa.
        top = np.log((penalty + 1) / ratio)
        low = next(x for x in top - 2.0 ** np.arange(1, 12) if excess(x) > 0)
        kappa = float(np.exp(brentq(excess, low, top, xtol=1e-15, rtol=1e-15)))
    learned, unseen = features / (kappa + features), kappa / (kappa + features)
    # Without cancellation where nearly all is fitted: ratio - mean s^2 = penalty / kappa + mean s (1 - s).
    unfitted = penalty / kappa if kappa else ratio - 1
    return RidgeShares(
        learned=float(np.mean(features * learned)),
        missing=float(np.mean(features * unseen**2)),
        square=float(np.mean(features * learned**2)),
        fitted=float(np.mean(learned)) / ratio,
        noise_share=float(np.mean(learned**2)) / ratio,
        denominator=(unfitted + float(np.mean(learned * unseen))) / ratio,
    )


def ridge_overlaps(
    T: Host, noise: Host, ratio: float, penalty: float, features: Host | None = None
) -> Overlaps:
    """Overlaps in the limit of ridge regression on labels ``z + noise`` with noise covariance (P, P), at a penalty >= 0.

    Raises
    ------
    ValueError
        Without a penalty and with noise, if the number of labels equals the number of directions: the error is infinite.
    """
    shares = ridge_shares(ratio, penalty, features)
    blur = shares.missing * T + noise
    if shares.denominator:
        blur = shares.noise_share / shares.denominator * blur
    elif blur.any():
        raise ValueError(
            "least squares without a penalty has an infinite error on noisy labels where there are as many labels as directions "
            "(alpha = 1 / sites); any penalty above 0 gives a finite error"
        )
    return Overlaps(T, shares.learned * T, shares.square * T + blur)


class LinearRegression(Algorithm):
    """Base class of algorithms for labels that are linear in the signal."""

    validation_note = "; regularisation chosen by validation on a fifth of the samples"

    def refuses(self, problem: Problem) -> str | None:
        """Reason why linear regression does not apply: labels are not linear in the signal; otherwise None."""
        linear = linear_observation(problem)
        return linear if isinstance(linear, str) else None

    @staticmethod
    def observed(problem: Problem) -> tuple[Linear, str]:
        """Linear observation of the latents by the labels, and its description; ValueError if labels are not linear."""
        linear = linear_observation(problem)
        if isinstance(linear, str):
            raise ValueError(linear)
        count, size = len(linear.rows), problem.components * problem.model.sites
        note = "sees all latents"
        if count < size:
            note = f"sees {count} of {size} combinations of the latents (the rest is not identifiable)"
        if linear.noise.max() == 0:
            return linear, f"{note} without noise"
        return linear, f"{note} with noise {linear.noise.min():.3g}"

    @staticmethod
    def held_out(
        problem: Problem, data: Data, linear: Linear
    ) -> tuple[LeastSquares, LeastSquares]:
        """Split the data into samples to learn from and samples on which a penalty is chosen."""
        n = int(data.inputs.shape[0])
        if n < 2:
            raise ValueError(
                f"validation needs at least two samples, this data has {n}; give regularisation a number"
            )
        cut = max(1, min(n - 1, round((1 - 0.2) * n)))
        to_fit, to_validate = (
            LeastSquares(
                problem, linear, data.inputs[samples, ...], data.labels[samples, ...]
            )
            for samples in (slice(None, cut), slice(cut, None))
        )
        return to_fit, to_validate


class LeastSquares:
    r"""Weighted least-squares loss ``(1/2) sum_i w_i (t_i - (A S)_i)^2`` of a data set, matrix-free.

    ``A`` maps a signal to the combinations of latents that labels show; ``w_i`` is the smallest noise over that of the
    entry (1 without noise). Gradients are in the units of the model's ``adjoint``.

    Attributes
    ----------
    noise : float
        The smallest noise, in units of the latents: the weight that a Gaussian prior of the signal's second moment has.
    """

    def __init__(
        self, problem: Problem, linear: Linear, inputs: Array, labels: Array
    ) -> None:
        xp, device_and_dtype = namespace(inputs), matching(inputs)
        self.problem, self.inputs = problem, inputs
        self.P, self.C = problem.components, problem.model.sites
        self.noise = float(linear.noise.min())
        weights = np.ones_like(linear.noise)
        if self.noise > 0:
            weights = self.noise / linear.noise
        self.rows = xp.asarray(linear.rows, **device_and_dtype)
        self.weights = xp.asarray(weights, **device_and_dtype)
        gain = xp.asarray(1 + linear.noise, **device_and_dtype)
        self.chunks = list(sample_chunks(problem.model, inputs, self.P))
        targets = []
        V = xp.eye(self.P, **device_and_dtype)
        for chunk in self.chunks:
            omega = xp.zeros(
                (chunk.stop - chunk.start, self.P, self.C), **device_and_dtype
            )
            rng = monte_carlo_rng("what labels show: posterior")
            y = labels[chunk, ...]
            mean = problem.channel.posterior(y, omega, V, rng=rng).mean
            targets.append(self._along(xp.asarray(mean, **device_and_dtype)) * gain)
        self.targets = xp.concat(targets, axis=0)

    def _along(self, z: Array) -> Array:
        """Project latents to the linear combinations that the labels observe."""
        xp = namespace(z)
        flat = xp.reshape(z, (*z.shape[:-2], self.P * self.C))
        return xp.matmul(flat, xp.matrix_transpose(self.rows))

    def normal(self, signal: Array, *, targets: bool = False) -> tuple[Array, Array]:
        """Product ``A^T w (A S)``, or ``A^T w (t - A S)``, in units of ``adjoint``, and the weighted sum of squares.

        Leading axes of the signal (..., P, ...) are several candidates.
        """
        xp = namespace(signal)
        model = self.problem.model
        product, square = xp.zeros_like(signal), 0.0
        for chunk in self.chunks:
            x = self.inputs[chunk, ...]
            z = model.forward(x, signal)
            r = self._along(z)
            if targets:
                r = self.targets[chunk, ...] - r
            weighted = self.weights * r
            square = square + xp.sum(weighted * r, axis=(-2, -1))
            g = xp.reshape(xp.matmul(weighted, self.rows), z.shape)
            product = product + model.adjoint(x, g)
        return product, square

    def lipschitz(self, rng: np.random.Generator) -> float:
        """Upper bound of the eigenvalues of ``A^T w A`` (units of ``adjoint``): 2% above the result of 30 power iterations."""
        xp = namespace(self.inputs)
        start = self.problem.prior.sample(rng, self.P, self.inputs.shape[-1])
        v = xp.asarray(start, **matching(self.inputs))
        size = 0.0
        for _ in range(30):
            v = v / xp.sqrt(xp.sum(v * v))
            v, _ = self.normal(v)
            size = float(xp.sqrt(xp.sum(v * v)))
        return 1.02 * size
