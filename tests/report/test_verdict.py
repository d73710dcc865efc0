"""The verdict: who is best, by what ratio, and whether it agrees with theory."""

import json
import math
import re

import numpy as np
import pytest

from smimbench.report.tables import contender_tables, error_tables, runtime_tables
from smimbench.report.verdict import summary, verdicts
from smimbench.report.wording import (
    contender_line,
    no_time_words,
    reversal_line,
    verdict_line,
)
from tests.helpers import flat
from tests.report.rows import printed, row, values_of


def at(alpha, mean, bayes, *, algorithm="gamp", own=None, sem=0.01, **more):
    ratio = mean / bayes if bayes and mean is not None else None
    more = {"values": values_of(mean, sem, more.get("n", 4)), **more}
    return row(algorithm=algorithm, alpha=alpha, mean=mean, bayes=bayes, sem=sem, own_theory=own, own_theory_error=0.0,
               ratio_to_bayes=ratio, target=1e-3, no_theory=None if own is not None else "it brings none", **more)  # fmt: skip


def judge(*rows, against=None):
    """The verdict on one problem."""
    (verdict,) = verdicts(rows, against)
    return verdict


def ranking(verdict):
    return [(entry.algorithm, entry.missing) for entry in verdict.contenders]


def test_the_ratio_is_a_geometric_mean_with_its_error():
    (best,) = judge(at(0.1, 0.8, 0.4), at(0.2, 0.1, 0.2, sem=0.02)).contenders
    assert best.ratio_to_bayes == pytest.approx(math.sqrt(2.0 * 0.5))
    # d log G = (sem1 / mean1 (+) sem2 / mean2) / 2
    assert best.ratio_error == pytest.approx(math.hypot(0.01 / 0.8, 0.02 / 0.1) / 2)


def test_the_ratio_orders_and_not_the_distance_to_its_own_theory():
    """Descent that does exactly what its theory says is still further from the limit."""
    large = {"dimension": 1000, "sem": 0.001, "n": 16}
    adam = at(0.1, 0.9, 0.4, algorithm="adam", own=0.9, **large)
    verdict = judge(adam, at(0.1, 0.4, 0.4, own=0.4, **large))
    assert ranking(verdict) == [("gamp", 0), ("adam", 0)]
    assert {entry.agreement.prediction for entry in verdict.contenders} == {"yes"}
    assert verdict_line(verdict) == (
        "p: gamp is best, 1.000±0.003 times the optimal error at infinite size, agrees with theory "
        "(a deviation above 3.5% would have been detected), 1 s per run"
    )


@pytest.mark.parametrize("largest", [1e60, 1e120, 1e305])
@pytest.mark.parametrize("bayes", [0.4, 1e-3])
def test_a_ratio_beyond_all_numbers_is_shown_and_stored(largest, bayes):
    """Of two runs one is off by any power of ten: its interval ends at the largest number, its row stays short."""
    values = {"0/0": 0.5, "0/1": largest}
    wild = at(0.1, largest, bayes, algorithm="wild", sem=largest, n=2, values=values)
    rows = [at(0.1, 0.5, bayes, n=2), wild]
    verdict = judge(*rows)
    json.dumps(verdict.document(), allow_nan=False)
    assert "1.8e+308)" in contender_line(verdict.contenders[1])
    assert not re.search(r"\d{20}", printed(contender_tables([verdict])))


def test_what_is_off_its_theory_says_by_how_much():
    verdict = judge(at(0.1, 0.8, 0.4, own=0.4, n=16, dimension=1000))
    assert re.fullmatch(
        r"p: gamp, 2.00±0.02 times the optimal error at infinite size, disagrees with theory \(\+100%, z [\d.]+\), 1 s per run",
        verdict_line(verdict),
    )
    assert "no prediction" in verdict_line(judge(at(0.1, 0.8, 0.4)))


@pytest.mark.parametrize(("below", "mean", "n", "dimension"), [
    (True, 0.2, 8, 1000), (False, 0.39, 8, 1000), (False, 0.2, 1, 1000), (False, 0.35, 8, 50), (True, 1e-6, 4, 100),
])  # fmt: skip
def test_what_is_better_than_possible_is_no_winner(below, mean, n, dimension):
    """An error of half the optimum has seen the teacher, or more samples than it says."""
    about = {"algorithm": "cheat", "n": n, "dimension": dimension}
    cheat = at(0.1, mean, 0.4, sem=0.005 * mean if n > 1 else None, **about)
    verdict = judge(cheat, at(0.1, 0.41, 0.4, dimension=dimension))
    assert (verdict.contenders[0].algorithm == "gamp") is below
    remark = "cheat: below the Bayes optimum: check samples, teacher or code"
    assert verdict_line(verdict).endswith(remark) is below
    assert ("below the" in printed(contender_tables([verdict]))) is below
    assert ("below the Bayes optimum" in verdict_line(judge(cheat))) is below


ADAM = {"algorithm": "adam"}
HALF = {"algorithm": "half", "nominal_alpha": 0.1}
ORDERS = {
    "no estimate somewhere": (
        [at(0.1, 0.41, 0.4), at(0.2, None, 0.2, sem=None), at(0.1, 0.9, 0.4, **ADAM), at(0.2, 0.5, 0.2, **ADAM)],
        [("adam", 0), ("gamp", 1)],
    ),
    # An online run stands at the sample ratio of all its fresh samples: an error of 0.02 there is not nearest to anything.
    "only where theory is zero": (
        [at(30.0, 0.02, 0.0, algorithm="sgd", nominal_alpha=0.1), at(0.1, 0.48, 0.4), at(0.1, 0.8, 0.4, **ADAM)],
        [("gamp", 0), ("adam", 0), ("sgd", 0)],
    ),
    # An easy point alone makes no winner.
    "fewer sample ratios": (
        [at(0.1, 0.4, 0.4, **HALF), *(at(alpha, 0.5, 0.4) for alpha in (0.1, 0.2))],
        [("gamp", 0), ("half", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_who_lacks_an_estimate_or_a_ratio_comes_last(case):
    rows, expected = ORDERS[case]
    assert ranking(judge(*rows)) == expected


def test_what_was_not_run_has_not_failed_to_come_near():
    verdict = judge(at(0.1, None, 0.4, sem=None))
    assert verdict_line(verdict) == "p: no algorithm produced an estimate"
    assert verdict.contenders[0].near_fraction is None
    assert no_time_words(verdict.contenders[0]) == ""
    assert no_time_words(judge(at(0.1, 0.9, 0.4)).contenders[0]) in ("partly", "never")


def test_points_without_an_optimal_error_are_named_and_not_counted():
    """Neither ranks them nor counts their runs as never near: what is not known says nothing of the algorithm."""
    unknown = dict.fromkeys(
        ("0.05", "0.2", "0.5"), dict.fromkeys(("seconds", "iterations", "fraction"))
    )
    rows = [at(0.1, 0.44, 0.4), at(0.2, 0.3, None, time_to_theory=unknown)]
    verdict = judge(*rows)
    (best,) = verdict.contenders
    assert (best.points, best.unsolved) == (1, 1)
    assert best.near_fraction == rows[0].cost.near["0.05"].fraction
    assert verdict_line(verdict).endswith(
        "1 of 2 sample ratios left out, whose optimal error is not known"
    )
    assert verdict_line(judge(*rows[1:])) == (
        "p: gamp, error 0.3000±0.0100, 1 s per run, the optimal error is not known"
    )
    assert "never" not in printed(runtime_tables(rows[1:], "here"))


def test_where_theory_is_zero_there_is_no_ratio_but_a_verdict():
    verdict = judge(at(0.3, 1e-9, 0.0), at(0.3, 0.02, 0.0, **ADAM))
    assert verdict_line(verdict) == (
        "p: gamp is best, 0 where the optimal error is 0, no prediction, 1 s per run"
    )
    assert [entry.zero_reached for entry in verdict.contenders] == [True, False]


def test_components_are_counted_together():
    rows = [at(0.1, 0.6, 0.5, component=1), at(0.1, 0.5, 0.5, component=2)]
    assert judge(*rows).contenders[0].ratio_to_bayes == pytest.approx(1.1)


@pytest.mark.parametrize("letter", ["D", "d"])
def test_a_table_from_two_contenders_on(letter):
    about = {"dimension_letter": letter}
    rows = [at(0.1, 0.41, 0.4, **about), at(0.1, 0.9, 0.4, **ADAM, **about)]
    assert not contender_tables(verdicts(rows[:1]))
    lines = printed(contender_tables(verdicts(rows))).splitlines()
    names = [line.split()[0] for line in lines if line.startswith(("gamp", "adam"))]
    assert names == ["gamp", "adam"]
    assert max(map(len, lines)) <= 80
    assert any(f", {letter} = 100" in line for line in lines)


ERRORS = {"0/0": 0.2, "0/1": 0.5, "0/2": 0.9, "0/3": 0.4}


def test_what_runs_do_not_tell_apart_is_tied():
    """Pair by pair: instances that are hard for both are no difference between them."""
    gamp = at(0.1, 0.5, 0.4, sem=0.15, values=ERRORS)
    shifted = {k: v * 1.1 + 1e-4 * i for i, (k, v) in enumerate(ERRORS.items())}
    always = at(0.1, 0.55, 0.4, sem=0.15, algorithm="adam", values=shifted)
    mixed = dict(zip(ERRORS, (0.5, 0.4, 1.1, 0.4)))
    now_and_then = at(0.1, 0.6, 0.4, sem=0.2, algorithm="sgd", values=mixed)
    verdict = judge(gamp, always, now_and_then)
    assert verdict.tied == ["sgd"]
    assert verdict_line(verdict).endswith(", tied with sgd")
    single = at(0.1, 0.9, 0.4, sem=None, algorithm="ridge", values={"0/0": 0.9})
    assert judge(gamp, single).tied == ["ridge"]  # of one run nobody knows
    others = [at(0.1, 0.501, 0.4, algorithm=name, values={}) for name in "abc"]
    verdict = judge(at(0.1, 0.5, 0.4), *others)
    assert verdict_line(verdict).endswith(", tied with a and 2 more")
    text = printed(contender_tables([verdict]))
    assert "tied with the first" in text
    assert max(map(len, text.splitlines())) <= 80


def test_other_algorithms_have_the_ratio_of_errors_on_the_same_instances():
    gamp = at(0.1, 0.5, 0.4, values=ERRORS)
    doubled = {k: v * (2 + 1e-3 * i) for i, (k, v) in enumerate(ERRORS.items())}
    twice = at(0.1, 1.0, 0.4, algorithm="adam", values=doubled)
    best, adam = judge(gamp, twice).contenders
    assert best.compared is None
    assert adam.compared.reference == "gamp"
    assert adam.compared.ratio == pytest.approx(2, rel=1e-3)
    assert contender_line(adam) == (
        "adam: 2 times gamp's error (2 to 2), 2.5 times the optimal error"
    )
    verdict = judge(gamp, twice, against="adam")
    best, adam = verdict.contenders
    assert adam.compared is None
    assert best.compared.ratio == pytest.approx(0.5, rel=1e-3)
    assert (
        "times the optimal error at infinite size, 0.5 times adam's error ("
        in verdict_line(verdict)
    )


def _pair(adam_factors, **more):
    """GAMP, and adam whose errors are these multiples of GAMP's at the sample ratios 0.1, 0.2, ..."""
    for index, factor in enumerate(adam_factors, 1):
        alpha = index / 10
        values = {k: v * (1 + 0.1 * index) for k, v in ERRORS.items()}
        adam = {
            k: v * factor * (1 + 1e-3 * i) for i, (k, v) in enumerate(values.items())
        }
        yield at(alpha, 0.5, 0.4, values=values, **more)
        yield at(alpha, 0.5 * factor, 0.4, algorithm="adam", values=adam, **more)


def test_where_the_order_turns_round_the_verdict_says_so():
    verdict = judge(*_pair([2.0, 3.0, 0.8]))
    (reversal,) = verdict.reversals
    assert (reversal.algorithm, reversal.better_at) == ("adam", [pytest.approx(0.3)])
    assert (
        reversal_line(verdict)
        == "the order reverses: adam is better than gamp at alpha 0.3, worse at alpha 0.1 and 0.2"
    )
    assert verdict.document()["reversals"][0]["worse_at"] == pytest.approx([0.1, 0.2])
    assert judge(*_pair([2.0, 3.0, 1.2])).reversals == []
    many = reversal_line(judge(*_pair([2.0, 3.0, 2.0, 2.0, 0.8])))
    assert "worse at 4 sample ratios from 0.1 to 0.4" in many


def test_differences_within_chance_or_below_the_target_turn_no_order_round():
    noisy = {k: v * f for (k, v), f in zip(ERRORS.items(), (0.5, 0.9, 1.3, 0.9))}
    better_by_chance = at(0.3, 0.45, 0.4, algorithm="adam", values=noisy)
    rows = [*_pair([2.0, 3.0]), at(0.3, 0.5, 0.4, values=ERRORS), better_by_chance]
    assert judge(*rows).reversals == []
    reached = {k: 1e-5 for k in ERRORS}
    zero = [
        at(0.3, 1e-4, 0.0, values={k: 1e-4 for k in ERRORS}),
        at(0.3, 1e-5, 0.0, algorithm="adam", values=reached),
    ]
    assert judge(*_pair([2.0, 3.0]), *zero).reversals == []
    missed = at(0.3, 0.1, 0.0, values={k: 0.1 for k in ERRORS})
    (reversal,) = judge(*_pair([2.0, 3.0]), missed, zero[1]).reversals
    assert reversal.better_at == [0.3]


def test_fresh_samples_are_not_compared_with_the_data_set():
    """At its own, larger sample ratio an online run has a smaller optimum: its ratio to that says nothing of others."""
    online = at(2.0, 0.04, 0.01, algorithm="sgd", nominal_alpha=0.1)
    contenders = judge(at(0.1, 0.5, 0.4), online).contenders
    assert {entry.compared for entry in contenders} == {None}
    lines = {contender_line(entry) for entry in contenders}
    assert lines == {
        "gamp: 1.25 times the optimal error",
        "sgd: 4 times the optimal error",
    }


def test_an_error_of_0_is_an_estimate():
    _, adam = judge(at(0.1, 0.0, 0.0), at(0.1, 1e-9, 0.0, **ADAM)).contenders
    assert contender_line(adam) == "adam: 0 where the optimal error is 0"


# -- failures -------------------------------------------------------------------------------------------------------------


def twins(lost, status="failed", runs=144, alphas=(0.1, 0.2)):
    """Rows of two algorithms with the same errors; at every sample ratio one of them has lost these runs."""
    rng, rows = np.random.default_rng(0), []
    for alpha in alphas:
        draws = 0.1 * np.exp(0.1 * rng.standard_normal(runs // len(alphas)))
        values = {f"0/{k}": error for k, error in enumerate(draws.tolist())}
        for algorithm, count in (("fails", lost), ("intact", 0)):
            remaining = dict([*values.items()][count:])
            mean = np.mean([*remaining.values()]) if remaining else None
            about = {"algorithm": algorithm, "sem": 0.001, "n": len(remaining)}
            counts = {"ok": len(remaining), status: count}
            rows.append(
                at(alpha, mean, 0.1, **about, values=remaining, status_counts=counts)
            )
    return rows


def failing(rows):
    return [row for row in rows if row.place.algorithm == "fails"]


@pytest.mark.parametrize("status", ["failed", "diverged", "timeout"])
@pytest.mark.parametrize("lost", [1, 9, 71])
def test_who_fails_is_neither_best_nor_tied(status, lost):
    verdict = judge(*twins(lost, status))
    intact, fails = verdict.contenders
    assert (fails.algorithm, verdict.tied) == ("fails", [])
    assert f"{2 * lost} of 144 runs failed" in contender_line(fails)
    # Each failure counts as the prior mean: ten times the error.
    share = lost / 72
    ratio = (1 - share) * intact.ratio_to_bayes + 10 * share
    assert fails.ratio_to_bayes == pytest.approx(ratio, rel=0.01)
    assert fails.compared.ratio == pytest.approx(10**share, rel=0.03)
    alone = judge(*failing(twins(lost, status)))
    assert f"{2 * lost} of 144 runs failed" in verdict_line(alone)
    assert alone.contenders[0].ratio_to_bayes == fails.ratio_to_bayes


def test_what_was_refused_has_not_failed():
    verdict = judge(*twins(9, "skipped"))
    assert verdict.tied
    assert not any(entry.failed for entry in verdict.contenders)


def test_to_fail_everywhere_at_one_sample_ratio_is_no_estimate():
    _, fails = judge(*twins(72)[:2], *twins(0)[2:]).contenders
    assert (fails.points, fails.missing, fails.failed) == (1, 1, 72)
    assert fails.ratio_to_bayes == pytest.approx(math.sqrt(10), rel=0.02)
    alone = judge(*failing(twins(72)))
    assert verdict_line(alone) == "p: no algorithm produced an estimate"
    _, fails = judge(*twins(72)).contenders
    assert contender_line(fails) == "fails: 144 of 144 runs failed"


def test_failures_count_in_the_summary_of_all_problems():
    rows = [row.labeled(name, row.place.algorithm) for name in "pq" for row in twins(9)]
    intact, fails = summary(rows)
    assert (intact.algorithm, fails.algorithm) == ("intact", "fails")
    assert (intact.instances, fails.instances) == (288, 252)
    assert fails.ratio_to_bayes == pytest.approx(
        10 ** (1 / 8) * intact.ratio_to_bayes, rel=0.02
    )
    assert fails.interval[0] > 1.1


# -- without an optimum ---------------------------------------------------------------------------------------------------


def test_where_no_optimum_is_known_errors_and_their_ratios_are_said():
    rows = [
        at(alpha, factor * mean, None, algorithm=name, sem=0.001, theory=None,
           values={f"0/{k}": factor * mean * (1 + 0.1 * k) for k in range(4)})
        for alpha, mean in ((0.1, 0.4), (0.2, 0.1))
        for name, factor in (("adam", 1.5), ("gamp", 1.0))
    ]  # fmt: skip
    verdict = judge(*rows)
    gamp, adam = verdict.contenders
    assert (gamp.algorithm, gamp.ratio_to_bayes) == ("gamp", None)
    assert gamp.mean_error.mean == pytest.approx(0.2)
    assert "p: gamp is best, error 0.2000" in verdict_line(verdict)
    assert "the optimal error is not known" in verdict_line(verdict)
    assert contender_line(adam).startswith(
        "adam: 1.5 times gamp's error (1.5 to 1.5), error 0.3000"
    )
    text = flat(printed(contender_tables([verdict])))
    assert "mean error" in text
    assert "error ÷ optimal" not in text
    assert "against theory" not in printed(error_tables(rows))
    assert "against theory" in printed(error_tables([at(0.1, 0.4, 0.4)]))
