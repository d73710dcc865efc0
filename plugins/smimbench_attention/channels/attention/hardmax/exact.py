"""Exact posterior of the row-wise argmax of a few tokens, by nested one-dimensional integrals over the row maxima.

Given the maximum ``M_a`` of every row, the entries that are no row's maximum are independent, each bounded by
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
from smimbench.interfaces import Array, Host
from smimbench.numerics import entry_sites, gauss_legendre, site_pairs, site_scales
from smimbench_attention.channels.batches import joined


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
