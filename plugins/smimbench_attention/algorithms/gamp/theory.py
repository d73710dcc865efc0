r"""State evolution of GAMP: the fixed point reached from its start, its trajectory, and corrections of order 1/D.

Undamped, an iteration maps overlaps to overlaps exactly as D goes to infinity. Runs from the prior mean, or from an informed
start, are on the Bayes-optimal line, where the predicted error V is the true one, and stay there:

.. math:: \hat Q = \kappa \alpha\, I(Q, V), \qquad (Q, V) = \mathrm{overlap}(\hat Q),

the equations of theory's fixed points, so the trajectory ends at one. A random start has an overlap by chance and is off the
line; its trajectory is sampled several times (``smimbench_attention.algorithms.gamp.assumed``), and the spread is the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import symmetric_logarithm
from smimbench.problem import Problem
from smimbench.theory import (
    aligned,
    competing,
    exponential,
    information_at,
    offers_rough,
    overlap_at,
    point_document,
    prior_moments,
    scores,
)
from smimbench_attention.algorithms.gamp.assumed import (
    MismatchedRecursion,
    NoFixedPoint,
    Orders,
)

UNRESOLVED = "the trajectory from a random start is not known: the numerical errors of its integrals are too large"


class PathAccuracy(NamedTuple):
    """Numerical settings of predicted GAMP trajectories.

    Attributes
    ----------
    sets : int
        Independent sets of points; their spread is the stated error.
    largest_error : float
        Error, as a fraction of the second moment, above which a trajectory is not shown.
    arrival : float
        Distance to the fixed point, as a fraction of the second moment and besides the stated errors, that counts as arrived.
    iterations : int
        Largest number of iterations.
    at_rest, roughly_at_rest : float
        Relative change that ends a trajectory; the second where the information is sampled.
    """

    sets: int = 4
    largest_error: float = 0.1
    arrival: float = 0.01
    iterations: int = 60
    at_rest: float = 1e-9
    roughly_at_rest: float = 1e-5


ACCURACY = PathAccuracy()


def gamp_theory(
    problem: Problem,
    alpha: float,
    conditions: Conditions,
    V: Host | None,
    *,
    damped: bool,
) -> AlgorithmPrediction:
    """Predict the fixed point of GAMP and its trajectory (or the reason why there is no trajectory).

    ``V`` is the error that a random start predicts for itself; see ``_trajectory``.

    Where two branches compete, a run that begins at the prior mean, or near it, ends on the uninformed one, and one that begins
    near the signal on the informed one. Students that start alike agree.
    """
    points = conditions.points
    if not points:
        branches = competing(problem, [alpha])[0]
        points = tuple(point_document(problem, branch) for branch in branches)
    branch = "informed" if conditions.start == "informed" else "uninformed"
    end = next((point for point in points if point["branch"] == branch), points[0])
    correction = first_correction(problem, alpha)
    prediction = AlgorithmPrediction.of_point(
        end,
        between_students=end["overlap"],
        finite_size=None if correction is None else {"mse": correction},
    )
    if not conditions.trajectory:
        return prediction
    if damped:
        why_not = "state evolution describes the undamped iteration only; set damping = 0 (fixed points do not change)"
        return replace(prediction, trajectory=why_not)
    if conditions.start not in ("uninformed", "informed"):
        why_not = f"the start {conditions.start!r} depends on the data"
        return replace(prediction, trajectory=why_not)
    trajectory = _trajectory(problem, alpha, conditions, V, prediction)
    return replace(prediction, trajectory=trajectory)


def random_start_error(problem: Problem, information: float) -> Host:
    """Error V (P, P) that the prior predicts for a random start with this information."""
    V: Host = overlap_at(problem, information * np.eye(problem.components))[1]
    return V


def first_correction(problem: Problem, alpha: float) -> list[float] | None:
    r"""Finite-size coefficient b of ``MSE = limit + b / D`` per component, for Gaussian signals and linear labels.

    None for other problems.

    There GAMP ends at the posterior mean of every instance, and its error is the Stieltjes transform of a real Wishart matrix at
    minus the noise. With N = T n rows, ``r = N / D`` and ``S(z) = E tr (X^T X / D - z)^{-1} / D``, integration by parts gives

    .. math:: 1 + z S = r S - S (1 + z S) - \frac1D (S + z S') + O(1/D^2), \qquad z = -\Delta,

    so that with ``F = 1 + z - r + 2 z S``, the slope of this equation in S, and ``S' = -(S + S^2) / F``,

    .. math:: E\,\mathrm{MSE} = \Delta S + \frac{b}{D}, \qquad b = -\Delta\, \frac{S + z S'}{F}.

    Derived; checked by tests/algorithms/test_gamp_theory.py against exact posteriors of small sizes. In other problems the
    denoiser or the labels are not linear, and corrections contain the fluctuations of order parameters.
    """
    spec = problem.spec
    names = [spec[kind]["name"] for kind in ("model", "channel", "prior")]
    if names != ["sequence-multi-index", "linear", "gaussian"]:
        return None
    noise, r = float(spec["channel"]["noise"]), alpha * problem.model.tokens
    if problem.variances is not None or problem.mixing is not None or noise <= 0:
        return None
    z = -noise
    # z S^2 + (1 + z - r) S + 1 = 0, the positive root, in the form in which nothing cancels.
    linear = 1 + z - r
    root = math.sqrt(linear * linear - 4 * z)
    S = (linear + root) / (-2 * z) if linear > 0 else 2 / (root - linear)
    slope = linear + 2 * z * S
    derivative = -(S + S * S) / slope
    return [-noise * (S + z * derivative) / slope] * problem.components


def _trajectory(
    problem: Problem,
    alpha: float,
    conditions: Conditions,
    V: Host | None,
    end: AlgorithmPrediction,
) -> dict[str, list[Any]] | str:
    """Trajectory of undamped GAMP (``iteration``, ``mse``, ``mse_error``, ``overlap``), or why there is none.

    ``V`` (P, P): error that a random start predicts for itself; None: the start is on the Bayes-optimal line.
    """
    if problem.variances is not None and V is not None:
        return "the trajectory from a random start is not known for features with a spectrum"
    start, T = _start(problem, conditions, V), prior_moments(problem)[0]
    second = np.diagonal(T)
    iterations = min(conditions.iterations or ACCURACY.iterations, ACCURACY.iterations)
    paths: list[list[Overlaps]] = []
    all_at_rest = True
    for seed in range(1 if V is None else ACCURACY.sets):
        if V is None:
            step = _line_step(problem, alpha, start, np.asarray(end.overlap))
        else:
            step = MismatchedRecursion(problem, problem, alpha, seed).step
        try:
            path, at_rest = _path(problem, start, iterations, step)
        except (NoFixedPoint, np.linalg.LinAlgError):
            return UNRESOLVED
        paths.append([orders.overlaps(T) for orders in path])
        all_at_rest &= at_rest
        mse, error, overlap = _summary(problem, paths)
        # Two sets that are far apart will not agree with more of them.
        allowance = ACCURACY.largest_error * np.sqrt(ACCURACY.sets / len(paths))
        if not (error < allowance * second).all():
            return UNRESOLVED
    end_mse, end_error = np.atleast_1d(end.mse), np.atleast_1d(end.mse_error)
    distance = np.abs(mse[-1] - end_mse)
    allowance = ACCURACY.arrival * second + 4 * (end_error + error[-1])
    if all_at_rest and (distance > allowance).any():
        end_of_path, fixed = (
            ", ".join(f"{number:.3g}" for number in errors)
            for errors in (mse[-1], end_mse)
        )
        return f"the predicted trajectory ends at the error {end_of_path}, not at that of the fixed point, {fixed}"
    return {
        "iteration": list(range(len(mse))),
        "mse": mse.tolist(),
        "mse_error": error.tolist(),
        "overlap": overlap.tolist(),
    }


def _summary(problem: Problem, paths: list[list[Overlaps]]) -> tuple[Host, Host, Host]:
    """Mean MSE, its standard error and mean overlap (iterations, P) over the paths, in the units of the metrics.

    A path at rest stays where it is. One path has no error; numbers that are not finite have an infinite one.
    """
    longest = max(map(len, paths))
    padded = [path + path[-1:] * (longest - len(path)) for path in paths]
    matrices: Host = np.array(padded)  # (paths, iterations, 3, P, P)
    metrics = scores(aligned(problem, Overlaps(*np.moveaxis(matrices, 2, 0))))
    mse = metrics["mse"]
    is_low = problem.model.rank == "low"
    overlap = metrics["squared_cosine" if is_low else "overlap"].mean(axis=0)
    error = np.zeros_like(mse[0])
    if len(mse) > 1:
        error = np.std(mse, axis=0, ddof=1) / np.sqrt(len(mse))
    error = np.where(np.isfinite(mse).all(axis=0), error, np.inf)
    return mse.mean(axis=0), error, overlap


def _start(problem: Problem, conditions: Conditions, V: Host | None) -> Orders:
    """Order parameters of the initial states of the runs in the limit of large D.

    Their norms differ from the second moment by chance, which the limit does not contain. An informed start enters by its overlap
    with itself. A random one has an overlap with the signal that is chance alone, but grows from there: it is that of the runs.
    """
    second, prior_mean_overlap = prior_moments(problem)
    starts = [aligned(problem, overlaps) for overlaps in conditions.starts]
    if V is not None:
        Q = second - V
        M = np.mean([overlaps.cross for overlaps in starts], axis=0) if starts else Q
        if problem.channel.symmetry == "signs":
            M = np.diag(np.diagonal(M))  # the rest has either sign, and no mean
        return Orders(M, Q, V)
    if not starts or conditions.start != "informed":
        return Orders.bayes_optimal(second, second - prior_mean_overlap)
    self_overlaps = []
    for overlaps in starts:
        truth = np.diagonal(np.asarray(overlaps.truth, dtype=float))
        norm = np.sqrt(np.diagonal(second) / truth)
        self_overlaps.append(
            norm[:, None] * np.asarray(overlaps.own, dtype=float) * norm
        )
    return Orders.bayes_optimal(second, second - np.mean(self_overlaps, axis=0))


def _line_step(
    problem: Problem, alpha: float, start: Orders, end: Host
) -> Callable[[Orders], Orders]:
    """Function that runs one iteration of Bayes-optimal state evolution, with the information tabulated in advance."""
    T = prior_moments(problem)[0]
    information = information_along(problem, start.Q, start.V, end.reshape(T.shape))

    def step(orders: Orders) -> Orders:
        Qhat = problem.model.kappa * alpha * information(T - orders.V, orders.V)
        return Orders.bayes_optimal(T, overlap_at(problem, Qhat)[1])

    return step


def _path(
    problem: Problem, orders: Orders, steps: int, step: Callable[[Orders], Orders]
) -> tuple[list[Orders], bool]:
    """Iterate state evolution; return the order parameters of all iterations and whether they became stationary."""
    second = np.diagonal(prior_moments(problem)[0])
    at_rest = ACCURACY.roughly_at_rest if offers_rough(problem) else ACCURACY.at_rest
    path = [orders]
    for _ in range(steps):
        path.append(step(path[-1]))
        previous, reached = (
            np.diagonal(np.array(orders), axis1=1, axis2=2) for orders in path[-2:]
        )
        is_known = (np.diagonal(path[-1].V) < 1e-13 * second).all()
        if is_known or (np.abs(reached - previous) <= at_rest * np.abs(previous)).all():
            return path, True
    return path, False


def information_along(
    problem: Problem, Q: Host, V: Host, end: Host | None = None
) -> Callable[[Host, Host], Host]:
    """Information as a function of overlap and error (P, P), tabulated between Q, V and the overlap ``end``.

    Where a channel offers rough values, these are used, shifted to the accurate ones at both ends: the logarithm of their ratio
    hardly varies, and is interpolated in the trace of Q.
    """
    if not offers_rough(problem):
        return lambda Q, V: information_at(problem, Q, V).value
    second = prior_moments(problem)[0]
    ends = [(Q, V)]
    if end is not None and (np.diagonal(second - end) > 0).all():
        ends.append((end, np.diag(np.diagonal(second - end))))

    def logarithm(Q: Host, V: Host, rough: bool) -> Host:
        return symmetric_logarithm(information_at(problem, Q, V, rough=rough).value)

    ratios = [
        logarithm(*pair, rough=False) - logarithm(*pair, rough=True) for pair in ends
    ]
    trace_start, trace_end = (float(np.trace(pair[0])) for pair in (ends[0], ends[-1]))

    def interpolated(Q: Host, V: Host) -> Host:
        share = 0.0
        if trace_end != trace_start:
            share = (np.trace(Q) - trace_start) / (trace_end - trace_start)
            share = float(np.clip(share, 0.0, 1.0))
        rough = logarithm(Q, V, rough=True)
        return exponential(rough + (1 - share) * ratios[0] + share * ratios[-1])

    return interpolated
