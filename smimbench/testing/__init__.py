"""Published checks of models, inputs, channels, priors, metrics and algorithms, for authors of plugins.

In a test of your own, with pytest:

>>> from smimbench.testing import parametrize_with_checks
>>> @parametrize_with_checks([Mine(gain=2.0), "gaussian"])  # doctest: +SKIP
... def test_contract(check):
...     check()

In a terminal, ``smimbench check NAME``; in Python, ``check(item)``. Every check has an id and says what its failure means.
Those that draw use fixed seeds, so that what passes today passes tomorrow; with a seed of your own a right item fails one of
them with a probability below ``FALSE_ALARM``.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from smimbench.files import suggestion
from smimbench.interfaces import Algorithm
from smimbench.interfaces.item import defines_member, with_defaults
from smimbench.registry.items import (
    BASES,
    Parameters,
    algorithm_class,
    parameters_of,
    signature_of,
)
from smimbench.registry.registry import Entry, get_registry

# Importing these modules publishes their checks, which run in this order.
from smimbench.testing import common, metrics  # noqa: F401
from smimbench.testing.context import CheckContext, instantiate, kind_of
from smimbench.testing.core import (
    FALSE_ALARM,
    PUBLISHED,
    Check,
    CheckError,
    CheckFailed,
    CheckSkipped,
    Outcome,
    run_check,
)

__all__ = [
    "FALSE_ALARM",
    "BoundCheck",
    "Check",
    "CheckContext",
    "CheckError",
    "CheckFailed",
    "CheckSkipped",
    "Outcome",
    "all_checks",
    "bound_checks",
    "check",
    "parametrize_with_checks",
]


@dataclass(frozen=True, eq=False)
class BoundCheck:
    """A check together with the item that it tests (in ``context``); call it in a test."""

    check: Check
    context: CheckContext

    @property
    def id(self) -> str:
        """Name of the test: item and check, such as ``phase_retrieval-nishimori``."""
        return f"{self.context.label}-{self.check.id}"

    def __call__(self) -> None:
        """Run the check on its item. ``__tracebackhide__`` keeps this frame out of pytest's report.

        Raises
        ------
        CheckFailed
            With what was found, and what it means.
        CheckSkipped
            With the reason; pytest and unittest skip the test.
        """
        __tracebackhide__ = True
        try:
            self.check(self.context)
        except CheckFailed as error:
            raise CheckFailed(f"{self.id}: {error}\n{self.check.meaning}") from error

    def __repr__(self) -> str:
        """Name of the test, as pytest shows it."""
        return f"<check {self.id}>"


def bound_checks(items: object, *, seed: int = 0) -> Iterator[BoundCheck]:
    """Yield all checks of one or several items, given as objects, classes, functions or names; ``seed`` is that of their random
    numbers.

    Raises
    ------
    CheckError
        If an object is not an item, or an item cannot be created.
    """
    for item_or_name in items if isinstance(items, (list, tuple, set)) else (items,):
        for context in contexts(item_or_name, seed=seed):
            for check in all_checks(context.kind):
                yield BoundCheck(check, context)


def parametrize_with_checks(
    items: Sequence[object] | object, *, seed: int = 0
) -> object:
    """Decorator that makes one pytest test, named ``item-check``, for every check of every item; ``seed`` is that of random
    numbers.

    The test takes one argument, ``check``, and calls it. Checks that do not apply are skipped with their reason.

    Examples
    --------
    >>> @parametrize_with_checks(["gaussian"])  # doctest: +SKIP
    ... def test_contract(check):
    ...     check()
    """
    import pytest

    test_parameters = [
        pytest.param(check, id=check.id) for check in bound_checks(items, seed=seed)
    ]
    return pytest.mark.parametrize("check", test_parameters)


def check(
    item: object,
    *,
    only: Iterable[str] | None = None,
    seed: int = 0,
    parameters: Parameters | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run the published checks of an item. ``only`` are ids of checks, ``seed`` is that of random numbers, ``parameters`` are
    the item's, ``on_outcome`` is called after each check, and a context holds an instance to check.

    Parameters
    ----------
    item : object, class or str
        An instance, a class (made with its defaults, or with its attribute ``example``, a dict of parameters), a function
        ``fit(data)`` or the name of a registered item.
    only : iterable of str or None
        Ids of the checks to run; None runs all.
    seed : int
        Of everything that is drawn. The default gives the same outcomes every time.
    parameters : dict or None
        For a class or a name.
    on_outcome : callable or None
        Called with every outcome as it comes.

    Returns
    -------
    list of Outcome

    Raises
    ------
    CheckError
        Unknown name or id, or a class that needs parameters.

    Examples
    --------
    >>> [o.status for o in check("gaussian", only=["nishimori"])]
    ['passed']
    """
    check_contexts = contexts(item, seed=seed, parameters=parameters)
    check_ids = None if only is None else set(only)
    require_known_ids(check_ids or (), check_contexts)
    outcomes = []
    for context in check_contexts:
        for published_check in all_checks(context.kind):
            if check_ids is None or published_check.id in check_ids:
                outcome = run_check(published_check, context)
                outcomes.append(outcome)
                if on_outcome is not None:
                    on_outcome(outcome)
    return outcomes


GENERAL = ("declaration", "parameters", "bad_parameters")
"""Checks that come first, because they need nothing that an item computes."""


def all_checks(kind: str | None = None) -> tuple[Check, ...]:
    """Return the published checks for a kind of item (None: all kinds), in the order in which they run."""
    checks_of_kind = [
        check for check in PUBLISHED.values() if kind in (None, check.kind)
    ]
    return tuple(
        sorted(
            checks_of_kind,
            key=lambda check: (check.id not in GENERAL, not check.required),
        )
    )


def require_known_ids(ids: Iterable[str], subjects: Iterable[CheckContext]) -> None:
    """Raise CheckError if one of the ``ids`` names no check of the items in ``subjects``."""
    existing_ids: set[str] = set()
    for context in subjects:
        existing_ids |= {check.id for check in all_checks(context.kind)}
    for check_id in sorted(set(ids) - existing_ids):
        raise CheckError(
            f"no check is called {check_id!r}; {suggestion(check_id, sorted(existing_ids))}"
        )


def contexts(
    item: object, *, seed: int = 0, parameters: Parameters | None = None
) -> list[CheckContext]:
    """Return what to check for an item, with random numbers of this seed: the instance itself, an instance of the class with
    these ``parameters``, or one for each item of that name.

    Parameters as for ``smimbench.testing.check``; a class is made with its defaults or its attribute ``example`` (a dict
    of parameters), a name may be written ``"distribution:name"``.

    Raises
    ------
    CheckError
        Unknown name; a class that needs parameters.
    """
    if isinstance(item, CheckContext):
        return [item]
    if isinstance(item, str):
        return [
            CheckContext(
                registered_item.kind,
                instantiate(registered_item.item, registered_item.kind, parameters),
                seed,
                registered_item.distribution,
            )
            for registered_item in _entries_accepting(item, parameters)
        ]
    if isinstance(item, types.FunctionType):
        item = algorithm_class(item)
    kind = kind_of(item)
    if isinstance(item, type):
        return [CheckContext(kind, instantiate(item, kind, parameters), seed)]
    if parameters:
        raise CheckError(
            "parameters can be given for a class or a name, not for an instance; set them when you create the instance"
        )
    if kind == "algorithm" and not defines_member(Algorithm, type(item), "step"):
        item = instantiate(type(item), kind, parameters_of(kind, item))
    with_defaults(BASES[kind], type(item))
    return [CheckContext(kind, item, seed)]


def _entries_accepting(name: str, parameters: Parameters | None) -> list[Entry]:
    """Return the registered items of a name (there may be several) that accept the parameters."""
    entries = get_registry().entries_named(name)
    if not entries:
        registered_names = {entry.name for entry in get_registry().entries()}
        similar_names = difflib.get_close_matches(
            name.rpartition(":")[2], registered_names, 3
        )
        advice = "see 'smimbench list'"
        if similar_names:
            advice = f"did you mean {' or '.join(map(repr, similar_names))}?"
        raise CheckError(f"no item is called {name!r}; {advice}")
    given_parameters = set(parameters or ())
    accepting_items = [
        entry for entry in entries if given_parameters <= set(signature_of(entry.item))
    ]
    if not accepting_items:
        known_parameters: set[str] = set()
        for entry in entries:
            known_parameters |= set(signature_of(entry.item))
        for parameter in sorted(given_parameters - known_parameters):
            raise CheckError(
                f"{name!r} has no parameter {parameter}; {suggestion(parameter, sorted(known_parameters))}"
            )
        raise CheckError(
            f"no item called {name!r} takes all of {', '.join(sorted(given_parameters))}; give parameters of one item only"
        )
    return accepting_items
