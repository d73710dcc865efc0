"""Prediction for online ``sgd``: final errors and trajectory, from its parameters and initial states."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import monte_carlo_rng
from smimbench.problem import Problem
from smimbench.theory import aligned, limit_point, scores
from smimbench_attention.algorithms.gradient import online_fields
from smimbench_attention.algorithms.gradient.loss import factor_of, fitting_loss
from smimbench_attention.algorithms.gradient.online import (
    DescentRule,
    Diverges,
    Path,
    TooLong,
    affordable_draws,
    draw_paths,
    gram_of,
    latents_of_all_steps,
    recorded_steps_of,
    solve,
)
from smimbench_attention.algorithms.gradient.online_fields import evaluations
from smimbench_attention.algorithms.gradient.online_spectrum import (
    Fluctuates,
    draw_signs,
    solve_features,
)
from smimbench_attention.algorithms.least_squares import noise_of_identity

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench_attention.algorithms.gradient import MomentumDescent

Trajectory = dict[str, list[Any]]
"""Lists by name, one entry for each recorded step, as those of runs."""


class OnlinePaths(NamedTuple):
    """Predicted overlaps along an online run, and how they were obtained.

    Attributes
    ----------
    path : Path
        Predicted overlaps.
    draws : Path or None
        Draws at the dimension of the runs, where these are affordable.
    method : str
        How they were obtained.
    """

    path: Path
    draws: Path | None
    method: str


def online_theory(
    algorithm: MomentumDescent, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict online ``sgd`` with its trajectory, or return the reason why there is no theory."""
    if problem.model.rank != "low":
        return (
            "online descent on matrices of extensive rank has no closed equations here"
        )
    if (why := no_equations(problem)) is not None:
        return why
    if conditions.dimension is None:
        return "the number of steps is counted in samples / D: theory needs the dimension D of the runs"
    D, steps, batch = (
        conditions.dimension,
        int(algorithm.steps or 0),
        int(algorithm.batch or 0),
    )
    loss = algorithm.loss or fitting_loss(problem)
    # Linear labels: means of the overlaps follow closed equations at every D, and not only as D grows.
    is_linear = evaluations(problem, loss) == 1 and not algorithm.spherical
    by_feature = problem.features is not None or algorithm.moves != "gradient"
    if by_feature and algorithm.spherical:
        return "descent on a sphere has no closed equations feature by feature"
    if by_feature and not is_linear:
        return "the equations of single features are closed only for linear labels of independent tokens"
    inverse_rows = 1 / (batch * problem.model.sites) if is_linear else 0.0
    rule = DescentRule.of(algorithm, steps, batch / D, inverse_rows)
    starts = conditions.starts or typical_starts(
        problem, D, algorithm.spherical, online_fields.ACCURACY.starts
    )
    recorded_steps = recorded_steps_of(steps)
    try:
        if algorithm.moves == "sign":
            paths = _by_draws_of_signs(problem, rule, recorded_steps, D)
        elif by_feature:
            moves, own_starts = algorithm.moves, conditions.starts
            paths = _by_feature(problem, rule, moves, own_starts, recorded_steps, D)
        else:
            has_runs = bool(conditions.starts)
            paths = _of_overlaps(
                problem,
                loss,
                rule,
                starts,
                recorded_steps,
                batch,
                D,
                is_linear,
                has_runs,
            )
    except TooLong:
        return f"theory of {steps} steps takes longer than a minute; ask for fewer steps, or smaller batches"
    except Diverges:
        return f"the equations diverge at learning rate {algorithm.learning_rate:g}; a smaller rate may converge"
    except Fluctuates as error:
        return f"too few features or samples determine a step, so its length stays random at any dimension ({error})"
    trajectory = trajectory_of(problem, paths.path, batch)
    prediction = _prediction_at_end(problem, alpha, paths, algorithm.moves == "sign")
    if is_linear and algorithm.moves != "sign":
        _add_errors_of_ratios(problem, alpha, paths, D, prediction.more, trajectory)
    is_drawn = paths.draws is not None and not is_linear
    cost = latents_of_all_steps(problem, loss, steps, len(starts))
    if (
        conditions.trajectory
        and is_drawn
        and cost < online_fields.ACCURACY.limit_latents
    ):
        # The limit of large D is shown where it is known.
        with suppress(Diverges, TooLong):
            path = solve(problem, loss, rule, starts, recorded_steps)
            limit = trajectory_of(problem, path, 1)
            trajectory |= {f"{name}_limit": limit[name] for name in ("mse", "overlap")}
    return replace(
        prediction, trajectory=trajectory, at_size=by_feature or bool(conditions.starts)
    )


def _of_overlaps(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    starts: Sequence[Overlaps],
    recorded_steps: list[int],
    batch: int,
    D: int,
    is_linear: bool,
    has_runs: bool,
) -> OnlinePaths:
    """Predicted overlaps from the closed equations, or from draws at finite dimension where these are affordable."""
    count = len(starts) * (8 if is_linear else 1)
    draws = affordable_draws(problem, recorded_steps[-1], batch, count, D)
    drawn = None
    if draws:
        drawn = draw_paths(problem, loss, rule, starts, recorded_steps, draws, batch, D)
    if drawn is not None and not is_linear:
        path = drawn
        method = (
            f"mean of {draws * len(starts)} draws of the overlaps at this dimension"
        )
        finite = np.isfinite(path.cross[:, -1]).all(axis=(-2, -1))
        diverged_share = 1 - finite.sum() / finite.size
        if diverged_share:
            method += f"; {diverged_share:.1%} of the draws diverged and were left out"
    else:
        # Equations that are linear in the overlaps start from their mean.
        initial_overlaps = (
            [mean_start(problem)] if is_linear and not has_runs else starts
        )
        path = solve(problem, loss, rule, initial_overlaps, recorded_steps)
        method = _solver(problem, len(path.cross), starts, D)
    if not has_runs:
        path, drawn = (
            starts_as_evaluations(path),
            drawn and starts_as_evaluations(drawn),
        )
    return OnlinePaths(path, drawn, method)


def _prediction_at_end(
    problem: Problem, alpha: float, paths: OnlinePaths, by_draws_of_signs: bool
) -> AlgorithmPrediction:
    """Prediction (errors, overlaps) at the last step of the run."""
    path, _, method = paths
    prediction = limit_point(
        problem,
        alpha,
        _overlaps_at_end(path),
        method=method,
        branch="online descent",
        prediction=not by_draws_of_signs,
    )
    if by_draws_of_signs:
        # Errors of prediction of linear labels are linear in the overlaps: a few means stand for all draws.
        sets = [
            np.array_split(matrices[:, -1, 0], online_fields.ACCURACY.sign_sets)
            for matrices in (path.truth, path.cross, path.self_overlap)
        ]
        means = [
            [Overlaps(*(draws.mean(axis=0) for draws in matrices))]
            for matrices in zip(*sets)
        ]
        of_means = limit_point(problem, alpha, means, method=method).more
        for name in ("generalization_error", "generalization_error_error"):
            prediction.more[name] = of_means[name]
    return prediction


def _add_errors_of_ratios(
    problem: Problem,
    alpha: float,
    paths: OnlinePaths,
    D: int,
    metrics: dict[str, Array],
    trajectory: Trajectory,
) -> None:
    """Add the error of predicted cosines, which are ratios of mean overlaps instead of mean ratios."""
    ratios = course = None
    # With unequal variances few features carry an overlap, which fluctuates as if there were only that many.
    features = 1.0 if problem.features is None else np.mean(problem.features**2)
    number = D / float(features)
    if paths.draws is not None:
        ends = _overlaps_at_end(paths.draws)
        ratios = limit_point(problem, alpha, ends, method="", prediction=False).more
        course = trajectory_of(problem, paths.draws, 1)
    for name in ("cosine", "squared_cosine"):
        metrics[f"{name}_error"] = _error_of_ratio(name, metrics, ratios, number)
    trajectory["overlap_error"] = _error_of_ratio("overlap", trajectory, course, number)


def no_equations(problem: Problem) -> str | None:
    """Reason why the equations of gradient descent on a low-rank factor do not apply to this problem, or None."""
    if problem.channel.vjp is None:
        return "descent replaces hardmax by an annealed softmax, for which there is no theory"
    probe = np.arange(2.0 * problem.components).reshape(problem.components, 2)
    if not np.array_equal(factor_of(problem).compose(probe), probe):
        return f"prior {problem.prior.name!r} has a factor that is not the signal itself, for which there is no theory"
    return None


def _by_feature(
    problem: Problem,
    rule: DescentRule,
    moves: str,
    starts: Sequence[Overlaps],
    recorded_steps: list[int],
    D: int,
) -> OnlinePaths:
    """Predicted overlaps from the equations of single features; the error is the spread over initial states.

    The equations of a gradient are linear: they start from the mean over all teachers and students.
    """
    features = np.ones(D) if problem.features is None else problem.features
    variances, counts = np.unique(features, return_counts=True)
    P, steps = problem.components, recorded_steps[-1]
    R = P * (3 if rule.momentum else 2)
    noise = noise_of_identity(problem)
    assert noise is not None  # labels are linear
    # In units of 20 seconds.
    cost = steps * len(variances) * R**2 / 8e7
    count = min(online_fields.ACCURACY.starts, int(1 / cost))
    has_runs = bool(starts) and problem.features is None
    if has_runs:
        initial_grams = gram_of(starts, rule.momentum)[None]
    elif moves == "gradient" or len(variances) == 1:
        mean = gram_of([mean_start(problem)], rule.momentum)
        initial_grams = np.repeat(mean[None], len(variances), axis=0)
    elif count < 4 * P:
        raise TooLong(f"{steps} steps take more than a minute")
    else:
        # Entries are N(0, 1); over the starts, the second moments of every feature are exact.
        rng = monte_carlo_rng("online descent: starts by feature", D)
        normal = rng.standard_normal((D, count, 2 * P))
        u, _, v = np.linalg.svd(normal, full_matrices=False)
        white = np.sqrt(count) * (u @ v)
        squares = white[..., :, None] * white[..., None, :]
        sums = np.add.reduceat(squares, np.cumsum(counts) - counts)
        initial_grams = np.zeros((len(variances), count, R, R))
        initial_grams[..., : 2 * P, : 2 * P] = sums / counts[:, None, None, None]
    path = solve_features(
        rule,
        moves,
        variances,
        counts / D,
        float(noise.mean()),
        problem.model.sites,
        D,
        initial_grams,
        recorded_steps,
    )
    path = path if has_runs else starts_as_evaluations(path)
    method = f"recursion feature by feature, {len(path.cross)} starts"
    return OnlinePaths(path, None, method)


def _by_draws_of_signs(
    problem: Problem, rule: DescentRule, recorded_steps: list[int], D: int
) -> OnlinePaths:
    """Predicted overlaps of ``signsgd`` from random draws of teacher, start and steps, as many as time allows."""
    accuracy, P = online_fields.ACCURACY, problem.components
    smallest, largest = accuracy.sign_draws
    count = min(largest, int(accuracy.sign_entries / (recorded_steps[-1] * P * D)))
    if count < smallest:
        raise TooLong(f"{recorded_steps[-1]} steps take more than a minute")
    rng, noise = monte_carlo_rng("online descent: signs", D), noise_of_identity(problem)
    assert noise is not None  # labels are linear
    initial_vectors = np.zeros((count, 1, P * (3 if rule.momentum else 2), D))
    for draw in initial_vectors[:, 0]:
        draw[: 2 * P] = np.concatenate(_signal_and_factor(problem, rng, D))
    path = draw_signs(
        rule,
        np.ones(D) if problem.features is None else problem.features,
        float(noise.mean()),
        round(rule.fraction * D) * problem.model.sites,
        initial_vectors,
        recorded_steps,
        rng,
    )
    method = f"mean of {count} draws of the steps at this dimension"
    return OnlinePaths(path, None, method)


def _signal_and_factor(
    problem: Problem, rng: np.random.Generator, D: int
) -> tuple[Host, Host]:
    """Random signal and independent random factor, (P, D) each."""
    P = problem.components
    signal = np.asarray(problem.prior.sample(rng, P, D))
    return signal, np.asarray(factor_of(problem).draw(rng, P, D, None))


def starts_as_evaluations(path: Path) -> Path:
    """Move the random starts to the first axis of a path, so that their spread counts as the error."""
    return Path(path.steps, *(np.swapaxes(overlaps, 0, 2) for overlaps in path[1:]))


def mean_start(problem: Problem) -> Overlaps:
    """Mean initial overlaps of a random signal and an independent random factor."""
    second = np.asarray(problem.prior.second_moment(problem.components))
    return Overlaps(second, 0 * second, second)


def _overlaps_at_end(path: Path) -> list[list[Overlaps]]:
    """Overlaps at the end of a run, for every evaluation and initial state, without diverged draws."""
    ends = []
    for matrices in zip(path.truth[:, -1], path.cross[:, -1], path.self_overlap[:, -1]):
        starts = [Overlaps(*overlaps) for overlaps in zip(*matrices)]
        finite = [start for start in starts if np.isfinite(start.cross).all()]
        if finite:
            ends.append(finite)
    return ends


def _solver(problem: Problem, sets: int, starts: Sequence[Overlaps], D: int) -> str:
    """Description of how the equations were solved, with a note where the randomness of the start matters."""
    solver = "Monte Carlo"
    if sets == 1:
        solver = "closed form"
    elif sets == len(online_fields.ACCURACY.nodes):
        solver = "quadrature"
    largest = max(np.abs(start.cross).max() for start in starts)
    if problem.channel.symmetry != "none" and largest < 5.0 / np.sqrt(D):
        solver += ", from initial overlaps of order 1/sqrt(D), so that the time of escape is random"
    return f"recursion of online descent, {solver}"


def _error_of_ratio(
    name: str, means: dict[str, Array], drawn: dict[str, Array] | None, D: float
) -> list[Any]:
    """Error of a ratio of mean overlaps compared with the mean ratio, from draws or from its order in 1/D."""
    ratio = np.asarray(means[name])
    if drawn is None:
        square = ratio**2 if name == "cosine" else ratio
        return list((3.0 * (1 - square) / D).tolist())
    difference = ratio - np.asarray(drawn[name])
    return list(np.hypot(difference, np.asarray(drawn[f"{name}_error"])).tolist())


def typical_starts(
    problem: Problem, D: int, spherical: bool, count: int
) -> list[Overlaps]:
    """Initial overlaps of typical runs at dimension D, for random signals and independent random factors."""
    rng = monte_carlo_rng("online descent: typical starts", D)
    starts = []
    for _ in range(count):
        signal, factor = _signal_and_factor(problem, rng, D)
        if spherical:
            factor = factor / np.sqrt(np.mean(factor**2, axis=-1, keepdims=True))
        pairs = ((signal, signal), (factor, signal), (factor, factor))
        starts.append(Overlaps(*(a @ b.T / D for a, b in pairs)))
    return starts


def trajectory_of(problem: Problem, path: Path, batch: int) -> Trajectory:
    """Predicted trajectory, averaged over starts and evaluations, with the standard error over evaluations."""
    P = problem.components
    # Evaluations, steps, starts: as many as there are, in one batch.
    flat = [
        matrix.reshape(-1, P, P)
        for matrix in (path.truth, path.cross, path.self_overlap)
    ]
    is_finite = np.asarray(np.isfinite(flat[1]).all(axis=(1, 2)))
    zeroed = (np.where(is_finite[:, None, None], matrix, 0.0) for matrix in flat)
    metrics = scores(aligned(problem, Overlaps(*zeroed)))
    columns: Trajectory = {
        "iteration": path.steps.tolist(),
        "samples": (path.steps * batch).tolist(),
    }
    for name, key in (("mse", "mse"), ("overlap", "squared_cosine")):
        finite = np.where(is_finite[:, None], metrics[key], np.nan)
        per_start = finite.reshape(*path.cross.shape[:3], P)
        count = np.isfinite(per_start).sum(axis=2)
        # (evaluations, steps, P)
        means = np.nansum(per_start, axis=2) / np.maximum(count, 1)
        mean = np.nansum(per_start, axis=(0, 2)) / count.sum(axis=0)
        columns[name] = mean.tolist()
        columns[f"{name}_error"] = standard_error(means).tolist()
    return columns


def standard_error(samples: Host) -> Host:
    """Standard error of the mean over the first axis; 0 for a single sample, which is exact."""
    if len(samples) == 1:
        return np.zeros_like(samples[0])
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))
