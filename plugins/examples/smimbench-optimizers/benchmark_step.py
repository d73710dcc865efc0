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
    """The same training in plain PyTorch: a forward map, ``backward()`` and ``torch.optim.Adam``."""

    def __init__(self, loss):
        self.loss = loss

    def init(self, problem, data, rng):
        """Create the tensors of the data, the parameter and the optimizer."""
        self.d = data.dimension
        self.factor = torch.nn.Parameter(
            torch.tensor(problem.prior.factor.draw(rng, 1, self.d, None)[0])
        )
        self.inputs = torch.tensor(np.array(data.inputs))
        self.targets = torch.tensor(np.array(observable(problem.channel, data.labels)))
        self.optimizer = torch.optim.Adam([self.factor], lr=0.1)
        return self

    def signal(self):
        """Return the matrix that the factor represents."""
        return self.factor @ self.factor.T / math.sqrt(self.factor.shape[1] * self.d)

    def step(self, problem, data, state):
        """Make one step of Adam on the loss over all samples."""
        self.optimizer.zero_grad()
        scale = math.sqrt(self.factor.shape[1] * self.d)
        z = self.inputs @ self.factor
        trace = torch.eye(self.inputs.shape[1]) * (self.factor**2).sum()
        h = (z @ z.transpose(1, 2) - trace) / (scale * math.sqrt(self.d))
        if self.loss == "squared":
            loss = ((torch.softmax(h, -1) - self.targets) ** 2).sum()
        else:
            loss = -(self.targets * torch.log_softmax(h, -1)).sum()
        (loss / self.d).backward()
        self.optimizer.step()
        return self, None

    def estimate(self, state):
        """Return the signal (1, D, D) on the host."""
        return self.signal().detach().numpy()[None]


def seconds(problem, data, item, clock, steps=300):
    """Return best and median duration of a step, and the estimate after five steps."""
    state = item.init(problem, data, np.random.default_rng(0))
    durations, early_estimate = [], None
    for count in range(steps):
        begin = clock()
        state, _ = item.step(problem, data, state)
        durations.append(clock() - begin)
        if count == 4:
            early_estimate = np.array(item.estimate(state))
    return min(durations), float(np.median(durations)), early_estimate


def main() -> None:
    """Print the durations of a step for each implementation and loss."""
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
            contenders = {
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
            reference = None
            for name, item in contenders.items():
                best, median, early_estimate = seconds(problem, data, item, clock)
                reference = early_estimate if reference is None else reference
                if (
                    np.abs(early_estimate - reference).max()
                    > 1e-4 * np.abs(reference).max()
                ):
                    raise SystemExit(
                        f"{name} and {next(iter(contenders))} must take the same steps, but differ on the loss {loss}"
                    )
                print(
                    f"{loss:13s} {name:14s} best {1e3 * best:.2f} ms, median {1e3 * median:.2f} ms"
                )


if __name__ == "__main__":
    main()
