"""The adaptive quadrature of two-layer, two-token attention: one scalar kernel, compiled for the host and for a device.

Write ``z_1 = (m + d/2, m - d/2)``. With ``k = exp(-d^2/2)``, ``E = exp(m d)`` and
``den = c (E + k)(1 + k E) + (1 - k^2) E`` the inverse of ``A(z_1)`` is (``ut = u / (1 + c)``)::

    A^{-1} u = (ut_1 + x (ut_1 - ut_2), ut_2 - y (ut_1 - ut_2)),   1 / det A = (1 + x + y) / (1 + c)^2
    x = k (1 + k E) / den,   y = k E (E + k) / den

``x`` falls and ``y`` grows with ``E``. A box ``|z - omega| <= K sqrt(V)`` around the mean therefore bounds
``x`` and ``y``, those bound ``d``, and at fixed ``d`` they bound ``E`` as roots of quadratics: what the
integrand occupies is known in closed form, however narrow it is, on up to four intervals (the sign of ``u``,
the sign of ``d``). Each interval is a row of columns of constant ``d``, uniform in ``asinh(d / d_0)``, with
points uniform in ``m``: two nested trapezoidal rules, which converge exponentially because the integrand
has decayed at every end. Columns, and intervals, double their points until two interleaved halves agree. The
cost hardly depends on ``V``.

Inner loops run over columns, without branches and with an exponential of their own, so that the compiler for the host turns
them into vector instructions. On a device every thread has a sample, and columns one at a time. All of it is one file because
Numba keeps machine code until the file of the outermost function changes: a helper elsewhere would go stale.

The scheme is derived, checked by tests/channels/sequence/test_softmax_posterior.py.
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

_FAR = 700.0  # logarithms are cut here, where exp still gives a finite number


@inline
def _root(x, k, c, inverse):
    # E where x(E) = x, or its inverse: E is 0 where every E has a smaller x, and infinite where none has
    tail = k * (1.0 - c * x)
    a = c * k * x
    b = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k
    root = math.sqrt(b * b + 4.0 * a * max(tail, 0.0))
    numerator, denominator = (2.0 * tail, b + root) if b >= 0.0 else (root - b, 2.0 * a)
    numerator, denominator = (numerator, denominator) if tail > 0.0 else (0.0, 1.0)
    return denominator / numerator if inverse else numerator / denominator


@njit(error_model="numpy")
def _gap(x, y, c):
    # d of the first layer whose attention has the coordinates (x, y)
    squared = (
        math.log(1.0 + y - c * x)
        + math.log(1.0 + x - c * y)
        - 2.0 * math.log1p(c)
        - math.log(x)
        - math.log(y)
    )
    return math.sqrt(max(squared, 0.0))


@inline
def _point(column, kE, k_E, place, constants):
    # Weight, z_1 - omega_1 and z_2 - omega_2. kE and k_E are k E and k / E: the fractions for x and y are divided by E.
    k2, complement, slope, base_1, base_2, start, step, half = column
    b, c, prior, likelihood, level, _, _ = constants
    N = 1.0 + k2 + (kE + k_E)
    inverse = 1.0 / (c * N + complement)
    kinv = slope * inverse
    e1 = base_1 + (k_E + k2) * kinv
    e2 = base_2 - (kE + k2) * kinv
    shifted = start + place * step
    a1, a2 = shifted + half, shifted - half
    r1, r2 = e1 - b * a1, e2 - b * a2
    q = prior * (a1 * a1 + a2 * a2) + likelihood * (r1 * r1 + r2 * r2) - level
    return exp(min(max(q, -_FAR), _FAR)) * (N * inverse), a1, a2, e1, e2


@inline
def _with_traces(s, point):
    w, a1, a2, e1, e2 = point
    w1, w2, w3, w4 = w * a1, w * a2, w * e1, w * e2
    squares = (
        s[5] + (w1 * a1 + w2 * a2),
        s[6] + (w1 * e1 + w2 * e2),
        s[7] + (w3 * e1 + w4 * e2),
    )
    return s[0] + w, s[1] + w1, s[2] + w2, s[3] + w3, s[4] + w4, *squares


@inline
def _with_squares(s, point):
    w, a1, a2, e1, e2 = point
    w1, w2, w3, w4 = w * a1, w * a2, w * e1, w * e2
    products_1 = s[5] + w1 * a1, s[6] + w1 * a2, s[7] + w1 * e1, s[8] + w1 * e2
    products_2 = s[9] + w2 * a2, s[10] + w2 * e1, s[11] + w2 * e2
    products_3 = s[12] + w3 * e1, s[13] + w3 * e2, s[14] + w4 * e2
    return (
        s[0] + w,
        s[1] + w1,
        s[2] + w2,
        s[3] + w3,
        s[4] + w4,
        *products_1,
        *products_2,
        *products_3,
    )


@inline
def _half_difference(estimate_1, estimate_2, problem):
    # of two estimates, in units of the total: the largest over the weight and the first moments
    total = 0.5 * (estimate_1[0] + estimate_2[0])
    of_layer_1 = (
        max(abs(estimate_1[1] - estimate_2[1]), abs(estimate_1[2] - estimate_2[2]))
        * problem[5]
    )
    of_layer_2 = (
        max(abs(estimate_1[3] - estimate_2[3]), abs(estimate_1[4] - estimate_2[4]))
        * problem[6]
    )
    largest = 0.5 * max(abs(estimate_1[0] - estimate_2[0]), of_layer_1, of_layer_2)
    return min(largest / total if total > 0.0 else largest, 1.0)


@inline
def _expected(ratio):
    # Relative error of a rule whose two halves differ by this. The power would be 2 where the Fourier transform of the
    # integrand decays exponentially, 4 where it is Gaussian. What is reported is always the square.
    return ratio * ratio * math.sqrt(math.sqrt(ratio))


TABLE = 46  # rows of a kernel's table
NEGLIGIBLE = 1e-4  # columns and intervals below this times the accuracy of the whole are not refined
SHARE = 0.2  # part of the error that columns may have; doubled: the same true error, a tenth more reported


def kernel(jit, inline, width, stride):
    """Make the kernel that integrates one sample, compiled by ``jit``, with its small parts compiled by ``inline``.

    It handles ``width`` columns at a time, in a table whose rows are ``stride`` apart: one array with rows at constant places, so
    that the compiler sees that they do not overlap.
    """
    D, LOWER, STEP, BASE_1, BASE_2, SLOPE, K2, COMPLEMENT, WEIGHT, OWNER = (
        row * stride for row in range(10)
    )
    KE, K_E, GROWTH, DECAY, HALF, START = (row * stride for row in range(10, 16))
    SUMS, ROUND_SUMS = 16 * stride, 31 * stride
    XI, SPREAD, X0, X1, Y0, Y1, UPPER = (
        row * stride for row in range(16, 23)
    )  # while there are no sums yet
    OUTER, RATIO, ORDER = range(3)

    @inline
    def padded(size):
        # whole vectors: entries beyond the last column repeat it and are not read
        return 1 if stride == 1 else (size + 7) // 8 * 8

    @inline
    def reached(center, width, divisor):
        end_1, end_2 = (center - width) / divisor, (center + width) / divisor
        return max(min(end_1, end_2), 0.0), max(end_1, end_2)

    @jit
    def find_intervals(sample, problem, intervals):
        # intervals: rows lower, upper, d_0, sign, x0, x1, y0, y1. Returns their number.
        u, omega, reach, _ = sample
        v11, v22, _, noise, c = problem[:5]
        u_1, u_2 = u[0] / (1.0 + c), u[1] / (1.0 + c)
        slope = u_1 - u_2
        gap, omega_gap = omega[0, 0] - omega[0, 1], abs(omega[1, 0] - omega[1, 1])
        width = reach * math.sqrt(v22)
        span = math.sqrt(2.0) * math.sqrt(v11) * reach
        farthest = 1.0 / c if c > 0.0 else math.inf
        largest = min(farthest, 1e14)
        divisor = slope if abs(slope) >= 1e-150 else 1e-150
        scale = math.sqrt(
            4.0 * c
            + 0.3 * abs(u[0] - u[1]) / (omega_gap + 3.0 * math.sqrt(noise))
            + 1e-12
        )
        number = 0
        for index in range(4):  # the sign of u, then the sign of d
            sign = 1.0 if index < 2 else -1.0
            x0, x1 = reached(sign * omega[1, 0] - u_1, width, divisor)
            y0, y1 = reached(u_2 - sign * omega[1, 1], width, divisor)
            if x1 <= 0.0 or y1 <= 0.0 or x0 + y0 >= largest:
                continue
            x1, y1 = min(x1, largest - y0), min(y1, largest - x0)
            joined = x1 + y1 >= farthest
            if joined and index % 2 == 1:
                continue  # a joined interval covers both signs of d
            near = 0.0 if joined else _gap(x1, y1, c)
            far = 1e150 if x0 <= 0.0 or y0 <= 0.0 else _gap(x0, y0, c)
            lower = -far if joined or index % 2 == 1 else near
            upper = -near if index % 2 == 1 else far
            lower, upper = max(lower, gap - span), min(upper, gap + span)
            if upper > lower:
                ends = math.asinh(lower / scale), math.asinh(upper / scale)
                interval = *ends, scale, sign, x0, x1, y0, y1
                for row in range(8):
                    intervals[row, number] = interval[row]
                number += 1
        return number

    @jit
    def place_columns(t, size, sample, problem):
        # where there is nothing to integrate, upper is not above lower
        _, omega, reach, _ = sample
        v11, _, _, _, c = problem[:5]
        center, gap = 0.5 * (omega[0, 0] + omega[0, 1]), omega[0, 0] - omega[0, 1]
        for j in range(padded(size)):
            grown = exp(t[XI + j])
            shrunk = 1.0 / grown
            half_scale = 0.5 * t[SPREAD + j]
            d = half_scale * (grown - shrunk)
            d = 1e-12 if abs(d) < 1e-12 else d
            radius = 0.5 * (reach * reach * v11 - 0.5 * (d - gap) * (d - gap))
            half_square = 0.5 * d * d
            k = exp(max(-half_square, -_FAR))
            small = one_minus_exp(-min(half_square, 0.5))
            # x <= x1 and y >= y0, then x >= x0 and y <= y1; y(E) = x(1/E)
            low = bounded_log(
                max(_root(t[X1 + j], k, c, False), _root(t[Y0 + j], k, c, True))
            )
            high = bounded_log(
                min(_root(t[X0 + j], k, c, False), _root(t[Y1 + j], k, c, True))
            )
            half = math.sqrt(max(radius, 0.0))
            inverse = 1.0 / d
            farthest = 300.0 * abs(inverse)
            lower = max(min(low * inverse, high * inverse), center - half, -farthest)
            upper = min(max(low * inverse, high * inverse), center + half, farthest)
            t[D + j], t[LOWER + j] = d, lower
            t[UPPER + j] = upper if radius > 0.0 and low < high else lower
            t[K2 + j] = k * k
            t[COMPLEMENT + j] = (
                small * (2.0 - small) if half_square <= 0.5 else 1.0 - k * k
            )
            t[WEIGHT + j] *= half_scale * (grown + shrunk)

    @jit
    def make_columns(t, columns, offset, sample, rule, intervals, state):
        # Columns (begin, end, number per interval) of all unfinished intervals, without the empty ones. Returns their number.
        begin, end, count = columns
        u, omega, _, _ = sample
        problem, limits, _ = rule
        place, number = begin // count, begin % count
        for j in range(padded(end - begin)):
            interval = int(state[ORDER, place])
            step = (intervals[1, interval] - intervals[0, interval]) / count
            t[OWNER + j], t[WEIGHT + j] = interval, step
            t[XI + j], t[SPREAD + j] = (
                intervals[0, interval] + (number + offset) * step,
                intervals[2, interval],
            )
            for row in range(4):
                t[X0 + row * stride + j] = intervals[4 + row, interval]
            if j < end - begin - 1:
                number += 1
                if number == count:
                    place, number = place + 1, 0
        place_columns(t, end - begin, sample, problem)
        c = problem[4]
        u_1, u_2 = u[0] / (1.0 + c), u[1] / (1.0 + c)
        size = 0
        for j in range(end - begin):
            if not t[UPPER + j] > t[LOWER + j]:
                continue
            sign = intervals[3, int(t[OWNER + j])]
            t[STEP + size] = (t[UPPER + j] - t[LOWER + j]) / limits[0]
            t[BASE_1 + size], t[BASE_2 + size] = (
                sign * u_1 - omega[1, 0],
                sign * u_2 - omega[1, 1],
            )
            t[SLOPE + size] = sign * (u_1 - u_2)
            for row in (D, LOWER, OWNER, K2, COMPLEMENT, WEIGHT):
                t[row + size] = t[row + j]
            size += 1
        return size

    @inline
    def two_points(t, j, place, constants):
        constant_rows = (
            t[K2 + j],
            t[COMPLEMENT + j],
            t[SLOPE + j],
            t[BASE_1 + j],
            t[BASE_2 + j],
        )
        column = *constant_rows, t[START + j], t[STEP + j], t[HALF + j]
        kE, k_E, growth, decay = t[KE + j], t[K_E + j], t[GROWTH + j], t[DECAY + j]
        t[KE + j], t[K_E + j] = kE * (growth * growth), k_E * (decay * decay)
        point = _point(column, kE, k_E, place, constants)
        return point, _point(column, kE * growth, k_E * decay, place + 1.0, constants)

    @inline
    def five(t, i):
        return (
            t[i],
            t[i + stride],
            t[i + 2 * stride],
            t[i + 3 * stride],
            t[i + 4 * stride],
        )

    @inline
    def put_five(t, i, s):
        t[i], t[i + stride], t[i + 2 * stride], t[i + 3 * stride], t[i + 4 * stride] = s

    @jit
    def sum_columns(t, size, count, offset, constants, number):
        # the points of all columns, into the rows from ROUND_SUMS on
        center, gap = constants[5], constants[6]
        padded_size = padded(size)
        for j in range(size, padded_size):
            for row in (D, LOWER, STEP, BASE_1, BASE_2, SLOPE, K2, COMPLEMENT):
                t[row + j] = t[row + size - 1]
        # E = exp(m d) is a geometric sequence along a column
        for j in range(padded_size):
            d, step = t[D + j], t[STEP + j]
            start = t[LOWER + j] + offset * step
            half_square = min(
                0.5 * d * d, 350.0
            )  # beyond k weighs nothing: m d and d^2 / 2 go into one exponential
            t[KE + j] = exp(start * d - half_square)
            t[K_E + j] = exp(-start * d - half_square)
            growth = exp(step * d)
            t[GROWTH + j], t[DECAY + j] = growth, 1.0 / growth
            t[HALF + j] = 0.5 * (d - gap)
            t[START + j] = start - center
        for moment in range(number):
            for j in range(padded_size):
                t[ROUND_SUMS + moment * stride + j] = 0.0
        # Two points of all columns at a time: whole vectors of columns, with half as many loads and stores of the sums.
        for pair in range(count // 2):
            place = 2.0 * pair
            if number == 15:
                for j in range(padded_size):
                    point_1, point_2 = two_points(t, j, place, constants)
                    i, k, m = (
                        ROUND_SUMS + j,
                        ROUND_SUMS + 5 * stride + j,
                        ROUND_SUMS + 10 * stride + j,
                    )
                    s = _with_squares(
                        _with_squares((*five(t, i), *five(t, k), *five(t, m)), point_1),
                        point_2,
                    )
                    put_five(t, i, s[:5])
                    put_five(t, k, s[5:10])
                    put_five(t, m, s[10:])
            else:
                for j in range(padded_size):
                    point_1, point_2 = two_points(t, j, place, constants)
                    i = ROUND_SUMS + j
                    traces = t[i + 5 * stride], t[i + 6 * stride], t[i + 7 * stride]
                    s = _with_traces(
                        _with_traces((*five(t, i), *traces), point_1), point_2
                    )
                    put_five(t, i, s[:5])
                    t[i + 5 * stride], t[i + 6 * stride], t[i + 7 * stride] = s[5:]
        for moment in range(number):
            for j in range(padded_size):
                t[ROUND_SUMS + moment * stride + j] *= t[STEP + j] * t[WEIGHT + j]

    @jit
    def refine_columns(t, size, constants, rule, partition, sums):
        # Starting from the sums of columns (ROUND_SUMS), double their points until halves agree; add each column to its interval
        # once it is done.
        problem, limits, number = rule
        points, rounds, accuracy = limits
        count = points
        for round_ in range(rounds + 1):
            if round_ > 0:
                sum_columns(t, size, count, 0.5, constants, number)
                count *= 2
            source = SUMS if round_ > 0 else ROUND_SUMS
            active = 0
            for j in range(size):
                if round_ == 0:
                    error = 0.0
                    failing = t[ROUND_SUMS + j] > NEGLIGIBLE * accuracy * partition
                else:
                    ratio = _half_difference(
                        five(t, SUMS + j), five(t, ROUND_SUMS + j), problem
                    )
                    for moment in range(number):
                        i = moment * stride + j
                        t[SUMS + i] = 0.5 * (t[SUMS + i] + t[ROUND_SUMS + i])
                    error = ratio * ratio * t[SUMS + j]
                    failing = (
                        ratio >= 1.0
                        or _expected(ratio) * t[SUMS + j] > SHARE * accuracy * partition
                    )
                    t[STEP + j] *= 0.5
                if failing and round_ < rounds:
                    for row in range(10):
                        t[row * stride + active] = t[row * stride + j]
                    for moment in range(number):
                        t[SUMS + moment * stride + active] = t[
                            source + moment * stride + j
                        ]
                    active += 1
                else:
                    owner = 4 + int(t[OWNER + j])
                    sums[owner, 15] += error
                    for moment in range(number):
                        sums[owner, moment] += t[source + moment * stride + j]
            size = active
            if size == 0:
                break

    @jit
    def integrate(sample, rule, scratch, totals):
        # Sums of one sample into totals; their relative error. sums: rows of four intervals, and of what a round adds to them;
        # columns for the moments, the last one for errors.
        t, intervals, sums, state = scratch
        problem, limits, number = rule
        points, rounds, accuracy = limits
        _, omega, _, level = sample
        v11, _, b, noise, c = problem[:5]
        center, gap = 0.5 * (omega[0, 0] + omega[0, 1]), omega[0, 0] - omega[0, 1]
        constants = b, c, -0.5 / v11, -0.5 / noise, level, center, gap
        interval_count = find_intervals(sample, problem, intervals)
        sums[:] = 0.0
        for interval in range(interval_count):
            state[ORDER, interval] = interval
        partition, count, size, active = 0.0, points, 0, interval_count
        for round_ in range(rounds):
            if active == 0:
                break
            planned = active * count
            # at first columns are summed to know the partition function, and again if they do not fit into the table
            for stage in range(1 if round_ > 0 else 0, 2):
                for begin in range(0, planned, width):
                    if stage == 0 or round_ > 0 or planned > width:
                        columns = begin, min(begin + width, planned), count
                        size = make_columns(
                            t,
                            columns,
                            0.5 if round_ > 0 else 0.0,
                            sample,
                            rule,
                            intervals,
                            state,
                        )
                        sum_columns(t, size, points, 0.0, constants, number)
                    if stage == 1:
                        refine_columns(t, size, constants, rule, partition, sums)
                    else:
                        for j in range(size):
                            partition += t[ROUND_SUMS + j]
            factor = 0.5 if round_ > 0 else 1.0
            for k in range(active):
                interval = int(state[ORDER, k])
                ratio = 1.0
                if round_ > 0:
                    ratio = _half_difference(
                        sums[interval], sums[4 + interval], problem
                    )
                for moment in range(16):
                    sums[interval, moment] = factor * (
                        sums[interval, moment] + sums[4 + interval, moment]
                    )
                state[OUTER, interval] = ratio * ratio * sums[interval, 0]
                state[RATIO, interval] = ratio
            if round_ > 0:
                count *= 2
            partition = sums[0, 0] + sums[1, 0] + sums[2, 0] + sums[3, 0]
            unfinished = 0
            for k in range(active):
                interval = int(state[ORDER, k])
                ratio, share = state[RATIO, interval], sums[interval, 0]
                failing = share > NEGLIGIBLE * accuracy * partition
                if round_ > 0:
                    failing = failing and (
                        ratio >= 1.0 or _expected(ratio) * share > accuracy * partition
                    )
                if failing:
                    state[ORDER, unfinished] = interval
                    sums[4 + interval] = 0.0
                    unfinished += 1
            active = unfinished
        error = 0.0
        for moment in range(number):
            totals[moment] = (
                sums[0, moment] + sums[1, moment] + sums[2, moment] + sums[3, moment]
            )
        for interval in range(interval_count):
            error += sums[interval, 15] + state[OUTER, interval]
        return error / totals[0] if totals[0] > 0.0 else math.inf

    return integrate


# Rows longer than the columns at once: were they a power of two apart, they would share their cache lines.
_integrate = kernel(njit(fastmath={"contract"}, error_model="numpy"), inline, 64, 72)


def _integrate_block(u, omega, reach, level, rule, totals, error):
    scratch = (
        np.zeros(TABLE * 72),
        np.empty((8, 4)),
        np.empty((8, 16)),
        np.empty((4, 4)),
    )
    for row in range(u.shape[0]):
        error[row] = _integrate(
            (u[row], omega[row], reach[row], level[row]), rule, scratch, totals[:, row]
        )


_host_kernel = compiled(_integrate_block)


def host_sums(
    u: Array, omega: Array, rule: object, reach: Array, level: Array
) -> tuple[Array, Array]:
    """Integrals over the boxes of a block of samples, for NumPy arrays.

    ``u`` (n, 2) are outputs up to sign, ``omega`` (n, 2, 2) means, layers by tokens; ``rule`` is the ``Rule`` of ``two_layers``;
    ``reach`` (n,) the half width of the box around ``omega`` in units of ``sqrt(V)``, ``level`` (n,) the logarithm in units of
    which the integrand is summed. Returns sums (8 or 15, n) of 1, the four entries of ``z - omega`` and their products, as
    ``_with_traces`` or ``_with_squares`` order them, and the relative error (n,) of the first.
    """
    # One memory layout only: any other would be compiled separately.
    arrays = [
        np.require(array, np.float64, ["C", "W"]) for array in (u, omega, reach, level)
    ]
    sums, error = np.empty((rule.moments, u.shape[0])), np.empty(u.shape[0])
    _host_kernel(*arrays, rule.arguments, sums, error)
    return sums, error
