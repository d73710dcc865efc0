"""Adapters from simple algorithms (a class with ``fit``, or a function) to the full algorithm interface."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import namespace
from smimbench.files import attempt, documentation
from smimbench.interfaces import Algorithm, Array, Capabilities, Data, Info, ProblemLike
from smimbench.interfaces.checks import is_real, type_of_numbers
from smimbench.interfaces.item import gives, takes

OFFERED = ("problem", "rng")
"""Optional arguments of a fit besides the data."""


class FittedState(NamedTuple):
    """State of an algorithm with ``fit``: its estimate, and the random generator of the run."""

    estimate: Array
    rng: np.random.Generator


class Fitted(Algorithm):
    """Adapter from a class with ``fit(data)`` to an iterative algorithm, whose only step runs the whole fit.

    ``fit`` may name ``problem`` and ``rng`` (a host generator of the run's own) as further arguments. It returns the
    signal-shaped estimate, ``(P, D)`` or ``(P, D, D)``, in any array or nested list that NumPy or the data's namespace
    understands.
    """

    steps: ClassVar[int] = 1
    fit: Callable[..., Array]

    def init(
        self, problem: ProblemLike, data: Data, rng: np.random.Generator
    ) -> FittedState:
        """Return the initial state, with the prior mean as the estimate."""
        return FittedState(
            _as_data_array(
                data, problem.prior.mean(problem.components, data.dimension)
            ),
            rng,
        )

    def step(
        self, problem: ProblemLike, data: Data, state: FittedState
    ) -> tuple[FittedState, Info]:
        """Run the whole fit and report the relative distance of its estimate from the prior mean as the residual.

        Raises
        ------
        ValueError
            If the fit returns anything but real numbers in the shape of the signal.
        """
        offered = {"problem": problem, "rng": state.rng}
        returned = self.fit(
            data, **{name: offered[name] for name in OFFERED if takes(self.fit, name)}
        )
        if returned is None:
            raise ValueError("fit must return the estimate, but it returned nothing")
        estimate = _as_data_array(data, returned)
        shape = problem.model.signal_shape(problem.components, data.dimension)
        if tuple(estimate.shape) != tuple(shape):
            raise ValueError(
                f"fit must return an estimate with the signal's shape {shape}, got shape {estimate.shape}"
            )
        xp = namespace(estimate)
        change = xp.sum((estimate - state.estimate) ** 2)
        size = xp.sum(estimate * estimate)
        residual = xp.sqrt(change / xp.where(size > 0, size, xp.ones_like(size)))
        samples = data.inputs.shape[0]
        return FittedState(estimate, state.rng), Info(
            residual=residual, samples=samples
        )

    def estimate(self, state: FittedState) -> Array:
        """Return the estimate that ``fit`` returned."""
        return state.estimate


def _as_data_array(data: Data, values: Array) -> Array:
    """Convert numbers to an array with the dtype and device of the data."""
    xp = namespace(data.labels)
    device = array_api_compat.device(data.labels)
    is_foreign = array_api_compat.is_array_api_obj(values) and not isinstance(
        values, (np.ndarray, np.generic)
    )
    numbers, error = (values, None) if is_foreign else attempt(np.asanyarray, values)
    if error is not None or not is_real(numbers):
        got = type(values).__name__ if error else type_of_numbers(numbers)
        raise ValueError(f"fit must return an array of real numbers, got {got}")
    if is_foreign:
        return xp.astype(numbers, data.inputs.dtype, copy=False)
    return xp.asarray(
        numbers.astype(np.float64), dtype=data.inputs.dtype, device=device
    )


def algorithm_class(item: object) -> Any:
    """Make an algorithm class, with ``init``, ``step`` and ``estimate``, from a class with ``fit`` or a function.

    A class that has ``init`` or no ``fit`` is returned as it is. A function ``fit(data, *, parameter=value, ...)`` gives an
    algorithm of that name (``_`` written as ``-``) with these parameters; attributes ``name``, ``version``, ``reference`` and
    ``capabilities`` of the function replace the defaults (its own name, 1, the module, all models).

    Raises
    ------
    TypeError
        If a parameter of a function is not one that can be written in a suite: keyword-only or with a default.
    """
    if isinstance(item, type):
        if not hasattr(item, "fit") or any(
            gives(Algorithm, item, name) for name in ("init", "step")
        ):
            return item
        named = {
            key: getattr(item, key) for key in ("__doc__", "__module__", "__qualname__")
        }
        return type(item.__name__, (item, Fitted), named)
    return _class_from_function(item) if inspect.isfunction(item) else item


def _class_from_function(function: Callable[..., Array]) -> type[object]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(
            f"algorithm function {function.__name__} must take the data as its first argument"
        )
    if any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters
    ):
        raise TypeError(
            f"algorithm function {function.__name__} must list its parameters by name, not as *args or **kwargs"
        )

    def fit(
        self: object, data: Data, problem: object = None, rng: object = None
    ) -> Array:
        offered = {"problem": problem, "rng": rng, **vars(self)}
        return function(data, **{p.name: offered[p.name] for p in parameters[1:]})

    fields: list[Any] = []
    for parameter in parameters[1:]:
        if parameter.name in OFFERED:
            continue
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        default = () if required else (parameter.default,)
        fields.append((parameter.name, hint, *default))
    body = {
        "__doc__": documentation(function) or f"The function {function.__name__}.",
        "__module__": function.__module__,
        "name": getattr(function, "name", function.__name__.replace("_", "-")),
        "version": getattr(function, "version", 1),
        "reference": getattr(function, "reference", function.__module__),
        "capabilities": getattr(function, "capabilities", Capabilities()),
        "fit": fit,
    }
    return dataclasses.make_dataclass(
        function.__name__,
        fields,
        bases=(Fitted,),
        namespace=body,
        frozen=True,
        kw_only=True,
    )
