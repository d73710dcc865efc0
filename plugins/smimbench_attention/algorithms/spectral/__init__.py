"""The algorithm ``spectral``: leading eigenvectors of linearized message passing, or its first step.

Eigenvectors are for low rank, the first step for extensive rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smimbench.backend import asarray_like, dtype_name, send, to_host
from smimbench.derive import denoise_step
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Data,
    Denoised,
    Host,
    Info,
    Plan,
    Start,
    require,
)
from smimbench.numerics import with_floor
from smimbench.problem import Problem
from smimbench.theory import (
    Prediction,
    information_at,
    overlap_at,
    point_document,
    prior_moments,
)
from smimbench_attention.algorithms.gamp.message_pass import (
    label_information,
    message_pass,
    solve_components,
)
from smimbench_attention.algorithms.spectral.eigenvectors import spectral_estimate
from smimbench_attention.algorithms.spectral.limit import (
    KINDS,
    REGULARISATION,
    spectral_theory,
    why_not_linearized,
)

STARTING_POINTS = ("prior-mean", "zero")


def _overlap_and_error_at(problem: Problem, origin: str) -> tuple[Host, Host]:
    """Overlap Q of the starting point S_0 with the signal and its error V, (P, P) each; ``origin`` names S_0: the prior mean
    or zero.
    """
    second_moment, mean_overlap = prior_moments(problem)
    Q = mean_overlap if origin == "prior-mean" else np.zeros_like(second_moment)
    return Q, second_moment - Q


def one_step_estimate(
    problem: Problem, data: Data, origin: str, rng: np.random.Generator | None = None
) -> Denoised:
    r"""Run one step of message passing from a start S_0, which ``origin`` names, with error V: ``denoise(R, Qhat)`` of the
    observation ``R = S_0 + Qhat^{-1} adjoint(g)`` with messages g and information Qhat. P is the number of components.

    Where the prior has it, by the ``continued`` denoiser. With a few samples a direction the largest eigenvalues of the step lie
    outside the bulk by chance; taken for spikes of the signal, they would make the error at D = 40 a fifth larger.

    Parameters
    ----------
    origin : {"prior-mean", "zero"}
        ``S_0``: the prior mean with its error, or zero with the whole second moment as its error.
    rng : numpy.random.Generator, optional
        For channels that integrate by sampling.

    Returns
    -------
    Denoised
        The estimate, signal-shaped, and the error that the prior predicts for it.

    References
    ----------
    arXiv:2506.01582; checked against ``one_step_theory`` by tests/algorithms/test_spectral_limit.py.
    """
    prior = problem.prior
    P = problem.components
    sample_count = data.inputs.shape[0]
    starting_point = asarray_like(prior.mean(P, data.dimension), data.inputs)
    if origin == "zero":
        starting_point = 0 * starting_point
    V = np.asarray(
        _overlap_and_error_at(problem, origin)[1], dtype=dtype_name(starting_point)
    )
    messages = message_pass(problem, data, starting_point, V, rng)
    information = label_information(
        V, to_host(messages.summed_covariance) / sample_count
    )
    # A sample or two without information: the prior mean hardly moves.
    Qhat = with_floor(
        problem.model.kappa * data.sample_ratio * problem.model.sites * information,
        1e-9 * np.abs(np.linalg.inv(V)).max(),
    )
    R = starting_point + solve_components(Qhat, messages.summed_adjoint)
    return denoise_step(prior, R, send(Qhat, R))


def one_step_theory(
    problem: Problem, alpha: float, origin: str
) -> tuple[Host, Host, Host, str]:
    """Predict ``one_step_estimate`` from the start that ``origin`` names at sample ratio alpha in the limit: overlap Q (P,
    P), error V (P, P), numerical error of diag V (P,), and the method of integration. Qhat is the information.
    """
    information = information_at(problem, *_overlap_and_error_at(problem, origin))
    kappa_alpha = problem.model.kappa * alpha
    Qhat = kappa_alpha * information.value
    Q, V = overlap_at(problem, Qhat)
    Qhat_error = kappa_alpha * np.diag(np.diagonal(information.error))
    _, V_at_larger_Qhat = overlap_at(problem, Qhat + Qhat_error)
    return Q, V, np.abs(np.diagonal(V_at_larger_Qhat - V)), information.method


class SpectralState(NamedTuple):
    """State of ``spectral``: the estimate, the random generator for initial vectors, the outlier eigenvalues."""

    estimate: Array
    rng: np.random.Generator  # draws initial vectors
    outliers: Sequence[float | None] = ()  # eigenvalues


@dataclass(frozen=True)
class Spectral(Algorithm):
    r"""Spectral estimate: leading eigenvectors of linearized message passing, or its first step.

    Low rank: the leading eigenvector (one per component) of

    .. math::

        T = \sum_\mu X_\mu^T [I - (I + G_\mu + \epsilon I)^{-1}] X_\mu \quad \text{or} \quad K = (X X^T - I) G, \qquad
        G_\mu = E[z z^T | y_\mu] - I,

    by Lanczos' or Arnoldi's method on products with the inputs. Extensive rank: ``denoise(S_0 + Qhat^{-1} adjoint(g))``.

    Eigenvectors have no scale: they are given that of a posterior mean, ``sqrt(q D)`` with q the overlap that theory
    predicts, so that the error of the estimate is ``1 - q``. Its own theory of overlaps, errors and outliers is shown
    next to the runs, in place of the Bayes-optimal one.

    Parameters
    ----------
    kind : {"symmetric", "asymmetric"}
        Low rank only: T (default) or K. K may have no real outlier: then T is used, with a warning.
    regularisation : float
        epsilon > 0, for the symmetric matrix; default 0.01. Labels without noise make ``I + G`` singular; a smaller
        epsilon costs more products and gains overlap only where the signal is nearly known.
    origin : {"prior-mean", "zero"}
        Extensive rank only: ``S_0``; default: the prior mean.

    References
    ----------
    arXiv:2502.00901, arXiv:2506.01582; derived independently, checked by tests/algorithms/test_spectral_limit.py.
    """

    kind: str | None = None  # kind of the low-rank matrix
    regularisation: float | None = None  # epsilon of the symmetric matrix
    origin: str | None = None  # start S_0 of the single step

    name = "spectral"
    version = 3
    reference = "arXiv:2502.00901, arXiv:2506.01582"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check that kind and origin are known names and that the regularisation fits them."""
        for parameter_name, choices in (("kind", KINDS), ("origin", STARTING_POINTS)):
            is_valid = getattr(self, parameter_name) in (None, *choices)
            require(self, parameter_name, is_valid, f"one of {', '.join(choices)}")
        if self.regularisation is not None:
            require(self, "regularisation", self.regularisation > 0, "> 0")
            is_symmetric_kind = self.kind != "asymmetric"
            requirement = "left out with kind = 'asymmetric'"
            require(self, "regularisation", is_symmetric_kind, requirement)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why a problem cannot be solved with these parameters (wrong rank or unequal feature variances), or None."""
        if problem.model.rank == "low":
            if self.origin is not None:
                return "origin applies to attention-indexed models only; remove it"
            if problem.variances is not None:
                return "spectral needs features of equal variance: otherwise leading eigenvectors follow the largest"
            return why_not_linearized(problem)
        for parameter_name in ("kind", "regularisation"):
            if getattr(self, parameter_name) is not None:
                return f"{parameter_name} applies to low-rank models only; remove it"
        return None

    def start(self, problem: Problem, data: Data, rng: np.random.Generator) -> Start:
        """Starting point for iterative algorithms: the spectral estimate and its predicted error V."""
        if problem.model.rank == "low":
            spectral_start = spectral_estimate(
                problem, data, rng, *self._matrix_settings()
            )
            return Start(spectral_start.estimate, spectral_start.V)
        return Start(*one_step_estimate(problem, data, self._origin, rng))

    def init(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> SpectralState:
        """Initial state, whose estimate is the prior mean."""
        prior_mean = problem.prior.mean(problem.components, data.dimension)
        return SpectralState(asarray_like(prior_mean, data.inputs), rng)

    def step(
        self, problem: Problem, data: Data, state: SpectralState
    ) -> tuple[SpectralState, Info]:
        """Compute the complete estimate in a single step, with residual 0: from eigenvectors (low rank) or one step of
        message passing.
        """
        sample_count = data.inputs.shape[0]
        if problem.model.rank == "low":
            eigenvector_estimate = spectral_estimate(
                problem, data, state.rng, *self._matrix_settings()
            )
            joined_remarks = "; ".join(eigenvector_estimate.remarks) or None
            next_state = SpectralState(
                eigenvector_estimate.estimate, state.rng, eigenvector_estimate.outliers
            )
            return next_state, Info(
                residual=0.0, warning=joined_remarks, samples=sample_count
            )
        denoiser_output = one_step_estimate(problem, data, self._origin, state.rng)
        next_state = SpectralState(denoiser_output.estimate, state.rng)
        return next_state, Info(residual=0.0, samples=sample_count)

    def estimate(self, state: SpectralState) -> Array:
        """The spectral estimate."""
        return state.estimate

    def plan(self, data: Data) -> Plan:
        """Plan a single step on all samples."""
        return Plan(1)

    def findings(self, state: SpectralState) -> dict[str, list[float | None]]:
        """Findings of a run that its record keeps: the outlier eigenvalues, strongest first; None where the matrix has no real
        outlier.
        """
        return {"leading_eigenvalues": list(state.outliers)} if state.outliers else {}

    def theory(self, problem: Problem, alpha: float) -> AlgorithmPrediction:
        """Predict the spectral estimate at sample ratio alpha as D goes to infinity: its overlaps with signal and itself, its
        error V (P, P). ``regularisation`` is the epsilon that regularises the symmetric matrix for low-rank signals.

        Students of one data set find the same eigenvectors up to signs, which the labels determine or ``averaged`` removes.
        """
        prediction_details: dict[str, object] = {}
        if problem.model.rank == "low":
            matrix_kind, regularisation = self._matrix_settings()
            spectral_limit = spectral_theory(
                problem, alpha, matrix_kind, regularisation
            )
            overlap = spectral_limit.signal_overlap
            self_overlap = spectral_limit.self_overlap
            V = np.diag(spectral_limit.mse)
            mse_error = spectral_limit.mse_error
            second_moments = np.diagonal(prior_moments(problem)[0])
            method = f"Monte Carlo over labels, spectral theory ({matrix_kind})"
            prediction_details["squared_cosine"] = (
                spectral_limit.squared_cosine.tolist()
            )
            prediction_details["squared_cosine_error"] = (
                mse_error / second_moments
            ).tolist()
            if spectral_limit.modes:
                prediction_details["leading_eigenvalues"] = [
                    mode.eigenvalue if mode.is_outlier else None
                    for mode in spectral_limit.modes
                ]
        else:
            overlap, V, mse_error, integration_method = one_step_theory(
                problem, alpha, self._origin
            )
            self_overlap = overlap
            method = f"{integration_method}, one step"
        prediction = Prediction(alpha, overlap, V, mse_error, "spectral", method)
        theory_point = point_document(problem, prediction) | prediction_details
        return AlgorithmPrediction.of_point(
            theory_point, own_overlap=self_overlap, between_students=self_overlap
        )

    @property
    def _origin(self) -> str:
        """Name of the starting point S_0 of the one step: the prior mean unless set."""
        return self.origin or STARTING_POINTS[0]

    def _matrix_settings(self) -> tuple[str, float]:
        """Kind (symmetric or asymmetric) and regularisation epsilon (added to label matrices) of the matrix used for low-rank
        signals, with defaults filled in.
        """
        epsilon = self.regularisation
        return self.kind or KINDS[0], REGULARISATION if epsilon is None else epsilon
