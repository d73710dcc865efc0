"""Fixed points found with rough values, and few accurate ones: against the accurate recursion alone, and closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.interfaces import Sampling, Uncertain
from smimbench.numerics.linalg import symmetric_logarithm
from smimbench.theory.coupled import UNFINISHED, CoupledCurve, Recursion, exponential
from smimbench.theory.first_order import tabulated_information
from smimbench.theory.information import information_at, overlap_at
from smimbench.theory.predictions import competing
from tests.theory.test_coupled import NOISES, Mixed, Problem, exact_mixed

ALPHAS = [0.02, 0.3, 1.0, 5.0]


class Rough(Mixed):
    """Linear labels whose rough information is off by some percent, differently at every overlap, and mixes components."""

    def __init__(self, noise, bias=0.03, error=1e-4):
        super().__init__(noise)
        self.bias, self.error = bias, error
        self.asked = {False: 0, True: 0}

    @property
    def sampling(self):
        return Sampling(rough_labels=self._rough_labels)

    def _rough_labels(self, Q, V):
        return 16

    def information(self, Q, V, *, labels=None):
        found = super().information(Q, V).value
        self.asked[labels is not None] += 1
        if labels is None:
            return Uncertain(found, self.error * np.abs(found), "Monte Carlo")
        tilt = self.bias * np.array([[1.0, 0.3], [0.3, -0.5]]) * (1 + 0.3 * np.trace(V))
        bent = exponential(symmetric_logarithm(found) + tilt)
        return Uncertain(bent, 0.03 * np.abs(bent), "Monte Carlo of few labels")


@pytest.mark.parametrize("bias", [0.0, 0.03, -0.2])
def test_rough_values_lead_to_the_accurate_fixed_point(bias):
    """The residual is at most a fiftieth of the information's error, and is no larger than what the recursion says of it."""
    channel = Rough(NOISES[1], bias)
    problem = Problem(channel, 2, 2)
    offset, start = None, np.eye(2)
    for alpha in ALPHAS:
        recursion = Recursion(problem, alpha)
        found = recursion.fixed_point(start, offset=offset)
        V = overlap_at(problem, found.qhat)[1]
        assert_allclose(V, exact_mixed(channel.noise, 2, alpha), rtol=2e-5, atol=1e-8)
        log = symmetric_logarithm(found.qhat)
        left = np.abs(recursion.image(log)[0] - log).max()
        assert left <= 2 * found.residual + 1e-9
        assert found.residual <= 0.02 * found.relative_error
        assert found.method == "Monte Carlo"
        start, offset = found.qhat, found.offset


def test_few_accurate_values_are_asked_for():
    channels = [Rough(NOISES[1]), Mixed(NOISES[1])]
    counted = []
    original = Mixed.information
    for channel in channels:
        if isinstance(channel, Rough):
            competing(Problem(channel, 2, 2), ALPHAS)
            counted.append(channel.asked[False])
            continue
        calls = []
        channel.information = lambda Q, V, calls=calls, c=channel: (
            calls.append(1),
            original(c, Q, V),
        )[1]
        competing(Problem(channel, 2, 2), ALPHAS)
        counted.append(len(calls))
    assert counted[0] < 0.3 * counted[1]


def test_both_branches_arrive_at_one_point():
    """The informed branch, which asks rough values only, recognizes the accurate point of the other."""
    channel = Rough(NOISES[1])
    problem = Problem(channel, 2, 2)
    curve = CoupledCurve(problem)
    lower = [curve.solve(alpha) for alpha in ALPHAS]
    before = channel.asked[False]
    upper = [curve.solve(alpha, "informed", low) for alpha, low in zip(ALPHAS, lower)]
    assert channel.asked[False] == before
    for low, high in zip(lower, upper):
        assert high.prediction.branch == "informed"
        assert_array_equal(low.prediction.V, high.prediction.V)
    assert [
        [point.branch for point in found] for found in competing(problem, ALPHAS)
    ] == [["unique"]] * len(ALPHAS)


def test_the_error_is_the_response_to_that_of_the_information():
    """An information that is larger by its error everywhere moves V by no more than is said, and by half of that at least."""
    alpha, error = 0.7, 1e-3
    found = CoupledCurve(Problem(Rough(NOISES[1], error=error), 2, 2)).solve(alpha)
    moved = exact_mixed(NOISES[1], 2, alpha * (1 + error))
    change = np.abs(np.diagonal(moved - exact_mixed(NOISES[1], 2, alpha)))
    assert (change <= 1.02 * found.prediction.error).all()
    assert (change >= 0.5 * found.prediction.error).all()


def test_what_does_not_settle_is_said():
    """A rough map whose difference from the accurate one changes as fast as the map itself."""

    class Wild(Rough):
        def information(self, Q, V, *, labels=None):
            found = super().information(Q, V, labels=labels)
            if labels is None:
                return found
            size = float(np.trace(symmetric_logarithm(found.value)))
            return found._replace(value=found.value * np.exp(0.4 * np.sin(40 * size)))

    found = Recursion(Problem(Wild(NOISES[1]), 2, 2), 1.0).fixed_point(np.eye(2))
    assert UNFINISHED in found.method or found.residual <= 0.02 * found.relative_error


@pytest.mark.parametrize("end", [True, False])
def test_information_along_joins_the_accurate_ends(end):
    channel = Rough(NOISES[1])
    problem = Problem(channel, 2, 2)
    Q = [share * np.array([[0.7, 0.1], [0.1, 0.9]]) for share in (0.0, 0.5, 1.0)]
    V = [np.eye(2) - q for q in Q]
    V[2] = np.diag(np.diagonal(V[2]))
    way = tabulated_information(problem, Q[0], V[0], Q[2] if end else None)
    accurate = [information_at(problem, *pair).value for pair in zip(Q, V)]
    found = [way(*pair) for pair in zip(Q, V)]
    assert_allclose(found[0], accurate[0], rtol=1e-12)
    rough = information_at(problem, Q[1], V[1], rough=True).value
    assert (
        np.abs(found[1] - accurate[1]).max() < 0.5 * np.abs(rough - accurate[1]).max()
    )
    if end:
        assert_allclose(found[2], accurate[2], rtol=1e-12)
        assert (
            np.abs(found[1] - accurate[1]).max()
            < 0.1 * np.abs(rough - accurate[1]).max()
        )
    plain = Problem(Mixed(NOISES[1]), 2, 2)
    assert_array_equal(
        tabulated_information(plain, Q[0], V[0])(Q[1], V[1]), accurate[1]
    )


class Tied(Mixed):
    """Labels of ``z_1 + z_2`` with noise, known up to errors of 1e-3: of ``z_1 - z_2`` they know nothing but errors."""

    symmetry = "permutations"

    def information(self, Q, V):
        exact = np.ones((2, 2)) / (V.sum() + self.noise)
        found = exact * (
            1 + 1e-3 * np.cos(5 * np.trace(V)) * np.array([[1.0, 0.3], [0.3, 0.9]])
        )
        return Uncertain(found, 1e-3 * exact, "Monte Carlo")


@pytest.mark.parametrize("alpha", [0.1, 1.0, 7.0])
def test_the_error_holds_for_directions_that_labels_do_not_see(alpha):
    noise = 0.3
    (point,) = competing(Problem(Tied(noise), 2, 1), [alpha])[0]
    # In the direction that is seen, v = 1 / (1 + 2 alpha / (2 v + noise)).
    half = (2 - 2 * alpha - noise) / 4
    v = half + np.sqrt(half * half + noise / 2)
    assert UNFINISHED not in point.method
    assert (np.abs(point.mse - (1 + v) / 2) < 4 * point.error).all()
    assert (point.error < 1.5e-3 * alpha + 1e-3).all()


def test_a_fixed_point_does_not_depend_on_the_other_sample_ratios():
    problem, alphas = (
        Problem(Rough(NOISES[1]), 2, 2),
        np.random.default_rng(3).permutation(np.geomspace(0.01, 9, 7)),
    )
    for points in competing(problem, alphas.tolist()):
        (alone,) = competing(Problem(Rough(NOISES[1]), 2, 2), [points[0].alpha])[0]
        assert_array_equal(alone.V, points[0].V)
        assert_array_equal(alone.error, points[0].error)
