"""What a published check is, and what becomes of it."""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

FALSE_ALARM = 1e-4
"""Promised probability that a right item fails one statistical check with a seed of one's own."""


class CheckFailed(AssertionError):
    """An item does not do what its contract says."""


class CheckSkipped(Exception):
    """A check does not apply, or cannot be made here; the message says why."""


class CheckError(LookupError):
    """What was asked to be checked is not an item, or cannot be made; the message says what would be right."""


@dataclass(frozen=True)
class Check:
    """One named, published check.

    Attributes
    ----------
    id : str
        Its name, for ever.
    kind : str
        ``"model"``, ``"channel"``, ``"prior"``, ``"metric"`` or ``"algorithm"``.
    meaning : str
        What a failure means, in a sentence.
    false_alarm : float
        Upper bound of the probability that a right item fails with a seed of your own; 0 where nothing is left to chance.
    """

    id: str
    kind: str
    meaning: str
    false_alarm: float
    function: Callable[[Any], None] = field(repr=False, compare=False)

    def __call__(self, context: Any) -> None:
        """Run it.

        Raises
        ------
        CheckFailed
            With what was found.
        CheckSkipped
            With the reason.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                self.function(context)
            except (CheckFailed, CheckSkipped):
                raise
            except (Exception, SystemExit) as error:  # the item's own: it may raise anything
                where = traceback.extract_tb(error.__traceback__)[-1]
                line = " ".join(str(error).split()) or "no message"
                raise CheckFailed(
                    f"raised {type(error).__name__}: {line} ({where.name}, {where.filename}:{where.lineno})"
                ) from error


@dataclass(frozen=True)
class Outcome:
    """What became of one check of one item.

    ``status`` is ``"passed"``, ``"failed"`` or ``"skipped"``; ``message`` says what was found, or why it was skipped, and is
    empty if passed. ``meaning`` and ``false_alarm`` are those of the check.
    """

    item: str
    check: str
    status: str
    message: str
    meaning: str
    false_alarm: float
    seconds: float


def run_check(check: Check, context: Any) -> Outcome:
    """Apply a check and say what became of it."""
    begin = time.perf_counter()
    status, message = "passed", ""
    try:
        check(context)
    except CheckFailed as error:
        status, message = "failed", str(error)
    except CheckSkipped as error:
        status, message = "skipped", str(error)
    seconds = time.perf_counter() - begin
    return Outcome(context.label, check.id, status, message, check.meaning, check.false_alarm, seconds)


def capabilities_of(item: Any) -> Capabilities:
    """Its capabilities, or what is assumed where it states none."""
    found: Capabilities = getattr(item, "capabilities", Capabilities())
    return found
