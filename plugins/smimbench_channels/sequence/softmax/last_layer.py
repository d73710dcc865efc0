r"""Deep attention of two tokens where the last layer, and at most one layer before it, is known.

Divided by ``(1 + c)^{L-1}`` the product ``B`` of the attention matrices is row-stochastic, so it has two parameters however
deep the network is. With ``b_01``, ``b_10`` its off-diagonal entries, ``D`` its determinant and ``ut = u / (1 + c)^{L-1}``,

.. math::

    x = b_{01} / D, \quad y = b_{10} / D, \quad 1 / D = 1 + x + y, \quad
    z_L = \pm (ut_1 + x (ut_1 - ut_2),\; ut_2 - y (ut_1 - ut_2)).

A label therefore says the same as a Gaussian factor in x times one in y, times the Jacobian ``1 + x + y``. The prior law of
(x, y), and the prior moments of the other layers that go with it, are tabulated once on nodes that are uniform in
``log(1 + x)`` and ``log(1 + y)``; the points of the prior integral are spread over the nodes by Lagrange's interpolation
formula, so that only the Gaussian factors have to be smooth on the scale of the nodes. Posterior moments are bilinear forms
``f^T T g``, whatever the depth. A layer before the last that is known as well enters as an outer grid: one table for each of
its values.

Everything here serves theory and runs on the host. The scheme is derived, checked by
tests/channels/sequence/test_softmax_last_layer.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Uncertain
from smimbench.numerics.qmc import normal_points
from smimbench.theory.sampling import SCRAMBLES, controlled_mean

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["information", "second_moments", "supports", "susceptibility"]

Host = np.ndarray[Any, np.dtype[np.float64]]

# Without a skip connection x and y are unbounded: what lies beyond is moved to here, and counted as an error. Layers of
# nearly equal tokens make the next one even more so, hence the dependence on their number.
_FARTHEST = (1e8, 1e18, 1e30)
# Spacing of the nodes over the width of the Gaussian factors; the second one where the last layer is unknown.
_STEP, _BLIND_STEP = 0.15, 0.08
_FEWEST, _MOST = 48, 600
_OUTER_STEP, _OUTER_REACH = 0.3, 5.2
_NARROWEST = 0.25
_NEGLIGIBLE = 1e-5
_TABLE_POINTS, _NODE_POINTS = 2**18, 2**13
_FINE, _COARSE = 50, 8
_POINTS, _OUTER_POINTS = 2**12, 2**11
_CHUNK = 2048
# What finer nodes, grids and tables were seen to change.
_DISCRETISATION = 3e-4
_METHOD = f"quadrature in the latents, Monte Carlo over labels ({SCRAMBLES} scrambles)"


def supports(Q: Array, V: Array) -> bool:
    """Whether one (Q, V), both (L, L), is covered.

    Both diagonal, L at least 2, and of the layers before the last at most one known (none for L = 2), and that one with an
    error of at least a quarter of its variance.
    """
    q, v = to_host(Q), to_host(V)
    if q.shape[-1] < 2 or any(np.any(m != np.diag(np.diagonal(m))) for m in (q, v)):
        return False
    q, v = np.diagonal(q), np.diagonal(v)
    known = np.flatnonzero(q[:-1])
    if len(known) == 1 and len(q) > 2:
        return bool(v[known[0]] >= _NARROWEST * (q + v)[known[0]])
    return len(known) == 0


def information(Q: Array, V: Array, skip: float) -> Uncertain:
    r"""``E \sum_m g_m g_m^T`` (..., L, L), diagonal, at overlaps that ``supports`` accepts.

    Parameters
    ----------
    Q, V : array (..., L, L)
    skip : float
        c >= 0.
    """
    return _batched(Q, V, skip, 0)


def susceptibility(Q: Array, V: Array, skip: float) -> Uncertain:
    r"""How the information of the unknown layers starts, ``I_ab = \lambda_ab Q_ab``, at overlaps that ``supports`` accepts.

    .. math::

        \lambda_{ab} = E \sum_{mk} G_{a,mk} G_{b,mk}, \qquad
        G_{a,mk} = (E[z_{am} z_{ak} | y, \omega] - V_{aa} \delta_{mk}) / V_{aa}^2

    Entries of known layers are 0.

    Parameters
    ----------
    Q, V : array (..., L, L)
    skip : float
        c >= 0.
    """
    return _batched(Q, V, skip, 2)


def _batched(Q: Array, V: Array, skip: float, which: int) -> Uncertain:
    xp = namespace(Q, V)
    q, v = np.broadcast_arrays(to_host(Q).astype(float), to_host(V).astype(float))
    layers = q.shape[-1]
    values, errors = np.zeros((2, *q.shape)).reshape(2, -1, layers, layers)
    for k, (one_q, one_v) in enumerate(zip(q.reshape(-1, layers, layers), v.reshape(-1, layers, layers))):
        if not supports(one_q, one_v):
            raise ValueError(f"no table for Q = {one_q.tolist()}, V = {one_v.tolist()}")
        pair = tuple(np.diagonal(one_q).tolist()), tuple(np.diagonal(one_v).tolist())
        value, error = _evaluate(float(skip), *pair)[which : which + 2]
        values[k], errors[k] = (np.diag(value), np.diag(error)) if which == 0 else (value, error)
    place = {"dtype": V.dtype, "device": array_api_compat.device(V)}
    return Uncertain(*(xp.asarray(a.reshape(q.shape), **place) for a in (values, errors)), _METHOD)


def second_moments(u: Array, omega: Array, V: Array, skip: float) -> Array:
    """``E[z_l z_l^T | y]`` of every layer when nothing but the last one is known.

    Parameters
    ----------
    u : array (n, 2)
        Outputs, up to sign.
    omega : array (n, 2)
        Means of the last layer; those of the others are zero.
    V : array (L,)
        Variances of the layers.
    skip : float
        c >= 0.

    Returns
    -------
    array (n, L, 2, 2)
        On the host.
    """
    u, omega = to_host(u).astype(float), to_host(omega).astype(float)
    v = to_host(V).astype(float)
    layers, last = len(v), len(v) - 1
    scales = tuple(np.sqrt(v[:last]).tolist())
    # Without knowing Q the width is compared with what the means themselves show.
    spread = v[last] + max(float((omega**2).mean()), 0.0)
    tables = _tables(float(skip), scales, None, 0.0, _count(skip, layers, v[last] / spread, blind=True), 0)
    ut = u / (1.0 + skip) ** last
    found = _moments(tables, ut, ut[:, 0] - ut[:, 1], omega, float(v[last]), full=True)
    assert found.product is not None
    result = np.empty((len(u), layers, 2, 2))
    mixed = (
        found.product
        + omega[:, 0] * found.shift[:, 1]
        + omega[:, 1] * found.shift[:, 0]
        + omega[:, 0] * omega[:, 1]
    )
    diagonal = found.square + 2 * omega * found.shift + omega**2
    for layer in range(layers):
        moments = found.unknown[:, layer] if layer < last else None
        for m in range(2):
            result[:, layer, m, m] = diagonal[:, m] if moments is None else v[layer] * (moments[:, m] + 1)
        off = mixed if moments is None else v[layer] * moments[:, 2]
        result[:, layer, 0, 1] = result[:, layer, 1, 0] = off
    return result


# -- the prior law of the attention matrices --------------------------------------------------------------------------


def _mixing(z: Host, skip: float) -> tuple[Host, Host, Host]:
    """``b_01``, ``b_10`` and the determinant of ``B / (1 + c)^K`` for the K layers ``z`` (n, K, 2)."""
    from scipy.special import expit

    one, two, determinant = np.zeros(len(z)), np.zeros(len(z)), np.ones(len(z))
    for layer in range(z.shape[1]):
        first, second = z[:, layer, 0], z[:, layer, 1]
        scale = (1.0 + skip) ** layer
        a = scale * (first + one * (second - first))
        d = scale * determinant * (first - second)
        b = a - d
        stay, leave = a * d, -b * d
        # p + q - 1 = p q (1 - exp(-d^2)) keeps its digits where both tokens are nearly alike
        factor = skip - expit(stay) * expit(leave) * np.expm1(-d * d)
        p, q = expit(-stay) / (1.0 + skip), expit(-leave) / (1.0 + skip)
        one, two = one + p * (1.0 - one - two), two + q * (1.0 - one - two)
        determinant = determinant * factor / (1.0 + skip)
    return one, two, determinant


@dataclass(frozen=True)
class _Tables:
    """Prior sums on the nodes: ``sums`` (K, N, m N), for K values ``outer`` (K, 2) of the known layer.

    The m blocks of columns are the mass with the Jacobian, then for every unknown layer, in units of its variance,
    ``z_1^2 - 1``, ``z_2^2 - 1``, ``z_1 z_2`` and ``|z z^T - I|^2 - 6``.
    """

    nodes: Host
    outer: Host
    share: Host
    sums: np.ndarray[Any, Any]
    clipped: float


@lru_cache(maxsize=8)
def _two_token_grid(skip: float, fine: int) -> tuple[Host, Host]:
    """Points (n, 1, 2) and weights of a standard normal layer.

    Trapezoidal rules in the mean of both tokens and in the logarithm of their gap: tokens that are
    nearly alike make the attention matrix nearly singular without a skip connection.
    """
    low = -18.0 if skip < 1e-3 else -9.0
    log_gap = np.linspace(low, math.log(11.0), 1 + round((math.log(11.0) - low) * fine))
    middle = np.linspace(-5.0, 5.0, 1 + 5 * fine)
    m, gap = np.meshgrid(middle, np.exp(log_gap), indexing="ij")
    weight = (np.exp(-m * m - gap * gap / 4) * gap).ravel()
    points = np.stack([m + gap / 2, m - gap / 2], axis=-1).reshape(-1, 1, 2)
    # both signs of the gap
    points, weight = np.concatenate([points, points[:, :, ::-1]]), np.concatenate([weight, weight])
    kept = weight > 1e-9 * weight.max()
    return points[kept], weight[kept] / weight[kept].sum()


def _lagrange(position: Host, count: int) -> tuple[np.ndarray[Any, Any], list[Host]]:
    start = np.clip(np.floor(position).astype(np.int64) - 1, 0, count - 4)
    t = position - start
    a, b, c = t - 1, t - 2, t - 3
    return start, [-a * b * c / 6, t * b * c / 2, -t * a * c / 2, t * a * b / 6]


def _add_points(
    sums: np.ndarray[Any, Any], z: Host, weight: Host, unknown: Host, skip: float, step: float
) -> float:
    """Spread prior points over a table (N, m N); returns the weight that lies beyond its last node."""
    count = sums.shape[0]
    blocks = sums.shape[1] // count
    one, two, determinant = _mixing(z, skip)
    last = step * (count - 1)
    positions = []
    clipped = np.zeros(len(z), dtype=bool)
    for b in (one, two):
        where = np.log1p(b / determinant)
        clipped |= where > last * (1 + 1e-9)
        positions.append(np.minimum(where, last) / step)
    jacobian = weight / np.maximum(determinant, math.exp(-last))
    moments = [jacobian]
    for layer in range(unknown.shape[1]):
        p, q = unknown[:, layer, 0], unknown[:, layer, 1]
        e, f, g = p * p - 1, q * q - 1, p * q
        # A layer that the label hardly depends on must not seem to have moments because the points are few.
        moments += [jacobian * (m - weight @ m) for m in (e, f, g, e * e + f * f + 2 * g * g)]
    (i, wx), (j, wy) = (_lagrange(position, count) for position in positions)
    table = np.zeros((blocks, count * count))
    for k in range(4):
        for m in range(4):
            index, share = (i + k) * count + j + m, wx[k] * wy[m]
            for target, moment in zip(table, moments):
                target += np.bincount(index, share * moment, minlength=count * count)
    sums += table.reshape(blocks, count, count).transpose(1, 0, 2).reshape(sums.shape)
    return float(weight[clipped].sum())


@lru_cache(maxsize=4)
def _tables(
    skip: float, scales: tuple[float, ...], known: int | None, spread: float, count: int, copy: int
) -> _Tables:
    """Tables for the layers before the last, with standard deviations ``scales``; ``known`` is on the outer grid.

    ``spread`` is the spacing of the outer grid, ``copy`` names an independent set of points.
    """
    layers = len(scales)
    step = _farthest(skip, layers) / (count - 1)
    nodes = np.expm1(step * np.arange(count))
    unknown = [layer for layer in range(layers) if layer != known]
    blocks = 1 + 4 * len(unknown)
    if known is None:
        outer, share = np.zeros((1, 2)), np.ones(1)
    else:
        outer, share = _half_plane(spread, _OUTER_REACH * scales[known])
    sums = np.zeros((len(outer), count, blocks * count), np.float64 if known is None else np.float32)
    clipped = 0.0
    for k, value in enumerate(outer):
        if len(unknown) == 1:
            normal, weight = _two_token_grid(skip, _FINE if known is None else _COARSE)
        else:
            size = _TABLE_POINTS if known is None else _NODE_POINTS
            normal = normal_points(2 * len(unknown), size, "last layer: table", copy, k % 8).reshape(
                size, -1, 2
            )
            weight = np.full(size, 1.0 / size)
        z = np.empty((len(normal), layers, 2))
        z[:, unknown] = normal * np.array([scales[layer] for layer in unknown])[:, None]
        if known is not None:
            z[:, known] = value
        clipped += share[k] * _add_points(sums[k], z, weight, normal, skip, step)
    if known is None:
        _symmetrise(sums[0], count)
    return _Tables(nodes, outer, share, sums, clipped / share.sum())


def _symmetrise(sums: Host, count: int) -> None:
    """Exchanging the tokens exchanges x with y and the two diagonal moments of every layer."""
    blocks = sums.shape[1] // count
    view = sums.reshape(count, blocks, count)
    swapped = view.transpose(2, 1, 0).copy()
    for layer in range((blocks - 1) // 4):
        at = 1 + 4 * layer
        swapped[:, [at, at + 1]] = swapped[:, [at + 1, at]]
    view += swapped
    view *= 0.5


def _half_plane(step: float, reach: float) -> tuple[Host, Host]:
    """Nodes of a square grid in a disc, one of each pair ``+-z``, and the share of each node that it stands for."""
    most = math.ceil(reach / step)
    i, j = np.meshgrid(np.arange(-most, most + 1), np.arange(-most, most + 1), indexing="ij")
    half = ((i > 0) | ((i == 0) & (j >= 0))) & ((i * i + j * j) * step * step <= reach * reach)
    points = np.stack([i[half], j[half]], axis=-1)
    return step * points.astype(float), np.where((points == 0).all(1), 0.5, 1.0)


# -- posterior of many samples ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moments:
    """Posterior means of n samples.

    ``shift`` (n, 2) and ``square`` (n, 2) hold ``e`` and ``e^2``, ``e = z_L - omega_L`` by token. ``product`` (n,) is ``e_1
    e_2`` and ``fourth`` (n,) the sum over both tokens and both orders of ``z_Lm^2 z_Lk^2``; None unless asked for.
    ``known_shift`` (n, 2) and ``known_square`` (n,) are shift and squared distance of the known layer, ``unknown`` (n, U, 4)
    the moments of the tables.
    """

    shift: Host
    square: Host
    product: Host | None
    fourth: Host | None
    known_shift: Host | None
    known_square: Host | None
    unknown: Host


@dataclass(frozen=True)
class _Known:
    """The layer on the outer grid, for one (Q, V): modes of its weights, and the tables summed over each mode.

    The weight of an outer node, and its products with the node's coordinates and squared length, are linear combinations of
    few modes: far fewer bilinear forms than nodes are needed.
    """

    modes: Host
    sums: np.ndarray[Any, np.dtype[np.float32]]


def _weights(tables: _Tables, omega: Host, w: float) -> list[Host]:
    """Weights (n, K) of the outer nodes for 1, both coordinates, and the squared length of the known layer."""
    z = tables.outer
    plus, minus = (tables.share * np.exp(-0.5 / w * _distance(s * z, omega)) for s in (1.0, -1.0))
    even, odd = plus + minus, plus - minus
    return [even, odd * z[:, 0], odd * z[:, 1], even * (z * z).sum(1)]


def _compress(tables: _Tables, omega: Host, w: float) -> _Known:
    """Modes that hold all weights of samples like ``omega`` (n, 2)."""
    stack = np.concatenate(_weights(tables, omega, w))
    _, size, modes = np.linalg.svd(stack, full_matrices=False)
    modes = modes[size > _NEGLIGIBLE * size[0]]
    return _Known(modes, np.tensordot(modes.astype(np.float32), tables.sums, 1))


def _moments(
    tables: _Tables,
    ut: Host,
    gap: Host,
    omega: Host,
    v: float,
    known: tuple[_Known, Host, float] | None = None,
    full: bool = False,
) -> _Moments:
    """Posterior moments of the samples ``ut`` (n, 2), with ``gap = ut_1 - ut_2`` given apart for its digits.

    ``omega`` (n, 2) and ``v`` belong to the last layer, ``known`` brings the layer on the outer grid with its own.
    """
    count = len(tables.nodes)
    blocks = tables.sums.shape[2] // count
    n, x = len(ut), tables.nodes
    if known is None:
        kind: Any = np.float64
        stack, rho = tables.sums, [np.ones((n, 1))]
    else:
        kind = np.float32
        stack = known[0].sums
        rho = [weight @ known[0].modes.T for weight in _weights(tables, *known[1:])]
    mass, shift, square = np.zeros(n), np.zeros((n, 2)), np.zeros((n, 2))
    product, fourth, unknown = np.zeros(n), np.zeros(n), np.zeros((n, blocks - 1))
    per_mode = np.zeros((n, len(stack)))
    for sign in (1.0, -1.0):
        z1, z2 = sign * (ut[:, :1] + gap[:, None] * x), sign * (ut[:, 1:] - gap[:, None] * x)
        e1, e2 = z1 - omega[:, :1], z2 - omega[:, 1:]
        f, g = np.exp(-0.5 / v * e1 * e1), np.exp(-0.5 / v * e2 * e2)
        f_, g_ = f.astype(kind), g.astype(kind)
        factors = [(f * e1).astype(kind), (f * z1 * z1).astype(kind)] if full else []
        by_g, by_f = np.zeros((n, blocks * count), kind), np.zeros((n, count), kind)
        extra = [np.zeros((n, count), kind) for _ in factors]
        for k, sums in enumerate(stack):
            plain = sums[:, :count]
            amount = rho[0][:, k, None].astype(kind)
            forward = f_ @ sums
            per_mode[:, k] += np.einsum("nj,nj->n", forward[:, :count], g_)
            forward *= amount
            by_g += forward
            backward = g_ @ plain.T
            backward *= amount
            by_f += backward
            for total, factor in zip(extra, factors):
                total += amount * (factor @ plain)
        right = by_g.reshape(n, blocks, count)
        sums_of_blocks = np.einsum("nbj,nj->nb", right, g)
        mass += sums_of_blocks[:, 0]
        unknown += sums_of_blocks[:, 1:]
        shift += np.stack([(by_f * f * e1).sum(1), (right[:, 0] * g * e2).sum(1)], axis=-1)
        square += np.stack([(by_f * f * e1 * e1).sum(1), (right[:, 0] * g * e2 * e2).sum(1)], axis=-1)
        if full:
            product += (extra[0] * g * e2).sum(1)
            fourth += (by_f * f * z1**4 + right[:, 0] * g * z2**4 + 2 * extra[1] * g * z2 * z2).sum(1)
    known_shift = known_square = None
    if known is not None:
        centre = known[1]
        mean = np.stack([(rho[1] * per_mode).sum(1), (rho[2] * per_mode).sum(1)], axis=-1) / mass[:, None]
        known_shift = mean - centre
        known_square = (rho[3] * per_mode).sum(1) / mass + ((centre - 2 * mean) * centre).sum(1)
    over = mass[:, None]
    return _Moments(
        shift / over,
        square / over,
        product / mass if full else None,
        fourth / mass if full else None,
        known_shift,
        known_square,
        (unknown / over).reshape(n, -1, 4),
    )


def _distance(points: Host, centres: Host) -> Host:
    """Squared distances (n, K) of points (K, 2) from centres (n, 2)."""
    return ((points[None] - centres[:, None]) ** 2).sum(-1)


def _count(skip: float, layers: int, relative: float, blind: bool) -> int:
    """Number of nodes for a Gaussian factor whose variance is the fraction ``relative`` of the whole."""
    step = (_BLIND_STEP if blind else _STEP) * math.sqrt(relative)
    return min(_MOST, max(_FEWEST, math.ceil(_farthest(skip, layers - 1) / step) + 1))


def _farthest(skip: float, layers: int) -> float:
    """Largest ``log(1 + x)`` that ``layers`` layers of attention can make."""
    limit = math.log(_FARTHEST[min(layers, len(_FARTHEST)) - 1])
    return min(limit, layers * math.log1p(1.0 / skip)) if skip > 0 else limit


# -- means over labels ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _evaluate(skip: float, q: tuple[float, ...], v: tuple[float, ...]) -> tuple[Host, Host, Host, Host]:
    """Information (L,) and its error, susceptibility (L, L) and its error, of one diagonal overlap."""
    layers = len(q)
    last = layers - 1
    known = next((a for a in range(last) if q[a] > 0), None)
    unknown = [a for a in range(last) if a != known]
    blind = q[last] == 0.0
    scales = tuple(math.sqrt(q[a] + v[a]) for a in range(last))
    # Rounded, so that the tables serve more than one overlap.
    spread = 0.0 if known is None else _OUTER_STEP * 2 ** (math.floor(2 * math.log2(v[known])) / 4)
    count = _count(skip, layers, v[last] / (q[last] + v[last]), blind)
    copies = 1 if len(unknown) == 1 else 2
    points = _POINTS if known is None else _OUTER_POINTS
    informed = [a for a in ([] if known is None else [known]) + ([] if blind else [last])]
    free = unknown + ([last] if blind else [])
    pairs = [(a, b) for a in free for b in free if a <= b]
    compressed: dict[int, _Known] = {}
    samples: dict[Any, list[Host]] = {key: [] for key in (*informed, *pairs)}
    controls: list[Host] = []
    clipped = 0.0
    for scramble in range(SCRAMBLES):
        tables = _tables(skip, scales, known, spread, count, scramble % copies)
        clipped = max(clipped, tables.clipped)
        normal = normal_points(2 * (layers + 2), points, "last layer: labels", scramble).reshape(
            points, layers + 2, 2
        )
        omega_last = math.sqrt(q[last]) * normal[:, last]
        z = normal[:, :layers] * np.sqrt(np.add(q, v))[:, None]
        z[:, last] = omega_last + math.sqrt(v[last]) * normal[:, layers]
        beside = None
        if known is not None:
            omega_known = math.sqrt(q[known]) * normal[:, known]
            z[:, known] = omega_known + math.sqrt(v[known]) * normal[:, layers + 1]
            copy = scramble % copies
            if copy not in compressed:
                compressed[copy] = _compress(tables, omega_known[:512], v[known])
            beside = (omega_known, v[known])
        one, two, determinant = _mixing(z[:, :last], skip)
        first, second = z[:, last, 0], z[:, last, 1]
        gap = determinant * (first - second)
        ut = np.stack([first - one * (first - second), second + two * (first - second)], axis=-1)
        parts = []
        for start in range(0, points, _CHUNK):
            rows = slice(start, start + _CHUNK)
            near = None if beside is None else (compressed[copy], beside[0][rows], beside[1])
            parts.append(_moments(tables, ut[rows], gap[rows], omega_last[rows], v[last], near, blind))
        found = _Moments(
            *(_joined([getattr(p, name) for p in parts]) for name in _Moments.__dataclass_fields__)
        )
        columns: list[Host] = []
        G: dict[int, Host] = {a: found.unknown[:, k, :3] for k, a in enumerate(unknown)}
        for k, a in enumerate(unknown):
            columns += [G[a][:, 0] + G[a][:, 1], found.unknown[:, k, 3]]
        square = found.square / v[last]
        columns.append(square.sum(1) - 2)
        if blind:
            assert found.product is not None
            assert found.fourth is not None
            G[last] = np.concatenate([square - 1, found.product[:, None] / v[last]], axis=1)
            columns.append(found.fourth / v[last] ** 2 - 2 * square.sum(1) - 4)
        else:
            columns += [(omega_last * found.shift).sum(1), (omega_last**2).sum(1) - 2 * q[last]]
            samples[last].append((found.shift**2).sum(1) / v[last] ** 2)
        if known is not None:
            assert found.known_shift is not None
            assert found.known_square is not None
            columns.append(found.known_square / v[known] - 2)
            columns += [(omega_known * found.known_shift).sum(1), (omega_known**2).sum(1) - 2 * q[known]]
            samples[known].append((found.known_shift**2).sum(1) / v[known] ** 2)
        for a, b in pairs:
            both = G[a] * G[b]
            samples[a, b].append((both[:, 0] + both[:, 1] + 2 * both[:, 2]) / ((q[a] + v[a]) * (q[b] + v[b])))
        controls.append(np.stack(columns, axis=-1))
    means, sems = controlled_mean(
        [np.stack(columns, axis=-1) for columns in zip(*samples.values())], controls
    )
    value, error = np.zeros(layers), np.zeros(layers)
    response, response_error = np.zeros((layers, layers)), np.zeros((layers, layers))
    for key, mean, sem in zip(samples, means, sems):
        if isinstance(key, tuple):
            response[key] = response[key[::-1]] = mean
            response_error[key] = response_error[key[::-1]] = sem
        else:
            value[key], error[key] = mean, sem
    doubt = clipped + _DISCRETISATION
    return value, np.hypot(error, doubt * value), response, np.hypot(response_error, doubt * np.abs(response))


def _joined(parts: list[Host | None]) -> Host | None:
    return None if parts[0] is None else np.concatenate([part for part in parts if part is not None])
