"""The Wishart prior, the product of key and query matrices in attention of extensive rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.backend import (
    matching,
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
    Law,
    Overlap,
    ParameterError,
    Prior,
    Uncertain,
)
from smimbench.interfaces.checks import check_number
from smimbench_attention.priors.wishart.spectral_law import (
    continued_map,
    eigenvalue_map,
    mmse,
    observed_law,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Host

MOST_NUMBERS = 1 << 28
"""Numbers of a factor W; doubled, drawing a signal may take 4 GB."""


@dataclass(frozen=True)
class Wishart(Prior):
    r"""Signal of P independent matrices ``S = W W^T / sqrt(r D)``, ``W`` (D, r) with iid N(0, 1) entries.

    ``r = round(rho D)``, at least 1. In the limit of large D: ``tr S / D = sqrt(rho)`` and
    ``E[S S^T]/D = rho + (1 if p = q else 0)``. The prior mean ``sqrt(r/D) I`` is known, which leaves V = 1.

    Parameters
    ----------
    rho : float
        Width over dimension, r / D >= 0. Zero stands for the limit of small width with ``Qhat`` counted per
        unit of width, ``t = 1/Qhat = rho Delta``: only ``overlap`` and the moments make sense there.

    Raises
    ------
    ParameterError
        If ``rho`` is negative or not finite.

    Notes
    -----
    Where the dimension is known (``mean``, ``denoise``), the ratio r / D of the matrices really drawn is used
    in place of ``rho``; they differ when ``rho D`` is not a whole number.

    With several components the estimate is made layer by layer: from ``R_p`` alone, whose noise has the
    variance ``Delta_p = [Qhat^{-1}]_pp``. This is the posterior mean for P = 1 and for diagonal ``Qhat``.
    Otherwise it leaves unused what the noise of one component says about another, an effect of second order
    in the off-diagonal part: V_pp is the true error of this estimate, the best possible one lies between
    ``F(1/Qhat_pp)`` and V_pp, and off-diagonal entries of V, of first order, are not given.

    References
    ----------
    arXiv:2506.01582 (model and channel); equations derived, checked by tests/priors/test_wishart.py.
    """

    rho: float

    name = "wishart"
    version = 1
    reference = "arXiv:2506.01582"
    capabilities = Capabilities(models=("attention-indexed",))
    example: ClassVar[dict[str, Any]] = {"rho": 0.5}

    def __post_init__(self) -> None:
        check_number(
            "rho", self.rho, positive=False, most=1e6
        )  # beyond, its laws are those of the limit
        object.__setattr__(self, "rho", float(self.rho))

    def _width(self, dimension: int) -> int:
        if self.rho == 0:
            raise ParameterError(
                "rho",
                "must be > 0 to run; rho = 0 is the small-width limit, for theory only",
            )
        return max(1, round(self.rho * dimension))

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Means over eigenvalues under noise, and the size of an overlap's fluctuations."""
        return Law(
            spectral_means=self._spectral_means,
            fluctuation=self._fluctuation,
            eigenvalue_map=lambda values, noise: continued_map(values, noise, self.rho),
        )

    def _fluctuation(self, dimension: int) -> float:
        r"""Relative standard deviation of ``|S|_F^2 / D`` at finite size, exact.

        ``Var tr (W W^T)^2 = 4 r D (2 r^2 + 5 r D + 2 D^2 + 5 r + 5 D + 5)`` over the square of its mean
        ``r D (r + D + 1)``; derived, checked by tests/priors/test_wishart.py.
        """
        r = self._width(dimension)
        d = dimension
        return float(
            (4 * r * d * (2 * r**2 + 5 * r * d + 2 * d**2 + 5 * r + 5 * d + 5)) ** 0.5
            / (r * d * (r + d + 1))
        )

    def sample(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw a signal (P, D, D) on the host, float64, symmetric, positive semidefinite of rank at most r; not at rho = 0."""
        return _compose(self._draw_factor(rng, components, dimension))

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean ``sqrt(r/D) I`` (P, D, D), host; ParameterError if ``rho`` is 0."""
        component_mean = math.sqrt(self._width(dimension) / dimension) * np.eye(
            dimension
        )
        return np.repeat(component_mean[None], components, axis=0)

    def second_moment(self, components: int) -> Array:
        """Second moment ``lim E[S_p S_q]/D = rho + delta_pq`` (P, P), host. At finite D the diagonal is larger by 1/D."""
        return self.mean_overlap(components) + np.eye(components)

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: ``rho`` in every entry of (P, P), host."""
        return np.full((components, components), self.rho)

    def denoise(self, R: Array, Qhat: Array, *, continued: bool = False) -> Denoised:
        """Posterior mean of the matrices given ``R = S + Qhat^{-1/2} Z``, and its error.

        Eigenvectors of ``R_p`` are kept, eigenvalues go through ``eigenvalue_map``, ``V_pp = F(Delta_p)``;
        see the notes of the class on several components.

        Parameters
        ----------
        R : array (P, D, D)
            Symmetric; only one triangle is read, as ``eigh`` of the namespace does. Z is a GOE matrix with
            variance 1/D off the diagonal and 2/D on it.
        Qhat : array (P, P)
            Symmetric, positive semidefinite. 0 returns the prior mean, infinity returns R.
        continued : bool
            For an iteration at finite D: by ``continued_map``, the same where eigenvalues are in the bulk.

        Returns
        -------
        Denoised
            ``estimate`` (P, D, D) and diagonal ``V`` (P, P) with the namespace, device and dtype of R. The
            estimate is NaN where R is not finite: to notice divergence is the caller's part.

        Raises
        ------
        ParameterError
            If ``rho`` is 0.
        ValueError
            If Qhat is not (P, P).
        """
        shrink = continued_map if continued else eigenvalue_map
        components, dimension, _ = R.shape
        if tuple(Qhat.shape) != (components, components):
            raise ValueError(
                f"Qhat must have shape {(components, components)}, got {tuple(Qhat.shape)}"
            )
        xp = namespace(R)
        rho = self._width(dimension) / dimension
        finite = xp.isfinite(R)
        all_finite = xp.all(finite)
        # eigh is kept from what it cannot take; a device is not asked first whether it must be.
        safe = (
            xp.where(finite, R, xp.zeros_like(R))
            if on_device(R) or not all_finite
            else R
        )
        # One at a time: CuPy hands a stack to a method that is slow on a few large ones.
        pairs = [xp.linalg.eigh(safe[p, :, :]) for p in range(components)]
        # The scalar equations are solved on the host, thousands of operations on few numbers. One transfer brings all.
        Qhat, all_finite, *spectra = read_together(
            Qhat, xp.astype(all_finite, R.dtype), *(values for values, _ in pairs)
        )
        noise = noise_of_components(Qhat)
        V = send(np.diag(mmse(noise, rho)), R)
        if not all_finite:
            return Denoised(xp.full_like(R, math.nan), V)
        estimate = []
        for spectrum, delta, (_, vectors) in zip(spectra, noise, pairs):
            shrunk = xp.asarray(shrink(spectrum, float(delta), rho), **matching(R))
            estimate.append(
                xp.matmul(vectors * shrunk[None, :], xp.matrix_transpose(vectors))
            )
        return Denoised(
            estimate[0][None, :, :] if components == 1 else xp.stack(estimate), V
        )

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: ``V_pp = F(Delta_p)`` at ``rho``, ``Q = second_moment - V``.

        In the limit ``rho = 0``: ``V = t (2 - t)``, ``Q = (1 - t)^2`` for ``t = Delta_p < 1``, else 1 and 0.

        ``Qhat`` (..., P, P) as for ``denoise``, leading axes are a batch. ``Q`` and ``V`` (..., P, P) have its namespace, device
        and dtype; V is diagonal.
        """
        xp = namespace(Qhat)
        noise = noise_of_components(to_host(Qhat))
        if self.rho == 0:
            t = np.minimum(noise, 1.0)
            error = t * (2 - t)
            gain = (1 - t) ** 2
        else:
            error = mmse(noise, self.rho)
            gain = 1 - error
        identity = np.eye(noise.shape[-1])
        Q = self.rho + identity * gain[..., None]
        return Overlap(
            *(xp.asarray(f, **matching(Qhat)) for f in (Q, identity * error[..., None]))
        )

    def _spectral_means(
        self,
        function: Callable[[Host, Host, Host], Host],
        noise: float,
        breaks: Sequence[float] = (),
    ) -> Uncertain:
        """Means over the eigenvalues of ``S + sqrt(noise) Z``, in the limit D -> infinity.

        Parameters
        ----------
        function : callable
            ``function(x, mean, variance)`` of eigenvalues (n,), and of the posterior mean and variance of S in the direction of
            each, to (k, n).
        noise : float
            Delta > 0.
        breaks : sequence of float
            Eigenvalues at which the function may have a kink or a jump.

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
                "must be > 0 for means over eigenvalues; rho = 0 is a limit for theory only",
            )
        weights, *law = observed_law(noise, self.rho, breaks)
        values = np.asarray(function(*law))
        total = weights.sum()
        # The rule's own error is below 1e-11; rounding of nodes next to a break is larger.
        return Uncertain(
            values @ weights / total,
            1e-10 * (np.abs(values) @ weights) / total,
            "quadrature",
        )

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factor W of ``S = W W^T / sqrt(width D)`` for gradient methods; its width defaults to r."""
        return Factor(
            self._draw_factor,
            _compose,
            _pullback,
            lambda factor: 1 / _length(factor),
            gaussian=True,
        )

    def _draw_factor(
        self,
        rng: np.random.Generator,
        components: int,
        dimension: int,
        width: int | None = None,
    ) -> Array:
        shape = (
            components,
            dimension,
            self._width(dimension) if width is None else width,
        )
        if (numbers := math.prod(shape)) > MOST_NUMBERS:
            raise ParameterError(
                "rho",
                f"needs a factor matrix with {numbers:.1e} entries at D = {dimension}; reduce rho or D",
            )
        return rng.standard_normal(shape)


def _length(factor: Array) -> float:
    """Normalization ``sqrt(width D)`` of the factor."""
    return math.sqrt(math.prod(factor.shape[-2:]))


def _compose(factor: Array) -> Array:
    """Signal ``S = W W^T / sqrt(width D)`` (..., D, D) of factors (..., D, width)."""
    xp = namespace(factor)
    return xp.matmul(factor, xp.matrix_transpose(factor)) / _length(factor)


def _pullback(factor: Array, gradient: Array) -> Array:
    """Gradient ``dL/dW = (G + G^T) W / sqrt(width D)`` for ``G = dL/dS`` (..., D, D), symmetric or not."""
    xp = namespace(factor, gradient)
    return xp.matmul(gradient + xp.matrix_transpose(gradient), factor) / _length(factor)


def noise_of_components(Qhat: Host) -> Host:
    """Noise variance ``[Qhat^{-1}]_pp`` (..., P) of every component alone; infinite without information."""
    Qhat = np.asarray(Qhat, dtype=np.float64)
    identity = np.eye(Qhat.shape[-1], dtype=bool)
    diagonal = np.diagonal(Qhat, axis1=-2, axis2=-1)
    with np.errstate(divide="ignore"):
        noise = 1 / np.where(diagonal < 0, np.nan, diagonal)
    # Components with Qhat_pp = 0 or infinity are not coupled to the others.
    alone = ~(diagonal > 0) | np.isinf(diagonal)
    coupling = np.where(identity | alone[..., :, None] | alone[..., None, :], 0.0, Qhat)
    if not np.any(coupling):
        return noise
    # With a unit diagonal the inverse depends on the correlations only, whatever the scales.
    scale = np.where(alone, 1.0, diagonal) ** -0.5
    broken = np.any(np.isnan(coupling), axis=(-2, -1))[..., None]
    unit = identity + np.nan_to_num(
        scale[..., :, None] * coupling * scale[..., None, :]
    )
    values, vectors = np.linalg.eigh(unit)
    with np.errstate(over="ignore"):  # rounding may make an eigenvalue 0 or negative
        inflated = noise * np.sum(
            vectors**2 / np.maximum(values, 1e-300)[..., None, :], axis=-1
        )
    return np.where(broken, np.nan, np.where(alone, noise, inflated))
