"""A finished table as a JSON document, also stored next to ``run.json``, which can be shown without the plugins that made it."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import Field

from smimbench.files import JsonObject
from smimbench.report.statistics import EPSILONS
from smimbench.run.record import Number, Open, check_model

Text = Annotated[str, Field(max_length=100_000)]
Component = Annotated[int, Field(ge=1)] | None
Many: Any = list
Named: Any = dict


def _of_fields(*kinds: tuple[Any, str], **more: Any) -> Any:
    """A model with these fields, those of one type named together; ``more`` with their type and default."""
    fields: dict[str, Any] = {name: (kind, ...) for kind, names in kinds for name in names.split()}
    return pydantic.create_model("Row", __base__=Open, **(fields | more))


Row = _of_fields(
    (Text, "problem algorithm backend dimension_letter metric component_word optimum_source"),
    (Text | None, "no_theory branch theory_method ceiling"),
    (list[Text], "blank machines reasons warnings"),
    (Component, "component"),
    (Annotated[int, Field(ge=1)], "dimension"),
    (Annotated[int, Field(ge=0)], "n restarts"),
    (int | None, "peak_memory"),
    (float, "alpha nominal_alpha target"),
    (Number, "mean sem theory theory_error difference z own_theory own_theory_error own_z own_coefficient bayes bayes_error"),
    (Number, "optimum optimum_error ratio_to_bayes seconds cpu_seconds iterations first_iteration per_iteration"),
    (Number, "ceiling_fraction device_seconds"),
    (bool, "trusted"),
    (dict[str, float], "values"),
    (dict[str, int], "status_counts"),
    (_of_fields((dict[str, Any], "problem algorithm")), "identity"),
    (_of_fields((int, "runs"), (float, "change lowest")) | None, "still_moving"),
    (_of_fields((Number, "target fraction iterations seconds samples epochs")) | None, "half_overlap"),
    (_of_fields((_of_fields((Number, "seconds iterations fraction")), " ".join(map("{:g}".format, EPSILONS)))), "time_to_theory"),
    (_of_fields((Number, "success"), (Many[_of_fields((list[int], "layers"), (int, "runs"))], "sequences"),
                (_of_fields((Text, "axis"), (Number, "mean sem"), (int, "runs")) | None, "factor")) | None, "learning_order"),
    (Named[str, Many[_of_fields((Number, "mean sem theory"), (int, "runs found"))]], "findings"),
    settings=(Text, ""),
    teachers=(dict[str, list[float]], {}),
    also_predicted=(Many[_of_fields((Text, "metric"), (Component, "component"), (dict[str, float], "values"),
                                    (Number, "at coefficient prediction error"))], []),
)  # fmt: skip
"""A row of the error table; see ``smimbench.report.rows.error_rows``."""

DOCUMENT = _of_fields(
    (Text, "suite title description"),
    (dict[str, int], "status_counts"),
    (int, "missing"),
    (Many[_of_fields((Text, "item"), (int, "then now cells"))], "other_versions"),
    (Many[Row], "rows"),
)
"""Stored part of what ``show --json`` prints; what follows from the rows is recomputed."""

FOLLOWS = ("verdicts", "summary", "extrapolated")
"""Parts of a document that follow from its rows."""


def with_summaries(stored: JsonObject) -> JsonObject:
    """What ``show --json`` prints, from its stored part.

    Raises
    ------
    ValueError
        If that has another structure.
    """
    from smimbench.report.extrapolation import extrapolated_rows
    from smimbench.report.verdict import summary, verdicts

    check_model(DOCUMENT, stored, "a table of smimbench")
    rows = stored["rows"]
    target = max((row["target"] for row in rows), default=0.0)
    return {**stored, **dict(zip(FOLLOWS, (verdicts(rows), summary(rows), extrapolated_rows(rows, target))))}
