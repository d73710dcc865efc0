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

    options: dict[str, Any] | None = None

    version: ClassVar[int] = 1
    optimizer: ClassVar[Any]
    """The optimizer, or the path it is imported from when it is used."""
    usual: ClassVar[dict[str, Any]] = {}
    """Options that differ from the library's own defaults."""
    rate_name: ClassVar[str] = ""
    """What the library calls its learning rate."""

    @classmethod
    def registered(
        cls,
        name: str,
        optimizer: Any,
        *,
        learning_rate: float = 0.1,
        reference: str = "",
        **usual: Any,
    ) -> type[Any]:
        """Make an algorithm from an optimizer, to be registered in ``smimbench_register_algorithms``.

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
        **usual
            Options that are to differ from the library's own defaults.
        """
        path = (
            optimizer
            if isinstance(optimizer, str)
            else f"{optimizer.__module__}.{optimizer.__qualname__}"
        )
        body = {
            "__doc__": f"{path}\n\n{inspect.getdoc(LibraryOptimizer)}",
            "name": name,
            "reference": reference or path,
            "optimizer": optimizer
            if isinstance(optimizer, str)
            else staticmethod(optimizer),
            "usual": usual,
        }
        return cls._make_class(
            body,
            ("learning_rate", float, learning_rate),
            sys._getframe(1).f_globals["__name__"],
        )

    @classmethod
    def any_path(cls, name: str, example: str) -> type[Any]:
        """Make an algorithm whose parameter ``optimizer`` is the import path of any optimizer."""
        body = {
            "__doc__": f"{inspect.getdoc(LibraryOptimizer)}\noptimizer : str\n    Path to import it from, {example!r}.",
            "name": name,
            "reference": "the library that is named",
            "example": {"optimizer": example},
        }
        return cls._make_class(
            body, ("optimizer", str, field(kw_only=True)), cls.__module__
        )

    @classmethod
    def _make_class(
        cls, body: dict[str, Any], parameter: tuple[str, type, Any], module: str
    ) -> type[Any]:
        body |= {"__module__": __name__}  # where the annotations mean something
        optimizer_class = make_dataclass(
            cls.__name__, [parameter], bases=(cls,), namespace=body, frozen=True
        )
        optimizer_class.__module__ = module  # where it is registered: that file belongs to the source of the algorithm
        return optimizer_class

    def __post_init__(self) -> None:
        super().__post_init__()
        signature = inspect.signature(self.factory).parameters
        names = [
            name
            for name, p in signature.items()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        if self.rate_name not in names:
            raise ParameterError(
                "optimizer",
                f"{self.optimizer} is not an optimizer: it takes no parameter {self.rate_name}",
            )
        names = [
            name for name in names if name not in ("self", "params", self.rate_name)
        ]
        options = {**self.usual, **(self.options or {})}
        for key in options:
            if key not in names:
                hint = (
                    "set the parameter learning_rate of the algorithm instead"
                    if key == self.rate_name
                    else unknown_key(key, names)
                )
                raise ParameterError(f"options.{key}", hint)
        object.__setattr__(
            self, "options", options
        )  # with those that are usual: they are part of the cell
        try:
            self.try_out(self.seeded(0))
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:
            message = " ".join(str(error).split())
            raise ParameterError(
                "options",
                f"the optimizer {self.optimizer} rejects these options: {message}",
            ) from None

    @property
    def factory(self) -> Callable[..., Any]:
        """Class or function of the optimizer, imported if it is given by its path."""
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
        """Return the options, with a seed added if the optimizer draws random numbers and none is set."""
        options, parameters = (
            self.options or {},
            inspect.signature(self.factory).parameters,
        )
        drawn = [name for name in ("key", "seed") if name in parameters][
            :1
        ]  # where it takes either, it wants one
        return (
            options
            if {"key", "seed"} & set(options)
            else {**options, **dict.fromkeys(drawn, seed)}
        )

    def plan(self, data: Data) -> Plan:
        """Plan steps and batches without a cost, because an optimizer may evaluate several gradients in one step."""
        return super().plan(data)._replace(cost=None)

    normalisation = Adam.normalisation

    def init(self, problem: Any, data: Data, rng: np.random.Generator) -> Any:
        """Initialize a run as for ``adam``, with one student, because optimizers of matrices would mix several."""
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
        """Make one step of the optimizer and return the new factor and its memory."""
        inner, _, basis = memory
        factor, inner, evaluated = self.call(objective, factor, inner, rate)
        return factor, (inner, evaluated, basis)

    def estimate(self, state: Any) -> Array:
        """Signal of the current factor, or of the average of iterates if the optimizer evaluates at that average."""
        _, evaluated, basis = state.memory
        return super().estimate(
            state
            if evaluated is None
            else state._replace(signal=basis.compose(evaluated))
        )

    # -- what a library adds -----------------------------------------------------------------------------------------

    def try_out(self, options: dict[str, Any]) -> None:
        """Create the optimizer once, so that invalid options raise an error before a run."""
        raise NotImplementedError

    def initial_state(self, factor: Array, seed: int) -> Any:
        """State of the optimizer at the start of a run."""
        raise NotImplementedError

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """Make one step; return factor and state, and the factor at which the estimate is evaluated if it differs."""
        raise NotImplementedError


def split_parameters(factor: Array) -> list[Array]:
    """Split a factor into the optimizer's parameters: one for each component that is a matrix."""
    return (
        [factor[k, ...] for k in range(factor.shape[0])]
        if factor.ndim == 3
        else [factor]
    )


def join_parameters(parameters: list[Array], factor: Array) -> Array:
    """Join the optimizer's parameters to a new array with the device and dtype of ``factor``."""
    xp = namespace(factor)
    return xp.asarray(
        xp.stack(parameters) if factor.ndim == 3 else parameters[0],
        **matching(factor),
        copy=True,
    )
