"""Base class of priors of Gaussian products ``S = A B^T / sqrt(r D)`` of extensive width ``r = round(rho D)``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.backend import (
    asarray_like,
    namespace,
    on_device,
    read_together,
    send,
    to_host,
)
from smimbench.interfaces import (
    Array,
    Capabilities,
    Denoised,
    Factor,
    Overlap,
    ParameterError,
    Prior,
    Uncertain,
)
from smimbench.interfaces.checks import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Host

LARGEST_FACTOR = 1 << 28
"""Largest number of entries of a Gaussian factor; doubled, drawing a signal may take 4 GB."""


class ProductPrior(Prior):
    """Base class of priors whose signals are products of Gaussian factors of width ``r = rho D``; a spectrum is that of
    eigenvalues or singular values, whose law subclasses define. ``example`` holds parameters with which tests build the prior.

    ``rho = 0`` stands for the limit of small width, for theory only. Several components are estimated one by one: from ``R_p``
    alone, whose noise has the variance ``Delta_p = [Qhat^{-1}]_pp``.
    """

    rho: float

    version = 1
    capabilities = Capabilities(models=("attention-indexed",))
    example: ClassVar[dict[str, Any]] = {"rho": 0.5}
    _factors: int  # number of independent factors, stacked in one array
    _spectrum: str  # "eigenvalues" or "singular values"
    _law_error: float  # relative numerical error of means over the spectrum
    _mmse: Callable[[Host, float], Host]  # MMSE at (noise, rho)
    _denoise_spectrum: Callable[
        ..., Host
    ]  # (spectrum, noise, rho) to that of the posterior mean

    def __post_init__(self) -> None:
        """Check that the width ratio ``rho`` is a number from 0 to 1e6, and make it a float."""
        # beyond, the laws are those of the limit
        check_number("rho", self.rho, positive=False, maximum=1e6)
        object.__setattr__(self, "rho", float(self.rho))

    def _width(self, dimension: int) -> int:
        """Width r of the factors in ``dimension`` D; ParameterError if ``rho`` is 0."""
        if self.rho == 0:
            raise ParameterError(
                "rho",
                "must be > 0 to run; rho = 0 is the small-width limit, for theory only",
            )
        return max(1, round(self.rho * dimension))

    def sample(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw a signal (P, D, D) of rank at most r on the host, in float64; ``rho`` must be positive."""
        return self.factor.compose(self.factor.draw(rng, components, dimension))

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factorization of the signal, for gradient methods; the width of factors defaults to r."""
        raise NotImplementedError

    def _draw_factor(
        self,
        rng: np.random.Generator,
        components: int,
        dimension: int,
        width: int | None = None,
    ) -> Array:
        """Draw Gaussian factors (P, D or 2 D, width) of P components in ``dimension`` D, with r columns unless a width is
        given; ParameterError if they are too large.
        """
        width = self._width(dimension) if width is None else width
        shape = (components, self._factors * dimension, width)
        if (entry_count := math.prod(shape)) > LARGEST_FACTOR:
            raise ParameterError(
                "rho",
                f"is too large: it needs factors with {entry_count:.1e} entries at D = {dimension}; reduce rho or D",
            )
        return rng.standard_normal(shape)

    def second_moment(self, components: int) -> Array:
        """Second moment ``lim E[S_p S_q^T]/D`` (P, P) of the signal: ``mean_overlap`` plus the identity; on the host."""
        return self.mean_overlap(components) + np.eye(components)

    def denoise(self, R: Array, Qhat: Array, *, continued: bool = False) -> Denoised:
        """Posterior mean of the signal matrices S (P, D, D) given the observation ``R = S + Qhat^{-1/2} Z`` with information Qhat
        (P, P), and its error V, by a map of the spectrum of each component; ``noise`` are the variances ``[Qhat^{-1}]_pp``,
        ``continued`` extends the map by straight lines outside the bulks. rho is the width ratio of the matrices.

        Eigenvectors (or singular vectors) of ``R_p`` are kept, the spectrum is shrunk, and ``V_pp = F(Delta_p)``.

        Parameters
        ----------
        R : array (P, D, D)
            Z is the noise of the model: of variance 1/D, for a symmetric signal a GOE matrix with 2/D on the diagonal. Of a
            symmetric R only one triangle is read, as ``eigh`` of the namespace does.
        Qhat : array (P, P)
            Symmetric, positive semidefinite. 0 returns the prior mean, infinity returns R.
        continued : bool
            For an iteration at finite D: the same inside the bulks of the spectrum, with no slope above 1 outside.

        Returns
        -------
        Denoised
            ``estimate`` (P, D, D) and diagonal ``V`` (P, P) with the namespace, device and dtype of R. The estimate is NaN
            where R is not finite: to notice divergence is the caller's part.

        Raises
        ------
        ParameterError
            If ``rho`` is 0.
        ValueError
            If Qhat is not (P, P).
        """
        components, dimension, _ = R.shape
        if tuple(Qhat.shape) != (components, components):
            raise ValueError(
                f"the information Qhat must have shape {(components, components)}, got {tuple(Qhat.shape)}"
            )
        xp = namespace(R)
        rho = self._width(dimension) / dimension
        is_finite = xp.isfinite(R)
        all_finite = xp.all(is_finite)
        R_without_nan = R
        # Decompositions are kept from what they cannot take; a device is not asked first whether they must be.
        if on_device(R) or not all_finite:
            R_without_nan = xp.where(is_finite, R, xp.zeros_like(R))
        noise = noise_of_components(to_host(Qhat))
        # One at a time: CuPy hands a stack to a method that is slow on a few large ones.
        decompositions = [
            self._decompose(R_without_nan[component, :, :], float(noise_variance))
            for component, noise_variance in enumerate(noise)
        ]
        # The scalar equations are solved on the host, thousands of operations on few numbers. One transfer brings all.
        all_finite, *spectra = read_together(
            all_finite, *(spectrum for _, spectrum, _ in decompositions)
        )
        V = send(np.diag(self._mmse(noise, rho)), R)
        if not all_finite:
            return Denoised(xp.full_like(R, math.nan), V)
        estimate = []
        for spectrum, noise_variance, (left_vectors, _, right_vectors) in zip(
            spectra, noise, decompositions
        ):
            denoised_spectrum = self._denoise_spectrum(
                spectrum, float(noise_variance), rho, continued=continued
            )
            denoised_on_device = asarray_like(denoised_spectrum, R)
            estimate.append(
                xp.matmul(left_vectors * denoised_on_device[None, :], right_vectors)
            )
        if components == 1:
            return Denoised(estimate[0][None, ...], V)
        return Denoised(xp.stack(estimate), V)

    def _decompose(self, matrix: Array, noise: float) -> tuple[Array, Array, Array]:
        """Decompose a matrix (D, D), a signal with noise of this variance, into left vectors (columns), spectrum (eigenvalues or
        singular values), and right vectors (rows); each subclass defines it.
        """
        raise NotImplementedError

    def overlap(self, Qhat: Array) -> Overlap:
        """Overlap ``Q = second_moment - V`` and error V (P, P) of the posterior mean at the information Qhat of its
        observation: ``V_pp`` is the MMSE at the noise variance ``Delta_p = [Qhat^{-1}]_pp`` and width ratio rho.

        In the limit ``rho = 0``: ``V = t (2 - t)``, ``Q = (1 - t)^2`` for ``t = Delta_p < 1``, else 1 and 0: left and right
        vectors of a spike both have the squared overlap ``1 - t``.

        ``Qhat`` (..., P, P) as for ``denoise``, leading axes are a batch. ``Q`` and ``V`` (..., P, P) have its namespace, device
        and dtype; V is diagonal.
        """
        noise = noise_of_components(to_host(Qhat))
        if self.rho == 0:
            capped_noise = np.minimum(noise, 1.0)
            error = capped_noise * (2 - capped_noise)
            diagonal_overlaps = (1 - capped_noise) ** 2
        else:
            error = self._mmse(noise, self.rho)
            diagonal_overlaps = 1 - error
        components = noise.shape[-1]
        identity = np.eye(components)
        Q = self.mean_overlap(components) + identity * diagonal_overlaps[..., None]
        V = identity * error[..., None]
        return Overlap(asarray_like(Q, Qhat), asarray_like(V, Qhat))

    def _observed_law(
        self, noise: float, breaks: Sequence[float]
    ) -> tuple[Host, float, list[Host]]:
        """Quadrature over the spectrum of ``S + sqrt(noise) Z``, with panels of nodes that end at the points ``breaks`` of the
        spectrum: weights (K,), their sum, and arrays at the K nodes (value, posterior mean and variance); each subclass defines
        it.

        The arrays are the observed value, and the posterior mean and variance of S in its direction.
        """
        raise NotImplementedError

    def _spectral_means(
        self,
        function: Callable[[Host, Host, Host], Host],
        noise: float,
        breaks: Sequence[float] = (),
    ) -> Uncertain:
        """Means of ``function(x, mean, variance)`` over the spectrum of ``S + sqrt(noise) Z``, in the limit D -> infinity, where
        x are observed values, mean and variance those of the posterior of S there; ``breaks`` are points of the spectrum where
        the function jumps or has a kink.

        Parameters
        ----------
        function : callable
            ``function(x, mean, variance)`` of the numbers of the spectrum (n,), and of the posterior mean and variance of S in
            the direction of each, to (k, n).
        noise : float
            Delta > 0.
        breaks : sequence of float
            Numbers at which the function may have a kink or a jump.

        Returns
        -------
        Uncertain
            ``value`` (k,) and its error, host.

        Raises
        ------
        ParameterError
            If ``rho`` is 0.
        """
        if self.rho == 0:
            raise ParameterError(
                "rho",
                f"must be > 0 for means over {self._spectrum}; rho = 0 is a limit for theory only",
            )
        quadrature_weights, weight_sum, node_arguments = self._observed_law(
            noise, breaks
        )
        node_values = np.asarray(function(*node_arguments))
        # The rule's own error is a tenth of this or less; rounding of nodes next to a break is larger.
        error = self._law_error * (np.abs(node_values) @ quadrature_weights)
        return Uncertain(
            node_values @ quadrature_weights / weight_sum,
            error / weight_sum,
            "quadrature",
        )


def noise_of_components(Qhat: Host) -> Host:
    """Noise variance ``[Qhat^{-1}]_pp`` (..., P) with which each component p is observed at the information Qhat (..., P, P);
    infinite without information.
    """
    Qhat = np.asarray(Qhat, dtype=np.float64)
    Qhat_diagonal = Qhat.diagonal(axis1=-2, axis2=-1)
    with np.errstate(divide="ignore"):
        noise = 1 / Qhat_diagonal
    noise[Qhat_diagonal < 0] = np.nan
    if Qhat.shape[-1] == 1:
        return noise
    identity = np.eye(Qhat.shape[-1], dtype=bool)
    # Components with Qhat_pp = 0 or infinity are not coupled to the others.
    is_uncoupled = ~(Qhat_diagonal > 0) | np.isinf(Qhat_diagonal)
    off_diagonal_Qhat = np.where(
        identity | is_uncoupled[..., :, None] | is_uncoupled[..., None, :], 0.0, Qhat
    )
    if not np.any(off_diagonal_Qhat):
        return noise
    # With a unit diagonal the inverse depends on the correlations only, whatever the scales.
    diagonal_scale = np.where(is_uncoupled, 1.0, Qhat_diagonal) ** -0.5
    has_nan = np.any(np.isnan(off_diagonal_Qhat), axis=(-2, -1))[..., None]
    correlations = (
        diagonal_scale[..., :, None] * off_diagonal_Qhat * diagonal_scale[..., None, :]
    )
    eigenvalues, eigenvectors = np.linalg.eigh(identity + np.nan_to_num(correlations))
    # rounding may make an eigenvalue 0 or negative
    positive_eigenvalues = np.maximum(eigenvalues, 1e-300)[..., None, :]
    with np.errstate(over="ignore"):
        coupled_noise = noise * np.sum(eigenvectors**2 / positive_eigenvalues, axis=-1)
    return np.where(has_nan, np.nan, np.where(is_uncoupled, noise, coupled_noise))


def mmse_of_any_noise(
    mmse: Callable[[Host], Array],
    noise: Host | float,
    smallest_noise: float,
    largest_noise: float,
) -> Host:
    """Extend the function ``mmse``, which holds for noise variances between ``smallest_noise`` and ``largest_noise``, to noise of
    any size and shape; NaN for negative noise.

    The error is proportional to the noise below and 1 above; negative numbers and NaN give NaN. ``mmse`` maps noise (n,) to
    errors (n,).
    """
    noise = np.asarray(noise, dtype=np.float64)
    flat_noise = noise.reshape(-1)
    clipped_noise = np.fmax(np.fmin(flat_noise, largest_noise), smallest_noise)
    share = flat_noise / clipped_noise
    error: Host = np.minimum(mmse(clipped_noise), 1.0) * share
    error[share > 1] = 1.0
    error[share < 0] = np.nan
    return error.reshape(noise.shape)


@lru_cache(maxsize=1)
def double_exponential() -> tuple[Host, Host]:
    """Nodes and weights on (0, 1) of the double-exponential (tanh-sinh) quadrature rule ``t = 1/(1 + exp(-pi sinh u))``, at
    equidistant u (``spacing`` apart). ``decay`` is ``exp(-pi sinh u)``.

    It does not care how sharp the corner of the density is at an end of a piece: the same few nodes serve soft edges, hard
    edges, and bulks that are about to merge. Errors are rounding; with half of the nodes they are 1e-10.
    """
    u, spacing = np.linspace(-3.15, 3.15, 81, retstep=True)
    decay = np.exp(-np.pi * np.sinh(u))
    t = 1 / (1 + decay)
    return t, spacing * np.pi * np.cosh(u) * decay * t * t
