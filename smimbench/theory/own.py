"""Predictions of an algorithm by its own method ``theory``, under the conditions of its runs, and checked before use."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import AlgorithmPrediction
from smimbench.registry.adapters import refusal

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions
    from smimbench.problem.problem import Problem

__all__ = ["BRINGS_NONE", "own_document", "own_theory"]

BRINGS_NONE = "it brings no theory of its own"


def own_theory(algorithm: Any, problem: Problem, alpha: float, conditions: Conditions) -> AlgorithmPrediction | str:
    """The algorithm's prediction, or a sentence that says why there is none.

    Parameters
    ----------
    alpha : float
        Sample ratio that runs have used, all fresh samples counted.
    conditions : Conditions
        Handed to a ``theory`` that names a third argument.

    Raises
    ------
    ValueError
        If what it returns is no prediction: a row would show numbers that mean nothing.
    """
    if reason := refusal(algorithm, problem):
        return reason
    ask = algorithm.theory
    if ask is None:
        return BRINGS_NONE
    wants_all = len(inspect.signature(ask).parameters) > 2
    found: AlgorithmPrediction | str | None = ask(problem, alpha, conditions) if wants_all else ask(problem, alpha)
    if found is None:
        return BRINGS_NONE
    if not isinstance(found, str) and (complaint := _complaint(found, problem.components)):
        raise ValueError(f"theory of algorithm {algorithm.name!r} {complaint}")
    return found


def own_document(algorithm: Any, problem: Problem, alpha: float, conditions: Conditions) -> dict[str, Any] | str:
    """The same as a point of the JSON of ``smimbench theory``."""
    found = own_theory(algorithm, problem, alpha, conditions)
    return found if isinstance(found, str) else found.document()


def _complaint(found: Any, P: int) -> str | None:
    """What is wrong with a prediction, as a sentence; None if nothing is."""
    if not isinstance(found, AlgorithmPrediction):
        kind = type(found).__name__
        return f"must return a smimbench.interfaces.AlgorithmPrediction or a reason in words, got {kind}"
    if np.shape(found.overlap) != (P, P):
        return f"must give an overlap of shape ({P}, {P}), got {np.shape(found.overlap)}"
    for name in ("mse", "mse_error"):
        values = np.atleast_1d(getattr(found, name))
        if values.shape != (P,) or not (np.isfinite(values) & (values >= 0)).all():
            return f"must give {P} finite numbers >= 0 as {name}, got {getattr(found, name)}"
    if isinstance(found.trajectory, dict):
        lengths = {name: len(values) for name, values in found.trajectory.items()}
        if len(set(lengths.values())) > 1:
            return f"has a trajectory of lists of different lengths: {lengths}"
    return None
