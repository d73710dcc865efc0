"""What a notebook shows of rows, and a folder of results loaded as tidy tables."""

from __future__ import annotations

import html
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smimbench.report.labels import letter_of
from smimbench.report.tables import marked_z, number, seconds
from smimbench.report.verdict import verdict_line, verdicts
from smimbench.run.external import scores_of
from smimbench.run.settings import settings_under, why_none
from smimbench.suite.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Loaded", "load_folder", "rows_html", "table_html"]


_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("problem", lambda r: r["problem"]),
    ("algorithm", lambda r: r["algorithm"]),
    ("alpha", lambda r: f"{r['alpha']:.4g}"),
    ("dimension", lambda r: str(r["dimension"])),
    ("metric", lambda r: r["metric"] + (f" {r['component']}" if r["component"] else "")),
    ("n", lambda r: str(r["n"])),
    ("mean", lambda r: number(r["mean"])),
    ("s.e.m.", lambda r: number(r["sem"])),
    ("predicted", lambda r: number(r["own_theory"])),
    ("z", lambda r: marked_z(r["own_z"], r["n"])),
    ("optimal", lambda r: number(r["bayes"])),
    ("error / optimal", lambda r: number(r["ratio_to_bayes"], 2)),
    ("per run", lambda r: seconds(r["seconds"])),
    ("status", lambda r: ", ".join(f"{count} {name}" for name, count in r["status_counts"].items())),
)


def rows_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts and the first rows as HTML; all text of others as it is written."""
    lines = "".join(f"<li>{html.escape(verdict_line(one))}</li>" for one in verdicts([dict(row) for row in rows]))
    names = [letter_of(rows) if name == "dimension" else name for name, _ in _COLUMNS]
    table = table_html(names, [[cell(row) for _, cell in _COLUMNS] for row in rows[:40]])
    return f"<ul>{lines}</ul>{table}<p>{min(40, len(rows))} of {len(rows)} rows</p>"


def table_html(names: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A plain table; every cell as text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


AXES = ("iteration", "seconds", "samples", "damping")


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
        table = table_html(names, [[row[name] for name in names] for row in rows[:12]])
        return f"{table}<p>{min(12, len(rows))} of {len(rows)} rows</p>"


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
