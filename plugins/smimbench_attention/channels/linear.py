"""Linear channels: labels are the latents themselves plus optional Gaussian noise, with everything in closed form.

There is one for either model; ``MixedLinear`` is for latents that are correlated over sites, ``z = A zeta``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from smimbench.backend import matching, namespace
from smimbench.derive import MixedChannel
from smimbench.interfaces import (
    Array,
    Channel,
    Host,
    ParameterError,
    Posterior,
    Uncertain,
)
from smimbench.interfaces.checks import check_latents, check_number, check_whole
from smimbench.numerics import site_scales, site_values, symmetric
from smimbench_attention.channels.common import (
    AttentionChannel,
    SequenceChannel,
    array_like,
    identity_like,
    raw_second_moment,
)

CONVENTIONS = ("scaled", "plain")


class LinearChannel(Channel):
    """Base class of channels whose labels are the latents times known scales, plus Gaussian noise of variance ``noise`` >= 0."""

    noise: float  # variance
    name = "linear"
    title_words: ClassVar[dict[str, str]] = {"name": "Linear labels", "noise": "Δ"}
    version = 1
    reference = "derived, checked by tests/channels/test_linear.py"

    _mean_square: float  # mean square of the noiseless label at latents of unit variance, summed over its entries

    def predict(self, z: Array) -> Array:
        """Noiseless label of the latents ``z``."""
        raise NotImplementedError

    def generalization_error(self, Q: Array, V: Array) -> dict[str, Uncertain]:
        """Squared error of the predicted noiseless label, summed over its entries, at overlap Q and error V.

        Label noise is not counted.

        Bayes and plug-in predictions are the same, with an error proportional to ``tr V``; the best constant is 0, with an
        error proportional to ``tr(Q + V)``. ``Q`` and ``V`` (..., P, P), results (...).
        """
        xp = namespace(Q, V)
        trace_Q, trace_V = xp.broadcast_arrays(xp.linalg.trace(Q), xp.linalg.trace(V))
        bayes_error = Uncertain(self._mean_square * trace_V, 0.0, "closed form")
        return {
            "bayes": bayes_error,
            "plugin": bayes_error,
            "constant": Uncertain(
                self._mean_square * (trace_Q + trace_V), 0.0, "closed form"
            ),
        }

    def _scaled_noise(self, z: Array, draws: Array) -> Array:
        """Scale standard normal ``draws`` (one per entry of a label) to the standard deviation of the label noise, for labels of
        the latents z.
        """
        raise NotImplementedError

    def forward(self, z: Array, *, rng: Generator | None = None) -> Array:
        """Draw labels: ``predict(z)`` plus Gaussian noise, which is drawn on the host in float64, sample by sample.

        ValueError if the channel is noisy and ``rng`` is None, or z has another shape.
        """
        y = self.predict(z)
        if self.noise == 0:
            return y
        if rng is None:
            raise ValueError(
                "forward needs the random generator rng, because this channel is noisy"
            )
        return y + self._scaled_noise(z, array_like(rng.standard_normal(y.shape), z))


@dataclass(frozen=True)
class SequenceLinear(LinearChannel, SequenceChannel):
    r"""Linear channel of the sequence model: observes the projections of all tokens directly, with Gaussian noise.

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
    noise: float = 0.0  # variance

    symmetry = "none"

    def __post_init__(self) -> None:
        """Check the numbers of tokens and components, and the noise."""
        check_whole("tokens", self.tokens, 1)
        check_whole("components", self.components, 1, 64)
        check_number("noise", self.noise, positive=False)

    def _scaled_noise(self, z: Array, draws: Array) -> Array:
        """Scale standard normal ``draws`` (one per entry of a label) to the standard deviation of the label noise, the same for
        all tokens; z is not used.
        """
        return math.sqrt(self.noise) * draws

    def predict(self, z: Array) -> Array:
        """Noiseless label of the latents z (..., n, P, M), which is z itself."""
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
        r"""Posterior of ``z ~ N(omega, V (x) I_M)`` given the label y, in closed form: ``V (V + Delta I)^{-1}`` is the gain, by
        which ``y - omega`` is multiplied in the mean.

        .. math::

            E[z_m] = \omega_m + V (V + \Delta I)^{-1} (y_m - \omega_m), \qquad
            \mathrm{Cov}(z_m) = \Delta V (V + \Delta I)^{-1}.

        ``y`` and ``omega`` (n, P, M), ``V`` (P, P), perhaps singular, ``second_moment`` (n, P, M, P, M). ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, self.components, self.tokens)
        gain, covariance = self._gain(V)
        mean = omega + (y - omega if self.noise == 0 else xp.matmul(gain, y - omega))
        second_moment_of_z = None
        if second_moment:
            identity = identity_like(self.tokens, omega)
            second_moment_of_z = mean[:, :, :, None, None] * mean[:, None, None, :, :]
            second_moment_of_z = (
                second_moment_of_z + covariance[:, None, :, None] * identity[:, None, :]
            )
        return Posterior(mean, covariance, second_moment_of_z)

    def mixed(self, A: Host) -> MixedLinear:
        """Linear channel ``zeta -> y(A zeta)`` for latents ``z = A zeta`` that are correlated over sites, with the mixing matrix
        A (M, M).
        """
        unit_scales = np.ones(self.tokens)
        return MixedLinear(self, A, unit_scales, self.noise * unit_scales)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density (n,) of the label y with respect to Lebesgue measure on its P M entries, for latents ``z ~ N(omega, V (x)
        I_M)``.

        ``log Z = sum_m log N(y_m; omega_m, V + noise I)``; y and omega (n, P, M), V (P, P), result (n,).
        ``V + noise I`` must be positive definite.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, self.components, self.tokens)
        n = y.shape[0]
        marginal_covariance = self._marginal(V)
        residual = xp.reshape(
            xp.permute_dims(y - omega, (1, 0, 2)), (self.components, n * self.tokens)
        )
        mahalanobis_squares = xp.sum(
            residual * xp.linalg.solve(marginal_covariance, residual), axis=0
        )
        mahalanobis_squares = xp.sum(
            xp.reshape(mahalanobis_squares, (n, self.tokens)), axis=1
        )
        log_determinant = xp.linalg.slogdet(marginal_covariance)[
            1
        ] + self.components * math.log(2 * math.pi)
        return -0.5 * (mahalanobis_squares + self.tokens * log_determinant)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``E sum_m g_m g_m^T = M (V + noise I)^{-1}`` of the labels about the latents, g the score ``V^{-1} (E[z |
        y] - omega)``, the same for every Q.

        ``Q`` and ``V`` (..., P, P), leading axes are a batch; the result has their common shape.
        """
        xp = namespace(Q, V)
        V = xp.broadcast_arrays(Q, V)[1]
        return Uncertain(
            self.tokens * xp.linalg.inv(self._marginal(V)), 0.0, "closed form"
        )

    @property
    def _mean_square(self) -> float:  # type: ignore[override]
        """Mean square of the noiseless label at latents of unit variance, summed over its entries: M."""
        return self.tokens

    def _gain(self, V: Array) -> tuple[Array, Array]:
        """Gain ``V (V + noise I)^{-1}`` by which ``y - omega`` is multiplied in the posterior mean, and the posterior covariance,
        both (P, P), for latents ``z ~ N(omega, V)`` of a token.
        """
        xp = namespace(V)
        if self.noise == 0:
            return identity_like(self.components, V), xp.zeros_like(V)
        gain = xp.matrix_transpose(xp.linalg.solve(self._marginal(V), V))
        covariance = self.noise * gain
        return gain, symmetric(covariance)

    def _marginal(self, V: Array) -> Array:
        """Covariance ``V + noise I`` (P, P) of a token's label around the mean ``omega`` of its latents ``z ~ N(omega, V)``."""
        return V + self.noise * identity_like(self.components, V)


@dataclass(frozen=True)
class AttentionLinear(LinearChannel, AttentionChannel):
    r"""Linear channel of the attention model: observes the bilinear form of every pair of tokens, with Gaussian noise.
    Its variance is the same for all pairs (``noise_convention`` "plain") or doubled for a token with itself ("scaled").

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
    noise: float = 0.0  # variance
    noise_convention: str = "scaled"
    symmetric: bool = True  # whether queries and keys are tied

    components = 1

    def __post_init__(self) -> None:
        """Check the number of tokens, the noise and its convention."""
        check_whole("tokens", self.tokens, 1)
        check_number("noise", self.noise, positive=False)
        if self.noise_convention not in CONVENTIONS:
            raise ParameterError(
                "noise_convention",
                f"must be 'scaled' or 'plain', got {self.noise_convention!r}",
            )

    def _scaled_noise(self, z: Array, draws: Array) -> Array:
        """Scale standard normal ``draws`` (n, C) to the standard deviation of the label noise of every pair of tokens, for labels
        of the latents z.
        """
        return draws * self._scales(z) * namespace(z).sqrt(self._noise(z))

    def predict(self, z: Array) -> Array:
        """Noiseless label h (..., n, C) of the latents z (..., n, 1, C)."""
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
        r"""Posterior of ``z ~ N(omega, V I_C)`` given the label y, in closed form.

        With the noise in units of z, ``nu_c = N_c / (1 + delta_c)``,

        .. math::

            E[z_c] = \omega_c + \frac{V}{V + \nu_c} \Big(\frac{y_c}{\sqrt{1 + \delta_c}} - \omega_c\Big),
            \qquad \mathrm{Var}(z_c) = \frac{V \nu_c}{V + \nu_c}.

        ``y`` (n, C), ``omega`` (n, 1, C), ``V`` (1, 1), ``second_moment`` (n, 1, C, 1, C). ``rng`` is not used.
        """
        xp = namespace(y, omega, V)
        check_latents(omega, 1, self.sites)
        noise_variance = self._noise(omega)
        gain = V / (V + noise_variance)
        mean = omega + gain[..., None, :, :] * (
            (y / self._scales(omega))[..., None, :] - omega
        )
        variance = gain * noise_variance
        covariance = xp.mean(variance, axis=-1, keepdims=True)
        second_moment_of_z = None
        if second_moment:
            second_moment_of_z = raw_second_moment(
                mean, (identity_like(self.sites, omega) * variance)[..., None, :, :]
            )
        return Posterior(mean, covariance, second_moment_of_z)

    def mixed(self, A: Host) -> MixedLinear:
        """Linear channel ``zeta -> y(A zeta)`` for latents ``z = A zeta`` that are correlated over sites, with the mixing matrix
        A (C, C).
        """
        return MixedLinear(
            self, A, np.array(site_scales(self.tokens)), np.array(self._noise(A))
        )

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density (n,) of the label y with respect to Lebesgue measure on its C entries, for latents ``z ~ N(omega, V I_C)``.

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
        """Information ``E sum_c g_c^2 = sum_c 1 / (V + nu_c)`` of the labels about the latents, g the score and nu_c the noise
        variance in units of the latents, the same for every Q.

        Scaled noise: ``T (T + 1) / 2 / (V + noise)``. ``Q`` and ``V`` (..., 1, 1), leading axes are a batch;
        the result has their common shape.
        """
        xp = namespace(Q, V)
        V = xp.broadcast_arrays(Q, V)[1]
        value = xp.sum(1 / (V + self._noise(V)), axis=-1, keepdims=True)
        return Uncertain(value, 0.0, "closed form")

    @property
    def _mean_square(self) -> float:  # type: ignore[override]
        """Mean square of the noiseless label at latents of unit variance, summed over its entries: ``sum_ab (1 + delta_ab)``."""
        return float(self.sites + (self.tokens if self.symmetric else 0))

    def _noise(self, like: Array) -> Array:
        """Noise variance (C,) of every pair of tokens, in units of the latents z, as an array like ``like``."""
        diagonal_noise = (
            self.noise / 2 if self.noise_convention == "plain" else self.noise
        )
        return array_like(
            site_values(
                self.tokens, float(diagonal_noise), float(self.noise), self.symmetric
            ),
            like,
        )


class MixedLinear(MixedChannel, LinearChannel):
    r"""Linear channel ``y_c = s_c (z_c + sqrt(N_c) xi_c)`` of latents ``z = A zeta`` that are correlated over sites c, with known
    scales s_c, noise variances N_c and standard normal noise xi; a mode is a direction of zeta that is observed by itself.

    With ``N = N_0 r`` and the singular values ``diag(r)^(-1/2) A = U diag(w) W^T``, the modes ``W^T zeta`` are observed one by
    one, with noise of the variance ``nu = N_0 / w^2``: ``information = sum (V + nu I)^(-1)``.

    Parameters
    ----------
    channel : Channel
    mixing : ndarray (C, C)
    scales, noise : ndarray (C,)
        s and N.
    """

    def __init__(
        self, channel: LinearChannel, mixing: Host, scales: Host, noise: Host
    ) -> None:
        """Decompose the matrix ``mixing`` = A, its rows over the standard deviations of ``noise``, into singular values w and
        modes W^T (U diag(w) W^T); ``scales`` are the factors s of the labels of ``channel``.
        """
        super().__init__(channel, mixing)
        relative_deviations = (
            np.sqrt(noise / noise.max()) if noise.max() > 0 else np.ones(len(noise))
        )
        U, singular_values, self._modes = np.linalg.svd(
            self.mixing / relative_deviations[:, None]
        )
        self._to_modes = (U / singular_values).T / (
            relative_deviations * scales
        )  # (mode, site): labels to modes plus noise
        self._noise = noise.max() / singular_values**2
        self._mean_square = float(np.sum((scales[:, None] * self.mixing) ** 2))

    def _gains(self, V: Array) -> tuple[Array, Array, Array]:
        """Noise variances nu (C, 1, 1) of the C modes, the inverse marginals ``(V + nu I)^(-1)``, and the gains ``V (V + nu
        I)^(-1)``, both (..., C, P, P), for latents zeta of covariance V; a gain times the observed deviation is the shift of the
        mean.
        """
        xp = namespace(V)
        mode_noise = array_like(self._noise, V)[:, None, None]
        identity = identity_like(V.shape[-1], V)
        inverse_marginal = xp.linalg.inv(V[..., None, :, :] + mode_noise * identity)
        gain = xp.matmul(V[..., None, :, :], inverse_marginal)
        return mode_noise, inverse_marginal, gain

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of the whitened latents zeta ~ N(omega, V (x) I) given the label y, Gaussian mode by mode: each observed
        mode, less its mean, times the gain ``V (V + nu I)^(-1)``, nu its noise, shifts the mode. Arguments are as in
        ``Channel.posterior``.
        """
        xp = namespace(y, omega, V)
        modes = array_like(self._modes, omega)
        observed_modes = self.apply(self._to_modes, xp.reshape(y, omega.shape))
        if self._noise.max() == 0:
            gain = identity_like(V.shape[-1], V)[None, :, :]
            covariance = xp.zeros((1, *V.shape), **matching(V))
        else:
            mode_noise, _, gain = self._gains(V)
            covariance = mode_noise * gain
        mode_residuals = xp.permute_dims(
            observed_modes - self.apply(self._modes, omega), (2, 1, 0)
        )  # (C, P, n)
        mode_shifts = xp.permute_dims(xp.matmul(gain, mode_residuals), (2, 1, 0))
        mean = omega + xp.matmul(mode_shifts, modes)
        second_moment_of_zeta = None
        if second_moment:
            C = modes.shape[0]
            mode_covariances = xp.broadcast_to(covariance, (C, *V.shape))
            mode_products = (
                modes[:, None, :, None, None] * modes[:, None, None, None, :]
            )  # (mode, 1, c, 1, c')
            covariance_of_latents = xp.sum(
                mode_products * mode_covariances[:, :, None, :, None], axis=0
            )
            second_moment_of_zeta = (
                mean[:, :, :, None, None] * mean[:, None, None, :, :]
                + covariance_of_latents
            )
        return Posterior(mean, xp.mean(covariance, axis=0), second_moment_of_zeta)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``sum_c (V + nu_c I)^(-1)`` (..., P, P) of the labels about the latents, nu_c the noise of mode c, the same
        for every Q.
        """
        V = namespace(Q, V).broadcast_arrays(Q, V)[1]
        return Uncertain(
            namespace(V).sum(self._gains(V)[1], axis=-3), 0.0, "closed form"
        )
