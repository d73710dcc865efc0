"""What is benchmarked: a small piece of every shipped suite, and every channel, prior and algorithm that is installed.

Suites and plugins are discovered, so a suite that is added, or a package that is installed with smimbench, is benchmarked
without a change here. Only public names of smimbench are used, because this code also runs against older commits.
"""

import functools
import os
import time
from pathlib import Path

import numpy as np

import smimbench
from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry
from smimbench.suite.document import shipped_suites

# Sizes that take milliseconds, not minutes: D of low-rank models, d of extensive-rank ones.
LARGEST = {"sequence-multi-index": 400, "attention-indexed": 60}
MOST_COMPONENTS = 4
SEEDS = 4
STEPS = 40


def _suites():
    """Paths of the shipped suites: those of this checkout, so that all commits are asked the same."""
    folder = Path(__file__).resolve().parent.parent
    suites = {path.stem: path for path in sorted(folder.glob("*.toml"))} or dict(
        shipped_suites()
    )
    names = os.environ.get("SMIMBENCH_ASV_SUITES")
    return {
        name: path
        for name, path in suites.items()
        if not names or name in names.split(",")
    }


def _kind(problem):
    """What makes two problems the same kind of work."""
    names = [
        (item["name"], item.get("distribution", "smimbench"))
        for item in problem.spec.values()
    ]
    return (*names, problem.components)


@functools.cache
def _plans():
    """``{"suite: problem": (problem, alpha, dimension)}``.

    The first problem of every suite, and every other that brings a combination of parts which no suite before it has;
    then what is installed and in no suite. A suite that this commit cannot read is left out.
    """
    cases, identities = {}, set()
    for name, path in _suites().items():
        try:
            suite = smimbench.load_suite(path)
        except Exception:  # a suite of today in front of the code of last year
            continue
        plans = [plan for plan in suite.plans if not getattr(plan, "theory_only", None)]
        for position, plan in enumerate(plans):
            problem = plan.problem
            if position > 0 and (
                _kind(problem) in identities or problem.components > MOST_COMPONENTS
            ):
                continue
            identities.add(_kind(problem))
            alpha = sorted(plan.alphas)[len(plan.alphas) // 2]
            cases[f"{name}: {plan.label}"] = (problem, alpha, max(plan.dimensions))
    if not os.environ.get("SMIMBENCH_ASV_SUITES"):
        for name, problem in _installed(
            {kind[:2] for kind in identities}, {kind[::2][:2] for kind in identities}
        ):
            alpha = 1.0 if len(problem.model.signal_shape(1, 2)) == 2 else 0.2
            cases[f"installed: {name}"] = (
                problem,
                alpha,
                LARGEST.get(problem.model.name, 60),
            )
    return cases


def _installed(channels, priors):
    """Problems with the channels and priors that are in no suite, each with the first part that goes with it."""
    registry = get_registry()
    for model in registry.entries("model"):
        for channel in registry.entries("channel"):
            for prior in registry.entries("prior"):
                names = [
                    (item.name, item.distribution) for item in (model, channel, prior)
                ]
                if tuple(names[:2]) in channels and tuple(names[::2]) in priors:
                    continue
                full = [
                    name if home == "smimbench" else f"{home}:{name}"
                    for name, home in names
                ]
                problem = _first_problem(full, channel.item, prior.item)
                if problem is None:
                    continue
                channels.add(tuple(names[:2]))
                priors.add(tuple(names[::2]))
                yield ", ".join(full), problem


def _first_problem(names, channel, prior):
    """With two tokens or one, and the examples of items that need a parameter; None for parts that do not go together."""
    tables = [
        {"name": name, **getattr(item, "example", {})}
        for name, item in zip(names[1:], (channel, prior))
    ]
    for tokens in (2, 1):
        try:
            return Problem({"name": names[0], "tokens": tokens}, *tables)
        except Exception:  # parts that do not go together; whatever a plugin raises, the others are benchmarked
            continue
    return None


def problems():
    """Names of the problems."""
    return sorted(_plans()) or ["none"]


def _example(item):
    return item(**getattr(item, "example", {}))


def algorithms():
    """Names of all algorithms that work with their defaults or have an example, those of installed plugins included."""
    algorithms = []
    for entry in get_registry().entries("algorithm"):
        try:
            _example(entry.item)
        except Exception:  # needs a parameter and gives no example; whatever it raises, the others are benchmarked
            continue
        prefix = "" if entry.distribution == "smimbench" else f"{entry.distribution}:"
        algorithms.append(prefix + entry.name)
    return sorted(algorithms) or ["none"]


class Case:
    """One problem at a small size, in the middle of its range of sample ratios."""

    def __init__(self, name):
        if name not in _plans():
            raise NotImplementedError(f"{name} is not known at this commit")
        self.problem, self.alpha, dimension = _plans()[name]
        self.dimension = min(dimension, LARGEST.get(self.problem.model.name, 60))

    def algorithm(self, name):
        """An algorithm with its defaults or its example; NotImplementedError (asv skips) where it does not fit."""
        try:
            item = _example(
                get_registry().get("algorithm", name, self.problem.model.name).item
            )
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


class Timed:
    """How a call of a few milliseconds is timed."""

    number = 1
    timer = (
        time.process_time
    )  # one thread: what others do on the machine does not count
    warmup_time = 0
    rounds = 1
