"""Posterior of deep attention by importance sampling in stages, with mixtures that adapt to the samples.

After ``z_L = +- B^{-1} u`` an integral over the other layers ``w = (z_1 .. z_{L-1})`` is left, in M (L - 1)
dimensions. Where ``V`` is small it lives on a thin curved set, so points come from a mixture of proposals,
each of which is right in some corner of the (V_11 .. V_LL) space, and every point is weighted with the
density of the whole mixture (which bounds the weights by what the best proposal would give):

* the prior of ``w``;
* for two tokens, the prior of ``(z_1 .. z_{L-2}, z_L)``: the label then fixes ``z_{L-1}`` in closed form.
  With ``v = B_{L-2} z_L`` and ``A(h) v = +- u`` the entries of A are ratios, which give ``h`` up to its sign;
* Gaussians around points that did well before, moved towards the maximum by Gauss-Newton steps.

* for two tokens, the prior with the difference of the tokens of ``z_{L-1}`` solved for, for attention matrices that are
  nearly singular: without a skip connection most labels come from such.

Points are drawn in independent scrambles. Errors come from the spread of the scrambles and the share of the heaviest point. The
scheme is derived, checked by tests/channels/sequence/test_softmax_posterior.py. ``integrand`` has the density, ``proposal`` the
mixture.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip, matching, namespace
from smimbench.interfaces import Array, Host
from smimbench_channels.batches import array_like, blocks, joined, put_tuple
from smimbench_channels.sequence.softmax.deep.integrand import Law, Points, make_law, total
from smimbench_channels.sequence.softmax.deep.proposal import Proposal, Sizes, draw_mixture, propose
from smimbench_channels.sequence.softmax.moments import Moments, moments_of_means

SCRAMBLES = 8
"""Independent sets of points; their spread is the error. Doubled: half as many points in each, up to twice the error."""
PILOT = 256
"""Points of the first look, from each kind of prior. Doubled: a third more time, the same error."""
DARKEST = 100.0
"""Points below ``exp(-DARKEST)`` of the heaviest one weigh nothing. Doubled: the same result, a tenth slower: arithmetic near the
smallest numbers of floating point is slow."""
FEW = 40.0
"""Effective points below which an estimate is made again, its bias uncorrected. Doubled: more are done again at small V."""


def integrate(
    u: Array,
    omega: Array,
    V: Host,
    skip: float,
    accuracy: float,
    points: int,
    full: bool = False,
    seed: int = 0,
    gap: Array | None = None,
) -> Moments:
    """Posterior moments and partition function for any number of layers, and two or three tokens.

    The parameters are those of ``softmax.posterior.integrate``, for two or three tokens and ``V`` with L >= 2. Samples whose
    error is below ``accuracy`` after an eighth of the points are left at that; ``points`` are counted over all scrambles and
    rounded down to a power of 2. ``gap`` (n,) is the difference of the two tokens' ``u`` where it is known better than by
    subtraction. The ``error`` is 1.5 times a standard error over ``SCRAMBLES`` scrambles, with the share of the heaviest point.
    """
    xp = namespace(u, omega)
    n, tokens = u.shape
    law = make_law(V, tokens, skip)
    sizes = [_sizes(law, points)]
    # from this target on, an eighth of the points is tried first
    if accuracy >= 1e-3:
        sizes.insert(0, _sizes(law, points // 8))
    # points of all samples of a block, on the host and on a device, where few large operations are faster
    block = max(1, ((1 << 15) if isinstance(u, np.ndarray) else (1 << 22)) // sum(sizes[-1]))
    if tokens == 2:
        gap = u[:, 0] - u[:, 1] if gap is None else gap
        u = xp.concat([u, gap[:, None]], axis=1)
    return joined(
        [
            _importance_block(xp, law, V, u[rows, ...], omega[rows, ...], accuracy, sizes, full, seed)
            for rows in blocks(n, block)
        ]
    )


def _sizes(law: Law, points: int) -> Sizes:
    each = max(32, 1 << ((points // SCRAMBLES).bit_length() - 1))
    if law.tokens == 2:
        return Sizes(each // 4, each // 8, 3 * each // 8, each // 4)
    return Sizes(each // 2, 0, 0, each // 2)


class _Estimate(NamedTuple):
    """Moments of samples and the effective number of points behind each."""

    log_partition: Array
    shift: Array
    second: Array
    error: Array
    effective: Array


def _importance_block(
    xp: Any, law: Law, V: Host, u: Array, omega: Array, accuracy: float, sizes: list[Sizes], full: bool, seed: int
) -> Moments:
    def improved(u: Array, omega: Array, mixture: Proposal, number: Sizes, stage_seed: int) -> Proposal:
        points, log_weight = draw_mixture(xp, law, u, omega, mixture, number, stage_seed)
        return propose(xp, law, u[:, : law.tokens], omega, points, log_weight, seed)

    pilot = Sizes(PILOT, PILOT, PILOT, 0) if law.tokens == 2 else Sizes(2 * PILOT, 0, 0, 0)
    proposal = improved(u, omega, Proposal(xp.full((u.shape[0], 4), 0.25, **matching(u))), pilot, seed)
    found = _estimate(xp, law, V, u, omega, proposal, sizes[0], seed + 100, full)
    # Then with all points where accuracy asks for it, and twice again from what the mixture found where few points count.
    for stage in range(len(sizes) + 1):
        growing = stage < len(sizes) - 1
        chosen = found.error > accuracy if growing else found.effective < FEW
        index = xp.nonzero(chosen)[0]
        if index.shape[0] == 0:
            continue
        some_u, some_omega, *mixture = (xp.take(x, index, axis=0) for x in (u, omega, *proposal))
        local = Proposal(*mixture)
        if not growing:
            local = improved(some_u, some_omega, local, sizes[-1], seed + 20 + stage)
            proposal = put_tuple(proposal, chosen, local)
        again = _estimate(xp, law, V, some_u, some_omega, local, sizes[-1], seed + 200 + 100 * stage, full)
        old = _Estimate(*(xp.take(values, index, axis=0) for values in found))
        better = again.effective > old.effective
        part = [xp.where(xp.reshape(better, (-1, *[1] * (a.ndim - 1))), a, b) for a, b in zip(again, old)]
        found = put_tuple(found, chosen, part)
    return Moments(*found[:4])


def _estimate(
    xp: Any, law: Law, V: Host, u: Array, omega: Array, proposal: Proposal, sizes: Sizes, seed: int, full: bool
) -> _Estimate:
    """Posterior moments from all scrambles of the mixture; infinite errors where no point has weight."""
    level, squares = xp.full_like(u[:, 0], -1e300), xp.zeros_like(u[:, 0])
    parts: list[Array] = []
    for scramble in range(SCRAMBLES):
        points, log_weight = draw_mixture(xp, law, u, omega, proposal, sizes, seed + scramble)
        higher = xp.maximum(level, xp.max(log_weight, axis=1))
        fade = xp.exp(clip(level - higher, -700.0))
        parts = [part * fade for part in parts]
        level = higher
        height = log_weight - level[:, None]
        weight = xp.where(height > -DARKEST, xp.exp(clip(height, -DARKEST)), 0.0)
        squares = squares * fade * fade + xp.sum(weight * weight, axis=1)
        parts.append(_weighted_sums(xp, law, omega, points, weight, full) / sum(sizes))
    sums = xp.stack(parts)
    mass = xp.mean(sums[:, 0, :], axis=0)
    points_of_mass = xp.sum(sums[:, 0, :], axis=0) * sum(sizes)
    effective = points_of_mass * points_of_mass / xp.where(squares > 0.0, squares, 1.0)
    # Ratios of the scrambles' sums and their variance, less their bias where many points count.
    safe = xp.where(mass > 0.0, mass, 1.0)
    ratios = xp.mean(sums[:, 1:, :], axis=0) / safe
    share = sums[:, :1, :] / safe
    deviation = sums[:, 1:, :] / safe - ratios * share
    scale = 1.0 / (SCRAMBLES * (SCRAMBLES - 1.0))
    bias = scale * xp.sum(deviation * (share - 1.0), axis=0)
    ratios = ratios + xp.where(effective > FEW, bias, 0.0)
    size = law.layers * law.tokens
    spread = scale * xp.sum(deviation[:, :size, :] * deviation[:, :size, :], axis=0)
    variance = array_like(np.repeat(np.diagonal(V), law.tokens), mass)
    # What no point has met is about as much as the heaviest point stands for; the bias of a ratio of means is less.
    heaviest = 1.0 / xp.where(points_of_mass > 0.0, points_of_mass, 1.0)
    # 1.5 is for eight scrambles and weights with heavy tails (checked against tables)
    error = 1.5 * xp.sqrt(xp.mean(spread / variance[:, None], axis=0) + heaviest * heaviest)
    constant = 0.5 * law.tokens * math.log(2.0 * math.pi * law.noise)
    return _Estimate(*moments_of_means(mass, level, constant, ratios, error, omega.shape), effective)


def _sign_odds(xp: Any, law: Law, omega: Array, z: Array) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Posterior odds of the other sign of each layer, and of pairs of layers, for z (n, L, M, points) known up to signs.

    A label does not change with these signs, so only the Gaussian law tells them apart, and they are summed out exactly. There
    are no pairs if layers are independent.
    """
    layers, tokens = range(law.layers), range(law.tokens)
    precision = law.precision
    field = [
        total(
            float(precision[a, b]) * omega[:, b, m, None] * z[:, a, m, :]
            for m in tokens
            for b in layers
            if precision[a, b] != 0.0
        )
        for a in layers
    ]
    pairs = list(itertools.combinations(layers, 2))
    coupling = {
        (a, b): total(z[:, a, m, :] * z[:, b, m, :] for m in tokens) * float(precision[a, b])
        for a, b in pairs
        if precision[a, b] != 0.0
    }
    if not coupling:
        return [1.0 / (1.0 + xp.exp(clip(2.0 * k, -300.0, 300.0))) for k in field], {}
    flipped = [[a for a in layers if code >> a & 1] for code in range(1 << law.layers)]
    gains = [xp.zeros_like(field[0])]
    for some in flipped[1:]:
        split = [2.0 * value for pair, value in coupling.items() if (pair[0] in some) != (pair[1] in some)]
        gains.append(total([*(-2.0 * field[a] for a in some), *split]))
    top = functools.reduce(xp.maximum, gains)
    weights = [xp.exp(clip(gain - top, -300.0)) for gain in gains]
    scale = 1.0 / total(weights)

    def share(*members: int) -> Array:
        return scale * total(weight for some, weight in zip(flipped, weights) if {*members} <= {*some})

    return [share(a) for a in layers], {pair: share(*pair) for pair in pairs}


def _weighted_sums(xp: Any, law: Law, omega: Array, points: Points, weight: Array, full: bool) -> Array:
    """Sums (moments, n) over points: of the weight, the shift, and the second moment or its traces over tokens."""
    n, layers = weight.shape[0], range(law.layers)
    deviation = xp.stack([xp.stack(row, axis=1) for row in points.dz], axis=1)
    place = deviation + omega[..., None]
    alone, pairs = _sign_odds(xp, law, omega, place)
    # (n, L, M, points); s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
    shift = deviation - 2.0 * xp.stack(alone, axis=1)[:, :, None, :] * place
    weighted = shift * weight[:, None, None, :]
    size = law.tokens if full else 1

    def products(left: Array, right: Array, rank: int) -> Array:
        left, right = (xp.reshape(array, (n, rank, -1)) for array in (left, right))
        return xp.matmul(left, xp.matrix_transpose(right))

    second = products(weighted, shift, law.layers * size)
    # what the signs' own scatter adds
    scatters = [[xp.zeros_like(second[:, :size, :size]) for _ in layers] for _ in layers]
    for a, b in itertools.product(layers, layers):
        if a == b or pairs:
            both = alone[a] if a == b else pairs[min(a, b), max(a, b)]
            scatter = 4.0 * weight * (both - alone[a] * alone[b])
            scatters[a][b] = products(scatter[:, None, :] * place[:, a, :, :], place[:, b, :, :], size)
    second = second + xp.concat([xp.concat(row, axis=2) for row in scatters], axis=1)
    columns = [xp.reshape(array, (n, -1)) for array in (xp.sum(weight, axis=-1), xp.sum(weighted, axis=-1), second)]
    return xp.permute_dims(xp.concat(columns, axis=1), (1, 0))
