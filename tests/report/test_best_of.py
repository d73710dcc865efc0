"""The row "best of K" chooses settings on other seeds than it is scored with: choosing does not make it better by chance."""

import math

import numpy as np
import pytest

from smimbench.report.best_of import best_of
from smimbench.suite.cells import Cell
from smimbench.suite.schema import RunOptions

SETTINGS, SEEDS, ALPHAS = 6, 5, (0.1, 0.2)


def pairs_of(errors: np.ndarray, status: str = "ok") -> list:
    """Cells and records with these errors, (settings, seeds, alphas)."""
    found = []
    for k, seed, i in np.ndindex(*errors.shape):
        cell = Cell(
            problem={}, algorithm={"name": "sgd", "learning_rate": float(k)}, alpha=ALPHAS[i], dimension=10, replicate=seed,
            seed=0, backend="numpy", run=RunOptions(), problem_label="p", algorithm_label=f"sgd, learning_rate {k}",
            family="sgd",
        )  # fmt: skip
        error = float(errors[k, seed, i])
        lost = not math.isfinite(error)
        found.append((cell, {"metrics": {} if lost else {"mse": [error]}, "status": "failed" if lost else status}))
    return found


def values(found: list) -> np.ndarray:
    """Errors of the row, (seeds, alphas)."""
    table = {(cell.replicate, cell.alpha): record["metrics"]["mse"][0] for cell, record in found}
    return np.array([[table[seed, alpha] for alpha in ALPHAS] for seed in range(SEEDS)])


def test_among_equal_settings_choosing_gains_nothing():
    """The mean of the row is that of a single setting, where the best mean of all is below it by chance."""
    rng = np.random.default_rng(0)
    rows, least = [], []
    for _ in range(400):
        errors = np.exp(0.3 * rng.standard_normal((SETTINGS, SEEDS, len(ALPHAS))))
        rows.append(np.log(values(best_of(pairs_of(errors), 1e-9))).mean())
        least.append(np.log(errors).mean((1, 2)).min())
    error = np.std(rows) / math.sqrt(len(rows))
    assert abs(np.mean(rows)) < 4 * error
    assert np.mean(least) < -8 * error


def test_the_setting_that_is_better_is_chosen():
    rng = np.random.default_rng(1)
    errors = np.exp(0.1 * rng.standard_normal((SETTINGS, SEEDS, len(ALPHAS))))
    errors[3] /= 3
    found = best_of(pairs_of(errors), 1e-9)
    np.testing.assert_array_equal(values(found), errors[3])
    assert {cell.algorithm_label for cell, _ in found} == {f"sgd, best of {SETTINGS}"}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_seed_takes_part_in_its_own_choice(seed):
    """Whatever a seed says, the runs that are shown for it are those of the same setting."""
    rng = np.random.default_rng(2)
    errors = np.exp(0.3 * rng.standard_normal((SETTINGS, SEEDS, len(ALPHAS))))
    chosen = set()
    for _ in range(20):
        said = np.exp(5 * rng.standard_normal(SETTINGS))
        errors[:, seed] = said[:, None]
        shown = values(best_of(pairs_of(errors), 1e-9))[seed, 0]
        chosen.add(int(np.flatnonzero(said == shown)[0]))
    assert len(chosen) == 1


def test_a_setting_that_fails_once_is_not_chosen_by_the_other_seeds():
    errors = np.ones((3, SEEDS, len(ALPHAS)))
    errors[0] *= 0.5
    errors[0, 2, 1] = np.inf
    found = best_of(pairs_of(errors), 1e-9)
    failed = [cell.replicate for cell, record in found if record["status"] == "failed"]
    assert failed == [2]  # of seed 2, nobody else has seen it fail
    assert sorted({cell.replicate for cell, record in found if record["metrics"].get("mse") == [0.5]}) == [2]


def test_recovered_signals_do_not_outweigh_the_rest():
    errors = np.empty((2, SEEDS, 2))
    errors[0] = [1e-12, 0.5]
    errors[1] = [1e-6, 0.4]
    assert values(best_of(pairs_of(errors), 1e-3))[0, 1] == 0.4
    assert values(best_of(pairs_of(errors), 1e-15))[0, 1] == 0.5


def test_what_is_not_comparable_has_no_such_row():
    whole = pairs_of(np.ones((3, SEEDS, 2)))
    assert best_of(whole, 1e-3)
    assert not best_of(whole[:-1], 1e-3)  # a cell is missing
    assert not best_of(pairs_of(np.ones((1, SEEDS, 2))), 1e-3)  # one setting
    assert not best_of(pairs_of(np.ones((3, 1, 2))), 1e-3)  # one seed


def test_a_setting_that_loses_fewer_runs_is_chosen_then_one_with_smaller_errors():
    """Where every setting has lost a run, the others still tell them apart."""
    errors = np.ones((3, SEEDS, len(ALPHAS)))
    errors[:, 0, 0] = np.inf
    errors[0, 1, 1] = np.inf
    errors[2] /= 2
    assert {cell.algorithm["best_of"][2] for cell, _ in best_of(pairs_of(errors), 1e-9)} == {"sgd, learning_rate 2"}
    found = best_of(pairs_of(errors), 1e-9)
    assert {record["metrics"]["mse"][0] for _, record in found if record["metrics"]} == {0.5}
