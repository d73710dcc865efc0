"""Checks of metrics: what they return, that no symmetry changes them, and that the truth is as good as it gets."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import DIRECTIONS, NotMeasured, offers
from smimbench.registry.metrics import is_worse, theory_of
from smimbench.testing.core import CheckFailed, CheckSkipped, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.problem.instance import Instance
    from smimbench.testing.context import CheckContext

DIMENSION = 12
"""D of the instances; doubled, the checks cost four times as much for matrices and say the same."""

SYMMETRY_TOLERANCE = 0.05
"""Relative change that a symmetry may make: metrics may integrate by sampling. Doubled, a bias of a tenth goes unseen."""

CLAIMED = 0.3
"""Error that the made-up estimates claim for every component. Any number between 0 and 1 does."""


def _instances(context: CheckContext) -> Iterator[Instance]:
    """For every model one instance of the first problem, and one of the first whose labels have a symmetry."""
    for model in context.models:
        problems = list(context.problems(model))
        symmetric = [p for p in problems if p.channel.symmetry != "none"]
        for problem in {id(p): p for p in (*problems[:1], *symmetric[:1])}.values():
            yield problem.instance(1.0, DIMENSION, seed=context.seed)


def _estimate(instance: Instance, context: CheckContext) -> Array:
    """The teacher and another draw of the prior, in equal parts."""
    other = instance.problem.prior.sample(context.rng(1), instance.problem.components, DIMENSION)
    return 0.5 * instance.signal + 0.5 * np.asarray(other, dtype=float)


def _measured(metric: Any, instance: Instance, estimate: Array, V: Array | None) -> list[float] | None:
    """What the metric says; None if it gives a reason instead."""
    try:
        return list(metric.measure(instance, estimate, instance.claims(estimate, V)))
    except NotMeasured as reason:
        if not str(reason).strip():
            raise CheckFailed("raises NotMeasured without saying why") from None
        return None


def _claim(instance: Instance) -> Array:
    return CLAIMED * np.eye(instance.problem.components)


@published(
    "metric",
    id="values",
    meaning="It does not return what tables expect: one finite number, or one per component, that JSON can hold.",
)
def values(context: CheckContext) -> None:
    """Length, type and range of the values, with and without a claimed error."""
    metric = context.item
    if metric.direction not in DIRECTIONS:
        raise CheckFailed(f"direction must be one of {', '.join(DIRECTIONS)}, got {metric.direction!r}")
    for instance in _instances(context):
        P = instance.problem.components
        for V in (None, _claim(instance)):
            estimate = _estimate(instance, context)
            before = estimate.copy()
            found = _measured(metric, instance, estimate, V)
            if not np.array_equal(estimate, before):
                raise CheckFailed("measure writes to the estimate")
            if found is None:
                continue
            wanted = P if metric.per_component else 1
            if len(found) != wanted:
                raise CheckFailed(f"measure returns {len(found)} numbers, per_component says {wanted}")
            try:
                json.dumps(found, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise CheckFailed(f"measure returns {found!r}, which JSON cannot hold: {error}") from None


@published(
    "metric",
    id="invariance",
    meaning="It changes when the estimate is moved by a symmetry of the labels, which no data can tell apart: the same estimate "
    "would get two different scores.",
)
def invariance(context: CheckContext) -> None:
    """The opposite sign, or the components in reverse order, wherever the channel's symmetry allows it."""
    tried = 0
    for instance in _instances(context):
        P, symmetry = instance.problem.components, instance.problem.channel.symmetry
        move = np.eye(P)
        if symmetry in ("signs", "common-sign", "signed-permutations", "rotations"):
            move = -move
        elif symmetry.startswith("permutations"):
            move = move[::-1]
        else:
            continue
        tried += 1
        estimate, V = _estimate(instance, context), _claim(instance)
        moved = np.tensordot(move, estimate, axes=1)
        one = _measured(context.item, instance, estimate, V)
        other = _measured(context.item, instance, moved, move @ V @ move.T)
        if (one is None) != (other is None) or (
            one is not None and not np.allclose(one, other or [], rtol=SYMMETRY_TOLERANCE, atol=1e-9)
        ):
            raise CheckFailed(f"{one} becomes {other} when the estimate is moved by a symmetry ({symmetry})")
    if not tried:
        raise CheckSkipped("no channel that fits has a symmetry")


@published(
    "metric",
    id="truth",
    meaning="The prior mean scores better than the truth: the direction is wrong, or the metric does not measure what it says.",
)
def truth(context: CheckContext) -> None:
    """The value at the truth is not worse than at the prior mean, which knows nothing."""
    metric, compared = context.item, 0
    for instance in _instances(context):
        mean = np.asarray(instance.problem.prior.mean(instance.problem.components, DIMENSION), dtype=float)
        V = np.asarray(instance.problem.prior.second_moment(instance.problem.components), dtype=float)
        best = _measured(metric, instance, instance.signal, 0 * V)
        blind = _measured(metric, instance, mean, V)
        for one, other in zip(best or (), blind or ()):
            if not (math.isfinite(one) and math.isfinite(other)):
                continue
            compared += 1
            slack = SYMMETRY_TOLERANCE * abs(other)
            if is_worse(metric, other, one) and abs(one - other) > slack:
                raise CheckFailed(
                    f"{one:.4g} at the truth is worse than {other:.4g} at the prior mean ({metric.direction} is better)"
                )
    if not compared:
        raise CheckSkipped("it has no value at the truth or at the prior mean")


@published(
    "metric",
    id="theory",
    meaning="What it says of theory does not fit what it measures: a table would compare different things, or break.",
)
def theory(context: CheckContext) -> None:
    """As many predicted values and errors as measured ones, none of them infinite."""
    if not offers(context.item, "theory"):
        raise CheckSkipped("it has no theory")
    for instance in _instances(context):
        problem = instance.problem
        P = problem.components
        second = np.asarray(problem.prior.second_moment(P), dtype=float)
        low = np.asarray(problem.prior.mean_overlap(P), dtype=float)
        V = np.diagonal(second - low) / 2
        point = {
            "alpha": 1.0,
            "mse": float(V[0]) if P == 1 else V.tolist(),
            "mse_error": 0.0 if P == 1 else [0.0] * P,
            "overlap": (second - np.diag(V)).tolist(),
            "branch": "unique",
            "method": "made up",
        }
        found, errors = theory_of(context.item, problem, point, P)
        wanted = P if context.item.per_component else 1
        if len(found) != wanted or len(errors) != wanted:
            raise CheckFailed(
                f"theory returns {len(found)} values and {len(errors)} errors instead of {wanted} each"
            )
        for value, error in zip(found, errors):
            if value is not None and not (math.isfinite(value) and (error is None or error >= 0)):
                raise CheckFailed(f"theory says {value} with the error {error}")
