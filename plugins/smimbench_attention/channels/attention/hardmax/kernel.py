"""Nested integrals over the maxima of the rows of one sample, compiled for the host and for CUDA; see ``exact``.

Functions of a maximum are rows of a work array: their values at the nodes of all panels, panel after panel. The nodes of a panel
are pairs on either side of its center, first all on the left, then all on the right.
"""

from __future__ import annotations

import math

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import gauss_legendre
from smimbench_attention.channels.compiling import (
    allocation_free,
    compiled,
    exp,
    normal_cdf,
)

SMALLEST = 1e-300
"""Floor of what is divided by. Where it acts a label is too unlikely for the windows, and the Gibbs sampler is asked."""
NODE_COUNT = 28
"""Gauss-Legendre nodes of a panel, even. Doubled: twice the time; most errors, those of the window, stay, but at small V one
sample in two hundred has 2e-5 in place of 3e-5 to 1e-3.
"""
VECTOR_LENGTH = 16
"""The number of pairs is padded to a multiple of this with pairs of weight 0, so that loops over vectors of 8 numbers, the
longest that processors have, leave no remainder. Doubled: more idle pairs.
"""


def _rule() -> tuple[Host, Host, Host]:
    """Gauss-Legendre rule on [-1/2, 1/2] by P pairs of nodes: ``offsets`` from the center and ``weights`` (P,), and two matrices
    (P, P) that integrate the polynomial through the values at the nodes. The first takes the sums of the values of each pair to
    integrals of the even part of the polynomial, from the center to the nodes on the right; the second takes the differences,
    right less left, to integrals of its odd part from -1/2 to those nodes.
    """
    nodes, weights = (array[NODE_COUNT // 2 :] for array in gauss_legendre(NODE_COUNT))
    legendre = np.polynomial.legendre
    degrees = np.arange(NODE_COUNT)  # Legendre polynomials of even degree are even
    coefficients = (
        legendre.legvander(nodes, NODE_COUNT - 1) * weights[:, None] * (degrees + 0.5)
    )
    primitives = legendre.legval(nodes, legendre.legint(np.eye(NODE_COUNT), lbnd=-1))
    primitives[0] -= 1  # half of the integral; the other polynomials have none
    integrals = np.stack(
        [coefficients[:, parity::2] @ primitives[parity::2] for parity in (0, 1)]
    )
    idle = 0, -len(nodes) % VECTOR_LENGTH
    return (
        np.pad(nodes / 2, idle),
        np.pad(weights / 2, idle),
        np.pad(integrals / 2, ((0, 0), idle, idle)),
    )


# The compiled code has the integrals as constants: it need not check that they do not overlap with what it writes.
OFFSETS, WEIGHTS, INTEGRALS = _rule()


def work_shape(tokens: int, panels_per_window: int) -> tuple[int, int]:
    """Shape of the work array that the kernel needs for one sample of T = ``tokens`` tokens."""
    rows = 3 * (tokens * (tokens + 1) // 2) + 2 * (1 << tokens) + 12
    return rows, 2 * len(WEIGHTS) * tokens * panels_per_window


def make_kernel(jit):
    """Make the function that integrates samples one by one, compiled by ``jit``. ``tables`` are ``exact.kernel_tables``.

    Of each of the C sites ``scores`` are maximum less the logit's mean over its deviation, ``cdfs`` the probabilities that it is
    below, ``slopes`` its density where it is a maximum itself, else the mean score of an entry that is below; ``upper`` and
    ``lower`` are integrals over all larger and all smaller maxima, by the set of units that are placed, those with larger ones.
    """

    @jit
    def place_panels(
        mean, sites, windows, tables, scratch, maxima, node_weights, lengths
    ):
        """Write maxima and weights at the nodes and the ``lengths`` of panels that cover windows around the ``mean`` of the
        logits at ``sites`` without overlap; where two windows do, the boundary divides the distance of the centers as their
        widths. ``windows`` are the half width in deviations and the number of panels of each, ``scratch`` two rows.
        """
        half_width, panels_per_window = windows
        deviations, offsets, weights = tables[0], tables[6], tables[7]
        centers, widths = scratch[0], scratch[1]  # of the windows, in ascending order
        for unit in range(sites.shape[0]):
            center, place = mean[sites[unit]], unit
            while place > 0 and centers[place - 1] > center:
                centers[place], widths[place] = centers[place - 1], widths[place - 1]
                place -= 1
            centers[place] = center
            widths[place] = half_width * deviations[sites[unit]]
        pair_count, panel, start = weights.shape[0], 0, centers[0] - widths[0]
        for unit in range(sites.shape[0]):
            center, width = centers[unit], widths[unit]
            end = next_start = center + width
            if unit + 1 < sites.shape[0]:
                next_center, next_width = centers[unit + 1], widths[unit + 1]
                share = min(1.0, (next_center - center) / (width + next_width))
                end = center + share * width
                next_start = next_center - share * next_width
            length = (end - start) / panels_per_window
            for panel_of_window in range(panels_per_window):
                panel_center = start + (panel_of_window + 0.5) * length
                for pair in range(pair_count):
                    left_node = 2 * panel * pair_count + pair
                    right_node = left_node + pair_count
                    offset, weight = length * offsets[pair], length * weights[pair]
                    maxima[left_node] = panel_center - offset
                    maxima[right_node] = panel_center + offset
                    node_weights[left_node] = node_weights[right_node] = weight
                lengths[panel] = length
                panel += 1
            start = next_start

    @jit
    def cumulate(values, is_above, lengths, weights, parity_values, integrals):
        """Replace the ``values`` of a function by its integrals from -infinity to every node, or from there to infinity: in each
        panel the integral to its center, or from there, plus an odd and an even function of the distance from it. These are
        ``integrals`` of ``parity_values``: sums and differences of pairs, twice the even and the odd part. Both are scratch of
        two rows.
        """
        pair_count, total = weights.shape[0], 0.0
        for index in range(lengths.shape[0]):
            panel = lengths.shape[0] - 1 - index if is_above else index
            center_index = (2 * panel + 1) * pair_count
            left_values = values[center_index - pair_count : center_index]
            right_values = values[center_index : center_index + pair_count]
            length, half_integral = lengths[panel], 0.0
            for pair in range(pair_count):
                parity_values[0, pair] = right_values[pair] + left_values[pair]
                parity_values[1, pair] = right_values[pair] - left_values[pair]
                half_integral += weights[pair] * parity_values[0, pair]
                integrals[0, pair] = integrals[1, pair] = 0.0
            half_integral *= length / 2
            for parity in range(2):
                # four products at a time: a fourth of the loads and stores
                for quarter in range(pair_count // 4):
                    row = 4 * quarter
                    value_1, value_2 = (
                        parity_values[parity, row],
                        parity_values[parity, row + 1],
                    )
                    value_3, value_4 = (
                        parity_values[parity, row + 2],
                        parity_values[parity, row + 3],
                    )
                    for pair in range(pair_count):
                        integrals[parity, pair] += (
                            INTEGRALS[parity, row, pair] * value_1
                            + INTEGRALS[parity, row + 1, pair] * value_2
                        ) + (
                            INTEGRALS[parity, row + 2, pair] * value_3
                            + INTEGRALS[parity, row + 3, pair] * value_4
                        )
            signed_length = -length if is_above else length
            for pair in range(pair_count):
                center = total + half_integral + signed_length * integrals[1, pair]
                left_values[pair] = center - signed_length * integrals[0, pair]
                right_values[pair] = center + signed_length * integrals[0, pair]
            total += 2 * half_integral

    @jit
    def fill_density(density, site, bounded, slopes, cdfs, count):
        """Write the ``density`` of a maximum at ``site`` times the probability that entries at ``bounded`` sites are below."""
        for node in range(count):
            density[node] = slopes[site, node]
        for bounded_site in range(cdfs.shape[0]):
            if bounded >> bounded_site & 1:
                for node in range(count):
                    density[node] *= cdfs[bounded_site, node]

    @jit
    def integrate(mean, pattern, windows, tables, work, moments):
        """Return the probability of a label of this ``pattern``, for means (C,) of the logits over sqrt(V) at sites named as in
        the pattern; write mass, first and second moments of (z - omega) / sqrt(V) into ``moments`` (3, C).
        """
        deviations, placements, weights = tables[0], tables[5], tables[7]
        sites = tables[3][pattern]
        first_placement, end_placement = tables[4][pattern], tables[4][pattern + 1]
        C, set_count = deviations.shape[0], 1 << sites.shape[0]
        scores, cdfs, slopes = work[:C], work[C : 2 * C], work[2 * C : 3 * C]
        upper = work[3 * C : 3 * C + set_count]
        lower = work[3 * C + set_count : 3 * C + 2 * set_count]
        buffers = work[3 * C + 2 * set_count :]
        maxima, node_weights, density = buffers[0], buffers[1], buffers[2]
        pair_count = weights.shape[0]
        parity_values, integrals = buffers[4:6], buffers[6:8]
        unit_count = is_maximum = 0
        for unit in range(sites.shape[0]):
            if sites[unit] >= 0:
                is_maximum |= 1 << sites[unit]
                unit_count += 1
        sites, lengths = sites[:unit_count], buffers[3, : unit_count * windows[1]]
        place_panels(
            mean, sites, windows, tables, parity_values, maxima, node_weights, lengths
        )
        count = 2 * pair_count * lengths.shape[0]
        for site in range(C):
            inverse_deviation = 1.0 / deviations[site]
            site_is_maximum = is_maximum >> site & 1
            peak = 0.3989422804014327 * inverse_deviation if site_is_maximum else 1.0
            for node in range(count):
                score = (maxima[node] - mean[site]) * inverse_deviation
                scores[site, node] = score
                slopes[site, node] = peak * exp(-min(score * score / 2, 690.0))
            if not site_is_maximum:  # else its probability to be below is not needed
                for node in range(count):
                    gaussian = slopes[site, node]
                    cdf = normal_cdf(scores[site, node], gaussian)
                    cdfs[site, node] = cdf
                    slopes[site, node] = (
                        -0.3989422804014327 * gaussian / max(cdf, SMALLEST)
                    )
            moments[0, site] = moments[1, site] = moments[2, site] = 0.0
        everything = (1 << unit_count) - 1
        for placed in range(everything + 1):
            for node in range(count):
                upper[placed, node] = 1.0 if placed == 0 else 0.0
                lower[placed, node] = 1.0 if placed == everything else 0.0
        placed = 0
        for placement in range(first_placement, end_placement):
            if placements[placement, 0] != placed:
                placed = placements[placement, 0]
                cumulate(
                    upper[placed], True, lengths, weights, parity_values, integrals
                )
            unit, bounded = placements[placement, 1], placements[placement, 2]
            target = placed | 1 << unit
            fill_density(density, sites[unit], bounded, slopes, cdfs, count)
            for node in range(count):
                upper[target, node] += density[node] * upper[placed, node]
        probability = 0.0
        for placement in range(end_placement - 1, first_placement - 1, -1):
            if placements[placement, 0] != placed:
                cumulate(
                    lower[placed], False, lengths, weights, parity_values, integrals
                )
                placed = placements[placement, 0]
            unit, bounded = placements[placement, 1], placements[placement, 2]
            target = placed | 1 << unit
            fill_density(density, sites[unit], bounded, slopes, cdfs, count)
            mass = 0.0
            for node in range(count):
                term = density[node] * lower[target, node]
                lower[placed, node] += term
                density[node] = term * upper[placed, node] * node_weights[node]
                mass += density[node]
            if placed == 0:
                probability += mass
            for site in range(C):
                is_bounded = bounded >> site & 1
                if is_bounded or site == sites[unit]:
                    site_mean = slopes[site] if is_bounded else scores[site]
                    shift = square = 0.0
                    for node in range(count):
                        moment = density[node] * site_mean[node]
                        shift += moment
                        square += moment * scores[site, node]
                    moments[0, site] += mass
                    moments[1, site] += shift
                    moments[2, site] += square + is_bounded * mass
        return probability

    @jit
    def integrate_samples(start, step, means, codes, windows, tables, work, outputs):
        """Write log-probability, first and second moments of every ``step``-th sample from sample ``start`` on into ``outputs``
        (n,), (n, C), (n, C), NaN if no matrix has its label, given the means (n, C) of logits over sqrt(V) and the ``codes``
        (n,) of labels. ``work`` is an array of ``work_shape``.
        """
        log_partition, shift, square = outputs
        mean, moments = work[-1], work[-4:-1]
        for sample in range(start, means.shape[0], step):
            code, pattern = codes[sample], -1
            if 0 <= code < tables[1].shape[0]:  # else labels that are no columns
                pattern = tables[1][code]
            if pattern < 0:
                log_partition[sample] = math.nan
                for site in range(shift.shape[1]):
                    shift[sample, site] = square[sample, site] = math.nan
                continue
            sites = tables[2][code]
            for site in range(sites.shape[0]):
                mean[site] = means[sample, sites[site]]
            probability = integrate(mean, pattern, windows, tables, work, moments)
            log_partition[sample] = math.log(max(probability, SMALLEST))
            for site in range(sites.shape[0]):
                mass = max(moments[0, site], SMALLEST)
                shift[sample, sites[site]] = moments[1, site] / mass
                square[sample, sites[site]] = moments[2, site] / mass

    return integrate_samples


_kernel = make_kernel(allocation_free("contract", "reassoc", inlined=True))


def _integrate_samples(means, codes, windows, tables, work, outputs):
    """Integrate all samples on the host; arguments are those of ``integrate_samples``."""
    _kernel(0, 1, means, codes, windows, tables, work, outputs)


_host_kernel = compiled(_integrate_samples)


def host_moments(
    means: Host, codes: Host, tables: tuple[Host, ...], windows: tuple[float, int]
) -> tuple[Host, ...]:
    """Log-probabilities (n,) of labels of the given ``codes`` (n,), and first and second moments (n, C) of (z - omega) / sqrt(V),
    for means (n, C) of logits over sqrt(V), by ``exact.kernel_tables``, with ``windows`` of this half width in deviations and
    number of panels.
    """
    n, C = means.shape
    rows, columns = work_shape(tables[3].shape[1], windows[1])
    # Rows begin where cache lines do: vectors that lie in two lines take twice as long to load.
    memory = np.empty(rows * columns + 7)
    line_start = -memory.ctypes.data % 64 // 8
    work = memory[line_start : line_start + rows * columns].reshape(rows, columns)
    outputs = np.empty(n), np.empty((n, C)), np.empty((n, C))
    # One memory layout only: any other would be compiled separately.
    means, codes = (
        np.require(means, np.float64, ["C", "W"]),
        np.require(codes, np.int64, ["C", "W"]),
    )
    _host_kernel(means, codes, windows, tables, work, outputs)
    return outputs
