"""Rows of several dimensions continued to infinite dimension: what is fitted together, what is compared, what is said."""

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest

from smimbench.report.charts import save
from smimbench.report.extrapolation import extrapolated_rows, size_charts
from smimbench.report.tables import extrapolated_tables
from smimbench.report.text_files import as_markdown
from tests.report.rows import changed, printed, row

pytestmark = pytest.mark.usefixtures("svg_alone")

SIZES = (50, 100, 200, 400)


def rows(limit=0.4, b=2.0, sizes=SIZES, sd=0.5, n=8, shift=lambda D: 0.0, **more):
    """Rows of one point whose means lie on ``limit + b / D``, with theory moved by ``shift`` at each D."""
    common = {
        "nominal_alpha": 0.1,
        "alpha": 0.1,
        "identity": {"problem": {"a": 1}, "algorithm": {"name": "gamp"}},
        **more,
    }
    common.setdefault("theory", 0.4)
    theory = common.pop("theory")
    return [
        row(**{**common, "dimension": D, "n": n, "mean": limit + b / D + shift(D), "sem": sd / D / math.sqrt(n),
               "theory": None if theory is None else theory + shift(D)})
        for D in sizes
    ]  # fmt: skip


def only(limits):
    assert len(limits) == 1
    return limits[0].document()


def limit_of(*args, **more):
    """The only limit of rows on a line."""
    return only(extrapolated_rows(rows(*args, **more)))


def table(rows, limits):
    """What CSV and Markdown are made of."""
    return [row.document() for row in rows], [limit.document() for limit in limits]


def test_a_correction_of_order_1_over_D_leaves_theory():
    entry = limit_of()
    assert entry["value"] == pytest.approx(0.4)
    assert entry["coefficient"] == pytest.approx(2.0)
    assert entry["refusal"] == ""
    assert abs(entry["z"]) < 1e-3
    assert (entry["n"], entry["status_counts"], entry["alpha"]) == (32, {"ok": 16}, 0.1)
    assert [p["dimension"] for p in entry["points"]] == list(SIZES)


def test_what_is_wrong_in_the_limit_is_seen_though_every_row_is_near_theory():
    entry = limit_of(limit=0.408)
    assert entry["z"] > 4
    assert entry["difference"] == pytest.approx(0.008)


def test_the_error_of_theory_counts():
    exact = limit_of(limit=0.408)
    unsure = limit_of(limit=0.408, theory_error=0.004)
    assert 0 < unsure["z"] < exact["z"]
    assert 0.008 / math.hypot(unsure["error"], 0.004) == pytest.approx(
        unsure["z"], rel=0.1
    )


def test_sample_ratios_that_are_rounded_differently_are_moved_together():
    """n = round(alpha D): at every D theory is another one, and the limit is that of the largest D."""
    moved = rows(shift=lambda D: 0.3 * (round(0.137 * D) / D - 0.137))
    sizes = [r.place.dimension for r in moved]
    moved = [changed(r, alpha=round(0.137 * D) / D) for r, D in zip(moved, sizes)]
    entry = only(extrapolated_rows(moved))
    assert entry["value"] == pytest.approx(moved[-1].theory.value, rel=1e-4)
    assert entry["theory"] == moved[-1].theory.value
    assert entry["chi2"] < 1e-3


def test_runs_whose_samples_differ_by_far_are_moved_in_proportion():
    """A fixed number of steps on fresh samples: theory falls by a factor of eight from size to size, and so do runs."""
    far = [
        changed(r, mean=r.estimate.mean * k, sem=r.estimate.sem * k, theory=0.4 * k)
        for r, k in zip(rows(), (1 / 64, 1 / 16, 1 / 4, 1))
    ]
    entry, same = only(extrapolated_rows(far)), limit_of()
    assert (entry["value"], entry["error"]) == pytest.approx(
        (same["value"], same["error"])
    )


def test_matrices_from_few_samples_are_less_sure():
    few = [
        {"nominal_alpha": alpha, "alpha": alpha, "dimension_letter": letter}
        for alpha in (0.01, 0.1)
        for letter in "dD"
    ]
    errors = [
        only(extrapolated_rows(rows(sizes=(20, 40, 80), sd=2.0, **more)))["error"]
        for more in few
    ]
    assert errors[0] > 1.5 * errors[2]
    assert errors[1:] == pytest.approx([errors[1]] * 3)


@pytest.mark.parametrize("differs", [{"algorithm": "adam"}, {"metric": "overlap"}, {"component": 2}, {"nominal_alpha": 0.2},
                                     {"backend": "cupy"}, {"problem": "q"}])  # fmt: skip
def test_what_differs_is_fitted_apart(differs):
    first, second = extrapolated_rows(rows() + rows(limit=0.6, **differs))
    assert (first.fit.limit, second.fit.limit) == pytest.approx((0.4, 0.6))


def test_two_dimensions_or_single_runs_give_nothing():
    assert extrapolated_rows(rows(sizes=(50, 100))) == []
    single = [changed(r, sem=None, n=1) for r in rows()]
    assert extrapolated_rows(single) == []
    one = rows()
    one[-1] = changed(
        one[-1], sem=None, n=1
    )  # the others say how much a run fluctuates
    assert len(only(extrapolated_rows(one))["points"]) == 4
    lost = [
        changed(r, mean=None, sem=None, n=0) if r.place.dimension == 400 else r
        for r in rows()
    ]
    assert len(only(extrapolated_rows(lost))["points"]) == 3


def test_without_theory_there_is_a_value_and_no_score():
    entry = limit_of(theory=None)
    assert entry["value"] == pytest.approx(0.4)
    assert (entry["z"], entry["difference"]) == (None, None)


def test_where_theory_is_zero_the_target_is_an_error():
    """What has reached zero to within the stated precision is no deviation; what has not, is."""
    exact = {"b": 0.0, "sd": 1e-6, "theory": 0.0}
    assert abs(limit_of(limit=2e-4, **exact)["z"]) < 1
    assert limit_of(limit=2e-2, **exact)["z"] > 3


def test_runs_that_agree_to_the_last_digit_have_the_error_of_rounding():
    entry = limit_of(sd=0.0)
    assert entry["value"] == pytest.approx(0.4)
    assert math.isfinite(entry["z"])


def test_scores_of_simulated_rows_are_those_of_chance():
    rng, z = np.random.default_rng(3), []
    for _ in range(200):
        drawn = []
        for r in rows(n=4):
            runs = rng.normal(r.estimate.mean, 0.5 / r.place.dimension, 4)
            drawn.append(changed(r, mean=runs.mean(), sem=runs.std(ddof=1) / 2))
        z.append(only(extrapolated_rows(drawn))["z"])
    assert sum(score is None for score in z) < 6
    z = [score for score in z if score is not None]
    assert abs(np.mean(z)) < 0.25
    assert 0.7 < np.std(z) < 1.15
    assert max(map(abs, z)) < 4


def test_tables_have_limits_scores_and_refusals(snapshot):
    jagged = rows(algorithm="sgd", shift=lambda D: 0.05 * (D in (50, 200)))
    entries = extrapolated_rows(
        [
            *rows(),
            *rows(limit=0.41, nominal_alpha=0.2),
            *rows(theory=None, algorithm="adam"),
            *[changed(r, theory=0.4) for r in jagged],
        ]
    )
    text = printed(extrapolated_tables(entries), 100)
    assert text == snapshot
    assert text.index("0.2 ") < text.index("0.1 ")  # the largest score first
    markdown = as_markdown(*table([row(), row()], entries)).splitlines()
    assert len(markdown) == 2 + 2 + len(entries)
    assert sum("| inf |" in line for line in markdown) == len(entries)


def drawn_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_drawn_lies_beside_the_figure(tmp_path):
    entries = extrapolated_rows(rows(component_word="component", dimension_letter="d"))
    paths = save(size_charts(SimpleNamespace(title="Sizes"), entries)[0], tmp_path)
    assert [path.name for path in paths] == [
        f"finite-size.{kind}" for kind in ("png", "svg", "pdf", "csv")
    ]
    found = drawn_csv(paths[-1])
    assert [float(one["value"]) for one in found if one["what"] == "runs"] == [
        0.4 + 2.0 / D for D in SIZES
    ]
    (limit,) = [one for one in found if one["what"] == "fit"]
    assert (limit["dimension"], float(limit["value"])) == ("inf", pytest.approx(0.4))
    (theory,) = [one for one in found if one["what"] == "theory"]
    assert float(theory["value"]) == 0.4
