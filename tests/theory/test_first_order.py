"""The floor of first-order methods against the best polynomials, and where there is none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.algorithms.gamp import Gamp

from smimbench.interfaces import Conditions
from smimbench.problem import Problem
from smimbench.run.answers import Answers, check_answer
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.first_order import FROM_CHANCE, MAX_PASSES, first_order_floor
from smimbench.theory.types import FloorQuestion, TheoryPoint
from tests.helpers import attention, sequence

PASSES = np.arange(1, 13)
SLOW = (1.0, 0.01)
"""Sample ratio and noise of labels that are learned in many passes."""


def floor_of(problem, alpha):
    return TheorySolver(prediction_errors=False).floor(problem, alpha)


def linear(noise):
    return sequence("linear", tokens=1, noise=noise)


def best_polynomial(alpha, noise, degree):
    r"""Error of the best ``p(X^T X / D) X^T y`` with p of this degree, eigenvalues l having the law mu of Marchenko and Pastur.

    It is the minimum of ``int (1 - p l)^2 + noise l p^2 dmu = 1 - 2 int p ds + int (l + noise) p^2 ds`` with ``ds = l dmu``, a
    semicircle of mass alpha about ``1 + alpha``: in its Chebyshev polynomials the quadratic form is tridiagonal.
    """
    size = degree + 1
    form = (1 + alpha + noise) * np.eye(size)
    form += np.sqrt(alpha) * (np.eye(size, k=1) + np.eye(size, k=-1))
    return 1 - alpha * np.linalg.inv(form)[0, 0]


@pytest.mark.parametrize(
    ("alpha", "noise"), [(1.5, 0.3), (0.6, 0.05), (3.0, 1.0), SLOW]
)
def test_linear_labels_are_learned_as_by_the_best_polynomial(alpha, noise):
    floor = floor_of(linear(noise), alpha)
    wanted = [best_polynomial(alpha, noise, k - 1) for k in PASSES]
    assert floor.is_proven
    assert floor.mse[0, 0] == 1
    assert_allclose(floor.mse[PASSES, 0], wanted, rtol=1e-10)
    if (alpha, noise) == (1.5, 0.3):
        assert_allclose(wanted[:3], [0.46428571, 0.33753943, 0.29825856], atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "noise"), [(1.5, 0.3), SLOW])
def test_no_polynomial_of_drawn_data_does_better(alpha, noise):
    """D = 2000: the best polynomial of each degree for the eigenvalues of the very inputs has the error of the floor."""
    dimension = 2000
    inputs = np.random.default_rng(5).standard_normal(
        (round(alpha * dimension), dimension)
    )
    eigenvalues = np.linalg.eigvalsh(inputs.T @ inputs / dimension)
    weights = np.sqrt(eigenvalues**2 + noise * np.abs(eigenvalues))
    wanted = eigenvalues / np.maximum(weights, 1e-300)
    floor = floor_of(linear(noise), alpha)
    for k in PASSES:
        basis = np.polynomial.chebyshev.chebvander(
            2 * eigenvalues / eigenvalues[-1] - 1, k - 1
        )
        solution = np.linalg.lstsq(basis * weights[:, None], wanted)[0]
        p = basis @ solution
        error = np.mean((1 - p * eigenvalues) ** 2 + noise * eigenvalues * p**2)
        assert_allclose(error, floor.mse[k, 0], rtol=0.004)


@pytest.mark.parametrize(
    ("problem", "alpha", "is_proven"),
    [
        (sequence("probit", tokens=1, noise=0.5), 3.0, True),
        (sequence("linear", noise=0.2, components=2), 0.5, True),
        (attention("softmax"), 0.1, False),
    ],
    ids=["probit", "two components", "matrix"],
)
def test_undamped_message_passing_is_the_best(problem, alpha, is_proven):
    floor = floor_of(problem, alpha)
    asked = Conditions(trajectory=True)
    path = np.array(Gamp(damping=0.0).theory(problem, alpha, asked).trajectory["mse"])
    count = min(len(path), len(floor.mse))
    assert_allclose(floor.mse[:count], path[:count], rtol=1e-9)
    assert floor.is_proven is is_proven
    assert (np.diff(floor.mse, axis=0) <= 0).all()


def test_other_inputs_are_a_conjecture():
    """Features with a spectrum: state evolution sums over them."""
    parts = (
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "linear", "noise": 0.3},
    )
    inputs = {"name": "power-law", "features": 50}
    floor = floor_of(Problem(*parts, "gaussian", inputs), 1.5)
    assert not floor.is_proven
    assert floor.mse[1, 0] < best_polynomial(1.5, 0.3, 0)


@pytest.mark.parametrize(
    "problem", [sequence("softmax", layers=1), sequence("softmax", layers=2, skip=1.0)]
)
def test_symmetric_labels_have_none(problem):
    """The signs of a signal of mean 0 are not in the labels: the prior mean stays where it is."""
    assert problem.channel.symmetry != "none"
    point = TheoryPoint(
        0.5, np.ones(1), np.zeros(1), np.zeros(1), np.zeros((1, 1)), "", ""
    )
    assert first_order_floor(problem, 0.5, point) == FROM_CHANCE


def test_it_ends_where_nothing_moves():
    floor = floor_of(linear(1e-6), 1.0)
    assert len(floor.mse) == MAX_PASSES + 1
    quick = floor_of(linear(1.0), 0.5)
    assert len(quick.mse) < 30
    assert_allclose(quick.after(1e9), quick.mse[-1, 0])
    assert_allclose(quick.after(1.5) ** 2, quick.mse[1, 0] * quick.mse[2, 0])


def test_an_answer_is_stored_and_read_again(tmp_path):
    problem = linear(0.3)
    solver = TheorySolver(tmp_path, prediction_errors=False)
    solver.answer([FloorQuestion(problem, 1.5)])
    stored = Answers(tmp_path, prediction_errors=False).floor(problem, 1.5)
    assert_allclose(stored.mse, floor_of(problem, 1.5).mse, rtol=0)
    with pytest.raises(ValueError, match="2 components"):
        check_answer("floor", stored.document(), 2)
    without_error = stored.document() | {"mse_error": []}
    with pytest.raises(ValueError, match="1 components"):
        check_answer("floor", without_error, 1)
