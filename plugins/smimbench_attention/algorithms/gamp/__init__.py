"""The algorithm ``gamp``: generalized approximate message passing with matrix-valued variances, for both models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import (
    dtype_name,
    matching,
    namespace,
    read_together,
    sample_chunks,
    send,
    take_samples,
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
    checked_posterior,
    require,
)
from smimbench.numerics import diagonal_at_least, with_floor
from smimbench.problem import Problem
from smimbench_attention.algorithms.gamp.assumed import (
    SMALLEST_QHAT,
    SMALLEST_V,
    measured_variance,
    mismatched_theory,
)
from smimbench_attention.algorithms.gamp.theory import gamp_theory, random_start_error


class StepControl(NamedTuple):
    """How the weight of a step is chosen: it shrinks after a step that was too large and grows after any other.

    Attributes
    ----------
    first, largest, smallest : float
        Weight of the first step (at least), and bounds of all others. A larger first weight lets few samples push the estimate
        too far before the Onsager term acts.
    shrink, grow : float
        Factors of the weight.
    """

    first: float
    largest: float
    smallest: float
    shrink: float
    grow: float


CONTROLS = {
    "extensive": StepControl(0.5, 0.95, 0.02, 0.5, 1.15),
    "low": StepControl(1.0, 1.0, 0.1, 0.7, 1.03),
}
"""By rank. Matrices start at the prior mean, and a step that is too large shows as a residual that grows. Low rank has to grow
while it leaves the prior mean, but steps that are too large reverse every time."""


class StepState(NamedTuple):
    """Data from which the next step's weight is computed.

    Attributes
    ----------
    weight, extrapolation : NumPy number
        Weight of the new in the next step, and the factor by which the estimate moves further than everything else.
    slow_steps : int
        Slow, aligned steps since the last extrapolation.
    change : array (P, ...) or None
        Undamped change of the estimate in the previous step.
    residual : NumPy number or None
        Its size in units of the predicted error.
    """

    weight: Any
    extrapolation: Any = 1.0
    slow_steps: int = 0
    change: Array | None = None
    residual: Any = None


def mixed(weight: Any, new: Array, old: Array | None) -> Array:
    """Damped value ``weight new + (1 - weight) old``, or the new value where there is no old one."""
    return new if old is None else float(weight) * new + float(1 - weight) * old


def reversal_overlaps(
    problem: Problem, last: StepState, change: Array
) -> tuple[Array, ...]:
    """Overlaps (P, P) of the previous change with this one and with itself, for low rank."""
    if last.change is None or problem.model.rank == "extensive":
        return ()
    return tuple(
        problem.model.inner(other, last.change) for other in (change, last.change)
    )


def next_step(
    problem: Problem,
    last: StepState,
    change: Array,
    overlaps: Sequence[Host],
    squared_step: Host,
    error: Host,
    residual: Any,
) -> StepState:
    """Weight and extrapolation for the next step.

    Low-rank steps that follow one another in the same direction, each shorter by the same factor r, converge to a known point:
    the estimate is extrapolated there, by ``1 / (1 - r)`` times its step (Aitken). This matters for labels such as ``hardmax``
    that do not depend on the scale of a component: only the prior corrects a wrong scale, by a fraction V of the error per step.

    Parameters
    ----------
    change : array (P, ...)
        Undamped change of the estimate in this step.
    overlaps : sequence of ndarray (P, P)
        Result of ``reversal_overlaps``.
    squared_step, error : ndarray (P,)
        Squared change and predicted squared error of every component.
    residual : NumPy number
        Size of the change in units of the error.
    """
    if last.change is None:
        return last._replace(change=change, residual=residual)
    _, largest, smallest, shrink, grow = CONTROLS[problem.model.rank]
    extrapolation, slow_steps = 1.0, 0
    if overlaps:
        along, old_square = (
            np.sum(np.diagonal(overlap) / error) for overlap in overlaps
        )
        # Smaller steps are never too large: growth out of a tiny start would be damped away.
        too_large = along < -0.5 * old_square and residual > 0.1
        ratio = along / np.maximum(
            old_square, np.finfo(old_square.dtype).tiny
        )  # a run at rest has steps of length 0
        if 0.7 < ratio < 1 and along > 0.99 * np.sqrt(
            old_square * np.sum(squared_step / error)
        ):
            slow_steps = last.slow_steps + 1
        if slow_steps == 4:
            extrapolation, slow_steps = 1 / np.maximum(1 - ratio, 0.01), 0
    else:
        too_large = residual > 1.3 * last.residual
    weight = (
        np.maximum(last.weight * shrink, smallest)
        if too_large
        else np.minimum(last.weight * grow, largest)
    )
    return StepState(weight, extrapolation, slow_steps, change, residual)


LARGEST_EXCESS = 1.3
"""Noise of ``g`` over its predicted size (1 in the limit) up to which an excess counts as chance. Larger: with few samples per
direction V falls far below the true error and the estimate runs away. At 1: estimates at small size are a percent worse."""


class GampState(NamedTuple):
    """The state of a run.

    Attributes
    ----------
    estimate, V, g : array (P, ...), (P, P), (n, P, C) or None
        ``g`` is None before the first step. Matrices (P, P) stay on the host: transferring four numbers to a device takes
        longer than computing them.
    rng : Generator
        For channels that integrate by sampling.
    Qhat : array (P, P) or None
        The information.
    onsager : array (P, P) or None
        Matrix in front of ``g`` in the Onsager term; None: V, which it is except where the noise exceeds its predicted size.
    step : StepState or None
        What the size of the next step is computed from.
    strength : array (n,) or None
        Result of ``sample_strength``; None: all samples take the weight of the step.
    falls_fast : bool
        Whether V of a component fell below ``FAST_FALL`` of what it was, in the step before.
    probe : array (P, ...) or None
        Noise that the slope of the denoiser is measured with where the problem is an assumed one.
    """

    estimate: Array
    V: Array
    g: Array | None
    rng: Any
    Qhat: Array | None = None
    onsager: Array | None = None
    step: StepState | None = None
    strength: Array | None = None
    falls_fast: bool = False
    probe: Array | None = None


@dataclass(frozen=True)
class Gamp(Algorithm):
    r"""Bayes-optimal GAMP.

    .. math::

        \omega &= \mathrm{forward}(X, \hat W) - V g_{t-1} \\
        g &= V^{-1} (E[z | y, \omega, V] - \omega) \\
        \hat Q &= \kappa \alpha C\, (V^{-1} - V^{-1} \overline{\mathrm{Cov}}\, V^{-1}) \\
        R &= \hat W + \hat Q^{-1} \mathrm{adjoint}(X, g), \qquad
        (\hat W, V) = \mathrm{denoise}(R, \hat Q)

    The Onsager term carries the V under which g was computed with that g. The inputs are read once an iteration: forward,
    posterior and adjoint run chunk by chunk. The information ``Qhat`` is taken from the posterior covariance; the mean of
    ``g g^T`` estimates the same number and serves as the check of self-consistency that is reported
    as log_information_ratio.

    ``adjoint(X, g)`` carries noise of covariance ``kappa alpha sum_c g_c g_c^T``, which equals Qhat in the limit. With few
    samples per direction it is larger; a denoiser that ignores this makes V fall below the true error, and the estimate diverges.
    For extensive rank, an excess above ``LARGEST_EXCESS`` is added to the noise: the denoiser gets ``Q = s Qhat s``,
    ``s^2 = LARGEST_EXCESS / excess``, and the Onsager term, in the limit ``E[d denoise / dR] Qhat^{-1} g``, takes
    ``V Q Qhat^{-1}`` in place of V.

    A step of weight b takes ``b new + (1 - b) old`` of all of g, Qhat, the estimate and V. In the limit b = 1 converges fastest.
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
        Weight ``1 - b`` of the old in every step, the same for all samples, in [0, 1). Default: adaptive, see ``next_step``;
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

    damping: float | None = None
    initial_overlap: float | None = None

    name = "gamp"
    version = 6
    reference = "arXiv:2502.00901, arXiv:2506.01582"
    capabilities = Capabilities()
    largest_excess = LARGEST_EXCESS

    def __post_init__(self) -> None:
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
        """A restarted version: with damping moved half way to 1, or with another random start; or None. After a run with
        adaptive damping that has not converged: the version that continues with all noise counted.
        """
        if outcome == "unsettled":
            able = (
                problem.model.rank == "extensive"
                and self.damping is None
                and not problem.is_assumed
            )
            able = able and self.largest_excess > 1
            return _GampAllNoise() if able else None
        if self.damping:
            return replace(self, damping=(1 + self.damping) / 2)
        if problem.model.rank == "low":
            return self
        return None if self.damping is None else replace(self, damping=0.5)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why there is no denoiser for the features of a problem, or None."""
        if problem.variances is not None and not hasattr(problem.prior, "variances"):
            return "features with a spectrum need a Gaussian signal, which is denoised feature by feature"
        return None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> GampState:
        """Initial state: the prior mean, a small random start where the prior mean is a fixed point, or the given start."""
        xp = namespace(data.inputs)
        place = matching(data.inputs)
        if data.start is not None:
            estimate, V = data.start
            return GampState(estimate, to_host(V), None, rng)
        components, dimension = problem.components, data.dimension
        if problem.channel.symmetry == "none":
            V = problem.prior.second_moment(components) - problem.prior.mean_overlap(
                components
            )
            estimate = xp.asarray(problem.prior.mean(components, dimension), **place)
            return GampState(
                estimate, np.asarray(V, dtype=dtype_name(estimate)), None, rng
            )
        information = self._initial_information(dimension)
        draw = problem.prior.sample(rng, components, dimension)
        noise = problem.model.draw_noise(rng, components, dimension)
        R = xp.asarray(draw + noise / np.sqrt(information), **place)
        denoised = problem.prior.denoise(
            R, xp.asarray(information * np.eye(components), **place)
        )
        return GampState(denoised.estimate, to_host(denoised.V), None, rng)

    def _initial_information(self, dimension: int) -> float:
        """Information of a random start, computed from its predicted overlap."""
        overlap = (
            1e-3 / dimension if self.initial_overlap is None else self.initial_overlap
        )
        return overlap / (1 - overlap)

    def step(
        self, problem: Problem, data: Data, state: GampState
    ) -> tuple[GampState, Info]:
        """One iteration of GAMP."""
        model, prior, V, n = problem.model, problem.prior, state.V, data.inputs.shape[0]
        extensive, adaptive = model.rank == "extensive", self.damping is None
        inverse = np.linalg.inv(V)
        first = CONTROLS[model.rank].first if self.damping is None else 1 - self.damping
        last = state.step or StepState(V.dtype.type(first))
        strength = (
            sample_strength(problem, data)
            if adaptive and extensive and state.g is None
            else state.strength
        )
        weights = sample_weights(last.weight, strength, state)
        g, total, sums, integration_errors = pass_by_chunks(
            problem, data, state, inverse, weights
        )
        covariance, squares, noise, *errors = read_together(*sums, *integration_errors)
        scale = model.kappa * data.sample_ratio
        information = inverse - inverse @ (covariance / n @ inverse)
        latest = with_floor(scale * model.sites * information, SMALLEST_QHAT)
        Q = Qhat = mixed(last.weight, latest, state.Qhat)
        R = state.estimate + solve_first(Qhat, problem.per_variance(total))
        if extensive and not problem.is_assumed:
            excess = np.diagonal(scale * noise / n) / (
                self.largest_excess * np.diagonal(Qhat)
            )
            reduced = 1 / np.sqrt(np.maximum(excess, np.ones_like(excess)))
            Q = np.asarray(Qhat * reduced[:, None] * reduced[None, :])
        denoised = denoise_step(prior, R, send(Q, R))
        denoised_V, probe = denoised.V, state.probe
        if problem.is_assumed:
            probe = (
                model.draw_noise(state.rng, *R.shape[:2]) if probe is None else probe
            )
            denoised_V = measured_variance(problem, R, Qhat, denoised.estimate, probe)
        if adaptive and state.step is None:
            # At least the fraction of the error that the step is predicted to remove: damping V would push the scale of an
            # estimate that labels do not fix far above that of the signal.
            denoised_V = to_host(denoised_V)
            removed = 1 - np.max(np.diagonal(denoised_V) / np.diagonal(V))
            last = last._replace(weight=np.maximum(last.weight, removed))
        change = denoised.estimate - state.estimate
        forward = last.weight * last.extrapolation
        estimate = mixed(forward, denoised.estimate, state.estimate)
        # The last wait of the iteration: from here on everything is on the host.
        denoised_V, squared_step, self_overlap, *overlaps = read_together(
            denoised_V,
            model.inner(change, change),
            model.inner(estimate, estimate),
            *(reversal_overlaps(problem, last, change) if adaptive else ()),
        )
        V_new = diagonal_at_least(mixed(last.weight, denoised_V, V), SMALLEST_V)
        onsager = None
        if extensive:
            onsager = denoised_V @ (Q @ np.linalg.inv(Qhat))
            onsager = mixed(
                last.weight, onsager, V if state.onsager is None else state.onsager
            )
        squared_step = np.diagonal(squared_step)
        undamped_error = np.diagonal(denoised_V) + SMALLEST_V
        residual = np.max(np.sqrt(squared_step / undamped_error))
        if adaptive:
            last = next_step(
                problem, last, change, overlaps, squared_step, undamped_error, residual
            )
            if extensive:
                most = (
                    LARGEST_COMMON
                    if strength is None
                    else 0.8 + 0.4 * mean_slope(denoised_V, Qhat)
                )
                last = last._replace(weight=np.minimum(last.weight, V.dtype.type(most)))
        second = np.asarray(
            np.diagonal(prior.second_moment(problem.components)), dtype=V.dtype
        )
        found_information = np.maximum(np.diagonal(scale * squares / n), SMALLEST_QHAT)
        info = Info(
            residual=residual,
            predicted_overlap=None
            if problem.is_assumed
            else second - np.diagonal(V_new),
            self_overlap=np.diagonal(self_overlap),
            squared_step=squared_step,
            log_information_ratio=None
            if problem.is_assumed
            else np.log(found_information / np.diagonal(latest)),
            integration_error=np.max(errors),
            damping=1 - float(forward),
        )
        falls_fast = bool((np.diagonal(V_new) < FAST_FALL * np.diagonal(V)).any())
        return GampState(
            estimate,
            V_new,
            g,
            state.rng,
            Qhat,
            onsager,
            last,
            strength,
            falls_fast,
            probe,
        ), info

    def plan(self, data: Data) -> Plan:
        """Plan of one pass per step (forward and adjoint), until overlaps are stationary and agree with the predicted error."""
        return (
            super()
            .plan(data)
            ._replace(cost=lambda problem, data: problem.pass_cost(data))
        )

    def estimate(self, state: GampState) -> Array:
        """Current posterior mean of the signal."""
        return state.estimate

    def theory(
        self,
        problem: Problem,
        alpha: float,
        conditions: Conditions,
        assumed: Problem | None = None,
    ) -> AlgorithmPrediction | str:
        """State-evolution fixed point reached from the algorithm's start, with the trajectory if ``damping = 0``.

        ``finite_size``: by metric the coefficient of 1/D of every component, where it is known in closed form. Damping changes
        no fixed point, but a damped trajectory has no closed recursion, nor has one from a start that depends on the data:
        ``no_trajectory`` then says so, as it does where the trajectory is not known well enough or ends elsewhere.
        """
        if assumed is not None:
            return mismatched_theory(problem, assumed, alpha, conditions)
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
    """GAMP whose effective-noise covariance includes all the noise carried by ``g``."""

    largest_excess = 1.0


SHARE_OF_EDGE = 0.4
"""Largest weight of a sample, as a fraction of the one at which it alone becomes unstable. Doubled: strong samples oscillate
with others, or along eigenvectors where the slope is above its mean."""

LARGEST_TYPICAL = 2.5
"""Mean strength of samples up to which each has a weight of its own. That rule is for few strong samples among weak ones; where
all are strong, as ten tokens in forty dimensions are, they act together. Doubled: runs do not converge there."""

LARGEST_COMMON = 0.7
"""Largest weight where all samples have the same one. At 0.85 runs from few samples do not converge; halved: twice as slow."""

FAST_FALL = 0.5
"""Factor of V in a step below which all samples have the same weight: g must not lag behind V. Doubled: strong ones oscillate."""


def sample_strength(problem: Problem, data: Data) -> Array | None:
    """Strength t of every sample (n,), 1 in the limit: the squared largest eigenvalue of ``X X^T / D`` of its tokens X (T, D).

    None where their mean is above ``LARGEST_TYPICAL``: then all samples take the same weight.
    """
    model = problem.model
    xp = namespace(data.inputs)
    found = []
    for part in sample_chunks(model, data.inputs, problem.components):
        inputs = take_samples(model, data.inputs, part)
        values = xp.linalg.eigvalsh(
            xp.matmul(inputs, xp.matrix_transpose(inputs)) / inputs.shape[-1]
        )
        found.append(xp.max(values, axis=-1) ** 2)
    strength = xp.concat(found)
    return strength if float(xp.mean(strength)) < LARGEST_TYPICAL else None


def sample_weights(weight: Any, strength: Array | None, state: GampState) -> Any:
    """Weights of the new ``g`` in a step of this weight: a number, or (n,) if ``strength`` is given."""
    if strength is None or state.Qhat is None or state.falls_fast:
        return float(weight)
    slope, xp = mean_slope(state.V, state.Qhat), namespace(strength)
    share = SHARE_OF_EDGE * 2 * (1 + slope) / strength
    return float(weight) * xp.where(share < 1, share, xp.ones_like(share))


def mean_slope(V: Host, Qhat: Host) -> float:
    """Mean slope ``V Qhat`` of the denoiser, at most 1, of the component with the smallest."""
    return min(1.0, float(np.min(np.diagonal(V) * np.diagonal(Qhat))))


def pass_by_chunks(
    problem: Problem, data: Data, state: GampState, inverse: Host, weights: Any = 1.0
) -> tuple[Array, Array, list[Array], list[Any]]:
    """Forward, posterior and adjoint chunk by chunk, so that the inputs are read once.

    ``weights`` of the new ``g`` against the old one: a number, or one of every sample (n,). Returns the damped g (n, P, C), its
    adjoint (P, ...), then sums over samples (P, P): posterior covariances, products of the new g, products of the damped g;
    last the integration errors of the chunks.
    """
    model, channel = problem.model, problem.channel
    xp, n, V = (
        namespace(data.inputs),
        data.inputs.shape[0],
        send(state.V, state.estimate),
    )
    memory = (
        state.g if state.onsager is None else _times(inverse @ state.onsager, state.g)
    )
    g: Any = None
    total: Any = None
    sums: list[Any] = []
    errors = []
    for part in sample_chunks(model, data.inputs, problem.components):
        inputs = take_samples(model, data.inputs, part)
        omega = model.forward(inputs, state.estimate)
        if memory is not None:
            omega = omega - _times(state.V, memory[part, ...])
        posterior = checked_posterior(
            channel.posterior(data.labels[part, ...], omega, V, rng=state.rng), omega
        )
        new = _times(inverse, posterior.mean - omega)
        squares = noise = _products(new)
        if state.g is not None:
            weight = (
                weights if isinstance(weights, float) else weights[part, None, None]
            )
            new = weight * new + (1 - weight) * state.g[part, ...]
            noise = _products(new)
        pushed, found = (
            model.adjoint(inputs, new),
            [posterior.covariance * (part.stop - part.start), squares, noise],
        )
        errors.append(posterior.error)
        if part == slice(0, n):
            return new, pushed, found, errors
        if g is None:
            g, total, sums = (
                xp.empty((n, *new.shape[1:]), **matching(new)),
                xp.zeros_like(pushed),
                [0.0, 0.0, 0.0],
            )
        g[part, ...] = new
        total += pushed
        sums = [a + b for a, b in zip(sums, found)]
    return g, total, sums, errors


def _times(matrix: Host, z: Array) -> Array:
    """Multiply every sample by a matrix, ``sum_q matrix_pq z_qc``: (P, P) on the host times (n, P, C) gives (n, P, C).

    Written out, because a batch of products of tiny matrices costs more than reading the inputs.
    """
    if len(matrix) == 1:
        return z * float(matrix[0, 0])
    factors = send(matrix, z)[None, :, :]
    total = factors[..., :1] * z[..., :1, :]
    for q in range(1, len(matrix)):
        total += factors[..., q : q + 1] * z[..., q : q + 1, :]
    return total


def _products(g: Array) -> Array:
    """Sum of products ``sum_{mu, c} g_pc g_qc`` (P, P) of ``g`` (n, P, C)."""
    xp = namespace(g)
    components = g.shape[1]
    flat = xp.reshape(
        xp.permute_dims(g, (1, 0, 2)) if components > 1 else g, (components, -1)
    )
    return xp.matmul(flat, xp.matrix_transpose(flat))


def solve_first(matrix: Host, signal: Array) -> Array:
    """Apply ``matrix^{-1}`` (P, P), on the host, to the components of a signal (P, D) or (P, D, D)."""
    if len(matrix) == 1:
        return signal / float(matrix[0, 0])
    xp = namespace(signal)
    return xp.reshape(
        xp.linalg.solve(send(matrix, signal), xp.reshape(signal, (len(matrix), -1))),
        signal.shape,
    )
