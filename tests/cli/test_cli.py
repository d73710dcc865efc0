"""The command line as a whole: what each command is for, start-up, and readers that stop reading."""

import subprocess
import sys

import pytest

from tests.helpers import (
    ATTENTION,
    CHANNEL,
    call,
    environment,
    flat,
    started,
    write_suite,
)

BAD = "ZeroDivisionError: division by zero"


SHOWN = [
    ("theory {attention}", 0, ["softmax", "MSE", "overlap", "error", "obtained by: closed form", "perfect recovery", "0.1875",
                               "weak recovery", "none"]),
    ("show {results} --set grid.seeds=3", 1, ["4 not run yet"]),
    ("show {results} --only algorithm=gamp", 0, ["gamp", "cells: 4 ok"]),
    ("info wishart", 0, ["prior wishart", "parameters", "rho", "required", "arXiv:"]),
    ("info adam", 0, ["prediction by theory", "every step depends on all earlier ones"]),
    ("info quickstart", 0, ["[[problems]]"]),
    ("plugins", 0, ["loaded attention"]),
    ("plugins --plugins {tmp}/drop", 1, ["loaded good", "channel twice", BAD]),
    ("list channels --plugins {tmp}/drop/good.py --trace-plugins", 0, ["loading good of good", "channel twice"]),
    ("doctor", 0, ["versions", "numpy", "blas", "gpu", "cupy", "plugins"]),
    ("doctor --plugins {tmp}/drop/bad.py", 1, [BAD]),
    ("--version", 0, ["smimbench, version "]),
    ("run {ran}/small.toml --results {ran}/results --quiet --no-figure", 0, ["cells: 8 ok"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code", "said"), SHOWN, ids=[line for line, _, _ in SHOWN]
)
def test_a_command_says_what_it_is_for(ran, tmp_path, capsys, line, code, said):
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "good.py").write_text(CHANNEL)
    (tmp_path / "drop" / "bad.py").write_text("1 / 0")
    attention = write_suite(tmp_path, ATTENTION, "attention")
    where = {
        "attention": attention,
        "ran": ran[0],
        "results": ran[0] / "results" / "small",
        "tmp": tmp_path,
    }
    found, out, err = call(capsys, *line.format(**where).split())
    assert found == code, err
    for words in said:
        assert words in flat(out + err)
    assert "--only" not in line or "adam" not in out
    assert "--quiet" not in line or not err


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", "numpy scipy pydantic rich matplotlib numba hashlib"),
        ("theory --json", "scipy.stats matplotlib numba"),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(tmp_path, words, heavy):
    """Start-up is kept short by importing late; this names the module that breaks it, where a stop-watch could not."""
    suite = [str(write_suite(tmp_path, ATTENTION))] if "theory" in words else []
    script = (
        "import sys\nfrom smimbench.cli import main\n"
        f"try:\n    main({words.split() + suite})\nexcept SystemExit as e:\n    assert not e.code\n"
        f"print(sorted({set(heavy.split())} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert done.stderr.strip() == "[]"
    assert done.stdout


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_no_error():
    first = started("info", "quickstart")
    first.stdout.close()
    assert "Traceback" not in first.stderr.read()
    first.stderr.close()
    first.wait()
