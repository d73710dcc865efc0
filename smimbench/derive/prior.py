r"""Completes priors that implement only part of the contract.

* a ``law`` with a ``log_density``: a low-rank signal with iid entries of that law. Posterior mean and error by quadrature.
* a ``law`` with ``quantile`` or ``eigenvalues``: a rotationally invariant matrix of extensive rank with that spectrum.
  Posterior mean and error by free convolution with a semicircle.
* ``sample`` and ``denoise``: any signal. The state-evolution map is what ``denoise`` does in simulations.

In the first two the law is scaled to unit variance unless the prior draws its own samples, so that the prior mean scores 1.
"""

from __future__ import annotations

from typing import Any

from smimbench.derive.density_prior import DensityPrior
from smimbench.derive.simulated_prior import SimulatedPrior
from smimbench.derive.spectrum_prior import SpectrumPrior
from smimbench.interfaces import Array, Denoised, Model, ParameterError, Prior
from smimbench.interfaces.item import gives, takes, with_defaults


def complete_prior(prior: Prior, model: Model) -> Any:
    """Return the prior with all members added that can be derived, or the same object if it lacks none.

    Raises
    ------
    ParameterError
        If it gives neither ``denoise`` nor a law that the engine can use with this model.
    """
    with_defaults(Prior, type(prior))
    members = ("sample", "mean", "second_moment", "mean_overlap", "denoise", "overlap")
    if all(gives(Prior, type(prior), name) for name in members):
        return prior
    prior_name = f"prior {getattr(prior, 'name', type(prior).__name__)!r}"
    if gives(Prior, type(prior), "denoise"):
        if not gives(Prior, type(prior), "sample"):
            raise ParameterError(
                "name", f"{prior_name} defines denoise but not sample; both are needed"
            )
        return SimulatedPrior(prior, model)
    matrix = model.rank == "extensive"
    law = prior.law
    if matrix and law.quantile is None and law.eigenvalues is None:
        raise ParameterError(
            "name",
            f"{prior_name} defines neither denoise nor a law with quantile or eigenvalues; matrix signals need one of these",
        )
    if not matrix and law.log_density is None:
        raise ParameterError(
            "name",
            f"{prior_name} defines neither denoise nor a law with log_density; low-rank signals need one of these",
        )
    return SpectrumPrior(prior) if matrix else DensityPrior(prior)


def denoise_step(prior: Prior, R: Array, Qhat: Array) -> Denoised:
    """Call ``denoise`` within an iteration at finite size, with ``continued=True`` where the prior accepts that argument."""
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
