"""The JSON and the tables of ``smimbench theory --verify``: printed points of theory beside plain draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smimbench.report.tables import make_table, number
from smimbench.report.theory_document import Stage
from smimbench.run.theory_cache import Progress
from smimbench.theory.verification import DRAWS, verify_point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from smimbench.suite.cells import Suite

__all__ = ["LARGEST_Z", "add_verification", "holds", "verification_tables"]

LARGEST_Z = 4.0
"""Distance in standard errors that chance is allowed; doubled, errors twice as large pass."""


def add_verification(
    suite: Suite,
    documents: Sequence[dict[str, Any]],
    draws: int = DRAWS,
    on_stage: Callable[[Stage], None] = lambda stage: None,
) -> None:
    """Draw at every point of the documents of ``theory_document``; each gets a list ``verification``.

    Its entries name ``alpha``, ``branch``, ``quantity``, ``component`` (from 1, or None), ``printed`` with its ``error``,
    ``drawn`` with its ``standard_error``, and ``z``, which is None where too few draws carry the mean. ``on_stage`` is called
    with how far it is.
    """
    for plan, document in zip(suite.chosen_plans, documents):
        points = document["points"]
        document["verification"] = []
        for k, point in enumerate(points):
            stage, drawn = Stage(plan.label, "plain draws", Progress(k, len(points))), [0]
            on_stage(stage)

            def count(more: int, stage: Stage = stage, drawn: list[int] = drawn) -> None:
                drawn[0] += more
                on_stage(stage._replace(note=f"{drawn[0]} at this point"))

            place = {"alpha": point["alpha"], "branch": point["branch"]}
            checks = verify_point(plan.problem, point, draws, count)
            document["verification"] += [{**place, **check.document()} for check in checks]
            on_stage(stage._replace(progress=Progress(k + 1, len(points))))


def holds(documents: Sequence[dict[str, Any]]) -> bool:
    """Whether no printed number is more than ``LARGEST_Z`` standard errors from what was drawn."""
    return all(abs(row["z"] or 0.0) <= LARGEST_Z for document in documents for row in document["verification"])


def verification_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of numbers per problem, and a line on how their z are distributed."""
    shown: list[RenderableType] = []
    for document in documents:
        rows = document["verification"]
        if not rows:
            continue
        columns = [
            ("alpha", "r", lambda row: f"{row['alpha']:.5g}"),
            ("quantity", "l", _quantity),
            ("printed", "r", lambda row: ("<= " if row["bound"] else "") + number(row["printed"], 5)),
            ("error", "r", lambda row: _error(row["error"])),
            ("drawn", "r", lambda row: number(row["drawn"], 5)),
            ("error", "r", lambda row: _error(row["standard_error"])),
            ("z", "r", _z),
        ]
        # Bounds that hold and errors that are 0 in both say nothing of the spread.
        z = [row["z"] for row in rows if row["z"]] or [0.0]
        worst = max(rows, key=lambda row: abs(row["z"] or 0.0))
        summary = (
            f"{len(rows)} numbers against plain draws: rms z {math.sqrt(sum(v * v for v in z) / len(z)):.2f}, "
            f"largest {worst['z'] or 0.0:+.2f} ({_quantity(worst)} at alpha = {worst['alpha']:.5g})"
        )
        if few := sum(row["z"] is None for row in rows):
            summary += f"; {few} not decided, because too few draws meet a jump of the labels: give more --draws"
        if any(row["bound"] for row in rows):
            summary += (
                "; unlearned, perfect recovery: the rate at which a small overlap, or a small error, grows, at most 1"
            )
        shown.append(make_table(document["problem"]["label"], columns, rows, summary))
    return shown


def _z(row: dict[str, Any]) -> str:
    if row["z"] is None:
        return "few"
    if row["bound"] and not row["z"]:
        return "holds"
    return f"{row['z']:+.2f}" + (" !" if abs(row["z"]) > LARGEST_Z else "")


def _quantity(row: dict[str, Any]) -> str:
    component = "" if row["component"] is None else f" {row['component']}"
    branch = "" if row["branch"] == "unique" else f", {row['branch']}"
    return f"{row['quantity']}{component}{branch}"


def _error(value: float) -> str:
    return f"{value:.0e}" if value else "0"
