"""Sparse and binary signals, and matrices of any spectrum, as priors of smimbench."""

from typing import Any

from smimbench import hookimpl
from smimbench_sparse.entries import GaussBernoulli, Rademacher
from smimbench_sparse.spectrum import Spectrum

__all__ = ["GaussBernoulli", "Rademacher", "Spectrum"]


@hookimpl
def smimbench_register_priors(register: Any) -> None:
    """Register the priors of this package with smimbench."""
    for prior in (GaussBernoulli, Rademacher, Spectrum):
        register(prior)
