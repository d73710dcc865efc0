"""Table of integration points of two-layer attention: their weights and sums, in loops that compile to vector instructions.

A point is a column of the table, whose rows are named below. Loops over points have no branches. Numba keeps machine code until
the file of the outermost function changes: after a change here, ``quadrature`` has to be compiled anew, too.
"""

from __future__ import annotations

import math

from numba import njit

from smimbench_attention.channels.attention.softmax.weight import ROOT2
from smimbench_attention.channels.compiling import bounded_log, exp

# Guards of the arithmetic: smallest divisor, largest number whose square is finite, largest logarithm in products and quotients.
TINY, LARGEST, LARGEST_LOG = 1e-60, 1e130, 340.0


inlined = njit(error_model="numpy", inline="always")
compiled_function = njit(error_model="numpy")
_vectorized = njit(error_model="numpy", fastmath={"contract"})
_reduction = njit(error_model="numpy", fastmath={"contract", "reassoc", "nnan", "nsz"})

# Rows of a table of points: a, b, exp(-t - v/2), exp(-t + v/2), a_2 and b_2, the logarithm of the weight, and the weight
A, B, DECAY_P, DECAY_R, SHIFT_A, SHIFT_B, LOG_WEIGHT, WEIGHT = range(8)


@inlined
def clipped(x, low, high):
    """Number x clipped to ``[low, high]``."""
    return min(max(x, low), high)


@inlined
def nonzero(s):
    """Number s, or the smallest divisor ``TINY`` in place of a smaller one."""
    return TINY if abs(s) < TINY else s


@_vectorized
def weigh_points(prior, sample, count, points):
    """Write the log-weights of ``count`` points of the first layer's latents for one ``sample``, and the second layer's latents
    a_2, b_2 that give the label there, into the table ``points``. A point is ``a``, ``b``: a_1, b_1 minus their prior means, over
    their prior standard deviations; so are the ``shift_a``, ``shift_b`` written for a_2, b_2. Before that, the residuals of a_2,
    b_2 are taken: minus their means given a, b. p, r are the diagonal entries of the first layer's attention, ``s = p + r + c -
    1`` with the skip strength c; ``prior`` is a ``Weight``.
    """
    c, lift = prior.skip, prior.lift
    inverse_skip, precision = 1 / (1 + c), -0.5 / prior.variance_2
    root_precision = 1 / math.sqrt(prior.variance_2 + lift * lift)
    for k in range(count):
        a, b = points[A, k], points[B, k]
        p, r = 1 / (1 + points[DECAY_P, k]), 1 / (1 + points[DECAY_R, k])
        inverse_s = 1 / nonzero(p + r + (c - 1))
        a2 = sample.slope * inverse_s * inverse_s
        b2 = (sample.margin * inverse_s - ROOT2 * (2 * p + (c - 1)) * a2) * inverse_skip
        shift_a, shift_b = a2 - sample.a2, b2 - sample.b2
        residual_a, residual_b = shift_a - lift * a, shift_b - lift * b
        log_weight = (residual_a * residual_a + residual_b * residual_b) * precision - (
            a * a + b * b
        ) / 2
        # where a_2 is out of all bounds the weight vanishes, and 0 times infinity must be 0
        points[SHIFT_A, k] = clipped(shift_a, -LARGEST, LARGEST) * root_precision
        points[SHIFT_B, k] = clipped(shift_b, -LARGEST, LARGEST) * root_precision
        points[LOG_WEIGHT, k] = max(
            log_weight + 3 * bounded_log(abs(inverse_s)), -LARGEST
        )


@_reduction
def highest_log_weight(count, points):
    """Largest log-weight of ``count`` points of the table ``points``."""
    highest = points[LOG_WEIGHT, 0]
    for k in range(1, count):
        highest = max(highest, points[LOG_WEIGHT, k])
    return highest


@_vectorized
def exponentiate(log_unit, factor, y_weights, b_weights, points):
    """Write the weights of points, in units of ``exp(log_unit)`` times ``factor`` times their weights along either axis, into the
    table ``points``, a rectangle of them.
    """
    node_count = len(y_weights)
    for j in range(len(b_weights)):
        row_factor = factor * b_weights[j]
        for i in range(node_count):
            k = j * node_count + i
            log_weight = max(points[LOG_WEIGHT, k] - log_unit, -2 * LARGEST_LOG)
            points[WEIGHT, k] = exp(log_weight) * (row_factor * y_weights[i])


@_reduction
def add_points(count, points, sums):
    """Add ``count`` points of the table ``points`` to 15 ``sums``: of their weights, of them times each of four variables (a_1,
    b_1, a_2, b_2), and times each pair of them.
    """
    s0, s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0, 0.0
    s5, s6, s7, s8, s9 = 0.0, 0.0, 0.0, 0.0, 0.0
    s10, s11, s12, s13, s14 = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(count):
        weight, a, b = points[WEIGHT, k], points[A, k], points[B, k]
        shift_a, shift_b = points[SHIFT_A, k], points[SHIFT_B, k]
        wa, wb = weight * a, weight * b
        wc, wd = weight * shift_a, weight * shift_b
        s0, s1, s2, s3, s4 = s0 + weight, s1 + wa, s2 + wb, s3 + wc, s4 + wd
        s5, s6, s7, s8 = s5 + wa * a, s6 + wa * b, s7 + wa * shift_a, s8 + wa * shift_b
        s9, s10, s11 = s9 + wb * b, s10 + wb * shift_a, s11 + wb * shift_b
        s12, s13, s14 = s12 + wc * shift_a, s13 + wc * shift_b, s14 + wd * shift_b
    moments = s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14
    for moment in range(15):
        sums[moment] += moments[moment]


@compiled_function
def raise_unit(log_unit, peak, sums):
    """Raise the logarithm ``log_unit`` of the unit of ``sums`` to the log-weight ``peak`` if that is higher; rescale them."""
    if peak > log_unit > -math.inf:
        sums *= math.exp(log_unit - peak)
    return max(log_unit, peak)


@compiled_function
def largest_difference(sums_1, sums_2):
    """Largest difference of the means and squares that two sets of 15 sums give."""
    largest = 0.0
    for index in range(1, 15):
        difference = sums_1[index] / sums_1[0] - sums_2[index] / sums_2[0]
        largest = max(largest, abs(difference))
    return largest
