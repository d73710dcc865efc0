"""Code of a plugin that fails in the main process costs its own rows alone, in every command."""

import json

import pytest

from tests import raising_items
from tests.helpers import LINE, ROOT, call, ends_with, output, suite_text, write_suite

PLUGIN = ROOT / "tests" / "raising_items.py"
pytestmark = pytest.mark.usefixtures("svg_alone")

OURS = [
    'name = "gamp"',
    'name = "adam"\nsteps = 5\n[algorithms.tune]\ntrials = 2\nlearning_rate = [0.1, 1.0]',
]
TUNE = "\n[algorithms.tune]\ntrials = 2\nscale = [0.5, 2.0]"


def suite_of(algorithms, metrics=(), inputs=()):
    problem, rest = suite_text(LINE, [0.5], 20, 1, *algorithms).split("[grid]")
    problem = problem.replace("[problem]", "[[problems]]")
    problems = [problem]
    for item in inputs:
        problems.append(
            problem.replace('"line"', f'"{item.name}"') + f'inputs = "{item.name}"\n'
        )
    names = json.dumps(["mse", *(metric.name for metric in metrics)])
    return f"[run]\nmetrics = {names}\n{''.join(problems)}\n[grid]{rest}"


def arguments(folder, command, *more):
    """A command on the suite with everything that fails."""
    theirs = [f'name = "{item.name}"{TUNE}' for item in raising_items.ALGORITHMS]
    suite = write_suite(
        folder,
        suite_of([*OURS, *theirs], raising_items.METRICS, raising_items.INPUTS),
        "raising",
    )
    return command, suite, "--plugins", PLUGIN, "--results", folder / "results", *more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the suite with everything that fails has been run."""
    folder = tmp_path_factory.mktemp("raising")
    assert ends_with(*arguments(folder, "run", "--workers", "1", "--no-figure")) == 1
    return folder


def untimed(text):
    names = (
        "problem",
        "algorithm",
        "mean",
        "bayes",
        "own_theory",
        "no_theory",
        "status_counts",
    )
    rows = [
        row
        for row in json.loads(text)["rows"]
        if row["algorithm"] in ("gamp", "adam") and row["metric"] == "mse"
    ]
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.slow
def test_rows_of_what_ships_are_those_without_it(capsys, folder):
    clean = write_suite(folder, suite_of(OURS), "clean")
    options = ("--results", folder / "clean", "--workers", "1", "--no-figure", "--json")
    expected = output(capsys, "run", clean, *options)
    _, shown, _ = call(capsys, *arguments(folder, "show", "--json"))
    assert untimed(shown) == untimed(expected)


def test_its_own_rows_say_what_failed(capsys, folder):
    _, shown, _ = call(capsys, *arguments(folder, "show", "--json"))
    rows = {(row["algorithm"], row["metric"]): row for row in json.loads(shown)["rows"]}
    for method in ("plan", "refuses"):
        for name, reason in (
            ("raises", "KeyError: '[/no such key]'"),
            ("leaves", "SystemExit: 3"),
        ):
            (line,) = rows[f"{method}-{name}", "mse"]["reasons"]
            assert line.startswith(f"failed: {reason} (")
    for name in ("raises", "leaves", "answers-nonsense"):
        assert rows[f"theory-{name}", "mse"]["status_counts"] == {"ok": 1}
    assert (
        "the theory of metric 'theory-raises' failed: KeyError"
        in rows["gamp", "theory-raises"]["no_theory"]
    )
    assert (
        "must have 1 number, as per_component is False; got 2"
        in rows["gamp", "theory-of-two"]["no_theory"]
    )


@pytest.mark.parametrize("command", [
    ("run", "--dry-run"), ("run", "--workers", "1", "--no-figure"), ("show",), ("show", "--csv"), ("theory",),
    *(pytest.param(command, marks=pytest.mark.slow) for command in (
        ("show", "--figures"), ("report", "--output", "page.html")
    )),
])  # fmt: skip
def test_no_command_ends_for_it(capsys, folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    code, _, err = call(capsys, *arguments(folder, *command))
    assert code in (0, 1), err


def test_compare_does_not_end_for_it(capsys, folder):
    results = folder / "results" / "raising"
    out = output(capsys, "compare", results, results, "--plugins", PLUGIN)
    assert "gamp" in out


@pytest.mark.slow
def test_tune_chooses_for_all_others(capsys, tmp_path):
    code, out, err = call(
        capsys, *arguments(tmp_path, "tune", "--workers", "1", "--json")
    )
    assert code == 1, err
    chosen = {search["label"]: search["algorithm"] for search in json.loads(out)}
    assert chosen["adam"]
    assert chosen["plan-raises"] is None
