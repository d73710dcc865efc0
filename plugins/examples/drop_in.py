"""A channel in one file: ``smimbench theory SUITE --plugins drop_in.py``. Labels are 1 where a noisy latent is large."""

import math
from dataclasses import dataclass

from smimbench import Capabilities, hookimpl
from smimbench.backend import namespace, special


@dataclass(frozen=True)
class Large:
    """Label 1 with probability Phi((|z| - width) / 0.3), else 0."""

    width: float = 1.0
    name, version, reference, symmetry, components = "large", 1, "plugins/examples/drop_in.py", "signs", 1
    capabilities = Capabilities(models=("sequence-multi-index",))

    def forward(self, z, *, rng=None):
        return rng.random(z.shape[0]) < special(namespace(z)).ndtr((abs(z[:, 0, 0]) - self.width) / 0.3)

    def log_likelihood(self, y, z):
        return special(namespace(z)).log_ndtr((2 * y - 1) * (abs(z[:, 0, 0]) - self.width) / 0.3)


@hookimpl
def smimbench_register_channels(register):
    register(Large)
