"""Steps against the two full products of their shapes, alternating in one process; what has no products has its time.

The products are those of all inputs with a signal, and of gradients with all inputs, each in one call of BLAS on one thread. A
step of a matrix model may take less, for it uses the symmetry of the signal.
"""

import statistics
import time
from typing import NamedTuple

import numpy as np

from smimbench.backend.device import get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry

from .cases import Timed

WISHART, BILINEAR = {"name": "wishart", "rho": 0.5}, {"name": "bilinear", "rho": 0.3}
LINEAR, SOFTMAX = {"name": "linear", "noise": 0.1}, {"name": "softmax"}
SECONDS = 2.0
"""CPU seconds of steps and products. Doubled: medians that repeat to 2% in place of 3%."""


class Setting(NamedTuple):
    """A problem of shipped items at one size, and an algorithm."""

    model: dict
    channel: dict
    prior: dict
    alpha: float
    dimension: int
    algorithm: str = "gamp"

    def begun(self, steps=4):
        """A function that makes one more step of a run that is some steps old, and one that takes the products."""
        problem = Problem(self.model, self.channel, self.prior)
        data = problem.instance(self.alpha, self.dimension, 0).data(
            get_backend("numpy")
        )
        entry = get_registry().get("algorithm", self.algorithm, problem.model.name)
        algorithm = entry.item()
        state = algorithm.init(problem, data, np.random.default_rng(0))
        for _ in range(steps):
            state, _ = algorithm.step(problem, data, state)
        tokens = data.inputs.reshape(-1, self.dimension)
        rows = self.dimension if problem.model.rank == "extensive" else len(state.V)
        rng = np.random.default_rng(1)
        signal = rng.standard_normal((self.dimension, rows))
        gradients = rng.standard_normal((len(tokens), rows))
        return (
            lambda: algorithm.step(problem, data, state),
            lambda: (tokens @ signal, gradients.T @ tokens),
        )


def _attention(tokens=2, **more):
    return {"name": "attention-indexed", "tokens": tokens, **more}


def _two_layers(skip):
    return {"name": "softmax", "layers": 2, "skip": skip}


SEQUENCE, GAUSSIAN = {"name": "sequence-multi-index", "tokens": 2}, {"name": "gaussian"}
SETTINGS = {
    "untied, linear, d = 80": Setting(
        _attention(symmetric=False), LINEAR, BILINEAR, 0.25, 80
    ),
    "untied, softmax, d = 80": Setting(
        _attention(3, symmetric=False), SOFTMAX, BILINEAR, 0.12, 80
    ),
    "hardmax, T = 3, d = 100": Setting(
        _attention(3), {"name": "hardmax"}, WISHART, 0.1, 100
    ),
    "attention, two layers, d = 60": Setting(
        _attention(), _two_layers(1.0), WISHART, 0.2, 60
    ),
    "sequence, two layers, D = 1000": Setting(
        SEQUENCE, _two_layers(0.0), GAUSSIAN, 1.0, 1000
    ),
    "sequence, two layers, D = 4000": Setting(
        SEQUENCE, _two_layers(0.0), GAUSSIAN, 1.0, 4000
    ),
    "matrices, d = 100": Setting(_attention(), SOFTMAX, WISHART, 0.1, 100),
    "matrices, d = 300": Setting(_attention(), SOFTMAX, WISHART, 0.1, 300),
    "matrices, d = 600": Setting(_attention(), SOFTMAX, WISHART, 0.05, 600),
    **{
        f"{name}, d = 80": Setting(_attention(), SOFTMAX, WISHART, 0.1, 80, name)
        for name in ("adam", "sgd", "muon")
    },
}


class Products:
    """A step over the two products: 2 where half of the step is products."""

    params = (list(SETTINGS),)
    param_names = ("setting",)
    timeout = 300

    def setup(self, setting):
        self.step, self.products = SETTINGS[setting].begun()

    def track_step_over_products(self, setting):
        """Ratio of the median CPU seconds of a step and of the products, which take turns."""
        return float(np.divide(*self.seconds()))

    track_step_over_products.unit = "times the products (smaller is better)"

    def seconds(self):
        """Median CPU seconds of a step and of the products."""
        times = ([], [])
        begin = time.process_time()
        while time.process_time() < begin + SECONDS or len(times[0]) < 5:
            for work, seconds in zip((self.step, self.products), times):
                start = time.process_time()
                work()
                seconds.append(time.process_time() - start)
        return [statistics.median(seconds) for seconds in times]


class Other(Timed):
    """What has no products of its own."""

    timeout = 300
    repeat = (3, 20, 2.0)

    def setup(self):
        from smimbench_attention.algorithms.gamp.message_pass import multiply_components

        from smimbench.suite.reader import load_suite

        rng = np.random.default_rng(0)
        self.multiply = multiply_components
        self.matrix = rng.standard_normal((16, 16))
        self.latents = rng.standard_normal((12_500, 16, 2))
        tiny = ["grid.dimension=[10]", "grid.seeds=1"]
        suite = load_suite("quickstart", tiny, ["algorithm=gamp"])
        self.cell = next(iter(suite.cells("numpy")))

    def time_products_between_components(self):
        """400,000 latents of 16 components and two tokens."""
        self.multiply(self.matrix, self.latents)

    def time_tiny_cell(self):
        """A run of GAMP at d = 10, with its data, its metrics and its record."""
        from smimbench.run.cell import run_cell

        run_cell(self.cell)


class Batch:
    """Seeds of one setting that make their steps together, where calls of Python take most of the time: Adam at d = 40."""

    timeout = 300

    def setup(self):
        from smimbench.run.batches import batches
        from smimbench.suite.reader import load_suite

        suite = load_suite(
            "quickstart",
            only=["problem=softmax", "algorithm=adam", "alpha=0.1", "dimension=40"],
        )
        (self.cells,) = batches(list(suite.cells("numpy")), workers=1, single=False)

    def track_together_over_alone(self):
        """Ratio of the median CPU seconds of the cells in one batch and one by one, which take turns."""
        from smimbench.run.cell import run_cell, run_together

        together, alone = [], []
        for _ in range(5):
            start = time.process_time()
            run_together(self.cells)
            middle = time.process_time()
            for cell in self.cells:
                run_cell(cell)
            together.append(middle - start)
            alone.append(time.process_time() - middle)
        return statistics.median(together) / statistics.median(alone)

    track_together_over_alone.unit = "times the cells alone (smaller is better)"


class Streamed(Timed):
    """A pass over inputs that are drawn again whenever they are read, as those that no memory holds."""

    timeout = 300
    repeat = (3, 10, 2.0)

    def setup(self):
        from smimbench.problem.instance import redrawn_tokens

        problem = Problem(SEQUENCE, SOFTMAX, GAUSSIAN)
        rng = np.random.default_rng(0)
        shape = (8000, 2, 500)
        self.inputs = redrawn_tokens(shape, problem.inputs, rng, "float64", "float64")
        self.model, self.signal = problem.model, rng.standard_normal((1, 500))

    def time_pass(self):
        """Latents of all samples, chunk by chunk."""
        from smimbench.backend.streaming import sample_chunks

        for chunk in sample_chunks(self.model, self.inputs, 1):
            self.model.forward(self.inputs[chunk, ...], self.signal)
