"""The contract of inputs: the distribution of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from smimbench.interfaces.item import Array, Item


class Inputs(Item):
    """Distribution of the inputs: n samples of T tokens in D dimensions, of mean 0 and mean variance 1. ``transform`` makes
    tokens from iid N(0, 1) numbers, ``shape`` is (T, D) of inputs that exist in one size only; ``gaussian`` inputs have the
    covariances ``token_covariance`` and ``feature_variances``.

    Inputs have ``draw``, or ``transform``, from which the engine draws. Samples are independent.
    """

    _alternative_members = (("draw",), ("transform",))

    def draw(
        self, rng: np.random.Generator, n: int, tokens: int, dimension: int
    ) -> Array:
        """Draw tokens (n, T, D) with ``rng`` on the host, T and D being ``tokens`` and ``dimension``; called once for a data
        set.

        Derived: `transform` of iid N(0, 1) numbers.
        """
        raise NotImplementedError

    transform: Callable[[Array], Array] | None = None
    """``transform(z)``: tokens from iid N(0, 1) numbers ``z`` (n, T, D), on their namespace and device, sample by sample. Without
    it: ``draw`` is needed; ``run.draw = "device"`` draws all samples on the host and moves them."""

    shape: tuple[int | None, int | None] = (None, None)
    """``(T, D)`` of inputs that exist in one size only, such as real data; where variances are not all 1,
    theory is for this D, and a parameter ``features`` takes it from a suite. Without it: any."""

    gaussian: ClassVar[bool] = False
    """Whether tokens are Gaussian with ``E x_s,k x_t,l = C_st delta_kl v_k``, the two members below, so that theory is exact.
    Without it: no theory is known, and none is claimed."""

    token_covariance: Callable[[int], Array] | None = None
    """``token_covariance(tokens)``: ``C`` (T, T), positive definite, on the host. Without it: the identity if ``gaussian``,
    otherwise not known."""

    feature_variances: Callable[[int], Array] | None = None
    """``feature_variances(dimension)``: ``v`` (D,) of mean 1, of features that are not correlated, on the host. Without it: ones
    if ``gaussian``, otherwise not known."""
