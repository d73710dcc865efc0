"""Ratios to the limit, optima at finite dimension that a suite holds, and z against the prediction at the size of the runs."""

import re

import numpy as np
import pytest

import smimbench
from smimbench.report.columns import html_table
from smimbench.report.comparison import compare_rows
from smimbench.report.notebook import ROW
from smimbench.report.prediction import agreement, is_below_optimum
from smimbench.report.row import row_of
from smimbench.report.tables import comparison_tables, contender_tables, error_tables
from smimbench.report.verdict import summary, verdicts
from smimbench.report.wording import verdict_line
from smimbench.suite.reader import load_suite
from tests.helpers import flat, write_suite
from tests.report.rows import printed, row, values_of

FIRST_LINE_OF_HEAD = "optimal error, this D ÷"
FITTED = "runs of gamp"
NOISE, CORRELATION = 0.2, [[1.0, 0.5], [0.5, 1.0]]
ITEMS = f"""
model   = {{ name = "sequence-multi-index", tokens = 2 }}
channel = {{ name = "linear", noise = {NOISE} }}
prior   = "gaussian"
inputs  = {{ name = "correlated-tokens", covariance = {CORRELATION} }}
"""
SUITE = f"""
[problem]
label = "tokens"{ITEMS}
[grid]
alpha = [0.5, 1.0]
dimension = [20, 40]
seeds = 24
[[algorithms]]
name = "gamp"
[[algorithms]]
name = "spectral"
"""


def at(mean=0.44, **more):
    """A row of GAMP at D = 100, with the limit 0.4 of the optimum."""
    more = {"sem": 0.01, "bayes": 0.4, "own_theory": 0.4, "own_z": 4.0, "n": 8, **more}
    return row(mean=mean, **more)


def known(value=0.43, error=0.001, **more):
    """The same, with an optimum at D = 100 that was found without GAMP."""
    about = {"optimum": value, "optimum_error": error, "optimum_source": "sampled"}
    return at(**about, ratio_to_bayes=0.44 / value, **more)


# -- ratio to the limit -----------------------------------------------------------------------------------------------


def test_the_ratio_is_to_the_limit_and_a_ratio_to_its_own_mean_is_none():
    fitted = {"optimum": 0.44, "optimum_source": FITTED}
    gamp = at(**fitted, ratio_to_bayes=None)
    adam = at(0.8, **fitted, ratio_to_bayes=0.8 / 0.44, algorithm="adam", n=8)
    assert gamp.document()["ratio_to_limit"] == pytest.approx(1.1)
    assert gamp.document()["ratio_to_limit_error"] == pytest.approx(0.01 / 0.4)
    (verdict,) = verdicts([gamp, adam])
    best, other = verdict.document()["contenders"]
    assert (best["ratio_to_limit"], best["ratio_to_bayes"]) == (
        pytest.approx(1.1),
        None,
    )
    assert (best["optimum_to_limit"], best["optimum_source"]) == (None, FITTED)
    assert other["ratio_to_limit"] == pytest.approx(2.0)
    assert other["ratio_to_bayes"] == pytest.approx(0.8 / 0.44)
    assert other["optimum_to_limit"] == pytest.approx(1.1)
    for text in (
        flat(printed(contender_tables([verdict]), width=140)),
        flat(printed(error_tables([gamp, adam]), width=140)),
    ):
        assert FIRST_LINE_OF_HEAD in text
        assert re.search(r"1\.10±0\.0\d fitted to gamp", text)
        assert re.search(r"2\.00±0\.0\d 1\.100±0\.000 fitted to gamp", text)


def test_an_optimum_of_unknown_value_leaves_its_column_blank():
    text = flat(printed(error_tables([at()]), width=140))
    assert FIRST_LINE_OF_HEAD not in text
    assert verdicts([at()])[0].contenders[0].optimum_to_limit is None


def test_the_limit_of_two_sample_ratios_is_a_geometric_mean_and_of_one_source_each():
    first = known(alpha=0.1)
    second = known(alpha=0.2, bayes=0.2, own_theory=0.2, value=0.21)
    (contender,) = verdicts([first, second])[0].contenders
    ratios = [1.1, 2.2]
    assert contender.ratio_to_limit == pytest.approx(np.sqrt(np.prod(ratios)))
    assert contender.optimum_to_limit == pytest.approx(np.sqrt(1.075 * 1.05))
    assert contender.optimum_source == "sampled"
    half_known = verdicts([first, at(alpha=0.2)])[0].contenders[0]
    assert (half_known.optimum_to_limit, half_known.optimum_source) == (
        None,
        "sampled, limit",
    )


def test_there_is_no_ratio_to_a_limit_of_0_nor_of_what_is_no_error():
    perfect = at(1e-5, bayes=0.0, own_theory=0.0, ratio_to_bayes=None)
    overlap = at(metric="overlap", ratio_to_bayes=None)
    for blank in (perfect, overlap):
        assert blank.document()["ratio_to_limit"] is None
    assert at(n=1, sem=None).document()["ratio_to_limit_error"] is None


def test_the_summary_of_all_problems_has_ratios_to_the_limit():
    errors = values_of(0.44, 0.01, 8)
    rows = [
        at(
            problem=problem,
            values=errors,
            optimum=0.44,
            optimum_source=FITTED,
            ratio_to_bayes=None,
            nominal_alpha=0.123456,
        )
        for problem in "pq"
    ]
    other = [
        at(
            0.88,
            problem=problem,
            algorithm="adam",
            values={k: 2 * v for k, v in errors.items()},
        )
        for problem in "pq"
    ]
    gamp, adam = summary([*rows, *other])
    assert (gamp.algorithm, gamp.ratio_to_bayes) == ("gamp", None)
    assert gamp.ratio_to_limit == pytest.approx(1.1, rel=0.01)
    assert adam.ratio_to_limit == pytest.approx(2.2, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([known()], " (optimum at D = 100: 1.075±0.003, sampled), "),
        ([at(optimum=0.44, optimum_source=FITTED)], ", "),
        ([at()], ", "),
    ],
    ids=["sampled", "fitted", "unknown"],
)
def test_the_verdict_says_what_is_known_at_this_size(rows, words):
    line = verdict_line(verdicts(rows)[0])
    assert f" times the optimal error at infinite size{words}" in line


# -- z against the prediction at this size ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "z"),
    [
        (known(), 0.01 / np.hypot(0.01, 0.001)),
        (at(own_coefficient=3.0), 0.01 / np.hypot(0.01, 0.03**2 / 0.4)),
        (at(own_coefficient=0.0), 4.0),
        (known(own_theory=0.5, own_z=-6.0), None),
        (at(optimum=0.43, optimum_source=FITTED), None),
        (at(), None),
        (known(own_z=None), None),
    ],
    ids=[
        "the optimum is known",
        "the coefficient of 1/D is known",
        "the prediction is of this size",
        "it is not predicted to reach the optimum",
        "the optimum is a fit of runs",
        "nothing is known",
        "a single run",
    ],
)
def test_z_at_size_is_to_what_is_known_at_this_size(found, z):
    assert found.document()["z_at_size"] == (z and pytest.approx(z))
    assert found.document()["own_z"] == found.prediction.z


MEANING = "*: from the limit of infinite size; the prediction at this size is not known"


def test_a_z_from_the_limit_is_marked_and_the_mark_explained_below_the_same_table():
    (marked,), (plain,) = error_tables([at(n=3)]), error_tables([known()])
    text = flat(printed([marked]))
    assert "+4.0?*" in text
    assert MEANING in text
    assert "?: fewer than 4 runs" in text
    text = flat(printed([plain]))
    assert "+1.0" in text
    assert "+1.0*" not in text
    assert MEANING not in text
    compared = flat(
        printed(
            comparison_tables(
                compare_rows([at(own_theory=0.41)] * 1, [at(own_theory=0.41)])
            )
        )
    )
    assert "+4.0*" in compared
    assert MEANING in compared


def test_the_page_and_the_notebook_explain_the_mark_below_their_table():
    text = html_table(ROW, [at()])
    assert "+4.0*" in text
    assert f"</table><div><small>{MEANING}</small></div>" in text
    assert MEANING not in html_table(ROW, [known()])


# -- agreement with theory --------------------------------------------------------------------------------------------


def runs(rng, offset=0.0, *, is_known=True, sizes=(80,)):
    """Rows of 32 runs with the mean ``0.4 (1 + 8 / D + offset)``, where the optimum is ``0.4 (1 + 8 / D)``."""
    rows = []
    for D in sizes:
        optimum = 0.4 * (1 + 8 / D)
        errors = optimum + 0.4 * (offset + 0.05 * rng.standard_normal(32))
        values = {f"0/{k}": error for k, error in enumerate(errors.tolist())}
        about = {"optimum": optimum, "optimum_error": 1e-4, "optimum_source": "sampled"}
        rows.append(at(dimension=D, values=values, n=32, **(about if is_known else {})))
    return rows


def test_a_known_optimum_makes_the_detectable_deviation_smaller():
    rng = np.random.default_rng(0)
    known_rows = [agreement(runs(rng), "mse") for _ in range(40)]
    limit_rows = [agreement(runs(rng, is_known=False), "mse") for _ in range(40)]
    assert [found.prediction for found in known_rows].count("yes") >= 38
    assert max(found.would_have_seen for found in known_rows) < 0.09
    assert min(found.would_have_seen for found in limit_rows) > 0.25
    off = [agreement(runs(rng, 0.11), "mse") for _ in range(20)]
    assert {found.prediction for found in off} == {"no"}


def test_an_optimum_that_is_known_at_some_sizes_only_is_not_mixed_with_limits():
    rng = np.random.default_rng(1)
    first, second = runs(rng, sizes=(40, 80))
    limit_of_first = row_of({**first.document(), "optimum_source": "limit"})
    mixed = agreement([limit_of_first, second], "mse")
    limits = [
        row_of({**r.document(), "optimum_source": "limit"}) for r in (first, second)
    ]
    assert mixed == agreement(limits, "mse")


def test_an_error_between_the_limit_and_the_optimum_at_this_size_is_impossible():
    """An optimum that lies 10% above the limit, and an error at the limit, which looks perfect if only the limit is known."""
    rng = np.random.default_rng(2)
    assert is_below_optimum(runs(rng, -0.1), "mse")
    assert not is_below_optimum(runs(rng, -0.1, is_known=False), "mse")
    assert not is_below_optimum(runs(rng), "mse")


# -- stored optima ----------------------------------------------------------------------------------------------------


def expected_ridge_error(dimension, alpha, rng):
    """Mean and standard error over 2,000 data sets of the error of the posterior mean, ``tr (1 + X^T X / (D noise))^-1 / D``."""
    mixing, errors = np.linalg.cholesky(CORRELATION), []
    for _ in range(2000):
        tokens = rng.standard_normal((round(alpha * dimension), 2, dimension))
        X = (mixing @ tokens).reshape(-1, dimension)
        precision = np.eye(dimension) + X.T @ X / (dimension * NOISE)
        errors.append(np.trace(np.linalg.inv(precision)) / dimension)
    return float(np.mean(errors)), float(np.std(errors) / np.sqrt(len(errors)))


def optimum_table(dimension, rng):
    items = ", ".join(ITEMS.strip().splitlines())
    exact = [expected_ridge_error(dimension, alpha, rng) for alpha in (0.5, 1.0)]
    mse, error = map(list, zip(*exact))
    return f"""
[[optimum]]
problem = {{ {items} }}
dimension = {dimension}
alpha = [0.5, 1.0]
mse = {mse}
error = {error}
source = "closed form"
command = "pytest"
"""


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Rows of the same runs without and with the exact optimum at both sizes."""
    folder, rng = tmp_path_factory.mktemp("exact"), np.random.default_rng(3)
    tables = optimum_table(20, rng) + optimum_table(40, rng)
    found = []
    for text in (SUITE, SUITE + tables):
        suite = load_suite(write_suite(folder, text, "tokens"))
        documents = smimbench.run(suite, results=folder)
        found.append([row_of(document) for document in documents])
    return found


@pytest.mark.slow
def test_a_stored_optimum_wins_over_a_fit(exact):
    fitted, stored = exact
    assert len(fitted) == len(stored)
    sources = {(r.metric, r.optimum.source) for r in stored}
    assert sources == {("mse", "closed form"), ("overlap", "limit")}
    assert {r.optimum.source for r in fitted} == {FITTED, "limit"}
    for before, after in zip(fitted, stored):
        assert before.estimate == after.estimate
        if after.metric == "mse" and after.place.algorithm == "gamp":
            assert before.z_at_size is None
            assert abs(after.z_at_size) < 3
            assert after.optimum.ratio == pytest.approx(
                after.estimate.mean / after.optimum.value
            )


@pytest.mark.slow
def test_the_error_of_exact_posteriors_is_what_message_passing_reaches(exact):
    """All sizes and sample ratios together, in units of the optimum: 1 within three standard errors of a percent or two."""
    rows = [r for r in exact[1] if r.metric == "mse" and r.place.algorithm == "gamp"]
    ratios = np.array([r.optimum.ratio for r in rows])
    weights = np.array([(r.estimate.mean / r.estimate.sem) ** 2 for r in rows])
    mean = weights @ ratios / weights.sum()
    assert abs(mean - 1) < 3 / np.sqrt(weights.sum())


@pytest.mark.slow
def test_with_the_stored_optimum_more_would_be_detected(exact):
    fitted, stored = (
        {c.algorithm: c for c in verdicts(rows)[0].contenders} for rows in exact
    )
    assert (
        stored["gamp"].agreement.would_have_seen
        < 0.6 * fitted["gamp"].agreement.would_have_seen
    )
    assert fitted["gamp"].optimum_to_limit is None
    for contender in stored.values():
        assert contender.optimum_source == "closed form"
        assert 1.003 < contender.optimum_to_limit < 1.02
