"""Matrices with the spectrum of Wishart matrices and no factor: a prior that gives the quantiles of the eigenvalues alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from smimbench import Capabilities
from smimbench.interfaces import Law
from smimbench.interfaces.checks import check_number

__all__ = ["WishartSpectrum"]

ANGLES = 20_001
"""Points at which the distribution function is computed; between them it is interpolated. Doubled: eigenvalues change by 1e-8."""


@dataclass(frozen=True)
class WishartSpectrum:
    r"""Symmetric matrices with the eigenvalues of ``W W^T / sqrt(r d)``, ``rho = r / d``, in uniformly random bases.

    The signals are those of the prior ``wishart``, as d grows. But there is no factor W: gradient methods move in the matrix
    itself.

    Parameters
    ----------
    rho : float
        Width over dimension, r / d > 0.

    References
    ----------
    Marchenko and Pastur (1967), Math. USSR Sb. 1, 457; checked by tests/test_spectrum.py.
    """

    rho: float = 1.0

    name = "wishart-spectrum"
    version = 1
    reference = "arXiv:2609.03858"
    capabilities = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        """Check that rho is positive."""
        check_number("rho", self.rho, positive=True)

    @property
    def law(self) -> Law:
        """Law of the eigenvalues, by its quantile function.

        With ``lambda = (1 + rho + 2 sqrt(rho) sin t) / sqrt(rho)`` and t from -pi/2 to pi/2 the density in t is smooth; for
        rho < 1 there is an atom of weight 1 - rho at 0.
        """
        t = np.linspace(-math.pi / 2, math.pi / 2, ANGLES)
        eigenvalues = (1 + self.rho) / math.sqrt(self.rho) + 2 * np.sin(t)
        ratio = np.cos(t) ** 2 / np.where(eigenvalues > 1e-12, eigenvalues, 1.0)
        # At rho = 1 the lower edge is 0, where the quotient is that of the limit.
        density = np.where(eigenvalues > 1e-12, ratio, 1.0)
        shares = np.cumsum((density[1:] + density[:-1]) / 2)
        shares = np.concatenate([[0.0], shares]) / shares[-1]
        bulk = min(1.0, self.rho)

        def quantile(u: Any) -> Any:
            """Eigenvalue below which a share u of all eigenvalues lies."""
            share_of_bulk = (np.asarray(u) - (1 - bulk)) / bulk
            bulk_eigenvalues = np.interp(share_of_bulk, shares, eigenvalues)
            return np.where(share_of_bulk > 0, bulk_eigenvalues, 0.0)

        return Law(quantile=quantile)
