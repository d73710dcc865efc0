"""The contract of a channel: how the latents become the label."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from smimbench.interfaces.basics import Array, Capabilities

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SYMMETRIES", "Channel", "Posterior"]

SYMMETRIES = (
    "none",
    "signs",
    "common-sign",
    "permutations",
    "permutations-common-sign",
    "signed-permutations",
    "rotations",
)
"""What a channel's labels may not see of the signal: the values of ``symmetry``."""


class Posterior(NamedTuple):
    """Posterior of the latents of every sample.

    Attributes
    ----------
    mean : array (n, P, C)
        ``E[z | y, omega, V]``.
    covariance : array (P, P)
        ``Cov(z_c | y, omega, V)`` averaged over samples and sites.
    second_moment : array (n, P, C, P, C) or None
        ``E[z z^T | y, omega, V]``, not centred; only on request.
    error : float, or array () on a device
        Numerical error of ``mean``: root mean square over samples, relative to ``sqrt(diag V)``. 0 for closed forms.
    """

    mean: Array
    covariance: Array
    second_moment: Array | None = None
    error: float = 0.0


class Channel(Protocol):
    """How the latents become the label, y = g(z), and what a label says about them.

    A dataclass field named ``tokens`` is filled in from the model. ``symmetry``, one of ``SYMMETRIES``, names the
    transformations of the signal that no label can see: ``"signs"`` of each component apart, a ``"common-sign"`` of all at
    once, as of a product.

    Optional methods (what the engine does without them: ``smimbench.interfaces.members``):

    ``information(Q, V) -> Uncertain``
        ``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.
    ``susceptibility(Q, V) -> Uncertain``
        How the information of components without overlap (``Q_aa = 0``) starts where no label sees their sign: ``I_ab =
        lambda_ab Q_ab`` to first order, ``lambda_ab = E sum_cc' G_a,cc' G_b,cc'`` (..., P, P) with ``G_a,cc' =
        (E[z_ac z_ac' | y, omega] - V_aa delta_cc') / V_aa^2``. Entries of other components are 0.
    ``equations`` (attribute, float)
        Number of independent equations that a noiseless label states about its latents, the limit of ``tr(V I)`` as V
        vanishes, where all components share them. Noisy labels have none.
    ``vjp(z, cotangent) -> array (n, P, C)``
        Gradient of ``sum(cotangent * observable(forward(z)))`` with respect to ``z``.
    ``observable(y) -> array``
        The label as a user would measure it (probabilities).
    ``log_likelihood(y, z) -> array (n,)``
        In place of ``posterior``: ``log p(y | z)`` up to a function of y, ``-inf`` where y is impossible. The engine
        integrates, in up to 12 latent dimensions, to about 1e-2 of the width of the posterior. A label that is a continuous
        function of the latents without noise has no likelihood and needs ``posterior``. Channels with few labels should
        give normalised probabilities: sums over labels are then exact.
    ``predict(z) -> array``
        ``E[observable(y) | z]`` of a noisy label.
    ``generalization_error(Q, V) -> dict of Uncertain``
        Closed forms for ``"bayes"``, ``"plugin"`` and ``"constant"``.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities
    symmetry: str

    @property
    def components(self) -> int:
        """P, the number of directions or layers."""
        ...

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Labels of the latents ``z`` (n, P, C). ``rng`` is required by noisy channels only."""
        ...

    def posterior(
        self, y: Array, omega: Array, V: Array, *, second_moment: bool = False, rng: np.random.Generator | None = None
    ) -> Posterior:
        """Posterior of z ~ N(omega, V (x) I_C) given y. ``rng`` is used by channels that integrate by sampling."""
        ...
