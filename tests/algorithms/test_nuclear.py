"""Nuclear-norm regression, its limit, and descent on a wide factor that ends in its minimum."""

import functools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.least_squares import (
    LeastSquares,
    linear_observation,
)
from smimbench_attention.algorithms.nuclear import Nuclear
from smimbench_attention.algorithms.nuclear.limit import (
    Observations,
    best_penalty,
    fixed_point,
    label_observations,
    penalty_of_zero_estimate,
    perfect_recovery,
    weighted_observations,
)
from smimbench_attention.algorithms.nuclear.shrinkage import (
    shrunk_histogram,
    shrunk_matrix,
    soft_threshold,
    zero_eigenvalue_fraction,
)
from smimbench_attention.algorithms.ridge import Ridge
from smimbench_attention.algorithms.sgd import Sgd
from smimbench_attention.priors.wishart import Wishart

from smimbench.backend.device import get_backend
from smimbench.derive.prior import SpectrumPrior
from smimbench.interfaces import Conditions, Law, Prior
from smimbench.numerics.free_convolution import FreeConvolution
from smimbench.theory.predictions import competing
from tests.helpers import attention, run_once

LINEAR, PLAIN = {"channel": "linear"}, {"noise_convention": "plain"}


def noisy(**more):
    return attention(**{**LINEAR, **PLAIN, "noise": 0.3, **more})


def prior_of(**members):
    """A prior with these members and the defaults of all others."""
    return type("Given", (Prior,), members)()


class OfEigenvalues:
    """A prior that is nothing but its eigenvalues."""

    def __init__(self, atoms, weights=None):
        self.law = Law(
            spectral_means=functools.partial(
                FreeConvolution(atoms, weights).means, rtol=1e-7
            )
        )
        self.square = np.average(np.square(atoms), weights=weights)

    def second_moment(self, components):
        return np.array([[self.square]])


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize(
    ("rho", "noise", "threshold"), [(0.5, 0.3, 0.6), (0.3, 0.01, 0.05), (1.5, 1.0, 0.4)]
)
def test_denoiser_of_a_large_random_matrix(rng, rho, noise, threshold, positive):
    d = 700
    r = round(rho * d)
    W = rng.standard_normal((d, r))
    S = W @ W.T / math.sqrt(r * d)
    Z = rng.standard_normal((d, d))
    x, U = np.linalg.eigh(S + math.sqrt(noise) * (Z + Z.T) / math.sqrt(2 * d))
    f = soft_threshold(x, threshold, positive)
    estimate = (U * f) @ U.T
    apart = x[:, None] - x + np.eye(d)
    pairs = np.where(np.eye(d, dtype=bool), 2.0 * (f != 0), (f[:, None] - f) / apart)
    measured = [
        ((estimate - S) ** 2).sum() / d,
        (estimate * S).sum() / d,
        (f * f).mean(),
        np.abs(f).mean(),
        pairs.sum() / d**2,
        (f != 0).mean(),
    ]
    found = shrunk_matrix(Wishart(rho), noise, threshold, positive)
    assert np.allclose(measured, found[:6], rtol=0.012, atol=0.004)
    spectrum = shrunk_histogram(Wishart(rho), noise, threshold, positive)
    mass, zeros, edges = (
        np.array(spectrum["mass"]),
        spectrum["zeros"],
        np.array(spectrum["edges"]),
    )
    assert mass.sum() + zeros == pytest.approx(1, abs=1e-6)
    counted = np.histogram(f[f != 0], edges)[0] / d
    assert np.allclose(np.cumsum(counted), np.cumsum(mass), atol=0.006)
    assert zeros == pytest.approx((f == 0).mean(), abs=0.004)


def test_least_squares_in_closed_form():
    """Without a penalty, on both signs: ``E = nu / (c K - 1)`` above the dense count of equations."""
    seen = Observations(np.ones(3), np.full(3, 0.3), 0.6)
    found = fixed_point(Wishart(0.5), seen, 0.0, False)
    assert found.error == pytest.approx(0.3 / 0.8, rel=1e-9)
    assert found.estimate.degrees_of_freedom == pytest.approx(1, rel=1e-9)


@pytest.mark.slow
def test_semicircle_in_closed_form():
    """A signal that is zero: R is a semicircle, and the estimate is zero from ``tau = 2 sqrt(nu c K)`` on."""
    seen = Observations(np.ones(1), np.full(1, 0.4), 1.5)
    prior = OfEigenvalues([-1e-6, 1e-6])
    assert penalty_of_zero_estimate(prior, seen, False) == pytest.approx(
        2 * math.sqrt(0.4 * 1.5), rel=1e-4
    )


@pytest.mark.parametrize("positive", [True, False])
def test_perfect_recovery_is_where_the_error_ends(positive):
    prior = Wishart(0.3)
    assert zero_eigenvalue_fraction(prior) == pytest.approx(0.7, abs=1e-6)
    alpha = perfect_recovery(prior, 3, 2.0, positive)
    errors = [
        fixed_point(
            prior, Observations(np.ones(3), np.zeros(3), 2 * alpha * s), 0.0, positive
        ).error
        for s in (0.98, 0.999, 1.001)
    ]
    assert errors[0] > errors[1] > 1e-6
    assert errors[2] == 0


def test_perfect_recovery_at_the_ends():
    """Full rank: as many equations as unknowns. Low rank: 3 r d equations, the dimension of the tangents and twice that."""
    assert perfect_recovery(Wishart(1.5), 1, 2.0, True) == pytest.approx(0.5, rel=1e-6)
    small = 1e-6
    for positive in (True, False):
        assert perfect_recovery(
            Wishart(small), 1, 2.0, positive
        ) * 2 / small == pytest.approx(6, rel=0.01)


def test_a_vanishing_penalty_meets_noisy_labels_up_to_a_sample_ratio():
    """Three observations of noise 0.3 a sample: the ratio solves ``kappa alpha K = D(Delta, 0)``, ``Delta D = E + nu``."""
    prior, noise = Wishart(0.5), 0.3

    def excess(log_noise):
        found = shrunk_matrix(prior, math.exp(log_noise), 0.0, True)
        return math.exp(log_noise) * found.degrees_of_freedom - found.error - noise

    alpha = (
        shrunk_matrix(
            prior, math.exp(brentq(excess, -3, 3)), 0.0, True
        ).degrees_of_freedom
        / 6
    )
    for factor, left in ((0.97, False), (1.03, True)):
        found = fixed_point(
            prior,
            Observations(np.ones(3), np.full(3, noise), 2 * alpha * factor),
            0.0,
            True,
        )
        assert (found.remaining_loss > 1e-6) == left
        assert (found.threshold == 0) == left


# n, exponent, noise, penalty, and error by state evolution at d = 400: github.com/SPOC-group/WidthQuadraticNetworks
PUBLISHED = [
    (160000.0, 1.25, 0.1, 0.1, 0.0144176),
    (26515.0, 0.6, 2.0, 400**-0.15, 0.70922),
]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "exponent", "noise", "penalty", "error"), PUBLISHED)
def test_published_quadratic_networks(n, exponent, noise, penalty, error):
    """One token; the loss is ``|y - y_hat|^2 / d^2 + penalty tr(S) / d`` with ``y = sqrt(2) z``, so tau is half of the penalty.

    They sampled noise matrices of d = 400, which makes errors larger by about 1/d. Small eigenvalues, far closer to each other
    than the noise, are taken four at a time.
    """
    atoms = np.arange(1, 401.0) ** -exponent
    atoms *= 20 / np.linalg.norm(atoms)
    prior = OfEigenvalues(
        np.append(atoms[:40], atoms[40:].reshape(-1, 4).mean(1)),
        np.append(np.ones(40), np.full(90, 4.0)),
    )
    seen = Observations(np.ones(1), np.full(1, noise / 2), 2 * n / 400**2)
    assert fixed_point(prior, seen, penalty / 2, True).error == pytest.approx(
        error, rel=5e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "alpha", "channel"),
    [
        (0.1, 0.05, LINEAR | {"noise": 0.05}),
        (2.0, 0.2, LINEAR | PLAIN | {"noise": 0.5}),
        (0.3, 0.1, {}),
    ],
)
def test_bayes_then_best_penalty_then_any_penalty(rho, alpha, channel):
    problem = attention(rho=rho, **channel)
    seen = weighted_observations(problem, linear_observation(problem), alpha)
    bayes = competing(problem, [alpha])[0][0].mse[0]
    for positive in (True, False):
        tau, best = best_penalty(problem.prior, seen, positive)
        assert bayes <= best.error * (1 + 1e-9)
        largest = penalty_of_zero_estimate(problem.prior, seen, positive)
        others = [
            fixed_point(problem.prior, seen, t * largest, positive).error
            for t in (1e-3, 1e-2, 0.05, 0.2, 0.7)
        ]
        others.append(fixed_point(problem.prior, seen, 0.0, positive).error)
        # A vanishing penalty, where it is the best one, is replaced by a small one.
        assert best.error <= min(others) * (1 + 1e-3) + 1e-7
        assert bayes <= min(others)
        assert fixed_point(
            problem.prior, seen, 1.001 * largest, positive
        ).error == pytest.approx(1 + rho, rel=1e-5)
        assert 0 < tau < largest


def test_vanishing_penalty_next_to_perfect_recovery():
    """0.00560 is reached with a penalty of 1e-7."""
    problem = attention("linear", tokens=3, rho=0.4)
    seen = weighted_observations(problem, linear_observation(problem), 0.06)
    assert best_penalty(problem.prior, seen, True)[1].error == pytest.approx(
        0.005597, rel=1e-3
    )


@pytest.mark.parametrize("seed", range(4))
def test_fixed_point_holds_for_any_weights(seed):
    """The equations of the module, written out, at random weights and noises."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 5))
    seen = Observations(
        rng.uniform(0.2, 1, k), rng.uniform(0, 1, k), float(rng.uniform(0.2, 3) / k)
    )
    tau, positive = float(rng.uniform(0.02, 1)), bool(rng.integers(2))
    prior = Wishart(float(rng.uniform(0.05, 2)))
    found = fixed_point(prior, seen, tau, positive)
    v, w = found.susceptibility, seen.weights
    Qhat = seen.kappa_alpha * sum(w / (1 + v * w))
    again = shrunk_matrix(prior, found.noise, tau / Qhat, positive)
    assert again.error == pytest.approx(found.error, rel=1e-7)
    assert v * Qhat == pytest.approx(again.degrees_of_freedom, rel=1e-7)
    assert found.noise == pytest.approx(
        seen.kappa_alpha
        / Qhat**2
        * sum(w**2 * (again.error + seen.noise) / (1 + v * w) ** 2),
        rel=1e-7,
    )
    close = fixed_point(prior, seen, 1.3 * tau, positive, nearby_solution=found)
    assert close.error == pytest.approx(
        fixed_point(prior, seen, 1.3 * tau, positive).error, rel=1e-7
    )


def test_best_penalty_is_used_and_said():
    problem = attention("linear", noise=0.3)
    run = run_once(problem, problem.instance(0.3, 20), Nuclear("optimal"))
    seen = weighted_observations(
        problem, linear_observation(problem), problem.instance(0.3, 20).sample_ratio
    )
    assert run.final["regularisation"][0] == pytest.approx(
        best_penalty(problem.prior, seen, True)[0]
    )
    assert any("best by theory" in warning for warning in run.warnings)
    assert (
        Nuclear("optimal").theory(problem, 0.3).mse
        < Nuclear(1.0).theory(problem, 0.3).mse
    )


def test_priors_given_by_a_spectrum_have_the_theory_too():
    """Few eigenvalues are the law itself; quantiles of a continuous one are as good as their stated error."""
    few = SpectrumPrior(prior_of(name="few", law=Law(eigenvalues=[0.0, 0.0, 1.0, 3.0])))
    seen = Observations(np.ones(1), np.full(1, 0.2), 0.8)
    unit = few.unit
    expected = fixed_point(
        OfEigenvalues(np.array([0.0, 1.0, 3.0]) / unit, [2.0, 1.0, 1.0]),
        seen,
        0.2,
        True,
    )
    assert fixed_point(few, seen, 0.2, True).error == pytest.approx(
        expected.error, rel=1e-6
    )

    def quantile(u):
        return 4 * np.sin(np.pi / 2 * np.interp(u, levels, angles)) ** 2

    # Marchenko-Pastur's law of ratio 1 is 4 sin^2 of an angle with the density 2 cos^2.
    angles = np.linspace(0, 1, 4001)
    levels = angles + np.sin(np.pi * angles) / np.pi
    smooth = shrunk_matrix(
        SpectrumPrior(prior_of(name="smooth", law=Law(quantile=quantile))),
        0.3,
        0.4,
        True,
    )
    exact = shrunk_matrix(Wishart(1.0), 0.3, 0.4, True)
    assert abs(smooth.error - exact.error) < 3 * smooth.numerical_error + 1e-5
    assert smooth.numerical_error < 1e-2 * smooth.error


def solve(problem, instance, algorithm, backend=None, tolerance=1e-9, iterations=4000):
    return run_once(
        problem,
        instance,
        algorithm,
        backend,
        tolerance=tolerance,
        max_iterations=iterations,
    )


@pytest.mark.parametrize(
    ("positive", "channel"), [(True, LINEAR | {"noise": 0.3}), (False, {})]
)
def test_solution_satisfies_the_optimality_conditions(positive, channel):
    """The slope of the loss is tau times a subgradient of the norm: U U^T on the range, at most tau off it."""
    problem = attention(**channel)
    instance = problem.instance(0.5, 14)
    tau = 0.4
    S = solve(
        problem, instance, Nuclear(tau, positive=positive), iterations=1500
    ).estimate
    data = instance.data(get_backend())
    squares = LeastSquares(
        problem, linear_observation(problem), data.inputs, data.labels
    )
    slope = squares.normal_product(S, targets=True)[0][0]
    values, vectors = np.linalg.eigh(S[0])
    kept = np.abs(values) > 1e-6
    assert kept.any()
    assert not kept.all()
    turned = vectors.T @ slope @ vectors
    assert np.allclose(
        turned[np.ix_(kept, kept)], tau * np.diag(np.sign(values[kept])), atol=2e-5
    )
    rest = np.linalg.eigvalsh(turned[np.ix_(~kept, ~kept)])
    assert np.allclose(turned[np.ix_(kept, ~kept)], 0, atol=2e-5)
    assert rest.max() <= tau + 1e-5
    if positive:
        assert (values > -1e-12).all()
    else:
        assert rest.min() >= -tau - 1e-5


def test_low_rank_is_recovered_where_least_squares_cannot():
    problem = attention(rho=0.1)
    instance = problem.instance(
        0.18, 30
    )  # 4 * 0.18 < 1 equations per unknown of a full matrix
    low = solve(problem, instance, Nuclear(0.01), tolerance=1e-6, iterations=1500)
    dense = solve(problem, instance, Ridge(), tolerance=1e-6)
    assert low.metrics["mse"][0] < 0.02
    assert dense.metrics["mse"][0] > 0.2


def test_validation_is_as_good_as_the_best_of_a_grid():
    problem = attention("linear", rho=0.3, noise=0.3)
    instance = problem.instance(0.25, 24)
    chosen = solve(problem, instance, Nuclear(), tolerance=1e-5)
    grid = [
        solve(problem, instance, Nuclear(tau), tolerance=1e-5).metrics["mse"][0]
        for tau in (0.03, 0.1, 0.3, 1.0, 3.0)
    ]
    assert chosen.metrics["mse"][0] < 1.25 * min(grid)
    assert any("chosen by validation" in warning for warning in chosen.warnings)


@pytest.mark.parametrize(("noise", "tau"), [(0.3, 0.3), (0.0, 0.02)])
def test_single_precision_ends_where_its_rounding_does(noise, tau):
    """The certificate cannot be finer than its numbers: what may be rounding does not keep a run from ending."""
    problem = attention("linear", rho=0.3, noise=noise)
    instance = problem.instance(0.12, 30)
    fine = solve(problem, instance, Nuclear(tau), tolerance=1e-4)
    coarse = solve(
        problem, instance, Nuclear(tau), get_backend(dtype="float32"), tolerance=1e-4
    )
    assert coarse.status.value == "ok"
    assert coarse.iterations < 1.5 * fine.iterations
    assert coarse.metrics["mse"][0] == pytest.approx(fine.metrics["mse"][0], rel=1e-3)


AT = Conditions(dimension=24)


@pytest.mark.parametrize(("tokens", "width", "decay"), [(1, 24, 1.0), (2, 14, 3.0)])
def test_descent_ends_in_the_minimum_of_nuclear(tokens, width, decay):
    """Noise of the same variance in every entry: the squared error of the label is twice the loss of ``nuclear``."""
    problem = noisy(tokens=tokens)
    instance = problem.instance(0.4, 24)
    run = run_once(
        problem,
        instance,
        Adam(weight_decay=decay, width=width, schedule="cosine", steps=1500),
    )
    descended = run.estimate
    assert np.allclose(
        run.final["spectrum"], np.linalg.eigvalsh(descended[0]), atol=1e-12
    )
    tau = decay * np.sqrt(width / 24) / 2
    minimum = run_once(
        problem, instance, Nuclear(tau / 2), tolerance=1e-5, max_iterations=4000
    ).estimate
    assert np.linalg.norm(descended - minimum) < 2e-3 * np.linalg.norm(minimum)
    expected = Adam(weight_decay=decay, width=width).theory(problem, 0.4, AT)
    assert expected.mse == pytest.approx(
        Nuclear(tau / 2).theory(problem, 0.4).mse, rel=1e-8
    )


def test_stochastic_descent_on_the_full_batch_has_that_minimum_too():
    """Its loss is ``sum l / alpha + (lambda/2) |W|^2``, so that lambda alpha is the decay of ``adam``."""
    problem = noisy(tokens=1)
    instance = problem.instance(0.5, 14)
    sgd = Sgd(weight_decay=2.0, width=14, learning_rate=0.01, steps=1500)
    descended = run_once(problem, instance, sgd).estimate
    minimum = run_once(
        problem, instance, Nuclear(0.25), tolerance=1e-5, max_iterations=4000
    ).estimate
    assert np.linalg.norm(descended - minimum) < 1e-3 * np.linalg.norm(minimum)
    at = Conditions(dimension=14)
    assert (
        sgd.theory(problem, 0.5, at).mse
        == Adam(weight_decay=1.0, width=14).theory(problem, 0.5, at).mse
    )


def test_weights_of_the_label():
    seen = label_observations(noisy(noise_convention="scaled"), 0.5)
    assert np.allclose(seen.weights, [2, 1, 2])
    assert np.allclose(seen.noise, 0.3)
    assert np.allclose(label_observations(noisy(), 0.5).noise, [0.15, 0.3, 0.15])
    assert "latent" in label_observations(attention("softmax"), 0.5)
    assert "not convex" in label_observations(attention("hardmax"), 0.5)


def test_no_spectrum_without_decay():
    problem = noisy()
    run = run_once(problem, problem.instance(0.2, 10), Adam(steps=3))
    assert "spectrum" not in run.final


def test_both_laws_of_the_same_spectrum_agree():
    """The Wishart rule with breaks against subordination over many atoms."""
    rho = 2.0
    u, weights = np.polynomial.legendre.leggauss(400)
    angle = math.pi / 2 * (u + 1)
    low, high = (1 - rho**-0.5) ** 2, (1 + rho**-0.5) ** 2
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    density = np.sqrt((high - x) * (x - low)) / x * np.sin(angle) * weights
    law = OfEigenvalues(math.sqrt(rho) * x, density)
    for noise, threshold in ((0.5, 0.7), (0.05, 1.0)):
        assert np.allclose(
            shrunk_matrix(law, noise, threshold, True)[:6],
            shrunk_matrix(Wishart(rho), noise, threshold, True)[:6],
            atol=1e-6,
        )


@pytest.mark.parametrize("positive", [True, False])
def test_proximal_map_minimises(rng, positive):
    """``soft_threshold`` against a search: no matrix close by, commuting or not, has a lower ``|S - R|^2 / 2 + theta |S|_*``."""
    R = rng.standard_normal((6, 6))
    R = R + R.T
    x, U = np.linalg.eigh(R)
    f = soft_threshold(x, 0.7, positive)

    def objective(S):
        return ((S - R) ** 2).sum() / 2 + 0.7 * np.abs(np.linalg.eigvalsh(S)).sum()

    best = objective((U * f) @ U.T)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(200):
            move = rng.standard_normal((6, 6))
            S = (U * f) @ U.T + size * (move + move.T)
            if positive:
                values, vectors = np.linalg.eigh(S)
                S = (vectors * values.clip(0)) @ vectors.T
            assert objective(S) >= best - 1e-12
