"""Channel of two layers of softmax attention between two tokens, with one unknown matrix per layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace, to_host_floats
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents
from smimbench.numerics import normal_scrambles, outer_product, symmetric_root
from smimbench_attention.channels.attention.softmax.weight import (
    ACCURACY,
    DIRECTIONS,
    ROOT2,
    sample_parameters,
)
from smimbench_attention.channels.common import (
    AttentionChannel,
    SoftmaxChannel,
    array_like,
    identity_like,
    log_softmax,
    on_host,
    softmax_vjp,
    uncertain_like,
)

LARGEST_BETA = 8.0
"""Largest beta: above it the weights are narrower than the integrals find; doubled, posteriors come out as NaN."""


@dataclass(frozen=True)
class TwoLayerAttention(SoftmaxChannel, AttentionChannel):
    r"""Two-layer attention between two tokens: the first layer mixes the tokens, and the second layer's softmax is observed;
    ``beta`` is the inverse temperature, ``skip`` the weight c of the skip connection.

    .. math::

        B = c\,I + \mathrm{softmax}_\beta(h_1), \qquad M = B\, h_2\, B^T, \qquad y =
        \log\mathrm{softmax}_\beta(M),

    row by row, with the symmetric 2 x 2 matrices ``h_l`` of the latents ``z`` (..., n, 2, 3). Labels are
    log-probabilities (..., n, 2, 2): the margins of both rows of M are their differences over beta.

    Parameters
    ----------
    beta : float
        Inverse temperature of both layers, positive, at most 8.
    skip : float
        c >= 0, the weight of the skip connection.

    Notes
    -----
    Parameters are checked by ``AttentionSoftmax``.

    Posteriors are integrals over the first layer, computed on the host (``integrals``). Derived, checked by
    tests/channels/attention/test_attention_two_layers.py.

    References
    ----------
    arXiv:2506.01582.
    """

    beta: float = 1.0
    skip: float = 1.0

    tokens = 2

    def forward(self, z: Array, *, rng: object = None) -> Array:
        """Attention log-probabilities y (..., n, 2, 2) of the latents z (..., n, 2, 3), without noise; ``rng`` is not used."""
        return log_softmax(self.beta * self._layers(z)[-1])

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * exp(forward(z)))`` with respect to z (..., n, 2, 3), by reverse mode: ``cotangent`` is
        the derivative of a loss with respect to the probabilities; ``gradient_first`` and ``gradient_second`` are those with
        respect to h_1 and h_2, ``mixing`` is B, ``second_fields`` h_2, and ``M = B h_2 B^T``.
        """
        xp = namespace(z, cotangent)
        attention, mixing, second_fields, M = self._layers(z)
        gradient_M = softmax_vjp(
            xp.exp(log_softmax(self.beta * M)), cotangent, self.beta
        )
        gradient_second = xp.matmul(
            xp.matmul(xp.matrix_transpose(mixing), gradient_M), mixing
        )
        gradient_mixing = xp.matmul(
            xp.matmul(gradient_M + xp.matrix_transpose(gradient_M), mixing),
            second_fields,
        )
        gradient_first = softmax_vjp(attention, gradient_mixing, self.beta)
        return xp.stack(
            [
                self._latent_gradient(gradient_first),
                self._latent_gradient(gradient_second),
            ],
            axis=-2,
        )

    def _layers(self, z: Array) -> tuple[Array, Array, Array, Array]:
        """First layer's attention softmax(beta h_1), mixing matrix ``B = c I + attention``, second-layer fields h_2 and ``M = B
        h_2 B^T``, each (..., n, 2, 2), of the latents z (..., n, 2, 3).
        """
        check_latents(z, 2, 3)
        xp = namespace(z)
        attention = xp.exp(log_softmax(self.beta * self._logit_matrix(z[..., 0, :])))
        mixing = self.skip * identity_like(2, z) + attention
        second_fields = self._logit_matrix(z[..., 1, :])
        return (
            attention,
            mixing,
            second_fields,
            xp.matmul(xp.matmul(mixing, second_fields), xp.matrix_transpose(mixing)),
        )

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_3)`` of two layers given the label y, integrated over the first layer's latents
        along the two directions (a, b) that labels depend on; the first samples are integrated again on finer cells
        (``refined_sums``) for the numerical error.

        ``y`` (n, 2, 2), ``omega`` (n, 2, 3), ``V`` (2, 2), ``second_moment`` (n, 2, 3, 2, 3). ``rng`` is not used: the
        integrals are deterministic, and ``numerical_error`` comes from integrating some of the samples again on finer squares.
        ValueError if V is not positive definite; correlated layers are allowed.
        """
        from smimbench_attention.channels.attention.softmax.integrals import integrals

        check_latents(omega, 2, 3)
        n = omega.shape[0]
        samples, weight = sample_parameters(self.beta, self.skip, y, omega, V)
        sums = integrals(samples, weight, try_plane=True)
        # one sample in so many is integrated twice for the error
        checked_count = min(max(16, n // 64), n)
        refined_sums = integrals(
            samples[:checked_count],
            weight,
            ACCURACY.fine_largest_variation,
            try_gauss_hermite=False,
        )
        squared_difference = (
            float(np.mean((refined_sums.mean - sums.mean[:checked_count]) ** 2))
            if checked_count
            else 0.0
        )
        prior_means = to_host_floats(omega)
        prior_covariance = to_host_floats(V)
        directions = np.array(DIRECTIONS[:2])
        # (a_1, b_1, a_2, b_2) in their own units, each layer and direction apart
        prior_deviations = np.repeat(np.sqrt(np.diagonal(prior_covariance)), 2)
        mean = (
            prior_means + (sums.mean * prior_deviations).reshape(n, 2, 2) @ directions
        )
        direction_covariance = (
            sums.square - outer_product(sums.mean, sums.mean)
        ) * np.outer(prior_deviations, prior_deviations)
        # of no samples nothing is known
        mean_covariance = (
            direction_covariance.mean(axis=0) if n else np.zeros((4, 4))
        ).reshape(2, 2, 2, 2)
        covariance = (
            mean_covariance[:, 0, :, 0] + mean_covariance[:, 1, :, 1] + prior_covariance
        ) / 3
        second_moment_of_z = None
        if second_moment:
            to_latents = np.kron(np.eye(2), directions.T)
            flat_mean = mean.reshape(n, 6)
            covariance_of_unseen_direction = np.kron(
                prior_covariance, np.outer(DIRECTIONS[2], DIRECTIONS[2])
            )
            full_second_moment = (
                to_latents @ direction_covariance @ to_latents.T
                + covariance_of_unseen_direction
                + outer_product(flat_mean, flat_mean)
            )
            second_moment_of_z = array_like(
                full_second_moment.reshape(n, 2, 3, 2, 3), omega
            )
        # two of three directions are integrated; what was given up may be wrong by a prior width
        numerical_error = math.sqrt(
            (squared_difference + float(np.mean(sums.is_unreliable)) if n else 0.0)
            * 2
            / 3
        )
        return Posterior(
            array_like(mean, omega),
            array_like(covariance, omega),
            second_moment_of_z,
            numerical_error,
        )

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Logarithm (n,) of the density of the label y (n, 2, 2) for latents ``z ~ N(omega, V (x) I_3)``, as that of the margins
        ``(M_11 - M_12, M_22 - M_12)`` of the second layer's logits M, which y fixes.
        """
        from smimbench_attention.channels.attention.softmax.integrals import integrals

        check_latents(omega, 2, 3)
        return array_like(
            integrals(*sample_parameters(self.beta, self.skip, y, omega, V)).log_weight,
            omega,
        )

    def information(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """Information ``E sum_c g_c g_c^T`` (..., 2, 2) of the labels, g the score ``V^{-1} (E[z | y] - omega)``, with ``omega ~
        N(0, Q (x) I_3)`` and errors V, from so many random ``labels``; leading axes are a batch.

        Both layers see the same inputs and, with a prior of nonzero mean, share a part of their signals: Q
        then has an off-diagonal even before anything is learned. Scrambled Sobol points in eight dimensions,
        the same for every (Q, V), with control variates; the error is the standard error over the scrambles.
        By default 32768 labels are drawn; the number is rounded to a power of 2.
        """
        q, v = on_host(Q, V)
        label_count = 1 << 15 if labels is None else labels
        overlap_pairs = zip(q.reshape(-1, 2, 2), v.reshape(-1, 2, 2))
        estimates_with_errors = [
            self._sampled_information(label_count, *overlap_pair)
            for overlap_pair in overlap_pairs
        ]
        value, error = (
            np.array(
                [
                    estimate_and_error[index]
                    for estimate_and_error in estimates_with_errors
                ]
            ).reshape(q.shape)
            for index in (0, 1)
        )
        method = f"Monte Carlo ({ACCURACY.scrambles} scrambles of {label_count // ACCURACY.scrambles} Sobol points)"
        return uncertain_like(Q, value, error, method)

    def _sampled_information(
        self, samples: int, Q: Array, V: Array
    ) -> tuple[Array, Array]:
        r"""Sampled information ``E sum_c g_c g_c^T`` of labels and its standard error (2, 2) at one overlap Q and error V, from
        so many ``samples`` with crude posterior means, corrected by the mean difference to exact ones over few (``exact_count``).
        Products are of scores g, entries 11, 22, 12; the crude ones are control variates for the exact ones.

        A crude posterior mean, by Gauss-Hermite around the likeliest point near the truth, is almost
        perfectly correlated with the exact one and a hundred times cheaper: its mean over many samples is
        corrected by the mean of the difference over few.
        """
        scrambles = ACCURACY.scrambles
        exact_count = max(2 * scrambles, samples // ACCURACY.samples_per_exact_one)
        crude_products, _ = self._label_products(
            Q, V, _normal_points(samples, 0), exact=False
        )
        exact_products, control_products = self._label_products(
            Q, V, _normal_points(exact_count, 1), exact=True
        )
        crude_mean = crude_products.reshape(3, scrambles, -1).mean(axis=2)
        centered_controls = control_products - control_products.mean(
            axis=1, keepdims=True
        )
        regression_matrix = np.linalg.lstsq(
            centered_controls.T,
            (exact_products - exact_products.mean(axis=1, keepdims=True)).T,
            rcond=None,
        )[0].T
        residual_means = (
            (exact_products - regression_matrix @ control_products)
            .reshape(3, scrambles, -1)
            .mean(axis=2)
        )
        mean = regression_matrix @ crude_mean.mean(axis=1) + residual_means.mean(axis=1)
        error = np.hypot(
            (regression_matrix @ crude_mean).std(axis=1, ddof=1),
            residual_means.std(axis=1, ddof=1),
        ) / math.sqrt(scrambles)
        entry_order = np.array([[0, 2], [2, 1]])
        return mean[entry_order], error[entry_order]

    def _label_products(
        self, Q: Array, V: Array, normal_numbers: Array, *, exact: bool
    ) -> tuple[Array, Array]:
        """Products ``sum_c g_c g_c^T``, entries 11, 22 and 12, (3, N), of scores ``g = V^{-1} (E[z | y] - omega)`` of N labels
        drawn from ``normal_numbers``, at one overlap Q and error V: with exact posterior means, if ``exact``, and with crude
        ones. Coordinates are those along the two ``directions`` of a layer's latents on which labels depend; ``samples`` and
        ``weight`` are the arguments of ``integrals.integrals``.
        """
        from smimbench_attention.channels.attention.softmax.integrals import (
            crude_means,
            integrals,
        )

        # (sample, layer, direction)
        omega = np.einsum("lk,nkd->nld", symmetric_root(Q), normal_numbers[:, 0])
        true_coordinates = omega + np.einsum(
            "lk,nkd->nld", symmetric_root(V), normal_numbers[:, 1]
        )
        directions = np.array(DIRECTIONS[:2])
        samples, weight = sample_parameters(
            self.beta,
            self.skip,
            self.forward(true_coordinates @ directions),
            omega @ directions,
            V,
        )
        posterior_means = [
            crude_means(
                samples,
                weight,
                true_coordinates[:, 0, 0] * (ROOT2 * self.beta),
                true_coordinates[:, 0, 1] * (2 * self.beta),
            )
        ]
        if exact:
            posterior_means.insert(
                0, integrals(samples, weight, ACCURACY.crude_largest_variation).mean
            )
        inverse_V = np.linalg.inv(V)
        prior_deviations = np.sqrt(np.diagonal(V))[:, None]
        products = []
        for posterior_mean in posterior_means:
            score = np.einsum(
                "lk,nkd->nld",
                inverse_V,
                posterior_mean.reshape(-1, 2, 2) * prior_deviations,
            )
            products.append(
                np.stack(
                    [
                        np.sum(score[:, entry_row] * score[:, entry_column], axis=1)
                        for entry_row, entry_column in ((0, 0), (1, 1), (0, 1))
                    ]
                )
            )
        return products[0], products[-1]


@cache
def _normal_points(count: int, stream: int) -> Host:
    """Quasi-random standard normal numbers (``count``, 2, layers, directions), the 2 being estimate and residual, of the random
    stream of number ``stream``, scramble by scramble.
    """
    points_per_scramble = 1 << round(math.log2(max(2, count // ACCURACY.scrambles)))
    points = normal_scrambles(
        8,
        points_per_scramble,
        ACCURACY.scrambles,
        "two layers of attention: labels",
        stream,
    )
    return points.reshape(-1, 2, 2, 2)
