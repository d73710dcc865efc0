"""Which derived channel completes a channel that gives less than the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.derive.derived_channel import DerivedChannel
from smimbench.derive.labels import gives_probabilities, observable, predict
from smimbench.derive.likelihood_channel import IntegratedChannel
from smimbench.interfaces import Channel
from smimbench.interfaces.item import gives, with_defaults

if TYPE_CHECKING:
    from smimbench.interfaces import Model

__all__ = ["complete_channel", "gives_probabilities", "observable", "predict"]


def complete_channel(channel: Any, model: Model) -> Any:
    """The channel with everything the engine can add: a posterior from its likelihood, a derivative, a prediction.

    Parameters
    ----------
    channel : Channel
        As registered.
    model : Model
        Says how many sites there are.

    Returns
    -------
    Channel
        The same object where nothing is missing or can be added.

    Raises
    ------
    ParameterError
        If it gives a likelihood only, in more latent dimensions than can be integrated; or one that does not fit the labels
        of ``forward``; or if the label is a noiseless continuous function of the latents, which has no likelihood.
    """
    with_defaults(Channel, type(channel))
    if not gives(Channel, type(channel), "posterior"):
        integrated = IntegratedChannel(channel, model.sites)
        integrated.check()
        return integrated
    derived = DerivedChannel(channel, model.sites)
    if channel.symmetry is None or not gives(Channel, type(channel), "components"):
        return derived
    adds_prediction = channel.predict is None and derived.noisy
    adds_derivative = channel.vjp is None and derived.smooth
    return derived if adds_prediction or adds_derivative else channel
