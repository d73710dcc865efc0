"""Rows of results that another version of an item made: shown as such, never among those of the version at hand."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json
from smimbench.problem.problem import CODE
from smimbench.report.labels import letter
from smimbench.report.statistics import mean_and_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.suite.cells import Cell, Suite


def other_version_rows(suite: Suite, cells: Sequence[Cell], records: Mapping[str, JsonObject]) -> list[JsonObject]:
    """Means over cells that are in the suite but for the version of an item, or its code under the same version.

    Returns
    -------
    list of dict
        ``problem``, ``algorithm``, ``backend``, ``alpha``, ``dimension``, ``metric``, ``component`` (None or from 1),
        ``dimension_letter``, ``n``, ``mean``, ``sem``, and ``versions``: a dict from the name of an item to
        ``[version then, version now]``.
    """
    own = {cell.key for cell in cells}
    others = [record for stem, record in records.items() if stem.partition(".")[0] not in own]
    if not others:
        return []
    places: dict[tuple[Any, ...], list[tuple[Any, JsonObject]]] = {}
    for cell in cells:
        identity = json.loads(canonical_json(cell.identity()))
        places.setdefault(_versionless_place(identity), []).append((cell, identity))
    groups: dict[tuple[Any, ...], list[float]] = {}
    for record in others:
        for cell, identity in places.get(_versionless_place(record["cell"]), []):
            versions = _changed_versions(identity, record["cell"])
            if versions is None:
                continue
            where = (cell.problem_label, cell.algorithm_label, cell.backend, cell.alpha, cell.dimension)
            for metric, values in (record.get("metrics") or {}).items():
                for k, value in enumerate(values):
                    component = k + 1 if len(values) > 1 else None
                    key = (*where, metric, component, tuple(sorted(versions.items())))
                    group = groups.setdefault(key, [])
                    if value is not None:  # as of a ratio where nothing was learned
                        group.append(float(value))
            break
    names = ("problem", "algorithm", "backend", "alpha", "dimension", "metric", "component")
    letters = {plan.label: letter(plan.problem.model) for plan in suite.plans}
    rows = []
    for key, values in sorted(groups.items(), key=lambda item: tuple(map(str, item[0]))):
        finite = np.array([v for v in values if math.isfinite(v)])
        changed = {name: list(pair) for name, pair in key[-1]}
        rows.append(
            {
                **dict(zip(names, key)),
                "dimension_letter": letters[key[0]],
                "versions": changed,
                "n": len(finite),
                **mean_and_error(finite),
            }
        )
    return rows


def _items(cell: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {**cell["problem"], "algorithm": cell["algorithm"]}


def _versionless_place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What has to be equal whatever the versions."""
    items = _items(cell)
    named = tuple(
        (items[part]["name"], items[part].get("distribution")) for part in ("model", "channel", "prior", "algorithm")
    )
    return (*named, *(cell.get(key) for key in ("alpha", "dimension", "replicate", "seed", "backend", "dtype")))


def _changed_versions(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, tuple[int, int]] | None:
    """Versions that differ, if they and what only one version knows are all that differs; None otherwise."""
    versions: dict[str, tuple[int, int]] = {}
    ours, theirs = _items(now), _items(then)
    for part in ("model", "channel", "prior", "algorithm"):
        one, other = ours[part], theirs[part]
        changed = any(one.get(key) != other.get(key) for key in CODE)
        if changed:
            versions[f"{part} {one['name']}"] = (other["version"], one["version"])
        shared = set(one) & set(other) if changed else set(one) | set(other)
        if any(one.get(key) != other.get(key) for key in shared.difference(CODE)):
            return None
    rest = (set(now) | set(then)) - {"problem", "algorithm", "problem_label", "algorithm_label"}
    if any(now.get(key) != then.get(key) for key in rest):
        return None
    return versions or None
