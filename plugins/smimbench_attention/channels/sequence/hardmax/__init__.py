"""Hardmax channel of the sequence model: only the position of the largest entry in every row of ``z z^T`` is observed.

``posterior`` has the integrals over the latents of one label, and the means over labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.interfaces import Array, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents
from smimbench_attention.channels.common import (
    HardmaxChannel,
    SequenceChannel,
    on_host,
    shifted_second_moment,
    uncertain_like,
)
from smimbench_attention.channels.sequence.hardmax.information import (
    scaled_information,
    susceptibility_without_overlap,
)
from smimbench_attention.channels.sequence.hardmax.posterior import (
    TokenMoments,
    posterior_moments,
)


@dataclass(frozen=True)
class SequenceHardmax(HardmaxChannel, SequenceChannel):
    r"""Hardmax channel: row-wise argmax of the scores ``z z^T`` of one attention layer with tied weights.
    M = ``tokens`` is the number of tokens, at most ``_maximum_tokens``.

    .. math:: y_m = \arg\max_k z_m z_k

    Labels are integers (n, M); ``observable`` turns them into the attention matrix, one-hot rows (n, M, M). They do not
    change when z changes its sign or its length, and have no gradient. It is the limit of ``softmax`` with one layer when its
    scores are multiplied by a large number.

    Parameters
    ----------
    tokens : int
        M, 2 or 3; filled in from the model.

    Raises
    ------
    ParameterError
        For another number of tokens.

    References
    ----------
    Model of arXiv:2502.00901 with hardmax in the place of softmax; posterior derived, checked by
    tests/channels/sequence/test_hardmax.py.
    """

    tokens: int

    version = 3
    symmetry = "signs"
    _maximum_tokens = 3  # the sum over labels and the polynomial of the information are checked up to here

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Column of the largest entry of every row of ``z z^T``, integers (..., n, M), of latents ``z`` (..., n, 1, M): the token
        of the largest latent for tokens of positive z, of the smallest for others.

        ``rng`` is not used: the channel is noiseless. ValueError if z has another shape.
        """
        check_latents(z, 1, self.tokens)
        xp = namespace(z)
        latents_of_tokens = z[..., 0, :]
        largest_token = xp.argmax(latents_of_tokens, axis=-1, keepdims=True)
        smallest_token = xp.argmin(latents_of_tokens, axis=-1, keepdims=True)
        return xp.where(latents_of_tokens > 0, largest_token, smallest_token)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_M)`` given labels y, the columns of the row maxima.

        ``y`` (n, M), integers, ``omega`` (n, 1, M), ``V`` (1, 1), positive, ``second_moment`` (n, 1, M, 1, M). ``rng`` is not
        used. ValueError if a label cannot come from any latents.
        """
        xp = namespace(omega)
        prior_deviation, moments = self._moments(y, omega, V, second_moment)
        mean_shift = prior_deviation * moments.shift
        variance = prior_deviation**2 * xp.mean(moments.square - moments.shift**2)
        second_moment_of_z = None
        if moments.outer is not None:
            flat_omega = xp.astype(omega[:, 0, :], xp.float64)
            second_moment_of_z = shifted_second_moment(
                flat_omega, mean_shift, prior_deviation**2 * moments.outer, omega.dtype
            )
        mean = omega + xp.astype(mean_shift[:, None, :], omega.dtype)
        return Posterior(
            mean,
            xp.astype(xp.reshape(variance, (1, 1)), omega.dtype),
            second_moment_of_z,
        )

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-probability ``log P(y | omega, V)`` (n,) of the labels y, for latents ``z ~ N(omega, V)``; arguments are as in
        ``posterior``.
        """
        moments = self._moments(y, omega, V, False)[1]
        return namespace(omega).astype(moments.log_partition, omega.dtype)

    def _moments(
        self, y: Array, omega: Array, V: Array, second_moments: bool
    ) -> tuple[Array, TokenMoments]:
        """Prior deviation ``sqrt(V)``, and the posterior moments of ``z ~ N(omega, V)`` given labels y, in units of it, with
        products of two latents if ``second_moments``. Rows of a possible label point at no more than two tokens, the leaders of
        the groups.
        """
        xp = namespace(omega)
        check_latents(omega, 1, self.tokens)
        leader_of_second_group = xp.max(
            xp.where(y != y[:, :1], y, -1), axis=-1, keepdims=True
        )
        if bool(
            xp.any(
                (xp.take_along_axis(y, y, axis=-1) != y)
                | ((y != y[:, :1]) & (y != leader_of_second_group))
            )
        ):
            raise ValueError(
                "impossible labels y: rows may point at no more than two tokens, and each of these must point at itself; "
                "take labels that forward returned"
            )
        prior_deviation = xp.sqrt(xp.astype(V[0, 0], xp.float64))
        return prior_deviation, posterior_moments(
            y, xp.astype(omega[:, 0, :], xp.float64) / prior_deviation, second_moments
        )

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``E sum_m g_m^2`` (..., 1, 1) of labels, g the score ``(E[z | y] - omega) / V``, with ``omega ~ N(0, Q)``;
        leading axes are a batch, inf at V = 0.

        A polynomial in ``sqrt(V / (Q + V))``, made at the first call: of integrals for two tokens, of Monte Carlo estimates
        for three. The error adds in squares one standard error of these and the error of the fit.
        """
        q, v = on_host(Q, V)
        total_variance = np.where(q + v > 0, q + v, 1.0)
        scaled_value, scaled_error = scaled_information(self.tokens)(
            np.sqrt(v / total_variance)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            information_scale = np.where(
                v > 0, q / total_variance / np.sqrt(v * total_variance), np.inf
            )
        method = "quadrature" if self.tokens == 2 else "fit through Monte Carlo"
        return uncertain_like(
            Q,
            scaled_value * information_scale,
            scaled_error * information_scale,
            method,
        )

    def susceptibility(self, Q: Array, V: Array) -> Uncertain:
        """Susceptibility (..., 1, 1) at error V: the coefficient lambda of the information ``I = lambda Q`` where Q = 0; 0
        elsewhere.

        ``lambda = E sum_mk (E[z_m z_k | y] - V delta_mk)^2 / V^4``: a sum over labels, without sampling.
        """
        value = (Q == 0.0) * susceptibility_without_overlap(self.tokens) / (V * V)
        return Uncertain(value, 1e-12 * value, "quadrature")
