r"""Noiseless complex phase retrieval: the modulus of a complex projection, with everything in closed form.

A complex signal ``w = w_1 + i w_2`` seen through complex inputs ``x = x_1 + i x_2`` is a problem of two components and two
tokens with ``z_pm = w_p . x_m``: the projection is ``u + i v`` with ``u = z_11 - z_22`` and ``v = z_12 + z_21``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from smimbench import Capabilities, ParameterError, Posterior, Uncertain
from smimbench.backend import clip, namespace, special
from smimbench.interfaces.checks import check_latents
from smimbench.numerics import gauss_legendre

__all__ = ["ComplexModulus"]

REACH = 12.0
"""Widths of the posterior that integrals cover; doubled, numbers below 1e-30 are added."""
NODES = 96
"""Nodes of each of the two integrals; doubled, their error falls from 1e-11 to rounding."""


@dataclass(frozen=True)
class ComplexModulus:
    r"""Channel of complex phase retrieval: moduli of complex projections of a complex signal, without noise.

    .. math:: y = |u + i v|, \qquad u = z_{11} - z_{22}, \quad v = z_{12} + z_{21}

    Labels are (n, 1). Given omega and V, ``(u, v)`` is normal with mean ``mu`` and covariance ``s^2 I``, ``s^2 = V_11 +
    V_22``; on the circle of radius y its law is von Mises', with ``k = y |mu| / s^2`` and ratios of Bessel functions
    ``A_j = I_j(k) / I_0(k)``:

    .. math::

        E[u + i v] = y A_1 e^{i \varphi}, \qquad E[(u + i v)^2] = y^2 A_2 e^{2 i \varphi}, \qquad \varphi = \arg \mu.

    Parameters
    ----------
    tokens : int
        M = 2, the real and the imaginary part of the input; filled in from the model.

    References
    ----------
    Posterior and information derived, checked by tests/test_complex_modulus.py. Weak recovery at 1, perfect recovery at 2:
    arXiv:2006.05228.
    """

    tokens: int = 2

    name = "complex-modulus"
    version = 1
    reference = "arXiv:2006.05228"
    capabilities = Capabilities(models=("sequence-multi-index",))
    components = 2
    symmetry = "rotations"
    equations = 1.0  # equations that a sample gives

    def __post_init__(self) -> None:
        """Check that there are two tokens, for real and imaginary part."""
        if self.tokens != 2:
            raise ParameterError(
                "tokens",
                f"must be 2, for the real and the imaginary part of an input, got {self.tokens!r}",
            )

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, 1) of the latents z (..., n, 2, 2): moduli ``|u + i v|`` of the complex projections; ``rng`` is not
        used.
        """
        check_latents(z, 2, 2)
        xp = namespace(z)
        u, v = _projection(z)
        return xp.sqrt(u * u + v * v)[..., None]

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Gradient of ``sum(cotangent * y)`` with respect to the latents z, with y the label ``|u + i v|`` and u, v the parts of
        the projection.
        """
        xp = namespace(z)
        u, v = _projection(z)
        modulus = xp.sqrt(u * u + v * v)
        scale = cotangent[..., 0] / xp.where(
            modulus > 0, modulus, xp.ones_like(modulus)
        )
        u, v = u * scale, v * scale
        return xp.stack(
            [xp.stack([u, v], axis=-1), xp.stack([v, -u], axis=-1)], axis=-2
        )

    def posterior(
        self,
        y: Any,
        omega: Any,
        V: Any,
        *,
        second_moment: bool = False,
        rng: Any = None,
    ) -> Posterior:
        """Posterior of the latents ``z ~ N(omega, V (x) I_2)`` given the labels y: the projection lies on a circle of radius y,
        with prior mean ``mu`` and ``variance``, and the latents follow it linearly; y (n, 1), omega (n, 2, 2), V (2, 2).
        ``second_moment`` asks for ``E[z z^T]``, too; ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, 2, 2)
        n, label = omega.shape[0], y[:, 0]
        variance = clip(V[0, 0] + V[1, 1], 1e-30, None)
        mu = xp.stack(_projection(omega), axis=-1)
        modulus_of_mu = xp.sqrt(xp.sum(mu * mu, axis=-1))
        direction = (
            mu
            / xp.where(modulus_of_mu > 0, modulus_of_mu, xp.ones_like(modulus_of_mu))[
                :, None
            ]
        )
        first_ratio, second_ratio = _bessel_ratios(label * modulus_of_mu / variance, xp)
        # Covariance of the circle: part of it along mu, the rest across.
        mean_length = label * first_ratio
        variance_along_mu = label**2 * (1 + second_ratio) / 2 - mean_length**2
        variance_across = label**2 * (1 - second_ratio) / 2
        identity = xp.eye(2, dtype=omega.dtype, device=array_api_compat.device(omega))
        projector_on_mu = direction[:, :, None] * direction[:, None, :]
        circle_covariance = (
            variance_across[:, None, None] * identity
            + (variance_along_mu - variance_across)[:, None, None] * projector_on_mu
        )
        # Covariance of the latents, component p at token m, with (u, v): (p, m, 2).
        latent_projection_covariance = xp.stack(
            [
                xp.stack([V[:, 0], V[:, 1]], axis=-1),
                xp.stack([-V[:, 1], V[:, 0]], axis=-1),
            ],
            axis=1,
        )
        regression_matrix = xp.reshape(latent_projection_covariance, (4, 2)) / variance
        mean_shift = direction * mean_length[:, None] - mu
        mean = omega + xp.reshape(
            xp.matmul(mean_shift, xp.matrix_transpose(regression_matrix)), (n, 2, 2)
        )
        prior_covariance = xp.reshape(
            V[:, None, :, None] * identity[None, :, None, :], (4, 4)
        )
        conditional_covariance = prior_covariance - variance * xp.matmul(
            regression_matrix, xp.matrix_transpose(regression_matrix)
        )
        posterior_covariances = conditional_covariance[None, :, :] + xp.matmul(
            xp.matmul(regression_matrix, circle_covariance),
            xp.matrix_transpose(regression_matrix),
        )
        mean_covariance = xp.reshape(
            xp.mean(posterior_covariances, axis=0), (2, 2, 2, 2)
        )
        covariance = (mean_covariance[:, 0, :, 0] + mean_covariance[:, 1, :, 1]) / 2
        if not second_moment:
            return Posterior(mean, covariance)
        flat_mean = xp.reshape(mean, (n, 4))
        second_moments = (
            posterior_covariances + flat_mean[:, :, None] * flat_mean[:, None, :]
        )
        return Posterior(mean, covariance, xp.reshape(second_moments, (n, 2, 2, 2, 2)))

    def log_partition(self, y: Any, omega: Any, V: Any) -> Any:
        """Log-density (n,) of the labels y, Rice distributed, when the latents are N(omega, V (x) I_2) and the projection has
        parts u and v of this variance.
        """
        xp = namespace(y, omega, V)
        u, v = _projection(omega)
        label, variance, modulus = y[:, 0], V[0, 0] + V[1, 1], xp.sqrt(u * u + v * v)
        log_bessel = xp.log(special(xp).i0e(label * modulus / variance))
        return (
            log_bessel
            + xp.log(label / variance)
            - (label - modulus) ** 2 / (2 * variance)
        )

    def information(self, Q: Any, V: Any) -> Uncertain:
        r"""Fisher information ``E sum_m g_m g_m^T`` (..., 2, 2) of the labels about omega, the mean of the latents, for ``omega ~
        N(0, Q (x) I_2)``; host arrays Q, V (..., 2, 2). ``deviation_ratio`` is that of the projection's standard deviations,
        known over unknown part; ``nodes`` are values of r, the modulus of its mean in units of the unknown part.

        In units of s, ``r = |mu| / s`` and ``t = y / s``, it is ``I E[(t A_1(t r) - r)^2] / s^2``: r follows Rayleigh's law of
        variance ``(Q_11 + Q_22) / s^2``, and t Rice's law about r.
        """
        Q, V = np.broadcast_arrays(
            np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        )
        variance = np.maximum(np.trace(V, axis1=-2, axis2=-1), 1e-300)
        deviation_ratio = np.sqrt(np.trace(Q, axis1=-2, axis2=-1) / variance)[..., None]
        nodes, weights = gauss_legendre(NODES, 0.0, REACH)
        # r reaches as far as its law; beyond the last node the move is 1 - 1/(2 r^2) - 1/(4 r^4).
        small_ratio, large_ratio = (
            np.minimum(deviation_ratio, 1.0),
            np.maximum(deviation_ratio, 1.0),
        )
        value_at_small_ratio = np.sum(
            weights
            * nodes
            * np.exp(-(nodes**2) / 2)
            * _squared_shift(small_ratio * nodes),
            axis=-1,
        )
        density = nodes / large_ratio**2 * np.exp(-((nodes / large_ratio) ** 2) / 2)
        value_at_large_ratio = np.sum(
            weights * density * _squared_shift(nodes), axis=-1
        ) + _tail_of_squared_shift(large_ratio[..., 0])
        information = (
            np.where(
                deviation_ratio[..., 0] > 1, value_at_large_ratio, value_at_small_ratio
            )
            / variance
        )
        return Uncertain(
            information[..., None, None] * np.eye(2),
            1e-7 * np.abs(information)[..., None, None] * np.eye(2),
            "quadrature",
        )


def _projection(z: Any) -> tuple[Any, Any]:
    """Real and imaginary part (..., n) of the complex projection, from the latents z (..., n, 2, 2) of two components and two
    tokens.
    """
    return z[..., 0, 0] - z[..., 1, 1], z[..., 0, 1] + z[..., 1, 0]


def _bessel_ratios(k: Any, xp: Any) -> tuple[Any, Any]:
    """Ratios of modified Bessel functions, ``I_1(k) / I_0(k)`` and ``I_2(k) / I_0(k)``."""
    functions = special(xp)
    first_ratio = functions.i1e(k) / functions.i0e(k)
    k_is_small = k < 1e-4
    safe_k = xp.where(k_is_small, xp.ones_like(k), k)
    return first_ratio, xp.where(k_is_small, k * k / 8, 1 - 2 * first_ratio / safe_k)


def _squared_shift(r: Any) -> Any:
    """Mean squared shift ``E (t A_1(t r) - r)^2`` of the posterior mean of a projection of modulus t, Rice distributed about r,
    with ``A_1 = I_1 / I_0``, by quadrature over t; ``k = t r``.
    """
    from scipy.special import i0e, i1e

    nodes, weights = gauss_legendre(NODES, 0.0, 1.0)
    smallest_t = np.maximum(r - REACH, 0.0)[..., None]
    range_of_t = r[..., None] + REACH - smallest_t
    t = smallest_t + range_of_t * nodes
    k = t * r[..., None]
    density = weights * range_of_t * t * i0e(k) * np.exp(-((t - r[..., None]) ** 2) / 2)
    return np.sum(density * (t * i1e(k) / i0e(k) - r[..., None]) ** 2, axis=-1)


def _tail_of_squared_shift(scale_of_r: Any) -> Any:
    """Contribution of r > ``REACH`` to the mean squared shift, for r from a Rayleigh distribution of scale ``scale_of_r``; ``x =
    REACH^2 / (2 scale_of_r^2)``.
    """
    from scipy.special import exp1

    x = REACH**2 / (2 * scale_of_r**2)
    correction = exp1(x) / (4 * scale_of_r**2)
    return np.exp(-x) * (1 - 1 / (8 * scale_of_r**2 * REACH**2)) - correction * (
        1 - 1 / (4 * scale_of_r**2)
    )
