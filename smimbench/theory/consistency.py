r"""A quick test of somebody else's channel and prior before theory is made of them: whether the posterior and the
denoiser obey the Nishimori identities on a few draws.

State evolution believes what a posterior and a denoiser say. On the Nishimori line they can be tested by themselves: with
``omega ~ N(0, Q)``, ``z ~ N(omega, V)`` and ``y`` the label of ``z``, the posterior mean ``m`` fulfils

.. math:: E[m (z - m)^T] = 0, \qquad E[(z - m)(z - m)^T] = E[\mathrm{Cov}(z | y)],

also weighted with any function of the label, and the denoiser the same with the signal in
place of ``z``. This is quicker and coarser than the published checks
(``smimbench check NAME``): it finds an error of a few per cent.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Posterior, member, offers
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.problem.problem import ProblemError

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["require_consistent"]

KNOWN = (0.3, 0.8, 0.999)
"""Parts of the second moment that are known where channels are tested: little, much, and nearly all. Any such numbers do."""
INFORMATION = (0.5, 5.0, 500.0)
"""Qhat, in units of the prior's inverse variance, at which priors are tested: little, much, nearly all. Any such numbers do."""
MOST_STATED = 0.1
"""Largest error that a posterior may state of its mean, in units of V; doubled, what is 10% off passes if it says so."""
FEW, AGREEMENT = 8, 1e-6
"""Samples that are asked again without the others, and how far their means may be off then, in units of V. Doubled: no change."""
SECONDS = 0.25
"""Time that the samples of one test may take; doubled, errors 1.4 times smaller are found."""
FEWEST, MOST = 64, 1 << 16
"""Samples of a channel, whatever the time; doubled, see ``SECONDS``."""
PER_COMPONENT, MATRIX = 2000, 240
"""D of the draws of a prior: vectors, matrices. Doubled, smaller errors are found and it takes 2 or 8 times as long."""
DRAWS = 10
"""Draws of a prior, whose spread is the error; doubled, errors 1.4 times smaller are found. With five, chance alone is beyond
``SCORES`` of such errors once in 250 comparisons; with ten, once in 5,000."""
RARE = 3.0
"""Entries of all draws of a vector that chance may leave out: values of a discrete prior that are hardly ever confused have a
small error, and draws that have not met it a spread of 0. Doubled, errors twice as rare pass."""
SCORES = 6.0
"""Standard errors that chance is allowed; doubled, errors twice as large pass."""
ROUNDING = 1e-9
"""Differences below this are rounding; doubled, a bias of that size passes."""
TINY = 1e-300
"""Added to spreads that may be zero; any number too small to be a spread does."""
FINITE_SIZE = 3.0
"""Allowance for matrices of finite size, in units of 1 / D; doubled, an error of 2% passes instead of 1%."""


def require_consistent(problem: Problem) -> None:
    """Test the channel and the prior of a problem, as far as they are not smimbench's own.

    Raises
    ------
    ProblemError
        In one line: which item, which test, what was found.
    """
    if problem.spec["channel"].get("distribution"):
        _check_channel(problem)
    if problem.spec["prior"].get("distribution") and not member(problem.prior, "theory_only"):
        _check_prior(problem)


def _fail(problem: Problem, kind: str, what: str) -> ProblemError:
    name = problem.spec[kind]["name"]
    return ProblemError(f"{kind} {name!r}", f"{what}; no theory is made of it ('smimbench check {name}' says more)")


# -- channels -------------------------------------------------------------------------------------------------------


def _check_channel(problem: Problem) -> None:
    P, C = problem.components, problem.model.sites
    second = np.asarray(problem.prior.second_moment(P), dtype=float)
    for point, known in enumerate(KNOWN):
        Q, V = known * second, (1 - known) * second
        count, spent = FEWEST, 0.0
        while True:
            begin = time.perf_counter()
            normal = monte_carlo_rng("consistency: latents", point).standard_normal((2, count, P, C))
            omega = symmetric_root(Q) @ normal[0]
            z = omega + symmetric_root(V) @ normal[1]
            error, shift, claimed, blind, slack = _checked_posterior(problem, z, omega, V, point)
            spent = time.perf_counter() - begin
            if count >= MOST or 4 * spent > SECONDS:
                break
            count = min(MOST, 4 * count)
        zero = np.zeros(P)
        tests = [
            ("the mean is not that of the law its labels come from", (shift * error).mean(-1), zero),
            ("its covariance is not that of its own errors", (error * error).mean(-1), claimed),
            *((f"its {what} overlooks what the label tells", rows, zero) for what, rows in blind.items()),
        ]
        _check_means(problem, tests, slack, f"posterior at V = {1 - known:.1g} of the second moment")
        _same_posterior_alone(problem, z[:FEW], omega, V, point)


def _checked_posterior(
    problem: Problem, z: Array, omega: Array, V: Array, point: int
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
    y = channel.forward(z, rng=monte_carlo_rng("consistency: labels", point))
    if np.shape(y)[:1] != (n,):
        raise _fail(
            problem, "channel", f"forward must return one label per sample, ({n}, ...), got shape {np.shape(y)}"
        )
    sampled = not (offers(channel, "information") and offers(channel, "susceptibility"))
    rng = monte_carlo_rng("consistency: posterior", point)
    found = channel.posterior(y, omega, V, second_moment=sampled, rng=rng)
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


def _check_means(problem: Problem, tests: list[tuple[str, Array, Array]], slack: float, where: str) -> None:
    """Whether the means of samples (n, P) are what they should be (P,); each test says what is wrong if they are not."""
    for what, samples, target in tests:
        mean, sem = samples.mean(0), samples.std(0, ddof=1) / math.sqrt(len(samples))
        allowed = SCORES * sem + slack * (2 + np.abs(target)) + ROUNDING
        worst = int(np.argmax(np.abs(mean - target) - allowed))
        if not abs(mean[worst] - target[worst]) <= allowed[worst]:
            of = f" of component {worst + 1}" if len(target) > 1 else ""
            raise _fail(
                problem, "channel",
                f"{where}: {what}{of}: {mean[worst]:.4g} +- {sem[worst]:.1g} should be {target[worst]:.4g}",
            )  # fmt: skip


# -- priors ---------------------------------------------------------------------------------------------------------


def _check_prior(problem: Problem) -> None:
    model, prior, P = problem.model, problem.prior, problem.components
    dimension = MATRIX if model.rank == "extensive" else PER_COMPONENT
    second = np.asarray(prior.second_moment(P), dtype=float)
    spread = second - np.asarray(prior.mean_overlap(P), dtype=float)
    for point, ratio in enumerate(INFORMATION):
        Qhat = ratio * np.linalg.inv(spread)
        root = symmetric_root(np.linalg.inv(Qhat))
        claimed = _overlap_with_consistent_shape(problem, Qhat, second)
        errors, shifts, stated = [], [], []
        for k in range(DRAWS):
            rng = monte_carlo_rng("consistency: signal", point, k)
            signal = np.asarray(prior.sample(rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            found = prior.denoise(R, Qhat)
            for name, shape in (("estimate", signal.shape), ("V", (P, P))):
                value = getattr(found, name, None)
                if not isinstance(value, np.ndarray) or value.shape != shape or not np.isfinite(value).all():
                    got = value.shape if isinstance(value, np.ndarray) else type(value).__name__
                    raise _fail(problem, "prior", f"denoise: {name} must be finite numbers of shape {shape}, got {got}")
                if value.dtype.kind != "f" or value.dtype.itemsize < 4:
                    raise _fail(problem, "prior", f"denoise: {name} must be float32 or float64, got {value.dtype}")
            mean = np.asarray(prior.mean(P, dimension), dtype=float)
            difference, shift = signal - found.estimate, found.estimate - mean
            errors.append(np.diagonal(model.inner(difference, difference)) / np.diagonal(spread))
            shifts.append(np.diagonal(model.inner(difference, shift)) / np.diagonal(spread))
            stated.append(np.diagonal(np.asarray(found.V)) / np.diagonal(spread))
        allowance = FINITE_SIZE / dimension if model.rank == "extensive" else RARE / (DRAWS * dimension)
        where = f"denoise at Qhat = {ratio:g} / variance"
        for what, rows, target in (
            ("the estimate is not the mean of the law it was drawn from", shifts, np.zeros(P)),
            ("the error V that it returns is not that of its estimates", errors, np.mean(stated, axis=0)),
            ("V of the map overlap is not that of denoise", stated, np.diagonal(claimed) / np.diagonal(spread)),
        ):
            value, sem = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / math.sqrt(DRAWS)
            slack = SCORES * sem + allowance + 3 * float(member(prior, "overlap_error", 0.0))
            if not (np.abs(value - target) <= slack).all():
                raise _fail(
                    problem, "prior", f"{where}: {what}: {value.max():.4g} +- {sem.max():.1g}, not {target.max():.4g}"
                )


def _overlap_with_consistent_shape(problem: Problem, Qhat: Array, second: Array) -> Array:
    """V (P, P) of the prior's state-evolution map, after a look at its form."""
    P = problem.components
    found = problem.prior.overlap(Qhat[None, ...])
    for name in ("Q", "V"):
        value = np.asarray(getattr(found, name, np.nan), dtype=float)
        if value.shape != (1, P, P) or not np.isfinite(value).all():
            raise _fail(
                problem, "prior", f"overlap: {name} must be finite numbers of shape (1, {P}, {P}), got {value.shape}"
            )
    if not np.allclose(np.asarray(found.Q) + np.asarray(found.V), second, rtol=1e-6, atol=1e-9):
        raise _fail(problem, "prior", "overlap: Q + V must be the second moment of the signal")
    return np.asarray(found.V, dtype=float)[0]
