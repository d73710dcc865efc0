"""Weighted points of importance sampling summed to posterior moments and their errors, with the odds of the signs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip
from smimbench.interfaces import Array
from smimbench_channels.batches import array_like
from smimbench_channels.sequence.softmax.deep.integrand import Law, Points
from smimbench_channels.sequence.softmax.deep.small_matrices import Vectors
from smimbench_channels.sequence.softmax.moments import Moments

__all__ = ["FEW", "Sums", "moments_of_sums", "weighted_sums"]

FEW = 40.0
"""Effective points below which an estimate is made again, its bias uncorrected. Doubled: more are done again at small V."""

TAILS = 1.5
"""Error over what the points themselves show, for eight scrambles and weights with heavy tails (checked against tables)."""


def _sign_odds(xp: Any, law: Law, omega: Vectors, z: Vectors) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Given z up to a sign of each layer: posterior odds that layers have the other sign, alone and in pairs.

    A label does not change with these signs, so only the Gaussian law tells them apart, and they are summed
    out exactly.
    """
    layers, tokens = range(law.layers), range(law.tokens)
    precision = law.precision
    field = [
        sum(float(precision[a, b]) * omega[b][m] * z[a][m] for m in tokens for b in layers if precision[a, b] != 0.0)
        for a in layers
    ]
    coupled = [(a, b) for a in layers for b in layers if a < b and precision[a, b] != 0.0]
    if not coupled:
        odds = [1.0 / (1.0 + xp.exp(clip(2.0 * k, -300.0, 300.0))) for k in field]
        return odds, {(a, b): odds[a] * odds[b] for a in layers for b in layers if a < b}
    coupling = {
        (a, b): sum((z[a][m] * z[b][m] for m in tokens[1:]), z[a][0] * z[b][0]) * float(precision[a, b])
        for a, b in coupled
    }
    patterns = []
    top = 0.0 * field[0]
    for code in range(1, 1 << law.layers):
        flipped = [a for a in layers if code >> a & 1]
        gain = sum((-2.0 * field[a] for a in flipped[1:]), -2.0 * field[flipped[0]])
        for pair in coupled:
            if (pair[0] in flipped) != (pair[1] in flipped):
                gain = gain + 2.0 * coupling[pair]
        patterns.append((flipped, gain))
        top = xp.maximum(top, gain)
    weights = [(flipped, xp.exp(xp.maximum(gain - top, -300.0 + 0.0 * top))) for flipped, gain in patterns]
    scale = 1.0 / sum((weight for _, weight in weights), xp.exp(xp.maximum(-top, -300.0 + 0.0 * top)))

    def share(*members: int) -> Array:
        chosen = [weight for flipped, weight in weights if all(a in flipped for a in members)]
        return scale * sum(chosen[1:], chosen[0])

    return [share(a) for a in layers], {(a, b): share(a, b) for a in layers for b in layers if a < b}


def weighted_sums(xp: Any, law: Law, omega: Vectors, points: Points, weight: Array, full: bool) -> Array:
    """Sums (moments, n) over points: weight, shift, then traces or the triangle of the second moment."""
    layers, tokens = law.layers, law.tokens
    dz = [*points.dw, [z - o for z, o in zip(points.last, omega[-1])]]
    z = [[x + o for x, o in zip(row, mean)] for row, mean in zip(dz, omega)]
    alone, pairs = _sign_odds(xp, law, omega, z)
    # s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
    moments = [weight]
    moments += [weight * (dz[a][m] - 2.0 * alone[a] * z[a][m]) for a in range(layers) for m in range(tokens)]

    def product(a: int, i: int, b: int, j: int) -> Array:
        both = alone[a] if a == b else pairs[min(a, b), max(a, b)]
        return (
            dz[a][i] * dz[b][j]
            - 2.0 * (alone[a] * z[a][i] * dz[b][j] + alone[b] * dz[a][i] * z[b][j])
            + 4.0 * both * z[a][i] * z[b][j]
        )

    if full:
        entries = [(a, m) for a in range(layers) for m in range(tokens)]
        moments += [weight * product(*one, *two) for k, one in enumerate(entries) for two in entries[k:]]
    else:
        for a in range(layers):
            for b in range(a, layers):
                terms = [product(a, m, b, m) for m in range(tokens)]
                moments.append(weight * sum(terms[1:], terms[0]))
    return xp.stack([xp.sum(moment, axis=1) for moment in moments])


class Sums(NamedTuple):
    """Sums (scrambles, moments, n) relative to ``exp(level)``, the effective number of points, the share of the heaviest."""

    sums: Array
    level: Array
    effective: Array
    heaviest: Array


def _ratios(xp: Any, sums: Array, trusted: Array) -> tuple[Array, Array]:
    """Ratios (moments - 1, n) of the scrambles' sums and their variance; less their bias where ``trusted``."""
    count = sums.shape[0]
    mass = xp.mean(sums[:, 0, :], axis=0)
    safe = xp.where(mass > 0.0, mass, 1.0)
    means = xp.mean(sums[:, 1:, :], axis=0) / safe
    share = sums[:, :1, :] / safe
    deviation = sums[:, 1:, :] / safe - means * share
    scale = 1.0 / (count * (count - 1.0))
    bias = scale * xp.sum(deviation * (share - 1.0), axis=0)
    return means + xp.where(trusted, bias, 0.0), scale * xp.sum(deviation * deviation, axis=0)


def moments_of_sums(xp: Any, law: Law, V: np.ndarray[Any, Any], result: Sums, full: bool) -> Moments:
    """Moments and errors; the error is infinite where no point has any weight."""
    layers, tokens = law.layers, law.tokens
    size = layers * tokens
    sums = result.sums
    mass = xp.mean(sums[:, 0, :], axis=0)
    found = mass > 0.0
    means, spread = _ratios(xp, sums, result.effective > FEW)
    variance = array_like(np.repeat(np.diagonal(V), tokens), mass)
    # What no point has met is about as much as the heaviest point stands for; the bias of a ratio of means is less.
    error = TAILS * xp.sqrt(xp.mean(spread[:size, :] / variance[:, None], axis=0) + result.heaviest * result.heaviest)
    constant = 0.5 * tokens * math.log(2.0 * math.pi * law.noise)
    log_partition = xp.where(found, xp.log(xp.where(found, mass, 1.0)) + result.level - constant, -math.inf)

    shift = xp.reshape(xp.permute_dims(means[:size, :], (1, 0)), (-1, layers, tokens))
    rank = size if full else layers
    place: dict[tuple[int, int], int] = {}
    for i in range(rank):
        for j in range(i, rank):
            place[i, j] = place[j, i] = size + len({(min(key), max(key)) for key in place})
    second = xp.stack([xp.stack([means[place[i, j], :] for i in range(rank)], axis=-1) for j in range(rank)], axis=-1)
    return Moments(log_partition, shift, second, xp.where(found, error, math.inf))
