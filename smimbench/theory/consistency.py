r"""Monte Carlo test whether the posterior of a channel and the denoiser of a prior obey the Nishimori identities.

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

import numpy as np

from smimbench.derive import why_theory_only
from smimbench.interfaces import Array, Host
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.random_numbers import monte_carlo_rng
from smimbench.numerics.statistics import FEWEST_EFFECTIVE, effective_sample_size
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.information import inverse_map
from smimbench.theory.item_tests import (
    ROUNDING,
    SUSPECT_Z,
    ChannelTest,
    PriorTest,
    standard_error_of,
)
from smimbench.theory.types import NEGLIGIBLE

TESTED_KNOWN_SHARES = (0.3, 0.8, 0.999)
TESTED_QHAT_FACTORS = (0.5, 5.0, 500.0)
"""Where items are tested: the known share of the second moment for channels, Qhat in units of the prior's inverse variance for
priors. Little, much and nearly all; any such numbers do."""
REPORTED_SECONDS, REPORTED_POINTS = 4.0, 16
"""Time that tests at reported points may take, and how many are tested; doubled, more points are tested."""
TOKEN_SAMPLES, TOKEN_DIMENSION = 2000, 20
"""Size of the draw of inputs, where they may have any dimension; doubled, their variance is known 1.4 times better."""
LIKELIHOOD_LABELS = 1 << 16
"""Labels with which a likelihood is tested; doubled, errors 1.4 times smaller are found."""
SMALLEST_UNKNOWN_SHARE = 1e-3
"""Unknown share of the signal below which points are not tested, where labels hardly tell anything; doubled, fewer are."""


def require_consistent(
    problem: Problem,
    kinds: Sequence[str] | None = None,
    components: int | None = None,
    seed: int = 0,
    *,
    clock: Callable[[], float],
) -> None:
    """Test by random draws that the channel, prior and inputs of a problem are consistent with state evolution; ``kinds`` are
    the kinds of item to test, by default those from third parties, ``components`` the number of signal components for the
    prior. ``seed`` is that of the draws, and ``clock`` counts seconds.

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
        If a test fails; the message names item, test and numbers.
    """
    if kinds is None:
        _require_standard_inputs(problem, seed)
        kinds = [
            kind for kind in ("prior", "channel") if _is_third_party(problem, kind)
        ]
    if "prior" in kinds:
        prior_test = PriorTest(problem, clock, seed)
        _require_prior(prior_test, components or problem.components)
    if "channel" in kinds:
        require_likelihood(problem, seed)
        second_moment = prior_moments(problem)[0]
        channel_test = ChannelTest(problem, clock, seed)
        for draw_index, known_share in enumerate(TESTED_KNOWN_SHARES):
            channel_test.check(
                known_share * second_moment,
                (1 - known_share) * second_moment,
                draw_index,
            )


def require_likelihood(problem: Problem, seed: int = 0) -> None:
    r"""Test that ``log_likelihood`` describes the distribution of the labels y that ``forward`` draws from latents z: over these,
    the likelihood ratio ``p(y | z') / p(y | z)`` of shifted latents z' has mean 1. A failing test is repeated once with other
    draws (``suffix``); ``is_certain`` says that the mean does not rest on a few draws. ``seed`` is that of the draws.

    For any latents ``z`` and ``z'``, whatever the normalization in y,

    .. math:: E_{y \sim p(y | z)} [p(y | z') / p(y | z)] = 1,

    or less where some labels are impossible.

    Raises
    ------
    ProblemError
    """
    if problem.channel.log_likelihood is None:
        return
    channel_test = ChannelTest(problem, lambda: 0.0, seed)
    shape = (LIKELIHOOD_LABELS, problem.components, problem.model.sites)
    second_moment_root = symmetric_root(prior_moments(problem)[0])
    for suffix in ("", ", again"):
        rng = channel_test.rng(f"likelihood{suffix}")
        z = second_moment_root @ rng.standard_normal(shape)
        shift_direction = second_moment_root @ rng.choice([-1.0, 1.0], shape)
        y = channel_test.call(
            "forward", z, rng=channel_test.rng(f"labels of the likelihood{suffix}")
        )
        log_likelihood_at_z = _log_likelihood(channel_test, y, z)
        shift_step = 0.1
        if not np.isfinite(log_likelihood_at_z).all():
            raise channel_test.fail(
                "log_likelihood is -inf for the latents from which forward drew the label; it must be finite there"
            )
        # Lengthen the shift until likelihood ratios differ, but not so much that a few of them dominate the mean.
        for _ in range(5):
            log_ratio = (
                _log_likelihood(channel_test, y, z + shift_step * shift_direction)
                - log_likelihood_at_z
            )
            finite_log_ratios = log_ratio[np.isfinite(log_ratio)]
            log_ratio_deviation = (
                float(np.std(finite_log_ratios)) if len(finite_log_ratios) else math.inf
            )
            shift_step = min(shift_step / max(log_ratio_deviation, 0.1), 1.0)
        log_ratio = (
            _log_likelihood(channel_test, y, z + shift_step * shift_direction)
            - log_likelihood_at_z
        )
        likelihood_ratios = np.exp(np.minimum(log_ratio, 700))
        mean_ratio = float(likelihood_ratios.mean())
        mean_ratio_error = standard_error_of(likelihood_ratios)
        tolerance = SUSPECT_Z * mean_ratio_error + ROUNDING
        lower_bound = 1 - tolerance if np.isfinite(log_ratio).all() else 0.0
        is_certain = effective_sample_size(likelihood_ratios) >= FEWEST_EFFECTIVE
        if lower_bound <= mean_ratio <= 1 + tolerance or not is_certain:
            return
    raise channel_test.fail(
        "log_likelihood is not that of forward: the mean of p(y | z') / p(y | z) over labels y of z is "
        f"{mean_ratio:.4g} +- {mean_ratio_error:.1g} but should be 1; check the sign and the noise"
    )


def _log_likelihood(channel_test: ChannelTest, y: Array, z: Array) -> Host:
    """Call ``log_likelihood`` of the channel in ``channel_test`` on labels y and latents z, check that its n values, one per
    sample, are numbers or -inf, and return them.
    """
    with np.errstate(all="ignore"):
        log_likelihoods = np.asarray(
            channel_test.call("log_likelihood", y, z), dtype=float
        )
    has_expected_shape = log_likelihoods.shape == (len(z),)
    if not has_expected_shape or not (log_likelihoods < math.inf).all():
        returned = (
            "nan or inf" if has_expected_shape else f"shape {log_likelihoods.shape}"
        )
        raise channel_test.fail(
            f"log_likelihood must return numbers of shape ({len(z)},), or -inf, got {returned}"
        )
    return log_likelihoods


def _require_prior(prior_test: PriorTest, P: int) -> None:
    """Test the moments and the denoiser of the prior in ``prior_test`` for signals of P components, at matrices Qhat of
    information by which components are known to different degrees: multiples (``qhat_factor``) of the inverse prior variance,
    weighted by component.
    """
    signal = prior_test.call(
        "sample", prior_test.rng("signal, form"), P, prior_test.min_draws
    )
    # Test the form of denoise before the moments, which may be derived from it.
    prior_test.denoised(np.asarray(signal, dtype=float), np.eye(P))
    second_moment, prior_mean_overlap = (
        np.asarray(prior_test.call(name, P))
        for name in ("second_moment", "mean_overlap")
    )
    variance = second_moment - prior_mean_overlap
    inverse_variance = np.linalg.inv(variance)
    # Weights by which more is known of one component than of another.
    component_weights = np.diag(np.sqrt(1 + np.arange(P)))
    for draw_index, qhat_factor in enumerate(TESTED_QHAT_FACTORS):
        Qhat = qhat_factor * component_weights @ inverse_variance @ component_weights
        prior_test.check(Qhat, f"{qhat_factor:g} / variance", draw_index)
    unlearned_V = np.asarray(prior_test.call("overlap", 1e-9 * inverse_variance).V)
    if not np.allclose(unlearned_V, variance, rtol=0, atol=0.01 * variance.max()):
        raise prior_test.fail(
            "overlap: as Qhat goes to 0, the error V must go to second_moment - mean_overlap"
        )


def _require_standard_inputs(problem: Problem, seed: int) -> None:
    """Raise a ProblemError if Gaussian inputs of a third-party package do not have mean 0 and variance 1 in a random instance, as
    its remarks say; ``seed`` is that of the instance.
    """
    inputs = problem.inputs
    if not inputs.gaussian or not _is_third_party(problem, "inputs"):
        return
    if why_theory_only(problem.prior, problem.components):
        return
    dimension = inputs.shape[1] or TOKEN_DIMENSION
    alpha = problem.model.sample_ratio(TOKEN_SAMPLES, dimension)
    for remark in problem.instance(alpha, dimension, seed=seed).remarks:
        remark_key, _, message = remark.partition(": ")
        advice = (
            f"no theory is computed from it (details: 'smimbench check {inputs.name}')"
        )
        raise ProblemError(remark_key, f"{message}; {advice}")


def require_consistent_at(
    problem: Problem, points: Sequence[tuple[Host, Host]], *, clock: Callable[[], float]
) -> None:
    """Repeat the consistency test of channel and prior at some of the ``points``, fixed points (pairs of overlap Q and error V)
    that theory is about to report. A third-party prior is tested at the information Qhat that gives this overlap; ``clock``
    counts seconds.

    Raises
    ------
    ProblemError
    """
    item_tests = [
        item_test(problem, clock, share=0.25)
        for item_test in (ChannelTest, PriorTest)
        if _is_third_party(problem, item_test.kind)
    ]
    if not item_tests or not points:
        return
    second_moment, prior_mean_overlap = prior_moments(problem)
    second_moments = np.diagonal(second_moment)
    start_time = clock()
    # The order is random, so that a slow item is tested along the whole curve, too.
    random_order = monte_carlo_rng("consistency: points").permutation(len(points))
    for index in random_order[:REPORTED_POINTS].tolist():
        Q, V = points[index]
        unknown_shares = np.diagonal(V) / second_moments
        if clock() - start_time > REPORTED_SECONDS:
            return
        if not (unknown_shares >= -ROUNDING).all():
            raise item_tests[-1].fail(
                f"overlap gives a negative error V ({np.diagonal(V).min():.3g}); it must be >= 0 at every Qhat"
            )
        if unknown_shares.max() < SMALLEST_UNKNOWN_SHARE:
            continue
        # Test at a slightly smaller error: where an item goes wrong, a curve turns, and points stop just before.
        V = 0.98 * V
        learned_components = np.flatnonzero(
            np.diagonal(Q - prior_mean_overlap) > NEGLIGIBLE * second_moments
        )
        for item_test in item_tests:
            if isinstance(item_test, ChannelTest):
                tested_V = np.maximum(
                    V, SMALLEST_UNKNOWN_SHARE * np.diag(second_moments)
                )
                item_test.check(
                    second_moment - tested_V, tested_V, len(TESTED_KNOWN_SHARES) + index
                )
            elif len(learned_components) == problem.components:
                Qhat = inverse_map(problem, second_moment - V, V, learned_components)
                largest_qhat = f"{np.diagonal(Qhat).max():.3g}"
                item_test.check(Qhat, largest_qhat, len(TESTED_QHAT_FACTORS) + index)


def _is_third_party(problem: Problem, kind: str) -> bool:
    """Whether the problem's item of this ``kind`` (channel, prior, inputs) comes from a third-party package and signals can be
    drawn from it.
    """
    theory_only = kind == "prior" and why_theory_only(problem.prior, problem.components)
    return bool(problem.spec.get(kind, {}).get("distribution")) and not theory_only
