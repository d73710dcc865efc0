"""The Wishart prior of attention-indexed models, and the distribution of its eigenvalues under noise."""

from smimbench_attention.priors.wishart.prior import Wishart
from smimbench_attention.priors.wishart.spectral_law import (
    continued_map,
    eigenvalue_map,
    mmse,
    observed_law,
)

__all__ = ["Wishart", "continued_map", "eigenvalue_map", "mmse", "observed_law"]
