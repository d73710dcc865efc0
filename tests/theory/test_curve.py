"""One reader of curves, whoever makes them: a closed form, a grid of samples or a curve that is followed."""

import numpy as np
import pytest

from smimbench.interfaces import Uncertain
from smimbench.theory.curve import Potential, Segment, aitken
from smimbench.theory.fixed_point_curve import FixedPointCurve
from smimbench.theory.scalar import GridCurve, ScalarCurve, scalar_curve
from smimbench.theory.types import HARD_PHASE
from tests.theory.test_coupled import Apart, Problem


class Bent(Apart):
    """``alpha(q)`` climbs from 1, falls, and climbs without end: branches compete, and none of them is perfect."""

    def __init__(self, method):
        super().__init__(lambda q: 1 + 3 * q - 8 * q**2 + 6 * q**3 + 0.02 * q / (1 - q))
        self.method = method

    def information(self, Q, V):
        value = super().information(Q, V).value
        return Uncertain(value, 1e-6 * value, self.method)


MAKERS = {
    "closed form": lambda: scalar_curve(Problem(Bent("closed form"), 1, 1)),
    "grid": lambda: scalar_curve(Problem(Bent("Monte Carlo"), 1, 1)),
    "followed": lambda: FixedPointCurve(Problem(Bent("closed form"), 1, 1)),
}


@pytest.fixture(scope="module")
def curves():
    return {name: make() for name, make in MAKERS.items()}


def test_makers_are_those_that_are_meant(curves):
    assert [type(curve) for curve in curves.values()] == [
        ScalarCurve,
        GridCurve,
        FixedPointCurve,
    ]


@pytest.mark.parametrize("maker", ["grid", "followed"])
def test_thresholds_do_not_depend_on_the_maker(curves, maker):
    exact, found = curves["closed form"].thresholds(), curves[maker].thresholds()
    places = exact.by_name()
    for name, threshold in found.by_name().items():
        if name == "perfect_recovery":
            assert threshold is places[name] is None
        else:
            assert threshold.value == pytest.approx(places[name].value, rel=3e-3), name
    ratios = [getattr(exact.hard_phase, name).value for name in HARD_PHASE]
    assert ratios == sorted(set(ratios))


@pytest.mark.parametrize("maker", ["grid", "followed"])
def test_branches_and_their_free_entropy_do_not_depend_on_the_maker(curves, maker):
    hard = curves["closed form"].thresholds().hard_phase
    spinodal, optimal, end = (getattr(hard, name).value for name in HARD_PHASE)
    inside = [(spinodal + optimal) / 2, (optimal + end) / 2]
    alphas = [0.8 * spinodal, *inside, 1.2 * end]
    for exact, points in zip(
        curves["closed form"].competing(alphas), curves[maker].competing(alphas)
    ):
        assert [point.branch for point in points] == [point.branch for point in exact]
        for point, other in zip(points, exact):
            assert point.V[0, 0] == pytest.approx(other.V[0, 0], rel=5e-3)
            assert (point.free_entropy is None) == (other.free_entropy is None)
            if point.free_entropy is not None:
                assert point.free_entropy == pytest.approx(other.free_entropy, abs=2e-4)


def test_aitken_finds_the_limit_of_a_geometric_sequence_and_leaves_noise_alone():
    assert aitken(1 + 0.1, 1 + 0.01, 1 + 0.001) == pytest.approx(1.0, abs=1e-12)
    assert aitken(2.0, 2.0, 2.0) == 2.0
    assert aitken(1.0, 2.0, 3.01) == 3.01


def test_the_potential_is_the_integral_over_all_pieces():
    """For ``Qhat = 1 / V - 1``, at alpha = 1 all along: ``(1/2) int (alpha - 1) Qhat dQ`` in closed form, cut in two."""
    s = np.linspace(-7, 3, 401)
    qhat = np.exp(s)[:, None]
    V = 1 / (1 + qhat)
    parts = slice(0, 201), slice(200, 401)
    halves = [
        Segment(s[k], np.zeros(201), np.full(201, 1e-3), qhat[k], V[k]) for k in parts
    ]
    # No fixed points, where the integrand would vanish: the end itself is known to a part of a step.
    for end in (0.9, 0.5, 0.07):
        value, error = Potential(halves, np.ones(1)).at(3.0, np.array([end]))
        exact = 0.5 * (3.0 - 1.0) * (end - 1 - np.log(end))
        assert value == pytest.approx(exact, abs=1e-5)
        assert error == pytest.approx(
            0.5 * 3.0 * 1e-3 * (end - 1 - np.log(end)), rel=0.01, abs=1e-6
        )
