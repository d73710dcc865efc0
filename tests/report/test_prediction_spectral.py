"""The verdict of one step of message passing on matrices: right claims are never refused, wrong ones are where sizes decide."""

import numpy as np
import pytest
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.backend import get_backend
from smimbench.registry.registry import find_metric, theory_of
from smimbench.report.prediction import agreement
from tests.helpers import attention
from tests.report.rows import changed, row

METRICS = ("mse", "overlap", "nishimori")


def rows_of(problem, alphas, sizes, *factors):
    """For each factor, rows of the same runs with their estimates, less the prior mean, multiplied by it."""
    found, step = {factor: [] for factor in factors}, Spectral()
    for alpha in alphas:
        for D, seeds in sizes.items():
            values = {factor: [] for factor in factors}
            for k in range(seeds):
                instance, rng = problem.instance(alpha, D, k), np.random.default_rng(k)
                data, mean = (
                    instance.data(get_backend("numpy")),
                    problem.prior.mean(1, D),
                )
                state, _ = step.step(problem, data, step.init(problem, data, rng))
                moved = np.asarray(step.estimate(state)) - mean
                for factor in factors:
                    values[factor].append(
                        instance.measure(METRICS, mean + factor * moved)[0]
                    )
            point = step.theory(problem, instance.sample_ratio)
            for name in METRICS:
                (expected,), (error,) = theory_of(find_metric(name), problem, point, 1)
                for factor in factors:
                    runs = {
                        f"0/{k}": one[name][0] for k, one in enumerate(values[factor])
                    }
                    found[factor].append(row(
                        algorithm="spectral", branch=point.branch, metric=name, alpha=instance.sample_ratio,
                        nominal_alpha=alpha, dimension=D, n=seeds, own_theory=expected, own_theory_error=error, values=runs,
                    ))  # fmt: skip
    return list(found.values())


def claimed(rows, factor):
    """Rows whose error is claimed to be larger by a factor."""
    return [
        changed(one, own_theory=one.prediction.value * factor)
        if one.metric == "mse"
        else one
        for one in rows
    ]


def random_problem(case):
    rng = np.random.default_rng([31, case])
    alphas, rho = (
        np.exp(rng.uniform(np.log(0.02), np.log(0.4), 2)),
        np.exp(rng.uniform(np.log(0.1), np.log(2))),
    )
    channel, parameters = [
        ("linear", {"noise": float(np.exp(rng.uniform(-3, 1)))}),
        ("softmax", {"beta": float(np.exp(rng.uniform(-1, 1)))}),
        ("hardmax", {}),
    ][case % 3]
    return attention(channel, rho=float(rho), **parameters), sorted(alphas.tolist())


@pytest.mark.parametrize("case", range(6))
def test_right_claims_are_not_refused_at_small_sizes(case):
    problem, alphas = random_problem(case)
    (rows,) = rows_of(problem, alphas, {50: 16, 100: 16}, 1.0)
    assert agreement(rows, "mse").prediction != "no"
    assert agreement(claimed(rows, 0.6), "mse").prediction != "yes"


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["linear", "softmax"])
def test_wrong_claims_are_refused_where_sizes_decide(channel):
    problem = attention(
        channel, rho=0.5, **({"noise": 0.3} if channel == "linear" else {})
    )
    rows, wrong = rows_of(problem, [0.1], {100: 16, 200: 8, 400: 4}, 1.0, 2.0)
    assert agreement(rows, "mse").prediction in ("yes", "finite size")
    for factor in (0.7, 1.3):
        assert agreement(claimed(rows, factor), "mse").prediction == "no"
    assert agreement(wrong, "mse").prediction == "no"


@pytest.mark.parametrize("channel", ["linear", "softmax"])
@pytest.mark.parametrize(("alpha", "D"), [(0.2, 50), (0.1, 100)])
def test_the_nishimori_ratio_of_one_step_falls_short_by_dimensions_over_samples(
    channel, alpha, D
):
    problem = attention(
        channel, rho=0.5, **({"noise": 0.3} if channel == "linear" else {})
    )
    (rows,) = rows_of(problem, [alpha], {D: 16}, 1.0)
    ratios = next(
        np.array(list(one.estimate.values.values()))
        for one in rows
        if one.metric == "nishimori"
    )
    assert 1 < (1 - ratios.mean()) * alpha * D < 2.2
