"""Gauss-Bernoulli and Rademacher signals: the published checks, brute force, and the thresholds of the literature."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr
from smimbench_sparse import GaussBernoulli, Rademacher

import smimbench
from smimbench.derive.derived_prior import SimulatedPrior
from smimbench.interfaces import Channel
from smimbench.registry import get_registry
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve, thresholds

MODEL = {"name": "sequence-multi-index", "tokens": 1}
FOLDER = Path(__file__).resolve().parent.parent


@parametrize_with_checks([GaussBernoulli(), GaussBernoulli(rho=0.9), Rademacher()])
def test_contract(check):
    """Both priors pass every published check."""
    check()


def normal(x: float, variance: float = 1.0) -> float:
    """Density at x of the normal distribution of this variance and mean 0."""
    return math.exp(-x * x / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def sparse_error(rho: float, q: float) -> float:
    """Mean posterior variance of a Gauss-Bernoulli entry of density rho observed with information q, by quadrature over the
    observation r.
    """

    def weighted_variance(r: float) -> float:
        """Density of the observation r times the posterior variance there, with ``slab`` and ``spike`` the densities of r for
        nonzero and zero entries.
        """
        slab, spike = rho * normal(r, 1 / rho + 1 / q), (1 - rho) * normal(r, 1 / q)
        slab_probability, mean, variance = (
            slab / (slab + spike),
            r * q / (q + rho),
            1 / (q + rho),
        )
        return (slab + spike) * (
            slab_probability * variance
            + slab_probability * (1 - slab_probability) * mean**2
        )

    noise_deviation, largest_r = 1 / math.sqrt(q), 10 * math.sqrt(1 / rho + 1 / q)
    ends = sorted(
        {
            0.0,
            *(
                min(multiple * noise_deviation, largest_r)
                for multiple in (1, 2, 3, 4, 6, 9)
            ),
            largest_r,
        }
    )
    return 2 * sum(
        quad(weighted_variance, lower_end, upper_end, epsabs=0, epsrel=1e-9)[0]
        for lower_end, upper_end in itertools.pairwise(ends)
    )


@pytest.mark.parametrize("rho", [0.05, 0.4])
@pytest.mark.parametrize("q", [1e-3, 0.7, 30.0, 1e4, 1e7])
def test_sparse_error_by_quadrature(rho, q):
    """The error of a Gauss-Bernoulli entry agrees with quadrature, for density rho and information q."""
    overlap = GaussBernoulli(rho=rho).overlap(np.array([[q]]))
    assert overlap.V[0, 0] == pytest.approx(sparse_error(rho, q), rel=1e-6)


@pytest.mark.parametrize("q", [1e-3, 0.7, 5.0, 30.0])
def test_binary_error_by_quadrature(q):
    """The error of a binary entry agrees with quadrature, for information q."""

    def weighted_variance(x: float) -> float:
        """Density of the noise x times the posterior variance there."""
        return normal(x) / math.cosh(min(q + math.sqrt(q) * x, 300)) ** 2

    expected_error = quad(
        weighted_variance, -14, 12, points=[-math.sqrt(q)], epsrel=1e-9
    )[0]
    assert Rademacher().overlap(np.array([[q]])).V[0, 0] == pytest.approx(
        expected_error, rel=1e-5
    )


@pytest.mark.parametrize("prior", [GaussBernoulli(rho=0.3), Rademacher()])
def test_shared_information_by_sampling(prior):
    """The estimate of two components observed with correlated noise, of information Qhat, agrees with importance sampling of the
    prior (w), column by column of the observation R.
    """
    Qhat = np.array([[1.0, 0.6], [0.6, 2.0]])
    rng = np.random.default_rng(4)
    R = rng.standard_normal((2, 6))
    w = prior.sample(rng, 2, 200_000)
    denoised = prior.denoise(R, Qhat)
    sampled_V = np.zeros((2, 2))
    for column in range(6):
        noise = R[:, column : column + 1] - w
        weight = np.exp(-np.sum(noise * (Qhat @ noise), axis=0) / 2)
        weight /= weight.sum()
        mean = w @ weight
        assert denoised.estimate[:, column] == pytest.approx(mean, abs=0.03)
        sampled_V += ((w - mean[:, None]) * weight) @ (w - mean[:, None]).T / 6
    assert np.abs(denoised.V - sampled_V).max() < 0.03


def test_shared_information_in_state_evolution():
    """The state-evolution map for correlated noise agrees with one that is simulated with the prior's own draws and denoiser."""
    prior, model = (
        Rademacher(),
        get_registry().get("model", "sequence-multi-index").item(tokens=1),
    )
    Qhat = np.array([[1.0, 0.6], [0.6, 2.0]])
    simulated = SimulatedPrior(_Bare(prior), model).overlap(Qhat)
    assert np.abs(prior.overlap(Qhat).V - simulated.V).max() < 5e-3


class _Bare:
    """The least a prior can be: draws and a denoiser."""

    name = "bare"

    def __init__(self, prior):
        """Take draws and denoiser from another prior."""
        self.sample, self.denoise = prior.sample, prior.denoise


def test_compressed_sensing():
    """Fixed points of compressed sensing have ``alpha = Qhat V(Qhat)``: the maximum of this function ends the uninformed branch,
    its limit is the density rho.
    """
    rho = 0.4
    problem = smimbench.Problem(
        MODEL, "linear", {"name": "gauss-bernoulli", "rho": rho}
    )
    largest_alpha = minimize_scalar(
        lambda log_Qhat: -math.exp(log_Qhat) * sparse_error(rho, math.exp(log_Qhat)),
        bounds=(0, 9),
        method="bounded",
        options={"xatol": 1e-4},
    )
    recovery_thresholds = thresholds(problem)
    assert recovery_thresholds.late_recovery.value == pytest.approx(
        -largest_alpha.fun, abs=1e-4
    )
    assert recovery_thresholds.late_recovery.value == pytest.approx(0.589, abs=1e-3)
    assert recovery_thresholds.perfect_recovery.value == pytest.approx(rho, abs=1e-4)
    assert solve(problem, [0.62])[0].mse[0] < 1e-6
    assert solve(problem, [0.55])[0].mse[0] > 0.1


# -- the binary perceptron, with a channel of this test's own -------------------------------------------------------


class _Signs(Channel):
    """Channel of labels sign(z) with information by quadrature, and nothing else that theory needs."""

    name, version, reference, symmetry, components = "signs", 1, "none", "none", 1
    capabilities = smimbench.Capabilities()

    def forward(self, z, *, rng=None):
        """Labels of the latents z."""
        return np.sign(z)

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        """Posterior of the latents N(omega, V) given the labels y, which theory does not need here."""
        raise NotImplementedError

    def information(self, Q, V):
        """Fisher information of the labels at overlap Q and error V, by quadrature (``nodes``) over ``u = omega / sqrt(V)`` with
        omega the latent's mean; ``deviation_ratio`` is ``sqrt(Q / V)``.
        """
        V = np.maximum(V, 1e-300)
        deviation_ratio = np.sqrt(Q / V)[..., None]
        nodes, step = np.linspace(-12, 12, 601, retstep=True)
        small_ratio, large_ratio = (
            np.minimum(deviation_ratio, 1),
            np.maximum(deviation_ratio, 1),
        )
        density = np.exp(-((nodes / large_ratio) ** 2) / 2) / (
            math.sqrt(2 * math.pi) * large_ratio
        )
        u = small_ratio * nodes
        scaled_information = (
            step
            * np.sum(density * np.exp(-u * u - log_ndtr(u) - log_ndtr(-u)), axis=-1)
            / (2 * math.pi)
        )
        return smimbench.Uncertain(scaled_information / V, 0.0, "quadrature")


def entropy(alpha: float) -> float:
    """Free entropy at sample ratio alpha of the uninformed fixed point (overlap q, information qhat) of the binary perceptron,
    minus that of the signal itself (-log 2); x is a standard normal number, ``ratio`` (r) is ``sqrt(q / (1 - q))``, h is qhat.
    """

    def gaussian_mean(function) -> float:
        """Mean of a function of a standard normal number x."""
        return quad(lambda x: normal(x) * function(x), -12, 12, limit=200)[0]

    q = 0.5
    for _ in range(500):
        ratio = math.sqrt(q / (1 - q))
        qhat = (
            alpha
            / (1 - q)
            * gaussian_mean(
                lambda x, r=ratio: math.exp(-r * r * x * x - log_ndtr(r * x))
            )
            / math.pi
        )
        previous_q, q = (
            q,
            gaussian_mean(lambda x, h=qhat: math.tanh(h + math.sqrt(h) * x)),
        )
        if abs(q - previous_q) < 1e-7:
            break
    ratio = math.sqrt(q / (1 - q))
    label_entropy = 2 * gaussian_mean(
        lambda x: math.exp(log_ndtr(ratio * x)) * log_ndtr(ratio * x)
    )
    signal_entropy = gaussian_mean(
        lambda x: np.logaddexp(math.sqrt(qhat) * x + qhat, -math.sqrt(qhat) * x - qhat)
    )
    return signal_entropy - qhat / 2 - q * qhat / 2 + alpha * label_entropy


def test_binary_perceptron():
    """The binary perceptron is learned perfectly above alpha = 1.493 by message passing, and above 1.245 in principle, where the
    entropy of all other solutions is negative.
    """
    problem = smimbench.Problem(MODEL, "linear", "rademacher")
    problem.channel = _Signs()
    recovery_thresholds = thresholds(problem)
    assert recovery_thresholds.late_recovery.value == pytest.approx(1.493, abs=1e-3)
    assert recovery_thresholds.perfect_recovery.value == 0
    alpha_of_zero_entropy = brentq(entropy, 1.23, 1.26, xtol=1e-4)
    assert alpha_of_zero_entropy == pytest.approx(1.245, abs=1e-3)
    assert recovery_thresholds.hard_phase.ends == pytest.approx(
        [alpha_of_zero_entropy, 1.493], abs=1e-3
    )


@pytest.mark.parametrize("rho", [0.0, 1.5, math.nan])
def test_bad_parameters_are_named(rho):
    """An invalid density rho raises an error that names it."""
    with pytest.raises(smimbench.ParameterError, match="rho"):
        GaussBernoulli(rho=rho)


def test_too_many_components():
    """More components than the prior supports raise an error."""
    with pytest.raises(ValueError, match="at most 8"):
        Rademacher().denoise(np.zeros((9, 3)), np.eye(9))


@pytest.mark.parametrize("name", ["compressed_sensing", "spectrum"])
def test_suites_can_be_read(name):
    """The suites of this package can be read."""
    suite = smimbench.load_suite(FOLDER / f"{name}.toml")
    assert len(suite.plans) == 1


@pytest.mark.parametrize(
    ("tokens", "rho"), [(2, 0.3913), (2, 0.2271), (3, 0.31), (4, 0.2687)]
)
def test_rounding_of_small_overlaps_is_no_spinodal(tokens, rho):
    """Thresholds of one layer of attention on M tokens: weak recovery at 1/(M(M+1)), and counting equations makes the informed
    branch optimal from rho/M on.

    An overlap of 1e-9 is 1 - V with seven digits, and the curve is flat there: it seemed to turn with each of them.
    """
    model = {"name": "sequence-multi-index", "tokens": tokens}
    threshold_document = thresholds(
        smimbench.Problem(model, "softmax", {"name": "gauss-bernoulli", "rho": rho})
    ).document()
    weak_recovery = threshold_document["weak_recovery"]
    assert (
        abs(weak_recovery["value"] - 1 / (tokens * (tokens + 1)))
        <= 4 * weak_recovery["error"]
        < 1e-8
    )
    informed = threshold_document["perfect_recovery"]["informed"]
    assert abs(informed["value"] - rho / tokens) <= 2 * informed["error"]
    assert threshold_document["spinodal"] == informed
    assert (
        abs(threshold_document["information_theoretic"]["value"] - rho / tokens)
        <= 4 * threshold_document["information_theoretic"]["error"]
    )
