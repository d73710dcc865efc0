"""Linear labels of attention-indexed models: every pair of tokens is observed directly, with or without noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.interfaces import Array, Host, ParameterError, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents, check_number, check_whole
from smimbench.numerics import site_scales, site_values
from smimbench_attention.channels.bases import AttentionChannel, LinearChannel
from smimbench_attention.channels.batches import array_like, identity_like, uncentered
from smimbench_attention.channels.mixed import MixedLinear

CONVENTIONS = ("scaled", "plain")


@dataclass(frozen=True)
class AttentionLinear(LinearChannel, AttentionChannel):
    r"""Direct observation of every pair of tokens, with Gaussian noise.

    .. math::

        y_{ab} = h_{ab} + \sqrt{N_{ab}}\, \xi_{ab}, \qquad
        h_{ab} = \sqrt{1 + \delta_{ab}}\, z_{ab}, \qquad a \le b,

    with ``N_ab = noise (1 + delta_ab)`` in the "scaled" convention (the same signal-to-noise ratio at all
    sites) and ``N_ab = noise`` in the "plain" one. Labels are (n, C), in units of h, in the order of the
    sites. Without symmetry (untied queries and keys) these are the ordered pairs ``a != b``, and the conventions are the same.

    Parameters
    ----------
    tokens : int
        T, at least 1; filled in from the model. With one token the label is that of a quadratic network of extensive width.
    noise : float
        Variance of the noise, >= 0. At 0 the two conventions are the same problem.
    noise_convention : {"scaled", "plain"}
        Whether the noise of the diagonal is doubled, as the variance of ``h_aa`` is.
    symmetric : bool
        Filled in from the model.

    Notes
    -----
    Generalization errors compare with the noiseless label h: add ``sum_ab N_ab`` for the error against noisy
    ones.

    References
    ----------
    Derived (Gaussian conditioning), checked by tests/channels/test_linear.py.
    """

    tokens: int
    noise: float = 0.0
    noise_convention: str = "scaled"
    symmetric: bool = True

    components = 1

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 1)
        check_number("noise", self.noise, positive=False)
        if self.noise_convention not in CONVENTIONS:
            raise ParameterError(
                "noise_convention",
                f"must be 'scaled' or 'plain', got {self.noise_convention!r}",
            )

    def _scaled_noise(self, z: Array, draws: Array) -> Array:
        return draws * self._scales(z) * namespace(z).sqrt(self._noise(z))

    def predict(self, z: Array) -> Array:
        """Noiseless label h (..., n, C) of the latents (..., n, 1, C)."""
        check_latents(z, 1, self.sites)
        return z[..., 0, :] * self._scales(z)

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predict(z))`` with respect to z: ``sqrt(1 + delta) cotangent``.

        ``z`` (..., n, 1, C), ``cotangent`` (..., n, C); the noise does not enter.
        """
        check_latents(z, 1, self.sites)
        return (cotangent * self._scales(z))[..., None, :]

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        r"""Posterior of ``z ~ N(omega, V I_C)`` given the label, in closed form.

        With the noise in units of z, ``nu_c = N_c / (1 + delta_c)``,

        .. math::

            E[z_c] = \omega_c + \frac{V}{V + \nu_c} \Big(\frac{y_c}{\sqrt{1 + \delta_c}} - \omega_c\Big),
            \qquad \mathrm{Var}(z_c) = \frac{V \nu_c}{V + \nu_c}.

        ``y`` (n, C), ``omega`` (n, 1, C), ``V`` (1, 1), ``second_moment`` (n, 1, C, 1, C). ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, 1, self.sites)
        noise = self._noise(omega)
        gain = V / (V + noise)
        mean = omega + gain[..., None, :, :] * (
            (y / self._scales(omega))[..., None, :] - omega
        )
        variance = gain * noise
        covariance = xp.mean(variance, axis=-1, keepdims=True)
        moment = None
        if second_moment:
            moment = uncentered(
                mean, (identity_like(self.sites, omega) * variance)[..., None, :, :]
            )
        return Posterior(mean, covariance, moment)

    def mixed(self, A: Host) -> MixedLinear:
        """The channel of latents ``z = A zeta``."""
        return MixedLinear(
            self, A, np.array(site_scales(self.tokens)), np.array(self._noise(A))
        )

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density of the label y with respect to Lebesgue measure on its C entries.

        ``log Z = sum_c log N(y_c; sqrt(1 + delta_c) omega_c, (1 + delta_c) V + N_c)``; y (n, C), omega (n, 1,
        C), V (1, 1), result (n,).
        """
        xp = namespace(y, omega, V)
        check_latents(omega, 1, self.sites)
        scales = self._scales(omega)
        variance = (V[0, 0] + self._noise(omega)) * scales**2
        residual = y - scales * omega[:, 0, :]
        return -0.5 * xp.sum(
            residual**2 / variance + xp.log(2 * math.pi * variance), axis=-1
        )

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_c g_c^2 = sum_c 1 / (V + nu_c)``, the same for every Q.

        Scaled noise: ``T (T + 1) / 2 / (V + noise)``. ``Q`` and ``V`` (..., 1, 1), leading axes are a batch;
        the result has their common shape.
        """
        xp = namespace(Q, V)
        V = xp.broadcast_arrays(Q, V)[1]
        value = xp.sum(1 / (V + self._noise(V)), axis=-1, keepdims=True)
        return Uncertain(value, 0.0, "closed form")

    @property
    def _squares(self) -> float:  # type: ignore[override]
        return float(self.sites + (self.tokens if self.symmetric else 0))

    def _noise(self, like: Array) -> Array:
        """Noise variance of every site, in units of z."""
        diagonal = self.noise / 2 if self.noise_convention == "plain" else self.noise
        return array_like(
            site_values(
                self.tokens, float(diagonal), float(self.noise), self.symmetric
            ),
            like,
        )
