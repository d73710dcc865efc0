"""Matrices of extensive rank with a given spectrum: a prior that defines its law of eigenvalues and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from smimbench import Capabilities, ParameterError
from smimbench.interfaces import Law

__all__ = ["Spectrum"]


@dataclass(frozen=True)
class Spectrum:
    r"""Symmetric matrices ``S = O \Lambda O^T`` of given eigenvalues, the diagonal of Lambda: O is uniformly random and the law
    of the eigenvalues is given by its quantiles.

    The N numbers are the quantiles at ``(i - 1/2) / N`` of the law, which is interpolated linearly between them and ends at
    the first and the last: two numbers are the uniform law between them. smimbench scales the law to unit variance, draws the
    matrices, and takes the posterior mean and the state-evolution map from the free convolution of the law with a semicircle.

    Parameters
    ----------
    eigenvalues : list of float
        At least two different numbers, in any order: the spectrum of a matrix of any size. Write the list of a suite inside
        a second pair of brackets, because a plain list is an axis of the grid.

    References
    ----------
    Derived, checked by tests/test_spectrum.py.
    """

    eigenvalues: tuple[float, ...] = (-1.0, 1.0)

    name = "spectrum"
    version = 1
    reference = "derived, checked by tests/test_spectrum.py"
    capabilities = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        """Check that the eigenvalues are finite and at least two of them differ."""
        eigenvalues: Any = self.eigenvalues
        if (
            not all(math.isfinite(eigenvalue) for eigenvalue in eigenvalues)
            or len(set(eigenvalues)) < 2
        ):
            raise ParameterError(
                "eigenvalues",
                f"must list at least two different finite numbers, got {eigenvalues}",
            )

    @property
    def law(self) -> Law:
        """Law of the eigenvalues, given by its quantile function of u in (0, 1), which interpolates between the sorted
        eigenvalues.
        """
        eigenvalues = np.sort(np.asarray(self.eigenvalues, dtype=float))
        return Law(
            quantile=lambda u: np.interp(
                u, (np.arange(len(eigenvalues)) + 0.5) / len(eigenvalues), eigenvalues
            )
        )
