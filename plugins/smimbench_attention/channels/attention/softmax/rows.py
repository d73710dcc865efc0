"""One layer of softmax attention with untied queries and keys: rows of labels are independent, everything is in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.interfaces import Array, ParameterError, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents
from smimbench_attention.channels.bases import log_softmax, softmax_vjp
from smimbench_attention.channels.batches import identity_like, uncentered


@dataclass(frozen=True)
class RowSoftmax:
    r"""Softmax over the T - 1 other tokens, ``y_ab = log softmax_b(beta h_ab)`` for ``b != a``: labels (n, T, T - 1).

    A row fixes its T - 1 latents up to one common constant: the posterior is Gaussian along the T directions of these
    constants, and T (T - 2) combinations of the latents are known. Methods and arguments are those of ``AttentionSoftmax``.
    """

    tokens: int
    beta: float

    def __post_init__(self) -> None:
        if self.tokens < 3:
            raise ParameterError(
                "tokens",
                "must be at least 3 with symmetric = false: rows with a single entry carry no information",
            )

    @property
    def equations(self) -> float:
        """Independent equations in a label, T (T - 2)."""
        return float(self.tokens * (self.tokens - 2))

    def _rows(self, z: Array) -> Array:
        """Rows (..., n, T, T - 1) of the latents (..., n, 1, C)."""
        check_latents(z, 1, self.tokens * (self.tokens - 1))
        return namespace(z).reshape(z, (*z.shape[:-2], self.tokens, self.tokens - 1))

    def forward(self, z: Array) -> Array:
        """Log-probabilities (..., n, T, T - 1)."""
        return log_softmax(self.beta * self._rows(z))

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient with respect to z of ``sum(cotangent * exp(forward(z)))``."""
        p = namespace(z).exp(self.forward(z))
        return namespace(z).reshape(softmax_vjp(p, cotangent, self.beta), z.shape)

    def _observed_shift(self, y: Array, omega: Array) -> Array:
        """Shift of the mean by the label: ``z0 - omega`` minus its mean over each row (n, 1, C)."""
        xp = namespace(y, omega)
        shift = y / self.beta - self._rows(omega)
        return xp.reshape(shift - xp.mean(shift, axis=-1, keepdims=True), omega.shape)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Mean ``omega + (I - 1 1^T / (T - 1)) (z0 - omega)`` and covariance ``V 1 1^T / (T - 1)`` of every row."""
        mean = omega + self._observed_shift(y, omega)
        moment = None
        if second_moment:
            xp = namespace(y, omega, V)
            T = self.tokens
            row = xp.reshape(identity_like(T, omega), (T, 1, T, 1)) / (T - 1)
            outer = xp.reshape(
                xp.broadcast_to(row, (T, T - 1, T, T - 1)), (T * (T - 1), T * (T - 1))
            )
            moment = uncentered(mean, V[..., None, :, :] * outer)
        return Posterior(mean, V / (self.tokens - 1), moment)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density of the label with respect to the known combinations of latents."""
        xp = namespace(y, omega, V)
        v = V[0, 0]
        shift = self._observed_shift(y, omega)
        return -0.5 * (
            xp.sum(shift * shift, axis=(-2, -1)) / v
            + self.equations * xp.log(2 * math.pi * v)
        )

    def information(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """``E sum_c g_c^2 = T (T - 2) / V``, for every Q and beta."""
        V = namespace(Q, V).broadcast_arrays(Q, V)[1]
        return Uncertain(self.equations / V, 0.0, "closed form")
