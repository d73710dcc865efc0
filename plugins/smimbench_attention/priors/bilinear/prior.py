"""The bilinear prior, the product of independent query and key matrices in attention of extensive rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.backend import matching, namespace, read_together, send, to_host
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
from smimbench_attention.priors.bilinear.singular_law import (
    mmse,
    observed_law,
    singular_map,
)
from smimbench_attention.priors.wishart.prior import MOST_NUMBERS, noise_of_components

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Host


@dataclass(frozen=True)
class Bilinear(Prior):
    r"""Signal of P independent matrices ``S = Q K^T / sqrt(r D)``, Q and K (D, r) with iid N(0, 1) entries.

    ``r = round(rho D)``, at least 1. In the limit of large D: ``E[S_p S_q^T]/D = 1 if p = q else 0``; the prior mean is 0.

    Parameters
    ----------
    rho : float
        Width over dimension, r / D >= 0. Zero stands for the limit of small width with ``Qhat`` counted per
        unit of width, ``t = 1/Qhat = rho Delta``: only ``overlap`` and the moments make sense there.
    symmetric : bool
        Filled in from the model; must be false.

    Raises
    ------
    ParameterError
        If ``rho`` is negative or not finite, or the model's matrices are symmetric.

    Notes
    -----
    Where the dimension is known, the ratio r / D of the matrices really drawn is used in place of ``rho``. Several components
    are estimated one by one, each from ``R_p`` alone, as by the prior ``wishart``; see its notes.

    References
    ----------
    arXiv:2203.07752 (denoiser), arXiv:2410.18858 (bilinear sequence regression); equations for square matrices derived, checked
    by tests/priors/test_bilinear.py.
    """

    rho: float
    symmetric: bool = False

    name = "bilinear"
    version = 1
    reference = "arXiv:2203.07752, arXiv:2410.18858"
    capabilities = Capabilities(models=("attention-indexed",))
    example: ClassVar[dict[str, Any]] = {"rho": 0.5}

    def __post_init__(self) -> None:
        check_number(
            "rho", self.rho, positive=False, most=1e6
        )  # beyond, its laws are those of the limit
        object.__setattr__(self, "rho", float(self.rho))
        if self.symmetric:
            raise ParameterError(
                "name",
                "'bilinear' is for matrices without symmetry: give the model symmetric = false",
            )

    def _width(self, dimension: int) -> int:
        if self.rho == 0:
            raise ParameterError(
                "rho",
                "must be > 0 to run; rho = 0 is the small-width limit, for theory only",
            )
        return max(1, round(self.rho * dimension))

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Means over singular values under noise, each with both signs, and the size of an overlap's fluctuations."""
        return Law(spectral_means=self._spectral_means, fluctuation=self._fluctuation)

    def _fluctuation(self, dimension: int) -> float:
        """Relative standard deviation of ``|S|_F^2 / D`` at finite size, ``sqrt(2 (r + 2 D + 1) / r) / D``, exact.

        Derived from the moments of Q given K and of ``K^T K``, checked by tests/priors/test_bilinear.py.
        """
        r = self._width(dimension)
        return math.sqrt(2 * (r + 2 * dimension + 1) / r) / dimension

    def sample(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw a signal (P, D, D) on the host, float64, of rank at most r; not at rho = 0."""
        return _compose(self._draw_factor(rng, components, dimension))

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean 0 (P, D, D), host; ParameterError if ``rho`` is 0."""
        self._width(dimension)
        return np.zeros((components, dimension, dimension))

    def second_moment(self, components: int) -> Array:
        """Second moment ``E[S_p S_q^T]/D = delta_pq`` (P, P), host, exact at any D."""
        return np.eye(components)

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: 0 (P, P), host."""
        return np.zeros((components, components))

    def denoise(self, R: Array, Qhat: Array, *, continued: bool = False) -> Denoised:
        """Posterior mean of the matrices given ``R = S + Qhat^{-1/2} Z``, and its error.

        Singular vectors of ``R_p`` are kept, singular values go through ``singular_map``, ``V_pp = F(Delta_p)``.

        Parameters
        ----------
        R : array (P, D, D)
            Z has iid entries of variance 1/D.
        Qhat : array (P, P)
            Symmetric, positive semidefinite. 0 returns the prior mean, infinity returns R.
        continued : bool
            For an iteration at finite D: the same where singular values are in the bulk (see ``singular_map``).

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
                f"Qhat must have shape {(components, components)}, got {tuple(Qhat.shape)}"
            )
        xp = namespace(R)
        rho = self._width(dimension) / dimension
        finite = xp.isfinite(R)
        factors = [
            xp.linalg.svd(xp.where(finite, R, xp.zeros_like(R))[p, :, :])
            for p in range(components)
        ]
        # The scalar equations are solved on the host. One transfer brings all.
        Qhat, all_finite, *spectra = read_together(
            Qhat, xp.astype(xp.all(finite), R.dtype), *(s for _, s, _ in factors)
        )
        noise = noise_of_components(Qhat)
        V = send(np.diag(mmse(noise, rho)), R)
        if not all_finite:
            return Denoised(xp.full_like(R, math.nan), V)
        estimate = []
        for values, delta, (U, _, Vh) in zip(spectra, noise, factors):
            shrunk = xp.asarray(
                singular_map(values, float(delta), rho, continued=continued),
                **matching(R),
            )
            estimate.append(xp.matmul(U * shrunk[None, :], Vh))
        return Denoised(xp.stack(estimate), V)

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: ``V_pp = F(Delta_p)`` at ``rho``, ``Q = I - V``.

        In the limit ``rho = 0``: ``V = t (2 - t)``, ``Q = (1 - t)^2`` for ``t = Delta_p < 1``, else 1 and 0: left and right
        singular vectors of a spike both have the squared overlap ``1 - t``.

        ``Qhat`` (..., P, P) as for ``denoise``, leading axes are a batch. ``Q`` and ``V`` (..., P, P) have its namespace, device
        and dtype; both are diagonal.
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
        return Overlap(
            *(
                xp.asarray(identity * f[..., None], **matching(Qhat))
                for f in (gain, error)
            )
        )

    def _spectral_means(
        self,
        function: Callable[[Host, Host, Host], Host],
        noise: float,
        breaks: Sequence[float] = (),
    ) -> Uncertain:
        """Means over the singular values of ``S + sqrt(noise) Z``, each with both signs, in the limit D -> infinity.

        ``function(x, mean, variance)`` of singular values (n,), and of the posterior mean and variance of S in the direction of
        each, to (k, n); ``breaks`` are where it may have a kink or a jump. ParameterError if ``rho`` is 0.
        """
        if self.rho == 0:
            raise ParameterError(
                "rho",
                "must be > 0 for means over singular values; rho = 0 is a limit for theory only",
            )
        weights, *law = observed_law(noise, self.rho, breaks)
        values = np.asarray(function(*law))
        # The rule's own error is below 1e-9; rounding of nodes next to a break is larger.
        return Uncertain(
            values @ weights, 1e-9 * (np.abs(values) @ weights), "quadrature"
        )

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Q above K, (..., 2 D, width), of ``S = Q K^T / sqrt(width D)`` for gradient methods; the width defaults to r."""
        return Factor(
            self._draw_factor,
            _compose,
            _pullback,
            lambda factor: 1 / _halves(factor)[2],
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
            2 * dimension,
            self._width(dimension) if width is None else width,
        )
        if (numbers := math.prod(shape)) > MOST_NUMBERS:
            raise ParameterError(
                "rho",
                f"needs factor matrices with {numbers:.1e} entries at D = {dimension}; reduce rho or D",
            )
        return rng.standard_normal(shape)


def _halves(factor: Array) -> tuple[Array, Array, float]:
    """Q and K (..., D, width) of a factor, and the normalization ``sqrt(width D)`` of their product."""
    dimension = factor.shape[-2] // 2
    width = factor.shape[-1]
    return (
        factor[..., :dimension, :],
        factor[..., dimension:, :],
        math.sqrt(width * dimension),
    )


def _compose(factor: Array) -> Array:
    """Signal ``S = Q K^T / sqrt(width D)`` (..., D, D)."""
    xp, (Q, K, length) = namespace(factor), _halves(factor)
    return xp.matmul(Q, xp.matrix_transpose(K)) / length


def _pullback(factor: Array, gradient: Array) -> Array:
    """Gradients ``G K`` above ``G^T Q``, over ``sqrt(width D)``, for ``G = dL/dS`` (..., D, D)."""
    xp, (Q, K, length) = namespace(factor, gradient), _halves(factor)
    return (
        xp.concat(
            [xp.matmul(gradient, K), xp.matmul(xp.matrix_transpose(gradient), Q)],
            axis=-2,
        )
        / length
    )
