"""Theory of strangers' items: solved in a process that may die or hang, with the numbers that it always has."""

import json
import time

import pytest

from smimbench.problem.problem import ProblemError
from smimbench.registry.registry import Registry, set_registry
from smimbench.run import theory_subprocess
from smimbench.run.answers import document_of
from smimbench.run.theory_solver import TheorySolver
from tests.helpers import SUITE, call, sequence, write_suite

PLUGIN = '''
import ctypes, os, time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import smimbench
from smimbench import Capabilities, hookimpl
from smimbench.interfaces import AlgorithmPrediction
from smimbench_attention.channels.linear import SequenceLinear


@dataclass(frozen=True)
class Moody(SequenceLinear):
    """The linear channel, with a temper."""

    mood: str = "calm"
    name: ClassVar[str] = "moody"
    version: ClassVar[int] = 1

    def information(self, Q, V):
        if self.mood == "abort":
            os.abort()
        if self.mood == "exit":
            os._exit(0)
        if self.mood == "hang":
            ctypes.CDLL(None).sleep(600)
        if self.mood == "raise":
            raise KeyError("[/no such key]")
        if self.mood == "print":
            print("{}", flush=True)
        return super().information(Q, V)


@dataclass(frozen=True)
class Prophet:
    """Does nothing, and claims what is asked for."""

    mood: str = "calm"
    name: ClassVar[str] = "prophet"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def init(self, problem, data, rng):
        return problem.prior.sample(rng, problem.components, data.inputs.shape[-1])

    def step(self, problem, data, state):
        return state, smimbench.Info(residual=0.0)

    def estimate(self, state):
        return state

    def theory(self, problem, alpha, conditions):
        if self.mood == "abort":
            os.abort()
        if self.mood == "hang":
            time.sleep(600)
        if self.mood == "words":
            return "none [/] is known"
        return AlgorithmPrediction([2.0], [0.0], np.zeros((1, 1)), "guess")


@hookimpl
def smimbench_register_channels(register):
    register(Moody)


@hookimpl
def smimbench_register_algorithms(register):
    register(Prophet)
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugin") / "moody.py"
    file.write_text(PLUGIN)
    registry = Registry([str(file)])
    assert not [plugin.problems for plugin in registry.plugins if plugin.failed]
    set_registry(registry)
    yield file
    set_registry(None)


def problem_of(mood):
    return sequence("moody", noise=0.2, mood=mood)


def test_the_numbers_are_those_of_this_process(plugin, tmp_path):
    problem, ratios = problem_of("print"), [0.5, 1.0]  # a printed line is no answer
    seen = []
    here = TheorySolver()
    there = TheorySolver(
        tmp_path / "theory",
        in_subprocess=True,
        on_progress=lambda _, progress: seen.append(progress),
    )
    points = document_of(here.points(problem, ratios))
    assert document_of(there.points(problem, ratios)) == points
    assert there.thresholds(problem) == here.thresholds(problem)
    assert [one for one in seen if one.solved == 2]
    assert there.process.executor.workers
    again = TheorySolver(
        tmp_path / "theory", in_subprocess=True
    )  # what is kept needs no process
    assert document_of(again.points(problem, ratios)) == points
    assert not again.process.executor.workers


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("abort", "theory: the process that solved it ended: SIGABRT"),
        ("exit", "theory: the process that solved it ended: it left with exit code 0"),
        ("hang", "theory: no new number for 1 s; ended from outside"),
    ],
)
def test_one_that_dies_or_hangs_is_given_up_once(plugin, monkeypatch, mood, said):
    monkeypatch.setattr(theory_subprocess, "PATIENCE", 1.0)
    cache = TheorySolver(in_subprocess=True)
    with pytest.raises(ProblemError, match=said):
        cache.points(problem_of(mood), [0.5])
    begin = time.monotonic()
    with pytest.raises(ProblemError, match=said):
        cache.points(problem_of(mood), [0.7])
    assert time.monotonic() - begin < 0.5  # not tried again
    assert not cache.process.executor.workers


def test_what_is_raised_there_is_raised_here(plugin):
    cache = TheorySolver(in_subprocess=True)
    with pytest.raises(
        ProblemError,
        match=r"channel 'moody': information raised KeyError: '\[/no such key\]'; no theory",
    ):
        cache.points(problem_of("raise"), [0.5])
    assert all(one.is_idle for one in cache.process.executor.workers)


def test_what_ships_is_solved_here(plugin):
    cache = TheorySolver(in_subprocess=True)
    cache.points(sequence("linear"), [0.5])
    assert not cache.process.executor.workers


@pytest.mark.slow
def test_the_rows_of_all_others_stay(plugin, tmp_path, capsys, monkeypatch):
    """A channel whose theory aborts and algorithms whose theory aborts or never ends, next to what is as it should be."""
    monkeypatch.setattr(theory_subprocess, "PATIENCE", 4.0)
    one = (
        SUITE.partition("[[alg")[0]
        .replace("seeds     = 2", "seeds     = 1")
        .replace("[0.5, 1.0]", "[0.5]")
    )
    problem = one[one.index("[problem]") : one.index("[grid]")]
    bad = problem.replace('"linear", noise = 0.2', '"moody", mood = "abort"').replace(
        '"line"', '"bad"'
    )
    text = one.replace(
        problem,
        problem.replace("[problem]", "[[problems]]")
        + bad.replace("[problem]", "[[problems]]"),
    )
    moods = ("calm", "abort", "hang", "words")
    text += "".join(
        f'[[algorithms]]\nname = "prophet"\nmood = "{m}"\nlabel = "{m}"\n'
        for m in moods
    )
    suite = write_suite(tmp_path, text)
    options = (
        "--results",
        tmp_path / "r",
        "--plugins",
        plugin,
        "--no-figure",
        "--workers",
        "1",
        "--json",
    )
    code, out, err = call(capsys, "run", suite, *options)
    assert code in (0, 1), err
    rows = {
        (row["problem"], row["algorithm"]): row
        for row in json.loads(out)["rows"]
        if row["metric"] == "mse"
    }
    assert len(rows) == 8
    assert rows["line", "calm"]["own_theory"] == 2.0
    assert "ended: SIGABRT" in rows["line", "abort"]["no_theory"]
    assert "no new number for 4 s" in rows["line", "hang"]["no_theory"]
    assert rows["line", "words"]["no_theory"] == "none [/] is known"
    assert all(rows["line", mood]["bayes"] is not None for mood in moods)
    assert all(
        rows["bad", mood]["mean"] is not None and rows["bad", mood]["bayes"] is None
        for mood in moods
    )
