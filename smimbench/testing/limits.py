"""Check that an algorithm's runs, extrapolated to infinite dimension, agree with its own theory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from smimbench.backend.device import get_backend
from smimbench.interfaces import Conditions, Overlaps
from smimbench.numerics.size_laws import extrapolate, pooled_errors
from smimbench.problem import Instance
from smimbench.problem.problem import Problem
from smimbench.registry.registry import find_metric, theory_of
from smimbench.run.loop import LoopRun, Status, run_algorithm
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.schema import RunOptions
from smimbench.testing.context import CheckContext
from smimbench.testing.core import CheckFailed, CheckSkipped, expect_value, published
from smimbench.theory.information import information_at, prior_moments
from smimbench.theory.limit import own_theory

SIZES = {
    "extensive": (0.16, {28: 12, 40: 8, 56: 6}),
    "low": (0.35, {40: 24, 80: 16, 160: 12}),
}
"""By rank: sample ratio, and the runs at each dimension. No threshold is near. Twice the runs show a bias half as large."""

METRICS = ("mse", "nishimori")
"""Metrics that must agree with theory: the error, and for posterior means the Nishimori ratio, which a mistake changes at first
order where it changes the error at second."""

LIMITS = RunOptions(max_iterations=200, timeout=6.0)
"""Limits of each run; if they are doubled, slow algorithms come closer to convergence."""


def _problems_with_theory(
    context: CheckContext,
) -> Iterator[tuple[Problem, Conditions]]:
    """Yield one problem per model for which the algorithm has a theory, with the conditions of its runs."""
    if context.item.theory is None:
        raise CheckSkipped("the algorithm has no method theory")
    reason = "the algorithm refuses all shipped problems"
    checked = 0
    for model in context.models:
        if model.rank not in SIZES:
            continue
        alpha, sizes = SIZES[model.rank]
        problems = [p for p in context.problems(model) if not context.item.refuses(p)]
        for problem in sorted(problems, key=_is_uninformative_at_start)[:1]:
            branches = TheorySolver().points(problem, [alpha])[0]
            points = tuple(point.document() for point in branches)
            conditions = Conditions(dimension=max(sizes), points=points)
            prediction = own_theory(context.item, problem, alpha, conditions)
            if isinstance(prediction, str):
                reason = prediction
            else:
                checked += 1
                yield problem, conditions
    if not checked:
        raise CheckSkipped(
            f"the algorithm has no theory for the problems of this check: {reason}"
        )


def _is_uninformative_at_start(problem: Problem) -> bool:
    """Whether labels carry no information at the prior mean, so that runs learn nothing below a threshold."""
    moment, overlap = prior_moments(problem)
    information = information_at(problem, overlap, moment - overlap).value
    return float(np.diagonal(information).min()) < 1e-6


def _runs_at_dimension(
    context: CheckContext, problem: Problem, alpha: float, D: int, count: int
) -> Iterator[tuple[Instance, LoopRun]]:
    """Yield random instances, each with the outcome of running the algorithm on it."""
    backend = get_backend("numpy")
    for run in range(count):
        instance = problem.instance(alpha, D, run, seed=context.seed)
        rng = partial(context.rng, 91, D, run)
        result = run_algorithm(
            problem,
            instance,
            instance.data(backend),
            context.item,
            rng,
            LIMITS,
            backend,
        )
        if result.status is Status.DIVERGED:
            raise CheckFailed(
                f"the algorithm diverges at D = {D} ({problem.label}, alpha = {alpha:g}): {result.reason}"
            )
        yield instance, result


@published(
    ("algorithm",),
    "The algorithm's runs, extrapolated to infinite dimension, disagree with its own theory: the theory describes another "
    "algorithm or the code has a mistake, and verdicts that compare them are meaningless.",
    cases=_problems_with_theory,
)
def lands_on_theory(
    context: CheckContext, problem: Problem, conditions: Conditions
) -> None:
    """Check that error and Nishimori ratio, extrapolated in 1/D from three dimensions, match the algorithm's theory."""
    alpha, sizes = SIZES[problem.model.rank]
    runs = {
        D: list(_runs_at_dimension(context, problem, alpha, D, count))
        for D, count in sizes.items()
    }
    starts = tuple(Overlaps(*result.start.values()) for _, result in runs[max(sizes)])
    conditions = conditions._replace(starts=starts)
    point: Any = own_theory(context.item, problem, alpha, conditions)
    place = f"at infinite D, from D = {', '.join(map(str, sizes))} ({problem.label}, alpha = {alpha:g})"
    for name in METRICS:
        metric = find_metric(name, problem.model.name)
        predictions, errors = theory_of(metric, problem, point, problem.components)
        if predictions[0] is None:
            continue
        measured = [
            np.array(
                [
                    instance.measure([name], result.estimate, result.V).values[name]
                    for instance, result in results
                ]
            )
            for results in runs.values()
        ]
        for k, (prediction, error) in enumerate(zip(predictions, errors)):
            values = [array[:, k] for array in measured]
            noise, dof = pooled_errors(
                list(sizes), [v.std(ddof=1) for v in values], list(map(len, values))
            )
            limit = extrapolate(
                list(sizes), [v.mean() for v in values], np.maximum(noise, 1e-12), dof
            )
            expect_value(
                f"{name} of component {k + 1} {place}",
                limit.limit,
                prediction,
                np.hypot(limit.error, error or 0.0),
            )
