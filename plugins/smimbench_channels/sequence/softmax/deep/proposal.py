"""The mixture that importance sampling draws from, and its log-densities: the prior, the prior solved for a layer or a
difference of tokens, and Gaussians at points that did well, moved towards the maximum by Gauss-Newton steps.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip
from smimbench.interfaces import Array, Host
from smimbench.numerics import normal_points, uniform_points
from smimbench_channels.batches import array_like, identity_like
from smimbench_channels.sequence.softmax import network
from smimbench_channels.sequence.softmax.deep.integrand import (
    SINGULAR,
    TINY,
    Law,
    Points,
    Vectors,
    adjugate,
    combine,
    log_integrand,
    log_of_sum,
    mixed,
    mixing,
    squares,
    total,
    unmixed,
)

LEAST_GAP, LARGEST_GAP = 1e-3, 3.0
"""Where differences of two tokens are drawn uniformly in the logarithm. The former halved: outputs closer than 1e-18 are met."""
UNIFORM = 0.25
"""Their share, in each layer. Doubled: a tenth more error at c = 1, less where c is tiny."""
SPREAD = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""


class Sizes(NamedTuple):
    """Number of points per scramble from each component of the mixture.

    From the prior; for two tokens only, from the prior solved for the layer before the last and for its difference of tokens;
    and from all Gaussians together, 0 before there are any.
    """

    prior: int
    branch: int
    gap: int
    gaussians: int


class Proposal(NamedTuple):
    """The proposal mixture of one stage of importance sampling.

    ``odds`` (n, 4) of the signs (u, side) = (+,+), (+,-), (-,+), (-,-) are for two tokens. Gaussians, K for each sample, are
    ``center + SPREAD factor^{-T} x`` with standard normal x.
    """

    odds: Array
    centers: Array = None  # (n, K, d)
    factors: Array = None  # (n, K, d, d) lower Cholesky factors of the curvature
    inverses: Array = None  # (n, K, d, d)


def _by_layer(law: Law, columns: list[Array]) -> Vectors:
    return [columns[k * law.tokens : (k + 1) * law.tokens] for k in range(law.layers - 1)]


def _log_gaussians(xp: Any, proposal: Proposal, xi: Vectors) -> list[Array]:
    """Log-densities of the mixture's Gaussians, relative to that of the standard normal law at 0."""
    flat = xp.stack([x for row in xi for x in row], axis=1)
    size, shrink = flat.shape[1], 1.0 / SPREAD
    logs = []
    for k in range(proposal.centers.shape[1]):
        factor = proposal.factors[:, k, :, :]
        white = xp.matmul(xp.matrix_transpose(factor), flat - proposal.centers[:, k, :, None])
        scale = xp.sum(xp.log(xp.linalg.diagonal(factor)), axis=-1) + size * math.log(shrink)
        logs.append((-0.5 * shrink * shrink) * xp.sum(white * white, axis=1) + scale[:, None])
    return logs


def _log_branches(xp: Any, law: Law, odds: Array, omega: Vectors, points: Points) -> Array:
    """Log-density of the proposal that solves for ``z_{L-1}``, relative to the standard normal law at 0."""
    inverse = np.linalg.inv(law.other_root)
    constant = law.tokens * float(np.log(np.diagonal(law.root)).sum() - np.log(np.diagonal(law.other_root)).sum())
    right = points.side >= 0.0
    logs = []
    for sign, chances in ((1.0, odds[:, :2]), (-1.0, odds[:, 2:])):
        rest = [*points.dz[:-2], [sign * z - o for z, o in zip(points.last, omega[-1])]]
        chance = xp.where(right, chances[:, :1], chances[:, 1:])
        logs.append(-0.5 * squares(combine(inverse, rest)) + xp.log(chance))
    return log_of_sum(xp, *logs) + points.jacobian + constant


def _log_gaps(xp: Any, law: Law, u: list[Array], omega: Vectors, points: Points) -> Array:
    """Log-density of the proposal that solves for a difference of tokens, relative to the standard normal law at 0."""
    log = -0.5 * squares(points.xi)
    for layer, row in enumerate(points.xi):
        white = (row[0] - row[1]) * math.sqrt(0.5)
        scale = math.sqrt(2.0) * float(law.root[layer, layer])
        gap = (omega[layer][0] - omega[layer][1]) + (points.dz[layer][0] - points.dz[layer][1])
        if layer < law.layers - 2:
            own = xp.exp(-0.5 * white * white)
        else:
            growth = (1.0 + law.skip) ** (law.layers - 2) * points.mixed
            singular = clip(law.skip + 0.25 * points.side * points.side, SINGULAR)
            # the difference of z_L that the approximate determinant would give
            step = xp.abs(u[2]) * (1.0 + law.skip) ** (2 - law.layers) / clip(singular * points.mixed, SINGULAR)
            width = math.sqrt(2.0 * law.variance)
            center = omega[-1][0] - omega[-1][1]
            both = xp.exp(-0.5 * ((step - center) / width) ** 2) + xp.exp(-0.5 * ((step + center) / width) ** 2)
            change = clip(step * xp.abs(points.side) * growth / singular, None, 1.0 / TINY)
            own = (0.25 * scale / width) * both * change
        # uniform in the logarithm, of any sign; densities are relative to 1 / sqrt(2 pi) per scale
        size = xp.abs(gap)
        inside = (size >= LEAST_GAP) & (size <= LARGEST_GAP)
        constant = scale * math.sqrt(2.0 * math.pi) / (2.0 * math.log(LARGEST_GAP / LEAST_GAP))
        uniform = xp.where(inside, constant / xp.where(inside, size, 1.0), 0.0)
        log = log + 0.5 * white * white + xp.log(clip((1.0 - UNIFORM) * own + UNIFORM * uniform, TINY))
    return log


def _gap_points(
    xp: Any, law: Law, u: list[Array], omega: Vectors, normal: Vectors, uniform: list[Array]
) -> tuple[Vectors, Array]:
    """Whitened points for nearly singular attention matrices, and a mask of where there are any.

    The difference of the tokens of ``z_L`` is drawn from its law; with the other layers it fixes the determinant of the last
    attention matrix, and that the difference of the tokens of ``z_{L-1}``, by ``det A = (1 + c) (c + d^2 / 4)`` for small d.
    """
    skip, layers = law.skip, law.layers
    xi: Vectors = []
    w: Vectors = []
    for layer in range(layers - 1):
        middle, white = normal[layer]
        base = [sum((float(law.root[layer, k]) * xi[k][m] for k in range(layer)), omega[layer][m]) for m in range(2)]
        scale = math.sqrt(2.0) * float(law.root[layer, layer])
        chance = uniform[layer]
        by_size = chance < UNIFORM
        # the first half of a share has one sign, the second one the other
        spread = xp.where(by_size, chance / UNIFORM, (chance - UNIFORM) / (1.0 - UNIFORM))
        size = LARGEST_GAP * xp.exp(math.log(LEAST_GAP / LARGEST_GAP) * (2.0 * spread % 1.0))
        gap = (base[0] - base[1]) + scale * white
        if layer == layers - 2:
            inner = mixing(xp, w, skip, gap)
            last = (omega[-1][0] - omega[-1][1]) + math.sqrt(2.0 * law.variance) * white
            small = xp.abs(u[2]) * (1.0 + skip) ** (2 - layers)
            singular = small / clip(xp.abs(last) * inner.determinant, TINY)
            square = 4.0 * (singular - skip)
            # no solution is looked for beyond 1e3: the law of a signal is far smaller
            solved = (square > 0.0) & (singular < 1e3)
            gap = xp.sqrt(xp.where(solved, square, 1.0)) / clip((1.0 + skip) ** (layers - 2) * inner.determinant, TINY)
            exists = (solved & (gap < 1e3)) | by_size
            gap = xp.where(exists, xp.where(spread < 0.5, -gap, gap), 0.0)
        gap = xp.where(by_size, xp.where(spread < 0.5, -size, size), gap)
        white = (gap - (base[0] - base[1])) / scale
        xi.append([math.sqrt(0.5) * (middle + white), math.sqrt(0.5) * (middle - white)])
        w.append([b + float(law.root[layer, layer]) * x for b, x in zip(base, xi[layer])])
    return xi, exists


def _branch_points(
    xp: Any, law: Law, u: list[Array], omega: Vectors, odds: Array, normal: Vectors, uniform: Array
) -> tuple[Vectors, Array]:
    """Whitened points from the prior of all layers except ``z_{L-1}``, which the label fixes, and where a solution exists."""
    skip = law.skip
    shift = combine(law.other_root, normal)
    rest = [[o + x for o, x in zip(mean, row)] for mean, row in zip([*omega[:-2], omega[-1]], shift)]
    B = mixing(xp, rest[:-1], skip, rest[-1][0])
    v = mixed(B, rest[-1], skip)
    first, half, last = (xp.cumulative_sum(odds, axis=1)[:, k : k + 1] for k in range(3))
    one = xp.ones_like(v[0])
    sign = xp.where(uniform < half, one, -one)
    side = xp.where((uniform < first) | ((uniform >= half) & (uniform < last)), one, -one)
    gap = v[0] - v[1]
    gap = xp.where(xp.abs(gap) < 1e-150, 1e-150, gap)
    stay = [(sign * u[m] - skip * v[m] - v[1 - m]) / gap for m in range(2)]
    leave = [((1.0 + skip) * v[m] - sign * u[m]) / gap for m in range(2)]
    p, p_, q, q_ = stay[0], leave[0], -stay[1], -leave[1]
    exists = (p > 0.0) & (p_ > 0.0) & (q > 0.0) & (q_ > 0.0)
    p, p_, q, q_ = (xp.where(exists, x, 0.5) for x in (p, p_, q, q_))
    s, t = xp.log(p) - xp.log(p_), xp.log(q) - xp.log(q_)
    # s + t, with the digits of p + q - 1
    squared = xp.log1p(clip((sign * u[2] / gap - skip) / (p_ * q_), -0.5))
    exists = exists & (squared > 0.0)
    d = side * xp.sqrt(xp.where(exists, squared, 1.0))
    h = [s / d, -t / d]
    z = unmixed(B, h, h[0] - h[1], skip)
    before = [x - o for x, o in zip(z, omega[-2])]
    xi = combine(np.linalg.inv(law.root), [*shift[:-1], before])
    return [[xp.where(exists, x, 0.0) for x in row] for row in xi], exists


def draw_mixture(
    xp: Any, law: Law, outputs: Array, means: Array, proposal: Proposal, sizes: Sizes, seed: int
) -> tuple[Points, Array]:
    """Draw one scramble of the mixture: points and log-weights.

    ``outputs`` are ``u`` by token, for two tokens followed by their difference, ``means`` is omega (n, L, M).
    """
    from scipy.special import ndtri

    n, before = outputs.shape[0], law.layers - 1
    u = [outputs[:, m][:, None] for m in range(outputs.shape[1])]
    omega = [[means[:, layer, m][:, None] for m in range(law.tokens)] for layer in range(law.layers)]
    size = before * law.tokens

    def move(columns: Host) -> list[Array]:
        nodes = array_like(np.ascontiguousarray(columns.T), u[0])
        return [xp.broadcast_to(nodes[k, :][None, :], (n, nodes.shape[1])) for k in range(nodes.shape[0])]

    def everywhere(xi: Vectors) -> tuple[Vectors, Array]:
        return xi, xp.ones_like(xi[0][0], dtype=xp.bool)

    parts = [everywhere(_by_layer(law, move(normal_points(size, sizes.prior, "deep attention: prior", seed))))]
    if law.tokens == 2:
        cube = uniform_points(size + 1, sizes.branch, "deep attention: branch", seed)
        uniform, normal = move(cube[:, :1])[0], _by_layer(law, move(ndtri(cube[:, 1:])))
        parts.append(_branch_points(xp, law, u, omega, proposal.odds, normal, uniform))
        cube = uniform_points(size + before, sizes.gap, "deep attention: gap", seed)
        normal = _by_layer(law, move(ndtri(cube[:, :size])))
        parts.append(_gap_points(xp, law, u, omega, normal, move(cube[:, size:])))
    if sizes.gaussians:
        count = proposal.centers.shape[1]
        each = sizes.gaussians // count
        standard = normal_points(size, sizes.gaussians, "deep attention: Gaussians", seed)[: count * each]
        white = array_like(standard.reshape(count, each, size).transpose(0, 2, 1), u[0])
        drawn = proposal.centers[..., None] + SPREAD * xp.matmul(xp.matrix_transpose(proposal.inverses), white)
        parts.append(everywhere(_by_layer(law, [xp.reshape(drawn[:, :, i, :], (n, -1)) for i in range(size)])))
    xi = [[xp.concat([part[a][m] for part, _ in parts], axis=1) for m in range(law.tokens)] for a in range(before)]
    points = log_integrand(xp, law, u, omega, xi)
    logs = [(sizes.prior, -0.5 * squares(xi))]
    if law.tokens == 2:
        logs.append((sizes.branch, _log_branches(xp, law, proposal.odds, omega, points)))
        logs.append((sizes.gap, _log_gaps(xp, law, u, omega, points)))
    if sizes.gaussians:
        logs += [(each, log) for log in _log_gaussians(xp, proposal, xi)]
    terms = [log + math.log(share / sum(sizes)) for share, log in logs]
    top = functools.reduce(xp.maximum, terms)
    density = top + xp.log(total(xp.exp(term - top) for term in terms))
    exists = xp.concat([mask for _, mask in parts], axis=1)
    return points, xp.where(exists, points.log_total - density, -math.inf)


def _choose_centers(xp: Any, law: Law, points: Points, log_weight: Array, seed: int) -> tuple[Array, Array, Array]:
    """Gaussian centers (n, K, d), their sign of u (n, K), and the odds of the branches, from earlier points."""
    noise = -np.log(-np.log(uniform_points(1, log_weight.shape[1], "deep attention: choice", seed)[:, 0]))
    # Eight of a sample, drawn without replacement with the square roots of the weights as odds: bold, but not blind to small
    # modes.
    order = xp.argsort(-(0.5 * log_weight + array_like(noise, log_weight)), axis=1, stable=True)[:, :8]

    def pick(values: Array) -> Array:
        return xp.take_along_axis(values, order, axis=1)

    centers = xp.stack([pick(x) for row in points.xi for x in row], axis=-1)
    sign = 2.0 * pick(xp.astype(points.log_plus >= points.log_minus, log_weight.dtype)) - 1.0
    odds = xp.full_like(log_weight[:, :4], 0.25)
    if law.tokens == 2:
        weight = xp.exp(0.5 * (log_weight - xp.max(log_weight, axis=1, keepdims=True)))
        right = points.side >= 0.0
        plus = 1.0 / (1.0 + xp.exp(clip(points.log_minus - points.log_plus, -300.0, 300.0)))
        pairs = [(chance, side) for chance in (plus, 1.0 - plus) for side in (right, ~right)]
        share = xp.stack([xp.sum(xp.where(side, weight * chance, 0.0), axis=1) for chance, side in pairs], axis=1)
        # each branch has a chance of at least 0.04, for those that the first look missed
        odds = 0.04 + (1.0 - 4.0 * 0.04) * share / xp.sum(share, axis=1, keepdims=True)
    return centers, sign, odds


def _inverse(xp: Any, B: Array) -> Array:
    """Inverse of small matrices (..., M, M), regularized near singularity (used only for search)."""
    tokens = range(B.shape[-1])
    rows, determinant = adjugate([[B[..., m, k] for k in tokens] for m in tokens])
    scale = 1.0 / xp.where(xp.abs(determinant) < 1e-9, 1e-9, determinant)
    return xp.stack([xp.stack([entry * scale for entry in row], axis=-1) for row in rows], axis=-2)


def _posterior_curvature(
    xp: Any, law: Law, u: Array, omega: Array, centers: Array, sign: Array
) -> tuple[Array, Array, Array]:
    """Value, gradient and Gauss-Newton curvature of minus the log-posterior (less log det B)."""
    n, count, size = centers.shape
    before, tokens = law.layers - 1, law.tokens

    def mix(rows: Host, values: Array) -> Array:
        return xp.matmul(array_like(rows, values), values)

    dw = mix(law.root, xp.reshape(centers, (n, count, before, tokens)))
    w = omega[:, None, :before, :] + dw
    inverse = _inverse(xp, network.attention_product(w, law.skip))
    last = xp.matmul(inverse, (sign[:, :, None] * u[:, None, :])[..., None])[..., 0]
    scale = 1.0 / math.sqrt(law.noise)
    residual = (last - omega[:, None, before, :] - mix(law.slopes[None, :], dw)[..., 0, :]) * scale
    z = xp.concat([w, last[:, :, None, :]], axis=2)
    basis = identity_like(tokens, centers)
    # rows m: d u_m / d z, (n, K, M, L, M)
    slope = network.output_vjp(z[:, :, None, :, :] + 0.0 * basis[:, None, :], law.skip, basis)
    change = -xp.matmul(inverse, xp.reshape(slope[:, :, :, :before, :], (n, count, tokens, size)))
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
    """Centers after four damped Gauss-Newton steps, and the curvature there."""
    state = centers, *_posterior_curvature(xp, law, u, omega, centers, sign)
    length = xp.ones_like(sign)
    for _ in range(4):
        centers, value, gradient, curvature = state
        trial = centers - length[..., None] * xp.linalg.solve(curvature, gradient[..., None])[..., 0]
        found = trial, *_posterior_curvature(xp, law, u, omega, trial, sign)
        better = found[1] < value
        masks = better[..., None], better, better[..., None], better[..., None, None]
        state = tuple(xp.where(mask, new, old) for mask, new, old in zip(masks, found, state))
        length = xp.where(better, clip(2.0 * length, None, 1.0), 0.3 * length)
    return state[0], state[3]


def propose(xp: Any, law: Law, u: Array, omega: Array, points: Points, log_weight: Array, seed: int) -> Proposal:
    """Mixture of the next stage, fitted to points and log-weights of the current one."""
    # Where every weight is zero any center is as good as another.
    centers, sign, odds = _choose_centers(xp, law, points, clip(log_weight, -1e300), seed)
    centers, curvature = _approach_maximum(xp, law, u, omega, centers, sign)
    factors = xp.linalg.cholesky(curvature)
    return Proposal(odds, centers, factors, xp.linalg.inv(factors))
