"""State evolution of several components: toy channels whose curves and thresholds are known."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize
from smimbench_attention.channels.sequence.softmax import one_layer as one_layer
from smimbench_attention.priors.gaussian import Gaussian
from smimbench_attention.priors.wishart import Wishart

from smimbench.derive.sampled_information import sampled_moments
from smimbench.interfaces import Channel, Posterior, Uncertain
from smimbench.theory.continuation import Continuation
from smimbench.theory.curve import free_entropy_between, perfect_recovery_threshold
from smimbench.theory.fixed_point_curve import FixedPointCurve
from smimbench.theory.information import information_at, linear_response, overlap_at
from smimbench.theory.predictions import competing, thresholds
from smimbench.theory.scalar import scalar_curve
from smimbench.theory.tracing import components_decouple


class Model:
    def __init__(self, sites, kappa=1.0):
        self.sites, self.kappa = sites, kappa


class Problem:
    """What the theory needs of a problem."""

    def __init__(self, channel, components, sites, prior=None, kappa=1.0):
        self.channel, self.components = channel, components
        self.model, self.prior = Model(sites, kappa), prior or Gaussian()

    def require_theory(self):
        """Its inputs are Gaussian."""


class Apart(Channel):
    """Independent components; of component a the sample ratio is given as a function of its overlap, ``ratios[a](q)``.

    ``I = q / (v ratio(q))``: weak recovery at ``ratio(0)``, ``V = 0`` stable from ``ratio(1)`` on.
    """

    symmetry = "signs"

    def __init__(self, *ratios):
        self.ratios = ratios

    def information(self, Q, V):
        value = np.zeros(Q.shape)
        for a, ratio in enumerate(self.ratios):
            q, v = Q[..., a, a], V[..., a, a]
            value[..., a, a] = q / (v * ratio(q))
        return Uncertain(value, 0.0, "closed form")

    def susceptibility(self, Q, V):
        return Uncertain(
            np.diag([1 / ratio(0.0) for ratio in self.ratios]) * (Q == 0),
            0.0,
            "closed form",
        )


def apart(*ratios):
    return Problem(Apart(*ratios), len(ratios), 2)


def line(start, end):
    return lambda q: start + (end - start) * q


LINES = {
    "early": (0.1, 0.3),
    "late": (0.2, 0.5),
    "after": (0.7, 0.8),
    "beside": (0.15, 0.32),
}


@pytest.mark.parametrize(
    "names",
    [
        ("early", "late"),
        ("late", "early"),
        ("early", "early"),
        ("after", "early"),
        ("late", "after", "early", "beside"),
    ],
)
def test_independent_components_are_learned_in_order(names):
    ends = [LINES[name] for name in names]
    problem = apart(*(line(*pair) for pair in ends))
    found = thresholds(problem)
    order = sorted(range(len(names)), key=lambda a: ends[a][0])
    assert [step.component for step in found.sequential] == order
    for step, a in zip(found.sequential, order):
        assert step.alpha == pytest.approx(ends[a][0], rel=1e-6)
        assert step.error < 1e-6
    assert found.weak_recovery == found.sequential[0].threshold
    end = max(end for _, end in ends)
    assert found.perfect_recovery.value == pytest.approx(end, rel=1e-4)
    assert found.hard_phase is None
    alphas = [0.05, 0.12, 0.18, 0.25, 0.31, 0.45, 0.6, 0.75, 0.9]
    for alpha, predictions in zip(alphas, competing(problem, alphas)):
        assert [p.branch for p in predictions] == ["unique"]
        overlap = np.diagonal(predictions[0].Q)
        expected = np.array(
            [np.clip((alpha - start) / (end - start), 0, 1) for start, end in ends]
        )
        assert_allclose(overlap, expected, atol=2e-4)
        assert np.all(np.abs(overlap - expected) < 3 * predictions[0].error + 1e-5)
        assert predictions[0].error.max() < 2e-3
        assert predictions[0].free_entropy is None


def hill(q):
    return 0.5 + 2.2 * q - 1.7 * q * q


PEAK = 0.5 + 2.2**2 / (4 * 1.7)


@pytest.mark.parametrize(
    "others", [(), (line(0.1, 0.3),), (hill,)], ids=["alone", "after another", "twice"]
)
def test_a_jump_is_reported_with_its_hard_phase(others):
    # alpha climbs to 1.21 and falls to 1: between the two, recovery is possible but not from the prior mean.
    problem = apart(hill, *others)
    curve = FixedPointCurve(problem)
    found = curve.thresholds()
    learned = {step.component: step.alpha for step in found.sequential}
    assert learned[0] == pytest.approx(0.5, rel=1e-6)
    assert found.hard_phase.ends == pytest.approx([1.0, PEAK], abs=1e-4)
    assert found.late_recovery.value == pytest.approx(PEAK, abs=1e-4)
    assert found.perfect_recovery.value == pytest.approx(1.0, abs=1e-4)
    for alpha in (0.7, 0.95, 1.05, 1.2, 1.25):
        predictions = curve.competing([alpha])[0]
        if not 1 < alpha < PEAK:
            assert [p.branch for p in predictions] == ["unique"]
        else:
            assert [p.branch for p in predictions] == ["informed", "uninformed"]
            assert not predictions[0].V.any()
            assert predictions[0].free_entropy == np.inf
        q = (2.2 - np.sqrt(max(2.2**2 - 4 * 1.7 * (alpha - 0.5), 0))) / (2 * 1.7)
        assert predictions[-1].Q[0, 0] == pytest.approx(
            1.0 if alpha > PEAK else q, abs=1e-3
        )
        if others == () and 1 < alpha < PEAK:
            grid = np.linspace(0, q, 100_001)
            expected = np.trapezoid(
                0.5 * (alpha / hill(grid) - 1) * grid / (1 - grid), grid
            )
            assert predictions[-1].free_entropy == pytest.approx(expected, abs=1e-4)


def test_the_better_of_two_imperfect_branches_has_the_larger_free_entropy():
    # alpha(q) falls from 1 and rises again without end, next to a component that is learned from the beginning.
    def rate(q):
        return 1 + 2 * q + 12 * q**2 / (1 + 8 * q**4)

    class Curve(Apart):
        def information(self, Q, V):
            value = np.zeros(Q.shape)
            value[..., 0, 0] = rate(Q[..., 0, 0]) * Q[..., 0, 0]
            value[..., 1, 1] = 0.3
            return Uncertain(value, 0.0, "closed form")

        def susceptibility(self, Q, V):
            return Uncertain(np.diag([1.0, 0.0]) * (Q == 0), 0.0, "closed form")

    problem = Problem(Curve(), 2, 1)
    q = np.linspace(1e-4, 0.98, 200_001)
    alpha = 1 / ((1 - q) * rate(q))

    def lead(a):
        end = np.flatnonzero(alpha <= a)[-1]
        force = 0.5 * (a * rate(q) * q - q / (1 - q))
        return np.trapezoid(force[:end], q[:end])

    low = alpha.min()
    equal = optimize.brentq(lead, low * 1.01, 0.99)
    found = thresholds(problem)
    assert [step.component for step in found.sequential] == [1, 0]
    ratios = [step.alpha for step in found.sequential]
    assert ratios == pytest.approx([0.0, 1.0], abs=1e-7)
    assert found.weak_recovery.value == 0.0
    assert found.perfect_recovery is None
    assert found.hard_phase.ends == pytest.approx([equal, 1.0], rel=1e-3)
    for a in (0.5 * (low + equal), 0.5 * (equal + 1)):
        pair = competing(problem, [a])[0]
        assert [p.branch for p in pair] == (
            ["uninformed", "informed"] if a < equal else ["informed", "uninformed"]
        )
        by = {p.branch: p for p in pair}
        assert by["uninformed"].Q[0, 0] == 0.0
        assert by["informed"].Q[0, 0] == pytest.approx(
            q[np.flatnonzero(alpha <= a)[-1]], abs=1e-3
        )
        gap = by["informed"].free_entropy - by["uninformed"].free_entropy
        assert gap == pytest.approx(lead(a), abs=2e-4)
        assert by["informed"].Q[1, 1] == pytest.approx(
            0.3 * a / (1 + 0.3 * a), rel=1e-5
        )


def test_one_component_agrees_with_the_scalar_solver():
    class OneLayer(Channel):
        symmetry = "signs"

        def information(self, Q, V):
            return one_layer.information(Q, V, 2)

        def susceptibility(self, Q, V):
            return Uncertain(6.0 * (Q == 0), 0.0, "closed form")

    problem = Problem(OneLayer(), 1, 2)
    alphas = [0.1, 0.18, 0.3, 0.45, 0.6]
    for many, one in zip(
        FixedPointCurve(problem).competing(alphas),
        scalar_curve(problem).predict(alphas),
    ):
        assert many[0].Q[0, 0] == pytest.approx(one.Q[0, 0], abs=2e-5)


class Mixed(Channel):
    """Linear labels ``z + noise`` with correlated noise: ``I = C (V + N)^{-1}``."""

    symmetry = "none"

    def __init__(self, noise, sites=2):
        self.noise, self.sites = np.asarray(noise, dtype=float), sites

    def information(self, Q, V):
        return Uncertain(self.sites * np.linalg.inv(V + self.noise), 0.0, "closed form")

    def forward(self, z, *, rng=None):
        return z + np.linalg.cholesky(self.noise) @ rng.standard_normal(z.shape)

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        gain = V @ np.linalg.inv(V + self.noise)
        mean = omega + gain @ (y - omega)
        covariance = V - gain @ V
        second = None
        if second_moment:
            second = mean[:, :, :, None, None] * mean[:, None, None, :, :]
            second = second + np.einsum(
                "pq,cd->pcqd", covariance, np.eye(omega.shape[-1])
            )
        return Posterior(mean, covariance, second)


def exact_mixed(noise, sites, alpha):
    values, vectors = np.linalg.eigh(noise)
    # v = 1 / (1 + alpha C / (v + noise)) for each eigenvalue of the noise
    b = values + alpha * sites - 1
    v = (-b + np.sqrt(b * b + 4 * values)) / 2
    return (vectors * v) @ vectors.T


NOISES = [np.diag([0.05, 0.6]), np.array([[0.3, 0.2], [0.2, 0.5]])]


@pytest.mark.parametrize("noise", NOISES, ids=["apart", "mixed"])
def test_linear_labels_with_closed_form(noise):
    problem = Problem(Mixed(noise), 2, 2)
    assert components_decouple(problem) == (noise[0, 1] == 0)
    alphas = [0.02, 0.3, 1.0, 5.0]
    for alpha, found in zip(alphas, competing(problem, alphas)):
        assert [p.branch for p in found] == ["unique"]
        V = exact_mixed(noise, 2, alpha)
        assert_allclose(found[0].V, V, rtol=2e-4, atol=1e-6)
        assert_allclose(found[0].Q, np.eye(2) - V, rtol=1e-3, atol=1e-5)
        assert np.all(np.abs(np.diagonal(found[0].V - V)) < 5 * found[0].error + 1e-7)
        assert_allclose(iterate(problem, alpha, 1e-6), V, atol=1e-7)
    found = thresholds(problem)
    assert found.weak_recovery.value == 0.0
    assert found.perfect_recovery is None
    assert found.hard_phase is None


def test_coupled_noiseless_labels_count_their_equations():
    class Projection(Mixed):
        """One combination of two components is seen without noise, on three sites."""

        def __init__(self):
            super().__init__(np.eye(2), 3)

        def information(self, Q, V):
            c = np.array([1.0, 2.0])
            value = (
                3 * c[:, None] * c / (c @ V @ c)[..., None, None]
                if V.ndim == 2
                else None
            )
            return Uncertain(value, 0.0, "closed form")

    # tr(V I) = 3 for every V, two unknowns: alpha = 2 / 3. The direction that balances V is found, not given.
    problem = Problem(Projection(), 2, 3)
    limit = perfect_recovery_threshold(problem)
    assert limit.value == pytest.approx(2 / 3, rel=1e-3)
    problem.channel.equations = 3.0
    assert perfect_recovery_threshold(problem).value == pytest.approx(2 / 3, rel=1e-6)


class Noiseless(Channel):
    """``I_aa = equations_a / V_aa``: the one-layer softmax of matrices is of this kind."""

    symmetry = "none"

    def __init__(self, *counts):
        self.counts = np.array(counts)

    def information(self, Q, V):
        inverse = 1 / np.diagonal(V, axis1=-2, axis2=-1)
        return Uncertain(
            (self.counts * inverse)[..., None] * np.eye(len(self.counts)),
            0.0,
            "closed form",
        )


def test_matrices_of_small_width_leave_the_prior_mean_at_a_finite_information():
    # V = 1 for c < 1, c (2 - c) for 1 < c < 2, 0 above, with c = kappa alpha equations.
    counts = (2.0, 5.0)
    problem = Problem(Noiseless(*counts), 2, 3, Wishart(0.0), kappa=2.0)
    assert components_decouple(problem)
    found = thresholds(problem)
    assert [step.component for step in found.sequential] == [1, 0]
    ratios = [step.alpha for step in found.sequential]
    assert ratios == pytest.approx([1 / 10, 1 / 4], rel=1e-7)
    assert found.perfect_recovery.value == pytest.approx(2 / 4, rel=1e-4)
    for alpha in (0.05, 0.12, 0.18, 0.24, 0.3, 0.4, 0.49, 0.6):
        prediction = competing(problem, [alpha])[0][0]
        c = 2 * alpha * np.array(counts)
        expected = np.where(c < 1, 1, np.where(c < 2, c * (2 - c), 0))
        assert_allclose(np.diagonal(prediction.V), expected, atol=2e-4)


class Sampled(Channel):
    """Two independent directions, each seen on two sites up to its sign, with a posterior in place of formulas."""

    symmetry = "signs"
    components = 2

    def forward(self, z, *, rng=None):
        return np.einsum("npc,npd->npcd", z, z)

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        n, P, C = omega.shape
        first = np.sqrt(np.einsum("npcc->npc", y))
        u = np.where(y[:, :, :1, :].reshape(n, P, C) < 0, -first, first)
        u[:, :, 0] = first[:, :, 0]
        v = np.diagonal(V)[:, None]
        mean = u * np.tanh((u * omega / v).sum(-1, keepdims=True))
        second = None
        if second_moment:
            second = np.einsum("npc,nqd->npcqd", mean, mean)
            for p in range(P):
                second[:, p, :, p, :] = y[:, p]
        return Posterior(mean, np.diag(v[:, 0]), second)


def test_thresholds_from_a_posterior_alone():
    found = Continuation(Problem(Sampled(), 2, 2))
    found.trace()
    assert [b.component for b in found.bifurcations] == [0, 1]
    for bifurcation in found.bifurcations:
        assert bifurcation.alpha == pytest.approx(1 / 6, rel=1e-3)


def test_linear_response_of_directions_that_mix():
    class Rotated(Sampled):
        """The same labels for two directions that are a rotation of the model's."""

        symmetry = "signed-permutations"
        turn = np.array([[0.6, 0.8], [-0.8, 0.6]])

        def forward(self, z, *, rng=None):
            return super().forward(self.turn @ z)

        def posterior(self, y, omega, V, *, second_moment=False, rng=None):
            found = super().posterior(
                y,
                self.turn @ omega,
                self.turn @ V @ self.turn.T,
                second_moment=second_moment,
            )
            second = found.second_moment
            if second is not None:
                second = np.einsum(
                    "ap,npcqd,bq->nacbd", self.turn.T, second, self.turn.T
                )
            return Posterior(self.turn.T @ found.mean, found.covariance, second)

    value, error = linear_response(
        Problem(Rotated(), 2, 2), np.zeros((2, 2)), np.eye(2)
    )
    radius = np.abs(np.linalg.eigvals(value.reshape(4, 4))).max()
    assert radius == pytest.approx(6.0, rel=0.02)
    assert error.max() < 0.1


def test_free_entropy_between_two_overlaps_does_not_depend_on_the_way():
    # phi for linear labels is known: minus half the log-determinants and traces of the Gaussian model.
    noise, sites, alpha = NOISES[1], 2, 0.8
    problem = Problem(Mixed(noise), 2, 2)

    def phi(qhat):
        V = np.linalg.inv(np.eye(2) + qhat)
        Q = np.eye(2) - V
        prior = (
            -0.5 * np.trace(Q @ qhat)
            + 0.5 * np.trace(qhat)
            - 0.5 * np.linalg.slogdet(np.eye(2) + qhat)[1]
        )
        return prior - 0.5 * alpha * sites * np.linalg.slogdet(V + noise)[1]

    first, second = (
        np.array([[0.2, 0.1], [0.1, 0.4]]),
        np.array([[3.0, -1.0], [-1.0, 7.0]]),
    )
    found, error = free_entropy_between(problem, alpha, first, second)
    assert found == pytest.approx(phi(second) - phi(first), abs=1e-5)
    assert error == 0.0


def iterate(problem, alpha, start):
    """V of the fixed point of ``Qhat = kappa alpha I(Q)``, ``Q = overlap(Qhat)``, without tricks."""
    Q, V = overlap_at(problem, start * np.eye(problem.components))
    for _ in range(2000):
        before = Q
        Q, V = overlap_at(
            problem, problem.model.kappa * alpha * information_at(problem, Q, V).value
        )
        if np.abs(Q - before).max() <= 1e-9:
            break
    return V


@pytest.mark.parametrize("q", [(0.0, 0.0), (0.3, 0.0), (0.6, 0.2)])
def test_sampled_moments_agree_with_closed_forms(q):
    Q = np.diag(q)
    V = np.eye(2) - Q
    information, susceptibility = sampled_moments(Sampled(), 2, Q, V)
    for a in range(2):
        expected = one_layer.information(Q[a:, a:][:1, :1], V[a:, a:][:1, :1], 2).value[
            0, 0
        ]
        if q[a] == 0:
            assert information.value[a, a] == pytest.approx(0.0, abs=1e-12)
            assert susceptibility.value[a, a] == pytest.approx(6.0, rel=1e-9)
        else:
            assert abs(information.value[a, a] - expected) < 4 * information.error[a, a]
            assert information.error[a, a] < 0.03 * expected
            assert susceptibility.value[a, a] == 0.0
    assert abs(information.value[0, 1]) < 4 * information.error[0, 1] + 1e-12
