"""``theory`` of a problem that options describe, in place of a suite."""

import csv
import io
import json

import pytest

from tests.helpers import call

pytestmark = pytest.mark.usefixtures("svg_alone")

SOFTMAX = ("--model", "attention-indexed", "--channel", "softmax", "--prior", "wishart")
LINEAR = (
    "--model",
    "sequence-multi-index",
    "--channel",
    "linear",
    "--prior",
    "gaussian",
)


@pytest.fixture
def ask(tmp_path, capsys):
    return lambda *words: call(capsys, "theory", *words, "--results", tmp_path / "r")


def test_it_is_that_of_a_suite_with_these_items(ask, tmp_path):
    suite = tmp_path / "own.toml"
    suite.write_text("""
[problem]
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "softmax" }
prior   = { name = "wishart", rho = 0.3 }
[grid]
alpha     = [0.1, 0.2, 0.3]
dimension = [50]
""")
    asked = json.loads(
        ask(*SOFTMAX, "--rho", "0.3", "--alpha", "0.1:0.3:3", "--json")[1]
    )
    named = json.loads(ask(suite, "--json")[1])
    for a, b in zip(asked, named, strict=True):
        assert a["points"] == b["points"]
        assert a["thresholds"] == b["thresholds"]


def test_parameters_reach_their_items_and_figures_are_drawn(ask, tmp_path):
    code, out, _ = ask(
        *LINEAR,
        "--noise=0.5",
        "--tokens",
        "3",
        "--alpha",
        "1",
        "--alpha",
        "2:3:2",
        "--figure",
    )
    assert code == 0
    assert "sequence-multi-index(tokens=3) linear(noise=0.5) gaussian" in out
    assert list(
        (tmp_path / "r" / "sequence-multi-index-linear-gaussian").rglob(
            "theory-mse.png"
        )
    )
    a, noise, m = 1.0, 0.5, 3
    v = (1 - a * m - noise + ((a * m + noise - 1) ** 2 + 4 * noise) ** 0.5) / 2
    assert f"{v:.6f}" in out


@pytest.mark.parametrize(("words", "message"), [
    ((*SOFTMAX, "--rhoo", "0.3", "--alpha", "1"), "rhoo is neither an option nor a parameter of this problem"),
    ((*SOFTMAX[:4], "--alpha", "1"), "prior is missing; without a suite, give model, channel, prior and alpha"),
    (SOFTMAX, "alpha is missing; give sample ratios, such as 0.1 or 0.1:0.3:20"),
    ((*SOFTMAX, "--alpha", "1:2"), "or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20"),
    ((*SOFTMAX, "--alpha", "1", "--rho"), "--rho needs a value"),
    ((*SOFTMAX, "--alpha", "-1"), "must be > 0 and finite"),
    (("quickstart", *SOFTMAX, "--alpha", "1"), "unexpected 'quickstart'"),
    (("quickstart", "--figre"), "No such option '--figre'. Did you mean '--figure'?"),
    ((*SOFTMAX, "--rho", "0.3", "--alpha", "1", "--quite"), "--quite needs a value. Did you mean '--quiet'?"),
    ((*SOFTMAX, "--quite", "--rho", "0.3", "--alpha", "1"), "--quite needs a value. Did you mean '--quiet'?"),
    ((*SOFTMAX, "--roh", "0.3", "--alpha", "1"), "roh is neither an option nor a parameter of this problem; did you mean 'rho'?"),
    ((*SOFTMAX[:2], "--chanel", "softmax", *SOFTMAX[4:], "--alpha", "1"), "channel is missing ('chanel' looks like a typo)"),
    ((*SOFTMAX, "--rho", "0.3", "--aplha", "1"), "alpha is missing ('aplha' looks like a typo)"),
    (("quickstart", "spectral"), "give one suite"),
    ((), "give one suite"),
    ((*SOFTMAX, "--alpha", "1"), "smimbench: --rho: is missing"),
    ((*SOFTMAX, "--alpha", "1", "--rho=-1"), "smimbench: --rho: must be a finite number >= 0, got -1.0"),
    ((*SOFTMAX, "--alpha", "1", "--rho=1", "--set", "grid.sed=2"), "smimbench: grid.sed: unknown key, did you mean 'seed'"),
    ((*SOFTMAX, "--alpha", "1", "--rho=1", "--csv", "--json"), "choose one of --json and --csv"),
])  # fmt: skip
def test_mistakes_are_one_line(ask, words, message):
    code, out, err = ask(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err


def test_csv_has_the_numbers_of_json(ask):
    problem = (*LINEAR, "--noise=0.5", "--alpha", "0.5:2:4", "--no-thresholds")
    code, out, err = ask(
        *problem, "--csv", "--set", 'run.metrics=["generalization_error_bayes"]'
    )
    (document,) = json.loads(ask(*problem, "--json")[1])
    rows, points = list(csv.DictReader(io.StringIO(out))), document["points"]
    assert (code, err) == (0, "")
    for name in ("alpha", "mse", "mse_error"):
        assert [float(row[name]) for row in rows] == [point[name] for point in points]
    found = [float(row["generalization_error_bayes"]) for row in rows]
    assert found == [point["generalization_error"]["bayes"] for point in points]


def test_sample_ratios_are_those_that_are_typed(ask):
    def ratios(text):
        (document,) = json.loads(
            ask(*LINEAR, "--noise=0.5", "--no-thresholds", "--alpha", text, "--json")[1]
        )
        return [point["alpha"] for point in document["points"]]

    assert (
        ratios("0.1:1.5:15")
        == ratios("1.5:0.1:15")
        == [round(0.1 * k, 1) for k in range(1, 16)]
    )
    assert ratios("0.5,0.1,2") == [0.1, 0.5, 2.0]


def test_a_column_is_complete_or_not_there(ask):
    """Stored points may have errors of prediction that the others do not have."""
    ask(*LINEAR, "--noise=0.5", "--alpha", "1", "--predictions")
    assert "plug-in" in ask(*LINEAR, "--noise=0.5", "--alpha", "1")[1]
    assert (
        "plug-in" not in ask(*LINEAR, "--noise=0.5", "--alpha", "1", "--alpha", "2")[1]
    )
