"""A noisy periodic neuron, given by its likelihood, which has a hard phase although its posterior is smooth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from smimbench import Capabilities, ParameterError
from smimbench.backend import matching, namespace
from smimbench.interfaces.checks import check_latents, check_number

__all__ = ["Periodic"]


@dataclass(frozen=True)
class Periodic:
    r"""Periodic neuron: the sine of a projection minus a linear term, with Gaussian noise.

    .. math:: y = \sin(k z) - c z + \sqrt{\Delta}\, \xi

    Labels are (n, 1, 1). The overlap jumps from k = 2 on, and at smaller k where the line takes most of
    ``E[z y] = k exp(-k^2 / 2) - c``, what linear regression sees. Checked by tests/test_periodic.py.

    Parameters
    ----------
    frequency : float
        k > 0.
    noise : float
        Variance Delta > 0.
    slope : float
        c >= 0.
    tokens : int
        Must be 1; filled in from the model.
    """

    frequency: float = 2.2  # k in sin(k z) - c z
    noise: float = 0.1
    slope: float = 0.0  # c in sin(k z) - c z
    tokens: int = 1

    name = "periodic"
    version = 1
    reference = "arXiv:2106.10744"
    capabilities = Capabilities(models=("sequence-multi-index",))
    components = 1

    def __post_init__(self) -> None:
        """Check that frequency and noise are positive, the slope is not negative and there is one token."""
        check_number("frequency", self.frequency, positive=True)
        check_number("noise", self.noise, positive=True)
        check_number("slope", self.slope, positive=False)
        if self.tokens != 1:
            raise ParameterError(
                "tokens", f"must be 1 for this channel, got {self.tokens}"
            )

    def predict(self, z: Any) -> Any:
        """Noiseless label ``sin(k z) - c z`` of the latents z, with k the ``frequency`` and c the ``slope``."""
        return namespace(z).sin(self.frequency * z) - self.slope * z

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, 1, 1) of the latents z, ``sin(k z) - c z`` plus Gaussian noise drawn from ``rng``."""
        check_latents(z, 1, 1)
        noise = namespace(z).asarray(rng.standard_normal(tuple(z.shape)), **matching(z))
        return self.predict(z) + math.sqrt(self.noise) * noise

    def log_likelihood(self, y: Any, z: Any) -> Any:
        """Log-likelihood ``log p(y | z)`` (n,) of the labels y given the latents z, (n, 1, 1) each."""
        squared_residual = (y - self.predict(z))[..., 0, 0] ** 2
        return (
            -squared_residual / (2 * self.noise)
            - math.log(2 * math.pi * self.noise) / 2
        )
