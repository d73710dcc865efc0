"""Where points come from: a mixture of the prior, the prior solved for the layer before the last, and Gaussians."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.interfaces import Array
from smimbench.numerics.qmc import normal_points, uniform_points
from smimbench_channels.sequence.softmax.deep.integrand import Law, Points, evaluate
from smimbench_channels.sequence.softmax.deep.small_matrices import (
    Vectors,
    apply,
    attention_product,
    combine,
    solve,
    squares,
)

__all__ = ["Gaussians", "Proposal", "draw"]

SPREAD = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""


class Gaussians(NamedTuple):
    """``center + SPREAD factor^{-T} x`` with standard normal x, K for each sample."""

    centers: Array  # (n, K, d)
    factors: Array  # (n, K, d, d) lower Cholesky factors of the curvature
    inverses: Array  # (n, K, d, d)


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
    squared = s + t
    exists = exists & (squared > 0.0)
    d = side * xp.sqrt(xp.where(exists, squared, 1.0))
    h = [s / d, -t / d]
    z = h if B is None else solve(xp, B, determinant, h)
    before = [x - o for x, o in zip(z, omega[-2])]
    xi = combine(np.linalg.inv(law.root), [*shift[:-1], before])
    return [[xp.where(exists, x, 0.0) for x in row] for row in xi], exists


def draw(
    xp: Any, law: Law, u: list[Array], omega: Vectors, proposal: Proposal, sizes: tuple[int, int, int], seed: int
) -> tuple[Points, Array]:
    """One scramble of the mixture; points and the logarithms of their weights.

    ``sizes`` says how many points come from the prior, from the prior solved for the layer before the last, and from all
    Gaussians together (0 where there are none).
    """
    like = u[0]
    n, device = like.shape[0], array_api_compat.device(like)
    before, tokens = law.layers - 1, law.tokens
    size = before * tokens

    def move(columns: np.ndarray[Any, Any]) -> list[Array]:
        nodes = xp.asarray(np.ascontiguousarray(columns.T), dtype=like.dtype, device=device)
        return [xp.broadcast_to(nodes[k, :][None, :], (n, nodes.shape[1])) for k in range(nodes.shape[0])]

    by_prior, by_branch, by_gaussian = sizes
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
    points = evaluate(xp, law, u, omega, xi)
    logs = [(by_prior, -0.5 * squares(xi))]
    if by_branch:
        logs.append((by_branch, _log_branches(xp, law, proposal.odds, omega, points)))
    if gaussians is not None:
        logs += [(each, log) for log in _log_gaussians(xp, gaussians, xi)]
    terms = [log + math.log(share / everything) for share, log in logs if share]
    top = terms[0]
    for term in terms[1:]:
        top = xp.maximum(top, term)
    density = top + xp.log(sum((xp.exp(term - top) for term in terms[1:]), xp.exp(terms[0] - top)))
    return points, xp.where(exists, points.log_total - density, -math.inf)
