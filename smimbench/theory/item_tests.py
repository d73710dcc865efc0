r"""Monte Carlo tests of a single channel or prior, used by ``consistency``.

Every test compares means over draws with what they must be. What fails is tested again with other draws before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from smimbench.derive.labels import is_noisy
from smimbench.derive.sampled_information import POINTS, SCRAMBLES, sampled_moments
from smimbench.files import attempt, error_line
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.random_numbers import monte_carlo_rng
from smimbench.numerics.statistics import (
    DETECTED,
    FEWEST_EFFECTIVE,
    controlled_mean,
    effective_sample_size,
)
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.generalization import KINDS, sampled_errors
from smimbench.theory.information import overlap_error_at

LARGEST_Z, SUSPECT_Z = 6.0, 4.0
"""Standard errors that chance is allowed: of a mean over few draws, and where a test is repeated with other samples before it
counts (chance is that far off twice once in 10^8 tests). Doubled, errors twice as large pass."""
DRAW_GROUPS = 64
"""Groups of draws whose scatter is the error of a mean; doubled, it is known 1.4 times better, and regressions fit longer."""
FORMULA_TOLERANCE, ROUNDING, SUM_TOLERANCE = 1e-3, 1e-9, 1e-5
"""Relative difference of a formula from draws that always passes; differences that are rounding, of numbers and of sums. Doubled,
errors twice as large pass."""

Means = dict[str, tuple[Host, Host]]
"""Means (P,) that must be 0 and their standard errors, by a description of the fault if they are not."""
Failures = dict[str, str]
"""Error messages by fault, component and sign."""


class ItemTest:
    """Base class of the tests of one item (channel or prior): compares the values of its methods with means over random draws of
    signals or labels. ``min_draws`` and ``max_draws`` limit the number of draws, ``seconds`` their time.

    Identities are tested with ``min_draws`` to ``max_draws`` draws, as time allows.
    """

    kind = "channel"
    min_draws, max_draws, seconds = 64, 1 << 18, 0.5

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], float],
        seed: int = 0,
        share: float = 1.0,
    ) -> None:
        """Set the problem whose item is tested; ``clock`` counts seconds, ``share`` is the fraction of the usual time."""
        self.problem, self.clock, self.seed, self.share = problem, clock, seed, share
        self.item = getattr(problem, self.kind)
        self.name = problem.spec[self.kind]["name"]

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Random generator seeded by the name of the ``purpose`` of the draws, the integers ``index`` and the test's seed."""
        seed = [self.seed] if self.seed > 0 else []
        return monte_carlo_rng(f"consistency: {purpose}", *index, *seed)

    def call(self, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of the item; an exception becomes a one-line ProblemError."""
        member = getattr(self.item, method)
        method_result, error = attempt(member, *arguments, **options)
        if error is not None:
            raise self.fail(f"{method} raised {error_line(error)}") from error
        return method_result

    def fail(self, complaint: str) -> ProblemError:
        """Create a ProblemError that names the item, with the ``complaint`` about it."""
        advice = (
            f"no theory is computed from it (details: 'smimbench check {self.name}')"
        )
        return ProblemError(f"{self.kind} {self.name!r}", f"{complaint}; {advice}")

    def messages_of_failed_means(
        self,
        place: str,
        means: Means,
        largest_z: float,
        allowance: float,
        remark: str = "",
    ) -> Failures:
        """Error messages, keyed by fault, for those ``means`` (a mean with its standard error for each fault) that differ from 0,
        in some component a, by more than ``largest_z`` standard errors plus ``allowance``. ``place`` says at which overlap they
        were drawn, ``remark`` ends each message.
        """
        failures = {}
        for fault, (mean, error) in means.items():
            is_zero = np.abs(mean) <= largest_z * error + allowance + ROUNDING
            for a in np.flatnonzero(~is_zero):
                component = f" of component {a + 1}" if len(mean) > 1 else ""
                failures[f"{fault} {a} {mean[a] < 0}"] = (
                    f"{place}: {fault}{component}: {mean[a]:.4g} +- {error[a]:.1g} should be 0{remark}"
                )
        return failures

    def require(
        self,
        quantity: str,
        stated: Array,
        drawn: Array,
        error: Array,
        allowed_difference: Array,
    ) -> None:
        """Raise a ProblemError if a formula (``stated``) differs from random draws (``drawn``, with standard ``error``) by more
        than ``allowed_difference``. ``quantity`` names the number.
        """
        excess_difference = np.abs(stated - drawn) - allowed_difference
        if not (excess_difference <= 0).all():
            stated, drawn, error = (
                float(np.ravel(array)[np.argmax(excess_difference)])
                for array in (stated, drawn, error)
            )
            raise self.fail(
                f"{quantity} is {stated:.4g}, but random draws give {drawn:.4g} +- {error:.1g}"
            )

    def require_finite(
        self, quantity: str, numbers: object, shape: tuple[int, ...]
    ) -> Host:
        """Convert ``numbers`` to an array; ProblemError, naming the ``quantity``, unless it is finite and has this shape."""
        array = np.asarray(numbers, dtype=float)
        if array.shape != shape or not np.isfinite(array).all():
            description = (
                "nan or inf" if array.shape == shape else f"shape {array.shape}"
            )
            raise self.fail(
                f"{quantity} must be finite numbers of shape {shape}, got {description}"
            )
        return array

    def value_and_error(
        self, quantity: str, formula: object, shape: tuple[int, ...]
    ) -> tuple[Host, Host]:
        """Value (of this shape) and error of a closed form that the item gave as ``Uncertain``; ``quantity`` names it."""
        if not isinstance(formula, Uncertain):
            type_name = type(formula).__name__
            raise self.fail(
                f"{quantity} must return a smimbench.Uncertain, got {type_name}"
            )
        stated_value = formula.value if shape else np.reshape(formula.value, ())
        error = np.asarray(formula.error, dtype=float)
        return self.require_finite(quantity, stated_value, shape), error

    def run_growing(
        self, failures_of: Callable[[int, str], tuple[Failures, object]]
    ) -> tuple[Array, float]:
        """Run a test, ``failures_of(draws, suffix of the seed)``, with a growing number of draws until its time is used; repeat
        it if it fails. Return the samples of its last repetition and the seconds per draw.

        What fails again with other draws is raised, in a fixed order: an item is always refused in the same words.
        """
        draws = self.min_draws
        while True:
            start_time = self.clock()
            failures, samples = failures_of(draws, "")
            seconds = self.clock() - start_time
            if draws >= self.max_draws or 4 * seconds > self.share * self.seconds:
                break
            draws = min(self.max_draws, 4 * draws)
        if failures:
            repeated_failures, _ = failures_of(
                min(self.max_draws, 4 * draws), ", again"
            )
            for fault in failures:
                if fault in repeated_failures:
                    raise self.fail(repeated_failures[fault])
        return samples, seconds / draws


class ChannelTest(ItemTest):
    """Test of a channel: its posterior, information and generalization errors."""

    def check(self, Q: Host, V: Host, draw_index: int) -> None:
        """Test the channel at an overlap Q and error V, with latents z of mean omega; ``draw_index`` selects the random draws,
        and ``place`` describes the overlap in messages.
        """
        second_moments = np.diagonal(prior_moments(self.problem)[0])
        unknown_share = float(np.max(np.diagonal(V) / second_moments))
        place = f"at V = {unknown_share:.1g} of the second moment"
        failures_of = partial(self._failures, Q, V, f"posterior {place}", draw_index)
        (z, omega), seconds = self.run_growing(failures_of)
        self._require_independent(z[:8], omega, V, draw_index)
        if self.item.information is not None:
            # Formulas of very slow channels are not compared.
            is_fast = seconds * SCRAMBLES * POINTS <= 2.0
            self._check_information(Q, V, place, is_fast)
        if self.item.generalization_error is not None:
            self._check_errors(Q, V, place)

    def _check_information(self, Q: Host, V: Host, place: str, is_fast: bool) -> None:
        """Test the channel's information at overlap Q and error V against sampled information, if its posterior ``is_fast``.
        ``place`` describes the overlap.
        """
        P = self.problem.components
        formula = self.call("information", Q, V)
        formula_value, error = self.value_and_error("information", formula, (P, P))
        if not is_fast:
            return
        sampled = sampled_moments(self.item, self.problem.model.sites, Q, V)[0]
        information_unit = np.sqrt(np.outer(np.diagonal(V), np.diagonal(V)))
        allowed_difference = LARGEST_Z * (
            sampled.error + error
        ) + FORMULA_TOLERANCE * np.abs(formula_value)
        allowed_difference = allowed_difference + ROUNDING / information_unit
        channel = getattr(self.item, "channel", self.item)  # its own members
        quantity = f"information {place}"
        if channel.information is None and channel.log_likelihood is not None:
            quantity += " (needs a normalized log_likelihood)"
        self.require(
            quantity, formula_value, sampled.value, sampled.error, allowed_difference
        )

    def _check_errors(self, Q: Host, V: Host, place: str) -> None:
        """Test the channel's generalization errors at overlap Q and error V against sampled ones. ``place`` describes the
        overlap.
        """
        formulas = self.call("generalization_error", Q, V)
        sampled = sampled_errors(self.problem, Q, V)
        constant_error = abs(sampled["constant"].value)
        for kind in KINDS:
            quantity = f"generalization_error ({kind})"
            sampled_error = sampled[kind]
            is_dict = isinstance(formulas, dict)
            formula = formulas.get(kind) if is_dict else formulas
            formula_value, error = self.value_and_error(quantity, formula, ())
            allowed_difference = (
                LARGEST_Z * (sampled_error.error + error)
                + FORMULA_TOLERANCE * constant_error
                + ROUNDING
            )
            self.require(
                f"{quantity} {place}",
                formula_value,
                sampled_error.value,
                sampled_error.error,
                allowed_difference,
            )

    def _failures(
        self, Q: Host, V: Host, place: str, draw_index: int, count: int, suffix: str
    ) -> tuple[Failures, tuple[Array, Array]]:
        r"""Test the posterior given ``count`` drawn labels y; return error messages by fault, and the drawn latents ``z = omega +
        V^{1/2} h`` with their means ``omega = Q^{1/2} u``, where u and h (n, P, C) are standard normal. A test is the mean of
        products whose mean must vanish: of the error of the posterior mean (``mean_error``) with a function f of what is known.
        ``draw_index`` and ``suffix`` select random numbers.

        With ``u`` and ``h`` the standard normal numbers of omega and of z - omega, ``s`` the step of the mean from omega and
        ``e = h - s`` its error, in units of ``V^{1/2}``, these have mean zero: ``e s``, also for ``|u| > 1`` alone; e times 1,
        u, ``u^3 - 3 u`` or a function of the label; ``e^2 - Cov`` and ``h^2 - s^2 - Cov``. Regressions on ``h^2 - 1`` and on
        h times functions of u, whose mean is zero whatever the posterior, make their standard errors smaller.
        """
        P, C = self.problem.components, self.problem.model.sites
        u, h = self.rng(f"latents{suffix}", draw_index).standard_normal(
            (2, count, P, C)
        )
        omega = symmetric_root(Q) @ u
        z = omega + symmetric_root(V) @ h
        y = self.call("forward", z, rng=self.rng(f"labels{suffix}", draw_index))
        if np.shape(y)[:1] != (count,):
            raise self.fail(
                f"forward must return one label per sample, ({count}, ...), got shape {np.shape(y)}"
            )
        posterior, second_moment = self._posterior(y, omega, V, draw_index)
        inverse_V_root = inverse_root(V, 0.0)
        stated_error = _stated_error(posterior)
        mean_step = inverse_V_root @ (posterior.mean - omega)
        mean_error = h - mean_step
        if (
            0
            < effective_sample_size((mean_step * mean_step).sum((1, 2)))
            < FEWEST_EFFECTIVE
        ):
            return {}, (z, omega)  # few labels move the mean: a test would be chance
        # A bounded function of the label, along a random direction in the space of labels.
        flat_labels = np.nan_to_num(np.asarray(y, dtype=float).reshape(count, -1))
        rng = self.rng("directions", draw_index)
        label_deviations = np.ascontiguousarray(flat_labels.T).std(1)
        bounded_label = flat_labels @ (
            rng.standard_normal(flat_labels.shape[1]) / (label_deviations + 1e-300)
        )
        bounded_label = np.tanh(
            (bounded_label - bounded_label.mean()) / (bounded_label.std() + 1e-300)
        )[:, None]
        site_direction = rng.standard_normal(C)
        omega_along = omega @ site_direction
        omega_weight = 1 + omega_along / np.std(
            omega_along, axis=0
        )  # gives omega a sign where labels see none
        constant_function = np.ones_like(u)
        is_large = np.abs(u) > 1
        test_functions = {
            "on average": constant_function,
            "along omega": u,
            "where |omega| is large, along omega": u * (u * u - 3),
        }

        def site_average(a: Array, b: Array) -> Array:
            """Means over the C sites of products of a and b (n, P, C): one number (n, P) per sample and component."""
            return np.asarray(np.einsum("npc,npc->np", a, b) / C)

        zero_mean_controls = [
            site_average(h * h - 1, f) for f in (constant_function, is_large)
        ]
        zero_mean_controls += [site_average(h, f) for f in test_functions.values()]
        mean_fault = "the mean is not the posterior mean of the distribution that labels are drawn from"
        covariance_fault = "the covariance differs from that of the errors of the mean"
        test_products = {
            mean_fault: site_average(mean_step, mean_error),
            f"{mean_fault}, where |omega| is large": site_average(
                mean_step * is_large, mean_error
            ),
        }
        for name, f in test_functions.items():
            test_products[f"{mean_fault}, {name}"] = site_average(mean_error, f)
        covariance_with_label = (
            (mean_error @ site_direction) * bounded_label * omega_weight
        )
        test_products["the mean ignores information in the label"] = (
            covariance_with_label
        )
        covariance, covariance_difference = np.asarray(posterior.covariance), 0.0
        if second_moment is not None:
            predicted_square = np.einsum(
                "npcpd,c,d->np", second_moment, site_direction, site_direction
            )
            squared_latent = (z @ site_direction) ** 2
            covariance_with_label = (
                (squared_latent - predicted_square)
                * (1 + bounded_label + bounded_label**2)
                / np.diagonal(V)
            )
            test_products["the second moment ignores information in the label"] = (
                covariance_with_label
            )
            outer_product = posterior.mean @ np.swapaxes(posterior.mean, 1, 2)
            covariances = (np.einsum("npcqc->npq", second_moment) - outer_product) / C
            covariance_gap = (
                inverse_V_root @ (covariances.mean(0) - covariance) @ inverse_V_root
            )
            covariance_difference = float(np.abs(covariance_gap).max())
            variances = np.diagonal(
                inverse_V_root @ covariances @ inverse_V_root, axis1=1, axis2=2
            )
            test_products[covariance_fault] = (
                site_average(mean_error, mean_error) - variances
            )
            test_products[
                f"{covariance_fault}, and from the part of V that labels leave unexplained"
            ] = site_average(h, h) - site_average(mean_step, mean_step) - variances
        means = _means(test_products, zero_mean_controls)
        if second_moment is None:
            # The scatter of an averaged covariance is not known, nor how it follows others.
            claimed_variance = np.diagonal(inverse_V_root @ covariance @ inverse_V_root)
            means |= _means(
                {
                    covariance_fault: site_average(mean_error, mean_error)
                    - claimed_variance
                }
            )
        mean_square = np.maximum(site_average(mean_step, mean_step).mean(0), 1e-300)
        percent = 100 * DETECTED * float(np.max(means[mean_fault][1] / mean_square))
        sensitivity_remark = (
            f" (this test detects a {percent:.1g}% error of the step from omega to the mean, but not errors of rare labels "
            "alone, nor a wrong distribution that forward and posterior share)"
        )
        failures = self.messages_of_failed_means(
            place, means, SUSPECT_Z, 2 * stated_error, sensitivity_remark
        )
        if covariance_difference > SUM_TOLERANCE + 8 * stated_error:
            failures["covariance"] = (
                f"{place}: the covariance differs by {covariance_difference:.2g} of V from that computed from the second moments"
            )
        return failures, (z, omega)

    def _posterior(
        self, y: Array, omega: Array, V: Array, draw_index: int
    ) -> tuple[Posterior, Array | None]:
        """Call the posterior for labels y and latents of mean omega and covariance V, and check its shapes; return it, and its
        second moment if theory uses it.
        """
        item, rng = self.item, self.rng("posterior", draw_index)
        uses_moment = item.information is None or item.susceptibility is None
        posterior = self.call(
            "posterior", y, omega, V, second_moment=uses_moment, rng=rng
        )
        second_moment = None
        if uses_moment and isinstance(posterior, Posterior):
            second_moment = posterior.second_moment
        try:
            checked_posterior(posterior, omega, second_moment=second_moment is not None)
        except ValueError as error:
            raise self.fail(str(error)) from None
        for name in ("mean", "covariance", "second_moment"):
            if name != "second_moment" or second_moment is not None:
                array = getattr(posterior, name)
                self.require_finite(f"posterior: {name}", array, array.shape)
        if _stated_error(posterior) > 0.15:
            raise self.fail(
                f"posterior: the reported error {posterior.error:.2g} of the mean exceeds the limit 0.15; increase its accuracy"
            )
        return posterior, second_moment

    def _require_independent(
        self, z: Array, omega: Array, V: Array, draw_index: int
    ) -> None:
        """Raise a ProblemError if labels or posteriors of a sample depend on other samples or on earlier calls. z are latents
        of mean omega and covariance V, and ``draw_index`` selects the random numbers.
        """
        half_count = len(z) // 2
        if not is_noisy(self.item, z):
            labels_of_half = self.item.forward(z[:half_count])
            half_of_labels = self.item.forward(z)[:half_count]
            if not np.allclose(labels_of_half, half_of_labels, rtol=1e-9, atol=1e-12):
                raise self.fail(
                    "forward: a label must depend on the latents of its own sample and on rng only, "
                    "but it depends on other samples or on random numbers from elsewhere"
                )

        def mean(count: int, purpose: str = "alone") -> tuple[Array, float]:
            """Posterior means of the first ``count`` samples (the first half of them is returned), and their stated error;
            ``purpose`` seeds.
            """
            y = self.item.forward(z, rng=self.rng("labels", draw_index))
            rng = self.rng(purpose, draw_index)
            posterior = self.item.posterior(y[:count], omega[:count], V, rng=rng)
            return np.asarray(posterior.mean)[:half_count], _stated_error(posterior)

        mean_of_all, stated_error = mean(len(z))
        mean_repeated, _ = mean(len(z))
        mean_resampled, _ = mean(len(z), "alone, otherwise")
        mean_of_half, stated_error_of_half = mean(half_count)
        scale = math.sqrt(float(np.diagonal(V).max()))
        if np.abs(mean_of_all - mean_repeated).max() > 1e-6 * scale:
            raise self.fail(
                "posterior: two calls with the same arguments return two different means; "
                "draw only from the rng that is passed in"
            )
        # A sampled posterior draws other numbers for fewer samples.
        is_sampled = (mean_of_all != mean_resampled).any()
        allowed_difference = (
            1e-6 + LARGEST_Z * max(stated_error, stated_error_of_half)
        ) * scale
        if (
            not is_sampled
            and np.abs(mean_of_all - mean_of_half).max() > allowed_difference
        ):
            raise self.fail(
                "posterior: the mean of a sample must not depend on the other samples, but it does"
            )


SECOND_MOMENT_FAULT = "second_moment differs from that of drawn signals"


class PriorTest(ItemTest):
    """Test of a prior: its moments, its denoiser and its state-evolution map. ``seconds`` limits the time, and ``signal_draws``
    is the number of signals; the dimension grows instead of the number of draws.

    As many vectors are drawn as time allows, or ten matrices. With five draws, chance is beyond ``LARGEST_Z`` standard errors
    once in 250 comparisons; with ten, once in 5,000.
    """

    kind = "prior"
    seconds, signal_draws = 1.0, 10

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], float],
        seed: int = 0,
        share: float = 1.0,
    ) -> None:
        """Set the problem, with smaller dimensions for matrices than vectors; ``share`` is the fraction of the usual time to
        spend.
        """
        super().__init__(problem, clock, seed, share)
        self.is_low_rank = problem.model.rank == "low"
        draw_range = (2000, 64_000) if self.is_low_rank else (240, 240)
        self.min_draws, self.max_draws = draw_range
        # Values of a discrete prior that are hardly ever confused may be in no draw at all; matrices are of finite size.
        times_dimension = 3.0 / self.signal_draws if self.is_low_rank else 3.0
        self.allowance_times_dimension = times_dimension

    def check(self, Qhat: Host, place: str, draw_index: int) -> None:
        """Test the prior, and its map from information Qhat (P, P) to overlap Q and error V, at one Qhat, which ``place``
        describes in messages; ``draw_index`` selects the random draws.
        """
        failures_of = partial(self._failures, Qhat, f"Qhat = {place}", draw_index)
        (claimed_errors, dimension), _ = self.run_growing(failures_of)
        P = len(Qhat)
        second_moment = prior_moments(self.problem, len(Qhat))[0]
        overlap = self.call("overlap", Qhat[None, ...])
        Q, V = (
            self.require_finite(
                f"overlap: {name}", getattr(overlap, name, None), (1, P, P)
            )[0]
            for name in ("Q", "V")
        )
        if not np.allclose(Q + V, second_moment, rtol=1e-6, atol=1e-9):
            raise self.fail(
                "overlap: Q + V must equal second_moment, the second moment of the signal, at every Qhat"
            )
        standard_error = standard_error_of(claimed_errors)
        finite_size_allowance = self.allowance_times_dimension / dimension
        allowance = (
            LARGEST_Z * standard_error
            + finite_size_allowance
            + 3 * overlap_error_at(self.problem, Qhat)
        )
        unit_name = "the variance" if self.is_low_rank else "a linear estimate's"
        quantity = f"overlap at Qhat = {place}: V in units of {unit_name}"
        claimed_V = V.sum(1) / self._error_unit(Qhat)
        self.require(
            quantity, claimed_V, claimed_errors.mean(0), standard_error, allowance
        )

    def _error_unit(self, Qhat: Host) -> Host:
        """Squared error (P,) of a simple estimate at information Qhat, by which squared errors are divided: that of the prior
        mean, the prior variance, for vectors, that of the best linear estimate for matrices.
        """
        variance = np.subtract(*prior_moments(self.problem, len(Qhat)))
        if not self.is_low_rank:
            variance = np.linalg.inv(np.linalg.inv(variance) + Qhat)
        return np.diagonal(variance)

    def _failures(
        self, Qhat: Host, place: str, draw_index: int, dimension: int, suffix: str
    ) -> tuple[Failures, tuple[Host, int]]:
        r"""Test the prior on drawn signals; return error messages by fault, with the pair of the squared errors V that its
        denoiser claims, (draws, P), as multiples of the error of a simple estimate (``_error_unit``), and the dimension of the
        signals. R is a noisy observation of a signal at information Qhat; a test is the mean of products whose mean must vanish:
        of the estimate's error with a function f of R. ``draw_index`` and ``suffix`` select the random numbers.

        The error of a posterior mean has mean zero with every function of the input R. With R itself it says that the response
        of the estimate to R is ``V Qhat``, because ``E <Z, f(R)>`` is the mean derivative of f along the noise Z. Products
        are those of a component with the sum of all.
        """
        model = self.problem.model
        P = len(Qhat)
        second_moment, prior_mean_overlap = prior_moments(self.problem, P)
        error_unit = self._error_unit(Qhat)
        second_moments = np.diagonal(second_moment)
        noise_root = symmetric_root(np.linalg.inv(Qhat))
        # The best linear estimate stands for R, which is large where little is known.
        linear_estimator = (
            np.linalg.inv(np.linalg.inv(second_moment - prior_mean_overlap) + Qhat)
            @ Qhat
        )
        prior_mean = np.asarray(self.call("mean", P, dimension), dtype=float)
        constant = np.ones_like(prior_mean) if self.is_low_rank else prior_mean

        def product(factor: Array, summand: Array) -> Array:
            """Inner products (draws, P) of every component of ``factor``, such as an error, with the sum of the components of
            ``summand``; for vectors in 5 groups of entries, each counted as a draw.
            """
            summand_total = summand.sum(0)
            if self.is_low_rank:
                # A mean over a few entries is as good a sample as an entry.
                factor = factor.reshape(P, 5, -1)
                summand_total = summand_total.reshape(5, -1)
                sums = np.einsum("pkd,kd->kp", factor, summand_total)
                return np.asarray(sums / (dimension / 5))
            summand_total = np.broadcast_to(summand_total, summand.shape)
            return np.diagonal(model.inner(factor, summand_total))[None]

        values_per_draw: list[dict[str, Array]] = []
        claimed_errors = []
        for signal_index in range(self.signal_draws):
            rng = self.rng(f"signal{suffix}", draw_index, signal_index)
            signal = np.asarray(self.call("sample", rng, P, dimension), dtype=float)
            R = signal + np.tensordot(
                noise_root, model.draw_noise(rng, P, dimension), axes=1
            )
            denoised = self.denoised(R, Qhat)
            estimate = denoised.estimate
            estimate_error = signal - estimate
            signal_deviation = signal - prior_mean
            claimed_errors.append(np.asarray(denoised.V).sum(1) / error_unit)
            test_functions = {
                "the estimate is not the posterior mean of the distribution that signals are drawn from": estimate
                - prior_mean,
                "the response of the estimate to its input is not V Qhat": np.tensordot(
                    linear_estimator, R - prior_mean, axes=1
                ),
            }
            if self.is_low_rank:
                test_functions[
                    "the mean of the estimate differs from that of the signal"
                ] = constant
                scaled_input = R / np.sqrt(second_moments)[:, None]
                bounded_input = np.tanh(scaled_input)
                test_functions["the estimate ignores information in its input"] = (
                    bounded_input
                )
            test_values = {
                name: product(estimate_error, f) / error_unit
                for name, f in test_functions.items()
            }
            test_values[
                "the returned error V differs from the true error of the estimate"
            ] = (
                product(estimate_error, estimate_error) / error_unit
                - claimed_errors[-1]
            )
            test_values[SECOND_MOMENT_FAULT] = (
                product(signal, signal) - second_moment.sum(1)
            ) / second_moments
            test_values["mean differs from that of drawn signals"] = (
                product(signal_deviation, constant) / second_moments
            )
            test_values[
                "mean_overlap differs from the overlap of the prior mean with itself"
            ] = (
                product(prior_mean, prior_mean) - prior_mean_overlap.sum(1)
            ) / second_moments
            values_per_draw.append(test_values)
        means = _means(
            {
                fault: np.concatenate(
                    [test_values[fault] for test_values in values_per_draw]
                )
                for fault in values_per_draw[0]
            }
        )
        # A moment that is simulated has the error of the map where nothing is known.
        signal_moment, moment_error = means[SECOND_MOMENT_FAULT]
        vanishing_Qhat = 1e-9 * np.linalg.inv(second_moment - prior_mean_overlap)
        moment_error = np.hypot(
            moment_error, overlap_error_at(self.problem, vanishing_Qhat)
        )
        means[SECOND_MOMENT_FAULT] = signal_moment, moment_error
        largest_z = SUSPECT_Z if self.is_low_rank else LARGEST_Z
        allowance = self.allowance_times_dimension / dimension
        failures = self.messages_of_failed_means(place, means, largest_z, allowance)
        return failures, (np.array(claimed_errors), dimension)

    def denoised(self, R: Array, Qhat: Array) -> Any:
        """Call the denoiser on observation R of P components at Qhat, check its estimate and error V, and return them."""
        P = len(Qhat)
        denoiser_output = self.call("denoise", R, Qhat)
        for name, shape in (("estimate", R.shape), ("V", (P, P))):
            array = getattr(denoiser_output, name, None)
            self.require_finite(f"denoise: {name}", array, shape)
            dtype = getattr(array, "dtype", type(array))
            if dtype not in (np.float32, np.float64):
                raise self.fail(
                    f"denoise: {name} must be float32 or float64, got {dtype}"
                )
        return denoiser_output


def standard_error_of(samples: Array) -> Array:
    """Standard error of the mean of samples (n, ...)."""
    return samples.std(0, ddof=1) / math.sqrt(len(samples))


def _stated_error(posterior: object) -> float:
    """Relative error of the posterior mean that a sampled posterior states; 0 if none."""
    error = getattr(posterior, "error", 0.0)
    return float(error) if math.isfinite(error) else 0.0


def _means(
    test_values: dict[str, Array], zero_mean_controls: Sequence[Array] = ()
) -> Means:
    """Means (P,) and standard errors of the test values (n, P) of several tests, by their names, one component a at a time, with
    their variance reduced by regression on ``zero_mean_controls`` (n, P), whose means are exactly 0.
    """
    samples = np.stack(list(test_values.values()))
    _, n, P = samples.shape
    controls = (
        np.stack(zero_mean_controls) if zero_mean_controls else np.zeros((0, n, P))
    )
    group_count, means_and_errors = min(n, DRAW_GROUPS), []
    for a in range(P):
        sample_columns = samples[:, :, a].T, controls[:, :, a].T
        means_and_errors.append(
            controlled_mean(
                *(np.array_split(columns, group_count) for columns in sample_columns)
            )
        )
    means, errors = np.swapaxes(means_and_errors, 0, 1)
    return dict(zip(test_values, zip(means.T, errors.T)))
