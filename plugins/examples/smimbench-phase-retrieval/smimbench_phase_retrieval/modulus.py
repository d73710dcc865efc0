"""Noiseless phase retrieval in closed form: an example of a channel with its own ``posterior``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from smimbench import Posterior, Uncertain
from smimbench.backend import clip, namespace
from smimbench.interfaces.checks import check_latents, check_whole
from smimbench.numerics import gauss_legendre
from smimbench_phase_retrieval.projection import SizeOfProjection

__all__ = ["Modulus"]


@dataclass(frozen=True)
class Modulus(SizeOfProjection):
    r"""Channel of real phase retrieval: absolute values of the projections of all tokens, without noise.

    .. math:: y_m = |z_m|

    Labels are (n, 1, M). Two latents fit a label, +y and -y, so that the posterior is closed:

    .. math::

        E[z_m] = y_m \tanh(y_m \omega_m / V), \qquad \mathrm{Var}(z_m) = y_m^2 / \cosh^2(y_m \omega_m / V).

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model. One token is ordinary phase retrieval with n = alpha D measurements.

    References
    ----------
    Posterior and information derived, checked by tests/test_modulus.py. Thresholds for Gaussian signals and one token: weak
    recovery at 1/2 (arXiv:1708.05932), perfect recovery by message passing at 1.128 and at 1 information-theoretically
    (arXiv:1708.03395).
    """

    tokens: int = 1

    name = "modulus"
    reference = "arXiv:1708.03395"

    def __post_init__(self) -> None:
        """Check that the number of tokens is a whole number of at least 1."""
        check_whole("tokens", self.tokens, 1)

    @property
    def equations(self) -> float:
        """Number of equations for the signal that the labels of one sample give: one for each token."""
        return float(self.tokens)

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels ``|z|`` of the latents z (..., n, 1, M) of M tokens, in the same shape; ``rng`` is not used."""
        check_latents(z, 1, self.tokens)
        return namespace(z).abs(z)

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Gradient of ``sum(cotangent * |z|)`` with respect to the latents z: the cotangent with the sign of z."""
        return cotangent * namespace(z).sign(z)

    def posterior(
        self,
        y: Any,
        omega: Any,
        V: Any,
        *,
        second_moment: bool = False,
        rng: Any = None,
    ) -> Posterior:
        """Posterior of the latents ``z ~ N(omega, V)`` given the labels ``y = |z|``, for y and omega (n, 1, M) of M tokens and V
        (1, 1): z is y or -y; ``half_log_odds`` is half the log of their odds. ``second_moment`` asks for ``E[z z^T]``, too;
        ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        if tuple(y.shape) != tuple(omega.shape):
            raise ValueError(
                f"labels must have shape {tuple(omega.shape)}, got {tuple(y.shape)}"
            )
        # The sign is certain long before the exponential would overflow, in single precision too.
        half_log_odds = clip(y * (omega / clip(V, 1e-30, None)), -40.0, 40.0)
        mean = y * xp.tanh(half_log_odds)
        variance = (y / xp.cosh(half_log_odds)) ** 2
        covariance = xp.reshape(xp.mean(variance), (1, 1))
        if not second_moment:
            return Posterior(mean, covariance)
        identity = xp.eye(self.tokens, dtype=y.dtype, device=array_api_compat.device(y))
        flat_mean, flat_labels = mean[:, 0, :], y[:, 0, :]
        second_moments = (1 - identity) * (
            flat_mean[:, :, None] * flat_mean[:, None, :]
        ) + identity * (flat_labels * flat_labels)[:, :, None]
        return Posterior(mean, covariance, second_moments[:, None, :, None, :])

    def log_partition(self, y: Any, omega: Any, V: Any) -> Any:
        """Log-density (n,) of the labels y when latents are N(omega, V): the log of ``N(y; omega, V) + N(-y; omega, V)``, summed
        over tokens.
        """
        xp = namespace(y, omega, V)
        log_sum_of_both_signs = xp.logaddexp(
            -((y - omega) ** 2) / (2 * V), -((y + omega) ** 2) / (2 * V)
        )
        return xp.sum(
            log_sum_of_both_signs - xp.log(2 * math.pi * V) / 2, axis=(-2, -1)
        )

    def information(self, Q: Any, V: Any) -> Uncertain:
        r"""Fisher information ``E sum_m g_m^2`` (..., 1, 1) of the labels about omega, the mean of the latents N(omega, V), for
        ``omega ~ N(0, Q)``; Q and V (..., 1, 1), on the host. ``deviation_ratio`` is ``sqrt(Q / V)``, ``nodes`` are values of ``u
        = omega / sqrt(V)``.

        In units of the width, ``u = omega / sqrt(V)``, one function of u remains,
        ``h(u) = E_t [((u + t) tanh(u (u + t)) - u)^2]`` with standard normal t, and the result is ``M E h(u) / V``.
        """
        Q, V = np.broadcast_arrays(
            np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        )
        V = np.maximum(V, 1e-300)
        deviation_ratio = np.sqrt(Q / V)[..., None]
        nodes, weights = gauss_legendre(80, 0.0, 10.0)
        # u reaches as far as its law; beyond the last node the sign is known and h = 1.
        small_ratio, large_ratio = (
            np.minimum(deviation_ratio, 1.0),
            np.maximum(deviation_ratio, 1.0),
        )
        value_at_small_ratio = 2 * np.sum(
            weights * _normal_density(nodes) * _squared_shift(small_ratio * nodes),
            axis=-1,
        )
        deficit_at_large_ratio = 2 * np.sum(
            weights
            * _normal_density(nodes / large_ratio)
            / large_ratio
            * (1 - _squared_shift(nodes)),
            axis=-1,
        )
        information = (
            self.tokens
            * np.where(
                deviation_ratio[..., 0] > 1,
                1 - deficit_at_large_ratio,
                value_at_small_ratio,
            )
            / V
        )
        return Uncertain(information, 1e-12 * information, "quadrature")


def _normal_density(u: Any) -> Any:
    """Standard normal density at u."""
    return np.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def _squared_shift(u: Any) -> Any:
    """Mean squared shift h(u) of the posterior mean of a latent N(u, 1) by its label, with t the latent minus u, by the
    trapezoidal rule, which converges exponentially here.
    """
    t = np.linspace(-9, 9, 361)
    weights = _normal_density(t) * (t[1] - t[0])
    latent = u[..., None] + t
    return np.sum(
        weights * (latent * np.tanh(u[..., None] * latent) - u[..., None]) ** 2, axis=-1
    )
