"""What labels of deep attention say on average, ``E sum_m g_m g_m^T``, by means over labels.

Labels are drawn in independent scrambles of a Sobol sequence. In units of V (``h = V^{-1/2} (z - omega)``)
the wanted mean is that of ``S = sum_m <h_m> <h_m>^T``. On the Nishimori line these have mean zero, whatever
Q, and take most of the noise away:

* ``S - sym(sum_m <h_m> h_m^T)`` and ``S + sum_m Cov(h_m) - M I``: two other forms of the information;
* ``sum_m omega_m <h_m>^T``, because E g = 0 at given omega;
* ``sum_m h_m h_m^T - M I`` and ``sum_m omega_m omega_m^T - M Q``, the known second moments.

Where the posterior is itself sampled, the square of a mean comes from two independent runs, so that no noise is
squared. Derived, checked by tests/channels/test_sequence_softmax_information.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smimbench.numerics.qmc import normal_points
from smimbench_channels import _adaptive_quadrature as quadrature
from smimbench_channels import _importance_qmc as sampling
from smimbench_channels._deep_attention import output

__all__ = ["Draws", "Law", "controlled_mean", "controls", "draw", "information"]

SCRAMBLES = 16
_SEED = 5000
_ACCURACY = 1e-4
_FAINTEST = 3e-3
_COLLINEAR = 1e-6
_POINTS = 1024


class Law(NamedTuple):
    """The network: number of layers and tokens, and the skip strength."""

    layers: int
    tokens: int
    skip: float


class Draws(NamedTuple):
    """One scramble of labels and what their posterior says, in units of V; host arrays.

    ``omega`` (n, L, M) in units of ``Q^{1/2}``; ``truth`` (n, L, M); ``shifts`` two (n, L, M) estimates of
    ``<h>``, equal where the posterior is exact, independent where it is sampled; ``second`` (n, L, L) is
    ``sum_m <h_m h_m^T>``.
    """

    omega: np.ndarray[Any, Any]
    truth: np.ndarray[Any, Any]
    shifts: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    second: np.ndarray[Any, Any] | None


def _symmetric_root(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T)


def _outer(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``sum_m a_m b_m^T`` (n, L, L)."""
    return np.asarray(a @ np.swapaxes(b, -1, -2))


def _symmetric(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 0.5 * (matrix + np.swapaxes(matrix, -1, -2))


def draw(law: Law, Q: np.ndarray[Any, Any], V: np.ndarray[Any, Any], labels: int, scramble: int) -> Draws:
    """Labels of one scramble and their posterior."""
    layers, tokens = law.layers, law.tokens
    size = layers * tokens
    normal = normal_points(2 * size, labels, _SEED + scramble)
    white = normal[:, :size].reshape(labels, layers, tokens)
    truth = normal[:, size:].reshape(labels, layers, tokens)
    root = _symmetric_root(V)
    omega = _symmetric_root(Q) @ white
    u = output(omega + root @ truth, law.skip)
    if layers == tokens == 2:
        moments = quadrature.integrate(u, omega, V, law.skip, _ACCURACY)
        shifts, second = (moments.shift, moments.shift), moments.second
    else:
        pair = [
            sampling.integrate(u, omega, V, law.skip, _ACCURACY, _POINTS, seed=seed) for seed in (0, 10_000)
        ]
        shifts, second = (pair[0].shift, pair[1].shift), None
    inverse = np.linalg.inv(root)
    if second is not None:
        second = inverse @ second @ inverse
    return Draws(white, truth, (inverse @ shifts[0], inverse @ shifts[1]), second)


def controls(draws: Draws) -> np.ndarray[Any, Any]:
    """Numbers with mean zero, (n, K)."""
    one, two = draws.shifts
    n, layers, tokens = one.shape
    upper = np.triu_indices(layers)
    identity = tokens * np.eye(layers)
    mean = 0.5 * (one + two)
    square = _symmetric(_outer(one, two))
    rows = [
        (square - _symmetric(_outer(mean, draws.truth)))[:, *upper],
        _outer(draws.omega, mean).reshape(n, -1),
        (_outer(draws.truth, draws.truth) - identity)[:, *upper],
        (_outer(draws.omega, draws.omega) - identity)[:, *upper],
    ]
    if draws.second is not None:
        rows.append((draws.second - identity)[:, *upper])
    return np.concatenate(rows, axis=1)


def controlled_mean(
    samples: list[np.ndarray[Any, Any]], controls: list[np.ndarray[Any, Any]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Means of several numbers, less their regression on numbers whose mean is zero.

    Parameters
    ----------
    samples : list of R arrays (n, J)
        One array per scramble.
    controls : list of R arrays (n, K)
        The same control variates for all J numbers. Those fainter than ``_FAINTEST`` are left out:
        numerical error would not have mean zero.

    Returns
    -------
    value, error : ndarray (J,)
        The coefficients of a scramble are fitted on all others: neither the mean nor its standard error,
        from the spread of the R scrambles, is flattered by the fit.
    """
    count = len(samples)
    centred = [x - x.mean(0) for x in controls]
    grams = [x.T @ x for x in centred]
    mixed = [x.T @ (y - y.mean(0)) for x, y in zip(centred, samples)]
    gram, mix = sum(grams), sum(mixed)
    root = np.sqrt(sum(len(x) for x in controls))
    estimates = []
    for k in range(count):
        left, right = gram - grams[k], mix - mixed[k]
        scale = np.sqrt(np.diagonal(left))
        alive = scale > _FAINTEST * root
        inverse = np.where(alive, 1.0 / np.where(alive, scale, 1.0), 0.0)
        # Controls may repeat one another: least squares in unit scales.
        unit = left * inverse[:, None] * inverse
        slope = np.linalg.lstsq(unit, right * inverse[:, None], rcond=_COLLINEAR)[0]
        estimates.append(samples[k].mean(0) - (controls[k].mean(0) * inverse) @ slope)
    stacked = np.stack(estimates)
    return stacked.mean(0), stacked.std(0, ddof=1) / np.sqrt(count)


def information(
    law: Law, Q: np.ndarray[Any, Any], V: np.ndarray[Any, Any], labels: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """``E sum_m g_m g_m^T`` (L, L) and its standard error.

    Parameters
    ----------
    law : Law
        The network.
    Q, V : ndarray (L, L)
        Overlap, positive semi-definite, and error, positive definite.
    labels : int
        Number of labels, over all scrambles.
    """
    upper = np.triu_indices(law.layers)
    samples, zeros = [], []
    for scramble in range(SCRAMBLES):
        draws = draw(law, Q, V, max(16, labels // SCRAMBLES), scramble)
        samples.append(_symmetric(_outer(*draws.shifts))[:, *upper])
        zeros.append(controls(draws))
    # g = V^{-1/2} h is a linear map of the entries of S. It is applied to the samples: the error is that of
    # the result.
    inverse = np.linalg.inv(_symmetric_root(V))
    basis = np.zeros((len(upper[0]), law.layers, law.layers))
    for k, (a, b) in enumerate(zip(*upper)):
        basis[k, a, b] = basis[k, b, a] = 1.0
    change = (inverse @ basis @ inverse)[:, *upper]
    entries = controlled_mean([sample @ change for sample in samples], zeros)
    value, error = np.zeros((law.layers, law.layers)), np.zeros((law.layers, law.layers))
    for matrix, row in zip((value, error), entries):
        matrix[upper] = row
        matrix.T[upper] = row
    if not (np.count_nonzero(Q - np.diag(np.diagonal(Q))) or np.count_nonzero(V - np.diag(np.diagonal(V)))):
        # A label does not change with the sign of a layer: uncorrelated layers stay so, unknown ones unknown.
        known = np.diag(np.diagonal(Q) > 0.0)
        value, error = np.where(known, value, 0.0), np.where(known, error, 0.0)
    return value, error
