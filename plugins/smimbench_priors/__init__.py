"""The law of the signal: one prior per file."""

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_priors(register):
    """Register what is in this folder."""
    from smimbench_priors.gaussian import Gaussian
    from smimbench_priors.wishart.prior import Wishart

    for prior in (Wishart, Gaussian):
        register(prior)
