"""Importance sampling of deep attention, compiled: explores, fits Gaussians, sums moments and their error, label by label.

Numba keeps machine code until this file changes: touch it when ``points`` does.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from smimbench_attention.channels.compiling import compiled, exp
from smimbench_attention.channels.sequence.softmax.deep.points import (
    CENTER,
    CENTERS,
    DZ,
    ENERGY,
    FLIPPED,
    GAINS,
    MINUS,
    OFF_1,
    OFF_2,
    PAIRS,
    PLUS,
    ROWS,
    SHIFT,
    SOLVED,
    STRIDE,
    TOP,
    WEIGHT,
    WEIGHTED,
    WIDTH,
    XI,
    Z,
    add,
    add_product,
    bounded_exp,
    draw,
    fill,
    integrand,
    jit,
    mix,
)

SCRAMBLES = 8
"""Independent sets of points; their spread is the error. Doubled: half as many points in each, up to twice the error."""
FEW_POINTS = 40.0
"""Effective points below which an estimate is made again, its bias uncorrected. Doubled: more are done again at small V."""


@jit
def _explore(t, sample, law, gaussians, points, sizes, seeds):
    # Gaussians around points of large weight, moved toward the maximum. Centers are drawn without replacement, with the square
    # roots of the weights as odds: bold, but not blind to small modes.
    size = law.root.shape[0] * law.tokens
    weakest, lowest = 0, -math.inf
    for k in range(CENTERS):
        seeds[k, 0] = lowest
    for component in range(3):
        noise = points[component][0, size + law.tokens + law.root.shape[0]]
        for begin in range(0, len(noise), WIDTH):
            n = min(WIDTH, len(noise) - begin)
            draw(
                t,
                component,
                begin,
                n,
                sample,
                law,
                gaussians,
                points[component][0],
                sizes,
            )
            for j in range(n):
                # where all weights are zero, any center will do
                height = 0.5 * max(t[WEIGHT, j], -1e300) + noise[begin + j]
                if height > lowest:
                    seeds[weakest, 0] = height
                    seeds[weakest, 1] = 1.0 if t[PLUS, j] >= t[MINUS, j] else -1.0
                    for k in range(size):
                        seeds[weakest, 2 + k] = t[XI + k, j]
                    lowest = math.inf
                    for k in range(CENTERS):
                        weakest, lowest = (
                            (k, seeds[k, 0])
                            if seeds[k, 0] < lowest
                            else (weakest, lowest)
                        )
    _fit(t, sample, law, gaussians, seeds)


@jit
def _fit(t, sample, law, gaussians, seeds):
    # Damped Gauss-Newton steps for all centers at once. With the residual r of z_L and its derivative J the posterior is nearly
    # exp(-|x|^2 / 2 - |r + J (x - center)|^2 / 2), that of a normal vector of which M combinations are known: the rows of (J, I).
    tokens, size = law.tokens, law.root.shape[0] * law.tokens
    increment, unit, probes = 1e-5, 1.0 / math.sqrt(law.noise), size + 1
    rows, residual = np.zeros((3, 6)), np.zeros(3)
    for trial in range(5):
        for k in range(CENTERS):
            for column in range(probes):
                for i in range(size):
                    t[XI + i, k * probes + column] = seeds[k, 2 + i] + (
                        increment if column == i + 1 else 0.0
                    )
        integrand(t, CENTERS * probes, sample, law)
        for k in range(CENTERS):
            seed, gaussian, place = seeds[k], gaussians[k], k * probes
            value = t[ENERGY, place]
            for m in range(tokens):
                solved, center = t[SOLVED + m], t[CENTER + m]
                residual[m] = (seed[1] * solved[place] - center[place]) * unit
                value += 0.5 * residual[m] ** 2
                for i in range(size):
                    at = place + i + 1
                    slope = (
                        (seed[1] * solved[at] - center[at]) * unit - residual[m]
                    ) / increment
                    rows[m, i] = slope if abs(slope) < 1e100 else 0.0
            better = trial == 0 or value < gaussian[0, size + 1]
            if better:
                for i in range(size):
                    gaussian[0, i] = seed[2 + i]
                gaussian[0, size + 1] = value
                _describe(gaussian, rows, residual, size, tokens)
            # length of the next step
            length = (
                1.0
                if trial == 0
                else min(1.0, gaussian[0, size + 2] * (2.0 if better else 0.3))
            )
            gaussian[0, size + 2] = length
            for i in range(size):
                seed[2 + i] = gaussian[0, i] + length * gaussian[7, i]


@jit
def _dot(x, y, n):
    total = 0.0
    for i in range(n):
        total += x[i] * y[i]
    return total


@jit
def _describe(gaussian, rows, residual, size, tokens):
    # J in rows 1 to 3, an orthonormal basis of the rows of (J, I) in 4 to 6, the step to the maximum in 7; behind the center the
    # logarithm of the root of the curvature's determinant
    step = gaussian[7]
    gaussian[0, size] = 0.0
    for m in range(tokens):
        row = gaussian[4 + m]
        for i in range(size):
            gaussian[1 + m, i] = row[i] = rows[m, i]
        for i in range(tokens):
            row[size + i] = 1.0 if i == m else 0.0
        target = _dot(rows[m], gaussian[0], size) - residual[m]
        for k in range(m):
            previous = gaussian[4 + k]
            product = _dot(row, previous, size + tokens)
            target -= product * previous[8]
            for i in range(size + tokens):
                row[i] -= product * previous[i]
        norm = math.sqrt(_dot(row, row, size + tokens))
        row[8] = target / norm
        gaussian[0, size] += math.log(norm)
        for i in range(size + tokens):
            row[i] /= norm
            step[i] = row[8] * row[i] + (
                step[i] if m else -gaussian[0, i] if i < size else 0.0
            )


@jit
def _flip(t, n, omega, law):
    # Chances FLIPPED of the other sign of each layer, and covariances PAIRS of two flips. A label does not change with these
    # signs, so only the Gaussian law tells them apart, and they are summed out exactly.
    layers, tokens = omega.shape
    top, total, codes = t[TOP], t[OFF_1], 1 << layers
    if law.diagonal:  # each layer's sign by itself
        for a in range(layers):
            flipped, pair = t[FLIPPED + a], t[PAIRS + a * layers + a]
            fill(top, n, 0.0)
            for m in range(tokens):
                add(
                    top,
                    t[Z + a * tokens + m],
                    n,
                    2.0 * law.precision[a, a] * omega[a, m],
                )
            for j in range(n):
                odds = bounded_exp(top[j])
                flipped[j] = 1.0 / (1.0 + odds)
                pair[j] = odds * flipped[j] * flipped[j]
        return
    fill(top, n, 0.0)
    fill(total, n, 0.0)
    for code in range(codes):
        gain = t[GAINS + code]
        fill(gain, n, 0.0)
        for a in range(layers):
            for b in range(layers):
                for m in range(tokens if law.precision[a, b] != 0.0 else 0):
                    z_a, z_b = t[Z + a * tokens + m], t[Z + b * tokens + m]
                    if code >> a & 1:
                        add(gain, z_a, n, -2.0 * law.precision[a, b] * omega[b, m])
                    if a > b and (code >> a ^ code >> b) & 1:
                        add_product(gain, z_a, z_b, n, 2.0 * law.precision[a, b])
        for j in range(n):
            top[j] = max(top[j], gain[j])
    for code in range(codes):
        gain = t[GAINS + code]
        for j in range(n):
            gain[j] = bounded_exp(gain[j] - top[j])
            total[j] += gain[j]
    for a in range(layers):
        flipped = t[FLIPPED + a]
        for b in range(a, -1, -1):
            pair = t[PAIRS + a * layers + b]
            fill(pair, n, 0.0)
            for code in range(codes):
                if code >> a & code >> b & 1:
                    add(pair, t[GAINS + code], n, 1.0)
            for j in range(n):
                pair[j] /= total[j]
                flipped[j] = pair[j] if a == b else flipped[j]
                pair[j] -= flipped[j] * t[FLIPPED + b, j]


@njit(fastmath={"contract", "reassoc"}, error_model="numpy")
def _add_sums(row, factor_row, begin, n, per_scramble, sums):
    # sums of products by scramble
    for scramble in range(begin // per_scramble, (begin + n - 1) // per_scramble + 1):
        total = 0.0
        for j in range(
            max(0, scramble * per_scramble - begin),
            min(n, (scramble + 1) * per_scramble - begin),
        ):
            total += row[j] * factor_row[j]
        sums[scramble] += total


@jit
def _accumulate(t, begin, n, per_scramble, omega, law, full, sums):
    # sums (K, scrambles) of the weight, its square, the shift and, if wanted, the second moment or its traces over tokens
    layers, tokens = omega.shape
    size, weight, spare, unit_row = layers * tokens, t[WEIGHT], t[OFF_2], t[OFF_1]
    _flip(t, n, omega, law)
    fill(unit_row, n, 1.0)
    _add_sums(weight, unit_row, begin, n, per_scramble, sums[0])
    _add_sums(weight, weight, begin, n, per_scramble, sums[1])
    rank = size if full else layers
    for k in range(size):
        a = k // tokens
        z = t[Z + k]
        dz = t[DZ + k]
        flipped = t[FLIPPED + k // tokens]
        shift = t[SHIFT + k]
        weighted = t[WEIGHTED + k]
        for j in range(n):
            # s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
            shift[j] = dz[j] - 2.0 * flipped[j] * z[j]
            weighted[j] = shift[j] * weight[j]
        _add_sums(weighted, unit_row, begin, n, per_scramble, sums[2 + k])
        for i in range(k + 1 if len(sums) > 2 + size else 0):
            b = i // tokens
            if full or k % tokens == i % tokens:
                column = sums[2 + size + (k * rank + i if full else a * rank + b)]
                _add_sums(weighted, t[SHIFT + i], begin, n, per_scramble, column)
                if a == b or not law.diagonal:  # contribution of the fluctuating signs
                    pair = t[PAIRS + a * layers + b]
                    for j in range(n):
                        spare[j] = 4.0 * weight[j] * pair[j] * z[j]
                    _add_sums(spare, t[Z + i], begin, n, per_scramble, column)


@jit
def _estimate(t, sample, law, gaussians, points, sizes, full, sums, estimates):
    # Level, mass, error and means from all scrambles into ``estimates``. Returns the effective number of points.
    omega, level, weight = sample[1], -1e300, t[WEIGHT]
    layers, tokens = omega.shape
    size, columns = layers * tokens, len(sums)
    rank = 0 if columns == 2 + size else size if full else layers
    for k in range(columns):
        fill(sums[k], SCRAMBLES, 0.0)
    for component in range(3):
        for begin in range(0, points[component].shape[1], WIDTH):
            n, higher = min(WIDTH, points[component].shape[1] - begin), level
            draw(
                t, component, begin, n, sample, law, gaussians, points[component], sizes
            )
            for j in range(n):
                higher = max(higher, weight[j])
            fade = math.exp(max(level - higher, -700.0))
            level = higher
            for k in range(columns if fade < 1.0 else 0):
                for scramble in range(SCRAMBLES):
                    sums[k, scramble] *= fade * fade if k == 1 else fade
            for j in range(n):
                # arithmetic with subnormal numbers is slow
                height = max(weight[j] - level, -100.0)
                weight[j] = exp(height) if height > -100.0 else 0.0
            _accumulate(t, begin, n, sizes[component], omega, law, full, sums)
    mass = squares = error = 0.0
    for scramble in range(SCRAMBLES):
        mass += sums[0, scramble] / SCRAMBLES
        squares += sums[1, scramble]
    safe = mass if mass > 0.0 else 1.0
    effective = (SCRAMBLES * mass) ** 2 / squares if mass > 0.0 else 0.0
    # Ratios of the scrambles' sums and their variance, less their bias where many points count.
    scale = 1.0 / (SCRAMBLES * (SCRAMBLES - 1.0))
    for k in range(2, columns):
        ratio = bias = variance = 0.0
        for scramble in range(SCRAMBLES):
            ratio += sums[k, scramble] / (SCRAMBLES * safe)
        for scramble in range(SCRAMBLES):
            share = sums[0, scramble] / safe
            deviation = sums[k, scramble] / safe - ratio * share
            bias += scale * deviation * (share - 1.0)
            variance += scale * deviation * deviation
        estimates[1 + k] = ratio + (bias if effective > FEW_POINTS else 0.0)
        if k < 2 + size:
            error += variance / law.variances[(k - 2) // tokens] / size
    for k in range(rank):
        for i in range(k):
            estimates[3 + size + i * rank + k] = estimates[3 + size + k * rank + i]
    # What no point has met is about as much as the heaviest point stands for; the bias of a ratio of means is less. 1.5 is for
    # eight scrambles and weights with heavy tails (checked against tables).
    estimates[0], estimates[1] = level, mass / (sizes[0] + sizes[1] + sizes[2])
    estimates[2] = (
        1.5 * math.sqrt(error + 1.0 / (SCRAMBLES * safe) ** 2)
        if mass > 0.0
        else math.inf
    )
    return effective


@jit
def _runs(t, sample, law, gaussians, points, full, sums, estimates):
    # Independent estimates into the rows of ``estimates``; the least of their effective numbers of points.
    fewest = math.inf
    for run in range(len(estimates)):
        run_points = points[0][0][run], points[0][1][run], points[0][2][run]
        fewest = min(
            fewest,
            _estimate(
                t,
                sample,
                law,
                gaussians,
                run_points,
                points[1],
                full,
                sums,
                estimates[run],
            ),
        )
    return fewest


@compiled
def integrate_samples(u, omega, law, accuracy, sets, full, estimates):
    """Compute the posterior moments of all samples, one after the other, by importance sampling.

    ``u`` (n, M) outputs, of two tokens with their difference as a third number; ``omega`` (n, L, M); ``sets`` are four pairs,
    of points for each component and their number in a scramble: pilot, improvement, first and last estimate; ``estimates``
    (n, R, 3 + K) gets level, mass, error and K means from R runs of estimates, each with its own points and the same Gaussians.
    The means are first moments, alone or followed by second ones, ``full`` or traces.
    """
    pilot, improvement, trial, complete = sets
    t = np.zeros((ROWS, STRIDE))
    gaussians = np.zeros((CENTERS, 8, 9))
    seeds = np.zeros((CENTERS, 8))
    sums = np.zeros((estimates.shape[2] - 1, SCRAMBLES))
    retry = np.zeros(estimates.shape[1:])
    for row in range(len(u)):
        sample = u[row], omega[row]
        _explore(t, sample, law, gaussians, pilot[0], pilot[1], seeds)
        effective = _runs(t, sample, law, gaussians, trial, full, sums, estimates[row])
        # Then with all points where accuracy asks for it, and twice again from what the mixture found where few points count.
        for stage in range(3):
            worst = 0.0
            for run in range(len(retry)):
                worst = max(worst, estimates[row, run, 2])
            if (
                effective >= FEW_POINTS
                if stage
                else trial[1] == complete[1] or worst <= accuracy
            ):
                continue
            if stage:
                _explore(
                    t, sample, law, gaussians, improvement[0], improvement[1], seeds
                )
            retried = _runs(t, sample, law, gaussians, complete, full, sums, retry)
            if retried > effective:
                effective = retried
                for run in range(len(retry)):
                    for k in range(retry.shape[1]):
                        estimates[row, run, k] = retry[run, k]


@compiled
def mixing_of_samples(z, skip, matrix_entries):
    """Off-diagonal entries and determinant ``matrix_entries`` (3, n) of ``B / (1 + c)^K`` for the K layers ``z`` (n, K, 2)."""
    t = np.zeros((ROWS, STRIDE))
    for begin in range(0, len(z), WIDTH):
        n = min(WIDTH, len(z) - begin)
        for k in range(2 * z.shape[1]):
            for j in range(n):
                t[Z + k, j] = z[begin + j, k // 2, k % 2]
        mix(t, n, z.shape[1], 0, skip)
        for k in range(3):
            for j in range(n):
                matrix_entries[k, begin + j] = t[OFF_1 + k, j]
