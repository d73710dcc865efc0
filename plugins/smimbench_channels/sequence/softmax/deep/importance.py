"""Posterior of deep attention by importance sampling: the stages, scrambles and blocks of samples, and when a mixture
is replaced.

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

import math
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array
from smimbench.numerics import put_at_mask, spread_at_mask
from smimbench_channels.batches import array_like, blocks, joined, put_tuple
from smimbench_channels.sequence.softmax.deep.integrand import Law, Points, Vectors, make_law
from smimbench_channels.sequence.softmax.deep.proposal import Gaussians, Proposal, Sizes, draw_mixture, propose
from smimbench_channels.sequence.softmax.moments import Moments

__all__ = ["integrate"]

SCRAMBLES = 8
"""Independent sets of points; their spread is the error. Doubled: half as many points in each, up to twice the error."""
PILOT = 256
"""Points of the first look, from each kind of prior. Doubled: a third more time, the same error."""
DARKEST = 100.0
"""Points below ``exp(-DARKEST)`` of the heaviest one weigh nothing. Doubled: the same result, a tenth slower: arithmetic near the
smallest numbers of floating point is slow."""
FEW = 40.0
"""Effective points below which an estimate is made again, its bias uncorrected. Doubled: more are done again at small V."""

TAILS = 1.5
"""Error over what the points themselves show, for eight scrambles and weights with heavy tails (checked against tables)."""


def integrate(
    u: Array,
    omega: Array,
    V: np.ndarray[Any, Any],
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
    subtraction. The ``error`` is ``TAILS`` times a standard error over ``SCRAMBLES`` scrambles, with the share of the heaviest
    point.
    """
    xp = namespace(u, omega)
    n, tokens = u.shape
    law = make_law(V, tokens, skip)
    sizes = [_sizes(law, points)]
    # from this target on, an eighth of the points is tried first
    if accuracy >= 1e-3:
        sizes.insert(0, _sizes(law, points // 8))
    host = isinstance(u, np.ndarray)
    # points of all samples of a block, on the host
    # the same on a device, where few large operations are faster
    block = max(1, ((1 << 15) if host else (1 << 22)) // sum(sizes[-1]))
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


def _components(law: Law, u: Array, omega: Array) -> tuple[list[Array], Vectors]:
    """``u`` by token, for two tokens followed by their difference; ``omega`` by layer and token."""
    return (
        [u[:, m][:, None] for m in range(u.shape[1])],
        [[omega[:, layer, m][:, None] for m in range(law.tokens)] for layer in range(law.layers)],
    )


def _importance_block(
    xp: Any,
    law: Law,
    V: np.ndarray[Any, Any],
    u: Array,
    omega: Array,
    accuracy: float,
    sizes: list[Sizes],
    full: bool,
    seed: int,
) -> Moments:
    outputs, means = _components(law, u, omega)
    odds = xp.full((u.shape[0], 4), 0.25, dtype=u.dtype, device=array_api_compat.device(u))
    pilot = Sizes(PILOT, PILOT, PILOT, 0) if law.tokens == 2 else Sizes(2 * PILOT, 0, 0, 0)
    points, log_weight = draw_mixture(xp, law, outputs, means, Proposal(None, odds), pilot, seed)
    proposal = propose(xp, law, u[:, : law.tokens], omega, points, log_weight, seed)
    result = _sum_over_scrambles(xp, law, outputs, means, proposal, sizes[0], seed + 100, full)
    moments, effective = _moments_of_sums(xp, law, V, result, full), result.effective
    # Then with all points where accuracy asks for it, and again from what the mixture found where few
    # points count.
    # how often samples with few effective points are done again
    for stage in range(len(sizes) - 1 + 2):
        growing = stage < len(sizes) - 1
        chosen = moments.error > accuracy if growing else effective < FEW
        index = xp.nonzero(chosen)[0]
        if index.shape[0] == 0:
            continue
        part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
        outputs, means = _components(law, part_u, part_omega)
        local = _mixture_of_samples(xp, proposal, index)
        if not growing:
            points, log_weight = draw_mixture(xp, law, outputs, means, local, sizes[-1], seed + 20 + stage)
            local = propose(xp, law, part_u[:, : law.tokens], part_omega, points, log_weight, seed)
        result = _sum_over_scrambles(xp, law, outputs, means, local, sizes[-1], seed + 200 + 100 * stage, full)
        better = result.effective > xp.take(effective, index, axis=0)
        change = chosen & spread_at_mask(better, chosen)
        again = _moments_of_sums(xp, law, V, result, full)
        moments = Moments(*(_replaced(xp, old, new, chosen, change) for old, new in zip(moments, again)))
        effective = _replaced(xp, effective, result.effective, chosen, change)
        if not growing:
            proposal = _updated_mixture(proposal, local, chosen)
    return moments


def _mixture_of_samples(xp: Any, proposal: Proposal, index: Array) -> Proposal:
    """The mixture of some of the samples."""
    gaussians = proposal.gaussians and Gaussians(*(xp.take(x, index, axis=0) for x in proposal.gaussians))
    return Proposal(gaussians, xp.take(proposal.odds, index, axis=0))


def _updated_mixture(old: Proposal, new: Proposal, chosen: Array) -> Proposal:
    """``old`` with the mixture ``new`` for the samples of the mask ``chosen``."""
    gaussians = None
    if old.gaussians is not None and new.gaussians is not None:
        gaussians = put_tuple(old.gaussians, chosen, new.gaussians)
    return Proposal(gaussians, put_at_mask(old.odds, chosen, new.odds))


def _sum_over_scrambles(
    xp: Any, law: Law, u: list[Array], omega: Vectors, proposal: Proposal, sizes: Sizes, seed: int, full: bool
) -> _Sums:
    """All scrambles of the mixture; weights are kept relative to the largest one seen."""
    level: Array = None
    squares: Array = None
    parts: list[Array] = []
    for scramble in range(SCRAMBLES):
        points, log_weight = draw_mixture(xp, law, u, omega, proposal, sizes, seed + scramble)
        top = xp.max(log_weight, axis=1)
        top = xp.where(top > -math.inf, top, -1e300)
        if level is None:
            level, squares = top, xp.zeros_like(top)
        higher = xp.maximum(level, top)
        fade = xp.exp(xp.maximum(level - higher, -700.0 + 0.0 * level))
        parts = [part * fade for part in parts]
        squares, level = squares * fade * fade, higher
        height = log_weight - level[:, None]
        weight = xp.where(height > -DARKEST, xp.exp(xp.maximum(height, -DARKEST + 0.0 * points.log_total)), 0.0)
        squares = squares + xp.sum(weight * weight, axis=1)
        parts.append(_weighted_sums(xp, law, omega, points, weight, full) / sum(sizes))
    sums = xp.stack(parts)
    mass = xp.sum(sums[:, 0, :], axis=0) * sum(sizes)
    effective = mass * mass / xp.where(squares > 0.0, squares, 1.0)
    return _Sums(sums, level, effective, 1.0 / xp.where(mass > 0.0, mass, 1.0))


def _replaced(xp: Any, old: Array, new: Array, mask: Array, change: Array) -> Array:
    """Rows of ``old`` where ``change``, from ``new`` whose rows stand for those of ``mask``."""
    return xp.where(xp.reshape(change, (-1, *[1] * (old.ndim - 1))), spread_at_mask(new, mask), old)


def _sign_odds(xp: Any, law: Law, omega: Vectors, z: Vectors) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Given z up to a sign of each layer: posterior odds of the other sign, alone and in pairs (none if independent).

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
        return [1.0 / (1.0 + xp.exp(clip(2.0 * k, -300.0, 300.0))) for k in field], {}
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


def _weighted_sums(xp: Any, law: Law, omega: Vectors, points: Points, weight: Array, full: bool) -> Array:
    """Sums (moments, n) over points: weight, shift, then the second moment or its traces over tokens."""
    n, layers, tokens = weight.shape[0], range(law.layers), law.tokens
    dz = [*points.dw, [z - o for z, o in zip(points.last, omega[-1])]]
    z = [[x + o for x, o in zip(row, mean)] for row, mean in zip(dz, omega)]
    alone, pairs = _sign_odds(xp, law, omega, z)
    place = xp.stack([xp.stack(row, axis=1) for row in z], axis=1)  # (n, L, M, points)
    # s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
    shift = (
        xp.stack([xp.stack(row, axis=1) for row in dz], axis=1) - 2.0 * xp.stack(alone, axis=1)[:, :, None, :] * place
    )
    weighted = shift * weight[:, None, None, :]
    size = tokens if full else 1
    flat = xp.reshape(shift, (n, law.layers * size, -1))
    second = xp.matmul(xp.reshape(weighted, flat.shape), xp.matrix_transpose(flat))
    # what the signs' own scatter adds
    scatters = [[xp.zeros_like(second[:, :size, :size]) for _ in layers] for _ in layers]
    for a in layers:
        for b in layers:
            if a != b and not pairs:
                continue
            both = alone[a] if a == b else pairs[min(a, b), max(a, b)]
            scatter = 4.0 * weight * (both - alone[a] * alone[b])
            left = xp.reshape(scatter[:, None, :] * place[:, a, :, :], (n, size, -1))
            right = xp.reshape(place[:, b, :, :], (n, size, -1))
            scatters[a][b] = xp.matmul(left, xp.matrix_transpose(right))
    second = second + xp.concat([xp.concat(row, axis=2) for row in scatters], axis=1)
    first = xp.sum(weighted, axis=-1)
    columns = [xp.reshape(array, (n, -1)) for array in (xp.sum(weight, axis=-1), first, second)]
    return xp.permute_dims(xp.concat(columns, axis=1), (1, 0))


class _Sums(NamedTuple):
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


def _moments_of_sums(xp: Any, law: Law, V: np.ndarray[Any, Any], result: _Sums, full: bool) -> Moments:
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
    second = xp.reshape(xp.permute_dims(means[size:, :], (1, 0)), (-1, rank, rank))
    return Moments(log_partition, shift, second, xp.where(found, error, math.inf))
