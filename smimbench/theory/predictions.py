"""Predictions as D goes to infinity: the Bayes-optimal ones by the appropriate solver, and those of a single algorithm.

The Bayes-optimal theory of a problem splits into parts for parallel work. The prediction of an algorithm is built from its
overlaps in the limit, and what its method ``theory`` returns is checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import (
    AlgorithmPrediction,
    Conditions,
    Host,
    Overlaps,
    Uncertain,
    takes,
)
from smimbench.interfaces.algorithm import refusal
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.memo import cached_on
from smimbench.problem.problem import AlgorithmWithAssumption, Problem
from smimbench.theory.coupled import CoupledCurve
from smimbench.theory.curve import Curve
from smimbench.theory.fixed_point_curve import fixed_point_curve
from smimbench.theory.generalization import measured_error
from smimbench.theory.information import information_at, overlap_at
from smimbench.theory.scalar import GridCurve, scalar_curve
from smimbench.theory.types import (
    NO_THEORY,
    Prediction,
    TheoryPoint,
    Thresholds,
    per_component,
)

NODES_PER_PART = 4
"""Nodes of a sampled curve in one part for another process; doubled, processes idle longer at the end."""


def curve_of(problem: Problem) -> Curve:
    """Curve of fixed points of a problem by the solver that fits it (one overlap, decoupled or coupled components); computed once
    per problem. The inner function ``make`` builds it.

    Raises
    ------
    NoTheoryError
        If no theory is known for the inputs.
    """
    problem.require_theory()

    def make() -> Curve:
        """Build the curve of fixed points by the first solver that fits: one shared overlap, decoupled components, coupled
        components.
        """
        return (
            scalar_curve(problem) or fixed_point_curve(problem) or CoupledCurve(problem)
        )

    return cached_on(problem, "curve", make)


def solve(
    problem: Problem, alphas: Sequence[float], branch: str = "uninformed"
) -> list[Prediction]:
    """Predict the fixed point of one branch (uninformed: from the prior mean; informed: from the signal) at several sample
    ratios.

    Parameters
    ----------
    branch : str
        ``"uninformed"`` (what GAMP reaches from the prior mean) or ``"informed"``.
    """
    if branch not in ("uninformed", "informed"):
        raise ValueError(f"branch must be 'uninformed' or 'informed', got {branch!r}")
    return curve_of(problem).predict([float(alpha) for alpha in alphas], branch)


def competing(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    """Predict all competing fixed points at every sample ratio, the Bayes-optimal one first."""
    return curve_of(problem).competing([float(alpha) for alpha in alphas])


def thresholds(problem: Problem) -> Thresholds:
    """Critical sample ratios (thresholds) of a problem: weak and perfect recovery, sequential learning, hard phase."""
    return curve_of(problem).thresholds()


def independent_parts(
    problem: Problem, alphas: Sequence[float]
) -> list[tuple[str, list[float]]]:
    """Split the theory of a problem at sample ratios ``alphas`` into independent parts for ``solve_part``. A part is its kind and
    numbers: 'nodes' and values of log Qhat at which a sampled curve is evaluated, or 'ratio' and a sample ratio to solve at;
    empty if it cannot be split.

    A curve that is followed from node to node, or known in closed form, has none.
    """
    curve = curve_of(problem)
    if isinstance(curve, GridCurve):
        log_qhat = [float(node) for node in curve.log_qhat]
        return [
            ("nodes", log_qhat[first_node : first_node + NODES_PER_PART])
            for first_node in range(0, len(log_qhat), NODES_PER_PART)
        ]
    return (
        [("ratio", [float(alpha)]) for alpha in alphas]
        if isinstance(curve, CoupledCurve)
        else []
    )


def solve_part(problem: Problem, independent_part: tuple[str, Sequence[float]]) -> None:
    """Evaluate one independent part of a problem's theory (some values of log Qhat along a curve, or one sample ratio) and keep
    the information that it needed in the problem's cache, ``Nodes``.
    """
    kind, values = independent_part
    if kind == "nodes":
        information_at(
            problem,
            *overlap_at(
                problem,
                np.exp(np.asarray(values))[:, None, None] * np.eye(problem.components),
            ),
        )
    else:
        competing(problem, values)


def theory_point(
    problem: Problem, prediction: Prediction, errors: dict[str, Uncertain] | None = None
) -> TheoryPoint:
    """Combine a prediction (fixed point) and its generalization ``errors``, keyed by kind of predictor (bayes, plugin, constant),
    to a reported theory point.
    """
    overlap_matrix = np.asarray(prediction.Q)
    combined_point = TheoryPoint(
        prediction.alpha,
        prediction.mse,
        prediction.error,
        np.broadcast_to(prediction.alpha_error, prediction.error.shape),
        overlap_matrix,
        prediction.branch,
        prediction.method,
        free_entropy=prediction.free_entropy,
    )
    if errors:
        combined_point = replace(
            combined_point,
            generalization_error={kind: error.value for kind, error in errors.items()},
            generalization_error_error={
                kind: error.error for kind, error in errors.items()
            },
            generalization_error_method=next(iter(errors.values())).method,
        )
    second_moment = np.diagonal(prior_moments(problem)[0])
    if problem.model.rank != "low" or np.allclose(second_moment, 1, rtol=0, atol=1e-9):
        return combined_point
    return replace(
        combined_point,
        squared_cosine=(np.diagonal(overlap_matrix) / second_moment).tolist(),
        squared_cosine_error=(np.asarray(prediction.error) / second_moment).tolist(),
    )


def point_document(problem: Problem, prediction: Prediction) -> JsonObject:
    """Convert a prediction to the JSON of a theory point, without generalization errors."""
    return theory_point(problem, prediction).document()


MAX_SAMPLED_OVERLAPS = 32
"""Overlaps for which errors of prediction are sampled. Doubled: their mean is known 1.4 times better, in twice the time."""


def aligned(problem: Problem, overlaps: Overlaps) -> Overlaps:
    """Align overlaps (P, P) (truth: signal with itself, cross: estimate with signal, gram: estimate with itself): apply the
    symmetry operation that brings the estimate closest to the signal.

    A few numbers stand for the signal and the estimate: vectors with just these overlaps, which the model aligns as it does
    those of a run. Leading axes are a batch.
    """
    P, symmetry = problem.components, problem.channel.symmetry
    truth, cross, gram = (np.asarray(matrix, dtype=float) for matrix in overlaps)
    if symmetry == "none":
        return Overlaps(truth, cross, gram)
    if symmetry == "signs":
        signs = np.where(np.diagonal(cross, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
        return Overlaps(
            truth,
            signs[..., None] * cross,
            signs[..., None] * gram * signs[..., None, :],
        )
    if cross.ndim > 2:
        aligned_batch = [
            aligned(problem, Overlaps(*overlap_matrices))
            for overlap_matrices in zip(truth, cross, gram)
        ]
        return Overlaps(*(np.stack(matrices) for matrices in zip(*aligned_batch)))
    signal_and_estimate = symmetric_root(
        np.block([[truth, cross.T], [cross, gram]])
    ) * np.sqrt(2 * P)
    if problem.model.rank == "extensive":
        signal_and_estimate = signal_and_estimate[:, :, None] * np.eye(2 * P)
    signal = signal_and_estimate[:P]
    estimate = signal_and_estimate[P:]
    model = getattr(
        problem.model, "model", problem.model
    )  # the model without weights of features
    aligned_estimate = model.align(signal, estimate, symmetry)
    inner = model.inner
    # The operation is read off the roots and applied to the overlaps themselves, which the roots have rounded.
    transformation = np.asarray(inner(aligned_estimate, estimate)) @ np.linalg.pinv(
        np.asarray(inner(estimate, estimate)), rcond=1e-12
    )
    return Overlaps(
        truth, transformation @ cross, transformation @ gram @ transformation.T
    )


def scores(overlaps: Overlaps) -> dict[str, Host]:
    r"""Compute MSE, cosine and squared cosine (..., P) from aligned overlaps. T, M and Q are the diagonals of the overlap of
    the signal with itself, of signal and estimate, and of the estimate with itself.

    ``mse = T - 2 M + Q`` and ``squared_cosine = M^2 / (T Q)`` on the diagonals, T of the signal with itself, M of the estimate
    with the signal, Q of the estimate with itself; a component that is zero has the cosine 0.
    """
    T, M, Q = (
        np.diagonal(np.asarray(matrix), axis1=-2, axis2=-1) for matrix in overlaps
    )
    norms = T * Q
    cosine = np.clip(
        np.where(norms > 0, M / np.sqrt(np.where(norms > 0, norms, 1.0)), 0.0),
        -1.0,
        1.0,
    )
    mse = T - 2 * M + Q
    # At perfect recovery T, M and Q cancel, and rounding must not leave an MSE below 0. A clearly negative one is kept:
    # the overlaps are wrong then.
    mse = np.where(mse > -1e-14 * (np.abs(T) + np.abs(Q)), np.maximum(mse, 0.0), mse)
    return {"mse": mse, "squared_cosine": cosine**2, "cosine": cosine, "overlap": M}


def limit_point(
    problem: Problem,
    alpha: float,
    evaluations: Sequence[Sequence[Overlaps]],
    *,
    method: str,
    branch: str = "own",
    uncertain: Overlaps | None = None,
    V: Host | None = None,
    prediction: bool = True,
) -> AlgorithmPrediction:
    """Build the prediction at sample ratio alpha for an algorithm that is not Bayes-optimal, from its overlaps in the limit of
    infinite dimension (signal with itself, ``cross`` of estimate and signal, ``gram`` of the estimate), one set for every
    evaluation of the theory's integrals and every start of the runs. ``uncertain`` are errors of the overlaps, V is the error
    that the algorithm claims, ``prediction`` asks for generalization errors, and ``method`` and ``branch`` label the result.

    Parameters
    ----------
    alpha : float
        Sample ratio.
    evaluations : sequence of sequence of Overlaps
        The overlaps (P, P) in the limit, for every start that runs had (inner; one, where the start does not matter), from
        every independent evaluation of the integrals (outer). Values are means over both; their error is the standard error
        over evaluations.
    method, branch : str
        How they were obtained; which solution they are.
    uncertain : Overlaps, optional
        Errors of the overlaps other than the spread of evaluations; their effects on the metrics are added up.
    V : ndarray (P, P), optional
        Error that the algorithm claims; needed for its Bayes predictor and for ``calibration``.
    prediction : bool
        Whether errors of prediction are wanted too (sampled, some 10 ms each).
    """
    # Matrices of all evaluations and starts, (E, S, P, P) each.
    overlap_arrays = []
    for overlap_index in range(3):
        matrices = [
            [overlaps[overlap_index] for overlaps in starts] for starts in evaluations
        ]
        overlap_arrays.append(np.array(matrices, dtype=float))
    overlaps = aligned(problem, Overlaps(*overlap_arrays))
    metrics_of_evaluations = {
        name: value.mean(axis=1) for name, value in scores(overlaps).items()
    }
    metric_means = {
        name: value.mean(axis=0) for name, value in metrics_of_evaluations.items()
    }
    metric_errors = {name: np.zeros_like(value) for name, value in metric_means.items()}
    for overlap_index, error in enumerate(uncertain or ()):
        shifted_overlaps = [
            matrix + error if overlap_index == index else matrix
            for index, matrix in enumerate(overlaps)
        ]
        for name, value in scores(Overlaps(*shifted_overlaps)).items():
            metric_errors[name] += np.abs(
                value.mean(axis=1).mean(axis=0) - metric_means[name]
            )
    evaluation_count = len(evaluations)
    if evaluation_count > 1:
        for name, value in metrics_of_evaluations.items():
            metric_errors[name] = np.hypot(
                np.std(value, axis=0, ddof=1) / np.sqrt(evaluation_count),
                metric_errors[name],
            )
    cosine_names = (
        ("cosine", "squared_cosine") if problem.model.rank == "low" else ("cosine",)
    )
    document: JsonObject = {name: metric_means[name].tolist() for name in cosine_names}
    document |= {f"{name}_error": metric_errors[name].tolist() for name in cosine_names}
    document |= {
        "alpha": float(alpha),
        "overlap_error": per_component(metric_errors["overlap"]),
    }
    document["calibration"] = (
        None
        if V is None
        else (np.diagonal(V) / np.maximum(metric_means["mse"], 1e-300)).tolist()
    )
    if prediction:
        document |= _generalization_errors(problem, overlaps, V)
    cross, gram = (matrix.mean(axis=1).mean(axis=0) for matrix in overlaps[1:])
    return AlgorithmPrediction(
        metric_means["mse"],
        metric_errors["mse"],
        cross,
        method,
        branch,
        own_overlap=gram,
        more=document,
    )


def _generalization_errors(
    problem: Problem, overlaps: Overlaps, V: Host | None
) -> JsonObject:
    """Generalization errors and their uncertainties, by kind of predictor, as means over overlaps (E, S, P, P) of E evaluations
    of the theory's integrals and S starts of the runs. T, M and Q are the overlaps of truth, of truth and estimate, and of the
    estimate; V is the error that the algorithm claims.
    """
    start_count = overlaps.truth.shape[1]
    sampled_overlaps = [
        matrix[: max(1, MAX_SAMPLED_OVERLAPS // start_count), :MAX_SAMPLED_OVERLAPS]
        for matrix in overlaps
    ]
    evaluations = [
        [measured_error(problem, T, M.T, Q, V) for T, M, Q in zip(*matrices)]
        for matrices in zip(*sampled_overlaps)
    ]
    # The scatter of evaluations is an error; that of starts is one only if some of them are left out.
    groups = evaluations
    if start_count > MAX_SAMPLED_OVERLAPS:
        groups = [[errors] for errors in evaluations[0]]
    document: JsonObject = {
        "generalization_error": {},
        "generalization_error_error": {},
    }
    for kind in evaluations[0][0]:
        group_means = [
            np.mean([errors[kind].value for errors in group]) for group in groups
        ]
        standard_error = (
            np.std(group_means, ddof=1) / np.sqrt(len(group_means))
            if len(group_means) > 1
            else 0.0
        )
        sampling_error = np.mean(
            [errors[kind].error for group in evaluations for errors in group]
        )
        document["generalization_error"][kind] = float(np.mean(group_means))
        document["generalization_error_error"][kind] = float(
            np.hypot(standard_error, sampling_error)
        )
    return document


def takes_conditions(algorithm: Any) -> bool:
    """Whether the ``theory`` of an algorithm depends on the conditions of runs: whether it names a third argument."""
    theory_method = algorithm.theory
    if theory_method is None:
        return False
    return len(inspect.signature(theory_method).parameters.keys() - {"assumed"}) > 2


def own_theory(
    algorithm: Any, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Prediction at sample ratio alpha by an algorithm's own ``theory`` method, for runs under these ``conditions``; or the
    reason why there is none.

    Parameters
    ----------
    alpha : float
        Sample ratio that runs have used, all fresh samples counted.
    conditions : Conditions
        Handed to a ``theory`` that names a third argument.

    Raises
    ------
    ValueError
        If the returned object is not a valid prediction.
    """
    if reason := refusal(algorithm, problem):
        return reason
    theory_method = algorithm.theory
    if theory_method is None:
        return NO_THEORY
    theory_options = {}
    if (
        isinstance(algorithm, AlgorithmWithAssumption)
        and (assumed := algorithm.assumed(problem)).is_assumed
    ):
        if not takes(theory_method, "assumed"):
            return f"no theory of {algorithm.name} with wrong assumptions is known"
        theory_options = {"assumed": assumed}
    prediction: AlgorithmPrediction | str | None
    prediction = (
        theory_method(problem, alpha, conditions, **theory_options)
        if takes_conditions(algorithm)
        else theory_method(problem, alpha, **theory_options)
    )
    if prediction is None:
        return NO_THEORY
    if not isinstance(prediction, str) and (
        complaint := _why_invalid(prediction, problem.components)
    ):
        raise ValueError(
            f"the method theory of algorithm {algorithm.name!r} {complaint}"
        )
    return prediction


def _why_invalid(prediction: object, P: int) -> str | None:
    """Describe what is wrong with a prediction that ``theory`` returned; None if it is valid. ``P`` is the number of
    components.
    """
    if not isinstance(prediction, AlgorithmPrediction):
        type_name = type(prediction).__name__
        return f"must return a smimbench.interfaces.AlgorithmPrediction or a reason in words, got {type_name}"
    if np.shape(prediction.overlap) != (P, P):
        return f"must give an overlap of shape ({P}, {P}), got {np.shape(prediction.overlap)}"
    for name in ("mse", "mse_error"):
        component_values = np.atleast_1d(getattr(prediction, name))
        if (
            component_values.shape != (P,)
            or not (np.isfinite(component_values) & (component_values >= 0)).all()
        ):
            return f"must give {P} finite numbers >= 0 as {name}, got {getattr(prediction, name)}"
    if isinstance(prediction.trajectory, dict):
        trajectory_lengths = {
            name: len(component_values)
            for name, component_values in prediction.trajectory.items()
        }
        if len(set(trajectory_lengths.values())) > 1:
            return (
                f"has a trajectory of lists of different lengths: {trajectory_lengths}"
            )
    return None
