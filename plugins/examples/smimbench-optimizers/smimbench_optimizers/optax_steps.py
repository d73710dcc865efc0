"""Steps of optax and of any function that returns a ``GradientTransformation``; JAX is imported when one is made."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import namespace
from smimbench_optimizers.base import LibraryOptimizer, joined, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smimbench.interfaces import Array


def sam(learning_rate: float, rho: float = 0.05, optimizer: str = "optax.adam") -> Any:
    """Sharpness-aware minimization (arXiv:2010.01412): ``optimizer`` steps along the gradient at ``W + rho grad / |grad|``."""
    import optax

    ascent = optax.chain(optax.contrib.normalize(), optax.sgd(rho))
    transformation = optax.contrib.sam(
        pkgutil.resolve_name(optimizer)(learning_rate), ascent
    )
    return optax.GradientTransformation(
        transformation.init, lambda *arguments: transformation.update(*arguments)
    )


class OptaxOptimizer(LibraryOptimizer):
    """Steps of a function of a learning rate that returns a ``GradientTransformation``."""

    rate_name = "learning_rate"

    def try_out(self, options: dict[str, Any]) -> None:
        """Trace one update."""
        _ = _transformation(self.factory, json.dumps(options)).asks

    def initial_state(self, factor: Array, seed: int) -> Any:
        """The transformation and its state; what can be compiled is, so that steps take what steps take."""
        transformation = _transformation(self.factory, json.dumps(self.seeded(seed)))
        with _double_precision(factor):
            tree = _tree(factor)
            state = transformation.at_rate(self.learning_rate).init(tree)
            if not transformation.asks:
                transformation.step(
                    tree,
                    (_array(namespace(factor).sum(factor)), tree),
                    state,
                    self.learning_rate,
                    None,
                )
            return transformation, state

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """One update, or several where it needs gradients at other points (SAM); each is counted as a pass over the samples."""
        (transformation, state), xp, waiting = memory, namespace(factor), True

        def array(tree: list[Any]) -> Array:
            return joined([xp.from_dlpack(leaf) for leaf in tree], factor)

        def evaluate(point: Array) -> tuple[Any, list[Any]]:
            evaluation = objective(point)
            return _array(evaluation.loss), _tree(evaluation.gradient)

        with _double_precision(factor):
            while waiting:
                tree = _tree(factor)
                tree, state, evaluated, waiting = transformation.step(
                    tree,
                    evaluate(factor),
                    state,
                    rate,
                    lambda tree: evaluate(array(tree)),
                )
                factor = array(tree)
            return (
                factor,
                (transformation, state),
                None if evaluated is None else array(evaluated),
            )


class _AskedError(Exception):
    """A transformation asks for the objective at another point."""


def _ask(tree: Any) -> Any:
    raise _AskedError


class Transformation:
    """The update of an optax transformation, compiled once for all learning rates; its state is elsewhere.

    One that evaluates the objective while it updates (a line search) is not compiled, for the objective is not JAX's.
    """

    def __init__(self, factory: Callable[..., Any], options: str) -> None:
        os.environ.setdefault(
            "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
        )  # a GPU's memory is for the data, too
        import jax

        values = json.loads(options).items()
        self.factory = factory
        self.options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in values
        }
        self.compiled = jax.jit(self._update)

    def __deepcopy__(self, memo: Any) -> Transformation:
        return self

    def at_rate(self, rate: Any) -> Any:
        """The transformation at a learning rate."""
        import optax

        return optax.with_extra_args_support(
            self.factory(learning_rate=rate, **self.options)
        )

    @functools.cached_property
    def asks(self) -> bool:
        """Whether it evaluates the objective at other points."""
        import jax

        tree = [jax.numpy.zeros((2, 2))]
        try:
            jax.eval_shape(
                self._update, tree, (0.0, tree), self.at_rate(1.0).init(tree), 1.0
            )
        except _AskedError:
            return True
        return False

    def step(self, tree: Any, evaluation: Any, state: Any, rate: float, at: Any) -> Any:
        """Parameters and state after an update, the parameters to be judged if others, and whether the step goes on."""
        import jax

        if not self.asks:
            return self.compiled(tree, evaluation, state, rate)
        value = jax.custom_vjp(lambda tree: at(tree)[0])
        value.defvjp(
            at, lambda gradient, scale: (jax.tree.map(lambda g: scale * g, gradient),)
        )
        with jax.disable_jit():
            return self._update(tree, evaluation, state, rate, value)

    def _update(
        self, tree: Any, evaluation: Any, state: Any, rate: Any, value_fn: Any = _ask
    ) -> Any:
        import jax
        import optax

        value, gradient = evaluation
        updates, state = self.at_rate(rate).update(
            gradient, state, tree, value=value, grad=gradient, value_fn=value_fn
        )
        tree = optax.apply_updates(tree, updates)

        def averages(state: Any) -> bool:
            return isinstance(state, optax.contrib.ScheduleFreeState)

        averaging = [
            leaf for leaf in jax.tree.leaves(state, is_leaf=averages) if averages(leaf)
        ]
        evaluated = (
            optax.contrib.schedule_free_eval_params(averaging[0], tree)
            if averaging
            else None
        )
        return (
            tree,
            state,
            evaluated,
            optax.tree_utils.tree_get(state, "steps_since_sync", 0),
        )


_transformation = functools.lru_cache(maxsize=32)(Transformation)


@contextmanager
def _double_precision(like: Array) -> Iterator[None]:
    """JAX in double precision where numbers are, on the device where an array is."""
    import jax

    with jax.enable_x64(True):
        device = (
            jax.devices("cpu")[0]
            if isinstance(like, np.ndarray)
            else next(iter(_array(like).devices()))
        )
        with jax.default_device(device):
            yield


def _array(array: Array) -> Any:
    """A JAX array of the same numbers, without a copy where that is possible."""
    import jax

    return (
        jax.numpy.asarray(array)
        if isinstance(array, (np.ndarray, np.generic))
        else jax.numpy.from_dlpack(array)
    )


def _tree(factor: Array) -> list[Any]:
    return [_array(parameter) for parameter in parts_of(factor)]
