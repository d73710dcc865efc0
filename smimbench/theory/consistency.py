r"""A test of channels and priors by draws: do the posterior and the denoiser obey the Nishimori identities?

Theory makes it before it is computed with items of a third party, ``smimbench check`` with any.
State evolution relies on both. On the Nishimori line they can be tested by themselves: with ``omega ~ N(0, Q)``,
``z ~ N(omega, V)`` and ``y`` the label of ``z``, the posterior mean ``m`` fulfills

.. math:: E[m (z - m)^T] = 0, \qquad E[(z - m)(z - m)^T] = E[\mathrm{Cov}(z | y)],

also weighted with any function of the label, and the denoiser the same with the signal in place of ``z``. Formulas and moments
of an item are compared with draws, too. Draws are as many as a time allows; what fails once is tested again with other draws
before it counts. Items are tested at fixed overlaps before anything is computed, and at the points that result before they are
reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from smimbench.derive.labels import is_noisy
from smimbench.derive.prior import why_theory_only
from smimbench.derive.sampled_information import POINTS, SCRAMBLES, sampled_moments
from smimbench.files import attempt, error_line
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.numerics.statistics import (
    DETECTED,
    FEWEST_EFFECTIVE,
    controlled_mean,
    effective_sample_size,
)
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.generalization import KINDS, sampled_errors
from smimbench.theory.information import inverse_map, overlap_error_at, prior_moments
from smimbench.theory.types import NOTHING

KNOWN, INFORMATION = (0.3, 0.8, 0.999), (0.5, 5.0, 500.0)
"""Where items are tested: the known part of the second moment for channels, Qhat in units of the prior's inverse variance for
priors. Little, much and nearly all; any such numbers do."""
REPORTED_SECONDS = 4.0
"""Time that tests at reported points may take; doubled, more points are tested where items are slow."""
RATIOS = 1 << 16
"""Labels with which a likelihood is tested; doubled, errors 1.4 times smaller are found."""
SCORES, SUSPECT = 6.0, 4.0
"""Standard errors that chance is allowed: of a mean over few draws, and where a test is repeated with other samples before it
counts (chance is that far off twice once in 10^8 tests). Doubled, errors twice as large pass."""
TOKEN_SAMPLES, TOKEN_DIMENSION = 2000, 20
"""Size of the draw of inputs, where they may have any dimension; doubled, their variance is known 1.4 times better."""
PARTS = 64
"""Parts of the draws whose spread is the error of a mean; doubled, it is known 1.4 times better, and regressions fit longer."""
FORMULA, SMALLEST, ROUNDING, SUMMED = 1e-3, 1e-3, 1e-9, 1e-5
"""Relative difference of a formula from draws that always passes; unknown part of the signal below which points are not tested,
for hardly any label tells there; differences that are rounding, of numbers and of sums. Doubled, errors twice as
large pass; fewer points are tested."""


def require_consistent(
    problem: Problem,
    kinds: Sequence[str] | None = None,
    components: int | None = None,
    seed: int = 0,
    *,
    clock: Callable[[], float],
) -> None:
    """Test the channel, the prior and Gaussian inputs of a problem.

    Parameters
    ----------
    kinds : sequence of str or None
        ``"channel"``, ``"prior"`` or both; None: those that are not smimbench's own.
    components : int or None
        Of the signals with which the prior is tested; None: those of the problem.
    seed : int
        Of all draws.
    clock : callable
        Seconds, to decide how many samples are drawn: ``time.perf_counter``.

    Raises
    ------
    ProblemError
        In one line: which item, which test, what was found.
    """
    P = components or problem.components
    if kinds is None:
        _require_standard_inputs(problem, seed)
        kinds = [
            kind for kind in ("prior", "channel") if _is_third_party(problem, kind)
        ]
    if "prior" in kinds:
        prior = _PriorTest(problem, clock, seed)
        signal = prior.ask("sample", prior.rng("signal, form"), P, prior.fewest)
        prior.denoised(
            np.asarray(signal, dtype=float), np.eye(P)
        )  # moments may be derived from it
        spread = np.asarray(prior.ask("second_moment", P)) - np.asarray(
            prior.ask("mean_overlap", P)
        )
        unlike = np.diag(
            np.sqrt(1 + np.arange(P))
        )  # more is known of one component than of another
        for point, ratio in enumerate(INFORMATION):
            prior.check(
                ratio * unlike @ np.linalg.inv(spread) @ unlike,
                f"{ratio:g} / variance",
                point,
            )
        blind = np.asarray(prior.ask("overlap", 1e-9 * np.linalg.inv(spread)).V)
        if not np.allclose(blind, spread, rtol=0, atol=0.01 * spread.max()):
            raise prior.fail(
                "overlap: V must be second_moment - mean_overlap where nothing is known"
            )
    if "channel" in kinds:
        require_likelihood(problem, seed)
        second, channel = prior_moments(problem)[0], _ChannelTest(problem, clock, seed)
        for point, known in enumerate(KNOWN):
            channel.check(known * second, (1 - known) * second, point)


def _require_standard_inputs(problem: Problem, seed: int) -> None:
    """Refuse inputs of a third party whose tokens are not of mean 0 and variance 1, although theory is to be exact for them."""
    law = problem.inputs
    if (
        law.gaussian
        and _is_third_party(problem, "inputs")
        and not why_theory_only(problem.prior, problem.components)
    ):
        dimension = law.shape[1] or TOKEN_DIMENSION
        alpha = problem.model.sample_ratio(TOKEN_SAMPLES, dimension)
        for remark in problem.instance(alpha, dimension, seed=seed).remarks:
            key, _, message = remark.partition(": ")
            raise ProblemError(
                key,
                f"{message}; no theory is computed from it (details: 'smimbench check {law.name}')",
            )


def require_consistent_at(
    problem: Problem, points: Sequence[tuple[Host, Host]], *, clock: Callable[[], float]
) -> None:
    """Repeat the test at some of the ``(Q, V)`` of the points to be reported.

    Raises
    ------
    ProblemError
    """
    tests = [
        test(problem, clock, share=0.25)
        for test in (_ChannelTest, _PriorTest)
        if _is_third_party(problem, test.kind)
    ]
    if not tests or not points:
        return
    second, bottom = prior_moments(problem)
    begin = clock()
    # In random order: a slow item is tested along the whole curve, too.
    for index in (
        monte_carlo_rng("consistency: points").permutation(len(points))[:16].tolist()
    ):
        Q, V = points[index]
        unknown = np.diagonal(V) / np.diagonal(second)
        if clock() - begin > REPORTED_SECONDS:
            return
        if not (unknown >= -ROUNDING).all():
            raise tests[-1].fail(
                f"this overlap gives a negative error ({np.diagonal(V).min():.3g}); errors must be >= 0"
            )
        if unknown.max() < SMALLEST:
            continue
        # A little further: where an item goes wrong, a curve turns, and points stop just before.
        further = 0.98 * V
        learned = np.flatnonzero(
            np.diagonal(Q) - np.diagonal(bottom) > NOTHING * np.diagonal(second)
        )
        for test in tests:
            if isinstance(test, _ChannelTest):
                kept = np.maximum(further, SMALLEST * np.diag(np.diagonal(second)))
                test.check(second - kept, kept, len(KNOWN) + index)
            elif len(learned) == problem.components:
                Qhat = inverse_map(problem, second - further, further, learned)
                test.check(
                    Qhat, f"{np.diagonal(Qhat).max():.3g}", len(INFORMATION) + index
                )


def require_likelihood(problem: Problem, seed: int = 0) -> None:
    r"""Test, before anything is integrated, that ``log_likelihood`` describes the labels that ``forward`` draws.

    For any latents ``z`` and ``z'``, whatever the normalization in y,

    .. math:: E_{y \sim p(y | z)} [p(y | z') / p(y | z)] = 1,

    or less where some labels are impossible.

    Raises
    ------
    ProblemError
    """
    if problem.channel.log_likelihood is None:
        return
    item = _ChannelTest(problem, lambda: 0.0, seed)
    shape = (RATIOS, problem.components, problem.model.sites)
    root = symmetric_root(prior_moments(problem)[0])
    for again in ("", ", again"):
        rng = item.rng(f"likelihood{again}")
        z = root @ rng.standard_normal(shape)
        direction = root @ rng.choice([-1.0, 1.0], shape)
        y = item.ask("forward", z, rng=item.rng(f"labels of the likelihood{again}"))

        def log_likelihood(latents: Array, y: Array = y) -> Array:
            with np.errstate(all="ignore"):
                found = np.asarray(item.ask("log_likelihood", y, latents), dtype=float)
            if found.shape != (RATIOS,) or not (found < math.inf).all():
                got = (
                    "nan or inf" if found.shape == (RATIOS,) else f"shape {found.shape}"
                )
                raise item.fail(
                    f"log_likelihood must return numbers of shape ({RATIOS},), or -inf, got {got}"
                )
            return found

        here, step = log_likelihood(z), 0.1
        if not np.isfinite(here).all():
            raise item.fail(
                "log_likelihood is -inf for the latents from which forward made the label"
            )
        for _ in range(
            5
        ):  # until ratios differ, but not so much that a few of them are the mean
            change = log_likelihood(z + step * direction) - here
            spread = (
                float(np.std(change[np.isfinite(change)]))
                if np.isfinite(change).any()
                else math.inf
            )
            step = min(step / max(spread, 0.1), 1.0)
        change = log_likelihood(z + step * direction) - here
        ratio = np.exp(np.minimum(change, 700))
        mean, sem = float(ratio.mean()), _standard_error(ratio)
        low = 1 - SUSPECT * sem - ROUNDING if np.isfinite(change).all() else 0.0
        if (
            low <= mean <= 1 + SUSPECT * sem + ROUNDING
            or effective_sample_size(ratio) < FEWEST_EFFECTIVE
        ):
            return
    raise item.fail(
        f"log_likelihood is not that of forward: the mean of p(y | z') / p(y | z) over labels y of z is {mean:.4g} +- {sem:.1g}, "
        "should be 1 (a wrong sign, or another noise?)"
    )


def _is_third_party(problem: Problem, kind: str) -> bool:
    theory_only = kind == "prior" and why_theory_only(problem.prior, problem.components)
    return bool(problem.spec.get(kind, {}).get("distribution")) and not theory_only


def _standard_error(samples: Array) -> Any:
    return samples.std(0, ddof=1) / math.sqrt(len(samples))


class _Test:
    """The test of one item: calls its methods, compares their values with means over draws, and reports failures.

    Identities are tested with ``fewest`` to ``most`` draws, as time allows.
    """

    kind = "channel"
    fewest, most, seconds = 64, 1 << 18, 0.5

    def __init__(
        self,
        problem: Problem,
        clock: Callable[[], float],
        seed: int = 0,
        share: float = 1.0,
    ) -> None:
        self.problem, self.clock, self.seed, self.share = problem, clock, seed, share
        self.item, self.name = (
            getattr(problem, self.kind),
            problem.spec[self.kind]["name"],
        )

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Random generator for a purpose."""
        return monte_carlo_rng(
            f"consistency: {purpose}", *index, *[self.seed] * (self.seed > 0)
        )

    def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the item; its errors become one line."""
        found, error = attempt(getattr(self.item, method), *arguments, **options)
        if error is not None:
            raise self.fail(f"{method} raised {error_line(error)}") from error
        return found

    def fail(self, what: str) -> ProblemError:
        """Raise a ProblemError that names the item."""
        line = f"{what}; no theory is computed from it (details: 'smimbench check {self.name}')"
        return ProblemError(f"{self.kind} {self.name!r}", line)

    def wrong_means(
        self,
        where: str,
        means: dict[str, tuple[Host, Host]],
        scores: float,
        slack: float,
        sees: str = "",
    ) -> dict[str, str]:
        """Means (P,) with their standard errors that are not 0, in words, by what is wrong, where and in which direction."""
        found = {}
        for what, (mean, sem) in means.items():
            for a in np.flatnonzero(~(np.abs(mean) <= scores * sem + slack + ROUNDING)):
                of = f" of component {a + 1}" if len(mean) > 1 else ""
                found[f"{what} {a} {mean[a] < 0}"] = (
                    f"{where}: {what}{of}: {mean[a]:.4g} +- {sem[a]:.1g} should be 0{sees}"
                )
        return found

    def require(
        self, what: str, value: Any, drawn: Any, error: Any, allowed: Any
    ) -> None:
        """Refuse a formula that differs from draws by more than is allowed."""
        over = np.abs(value - drawn) - allowed
        if not (over <= 0).all():
            value, drawn, error = (
                float(np.ravel(part)[np.argmax(over)]) for part in (value, drawn, error)
            )
            raise self.fail(
                f"{what} is {value:.4g}, where draws give {drawn:.4g} +- {error:.1g}"
            )

    def finite(self, what: str, value: Any, shape: tuple[int, ...]) -> Host:
        """Numbers of this shape."""
        found = np.asarray(value, dtype=float)
        if found.shape != shape or not np.isfinite(found).all():
            got = "nan or inf" if found.shape == shape else f"shape {found.shape}"
            raise self.fail(
                f"{what} must be finite numbers of shape {shape}, got {got}"
            )
        return found

    def uncertain(
        self, what: str, found: Any, shape: tuple[int, ...]
    ) -> tuple[Host, Host]:
        """Value and error of a formula."""
        if not isinstance(found, Uncertain):
            raise self.fail(
                f"{what} must return a smimbench.Uncertain, got {type(found).__name__}"
            )
        value, error = found.value, np.asarray(found.error, dtype=float)
        return self.finite(
            what, np.reshape(value, shape) if shape == () else value, shape
        ), error

    def grown(
        self, wrong: Callable[..., tuple[dict[str, str], Any]]
    ) -> tuple[Any, float]:
        """What ``wrong(size, again)`` returns next to the failures, at the largest size, and the seconds for one draw.

        What fails again with other draws is raised, in a fixed order: an item is always refused in the same words.
        """
        size = self.fewest
        while True:
            begin = self.clock()
            failed, more = wrong(size, "")
            spent = self.clock() - begin
            if size >= self.most or 4 * spent > self.share * self.seconds:
                break
            size = min(self.most, 4 * size)
        again = wrong(min(self.most, 4 * size), ", again")[0] if failed else {}
        for key in failed:
            if key in again:
                raise self.fail(again[key])
        return more, spent / size


class _ChannelTest(_Test):
    """The posterior of a channel, and its formulas."""

    def check(self, Q: Host, V: Host, point: int) -> None:
        """Test the channel at an overlap; ``point`` numbers the draws."""
        P, second = self.problem.components, prior_moments(self.problem)[0]
        at = f"at V = {float(np.max(np.diagonal(V) / np.diagonal(second))):.1g} of the second moment"
        (z, omega), seconds = self.grown(
            partial(self._wrong, Q, V, f"posterior {at}", point)
        )
        self._same_alone(z[:8], omega, V, point)
        if self.item.information is not None:
            value, error = self.uncertain(
                "information", self.ask("information", Q, V), (P, P)
            )
            if (
                seconds * SCRAMBLES * POINTS <= 2.0
            ):  # formulas of very slow channels are not compared
                drawn = sampled_moments(self.item, self.problem.model.sites, Q, V)[0]
                allowed = SCORES * (drawn.error + error) + FORMULA * np.abs(value)
                allowed = allowed + ROUNDING / np.sqrt(
                    np.outer(np.diagonal(V), np.diagonal(V))
                )
                self.require(
                    f"information {at}", value, drawn.value, drawn.error, allowed
                )
        if self.item.generalization_error is not None:
            stated, sampled = (
                self.ask("generalization_error", Q, V),
                sampled_errors(self.problem, Q, V),
            )
            for kind in KINDS:
                what = f"generalization_error ({kind})"
                value, error = self.uncertain(
                    what, stated.get(kind) if isinstance(stated, dict) else stated, ()
                )
                allowed = (
                    SCORES * (sampled[kind].error + error)
                    + FORMULA * abs(sampled["constant"].value)
                    + ROUNDING
                )
                self.require(
                    f"{what} {at}",
                    value,
                    sampled[kind].value,
                    sampled[kind].error,
                    allowed,
                )

    def _wrong(
        self, Q: Host, V: Host, where: str, point: int, count: int, again: str
    ) -> tuple[dict[str, str], tuple[Array, Array]]:
        r"""Failures of the posterior's tests, with latents and posterior means.

        With ``u`` and ``h`` the standard normal numbers of omega and of z - omega, ``s`` the step of the mean from omega and
        ``e = h - s`` its error, in units of ``V^{1/2}``, these have mean zero: ``e s``, also for ``|u| > 1`` alone; e times 1,
        u, ``u^3 - 3 u`` or a function of the label; ``e^2 - Cov`` and ``h^2 - s^2 - Cov``. Regressions on ``h^2 - 1`` and on
        h times functions of u, whose mean is zero whatever the posterior, make their standard errors smaller.
        """
        P, C = self.problem.components, self.problem.model.sites
        u, h = self.rng(f"latents{again}", point).standard_normal((2, count, P, C))
        omega = symmetric_root(Q) @ u
        z = omega + symmetric_root(V) @ h
        y = self.ask("forward", z, rng=self.rng(f"labels{again}", point))
        if np.shape(y)[:1] != (count,):
            raise self.fail(
                f"forward must return one label per sample, ({count}, ...), got shape {np.shape(y)}"
            )
        found, second = self._posterior(y, omega, V, point)
        white, stated = inverse_root(V, 0.0), _stated_error(found)
        shift = white @ (found.mean - omega)
        left = h - shift
        if 0 < effective_sample_size((shift * shift).sum((1, 2))) < FEWEST_EFFECTIVE:
            return {}, (z, omega)  # hardly any label says anything: chance decides
        # Any function of the label will do: a bounded one of a random direction in which labels differ.
        flat = np.nan_to_num(np.asarray(y, dtype=float).reshape(count, -1))
        rng = self.rng("directions", point)
        spread = np.ascontiguousarray(flat.T).std(1)
        label = flat @ (rng.standard_normal(flat.shape[1]) / (spread + 1e-300))
        label = np.tanh((label - label.mean()) / (label.std() + 1e-300))[:, None]
        direction = rng.standard_normal(C)
        along = omega @ direction
        seen = 1 + along / np.std(
            along, axis=0
        )  # where labels see no sign, omega gives it
        one, far = np.ones_like(u), np.abs(u) > 1
        known = {
            "on average": one,
            "along omega": u,
            "where |omega| is large, along omega": u * (u * u - 3),
        }

        def averaged(a: Array, b: Array) -> Array:
            """Means of products over the sites, (n, P)."""
            return np.asarray(np.einsum("npc,npc->np", a, b) / C)

        zeros = [averaged(h * h - 1, f) for f in (one, far)] + [
            averaged(h, f) for f in known.values()
        ]
        law, wrong = (
            "the mean is not that of the law its labels come from",
            "its covariance is not that of its own errors",
        )
        tests = {
            law: averaged(shift, left),
            f"{law}, where |omega| is large": averaged(shift * far, left),
            **{f"{law}, {name}": averaged(left, f) for name, f in known.items()},
            "its mean overlooks what the label tells": (left @ direction)
            * label
            * seen,
        }
        covariance, gap = np.asarray(found.covariance), 0.0
        if second is not None:
            full = np.einsum("npcpd,c,d->np", second, direction, direction)
            blind = (
                ((z @ direction) ** 2 - full) * (1 + label + label**2) / np.diagonal(V)
            )
            tests["its second moment overlooks what the label tells"] = blind
            own = (
                np.einsum("npcqc->npq", second)
                - found.mean @ np.swapaxes(found.mean, 1, 2)
            ) / C
            gap = float(np.abs(white @ (own.mean(0) - covariance) @ white).max())
            each = np.diagonal(white @ own @ white, axis1=1, axis2=2)
            tests[wrong] = averaged(left, left) - each
            tests[f"{wrong}, nor what the labels leave of V"] = (
                averaged(h, h) - averaged(shift, shift) - each
            )
        means = _means(tests, zeros)
        if (
            second is None
        ):  # the spread of an averaged covariance is not known, nor how it follows others
            means |= _means(
                {wrong: averaged(left, left) - np.diagonal(white @ covariance @ white)}
            )
        size = np.maximum(averaged(shift, shift).mean(0), 1e-300)
        percent = 100 * DETECTED * float(np.max(means[law][1] / size))
        sees = (
            f" (detects a step of the mean from omega that is {percent:.1g}% off; not less, nor errors of rare labels alone, "
            "nor a law that forward and posterior share)"
        )
        failed = self.wrong_means(where, means, SUSPECT, 2 * stated, sees)
        if gap > SUMMED + 8 * stated:
            failed["covariance"] = (
                f"{where}: its covariance differs by {gap:.2g} of V from what its own second moments say"
            )
        return failed, (z, omega)

    def _posterior(
        self, y: Array, omega: Array, V: Array, point: int
    ) -> tuple[Posterior, Array | None]:
        """The posterior of the labels, its shapes checked, and its second moment if theory uses it."""
        sampled = self.item.information is None or self.item.susceptibility is None
        rng = self.rng("posterior", point)
        found = self.ask("posterior", y, omega, V, second_moment=sampled, rng=rng)
        second = (
            found.second_moment if sampled and isinstance(found, Posterior) else None
        )
        try:
            checked_posterior(found, omega, second_moment=second is not None)
        except ValueError as error:
            raise self.fail(str(error)) from None
        for name in (
            "mean",
            "covariance",
            *(["second_moment"] if second is not None else []),
        ):
            self.finite(
                f"posterior: {name}", getattr(found, name), getattr(found, name).shape
            )
        if _stated_error(found) > 0.15:
            raise self.fail(
                f"posterior: reported error {found.error:.2g} of its mean exceeds the limit 0.15"
            )
        return found, second

    def _same_alone(self, z: Array, omega: Array, V: Array, point: int) -> None:
        """Label and posterior of a sample must not depend on other samples, nor on earlier calls."""
        half = len(z) // 2
        if not is_noisy(self.item, z):
            alone, among = self.item.forward(z[:half]), self.item.forward(z)[:half]
            if not np.allclose(alone, among, rtol=1e-9, atol=1e-12):
                raise self.fail(
                    "forward: a label depends on other samples, or on random numbers that do not come from rng"
                )

        def mean(count: int, purpose: str = "alone") -> tuple[Array, float]:
            y = self.item.forward(z, rng=self.rng("labels", point))
            found = self.item.posterior(
                y[:count], omega[:count], V, rng=self.rng(purpose, point)
            )
            return np.asarray(found.mean)[:half], _stated_error(found)

        (whole, stated), (again, _), (other, _) = (
            mean(len(z)),
            mean(len(z)),
            mean(len(z), "alone, otherwise"),
        )
        part, error = mean(half)
        scale = math.sqrt(float(np.diagonal(V).max()))
        if np.abs(whole - again).max() > 1e-6 * scale:
            raise self.fail(
                "posterior: asked twice with the same arguments, it gives two different means"
            )
        # A sampled posterior draws other numbers for fewer samples.
        if (whole == other).all() and np.abs(whole - part).max() > (
            1e-6 + SCORES * max(stated, error)
        ) * scale:
            raise self.fail(
                "posterior: the mean of a sample depends on the other samples"
            )


def _means(
    tests: dict[str, Array], zeros: Sequence[Array] = ()
) -> dict[str, tuple[Host, Host]]:
    """Means (P,) and standard errors of samples (n, P), with less variance by samples (n, P) whose means are exactly 0."""
    samples, controls = (
        np.stack(list(tests.values())),
        np.stack(zeros) if zeros else np.zeros((0,)),
    )
    _, n, P = samples.shape
    found = []
    for a in range(P):
        own = samples[:, :, a].T, controls[:, :, a].T if zeros else np.zeros((n, 0))
        found.append(
            controlled_mean(*(np.array_split(one, min(n, PARTS)) for one in own))
        )
    means, errors = np.swapaxes(found, 0, 1)
    return {what: (means[:, k], errors[:, k]) for k, what in enumerate(tests)}


def _stated_error(found: Any) -> float:
    error = getattr(found, "error", 0.0)
    return float(error) if math.isfinite(error) else 0.0


MOMENT = "second_moment is not that of the signals"


class _PriorTest(_Test):
    """The law of a prior: its moments, its denoiser and its map.

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
        self.fewest, self.most = (2000, 64_000) if self.vectors else (240, 240)
        # Values of a discrete prior that are hardly ever confused may be in no draw at all; matrices are of finite size.
        self.allowance = 3.0 / self.draws if self.vectors else 3.0

    def check(self, Qhat: Host, at: str, point: int) -> None:
        """Test the prior at a Qhat (P, P); ``point`` numbers the draws."""
        (stated, dimension), _ = self.grown(
            partial(self._wrong, Qhat, f"Qhat = {at}", point)
        )
        P, second = len(Qhat), prior_moments(self.problem, len(Qhat))[0]
        mapped = self.ask("overlap", Qhat[None, ...])
        Q, V = (
            self.finite(f"overlap: {name}", getattr(mapped, name, None), (1, P, P))[0]
            for name in ("Q", "V")
        )
        if not np.allclose(Q + V, second, rtol=1e-6, atol=1e-9):
            raise self.fail("overlap: Q + V must be the second moment of the signal")
        claimed, error = V.sum(1) / self._unit(Qhat), _standard_error(stated)
        slack = (
            SCORES * error
            + self.allowance / dimension
            + 3 * overlap_error_at(self.problem, Qhat)
        )
        what = "the variance" if self.vectors else "a linear estimate's"
        self.require(
            f"overlap at Qhat = {at}: V in units of {what}",
            claimed,
            stated.mean(0),
            error,
            slack,
        )

    def _unit(self, Qhat: Host) -> Host:
        """Unit (P,) of squared errors: the variance for vectors, for matrices that of the best linear estimate."""
        variance = np.subtract(*prior_moments(self.problem, len(Qhat)))
        return np.diagonal(
            variance if self.vectors else np.linalg.inv(np.linalg.inv(variance) + Qhat)
        )

    def _wrong(
        self, Qhat: Host, where: str, point: int, dimension: int, again: str
    ) -> tuple[dict[str, str], tuple[Host, int]]:
        r"""Failures of the prior's tests, the error that it states (draws, P) in ``_unit``, and the dimension.

        The error of a posterior mean has mean zero with every function of the input R. With R itself it says that the response
        of the estimate to R is ``V Qhat``, because ``E <Z, f(R)>`` is the mean derivative of f along the noise Z. Products
        are those of a component with the sum of all.
        """
        model, P = self.problem.model, len(Qhat)
        second, bottom = prior_moments(self.problem, P)
        unit, square = self._unit(Qhat), np.diagonal(second)
        root = symmetric_root(np.linalg.inv(Qhat))
        # The best linear estimate stands for R, which is large where little is known.
        linear = np.linalg.inv(np.linalg.inv(second - bottom) + Qhat) @ Qhat
        mean = np.asarray(self.ask("mean", P, dimension), dtype=float)
        constant = np.ones_like(mean) if self.vectors else mean

        def product(one: Array, other: Array) -> Array:
            total = other.sum(0)
            if (
                self.vectors
            ):  # a mean over a few entries is as good a sample as an entry
                return np.asarray(
                    np.einsum("pkd,kd->kp", one.reshape(P, 5, -1), total.reshape(5, -1))
                    / (dimension / 5)
                )
            return np.diagonal(model.inner(one, np.broadcast_to(total, other.shape)))[
                None
            ]

        rows: list[dict[str, Array]] = []
        stated = []
        for k in range(self.draws):
            rng = self.rng(f"signal{again}", point, k)
            signal = np.asarray(self.ask("sample", rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            found = self.denoised(R, Qhat)
            gap = signal - found.estimate
            stated.append(np.asarray(found.V).sum(1) / unit)
            known = {
                "the estimate is not the mean of the law it was drawn from": found.estimate
                - mean,
                "the response of the estimate to its input is not V Qhat": np.tensordot(
                    linear, R - mean, axes=1
                ),
            }
            if self.vectors:
                known["the estimate has not the mean of the signal"] = constant
                known["the estimate overlooks what the input tells"] = np.tanh(
                    R / np.sqrt(square)[:, None]
                )
            row = {what: product(gap, one) / unit for what, one in known.items()}
            row["the error V that it returns is not that of its estimates"] = (
                product(gap, gap) / unit - stated[-1]
            )
            row[MOMENT] = (product(signal, signal) - second.sum(1)) / square
            row["mean is not that of the signals"] = (
                product(signal - mean, constant) / square
            )
            row["mean_overlap is not that of the mean with itself"] = (
                product(mean, mean) - bottom.sum(1)
            ) / square
            rows.append(row)
        means = _means(
            {what: np.concatenate([row[what] for row in rows]) for what in rows[0]}
        )
        # A moment that is simulated has the error of the map where nothing is known.
        moment, sem = means[MOMENT]
        means[MOMENT] = (
            moment,
            np.hypot(
                sem,
                overlap_error_at(self.problem, 1e-9 * np.linalg.inv(second - bottom)),
            ),
        )
        scores = SUSPECT if self.vectors else SCORES
        return self.wrong_means(where, means, scores, self.allowance / dimension), (
            np.array(stated),
            dimension,
        )

    def denoised(self, R: Array, Qhat: Array) -> Any:
        """The result of denoise, its shapes and types checked."""
        P = len(Qhat)
        found = self.ask("denoise", R, Qhat)
        for name, shape in (("estimate", R.shape), ("V", (P, P))):
            value = getattr(found, name, None)
            self.finite(f"denoise: {name}", value, shape)
            if getattr(value, "dtype", None) not in (np.float32, np.float64):
                raise self.fail(
                    f"denoise: {name} must be float32 or float64, got {getattr(value, 'dtype', type(value))}"
                )
        return found
