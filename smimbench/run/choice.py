"""Choice among several settings of an algorithm by the errors of their runs."""

from __future__ import annotations

import math

from smimbench.run.loop import Status
from smimbench.run.record import Record

LOST = (Status.DIVERGED, Status.FAILED)
"""How runs end that have no estimate."""


def log_error(record: Record, target: float) -> float:
    """Logarithm of the error of a run, summed over components; infinity without an estimate.

    Errors below ``target`` count as equal to it: otherwise a sample ratio at which the signal is recovered would outweigh all.
    """
    errors = [math.nan if e is None else e for e in record.metrics.get("mse", ())]
    if record.status in LOST or not errors or not all(map(math.isfinite, errors)):
        return math.inf
    return math.log(max(math.fsum(errors), target))
