"""Points of the mixture from which deep attention is sampled, and their weights: compiled, for one label.

Points stand in the columns of a table, up to 64 at a time. Inner loops run along its rows without branches, so that the
compiler turns them into vector instructions. ``deep`` says what the mixture is made of.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numba import njit

from smimbench.interfaces import Host
from smimbench_attention.channels.compiling import (
    bounded_log,
    exp,
    inline,
    one_minus_exp,
)

WIDTH, STRIDE = (
    64,
    72,
)  # points at once, and numbers from row to row: a power of two would make rows share their cache lines
CENTERS = 8
"""Gaussians of a sample. Doubled: a third more time, a tenth less error."""

XI, DZ, Z, SHIFT, WEIGHTED, SPARE = range(0, 48, 8)  # by layer and token
SOLVED, CENTER = 48, 51  # by token
(
    ENERGY,
    PLUS,
    MINUS,
    EXISTS,
    WEIGHT,
    OFF_1,
    OFF_2,
    DET,
    INNER,
    SIDE,
    TOP,
    DENSITY,
    GAP,
    FACTOR,
) = range(54, 68)
NORMAL, FLIPPED, PAIRS, GAINS = (
    68,
    76,
    80,
    96,
)  # by Gaussian, layer, pair of layers, signs of all layers
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


class LatentLaw(NamedTuple):
    """Network, and constants of the prior ``N(omega, V (x) I)`` of its latents."""

    tokens: int
    skip: float
    root: Host  # V of the layers before the last = root root^T
    slopes: Host  # (1, L - 1): E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    precision: Host  # V^{-1}
    diagonal: bool  # whether V is diagonal
    variances: Host  # diag V


jit = njit(fastmath={"contract"}, error_model="numpy")


@inline
def bounded_exp(x):
    """Exponential of x clipped to [-700, 700]."""
    return exp(min(max(x, -700.0), 700.0))


@jit
def fill(row, n, value):
    """Set the first n entries of a row to a constant."""
    for j in range(n):
        row[j] = value


@jit
def add(row, addend, n, factor):
    """Add a multiple of another row to a row, in place."""
    for j in range(n):
        row[j] += factor * addend[j]


@jit
def add_product(row, row_1, row_2, n, factor):
    """Add a multiple of the elementwise product of two rows to a row, in place."""
    for j in range(n):
        row[j] += factor * row_1[j] * row_2[j]


@jit
def mix(t, n, layers, start, skip):
    """Product of the attention matrices of two tokens from layer ``start`` to ``layers``, which stand in the rows Z.

    ``B / (1 + c)^K`` has the off-diagonal entries OFF_1 and OFF_2, and its rows sum to 1. DET is its determinant, INNER that
    without the last layer, SIDE is ``h_1 - h_2`` of the last layer.
    """
    off_1 = t[OFF_1]
    off_2 = t[OFF_2]
    determinant = t[DET]
    inner = t[INNER]
    side = t[SIDE]
    if start == 0:
        for j in range(n):
            off_1[j] = off_2[j] = 0.0
            determinant[j] = 1.0
    for layer in range(start, layers):
        x = t[Z + 2 * layer]
        y = t[Z + 2 * layer + 1]
        scale = (1.0 + skip) ** layer
        share = 1.0 / (1.0 + skip)
        for j in range(n):
            previous = determinant[j]
            a = scale * (x[j] - off_1[j] * (x[j] - y[j]))
            d = scale * previous * (x[j] - y[j])
            odds_p, odds_q = bounded_exp(-a * d), bounded_exp((a - d) * d)
            p, q, square = 1.0 / (1.0 + odds_p), 1.0 / (1.0 + odds_q), d * d
            # p + q - 1 = p q (1 - exp(-d^2)), without cancellation where the tokens are alike
            expanded = one_minus_exp(-min(square, 0.5))
            direct = 1.0 - exp(-min(square, 700.0))
            gained = (expanded if square < 0.5 else direct) * p * q
            off_1[j] += odds_p * p * share * previous
            off_2[j] += odds_q * q * share * previous
            inner[j] = previous
            side[j] = d
            determinant[j] = (skip + gained) * share * previous


@jit
def _solve_two(t, n, u, law):
    # z_L at the sign + of u, and the determinant of B
    hidden = law.root.shape[0]
    mix(t, n, hidden, 0, law.skip)
    scale = (1.0 + law.skip) ** -hidden
    u_1, u_2, gap = scale * u[0], scale * u[1], scale * u[2]
    off_1 = t[OFF_1]
    off_2 = t[OFF_2]
    determinant = t[DET]
    x = t[SOLVED]
    y = t[SOLVED + 1]
    for j in range(n):
        determinant[j] = max(determinant[j], SINGULAR)
        step = gap / determinant[j]
        x[j], y[j] = u_1 + off_1[j] * step, u_2 - off_2[j] * step


@inline
def _attention_of_three(query, key_1, key_2, skip):
    # row of A(v) = c I + S(v) of the token ``query``: its own entry and those of the others
    odds_1 = bounded_exp(query * (key_1 - query))
    odds_2 = bounded_exp(query * (key_2 - query))
    share = 1.0 / (1.0 + odds_1 + odds_2)
    return skip + share, odds_1 * share, odds_2 * share


@jit
def _solve_three(t, n, u, law):
    # the same for three tokens and one layer before the last
    u_1, u_2, u_3 = u[0], u[1], u[2]
    for j in range(n):
        x, y, z = t[Z, j], t[Z + 1, j], t[Z + 2, j]
        a, b, c = _attention_of_three(x, y, z, law.skip)
        e, f, d = _attention_of_three(y, z, x, law.skip)
        i, g, h = _attention_of_three(z, x, y, law.skip)
        p, q, r = e * i - f * h, f * g - d * i, d * h - e * g
        determinant = a * p + b * q + c * r
        inverse = 1.0 / (determinant if abs(determinant) > SINGULAR else SINGULAR)
        t[SOLVED, j] = (
            p * u_1 + (c * h - b * i) * u_2 + (b * f - c * e) * u_3
        ) * inverse
        t[SOLVED + 1, j] = (
            q * u_1 + (a * i - c * g) * u_2 + (c * d - a * f) * u_3
        ) * inverse
        t[SOLVED + 2, j] = (
            r * u_1 + (b * g - a * h) * u_2 + (a * e - b * d) * u_3
        ) * inverse
        t[DET, j] = max(abs(determinant), SINGULAR)


@jit
def integrand(t, n, sample, law):
    """Log-integrand, but for the determinant of B, at the whitened points XI: PLUS and MINUS, for both signs of u."""
    u, omega = sample
    tokens, hidden = law.tokens, law.root.shape[0]
    energy, log_plus, log_minus = t[ENERGY], t[PLUS], t[MINUS]
    for row in range(ENERGY, EXISTS):
        fill(t[row], n, 0.0)
    for m in range(tokens):
        fill(t[CENTER + m], n, omega[hidden, m])
    for k in range(hidden * tokens):
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
        solved, center, mean = t[SOLVED + m], t[CENTER + m], omega[hidden, m]
        dz, z = t[DZ + hidden * tokens + m], t[Z + hidden * tokens + m]
        for j in range(n):
            plus, minus = solved[j] - center[j], solved[j] + center[j]
            log_plus[j] -= factor * plus * plus
            log_minus[j] -= factor * minus * minus
            dz[j], z[j] = solved[j] - mean, solved[j]
    for j in range(n):
        log_plus[j] -= energy[j]
        log_minus[j] -= energy[j]


@jit
def _draw_gaussians(t, begin, n, points, per_center, gaussians, size, tokens):
    # a normal vector of size + tokens numbers without its component along the rows from ``_describe``
    for j in range(n):
        gaussian = gaussians[(begin + j) // per_center % CENTERS]
        for k in range(size):
            t[XI + k, j] = gaussian[0, k] + SPREAD * points[k, begin + j]
        for m in range(tokens):
            projection = 0.0
            for k in range(size + tokens):
                projection += gaussian[4 + m, k] * points[k, begin + j]
            for k in range(size):
                t[XI + k, j] -= SPREAD * projection * gaussian[4 + m, k]


@inline
def _gap_constants(layer, omega, u, law):
    # scale of the difference of the tokens of a layer, mean and width of that of z_L, and ``|u_1 - u_2| / (1 + c)^{L-2}``
    hidden = law.root.shape[0]
    center = omega[hidden, 0] - omega[hidden, 1]
    width = math.sqrt(2.0 * law.variances[hidden])
    growth = (1.0 + law.skip) ** (hidden - 1)
    return (
        math.sqrt(2.0) * law.root[layer, layer],
        center,
        width,
        abs(u[2]) / growth,
        growth,
    )


@jit
def _draw_gaps(t, n, sample, law):
    # Points for nearly singular attention matrices. The difference of the tokens of ``z_L`` is drawn from its law; with the other
    # layers it fixes the determinant of the last attention matrix, and that the difference of the tokens of ``z_{L-1}``, by
    # ``det A = (1 + c) (c + d^2 / 4)`` for small d.
    u, omega = sample
    hidden, skip, determinant = law.root.shape[0], law.skip, t[DET]
    ratio, half = math.log(LEAST_GAP / LARGEST_GAP), math.sqrt(0.5)
    for layer in range(hidden):
        mix(t, n, layer, max(layer - 1, 0), skip)
        scale, center, width, output_gap, growth = _gap_constants(layer, omega, u, law)
        z_1 = t[Z + 2 * layer]
        z_2 = t[Z + 2 * layer + 1]
        xi_1 = t[XI + 2 * layer]
        xi_2 = t[XI + 2 * layer + 1]
        uniform = t[SPARE + layer]
        for m in range(2):  # the mean given the previous layers
            fill(t[Z + 2 * layer + m], n, omega[layer, m])
            for k in range(layer):
                add(t[Z + 2 * layer + m], t[XI + 2 * k + m], n, law.root[layer, k])
        for j in range(n):
            by_size = uniform[j] < BY_SIZE
            # the first half of a share is negative, the second half positive
            position = (
                uniform[j] / BY_SIZE
                if by_size
                else (uniform[j] - BY_SIZE) / (1.0 - BY_SIZE)
            )
            side = -1.0 if position < 0.5 else 1.0
            size = LARGEST_GAP * exp(
                ratio * (2.0 * position - (0.0 if position < 0.5 else 1.0))
            )
            base, white = z_1[j] - z_2[j], xi_2[j]
            gap, exists = base + scale * white, True
            if layer == hidden - 1:
                singular = output_gap / max(
                    abs(center + width * white) * determinant[j], TINY
                )
                square = 4.0 * (singular - skip)
                gap = (
                    side
                    * math.sqrt(square if square > 0.0 else 1.0)
                    / max(growth * determinant[j], TINY)
                )
                # solutions beyond 1e3 are ignored: signals are far smaller
                exists = square > 0.0 and singular < 1e3 and abs(gap) < 1e3
            gap = side * size if by_size else gap if exists else 0.0
            t[EXISTS, j] = 1.0 if exists or by_size else 0.0
            step, common = (gap - base) / scale, xi_1[j]
            xi_1[j], xi_2[j] = half * (common + step), half * (common - step)
        add(z_1, xi_1, n, law.root[layer, layer])
        add(z_2, xi_2, n, law.root[layer, layer])


@jit
def _log_gaps(t, n, sample, law):
    # density of these points over the standard normal one at 0: FACTOR times the exponential of GAP
    u, omega = sample
    hidden = law.root.shape[0]
    side = t[SIDE]
    inner = t[INNER]
    log = t[GAP]
    factor = t[FACTOR]
    for j in range(n):
        log[j], factor[j] = -t[ENERGY, j], 1.0
    for layer in range(hidden):
        scale, center, width, output_gap, growth = _gap_constants(layer, omega, u, law)
        z_1 = t[Z + 2 * layer]
        z_2 = t[Z + 2 * layer + 1]
        xi_1 = t[XI + 2 * layer]
        xi_2 = t[XI + 2 * layer + 1]
        # uniform in the logarithm, of any sign; densities are relative to 1 / sqrt(2 pi) per scale
        constant = (
            scale * math.sqrt(2.0 * math.pi) / (2.0 * math.log(LARGEST_GAP / LEAST_GAP))
        )
        for j in range(n):
            energy = 0.25 * (xi_1[j] - xi_2[j]) ** 2
            if layer == hidden - 1:
                singular = max(law.skip + 0.25 * side[j] * side[j], SINGULAR)
                # the difference of z_L that the approximate determinant would give
                step = output_gap / max(singular * inner[j], SINGULAR)
                up, down = (step - center) / width, (step + center) / width
                peaks = bounded_exp(-0.5 * up * up) + bounded_exp(-0.5 * down * down)
                layer_density = (
                    0.25
                    * scale
                    / width
                    * peaks
                    * min(step * abs(side[j]) * inner[j] * growth / singular, 1e100)
                )
            else:
                layer_density = bounded_exp(-energy)
            size = abs(z_1[j] - z_2[j])
            uniform = (
                constant / size if size >= LEAST_GAP and size <= LARGEST_GAP else 0.0
            )
            log[j] += energy
            factor[j] *= (1.0 - BY_SIZE) * layer_density + BY_SIZE * uniform


@jit
def _log_gaussian(t, n, gaussian, row, size, tokens):
    energy, dot_1, dot_2, dot_3 = row, t[SPARE], t[SPARE + 1], t[SPARE + 2]
    for j in range(n):
        energy[j] = dot_1[j] = dot_2[j] = dot_3[j] = 0.0
    for i in range(size):
        xi = t[XI + i]
        mean = gaussian[0, i]
        a = gaussian[1, i]
        b = gaussian[2, i]
        c = gaussian[3, i]
        for j in range(n):
            x = xi[j] - mean
            energy[j] += x * x
            dot_1[j] += a * x
            dot_2[j] += b * x
        for j in range(n if tokens == 3 else 0):
            dot_3[j] += c * (xi[j] - mean)
    constant, factor = gaussian[0, size] - size * math.log(SPREAD), 0.5 / SPREAD**2
    for j in range(n):
        energy[j] = constant - factor * (
            energy[j] + dot_1[j] * dot_1[j] + dot_2[j] * dot_2[j] + dot_3[j] * dot_3[j]
        )


@jit
def draw(t, component, begin, n, sample, law, gaussians, points, sizes):
    """Draw a block of points of the prior, the Gaussians or the gaps (0, 1, 2), with their log-weights WEIGHT.

    These are the integrand over the density of the whole mixture. ``points`` (K, count) are normal, then uniform numbers.
    """
    size = law.root.shape[0] * law.tokens
    tokens = law.tokens
    share = 1.0 / (sizes[0] + sizes[1] + sizes[2])
    energy, top, density, weight = t[ENERGY], t[TOP], t[DENSITY], t[WEIGHT]
    fill(t[EXISTS], n, 1.0)
    for k in range(size):
        fill(t[XI + k], n, 0.0)
        add(t[XI + k], points[k, begin:], n, 1.0)
    for k in range(law.root.shape[0]):
        fill(t[SPARE + k], n, 0.0)
        add(t[SPARE + k], points[size + tokens + k, begin:], n, 1.0)
    if component == 1:
        _draw_gaussians(
            t, begin, n, points, sizes[1] // CENTERS, gaussians, size, tokens
        )
    elif component == 2:
        _draw_gaps(t, n, sample, law)
    integrand(t, n, sample, law)
    fill(t[FACTOR], n, 0.0)
    fill(t[GAP], n, -math.inf)
    if tokens == 2:
        _log_gaps(t, n, sample, law)
    for j in range(n):
        top[j] = max(-energy[j], t[GAP, j])
    centers = CENTERS if sizes[1] else 0
    for k in range(centers):
        row = t[NORMAL + k]
        _log_gaussian(t, n, gaussians[k], row, size, tokens)
        for j in range(n):
            top[j] = max(top[j], row[j])
    prior = sizes[0] * share
    gaussian_share = sizes[1] * share / CENTERS
    gaps = sizes[2] * share
    for j in range(n):
        density[j] = prior * bounded_exp(-energy[j] - top[j]) + gaps * t[
            FACTOR, j
        ] * bounded_exp(t[GAP, j] - top[j])
    for k in range(centers):
        row = t[NORMAL + k]
        for j in range(n):
            density[j] += gaussian_share * bounded_exp(row[j] - top[j])
    for j in range(n):
        high, low = max(t[PLUS, j], t[MINUS, j]), min(t[PLUS, j], t[MINUS, j])
        log_ratio = bounded_log(
            (1.0 + bounded_exp(low - high)) / (t[DET, j] * density[j])
        )
        weight[j] = high - top[j] + log_ratio if t[EXISTS, j] > 0.0 else -math.inf
