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
from smimbench.numerics import entry_sites, site_pairs, site_scales
from smimbench_attention.channels.common import array_like


class Patterns(NamedTuple):
    """Patterns of all labels y of T tokens, by their code ``sum_a y_a T^a``: the index (T^T,) of each label's pattern (-1 for
    labels that no symmetric matrix has), the ``sites`` of the sample behind every site of the pattern (T^T, C), and of every
    distinct pattern ``maximum_sites`` (patterns, T) and rows ``first_placements[i]`` to ``first_placements[i + 1]`` of
    ``placements`` (rows, 3); see ``_pattern``.
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
    distinct_patterns: list[tuple[list[int], list[tuple[int, int, int]]]] = []
    for code, label in enumerate(labels):
        if pattern_of_label[code] >= 0 or not is_possible_label[code]:
            continue
        # row p(a) of the renamed label points at p(label(a))
        permuted_codes = np.sum(
            permuted_tokens[:, label] * powers_of_T[permuted_tokens], axis=1
        )
        pattern_of_label[permuted_codes] = len(distinct_patterns)
        sites[permuted_codes] = permuted_sites
        distinct_patterns.append(_pattern(label.tolist()))
    maximum_sites, placements = zip(*distinct_patterns, strict=True)
    return Patterns(
        pattern_of_label,
        sites,
        np.array(maximum_sites),
        np.cumsum([0, *map(len, placements)]),
        np.concatenate(placements),
    )


def _pattern(label: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Pattern of one label, which rows have their maxima in which columns. A unit is a row, or two rows that share a maximum
    because they point at each other. Return the site of each unit's maximum, filled up to T with -1, and placements, triples of a
    set of units placed so far (bit mask), the unit placed next, and the sites (bit mask) of entries bounded by its maximum.

    A unit's maximum is an entry of the row that it points at, too, so that it cannot be placed before that row.
    """
    T = len(label)
    entry_site = entry_sites(T)
    units = list(
        dict.fromkeys(
            frozenset({a, label[a]} if label[label[a]] == a else {a}) for a in range(T)
        )
    )
    maximum_sites = [
        entry_site[row * T + label[row]] for unit in units for row in [min(unit)]
    ]
    placements = []
    for placed_set in range(1 << len(units)):
        placed_rows = {
            row
            for index, unit in enumerate(units)
            if placed_set >> index & 1
            for row in unit
        }
        if any(label[row] not in placed_rows for row in placed_rows):
            continue  # never placed before the others
        for index, unit in enumerate(units):
            larger_rows = placed_rows | unit
            if unit <= placed_rows or label[min(unit)] not in larger_rows:
                continue  # placed already, or not to be placed yet
            bounded_sites = {entry_site[a * T + b] for a in unit for b in larger_rows}
            bounded_sites.discard(maximum_sites[index])
            placements.append(
                (placed_set, index, sum(1 << site for site in bounded_sites))
            )
    return maximum_sites + [-1] * (T - len(units)), placements


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
    window_half_width: float = 7.0,
    panels_per_window: int = 1,
) -> RowPosterior:
    """Posterior of ``z ~ N(omega, V I)`` given labels y (n, T) of T = ``tokens`` tokens, the columns of the row maxima, by nested
    integrals over maxima, in a window of ``window_half_width`` standard deviations around every row's largest entry, cut into
    ``panels_per_window`` panels; ``omega`` (n, C) and ``V`` () are in double precision. NaN where no symmetric matrix has a
    label.

    Accurate to about 1e-5, at small V to 1e-3 for one sample in two hundred, where the label has a probability above 1e-8;
    further out the windows, which are centered on omega, may miss the posterior. Doubled, ``window_half_width`` and
    ``panels_per_window`` leave errors of 1e-6 in place of 2e-5 at small V. The cost grows about threefold with every token.
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
    windows = float(window_half_width), panels_per_window
    if array_api_compat.is_cupy_array(omega):
        from smimbench_attention.channels.attention.hardmax.device import device_moments

        tables = _tables_on_device(tokens, xp, device_of(omega))
        return RowPosterior(*device_moments(scaled_omega, label_codes, tables, windows))
    from smimbench_attention.channels.attention.hardmax.kernel import host_moments

    moments = host_moments(
        to_host(scaled_omega), to_host(label_codes), kernel_tables(tokens), windows
    )
    return RowPosterior(*(array_like(moment, omega) for moment in moments))


@lru_cache(maxsize=64)
def _tables_on_device(tokens: int, xp: ModuleType, device: object) -> tuple[Array, ...]:
    """The tables of the kernel on a ``device``, sent there once."""
    return tuple(xp.asarray(table, device=device) for table in kernel_tables(tokens))


@cache
def kernel_tables(tokens: int) -> tuple[Host, ...]:
    """All that the kernel reads for T = ``tokens`` tokens besides the samples: deviations (C,) of the logits, the patterns, and
    offsets and weights of the nodes of a panel.
    """
    from smimbench_attention.channels.attention.hardmax.kernel import OFFSETS, WEIGHTS

    return (np.array(site_scales(tokens)), *patterns(tokens), OFFSETS, WEIGHTS)
