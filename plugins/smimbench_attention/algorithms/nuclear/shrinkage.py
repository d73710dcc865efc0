"""The spectral denoiser of the nuclear norm: soft-thresholded eigenvalues of a noisy matrix, and their means in the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array, Host, Prior, Uncertain
from smimbench.numerics import symmetric


class ShrunkMatrix(NamedTuple):
    """Properties in the limit of the shrunk matrix f(R), an estimate of the signal S from a noisy matrix R: squared error,
    overlap with S, squared norm, nuclear norm, degrees of freedom (divergence of f), and rank over D.

    Attributes
    ----------
    error : float
        ``|f(R) - S|_F^2 / D``.
    signal_overlap, squared_norm, nuclear_norm : float
        ``tr f(R) S / D``, ``|f(R)|_F^2 / D`` and ``|f(R)|_* / D``.
    degrees_of_freedom : float
        ``div f / (D^2 / 2)``, degrees of freedom over those of a symmetric matrix: 1 for the identity.
    relative_rank : float
        Rank over D.
    numerical_error : float
        Numerical error of ``error``.
    """

    error: float  # |f(R) - S|^2 / D
    signal_overlap: float  # tr f(R) S / D
    squared_norm: float  # |f(R)|^2 / D
    nuclear_norm: float  # sum of |eigenvalues| / D
    degrees_of_freedom: float  # div f / (D^2 / 2)
    relative_rank: float  # rank / D
    numerical_error: float = 0.0  # numerical error of ``error``


def soft_threshold(eigenvalues: Array, threshold: float, positive: bool) -> Array:
    """Soft-threshold eigenvalues (any shape), the proximal map of the nuclear norm: move them towards zero by ``threshold``,
    at most to zero; negative ones give 0 if ``positive``.
    """
    shrunk_positive_eigenvalues = clip(eigenvalues - threshold, 0.0, None)
    if positive:
        return shrunk_positive_eigenvalues
    return shrunk_positive_eigenvalues - clip(-eigenvalues - threshold, 0.0, None)


def apply_to_singular_values(
    matrix: Array, function: Callable[[Array], Array]
) -> Array:
    """Apply a function f to the singular values s of matrices (..., P, P): ``U diag(f(s)) V^T`` with the singular vectors U
    and V.
    """
    xp = namespace(matrix)
    left_vectors, singular_values, right_vectors = xp.linalg.svd(matrix)
    return xp.matmul(
        left_vectors * function(singular_values)[..., None, :], right_vectors
    )


def spectrum(matrix: Array, is_symmetric: bool) -> Array:
    """Eigenvalues of matrices (..., d, d) if ``is_symmetric``, otherwise their singular values with both signs (..., 2 d)."""
    xp = namespace(matrix)
    if is_symmetric:
        return xp.linalg.eigvalsh(symmetric(matrix))
    singular_values = xp.linalg.svdvals(matrix)
    return xp.concat([singular_values, -singular_values], axis=-1)


def _spectral_means(
    prior: Prior,
    integrand: Callable[[Host, Host, Host], Host],
    noise: float,
    break_points: Sequence[float] = (),
) -> Uncertain:
    """Means of ``integrand(x, mean, variance)`` over the eigenvalues x of the noisy matrix ``S + sqrt(noise) Z``, with
    posterior mean and variance of the signal S along their eigenvectors; ``break_points`` are where it jumps or has a kink.
    """
    assert prior.law.spectral_means is not None
    return prior.law.spectral_means(integrand, noise, break_points)


def shrunk_matrix(
    prior: Prior, noise: float, threshold: float, positive: bool
) -> ShrunkMatrix:
    r"""Error, overlap and norms in the limit of f(R), the soft threshold of the eigenvalues of ``R = S + sqrt(noise) Z``, as
    an estimate of the signal S of this prior; f(R) is positive semidefinite if ``positive``.

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

    def integrands(x: Host, signal_mean: Host, signal_variance: Host) -> Host:
        """Fields of ``ShrunkMatrix`` (6, n) before averaging over the eigenvalues x (n,) of R, with posterior mean
        (``signal_mean``) and variance of the signal along their eigenvectors; f are the eigenvalues after the soft threshold.
        """
        f = soft_threshold(x, threshold, positive)
        is_nonzero = (f != 0).astype(float)
        squared_error = (f - signal_mean) ** 2 + signal_variance
        divergence = f * (x - signal_mean) / noise
        return np.stack(
            [squared_error, f * signal_mean, f * f, np.abs(f), divergence, is_nonzero]
        )

    break_points = (threshold,) if positive else (-threshold, threshold)
    spectral_means = _spectral_means(prior, integrands, noise, break_points)
    numerical_error = float(np.asarray(spectral_means.error)[0])
    return ShrunkMatrix(*map(float, spectral_means.value))._replace(
        numerical_error=numerical_error
    )


def shrunk_histogram(
    prior: Prior, noise: float, threshold: float, positive: bool
) -> dict[str, object]:
    """Eigenvalue histogram of f(R), the soft threshold of ``R = S + sqrt(noise) Z`` for signals S of this prior: ``mass``
    between 61 ``edges``, and the mass of ``zeros``; no negative eigenvalues if ``positive``.
    """
    upper_spectral_edge = spectral_edge(prior, noise, 1) - threshold
    lower_spectral_edge = (
        0.0 if positive else -(spectral_edge(prior, noise, -1) - threshold)
    )
    bin_edges = np.linspace(
        min(lower_spectral_edge, 0.0), max(upper_spectral_edge, 1e-3), 61
    )

    def indicators(x: Host, signal_mean: Host, signal_variance: Host) -> Host:
        """Indicators (61, n) of the 60 bins of the histogram and of zero: whether an eigenvalue x of R (n,) falls there after the
        soft threshold, as f. The signal's posterior mean and variance there are not used.
        """
        f = soft_threshold(x, threshold, positive)
        bin_numbers = np.searchsorted(bin_edges, f, side="right") - 1
        in_bins = [
            (bin_numbers == bin_number) & (f != 0)
            for bin_number in range(len(bin_edges) - 1)
        ]
        return np.stack([*in_bins, f == 0]).astype(float)

    # An eigenvalue f of the estimate comes from f + theta, or from f - theta below zero.
    break_points = {
        float(bin_edge) + math.copysign(threshold, bin_edge) for bin_edge in bin_edges
    }
    break_points |= {threshold, -threshold}
    bin_masses = _spectral_means(prior, indicators, noise, sorted(break_points)).value
    *bin_masses, mass_of_zeros = np.asarray(bin_masses).tolist()
    return {"edges": bin_edges.tolist(), "mass": bin_masses, "zeros": mass_of_zeros}


def spectral_edge(prior: Prior, noise: float, sign: int) -> float:
    """Upper edge (``sign`` 1) or negative lower edge (``sign`` -1) of the spectrum of ``S + sqrt(noise) Z`` for signals S of this
    prior, beyond which a fraction 1e-9 of the eigenvalues is left.
    """
    from scipy.optimize import brentq

    def excess_mass(trial_edge: float) -> float:
        """Fraction of the eigenvalues beyond a trial edge, minus 1e-9."""

        def is_beyond(x: Host, *_: Host) -> Host:
            """Indicator (1, n) of eigenvalues x beyond the trial edge."""
            return (sign * x > trial_edge)[None, :].astype(float)

        mass_beyond = _spectral_means(prior, is_beyond, noise, (sign * trial_edge,))
        return float(mass_beyond.value[0]) - 1e-9

    upper_bound_of_edge = 2 * math.sqrt(noise)
    while excess_mass(upper_bound_of_edge) > 0:
        upper_bound_of_edge *= 2
    lower_bound_of_edge = -upper_bound_of_edge
    while excess_mass(lower_bound_of_edge) < 0:
        lower_bound_of_edge *= 2
    return float(
        brentq(
            excess_mass, lower_bound_of_edge, upper_bound_of_edge, rtol=1e-6, xtol=1e-9
        )
    )


def zero_eigenvalue_fraction(prior: Prior) -> float:
    """Fraction of zero eigenvalues of signals S of this prior, counted as eigenvalues that stay tiny when S is observed with a
    tiny noise.
    """
    tiny_noise = 1e-18
    zero_tolerance = 3 * math.sqrt(tiny_noise)

    def counts_as_zero(x: Host, *_: Host) -> Host:
        """Indicator (1, n) of observed eigenvalues x (n,) that are zero up to the tiny noise."""
        return (np.abs(x) < zero_tolerance)[None, :].astype(float)

    break_points = (-zero_tolerance, zero_tolerance)
    zero_fraction = _spectral_means(prior, counts_as_zero, tiny_noise, break_points)
    return float(zero_fraction.value[0])
