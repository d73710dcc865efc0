"""The optimum at the size that was run: closed form, fitted from runs, limit."""

import numpy as np
import pytest

from smimbench.report.results import OptimalRuns, optima_by_dimension
from smimbench.report.row import LIMIT, Optimum, optimum_at_limit
from tests.helpers import theory_point


def runs_at(size, rng, b=(3.0, -1.0), limit=(0.4, 0.1), seeds=400, coefficient=None):
    """Runs whose errors have the mean ``limit + b / D`` and a standard deviation of ``limit / sqrt(D)``."""
    limit, b = np.array(limit), np.array(b)
    values = limit + b / size + limit / np.sqrt(size) * rng.standard_normal((seeds, 2))
    return OptimalRuns(
        size,
        "gamp",
        limit,
        {f"0/{k}": value for k, value in enumerate(values)},
        coefficient,
    )


def test_the_coefficient_of_all_sizes_together():
    """Mean over 200 draws of the runs: no bias, and errors as large as stated."""
    rng, scores = np.random.default_rng(0), []
    for _ in range(200):
        found = optima_by_dimension(
            [runs_at(size, rng, seeds=30) for size in (100, 200, 400)]
        )
        assert set(found) == {100, 200, 400}
        one = found[400]
        assert one.source == "runs of gamp"
        scores.append(
            (one.value - np.array([0.4, 0.1]) - np.array([3.0, -1.0]) / 400) / one.error
        )
    scores = np.array(scores)
    assert abs(scores.mean()) < 0.25
    assert 0.6 < scores.std() < 1.1


def test_of_one_size_it_is_the_mean():
    only = runs_at(80, np.random.default_rng(1))
    values = np.array([*only.instance_errors.values()])
    one = optima_by_dimension([only])[80]
    np.testing.assert_allclose(one.value, values.mean(axis=0))
    np.testing.assert_allclose(one.error, values.std(axis=0, ddof=1) / 20)


@pytest.mark.parametrize(("b", "above"), [((3.0, 1.0), False), ((24.0, 12.0), True)])
def test_runs_that_missed_the_optimum_do_not_define_it(b, above):
    """At D = 60 finite size may explain 20 / D + 100 / D^2 = 36% of the limit, not 100% or 200% of it."""
    only = runs_at(60, np.random.default_rng(3), b=b, limit=(0.4, 0.1))
    ratio = (
        np.array([*only.instance_errors.values()]).mean(axis=0)
        / optima_by_dimension([only])[60].value
    )
    np.testing.assert_allclose(
        ratio, [2 / 1.7222, 3 / 1.7222] if above else 1.0, rtol=0.02
    )


def test_the_closed_form_comes_first():
    one = optima_by_dimension(
        [runs_at(50, np.random.default_rng(2), coefficient=[2.0, 1.0])]
    )[50]
    assert one.source == "closed form"
    np.testing.assert_allclose(one.value, [0.44, 0.12])


def test_without_runs_it_is_the_limit():
    assert optima_by_dimension([]) == {}
    perfect = {"0/0": np.zeros(1), "0/1": np.zeros(1)}
    assert (
        optima_by_dimension([OptimalRuns(10, "gamp", np.zeros(1), perfect, None)]) == {}
    )
    assert (
        optima_by_dimension(
            [OptimalRuns(10, "gamp", np.ones(1), {"0/0": np.ones(1)}, None)]
        )
        == {}
    )
    one = optimum_at_limit(theory_point(1.0, 0.3))
    assert (one.value.tolist(), one.source) == ([0.3], LIMIT)


@pytest.mark.parametrize(
    ("instance", "goal"), [("hard", 0.5), ("easy", 0.3), ("unknown", 0.3)]
)
def test_an_instance_may_be_harder_than_others(instance, goal):
    runs = {"hard": np.array([0.5]), "easy": np.array([0.1])}
    optimum = Optimum(np.array([0.3]), np.array([0.01]), LIMIT, runs)
    assert optimum.reachable_errors(instance).tolist() == [goal]
