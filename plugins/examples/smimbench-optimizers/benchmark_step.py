"""Times a full-batch step of Adam: smimbench's own, PyTorch's and optax's with its gradient, and plain PyTorch.

    python benchmark_step.py [dimension] [alpha] [threads]

Once for each loss: all learn the same instance from the same start, in float64, and must agree after the first steps. Times
are CPU time (wall time with several threads), so that others who use the machine count as little as possible; the best of
many steps is given with the median.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from smimbench_attention.algorithms.adam import Adam
from threadpoolctl import threadpool_limits

from smimbench import Problem
from smimbench.backend import get_backend
from smimbench.derive import observable
from smimbench.registry import build, get_registry

LIBRARY = ("torch.adam", "optax.adam")


class PlainTorchAdam:
    """The same training without smimbench: the model's forward map, ``backward()`` and ``torch.optim.Adam`` of plain PyTorch."""

    def __init__(self, loss):
        """Store the name of the loss."""
        self.loss = loss

    def init(self, problem, data, rng):
        """Create the tensors of the inputs and labels, the factor to be learned and the optimizer."""
        self.d = data.dimension
        self.factor = torch.nn.Parameter(
            torch.tensor(problem.prior.factor.draw(rng, 1, self.d, None)[0])
        )
        self.inputs = torch.tensor(np.array(data.inputs))
        self.targets = torch.tensor(np.array(observable(problem.channel, data.labels)))
        self.optimizer = torch.optim.Adam([self.factor], lr=0.1)
        return self

    def signal(self):
        """Return the signal ``S = W W^T / sqrt(width d)`` (d, d) of the factor W."""
        return self.factor @ self.factor.T / math.sqrt(self.factor.shape[1] * self.d)

    def step(self, problem, data, state):
        """Make one step of Adam on the loss over all samples; ``projections`` are products of the tokens with the factor, whose
        products are the inputs of the softmax.
        """
        self.optimizer.zero_grad()
        factor_norm = math.sqrt(self.factor.shape[1] * self.d)
        projections = self.inputs @ self.factor
        trace_matrix = torch.eye(self.inputs.shape[1]) * (self.factor**2).sum()
        softmax_inputs = (projections @ projections.transpose(1, 2) - trace_matrix) / (
            factor_norm * math.sqrt(self.d)
        )
        if self.loss == "squared":
            loss = ((torch.softmax(softmax_inputs, -1) - self.targets) ** 2).sum()
        else:
            loss = -(self.targets * torch.log_softmax(softmax_inputs, -1)).sum()
        (loss / self.d).backward()
        self.optimizer.step()
        return self, None

    def estimate(self, state):
        """Return the signal (1, D, D) on the host."""
        return self.signal().detach().numpy()[None]


def seconds(problem, data, algorithm, clock, steps=300):
    """Return best and median duration in seconds of a step of an ``algorithm``, and the estimate after five steps; ``clock``
    gives the time.
    """
    state = algorithm.init(problem, data, np.random.default_rng(0))
    durations, early_estimate = [], None
    for step_index in range(steps):
        start_time = clock()
        state, _ = algorithm.step(problem, data, state)
        durations.append(clock() - start_time)
        if step_index == 4:
            early_estimate = np.array(algorithm.estimate(state))
    return min(durations), float(np.median(durations)), early_estimate


def main() -> None:
    """Print the duration of a step for each implementation and each loss, after checking that all take the same steps."""
    dimension = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    alpha = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    problem = Problem(
        {"name": "attention-indexed", "tokens": 2},
        "softmax",
        {"name": "wishart", "rho": 0.5},
    )
    data = problem.instance(alpha, dimension).data(get_backend())
    torch.set_num_threads(threads)
    registry = get_registry()
    clock = time.process_time if threads == 1 else time.perf_counter
    with threadpool_limits(limits=threads):
        for loss in ("squared", "cross-entropy"):
            implementations = {
                "smimbench adam": Adam(loss=loss),
                **{
                    name: build(
                        registry.get("algorithm", name).item,
                        "algorithm",
                        {"loss": loss},
                    )
                    for name in LIBRARY
                },
                "plain torch": PlainTorchAdam(loss),
            }
            first_estimate = None
            for name, algorithm in implementations.items():
                best_duration, median_duration, early_estimate = seconds(
                    problem, data, algorithm, clock
                )
                first_estimate = (
                    early_estimate if first_estimate is None else first_estimate
                )
                if (
                    np.abs(early_estimate - first_estimate).max()
                    > 1e-4 * np.abs(first_estimate).max()
                ):
                    raise SystemExit(
                        f"after five steps, {name} and {next(iter(implementations))} must agree to 1e-4 on the loss {loss!r}"
                    )
                print(
                    f"{loss:13s} {name:14s} best {1e3 * best_duration:.2f} ms, median {1e3 * median_duration:.2f} ms"
                )


if __name__ == "__main__":
    main()
