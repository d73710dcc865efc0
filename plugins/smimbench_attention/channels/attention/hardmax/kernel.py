"""Nested integrals over the maxima of the rows of one sample, compiled for the host and for CUDA; see ``exact``.

Functions of a maximum are rows of a work array: their values at N nodes of the panel of every unit, panel after panel.
"""

from __future__ import annotations

import math

import numpy as np

from smimbench.interfaces import Host
from smimbench_attention.channels.compiling import (
    allocation_free,
    compiled,
    exp,
    normal_cdf,
)

SMALLEST = 1e-300
"""Floor of what is divided by. Where it acts a label is too unlikely for the windows, and the Gibbs sampler is asked."""


def work_rows(tokens: int) -> int:
    """Number of rows of T N numbers that the kernel needs for one sample of T = ``tokens`` tokens."""
    return 3 * (tokens * (tokens + 1) // 2) + 2 * (1 << tokens) + 4


def make_kernel(jit):
    """Make the function that integrates one sample, compiled by ``jit``. ``tables`` are ``exact.kernel_tables``.

    Of each of the C sites ``scores`` are maximum less the logit's mean over its deviation, ``cdfs`` the probabilities that it is
    below, ``slopes`` its density (where it is a maximum itself) or density over probability; ``upper`` and ``lower`` are
    integrals over all larger and all smaller maxima, by the set of units that are placed, those with larger ones.
    """

    @jit
    def place_panels(mean, sites, half_width, tables, maxima, node_weights, panels):
        """Panels that cover windows ``half_width`` deviations around the ``mean`` of the logits at ``sites`` (-1: none) without
        overlap; where two windows do, the boundary divides the distance of the centers as their widths. Write maxima and weights
        at their nodes, lengths at odd ``panels``, and return the number of panels.
        """
        deviations, nodes, weights = tables[0], tables[6], tables[7]
        node_count, unit_count = nodes.shape[0], 0
        for unit in range(sites.shape[0]):  # centers and widths, in ascending order
            if sites[unit] >= 0:
                center = mean[sites[unit]]
                place = unit_count
                while place > 0 and panels[2 * place - 2] > center:
                    panels[2 * place] = panels[2 * place - 2]
                    panels[2 * place + 1] = panels[2 * place - 1]
                    place -= 1
                panels[2 * place] = center
                panels[2 * place + 1] = half_width * deviations[sites[unit]]
                unit_count += 1
        panel_start = panels[0] - panels[1]
        for unit in range(unit_count):
            center, width = panels[2 * unit], panels[2 * unit + 1]
            panel_end = next_start = center + width
            if unit + 1 < unit_count:
                next_center, next_width = panels[2 * unit + 2], panels[2 * unit + 3]
                width_fraction = width / (width + next_width)
                boundary = center + width_fraction * (next_center - center)
                panel_end = min(panel_end, boundary)
                next_start = max(next_center - next_width, boundary)
            length = panel_end - panel_start
            for node in range(node_count):
                maxima[unit * node_count + node] = panel_start + length * nodes[node]
                node_weights[unit * node_count + node] = length * weights[node]
            panels[2 * unit + 1] = length
            panel_start = next_start
        return unit_count

    @jit
    def cumulate(values, is_above, unit_count, tables, panels, buffer):
        """Replace the ``values`` of a function by its integrals from -infinity to every node, or from there to infinity."""
        weights, integrals = tables[7], tables[9] if is_above else tables[8]
        node_count, total = weights.shape[0], 0.0
        for index in range(unit_count):
            unit = unit_count - 1 - index if is_above else index
            panel = values[unit * node_count : (unit + 1) * node_count]
            length, panel_integral = panels[2 * unit + 1], 0.0
            for node in range(node_count):
                buffer[node] = 0.0
                panel_integral += weights[node] * panel[node]
            for quarter in range(node_count // 4):  # a fourth of the loads and stores
                source = (
                    4 * quarter
                )  # known to be positive, so that no index is checked
                value_1, value_2 = panel[source], panel[source + 1]
                value_3, value_4 = panel[source + 2], panel[source + 3]
                for node in range(node_count):
                    buffer[node] += (
                        integrals[source, node] * value_1
                        + integrals[source + 1, node] * value_2
                    ) + (
                        integrals[source + 2, node] * value_3
                        + integrals[source + 3, node] * value_4
                    )
            for node in range(node_count):
                panel[node] = total + length * buffer[node]
            total += length * panel_integral

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
    def integrate(mean, pattern, half_width, tables, work, moments):
        """Return the probability of a label of this ``pattern``, for means (C,) of the logits over sqrt(V) at sites named as in
        the pattern; write mass, first and second moments of (z - omega) / sqrt(V) into ``moments`` (3, C).
        """
        deviations, placements = tables[0], tables[5]
        sites = tables[3][pattern]
        first_placement, end_placement = tables[4][pattern], tables[4][pattern + 1]
        C, set_count = deviations.shape[0], 1 << sites.shape[0]
        scores, cdfs, slopes = work[:C], work[C : 2 * C], work[2 * C : 3 * C]
        upper = work[3 * C : 3 * C + set_count]
        lower = work[3 * C + set_count : 3 * C + 2 * set_count]
        buffers = work[3 * C + 2 * set_count :]
        maxima, node_weights, panels, density = (
            buffers[0],
            buffers[1],
            buffers[2],
            buffers[3],
        )
        unit_count = place_panels(
            mean, sites, half_width, tables, maxima, node_weights, panels
        )
        count = unit_count * tables[6].shape[0]
        is_maximum = 0
        for unit in range(unit_count):
            is_maximum |= 1 << sites[unit]
        for site in range(C):
            inverse_deviation = 1.0 / deviations[site]
            for node in range(count):
                score = (maxima[node] - mean[site]) * inverse_deviation
                scores[site, node] = score
                slopes[site, node] = exp(-min(score * score / 2, 690.0))
            if is_maximum >> site & 1:  # its probability to be below is not needed
                for node in range(count):
                    slopes[site, node] *= 0.3989422804014327 * inverse_deviation
            else:
                for node in range(count):
                    gaussian = slopes[site, node]
                    cdf = normal_cdf(scores[site, node], gaussian)
                    cdfs[site, node] = cdf
                    slopes[site, node] = (
                        0.3989422804014327 * gaussian / max(cdf, SMALLEST)
                    )
            moments[0, site] = moments[1, site] = moments[2, site] = 0.0
        buffer = maxima  # they are in the scores
        everything = (1 << unit_count) - 1
        for placed in range(everything + 1):
            for node in range(count):
                upper[placed, node] = 1.0 if placed == 0 else 0.0
                lower[placed, node] = 1.0 if placed == everything else 0.0
        placed = 0
        for placement in range(first_placement, end_placement):
            if placements[placement, 0] != placed:
                placed = placements[placement, 0]
                cumulate(upper[placed], True, unit_count, tables, panels, buffer)
            unit, bounded = placements[placement, 1], placements[placement, 2]
            target = placed | 1 << unit
            fill_density(density, sites[unit], bounded, slopes, cdfs, count)
            for node in range(count):
                upper[target, node] += density[node] * upper[placed, node]
        probability, is_cumulated = 0.0, 1 << everything
        for placement in range(end_placement - 1, first_placement - 1, -1):
            placed, unit = placements[placement, 0], placements[placement, 1]
            bounded, target = placements[placement, 2], placed | 1 << unit
            if not is_cumulated >> target & 1:
                is_cumulated |= 1 << target
                cumulate(lower[target], False, unit_count, tables, panels, buffer)
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
                shift = square = 0.0
                if site == sites[unit]:
                    for node in range(count):
                        moment = density[node] * scores[site, node]
                        shift += moment
                        square += moment * scores[site, node]
                elif bounded >> site & 1:  # moments of a normal variable below a bound
                    for node in range(count):
                        moment = density[node] * slopes[site, node]
                        shift -= moment
                        square += density[node] - moment * scores[site, node]
                else:
                    continue
                moments[0, site] += mass
                moments[1, site] += shift
                moments[2, site] += square
        return probability

    @jit
    def integrate_sample(sample, means, codes, half_width, tables, scratch, outputs):
        """Write log-probability, first and second moments of a sample of number ``sample`` into ``outputs`` (n,), (n, C), (n, C),
        NaN if no matrix has its label, given the means (n, C) of logits over sqrt(V) and the ``codes`` (n,) of labels.
        ``scratch`` are arrays (rows, T N), (C,) and (3, C).
        """
        log_partition, shift, square = outputs
        work, mean, moments = scratch
        code = codes[sample]
        for site in range(shift.shape[1]):
            shift[sample, site] = square[sample, site] = math.nan
        log_partition[sample] = math.nan
        if not 0 <= code < tables[1].shape[0]:  # labels that are no columns
            return
        pattern, sites = tables[1][code], tables[2][code]
        for site in range(sites.shape[0]):
            mean[site] = means[sample, sites[site]]
        if pattern >= 0:
            probability = integrate(mean, pattern, half_width, tables, work, moments)
            log_partition[sample] = math.log(max(probability, SMALLEST))
            for site in range(sites.shape[0]):
                mass = max(moments[0, site], SMALLEST)
                shift[sample, sites[site]] = moments[1, site] / mass
                square[sample, sites[site]] = moments[2, site] / mass

    return integrate_sample


_integrate_sample = make_kernel(allocation_free("contract", "reassoc"))


def _integrate_samples(means, codes, half_width, tables, scratch, outputs):
    """Integrate samples one by one on the host; arguments are those of ``integrate_sample``."""
    for sample in range(means.shape[0]):
        _integrate_sample(sample, means, codes, half_width, tables, scratch, outputs)


_host_kernel = compiled(_integrate_samples)


def host_moments(
    means: Host, codes: Host, tables: tuple[Host, ...], half_width: float
) -> tuple[Host, ...]:
    """Log-probabilities (n,) of labels of the given ``codes`` (n,), and first and second moments (n, C) of (z - omega) / sqrt(V),
    for means (n, C) of logits over sqrt(V), by ``exact.kernel_tables``, with windows of this ``half_width`` in deviations.
    """
    n, C = means.shape
    tokens, node_count = tables[3].shape[1], len(tables[6])
    scratch = (
        np.empty((work_rows(tokens), tokens * node_count)),
        np.empty(C),
        np.empty((3, C)),
    )
    outputs = np.empty(n), np.empty((n, C)), np.empty((n, C))
    # One memory layout only: any other would be compiled separately.
    means, codes = (
        np.require(means, np.float64, ["C", "W"]),
        np.require(codes, np.int64, ["C", "W"]),
    )
    _host_kernel(means, codes, float(half_width), tables, scratch, outputs)
    return outputs
