"""Theory of online ``sgd``: the prediction with its trajectory, from parameters and initial states."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Overlaps
from smimbench.numerics import monte_carlo_rng
from smimbench.problem import Problem
from smimbench.theory import aligned, limit_point, scores
from smimbench_attention.algorithms.gradient import online_fields
from smimbench_attention.algorithms.gradient.loss import fitting_loss
from smimbench_attention.algorithms.gradient.online import (
    DescentRule,
    Diverges,
    Path,
    TooLong,
    affordable,
    draw_paths,
    gram_of,
    price,
    solve,
)
from smimbench_attention.algorithms.gradient.online_fields import evaluations
from smimbench_attention.algorithms.gradient.online_spectrum import (
    Fluctuates,
    draw_signs,
    solve_features,
)
from smimbench_attention.algorithms.least_squares import noise_of_identity


def online_theory(
    algorithm: Any, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Prediction for online ``sgd`` with its trajectory, or the reason why there is none."""
    D = conditions.dimension
    if problem.model.rank != "low":
        return (
            "online descent on matrices of extensive rank has no closed equations here"
        )
    if (why := no_equations(problem)) is not None:
        return why
    if D is None:
        return (
            "its steps are counted in samples / D: it needs the dimension of the runs"
        )
    steps, batch = int(algorithm.steps), int(algorithm.batch)
    loss = algorithm.loss or fitting_loss(problem)
    # Linear labels: means of the overlaps follow closed equations at every D, and not only as D grows.
    closed = evaluations(problem, loss) == 1 and not algorithm.spherical
    signs = algorithm.moves == "sign"
    by_feature = problem.features is not None or algorithm.moves != "gradient"
    if by_feature and not closed:
        if algorithm.spherical:
            return "descent on a sphere has no closed equations feature by feature"
        return "equations of single features are closed for linear labels of tokens that are independent only"
    rule = DescentRule(
        rate=lambda step: algorithm._rate(step, steps),
        fraction=batch / D,
        decay=algorithm.weight_decay,
        momentum=algorithm.momentum,
        nesterov=algorithm.nesterov,
        spherical=algorithm.spherical,
        spread=1 / (batch * problem.model.sites) if closed else 0.0,
    )
    accuracy = online_fields.ACCURACY
    starts = conditions.starts or typical_starts(
        problem, D, algorithm.spherical, accuracy.starts
    )
    # Equations that are linear in the overlaps start from their mean.
    begin = [mean_start(problem)] if closed and not conditions.starts else starts
    recorded_steps = sorted(
        {
            0,
            *np.unique(
                np.geomspace(1, steps, accuracy.moments).round().astype(int)
            ).tolist(),
        }
    )
    draws = (
        0
        if by_feature
        else affordable(problem, steps, batch, len(starts) * (8 if closed else 1), D)
    )
    drawn = None
    try:
        if signs:
            path = _by_draws_of_signs(problem, rule, recorded_steps, D)
        elif by_feature:
            path = _by_feature(
                problem, rule, algorithm.moves, conditions.starts, recorded_steps, D
            )
        else:
            drawn = (
                draw_paths(problem, loss, rule, starts, recorded_steps, draws, batch, D)
                if draws
                else None
            )
            path = (
                solve(problem, loss, rule, begin, recorded_steps)
                if closed or drawn is None
                else drawn
            )
    except TooLong:
        return f"its {steps} steps take longer than a minute to solve; ask for fewer steps, or smaller batches"
    except Diverges:
        return f"at learning rate {algorithm.learning_rate:g} its equations diverge: the steps are too long"
    except Fluctuates as error:
        return f"few features or samples carry its steps, which are random at any dimension ({error})"
    averaged = path is drawn
    method = (
        _solved(problem, path, starts, D)
        if not by_feature
        else f"recursion feature by feature, {len(path.cross)} starts"
    )
    if signs:
        method = f"mean of {len(path.cross)} draws of the steps at this dimension"
    elif not (by_feature or conditions.starts):
        path, drawn = by_start(path), drawn and by_start(drawn)
    ends = _overlaps_at_end(path)
    diverged_share = 1 - sum(map(len, ends)) / path.cross[:, 0, :, 0, 0].size
    if averaged:
        method = (
            f"mean of {draws * len(starts)} draws of the overlaps at this dimension"
        )
        method += (
            f"; {diverged_share:.1%} of them diverge and are left out"
            if diverged_share
            else ""
        )
    point = limit_point(
        problem,
        alpha,
        ends,
        method=method,
        branch="online descent",
        prediction=not signs,
    )
    if signs:
        # Errors of prediction of linear labels are linear in the overlaps: a few means stand for all draws.
        sets = [
            np.array_split(overlaps[:, -1, 0], online_fields.ACCURACY.sign_sets)
            for overlaps in path[1:]
        ]
        means = [
            [Overlaps(*(draws.mean(axis=0) for draws in columns))]
            for columns in zip(*sets)
        ]
        predicted = limit_point(problem, alpha, means, method=method).more
        point.more.update(
            {
                name: predicted[name]
                for name in ("generalization_error", "generalization_error_error")
            }
        )
    trajectory = trajectory_of(problem, path, batch)
    if closed and not signs:
        # Means of overlaps are exact, those of their ratios are not; the difference is estimated from draws.
        ratios = course = None
        # With unequal variances few features carry an overlap, which fluctuates as if there were only that many.
        number = (
            D if problem.features is None else D / float(np.mean(problem.features**2))
        )
        if drawn is not None:
            ratios = limit_point(
                problem, alpha, _overlaps_at_end(drawn), method="", prediction=False
            ).more
            course = trajectory_of(problem, drawn, batch)
        for name in ("cosine", "squared_cosine"):
            point.more[f"{name}_error"] = _error_of_ratio(
                name, point.more, ratios, number
            )
        trajectory["overlap_error"] = _error_of_ratio(
            "overlap", trajectory, course, number
        )
    cheap = price(problem, loss, steps, len(starts)) < accuracy.limit_latents
    if conditions.trajectory and averaged and cheap:
        with suppress(
            Diverges, TooLong
        ):  # the limit of large D is shown where it is known
            limit = trajectory_of(
                problem, solve(problem, loss, rule, starts, recorded_steps), 1
            )
            trajectory |= {f"{name}_limit": limit[name] for name in ("mse", "overlap")}
    return replace(
        point, trajectory=trajectory, at_size=by_feature or bool(conditions.starts)
    )


def no_equations(problem: Problem) -> str | None:
    """Reason why the equations of gradient descent on a low-rank factor do not apply to this problem, or None."""
    if problem.channel.vjp is None:
        return "hardmax is replaced by an annealed softmax, whose equations are not those of the labels"
    probe = np.arange(2.0 * problem.components).reshape(problem.components, 2)
    prior: Any = problem.prior
    if not np.array_equal(prior.factor.compose(probe), probe):
        return f"the factor of prior {prior.name!r} is not the signal"
    return None


def _by_feature(
    problem: Problem,
    rule: DescentRule,
    moves: str,
    starts: Sequence[Overlaps],
    recorded_steps: list[int],
    D: int,
) -> Path:
    """Path from the equations of single features; several starts are on its first axis, and their spread is the error.

    The equations of a gradient are linear: they start from the mean over all teachers and students.
    """
    features = np.ones(D) if problem.features is None else problem.features
    values, shares = np.unique(features, return_counts=True)
    P = problem.components
    R = P * (3 if rule.momentum else 2)
    noise: Any = noise_of_identity(problem)
    # In units of 20 seconds.
    price = recorded_steps[-1] * len(values) * R**2 / 8e7
    count = min(online_fields.ACCURACY.starts, int(1 / price))
    starts = starts if problem.features is None else ()
    if starts:
        begin = gram_of(starts, rule.momentum)[None]
    elif moves == "gradient" or len(values) == 1:
        begin = np.repeat(
            gram_of([mean_start(problem)], rule.momentum)[None], len(values), axis=0
        )
    elif count < 4 * P:
        raise TooLong(f"{recorded_steps[-1]} steps")
    else:
        # Entries are N(0, 1); over the starts, the second moments of every feature are exact.
        draws = monte_carlo_rng("online descent: starts by feature", D).standard_normal(
            (D, count, 2 * P)
        )
        u, _, v = np.linalg.svd(draws, full_matrices=False)
        white = np.sqrt(count) * (u @ v)
        square = np.add.reduceat(
            white[..., :, None] * white[..., None, :], np.cumsum(shares) - shares
        )
        begin = np.zeros((len(values), count, R, R))
        begin[..., : 2 * P, : 2 * P] = square / shares[:, None, None, None]
    path = solve_features(
        rule,
        moves,
        values,
        shares / D,
        float(noise.mean()),
        problem.model.sites,
        D,
        begin,
        recorded_steps,
    )
    return path if starts else by_start(path)


def _by_draws_of_signs(
    problem: Problem, rule: DescentRule, recorded_steps: list[int], D: int
) -> Path:
    """Path of ``signsgd`` from complete draws of teacher, start and steps, as many as the time limit allows."""
    P, (fewest, maximum) = problem.components, online_fields.ACCURACY.sign_draws
    count = min(
        maximum, int(online_fields.ACCURACY.sign_entries / (recorded_steps[-1] * P * D))
    )
    if count < fewest:
        raise TooLong(f"{recorded_steps[-1]} steps")
    rng, prior, noise = (
        monte_carlo_rng("online descent: signs", D),
        cast("Any", problem.prior),
        noise_of_identity(problem),
    )
    draws = [
        (prior.sample(rng, P, D), prior.factor.draw(rng, P, D, None))
        for _ in range(count)
    ]
    begin = np.zeros((count, 1, P * (3 if rule.momentum else 2), D))
    begin[:, 0, : 2 * P] = np.reshape(draws, (count, 2 * P, D))
    features = np.ones(D) if problem.features is None else problem.features
    rows = round(rule.fraction * D) * problem.model.sites
    return draw_signs(
        rule,
        features,
        float(np.mean(cast("Any", noise))),
        rows,
        begin,
        recorded_steps,
        rng,
    )


def by_start(path: Path) -> Path:
    """The path with its random starts on the first axis: their spread is then the error, and evaluations are averaged."""
    return Path(path.steps, *(np.swapaxes(overlaps, 0, 2) for overlaps in path[1:]))


def mean_start(problem: Problem) -> Overlaps:
    """Mean overlaps of a signal and an independent draw of its factor."""
    second = np.asarray(problem.prior.second_moment(problem.components))
    return Overlaps(second, 0 * second, second)


def _overlaps_at_end(path: Path) -> list[list[Overlaps]]:
    """Overlaps at the end of a run, for every evaluation and all starts, without draws that diverged."""
    sets, _, starts = path.cross.shape[:3]
    ends = []
    for k in range(sets):
        overlaps = [
            Overlaps(path.truth[k, -1, i], path.cross[k, -1, i], path.own[k, -1, i])
            for i in range(starts)
        ]
        ends.append([end for end in overlaps if np.isfinite(end.cross).all()])
    return [evaluation for evaluation in ends if evaluation]


def _solved(problem: Problem, path: Path, starts: Sequence[Overlaps], D: int) -> str:
    """How the equations were solved, with a note where randomness of the start matters."""
    sets = len(path.cross)
    solver = (
        "closed form"
        if sets == 1
        else "quadrature"
        if sets == len(online_fields.ACCURACY.nodes)
        else "Monte Carlo"
    )
    small = 5.0 / np.sqrt(D)
    if (
        problem.channel.symmetry != "none"
        and max(np.abs(start.cross).max() for start in starts) < small
    ):
        solver += ", from overlaps of order 1/sqrt(D): when a run escapes from these is chance, too"
    return f"recursion of online descent, {solver}"


def _error_of_ratio(
    name: str, means: dict[str, Any], drawn: dict[str, Any] | None, D: float
) -> list[Any]:
    """Error from taking a ratio of mean overlaps instead of the mean ratio: from draws, or its order in 1/D."""
    value = np.asarray(means[name])
    if drawn is None:
        return list(
            (3.0 * (1 - (value**2 if name == "cosine" else value)) / D).tolist()
        )
    return list(
        np.hypot(
            value - np.asarray(drawn[name]), np.asarray(drawn[f"{name}_error"])
        ).tolist()
    )


def typical_starts(
    problem: Problem, D: int, spherical: bool, count: int
) -> list[Overlaps]:
    """Initial overlaps of typical runs at this size: a signal, and an independent draw of its factor."""
    P = problem.components
    prior: Any = problem.prior
    rng = monte_carlo_rng("online descent: typical starts", D)
    overlaps = []
    for _ in range(count):
        signal, factor = (
            np.asarray(prior.sample(rng, P, D)),
            np.asarray(prior.factor.draw(rng, P, D, None)),
        )
        if spherical:
            factor = factor / np.sqrt(np.mean(factor**2, axis=-1, keepdims=True))
        overlaps.append(
            Overlaps(
                signal @ signal.T / D, factor @ signal.T / D, factor @ factor.T / D
            )
        )
    return overlaps


def trajectory_of(problem: Problem, path: Path, batch: int) -> dict[str, Any]:
    """Trajectory averaged over starts and evaluations, with the standard error over evaluations."""
    sets = len(path.cross)
    P = problem.components
    # Evaluations, steps, starts: as many as there are, in one batch.
    flat = Overlaps(
        *(matrix.reshape(-1, P, P) for matrix in (path.truth, path.cross, path.own))
    )
    finite = np.isfinite(flat.cross).all(axis=(1, 2))
    zeroed = Overlaps(
        *(np.where(finite[:, None, None], matrix, 0.0) for matrix in flat)
    )
    measures = scores(aligned(problem, zeroed))
    values: dict[str, list[Any]] = {}
    for name, key in (("mse", "mse"), ("overlap", "squared_cosine")):
        per_start = np.where(finite[:, None], measures[key], np.nan).reshape(
            *path.cross.shape[:3], P
        )
        weight = np.isfinite(per_start).sum(axis=2)
        means = np.nansum(per_start, axis=2) / np.maximum(
            weight, 1
        )  # (evaluations, steps, P)
        mean = np.nansum(per_start, axis=(0, 2)) / weight.sum(axis=0)
        error = (
            means.std(axis=0, ddof=1) / np.sqrt(sets)
            if sets > 1
            else np.zeros_like(mean)
        )
        values[name], values[f"{name}_error"] = mean.tolist(), error.tolist()
    return {
        "iteration": path.steps.tolist(),
        "samples": (path.steps * batch).tolist(),
        **values,
    }
