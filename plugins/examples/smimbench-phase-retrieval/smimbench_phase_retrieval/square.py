"""Noisy phase retrieval, given by its likelihood alone; the engine integrates posterior and information."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat

from smimbench import ParameterError
from smimbench.backend import namespace
from smimbench.interfaces.checks import check_number
from smimbench_phase_retrieval.projection import SizeOfProjection

__all__ = ["NoisySquare"]


@dataclass(frozen=True)
class NoisySquare(SizeOfProjection):
    r"""Channel of noisy phase retrieval: the square of the projection of one token, with Gaussian noise.

    .. math:: y = z^2 + \sqrt{\Delta}\, \xi

    Labels are (n, 1, 1). Derived, checked by tests/test_square.py.

    Parameters
    ----------
    noise : float
        Variance Delta > 0.
    tokens : int
        Must be 1; filled in from the model.
    """

    noise: float = 0.1
    tokens: int = 1

    name = "noisy-square"
    reference = "derived, checked by tests/test_square.py"

    def __post_init__(self) -> None:
        """Check that the noise is positive and there is one token."""
        check_number("noise", self.noise, positive=True)
        if self.tokens != 1:
            raise ParameterError(
                "tokens", f"must be 1 for this channel, got {self.tokens}"
            )

    def predict(self, z: Any) -> Any:
        """Noiseless label ``z^2`` of the latents z."""
        return z * z

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Gradient of ``sum(cotangent * z^2)`` with respect to the latents z; without this method the engine would take finite
        differences.
        """
        return 2 * z * cotangent

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, 1, 1) of the latents z, ``z^2`` plus Gaussian noise drawn from ``rng``, a NumPy generator."""
        if rng is None:
            raise ValueError(
                "labels of this channel are noisy: forward needs rng, a random generator"
            )
        noise = rng.standard_normal(tuple(z.shape))
        xp = namespace(z)
        return z * z + math.sqrt(self.noise) * xp.asarray(
            noise, dtype=z.dtype, device=array_api_compat.device(z)
        )

    def log_likelihood(self, y: Any, z: Any) -> Any:
        """Log-likelihood ``log p(y | z)`` (n,) of the labels y given the latents z, (n, 1, 1) each."""
        squared_residual = (y - z * z)[..., 0, 0] ** 2
        return (
            -squared_residual / (2 * self.noise)
            - math.log(2 * math.pi * self.noise) / 2
        )
