"""Posterior of the row-wise argmax of three or more tokens: exact integration where that is possible, else Gibbs chains."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special
from smimbench.numerics import entry_sites, site_pairs, site_scales, spread_at_mask
from smimbench_channels.attention.hardmax.exact import row_posterior
from smimbench_channels.batches import blocks, identity_like, joined, put_tuple

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = [
    "ChainMoments",
    "Moments",
    "chain_moments",
    "check_labels",
    "exact_moments",
    "feasible_start",
    "gibbs_moments",
    "truncated_normal",
]

# Limits of the arithmetic, no tuning: probabilities below Phi(-30) are formed relative to the density, and 40 standard
# deviations away a density is 0 in double precision.
_FAR, _NOTHING = -30.0, 40.0


class ChainMoments(NamedTuple):
    """Averages over the sweeps of every chain, in units of the prior's standard deviation."""

    first: Array  # (chains, n, C) of (z - omega) / sqrt(V)
    second: Array  # (chains, n, C) of its squares
    outer: Array | None  # (chains, n, C, C) of the products of two of its entries


def truncated_normal(low: Array, high: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """A draw from a standard normal on ``[low, high]`` by inversion, its mean and its second moment.

    ``low < high``, one of which may be infinite, and ``uniform`` in (0, 1) have one shape; so have the draw, ``E[x]`` and
    ``E[x^2]``. Exact for any limits: the interval is mirrored to the side where probabilities are small, and beyond 30 standard
    deviations they are formed relative to the nearer end.
    """
    xp = namespace(low, high, uniform)
    mirror = low + high > 0
    a, b = xp.where(mirror, -high, low), xp.where(mirror, -low, high)
    a = xp.maximum(a, clip(b, None, 0.0) - _NOTHING)
    inside = clip(b, _FAR, _NOTHING)
    p_a, p_b = special(xp).ndtr(xp.minimum(a, inside)), special(xp).ndtr(inside)
    density = 1 / math.sqrt(2 * math.pi)
    phi_a, phi_b = density * xp.exp(-a * a / 2), density * xp.exp(-inside * inside / 2)
    far = b < _FAR
    # an interval too narrow for its probability has its moments from its ends, by the clips below
    mass = clip(p_b - p_a, 1e-300, None)
    draw = special(xp).ndtri(xp.where(far, 0.5, p_a + uniform * mass))
    mean = (phi_a - phi_b) / mass
    second = 1 + (a * phi_a - inside * phi_b) / mass
    if bool(xp.any(far)):
        flat = xp.reshape(far, (-1,))
        where = xp.nonzero(flat)[0]
        some = _truncated_tail(xp, *(xp.take(xp.reshape(v, (-1,)), where) for v in (a, b, uniform)))
        tail = [xp.reshape(spread_at_mask(v, flat), far.shape) for v in some]
        draw, mean, second = (xp.where(far, t, c) for t, c in zip(tail, (draw, mean, second), strict=True))
    draw, mean = clip(draw, a, b), clip(mean, a, b)
    second = xp.maximum(second, mean * mean)
    return xp.where(mirror, -draw, draw), xp.where(mirror, -mean, mean), second


def _mills(xp: ModuleType, t: Array) -> Array:
    """``Phi(t) / phi(t)`` for negative t."""
    return math.sqrt(math.pi / 2) * special(xp).erfcx(t * -math.sqrt(0.5))


def _truncated_tail(xp: ModuleType, a: Array, b: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """The same on ``[a, b]`` with b far below 0, everything relative to the density at b."""
    mills = _mills(xp, b)
    ratio = xp.exp((b - a) * (b + a) / 2)
    mass = mills - ratio * _mills(xp, a)
    # the fraction of the probability below the draw; a Rayleigh variable to first order, then Newton
    log_share = xp.log((mills - (1 - uniform) * mass) / mills)
    draw = -xp.sqrt(b * b - 2 * log_share)
    for _ in range(2):
        here = _mills(xp, draw)
        # log Phi(draw) - log Phi(b) - log_share
        gap = (b - draw) * (b + draw) / 2 + xp.log(here / mills) - log_share
        draw = draw - gap * here
    mean = (ratio - 1) / mass
    second = 1 + (a * ratio - b) / mass
    return draw, mean, second


@cache
def _rounds(tokens: int) -> tuple[tuple[int, ...], ...]:
    """Partner of every row in every round, so that each round's entries have no row in common.

    The circle method of round-robin tournaments; a row without a partner meets itself, on the diagonal.
    """
    if tokens % 2:
        return tuple(tuple((k - a) % tokens for a in range(tokens)) for k in range(tokens))
    m = tokens - 1
    rounds = []
    for k in range(m):
        partner = [(k - a) % m for a in range(m)]
        alone = next(a for a in range(m) if partner[a] == a)
        partner[alone] = m
        rounds.append((*partner, alone))
    return (*rounds, tuple(range(tokens)))


def check_labels(y: Array, tokens: int) -> None:
    """Raise ValueError if a label (n, T) has three rows or more whose maxima point at each other in a ring.

    A row's maximum is an entry of the row it points at, so along the pointers the maxima cannot fall; they
    would all have to be equal.
    """
    xp = namespace(y)
    here = y
    for _ in range(tokens):
        here = xp.take_along_axis(y, here, axis=1)
    twice = xp.take_along_axis(y, xp.take_along_axis(y, here, axis=1), axis=1)
    if bool(xp.any(twice != here)):
        raise ValueError("labels contradict each other: the row maxima of a symmetric matrix form no ring")


def feasible_start(y: Array, mean: Array, tokens: int) -> Array:
    """Matrix entries (T, T, n) near ``mean`` (n, C) that have their row maxima where ``y`` (n, T) says.

    Every row on its own is projected: its maximum is raised, and the entries above it are lowered, to the
    level in between that costs least. The maximum of row a is an entry of row ``y_a`` too, hence no larger
    than that row's maximum: these chains of inequalities are enforced from the bottom up, then all other
    entries are cut off at the row maxima.
    """
    xp = namespace(y, mean)
    device = array_api_compat.device(mean)
    index = xp.asarray(entry_sites(tokens), device=device)
    h = xp.reshape(xp.matrix_transpose(xp.take(mean, index, axis=1)), (tokens, tokens, mean.shape[0]))
    weight = 1 / xp.asarray(site_scales(tokens), dtype=mean.dtype, device=device) ** 2
    weight = xp.reshape(xp.take(weight, index), (tokens, tokens))[:, :, None]
    points = _points(xp, y, tokens)
    zero = xp.zeros_like(h)
    own = xp.sum(xp.where(points, h, zero), axis=1)
    own_weight = xp.sum(xp.where(points, weight, zero), axis=1)
    top = own
    for _ in range(tokens):  # Newton on a piecewise linear function: every step settles one entry at least
        above = xp.where((h > top[:, None, :]) & ~points, weight, zero)
        top = (own * own_weight + xp.sum(above * h, axis=1)) / (own_weight + xp.sum(above, axis=1))
    least = xp.full_like(h, -math.inf)
    for _ in range(tokens):
        below = xp.max(xp.where(points, top[:, None, :], least), axis=0)
        top = xp.maximum(top, below)
    capped = xp.minimum(h, xp.minimum(top[:, None, :], top[None, :, :]))
    mine = xp.where(points, top[:, None, :], capped)
    theirs = xp.where(xp.permute_dims(points, (1, 0, 2)), top[None, :, :], capped)
    return xp.maximum(mine, theirs)


def _points(xp: ModuleType, y: Array, tokens: int) -> Array:
    """Whether row a points at column b, booleans (T, T, n)."""
    columns = xp.arange(tokens, dtype=y.dtype, device=array_api_compat.device(y))
    return xp.matrix_transpose(y)[:, None, :] == columns[None, :, None]


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
    device = array_api_compat.device(omega)
    n, T = y.shape[0], tokens
    N = n * chains
    pairs = site_pairs(T)
    site = {pair: c for c, pair in enumerate(pairs)}
    unit = xp.asarray(site_scales(T), dtype=xp.float64, device=device)[None, :] / xp.sqrt(V)
    mean = omega * unit
    if start is None:
        h = feasible_start(y, mean, T)
    else:
        index = xp.asarray(entry_sites(T), device=device)
        h = xp.reshape(xp.matrix_transpose(xp.take(start * unit, index, axis=1)), (T, T, n))
    h = xp.concat([h] * chains, axis=2)
    labels = xp.concat([xp.matrix_transpose(y)] * chains, axis=1)
    rounds = []
    for partner in _rounds(T):
        rows = [a for a in range(T) if a <= partner[a]]
        sites = [site[a, partner[a]] for a in rows]
        scale = [site_scales(T)[c] for c in sites]
        position = {a: i for i, r in enumerate(rows) for a in (r, partner[r])}
        other = xp.asarray(partner, dtype=labels.dtype, device=device)
        columns = xp.arange(T, dtype=labels.dtype, device=device)
        rounds.append(
            (
                sites,
                xp.asarray(rows, device=device),
                xp.asarray([partner[a] for a in rows], device=device),
                xp.asarray([position[a] for a in range(T)], device=device),
                (columns[None, :] == other[:, None])[:, :, None],
                labels == other[:, None],
                xp.asarray(scale, dtype=xp.float64, device=device)[:, None],
                xp.concat([xp.stack([mean[:, c] for c in sites])] * chains, axis=1),
            )
        )
    infinity = xp.asarray(math.inf, dtype=xp.float64, device=device)
    first: list[Any] = [0.0] * len(pairs)
    second: list[Any] = [0.0] * len(pairs)
    products: Any = 0.0
    for sweep in range(burn_in + sweeps):
        for sites, rows, others, position, met, is_max, scale, centre in rounds:
            rest = xp.max(xp.where(met, -infinity, h), axis=1)
            low, high = xp.where(is_max, rest, -infinity), xp.where(is_max, infinity, rest)
            low = xp.maximum(xp.take(low, rows, axis=0), xp.take(low, others, axis=0))
            high = xp.minimum(xp.take(high, rows, axis=0), xp.take(high, others, axis=0))
            uniform = xp.asarray(rng.random((len(sites), N)), dtype=xp.float64, device=device)
            # the start may hold an entry on its bound
            low, high = (low - centre) / scale, (high - centre) / scale
            x, m, s = truncated_normal(low, xp.maximum(low, high), uniform)
            h = xp.where(met, xp.take(centre + scale * x, position, axis=0)[:, None, :], h)
            if sweep >= burn_in:
                for i, c in enumerate(sites):
                    first[c] = first[c] + m[i, :]
                    second[c] = second[c] + s[i, :]
        if outer and sweep >= burn_in:
            shift = [h[a, b, :] - xp.concat([mean[:, c]] * chains) for c, (a, b) in enumerate(pairs)]
            x = xp.stack([d / u for d, u in zip(shift, site_scales(T), strict=True)], axis=1)
            products = products + x[:, :, None] * x[:, None, :]

    def shaped(values: list[Array]) -> Array:
        return xp.reshape(xp.stack(values, axis=1) / sweeps, (chains, n, len(pairs)))

    averaged = xp.reshape(products / sweeps, (chains, n, len(pairs), len(pairs))) if outer else None
    return ChainMoments(shaped(first), shaped(second), averaged)


class Moments(NamedTuple):
    """Posterior of the latents in units of the prior."""

    first: Array  # (n, C) E[z - omega] / sqrt(V)
    variance: Array  # (n, C) Var(z) / V; without bias, so that single values may be negative
    outer: Array | None  # (n, C, C) E[(z - omega)(z - omega)^T] / V
    square_error: Array  # (n,) mean over sites of the squared numerical error of `first`


def exact_moments(
    y: Array, omega: Array, V: Array, tokens: int, *, sweeps: int, rng: np.random.Generator, outer: bool
) -> Moments:
    """By nested integrals; Gibbs for the few labels that were unlikely under ``omega`` (n, C)."""
    xp = namespace(y, omega, V)
    found = row_posterior(y, omega, V, tokens)
    covariance = _response(xp, y, omega, V, tokens, found.second - found.first**2) if outer else None
    square = None if covariance is None else covariance + found.first[:, :, None] * found.first[:, None, :]
    error = xp.full_like(found.first[:, 0], 1e-5**2)  # of the integration, in prior widths
    result = Moments(found.first, found.second - found.first**2, square, error)
    # The windows of the integration may miss the posterior of a label that is less likely.
    unlikely = ~(found.log_partition > math.log(1e-8))
    if not bool(xp.any(unlikely)):
        return result
    where = xp.nonzero(unlikely)[0]
    some_y, some_omega = xp.take(y, where, axis=0), xp.take(omega, where, axis=0)
    some = gibbs_moments(some_y, some_omega, V, tokens, sweeps=sweeps, rng=rng, outer=outer)
    # Entries that are pressed together hardly move in a chain, and two such chains look alike.
    some = some._replace(square_error=clip(some.square_error, 0.1**2, None))
    return put_tuple(result, unlikely, some)


def _response(xp: Any, y: Array, omega: Array, V: Array, tokens: int, variance: Array) -> Array:
    """Covariance between sites, (n, C, C), as the response of the mean to ``omega``: ``1 + d first / d omega``."""
    sites = omega.shape[1]
    eye = identity_like(sites, omega)
    step, root = 0.05, xp.sqrt(V)  # in prior widths; the error is of order 4
    rows = []
    for c in range(sites):
        slope: Any = 0.0
        for steps, weight in ((1, 2 / 3), (2, -1 / 12)):
            for sign in (1, -1):
                moved = omega + (sign * steps * step) * root * eye[c, :][None, :]
                slope = slope + (sign * weight / step) * row_posterior(y, moved, V, tokens).first
        rows.append(slope)
    response = xp.stack(rows, axis=1)
    response = (response + xp.matrix_transpose(response)) / 2 + eye[None, :, :]
    return xp.where(eye[None, :, :] > 0, variance[:, :, None], response)


def gibbs_moments(
    y: Array, omega: Array, V: Array, tokens: int, *, sweeps: int, rng: np.random.Generator, outer: bool
) -> Moments:
    """From two independent chains, whose difference is the error; they start near ``omega`` (n, C), at a matrix of this label."""
    xp = namespace(y, omega, V)
    check_labels(y, tokens)
    size = max(1, (1 << 17) // (2 * tokens**2)) * (1 if array_api_compat.is_numpy_namespace(xp) else 64)
    parts = []
    for rows in blocks(y.shape[0], size):
        burn_in = max(16, sweeps // 4)
        chains = chain_moments(
            y[rows, :], omega[rows, :], V, tokens, sweeps=sweeps, burn_in=burn_in, chains=2, rng=rng, outer=outer
        )  # fmt: skip
        one, two = chains.first[0, ...], chains.first[1, ...]
        first = (one + two) / 2
        second = (chains.second[0, ...] + chains.second[1, ...]) / 2
        square = None
        if chains.outer is not None:
            eye = identity_like(first.shape[1], first)
            mean = (chains.outer[0, ...] + chains.outer[1, ...]) / 2
            square = xp.where(eye[None, :, :] > 0, second[:, :, None], mean)
        parts.append(Moments(first, second - one * two, square, xp.mean((one - two) ** 2, axis=1) / 4))
    return joined(parts)
