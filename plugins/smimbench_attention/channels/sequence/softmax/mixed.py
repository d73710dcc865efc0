"""One layer of softmax attention on correlated tokens, ``z = A zeta``: the label leaves ``+-A^(-1) u``."""

from __future__ import annotations

from numpy.random import Generator

from smimbench.derive import MixedChannel
from smimbench.interfaces import Array, Posterior, Uncertain
from smimbench_attention.channels.sequence.softmax import network, one_layer


class MixedSequenceSoftmax(MixedChannel):
    """Closed forms of one layer whose latents are mixed: all but the posterior is as for independent tokens."""

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Two-point posterior; arguments as for the channel."""
        u = self.apply(self.inverse, network.output_of_label(y))
        return one_layer.posterior(u, omega, V, second_moment)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """That of independent tokens."""
        return one_layer.information(Q, V, len(self.mixing))

    def susceptibility(self, Q: Array, V: Array) -> Uncertain:
        """That of independent tokens."""
        return one_layer.susceptibility(Q, V, len(self.mixing))
