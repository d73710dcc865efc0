"""State evolution, thresholds and prediction errors: pure mathematics, without clock, printing or files.

Plugins import the names of this page from here, ``from smimbench.theory import limit_point``. The attribute
``smimbench.theory`` is the verb, ``smimbench.theory(suite)``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smimbench.interfaces.problem import prior_moments
    from smimbench.theory.coupled import exponential
    from smimbench.theory.first_order import (
        bayes_optimal_step,
        iterate_until_stationary,
    )
    from smimbench.theory.generalization import measured_error
    from smimbench.theory.information import information_at, offers_rough, overlap_at
    from smimbench.theory.predictions import (
        aligned,
        competing,
        limit_point,
        own_theory,
        point_document,
        scores,
    )
    from smimbench.theory.types import Check, Prediction, compare, per_component

# Public names are imported when first used, because this folder is imported whenever smimbench is.
_HOME = {
    "exponential": "theory.coupled",
    "bayes_optimal_step": "theory.first_order",
    "iterate_until_stationary": "theory.first_order",
    "measured_error": "theory.generalization",
    "prior_moments": "interfaces.problem",
    **dict.fromkeys(
        ("information_at", "offers_rough", "overlap_at"), "theory.information"
    ),
    **dict.fromkeys(
        (
            "aligned",
            "competing",
            "limit_point",
            "own_theory",
            "point_document",
            "scores",
        ),
        "theory.predictions",
    ),
    **dict.fromkeys(
        ("Check", "Prediction", "compare", "per_component"), "theory.types"
    ),
}

__all__ = [
    "Check",
    "Prediction",
    "aligned",
    "bayes_optimal_step",
    "compare",
    "competing",
    "exponential",
    "information_at",
    "iterate_until_stationary",
    "limit_point",
    "measured_error",
    "offers_rough",
    "overlap_at",
    "own_theory",
    "per_component",
    "point_document",
    "prior_moments",
    "scores",
]


def __getattr__(name: str) -> Any:
    """Import a public name of the package when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"smimbench.{_HOME[name]}"), name)
