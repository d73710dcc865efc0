"""Posterior of deep attention by importance sampling in stages, with mixtures that adapt to the samples.

After ``z_L = +- B^{-1} u`` an integral over the other layers ``w = (z_1 .. z_{L-1})`` is left, in M (L - 1)
dimensions. Where ``V`` is small it lives on a thin curved set, so points come from a mixture of proposals,
each of which is right in some corner of the (V_11 .. V_LL) space, and every point is weighted with the
density of the whole mixture (which bounds the weights by what the best proposal would give):

* the prior of ``w``;
* Gaussians around points that did well before, moved towards the maximum by Gauss-Newton steps;
* for two tokens, the prior with the difference of the tokens of ``z_{L-1}`` solved for, for attention matrices that are
  nearly singular: without a skip connection most labels come from such.

Points are drawn in independent scrambles. Errors come from the spread of the scrambles and the share of the heaviest point. The
scheme is derived, checked by tests/channels/sequence/test_softmax_posterior.py. ``points`` has the mixture, ``kernel`` its use.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Array, Host, Posterior
from smimbench.numerics import is_diagonal, normal_scrambles
from smimbench_attention.channels.common import array_like, shifted_second_moment

PILOT_POINTS = 128
"""Points of the first look, from each kind of prior. Doubled: a fifth more time, the same error."""


class LayerMoments(NamedTuple):
    """Posterior moments of the latents ``z ~ N(omega, V (x) I_M)`` given n labels, of ``dz = z - omega``, in float64:
    ``log_partition`` is the labels' log-density, ``shift`` E[dz], ``second`` E[dz dz^T] summed over tokens or whole, ``error``
    the numerical error of ``shift``.
    """

    log_partition: Array  # (n,) log Z_out
    shift: Array  # (n, L, M) E[dz]
    second: Array  # (n, L, L) sum_m E[dz_am dz_bm], or (n, L M, L M) the whole E[dz dz^T] by layer and token
    error: Array  # (n,) estimated error of `shift`: root mean square over its entries, relative to sqrt(diag V)

    def posterior(self, omega: Array, full_second: bool) -> Posterior:
        """Convert these moments of ``z - omega`` to the ``Posterior`` of the channel contract, for prior means ``omega`` (n, L,
        M); ``full_second`` says whether ``second`` is the whole matrix by layer and token, or summed over tokens
        (``token_traces``).
        """
        xp = namespace(omega)
        n, layers, tokens = omega.shape
        shift = self.shift
        omega_64 = xp.astype(omega, xp.float64)
        token_traces = self.second
        second_moment = None
        if full_second:
            matrix_by_layer_and_token = xp.reshape(
                self.second, (n, layers, tokens, layers, tokens)
            )
            # sum over equal tokens
            token_traces = xp.sum(
                xp.linalg.diagonal(
                    xp.permute_dims(matrix_by_layer_and_token, (0, 1, 3, 2, 4))
                ),
                axis=-1,
            )
            flat_shift, flat_omega = (
                xp.reshape(latents, (n, layers * tokens))
                for latents in (shift, omega_64)
            )
            outer = xp.reshape(self.second, (n, layers * tokens, layers * tokens))
            second_moment = xp.reshape(
                shifted_second_moment(flat_omega, flat_shift, outer, omega.dtype),
                matrix_by_layer_and_token.shape,
            )
        # one product of all samples, not one of two layers for each
        layer_rows = xp.reshape(xp.permute_dims(shift, (1, 0, 2)), (layers, -1))
        covariance = (
            xp.mean(token_traces, axis=0)
            - xp.matmul(layer_rows, xp.matrix_transpose(layer_rows)) / n
        ) / tokens
        return Posterior(
            xp.astype(omega_64 + shift, omega.dtype),
            xp.astype(covariance, omega.dtype),
            second_moment,
            xp.sqrt(xp.mean(self.error * self.error)),
        )


def moments_of_means(
    mass: Array,
    log_unit: Array,
    log_normalization: float,
    means: Array,
    error: Array,
    shape: tuple[int, ...],
) -> LayerMoments:
    """Moments of latents from ``means`` (k, n) of n samples, whose rows are the posterior means of ``dz = z - omega``, then of
    its second moments, and the log-partition ``log(mass) + log_unit - log_normalization``. ``mass`` (n,) is the integral in units
    of ``exp(log_unit)``, ``error`` (n,) that of the means, ``shape`` is (n, L, M).

    ``log Z_out = log(mass) + log_unit - log_normalization``; ``mass`` and ``log_unit`` (n,), 0 mass where
    nothing was found; ``shape`` is (n, L, M).
    """
    xp = namespace(mass)
    _, layers, tokens = shape
    is_positive = mass > 0.0
    log_partition = xp.where(
        is_positive,
        xp.log(xp.where(is_positive, mass, 1.0)) + log_unit - log_normalization,
        -math.inf,
    )
    mean_rows = xp.permute_dims(means, (1, 0))
    shift_count = layers * tokens
    matrix_size = math.isqrt(mean_rows.shape[1] - shift_count)
    shift = xp.reshape(mean_rows[:, :shift_count], (-1, layers, tokens))
    second = xp.reshape(
        mean_rows[:, shift_count:], (mean_rows.shape[0], matrix_size, matrix_size)
    )
    return LayerMoments(
        log_partition, shift, second, xp.where(is_positive, error, math.inf)
    )


def integrate(
    u: Array,
    omega: Array,
    V: Host,
    skip: float,
    accuracy: float,
    points: int,
    full_second_moment: bool | None = False,
    seed: int = 0,
    u_gap: Array | None = None,
    runs: int = 1,
) -> list[LayerMoments]:
    """Posterior moments and log-partition of the latents ``z ~ N(omega, V (x) I)`` of L layers of two or three tokens, given the
    outputs ``u`` (n, M) up to sign and their difference ``u_gap``, by importance sampling: one result for each of ``runs``
    independent sets of points, which ``seed`` numbers. ``skip`` is the weight c of the skip connection, ``accuracy`` the error at
    which fewer than ``points`` points are enough; whole second moments if ``full_second_moment``, else their traces, none if it
    is None.

    ``u`` (n, M) are outputs up to sign, ``omega`` (n, L, M) means, both in float64; ``V`` (L, L), L >= 2, is positive definite,
    on the host. Samples whose error is below ``accuracy`` after an eighth of the points are left at that; ``points`` are counted
    over all scrambles and rounded down to a power of 2. Another ``seed`` gives independent results. ``u_gap`` (n,) is
    ``u_1 - u_2`` of two tokens where it is known better than the difference of their ``u``: deep attention without a skip
    connection makes tokens alike. The ``error`` is 1.5 times a standard error over the scrambles, with the share of the heaviest
    point. It is computed on the host.

    All runs sample the same Gaussians, with points of their own: given these, their errors are independent.
    ``full_second_moment`` None leaves out second moments.
    """
    from smimbench_attention.channels.sequence.softmax.deep.kernel import (
        SCRAMBLES,
        integrate_samples,
    )
    from smimbench_attention.channels.sequence.softmax.deep.points import LatentLaw

    n, layers, tokens = omega.shape
    outputs = to_host(u)
    if tokens == 2:
        difference = outputs[:, 0] - outputs[:, 1] if u_gap is None else to_host(u_gap)
        outputs = np.concatenate([outputs, difference[:, None]], axis=1)
    all_points = max(32, 1 << ((points // SCRAMBLES).bit_length() - 1))
    # for this accuracy or worse, try an eighth of the points first
    trial_points = max(32, all_points // 8) if accuracy >= 1e-3 else all_points
    cross_covariance = V[:-1, -1]
    regression_slopes = np.linalg.solve(V[:-1, :-1], cross_covariance)
    conditional_variance = float(V[-1, -1] - regression_slopes @ cross_covariance)
    is_diagonal_V = is_diagonal(V)
    precision = np.diag(1.0 / np.diagonal(V)) if is_diagonal_V else np.linalg.inv(V)
    latent_law = LatentLaw(
        tokens,
        float(skip),
        np.linalg.cholesky(V[:-1, :-1]),
        regression_slopes,
        conditional_variance,
        precision,
        is_diagonal_V,
        np.diagonal(V).copy(),
    )
    matrix_size = (
        0
        if full_second_moment is None
        else layers * tokens
        if full_second_moment
        else layers
    )
    sums = np.empty((n, runs, 3 + layers * tokens + matrix_size**2))
    # One memory layout only: any other would be compiled separately.
    arrays = [
        np.require(array, np.float64, ["C", "W"]) for array in (outputs, to_host(omega))
    ]
    point_sets = _integration_points(
        layers, tokens, trial_points, all_points, SCRAMBLES, seed, runs
    )
    integrate_samples(
        *arrays, latent_law, float(accuracy), point_sets, bool(full_second_moment), sums
    )
    log_normalization = 0.5 * tokens * math.log(2.0 * math.pi * conditional_variance)
    if tokens == 2:  # the kernel divides B by (1 + c)^(L - 1)
        log_normalization += 2.0 * (layers - 1) * math.log1p(skip)
    run_moments = []
    for log_unit, mass, error, *means in sums.transpose(1, 2, 0):
        moments = moments_of_means(
            mass, log_unit, log_normalization, np.stack(means), error, omega.shape
        )
        run_moments.append(LayerMoments(*(array_like(moment, u) for moment in moments)))
    return run_moments


@lru_cache(maxsize=64)
def _integration_points(
    layers: int,
    tokens: int,
    trial_points: int,
    all_points: int,
    scrambles: int,
    seed: int,
    runs: int,
) -> object:
    """Random points of all four stages of ``kernel.integrate_samples`` (pilot, improvement, first and last estimate), by
    component of the mixture, and the number of points of each component in a scramble; ``seed`` numbers them, ``trial_points``
    and ``all_points`` are those of the two estimates in a scramble, whose number is ``scrambles`` for each of ``runs``.

    Its two estimates use ``trial_points`` and ``all_points`` of a scramble. The first axis counts ``runs``. Rows are normal
    numbers for all coordinates and residuals, uniform ones for all layers but the last, and Gumbel's noise.
    """
    coordinate_count = (layers - 1) * tokens

    def stage_points(
        stage: int,
        count: int,
        mixture_shares: tuple[int, int, int],
        scrambles_per_run: int,
        runs: int,
    ) -> tuple[tuple[Host, ...], tuple[int, ...]]:
        """Random points of one ``stage`` (its number) for each component of the mixture, in ``runs`` times ``scrambles_per_run``
        scrambles of ``count`` points, and the components' numbers of points: ``mixture_shares`` eighths of ``count``.
        """
        from scipy.special import ndtr

        points_shape = (
            coordinate_count + tokens + layers,
            count,
            runs * scrambles_per_run,
        )
        random_numbers = normal_scrambles(
            *points_shape, "deep attention", seed, stage
        ).reshape(runs, scrambles_per_run, count, -1)
        random_numbers[..., coordinate_count + tokens :] = np.clip(
            ndtr(random_numbers[..., coordinate_count + tokens :]), 1e-16, 1.0 - 1e-16
        )
        random_numbers[..., -1] = -np.log(-np.log(random_numbers[..., -1]))
        component_sizes = tuple(share * count // 8 for share in mixture_shares)
        component_points = (
            component.reshape(runs, -1, points_shape[0]).transpose(0, 2, 1)
            for component in np.split(
                random_numbers, np.cumsum(component_sizes), axis=2
            )[:3]
        )
        return tuple(map(np.ascontiguousarray, component_points)), component_sizes

    # shares of the prior, the Gaussians and the gaps
    mixture_shares, pilot_mixture_shares = (
        ((2, 4, 2), (4, 0, 4)) if tokens == 2 else ((4, 4, 0), (8, 0, 0))
    )
    return (
        stage_points(0, 2 * PILOT_POINTS, pilot_mixture_shares, 1, 1),
        stage_points(1, all_points, mixture_shares, 1, 1),
        stage_points(2, trial_points, mixture_shares, scrambles, runs),
        stage_points(3, all_points, mixture_shares, scrambles, runs),
    )


def mixing(z: Host, skip: float) -> Host:
    """Off-diagonal entries and determinant (3, n) of ``B / (1 + c)^K``: B is the product of the attention matrices of K layers
    with latents ``z`` (n, K, 2), c = ``skip`` the weight of the skip connection.
    """
    from smimbench_attention.channels.sequence.softmax.deep.kernel import (
        mixing_of_samples,
    )

    matrix_entries = np.empty((3, len(z)))
    mixing_of_samples(
        np.require(z, np.float64, ["C", "W"]), float(skip), matrix_entries
    )
    return matrix_entries


def output_gap(z: Host, skip: float) -> Host:
    """Difference ``u_1 - u_2`` (n,) of the outputs of two tokens without loss of digits, however similar they are, for latents z
    (n, L, 2) and skip connections of weight ``skip`` = c.
    """
    hidden_layers = z.shape[1] - 1
    last_difference = z[:, hidden_layers, 0] - z[:, hidden_layers, 1]
    return np.asarray(
        (1.0 + skip) ** hidden_layers
        * mixing(z[:, :hidden_layers], skip)[2]
        * last_difference
    )
