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
    check()


def normal(x: float, variance: float = 1.0) -> float:
    return math.exp(-x * x / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def sparse_error(rho: float, q: float) -> float:
    """Mean posterior variance of one entry, by quadrature over what is observed."""

    def density(r: float) -> float:
        slab, spike = rho * normal(r, 1 / rho + 1 / q), (1 - rho) * normal(r, 1 / q)
        share, mean, variance = slab / (slab + spike), r * q / (q + rho), 1 / (q + rho)
        return (slab + spike) * (share * variance + share * (1 - share) * mean**2)

    width, reach = 1 / math.sqrt(q), 10 * math.sqrt(1 / rho + 1 / q)
    ends = sorted({0.0, *(min(k * width, reach) for k in (1, 2, 3, 4, 6, 9)), reach})
    return 2 * sum(
        quad(density, a, b, epsabs=0, epsrel=1e-9)[0]
        for a, b in itertools.pairwise(ends)
    )


@pytest.mark.parametrize("rho", [0.05, 0.4])
@pytest.mark.parametrize("q", [1e-3, 0.7, 30.0, 1e4, 1e7])
def test_sparse_error_by_quadrature(rho, q):
    found = GaussBernoulli(rho=rho).overlap(np.array([[q]]))
    assert found.V[0, 0] == pytest.approx(sparse_error(rho, q), rel=1e-6)


@pytest.mark.parametrize("q", [1e-3, 0.7, 5.0, 30.0])
def test_binary_error_by_quadrature(q):
    def density(x: float) -> float:
        return normal(x) / math.cosh(min(q + math.sqrt(q) * x, 300)) ** 2

    wanted = quad(density, -14, 12, points=[-math.sqrt(q)], epsrel=1e-9)[0]
    assert Rademacher().overlap(np.array([[q]])).V[0, 0] == pytest.approx(
        wanted, rel=1e-5
    )


@pytest.mark.parametrize("prior", [GaussBernoulli(rho=0.3), Rademacher()])
def test_shared_information_by_sampling(prior):
    """Two components whose noise is correlated: importance sampling of the prior, column by column."""
    Qhat = np.array([[1.0, 0.6], [0.6, 2.0]])
    rng = np.random.default_rng(4)
    R = rng.standard_normal((2, 6))
    w = prior.sample(rng, 2, 200_000)
    found = prior.denoise(R, Qhat)
    total = np.zeros((2, 2))
    for k in range(6):
        gap = R[:, k : k + 1] - w
        weight = np.exp(-np.sum(gap * (Qhat @ gap), axis=0) / 2)
        weight /= weight.sum()
        mean = w @ weight
        assert found.estimate[:, k] == pytest.approx(mean, abs=0.03)
        total += ((w - mean[:, None]) * weight) @ (w - mean[:, None]).T / 6
    assert np.abs(found.V - total).max() < 0.03


def test_shared_information_in_state_evolution():
    """The map for correlated noise is what simulation gives, and that of the mean over draws of denoise's own V."""
    prior, model = (
        Rademacher(),
        get_registry().get("model", "sequence-multi-index").item(tokens=1),
    )
    Qhat = np.array([[1.0, 0.6], [0.6, 2.0]])
    simulated = SimulatedPrior(_Bare(prior), model).overlap(Qhat)
    assert np.abs(prior.overlap(Qhat).V - simulated.V).max() < 5e-3


class _Bare:
    """The least a prior can be."""

    name = "bare"

    def __init__(self, prior):
        self.sample, self.denoise = prior.sample, prior.denoise


def test_compressed_sensing():
    """Fixed points have ``alpha = Qhat V(Qhat)``: its maximum ends the uninformed branch, its limit is rho."""
    rho = 0.4
    problem = smimbench.Problem(
        MODEL, "linear", {"name": "gauss-bernoulli", "rho": rho}
    )
    best = minimize_scalar(
        lambda x: -math.exp(x) * sparse_error(rho, math.exp(x)),
        bounds=(0, 9),
        method="bounded",
        options={"xatol": 1e-4},
    )
    found = thresholds(problem)
    assert found.late_recovery.value == pytest.approx(-best.fun, abs=1e-4)
    assert found.late_recovery.value == pytest.approx(0.589, abs=1e-3)
    assert found.perfect_recovery.value == pytest.approx(rho, abs=1e-4)
    assert solve(problem, [0.62])[0].mse[0] < 1e-6
    assert solve(problem, [0.55])[0].mse[0] > 0.1


# -- the binary perceptron, with a channel of this test's own -------------------------------------------------------


class _Signs(Channel):
    """Labels sign(z): information by quadrature, nothing else that theory needs."""

    name, version, reference, symmetry, components = "signs", 1, "none", "none", 1
    capabilities = smimbench.Capabilities()

    def forward(self, z, *, rng=None):
        return np.sign(z)

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        raise NotImplementedError

    def information(self, Q, V):
        V = np.maximum(V, 1e-300)
        spread = np.sqrt(Q / V)[..., None]
        u, step = np.linspace(-12, 12, 601, retstep=True)
        narrow, wide = np.minimum(spread, 1), np.maximum(spread, 1)
        law = np.exp(-((u / wide) ** 2) / 2) / (math.sqrt(2 * math.pi) * wide)
        x = narrow * u
        value = (
            step
            * np.sum(law * np.exp(-x * x - log_ndtr(x) - log_ndtr(-x)), axis=-1)
            / (2 * math.pi)
        )
        return smimbench.Uncertain(value / V, 0.0, "quadrature")


def entropy(alpha: float) -> float:
    """Free entropy of the uninformed fixed point of the binary perceptron, minus that of the signal itself (-log 2)."""

    def over(function) -> float:
        return quad(lambda x: normal(x) * function(x), -12, 12, limit=200)[0]

    q = 0.5
    for _ in range(500):
        ratio = math.sqrt(q / (1 - q))
        qhat = (
            alpha
            / (1 - q)
            * over(lambda x, r=ratio: math.exp(-r * r * x * x - log_ndtr(r * x)))
            / math.pi
        )
        last, q = q, over(lambda x, h=qhat: math.tanh(h + math.sqrt(h) * x))
        if abs(q - last) < 1e-7:
            break
    ratio = math.sqrt(q / (1 - q))
    labels = 2 * over(lambda x: math.exp(log_ndtr(ratio * x)) * log_ndtr(ratio * x))
    signal = over(
        lambda x: np.logaddexp(math.sqrt(qhat) * x + qhat, -math.sqrt(qhat) * x - qhat)
    )
    return signal - qhat / 2 - q * qhat / 2 + alpha * labels


def test_binary_perceptron():
    """Perfect recovery from 1.493 by message passing; from 1.245, where the entropy of all other solutions is negative."""
    problem = smimbench.Problem(MODEL, "linear", "rademacher")
    problem.channel = _Signs()
    found = thresholds(problem)
    assert found.late_recovery.value == pytest.approx(1.493, abs=1e-3)
    assert found.perfect_recovery.value == 0
    possible = brentq(entropy, 1.23, 1.26, xtol=1e-4)
    assert possible == pytest.approx(1.245, abs=1e-3)
    assert found.hard_phase.ends == pytest.approx([possible, 1.493], abs=1e-3)


@pytest.mark.parametrize("rho", [0.0, 1.5, math.nan])
def test_bad_parameters_are_named(rho):
    with pytest.raises(smimbench.ParameterError, match="rho"):
        GaussBernoulli(rho=rho)


def test_too_many_components():
    with pytest.raises(ValueError, match="at most 8"):
        Rademacher().denoise(np.zeros((9, 3)), np.eye(9))


@pytest.mark.parametrize("name", ["compressed_sensing", "spectrum"])
def test_suites_can_be_read(name):
    suite = smimbench.load_suite(FOLDER / f"{name}.toml")
    assert len(suite.plans) == 1


@pytest.mark.parametrize(
    ("tokens", "rho"), [(2, 0.3913), (2, 0.2271), (3, 0.31), (4, 0.2687)]
)
def test_rounding_of_small_overlaps_is_no_spinodal(tokens, rho):
    """One layer of attention: weak recovery at 1/(M(M+1)), and counting makes the informed branch optimal from rho/M on.

    An overlap of 1e-9 is 1 - V with seven digits, and the curve is flat there: it seemed to turn with each of them.
    """
    model = {"name": "sequence-multi-index", "tokens": tokens}
    found = thresholds(
        smimbench.Problem(model, "softmax", {"name": "gauss-bernoulli", "rho": rho})
    ).document()
    weak = found["weak_recovery"]
    assert abs(weak["value"] - 1 / (tokens * (tokens + 1))) <= 4 * weak["error"] < 1e-8
    informed = found["perfect_recovery"]["informed"]
    assert abs(informed["value"] - rho / tokens) <= 2 * informed["error"]
    assert found["spinodal"] == informed
    assert (
        abs(found["information_theoretic"]["value"] - rho / tokens)
        <= 4 * found["information_theoretic"]["error"]
    )
