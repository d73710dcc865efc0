"""What an estimate predicts for the label of a new sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from smimbench.interfaces import Array, ProblemLike

__all__ = ["gives_probabilities", "observable", "predict"]


def observable(channel: Any, y: Array) -> Array:
    """Labels as a user would measure them: probabilities instead of log-probabilities, say."""
    convert = getattr(channel, "observable", None)
    return y if convert is None else convert(y)


def predict(channel: Any, z: Array) -> Array:
    """Noiseless observable output of given latents; the plug-in prediction when ``z`` is an estimate."""
    direct = getattr(channel, "predict", None)
    return observable(channel, channel.forward(z)) if direct is None else direct(z)


def gives_probabilities(problem: ProblemLike) -> bool:
    """Whether a label, as a user would measure it, is made of rows of probabilities."""
    rng = monte_carlo_rng("label of a few latents")
    z = rng.standard_normal((4, problem.components, problem.model.sites))
    channel: Any = problem.channel
    y = channel.forward(z, rng=rng)
    if not hasattr(channel, "observable"):
        return False
    p = np.asarray(channel.observable(y))
    return bool(p.ndim >= 2 and (p >= 0).all() and np.allclose(p.sum(axis=-1), 1.0))
