"""A row of the error table made by hand, and what tables look like on a screen."""

import io

import numpy as np
from rich.console import Console

from smimbench.report.row import row_of


def row(**more):
    """A row in which these keys of its JSON differ from the usual ones."""
    return row_of(document(**more))


def document(**more):
    """The same as JSON has it."""
    found = {
        "problem": "p", "algorithm": "gamp", "backend": "numpy", "alpha": 0.123456, "dimension": 100, "n": 4,
        "metric": "mse", "component": None, "mean": 0.5, "sem": 0.01, "theory": 0.4, "theory_error": 1e-9,
        "difference": 0.1, "z": 10.0, "bayes": 0.4, "ratio_to_bayes": 1.25, "status_counts": {"ok": 4}, "restarts": 0,
        "settings": "",
        "reasons": [], "warnings": [], "seconds": 1.0, "iterations": 12.0, "first_iteration": 0.01,
        "per_iteration": 0.002, "peak_memory": 2**26, "trusted": True, "machines": ["here"], "cpu_seconds": 1.0,
        "device_seconds": None, "ceiling": None, "ceiling_fraction": None, "branch": None, "theory_method": None,
        "time_to_theory": {e: {"seconds": 0.25, "iterations": 3.0, "fraction": 1.0} for e in ("0.05", "0.2", "0.5")},
    }  # fmt: skip
    found |= {
        "target": 1e-3, "own_theory": None, "own_theory_error": None, "own_z": None, "own_coefficient": None, "no_theory": None,
        "bayes_error": 0.0, "optimum_error": 0.0, "optimum_source": "limit", "still_moving": None, "learning_order": None,
        "half_overlap": None, "findings": {}, "blank": [], "dimension_letter": "D", "component_word": "component", **more,
    }  # fmt: skip
    about = {
        "problem": {"label": found["problem"]},
        "algorithm": {"name": found["algorithm"]},
    }
    usual = {"nominal_alpha": found["alpha"], "optimum": found["bayes"], "identity": about,
             "values": values_of(found["mean"], found["sem"], found["n"])}  # fmt: skip
    return {**usual, **found}


def changed(row, **more):
    """The row with other values of these keys of its JSON."""
    return row_of({**row.document(), **more})


def values_of(mean, sem, n, root=0):
    """Values of n runs with this mean and standard error."""
    if mean is None or not n:
        return {}
    steps = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    scale = 0.0 if n < 2 else (sem or 0.0) * np.sqrt(n) / steps.std(ddof=1)
    return {f"{root}/{k}": float(mean + scale * step) for k, step in enumerate(steps)}


def on_screen(print_to, width=80):
    """What a function prints to a console of that width."""
    stream = io.StringIO()
    print_to(Console(file=stream, width=width))
    return stream.getvalue()


def printed(tables, width=80):
    """Tables as the commands print them."""
    return on_screen(
        lambda console: [console.print(table, crop=False) for table in tables], width
    )
