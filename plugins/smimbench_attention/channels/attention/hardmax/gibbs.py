"""Posterior of the row-wise argmax of three or more tokens, by exact integration if possible, else by Gibbs chains."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, matching, namespace, special
from smimbench.interfaces import Array
from smimbench.numerics import (
    entry_sites,
    outer_product,
    put_at_mask,
    site_pairs,
    site_scales,
    symmetric,
)
from smimbench_attention.channels.attention.hardmax.exact import (
    check_labels,
    row_posterior,
)
from smimbench_attention.channels.common import (
    blocks,
    concatenate_tuples,
    identity_like,
    put_tuple,
)

SWEEPS = 64
"""Sweeps that each of two chains averages by default. Doubled: errors fall by sqrt(2), in twice the time."""
_FAR_TAIL = -30.0  # probabilities below Phi(_FAR) are formed relative to the density


class ChainMoments(NamedTuple):
    """Averages over the sweeps of every Gibbs chain, for the shift e = (z - omega) / sqrt(V) of the latents: ``shift`` of e and
    ``square`` of e^2, both (chains, n, C), ``outer`` of e e^T (chains, n, C, C), or None.
    """

    shift: Array  # (chains, n, C) of (z - omega) / sqrt(V)
    square: Array  # (chains, n, C) of its squares
    outer: Array | None  # (chains, n, C, C) of the products of two of its entries


def truncated_normal(
    low: Array, high: Array, uniform: Array
) -> tuple[Array, Array, Array]:
    """Draw from a standard normal on ``[low, high]`` by inversion of ``uniform`` numbers; also return its mean and second moment.
    The interval is mirrored (``is_mirrored``) to the side below 0, ``low_end`` to ``high_end``; where it lies wholly beyond 30
    standard deviations it ``is_far``.

    ``low < high``, one of which may be infinite, and ``uniform`` in (0, 1) have one shape; so have the draw, ``E[x]`` and
    ``E[x^2]``. Exact for any limits: the interval is mirrored to the side where probabilities are small, and beyond 30 standard
    deviations they are formed relative to the nearer end.
    """
    xp = namespace(low, high, uniform)
    is_mirrored = low + high > 0
    low_end = xp.where(is_mirrored, -high, low)
    high_end = xp.where(is_mirrored, -low, high)
    # at a distance of 40 the density is 0 in double precision
    low_end = xp.maximum(low_end, clip(high_end, None, 0.0) - 40)
    near_high = clip(high_end, _FAR_TAIL, 40)
    p_low = special(xp).ndtr(xp.minimum(low_end, near_high))
    p_high = special(xp).ndtr(near_high)
    peak_density = 1 / math.sqrt(2 * math.pi)
    density_low = peak_density * xp.exp(-low_end * low_end / 2)
    density_high = peak_density * xp.exp(-near_high * near_high / 2)
    is_far = high_end < _FAR_TAIL
    # an interval too narrow for its probability has its moments from its ends, by the clips below
    probability = clip(p_high - p_low, 1e-300, None)
    sample = special(xp).ndtri(xp.where(is_far, 0.5, p_low + uniform * probability))
    mean = (density_low - density_high) / probability
    second_moment = 1 + (low_end * density_low - near_high * density_high) / probability
    if bool(xp.any(is_far)):
        is_far_flat = xp.reshape(is_far, (-1,))
        far_index = xp.nonzero(is_far_flat)[0]
        far_moments = _truncated_tail(
            *(
                xp.take(xp.reshape(argument, (-1,)), far_index)
                for argument in (low_end, high_end, uniform)
            )
        )
        moments = zip((sample, mean, second_moment), far_moments, strict=True)
        sample, mean, second_moment = (
            xp.reshape(
                put_at_mask(xp.reshape(moment, (-1,)), is_far_flat, far_moment),
                is_far.shape,
            )
            for moment, far_moment in moments
        )
    sample = clip(sample, low_end, high_end)
    mean = clip(mean, low_end, high_end)
    second_moment = xp.maximum(second_moment, mean * mean)
    return (
        xp.where(is_mirrored, -sample, sample),
        xp.where(is_mirrored, -mean, mean),
        second_moment,
    )


def _truncated_tail(
    low: Array, high: Array, uniform: Array
) -> tuple[Array, Array, Array]:
    """Draw from a standard normal on ``[low, high]``, where high is far below 0, by inversion of ``uniform`` numbers in (0, 1);
    also return mean and second moment. ``density_ratio`` is the density at low over that at high; ``probability`` is that of the
    interval over the density at high.
    """
    xp = namespace(low)

    def mills_ratio(t: Array) -> Array:
        """Mills ratio ``Phi(t) / phi(t)`` of the lower normal tail, for negative t."""
        return math.sqrt(math.pi / 2) * special(xp).erfcx(t * -math.sqrt(0.5))

    mills_high = mills_ratio(high)
    density_ratio = xp.exp((high - low) * (high + low) / 2)
    probability = mills_high - density_ratio * mills_ratio(low)
    # the fraction of the probability below the draw; a Rayleigh variable to first order, then Newton
    log_fraction = xp.log((mills_high - (1 - uniform) * probability) / mills_high)
    sample = -xp.sqrt(high * high - 2 * log_fraction)
    for _ in range(2):
        mills_at_sample = mills_ratio(sample)
        # log Phi(draw) - log Phi(b) - log_share
        log_residual = (
            (high - sample) * (high + sample) / 2
            + xp.log(mills_at_sample / mills_high)
            - log_fraction
        )
        sample = sample - log_residual * mills_at_sample
    return (
        sample,
        (density_ratio - 1) / probability,
        1 + (low * density_ratio - high) / probability,
    )


@cache
def _round_schedule(tokens: int) -> tuple[tuple[int, ...], ...]:
    """Schedule of Gibbs updates for T = ``tokens`` rows: the partner of every row in every round of a cycle of ``cycle_length``
    rounds or one more; the entries (row, partner) that are updated in one round share no row.

    The circle method of round-robin tournaments; a row without a partner meets itself, on the diagonal.
    """
    cycle_length = tokens - 1 + tokens % 2
    rounds = [
        [(round_index - row) % cycle_length for row in range(cycle_length)]
        for round_index in range(cycle_length)
    ]
    if cycle_length == tokens:
        return tuple(map(tuple, rounds))
    for partner in rounds:  # the row that is alone meets the last one
        unpaired_row = next(row for row in range(cycle_length) if partner[row] == row)
        partner[unpaired_row] = cycle_length
        partner.append(unpaired_row)
    return (*map(tuple, rounds), tuple(range(tokens)))


def _symmetric_matrix(site_values: Array, tokens: int) -> Array:
    """Symmetric matrices (T, T, n) from the values ``site_values`` (n, C) of their independent entries, for T = ``tokens``."""
    xp = namespace(site_values)
    entry_to_site = xp.asarray(
        entry_sites(tokens), device=array_api_compat.device(site_values)
    )
    return xp.reshape(
        xp.matrix_transpose(xp.take(site_values, entry_to_site, axis=1)),
        (tokens, tokens, -1),
    )


def feasible_start(y: Array, mean: Array, tokens: int) -> Array:
    """Matrix entries h (T, T, n) near ``mean`` (n, C) whose row maxima are in the columns that the label ``y`` (n, T) says, for T
    = ``tokens``: maxima are raised, other entries capped, at the least cost in units of the entries' variances.

    Every row on its own is projected: its maximum is raised, and the entries above it are lowered, to the
    level in between that costs least. The maximum of row a is an entry of row ``y_a`` too, hence no larger
    than that row's maximum: these chains of inequalities are enforced from the bottom up, then all other
    entries are cut off at the row maxima.
    """
    xp = namespace(y, mean)
    h = _symmetric_matrix(mean, tokens)
    inverse_variance = _symmetric_matrix(
        1 / xp.asarray(site_scales(tokens), **matching(mean))[None, :] ** 2, tokens
    )
    columns = xp.arange(tokens, **matching(y))
    # row a at column b
    is_maximum = xp.matrix_transpose(y)[:, None, :] == columns[None, :, None]
    maxima = xp.sum(xp.where(is_maximum, h, 0.0), axis=1)
    maxima_inverse_variance = xp.sum(
        xp.where(is_maximum, inverse_variance, 0.0), axis=1
    )
    row_maxima = maxima
    # Newton on a piecewise linear function: every step settles one entry at least
    for _ in range(tokens):
        weight_above = xp.where(
            (h > row_maxima[:, None, :]) & ~is_maximum, inverse_variance, 0.0
        )
        row_maxima = (
            maxima * maxima_inverse_variance + xp.sum(weight_above * h, axis=1)
        ) / (maxima_inverse_variance + xp.sum(weight_above, axis=1))
    for _ in range(tokens):
        row_maxima = xp.maximum(
            row_maxima,
            xp.max(xp.where(is_maximum, row_maxima[:, None, :], -math.inf), axis=0),
        )
    capped_entries = xp.minimum(
        h, xp.minimum(row_maxima[:, None, :], row_maxima[None, :, :])
    )
    raised_entries = xp.where(is_maximum, row_maxima[:, None, :], capped_entries)
    return xp.maximum(raised_entries, xp.permute_dims(raised_entries, (1, 0, 2)))


class _Round(NamedTuple):
    """Matrix entries that a Gibbs sampler updates together, each given by a pair of rows (row, partner), without a common row; a
    row on the diagonal is its own partner. ``scale`` and ``center`` are the entries' prior standard deviations and means.
    """

    sites: list[int]  # of the entries
    rows: Array  # smaller row of every pair
    partners: Array  # larger row of every pair
    pair_of_row: Array  # (T,) index of every row's pair
    in_round: Array  # (T, T, 1) whether an entry is one of them
    is_max: Array  # (T, n) whether a row has its maximum there
    scale: Array  # (sites, 1) prior standard deviations of the entries
    center: Array  # (sites, n) prior means of the entries


def _prepare_round(partner: tuple[int, ...], labels: Array, mean: Array) -> _Round:
    """Prepare a round of Gibbs updates of n matrices: ``partner`` is each row's partner, so that the entries (row, partner) are
    updated, ``labels`` (T, n) are the columns of the row maxima, and ``mean`` (n, C) the prior means of the entries. Locals
    ending in ``_index`` are the lists of rows, partners and pairs as arrays.
    """
    xp = namespace(mean)
    T = len(partner)
    device = array_api_compat.device(mean)
    rows = [row for row in range(T) if row <= partner[row]]
    sites = [entry_sites(T)[row * T + partner[row]] for row in rows]
    pair_of_row = [rows.index(min(row, partner[row])) for row in range(T)]
    row_index, partner_index, pair_index = (
        xp.asarray(indices, device=device)
        for indices in (rows, [partner[row] for row in rows], pair_of_row)
    )
    partner_column = xp.asarray(partner, **matching(labels))[:, None]
    in_round = (xp.arange(T, **matching(labels))[None, :] == partner_column)[:, :, None]
    entry_deviations = xp.asarray(
        [site_scales(T)[site] for site in sites], **matching(mean)
    )[:, None]
    entry_means = xp.stack([mean[:, site] for site in sites])
    return _Round(
        sites,
        row_index,
        partner_index,
        pair_index,
        in_round,
        labels == partner_column,
        entry_deviations,
        entry_means,
    )


def chain_moments(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    *,
    sweeps: int,
    burn_in: int,
    chains: int,
    rng: np.random.Generator,
    start: Array | None = None,
    second_moments: bool = False,
) -> ChainMoments:
    r"""Moments of ``z ~ N(omega, V I)`` given labels y, the columns of the row maxima, from independent Gibbs ``chains`` that
    average over so many ``sweeps`` after ``burn_in`` sweeps from the latents ``start``; h are the matrix entries of rows a and
    columns b, z times ``h_per_z``, of T = ``tokens`` tokens. A sweep is a sequence of rounds, each of which draws matrix entries
    without a common row; ``rival_maximum`` is the largest other entry of a row.

    Every entry is bounded by the rest of its two rows: from below by a row whose maximum it is, from above by
    a row whose maximum it is not. Entries without a common row are drawn at once. The averages are those of
    the conditional moments given the rest, so entries far from their bounds contribute no noise.

    ``y`` (n, T) integers, ``omega`` (n, C) and ``V`` () in double precision. ``start`` (n, C) are latents z: a draw from the
    posterior leaves no burn-in bias; default: ``feasible_start``. ``second_moments`` also averages the products of two entries.
    """
    xp = namespace(y, omega, V)
    n, C = omega.shape
    entry_deviations_by_site = xp.asarray(site_scales(tokens), **matching(omega))[
        None, :
    ]
    h_per_z = entry_deviations_by_site / xp.sqrt(V)
    entry_mean = omega * h_per_z
    h = (
        feasible_start(y, entry_mean, tokens)
        if start is None
        else _symmetric_matrix(start * h_per_z, tokens)
    )
    h = xp.concat([h] * chains, axis=2)
    entry_mean = xp.concat([entry_mean] * chains, axis=0)
    labels = xp.concat([xp.matrix_transpose(y)] * chains, axis=1)
    rounds = [
        _prepare_round(partner, labels, entry_mean)
        for partner in _round_schedule(tokens)
    ]
    moment_sums: list[Array] = [0.0] * len(rounds)
    product_sums: Array = 0.0
    for sweep in range(burn_in + sweeps):
        for round_index, (
            sites,
            rows,
            partners,
            pair_of_row,
            in_round,
            is_max,
            entry_deviations,
            entry_means,
        ) in enumerate(rounds):
            rival_maximum = xp.max(xp.where(in_round, -math.inf, h), axis=1)
            lower_bound = xp.where(is_max, rival_maximum, -math.inf)
            upper_bound = xp.where(is_max, math.inf, rival_maximum)
            lower_bound = xp.maximum(
                xp.take(lower_bound, rows, axis=0),
                xp.take(lower_bound, partners, axis=0),
            )
            upper_bound = xp.minimum(
                xp.take(upper_bound, rows, axis=0),
                xp.take(upper_bound, partners, axis=0),
            )
            uniform = xp.asarray(rng.random((len(sites), n * chains)), **matching(h))
            # the start may hold an entry on its bound
            lower_bound = (lower_bound - entry_means) / entry_deviations
            upper_bound = (upper_bound - entry_means) / entry_deviations
            sampled_entries, *moments = truncated_normal(
                lower_bound, xp.maximum(lower_bound, upper_bound), uniform
            )
            h = xp.where(
                in_round,
                xp.take(
                    entry_means + entry_deviations * sampled_entries,
                    pair_of_row,
                    axis=0,
                )[:, None, :],
                h,
            )
            if sweep >= burn_in:
                moment_sums[round_index] = moment_sums[round_index] + xp.stack(moments)
        if second_moments and sweep >= burn_in:
            sampled_latents = (
                xp.stack([h[a, b, :] for a, b in site_pairs(tokens)], axis=1)
                - entry_mean
            ) / entry_deviations_by_site
            product_sums = product_sums + outer_product(
                sampled_latents, sampled_latents
            )
    site_order = xp.argsort(
        xp.asarray(
            [site for round_ in rounds for site in round_.sites],
            device=array_api_compat.device(omega),
        )
    )
    averages = xp.take(xp.concat(moment_sums, axis=1), site_order, axis=1) / sweeps
    shift, square = (
        xp.reshape(xp.matrix_transpose(averages[moment, :, :]), (chains, n, C))
        for moment in range(2)
    )
    return ChainMoments(
        shift,
        square,
        xp.reshape(product_sums / sweeps, (chains, n, C, C))
        if second_moments
        else None,
    )


class MatrixMoments(NamedTuple):
    """Posterior of the latents in units of the prior: ``shift`` E[z - omega] / sqrt(V) and ``variance`` Var(z) / V, (n, C),
    ``outer`` the second moment E[(z - omega)(z - omega)^T] / V, (n, C, C), or None, and ``square_error`` (n,), the mean squared
    numerical error of ``shift``.
    """

    shift: Array  # (n, C) E[z - omega] / sqrt(V)
    variance: Array  # (n, C) Var(z) / V; without bias: single values may be negative
    outer: Array | None  # (n, C, C) E[(z - omega)(z - omega)^T] / V
    square_error: Array  # (n,) mean over sites of squared numerical errors of `shift`


def exact_moments(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    rng: np.random.Generator | None,
    second_moments: bool,
) -> MatrixMoments:
    """Posterior moments of ``z ~ N(omega, V I)``, omega (n, C), given labels y (n, T) of T = ``tokens`` tokens, by nested
    integrals over row maxima; by Gibbs chains for the few labels that are unlikely under ``omega``, whose errors are infinite
    without an ``rng``. Second moments only if ``second_moments``.
    """
    xp = namespace(y, omega, V)
    log_partition, shift, mean_square = row_posterior(y, omega, V, tokens)
    variance = mean_square - shift**2
    second_moment = None
    if second_moments:
        second_moment = _covariance_by_response(
            y, omega, V, tokens, variance
        ) + outer_product(shift, shift)
    # of the integration, in prior widths
    moments = MatrixMoments(
        shift, variance, second_moment, xp.full_like(shift[:, 0], 1e-5**2)
    )
    # The windows of the integration may miss the posterior of a label that is less likely.
    is_unlikely = ~(log_partition > math.log(1e-8))
    if rng is None:
        square_error = xp.where(is_unlikely, math.inf, moments.square_error)
        return moments._replace(square_error=square_error)
    if not bool(xp.any(is_unlikely)):
        return moments
    check_labels(y)
    unlikely_index = xp.nonzero(is_unlikely)[0]
    gibbs_posterior = gibbs_moments(
        xp.take(y, unlikely_index, axis=0),
        xp.take(omega, unlikely_index, axis=0),
        V,
        tokens,
        rng,
        second_moments,
    )
    # Entries that are pressed together hardly move in a chain, and two such chains look alike.
    gibbs_posterior = gibbs_posterior._replace(
        square_error=clip(gibbs_posterior.square_error, 0.1**2, None)
    )
    return put_tuple(moments, is_unlikely, gibbs_posterior)


def _covariance_by_response(
    y: Array, omega: Array, V: Array, tokens: int, variance: Array
) -> Array:
    """Covariance of the latents z ~ N(omega, V I) between sites, over V, (n, C, C), given labels y of T = ``tokens`` tokens, as
    the response of their posterior mean to omega, ``1 + d shift / d omega`` in units of sqrt(V), where shift is the posterior
    mean less omega; a finite difference with steps of ``step_in_deviations`` prior standard deviations; ``variance`` (n, C) is
    its diagonal.
    """
    xp = namespace(omega)
    identity = identity_like(omega.shape[1], omega)
    step_in_deviations = 0.05  # the error is of order 4
    prior_deviation = xp.sqrt(V)
    response_rows = []
    for site in range(omega.shape[1]):
        derivative: Array = 0.0
        stencil = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))
        for steps, stencil_weight in stencil:
            change = steps * step_in_deviations * prior_deviation
            shifted_omega = omega + change * identity[site, :][None, :]
            derivative = (
                derivative
                + stencil_weight
                / step_in_deviations
                * row_posterior(y, shifted_omega, V, tokens).shift
            )
        response_rows.append(derivative)
    response = xp.stack(response_rows, axis=1)
    response = symmetric(response) + identity[None, :, :]
    return xp.where(identity[None, :, :] > 0, variance[:, :, None], response)


def gibbs_moments(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    rng: np.random.Generator,
    second_moments: bool,
    sweeps: int = SWEEPS,
) -> MatrixMoments:
    """Posterior moments of ``z ~ N(omega, V I)``, omega (n, C), given labels y (n, T) of T = ``tokens`` tokens, from two Gibbs
    chains of so many ``sweeps``, started near ``omega``; the difference of the chains gives the error. Second moments only if
    ``second_moments``.
    """
    xp = namespace(y, omega, V)
    batch_size = max(1, (1 << 17) // (2 * tokens**2)) * (
        1 if array_api_compat.is_numpy_namespace(xp) else 64
    )
    batches = []
    for rows in blocks(y.shape[0], batch_size):
        chains = chain_moments(
            y[rows, :],
            omega[rows, :],
            V,
            tokens,
            sweeps=sweeps,
            burn_in=max(16, sweeps // 4),
            chains=2,
            rng=rng,
            second_moments=second_moments,
        )
        chain_1, chain_2 = chains.shift[0, ...], chains.shift[1, ...]
        mean_shift = xp.mean(chains.shift, axis=0)
        mean_square = xp.mean(chains.square, axis=0)
        second_moment = None
        if chains.outer is not None:
            is_diagonal = identity_like(mean_shift.shape[1], mean_shift)[None, :, :] > 0
            second_moment = xp.where(
                is_diagonal, mean_square[:, :, None], xp.mean(chains.outer, axis=0)
            )
        batches.append(
            MatrixMoments(
                mean_shift,
                mean_square - chain_1 * chain_2,
                second_moment,
                xp.mean((chain_1 - chain_2) ** 2, axis=1) / 4,
            )
        )
    return concatenate_tuples(batches)
