"""``smimbench theory``: what is solved is said and kept."""

from __future__ import annotations

import json

import pytest

from smimbench.cli.main import main
from smimbench.theory import cache
from tests.helpers import SUITE, write_suite


def theory(folder, *options):
    with pytest.raises(SystemExit) as end:
        main(["theory", str(folder / "small.toml"), "--results", str(folder / "results"), *options])
    return end.value.code


def test_answers_are_kept_and_shared(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)
    assert theory(tmp_path, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(cache, "competing", lambda *_: pytest.fail("solved again"))
    monkeypatch.setattr(cache, "thresholds", lambda *_: pytest.fail("solved again"))
    assert theory(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    # Another suite with the same problem finds the same answers.
    write_suite(tmp_path, SUITE.replace("seeds", "max_cells = 1000\nseeds"))
    assert theory(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == first


def test_an_interrupted_curve_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)
    solved, whole = [], cache.competing

    def one_then_stop(problem, alphas):
        if solved:
            raise KeyboardInterrupt
        solved.extend(alphas)
        return whole(problem, alphas)

    monkeypatch.setattr(cache, "batches", lambda problem, alphas: [[alpha] for alpha in alphas])
    monkeypatch.setattr(cache, "competing", one_then_stop)
    assert theory(tmp_path) == 130
    assert "point of theory is kept" in capsys.readouterr().err
    monkeypatch.setattr(cache, "competing", lambda problem, alphas: solved.extend(alphas) or whole(problem, alphas))
    assert theory(tmp_path) == 0
    assert len(solved) == len(set(solved)) > 1


def test_late_stages_are_said_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    from smimbench.cli import show

    write_suite(tmp_path, SUITE)
    monkeypatch.setattr(show, "PATIENCE", -1.0)
    assert theory(tmp_path) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) >= 2
    assert all(line.startswith("smimbench: theory of ") for line in said)
    assert theory(tmp_path, "--quiet") == 0
    assert not capsys.readouterr().err
