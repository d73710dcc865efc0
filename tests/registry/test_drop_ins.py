"""Plugins in ``./plugins`` run when a suite asks for them and at no other time; broken company does no harm to a run."""

import json

import pytest

from tests.helpers import CHANNEL, SUITE, call, refusal, write_suite

TWICE = SUITE.replace('name = "linear", noise = 0.2', 'name = "twice"')
ASKING = TWICE.replace("[suite]", "[suite]\nplugins = true")
TELLTALE = "import pathlib\npathlib.Path('it-ran').touch()\n" + CHANNEL
SMALL = (
    "--set",
    "grid.dimension=20",
    "--set",
    "grid.seeds=1",
    "--only",
    "algorithm=gamp",
    "--no-figure",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with drop-ins, one of them broken."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(TELLTALE)
    (tmp_path / "plugins" / "broken.py").write_text("raise RuntimeError('no license')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_suite_that_asks_gets_the_plugins_of_the_working_folder(folder, capsys):
    suite = write_suite(folder, ASKING)
    code, out, err = call(capsys, "run", suite, "--workers", "2", "--json", *SMALL)
    # So few dimensions may diverge; the worker processes know the channel, or their cells would have failed.
    assert code in (0, 1)
    counts = json.loads(out)["status_counts"]
    assert sum(counts.values()) == 2
    assert "failed" not in counts
    assert (folder / "it-ran").exists()
    assert "plugin broken" in err
    assert "RuntimeError: no license" in err
    # The results' own copy of the suite asks as well.
    assert call(capsys, "show", folder / "results" / "small", "--json")[0] == code


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (TWICE, (), "unknown channel 'twice'"),
        (ASKING, ("--no-plugins",), "unknown channel 'twice'"),
        (ASKING, (), "suite.plugins: is true, but there is no ./plugins/*.py"),
    ],
    ids=["nobody asks", "no plugins", "nothing there"],
)
def test_what_nobody_asks_for_or_is_not_there_does_not_run(
    folder, capsys, monkeypatch, text, options, said
):
    if text == ASKING and not options:
        (folder / "empty").mkdir()
        monkeypatch.chdir(folder / "empty")
    err = refusal(capsys, "theory", write_suite(folder, text), *options)
    assert said in err
    call(capsys, "plugins", *options)
    assert not (folder / "it-ran").exists()
