"""Texts, plugins, folders and files of others: whatever they hold, one line is said, and nothing of it is obeyed."""

import csv
import io
import json
import subprocess

import pytest

from smimbench.run.store import Store
from tests.helpers import (
    CHANNEL,
    SUITE,
    call,
    call_outside,
    command,
    ends_with,
    environment,
    flat,
    install_package,
    output,
    write_suite,
)

EVIL = "[/] $x_ [red]=1+1| <b>&amp;` \\u001b]0;x\\u0007 \\u202e"
"""A title and labels of it: rich markup, broken mathematics, HTML, Markdown, terminal escapes, text from right to left."""


@pytest.fixture
def evil(tmp_path):
    text = (
        SUITE.replace("A small suite", EVIL)
        .replace('"line"', f'"={EVIL}"')
        .replace("seeds     = 2", "seeds = 1")
    )
    text = text.replace('name = "gamp"', f'name = "gamp"\nlabel = "@{EVIL}"').replace(
        "[0.5, 1.0]", "[0.5]"
    )
    return write_suite(tmp_path, text)


@pytest.mark.slow
def test_no_text_steers_a_terminal_a_spreadsheet_a_page_or_a_figure(
    evil, tmp_path, capsys
):
    results = ("--results", tmp_path / "results")
    code, out, err = call(capsys, "run", evil, *results, "--workers", "1")
    assert code == 0, err
    assert "figure" in out, err
    for shown in (
        out,
        err,
        call(capsys, "show", evil, *results, "--full")[1],
        call(capsys, "theory", evil, *results)[1],
    ):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "[/] $x_ [red]" in flat(out)
    _, out, _ = call(capsys, "show", evil, *results, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0]["problem"].startswith("'=[/]")
    assert {row["algorithm"][:2] for row in rows} == {"'@", "ad"}
    _, out, _ = call(capsys, "show", evil, *results, "--markdown")
    assert "<b>" not in out
    assert len({line.replace("\\|", "").count("|") for line in out.splitlines()}) == 1
    for path in (tmp_path / "results" / "small" / "figures").glob("*.svg"):
        assert "\x1b" not in path.read_text()
    output(capsys, "report", evil, *results, "--output", tmp_path / "page.html")
    assert "<b>" not in (tmp_path / "page.html").read_text()


MOODY = CHANNEL.replace(
    "    def forward",
    """    def __post_init__(self):
        require("constructor")

    def forward""",
)
MOODY = MOODY.replace(
    "        return smimbench.Posterior",
    '        require("posterior")\n        return smimbench.Posterior',
)


@pytest.fixture(scope="module")
def moody(tmp_path_factory):
    """A suite that was run with a channel of somebody else: folder, words. The channel raises where a file of that name is."""
    folder = tmp_path_factory.mktemp("moody")
    require = f"""
def require(name):
    import pathlib
    if pathlib.Path({str(folder)!r}, name).exists():
        raise RuntimeError("not today")
"""
    (folder / "twice.py").write_text(
        MOODY.replace("\n\n@dataclass", require + "\n\n@dataclass", 1)
    )
    line = SUITE.partition("[problem]")[2].partition("[grid]")[0]
    mine = line.replace('"line"', '"mine"').replace(
        'name = "linear", noise = 0.2', 'name = "twice"'
    )
    text = SUITE.replace(
        "[problem]" + line, f"[[problems]]{line}[[problems]]{mine}"
    ).partition("[[algorithms]]")[0]
    suite = write_suite(
        folder,
        text.replace("seeds     = 2", "seeds = 1")
        + '[[algorithms]]\nname = "adam"\nsteps = 3\n',
    )
    words = (suite, "--results", folder / "results", "--plugins", folder / "twice.py")
    assert ends_with("run", *words, "--no-figure", "--workers", "1") == 0
    return folder, words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("posterior", "RuntimeError"), ("constructor", "left out")]
)
def test_a_channel_that_raises_hides_no_row_of_others(moody, capsys, name, said):
    """It worked when it was run, and does no more when results are looked at, though its code is the same."""
    folder, words = moody
    (folder / name).touch()
    for path in (folder / "results" / "theory").glob("point-*.json"):
        path.unlink()
    try:
        again = call(capsys, "run", *words, "--no-figure", "--workers", "1")
        code, out, err = call(
            capsys, "show", folder / "results" / "small", "--json", *words[3:]
        )
    finally:
        (folder / name).unlink()
    assert again[0] in (0, 1), again[2]
    assert code in (0, 1), err
    rows = json.loads(out)["rows"]
    assert all(
        row["theory"] is not None
        for row in rows
        if row["problem"] == "line" and row["metric"] == "mse"
    )
    assert said in again[1] + again[2] + err + out
    if name == "posterior":
        mine = [row for row in rows if row["problem"] == "mine"]
        assert mine
        assert all(row["theory"] is None and row["mean"] is not None for row in mine)


@pytest.mark.slow
def test_results_of_others_run_no_code_of_the_working_folder(tmp_path):
    text = SUITE.replace(
        'title = "A small suite"', 'title = "A small suite"\nplugins = true'
    )
    suite = write_suite(tmp_path, text.replace("seeds     = 2", "seeds = 1"))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(CHANNEL)
    done = call_outside("run", suite, "--no-figure", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "plugins").mkdir(parents=True)
    (elsewhere / "plugins" / "trap.py").write_text("open('sprung', 'w').write('!')\n")
    folder = tmp_path / "results" / "small"
    for line in (
        ("show", folder),
        ("compare", folder, folder),
        ("report", folder, "--output", "page.html"),
    ):
        done = call_outside(*line, cwd=elsewhere)
        assert done.returncode == 0, done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "are not loaded for stored results" in said
    assert not (elsewhere / "sprung").exists()


def test_a_folder_does_not_take_the_name_of_a_shipped_suite(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    out = output(
        capsys,
        "run",
        "quickstart",
        "--dry-run",
        "--only",
        "algorithm=gamp",
        "--only",
        "alpha=0.1",
    )
    assert "cells" in out


@pytest.mark.parametrize("columns", ["abc", "", "-1", "0", "9" * 30])
def test_columns_that_are_no_number_are_80(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    out = output(capsys, "list", "channels")
    assert max(map(len, out.splitlines())) <= 80


# The second is what Python makes of the C locale where it may not take UTF-8 instead.
@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_a_terminal_without_a_letter_gets_another(tmp_path, encoding):
    suite = write_suite(tmp_path, SUITE.replace('"line"', '"Größe α"'))
    done = call_outside(
        "theory", suite, "--results", tmp_path, PYTHONIOENCODING=encoding
    )
    assert done.returncode == 0, done.stderr
    assert "±" not in done.stdout
    assert "Gr??e ?" in done.stdout


def test_standard_output_that_is_closed_is_one_line():
    line = " ".join(map(str, command("list", "--json"))) + ">&-"
    done = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_is_one_line_with_the_way_to_its_place(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("SMIMBENCH_TRACEBACK", raising=False)
    monkeypatch.setattr(Store, "load", lambda self, **_: 1 / 0)
    code, _, err = call(capsys, "show", write_suite(tmp_path))
    assert code == 70
    assert len(err.splitlines()) == 1
    assert "unexpected ZeroDivisionError: division by zero" in err
    assert "SMIMBENCH_TRACEBACK=1" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "list algorithms",
        "show nothing.toml",
        "run {suite} --dry-run --results {folder}/r",
    ],
)
def test_entry_points_of_another_package_that_cannot_be_read_are_named_in_one_line(
    tmp_path, monkeypatch, line
):
    """In a process of its own, where libraries that read them, too, are imported anew."""
    install_package(tmp_path / "site", "broken", {"broken_items": ""})
    (tmp_path / "site" / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[smimbench]\nx = \xff\xfe\n"
    )
    arguments = line.format(suite=write_suite(tmp_path), folder=tmp_path).split()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    ended = call_outside(*arguments)
    remarks = [line for line in ended.stderr.splitlines() if "not loaded" in line]
    assert ended.returncode == (2 if "nothing.toml" in line else 0), ended.stderr
    assert len(remarks) == 1
    assert "plugin broken" in remarks[0]
    assert "entry_points.txt cannot be read" in remarks[0]
