"""The contract of a channel: how the latents determine the label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces.item import Array, Host, Item, Uncertain

SYMMETRIES = (
    "none",
    "signs",
    "common-sign",
    "permutations",
    "permutations-common-sign",
    "signed-permutations",
    "rotations",
)
"""Values of ``symmetry``: the transformations of the signal that leave a channel's labels unchanged."""


class Posterior(NamedTuple):
    """Posterior of the latents (n, P, C) of n samples given their labels: mean (n, P, C), covariance (P, P) averaged over
    samples and sites, second moment of each sample. ``error`` is the numerical error of the mean.

    Attributes
    ----------
    mean : array (n, P, C)
        ``E[z | y, omega, V]``.
    covariance : array (P, P)
        ``Cov(z_c | y, omega, V)`` averaged over samples and sites.
    second_moment : array (n, P, C, P, C) or None
        ``E[z z^T | y, omega, V]``, not centered; only on request.
    error : float, or array () on a device
        Numerical error of ``mean``: root mean square over samples, relative to ``sqrt(diag V)``. 0 for closed forms.
    """

    mean: Array
    covariance: Array
    second_moment: Array | None = None
    error: float = 0.0


class Sampling(NamedTuple):
    """Monte Carlo settings of a channel: labels drawn for its information, points drawn for its posterior. ``rough_labels(Q, V)``
    is a number of labels that is enough for finite differences of the information, ``resampled(index)`` the channel with other
    random points.

    Attributes
    ----------
    rough_labels : callable or None
        ``rough_labels(Q, V)``: number of labels that is enough for differences of ``information(Q, V, labels=...)`` and of the
        channel's own ``susceptibility``.
    resampled : callable or None
        ``resampled(index)``: the same channel with other random points in its sampled posterior, different for every index.
    """

    rough_labels: Callable[[Array, Array], int] | None = None
    resampled: Callable[[int], Channel] | None = None


class Channel(Item):
    """Channel from latents z to label, y = g(z), and the posterior of the latents given the label. ``log_likelihood`` is log
    p(y | z), ``log_partition`` that of y before z is known, ``components`` the number P of directions or layers,
    ``symmetry`` what may be done to them without changing labels, ``information`` the Fisher information and
    ``susceptibility`` how that starts at overlap 0. ``mixed(A)`` is the channel of latents ``z = A u``, ``equations`` the
    number that a noiseless label states, ``vjp`` the gradient by the latents, ``observable`` the label as a user would
    measure it, ``predict`` its mean given z.

    A channel has ``forward`` and either ``posterior`` or ``log_likelihood``. Dataclass fields named ``tokens`` and ``symmetric``
    are filled in from the model; a parameter ``layers`` makes tables call its components layers.
    """

    _required_members = ("forward",)
    _alternative_members = (("posterior",), ("log_likelihood",))

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Draw the labels of the latents ``z`` (n, P, C); ``rng`` is for the noise."""
        raise NotImplementedError

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of the latents z (n, P, C) given the labels y of n samples, if z ~ N(omega, V (x) I_C) before: means
        ``omega`` (n, P, C), covariance V (P, P) of components. ``second_moment`` asks for that of each sample, ``rng`` is
        for channels that integrate by sampling.

        Derived: from `log_likelihood`.

        ``rng`` is for channels that integrate by sampling.
        """
        raise NotImplementedError

    log_likelihood: Callable[[Array, Array], Array] | None = None
    """``log_likelihood(y, z)``: ``log p(y | z)`` (n,) up to a function of y, ``-inf`` where y is impossible: the engine
    integrates, in up to 12 latent dimensions, to about 1e-2 of its width. A continuous label without noise has none. With few
    labels give normalized probabilities: sums over labels are then exact. Without it: there must be a posterior."""

    mixed: Callable[[Host], Channel] | None = None
    """``mixed(A)``: the channel of latents ``z = A u`` with u (n, P, C) independent over sites and A (C, C) invertible, on the
    host: a ``smimbench.derive.MixedChannel`` with a posterior, for correlated tokens. Derived: `log_likelihood` is integrated;
    without either, there are no correlated tokens."""

    components: Any = 1
    """P, the number of directions or layers. Derived: 1."""

    symmetry: Any = None
    """Transformations of the signal that leave all labels unchanged, one of ``SYMMETRIES``, such as ``"signs"`` of each
    component or one ``"common-sign"``. Derived: found by trial; better stated."""

    information: Callable[[Array, Array], Uncertain] | None = None
    """``information(Q, V)``: ``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.
    Derived: sampled, or nested quadrature of the likelihood."""

    susceptibility: Callable[[Array, Array], Uncertain] | None = None
    """``susceptibility(Q, V)``: how the information of components without overlap (``Q_aa = 0``) starts where no label sees
    their sign: ``I_ab = lambda_ab Q_ab`` to first order, ``lambda_ab = E sum_cc' G_a,cc' G_b,cc'`` (..., P, P) with
    ``G_a,cc' = (E[z_ac z_ac' | y, omega] - V_aa delta_cc') / V_aa^2``; 0 for other components. Derived: sampled, where needed."""

    sampling: Sampling | None = None
    """``Sampling(rough_labels, resampled)`` of an information or a posterior that is sampled. Without it: fixed points take
    accurate values alone, and draws of ``theory --verify`` share the points of a sampled posterior, and their error."""

    equations: Any = None
    """Independent equations that a noiseless label states about its latents, the limit of ``tr(V I)`` as V vanishes, where all
    components share them. Derived: the limit is looked at numerically."""

    vjp: Callable[..., Array] | None = None
    """``vjp(z, cotangent)``: gradient (n, P, C) of ``sum(cotangent * observable(forward(z)))`` with respect to ``z``. Derived:
    finite differences where the label is smooth; gradient methods refuse otherwise. Where it has an argument ``output``, it may
    be given ``predict(z)``, if that is known."""

    predict: Callable[[Array], Array] | None = None
    """``predict(z)``: ``E[observable(y) | z]`` of a noisy label. Derived: the noiseless label, or the mean of draws of a noisy
    one."""

    observable: Callable[[Array], Array] | None = None
    """``observable(y)``: the label as a user would measure it (probabilities). Derived: the label itself."""

    log_partition: Callable[[Array, Array, Array], Array] | None = None
    """``log_partition(y, omega, V)``: logarithm (n,) of the probability of y, up to a function of y. Without it: there is no
    check `gradient`."""

    generalization_error: Callable[[Array, Array], dict[str, Uncertain]] | None = None
    """``generalization_error(Q, V)``: closed forms for ``"bayes"``, ``"plugin"`` and ``"constant"``. Derived: sampled."""
