"""General numerical methods: integrals, random points, linear algebra, caches; nothing specific to attention.

Plugins import the names of this page from here.
"""

from smimbench.numerics.bivariate_normal import log_cdf
from smimbench.numerics.chebyshev import ChebyshevFit, chebyshev_fit, lobatto_points
from smimbench.numerics.free_convolution import FreeConvolution
from smimbench.numerics.indexing import (
    entry_sites,
    places_at_mask,
    put_at_mask,
    site_entries,
    site_pairs,
    site_scales,
    site_values,
)
from smimbench.numerics.linalg import (
    inverse_root,
    is_diagonal,
    outer_product,
    spectral_function,
    symmetric,
    symmetric_logarithm,
    symmetric_root,
    with_floor,
)
from smimbench.numerics.memo import by_value, cached_on
from smimbench.numerics.quadrature import (
    gauss_hermite,
    gauss_legendre,
    gaussian_trapezoid,
    half_plane_hermite,
)
from smimbench.numerics.random_numbers import (
    monte_carlo_rng,
    normal_points,
    normal_scrambles,
    uniform_points,
    whitened_points,
)
from smimbench.numerics.roots import bracketed_roots
from smimbench.numerics.statistics import controlled_mean
from smimbench.numerics.threads import map_in_threads

__all__ = [
    "ChebyshevFit",
    "FreeConvolution",
    "bracketed_roots",
    "by_value",
    "cached_on",
    "chebyshev_fit",
    "controlled_mean",
    "entry_sites",
    "gauss_hermite",
    "gauss_legendre",
    "gaussian_trapezoid",
    "half_plane_hermite",
    "inverse_root",
    "is_diagonal",
    "lobatto_points",
    "log_cdf",
    "map_in_threads",
    "monte_carlo_rng",
    "normal_points",
    "normal_scrambles",
    "outer_product",
    "places_at_mask",
    "put_at_mask",
    "site_entries",
    "site_pairs",
    "site_scales",
    "site_values",
    "spectral_function",
    "symmetric",
    "symmetric_logarithm",
    "symmetric_root",
    "uniform_points",
    "whitened_points",
    "with_floor",
]
