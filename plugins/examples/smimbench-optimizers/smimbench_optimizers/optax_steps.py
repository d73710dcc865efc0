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
    found = optax.contrib.sam(pkgutil.resolve_name(optimizer)(learning_rate), ascent)
    return optax.GradientTransformation(
        found.init, lambda *arguments: found.update(*arguments)
    )


class OptaxOptimizer(LibraryOptimizer):
    """Steps of a function of a learning rate that returns a ``GradientTransformation``."""

    rate_name = "learning_rate"

    def try_out(self, options: dict[str, Any]) -> None:
        """Trace one update."""
        _ = _transformation(self.factory, json.dumps(options)).asks

    def first(self, factor: Array, seed: int) -> Any:
        """The transformation and its state; what can be compiled is, so that steps take what steps take."""
        transformation = _transformation(self.factory, json.dumps(self.seeded(seed)))
        with _where(factor):
            tree = _tree(factor)
            state = transformation.made(self.learning_rate).init(tree)
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
        self, objective: Any, factor: Array, own: Any, rate: float
    ) -> tuple[Array, Any, Array | None]:
        """One update, or several where it needs gradients at other points (SAM); each is counted as a pass over the samples."""
        (transformation, state), xp, waiting = own, namespace(factor), True

        def array(tree: list[Any]) -> Array:
            return joined([xp.from_dlpack(leaf) for leaf in tree], factor)

        def at(tree: list[Any]) -> tuple[Any, list[Any]]:
            there = objective(array(tree))
            return _array(there.loss), _tree(there.gradient)

        with _where(factor):
            while waiting:
                found = objective(factor)
                now = (_array(found.loss), _tree(found.gradient))
                tree, state, evaluated, waiting = transformation.step(
                    _tree(factor), now, state, rate, at
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

    def made(self, rate: Any) -> Any:
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
                self._update, tree, (0.0, tree), self.made(1.0).init(tree), 1.0
            )
        except _AskedError:
            return True
        return False

    def step(self, tree: Any, now: Any, state: Any, rate: float, at: Any) -> Any:
        """Parameters and state after an update, the parameters to be judged if others, and whether the step goes on."""
        import jax

        if not self.asks:
            return self.compiled(tree, now, state, rate)
        value = jax.custom_vjp(lambda tree: at(tree)[0])
        value.defvjp(
            at, lambda gradient, scale: (jax.tree.map(lambda g: scale * g, gradient),)
        )
        with jax.disable_jit():
            return self._update(tree, now, state, rate, value)

    def _update(
        self, tree: Any, now: Any, state: Any, rate: Any, value_fn: Any = _ask
    ) -> Any:
        import jax
        import optax

        value, gradient = now
        updates, state = self.made(rate).update(
            gradient, state, tree, value=value, grad=gradient, value_fn=value_fn
        )
        tree = optax.apply_updates(tree, updates)

        def averages(state: Any) -> bool:
            return isinstance(state, optax.contrib.ScheduleFreeState)

        found = [
            one for one in jax.tree.leaves(state, is_leaf=averages) if averages(one)
        ]
        evaluated = (
            optax.contrib.schedule_free_eval_params(found[0], tree) if found else None
        )
        return (
            tree,
            state,
            evaluated,
            optax.tree_utils.tree_get(state, "steps_since_sync", 0),
        )


_transformation = functools.lru_cache(maxsize=32)(Transformation)


@contextmanager
def _where(like: Array) -> Iterator[None]:
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
    return [_array(part) for part in parts_of(factor)]
