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
    site_pairs,
    site_scales,
    spread_at_mask,
    symmetric,
)
from smimbench_attention.channels.attention.hardmax.exact import row_posterior
from smimbench_attention.channels.common import blocks, identity_like, joined, put_tuple

SWEEPS = 64
"""Sweeps that each of two chains averages by default. Doubled: errors fall by sqrt(2), in twice the time."""
_FAR = -30.0  # probabilities below Phi(_FAR) are formed relative to the density


class ChainMoments(NamedTuple):
    """Averages over the sweeps of every chain, in units of the prior's standard deviation."""

    shift: Array  # (chains, n, C) of (z - omega) / sqrt(V)
    square: Array  # (chains, n, C) of its squares
    outer: Array | None  # (chains, n, C, C) of the products of two of its entries


def truncated_normal(
    low: Array, high: Array, uniform: Array
) -> tuple[Array, Array, Array]:
    """Draw from a standard normal on ``[low, high]`` by inversion, with its mean and second moment.

    ``low < high``, one of which may be infinite, and ``uniform`` in (0, 1) have one shape; so have the draw, ``E[x]`` and
    ``E[x^2]``. Exact for any limits: the interval is mirrored to the side where probabilities are small, and beyond 30 standard
    deviations they are formed relative to the nearer end.
    """
    xp = namespace(low, high, uniform)
    mirror = low + high > 0
    a = xp.where(mirror, -high, low)
    b = xp.where(mirror, -low, high)
    a = xp.maximum(
        a, clip(b, None, 0.0) - 40
    )  # there the density is 0 in double precision
    inside = clip(b, _FAR, 40)
    p_a = special(xp).ndtr(xp.minimum(a, inside))
    p_b = special(xp).ndtr(inside)
    density = 1 / math.sqrt(2 * math.pi)
    phi_a = density * xp.exp(-a * a / 2)
    phi_b = density * xp.exp(-inside * inside / 2)
    far = b < _FAR
    # an interval too narrow for its probability has its moments from its ends, by the clips below
    mass = clip(p_b - p_a, 1e-300, None)
    draw = special(xp).ndtri(xp.where(far, 0.5, p_a + uniform * mass))
    mean = (phi_a - phi_b) / mass
    second = 1 + (a * phi_a - inside * phi_b) / mass
    if bool(xp.any(far)):
        flat = xp.reshape(far, (-1,))
        index = xp.nonzero(flat)[0]
        tail_draws = _truncated_tail(
            *(xp.take(xp.reshape(v, (-1,)), index) for v in (a, b, uniform))
        )
        tail = [xp.reshape(spread_at_mask(v, flat), far.shape) for v in tail_draws]
        draw, mean, second = (
            xp.where(far, t, c) for t, c in zip(tail, (draw, mean, second), strict=True)
        )
    draw = clip(draw, a, b)
    mean = clip(mean, a, b)
    second = xp.maximum(second, mean * mean)
    return xp.where(mirror, -draw, draw), xp.where(mirror, -mean, mean), second


def _truncated_tail(a: Array, b: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """Draw from a standard normal on ``[a, b]`` with b far below 0; also return its mean and second moment."""
    xp = namespace(a)

    def mills(t: Array) -> Array:
        return math.sqrt(math.pi / 2) * special(xp).erfcx(t * -math.sqrt(0.5))

    at_b = mills(b)
    ratio = xp.exp((b - a) * (b + a) / 2)
    mass = at_b - ratio * mills(a)
    # the fraction of the probability below the draw; a Rayleigh variable to first order, then Newton
    log_share = xp.log((at_b - (1 - uniform) * mass) / at_b)
    draw = -xp.sqrt(b * b - 2 * log_share)
    for _ in range(2):
        ratio_at_draw = mills(draw)
        # log Phi(draw) - log Phi(b) - log_share
        gap = (b - draw) * (b + draw) / 2 + xp.log(ratio_at_draw / at_b) - log_share
        draw = draw - gap * ratio_at_draw
    return draw, (ratio - 1) / mass, 1 + (a * ratio - b) / mass


@cache
def _rounds(tokens: int) -> tuple[tuple[int, ...], ...]:
    """Schedule of Gibbs updates: the partner of every row in every round; the entries updated in one round share no row.

    The circle method of round-robin tournaments; a row without a partner meets itself, on the diagonal.
    """
    odd = tokens - 1 + tokens % 2
    rounds = [[(k - a) % odd for a in range(odd)] for k in range(odd)]
    if odd == tokens:
        return tuple(map(tuple, rounds))
    for partner in rounds:  # the row that is alone meets the last one
        alone = next(a for a in range(odd) if partner[a] == a)
        partner[alone] = odd
        partner.append(alone)
    return (*map(tuple, rounds), tuple(range(tokens)))


def _matrix(sites: Array, tokens: int) -> Array:
    """Symmetric matrices (T, T, n) from their independent entries, the sites (n, C)."""
    xp = namespace(sites)
    index = xp.asarray(entry_sites(tokens), device=array_api_compat.device(sites))
    return xp.reshape(
        xp.matrix_transpose(xp.take(sites, index, axis=1)), (tokens, tokens, -1)
    )


def feasible_start(y: Array, mean: Array, tokens: int) -> Array:
    """Matrix entries (T, T, n) near ``mean`` (n, C) whose row maxima are those of the label ``y`` (n, T).

    Every row on its own is projected: its maximum is raised, and the entries above it are lowered, to the
    level in between that costs least. The maximum of row a is an entry of row ``y_a`` too, hence no larger
    than that row's maximum: these chains of inequalities are enforced from the bottom up, then all other
    entries are cut off at the row maxima.
    """
    xp = namespace(y, mean)
    h = _matrix(mean, tokens)
    weight = _matrix(
        1 / xp.asarray(site_scales(tokens), **matching(mean))[None, :] ** 2, tokens
    )
    columns = xp.arange(tokens, **matching(y))
    points = (
        xp.matrix_transpose(y)[:, None, :] == columns[None, :, None]
    )  # row a at column b
    zero = xp.zeros_like(h)
    maxima = xp.sum(xp.where(points, h, zero), axis=1)
    maxima_weight = xp.sum(xp.where(points, weight, zero), axis=1)
    top = maxima
    for _ in range(
        tokens
    ):  # Newton on a piecewise linear function: every step settles one entry at least
        above = xp.where((h > top[:, None, :]) & ~points, weight, zero)
        top = (maxima * maxima_weight + xp.sum(above * h, axis=1)) / (
            maxima_weight + xp.sum(above, axis=1)
        )
    for _ in range(tokens):
        top = xp.maximum(
            top, xp.max(xp.where(points, top[:, None, :], -math.inf), axis=0)
        )
    capped = xp.minimum(h, xp.minimum(top[:, None, :], top[None, :, :]))
    raised = xp.where(points, top[:, None, :], capped)
    return xp.maximum(raised, xp.permute_dims(raised, (1, 0, 2)))


class _Round(NamedTuple):
    """Matrix entries that a Gibbs sampler updates together: one for each pair of rows, without a common row."""

    sites: list[int]
    rows: Array  # smaller and larger row of every pair
    partners: Array
    position: Array  # (T,) of every row's pair
    in_round: Array  # (T, T, 1) whether an entry is one of them
    is_max: Array  # (T, n) whether a row has its maximum there
    scale: Array  # (sites, 1)
    center: Array  # (sites, n) prior means


def _round(partner: tuple[int, ...], labels: Array, mean: Array) -> _Round:
    """Prepare a round of Gibbs updates for labels (T, n) and prior means (n, C)."""
    xp = namespace(mean)
    T = len(partner)
    device = array_api_compat.device(mean)
    rows = [a for a in range(T) if a <= partner[a]]
    sites = [entry_sites(T)[a * T + partner[a]] for a in rows]
    position = [rows.index(min(a, partner[a])) for a in range(T)]
    row_index, partner_index, place = (
        xp.asarray(i, device=device)
        for i in (rows, [partner[a] for a in rows], position)
    )
    column = xp.asarray(partner, **matching(labels))[:, None]
    in_round = (xp.arange(T, **matching(labels))[None, :] == column)[:, :, None]
    scale = xp.asarray([site_scales(T)[c] for c in sites], **matching(mean))[:, None]
    center = xp.stack([mean[:, c] for c in sites])
    return _Round(
        sites,
        row_index,
        partner_index,
        place,
        in_round,
        labels == column,
        scale,
        center,
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
    outer: bool = False,
) -> ChainMoments:
    r"""Moments of ``z ~ N(omega, V)`` given the columns of the row maxima, from independent Gibbs chains.

    Every entry is bounded by the rest of its two rows: from below by a row whose maximum it is, from above by
    a row whose maximum it is not. Entries without a common row are drawn at once. The averages are those of
    the conditional moments given the rest, so entries far from their bounds contribute no noise.

    ``y`` (n, T) integers, ``omega`` (n, C) and ``V`` () in double precision. ``start`` (n, C) are latents z: a draw from the
    posterior leaves no burn-in bias; default: ``feasible_start``. ``outer`` also averages the products of two entries.
    """
    xp = namespace(y, omega, V)
    n, C = omega.shape
    scales = xp.asarray(site_scales(tokens), **matching(omega))[None, :]
    unit = scales / xp.sqrt(V)
    mean = omega * unit
    h = (
        feasible_start(y, mean, tokens)
        if start is None
        else _matrix(start * unit, tokens)
    )
    h = xp.concat([h] * chains, axis=2)
    mean = xp.concat([mean] * chains, axis=0)
    labels = xp.concat([xp.matrix_transpose(y)] * chains, axis=1)
    rounds = [_round(partner, labels, mean) for partner in _rounds(tokens)]
    totals: list[Array] = [0.0] * len(rounds)
    products: Array = 0.0
    for sweep in range(burn_in + sweeps):
        for k, (
            sites,
            rows,
            partners,
            position,
            in_round,
            is_max,
            scale,
            center,
        ) in enumerate(rounds):
            rival = xp.max(xp.where(in_round, -math.inf, h), axis=1)
            low = xp.where(is_max, rival, -math.inf)
            high = xp.where(is_max, math.inf, rival)
            low = xp.maximum(xp.take(low, rows, axis=0), xp.take(low, partners, axis=0))
            high = xp.minimum(
                xp.take(high, rows, axis=0), xp.take(high, partners, axis=0)
            )
            uniform = xp.asarray(rng.random((len(sites), n * chains)), **matching(h))
            # the start may hold an entry on its bound
            low = (low - center) / scale
            high = (high - center) / scale
            x, *moments = truncated_normal(low, xp.maximum(low, high), uniform)
            h = xp.where(
                in_round, xp.take(center + scale * x, position, axis=0)[:, None, :], h
            )
            if sweep >= burn_in:
                totals[k] = totals[k] + xp.stack(moments)
        if outer and sweep >= burn_in:
            x = (
                xp.stack([h[a, b, :] for a, b in site_pairs(tokens)], axis=1) - mean
            ) / scales
            products = products + x[:, :, None] * x[:, None, :]
    order = xp.argsort(
        xp.asarray(
            [c for round_ in rounds for c in round_.sites],
            device=array_api_compat.device(omega),
        )
    )
    averages = (
        xp.permute_dims(xp.take(xp.concat(totals, axis=1), order, axis=1), (0, 2, 1))
        / sweeps
    )
    shift, square = (xp.reshape(averages[k, :, :], (chains, n, C)) for k in range(2))
    return ChainMoments(
        shift,
        square,
        xp.reshape(products / sweeps, (chains, n, C, C)) if outer else None,
    )


class MatrixMoments(NamedTuple):
    """Posterior of the latents in units of the prior."""

    shift: Array  # (n, C) E[z - omega] / sqrt(V)
    variance: (
        Array  # (n, C) Var(z) / V; without bias, so that single values may be negative
    )
    outer: Array | None  # (n, C, C) E[(z - omega)(z - omega)^T] / V
    square_error: (
        Array  # (n,) mean over sites of the squared numerical error of `shift`
    )


def exact_moments(
    y: Array, omega: Array, V: Array, tokens: int, rng: np.random.Generator, outer: bool
) -> MatrixMoments:
    """Posterior moments by nested integrals; Gibbs chains for the few labels unlikely under ``omega`` (n, C)."""
    xp = namespace(y, omega, V)
    log_partition, shift, mean_square = row_posterior(y, omega, V, tokens)
    variance = mean_square - shift**2
    square = None
    if outer:
        square = (
            _response(y, omega, V, tokens, variance)
            + shift[:, :, None] * shift[:, None, :]
        )
    # of the integration, in prior widths
    moments = MatrixMoments(shift, variance, square, xp.full_like(shift[:, 0], 1e-5**2))
    # The windows of the integration may miss the posterior of a label that is less likely.
    unlikely = ~(log_partition > math.log(1e-8))
    if not bool(xp.any(unlikely)):
        return moments
    index = xp.nonzero(unlikely)[0]
    sampled = gibbs_moments(
        xp.take(y, index, axis=0), xp.take(omega, index, axis=0), V, tokens, rng, outer
    )
    # Entries that are pressed together hardly move in a chain, and two such chains look alike.
    sampled = sampled._replace(square_error=clip(sampled.square_error, 0.1**2, None))
    return put_tuple(moments, unlikely, sampled)


def _response(y: Array, omega: Array, V: Array, tokens: int, variance: Array) -> Array:
    """Covariance between sites, (n, C, C), as the response of the mean to ``omega``: ``1 + d shift / d omega``."""
    xp = namespace(omega)
    eye = identity_like(omega.shape[1], omega)
    step, root = 0.05, xp.sqrt(V)  # in prior widths; the error is of order 4
    rows = []
    for c in range(omega.shape[1]):
        slope: Array = 0.0
        for steps, weight in ((1, 2 / 3), (2, -1 / 12)):
            for sign in (1, -1):
                moved = omega + (sign * steps * step) * root * eye[c, :][None, :]
                slope = (
                    slope
                    + (sign * weight / step) * row_posterior(y, moved, V, tokens).shift
                )
        rows.append(slope)
    response = xp.stack(rows, axis=1)
    response = symmetric(response) + eye[None, :, :]
    return xp.where(eye[None, :, :] > 0, variance[:, :, None], response)


def gibbs_moments(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    rng: np.random.Generator,
    outer: bool,
    sweeps: int = SWEEPS,
) -> MatrixMoments:
    """Posterior moments from two independent Gibbs chains, started near ``omega`` (n, C); their difference is the error."""
    xp = namespace(y, omega, V)
    size = max(1, (1 << 17) // (2 * tokens**2)) * (
        1 if array_api_compat.is_numpy_namespace(xp) else 64
    )
    batches = []
    for rows in blocks(y.shape[0], size):
        burn_in = max(16, sweeps // 4)
        chains = chain_moments(
            y[rows, :], omega[rows, :], V, tokens, sweeps=sweeps, burn_in=burn_in, chains=2, rng=rng, outer=outer
        )  # fmt: skip
        chain_1 = chains.shift[0, ...]
        chain_2 = chains.shift[1, ...]
        shift = (chain_1 + chain_2) / 2
        mean_square = (chains.square[0, ...] + chains.square[1, ...]) / 2
        square = None
        if chains.outer is not None:
            diagonal = identity_like(shift.shape[1], shift)[None, :, :] > 0
            square = xp.where(
                diagonal,
                mean_square[:, :, None],
                (chains.outer[0, ...] + chains.outer[1, ...]) / 2,
            )
        batches.append(
            MatrixMoments(
                shift,
                mean_square - chain_1 * chain_2,
                square,
                xp.mean((chain_1 - chain_2) ** 2, axis=1) / 4,
            )
        )
    return joined(batches)
