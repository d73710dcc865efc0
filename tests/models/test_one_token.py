"""Attention-indexed models of one token: networks with a quadratic activation and extensive width."""

import numpy as np
import pytest
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.nuclear import Nuclear

from smimbench.problem.problem import ProblemError
from smimbench.theory.predictions import competing
from tests.helpers import attention, run_once


def network(rho, noise=0.0, **channel):
    return attention("linear", 1, rho, noise=noise, **channel)


@pytest.mark.parametrize(
    ("rho", "noise", "alpha", "mse"),
    [  # Bayes-optimal errors of arXiv:2408.03733, github.com/SPOC-group/ExtensiveWidthQuadraticSamples
        (0.5, 0.0, 0.1099606299, 0.69042225),
        (0.5, 0.0, 0.215976378, 0.34350081),
        (0.5, 0.125, 0.1463779528, 0.64746878),
        (0.5, 0.125, 0.2171023622, 0.48082802),
    ],
)
def test_published_quadratic_networks(rho, noise, alpha, mse):
    """Their noise has the variance ``2 * noise`` in units of the label, as the convention "scaled" has on the diagonal."""
    found = competing(network(rho, noise), [alpha])[0][0].mse[0]
    plain = competing(network(rho, 2 * noise, noise_convention="plain"), [alpha])[0][
        0
    ].mse[0]
    assert plain == pytest.approx(found, rel=1e-10)
    assert found == pytest.approx(mse, rel=3e-5)


def test_three_samples_of_one_token_tell_as_much_as_one_of_two():
    one = competing(network(0.3), [0.3])[0][0]
    three = competing(attention("linear", rho=0.3), [0.1])[0][0]
    assert one.mse[0] == pytest.approx(three.mse[0], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "close"), [(Gamp(), 0.1), (Nuclear(0.5), 0.12)])
def test_runs(algorithm, close):
    problem = network(0.5, 0.3)
    expected = competing(problem, [0.6])[0][0].mse[0]
    if isinstance(algorithm, Nuclear):
        expected = algorithm.theory(problem, 0.6).mse[0]
    runs = [
        run_once(problem, problem.instance(0.6, 60, k), algorithm, tolerance=1e-3)
        for k in range(4)
    ]
    assert np.mean([run.metrics["mse"][0] for run in runs]) == pytest.approx(
        expected, rel=close
    )


@pytest.mark.parametrize("channel", ["softmax", "hardmax"])
def test_attention_needs_two_tokens(channel):
    with pytest.raises(ProblemError, match=r"tokens: must be an integer >= 2, got 1"):
        attention(channel, 1)


def test_latents_are_centred_quadratic_forms(rng):
    problem = network(0.5)
    x = rng.standard_normal((7, 1, 9))
    S = problem.prior.sample(rng, 1, 9)
    expected = (
        np.einsum("na,ab,nb->n", x[:, 0], S[0], x[:, 0]) - np.trace(S[0])
    ) / np.sqrt(2 * 9)
    assert np.allclose(problem.model.forward(x, S)[:, 0, 0], expected)
    g = rng.standard_normal((7, 1, 1))
    back = (g * problem.model.forward(x, S)).sum() * problem.model.adjoint_scale(9)
    assert back == pytest.approx((problem.model.adjoint(x, g) * S).sum())
