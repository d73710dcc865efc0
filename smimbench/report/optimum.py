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
    known = [one for one in references if one.coefficient is not None]
    if known:
        found = {}
        for one in known:
            first = np.asarray(one.coefficient, dtype=float) / one.dimension
            second = first**2 / np.where(one.limit > 0, one.limit, 1.0)
            found[one.dimension] = Optimum(
                one.limit + first, second, "closed form", one.runs
            )
        return found
    measured = [
        one for one in references if len(one.runs) > 1 and (one.limit > 1e-12).all()
    ]
    if not measured:
        return {}
    sizes = np.array([one.dimension for one in measured], dtype=float)
    counts, values = (
        [len(one.runs) for one in measured],
        [np.array([*one.runs.values()]) for one in measured],
    )
    fitted = []
    for p in range(len(measured[0].limit)):
        limits = np.array([one.limit[p] for one in measured])
        excess = np.array([value[:, p].mean() for value in values]) - limits
        errors = pooled_errors(
            sizes, [value[:, p].std(ddof=1) for value in values], counts
        )[0]
        errors = np.maximum(errors, 1e-6 * limits)
        fit = fit_sizes(sizes, excess, errors, (0.0, np.inf, SECOND / 3 * limits.max()))
        # Runs further above did not reach the optimum; taken as it, their ratio to it would always be 1.
        most = limits * (1 + 2 * (FINITE["lower"] / sizes + SECOND / sizes**2))
        value = np.clip(limits + fit.laws @ fit.coefficients, 1e-3 * limits, most)
        fitted.append((value, np.linalg.norm(fit.laws @ fit.errors, axis=1)))
    found, source = {}, f"runs of {measured[0].algorithm}"
    for k, one in enumerate(measured):
        value, error = (np.array([part[k] for part in parts]) for parts in zip(*fitted))
        found[one.dimension] = Optimum(value, error, source, one.runs)
    return found
