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
    """Base class of noiseless channels whose labels, one for each token, are functions of the signs of its P latents."""

    version = 1
    reference = "derived, checked by tests/test_votes.py"
    capabilities = Capabilities(models=("sequence-multi-index",))
    tokens: int
    components: int

    def __post_init__(self) -> None:
        for key in ("tokens", "components"):
            check_whole(key, getattr(self, key), 1)
        if self.tokens * self.components > 12:
            raise ParameterError(
                "components",
                f"components * tokens must be at most 12, got {self.components} * {self.tokens}",
            )

    def _score(self, signs: Any) -> Any:
        raise NotImplementedError

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Labels (..., n, M) of the latents (..., n, P, M): +1, -1, or 0 for a tie; ``rng`` is not needed."""
        check_latents(z, self.components, self.tokens)
        xp = namespace(z)
        return xp.sign(self._score(xp.where(z >= 0, xp.ones_like(z), -xp.ones_like(z))))

    def log_likelihood(self, y: Any, z: Any) -> Any:
        """Log-likelihood (n,): 0 if the latents (n, P, M) give the label (n, M), otherwise minus infinity."""
        xp = namespace(y, z)
        zero = xp.zeros_like(z[..., 0, 0])
        return xp.where(xp.all(self.forward(z) == y, axis=-1), zero, zero - math.inf)


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
        """Symmetry of the labels: permutations of components, and a common sign if their number is even."""
        return "permutations" if self.components % 2 else "permutations-common-sign"

    def _score(self, signs: Any) -> Any:
        return namespace(signs).prod(signs, axis=-2)
