"""Fixed points of matrix state evolution at one sample ratio, by Anderson acceleration in log Qhat.

Where a channel that samples its information offers rough values, the way is found with those, and few of the accurate ones
correct it: the difference of the two logarithms hardly depends on the overlap. It is added to the rough map, whose fixed point
is then found again, until the accurate map agrees there.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host, Uncertain
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.problem.problem import Problem
from smimbench.theory.information import (
    diagonals,
    information_at,
    offers_rough,
    overlap_at,
    prior_moments,
)

UNFINISHED = "iterations were not enough"
BELOW_RESOLUTION = "information below resolution"
MOST_ITERATIONS = 60
"""Accelerated iterations per sample ratio; doubled, fewer points end with "were not enough"."""
SOLVED = 0.02
"""Residual that is left, in errors of the information; doubled, an iteration fewer, and twice its part in the stated error."""
KNOWN_LOG_QHAT = np.log(1e14)
"""Log Qhat from which on the signal counts as known; doubled, one iteration more."""
MOST_CORRECTIONS = 6
"""Accurate values that a fixed point may take on the way of rough ones; doubled, no change where differences vary slowly."""


class FixedPoint(NamedTuple):
    """Fixed point of matrix state evolution, with its residual and numerical error.

    Attributes
    ----------
    qhat : ndarray (P, P)
    relative : float
        Relative error of the information there.
    residual : float
        What is left of a step, see ``distance``.
    method : str
        How the information was obtained; it says so where iterations were not enough.
    offset : ndarray (P, P) or None
        Logarithm of the accurate information less that of the rough one; None where there are no rough values.
    """

    qhat: Host
    relative: float
    residual: float
    method: str
    offset: Host | None = None


def exponential(log: Host) -> Host:
    """Matrix exponential (P, P) of a symmetric matrix; eigenvalues of log are cut at 60."""
    return np.asarray(
        spectral_function(log, lambda values: np.exp(np.minimum(values, 60.0)))
    )


class Recursion:
    """State-evolution map ``log Qhat -> log(kappa alpha I(overlap(Qhat)))`` at one sample ratio.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample ratio.
    """

    def __init__(self, problem: Problem, alpha: float) -> None:
        self.problem, self.alpha = problem, alpha
        self.has_rough = offers_rough(problem)
        self.second = np.diagonal(prior_moments(problem)[0])

    def image(self, log: Host, *, rough: bool = False) -> tuple[Host, Uncertain]:
        """Image (P, P) of log Qhat under the map, and the information there; ``rough`` for finite differences only."""
        information = information_at(
            self.problem, *overlap_at(self.problem, exponential(log)), rough=rough
        )
        return symmetric_logarithm(
            self.problem.model.kappa * self.alpha * information.value
        ), information

    def step(self, log: Host) -> Host:
        """Change of log Qhat in one iteration of the rough map, if its eigenvalues are clearly positive."""
        if self.has_rough:
            image, information = self.image(log, rough=True)
            if float(np.linalg.eigvalsh(image - log)[0]) > 5 * _relative(information):
                return image - log
        return self.image(log)[0] - log

    def fixed_point(
        self,
        start: Host,
        enough: float = 1e-10,
        target: FixedPoint | None = None,
        offset: Host | None = None,
    ) -> FixedPoint:
        """Iterate from Qhat = ``start`` (P, P) to a fixed point.

        Parameters
        ----------
        enough : float
            Residual that need not be made smaller.
        target : FixedPoint, optional
            A fixed point that is known: iterations end early where they come to it.
        offset : ndarray (P, P), optional
            That of a fixed point nearby, to begin with.
        """
        if not self.has_rough:
            return self._iterated(start, enough, target)
        return self._corrected(start, enough, target, offset)

    def nearby(self, fixed_point: FixedPoint, enough: float) -> Host:
        """Find the Qhat of a fixed point, starting from a known one at another sample ratio."""
        relative = None if fixed_point.offset is None else fixed_point.relative
        return self._iterated(
            fixed_point.qhat, enough, None, fixed_point.offset, relative
        ).qhat

    def _corrected(
        self, start: Host, enough: float, target: FixedPoint | None, offset: Host | None
    ) -> FixedPoint:
        offset = np.zeros_like(start) if offset is None else offset
        relative = None if target is None else target.relative
        qhat, previous_gap = start, np.inf
        best: FixedPoint | None = None
        for _ in range(MOST_CORRECTIONS):
            solution = self._iterated(qhat, enough, target, offset, relative)
            solution = solution._replace(offset=offset)
            log = symmetric_logarithm(solution.qhat)
            if UNFINISHED in solution.method or (
                target is not None
                and is_same_fixed_point(target, log, solution.relative)
            ):
                return solution
            image, information = self.image(log)
            relative, residual = (
                _relative(information),
                distance(solution.qhat, exponential(image)),
            )
            solution = solution._replace(
                relative=relative, residual=residual, method=information.method
            )
            if np.diagonal(log).min() > KNOWN_LOG_QHAT:
                return solution
            if best is None or residual < best.residual:
                best = solution
            offset, qhat = image - self.image(log, rough=True)[0], solution.qhat
            remaining = residual * max(0.1, min(residual / previous_gap, 1.0))
            if min(remaining, residual) <= max(enough, SOLVED * relative):
                final = self._iterated(qhat, enough, None, offset, relative)
                return FixedPoint(
                    final.qhat,
                    relative,
                    max(remaining, final.residual),
                    information.method,
                    offset,
                )
            previous_gap = residual
        assert best is not None
        if (
            best.residual <= best.relative
        ):  # where values jump, nothing closer can be found
            return best
        return best._replace(method=f"{best.method}, {MOST_CORRECTIONS} {UNFINISHED}")

    def _iterated(
        self,
        start: Host,
        enough: float,
        target: FixedPoint | None,
        offset: Host | None = None,
        stated: float | None = None,
    ) -> FixedPoint:
        """Anderson acceleration in the matrix logarithm, where growth by a factor is a constant step.

        With an ``offset`` from rough values, corrected by it; ``stated`` is their relative error.
        """
        upper = np.triu_indices(len(start))
        x = symmetric_logarithm(start)
        points: list[Host] = []
        steps: list[Host] = []
        residual, best = np.inf, np.inf
        method = ""
        for count in range(MOST_ITERATIONS):
            unknown_shares = (
                np.diagonal(overlap_at(self.problem, exponential(x))[1]) / self.second
            )
            if not (unknown_shares > 1e-200).all():
                relative, residual, method = 1.0, 1.0, method or BELOW_RESOLUTION
                break
            image, information = self.image(x, rough=offset is not None)
            image = image if offset is None else image + offset
            relative, method = (
                _relative(information) if stated is None else stated,
                information.method,
            )
            if not relative < 0.5 and (unknown_shares < 1e-3).all():
                relative, residual, method = 1.0, 1.0, f"{method}, {BELOW_RESOLUTION}"
                break
            step = image - x
            residual = distance(exponential(x), exponential(image))
            arrived = target is not None and is_same_fixed_point(
                target, image, relative
            )
            # Sampled values may jump: after a while a residual below their error is enough.
            smallest_residual = (
                relative if offset is not None and count >= 12 else SOLVED * relative
            )
            if (
                arrived
                or residual <= max(enough, smallest_residual)
                or np.diagonal(x).min() > KNOWN_LOG_QHAT
            ):
                x = image
                break
            if residual > 2 * best:
                points, steps = [], []  # the history misleads
            best = min(best, residual)
            points, steps = [*points[-3:], x], [*steps[-3:], step]
            x = image
            if len(steps) > 1:
                changes = np.stack(
                    [(b - a)[upper] for a, b in itertools.pairwise(steps)], axis=-1
                )
                moves = np.stack(
                    [(b - a)[upper] for a, b in itertools.pairwise(points)], axis=-1
                )
                weights = np.linalg.lstsq(changes, step[upper], rcond=1e-8)[0]
                move = step[upper] - (moves + changes) @ weights
                if move @ step[upper] < 0:
                    # Against the iteration itself: towards a fixed point that it moves away from.
                    points, steps = [], []
                    continue
                longest = float(np.abs(move).max())
                move = move * min(1.0, 3.0 / longest) if longest > 0 else move
                x = points[-1].copy()
                x[upper] += move
                x.T[upper] = x[upper]
        else:
            method += f", {MOST_ITERATIONS} {UNFINISHED}"
        return FixedPoint(exponential(x), relative, residual, method)


def _relative(information: Uncertain) -> float:
    value, error = diagonals(information)
    return float(np.max(error / np.maximum(value, 1e-300)))


def is_same_fixed_point(target: FixedPoint, log: Host, relative: float) -> bool:
    """Whether log Qhat (P, P) equals that of a fixed point, within the ``relative`` error of the information."""
    return distance(target.qhat, exponential(log)) < 0.3 * relative


def distance(qhat: Host, other_qhat: Host) -> float:
    """Largest entry of the difference of two Qhat (P, P) in units of the diagonal of the first.

    The logarithms may differ by more: those of eigenvalues that are lost in the noise of the others.
    """
    scale = np.sqrt(np.diagonal(qhat))
    return float(np.abs((other_qhat - qhat) / np.outer(scale, scale)).max())
