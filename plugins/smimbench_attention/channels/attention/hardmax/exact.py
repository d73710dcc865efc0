r"""Exact posterior of the row-wise argmax of a few tokens: closed form for two, nested integrals for three to five.

With two tokens the label is the sign of two correlated Gaussian variables, so that everything follows from ``log Phi2``; the
information is integrated by deterministic quadrature.

With more, given the maximum ``M_a`` of every row, the entries that are no row's maximum are independent, each bounded by
the smaller of its two rows' maxima. Sorted from the largest maximum downwards, the integrand is a product of
functions of one maximum each, in which only the set of rows already placed matters. So the nested integral is
a recursion over sets of rows, and the posterior moments follow from its forward and its backward half.

Only some sets occur, and many labels differ by the names of the tokens only: see ``patterns``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from itertools import permutations
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, matching, namespace, special
from smimbench.interfaces import Array, Host, Posterior
from smimbench.numerics import (
    entry_sites,
    gauss_legendre,
    half_plane_hermite,
    log_cdf,
    site_pairs,
    site_scales,
)
from smimbench_attention.channels.common import (
    blocks,
    joined,
    normal_density,
    raw_second_moment,
)

ROOT2 = math.sqrt(2.0)
CORRELATION = 1 / 3  # of u_1 = h_11 - h_12 and u_2 = h_22 - h_12
# Half-width of the fixed grid: beyond, the probability of the likelier answer is 1 to double precision. Doubled: the same
# nodes are twice as far apart, and the error is 1e-6 in place of 1e-12.
CUT = 9.5
# Overlap over error from which the fixed grid serves every pair of order parameters. Doubled: the Hermite rule, which is the
# worse one at large overlaps, is used further, with errors of 4e-12.
SWITCH = 1.2
# Nodes along each axis of the grid and of the Hermite rule: the first count is the answer, the second gives the error.
# Doubled: errors of 1e-14 in place of 1e-12, four times the time.
GRID_NODES = (64, 48)
HERMITE_NODES = (32, 24)


def _margins(
    y: Array, omega: Array, V: Array
) -> tuple[list[Array], list[Array], Array]:
    """Signs of the two rows, their margins in standard deviations, and V (..., 1), in double precision."""
    xp = namespace(y, omega, V)
    z = xp.astype(omega[..., 0, :], xp.float64)
    variance = xp.astype(V[..., 0], xp.float64)
    scale = xp.sqrt(3 * variance)
    signs = []
    kappas = []
    for row, site in ((0, 0), (1, 2)):
        sign = xp.where(
            y[..., row] == row, xp.ones_like(z[..., 0]), -xp.ones_like(z[..., 0])
        )
        signs.append(sign)
        kappas.append(sign * (ROOT2 * z[..., site] - z[..., 1]) / scale)
    return signs, kappas, variance


def two_token_log_partition(y: Array, omega: Array, V: Array) -> Array:
    """Log-probability ``log P(y | omega, V)`` of every label: ``log Phi2`` of the margins of its rows."""
    (sign_1, sign_2), (kappa_1, kappa_2), _ = _margins(y, omega, V)
    cdf = log_cdf(kappa_1, kappa_2, CORRELATION, sign=sign_1 * sign_2)
    return namespace(omega).astype(cdf.value, omega.dtype)


def two_token_posterior(
    y: Array, omega: Array, V: Array, *, second_moment: bool
) -> Posterior:
    r"""Posterior of the three latents of two tokens, in closed form.

    With :math:`A_i = \partial \log\Phi_2 / \partial\kappa_i` and the rows :math:`j_1 = (\sqrt2, -1, 0)`,
    :math:`j_2 = (0, -1, \sqrt2)` of the map from latents to margins

    .. math::

        E[z] = \omega + \sqrt{V/3} \sum_i s_i A_i j_i, \qquad
        \mathrm{Cov}(z) = V \Big(1 + \tfrac13 \sum_{ij} s_i s_j H_{ij}\, j_i j_j^T\Big)
    """
    xp = namespace(y, omega, V)
    (sign_1, sign_2), (kappa_1, kappa_2), variance = _margins(y, omega, V)
    cdf = log_cdf(kappa_1, kappa_2, CORRELATION, sign=sign_1 * sign_2, hessian=True)
    assert cdf.hessian is not None
    scale = xp.sqrt(variance / 3)
    a_1 = scale * sign_1 * cdf.h_slope
    a_2 = scale * sign_2 * cdf.k_slope
    shift = xp.stack([ROOT2 * a_1, -(a_1 + a_2), ROOT2 * a_2], axis=-1)
    mean = xp.astype(omega, xp.float64) + shift[..., None, :]
    h_11, h_22, h_12 = cdf.hessian
    h_12 = sign_1 * sign_2 * h_12
    reduction = -xp.mean(3 * (h_11 + h_22) + 2 * h_12, axis=-1) / 9
    covariance = variance[..., None] * (1 - reduction[..., None, None])
    moment = None
    if second_moment:
        cross_1 = ROOT2 * (h_11 + h_12)
        cross_2 = ROOT2 * (h_22 + h_12)
        corner = 2 * h_12
        rows = [
            [2 * h_11, -cross_1, corner],
            [-cross_1, h_11 + h_22 + 2 * h_12, -cross_2],
            [corner, -cross_2, 2 * h_22],
        ]
        change = xp.stack([xp.stack(row, axis=-1) for row in rows], axis=-2) / 3
        moment = raw_second_moment(
            mean,
            variance[..., None, None]
            * (xp.eye(3, dtype=xp.float64, device=change.device) + change),
        )
        moment = xp.astype(moment, omega.dtype)
    return Posterior(
        xp.astype(mean, omega.dtype), xp.astype(covariance, omega.dtype), moment
    )


def _two_token_gain(h: Array, k: Array, sign: int) -> Array:
    """Contribution to the information, ``Phi2 (3 A_1^2 + 3 A_2^2 + 2 sign A_1 A_2)`` with correlation ``sign / 3``."""
    cdf = log_cdf(h, k, sign * CORRELATION)
    a = cdf.h_slope
    b = cdf.k_slope
    return np.exp(cdf.value) * (3 * (a * a + b * b) + 2 * sign * a * b)


@cache
def _margin_grid(count: int) -> tuple[Array, Array, Array]:
    """Exponents (2, N) and weighted gain (2, N) of the information on a triangular grid, and its quadrature rule."""
    x, w = gauss_legendre(count, -CUT, CUT)
    i, j = np.triu_indices(
        count
    )  # the gain does not change when the two rows change places
    weight = w[i] * w[j] * np.where(i == j, 1.0, 2.0)
    form = []
    gain = []
    for sign in (1, -1):
        r = sign * CORRELATION
        form.append((x[i] ** 2 + x[j] ** 2 - 2 * r * x[i] * x[j]) / (2 * (1 - r * r)))
        gain.append(weight * _two_token_gain(x[i], x[j], sign))
    return np.stack(form), np.stack(gain), np.stack([x, w])


def _from_grid(ratio: Array, count: int) -> Array:
    """Information by quadrature on the grid, for overlaps of at least ``SWITCH`` times the error."""
    from scipy.special import ndtr

    form, gain, (x, w) = _margin_grid(count)
    s = math.sqrt(1 - CORRELATION**2)
    total = np.zeros_like(ratio)
    density = normal_density(x)
    edge = w * 3 * density**2 / ndtr(x)
    narrow = np.exp(-x * x / (2 * ratio[:, None])) / np.sqrt(
        2 * math.pi * ratio[:, None]
    )
    for index, sign in enumerate((1, -1)):
        weight = np.exp(-form[index] / ratio[:, None]) / (
            2 * math.pi * s * ratio[:, None]
        )
        total += 2 * (weight @ gain[index])
        # one row decided beyond CUT, the other one open; twice, for either row
        beyond = ndtr(-(CUT - sign * CORRELATION * x) / (s * np.sqrt(ratio[:, None])))
        total += 4 * ((narrow * beyond) @ edge)
    return total


def _from_hermite(ratio: Array, count: int) -> Array:
    """Information by Gauss-Hermite quadrature, for overlaps of up to ``SWITCH`` times the error; exact at 0."""
    nodes, weight = half_plane_hermite(count)
    keep = weight > 1e-20
    (u, v), weight = nodes[:, keep], weight[keep]
    total = np.zeros_like(ratio)
    for block in blocks(ratio.size, 256):
        root = np.sqrt(ratio[block, None])
        for sign in (1, -1):
            r = sign * CORRELATION
            even = math.sqrt((1 + r) / 2) * u
            odd = math.sqrt((1 - r) / 2) * v
            h = root * (even + odd)
            k = root * (even - odd)
            # the gain falls with Phi2, and far out is expensive to compute
            low = np.minimum(np.minimum(h, k), 0.0)
            matters = weight * np.exp(-low * low / 2) > 1e-17
            gain = np.zeros_like(h)
            gain[matters] = _two_token_gain(h[matters], k[matters], sign)
            total[block] += 2 * (gain @ weight)
    return total


def two_token_information(q: Array, v: Array) -> tuple[Array, Array]:
    r"""Information ``E sum_c g_c^2`` of two tokens and its numerical error, host arrays (N,).

    .. math::

        \frac{1}{3V} E[3A_1^2 + 3A_2^2 + 2 s_1 s_2 A_1 A_2]

    With the margins of the four answers averaged by symmetry: Gauss-Hermite where the estimate holds little,
    otherwise Gauss-Legendre on a fixed square, plus the analytic rest where one row is certain. The error is
    the difference to a rule with a quarter fewer nodes.
    """
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.where(v > 0, q / np.where(v > 0, v, 1.0), np.inf)
    value = np.full(q.shape, np.inf)
    error = np.full(q.shape, np.inf)
    wide = (ratio >= SWITCH) & np.isfinite(ratio)
    for chosen, rule, nodes in (
        (wide, _from_grid, GRID_NODES),
        (ratio < SWITCH, _from_hermite, HERMITE_NODES),
    ):
        if chosen.any():
            fine, coarse = (
                rule(ratio[chosen], count) * (1 / (3 * v[chosen])) for count in nodes
            )
            value[chosen], error[chosen] = fine, np.abs(fine - coarse) + 1e-13 * fine
    return value, error


class Pattern(NamedTuple):
    """Which rows of a label have their maxima in which columns, and the order in which the maxima are integrated."""

    units: tuple[
        tuple[int, ...], ...
    ]  # rows that share their maximum: one row, or two that point at each other
    edges: tuple[int, ...]  # site that holds the maximum of every unit
    free: tuple[tuple[int, ...], ...]  # sites inside a unit that are not a maximum
    between: dict[
        tuple[int, int], tuple[int, ...]
    ]  # sites between two units (lower, upper) that are not a maximum
    # (set placed, unit placed next), sets as bit masks, after those they are made from
    steps: tuple[tuple[int, int], ...]


class Patterns(NamedTuple):
    """All labels of T tokens, indexed by the code ``sum_a y_a T^a``."""

    members: tuple[Pattern, ...]
    kind: (
        Host  # (T^T,) index of the pattern; -1 for labels that no symmetric matrix has
    )
    sites: Host  # (T^T, C) site of the sample behind every site of the pattern
    places: Host  # its inverse


def _has_cycle(y: Array) -> Array:
    """Whether the maxima of three or more rows of a label (n, T) form a cycle.

    A row's maximum is an entry of the row it points at, so along the pointers the maxima cannot fall; they
    would all have to be equal.
    """
    xp = namespace(y)
    target = y
    for _ in range(y.shape[1]):
        target = xp.take_along_axis(y, target, axis=1)
    two_steps = xp.take_along_axis(y, xp.take_along_axis(y, target, axis=1), axis=1)
    return xp.any(two_steps != target, axis=1)


def check_labels(y: Array) -> None:
    """Raise ValueError if no symmetric matrix has one of the labels (n, T)."""
    if bool(namespace(y).any(_has_cycle(y))):
        raise ValueError(
            "impossible labels: the row maxima of a symmetric matrix cannot form a cycle"
        )


def label_classes(tokens: int) -> tuple[Host, Host]:
    """Representatives (N, T) of the labels up to permutations of tokens, and the size of each class."""
    kinds, first_code, count = np.unique(
        patterns(tokens).kind, return_index=True, return_counts=True
    )
    possible = kinds >= 0
    return first_code[possible, None] // tokens ** np.arange(tokens) % tokens, count[
        possible
    ]


@cache
def patterns(tokens: int) -> Patterns:
    """Distinct patterns of the labels of T tokens, and the pattern of every label up to a permutation of tokens."""
    powers = tokens ** np.arange(tokens)
    labels = np.arange(tokens**tokens)[:, None] // powers % tokens
    possible = ~_has_cycle(labels)
    names = np.array(list(permutations(range(tokens))))
    a, b = np.array(site_pairs(tokens)).T
    # row: where a renaming takes the sites of the pattern
    moved = np.array(entry_sites(tokens)).reshape(tokens, tokens)[
        names[:, a], names[:, b]
    ]
    kind = np.full(len(labels), -1)
    sites = np.zeros((len(labels), len(a)), dtype=np.int64)
    places = np.zeros_like(sites)
    members: list[Pattern] = []
    for code, label in enumerate(labels):
        if kind[code] >= 0 or not possible[code]:
            continue
        # row p(a) of the renamed label points at p(label(a))
        renamed = np.empty_like(names)
        np.put_along_axis(renamed, names, names[:, label], axis=1)
        codes = renamed @ powers
        kind[codes] = len(members)
        sites[codes] = moved
        places[codes] = np.argsort(moved, axis=1)
        members.append(_pattern(label.tolist()))
    return Patterns(tuple(members), kind, sites, places)


def _pattern(label: list[int]) -> Pattern:
    T = len(label)
    entries = entry_sites(T)
    pairs = [
        tuple(sorted({a, label[a]})) if label[label[a]] == a else (a,) for a in range(T)
    ]
    units = tuple(dict.fromkeys(pairs))
    K = len(units)
    unit_of = {a: u for u, rows in enumerate(units) for a in rows}
    above = [unit_of[label[rows[0]]] for rows in units]
    edges = tuple(entries[rows[0] * T + label[rows[0]]] for rows in units)
    free = tuple(
        tuple(c for a in rows if (c := entries[a * T + a]) != edges[u])
        for u, rows in enumerate(units)
    )
    between = {
        (u, w): tuple(
            c
            for a in units[u]
            for b in units[w]
            if (c := entries[a * T + b]) != edges[u]
        )
        for u in range(K)
        for w in range(K)
        if u != w
    }

    def ready(u: int, placed: int) -> bool:
        return above[u] == u or bool(placed >> above[u] & 1)

    closed = [
        placed
        for placed in range(1 << K)
        if all(ready(u, placed) for u in range(K) if placed >> u & 1)
    ]
    steps = (
        (placed, u)
        for placed in closed
        for u in range(K)
        if not placed >> u & 1 and ready(u, placed)
    )
    return Pattern(units, edges, free, between, tuple(steps))


class RowPosterior(NamedTuple):
    """Log-probability of the label (n,), and moments of the latents (n, C) in units of the prior.

    ``shift`` is ``E[z - omega] / sqrt(V)``, ``square`` is ``E[(z - omega)^2] / V``.
    """

    log_partition: Array
    shift: Array
    square: Array


def row_posterior(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    *,
    nodes: int = 28,
    reach: float = 7.0,
) -> RowPosterior:
    """Posterior of ``z ~ N(omega, V)`` given the columns of the row maxima, which form no cycle.

    ``y`` (n, T) integers, ``omega`` (n, C) and ``V`` () in double precision; the cost grows about threefold with every token.
    Accurate to about 1e-5 where the label has a probability above 1e-8; further out the windows, which are centered on omega,
    may miss the posterior.

    ``reach`` is the half-width of the window around every row's largest entry, in its standard deviations, ``nodes`` the
    Gauss-Legendre nodes of a window. Doubled, ``nodes`` leave errors of 1e-6 in place of 2e-5 at small V.
    """
    xp = namespace(y, omega, V)
    table = patterns(tokens)
    kinds, all_sites, all_places = (
        xp.asarray(f, device=array_api_compat.device(omega)) for f in table[1:]
    )
    powers = xp.asarray([tokens**a for a in range(tokens)], **matching(omega, xp.int64))
    code = xp.sum(xp.astype(y, xp.int64) * powers[None, :], axis=1)
    kind = xp.take(kinds, code)
    mean = omega * (
        xp.asarray(site_scales(tokens), **matching(omega, xp.float64))[None, :]
        / xp.sqrt(V)
    )
    # On the host, the few dozen intermediate arrays stay in the cache.
    size = 1 << (14 if array_api_compat.is_numpy_namespace(xp) else 21)
    order = []
    posteriors = []
    for k, pattern in enumerate(table.members):
        samples = xp.nonzero(kind == k)[0]
        rows = max(1, size // (len(pattern.units) * nodes))
        for start in range(0, samples.shape[0], rows):
            chunk = samples[start : min(start + rows, samples.shape[0])]
            codes = xp.take(code, chunk)
            sites = xp.take(all_sites, codes, axis=0)
            places = xp.take(all_places, codes, axis=0)
            pattern_mean = xp.take_along_axis(
                xp.take(mean, chunk, axis=0), sites, axis=1
            )
            log_partition, *moments = _posterior_of_pattern(
                pattern, pattern_mean, tokens, nodes, reach
            )
            order.append(chunk)
            posteriors.append(
                RowPosterior(
                    log_partition,
                    *(xp.take_along_axis(f, places, axis=1) for f in moments),
                )
            )
    original_order = xp.argsort(xp.concat(order))
    return RowPosterior(
        *(xp.take(f, original_order, axis=0) for f in joined(posteriors))
    )


@cache
def _rule(count: int) -> tuple[Host, ...]:
    """Gauss-Legendre rule on [0, 1], with maps from nodal values to integrals below, above and over all."""
    x, w = gauss_legendre(count)
    # Legendre coefficients of the polynomial through the values, then its primitive at the nodes
    legendre = np.polynomial.legendre
    series = legendre.legvander(x, count - 1) * w[:, None] * (np.arange(count) + 0.5)
    below = (series @ legendre.legval(x, legendre.legint(np.eye(count), lbnd=-1))) / 2
    weights = w[:, None] / 2
    return (
        (x + 1) / 2,
        w / 2,
        np.hstack([below, weights]),
        np.hstack([weights - below, weights]),
    )


def _maxima_panels(center: Array, width: Array) -> tuple[Array, Array]:
    """Left ends and lengths (n, K) of quadrature panels that cover the windows ``center +- width`` without overlap."""
    xp = namespace(center)
    order = xp.argsort(center, axis=1)
    center = xp.take_along_axis(center, order, axis=1)
    width = xp.take_along_axis(width, order, axis=1)
    share = width[:, :-1] / (width[:, :-1] + width[:, 1:])
    between = center[:, :-1] + share * (center[:, 1:] - center[:, :-1])
    start = center - width
    end = center + width
    start = xp.concat([start[:, :1], xp.maximum(start[:, 1:], between)], axis=1)
    end = xp.concat([xp.minimum(end[:, :-1], between), end[:, -1:]], axis=1)
    return start, end - start


def _posterior_of_pattern(
    pattern: Pattern, mean: Array, tokens: int, nodes: int, reach: float
) -> RowPosterior:
    """Posterior of all samples whose labels have the same pattern.

    ``mean`` (n, C) of h in units of sqrt(V), with sites named as in the pattern.
    """
    xp = namespace(mean)
    place = matching(mean)
    n = mean.shape[0]
    K = len(pattern.units)
    scales = site_scales(tokens)
    edges = pattern.edges
    center = xp.stack([mean[:, c] for c in edges], axis=1)
    width = xp.asarray([reach * scales[c] for c in edges], **place)
    low, length = _maxima_panels(center, xp.broadcast_to(width[None, :], (n, K)))
    x, w, below, above = (xp.asarray(v, **place) for v in _rule(nodes))
    m = xp.reshape(low[:, :, None] + length[:, :, None] * x, (n, K * nodes))
    weight = xp.reshape(length[:, :, None] * w, (n, K * nodes))
    t = [(m - mean[:, c, None]) / scale for c, scale in enumerate(scales)]
    phi = [1 / math.sqrt(2 * math.pi) * xp.exp(-u * u / 2) for u in t]
    cdf = {c: special(xp).ndtr(u) for c, u in enumerate(t) if c not in edges}

    def cumulate(f: Array, matrix: Array) -> tuple[Array, Array]:
        """Cumulative integral of f below every node (or ``above`` it), and over all nodes."""
        inner = xp.reshape(
            xp.matmul(xp.reshape(f, (n * K, nodes)), matrix), (n, K, nodes + 1)
        )
        inner = inner * length[:, :, None]
        panel_integrals = inner[:, :, -1]
        total = xp.sum(panel_integrals, axis=1)
        running = xp.cumulative_sum(panel_integrals, axis=1)
        offset = (
            running - panel_integrals if matrix is below else total[:, None] - running
        )
        return xp.reshape(inner[:, :, :-1] + offset[:, :, None], (n, K * nodes)), total

    factors = {
        (u, 0): math.prod((cdf[c] for c in pattern.free[u]), start=phi[c] / scales[c])
        for u, c in enumerate(edges)
    }

    def factor(u: int, placed: int) -> Array:
        """Joint density of unit u's maximum and of u's entries with itself and with the units above it."""
        if (u, placed) not in factors:
            w = placed.bit_length() - 1
            entries = (cdf[c] for c in pattern.between[u, w])
            factors[u, placed] = math.prod(entries, start=factor(u, placed ^ (1 << w)))
        return factors[u, placed]

    def integrals(
        steps: Iterable[tuple[int, int, int]], start: int, matrix: Array
    ) -> tuple[dict[int, Array], dict[int, dict[int, Array]]]:
        """Nested integrals for every set of placed units, in the order of the steps (source to target)."""
        nested = {start: xp.ones_like(m)}
        terms: dict[int, dict[int, Array]] = {}
        for source, target, u in steps:
            if source not in nested:
                nested[source], _ = cumulate(sum(terms[source].values()), matrix)
            terms.setdefault(target, {})[source] = (
                factor(u, min(source, target)) * nested[source]
            )
        return nested, terms

    moves = [(placed, placed | 1 << u, u) for placed, u in pattern.steps]
    above_of, _ = integrals(moves, 0, above)
    reversed_moves = [(target, placed, u) for placed, target, u in reversed(moves)]
    _, terms = integrals(reversed_moves, (1 << K) - 1, below)
    _, partition = cumulate(sum(terms[0].values()), below)
    # densities of the maximum of a unit, or of the lower one of two
    of_unit: list[Array] = [0.0] * K
    of_pair: dict[tuple[int, int], Array] = {}
    for target, placed, u in reversed_moves:
        density = terms[placed][target] * above_of[placed]
        of_unit[u] = of_unit[u] + density
        for w in range(K):
            if placed >> w & 1:
                key = (min(u, w), max(u, w))
                of_pair[key] = of_pair.get(key, 0.0) + density

    # moments of every site, whose lower row has its maximum at m with a density
    lower = [(of_unit[u], {edges[u], *pattern.free[u]}) for u in range(K)]
    lower += [
        (of_pair[u, w], {*pattern.between[u, w]} & {*pattern.between[w, u]})
        for u, w in of_pair
    ]
    shifts = [mean[:, 0]] * len(scales)
    squares = [mean[:, 0]] * len(scales)
    for density, sites in lower:
        density = density * weight
        norm = clip(xp.sum(density, axis=1), 1e-300, None)
        for c in sites:
            if c in edges:
                value = density * t[c]
                square = value * t[c]
            else:
                value = -density * (phi[c] / clip(cdf[c], 1e-300, None))
                square = density + value * t[c]
            shifts[c] = xp.sum(value, axis=1) / norm
            squares[c] = xp.sum(square, axis=1) / norm
    log_partition = xp.log(clip(partition, 1e-300, None))
    return RowPosterior(
        log_partition, xp.stack(shifts, axis=1), xp.stack(squares, axis=1)
    )
