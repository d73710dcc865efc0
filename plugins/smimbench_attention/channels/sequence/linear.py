"""Linear labels of sequence multi-index models: every projection is observed directly, with or without noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents, check_number, check_whole
from smimbench.numerics import symmetric
from smimbench_attention.channels.bases import LinearChannel, SequenceChannel
from smimbench_attention.channels.batches import identity_like
from smimbench_attention.channels.mixed import MixedLinear


@dataclass(frozen=True)
class SequenceLinear(LinearChannel, SequenceChannel):
    r"""Direct observation of all projections of all tokens, with Gaussian noise.

    .. math:: y_{pm} = z_{pm} + \sqrt{\Delta}\, \xi_{pm}

    Labels are (n, P, M). Generalization errors compare with the noiseless label z: add ``P M noise`` for noisy ones.

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.
    components : int
        P, the number of directions, at least 1.
    noise : float
        Variance Delta of the noise, >= 0.

    References
    ----------
    Derived (Gaussian conditioning), checked by tests/channels/test_linear.py.
    """

    tokens: int
    components: int = 1
    noise: float = 0.0

    symmetry = "none"

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 1)
        check_whole("components", self.components, 1, 64)
        check_number("noise", self.noise, positive=False)

    def _scaled_noise(self, z: Array, draws: Array) -> Array:
        return math.sqrt(self.noise) * draws

    def predict(self, z: Array) -> Array:
        """Noiseless label, which equals z, (..., n, P, M)."""
        check_latents(z, self.components, self.tokens)
        return z

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predict(z))`` with respect to z: the cotangent, (..., n, P, M)."""
        check_latents(z, self.components, self.tokens)
        return cotangent

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        r"""Posterior of ``z ~ N(omega, V (x) I_M)`` given the label, in closed form.

        .. math::

            E[z_m] = \omega_m + V (V + \Delta I)^{-1} (y_m - \omega_m), \qquad
            \mathrm{Cov}(z_m) = \Delta V (V + \Delta I)^{-1}.

        ``y`` and ``omega`` (n, P, M), ``V`` (P, P), perhaps singular, ``second_moment`` (n, P, M, P, M). ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, self.components, self.tokens)
        gain, covariance = self._gain(V)
        mean = omega + (y - omega if self.noise == 0 else xp.matmul(gain, y - omega))
        moment = None
        if second_moment:
            identity = identity_like(self.tokens, omega)
            moment = mean[:, :, :, None, None] * mean[:, None, None, :, :]
            moment = moment + covariance[:, None, :, None] * identity[:, None, :]
        return Posterior(mean, covariance, moment)

    def mixed(self, A: Host) -> MixedLinear:
        """The channel of latents ``z = A zeta``."""
        unit_scales = np.ones(self.tokens)
        return MixedLinear(self, A, unit_scales, self.noise * unit_scales)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density of the label with respect to Lebesgue measure on its P M entries.

        ``log Z = sum_m log N(y_m; omega_m, V + noise I)``; y and omega (n, P, M), V (P, P), result (n,).
        ``V + noise I`` must be positive definite.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, self.components, self.tokens)
        n = y.shape[0]
        marginal = self._marginal(V)
        residual = xp.reshape(
            xp.permute_dims(y - omega, (1, 0, 2)), (self.components, n * self.tokens)
        )
        quadratic = xp.sum(residual * xp.linalg.solve(marginal, residual), axis=0)
        quadratic = xp.sum(xp.reshape(quadratic, (n, self.tokens)), axis=1)
        logarithm = xp.linalg.slogdet(marginal)[1] + self.components * math.log(
            2 * math.pi
        )
        return -0.5 * (quadratic + self.tokens * logarithm)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_m g_m g_m^T = M (V + noise I)^{-1}``, the same for every Q.

        ``Q`` and ``V`` (..., P, P), leading axes are a batch; the result has their common shape.
        """
        xp = namespace(Q, V)
        V = xp.broadcast_arrays(Q, V)[1]
        return Uncertain(
            self.tokens * xp.linalg.inv(self._marginal(V)), 0.0, "closed form"
        )

    @property
    def _squares(self) -> float:  # type: ignore[override]
        return self.tokens

    def _gain(self, V: Array) -> tuple[Array, Array]:
        """Weight of the label, ``V (V + noise I)^{-1}``, and the remaining covariance."""
        xp = namespace(V)
        if self.noise == 0:
            return identity_like(self.components, V), xp.zeros_like(V)
        gain = xp.matrix_transpose(xp.linalg.solve(self._marginal(V), V))
        covariance = self.noise * gain
        return gain, symmetric(covariance)

    def _marginal(self, V: Array) -> Array:
        return V + self.noise * identity_like(self.components, V)
