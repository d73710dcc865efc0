"""Profiles: shares of targets, performance against the best, geometric means paired by instance."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import smimbench
from smimbench.report.charts import save
from smimbench.report.profiles import (
    cumulative_shares,
    error_ratios,
    profile_chart,
    target_times,
)
from smimbench.report.results import Results
from smimbench.report.tables import summary_tables
from smimbench.report.verdict import summary
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from tests.helpers import SUITE, write_suite
from tests.report.rows import printed, row

pytestmark = pytest.mark.usefixtures("svg_alone")


def of(algorithm, values, bayes=0.4, problem="p"):
    return row(
        algorithm=algorithm,
        problem=problem,
        bayes=bayes,
        target=1e-3,
        values={f"0/{i}": v for i, v in enumerate(values)},
    )


def test_the_summary_is_paired_by_instance():
    """Instances differ by a factor of ten, algorithms by 1.5 on each: pairing sees the factor and nothing else."""
    one, other = [0.5, 5.0, 0.7], [0.75, 7.5, 1.05]
    first, second = summary([of("slow", other), of("good", one)])
    assert [first.algorithm, second.algorithm] == ["good", "slow"]
    assert first.ratio_to_bayes == pytest.approx(
        math.prod(v / 0.4 for v in one) ** (1 / 3)
    )
    assert second.to_best == pytest.approx(1.5)
    assert second.interval == pytest.approx([1.5, 1.5])
    assert first.to_best is None
    assert "good" in printed(summary_tables([first, second]))


def test_noise_has_an_interval_and_what_is_missing_comes_last():
    found = summary(
        [of("a", [0.5, 0.6, 0.55]), of("b", [0.6, 0.61, 0.7]), of("c", [0.41])]
    )
    assert [entry.algorithm for entry in found] == ["a", "b", "c"]
    logs = np.log(np.array([0.6, 0.61, 0.7]) / [0.5, 0.6, 0.55])
    half = (
        4.302653 * logs.std(ddof=1) / math.sqrt(3)
    )  # Student's t, two degrees of freedom
    assert found[1].interval == pytest.approx(
        np.exp([logs.mean() - half, logs.mean() + half]), rel=1e-5
    )
    assert (found[2].instances, found[2].all) == (1, 3)


def test_where_theory_is_zero_no_ratio_is_formed():
    found = summary(
        [
            of("a", [0.5]),
            of("b", [0.6]),
            of("a", [1e-9], 0.0, "q"),
            of("b", [1e-2], 0.0, "q"),
        ]
    )
    assert found[0].ratio_to_bayes == pytest.approx(1.25)
    assert not summary([of("a", [0.5])])


def test_errors_below_the_target_are_equal_where_theory_is_zero():
    rows = [of("a", [0.0, 1e-20], 0.0), of("b", [1e-16, 1e-2], 0.0)]
    ratios = error_ratios(SimpleNamespace(rows=rows))
    assert ratios == {"a": [1.0, 1.0], "b": [1.0, pytest.approx(10)]}


def test_shares_end_at_what_was_reached():
    x, y = cumulative_shares({"a": [3.0, 1.0, math.inf, 2.0]})["a"]
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert y.tolist() == [0.25, 0.5, 0.75]


@pytest.mark.slow
def test_hits_are_those_of_the_trajectories(tmp_path):
    path = write_suite(tmp_path, SUITE)
    smimbench.run(path, results=tmp_path / "r")
    results = Results(
        load_suite(path), Store(tmp_path / "r" / "small"), answers=TheorySolver()
    )
    store, pairs = results.store, results.pairs
    found = target_times(results)
    assert len(found) == len(pairs) * 3
    ends = {
        (c.alpha, c.replicate): r.metrics["mse"][0]
        for c, r in pairs
        if c.algorithm_label == "gamp"
    }
    for cell, record in pairs:
        # The optimum at this size, or what GAMP reaches on this instance if that is more.
        bayes = max(
            results.optima["line", cell.alpha, 30].value[0],
            ends[cell.alpha, cell.replicate],
        )
        errors = store.trajectory(record)["mse"][:, 0]
        (own,) = [e for e in found if e.epsilon == 0.5 and e.algorithm == cell.algorithm_label
                  and e.instance[1:] == (cell.alpha, 30, f"0/{cell.replicate}")]  # fmt: skip
        reached = errors <= 1.5 * bayes
        assert own.iteration == (
            store.trajectory(record)["iteration"][np.argmax(reached)]
            if reached.any()
            else math.inf
        )
    gamp = [e for e in found if e.algorithm == "gamp"]
    assert all(math.isfinite(e.seconds) for e in gamp)
    paths = save(profile_chart(results), tmp_path / "figures")
    assert [p.name for p in paths] == [
        f"profiles.{kind}" for kind in ("png", "svg", "pdf", "csv")
    ]


@pytest.mark.slow
def test_what_draws_samples_of_its_own_has_no_targets(tmp_path):
    """It stands at another sample ratio, with another Bayes-optimal error, than the instance it would be compared on."""
    online = '[[algorithms]]\nname = "sgd"\nlabel = "fresh"\nonline = true\nbatch = 10\nsteps = 30\n'
    path = write_suite(tmp_path, SUITE + online)
    smimbench.run(path, results=tmp_path / "r")
    results = Results(
        load_suite(path), Store(tmp_path / "r" / "small"), answers=TheorySolver()
    )
    assert "fresh" in {cell.algorithm_label for cell, _ in results.pairs}
    assert "fresh" not in {hit.algorithm for hit in target_times(results)}
