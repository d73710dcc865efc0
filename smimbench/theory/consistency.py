r"""A quick test of the channel and the prior of a third party before theory is computed with them: do the posterior and the
denoiser obey the Nishimori identities on a few draws?

State evolution relies on both. On the Nishimori line they can be tested by themselves: with ``omega ~ N(0, Q)``,
``z ~ N(omega, V)`` and ``y`` the label of ``z``, the posterior mean ``m`` fulfils

.. math:: E[m (z - m)^T] = 0, \qquad E[(z - m)(z - m)^T] = E[\mathrm{Cov}(z | y)],

also weighted with any function of the label, and the denoiser the same with the signal in place of ``z``. This finds an error of
a few percent, quicker than the published checks (``smimbench check NAME``). Formulas of an item are compared with draws, too.
Items are tested at fixed overlaps before anything is computed, and at the points that result before they are reported.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.prior import why_theory_only
from smimbench.derive.sampled_information import POINTS, SCRAMBLES, sampled_moments
from smimbench.files import attempt
from smimbench.interfaces import Posterior
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.numerics.statistics import FEWEST_EFFECTIVE, effective_sample_size
from smimbench.problem.problem import ProblemError
from smimbench.theory.generalization import KINDS, sampled_errors
from smimbench.theory.information import inverse_map, overlap_error_at, prior_moments
from smimbench.theory.types import NOTHING, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["require_consistent", "require_consistent_at", "require_likelihood"]

KNOWN, INFORMATION = (0.3, 0.8, 0.999), (0.5, 5.0, 500.0)
"""Where items are tested: the known part of the second moment for channels, Qhat in units of the prior's inverse variance for
priors. Little, much and nearly all; any such numbers do."""
SECONDS, PRIOR_SECONDS, REPORTED_SECONDS = 0.25, 1.0, 4.0
"""Time that the samples of one test of a channel may take, the draws of one of a prior, and tests at reported points.
Doubled, errors 1.4 times smaller are found; more points are tested where items are slow."""
FEWEST, MOST, RATIOS = 64, 1 << 18, 1 << 16
"""Samples of a channel, whatever the time; labels with which a likelihood is tested. Doubled, see ``SECONDS``."""
PER_COMPONENT, MOST_PER_COMPONENT, MATRIX, DRAWS = 2000, 128_000, 240, 10
"""D of the draws of a prior: vectors, as large as ``PRIOR_SECONDS`` allows, and matrices; and their number. With five, chance is
beyond ``SCORES`` standard errors once in 250 comparisons; with ten, once in 5,000."""
SCORES, SUSPECT = 6.0, 4.0
"""Standard errors that chance is allowed: of a mean over few draws, and where a test is repeated with other samples before it
counts (chance is that far off twice once in 10^8 tests). Doubled, errors twice as large pass."""
FORMULA, SMALLEST, ROUNDING = 1e-3, 1e-3, 1e-9
"""Relative difference of a formula from draws that always passes; unknown part of the signal below which points are not tested,
for hardly any label tells there; differences that are rounding. Doubled, errors twice as large pass; fewer points are tested."""


def require_consistent(problem: Problem, kinds: Sequence[str] | None = None, *, clock: Callable[[], float]) -> None:
    """Test the channel and the prior of a problem.

    Parameters
    ----------
    kinds : sequence of str or None
        ``"channel"``, ``"prior"`` or both; None: those that are not smimbench's own.
    clock : callable
        Seconds, to decide how many samples are drawn: ``time.perf_counter``.

    Raises
    ------
    ProblemError
        In one line: which item, which test, what was found.
    """
    P = problem.components
    if kinds is None:
        kinds = [kind for kind in ("prior", "channel") if _is_third_party(problem, kind)]
    if "prior" in kinds:
        test = _PriorTest(problem, clock)
        signal = test.ask("sample")(monte_carlo_rng("consistency: signal, form"), P, test.smallest)
        test.denoised(np.asarray(signal, dtype=float), np.eye(P))  # moments may be derived from it
        spread = np.asarray(test.ask("second_moment")(P), dtype=float)
        spread = spread - np.asarray(test.ask("mean_overlap")(P), dtype=float)
        for point, ratio in enumerate(INFORMATION):
            test.check(ratio * np.linalg.inv(spread), f"{ratio:g} / variance", point)
    if "channel" in kinds:
        require_likelihood(problem)
        second = np.asarray(problem.prior.second_moment(P), dtype=float)
        for point, known in enumerate(KNOWN):
            _ChannelTest(problem, clock).check(known * second, (1 - known) * second, point)


def require_consistent_at(problem: Problem, points: Sequence[tuple[Host, Host]], *, clock: Callable[[], float]) -> None:
    """Test them again at some of the overlaps and errors ``(Q, V)`` of points that are about to be reported.

    Raises
    ------
    ProblemError
    """
    tests = [
        test(problem, clock, share=0.25) for test in (_ChannelTest, _PriorTest) if _is_third_party(problem, test.kind)
    ]
    if not tests or not points:
        return
    second, bottom = prior_moments(problem)
    chosen = np.unique(np.linspace(0, len(points) - 1, 16).round().astype(int))
    begin = clock()
    # Far apart first, should time not be enough for all: 0, 4, 2, 6, 1, ...
    for index in sorted(chosen, key=lambda one: f"{np.searchsorted(chosen, one):08b}"[::-1]):
        Q, V = points[index]
        unknown = np.diagonal(V) / np.diagonal(second)
        if clock() - begin > REPORTED_SECONDS:
            return
        if not (unknown >= -ROUNDING).all():
            raise tests[-1].fail(f"it leads to an error of {np.diagonal(V).min():.3g}, which cannot be below 0")
        if unknown.max() < SMALLEST:
            continue
        # A little further: where an item goes wrong, a curve turns, and points stop just before.
        further = 0.98 * V
        learned = np.flatnonzero(np.diagonal(Q) - np.diagonal(bottom) > NOTHING * np.diagonal(second))
        for test in tests:
            if isinstance(test, _ChannelTest):
                kept = np.maximum(further, SMALLEST * np.diag(np.diagonal(second)))
                test.check(second - kept, kept, len(KNOWN) + int(index))
            elif len(learned) == problem.components:
                Qhat = inverse_map(problem, second - further, further, learned)
                test.check(Qhat, f"{np.diagonal(Qhat).max():.3g}", len(INFORMATION) + int(index))


def require_likelihood(problem: Problem) -> None:
    r"""Test whether ``log_likelihood`` is that of the labels that ``forward`` draws, before anything is integrated.

    For any latents ``z`` and ``z'``, whatever the normalisation in y,

    .. math:: E_{y \sim p(y | z)} [p(y | z') / p(y | z)] = 1,

    or less where some labels are impossible.

    Raises
    ------
    ProblemError
    """
    if problem.channel.log_likelihood is None:
        return
    item = _Item(problem, "channel")
    shape = (RATIOS, problem.components, problem.model.sites)
    root = symmetric_root(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
    for again in ("", ", again"):
        rng = monte_carlo_rng(f"consistency: likelihood{again}")
        z = root @ rng.standard_normal(shape)
        direction = root @ rng.choice([-1.0, 1.0], shape)
        y = item.ask("forward")(z, rng=monte_carlo_rng(f"consistency: labels of the likelihood{again}"))

        def log_likelihood(latents: Array, y: Array = y) -> Array:
            with np.errstate(all="ignore"):
                found = np.asarray(item.ask("log_likelihood")(y, latents), dtype=float)
            if found.shape != (RATIOS,) or np.isnan(found).any() or (found == math.inf).any():
                got = "nan or inf" if found.shape == (RATIOS,) else f"shape {found.shape}"
                raise item.fail(f"log_likelihood must return numbers of shape ({RATIOS},), or -inf, got {got}")
            return found

        here, step = log_likelihood(z), 0.1
        if not np.isfinite(here).all():
            raise item.fail("log_likelihood is -inf for the latents from which forward made the label")
        for _ in range(5):  # until ratios differ, but not so much that a few of them are the mean
            change = log_likelihood(z + step * direction) - here
            spread = float(np.std(change[np.isfinite(change)])) if np.isfinite(change).any() else math.inf
            step = min(step / max(spread, 0.1), 1.0)
        change = log_likelihood(z + step * direction) - here
        ratio = np.exp(np.minimum(change, 700))
        mean, sem = float(ratio.mean()), float(ratio.std(ddof=1)) / math.sqrt(RATIOS)
        low = 1 - SUSPECT * sem - ROUNDING if np.isfinite(change).all() else 0.0
        if low <= mean <= 1 + SUSPECT * sem + ROUNDING or effective_sample_size(ratio) < FEWEST_EFFECTIVE:
            return
    raise item.fail(
        f"log_likelihood is not that of forward: the mean of p(y | z') / p(y | z) over labels y of z is {mean:.4g} +- {sem:.1g}, "
        "should be 1 (a wrong sign, or another noise?)"
    )


def _is_third_party(problem: Problem, kind: str) -> bool:
    theory_only = kind == "prior" and why_theory_only(problem.prior, problem.components)
    return bool(problem.spec[kind].get("distribution")) and not theory_only


class _Item:
    """An item of a problem: calls its methods and reports failures."""

    def __init__(self, problem: Problem, kind: str) -> None:
        self.problem, self.kind, self.item = problem, kind, getattr(problem, kind)
        self.name = problem.spec[kind]["name"]

    def ask(self, method: str) -> Callable[..., Any]:
        """A method of the item; errors become one line."""
        asked = getattr(self.item, method)

        def call(*arguments: Any, **options: Any) -> Any:
            found, error = attempt(asked, *arguments, **options)
            if error is None:
                return found
            if isinstance(error, ProblemError):
                raise error
            text = " ".join(str(error).split()) or "no text"
            raise self.fail(f"{method} raised {type(error).__name__}: {text}") from error

        return call

    def fail(self, what: str) -> ProblemError:
        """A ProblemError with the name of the item."""
        line = f"{what}; no theory is made of it ('smimbench check {self.name}' says more)"
        return ProblemError(f"{self.kind} {self.name!r}", line)

    def fail_twice(self, found: dict[str, str], repeat: Callable[[], dict[str, str]]) -> None:
        """Raise what fails again with other samples, in a fixed order: an item is always refused in the same words."""
        again = repeat() if found else {}
        for key in found:
            if key in again:
                raise self.fail(again[key])


class _ChannelTest(_Item):
    """The posterior of a channel, and its formulas."""

    kind = "channel"

    def __init__(self, problem: Problem, clock: Callable[[], float], share: float = 1.0) -> None:
        super().__init__(problem, self.kind)
        self.clock, self.seconds = clock, share * SECONDS

    def check(self, Q: Host, V: Host, point: int) -> None:
        """Test it at an overlap; ``point`` numbers the draws."""
        count = FEWEST
        while True:
            begin = self.clock()
            found, z, omega = self._wrong(Q, V, point, count)
            spent = self.clock() - begin
            if count >= MOST or 4 * spent > self.seconds:
                break
            count = min(MOST, 4 * count)
        self.fail_twice(found, lambda: self._wrong(Q, V, point, min(MOST, 4 * count), ", again")[0])
        self._same_alone(z[:8], omega, V, point)
        if self.item.information is not None:
            self._check_information(Q, V, spent / count)
        if self.item.generalization_error is not None:
            self._check_predictions(Q, V)

    def _at(self, V: Host) -> str:
        second = np.diagonal(np.asarray(self.problem.prior.second_moment(self.problem.components), dtype=float))
        return f"at V = {float(np.max(np.diagonal(V) / second)):.1g} of the second moment"

    def _wrong(self, Q: Host, V: Host, point: int, count: int, again: str = "") -> tuple[dict[str, str], Array, Array]:
        """Tests that fail, in words by what is wrong, where and in which direction; the latents and their means."""
        P, C = self.problem.components, self.problem.model.sites
        normal = monte_carlo_rng(f"consistency: latents{again}", point).standard_normal((2, count, P, C))
        omega = symmetric_root(Q) @ normal[0]
        z = omega + symmetric_root(V) @ normal[1]
        error, shift, claimed, blind, stated = self._posterior(z, omega, V, point, again)
        zero = np.zeros(P)
        tests = [
            ("the mean is not that of the law its labels come from", (shift * error).mean(-1), zero),
            ("its covariance is not that of its own errors", (error * error).mean(-1), claimed),
            *((f"its {what} overlooks what the label tells", rows, zero) for what, rows in blind.items()),
        ]
        if 0 < effective_sample_size((shift * shift).sum((1, 2))) < FEWEST_EFFECTIVE:
            tests = []  # hardly any label says anything: chance decides
        found = {}
        for what, samples, target in tests:
            mean, sem = samples.mean(0), samples.std(0, ddof=1) / math.sqrt(len(samples))
            allowed = SUSPECT * sem + stated * (2 + np.abs(target)) + ROUNDING
            for a in np.flatnonzero(~(np.abs(mean - target) <= allowed)):
                of = f" of component {a + 1}" if P > 1 else ""
                found[f"{what} {a} {mean[a] < target[a]}"] = (
                    f"posterior {self._at(V)}: {what}{of}: {mean[a]:.4g} +- {sem[a]:.1g} should be {target[a]:.4g}"
                )
        return found, z, omega

    def _posterior(
        self, z: Array, omega: Array, V: Array, point: int, again: str
    ) -> tuple[Array, Array, Array, dict[str, Array], float]:
        """What the posterior says of latents ``z`` (n, P, C), in units of V.

        Errors of its mean, and the mean less omega, (n, P, C) each; the claimed covariance (P,); errors of the mean, and of the
        second moment where theory uses it, times a function of the label (n, P), whose mean is 0; the error it states.
        """
        n = len(z)
        y = self.ask("forward")(z, rng=monte_carlo_rng(f"consistency: labels{again}", point))
        if np.shape(y)[:1] != (n,):
            raise self.fail(f"forward must return one label per sample, ({n}, ...), got shape {np.shape(y)}")
        sampled = self.item.information is None or self.item.susceptibility is None
        rng = monte_carlo_rng("consistency: posterior", point)
        found = self.ask("posterior")(y, omega, V, second_moment=sampled, rng=rng)
        second = found.second_moment if sampled and isinstance(found, Posterior) else None
        try:
            checked_posterior(found, omega, second_moment=second is not None)
        except ValueError as error:
            raise self.fail(str(error)) from None
        for name in ("mean", "covariance", *(["second_moment"] if second is not None else [])):
            if not np.isfinite(getattr(found, name)).all():
                raise self.fail(f"posterior: {name} is not made of finite numbers")
        stated = _stated_error(found)
        if stated > 0.1:
            raise self.fail(f"posterior: states an error of {stated:.2g} of its mean, where at most 0.1 is of use")
        white = inverse_root(V, 0.0)
        claimed = np.diagonal(white @ np.asarray(found.covariance) @ white)
        left = white @ (z - found.mean)
        # Any function of the label will do: a bounded one of a random direction in which labels differ.
        flat = np.nan_to_num(np.asarray(y, dtype=float).reshape(n, -1))
        rng = monte_carlo_rng("consistency: directions", point)
        label = flat @ (rng.standard_normal(flat.shape[1]) / (flat.std(0) + 1e-300))
        label = np.tanh((label - label.mean()) / (label.std() + 1e-300))
        direction = rng.standard_normal(z.shape[2])
        seen = 1 + (omega @ direction) / np.std(omega @ direction, axis=0)  # where labels see no sign, omega gives it
        blind = {"mean": (left @ direction) * label[:, None] * seen}
        if second is not None:
            full = np.einsum("npcpd,c,d->np", second, direction, direction)
            weight = (1 + label + label**2)[:, None]
            blind["second moment"] = ((z @ direction) ** 2 - full) * weight / np.diagonal(V)
        return left, white @ (found.mean - omega), claimed, blind, stated

    def _same_alone(self, z: Array, omega: Array, V: Array, point: int) -> None:
        """The posterior of a sample must not depend on other samples, nor on earlier calls."""

        def mean(count: int, seed: str) -> tuple[Array, float]:
            y = self.item.forward(z, rng=monte_carlo_rng("consistency: labels", point))
            rng = monte_carlo_rng(f"consistency: {seed}", point)
            found = self.item.posterior(y[:count], omega[:count], V, rng=rng)
            return np.asarray(found.mean)[: len(z) // 2], _stated_error(found)

        (whole, stated), (again, _), (other, _) = (mean(len(z), f"alone{seed}") for seed in ("", "", ", otherwise"))
        part, error = mean(len(z) // 2, "alone")
        scale = math.sqrt(float(np.diagonal(V).max()))
        if np.abs(whole - again).max() > 1e-6 * scale:
            raise self.fail("posterior: asked twice with the same arguments, it gives two different means")
        # A sampled posterior draws other numbers for fewer samples.
        if (whole == other).all() and np.abs(whole - part).max() > (1e-6 + SCORES * max(stated, error)) * scale:
            raise self.fail("posterior: the mean of a sample depends on the other samples")

    def _check_information(self, Q: Host, V: Host, seconds: float) -> None:
        """A formula against means over labels; ``seconds`` is what the posterior of one label takes."""
        P = self.problem.components
        found = self.ask("information")(Q, V)
        value, error = getattr(found, "value", None), getattr(found, "error", None)
        if value is None or error is None:
            raise self.fail(f"information must return a smimbench.Uncertain, got a {type(found).__name__}")
        value = np.asarray(value, dtype=float)
        if value.shape != (P, P) or not np.isfinite(value).all():
            got = value.shape if value.shape != (P, P) else value.tolist()
            raise self.fail(f"information must be finite numbers of shape ({P}, {P}), got {got}")
        if seconds * SCRAMBLES * POINTS > 2.0:  # formulas of very slow channels are not compared
            return
        drawn = sampled_moments(self.item, self.problem.model.sites, Q, V)[0]
        scale = np.sqrt(np.outer(np.diagonal(V), np.diagonal(V)))  # in units of V, where 1 is as much as can be known
        allowed = SCORES * (drawn.error * scale + np.asarray(error, dtype=float) * scale) + FORMULA * scale * np.abs(
            value
        )
        gap = np.abs(value - drawn.value) * scale
        if not (gap <= allowed + ROUNDING).all():
            a, b = np.unravel_index(int(np.argmax(gap - allowed)), gap.shape)
            raise self.fail(
                f"information {self._at(V)} is {value[a, b]:.4g}, where its posterior gives {drawn.value[a, b]:.4g} +- "
                f"{drawn.error[a, b]:.1g}"
            )

    def _check_predictions(self, Q: Host, V: Host) -> None:
        """Formulas for errors of prediction against random points."""
        found = self.ask("generalization_error")(Q, V)
        drawn = sampled_errors(self.problem, Q, V)
        for kind in KINDS:
            one = found.get(kind) if isinstance(found, dict) else None
            value, error = getattr(one, "value", math.nan), getattr(one, "error", math.nan)
            if np.size(value) != 1 or np.size(error) != 1 or not np.isfinite([float(value), float(error)]).all():
                raise self.fail(
                    f"generalization_error must give a finite smimbench.Uncertain for {kind!r}, got {one!r}"
                )
            allowed = SCORES * (drawn[kind].error + float(error)) + FORMULA * abs(drawn["constant"].value)
            if not abs(float(value) - drawn[kind].value) <= allowed + ROUNDING:
                raise self.fail(
                    f"generalization_error ({kind}) {self._at(V)} is {float(value):.4g}, where draws give "
                    f"{drawn[kind].value:.4g} +- {drawn[kind].error:.1g}"
                )


def _stated_error(found: Any) -> float:
    error = getattr(found, "error", 0.0)
    return float(error) if math.isfinite(error) else 0.0


LAW, ERROR = (
    "the estimate is not the mean of the law it was drawn from",
    "the error V that it returns is not that of its estimates",
)
BLIND, IGNORED = "the estimate has not the mean of the signal", "the estimate overlooks what the input tells"
"""What is wrong where a mean of a prior's draws is not zero."""


class _PriorTest(_Item):
    """The denoiser of a prior, and its map."""

    kind = "prior"

    def __init__(self, problem: Problem, clock: Callable[[], float], share: float = 1.0) -> None:
        super().__init__(problem, self.kind)
        self.clock, self.seconds = clock, share * PRIOR_SECONDS
        self.vectors = problem.model.rank == "low"
        self.smallest = PER_COMPONENT if self.vectors else MATRIX
        self.largest = MOST_PER_COMPONENT if self.vectors else MATRIX
        # Values of a discrete prior that are hardly ever confused may be in no draw at all; matrices are of finite size.
        self.allowance = 3.0 / DRAWS if self.vectors else 3.0

    def check(self, Qhat: Host, at: str, point: int) -> None:
        """Test it at a Qhat; ``point`` numbers the draws."""
        dimension, wrong = self.smallest, partial(self._wrong, Qhat, f"denoise at Qhat = {at}", point)
        while True:
            begin = self.clock()
            failed, stated = wrong(dimension)
            if dimension >= self.largest or 4 * (self.clock() - begin) > self.seconds:
                break
            dimension = min(4 * dimension, self.largest)
        self.fail_twice(failed, lambda: wrong(min(4 * dimension, self.largest), ", again")[0])
        second, bottom = prior_moments(self.problem)
        claimed = np.diagonal(self._mapped(Qhat, second)) / np.diagonal(second - bottom)
        value, sem = np.mean(stated, axis=0), np.std(stated, axis=0, ddof=1) / math.sqrt(DRAWS)
        slack = SCORES * sem + self.allowance / dimension + 3 * overlap_error_at(self.problem, Qhat)
        if not (np.abs(value - claimed) <= slack).all():
            raise self.fail(
                f"denoise at Qhat = {at}: V of the map overlap is not that of denoise: {value.max():.4g} +- {sem.max():.1g}, not "
                f"{claimed.max():.4g}"
            )

    def _wrong(
        self, Qhat: Host, where: str, point: int, dimension: int, again: str = ""
    ) -> tuple[dict[str, str], Array]:
        """Tests that fail, in words by what is wrong, and the error that denoise states (draws, P)."""
        found, stated = self._draws(Qhat, point, dimension, again)
        failed = {}
        for what, values in found.items():
            mean, sem = values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values))
            slack = (SUSPECT if self.vectors else SCORES) * sem + self.allowance / dimension
            for a in np.flatnonzero(~(np.abs(mean) <= slack)):
                line = f"{where}: {what}: off by {mean[a]:.4g} +- {sem[a]:.1g} of the variance"
                failed[f"{what} {a} {mean[a] < 0}"] = line
        return failed, stated

    def _draws(self, Qhat: Host, point: int, dimension: int, again: str) -> tuple[dict[str, Array], Array]:
        """What must have mean zero, of every entry (n, P) or of every matrix, and the error that denoise states (draws, P)."""
        model, P = self.problem.model, self.problem.components
        second, bottom = prior_moments(self.problem)
        spread = np.diagonal(second - bottom)
        root = symmetric_root(np.linalg.inv(Qhat))
        rows: dict[str, list[Array]] = {}
        stated = []
        for k in range(DRAWS):
            rng = monte_carlo_rng(f"consistency: signal{again}", point, k)
            signal = np.asarray(self.ask("sample")(rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            found = self.denoised(R, Qhat)
            gap = signal - found.estimate
            shift = found.estimate - np.asarray(self.ask("mean")(P, dimension), dtype=float)
            stated.append(np.diagonal(np.asarray(found.V)) / spread)
            if self.vectors:
                products = {
                    LAW: gap * shift,
                    ERROR: gap * gap - spread[:, None] * stated[-1][:, None],
                    BLIND: gap,
                    IGNORED: gap * np.tanh(R / np.sqrt(np.diagonal(second))[:, None]),
                }
                new = {what: (product / spread[:, None]).T for what, product in products.items()}
            else:
                inner = {LAW: model.inner(gap, shift), ERROR: model.inner(gap, gap)}
                new = {what: (np.diagonal(one) / spread)[None] for what, one in inner.items()}
                new[ERROR] = new[ERROR] - stated[-1]
            for what, values in new.items():
                rows.setdefault(what, []).append(values)
        return {what: np.concatenate(values) for what, values in rows.items()}, np.array(stated)

    def denoised(self, R: Array, Qhat: Array) -> Any:
        """The result of denoise, its shapes and types checked."""
        P = self.problem.components
        found = self.ask("denoise")(R, Qhat)
        for name, shape in (("estimate", R.shape), ("V", (P, P))):
            value = getattr(found, name, None)
            if not isinstance(value, np.ndarray) or value.shape != shape or not np.isfinite(value).all():
                got = value.shape if isinstance(value, np.ndarray) else type(value).__name__
                got = f"numbers that are not finite, of shape {got}" if got == shape else got
                raise self.fail(f"denoise: {name} must be finite numbers of shape {shape}, got {got}")
            if value.dtype.kind != "f" or value.dtype.itemsize < 4:
                raise self.fail(f"denoise: {name} must be float32 or float64, got {value.dtype}")
        return found

    def _mapped(self, Qhat: Array, second: Array) -> Array:
        """V (P, P) of the prior's state-evolution map, its shape checked."""
        P = self.problem.components
        found = self.ask("overlap")(Qhat[None, ...])
        for name in ("Q", "V"):
            value = np.asarray(getattr(found, name, np.nan), dtype=float)
            if value.shape != (1, P, P) or not np.isfinite(value).all():
                raise self.fail(f"overlap: {name} must be finite numbers of shape (1, {P}, {P}), got {value.shape}")
        if not np.allclose(np.asarray(found.Q) + np.asarray(found.V), second, rtol=1e-6, atol=1e-9):
            raise self.fail("overlap: Q + V must be the second moment of the signal")
        return np.asarray(found.V, dtype=float)[0]
