"""Metrics shipped with smimbench: measures of the quality of an estimate, one per file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smimbench.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

METRICS = (
    ("mse", "MSE"),
    ("overlap", "Overlap"),
    ("generalization", "BayesError"),
    ("generalization", "PluginError"),
    ("generalization", "ConstantError"),
    ("calibration", "Calibration"),
    ("cosine", "Cosine"),
    ("nishimori", "Nishimori"),
)
"""File and class of each, in the order of ``smimbench list metrics``."""


@hookimpl
def smimbench_register_metrics(register: Callable[[type[Any]], None]) -> None:
    """Register the metrics in this folder."""
    for file, name in METRICS:
        register(getattr(import_module(f"smimbench_metrics.{file}"), name))
