"""The hooks through which all items, shipped and third-party, are registered.

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
    """Register models: how signal and inputs form the latents (see ``smimbench.interfaces.Model``)."""


@hookspec
def smimbench_register_inputs(register: Callable[[type[object]], None]) -> None:
    """Register inputs: laws of the tokens (see ``smimbench.interfaces.Inputs``)."""


@hookspec
def smimbench_register_channels(register: Callable[[type[object]], None]) -> None:
    """Register channels: how the latents determine the label (see ``smimbench.interfaces.Channel``)."""


@hookspec
def smimbench_register_priors(register: Callable[[type[object]], None]) -> None:
    """Register priors: distributions of the signal (see ``smimbench.interfaces.Prior``)."""


@hookspec
def smimbench_register_metrics(register: Callable[[type[object]], None]) -> None:
    """Register metrics: numbers that measure the quality of an estimate (see ``smimbench.interfaces.Metric``)."""


@hookspec
def smimbench_register_algorithms(register: Callable[[type[object]], None]) -> None:
    """Register algorithms: anything from data to an estimate (see ``smimbench.interfaces.Algorithm``), a class or a function.

    A function ``fit(data, *, parameter=value)`` becomes an algorithm of its name; see ``smimbench.registry.adapters``.
    """
