"""Bayes-optimal error at the dimension of the runs: in closed form, or fitted to runs of a Bayes-optimal algorithm.

At finite D the smallest possible error differs from the limit, by 10% at d = 80. The coefficient of 1 / D is known in closed
form, or measured from runs, on the same grid, of a shipped algorithm that is Bayes-optimal as D grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.report.prediction import FINITE
from smimbench.report.row import FITTED, LIMIT
from smimbench.suite.cells import ProblemPlan
from smimbench.theory.types import TheoryPoint


class Optimum(NamedTuple):
    """Bayes-optimal errors ``value`` (P,) at one dimension with standard errors ``error`` (P,), the source they are from, and
    the errors (P,) on single instances, by instance.

    ``is_mean_of_runs``: they are no more than the mean over the runs of one algorithm, whose ratio to them is 1.
    """

    value: Host
    error: Host
    source: str
    instance_errors: Mapping[str, Host]
    is_mean_of_runs: bool = False

    def reachable_errors(self, instance: str) -> Host:
        """Errors (P,) that an algorithm can reach on an instance: the mean optimum, or more if the instance is harder."""
        return np.maximum(self.value, self.instance_errors.get(instance, 0.0))


class OptimalRuns(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one dimension: theory's error ``limit`` (P,) at infinite D, the errors (P,) of
    each instance, and, if known in closed form, the coefficients (P,) of the correction of order 1/D.
    """

    dimension: int
    algorithm: str
    limit: Host
    instance_errors: Mapping[str, Host]
    coefficient: Sequence[float] | None


def optimum_at_limit(point: TheoryPoint) -> Optimum:
    """Optimum without a finite-size correction: the error at infinite D of a ``point`` (fixed point of the theory)."""
    return Optimum(point.mse, point.mse_error, LIMIT, {})


def optima_by_dimension(references: Sequence[OptimalRuns]) -> dict[int, Optimum]:
    """Compute the Bayes-optimal error at every dimension for one problem and sample ratio, from the runs ``references`` of a
    Bayes-optimal algorithm (one entry per dimension): in closed form where the coefficient of 1/D is known, otherwise fitted.

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
                limit + excess, error, "closed form", reference.instance_errors
            )
    return closed_form or _fitted_optima(
        [
            reference
            for reference in references
            if len(reference.instance_errors) > 1 and (reference.limit > 1e-12).all()
        ]
    )


def _fitted_optima(references: Sequence[OptimalRuns]) -> dict[int, Optimum]:
    """Fit the Bayes-optimal error at every dimension to the runs ``references`` of a Bayes-optimal algorithm (one entry per
    dimension). The fitted ``excess`` is the mean error over runs minus its limit at infinite D, by dimension; ``sems`` are
    its standard errors.
    """
    if not references:
        return {}
    dimensions = np.array(
        [reference.dimension for reference in references], dtype=float
    )
    run_counts = [len(reference.instance_errors) for reference in references]
    limits = np.array([reference.limit for reference in references]).T
    optimal_errors, errors = np.empty_like(limits), np.empty_like(limits)
    is_mean_of_runs = len(references) == 1
    for component, limit in enumerate(limits):
        run_errors = [
            np.array([*reference.instance_errors.values()])[:, component]
            for reference in references
        ]
        excess = (
            np.array([dimension_errors.mean() for dimension_errors in run_errors])
            - limit
        )
        sems, _ = pooled_errors(
            dimensions,
            [dimension_errors.std(ddof=1) for dimension_errors in run_errors],
            run_counts,
        )
        sems = np.maximum(sems, 1e-6 * limit)
        fit = fit_sizes(
            dimensions, excess, sems, (0.0, np.inf, SECOND / 3 * limit.max())
        )
        # Runs further above did not reach the optimum; taken as it, their ratio to it would always be 1.
        largest_plausible = limit * (
            1 + 2 * (FINITE["lower"] / dimensions + SECOND / dimensions**2)
        )
        fitted_errors = limit + fit.laws @ fit.coefficients
        is_mean_of_runs &= bool((fitted_errors <= largest_plausible).all())
        optimal_errors[component] = np.clip(
            fitted_errors, 1e-3 * limit, largest_plausible
        )
        errors[component] = np.linalg.norm(fit.laws @ fit.errors, axis=1)
    source = f"{FITTED}{references[0].algorithm}"
    return {
        reference.dimension: Optimum(
            optimal_errors[:, size_index],
            errors[:, size_index],
            source,
            reference.instance_errors,
            is_mean_of_runs,
        )
        for size_index, reference in enumerate(references)
    }


Optima = Mapping[tuple[str, float, int], Optimum]
"""Bayes-optimal errors at finite dimension, by problem, nominal sample ratio and dimension."""


def stored_optima(plan: ProblemPlan) -> Optima:
    """Return the Bayes-optimal errors at finite dimension that the suite holds for a problem."""
    return {
        (plan.label, alpha, table.dimension): Optimum(
            np.array(mse), np.array(error), table.source, {}
        )
        for table in plan.optima
        for alpha, mse, error in zip(table.alpha, table.mse, table.error)
    }
