"""Derives members that a channel or prior does not define, such as posteriors and symmetries.

It decides what an item lacks; how that is computed is imported for items that lack something. It also holds code shared by
several kinds of items, such as the default stopping rule.

Plugins import the names of this page from here.
"""

from typing import Any

from smimbench.derive.labels import gives_probabilities, is_noisy, observable, predict
from smimbench.derive.sampled_information import (
    LabelMeans,
    Labels,
    label_means,
    sampled_moments,
    without_overlap,
)
from smimbench.derive.stopping import OverlapRule
from smimbench.derive.whitening import MixedChannel, mixed_channel
from smimbench.interfaces import (
    Array,
    Channel,
    Denoised,
    Model,
    ParameterError,
    Prior,
    takes,
)
from smimbench.interfaces.item import defines_member, with_defaults

__all__ = [
    "LabelMeans",
    "Labels",
    "MixedChannel",
    "OverlapRule",
    "complete_channel",
    "complete_prior",
    "denoise_step",
    "gives_probabilities",
    "is_noisy",
    "label_means",
    "mixed_channel",
    "observable",
    "predict",
    "sampled_moments",
    "why_theory_only",
    "without_overlap",
]


def complete_channel(channel: Channel, model: Model) -> Any:
    """Return the channel with all members (methods and attributes) added that can be derived, for the number of sites of the
    ``model``. ``derivable_members`` are its symmetry, prediction and derivative, None where it lacks them.

    Parameters
    ----------
    channel : Channel
        As registered.
    model : Model
        Says how many sites there are.

    Returns
    -------
    Channel
        The same object if it has all members. Others are derived when first asked for.

    Raises
    ------
    ParameterError
        If it gives a likelihood only, in more latent dimensions than can be integrated; or one that does not fit the labels
        of ``forward``; or if the label is a noiseless continuous function of the latents, which has no likelihood.
    """
    with_defaults(Channel, type(channel))
    if not defines_member(Channel, type(channel), "posterior"):
        from smimbench.derive.channel import IntegratedChannel

        integrated_channel = IntegratedChannel(channel, model.sites)
        integrated_channel.check()
        return integrated_channel
    derivable_members = (channel.symmetry, channel.predict, channel.vjp)
    if all(member is not None for member in derivable_members):
        return channel
    from smimbench.derive.channel import DerivedChannel

    return DerivedChannel(channel, model.sites)


def complete_prior(prior: Prior, model: Model) -> Any:
    """Return the prior with all members added that can be derived, or the same object if it lacks none; the ``model`` says
    whether signals are matrices.

    Raises
    ------
    ParameterError
        If it gives neither ``denoise`` nor a law that the engine can use with this model.
    """
    with_defaults(Prior, type(prior))
    derivable_members = (
        "sample",
        "mean",
        "second_moment",
        "mean_overlap",
        "denoise",
        "overlap",
    )
    if all(defines_member(Prior, type(prior), member) for member in derivable_members):
        return prior
    prior_name = f"prior {getattr(prior, 'member', type(prior).__name__)!r}"
    if defines_member(Prior, type(prior), "denoise"):
        if not defines_member(Prior, type(prior), "sample"):
            raise ParameterError(
                "name", f"{prior_name} defines denoise but not sample; both are needed"
            )
        from smimbench.derive.derived_prior import SimulatedPrior

        return SimulatedPrior(prior, model)
    is_matrix = model.rank == "extensive"
    law = prior.law
    if is_matrix and law.quantile is None and law.eigenvalues is None:
        raise ParameterError(
            "name",
            f"{prior_name} defines neither denoise nor a law with quantile or eigenvalues; matrix signals need one of these",
        )
    if not is_matrix and law.log_density is None:
        raise ParameterError(
            "name",
            f"{prior_name} defines neither denoise nor a law with log_density; low-rank signals need one of these",
        )
    from smimbench.derive.prior import DensityPrior, SpectrumPrior

    return SpectrumPrior(prior) if is_matrix else DensityPrior(prior)


def denoise_step(prior: Prior, R: Array, Qhat: Array) -> Denoised:
    """Call ``denoise`` with observation R and information Qhat within an iteration at finite size, with ``continued=True`` (its
    map extended beyond the spectrum of the limit) where the prior accepts that argument.
    """
    options = {"continued": True} if takes(prior.denoise, "continued") else {}
    return prior.denoise(R, Qhat, **options)


def why_theory_only(prior: Prior, components: int) -> str | None:
    """Reason why no signal can be drawn from a prior that is a limit for theory only, or None.

    It is the message that ``mean`` raises.
    """
    try:
        prior.mean(components, 8)
    except ParameterError as error:
        return error.message
    return None
