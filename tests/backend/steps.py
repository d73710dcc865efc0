"""An algorithm after a few steps: what tests of backends compare between two places."""

import numpy as np

from smimbench.registry.registry import get_registry


def after(problem, data, steps, algorithm="gamp", seed=0):
    """The algorithm with its parameters left at their defaults, its state and what its last step reported."""
    item = get_registry().get("algorithm", algorithm).item()
    state, info = item.init(problem, data, np.random.default_rng(seed)), None
    for _ in range(steps):
        state, info = item.step(problem, data, state)
    return item, state, info


def estimate(problem, data, steps, algorithm="gamp", seed=0):
    """Its estimate."""
    item, state, _ = after(problem, data, steps, algorithm, seed)
    return item.estimate(state)
