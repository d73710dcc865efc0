"""Checks of algorithms that claim to be Bayes-optimal: what they reach at several sizes, continued to infinite size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.device import get_backend
from smimbench.interfaces import Conditions
from smimbench.numerics.size_laws import extrapolate, pooled_errors
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.run.loop import LoopSettings, Status, run_algorithm
from smimbench.run.theory_cache import TheoryCache
from smimbench.testing.core import CheckFailed, CheckSkipped
from smimbench.testing.publish import judged, published
from smimbench.theory.own import own_theory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.problem.problem import Problem
    from smimbench.testing.context import CheckContext
    from smimbench.testing.publish import MeanTest

PLACES = {
    "extensive": ("softmax", 0.08, ((20, 12), (28, 10), (40, 8))),
    "low": ("linear", 0.35, ((40, 24), (80, 16), (160, 12))),
}
"""By rank: channel (the first that fits where an algorithm refuses it), sample ratio, and dimensions with the runs at each. No
threshold is near. With twice the runs a bias half as large is seen."""

METRICS = ("mse", "nishimori")
"""What must land on theory: the error, and the ratio that shows at first order what the error shows at second."""


def _problems(context: CheckContext) -> Iterator[tuple[Problem]]:
    """One problem for every model."""
    if context.item.theory is None or context.item.variance is None:
        raise CheckSkipped("it does not predict its error: a variance, and a theory that is Bayes-optimal")
    tried = 0
    for model in context.models:
        taken = [p for p in context.problems(model) if not context.item.refuses(p) and model.rank in PLACES]
        for problem in sorted(taken, key=lambda p: p.channel.name != PLACES[model.rank][0])[:1]:
            tried += 1
            if _predicts_optimum(context.item, problem):
                yield (problem,)
    if not tried:
        raise CheckSkipped("it refuses every problem that ships")


def _predicts_optimum(algorithm: Any, problem: Problem) -> bool:
    """Whether the error that an algorithm predicts for itself is the Bayes-optimal one."""
    alpha = PLACES[problem.model.rank][1]
    point = TheoryCache(None).points(problem, [alpha])[0][0]
    own = own_theory(algorithm, problem, alpha, Conditions(points=(point,)))
    return not isinstance(own, str) and bool(np.allclose(own.mse, point["mse"], rtol=1e-6, atol=1e-9))


@published(
    ("algorithm",),
    "It says that it is Bayes-optimal, but its runs, continued to infinite size, do not end at the Bayes-optimal error, or its "
    "estimate there is no posterior mean.",
    cases=_problems,
    around=judged,
)
def bayes_optimal(context: CheckContext, problem: Problem, test: MeanTest) -> None:
    """Error and Nishimori ratio at three sizes, extrapolated with corrections of order 1/D."""
    _, alpha, sizes = PLACES[problem.model.rank]
    runs = {D: [_run_at_size(context, problem, alpha, D, k) for k in range(n)] for D, n in sizes}
    point = TheoryCache(None).points(problem, [alpha])[0][0]
    for name in METRICS:
        metric = find_metric(name, problem.model.name)
        expected, errors = theory_of(metric, problem, point, problem.components)
        for component, (target, error) in enumerate(zip(expected, errors)):
            if target is None:
                continue
            values = [np.array([measured[name][component] for measured in runs[D]]) for D, _ in sizes]
            noise, dof = pooled_errors(list(runs), [v.std(ddof=1) for v in values], [len(v) for v in values])
            found = extrapolate(list(runs), [v.mean() for v in values], np.maximum(noise, 1e-12), dof)
            what = f"{metric.label} at infinite D, from D = {', '.join(map(str, runs))} ({problem.label}, alpha = {alpha:g})"
            test.add(what, found.fit.limit, target, math.hypot(found.error, error or 0.0), dof=dof)


def _run_at_size(
    context: CheckContext, problem: Problem, alpha: float, dimension: int, replicate: int
) -> dict[str, list[float]]:
    """Metrics at the end of a run through the engine's loop."""
    backend = get_backend("numpy")
    instance = problem.instance(alpha, dimension, replicate, seed=context.seed)
    data = instance.data(backend)
    result = run_algorithm(
        problem,
        instance,
        data,
        context.item,
        lambda k: context.rng(91, dimension, replicate, k),
        LoopSettings(),
        backend,
    )
    attempt = result.attempt
    if attempt.status is Status.DIVERGED or attempt.estimate is None:
        raise CheckFailed(f"diverges at D = {dimension} ({problem.label}, alpha = {alpha:g}): {attempt.reason}")
    return instance.measure(METRICS, attempt.estimate, attempt.V)[0]
