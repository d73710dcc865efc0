"""The adaptive quadrature compiled by Numba for NumPy arrays: exponentials, logarithms, columns, points, sums and
pieces in scalar code.

The same columns, points and decisions as in ``quadrature``, one sample after the other. Inner loops run over columns, without
branches and with an exponential of their own, so that the compiler turns them into vector instructions. Checked against the
array version by tests/channels/sequence/test_softmax_two_layers.py. All of it is one file because Numba keeps machine code
until the file of the outermost function changes: a helper elsewhere would go stale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from smimbench.interfaces import Array
from smimbench_channels.sequence.softmax.compiling import compiled
from smimbench_channels.sequence.softmax.two_layers.pieces import Rule

__all__ = ["block_sums"]

_FAR = 700.0
_FAR_GAP = 300.0  # largest |m d|
_FAR_SQUARE = 350.0  # d^2 / 2 from which on k weighs nothing: m d and d^2 / 2 go into one exponential
# Columns handled at once, and the length of a row of their table: longer, for rows a power of two apart share their cache lines.
_CHUNK, _ROW = 64, 72
# Where the rows of the table begin. It is one array, so that the compiler sees that they do not overlap.
_D, _LEFT, _STEP, _FIRST, _SECOND, _SLOPE, _K2, _REST = (row * _ROW for row in range(8))
_KE, _K_E, _MORE, _LESS, _HALF, _START = (row * _ROW for row in range(8, 14))
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S10, _S11, _S12, _S13, _S14 = (row * _ROW for row in range(14, 29))
_ROWS = 29
_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to the nearest integer
_MAGIC_BITS = np.int64(0x4338000000000000)
_ROOT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)  # of sqrt(1/2): mantissas are taken between that and sqrt(2)


def _bitcast(result: Any, argument: Any, machine_type: Any) -> Any:
    """A function of compiled code that reads the 64 bits of its argument as another type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], machine_type)

    def declare(typingctx: Any, x: Any) -> Any:
        return result(argument), generate

    return intrinsic(declare)


_to_bits = _bitcast(types.int64, types.float64, ir.IntType(64))
_to_float = _bitcast(types.float64, types.int64, ir.DoubleType())


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _exp(x: Any) -> Any:
    # libm's exp is a call and stops vectorisation. |x| <= 700; relative error 2e-16.
    shifted = x * _LOG2E + _MAGIC
    count = shifted - _MAGIC
    r = (x - count * _LN2_HIGH) - count * _LN2_LOW
    # of degree 11, exact to 2e-17 for |r| <= log(2) / 2: interpolated at Chebyshev nodes
    p = 2.5100472505694996e-08 * r + 2.7620201591031547e-07
    p = (p * r + 2.7557268276905696e-06) * r + 2.4801521057868204e-05
    p = (p * r + 1.9841269863171557e-04) * r + 1.3888888917367081e-03
    p = (p * r + 8.333333333330039e-03) * r + 4.1666666666623824e-02
    p = (p * r + 1.6666666666666669e-01) * r + 0.5
    p = (p * r + 1.0) * r + 1.0
    power = (_to_bits(shifted) - _MAGIC_BITS + 1023) << 52
    return p * _to_float(power)


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _bounded_log(x: Any) -> Any:
    # log of x taken into the range of exp(-700) to exp(700), to 1e-15; libm's is a call, as its exp is
    x = min(max(x, 1e-304), 1e304)
    bits = _to_bits(x) - _ROOT_HALF_BITS
    power = bits >> 52
    m = _to_float(bits - (power << 52) + _ROOT_HALF_BITS)
    s = (m - 1.0) / (m + 1.0)
    t = s * s
    p = ((t * (1.0 / 21.0) + 1.0 / 19.0) * t + 1.0 / 17.0) * t + 1.0 / 15.0
    p = ((p * t + 1.0 / 13.0) * t + 1.0 / 11.0) * t + 1.0 / 9.0
    p = (((p * t + 1.0 / 7.0) * t + 1.0 / 5.0) * t + 1.0 / 3.0) * t + 1.0
    return power * 0.6931471805599453 + 2.0 * s * p


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _root(x: Any, k: Any, c: Any, inverse: Any) -> Any:
    # E where x(E) = x, or its inverse: E is 0 where every E has a smaller x, and infinite where none has
    tail = k * (1.0 - c * x)
    a = c * k * x
    b = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k
    root = math.sqrt(b * b + 4.0 * a * max(tail, 0.0))
    over, under = (2.0 * tail, b + root) if b >= 0.0 else (root - b, 2.0 * a)
    over, under = (over, under) if tail > 0.0 else (0.0, 1.0)
    return under / over if inverse else over / under


@njit(fastmath={"contract"}, error_model="numpy")
def _place_columns(draft: Any, size: Any, c: Any, v11: Any, reach: Any, middle: Any, gap: Any, places: Any) -> Any:
    # draft: rows xi, scale, x0, x1, y0, y1; places: rows d, left, right, k, 1 - k^2, dd/dxi. Where there is nothing to
    # integrate, right is not above left.
    for j in range(size):
        grown = _exp(draft[0, j])
        shrunk = 1.0 / grown
        half_scale = 0.5 * draft[1, j]
        d = half_scale * (grown - shrunk)
        d = 1e-12 if abs(d) < 1e-12 else d
        radius = 0.5 * (reach * reach * v11 - 0.5 * (d - gap) * (d - gap))
        half_square = 0.5 * d * d
        k = _exp(max(-half_square, -_FAR))
        # 1 - k without cancellation where k is close to 1: -expm1(t), |t| <= 1/2, as a series
        t = -min(half_square, 0.5)
        p = (t * (1.0 / 15.0) + 1.0) * (t * (1.0 / 14.0)) + 1.0
        p = (p * (t * (1.0 / 13.0)) + 1.0) * (t * (1.0 / 12.0)) + 1.0
        p = (p * (t * (1.0 / 11.0)) + 1.0) * (t * (1.0 / 10.0)) + 1.0
        p = (p * (t * (1.0 / 9.0)) + 1.0) * (t * (1.0 / 8.0)) + 1.0
        p = (p * (t * (1.0 / 7.0)) + 1.0) * (t * (1.0 / 6.0)) + 1.0
        p = (p * (t * (1.0 / 5.0)) + 1.0) * (t * (1.0 / 4.0)) + 1.0
        p = (p * (t * (1.0 / 3.0)) + 1.0) * (t * (1.0 / 2.0)) + 1.0
        small = -t * p
        # x <= x1 and y >= y0, then x >= x0 and y <= y1; y(E) = x(1/E)
        low = _bounded_log(max(_root(draft[3, j], k, c, False), _root(draft[4, j], k, c, True)))
        high = _bounded_log(min(_root(draft[2, j], k, c, False), _root(draft[5, j], k, c, True)))
        half = math.sqrt(max(radius, 0.0))
        inverse = 1.0 / d
        farthest = _FAR_GAP * abs(inverse)
        left = max(min(low * inverse, high * inverse), middle - half, -farthest)
        right = min(max(low * inverse, high * inverse), middle + half, farthest)
        places[0, j] = d
        places[1, j] = left
        places[2, j] = right if radius > 0.0 and low < high else left
        places[3, j] = k
        places[4, j] = small * (2.0 - small) if half_square <= 0.5 else 1.0 - k * k
        places[5, j] = half_scale * (grown + shrunk)


@njit(error_model="numpy")
def _gap(x: Any, y: Any, c: Any) -> Any:
    squared = math.log(1.0 + y - c * x) + math.log(1.0 + x - c * y) - 2.0 * math.log1p(c) - math.log(x) - math.log(y)
    return math.sqrt(max(squared, 0.0))


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _point(table: Any, j: Any, kE: Any, k_E: Any, place: Any, problem: Any) -> Any:
    # Weight, z_1 - omega_1 and z_2 - omega_2. kE and k_E are k E and k / E: N and den of ``quadrature`` are divided by E.
    b, c, prior, likelihood, level = problem
    k2 = table[_K2 + j]
    N = 1.0 + k2 + (kE + k_E)
    inverse = 1.0 / (c * N + table[_REST + j])
    kinv = table[_SLOPE + j] * inverse
    e1 = table[_FIRST + j] + (k_E + k2) * kinv
    e2 = table[_SECOND + j] - (kE + k2) * kinv
    shifted = table[_START + j] + place * table[_STEP + j]
    a1, a2 = shifted + table[_HALF + j], shifted - table[_HALF + j]
    r1, r2 = e1 - b * a1, e2 - b * a2
    q = prior * (a1 * a1 + a2 * a2) + likelihood * (r1 * r1 + r2 * r2) - level
    return _exp(min(max(q, -_FAR), _FAR)) * (N * inverse), a1, a2, e1, e2


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _with_traces(s: Any, point: Any) -> Any:
    w, a1, a2, e1, e2 = point
    w1, w2, w3, w4 = w * a1, w * a2, w * e1, w * e2
    squares = s[5] + (w1 * a1 + w2 * a2), s[6] + (w1 * e1 + w2 * e2), s[7] + (w3 * e1 + w4 * e2)
    return s[0] + w, s[1] + w1, s[2] + w2, s[3] + w3, s[4] + w4, *squares


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _with_squares(s: Any, point: Any) -> Any:
    w, a1, a2, e1, e2 = point
    w1, w2, w3, w4 = w * a1, w * a2, w * e1, w * e2
    first = s[5] + w1 * a1, s[6] + w1 * a2, s[7] + w1 * e1, s[8] + w1 * e2
    second = s[9] + w2 * a2, s[10] + w2 * e1, s[11] + w2 * e2
    third = s[12] + w3 * e1, s[13] + w3 * e2, s[14] + w4 * e2
    return s[0] + w, s[1] + w1, s[2] + w2, s[3] + w3, s[4] + w4, *first, *second, *third


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _traces(table: Any, j: Any) -> Any:
    first = table[_S0 + j], table[_S1 + j], table[_S2 + j], table[_S3 + j]
    return *first, table[_S4 + j], table[_S5 + j], table[_S6 + j], table[_S7 + j]


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _squares(table: Any, j: Any) -> Any:
    first = table[_S0 + j], table[_S1 + j], table[_S2 + j], table[_S3 + j], table[_S4 + j]
    second = table[_S5 + j], table[_S6 + j], table[_S7 + j], table[_S8 + j], table[_S9 + j]
    return *first, *second, table[_S10 + j], table[_S11 + j], table[_S12 + j], table[_S13 + j], table[_S14 + j]


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _put_traces(table: Any, j: Any, s: Any) -> Any:
    table[_S0 + j], table[_S1 + j], table[_S2 + j], table[_S3 + j] = s[0], s[1], s[2], s[3]
    table[_S4 + j], table[_S5 + j], table[_S6 + j], table[_S7 + j] = s[4], s[5], s[6], s[7]


@njit(fastmath={"contract"}, forceinline=True, error_model="numpy")
def _put_squares(table: Any, j: Any, s: Any) -> Any:
    table[_S0 + j], table[_S1 + j], table[_S2 + j], table[_S3 + j] = s[0], s[1], s[2], s[3]
    table[_S4 + j], table[_S5 + j], table[_S6 + j], table[_S7 + j] = s[4], s[5], s[6], s[7]
    table[_S8 + j], table[_S9 + j], table[_S10 + j], table[_S11 + j] = s[8], s[9], s[10], s[11]
    table[_S12 + j], table[_S13 + j], table[_S14 + j] = s[12], s[13], s[14]


@njit(fastmath={"contract"}, error_model="numpy")
def _add_chunk(table: Any, size: Any, count: Any, problem: Any, full: Any) -> Any:
    # Two points of all columns at a time: whole vectors of columns, and half as often a sum is fetched and put back.
    for pair in range(count // 2):
        place = 2.0 * pair
        if full:
            for j in range(size):
                kE, k_E, more, less = table[_KE + j], table[_K_E + j], table[_MORE + j], table[_LESS + j]
                s = _with_squares(_squares(table, j), _point(table, j, kE, k_E, place, problem))
                s = _with_squares(s, _point(table, j, kE * more, k_E * less, place + 1.0, problem))
                table[_KE + j], table[_K_E + j] = kE * (more * more), k_E * (less * less)
                _put_squares(table, j, s)
        else:
            for j in range(size):
                kE, k_E, more, less = table[_KE + j], table[_K_E + j], table[_MORE + j], table[_LESS + j]
                s = _with_traces(_traces(table, j), _point(table, j, kE, k_E, place, problem))
                s = _with_traces(s, _point(table, j, kE * more, k_E * less, place + 1.0, problem))
                table[_KE + j], table[_K_E + j] = kE * (more * more), k_E * (less * less)
                _put_traces(table, j, s)


@njit(fastmath={"contract"}, error_model="numpy")
def _add_points(
    cols: Any,
    size: Any,
    count: Any,
    offset: Any,
    b: Any,
    c: Any,
    v11: Any,
    noise: Any,
    middle: Any,
    gap: Any,
    level: Any,
    table: Any,
    sums: Any,
    full: Any,
) -> Any:
    # cols: a row for each column: d, left, step, first, second, slope, k, 1 - k^2, weight
    problem = (b, c, -0.5 / v11, -0.5 / noise, level)
    for begin in range(0, size, _CHUNK):
        here = min(size - begin, _CHUNK)
        # whole vectors of four: what is beyond the last column repeats it, and is not read
        padded = (here + 3) // 4 * 4
        for j in range(padded):
            column = begin + min(j, here - 1)
            d, step, k = cols[column, 0], cols[column, 2], cols[column, 6]
            table[_D + j], table[_STEP + j] = d, step
            table[_LEFT + j] = cols[column, 1] + offset * step
            table[_FIRST + j], table[_SECOND + j], table[_SLOPE + j] = cols[column, 3], cols[column, 4], cols[column, 5]
            table[_K2 + j], table[_REST + j] = k * k, cols[column, 7]
        for moment in range(sums.shape[1]):
            for j in range(padded):
                table[_S0 + moment * _ROW + j] = 0.0
        # E = exp(m d) is a geometric sequence along a column
        for j in range(padded):
            d, left = table[_D + j], table[_LEFT + j]
            half_square = min(0.5 * d * d, _FAR_SQUARE)
            table[_KE + j] = _exp(left * d - half_square)
            table[_K_E + j] = _exp(-left * d - half_square)
            more = _exp(table[_STEP + j] * d)
            table[_MORE + j], table[_LESS + j] = more, 1.0 / more
            table[_HALF + j] = 0.5 * (d - gap)
            table[_START + j] = left - middle
        _add_chunk(table, padded, count, problem, full)
        for j in range(here):
            factor = cols[begin + j, 2] * cols[begin + j, 8]
            for moment in range(sums.shape[1]):
                sums[begin + j, moment] = factor * table[_S0 + moment * _ROW + j]


@njit(error_model="numpy")
def _spread(one: Any, two: Any, i: Any, j: Any, scale: Any) -> Any:
    # scale: the inverse of what each of the first five moments is compared with
    total = 0.5 * (one[i, 0] + two[j, 0])
    largest = 0.0
    for moment in range(5):
        largest = max(largest, 0.5 * abs(one[i, moment] - two[j, moment]) * scale[moment])
    return min(largest / total if total > 0.0 else largest, 1.0)


@njit(error_model="numpy")
def _expected(ratio: Any) -> Any:
    return ratio * ratio * math.sqrt(math.sqrt(ratio))


@njit(error_model="numpy")
def _find_pieces(
    u1: Any, u2: Any, omega: Any, v11: Any, v22: Any, noise: Any, c: Any, reach: Any, pieces: Any, box: Any
) -> Any:
    # pieces: rows lower, upper, d_0, sign; box: rows x0, x1, y0, y1. Returns how many there are.
    first, second = u1 / (1.0 + c), u2 / (1.0 + c)
    slope = first - second
    gap = omega[0, 0] - omega[0, 1]
    width = reach * math.sqrt(v22)
    span = math.sqrt(2.0) * math.sqrt(v11) * reach
    farthest = 1.0 / c if c > 0.0 else math.inf
    largest = min(farthest, 1e14)
    divisor = slope if abs(slope) >= 1e-150 else 1e-150
    scale = math.sqrt(4.0 * c + 0.3 * abs(u1 - u2) / (abs(omega[1, 0] - omega[1, 1]) + 3.0 * math.sqrt(noise)) + 1e-12)
    number = 0
    for sign in (1.0, -1.0):
        xa = (sign * omega[1, 0] - first - width) / divisor
        xb = (sign * omega[1, 0] - first + width) / divisor
        ya = (second - sign * omega[1, 1] - width) / divisor
        yb = (second - sign * omega[1, 1] + width) / divisor
        x0, x1 = max(min(xa, xb), 0.0), max(xa, xb)
        y0, y1 = max(min(ya, yb), 0.0), max(ya, yb)
        if x1 <= 0.0 or y1 <= 0.0 or x0 + y0 >= largest:
            continue
        x1, y1 = min(x1, largest - y0), min(y1, largest - x0)
        joined = x1 + y1 >= farthest
        near = 0.0 if joined else _gap(x1, y1, c)
        far = 1e150 if x0 <= 0.0 or y0 <= 0.0 else _gap(x0, y0, c)
        for side in range(2):
            if side == 0:
                lower, upper = -far if joined else near, far
            elif joined:
                break
            else:
                lower, upper = -far, -near
            lower, upper = max(lower, gap - span), min(upper, gap + span)
            if upper > lower:
                pieces[0, number] = math.asinh(lower / scale)
                pieces[1, number] = math.asinh(upper / scale)
                pieces[2, number] = scale
                pieces[3, number] = sign
                box[0, number], box[1, number] = x0, x1
                box[2, number], box[3, number] = y0, y1
                number += 1
    return number


def _integrate_block(
    u: Any, omega: Any, V: Any, c: Any, accuracy: Any, full: Any, points: Any, reach: Any, level: Any, rules: Any
) -> Any:
    rounds, negligible, share = int(rules[0]), rules[1], rules[2]
    v11, v12, v22 = V
    b = v12 / v11
    noise = v22 - v12 * b
    n = u.shape[0]
    number = 15 if full else 8
    scale = np.array([1.0, v11**-0.5, v11**-0.5, v22**-0.5, v22**-0.5])
    result, result_error = np.zeros((number, n)), np.empty(n)
    room = 4 * points * 2 ** max(rounds - 2, 0)  # a multiple of 4
    draft, places = np.empty((6, room)), np.empty((6, room))
    cols, part = np.empty((room, 9)), np.empty((room, 9))
    weight, owner = np.empty(room), np.empty(room, np.int64)
    table = np.empty(_ROWS * _ROW)
    sums, more = np.empty((room, number)), np.empty((room, number))
    kept, column_error = np.empty(room, np.int64), np.empty(room)
    pieces, box = np.empty((4, 4)), np.empty((4, 4))
    total, found = np.empty((4, number)), np.empty((4, number))
    inner, outer, found_error = np.empty(4), np.empty(4), np.empty(4)
    unfinished = np.empty(4, np.bool_)
    for sample in range(n):
        mean = omega[sample]
        middle, gap = 0.5 * (mean[0, 0] + mean[0, 1]), mean[0, 0] - mean[0, 1]
        first, second = u[sample, 0] / (1.0 + c), u[sample, 1] / (1.0 + c)
        slope = first - second
        many = _find_pieces(u[sample, 0], u[sample, 1], mean, v11, v22, noise, c, reach[sample], pieces, box)
        total[:] = 0.0
        inner[:] = 0.0
        outer[:] = 0.0
        unfinished[:] = True
        partition = 0.0
        count = points
        for round_ in range(rounds):
            some = False
            for piece in range(many):
                some = some or unfinished[piece]
            if not some:
                break
            # columns
            planned = 0
            offset = 0.0 if round_ == 0 else 0.5
            for piece in range(many):
                if not unfinished[piece]:
                    continue
                lower, spread = pieces[0, piece], pieces[2, piece]
                step = (pieces[1, piece] - lower) / count
                for j in range(count):
                    draft[0, planned] = lower + (j + offset) * step
                    draft[1, planned] = spread
                    for row in range(4):
                        draft[2 + row, planned] = box[row, piece]
                    weight[planned] = step
                    owner[planned] = piece
                    planned += 1
            # whole vectors of four: what is beyond the last column repeats it, and is not read
            padded = (planned + 3) // 4 * 4
            for j in range(planned, padded):
                for row in range(6):
                    draft[row, j] = draft[row, planned - 1]
            _place_columns(draft, padded, c, v11, reach[sample], middle, gap, places)
            size = 0
            for j in range(planned):
                if not places[2, j] > places[1, j]:
                    continue
                piece = owner[j]
                sign = pieces[3, piece]
                cols[size, 0] = places[0, j]
                cols[size, 1] = places[1, j]
                cols[size, 2] = (places[2, j] - places[1, j]) / points
                cols[size, 3] = sign * first - mean[1, 0]
                cols[size, 4] = sign * second - mean[1, 1]
                cols[size, 5] = sign * slope
                cols[size, 6] = places[3, j]
                cols[size, 7] = places[4, j]
                cols[size, 8] = weight[j] * places[5, j]
                owner[size] = piece
                size += 1
            _add_points(cols, size, points, 0.0, b, c, v11, noise, middle, gap, level[sample], table, sums, full)
            first_partition = 0.0
            for j in range(size):
                first_partition += sums[j, 0]
                column_error[j] = 0.0
            if round_ == 0:
                partition = first_partition
            # refine columns
            active = 0
            for j in range(size):
                if sums[j, 0] > negligible * accuracy * partition:
                    kept[active] = j
                    active += 1
            inside = points
            shrink = 1.0
            for _ in range(rounds):
                if active == 0:
                    break
                for i in range(active):
                    for entry in range(9):
                        part[i, entry] = cols[kept[i], entry]
                    part[i, 2] *= shrink
                _add_points(part, active, inside, 0.5, b, c, v11, noise, middle, gap, level[sample], table, more, full)
                still = 0
                for i in range(active):
                    j = kept[i]
                    ratio = _spread(sums, more, j, i, scale)
                    for moment in range(number):
                        sums[j, moment] = 0.5 * (sums[j, moment] + more[i, moment])
                    column_error[j] = ratio * ratio * sums[j, 0]
                    if ratio >= 1.0 or _expected(ratio) * sums[j, 0] > share * accuracy * partition:
                        kept[still] = j
                        still += 1
                active = still
                inside *= 2
                shrink *= 0.5
            # pieces
            found[:] = 0.0
            found_error[:] = 0.0
            for j in range(size):
                for moment in range(number):
                    found[owner[j], moment] += sums[j, moment]
                found_error[owner[j]] += column_error[j]
            for piece in range(many):
                if not unfinished[piece]:
                    continue
                if round_ == 0:
                    ratio = 1.0
                    for moment in range(number):
                        total[piece, moment] = found[piece, moment]
                    inner[piece] = found_error[piece]
                else:
                    ratio = _spread(total, found, piece, piece, scale)
                    for moment in range(number):
                        total[piece, moment] = 0.5 * (total[piece, moment] + found[piece, moment])
                    inner[piece] = 0.5 * (inner[piece] + found_error[piece])
                outer[piece] = ratio * ratio * total[piece, 0]
                found_error[piece] = ratio
            if round_ > 0:
                count *= 2
            partition = 0.0
            for piece in range(many):
                partition += total[piece, 0]
            for piece in range(many):
                if not unfinished[piece]:
                    continue
                limit = accuracy * partition
                failing = total[piece, 0] > negligible * limit
                if round_ > 0:
                    ratio = found_error[piece]
                    failing = failing and (ratio >= 1.0 or _expected(ratio) * total[piece, 0] > limit)
                unfinished[piece] = failing
        error = 0.0
        for piece in range(many):
            for moment in range(number):
                result[moment, sample] += total[piece, moment]
            error += inner[piece] + outer[piece]
        positive = result[0, sample] > 0.0
        result_error[sample] = error / result[0, sample] if positive else math.inf
    return result, result_error


_kernel = compiled(_integrate_block)


def block_sums(
    u: Array, omega: Array, rule: Rule, reach: Array, level: Array
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """``quadrature.block_sums`` for NumPy arrays."""
    # One layout only: each further one would be compiled anew.
    u, omega, reach, level = (np.require(array, np.float64, ["C", "W"]) for array in (u, omega, reach, level))
    problem = (rule.V, float(rule.skip), float(rule.accuracy), bool(rule.full), int(rule.points))
    sums, error = _kernel(u, omega, *problem, reach, level, (float(rule.rounds), rule.negligible, rule.share))
    return sums, error
