"""Whether runs match their prediction: false alarms, power and finite size of the test, by simulated runs of known laws."""

import numpy as np
import pytest

from smimbench.numerics.statistics import normal_score
from smimbench.report.prediction import (
    FINITE,
    LEVEL,
    POWER,
    SizeRuns,
    SizeSeries,
    agreement,
    deviation,
)
from smimbench.report.verdict import verdicts
from smimbench.report.wording import verdict_line
from tests.report.rows import changed, row

SIZES = (150, 300, 600)


def simulated(
    rng,
    *,
    off=0.0,
    b=0.0,
    sizes=SIZES,
    seeds=16,
    alphas=3,
    teachers=0.7,
    coefficient=None,
):
    """Rows of runs whose errors have the mean ``m (1 + off + b / D)`` and a variance of ``2 / D``, a part of it the teachers'."""
    rows = []
    for alpha in range(1, alphas + 1):
        expected = 0.5 / alpha
        for D in sizes:
            excess = rng.standard_normal(seeds) * np.sqrt(2 / D)
            noise = rng.standard_normal(seeds) * np.sqrt(2 / D)
            relative = (
                1
                + off
                + b / D
                + np.sqrt(teachers) * excess
                + np.sqrt(1 - teachers) * noise
            )
            names = [f"0/{k}" for k in range(seeds)]
            rows.append(row(
                alpha=alpha + 1e-3 / D, nominal_alpha=alpha, dimension=D, n=seeds, own_theory=expected, own_theory_error=1e-9,
                values=dict(zip(names, (expected * relative).tolist())), target=1e-3,
                own_coefficient=None if coefficient is None else coefficient * expected,
                teachers={name: [x] for name, x in zip(names, excess.tolist())},
            ))  # fmt: skip
    return rows


def number(metric, values):
    """A predicted number of 1 with these values of the runs."""
    about = {"metric": metric, "component": None, "at": None, "coefficient": None}
    return {**about, "values": values, "prediction": 1.0, "error": 0.0}


def numbered(values):
    return {f"0/{k}": value for k, value in enumerate(values.tolist())}


def answers(count=200, **how):
    rng = np.random.default_rng(7)
    return [agreement(simulated(rng, **how), "mse") for _ in range(count)]


def share(found, *said):
    return np.mean([one.prediction in said for one in found])


@pytest.mark.parametrize("how", [
    {}, {"seeds": 4}, {"sizes": (600,)}, {"b": 8.0, "coefficient": 8.0}, {"alphas": 1}, {"sizes": (40, 80, 160), "b": 15.0},
    *(pytest.param(how, marks=pytest.mark.slow) for how in (
        {"sizes": (300, 600)}, {"b": 8.0}, {"b": -5.0, "seeds": 8}, {"teachers": 0.0}
    )),
], ids=str)  # fmt: skip
def test_false_alarms_are_as_rare_as_stated(how):
    found = answers(**how)
    assert share(found, "no") <= LEVEL + 3 * np.sqrt(LEVEL / len(found))
    assert (
        share(found, "yes") > 0.9
        or how.get("seeds") == 4
        or max(how.get("sizes", (1,))) < 200
    )


@pytest.mark.parametrize(("sign", "how"), [
    (1, {}), (-1, {"b": 5.0}), (1, {"sizes": (300, 600)}), (-1, {"b": 3.0, "coefficient": 3.0}), (-1, {"alphas": 1}),
    (1, {"sizes": (4000,)}),
], ids=str)  # fmt: skip
def test_a_deviation_of_the_stated_size_is_seen(sign, how):
    """The deviation that it says it would have seen, put into the runs: at one sample ratio it is seen with its probability."""
    how = {"seeds": 64, **how}
    seen = np.median([one.would_have_seen for one in answers(20, **how)])
    found = answers(100, off=sign * seen, **how)
    assert share(found, "no") >= POWER - 3 * np.sqrt(POWER * (1 - POWER) / 100)
    assert all(
        one.deviation == pytest.approx(sign * seen, abs=seen)
        for one in found
        if one.prediction == "no"
    )
    assert share(answers(50, off=3 * sign * seen, **how), "no") == 1


def test_finite_size_is_no_mistake_and_hides_some():
    """A correction of 15 / D at one size may be finite size; 10 times that is none."""
    assert (
        share(answers(50, sizes=(300,), seeds=256, b=15.0, alphas=1), "finite size")
        > 0.9
    )
    assert share(answers(50, sizes=(300,), seeds=256, b=150.0, alphas=1), "no") == 1
    # At D = 30 nothing below 2/3 can be refused: that is no yes.
    assert share(answers(50, sizes=(30,), seeds=256, alphas=1), "yes", "no") == 0
    assert share(answers(50, sizes=(600,), seeds=2), "yes") < 0.1


def with_far_off(rows, share, factor=13.0):
    """The same share of the runs of every row has an error that is so many times as large."""
    moved = []
    for one in rows:
        values = one.estimate.values
        names = [*values][: round(share * len(values))]
        moved.append(
            changed(
                one, values=values | {name: factor * values[name] for name in names}
            )
        )
    return moved


@pytest.mark.parametrize(
    "how", [{"alphas": 3}, {"alphas": 1}, {"alphas": 3, "sizes": (100,)}], ids=str
)
@pytest.mark.parametrize("factor", [13.0, 40.0])
def test_a_wrong_sign_in_one_run_of_twenty_is_no_threshold(how, factor):
    rng = np.random.default_rng(5)
    rows = with_far_off(
        simulated(rng, seeds=20, **{"sizes": (400,)} | how), 0.05, factor
    )
    found = agreement(rows, "mse")
    assert (found.prediction, found.far_off) == ("far off", [len(rows), 20 * len(rows)])
    assert found.would_have_seen < 0.5
    (verdict,) = verdicts(
        [
            changed(one, bayes=one.prediction.value, optimum=one.prediction.value)
            for one in rows
        ]
    )
    assert (
        f"{len(rows)} of {20 * len(rows)} runs {'are outliers' if len(rows) > 1 else 'is an outlier'}"
        in verdict_line(verdict)
    )
    assert "too small" not in verdict_line(verdict)


def test_without_what_is_far_off_the_others_are_tested():
    rng = np.random.default_rng(6)
    assert (
        agreement(
            with_far_off(simulated(rng, seeds=20, off=0.5), 0.05), "mse"
        ).prediction
        == "no"
    )


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_what_many_runs_do_is_a_threshold(share):
    rng = np.random.default_rng(7)
    assert (
        agreement(
            with_far_off(simulated(rng, seeds=20, alphas=1), share), "mse"
        ).prediction
        == "finite size"
    )


@pytest.mark.parametrize(("scatter", "said"), [(0.1, "no"), (2.0, "finite size")])
def test_runs_whose_own_claims_scatter_are_near_a_threshold(scatter, said):
    """Errors a third too high at every size, in runs whose Nishimori ratios are right, or right in some and far off in others."""
    rng = np.random.default_rng(3)
    rows = simulated(rng, off=0.35, alphas=1)
    claimed = []
    for one in rows:
        values = one.estimate.values
        claims = dict(
            zip(values, (1 + scatter * rng.standard_normal(len(values))).tolist())
        )
        claimed.append(changed(one, also_predicted=[number("nishimori", claims)]))
    assert agreement(claimed, "mse").prediction == said


@pytest.mark.parametrize(("spread", "said"), [(0.05, "no"), (3.0, "finite size")])
def test_claims_over_errors_that_scatter_are_near_a_threshold(spread, said):
    """Calibrations of 0.5 with a small scatter of their own, where the errors are alike, or some are many times the others."""
    rng, rows = np.random.default_rng(4), []
    for D in SIZES:
        values = numbered(np.exp(spread * np.abs(rng.standard_normal(16))))
        others = [number("calibration", numbered(0.5 + 0.1 * rng.random(16)))]
        rows.append(
            row(
                dimension=D,
                own_theory=1.0,
                own_theory_error=0.0,
                n=16,
                values=values,
                also_predicted=others,
            )
        )
    assert agreement(rows, "mse").prediction == said


@pytest.mark.parametrize(("expected", "mean", "scatter", "said"), [
    (0.0, 0.6, 1.0, "finite size"), (0.0, 2.0, 0.1, "no"), (0.9, 0.6, 1.0, "no"),
], ids=str)  # fmt: skip
def test_overlaps_of_a_vector_at_the_edge_of_a_spectrum_are_finite_size(
    expected, mean, scatter, said
):
    """At the transition squared cosines fall like D^(-1/3) and scatter like themselves; those that are alike are found."""
    rng = np.random.default_rng(6)
    rows = [
        row(metric="overlap", dimension=D, own_theory=expected, own_theory_error=0.0, n=16,
            values=numbered(mean * D ** (-1 / 3) * rng.gamma(scatter**-2, scatter**2, 16))) for D in SIZES
    ]  # fmt: skip
    assert agreement(rows, None).prediction == said


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_fewer_than_four_runs_say_nothing(seeds):
    """One has no standard error; near a threshold two or three are alike by chance."""
    found = agreement(
        simulated(np.random.default_rng(0), seeds=seeds, sizes=(30,), off=3.0), "mse"
    )
    assert (found.prediction, found.deviation, found.would_have_seen) == (
        "too few runs",
        None,
        None,
    )


@pytest.mark.parametrize(("lost", "said"), [(False, "yes"), (True, "too few runs")])
def test_a_point_without_an_estimate_grants_nothing(lost, said):
    rows = simulated(np.random.default_rng(3), seeds=64)
    lost = (
        [
            row(
                alpha=9.0,
                nominal_alpha=9.0,
                dimension=600,
                n=0,
                mean=None,
                own_theory=0.1,
                own_theory_error=0.0,
            )
        ]
        if lost
        else []
    )
    assert agreement([*rows, *lost], "mse").prediction == said


@pytest.mark.parametrize(
    ("value", "said"), [(1e-9, "yes"), (5e-4, "yes"), (5e-3, "no")]
)
def test_where_theory_says_0_the_target_counts_as_reached(value, said):
    spread = {f"0/{k}": value * (1 + 0.01 * (k % 5)) for k in range(16)}
    rows = [
        row(
            dimension=D,
            own_theory=0.0,
            own_theory_error=0.0,
            values=spread,
            n=16,
            target=1e-3,
        )
        for D in SIZES
    ]
    assert agreement(rows, "mse").prediction == said


@pytest.mark.parametrize(("off", "said"), [(0.0, "yes"), (0.1, "no"), (-0.1, "no")])
def test_deviations_are_relative_to_the_prediction_at_their_size(off, said):
    """As of a stream: the same samples are fewer per dimension at large D, and the error is many times as large."""
    rng = np.random.default_rng(7)
    rows = []
    for size, expected in ((100, 0.02), (200, 0.1), (400, 0.6)):
        values = {
            f"0/{k}": expected * (1 + off + 0.1 * rng.standard_normal())
            for k in range(64)
        }
        rows.append(
            row(
                dimension=size,
                own_theory=expected,
                own_theory_error=0.0,
                own_coefficient=0.0,
                values=values,
                n=64,
            )
        )
    found = agreement(rows, "mse")
    assert found.prediction == said
    assert found.would_have_seen < 0.06
    assert found.deviation == pytest.approx(off, abs=0.03)


def test_numbers_without_a_row_count():
    """The Nishimori ratio of every run, and places on the way: what the error at the end hides."""
    rows = simulated(np.random.default_rng(2), seeds=64)
    assert agreement(rows, "mse").prediction == "yes"
    off = {f"0/{k}": 1.05 + 1e-3 * (k % 7) for k in range(64)}
    found = agreement(
        [changed(one, also_predicted=[number("nishimori", off)]) for one in rows], "mse"
    )
    assert (found.prediction, found.deviation_of) == ("no", "nishimori")
    assert found.deviation == pytest.approx(0.053, abs=0.01)


def test_a_component_is_compared_with_its_own_teacher():
    """Rows of two components: lengths of teachers take away what they explain, each of its own component."""
    rng = np.random.default_rng(5)
    lengths = {f"0/{k}": rng.standard_normal(2).tolist() for k in range(32)}
    rows = []
    for component in (1, 2):
        values = {name: 0.5 + 0.01 * x[component - 1] for name, x in lengths.items()}
        rows.append(row(component=component, values=values, own_theory=0.5, own_theory_error=0.0, n=32, target=1e-3,
                        teachers=lengths, dimension=10_000))  # fmt: skip
    assert agreement(rows, "mse").would_have_seen == pytest.approx(
        FINITE["lower"] / 10_000 + 1e-3, rel=0.05
    )


def test_scores_are_those_of_the_normal_law():
    runs = SizeRuns(1000, [1.0, 1.1, 0.9, 1.05], [np.nan] * 4, 0.5, 0.0, 0.5)
    found = deviation(SizeSeries("lower", None, [runs]))
    assert found.excess_score() == pytest.approx(
        normal_score(found.value / found.error, 3)
    )


def test_scatter_near_a_threshold_is_finite_size():
    rng = np.random.default_rng(1)
    sizes = [
        SizeRuns(D, rng.choice([0.1, 1.0], 16), [np.nan] * 16, 0.3, 0.0, 0.3)
        for D in SIZES
    ]
    measured = deviation(SizeSeries("lower", None, sizes))
    assert measured.allowance > 1
    assert measured.excess_score(measured.allowance) == 0


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_the_unit_of_a_metric_does_not_matter(size):
    """An overlap counted in other units gives the same verdict and the same relative deviation."""
    rng = np.random.default_rng(4)
    rows = [
        row(metric="overlap", dimension=D, own_theory=size, own_theory_error=0.0, n=32, target=1e-3,
            values={f"0/{k}": size * float(1.1 + 0.02 * rng.standard_normal()) for k in range(32)}) for D in SIZES
    ]  # fmt: skip
    found = agreement(rows, None)
    assert (found.prediction, found.deviation) == ("no", pytest.approx(0.1, abs=0.02))
