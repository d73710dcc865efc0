"""Row-wise argmax of a few tokens: exact posterior by nested one-dimensional integrals over the row maxima.

Given the maximum ``M_a`` of every row, the entries that are no row's maximum are independent, each bounded by
the smaller of its two rows' maxima. Sorted from the largest maximum downwards, the integrand is a product of
functions of one maximum each, in which only the set of rows already placed matters. So the nested integral is
a recursion over sets of rows, and the posterior moments follow from its forward and its backward half.

Only some sets occur, and many labels differ by the names of the tokens only: see ``patterns``.
"""

from __future__ import annotations

import math
import operator
from functools import cache, reduce
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special
from smimbench.numerics import gauss_legendre, site_pairs, site_scales

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Pattern", "Patterns", "RowPosterior", "label_classes", "patterns", "row_posterior"]


class Pattern(NamedTuple):
    """How the rows of a sample point at each other, and the order in which they can be placed."""

    units: tuple[tuple[int, ...], ...]  # rows that share their maximum: one row, or two that point at each other
    edges: tuple[int, ...]  # site that holds the maximum of every unit
    free: tuple[tuple[int, ...], ...]  # sites inside a unit that are no maximum
    between: dict[tuple[int, int], tuple[int, ...]]  # sites between two units (lower, upper) that are no maximum
    # (set placed, unit placed next), sets as bit masks, after those they are made from
    steps: tuple[tuple[int, int], ...]


class Patterns(NamedTuple):
    """All labels of T tokens by their code ``sum_a y_a T^a``."""

    members: tuple[Pattern, ...]
    kind: np.ndarray[Any, Any]  # (T^T,) which pattern; -1 for labels that no symmetric matrix has
    sites: np.ndarray[Any, Any]  # (T^T, C) site of the sample behind every site of the pattern
    places: np.ndarray[Any, Any]  # its inverse


def label_classes(tokens: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One label (N, T) of each class that differs by more than the names of the tokens, and how many it stands for."""
    index = patterns(tokens).kind
    kinds, first, count = np.unique(index, return_index=True, return_counts=True)
    some = first[kinds >= 0]
    return some[:, None] // tokens ** np.arange(tokens) % tokens, count[kinds >= 0]


@cache
def patterns(tokens: int) -> Patterns:
    """The few patterns of T tokens, and for every label which one it is, up to the names of the tokens."""
    pairs = site_pairs(tokens)
    site = {pair: c for c, pair in enumerate(pairs)}
    powers = tokens ** np.arange(tokens)
    count = tokens**tokens
    index = np.full(count, -1)
    sites = np.zeros((count, len(pairs)), dtype=np.int64)
    places = np.zeros_like(sites)
    names = np.array(list(permutations(range(tokens))))
    renamed = [[site[min(p[a], p[b]), max(p[a], p[b])] for a, b in pairs] for p in names.tolist()]
    moved = np.array(renamed)  # row: where a renaming takes the sites of the pattern
    members: list[Pattern] = []
    for digits in product(range(tokens), repeat=tokens):
        choice = digits[::-1]  # code 0, 1, .. in order
        code = int(np.dot(choice, powers))
        if index[code] >= 0 or not _possible(choice):
            continue
        # row p(a) of the renamed label points at p(choice(a))
        labels = np.empty_like(names)
        np.put_along_axis(labels, names, names[:, list(choice)], axis=1)
        codes = labels @ powers
        index[codes] = len(members)
        sites[codes] = moved
        places[codes] = np.argsort(moved, axis=1)
        members.append(_pattern(choice))
    return Patterns(tuple(members), index, sites, places)


def _possible(choice: tuple[int, ...]) -> bool:
    """Whether every row ends at one that points at itself, or at two that point at each other."""
    for a in range(len(choice)):
        for _ in range(len(choice)):
            a = choice[a]
        if choice[choice[a]] != a:
            return False
    return True


def _pattern(choice: tuple[int, ...]) -> Pattern:
    T = len(choice)
    site = {pair: c for c, pair in enumerate(site_pairs(T))}
    rows = [a for a in range(T) if choice[a] == a or choice[choice[a]] != a or a < choice[a]]
    units = tuple((a,) if choice[choice[a]] != a or choice[a] == a else (a, choice[a]) for a in rows)
    unit_of = {a: u for u, members in enumerate(units) for a in members}
    edges = tuple(site[min(u[0], choice[u[0]]), max(u[0], choice[u[0]])] for u in units)
    inside = [[(a, a) for a in u] for u in units]
    free = tuple(tuple(site[p] for p in pairs if site[p] != edges[u]) for u, pairs in enumerate(inside))
    between = {}
    for u, w in product(range(len(units)), repeat=2):
        cross = [site[min(a, b), max(a, b)] for a in units[u] for b in units[w]] if u != w else []
        between[u, w] = tuple(c for c in cross if c != edges[u])
    steps = []
    for placed in range(1 << len(units)):
        inside_set = {u for u in range(len(units)) if placed >> u & 1}

        def ready(u: int, have: set[int] = inside_set) -> bool:
            above = unit_of[choice[units[u][0]]]
            return above == u or above in have

        if all(ready(u) for u in inside_set):
            steps += [(placed, u) for u in range(len(units)) if u not in inside_set and ready(u)]
    return Pattern(units, edges, free, between, tuple(steps))


# Half-width of the window around every row's largest entry, in its standard deviations: 7 leave errors of 5e-6. Doubled: the
# same nodes are twice as far apart, and the posterior means of unlikely labels at small V are wrong by up to 5% of a width.
REACH = 7.0
# Gauss-Legendre nodes of a window. Doubled: at small V errors of 1e-6 in place of 2e-5, at up to twice the time.
NODES = 28


class RowPosterior(NamedTuple):
    """Log-probability of the label (n,), and moments of the latents (n, C) in units of the prior.

    ``first`` is ``E[z - omega] / sqrt(V)``, ``second`` is ``E[(z - omega)^2] / V``.
    """

    log_partition: Array
    first: Array
    second: Array


def row_posterior(
    y: Array, omega: Array, V: Array, tokens: int, *, nodes: int = NODES, reach: float = REACH
) -> RowPosterior:
    """Posterior of ``z ~ N(omega, V)`` given the columns of the row maxima.

    ``y`` (n, T) integers, ``omega`` (n, C) and ``V`` () in double precision; the cost grows about threefold with every token.
    Accurate to about 1e-5 where the label has a probability above 1e-8; further out the windows, which are centred on omega,
    may miss the posterior. ValueError if a label cannot come from a symmetric matrix: three rows or more that point at each
    other in a ring.
    """
    xp = namespace(y, omega, V)
    device = array_api_compat.device(omega)
    table = patterns(tokens)
    powers = xp.asarray([tokens**a for a in range(tokens)], dtype=xp.int64, device=device)
    code = xp.sum(xp.astype(y, xp.int64) * powers[None, :], axis=1)
    kind = xp.take(xp.asarray(table.kind, device=device), code)
    if bool(xp.any(kind < 0)):
        raise ValueError("labels contradict each other: the row maxima of a symmetric matrix form no ring")
    scale = xp.asarray(site_scales(tokens), dtype=xp.float64, device=device)
    mean = omega * (scale[None, :] / xp.sqrt(V))
    # On a host some dozens of intermediate arrays stay in the cache.
    size = 1 << (14 if array_api_compat.is_numpy_namespace(xp) else 21)
    found: list[tuple[Array, ...]] = []
    for k, pattern in enumerate(table.members):
        where = xp.nonzero(kind == k)[0]
        rows = max(1, size // (len(pattern.units) * nodes))
        for start in range(0, where.shape[0], rows):
            part = where[start : min(start + rows, where.shape[0])]
            codes = xp.take(code, part)
            sites = xp.take(xp.asarray(table.sites, device=device), codes, axis=0)
            places = xp.take(xp.asarray(table.places, device=device), codes, axis=0)
            own = xp.take_along_axis(xp.take(mean, part, axis=0), sites, axis=1)
            one = _posterior_of_pattern(xp, pattern, own, tokens, nodes, reach)
            moments = (xp.take_along_axis(f, places, axis=1) for f in one[1:])
            found.append((part, one.log_partition, *moments))
    order = xp.argsort(xp.concat([f[0] for f in found]))
    return RowPosterior(*(xp.take(xp.concat([f[k] for f in found]), order, axis=0) for k in (1, 2, 3)))


@cache
def _rule(count: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Gauss-Legendre on [0, 1]; maps from values at the nodes to integrals below and above them, and in all."""
    x, w = gauss_legendre(count)
    # Legendre coefficients of the polynomial through the values, then its primitive at the nodes
    series = np.polynomial.legendre.legvander(x, count - 1) * w[:, None] * (np.arange(count) + 0.5)
    identity = np.eye(count)
    primitive = [
        np.polynomial.legendre.legval(x, np.polynomial.legendre.legint(identity[k], lbnd=-1)) for k in range(count)
    ]
    below = (series @ np.array(primitive)) / 2
    whole = w[:, None] / 2
    return (x + 1) / 2, w / 2, np.hstack([below, whole]), np.hstack([whole - below, whole])


def _maxima_panels(xp: ModuleType, centre: Array, width: Array) -> tuple[Array, Array]:
    """Left ends and lengths (n, K) of panels that cover the windows ``centre +- width`` without overlap."""
    order = xp.argsort(centre, axis=1)
    centre, width = xp.take_along_axis(centre, order, axis=1), xp.take_along_axis(width, order, axis=1)
    share = width[:, :-1] / (width[:, :-1] + width[:, 1:])
    between = centre[:, :-1] + share * (centre[:, 1:] - centre[:, :-1])
    left, right = centre - width, centre + width
    left = xp.concat([left[:, :1], xp.maximum(left[:, 1:], between)], axis=1)
    right = xp.concat([xp.minimum(right[:, :-1], between), right[:, -1:]], axis=1)
    return left, right - left


def _posterior_of_pattern(
    xp: ModuleType, pattern: Pattern, mean: Array, tokens: int, nodes: int, reach: float
) -> RowPosterior:
    """All samples of one pattern; ``mean`` (n, C) of h in units of sqrt(V), sites named as in the pattern."""
    n, K = mean.shape[0], len(pattern.units)
    place = {"dtype": xp.float64, "device": array_api_compat.device(mean)}
    scales = site_scales(tokens)
    edges = set(pattern.edges)
    centre = xp.stack([mean[:, c] for c in pattern.edges], axis=1)
    width = xp.asarray([reach * scales[c] for c in pattern.edges], **place)
    left, length = _maxima_panels(xp, centre, xp.broadcast_to(width[None, :], (n, K)))
    x, w, below, above = (xp.asarray(v, **place) for v in _rule(nodes))
    m = xp.reshape(left[:, :, None] + length[:, :, None] * x, (n, K * nodes))
    weight = xp.reshape(length[:, :, None] * w, (n, K * nodes))
    t = [(m - mean[:, c, None]) / scales[c] for c in range(len(scales))]
    phi = [1 / math.sqrt(2 * math.pi) * xp.exp(-u * u / 2) for u in t]
    cdf = {c: special(xp).ndtr(t[c]) for c in range(len(scales)) if c not in edges}

    def cumulate(f: Array, matrix: Array, *, upwards: bool) -> tuple[Array, Array]:
        """Integral of f from its far end to every node, and over everything."""
        inner = xp.reshape(xp.matmul(xp.reshape(f, (n * K, nodes)), matrix), (n, K, nodes + 1))
        inner = inner * length[:, :, None]
        whole = inner[:, :, -1]
        total = xp.sum(whole, axis=1)
        running = xp.cumulative_sum(whole, axis=1)
        before = running - whole if upwards else total[:, None] - running
        return xp.reshape(inner[:, :, :-1] + before[:, :, None], (n, K * nodes)), total

    base = [
        reduce(operator.mul, [phi[pattern.edges[u]] / scales[pattern.edges[u]], *(cdf[c] for c in pattern.free[u])])
        for u in range(K)
    ]
    factors: dict[tuple[int, int], Array] = {}

    def factor(u: int, placed: int) -> Array:
        """Density of unit u's maximum, and all its entries with itself and the units above it."""
        if not placed:
            return base[u]
        if (u, placed) not in factors:
            w = placed.bit_length() - 1
            rest = factor(u, placed ^ (1 << w))
            factors[u, placed] = reduce(operator.mul, [rest, *(cdf[c] for c in pattern.between[u, w])])
        return factors[u, placed]

    one = xp.ones_like(m)
    above_of: dict[int, Array] = {0: one}
    terms: dict[int, list[Array]] = {}
    for placed, u in pattern.steps:
        if placed not in above_of:
            above_of[placed], _ = cumulate(reduce(operator.add, terms[placed]), above, upwards=False)
        terms.setdefault(placed | 1 << u, []).append(factor(u, placed) * above_of[placed])
    full = (1 << K) - 1
    below_of: dict[int, Array] = {full: one}
    terms = {}
    of_unit: list[Any] = [0.0] * K
    of_pair: dict[tuple[int, int], Any] = {}
    for placed, u in reversed(pattern.steps):
        target = placed | 1 << u
        if target not in below_of:
            below_of[target], _ = cumulate(reduce(operator.add, terms[target]), below, upwards=True)
        term = factor(u, placed) * below_of[target]
        terms.setdefault(placed, []).append(term)
        density = term * above_of[placed]
        of_unit[u] = of_unit[u] + density
        for w in range(K):
            if placed >> w & 1:
                key = (min(u, w), max(u, w))
                of_pair[key] = of_pair.get(key, 0.0) + density
    _, partition = cumulate(reduce(operator.add, terms[0]), below, upwards=True)

    first: list[Any] = [None] * len(scales)
    second: list[Any] = [None] * len(scales)

    def put(c: int, density: Array, norm: Array) -> None:
        """Moments of site c, whose lower row has its maximum at m with this density."""
        if c in edges:
            value = density * t[c]
            square = value * t[c]
        else:
            value = -density * (phi[c] / clip(cdf[c], 1e-300, None))
            square = density + value * t[c]
        first[c] = xp.sum(value, axis=1) / norm
        second[c] = xp.sum(square, axis=1) / norm

    for u in range(K):
        density = of_unit[u] * weight
        norm = clip(xp.sum(density, axis=1), 1e-300, None)
        for c in (pattern.edges[u], *pattern.free[u]):
            put(c, density, norm)
    for (u, w), density in of_pair.items():
        density = density * weight
        norm = clip(xp.sum(density, axis=1), 1e-300, None)
        for c in set(pattern.between[u, w]) & set(pattern.between[w, u]):
            put(c, density, norm)
    log_partition = xp.log(clip(partition, 1e-300, None))
    return RowPosterior(log_partition, xp.stack(first, axis=1), xp.stack(second, axis=1))
