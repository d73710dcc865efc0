"""The job that sabotages algorithms: what is not changed is the intact algorithm, and differences are measured right."""

import importlib

import numpy as np
import pytest

from smimbench.backend import get_backend
from smimbench.registry import build
from tests.helpers import ROOT, attention, sequence

LINE, PAIRS = sequence("linear", noise=0.3), attention("linear", rho=0.3, noise=0.3)
STREAM = {
    "learning_rate": 0.03,
    "batch": 8,
    "steps": 4,
    "online": True,
    "momentum": 0.5,
    "weight_decay": 0.3,
}
ALGORITHMS = {
    "gamp": (PAIRS, {}),
    "ridge": (LINE, {"regularisation": 0.2}),
    "erm": (LINE, {"penalty": 0.5}),
    "nuclear": (PAIRS, {"regularisation": 0.5}),
    "spectral": (PAIRS, {}),
    "sgd": (LINE, STREAM),
    "adam": (PAIRS, {"weight_decay": 0.6, "steps": 4}),
}
# What each change does at another value; None: it has no value at which it does nothing.
CHANGES = {
    "onsager": {"factor": 1.3}, "denoiser": {"factor": 0.97}, "posterior": {"mean": 0.95}, "misled": {"noise": 1.3},
    "fewer": {"share": 0.9}, "labels": {"factor": 1.05}, "penalty": {"factor": 1.3}, "gradient": {"factor": 0.95},
    "rate": {"lost": 1}, "decay": {"factor": 1.2}, "momentum": {"factor": 1.1},
}  # fmt: skip


@pytest.fixture
def saboteurs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "checks"))
    return importlib.import_module("saboteurs")


def estimates(problem, algorithm):
    """What it finds in each of four steps."""
    data = problem.instance(0.6, 12).data(get_backend("numpy"))
    state, found = algorithm.init(problem, data, np.random.default_rng(5)), []
    for _ in range(4):
        state, _ = algorithm.step(problem, data, state)
        found.append(np.array(algorithm.estimate(state)))
    return np.stack(found)


def test_a_saboteur_that_changes_nothing_is_the_intact_algorithm(saboteurs):
    made = []
    saboteurs.smimbench_register_algorithms(made.append)
    assert len({item.name for item in made}) == len(made) == 25
    for item in made:
        base, _, change = item.name.partition("-")
        problem, parameters = ALGORITHMS[base]
        intact = build(
            next(cls for cls in saboteurs.FAMILIES if cls.name == base),
            "algorithm",
            parameters,
        )
        expected = estimates(problem, intact)
        if change == "ahead":  # one iteration ahead
            found = estimates(problem, build(item, "algorithm", parameters))
            np.testing.assert_allclose(found[:-1], expected[1:], rtol=1e-12)
            continue
        np.testing.assert_allclose(
            estimates(problem, build(item, "algorithm", parameters)),
            expected,
            rtol=1e-12,
        )
        changed = estimates(
            problem, build(item, "algorithm", parameters | CHANGES[change])
        )
        assert np.abs(changed - expected).max() > 1e-4 * np.abs(expected).max(), (
            item.name
        )
        assert (
            build(item, "algorithm", parameters).theory.__func__
            is intact.theory.__func__
        )


def test_the_true_deviation_is_the_paired_difference_continued_to_infinite_size(
    monkeypatch,
):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "checks"))
    job, rng = importlib.import_module("sabotage"), np.random.default_rng(3)
    intact, changed = [], []
    for size in (100, 200, 400):
        values = {f"0/{k}": 2 + 0.5 * rng.standard_normal() for k in range(64)}
        worse = {
            key: x * 1.0 + 2 * (0.03 + 4 / size + 0.002 * rng.standard_normal())
            for key, x in values.items()
        }
        intact.append({"dimension": size, "values": values})
        changed.append({"dimension": size, "values": worse})
    deviation, error = job.true_deviation(changed, intact)
    # The scatter of the instances themselves, 25%, would leave an error of 0.06; means differ by a few per cent of it.
    assert error < 0.001
    assert deviation == pytest.approx(0.03, abs=0.003)
    assert job.true_deviation(intact, intact) == (0.0, 0.0)
