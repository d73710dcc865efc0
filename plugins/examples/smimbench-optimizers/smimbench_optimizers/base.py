"""What both libraries share: an optimizer that makes the step of smimbench's own gradient descent."""

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
from smimbench.registry.parameters import unknown_key

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from smimbench.interfaces import Array, Data, Plan


@dataclass(frozen=True)
class LibraryOptimizer(Descent):
    """Gradient descent whose step is made by an optimizer of a library.

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
        """Make an algorithm from an optimizer, to be given to ``register`` in ``smimbench_register_algorithms``.

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
        return cls._class_of(
            body,
            ("learning_rate", float, learning_rate),
            sys._getframe(1).f_globals["__name__"],
        )

    @classmethod
    def any_path(cls, name: str, example: str) -> type[Any]:
        """Make the algorithm that takes the path of its optimizer as a parameter."""
        body = {
            "__doc__": f"{inspect.getdoc(LibraryOptimizer)}\noptimizer : str\n    Path to import it from, {example!r}.",
            "name": name,
            "reference": "the library that is named",
            "example": {"optimizer": example},
        }
        return cls._class_of(
            body, ("optimizer", str, field(kw_only=True)), cls.__module__
        )

    @classmethod
    def _class_of(
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
                f"{self.optimizer} is no optimizer: it takes no {self.rate_name}",
            )
        names = [
            name for name in names if name not in ("self", "params", self.rate_name)
        ]
        options = {**self.usual, **(self.options or {})}
        for key in options:
            if key not in names:
                hint = (
                    "write it as learning_rate, above"
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
                "options", f"are not accepted by {self.optimizer}: {message}"
            ) from None

    @property
    def factory(self) -> Callable[..., Any]:
        """The optimizer's class or function, imported if it is named by its path."""
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
        """The options, with a seed where the optimizer draws random numbers and none is given."""
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
        """Steps and batch; an optimizer may call for several gradients in one step, so that its cost is not known."""
        return super().plan(data)._replace(cost=None)

    normalisation = Adam.normalisation

    def init(self, problem: Any, data: Data, rng: np.random.Generator) -> Any:
        """As for ``adam``, one student at a time: optimizers of matrices would mix several."""
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
        """One step of the optimizer."""
        inner, _, basis = memory
        factor, inner, evaluated = self.call(objective, factor, inner, rate)
        return factor, (inner, evaluated, basis)

    def estimate(self, state: Any) -> Array:
        """Signal of the factor, or of the average of its iterates where the optimizer says that this is what it has learned."""
        _, evaluated, basis = state.memory
        return super().estimate(
            state
            if evaluated is None
            else state._replace(signal=basis.compose(evaluated))
        )

    # -- what a library adds -----------------------------------------------------------------------------------------

    def try_out(self, options: dict[str, Any]) -> None:
        """Make the optimizer once, so that options that it does not accept are found before a run."""
        raise NotImplementedError

    def initial_state(self, factor: Array, seed: int) -> Any:
        """Memory of the optimizer at the start."""
        raise NotImplementedError

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """Factor and memory after a step, and the factor to be judged if that is another one."""
        raise NotImplementedError


def parts_of(factor: Array) -> list[Array]:
    """Parameters: components that are matrices are one each."""
    return (
        [factor[k, ...] for k in range(factor.shape[0])]
        if factor.ndim == 3
        else [factor]
    )


def joined(parameters: list[Array], factor: Array) -> Array:
    """The inverse of ``parts_of``, in new memory of the device and type of ``factor``."""
    xp = namespace(factor)
    return xp.asarray(
        xp.stack(parameters) if factor.ndim == 3 else parameters[0],
        **matching(factor),
        copy=True,
    )
