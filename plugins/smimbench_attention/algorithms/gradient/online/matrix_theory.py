"""Prediction for online ``sgd`` on matrices of extensive rank: draws at the dimension of the runs, and the exact limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.problem import Problem
from smimbench.theory import limit_point, per_component
from smimbench_attention.algorithms.gradient.loss import fitting_loss
from smimbench_attention.algorithms.gradient.online.direct import (
    is_direct,
    solve_direct_flow,
)
from smimbench_attention.algorithms.gradient.online.equations import (
    OverlapPath,
    OverlapsDiverge,
    TooExpensive,
    divergence_reason,
    online_run,
    recorded_steps_of,
)
from smimbench_attention.algorithms.gradient.online.fields import (
    evaluation_count,
    gradient_averages,
)
from smimbench_attention.algorithms.gradient.online.matrices import (
    DRAWS,
    MatrixPath,
    affordable_matrix_draws,
    couples_opposite_pairs,
    draw_matrix_paths,
    excess_of_derivatives,
)
from smimbench_attention.algorithms.gradient.online.riccati import (
    Coefficients,
    StudentMoments,
    solve_flow,
    wishart_spectrum,
)
from smimbench_attention.algorithms.gradient.online.theory import (
    Trajectory,
    mean_trajectory,
    standard_error,
)
from smimbench_attention.priors.wishart import Wishart

if TYPE_CHECKING:
    from smimbench_attention.algorithms.gradient import Descent, MomentumDescent

LARGEST_NOISE_ERROR = 0.2
"""Largest error from taking the noise of batches for Gaussian, over the mean squared error; with more there is no prediction."""

GRADIENT_SIZE_ERROR, OTHER_SIZE_ERROR = 5.0, 8.0
"""Error of draws at dimension D, over the mean squared error and in units of 1/D, where steps follow the gradient and
elsewhere: terms that vanish as D and, elsewhere, batches grow. Measured at D = 40 to 200: up to 5 for ``sgd`` (softmax of three
tokens), 4 to 9 for ``adam``."""

LARGEST_EXCESS = 1.4
"""Largest mean square of derivatives over that of Gaussian latents. At 1.4 (``h2`` of smimbench-hermite, D = 200) errors are off
by 10% midway; linear and softmax labels stay below 1.1 from D = 30 on."""


def matrix_theory(
    algorithm: Descent, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict a gradient method on fresh samples of matrices under the conditions of the runs (dimension), by means over draws
    of runs at their dimension, or return why there is no theory. alpha is the sample ratio.
    """
    run = online_run(algorithm, problem, conditions)
    if isinstance(run, str):
        return run
    D, steps, batch_size, loss = run
    if reason := _why_no_mean_gradient(algorithm, problem, loss):
        return reason
    follows_gradient = getattr(algorithm, "direction_kind", None) == "gradient"
    if problem.components > 1 and not follows_gradient:
        return "of several matrices theory exists for sgd only"
    excess = excess_of_derivatives(problem, loss, D)
    if excess > LARGEST_EXCESS:
        return (
            f"at dimension {D} latents are not Gaussian enough for labels as steep as these: the mean square of the loss's "
            f"derivative is {excess:.1f} times what theory takes it for; it needs a larger dimension"
        )
    recorded_steps = recorded_steps_of(steps)

    def drawn(draws: range, *batch_sizes: float) -> MatrixPath:
        """Draws of the run by their numbers, with the noise of batches of so many samples."""
        return draw_matrix_paths(
            problem, algorithm, loss, recorded_steps, batch_sizes, D, draws
        )

    first_draws = range(DRAWS[0])
    try:
        draw_count = affordable_matrix_draws(problem, steps, D)
        if follows_gradient:
            path = drawn(first_draws, batch_size, 2.0 * batch_size, math.inf)
            error_paths = _mean_squared_errors(path.overlaps)
            noise_error = _error_of_gaussian_noise(*np.moveaxis(error_paths, 1, 0))
            size_share = GRADIENT_SIZE_ERROR / D
            if (noise_error[-1] > LARGEST_NOISE_ERROR * error_paths[-1, 0]).any():
                return (
                    f"batches of {batch_size} samples are too small at learning rate {algorithm.learning_rate:g}: their "
                    "noise is not Gaussian; theory needs larger batches or a smaller rate"
                )
            path = path.of_first_batch_size()
        else:
            path = drawn(first_draws, batch_size)
            # The noise sets the size of the steps, so there is nothing to compare with.
            noise_error = np.zeros(problem.components)
            size_share = OTHER_SIZE_ERROR / min(D, batch_size)
        if draw_count > len(first_draws):
            further_draws = range(len(first_draws), draw_count)
            path = path.with_further(drawn(further_draws, batch_size))
    except TooExpensive as error:
        return f"{error}; ask for fewer steps"
    except OverlapsDiverge:
        return divergence_reason(algorithm.learning_rate)
    overlaps = path.overlaps
    mean_errors = _mean_squared_errors(overlaps)[:, 0]
    unknown_error = np.hypot(noise_error, size_share * mean_errors)
    at_end = (overlaps.truth, overlaps.cross, overlaps.self_overlap)
    sets_of_draws = [
        np.array_split(matrices[:, -1, 0], DRAWS[0]) for matrices in at_end
    ]
    prediction = limit_point(
        problem,
        alpha,
        [
            [Overlaps(*(draws.mean(axis=0) for draws in matrices))]
            for matrices in zip(*sets_of_draws)
        ],
        method=f"mean of {draw_count} draws of the matrices at this dimension",
        branch="online descent",
        uncertain=Overlaps(0.0, 0.0, np.diag(unknown_error[-1])),
    )
    trajectory = mean_trajectory(problem, overlaps, batch_size)
    trajectory["mse_error"] = np.hypot(trajectory["mse_error"], unknown_error).tolist()
    overlap_errors = np.hypot(
        trajectory["overlap_error"], size_share * np.abs(trajectory["overlap"])
    )
    trajectory["overlap_error"] = overlap_errors.tolist()
    prediction.more["overlap_error"] = per_component(overlap_errors[-1])
    _add_traces(
        prediction, trajectory, overlaps, path.traces[:, :, 0], mean_trace(problem)
    )
    return replace(prediction, trajectory=trajectory, at_size=True)


def _why_no_mean_gradient(
    algorithm: Descent, problem: Problem, loss: str
) -> str | None:
    """Reason why the mean gradient of a batch is not known, or is not what an algorithm follows; None if there is none."""
    if problem.channel.vjp is None:
        return "descent replaces hardmax by an annealed softmax, for which there is no theory"
    if algorithm.spherical:
        return "descent of matrices on a sphere has no theory"
    if couples_opposite_pairs(problem, loss):
        return "labels couple the pairs (a, b) and (b, a) of tokens, for which there is no theory without symmetry"
    return None


def _add_traces(
    prediction: AlgorithmPrediction,
    trajectory: Trajectory,
    overlaps: OverlapPath,
    traces: Host,
    teacher_trace: float,
) -> None:
    """Add the normalized ``traces`` (evaluations, steps, P) of the student, and its overlap with the teacher beyond chance, to
    a trajectory and, those at the end, to a prediction.
    """
    cross = np.diagonal(overlaps.cross[:, :, 0], axis1=-2, axis2=-1)
    columns = {"trace": traces, "overlap_beyond_chance": cross - traces * teacher_trace}
    for name, values in columns.items():
        trajectory[name] = values.mean(axis=0).tolist()
        trajectory[f"{name}_error"] = standard_error(values).tolist()
    for name in columns:
        prediction.more[name] = trajectory[name][-1]
        prediction.more[f"{name}_error"] = trajectory[f"{name}_error"][-1]


def flow_theory(
    algorithm: MomentumDescent, problem: Problem, alpha: float
) -> AlgorithmPrediction | str:
    """Predict ``sgd`` in the limit of large D and small steps, with its trajectory, or return why the limit is not known.
    alpha is the sample ratio.
    """
    loss = algorithm.loss or fitting_loss(problem)
    if reason := _why_no_mean_gradient(algorithm, problem, loss):
        return reason
    if algorithm.width is not None:
        return "the limit depends on the width of the factor over D: theory needs the dimension D of the runs"
    recorded_steps = recorded_steps_of(int(algorithm.steps or 0))
    moments = flow_moments(algorithm, problem, loss, recorded_steps, 1)
    if isinstance(moments, str):
        return moments
    trace, cross, self_overlap = (
        values.T[:, :, None, None, None] for values in moments
    )
    truth = np.full_like(cross, _teacher_moment(problem))
    overlaps = OverlapPath(np.asarray(recorded_steps), truth, cross, self_overlap)
    prediction = limit_point(
        problem,
        alpha,
        [
            [Overlaps(*matrices)]
            for matrices in zip(*(values[:, -1, 0] for values in overlaps[1:]))
        ],
        method="limit of large D and small steps, solved exactly",
        branch="online descent",
    )
    trajectory = mean_trajectory(problem, overlaps, int(algorithm.batch or 0))
    _add_traces(
        prediction, trajectory, overlaps, trace[:, :, 0, 0], mean_trace(problem)
    )
    return replace(prediction, trajectory=trajectory)


def with_flow_limit(
    prediction: AlgorithmPrediction,
    algorithm: MomentumDescent,
    problem: Problem,
    conditions: Conditions,
) -> AlgorithmPrediction:
    """Add the limit of ``sgd`` for large D and small steps to the trajectory of a prediction for the dimension of the runs, if
    the conditions ask for a trajectory and the limit is known.
    """
    trajectory, D = prediction.trajectory, conditions.dimension
    if not (conditions.trajectory and isinstance(trajectory, dict) and D):
        return prediction
    loss = algorithm.loss or fitting_loss(problem)
    moments = flow_moments(algorithm, problem, loss, trajectory["iteration"], D)
    if isinstance(moments, str):
        return prediction
    columns = _limit_columns(problem, moments)
    return replace(prediction, trajectory=trajectory | columns)


def _mean_squared_errors(overlaps: OverlapPath) -> Host:
    """Squared errors (steps, starts, P) along a path of overlaps, averaged over its draws."""
    squared_error = overlaps.truth - 2 * overlaps.cross + overlaps.self_overlap
    return np.asarray(np.diagonal(squared_error, axis1=-2, axis2=-1).mean(axis=0))


def _error_of_gaussian_noise(full: Host, half: Host, none: Host) -> Host:
    """Error (steps, P) of the mean squared error from taking the noise of batches for Gaussian: the part of what noise changes
    that is not linear in its variance, from mean squared errors with the noise, with half of its variance and without, of the
    same teachers and starts. What sets the noise apart from a Gaussian one acts in the same order.

    Runs with linear labels at D = 60 and 100 and batches of 15 to 120 samples differ from draws by 0.7 to 1.4 times as much.
    """
    return np.asarray(np.abs((full - none) - 2 * (half - none)))


def mean_trace(problem: Problem) -> float:
    """Normalized trace ``tr(S) / D`` of the prior mean."""
    small_mean = np.asarray(problem.prior.mean(1, 8))[0]
    squared_trace = float(np.asarray(problem.prior.mean_overlap(1))[0, 0])
    return math.copysign(math.sqrt(squared_trace), np.trace(small_mean))


def _teacher_moment(problem: Problem) -> float:
    """Overlap ``tr(S* S*^T) / D`` of the teacher with itself, of one matrix."""
    return float(np.asarray(problem.prior.second_moment(1))[0, 0])


def flow_moments(
    algorithm: MomentumDescent,
    problem: Problem,
    loss: str,
    recorded_steps: list[int],
    dimension: int,
) -> StudentMoments | str:
    """Moments of the student at the recorded steps (steps, evaluations) in the limit of large D and small steps, for the ratio
    of its width to the ``dimension``, or why they are not known.
    """
    prior = problem.prior
    descends_on_signal = is_direct(problem)
    if problem.components > 1 or not (descends_on_signal or isinstance(prior, Wishart)):
        return "the limit is known for one matrix only, Wishart or without a factor"
    teacher_moment = _teacher_moment(problem)
    averages = gradient_averages(problem, loss, np.full((1, 1, 1), teacher_moment))
    sets = evaluation_count(problem, loss)

    def coefficients(cross: Host, self_overlap: Host) -> Coefficients:
        """Coefficients of the flow: halves of those of the mean gradient at these overlaps."""
        means = averages(cross[:, None, None, None], self_overlap[:, None, None, None])
        return Coefficients(
            means.on_student[:, 0, 0, 0] / 2, means.on_teacher[:, 0, 0, 0] / 2
        )

    total_steps = recorded_steps[-1]
    rates = [
        algorithm.learning_rate_at(step, total_steps) / (1 - algorithm.momentum)
        for step in range(total_steps)
    ]
    summed_rates = np.concatenate([[0.0], np.cumsum(rates)])[recorded_steps]
    if descends_on_signal:
        time_unit = 2 * problem.model.kappa
        return solve_direct_flow(
            coefficients,
            time_unit * summed_rates,
            sets,
            mean_trace(problem),
            teacher_moment,
            algorithm.weight_decay / time_unit,
        )
    assert isinstance(prior, Wishart)
    width_ratio = prior.rho if algorithm.width is None else algorithm.width / dimension
    root = math.sqrt(width_ratio)
    return solve_flow(
        wishart_spectrum(prior.rho),
        coefficients,
        4 / root * summed_rates,
        sets,
        width_ratio,
        root,
        algorithm.weight_decay * root / 4,
    )


def _limit_columns(problem: Problem, moments: StudentMoments) -> Trajectory:
    """Columns of the limit for the trajectory: means over the evaluations of errors, overlaps and traces."""
    columns = {
        "mse_limit": _teacher_moment(problem)
        - 2 * moments.cross
        + moments.self_overlap,
        "overlap_limit": moments.cross,
        "trace_limit": moments.trace,
        "overlap_beyond_chance_limit": moments.cross
        - moments.trace * mean_trace(problem),
    }
    return {name: values.mean(axis=1).tolist() for name, values in columns.items()}
