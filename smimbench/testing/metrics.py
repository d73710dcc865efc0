"""Checks of metrics: type of the values, invariance under symmetry, value at the teacher, theory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from smimbench.interfaces import Array, Metric, NotMeasured
from smimbench.interfaces.checks import short_repr
from smimbench.interfaces.problem import prior_moments
from smimbench.problem.instance import Instance
from smimbench.registry.registry import is_worse
from smimbench.testing.context import CheckContext
from smimbench.testing.core import CheckFailed, CheckSkipped, published
from smimbench.theory.types import per_component

DIMENSION = 12
"""D of the instances; doubled, the checks cost four times as much for matrices and say the same."""

SYMMETRY_TOLERANCE = 0.05
"""Relative change that a symmetry may make: metrics may integrate by sampling. Doubled, a bias of a tenth goes unseen."""


def _instances(context: CheckContext) -> Iterator[tuple[Instance]]:
    """Yield test cases (tuples of one): for each model one random instance of the first problem and one of the first problem
    whose labels have a symmetry. ``context`` holds the metric under test.
    """
    for model in context.models:
        problems = list(context.problems(model))
        symmetric_problems = [
            problem for problem in problems if problem.channel.symmetry != "none"
        ]
        for problem in {
            id(problem): problem for problem in (*problems[:1], *symmetric_problems[:1])
        }.values():
            yield (problem.instance(1.0, DIMENSION, seed=context.seed),)


metric_check = partial(published, ("metric",), cases=_instances)


def _partial_estimate(instance: Instance, context: CheckContext) -> tuple[Array, Array]:
    """Return an estimate halfway between the teacher (the instance's signal) and another draw of the prior, with random
    numbers of the check's ``context``, and a claimed error (P, P).
    """
    P = instance.problem.components
    other_signal = instance.problem.prior.sample(context.rng(1), P, DIMENSION)
    estimate = 0.5 * instance.signal + 0.5 * np.asarray(other_signal, dtype=float)
    return estimate, 0.3 * np.eye(P)


def _measure(
    metric: Metric, instance: Instance, estimate: Array, V: Array | None
) -> list[float] | None:
    """Measure a metric of an estimate on an instance, with claimed error V (P, P) or None, and return its values; None if it
    raises NotMeasured with a reason.
    """
    try:
        values = metric.measure(instance, estimate, instance.claims(estimate, V))
    except NotMeasured as reason:
        if not str(reason).strip():
            raise CheckFailed(
                "the metric raises NotMeasured without a reason; say why it has no value"
            ) from None
        return None
    if not isinstance(values, Iterable):
        raise CheckFailed(
            f"measure must return a list of numbers, got {short_repr(values)}"
        )
    return list(values)


@metric_check(
    "The metric does not return what tables need: one finite number, or one per component, that JSON can hold.",
    required=True,
)
def values(context: CheckContext, instance: Instance) -> None:
    """Check that the metric in ``context`` returns the right number of finite values for an estimate on an instance, with
    and without a claimed error V.
    """
    expected_count = instance.problem.components if context.item.per_component else 1
    estimate, claimed_error = _partial_estimate(instance, context)
    for V in (None, claimed_error):
        estimate_copy = estimate.copy()
        metric_values = _measure(context.item, instance, estimate_copy, V)
        if not np.array_equal(estimate, estimate_copy):
            raise CheckFailed("measure writes into the estimate; work on a copy")
        if metric_values is not None and len(metric_values) != expected_count:
            raise CheckFailed(
                f"measure returns {len(metric_values)} numbers, but per_component asks for {expected_count}"
            )
        try:
            json.dumps(metric_values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckFailed(
                f"measure must return finite numbers or raise NotMeasured; "
                f"JSON cannot hold {' '.join(short_repr(metric_values).split())}: {error}"
            ) from None


def _symmetric_instances(context: CheckContext) -> Iterator[tuple[Instance, Array]]:
    """Yield instances whose labels have a symmetry, each with a matrix (P, P) that flips or permutes components.
    ``has_permutations`` says whether it permutes. ``context`` holds the metric under test.
    """
    symmetric_instances = [
        instance
        for (instance,) in _instances(context)
        if instance.problem.channel.symmetry != "none"
    ]
    if not symmetric_instances:
        raise CheckSkipped("no channel that this metric supports has a symmetry")
    for instance in symmetric_instances:
        identity = np.eye(instance.problem.components)
        has_permutations = instance.problem.channel.symmetry.startswith("permutations")
        yield instance, identity[::-1] if has_permutations else -identity


@published(
    ("metric",),
    "The metric changes under a symmetry of the labels, although no data can tell the two estimates apart: equivalent estimates "
    "would get different scores.",
    cases=_symmetric_instances,
)
def invariance(
    context: CheckContext, instance: Instance, transformation: Array
) -> None:
    """Check that a metric is invariant under the ``transformation`` (P, P) of components, sign flips or a permutation, that
    the channel's symmetry allows. V is the claimed error. ``context`` holds the metric, ``instance`` a random draw of a
    problem.
    """
    estimate, V = _partial_estimate(instance, context)
    metric_value = _measure(context.item, instance, estimate, V)
    transformed_estimate = np.tensordot(transformation, estimate, axes=1)
    metric_value_of_transformed = _measure(
        context.item,
        instance,
        transformed_estimate,
        transformation @ V @ transformation.T,
    )
    if not np.allclose(
        metric_value or np.nan,
        metric_value_of_transformed or np.nan,
        rtol=SYMMETRY_TOLERANCE,
        atol=1e-9,
        equal_nan=True,
    ):
        symmetry = instance.problem.channel.symmetry
        raise CheckFailed(
            f"the metric changes from {metric_value} to {metric_value_of_transformed} "
            f"when the symmetry {symmetry!r} is applied to the estimate"
        )


def _teacher_and_mean_scores(context: CheckContext) -> Iterator[tuple[float, float]]:
    """Yield pairs of values of a metric: at the teacher with claimed error 0, and at the prior mean, whose claimed error V
    (P, P) is the second moment. ``context`` holds the metric under test.
    """
    compared_count = 0
    for (instance,) in _instances(context):
        prior, P = instance.problem.prior, instance.problem.components
        prior_mean = np.asarray(prior.mean(P, DIMENSION), dtype=float)
        V = np.asarray(prior.second_moment(P), dtype=float)
        values_at_teacher = _measure(context.item, instance, instance.signal, 0 * V)
        values_at_mean = _measure(context.item, instance, prior_mean, V)
        for score_pair in zip(values_at_teacher or (), values_at_mean or ()):
            if all(map(math.isfinite, score_pair)):
                compared_count += 1
                yield score_pair
    if not compared_count:
        raise CheckSkipped(
            "the metric has no value at the teacher or at the prior mean"
        )


@published(
    ("metric",),
    "The prior mean scores better than the teacher: the metric's direction is wrong, or it does not measure what it claims.",
    cases=_teacher_and_mean_scores,
)
def truth(context: CheckContext, at_teacher: float, at_mean: float) -> None:
    """Check that a metric does not score the teacher (value ``at_teacher``) worse than the prior mean (``at_mean``).
    ``context`` holds the metric under test.
    """
    score_difference = abs(at_teacher - at_mean)
    if is_worse(
        context.item, at_mean, at_teacher
    ) and score_difference > SYMMETRY_TOLERANCE * abs(at_mean):
        raise CheckFailed(
            f"the metric is {at_teacher:.4g} at the teacher, worse than {at_mean:.4g} at the prior mean "
            f"({context.item.direction} is better)"
        )


@metric_check(
    "What it says of theory does not fit what it measures: a table would compare different things, or break."
)
def theory(context: CheckContext, instance: Instance) -> None:
    """Check that a metric's theory returns as many finite values and errors as it measures. The theory is asked at a made-up
    point whose error V (P,) is half of the prior's variance. ``context`` holds the metric, ``instance`` a random draw of a
    problem.
    """
    if context.item.theory is None:
        raise CheckSkipped("the metric has no method theory")
    problem, P = instance.problem, instance.problem.components
    second_moment, prior_mean_overlap = prior_moments(problem)
    V = np.diagonal(second_moment - prior_mean_overlap) / 2
    theory_point = {
        "alpha": 1.0,
        "mse": per_component(V),
        "mse_error": per_component(0 * V),
        "overlap": (second_moment - np.diag(V)).tolist(),
        "branch": "unique",
        "method": "made up",
    }
    # The metric's own theory, before the engine leaves out wrong numbers.
    theory_values, theory_errors = context.item.theory(problem, theory_point)
    expected_count = P if context.item.per_component else 1
    if len(theory_values) != expected_count or len(theory_errors) != expected_count:
        raise CheckFailed(
            f"the metric's theory returns {len(theory_values)} values and {len(theory_errors)} errors "
            f"instead of {expected_count} each"
        )
    for theory_value, theory_error in zip(theory_values, theory_errors):
        if theory_value is None:
            continue
        if not math.isfinite(theory_value) or not (
            theory_error is None or theory_error >= 0
        ):
            raise CheckFailed(
                f"the metric's theory must return finite values and errors >= 0, got {theory_value} with the error {theory_error}"
            )
