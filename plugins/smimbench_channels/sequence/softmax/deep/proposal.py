"""The mixture that importance sampling draws from, and its log-densities: the prior, the prior solved for a layer or a
difference of tokens, and Gaussians at points that did well, moved towards the maximum by Gauss-Newton steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from scipy.special import ndtri

from smimbench.backend import clip
from smimbench.interfaces import Array
from smimbench.numerics import normal_points, uniform_points
from smimbench_channels.batches import array_like, identity_like
from smimbench_channels.sequence.softmax import network
from smimbench_channels.sequence.softmax.deep.integrand import (
    SINGULAR,
    TINY,
    Law,
    Points,
    Vectors,
    combine,
    determinant_of,
    log_integrand,
    mixed,
    mixing,
    solve,
    squares,
    unmixed,
)

__all__ = ["Gaussians", "Proposal", "Sizes", "draw_mixture", "propose"]

LEAST_GAP, LARGEST_GAP = 1e-3, 3.0
"""Where differences of two tokens are drawn uniformly in the logarithm. The former halved: outputs closer than 1e-18 are met."""
UNIFORM = 0.25
"""Their share, in each layer. Doubled: a tenth more error at c = 1, less where c is tiny."""
FARTHEST = 1e3
"""Differences of tokens beyond which no solution is looked for. Doubled: nothing, the law of a signal is far smaller."""
SPREAD = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""
LEAST_ODDS = 0.04
"""Smallest chance of each of the four branches. Doubled: the same error; it is for branches that the first look missed."""


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
    flat = xp.stack([x for row in xi for x in row], axis=1)
    size, shrink = flat.shape[1], 1.0 / SPREAD
    logs = []
    for k in range(gaussians.centers.shape[1]):
        factor = gaussians.factors[:, k, :, :]
        white = xp.matmul(xp.matrix_transpose(factor), flat - gaussians.centers[:, k, :, None])
        scale = xp.sum(xp.log(xp.linalg.diagonal(factor)), axis=-1) + size * math.log(shrink)
        logs.append((-0.5 * shrink * shrink) * xp.sum(white * white, axis=1) + scale[:, None])
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
    B = mixing(xp, rest[:-1], skip, rest[-1][0])
    v = mixed(B, rest[-1], skip)
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
    z = unmixed(xp, B, h, h[0] - h[1], skip)
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
        cube = uniform_points(size + 1, by_branch, "deep attention: branch", seed)
        uniform = move(cube[:, :1])[0]
        normal = _by_layer(law, move(np.asarray(ndtri(cube[:, 1:]))))
        xi, exists = _branch_points(xp, law, u, omega, proposal.odds, normal, uniform)
        parts.append(xi)
        masks.append(exists)
    if by_gap:
        cube = uniform_points(size + before, by_gap, "deep attention: gap", seed)
        normal = _by_layer(law, move(np.asarray(ndtri(cube[:, :size]))))
        xi, exists = _gap_points(xp, law, u, omega, normal, move(cube[:, size:]))
        parts.append(xi)
        masks.append(exists)
    if gaussians is not None:
        count = gaussians.centers.shape[1]
        each = by_gaussian // count
        standard = normal_points(size, by_gaussian, "deep attention: Gaussians", seed)[: count * each]
        white = array_like(standard.reshape(count, each, size).transpose(0, 2, 1), like)
        # xi = center + spread * factor^{-T} x
        drawn = gaussians.centers[..., None] + SPREAD * xp.matmul(xp.matrix_transpose(gaussians.inverses), white)
        parts.append(_by_layer(law, [xp.reshape(drawn[:, :, i, :], (n, count * each)) for i in range(size)]))
        masks.append(xp.ones((n, count * each), dtype=xp.bool, device=device))
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


def _choose_centers(xp: Any, law: Law, points: Points, log_weight: Array, seed: int) -> tuple[Array, Array, Array]:
    """Centers (n, K, d), their sign of u (n, K), and the odds of the branches, from points seen so far."""
    count = log_weight.shape[1]
    noise = -np.log(-np.log(uniform_points(1, count, "deep attention: choice", seed)[:, 0]))
    noise = array_like(noise, log_weight)
    # Drawn without replacement with the square roots of the weights as odds: bold, but not blind to small
    # modes.
    # Gaussians of a sample
    order = xp.argsort(-(0.5 * log_weight + noise), axis=1, stable=True)[:, :8]

    def pick(values: Array) -> Array:
        return xp.take_along_axis(values, order, axis=1)

    centers = xp.stack([pick(x) for row in points.xi for x in row], axis=-1)
    better = points.log_plus >= points.log_minus
    sign = 2.0 * pick(xp.astype(better, log_weight.dtype)) - 1.0
    odds = xp.full((log_weight.shape[0], 4), 0.25, dtype=log_weight.dtype, device=array_api_compat.device(log_weight))
    if law.tokens == 2:
        top = xp.max(log_weight, axis=1, keepdims=True)
        weight = xp.exp(0.5 * (log_weight - top))
        right = points.side >= 0.0
        plus = 1.0 / (1.0 + xp.exp(clip(points.log_minus - points.log_plus, -300.0, 300.0)))
        share = xp.stack(
            [
                xp.sum(xp.where(keep, weight * chance, 0.0), axis=1)
                for chance in (plus, 1.0 - plus)
                for keep in (right, ~right)
            ],
            axis=1,
        )
        odds = LEAST_ODDS + (1.0 - 4.0 * LEAST_ODDS) * share / xp.sum(share, axis=1, keepdims=True)
    return centers, sign, odds


def _inverse(xp: Any, B: Array) -> Array:
    """Inverse of small matrices (..., M, M); near singular ones are pushed away (only for search)."""
    tokens = B.shape[-1]
    rows = [[B[..., m, k] for k in range(tokens)] for m in range(tokens)]
    if tokens == 2:
        determinant = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    else:
        determinant = determinant_of(rows)
    determinant = xp.where(xp.abs(determinant) < 1e-9, 1e-9, determinant)
    zero, one = xp.zeros_like(determinant), xp.ones_like(determinant)
    basis = [[one if m == k else zero for m in range(tokens)] for k in range(tokens)]
    columns = [solve(xp, rows, determinant, column) for column in basis]
    return xp.stack([xp.stack(column, axis=-1) for column in columns], axis=-1)


def _posterior_curvature(
    xp: Any, law: Law, u: Array, omega: Array, centers: Array, sign: Array
) -> tuple[Array, Array, Array]:
    """Value, gradient and Gauss-Newton curvature of minus the log-posterior (less log det B)."""
    n, count, size = centers.shape
    before, tokens = law.layers - 1, law.tokens
    xi = xp.reshape(centers, (n, count, before, tokens))

    def mix(rows: np.ndarray[Any, Any], values: Array) -> Array:
        return xp.matmul(array_like(rows, values), values)

    dw = mix(law.root, xi)
    w = omega[:, None, :before, :] + dw
    inverse = _inverse(xp, network.attention_product(w, law.skip))
    target = sign[:, :, None] * u[:, None, :]
    last = xp.matmul(inverse, target[..., None])[..., 0]
    center = mix(law.slopes[None, :], dw)[..., 0, :]
    scale = 1.0 / math.sqrt(law.noise)
    residual = (last - omega[:, None, before, :] - center) * scale
    z = xp.concat([w, last[:, :, None, :]], axis=2)
    basis = identity_like(tokens, centers)
    # rows m: d u_m / d z, (n, K, M, L, M)
    slope = network.output_vjp(z[:, :, None, :, :] + 0.0 * basis[:, None, :], law.skip, basis)
    change = xp.reshape(slope[:, :, :, :before, :], (n, count, tokens, size))
    change = -xp.matmul(inverse, change)
    direct, root = (array_like(np.kron(m, np.eye(tokens)), centers) for m in (law.slopes[None, :], law.root))
    J = xp.matmul(change - direct, root) * scale
    gradient = centers + xp.matmul(xp.matrix_transpose(J), residual[..., None])[..., 0]
    square = xp.matmul(xp.matrix_transpose(J), J)
    # far from the label the square has entries beyond 1e16: keep it invertible
    ridge = 1.0 + 1e-12 * xp.linalg.trace(square)
    curvature = square + ridge[..., None, None] * identity_like(size, centers)
    value = 0.5 * xp.sum(centers * centers, axis=-1) + 0.5 * xp.sum(residual * residual, axis=-1)
    return value, gradient, curvature


def _approach_maximum(xp: Any, law: Law, u: Array, omega: Array, centers: Array, sign: Array) -> tuple[Array, Array]:
    """Centers after a few Gauss-Newton steps, shortened where they do not improve, and the curvature there."""
    value, gradient, curvature = _posterior_curvature(xp, law, u, omega, centers, sign)
    length = xp.ones_like(value)
    # Gauss-Newton steps from a point that did well
    for _ in range(4):
        step = xp.linalg.solve(curvature, gradient[..., None])[..., 0]
        trial = centers - length[..., None] * step
        trial_value, trial_gradient, trial_curvature = _posterior_curvature(xp, law, u, omega, trial, sign)
        better = trial_value < value
        value = xp.where(better, trial_value, value)
        centers = xp.where(better[..., None], trial, centers)
        gradient = xp.where(better[..., None], trial_gradient, gradient)
        curvature = xp.where(better[..., None, None], trial_curvature, curvature)
        length = xp.where(better, xp.minimum(2.0 * length, xp.ones_like(length)), 0.3 * length)
    return centers, curvature


def propose(xp: Any, law: Law, u: Array, omega: Array, points: Points, log_weight: Array, seed: int) -> Proposal:
    """The mixture of the next stage, from points and the logarithms of their weights."""
    # Where every weight is zero any center is as good as another.
    log_weight = xp.maximum(log_weight, -1e300 + 0.0 * points.log_total)
    centers, sign, odds = _choose_centers(xp, law, points, log_weight, seed)
    centers, curvature = _approach_maximum(xp, law, u, omega, centers, sign)
    factors = xp.linalg.cholesky(curvature)
    return Proposal(Gaussians(centers, factors, xp.linalg.inv(factors)), odds)
