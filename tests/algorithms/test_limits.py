"""Runs of every algorithm land on its theory: (algorithm, problem, size), up to chance and corrections of the stated order."""

import numpy as np
import pytest
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.ridge import Ridge
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.interfaces import Conditions
from smimbench.theory.limit import own_theory
from tests.helpers import attention, run_once, sequence

LINE, PROBIT = sequence("linear", noise=0.3), sequence("probit", noise=0.5)
PAIR = sequence("linear", tokens=1, components=2, noise=0.5)
PLAIN = {"noise": 0.2, "noise_convention": "plain"}
CASES = [
    # algorithm, problem, sample ratio, dimension, runs, relative correction of finite size
    (Gamp(), attention(), 0.12, 60, 3, 12 / 60),
    (Gamp(), attention("linear", noise=0.2), 0.1, 80, 3, 12 / 80),
    (Gamp(), attention("linear", tokens=3, **PLAIN), 0.05, 80, 3, 12 / 80),
    (Gamp(), attention("linear", rho=1.5), 0.08, 80, 3, 12 / 80),
    (Gamp(), attention(tokens=3, beta=4.0), 0.06, 80, 3, 12 / 80),
    (Gamp(), sequence(), 0.42, 1000, 4, 0.1),
    (Gamp(), sequence(tokens=3), 0.25, 1000, 4, 0.1),
    (Gamp(), LINE, 0.6, 2000, 4, 0.05),
    (Spectral(kind="symmetric"), PAIR, 2.0, 400, 6, 0.05),
    (Spectral(kind="asymmetric"), sequence(), 0.6, 500, 8, 0.05),
    (Spectral(), sequence(layers=2), 0.4, 400, 6, 0.05),
    *(
        (Spectral(origin=origin), attention("hardmax"), 0.5, 100, 4, 0.06)
        for origin in ("prior-mean", "zero")
    ),
    (Ridge(), attention("linear", noise=0.5), 0.2, 100, 6, 0.08),
    (Erm(penalty=0.1), LINE, 1.0, 300, 12, 0.01),
    (Erm(), PROBIT, 1.0, 300, 12, 0.01),
    (Erm("squared-hinge", 0.3), sequence("sign", tokens=1), 1.0, 300, 12, 0.01),
]


@pytest.mark.parametrize(
    ("algorithm", "problem", "alpha", "dimension", "runs", "correction"), CASES
)
def test_runs_land_on_their_theory(
    algorithm, problem, alpha, dimension, runs, correction
):
    instances = [problem.instance(alpha, dimension, run) for run in range(runs)]
    point = own_theory(
        algorithm, problem, instances[0].sample_ratio, Conditions(dimension=dimension)
    )
    attempts = [
        run_once(problem, one, algorithm, tolerance=1e-5, max_iterations=400)
        for one in instances
    ]
    squared = problem.model.rank == "low"
    overlap = (
        point.more.get("squared_cosine", np.diagonal(point.overlap))
        if squared
        else np.diagonal(point.overlap)
    )
    wanted = {"mse": point.mse, "overlap": overlap}
    if "training_loss" in point.more:
        wanted["training_loss"] = point.more["training_loss"]
    for name, theory in wanted.items():
        found = np.array(
            [
                one.metrics[name] if name in one.metrics else one.final[name]
                for one in attempts
            ]
        )
        error = 4 * found.std(axis=0, ddof=1) / np.sqrt(runs)
        scale = np.maximum(
            np.abs(theory), 0.2
        )  # next to nothing, corrections are no ratio
        assert (
            np.abs(found.mean(axis=0) - theory) < error + correction * scale
        ).all(), (name, found.mean(axis=0), theory)
