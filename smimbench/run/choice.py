"""Choice among several settings of an algorithm by the errors of their runs."""

from __future__ import annotations

import math

from smimbench.files import JsonObject
from smimbench.run.loop import Status

LOST = (Status.DIVERGED, Status.FAILED)
"""How runs end that have no estimate."""


def log_error(record: JsonObject, target: float) -> float:
    """Logarithm of the error of a run, summed over components; infinity without an estimate.

    Errors below ``target`` count as equal to it: otherwise a sample ratio at which the signal is recovered would outweigh all.
    """
    values = record["metrics"].get("mse") or [None]
    if record["status"] in LOST or not all(
        value is not None and math.isfinite(value) for value in values
    ):
        return math.inf
    return math.log(max(math.fsum(values), target))
