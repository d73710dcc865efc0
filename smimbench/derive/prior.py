r"""Completes priors that implement only part of the contract.

* ``log_density(w)``: a low-rank signal with iid entries of that law. Posterior mean and error by quadrature.
* ``quantile(u)`` or ``eigenvalues``: a rotationally invariant matrix of extensive rank with that spectrum. Posterior mean
  and error by free convolution with a semicircle.
* ``sample`` and ``denoise``: any signal. The state-evolution map is what ``denoise`` does in simulations.

In the first two the law is scaled to unit variance unless the prior draws its own samples, so that the prior mean scores 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.derive.density_prior import DensityPrior
from smimbench.derive.simulated_prior import SimulatedPrior
from smimbench.derive.spectrum_prior import SpectrumPrior
from smimbench.interfaces import ParameterError, Prior
from smimbench.interfaces.item import gives, with_defaults

if TYPE_CHECKING:
    from smimbench.interfaces import Model

__all__ = ["complete_prior", "why_theory_only"]


def complete_prior(prior: Any, model: Model) -> Any:
    """The prior with everything the engine can derive; the same object where nothing is missing.

    Raises
    ------
    ParameterError
        If it gives neither ``denoise`` nor a law that the engine can use with this model.
    """
    with_defaults(Prior, type(prior))
    needed = ("sample", "mean", "second_moment", "mean_overlap", "denoise", "overlap")
    if all(gives(Prior, type(prior), name) for name in needed):
        return prior
    who = f"prior {getattr(prior, 'name', type(prior).__name__)!r}"
    if gives(Prior, type(prior), "denoise"):
        if not gives(Prior, type(prior), "sample"):
            raise ParameterError("name", f"{who} gives denoise but no sample; both are needed")
        return SimulatedPrior(prior, model)
    matrix = model.rank == "extensive"
    density, spectrum = prior.log_density is not None, prior.quantile is not None or prior.eigenvalues is not None
    if not density and not spectrum:
        raise ParameterError(
            "name", f"{who} gives neither denoise nor log_density, quantile or eigenvalues; one of them is needed"
        )
    if matrix and not spectrum:
        raise ParameterError("name", f"{who} gives a log_density, which is for low-rank signals")
    if not matrix and not density:
        raise ParameterError("name", f"{who} gives a spectrum, which is for matrices of extensive rank")
    return SpectrumPrior(prior) if matrix else DensityPrior(prior)


def why_theory_only(prior: Any, components: int) -> str | None:
    """Why no signal of a prior can be drawn, as of a limit that only theory knows: what ``mean`` raises; None if one can."""
    try:
        prior.mean(components, 8)
    except ParameterError as error:
        return error.message
    return None
