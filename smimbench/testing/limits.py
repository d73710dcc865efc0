"""Checks of algorithms that compare runs at several sizes with theory: Bayes-optimal ones, and those with their own theory."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.device import get_backend
from smimbench.interfaces import Conditions, Overlaps
from smimbench.numerics.size_laws import extrapolate, pooled_errors
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.run.loop import LoopSettings, Status, run_algorithm
from smimbench.run.theory_cache import TheoryCache
from smimbench.testing.algorithms import Setting, once_per_model
from smimbench.testing.core import CheckFailed, CheckSkipped, judged, published
from smimbench.theory.limit import own_theory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.problem.problem import Problem
    from smimbench.testing.context import CheckContext
    from smimbench.testing.core import MeanTest

PLACES = {"extensive": ("softmax", 0.08, {20: 12, 28: 10, 40: 8}), "low": ("linear", 0.35, {40: 24, 80: 16, 160: 12})}
"""By rank: channel (the first that fits where an algorithm refuses it), sample ratio, and the runs at each dimension. No
threshold is near. With twice the runs a bias half as large is seen."""

METRICS = ("mse", "nishimori")
"""What must land on theory: the error, and the ratio that shows at first order what the error shows at second."""


def _runs(
    context: CheckContext, problem: Problem, alpha: float, D: int, count: int, settings: LoopSettings
) -> Iterator[tuple[Any, Any]]:
    """Random instances, and the final result of the engine's loop on each."""
    backend = get_backend("numpy")
    for run in range(count):
        instance = problem.instance(alpha, D, run, seed=context.seed)
        data = instance.data(backend)
        result = run_algorithm(
            problem, instance, data, context.item, partial(context.rng, 91, D, run), settings, backend
        )
        if result.status is Status.DIVERGED:
            where = f"at D = {D} ({problem.label}, alpha = {alpha:g})"
            raise CheckFailed(f"diverges {where}: {result.reason}")
        yield instance, result


def _problems(context: CheckContext) -> Iterator[tuple[Problem, dict[str, Any]]]:
    """One problem per model, with the theory's Bayes-optimal error, where the algorithm predicts that error."""
    if context.item.theory is None or context.item.variance is None:
        raise CheckSkipped("the algorithm does not predict its error (by a variance and a Bayes-optimal theory)")
    tried = 0
    for model in context.models:
        taken = [p for p in context.problems(model) if not context.item.refuses(p) and model.rank in PLACES]
        for problem in sorted(taken, key=lambda p: p.channel.name != PLACES[model.rank][0])[:1]:
            tried += 1
            alpha = PLACES[model.rank][1]
            point = TheoryCache(None).points(problem, [alpha])[0][0]
            own = own_theory(context.item, problem, alpha, Conditions(points=(point,)))
            if not isinstance(own, str) and np.allclose(own.mse, point["mse"], rtol=1e-6, atol=1e-9):
                yield problem, point
    if not tried:
        raise CheckSkipped("the algorithm refuses all shipped problems")


@published(
    ("algorithm",),
    "It says that it is Bayes-optimal, but its runs, continued to infinite size, do not end at the Bayes-optimal error, or its "
    "estimate there is no posterior mean.",
    cases=_problems,
    around=judged,
)
def bayes_optimal(context: CheckContext, problem: Problem, point: dict[str, Any], test: MeanTest) -> None:
    """Check that error and Nishimori ratio at three sizes, extrapolated in 1/D, are Bayes-optimal."""
    _, alpha, sizes = PLACES[problem.model.rank]
    measured = [
        [
            instance.measure(METRICS, attempt.estimate, attempt.V)[0]
            for instance, attempt in _runs(context, problem, alpha, D, count, LoopSettings())
        ]
        for D, count in sizes.items()
    ]
    for name in METRICS:
        metric = find_metric(name, problem.model.name)
        for component, (target, error) in enumerate(zip(*theory_of(metric, problem, point, problem.components))):
            if target is None:
                continue
            values = [np.array([one[name][component] for one in runs]) for runs in measured]
            noise, dof = pooled_errors(list(sizes), [v.std(ddof=1) for v in values], list(map(len, values)))
            found = extrapolate(list(sizes), [v.mean() for v in values], np.maximum(noise, 1e-12), dof)
            where = f"from D = {', '.join(map(str, sizes))} ({problem.label}, alpha = {alpha:g})"
            total = math.hypot(found.error, error or 0.0)
            test.add(f"{metric.label} at infinite D, {where}", found.limit, target, total, dof=found.dof)


@once_per_model(
    "Its runs do not agree with its own prediction: the prediction is that of another algorithm, or its code has a mistake, "
    "and the verdict that compares them means nothing."
)
def lands_on_theory(context: CheckContext, setting: Setting) -> None:
    """Check that mean errors of eight runs at two sizes, extrapolated in 1/D, match the algorithm's theory (5 standard errors
    and a tenth of the signal).
    """
    problem, runs = setting.problem, 8
    alpha, sizes = (0.7, (60, 120)) if problem.model.rank == "low" else (0.25, (20, 40))
    if context.item.theory is None:
        raise CheckSkipped("the algorithm has no theory")
    asked = own_theory(context.item, problem, alpha, Conditions(dimension=sizes[1]))
    if isinstance(asked, str):
        raise CheckSkipped(f"the algorithm has no theory for these problems: {asked}")
    limits = LoopSettings(max_iterations=100, timeout=6.0)
    small, large = ([attempt for _, attempt in _runs(context, problem, alpha, D, runs, limits)] for D in sizes)
    starts = tuple(Overlaps(*attempt.start.values()) for attempt in large)
    point: Any = own_theory(context.item, problem, alpha, Conditions(dimension=sizes[1], starts=starts))
    first, second = (np.array([attempt.metrics["mse"] for attempt in attempts]) for attempts in (small, large))
    limit = 2 * second.mean(0) - first.mean(0)
    variance = (4 * second.var(0, ddof=1) + first.var(0, ddof=1)) / runs
    allowed = 5 * np.sqrt(variance + np.square(point.mse_error, dtype=float))
    allowed += 0.1 * np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))
    if not (np.abs(limit - point.mse) <= allowed).all():
        raise CheckFailed(
            f"runs end at an error of {limit.round(4).tolist()} as D grows, but the algorithm's theory predicts {point.mse} "
            f"({setting.name}, alpha = {alpha})"
        )
