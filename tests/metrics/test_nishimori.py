"""The Nishimori ratio: 1 at a posterior mean that is exact, and what an estimate of the wrong length makes of it."""

import math

import numpy as np
import pytest

from smimbench.interfaces import NotMeasured
from smimbench.registry.registry import find_metric, theory_of
from tests.helpers import JsonPoint, attention, sequence


def measured(instance, estimate):
    return find_metric("nishimori").measure(
        instance, estimate, instance.claims(estimate)
    )


def test_it_is_one_for_exact_posterior_means_and_not_for_longer_ones():
    """Linear labels with Gaussian noise: the posterior mean is a ridge regression, written out."""
    D, noise, ratios = 40, 0.5, []
    problem = sequence("linear", noise=noise)
    for replicate in range(60):
        instance = problem.instance(0.6, D, replicate)
        x = instance.inputs.reshape(-1, D) / math.sqrt(D)
        y = instance.labels.reshape(-1)
        exact = np.linalg.solve(x.T @ x + noise * np.eye(D), x.T @ y)[None]
        ratios.append(measured(instance, exact)[0])
        assert measured(instance, 1.02 * exact)[0] == pytest.approx(ratios[-1] / 1.02)
    assert np.mean(ratios) == pytest.approx(1.0, abs=4 * np.std(ratios) / math.sqrt(60))
    assert np.std(ratios) / math.sqrt(60) < 0.02


def test_the_prior_mean_counts_as_nothing():
    instance = attention(rho=0.5).instance(0.2, 20)
    mean = np.asarray(instance.problem.prior.mean(1, 20))
    assert measured(instance, instance.signal) == pytest.approx([1.0])
    assert measured(instance, mean + 0.5 * (instance.signal - mean)) == pytest.approx(
        [2.0]
    )
    with pytest.raises(NotMeasured, match="prior mean"):
        measured(instance, mean)


def test_only_a_component_at_the_prior_mean_has_no_ratio():
    """As where weight decay takes one layer to zero: what is known of the other layer is kept."""
    instance = sequence(layers=2).instance(0.6, 20)
    estimate = instance.signal * np.array([[0.0], [0.5]])
    measurement = instance.measure(["nishimori"], estimate)
    assert np.isnan(measurement.values["nishimori"][0])
    assert measurement.values["nishimori"][1] == pytest.approx(2.0)
    assert not measurement.reasons


def test_theory_is_one_for_posterior_means_and_silent_elsewhere():
    problem, metric = sequence(layers=2), find_metric("nishimori")
    point = JsonPoint(
        mse=[0.75, 1.0], mse_error=[0.0, 0.0], overlap=[[0.25, 0.0], [0.0, 0.0]]
    )
    assert theory_of(metric, problem, point, 2) == ([1.0, None], [0.0, None])
    other = JsonPoint(point, mse=[0.6, 0.5])  # an estimate that is no posterior mean
    assert theory_of(metric, problem, other, 2)[0] == [None, None]
    assert theory_of(metric, problem, JsonPoint(point, squared_cosine=[0.2, 0.0]), 2)[
        0
    ] == [None, None]
    high = attention(rho=0.5)
    assert theory_of(
        metric, high, JsonPoint(mse=0.4, mse_error=0.0, overlap=[[1.1]]), 1
    )[0] == [1.0]
    assert theory_of(
        metric, high, JsonPoint(mse=1.0, mse_error=0.0, overlap=[[0.5]]), 1
    )[0] == [None]
