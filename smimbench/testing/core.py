"""Defines and runs published checks of items, with time limits, outcomes, and tests of arrays and sample means."""

from __future__ import annotations

import functools
import math
import random
import signal
import threading
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import namespace, to_host
from smimbench.backend.device import Backend
from smimbench.files import ForeseenError, error_line
from smimbench.interfaces import Array, Capabilities

FALSE_ALARM = 1e-4
"""Upper bound of the probability that a right item fails one check with another seed."""

NOT_RUN = "not run, because"
"""First words of the message of a check that was skipped because a required check failed."""

TIME_LIMIT = 120.0
"""Seconds that a check may take, where signals can end it; doubled, an item that never returns is noticed that much later."""


class CheckFailed(AssertionError):
    """Raised if an item violates its contract."""


class CheckSkipped(unittest.SkipTest):
    """Raised if a check does not apply to an item or cannot be run here; the message says why."""


class CheckError(ForeseenError):
    """Raised if the requested item does not exist or cannot be created; the message says what would be right."""


class _TimeIsUp(KeyboardInterrupt):
    """Raised at the time limit of a check; not an ``Exception``, so that an item cannot catch it by accident."""


@dataclass(frozen=True)
class Check:
    """One published check of items: a ``function`` of the item's context, identified by kind and id. ``meaning`` explains a
    failure, and the checks of an item that fails a ``required`` one are skipped.

    Attributes
    ----------
    id : str
        Its name, for ever.
    kind : str
        ``"model"``, ``"inputs"``, ``"channel"``, ``"prior"``, ``"metric"`` or ``"algorithm"``.
    meaning : str
        What a failure means, in a sentence.
    required : bool
        Whether checks after it would only stumble over the same mistake: they are skipped if it fails.
    """

    id: str
    kind: str
    meaning: str
    function: Callable[[object], None] = field(repr=False, compare=False)
    required: bool = False

    def __call__(self, context: Any) -> None:
        """Run the check on the item in ``context``.

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
            with (
                warnings.catch_warnings(),
                np.errstate(all="ignore"),
                _time_limit(TIME_LIMIT),
            ):
                warnings.simplefilter("ignore")
                self.function(context)
        except CheckSkipped:
            raise
        except (
            Exception,
            SystemExit,
            _TimeIsUp,
        ) as error:  # errors of the item, which may raise anything
            if self.required:
                context.broken.append(self.id)
            if isinstance(error, CheckFailed):
                raise
            if isinstance(error, _TimeIsUp):
                raise CheckFailed(
                    f"the check took longer than {TIME_LIMIT:g} s"
                ) from None
            error_frame = traceback.extract_tb(error.__traceback__)[-1]
            raise CheckFailed(
                f"the item raised {error_line(error)} ({error_frame.name}, {error_frame.filename}:{error_frame.lineno})"
            ) from error


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Context that raises after a number of seconds, and again every second (by signals, in the main thread only)."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "SIGALRM"
    ):
        yield
        return

    def raise_at_limit(signal_number: int, frame: object) -> None:
        """Signal handler that raises ``_TimeIsUp``; ``signal_number`` is the signal and ``frame`` the interrupted one."""
        raise _TimeIsUp

    start_time = time.monotonic()
    outer_handler = signal.signal(signal.SIGALRM, raise_at_limit)
    outer_remaining, outer_interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)
        if outer_remaining:  # restore the timer of an outer caller
            outer_remaining = max(
                outer_remaining - (time.monotonic() - start_time), 1e-3
            )
            signal.setitimer(signal.ITIMER_REAL, outer_remaining, outer_interval)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one check of one item (both by name): its status with a message and the seconds it took; ``meaning``
    explains a failure.

    ``status`` is ``"passed"``, ``"failed"`` or ``"skipped"``; ``message`` says why it failed or was skipped, and is empty if it
    passed.
    """

    item: str
    check: str
    status: str
    message: str
    meaning: str
    seconds: float


def run_check(check: Check, context: Any) -> Outcome:
    """Run a check on the item in ``context`` and return its outcome."""
    start_time = time.perf_counter()
    status, message = "passed", ""
    try:
        check(context)
    except CheckFailed as error:
        status, message = "failed", str(error)
    except CheckSkipped as error:
        status, message = "skipped", str(error)
    seconds = time.perf_counter() - start_time
    return Outcome(context.label, check.id, status, message, check.meaning, seconds)


def capabilities_of(item: object) -> Capabilities:
    """Return the capabilities of an item, or the default ones if it declares none."""
    capabilities: Capabilities = getattr(item, "capabilities", Capabilities())
    return capabilities


PUBLISHED: dict[tuple[str, str], Check] = {}
"""Every check by kind and id, in the order in which they are run."""


def published(
    kinds: Sequence[str],
    meaning: str,
    *,
    cases: Callable[[Any], Iterable[tuple[Any, ...]]] = lambda context: [()],
    required: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that publishes a function as a check of these ``kinds`` of items, with the function's name as its id. ``cases``
    yields the further arguments of each call from the context, ``meaning`` explains a failure, and if a ``required`` check
    fails, the item's other checks are skipped.

    Parameters
    ----------
    kinds : sequence of str
        Of which items.
    meaning : str
        What a failure means, in a sentence.
    cases : callable
        From a ``CheckContext`` to the tuples of arguments with which the function is called, one after the other.
    required : bool
        Whether the checks after it are skipped if it fails.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        """Publish the function as a check for every kind, and return it unchanged."""

        @functools.wraps(function)
        def run_all_cases(context: object) -> None:
            """Run the function on every test case that ``cases`` yields for the context."""
            for case in cases(context):
                function(context, *case)

        check_id = function.__name__
        for kind in kinds:
            PUBLISHED[kind, check_id] = Check(
                check_id, kind, meaning, run_all_cases, required
            )
        return function

    return decorate


def each_model(context: Any) -> Iterator[tuple[object]]:
    """Yield the models that the item of a context supports, as test cases (tuples of one)."""
    for model in context.models:
        yield (model,)


def require_single_precision(item: object) -> None:
    """Raise CheckSkipped unless the item's capabilities promise float32."""
    if "float32" not in capabilities_of(item).dtypes:
        raise CheckSkipped("the item's capabilities.dtypes does not promise float32")


def on_another_device(item: object, run: Callable[[Backend], None]) -> None:
    """Run a test of an item (``run`` on a backend) with the strict reference implementation of the array API, on a device
    that is not its default.

    SciPy's special functions take its arrays on the default device only, and CuPy's have no such limit: what fails for that
    reason alone is tried there.
    """
    promised_backends = capabilities_of(item).backends
    if "*" not in promised_backends:
        raise CheckSkipped(
            f"the item supports only the backends {', '.join(promised_backends)}"
        )
    try:
        import array_api_strict as strict
    except ImportError:
        raise CheckSkipped(
            "array-api-strict is not installed; run pip install array-api-strict"
        ) from None
    namespace_name = "array_api_strict"
    try:
        run(Backend(namespace_name, strict, "float64", strict.Device("device1")))
    except RuntimeError as error:
        if "Can't convert array" not in str(error):
            raise
        if "scipy" not in traceback.format_exc():
            raise CheckFailed(
                f"the item converts its arrays to NumPy, use functions of their own namespace: {error}"
            ) from error
        run(Backend(namespace_name, strict, "float64"))


LARGEST_Z = 6.0
"""Standard errors by which a mean may differ from its value; doubled, biases twice as large pass. Means are not quite Gaussian:
chance exceeds it more often than once in 10^9 numbers, but less often than ``FALSE_ALARM`` in a check."""


def expect_mean(
    name: str, samples: object, target: object = 0.0, allowance: float = 0.0
) -> None:
    """Check that the mean of n independent samples (n, ...) equals ``target`` within ``LARGEST_Z`` standard errors and
    ``allowance``; ``name`` is for messages.
    """
    samples = np.asarray(samples, dtype=float)
    standard_error = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    expect_value(name, samples.mean(axis=0), target, standard_error, allowance)


def expect_value(
    name: str, value: Array, target: Array, error: Array, allowance: float = 0.0
) -> None:
    """Check that ``value``, with standard ``error``, equals ``target`` within ``LARGEST_Z`` errors and ``allowance``; all may
    be arrays, and ``name`` is for messages.
    """
    value, target, error = map(np.ravel, np.broadcast_arrays(value, target, error))
    # The numbers are of order one, so a difference below 1e-12 is rounding.
    is_within = np.abs(value - target) <= LARGEST_Z * error + allowance + 1e-12
    if not is_within.all():
        excess_deviation = np.abs(value - target) - LARGEST_Z * error
        worst_index = int(
            np.argmax(np.where(np.isnan(excess_deviation), np.inf, excess_deviation))
        )
        raise CheckFailed(
            f"{name} is {value[worst_index]:.4g} +- {error[worst_index]:.1g}, must be {target[worst_index]:.4g}: "
            f"{np.sum(~is_within)} of "
            f"{len(is_within)} numbers are more than {LARGEST_Z:g} standard errors away"
        )


class Call(NamedTuple):
    """A method of an item and the arrays with which checks call it (``arguments``). ``scale`` and ``own_error`` are the size
    and the stated error of its numbers; results are compared, by their median if ``uses_median``, to ``single_tolerance`` or
    ``double_tolerance``, and ``any_namespace`` says that it takes arrays of any namespace.

    Attributes
    ----------
    scale : float
        What differences are relative to; 0: the largest number.
    own_error : float
        Its own numerical error, relative to that.
    single_tolerance, double_tolerance : float
        Largest difference of float32 from float64, and of another namespace from NumPy.
    uses_median : bool
        Whether ``single_tolerance`` is for the median of differences.
    any_namespace : bool
        Whether it is called with other types and namespaces, too.
    """

    name: str
    function: Callable[..., object]
    arguments: tuple[Array, ...]
    scale: float = 0.0
    own_error: float = 0.0
    single_tolerance: float = 1e-4
    double_tolerance: float = 1e-8
    uses_median: bool = False
    any_namespace: bool = True


class Draw(NamedTuple):
    """A random draw of an item: ``function`` of a generator, its ``name`` in messages, and whether another seed must give
    different numbers (``depends_on_seed``).
    """

    name: str
    function: Callable[[np.random.Generator], Array]
    depends_on_seed: bool = False


RefusedCall = tuple[str, Callable[[], Array]]
"""A mistake in the arguments of a method, and the call with that mistake, which must raise an error."""


def expect_pure(name: str, function: Callable[..., object], *arrays: Array) -> None:
    """Check that a method (``function``, called ``name`` in messages) accepts read-only arrays and leaves them unchanged."""
    arguments = [np.array(array) for array in arrays]
    for read_only_array in arguments:
        read_only_array.flags.writeable = False
    try:
        function(*arguments)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise CheckFailed(
            f"{name} writes into its arguments; work on a copy: {error}"
        ) from error
    for read_only_array, array in zip(arguments, arrays):
        if not np.array_equal(
            read_only_array, array, equal_nan=read_only_array.dtype.kind == "f"
        ):
            raise CheckFailed(f"{name} writes into its arguments; work on a copy")


def expect_array(
    name: str,
    array: Array,
    shape: tuple[int, ...],
    dtype: str | None = None,
    like: Array | None = None,
) -> None:
    """Check that an array has the given shape and dtype, finite numbers, and the namespace and device of ``like``. ``name``
    is the array's, in messages.
    """
    if not array_api_compat.is_array_api_obj(array):
        raise CheckFailed(f"{name} must be an array, got {type(array).__name__}")
    if tuple(array.shape) != shape:
        raise CheckFailed(f"{name} must have shape {shape}, got {tuple(array.shape)}")
    if like is not None and _namespace_and_device(array) != _namespace_and_device(like):
        raise CheckFailed(
            f"{name} is an array of {_namespace_and_device(array)}, but its inputs are of {_namespace_and_device(like)}"
        )
    xp = namespace(array)
    if dtype is not None and array.dtype != getattr(xp, dtype):
        raise CheckFailed(f"{name} must be {dtype} like its inputs, got {array.dtype}")
    is_floating = xp.isdtype(array.dtype, "real floating")
    if is_floating and not np.isfinite(to_host(array)).all():
        raise CheckFailed(f"{name} contains NaN or infinity")


def _namespace_and_device(array: Array) -> str:
    """Text that names the namespace and the device of an array."""
    name = array_api_compat.array_namespace(array).__name__
    return f"{name} on {array_api_compat.device(array)}"


@contextmanager
def private_randomness(name: str) -> Iterator[None]:
    """Context that raises CheckFailed if code inside it uses a global generator of NumPy or Python. ``name`` is that of the
    code.
    """

    def states() -> dict[str, str]:
        """Texts of the states of the global generators, by generator."""
        numpy_state: Any = np.random.get_state()  # noqa: NPY002 - looked at, never drawn from
        return {
            "NumPy's global generator": str([*numpy_state[1], *numpy_state[2:]]),
            "Python's random module": str(random.getstate()),
        }

    initial_states = states()
    yield
    for generator, state in states().items():
        if state != initial_states[generator]:
            raise CheckFailed(
                f"{name} draws from {generator}: take every random number from the rng that is passed in"
            )
