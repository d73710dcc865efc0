"""A folder of results loaded as tidy tables for Python: one row per run and value, and one per step of a trajectory."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smimbench.report.notebook import table_html
from smimbench.run.external import scores_of
from smimbench.run.settings import settings_under, why_none
from smimbench.suite.errors import SuiteError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Loaded", "load_folder"]

AXES = ("iteration", "seconds", "samples", "damping")
SHOWN = 12
"""Rows that a notebook shows; doubled, they fill the screen."""


@dataclass(frozen=True)
class Loaded:
    """Values and trajectories of runs, as frames of pandas or polars, or as lists of dicts."""

    values: Any
    trajectories: Any

    def _repr_html_(self) -> str:
        frame: Any = self.values
        rows = (
            frame
            if isinstance(frame, list)
            else frame.to_dict("records")
            if hasattr(frame, "iloc")
            else frame.to_dicts()
        )
        names = ("problem", "algorithm", "alpha", "dimension", "replicate", "status", "metric", "value")
        table = table_html(names, [[row[name] for name in names] for row in rows[:SHOWN]])
        return f"{table}<p>{min(SHOWN, len(rows))} of {len(rows)} rows</p>"


def load_folder(folder: Path) -> Loaded:
    """Values and trajectories of all records under a folder; see ``smimbench.load``.

    Raises
    ------
    SuiteError
    """
    found = settings_under(folder)
    if not found:
        raise SuiteError(str(folder), "", why_none(folder))
    values: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    stores = {one.store.folder: (one.suite, one.store) for one in found}.values()
    for suite, store in [*stores, *((suite, scores_of(store)) for suite, store in stores)]:
        for key, record in store.load().items():
            cell, timing = record["cell"], record.get("timing") or {}
            about = {
                "suite": suite, "problem": record["problem"], "algorithm": record["algorithm"], "backend": cell["backend"],
                "alpha": record.get("sample_ratio", cell["alpha"]), "dimension": cell["dimension"], "seed": cell["seed"],
                "replicate": cell["replicate"], "status": record["status"], "reason": record["reason"],
            }  # fmt: skip
            rest = {"seconds": timing.get("seconds"), "iterations": record.get("iterations"), "key": key}
            metrics = (record.get("metrics") or {}).items()
            measured: list[tuple[Any, Any, Any]] = [(m, k, v) for m, own in metrics for k, v in enumerate(own, 1)]
            for metric, component, value in measured or [(None, None, None)]:
                values.append({**about, "metric": metric, "component": component, "value": value, **rest})
            trajectory = store.trajectory(record) or {}
            axes = {name: trajectory[name] for name in AXES if name in trajectory}
            for metric, course in trajectory.items():
                if getattr(course, "ndim", 0) == 2:
                    for k in range(course.shape[1]):
                        steps += [
                            {"key": key, **{name: float(axes[name][i]) if name in axes else None for name in AXES},
                             "metric": metric, "component": k + 1, "value": float(course[i, k])}
                            for i in range(len(course))
                        ]  # fmt: skip
    return Loaded(_frame(values), _frame(steps))


def _frame(rows: list[dict[str, Any]]) -> Any:
    for name in ("pandas", "polars"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).DataFrame(rows)
    return rows
