r"""The rectifier as a channel: positive labels reveal the latent, zero labels only its sign.

With ``u = omega / sqrt(V)`` and the hazard ``r = phi(u) / Phi(-u)`` of the normal law, a label 0 has

.. math::

    E[z | 0] = \omega - \sqrt V\, r, \qquad \mathrm{Var}(z | 0) = V (1 - r (r - u)),

and any other label is the latent itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from smimbench_attention.channels.sequence.perceptron import hazard

from smimbench import Capabilities, Posterior, Uncertain
from smimbench.backend import namespace, special
from smimbench.interfaces.checks import check_latents, check_whole
from smimbench.numerics import gauss_legendre

__all__ = ["Relu"]


@dataclass(frozen=True)
class Relu:
    r"""Rectifier channel: positive parts of the projections of all tokens, without noise.

    .. math:: y_m = \max(z_m, 0)

    Labels are (n, 1, M).

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.

    References
    ----------
    Derived, checked by tests/test_relu.py.
    """

    tokens: int = 1

    name = "relu"
    version = 1
    reference = "arXiv:1708.03395"
    capabilities = Capabilities(models=("sequence-multi-index",))
    symmetry = "none"
    components = 1

    def __post_init__(self) -> None:
        """Check that the number of tokens is a whole number of at least 1."""
        check_whole("tokens", self.tokens, 1)

    @property
    def equations(self) -> float:
        """Number of equations for the signal that the labels of one sample give: half the number of tokens, since only positive
        latents are revealed.
        """
        return self.tokens / 2

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels ``max(z, 0)`` of the latents z (..., n, 1, M) of M tokens, in the same shape; ``rng`` is not used."""
        check_latents(z, 1, self.tokens)
        xp = namespace(z)
        return xp.where(z > 0, z, xp.zeros_like(z))

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Gradient of ``sum(cotangent * y)``, with y the labels, with respect to the latents z: the cotangent where z > 0, else
        0.
        """
        return namespace(z).where(z > 0, cotangent, 0 * cotangent)

    def posterior(
        self,
        y: Any,
        omega: Any,
        V: Any,
        *,
        second_moment: bool = False,
        rng: Any = None,
    ) -> Posterior:
        """Posterior of latents ``z ~ N(omega, V)`` given the labels y, for y and omega (n, 1, M) of M tokens and V (1, 1): known
        where y > 0, else a Gaussian cut off at 0. ``second_moment`` asks for ``E[z z^T]``, too; ``hazard_rate`` is density over
        probability at the cut; ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        if tuple(y.shape) != tuple(omega.shape):
            raise ValueError(
                f"labels must have shape {tuple(omega.shape)}, got {tuple(y.shape)}"
            )
        standard_deviation = xp.sqrt(V)
        hazard_rate, variance_ratio = hazard(-omega / standard_deviation, xp)
        mean = xp.where(y > 0, y, omega - standard_deviation * hazard_rate)
        variance = xp.where(y > 0, 0 * y, V * variance_ratio)
        covariance = xp.reshape(xp.mean(variance), (1, 1))
        if not second_moment:
            return Posterior(mean, covariance)
        identity = xp.eye(
            self.tokens, dtype=omega.dtype, device=array_api_compat.device(omega)
        )
        flat_mean = mean[:, 0, :]
        second_moments = (
            flat_mean[:, :, None] * flat_mean[:, None, :]
            + identity * variance[:, 0, :, None]
        )
        return Posterior(mean, covariance, second_moments[:, None, :, None, :])

    def log_partition(self, y: Any, omega: Any, V: Any) -> Any:
        """Log-probability (n,) of the labels y when latents are N(omega, V): the density of a positive label, the probability of
        label 0.
        """
        xp = namespace(y, omega, V)
        log_density = -((y - omega) ** 2) / (2 * V) - xp.log(2 * math.pi * V) / 2
        return xp.sum(
            xp.where(y > 0, log_density, special(xp).log_ndtr(-omega / xp.sqrt(V))),
            axis=(-2, -1),
        )

    def information(self, Q: Any, V: Any) -> Uncertain:
        r"""Fisher information (..., 1, 1) of the labels about omega, the mean of the latents N(omega, V), for ``omega ~ N(0,
        Q)``; Q and V (..., 1, 1), on the host. ``deviation_ratio`` is ``sqrt(Q / V)``, u is ``omega / sqrt(V)``, ``nodes`` and
        ``weights`` are those of the integral over u.

        It is ``M / V E [Phi(u) - u phi(u) + phi(u)^2 / Phi(-u)]`` with u normal of variance ``Q / V``. The values at u and -u are
        summed: for large u the sum is 1.
        """
        from scipy.special import log_ndtr

        Q, V = np.broadcast_arrays(
            np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        )
        positive_V = np.maximum(V, 1e-300)
        deviation_ratio = np.sqrt(Q / positive_V)[..., None]
        nodes, weights = gauss_legendre(80, 0.0, 10.0)
        small_ratio, large_ratio = (
            np.minimum(deviation_ratio, 1.0),
            np.maximum(deviation_ratio, 1.0),
        )
        u = small_ratio * nodes
        # What labels 0 add to the certain half, for u and -u together.
        zero_label_term = np.exp(
            -u * u - math.log(2 * math.pi) - log_ndtr(-u)
        ) + np.exp(-u * u - math.log(2 * math.pi) - log_ndtr(u))
        density = np.exp(-((nodes / large_ratio) ** 2) / 2) / (
            math.sqrt(2 * math.pi) * large_ratio
        )
        information = (
            self.tokens
            * (0.5 + np.sum(weights * density * zero_label_term, axis=-1))
            / positive_V
        )
        return Uncertain(information, 1e-12 * information, "quadrature")
