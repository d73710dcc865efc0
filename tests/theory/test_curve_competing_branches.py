"""Noiseless labels: counting decides whether perfect recovery is optimal, linearization whether it is stable."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, special
from smimbench_attention.channels.linear import SequenceLinear
from smimbench_attention.channels.sequence.perceptron import Probit
from smimbench_attention.priors.gaussian import Gaussian

from smimbench.interfaces import Channel, Overlap, Prior, Uncertain
from smimbench.theory.curve import TurningPoint, perfect_recovery_threshold
from smimbench.theory.fixed_point_curve import fixed_point_curve
from smimbench.theory.predictions import competing, thresholds
from smimbench.theory.scalar import local_extrema
from smimbench.theory.types import HARD_PHASE, Prediction, Threshold
from tests.theory.test_predictions import two_point_information


class LowRank(Prior):
    """A prior of one component with mean 0 and variance 1, given by its error; like many it stops at some information."""

    most = 1e12

    def second_moment(self, components):
        return np.eye(components)

    def mean_overlap(self, components):
        return np.zeros((components, components))

    def overlap(self, qhat):
        V = np.vectorize(self.error)(
            np.minimum(np.asarray(qhat, dtype=float), self.most)
        )
        return Overlap(1 - V, V)


class Sparse(LowRank):
    """Gaussian entries with probability rho, else 0."""

    rho = 0.4

    def error(self, q):
        gain = q / self.rho
        ends = math.asinh(12 * math.sqrt(1 + gain))
        x, h = np.linspace(-1, 1, 401, retstep=True)
        t = np.sinh(ends * x)
        spike = (1 - self.rho) * np.exp(-t * t / 2)
        slab = self.rho * np.exp(-t * t / (2 * (1 + gain))) / np.sqrt(1 + gain)
        inner = slab / (self.rho * (1 + gain))
        between = (
            spike
            * slab
            / np.maximum(spike + slab, 1e-300)
            * t
            * t
            * gain
            / (self.rho * (1 + gain) ** 2)
        )
        return float(
            np.sum(ends * np.cosh(ends * x) * (inner + between))
            * h
            / math.sqrt(2 * math.pi)
        )


class Binary(LowRank):
    """Entries +1 and -1."""

    most = 2500.0

    def error(self, q):
        root = math.sqrt(q)
        x, h = np.linspace(-root - 12, 12, 601, retstep=True)
        decay = np.exp(-2 * np.abs(root * (root + x)))
        return float(
            np.sum(np.exp(-x * x / 2) * 4 * decay / (1 + decay) ** 2)
            * h
            / math.sqrt(2 * math.pi)
        )


class Together(LowRank):
    """Independent components with the same prior."""

    def __init__(self, prior):
        self.prior = prior

    def overlap(self, qhat):
        V = np.vectorize(self.prior.error)(
            np.minimum(np.diagonal(qhat, axis1=-2, axis2=-1), self.prior.most)
        )
        V = V[..., None] * np.eye(V.shape[-1])
        return Overlap(np.eye(V.shape[-1]) - V, V)


class Modulus(Channel):
    """``y = |z|``: equations that hold only half of the truth."""

    components, symmetry = 1, "signs"

    def information(self, Q, V):
        u = np.sqrt(Q / np.maximum(V, 1e-300))[..., None]
        wide, narrow = np.maximum(u, 1), np.minimum(u, 1)
        x, w = np.polynomial.legendre.leggauss(60)
        x, w = 5 * (x + 1), 5 * w
        t, ht = np.linspace(-8, 8, 161, retstep=True)
        density = np.exp(-t * t / 2) * ht / math.sqrt(2 * math.pi)

        def moved(s):
            z = s[..., None] + t
            return ((z * np.tanh(s[..., None] * z) - s[..., None]) ** 2 * density).sum(
                -1
            )

        normal = np.exp(-((x / wide) ** 2) / 2) / math.sqrt(2 * math.pi) / wide
        inside = 2 * (
            w * np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * moved(narrow * x)
        ).sum(-1)
        missing = 2 * (w * normal * (1 - moved(x))).sum(-1)
        return Uncertain(
            np.where(u[..., 0] > 1, 1 - missing, inside) / np.maximum(V, 1e-300),
            0.0,
            "quadrature",
        )


class Sign(Channel):
    """``y = sign(z)``: no equation, however many labels."""

    components, symmetry = 1, "none"

    def information(self, Q, V):
        V = np.maximum(V, 1e-300)
        u = np.sqrt(Q / V)[..., None]
        x, w = np.polynomial.legendre.leggauss(80)
        x, w = 5 * (x + 1), 5 * w
        wide, narrow = np.maximum(u, 1), np.minimum(u, 1)
        law = np.exp(-((x / wide) ** 2) / 2) / (math.sqrt(2 * math.pi) * wide)
        logs = special.log_ndtr(narrow * x) + special.log_ndtr(-narrow * x)
        found = (
            2
            * (w * law * np.exp(-((narrow * x) ** 2) - logs) / (2 * math.pi)).sum(-1)
            / V
        )
        return Uncertain(found, 0.0, "quadrature")


class Problem:
    """What the theory needs of a problem."""

    def __init__(self, channel, prior, components=1, sites=1):
        self.channel, self.prior, self.components = channel, prior, components
        self.model = type("Model", (), {"sites": sites, "kappa": 1.0, "rank": "low"})

    def require_theory(self):
        """Its inputs are Gaussian."""


def linear():
    return SequenceLinear(tokens=1)


@pytest.mark.parametrize("q", [0.05, 0.3, 0.7, 0.95])
def test_phase_retrieval_is_the_two_point_integral_of_one_token(q):
    found = Modulus().information(np.array([[q]]), np.array([[1 - q]])).value
    assert float(found[0, 0]) == pytest.approx(two_point_information(q, 1), rel=1e-6)


def test_phase_retrieval_has_its_weak_recovery():
    assert thresholds(
        Problem(Modulus(), Gaussian())
    ).weak_recovery.value == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("problem", "begins", "ends"),
    [
        (Problem(linear(), Sparse()), 0.4, 0.5892),
        (Problem(linear(), Binary()), 0.0, 0.4795),
        (Problem(Modulus(), Binary()), 0.0, 0.8662),
        (Problem(Modulus(), Gaussian()), 1.0, 1.1285),
    ],
    ids=["compressed sensing", "binary", "sizes of binary", "phase retrieval"],
)
def test_noiseless_equations_are_solved_as_soon_as_there_are_enough(
    problem, begins, ends
):
    found = thresholds(problem)
    hard = found.hard_phase
    assert hard.ends == pytest.approx([begins, ends], abs=1e-4)
    for threshold, value in (
        (hard.spinodal, begins),
        (hard.information_theoretic, begins),
        (hard.algorithmic, ends),
    ):
        # three digits of the cruder quadratures of this file, on top of what is stated
        assert abs(threshold.value - value) < 3 * threshold.error + 6e-5
    assert found.late_recovery == hard.algorithmic
    assert found.perfect_recovery.value == pytest.approx(begins, abs=1e-4)
    (after,) = competing(problem, [1.1 * ends])[0]
    assert after.branch == "unique"
    assert float(after.mse[0]) < 1e-6
    inside = begins + 0.2 * (ends - begins)
    best, other = competing(problem, [inside])[0]
    assert (best.branch, other.branch) == ("informed", "uninformed")
    assert best.V[0, 0] == best.error[0] == 0.0
    assert best.free_entropy == math.inf
    assert other.V[0, 0] > 0.3
    if begins > 0:
        assert [p.branch for p in competing(problem, [0.99 * begins])[0]] == ["unique"]


def test_binary_perceptron_has_a_transition_of_its_own():
    """Labels that are no equations: the bits of the signal, log 2, against those of the labels."""
    problem = Problem(Sign(), Binary())
    for point in competing(problem, [1.0, 1.3])[0] + competing(problem, [1.3])[0]:
        if point.branch == "informed":
            # It is certain of the signal: labels gain alpha log 2 over guessing, of which the prior takes log 2.
            assert point.free_entropy == pytest.approx(
                (point.alpha - 1) * math.log(2), abs=1e-7
            )
    found = thresholds(problem)

    def potential(q, alpha):
        """Replica-symmetric free entropy of the overlap q, less that of q = 0."""
        qhat = optimize.brentq(lambda x: problem.prior.error(x) - (1 - q), 1e-9, 60)
        x, w = np.polynomial.hermite_e.hermegauss(120)
        w = w / w.sum()
        signal = (
            float(w @ np.log(np.cosh(np.sqrt(qhat) * x + qhat))) - qhat * (1 + q) / 2
        )
        p = special.ndtr(np.sqrt(q / (1 - q)) * x)
        return signal + alpha * (2 * float(w @ special.xlogy(p, p)) + math.log(2))

    def lead(alpha):
        stuck = competing(problem, [alpha])[0]
        low = next(p for p in stuck if p.branch == "uninformed")
        return (alpha - 1) * math.log(2) - potential(float(low.Q[0, 0]), alpha)

    assert found.hard_phase.information_theoretic.value == pytest.approx(
        optimize.brentq(lead, 1.2, 1.3, xtol=1e-6), abs=2e-5
    )
    assert found.hard_phase.information_theoretic.error < 1e-6


def test_none_has_a_reason():
    found = thresholds(Problem(Sign(), Gaussian())).document()
    assert found["perfect_recovery"] is None
    assert "noisy or discrete labels" in found["reasons"]["perfect_recovery"]
    assert found["algorithmic"] is None
    assert "one branch" in found["reasons"]["algorithmic"]
    assert set(found["reasons"]) == {
        k for k in found if not found[k] and k not in ("hard_phase", "reasons")
    }


@pytest.mark.parametrize("below", [1e-6, 1e-4, 1e-3, 3e-3])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(linear(), Binary()),
        Problem(linear(), Sparse()),
        Problem(Probit(tokens=1, noise=1e-3), Binary()),
    ],
)
def test_both_branches_are_found_just_before_either_ends(problem, below):
    """Between two nodes the curve may turn: the end of a branch is a node, too."""
    found = thresholds(problem)
    for alpha in (
        found.hard_phase.algorithmic.value * (1 - below),
        found.hard_phase.spinodal.value * (1 + below),
    ):
        if alpha > 0:
            assert {point.branch for point in competing(problem, [alpha])[0]} == {
                "informed",
                "uninformed",
            }


@pytest.mark.parametrize(
    ("channel", "noise"),
    [(SequenceLinear, 1e-3), (SequenceLinear, 1e-9), (Probit, 1e-9)],
)
def test_noise_however_little_leaves_no_perfect_recovery(channel, noise):
    problem = Problem(channel(tokens=1, noise=noise), Binary())
    assert thresholds(problem).perfect_recovery is None
    best = competing(problem, [0.9])[0][0]
    assert best.V[0, 0] > 0


class Sampled(Channel):
    """A channel that gives its posterior only."""

    components, symmetry = 1, "none"

    def __init__(self, channel):
        self.forward, self.posterior = channel.forward, channel.posterior


@pytest.fixture(scope="module")
def pair():
    channel = Probit(tokens=1, noise=1e-3)
    return Problem(Sampled(channel), Binary()), Problem(channel, Binary())


@pytest.mark.parametrize(
    "alpha", [0.3, 0.65, 0.9, 1.2, 1.4, 1.475, 1.52, 1.6, 2.5, 4.0, 10.0, 100.0]
)
def test_sampled_information_leads_to_the_same_branches_within_its_error(pair, alpha):
    """Also beyond the last node, where hardly any label says anything, and no information can be sampled."""
    (sampled, exact) = (competing(problem, [alpha])[0] for problem in pair)
    assert [point.branch for point in sampled] == [point.branch for point in exact]
    for one, other in zip(sampled, exact):
        assert abs(one.V[0, 0] - other.V[0, 0]) < 4.5 * one.error[0]
        assert one.error[0] < 0.2 * other.V[0, 0] or one.V[0, 0] < 1e-9


def test_thresholds_of_sampled_information_are_right_to_their_error(pair):
    sampled, exact = map(thresholds, pair)
    for name in HARD_PHASE:
        found, other = (getattr(t.hard_phase, name) for t in (sampled, exact))
        assert abs(found.value - other.value) < 4 * found.error
    assert sampled.perfect_recovery is exact.perfect_recovery is None


@pytest.mark.parametrize("rho", [0.2, 0.37, 0.7])
def test_counting_of_several_sparse_components_states_what_it_leaves(rho):
    prior = Sparse()
    prior.rho = rho
    found = perfect_recovery_threshold(
        Problem(SequenceLinear(tokens=1, components=2), Together(prior), components=2)
    )
    assert 0 < abs(found.value - rho) < 2 * found.error < 0.02


@pytest.mark.parametrize("count", [2, 3])
def test_several_discrete_components_are_found_at_any_sample_ratio(count):
    prior = Together(Binary())
    problem = Problem(
        SequenceLinear(tokens=2, components=count), prior, components=count, sites=2
    )
    assert perfect_recovery_threshold(problem) == Threshold(0.0, 0.0)
    noisy = Problem(
        SequenceLinear(tokens=2, components=count, noise=1e-4),
        prior,
        components=count,
        sites=2,
    )
    assert perfect_recovery_threshold(noisy) is None
    best = competing(problem, [0.1])[0][0]
    assert not best.V.any()


class Steps(Channel):
    """Labels that jump, of two components that mix: few of them tell more, and below some error none that is drawn."""

    components, symmetry = 2, "none"

    def information(self, Q, V):
        unknown = np.diagonal(V, axis1=-2, axis2=-1)
        value = 0.7 / np.sqrt(unknown)[..., None] * np.eye(2) + 0.05 * (1 - np.eye(2))
        drawn = (unknown > 1e-7)[..., None] * value - 1e-30
        return Uncertain(
            drawn,
            np.abs(drawn) * np.sqrt(1e-6 / unknown)[..., None],
            "Monte Carlo (steps)",
        )


def test_what_hardly_any_label_tells_ends_in_perfect_recovery_of_discrete_signals():
    problem = Problem(Steps(), Together(Binary()), components=2)
    assert perfect_recovery_threshold(problem) == Threshold(0.0, 0.0)
    (low,), (high,) = competing(problem, [8.0])[0], competing(problem, [60.0])[0]
    for found in (low, high):
        assert found.branch == "unique"
        assert not found.V.any()
        assert not found.error.any()
    before = competing(problem, [0.6])[0]
    assert [point.branch for point in before] == ["informed", "uninformed"]
    assert (np.diagonal(before[1].V) > 0.3).all()


def test_an_error_that_is_not_zero_is_not_perfect_recovery(monkeypatch):
    """At the end of a hard phase the uninformed error may be as small as it is uncertain; perfect recovery is optimal there."""
    problem = Problem(SequenceLinear(tokens=2, components=2), Gaussian(), 2, 2)
    curve = fixed_point_curve(problem)
    monkeypatch.setattr(
        curve, "turning_points", [TurningPoint(Threshold(0.5, 0.0), True)]
    )
    monkeypatch.setattr(
        curve, "free_entropy", lambda p: (0.0 if p.V.any() else float("inf"), 0.0)
    )
    low = Prediction(
        1.0, 0.95 * np.eye(2), 0.05 * np.eye(2), np.full(2, 0.04), "uninformed", ""
    )
    high = Prediction(1.0, np.eye(2), np.zeros((2, 2)), np.zeros(2), "informed", "")
    monkeypatch.setattr(
        curve,
        "predict",
        lambda alphas, branch="": [high if branch == "informed" else low],
    )
    assert [p.branch for p in curve.competing([1.0])[0]] == ["informed", "uninformed"]
    high = replace(low, V=0.04 * np.eye(2))
    assert [p.branch for p in curve.competing([1.0])[0]] == ["unique"]


def test_turns_are_told_from_noise(rng):
    x = np.linspace(0, 1, 200)
    wave = np.sin(7 * x)
    expected = [
        (round(0.5 * math.pi / 7 * 199), True),
        (round(1.5 * math.pi / 7 * 199), False),
    ]
    assert local_extrema(wave, np.full(200, 1e-9)) == expected
    noisy = wave + 0.01 * rng.standard_normal(200)
    found = local_extrema(noisy, np.full(200, 0.05))
    assert [is_peak for _, is_peak in found] == [True, False]
    assert all(
        abs(index - other) < 12 for (index, _), (other, _) in zip(found, expected)
    )
    assert local_extrema(0.01 * rng.standard_normal(200), np.full(200, 0.05)) == []
    assert local_extrema(np.sort(noisy), np.full(200, 1e-9)) == []
