"""Lookup of metrics by name, with their role in runs and cell keys, their theory values and their direction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from smimbench.files import attempt, error_line
from smimbench.interfaces import Metric, ProblemLike
from smimbench.registry.registry import get_registry


class Described(Protocol):
    """A point of theory that can be written as JSON: a ``TheoryPoint`` or an ``AlgorithmPrediction``."""

    def document(self) -> dict[str, Any]:
        """The point as JSON, which metrics read."""
        ...


def find_metric(name: str, model: str | None = None) -> Metric:
    """Find the metric of this name.

    Raises
    ------
    RegistryError
        Unknown name, or a metric that does not work for the model.
    """
    metric: Metric = get_registry().get("metric", name, model).item()
    return metric


def metric_label(name: str) -> str:
    """Label of a metric in tables and figures; its name where the label cannot be read."""
    label, _ = attempt(lambda: find_metric(name).label)
    return label if isinstance(label, str) else name


def trajectory_metrics(model: str | None = None) -> dict[str, Metric]:
    """Metrics that are measured at every recorded iteration, by name, those that ship first."""
    metrics: dict[str, Metric] = {}
    for entry in get_registry().entries("metric"):
        if entry.fits(model) and entry.item.in_trajectory:
            metrics.setdefault(entry.name, entry.item())
    return metrics


def metrics_of_accounts(model: str | None = None) -> list[str]:
    """Shipped metrics that test an algorithm's own error estimate; measured in every run and not part of a cell's key."""
    entries = get_registry().entries("metric")
    return [
        entry.name
        for entry in entries
        if entry.fits(model) and entry.source is None and entry.item.direction == "one"
    ]


def names_in_key(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names of metrics that count in a cell's key: third-party ones, and those not in every trajectory.

    A version above 1 is written ``name@version``, one of another package ``name@version.code`` with a hash of its code.
    """
    names_with_version = []
    for name in dict.fromkeys(names):
        entry = get_registry().get("metric", name)
        if entry.source is not None:
            names_with_version.append(f"{name}@{entry.item.version}.{entry.source}")
        elif not entry.item.in_trajectory:
            version = entry.item.version
            names_with_version.append(name if version == 1 else f"{name}@{version}")
    return tuple(sorted(names_with_version))


def is_worse(metric: Metric, previous: float, score: float) -> bool:
    """Whether a metric's change is for the worse; for ``direction = "one"``, further away from 1."""
    if metric.direction == "one":
        return abs(score - 1) > abs(previous - 1)
    return score < previous if metric.direction == "higher" else score > previous


def theory_of(
    metric: Metric,
    problem: ProblemLike,
    point: Described | None,
    components: int,
    complaints: list[str] | None = None,
) -> tuple[list[float | None], list[float | None]]:
    """Theoretical values of a metric and their errors, one per component or a single one.

    None without theory, or where it fails: its ``complaints`` then say how.
    """
    count = components if metric.per_component else 1
    nothing: list[float | None] = [None] * count
    theory = metric.theory
    if theory is None or point is None:
        return nothing, nothing
    numbers, error = attempt(
        lambda: [
            _numbers(values, count) for values in theory(problem, point.document())
        ]
    )
    if error is None and len(numbers) == 2:
        return numbers[0], numbers[1]
    if complaints is not None:
        reason = "it must give values and errors"
        if error is not None:
            reason = error_line(error)
        complaints.append(f"the theory of metric {metric.name!r} failed: {reason}")
    return nothing, nothing


def _numbers(values: Iterable[float | None], count: int) -> list[float | None]:
    numbers = [None if value is None else float(value) for value in values]
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} values in place of {count}")
    return numbers
