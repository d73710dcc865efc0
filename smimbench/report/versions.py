"""Rows of results that another version of an item made: shown as such, never among those of the version at hand."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json
from smimbench.problem.problem import CODE
from smimbench.report.labels import grouped, letter
from smimbench.report.statistics import mean_and_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    here = [(cell, json.loads(canonical_json(cell.identity()))) for cell in cells]
    places = grouped(here, lambda one: _versionless_place(one[1]))
    groups: dict[tuple[Any, ...], list[float]] = {}
    for record in others:
        same = places.get(_versionless_place(record["cell"]), [])
        matches = ((cell, _changed_versions(identity, record["cell"])) for cell, identity in same)
        for cell, versions in [match for match in matches if match[1]][:1]:
            where = (cell.problem_label, cell.algorithm_label, cell.backend, cell.alpha, cell.dimension)
            for metric, values in (record.get("metrics") or {}).items():
                for k, value in enumerate(values):
                    component = k + 1 if len(values) > 1 else None
                    group = groups.setdefault((*where, metric, component, tuple(sorted(versions.items()))), [])
                    if value is not None:  # as of a ratio where nothing was learned
                        group.append(float(value))
    names = ("problem", "algorithm", "backend", "alpha", "dimension", "metric", "component")
    letters = {plan.label: letter(plan.problem.model) for plan in suite.plans}
    rows = []
    for key, values in sorted(groups.items(), key=lambda item: tuple(map(str, item[0]))):
        finite = np.array([v for v in values if math.isfinite(v)])
        changed = {name: list(pair) for name, pair in key[-1]}
        about = {**dict(zip(names, key)), "dimension_letter": letters[key[0]], "versions": changed}
        rows.append({**about, "n": len(finite), **mean_and_error(finite)})
    return rows


def _items(cell: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {**cell["problem"], "algorithm": cell["algorithm"]}


PARTS = ("model", "channel", "prior", "algorithm")


def _versionless_place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What has to be equal whatever the versions."""
    items = _items(cell)
    named = tuple((items[part]["name"], items[part].get("distribution")) for part in PARTS)
    return (*named, *(cell.get(key) for key in ("alpha", "dimension", "replicate", "seed", "backend", "dtype")))


def _changed_versions(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Versions that differ, if they and what only one version knows are all that differs; empty otherwise."""
    versions: dict[str, tuple[int, int]] = {}
    for part in PARTS:
        one, other = _items(now)[part], _items(then)[part]
        changed = _differ(one, other, CODE)
        if changed:
            versions[f"{part} {one['name']}"] = (other["version"], one["version"])
        shared = set(one) & set(other) if changed else set(one) | set(other)
        if _differ(one, other, shared.difference(CODE)):
            return {}
    rest = (set(now) | set(then)) - {"problem", "algorithm", "problem_label", "algorithm_label"}
    return {} if _differ(now, then, rest) else versions


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> bool:
    return any(one.get(key) != other.get(key) for key in keys)
