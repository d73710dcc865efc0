r"""Exact posterior of the row-wise argmax of a few tokens, three to five, by nested integrals; see ``two_tokens`` for two.

Given the maximum ``M_a`` of every row, the entries that are no row's maximum are independent, each bounded by the smaller of its
two rows' maxima. Sorted from the largest maximum downwards, the integrand is a product of functions of one maximum each, in
which only the set of rows already placed matters. So the nested integral is a recursion over sets of rows, and the posterior
moments follow from its forward and its backward half.

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
from smimbench_attention.channels.common import concatenate_tuples


class Pattern(NamedTuple):
    """Which rows of a label have their maxima in which columns: ``units`` are the rows that share a maximum, one or two that
    point at each other, ``maximum_sites`` the site of each unit's maximum, ``inner_sites`` other sites inside a unit,
    ``shared_sites`` other sites between two units (lower, upper). ``placements`` are pairs (set of units placed so far, as a bit
    mask; unit placed next), in order.
    """

    units: tuple[tuple[int, ...], ...]
    maximum_sites: tuple[int, ...]
    inner_sites: tuple[tuple[int, ...], ...]
    shared_sites: dict[tuple[int, int], tuple[int, ...]]
    placements: tuple[tuple[int, int], ...]


class Patterns(NamedTuple):
    """Patterns of all labels y of T tokens, by their code ``sum_a y_a T^a``: the distinct ones, the index (T^T,) of each label's
    (-1 for labels that no symmetric matrix has), the ``sites`` of the sample behind every site of the pattern (T^T, C), and the
    reverse, ``inverse_sites``.
    """

    distinct_patterns: tuple[Pattern, ...]
    pattern_of_label: Host
    sites: Host
    inverse_sites: Host


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
    """Distinct patterns of the labels of T = ``tokens`` tokens, and the pattern of every label up to a permutation of tokens; a
    label y has the code ``sum_a y_a T^a``, and ``permuted_...`` arrays have one row per permutation.
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
    inverse_sites = np.zeros_like(sites)
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
        inverse_sites[permuted_codes] = np.argsort(permuted_sites, axis=1)
        distinct_patterns.append(_pattern(label.tolist()))
    return Patterns(tuple(distinct_patterns), pattern_of_label, sites, inverse_sites)


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
    placements = (
        (placed_set, unit)
        for placed_set in reachable_sets
        for unit in range(unit_count)
        if not placed_set >> unit & 1 and can_be_placed(unit, placed_set)
    )
    return Pattern(units, maximum_sites, inner_sites, shared_sites, tuple(placements))


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
    integrals over the maxima, with ``node_count`` nodes in a window of ``window_half_width`` standard deviations around every
    row's largest entry; ``omega`` (n, C) and ``V`` () are in double precision. Samples are taken together by the pattern of their
    labels (``pattern_index``), in chunks, with the ``sites`` of the sample in the order of the pattern, and back by
    ``inverse_sites``.

    Accurate to about 1e-5 where the label has a probability above 1e-8; further out the windows, which are centered on omega,
    may miss the posterior. Doubled, ``window_half_width`` and ``node_count`` leave errors of 1e-6 in place of 2e-5 at small V.
    The labels form no cycle; the cost grows about threefold with every token.
    """
    xp = namespace(y, omega, V)
    label_patterns = patterns(tokens)
    patterns_of_labels, all_sites, all_inverse_sites = (
        xp.asarray(index_table, device=array_api_compat.device(omega))
        for index_table in label_patterns[1:]
    )
    powers_of_T = xp.asarray(
        [tokens**a for a in range(tokens)], **matching(omega, xp.int64)
    )
    label_codes = xp.sum(xp.astype(y, xp.int64) * powers_of_T[None, :], axis=1)
    pattern_index = xp.take(patterns_of_labels, label_codes)
    scaled_omega = omega * (
        xp.asarray(site_scales(tokens), **matching(omega, xp.float64))[None, :]
        / xp.sqrt(V)
    )
    # On the host, the few dozen intermediate arrays stay in the cache.
    chunk_entries = 1 << (14 if array_api_compat.is_numpy_namespace(xp) else 21)
    sample_indices = []
    posteriors = []
    for index, pattern in enumerate(label_patterns.distinct_patterns):
        pattern_samples = xp.nonzero(pattern_index == index)[0]
        chunk_rows = max(1, chunk_entries // (len(pattern.units) * node_count))
        for start in range(0, pattern_samples.shape[0], chunk_rows):
            chunk_indices = pattern_samples[
                start : min(start + chunk_rows, pattern_samples.shape[0])
            ]
            chunk_codes = xp.take(label_codes, chunk_indices)
            sites = xp.take(all_sites, chunk_codes, axis=0)
            inverse_sites = xp.take(all_inverse_sites, chunk_codes, axis=0)
            mean_by_pattern = xp.take_along_axis(
                xp.take(scaled_omega, chunk_indices, axis=0), sites, axis=1
            )
            log_partition, *moments = _posterior_of_pattern(
                pattern, mean_by_pattern, tokens, node_count, window_half_width
            )
            sample_indices.append(chunk_indices)
            posteriors.append(
                RowPosterior(
                    log_partition,
                    *(
                        xp.take_along_axis(moment, inverse_sites, axis=1)
                        for moment in moments
                    ),
                )
            )
    original_order = xp.argsort(xp.concat(sample_indices))
    return RowPosterior(
        *(
            xp.take(moment, original_order, axis=0)
            for moment in concatenate_tuples(posteriors)
        )
    )


@cache
def _rule(node_count: int) -> tuple[Host, ...]:
    """Gauss-Legendre nodes on [0, 1], ``node_count`` of them, their weights, and two matrices: values at the nodes times these
    are the integrals from 0 to each node or from each node to 1, and last the whole integral.
    """
    nodes, weights = gauss_legendre(node_count)
    # Legendre coefficients of the polynomial through the values, then its primitive at the nodes
    legendre = np.polynomial.legendre
    legendre_coefficients = (
        legendre.legvander(nodes, node_count - 1)
        * weights[:, None]
        * (np.arange(node_count) + 0.5)
    )
    integral_below = (
        legendre_coefficients
        @ legendre.legval(nodes, legendre.legint(np.eye(node_count), lbnd=-1))
    ) / 2
    total_weights = weights[:, None] / 2
    return (
        (nodes + 1) / 2,
        weights / 2,
        np.hstack([integral_below, total_weights]),
        np.hstack([total_weights - integral_below, total_weights]),
    )


def _maxima_panels(center: Array, width: Array) -> tuple[Array, Array]:
    """Left ends and lengths (n, K) of quadrature panels that cover the windows ``center +- width`` of K row maxima without
    overlap; where two windows do, the boundary divides the distance of the centers as their widths.
    """
    xp = namespace(center)
    ascending_order = xp.argsort(center, axis=1)
    center = xp.take_along_axis(center, ascending_order, axis=1)
    width = xp.take_along_axis(width, ascending_order, axis=1)
    width_fraction = width[:, :-1] / (width[:, :-1] + width[:, 1:])
    boundary = center[:, :-1] + width_fraction * (center[:, 1:] - center[:, :-1])
    left_end = center - width
    right_end = center + width
    left_end = xp.concat(
        [left_end[:, :1], xp.maximum(left_end[:, 1:], boundary)], axis=1
    )
    right_end = xp.concat(
        [xp.minimum(right_end[:, :-1], boundary), right_end[:, -1:]], axis=1
    )
    return left_end, right_end - left_end


def _posterior_of_pattern(
    pattern: Pattern,
    scaled_mean: Array,
    tokens: int,
    node_count: int,
    half_width: float,
) -> RowPosterior:
    """Posterior of n samples whose labels have the same ``pattern``, by integrals over row maxima with ``node_count`` nodes in
    windows of ``half_width`` standard deviations; ``scaled_mean`` (n, C) are means of the logits h over sqrt(V), with sites named
    as in the pattern. A unit is a set of rows with one maximum, a ``z_score`` a maximum less a logit's mean over the logit's
    deviation; ``max_density`` are densities of a maximum at the nodes, times the probability of the label.
    """
    xp = namespace(scaled_mean)
    array_options = matching(scaled_mean)
    sample_count = scaled_mean.shape[0]
    unit_count = len(pattern.units)
    deviations = site_scales(tokens)
    maximum_sites = pattern.maximum_sites
    centers = xp.stack([scaled_mean[:, site] for site in maximum_sites], axis=1)
    window = xp.asarray(
        [half_width * deviations[site] for site in maximum_sites], **array_options
    )
    left_ends, panel_lengths = _maxima_panels(
        centers, xp.broadcast_to(window[None, :], (sample_count, unit_count))
    )
    unit_nodes, unit_weights, integral_below, integral_above = (
        xp.asarray(array, **array_options) for array in _rule(node_count)
    )
    maxima = xp.reshape(
        left_ends[:, :, None] + panel_lengths[:, :, None] * unit_nodes,
        (sample_count, unit_count * node_count),
    )
    node_weights = xp.reshape(
        panel_lengths[:, :, None] * unit_weights,
        (sample_count, unit_count * node_count),
    )
    z_scores = [
        (maxima - scaled_mean[:, site, None]) / deviation
        for site, deviation in enumerate(deviations)
    ]
    normal_pdfs = [
        1 / math.sqrt(2 * math.pi) * xp.exp(-z_score * z_score / 2)
        for z_score in z_scores
    ]
    normal_cdfs = {
        site: special(xp).ndtr(z_score)
        for site, z_score in enumerate(z_scores)
        if site not in maximum_sites
    }

    def cumulate(integrand: Array, integration_matrix: Array) -> tuple[Array, Array]:
        """Integrals of ``integrand``, a function of a maximum given at all nodes, from -infinity to every node or from there to
        infinity, as ``integration_matrix`` says, and over all; ``panel_offset`` is the integral over the whole panels between a
        node's panel and that infinity.
        """
        cumulative = xp.reshape(
            xp.matmul(
                xp.reshape(integrand, (sample_count * unit_count, node_count)),
                integration_matrix,
            ),
            (sample_count, unit_count, node_count + 1),
        )
        cumulative = cumulative * panel_lengths[:, :, None]
        panel_integrals = cumulative[:, :, -1]
        total_integral = xp.sum(panel_integrals, axis=1)
        running_sum = xp.cumulative_sum(panel_integrals, axis=1)
        panel_offset = (
            running_sum - panel_integrals
            if integration_matrix is integral_below
            else total_integral[:, None] - running_sum
        )
        return xp.reshape(
            cumulative[:, :, :-1] + panel_offset[:, :, None],
            (sample_count, unit_count * node_count),
        ), total_integral

    unit_densities = {
        (unit, 0): math.prod(
            (normal_cdfs[site] for site in pattern.inner_sites[unit]),
            start=normal_pdfs[site] / deviations[site],
        )
        for unit, site in enumerate(maximum_sites)
    }

    def unit_density(unit: int, placed_set: int) -> Array:
        """Joint density of the maximum of ``unit`` (rows that share it), the other entries of these rows, and those shared with
        units above it, the bit mask ``placed_set``.
        """
        if (unit, placed_set) not in unit_densities:
            last_unit = placed_set.bit_length() - 1
            shared_cdfs = (
                normal_cdfs[site] for site in pattern.shared_sites[unit, last_unit]
            )
            unit_densities[unit, placed_set] = math.prod(
                shared_cdfs, start=unit_density(unit, placed_set ^ (1 << last_unit))
            )
        return unit_densities[unit, placed_set]

    def nested_integrals(
        steps: Iterable[tuple[int, int, int]], start_set: int, integration_matrix: Array
    ) -> tuple[dict[int, Array], dict[int, dict[int, Array]]]:
        """Nested integrals over maxima from ``start_set`` on, a set of units (each the rows that share a maximum) as a bit mask,
        by the set of placed units, and their terms, by target and source set; ``steps`` are (source set, target set, unit), and
        ``integration_matrix`` says whether integrals run above or below a node.
        """
        integral_of_set = {start_set: xp.ones_like(maxima)}
        integral_terms: dict[int, dict[int, Array]] = {}
        for source_set, target_set, unit in steps:
            if source_set not in integral_of_set:
                integral_of_set[source_set], _ = cumulate(
                    sum(integral_terms[source_set].values()), integration_matrix
                )
            integral_terms.setdefault(target_set, {})[source_set] = (
                unit_density(unit, min(source_set, target_set))
                * integral_of_set[source_set]
            )
        return integral_of_set, integral_terms

    forward_steps = [
        (placed_set, placed_set | 1 << unit, unit)
        for placed_set, unit in pattern.placements
    ]
    upper_integrals, _ = nested_integrals(forward_steps, 0, integral_above)
    reversed_steps = [
        (target_set, placed_set, unit)
        for placed_set, target_set, unit in reversed(forward_steps)
    ]
    _, lower_terms = nested_integrals(
        reversed_steps, (1 << unit_count) - 1, integral_below
    )
    _, label_probability = cumulate(sum(lower_terms[0].values()), integral_below)
    # densities of the maximum of a unit, or of the lower one of two
    unit_marginals: list[Array] = [0.0] * unit_count
    pair_marginals: dict[tuple[int, int], Array] = {}
    for target_set, placed_set, unit in reversed_steps:
        max_density = lower_terms[placed_set][target_set] * upper_integrals[placed_set]
        unit_marginals[unit] = unit_marginals[unit] + max_density
        for unit_2 in range(unit_count):
            if placed_set >> unit_2 & 1:
                pair = (min(unit, unit_2), max(unit, unit_2))
                pair_marginals[pair] = pair_marginals.get(pair, 0.0) + max_density

    # moments of every site, whose lower row has its maximum at m with a density
    site_densities = [
        (unit_marginals[unit], {maximum_sites[unit], *pattern.inner_sites[unit]})
        for unit in range(unit_count)
    ]
    site_densities += [
        (
            pair_marginals[unit, unit_2],
            {*pattern.shared_sites[unit, unit_2]}
            & {*pattern.shared_sites[unit_2, unit]},
        )
        for unit, unit_2 in pair_marginals
    ]
    mean_shifts = [scaled_mean[:, 0]] * len(deviations)
    mean_squares = [scaled_mean[:, 0]] * len(deviations)
    for max_density, sites in site_densities:
        max_density = max_density * node_weights
        density_mass = clip(xp.sum(max_density, axis=1), 1e-300, None)
        for site in sites:
            if site in maximum_sites:
                first_moments = max_density * z_scores[site]
                second_moments = first_moments * z_scores[site]
            else:
                first_moments = -max_density * (
                    normal_pdfs[site] / clip(normal_cdfs[site], 1e-300, None)
                )
                second_moments = max_density + first_moments * z_scores[site]
            mean_shifts[site] = xp.sum(first_moments, axis=1) / density_mass
            mean_squares[site] = xp.sum(second_moments, axis=1) / density_mass
    log_partition = xp.log(clip(label_probability, 1e-300, None))
    return RowPosterior(
        log_partition, xp.stack(mean_shifts, axis=1), xp.stack(mean_squares, axis=1)
    )
