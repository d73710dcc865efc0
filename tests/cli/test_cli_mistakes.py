"""What users do wrong, or what goes wrong around them: one line says what it is, and nothing that was made is lost."""

import json
import shutil
import subprocess
import sys

import pytest

from smimbench.registry.registry import get_registry, set_registry
from tests.helpers import (
    CHANNEL,
    SUITE,
    answer,
    call,
    environment,
    output,
    refusal,
    silent,
    write_suite,
)
from tests.records import records_in

SMALL = ("--workers", "1", "--no-figure")


def test_without_a_command_the_help_is_printed(capsys):
    assert call(capsys) == call(capsys, "--help")


def test_no_text_of_the_first_page_is_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert "..." not in call(capsys, "--help")[1].partition("Commands:")[2]


@pytest.mark.slow
def test_each_settings_has_figures_and_a_run_file_of_its_own(twice, capsys):
    own = twice / "results" / "small"
    (other,) = (own / "settings").iterdir()
    assert "grid.seed=7" in other.name
    shared = [json.loads((folder / "run.json").read_text()) for folder in (own, other)]
    assert [one["overrides"] for one in shared] == [[], ["grid.seed=7"]]
    run = (
        "run",
        twice / "small.toml",
        "--results",
        twice / "results",
        "--workers",
        "1",
        "--set",
        "grid.seed=7",
    )
    output(capsys, *run)
    pictures = [
        (folder / "figures" / "mse.png").read_bytes() for folder in (own, other)
    ]
    assert pictures[0] != pictures[1]
    assert len(records_in(own)) == 16  # the records of both


@pytest.mark.parametrize(
    ("options", "words"),
    {
        ("--set", "algorithms.adam.stps=3"): "--set algorithms.adam.stps=3: algorithms[1].stps: unknown key",
        ("--add", "adamm"): "--add adamm: algorithms[2].name: unknown algorithm 'adamm'",
        ("--set", "grid.seed=1", "--set", "metrics=['mse']"): "--set metrics=['mse']: metrics: unknown key, did you mean 'run.",
        ("--set", "grid.seed=1", "--only", "alpha=7"): "--only: alpha=7: the suite has no such alpha",
    }.items(),
)  # fmt: skip
def test_a_mistake_in_an_option_names_the_option(tmp_path, capsys, options, words):
    suite = write_suite(tmp_path)
    assert words in refusal(capsys, "run", suite, *options)
    write_suite(tmp_path, SUITE.replace("steps", "stps"))
    err = refusal(capsys, "run", suite, "--set", "grid.seed=1")
    assert err.startswith(f"smimbench: {suite}: algorithms[1].stps")


def test_the_command_to_run_first_has_the_same_options(tmp_path, capsys):
    suite, results, plugin = write_suite(tmp_path), tmp_path / "r", tmp_path / "own.py"
    plugin.write_text(CHANNEL)
    options = ["--results", results, "--set", "grid.seed=1", "--plugins", plugin]
    err = refusal(capsys, "show", suite, *options)
    command = " ".join(map(str, ["smimbench run", suite, *options]))
    assert f"run '{command}' first" in err


@pytest.mark.slow
def test_the_order_of_settings_makes_no_others(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE)
    for options in (["grid.seed=7", "grid.seeds=1"], ["grid.seeds=1", "grid.seed=7"]):
        given = [word for one in options for word in ("--set", one)]
        output(capsys, "run", suite, "--results", tmp_path / "r", *SMALL, *given)
    assert len(list((tmp_path / "r" / "small" / "settings").iterdir())) == 1
    err = refusal(
        capsys, "show", suite, "--results", tmp_path / "r", "--set", "grid.seed=8"
    )
    assert "there are some with --set grid.seed=7 --set grid.seeds=1" in err


@pytest.mark.slow
def test_another_seed_is_no_worse(twice, capsys):
    """Two runs per point: their standard errors are a guess, and an interval says so."""
    own = twice / "results" / "small"
    (other,) = (own / "settings").iterdir()
    for sides in ((own, other), (other, own)):
        found = answer(capsys, "compare", *sides, "--fail-over", "0")
        assert found["failing"] == 0
        assert not {entry["verdict"] for entry in found["rows"]} & {"worse", "differs"}


@pytest.mark.slow
def test_finished_results_are_shown_without_their_plugin(tmp_path, capsys):
    (tmp_path / "twice.py").write_text(CHANNEL)
    text = SUITE.replace('"linear", noise = 0.2', '"twice"').partition(
        '\n[[algorithms]]\nname  = "adam"'
    )[0]
    suite = write_suite(tmp_path, text)
    ended, before, err = call(
        capsys,
        "run",
        suite,
        "--plugins",
        tmp_path / "twice.py",
        "--results",
        tmp_path / "r",
        *SMALL,
        "--json",
    )
    assert ended in (0, 1), err
    set_registry(None)
    for what in (
        ("small.toml", "--results", tmp_path / "r"),
        (tmp_path / "r" / "small",),
    ):
        name = tmp_path / what[0]
        code, out, err = call(capsys, "show", name, *what[1:], "--json")
        assert code == ended
        assert json.loads(out)["rows"] == json.loads(before)["rows"]
        assert "unknown channel 'twice'" in err
        assert "showing the table of the run on" in err
    assert "line: gamp" in call(capsys, "show", tmp_path / "r" / "small")[1]
    shown = call(capsys, "show", suite, "--results", tmp_path / "r")[1]
    assert f", in {tmp_path / 'r' / 'small'}\n" in shown
    assert (
        "twice"
        not in call(capsys, "show", tmp_path / "r" / "small", "--csv")[2].partition(
            ";"
        )[2]
    )
    suite.write_text(
        text.replace("seeds     = 2", "seeds     = 3")
    )  # another suite now: its results are not those
    assert call(capsys, "show", suite, "--results", tmp_path / "r")[0] == 2


CLASH = "channel 'linear' exists in smimbench and in mine: 'linear' means the one of smimbench, 'mine:linear' this one"


@pytest.mark.parametrize("command", [
    ("list", "channels"), ("info", "linear"), ("check", "linear", "--only", "declaration"), ("plugins",),
    ("run", "small.toml", "--dry-run"), ("show", "small.toml"), ("theory", "small.toml", "--no-thresholds"), ("doctor",),
    ("theory", "--model", "sequence-multi-index", "--channel", "linear", "--prior", "gaussian", "--alpha", "1", "--noise", "-1"),
])  # fmt: skip
def test_every_command_says_which_of_two_items_a_name_means(
    tmp_path, capsys, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    write_suite(tmp_path)
    (tmp_path / "mine.py").write_text(CHANNEL.replace('"twice"', '"linear"'))
    assert (
        f"smimbench: plugin mine (mine.py): {CLASH}\n"
        in call(capsys, *command, "--plugins", "mine.py")[2]
    )
    assert (
        "exists in" not in call(capsys, *command, "--plugins", "mine.py", "--quiet")[2]
    )


def test_python_warns_of_plugins_as_the_command_line_does(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CHANNEL.replace('"twice"', '"linear"'))
    monkeypatch.setenv("SMIMBENCH_PLUGINS", str(tmp_path / "mine.py"))
    set_registry(None)
    with pytest.warns(
        UserWarning, match="channel 'linear' exists in smimbench and in mine"
    ):
        get_registry()


def test_hidden_files_beside_results_are_ignored(twice, tmp_path, capsys):
    """A Mac leaves ``._NAME`` beside every file that it copies to another file system."""
    folder = tmp_path / "copied"
    shutil.copytree(twice, folder)
    results = folder / "results" / "small"
    (folder / "more.py").write_text(CHANNEL)
    questions = [
        ("show", results, "--json"),
        ("verify", results, "--cells", "0", "--no-theory"),
        ("compare", results, twice / "results" / "small"),
        ("compare", folder / "results", twice / "results"),
        ("plugins", "--plugins", folder),
    ]
    before = [call(capsys, *question) for question in questions]
    for path in [*folder.rglob("*")]:
        if path.is_file():
            path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert [call(capsys, *question) for question in questions] == before


@pytest.mark.slow
def test_a_report_writes_nothing_but_its_file(twice, tmp_path, capsys):
    shutil.copytree(twice / "results", tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "small" / "figures")
    before = sorted(tmp_path.rglob("*"))
    output(
        capsys,
        "report",
        tmp_path / "results" / "small",
        "--output",
        tmp_path / "page.html",
    )
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "page.html"])


def test_a_posterior_that_is_a_tuple_is_one_line(tmp_path, capsys):
    (tmp_path / "tuple.py").write_text(
        CHANNEL.replace(
            "smimbench.Posterior(y / self.gain, 0 * V)", "(y / self.gain, 0 * V)"
        )
    )
    suite = write_suite(tmp_path, SUITE.replace('"linear", noise = 0.2', '"twice"'))
    err = refusal(
        capsys, "theory", suite, "--quiet", "--plugins", tmp_path / "tuple.py"
    )
    assert "posterior must return a smimbench.Posterior" in err


def test_a_failed_cell_says_where_and_how_to_run_it_again(tmp_path, capsys):
    plugin = tmp_path / "breaks.py"
    plugin.write_text(
        "import smimbench\n\n\ndef breaks(data):\n    return 1 / 0\n\n\n@smimbench.hookimpl\n"
        "def smimbench_register_algorithms(register):\n    register(breaks)\n"
    )
    suite = write_suite(
        tmp_path,
        SUITE.partition("[[algorithms]]")[0] + '\n[[algorithms]]\nname = "breaks"\n',
    )
    code, out, err = call(
        capsys, "run", suite, "--plugins", plugin, "--results", tmp_path / "r", *SMALL
    )
    assert code == 1
    for text in (out, err):
        assert f"ZeroDivisionError: division by zero ({plugin}, line 5)" in text
    assert (
        f"smimbench run {suite} --results {tmp_path / 'r'} --plugins {plugin} --retry failed"
        in out
    )


@pytest.mark.slow
def test_a_dry_run_prices_integrals_and_learns(tmp_path, capsys):
    """A channel without a closed form takes longer than its matrix products; what was run before says how long."""
    suite = write_suite(tmp_path, SUITE)
    arguments = ["run", suite, "--results", tmp_path / "r", "--workers", "1"]
    first = answer(capsys, *arguments, "--dry-run")
    assert (first["learned"], first["tried"]) == (0, 8)
    assert not (tmp_path / "r").exists()
    (tmp_path / "slow.py").write_text(
        CHANNEL.replace(
            "return smimbench.Posterior",
            "import time; time.sleep(0.05)\n        return smimbench.Posterior",
        )
    )
    slow = write_suite(
        tmp_path, SUITE.replace('"linear", noise = 0.2', '"twice"'), "slow"
    )
    more = [
        "--dry-run",
        "--json",
        "--only",
        "algorithm=gamp",
        "--plugins",
        tmp_path / "slow.py",
        "--workers",
        "1",
    ]
    priced = json.loads(
        call(capsys, "run", slow, "--results", tmp_path / "r", *more)[1]
    )
    assert priced["seconds"] > 4 * 2 * 0.05  # four cells of two and more iterations
    set_registry(None)
    output(capsys, *arguments, "--no-figure", "--set", "grid.seeds=1")
    second = answer(capsys, *arguments, "--dry-run")
    assert (second["missing"], second["learned"], second["tried"]) == (4, 4, 0)


def test_a_shell_can_complete_the_name_of_a_suite():
    variables = {
        "COMP_WORDS": "smimbench run quick",
        "COMP_CWORD": "2",
        "_SMIMBENCH_COMPLETE": "bash_complete",
    }
    script = "from smimbench.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**environment(), **variables},
    )
    assert "plain,quickstart" in done.stdout.splitlines()


def test_results_of_an_earlier_text_of_a_suite_are_named(twice, tmp_path, capsys):
    changed = write_suite(tmp_path, SUITE.replace("noise = 0.2", "noise = 0.3"))
    err = refusal(capsys, "show", changed, "--results", twice / "results")
    folder = twice / "results" / "small"
    assert (
        f"results of an earlier version of this suite exist: 'smimbench show {folder}'"
        in err
    )
    output(capsys, "show", folder)


@pytest.mark.slow
def test_compare_refuses_what_it_cannot_judge(twice, tmp_path, capsys):
    results = twice / "results" / "small"
    other = write_suite(tmp_path, SUITE.replace("noise = 0.2", "noise = 0.3"))
    output(
        capsys,
        "run",
        other,
        "--results",
        tmp_path / "r",
        *SMALL,
        "--only",
        "algorithm=adam",
    )
    err = refusal(capsys, "compare", results, tmp_path / "r")
    assert "have no results for the same problem and algorithm to compare" in err


def test_a_check_says_of_which_package_each_item_is(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(CHANNEL.replace('"twice"', '"linear"'))
    command = (
        "check",
        "linear",
        "--only",
        "declaration",
        "--plugins",
        tmp_path / "mine.py",
    )
    heads = [
        line
        for line in call(capsys, *command)[1].splitlines()
        if line.startswith("channel linear")
    ]
    assert [" of mine" in head for head in heads] == [False, False, True]
    documents = json.loads(call(capsys, *command, "--json")[1])
    assert [document["distribution"] for document in documents] == [
        "smimbench",
        "smimbench",
        "mine",
    ]


def test_a_suite_that_became_no_text_is_one_line(twice, tmp_path, capsys):
    shutil.copytree(twice / "results", tmp_path / "results")
    suite = tmp_path / "small.toml"
    suite.write_bytes(b"PK\x03\x04\xed\xff")
    err = refusal(
        capsys,
        "show",
        suite,
        "--results",
        tmp_path / "results",
        "--set",
        "grid.seeds=1",
    )
    assert "cannot be read" in err
    shutil.rmtree(
        tmp_path / "results" / "small" / "settings"
    )  # one settings left: its kept table is looked for
    err = refusal(capsys, "show", suite, "--results", tmp_path / "results")
    assert "cannot be read" in err
    assert len(err.splitlines()) == 1


def test_a_dropped_in_file_may_import_its_neighbor(tmp_path, capsys):
    (tmp_path / "neighbor_of_mine.py").write_text("GAIN = 3.0\n")
    (tmp_path / "mine.py").write_text("from neighbor_of_mine import GAIN\n" + CHANNEL)
    out = silent(capsys, "list", "channels", "--plugins", tmp_path / "mine.py")
    assert "twice" in out
