"""The JSON of ``smimbench theory``: predictions and thresholds of every problem of a suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.theory.cache import TheoryCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.suite.cells import Suite

__all__ = ["theory_document"]


def theory_document(
    suite: Suite,
    alphas: Sequence[float] | None = None,
    cache: TheoryCache | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> list[dict[str, Any]]:
    """One object per problem.

    Parameters
    ----------
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    cache : TheoryCache or None
        Where answers are looked up and kept; default: nowhere but in memory.
    on_stage : callable
        Called with what is solved next, in words.
    """
    cache = cache or TheoryCache()
    documents = []
    for plan in suite.chosen_plans:
        wanted = alphas if alphas is not None else plan.alphas
        on_stage(f"{plan.label}: {len(wanted)} sample ratios")
        branches = cache.points(plan.problem, wanted)
        on_stage(f"{plan.label}: thresholds")
        found = cache.thresholds(plan.problem)
        document: dict[str, Any] = {
            "problem": {"label": plan.label, **plan.problem.spec},
            "points": [point for points in branches for point in points],
            "thresholds": {k: v for k, v in found.items() if k != "hard_phase"},
        }
        if found.get("hard_phase"):
            document["hard_phase"] = found["hard_phase"]
        documents.append(document)
    return documents
