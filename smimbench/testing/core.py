"""Published checks: their time limit and their outcomes."""

from __future__ import annotations

import signal
import threading
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import error_line
from smimbench.interfaces import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FALSE_ALARM = 1e-4
"""Upper bound of the probability that a correct item fails one statistical check with another seed."""

NOT_RUN = "not run, because"
"""How the message begins of a check that needs another one."""

TIME_LIMIT = 120.0
"""Seconds that a check may take, where signals can end it; doubled, an item that never returns is noticed that much later."""


class CheckFailed(AssertionError):
    """An item does not do what its contract says."""


class CheckSkipped(Exception):
    """A check does not apply, or cannot be made here; the message says why."""


class CheckError(LookupError):
    """What was asked to be checked is not an item, or cannot be made; the message says what would be right."""


class _TimeIsUp(KeyboardInterrupt):
    """Code that catches everything lets this one through."""


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
    required : bool
        Whether checks after it would only stumble over the same mistake: they are skipped if it fails.
    """

    id: str
    kind: str
    meaning: str
    false_alarm: float
    function: Callable[[Any], None] = field(repr=False, compare=False)
    required: bool = False

    def __call__(self, context: Any) -> None:
        """Run it.

        Raises
        ------
        CheckFailed
            With what was found.
        CheckSkipped
            With the reason.
        """
        if context.broken and self.id not in context.broken:
            raise CheckSkipped(f"{NOT_RUN} {context.broken[0]} failed")
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"), _time_limit(TIME_LIMIT):
                warnings.simplefilter("ignore")
                self.function(context)
        except CheckSkipped:
            raise
        except (Exception, SystemExit, _TimeIsUp) as error:  # the item's own: it may raise anything
            if self.required:
                context.broken.append(self.id)
            if isinstance(error, CheckFailed):
                raise
            if isinstance(error, _TimeIsUp):
                raise CheckFailed(f"took longer than {TIME_LIMIT:g} s") from None
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise CheckFailed(f"raised {error_line(error)} ({where.name}, {where.filename}:{where.lineno})") from error


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise after so many seconds, and every second after that; only in the main thread, where there are signals."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise _TimeIsUp

    begin, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # of whoever watches us
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 1e-3), interval)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check of one item.

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
    """Run a check and return its outcome."""
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
