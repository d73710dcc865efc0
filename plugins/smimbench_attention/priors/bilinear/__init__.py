"""The prior of untied queries and keys, a product of two Gaussian matrices, and its singular values under noise."""

from smimbench_attention.priors.bilinear.prior import Bilinear
from smimbench_attention.priors.bilinear.singular_law import (
    mmse,
    observed_law,
    singular_map,
)

__all__ = ["Bilinear", "mmse", "observed_law", "singular_map"]
