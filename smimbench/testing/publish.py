"""How a check is published: once for every case, and with what statistical or foreign-namespace checks need around them."""

from __future__ import annotations

import functools
import traceback
from typing import TYPE_CHECKING, Any

from smimbench.backend.device import Backend
from smimbench.testing.core import FALSE_ALARM, Check, CheckFailed, CheckSkipped, capabilities_of
from smimbench.testing.statistics import MeanTest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PUBLISHED: dict[tuple[str, str], Check] = {}
"""Every check by kind and id, in the order in which they are run."""

NO_PROBLEM = "It cannot be put into a problem with every model that its capabilities name, or no data can be drawn."


def published(
    kinds: Sequence[str],
    meaning: str,
    *,
    cases: Callable[[Any], Iterable[tuple[Any, ...]]] = lambda context: [()],
    around: Callable[[Any, Callable[..., None]], None] = lambda context, run: run(),
    required: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Publish a function as a check, with its name as the id.

    Parameters
    ----------
    kinds : sequence of str
        Of which items.
    meaning : str
        What a failure means, in a sentence.
    cases : callable
        From a ``CheckContext`` to the tuples of arguments with which the function is called, one after the other.
    around : callable
        ``around(context, run)`` calls ``run(*more)``, which goes through the cases; ``more`` are further arguments of the
        function: see ``judged``, ``elsewhere`` and ``in_single_precision``.
    required : bool
        Whether the checks after it are skipped if it fails.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def check(context: Any) -> None:
            def run(*more: Any) -> None:
                for case in cases(context):
                    function(context, *case, *more)

            around(context, run)

        id = function.__name__.rstrip("_")
        for kind in kinds:
            assert (kind, id) not in PUBLISHED, f"{kind} {id} is published twice"
            rate = FALSE_ALARM if around is judged else 0.0
            PUBLISHED[kind, id] = Check(id, kind, meaning, rate, check, required)
        return function

    return decorate


def each_model(context: Any) -> Iterator[tuple[Any]]:
    """Cases: the models that the item works for."""
    for model in context.models:
        yield (model,)


def judged(context: Any, run: Callable[..., None]) -> None:
    """Hand over one test of means, and judge it after the last case: a statistical check."""
    del context
    test = MeanTest()
    run(test)
    test.judge()


def in_single_precision(context: Any, run: Callable[..., None]) -> None:
    """Skip what does not promise float32."""
    if "float32" not in capabilities_of(context.item).dtypes:
        raise CheckSkipped("capabilities.dtypes does not promise float32")
    run()


def elsewhere(context: Any, run: Callable[..., None]) -> None:
    """Hand over the strict reference implementation of the array API, on a device that is not its default.

    SciPy's special functions take its arrays on the default device only, and CuPy's have no such limit: what fails for that
    reason alone is tried there.
    """
    promised = capabilities_of(context.item).backends
    if "*" not in promised:
        raise CheckSkipped(f"it promises {', '.join(promised)} only")
    try:
        import array_api_strict
    except ImportError:
        raise CheckSkipped("array-api-strict is not installed: pip install array-api-strict") from None
    name = "array_api_strict"
    try:
        run(Backend(name, array_api_strict, "float64", array_api_strict.Device("device1")))
    except RuntimeError as error:
        if "Can't convert array" not in str(error):
            raise
        if "scipy" not in str(traceback.format_exc()):
            raise CheckFailed(f"turns its arrays into NumPy's: {error}") from error
        run(Backend(name, array_api_strict, "float64"))
