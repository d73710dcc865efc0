"""What a curve of fixed points is made of: nodes, stages of nodes, interpolation and roots between nodes, and how
finely they are set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.types import Host

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXACT", "SAMPLED", "Accuracy", "Node", "Stage", "change", "finite_gaps", "polynomial", "root_of_gaps"]


@dataclass(frozen=True)
class Accuracy:
    """How finely and how far a curve of fixed points is followed. Lengths are in coordinates of Qhat (logarithms).

    Attributes
    ----------
    difference : float
        Length of finite differences.
    first : float
        First step of a stage; doubled, one or two nodes fewer at its beginning.
    shortest, longest : float
        Bounds of a step from node to node.
    mismatch : float
        Wanted difference of log alpha at a new node from its extrapolation; it sets the step. Doubled, steps grow by 1.4.
    correction : float
        Largest correction across the curve that is not evaluated again, but counted as an error.
    known_correction, doubt : float
        The same where the slope across the curve is measured at the node, and the share of such a correction that is counted;
        doubled, fewer evaluations and larger errors.
    most_corrections : int
        Evaluations for one node before its step is halved.
    gap : float
        Largest distance from a bifurcation, in log alpha.
    gap_share : float
        The same as a share of the error there.
    highest : float
        Qhat above which a component counts as recovered.
    smallest_error : float
        The curve ends where all errors are below this share of the second moment and zero is stable.
    largest_ratio : float
        The curve ends at this alpha.
    most_nodes : int
    growth : float
        Largest factor from step to step. Doubled: fewer nodes, and more that are found too early.
    """

    difference: float = 1e-3
    first: float = 0.04
    shortest: float = 2e-3
    longest: float = 1.5
    mismatch: float = 5e-4
    correction: float = 1e-6
    known_correction: float = 1e-6
    doubt: float = 1.0
    most_corrections: int = 6
    gap: float = 1e-8
    gap_share: float = 0.1
    highest: float = 1e8
    smallest_error: float = 1e-4
    largest_ratio: float = 1e3
    most_nodes: int = 200
    growth: float = 2.0


EXACT = Accuracy()
SAMPLED = Accuracy(
    difference=0.15,
    first=0.15,
    shortest=0.02,
    longest=0.5,
    mismatch=5e-3,
    correction=2e-3,
    known_correction=5e-3,
    doubt=0.1,
    gap=2e-4,
    gap_share=0.7,
    highest=1e6,
    growth=1.6,
)
"""For sampled information, which costs seconds and has errors of 1e-3."""


@dataclass
class Node:
    """A fixed point of the curve.

    Attributes
    ----------
    x : ndarray (P,)
        Coordinates of Qhat.
    log_ratios, error : ndarray (P,)
        ``log alpha_a`` of each component and the error of the information in it.
    slope : ndarray (P, P)
        ``d log_ratios / dx``.
    log_alpha : float
    residual : ndarray (P,) or None
        How far ``log_ratios`` may be from ``log_alpha`` because the corrections ended there; None is 0.
    missed : ndarray (P,) or None
        What few labels miss of ``log_ratios``, where they were asked.
    """

    x: Host
    log_ratios: Host
    error: Host
    slope: Host
    log_alpha: float
    residual: Host | None = None
    missed: Host | None = None

    @property
    def total_error(self) -> Host:
        """Error of ``log_alpha`` as each component tells it (P,)."""
        return self.error if self.residual is None else self.error + self.residual


@dataclass
class Stage:
    """Part of the curve on which the components ``learned`` are learned; ``new`` are the ones that set the direction.

    The components ``perfect`` among them have reached their end before the others; they stay where they are. Nodes ``ahead``, the
    farthest first, were found before those that the curve needs on the way to them.
    """

    learned: list[int]
    new: list[int]
    nodes: list[Node]
    perfect: list[int] = field(default_factory=list)
    step: float = EXACT.first
    direction: Host | None = None
    ahead: list[Node] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)

    @property
    def moving(self) -> list[int]:
        """The learned components that are not at their end."""
        return [a for a in self.learned if a not in self.perfect]

    def arrays(self) -> tuple[Host, Host, Host]:
        """Distance along the curve (n,), coordinates (n, P), log alpha (n,)."""
        x = np.array([node.x for node in self.nodes])
        s = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(x, axis=0), axis=1))])
        return s, x, np.array([node.log_alpha for node in self.nodes])

    def interpolants(self) -> tuple[Any, Any]:
        """The curve (x and log alpha) as a function of its length: smooth, and a cautious one to compare with."""
        from scipy.interpolate import CubicSpline, PchipInterpolator

        if self.tables.get("size") != len(self.nodes):
            s, x, log_alpha = self.arrays()
            values = np.column_stack([x, log_alpha])
            if len(s) == 2:
                middle = (s[0] + s[1]) / 2
                s, values = np.insert(s, 1, middle), np.insert(values, 1, values.mean(0), axis=0)
            cautious = PchipInterpolator(s, values)
            smooth = CubicSpline(s, values) if len(s) > 3 else cautious
            # Cubics of four neighbours are eight times as far from a smooth curve as the spline is.
            cautious = Neighbours(s, values) if len(s) > 4 else cautious
            self.tables = {"size": len(self.nodes), "both": (smooth, cautious)}
        found: tuple[Any, Any] = self.tables["both"]
        return found


class Neighbours:
    """A curve through nodes ``(s_k, values_k)``: between two of them the cubic through the four that are nearest, at the ends the
    parabola through three.
    """

    def __init__(self, s: Host, values: Host) -> None:
        self.s, self.values = s, values

    def __call__(self, where: float) -> Host:
        """Its values at one place."""
        k = int(np.clip(np.searchsorted(self.s, where), 1, len(self.s) - 1))
        near = slice(max(0, k - 2), k + 2)
        return polynomial(self.s[near], self.values[near], where)


def polynomial(t: Host, values: Host, end: float) -> Host:
    """The polynomial through all points ``(t_k, values_k)``, at ``end``."""
    from scipy.interpolate import krogh_interpolate

    return np.asarray(krogh_interpolate(t, np.asarray(values, dtype=float), end))


def finite_gaps(points: list[tuple[float, Node]], new: int) -> tuple[Host, Host, Host]:
    """Positions between two nodes, gaps of log alpha to that of component ``new``, log alpha: where all are finite."""
    rows = np.array([(where, node.log_alpha - node.log_ratios[new], node.log_alpha) for where, node in points])
    rows = rows[np.isfinite(rows).all(axis=1)]
    return rows[:, 0], rows[:, 1], rows[:, 2]


def change(first: Host, second: Host) -> Host:
    """Difference where both are finite, 0 elsewhere."""
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, np.where(both, second, 0.0) - np.where(both, first, 0.0), 0.0)


def root_of_gaps(positions: Sequence[float], gaps: Sequence[float]) -> float:
    """Root of the parabola through the three points nearest to zero, or of the line through the two that bracket it."""
    s, g = np.asarray(positions), np.asarray(gaps)
    left = max((i for i in range(len(g)) if g[i] <= 0), key=lambda i: g[i], default=int(np.argmin(s)))
    right = min((i for i in range(len(g)) if g[i] > 0), key=lambda i: g[i], default=int(np.argmax(s)))
    line = s[left] - g[left] * (s[right] - s[left]) / (g[right] - g[left]) if g[right] != g[left] else s[left]
    order = np.argsort(np.abs(g))[:3]
    if len(order) == 3 and len(set(g[order])) == 3:
        a, b, c = g[order]
        inverse = (
            s[order[0]] * b * c / ((a - b) * (a - c))
            + s[order[1]] * a * c / ((b - a) * (b - c))
            + s[order[2]] * a * b / ((c - a) * (c - b))
        )
        if min(s[left], s[right]) <= inverse <= max(s[left], s[right]):
            return float(inverse)
    return float(line)
