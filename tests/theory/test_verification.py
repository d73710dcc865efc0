"""Points of theory against plain draws: right ones hold, wrong ones do not."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from smimbench.cli import main
from smimbench.interfaces import Channel, Posterior, Sampling
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.statistics import DETECTED, effective_sample_size
from smimbench.problem.problem import Problem
from smimbench.run import theory_draws
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.types import Check, TheoryPoint
from smimbench.theory.verification import PointByDraws, verify_point
from tests.helpers import ATTENTION as ATTENTION_SUITE
from tests.helpers import SUITE, call, write_suite

SEQUENCE = {"name": "sequence-multi-index", "tokens": 2}
ATTENTION = {"name": "attention-indexed", "tokens": 2}


def points(problem, *alphas):
    return [
        point
        for branches in TheorySolver().points(problem, alphas)
        for point in branches
    ]


def rows_of(problem, point, draws):
    return PointByDraws(problem, point).checks(draws)


@pytest.mark.parametrize(
    ("problem", "alphas"),
    [
        ((ATTENTION, "softmax", {"name": "wishart", "rho": 0.5}), (0.06, 0.18, 0.24)),
        ((ATTENTION, {"name": "hardmax"}, {"name": "wishart", "rho": 0.0}), (0.2, 1.0)),
        ((SEQUENCE, "softmax", "gaussian"), (0.1, 0.4)),
        (
            (SEQUENCE, {"name": "linear", "components": 3, "noise": 0.1}, "gaussian"),
            (0.5,),
        ),
    ],
)
def test_right_points_hold(problem, alphas):
    problem = Problem(*problem)
    rows = [
        row
        for point in points(problem, *alphas)
        for row in rows_of(problem, point, 4000)
    ]
    assert all(abs(row.z) < 4 for row in rows)
    z = np.array([row.z for row in rows if not row.bound and row.standard_error > 0])
    assert 0.3 < np.sqrt((z**2).mean()) < 1.8


def test_a_wrong_overlap_is_found_by_posterior_and_teacher():
    problem = Problem(ATTENTION, "softmax", {"name": "wishart", "rho": 0.5})
    (point,) = points(problem, 0.12)
    wrong = replace(point, mse=point.mse + 0.04, overlap=point.overlap - 0.04)
    found = {row.quantity: row.z for row in rows_of(problem, wrong, 20_000)}
    assert all(
        abs(found[name]) > 4 for name in ("Qhat (posterior)", "Qhat (teacher)", "MSE")
    )
    # An error of the curve that is stated is no deviation.
    stated = replace(wrong, mse_error=np.array([0.04]), alpha_error=np.array([0.006]))
    found = {row.quantity: row.z for row in rows_of(problem, stated, 20_000)}
    assert all(
        abs(found[name]) < 4 for name in ("Qhat (posterior)", "Qhat (teacher)", "MSE")
    )


def test_what_is_not_learned_and_what_is_perfect_must_be_stable():
    problem = Problem(SEQUENCE, "softmax", "gaussian")
    (nothing,) = points(problem, 0.1)
    (all_known,) = points(problem, 0.7)
    assert nothing.mse == 1
    assert all_known.mse == 0
    assert all(
        row.z < 4 for p in (nothing, all_known) for row in rows_of(problem, p, 4000)
    )
    for point, alpha, name in (
        (nothing, 0.25, "unlearned"),
        (all_known, 0.4, "perfect recovery"),
    ):
        found = {
            row.quantity: row.z
            for row in rows_of(problem, replace(point, alpha=alpha), 4000)
        }
        assert found[name] > 4


def test_perfect_recovery_of_components_that_share_a_mean():
    """Layers of one mean make independent errors: stable from 2 (rho - rho^2 / 2) / 2 samples on, by counting equations."""
    table = {"name": "softmax", "layers": 2}
    problem = Problem(
        {"name": "attention-indexed", "tokens": 2},
        table,
        {"name": "wishart", "rho": 0.5},
    )
    zero, overlap = np.zeros(2), prior_moments(problem)[0]
    point = TheoryPoint(1.0, zero, zero, zero, overlap, "unique", "closed")
    for alpha, growth in ((0.45, 0.375 / 0.45), (0.3, 0.375 / 0.3)):
        found = {
            row.quantity: row
            for row in rows_of(problem, replace(point, alpha=alpha), 4000)
        }
        row = found["perfect recovery"]
        assert abs(row.drawn - growth) < 4 * row.standard_error
        assert (row.z > 4) == (alpha < 0.375)


def test_of_the_command_line(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)

    def theory(*options):
        with pytest.raises(SystemExit) as end:
            main(
                [
                    "theory",
                    str(tmp_path / "small.toml"),
                    "--results",
                    str(tmp_path / "results"),
                    "--verify",
                    *options,
                ]
            )
        return end.value.code

    assert theory("--json", "--resolve", "20%") == 0
    rows = [
        row
        for document in json.loads(capsys.readouterr().out)
        for row in document["verification"]
    ]
    assert {"Qhat (posterior)", "MSE", "signal", "generalization bayes"} <= {
        row["quantity"] for row in rows
    }
    assert all(abs(row["z"]) < 4 and row["standard_error"] >= 0 for row in rows)
    wrong = Check("MSE", 0, 0.5, 0.01, 0.6, 0.01)
    monkeypatch.setattr(theory_draws, "verify_point", lambda *_, **__: [wrong])
    assert theory() == 1
    assert "+7.07 !" in capsys.readouterr().out
    assert theory("--resolve", "100%") == theory("--resolve", "0") == 2


def test_a_bound_is_one_sided():
    assert Check("unlearned", 0, 1.0, 0.0, 0.5, 0.01, bound=True).z == 0
    assert Check("unlearned", 0, 1.0, 0.0, 1.5, 0.1, bound=True).z == pytest.approx(5)
    with pytest.raises(
        ValueError, match=r"between 0 and 1 \(0.02 means 2%\), got 20000"
    ):
        verify_point(Problem(SEQUENCE, "softmax", "gaussian"), {}, 20_000)


def test_a_mean_that_few_draws_carry_decides_nothing(tmp_path, capsys):
    """Labels of hardmax jump: where V is tiny, few draws are near enough to a jump to say anything."""
    problem = Problem(ATTENTION, "hardmax", {"name": "wishart", "rho": 0.5})
    for alpha in (30.0, 1e4):
        (point,) = points(problem, alpha)
        found = {row.quantity: row for row in rows_of(problem, point, 1000)}
        assert not found["Qhat (posterior)"].has_enough_draws
        assert found["Qhat (posterior)"].document()["z"] is None
        assert found["signal"].has_enough_draws
        assert "MSE" not in found
    # More draws decide, and find a wrong point.
    (point,) = points(problem, 3.0)
    right, wrong = (
        {row.quantity: row for row in rows_of(problem, one, 20_000)}
        for one in (
            point,
            replace(point, mse=4 * point.mse, overlap=point.overlap - 3 * point.mse),
        )
    )
    assert all(row.has_enough_draws and abs(row.z) < 4 for row in right.values())
    assert abs(wrong["Qhat (posterior)"].z) > 4
    text = ATTENTION_SUITE.replace("[0.1, 0.3]", "[1e4]").replace(
        '"softmax", beta = 1.0', '"hardmax"'
    )
    words = ["theory", write_suite(tmp_path, text), "--verify", "--no-thresholds"]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "too few draws" in " ".join(out.split())
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    assert "NaN" not in out


@pytest.mark.parametrize("k", [1, 7, 50])
def test_draws_that_carry_a_mean_are_counted(k):
    samples = np.zeros(1000)
    samples[:k] = -3e-200
    assert effective_sample_size(samples) == pytest.approx(k, rel=1e-12)
    assert effective_sample_size(np.zeros(10)) == 0


@pytest.mark.parametrize("alpha", [3.0, 10.0])
def test_what_enough_draws_carry_is_decided_for_the_error_as_well(alpha):
    """Here a quarter of the draws would not be enough for the step to the fixed point."""
    problem = Problem(ATTENTION, "hardmax", {"name": "wishart", "rho": 0.5})
    rows = {
        row.quantity: row
        for point in points(problem, alpha)
        for row in rows_of(problem, point, 4000)
    }
    assert rows["Qhat (posterior)"].has_enough_draws
    assert abs(rows["MSE"].z) < 4


class Shared(Channel):
    """Labels with noise, whose posterior mean has an error that all samples of a set of points share."""

    symmetry, components, tokens = "none", 1, 1

    def __init__(self, error=0.0, spread=0.05):
        self.error, self.spread = error, spread

    def forward(self, z, *, rng=None):
        return z[:, 0] + np.sqrt(0.5) * rng.standard_normal(z[:, 0].shape)

    @property
    def sampling(self):
        return Sampling(resampled=self._resampled)

    def _resampled(self, index):
        return Shared(
            self.spread * np.random.default_rng(index).standard_normal(), self.spread
        )

    def posterior(self, y, omega, V, *, second_moment=False, rng=None):
        gain = V[0, 0] / (V[0, 0] + 0.5)
        mean = omega + gain * (1 + self.error) * (y[:, None] - omega)
        return Posterior(mean, np.array([[V[0, 0] * (1 - gain)]]))


def test_points_of_a_sampled_posterior_are_not_shared_by_all_draws():
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "linear", "noise": 0.5},
        "gaussian",
    )
    checked = PointByDraws(problem, points(problem, 1.0)[0])
    checked.draws = 20_000
    right = checked.draw(checked.Q, checked.V)[1].mean()
    object.__setattr__(problem, "channel", Shared())
    sampled = checked.draw(checked.Q, checked.V)[1].mean()
    assert 0 < abs(sampled / right - 1) < 3 * 0.05 / np.sqrt(20)


@pytest.mark.parametrize(("noise", "alpha"), [(0.1, 0.3), (0.5, 1.0), (2.0, 2.5)])
def test_as_many_draws_as_the_goal_takes(noise, alpha):
    """Four times the draws for half the goal; an error as large as the goal is found in nine of ten points."""
    problem = Problem(SEQUENCE, {"name": "linear", "noise": noise}, "gaussian")
    (point,) = points(problem, alpha)
    coarse, fine = (
        {row.quantity: row for row in verify_point(problem, point, goal)}["MSE"]
        for goal in (0.04, 0.02)
    )
    assert 2.5 < fine.draws / coarse.draws < 6
    assert 0.8 * 0.02 < fine.excludes <= 0.02
    assert not fine.stopped
    off = replace(fine, drawn=fine.printed * (1 + fine.excludes))
    assert off.z == pytest.approx(DETECTED)


def test_the_clock_ends_the_draws_and_says_so():
    problem = Problem(SEQUENCE, {"name": "linear", "noise": 0.5}, "gaussian")
    (point,) = points(problem, 1.0)
    ticks = itertools.count()
    rows = verify_point(
        problem, point, 1e-3, seconds=3, clock=lambda: float(next(ticks))
    )
    assert all(row.stopped and row.draws < 20_000 for row in rows)
    assert all(abs(row.z) < 4 for row in rows)


def test_a_stated_error_ends_the_draws_where_they_are_of_no_more_use():
    problem = Problem(SEQUENCE, {"name": "linear", "noise": 0.5}, "gaussian")
    (point,) = points(problem, 1.0)
    row = {
        row.quantity: row
        for row in verify_point(
            problem, replace(point, mse_error=0.05 * point.mse), 0.01
        )
    }["MSE"]
    assert row.draws == 5000
    assert not row.stopped
    assert row.excludes > DETECTED * 0.05


def test_a_posterior_that_is_not_the_teachers_is_found():
    problem = Problem(SEQUENCE, "linear", "gaussian")

    right = problem.channel

    class Shorter(Channel):
        """A posterior mean that is 20% too short."""

        symmetry, components, forward = right.symmetry, 1, staticmethod(right.forward)

        def posterior(self, y, omega, V, *, second_moment=False, rng=None):
            found = right.posterior(y, omega, V, second_moment=second_moment, rng=rng)
            return found._replace(mean=omega + 0.8 * (found.mean - omega))

    (point,) = points(problem, 0.3)
    point = replace(point, generalization_error=None)
    problem.channel = Shorter()
    found = {row.quantity: row.z for row in rows_of(problem, point, 4000)}
    assert abs(found["Qhat (posterior)"]) > 4
    assert abs(found["Qhat (teacher)"]) > 4
