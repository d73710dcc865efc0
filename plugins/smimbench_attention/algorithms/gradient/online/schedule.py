r"""Learning rates of online ``sgd`` that minimize its final error: optimal control of the overlaps.

A step with rate eta moves the overlaps ``x = (M, Q)`` of one direction by ``x' = x - eta a(x) + eta^2 c(x)`` (``equations``), and
the final error is ``E = T - 2 M + Q``. By Pontryagin's principle the costates ``p_s = dE / dx_s``, which follow backwards from
``p_s = (dx_{s+1} / dx_s)^T p_{s+1}``, give the gradient and, with costates held, the best rate of every step:

.. math::

    \frac{dE}{d\eta_s} = p_{s+1} \cdot (2 \eta_s c - a), \qquad \eta_s = \frac{p_{s+1} \cdot a}{2\, p_{s+1} \cdot c} .

A sweep is one path forwards and one backwards, after which all rates move there; some ten are needed until E no longer falls. E
is stationary at the optimum, so few integration points suffice. Long runs begin with few steps of large batches: n batches
joined, at n times the rate, are the same descent up to terms of order eta. Beyond ``STEP_COUNTS`` rates are interpolated.

For linear labels of C tokens, any number of directions and noise variance ``sigma^2`` the mean error e of a direction is all that
matters, at every D:

.. math::

    e' = (1 - 2 C \eta)^2 e + \frac{4 C \eta^2}{B} \big[(D + 1)\, e + D \sigma^2\big] .

It grows with e at every eta, so by induction a smaller error now is never worse later: the best rate of each step minimizes the
next error,

.. math::

    \eta = \frac{B e}{2 [(D + 1 + B C)\, e + D \sigma^2]}, \qquad e' = (1 - 2 C \eta)\, e .

Nothing is used but the problem, B, D and the number of steps: overlaps start from their mean over signals and students, or where
labels leave the sign open, so that an overlap of 0 stays 0, from their standard deviation, of order ``1/sqrt(D)``.

References
----------
Saad and Rattray (1997), Phys. Rev. Lett. 79, 2578; arXiv:2507.07907; the linear case and the sweeps derived, checked by
tests/algorithms/test_online_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from smimbench.interfaces import Host
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.online.equations import DIVERGED_OVERLAP
from smimbench_attention.algorithms.gradient.online.fields import (
    evaluation_count,
    gradient_averages,
)
from smimbench_attention.algorithms.gradient.online.theory import (
    mean_start,
    why_no_equations,
)
from smimbench_attention.algorithms.least_squares import additive_noise

POINTS = 256
"""Integration points of the tokens of a sample, four times as many for a single one. Doubled, a schedule takes twice as long."""

STEP_COUNTS = (16, 32, 64, 128, 256)
"""Steps of the schedules that are computed one from the other. With 512, final errors of noisy labels fall by less than 0.1%."""

MOST_SWEEPS = 40
"""Sweeps for one number of steps; most need about ten."""

TOLERANCE = 1e-6
"""Relative fall of the error at which sweeps end; a tenth moves final errors in the seventh digit."""

PERTURBATION = 1e-5
"""Size of the differences that stand for derivatives, relative to ``Q - M^2 / T``: their relative error, too."""


def why_no_optimal_rates(problem: Problem, loss: str) -> str | None:
    """Reason why no optimal schedule of online descent is known for this problem and loss, or None."""
    has_many_overlaps = problem.components > 1 and evaluation_count(problem, loss) > 1
    if (
        has_many_overlaps
        or problem.model.rank != "low"
        or problem.variances is not None
    ):
        return "schedule = 'optimal' is known for low-rank signals of one direction or with linear labels, features alike, only"
    return why_no_equations(problem)


@lru_cache(maxsize=256)
def optimal_rates(
    problem: Problem, loss: str, steps: int, batch_size: int, dimension: int
) -> Host:
    """Compute the learning rates (steps,) of online ``sgd`` that minimize the error after so many steps on batches of
    ``batch_size`` samples in ``dimension`` D, in closed form for linear labels, else by the equations of large D.
    """
    if evaluation_count(problem, loss) == 1:
        return _linear_rates(problem, steps, batch_size, dimension)
    expand = expansion(problem, loss, steps * batch_size / dimension, dimension)
    step_counts = np.unique(np.minimum(STEP_COUNTS, steps))
    constants = np.geomspace(1e-4, 10.0, 51)[:, None] * np.ones(step_counts[0])
    rates = min(constants, key=lambda schedule: expand(schedule)[0])
    for step_count in step_counts:
        rates = _swept_rates(expand, _resampled(rates, step_count))
    return _resampled(rates, steps)


def _linear_rates(problem: Problem, steps: int, B: int, D: int) -> Host:
    """Optimal learning rates (steps,) for linear labels of C tokens and batches of B samples in D dimensions, in closed form."""
    C, rates = problem.model.sites, np.empty(steps)
    noise = np.mean(np.asarray(additive_noise(problem)))
    error = np.mean(np.diagonal(sum(mean_start(problem))))  # no overlap
    for step in range(steps):
        rates[step] = B * error / (2 * ((D + 1 + B * C) * error + D * noise))
        error *= 1 - 2 * C * rates[step]
    return rates


def expansion(
    problem: Problem, loss: str, sample_ratio: float, dimension: int
) -> Callable[[Host], tuple[float, Host]]:
    """Build the function that maps learning rates (steps,), for batches that together have ``sample_ratio`` samples per
    dimension, to the final error, infinite if overlaps diverge, and to ``p.a`` and ``p.c`` (2, steps) of every step.
    """
    truth, cross, self_overlap = mean_start(problem)
    if problem.channel.symmetry != "none":
        cross = np.sqrt(truth * self_overlap / dimension)
    points = POINTS // problem.model.sites
    averages = gradient_averages(problem, loss, truth[None], points, range(1))

    def coefficients(overlaps: Host, batch_ratio: float) -> Host:
        """Coefficients a and c (2, 3, n) of the first and second power of the rate, from the overlaps (3, n)."""
        *gradient, square = np.reshape(
            averages(*overlaps[1:, None, :, None, None]), (3, -1)
        )
        drift = np.einsum("vwn,wn->vn", overlaps[[[0, 1], [1, 2]]], gradient)
        squared_step = square / batch_ratio + np.sum(gradient * drift, axis=0)
        zero = 0 * square
        return np.array([[zero, drift[0], 2 * drift[1]], [zero, zero, squared_step]])

    def expand(rates: Host) -> tuple[float, Host]:
        """Final error, and ``p.a`` and ``p.c`` of every step."""
        overlaps = np.ravel([truth, cross, self_overlap])
        jacobians = []
        moments = []
        for rate in rates:
            # The overlaps themselves, then with M and with Q moved: derivatives by T are never needed, and left 0.
            move = PERTURBATION * (overlaps[2] - overlaps[1] ** 2 / overlaps[0])
            moved = overlaps[:, None] + move * np.diag([0.0, 1.0, 1.0])
            moments_of_moved = coefficients(moved, sample_ratio / len(rates))
            next_overlaps = moved + np.tensordot([-rate, rate**2], moments_of_moved, 1)
            overlaps = next_overlaps[:, 0]
            # NaN fails, too.
            if not overlaps[2] <= DIVERGED_OVERLAP:
                return np.inf, rates
            jacobians.append((next_overlaps - next_overlaps[:, :1]) / move)
            moments.append(moments_of_moved[..., 0])
        costates = [np.array([1.0, -2.0, 1.0])]
        for jacobian in jacobians[:0:-1]:
            costates.append(costates[-1] @ jacobian)
        slopes = np.einsum("so,spo->ps", costates[::-1], moments)
        return overlaps @ costates[0], slopes

    return expand


def _swept_rates(expand: Callable[[Host], tuple[float, Host]], rates: Host) -> Host:
    """Rates after sweeps, each of which moves all of them to where they are best with costates held, or a part of the way
    there, until the final error no longer falls; ``expand`` is from ``expansion``.
    """
    (error, slopes), fraction = expand(rates), 1.0
    for _ in range(MOST_SWEEPS):
        best_factors = slopes[0] / np.maximum(2 * slopes[1] * rates, 1e-300)
        next_rates = rates * np.clip(best_factors, 1 / 3, 3) ** fraction
        next_error, next_slopes = expand(next_rates)
        fall = 1 - next_error / error
        if fall < 0:
            fraction /= 2
            continue
        rates, error, slopes = next_rates, next_error, next_slopes
        if fall < TOLERANCE:
            break
    return rates


def _resampled(rates: Host, steps: int) -> Host:
    """Rates of a run with another number of steps on as many samples, by interpolation."""
    scale = len(rates) / steps
    places = (np.arange(steps) + 0.5) * scale - 0.5
    return np.asarray(scale * np.interp(places, np.arange(len(rates)), rates))
