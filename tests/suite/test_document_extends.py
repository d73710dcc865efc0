"""A suite that extends another is the other with changes, also where its results are read and the other is gone."""

import json

import pytest

from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite, parse_suite
from tests.helpers import call, loaded, write_suite

MINE = """extends = "small.toml"

[grid]
dimension = [20, 24]

[run]
metrics = ["mse"]

[[algorithms]]
name = "sgd"
steps = 3
"""


def test_tables_override_and_algorithms_are_appended(tmp_path):
    base, mine = (loaded(tmp_path), load_suite(write_suite(tmp_path, MINE, "mine")))
    assert (mine.name, mine.title) == ("mine", base.title)
    assert [algorithm.label for algorithm in mine.algorithms] == ["gamp", "adam", "sgd"]
    (before,), (after,) = base.plans, mine.plans
    assert (after.alphas, after.seeds[0], after.dimensions) == (
        before.alphas,
        before.seeds[0],
        (20, 24),
    )
    assert mine.run.metrics == ("mse",)


def test_other_problems_replace_those_of_the_base(tmp_path):
    text = """extends = "published"
[problem]
model = { name = "sequence-multi-index", tokens = 1 }
channel = { name = "linear", noise = 0.1 }
prior = "gaussian"
grid = { alpha = 0.7, dimension = 20, seeds = 1 }
"""
    suite = load_suite(write_suite(tmp_path, text, "mine"))
    assert len(suite.plans) == 1
    assert suite.plans[0].alphas == (0.7,)
    assert suite.run.reference == ()


def test_a_chain_is_followed_and_a_circle_refused(tmp_path):
    write_suite(tmp_path)
    write_suite(tmp_path, MINE, "mine")
    last = write_suite(tmp_path, 'extends = "mine.toml"\n[grid]\nseed = 5\n', "last")
    assert load_suite(last).seed == 5
    assert len(load_suite(last).algorithms) == 3
    circle = write_suite(tmp_path, 'extends = "circle.toml"\n', "circle")
    with pytest.raises(SuiteError, match=r"circle\.toml: extends: .*circle"):
        load_suite(circle)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "optimizer"', r"extends: .*did you mean 'optimizers'"),
        ('extends = "missing.toml"', r"extends: .*no such file"),
        ('extends = "broken.toml"', r"broken\.toml: this is not valid TOML"),
        ("extends = 3", r"extends: must be the name or path of a suite"),
        (
            '[suite]\nextends = "optimizers"',
            r"suite\.extends: must be written above the first table",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, text, message):
    write_suite(tmp_path, "grid = [", "broken")
    with pytest.raises(SuiteError, match=message) as failed:
        load_suite(write_suite(tmp_path, text, "mine"))
    assert "\n" not in str(failed.value)


def test_it_can_neither_be_set_nor_be_read_from_results(tmp_path):
    with pytest.raises(SuiteError, match="extends: cannot be set"):
        load_suite(write_suite(tmp_path), ["extends=optimizers"])
    with pytest.raises(SuiteError, match="extends: is not allowed"):
        parse_suite(tmp_path / "x.toml", 'extends = "optimizers"', from_results=True)


@pytest.mark.slow
def test_results_stand_without_the_base(tmp_path, capsys):
    base, results = write_suite(tmp_path), tmp_path / "results"
    mine = write_suite(tmp_path, MINE, "mine")
    code, _, err = call(
        capsys,
        "run",
        mine,
        "--results",
        results,
        "--only",
        "algorithm=sgd",
        "--no-figure",
        "--workers",
        "1",
    )
    assert code in (0, 1), err
    base.unlink()
    mine.unlink()
    (folder,) = (results / "mine" / "settings").iterdir()
    code, out, err = call(capsys, "show", folder, "--json")
    assert {row["algorithm"] for row in json.loads(out)["rows"]} == {"sgd"}, err
