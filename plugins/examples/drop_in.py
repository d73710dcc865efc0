"""A channel in one file: with ``--plugins drop_in.py``, suites can use it as ``name = "large"``."""

from dataclasses import dataclass

from scipy.special import log_ndtr, ndtr

from smimbench import Capabilities, hookimpl


@dataclass(frozen=True)
class Large:
    """Channel with label 1 with probability Phi((|z| - width) / 0.3), otherwise 0."""

    width: float = 1.0
    name, version, reference, symmetry, components = "large", 1, "this file", "signs", 1
    capabilities = Capabilities(models=("sequence-multi-index",), backends=("numpy",))

    def forward(self, z, *, rng=None):
        return rng.random(len(z)) < ndtr((abs(z[:, 0, 0]) - self.width) / 0.3)

    def log_likelihood(self, y, z):
        return log_ndtr((2 * y - 1) * (abs(z[:, 0, 0]) - self.width) / 0.3)


@hookimpl
def smimbench_register_channels(register):
    register(Large)
