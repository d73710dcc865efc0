"""Steps of optax, or of any function that returns a ``GradientTransformation``; JAX is imported on first use."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import namespace
from smimbench_optimizers.base import (
    LibraryOptimizer,
    join_parameters,
    split_parameters,
)

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
    """Gradient descent with the update of an optax ``GradientTransformation``, made by a function of the learning rate."""

    rate_name = "learning_rate"

    def try_out(self, options: dict[str, Any]) -> None:
        """Trace one update, so that invalid options raise an error before a run."""
        _ = _transformation(self.factory, json.dumps(options)).needs_objective

    def initial_state(self, factor: Array, seed: int) -> Any:
        """Return transformation and initial state, compiled beforehand so that timed steps do not include compilation."""
        transformation = _transformation(self.factory, json.dumps(self.seeded(seed)))
        with _double_precision(factor):
            tree = _parameter_tree(factor)
            state = transformation.at_rate(self.learning_rate).init(tree)
            if not transformation.needs_objective:
                transformation.step(
                    tree,
                    (_jax_array(namespace(factor).sum(factor)), tree),
                    state,
                    self.learning_rate,
                    None,
                )
            return transformation, state

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """Make one update, or several if it needs gradients at other points (SAM); each counts as a pass over the samples."""
        (transformation, state), xp, waiting = memory, namespace(factor), True

        def array(tree: list[Any]) -> Array:
            return join_parameters([xp.from_dlpack(leaf) for leaf in tree], factor)

        def evaluate(point: Array) -> tuple[Any, list[Any]]:
            evaluation = objective(point)
            return _jax_array(evaluation.loss), _parameter_tree(evaluation.gradient)

        with _double_precision(factor):
            while waiting:
                tree = _parameter_tree(factor)
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


class _ObjectiveNeededError(Exception):
    """Raised if a transformation evaluates the objective at another point."""


def _require_objective(tree: Any) -> Any:
    raise _ObjectiveNeededError


class Transformation:
    """Update of an optax transformation, compiled once for all learning rates; it holds no state.

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
        """Return the optax transformation at a learning rate."""
        import optax

        return optax.with_extra_args_support(
            self.factory(learning_rate=rate, **self.options)
        )

    @functools.cached_property
    def needs_objective(self) -> bool:
        """Whether the transformation evaluates the objective at other points."""
        import jax

        tree = [jax.numpy.zeros((2, 2))]
        try:
            jax.eval_shape(
                self._update, tree, (0.0, tree), self.at_rate(1.0).init(tree), 1.0
            )
        except _ObjectiveNeededError:
            return True
        return False

    def step(self, tree: Any, evaluation: Any, state: Any, rate: float, at: Any) -> Any:
        """Make an update; return parameters, state, averaged parameters (or None), and whether the step continues."""
        import jax

        if not self.needs_objective:
            return self.compiled(tree, evaluation, state, rate)
        value = jax.custom_vjp(lambda tree: at(tree)[0])
        value.defvjp(
            at, lambda gradient, scale: (jax.tree.map(lambda g: scale * g, gradient),)
        )
        with jax.disable_jit():
            return self._update(tree, evaluation, state, rate, value)

    def _update(
        self,
        tree: Any,
        evaluation: Any,
        state: Any,
        rate: Any,
        value_fn: Any = _require_objective,
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
    """Context in which JAX computes in double precision, on the device of an array."""
    import jax

    with jax.enable_x64(True):
        device = (
            jax.devices("cpu")[0]
            if isinstance(like, np.ndarray)
            else next(iter(_jax_array(like).devices()))
        )
        with jax.default_device(device):
            yield


def _jax_array(array: Array) -> Any:
    """Convert to a JAX array, without a copy if possible."""
    import jax

    return (
        jax.numpy.asarray(array)
        if isinstance(array, (np.ndarray, np.generic))
        else jax.numpy.from_dlpack(array)
    )


def _parameter_tree(factor: Array) -> list[Any]:
    return [_jax_array(parameter) for parameter in split_parameters(factor)]
