"""What online SGD learns from Hermite labels: all of them from a factor, h1 alone directly on the matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_moments,
    mean_trace,
)
from smimbench_attention.algorithms.sgd import Sgd

import smimbench

SUITE = Path(__file__).resolve().parent.parent / "hermite.toml"
RHO = 0.5


def overlaps(label: str, prior: str, learning_rate: float, steps: int) -> np.ndarray:
    """Overlap beyond chance in the limit, over its value 1 for the teacher itself, at eight times."""
    problem = smimbench.Problem(
        {"name": "attention-indexed", "tokens": 1},
        {"name": label, "variance": 1 + RHO},
        {"name": prior, "rho": RHO},
    )
    algorithm = Sgd(online=True, steps=steps, learning_rate=learning_rate, batch=512)
    recorded_steps = [steps * i // 8 for i in range(9)]
    moments = flow_moments(algorithm, problem, "squared", recorded_steps, 400)
    assert not isinstance(moments, str)
    return (moments.cross - moments.trace * mean_trace(problem)).mean(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["h1", "h2", "h3"])
def test_figure_2_of_the_paper(label):
    """The limit at d = 400, learning rate 0.005 of half the squared loss and batches of 512, with which its S is W W^T."""
    d, paper_rate, steps = 400, 0.005, 160_000
    from_factor = overlaps(label, "wishart", paper_rate * RHO**0.5 / (2 * d), steps)
    from_matrix = overlaps(label, "wishart-spectrum", paper_rate / (4 * d), steps)
    assert from_factor[0] == pytest.approx(0, abs=1e-6)
    assert from_factor[-1] == pytest.approx(1, abs=0.03)
    if label == "h1":
        assert from_matrix[-1] > 0.7
    else:
        assert np.abs(from_matrix).max() < 0.02


@pytest.mark.slow
def test_runs_agree_with_theory(tmp_path):
    rows = smimbench.run(
        SUITE, results=tmp_path, overrides=["grid.seeds=4"], progress=False
    )
    errors = [row for row in rows if row["metric"] == "mse"]
    assert len(errors) == 6
    for row in errors:
        allowed = 4 * np.hypot(row["sem"], row["theory_error"])
        # Terms of relative order 1 / d are not predicted.
        assert abs(row["mean"] - row["theory"]) < allowed + 2 * row["theory"] / 100
