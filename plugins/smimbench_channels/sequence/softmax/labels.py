"""Information and susceptibility of deep attention by means over random labels, with control variates.

Labels are drawn in independent scrambles of a Sobol sequence. In units of V (``h = V^{-1/2} (z - omega)``)
the wanted mean is that of ``S = sum_m <h_m> <h_m>^T``. On the Nishimori line these have mean zero, whatever
Q, and take most of the noise away:

* ``S - sym(sum_m <h_m> h_m^T)`` and ``S + sum_m Cov(h_m) - M I``: two other forms of the information;
* ``sum_m omega_m <h_m>^T``, because E g = 0 at given omega;
* ``sum_m h_m h_m^T - M I`` and ``sum_m omega_m omega_m^T - M Q``, the known second moments.

For a layer a without overlap ``I_aa = 0`` and ``I_ab = lambda_ab Q_ab`` to first order, with the
susceptibility ``lambda_ab = E sum_mk G_a,mk G_b,mk``, ``G_a = (E[z_a z_a^T | y, omega] - V_aa I) /
V_aa^2``.

Where the posterior is itself sampled, the square of a mean comes from two independent runs: noise has mean zero in their
product, but not in a square. Its points are others in every scramble, so that the spread of the scrambles knows
their error too. Derived, checked by tests/channels/sequence/test_softmax_information.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import helmert

from smimbench.numerics import by_value, controlled_mean, is_diagonal, normal_points, symmetric, symmetric_root
from smimbench_channels.sequence.softmax.deep.small_matrices import output_gap
from smimbench_channels.sequence.softmax.network import Network, output
from smimbench_channels.sequence.softmax.posterior import SEEDS, integrate, is_exact

__all__ = ["METHOD", "Draws", "averages", "controls", "default_labels", "draw"]

Host = np.ndarray[Any, Any]

SCRAMBLES = 16
"""Independent sets of labels. Doubled: half as many labels in each, a better known standard error."""
SAMPLED_LABELS = 2**12
"""Labels of all scrambles where the posterior is sampled. Doubled: twice the time, a smaller error."""
FEWEST_LABELS, MOST_LABELS = 2**12, 2**17
"""The same where the posterior is exact: how many say how many it takes, and the most that are taken. Doubled: half of the
unevenness of that choice; twice the time where an overlap is small, and an error there that is 1.6 times smaller."""
WANTED = 7e-4
"""Relative error of the information for which labels are drawn where the posterior is exact. Doubled: a third of the labels."""
FALL = 1.5
"""Labels grow with this power of the wanted fall of the error, for quasi-random ones. Doubled: ten times as many as it takes."""
ACCURACY = 2e-3
"""Relative error of the posterior of a label. Doubled: a tenth less time, values that are 1e-4 higher, a sixth of the noise."""
POINTS = 1024
"""Points of a posterior that is sampled, in each of two runs. Doubled: a quarter more time; of the information of three layers
one set of points knows 1.3%, not 1.8%, and 32 sets are averaged."""
FAINTEST = 3e-3
"""Smallest standard deviation of a control variate. Doubled: the same in three cases tried."""
COLLINEAR = 1e-6
"""Directions of control variates with smaller singular values are left out. Doubled: the same in three cases tried."""
METHOD = f"Monte Carlo ({SCRAMBLES} Sobol scrambles of labels)"


class Draws(NamedTuple):
    """One scramble of labels and what their posterior says, in units of V; host arrays.

    Posterior means come twice: equal where the posterior is exact, independent where it is sampled.
    """

    omega: Host  # (n, L, M) in units of Q^{1/2}
    truth: Host  # (n, L, M) h
    shifts: tuple[Host, Host]  # (n, L, M) each, <h>
    second: Host | None  # (n, L, L) sum_m <h_m h_m^T>; None where it is sampled: a bias would spoil a control variate
    responses: tuple[Host, Host]  # (n, U, M, M) each, <z_a z_a^T> / V_aa - I for the U layers without overlap


def _outer(a: Host, b: Host) -> Host:
    """``sum_m a_m b_m^T`` (n, L, L)."""
    # Matrices of a few entries: products of whole arrays take a third of the time of n small matrix products.
    return np.asarray(sum(a[:, :, None, m] * b[:, None, :, m] for m in range(a.shape[-1])))


def _by_differences(normal: Host, network: Network) -> Host:
    """Standard normal numbers (n, L M) as (n, L, M): the first L (M - 1) are differences of tokens, the last L their sums.

    Attention depends on differences of tokens most, and Sobol points are most even in their first coordinates: errors of the
    information of two layers are 1.2 to 1.5 times smaller so, up to a factor of 2 for the last layer.
    """
    layers, tokens = network.layers, network.tokens
    known = np.split(normal, [layers * (tokens - 1)], axis=1)
    differences, sums = (part.reshape(len(normal), layers, -1) for part in known)
    rotation = helmert(tokens, full=True)  # its first row is the sum, the others are differences
    return np.asarray(sums * rotation[0] + differences @ rotation[1:])


def unknown(Q: Host) -> list[int]:
    """Layers without overlap: their means are zero."""
    return [layer for layer in range(len(Q)) if Q[layer, layer] == 0.0]


def draw(network: Network, Q: Host, V: Host, labels: int, scramble: int) -> Draws:
    """Labels of one scramble and their posterior."""
    layers, tokens = network.layers, network.tokens
    size = layers * tokens
    normal = normal_points(2 * size, labels, "deep attention: labels", scramble)
    white, truth = _by_differences(normal[:, :size], network), _by_differences(normal[:, size:], network)
    root = symmetric_root(V)
    omega = symmetric_root(Q) @ white
    z = omega + root @ truth
    u, gap = output(z, network.skip), output_gap(z, network.skip) if tokens == 2 else None
    free = unknown(Q)
    full, exact = bool(free), is_exact(network)
    # Labels of one call share the points of their posteriors, and so part of their error: every scramble has points of its own.
    seeds = (0,) if exact else (2 * scramble * SEEDS, (2 * scramble + 1) * SEEDS)
    runs = [
        integrate(network, u, omega, V, accuracy=ACCURACY, points=POINTS, full=full, seed=seed, gap=gap)
        for seed in seeds
    ]
    inverse = np.linalg.inv(root)
    shifts = [inverse @ run.shift for run in runs]
    second = runs[0].second
    responses = [np.zeros((labels, 0, tokens, tokens)) for _ in runs]
    if full:
        # Means of unknown layers are zero, so that dz = z there.
        matrices = [run.second.reshape(labels, layers, tokens, layers, tokens) for run in runs]
        second = np.einsum("nambm->nab", matrices[0])
        responses = [
            np.stack([matrix[:, a, :, a, :] / V[a, a] for a in free], axis=1) - np.eye(tokens) for matrix in matrices
        ]
    return Draws(
        white,
        truth,
        (shifts[0], shifts[-1]),
        inverse @ second @ inverse if exact else None,
        (responses[0], responses[-1]),
    )


def controls(draws: Draws, Q: Host, V: Host) -> Host:
    """Numbers with mean zero, (n, K)."""
    one, two = draws.shifts
    n, layers, tokens = one.shape
    upper = np.triu_indices(layers)
    identity = tokens * np.eye(layers)
    mean = 0.5 * (one + two)
    square = symmetric(_outer(one, two))
    rows = [
        (square - symmetric(_outer(mean, draws.truth)))[:, *upper],
        _outer(draws.omega, mean).reshape(n, -1),
        (_outer(draws.truth, draws.truth) - identity)[:, *upper],
        (_outer(draws.omega, draws.omega) - identity)[:, *upper],
    ]
    if draws.second is not None:
        rows.append((draws.second - identity)[:, *upper])
    free = unknown(Q)
    if free:
        z = (symmetric_root(V) @ draws.truth)[:, free]
        spread = np.diagonal(V)[free][:, None, None]
        surprise = z[..., :, None] * z[..., None, :] / spread - np.eye(tokens)
        first, second = draws.responses
        rows.append((0.5 * (first + second) * surprise - first * second).sum((2, 3)))
        rows.append((surprise**2).sum((2, 3)) - tokens * (tokens + 1))
        if draws.second is not None:
            rows.append(np.trace(first, axis1=2, axis2=3))
    return np.concatenate(rows, axis=1)


def default_labels(network: Network, Q: Host, V: Host) -> int:
    """Labels that are drawn unless a number is asked for: where the posterior is exact as many as ``WANTED`` takes.

    The information of a layer of small overlap rests on few labels that say much of it, and takes most; that of layers nearly
    known is much the same for all labels. The first ``FEWEST_LABELS`` of the labels say which it is.
    """
    if not is_exact(network):
        return SAMPLED_LABELS
    first = averages(network, Q, V, FEWEST_LABELS)
    relative = [0.0]
    for value, error in (first[:2], first[2:]):
        size, own = np.diagonal(value), np.diagonal(error)
        relative.extend(own[size > 0.0] / size[size > 0.0])
    wanted = FEWEST_LABELS * (max(relative) / WANTED) ** FALL
    return int(2 ** math.ceil(math.log2(min(max(wanted, FEWEST_LABELS), MOST_LABELS))))


@by_value(maxsize=512)
def averages(network: Network, Q: Host, V: Host, labels: int) -> tuple[Host, Host, Host, Host]:
    """Information ``E sum_m g_m g_m^T`` and its standard error, susceptibility of layers without overlap and its error; (L, L).

    ``Q`` (L, L) is positive semi-definite, ``V`` (L, L) positive definite, ``labels`` their number over all scrambles.
    """
    layers = network.layers
    free = unknown(Q)
    upper = np.triu_indices(layers)
    pairs = np.triu_indices(len(free))
    # g = V^{-1/2} h is a linear map of the entries of S. It is applied to every label, so that the error is
    # that of the result.
    inverse = np.linalg.inv(symmetric_root(V))
    basis = np.zeros((len(upper[0]), layers, layers))
    for k, (a, b) in enumerate(zip(*upper)):
        basis[k, a, b] = basis[k, b, a] = 1.0
    change = (inverse @ basis @ inverse)[:, *upper]
    samples, zeros = [], []
    for scramble in range(SCRAMBLES):
        draws = draw(network, Q, V, max(16, labels // SCRAMBLES), scramble)
        one, two = draws.responses
        response = symmetric(np.einsum("namk,nbmk->nab", one, two))[:, *pairs]
        squares = symmetric(_outer(*draws.shifts))[:, *upper] @ change
        samples.append(np.concatenate([squares, response], axis=1))
        zeros.append(controls(draws, Q, V))
    found = [np.zeros((layers, layers)) for _ in range(4)]
    for k, row in enumerate(controlled_mean(samples, zeros, faintest=FAINTEST, collinear=COLLINEAR)):
        found[k][upper] = found[k].T[upper] = row[: len(upper[0])]
        for a, b, entry in zip(*pairs, row[len(upper[0]) :]):
            i, j = free[a], free[b]
            found[2 + k][i, j] = found[2 + k][j, i] = entry / (V[i, i] * V[j, j])
    if is_diagonal(Q, V):
        # A label does not change with the sign of a layer: uncorrelated layers stay so, unknown ones unknown.
        known = np.diag(np.diagonal(Q) > 0.0)
        found[:2] = [np.where(known, matrix, 0.0) for matrix in found[:2]]
    for matrix in found:
        matrix.flags.writeable = False
    return found[0], found[1], found[2], found[3]
