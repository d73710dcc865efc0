"""Steps of optax, or of any function that returns an optax ``GradientTransformation``; JAX is imported on first use."""

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
    """Sharpness-aware minimization (arXiv:2010.01412): ``optimizer`` steps at this learning rate along the gradient at ``W + rho
    grad / |grad|``, the worst point within a radius rho of the factor W.
    """
    import optax

    ascent_step = optax.chain(optax.contrib.normalize(), optax.sgd(rho))
    transformation = optax.contrib.sam(
        pkgutil.resolve_name(optimizer)(learning_rate), ascent_step
    )
    return optax.GradientTransformation(
        transformation.init, lambda *arguments: transformation.update(*arguments)
    )


class OptaxOptimizer(LibraryOptimizer):
    """Gradient descent with the update of an optax ``GradientTransformation``, made by a function of the learning rate."""

    rate_name = "learning_rate"  # optax's name of the learning rate

    def try_out(self, options: dict[str, Any]) -> None:
        """Trace one update, so that invalid options raise an error before a run."""
        _ = _transformation(self.factory, json.dumps(options)).needs_objective

    def initial_state(self, factor: Array, seed: int) -> Any:
        """Return the transformation and its initial state at a factor, compiled beforehand so that timed steps do not include
        compilation; ``seed`` is for its random numbers.
        """
        transformation = _transformation(self.factory, json.dumps(self.seeded(seed)))
        with _double_precision(factor):
            parameter_tree = _parameter_tree(factor)
            state = transformation.at_rate(self.learning_rate).init(parameter_tree)
            if not transformation.needs_objective:
                transformation.step(
                    parameter_tree,
                    (_jax_array(namespace(factor).sum(factor)), parameter_tree),
                    state,
                    self.learning_rate,
                    None,
                )
            return transformation, state

    def call(
        self, objective: Any, factor: Array, memory: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """Make one update of a factor at the learning rate ``rate``, or several if the transformation needs gradients of the
        objective at other points (SAM), each of which counts as a pass over the samples; ``step_continues`` says whether another
        follows. ``memory`` is the transformation and its state.
        """
        (transformation, state), xp, step_continues = memory, namespace(factor), True

        def factor_from_tree(parameter_tree: list[Any]) -> Array:
            """Factor, as an array of the run's library, from the ``parameter_tree``, a list of JAX arrays (one for each
            parameter).
            """
            return join_parameters(
                [xp.from_dlpack(leaf) for leaf in parameter_tree], factor
            )

        def evaluate(trial_factor: Array) -> tuple[Any, list[Any]]:
            """Loss and gradient of the objective at the ``trial_factor``, as JAX arrays."""
            evaluation = objective(trial_factor)
            return _jax_array(evaluation.loss), _parameter_tree(evaluation.gradient)

        with _double_precision(factor):
            while step_continues:
                parameter_tree = _parameter_tree(factor)
                parameter_tree, state, averaged_tree, step_continues = (
                    transformation.step(
                        parameter_tree,
                        evaluate(factor),
                        state,
                        rate,
                        lambda parameter_tree: evaluate(
                            factor_from_tree(parameter_tree)
                        ),
                    )
                )
                factor = factor_from_tree(parameter_tree)
            return (
                factor,
                (transformation, state),
                None if averaged_tree is None else factor_from_tree(averaged_tree),
            )


class _ObjectiveNeededError(Exception):
    """Raised in a test update if the transformation evaluates the objective at another point."""


def _require_objective(tree: Any) -> Any:
    """Stand in for the objective (of a ``tree`` of parameters) in a test update: raise an error that says it is needed."""
    raise _ObjectiveNeededError


class Transformation:
    """Update of an optax transformation, compiled once for all learning rates; the optimizer's state is kept outside.

    One that evaluates the objective while it updates (a line search) is not compiled, for the objective is not JAX's.
    """

    def __init__(self, factory: Callable[..., Any], options: str) -> None:
        """Store the ``factory``, the function that makes the transformation, and its ``options`` (JSON), and compile
        the update.
        """
        os.environ.setdefault(
            "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
        )  # a GPU's memory is for the data, too
        import jax

        option_items = json.loads(options).items()
        self.factory = factory
        self.options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in option_items
        }
        self.compiled = jax.jit(self._update)

    def __deepcopy__(self, memo: Any) -> Transformation:
        """Return the same object, since it holds no state."""
        return self

    def at_rate(self, rate: Any) -> Any:
        """Return the optax transformation at a learning rate."""
        import optax

        return optax.with_extra_args_support(
            self.factory(learning_rate=rate, **self.options)
        )

    @functools.cached_property
    def needs_objective(self) -> bool:
        """Whether the transformation evaluates the objective at other points, as line searches do."""
        import jax

        parameter_tree = [jax.numpy.zeros((2, 2))]
        try:
            jax.eval_shape(
                self._update,
                parameter_tree,
                (0.0, parameter_tree),
                self.at_rate(1.0).init(parameter_tree),
                1.0,
            )
        except _ObjectiveNeededError:
            return True
        return False

    def step(
        self,
        parameter_tree: Any,
        evaluation: Any,
        state: Any,
        rate: float,
        evaluate: Any,
    ) -> Any:
        """Make one update of the parameters (``parameter_tree``) from their ``evaluation`` (loss and gradient) and the
        optimizer's state, at the learning rate ``rate``; return parameters, state, averaged parameters (or None), and whether the
        step continues. ``evaluate`` gives loss and gradient at other parameters.
        """
        import jax

        if not self.needs_objective:
            return self.compiled(parameter_tree, evaluation, state, rate)
        differentiable_loss = jax.custom_vjp(
            lambda parameter_tree: evaluate(parameter_tree)[0]
        )
        differentiable_loss.defvjp(
            evaluate,
            lambda gradient, scale: (
                jax.tree.map(
                    lambda gradient_of_parameter: scale * gradient_of_parameter,
                    gradient,
                ),
            ),
        )
        with jax.disable_jit():
            return self._update(
                parameter_tree, evaluation, state, rate, differentiable_loss
            )

    def _update(
        self,
        parameter_tree: Any,
        evaluation: Any,
        state: Any,
        rate: Any,
        value_fn: Any = _require_objective,
    ) -> Any:
        """Update of ``step`` without compilation, from parameters (``parameter_tree``), their ``evaluation`` (loss and gradient),
        state and learning rate ``rate``; ``value_fn`` gives the loss at other parameters.
        """
        import jax
        import optax

        loss, gradient = evaluation
        updates, state = self.at_rate(rate).update(
            gradient,
            state,
            parameter_tree,
            value=loss,
            grad=gradient,
            value_fn=value_fn,
        )
        parameter_tree = optax.apply_updates(parameter_tree, updates)

        def is_averaging(state: Any) -> bool:
            """Whether a part of the optimizer's state is that of a schedule-free method, which averages its iterates."""
            return isinstance(state, optax.contrib.ScheduleFreeState)

        averaging_states = [
            substate
            for substate in jax.tree.leaves(state, is_leaf=is_averaging)
            if is_averaging(substate)
        ]
        averaged_tree = (
            optax.contrib.schedule_free_eval_params(averaging_states[0], parameter_tree)
            if averaging_states
            else None
        )
        return (
            parameter_tree,
            state,
            averaged_tree,
            optax.tree_utils.tree_get(state, "steps_since_sync", 0),
        )


_transformation = functools.lru_cache(maxsize=32)(Transformation)


@contextmanager
def _double_precision(like: Array) -> Iterator[None]:
    """Context in which JAX computes in double precision, on the device of the array ``like``."""
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
    """Parameters of a factor as a list of JAX arrays."""
    return [_jax_array(parameter) for parameter in split_parameters(factor)]
