"""Hamiltonian Monte Carlo on the posterior of the signal: the mean of K samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from smimbench_attention.algorithms.averaged import aligned_signals

from smimbench.backend import matching, namespace, read_together
from smimbench.derive import OverlapRule
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Conditions,
    Data,
    Info,
    Overlaps,
    Plan,
    require,
)
from smimbench.problem import Problem
from smimbench.theory import competing, limit_point, point_document, prior_moments
from smimbench_samplers.posterior import LogPosterior, why_not_sampled

FEWEST_CHAINS = 4
"""Chains that are run even where fewer samples are asked for: R-hat compares chains. Doubled, it sees smaller differences."""
MIXED = 1.05
"""Largest R-hat that passes as mixed: chain means then spread by a third of the posterior's width. With 1.1 it is 0.46."""
PROJECTIONS = 8
"""Random directions on which R-hat looks at the signal, besides its log-density; doubled, it sees a mode that differs less."""
ACCEPTANCE = 0.8
"""Acceptance aimed at. Nearer to 1 the trajectories are shorter; below 0.65 more of them are lost."""
FIRST_STEP = 0.1
"""Step at the start. Ten times as large, a few more trajectories of the warm-up are lost."""


class HmcState(NamedTuple):
    """State of all chains of a run (first axis of the arrays): log-likelihood as ``target``, accepted factor with its
    log-likelihood (``density``) and gradient, position and momentum on the current trajectory, step sizes, and what is stored for
    diagnostics: ``draws`` of the log-likelihood and M projections of the signal on random ``directions``.
    """

    target: LogPosterior
    directions: Array  # M random ones, (M, entries of a signal)
    factor: Array  # the last accepted one
    density: Array  # its log-likelihood, one number per chain
    gradient: Array  # of its log-likelihood
    energy: Array  # minus the Hamiltonian at the start of the trajectory
    position: Array  # factor on the trajectory
    momentum: Array  # on the trajectory
    position_gradient: Array  # of the log-likelihood at the position
    step_size: float | Array  # step of this trajectory
    log_step: Array  # log of the step size, tuned in the warm-up
    average_log_step: Array  # log_step averaged over the second half of the warm-up
    rng: np.random.Generator
    draws: tuple[Array, ...] = ()  # stored numbers, (chains, 1 + M) each
    r_hat: float = 2.0  # computed at the end of the run
    evaluations: int = 0  # number of gradients computed


class Mixing(OverlapRule):
    """Stopping rule that marks a run as not converged if its chains have not mixed, by the statistic R-hat = 1 +
    ``Info.residual``.
    """

    def complaint(self) -> str | None:
        """Reason why the run is not converged: R-hat above the limit ``MIXED``; otherwise None."""
        r_hat = 1 + (math.inf if self.latest is None else self.latest.residual)
        return (
            None
            if r_hat <= MIXED
            else f"the chains have not mixed: R-hat {r_hat:.3g} is above {MIXED}"
        )


@dataclass(frozen=True)
class Hmc(Algorithm):
    r"""Mean of K samples from the posterior of the signal, by Hamiltonian Monte Carlo.

    K chains start at independent draws of the prior and move on the factor W of the signal, whose entries are independent
    N(0, 1) under the prior. A trajectory of ``leapfrog`` steps of size :math:`\epsilon` solves the equations of motion of

    .. math:: H(W, p) = \tfrac12 |W|^2 + \tfrac12 |p|^2 - \log p(y | W)

    by half a kick, :math:`p \leftarrow p + \tfrac{\epsilon}{2} \nabla \log p(y | W)`, the rotation of (W, p) by the angle
    :math:`\epsilon`, which is exact for the prior, and half a kick; it is accepted with the probability
    :math:`\min(1, e^{-\Delta H})`. One step of a run is one gradient of every chain. The first half of the steps is the warm-up,
    which tunes :math:`\epsilon` and is counted; ``leapfrog = 1`` is Langevin (MALA).

    The estimate is the mean of the last samples of K chains. Of independent samples, the overlap of two is that of each with the
    signal, q (Nishimori), and that of one with itself is the second moment T. The mean has ``M = q``, ``Q = q + (T - q) / K`` and
    :math:`1 + 1/K` times the Bayes-optimal error, twice that for one sample: the prediction. Chains have to agree: with R-hat
    above 1.05, of the log-likelihood or of the signal in a random direction, a run is ``not-converged`` and has no prediction.
    In a hard phase chains that start alike may agree on the wrong state. There ``start = "informed"`` in its table of the suite
    starts K chains near the teacher and as many at the prior, averages the first, and R-hat compares all.

    Parameters
    ----------
    samples : int
        K >= 1, the chains whose samples are averaged. At least four chains are run.
    steps : int
        Gradients of a run, the warm-up included.
    leapfrog : int
        Steps of a trajectory.

    References
    ----------
    Neal, arXiv:1206.1901; exact steps of a Gaussian prior: Shahbaba et al., arXiv:1106.5941; R-hat: Vehtari et al.,
    arXiv:1903.08008.
    """

    samples: int = 8
    steps: int = 6000  # gradients of a run
    leapfrog: int = 5  # steps of a trajectory

    name = "hmc"
    version = 1
    reference = "arXiv:1206.1901, arXiv:1106.5941, arXiv:1903.08008"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check that there is at least one sample, one leapfrog step per trajectory and four trajectories."""
        for key in ("samples", "leapfrog"):
            require(self, key, getattr(self, key) >= 1, "at least 1")
        require(
            self,
            "steps",
            self.steps >= 4 * self.leapfrog,
            "at least 4 trajectories, 4 times leapfrog",
        )

    @property
    def _chains(self) -> int:
        """Number of chains, at least ``FEWEST_CHAINS`` so that R-hat can compare them."""
        return max(self.samples, FEWEST_CHAINS)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why this posterior cannot be sampled, or None."""
        return why_not_sampled(problem)

    def plan(self, data: Data) -> Plan:
        """Plan a run of a fixed number of steps, with the chains as students and R-hat as the criterion of convergence."""
        return Plan(self.steps, students=self._chains, stopping_rule=Mixing)

    def theory(
        self, problem: Problem, alpha: float, conditions: Conditions
    ) -> AlgorithmPrediction | str:
        """Predict ``1 + 1/K`` times the Bayes-optimal error at sample ratio alpha for the mean of K samples, or give the reason
        why chains may not reach it. ``fixed_points`` are those of state evolution.
        """
        fixed_points = conditions.points or tuple(
            point_document(problem, fixed_point)
            for fixed_point in competing(problem, [alpha])[0]
        )
        if len(fixed_points) > 1:
            return "two fixed points compete: chains from the prior may agree on the worse one, which R-hat cannot detect"
        K, signal_second_moment, posterior_overlap = (
            self.samples,
            prior_moments(problem)[0],
            np.asarray(fixed_points[0]["overlap"]),
        )
        overlap_error = np.diag(np.atleast_1d(fixed_points[0]["mse_error"])) * (
            1 + 1 / K
        )
        overlaps_of_mean = Overlaps(
            signal_second_moment,
            posterior_overlap,
            posterior_overlap + (signal_second_moment - posterior_overlap) / K,
        )
        uncertain = Overlaps(0 * overlap_error, 0 * overlap_error, overlap_error)
        method = f"mean of {K} samples; {fixed_points[0]['method']}"
        return replace(
            limit_point(
                problem, alpha, [[overlaps_of_mean]], method=method, uncertain=uncertain
            ),
            of_ok_runs=True,
        )

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> HmcState:
        """Initial state with chains at random draws of the prior and, if the data has a start, as many more at that start."""
        xp, device_and_dtype = namespace(data.inputs), matching(data.inputs)
        target = LogPosterior(problem, data)
        shape = problem.components, data.dimension
        factor = xp.asarray(
            np.stack([target.factor.draw(rng, *shape) for _ in range(self._chains)]),
            **device_and_dtype,
        )
        if data.start is not None:
            start = target.factor_of(data.start.estimate, factor[0, ...])
            factor = xp.concat([xp.stack([start] * self._chains), factor])
        signal = target.factor.compose(factor)
        shape = PROJECTIONS, math.prod(signal.shape[1:])
        directions = xp.asarray(
            rng.standard_normal(shape) / math.sqrt(shape[1]), **device_and_dtype
        )
        density, gradient = target(factor)
        log_step = xp.asarray(math.log(FIRST_STEP), **device_and_dtype)
        trajectory = density, factor, factor, gradient, 0.0
        return self._begin_trajectory(
            HmcState(
                target,
                directions,
                factor,
                density,
                gradient,
                *trajectory,
                log_step,
                0 * log_step,
                rng,
            )
        )

    def _begin_trajectory(self, state: HmcState) -> HmcState:
        """Begin a trajectory of every chain: draw new momenta, and a random step size that prevents periodic orbits."""
        xp = namespace(state.factor)
        momentum = xp.asarray(
            state.rng.standard_normal(state.factor.shape), **matching(state.factor)
        )
        step_size = xp.exp(state.log_step) * state.rng.uniform(0.8, 1.2)
        energy = (
            state.density
            - _half_squared_norm(state.factor)
            - _half_squared_norm(momentum)
        )
        return state._replace(
            position=state.factor,
            momentum=momentum,
            position_gradient=state.gradient,
            step_size=step_size,
            energy=energy,
        )

    def step(
        self, problem: Problem, data: Data, state: HmcState
    ) -> tuple[HmcState, Info]:
        """Make one leapfrog step of every chain, an exact rotation by the Gaussian prior between two kicks by the likelihood, and
        accept or reject at the end of a trajectory; the residual is R-hat - 1.
        """
        xp = namespace(state.factor)
        step_size: Any = state.step_size
        momentum = state.momentum + step_size / 2 * state.position_gradient
        position = xp.cos(step_size) * state.position + xp.sin(step_size) * momentum
        momentum = xp.cos(step_size) * momentum - xp.sin(step_size) * state.position
        density, position_gradient = state.target(position)
        momentum = momentum + step_size / 2 * position_gradient
        state = state._replace(
            position=position,
            momentum=momentum,
            position_gradient=position_gradient,
            evaluations=state.evaluations + 1,
        )
        if state.evaluations % self.leapfrog == 0:
            with np.errstate(
                all="ignore"
            ):  # a trajectory that left all bounds is not accepted
                state = self._begin_trajectory(
                    self._end_trajectory(problem, state, density)
                )
        sample_count, gradient_count = data.inputs.shape[0], state.evaluations
        return state, Info(
            state.r_hat - 1, samples=float(sample_count * gradient_count)
        )

    def _end_trajectory(
        self, problem: Problem, state: HmcState, density: Array
    ) -> HmcState:
        """End a trajectory, at whose last position the log-likelihood is ``density``: accept or reject it in every chain, then
        tune the step size (warm-up) or store the draw.
        """
        xp = namespace(state.factor)
        log_acceptance = (
            density
            - _half_squared_norm(state.position)
            - _half_squared_norm(state.momentum)
            - state.energy
        )
        log_acceptance = xp.where(
            xp.isfinite(log_acceptance),
            log_acceptance,
            xp.full_like(log_acceptance, -math.inf),
        )
        acceptance_probability = xp.exp(
            xp.minimum(log_acceptance, xp.zeros_like(log_acceptance))
        )
        uniform_numbers = xp.asarray(
            state.rng.random(log_acceptance.shape[0]), **matching(log_acceptance)
        )
        accepted = uniform_numbers < acceptance_probability
        accepted_mask = xp.reshape(accepted, (-1, *[1] * (state.factor.ndim - 1)))
        state = state._replace(
            factor=xp.where(accepted_mask, state.position, state.factor),
            gradient=xp.where(accepted_mask, state.position_gradient, state.gradient),
            density=xp.where(accepted, density, state.density),
        )
        trajectory_count, warmup_count = (
            state.evaluations // self.leapfrog,
            self.steps // (2 * self.leapfrog),
        )
        if trajectory_count <= warmup_count:  # Robbins and Monro
            log_step = state.log_step + trajectory_count**-0.6 * (
                xp.mean(acceptance_probability) - ACCEPTANCE
            )
            log_step = xp.minimum(
                log_step, xp.full_like(log_step, math.log(math.pi / 2))
            )
            averaged_count = trajectory_count - warmup_count // 2
            average_log_step = (
                state.average_log_step
                + (log_step - state.average_log_step) / averaged_count
                if averaged_count > 0
                else state.average_log_step
            )
            return state._replace(
                log_step=average_log_step
                if trajectory_count == warmup_count
                else log_step,
                average_log_step=average_log_step,
            )
        signals = aligned_signals(problem, state.target.factor.compose(state.factor))
        projections = xp.matmul(
            xp.reshape(signals, (signals.shape[0], -1)),
            xp.matrix_transpose(state.directions),
        )
        draw = xp.concat([state.density[:, None], projections], axis=1)
        state = state._replace(draws=(*state.draws, draw))
        is_last = (
            trajectory_count == self.steps // self.leapfrog and len(state.draws) >= 4
        )
        return (
            state._replace(r_hat=float(np.max(_diagnostics(state, "rhat"))))
            if is_last
            else state
        )

    def estimate(self, state: HmcState) -> Array:
        """Estimate: the mean of the current samples of the first K chains, after alignment by symmetry."""
        signals = state.target.factor.compose(state.factor[: self.samples, ...])
        return namespace(signals).mean(
            aligned_signals(state.target.problem, signals), axis=0
        )

    def findings(self, state: HmcState) -> dict[str, Any]:
        """Worst R-hat and effective sample size after the warm-up, over log-likelihood and projections of the signal."""
        if len(state.draws) < 4:
            return {}
        return {
            "r_hat": [state.r_hat],
            "effective_samples": [float(np.min(_diagnostics(state, "ess")))],
        }


def _half_squared_norm(x: Array) -> Array:
    """Half the squared norm ``|x|^2 / 2`` of the array x of each chain (first axis)."""
    return namespace(x).sum(x * x, axis=tuple(range(1, x.ndim))) / 2


def _diagnostics(state: HmcState, name: str) -> Any:
    """Diagnostic named ``rhat`` (R-hat) or ``ess`` (effective sample size) of each stored number of the draws; 1e6 or 0 if a
    chain never moved.
    """
    draws = np.stack(read_together(*state.draws), axis=-1).astype(
        np.float64
    )  # (chains, numbers, draws)
    diagnostic_function: Any = getattr(array_stats, name)
    with np.errstate(all="ignore"):
        diagnostics = diagnostic_function(
            np.moveaxis(draws, 1, 0), chain_axis=1, draw_axis=2
        )
    return np.nan_to_num(diagnostics, nan=1e6 if name == "rhat" else 0.0, posinf=1e6)
