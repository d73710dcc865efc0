"""Integrals over the first layer's latents in two-layer attention, one sample at a time, compiled for the host.

The plane of (a_1, b_1) is cut into rectangular cells, which are halved until the logarithm of the weight hardly varies in each,
and dropped when an upper bound says that nothing is there. Where most weights are nearly Gaussian, Gauss-Hermite rules in the
frame of their own moments are tried first. All that is compiled is in this file because Numba keeps machine code until the
file of the outermost function changes.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import njit

from smimbench.interfaces import Host
from smimbench.numerics import gauss_hermite, gauss_legendre
from smimbench_attention.channels.attention.softmax.weight import (
    ACCURACY,
    ROOT2,
    ROOT8,
    Frame,
    Sample,
    Sums,
    Weight,
)
from smimbench_attention.channels.compiling import compiled

# Guards of the arithmetic, no tuning: the smallest divisor, the largest finite value whose square is finite too, and the
# largest logarithm of a number whose products and quotients can be formed.
_TINY, _HUGE, _FAR = 1e-60, 1e130, 340.0


def integrals(
    samples: Host,
    weight: Weight,
    variation: float = ACCURACY.variation,
    *,
    quick: bool = True,
) -> Sums:
    """Posterior integrals over the first layer's indices (a_1, b_1) for samples (n, 6).

    ``variation`` is the largest of the log-weight in a cell; ``quick`` says whether the Gauss-Hermite rules may be tried.
    """
    n = len(samples)
    sums = Sums(np.empty(n), np.empty((n, 4)), np.empty((n, 4, 4)), np.zeros(n))
    rules = tuple(_hermite(count) for count in ACCURACY.quick_nodes)
    # Where the first layer is wide, the Gauss-Hermite rules, which are blind to second peaks, seldom pass.
    quick = quick and weight.beta**2 * weight.variance_1 <= 0.2
    _integrate(
        samples,
        weight,
        ACCURACY,
        float(variation),
        quick,
        gauss_legendre(ACCURACY.nodes),
        rules,
        *sums,
    )
    return sums


def crude_means(samples: Host, weight: Weight, t: Host, v: Host) -> Host:
    """Approximate posterior means (n, 4) by Gauss-Hermite quadrature around the likeliest point near (t, v), each (n,)."""
    mean = np.empty((len(samples), 4))
    _crude(samples, weight, t, v, tuple(_hermite(count) for count in (1, 8, 10)), mean)
    return mean


@cache
def _hermite(count: int) -> tuple[Host, Host]:
    """Gauss-Hermite nodes, and logarithms of their weights divided by the Gaussian."""
    x, w = gauss_hermite(count)
    return x, np.log(math.sqrt(2 * math.pi) * w) + x * x / 2


_inline = njit(error_model="numpy", inline="always")
_function = njit(error_model="numpy")


@_inline
def _clipped(x, low, high):
    return min(max(x, low), high)


@_inline
def _logistic(u):
    return 1 / (1 + math.exp(_clipped(-u, -2 * _FAR, 2 * _FAR)))


@_inline
def _nonzero(s):
    return _TINY if abs(s) < _TINY else s


@_function
def _log_weight(w, sample, a, b, p, r):
    # and a_2, b_2 less their prior means, all in prior widths of the first layer and in units of the second
    c = w.skip
    inverse = 1 / _nonzero(p + r + (c - 1))
    a2 = sample.slope * inverse * inverse
    b2 = (sample.margin * inverse - ROOT2 * (2 * p + (c - 1)) * a2) * (1 / (1 + c))
    gap_a, gap_b = a2 - sample.a2, b2 - sample.b2
    rest_a, rest_b = gap_a - w.lift * a, gap_b - w.lift * b
    log_weight = (rest_a * rest_a + rest_b * rest_b) * (-0.5 / w.variance_2) - (
        a * a + b * b
    ) / 2
    # where a_2 is out of all bounds the weight vanishes, and 0 times infinity must be 0
    scale = 1 / math.sqrt(w.variance_2 + w.lift * w.lift)
    gap_a, gap_b = (
        _clipped(gap_a, -_HUGE, _HUGE) * scale,
        _clipped(gap_b, -_HUGE, _HUGE) * scale,
    )
    return max(log_weight + 3 * math.log(abs(inverse)), -_HUGE), gap_a, gap_b


@_inline
def _put(row, values):
    # what numba makes of ``row[:] = values`` has an error message, and takes two seconds longer to compile
    for k in range(len(row)):
        row[k] = values[k]


@_inline
def _add(sums, weight, values):
    # the weight, times each variable, times each pair
    sums[0] += weight
    k = 5
    for i in range(4):
        weighted = weight * values[i]
        sums[1 + i] += weighted
        for j in range(i, 4):
            sums[k] += weighted * values[j]
            k += 1


@_function
def _ridge(depth, v):
    # The t at which log((p + r) / (2 - p - r)) = depth: a quadratic equation for exp(-t). Solved for |depth|; the other sign
    # exchanges t and -t.
    growth = math.exp(_clipped(v / 2, -_FAR, _FAR))
    decay = math.exp(-abs(depth))
    minor, major = 2 * decay / (1 + decay), 2 / (1 + decay)
    bend = (1 - decay) / (1 + decay) * (growth + 1 / growth)
    t = math.log((bend + math.sqrt(bend * bend + 4 * minor * major)) / (2 * minor))
    return t if depth > 0 else -t


@_function
def _depth_of_ridge(t, v):
    t, half = _clipped(t, -_FAR, _FAR), _clipped(v / 2, -_FAR, _FAR)
    e, k = math.exp(-t), math.exp(half) + math.exp(-half)
    return math.log(2 + e * k) - math.log(k + 2 * e) + t


@_function
def _explaining(w, sample):
    # (t, v) at which the label would put a_2 and b_2 at their prior means, as nearly as p and r in (0, 1) allow
    c = w.skip
    a2 = 1e-30 if abs(sample.a2) < 1e-30 else sample.a2
    ratio = sample.slope / a2
    s = (
        math.sqrt(max(ratio, 1e-30)) if ratio > 0 else math.tanh(sample.t / 2) + c
    )  # what s would be at v = 0
    total = _clipped(s + (1 - c), 0.01, 1.99)
    s = _nonzero(total - (1 - c))
    p = ((sample.margin / s - (1 + c) * sample.b2) / (ROOT2 * a2) + (1 - c)) / 2
    low, high = max(total - 1, 0.0), min(total, 1.0)
    p = low + (high - low) * _clipped((p - low) / (high - low), 0.02, 0.98)
    logit_p, r = math.log(p / (1 - p)), total - p
    logit_r = math.log(r / (1 - r))
    return (logit_p + logit_r) / 2, logit_p - logit_r


@_function
def _normal_equations(w, sample, t, v):
    # -2 log-weight without the power of s, a sum of squares |f|^2 of four numbers, and J^T J and J^T f by t and v
    c, scale = w.skip, 1 / math.sqrt(w.variance_2)
    p, r = _logistic(t + v / 2), _logistic(t - v / 2)
    dp, dr = p * (1 - p), r * (1 - r)
    s = _nonzero(p + r + (c - 1))
    a2, k = sample.slope / (s * s), ROOT2 * (2 * p + (c - 1))
    a, b = (t - sample.t) / w.unit_t, (v - sample.v) / w.unit_v
    f = scale * (a2 - sample.a2 - w.lift * a)
    g = scale * ((sample.margin / s - k * a2) / (1 + c) - sample.b2 - w.lift * b)
    by_s = -2 * a2 / s
    g_by_s, g_by_p = (
        (-sample.margin / (s * s) - k * by_s) / (1 + c),
        -2 * ROOT2 * a2 / (1 + c),
    )
    f_t, f_v = (
        scale * (by_s * (dp + dr) - w.lift / w.unit_t),
        scale * by_s * ((dp - dr) / 2),
    )
    g_t = scale * (g_by_s * (dp + dr) + g_by_p * dp)
    g_v = scale * (g_by_s * ((dp - dr) / 2) + g_by_p * (dp / 2) - w.lift / w.unit_v)
    tt, tv, vv = (
        1 / w.unit_t**2 + f_t * f_t + g_t * g_t,
        f_t * f_v + g_t * g_v,
        1 / w.unit_v**2 + f_v * f_v + g_v * g_v,
    )
    pull_t, pull_v = a / w.unit_t + f_t * f + g_t * g, b / w.unit_v + f_v * f + g_v * g
    return a * a + b * b + f * f + g * g, tt, tv, vv, pull_t, pull_v


@_function
def _likeliest(w, sample, t, v):
    # Levenberg-Marquardt from (t, v): the cost at the point found, and the Gaussian with the curvature there, a little wider:
    # tails are rarely thinner
    damping = 1.0
    cost, tt, tv, vv, pull_t, pull_v = _normal_equations(w, sample, t, v)
    for _ in range(12):
        damped_t, damped_v = tt * (1 + damping), vv * (1 + damping)
        determinant = damped_t * damped_v - tv * tv
        new_t = t - _clipped((damped_v * pull_t - tv * pull_v) / determinant, -2.0, 2.0)
        new_v = v - _clipped((damped_t * pull_v - tv * pull_t) / determinant, -2.0, 2.0)
        trial = _normal_equations(w, sample, new_t, new_v)
        better = trial[0] < cost
        if better:
            t, v = new_t, new_v
            cost, tt, tv, vv, pull_t, pull_v = trial
        damping = _clipped(damping / 5 if better else damping * 5, 1e-12, 1e12)
    determinant = tt * vv - tv * tv
    return cost, _frame(
        t, v, 1.44 * vv / determinant, -1.44 * tv / determinant, 1.44 * tt / determinant
    )


@_function
def _frame(t, v, tt, tv, vv):
    # of a mean and a covariance
    root = math.sqrt(max(tt, _TINY))
    cross = tv / root
    return Frame(
        t, v, root, cross, math.sqrt(max(vv - cross * cross, 1e-12 * vv + _TINY))
    )


@_function
def _gaussian_rule(w, sample, frame, rule, sums):
    # Gauss-Hermite rule in the frame of a Gaussian: sums in units of exp(top), top, and the frame of the moments that it finds
    x, log_rule = rule
    count = len(x)
    values = np.empty((count * count, 5))
    top, k = -math.inf, 0
    for i in range(count):
        for j in range(count):
            t, v = (
                frame.t + frame.tt * x[i],
                frame.v + frame.vt * x[i] + frame.vv * x[j],
            )
            a, b = (t - sample.t) / w.unit_t, (v - sample.v) / w.unit_v
            log_weight, gap_a, gap_b = _log_weight(
                w, sample, a, b, _logistic(t + v / 2), _logistic(t - v / 2)
            )
            _put(
                values[k],
                (log_weight + (log_rule[i] + log_rule[j]), a, b, gap_a, gap_b),
            )
            top, k = max(top, values[k, 0]), k + 1
    sums[:] = 0.0
    for k in range(count * count):
        _add(sums, math.exp(values[k, 0] - top), values[k, 1:])
    a, b = sums[1] / sums[0], sums[2] / sums[0]
    tt, tv, vv = 0.0, 0.0, 0.0
    for k in range(count * count):
        share, off_a, off_b = (
            math.exp(values[k, 0] - top) / sums[0],
            values[k, 1] - a,
            values[k, 2] - b,
        )
        tt, tv, vv = (
            tt + share * off_a * off_a,
            tv + share * off_a * off_b,
            vv + share * off_b * off_b,
        )
    refined = _frame(
        sample.t + w.unit_t * a,
        sample.v + w.unit_v * b,
        w.unit_t**2 * tt,
        w.unit_t * w.unit_v * tv,
        w.unit_v**2 * vv,
    )
    # the weight is over (a, b), the frame over (t, v)
    return top + math.log(frame.tt * frame.vv / (w.unit_t * w.unit_v)), refined


@_function
def _nearly_gaussian(w, sample, peak, accuracy, rules, coarse_sums, fine_sums):
    # Whether two searches for the likeliest point agree and two orders of the rule too; ``fine_sums`` has the sums, in units of
    # exp(top). A label that the prior hardly allows is no case for these rules.
    cost, frame = _likeliest(w, sample, sample.t, sample.v)
    far = abs(frame.t - peak.t) >= 0.1 * frame.tt or abs(
        frame.v - peak.v
    ) >= 0.1 * math.hypot(frame.vt, frame.vv)
    if w.skip < 1:
        # a_2 does not tell s from -s: there may be a second peak on the other side of s = 0
        far = far or abs(sample.t - _ridge(w.crossing, sample.v)) <= accuracy.reach * (
            w.unit_t + w.unit_v / 2
        )
    if far or not cost < 40:
        return False, 0.0
    _, frame = _gaussian_rule(w, sample, frame, rules[0], coarse_sums)
    _, frame = _gaussian_rule(w, sample, frame, rules[1], coarse_sums)
    top, _ = _gaussian_rule(w, sample, frame, rules[2], fine_sums)
    gap = 0.0
    for k in range(1, 15):
        gap = max(
            gap, abs(fine_sums[k] / fine_sums[0] - coarse_sums[k] / coarse_sums[0])
        )
    return gap < accuracy.quick_tolerance, top


@compiled
def _crude(samples, w, t, v, rules, mean):
    sums = np.empty(15)
    for n in range(len(samples)):
        t0, v0, a2, b2, slope, margin = samples[n]
        sample = Sample(t0, v0, a2, b2, slope, margin, t0)
        _, frame = _likeliest(w, sample, t[n], v[n])
        _, better = _gaussian_rule(w, sample, frame, rules[1], sums)
        _gaussian_rule(w, sample, better, rules[2], sums)
        # a rule whose frame has slipped off the weight is worse than the likeliest point itself
        if np.max(np.abs(sums[1:5])) > 4 * sums[0]:
            _gaussian_rule(w, sample, frame, rules[0], sums)
        for k in range(4):
            mean[n, k] = _clipped(sums[1 + k] / sums[0], -4.0, 4.0)


@_function
def _level(q, size, target, slack, w):
    # upper bound of the part of the log-weight that 1 / s^2 = q decides
    gap = max(abs(size * q - target) - slack, 0.0)
    return 1.5 * math.log(q) - gap * gap / (2 * w.variance_2)


@_function
def _swing(low, high, best, threshold, size, target, slack, w):
    # Variation of ``_level`` above ``threshold`` while s goes from low to high; it has one maximum, at ``best``. It is computed
    # and not probed, because where s changes its sign the weight vanishes on a curve between two maxima.
    smallest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    q_low, q_high = (
        1 / max(abs(low), abs(high), _TINY) ** 2,
        1 / max(smallest, _TINY) ** 2,
    )
    highest = _level(_clipped(best, q_low, q_high), size, target, slack, w)
    lowest = min(
        _level(q_low, size, target, slack, w), _level(q_high, size, target, slack, w)
    )
    return max(highest - max(lowest, threshold), 0.0)


@_function
def _product(low, high, factor_low, factor_high):
    # range of the product of two numbers of given ranges
    low_low, low_high, high_low, high_high = (
        low * factor_low,
        low * factor_high,
        high * factor_low,
        high * factor_high,
    )
    return min(low_low, low_high, high_low, high_high), max(
        low_low, low_high, high_low, high_high
    )


@_function
def _upper_bound(w, sample, cell, threshold):
    # Upper bound of the log-weight in a cell, and how much a_2 makes it vary there along either axis. The bound holds where the
    # log-weight exceeds ``threshold``, and what is below counts as equally small. In a cell p and r are monotone in both
    # coordinates; s rises with the first and, along the second, has its extremes at the ends or where v is nearest to 0. The
    # label fixes a_2 as a multiple of 1 / s^2, and the weight is unimodal in that number; the range of s that is left, with
    # that of p, bounds b_2.
    c = w.skip
    low_y, high_y, low_b, high_b = (
        cell[0] - cell[2],
        cell[0] + cell[2],
        cell[1] - cell[3],
        cell[1] + cell[3],
    )
    start, end = sample.v + w.unit_v * low_b, sample.v + w.unit_v * high_b
    nearest = 0.0 if start < 0 < end else (start if start >= 0 else end)
    t_low, s_low, lowest_ceiling = math.inf, math.inf, math.inf
    t_high, s_high, highest_floor = -math.inf, -math.inf, -math.inf
    p_low, p_high, r_low, r_high = 0.0, 0.0, 0.0, 0.0
    floors, ceilings = np.empty(3), np.empty(3)
    for k, v in enumerate((start, end, nearest)):
        bend = _ridge(sample.ridge, v)
        low, high = w.unit_t * low_y + bend, w.unit_t * high_y + bend
        t_low, t_high = min(t_low, low), max(t_high, high)
        p_below, r_below = _logistic(low + v / 2), _logistic(low - v / 2)
        p_above, r_above = _logistic(high + v / 2), _logistic(high - v / 2)
        if k == 0:
            p_low, r_high = p_below, r_above
        elif k == 1:
            r_low, p_high = r_below, p_above
        floors[k], ceilings[k] = (
            p_below + r_below + (c - 1),
            p_above + r_above + (c - 1),
        )
        s_low, highest_floor = min(s_low, floors[k]), max(highest_floor, floors[k])
        s_high, lowest_ceiling = (
            max(s_high, ceilings[k]),
            min(lowest_ceiling, ceilings[k]),
        )
    far_a = max(max(t_low - sample.t, sample.t - t_high), 0.0) / w.unit_t
    far_b = max(low_b, -high_b, 0.0)
    prior = -(far_a * far_a + far_b * far_b) / 2
    crossing, negative = s_low < 0 < s_high, s_high <= 0
    largest = max(abs(s_low), abs(s_high))
    smallest = 0.0 if crossing else min(abs(s_low), abs(s_high))
    q_low, q_high = 1 / max(largest, _TINY) ** 2, 1 / max(smallest, _TINY) ** 2
    size, sign = max(abs(sample.slope), _TINY), -1.0 if sample.slope < 0 else 1.0
    slack = abs(w.lift) * max((t_high - t_low) / (2 * w.unit_t), cell[3])
    target = sign * (sample.a2 + w.lift * ((t_low + t_high) / 2 - sample.t) / w.unit_t)
    best = (target + slack + math.sqrt((target + slack) ** 2 + 6 * w.variance_2)) / (
        2 * size
    )
    level = _level(_clipped(best, q_low, q_high), size, target, slack, w)
    across = 0.0
    for k in range(3):
        across = max(
            across,
            _swing(
                floors[k], ceilings[k], best, threshold - prior, size, target, slack, w
            ),
        )
    along = max(
        _swing(s_low, highest_floor, best, threshold - prior, size, target, slack, w),
        _swing(lowest_ceiling, s_high, best, threshold - prior, size, target, slack, w),
    )
    # how far a_2 may be off without putting the weight below the least by itself
    room = slack + math.sqrt(
        2 * w.variance_2 * max(prior + 1.5 * math.log(q_high) - threshold, 0.0)
    )
    q_high = max(min(q_high, (target + room) / size), q_low)
    q_low = min(max(q_low, (target - room) / size), q_high)
    fast, slow = math.sqrt(q_high), math.sqrt(q_low)
    inverse_low = -fast if crossing or negative else slow
    inverse_high = -slow if negative else fast
    # p = s - r + 1 - c narrows p, where s is known better than t
    if not crossing:
        s_low, s_high = 1 / inverse_high, 1 / inverse_low
    p_low, p_high = (
        max(p_low, s_low + (1 - c) - r_high),
        min(p_high, s_high + (1 - c) - r_low),
    )
    margin_low, margin_high = _product(
        inverse_low, inverse_high, sample.margin, sample.margin
    )
    slope_low, slope_high = _product(q_low, q_high, sample.slope, sample.slope)
    k_low, k_high = (
        ROOT2 * (2 * p_low + (c - 1)),
        ROOT2 * (2 * max(p_low, p_high) + (c - 1)),
    )
    slope_low, slope_high = _product(slope_low, slope_high, k_low, k_high)
    aim = (1 + c) * (sample.b2 + w.lift * cell[1])
    miss = max(
        max(margin_low - slope_high - aim, aim - margin_high + slope_low) / (1 + c)
        - slack,
        0.0,
    )
    return prior + level - miss * miss / (2 * w.variance_2), across, along


@_function
def _in_cell(w, sample, cell, x, values):
    # log-weight and the four variables of ``Sums`` (k, k, 5) at the product of k points x in [-1, 1]
    count = len(x)
    for j in range(count):
        b = cell[1] + cell[3] * x[j]
        v = sample.v + w.unit_v * b
        bend = _ridge(sample.ridge, v)
        odds_p, odds_r = (
            math.exp(_clipped(-bend - v / 2, -_FAR, _FAR)),
            math.exp(_clipped(-bend + v / 2, -_FAR, _FAR)),
        )
        for i in range(count):
            y = cell[0] + cell[2] * x[i]
            decay = math.exp(_clipped(-w.unit_t * y, -_FAR, _FAR))
            a = y + (bend - sample.t) / w.unit_t
            log_weight, gap_a, gap_b = _log_weight(
                w, sample, a, b, 1 / (1 + decay * odds_p), 1 / (1 + decay * odds_r)
            )
            _put(values[i, j], (log_weight, a, b, gap_a, gap_b))


@_function
def _root_cells(w, sample, accuracy, cells):
    # cells that cover the prior; their number
    reach, count = accuracy.reach, accuracy.root_cells
    start, end = sample.v - reach * w.unit_v, sample.v + reach * w.unit_v
    nearest = 0.0 if start < 0 < end else (start if start >= 0 else end)
    bend_start, bend_end, bend_nearest = (
        _ridge(sample.ridge, start),
        _ridge(sample.ridge, end),
        _ridge(sample.ridge, nearest),
    )
    low = (sample.t - max(bend_start, bend_end, bend_nearest)) / w.unit_t - reach
    high = (sample.t - min(bend_start, bend_end, bend_nearest)) / w.unit_t + reach
    for i in range(count):
        for j in range(count):
            x, y = (i + 0.5) * (2 / count) - 1, (j + 0.5) * (2 / count) - 1
            half = (high - low) / 2
            _put(
                cells[i * count + j],
                ((high + low) / 2 + half * x, reach * y, half / count, reach / count),
            )
    return count * count


@_function
def _adaptive(w, sample, accuracy, variation, rule, work, sums):
    # Sums over cells in which the log-weight varies by no more than ``variation`` along either axis, in units of exp(top); top,
    # and whether it was given up. All cells of one depth are looked at before any is halved.
    x, mass = rule
    cells, halves, bounds, probes, values, probe = work
    count = _root_cells(w, sample, accuracy, cells)
    top, unfinished = -math.inf, False
    sums[:] = 0.0
    for depth in range(80):  # a cell of relative size 2^-40 holds nothing
        log_sum = top + math.log(max(sums[0], _TINY))
        active = 0
        for k in range(count):
            # no more than exp(-negligible) of what has been found, or of a peak a sixteenth as wide as a cell
            area = math.log(4 * cells[k, 2] * cells[k, 3])
            threshold = max(log_sum - area, top - math.log(256.0)) - accuracy.negligible
            bound, across, along = _upper_bound(w, sample, cells[k], threshold)
            if bound > threshold:
                _put(cells[active], cells[k])
                _put(bounds[active], (bound, across, along, area, -math.inf))
                active += 1
        if active == 0:
            break
        top_probed = top
        for k in range(active):
            _in_cell(w, sample, cells[k], probe, probes)
            for i in range(4):
                low_a, high_a, low_b, high_b = math.inf, -math.inf, math.inf, -math.inf
                for j in range(4):
                    low_a, high_a = (
                        min(low_a, probes[j, i, 0]),
                        max(high_a, probes[j, i, 0]),
                    )
                    low_b, high_b = (
                        min(low_b, probes[i, j, 0]),
                        max(high_b, probes[i, j, 0]),
                    )
                bounds[k, 1], bounds[k, 2] = (
                    max(bounds[k, 1], high_a - low_a),
                    max(bounds[k, 2], high_b - low_b),
                )
                bounds[k, 4] = max(bounds[k, 4], high_a)
            top_probed = max(top_probed, bounds[k, 4])
        top = _raised(top, top_probed, sums)
        log_sum = top + math.log(max(sums[0], _TINY))
        crowded = active > accuracy.crowd
        unfinished = unfinished or crowded
        count = 0
        for k in range(active):
            cell, (bound, across, along, area, highest) = cells[k], bounds[k]
            # what may be in the cell decides how well it must be known, not what a few probes have seen
            short = _clipped(log_sum - bound - area, 0.0, accuracy.negligible)
            limit = variation * (1 + accuracy.allowance * short)
            widest = max(across, along)
            # a peak between the probes does not show in their variation, but in what the bound allows
            hidden = bound - highest - accuracy.looseness > max(
                limit, accuracy.variation
            )
            if (widest > limit or hidden) and not crowded and depth < 79:
                # halved along the axis of the larger variation, or along the longer one where none is seen
                axis = (
                    0
                    if (across >= along if widest > limit else cell[2] >= cell[3])
                    else 1
                )
                for side in (-0.5, 0.5):
                    _put(halves[count], cell)
                    halves[count, axis] += side * cell[2 + axis]
                    halves[count, 2 + axis] /= 2
                    count += 1
                continue
            _in_cell(w, sample, cell, x, values)
            best = top
            for i in range(len(x)):
                for j in range(len(x)):
                    best = max(best, values[i, j, 0])
            top = _raised(top, best, sums)
            for i in range(len(x)):
                for j in range(len(x)):
                    share = (
                        math.exp(values[i, j, 0] - top)
                        * (cell[2] * cell[3])
                        * (mass[i] * mass[j])
                    )
                    _add(sums, share, values[i, j, 1:])
        if count == 0:
            break
        cells, halves = halves, cells
    return top, unfinished


@_function
def _raised(top, peak, sums):
    # the largest log-weight met so far, with the sums in units of its exponential
    if peak > top > -math.inf:
        sums *= math.exp(top - peak)
    return max(top, peak)


@compiled
def _integrate(
    samples, w, accuracy, variation, quick, rule, rules,
    log_weight, mean, square, unreliable,
):  # fmt: skip
    sums, spare_sums = np.empty(15), np.empty(15)
    capacity, nodes = 2 * accuracy.crowd, accuracy.nodes
    cells = np.empty((capacity, 4)), np.empty((capacity, 4)), np.empty((capacity, 5))
    work = (
        *cells,
        np.empty((4, 4, 5)),
        np.empty((nodes, nodes, 5)),
        np.array([-1.0, -0.4, 0.4, 1.0]),
    )
    constant = math.log((2 * math.pi) ** 2 * w.variance_2 * ROOT8 * (1 + w.skip))
    # where s may vanish the weight is narrow on either side, and smooth along that line
    aligned = not (w.skip < 1 or w.variance_2 > 0.1 * w.variance_1)
    for n in range(len(samples)):
        t, v, a2, b2, slope, margin = samples[n]
        sample = Sample(t, v, a2, b2, slope, margin, w.crossing)
        accepted, top = False, 0.0
        if aligned or quick:
            start = _explaining(w, sample)
            _, peak = _likeliest(w, sample, start[0], start[1])
            if quick:
                accepted, top = _nearly_gaussian(
                    w, sample, peak, accuracy, rules, spare_sums, sums
                )
            if aligned:
                sample = Sample(
                    t, v, a2, b2, slope, margin, _depth_of_ridge(peak.t, peak.v)
                )
        if not accepted:
            top, unfinished = _adaptive(
                w, sample, accuracy, variation, rule, work, sums
            )
            # a mean so near the edge of the square counts as not integrated
            edge = (accuracy.reach - 1.5) * sums[0]
            unreliable[n] = (
                1.0 if unfinished or max(abs(sums[1]), abs(sums[2])) > edge else 0.0
            )
        log_weight[n] = top + math.log(sums[0]) - constant
        k = 5
        for i in range(4):
            mean[n, i] = sums[1 + i] / sums[0]
            for j in range(i, 4):
                square[n, i, j] = square[n, j, i] = sums[k] / sums[0]
                k += 1
