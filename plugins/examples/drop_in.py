"""A channel in one file: with ``--plugins drop_in.py``, suites can use it as ``name = "large"``."""

from dataclasses import dataclass

from scipy.special import log_ndtr, ndtr

from smimbench import Capabilities, hookimpl


@dataclass(frozen=True)
class Large:
    """Channel whose label is 1 with probability Phi((|z| - width) / 0.3), else 0, at the latent z; Phi is the normal distribution
    function.
    """

    width: float = 1.0
    name, version, reference, symmetry, components = "large", 1, "this file", "signs", 1
    capabilities = Capabilities(models=("sequence-multi-index",), backends=("numpy",))

    def forward(self, z, *, rng=None):
        """Draw labels (n,) of the latents z (n, 1, 1) with the random generator ``rng``."""
        return rng.random(len(z)) < ndtr((abs(z[:, 0, 0]) - self.width) / 0.3)

    def log_likelihood(self, y, z):
        """Log-likelihood ``log p(y | z)`` (n,) of the labels y at the latents z (n, 1, 1)."""
        return log_ndtr((2 * y - 1) * (abs(z[:, 0, 0]) - self.width) / 0.3)


@hookimpl
def smimbench_register_channels(register):
    """Register the channel with smimbench."""
    register(Large)
