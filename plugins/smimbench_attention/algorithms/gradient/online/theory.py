"""Prediction for online ``sgd``: final errors and trajectory, from its parameters and initial states."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import monte_carlo_rng, outer_product
from smimbench.problem import Problem
from smimbench.theory import aligned, limit_point, scores
from smimbench_attention.algorithms.gradient.loss import factor_of
from smimbench_attention.algorithms.gradient.online import fields
from smimbench_attention.algorithms.gradient.online.equations import (
    DescentRule,
    OverlapPath,
    OverlapsDiverge,
    TooExpensive,
    affordable_draws,
    cost_of_all_steps,
    divergence_reason,
    draw_paths,
    gram_of,
    online_run,
    recorded_steps_of,
    solve,
)
from smimbench_attention.algorithms.gradient.online.features import (
    StepLengthFluctuates,
    draw_signs,
    solve_features,
)
from smimbench_attention.algorithms.least_squares import additive_noise

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench_attention.algorithms.gradient import MomentumDescent

Trajectory = dict[str, list[Any]]
"""Lists by name, one entry for each recorded step, as those of runs."""


class OnlinePrediction(NamedTuple):
    """Prediction of an online run: the path of its overlaps, random draws of that path at the dimension of the runs (None where
    these are too costly), and the name of the method.

    Attributes
    ----------
    overlap_path : OverlapPath
        Predicted overlaps.
    drawn_path : OverlapPath or None
        Draws at the dimension of the runs, where these are affordable.
    method : str
        How they were obtained.
    """

    overlap_path: OverlapPath  # predicted overlaps
    drawn_path: OverlapPath | None  # draws at the dimension of the runs
    method: str


def online_theory(
    algorithm: MomentumDescent, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict online ``sgd`` with its trajectory, under the conditions of the runs (starts, dimension D), or return the
    reason why there is no theory. ``loss`` is the name of the loss, ``rule`` the update rule of the student. alpha is the
    sample ratio.
    """
    if (reason := why_no_equations(problem)) is not None:
        return reason
    run = online_run(algorithm, problem, conditions)
    if isinstance(run, str):
        return run
    D, steps, batch_size, loss = run
    # Linear labels: means of the overlaps follow closed equations at every D, and not only as D grows.
    labels_are_linear = (
        loss == "squared"
        and additive_noise(problem) is not None
        and not algorithm.spherical
    )
    is_solved_by_feature = (
        problem.features is not None or algorithm.direction_kind != "gradient"
    )
    if is_solved_by_feature and algorithm.spherical:
        return "descent on a sphere has no closed equations feature by feature"
    if is_solved_by_feature and not labels_are_linear:
        return "the equations of single features are closed only for linear labels of independent tokens"
    inverse_batch_rows = (
        1 / (batch_size * problem.model.sites) if labels_are_linear else 0.0
    )
    rule = DescentRule.of_algorithm(
        algorithm, steps, batch_size / D, inverse_batch_rows
    )
    rates = algorithm.computed_rates(problem, D)
    if rates is not None:
        rule = replace(rule, learning_rate=rates.item)
    starts = conditions.starts or typical_starts(
        problem, D, algorithm.spherical, fields.ACCURACY.random_starts
    )
    recorded_steps = recorded_steps_of(steps)
    try:
        if algorithm.direction_kind == "sign":
            online_prediction = _draw_sign_steps(problem, rule, recorded_steps, D)
        elif is_solved_by_feature:
            direction_kind, starts_of_runs = algorithm.direction_kind, conditions.starts
            online_prediction = _solve_by_feature(
                problem, rule, direction_kind, starts_of_runs, recorded_steps, D
            )
        else:
            starts_are_of_runs = bool(conditions.starts)
            online_prediction = _solve_overlaps(
                problem,
                loss,
                rule,
                starts,
                recorded_steps,
                batch_size,
                D,
                labels_are_linear,
                starts_are_of_runs,
            )
    except TooExpensive:
        return f"theory of {steps} steps takes longer than a minute; ask for fewer steps, or smaller batches"
    except OverlapsDiverge:
        return divergence_reason(rule.learning_rate(0))
    except StepLengthFluctuates as error:
        return f"too few features or samples determine a step, so its length stays random at any dimension ({error})"
    trajectory = mean_trajectory(problem, online_prediction.overlap_path, batch_size)
    prediction = _prediction_at_end(
        problem, alpha, online_prediction, algorithm.direction_kind == "sign"
    )
    if labels_are_linear and algorithm.direction_kind != "sign":
        _add_ratio_errors(
            problem, alpha, online_prediction, D, prediction.more, trajectory
        )
    trajectory_is_drawn = (
        online_prediction.drawn_path is not None and not labels_are_linear
    )
    latent_cost = cost_of_all_steps(problem, loss, steps, len(starts))
    if (
        conditions.trajectory
        and trajectory_is_drawn
        and latent_cost < fields.ACCURACY.largest_limit_latents
    ):
        # The limit of large D is shown where it is known.
        with suppress(OverlapsDiverge, TooExpensive):
            limit_path = solve(problem, loss, rule, starts, recorded_steps)
            limit_trajectory = mean_trajectory(problem, limit_path, 1)
            trajectory |= {
                f"{metric_name}_limit": limit_trajectory[metric_name]
                for metric_name in ("mse", "overlap")
            }
    return replace(
        prediction,
        trajectory=trajectory,
        at_size=is_solved_by_feature or bool(conditions.starts),
    )


def _solve_overlaps(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    starts: Sequence[Overlaps],
    recorded_steps: list[int],
    batch_size: int,
    D: int,
    labels_are_linear: bool,
    starts_are_of_runs: bool,
) -> OnlinePrediction:
    """Predicted overlaps at the recorded steps of an update rule from the closed equations, or from draws at finite dimension D
    with batches of ``batch_size`` samples where these are affordable. ``starts`` are the initial overlaps, those of runs if
    ``starts_are_of_runs``, else random ones; with linear labels the equations are linear in the overlaps.
    """
    start_count = len(starts) * (8 if labels_are_linear else 1)
    draw_count = affordable_draws(
        problem, recorded_steps[-1], batch_size, start_count, D
    )
    drawn_path = None
    if draw_count:
        drawn_path = draw_paths(
            problem, loss, rule, starts, recorded_steps, draw_count, batch_size, D
        )
    if drawn_path is not None and not labels_are_linear:
        overlap_path = drawn_path
        method = f"mean of {draw_count * len(starts)} draws of the overlaps at this dimension"
        overlaps_are_finite = np.isfinite(overlap_path.cross[:, -1]).all(axis=(-2, -1))
        diverged_fraction = 1 - overlaps_are_finite.sum() / overlaps_are_finite.size
        if diverged_fraction:
            method += (
                f"; {diverged_fraction:.1%} of the draws diverged and were left out"
            )
    else:
        # Equations that are linear in the overlaps start from their mean.
        initial_overlaps = (
            [mean_start(problem)]
            if labels_are_linear and not starts_are_of_runs
            else starts
        )
        overlap_path = solve(problem, loss, rule, initial_overlaps, recorded_steps)
        method = _solver_name(problem, len(overlap_path.cross), starts, D)
    if not starts_are_of_runs:
        overlap_path = starts_as_evaluations(overlap_path)
        drawn_path = drawn_path and starts_as_evaluations(drawn_path)
    return OnlinePrediction(overlap_path, drawn_path, method)


def _prediction_at_end(
    problem: Problem,
    alpha: float,
    online_prediction: OnlinePrediction,
    is_signsgd: bool,
) -> AlgorithmPrediction:
    """Prediction of errors and overlaps at the last step of an online run, from its ``online_prediction``, for the sample ratio
    alpha of all its samples. For ``signsgd``, whose steps are drawn (``is_signsgd``), generalization errors are computed from
    overlaps averaged over sets of draws.
    """
    overlap_path, _, method = online_prediction
    prediction = limit_point(
        problem,
        alpha,
        _final_overlaps(overlap_path),
        method=method,
        branch="online descent",
        prediction=not is_signsgd,
    )
    if is_signsgd:
        # Errors of prediction of linear labels are linear in the overlaps: a few means stand for all draws.
        sets_of_draws = [
            np.array_split(matrices[:, -1, 0], fields.ACCURACY.signsgd_draw_sets)
            for matrices in (
                overlap_path.truth,
                overlap_path.cross,
                overlap_path.self_overlap,
            )
        ]
        mean_overlaps = [
            [Overlaps(*(draws_of_set.mean(axis=0) for draws_of_set in matrices))]
            for matrices in zip(*sets_of_draws)
        ]
        metrics_of_means = limit_point(
            problem, alpha, mean_overlaps, method=method
        ).more
        for metric_name in ("generalization_error", "generalization_error_error"):
            prediction.more[metric_name] = metrics_of_means[metric_name]
    return prediction


def _add_ratio_errors(
    problem: Problem,
    alpha: float,
    online_prediction: OnlinePrediction,
    D: int,
    metrics: dict[str, Array],
    trajectory: Trajectory,
) -> None:
    """Add the errors of cosines predicted by ``online_prediction`` at dimension D to ``metrics`` (at the end of the run) and
    ``trajectory``: cosines are ratios of mean overlaps in place of mean ratios. The difference is measured on ``drawn_metrics``,
    those of draws, where there are any.
    """
    drawn_metrics = drawn_trajectory = None
    # With unequal variances few features carry an overlap, which fluctuates as if there were only that many.
    mean_squared_variance = 1.0
    if problem.features is not None:
        mean_squared_variance = np.mean(problem.features**2)
    effective_dimension = D / float(mean_squared_variance)
    if online_prediction.drawn_path is not None:
        final_overlaps = _final_overlaps(online_prediction.drawn_path)
        drawn_metrics = limit_point(
            problem, alpha, final_overlaps, method="", prediction=False
        ).more
        drawn_trajectory = mean_trajectory(problem, online_prediction.drawn_path, 1)
    for metric_name in ("cosine", "squared_cosine"):
        metrics[f"{metric_name}_error"] = _ratio_error(
            metric_name, metrics, drawn_metrics, effective_dimension
        )
    trajectory["overlap_error"] = _ratio_error(
        "overlap", trajectory, drawn_trajectory, effective_dimension
    )


def why_no_equations(problem: Problem) -> str | None:
    """Reason why the equations of gradient descent on a low-rank factor do not apply to this problem, or None."""
    if problem.channel.vjp is None:
        return "descent replaces hardmax by an annealed softmax, for which there is no theory"
    test_signal = np.arange(2.0 * problem.components).reshape(problem.components, 2)
    if not np.array_equal(factor_of(problem).compose(test_signal), test_signal):
        return f"prior {problem.prior.name!r} has a factor that is not the signal itself, for which there is no theory"
    return None


def _solve_by_feature(
    problem: Problem,
    rule: DescentRule,
    direction_kind: str,
    starts: Sequence[Overlaps],
    recorded_steps: list[int],
    D: int,
) -> OnlinePrediction:
    """Predicted overlaps at the recorded steps of an update rule from the equations of single features, for D features, P
    components and Gram matrices of R vectors (teacher, student, velocity), from the initial overlaps ``starts`` of runs or random
    ones; the error is the spread over initial states. ``direction_kind`` says what the student moves along, the gradient or its
    polar factor.

    The equations of a gradient are linear: they start from the mean over all teachers and students.
    """
    feature_variances = np.ones(D) if problem.features is None else problem.features
    distinct_variances, feature_counts = np.unique(
        feature_variances, return_counts=True
    )
    P = problem.components
    last_step = recorded_steps[-1]
    R = P * (3 if rule.momentum else 2)
    noise_variances = additive_noise(problem)
    assert noise_variances is not None  # labels are linear
    # In units of 20 seconds.
    relative_cost = last_step * len(distinct_variances) * R**2 / 8e7
    start_count = min(fields.ACCURACY.random_starts, int(1 / relative_cost))
    starts_are_of_runs = bool(starts) and problem.features is None
    if starts_are_of_runs:
        initial_grams = gram_of(starts, rule.momentum)[None]
    elif direction_kind == "gradient" or len(distinct_variances) == 1:
        mean_gram = gram_of([mean_start(problem)], rule.momentum)
        initial_grams = np.repeat(mean_gram[None], len(distinct_variances), axis=0)
    elif start_count < 4 * P:
        raise TooExpensive(
            f"{last_step} steps take more than a minute to solve; use fewer steps"
        )
    else:
        # Entries are N(0, 1); over the starts, the second moments of every feature are exact.
        rng = monte_carlo_rng("online descent: starts by feature", D)
        normal_entries = rng.standard_normal((D, start_count, 2 * P))
        left_vectors, _, right_vectors = np.linalg.svd(
            normal_entries, full_matrices=False
        )
        whitened_normals = np.sqrt(start_count) * (left_vectors @ right_vectors)
        feature_products = outer_product(whitened_normals, whitened_normals)
        summed_products = np.add.reduceat(
            feature_products, np.cumsum(feature_counts) - feature_counts
        )
        initial_grams = np.zeros((len(distinct_variances), start_count, R, R))
        initial_grams[..., : 2 * P, : 2 * P] = (
            summed_products / feature_counts[:, None, None, None]
        )
    overlap_path = solve_features(
        rule,
        direction_kind,
        distinct_variances,
        feature_counts / D,
        float(noise_variances.mean()),
        problem.model.sites,
        D,
        initial_grams,
        recorded_steps,
    )
    overlap_path = (
        overlap_path if starts_are_of_runs else starts_as_evaluations(overlap_path)
    )
    method = f"recursion feature by feature, {len(overlap_path.cross)} starts"
    return OnlinePrediction(overlap_path, None, method)


def _draw_sign_steps(
    problem: Problem, rule: DescentRule, recorded_steps: list[int], D: int
) -> OnlinePrediction:
    """Predicted overlaps of ``signsgd`` by an update rule at the recorded steps, from random draws of teacher, start and
    steps in D dimensions, as many as time allows. P is the number of components.
    """
    field_accuracy, P = fields.ACCURACY, problem.components
    fewest_draws, most_draws = field_accuracy.signsgd_draw_range
    draw_count = min(
        most_draws,
        int(field_accuracy.largest_signsgd_entries / (recorded_steps[-1] * P * D)),
    )
    if draw_count < fewest_draws:
        raise TooExpensive(
            f"{recorded_steps[-1]} steps take more than a minute to solve; use fewer steps"
        )
    rng = monte_carlo_rng("online descent: signs", D)
    noise_variances = additive_noise(problem)
    assert noise_variances is not None  # labels are linear
    initial_vectors = np.zeros((draw_count, 1, P * (3 if rule.momentum else 2), D))
    for vectors_of_draw in initial_vectors[:, 0]:
        vectors_of_draw[: 2 * P] = np.concatenate(_signal_and_factor(problem, rng, D))
    overlap_path = draw_signs(
        rule,
        np.ones(D) if problem.features is None else problem.features,
        float(noise_variances.mean()),
        round(rule.batch_ratio * D) * problem.model.sites,
        initial_vectors,
        recorded_steps,
        rng,
    )
    method = f"mean of {draw_count} draws of the steps at this dimension"
    return OnlinePrediction(overlap_path, None, method)


def _signal_and_factor(
    problem: Problem, rng: np.random.Generator, D: int
) -> tuple[Host, Host]:
    """Random signal and independent random factor (the student's start), (P, D) each, of a problem with P components."""
    P = problem.components
    signal = np.asarray(problem.prior.sample(rng, P, D))
    return signal, np.asarray(factor_of(problem).draw(rng, P, D, None))


def starts_as_evaluations(path: OverlapPath) -> OverlapPath:
    """Path of overlaps with the axes of random starts (the third) and of evaluations (the first) exchanged, so that the spread
    over starts counts as the error.
    """
    return OverlapPath(
        path.steps,
        *(np.swapaxes(overlaps_of_kind, 0, 2) for overlaps_of_kind in path[1:]),
    )


def mean_start(problem: Problem) -> Overlaps:
    """Mean initial overlaps (truth, cross, own) of a random signal and an independent random factor."""
    second_moment = np.asarray(problem.prior.second_moment(problem.components))
    return Overlaps(second_moment, 0 * second_moment, second_moment)


def _final_overlaps(path: OverlapPath) -> list[list[Overlaps]]:
    """Overlaps at the end of a path, a list over evaluations of lists over initial states, without diverged draws."""
    final_overlaps = []
    for matrices_of_evaluation in zip(
        path.truth[:, -1], path.cross[:, -1], path.self_overlap[:, -1]
    ):
        overlaps_of_starts = [
            Overlaps(*overlap_matrices)
            for overlap_matrices in zip(*matrices_of_evaluation)
        ]
        finite_overlaps = [
            overlaps_of_start
            for overlaps_of_start in overlaps_of_starts
            if np.isfinite(overlaps_of_start.cross).all()
        ]
        if finite_overlaps:
            final_overlaps.append(finite_overlaps)
    return final_overlaps


def _solver_name(
    problem: Problem, set_count: int, starts: Sequence[Overlaps], D: int
) -> str:
    """Description of how the equations were solved with ``set_count`` sets of integration points, with a note where the
    randomness of the start in D dimensions matters.
    """
    integration_method = "Monte Carlo"
    if set_count == 1:
        integration_method = "closed form"
    elif set_count == len(fields.ACCURACY.gauss_nodes):
        integration_method = "quadrature"
    largest_overlap = max(
        np.abs(initial_overlaps.cross).max() for initial_overlaps in starts
    )
    if problem.channel.symmetry != "none" and largest_overlap < 5.0 / np.sqrt(D):
        integration_method += ", from initial overlaps of order 1/sqrt(D), so that the time of escape is random"
    return f"recursion of online descent, {integration_method}"


def _ratio_error(
    metric_name: str,
    metrics_of_means: dict[str, Array],
    drawn_metrics: dict[str, Array] | None,
    effective_dimension: float,
) -> list[Any]:
    """Error of the metric ``metric_name``, a ratio of mean overlaps (a cosine) in place of the mean ratio: the difference of
    ``metrics_of_means`` from ``drawn_metrics``, the mean ratio over draws, or without draws its order of magnitude, 1 over
    ``effective_dimension``.
    """
    ratio = np.asarray(metrics_of_means[metric_name])
    if drawn_metrics is None:
        squared_cosine = ratio**2 if metric_name == "cosine" else ratio
        return list((3.0 * (1 - squared_cosine) / effective_dimension).tolist())
    ratio_difference = ratio - np.asarray(drawn_metrics[metric_name])
    return list(
        np.hypot(
            ratio_difference, np.asarray(drawn_metrics[f"{metric_name}_error"])
        ).tolist()
    )


def typical_starts(
    problem: Problem, D: int, on_sphere: bool, start_count: int
) -> list[Overlaps]:
    """Initial overlaps of ``start_count`` typical runs at dimension D, for random signals and independent random factors,
    ``on_sphere`` scaled to unit mean square.
    """
    rng = monte_carlo_rng("online descent: typical starts", D)
    overlaps_of_starts = []
    for _ in range(start_count):
        signal, factor = _signal_and_factor(problem, rng, D)
        if on_sphere:
            factor = factor / np.sqrt(np.mean(factor**2, axis=-1, keepdims=True))
        factor_pairs = ((signal, signal), (factor, signal), (factor, factor))
        overlaps_of_starts.append(
            Overlaps(
                *(
                    left_matrix @ right_matrix.T / D
                    for left_matrix, right_matrix in factor_pairs
                )
            )
        )
    return overlaps_of_starts


def mean_trajectory(problem: Problem, path: OverlapPath, batch_size: int) -> Trajectory:
    """Predicted trajectory of P components (steps, samples, MSE, overlap) in steps of ``batch_size`` samples, averaged over the
    starts and evaluations of a path of overlaps, with the standard error over evaluations.
    """
    P = problem.components
    # Evaluations, steps, starts: as many as there are, in one batch.
    flat_overlaps = [
        matrix.reshape(-1, P, P)
        for matrix in (path.truth, path.cross, path.self_overlap)
    ]
    overlaps_are_finite = np.asarray(np.isfinite(flat_overlaps[1]).all(axis=(1, 2)))
    finite_overlaps = (
        np.where(overlaps_are_finite[:, None, None], matrix, 0.0)
        for matrix in flat_overlaps
    )
    metrics = scores(aligned(problem, Overlaps(*finite_overlaps)))
    trajectory_columns: Trajectory = {
        "iteration": path.steps.tolist(),
        "samples": (path.steps * batch_size).tolist(),
    }
    overlap_score = "squared_cosine" if problem.model.rank == "low" else "overlap"
    for column_name, score_name in (("mse", "mse"), ("overlap", overlap_score)):
        scores_or_nan = np.where(
            overlaps_are_finite[:, None], metrics[score_name], np.nan
        )
        scores_of_starts = scores_or_nan.reshape(*path.cross.shape[:3], P)
        counts_of_finite_starts = np.isfinite(scores_of_starts).sum(axis=2)
        # (evaluations, steps, P)
        mean_of_starts = np.nansum(scores_of_starts, axis=2) / np.maximum(
            counts_of_finite_starts, 1
        )
        mean_score = np.nansum(
            scores_of_starts, axis=(0, 2)
        ) / counts_of_finite_starts.sum(axis=0)
        trajectory_columns[column_name] = mean_score.tolist()
        trajectory_columns[f"{column_name}_error"] = standard_error(
            mean_of_starts
        ).tolist()
    return trajectory_columns


def standard_error(samples: Host) -> Host:
    """Standard error of the mean of ``samples`` over the first axis; 0 for a single one, which is exact."""
    if len(samples) == 1:
        return np.zeros_like(samples[0])
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))
