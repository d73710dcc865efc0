"""Predictions of an algorithm by its own method ``theory``, under the conditions of its runs, and checked before use."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.adapters import refusal

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions
    from smimbench.problem.problem import Problem

__all__ = ["BRINGS_NONE", "own_theory"]

BRINGS_NONE = "it brings no theory of its own"


def own_theory(algorithm: Any, problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any] | str:
    """The algorithm's predicted point, or a sentence that says why there is none.

    Parameters
    ----------
    alpha : float
        Sample ratio that runs have used, all fresh samples counted.
    conditions : Conditions
        Handed to a ``theory`` that names a third argument.

    Raises
    ------
    ValueError
        If what it returns is no point: a row would show numbers that mean nothing.
    """
    if reason := refusal(algorithm, problem):
        return reason
    ask = algorithm.theory
    if ask is None:
        return BRINGS_NONE
    wants_all = len(inspect.signature(ask).parameters) > 2
    found = ask(problem, alpha, conditions) if wants_all else ask(problem, alpha)
    if found is None:
        return BRINGS_NONE
    if isinstance(found, str):
        return found
    complaint = _complaint(found, problem.components)
    if complaint:
        raise ValueError(f"theory of algorithm {algorithm.name!r} {complaint}")
    point: dict[str, Any] = found
    return point


def _complaint(point: Any, P: int) -> str | None:
    """What is wrong with a point, as a sentence; None if nothing is."""
    if not isinstance(point, dict):
        return f"must return a dict or a reason in words, got {type(point).__name__}"
    missing = [name for name in ("mse", "mse_error", "overlap", "method") if name not in point]
    if missing:
        return f"lacks {', '.join(missing)}; smimbench.theory.limit.limit_point makes all of a point"
    if np.shape(point["overlap"]) != (P, P):
        return f"must give an overlap of shape ({P}, {P}), got {np.shape(point['overlap'])}"
    for name in ("mse", "mse_error"):
        values = np.atleast_1d(point[name])
        if values.shape != (P,) or not all(math.isfinite(value) and value >= 0 for value in values):
            return f"must give {P} finite numbers >= 0 as {name}, got {point[name]}"
    lengths = {name: len(values) for name, values in point.get("trajectory", {}).items()}
    if len(set(lengths.values())) > 1:
        return f"has a trajectory of lists of different lengths: {lengths}"
    return None
