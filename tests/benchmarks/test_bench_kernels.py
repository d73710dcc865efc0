"""The parts of an iteration, each on its own, as ratios to a calibration: ``baseline.json`` holds them on any machine.

    python -m pytest -o addopts=--import-mode=importlib tests/benchmarks --benchmark-only --benchmark-json now.json
    python tests/benchmarks/compare.py now.json            # exit code 1 if a ratio grew by more than 15%

On a busy machine give several runs: ``compare.py now.json again.json`` takes the best of each.
"""

import numpy as np
import pytest
from smimbench_channels.sequence.softmax import information as over_labels
from smimbench_channels.sequence.softmax import last_layer
from smimbench_channels.sequence.softmax.network import Network

from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry
from smimbench.theory.scalar import ScalarCurve
from tests.benchmarks import compare
from tests.benchmarks.conftest import best_pair

ATTENTION = {"name": "attention-indexed", "tokens": 2}
SEQUENCE = {"name": "sequence-multi-index", "tokens": 2}
WISHART = {"name": "wishart", "rho": 0.5}


def problem_of(name: str) -> Problem:
    """One of the problems that are benchmarked."""
    return {
        "attention softmax": lambda: Problem(ATTENTION, "softmax", WISHART),
        "attention hardmax": lambda: Problem(ATTENTION, "hardmax", WISHART),
        "sequence softmax": lambda: Problem(SEQUENCE, "softmax", "gaussian"),
        "sequence two layers": lambda: Problem(SEQUENCE, {"name": "softmax", "layers": 2}, "gaussian"),
    }[name]()


SIZES = {
    "attention softmax": (0.2, 100),
    "attention hardmax": (0.3, 100),
    "sequence softmax": (4.0, 1000),  # 64 MB: in no cache
    "sequence two layers": (1.2, 300),
}


class Pieces:
    """A problem with data and a state a few steps into a run."""

    def __init__(self, name: str) -> None:
        self.problem = problem_of(name)
        self.data = self.problem.instance(*SIZES[name]).data(get_backend("numpy"))
        self.gamp = get_registry().get("algorithm", "gamp").item()
        state = self.gamp.init(self.problem, self.data, np.random.default_rng(0))
        for _ in range(3):
            state, _ = self.gamp.step(self.problem, self.data, state)
        self.state = state
        self.omega = self.problem.model.forward(self.data.inputs, state.estimate)

    def forward(self):
        return self.problem.model.forward(self.data.inputs, self.state.estimate)

    def adjoint(self):
        return self.problem.model.adjoint(self.data.inputs, self.state.g)

    def posterior(self):
        return self.problem.channel.posterior(self.data.labels, self.omega, self.state.V)

    def denoise(self):
        return self.problem.prior.denoise(self.state.estimate, 2.0 * np.eye(self.problem.components))

    def step(self):
        return self.gamp.step(self.problem, self.data, self.state)


@pytest.fixture(scope="module")
def pieces():
    """Pieces by name, made once."""
    made: dict[str, Pieces] = {}
    return lambda name: made.setdefault(name, None) or made.update({name: Pieces(name)}) or made[name]


PRODUCTS = [(name, part) for name in list(SIZES)[:3] for part in ("forward", "adjoint")]


@pytest.mark.benchmark(group="matrix products")
@pytest.mark.parametrize(("name", "part"), PRODUCTS, ids=[" ".join(p) for p in PRODUCTS])
def test_products(ratio, pieces, name, part):
    assert ratio(getattr(pieces(name), part), "gemm" if name.startswith("attention") else "read") > 0


@pytest.mark.benchmark(group="posteriors")
@pytest.mark.parametrize("name", SIZES)
def test_posterior(ratio, pieces, name):
    assert ratio(pieces(name).posterior, "exp") > 0


@pytest.mark.benchmark(group="denoisers")
@pytest.mark.parametrize("name", ["attention softmax", "sequence softmax"])
def test_denoise(ratio, pieces, name):
    assert ratio(pieces(name).denoise, "gemm") > 0


@pytest.mark.benchmark(group="iterations")
@pytest.mark.parametrize("name", SIZES)
def test_step(ratio, pieces, name):
    by = {"sequence two layers": "exp", "sequence softmax": "read"}.get(name, "gemm")
    assert ratio(pieces(name).step, by) > 0


@pytest.mark.benchmark(group="state evolution")
@pytest.mark.parametrize("name", ["attention softmax", "attention hardmax", "sequence softmax"])
def test_curve(ratio, name):
    alphas = np.linspace(0.02, 0.24, 32)
    assert ratio(lambda: ScalarCurve(problem_of(name)).competing(alphas), "exp") > 0


@pytest.mark.benchmark(group="state evolution")
@pytest.mark.parametrize(("layers", "overlaps"), [(2, (0.0, 0.5)), (3, (0.0, 0.0, 0.5)), (2, (0.4, 0.99))])
def test_node(ratio, layers, overlaps):
    """One node of a curve of deep attention: only the last layer known (tables), or two (labels)."""
    network, Q = Network(layers, 2, 1.0), np.diag(overlaps)
    V = np.eye(layers) - Q
    tables = last_layer.supports(Q, V)

    def evaluate():
        if tables:
            last_layer.evaluate.__wrapped__(Q, V, 1.0, last_layer.ACCURACY)
        else:
            over_labels.averages.__wrapped__(network, Q, V, over_labels.default_labels(network, Q, V))

    assert ratio(evaluate, "exp") > 0


INJECTED = [
    ("attention softmax", "forward"),
    ("attention hardmax", "posterior"),
    ("attention softmax", "denoise"),
    ("sequence two layers", "posterior"),
]


def slowed(call, amount: float):
    """The same work, then a part of it again: every call takes ``amount`` longer in CPU seconds."""
    import time

    def work():
        begin = time.process_time()
        call()
        end = time.process_time()
        while time.process_time() < end + amount * (end - begin):
            pass

    return work


@pytest.mark.benchmark(group="injected slowdown")
@pytest.mark.parametrize(("name", "part"), INJECTED, ids=[" ".join(p) for p in INJECTED])
def test_a_kernel_that_is_20_percent_slower_is_flagged(benchmark, calibration, pieces, judge, name, part):
    """Two measurements of the same code pass, one of code that is 20% slower fails, by the rule of ``compare.py``."""
    call = getattr(pieces(name), part)
    unit = calibration.exp if part == "posterior" else calibration.gemm
    benchmark.pedantic(call, rounds=3)
    before, again, after = (best_pair(work, unit, seconds=2.0).ratio for work in (call, call, slowed(call, 0.2)))
    benchmark.extra_info.update(before=before, again=again, after=after)
    if judge:
        assert not compare.worse(again, before)
        assert compare.worse(after, before)
