r"""A quick test of somebody else's channel and prior before theory is made of them: whether the posterior and the
denoiser obey the Nishimori identities on a few draws.

State evolution believes what a posterior and a denoiser say. On the Nishimori line they can be tested by themselves: with
``omega ~ N(0, Q)``, ``z ~ N(omega, V)`` and ``y`` the label of ``z``, the posterior mean ``m`` fulfils

.. math:: E[m (z - m)^T] = 0, \qquad E[(z - m)(z - m)^T] = E[\mathrm{Cov}(z | y)],

also weighted with any function of the label, and the denoiser the same with the signal in
place of ``z``. This is quicker and coarser than the published checks
(``smimbench check NAME``): it finds an error of a few per cent. Formulas that an item has beside these, a channel's information
and a prior's map, are compared with draws. All of it is tested at fixed overlaps before anything is computed, and at the points
that come out before they are printed.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.sampled_information import POINTS, SCRAMBLES, sampled_moments
from smimbench.interfaces import Posterior, member, offers
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.numerics.telling import FEWEST_TELLING, telling
from smimbench.problem.problem import ProblemError
from smimbench.theory.generalization import KINDS, sampled_errors
from smimbench.theory.information import overlap_error_at, prior_moments
from smimbench.theory.inverse_map import inverse_map
from smimbench.theory.types import NOTHING, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["require_consistent", "require_consistent_at", "require_likelihood"]

KNOWN = (0.3, 0.8, 0.999)
"""Parts of the second moment that are known where channels are tested: little, much, and nearly all. Any such numbers do."""
INFORMATION = (0.5, 5.0, 500.0)
"""Qhat, in units of the prior's inverse variance, at which priors are tested: little, much, nearly all. Any such numbers do."""
MOST_STATED = 0.1
"""Largest error that a posterior may state of its mean, in units of V; doubled, what is 10% off passes if it says so."""
RATIOS = 1 << 16
"""Labels with which a likelihood is tested; doubled, errors 1.4 times smaller are found."""
FEW, AGREEMENT = 8, 1e-6
"""Samples that are asked again without the others, and how far their means may be off then, in units of V. Doubled: no change."""
SECONDS = 0.25
"""Time that the samples of one test may take; doubled, errors 1.4 times smaller are found."""
PRIOR_SECONDS = 1.0
"""The same for draws of a prior."""
FEWEST, MOST = 64, 1 << 18
"""Samples of a channel, whatever the time; doubled, see ``SECONDS``."""
PER_COMPONENT, MOST_PER_COMPONENT, MATRIX = 2000, 128_000, 240
"""D of the draws of a prior: vectors, as large as ``PRIOR_SECONDS`` allow, and matrices. Doubled, smaller errors are found and it
takes 2 or 8 times as long."""
DRAWS = 10
"""Draws of a prior, whose spread is the error; doubled, errors 1.4 times smaller are found. With five, chance alone is beyond
``SCORES`` of such errors once in 250 comparisons; with ten, once in 5,000."""
RARE = 3.0
"""Entries of all draws of a vector that chance may leave out: values of a discrete prior that are hardly ever confused have a
small error, and draws that have not met it a spread of 0. Doubled, errors twice as rare pass."""
SCORES = 6.0
"""Standard errors that chance is allowed, and of a mean over few draws; doubled, errors twice as large pass."""
SUSPECT = 4.0
"""The same where a test is done again with other samples before it counts: chance is that far off twice once in 10^8 tests."""
PRINTED = 16
"""Points of a curve at which items are tested, too; doubled, errors between them are found more often, in twice the time."""
FURTHER = 0.98
"""Part of V at which the items are tested at a point. Nearer to 1, less of what lies behind the point is seen."""
QUICKER = 4
"""Fraction of the time that a test at a point may take; doubled, errors 1.4 times as large pass there."""
PRINTED_SECONDS = 4.0
"""Time after which no further point is tested; doubled, more of them are where items are slow."""
SMALLEST = 1e-3
"""Unknown part of the signal below which points are not tested: hardly any label tells there. Doubled, fewer are."""
FORMULA = 1e-3
"""Relative difference of a formula from draws that always passes; doubled, errors twice as large do."""
FORMULA_SECONDS = 2.0
"""Time that sampling the information at one overlap may take; doubled, formulas of slower channels are tested, too."""
ROUNDING = 1e-9
"""Differences below this are rounding; doubled, a bias of that size passes."""
LAW, ERROR = (
    "the estimate is not the mean of the law it was drawn from",
    "the error V that it returns is not that of its estimates",
)
BLIND, TOLD = "the estimate has not the mean of the signal", "the estimate overlooks what the input tells"
"""What is wrong where a mean of a prior's draws is not zero."""
TINY = 1e-300
"""Added to spreads that may be zero; any number too small to be a spread does."""
FINITE_SIZE = 3.0
"""Allowance for matrices of finite size, in units of 1 / D; doubled, an error of 2% passes instead of 1%."""


def require_consistent(problem: Problem, kinds: Sequence[str] | None = None) -> None:
    """Test the channel and the prior of a problem.

    Parameters
    ----------
    kinds : sequence of str or None
        ``"channel"``, ``"prior"`` or both; None: those that are not smimbench's own.

    Raises
    ------
    ProblemError
        In one line: which item, which test, what was found.
    """
    P = problem.components
    if kinds is None:
        kinds = [kind for kind in ("prior", "channel") if _is_foreign(problem, kind)]
    if "prior" in kinds:
        dimension = PER_COMPONENT if problem.model.rank == "low" else MATRIX
        signal = _of(problem, "prior", "sample")(monte_carlo_rng("consistency: signal, form"), P, dimension)
        _denoised(problem, np.asarray(signal, dtype=float), np.eye(P))  # moments may be derived from it
        spread = np.asarray(_of(problem, "prior", "second_moment")(P), dtype=float)
        spread = spread - np.asarray(_of(problem, "prior", "mean_overlap")(P), dtype=float)
        for point, ratio in enumerate(INFORMATION):
            _check_prior(problem, ratio * np.linalg.inv(spread), f"{ratio:g} / variance", point)
    if "channel" in kinds:
        require_likelihood(problem)
        second = np.asarray(problem.prior.second_moment(P), dtype=float)
        for point, known in enumerate(KNOWN):
            _check_channel(problem, known * second, (1 - known) * second, point)


def require_consistent_at(problem: Problem, points: Sequence[tuple[Host, Host]]) -> None:
    """The same at some of the overlaps and errors ``(Q, V)`` of points that are about to be printed.

    Raises
    ------
    ProblemError
    """
    foreign = [kind for kind in ("channel", "prior") if _is_foreign(problem, kind)]
    if not foreign or not points:
        return
    second, bottom = prior_moments(problem)
    chosen = np.unique(np.linspace(0, len(points) - 1, PRINTED).round().astype(int))
    begin = time.perf_counter()
    # Far apart first, should time not be enough for all: 0, 4, 2, 6, 1, ...
    for index in sorted(chosen, key=lambda one: f"{np.searchsorted(chosen, one):08b}"[::-1]):
        Q, V = points[index]
        unknown = np.diagonal(V) / np.diagonal(second)
        if time.perf_counter() - begin > PRINTED_SECONDS:
            return
        if not (unknown >= -ROUNDING).all():
            raise _fail(
                problem, foreign[-1], f"it leads to an error of {np.diagonal(V).min():.3g}, which cannot be below 0"
            )
        if unknown.max() < SMALLEST:
            continue
        # A little further: where an item goes wrong, a curve turns, and points stop just before.
        kept = np.maximum(FURTHER * V, SMALLEST * np.diag(np.diagonal(second)))
        if "channel" in foreign:
            _check_channel(problem, second - kept, kept, len(KNOWN) + int(index), SECONDS / QUICKER)
        learned = np.flatnonzero(np.diagonal(Q) - np.diagonal(bottom) > NOTHING * np.diagonal(second))
        if "prior" in foreign and len(learned) == problem.components:
            Qhat = inverse_map(problem, second - FURTHER * V, FURTHER * V, learned)
            where, point = f"{np.diagonal(Qhat).max():.3g}", len(INFORMATION) + int(index)
            _check_prior(problem, Qhat, where, point, PRIOR_SECONDS / QUICKER)


def _is_foreign(problem: Problem, kind: str) -> bool:
    theory_only = kind == "prior" and member(problem.prior, "theory_only")
    return bool(problem.spec[kind].get("distribution")) and not theory_only


def _of(problem: Problem, kind: str, method: str) -> Callable[..., Any]:
    """A method of an item of somebody else; what it raises is said in one line."""
    asked = getattr(getattr(problem, kind), method)

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return asked(*arguments, **options)
        except ProblemError:
            raise
        except Exception as error:
            text = " ".join(str(error).split()) or "no text"
            raise _fail(problem, kind, f"{method} raised {type(error).__name__}: {text}") from error

    return call


def _fail(problem: Problem, kind: str, what: str) -> ProblemError:
    name = problem.spec[kind]["name"]
    return ProblemError(f"{kind} {name!r}", f"{what}; no theory is made of it ('smimbench check {name}' says more)")


# -- channels -------------------------------------------------------------------------------------------------------


def require_likelihood(problem: Problem) -> None:
    r"""Test whether ``log_likelihood`` is that of the labels that ``forward`` draws, before anything is integrated.

    For any latents ``z`` and ``z'``, whatever the normalisation in y,

    .. math:: E_{y \sim p(y | z)} [p(y | z') / p(y | z)] = 1,

    or less where some labels are impossible.

    Raises
    ------
    ProblemError
    """
    if not offers(problem.channel, "log_likelihood"):
        return
    shape = (RATIOS, problem.components, problem.model.sites)
    second = np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    again = ""
    for again in ("", ", again"):
        rng = monte_carlo_rng(f"consistency: likelihood{again}")
        z = symmetric_root(second) @ rng.standard_normal(shape)
        direction = symmetric_root(second) @ rng.choice([-1.0, 1.0], shape)
        y = _of(problem, "channel", "forward")(z, rng=monte_carlo_rng(f"consistency: labels of the likelihood{again}"))

        def log_likelihood(latents: Array, y: Array = y) -> Array:
            with np.errstate(all="ignore"):
                found = np.asarray(_of(problem, "channel", "log_likelihood")(y, latents), dtype=float)
            if found.shape != (RATIOS,) or np.isnan(found).any() or (found == math.inf).any():
                got = "nan or inf" if found.shape == (RATIOS,) else f"shape {found.shape}"
                raise _fail(
                    problem, "channel", f"log_likelihood must return numbers of shape ({RATIOS},), or -inf, got {got}"
                )
            return found

        here, step = log_likelihood(z), 0.1
        possible = np.isfinite(here)
        if not possible.all():
            raise _fail(problem, "channel", "log_likelihood is -inf for the latents from which forward made the label")
        for _ in range(5):  # until ratios differ, but not so much that a few of them are the mean
            change = log_likelihood(z + step * direction) - here
            spread = float(np.std(change[np.isfinite(change)])) if np.isfinite(change).any() else math.inf
            step = min(step / max(spread, 0.1), 1.0)
        change = log_likelihood(z + step * direction) - here
        ratio = np.exp(np.minimum(change, 700))
        mean, sem = float(ratio.mean()), float(ratio.std(ddof=1)) / math.sqrt(RATIOS)
        low = 1 - SUSPECT * sem - ROUNDING if np.isfinite(change).all() else 0.0
        if low <= mean <= 1 + SUSPECT * sem + ROUNDING or telling(ratio) < FEWEST_TELLING:
            return
    raise _fail(
        problem, "channel",
        f"log_likelihood is not that of forward: the mean of p(y | z') / p(y | z) over labels y of z is {mean:.4g} +- {sem:.1g}, "
        "should be 1 (a wrong sign, or another noise?)",
    )  # fmt: skip


def _check_channel(problem: Problem, Q: Host, V: Host, point: int, seconds: float = SECONDS) -> None:
    P, C = problem.components, problem.model.sites
    count, spent = FEWEST, 0.0

    def wrong(count: int, again: str = "") -> tuple[dict[tuple[str, int], str], Array, Array]:
        """Tests that fail, by what is wrong and the component, in words; the latents and their means."""
        normal = monte_carlo_rng(f"consistency: latents{again}", point).standard_normal((2, count, P, C))
        omega = symmetric_root(Q) @ normal[0]
        z = omega + symmetric_root(V) @ normal[1]
        error, shift, claimed, blind, slack = _checked_posterior(problem, z, omega, V, point, again)
        zero = np.zeros(P)
        tests = [
            ("the mean is not that of the law its labels come from", (shift * error).mean(-1), zero),
            ("its covariance is not that of its own errors", (error * error).mean(-1), claimed),
            *((f"its {what} overlooks what the label tells", rows, zero) for what, rows in blind.items()),
        ]
        if 0 < telling((shift * shift).sum((1, 2))) < FEWEST_TELLING:
            tests = []  # hardly any label says anything: chance decides
        return _wrong_means(tests, slack), z, omega

    while True:
        begin = time.perf_counter()
        found, z, omega = wrong(count)
        spent = time.perf_counter() - begin
        if count >= MOST or 4 * spent > seconds:
            break
        count = min(MOST, 4 * count)
    if found:
        again = wrong(min(MOST, 4 * count), ", again")[0]
        where = f"posterior at V = {_share(problem, V):.1g} of the second moment"
        for key in _in_both(found, again):
            of = f" of component {key[1] + 1}" if P > 1 else ""
            raise _fail(problem, "channel", f"{where}: {key[0].removesuffix('-').removesuffix('+')}{of}: {again[key]}")
    _same_posterior_alone(problem, z[:FEW], omega, V, point)
    if offers(problem.channel, "information"):
        _check_information(problem, Q, V, spent / count)
    if offers(problem.channel, "generalization_error"):
        _check_predictions(problem, Q, V)


def _in_both(found: dict[Any, str], again: dict[Any, str]) -> list[Any]:
    """What failed twice, in a fixed order, so that one item is always refused in the same words."""
    return [key for key in found if key in again]


def _share(problem: Problem, V: Host) -> float:
    second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
    return float(np.max(np.diagonal(V) / second))


def _check_information(problem: Problem, Q: Host, V: Host, seconds: float) -> None:
    """A formula against means over labels; ``seconds`` is what the posterior of one label takes."""
    P = problem.components
    found = _of(problem, "channel", "information")(Q, V)
    value, error = getattr(found, "value", None), getattr(found, "error", None)
    if value is None or error is None:
        raise _fail(problem, "channel", f"information must return a smimbench.Uncertain, got a {type(found).__name__}")
    value = np.asarray(value, dtype=float)
    if value.shape != (P, P) or not np.isfinite(value).all():
        got = value.shape if value.shape != (P, P) else value.tolist()
        raise _fail(problem, "channel", f"information must be finite numbers of shape ({P}, {P}), got {got}")
    if seconds * SCRAMBLES * POINTS > FORMULA_SECONDS:
        return
    drawn = sampled_moments(problem.channel, problem.model.sites, Q, V)[0]
    scale = np.sqrt(np.outer(np.diagonal(V), np.diagonal(V)))  # in units of V, where 1 is as much as can be known
    allowed = SCORES * (drawn.error * scale + np.asarray(error, dtype=float) * scale) + FORMULA * scale * np.abs(value)
    gap = np.abs(value - drawn.value) * scale
    if not (gap <= allowed + ROUNDING).all():
        a, b = np.unravel_index(int(np.argmax(gap - allowed)), gap.shape)
        raise _fail(
            problem, "channel",
            f"information at V = {_share(problem, V):.1g} of the second moment is {value[a, b]:.4g}, where its posterior gives "
            f"{drawn.value[a, b]:.4g} +- {drawn.error[a, b]:.1g}",
        )  # fmt: skip


def _check_predictions(problem: Problem, Q: Host, V: Host) -> None:
    """Formulas for errors of prediction against random points."""
    found = _of(problem, "channel", "generalization_error")(Q, V)
    drawn = sampled_errors(problem, Q, V)
    for kind in KINDS:
        one = found.get(kind) if isinstance(found, dict) else None
        value, error = getattr(one, "value", math.nan), getattr(one, "error", math.nan)
        if np.size(value) != 1 or np.size(error) != 1 or not np.isfinite([float(value), float(error)]).all():
            raise _fail(
                problem,
                "channel",
                f"generalization_error must give a finite smimbench.Uncertain for {kind!r}, got {one!r}",
            )
        allowed = SCORES * (drawn[kind].error + float(error)) + FORMULA * abs(drawn["constant"].value)
        if not abs(float(value) - drawn[kind].value) <= allowed + ROUNDING:
            raise _fail(
                problem, "channel",
                f"generalization_error ({kind}) at V = {_share(problem, V):.1g} of the second moment is {float(value):.4g}, "
                f"where draws give {drawn[kind].value:.4g} +- {drawn[kind].error:.1g}",
            )  # fmt: skip


def _checked_posterior(
    problem: Problem, z: Array, omega: Array, V: Array, point: int, again: str = ""
) -> tuple[Array, Array, Array, dict[str, Array], float]:
    """What a posterior says of latents ``z`` (n, P, C) in units of V.

    Returns
    -------
    error, shift : ndarray (n, P, C)
    claimed : ndarray (P,)
        The covariance.
    blind : dict of ndarray (n, P)
        Errors of the mean, and of the second moment where theory uses it, times a function of the label: their mean is 0.
    slack : float
        The stated error.
    """
    channel: Any = problem.channel
    n = len(z)
    y = _of(problem, "channel", "forward")(z, rng=monte_carlo_rng(f"consistency: labels{again}", point))
    if np.shape(y)[:1] != (n,):
        raise _fail(
            problem, "channel", f"forward must return one label per sample, ({n}, ...), got shape {np.shape(y)}"
        )
    sampled = not (offers(channel, "information") and offers(channel, "susceptibility"))
    rng = monte_carlo_rng("consistency: posterior", point)
    found = _of(problem, "channel", "posterior")(y, omega, V, second_moment=sampled, rng=rng)
    second = found.second_moment if sampled and isinstance(found, Posterior) else None
    try:
        checked_posterior(found, omega, second_moment=second is not None)
    except ValueError as error:
        raise _fail(problem, "channel", str(error)) from None
    for name in ("mean", "covariance", *(["second_moment"] if second is not None else [])):
        if not np.isfinite(getattr(found, name)).all():
            raise _fail(problem, "channel", f"posterior: {name} is not made of finite numbers")
    stated = _stated_error(found)
    if stated > MOST_STATED:
        raise _fail(
            problem,
            "channel",
            f"posterior: states an error of {stated:.2g} of its mean, where at most {MOST_STATED:g} is of use",
        )
    white = inverse_root(V, 0.0)
    claimed = np.diagonal(white @ np.asarray(found.covariance) @ white)
    left = white @ (z - found.mean)
    # Any function of the label will do: a bounded one of a random direction in which labels differ.
    flat = np.nan_to_num(np.asarray(y, dtype=float).reshape(n, -1))
    rng = monte_carlo_rng("consistency: directions", point)
    told = flat @ (rng.standard_normal(flat.shape[1]) / (flat.std(0) + TINY))
    told = np.tanh((told - told.mean()) / (told.std() + TINY))
    direction = rng.standard_normal(z.shape[2])
    seen = 1 + (omega @ direction) / np.std(omega @ direction, axis=0)  # a label without signs is told by omega
    blind = {"mean": (left @ direction) * told[:, None] * seen}
    if second is not None:
        full = np.einsum("npcpd,c,d->np", second, direction, direction)
        blind["second moment"] = ((z @ direction) ** 2 - full) * (1 + told + told**2)[:, None] / np.diagonal(V)
    return left, white @ (found.mean - omega), claimed, blind, stated


def _same_posterior_alone(problem: Problem, z: Array, omega: Array, V: Array, point: int) -> None:
    """What a posterior says of a sample must not depend on other samples, nor on what it was asked before."""
    channel: Any = problem.channel

    def mean(count: int, seed: str) -> tuple[Array, float]:
        y = channel.forward(z, rng=monte_carlo_rng("consistency: labels", point))
        rng = monte_carlo_rng(f"consistency: {seed}", point)
        found = channel.posterior(y[:count], omega[:count], V, rng=rng)
        return np.asarray(found.mean)[: len(z) // 2], _stated_error(found)

    (whole, stated), (again, _), (other, _) = (mean(len(z), seed) for seed in ("alone", "alone", "alone, otherwise"))
    part, error = mean(len(z) // 2, "alone")
    scale = math.sqrt(float(np.diagonal(V).max()))
    if np.abs(whole - again).max() > AGREEMENT * scale:
        raise _fail(problem, "channel", "posterior: asked twice with the same arguments, it gives two different means")
    # A sampled posterior draws other numbers for fewer samples.
    if (whole == other).all() and np.abs(whole - part).max() > (AGREEMENT + SCORES * max(stated, error)) * scale:
        raise _fail(problem, "channel", "posterior: the mean of a sample changes with the samples beside it")


def _stated_error(found: Any) -> float:
    """The numerical error that a posterior states; 0 where it states none."""
    error = getattr(found, "error", 0.0)
    return float(error) if math.isfinite(error) else 0.0


def _wrong_means(tests: list[tuple[str, Array, Array]], slack: float) -> dict[tuple[str, int], str]:
    """Means of samples (n, P) that are not what they should be (P,): by what is wrong, its direction, and the component."""
    found = {}
    for what, samples, target in tests:
        mean, sem = samples.mean(0), samples.std(0, ddof=1) / math.sqrt(len(samples))
        allowed = SUSPECT * sem + slack * (2 + np.abs(target)) + ROUNDING
        for a in range(len(target)):
            if not abs(mean[a] - target[a]) <= allowed[a]:
                sign = "-" if mean[a] < target[a] else "+"
                found[what + sign, a] = f"{mean[a]:.4g} +- {sem[a]:.1g} should be {target[a]:.4g}"
    return found


# -- priors ---------------------------------------------------------------------------------------------------------


def _check_prior(problem: Problem, Qhat: Host, at: str, point: int, seconds: float = PRIOR_SECONDS) -> None:
    model, P = problem.model, problem.components
    second, bottom = prior_moments(problem)
    spread = np.diagonal(second - bottom)
    root = symmetric_root(np.linalg.inv(Qhat))
    vectors = model.rank == "low"
    where = f"denoise at Qhat = {at}"

    def draws(dimension: int, again: str = "") -> tuple[dict[str, Array], Array]:
        """What must have mean zero, of every entry (n, P) or of every matrix, and the error that denoise states (draws, P)."""
        rows: dict[str, list[Array]] = {}
        stated = []
        for k in range(DRAWS):
            rng = monte_carlo_rng(f"consistency: signal{again}", point, k)
            signal = np.asarray(_of(problem, "prior", "sample")(rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            found = _denoised(problem, R, Qhat)
            mean = np.asarray(_of(problem, "prior", "mean")(P, dimension), dtype=float)
            gap, shift = signal - found.estimate, found.estimate - mean
            stated.append(np.diagonal(np.asarray(found.V)) / spread)
            if vectors:
                told = np.tanh(R / np.sqrt(np.diagonal(second))[:, None])
                products = {
                    LAW: gap * shift,
                    ERROR: gap * gap - spread[:, None] * stated[-1][:, None],
                    BLIND: gap,
                    TOLD: gap * told,
                }
                new = {what: (product / spread[:, None]).T for what, product in products.items()}
            else:
                inner = {LAW: model.inner(gap, shift), ERROR: model.inner(gap, gap)}
                new = {what: (np.diagonal(one) / spread)[None] for what, one in inner.items()}
                new[ERROR] = new[ERROR] - stated[-1]
            for what, values in new.items():
                rows.setdefault(what, []).append(values)
        return {what: np.concatenate(values) for what, values in rows.items()}, np.array(stated)

    def wrong(dimension: int, again: str = "") -> tuple[dict[str, str], Array]:
        found, stated = draws(dimension, again)
        allowance = RARE / (DRAWS * dimension) if vectors else FINITE_SIZE / dimension
        failed = {}
        for what, values in found.items():
            mean, sem = values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values))
            slack = (SUSPECT if vectors else SCORES) * sem + allowance
            for a in np.flatnonzero(~(np.abs(mean) <= slack)):
                sign = "-" if mean[a] < 0 else "+"
                failed[f"{what}{sign}{a}"] = f"{where}: {what}: off by {mean[a]:.4g} +- {sem[a]:.1g} of the variance"
        return failed, stated

    dimension = PER_COMPONENT if vectors else MATRIX
    while True:
        begin = time.perf_counter()
        failed, stated = wrong(dimension)
        if not vectors or dimension >= MOST_PER_COMPONENT or 4 * (time.perf_counter() - begin) > seconds:
            break
        dimension = min(4 * dimension, MOST_PER_COMPONENT)
    if failed:
        again = wrong(min(4 * dimension, MOST_PER_COMPONENT) if vectors else dimension, ", again")[0]
        for key in _in_both(failed, again):
            raise _fail(problem, "prior", again[key])
    claimed = np.diagonal(_overlap_with_consistent_shape(problem, Qhat, second)) / spread
    value, sem = np.mean(stated, axis=0), np.std(stated, axis=0, ddof=1) / math.sqrt(DRAWS)
    allowance = RARE / (DRAWS * dimension) if vectors else FINITE_SIZE / dimension
    slack = SCORES * sem + allowance + 3 * overlap_error_at(problem, Qhat)
    if not (np.abs(value - claimed) <= slack).all():
        raise _fail(
            problem, "prior",
            f"{where}: V of the map overlap is not that of denoise: {value.max():.4g} +- {sem.max():.1g}, not "
            f"{claimed.max():.4g}",
        )  # fmt: skip


def _denoised(problem: Problem, R: Array, Qhat: Array) -> Any:
    """What denoise returns, after a look at its form."""
    P = problem.components
    found = _of(problem, "prior", "denoise")(R, Qhat)
    for name, shape in (("estimate", R.shape), ("V", (P, P))):
        value = getattr(found, name, None)
        if not isinstance(value, np.ndarray) or value.shape != shape or not np.isfinite(value).all():
            got = value.shape if isinstance(value, np.ndarray) else type(value).__name__
            got = f"numbers that are not finite, of shape {got}" if got == shape else got
            raise _fail(problem, "prior", f"denoise: {name} must be finite numbers of shape {shape}, got {got}")
        if value.dtype.kind != "f" or value.dtype.itemsize < 4:
            raise _fail(problem, "prior", f"denoise: {name} must be float32 or float64, got {value.dtype}")
    return found


def _overlap_with_consistent_shape(problem: Problem, Qhat: Array, second: Array) -> Array:
    """V (P, P) of the prior's state-evolution map, after a look at its form."""
    P = problem.components
    found = _of(problem, "prior", "overlap")(Qhat[None, ...])
    for name in ("Q", "V"):
        value = np.asarray(getattr(found, name, np.nan), dtype=float)
        if value.shape != (1, P, P) or not np.isfinite(value).all():
            raise _fail(
                problem, "prior", f"overlap: {name} must be finite numbers of shape (1, {P}, {P}), got {value.shape}"
            )
    if not np.allclose(np.asarray(found.Q) + np.asarray(found.V), second, rtol=1e-6, atol=1e-9):
        raise _fail(problem, "prior", "overlap: Q + V must be the second moment of the signal")
    return np.asarray(found.V, dtype=float)[0]
