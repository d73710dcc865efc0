"""A row of the error table as a flat JSON object: which key holds which field of its types."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

RowDocument = dict[str, Any]
"""A row as a flat JSON object, as ``show --json`` has it."""

_FLAT = """
    place.problem place.algorithm place.backend place.alpha place.nominal_alpha place.dimension place.settings
    estimate.values metric component
    prediction.value=own_theory prediction.error=own_theory_error prediction.coefficient=own_coefficient
    prediction.reason=no_theory
    optimum.limit=bayes optimum.limit_error=bayes_error optimum.value=optimum optimum.error=optimum_error
    optimum.source=optimum_source
    runs.blank prediction.branch prediction.method=theory_method
    cost.seconds cost.cpu_seconds cost.iterations cost.first_iteration cost.per_iteration cost.peak_memory
    cost.ceiling_fraction cost.ceiling cost.device_seconds cost.trusted cost.machines cost.near=time_to_theory
    target runs.still_moving runs.learning_order runs.findings runs.restarts runs.status_counts runs.reasons runs.warnings
    identity component_word dimension_letter runs.half_overlap estimate.n estimate.mean estimate.sem
    theory.value=theory theory.error=theory_error theory.difference theory.z prediction.z=own_z
    optimum.ratio=ratio_to_bayes first_order.passes first_order.floor first_order.floor_error
    first_order.is_proven=floor_is_proven first_order.ratio=ratio_to_floor first_order.worth=worth_passes
    first_order.interval=worth_interval first_order.remark=worth_remark first_order.reason=no_worth
    prediction.also_predicted prediction.teachers
"""
"""Path of each JSON key in a row, in the order of the JSON; ``=KEY`` follows where the key differs from the field's name."""

_OPTIONAL = ("also_predicted", "teachers")

COMPUTED = ("ratio_to_limit", "ratio_to_limit_error", "z_at_size")
"""JSON keys that are computed from the others."""


def _paths() -> dict[str, str]:
    """Parse ``_FLAT`` into the path in a row for each JSON key."""
    paths = {}
    for path_and_key in _FLAT.split():
        path, _, key = path_and_key.partition("=")
        paths[key or path.rpartition(".")[2]] = path
    return paths


PATHS = _paths()


def flat_document(row: object) -> RowDocument:
    """Return a row as a flat JSON object."""
    read = operator.attrgetter(*PATHS.values())
    flat = dict(zip(PATHS, map(_as_dicts_and_lists, read(row))))
    flat |= {key: getattr(row, key) for key in COMPUTED}
    for key in _OPTIONAL:
        if flat[key] is None:
            del flat[key]
    return flat


def _as_dicts_and_lists(value: object) -> object:
    """Copy a value into dicts and lists, three times faster than ``dataclasses.asdict``, which copies every number."""
    if dataclasses.is_dataclass(value):
        field_names = (field.name for field in dataclasses.fields(value))
        return {
            field_name: _as_dicts_and_lists(getattr(value, field_name))
            for field_name in field_names
        }
    if isinstance(value, dict):
        return {key: _as_dicts_and_lists(inner) for key, inner in value.items()}
    return [*map(_as_dicts_and_lists, value)] if isinstance(value, list) else value


def nested_document(document: RowDocument) -> dict[str, Any]:
    """Return a flat JSON object with its fields nested as in the types of a row; keys that it lacks are absent."""
    nested: dict[str, Any] = {}
    for key, path in PATHS.items():
        group_path, _, field = path.rpartition(".")
        if key in document:
            fields = nested.setdefault(group_path, {}) if group_path else nested
            fields[field] = document[key]
    return nested
