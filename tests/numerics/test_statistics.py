"""Control variates: an unbiased mean, an honest error, and controls that are degenerate."""

import numpy as np
import pytest

from smimbench.numerics.statistics import controlled_mean


def test_the_error_of_a_controlled_mean_is_honest():
    # 300 repetitions: the mean is unbiased, the claimed error is the spread, and a good control reduces it.
    rng = np.random.default_rng(3)
    means, errors, plain = [], [], []
    for _ in range(300):
        x = [rng.standard_normal((64, 2)) for _ in range(16)]
        y = [(1.0 + 2 * c[:, 0] - c[:, 1] + c[:, 0] ** 2 - 1 + 0.3 * rng.standard_normal(64))[:, None] for c in x]
        value, error = controlled_mean(y, x)
        means.append(value[0])
        errors.append(error[0])
        plain.append(controlled_mean(y, [np.zeros((64, 0))] * 16)[1][0])
    spread = np.std(means)
    assert abs(np.mean(means) - 1.0) < 4 * spread / np.sqrt(300)
    assert np.mean(errors) == pytest.approx(spread, rel=0.15)
    assert np.mean(errors) < 0.7 * np.mean(plain)


def test_vanishing_and_repeated_controls_do_no_harm():
    rng = np.random.default_rng(4)
    x = [np.column_stack([c, 3 * c, np.zeros(32)]) for c in rng.standard_normal((16, 32))]
    y = [c[:, :1] + 5.0 for c in x]
    value, error = controlled_mean(y, x)
    assert value[0] == pytest.approx(5.0, abs=1e-9)
    assert error[0] < 1e-9


def test_controlled_mean_is_unbiased_and_its_error_is_right():
    rng = np.random.default_rng(1)
    scores = []
    for _ in range(200):
        zeros = [rng.standard_normal((20, 3)) for _ in range(8)]
        zeros = [np.concatenate([x, x[:, :1], 0.0 * x[:, :1]], 1) for x in zeros]  # one twice, one that vanishes
        samples = [
            np.stack([2.0 + x @ [1.0, -2.0, 0.5, 0.0, 0.0] + 0.1 * rng.standard_normal(20), x[:, 0] ** 2], 1)
            for x in zeros
        ]
        value, error = controlled_mean(samples, zeros)
        assert error[0] < 0.04  # it would be 0.18 without controls
        scores.append((value - [2.0, 1.0]) / error)
    scores = np.array(scores)
    assert np.all(np.abs(scores.mean(0)) < 5.0 * 1.2 / np.sqrt(200))
    assert np.all((scores.std(0) > 0.8) & (scores.std(0) < 1.6))


def test_faint_controls_are_left_out():
    rng = np.random.default_rng(5)
    x = [1e-9 * rng.standard_normal((32, 1)) for _ in range(16)]
    y = [1e9 * c + 5.0 for c in x]
    assert controlled_mean(y, x)[1][0] < 1e-9
    assert controlled_mean(y, x, faintest=1e-6)[1][0] > 0.01
