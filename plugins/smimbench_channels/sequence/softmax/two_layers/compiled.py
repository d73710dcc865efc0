"""The adaptive quadrature compiled for NumPy arrays, where Numba is installed.

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
from smimbench_channels.sequence.softmax.two_layers.pieces import Rule

__all__ = ["block_sums"]

_FAR = 700.0
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
def _root(x: Any, k: Any, c: Any) -> Any:
    # E where x(E) = x: 0 where every E has a smaller x, infinity where none has (the quotient is infinite then)
    tail = k * (1.0 - c * x)
    a = c * k * x
    b = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k
    root = math.sqrt(b * b + 4.0 * a * max(tail, 0.0))
    found = 2.0 * tail / (b + root) if b >= 0.0 else (root - b) / (2.0 * a)
    return found if tail > 0.0 else 0.0


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
        low = _bounded_log(max(_root(draft[3, j], k, c), 1.0 / _root(draft[4, j], k, c)))
        high = _bounded_log(min(_root(draft[2, j], k, c), 1.0 / _root(draft[5, j], k, c)))
        half = math.sqrt(max(radius, 0.0))
        inverse = 1.0 / d
        left = max(min(low * inverse, high * inverse), middle - half)
        right = min(max(low * inverse, high * inverse), middle + half)
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


@njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
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
    sums: Any,
    full: Any,
) -> Any:
    # cols: a row for each column: d, left, step, first, second, slope, k, 1 - k^2, weight
    prior, likelihood = -0.5 / v11, -0.5 / noise
    padded = (count + 7) // 8 * 8
    for j in range(size):
        d, left, step = cols[j, 0], cols[j, 1], cols[j, 2]
        first, second, slope = cols[j, 3], cols[j, 4], cols[j, 5]
        k, rest = cols[j, 6], cols[j, 7]
        half = 0.5 * (d - gap)
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        s8 = s9 = s10 = s11 = s12 = s13 = s14 = 0.0
        # whole vectors of eight; what is beyond count weighs nothing
        for point in range(padded):
            m = left + (point + offset) * step
            E = _exp(min(max(m * d, -300.0), 300.0))
            kE = k * E
            one = E + k
            two = 1.0 + kE
            N = one * two
            inverse = 1.0 / (c * N + rest * E)
            kinv = slope * inverse
            e1 = first + (k * two) * kinv
            e2 = second - (kE * one) * kinv
            shifted = m - middle
            a1 = shifted + half
            a2 = shifted - half
            aa = a1 * a1 + a2 * a2
            r1 = e1 - b * a1
            r2 = e2 - b * a2
            q = prior * aa + likelihood * (r1 * r1 + r2 * r2) - level
            w = _exp(min(max(q, -_FAR), _FAR)) * (N * inverse)
            w = w if point < count else 0.0
            w1 = w * a1
            w2 = w * a2
            w3 = w * e1
            w4 = w * e2
            s0 += w
            s1 += w1
            s2 += w2
            s3 += w3
            s4 += w4
            if full:
                s5 += w1 * a1
                s6 += w1 * a2
                s7 += w1 * e1
                s8 += w1 * e2
                s9 += w2 * a2
                s10 += w2 * e1
                s11 += w2 * e2
                s12 += w3 * e1
                s13 += w3 * e2
                s14 += w4 * e2
            else:
                s5 += w * aa
                s6 += w1 * e1 + w2 * e2
                s7 += w3 * e1 + w4 * e2
        factor = step * cols[j, 8]
        sums[j, 0], sums[j, 1], sums[j, 2] = s0 * factor, s1 * factor, s2 * factor
        sums[j, 3], sums[j, 4], sums[j, 5] = s3 * factor, s4 * factor, s5 * factor
        sums[j, 6], sums[j, 7] = s6 * factor, s7 * factor
        if full:
            sums[j, 8], sums[j, 9], sums[j, 10] = s8 * factor, s9 * factor, s10 * factor
            sums[j, 11], sums[j, 12], sums[j, 13] = s11 * factor, s12 * factor, s13 * factor
            sums[j, 14] = s14 * factor


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
    room = 4 * points * 2 ** max(rounds - 2, 0)
    draft, places = np.empty((6, room)), np.empty((6, room))
    cols, part = np.empty((room, 9)), np.empty((room, 9))
    weight, owner = np.empty(room), np.empty(room, np.int64)
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
            _place_columns(draft, planned, c, v11, reach[sample], middle, gap, places)
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
            _add_points(cols, size, points, 0.0, b, c, v11, noise, middle, gap, level[sample], sums, full)
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
                _add_points(part, active, inside, 0.5, b, c, v11, noise, middle, gap, level[sample], more, full)
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


def _compile() -> Any:
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(_integrate_block)
    except RuntimeError:  # no folder to keep the machine code in
        return njit(nogil=True, error_model="numpy")(_integrate_block)


_kernel = _compile()


def block_sums(
    u: Array, omega: Array, rule: Rule, reach: Array, level: Array
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """``quadrature.block_sums`` for NumPy arrays."""
    # One layout only: each further one would be compiled anew.
    u, omega, reach, level = (np.require(array, np.float64, ["C", "W"]) for array in (u, omega, reach, level))
    problem = (rule.V, float(rule.skip), float(rule.accuracy), bool(rule.full), int(rule.points))
    sums, error = _kernel(u, omega, *problem, reach, level, (float(rule.rounds), rule.negligible, rule.share))
    return sums, error
