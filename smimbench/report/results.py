"""All that was run of a suite, with its theory: what tables, figures, the page and the Python functions are made of. Apart from
it stands what another version of an item made.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json
from smimbench.problem.problem import CODE
from smimbench.report.extrapolation import extrapolated_rows
from smimbench.report.labels import grouped, letter
from smimbench.report.rows import Rows, error_rows, find_optima, paired, scored_rows
from smimbench.report.statistics import mean_and_error
from smimbench.report.verdict import summary, verdicts
from smimbench.run.store import settings_folder, theory_folder
from smimbench.run.theory_guard import GuardedTheory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.report.optimum import Optimum
    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite


class Results:
    """Results of a suite on some backends (default: all that there are).

    Parameters
    ----------
    cache : TheoryCache or None
        Theory, solved as far as the cache solves; default: what is stored.
    """

    def __init__(
        self, suite: Suite, store: Store, backends: Sequence[str] = (), cache: TheoryCache | None = None
    ) -> None:
        self.suite, self.store, self.records = suite, store, store.load(compact=True)
        if cache is None:
            cache = GuardedTheory(theory_folder(store))
            cache.solves = False
        self.cache = cache
        known = sorted({record["cell"]["backend"] for record in self.records.values()})
        self.folder = settings_folder(suite, store)
        self.cells = [cell for backend in backends or known or ["numpy"] for cell in suite.cells(backend)]
        self.pairs = paired(self.cells, self.records)
        self.counts = dict(Counter(record["status"] for _, record in self.pairs))

    @cached_property
    def rows(self) -> list[JsonObject]:
        """Rows of the error table."""
        return Rows([*error_rows(self.pairs, self.suite, self.store, self.cache), *self.scored])

    @cached_property
    def scored(self) -> list[JsonObject]:
        """Rows of estimates from elsewhere."""
        return scored_rows(self.suite, self.store, self.cache, self.optima)

    @cached_property
    def optima(self) -> dict[tuple[str, float, int], Optimum]:
        """The Bayes-optimal error at finite size, where it is known."""
        return find_optima(self.pairs, self.suite, self.cache)

    @cached_property
    def extrapolated(self) -> list[JsonObject]:
        """Values at infinite dimension, where there are three dimensions or more."""
        return extrapolated_rows(self.rows, self.suite.run.target)

    @cached_property
    def others(self) -> list[JsonObject]:
        """Rows of what other versions of an item made."""
        return other_version_rows(self.suite, self.cells, self.records)

    def problem(self, label: str) -> Problem:
        """The problem of a label."""
        return next(plan.problem for plan in self.suite.plans if plan.label == label)

    def missing(self, backends: Iterable[str]) -> int:
        """Cells on these backends that have no record."""
        return sum(len(self.suite.cells(backend)) for backend in backends) - len(self.pairs)

    def document(self) -> JsonObject:
        """What ``show --json`` prints."""
        return {
            "suite": self.suite.name,
            "title": self.suite.title,
            "description": self.suite.description,
            "verdicts": verdicts(self.rows),
            "summary": summary(self.rows),
            "rows": self.rows,
            "extrapolated": self.extrapolated,
            "status_counts": self.counts,
            "missing": len(self.cells) - len(self.pairs),
            "other_versions": self.others,
            **({"left_out": list(self.suite.left_out)} if self.suite.left_out else {}),
        }


# -- other versions -----------------------------------------------------------------------------------------------------


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
