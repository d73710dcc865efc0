r"""Information and susceptibility of deep attention of two tokens with at most two known layers: drawn labels, averaged
with control variates, one overlap after the other.

Divided by ``(1 + c)^{L-1}`` the product ``B`` of the attention matrices is row-stochastic, so it has two parameters however
deep the network is. With ``b_01``, ``b_10`` its off-diagonal entries, ``D`` its determinant and ``ut = u / (1 + c)^{L-1}``,

.. math::

    x = b_{01} / D, \quad y = b_{10} / D, \quad 1 / D = 1 + x + y, \quad
    z_L = \pm (ut_1 + x (ut_1 - ut_2),\; ut_2 - y (ut_1 - ut_2)).

A label therefore says the same as a Gaussian factor in x times one in y, times the Jacobian ``1 + x + y``. The prior law of
(x, y), and the prior moments of the other layers that go with it, are tabulated once on nodes that are uniform in
``log(1 + x)`` and ``log(1 + y)``; the points of the prior integral are spread over the nodes by Lagrange's interpolation
formula, so that only the Gaussian factors have to be smooth on the scale of the nodes. Posterior moments are bilinear forms
``f^T T g``, whatever the depth. A layer is known where it has an overlap. A known layer before the last enters as an outer grid:
one table for each of its values.

Everything here serves theory and runs on the host. The scheme is derived, checked by
tests/channels/sequence/test_softmax_last_layer.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from smimbench.backend import to_host
from smimbench.interfaces import Array, Uncertain
from smimbench.numerics import controlled_mean, is_diagonal, normal_points
from smimbench_channels.batches import joined, on_host, uncertain_like
from smimbench_channels.sequence.softmax.last_layer.posterior import KnownLayer, Moments, compress, posterior_moments
from smimbench_channels.sequence.softmax.last_layer.tables import (
    ACCURACY,
    Accuracy,
    Host,
    Tables,
    make_tables,
    mixing,
    node_count,
    nodes_needed,
)

__all__ = ["ACCURACY", "Accuracy", "information", "supports", "susceptibility"]

CHUNK = 512
"""Labels handled at once. Doubled: twice the memory, beyond the cache, the same result."""


def supports(Q: Array, V: Array, skip: float = 1.0) -> bool:
    """Whether one (Q, V), both (L, L), is covered.

    Both diagonal, L at least 2, and of the layers before the last at most one known (none for L = 2), and that one with an
    error of at least a quarter of its variance. The last layer must not be known so well that its factors fall between nodes.
    """
    q, v = to_host(Q), to_host(V)
    if q.shape[-1] < 2 or not is_diagonal(q, v):
        return False
    q, v = np.diagonal(q), np.diagonal(v)
    known = np.flatnonzero(q[:-1])
    step = ACCURACY.wanted_step(bool(q[-1] == 0), len(known) > 0)
    # largest spacing of the nodes in units of the wanted one
    if nodes_needed(skip, len(q), v[-1] / (q[-1] + v[-1]), step, ACCURACY) > 2 * ACCURACY.most_nodes:
        return False
    if len(known) == 1 and len(q) > 2:
        # smallest error over variance of a known layer before the last
        return bool(v[known[0]] >= 0.25 * (q + v)[known[0]])
    return len(known) == 0


def information(Q: Array, V: Array, skip: float, accuracy: Accuracy = ACCURACY) -> Uncertain:
    r"""``E \sum_m g_m g_m^T`` (..., L, L), diagonal, at overlaps that ``supports`` accepts.

    ``skip`` is c >= 0; ``accuracy`` the resolution of tables and the number of labels. NaN where a label lies too far beyond
    the tables.
    """
    return _overlap_by_overlap(Q, V, skip, 0, accuracy)


def susceptibility(Q: Array, V: Array, skip: float, accuracy: Accuracy = ACCURACY) -> Uncertain:
    r"""How the information of the unknown layers starts, ``I_ab = \lambda_ab Q_ab``, at overlaps that ``supports`` accepts.

    .. math::

        \lambda_{ab} = E \sum_{mk} G_{a,mk} G_{b,mk}, \qquad
        G_{a,mk} = (E[z_{am} z_{ak} | y, \omega] - V_{aa} \delta_{mk}) / V_{aa}^2

    Entries of known layers are 0. Parameters as for ``information``.
    """
    return _overlap_by_overlap(Q, V, skip, 2, accuracy)


def _overlap_by_overlap(Q: Array, V: Array, skip: float, which: int, accuracy: Accuracy) -> Uncertain:
    """Result ``which`` of ``evaluate``, and its error, for each overlap of a batch."""
    q, v = on_host(Q, V)
    layers = q.shape[-1]
    values, errors = np.zeros((2, *q.shape)).reshape(2, -1, layers, layers)
    for k, (one_q, one_v) in enumerate(zip(q.reshape(-1, layers, layers), v.reshape(-1, layers, layers))):
        if not supports(one_q, one_v, skip):
            raise ValueError(f"no table for Q = {one_q.tolist()}, V = {one_v.tolist()}")
        pair = tuple(np.diagonal(one_q).tolist()), tuple(np.diagonal(one_v).tolist())
        value, error = evaluate(float(skip), *pair, accuracy)[which : which + 2]
        values[k], errors[k] = (np.diag(value), np.diag(error)) if which == 0 else (value, error)
    method = f"quadrature in the latents, Monte Carlo over labels ({accuracy.scrambles} scrambles)"
    return uncertain_like(V, values.reshape(q.shape), errors.reshape(q.shape), method)


class _Case(NamedTuple):
    """One diagonal overlap: which layers are known."""

    skip: float
    q: Host
    v: Host
    known: int | None  # the layer before the last with an overlap
    unknown: list[int]  # the others before the last
    accuracy: Accuracy

    @property
    def last(self) -> int:
        """Index of the last layer."""
        return len(self.q) - 1

    @property
    def blind(self) -> bool:
        """Whether the last layer has no overlap."""
        return bool(self.q[self.last] == 0.0)

    @property
    def labels(self) -> int:
        """Labels of a scramble."""
        return self.accuracy.labels if self.known is None else self.accuracy.outer_labels

    @property
    def informed(self) -> list[int]:
        """Layers with an overlap: their information is wanted."""
        return [a for a in (self.known, None if self.blind else self.last) if a is not None]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of layers without overlap: their susceptibility is wanted."""
        free = self.unknown + ([self.last] if self.blind else [])
        return [(a, b) for a in free for b in free if a <= b]


@lru_cache(maxsize=512)
def evaluate(
    skip: float, q: tuple[float, ...], v: tuple[float, ...], accuracy: Accuracy
) -> tuple[Host, Host, Host, Host]:
    """Information (L,) and its error, susceptibility (L, L) and its error, of one diagonal overlap."""
    layers = len(q)
    last = layers - 1
    known = next((a for a in range(last) if q[a] > 0), None)
    case = _Case(skip, np.array(q), np.array(v), known, [a for a in range(last) if a != known], accuracy)
    scales = tuple(math.sqrt(q[a] + v[a]) for a in range(last))
    # Rounded, so that the tables serve more than one overlap.
    spread = 0.0 if known is None else accuracy.outer_spacing(v[known])
    step = accuracy.wanted_step(case.blind, known is not None)
    count = node_count(skip, layers, v[last] / (q[last] + v[last]), step, accuracy)
    copies = 1 if len(case.unknown) == 1 else 2
    compressed: dict[int, KnownLayer] = {}
    samples, controls = [], []
    clipped = 0.0
    for scramble in range(accuracy.scrambles):
        copy = scramble % copies
        tables = make_tables(skip, scales, known, spread, count, copy, accuracy.of_tables)
        clipped = max(clipped, tables.clipped)
        labels = _draw_labels(case, scramble)
        if known is not None and copy not in compressed:
            # labels whose weights on the outer grid decide on its modes
            means = labels.omega_known[:512]
            compressed[copy] = compress(tables, means, v[known], accuracy.negligible)
        wanted, zeros = _averaged_columns(
            case, labels, _posterior_of_labels(case, tables, labels, compressed.get(copy))
        )
        samples.append(wanted)
        controls.append(zeros)
    value, error = np.zeros(layers), np.zeros(layers)
    response, response_error = np.zeros((layers, layers)), np.zeros((layers, layers))
    if not (np.isfinite(samples).all() and np.isfinite(controls).all()):
        # A label beyond the last node that fits none of them: its posterior is 0 / 0.
        return value + np.nan, error + np.nan, response + np.nan, response_error + np.nan
    means, sems = controlled_mean(samples, controls)
    number = len(case.informed)
    value[case.informed], error[case.informed] = means[:number], sems[:number]
    for (a, b), mean, sem in zip(case.pairs, means[number:], sems[number:]):
        response[a, b] = response[b, a] = mean
        response_error[a, b] = response_error[b, a] = sem
    doubt = clipped + accuracy.discretisation
    return value, np.hypot(error, doubt * value), response, np.hypot(response_error, doubt * np.abs(response))


class _Labels(NamedTuple):
    """Labels of one scramble: ``ut`` (n, 2) and ``gap = ut_1 - ut_2``; means (n, 2) of the last and the known layer."""

    ut: Host
    gap: Host
    omega_last: Host
    omega_known: Host


def _draw_labels(case: _Case, scramble: int) -> _Labels:
    q, v, last, known = case.q, case.v, case.last, case.known
    layers, n = last + 1, case.labels
    normal = normal_points(2 * (layers + 2), n, "last layer: labels", scramble).reshape(n, layers + 2, 2)
    omega_last = math.sqrt(q[last]) * normal[:, last]
    z = normal[:, :layers] * np.sqrt(np.add(q, v))[:, None]
    z[:, last] = omega_last + math.sqrt(v[last]) * normal[:, layers]
    omega_known = np.zeros((n, 2))
    if known is not None:
        omega_known = math.sqrt(q[known]) * normal[:, known]
        z[:, known] = omega_known + math.sqrt(v[known]) * normal[:, layers + 1]
    one, two, determinant = mixing(z[:, :last], case.skip)
    first, second = z[:, last, 0], z[:, last, 1]
    gap = determinant * (first - second)
    ut = np.stack([first - one * (first - second), second + two * (first - second)], axis=-1)
    return _Labels(ut, gap, omega_last, omega_known)


def _posterior_of_labels(case: _Case, tables: Tables, labels: _Labels, modes: KnownLayer | None) -> Moments:
    blocks = []
    for start in range(0, len(labels.ut), CHUNK):
        ut, gap, omega_last, omega_known = (array[start : start + CHUNK] for array in labels)
        known = None if modes is None or case.known is None else (modes, omega_known, float(case.v[case.known]))
        v = float(case.v[case.last])
        blocks.append(posterior_moments(tables, ut, gap, omega_last, v, known, case.blind))
    return joined(blocks)


def _averaged_columns(case: _Case, labels: _Labels, found: Moments) -> tuple[Host, Host]:
    """What is averaged, in the order ``informed``, ``pairs``, and numbers with mean zero; (n, J) and (n, K)."""
    q, v, last, known = case.q, case.v, case.last, case.known
    zeros: list[Host] = []
    information: list[Host] = []
    G: dict[int, Host] = {a: found.unknown[:, k, :3] for k, a in enumerate(case.unknown)}
    for k, a in enumerate(case.unknown):
        zeros += [G[a][:, 0] + G[a][:, 1], found.unknown[:, k, 3]]
    square = found.square / v[last]
    zeros.append(square.sum(1) - 2)
    if found.product is not None and found.fourth is not None:
        G[last] = np.concatenate([square - 1, found.product[:, None] / v[last]], axis=1)
        zeros.append(found.fourth / v[last] ** 2 - 2 * square.sum(1) - 4)
    else:
        omega = labels.omega_last
        zeros += [(omega * found.shift).sum(1), (omega**2).sum(1) - 2 * q[last]]
        information.append((found.shift**2).sum(1) / v[last] ** 2)
    if known is not None and found.known_shift is not None and found.known_square is not None:
        omega = labels.omega_known
        zeros.append(found.known_square / v[known] - 2)
        zeros += [(omega * found.known_shift).sum(1), (omega**2).sum(1) - 2 * q[known]]
        information.insert(0, (found.known_shift**2).sum(1) / v[known] ** 2)
    responses = []
    for a, b in case.pairs:
        both = G[a] * G[b]
        responses.append((both[:, 0] + both[:, 1] + 2 * both[:, 2]) / ((q[a] + v[a]) * (q[b] + v[b])))
    return np.stack(information + responses, axis=-1), np.stack(zeros, axis=-1)
