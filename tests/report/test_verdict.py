"""The verdict: who is best, by what ratio, and whether it matches its prediction."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from smimbench.report.tables import contender_tables, error_tables, runtime_tables
from smimbench.report.verdict import (
    contender_line,
    near_words,
    summary,
    verdict_line,
    verdicts,
)
from tests.report.rows import printed, row, values_of


def at(alpha, mean, bayes, *, algorithm="gamp", own=None, sem=0.01, **more):
    ratio = mean / bayes if bayes and mean is not None else None
    more = {"values": values_of(mean, sem, more.get("n", 4)), **more}
    return row(algorithm=algorithm, alpha=alpha, mean=mean, bayes=bayes, sem=sem, own_theory=own, own_theory_error=0.0,
               ratio_to_bayes=ratio, target=1e-3, no_theory=None if own is not None else "it brings none", **more)  # fmt: skip


def test_the_ratio_is_a_geometric_mean_with_its_error():
    (found,) = verdicts([at(0.1, 0.8, 0.4), at(0.2, 0.1, 0.2, sem=0.02)])
    (one,) = found.contenders
    assert one.ratio_to_bayes == pytest.approx(math.sqrt(2.0 * 0.5))
    # d log G = (sem1 / mean1 (+) sem2 / mean2) / 2
    assert one.ratio_error == pytest.approx(math.hypot(0.01 / 0.8, 0.02 / 0.1) / 2)


def test_the_ratio_orders_and_not_the_distance_to_its_own_theory():
    """Descent that does exactly what its theory says is still further from the limit."""
    large = {"dimension": 1000, "sem": 0.001, "n": 16}
    rows = [
        at(0.1, 0.9, 0.4, algorithm="adam", own=0.9, **large),
        at(0.1, 0.4, 0.4, own=0.4, **large),
    ]
    (found,) = verdicts(rows)
    assert [one.algorithm for one in found.contenders] == ["gamp", "adam"]
    assert [one.agreement.prediction for one in found.contenders] == ["yes", "yes"]
    assert verdict_line(found) == (
        "p: gamp is best, 1.000±0.003 times the optimal error, agrees with theory "
        "(a deviation above 3.5% would have been detected), 1 s per run"
    )


def test_what_is_off_its_theory_says_by_how_much():
    (found,) = verdicts([at(0.1, 0.8, 0.4, own=0.4, n=16, dimension=1000)])
    assert re.fullmatch(
        r"p: gamp, 2.00±0.02 times the optimal error, disagrees with theory \(\+100%, z [\d.]+\), 1 s per run",
        verdict_line(found),
    )
    (found,) = verdicts([at(0.1, 0.8, 0.4)])
    assert "no prediction" in verdict_line(found)


@pytest.mark.parametrize(("below", "mean", "n", "dimension"), [
    (True, 0.2, 8, 1000), (False, 0.39, 8, 1000), (False, 0.2, 1, 1000), (False, 0.35, 8, 50), (True, 1e-6, 4, 100),
])  # fmt: skip
def test_what_is_better_than_possible_is_no_winner(below, mean, n, dimension):
    """An error of half the optimum has seen the teacher, or more samples than it says."""
    cheat = at(
        0.1,
        mean,
        0.4,
        algorithm="cheat",
        sem=0.005 * mean if n > 1 else None,
        n=n,
        dimension=dimension,
    )
    (found,) = verdicts([cheat, at(0.1, 0.41, 0.4, dimension=dimension)])
    assert [one.algorithm for one in found.contenders] == (
        ["gamp", "cheat"] if below else ["cheat", "gamp"]
    )
    assert (
        verdict_line(found).endswith(
            "cheat: below the Bayes optimum: check samples, teacher or code"
        )
        is below
    )
    assert ("below the" in printed(contender_tables([found]))) is below
    (alone,) = verdicts([cheat])
    assert ("below the Bayes optimum" in verdict_line(alone)) is below


def test_who_has_no_estimate_somewhere_comes_last():
    rows = [
        at(0.1, 0.41, 0.4),
        at(0.2, None, 0.2, sem=None),
        at(0.1, 0.9, 0.4, algorithm="adam"),
        at(0.2, 0.5, 0.2, algorithm="adam"),
    ]
    (found,) = verdicts(rows)
    assert [(one.algorithm, one.missing) for one in found.contenders] == [
        ("adam", 0),
        ("gamp", 1),
    ]
    (found,) = verdicts([at(0.1, None, 0.4, sem=None)])
    assert verdict_line(found) == "p: no algorithm produced an estimate"
    assert found.contenders[0].near_fraction is None
    assert (
        near_words(found.contenders[0]) == ""
    )  # what was not run has not failed to come near
    assert near_words(verdicts([at(0.1, 0.9, 0.4)])[0].contenders[0]) in (
        "partly",
        "never",
    )


def test_points_without_an_optimal_error_are_named_and_not_counted():
    """Neither ranks them nor counts their runs as never near: what is not known says nothing of the algorithm."""
    unknown = dict.fromkeys(
        ("0.05", "0.2", "0.5"), dict.fromkeys(("seconds", "iterations", "fraction"))
    )
    rows = [at(0.1, 0.44, 0.4), at(0.2, 0.3, None, time_to_theory=unknown)]
    (found,) = verdicts(rows)
    one = found.contenders[0]
    assert (one.points, one.unsolved) == (1, 1)
    assert one.near_fraction == rows[0].cost.near["0.05"].fraction
    assert verdict_line(found).endswith(
        "1 of 2 sample ratios left out, whose optimal error is not known"
    )
    (found,) = verdicts(rows[1:])
    assert (
        verdict_line(found)
        == "p: gamp, error 0.3000±0.0100, 1 s per run, the optimal error is not known"
    )
    assert "never" not in printed(runtime_tables(rows[1:], "here"))


def test_where_theory_is_zero_there_is_no_ratio_but_a_verdict():
    (found,) = verdicts([at(0.3, 1e-9, 0.0), at(0.3, 0.02, 0.0, algorithm="adam")])
    assert (
        verdict_line(found)
        == "p: gamp is best, 0 where the optimal error is 0, no prediction, 1 s per run"
    )
    assert [one.zero_reached for one in found.contenders] == [True, False]


def test_who_was_seen_only_where_theory_is_zero_comes_after_those_with_a_ratio():
    """An online run stands at the sample ratio of all its fresh samples: an error of 0.02 there is not nearest to anything."""
    online = at(30.0, 0.02, 0.0, algorithm="sgd", nominal_alpha=0.1)
    (found,) = verdicts(
        [
            online,
            at(0.1, 0.48, 0.4, nominal_alpha=0.1),
            at(0.1, 0.8, 0.4, algorithm="adam", nominal_alpha=0.1),
        ]
    )
    assert [(one.algorithm, one.missing) for one in found.contenders] == [
        ("gamp", 0),
        ("adam", 0),
        ("sgd", 0),
    ]
    assert "gamp is best, 1.2" in verdict_line(found)


def test_who_was_run_at_fewer_sample_ratios_comes_last():
    """An easy point alone makes no winner."""
    easy = at(0.1, 0.4, 0.4, algorithm="half", nominal_alpha=0.1)
    rows = [easy, *(at(a, 0.5, 0.4, nominal_alpha=a) for a in (0.1, 0.2))]
    (found,) = verdicts(rows)
    assert [(one.algorithm, one.missing) for one in found.contenders] == [
        ("gamp", 0),
        ("half", 1),
    ]


def test_components_are_counted_together():
    (found,) = verdicts(
        [at(0.1, 0.6, 0.5, component=1), at(0.1, 0.5, 0.5, component=2)]
    )
    assert found.contenders[0].ratio_to_bayes == pytest.approx(1.1)


def test_a_table_from_two_contenders_on():
    assert not contender_tables(verdicts([at(0.1, 0.41, 0.4)]))
    (text,) = [
        printed(
            contender_tables(
                verdicts([at(0.1, 0.41, 0.4), at(0.1, 0.9, 0.4, algorithm="adam")])
            )
        )
    ]
    lines = [line for line in text.splitlines() if line.startswith(("gamp", "adam"))]
    assert [line.split()[0] for line in lines] == ["gamp", "adam"]
    assert max(map(len, text.splitlines())) <= 80
    assert ", D = 100" in text
    small = [
        at(0.1, mean, 0.4, algorithm=name, dimension_letter="d")
        for mean, name in ((0.41, "gamp"), (0.9, "adam"))
    ]
    assert ", d = 100" in printed(contender_tables(verdicts(small)))


def test_what_runs_do_not_tell_apart_is_tied():
    """Pair by pair: instances that are hard for both are no difference between them."""
    spread = {"0/0": 0.2, "0/1": 0.5, "0/2": 0.9, "0/3": 0.4}
    one = at(0.1, 0.5, 0.4, sem=0.15, values=spread)
    always = at(
        0.1,
        0.55,
        0.4,
        sem=0.15,
        algorithm="adam",
        values={k: v * 1.1 + 1e-4 * i for i, (k, v) in enumerate(spread.items())},
    )
    now_and_then = at(
        0.1,
        0.6,
        0.4,
        sem=0.2,
        algorithm="sgd",
        values=dict(zip(spread, (0.5, 0.4, 1.1, 0.4))),
    )
    (found,) = verdicts([one, always, now_and_then])
    assert found.tied == ["sgd"]
    assert verdict_line(found).endswith(", tied with sgd")
    single = at(0.1, 0.9, 0.4, sem=None, algorithm="ridge", values={"0/0": 0.9})
    (found,) = verdicts([one, single])
    assert found.tied == ["ridge"]  # of one run nobody knows
    (found,) = verdicts(
        [
            at(0.1, 0.5, 0.4),
            *(at(0.1, 0.501, 0.4, algorithm=name, values={}) for name in "abc"),
        ]
    )
    assert verdict_line(found).endswith(", tied with a and 2 more")
    assert "tied with the first" in printed(contender_tables([found]))
    assert max(map(len, printed(contender_tables([found])).splitlines())) <= 80


def test_other_algorithms_have_the_ratio_of_errors_on_the_same_instances():
    spread = {"0/0": 0.2, "0/1": 0.5, "0/2": 0.9, "0/3": 0.4}
    one = at(0.1, 0.5, 0.4, values=spread)
    twice = at(
        0.1,
        1.0,
        0.4,
        algorithm="adam",
        values={k: v * (2 + 1e-3 * i) for i, (k, v) in enumerate(spread.items())},
    )
    best, other = verdicts([one, twice])[0].contenders
    assert best.compared is None
    assert other.compared.reference == "gamp"
    assert other.compared.ratio == pytest.approx(2, rel=1e-3)
    assert re.fullmatch(
        r"adam: 2 x gamp \(2 to 2\), 2.5 x optimal", contender_line(other)
    )
    best, other = verdicts([one, twice], "adam")[0].contenders
    assert other.compared is None
    assert best.compared.ratio == pytest.approx(0.5, rel=1e-3)
    assert "times the optimal error, 0.5 x adam (" in verdict_line(
        verdicts([one, twice], "adam")[0]
    )


def test_fresh_samples_are_not_compared_with_the_data_set():
    """At its own, larger sample ratio an online run has a smaller optimum: its ratio to that says nothing of others."""
    one = at(0.1, 0.5, 0.4, nominal_alpha=0.1)
    online = at(2.0, 0.04, 0.01, algorithm="sgd", nominal_alpha=0.1)
    found = verdicts([one, online])[0].contenders
    assert [entry.compared for entry in found] == [None, None]
    assert {contender_line(entry) for entry in found} == {
        "gamp: 1.25 x optimal",
        "sgd: 4 x optimal",
    }


def test_an_error_of_0_is_an_estimate():
    found = verdicts([at(0.1, 0.0, 0.0), at(0.1, 1e-9, 0.0, algorithm="adam")])[
        0
    ].contenders
    assert contender_line(found[1]) == "adam: 0 where the optimal error is 0"


# -- failures -------------------------------------------------------------------------------------------------------------


def twins(lost, status="failed", runs=144, alphas=(0.1, 0.2)):
    """Rows of two algorithms with the same errors; at every sample ratio one of them has lost these runs."""
    rng = np.random.default_rng(0)
    rows = []
    for alpha in alphas:
        values = {
            f"0/{k}": float(error)
            for k, error in enumerate(
                0.1 * np.exp(0.1 * rng.standard_normal(runs // len(alphas)))
            )
        }
        for name, without in (("fails", lost), ("intact", 0)):
            left = dict([*values.items()][without:])
            counts = {"ok": len(left), status: without}
            mean, sem = np.mean([*left.values()]) if left else None, 0.001
            rows.append(
                at(
                    alpha,
                    mean,
                    0.1,
                    algorithm=name,
                    sem=sem,
                    values=left,
                    n=len(left),
                    status_counts=counts,
                )
            )
    return rows


@pytest.mark.parametrize("status", ["failed", "diverged", "timeout"])
@pytest.mark.parametrize("lost", [1, 9, 71])
def test_who_fails_is_neither_best_nor_tied(status, lost):
    (found,) = verdicts(twins(lost, status))
    intact, fails = found.contenders
    assert (intact.algorithm, fails.algorithm, found.tied) == ("intact", "fails", [])
    assert f"{2 * lost} of 144 runs failed" in contender_line(fails)
    # Each failure counts as the prior mean: ten times the error.
    share = lost / 72
    assert fails.ratio_to_bayes == pytest.approx(
        (1 - share) * intact.ratio_to_bayes + 10 * share, rel=0.01
    )
    assert fails.compared.ratio == pytest.approx(10**share, rel=0.03)
    (alone,) = verdicts(
        [row for row in twins(lost, status) if row.place.algorithm == "fails"]
    )
    assert f"{2 * lost} of 144 runs failed" in verdict_line(alone)
    assert alone.contenders[0].ratio_to_bayes == fails.ratio_to_bayes


def test_what_was_refused_has_not_failed():
    (found,) = verdicts(twins(9, "skipped"))
    assert found.tied
    assert all(not one.failed for one in found.contenders)


def test_to_fail_everywhere_at_one_sample_ratio_is_no_estimate():
    rows = [*twins(72, alphas=(0.1, 0.2))[:2], *twins(0)[2:]]
    (found,) = verdicts(rows)
    one = found.contenders[1]
    assert (one.algorithm, one.points, one.missing, one.failed) == ("fails", 1, 1, 72)
    assert one.ratio_to_bayes == pytest.approx(math.sqrt(10), rel=0.02)
    (found,) = verdicts([row for row in twins(72) if row.place.algorithm == "fails"])
    assert verdict_line(found) == "p: no algorithm produced an estimate"
    (found,) = verdicts(twins(72))
    assert contender_line(found.contenders[1]) == "fails: 144 of 144 runs failed"


def test_failures_count_in_the_summary_of_all_problems():
    rows = [row.labeled(name, row.place.algorithm) for name in "pq" for row in twins(9)]
    intact, fails = summary(rows)
    assert (intact["algorithm"], fails["algorithm"]) == ("intact", "fails")
    assert (intact["instances"], fails["instances"]) == (288, 252)
    assert fails["ratio_to_bayes"] == pytest.approx(
        10 ** (1 / 8) * intact["ratio_to_bayes"], rel=0.02
    )
    assert fails["interval"][0] > 1.1


# -- without an optimum ---------------------------------------------------------------------------------------------------


def test_where_no_optimum_is_known_errors_and_their_ratios_are_said():
    rows = [
        at(alpha, factor * mean, None, algorithm=name, sem=0.001, theory=None,
           values={f"0/{k}": factor * mean * (1 + 0.1 * k) for k in range(4)})
        for alpha, mean in ((0.1, 0.4), (0.2, 0.1))
        for name, factor in (("adam", 1.5), ("gamp", 1.0))
    ]  # fmt: skip
    (found,) = verdicts(rows)
    gamp, adam = found.contenders
    assert (gamp.algorithm, gamp.ratio_to_bayes) == ("gamp", None)
    assert gamp.mean_error.mean == pytest.approx(0.2)
    assert "p: gamp is best, error 0.2000" in verdict_line(found)
    assert "the optimal error is not known" in verdict_line(found)
    assert contender_line(adam).startswith(
        "adam: 1.5 x gamp (1.5 to 1.5), error 0.3000"
    )
    text = printed(contender_tables([found]))
    assert "mean error" in " ".join(text.split())
    assert "error / optimal" not in " ".join(text.split())
    assert "against theory" not in printed(error_tables(rows))
    assert "against theory" in printed(error_tables([at(0.1, 0.4, 0.4)]))
