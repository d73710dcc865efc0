"""``smimbench theory``: what is solved is said and kept, and only what is asked for is solved."""

import json

import pytest

from smimbench.cli import main, progress
from smimbench.run import theory_solver as cache
from smimbench.theory import information
from tests.helpers import CHANNEL, SUITE, write_suite

TWO = SUITE.replace('label   = "line"', 'label   = "two"').replace(
    "noise = 0.2", "noise = 0.2, components = 2"
)
"""Two components that are learned apart: a curve that is followed from node to node."""


def theory(folder, *options):
    with pytest.raises(SystemExit) as end:
        main(
            [
                "theory",
                str(folder / "small.toml"),
                "--results",
                str(folder / "results"),
                *options,
            ]
        )
    return end.value.code


def test_answers_are_kept_and_shared(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)
    assert theory(tmp_path, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    solve = cache.competing
    monkeypatch.setattr(cache, "competing", lambda *_: pytest.fail("solved again"))
    monkeypatch.setattr(cache, "thresholds", lambda *_: pytest.fail("solved again"))
    assert theory(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    # Another suite with the same problem finds the same answers.
    write_suite(tmp_path, SUITE.replace("seeds", "max_cells = 1000\nseeds"))
    assert theory(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    # What is asked for again is solved again, and the old answers are still somewhere.
    monkeypatch.undo()
    solved = []
    monkeypatch.setattr(
        cache,
        "competing",
        lambda problem, alphas: solved.extend(alphas) or solve(problem, alphas),
    )
    assert theory(tmp_path, "--retry", "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    assert solved == [0.5, 1.0]
    aside = [
        path.name.partition("-")[0]
        for path in (tmp_path / "results" / "theory" / "set-aside").iterdir()
    ]
    assert sorted(set(aside)) == ["own", "point", "thresholds"]
    assert aside.count("point") == 2


class Counted:
    """Evaluations of the information of a channel, the last of which may be interrupted."""

    def __init__(self, monkeypatch, most=10**9):
        self.asked = []
        plain = information.channel_information

        def evaluate(channel, model, Q, V):
            if len(self.asked) >= most:
                raise KeyboardInterrupt
            self.asked.append(Q.tobytes() + V.tobytes())
            return plain(channel, model, Q, V)

        monkeypatch.setattr(information, "channel_information", evaluate)
        monkeypatch.setattr(cache, "SLOW", 0.0)


@pytest.mark.parametrize("text", [TWO, SUITE], ids=["nodes one by one", "one curve"])
def test_an_interrupted_curve_goes_on_where_it_was(tmp_path, capsys, monkeypatch, text):
    write_suite(tmp_path, text)
    with monkeypatch.context() as patch:
        whole = Counted(patch)
        assert theory(tmp_path, "--json", "--results", str(tmp_path / "other")) == 0
    expected = json.loads(capsys.readouterr().out)
    count = len(set(whole.asked))
    with monkeypatch.context() as patch:
        first = Counted(patch, most=count // 2)
        assert theory(tmp_path) == 130
    said = capsys.readouterr().err
    assert f"kept so far: {count // 2} node" in said
    assert "rerun the same command" in said
    assert "Traceback" not in said
    second = Counted(monkeypatch)
    assert theory(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert not set(first.asked) & set(second.asked)
    assert len(set(first.asked)) + len(set(second.asked)) == count > 3


def test_a_torn_node_is_evaluated_again(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, TWO)
    Counted(monkeypatch)
    assert theory(tmp_path, "--json") == 0
    expected = json.loads(capsys.readouterr().out)
    nodes = sorted((tmp_path / "results" / "theory" / "nodes").glob("*/*.json"))
    for file in (tmp_path / "results" / "theory").glob("*.json"):
        file.unlink()
    nodes[0].write_text(nodes[0].read_text()[:-9])
    nodes[1].write_text(nodes[1].read_text().replace('"value": [[', '"value": [[7'))
    again = Counted(monkeypatch)
    assert theory(tmp_path, "--json") == 0
    assert len(again.asked) == 2
    assert json.loads(capsys.readouterr().out) == expected


def test_only_what_is_asked_for_is_solved(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)
    monkeypatch.setattr(
        cache, "thresholds", lambda *_: pytest.fail("thresholds solved")
    )
    assert theory(tmp_path, "--no-thresholds", "--alpha", "0.7", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["thresholds"] is None
    assert [point["alpha"] for point in document["points"]] == [0.7]
    assert theory(tmp_path, "--no-thresholds") == 0
    assert "weak recovery" not in capsys.readouterr().out


HEAD = """import itertools
import time

import numpy
import smimbench

CALLS = itertools.count()
"""


@pytest.mark.slow
def test_other_processes_give_the_same_numbers(tmp_path, capsys):
    """A sampled curve, whose nodes go to several processes; some are slow enough to be stored."""
    posterior = """
        time.sleep(0.03 if next(CALLS) % 50 == 0 else 0)
        mean, left = omega + V / (V + 1) * (y - omega), V / (V + 1)
        flat = mean.reshape(len(y), -1)
        square = flat[:, :, None] * flat[:, None, :] + left[0, 0] * numpy.eye(2)
        return smimbench.Posterior(mean, left, square.reshape(len(y), 1, 2, 1, 2))"""
    text = CHANNEL.replace("self.gain * z", "z + rng.standard_normal(z.shape)")
    text = text.replace(
        "        return smimbench.Posterior(y / self.gain, 0 * V)", posterior
    )
    (tmp_path / "twice.py").write_text(text.replace("import smimbench\n", HEAD, 1))
    write_suite(tmp_path, SUITE.replace('"linear", noise = 0.2', '"twice"'))
    where = [
        "--plugins",
        str(tmp_path / "twice.py"),
        "--alpha",
        "0.3",
        "--alpha",
        "0.9",
        "--json",
    ]
    assert theory(tmp_path, *where) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (
        theory(tmp_path, *where, "--results", str(tmp_path / "other"), "--workers", "2")
        == 0
    )
    assert json.loads(capsys.readouterr().out) == alone
    assert "Monte Carlo" in alone[0]["points"][0]["method"]
    assert list((tmp_path / "other" / "theory" / "nodes").glob("*/*.json"))


def test_late_stages_are_said_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    write_suite(tmp_path, SUITE)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    assert theory(tmp_path) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) >= 2
    assert all(line.startswith("smimbench: running for 0:0") for line in said)
    assert "curve 1 of 1: line: 0 / 2" in said[1]
    for option in ("--quiet", "--json"):
        assert theory(tmp_path, option, "--retry") == 0
        assert not capsys.readouterr().err
