"""The contract of a metric, a number that measures the quality of an estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from smimbench.interfaces.item import Array, Item

DIRECTIONS = ("lower", "higher", "one")
"""Values of ``Metric.direction``: which values of a metric are better; ``"one"`` means closer to 1."""


class NotMeasured(Exception):
    """Raised by a metric that has no value for an estimate; tables show the reason."""


@dataclass
class Claims:
    """Error ``V`` (P, P) that an algorithm claims for its estimate, with the teacher, the estimate aligned with it, and the
    error ``aligned_V`` after alignment; ``remarks`` become warnings of the run, ``memory`` is a cache for several metrics.

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
        Cache for quantities of one estimate that several metrics need.
    """

    V: Array | None
    teacher: Array
    aligned: Array
    aligned_V: Array | None = None
    remarks: list[str] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)


class Metric(Item):
    """Metric that measures how good an estimate is, by one number or one number per component. ``unit`` says what the value
    1 means, ``direction`` which values are better, ``bounded`` whether no estimate beats the posterior mean, ``theory`` what
    it predicts, ``in_trajectory`` whether it is measured at every recorded iteration.

    A metric is measured once, on the final estimate and outside the clock, in the cells of suites that list it
    in ``run.metrics``; its name is part of the key of these cells.
    """

    _required_members = ("label", "unit", "direction", "per_component", "measure")

    label: ClassVar[str]
    """Label of the metric in tables and figures."""
    unit: ClassVar[str]
    """Meaning of the value 1, in a few words."""
    direction: ClassVar[str]
    """Which values are better: ``lower``, ``higher`` or ``one`` (closer to 1)."""
    per_component: ClassVar[bool]
    """Whether ``measure`` returns one number for every component."""

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Measure an estimate on an instance (the problem's draw): P values if ``per_component``, otherwise one; NaN for a
        component without a value. ``claims`` holds the teacher, the aligned estimate and the claimed error.

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

    bounded: Callable[[Any], bool] | None = None
    """``bounded(model)``: whether no estimate has a better value than the posterior mean, on average in large dimensions: figures
    call its theory Bayes-optimal. Without it: they call it predicted."""

    theory: Callable[[Any, dict[str, Any]], tuple[list[Any], list[Any]]] | None = None
    """``theory(problem, point)``: predicted values and their errors, two lists as long as that of ``measure``, None where theory
    says nothing. ``point`` is one of the JSON of ``smimbench theory``. Without it: rows and figures show no theory for it."""
