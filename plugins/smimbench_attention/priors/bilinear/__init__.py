"""Bilinear prior: signals are the product of independent query and key matrices in attention of extensive rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array, Factor, Law, ParameterError
from smimbench_attention.priors.bilinear.singular_law import (
    mmse,
    observed_law,
    singular_map,
)
from smimbench_attention.priors.product import ProductPrior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Host

__all__ = ["Bilinear", "mmse", "observed_law", "singular_map"]


@dataclass(frozen=True)
class Bilinear(ProductPrior):
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
    _spectrum = "singular values"
    _factors = 2
    _law_error = 1e-9
    _mmse = staticmethod(mmse)
    _shrink = staticmethod(singular_map)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symmetric:
            raise ParameterError(
                "name",
                "'bilinear' is for matrices without symmetry: give the model symmetric = false",
            )

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Law of the singular values: means over the noisy spectrum, with both signs, and the size of overlap fluctuations."""
        return Law(spectral_means=self._spectral_means, fluctuation=self._fluctuation)

    def _fluctuation(self, dimension: int) -> float:
        """Relative standard deviation of ``|S|_F^2 / D`` at finite size, ``sqrt(2 (r + 2 D + 1) / r) / D``, exact.

        Derived from the moments of Q given K and of ``K^T K``, checked by tests/priors/test_bilinear.py.
        """
        r = self._width(dimension)
        return math.sqrt(2 * (r + 2 * dimension + 1) / r) / dimension

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean 0 (P, D, D), host; ParameterError if ``rho`` is 0."""
        self._width(dimension)
        return np.zeros((components, dimension, dimension))

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: 0 (P, P), host."""
        return np.zeros((components, components))

    def _decompose(self, matrix: Array) -> tuple[Array, Array, Array]:
        left_vectors, singular_values, right_vectors = namespace(matrix).linalg.svd(
            matrix
        )
        return left_vectors, singular_values, right_vectors

    def _observed_law(
        self, noise: float, breaks: Sequence[float]
    ) -> tuple[Host, float, list[Host]]:
        weights, *law = observed_law(noise, self.rho, breaks)
        return weights, 1.0, law

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factor for gradient methods: Q above K (..., 2 D, width) of ``S = Q K^T / sqrt(width D)``; the width defaults to r."""
        return Factor(
            self._draw_factor,
            _compose,
            _pullback,
            lambda factor: 1 / _halves(factor)[2],
            gaussian=True,
        )


def _halves(factor: Array) -> tuple[Array, Array, float]:
    """Split a factor into Q and K (..., D, width), and return the normalization ``sqrt(width D)`` of their product."""
    dimension = factor.shape[-2] // 2
    length = math.sqrt(factor.shape[-1] * dimension)
    return factor[..., :dimension, :], factor[..., dimension:, :], length


def _compose(factor: Array) -> Array:
    """Signal ``S = Q K^T / sqrt(width D)`` (..., D, D)."""
    xp = namespace(factor)
    Q, K, length = _halves(factor)
    return xp.matmul(Q, xp.matrix_transpose(K)) / length


def _pullback(factor: Array, gradient: Array) -> Array:
    """Gradient by the stacked factor ``[Q; K]``: ``[G K; G^T Q] / sqrt(width D)``, for the gradient ``G = dL/dS`` (..., D, D)."""
    xp = namespace(factor, gradient)
    Q, K, length = _halves(factor)
    by_Q = xp.matmul(gradient, K)
    by_K = xp.matmul(xp.matrix_transpose(gradient), Q)
    return xp.concat([by_Q, by_K], axis=-2) / length
