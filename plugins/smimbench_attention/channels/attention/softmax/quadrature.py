"""Integrals over the first layer's latents in two-layer attention, one sample at a time, compiled for the host.

The plane of (a_1, b_1) is cut into rectangular cells, which are halved until the logarithm of the weight hardly varies in each,
and dropped when an upper bound says that nothing is there. Where most weights are nearly Gaussian, Gauss-Hermite rules in the
frame of their own moments are tried first, and for posteriors trapezoidal rules for all of the plane at once, which converge
exponentially because the weight has decayed at its ends. The rest of what is compiled is ``points``: Numba keeps machine code
until the file of the outermost function, this one, changes.
"""

from __future__ import annotations

import math

import numpy as np

from smimbench_attention.channels.attention.softmax.points import (
    DECAY_P,
    DECAY_R,
    LARGEST_LOG,
    LOG_WEIGHT,
    TINY,
    WEIGHT,
    A,
    B,
    add_points,
    clipped,
    compiled_function,
    exponentiate,
    highest_log_weight,
    inlined,
    largest_difference,
    nonzero,
    raise_unit,
    weigh_points,
)
from smimbench_attention.channels.attention.softmax.weight import (
    ROOT2,
    ROOT8,
    Frame,
    Sample,
)
from smimbench_attention.channels.compiling import bounded_log, compiled, exp


@inlined
def _logistic(u):
    """Logistic function ``1 / (1 + exp(-u))``, without overflow."""
    return 1 / (1 + math.exp(clipped(-u, -2 * LARGEST_LOG, 2 * LARGEST_LOG)))


@inlined
def _bounded_exp(x):
    """Exponential of x, clipped to where products and quotients of two are finite."""
    return exp(clipped(x, -LARGEST_LOG, LARGEST_LOG))


@inlined
def _write(row, values):
    """Copy ``values`` into a row of an array, entry by entry, because Numba takes two seconds more to compile ``row[:] =
    values``.
    """
    for index in range(len(row)):
        row[index] = values[index]


@compiled_function
def _curve_t(log_odds, v):
    """Mean logit t of p and r, the diagonal entries of the first layer's attention matrix, where their logits differ by v and
    ``log((p + r) / (2 - p - r)) = log_odds``: with x = e^t the positive root of ``c_2 x^2 - c_1 x - c_0 = 0``, for
    ``|log_odds|``; the other sign exchanges t and -t. ``odds`` is exp(-|log_odds|).
    """
    if log_odds == 0:  # the line t = 0
        return 0.0
    exp_half_v = _bounded_exp(v / 2)
    odds = math.exp(-abs(log_odds))
    c_2, c_0 = 2 * odds / (1 + odds), 2 / (1 + odds)
    c_1 = (1 - odds) / (1 + odds) * (exp_half_v + 1 / exp_half_v)
    t = math.log((c_1 + math.sqrt(c_1 * c_1 + 4 * c_2 * c_0)) / (2 * c_2))
    return t if log_odds > 0 else -t


@compiled_function
def _curve_log_odds(t, v):
    """Log-odds ``log((p + r) / (2 - p - r))`` of the curve of constant p + r at mean logit t and difference of logits v."""
    t = clipped(t, -LARGEST_LOG, LARGEST_LOG)
    half_v = clipped(v / 2, -LARGEST_LOG, LARGEST_LOG)
    exp_t, two_cosh = math.exp(-t), math.exp(half_v) + math.exp(-half_v)
    return math.log(2 + exp_t * two_cosh) - math.log(two_cosh + 2 * exp_t) + t


@compiled_function
def _prior_mean_point(prior, sample):
    """Mean t and difference v of the logits of p and r, the diagonal entries of the first layer's attention, where the label of
    ``sample`` puts a_2, b_2 nearest to their prior means; ``s = p + r + c - 1`` with the skip strength c, and ``prior`` is a
    ``Weight``.
    """
    c = prior.skip
    a2 = 1e-30 if abs(sample.a2) < 1e-30 else sample.a2
    squared_s = sample.slope / a2
    # at negative squared_s, what s would be at v = 0
    s = (
        math.sqrt(max(squared_s, 1e-30))
        if squared_s > 0
        else math.tanh(sample.t / 2) + c
    )
    p_plus_r = clipped(s + (1 - c), 0.01, 1.99)
    s = nonzero(p_plus_r - (1 - c))
    p = ((sample.margin / s - (1 + c) * sample.b2) / (ROOT2 * a2) + (1 - c)) / 2
    p_min, p_max = max(p_plus_r - 1, 0.0), min(p_plus_r, 1.0)
    p = p_min + (p_max - p_min) * clipped((p - p_min) / (p_max - p_min), 0.02, 0.98)
    logit_p, r = math.log(p / (1 - p)), p_plus_r - p
    logit_r = math.log(r / (1 - r))
    return (logit_p + logit_r) / 2, logit_p - logit_r


@compiled_function
def _normal_equations(prior, sample, t, v):
    """Cost |f|^2 = -2 log-weight (without the power of s), J^T J (tt, tv, vv), J^T f at mean t and difference v of the logits of
    p and r, the diagonal entries of the first layer's attention matrix: f has the entries a, b (a_1, b_1 less prior means, in
    prior deviations) and the residuals f_a, f_b of a_2, b_2 (less their means given a, b, in deviations), J its derivatives;
    ``f_a_by_t`` is d f_a / d t, and so on. ``prior`` is a ``Weight``, s = p + r + c - 1 with the skip strength c.
    """
    c, root_precision = prior.skip, 1 / math.sqrt(prior.variance_2)
    p, r = _logistic(t + v / 2), _logistic(t - v / 2)
    p_slope, r_slope = p * (1 - p), r * (1 - r)
    s = nonzero(p + r + (c - 1))
    a2, b_coefficient = sample.slope / (s * s), ROOT2 * (2 * p + (c - 1))
    a, b = (t - sample.t) / prior.unit_t, (v - sample.v) / prior.unit_v
    f_a = root_precision * (a2 - sample.a2 - prior.lift * a)
    f_b = root_precision * (
        (sample.margin / s - b_coefficient * a2) / (1 + c) - sample.b2 - prior.lift * b
    )
    a2_by_s = -2 * a2 / s
    b2_by_s = (-sample.margin / (s * s) - b_coefficient * a2_by_s) / (1 + c)
    b2_by_p = -2 * ROOT2 * a2 / (1 + c)
    s_by_t, s_by_v = p_slope + r_slope, (p_slope - r_slope) / 2
    f_a_by_t = root_precision * (a2_by_s * s_by_t - prior.lift / prior.unit_t)
    f_a_by_v = root_precision * a2_by_s * s_by_v
    f_b_by_t = root_precision * (b2_by_s * s_by_t + b2_by_p * p_slope)
    f_b_by_v = root_precision * (
        b2_by_s * s_by_v + b2_by_p * (p_slope / 2) - prior.lift / prior.unit_v
    )
    tt = 1 / prior.unit_t**2 + f_a_by_t * f_a_by_t + f_b_by_t * f_b_by_t
    tv = f_a_by_t * f_a_by_v + f_b_by_t * f_b_by_v
    vv = 1 / prior.unit_v**2 + f_a_by_v * f_a_by_v + f_b_by_v * f_b_by_v
    gradient_t = a / prior.unit_t + f_a_by_t * f_a + f_b_by_t * f_b
    gradient_v = b / prior.unit_v + f_a_by_v * f_a + f_b_by_v * f_b
    cost = a * a + b * b + f_a * f_a + f_b * f_b
    return cost, tt, tv, vv, gradient_t, gradient_v


@compiled_function
def _minimize_cost(prior, sample, t, v):
    """Minimize the cost -2 log-weight of ``sample`` over mean t, difference v of the logits of p and r, the diagonal entries of
    the first layer's attention matrix, by Levenberg-Marquardt steps (J^T J: tt, tv, vv; J^T f: g_t, g_v); return it and a
    Gaussian ``Frame`` (center, root of the covariance) of its curvature, a little wider, as tails are rarely thinner. ``prior``
    is a ``Weight``.
    """
    damping = 1.0
    cost, tt, tv, vv, g_t, g_v = _normal_equations(prior, sample, t, v)
    for _ in range(12):
        damped_tt, damped_vv = tt * (1 + damping), vv * (1 + damping)
        determinant = damped_tt * damped_vv - tv * tv
        new_t = t - clipped((damped_vv * g_t - tv * g_v) / determinant, -2.0, 2.0)
        new_v = v - clipped((damped_tt * g_v - tv * g_t) / determinant, -2.0, 2.0)
        trial_equations = _normal_equations(prior, sample, new_t, new_v)
        is_improved = trial_equations[0] < cost
        if is_improved:
            t, v = new_t, new_v
            cost, tt, tv, vv, g_t, g_v = trial_equations
        damping = clipped(damping / 5 if is_improved else damping * 5, 1e-12, 1e12)
    determinant = tt * vv - tv * tv
    return cost, _gaussian_frame(
        t, v, 1.44 * vv / determinant, -1.44 * tv / determinant, 1.44 * tt / determinant
    )


@compiled_function
def _gaussian_frame(t, v, tt, tv, vv):
    """Gaussian ``Frame`` with mean (t, v) and covariance (tt, tv, vv): its fields are the mean and the lower-triangular root of
    the covariance.
    """
    deviation_t = math.sqrt(max(tt, TINY))
    root_vt = tv / deviation_t
    root_vv = math.sqrt(max(vv - root_vt * root_vt, 1e-12 * vv + TINY))
    return Frame(t, v, deviation_t, root_vt, root_vv)


@compiled_function
def _integrate_gaussian(prior, sample, frame, rule, points, sums):
    """Integrate the posterior weight of ``sample`` by a Gauss-Hermite ``rule`` in the coordinates of a Gaussian ``frame``
    (center, root of the covariance) of (t, v), mean and difference of the logits of p and r (the diagonal entries of the first
    layer's attention matrix), into ``sums``; return the logarithm of their unit, and a new frame, from the means and
    (co)variances tt, tv, vv found for a, b, which are (a_1, b_1) less their prior means, in prior widths. i and j count nodes
    along the axes, k points, whose table is ``points``, ``prior`` is a ``Weight``.
    """
    nodes, node_weights = rule
    node_count = len(nodes)
    for j in range(node_count):
        points[WEIGHT, j] = _bounded_exp(-frame.vv * nodes[j] / 2)
    for i in range(node_count):
        t = frame.t + frame.tt * nodes[i]
        row_v = frame.v + frame.vt * nodes[i]
        decay_p, decay_r = _bounded_exp(-t - row_v / 2), _bounded_exp(-t + row_v / 2)
        for j in range(node_count):
            k = i * node_count + j
            v = row_v + frame.vv * nodes[j]
            points[A, k] = (t - sample.t) / prior.unit_t
            points[B, k] = (v - sample.v) / prior.unit_v
            points[DECAY_P, k] = decay_p * points[WEIGHT, j]
            points[DECAY_R, k] = decay_r / points[WEIGHT, j]
    count = node_count * node_count
    weigh_points(prior, sample, count, points)
    log_unit = highest_log_weight(count, points)
    exponentiate(log_unit, 1.0, node_weights, node_weights, points)
    sums[:] = 0.0
    add_points(count, points, sums)
    a, b = sums[1] / sums[0], sums[2] / sums[0]
    refined_frame = _gaussian_frame(
        sample.t + prior.unit_t * a,
        sample.v + prior.unit_v * b,
        prior.unit_t**2 * (sums[5] / sums[0] - a * a),
        prior.unit_t * prior.unit_v * (sums[6] / sums[0] - a * b),
        prior.unit_v**2 * (sums[9] / sums[0] - b * b),
    )
    # the weight is over (a, b), the frame over (t, v)
    log_unit += math.log(frame.tt * frame.vv / (prior.unit_t * prior.unit_v))
    return log_unit, refined_frame


@compiled_function
def _nearly_gaussian(
    prior, sample, peak, accuracy, rules, points, coarse_sums, fine_sums
):
    """Whether the weight of ``sample`` is nearly Gaussian around ``peak``, a Gaussian frame (center t, v and root tt, vt, vv of
    the covariance) at its likeliest point, and the logarithm of the unit of ``fine_sums``, its integrals by the last of three
    Gauss-Hermite ``rules`` (``coarse_sums``: by the one before). It is if another search for the likeliest point agrees, two
    orders of the rule agree, and the prior allows the label. ``prior`` is a ``Weight``, ``accuracy`` has the settings, ``points``
    is a table for points.
    """
    least_cost, frame = _minimize_cost(prior, sample, sample.t, sample.v)
    is_unsuitable = abs(frame.t - peak.t) >= 0.1 * frame.tt or abs(
        frame.v - peak.v
    ) >= 0.1 * math.hypot(frame.vt, frame.vv)
    if prior.skip < 1:
        # a_2 does not tell s from -s: there may be a second peak on the other side of s = 0
        is_unsuitable = is_unsuitable or abs(
            sample.t - _curve_t(prior.crossing, sample.v)
        ) <= accuracy.half_width * (prior.unit_t + prior.unit_v / 2)
    if is_unsuitable or not least_cost < 40:
        return False, 0.0
    _, frame = _integrate_gaussian(prior, sample, frame, rules[0], points, coarse_sums)
    _, frame = _integrate_gaussian(prior, sample, frame, rules[1], points, coarse_sums)
    log_unit, _ = _integrate_gaussian(prior, sample, frame, rules[2], points, fine_sums)
    difference = largest_difference(fine_sums, coarse_sums)
    return difference < accuracy.rule_tolerance, log_unit


@compiled
def write_crude_means(samples, prior, start_t, start_v, rules, means):
    """Write to ``means`` (n, 4) posterior means of ``samples`` by Gauss-Hermite ``rules`` near (start_t, start_v), (n,), mean and
    difference of the logits of p and r, the diagonal entries of the first layer's attention matrix; ``prior`` is a ``Weight``,
    and the six numbers of a sample are the fields of ``Sample``: prior means of t, v, a_2 and b_2, then what the label says.
    """
    sums, points = np.empty(15), np.empty((8, len(rules[2][0]) ** 2))
    for index in range(len(samples)):
        prior_t, prior_v, a2, b2, slope, margin = samples[index]
        sample = Sample(prior_t, prior_v, a2, b2, slope, margin, prior_t)
        _, frame = _minimize_cost(prior, sample, start_t[index], start_v[index])
        _, refined_frame = _integrate_gaussian(
            prior, sample, frame, rules[1], points, sums
        )
        _integrate_gaussian(prior, sample, refined_frame, rules[2], points, sums)
        # a rule whose frame has slipped off the weight is worse than the likeliest point itself
        if np.max(np.abs(sums[1:5])) > 4 * sums[0]:
            _integrate_gaussian(prior, sample, frame, rules[0], points, sums)
        for variable in range(4):
            means[index, variable] = clipped(sums[1 + variable] / sums[0], -4.0, 4.0)


@compiled_function
def _q_log_weight(q, slope_size, target_a2, slack, prior):
    """Upper bound of the part of the log-weight that depends on ``q = 1 / s^2``, when a_2 = slope_size q need only come within
    ``slack`` of its mean ``target_a2``; ``prior`` has its variance. s = p + r + c - 1, with p and r the diagonal entries of the
    first layer's attention matrix and c the skip strength.
    """
    excess_a2 = max(abs(slope_size * q - target_a2) - slack, 0.0)
    return 1.5 * bounded_log(q) - excess_a2 * excess_a2 / (2 * prior.variance_2)


@compiled_function
def _q_range(s_low, s_high, level_low, level_high, best_q, best_level):
    """Smallest and largest value of ``_q_log_weight`` at ``q = 1 / s^2`` for s from s_low to s_high, where it is ``level_low``
    and ``level_high``. s is p + r + c - 1, with p and r the diagonal entries of the first layer's attention matrix and c the skip
    strength. As a function of q, ``_q_log_weight`` rises up to ``best_q``, where it is ``best_level``, and falls beyond.

    The range is computed and not probed, because where s changes its sign the weight vanishes on a curve between two maxima.
    """
    crosses_0 = s_low <= 0 <= s_high
    largest_square = max(s_low * s_low, s_high * s_high)
    least_square = 0.0 if crosses_0 else min(s_low * s_low, s_high * s_high)
    has_best = best_q * largest_square > 1 and best_q * least_square < 1
    highest = best_level if has_best else max(level_low, level_high)
    return -math.inf if crosses_0 else min(level_low, level_high), highest


@compiled_function
def _product_range(low, high, factor_low, factor_high):
    """Range (lowest, highest) of the product of a number in ``[low, high]`` and one in ``[factor_low, factor_high]``."""
    low_low = low * factor_low
    low_high = low * factor_high
    high_low = high * factor_low
    high_high = high * factor_high
    lowest_product = min(low_low, low_high, high_low, high_high)
    return lowest_product, max(low_low, low_high, high_low, high_high)


@compiled_function
def _upper_bound(prior, sample, cell, threshold, s_values, levels):
    """Upper bound of the log-weight of ``sample`` in a ``cell`` (y, b), y being t, the mean logit of p and r (the diagonal
    entries of the first layer's attention matrix), less its value on the ridge (the curve along which the weight is long); and by
    how much the bound, where it exceeds ``threshold``, varies with a_2 along either axis. Names in low, high, lower, upper are
    bounds over the cell: p and r are monotone in both coordinates; s = p + r + c - 1, with the skip strength c, rises with y and,
    along b, has its extremes at the ends or where v, the difference of the logits, is nearest to 0. The label fixes a_2 as a
    multiple of q = 1 / s^2, in which the weight has a single maximum; the range of s that is left, with that of p, bounds b_2.
    ``prior`` is a ``Weight``; ``s_values`` and ``levels`` (2, 3) are work arrays for s and its log-weight at either end of y, for
    three v.
    """
    c = prior.skip
    y_low = cell[0] - cell[2]
    y_high = cell[0] + cell[2]
    b_low = cell[1] - cell[3]
    b_high = cell[1] + cell[3]
    v_low, v_high = sample.v + prior.unit_v * b_low, sample.v + prior.unit_v * b_high
    v_nearest_0 = clipped(0.0, v_low, v_high)
    t_low, s_low, t_high, s_high = math.inf, math.inf, -math.inf, -math.inf
    p_low, p_high, r_low, r_high = 0.0, 0.0, 0.0, 0.0
    decay_lower = _bounded_exp(-prior.unit_t * y_low)
    decay_upper = _bounded_exp(-prior.unit_t * y_high)
    for v_case, v in enumerate((v_low, v_high, v_nearest_0)):
        t_of_curve = _curve_t(sample.ridge, v)
        t_low = min(t_low, prior.unit_t * y_low + t_of_curve)
        t_high = max(t_high, prior.unit_t * y_high + t_of_curve)
        odds_p = _bounded_exp(-t_of_curve - v / 2)
        odds_r = _bounded_exp(-t_of_curve + v / 2)
        p_lower, r_lower = (
            1 / (1 + decay_lower * odds_p),
            1 / (1 + decay_lower * odds_r),
        )
        p_upper, r_upper = (
            1 / (1 + decay_upper * odds_p),
            1 / (1 + decay_upper * odds_r),
        )
        if v_case == 0:
            p_low, r_high = p_lower, r_upper
        elif v_case == 1:
            r_low, p_high = r_lower, p_upper
        s_values[0, v_case] = p_lower + r_lower + (c - 1)
        s_values[1, v_case] = p_upper + r_upper + (c - 1)
        s_low = min(s_low, s_values[0, v_case])
        s_high = max(s_high, s_values[1, v_case])
    distance_a = max(t_low - sample.t, sample.t - t_high, 0.0) / prior.unit_t
    distance_b = max(b_low, -b_high, 0.0)
    prior_bound = -(distance_a * distance_a + distance_b * distance_b) / 2
    has_zero_s, is_negative_s = s_low < 0 < s_high, s_high <= 0
    s_size_max = max(abs(s_low), abs(s_high))
    s_size_min = 0.0 if has_zero_s else min(abs(s_low), abs(s_high))
    q_low, q_high = 1 / max(s_size_max, TINY) ** 2, 1 / max(s_size_min, TINY) ** 2
    slope_size = max(abs(sample.slope), TINY)
    slack = abs(prior.lift) * max((t_high - t_low) / (2 * prior.unit_t), cell[3])
    target_a2 = math.copysign(1.0, sample.slope) * (
        sample.a2 + prior.lift * ((t_low + t_high) / 2 - sample.t) / prior.unit_t
    )
    best_q = (
        target_a2 + slack + math.sqrt((target_a2 + slack) ** 2 + 6 * prior.variance_2)
    ) / (2 * slope_size)
    best_level = _q_log_weight(best_q, slope_size, target_a2, slack, prior)
    for side in range(2):
        for v_case in range(3):
            levels[side, v_case] = _q_log_weight(
                1 / max(abs(s_values[side, v_case]), TINY) ** 2,
                slope_size,
                target_a2,
                slack,
                prior,
            )
    least_level = threshold - prior_bound
    variation_y, variation_b, ends_level = 0.0, 0.0, -math.inf
    for v_case in range(3):
        lowest, highest = _q_range(
            s_values[0, v_case],
            s_values[1, v_case],
            levels[0, v_case],
            levels[1, v_case],
            best_q,
            best_level,
        )
        variation_y = max(variation_y, highest - max(lowest, least_level))
    for side in range(2):
        i, j = np.argmin(s_values[side]), np.argmax(s_values[side])
        lowest, highest = _q_range(
            s_values[side, i],
            s_values[side, j],
            levels[side, i],
            levels[side, j],
            best_q,
            best_level,
        )
        variation_b = max(variation_b, highest - max(lowest, least_level))
        ends_level = max(ends_level, levels[side, i if side == 0 else j])
    _, q_bound = _q_range(s_low, s_high, ends_level, ends_level, best_q, best_level)
    # how far a_2 may be off without putting the weight below the least by itself
    allowed_a2 = slack + math.sqrt(
        2
        * prior.variance_2
        * max(prior_bound + 1.5 * math.log(q_high) - threshold, 0.0)
    )
    q_high = max(min(q_high, (target_a2 + allowed_a2) / slope_size), q_low)
    q_low = min(max(q_low, (target_a2 - allowed_a2) / slope_size), q_high)
    inverse_s_max, inverse_s_min = math.sqrt(q_high), math.sqrt(q_low)
    inverse_s_low = -inverse_s_max if has_zero_s or is_negative_s else inverse_s_min
    inverse_s_high = -inverse_s_min if is_negative_s else inverse_s_max
    # p = s - r + 1 - c narrows p, where s is known better than t
    if not has_zero_s:
        s_low, s_high = 1 / inverse_s_high, 1 / inverse_s_low
    p_low = max(p_low, s_low + (1 - c) - r_high)
    p_high = min(p_high, s_high + (1 - c) - r_low)
    margin_low, margin_high = _product_range(
        inverse_s_low, inverse_s_high, sample.margin, sample.margin
    )
    slope_low, slope_high = _product_range(q_low, q_high, sample.slope, sample.slope)
    b2_factor_low = ROOT2 * (2 * p_low + (c - 1))
    b2_factor_high = ROOT2 * (2 * max(p_low, p_high) + (c - 1))
    slope_low, slope_high = _product_range(
        slope_low, slope_high, b2_factor_low, b2_factor_high
    )
    target_b2 = (1 + c) * (sample.b2 + prior.lift * cell[1])
    excess_b2 = max(
        max(margin_low - slope_high - target_b2, target_b2 - margin_high + slope_low)
        / (1 + c)
        - slack,
        0.0,
    )
    upper_bound = prior_bound + q_bound - excess_b2 * excess_b2 / (2 * prior.variance_2)
    return upper_bound, variation_y, variation_b


@compiled_function
def _evaluate_cell(prior, sample, cell, y_nodes, b_nodes, points):
    """Write to the table ``points`` the log-weight and a_1, b_1, a_2, b_2 at the points (b, y) of a ``cell`` (center,
    half-widths), y being t, the mean logit of p and r (the diagonal entries of the first layer's attention matrix), less its
    value on the ridge (the curve along which the weight is long) at the same v, the difference of the logits; ``y_nodes`` and
    ``b_nodes`` are the places in [-1, 1] along either axis, i and j their indices, ``prior`` is a ``Weight``.
    """
    node_count = len(y_nodes)
    for i in range(node_count):
        y = cell[0] + cell[2] * y_nodes[i]
        points[WEIGHT, i] = _bounded_exp(-prior.unit_t * y)
    for j in range(len(b_nodes)):
        b = cell[1] + cell[3] * b_nodes[j]
        v = sample.v + prior.unit_v * b
        t_of_curve = _curve_t(sample.ridge, v)
        odds_p = _bounded_exp(-t_of_curve - v / 2)
        odds_r = _bounded_exp(-t_of_curve + v / 2)
        a_of_curve = (t_of_curve - sample.t) / prior.unit_t
        for i in range(node_count):
            k = j * node_count + i
            points[A, k] = cell[0] + cell[2] * y_nodes[i] + a_of_curve
            points[B, k] = b
            points[DECAY_P, k] = points[WEIGHT, i] * odds_p
            points[DECAY_R, k] = points[WEIGHT, i] * odds_r
    weigh_points(prior, sample, node_count * len(b_nodes), points)


@compiled_function
def _add_cell(prior, sample, cell, rule, points, log_unit, sums):
    """Add the integrals over a ``cell`` of (y, b) by ``rule``, nodes and weights along either axis, to ``sums``; return the
    logarithm of their unit, which was ``log_unit``. ``points`` is a table for points, ``prior`` is a ``Weight``.
    """
    y_nodes, y_weights, b_nodes, b_weights = rule
    _evaluate_cell(prior, sample, cell, y_nodes, b_nodes, points)
    point_count = len(y_nodes) * len(b_nodes)
    log_unit = raise_unit(log_unit, highest_log_weight(point_count, points), sums)
    exponentiate(log_unit, cell[2] * cell[3], y_weights, b_weights, points)
    add_points(point_count, points, sums)
    return log_unit


@compiled_function
def _integrate_plane(prior, sample, least_cost, rules, points, coarse_sums, sums):
    """Integrate the posterior weight of ``sample`` into ``sums`` by trapezoidal ``rules`` for one cell (y, b), in which all of it
    lies: a_1, b_1 and a_2 within ``reach`` deviations of their prior means, y measured from the curve where a_2 is that large.
    Return by how much two orders differ (``coarse_sums``: the lower one), and the logarithm of the unit of ``sums``.
    ``least_cost`` is -2 times the highest log-weight, ``points`` is a table, ``prior`` is a ``Weight``.
    """
    reach = math.sqrt(least_cost + 40)
    # a_2 = slope / s^2
    largest_a2 = math.copysign(1.0, sample.slope) * sample.a2 + reach * math.sqrt(
        prior.variance_2 + prior.lift * prior.lift
    )
    s = math.sqrt(abs(sample.slope) / max(largest_a2, TINY))
    p_plus_r = clipped(s + (1 - prior.skip), TINY, 1.999)
    ridge = max(
        math.log(p_plus_r / (2 - p_plus_r)),
        _curve_log_odds(sample.t - reach * prior.unit_t, sample.v),
    )
    sample = Sample(*(*sample[:6], ridge))
    t = _curve_t(ridge, sample.v)
    half_height = (reach + (sample.t - t) / prior.unit_t) / 2
    cell = half_height, 0.0, half_height, reach
    coarse_sums[:], sums[:] = 0.0, 0.0
    _add_cell(prior, sample, cell, rules[0], points, -math.inf, coarse_sums)
    log_unit = _add_cell(prior, sample, cell, rules[1], points, -math.inf, sums)
    return largest_difference(sums, coarse_sums), log_unit


@compiled_function
def _root_cells(prior, sample, accuracy, cells):
    """Write to ``cells`` equal cells (center y, b; half-widths) that cover the ``prior`` of ``sample``, y being the mean logit t
    less its value on the ridge (the curve along which the weight is long) at the same v, the difference of the logits; return
    their number. k counts cells; ``accuracy`` has their number along an axis.
    """
    half_width, cells_per_axis = accuracy.half_width, accuracy.root_cells
    v_low = sample.v - half_width * prior.unit_v
    v_high = sample.v + half_width * prior.unit_v
    t_low = t_high = _curve_t(sample.ridge, clipped(0.0, v_low, v_high))
    for v in (v_low, v_high):
        t = _curve_t(sample.ridge, v)
        t_low, t_high = min(t_low, t), max(t_high, t)
    y_low = (sample.t - t_high) / prior.unit_t - half_width
    y_high = (sample.t - t_low) / prior.unit_t + half_width
    y_half_range = (y_high - y_low) / 2
    for k in range(cells_per_axis * cells_per_axis):
        grid_y = (k // cells_per_axis + 0.5) * (2 / cells_per_axis) - 1
        grid_b = (k % cells_per_axis + 0.5) * (2 / cells_per_axis) - 1
        center = (y_high + y_low) / 2 + y_half_range * grid_y, half_width * grid_b
        half_widths = y_half_range / cells_per_axis, half_width / cells_per_axis
        _write(cells[k], (*center, *half_widths))
    return cells_per_axis * cells_per_axis


@compiled_function
def _integrate_cells(prior, sample, accuracy, largest_variation, rule, buffers, sums):
    """Integrate the posterior weight of ``sample`` into ``sums`` over cells of (y, b), y being the mean logit t less its value on
    the ridge (the curve along which the weight is long), halved until the log-weight varies by at most ``largest_variation``
    along either axis; return the logarithm of the unit of ``sums``, and whether it was given up. ``rule`` has the nodes of a
    cell, ``accuracy`` the settings, ``buffers`` are work arrays: cells, the halves of those to be halved, and per cell the upper
    bound, variations, log-area and highest probe; k counts cells, i and j points. All cells of one depth are looked at before any
    is halved.
    """
    cells, halved_cells, cell_bounds, points, probe_nodes, s_values, levels = buffers
    cell_count = _root_cells(prior, sample, accuracy, cells)
    log_unit, is_unfinished = -math.inf, False
    sums[:] = 0.0
    for depth in range(80):  # a cell of relative size 2^-40 holds nothing
        log_sum = log_unit + math.log(max(sums[0], TINY))
        active_count = 0
        for k in range(cell_count):
            # no more than exp(-negligible) of what has been found, or of a peak a sixteenth as wide as a cell
            log_area = math.log(4 * cells[k, 2] * cells[k, 3])
            threshold = (
                max(log_sum - log_area, log_unit - math.log(256.0))
                - accuracy.negligible
            )
            upper_bound, variation_y, variation_b = _upper_bound(
                prior, sample, cells[k], threshold, s_values, levels
            )
            if upper_bound > threshold:
                _write(cells[active_count], cells[k])
                _write(
                    cell_bounds[active_count],
                    (upper_bound, variation_y, variation_b, log_area, -math.inf),
                )
                active_count += 1
        probed_maximum = log_unit
        for k in range(active_count):
            _evaluate_cell(prior, sample, cells[k], probe_nodes, probe_nodes, points)
            for i in range(4):
                min_along_y = math.inf
                max_along_y = -math.inf
                min_along_b = math.inf
                max_along_b = -math.inf
                for j in range(4):
                    log_weight = points[LOG_WEIGHT, 4 * i + j]
                    min_along_y = min(min_along_y, log_weight)
                    max_along_y = max(max_along_y, log_weight)
                    log_weight = points[LOG_WEIGHT, 4 * j + i]
                    min_along_b = min(min_along_b, log_weight)
                    max_along_b = max(max_along_b, log_weight)
                cell_bounds[k, 1] = max(cell_bounds[k, 1], max_along_y - min_along_y)
                cell_bounds[k, 2] = max(cell_bounds[k, 2], max_along_b - min_along_b)
                cell_bounds[k, 4] = max(cell_bounds[k, 4], max_along_y)
            probed_maximum = max(probed_maximum, cell_bounds[k, 4])
        log_unit = raise_unit(log_unit, probed_maximum, sums)
        is_crowded = active_count > accuracy.most_cells
        is_unfinished = is_unfinished or is_crowded
        cell_count = 0
        for k in range(active_count):
            cell = cells[k]
            (upper_bound, variation_y, variation_b, log_area, peak) = cell_bounds[k]
            # what may be in the cell decides how well it must be known, not what a few probes have seen
            log_deficit = clipped(
                log_sum - upper_bound - log_area, 0.0, accuracy.negligible
            )
            variation_limit = largest_variation * (
                1 + accuracy.variation_growth * log_deficit
            )
            larger_variation = max(variation_y, variation_b)
            # a peak between the probes does not show in their variation, but in what the bound allows
            may_hide_peak = upper_bound - peak - accuracy.bound_looseness > max(
                variation_limit, accuracy.largest_variation
            )
            if (
                (larger_variation > variation_limit or may_hide_peak)
                and not is_crowded
                and depth < 79
            ):
                # halved along the axis of the larger variation, or along the longer one where none is seen
                if larger_variation > variation_limit:
                    axis = 0 if variation_y >= variation_b else 1
                else:
                    axis = 0 if cell[2] >= cell[3] else 1
                for side in (-0.5, 0.5):
                    _write(halved_cells[cell_count], cell)
                    halved_cells[cell_count, axis] += side * cell[2 + axis]
                    halved_cells[cell_count, 2 + axis] /= 2
                    cell_count += 1
                continue
            log_unit = _add_cell(prior, sample, cell, rule, points, log_unit, sums)
        if cell_count == 0:
            break
        cells, halved_cells = halved_cells, cells
    return log_unit, is_unfinished


@compiled
def integrate_samples(
    samples, prior, accuracy, largest_variation, try_plane, try_gauss_hermite,
    plane_rules, cell_rule, rules,
    log_weights, means, squares, is_unreliable,
):  # fmt: skip
    """Integrate all ``samples`` (n, 6), each (t, v, a2, b2, slope, margin) as in ``Sample``, one by one with the weight of
    parameters ``prior``, by Gauss-Hermite ``rules`` (if ``try_gauss_hermite``), by ``plane_rules`` (if ``try_plane``) or
    by cells with the Gauss-Legendre ``cell_rule`` in which the log-weight varies by at most ``largest_variation``, and the
    settings ``accuracy``; write the fields of ``Sums``, which are the last four arguments; i and j count the four variables.
    """
    sums, spare_sums = np.empty(15), np.empty(15)
    max_rows = 2 * accuracy.most_cells
    points = np.empty((8, len(plane_rules[1][0]) ** 2))  # enough for every rule
    cells = np.empty((max_rows, 4)), np.empty((max_rows, 4)), np.empty((max_rows, 5))
    buffers = (
        *cells,
        points,
        np.array([-1.0, -0.4, 0.4, 1.0]),
        np.empty((2, 3)),
        np.empty((2, 3)),
    )
    log_normalization = math.log(
        (2 * math.pi) ** 2 * prior.variance_2 * ROOT8 * (1 + prior.skip)
    )
    # where s may vanish the weight is narrow on either side, and smooth along that line
    follows_ridge = not (prior.skip < 1 or prior.variance_2 > 0.1 * prior.variance_1)
    for index in range(len(samples)):
        t, v, a2, b2, slope, margin = samples[index]
        sample = Sample(t, v, a2, b2, slope, margin, prior.crossing)
        is_accepted, log_unit = False, 0.0
        if follows_ridge or try_plane or try_gauss_hermite:
            least_cost, peak = _minimize_cost(
                prior, sample, *_prior_mean_point(prior, sample)
            )
            if try_gauss_hermite:
                is_accepted, log_unit = _nearly_gaussian(
                    prior, sample, peak, accuracy, rules, points, spare_sums, sums
                )
            if try_plane and not is_accepted and least_cost < 40:
                difference, log_unit = _integrate_plane(
                    prior, sample, least_cost, plane_rules, points, spare_sums, sums
                )
                is_accepted = difference < accuracy.rule_tolerance
            if follows_ridge:
                sample = Sample(*sample[:6], _curve_log_odds(peak.t, peak.v))
        if not is_accepted:
            log_unit, is_unfinished = _integrate_cells(
                prior, sample, accuracy, largest_variation, cell_rule, buffers, sums
            )
            # a mean so near the edge of the square counts as not integrated
            edge_limit = (accuracy.half_width - 1.5) * sums[0]
            is_near_edge = max(abs(sums[1]), abs(sums[2])) > edge_limit
            is_unreliable[index] = 1.0 if is_unfinished or is_near_edge else 0.0
        log_weights[index] = log_unit + math.log(sums[0]) - log_normalization
        pair = 5
        for i in range(4):
            means[index, i] = sums[1 + i] / sums[0]
            for j in range(i, 4):
                squares[index, i, j] = squares[index, j, i] = sums[pair] / sums[0]
                pair += 1
