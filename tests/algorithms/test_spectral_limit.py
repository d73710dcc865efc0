"""Spectral estimates against dense matrices, closed forms of the theory, and simulation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import k0, k1
from scipy.stats import chi2
from smimbench_attention.algorithms.spectral import (
    Spectral,
    one_step_estimate,
    one_step_theory,
)
from smimbench_attention.algorithms.spectral import limit as spectral
from smimbench_attention.algorithms.spectral.eigenvectors import (
    SEARCHED_EIGENVALUES,
    spectral_estimate,
)
from smimbench_attention.algorithms.spectral.limit import (
    direction_mode,
    joint_eigenvector_mode,
    spectral_theory,
)

from smimbench.backend.device import Backend, get_backend
from smimbench.interfaces import Capabilities, Data, Posterior
from smimbench.problem.problem import Problem
from tests.helpers import attention, sequence


def data_of(problem, alpha, dimension, replicate=0, backend: Backend | None = None):
    instance = problem.instance(alpha, dimension, replicate)
    return instance, instance.data(backend or get_backend())


class TwoDirections:
    """What every channel y = f(z_1 z_2) for one token says of itself."""

    version = 1
    reference = "test"
    capabilities = Capabilities(models=("sequence-multi-index",))
    symmetry = "permutations-common-sign"
    components = 2


class Pair(TwoDirections):
    """One with exact second moments at omega = 0, V = I."""

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        assert not np.any(omega)
        assert np.array_equal(V, np.eye(2))
        own, cross = self.moments(np.asarray(y)[:, 0])
        moment = np.zeros((len(y), 2, 1, 2, 1))
        moment[:, 0, 0, 0, 0] = moment[:, 1, 0, 1, 0] = own
        moment[:, 0, 0, 1, 0] = moment[:, 1, 0, 0, 0] = cross
        return Posterior(np.zeros_like(omega), np.eye(2), moment)


class Product(Pair):
    name = "product"

    def forward(self, z, *, rng=None):
        return z[:, 0, :] * z[:, 1, :]

    def moments(self, y):
        return np.abs(y) * k1(np.abs(y)) / k0(np.abs(y)), y


class SignProduct(Pair):
    name = "sign-product"

    def forward(self, z, *, rng=None):
        return np.sign(z[:, 0, :] * z[:, 1, :])

    def moments(self, y):
        return np.ones_like(y), y * 2 / np.pi


def pair_problem(channel):
    problem = sequence()
    problem.channel, problem.components = channel, 2
    problem.model = type(problem.model)(tokens=1)
    problem.spec = {**problem.spec, "channel": {"name": channel.name}}
    return problem


def test_products_emerge_where_the_literature_says():
    # F = E (E[z^2 | y] - 1)^2 + E y^2 by an independent integral over the density K_0(|y|) / pi of a product.
    def share(y):
        return (2 / np.pi) * k0(y) * (((y * k1(y) / k0(y)) - 1) ** 2 + y * y)

    F = quad(share, 0, 50, limit=200)[0]
    assert pytest.approx(0.59375, abs=2e-5) == 1 / F
    found = spectral_theory(pair_problem(Product()), 1.0)
    assert [mode.signal_strength for mode in found.modes] == pytest.approx(
        [F, F], rel=0.02
    )
    found = spectral_theory(pair_problem(SignProduct()), 1.0)
    assert [mode.signal_strength for mode in found.modes] == pytest.approx(
        [4 / np.pi**2] * 2, rel=1e-10
    )


@pytest.mark.parametrize(
    ("channel", "threshold"), [(Product(), 0.59375), (SignProduct(), np.pi**2 / 4)]
)
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_nothing_is_claimed_below_the_transition(channel, threshold, kind):
    problem = pair_problem(channel)
    below = spectral_theory(problem, 0.95 * threshold, kind)
    above = spectral_theory(problem, 1.3 * threshold, kind)
    assert below.squared_cosine.max() == 0
    assert list(below.mse) == [1, 1]
    assert above.squared_cosine.min() > 0.02
    # The directions are sum and difference, so both components are found equally well.
    assert np.allclose(
        np.abs(np.stack([mode.direction for mode in above.modes])), np.sqrt(0.5)
    )


def test_both_components_of_a_product_are_found():
    problem = pair_problem(SignProduct())
    expected = spectral_theory(problem, 6.0).squared_cosine
    runs = []
    for replicate in range(3):
        instance, data = data_of(problem, 6.0, 300, replicate)
        found = spectral_estimate(problem, data, np.random.default_rng(replicate))
        runs.append(instance.metrics(found.estimate)["overlap"])
    assert np.mean(runs, axis=0) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(("tokens", "threshold"), [(2, 0.8224670), (3, 0.26431)])
def test_labels_that_are_integers(tokens, threshold):
    """An outlier appears where message passing leaves zero."""
    problem = sequence("hardmax", tokens)
    for kind in ("symmetric", "asymmetric"):
        found = spectral_theory(problem, 1.0, kind)
        assert found.modes[0].signal_strength == pytest.approx(1 / threshold, rel=0.01)


@pytest.mark.parametrize("tokens", [2, 3])
def test_asymmetric_overlap_and_outlier_have_closed_forms(tokens):
    M = tokens
    F = M * (M + 1)
    K3 = M * (M + 2) * (M + 4) - 3 * M * (M + 2) + 3 * M - 1 - (M - 1)
    alpha = 2.5 / F
    found = spectral_theory(sequence(tokens=M), alpha, "asymmetric")
    assert found.squared_cosine[0] == pytest.approx(
        (alpha - 1 / F) / (alpha + K3 / F**2), abs=0.01
    )
    assert found.modes[0].eigenvalue == pytest.approx(alpha * F, rel=0.02)
    assert abs(found.mse[0] - 1 + found.squared_cosine[0]) < 1e-12


@pytest.mark.parametrize("alpha", [0.25, 0.6])
def test_symmetric_overlap_solves_the_equation_of_the_optimal_matrix(alpha):
    # G has the eigenvalues s - 1 (s chi-squared with two degrees of freedom) and -1.
    def mean(f):
        return quad(lambda s: f(s) * chi2.pdf(s, 2), 0, 80, limit=300)[0]

    def excess(chi):
        c = 1 - chi
        trace = mean(lambda s: (s - 1) ** 2 / (1 + c * (s - 1))) + 1 / (1 - c)
        return alpha * chi * trace - 1

    chi = brentq(excess, 1e-6, 1 - 1e-9)
    found = spectral_theory(sequence(), alpha, regularisation=1e-5)
    assert found.squared_cosine[0] == pytest.approx(
        1 - chi, abs=4 * found.mse_error[0] + 1e-3
    )
    assert found.modes[0].eigenvalue == pytest.approx(1, abs=1e-3)


def test_regularisation_costs_what_the_general_formula_says():
    """Overlap of a random-matrix outlier from the slope of its characteristic function, by finite differences."""
    alpha, epsilon = 0.5, 0.3
    nodes = chi2.ppf((np.arange(4000) + 0.5) / 4000, 2)
    g = np.stack([nodes - 1, np.full_like(nodes, -1)], axis=1)
    t = 1 - 1 / (1 + g + epsilon)

    def chi_of(eigenvalue):  # Stieltjes transform of the bulk, to the right of it
        chi = 1 / eigenvalue
        for _ in range(400):
            chi = 1 / (eigenvalue - alpha * (t / (1 - chi * t)).sum(1).mean())
        return chi

    def signal(eigenvalue):  # zero at the outlier
        chi = chi_of(eigenvalue)
        return eigenvalue - alpha * ((1 + g) * t / (1 - chi * t)).sum(1).mean()

    found = spectral_theory(sequence(), alpha, regularisation=epsilon)
    eigenvalue = brentq(
        signal,
        found.modes[0].eigenvalue * 0.98,
        found.modes[0].eigenvalue * 1.05,
        xtol=1e-9,
    )
    step = 1e-4
    slope = (signal(eigenvalue + step) - signal(eigenvalue - step)) / (2 * step)
    assert found.modes[0].eigenvalue == pytest.approx(eigenvalue, rel=2e-3)
    assert found.squared_cosine[0] == pytest.approx(1 / slope, abs=0.005)


def dense_pieces(problem, data):
    """X (n, M, D) / sqrt(D) and G (n, M, M) of one softmax layer, straight from the definition."""
    X = np.asarray(data.inputs) / np.sqrt(data.dimension)
    log = np.asarray(data.labels)
    gap = log[:, 0, 0] - log[:, 0, 1], log[:, 1, 1] - log[:, 1, 0]
    distance = np.sqrt(gap[0] + gap[1])
    u = np.stack([gap[0] / distance, -gap[1] / distance], axis=1)
    return X, u[:, :, None] * u[:, None, :] - np.eye(2)


def test_leading_vector_is_that_of_the_dense_symmetric_matrix():
    problem = sequence()
    _, data = data_of(problem, 0.9, 90)
    X, G = dense_pieces(problem, data)
    weights = np.eye(2) - np.linalg.inv(1.01 * np.eye(2) + G)
    T = np.einsum("nad,nab,nbe->de", X, weights, X)
    values, vectors = np.linalg.eigh(T)
    found = spectral_estimate(problem, data, np.random.default_rng(3))
    assert found.outliers[0] == pytest.approx(values[-1], rel=1e-6)
    unit = found.estimate[0] / np.linalg.norm(found.estimate[0])
    assert abs(unit @ vectors[:, -1]) == pytest.approx(1, abs=1e-8)
    scale = spectral_theory(problem, data.sample_ratio).squared_cosine[0]
    assert (found.estimate[0] ** 2).mean() == pytest.approx(scale)
    assert found.V[0, 0] == pytest.approx(1 - scale)


def test_largest_real_eigenvalue_is_that_of_the_dense_asymmetric_matrix():
    problem = sequence()
    compared = 0
    for replicate in range(4):
        _, data = data_of(problem, 0.8, 80, replicate)
        X, G = dense_pieces(problem, data)
        n = len(X)
        flat = X.reshape(2 * n, -1)
        big = np.zeros((2 * n, 2 * n))
        for i in range(n):
            big[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = G[i]
        K = (flat @ flat.T - np.eye(2 * n)) @ big
        values, vectors = np.linalg.eig(K)
        real = np.flatnonzero(np.abs(values.imag) < 1e-9)
        top = real[np.argmax(values[real].real)]
        rank = (values.real > values[top].real).sum()
        found = spectral_estimate(problem, data, np.random.default_rng(0), "asymmetric")
        assert bool(found.remarks) == (
            rank >= SEARCHED_EIGENVALUES or values[top].real <= 1
        )
        if found.remarks:
            continue
        compared += 1
        direction = flat.T @ big @ vectors[:, top].real
        direction /= np.linalg.norm(direction)
        assert found.outliers[0] == pytest.approx(values[top].real, rel=1e-5)
        unit = found.estimate[0] / np.linalg.norm(found.estimate[0])
        assert abs(unit @ direction) == pytest.approx(1, abs=1e-6)
        # The same vector belongs to the eigenvalue 1 of a symmetric matrix.
        mu = found.outliers[0]
        T = np.einsum("nad,nab,nbe->de", X, G @ np.linalg.inv(mu * np.eye(2) + G), X)
        assert np.allclose(T @ unit, unit, atol=1e-5)
    assert compared >= 2


def test_the_last_layer_emerges_first():
    problem = sequence(layers=2)
    found = spectral_theory(problem, 0.4)
    assert np.allclose(np.abs(found.modes[0].direction), [0, 1])
    assert found.modes[0].signal_strength > 1 > found.modes[1].signal_strength
    # No layer can emerge before a sign-free label of M tokens lets it: 1/(M (M + 1)) = 1/6.
    assert found.modes[0].signal_strength / 0.4 < 6


def test_directions_that_do_not_separate_are_found_together():
    """Linear labels of two directions: the leading vector is the whole signal; F is (P + 1) / (1 + noise)^2."""
    problem = sequence("linear", 1, components=2, noise=0.5)
    alpha = 2.0
    for kind in ("symmetric", "asymmetric"):
        found = spectral_theory(problem, alpha, kind)
        (mode,) = found.modes
        assert mode.direction is None
        assert mode.signal_strength == pytest.approx(alpha * 3 / 1.5**2, rel=0.03)
        assert np.trace(mode.gram) == pytest.approx(1)


def test_joint_theory_agrees_with_the_scalar_one():
    """A single direction through the matrix-valued equations."""
    problem = sequence()
    G = spectral._sampled_labels(problem)[0]
    for kind in ("symmetric", "asymmetric"):
        one = direction_mode(G, np.ones(1), 0.5, kind, 0.05)
        whole = joint_eigenvector_mode(G, 0.5, kind, 0.05)
        assert whole.eigenvalue == pytest.approx(one.eigenvalue, rel=1e-6)
        assert abs(whole.A[0, 0]) == pytest.approx(one.A[0, 0], rel=1e-6)
        assert np.isnan(joint_eigenvector_mode(G, 0.1, kind, 0.05).eigenvalue)


def test_sign_is_right_where_labels_tell_it():
    problem = sequence("linear", 1, noise=0.1)
    for replicate in range(4):
        instance, data = data_of(problem, 3.0, 150, replicate)
        assert (
            instance.metrics(
                spectral_estimate(
                    problem, data, np.random.default_rng(replicate)
                ).estimate
            )["mse"][0]
            < 1
        )


def test_start_claims_what_it_holds():
    problem = sequence()
    instance, data = data_of(problem, 0.9, 500)
    start = Spectral().start(problem, data, np.random.default_rng(0))
    held = float((start.estimate**2).mean())
    assert start.V[0, 0] == pytest.approx(1 - held)
    problem = attention("linear", noise=0.3)
    instance, data = data_of(problem, 0.2, 60)
    start = Spectral().start(problem, data, np.random.default_rng(0))
    error = instance.metrics(start.estimate)["mse"][0]
    assert error == pytest.approx(float(start.V[0, 0]), rel=0.15)


def test_first_order_theory_takes_the_information_at_zero():
    problem = attention("hardmax")
    Q, V, error, _ = one_step_theory(problem, 0.5, "zero")
    information = problem.channel.information(np.zeros((1, 1)), 1.5 * np.eye(1)).value
    expected = problem.prior.overlap(2 * 0.5 * information).V[0, 0]
    assert V[0, 0] == pytest.approx(expected, rel=1e-6)
    assert Q[0, 0] == pytest.approx(1.5 - V[0, 0])
    assert error[0] < 1e-6


class Correlated:
    """Gaussian components with a second moment that is neither 1 nor diagonal."""

    name, version, reference = "correlated", 1, "test"
    capabilities = Capabilities(models=("sequence-multi-index",))
    M = np.array([[4.0, 1.2], [1.2, 0.8]])

    def sample(self, rng, components, dimension):
        return np.linalg.cholesky(self.M) @ rng.standard_normal((components, dimension))

    def second_moment(self, components):
        return self.M

    def mean_overlap(self, components):
        return np.zeros((2, 2))

    def mean(self, components, dimension):
        return np.zeros((components, dimension))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_correlated_components_of_any_length_land_on_theory(kind):
    """Errors of finite runs, which know nothing of how theory whitens; the overlap is the squared cosine of the run."""
    problem = sequence("linear", components=2, noise=0.3)
    problem.prior = Correlated()
    problem.spec["prior"] = {"name": "correlated", "version": 1}
    theory = spectral_theory(problem, 3.0, kind)
    errors, cosines = [], []
    rng = np.random.default_rng(41)
    for _ in range(6):
        D, n = 250, 750
        signal = problem.prior.sample(rng, 2, D)
        X = rng.standard_normal((n, 2, D))
        y = problem.channel.forward(problem.model.forward(X, signal), rng=rng)
        found = spectral_estimate(problem, Data(X, y, n / D), rng, kind)
        errors.append(problem.model.squared_error(signal, found.estimate))
        cosines.append(problem.model.overlap(signal, found.estimate))
        assert np.allclose(np.diagonal(found.V), theory.mse, rtol=0.02, atol=0.02)
    for runs, expected in ((errors, theory.mse), (cosines, theory.squared_cosine)):
        spread = np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
        assert np.all(
            np.abs(np.mean(runs, axis=0) - expected) < 4 * spread + 0.05 * expected
        )


def test_a_mean_is_refused():
    from smimbench_attention.algorithms.spectral import Spectral

    from tests.stretched import stretched

    with stretched({"name": "linear", "noise": 0.5}, shift=1.0) as problem:
        assert "prior of mean zero" in Spectral().refuses(problem)


def test_overlaps_of_longer_signals_stand_beside_squared_cosines():
    from smimbench.registry.registry import find_metric, theory_of
    from smimbench.theory.predictions import solve, theory_point
    from tests.stretched import stretched

    with stretched({"name": "linear", "noise": 0.5}) as problem:
        point = theory_point(problem, solve(problem, [2.0])[0])
        (cosine,) = theory_of(find_metric("overlap"), problem, point, 1)[0]
        assert cosine == pytest.approx(1 - point.mse[0] / 9, abs=1e-6)


def test_labels_that_say_nothing_leave_the_prior_mean():
    """A single sample far from every jump of hardmax: its posterior is the prior, and there is no information to divide by."""
    problem = attention("hardmax", rho=1000.0)
    mean = problem.prior.mean(1, 2)
    for replicate in range(20):
        data = data_of(problem, 0.25, 2, replicate)[1]
        found = one_step_estimate(problem, data, "prior-mean")
        assert np.isfinite(found.estimate).all()
        gap = np.asarray(
            problem.channel.posterior(
                data.labels, problem.model.forward(data.inputs, mean), np.eye(1)
            ).mean
        )
        if np.abs(gap - problem.model.forward(data.inputs, mean)).max() < 1e-12:
            assert_allclose(found.estimate, mean, atol=1e-3)
            break
    else:
        raise AssertionError("every one of these labels says something")


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_a_longer_signal_is_a_longer_estimate(kind):
    """With the noise scaled along, nothing changes but the unit."""
    from tests.stretched import stretched

    one = Problem(
        {"name": "sequence-multi-index", "tokens": 2},
        {"name": "linear", "noise": 0.5},
        "gaussian",
    )
    unit = spectral_theory(one, 1.5, kind)
    with stretched({"name": "linear", "noise": 4.5}, scale=3.0) as three:
        wide = spectral_theory(three, 1.5, kind)
        assert np.allclose(wide.squared_cosine, unit.squared_cosine, rtol=1e-3)
        assert np.allclose(wide.mse, 9 * unit.mse, rtol=1e-3)
        assert np.allclose(wide.self_overlap, 9 * unit.self_overlap, rtol=1e-3)
        errors = []
        for replicate in range(6):
            instance = three.instance(1.5, 400, replicate)
            data = instance.data(get_backend("numpy"))
            found = spectral_estimate(
                three, data, np.random.default_rng(replicate), kind
            )
            errors.append(three.model.squared_error(instance.signal, found.estimate)[0])
            assert found.V[0, 0] == pytest.approx(wide.mse[0], rel=0.02)
        assert (
            abs(np.mean(errors) - wide.mse[0])
            < 3 * np.std(errors, ddof=1) / 6**0.5 + 0.1 * wide.mse[0]
        )


def test_first_order_theory_has_a_closed_form():
    """``(4 / 3V)(1 / pi P+ + 1 / 2 pi P-)`` is the information of hardmax at zero; Q0 = 1.5."""
    problem = Problem(
        {"name": "attention-indexed", "tokens": 2},
        {"name": "hardmax"},
        {"name": "wishart", "rho": 0.5},
    )
    Q, V, error, _ = one_step_theory(problem, 0.5, "zero")
    plus, minus = (0.25 + s * np.arcsin(1 / 3) / (2 * np.pi) for s in (1, -1))
    information = (4 / (3 * 1.5)) * (1 / (np.pi * plus) + 1 / (2 * np.pi * minus)) / 2
    expected = problem.prior.overlap(np.array([[2 * 0.5 * information]])).V[0, 0]
    assert V[0, 0] == pytest.approx(expected, rel=1e-6)
    assert Q[0, 0] == pytest.approx(1.5 - V[0, 0])
    assert error[0] < 1e-6
