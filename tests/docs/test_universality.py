"""What tools/universality.py counts and tests: ranks against matrices, errors of ridge, intervals against SciPy."""

import importlib.util

import numpy as np
import pytest
from scipy import stats

from smimbench.problem.problem import Problem
from smimbench.run.cell import run_cell
from tests.helpers import ROOT, loaded, suite_text

spec = importlib.util.spec_from_file_location(
    "universality", ROOT / "tools" / "universality.py"
)
universality = importlib.util.module_from_spec(spec)
spec.loader.exec_module(universality)

INPUTS = (
    "gaussian",
    "one-hot",
    "text",
    {"name": "text", "shuffled": True, "normalized": True},
)


def problem_of(inputs):
    return Problem(
        {"name": "attention-indexed", "tokens": 2},
        "softmax",
        {"name": "wishart", "rho": 0.5},
        inputs,
    )


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_equations_are_the_rank_of_the_labels(inputs, seed):
    """Rank of ``x_a x_a^T - (x_a x_b^T + x_b x_a^T) / 2``, which is less than 2 n where words repeat."""
    x = problem_of(inputs).instance(0.2, 24, seed).inputs
    square = np.einsum("nak,nbl->nabkl", x, x)
    square = (square + square.swapaxes(-1, -2)) / 2
    rows = np.concatenate(
        [square[:, 0, 0] - square[:, 0, 1], square[:, 1, 1] - square[:, 0, 1]]
    ).reshape(2 * len(x), -1)
    # Their lengths are set equal, so that what is small is no equation.
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rank = np.linalg.matrix_rank(
        rows / np.where(lengths > 1e-9, lengths, np.inf), tol=1e-6
    )
    assert universality.equations(x) == rank
    assert (rank < 2 * len(x)) == (inputs != "gaussian")


def test_the_error_of_ridge_follows_from_the_number_of_equations(tmp_path):
    """Without noise, tokens of any law: ``1 - rank / (d (d + 1) / 2)`` of the prior's variance, here one-hot to Gaussian."""
    d, alpha = 32, 0.2
    text = suite_text(
        'model = { name = "attention-indexed", tokens = 2 }\nchannel = "softmax"\nprior = { name = "wishart", rho = 0.5 }\n'
        "inputs = INPUTS", [alpha], d, 12, 'name = "ridge"',
    )  # fmt: skip
    means, left = [], []
    for inputs in ('"gaussian"', '"one-hot"'):
        suite = loaded(tmp_path, text.replace("INPUTS", inputs))
        records = [run_cell(cell) for cell in suite.cells()]
        means.append(np.mean([record.metrics["mse"][-1] for record in records]))
        data = [
            suite.plans[0].problem.instance(alpha, d, seed).inputs for seed in range(12)
        ]
        left.append(
            np.mean([1 - universality.equations(x) / (d * (d + 1) / 2) for x in data])
        )
    assert left[1] / left[0] > 1.5
    assert means[1] / means[0] == pytest.approx(left[1] / left[0], rel=0.05)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(0.0, "equivalent"), (0.03, "undecided"), (-0.2, "different")]
)
def test_equivalence_is_two_one_sided_tests(mean, verdict):
    x = mean + 0.02 * np.random.default_rng(1).standard_normal(30)
    found = universality.equivalence(x)
    assert found.verdict == verdict
    above = stats.ttest_1samp(x, -universality.MARGIN, alternative="greater").pvalue
    below = stats.ttest_1samp(x, universality.MARGIN, alternative="less").pvalue
    assert (max(above, below) < 0.05) == (verdict == "equivalent")
    np.testing.assert_allclose(
        (found.low, found.high), stats.ttest_1samp(x, 0).confidence_interval(0.9)
    )


def test_the_limit_and_the_slope():
    d = np.array([64.0, 128.0, 256.0])
    y, errors = np.array([0.1, 0.04, 0.03]), np.array([0.01, 0.02, 0.03])
    (limit, wide), (slope, steep) = universality.trend(d, y, errors)
    fit, covariance = np.polyfit(1 / d, y, 1, w=1 / errors, cov="unscaled")
    np.testing.assert_allclose((slope, limit), fit)
    np.testing.assert_allclose((steep**2, wide**2), np.diag(covariance))
