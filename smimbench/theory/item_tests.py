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
from smimbench.theory.information import overlap_error_at, prior_moments

LIKELIHOOD_LABELS = 1 << 16
"""Labels with which a likelihood is tested; doubled, errors 1.4 times smaller are found."""
SCORES, SUSPECT = 6.0, 4.0
"""Standard errors that chance is allowed: of a mean over few draws, and where a test is repeated with other samples before it
counts (chance is that far off twice once in 10^8 tests). Doubled, errors twice as large pass."""
GROUPS = 64
"""Groups of draws whose scatter is the error of a mean; doubled, it is known 1.4 times better, and regressions fit longer."""
FORMULA, ROUNDING, SUMMED = 1e-3, 1e-9, 1e-5
"""Relative difference of a formula from draws that always passes; differences that are rounding, of numbers and of sums. Doubled,
errors twice as large pass."""

Means = dict[str, tuple[Host, Host]]
"""Means (P,) that must be 0 and their standard errors, by a description of the fault if they are not."""
Failures = dict[str, str]
"""Error messages by fault, component and sign."""


class ItemTest:
    """Base class of the tests of one item: compares the values of its methods with means over random draws.

    Identities are tested with ``fewest`` to ``largest`` draws, as time allows.
    """

    kind = "channel"
    fewest, largest, seconds = 64, 1 << 18, 0.5

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], float],
        seed: int = 0,
        share: float = 1.0,
    ) -> None:
        self.problem, self.clock, self.seed, self.share = problem, clock, seed, share
        self.item = getattr(problem, self.kind)
        self.name = problem.spec[self.kind]["name"]

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Random generator whose seed depends on the purpose of the draws."""
        seed = [self.seed] if self.seed > 0 else []
        return monte_carlo_rng(f"consistency: {purpose}", *index, *seed)

    def call(self, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of the item; an exception becomes a one-line ProblemError."""
        answer, error = attempt(getattr(self.item, method), *arguments, **options)
        if error is not None:
            raise self.fail(f"{method} raised {error_line(error)}") from error
        return answer

    def fail(self, complaint: str) -> ProblemError:
        """Create a ProblemError that names the item."""
        advice = (
            f"no theory is computed from it (details: 'smimbench check {self.name}')"
        )
        return ProblemError(f"{self.kind} {self.name!r}", f"{complaint}; {advice}")

    def messages_of_failed_means(
        self, place: str, means: Means, scores: float, slack: float, remark: str = ""
    ) -> Failures:
        """Error messages for those means that differ significantly from 0."""
        failures = {}
        for fault, (mean, error) in means.items():
            is_zero = np.abs(mean) <= scores * error + slack + ROUNDING
            for a in np.flatnonzero(~is_zero):
                component = f" of component {a + 1}" if len(mean) > 1 else ""
                failures[f"{fault} {a} {mean[a] < 0}"] = (
                    f"{place}: {fault}{component}: {mean[a]:.4g} +- {error[a]:.1g} should be 0{remark}"
                )
        return failures

    def require(
        self, quantity: str, stated: Array, drawn: Array, error: Array, allowed: Array
    ) -> None:
        """Raise a ProblemError if a formula differs from random draws by more than is allowed."""
        excess = np.abs(stated - drawn) - allowed
        if not (excess <= 0).all():
            stated, drawn, error = (
                float(np.ravel(array)[np.argmax(excess)])
                for array in (stated, drawn, error)
            )
            raise self.fail(
                f"{quantity} is {stated:.4g}, but random draws give {drawn:.4g} +- {error:.1g}"
            )

    def require_finite(
        self, quantity: str, numbers: object, shape: tuple[int, ...]
    ) -> Host:
        """Convert to an array and raise a ProblemError unless it is finite and has this shape."""
        array = np.asarray(numbers, dtype=float)
        if array.shape != shape or not np.isfinite(array).all():
            got = "nan or inf" if array.shape == shape else f"shape {array.shape}"
            raise self.fail(
                f"{quantity} must be finite numbers of shape {shape}, got {got}"
            )
        return array

    def value_and_error(
        self, quantity: str, formula: object, shape: tuple[int, ...]
    ) -> tuple[Host, Host]:
        """Value and error of a closed form that the item returned as ``Uncertain``."""
        if not isinstance(formula, Uncertain):
            kind = type(formula).__name__
            raise self.fail(f"{quantity} must return a smimbench.Uncertain, got {kind}")
        mean = formula.value if shape else np.reshape(formula.value, ())
        error = np.asarray(formula.error, dtype=float)
        return self.require_finite(quantity, mean, shape), error

    def run_growing(
        self, failures_of: Callable[[int, str], tuple[Failures, object]]
    ) -> tuple[Array, float]:
        """Run a test with growing sample size; return its samples and the seconds per draw.

        What fails again with other draws is raised, in a fixed order: an item is always refused in the same words.
        """
        size = self.fewest
        while True:
            begin = self.clock()
            failures, samples = failures_of(size, "")
            seconds = self.clock() - begin
            if size >= self.largest or 4 * seconds > self.share * self.seconds:
                break
            size = min(self.largest, 4 * size)
        if failures:
            repeated, _ = failures_of(min(self.largest, 4 * size), ", again")
            for fault in failures:
                if fault in repeated:
                    raise self.fail(repeated[fault])
        return samples, seconds / size


class ChannelTest(ItemTest):
    """Test of a channel: its posterior, information and generalization errors."""

    def check(self, Q: Host, V: Host, point: int) -> None:
        """Test the channel at an overlap Q and error V; ``point`` selects the random draws."""
        second = np.diagonal(prior_moments(self.problem)[0])
        unknown_share = float(np.max(np.diagonal(V) / second))
        place = f"at V = {unknown_share:.1g} of the second moment"
        failures_of = partial(self._failures, Q, V, f"posterior {place}", point)
        (z, omega), seconds = self.run_growing(failures_of)
        self._require_independent(z[:8], omega, V, point)
        if self.item.information is not None:
            # Formulas of very slow channels are not compared.
            is_fast = seconds * SCRAMBLES * POINTS <= 2.0
            self._check_information(Q, V, place, is_fast)
        if self.item.generalization_error is not None:
            self._check_errors(Q, V, place)

    def _check_information(self, Q: Host, V: Host, place: str, is_fast: bool) -> None:
        """Test the information in closed form against sampled information."""
        P = self.problem.components
        formula = self.call("information", Q, V)
        stated, error = self.value_and_error("information", formula, (P, P))
        if not is_fast:
            return
        drawn = sampled_moments(self.item, self.problem.model.sites, Q, V)[0]
        scale = np.sqrt(np.outer(np.diagonal(V), np.diagonal(V)))
        allowed = SCORES * (drawn.error + error) + FORMULA * np.abs(stated)
        allowed = allowed + ROUNDING / scale
        self.require(f"information {place}", stated, drawn.value, drawn.error, allowed)

    def _check_errors(self, Q: Host, V: Host, place: str) -> None:
        """Test generalization errors in closed form against sampled ones."""
        formulas = self.call("generalization_error", Q, V)
        sampled = sampled_errors(self.problem, Q, V)
        scale = abs(sampled["constant"].value)
        for kind in KINDS:
            quantity, drawn = f"generalization_error ({kind})", sampled[kind]
            is_dict = isinstance(formulas, dict)
            formula = formulas.get(kind) if is_dict else formulas
            stated, error = self.value_and_error(quantity, formula, ())
            allowed = SCORES * (drawn.error + error) + FORMULA * scale + ROUNDING
            self.require(
                f"{quantity} {place}", stated, drawn.value, drawn.error, allowed
            )

    def _failures(
        self, Q: Host, V: Host, place: str, point: int, count: int, suffix: str
    ) -> tuple[Failures, tuple[Array, Array]]:
        r"""Failures of the posterior's tests, with the drawn latents and their means omega.

        With ``u`` and ``h`` the standard normal numbers of omega and of z - omega, ``s`` the step of the mean from omega and
        ``e = h - s`` its error, in units of ``V^{1/2}``, these have mean zero: ``e s``, also for ``|u| > 1`` alone; e times 1,
        u, ``u^3 - 3 u`` or a function of the label; ``e^2 - Cov`` and ``h^2 - s^2 - Cov``. Regressions on ``h^2 - 1`` and on
        h times functions of u, whose mean is zero whatever the posterior, make their standard errors smaller.
        """
        P, C = self.problem.components, self.problem.model.sites
        u, h = self.rng(f"latents{suffix}", point).standard_normal((2, count, P, C))
        omega = symmetric_root(Q) @ u
        z = omega + symmetric_root(V) @ h
        y = self.call("forward", z, rng=self.rng(f"labels{suffix}", point))
        if np.shape(y)[:1] != (count,):
            raise self.fail(
                f"forward must return one label per sample, ({count}, ...), got shape {np.shape(y)}"
            )
        posterior, second = self._posterior(y, omega, V, point)
        white, stated = inverse_root(V, 0.0), _stated_error(posterior)
        step = white @ (posterior.mean - omega)
        error = h - step
        if 0 < effective_sample_size((step * step).sum((1, 2))) < FEWEST_EFFECTIVE:
            return {}, (z, omega)  # hardly any label says anything: chance decides
        # Any function of the label will do: a bounded one of a random direction in which labels differ.
        flat = np.nan_to_num(np.asarray(y, dtype=float).reshape(count, -1))
        rng = self.rng("directions", point)
        scatter = np.ascontiguousarray(flat.T).std(1)
        label = flat @ (rng.standard_normal(flat.shape[1]) / (scatter + 1e-300))
        label = np.tanh((label - label.mean()) / (label.std() + 1e-300))[:, None]
        direction = rng.standard_normal(C)
        along = omega @ direction
        sign = 1 + along / np.std(along, axis=0)  # where labels see none, omega has it
        constant, is_large = np.ones_like(u), np.abs(u) > 1
        functions = {
            "on average": constant,
            "along omega": u,
            "where |omega| is large, along omega": u * (u * u - 3),
        }

        def averaged(a: Array, b: Array) -> Array:
            """Means of products over the sites, (n, P)."""
            return np.asarray(np.einsum("npc,npc->np", a, b) / C)

        zeros = [averaged(h * h - 1, f) for f in (constant, is_large)]
        zeros += [averaged(h, f) for f in functions.values()]
        law = "the mean is not the posterior mean of the distribution that labels are drawn from"
        spread = "the covariance differs from that of the errors of the mean"
        tests = {
            law: averaged(step, error),
            f"{law}, where |omega| is large": averaged(step * is_large, error),
        }
        for name, f in functions.items():
            tests[f"{law}, {name}"] = averaged(error, f)
        covariance_with_label = (error @ direction) * label * sign
        tests["the mean ignores information in the label"] = covariance_with_label
        covariance, disagreement = np.asarray(posterior.covariance), 0.0
        if second is not None:
            moment = np.einsum("npcpd,c,d->np", second, direction, direction)
            square = (z @ direction) ** 2
            covariance_with_label = (
                (square - moment) * (1 + label + label**2) / np.diagonal(V)
            )
            tests["the second moment ignores information in the label"] = (
                covariance_with_label
            )
            outer = posterior.mean @ np.swapaxes(posterior.mean, 1, 2)
            covariances = (np.einsum("npcqc->npq", second) - outer) / C
            gap = white @ (covariances.mean(0) - covariance) @ white
            disagreement = float(np.abs(gap).max())
            variances = np.diagonal(white @ covariances @ white, axis1=1, axis2=2)
            tests[spread] = averaged(error, error) - variances
            tests[f"{spread}, and from the part of V that labels leave unexplained"] = (
                averaged(h, h) - averaged(step, step) - variances
            )
        means = _means(tests, zeros)
        if second is None:
            # The scatter of an averaged covariance is not known, nor how it follows others.
            variance = np.diagonal(white @ covariance @ white)
            means |= _means({spread: averaged(error, error) - variance})
        mean_square = np.maximum(averaged(step, step).mean(0), 1e-300)
        percent = 100 * DETECTED * float(np.max(means[law][1] / mean_square))
        remark = (
            f" (this test detects a {percent:.1g}% error of the step from omega to the mean, but not errors of rare labels "
            "alone, nor a wrong distribution that forward and posterior share)"
        )
        failures = self.messages_of_failed_means(
            place, means, SUSPECT, 2 * stated, remark
        )
        if disagreement > SUMMED + 8 * stated:
            failures["covariance"] = (
                f"{place}: the covariance differs by {disagreement:.2g} of V from that computed from the second moments"
            )
        return failures, (z, omega)

    def _posterior(
        self, y: Array, omega: Array, V: Array, point: int
    ) -> tuple[Posterior, Array | None]:
        """Call the posterior and check its shapes; return it, and its second moment if theory uses it."""
        item, rng = self.item, self.rng("posterior", point)
        uses_moment = item.information is None or item.susceptibility is None
        posterior = self.call(
            "posterior", y, omega, V, second_moment=uses_moment, rng=rng
        )
        second = None
        if uses_moment and isinstance(posterior, Posterior):
            second = posterior.second_moment
        try:
            checked_posterior(posterior, omega, second_moment=second is not None)
        except ValueError as error:
            raise self.fail(str(error)) from None
        for name in ("mean", "covariance", "second_moment"):
            if name != "second_moment" or second is not None:
                array = getattr(posterior, name)
                self.require_finite(f"posterior: {name}", array, array.shape)
        if _stated_error(posterior) > 0.15:
            raise self.fail(
                f"posterior: the reported error {posterior.error:.2g} of the mean exceeds the limit 0.15"
            )
        return posterior, second

    def _require_independent(
        self, z: Array, omega: Array, V: Array, point: int
    ) -> None:
        """Raise a ProblemError if labels or posteriors of a sample depend on other samples or on earlier calls."""
        half = len(z) // 2
        if not is_noisy(self.item, z):
            labels_of_half, half_of_labels = (
                self.item.forward(z[:half]),
                self.item.forward(z)[:half],
            )
            if not np.allclose(labels_of_half, half_of_labels, rtol=1e-9, atol=1e-12):
                raise self.fail(
                    "forward: a label depends on other samples, or on random numbers that do not come from rng"
                )

        def mean(count: int, purpose: str = "alone") -> tuple[Array, float]:
            y = self.item.forward(z, rng=self.rng("labels", point))
            rng = self.rng(purpose, point)
            posterior = self.item.posterior(y[:count], omega[:count], V, rng=rng)
            return np.asarray(posterior.mean)[:half], _stated_error(posterior)

        mean_of_all, stated = mean(len(z))
        repeated, _ = mean(len(z))
        resampled, _ = mean(len(z), "alone, otherwise")
        mean_of_half, error = mean(half)
        scale = math.sqrt(float(np.diagonal(V).max()))
        if np.abs(mean_of_all - repeated).max() > 1e-6 * scale:
            raise self.fail(
                "posterior: two calls with the same arguments return two different means"
            )
        # A sampled posterior draws other numbers for fewer samples.
        is_sampled = (mean_of_all != resampled).any()
        allowed = (1e-6 + SCORES * max(stated, error)) * scale
        if not is_sampled and np.abs(mean_of_all - mean_of_half).max() > allowed:
            raise self.fail(
                "posterior: the mean of a sample must not depend on the other samples, but it does"
            )


MOMENT = "second_moment differs from that of drawn signals"


class PriorTest(ItemTest):
    """Test of a prior: its moments, its denoiser and its state-evolution map.

    As many vectors are drawn as time allows, or ten matrices. With five draws chance is beyond ``SCORES`` standard errors once in
    250 comparisons; with ten, once in 5,000.
    """

    kind = "prior"
    seconds, draws = 1.0, 10

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], float],
        seed: int = 0,
        share: float = 1.0,
    ) -> None:
        super().__init__(problem, clock, seed, share)
        self.vectors = problem.model.rank == "low"
        self.fewest, self.largest = (2000, 64_000) if self.vectors else (240, 240)
        # Values of a discrete prior that are hardly ever confused may be in no draw at all; matrices are of finite size.
        self.allowance = 3.0 / self.draws if self.vectors else 3.0

    def check(self, Qhat: Host, place: str, point: int) -> None:
        """Test the prior at a Qhat (P, P); ``point`` selects the random draws."""
        failures_of = partial(self._failures, Qhat, f"Qhat = {place}", point)
        (stated, dimension), _ = self.run_growing(failures_of)
        P, second = len(Qhat), prior_moments(self.problem, len(Qhat))[0]
        mapped = self.call("overlap", Qhat[None, ...])
        Q, V = (
            self.require_finite(
                f"overlap: {name}", getattr(mapped, name, None), (1, P, P)
            )[0]
            for name in ("Q", "V")
        )
        if not np.allclose(Q + V, second, rtol=1e-6, atol=1e-9):
            raise self.fail("overlap: Q + V must be the second moment of the signal")
        error, size = _standard_error(stated), self.allowance / dimension
        slack = SCORES * error + size + 3 * overlap_error_at(self.problem, Qhat)
        unit = "the variance" if self.vectors else "a linear estimate's"
        quantity = f"overlap at Qhat = {place}: V in units of {unit}"
        claimed = V.sum(1) / self._unit(Qhat)
        self.require(quantity, claimed, stated.mean(0), error, slack)

    def _unit(self, Qhat: Host) -> Host:
        """Unit (P,) of squared errors: the prior variance for vectors, the error of the best linear estimate for matrices."""
        variance = np.subtract(*prior_moments(self.problem, len(Qhat)))
        if not self.vectors:
            variance = np.linalg.inv(np.linalg.inv(variance) + Qhat)
        return np.diagonal(variance)

    def _failures(
        self, Qhat: Host, place: str, point: int, dimension: int, suffix: str
    ) -> tuple[Failures, tuple[Host, int]]:
        r"""Failures of the prior's tests, the stated error (draws, P) in units of ``_unit``, and the dimension.

        The error of a posterior mean has mean zero with every function of the input R. With R itself it says that the response
        of the estimate to R is ``V Qhat``, because ``E <Z, f(R)>`` is the mean derivative of f along the noise Z. Products
        are those of a component with the sum of all.
        """
        model, P = self.problem.model, len(Qhat)
        second, prior_mean_overlap = prior_moments(self.problem, P)
        unit, square = self._unit(Qhat), np.diagonal(second)
        root = symmetric_root(np.linalg.inv(Qhat))
        # The best linear estimate stands for R, which is large where little is known.
        linear = np.linalg.inv(np.linalg.inv(second - prior_mean_overlap) + Qhat) @ Qhat
        mean = np.asarray(self.call("mean", P, dimension), dtype=float)
        constant = np.ones_like(mean) if self.vectors else mean

        def product(factor: Array, summand: Array) -> Array:
            total = summand.sum(0)
            if self.vectors:
                # A mean over a few entries is as good a sample as an entry.
                factor, total = factor.reshape(P, 5, -1), total.reshape(5, -1)
                sums = np.einsum("pkd,kd->kp", factor, total)
                return np.asarray(sums / (dimension / 5))
            total = np.broadcast_to(total, summand.shape)
            return np.diagonal(model.inner(factor, total))[None]

        rows: list[dict[str, Array]] = []
        stated = []
        for k in range(self.draws):
            rng = self.rng(f"signal{suffix}", point, k)
            signal = np.asarray(self.call("sample", rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            denoised = self.denoised(R, Qhat)
            estimate = denoised.estimate
            gap, deviation = signal - estimate, signal - mean
            stated.append(np.asarray(denoised.V).sum(1) / unit)
            functions = {
                "the estimate is not the posterior mean of the distribution that signals are drawn from": estimate
                - mean,
                "the response of the estimate to its input is not V Qhat": np.tensordot(
                    linear, R - mean, axes=1
                ),
            }
            if self.vectors:
                functions[
                    "the mean of the estimate differs from that of the signal"
                ] = constant
                scaled = R / np.sqrt(square)[:, None]
                bounded = np.tanh(scaled)
                functions["the estimate ignores information in its input"] = bounded
            row = {name: product(gap, f) / unit for name, f in functions.items()}
            row["the returned error V differs from the true error of the estimate"] = (
                product(gap, gap) / unit - stated[-1]
            )
            row[MOMENT] = (product(signal, signal) - second.sum(1)) / square
            row["mean differs from that of drawn signals"] = (
                product(deviation, constant) / square
            )
            row[
                "mean_overlap differs from the overlap of the prior mean with itself"
            ] = (product(mean, mean) - prior_mean_overlap.sum(1)) / square
            rows.append(row)
        means = _means({k: np.concatenate([row[k] for row in rows]) for k in rows[0]})
        # A moment that is simulated has the error of the map where nothing is known.
        moment, error = means[MOMENT]
        vanishing_Qhat = 1e-9 * np.linalg.inv(second - prior_mean_overlap)
        error = np.hypot(error, overlap_error_at(self.problem, vanishing_Qhat))
        means[MOMENT] = moment, error
        scores, slack = SUSPECT if self.vectors else SCORES, self.allowance / dimension
        failures = self.messages_of_failed_means(place, means, scores, slack)
        return failures, (np.array(stated), dimension)

    def denoised(self, R: Array, Qhat: Array) -> Any:
        """Call the denoiser, check shapes and data types, and return its estimate and error."""
        P = len(Qhat)
        denoised = self.call("denoise", R, Qhat)
        for name, shape in (("estimate", R.shape), ("V", (P, P))):
            array = getattr(denoised, name, None)
            self.require_finite(f"denoise: {name}", array, shape)
            dtype = getattr(array, "dtype", type(array))
            if dtype not in (np.float32, np.float64):
                raise self.fail(
                    f"denoise: {name} must be float32 or float64, got {dtype}"
                )
        return denoised


def require_likelihood(problem: Problem, seed: int = 0) -> None:
    r"""Test that ``log_likelihood`` describes the distribution of the labels that ``forward`` draws.

    For any latents ``z`` and ``z'``, whatever the normalization in y,

    .. math:: E_{y \sim p(y | z)} [p(y | z') / p(y | z)] = 1,

    or less where some labels are impossible.

    Raises
    ------
    ProblemError
    """
    if problem.channel.log_likelihood is None:
        return
    item = ChannelTest(problem, lambda: 0.0, seed)
    shape = (LIKELIHOOD_LABELS, problem.components, problem.model.sites)
    root = symmetric_root(prior_moments(problem)[0])
    for suffix in ("", ", again"):
        rng = item.rng(f"likelihood{suffix}")
        z = root @ rng.standard_normal(shape)
        direction = root @ rng.choice([-1.0, 1.0], shape)
        y = item.call("forward", z, rng=item.rng(f"labels of the likelihood{suffix}"))
        at_z, step = _log_likelihood(item, y, z), 0.1
        if not np.isfinite(at_z).all():
            raise item.fail(
                "log_likelihood is -inf for the latents from which forward drew the label"
            )
        # Until ratios differ, but not so much that a few of them are the mean.
        for _ in range(5):
            change = _log_likelihood(item, y, z + step * direction) - at_z
            finite = change[np.isfinite(change)]
            scatter = float(np.std(finite)) if len(finite) else math.inf
            step = min(step / max(scatter, 0.1), 1.0)
        change = _log_likelihood(item, y, z + step * direction) - at_z
        ratio = np.exp(np.minimum(change, 700))
        mean, error = float(ratio.mean()), _standard_error(ratio)
        allowed = SUSPECT * error + ROUNDING
        low = 1 - allowed if np.isfinite(change).all() else 0.0
        is_certain = effective_sample_size(ratio) >= FEWEST_EFFECTIVE
        if low <= mean <= 1 + allowed or not is_certain:
            return
    raise item.fail(
        "log_likelihood is not that of forward: the mean of p(y | z') / p(y | z) over labels y of z is "
        f"{mean:.4g} +- {error:.1g} but should be 1; check the sign and the noise"
    )


def _log_likelihood(item: ChannelTest, y: Array, z: Array) -> Host:
    """Call ``log_likelihood``, check the shape of its values (n,), and return them."""
    with np.errstate(all="ignore"):
        log_likelihood = np.asarray(item.call("log_likelihood", y, z), dtype=float)
    has_shape = log_likelihood.shape == (len(z),)
    if not has_shape or not (log_likelihood < math.inf).all():
        got = "nan or inf" if has_shape else f"shape {log_likelihood.shape}"
        raise item.fail(
            f"log_likelihood must return numbers of shape ({len(z)},), or -inf, got {got}"
        )
    return log_likelihood


def _standard_error(samples: Array) -> Array:
    """Standard error of the mean of samples (n, ...)."""
    return samples.std(0, ddof=1) / math.sqrt(len(samples))


def _stated_error(posterior: object) -> float:
    """Relative error of the mean that a sampled posterior states; 0 if none."""
    error = getattr(posterior, "error", 0.0)
    return float(error) if math.isfinite(error) else 0.0


def _means(tests: dict[str, Array], zeros: Sequence[Array] = ()) -> Means:
    """Means (P,) and standard errors of samples (n, P), with less variance by samples (n, P) whose means are exactly 0."""
    samples = np.stack(list(tests.values()))
    _, n, P = samples.shape
    controls = np.stack(zeros) if zeros else np.zeros((0, n, P))
    groups, pairs = min(n, GROUPS), []
    for a in range(P):
        columns = samples[:, :, a].T, controls[:, :, a].T
        pairs.append(controlled_mean(*(np.array_split(c, groups) for c in columns)))
    means, errors = np.swapaxes(pairs, 0, 1)
    return {name: (means[:, k], errors[:, k]) for k, name in enumerate(tests)}
