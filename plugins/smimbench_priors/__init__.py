"""Priors shipped with smimbench: distributions of the signal."""

from collections.abc import Callable

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_priors(register: Callable[[type], None]) -> None:
    """Register the priors in this folder."""
    from smimbench_priors.bilinear import Bilinear
    from smimbench_priors.gaussian import Gaussian
    from smimbench_priors.wishart import Wishart

    for prior in (Wishart, Bilinear, Gaussian):
        register(prior)
