"""Base class of PyTorch and optax optimizers, which replace the step of smimbench's own gradient descent."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.algorithms.gradient import Descent

from smimbench import ParameterError
from smimbench.backend import matching, namespace
from smimbench.registry.items import unknown_key

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from smimbench.interfaces import Array, Data, Plan


@dataclass(frozen=True)
class LibraryOptimizer(Descent):
    """Gradient descent in which an optimizer of PyTorch or optax makes the step.

    Losses, gradients, batches, schedules and what replaces hardmax are those of ``adam``; the loss is summed over the samples
    and divided by D. Matrices are one parameter each, the directions of low-rank signals one matrix (directions, D).

    Parameters
    ----------
    options : table
        Options of the optimizer by the names that the library gives them, without its learning rate.
    learning_rate, steps, epochs, batch, online, loss, schedule, decay_steps, decay_factor, spherical, width, surrogate_beta
        As for ``adam``.
    """

    options: dict[str, Any] | None = None  # options of the optimizer

    version: ClassVar[int] = 1
    optimizer: ClassVar[Any]
    """The optimizer, or the path it is imported from when it is used."""
    default_options: ClassVar[dict[str, Any]] = {}  # not the library's own
    """Options that differ from the library's own defaults."""
    rate_name: ClassVar[str] = ""  # the library's name of the learning rate
    """What the library calls its learning rate."""

    @classmethod
    def registered(
        cls,
        name: str,
        optimizer: Any,
        *,
        learning_rate: float = 0.1,
        reference: str = "",
        **default_options: Any,
    ) -> type[Any]:
        """Make an algorithm of this name from an optimizer, to be registered in ``smimbench_register_algorithms``, with a default
        learning rate and a reference; ``default_options`` are options that differ from the library's defaults.

        Parameters
        ----------
        name : str
            What suites call it.
        optimizer : type or callable or str
            For ``torch_optimizer`` a subclass of ``torch.optim.Optimizer``, for ``optax_optimizer`` a function of a learning rate
            that returns a ``GradientTransformation``; or the path of either, imported when it is used.
        learning_rate : float
            Default of this parameter.
        reference : str
            Where the equations are from; default: the path.
        **default_options
            Options that are to differ from the library's own defaults.
        """
        path = (
            optimizer
            if isinstance(optimizer, str)
            else f"{optimizer.__module__}.{optimizer.__qualname__}"
        )
        class_members = {
            "__doc__": f"{path}\n\n{inspect.getdoc(LibraryOptimizer)}",
            "name": name,
            "reference": reference or path,
            "optimizer": optimizer
            if isinstance(optimizer, str)
            else staticmethod(optimizer),
            "default_options": default_options,
        }
        return cls._make_class(
            class_members,
            ("learning_rate", float, learning_rate),
            sys._getframe(1).f_globals["__name__"],
        )

    @classmethod
    def any_path(cls, name: str, example: str) -> type[Any]:
        """Make an algorithm of this name whose parameter ``optimizer`` is the import path of any optimizer; ``example`` is such a
        path, for the documentation.
        """
        class_members = {
            "__doc__": f"{inspect.getdoc(LibraryOptimizer)}\noptimizer : str\n    Path to import it from, {example!r}.",
            "name": name,
            "reference": "the library that is named",
            "example": {"optimizer": example},
        }
        return cls._make_class(
            class_members, ("optimizer", str, field(kw_only=True)), cls.__module__
        )

    @classmethod
    def _make_class(
        cls,
        class_members: dict[str, Any],
        parameter: tuple[str, type, Any],
        source_module: str,
    ) -> type[Any]:
        """Make the class of an algorithm from the ``class_members`` and one dataclass ``parameter`` (name, type, default), as
        part of the ``source_module`` where it is registered.
        """
        class_members |= {
            "__module__": __name__
        }  # where the annotations mean something
        optimizer_class = make_dataclass(
            cls.__name__,
            [parameter],
            bases=(cls,),
            namespace=class_members,
            frozen=True,
        )
        optimizer_class.__module__ = source_module  # where it is registered: that file belongs to the source of the algorithm
        return optimizer_class

    def __post_init__(self) -> None:
        """Check that the optimizer takes a learning rate, that it takes all options, and that it can be created with them."""
        super().__post_init__()
        factory_parameters = inspect.signature(self.factory).parameters
        option_names = [
            name
            for name, parameter in factory_parameters.items()
            if parameter.kind
            in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        if self.rate_name not in option_names:
            raise ParameterError(
                "optimizer",
                f"must be an optimizer with a parameter {self.rate_name}, but {self.optimizer} has none",
            )
        option_names = [
            name
            for name in option_names
            if name not in ("self", "params", self.rate_name)
        ]
        options = {**self.default_options, **(self.options or {})}
        for key in options:
            if key not in option_names:
                reason = (
                    "set the parameter learning_rate of the algorithm instead"
                    if key == self.rate_name
                    else unknown_key(key, option_names)
                )
                raise ParameterError(
                    f"options.{key}", f"is no option of the optimizer: {reason}"
                )
        object.__setattr__(
            self, "options", options
        )  # default options are part of the cell, too
        try:
            self.try_out(self.seeded(0))
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:
            error_text = " ".join(str(error).split())
            raise ParameterError(
                "options",
                f"the optimizer {self.optimizer} rejects these options: {error_text}",
            ) from None

    @property
    def factory(self) -> Callable[..., Any]:
        """Class or function that makes the optimizer, imported if it is given by its path."""
        if not isinstance(self.optimizer, str):
            return self.optimizer
        try:
            optimizer: Callable[..., Any] = pkgutil.resolve_name(self.optimizer)
        except (ImportError, AttributeError, ValueError) as error:
            raise ParameterError(
                "optimizer", f"{self.optimizer!r} cannot be imported: {error}"
            ) from None
        return optimizer

    def seeded(self, seed: int) -> dict[str, Any]:
        """Return the options, with ``seed`` added to them if the optimizer has a parameter ``key`` or ``seed``
        (``seed_parameters``) and none is set.
        """
        options, parameters = (
            self.options or {},
            inspect.signature(self.factory).parameters,
        )
        seed_parameters = [name for name in ("key", "seed") if name in parameters][
            :1
        ]  # where it takes either, it wants one
        return (
            options
            if {"key", "seed"} & set(options)
            else {**options, **dict.fromkeys(seed_parameters, seed)}
        )

    def plan(self, data: Data) -> Plan:
        """Plan steps and batches without a cost, because an optimizer may evaluate several gradients in one step."""
        return super().plan(data)._replace(cost=None)

    normalisation = Adam.normalisation

    def init(self, problem: Any, data: Data, rng: np.random.Generator) -> Any:
        """Initial state as for ``adam``, with one student, because optimizers of matrices would mix several."""
        state = super().init(problem, data, rng)
        memory = self.initial_state(state.factor, int(rng.spawn(1)[0].integers(2**31)))
        return state._replace(memory=(memory, None, problem.prior.factor))

    def advance(
        self,
        objective: Any,
        factor: Array,
        memory: tuple[Any, ...],
        rate: float,
        count: int,
    ) -> Any:
        """Make one step of the optimizer (number ``count``) on the objective at the learning rate ``rate``; return the new factor
        and the memory: the optimizer's state, an averaged factor (or None) and the prior's factorization.
        """
        optimizer_state, _, factorization = memory
        factor, optimizer_state, averaged_factor = self.call(
            objective, factor, optimizer_state, rate
        )
        return factor, (optimizer_state, averaged_factor, factorization)

    def estimate(self, state: Any) -> Array:
        """Estimate from the current factor or, if the optimizer averages its iterates, from the averaged factor."""
        _, averaged_factor, factorization = state.memory
        return super().estimate(
            state
            if averaged_factor is None
            else state._replace(signal=factorization.compose(averaged_factor))
        )

    # -- what a library adds -----------------------------------------------------------------------------------------

    def try_out(self, options: dict[str, Any]) -> None:
        """Create the optimizer once, so that invalid options raise an error before a run."""
        raise NotImplementedError

    def initial_state(self, factor: Array, seed: int) -> Any:
        """Initial state of the optimizer for a run that starts at this factor; ``seed`` is for its random numbers."""
        raise NotImplementedError

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """Make one step on the objective from a factor and the optimizer's state (``memory``), at the learning rate ``rate``;
        return both after the step, and the averaged factor at which the estimate is evaluated (None: the factor itself).
        """
        raise NotImplementedError


def split_parameters(factor: Array) -> list[Array]:
    """Split a factor (P, D, width) into P matrices, the optimizer's parameters; a factor (P, D) is a single one."""
    return (
        [factor[component, ...] for component in range(factor.shape[0])]
        if factor.ndim == 3
        else [factor]
    )


def join_parameters(parameters: list[Array], factor: Array) -> Array:
    """Join the optimizer's parameters to one array in the shape of ``factor``, on its device and of its dtype."""
    xp = namespace(factor)
    return xp.asarray(
        xp.stack(parameters) if factor.ndim == 3 else parameters[0],
        **matching(factor),
        copy=True,
    )
