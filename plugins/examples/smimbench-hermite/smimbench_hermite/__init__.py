"""Hermite polynomials of one token as labels of smimbench, and matrices with the spectrum of Wishart matrices but no factor."""

from typing import Any

from smimbench import hookimpl
from smimbench_hermite.labels import FirstHermite, SecondHermite, ThirdHermite
from smimbench_hermite.spectrum import WishartSpectrum

__all__ = ["FirstHermite", "SecondHermite", "ThirdHermite", "WishartSpectrum"]


@hookimpl
def smimbench_register_channels(register: Any) -> None:
    """Register the channels of this package with smimbench."""
    for channel in (FirstHermite, SecondHermite, ThirdHermite):
        register(channel)


@hookimpl
def smimbench_register_priors(register: Any) -> None:
    """Register the prior of this package with smimbench."""
    register(WishartSpectrum)
