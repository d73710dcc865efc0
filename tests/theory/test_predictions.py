"""State evolution against closed forms and integrals that are coded here and share nothing with the package.

Every fixed point lies on a curve that is known in parametric form, so the references need no root finder: choose the overlap
(or the noise), compute the sample ratio that belongs to it, and ask the package for that sample ratio.
"""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import integrate, optimize
from scipy.stats import chi

from smimbench.interfaces import Channel, Uncertain
from smimbench.problem.problem import Problem
from smimbench.theory.information import channel_information
from smimbench.theory.predictions import solve, thresholds
from smimbench.theory.scalar import scalar_curve
from tests import helpers


def attention(tokens=2, rho=0.5, channel="softmax", **parameters) -> Problem:
    return helpers.attention(channel, tokens, rho, **parameters)


def sequence(tokens=2, channel="softmax", **parameters) -> Problem:
    return helpers.sequence(channel, tokens, **parameters)


def point(problem: Problem, alpha: float):
    """The prediction that the package puts first."""
    return scalar_curve(problem).competing([alpha])[0][0]


def wishart_error(noise: float, rho: float) -> float:
    """``F = Delta - (4 pi^2 / 3) Delta^2 int mu^3`` with the density from the roots of its cubic, point by point."""
    a = 1 / math.sqrt(rho)

    def density(x: float) -> float:
        roots = np.roots([a * noise, -(a * x + noise), x + a - 1 / a, -1])
        return max(0.0, roots.imag.max()) / math.pi

    stationary = np.roots([noise * a**2, -2 * a * noise, noise + 1 - a**2, 2 * a, -1])
    g = np.sort(stationary[np.abs(stationary.imag) < 1e-9 * np.abs(stationary)].real)
    edges = np.sort(1 / g + noise * g + math.sqrt(rho) / (1 - a * g))
    total = mass = 0.0
    for low, high in zip(edges[::2], edges[1::2]):
        middle, half = (low + high) / 2, (high - low) / 2

        def under(t, power, middle=middle, half=half):
            return density(middle + half * math.sin(t)) ** power * half * math.cos(t)

        settings = {"epsabs": 1e-13, "epsrel": 1e-12, "limit": 400}
        total += integrate.quad(
            under, -math.pi / 2, math.pi / 2, args=(3,), **settings
        )[0]
        mass += integrate.quad(under, -math.pi / 2, math.pi / 2, args=(1,), **settings)[
            0
        ]
    assert mass == pytest.approx(1, abs=1e-8)
    return noise - (4 * math.pi**2 / 3) * noise**2 * total


RHOS = (0.05, 0.2, 0.5, 1.0, 2.0)
NOISES = (100.0, 3.0, 0.4, 0.05, 3e-3)


@pytest.fixture(scope="module")
def wishart_table():
    return {(noise, rho): wishart_error(noise, rho) for noise in NOISES for rho in RHOS}


def test_the_reference_itself_has_its_known_limits():
    """All of the prior's width at infinite noise; ``m Delta`` without noise, m the degrees of freedom over d^2 / 2."""
    for rho in RHOS:
        assert wishart_error(1e4, rho) == pytest.approx(1.0, abs=1e-3)
        m = 2 * rho - rho**2 if rho < 1 else 1.0
        assert wishart_error(1e-6, rho) / 1e-6 == pytest.approx(m, rel=2e-2)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("tokens", [2, 4])
def test_softmax_is_on_its_closed_curve(wishart_table, tokens, rho):
    """alpha (T^2 + T - 2) = F / Delta and MSE = F: one curve for every temperature and, rescaled, every T."""
    curve = [
        (wishart_table[n, rho] / n / (tokens**2 + tokens - 2), wishart_table[n, rho])
        for n in NOISES
    ]
    for beta in (1.0, 7.0):
        found = solve(attention(tokens, rho, beta=beta), [alpha for alpha, _ in curve])
        for prediction, (alpha, error) in zip(found, curve):
            assert prediction.alpha == alpha
            assert float(prediction.mse[0]) == pytest.approx(error, abs=1e-7)
            assert float(prediction.Q[0, 0]) == pytest.approx(1 + rho - error, abs=1e-7)
            assert float(prediction.error[0]) < 1e-6


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("tokens", [2, 4])
def test_softmax_recovers_perfectly_at_the_count_of_unknowns(tokens, rho):
    expected = (2 * rho - rho**2 if rho <= 1 else 1.0) / (tokens**2 + tokens - 2)
    found = thresholds(attention(tokens, rho))
    assert found.perfect_recovery.value == pytest.approx(expected, abs=1e-6)
    assert (
        abs(found.perfect_recovery.value - expected)
        <= 10 * found.perfect_recovery.error + 1e-9
    )
    assert found.weak_recovery is None
    assert found.sequential == ()
    below, above = solve(attention(tokens, rho), [0.99 * expected, 1.01 * expected])
    assert 0 < float(below.mse[0]) < 0.1
    assert float(above.mse[0]) == 0
    assert float(above.Q[0, 0]) == 1 + rho


@pytest.mark.parametrize("rho", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("tokens", [2, 3])
def test_noiseless_linear_labels_need_fewer_samples_by_the_shift_that_softmax_hides(
    tokens, rho
):
    m = 2 * rho - rho**2 if rho <= 1 else 1.0
    found = thresholds(attention(tokens, rho, "linear"))
    assert found.perfect_recovery.value == pytest.approx(
        m / (tokens**2 + tokens), abs=1e-6
    )


@pytest.mark.parametrize(("tokens", "rho"), [(2, 1.0), (3, 0.2)])
def test_noisy_linear_labels_in_both_conventions(wishart_table, tokens, rho):
    T, label_noise = tokens, 0.3
    for n in NOISES:
        v = wishart_table[n, rho]
        scaled = (v + label_noise) / (n * T * (T + 1))
        plain = 1 / (
            n
            * 2
            * (2 * T / (2 * v + label_noise) + T * (T - 1) / 2 / (v + label_noise))
        )
        for convention, alpha in (("scaled", scaled), ("plain", plain)):
            problem = attention(
                T, rho, "linear", noise=label_noise, noise_convention=convention
            )
            assert float(point(problem, alpha).mse[0]) == pytest.approx(v, abs=1e-6)
            assert point(problem, alpha).method.startswith("closed form")
    assert (
        thresholds(attention(tokens, rho, "linear", noise=label_noise)).perfect_recovery
        is None
    )


@pytest.mark.parametrize("tokens", [2, 3])
def test_the_small_width_limit(tokens):
    """At rho = 0, alpha counts n / (d r): with c = (T^2 + T - 2) alpha nothing for c < 1, everything for c > 2."""
    k = tokens**2 + tokens - 2
    problem = attention(tokens, 0.0)
    for c, error in (
        (0.5, 1.0),
        (0.999, 1.0),
        (1.2, 1.2 * 0.8),
        (1.5, 0.75),
        (1.9, 1.9 * 0.1),
        (2.5, 0.0),
    ):
        assert float(point(problem, c / k).mse[0]) == pytest.approx(error, abs=1e-6)
    found = thresholds(problem)
    assert found.weak_recovery.value == pytest.approx(1 / k, abs=1e-8)
    assert found.perfect_recovery.value == pytest.approx(2 / k, abs=1e-6)


@pytest.mark.parametrize("rho", [1e3, 1e5])
def test_a_very_wide_wishart_matrix_is_its_mean_and_a_gaussian_one(rho):
    """Then ``V = 1 / (1 + Qhat)``, and the fixed point for linear labels is the root of a quadratic equation."""
    for point in solve(
        attention(rho=rho, channel="linear", noise=0.1), [1e-3, 0.1, 1.0, 1e3]
    ):
        # (V + noise) (1 - V) = 2 * 3 alpha V: three pairs of two tokens, kappa = 2
        slope = 6 * point.alpha - 1 + 0.1
        V = 0.2 / (slope + math.hypot(slope, math.sqrt(0.4)))
        assert point.V[0, 0] == pytest.approx(V, rel=2 / rho)
        assert point.error[0] < 1e-9


@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("noise", [0.0, 0.01, 1.0])
def test_sequence_linear_is_ridge_regression(tokens, noise):
    alphas = [0.05, 0.3, 0.7, 1.4]
    for prediction in solve(sequence(tokens, "linear", noise=noise), alphas):
        b = 1 - prediction.alpha * tokens - noise
        v = (b + math.sqrt(b * b + 4 * noise)) / 2
        assert float(prediction.mse[0]) == pytest.approx(v, abs=1e-9)


def test_sequence_linear_has_the_threshold_of_linear_algebra():
    found = thresholds(sequence(4, "linear"))
    assert found.weak_recovery.value == 0
    assert found.perfect_recovery.value == pytest.approx(0.25, abs=1e-8)
    assert thresholds(sequence(4, "linear", noise=0.1)).perfect_recovery is None


def two_point_information(q: float, tokens: int) -> float:
    """``(E[r^2 tanh^2(q r^2 / v + sqrt(q / v) r x)] - M q) / v^2`` by nested adaptive quadrature, r ~ chi_M, x ~ N(0, 1)."""
    v = 1 - q

    def over_x(r: float) -> float:
        s = math.sqrt(q / v) * r

        def f(x):
            return (
                math.tanh(s * s + s * x) ** 2
                * math.exp(-x * x / 2)
                / math.sqrt(2 * math.pi)
            )

        return integrate.quad(
            f,
            -10,
            10,
            points=[np.clip(-s, -9.9, 9.9)],
            epsabs=1e-12,
            epsrel=1e-12,
            limit=200,
        )[0]

    density = chi(tokens).pdf
    mean = integrate.quad(
        lambda r: r * r * over_x(r) * density(r),
        0,
        9,
        epsabs=1e-10,
        epsrel=1e-10,
        limit=100,
    )[0]
    return (mean - tokens * q) / v**2


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_sequence_softmax_is_on_its_curve(tokens):
    """``alpha = Q / ((1 - Q) I(Q))``: the curve is read off the overlap, no iteration on either side."""
    overlaps = [0.03, 0.4, 0.85]
    alphas = [q / ((1 - q) * two_point_information(q, tokens)) for q in overlaps]
    for prediction, q in zip(solve(sequence(tokens), alphas), overlaps):
        assert float(prediction.Q[0, 0]) == pytest.approx(q, abs=1e-6)
        assert float(prediction.mse[0]) == pytest.approx(1 - q, abs=1e-6)


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_sequence_softmax_thresholds(tokens):
    found = thresholds(sequence(tokens))
    low, high = 1 / (tokens * (tokens + 1)), 1 / tokens
    assert found.weak_recovery.value == pytest.approx(low, abs=1e-6)
    assert found.perfect_recovery.value == pytest.approx(high, abs=1e-5)
    (step,) = found.sequential
    assert (step.component, step.threshold) == (0, found.weak_recovery)
    assert found.hard_phase is None
    below, inside, above = solve(
        sequence(tokens), [0.99 * low, 1.02 * low, 1.02 * high]
    )
    assert float(below.Q[0, 0]) == 0
    assert 0.001 < float(inside.Q[0, 0]) < 0.1
    assert float(above.mse[0]) < 1e-6


class Bare(Channel):
    """A channel stripped of everything but forward and posterior."""

    def __init__(self, channel):
        self.forward, self.posterior, self.components = (
            channel.forward,
            channel.posterior,
            channel.components,
        )


FALLBACK = [
    (attention(2, 0.5), 0.5, 1.5),
    (attention(3, 0.5), 1.2, 1.5),
    (attention(2, 0.5, "linear", noise=0.3), 0.9, 1.5),
    (attention(2, 0.5, "linear", noise=0.3, noise_convention="plain"), 0.9, 1.5),
    (sequence(2), 0.2, 1.0),
    (sequence(2), 0.8, 1.0),
    (sequence(3), 0.5, 1.0),
    (sequence(2, "linear", noise=0.5), 0.4, 1.0),
]


@pytest.mark.parametrize(
    ("problem", "q", "second"), FALLBACK, ids=[f"{p.label} {q}" for p, q, _ in FALLBACK]
)
def test_sampling_agrees_with_closed_forms_within_its_error(problem, q, second):
    Q, V = np.array([[q]]), np.array([[second - q]])
    exact = float(np.asarray(problem.channel.information(Q, V).value)[0, 0])
    found = channel_information(Bare(problem.channel), problem.model, Q, V)
    error = float(found.error[0, 0])
    assert found.method.startswith("Monte Carlo")
    assert abs(float(found.value[0, 0]) - exact) <= 4 * error + 1e-12 * exact
    assert error <= 0.02 * exact


def test_a_curve_that_was_sampled_says_so_and_holds_its_error():
    """The same channel with and without its closed form: the difference stays within a few of the errors quoted."""
    exact, bare = sequence(2), sequence(2)
    bare.channel = Bare(bare.channel)
    bare.channel.components = 1
    alphas = [0.2, 0.3, 0.4]
    for a, b in zip(solve(exact, alphas), solve(bare, alphas)):
        assert a.method == "closed form" or a.method.startswith("quadrature")
        assert b.method.startswith("Monte Carlo")
        assert abs(float(a.mse[0] - b.mse[0])) <= 4 * float(b.error[0]) + 1e-6
        assert 0 < float(b.error[0]) < 0.02
    found = thresholds(bare)
    assert found.weak_recovery.value == pytest.approx(
        1 / 6, abs=max(0.01, 4 * found.weak_recovery.error)
    )


class Cubic(Channel):
    """Not a channel but an information with a closed-form potential: ``I(Q) = a + b Q^2``, so that alpha(Q) is S-shaped."""

    components = 1
    a, b = 0.2, 6.0

    def information(self, Q, V):
        return Uncertain(self.a + self.b * Q**2, 0.0, "closed form")

    def alpha(self, q):
        return q / ((1 - q) * (self.a + self.b * q * q))

    def free_entropy(self, q, alpha):
        """``(1/2) int_0^q (alpha I - Q / (1 - Q)) dQ``."""
        return 0.5 * (alpha * (self.a * q + self.b * q**3 / 3) + q + math.log(1 - q))


@pytest.fixture(scope="module")
def s_shaped() -> Problem:
    problem = sequence(1, "linear")
    problem.channel = Cubic()
    return problem


def test_branches_and_their_free_entropies_follow_the_potential(s_shaped):
    """Spinodals from the derivative of alpha(Q), the transition from equal free entropies: both by hand here."""
    channel = s_shaped.channel
    q = np.linspace(1e-4, 1 - 1e-4, 400_001)
    slope = np.gradient(channel.alpha(q), q)
    turns = q[1:][np.sign(slope[1:]) != np.sign(slope[:-1])]
    assert len(turns) == 2
    top, bottom = channel.alpha(turns[0]), channel.alpha(turns[1])
    assert bottom < top

    def solutions(alpha):
        roots = np.roots(
            [
                -channel.b * alpha,
                channel.b * alpha,
                -channel.a * alpha - 1,
                channel.a * alpha,
            ]
        )
        real = np.sort(roots[np.abs(roots.imag) < 1e-9].real)
        return real[0], real[-1]

    def lead(alpha):
        low, high = solutions(alpha)
        return channel.free_entropy(high, alpha) - channel.free_entropy(low, alpha)

    transition = optimize.brentq(lead, bottom * 1.0001, top * 0.9999)
    found = thresholds(s_shaped)
    assert found.hard_phase.ends == pytest.approx([transition, top], abs=1e-4)
    curve = scalar_curve(s_shaped)
    for alpha, first in (
        (0.5 * (bottom + transition), "uninformed"),
        (0.5 * (transition + top), "informed"),
    ):
        pair = curve.competing([alpha])[0]
        assert len(pair) == 2
        assert pair[0].branch == first
        for prediction in pair:
            expected = solutions(alpha)[0 if prediction.branch == "uninformed" else 1]
            assert float(prediction.Q[0, 0]) == pytest.approx(expected, abs=1e-8)
            assert prediction.free_entropy == pytest.approx(
                channel.free_entropy(expected, alpha), abs=2e-4
            )
    assert [p.branch for p in curve.competing([0.9 * bottom])[0]] == ["unique"]
    assert [p.branch for p in curve.competing([1.1 * top])[0]] == ["unique"]


def test_the_order_of_the_question_does_not_change_the_answer():
    curve = scalar_curve(attention(2, 0.5))
    together = [float(p.mse[0]) for p in curve.predict([0.12, 0.05, 0.12, 5.0])]
    alone = [float(curve.predict([a])[0].mse[0]) for a in (0.12, 0.05, 0.12, 5.0)]
    assert together == pytest.approx(alone, rel=1e-13)


def test_a_branch_that_does_not_exist_is_refused(s_shaped):
    with pytest.raises(ValueError, match="branch must be"):
        solve(s_shaped, [0.5], "middle")


def test_tiny_and_huge_sample_ratios_have_answers():
    for problem in (
        attention(2, 0.5),
        attention(2, 0.5, "linear", noise=0.1),
        sequence(2),
        sequence(2, "linear", noise=0.1),
    ):
        tiny, huge = solve(problem, [1e-12, 1e9])
        assert float(tiny.mse[0]) == pytest.approx(1, abs=1e-6)
        assert 0 <= float(huge.mse[0]) < 1e-6
        assert np.isfinite(tiny.error).all()
        assert np.isfinite(huge.error).all()


def test_more_samples_never_hurt():
    for problem in (
        attention(3, 0.3, "linear", noise=0.01),
        sequence(3),
        attention(2, 1.5),
    ):
        errors = [float(p.mse[0]) for p in solve(problem, np.geomspace(1e-3, 3, 60))]
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(errors))
        assert errors[0] == pytest.approx(1, abs=0.2)


def test_several_components_are_sampled_as_matrices():
    problem = sequence(2, "linear", components=2, noise=0.5)
    Q = np.array([[0.5, 0.1], [0.1, 0.3]])
    V = np.eye(2) - Q
    exact = 2 * np.linalg.inv(V + 0.5 * np.eye(2))
    found = channel_information(
        Bare(problem.channel), problem.model, np.stack([Q, Q]), np.stack([V, V])
    )
    assert found.value.shape == (2, 2, 2)
    assert_array_equal(found.value[0], found.value[1])
    assert (np.abs(found.value[0] - exact) <= 5 * found.error[0] + 1e-9).all()
    assert float(np.max(found.error)) < 0.05


def test_the_error_of_sampling_is_neither_too_small_nor_too_large():
    """Over forty overlaps and channels, the deviation in units of its error is of order one."""
    scores = []
    for problem in (sequence(2), sequence(3), sequence(4)):
        for q in np.linspace(0.1, 0.9, 9):
            Q, V = np.array([[q]]), np.array([[1 - q]])
            exact = float(np.asarray(problem.channel.information(Q, V).value)[0, 0])
            found = channel_information(Bare(problem.channel), problem.model, Q, V)
            scores.append((float(found.value[0, 0]) - exact) / float(found.error[0, 0]))
    rms = math.sqrt(np.mean(np.square(scores)))
    assert 0.3 < rms < 2.0
