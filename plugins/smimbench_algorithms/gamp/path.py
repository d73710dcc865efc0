r"""What state evolution says of GAMP itself: the fixed point that its start leads to, and its trajectory step by step.

Undamped, an iteration maps overlaps to overlaps exactly as D goes to infinity, also away from the Bayes-optimal line, where the
error V that the algorithm claims is not the one that it makes. For low rank, with ``omega`` of covariance ``Q = W W^T / D`` and
``M = W W*^T / D`` with ``z*``,

.. math::

    \hat Q = \alpha \sum_c (V^{-1} - V^{-1} E[\mathrm{Cov}] V^{-1}), \qquad
    \hat m = \alpha E \sum_c \frac{\partial g_c}{\partial z^*_c}, \qquad \hat\chi = \alpha E \sum_c g_c g_c^T,

and the estimate is ``denoise(Qhat^{-1} (m W* + chi^{1/2} Z), Qhat)``. For extensive rank starts lie on the Bayes-optimal line.
Damping of this kind (iterates and Onsager terms mixed) has no such recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import symmetric_logarithm, symmetric_root
from smimbench.numerics.qmc import normal_points, whitened_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.information import information_at, offers_rough, overlap_at, prior_moments
from smimbench.theory.limit import aligned, scores
from smimbench.theory.predictions import competing, point_document
from smimbench.theory.recursion import exponential
from smimbench.theory.types import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Conditions
    from smimbench.problem import Problem

__all__ = ["fixed_point", "information_on_the_way", "trajectory"]

POINTS = 2**12
"""Points of the integrals over latents. Doubled: about half the error, in twice the time."""

ENTRIES = 2**13
"""Entries of the signal that stand for all; exact for Gaussian priors. Doubled: 0.7 times the error for others."""

LONGEST = 60
"""Iterations that are followed at most. Doubled: the way to a fixed point near a threshold is shown to its end."""

STILL = 1e-9
"""Change of all overlaps that ends it. Doubled: one iteration fewer."""

ROUGHLY_STILL = 1e-5
"""The same where the information is sampled, with an error of 1e-3. Doubled: one iteration fewer."""


def fixed_point(problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any]:
    """The point of theory that runs from this start reach, of those that state evolution has at this sample ratio.

    Where two branches compete, a run that begins at the prior mean, or near it, ends on the uninformed one, one that begins
    near the signal on the informed one. Damping moves no fixed point, and the start of a branch none either: students agree.
    """
    points = conditions.points or tuple(point_document(problem, found) for found in competing(problem, [alpha])[0])
    wanted = "informed" if conditions.start == "informed" else "uninformed"
    found = next((point for point in points if point["branch"] == wanted), points[0])
    return found | {"between_students": found["overlap"]}


def trajectory(problem: Problem, alpha: float, conditions: Conditions, claimed: Host | None) -> dict[str, list[Any]]:
    """``iteration``, ``mse`` and ``overlap`` of undamped iterations, from what the runs began with.

    Parameters
    ----------
    claimed : ndarray (P, P) or None
        Error V that the start claims; None: what the overlap of the start with itself leaves of the second moment.
    """
    second, known = prior_moments(problem)
    start = Overlaps(second, known, known)
    if conditions.starts:
        moved = [aligned(problem, one) for one in conditions.starts]
        start = Overlaps(*(np.mean([one[i] for one in moved], axis=0) for i in range(3)))
    steps = min(conditions.iterations or LONGEST, LONGEST)
    V = second - start.own if claimed is None else claimed
    if problem.model.rank == "low":
        path = _low_rank_trajectory(problem, alpha, start, V, steps)
    else:
        end = np.asarray(fixed_point(problem, alpha, conditions)["overlap"], dtype=float)
        path = _extensive_trajectory(
            problem, alpha, start, V, steps, information_on_the_way(problem, start.cross, V, end)
        )
    found = scores(Overlaps(*(np.stack(parts) for parts in zip(*(aligned(problem, one) for one in path)))))
    key = "squared_cosine" if problem.model.rank == "low" else "overlap"
    return {"iteration": list(range(len(path))), "mse": found["mse"].tolist(), "overlap": found[key].tolist()}


def _low_rank_trajectory(problem: Problem, alpha: float, start: Overlaps, V: Host, steps: int) -> list[Overlaps]:
    P, C = problem.components, problem.model.sites
    points = whitened_points(2 * P * C, POINTS, "path of message passing: latents").reshape(-1, 2 * P, C)
    one, two = points[:, :P], points[:, P:]
    truth, cross, own = start
    signal, noise = _entries(problem, truth)
    path = [start]
    channel: Any = problem.channel
    for _ in range(steps):
        root = symmetric_root(own)
        mixing = cross.T @ np.linalg.pinv(root, rcond=1e-9)
        rest = symmetric_root(truth - mixing @ mixing.T)
        omega, z = root @ one, mixing @ one + rest @ two
        labels = channel.forward(z, rng=monte_carlo_rng("path of message passing: noise"))
        found = channel.posterior(labels, omega, V, rng=monte_carlo_rng("path of message passing: posterior"))
        inverse = np.linalg.inv(V)
        g = np.einsum("pq,nqc->npc", inverse, np.asarray(found.mean) - omega)
        Qhat = alpha * C * (inverse - inverse @ np.asarray(found.covariance) @ inverse)
        m = alpha * np.einsum("npc,nqc->pq", g, two) / len(g) @ np.linalg.pinv(rest, rcond=1e-9)
        chi = alpha * np.einsum("npc,nqc->pq", g, g) / len(g)
        R = np.linalg.solve(Qhat, m @ signal + symmetric_root(chi) @ noise)
        denoised = problem.prior.denoise(R, Qhat)
        estimate, V = np.asarray(denoised.estimate), np.asarray(denoised.V)
        size = signal.shape[1]
        new = Overlaps(truth, estimate @ signal.T / size, estimate @ estimate.T / size)
        path.append(new)
        if max(np.abs(new.cross - cross).max(), np.abs(new.own - own).max()) < STILL or not np.isfinite(V).all():
            break
        truth, cross, own = new
    return path


def _entries(problem: Problem, truth: Host) -> tuple[Host, Host]:
    """Entries of a signal of this second moment and of white noise (P, n): exactly, and uncorrelated."""
    P = problem.components
    signal = np.asarray(problem.prior.sample(monte_carlo_rng("path of message passing: signal"), P, ENTRIES))
    both = np.concatenate([signal, normal_points(P, ENTRIES, "path of message passing: entries").T])
    moments = np.block([[truth, np.zeros((P, P))], [np.zeros((P, P)), np.eye(P)]])
    both = np.linalg.cholesky(moments) @ np.linalg.solve(np.linalg.cholesky(both @ both.T / ENTRIES), both)
    return both[:P], both[P:]


def _extensive_trajectory(
    problem: Problem, alpha: float, start: Overlaps, V: Host, steps: int, information: Callable[[Host, Host], Host]
) -> list[Overlaps]:
    truth, Q, _ = start
    path = [start]
    still = ROUGHLY_STILL if offers_rough(problem) else STILL
    for _ in range(steps):
        before, (Q, V) = Q, overlap_at(problem, problem.model.kappa * alpha * information(Q, V))
        path.append(Overlaps(truth, Q, Q))
        if np.abs(Q - before).max() < still:
            break
    return path


def information_on_the_way(problem: Problem, Q: Host, V: Host, end: Host | None = None) -> Callable[[Host, Host], Host]:
    """From overlaps and errors (P, P) to the information, for many steps from Q, V to where the overlap is ``end``.

    Where a channel offers rough values it is those, moved to the accurate one at either end. The logarithm of their ratio
    hardly varies; between the ends it is interpolated in the trace of Q.
    """
    if not offers_rough(problem):
        return lambda Q, V: information_at(problem, Q, V).value
    second = prior_moments(problem)[0]
    ends = [(Q, V)]
    if end is not None and (np.diagonal(second - end) > 0).all():
        ends.append((end, np.diag(np.diagonal(second - end))))
    ratios = [_log_ratio(problem, *pair) for pair in ends]
    where = [float(np.trace(pair[0])) for pair in ends]

    def found(Q: Host, V: Host) -> Host:
        way = where[-1] - where[0]
        share = float(np.clip((np.trace(Q) - where[0]) / way, 0.0, 1.0)) if way else 0.0
        rough = symmetric_logarithm(information_at(problem, Q, V, rough=True).value)
        return exponential(rough + (1 - share) * ratios[0] + share * ratios[-1])

    return found


def _log_ratio(problem: Problem, Q: Host, V: Host) -> Host:
    accurate, rough = (symmetric_logarithm(information_at(problem, Q, V, rough=rough).value) for rough in (False, True))
    ratio: Host = accurate - rough
    return ratio
