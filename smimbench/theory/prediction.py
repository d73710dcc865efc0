"""What an estimate predicts for the label of a new sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["observable", "predict"]


def observable(channel: Any, y: Array) -> Array:
    """Labels as a user would measure them: probabilities instead of log-probabilities, say."""
    convert = getattr(channel, "observable", None)
    return y if convert is None else convert(y)


def predict(channel: Any, z: Array) -> Array:
    """Noiseless observable output of given latents; the plug-in prediction when ``z`` is an estimate."""
    direct = getattr(channel, "predict", None)
    return observable(channel, channel.forward(z)) if direct is None else direct(z)
