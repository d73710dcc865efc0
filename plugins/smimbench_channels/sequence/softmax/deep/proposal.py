"""The mixture that importance sampling draws from, and its log-densities: the prior, the prior solved for a layer or a
difference of tokens, and Gaussians.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.interfaces import Array
from smimbench.numerics import normal_points, uniform_points
from smimbench_channels.sequence.softmax.deep.integrand import SINGULAR, TINY, Law, Points, log_integrand
from smimbench_channels.sequence.softmax.deep.small_matrices import (
    Vectors,
    apply,
    attention_product,
    combine,
    mixing,
    solve,
    squares,
)

__all__ = ["Gaussians", "Proposal", "Sizes", "draw_mixture"]

LEAST_GAP, LARGEST_GAP = 1e-3, 3.0
"""Where differences of two tokens are drawn uniformly in the logarithm. The former halved: outputs closer than 1e-18 are met."""
UNIFORM = 0.25
"""Their share, in each layer. Doubled: a tenth more error at c = 1, less where c is tiny."""
FARTHEST = 1e3
"""Differences of tokens beyond which no solution is looked for. Doubled: nothing, the law of a signal is far smaller."""
SPREAD = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""


class Gaussians(NamedTuple):
    """``center + SPREAD factor^{-T} x`` with standard normal x, K for each sample."""

    centers: Array  # (n, K, d)
    factors: Array  # (n, K, d, d) lower Cholesky factors of the curvature
    inverses: Array  # (n, K, d, d)


class Sizes(NamedTuple):
    """Points of one scramble by where they come from; 0 where there are none.

    From the prior; for two tokens only, from the prior solved for the layer before the last and for its difference of tokens;
    and from all Gaussians together.
    """

    prior: int
    branch: int
    gap: int
    gaussians: int


class Proposal(NamedTuple):
    """The mixture of one stage. ``odds`` (n, 4) of the signs (u, side) = (+,+), (+,-), (-,+), (-,-) are for two tokens."""

    gaussians: Gaussians | None
    odds: Array


def _by_layer(law: Law, columns: list[Array]) -> Vectors:
    return [columns[k * law.tokens : (k + 1) * law.tokens] for k in range(law.layers - 1)]


def _log_gaussians(xp: Any, gaussians: Gaussians, xi: Vectors) -> list[Array]:
    """Log-densities of the Gaussian components, relative to that of the standard normal law at 0."""
    flat = [x for row in xi for x in row]
    size = len(flat)
    shrink = 1.0 / SPREAD
    logs = []
    for k in range(gaussians.centers.shape[1]):
        center, factor = gaussians.centers[:, k, :], gaussians.factors[:, k, :, :]
        difference = [flat[j] - center[:, j][:, None] for j in range(size)]
        energy: Array = None
        scale: Array = None
        for i in range(size):
            y = factor[:, i, i][:, None] * difference[i]
            for j in range(i + 1, size):
                y = y + factor[:, j, i][:, None] * difference[j]
            energy = y * y if energy is None else energy + y * y
            log_diagonal = xp.log(factor[:, i, i])
            scale = log_diagonal if scale is None else scale + log_diagonal
        logs.append((-0.5 * shrink * shrink) * energy + (scale + size * math.log(shrink))[:, None])
    return logs


def _log_branches(xp: Any, law: Law, odds: Array, omega: Vectors, points: Points) -> Array:
    """Log-density of the proposal that solves for ``z_{L-1}``, relative to the standard normal law at 0."""
    inverse = np.linalg.inv(law.other_root)
    constant = law.tokens * float(np.log(np.diagonal(law.root)).sum() - np.log(np.diagonal(law.other_root)).sum())
    right = points.side >= 0.0
    logs = []
    for row, sign in enumerate((1.0, -1.0)):
        rest = [*points.dw[:-1], [sign * z - o for z, o in zip(points.last, omega[-1])]]
        chance = xp.where(right, odds[:, 2 * row][:, None], odds[:, 2 * row + 1][:, None])
        logs.append(-0.5 * squares(combine(inverse, rest)) + xp.log(chance))
    top = xp.maximum(logs[0], logs[1])
    return top + xp.log1p(xp.exp(-xp.abs(logs[0] - logs[1]))) + points.jacobian + constant


def _log_uniform(xp: Any, gap: Array, scale: float) -> Array:
    """Density of a difference that is uniform in the logarithm, of any sign, relative to ``1 / sqrt(2 pi)`` per ``scale``."""
    size = xp.abs(gap)
    inside = (size >= LEAST_GAP) & (size <= LARGEST_GAP)
    constant = scale * math.sqrt(2.0 * math.pi) / (2.0 * math.log(LARGEST_GAP / LEAST_GAP))
    return xp.where(inside, constant / xp.where(inside, size, 1.0), 0.0)


def _log_gaps(xp: Any, law: Law, u: list[Array], omega: Vectors, points: Points) -> Array:
    """Log-density of the proposal that solves for a difference of tokens, relative to the standard normal law at 0."""
    log = -0.5 * squares(points.xi)
    for layer, row in enumerate(points.xi):
        white = (row[0] - row[1]) * math.sqrt(0.5)
        scale = math.sqrt(2.0) * float(law.root[layer, layer])
        gap = (omega[layer][0] - omega[layer][1]) + (points.dw[layer][0] - points.dw[layer][1])
        tiny, most = TINY + 0.0 * gap, SINGULAR + 0.0 * gap
        if layer < law.layers - 2:
            own = xp.exp(-0.5 * white * white)
        else:
            growth = (1.0 + law.skip) ** (law.layers - 2) * points.mixed
            singular = xp.maximum(law.skip + 0.25 * points.side * points.side, most)
            # the difference of z_L that the approximate determinant would give
            step = xp.abs(u[2]) * (1.0 + law.skip) ** (2 - law.layers) / xp.maximum(singular * points.mixed, most)
            width = math.sqrt(2.0 * law.variance)
            centre = omega[-1][0] - omega[-1][1]
            both = xp.exp(-0.5 * ((step - centre) / width) ** 2) + xp.exp(-0.5 * ((step + centre) / width) ** 2)
            change = xp.minimum(step * xp.abs(points.side) * growth / singular, 1.0 / tiny)
            own = (0.25 * scale / width) * both * change
        mixed = (1.0 - UNIFORM) * own + UNIFORM * _log_uniform(xp, gap, scale)
        log = log + 0.5 * white * white + xp.log(xp.maximum(mixed, tiny))
    return log


def _gap_points(
    xp: Any, law: Law, u: list[Array], omega: Vectors, normal: Vectors, uniform: list[Array]
) -> tuple[Vectors, Array]:
    """Whitened points for nearly singular attention, and where there are any.

    The difference of the tokens of ``z_L`` is drawn from its law; with the other layers it fixes the determinant of the last
    attention matrix, and that the difference of the tokens of ``z_{L-1}``, by ``det A = (1 + c) (c + d^2 / 4)`` for small d.
    """
    skip, layers = law.skip, law.layers
    xi: Vectors = []
    w: Vectors = []
    exists = xp.ones(normal[0][0].shape, dtype=xp.bool, device=array_api_compat.device(normal[0][0]))
    for layer in range(layers - 1):
        total, white = normal[layer]
        base = [sum((float(law.root[layer, k]) * xi[k][m] for k in range(layer)), omega[layer][m]) for m in range(2)]
        scale = math.sqrt(2.0) * float(law.root[layer, layer])
        # the first half of a share has one sign, the second one the other
        spread = xp.where(
            uniform[layer] < UNIFORM, uniform[layer] / UNIFORM, (uniform[layer] - UNIFORM) / (1.0 - UNIFORM)
        )
        size = LARGEST_GAP * xp.exp(math.log(LEAST_GAP / LARGEST_GAP) * (2.0 * spread % 1.0))
        gap = (base[0] - base[1]) + scale * white
        if layer == layers - 2:
            inner = mixing(xp, w, skip, gap)
            last = (omega[-1][0] - omega[-1][1]) + math.sqrt(2.0 * law.variance) * white
            small = xp.abs(u[2]) * (1.0 + skip) ** (2 - layers)
            singular = small / xp.maximum(xp.abs(last) * inner.determinant, TINY + 0.0 * last)
            square = 4.0 * (singular - skip)
            solved = (square > 0.0) & (singular < FARTHEST)
            gap = xp.sqrt(xp.where(solved, square, 1.0))
            gap = gap / xp.maximum((1.0 + skip) ** (layers - 2) * inner.determinant, TINY + 0.0 * gap)
            solved = solved & (gap < FARTHEST)
            gap = xp.where(spread < 0.5, -gap, gap)
            exists = solved | (uniform[layer] < UNIFORM)
            gap = xp.where(exists, gap, 0.0)
        gap = xp.where(uniform[layer] < UNIFORM, xp.where(spread < 0.5, -size, size), gap)
        white = (gap - (base[0] - base[1])) / scale
        xi.append([math.sqrt(0.5) * (total + white), math.sqrt(0.5) * (total - white)])
        w.append([b + float(law.root[layer, layer]) * x for b, x in zip(base, xi[layer])])
    return xi, exists


def _branch_points(
    xp: Any, law: Law, u: list[Array], omega: Vectors, odds: Array, normal: Vectors, uniform: Array
) -> tuple[Vectors, Array]:
    """Whitened points from the prior of all layers but ``z_{L-1}``, which the label fixes; and where that has a solution."""
    skip = law.skip
    shift = combine(law.other_root, normal)
    rest = [[o + x for o, x in zip(mean, row)] for mean, row in zip([*omega[:-2], omega[-1]], shift)]
    B, determinant = attention_product(xp, rest, skip, law.layers - 2)
    v = rest[-1] if B is None else apply(B, rest[-1])
    total = [odds[:, k][:, None] for k in range(3)]
    total[1] = total[0] + total[1]
    total[2] = total[1] + total[2]
    one = xp.ones_like(v[0])
    sign = xp.where(uniform < total[1], one, -one)
    side = xp.where((uniform < total[0]) | ((uniform >= total[1]) & (uniform < total[2])), one, -one)
    gap = v[0] - v[1]
    gap = xp.where(xp.abs(gap) < 1e-150, 1e-150, gap)
    stay = [(sign * u[m] - skip * v[m] - v[1 - m]) / gap for m in range(2)]
    leave = [((1.0 + skip) * v[m] - sign * u[m]) / gap for m in range(2)]
    p, p_, q, q_ = stay[0], leave[0], -stay[1], -leave[1]
    exists = (p > 0.0) & (p_ > 0.0) & (q > 0.0) & (q_ > 0.0)
    p, p_, q, q_ = (xp.where(exists, x, 0.5) for x in (p, p_, q, q_))
    s, t = xp.log(p) - xp.log(p_), xp.log(q) - xp.log(q_)
    # s + t, with the digits of p + q - 1
    squared = xp.log1p(xp.maximum((sign * u[2] / gap - skip) / (p_ * q_), -0.5 + 0.0 * gap))
    exists = exists & (squared > 0.0)
    d = side * xp.sqrt(xp.where(exists, squared, 1.0))
    h = [s / d, -t / d]
    z = h if B is None else solve(xp, B, determinant, h)
    before = [x - o for x, o in zip(z, omega[-2])]
    xi = combine(np.linalg.inv(law.root), [*shift[:-1], before])
    return [[xp.where(exists, x, 0.0) for x in row] for row in xi], exists


def draw_mixture(
    xp: Any, law: Law, u: list[Array], omega: Vectors, proposal: Proposal, sizes: Sizes, seed: int
) -> tuple[Points, Array]:
    """One scramble of the mixture; points and the logarithms of their weights."""
    like = u[0]
    n, device = like.shape[0], array_api_compat.device(like)
    before, tokens = law.layers - 1, law.tokens
    size = before * tokens

    def move(columns: np.ndarray[Any, Any]) -> list[Array]:
        nodes = xp.asarray(np.ascontiguousarray(columns.T), dtype=like.dtype, device=device)
        return [xp.broadcast_to(nodes[k, :][None, :], (n, nodes.shape[1])) for k in range(nodes.shape[0])]

    by_prior, by_branch, by_gap, by_gaussian = sizes
    gaussians = proposal.gaussians
    everything = sum(sizes)
    parts: list[Vectors] = []
    masks: list[Array] = []
    if by_prior:
        parts.append(_by_layer(law, move(normal_points(size, by_prior, "deep attention: prior", seed))))
        masks.append(xp.ones((n, by_prior), dtype=xp.bool, device=device))
    if by_branch:
        from scipy.special import ndtri

        cube = uniform_points(size + 1, by_branch, "deep attention: branch", seed)
        uniform = move(cube[:, :1])[0]
        normal = _by_layer(law, move(np.asarray(ndtri(cube[:, 1:]))))
        xi, exists = _branch_points(xp, law, u, omega, proposal.odds, normal, uniform)
        parts.append(xi)
        masks.append(exists)
    if by_gap:
        from scipy.special import ndtri

        cube = uniform_points(size + before, by_gap, "deep attention: gap", seed)
        normal = _by_layer(law, move(np.asarray(ndtri(cube[:, :size]))))
        xi, exists = _gap_points(xp, law, u, omega, normal, move(cube[:, size:]))
        parts.append(xi)
        masks.append(exists)
    if gaussians is not None:
        count = gaussians.centers.shape[1]
        each = by_gaussian // count
        white = move(normal_points(size, by_gaussian, "deep attention: Gaussians", seed))
        for k in range(count):
            own = [x[:, k * each : (k + 1) * each] for x in white]
            columns = []
            for i in range(size):
                x = gaussians.centers[:, k, i][:, None] + 0.0 * own[i]
                for j in range(i, size):
                    # xi = center + spread * factor^{-T} x
                    x = x + SPREAD * gaussians.inverses[:, k, j, i][:, None] * own[j]
                columns.append(x)
            parts.append(_by_layer(law, columns))
            masks.append(xp.ones((n, each), dtype=xp.bool, device=device))
    xi = [[xp.concat([part[a][m] for part in parts], axis=1) for m in range(tokens)] for a in range(before)]
    exists = xp.concat(masks, axis=1)
    points = log_integrand(xp, law, u, omega, xi)
    logs = [(by_prior, -0.5 * squares(xi))]
    if by_branch:
        logs.append((by_branch, _log_branches(xp, law, proposal.odds, omega, points)))
    if by_gap:
        logs.append((by_gap, _log_gaps(xp, law, u, omega, points)))
    if gaussians is not None:
        logs += [(each, log) for log in _log_gaussians(xp, gaussians, xi)]
    terms = [log + math.log(share / everything) for share, log in logs if share]
    top = terms[0]
    for term in terms[1:]:
        top = xp.maximum(top, term)
    density = top + xp.log(sum((xp.exp(term - top) for term in terms[1:]), xp.exp(terms[0] - top)))
    return points, xp.where(exists, points.log_total - density, -math.inf)
