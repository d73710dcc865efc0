"""Runs of every algorithm land on its theory: (algorithm, problem, size), up to chance and corrections of the stated order."""

import numpy as np
import pytest
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.gamp import Gamp
from smimbench_attention.algorithms.nuclear import Nuclear
from smimbench_attention.algorithms.ridge import Ridge
from smimbench_attention.algorithms.spectral import Spectral

from smimbench.interfaces import Conditions
from smimbench.theory.predictions import own_theory
from tests.algorithms.test_untied import untied
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
    *(
        (algorithm, untied(*channel, **noise), 0.2, 40, 3, 0.1)
        for algorithm in (Gamp(), Spectral())
        for channel, noise in (((), {"noise": 0.3}), (("softmax", 3, 1.0), {}))
    ),
]
SLOW = [
    (Nuclear(0.2), attention(rho=0.5), 0.15, 40, 6, 0.2),
    (Nuclear(0.3, positive=False), untied(rho=0.3, noise=0.3), 0.4, 40, 8, 0.06),
    (
        Adam(weight_decay=0.6, steps=400, schedule="cosine", width=40),
        untied(rho=0.3, noise=0.3),
        0.4,
        40,
        8,
        0.06,
    ),
]


@pytest.mark.parametrize(
    ("algorithm", "problem", "alpha", "dimension", "runs", "correction"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_runs_land_on_their_theory(
    algorithm, problem, alpha, dimension, runs, correction
):
    instances = [problem.instance(alpha, dimension, run) for run in range(runs)]
    conditions = Conditions(dimension=dimension)
    sample_ratio = instances[0].sample_ratio
    point = own_theory(algorithm, problem, sample_ratio, conditions)
    attempts = [
        run_once(problem, instance, algorithm, tolerance=1e-5, max_iterations=400)
        for instance in instances
    ]
    overlap = np.diagonal(point.overlap)
    if problem.model.rank == "low":
        overlap = point.more.get("squared_cosine", overlap)
    expected = {"mse": point.mse, "overlap": overlap}
    if "training_loss" in point.more:
        expected["training_loss"] = point.more["training_loss"]
    for name, theory in expected.items():
        measured = np.array(
            [(attempt.metrics | attempt.final)[name] for attempt in attempts]
        )
        error = 4 * measured.std(axis=0, ddof=1) / np.sqrt(runs)
        # Next to nothing, corrections are no ratio.
        scale = np.maximum(np.abs(theory), 0.2)
        difference = np.abs(measured.mean(axis=0) - theory)
        assert (difference < error + correction * scale).all(), (name, measured, theory)
