"""``smimbench reproduce``: figures of the papers, compared with tables that are made here from closed forms."""

import csv
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import smimbench
from smimbench import load_suite
from smimbench.report.published import figure_list, stored_comparison
from smimbench.suite import SuiteError
from smimbench.suite.document import shipped_figures
from tests.helpers import LINE, ROOT, call, flat, output, refusal

SECTIONS = re.findall(
    "^## (.+)$", (ROOT / "docs" / "corrections.md").read_text(), re.MULTILINE
)
ABOUT = """
[suite]
title = "Errors of a linear map"
[grid]
alpha     = [0.2, 0.6, 1.0]
dimension = [40]
seeds     = 6
{more}
[figure]
xlabel = "2 N / D"
xlim   = [0.1, 2.5]
ylim   = [0.0, 1.0]
source = "nowhere"
quick  = ["grid.seeds=2"]
"""
CURVE = """
[[figure.curves]]
label    = "{label}"
table    = "line.csv"
columns  = ["alpha", "error", "spread"]
x_factor = 2
band     = 0.001
{more}
"""
GAMP = '[[algorithms]]\nname = "gamp"'

pytestmark = pytest.mark.usefixtures("svg_alone")


def test_an_unknown_figure_is_told_the_names_of_figures(capsys):
    err = refusal(capsys, "reproduce", "fig1")
    assert "fig1 is not a figure of a paper; choose from 2410.18858-fig1" in err
    err = refusal(capsys, "reproduce", "2410.18858-fig2")
    assert err.endswith("did you mean '2410.18858-fig1'?\n")


def errors(alpha, noise=0.2, tokens=2):
    """The Bayes-optimal error of a linear map with a Gaussian signal."""
    b = alpha * tokens + noise - 1
    return (np.sqrt(b * b + 4 * noise) - b) / 2


def write(tmp_path, values, *, spread=0.0, runs=False, more=""):
    """A figure with one curve, and a published table of these values at its sample ratios."""
    head = ABOUT.format(more=GAMP if runs else "")
    kind = 'algorithm = "gamp"\n' if runs else ""
    path = tmp_path / "figure-of-a-line.toml"
    path.write_text(
        f"[problem]\n{LINE}\n{head}{CURVE.format(label='noise {noise}', more=kind + more)}"
    )
    lines = [
        f"{alpha},{value},{spread}" for alpha, value in zip((0.2, 0.6, 1.0), values)
    ]
    (tmp_path / "tables" / "deeper").mkdir(parents=True)
    (tmp_path / "tables" / "deeper" / "line.csv").write_text(
        "\n".join(["alpha,error,spread", *lines]) + "\n"
    )
    return path


def reproduce(capsys, tmp_path, path, *options):
    results = tmp_path / "results"
    code, out, err = call(
        capsys,
        "reproduce",
        path,
        "--results",
        results,
        "--published",
        tmp_path / "tables",
        "--json",
        *options,
    )
    return code, json.loads(out) if out else out, err


def test_every_figure_on_disk_is_listed_and_sound(capsys):
    code, out, _ = call(capsys, "reproduce", "--list", "--json")
    files = {path.stem for path in (ROOT / "suites" / "papers").glob("*.toml")}
    listed = {one["name"]: one for one in json.loads(out)}
    assert code == 0
    assert set(listed) == files == set(shipped_figures())
    for name, one in listed.items():
        assert re.fullmatch(
            r"(2502\.00901|2506\.01582|2410\.18858|2609\.03858)-(fig|table)\d[-\w]*",
            name,
        )
        if package := one.get("package"):
            assert (ROOT / "plugins" / "examples" / package).is_dir()
            if not find_spec(package.replace("-", "_")):
                code, _, err = call(capsys, "reproduce", name)
                assert (code, f"needs the package {package}" in err) == (2, True)
                continue
        if "no_numbers" in one:
            code, _, err = call(capsys, "reproduce", name)
            assert (code, one["no_numbers"] in err) == (2, True)
            continue
        suite = load_suite(name)
        load_suite(name, suite.figure.quick)
        assert suite.title == one["title"] != name
        assert one["duration"]
        assert name.partition("-")[0] in suite.reference
        assert all(
            correction.section in SECTIONS
            for curve in suite.figure.curves
            for correction in curve.corrections
        )


@pytest.mark.slow
def test_the_last_full_comparison_ships_and_decides(capsys, tmp_path, monkeypatch):
    for figure in figure_list():
        outcome = stored_comparison(figure["name"])
        assert ("no_numbers" in figure) == (outcome is None)
        if outcome is None:
            continue
        curves, command = outcome["curves"], f"smimbench reproduce {figure['name']}"
        assert all(0 <= c["outside"] <= c["points"] > 0 for c in curves)
        if not figure["tables"]:
            assert (outcome["against"], outcome["quick"]) == ("limit", True)
            assert outcome["command"] == f"{command} --quick"
            continue
        assert not outcome["quick"]
        assert outcome["command"] == f"{command} --published FOLDER"
        assert {c["verdict"] for c in curves} <= {"inside", "known correction"}
    name, options = "2506.01582-fig2-left", ("--results", tmp_path, "--quick")
    code, out, err = call(capsys, "reproduce", name, *options)
    assert (code, "nothing is compared" in err) == (0, False)
    outcome = stored_comparison(name)
    assert f"compared on {outcome['date']} by '{outcome['command']}'" in flat(out)
    assert "3 of 256 known correction" in flat(out)
    outcome["curves"][0]["verdict"] = "outside"
    monkeypatch.setattr(
        "smimbench.report.published.stored_comparison", lambda name: outcome
    )
    code, out, _ = call(capsys, "reproduce", name, *options, "--json")
    assert (code, json.loads(out)["date"]) == (1, outcome["date"])


@pytest.mark.slow
def test_a_table_of_several_curves_in_the_axes_of_the_figure(capsys, tmp_path):
    """The figure's x is twice alpha; rows of another rho belong to another curve."""
    folder = tmp_path / "tables"
    folder.mkdir()
    theory = smimbench.theory(
        model="attention-indexed",
        channel="linear",
        prior="bilinear",
        tokens=2,
        symmetric=False,
        noise=0.1,
        rho=0.5,
        alpha=0.1,
        progress=False,
    )
    error = theory.problems[0].points[0].mse[0]
    table = f"rho,x,mmse\n0.5,0.2,{error}\n2.0,0.2,9\n"
    (folder / "several.csv").write_text(table)
    text = (shipped_figures()["2410.18858-fig1-noisy"]).read_text()
    text = re.sub(r'table    = "[^"]*"', 'table    = "several.csv"', text)
    path = tmp_path / "several.toml"
    path.write_text(text.replace('"alpha", "mmse"', '"x", "mmse"'))
    options = ("--published", folder, "--results", tmp_path / "results", "--json")
    _, out, _ = call(capsys, "reproduce", path, *options)
    curves = {curve["curve"]: curve for curve in json.loads(out)["curves"]}
    assert curves["rho = 0.5"]["verdict"] == "inside"
    assert curves["rho = 0.5"]["points"] == 1
    assert curves["rho = 2.0"]["deviation"] < -8
    assert curves["rho = 0.1"]["verdict"] == "not compared"


def test_the_list_is_a_table(capsys):
    out = output(capsys, "reproduce", "--list")
    assert all(one["name"] in out for one in figure_list())


def test_a_curve_of_theory_is_inside(capsys, tmp_path):
    path = write(tmp_path, errors(np.array([0.2, 0.6, 1.0])))
    code, found, err = reproduce(capsys, tmp_path, path)
    (curve,) = found["curves"]
    assert (code, err) == (0, "")
    assert (curve["curve"], curve["verdict"], curve["points"], curve["outside"]) == (
        "noise 0.2",
        "inside",
        3,
        0,
    )
    assert abs(curve["deviation"]) < 1e-6
    assert {file.rpartition(".")[2] for file in found["files"]} == {
        "png",
        "svg",
        "pdf",
        "csv",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "code"),
    [("above = 1.1, below = 1.3", 0), ("above = 1.3", 1), ("below = 1.1", 1)],
)
def test_a_correction_explains_the_points_in_its_range(capsys, tmp_path, ends, code):
    values = errors(np.array([0.2, 0.6, 1.0])) - [0, 0.004, 0]
    path = write(
        tmp_path,
        values,
        more=f'corrections = [{{ section = "{SECTIONS[0]}", {ends} }}]',
    )
    found = reproduce(capsys, tmp_path, path)
    (curve,) = found[1]["curves"]
    assert (found[0], curve["verdict"]) == (
        code,
        "outside" if code else "known correction",
    )
    assert curve["corrections"] == ([] if code else [SECTIONS[0]])
    options = ("--published", tmp_path / "tables", "--results", tmp_path / "results")
    assert (
        f"docs/corrections.md, {SECTIONS[0]}"
        in call(capsys, "reproduce", path, *options)[1]
    ) == (not code)


@pytest.mark.slow
def test_runs_are_compared_within_their_scatter(capsys, tmp_path):
    path = write(tmp_path, errors(np.array([0.2, 0.6, 1.0])), spread=0.05, runs=True)
    code, found, err = reproduce(capsys, tmp_path, path, "--workers", "1")
    (curve,) = found["curves"]
    assert (code, err) == (0, "")
    assert (curve["verdict"], curve["points"]) == ("inside", 3)
    assert curve["allowed"] > 0.051
    assert curve["deviation"] != 0
    count = len(list((tmp_path / "results" / path.stem).glob("*.json")))
    quick = reproduce(capsys, tmp_path, path, "--quick", "--workers", "1")[
        1
    ]  # cells that are there already
    assert (quick["quick"], quick["curves"][0]["points"]) == (True, 3)
    assert len(list((tmp_path / "results" / path.stem).glob("*.json"))) == count
    # The same runs against a table that is far off.
    (table,) = tmp_path.rglob("line.csv")
    table.write_text(
        "alpha,error,spread\n"
        + "".join(f"{a},{errors(a) / 3},0.05\n" for a in (0.2, 0.6, 1.0))
    )
    code, found, _ = reproduce(capsys, tmp_path, path, "--workers", "1")
    assert (code, found["curves"][0]["verdict"]) == (1, "outside")


LEARNING_CURVES = """
[suite]
title = "SGD on fresh samples of a linear map"
[problem]
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "linear", noise = 0.1 }
prior   = { name = "wishart", rho = 1.0 }
[grid]
alpha     = [1.0]
dimension = [40]
seeds     = 4
[[algorithms]]
name          = "sgd"
online        = true
learning_rate = 2e-3
batch         = 400
steps         = 60
[figure]
xlabel = "t"
xlim   = [0.0, 0.5]
ylim   = [0.0, 2.2]
source = "no table is released"
[[figure.curves]]
label     = "error"
algorithm = "sgd"
x_factor  = 0.032
band      = BAND
"""


def test_a_learning_curve_is_compared_with_its_limit(capsys, tmp_path):
    """The time of the flow is t = 4 rate steps, to 0.48; one at small D deviates from the limit."""
    path = tmp_path / "learning.toml"
    options = ("--results", tmp_path / "results", "--workers", "1")
    for band, code in (("0.1", 0), ("1e-9", 1)):  # the second reads runs that are there
        path.write_text(LEARNING_CURVES.replace("BAND", band))
        exit_code, out, err = call(capsys, "reproduce", path, "--json", *options)
        document = json.loads(out)
        (curve,) = document["curves"]
        assert (exit_code, err, document["against"]) == (code, "", "limit")
        assert curve["verdict"] == ("outside" if code else "inside")
        assert curve["points"] > 20
        assert 1e-6 < abs(curve["deviation"]) < 0.4
    (table,) = (file for file in document["files"] if file.endswith("csv"))
    rows = list(csv.DictReader(Path(table).read_text().splitlines()))
    limit, runs = (
        [row for row in rows if row["what"] == what] for what in ("limit", "runs")
    )
    assert float(limit[-1]["alpha"]) == pytest.approx(4 * 2e-3 * 60)
    assert float(limit[0]["value"]) == pytest.approx(2, abs=1e-6)
    assert 10 < len(runs) <= 24
    out = call(capsys, "reproduce", path, *options)[1]
    assert "runs - limit; no table is released" in flat(out)


def test_a_learning_curve_without_a_limit_is_not_compared(capsys, tmp_path):
    path = tmp_path / "learning.toml"
    text = LEARNING_CURVES.replace("BAND", "0.1").replace("seeds     = 4", "seeds = 1")
    text = text.replace("steps         = 60", "steps = 5\nwidth = 20")
    path.write_text(text)
    options = ("--results", tmp_path / "results", "--workers", "1", "--json")
    code, out, err = call(capsys, "reproduce", path, *options)
    assert (code, json.loads(out)["curves"][0]["verdict"]) == (1, "not compared")
    assert "error is not compared: the limit depends on the width" in err


def test_points_after_the_end_of_a_run_are_not_compared(capsys, tmp_path):
    """Steps of this length diverge within a few, and the limit goes on."""
    path = tmp_path / "learning.toml"
    text = LEARNING_CURVES.replace("BAND", "1e9").replace("2e-3", "1e-1")
    path.write_text(text.replace("seeds     = 4", "seeds = 1"))
    options = ("--results", tmp_path / "results", "--workers", "1", "--json")
    _, out, err = call(capsys, "reproduce", path, *options)
    (curve,) = json.loads(out)["curves"]
    assert curve["points"] < 20
    assert "1 diverged, of 1" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('algorithm = "sgd"', "a curve needs a table or an algorithm"),
        ("x_factor  = 0.032", "columns must name those of the table for x and y"),
    ],
)
def test_what_a_curve_needs(capsys, tmp_path, line, message):
    path = tmp_path / "learning.toml"
    text = LEARNING_CURVES.replace("BAND", "0.1")
    path.write_text(
        text.replace(line, 'table = "line.csv"' if "columns" in message else "")
    )
    code, _, err = call(capsys, "reproduce", path)
    assert (code, message in err) == (2, True)


@pytest.mark.slow
def test_thresholds_against_the_parameter_that_differs(capsys, tmp_path):
    """One layer of attention is weakly recovered from 1 / (M (M + 1)) on."""
    path = tmp_path / "thresholds.toml"
    problem = LINE.replace('"linear", noise = 0.2', '"softmax"').replace(
        "tokens = 2", "tokens = [2, 3, 4]"
    )
    head = ABOUT.format(more="").replace("[0.1, 2.5]", "[0.0, 5.0]")
    curve = CURVE.format(label="first", more='metric = "threshold"').replace(
        "x_factor = 2\n", ""
    )
    path.write_text(f"[problem]\n{problem}\n{head}{curve.replace('alpha', 'tokens')}")
    (tmp_path / "tables").mkdir()
    lines = [f"{m},{1 / (m * (m + 1))},0" for m in (2, 3, 4)]
    (tmp_path / "tables" / "line.csv").write_text(
        "\n".join(["tokens,error,spread", *lines])
    )
    code, found, _ = reproduce(capsys, tmp_path, path)
    assert (code, found["curves"][0]["verdict"], found["curves"][0]["points"]) == (
        0,
        "inside",
        3,
    )


def test_without_published_tables_it_says_where_they_are(capsys, tmp_path):
    path = write(tmp_path, [1, 1, 1])
    code, out, err = call(capsys, "reproduce", path, "--results", tmp_path / "results")
    assert (code, "which are in nowhere" in err, "figure.png" in out) == (0, True, True)
    rows = (tmp_path / "results" / path.stem / "figures" / "figure.csv").read_text()
    assert "published" not in rows


def test_a_table_that_is_missing_is_not_agreement(capsys, tmp_path):
    path = write(tmp_path, [1, 1, 1])
    (tmp_path / "tables" / "deeper" / "line.csv").unlink()
    code, found, err = reproduce(capsys, tmp_path, path)
    assert (code, found["curves"][0]["verdict"]) == (1, "not compared")
    assert "the table line.csv is missing" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha,value\n1,2\n", "the table lacks the column 'error'"),
        ("alpha,error,spread\n1,x,0\n", "not a table of numbers"),
    ],
)
def test_a_bad_table_is_one_line(capsys, tmp_path, text, said):
    path = write(tmp_path, [1, 1, 1])
    (tmp_path / "tables" / "deeper" / "line.csv").write_text(text)
    code, _, err = reproduce(capsys, tmp_path, path)
    assert (code, said in err, err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "--list"),
        ("quickstart", "not a figure of a paper"),
        ("2502", "not a figure of a paper"),
    ],
)
def test_what_is_no_figure_is_refused(capsys, name, said):
    code, _, err = call(capsys, "reproduce", *([name] if name else []))
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('problems = ["lin"]', "did you mean 'line'"),
        ('algorithm = "gamp"', "figure.curves[0].algorithm: the suite has no 'gamp'"),
        ('metric = "mes"', "figure.curves[0].metric"),
        ("component = 2", "component: must be at most 1"),
        (
            'corrections = [{ section = "a", above = [1.0, 2.0] }]',
            "corrections: must have one number, or 1",
        ),
        ("bnd = 1", "did you mean 'band'"),
    ],
)
def test_mistakes_in_a_figure_are_named(tmp_path, more, said):
    with pytest.raises(SuiteError, match=re.escape(said)):
        load_suite(write(tmp_path, [1, 1, 1], more=more))


def test_the_cost_is_estimated_without_running(capsys, tmp_path):
    path = write(tmp_path, [1, 1, 1], runs=True)
    code, out, _ = call(
        capsys, "reproduce", path, "--dry-run", "--results", tmp_path / "results"
    )
    assert (code, "18 cells" in out) == (0, True)
    assert not (tmp_path / "results").exists()
    code, out, _ = call(
        capsys, "reproduce", "2506.01582-fig2-left", "--dry-run", "--json"
    )
    assert (code, json.loads(out)["cells"]) == (0, 0)
