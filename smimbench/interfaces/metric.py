"""The contract of a metric (a number that measures the quality of an estimate), and an algorithm's claims on its estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from smimbench.interfaces.basics import Array
from smimbench.interfaces.item import Item

DIRECTIONS = ("lower", "higher", "one")
"""Which values of a metric are better: the values of ``direction``; ``"one"`` stands for closer to 1."""


class NotMeasured(Exception):
    """A metric has no value for this estimate; the message says why, and tables show it."""


@dataclass
class Claims:
    """An estimate with the error that the algorithm claims for it, and what the engine knows about it.

    Attributes
    ----------
    V : array (P, P) or None
        Error that the algorithm claims, components in the order of its estimate; None if it claims none.
    teacher : array
        The signal, on the device and in the dtype of the estimate.
    aligned : array
        The estimate after the symmetry operation that brings it closest to the teacher.
    aligned_V : ndarray (P, P) or None
        ``V`` after the same operation, on the host.
    remarks : list of str
        A metric appends what the user should know; it is stored with the record as a warning.
    memory : dict
        For what several metrics need of one estimate, so that it is computed once.
    """

    V: Array | None
    teacher: Array
    aligned: Array
    aligned_V: Array | None = None
    remarks: list[str] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)


class Metric(Item):
    """A number, or one number per component, that says how good an estimate is.

    A metric is measured once, on the final estimate and outside the clock, in the cells of suites that list it
    in ``run.metrics``; its name is part of the key of these cells.
    """

    _required = ("label", "unit", "direction", "per_component", "measure")

    label: ClassVar[str]
    """Its name in tables and figures."""
    unit: ClassVar[str]
    """What a value of 1 means, in a few words."""
    direction: ClassVar[str]
    """``lower``, ``higher`` or ``one`` (closer to 1) is better."""
    per_component: ClassVar[bool]
    """Whether ``measure`` returns one number for every component."""

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Values of the metric: P of them if ``per_component``, otherwise one; NaN for a component that has none.

        Parameters
        ----------
        instance : smimbench.problem.Instance
            Knows the problem and the teacher.
        estimate : array
            Signal-shaped, as the algorithm left it.
        claims : Claims

        Raises
        ------
        NotMeasured
            If there is no value; the message says why.
        """
        raise NotImplementedError

    in_trajectory: ClassVar[bool] = False
    """Measured at every recorded iteration of every run, cheaply and on the device of the estimate, and no part of a key. Without
    it: measured once, on the final estimate, in suites that list it."""

    theory: Callable[[Any, dict[str, Any]], tuple[list[Any], list[Any]]] | None = None
    """``theory(problem, point)``: predicted values and their errors, two lists as long as that of ``measure``, None where theory
    says nothing. ``point`` is one of the JSON of ``smimbench theory``. Without it: rows and figures show no theory for it."""
