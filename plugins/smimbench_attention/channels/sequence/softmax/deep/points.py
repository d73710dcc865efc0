"""Points of the mixture that deep attention is sampled with, and their weights: compiled, for one label.

Points stand in the columns of a table, up to 64 at a time. Inner loops run along its rows without branches, so that the
compiler turns them into vector instructions. ``deep`` says what the mixture is made of.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numba import njit

from smimbench.interfaces import Host
from smimbench_attention.channels.sequence.softmax.compiling import bounded_log, exp, inline, one_minus_exp

WIDTH, STRIDE = (
    64,
    72,
)  # points at once, and numbers from row to row: a power of two would make rows share their cache lines
CENTERS = 8
"""Gaussians of a sample. Doubled: a third more time, a tenth less error."""

XI, DZ, Z, SHIFT, WEIGHTED, SPARE = range(0, 48, 8)  # by layer and token
LAST, CENTER = 48, 51  # by token
ENERGY, PLUS, MINUS, EXISTS, WEIGHT, ONE, TWO, DET, INNER, SIDE, TOP, DENSITY, GAP, FACTOR = range(54, 68)
NORMAL, FLIPPED, PAIRS, GAINS = 68, 76, 80, 96  # by Gaussian, layer, pair of layers, signs of all layers
ROWS = 112

TINY, SINGULAR = (
    1e-300,
    1e-70,
)  # determinants below the second count as it: large numbers without weight, but never infinite
LEAST_GAP, LARGEST_GAP = 1e-3, 3.0
"""Where differences of two tokens are drawn uniformly in the logarithm. The former halved: outputs closer than 1e-18 are met."""
BY_SIZE = 0.25
"""Their share, in each layer. Doubled: a tenth more error at c = 1, less where c is tiny."""
SPREAD = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""


class Law(NamedTuple):
    """The network and the constants of the prior ``N(omega, V (x) I)``."""

    tokens: int
    skip: float
    root: Host  # V of the layers before the last = root root^T
    slopes: Host  # (1, L - 1): E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    precision: Host  # V^{-1}
    diagonal: bool  # whether V is
    variances: Host  # diag V


jit = njit(fastmath={"contract"}, error_model="numpy")


@inline
def bounded_exp(x):
    """Exponential of x taken into the range of -700 to 700."""
    return exp(min(max(x, -700.0), 700.0))


@jit
def fill(row, n, value):
    """Set the first n numbers of a row."""
    for j in range(n):
        row[j] = value


@jit
def add(row, other, n, factor):
    """Add a multiple of another row."""
    for j in range(n):
        row[j] += factor * other[j]


@jit
def add_product(row, one, two, n, factor):
    """Add a multiple of the product of two rows."""
    for j in range(n):
        row[j] += factor * one[j] * two[j]


@jit
def mix(t, n, layers, first, skip):
    """Product of the attention matrices of two tokens from layer ``first`` to ``layers``, which stand in the rows Z.

    ``B / (1 + c)^K`` has the off-diagonal entries ONE and TWO, and its rows sum to 1. DET is its determinant, INNER that
    without the last layer, SIDE is ``h_1 - h_2`` of the last layer.
    """
    one, two, determinant, inner, side = t[ONE], t[TWO], t[DET], t[INNER], t[SIDE]
    if first == 0:
        for j in range(n):
            one[j] = two[j] = 0.0
            determinant[j] = 1.0
    for layer in range(first, layers):
        x, y, scale, share = t[Z + 2 * layer], t[Z + 2 * layer + 1], (1.0 + skip) ** layer, 1.0 / (1.0 + skip)
        for j in range(n):
            old = determinant[j]
            a, d = scale * (x[j] - one[j] * (x[j] - y[j])), scale * old * (x[j] - y[j])
            left, right = bounded_exp(-a * d), bounded_exp((a - d) * d)
            p, q, square = 1.0 / (1.0 + left), 1.0 / (1.0 + right), d * d
            # p + q - 1 = p q (1 - exp(-d^2)), without cancellation where the tokens are alike
            near, far = one_minus_exp(-min(square, 0.5)), 1.0 - exp(-min(square, 700.0))
            gained = (near if square < 0.5 else far) * p * q
            one[j] += left * p * share * old
            two[j] += right * q * share * old
            inner[j], side[j], determinant[j] = old, d, (skip + gained) * share * old


@jit
def _solve_two(t, n, u, law):
    # z_L at the sign + of u, and the determinant of B
    before = law.root.shape[0]
    mix(t, n, before, 0, law.skip)
    scale = (1.0 + law.skip) ** -before
    first, second, gap = scale * u[0], scale * u[1], scale * u[2]
    one, two, determinant, x, y = t[ONE], t[TWO], t[DET], t[LAST], t[LAST + 1]
    for j in range(n):
        determinant[j] = max(determinant[j], SINGULAR)
        step = gap / determinant[j]
        x[j], y[j] = first + one[j] * step, second - two[j] * step


@inline
def _attention_of_three(own, other, another, skip):
    # row of A(v) = c I + S(v) of the token ``own``: its own entry and those of the others
    left, right = bounded_exp(own * (other - own)), bounded_exp(own * (another - own))
    share = 1.0 / (1.0 + left + right)
    return skip + share, left * share, right * share


@jit
def _solve_three(t, n, u, law):
    # the same for one layer of three tokens before the last
    one, two, three = u[0], u[1], u[2]
    for j in range(n):
        x, y, z = t[Z, j], t[Z + 1, j], t[Z + 2, j]
        a, b, c = _attention_of_three(x, y, z, law.skip)
        e, f, d = _attention_of_three(y, z, x, law.skip)
        i, g, h = _attention_of_three(z, x, y, law.skip)
        p, q, r = e * i - f * h, f * g - d * i, d * h - e * g
        determinant = a * p + b * q + c * r
        inverse = 1.0 / (determinant if abs(determinant) > SINGULAR else SINGULAR)
        t[LAST, j] = (p * one + (c * h - b * i) * two + (b * f - c * e) * three) * inverse
        t[LAST + 1, j] = (q * one + (a * i - c * g) * two + (c * d - a * f) * three) * inverse
        t[LAST + 2, j] = (r * one + (b * g - a * h) * two + (a * e - b * d) * three) * inverse
        t[DET, j] = max(abs(determinant), SINGULAR)


@jit
def integrand(t, n, sample, law):
    """Log-integrand, but for the determinant of B, at the whitened points XI: PLUS and MINUS, for both signs of u."""
    u, omega = sample
    tokens, before = law.tokens, law.root.shape[0]
    energy, log_plus, log_minus = t[ENERGY], t[PLUS], t[MINUS]
    for row in range(ENERGY, EXISTS):
        fill(t[row], n, 0.0)
    for m in range(tokens):
        fill(t[CENTER + m], n, omega[before, m])
    for k in range(before * tokens):
        layer, m = k // tokens, k % tokens
        dz, z = t[DZ + k], t[Z + k]
        fill(dz, n, 0.0)
        for b in range(layer + 1):
            add(dz, t[XI + b * tokens + m], n, law.root[layer, b])
        fill(z, n, omega[layer, m])
        add(z, dz, n, 1.0)
        add(t[CENTER + m], dz, n, law.slopes[layer])
        add_product(energy, t[XI + k], t[XI + k], n, 0.5)
    if tokens == 2:
        _solve_two(t, n, u, law)
    else:
        _solve_three(t, n, u, law)
    factor = 0.5 / law.noise
    for m in range(tokens):
        last, center, mean = t[LAST + m], t[CENTER + m], omega[before, m]
        dz, z = t[DZ + before * tokens + m], t[Z + before * tokens + m]
        for j in range(n):
            plus, minus = last[j] - center[j], last[j] + center[j]
            log_plus[j] -= factor * plus * plus
            log_minus[j] -= factor * minus * minus
            dz[j], z[j] = last[j] - mean, last[j]
    for j in range(n):
        log_plus[j] -= energy[j]
        log_minus[j] -= energy[j]


@jit
def _draw_gaussians(t, begin, n, points, each, gaussians, size, tokens):
    # a normal vector of size + tokens numbers without its part along the rows that ``_describe`` found
    for j in range(n):
        gaussian = gaussians[(begin + j) // each % CENTERS]
        for k in range(size):
            t[XI + k, j] = gaussian[0, k] + SPREAD * points[k, begin + j]
        for m in range(tokens):
            known = 0.0
            for k in range(size + tokens):
                known += gaussian[4 + m, k] * points[k, begin + j]
            for k in range(size):
                t[XI + k, j] -= SPREAD * known * gaussian[4 + m, k]


@inline
def _gap_constants(layer, omega, u, law):
    # scale of the difference of the tokens of a layer, mean and width of that of z_L, and ``|u_1 - u_2| / (1 + c)^{L-2}``
    before = law.root.shape[0]
    center, width = omega[before, 0] - omega[before, 1], math.sqrt(2.0 * law.variances[before])
    growth = (1.0 + law.skip) ** (before - 1)
    return math.sqrt(2.0) * law.root[layer, layer], center, width, abs(u[2]) / growth, growth


@jit
def _draw_gaps(t, n, sample, law):
    # Points for nearly singular attention matrices. The difference of the tokens of ``z_L`` is drawn from its law; with the other
    # layers it fixes the determinant of the last attention matrix, and that the difference of the tokens of ``z_{L-1}``, by
    # ``det A = (1 + c) (c + d^2 / 4)`` for small d.
    u, omega = sample
    before, skip, determinant = law.root.shape[0], law.skip, t[DET]
    ratio, half = math.log(LEAST_GAP / LARGEST_GAP), math.sqrt(0.5)
    for layer in range(before):
        mix(t, n, layer, max(layer - 1, 0), skip)
        scale, center, width, small, growth = _gap_constants(layer, omega, u, law)
        first, second, one, two, uniform = (
            t[Z + 2 * layer],
            t[Z + 2 * layer + 1],
            t[XI + 2 * layer],
            t[XI + 2 * layer + 1],
            t[SPARE + layer],
        )
        for m in range(2):  # the mean given the layers before
            fill(t[Z + 2 * layer + m], n, omega[layer, m])
            for k in range(layer):
                add(t[Z + 2 * layer + m], t[XI + 2 * k + m], n, law.root[layer, k])
        for j in range(n):
            by_size = uniform[j] < BY_SIZE
            # the first half of a share has one sign, the second one the other
            spread = uniform[j] / BY_SIZE if by_size else (uniform[j] - BY_SIZE) / (1.0 - BY_SIZE)
            side = -1.0 if spread < 0.5 else 1.0
            size = LARGEST_GAP * exp(ratio * (2.0 * spread - (0.0 if spread < 0.5 else 1.0)))
            base, white = first[j] - second[j], two[j]
            gap, exists = base + scale * white, True
            if layer == before - 1:
                singular = small / max(abs(center + width * white) * determinant[j], TINY)
                square = 4.0 * (singular - skip)
                gap = side * math.sqrt(square if square > 0.0 else 1.0) / max(growth * determinant[j], TINY)
                # no solution is looked for beyond 1e3: the law of a signal is far smaller
                exists = square > 0.0 and singular < 1e3 and abs(gap) < 1e3
            gap = side * size if by_size else gap if exists else 0.0
            t[EXISTS, j] = 1.0 if exists or by_size else 0.0
            step, middle = (gap - base) / scale, one[j]
            one[j], two[j] = half * (middle + step), half * (middle - step)
        add(first, one, n, law.root[layer, layer])
        add(second, two, n, law.root[layer, layer])


@jit
def _log_gaps(t, n, sample, law):
    # density of these points over the standard normal one at 0: FACTOR times the exponential of GAP
    u, omega = sample
    before, side, inner, log, factor = law.root.shape[0], t[SIDE], t[INNER], t[GAP], t[FACTOR]
    for j in range(n):
        log[j], factor[j] = -t[ENERGY, j], 1.0
    for layer in range(before):
        scale, center, width, small, growth = _gap_constants(layer, omega, u, law)
        first, second, one, two = t[Z + 2 * layer], t[Z + 2 * layer + 1], t[XI + 2 * layer], t[XI + 2 * layer + 1]
        # uniform in the logarithm, of any sign; densities are relative to 1 / sqrt(2 pi) per scale
        constant = scale * math.sqrt(2.0 * math.pi) / (2.0 * math.log(LARGEST_GAP / LEAST_GAP))
        for j in range(n):
            energy = 0.25 * (one[j] - two[j]) ** 2
            if layer == before - 1:
                singular = max(law.skip + 0.25 * side[j] * side[j], SINGULAR)
                # the difference of z_L that the approximate determinant would give
                step = small / max(singular * inner[j], SINGULAR)
                up, down = (step - center) / width, (step + center) / width
                both = bounded_exp(-0.5 * up * up) + bounded_exp(-0.5 * down * down)
                own = 0.25 * scale / width * both * min(step * abs(side[j]) * inner[j] * growth / singular, 1e100)
            else:
                own = bounded_exp(-energy)
            size = abs(first[j] - second[j])
            uniform = constant / size if size >= LEAST_GAP and size <= LARGEST_GAP else 0.0
            log[j] += energy
            factor[j] *= (1.0 - BY_SIZE) * own + BY_SIZE * uniform


@jit
def _log_gaussian(t, n, gaussian, row, size, tokens):
    energy, one, two, three = row, t[SPARE], t[SPARE + 1], t[SPARE + 2]
    for j in range(n):
        energy[j] = one[j] = two[j] = three[j] = 0.0
    for i in range(size):
        xi, middle, a, b, c = t[XI + i], gaussian[0, i], gaussian[1, i], gaussian[2, i], gaussian[3, i]
        for j in range(n):
            x = xi[j] - middle
            energy[j] += x * x
            one[j] += a * x
            two[j] += b * x
        for j in range(n if tokens == 3 else 0):
            three[j] += c * (xi[j] - middle)
    constant, factor = gaussian[0, size] - size * math.log(SPREAD), 0.5 / SPREAD**2
    for j in range(n):
        energy[j] = constant - factor * (energy[j] + one[j] * one[j] + two[j] * two[j] + three[j] * three[j])


@jit
def draw(t, component, begin, n, sample, law, gaussians, points, sizes):
    """Draw a block of points of the prior, the Gaussians or the gaps (0, 1, 2), with their log-weights WEIGHT.

    These are the integrand over the density of the whole mixture. ``points`` (K, count) are normal, then uniform numbers.
    """
    size, tokens, share = law.root.shape[0] * law.tokens, law.tokens, 1.0 / (sizes[0] + sizes[1] + sizes[2])
    energy, top, density, weight = t[ENERGY], t[TOP], t[DENSITY], t[WEIGHT]
    fill(t[EXISTS], n, 1.0)
    for k in range(size):
        fill(t[XI + k], n, 0.0)
        add(t[XI + k], points[k, begin:], n, 1.0)
    for k in range(law.root.shape[0]):
        fill(t[SPARE + k], n, 0.0)
        add(t[SPARE + k], points[size + tokens + k, begin:], n, 1.0)
    if component == 1:
        _draw_gaussians(t, begin, n, points, sizes[1] // CENTERS, gaussians, size, tokens)
    elif component == 2:
        _draw_gaps(t, n, sample, law)
    integrand(t, n, sample, law)
    fill(t[FACTOR], n, 0.0)
    fill(t[GAP], n, -math.inf)
    if tokens == 2:
        _log_gaps(t, n, sample, law)
    for j in range(n):
        top[j] = max(-energy[j], t[GAP, j])
    many = CENTERS if sizes[1] else 0
    for k in range(many):
        row = t[NORMAL + k]
        _log_gaussian(t, n, gaussians[k], row, size, tokens)
        for j in range(n):
            top[j] = max(top[j], row[j])
    prior, each, gaps = sizes[0] * share, sizes[1] * share / CENTERS, sizes[2] * share
    for j in range(n):
        density[j] = prior * bounded_exp(-energy[j] - top[j]) + gaps * t[FACTOR, j] * bounded_exp(t[GAP, j] - top[j])
    for k in range(many):
        row = t[NORMAL + k]
        for j in range(n):
            density[j] += each * bounded_exp(row[j] - top[j])
    for j in range(n):
        high, low = max(t[PLUS, j], t[MINUS, j]), min(t[PLUS, j], t[MINUS, j])
        rest = bounded_log((1.0 + bounded_exp(low - high)) / (t[DET, j] * density[j]))
        weight[j] = high - top[j] + rest if t[EXISTS, j] > 0.0 else -math.inf
