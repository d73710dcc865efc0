"""Wishart prior of attention-indexed models: signals are the product of key and query matrices of extensive rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array, Factor, Law
from smimbench_attention.priors.product import ProductPrior
from smimbench_attention.priors.wishart.spectral_law import (
    continued_map,
    eigenvalue_map,
    mmse,
    observed_law,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Host

__all__ = ["Wishart", "continued_map", "eigenvalue_map", "mmse", "observed_law"]


def _eigenvalue_map(
    eigenvalues: Host, noise: float, rho: float, *, continued: bool
) -> Host:
    """Function from observed to denoised eigenvalues, or its continuation for an iteration at finite size."""
    shrink = continued_map if continued else eigenvalue_map
    return shrink(eigenvalues, noise, rho)


@dataclass(frozen=True)
class Wishart(ProductPrior):
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
    _spectrum = "eigenvalues"
    _factors = 1
    _law_error = 1e-10
    _mmse = staticmethod(mmse)
    _shrink = staticmethod(_eigenvalue_map)

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Law of the eigenvalues: means over the spectrum of noisy signals, and the size of overlap fluctuations."""
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

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean ``sqrt(r/D) I`` (P, D, D), host; ParameterError if ``rho`` is 0."""
        scale = math.sqrt(self._width(dimension) / dimension)
        return np.repeat((scale * np.eye(dimension))[None], components, axis=0)

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: ``rho`` in every entry of (P, P), host. At finite D the diagonal of the second
        moment is larger by 1/D.
        """
        return np.full((components, components), self.rho)

    def _decompose(self, matrix: Array) -> tuple[Array, Array, Array]:
        xp = namespace(matrix)
        eigenvalues, vectors = xp.linalg.eigh(matrix)
        return vectors, eigenvalues, xp.matrix_transpose(vectors)

    def _observed_law(
        self, noise: float, breaks: Sequence[float]
    ) -> tuple[Host, float, list[Host]]:
        weights, *law = observed_law(noise, self.rho, breaks)
        return weights, weights.sum(), law

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
