r"""Bayes-optimal error at finite dimension: the infinite-D limit plus a correction ``b / D``.

At finite D the smallest possible error differs from the limit, by 10% at d = 80. The coefficient
b is known in closed form, or measured from runs, on the same grid, of a shipped algorithm that is Bayes-optimal as D grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.report.prediction import FINITE
from smimbench.theory.types import TheoryPoint

LIMIT = "limit"
"""Source of an optimum of which only the infinite-D limit is known."""


class Optimum(NamedTuple):
    """Bayes-optimal errors (P,) at one dimension with standard errors (P,), their source, and the errors on single instances."""

    value: Host
    error: Host
    source: str
    runs: Mapping[str, Host]

    def goal(self, instance: str) -> Host:
        """Errors (P,) that an algorithm can reach on an instance: the mean optimum, or more if the instance is harder."""
        return np.maximum(self.value, self.runs.get(instance, 0.0))


class Reference(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one dimension: limit (P,), errors by instance, coefficients of 1/D if known."""

    dimension: int
    algorithm: str
    limit: Host
    runs: Mapping[str, Host]
    coefficient: Sequence[float] | None


def limit_of(point: TheoryPoint) -> Optimum:
    """Optimum without a finite-size correction: the infinite-D limit at a theory point."""
    return Optimum(point.mse, point.mse_error, LIMIT, {})


def optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """Compute the optimum at every dimension for one problem and sample ratio.

    Without a closed form, ``limit + b / D + c / D^2`` is fitted to all dimensions together. Relative to the limit, c is a normal
    variable around 0 with a third of ``SECOND`` as its standard deviation. What is twice as far above the limit as finite size
    explains (``FINITE`` and ``SECOND``) is cut off there.
    """
    closed_form = {}
    for reference in references:
        limit, dimension = reference.limit, reference.dimension
        if reference.coefficient is not None:
            excess = np.asarray(reference.coefficient, dtype=float) / dimension
            error = excess**2 / np.where(limit > 0, limit, 1.0)
            closed_form[dimension] = Optimum(
                limit + excess, error, "closed form", reference.runs
            )
    return closed_form or _fitted_optima(
        [r for r in references if len(r.runs) > 1 and (r.limit > 1e-12).all()]
    )


def _fitted_optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """Fit the optimum at every dimension to the runs of a Bayes-optimal algorithm."""
    if not references:
        return {}
    sizes = np.array([r.dimension for r in references], dtype=float)
    counts = [len(r.runs) for r in references]
    limits = np.array([r.limit for r in references]).T
    optima, errors = np.empty_like(limits), np.empty_like(limits)
    for p, limit in enumerate(limits):
        runs = [np.array([*r.runs.values()])[:, p] for r in references]
        excess = np.array([run.mean() for run in runs]) - limit
        sems, _ = pooled_errors(sizes, [run.std(ddof=1) for run in runs], counts)
        sems = np.maximum(sems, 1e-6 * limit)
        fit = fit_sizes(sizes, excess, sems, (0.0, np.inf, SECOND / 3 * limit.max()))
        # Runs further above did not reach the optimum; taken as it, their ratio to it would always be 1.
        highest = limit * (1 + 2 * (FINITE["lower"] / sizes + SECOND / sizes**2))
        optima[p] = np.clip(limit + fit.laws @ fit.coefficients, 1e-3 * limit, highest)
        errors[p] = np.linalg.norm(fit.laws @ fit.errors, axis=1)
    source = f"runs of {references[0].algorithm}"
    return {
        reference.dimension: Optimum(optima[:, k], errors[:, k], source, reference.runs)
        for k, reference in enumerate(references)
    }
