r"""The Bayes-optimal error at the size that was run: its limit, corrected by ``b / D``.

At finite D the best that is possible differs from the limit, by 10% at d = 80, and no algorithm can do better. The coefficient
b is known in closed form, or measured: by the runs, on the same grid, of a shipped algorithm that is Bayes-optimal as D grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.numerics.size_laws import pooled_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.interfaces import Host

LIMIT = "limit"
"""Where the optimum is from if nothing is known but its limit."""


class Optimum(NamedTuple):
    """Bayes-optimal errors (P,) at one size with their standard errors, where they are from, and those of single instances."""

    value: Host
    error: Host
    source: str
    runs: Mapping[str, Host]

    def goal(self, instance: str) -> Host:
        """What an algorithm can reach on an instance, which may be harder than others."""
        return np.maximum(self.value, self.runs.get(instance, 0.0))


class Reference(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one size: limit (P,), errors by instance, coefficients of 1/D or None."""

    dimension: int
    algorithm: str
    limit: Host
    runs: Mapping[str, Host]
    coefficient: Sequence[float] | None


def limit_of(point: JsonObject) -> Optimum:
    """The optimum where nothing is known of finite size."""
    value, error = (np.atleast_1d(np.asarray(point[key], dtype=float)) for key in ("mse", "mse_error"))
    return Optimum(value, error, LIMIT, {})


def optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """The optimum at every size of one problem and sample ratio, with a coefficient fitted to all of them together."""
    known = [one for one in references if one.coefficient is not None]
    if known:
        found = {}
        for one in known:
            first = np.asarray(one.coefficient, dtype=float) / one.dimension
            found[one.dimension] = Optimum(one.limit + first, _second(first, one.limit), "closed form", one.runs)
        return found
    measured = [one for one in references if len(one.runs) > 1 and (one.limit > 1e-12).all()]
    if not measured:
        return {}
    sizes = np.array([one.dimension for one in measured], dtype=float)
    counts, values = [len(one.runs) for one in measured], [np.array([*one.runs.values()]) for one in measured]
    coefficients, errors = [], []
    for p in range(len(measured[0].limit)):
        excess = np.array([value[:, p].mean() - one.limit[p] for value, one in zip(values, measured)])
        scatter = pooled_errors(sizes, [value[:, p].std(ddof=1) for value in values], counts)[0]
        scatter = np.maximum(scatter, [1e-6 * one.limit[p] for one in measured])
        weights = (sizes * scatter) ** -2.0
        b = float(weights @ (excess * sizes) / weights.sum())
        lack = np.sum(((excess - b / sizes) / scatter) ** 2) / max(len(sizes) - 1, 1)
        coefficients.append(b)
        errors.append(weights.sum() ** -0.5 * max(1.0, float(lack) ** 0.5))
    found = {}
    for one in measured:
        first, error = np.array(coefficients) / one.dimension, np.array(errors) / one.dimension
        rest = _second(first, one.limit) if len(measured) > 1 else 0.0  # at a single size nothing is extrapolated
        value = np.maximum(one.limit + first, 1e-3 * one.limit)
        found[one.dimension] = Optimum(value, np.hypot(error, rest), f"runs of {one.algorithm}", one.runs)
    return found


def _second(first: Host, limit: Host) -> Host:
    """The order of the correction in 1/D^2."""
    return np.asarray(first**2 / np.where(limit > 0, limit, 1.0))
