r"""Free entropy of one instance at a fixed point of message passing: evidence of labels and prior; the Bethe one for
low rank, that of RIE for extensive rank.

With N = D (low rank) or D^2 (extensive), ``n = alpha N``, latents ``z = forward(X, a)`` of the estimate a and R the input of its
denoiser, in units of N / kappa and per signal,

.. math::

    \phi = \tfrac12 \mathrm{tr}\, \hat Q \big( (R-a)(R-a)^T/D + V \big) + \epsilon(R, \hat Q)
    + \frac{\kappa\alpha}{n} \sum_\mu \Big[ \log \frac{Z_{out}(y; \omega, V)}{Z_{out}(y; \omega_0, V_0)}
    + \tfrac12 \sum_c (\omega-z)_c^T V^{-1} (\omega-z)_c \Big], \qquad
    \epsilon = \frac{\kappa}{N} \log E_S\, e^{-\frac{N}{2 \kappa D} \mathrm{tr}\, \hat Q (R-S)(R-S)^T} .

It is stationary in a, V, omega, R and Qhat exactly where message passing stands still, and counts from the prior mean (index 0),
as the free entropy of theory does (``smimbench.theory.free_entropy``): its mean over instances tends to that. Minus it is the
free energy: of two fixed points of one instance the one with more free entropy has almost all of the posterior.

Neither normaliser has to be given. That of the channel is integrated from its posterior mean and covariance on the way from
``omega_0, V_0``; the evidence of R from the denoiser, for low rank with the information growing from 0. For extensive rank a
denoiser knows typical spectra only: the evidence is then that of the limit, ``-1/2 \int_0^{Qhat} F``, and, by first order, what
the eigenvalues of this R make of it, with the potential whose slope is ``(Qhat/2) (xi(x) - x)`` for a denoiser xi.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend.arrays import beside, namespace, send, to_host
from smimbench.backend.streaming import sample_chunks, take_samples
from smimbench.interfaces import member, offers
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.theory.information import overlap_at, prior_moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array, Data
    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["FixedPoint", "free_entropy"]

NODES = 12
"""Gauss-Legendre nodes of an integral, and half as many more for every factor of e that V or Qhat changes by. Doubled: errors far
below the fluctuation of an instance become smaller still, in twice the time."""

GRID = 4096
"""Eigenvalues at which the potential is tabulated. Doubled: its error, below 1e-5 of the free entropy, is a quarter."""


class FixedPoint(NamedTuple):
    """Where message passing stands.

    Attributes
    ----------
    estimate : array (P, ...)
    V : ndarray (P, P)
        Its predicted error.
    shift : array (n, P, C)
        ``omega - z``: minus the Onsager term.
    Qhat : ndarray (P, P)
        Information.
    total : array (P, ...)
        Adjoint of g, so that ``R = estimate + Qhat^{-1} total``.
    """

    estimate: Array
    V: Host
    shift: Array
    Qhat: Host
    total: Array


def free_entropy(problem: Problem, data: Data, point: FixedPoint) -> float:
    """Free entropy of an instance at a fixed point, less that at the prior mean, in units of N / kappa.

    Raises
    ------
    ValueError
        If the prior of a model of extensive rank has no ``spectral_means``: the evidence of R is then unknown.
    """
    P = problem.components
    V, Qhat = (np.asarray(matrix, dtype=float).reshape(P, P) for matrix in (point.V, point.Qhat))
    total = point.total
    gap = _apply(np.linalg.inv(Qhat), total)  # R - a
    squares = np.asarray(
        to_host(problem.model.inner(gap, total)), dtype=float
    )  # Qhat (R - a)(R - a)^T, up to transposition
    energy = 0.5 * (float(np.trace(squares)) + float(np.trace(Qhat @ V)))
    evidence = _evidence_of_spectrum if problem.model.rank == "extensive" else _evidence_of_prior
    energy += evidence(problem, point.estimate + gap, Qhat)
    kappa = float(problem.model.kappa)
    return energy + kappa * data.sample_ratio * _evidence_of_labels(problem, data, point, V)


def _evidence_of_labels(problem: Problem, data: Data, point: FixedPoint, V: Host) -> float:
    """Mean over samples of what stands in brackets: the labels' part."""
    model, P = problem.model, problem.components
    second, known = prior_moments(problem)
    V0 = second - known
    prior_mean = namespace(point.estimate).asarray(problem.prior.mean(P, data.dimension), **beside(point.estimate))
    inverse = np.asarray(np.linalg.inv(V), dtype=float)
    # V on the way, V + c^2 (V0 - V), is what omega + c (omega_0 - omega) has as its error where both claim the right one.
    least = float(np.min(np.linalg.eigvals(np.linalg.solve(V0, V)).real))
    far = math.asinh(max(least, 1e-300) ** -0.5)
    x, weights = gauss_legendre(NODES + int(far * NODES / 2), 0.0, far)
    n = data.inputs.shape[0]
    result = 0.0
    for part in sample_chunks(model, data.inputs, P):
        inputs = take_samples(model, data.inputs, part)
        z = model.forward(inputs, point.estimate)
        shift = point.shift[part, ...]
        omega = z + shift
        back = model.forward(inputs, prior_mean) - omega
        result += 0.5 * _trace(inverse, shift, shift)
        count = omega.shape[0] * omega.shape[2]
        for at, weight in zip(x, weights):
            c, slope = math.sinh(at) / math.sinh(far), math.cosh(at) / math.sinh(far)
            there, here = V + c * c * (V0 - V), omega + c * back
            rng = np.random.default_rng(
                0
            )  # of channels that sample; each node its own points or the same, as they like
            found = problem.channel.posterior(data.labels[part, ...], here, send(there, here), rng=rng)
            there_inverse = np.asarray(np.linalg.inv(there), dtype=float)
            moved = found.mean - here
            along = _trace(there_inverse, moved, back)  # g . d omega / dc
            spread = count * np.asarray(to_host(found.covariance), dtype=float) + _products(moved)
            growth = there_inverse @ (spread - count * there) @ there_inverse
            # From the prior mean (c = 1) to the fixed point (c = 0): minus the slope.
            result -= weight * slope * (along + c * float(np.trace(growth @ (V0 - V))))
    return float(result / n)


def _evidence_of_prior(problem: Problem, R: Array, Qhat: Host) -> float:
    r"""``-1/2 \int_0^1 tr Qhat (V_s + (a_s - R)(a_s - R)^T / D) ds`` with ``a_s, V_s = denoise(R, s Qhat)``."""
    far = math.log1p(float(np.max(np.linalg.eigvalsh(Qhat))))
    total = 0.0
    for at, weight in zip(*gauss_legendre(NODES + int(far * NODES / 2), 0.0, far)):
        s, slope = math.expm1(at) / math.expm1(far), math.exp(at) / math.expm1(far)
        found = problem.prior.denoise(R, send(s * Qhat, R))
        gap = found.estimate - R
        error = np.asarray(to_host(found.V), dtype=float) + np.asarray(
            to_host(problem.model.inner(gap, gap)), dtype=float
        )
        total -= 0.5 * weight * slope * float(np.trace(Qhat @ error))
    return total


def _evidence_of_spectrum(problem: Problem, R: Array, Qhat: Host) -> float:
    """The same in the limit, and what the spectra of these R (P, D, D) change by first order; component by component."""
    prior: Any = problem.prior
    if not offers(prior, "spectral_means"):
        raise ValueError("the free entropy of an instance needs a prior with spectral_means")
    P = problem.components
    information = 1 / np.diagonal(np.linalg.inv(Qhat))
    result = 0.0
    for p in range(P):
        A = float(information[p])
        far = math.log1p(A)
        for at, weight in zip(*gauss_legendre(NODES + int(far * NODES / 2), 0.0, far)):
            V = overlap_at(problem, math.expm1(at) * np.eye(P))[1]
            result -= 0.5 * weight * math.exp(at) * float(V[p, p])
        result -= 0.5
        values = np.linalg.eigvalsh(np.asarray(to_host(R[p, ...]), dtype=float))
        potential = _denoiser_potential(problem, values, A)
        usual = float(np.asarray(prior.spectral_means(lambda x, *_, f=potential: f(x)[None], 1 / A).value)[0])
        result += 2 * (float(np.mean(potential(values))) - usual)
    return result


def _denoiser_potential(problem: Problem, values: Host, information: float) -> Callable[[Host], Host]:
    """What the denoiser xi is the slope of, ``(A/2) int (xi(x) - x) dx``, on a grid over these and all typical eigenvalues."""
    prior: Any = problem.prior
    ends = [float(values.min()), float(values.max())]

    def seen(x: Host, _mean: Host, _variance: Host) -> Host:
        ends.extend((float(np.min(x)), float(np.max(x))))
        return np.ones((1, len(x)))

    prior.spectral_means(seen, 1 / information)
    P, D = problem.components, len(values)
    grid = np.linspace(min(ends), max(ends), D * math.ceil(GRID / D))
    denoise = member(prior, "denoise_continued", prior.denoise)
    slopes = []
    for x in grid.reshape(-1, D):  # a denoiser knows the size of what it is given
        found = denoise(np.repeat(np.diag(x)[None], P, axis=0), information * np.eye(P))
        slopes.append(0.5 * information * (np.diagonal(np.asarray(found.estimate)[0]) - x))
    slope = np.concatenate(slopes)
    steps = 0.5 * (slope[1:] + slope[:-1]) * np.diff(grid)
    table = np.concatenate([[0.0], np.cumsum(steps)])
    return lambda x: np.interp(x, grid, table)


def _apply(matrix: Host, signal: Array) -> Array:
    """A matrix (P, P) on the host, applied to the first axis of a signal."""
    xp = namespace(signal)
    return xp.reshape(xp.matmul(send(matrix, signal), xp.reshape(signal, (matrix.shape[0], -1))), signal.shape)


def _products(g: Array) -> Host:
    """``sum_{mu, c} g_pc g_qc`` (P, P) of g (n, P, C), on the host."""
    xp = namespace(g)
    flat = xp.reshape(xp.permute_dims(g, (1, 0, 2)), (g.shape[1], -1))
    return np.asarray(to_host(xp.matmul(flat, xp.matrix_transpose(flat))), dtype=float)


def _trace(matrix: Host, first: Array, second: Array) -> float:
    """``sum_{mu, c} first_c^T matrix second_c`` of arrays (n, P, C)."""
    xp = namespace(first)
    flat = [xp.reshape(xp.permute_dims(z, (1, 0, 2)), (z.shape[1], -1)) for z in (first, second)]
    cross = np.asarray(to_host(xp.matmul(flat[0], xp.matrix_transpose(flat[1]))), dtype=float)
    return float(np.sum(matrix * cross))
