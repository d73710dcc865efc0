r"""What state evolution says of GAMP itself: the fixed point that its start leads to, and its trajectory step by step.

Undamped, an iteration maps overlaps to overlaps exactly as D goes to infinity. Runs from the prior mean, or from an informed
start, are on the Bayes-optimal line, where the error V that is claimed is the one that is made, and stay there:

.. math:: \hat Q = \kappa \alpha\, I(Q, V), \qquad (Q, V) = \mathrm{overlap}(\hat Q),

which is what the fixed points of theory are made of, so the path ends at one. A random start has an overlap by chance and is off
the line; its way is sampled (``smimbench_algorithms.gamp.off_line``), several times, and their spread is the error.
Damping of this kind (iterates and Onsager terms mixed) has no such recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import symmetric_logarithm, with_floor
from smimbench.theory.information import information_at, offers_rough, overlap_at, prior_moments
from smimbench.theory.limit import aligned, scores
from smimbench.theory.predictions import competing, point_document
from smimbench.theory.recursion import exponential
from smimbench.theory.types import Host
from smimbench_algorithms.gamp.off_line import SMALLEST_QHAT, Standing, sampled_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Conditions
    from smimbench.problem import Problem

__all__ = ["fixed_point", "information_on_the_way", "trajectory"]

LONGEST = 60
"""Iterations that are followed at most. Doubled: the way to a fixed point near a threshold is shown to its end."""

STILL = 1e-9
"""Relative change of all overlaps and errors that ends it. Doubled: one iteration fewer."""

ROUGHLY_STILL = 1e-5
"""The same where the information is sampled, with an error of 1e-3. Doubled: one iteration fewer."""

KNOWN = 1e-13
"""Error, as a share of the second moment, below which a signal counts as known. Doubled: one iteration fewer."""

SETS = 4
"""Sets of points with which a way off the line is sampled. Doubled: its error falls by 1.4 and is known as much better."""

LARGEST_ERROR = 0.1
"""Error of the path, as a share of the second moment, from which on it counts as unknown. Doubled: vaguer paths are shown."""

ARRIVED = 0.01
"""Distance to the fixed point, as a share of the second moment and beside the stated errors, at which a path has arrived.
Doubled: a path that ends elsewhere is shown more often."""


def fixed_point(problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any]:
    """The point of theory that runs from this start reach, of those that state evolution has at this sample ratio.

    Where two branches compete, a run that begins at the prior mean, or near it, ends on the uninformed one, one that begins
    near the signal on the informed one. Damping moves no fixed point, and the start of a branch none either: students agree.
    """
    points = conditions.points or tuple(point_document(problem, found) for found in competing(problem, [alpha])[0])
    wanted = "informed" if conditions.start == "informed" else "uninformed"
    found = next((point for point in points if point["branch"] == wanted), points[0])
    return found | {"between_students": found["overlap"]}


def trajectory(
    problem: Problem, alpha: float, conditions: Conditions, claimed: Host | None
) -> dict[str, list[Any]] | str:
    """``iteration``, ``mse``, ``mse_error`` and ``overlap`` of undamped iterations, from the limit of what the runs began with.

    Parameters
    ----------
    claimed : ndarray (P, P) or None
        Error V that a random start claims; None: the start is on the Bayes-optimal line.

    Returns
    -------
    dict or str
        In words why there is none: the way is not known well enough, or it rests elsewhere than at the fixed point of theory.
    """
    start, steps = _start(problem, conditions, claimed), min(conditions.iterations or LONGEST, LONGEST)
    end = fixed_point(problem, alpha, conditions)
    information = information_on_the_way(
        problem, start.own(problem), start.V, np.asarray(end["overlap"], dtype=float).reshape(start.V.shape)
    )
    second = np.diagonal(prior_moments(problem)[0])
    paths: list[tuple[list[Overlaps], bool]] = []
    for which in range(1 if start.on_line else SETS):
        paths.append(_path(problem, alpha, start, steps, information, which))
        mse, error, overlap = _summary(problem, [path for path, _ in paths])
        # Two sets that are far apart will not be told from one another by more of them.
        if not (error < LARGEST_ERROR * second * np.sqrt(SETS / len(paths))).all():
            return "its way from a random start is not known: sampled with other points it is another one"
    there, uncertain = (np.atleast_1d(end[name]) for name in ("mse", "mse_error"))
    allowed = ARRIVED * second + 4 * (uncertain + error[-1])
    if all(rests for _, rests in paths) and (np.abs(mse[-1] - there) > allowed).any():
        return f"its way rests at the error {_listed(mse[-1])}, not at its fixed point, which has {_listed(there)}"
    return {
        "iteration": list(range(len(mse))),
        "mse": mse.tolist(),
        "mse_error": error.tolist(),
        "overlap": overlap.tolist(),
    }


def _listed(values: Host) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _summary(problem: Problem, paths: list[list[Overlaps]]) -> tuple[Host, Host, Host]:
    """Mean error of paths, its standard error and the mean overlap (iterations, P), as the metrics of runs have them.

    A path that has come to rest stays where it is. One path has no error; numbers that are not finite have an infinite one.
    """
    longest = max(map(len, paths))
    found = []
    for path in paths:
        whole = [aligned(problem, one) for one in [*path, *path[-1:] * (longest - len(path))]]
        found.append(scores(Overlaps(*(np.stack(parts) for parts in zip(*whole)))))
    mse = np.stack([one["mse"] for one in found])
    overlap = np.mean([one["squared_cosine" if problem.model.rank == "low" else "overlap"] for one in found], axis=0)
    spread = np.std(mse, axis=0, ddof=1) / np.sqrt(len(mse)) if len(mse) > 1 else np.zeros_like(mse[0])
    return mse.mean(axis=0), np.where(np.isfinite(mse).all(axis=0), spread, np.inf), overlap


def _start(problem: Problem, conditions: Conditions, claimed: Host | None) -> Standing:
    """What the runs began with, as D grows.

    Their norms differ from the second moment by chance, and are not taken over: the recursion is one of the limit. Of an informed
    start the overlap with itself says where on the line it is; of a random one the overlap with the signal is chance alone, but
    grows from there, and is that of the runs.
    """
    second, known = prior_moments(problem)
    moved = [aligned(problem, one) for one in conditions.starts]
    if claimed is None:
        if not moved or conditions.start != "informed":
            return Standing.on_the_line(second - known)
        return Standing.on_the_line(second - np.mean([_rescaled(one, second) for one in moved], axis=0))
    own = second - claimed
    cross = np.mean([one.cross for one in moved], axis=0) if moved else own
    if problem.channel.symmetry == "signs":
        cross = np.diag(np.diagonal(cross))  # the rest has either sign, and no mean
    return Standing(claimed, second - cross - cross.T + own, cross.T - own)


def _rescaled(start: Overlaps, second: Host) -> Host:
    """Overlap of an estimate with itself, as if every component of its signal had just the second moment."""
    factors = np.sqrt(np.diagonal(second) / np.diagonal(np.asarray(start.truth, dtype=float)))
    found: Host = factors[:, None] * np.asarray(start.own, dtype=float) * factors
    return found


def _path(
    problem: Problem, alpha: float, at: Standing, steps: int, information: Callable[[Host, Host], Host], which: int
) -> tuple[list[Overlaps], bool]:
    """Overlaps before the first iteration and after each, and whether they have come to rest."""
    second = prior_moments(problem)[0]
    scale = problem.model.kappa * alpha
    still = ROUGHLY_STILL if offers_rough(problem) else STILL
    path = [at.overlaps(problem)]
    for _ in range(steps):
        before = at
        Qhat = scale * information(second - at.V, at.V)
        if not at.on_line:
            Qhat = with_floor(Qhat, SMALLEST_QHAT)
        line = Standing.on_the_line(overlap_at(problem, Qhat)[1])
        at = line if at.on_line else sampled_step(problem, alpha, at, Qhat, line, which)
        path.append(at.overlaps(problem))
        if not np.isfinite(at.E).all():
            return path, False
        if (np.diagonal(at.E) < KNOWN * np.diagonal(second)).all():
            return path, True
        pairs = ((before.own(problem), at.own(problem)), (before.E, at.E), (before.V, at.V))
        if all((np.abs(np.diagonal(b - a)) <= still * np.diagonal(b)).all() for a, b in pairs):
            return path, True
    return path, False


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
