"""The theory of online ``sgd`` as the engine asks for it: its parameters and starts, and the answer as a point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Overlaps, offers
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.registry.adapters import sizes
from smimbench.theory.information import prior_moments
from smimbench.theory.limit import aligned, limit_point, scores
from smimbench_algorithms.gradient.loss import fitting_loss
from smimbench_algorithms.gradient.online import Diverges, Path, Rule, evaluations, local_fields, solve

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions
    from smimbench.problem import Problem

__all__ = ["online_theory"]

TYPICAL = 16
"""Random starts where nothing has been run. Doubled: their mean is known 1.4 times better."""

SMALL_OVERLAP = 5.0
"""Overlaps below this over the root of D are what chance adds in the first steps. Doubled: the remark comes sooner."""

MOMENTS = 120
"""Points of the trajectory. Doubled: a finer line."""


def online_theory(algorithm: Any, problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any] | str:
    """A point with its trajectory, or in words why there is none."""
    D = conditions.dimension
    if problem.model.rank != "low":
        return "online descent on matrices of extensive rank has no closed equations here"
    if not offers(problem.channel, "vjp"):
        return "hardmax is replaced by an annealed softmax, whose equations are not those of the labels"
    probe = np.arange(2.0 * problem.components).reshape(problem.components, 2)
    prior: Any = problem.prior
    if not np.array_equal(prior.compose(probe), probe):
        return f"the factor of prior {prior.name!r} is not the signal"
    if D is None:
        return "its steps are counted in samples / D: it needs the dimension of the runs"
    plan = algorithm.plan(sizes(1, problem.model.tokens, D))
    steps, batch = int(plan.steps), int(plan.batch)
    jumps = range(0, steps, algorithm.decay_steps) if algorithm.schedule == "step" else ()
    rule = Rule(
        rate=lambda step: algorithm._rate(step, steps),
        fraction=batch / D,
        decay=algorithm.weight_decay,
        momentum=algorithm.momentum,
        nesterov=algorithm.nesterov,
        spherical=algorithm.spherical,
        breaks=tuple(jumps),
    )
    loss = algorithm.loss or fitting_loss(problem)
    starts = conditions.starts or _typical(problem, D, algorithm.spherical)
    wanted = sorted({0, *np.unique(np.geomspace(1, steps, MOMENTS).round().astype(int)).tolist()})
    sets = evaluations(problem, loss)
    try:
        path = solve(local_fields(problem, loss), rule, starts, wanted, sets)
    except Diverges:
        return f"at learning rate {algorithm.learning_rate:g} its equations diverge: the steps are too long"
    last = [
        [Overlaps(path.truth[k, -1, i], path.cross[k, -1, i], path.own[k, -1, i]) for i in range(len(starts))]
        for k in range(sets)
    ]
    how = (
        "closed form" if sets == 1 else "quadrature" if problem.components * problem.model.sites == 1 else "Monte Carlo"
    )
    few = "recursion" if steps == len(wanted) - 1 else "equations"
    small = SMALL_OVERLAP / np.sqrt(D)
    if problem.channel.symmetry != "none" and max(np.abs(start.cross).max() for start in starts) < small:
        how += ", from overlaps of order 1/sqrt(D): when a run escapes from these is chance, too"
    point = limit_point(problem, alpha, last, method=f"{few} of online descent, {how}", branch="online descent")
    return point | {"trajectory": _trajectory(problem, path, batch)}


def _typical(problem: Problem, D: int, spherical: bool) -> list[Overlaps]:
    """Starts of runs at this size: an independent draw of the prior."""
    P = problem.components
    rng = monte_carlo_rng("online descent: typical starts", D)
    second = prior_moments(problem)[0]
    found = []
    for _ in range(TYPICAL):
        cross = rng.standard_normal((P, P)) / np.sqrt(D) * np.sqrt(np.outer(np.diagonal(second), np.diagonal(second)))
        own = np.eye(P) if spherical else second
        found.append(Overlaps(second, cross, own))
    return found


def _trajectory(problem: Problem, path: Path, batch: int) -> dict[str, Any]:
    """Means over starts and evaluations, with the standard error over evaluations."""
    sets, moments, starts = path.cross.shape[:3]
    values: dict[str, list[Any]] = {}
    for s in range(moments):
        each = [
            [
                aligned(problem, Overlaps(path.truth[k, s, i], path.cross[k, s, i], path.own[k, s, i]))
                for i in range(starts)
            ]
            for k in range(sets)
        ]
        found = [scores(Overlaps(*(np.stack(parts) for parts in zip(*one)))) for one in each]
        for name, key in (("mse", "mse"), ("overlap", "squared_cosine")):
            means = np.stack([one[key].mean(axis=0) for one in found])
            error = means.std(axis=0, ddof=1) / np.sqrt(sets) if sets > 1 else np.zeros(means.shape[1])
            values.setdefault(name, []).append(means.mean(axis=0).tolist())
            values.setdefault(f"{name}_error", []).append(error.tolist())
    return {"iteration": path.steps.tolist(), "samples": (path.steps * batch).tolist(), **values}
