"""The algorithm ``gamp``: generalised approximate message passing with matrix-valued variances, for both models, by
chunks or in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.backend import beside, dtype_name, namespace, read_together, sample_chunks, send, take_samples, to_host
from smimbench.derive.stopping import OverlapRule
from smimbench.interfaces import Array, Capabilities, Info, ParameterError, member
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import diagonal_at_least, with_floor
from smimbench.theory.bethe import FixedPoint, free_entropy
from smimbench.theory.information import overlap_at
from smimbench_algorithms.gamp.damping import Mixing, first_weight, follow, start, turn
from smimbench_algorithms.gamp.finite_size import first_correction
from smimbench_algorithms.gamp.path import fixed_point, trajectory
from smimbench_algorithms.gamp.state import GampState, Pass

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions, Cost, Data, StoppingRule
    from smimbench.problem import Problem

Host = np.ndarray[Any, Any]

SMALLEST_V = 1e-16
"""Floor of the predicted error: at perfect recovery V would underflow and g be 0 / 0. Doubled: so is the last error."""

SMALLEST_QHAT = 1e-12
"""Floor of the information: sampling noise can make it negative. Doubled: nothing, short of an infinite error."""

LARGEST_EXCESS = 1.3
"""Ratio of the noise that ``g`` carries to the noise that is predicted, up to which it counts as chance (it is 1 in the
limit). Doubled: at a few samples in a direction V falls far below the true error and the estimate runs away; at 1: estimates
at small size are a percent worse. A run that does not come to rest is resumed with 1 in its place."""


@dataclass(frozen=True)
class Gamp:
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

    ``adjoint(X, g)`` carries noise with the covariance ``kappa alpha sum_c g_c g_c^T``, which in the limit is Qhat. Where a
    few samples meet each direction it is larger; a denoiser that does not know this makes V fall below the true error, and
    the estimate runs away. So for extensive rank an excess above ``LARGEST_EXCESS`` is added to the noise: the denoiser is
    given ``Q = s Qhat s``, ``s^2 = LARGEST_EXCESS / excess``, and returns V; and the Onsager term, in the limit
    ``E[d denoise / dR] Qhat^{-1} g``, takes ``V Q Qhat^{-1}`` in place of V.

    A step of weight b takes ``b new + (1 - b) old`` of all of g, Qhat, the estimate and V. On an eigenmode where the data
    have strength k and the denoiser slope s, such a step has the Jacobian ``[[1 - b (1 - s + b s k), b s], [-b k, 1]]``
    (noiseless channel), with determinant ``1 - b (1 - s)``: it is stable if ``s < 1`` and ``b^2 s k + 2 b (1 - s) < 4``. So
    any k, which is large if there are few samples in a direction, is mended by a small enough b; but a slope above 1 swings
    for ever, whatever the damping. Hence ``denoise_continued``, where the prior offers it: a denoiser with no such slope
    outside the bulk of its spectrum, where in the limit nothing lies. With g left undamped b would have to be smaller, and
    modes that are stable decay slowly.

    Parameters
    ----------
    damping : float or None
        Weight ``1 - b`` of the old in every step, in [0, 1). Default: chosen from step to step, see
        ``smimbench_algorithms.gamp.damping``; where steps of low rank shrink slowly in one direction, the estimate leaps to where
        they lead, and the damping of that step in the record is negative.
    initial_overlap : float or None
        Where the prior mean is a fixed point by symmetry (nothing would ever be learned from it), the run starts from
        the denoised noise around an independent draw of the prior, with this predicted overlap. Default: 1e-3 / D. A random
        estimate of size q has an overlap m of order sqrt(q / D) with the teacher by chance, and while both are small
        they grow by the same factor: q far below 1 / D makes m exceed what is predicted, so that the prediction stays
        behind the truth; with q above 1 / D it would run ahead of it, and V collapse.

    Notes
    -----
    The engine restarts a run once that diverged or found no fixed point: one with a damping of its own is damped half way
    to 1; otherwise low-rank models start from another random estimate. Attention-indexed ones, which have but one
    start and chose their damping already, are resumed instead, and count all of the noise that ``g`` carries: where hardly more
    samples are there than the signal has parameters, the V that is claimed is many times too small with
    ``LARGEST_EXCESS``, and drifts on while the estimate goes about; with all of the noise it is near the true error.

    References
    ----------
    arXiv:2502.00901, algorithm 1; arXiv:2506.01582, algorithm 1; derived anew, checked by tests/algorithms/test_gamp.py.
    """

    damping: float | None = None
    initial_overlap: float | None = None

    name: ClassVar[str] = "gamp"
    version: ClassVar[int] = 5
    reference: ClassVar[str] = "arXiv:2502.00901, arXiv:2506.01582"
    bayes_optimal: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities()
    largest_excess: ClassVar[float] = LARGEST_EXCESS

    def __post_init__(self) -> None:
        if self.damping is not None and not 0 <= self.damping < 1:
            raise ParameterError("damping", f"must be in [0, 1), got {self.damping}")
        if self.initial_overlap is not None and not 0 < self.initial_overlap < 1:
            raise ParameterError("initial_overlap", f"must be in (0, 1), got {self.initial_overlap}")

    def restarted(self, problem: Problem) -> Gamp | None:
        """The version for the engine's one restart: damped half way to 1, another random start, or none."""
        if self.damping:
            return replace(self, damping=(1 + self.damping) / 2)
        if problem.model.rank == "low":
            return self
        return None if self.damping is None else replace(self, damping=0.5)

    def resumed(self, problem: Problem) -> Gamp | None:
        """The version that goes on where one that chooses its damping has not come to rest: all noise is counted."""
        return _AllNoise() if problem.model.rank == "extensive" and self.damping is None else None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> GampState:
        """Prior mean, or a small random start where the prior mean is a fixed point, or the start handed in."""
        xp = namespace(data.inputs)
        place = beside(data.inputs)
        if data.start is not None:
            estimate, V = data.start
            return GampState(estimate, to_host(V), None, rng)
        components, dimension = problem.components, data.dimension
        if problem.channel.symmetry == "none":
            estimate = problem.prior.mean(components, dimension)
            V = problem.prior.second_moment(components) - problem.prior.mean_overlap(components)
            estimate = xp.asarray(estimate, **place)
            return GampState(estimate, np.asarray(V, dtype=dtype_name(estimate)), None, rng)
        overlap = 1e-3 / dimension if self.initial_overlap is None else self.initial_overlap
        information = overlap / (1 - overlap)
        draw = problem.prior.sample(rng, components, dimension)
        noise = problem.model.draw_noise(rng, components, dimension)
        R = xp.asarray(draw + noise / np.sqrt(information), **place)
        Qhat = xp.asarray(information * np.eye(components), **place)
        denoised = problem.prior.denoise(R, Qhat)
        return GampState(denoised.estimate, to_host(denoised.V), None, rng)

    def step(self, problem: Problem, data: Data, state: GampState) -> tuple[GampState, Info]:
        """One iteration."""
        inverse = np.linalg.inv(state.V)
        memory = _memory(state, inverse)
        found = _chunk_by_chunk(problem, data, state._replace(g=memory), inverse)
        return self.conclude(problem, data, state, inverse, found)

    def conclude(
        self, problem: Problem, data: Data, state: GampState, inverse: Host, found: Pass
    ) -> tuple[GampState, Info]:
        """The rest of an iteration, from what the samples say of the components; for one instance or several."""
        model, prior = problem.model, problem.prior
        n, V = data.inputs.shape[-3], state.V
        g, total, covariance, errors = found
        progress = start(problem, self.damping, V) if state.progress is None else state.progress
        mixed = Mixing(progress.weight)
        squares = noise = _products(g)
        g, total = mixed(g, state.g), mixed(total, state.total)
        if model.rank == "extensive":
            noise = _products(g)
        covariance, squares, noise, *errors = read_together(covariance, squares, noise, *errors)
        scale = model.kappa * data.sample_ratio
        information = inverse - inverse @ (covariance / n @ inverse)
        latest = with_floor(scale * model.sites * information, SMALLEST_QHAT)
        Qhat = mixed(latest, state.Qhat)
        R = state.estimate + _solve_first(Qhat, total)
        Q = _less_by_excess(Qhat, scale * noise / n, self.largest_excess) if model.rank == "extensive" else Qhat
        denoised = member(prior, "denoise_continued", prior.denoise)(R, send(Q, R))
        denoised_V = denoised.V
        if self.damping is None and state.progress is None:
            denoised_V = to_host(denoised_V)
            progress = progress._replace(weight=first_weight(progress.weight, _diagonal(denoised_V), _diagonal(V)))
            mixed = Mixing(progress.weight)
        change = denoised.estimate - state.estimate
        ahead = mixed.weight * progress.leap
        # Without a leap the weights that a device has already.
        forward = Mixing(ahead) if np.any(progress.leap > 1) else mixed
        estimate = forward(denoised.estimate, state.estimate)
        # The last wait of the iteration: from here on all is on the host.
        denoised_V, squared_step, self_overlap, *turns = read_together(
            denoised_V,
            model.inner(change, change),
            model.inner(estimate, estimate),
            *(turn(problem, progress, change) if self.damping is None else ()),
        )
        V_new = diagonal_at_least(mixed(denoised_V, V), SMALLEST_V)
        onsager = None
        if model.rank == "extensive":
            onsager = denoised_V @ (Q @ np.linalg.inv(Qhat))
            onsager = mixed(onsager, V if state.onsager is None else state.onsager)
        squared_step = _diagonal(squared_step)
        undamped_error = _diagonal(denoised_V) + SMALLEST_V
        residual = np.max(np.sqrt(squared_step / undamped_error), axis=-1)
        if self.damping is None:
            progress = follow(problem, progress, change, turns, squared_step, undamped_error, residual)
        second = np.asarray(np.diagonal(prior.second_moment(problem.components)), dtype=V.dtype)
        info = Info(
            residual=residual,
            predicted_overlap=second - _diagonal(V_new),
            self_overlap=_diagonal(self_overlap),
            squared_step=squared_step,
            log_information_ratio=np.log(np.maximum(_diagonal(scale * squares / n), SMALLEST_QHAT) / _diagonal(latest)),
            integration_error=np.max(errors, axis=0),
            damping=1 - np.asarray(ahead, dtype=float)[()],
        )
        return GampState(estimate, V_new, g, state.rng, total, Qhat, onsager, progress), info

    def stopping_rule(self, problem: Problem, dimension: int) -> StoppingRule:
        """Overlaps that stand still and agree: the algorithm keeps account of its own error, and is judged by it."""
        return OverlapRule(problem, dimension)

    def cost(self, problem: Problem, data: Data) -> Cost | None:
        """One pass over the inputs, forward and adjoint; None for a model that does not say what that takes."""
        return problem.pass_cost(data)

    def estimate(self, state: GampState) -> Array:
        """Posterior mean of the signal."""
        return state.estimate

    def theory(self, problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any]:
        """The fixed point of state evolution that its start leads to, and with ``damping = 0`` the way there.

        ``finite_size``: by metric the coefficient of 1/D of every component, where it is known in closed form.

        Damping mixes iterates and Onsager terms: its fixed points are the same, its way has no recursion. A start that another
        algorithm computes depends on the data, which state evolution does not know. Points then say ``no_trajectory``, as they do
        where the way is not known well enough, or ends elsewhere than at the fixed point.
        """
        point = fixed_point(problem, alpha, conditions)
        if (correction := first_correction(problem, alpha)) is not None:
            point = point | {"finite_size": {"mse": correction}}
        if not conditions.trajectory:
            return point
        if self.damping != 0:
            return point | {
                "no_trajectory": "it is damped, which moves no fixed point but has no recursion; give damping = 0"
            }
        if conditions.start not in ("uninformed", "informed"):
            return point | {"no_trajectory": f"its start, {conditions.start!r}, depends on the data"}
        claimed = None
        if conditions.start == "uninformed" and problem.channel.symmetry != "none" and conditions.dimension is not None:
            overlap = 1e-3 / conditions.dimension if self.initial_overlap is None else self.initial_overlap
            claimed = overlap_at(problem, overlap / (1 - overlap) * np.eye(problem.components))[1]
        found = trajectory(problem, alpha, conditions, claimed)
        return point | {"no_trajectory" if isinstance(found, str) else "trajectory": found}

    def free_entropy(self, problem: Problem, data: Data, state: GampState) -> float | None:
        """Bethe (low rank) or RIE (extensive rank) free entropy of the data where the run stands; see smimbench.theory.bethe."""
        if state.g is None or state.total is None or state.Qhat is None:
            return None
        onsager = state.V if state.onsager is None else state.onsager
        shift = -_mixed(onsager, state.g)
        return free_entropy(problem, data, FixedPoint(state.estimate, state.V, shift, state.Qhat, state.total))

    def variance(self, state: GampState) -> Array:
        """Error V (P, P) that is predicted for it."""
        return state.V


class _AllNoise(Gamp):
    """GAMP that counts all of the noise that ``g`` carries."""

    largest_excess: ClassVar[float] = 1.0

    def resumed(self, problem: Problem) -> None:
        """Nothing is more careful."""


def _diagonal(matrix: Host) -> Host:
    """Diagonals (..., P) of matrices (..., P, P)."""
    return np.diagonal(matrix, axis1=-2, axis2=-1)


def _memory(state: GampState, inverse: Host) -> Array | None:
    """What V is multiplied with in the Onsager term: the last g, or what takes its place beyond the limit."""
    if state.g is None or state.onsager is None:
        return state.g
    return _mixed(inverse @ state.onsager, state.g)


def _less_by_excess(Qhat: Host, found: Host, largest: float) -> Host:
    """Qhat (..., P, P) scaled down by how far the noise that was found (..., P, P) is above so many times what it predicts."""
    excess = _diagonal(found) / (largest * _diagonal(Qhat))
    scale = 1 / np.sqrt(np.maximum(excess, np.ones_like(excess)))
    return np.asarray(Qhat * scale[..., :, None] * scale[..., None, :])


def _chunk_by_chunk(problem: Problem, data: Data, state: GampState, inverse: Host) -> Pass:
    """Forward, posterior and adjoint of one chunk before the next: the inputs are read once."""
    model, channel = problem.model, problem.channel
    xp = namespace(data.inputs)
    there = send(state.V, state.estimate)
    n = data.inputs.shape[0]
    g = total = covariance = None
    errors = []
    for part in sample_chunks(model, data.inputs, problem.components):
        inputs = take_samples(model, data.inputs, part)
        omega = model.forward(inputs, state.estimate)
        if state.g is not None:
            omega = omega - _mixed(state.V, state.g[part, ...])
        posterior = checked_posterior(channel.posterior(data.labels[part, ...], omega, there, rng=state.rng), omega)
        new = _mixed(inverse, posterior.mean - omega)
        pushed, spread = model.adjoint(inputs, new), posterior.covariance * (part.stop - part.start)
        errors.append(posterior.error)
        if part == slice(0, n):
            return Pass(new, pushed, spread, errors)
        if g is None:
            g = xp.empty((n, *new.shape[1:]), **beside(new))
            total, covariance = xp.zeros_like(pushed), xp.zeros_like(spread)
        g[part, ...] = new
        total += pushed
        covariance += spread
    assert g is not None
    assert total is not None
    assert covariance is not None
    return Pass(g, total, covariance, errors)


def _mixed(matrix: Host, z: Array) -> Array:
    """``sum_q matrix_pq z_qc`` of every sample: (..., P, P) on the host and (..., n, P, C) to (..., n, P, C).

    Written out, because a batch of products of tiny matrices costs more than the inputs take to read.
    """
    if matrix.ndim == 2 and matrix.shape[0] == 1:
        return z * float(matrix[0, 0])
    factors = send(matrix, z)[..., None, :, :]
    if matrix.shape[-1] == 1:
        return factors * z
    total = factors[..., :1] * z[..., :1, :]
    for q in range(1, matrix.shape[-1]):
        total += factors[..., q : q + 1] * z[..., q : q + 1, :]
    return total


def _products(g: Array) -> Array:
    """``sum_{mu, c} g_pc g_qc`` (..., P, P) of ``g`` (..., n, P, C)."""
    xp = namespace(g)
    *lead, n, components, sites = g.shape
    if components > 1:
        g = xp.permute_dims(g, (*range(len(lead)), g.ndim - 2, g.ndim - 3, g.ndim - 1))
    flat = xp.reshape(g, (*lead, components, n * sites))
    return xp.matmul(flat, xp.matrix_transpose(flat))


def _solve_first(matrix: Host, signal: Array) -> Array:
    """``matrix^{-1}`` (..., P, P), on the host, applied to the components of a signal (..., P, D) or (..., P, D, D)."""
    if matrix.ndim == 2 and matrix.shape[0] == 1:
        return signal / float(matrix[0, 0])
    xp = namespace(signal)
    there = send(matrix, signal)
    lead = signal.shape[: matrix.ndim - 1]
    if matrix.shape[-1] == 1:
        return signal / xp.reshape(there, (*lead, *(1 for _ in signal.shape[len(lead) :])))
    flat = xp.reshape(signal, (*lead, -1))
    return xp.reshape(xp.linalg.solve(there, flat), signal.shape)
