"""What must not change when the code is only moved: keys, theory, small runs, ids of checks, public names.

``python tests/net/collect.py FILE`` writes it; ``test_net.py`` compares with the file that is committed. Numbers agree to the
last bit on one machine and to rounding on different ones.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import smimbench

THEORY = ("quickstart", "aim-softmax", "aim-hardmax", "aim-hardmax-small-width", "aim-linear", "spectral")
"""Suites whose theory takes seconds."""

EXTENSIVE = """
[problem]
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "%s" }
prior   = { name = "wishart", rho = 0.5 }
[grid]
alpha     = [0.1, 0.3]
dimension = [16]
seeds     = 2
[run]
metrics = ["mse", "overlap", "generalization_error_plugin"]
max_iterations = 40
"""

LOW_RANK = """
[problem]
model   = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "%s" }
prior   = { name = "gaussian" }
[grid]
alpha     = [0.8, 1.6]
dimension = [40]
seeds     = 2
[run]
metrics = ["mse", "overlap"]
max_iterations = 40
"""

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gamp": ("softmax", {}),
    "adam": ("softmax", {"steps": 12}),
    "adamw": ("softmax", {"steps": 12}),
    "sgd": ("softmax", {"steps": 12, "learning_rate": 0.05}),
    "averaged": ("softmax", {"of": {"name": "adam", "steps": 6}, "students": 3}),
    "spectral": ("softmax", {}),
    "ridge": ("linear", {}),
    "nuclear": ("linear", {}),
}

PUBLIC = ("smimbench", "smimbench.interfaces", "smimbench.testing", "smimbench.hookspecs")


def collect() -> dict[str, Any]:
    """Everything, as JSON."""
    return {
        "cells": cell_keys(),
        "theory": {name: smimbench.theory(name) for name in THEORY},
        "runs": small_runs(),
        "checks": check_ids(),
        "names": {name: sorted(importlib.import_module(name).__all__) for name in PUBLIC},
    }


def cell_keys() -> dict[str, list[Any]]:
    """Number of cells of every shipped suite and a digest of their keys in order."""
    from smimbench.suite.reader import shipped_suites

    found = {}
    for name in shipped_suites():
        keys = [cell.key for cell in smimbench.load_suite(name).cells()]
        found[name] = [len(keys), hashlib.sha256("\n".join(keys).encode()).hexdigest()]
    return found


def small_runs() -> dict[str, list[dict[str, Any]]]:
    """Errors and overlaps of every algorithm on small cells of both models."""
    found = {}
    for model, text in (("extensive", EXTENSIVE), ("low-rank", LOW_RANK)):
        for name, (channel, parameters) in ALGORITHMS.items():
            if name == "nuclear" and model == "low-rank":
                continue
            settings = "".join(f"{key} = {_toml(value)}\n" for key, value in parameters.items())
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "net.toml"
                path.write_text(f'{text % channel}[[algorithms]]\nname = "{name}"\n{settings}')
                rows = smimbench.run(path, results=folder)
            kept = ("alpha", "metric", "component", "n", "mean", "sem", "theory", "status_counts", "iterations")
            found[f"{model} {name}"] = [{key: row[key] for key in kept} for row in rows]
    return found


def check_ids() -> list[str]:
    """Ids of all published checks."""
    from smimbench.testing.catalogue import all_checks

    return [check.id for check in all_checks()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(collect(), indent=1) + "\n")
