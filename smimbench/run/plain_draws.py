"""Checks of every number of a theory by plain draws of teacher and posterior: ``smimbench theory --verify``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from smimbench.files import JsonObject
from smimbench.interfaces import Conditions
from smimbench.problem.assumed import Assuming
from smimbench.run.theory_process import Progress
from smimbench.run.theory_solver import OnProgress
from smimbench.suite.cells import ProblemPlan, Suite, build_algorithm
from smimbench.theory.limit import own_theory
from smimbench.theory.types import TheoryPoint
from smimbench.theory.verification import LARGEST_Z, RESOLVE, verify_point


def add_verification(
    suite: Suite,
    documents: Sequence[JsonObject],
    resolve: float = RESOLVE,
    on_progress: OnProgress = lambda problem, progress: None,
) -> None:
    """Draw at every point of the documents of ``theory_document``; each gets a list ``verification``.

    Its entries name ``alpha``, ``branch``, ``quantity``, ``component`` (from 1, or None), ``printed`` with its ``error``,
    ``drawn`` with its ``standard_error``, ``z`` and ``excludes``, the relative deviation that would have been seen (None where
    too few draws carry the mean), and ``draws``, as many as show an error that is off by ``resolve``, unless ``stopped``.
    """
    for plan, document in zip(suite.chosen_plans, documents):
        points = document["points"]
        document["verification"] = []
        for k, point in enumerate(points):
            draws_done = 0
            on_progress(plan.problem, Progress(k, len(points)))

            def on_draws(
                count: int,
                plan: ProblemPlan = plan,
                k: int = k,
                total: int = len(points),
            ) -> None:
                nonlocal draws_done
                draws_done += count
                on_progress(
                    plan.problem,
                    Progress(k, total, note=f"{draws_done} draws at this point"),
                )

            place = {"alpha": point["alpha"], "branch": point["branch"]}
            checks = verify_point(
                plan.problem,
                TheoryPoint.read(point),
                resolve,
                clock=time.perf_counter,
                on_draws=on_draws,
            )
            document["verification"] += [
                {**place, **check.document()} for check in checks
            ]
            on_progress(plan.problem, Progress(k + 1, len(points)))
        document["verification"] += _assumptions_by_draws(suite, plan, document)


def _assumptions_by_draws(
    suite: Suite, plan: ProblemPlan, document: JsonObject
) -> list[JsonObject]:
    """Checks of algorithms with wrong assumptions; ``branch`` is the label of the algorithm."""
    specs, rows = {plan.label: plan.spec for plan in suite.algorithms}, []
    for entry in document.get("algorithms", ()):
        algorithm = build_algorithm(specs[entry["algorithm"]], plan.problem)
        if "point" not in entry or not (
            isinstance(algorithm, Assuming)
            and algorithm.assumed(plan.problem).is_assumed
        ):
            continue
        found = own_theory(
            algorithm, plan.problem, entry["alpha"], Conditions(start=suite.run.start)
        )
        if not isinstance(found, str) and found.draws is not None:
            place = {"alpha": entry["alpha"], "branch": entry["algorithm"]}
            rows += [{**place, **check.document()} for check in found.draws()]
    return rows


def holds(documents: Sequence[JsonObject]) -> bool:
    """Whether every printed number is within ``LARGEST_Z`` standard errors of its Monte Carlo value."""
    return all(
        abs(row["z"] or 0.0) <= LARGEST_Z
        for document in documents
        for row in document["verification"]
    )
