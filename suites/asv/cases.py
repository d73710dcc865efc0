"""What is benchmarked: a small piece of every shipped suite, and every algorithm that is installed.

Suites and plugins are discovered, so a suite that is added, or a package that is installed beside smimbench, is benchmarked
without a change here. Only public names of smimbench are used, because this code also runs against older commits.
"""

import functools
import os
from pathlib import Path

import numpy as np

import smimbench
from smimbench.backend import get_backend
from smimbench.registry import get_registry
from smimbench.suite import shipped_suites

# Sizes that take milliseconds, not minutes: D of low-rank models, d of extensive-rank ones.
LARGEST = {"sequence-multi-index": 400, "attention-indexed": 60}
MOST_PROBLEMS = 1
SEEDS = 4
STEPS = 40


def _suites():
    """Paths of the shipped suites: those of this checkout, so that all commits are asked the same."""
    here = Path(__file__).resolve().parent.parent
    found = {path.stem: path for path in sorted(here.glob("*.toml"))} or dict(shipped_suites())
    wanted = os.environ.get("SMIMBENCH_ASV_SUITES")
    return {name: path for name, path in found.items() if not wanted or name in wanted.split(",")}


@functools.cache
def _plans():
    """``{"suite: problem": (suite, plan)}``; a suite that this commit cannot read is left out."""
    found = {}
    for name, path in _suites().items():
        try:
            suite = smimbench.load_suite(path)
        except Exception:  # a suite of today in front of the code of last year
            continue
        plans = [plan for plan in suite.plans if not getattr(plan.problem.prior, "theory_only", None)]
        for plan in plans[:MOST_PROBLEMS]:
            found[f"{name}: {plan.label}"] = (suite, plan)
    return found


def problems():
    """Names of the problems."""
    return sorted(_plans()) or ["none"]


def algorithms():
    """Names of all algorithms that work without a parameter, those of installed plugins included."""
    found = []
    for entry in get_registry().entries("algorithm"):
        try:
            entry.item()
        except Exception:  # needs a parameter
            continue
        prefix = "" if entry.distribution == "smimbench" else f"{entry.distribution}:"
        found.append(prefix + entry.name)
    return sorted(found) or ["none"]


class Case:
    """One problem at a small size, in the middle of its range of sample ratios."""

    def __init__(self, name):
        if name not in _plans():
            raise NotImplementedError(f"{name} is not known at this commit")
        self.suite, plan = _plans()[name]
        self.problem = plan.problem
        self.alpha = sorted(plan.alphas)[len(plan.alphas) // 2]
        self.dimension = min(max(plan.dimensions), LARGEST.get(self.problem.model.name, 60))

    def algorithm(self, name):
        """An algorithm with its defaults; NotImplementedError (asv skips) where it does not fit."""
        try:
            item = get_registry().get("algorithm", name, self.problem.model.name).item()
        except LookupError as error:
            raise NotImplementedError(str(error)) from None
        reason = item.refuses(self.problem) if hasattr(item, "refuses") else None
        if reason:
            raise NotImplementedError(reason)
        return item

    def data(self, replicate=0):
        """Instance and data."""
        instance = self.problem.instance(self.alpha, self.dimension, replicate)
        return instance, instance.data(get_backend("numpy"))

    def begun(self, name, steps=2):
        """A function that makes one more step of a run that is some steps old."""
        item = self.algorithm(name)
        _, data = self.data()
        state = item.init(self.problem, data, np.random.default_rng(0))
        for _ in range(steps):
            state, _ = item.step(self.problem, data, state)
        return lambda: item.step(self.problem, data, state)
