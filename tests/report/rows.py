"""A row of the error table made by hand, and what tables look like on a screen."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console


def row(**more):
    found = {
        "problem": "p", "algorithm": "gamp", "backend": "numpy", "alpha": 0.123456, "dimension": 100, "n": 4,
        "metric": "mse", "component": None, "mean": 0.5, "sem": 0.01, "theory": 0.4, "theory_error": 1e-9,
        "difference": 0.1, "z": 10.0, "bayes": 0.4, "ratio_to_bayes": 1.25, "status_counts": {"ok": 4}, "restarts": 0,
        "reasons": [], "warnings": [], "seconds": 1.0, "iterations": 12.0, "first_iteration": 0.01,
        "per_iteration": 0.002, "peak_memory": 2**26, "trusted": True, "machines": ["here"],
        "time_to_theory": {"0.05": {"seconds": 0.25, "iterations": 3.0, "fraction": 1.0}},
    }  # fmt: skip
    return {**found, "bayes_error": 0.0, **more}


def values_of(mean, sem, n):
    """Values of n runs with this mean and standard error."""
    if mean is None or not n:
        return {}
    steps = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    scale = 0.0 if n < 2 else (sem or 0.0) * np.sqrt(n) / steps.std(ddof=1)
    return {f"0/{k}": float(mean + scale * step) for k, step in enumerate(steps)}


def on_screen(print_to, width=80) -> str:
    """What a function prints to a console of that width."""
    stream = io.StringIO()
    print_to(Console(file=stream, width=width))
    return stream.getvalue()


def printed(tables, width=80) -> str:
    """Tables as the commands print them."""
    return on_screen(lambda console: [console.print(table, crop=False) for table in tables], width)
