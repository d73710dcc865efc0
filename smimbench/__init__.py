"""smimbench: how far is a learning algorithm from the best that is possible?

Examples
--------
>>> import smimbench
>>> suite = smimbench.load_suite("quickstart")
>>> smimbench.theory(suite).plot()  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The first import of a folder binds its name here. So the two folders come first, then the verbs of the same names.
import smimbench.run
import smimbench.theory  # noqa: F401
from smimbench.api import extrapolate, load, plot, run, show, theory, tune

if TYPE_CHECKING:
    from smimbench.hookspecs import hookimpl
    from smimbench.interfaces import (
        Capabilities,
        Data,
        Denoised,
        Info,
        Overlap,
        ParameterError,
        Posterior,
        Start,
        Uncertain,
    )
    from smimbench.problem import Problem
    from smimbench.suite.reader import load_suite

# Imported when first used, so that `smimbench --help` and a plugin's own import stay fast.
_HOME = {
    "hookimpl": "hookspecs",
    "Problem": "problem",
    "load_suite": "suite.reader",
    **dict.fromkeys(
        (
            "Capabilities",
            "Data",
            "Denoised",
            "Info",
            "Overlap",
            "ParameterError",
            "Posterior",
            "Start",
            "Uncertain",
        ),
        "interfaces",
    ),
}

__all__ = [
    "Capabilities",
    "Data",
    "Denoised",
    "Info",
    "Overlap",
    "ParameterError",
    "Posterior",
    "Problem",
    "Start",
    "Uncertain",
    "extrapolate",
    "hookimpl",
    "load",
    "load_suite",
    "plot",
    "run",
    "show",
    "theory",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("smimbench")
    if name in _HOME:
        value = getattr(importlib.import_module(f"smimbench.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'smimbench' has no attribute {name!r}")
