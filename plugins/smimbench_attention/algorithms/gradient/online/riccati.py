r"""Exact limit of online gradient descent on an attention matrix ``S = W W^T / sqrt(r D)``: a Riccati equation, solved.

As D grows and steps become small, the student follows the flow of the population loss (``matrices``; one component)

.. math::

    \frac{dS}{dt} = -(H S + S H), \qquad H = a S + b S^* + \gamma, \qquad
    t = \frac{4}{\sqrt\rho} \sum_{\text{steps}} \eta, \qquad \gamma = \frac{\lambda\sqrt\rho}{4},

with ``2 a`` and ``2 b`` the coefficients of the mean gradient in student and teacher, which depend on their overlaps alone,
``rho`` the student's width over D and lambda its weight decay. This is a matrix Riccati equation whose coefficients commute with
``S*``:

.. math::

    S = E X E, \qquad E = e^{-(B S^* + \gamma t)}, \qquad \dot B = b, \qquad
    X = (X_0^{-1} + M)^{-1}, \qquad \dot M = 2 a E^2.

The start ``X_0 = W_0 W_0^T / sqrt(r D)`` is a Wishart matrix independent of the teacher, whose resolvents have deterministic
equivalents: in means against functions of ``S*``

.. math::

    X \sim \frac{\mu}{1 + \mu M}, \qquad
    \frac{\mu}{\sigma} + \frac1\rho \Big\langle \frac{\mu M}{1 + \mu M} \Big\rangle = 1, \qquad \sigma = \sqrt\rho.

With brackets for means over the spectrum lambda of the teacher, the variables ``m = M / E^2``, which stays of order 1, and
``N = 1 / (mu E^2)``, the student has the profile ``s = 1 / (m + N)`` and

.. math::

    \frac{\operatorname{tr} S}{D} = \langle s \rangle, \qquad
    \frac{\operatorname{tr} S S^*}{D} = \langle \lambda s \rangle, \qquad
    \frac{\operatorname{tr} S^2}{D} = \langle s^2 \rangle
    + \frac{\langle s^2 N \rangle^2}{\rho \mu / \sigma + \langle m s^2 N \rangle},

the last one by differentiating ``< E^2 X >`` with respect to ``M -> M + epsilon E^2``. So all of the dynamics is an ordinary
differential equation for B and for m at the nodes of a quadrature over lambda, with one scalar root per evaluation; no hierarchy
of moments is truncated.

References
----------
The flow: arXiv:2609.03858, which solves it by a truncated hierarchy of moments; its solution is derived here. Checked by
tests/algorithms/test_online_riccati.py against the matrix equation, the hierarchy, and closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import bracketed_roots

SPECTRUM_NODES = 64
"""Nodes of the quadrature over the teacher's spectrum. Doubled: traces and overlaps change by less than 1e-9."""

TOLERANCE = 1e-8
"""Relative tolerance of the differential equation. A tenth of it: traces and overlaps change by less than that."""


class TeacherSpectrum(NamedTuple):
    """Quadrature over the spectrum of the teacher: eigenvalues and their weights, (nodes,) each."""

    eigenvalues: Host
    weights: Host

    @property
    def second_moment(self) -> float:
        """Mean squared eigenvalue, the overlap of the teacher with itself."""
        return float(self.weights @ self.eigenvalues**2)


class Coefficients(NamedTuple):
    """Coefficients of the flow ``H = a S + b S*``, one for every evaluation: ``on_student`` a, ``on_teacher`` b."""

    on_student: Host
    on_teacher: Host


class StudentMoments(NamedTuple):
    """Traces of the student, (evaluations,) each: ``trace`` tr(S)/D, ``cross`` tr(S S*)/D, ``self_overlap`` tr(S^2)/D."""

    trace: Host
    cross: Host
    self_overlap: Host


def wishart_spectrum(rho: float) -> TeacherSpectrum:
    """Gauss rule for the spectrum of ``W W^T / sqrt(r D)``, W (D, r) with N(0, 1) entries and ``rho = r / D``: the law of
    Marchenko and Pastur, with its atom at 0 for rho < 1.

    The Jacobi matrix of its orthogonal polynomials has the diagonal ``sqrt(rho), (1 + rho) / sqrt(rho), ...`` and ones beside it.
    """
    diagonal = np.full(SPECTRUM_NODES, (1 + rho) / math.sqrt(rho))
    diagonal[0] = math.sqrt(rho)
    beside = np.ones(SPECTRUM_NODES - 1)
    jacobi = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    eigenvalues, vectors = np.linalg.eigh(jacobi)
    return TeacherSpectrum(eigenvalues, vectors[0] ** 2)


def student_moments(
    spectrum: TeacherSpectrum,
    log_decay: Host,
    curvature: Host,
    rho: float,
    sigma: float,
) -> StudentMoments:
    """Moments of a student of width ratio ``rho`` that started at ``tr(S) / D = sigma``, from ``log_decay`` ``log E^-2`` and
    ``curvature`` ``m = M / E^2`` at the eigenvalues of the teacher, (evaluations, nodes) each.

    ``mu`` is the deterministic equivalent of the start, found by its logarithm.
    """
    weights = spectrum.weights

    def excess(log_mu: Host, evaluations: Host) -> Host:
        """Left side minus right side of the equation for mu, for some of the evaluations."""
        with np.errstate(over="ignore"):  # of modes that nothing occupies yet
            inverse = np.exp(log_decay[evaluations] - log_mu[:, None])
        occupied = (
            curvature[evaluations] / (curvature[evaluations] + inverse)
        ) @ weights
        return np.asarray(np.exp(log_mu) / sigma + occupied / rho - 1)

    evaluation_count = len(log_decay)
    # Below the lower end every mode has less than its share of the width.
    log_curvature = np.log(np.maximum(curvature, 1e-300)) - log_decay
    log_limit = np.max(log_curvature, axis=1) + math.log(sigma * (1 + 1 / rho))
    lower = math.log(sigma) - np.logaddexp(0, log_limit) - 1
    upper = np.full(evaluation_count, math.log(sigma) + 1.0)
    log_mu = bracketed_roots(excess, lower, upper)
    noise = np.exp(log_decay - log_mu[:, None])
    profile = 1 / (curvature + noise)
    weighted_noise = profile**2 * noise
    self_overlap = (profile**2) @ weights + (weighted_noise @ weights) ** 2 / (
        rho * np.exp(log_mu) / sigma + (curvature * weighted_noise) @ weights
    )
    return StudentMoments(
        profile @ weights, profile @ (weights * spectrum.eigenvalues), self_overlap
    )


def solve_flow(
    spectrum: TeacherSpectrum,
    coefficients: Callable[[Host, Host], Coefficients],
    times: Host,
    evaluation_count: int,
    rho: float,
    sigma: float,
    decay: float = 0.0,
) -> StudentMoments:
    """Moments of the student along the flow, (times, evaluations) each, from the ``coefficients`` of the flow as functions of
    the overlaps with the teacher and with itself, one of each for every evaluation.

    Parameters
    ----------
    spectrum : TeacherSpectrum
    coefficients : callable
        ``coefficients(cross, self_overlap)`` of ``tr(S S*)/D`` and ``tr(S^2)/D``, (evaluations,) each.
    times : ndarray
        Times t at which moments are wanted, ascending from 0.
    rho : float
        Width of the student over D.
    sigma : float
        ``tr(S) / D`` at the start; a factor of N(0, 1) entries has ``sqrt(rho)``.
    decay : float
        gamma, the weight decay in units of t.
    """
    from scipy.integrate import solve_ivp

    eigenvalues = spectrum.eigenvalues

    def moments_at(time: float, state: Host) -> StudentMoments:
        """Moments of the student at a time, from B and m of every evaluation."""
        integral, curvature = state[:, 0], state[:, 1:]
        log_decay = 2 * (integral[:, None] * eigenvalues + decay * time)
        return student_moments(spectrum, log_decay, curvature, rho, sigma)

    def derivative(time: float, flat_state: Host) -> Host:
        """Time derivative of B and m of every evaluation."""
        state = flat_state.reshape(evaluation_count, -1)
        moments = moments_at(time, state)
        a, b = coefficients(moments.cross, moments.self_overlap)
        growth = 2 * (b[:, None] * eigenvalues + decay)
        curvature_rate = 2 * a[:, None] + growth * state[:, 1:]
        return np.concatenate([b[:, None], curvature_rate], axis=1).ravel()

    initial_state = np.zeros(evaluation_count * (1 + len(eigenvalues)))
    solution = solve_ivp(
        derivative,
        (0.0, float(times[-1]) or 1.0),
        initial_state,
        method="LSODA",
        t_eval=times,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )
    moments = [
        moments_at(time, flat_state.reshape(evaluation_count, -1))
        for time, flat_state in zip(solution.t, solution.y.T)
    ]
    return StudentMoments(*(np.stack(column) for column in zip(*moments)))
