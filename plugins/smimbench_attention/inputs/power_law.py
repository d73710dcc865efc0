"""Independent Gaussian tokens whose features follow a power-law or custom spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import asarray_like
from smimbench.interfaces import Capabilities, Inputs, ParameterError, require
from smimbench.interfaces.checks import LARGEST_PARAMETER

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Host


@dataclass(frozen=True)
class PowerLaw(Inputs):
    r"""Independent Gaussian tokens whose features have variances from a power law or a given spectrum.
    The variance of feature k is proportional to ``k^-exponent`` or to entry k of ``spectrum``; ``features`` is their
    number.

    Feature k has the variance

    .. math:: \lambda_k = D\, k^{-a} / \sum_{j=1}^D j^{-a}, \qquad k = 1..D,

    or with that of a given spectrum, scaled to the mean 1. Signals and estimates are in the coordinates of these features, and
    gradient methods descend in them; errors and overlaps of low-rank signals are weighted by the variances, as latents are:
    ``mse = sum_k lambda_k (w_k - w*_k)^2 / D``.

    Parameters
    ----------
    exponent : float
        a, 0 to 20; 0 is ``gaussian``.
    spectrum : list of float or None
        Variances > 0 of all D features, instead of the power law.
    features : int or None
        D for which theory is solved, as the spectrum changes with it; a suite fills in its dimension. Without it: no theory.

    References
    ----------
    Derived, checked by tests/inputs/test_power_law.py.
    """

    exponent: float = 1.0
    spectrum: list[float] | None = None
    features: int | None = None

    name = "power-law"
    version = 1
    reference = "arXiv:2411.12135"
    capabilities = Capabilities()
    gaussian = True  # inputs are Gaussian

    def __post_init__(self) -> None:
        """Check the exponent, the number of features and the spectrum of variances."""
        require(self, "exponent", 0 <= self.exponent <= 20, "between 0 and 20")
        require(
            self, "features", self.features is None or self.features >= 1, "at least 1"
        )
        if self.spectrum is not None:
            invalid_variances = [
                variance
                for variance in self.spectrum
                if not 1 / LARGEST_PARAMETER <= variance <= LARGEST_PARAMETER
            ]
            if invalid_variances or not self.spectrum:
                allowed_range = (
                    f"between {1 / LARGEST_PARAMETER:g} and {LARGEST_PARAMETER:g}"
                )
                raise ParameterError(
                    "spectrum",
                    f"must be a list of numbers {allowed_range}, got {invalid_variances[:3]}",
                )
            require(
                self,
                "exponent",
                self.exponent == 1.0,
                "left out where a spectrum is given",
            )
            if self.features not in (None, len(self.spectrum)):
                raise ParameterError(
                    "features",
                    f"must be {len(self.spectrum)}, the length of the spectrum, got {self.features}",
                )
            object.__setattr__(self, "features", len(self.spectrum))

    @property
    def shape(self) -> tuple[None, int | None]:  # type: ignore[override]
        """Number of tokens (None: any) and number of features, if it is set."""
        return None, self.features

    def feature_variances(self, dimension: int) -> Host:
        """Variances (D,) of the features, scaled to mean 1; ParameterError if D is not the number of features."""
        if self.features not in (None, dimension):
            raise ParameterError(
                "features",
                f"must equal the dimension D = {dimension}, got {self.features}",
            )
        if self.spectrum is not None:
            variances = np.asarray(self.spectrum, dtype=float)
        else:
            variances = np.arange(1.0, dimension + 1) ** -self.exponent
        return np.asarray(variances / variances.mean())

    def transform(self, z: Array) -> Array:
        """Multiply every feature of ``z`` (n, T, D), iid normal numbers, by the square root of its variance."""
        return z * asarray_like(np.sqrt(self.feature_variances(z.shape[-1])), z)
