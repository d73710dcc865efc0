"""Committee and parity machines: channels given by their likelihood alone, which smimbench integrates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from smimbench import Capabilities, ParameterError
from smimbench.backend import namespace
from smimbench.interfaces.checks import check_latents, check_whole

__all__ = ["Committee", "SignProduct"]


class _Votes:
    """Base class of noiseless channels whose labels, one for each of M tokens, are the sign of a score of the signs of the
    token's P latents.
    """

    version = 1
    reference = "derived, checked by tests/test_votes.py"
    capabilities = Capabilities(models=("sequence-multi-index",))
    tokens: int
    components: int

    def __post_init__(self) -> None:
        """Check that tokens and components are whole numbers of at least 1, with at most 12 latents in all."""
        for key in ("tokens", "components"):
            check_whole(key, getattr(self, key), 1)
        if self.tokens * self.components > 12:
            raise ParameterError(
                "components",
                f"times tokens must be at most 12 latents, got {self.components} components * {self.tokens} tokens",
            )

    def _score(self, signs: Any) -> Any:
        """Score (..., n, M) whose sign is the label, from the ``signs`` (..., n, P, M) of the latents; each subclass defines it,
        as a sum or a product.
        """
        raise NotImplementedError

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, M) of the latents z (..., n, P, M): +1, -1, or 0 for a tie; ``rng`` is not used."""
        check_latents(z, self.components, self.tokens)
        xp = namespace(z)
        return xp.sign(self._score(xp.where(z >= 0, xp.ones_like(z), -xp.ones_like(z))))

    def log_likelihood(self, y: Any, z: Any) -> Any:
        """Log-likelihood (n,) of the labels y (n, M) given the latents z (n, P, M): 0 if the latents give these labels, else
        minus infinity.
        """
        xp = namespace(y, z)
        zeros = xp.zeros_like(z[..., 0, 0])
        return xp.where(xp.all(self.forward(z) == y, axis=-1), zeros, zeros - math.inf)


@dataclass(frozen=True)
class Committee(_Votes):
    r"""Committee machine: the majority of P hidden signs.

    .. math:: y_m = \mathrm{sign} \sum_p \mathrm{sign}(z_{pm})

    Labels are (n, M): +1, -1, and 0 where an even number of signs is tied.

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.
    components : int
        P, at least 1.

    References
    ----------
    arXiv:1806.05451 (the model and its specialization transition); likelihood checked by tests/test_votes.py.
    """

    tokens: int = 1
    components: int = 3

    name = "committee"
    reference = "arXiv:1806.05451"
    symmetry = "permutations"

    def _score(self, signs: Any) -> Any:
        """Sum of the signs of the P latents, whose sign is the majority."""
        return namespace(signs).sum(signs, axis=-2)


@dataclass(frozen=True)
class SignProduct(_Votes):
    r"""Parity machine: the product of P hidden signs.

    .. math:: y_m = \prod_p \mathrm{sign}(z_{pm})

    Labels are (n, M). Two signs that change together leave every label as it is: directions are found up to that.
    Derived, checked by tests/test_votes.py.

    Parameters
    ----------
    tokens : int
        M, at least 1; filled in from the model.
    components : int
        P; 1 is the channel ``sign``.
    """

    tokens: int = 1
    components: int = 2

    name = "sign-product"

    @property
    def symmetry(self) -> str:
        """Symmetry of the labels: permutations of the P components and, if P is even, a common sign as well."""
        return "permutations" if self.components % 2 else "permutations-common-sign"

    def _score(self, signs: Any) -> Any:
        """Product of the signs of the P latents."""
        return namespace(signs).prod(signs, axis=-2)
