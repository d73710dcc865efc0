r"""Exact posterior of the row-wise argmax of a few tokens, three to five, by nested integrals; see ``two_tokens`` for two.

Given the maximum ``M_a`` of every row, the entries that are no row's maximum are independent, each bounded by the smaller of its
two rows' maxima. Sorted from the largest maximum downwards, the integrand is a product of functions of one maximum each, in
which only the set of rows already placed matters. So the nested integral is a recursion over sets of rows, and the posterior
moments follow from its forward and its backward half.

Only some sets occur, and many labels differ by the names of the tokens only: see ``patterns``.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import permutations
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import device_of, namespace, shared_constants, to_host
from smimbench.interfaces import Array, Host
from smimbench.numerics import entry_sites, gauss_legendre, site_pairs, site_scales
from smimbench_attention.channels.common import array_like


class Pattern(NamedTuple):
    """Which rows of a label have their maxima in which columns. A unit is a row, or two rows that share a maximum because they
    point at each other: ``maximum_sites`` is the site of each unit's maximum. ``placements`` are, in order, triples of a set of
    units placed so far (bit mask), the unit placed next, and the sites (bit mask) of entries that are bounded by its maximum.
    """

    maximum_sites: tuple[int, ...]
    placements: tuple[tuple[int, int, int], ...]


class Patterns(NamedTuple):
    """Patterns of all labels y of T tokens, by their code ``sum_a y_a T^a``: the index (T^T,) of each label's pattern (-1 for
    labels that no symmetric matrix has), the ``sites`` of the sample behind every site of the pattern (T^T, C), and of every
    distinct pattern ``maximum_sites`` (patterns, T), filled up with -1, and rows ``first_placements[i]`` to
    ``first_placements[i + 1]`` of ``placements`` (rows, 3).
    """

    pattern_of_label: Host
    sites: Host
    maximum_sites: Host
    first_placements: Host
    placements: Host


def _has_cycle(y: Array) -> Array:
    """Whether the maxima of three or more rows of a label y (n, T), which points from each row to a row, form a cycle: the row
    reached after many pointers (``end_row``) is not the one two pointers later. A row's maximum is an entry of the row it points
    at, so along the pointers the maxima cannot fall; they would all have to be equal.
    """
    xp = namespace(y)
    end_row = y
    for _ in range(y.shape[1]):
        end_row = xp.take_along_axis(y, end_row, axis=1)
    later_row = xp.take_along_axis(y, xp.take_along_axis(y, end_row, axis=1), axis=1)
    return xp.any(later_row != end_row, axis=1)


def check_labels(y: Array) -> None:
    """Raise ValueError if no symmetric matrix has one of the labels y (n, T)."""
    if bool(namespace(y).any(_has_cycle(y))):
        raise ValueError(
            "impossible labels y: the row maxima of a symmetric matrix cannot form a cycle; take labels that forward returned"
        )


def label_classes(tokens: int) -> tuple[Host, Host]:
    """Possible labels (N, T) of T = ``tokens`` tokens, one of each class of those that differ by a permutation of the tokens, and
    class sizes (N,). Labels are coded as ``sum_a y_a T^a``, the first of each class by ``first_codes``.
    """
    pattern_indices, first_codes, class_sizes = np.unique(
        patterns(tokens).pattern_of_label, return_index=True, return_counts=True
    )
    is_possible_label = pattern_indices >= 0
    return first_codes[is_possible_label, None] // tokens ** np.arange(
        tokens
    ) % tokens, class_sizes[is_possible_label]


@cache
def patterns(tokens: int) -> Patterns:
    """Distinct patterns of the labels of T = ``tokens`` tokens, and the pattern of every label up to a permutation of tokens;
    ``permuted_...`` arrays have one row per permutation.
    """
    powers_of_T = tokens ** np.arange(tokens)
    labels = np.arange(tokens**tokens)[:, None] // powers_of_T % tokens
    is_possible_label = ~_has_cycle(labels)
    permuted_tokens = np.array(list(permutations(range(tokens))))
    rows, columns = np.array(site_pairs(tokens)).T
    # row: where a renaming takes the sites of the pattern
    permuted_sites = np.array(entry_sites(tokens)).reshape(tokens, tokens)[
        permuted_tokens[:, rows], permuted_tokens[:, columns]
    ]
    pattern_of_label = np.full(len(labels), -1)
    sites = np.zeros((len(labels), len(rows)), dtype=np.int64)
    distinct_patterns: list[Pattern] = []
    for code, label in enumerate(labels):
        if pattern_of_label[code] >= 0 or not is_possible_label[code]:
            continue
        # row p(a) of the renamed label points at p(label(a))
        permuted_labels = np.empty_like(permuted_tokens)
        np.put_along_axis(
            permuted_labels, permuted_tokens, permuted_tokens[:, label], axis=1
        )
        permuted_codes = permuted_labels @ powers_of_T
        pattern_of_label[permuted_codes] = len(distinct_patterns)
        sites[permuted_codes] = permuted_sites
        distinct_patterns.append(_pattern(label.tolist()))
    maximum_sites = np.full((len(distinct_patterns), tokens), -1)
    for index, pattern in enumerate(distinct_patterns):
        maximum_sites[index, : len(pattern.maximum_sites)] = pattern.maximum_sites
    placement_counts = [len(pattern.placements) for pattern in distinct_patterns]
    return Patterns(
        pattern_of_label,
        sites,
        maximum_sites,
        np.cumsum([0, *placement_counts]),
        np.array([row for pattern in distinct_patterns for row in pattern.placements]),
    )


def _pattern(label: list[int]) -> Pattern:
    """Pattern of one label, the column of each row's maximum: units of rows a, b that share a maximum, sites c of maxima and
    others, and the order of the units. The unit above a unit is the one whose row also contains its maximum.
    """
    T = len(label)
    entry_site = entry_sites(T)
    unit_of_row = [
        tuple(sorted({a, label[a]})) if label[label[a]] == a else (a,) for a in range(T)
    ]
    units = tuple(dict.fromkeys(unit_of_row))
    unit_count = len(units)
    unit_of = {a: unit for unit, rows in enumerate(units) for a in rows}
    unit_above = [unit_of[label[rows[0]]] for rows in units]
    maximum_sites = tuple(entry_site[rows[0] * T + label[rows[0]]] for rows in units)
    inner_sites = tuple(
        tuple(c for a in rows if (c := entry_site[a * T + a]) != maximum_sites[unit])
        for unit, rows in enumerate(units)
    )
    shared_sites = {
        (unit, unit_2): tuple(
            c
            for a in units[unit]
            for b in units[unit_2]
            if (c := entry_site[a * T + b]) != maximum_sites[unit]
        )
        for unit in range(unit_count)
        for unit_2 in range(unit_count)
        if unit != unit_2
    }

    def can_be_placed(unit: int, placed_set: int) -> bool:
        """Whether ``unit``, rows that share a maximum, may follow the units in the bit mask ``placed_set``: the unit above it,
        whose row also contains its maximum, is itself or in the set.
        """
        return unit_above[unit] == unit or bool(placed_set >> unit_above[unit] & 1)

    reachable_sets = [
        placed_set
        for placed_set in range(1 << unit_count)
        if all(
            can_be_placed(unit, placed_set)
            for unit in range(unit_count)
            if placed_set >> unit & 1
        )
    ]

    def bounded_sites(unit: int, placed_set: int) -> int:
        """Sites (bit mask) of entries bounded by the maximum of ``unit`` if those in the bit mask ``placed_set`` are larger."""
        sites = set(inner_sites[unit])
        for other_unit in range(unit_count):
            if placed_set >> other_unit & 1:
                sites.update(shared_sites[unit, other_unit])
        return sum(1 << site for site in sites)

    placements = (
        (placed_set, unit, bounded_sites(unit, placed_set))
        for placed_set in reachable_sets
        for unit in range(unit_count)
        if not placed_set >> unit & 1 and can_be_placed(unit, placed_set)
    )
    return Pattern(maximum_sites, tuple(placements))


class RowPosterior(NamedTuple):
    """Log-probability of labels (n,), and ``E[z - omega] / sqrt(V)`` and ``E[(z - omega)^2] / V`` of latents (n, C)."""

    log_partition: Array
    shift: Array
    square: Array


def row_posterior(
    y: Array,
    omega: Array,
    V: Array,
    tokens: int,
    *,
    node_count: int = 28,
    window_half_width: float = 7.0,
) -> RowPosterior:
    """Posterior of ``z ~ N(omega, V I)`` given labels y (n, T) of T = ``tokens`` tokens, the columns of the row maxima, by nested
    integrals over maxima, with ``node_count`` nodes, a multiple of 4, in a window of ``window_half_width`` standard deviations
    around every row's largest entry; ``omega`` (n, C) and ``V`` () are in double precision. NaN where no symmetric matrix has a
    label.

    Accurate to about 1e-5 where the label has a probability above 1e-8; further out the windows, which are centered on omega,
    may miss the posterior. Doubled, ``window_half_width`` and ``node_count`` leave errors of 1e-6 in place of 2e-5 at small V.
    The cost grows about threefold with every token.
    """
    xp = namespace(y, omega, V)
    if tuple(y.shape) != (omega.shape[0], tokens):  # the kernel checks no bounds
        raise ValueError(
            f"labels y have shape {tuple(y.shape)}; omega of {omega.shape[0]} samples takes ({omega.shape[0]}, {tokens})"
        )
    scales = shared_constants(site_scales(tokens), omega, xp.float64)
    scaled_omega = omega * (scales[None, :] / xp.sqrt(V))
    powers_of_T = tuple(tokens**column for column in range(tokens))
    powers_of_T = shared_constants(powers_of_T, omega, xp.float64)
    label_codes = xp.matmul(xp.astype(y, xp.float64), powers_of_T)
    label_codes = xp.astype(label_codes, xp.int64)
    if array_api_compat.is_cupy_array(omega):
        from smimbench_attention.channels.attention.hardmax.device import device_moments

        device = device_of(omega)
        tables = _tables_on_device(tokens, node_count, xp, device)
        return RowPosterior(
            *device_moments(scaled_omega, label_codes, tables, window_half_width)
        )
    from smimbench_attention.channels.attention.hardmax.kernel import host_moments

    moments = host_moments(
        to_host(scaled_omega),
        to_host(label_codes),
        kernel_tables(tokens, node_count),
        window_half_width,
    )
    return RowPosterior(*(array_like(moment, omega) for moment in moments))


@lru_cache(maxsize=64)
def _tables_on_device(
    tokens: int, node_count: int, xp: ModuleType, device: object
) -> tuple[Array, ...]:
    """The tables of the kernel on a ``device``, sent there once."""
    return tuple(
        xp.asarray(table, device=device) for table in kernel_tables(tokens, node_count)
    )


@cache
def kernel_tables(tokens: int, node_count: int) -> tuple[Host, ...]:
    """All that the kernel reads for T = ``tokens`` tokens besides the samples: deviations (C,) of the logits, the patterns, and
    the rule of ``node_count`` nodes.
    """
    return (np.array(site_scales(tokens)), *patterns(tokens), *_rule(node_count))


@cache
def _rule(node_count: int) -> tuple[Host, ...]:
    """Gauss-Legendre nodes on [0, 1], ``node_count`` of them, their weights, and two matrices: values at the nodes times these
    are the integrals from 0 to each node, and from each node to 1.
    """
    nodes, weights = gauss_legendre(node_count)
    # Legendre coefficients of the polynomial through the values, then its primitive at the nodes
    legendre = np.polynomial.legendre
    legendre_coefficients = (
        legendre.legvander(nodes, node_count - 1)
        * weights[:, None]
        * (np.arange(node_count) + 0.5)
    )
    integral_below = legendre_coefficients @ legendre.legval(
        nodes, legendre.legint(np.eye(node_count), lbnd=-1)
    )
    integral_below = integral_below / 2
    integral_above = weights[:, None] / 2 - integral_below
    return (nodes + 1) / 2, weights / 2, integral_below, integral_above
