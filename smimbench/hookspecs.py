"""Hooks through which shipped and third-party items are registered.

A plugin is a module (or package) that implements one or more of these functions with the marker ``hookimpl`` and is
found through an entry point of the group ``smimbench``, or handed over as a file. Each hook receives ``register``; call
it once for every class. Arguments may be added to a hook in the future, never removed, so a plugin that accepts fewer
goes on working.

Examples
--------
>>> from smimbench import hookimpl
>>> @hookimpl
... def smimbench_register_channels(register):
...     register(MyChannel)
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

__all__ = [
    "hookimpl",
    "hookspec",
    "smimbench_register_algorithms",
    "smimbench_register_channels",
    "smimbench_register_inputs",
    "smimbench_register_metrics",
    "smimbench_register_models",
    "smimbench_register_priors",
]

PROJECT = "smimbench"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def smimbench_register_models(register: Callable[[type[object]], None]) -> None:
    """Register models, which map signal and inputs to the latents (see ``smimbench.interfaces.Model``)."""


@hookspec
def smimbench_register_inputs(register: Callable[[type[object]], None]) -> None:
    """Register inputs, the distributions of the tokens (see ``smimbench.interfaces.Inputs``)."""


@hookspec
def smimbench_register_channels(register: Callable[[type[object]], None]) -> None:
    """Register channels, which map the latents to the label (see ``smimbench.interfaces.Channel``)."""


@hookspec
def smimbench_register_priors(register: Callable[[type[object]], None]) -> None:
    """Register priors, the distributions of the signal (see ``smimbench.interfaces.Prior``)."""


@hookspec
def smimbench_register_metrics(register: Callable[[type[object]], None]) -> None:
    """Register metrics, which measure the quality of an estimate (see ``smimbench.interfaces.Metric``)."""


@hookspec
def smimbench_register_algorithms(register: Callable[[type[object]], None]) -> None:
    """Register algorithms, classes or functions that compute an estimate from data (see ``smimbench.interfaces.Algorithm``).

    A function ``fit(data, *, parameter=value)`` becomes an algorithm of its name; see ``smimbench.registry.items``.
    """
