r"""The Bayes-optimal error at the dimension that was run: its limit, corrected by ``b / D``.

At finite D the best that is possible differs from the limit, by 10% at d = 80, and no algorithm can do better. The coefficient
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
"""Where the optimum is from if nothing is known but its limit."""


class Optimum(NamedTuple):
    """Bayes-optimal errors (P,) at one size with their standard errors, where they are from, and those of single instances."""

    value: Host
    error: Host
    source: str
    runs: Mapping[str, Host]

    def goal(self, instance: str) -> Host:
        """Error that an algorithm can reach on an instance, which may be harder than others."""
        return np.maximum(self.value, self.runs.get(instance, 0.0))


class Reference(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one size: limit (P,), errors by instance, coefficients of 1/D or None."""

    dimension: int
    algorithm: str
    limit: Host
    runs: Mapping[str, Host]
    coefficient: Sequence[float] | None


def limit_of(point: TheoryPoint) -> Optimum:
    """The optimum in the infinite-D limit, where no finite-size correction is known."""
    return Optimum(point.mse, point.mse_error, LIMIT, {})


def optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """The optimum at every dimension of one problem and sample ratio.

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
    """The optimum at every dimension from the runs of a Bayes-optimal algorithm."""
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
