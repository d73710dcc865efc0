"""The algorithm ``gamp``: generalized approximate message passing with matrix-valued variances, for both models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from smimbench.backend import (
    dtype_name,
    matching,
    namespace,
    on_device,
    read_together,
    send,
    to_host,
)
from smimbench.derive import denoise_step
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Conditions,
    Data,
    Host,
    Info,
    Plan,
    require,
)
from smimbench.numerics import cached_on, with_floor
from smimbench.problem import Problem
from smimbench_attention.algorithms.gamp.assumed import measured_variance
from smimbench_attention.algorithms.gamp.assumed_theory import mismatched_theory
from smimbench_attention.algorithms.gamp.message_pass import (
    DAMPING_SETTINGS,
    SMALLEST_QHAT,
    SMALLEST_V,
    DampingState,
    Number,
    change_overlaps,
    inverse,
    label_information,
    limit_damping,
    message_pass,
    next_damping,
    sample_strengths,
    sample_weights,
    solve_components,
)
from smimbench_attention.algorithms.gamp.theory import gamp_theory, random_start_error

LARGEST_EXCESS = 1.3
"""Noise of ``g`` over its predicted size (1 in the limit) up to which an excess counts as chance. Larger: with few samples per
direction V falls far below the true error and the estimate runs away. At 1: estimates at small size are a percent worse."""

FAST_FALL = 0.5
"""Factor of V in a step below which all samples have the same weight: g must not lag behind V. Doubled: strong ones oscillate."""


class GampState(NamedTuple):
    """State of GAMP after an iteration: estimate, its error V, messages g, information Qhat, Onsager matrix Gamma, damping, and
    the strengths of the samples (squared largest eigenvalues of their tokens' Gram matrices). ``V_falls_fast`` says whether V
    shrank much in the last step, ``probe_noise`` measures the slope of the denoiser under assumed priors.

    Attributes
    ----------
    estimate, V, g : array (P, ...), (P, P), (n, P, C) or None
        ``g`` is None before the first step. Matrices (P, P) stay on the host: transferring four numbers to a device takes
        longer than computing them.
    rng : Generator
        For channels that integrate by sampling.
    Qhat : array (P, P) or None
        The information.
    Gamma : array (P, P) or None
        Matrix that multiplies ``g_{t-1}`` in the Onsager term; None stands for V, as always for low rank.
    damping_state : DampingState or None
        State of the damping, for the next step.
    strengths : array (n,) or None
        Strengths of the samples; None: all samples take the weight of the step.
    V_falls_fast : bool
        Whether V of a component fell below ``FAST_FALL`` times its value in the previous step.
    probe_noise : array (P, ...) or None
        Noise with which the slope of the denoiser is measured if the problem is an assumed one.
    """

    estimate: Array
    V: Host
    g: Array | None  # messages of the samples
    rng: np.random.Generator  # for channels whose posteriors are sampled
    Qhat: Host | None = None  # information
    Gamma: Host | None = None  # factor of the Onsager term
    damping_state: DampingState | None = None
    strengths: Array | None = None  # strengths of the samples
    V_falls_fast: bool = False
    probe_noise: Host | None = None  # probe of the denoiser's slope


@dataclass(frozen=True)
class Gamp(Algorithm):
    r"""Bayes-optimal GAMP.

    .. math::

        \omega &= \mathrm{forward}(X, \hat W) - \Gamma g_{t-1} \\
        g &= V^{-1} (E[z | y, \omega, V] - \omega) \\
        \hat Q &= \kappa \alpha C\, (V^{-1} - V^{-1} \overline{\mathrm{Cov}}\, V^{-1}) \\
        R &= \hat W + \hat Q^{-1} \mathrm{adjoint}(X, g), \qquad
        (\hat W, V) = \mathrm{denoise}(R, \hat Q)

    The Onsager term is ``Gamma g_{t-1}``, with g of the previous iteration and ``Gamma = V``, the error of the estimate that is
    multiplied by the inputs. The inputs are read once an iteration: forward, posterior and adjoint run chunk by chunk. The
    information ``Qhat`` is computed from the posterior covariance; the mean of ``g g^T`` estimates the same number and serves as
    the check of self-consistency that is reported as log_information_ratio.

    ``adjoint(X, g)`` carries noise of covariance ``kappa alpha sum_c g_c g_c^T``, which equals Qhat in the limit. With few
    samples per direction it is larger; a denoiser that ignores this makes V fall below the true error, and the estimate diverges.
    For extensive rank, an excess above ``LARGEST_EXCESS`` is added to the noise: the denoiser gets ``Q = s Qhat s``,
    ``s^2 = LARGEST_EXCESS / excess``, and the Onsager term, in the limit ``E[d denoise / dR] Qhat^{-1} g``, has
    ``Gamma = V Q Qhat^{-1}``.

    A step of weight b takes ``b new + (1 - b) old`` of all of g, Qhat, the estimate, V and Gamma.
    In the limit b = 1 converges fastest.
    At finite D some samples have longer tokens than others: the squared norm of ``x x^T``, for x in the span of the tokens, is up
    to ``t D^2``. The Onsager term cancels what a sample's g adds to its own latents if t = 1; otherwise ``1 - t`` of it is left,
    and g alternates in sign. So with adaptive damping a sample's g has a weight ``b_mu`` of its own, which moves no fixed point.
    On an eigenmode where the data have strength k and the denoiser slope s, the step has the Jacobian
    ``[[1 - b (1 - s + b_mu s k), b s], [-b_mu k, 1]]`` (noiseless channel), with determinant ``1 - b (1 - s)``: it is stable if
    ``s < 1`` and ``b b_mu s k + 2 b (1 - s) < 4``. A single sample has ``s k = t``, where s is the mean slope ``V Qhat``; at
    b = 1 it is stable for ``b_mu < 2 (1 + s) / t``, and ``b_mu / b`` is at most ``SHARE_OF_EDGE`` of that, once V
    no longer falls fast. With few samples, slopes vary more among eigenvectors: b is at most ``0.8 + 0.4 s``. All this holds for
    few strong samples among weak ones; where samples are strong on average, all take the same b, at most 0.7.

    No weight stabilizes a slope above 1. Hence the ``continued`` denoiser where there is one: its slope stays below 1 outside
    the bulk of the spectrum, where in the limit there are no eigenvalues.

    Parameters
    ----------
    damping : float or None
        Weight ``1 - b`` of the old in every step, the same for all samples, in [0, 1). Default: adaptive, see ``next_damping``;
        an extrapolated step of low rank is recorded with a negative damping.
    initial_overlap : float or None
        Where the prior mean is a fixed point by symmetry, the run starts from the denoised noisy copy of an independent draw of
        the prior, with this predicted overlap. Default: 1e-3 / D. A random estimate of size q has a chance overlap of order
        ``sqrt(q / D)`` with the teacher, and while both are small they grow by the same factor: with q far below 1 / D the
        prediction stays behind the truth; with q above 1 / D it runs ahead of it, and V collapses.

    Notes
    -----
    The engine restarts a run once that diverged or found no fixed point: a fixed damping moves half way to 1; otherwise low-rank
    models start from another random estimate. Attention-indexed models with adaptive damping have only one start; they resume
    with ``LARGEST_EXCESS = 1``: with hardly more samples than parameters, V is otherwise underestimated many times and drifts.

    References
    ----------
    arXiv:2502.00901, algorithm 1; arXiv:2506.01582, algorithm 1; derived independently, checked by tests/algorithms/test_gamp.py.
    """

    damping: float | None = None  # weight of the previous values in every step
    initial_overlap: float | None = None  # predicted overlap of a random start

    name = "gamp"
    version = 6
    reference = "arXiv:2502.00901, arXiv:2506.01582"
    capabilities = Capabilities()
    largest_excess = LARGEST_EXCESS  # noise of g over its predicted size

    def __post_init__(self) -> None:
        """Check that damping and initial overlap are in their ranges."""
        require(
            self, "damping", self.damping is None or 0 <= self.damping < 1, "in [0, 1)"
        )
        require(
            self,
            "initial_overlap",
            self.initial_overlap is None or 0 < self.initial_overlap < 1,
            "in (0, 1)",
        )

    def retry(self, problem: Problem, outcome: str) -> Gamp | None:
        """GAMP with other settings for a second attempt at a problem after a run that ended with this ``outcome`` (its status),
        or None if no other settings are tried.

        After a failure: with damping moved half way to 1, or with another random start. After a run with adaptive damping that
        has not converged: the version that continues with all noise counted.
        """
        is_low_rank = problem.model.rank == "low"
        if outcome == "unsettled":
            tolerates_excess_noise = self.damping is None and self.largest_excess > 1
            if is_low_rank or problem.is_assumed or not tolerates_excess_noise:
                return None
            return _GampAllNoise()
        if self.damping:
            return replace(self, damping=(1 + self.damping) / 2)
        if is_low_rank:
            return self
        return None if self.damping is None else replace(self, damping=0.5)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why GAMP cannot solve a problem, namely that its prior cannot denoise features of unequal variances, or None."""
        if problem.variances is not None and not hasattr(problem.prior, "variances"):
            return "features with a spectrum need a Gaussian signal, which is denoised feature by feature"
        return None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> GampState:
        """Initial state (estimate, error V, strengths of the samples as in ``GampState``) for P components at the given start, at
        the prior mean or, where that is a fixed point, at a small random estimate.
        """
        P, D, prior = problem.components, data.dimension, problem.prior
        if data.start is not None:
            estimate, V = data.start
        elif problem.channel.symmetry == "none":
            prior_mean = prior.mean(P, D)
            estimate = namespace(data.inputs).asarray(
                prior_mean, **matching(data.inputs)
            )
            prior_error = prior.second_moment(P) - prior.mean_overlap(P)
            V = np.asarray(prior_error, dtype=dtype_name(estimate))
        else:
            estimate, V = self._random_start(problem, data, rng)
        strengths_of_samples = None
        if self.damping is None and problem.model.rank == "extensive":
            strengths_of_samples = sample_strengths(problem, data)
        return GampState(
            estimate, to_host(V), None, rng, strengths=strengths_of_samples
        )

    def _random_start(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Random start for P components: the denoised noisy draw ``R = signal + noise`` from the prior, and the error that
        the prior predicts for it.
        """
        xp = namespace(data.inputs)
        device_and_dtype = matching(data.inputs)
        P = problem.components
        information = self._initial_information(data.dimension)
        prior_draw = problem.prior.sample(rng, P, data.dimension)
        noise = problem.model.draw_noise(rng, P, data.dimension)
        R = xp.asarray(prior_draw + noise / np.sqrt(information), **device_and_dtype)
        denoiser_output = problem.prior.denoise(
            R, xp.asarray(information * np.eye(P), **device_and_dtype)
        )
        return denoiser_output.estimate, denoiser_output.V

    def _initial_information(self, dimension: int) -> float:
        """Information ``Qhat`` of the noisy draw of a random start in ``dimension`` D, at which its predicted overlap q has
        ``q = Qhat / (1 + Qhat)``.
        """
        overlap = self.initial_overlap
        if overlap is None:
            overlap = 1e-3 / dimension
        return overlap / (1 - overlap)

    def step(
        self, problem: Problem, data: Data, state: GampState
    ) -> tuple[GampState, Info]:
        """Run one iteration of GAMP, the four equations of the class, from the state's estimate W and error V: messages g,
        information Qhat, observation R of the signal, its denoising (with Q, which is Qhat less an excess of noise), and the
        factor Gamma of the next Onsager term; then choose the damping of the next one.
        """
        model = problem.model
        prior = problem.prior
        V = state.V
        Gamma = V if state.Gamma is None else state.Gamma
        sample_count = data.inputs.shape[0]
        has_extensive_rank = model.rank == "extensive"
        damping_is_adaptive = self.damping is None
        damping_state = state.damping_state or self._initial_damping(model.rank, V)
        strengths_of_samples = None if state.V_falls_fast else state.strengths

        # omega = forward(X, W) - Gamma g_{t-1};  g = V^{-1} (E[z | y, omega, V] - omega)
        # A device is asked once whether all labels could be integrated, not in every chunk.
        quick_posterior = None
        if on_device(state.estimate):
            quick_posterior = getattr(problem.channel, "posterior_without_wait", None)
        for posterior in (quick_posterior, None) if quick_posterior else (None,):
            messages = message_pass(
                problem,
                data,
                state.estimate,
                V,
                state.rng,
                previous_g=state.g,
                Gamma=Gamma,
                damping_weights=sample_weights(
                    float(damping_state.weight), strengths_of_samples, V, state.Qhat
                ),
                posterior_without_wait=posterior,
            )
            (
                summed_covariance,
                undamped_square_of_g,
                square_of_g,
                *integration_errors,
            ) = read_together(
                messages.summed_covariance,
                messages.undamped_square_of_g,
                messages.square_of_g,
                *messages.integration_errors,
            )
            if math.inf not in integration_errors:
                break

        # Qhat = kappa alpha C (V^{-1} - V^{-1} Cov V^{-1})
        kappa_alpha = model.kappa * data.sample_ratio
        information = (
            kappa_alpha
            * model.sites
            * label_information(V, summed_covariance / sample_count)
        )
        information = with_floor(information, SMALLEST_QHAT)
        Qhat = damped_update(damping_state.weight, information, state.Qhat)

        # R = W + Qhat^{-1} adjoint(X, g);  W, V = denoise(R, Q), Q = Qhat but for an excess of noise
        messages_to_signal = problem.per_variance(messages.summed_adjoint)
        R = state.estimate + solve_components(Qhat, messages_to_signal)
        Q = Qhat
        if has_extensive_rank and not problem.is_assumed:
            Q = self._with_excess_noise(
                Qhat, kappa_alpha / sample_count * square_of_g.diagonal()
            )
        denoiser_output = denoise_step(prior, R, send(Q, R))
        denoised_V, probe_noise = denoiser_output.V, state.probe_noise
        if problem.is_assumed:
            if probe_noise is None:
                probe_noise = model.draw_noise(state.rng, *R.shape[:2])
            denoised_V = measured_variance(
                problem, R, Qhat, denoiser_output.estimate, probe_noise
            )

        # Damping: a step of weight b takes b new + (1 - b) old of everything.
        if damping_is_adaptive and state.damping_state is None:
            # At least the fraction of the error that the step is predicted to remove: damping V would push the scale of an
            # estimate that labels do not fix far above that of the signal.
            denoised_V = to_host(denoised_V)
            removed_error_fraction = 1 - (denoised_V.diagonal() / V.diagonal()).max()
            damping_state = damping_state._replace(
                weight=np.maximum(damping_state.weight, removed_error_fraction)
            )
        estimate_change = denoiser_output.estimate - state.estimate
        estimate_weight = damping_state.weight * damping_state.extrapolation_factor
        estimate = damped_update(
            estimate_weight, denoiser_output.estimate, state.estimate
        )
        # The last wait of the iteration: from here on everything is on the host.
        denoised_V, squared_step, self_overlap, *overlaps_of_changes = read_together(
            denoised_V,
            model.inner(estimate_change, estimate_change),
            model.inner(estimate, estimate),
            *(
                change_overlaps(problem, damping_state, estimate_change)
                if damping_is_adaptive
                else ()
            ),
        )
        next_V = damped_update(damping_state.weight, denoised_V, V)
        np.fill_diagonal(next_V, np.maximum(next_V.diagonal(), SMALLEST_V))
        next_Gamma = None
        if has_extensive_rank:
            next_Gamma = damped_update(
                damping_state.weight, denoised_V @ (Q @ inverse(Qhat)), Gamma
            )

        squared_step = squared_step.diagonal()
        undamped_error = denoised_V.diagonal() + SMALLEST_V
        relative_change = np.sqrt(squared_step / undamped_error).max()
        if damping_is_adaptive:
            damping_state = next_damping(
                problem,
                damping_state,
                estimate_change,
                overlaps_of_changes,
                squared_step,
                undamped_error,
                relative_change,
            )
            if has_extensive_rank:
                damping_state = limit_damping(
                    damping_state, denoised_V, Qhat, state.strengths
                )
        info = Info(
            residual=relative_change,
            self_overlap=self_overlap.diagonal(),
            squared_step=squared_step,
            integration_error=reduce(np.maximum, integration_errors),
            damping=1 - float(estimate_weight),
        )
        if not problem.is_assumed:
            second_moment = cached_on(
                problem,
                "second moment",
                lambda: np.diagonal(prior.second_moment(problem.components)),
            )
            g_noise = np.maximum(
                kappa_alpha / sample_count * undamped_square_of_g.diagonal(),
                SMALLEST_QHAT,
            )
            info = info._replace(
                predicted_overlap=second_moment.astype(V.dtype) - next_V.diagonal(),
                log_information_ratio=np.log(g_noise / information.diagonal()),
            )
        V_falls_fast = any(next_V.diagonal() < FAST_FALL * V.diagonal())
        next_state = GampState(
            estimate,
            next_V,
            messages.g,
            state.rng,
            Qhat,
            next_Gamma,
            damping_state,
            state.strengths,
            V_falls_fast,
            probe_noise,
        )
        return next_state, info

    def _initial_damping(self, rank: str, V: Host) -> DampingState:
        """State of the damping before the first step, for a model of this rank, in the precision of V (an array)."""
        if self.damping is None:
            return DampingState(V.dtype.type(DAMPING_SETTINGS[rank].initial_weight))
        return DampingState(V.dtype.type(1 - self.damping))

    def _with_excess_noise(self, Qhat: Host, g_noise: Host) -> Host:
        """Information Qhat (P, P), reduced for components in which ``g_noise`` (P,), the variance of the noise of ``adjoint(X,
        g)``, exceeds Qhat by more than a factor of ``largest_excess``.
        """
        excess_of_noise = g_noise / (self.largest_excess * Qhat.diagonal())
        noise_scale = 1 / np.sqrt(np.maximum(excess_of_noise, 1))
        return np.asarray(Qhat * noise_scale[:, None] * noise_scale)

    def plan(self, data: Data) -> Plan:
        """Plan one pass (forward and adjoint) per step, until overlaps are stationary and match the predicted error."""
        plan = super().plan(data)
        return plan._replace(
            cost=lambda problem, data: problem.pass_cost(data), passes=1
        )

    def estimate(self, state: GampState) -> Array:
        """The posterior mean of the signal."""
        return state.estimate

    def theory(
        self,
        problem: Problem,
        alpha: float,
        conditions: Conditions,
        assumed: Problem | None = None,
    ) -> AlgorithmPrediction | str:
        """Predict the state-evolution fixed point reached from the algorithm's start, and the trajectory if undamped, under
        the conditions of the runs. ``assumed`` is the problem that GAMP takes the data for, if it is another one. alpha is
        the sample ratio, V the error that a random start claims.

        ``finite_size``: by metric the coefficient of 1/D of every component, where it is known in closed form. Damping changes
        no fixed point, but a damped trajectory has no closed recursion, nor has one from a start that depends on the data:
        ``no_trajectory`` then says so, as it does where the trajectory is not known well enough or ends elsewhere.
        """
        if assumed is not None:
            # the same for runs of all dimensions
            return cached_on(
                problem,
                "mismatched theory",
                lambda: mismatched_theory(problem, assumed, alpha, conditions),
                (assumed, alpha, conditions.start),
            )
        V = None
        if (
            conditions.start == "uninformed"
            and problem.channel.symmetry != "none"
            and conditions.dimension is not None
        ):
            V = random_start_error(
                problem, self._initial_information(conditions.dimension)
            )
        return gamp_theory(problem, alpha, conditions, V, damped=self.damping != 0)

    def variance(self, state: GampState) -> Array:
        """Predicted error V (P, P) of the estimate."""
        return state.V


class _GampAllNoise(Gamp):
    """GAMP that lowers its information wherever the noise of the messages ``g`` exceeds it, by however little; for second
    attempts.
    """

    largest_excess = 1.0  # noise of g over its predicted size


def damped_update(
    weight: float | Number, undamped_value: Array, previous_value: Array | None
) -> Array:
    """Damped update ``weight undamped_value + (1 - weight) previous_value``; in the first step, the undamped one. ``weight``
    is the damping weight of the new value.
    """
    if previous_value is None:
        return undamped_value
    return float(weight) * undamped_value + float(1 - weight) * previous_value
