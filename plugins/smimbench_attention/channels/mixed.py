"""Linear labels of latents that are correlated over sites, ``z = A zeta``, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from smimbench.backend import matching, namespace
from smimbench.derive import MixedChannel
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench_attention.channels.bases import LinearChannel
from smimbench_attention.channels.batches import array_like, identity_like


class MixedLinear(MixedChannel, LinearChannel):
    r"""Linear labels ``y_c = s_c (z_c + sqrt(N_c) xi_c)`` of mixed latents, in closed form.

    With ``N = N_0 r`` and the singular values ``diag(r)^(-1/2) A = U diag(w) W^T``, the modes ``W^T zeta`` are observed one by
    one, with noise of the variance ``nu = N_0 / w^2``: ``information = sum (V + nu I)^(-1)``.

    Parameters
    ----------
    channel : Channel
    mixing : ndarray (C, C)
    scales, noise : ndarray (C,)
        s and N.
    """

    def __init__(self, channel: Any, mixing: Host, scales: Host, noise: Host) -> None:
        super().__init__(channel, mixing)
        unit = np.sqrt(noise / noise.max()) if noise.max() > 0 else np.ones(len(noise))
        U, width, self._modes = np.linalg.svd(self.mixing / unit[:, None])
        self._to_modes = (U / width).T / (
            unit * scales
        )  # (mode, site): labels to modes plus noise
        self._noise = noise.max() / width**2
        self._squares = float(np.sum((scales[:, None] * self.mixing) ** 2))

    def _gains(self, V: Array) -> tuple[Array, Array, Array]:
        """Noise (C, 1, 1) of the modes, their ``(V + nu I)^(-1)`` and ``V (V + nu I)^(-1)``, (..., C, P, P)."""
        xp = namespace(V)
        noise = array_like(self._noise, V)[:, None, None]
        eye = identity_like(V.shape[-1], V)
        inverse = xp.linalg.inv(V[..., None, :, :] + noise * eye)
        gain = xp.matmul(V[..., None, :, :], inverse)
        return noise, inverse, gain

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of the whitened latents, Gaussian; arguments as for the channel."""
        xp = namespace(y, omega, V)
        modes = array_like(self._modes, omega)
        observed = self.apply(self._to_modes, xp.reshape(y, omega.shape))
        if self._noise.max() == 0:
            gain = identity_like(V.shape[-1], V)[None, :, :]
            covariance = xp.zeros((1, *V.shape), **matching(V))
        else:
            noise, _, gain = self._gains(V)
            covariance = noise * gain
        difference = xp.permute_dims(
            observed - self.apply(self._modes, omega), (2, 1, 0)
        )  # (C, P, n)
        step = xp.permute_dims(xp.matmul(gain, difference), (2, 1, 0))
        mean = omega + xp.matmul(step, modes)
        moment = None
        if second_moment:
            C = modes.shape[0]
            covariances = xp.broadcast_to(covariance, (C, *V.shape))
            inner = (
                modes[:, None, :, None, None] * modes[:, None, None, None, :]
            )  # (mode, 1, c, 1, c')
            blocks = xp.sum(inner * covariances[:, :, None, :, None], axis=0)
            moment = mean[:, :, :, None, None] * mean[:, None, None, :, :] + blocks
        return Posterior(mean, xp.mean(covariance, axis=0), moment)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``sum_c (V + nu_c I)^(-1)``, the same for every Q; (..., P, P)."""
        V = namespace(Q, V).broadcast_arrays(Q, V)[1]
        return Uncertain(
            namespace(V).sum(self._gains(V)[1], axis=-3), 0.0, "closed form"
        )
