"""The adaptive quadrature of two-layer, two-token attention: one scalar kernel, compiled for the host and for a device.

Write ``z_1 = (m + d/2, m - d/2)``. With ``k = exp(-d^2/2)``, ``E = exp(m d)`` and ``den = c (E + k)(1 + k E) + (1 - k^2) E``
the inverse of ``A(z_1)`` is (``ut = u / (1 + c)``)::

    A^{-1} u = (ut_1 + x (ut_1 - ut_2), ut_2 - y (ut_1 - ut_2)),   1 / det A = (1 + x + y) / (1 + c)^2
    x = k (1 + k E) / den,   y = k E (E + k) / den

``x`` falls and ``y`` grows with ``E``. A box ``|z - omega| <= K sqrt(V)`` around the mean therefore bounds ``x`` and ``y``,
those bound ``d``, and at fixed ``d`` they bound ``E`` as roots of quadratics: what the integrand occupies is known in closed
form, however narrow it is, on up to four intervals (the sign of ``u``, the sign of ``d``). Each interval is a row of columns of
constant ``d``, uniform in ``asinh(d / d_0)``, with points uniform in ``m``: two nested trapezoidal rules, which converge
exponentially because the integrand has decayed at every end. Columns, and intervals, double their points until two interleaved
halves agree. The cost hardly depends on ``V``.

A label does not tell the signs of the layers. Where ``omega`` is small against ``sqrt(V)``, a box around 0 that holds that around
``omega`` and its mirror images is little larger: the integral is then folded onto ``d > 0`` and one sign of ``u``, where a point
stands for its four images ``(+-z_1, +-z_2)``, which have all in common but their prior.

Inner loops run over columns, without branches and with an exponential of their own, so that the compiler for the host turns
them into vector instructions. On a device every thread has a sample, and columns one at a time. All of it is one file because
Numba keeps machine code until the file of the outermost function changes: a helper elsewhere would go stale.
Derived, checked by tests/channels/sequence/test_softmax_posterior.py.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from smimbench.interfaces import Array
from smimbench_attention.channels.compiling import (
    bounded_log,
    compiled,
    exp,
    inline,
    one_minus_exp,
)

_LARGEST_LOG = 700.0  # logarithms are cut here, where exp still gives a finite number


@inline
def _E_of_coordinate(x, k, c, inverse):
    """Solve ``x(E) = x`` for ``E = exp(m d)``, or 1 / E if ``inverse``, at ``k = exp(-d^2 / 2)`` and skip connection c: the root
    of ``q_2 E^2 + q_1 E = q_0``; m and d are mean and difference of the first layer's two tokens, x an entry of its inverse
    attention matrix. E is 0 where every E has a smaller x, and infinite where none has.
    """
    q_0 = k * (1.0 - c * x)
    q_2 = c * k * x
    q_1 = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k
    discriminant_root = math.sqrt(q_1 * q_1 + 4.0 * q_2 * max(q_0, 0.0))
    numerator, denominator = (
        (2.0 * q_0, q_1 + discriminant_root)
        if q_1 >= 0.0
        else (discriminant_root - q_1, 2.0 * q_2)
    )
    numerator, denominator = (numerator, denominator) if q_0 > 0.0 else (0.0, 1.0)
    return denominator / numerator if inverse else numerator / denominator


@njit(error_model="numpy")
def _token_difference(x, y, c):
    """Difference d of the first layer's two tokens at which its inverse attention matrix has coordinates x, y; c is the skip
    weight.
    """
    squared_difference = (
        math.log(1.0 + y - c * x)
        + math.log(1.0 + x - c * y)
        - 2.0 * math.log1p(c)
        - math.log(x)
        - math.log(y)
    )
    return math.sqrt(max(squared_difference, 0.0))


# Zeros without sign need not be added: the first term of a sum is the sum.
@njit(fastmath={"contract", "nsz"}, forceinline=True, error_model="numpy")
def _sums_over_signs(point, sign_1, signs, law):
    """Sum over the images of a ``point`` in which z_1 has sign ``sign_1``, and z_2 each of the ``signs``: the weight, ``z_1 -
    omega_1`` = (a1, a2), which they share, and the weight times ``z_2 - omega_2`` = (e1, e2) and times their products. Residuals
    are those of z_2 given z_1; ``law`` has omega and the constants of the prior.
    """
    jacobian, z11, z12, z21, z22 = point
    w11, w12, w21, w22, slope, prior_factor, likelihood_factor, log_unit = law
    a1, a2 = sign_1 * z11 - w11, sign_1 * z12 - w12
    log_prior = prior_factor * (a1 * a1 + a2 * a2) - log_unit
    w = we1 = we2 = we11 = we12 = we22 = 0.0
    for sign_2 in signs:
        e1, e2 = sign_2 * z21 - w21, sign_2 * z22 - w22
        residual_1, residual_2 = e1 - slope * a1, e2 - slope * a2
        log_weight = log_prior + likelihood_factor * (
            residual_1 * residual_1 + residual_2 * residual_2
        )
        # units are chosen such that no weight is too large for exp
        weight = jacobian * exp(max(log_weight, -_LARGEST_LOG))
        w1, w2 = weight * e1, weight * e2
        w, we1, we2 = w + weight, we1 + w1, we2 + w2
        we11, we12, we22 = we11 + w1 * e1, we12 + w1 * e2, we22 + w2 * e2
    return w, a1, a2, we1, we2, we11, we12, we22


@inline
def _traces(w, a1, a2, we1, we2, we11, _, we22):
    """Weight, first moments, and traces over tokens of second moments, from what ``_sums_over_signs`` returns."""
    return (
        w,
        w * a1,
        w * a2,
        we1,
        we2,
        w * (a1 * a1 + a2 * a2),
        a1 * we1 + a2 * we2,
        we11 + we22,
    )


@inline
def _products(w, a1, a2, we1, we2, we11, we12, we22):
    """Weight, first moments and all second moments, from what ``_sums_over_signs`` returns."""
    wa1, wa2 = w * a1, w * a2
    products_of_a1 = wa1 * a1, wa1 * a2, a1 * we1, a1 * we2
    products_of_a2 = wa2 * a2, a2 * we1, a2 * we2
    return (w, wa1, wa2, we1, we2, *products_of_a1, *products_of_a2, we11, we12, we22)


@inline
def _half_difference(estimate_1, estimate_2, prior):
    """Half the relative difference of two estimates of (integral, four first moments), the largest of the five and at most 1;
    ``prior[5]`` and ``prior[6]`` are 1 / sqrt(V_11) and 1 / sqrt(V_22).
    """
    mean_weight = 0.5 * (estimate_1[0] + estimate_2[0])
    difference_1 = (
        max(abs(estimate_1[1] - estimate_2[1]), abs(estimate_1[2] - estimate_2[2]))
        * prior[5]
    )
    difference_2 = (
        max(abs(estimate_1[3] - estimate_2[3]), abs(estimate_1[4] - estimate_2[4]))
        * prior[6]
    )
    max_difference = 0.5 * max(
        abs(estimate_1[0] - estimate_2[0]), difference_1, difference_2
    )
    return min(
        max_difference / mean_weight if mean_weight > 0.0 else max_difference, 1.0
    )


@inline
def _expected_error(half_difference):
    """Expected relative error of a trapezoidal rule whose two halves differ by the relative amount ``half_difference``.

    The power would be 2 where the integrand's Fourier transform decays exponentially, 4 where it is Gaussian; 2 is reported.
    """
    return half_difference * half_difference * math.sqrt(math.sqrt(half_difference))


TABLE_ROWS = 45  # rows of a kernel's table, one array: the compiler sees that they do not overlap
FOLDED_DISTANCE = 0.25  # largest one of omega from 0, in half-widths of its box, of a folded integral; doubled: a tenth slower
FOLDED_ACCURACY = 1e-5  # best one of a folded integral, which two thirds of the points in a column reach
NEGLIGIBLE_SHARE = 1e-4  # columns and intervals below this times the accuracy of the whole are not refined
COLUMN_ERROR_SHARE = 0.2  # part of the error that columns may have; doubled: the same true error, a tenth more reported


def make_kernel(jit, inline, width, stride):
    """Make the function that integrates one sample, compiled by ``jit``, and its small parts by ``inline``, for ``width`` columns
    at a time. A column j is a set of points of equal d = z_11 - z_12; capitals say where in a table t the rows, ``stride`` apart,
    begin that hold its d, lower end and step in m = (z_11 + z_12) / 2, outputs, powers of k = exp(-d^2 / 2) and E = exp(m d), and
    sums. A sample is (u, omega, half-width of its box in sqrt(V), log-unit), a box (u, its center, its half-width, whether the
    integral is folded); x, y are entries of the inverse attention matrix, c is the skip weight.
    """
    D_ROW, LOWER_M, STEP_M, OUTPUT_1, OUTPUT_2, OUTPUT_GAP, K2, ONE_MINUS_K2 = (
        row * stride for row in range(8)
    )
    D_WEIGHT, INTERVAL, K_E, K_PER_E, E_GROWTH, E_DECAY, M_ROW = (
        row * stride for row in range(8, 15)
    )
    COLUMN_SUMS, ROUND_SUMS = 15 * stride, 30 * stride
    ASINH_D, D_SCALE, X_MIN, X_MAX, Y_MIN, Y_MAX, UPPER_M = (
        row * stride for row in range(15, 22)
    )  # while there are no sums yet
    INTERVAL_ERROR, HALF_DIFFERENCE, UNFINISHED_INTERVALS = range(3)

    @inline
    def padded_count(column_count):
        """Number ``column_count`` of columns rounded up to whole vectors: entries beyond repeat the last and are not read. It is
        bounded, so that the compiler knows that no index of the table is negative.
        """
        return min((column_count + 7) // 8 * 8, stride)

    @inline
    def nonnegative_range(center, width, divisor):
        """Range (lowest, highest) of the nonnegative numbers x for which ``divisor x`` is within ``width`` of ``center``."""
        end_1, end_2 = (center - width) / divisor, (center + width) / divisor
        return max(min(end_1, end_2), 0.0), max(end_1, end_2)

    @inline
    def move_column(t, source, target):
        """Move what depends on d from one column of table t to another."""
        if target < source:
            for row in range(10):
                t[row * stride + target] = t[row * stride + source]

    @jit
    def find_intervals(box, prior, intervals):
        """Find the intervals of d = z_11 - z_12 that the ``box`` ``|z - center| <= half_width sqrt(V)`` allows, for each sign of
        outputs u and of d, or one if it is folded; return their number. Columns of ``intervals`` get lower and upper asinh(d /
        d_0), d_0, sign of u, and ranges of the entries x, y of the inverse attention matrix. ``prior`` has V, the variance of z_2
        given z_1 and the skip weight c; a gap is a difference of tokens.
        """
        u, center, half_width, is_folded = box
        v11, v22, _, variance_2, c = prior[:5]
        u_1, u_2 = u[0] / (1.0 + c), u[1] / (1.0 + c)
        output_gap = u_1 - u_2
        center_gap = center[0] - center[1]
        last_center_gap = abs(center[2] - center[3])
        half_width_2 = half_width * math.sqrt(v22)
        half_width_d = math.sqrt(2.0) * math.sqrt(v11) * half_width
        largest_x_plus_y = 1.0 / c if c > 0.0 else math.inf
        finite_limit = min(largest_x_plus_y, 1e14)
        safe_divisor = output_gap if abs(output_gap) >= 1e-150 else 1e-150
        d_0 = math.sqrt(
            4.0 * c
            + 0.3 * abs(u[0] - u[1]) / (last_center_gap + 3.0 * math.sqrt(variance_2))
            + 1e-12
        )
        interval_count = 0
        for sign_pair in range(1 if is_folded else 4):  # signs of u, then of d
            sign_of_u = 1.0 if sign_pair < 2 else -1.0
            x_min, x_max = nonnegative_range(
                sign_of_u * center[2] - u_1, half_width_2, safe_divisor
            )
            y_min, y_max = nonnegative_range(
                u_2 - sign_of_u * center[3], half_width_2, safe_divisor
            )
            if x_max <= 0.0 or y_max <= 0.0 or x_min + y_min >= finite_limit:
                continue
            x_max = min(x_max, finite_limit - y_min)
            y_max = min(y_max, finite_limit - x_min)
            has_both_signs = x_max + y_max >= largest_x_plus_y
            if has_both_signs and sign_pair % 2 == 1:
                continue  # the interval of d > 0 covers both signs
            least_d = 0.0 if has_both_signs else _token_difference(x_max, y_max, c)
            greatest_d = (
                1e150
                if x_min <= 0.0 or y_min <= 0.0
                else _token_difference(x_min, y_min, c)
            )
            lower_d = -greatest_d if has_both_signs or sign_pair % 2 == 1 else least_d
            upper_d = -least_d if sign_pair % 2 == 1 else greatest_d
            lower_d = max(lower_d, center_gap - half_width_d)
            upper_d = min(upper_d, center_gap + half_width_d)
            if upper_d > lower_d:
                asinh_ends = math.asinh(lower_d / d_0), math.asinh(upper_d / d_0)
                interval = *asinh_ends, d_0, sign_of_u, x_min, x_max, y_min, y_max
                for row in range(8):
                    intervals[row, interval_count] = interval[row]
                interval_count += 1
        return interval_count

    @jit
    def compute_column_ranges(t, column_count, box, prior):
        """Compute d = d_0 sinh(xi) = z_11 - z_12 of each column j of table t, xi given, k = exp(-d^2 / 2), and the range of m =
        (z_11 + z_12) / 2 in the box where x and y, functions of E = exp(m d), are in their ranges; if it is empty the upper end
        is not above the lower one. ``prior`` has V and the skip weight c.
        """
        _, center, half_width, _ = box
        v11, _, _, _, c = prior[:5]
        center_m, center_gap = 0.5 * (center[0] + center[1]), center[0] - center[1]
        for j in range(padded_count(column_count)):
            exp_xi = exp(t[ASINH_D + j])
            exp_minus_xi = 1.0 / exp_xi
            half_d_0 = 0.5 * t[D_SCALE + j]
            d = half_d_0 * (exp_xi - exp_minus_xi)
            d = 1e-12 if abs(d) < 1e-12 else d
            squared_half_range = 0.5 * (
                half_width * half_width * v11
                - 0.5 * (d - center_gap) * (d - center_gap)
            )
            half_square = 0.5 * d * d
            k = exp(max(-half_square, -_LARGEST_LOG))
            one_minus_k = one_minus_exp(-min(half_square, 0.5))
            # x <= x_max and y >= y_min, then x >= x_min and y <= y_max; y(E) = x(1/E)
            log_E_min = bounded_log(
                max(
                    _E_of_coordinate(t[X_MAX + j], k, c, False),
                    _E_of_coordinate(t[Y_MIN + j], k, c, True),
                )
            )
            log_E_max = bounded_log(
                min(
                    _E_of_coordinate(t[X_MIN + j], k, c, False),
                    _E_of_coordinate(t[Y_MAX + j], k, c, True),
                )
            )
            half_range = math.sqrt(max(squared_half_range, 0.0))
            inverse_d = 1.0 / d
            largest_m = 300.0 * abs(inverse_d)
            lower_m = max(
                min(log_E_min * inverse_d, log_E_max * inverse_d),
                center_m - half_range,
                -largest_m,
            )
            upper_m = min(
                max(log_E_min * inverse_d, log_E_max * inverse_d),
                center_m + half_range,
                largest_m,
            )
            t[D_ROW + j], t[LOWER_M + j] = d, lower_m
            t[UPPER_M + j] = (
                upper_m
                if squared_half_range > 0.0 and log_E_min < log_E_max
                else lower_m
            )
            t[K2 + j] = k * k
            t[ONE_MINUS_K2 + j] = (
                one_minus_k * (2.0 - one_minus_k) if half_square <= 0.5 else 1.0 - k * k
            )
            t[D_WEIGHT + j] *= half_d_0 * (exp_xi + exp_minus_xi)

    @jit
    def fill_columns(t, columns, offset, box, rule, intervals, state):
        """Fill table t with the nonempty ones of ``columns`` (start, end, number in an interval) of the intervals that ``state``
        lists as unfinished; return how many. A column j has constant d = z_11 - z_12; they are equidistant in asinh(d / d_0), the
        first ``offset`` steps from the interval's start; ``rule`` has the prior, with the skip weight c, and u_1, u_2 are outputs
        over 1 + c. If the ``box`` is folded, columns of d < 0 are images of others and left out, and one of d = 0 counts half.
        """
        start, end, interval_size = columns
        u, _, _, is_folded = box
        prior, stopping, _ = rule
        u_1, u_2 = u[0] / (1.0 + prior[4]), u[1] / (1.0 + prior[4])
        unfinished_index, column_in_interval = (
            start // interval_size,
            start % interval_size,
        )
        for j in range(padded_count(end - start)):
            interval = int(state[UNFINISHED_INTERVALS, unfinished_index])
            step = (intervals[1, interval] - intervals[0, interval]) / interval_size
            asinh_d = intervals[0, interval] + (column_in_interval + offset) * step
            t[INTERVAL + j], t[ASINH_D + j] = interval, asinh_d
            t[D_WEIGHT + j] = step
            if is_folded:
                t[D_WEIGHT + j] = min(max(asinh_d + 0.5 * step, 0.0), step)
            t[D_SCALE + j] = intervals[2, interval]
            t[OUTPUT_1 + j] = intervals[3, interval] * u_1
            t[OUTPUT_2 + j] = intervals[3, interval] * u_2
            t[OUTPUT_GAP + j] = intervals[3, interval] * (u_1 - u_2)
            for row in range(4):
                t[X_MIN + row * stride + j] = intervals[4 + row, interval]
            if j < end - start - 1:
                column_in_interval += 1
                if column_in_interval == interval_size:
                    unfinished_index, column_in_interval = unfinished_index + 1, 0
        compute_column_ranges(t, end - start, box, prior)
        kept_count = 0
        for j in range(end - start):
            t[STEP_M + j] = (t[UPPER_M + j] - t[LOWER_M + j]) / stopping[0]
        for j in range(end - start):
            if t[UPPER_M + j] > t[LOWER_M + j] and t[D_WEIGHT + j] > 0.0:
                move_column(t, j, kept_count)
                kept_count += 1
        return kept_count

    @inline
    def next_point(t, j, c):
        """Jacobian, ``z_1`` and ``z_2`` of the next point m of column j of table t, which moves on by a step in m, and by factors
        in kE = k E and k_E = k / E, for k = exp(-d^2 / 2) and E = exp(m d). Fractions are divided by E; c is the skip weight.
        """
        k2, d, m = t[K2 + j], t[D_ROW + j], t[M_ROW + j]
        kE, k_E = t[K_E + j], t[K_PER_E + j]
        t[M_ROW + j] = m + t[STEP_M + j]
        t[K_E + j], t[K_PER_E + j] = kE * t[E_GROWTH + j], k_E * t[E_DECAY + j]
        scaled_numerator = 1.0 + k2 + (kE + k_E)
        inverse_denominator = 1.0 / (c * scaled_numerator + t[ONE_MINUS_K2 + j])
        gap_over_denominator = t[OUTPUT_GAP + j] * inverse_denominator
        return (
            scaled_numerator * inverse_denominator,
            m + 0.5 * d,
            m - 0.5 * d,
            t[OUTPUT_1 + j] + (k_E + k2) * gap_over_denominator,
            t[OUTPUT_2 + j] - (kE + k2) * gap_over_denominator,
        )

    @inline
    def read_five(t, i):
        """Read five rows of the table t at entry i, a row plus a column."""
        return (
            t[i],
            t[i + stride],
            t[i + 2 * stride],
            t[i + 3 * stride],
            t[i + 4 * stride],
        )

    @inline
    def add_to_rows(t, i, values):
        """Add ``values`` to as many rows of the table t at entry i, a row plus a column."""
        for row, value in enumerate(values):
            t[i + row * stride] += value

    @inline
    def add_traces(t, j, c, signs, law):
        """Add the images, with these ``signs`` of z_1 and of z_2, of the next point of column j to its sums and traces in table t
        (in a function of its own: of a loop directly inside that over columns the compiler would peel off the first column).
        """
        point = next_point(t, j, c)
        for sign in signs:
            sums = _sums_over_signs(point, sign, signs, law)
            add_to_rows(t, ROUND_SUMS + j, _traces(*sums))

    @inline
    def add_products(t, j, c, signs, law):
        """Add the images of the next point of column j to its sums and products, as ``add_traces``."""
        point = next_point(t, j, c)
        for sign in signs:
            sums = _sums_over_signs(point, sign, signs, law)
            add_to_rows(t, ROUND_SUMS + j, _products(*sums))

    @inline
    def sum_points(t, column_count, point_count, constants, moment_count, signs):
        """Add the images of ``point_count`` points of each column j to its sums in table t: one point of all columns at a time,
        in vectors of columns. It is compiled for one sign and for both, so that the loops have no branches.
        """
        c, law = constants[:2]
        for _ in range(point_count):
            if moment_count == 15:
                for j in range(column_count):
                    add_products(t, j, c, signs, law)
            else:
                for j in range(column_count):
                    add_traces(t, j, c, signs, law)

    @jit
    def sum_columns(t, column_count, point_count, offset, constants, moment_count):
        """Sum the integrand and its moments (``moment_count``) over ``point_count`` points m of each column j of table t, the
        first ``offset`` steps from its lower end, into the rows from ROUND_SUMS on. ``constants`` are the skip weight, the law of
        latents, and whether the integral is folded; E = exp(m d) is geometric along a column, with the factor ``growth``.
        """
        padded_columns = padded_count(column_count)
        for j in range(column_count, padded_columns):
            for row in range(8):
                t[row * stride + j] = t[row * stride + column_count - 1]
        for j in range(padded_columns):
            d, step = t[D_ROW + j], t[STEP_M + j]
            first_m = t[LOWER_M + j] + offset * step
            # beyond k weighs nothing: m d and d^2 / 2 go into one exponential
            half_square = min(0.5 * d * d, 350.0)
            t[K_E + j] = exp(first_m * d - half_square)
            t[K_PER_E + j] = exp(-first_m * d - half_square)
            growth = exp(step * d)
            t[E_GROWTH + j], t[E_DECAY + j] = growth, 1.0 / growth
            t[M_ROW + j] = first_m
        for moment in range(moment_count):
            for j in range(padded_columns):
                t[ROUND_SUMS + moment * stride + j] = 0.0
        if constants[2]:
            sum_points(
                t, padded_columns, point_count, constants, moment_count, (1.0, -1.0)
            )
        else:
            sum_points(t, padded_columns, point_count, constants, moment_count, (1.0,))
        for moment in range(moment_count):
            for j in range(padded_columns):
                t[ROUND_SUMS + moment * stride + j] *= t[STEP_M + j] * t[D_WEIGHT + j]

    @jit
    def refine_columns(t, column_count, constants, rule, partition, sums):
        """Double the points of columns j of table t until two interleaved halves agree, as ``rule`` asks; add each finished
        column to ``sums``, to its interval's row. ``partition`` is the whole integral so far: what is negligible against it is
        not refined; ``constants`` are those of ``sum_columns``.
        """
        prior, stopping, moment_count = rule
        first_point_count, most_rounds, accuracy = stopping
        point_count = first_point_count
        for round_ in range(most_rounds + 1):
            if round_ > 0:
                sum_columns(t, column_count, point_count, 0.5, constants, moment_count)
                point_count *= 2
                for j in range(column_count):  # a row that is free until the next sum
                    t[K_E + j] = _half_difference(
                        read_five(t, COLUMN_SUMS + j),
                        read_five(t, ROUND_SUMS + j),
                        prior,
                    )
                    t[STEP_M + j] *= 0.5
            for moment in range(moment_count):
                i, k = COLUMN_SUMS + moment * stride, ROUND_SUMS + moment * stride
                for j in range(column_count):
                    t[i + j] = 0.5 * (t[i + j] + t[k + j]) if round_ > 0 else t[k + j]
            unfinished_count = 0
            for j in range(column_count):
                mass, half_difference = t[COLUMN_SUMS + j], t[K_E + j]
                if round_ == 0:
                    needs_points = mass > NEGLIGIBLE_SHARE * accuracy * partition
                else:
                    needs_points = (
                        half_difference >= 1.0
                        or _expected_error(half_difference) * mass
                        > COLUMN_ERROR_SHARE * accuracy * partition
                    )
                if needs_points and round_ < most_rounds:
                    move_column(t, j, unfinished_count)
                    for moment in range(moment_count):
                        k = COLUMN_SUMS + moment * stride
                        t[k + unfinished_count] = t[k + j]
                    unfinished_count += 1
                else:
                    sums_row = 4 + int(t[INTERVAL + j])
                    if round_ > 0:
                        sums[sums_row, 15] += half_difference * half_difference * mass
                    for moment in range(moment_count):
                        sums[sums_row, moment] += t[COLUMN_SUMS + moment * stride + j]
            column_count = unfinished_count
            if column_count == 0:
                break

    @jit
    def integrate(sample, rule, scratch, totals):
        """Integrate one ``sample`` by ``rule`` (prior with skip weight c, when to stop, number of moments): write its moments to
        ``totals``, return the relative error. ``scratch`` are work arrays: table t, intervals, ``sums`` with rows for four
        intervals and what a round adds to them, and their state. Each round doubles the columns j of unfinished intervals, taken
        ``width`` at a time from ``start`` on; ``partition`` is the whole integral so far, ``distance`` that of omega from 0 in
        sqrt(V).
        """
        t, intervals, sums, state = scratch
        prior, stopping, moment_count = rule
        first_point_count, most_rounds, accuracy = stopping
        u, omega, half_width, log_unit = sample
        v11, _, slope, variance_2, c, inverse_root_1, inverse_root_2 = prior
        center = omega[0, 0], omega[0, 1], omega[1, 0], omega[1, 1]
        law = *center, slope, -0.5 / v11, -0.5 / variance_2, log_unit
        distance = max(
            math.hypot(center[0], center[1]) * inverse_root_1,
            math.hypot(center[2], center[3]) * inverse_root_2,
        )
        is_folded = (
            distance < FOLDED_DISTANCE * half_width and accuracy >= FOLDED_ACCURACY
        )
        columns_per_interval = first_point_count
        if is_folded:
            center, half_width = (0.0, 0.0, 0.0, 0.0), half_width + distance
            # as many columns as whole vectors have take no longer
            columns_per_interval = (columns_per_interval + 7) // 8 * 8
            first_point_count = 2 * first_point_count // 3
            rule = prior, (first_point_count, most_rounds, accuracy), moment_count
        box = u, center, half_width, is_folded
        constants = c, law, is_folded
        interval_count = find_intervals(box, prior, intervals)
        sums[:] = 0.0
        for interval in range(interval_count):
            state[UNFINISHED_INTERVALS, interval] = interval
        partition = 0.0
        column_count = 0
        unfinished_count = interval_count
        for round_ in range(most_rounds):
            if unfinished_count == 0:
                break
            planned_columns = unfinished_count * columns_per_interval
            # at first columns are summed to know the partition function, and again if they do not fit into the table
            for stage in range(1 if round_ > 0 else 0, 2):
                for start in range(0, planned_columns, width):
                    if stage == 0 or round_ > 0 or planned_columns > width:
                        columns = (
                            start,
                            min(start + width, planned_columns),
                            columns_per_interval,
                        )
                        column_count = fill_columns(
                            t,
                            columns,
                            0.5 if round_ > 0 else 0.0,
                            box,
                            rule,
                            intervals,
                            state,
                        )
                        sum_columns(
                            t,
                            column_count,
                            first_point_count,
                            0.0,
                            constants,
                            moment_count,
                        )
                    if stage == 1:
                        refine_columns(
                            t, column_count, constants, rule, partition, sums
                        )
                    else:
                        for j in range(column_count):
                            partition += t[ROUND_SUMS + j]
            halving_factor = 0.5 if round_ > 0 else 1.0
            for unfinished_index in range(unfinished_count):
                interval = int(state[UNFINISHED_INTERVALS, unfinished_index])
                half_difference = 1.0
                if round_ > 0:
                    half_difference = _half_difference(
                        sums[interval], sums[4 + interval], prior
                    )
                for moment in range(16):
                    sums[interval, moment] = halving_factor * (
                        sums[interval, moment] + sums[4 + interval, moment]
                    )
                state[INTERVAL_ERROR, interval] = (
                    half_difference * half_difference * sums[interval, 0]
                )
                state[HALF_DIFFERENCE, interval] = half_difference
            if round_ > 0:
                columns_per_interval *= 2
            partition = sums[0, 0] + sums[1, 0] + sums[2, 0] + sums[3, 0]
            next_unfinished_count = 0
            for unfinished_index in range(unfinished_count):
                interval = int(state[UNFINISHED_INTERVALS, unfinished_index])
                half_difference = state[HALF_DIFFERENCE, interval]
                interval_mass = sums[interval, 0]
                needs_columns = interval_mass > NEGLIGIBLE_SHARE * accuracy * partition
                if round_ > 0:
                    needs_columns = needs_columns and (
                        half_difference >= 1.0
                        or _expected_error(half_difference) * interval_mass
                        > accuracy * partition
                    )
                if needs_columns:
                    state[UNFINISHED_INTERVALS, next_unfinished_count] = interval
                    sums[4 + interval] = 0.0
                    next_unfinished_count += 1
            unfinished_count = next_unfinished_count
        error = 0.0
        for moment in range(moment_count):
            totals[moment] = (
                sums[0, moment] + sums[1, moment] + sums[2, moment] + sums[3, moment]
            )
        for interval in range(interval_count):
            error += sums[interval, 15] + state[INTERVAL_ERROR, interval]
        return error / totals[0] if totals[0] > 0.0 else math.inf

    return integrate


# Rows longer than the columns at once: were they a power of two apart, they would share their cache lines.
_integrate = make_kernel(
    njit(fastmath={"contract"}, error_model="numpy"), inline, 64, 72
)


def _integrate_block(u, omega, half_width, log_unit, rule, totals, error):
    """Integrate samples with outputs ``u`` (n, 2) and means ``omega`` (n, 2, 2) one by one on the host, by ``rule``: moments, in
    units of ``exp(log_unit)``, into ``totals`` (8 or 15, n), relative errors into ``error`` (n,). ``half_width`` (n,) is that of
    the box in sqrt(V), ``scratch`` the work arrays of ``integrate``.
    """
    scratch = (
        np.zeros(TABLE_ROWS * 72),
        np.empty((8, 4)),
        np.empty((8, 16)),
        np.empty((4, 4)),
    )
    for sample in range(u.shape[0]):
        error[sample] = _integrate(
            (u[sample], omega[sample], half_width[sample], log_unit[sample]),
            rule,
            scratch,
            totals[:, sample],
        )


_host_kernel = compiled(_integrate_block)


def host_sums(
    u: Array, omega: Array, rule: object, half_width: Array, log_unit: Array
) -> tuple[Array, Array]:
    """Sums over the box ``|z - omega| <= half_width sqrt(V)`` of the integrand, in units of ``exp(log_unit)``, and of its
    moments, with relative errors, by the quadrature ``rule``, for NumPy arrays: ``u`` (n, 2) are outputs up to sign, ``omega``
    (n, 2, 2) means.

    Returns sums (8 or 15, n) of 1, the four entries of ``z - omega`` and their products, as ``_traces`` or ``_products``
    order them, and the relative error (n,) of the first.
    """
    # One memory layout only: any other would be compiled separately.
    arrays = [
        np.require(array, np.float64, ["C", "W"])
        for array in (u, omega, half_width, log_unit)
    ]
    sums, error = np.empty((rule.moment_count, u.shape[0])), np.empty(u.shape[0])
    _host_kernel(*arrays, rule.arguments, sums, error)
    return sums, error
