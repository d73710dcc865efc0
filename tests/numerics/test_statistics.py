"""Control variates: an unbiased mean, an honest error, and controls that are degenerate."""

import numpy as np

from smimbench.numerics.statistics import controlled_mean


def test_controlled_mean_is_unbiased_and_its_error_is_right():
    rng = np.random.default_rng(1)
    scores = []
    for _ in range(200):
        zeros = [rng.standard_normal((20, 3)) for _ in range(8)]
        zeros = [
            np.concatenate([x, x[:, :1], 0.0 * x[:, :1]], 1) for x in zeros
        ]  # one twice, one that vanishes
        samples = [
            np.stack(
                [
                    2.0
                    + x @ [1.0, -2.0, 0.5, 0.0, 0.0]
                    + 0.1 * rng.standard_normal(20),
                    x[:, 0] ** 2,
                ],
                1,
            )
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
