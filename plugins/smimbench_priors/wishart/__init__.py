"""The Wishart prior of attention-indexed models, and the law of its eigenvalues under noise."""

from smimbench_priors.wishart.prior import Wishart
from smimbench_priors.wishart.spectral_law import eigenvalue_map, mmse, observed_law

__all__ = ["Wishart", "eigenvalue_map", "mmse", "observed_law"]
