"""The state of a gradient method, and operations on its arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array, Data, Host
from smimbench.problem import Problem


class DescentState(NamedTuple):
    """State of a gradient method during a run: the factor that is learned and its signal, ``memory`` of the method (velocity,
    moments), labels as targets, indices of the samples still to be used in this epoch, the random generator, counters of
    steps and samples.

    With students, factor and signal have one more axis in front.

    Attributes
    ----------
    factor, signal : array
        What is descended on, and the signal that it stands for.
    memory : tuple of array
        Of the method: momentum, moments.
    targets : array (n, ...)
        Labels as a user would measure them.
    remaining_samples : ndarray
        Samples of this epoch that are still to be used.
    rng : Generator
        Order of the samples, or the stream of fresh ones.
    mean_square : array or None
        Mean square of the estimate's entries, where labels do not determine their scale.
    loss : str
    total_steps, steps_made : int
        Steps of the whole run, and steps so far.
    processed_samples : int
        Processed so far, repeated ones counted each time.
    rates : ndarray (total_steps,) or None
        Learning rates, where they are computed before the run.
    """

    factor: Array
    signal: Array
    memory: tuple[Array, ...]  # velocity or moments of the gradient
    targets: Array  # labels as a user would measure them
    remaining_samples: Host  # indices still unused in this epoch
    rng: np.random.Generator
    mean_square: Array | None  # mean square of the estimate's entries
    loss: str  # name of the loss
    total_steps: int  # steps of the whole run
    steps_made: int = 0  # steps so far
    processed_samples: int = 0  # samples of all steps so far
    rates: Host | None = None  # learning rate of every step

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Arrays of one run, which the joint state of several runs stacks."""
        return self.factor, self.signal, self.targets, *self.memory

    def with_arrays(
        self, factor: Array, signal: Array, targets: Array, *memory: Array
    ) -> DescentState:
        """The same state with other arrays, in the order of ``arrays``."""
        return self._replace(
            factor=factor, signal=signal, targets=targets, memory=memory
        )


def entry_by_entry(targets: Array) -> Array:
    """Targets (students, n, ...) in another memory order, in which all samples of an entry are next to each other, as in the
    latents of ``forward_gram``: loops over the few entries of each sample take several times as long as those over samples.
    """
    xp = namespace(targets)
    entries = xp.permute_dims(targets, (*range(2, targets.ndim), 0, 1))
    flat_entries = xp.reshape(entries, (-1,))
    entries = xp.reshape(flat_entries, entries.shape)
    return xp.permute_dims(entries, (-2, -1, *range(targets.ndim - 2)))


def with_mean_square(signal: Array, mean_square: Array | None) -> Array:
    """Signal whose entries are scaled to this mean square in every component; as it is if that is None."""
    if mean_square is None:
        return signal
    xp = namespace(signal)
    component_axes = tuple(range(-mean_square.ndim + 1, 0))
    signal_mean_square = xp.mean(signal * signal, axis=component_axes, keepdims=True)
    is_positive = signal_mean_square > 0
    safe_mean_square = xp.where(
        is_positive, signal_mean_square, xp.ones_like(signal_mean_square)
    )
    return signal * xp.sqrt(mean_square / safe_mean_square)


def axes_of_component(problem: Problem, data: Data) -> tuple[int, ...]:
    """Array axes, counted from the last one, of the entries of one component, in the signal and in the factor."""
    return tuple(range(1 - len(problem.model.signal_shape(1, data.dimension)), 0))


def project_to_sphere(factor: Array, component_axes: tuple[int, ...]) -> Array:
    """Project every component of a factor, whose entries are on ``component_axes``, to the sphere with the norm of iid N(0,
    1) entries.
    """
    xp = namespace(factor)
    return factor / xp.sqrt(
        xp.mean(factor * factor, axis=component_axes, keepdims=True)
    )
