r"""Sign channels: signs of single projections, without noise (``Sign``) or with noise (``Probit``); closed-form posterior.

With ``u = y omega / sqrt(V + Delta)`` and the hazard ``r(u) = phi(u) / Phi(u)`` of the normal law, every token has

.. math::

    E[z | y] = \omega + \frac{V y}{\sqrt{V + \Delta}}\, r(u), \qquad
    \mathrm{Var}(z | y) = V - \frac{V^2}{V + \Delta}\, r(u) (u + r(u)).

Two correlated tokens, of covariance C, have margins ``u_m`` over ``s_m = sqrt(V C_mm + Delta)`` and the label probabilities
``P(y) = Phi2(y_1 u_1, y_2 u_2; y_1 y_2 V C_12 / (s_1 s_2))``, the distribution function of two normal numbers of that correlation
(``MixedSigns``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from smimbench.backend import clip, namespace, special
from smimbench.derive import MixedChannel
from smimbench.interfaces import (
    Array,
    Capabilities,
    Channel,
    Host,
    Posterior,
    Uncertain,
)
from smimbench.interfaces.checks import check_latents, check_number, check_whole
from smimbench.numerics import gauss_legendre
from smimbench_attention.channels.common import (
    array_like,
    identity_like,
    normal_density,
    raw_second_moment,
)


class _SignChannel(Channel):
    """Base class of the sign channels ``Sign`` and ``Probit``, whose labels are the signs of the latents of ``tokens`` tokens
    plus noise; ``noise`` is the variance Delta of the noise.
    """

    tokens: int
    noise: float

    version = 1
    reference = "derived, checked by tests/channels/test_perceptron.py"
    capabilities = Capabilities(models=("sequence-multi-index",))
    symmetry = "none"
    components = 1

    def __post_init__(self) -> None:
        """Check the number of tokens."""
        check_whole("tokens", self.tokens, 1)

    def forward(self, z: Array, *, rng: Generator | None = None) -> Array:
        """Labels +1 and -1 of the latents z (..., n, 1, M), in the same shape as the latents; ``rng`` draws the noise."""
        check_latents(z, 1, self.tokens)
        xp = namespace(z)
        if self.noise > 0:
            if rng is None:
                raise ValueError(
                    "forward needs the random generator rng, because this channel is noisy"
                )
            z = z + math.sqrt(self.noise) * array_like(
                rng.standard_normal(tuple(z.shape)), z
            )
        return xp.where(z >= 0, xp.ones_like(z), -xp.ones_like(z))

    def log_likelihood(self, y: Array, z: Array) -> Array:
        """Logarithm (n,) of the probability of the labels y, +1 and -1, given the latents z, both (n, 1, M)."""
        xp = namespace(z)
        if self.noise == 0:
            log_probabilities = xp.where(
                y * z >= 0, xp.zeros_like(z), xp.full_like(z, -math.inf)
            )
        else:
            log_probabilities = special(xp).log_ndtr(y * z / math.sqrt(self.noise))
        return xp.sum(log_probabilities, axis=(-2, -1))

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V)`` given the labels y, +1 and -1; y and omega are (n, 1, M), V (1, 1). The margin is ``y
        omega`` over the deviation ``sqrt(V + Delta)``, Delta the noise; ``margin_hazard`` is density over distribution function
        there. ``rng`` is not needed.
        """
        xp = namespace(y, omega, V)
        if tuple(y.shape) != tuple(omega.shape):
            raise ValueError(
                f"labels must have shape {tuple(omega.shape)}, got {tuple(y.shape)}"
            )
        deviation = xp.sqrt(V + self.noise)
        margin = y * omega / deviation
        margin_hazard, tail_variance = hazard(margin, xp)
        mean = omega + (V / deviation) * y * margin_hazard
        # V - V^2 / (V + Delta) (1 - tail_variance): a sum of positive terms.
        variance = (
            V * self.noise / (V + self.noise) + V * V / (V + self.noise) * tail_variance
        )
        covariance = xp.reshape(xp.mean(variance), (1, 1))
        if not second_moment:
            return Posterior(mean, covariance)
        token_covariance = identity_like(self.tokens, omega) * variance[..., 0, :, None]
        return Posterior(mean, covariance, raw_second_moment(mean, token_covariance))

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-probability ``log P(y | omega, V)`` (n,) of the labels y (n, 1, M), for latents ``z ~ N(omega, V)``."""
        xp = namespace(y, omega, V)
        return xp.sum(
            special(xp).log_ndtr(y * omega / xp.sqrt(V + self.noise)), axis=(-2, -1)
        )

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``M / (V + Delta) E [phi(u)^2 / (Phi(u) Phi(-u))]`` of the labels (..., 1, 1), on the host, where Delta is
        the noise and ``u ~ N(0, Q / (V + Delta))`` the margin of a sign.
        """
        Q, V = np.broadcast_arrays(
            np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        )
        # Binary signals may be known so well that V underflows.
        marginal_variance = np.maximum(V + self.noise, 1e-300)
        standard_deviation = np.sqrt(Q / marginal_variance)[..., None]
        nodes, weights = gauss_legendre(80, 0.0, 10.0)
        # Far out a label is certain and carries no information: u need not extend beyond the function or its law.
        argument_scale = np.minimum(standard_deviation, 1.0)
        deviation_of_nodes = np.maximum(standard_deviation, 1.0)
        density_of_u = np.exp(-((nodes / deviation_of_nodes) ** 2) / 2) / (
            math.sqrt(2 * math.pi) * deviation_of_nodes
        )
        information = (
            2
            * np.sum(
                weights * density_of_u * _sign_information(argument_scale * nodes),
                axis=-1,
            )
            * self.tokens
            / marginal_variance
        )
        return Uncertain(information, 1e-12 * information, "quadrature")

    def mixed(self, A: Host) -> MixedChannel:
        """Sign channel ``zeta -> y(A zeta)`` for latents ``z = A zeta`` that are correlated over tokens, with the mixing matrix A
        (M, M).
        """
        return (MixedSigns if self.tokens == 2 else MixedChannel)(self, A)

    def generalization_error(self, Q: Array, V: Array) -> dict[str, Uncertain]:
        r"""Squared error of the predicted mean labels, summed over tokens, at overlap Q and error V, (..., 1, 1), by predictor,
        as differences of angles; a share is a part of the variance of the latent with noise, of the estimate or of the truth, and
        an angle is given by the squares of its sine and cosine.

        Mean labels f of latents of variances s, t and covariance c have
        ``E[f f'] = (2 / pi) arcsin(c / sqrt((s + Delta) (t + Delta)))``. The errors are differences of such angles, none of
        which loses digits as V vanishes.
        """
        q, v = (
            np.asarray(overlap, dtype=float)[..., 0, 0]
            for overlap in np.broadcast_arrays(Q, V)
        )
        estimate_variance = q + self.noise
        total_variance = np.maximum(q + v + self.noise, 1e-300)
        safe_variance = np.where(estimate_variance > 0, estimate_variance, 1.0)
        noise_share = np.where(estimate_variance > 0, self.noise / safe_variance, 0.0)
        # Without noise a sign is certain, even at zero variance.
        signal_share = np.where(
            estimate_variance > 0, q / safe_variance, 1 - noise_share
        )
        error_share = v / total_variance
        truth_share = (q + v) / total_variance
        estimate_share = q / total_variance
        # Squares of sine and cosine of the four angles: truth with itself, with a draw, with the estimate, estimate with itself.
        truth_angle = (
            truth_share * truth_share,
            self.noise / total_variance * (1 + truth_share),
        )
        draw_angle = (
            estimate_share * estimate_share,
            (self.noise / total_variance + error_share) * (1 + estimate_share),
        )
        cross_angle = (
            signal_share * estimate_share,
            error_share + noise_share * (1 + signal_share) * (1 - error_share),
        )
        estimate_angle = signal_share**2, noise_share * (1 + signal_share)
        angle_by_predictor = {
            "bayes": _angle_difference(
                truth_angle, draw_angle, error_share * (truth_share + estimate_share)
            ),
            "plugin": _angle_difference(
                truth_angle,
                cross_angle,
                error_share
                * (
                    truth_share * signal_share
                    + noise_share * (truth_share + estimate_share)
                ),
            )
            + _angle_difference(
                estimate_angle, cross_angle, signal_share**2 * error_share
            ),
            "constant": np.arctan2(np.sqrt(truth_angle[0]), np.sqrt(truth_angle[1])),
        }
        error_per_angle = 2 * self.tokens / math.pi
        return {
            predictor: Uncertain(
                error_per_angle * value, 1e-14 * error_per_angle * value, "closed form"
            )
            for predictor, value in angle_by_predictor.items()
        }


@dataclass(frozen=True)
class Sign(_SignChannel):
    r"""Perceptron channel: signs of the projections of all tokens, without noise.

    .. math:: y_m = \mathrm{sign}(z_m)

    Labels are (n, 1, M). One token is the generalized linear model with n = alpha D labels.

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.

    References
    ----------
    Derived, checked by tests/channels/test_perceptron.py; thresholds of the binary perceptron: arXiv:1708.03395.
    """

    tokens: int = 1

    name = "sign"
    title_words: ClassVar[dict[str, str]] = {"name": "Sign labels"}
    reference = "arXiv:1708.03395"
    noise = 0.0


@dataclass(frozen=True)
class Probit(_SignChannel):
    r"""Probit channel: signs of the projections of all tokens after adding Gaussian noise.

    .. math:: y_m = \mathrm{sign}(z_m + \sqrt{\Delta}\, \xi_m), \qquad P(y_m = 1 | z_m) = \Phi(z_m / \sqrt\Delta)

    Labels are (n, 1, M).

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.
    noise : float
        Variance Delta > 0; ``sign`` is the channel without noise.

    References
    ----------
    Derived, checked by tests/channels/test_perceptron.py.
    """

    tokens: int = 1
    noise: float = 1.0  # variance Delta

    name = "probit"
    title_words: ClassVar[dict[str, str]] = {"name": "Probit labels"}

    def __post_init__(self) -> None:
        """Check the number of tokens and that the noise is positive."""
        super().__post_init__()
        check_number("noise", self.noise, positive=True)

    def predict(self, z: Array) -> Array:
        """Mean label of the latents z, ``2 Phi(z / sqrt(Delta)) - 1``, Delta the variance of the noise."""
        return 2 * special(namespace(z)).ndtr(z / math.sqrt(self.noise)) - 1

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predict(z))`` with respect to the latents z (..., n, 1, M); ``cotangent`` is the
        derivative of a loss with respect to the mean label.
        """
        density = namespace(z).exp(-z * z / (2 * self.noise)) / math.sqrt(
            2 * math.pi * self.noise
        )
        return 2 * density * cotangent


PANEL_NODES = (10, 8)
"""Gauss-Legendre nodes in each panel of a margin: the first is the answer, the difference its error. Doubled, errors fall from
1e-11 (1e-8 where tokens are correlated by 0.99) to rounding, at four times the time."""
LARGEST_DEVIATION = 1e8
"""Standard deviation of a margin beyond which the information is a power law; its error is the inverse. Doubled, as long."""


class MixedSigns(MixedChannel):
    """Sign channel of two correlated tokens, with the information of its labels by quadrature over their margins."""

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``E sum_y P(y) sum_c (d log P(y) / d omega_c)^2`` (..., 1, 1) of the labels about the whitened latents at
        overlap Q and error V, (..., 1, 1), on the host.
        """
        information = np.vectorize(self._information_at, otypes=[float])
        value, coarse_value = (information(Q, V, count) for count in PANEL_NODES)
        error = np.abs(value - coarse_value) + 1e-12 * value
        return Uncertain(value, error, "quadrature")

    def _information_at(self, q: float, v: float, node_count: int) -> float:
        """Information at overlap q and error v, by so many nodes in each panel of a margin. ``deviations`` are those of the two
        latents about their means, with noise, and ``spreads`` those of the margins, the means over ``deviations``.
        """
        noise = self.channel.noise
        # Labels of narrow posteriors are in doubt one at a time, and their share is that of the width.
        safe_v = max(v, q / LARGEST_DEVIATION**2 - noise, 1e-300)
        mean_square = 0.0
        # Unequal labels are equal ones of a token that is turned round, and both signs of equal labels tell the same.
        for mixing in (self.mixing, self.mixing * [[1.0], [-1.0]]):
            covariance = mixing @ mixing.T
            variances = np.diag(covariance)
            deviations = np.sqrt(safe_v * variances + noise)
            spreads = np.sqrt(max(q, 1e-200) * variances) / deviations
            (t_1, weights_1), (t_2, weights_2) = (
                _normal_nodes(spread, node_count) for spread in spreads
            )
            t_1 = t_1[:, None]
            correlation = covariance[0, 1] / math.sqrt(math.prod(variances))
            width = math.sqrt(1 - correlation**2)
            density = normal_density(t_1) * normal_density(
                (t_2 - correlation * t_1) / width
            )
            probability, slopes = _both_positive(
                spreads[0] * t_1,
                spreads[1] * t_2,
                safe_v * covariance[0, 1] / math.prod(deviations),
            )
            scores = np.tensordot(mixing.T / deviations, slopes, 1)
            # A label that is less likely adds its probability times 50 at most.
            squares = np.sum(scores**2, axis=0) / np.maximum(probability, 1e-13)
            mean_square += (
                2 / width * float(weights_1 @ (density * squares) @ weights_2)
            )
        return mean_square * math.sqrt((safe_v + noise) / max(v + noise, 1e-300))


def _normal_nodes(spread: float, node_count: int) -> tuple[Host, Host]:
    """Nodes t and weights for means over a margin ``spread t``, where t is normal and the sign of the margin is in doubt at the
    scale 1: panels of so many nodes, which double in length away from zero.
    """
    panel_nodes, panel_weights = gauss_legendre(node_count, 0.0, 1.0)
    width = max(spread, 1.0)
    outer_ends = 9.0 * 2.0 ** np.arange(1 + math.log2(width))
    positive_ends = np.array([0.0, 1.0, 2.0, 3.5, 6.0, *outer_ends]) / width
    ends = np.unique([positive_ends, -positive_ends])
    lengths = np.diff(ends)[:, None]
    nodes = ends[:-1, None] + lengths * panel_nodes
    return nodes.ravel(), (lengths * panel_weights).ravel()


def _both_positive(u_1: Host, u_2: Host, correlation: float) -> tuple[Host, Host]:
    """Probability ``Phi2(u_1, u_2)`` that two normal numbers of means u_1 and u_2, not 0, variance 1 and this ``correlation`` are
    positive, from Owen's T function, and its derivatives in the two means (2, ...).
    """
    from scipy.special import ndtr, owens_t

    width = math.sqrt(1 - correlation**2)
    probability = (np.sign(u_1 * u_2) - 1) / 4
    slopes = []
    for u, other_u in ((u_1, u_2), (u_2, u_1)):
        other_margin = (other_u - correlation * u) / width
        probability = probability + ndtr(u) / 2 - owens_t(u, other_margin / u)
        slopes.append(normal_density(u) * ndtr(other_margin))
    return probability, np.stack(slopes)


def hazard(u: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Normal hazard ``r = phi(u) / Phi(u)`` at u, and the variance ``1 - r (u + r)`` of a standard normal number t given ``t >
    -u``; ``xp`` is the array namespace.
    """
    # erfcx factors out the tail, so that very unlikely labels keep their digits.
    clipped_u = clip(u, None, 5.0)
    hazard_by_erfcx = math.sqrt(2 / math.pi) / special(xp).erfcx(
        -clipped_u / math.sqrt(2)
    )
    hazard_by_density = normal_density(u)
    hazard = xp.where(u < 5.0, hazard_by_erfcx, hazard_by_density)
    tail_variance = 1 - hazard * (u + hazard)
    # Where the two terms cancel: the continued fraction's first terms, of relative error below 1e-6 there.
    is_far_tail = u < (-30.0 if u.dtype == xp.float64 else -8.0)
    safe_u = xp.where(is_far_tail, u, -xp.ones_like(u))
    inverse_square = 1 / (safe_u * safe_u)
    variance_series = inverse_square * (
        1
        - inverse_square
        * (6 - inverse_square * (50 - inverse_square * (518 - inverse_square * 6354)))
    )
    return hazard, clip(xp.where(is_far_tail, variance_series, tail_variance), 0.0, 1.0)


def _angle_difference(
    angle_1: tuple[Array, Array],
    angle_2: tuple[Array, Array],
    squared_sine_difference: Array,
) -> Array:
    """Difference of ``angle_1`` and ``angle_2``, up to pi / 2, each given by the squares of its sine and its cosine, from these
    and the difference ``squared_sine_difference`` of the squared sines, without loss of digits.
    """
    sine_1, cosine_1, sine_2, cosine_2 = (
        np.sqrt(square) for square in (*angle_1, *angle_2)
    )
    sine_of_sum = np.maximum(sine_1 * cosine_2 + sine_2 * cosine_1, 1e-300)
    return np.arctan2(
        squared_sine_difference / sine_of_sum, cosine_1 * cosine_2 + sine_1 * sine_2
    )


def _sign_information(u: Array) -> Array:
    """Information ``phi(u)^2 / (Phi(u) Phi(-u))`` of the sign of a normal number of mean u and variance 1 about its mean."""
    log_ndtr = special(np).log_ndtr
    return np.exp(-u * u - math.log(2 * math.pi) - log_ndtr(u) - log_ndtr(-u))
