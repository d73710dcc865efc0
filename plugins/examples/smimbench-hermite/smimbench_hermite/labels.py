"""Channels whose label is a Hermite polynomial of the single latent of one token, plus Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat

from smimbench import Capabilities, ParameterError
from smimbench.backend import namespace
from smimbench.interfaces.checks import check_number

__all__ = ["FirstHermite", "SecondHermite", "ThirdHermite"]


def hermite(degree: int, x: Any) -> Any:
    """Hermite polynomial of this degree, normalized so that its mean square is 1 for a standard normal x:
    ``sqrt(k + 1) h_(k+1) = x h_k - sqrt(k) h_(k-1)``.
    """
    previous, current = 0 * x, 0 * x + 1
    for k in range(degree):
        following = (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, following
    return current


@dataclass(frozen=True)
class HermiteLabels:
    r"""Base class of channels with the label ``y = h(z / sqrt(variance)) + sqrt(noise) xi`` of the latent z of one token, where h
    is the Hermite polynomial of the class's ``degree``. Labels are (n, 1, 1).

    Parameters
    ----------
    noise : float
        Variance Delta > 0 of the noise.
    variance : float
        Variance of the latents, ``E tr S^2 / d``: 1 + rho for Wishart matrices. Then the polynomials of the labels are
        orthogonal.
    tokens : int
        Must be 1; filled in from the model.
    """

    noise: float = 0.1
    variance: float = 1.0
    tokens: int = 1

    version = 1
    reference = "arXiv:2609.03858"
    capabilities = Capabilities(models=("attention-indexed",))
    components = 1
    degree: ClassVar[int]

    def __post_init__(self) -> None:
        """Check that noise and variance are positive and there is one token."""
        check_number("noise", self.noise, positive=True)
        check_number("variance", self.variance, positive=True)
        if self.tokens != 1:
            raise ParameterError(
                "tokens", f"must be 1 for this channel, got {self.tokens}"
            )

    def predict(self, z: Any) -> Any:
        """Noiseless label of the latents z."""
        return hermite(self.degree, z / math.sqrt(self.variance))

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Gradient of ``sum(cotangent * predict(z))`` with respect to the latents z, by ``h_k' = sqrt(k) h_(k-1)``."""
        slope = hermite(self.degree - 1, z / math.sqrt(self.variance))
        return math.sqrt(self.degree / self.variance) * slope * cotangent

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, 1, 1) of the latents z, with Gaussian noise drawn from ``rng``, a NumPy generator."""
        if rng is None:
            raise ValueError(
                "labels of this channel are noisy: forward needs rng, a random generator"
            )
        noise = namespace(z).asarray(
            rng.standard_normal(tuple(z.shape)),
            dtype=z.dtype,
            device=array_api_compat.device(z),
        )
        return self.predict(z) + math.sqrt(self.noise) * noise

    def log_likelihood(self, y: Any, z: Any) -> Any:
        """Log-likelihood ``log p(y | z)`` (n,) of the labels y given the latents z, (n, 1, 1) each."""
        squared_residual = (y - self.predict(z))[..., 0, 0] ** 2
        return (
            -squared_residual / (2 * self.noise)
            - math.log(2 * math.pi * self.noise) / 2
        )


class FirstHermite(HermiteLabels):
    """Channel ``h1``: the latent itself, a linear label."""

    name, degree, symmetry = "h1", 1, "none"


class SecondHermite(HermiteLabels):
    """Channel ``h2``: ``(x^2 - 1) / sqrt(2)`` of the latent x over its standard deviation."""

    name, degree, symmetry = "h2", 2, "signs"


class ThirdHermite(HermiteLabels):
    """Channel ``h3``: ``(x^3 - 3 x) / sqrt(6)`` of the latent x over its standard deviation."""

    name, degree, symmetry = "h3", 3, "none"
