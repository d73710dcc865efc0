r"""Verification of a theory point by plain Monte Carlo draws of teacher, label and posterior.

Qhat, MSE, stability and generalization errors are checked.

A point says that the overlap Q is a fixed point at the sample ratio alpha. At that overlap ``omega ~ N(0, Q)``,
``z ~ N(omega, V)`` and a label of z are drawn, the channel's posterior mean m gives ``g = V^{-1} (m - omega)``, and the point
holds if

.. math:: \hat Q(Q) = \kappa \alpha E \sum_c g_c g_c^T = \kappa \alpha E \sum_c g_c h_c^T, \qquad h = V^{-1} (z - \omega).

The first mean asks the posterior alone, the second one the teacher. Nothing that makes theory precise is used here: no control
variates, no weights, no quasi-random points, no formula for the information, no interpolation. So numbers are coarse, and their
standard errors are those of independent draws. The MSE of the fixed point takes the slopes of theory: they only say what a
difference of Qhat means for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.derive import why_theory_only
from smimbench.derive.labels import predict_twice
from smimbench.interfaces import Host, Posterior
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import inverse_root, symmetric, symmetric_root
from smimbench.numerics.random_numbers import monte_carlo_rng, words
from smimbench.numerics.statistics import FEWEST_EFFECTIVE, effective_sample_size
from smimbench.problem.problem import Problem
from smimbench.theory.generalization import VANISHING_ESTIMATE
from smimbench.theory.information import (
    channel_information,
    inverse_map,
    offers_rough,
    overlap_at,
    overlap_error_at,
)
from smimbench.theory.tracing import ComponentRatios
from smimbench.theory.types import NEGLIGIBLE, Check, TheoryPoint, compare

RESOLVED_DEVIATION, SECONDS = 0.02, 10.0
"""Relative deviation of the error that every point should exclude, and the time that its draws may take. Half the deviation takes
four times the draws."""
FIRST_DRAWS, MAX_DRAWS = 5_000, 1_000_000
"""Draws from which the spread is learned, and that are made at most. Doubled: it is known 1.4 times better; twice the memory."""
CHUNK_DRAWS, DRAWS_PER_SAMPLER = 5_000, 1_000
"""Draws that are held at once, and that share the points of a sampled posterior, with an error of 1 to 2% of their mean. Doubled:
twice the memory; what the mean of all draws keeps of that error is 1.4 times as large."""
DERIVATIVE_STEP = 0.05
"""Half the relative step in Qhat of a derivative; doubled, its bias is four times as large and its noise half."""
NEAR_RECOVERY_SHARE = 1e-6
"""Share of the second moment that is unknown where the stability of perfect recovery is tested; doubled, so is the bias."""
MATRICES, DIMENSION = 12, 60
"""Signals of extensive rank that are drawn, at this dimension and twice that; doubled, it takes 2 or 8 times as long."""
DECISIVE_QUANTITIES = ("MSE", "unlearned", "perfect recovery")
"""Quantities whose precision decides how many draws are enough."""


def verify_point(
    problem: Problem,
    point: TheoryPoint,
    resolve: float = RESOLVED_DEVIATION,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = lambda: 0.0,
    on_draws: Callable[[int], None] = lambda count: None,
) -> list[Check]:
    """Verify every number of a reported theory point by Monte Carlo draws. ``resolve`` is the relative deviation to detect,
    ``seconds`` the time allowed, counted by ``clock``; ``on_draws`` is told how many draws were made.

    A first set of draws tells how many are needed; the second one starts with the same draws.

    Parameters
    ----------
    point : TheoryPoint
    resolve : float
        Relative deviation of the MSE (or of a growth rate that must stay below 1) that nine checks in ten should find; between 0
        and 1. Half of it takes four times the draws.
    seconds, clock : float, callable
        How long the draws may take, and what counts seconds: ``time.perf_counter``.
    on_draws : callable
        Called with the number of draws of the channel made since the last call, to show progress.

    Returns
    -------
    list of Check

    Raises
    ------
    ValueError
        If ``resolve`` is not between 0 and 1.
    """
    if not 0 < resolve < 1:
        raise ValueError(
            f"resolve must be between 0 and 1 (0.02 means 2%), got {resolve}"
        )
    start_time = clock()
    draws = FIRST_DRAWS
    point_by_draws = PointByDraws(problem, point, on_draws)
    while True:
        iteration_start = clock()
        checks = point_by_draws.checks(draws)
        decisive_checks = [
            check for check in checks  # where hardly any draw carries a mean, no number of them decides
            if (
                check.quantity in DECISIVE_QUANTITIES if check.has_enough_draws
                else check.effective * MAX_DRAWS > FEWEST_EFFECTIVE * draws
            )
        ]  # fmt: skip
        needed_draws = draws * max(
            (check.draws_factor(resolve) for check in decisive_checks), default=1.0
        )
        end_time = clock()
        possible_draws = (
            draws * (seconds - (end_time - start_time)) / (end_time - iteration_start)
            if end_time > iteration_start
            else math.inf
        )
        largest_draws = min(possible_draws, MAX_DRAWS)
        if needed_draws <= draws or largest_draws < 1.2 * draws:
            return [
                replace(check, draws=draws, stopped=needed_draws > draws)
                for check in checks
            ]
        draws = int(min(max(1.1 * needed_draws, 1.2 * draws), largest_draws))


class PointByDraws:
    """Monte Carlo verification of one theory point (a fixed point at one sample ratio), with latents, labels and posteriors
    drawn at its overlap.
    """

    def __init__(
        self,
        problem: Problem,
        point: TheoryPoint,
        on_draws: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Set the theory point, and find its learned components a, whose overlap exceeds that of the prior mean; ``on_draws``
        is told how many draws were made.
        """
        self.problem = problem
        self.point = point
        self.draws = FIRST_DRAWS
        self.on_draws = on_draws
        self.alpha, self.Q, self.mse = point.alpha, point.overlap, point.mse
        self.information_factor = float(problem.model.kappa) * self.alpha
        self.second_moment, self.prior_mean_overlap = prior_moments(problem)
        self.V = self.second_moment - self.Q
        np.fill_diagonal(
            self.V, self.mse
        )  # Q and the second moment have lost the digits of small errors
        overlap_gain = np.diagonal(self.Q) - np.diagonal(self.prior_mean_overlap)
        self.learned_components = [
            int(a)
            for a in np.flatnonzero(
                overlap_gain > NEGLIGIBLE * np.diagonal(self.second_moment)
            )
        ]
        # Other points and problems get other draws: their deviations are independent.
        self.stream = words(f"{problem.identity} {self.alpha!r} {point.branch}", 2)

    def _rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Random generator of one purpose, different for every theory point."""
        return monte_carlo_rng(f"verification: {purpose}", *self.stream, *index)

    @cached_property
    def qhat(self) -> Host:
        """Information Qhat (P, P) that the prior's state-evolution map takes to the overlap of the theory point."""
        return inverse_map(self.problem, self.Q, self.V, self.learned_components)

    def checks(self, draws: int) -> list[Check]:
        """Run all checks of this theory point with a given number of draws."""
        self.draws = draws
        if not self.mse.any():
            return [*self._perfect(), *self._predictions()]
        checks: list[Check] = []
        if self.learned_components:
            checks += [*self._fixed_point(), *self._signal()]
        if self.point.branch != "informed":
            checks += self._unlearned()
        return [*checks, *self._predictions()]

    # -- draws of the channel -----------------------------------------------------------------------------------------

    def _posteriors(
        self, Q: Host, V: Host, **options: object
    ) -> Iterator[tuple[Host, Host, Posterior]]:
        """Draw latents z of overlap Q and error V, and labels y, in chunks; yield the prior means omega of the latents, z -
        omega, and the posterior given the labels. ``resample`` is the channel's own sampler of that posterior, if it has one.
        """
        shape = (self.problem.components, self.problem.model.sites)
        channel: Any = self.problem.channel
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)
        resample = None if channel.sampling is None else channel.sampling.resampled
        chunk_draws = CHUNK_DRAWS if resample is None else DRAWS_PER_SAMPLER
        for chunk, start in enumerate(range(0, self.draws, chunk_draws)):
            normals = self._rng("latents", chunk).standard_normal(
                (2, min(chunk_draws, self.draws - start), *shape)
            )
            omega = root_Q @ normals[0]
            z_minus_omega = root_V @ normals[1]
            y = channel.forward(omega + z_minus_omega, rng=self._rng("labels", chunk))
            sampler = channel if resample is None else resample(chunk)
            yield (
                omega,
                z_minus_omega,
                sampler.posterior(
                    y, omega, V, rng=self._rng("posterior", chunk), **options
                ),
            )
            self.on_draws(len(omega))

    def draw(self, Q: Host, V: Host) -> tuple[Host, Host, float]:
        """Draw ``sum_c g g^T`` and ``sum_c (g h^T + h g^T) / 2`` over sites c (n, P, P), whose means are the information at
        overlap Q and error V, with ``g = V^-1 (<z> - omega)`` and ``h = V^-1 (z - omega)`` for latents z of mean omega and
        posterior mean <z>; the last result is the bias by the posterior's error.
        """
        V_inverse = np.linalg.inv(V)
        by_posterior = []
        by_teacher = []
        posterior_error = 0.0
        for omega, z_minus_omega, posterior in self._posteriors(Q, V):
            g = V_inverse @ (np.asarray(posterior.mean) - omega)
            h = V_inverse @ z_minus_omega
            by_posterior.append(g @ np.swapaxes(g, 1, 2))
            by_teacher.append(symmetric(g @ np.swapaxes(h, 1, 2)))
            posterior_error = max(posterior_error, float(posterior.error))
        # An error of the posterior mean adds its square to the mean of ``g g^T``.
        return (
            np.concatenate(by_posterior),
            np.concatenate(by_teacher),
            self.problem.model.sites * posterior_error**2,
        )

    @cached_property
    def _entries(self) -> tuple[Host, Host]:
        """Entries (rows, columns) of Qhat that are compared with Monte Carlo draws: diagonal ones of learned components, and
        others if Qhat is not diagonal.
        """
        learned_components = np.array(self.learned_components)
        qhat_diagonal = np.diagonal(self.qhat)
        has_off_diagonal = (
            np.abs(self.qhat - np.diag(qhat_diagonal)).max()
            > 1e-6 * qhat_diagonal.max()
        )
        rows, columns = (
            learned_components[np.array(np.triu_indices(len(learned_components)))]
            if has_off_diagonal
            else (learned_components, learned_components)
        )
        return rows, columns

    @cached_property
    def _response(self) -> Host:
        """Derivative (learned, K) of the MSE of learned components in the residuals (Qhat minus kappa alpha times the
        information) of the K compared entries of Qhat, whose indices are ``rows`` and ``columns``, after a Newton step;
        ``feedback`` is the unit matrix minus the derivative of the state-evolution map.
        """
        rows, columns = self._entries
        channel: Any = self.problem.channel

        def information_and_mse(step: Host) -> Host:
            """Information at the K compared entries, then the MSE of learned components, at Qhat shifted by ``step`` (K,)
            there, which gives overlap Q and error V.
            """
            qhat = self.qhat.copy()
            qhat[rows, columns] = qhat[columns, rows] = self.qhat[rows, columns] + step
            Q, V = overlap_at(self.problem, qhat)
            if offers_rough(self.problem):
                information = channel.information(
                    Q, V, labels=channel.sampling.rough_labels(Q, V)
                )
            else:
                information = channel_information(channel, self.problem.model, Q, V)
            return np.concatenate(
                [
                    np.asarray(information.value)[rows, columns],
                    np.diagonal(V)[self.learned_components],
                ]
            )

        derivatives = _derivative(
            information_and_mse,
            DERIVATIVE_STEP
            * np.sqrt(self.qhat[rows, rows] * self.qhat[columns, columns]),
        )
        feedback: Host = (
            np.eye(len(rows)) - self.information_factor * derivatives[: len(rows)]
        )
        return derivatives[len(rows) :] @ np.linalg.pinv(feedback)

    def _fixed_point(self) -> list[Check]:
        """Check that the point is a fixed point: its Qhat against Monte Carlo means of the information by the posterior and by
        the teacher (two sources), and its MSE by a Newton step in Qhat from the first of these. a and b are learned components.
        """
        by_posterior, by_teacher, posterior_bias = self.draw(self.Q, self.V)
        rows, columns = self._entries
        relative_alpha_error = self.point.alpha_error / self.alpha
        checks = []
        for source, samples, bias_of_source in (
            ("posterior", by_posterior, posterior_bias),
            ("teacher", by_teacher, 0.0),
        ):
            for a, b in zip(rows.tolist(), columns.tolist()):
                entry_label, component = (
                    ("", a) if a == b else (f" {a + 1}{b + 1}", None)
                )
                error = max(
                    relative_alpha_error[a], relative_alpha_error[b]
                ) * math.sqrt(self.qhat[a, a] * self.qhat[b, b])
                scaled_bias = (
                    self.information_factor
                    * bias_of_source
                    / math.sqrt(self.V[a, a] * self.V[b, b])
                )
                effective_draws = min(
                    effective_sample_size(
                        samples[:, learned_component, learned_component]
                    )
                    for learned_component in (a, b)
                )
                check_name = f"Qhat{entry_label} ({source})"
                drawn_qhat = self.information_factor * samples[:, a, b]
                checks.append(
                    compare(
                        check_name,
                        component,
                        self.qhat[a, b],
                        error,
                        drawn_qhat,
                        scaled_bias,
                        effective=effective_draws,
                    )
                )
        if not all(
            check.has_enough_draws for check in checks[: len(rows)]
        ):  # a Newton step needs reliable means
            return checks
        mse_changes = (
            self.information_factor * by_posterior[:, rows, columns]
            - self.qhat[rows, columns]
        ) @ self._response.T
        return checks + [
            compare(
                "MSE",
                a,
                self.mse[a],
                self.point.mse_error[a],
                self.V[a, a] + mse_change,
                effective=math.inf,
            )
            for a, mse_change in zip(self.learned_components, mse_changes.T)
        ]

    def _unlearned(self) -> list[Check]:
        """Check that unlearned components a are stable at this sample ratio: the factor by which their overlap grows in one
        iteration is at most 1. Held components keep their lowest overlap up to a critical Qhat; the others grow at a rate that
        posteriors of latents z give, by their responses ``G = <z z^T> / V - I``.
        """
        unlearned = [a for a in range(len(self.V)) if a not in self.learned_components]
        if (
            not unlearned
            or np.abs(
                self.Q[np.ix_(unlearned, unlearned)]
                - self.prior_mean_overlap[np.ix_(unlearned, unlearned)]
            ).max()
            > NEGLIGIBLE
        ):
            return []
        ratios = ComponentRatios(self.problem)
        held_components = [a for a in unlearned if ratios.critical_qhat[a] > 0]
        checks = []
        if held_components:
            by_posterior, _, posterior_bias = self.draw(self.Q, self.V)
            for a in held_components:
                growth_factor = self.information_factor / ratios.critical_qhat[a]
                checks.append(
                    compare(
                        "unlearned",
                        a,
                        1,
                        0,
                        growth_factor * by_posterior[:, a, a],
                        growth_factor * posterior_bias / self.V[a, a],
                        bound=True,
                    )
                )
        unstable_candidates = [a for a in unlearned if ratios.critical_qhat[a] == 0]
        if unstable_candidates and self.problem.channel.symmetry in (
            "signs",
            "signed-permutations",
        ):
            growth_rates: dict[int, list[Host]] = {a: [] for a in unstable_candidates}
            for omega, _, posterior in self._posteriors(
                self.Q, self.V, second_moment=True
            ):
                # Rates at which a small overlap creates information.
                for a, rates in growth_rates.items():
                    G = np.asarray(posterior.second_moment)[:, a, :, a, :] / self.V[
                        a, a
                    ] - np.eye(omega.shape[2])
                    rates.append(
                        self.information_factor
                        * ratios.response[a]
                        * (G * G).sum((1, 2))
                        / self.V[a, a] ** 2
                    )
            for a, rates in growth_rates.items():
                error = self.point.alpha_error[a] / self.alpha
                samples = np.concatenate(rates)
                checks.append(
                    compare(
                        "unlearned",
                        a,
                        1,
                        error,
                        samples,
                        bound=True,
                        effective=math.inf,
                    )
                )
        return checks

    def _perfect(self) -> list[Check]:
        """Check that perfect recovery is stable: a small error V (overlap Q) shrinks under state evolution."""
        # V is a small multiple of the prior covariance, in which a mean that components share does not count.
        V = NEAR_RECOVERY_SHARE * (self.second_moment - self.prior_mean_overlap)
        Q = self.second_moment - V
        by_posterior, _, information_bias = self.draw(Q, V)
        information_weight = (
            self.information_factor
            * np.linalg.inv(inverse_map(self.problem, Q, V, np.arange(len(V))))
            / len(V)
        )
        rate_bias = information_bias * float(
            np.trace(information_weight @ np.linalg.inv(V))
        )
        check = compare(
            "perfect recovery",
            None,
            1,
            0,
            np.einsum("npq,qp->n", by_posterior, information_weight),
            rate_bias,
            bound=True,
        )
        # The inverse, the rate at which the error grows, is bounded from above like other rates.
        return [
            replace(
                check,
                drawn=1 / check.drawn,
                standard_error=check.standard_error / check.drawn**2,
            )
        ]

    # -- draws of the signal, and of fresh labels ---------------------------------------------------------------------

    def _signal(self) -> list[Check]:
        """Check the MSE of the signal (P components a) denoised at the printed Qhat; matrices are drawn at two dimensions D and
        extrapolated in 1/D, low-rank signals (vectors) give one sample per entry.
        """
        prior = self.problem.prior
        model = self.problem.model
        P = self.problem.components
        if why_theory_only(prior, P):
            return []
        has_low_rank = model.rank == "low"
        root = inverse_root(self.qhat, 1e-12)

        def squared_errors_of(dimension: int, index: int) -> Host:
            """Squared errors of the signal denoised from its observation R, in one draw numbered ``index`` at D =
            ``dimension``: (P, D) by entry for vectors, else means (P, 1).
            """
            rng = self._rng("signal", dimension, index)
            signal = np.asarray(prior.sample(rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            estimate_error = signal - np.asarray(prior.denoise(R, self.qhat).estimate)
            has_single_entries = has_low_rank and self.problem.features is None
            return (
                np.asarray(estimate_error * estimate_error)
                if has_single_entries
                else np.diagonal(model.inner(estimate_error, estimate_error))[:, None]
            )

        check_options: dict[str, float] = {}
        finite_size_bias = np.zeros(P)
        # Signals whose features have weights have a dimension of their own.
        if self.problem.features is not None:
            D = len(self.problem.features)
            samples = np.concatenate(
                [squared_errors_of(D, draw) for draw in range(max(2, self.draws // D))],
                axis=1,
            )
        elif has_low_rank:
            samples = squared_errors_of(self.draws, 0)
        else:  # the effect of 1/D is extrapolated, and counted as an error
            small_D_errors, large_D_errors = (
                np.concatenate(
                    [
                        squared_errors_of(size_factor * DIMENSION, draw)
                        for draw in range(MATRICES)
                    ],
                    axis=1,
                )
                for size_factor in (1, 2)
            )
            samples = 2 * large_D_errors - small_D_errors
            finite_size_bias = np.abs((large_D_errors - small_D_errors).mean(1))
            check_options = {"effective": math.inf}
        prior_error = overlap_error_at(self.problem, self.qhat) * self.mse
        return [
            compare(
                "signal",
                a,
                self.mse[a],
                prior_error[a],
                samples[a],
                finite_size_bias[a],
                **check_options,
            )
            for a in self.learned_components
        ]

    def _predictions(self) -> list[Check]:
        """Check generalization errors with two posterior draws of the latents z (n, P, C), one of which serves as the truth, and
        their predicted labels y. Each loss is the product of two differences of true and predicted label with independent noise.
        """
        printed_errors = self.point.generalization_error
        if not printed_errors:
            return []
        P, C = self.problem.components, self.problem.model.sites
        root_Q = symmetric_root(self.Q)
        root_V = symmetric_root(self.V)
        normal_numbers = self._rng("prediction").standard_normal((3, self.draws, P, C))
        omega = root_Q @ normal_numbers[0] + VANISHING_ESTIMATE * normal_numbers[0]
        true_labels, posterior_labels, plugin_labels = (
            [
                np.asarray(y, dtype=float).reshape(self.draws, -1)
                for y in predict_twice(self.problem.channel, z)
            ]
            for z in (
                omega + root_V @ normal_numbers[1],
                omega + root_V @ normal_numbers[2],
                omega,
            )
        )
        mean_labels = [y.mean(0) for y in true_labels]
        bayes_losses, plugin_losses, constant_losses = (
            ((true_labels[0] - labels[0]) * (true_labels[1] - labels[1])).sum(1)
            for labels in (posterior_labels, plugin_labels, mean_labels)
        )
        losses = {
            "bayes": bayes_losses / 2,
            "plugin": plugin_losses,
            "constant": constant_losses * self.draws / (self.draws - 1),
        }
        errors = self.point.generalization_error_error or {}
        return [  # the last argument allows for terms of second order, which matter for balanced labels
            compare(
                f"generalization {kind}", None, printed_errors[kind], errors.get(kind, 0.0), loss, 2 * loss.mean() / self.draws
            )
            for kind, loss in losses.items()
            if kind in printed_errors
        ]  # fmt: skip


def _derivative(function: Callable[[Host], Host], steps: Host) -> Host:
    """Jacobian at zero of a function of K variables, by central differences with these ``steps`` (K,), one
    column per variable.
    """
    derivative_columns = [
        (function(step) - function(-step)) / (2 * step_size)
        for step, step_size in zip(np.diag(steps), steps)
    ]
    return np.stack(derivative_columns, axis=1)
