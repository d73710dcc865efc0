"""Looks up metrics by name and evaluates their theory; lists those in trajectories and in cell keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from smimbench.files import attempt, error_line
from smimbench.interfaces import Metric, ProblemLike
from smimbench.registry.registry import get_registry


class Described(Protocol):
    """Theory at one sample ratio that can be written as JSON: a ``TheoryPoint`` or an ``AlgorithmPrediction``."""

    def document(self) -> dict[str, Any]:
        """Return the theory as JSON, the form that metrics read."""
        ...


def find_metric(name: str, model: str | None = None) -> Metric:
    """Create the metric registered under a name.

    Raises
    ------
    RegistryError
        Unknown name, or a metric that does not work for the model.
    """
    metric: Metric = get_registry().get("metric", name, model).item()
    return metric


def metric_label(name: str) -> str:
    """Label of a metric in tables and figures, or its name if the label cannot be read."""
    label, _ = attempt(lambda: find_metric(name).label)
    return label if isinstance(label, str) else name


def trajectory_metrics(model: str | None = None) -> dict[str, Metric]:
    """Return the metrics measured at every recorded iteration, by name, those shipped with smimbench first."""
    metrics: dict[str, Metric] = {}
    for entry in get_registry().entries("metric"):
        if entry.fits(model) and entry.item.in_trajectory:
            metrics.setdefault(entry.name, entry.item())
    return metrics


def metrics_of_accounts(model: str | None = None) -> list[str]:
    """Names of shipped metrics that compare an algorithm's claimed error with its true error; measured in every run."""
    entries = get_registry().entries("metric")
    return [
        entry.name
        for entry in entries
        if entry.fits(model) and entry.source is None and entry.item.direction == "one"
    ]


def names_in_key(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metric names that are part of a cell's key: third-party metrics and those outside the trajectory.

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
    """Whether a metric got worse; for ``direction = "one"``, whether it moved away from 1."""
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
    """Return the theoretical values of a metric and their errors, one per component or a single one.

    They are None without theory, or if it fails; the reason is then appended to ``complaints``.
    """
    count = components if metric.per_component else 1
    no_values: list[float | None] = [None] * count
    theory = metric.theory
    if theory is None or point is None:
        return no_values, no_values
    numbers, error = attempt(
        lambda: [
            _require_count(values, count)
            for values in theory(problem, point.document())
        ]
    )
    if error is None and len(numbers) == 2:
        return numbers[0], numbers[1]
    if complaints is not None:
        reason = "it must return two lists, values and errors"
        if error is not None:
            reason = error_line(error)
        complaints.append(f"the theory of metric {metric.name!r} failed: {reason}")
    return no_values, no_values


def _require_count(values: Iterable[float | None], count: int) -> list[float | None]:
    numbers = [None if value is None else float(value) for value in values]
    if len(numbers) != count:
        raise ValueError(f"it returned {len(numbers)} values instead of {count}")
    return numbers
