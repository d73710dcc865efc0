"""Metrics of an estimate from its overlaps alone, and what is asked of an algorithm's own theory."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.interfaces import Algorithm, AlgorithmPrediction, Conditions, Overlaps
from smimbench.registry.registry import find_metric, theory_of
from smimbench.theory.predictions import aligned, limit_point, own_theory, scores
from smimbench.theory.types import NO_THEORY
from tests.helpers import attention, sequence

LINEAR, DEEP = sequence("linear", components=2, noise=0.1), sequence(layers=2, skip=1.0)
MATRIX = attention("linear")


@pytest.mark.parametrize(
    "problem", [LINEAR, DEEP, MATRIX], ids=["linear", "two layers", "extensive"]
)
def test_metrics_are_those_of_an_estimate_with_these_overlaps(problem):
    """Any estimate at all: what the metrics measure of it is what the point says of its overlaps."""
    rng = np.random.default_rng(3)
    instance = problem.instance(0.5, 30)
    estimate = -0.4 * instance.signal + 0.3 * problem.prior.sample(
        rng, problem.components, 30
    )
    point = limit_point(
        problem, 0.5, [[instance.overlaps(estimate)]], method="measured"
    )
    names = [
        "mse",
        "overlap",
        "cosine",
        "generalization_error_plugin",
        "generalization_error_constant",
    ]
    measured, _, _ = instance.measure(names, estimate)
    for name in names:
        metric = find_metric(name, problem.model.name)
        values, errors = theory_of(metric, problem, point, problem.components)
        sampled = name.startswith("generalization")
        assert_allclose(
            values, measured[name], rtol=0.02 if sampled else 1e-9, err_msg=name
        )
        assert len(errors) == len(values)


def test_several_starts_and_evaluations_are_averaged():
    rng = np.random.default_rng(4)
    eye = np.eye(2)
    many = [
        [Overlaps(eye, (0.5 + 0.1 * rng.random()) * eye, 0.4 * eye) for _ in range(3)]
        for _ in range(4)
    ]
    point = limit_point(LINEAR, 1.0, many, method="m", prediction=False).document()
    cross = np.array([[start.cross[0, 0] for start in starts] for starts in many])
    assert point["mse"][0] == pytest.approx(1.4 - 2 * cross.mean())
    assert point["mse_error"][0] == pytest.approx(
        2 * cross.mean(axis=1).std(ddof=1) / 2
    )


def test_rounding_leaves_no_error_below_zero_and_hides_no_wrong_overlap():
    def mse(T, M, Q):
        return scores(Overlaps(*(np.array([[value]]) for value in (T, M, Q))))["mse"][0]

    assert mse(1.0, 1.0, 1.0 - 5e-16) == 0.0
    assert mse(1.0, 1.0, 1.0 + 4e-16) > 0.0
    assert mse(1.0, 0.9, 0.5) == pytest.approx(-0.3)


def test_symmetry_is_removed():
    cross = np.array([[-0.7, 0.0], [0.0, 0.2]])
    found = aligned(DEEP, Overlaps(np.eye(2), cross, np.eye(2)))
    assert_allclose(found.cross, np.abs(cross), atol=1e-12)
    assert_array_equal(
        aligned(LINEAR, Overlaps(np.eye(2), cross, np.eye(2))).cross, cross
    )


class Claims(Algorithm):
    name = "claims"

    def __init__(self, answer):
        self.answer = answer

    def theory(self, problem, alpha):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (AlgorithmPrediction([0.1], [0, 0], np.eye(2), "m"), "2 finite numbers"),
        (
            AlgorithmPrediction([0.1, np.nan], [0, 0], np.eye(2), "m"),
            "2 finite numbers",
        ),
        (AlgorithmPrediction([0.1, 0.1], [0, 0], np.eye(3), "m"), r"shape \(2, 2\)"),
        (
            AlgorithmPrediction(
                [0.1, 0.1],
                [0, 0],
                np.eye(2),
                "m",
                trajectory={"mse": [1], "samples": []},
            ),
            "lengths",
        ),
        (0.3, "must return a smimbench.interfaces.AlgorithmPrediction or a reason"),
        ({"mse": [0.1, 0.2]}, "or a reason in words, got dict"),
    ],
)
def test_what_is_no_point_is_refused(answer, words):
    with pytest.raises(ValueError, match=words):
        own_theory(Claims(answer), LINEAR, 1.0, Conditions())


def test_reasons_are_handed_on():
    assert own_theory(Claims("not yet"), LINEAR, 1.0, Conditions()) == "not yet"
    assert own_theory(Algorithm(), LINEAR, 1.0, Conditions()) == NO_THEORY
