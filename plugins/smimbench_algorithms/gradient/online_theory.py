"""The theory of online ``sgd`` as the engine asks for it: its parameters and starts, and the answer as a point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Overlaps, offers
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.registry.adapters import sizes
from smimbench.theory.limit import aligned, limit_point, scores
from smimbench_algorithms.gradient.loss import fitting_loss
from smimbench_algorithms.gradient.online import price, solve
from smimbench_algorithms.gradient.online_draws import affordable, draw_paths
from smimbench_algorithms.gradient.online_fields import NODES, evaluations
from smimbench_algorithms.gradient.online_recursion import Diverges, Path, Rule, TooLong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Conditions
    from smimbench.problem import Problem

__all__ = ["online_theory"]

TYPICAL = 16
"""Random starts where nothing has been run. Doubled: their mean is known 1.4 times better."""

SMALL_OVERLAP = 5.0
"""Overlaps below this over the root of D are what chance adds in the first steps. Doubled: the remark comes sooner."""

BESIDE = 4e7
"""Latents for which the limit is added to a trajectory that is drawn for one size. Doubled: it is there for larger problems."""

RATIOS = 3.0
"""Units of ``(1 - cosine^2) / D`` in which the cosine of mean overlaps may miss the mean cosine. Doubled, so is that error."""

FEWER = 8
"""Where means are closed, draws only say by how much the cosine may be off: one in so many does. Doubled: half the time."""

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
    loss = algorithm.loss or fitting_loss(problem)
    # Linear labels: means of the overlaps follow closed equations at every D, and not only as D grows.
    closed = evaluations(problem, loss) == 1 and not algorithm.spherical
    rule = Rule(
        rate=lambda step: algorithm._rate(step, steps),
        fraction=batch / D,
        decay=algorithm.weight_decay,
        momentum=algorithm.momentum,
        nesterov=algorithm.nesterov,
        spherical=algorithm.spherical,
        breaks=tuple(jumps),
        spread=1 / (batch * problem.model.sites) if closed else 0.0,
    )
    starts = conditions.starts or _typical_starts(problem, D, algorithm.spherical)
    wanted = sorted({0, *np.unique(np.geomspace(1, steps, MOMENTS).round().astype(int)).tolist()})
    draws = affordable(problem, steps, batch, len(starts) * (FEWER if closed else 1), D)
    drawn = None
    try:
        if draws:
            drawn = draw_paths(problem, loss, rule, starts, wanted, draws, batch, D)
        path = solve(problem, loss, rule, starts, wanted) if closed or drawn is None else drawn
    except TooLong:
        return (
            f"its {steps} steps take longer than a minute to solve one by one, and integration gains nothing: steps are "
            "large, or their size jumps often; ask for fewer steps"
        )
    except Diverges:
        return f"at learning rate {algorithm.learning_rate:g} its equations diverge: the steps are too long"
    ends = _overlaps_at_end(path)
    lost = 1 - sum(map(len, ends)) / path.cross[:, 0, :, 0, 0].size
    method = _drawn(draws * len(starts), lost) if path is drawn else _solved(problem, path, starts, D)
    point = limit_point(problem, alpha, ends, method=method, branch="online descent")
    if path.rougher is not None:
        point |= _with_error_of_integration(problem, point, path.rougher)
    found = _online_trajectory(problem, path, batch)
    if closed:
        beside = (
            None if drawn is None else limit_point(problem, alpha, _overlaps_at_end(drawn), method="", prediction=False)
        )
        for name in ("cosine", "squared_cosine"):
            point[f"{name}_error"] = _error_of_ratio(name, point, beside, D)
        course = None if drawn is None else _online_trajectory(problem, drawn, batch)
        found["overlap_error"] = _error_of_ratio("overlap", found, course, D)
    if conditions.trajectory and path is drawn and price(problem, loss, steps, len(starts)) < BESIDE:
        found |= _without_noise(problem, loss, rule, starts, wanted)
    return point | {"trajectory": found}


def _overlaps_at_end(path: Path) -> list[list[Overlaps]]:
    """Overlaps at the end: for every evaluation those of all starts, but for draws that have diverged."""
    sets, _, starts = path.cross.shape[:3]
    found = [
        [Overlaps(path.truth[k, -1, i], path.cross[k, -1, i], path.own[k, -1, i]) for i in range(starts)]
        for k in range(sets)
    ]
    finite = [[one for one in each if np.isfinite(one.cross).all()] for each in found]
    return [each for each in finite if each]


def _drawn(count: int, lost: float) -> str:
    method = f"mean of {count} draws of the overlaps at this dimension"
    return method + (f"; {lost:.1%} of them diverge and are left out" if lost else "")


def _solved(problem: Problem, path: Path, starts: Sequence[Overlaps], D: int) -> str:
    """How the equations were solved, and what they cannot know."""
    sets = len(path.cross)
    how = "closed form" if sets == 1 else "quadrature" if sets == len(NODES) else "Monte Carlo"
    steps = "recursion of online descent" if path.rougher is None else "equations of online descent, integrated"
    small = SMALL_OVERLAP / np.sqrt(D)
    if problem.channel.symmetry != "none" and max(np.abs(start.cross).max() for start in starts) < small:
        how += ", from overlaps of order 1/sqrt(D): when a run escapes from these is chance, too"
    return f"{steps}, {how}"


def _with_error_of_integration(problem: Problem, point: dict[str, Any], rougher: Path) -> dict[str, Any]:
    """The errors of a point, with what a rougher integration changes."""
    other = limit_point(problem, point["alpha"], _overlaps_at_end(rougher), method="", prediction=False)
    return {
        f"{name}_error": np.hypot(point[f"{name}_error"], np.subtract(point[name], other[name])).tolist()
        for name in ("mse", "overlap", "cosine", "squared_cosine")
    }


def _error_of_ratio(name: str, means: dict[str, Any], drawn: dict[str, Any] | None, D: int) -> list[Any]:
    """Error of a ratio of mean overlaps for the mean of the ratios: what draws say of it, or of which order in 1/D it is."""
    value = np.asarray(means[name])
    if drawn is None:
        return list((RATIOS * (1 - (value**2 if name == "cosine" else value)) / D).tolist())
    return list(np.hypot(value - np.asarray(drawn[name]), np.asarray(drawn[f"{name}_error"])).tolist())


def _without_noise(
    problem: Problem, loss: str, rule: Rule, starts: Sequence[Overlaps], wanted: Sequence[int]
) -> dict[str, Any]:
    """``mse_limit`` and ``overlap_limit``: the equations from the same starts, which is what D to infinity leaves."""
    try:
        path = solve(problem, loss, rule, starts, wanted)
    except (Diverges, TooLong):
        return {}
    found = _online_trajectory(problem, path, 1)
    return {f"{name}_limit": found[name] for name in ("mse", "overlap")}


def _typical_starts(problem: Problem, D: int, spherical: bool) -> list[Overlaps]:
    """Starts of runs at this size: a signal, and an independent draw of its factor."""
    P = problem.components
    prior: Any = problem.prior
    rng = monte_carlo_rng("online descent: typical starts", D)
    found = []
    for _ in range(TYPICAL):
        signal, factor = np.asarray(prior.sample(rng, P, D)), np.asarray(prior.draw_factor(rng, P, D, None))
        if spherical:
            factor = factor / np.sqrt(np.mean(factor**2, axis=-1, keepdims=True))
        found.append(
            Overlaps(*(one @ other.T / D for one, other in ((signal, signal), (factor, signal), (factor,) * 2)))
        )
    return found


def _online_trajectory(problem: Problem, path: Path, batch: int) -> dict[str, Any]:
    """Means over starts and evaluations, with the standard error over evaluations."""
    sets = len(path.cross)
    P = problem.components
    # Evaluations, steps, starts: as many as there are, in one batch.
    flat = Overlaps(*(part.reshape(-1, P, P) for part in (path.truth, path.cross, path.own)))
    known = np.isfinite(flat.cross).all(axis=(1, 2))
    found = scores(aligned(problem, Overlaps(*(np.where(known[:, None, None], part, 0.0) for part in flat))))
    values: dict[str, list[Any]] = {}
    for name, key in (("mse", "mse"), ("overlap", "squared_cosine")):
        each = np.where(known[:, None], found[key], np.nan).reshape(*path.cross.shape[:3], P)
        weight = np.isfinite(each).sum(axis=2)
        means = np.nansum(each, axis=2) / np.maximum(weight, 1)  # (evaluations, steps, P)
        mean = np.nansum(each, axis=(0, 2)) / weight.sum(axis=0)
        error = means.std(axis=0, ddof=1) / np.sqrt(sets) if sets > 1 else np.zeros_like(mean)
        values[name], values[f"{name}_error"] = mean.tolist(), error.tolist()
    if path.rougher is not None:
        other = _online_trajectory(problem, path.rougher, batch)
        for name in ("mse", "overlap"):
            values[f"{name}_error"] = np.hypot(values[f"{name}_error"], np.subtract(values[name], other[name])).tolist()
    return {"iteration": path.steps.tolist(), "samples": (path.steps * batch).tolist(), **values}
