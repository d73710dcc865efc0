"""Independent tokens: Gaussian, heavy-tailed, on a sphere, or one-hot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Capabilities, Inputs, require
from smimbench.interfaces.checks import LARGEST_PARAMETER

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Host


class Independent(Inputs):
    """Base class of uncorrelated tokens with entries of variance 1."""

    version = 1
    capabilities = Capabilities()

    def token_covariance(self, tokens: int) -> Host:
        """Covariance (T, T) between the tokens of a sample: the identity."""
        return np.eye(tokens)

    def feature_variances(self, dimension: int) -> Host:
        """Variances (D,) of the features, all equal to 1."""
        return np.ones(dimension)


@dataclass(frozen=True)
class GaussianInputs(Independent):
    """Independent N(0, 1) entries: the inputs that all theory assumes.

    References
    ----------
    arXiv:2502.00901, arXiv:2506.01582.
    """

    name = "gaussian"
    reference = "arXiv:2502.00901"
    gaussian = True  # inputs are Gaussian

    def transform(self, z: Array) -> Array:
        """Turn iid normal numbers ``z`` (n, T, D) into inputs: they are returned unchanged."""
        return z


@dataclass(frozen=True)
class HeavyTails(Independent):
    r"""Independent entries with Student's t distribution, scaled to variance 1.
    ``degrees`` are the degrees of freedom.

    .. math:: p(x) \propto \Big(1 + \frac{x^2}{\nu - 2}\Big)^{-(\nu + 1) / 2}

    Parameters
    ----------
    degrees : float
        Degrees of freedom, > 2. Moments of this order and above are infinite; the Gaussian is the limit of many.

    References
    ----------
    Student, Biometrika 6, 1 (1908).
    """

    degrees: float = 5.0

    name = "heavy-tails"
    reference = "Student, Biometrika 6, 1 (1908)"

    def __post_init__(self) -> None:
        """Check that the degrees of freedom give a finite variance."""
        is_valid_degrees = 2 < self.degrees <= LARGEST_PARAMETER
        require(
            self,
            "degrees",
            is_valid_degrees,
            f"> 2 and at most {LARGEST_PARAMETER:g}, so that the variance is finite",
        )

    def draw(
        self, rng: np.random.Generator, n: int, tokens: int, dimension: int
    ) -> Host:
        """Draw inputs (n, T, D), n samples of T tokens in D dimensions, on the host."""
        inputs = rng.standard_t(self.degrees, (n, tokens, dimension))
        inputs *= math.sqrt(1 - 2 / self.degrees)
        return inputs


@dataclass(frozen=True)
class Sphere(Independent):
    """Independent tokens, each uniform on the sphere ``|x|^2 = D``, as after normalization of Gaussian tokens."""

    name = "sphere"
    reference = "uniform measure on the sphere"

    def transform(self, z: Array) -> Array:
        """Scale every token of ``z`` (n, T, D), iid normal numbers, to the length ``sqrt(D)``."""
        xp = namespace(z)
        return z * xp.sqrt(z.shape[-1] / xp.sum(z * z, axis=-1, keepdims=True))


@dataclass(frozen=True)
class OneHot(Independent):
    """Independent tokens ``+-sqrt(D) e_k`` with k uniform in 1..D and a random sign.

    They have mean 0, covariance 1 and length ``sqrt(D)``. Projections of a token are not Gaussian at any D.
    """

    name = "one-hot"
    reference = "uniform measure on the coordinate axes"

    def draw(
        self, rng: np.random.Generator, n: int, tokens: int, dimension: int
    ) -> Host:
        """Draw inputs (n, T, D), n samples of T tokens in D dimensions, on the host."""
        inputs = np.zeros((n, tokens, dimension))
        nonzero_features = rng.integers(0, dimension, (n, tokens, 1))
        signs = 2.0 * rng.integers(0, 2, nonzero_features.shape) - 1
        np.put_along_axis(
            inputs, nonzero_features, math.sqrt(dimension) * signs, axis=-1
        )
        return inputs
