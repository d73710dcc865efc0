"""Priors given by a density, a spectrum or a denoiser alone, against closed forms and laws that are coded here."""

import functools
import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.optimize import brentq

from smimbench.backend.arrays import to_host
from smimbench.derive import complete_prior
from smimbench.derive.derived_prior import SimulatedPrior
from smimbench.derive.prior import DensityPrior, SpectrumPrior
from smimbench.interfaces import Denoised, Law, ParameterError, Prior
from smimbench.problem.problem import Problem
from smimbench.theory.scalar import scalar_curve
from tests.conftest import assert_placed
from tests.helpers import scalar

LOW = Problem({"name": "sequence-multi-index", "tokens": 1}, "linear", "gaussian").model
EXTENSIVE = Problem(
    {"name": "attention-indexed", "tokens": 2},
    "softmax",
    {"name": "wishart", "rho": 0.5},
).model
INFORMATION = np.array([1e-4, 0.03, 0.5, 2.0, 30.0, 1e4])


class Density(Prior):
    """A density that is given by its name."""

    name = "density"

    def __init__(self, log_density):
        self.law = Law(log_density=log_density)


def normal(w):
    return -((w - 3.0) ** 2) / 8


@pytest.mark.parametrize(
    ("log_density", "norm", "centre", "width"),
    [
        (
            lambda w: np.where(np.abs(w - 0.3) <= 2, 0.0, -np.inf),
            4.0,
            0.3,
            2 / math.sqrt(3),
        ),
        (lambda w: np.where(w > 0, -w, -np.inf), 1.0, 1.0, 1.0),
        (lambda w: -np.abs(w), 2.0, 0.0, math.sqrt(2)),
        (
            lambda w: -3 * np.log1p(w * w / 5),
            math.sqrt(5) * math.pi * 0.375,
            0.0,
            math.sqrt(5 / 3),
        ),
    ],
    ids=["uniform", "exponential", "Laplace", "Student"],
)
def test_norm_mean_and_width_of_a_law_are_known_to_nine_digits_with_jumps_too(
    log_density, norm, centre, width
):
    prior = DensityPrior(Density(log_density))
    assert prior._norm == pytest.approx(math.log(norm), abs=1e-9)
    assert prior.unit == pytest.approx(width, rel=1e-9)
    assert prior.center * prior.unit == pytest.approx(centre, abs=1e-9)


def laplace(w):
    return -abs(w)


def mixture(w):
    # Two narrow Gaussians: a smooth stand-in for two signs.
    away = abs(abs(w) - 1.0)
    return -0.5 * (away / 0.05) ** 2


def box(w):
    return np.where(np.abs(w) < 2.0, 0.0, -np.inf)


def error_by_quadrature(log_density, spread, information):
    """``E Var(w | r)`` by a fine grid of w and one of r, for a law scaled by ``spread`` to unit variance."""
    with np.errstate(divide="ignore"):
        w = np.linspace(-40, 40, 40001)
        law = np.exp(log_density(w))
    keep = law > 1e-14
    w = w[keep] / spread
    law = law[keep] / law.sum()
    width = 1 / math.sqrt(information)

    def integrand(r):
        like = (
            law
            * np.exp(-0.5 * ((r - w) / width) ** 2)
            / (width * math.sqrt(2 * math.pi))
        )
        total = like.sum()
        if total < 1e-200:
            return 0.0
        mean = (like * w).sum() / total
        return total * ((like * w * w).sum() / total - mean**2)

    grid = np.linspace(w[0] - 8 * width, w[-1] + 8 * width, 1201)
    return integrate.trapezoid([integrand(r) for r in grid], grid)


def test_a_gaussian_density_gives_the_linear_denoiser(rng):
    prior = DensityPrior(Density(normal))
    # Scaled to unit variance; the mean stays where the law has it.
    assert prior.mean(2, 3) == pytest.approx(np.full((2, 3), 1.5), abs=1e-6)
    assert prior.second_moment(2) == pytest.approx(2.25 + np.eye(2), abs=1e-6)
    found = prior.overlap(INFORMATION[:, None, None]).V[:, 0, 0]
    assert found == pytest.approx(1 / (1 + INFORMATION), rel=1e-5)
    R = 2 * rng.standard_normal((2, 200))
    Qhat = np.diag([0.3, 7.0])
    denoised = prior.denoise(R, Qhat)
    assert denoised.estimate == pytest.approx(
        (1.5 + np.diag(Qhat)[:, None] * R) / (1 + np.diag(Qhat))[:, None], abs=1e-5
    )
    assert pytest.approx(np.diag(1 / (1 + np.diag(Qhat))), abs=1e-4) == denoised.V


def test_a_coupled_denoiser_is_that_of_the_joint_law(rng):
    prior = DensityPrior(Density(lambda w: -w * w / 2))
    Qhat = np.array([[1.0, 0.6], [0.6, 2.0]])
    R = rng.standard_normal((2, 300))
    found = prior.denoise(R, Qhat)
    V = np.linalg.inv(np.eye(2) + Qhat)
    assert np.sqrt(((found.estimate - V @ Qhat @ R) ** 2).mean()) < 0.02
    assert pytest.approx(V, abs=0.02) == found.V
    assert pytest.approx(V, abs=0.02) == prior.overlap(Qhat).V


@functools.cache
def of_density(log_density):
    """The prior of a density; its curve is computed once for all tests."""
    return DensityPrior(Density(log_density))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_density", "variance"), [(laplace, 2.0), (mixture, 1.0 + 0.05**2)]
)
def test_the_error_of_a_density_is_its_integral(log_density, variance):
    for information in (0.1, 1.0, 12.0):
        exact = error_by_quadrature(log_density, math.sqrt(variance), information)
        found = of_density(log_density).overlap(scalar(information))
        assert found.V[0, 0] == pytest.approx(exact, rel=4e-3)


@pytest.mark.parametrize(
    ("share", "width", "place"),
    [(0.9, 0.01, 0.0), (0.5, 0.002, 0.0), (0.3, 0.01, 1.5), (0.1, 0.001, 0.0)],
)
@pytest.mark.parametrize(
    "information", [0.6, 1.0, 1.7, 9.0, pytest.param(250.0, marks=pytest.mark.slow)]
)
def test_a_spike_that_is_narrower_than_the_noise_is_not_missed(
    share, width, place, information
):
    """A Gaussian and a narrow one: the posterior is a mixture of two, in closed form."""
    weights = np.array([1 - share, share])
    centres = np.array([0.0, place])
    widths = np.array([1.0, width])

    def log_density(w):
        return np.logaddexp(*(
            math.log(a / s) - (w - m) ** 2 / (2 * s * s) for a, m, s in zip(weights, centres, widths)
        ))  # fmt: skip

    prior = DensityPrior(Density(log_density))
    mean = weights @ centres
    unit = math.sqrt(weights @ (widths**2 + (centres - mean) ** 2))
    m = centres / unit
    v = (widths / unit) ** 2
    total = v + 1 / information
    r = np.concatenate(
        [a + np.sqrt(t) * np.linspace(-10, 10, 40_001) for a, t in zip(m, total)]
    )
    r.sort()
    logs = (
        np.log(weights)
        - (r[:, None] - m) ** 2 / (2 * total)
        - np.log(2 * np.pi * total) / 2
    )
    law = np.exp(logs)
    odds = law / law.sum(1, keepdims=True)
    means = m + v / total * (r[:, None] - m)
    variance = (odds * (v / information / total + means**2)).sum(1) - (
        (odds * means).sum(1)
    ) ** 2
    exact = np.trapezoid(law.sum(1) * variance, r)
    (found,) = prior._exact_error(np.array([information]))
    assert found == pytest.approx(exact, rel=2e-4)


def test_a_uniform_law_is_denoised_within_its_box(rng):
    prior = DensityPrior(Density(box))
    edge = math.sqrt(3.0)
    R = 3 * rng.standard_normal((1, 300))
    low = 2.0 * (-edge - R[0])
    high = 2.0 * (edge - R[0])
    exact = stats.truncnorm(low, high, loc=R[0], scale=0.5)
    found = prior.denoise(R, scalar(4.0))
    assert np.abs(found.estimate[0] - exact.mean()).max() < 1e-3
    assert found.V[0, 0] == pytest.approx(exact.var().mean(), rel=1e-3)


def test_a_density_denoises_as_well_as_it_claims_and_draws_its_law(rng):
    prior = of_density(laplace)
    W = prior.sample(rng, 1, 8_000)
    assert W.std() == pytest.approx(1.0, abs=0.08)
    assert stats.kstest(W.ravel() * math.sqrt(2), "laplace").pvalue > 1e-4
    R = W + rng.standard_normal(W.shape) / math.sqrt(3.0)
    found = prior.denoise(R, scalar(3.0))
    exact = float(prior.overlap(scalar(3.0)).V[0, 0])
    assert ((found.estimate - W) ** 2).mean() == pytest.approx(exact, rel=0.08)
    assert found.V[0, 0] == pytest.approx(exact, rel=0.08)
    unknown = prior.denoise(R, np.zeros((1, 1)))
    assert np.abs(unknown.estimate).max() < 1e-9
    assert unknown.V[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_a_density_on_every_namespace(backend):
    prior = of_density(laplace)
    R = backend.asarray(np.linspace(-2, 2, 10)[None, :])
    Qhat = backend.asarray(scalar(2.0))
    found = prior.denoise(R, Qhat)
    assert_placed(found.estimate, backend, (1, 10))
    assert_placed(found.V, backend, (1, 1))
    # The posterior mean of an odd law is odd, and shrinks.
    host = to_host(found.estimate)[0]
    assert host == pytest.approx(-host[::-1], abs=1e-6)
    assert (np.abs(host) < np.abs(np.linspace(-2, 2, 10))).all()


class Spectrum(Prior):
    name = "spectrum"


class Semicircle(Spectrum):
    """The law of a Gaussian symmetric matrix, scaled by 5 and moved by 1: what is best is linear."""

    law = Law(quantile=lambda u: 5 * (4 * stats.beta.ppf(u, 1.5, 1.5) - 2) + 1.0)


class Drawn(Spectrum):
    """Eigenvalues of one Wishart matrix of 1000 columns and 500 rows."""

    def __init__(self):
        factor = np.random.default_rng(9).standard_normal((1000, 500))
        self.law = Law(
            eigenvalues=np.linalg.eigvalsh(factor @ factor.T / math.sqrt(1000 * 500))
        )


def test_a_semicircle_gives_the_linear_denoiser(rng):
    prior = SpectrumPrior(Semicircle())
    assert prior.mean(1, 3) == pytest.approx(0.2 * np.eye(3)[None], abs=1e-5)
    found = prior.overlap(INFORMATION[:, None, None]).V[:, 0, 0]
    assert found == pytest.approx(1 / (1 + INFORMATION), rel=0.015)
    S = prior.sample(rng, 1, 200)
    R = S + EXTENSIVE.draw_noise(rng, 1, 200) / math.sqrt(2.0)
    linear = 0.2 * np.eye(200) + (R - 0.2 * np.eye(200)) * 2 / 3
    estimate = prior.denoise(R, scalar(2.0)).estimate
    assert ((estimate - linear) ** 2).sum() / 200 < 1e-3
    assert ((estimate - S) ** 2).sum() / 200 == pytest.approx(1 / 3, abs=0.02)


def test_eigenvalues_that_were_drawn_stand_for_their_law():
    wishart = Problem(
        {"name": "attention-indexed", "tokens": 2},
        "softmax",
        {"name": "wishart", "rho": 0.5},
    ).prior
    prior = SpectrumPrior(Drawn())
    assert prior.mean_overlap(1)[0, 0] == pytest.approx(0.5, abs=0.02)
    information = np.array([0.2, 1.0, 5.0])[:, None, None]
    mine = prior.overlap(information)
    known = wishart.overlap(information)
    assert pytest.approx(known.V, rel=0.03) == mine.V


class Few(Spectrum):
    """Three atoms, one of them of twice the weight."""

    law = Law(eigenvalues=(-1.0, 0.0, 0.0, 2.0))


@pytest.mark.parametrize("information", [0.5, 4.0, 60.0])
def test_a_few_eigenvalues_are_the_law_itself(rng, information):
    prior = SpectrumPrior(Few())
    assert np.unique(prior.spectrum(40).round(12), return_counts=True)[1].tolist() == [
        10,
        20,
        10,
    ]
    S = prior.sample(rng, 1, 400)
    R = S + EXTENSIVE.draw_noise(rng, 1, 400) / math.sqrt(information)
    found = prior.denoise(R, scalar(information))
    claimed = float(prior.overlap(scalar(information)).V[0, 0])
    assert float(found.V[0, 0]) == pytest.approx(claimed, rel=1e-3)
    assert ((found.estimate - S) ** 2).sum() / 400 == pytest.approx(
        claimed, rel=0.05, abs=2e-4
    )


class Signs(Prior):
    name = "signs"

    def sample(self, rng, components, dimension):
        return rng.choice([-1.0, 1.0], size=(components, dimension))

    def denoise(self, R, Qhat):
        estimate = np.tanh(np.diagonal(Qhat)[:, None] * R)
        return Denoised(estimate, np.diag(1 - (estimate**2).mean(1)))


class Matrix(Prior):
    """A Gaussian symmetric matrix by its sampler and its linear denoiser."""

    name = "matrix"

    def sample(self, rng, components, dimension):
        noise = rng.standard_normal((components, dimension, dimension))
        return (noise + noise.swapaxes(1, 2)) / math.sqrt(2 * dimension)

    def denoise(self, R, Qhat):
        gain = np.diagonal(Qhat) / (1 + np.diagonal(Qhat))
        return Denoised(gain[:, None, None] * R, np.diag(1 - gain))


def test_signs_by_their_sampler_and_denoiser():
    prior = SimulatedPrior(Signs(), LOW)
    assert prior.second_moment(1)[0, 0] == pytest.approx(1.0)
    found = prior.overlap(INFORMATION[:, None, None])
    for q, Q, V in zip(INFORMATION, found.Q[:, 0, 0], found.V[:, 0, 0]):
        if q < 100:
            exact = integrate.quad(
                lambda x, q=q: stats.norm.pdf(x) * np.tanh(q + math.sqrt(q) * x) ** 2,
                -12,
                12,
                epsabs=1e-13,
            )[0]
            # Also where next to nothing is known the overlap is right in relative terms: thresholds depend on it.
            assert pytest.approx(exact, rel=0.02) == Q
        else:
            assert V < 1e-12
    two = prior.overlap(np.diag([0.5, 2.0])).V
    assert np.diag(two) == pytest.approx(found.V[2:4, 0, 0], rel=0.03)


class Sparse(Prior):
    """Entries 0 and +-1/sqrt(rho)."""

    def __init__(self, rho):
        self.values = np.array([-1.0, 0.0, 1.0]) / math.sqrt(rho)
        self.weights = np.array([rho / 2, 1 - rho, rho / 2])

    def sample(self, rng, components, dimension):
        return rng.choice(self.values, size=(components, dimension), p=self.weights)

    def posterior(self, r, q):
        logs = np.stack(
            [
                math.log(w) - q * (r - v) ** 2 / 2
                for w, v in zip(self.weights, self.values)
            ]
        )
        odds = np.exp(logs - logs.max(0))
        odds /= odds.sum(0)
        mean = np.tensordot(self.values, odds, 1)
        return mean, np.tensordot(self.values**2, odds, 1) - mean**2

    def denoise(self, R, Qhat):
        mean, variance = self.posterior(R, float(Qhat[0, 0]))
        return Denoised(mean, scalar(variance.mean()))

    def error(self, q):
        t, h = np.linspace(-12, 12, 4001, retstep=True)
        weight = np.exp(-t * t / 2) * h / math.sqrt(2 * math.pi)
        return sum(
            p * (weight @ self.posterior(w + t / math.sqrt(q), q)[1])
            for p, w in zip(self.weights, self.values)
        )


@functools.cache
def simulated(rho):
    """The prior of such entries; its curve is computed once for all tests."""
    return SimulatedPrior(Sparse(rho), LOW)


@pytest.mark.parametrize("rho", [0.2, 0.02])
def test_the_error_of_a_simulated_map_is_what_its_simulations_show(rho):
    prior = simulated(rho)
    for q in (0.01, 0.3, 1.0, 3.0, 8.0):
        found = float(prior.overlap(scalar(q)[None]).V[0, 0, 0])
        stated = prior.overlap_error(scalar(q))
        assert abs(found / prior.prior.error(q) - 1) < 4 * stated + 1e-4
    assert 5e-4 < prior.overlap_error(scalar(0.01)) < 0.1


def test_a_simulated_error_reaches_the_points_of_theory():
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "linear", "noise": 0.1},
        "gaussian",
    )
    problem.prior = simulated(0.2)
    (found,) = scalar_curve(problem).predict([0.4])
    exact = brentq(lambda q: 0.4 / (0.1 + problem.prior.prior.error(q)) - q, 1e-3, 4.0)
    assert abs(float(found.V[0, 0]) - problem.prior.prior.error(exact)) < 4 * float(
        found.error[0]
    )
    assert float(found.error[0]) > 2e-3 * float(found.V[0, 0])


def test_a_matrix_by_its_sampler_and_denoiser():
    prior = SimulatedPrior(Matrix(), EXTENSIVE)
    assert prior.mean_overlap(1)[0, 0] == 0.0
    found = prior.overlap(INFORMATION[:, None, None])
    assert found.V[:, 0, 0] == pytest.approx(1 / (1 + INFORMATION), rel=0.02)
    assert found.Q[:, 0, 0] == pytest.approx(INFORMATION / (1 + INFORMATION), rel=0.02)


@pytest.mark.parametrize(
    "prior",
    [
        DensityPrior(Density(laplace)),
        SpectrumPrior(Semicircle()),
        SimulatedPrior(Matrix(), EXTENSIVE),
    ],
)
def test_gradients_pass_through_the_factor(prior, rng):
    shape = (1, 4) if isinstance(prior, DensityPrior) else (1, 4, 4)
    factor = prior.factor.draw(rng, 1, 4)
    cotangent = rng.standard_normal(shape)
    step = rng.standard_normal(shape)
    assert factor.shape == shape
    change = prior.factor.compose(factor + step) - prior.factor.compose(factor)
    assert (cotangent * change).sum() == pytest.approx(
        (prior.factor.pullback(factor, cotangent) * step).sum()
    )
    with pytest.raises(ParameterError, match="width"):
        prior.factor.draw(rng, 1, 4, 2)


UNTIED = Problem(
    {"name": "attention-indexed", "tokens": 3, "symmetric": False},
    "softmax",
    {"name": "bilinear", "rho": 0.5},
).model


@pytest.mark.parametrize("dimension", [100, 400])
@pytest.mark.parametrize(
    ("prior", "symmetric"),
    [
        (SpectrumPrior(Semicircle()), True),
        (SimulatedPrior(Matrix(), EXTENSIVE), True),
        (SimulatedPrior(Matrix(), UNTIED), False),
    ],
)
def test_matrices_start_with_the_spectrum_of_noise(prior, symmetric, dimension, rng):
    """Mean square 1, largest singular value 2, in every dimension; steps along a gradient move the signal by 1/D of it."""
    factor = prior.factor.draw(rng, 1, dimension)
    (start,) = prior.factor.compose(factor)
    assert np.array_equal(start, start.T) is symmetric
    assert np.sum(start**2) / dimension == pytest.approx(1, abs=6 / dimension)
    assert np.linalg.norm(start, 2) == pytest.approx(2, rel=0.1)
    gradient = prior.sample(rng, 1, dimension)
    step = prior.factor.compose(prior.factor.pullback(factor, gradient))
    assert step == pytest.approx((2 if symmetric else 1) / dimension * gradient)


def test_what_is_complete_is_left_alone():
    wishart = {"name": "wishart", "rho": 0.5}
    for name, prior in (
        ("sequence-multi-index", "gaussian"),
        ("attention-indexed", wishart),
    ):
        problem = Problem({"name": name, "tokens": 2}, "softmax", prior)
        assert complete_prior(problem.prior, problem.model) is problem.prior


class Nothing(Prior):
    name = "nothing"


class NoSample(Nothing):
    def denoise(self, R, Qhat):
        return Denoised(R, Qhat)


@pytest.mark.parametrize(
    ("prior", "model", "message"),
    [
        (Nothing(), LOW, "defines neither denoise nor a law with log_density"),
        (NoSample(), LOW, "defines denoise but not sample"),
        (
            Density(laplace),
            EXTENSIVE,
            "neither denoise nor a law with quantile or eigenvalues",
        ),
        (Semicircle(), LOW, "neither denoise nor a law with log_density"),
        (Density(lambda w: np.full_like(w, -np.inf)), LOW, "density is 0 everywhere"),
        (Density(lambda w: -2 * (w - 1e6) ** 2), LOW, "variance exceeds rounding"),
        (Density(lambda w: np.nan * w), LOW, "not finite"),
        (Density(lambda w: 0.0), LOW, "same shape as its argument"),
    ],
)
def test_refusals(prior, model, message):
    with pytest.raises(ParameterError, match=message) as caught:
        complete_prior(prior, model)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_overlap_is_exact_where_little_is_known_and_no_warning_leaves_theory(
    recwarn,
):
    """Density of N(0, 9): Q = v^2 Qhat / (1 + v Qhat), the best linear estimate being the best."""
    from smimbench.run.theory_solver import TheorySolver
    from tests.stretched import stretched

    with stretched("softmax") as problem:
        for qhat in 10.0 ** np.arange(-13, 7):
            found = problem.prior.overlap(scalar(qhat))
            assert float(found.Q[0, 0]) == pytest.approx(
                81 * qhat / (1 + 9 * qhat), rel=1e-4
            )
            assert float(found.V[0, 0]) == pytest.approx(9 / (1 + 9 * qhat), rel=1e-5)
        points = TheorySolver().points(problem, [0.3, 1.0, 3.0])
        assert all(0 <= branches[0].mse[0] <= 9 for branches in points)
    assert not [
        str(w.message) for w in recwarn if issubclass(w.category, RuntimeWarning)
    ]
