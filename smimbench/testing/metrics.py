"""Checks of metrics: type of the values, invariance under symmetry, best value at the truth, theory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from smimbench.interfaces import Array, Metric, NotMeasured
from smimbench.problem.instance import Instance
from smimbench.registry.metrics import is_worse
from smimbench.testing.context import CheckContext
from smimbench.testing.core import CheckFailed, CheckSkipped, published
from smimbench.theory.information import prior_moments
from smimbench.theory.types import per_component

DIMENSION = 12
"""D of the instances; doubled, the checks cost four times as much for matrices and say the same."""

SYMMETRY_TOLERANCE = 0.05
"""Relative change that a symmetry may make: metrics may integrate by sampling. Doubled, a bias of a tenth goes unseen."""


def _instances(context: CheckContext) -> Iterator[tuple[Instance]]:
    """Instances for every model: one of the first problem, one of the first problem with a symmetry."""
    for model in context.models:
        problems = list(context.problems(model))
        symmetric = [p for p in problems if p.channel.symmetry != "none"]
        for problem in {id(p): p for p in (*problems[:1], *symmetric[:1])}.values():
            yield (problem.instance(1.0, DIMENSION, seed=context.seed),)


metric_check = partial(published, ("metric",), cases=_instances)


def _estimate(instance: Instance, context: CheckContext) -> tuple[Array, Array]:
    """Equal mixture of the teacher and another draw of the prior, with a claimed error between 0 and 1."""
    P = instance.problem.components
    draw = instance.problem.prior.sample(context.rng(1), P, DIMENSION)
    estimate = 0.5 * instance.signal + 0.5 * np.asarray(draw, dtype=float)
    return estimate, 0.3 * np.eye(P)


def _measured(
    metric: Metric, instance: Instance, estimate: Array, V: Array | None
) -> list[float] | None:
    """Values of the metric; None if it gives a reason instead."""
    try:
        return list(metric.measure(instance, estimate, instance.claims(estimate, V)))
    except NotMeasured as reason:
        if not str(reason).strip():
            raise CheckFailed("raises NotMeasured without saying why") from None
        return None


@metric_check(
    "It does not return what tables expect: one finite number, or one per component, that JSON can hold.",
    required=True,
)
def values(context: CheckContext, instance: Instance) -> None:
    """Check number, type and range of the metric's values, with and without a claimed error."""
    count = instance.problem.components if context.item.per_component else 1
    estimate, claim = _estimate(instance, context)
    for V in (None, claim):
        argument = estimate.copy()
        numbers = _measured(context.item, instance, argument, V)
        if not np.array_equal(estimate, argument):
            raise CheckFailed("measure writes to the estimate")
        if numbers is not None and len(numbers) != count:
            raise CheckFailed(
                f"measure returns {len(numbers)} numbers, per_component says {count}"
            )
        try:
            json.dumps(numbers, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckFailed(
                f"measure returns {numbers!r}, which JSON cannot hold: {error}"
            ) from None


def _moved(context: CheckContext) -> Iterator[tuple[Instance, Array]]:
    """Instances whose labels have a symmetry, with the opposite sign or the reverse order of components."""
    symmetric = [
        instance
        for (instance,) in _instances(context)
        if instance.problem.channel.symmetry != "none"
    ]
    if not symmetric:
        raise CheckSkipped("no channel that this metric works with has a symmetry")
    for instance in symmetric:
        identity = np.eye(instance.problem.components)
        permutes = instance.problem.channel.symmetry.startswith("permutations")
        yield instance, identity[::-1] if permutes else -identity


@published(
    ("metric",),
    "It changes when the estimate is moved by a symmetry of the labels, which no data can tell apart: the same estimate "
    "would get two different scores.",
    cases=_moved,
)
def invariance(context: CheckContext, instance: Instance, move: Array) -> None:
    """Check that values do not change under sign change or reordering allowed by the channel's symmetry."""
    estimate, V = _estimate(instance, context)
    score = _measured(context.item, instance, estimate, V)
    moved = np.tensordot(move, estimate, axes=1)
    moved_score = _measured(context.item, instance, moved, move @ V @ move.T)
    if not np.allclose(
        score or np.nan,
        moved_score or np.nan,
        rtol=SYMMETRY_TOLERANCE,
        atol=1e-9,
        equal_nan=True,
    ):
        symmetry = instance.problem.channel.symmetry
        raise CheckFailed(
            f"{score} becomes {moved_score} when the estimate is moved by a symmetry ({symmetry})"
        )


def _scores(context: CheckContext) -> Iterator[tuple[float, float]]:
    """Values of the metric at the truth and at the prior mean."""
    compared = 0
    for (instance,) in _instances(context):
        prior, P = instance.problem.prior, instance.problem.components
        mean = np.asarray(prior.mean(P, DIMENSION), dtype=float)
        V = np.asarray(prior.second_moment(P), dtype=float)
        best = _measured(context.item, instance, instance.signal, 0 * V)
        blind = _measured(context.item, instance, mean, V)
        for pair in zip(best or (), blind or ()):
            if all(map(math.isfinite, pair)):
                compared += 1
                yield pair
    if not compared:
        raise CheckSkipped("the metric has no value at the truth or at the prior mean")


@published(
    ("metric",),
    "The prior mean scores better than the truth: the direction is wrong, or the metric does not measure what it says.",
    cases=_scores,
)
def truth(context: CheckContext, best: float, blind: float) -> None:
    """Check that the value at the truth is not worse than that at the prior mean."""
    gap = abs(best - blind)
    if is_worse(context.item, blind, best) and gap > SYMMETRY_TOLERANCE * abs(blind):
        raise CheckFailed(
            f"{best:.4g} at the truth is worse than {blind:.4g} at the prior mean ({context.item.direction} is better)"
        )


@metric_check(
    "What it says of theory does not fit what it measures: a table would compare different things, or break."
)
def theory(context: CheckContext, instance: Instance) -> None:
    """Check that theory gives as many finite values and errors as are measured."""
    if context.item.theory is None:
        raise CheckSkipped("the metric has no theory")
    problem, P = instance.problem, instance.problem.components
    second, low = prior_moments(problem)
    V = np.diagonal(second - low) / 2
    point = {
        "alpha": 1.0,
        "mse": per_component(V),
        "mse_error": per_component(0 * V),
        "overlap": (second - np.diag(V)).tolist(),
        "branch": "unique",
        "method": "made up",
    }
    # As it is, before the engine leaves out what is wrong.
    numbers, errors = context.item.theory(problem, point)
    count = P if context.item.per_component else 1
    if len(numbers) != count or len(errors) != count:
        raise CheckFailed(
            f"theory returns {len(numbers)} values and {len(errors)} errors instead of {count} each"
        )
    for number, error in zip(numbers, errors):
        if number is None:
            continue
        if not math.isfinite(number) or not (error is None or error >= 0):
            raise CheckFailed(f"theory says {number} with the error {error}")
