"""What a curve of fixed points is made of: nodes, stages of nodes, and how finely they are set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smimbench.theory.types import Host

__all__ = ["EXACT", "SAMPLED", "Accuracy", "Node", "Stage"]

FIRST_STEP = 0.04
"""First step of a stage, in coordinates of Qhat; doubled, one or two nodes fewer at its beginning."""


@dataclass(frozen=True)
class Accuracy:
    """How finely and how far a curve of fixed points is followed. Lengths are in coordinates of Qhat (logarithms).

    Attributes
    ----------
    difference : float
        Length of finite differences.
    shortest, longest : float
        Bounds of a step from node to node.
    mismatch : float
        Wanted difference of log alpha at a new node from its extrapolation; it sets the step. Doubled, steps grow by 1.4.
    correction : float
        Largest correction across the curve that is not evaluated again, but counted as an error.
    most_corrections : int
        Evaluations for one node before its step is halved.
    gap : float
        Largest distance from a bifurcation, in log alpha.
    highest : float
        Qhat above which a component counts as recovered.
    smallest_error : float
        The curve ends where all errors are below this share of the second moment and zero is stable.
    largest_ratio : float
        The curve ends at this alpha.
    most_nodes : int
    """

    difference: float = 1e-3
    shortest: float = 2e-3
    longest: float = 1.5
    mismatch: float = 5e-4
    correction: float = 1e-6
    most_corrections: int = 6
    gap: float = 1e-8
    highest: float = 1e8
    smallest_error: float = 1e-4
    largest_ratio: float = 1e3
    most_nodes: int = 200


EXACT = Accuracy()
SAMPLED = Accuracy(difference=0.1, shortest=0.02, mismatch=1e-2, correction=2e-3, gap=2e-4, highest=1e6)
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
    """

    x: Host
    log_ratios: Host
    error: Host
    slope: Host
    log_alpha: float
    residual: Host | None = None

    @property
    def total_error(self) -> Host:
        """Error of ``log_alpha`` as each component tells it (P,)."""
        return self.error if self.residual is None else self.error + self.residual


@dataclass
class Stage:
    """Part of the curve on which the components ``learned`` are learned; ``new`` are the ones that set the direction.

    The components ``perfect`` among them have reached their end before the others; they stay where they are.
    """

    learned: list[int]
    new: list[int]
    nodes: list[Node]
    perfect: list[int] = field(default_factory=list)
    step: float = FIRST_STEP
    direction: Host | None = None
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
            self.tables = {"size": len(self.nodes), "both": (smooth, cautious)}
        found: tuple[Any, Any] = self.tables["both"]
        return found
