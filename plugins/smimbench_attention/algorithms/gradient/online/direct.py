r"""Exact limit of online gradient descent directly on an attention matrix: two numbers.

A prior without a factor has the signal itself as its factor, ``S = (F + F^T) / sqrt(2 D)`` with ``F`` of N(0, 1) entries, or
``F / sqrt(D)`` without symmetry (``smimbench.derive.derived_prior``). A step of rate eta along the mean gradient
``2 D (a S + b S*)`` of ``matrices`` then moves the signal by ``-2 kappa eta (a S + b S* + gamma S)``, with kappa = 2 for
symmetric matrices and 1 without symmetry, so that as steps become small

.. math::

    \frac{dS}{dt} = -(a + \gamma) S - b S^*, \qquad
    t = 2 \kappa \sum_{\text{steps}} \eta, \qquad \gamma = \frac{\lambda}{2 \kappa},

lambda being the weight decay. For one component a and b are numbers, so ``S = x S(0) + y S*``,

.. math::

    \dot x = -(a + \gamma)\, x, \qquad \dot y = -(a + \gamma)\, y - b, \qquad x(0) = 1, \quad y(0) = 0 .

The start has the semicircle of variance 1 as its spectrum and is independent of the teacher, hence

.. math::

    \frac{\operatorname{tr} S}{D} = y\, \frac{\operatorname{tr} S^*}{D}, \qquad
    \frac{\operatorname{tr} S S^{*T}}{D} = y\, q^*, \qquad
    \frac{\operatorname{tr} S S^T}{D} = x^2 + y^2 q^* .

Where b vanishes without overlap, y = 0 is a solution: nothing is learned, unlike from a factor ``W W^T``, whose trace is an
overlap from the start.

References
----------
arXiv:2609.03858, appendix E; the solution derived, checked by tests/algorithms/test_online_direct.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import monte_carlo_rng
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import factor_of
from smimbench_attention.algorithms.gradient.online.riccati import (
    TOLERANCE,
    Coefficients,
    StudentMoments,
)


def is_direct(problem: Problem) -> bool:
    """Whether the factor of the problem's prior is the signal itself, up to the scale of derived priors."""
    dimension = 6
    kappa = problem.model.kappa
    factorization = factor_of(problem)
    factor = factorization.draw(monte_carlo_rng("online descent: direct"), 1, dimension)
    if factor.shape != (1, dimension, dimension):
        return False
    added = np.swapaxes(factor, 1, 2) if kappa == 2 else 0 * factor
    signal = (factor + added) / math.sqrt(kappa * dimension)
    return bool(np.allclose(factorization.compose(factor), signal))


def solve_direct_flow(
    coefficients: Callable[[Host, Host], Coefficients],
    times: Host,
    evaluation_count: int,
    teacher_trace: float,
    teacher_moment: float,
    decay: float = 0.0,
) -> StudentMoments:
    """Moments of the student along the flow, (times, evaluations) each, from the ``coefficients`` of the flow as functions of
    the overlaps with the teacher and with itself.

    Parameters
    ----------
    coefficients : callable
        ``coefficients(cross, self_overlap)`` of ``tr(S S*^T)/D`` and ``tr(S S^T)/D``, (evaluations,) each.
    times : ndarray
        Times t at which moments are wanted, ascending from 0.
    evaluation_count : int
        Number of evaluations of the coefficients.
    teacher_trace, teacher_moment : float
        ``tr(S*)/D`` and ``tr(S* S*^T)/D``.
    decay : float
        gamma, the weight decay in units of t.
    """
    from scipy.integrate import solve_ivp

    def moments_of(shares: Host) -> StudentMoments:
        """Moments of the student with the shares x and y, (2, ...), of start and teacher."""
        of_start, of_teacher = shares
        return StudentMoments(
            of_teacher * teacher_trace,
            of_teacher * teacher_moment,
            of_start**2 + of_teacher**2 * teacher_moment,
        )

    def derivative(_: float, state: Host) -> Host:
        """Time derivative of x and y of every evaluation."""
        shares = state.reshape(2, -1)
        moments = moments_of(shares)
        a, b = coefficients(moments.cross, moments.self_overlap)
        return np.stack(
            [-(a + decay) * shares[0], -(a + decay) * shares[1] - b]
        ).ravel()

    solution = solve_ivp(
        derivative,
        (0.0, float(times[-1]) or 1.0),
        np.repeat([1.0, 0.0], evaluation_count),
        method="LSODA",
        t_eval=times,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )
    return moments_of(solution.y.reshape(2, evaluation_count, -1).swapaxes(1, 2))
