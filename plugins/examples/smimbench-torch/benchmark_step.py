"""Time of one full-batch step of Adam, by smimbench's own gradient and by PyTorch's autograd.

    python benchmark_step.py [dimension] [alpha] [threads]

Both learn the same instance from the same start. The best of many steps is given beside the median: on a machine that
others use as well, the best is what the step costs.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from smimbench_algorithms.adam import Adam
from smimbench_torch import algorithm
from threadpoolctl import threadpool_limits

from smimbench import Problem
from smimbench.backend import get_backend


def seconds(problem, data, item, steps=300):
    """Best and median duration of a step."""
    state = item.init(problem, data, np.random.default_rng(0))
    found = []
    for _ in range(steps):
        begin = time.perf_counter()
        state, _ = item.step(problem, data, state)
        found.append(time.perf_counter() - begin)
    return min(found), float(np.median(found))


def main() -> None:
    """Print one line for each."""
    dimension = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    alpha = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    problem = Problem({"name": "attention-indexed", "tokens": 2}, "softmax", {"name": "wishart", "rho": 0.5})
    data = problem.instance(alpha, dimension).data(get_backend())
    torch.set_num_threads(threads)
    contenders = {"smimbench adam": Adam(), "torch.adam": algorithm(torch.optim.Adam)(lr=0.1)}
    with threadpool_limits(limits=threads):
        for name, item in contenders.items():
            best, median = seconds(problem, data, item)
            print(f"{name:15s} best {1e3 * best:.2f} ms, median {1e3 * median:.2f} ms")  # noqa: T201


if __name__ == "__main__":
    main()
