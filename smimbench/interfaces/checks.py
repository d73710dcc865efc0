"""Checks of parameters and of latents that items share."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING

from smimbench.interfaces.basics import ParameterError

if TYPE_CHECKING:
    from smimbench.interfaces.basics import Array

__all__ = ["check_latents", "check_number", "check_whole"]


def check_whole(key: str, value: object, least: int) -> None:
    """Raise ParameterError unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ParameterError(key, f"must be an integer >= {least}, got {value!r}")


def check_number(key: str, value: object, *, positive: bool) -> None:
    """Raise ParameterError unless ``value`` is a finite number that is positive, or at least not negative."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ParameterError(key, f"must be a finite number {'> 0' if positive else '>= 0'}, got {value!r}")


def check_latents(z: Array, components: int, sites: int) -> None:
    """Raise ValueError unless ``z`` is (..., n, components, sites)."""
    if z.ndim < 3 or tuple(z.shape[-2:]) != (components, sites):
        raise ValueError(f"latents must have shape (..., n, {components}, {sites}), got {tuple(z.shape)}")
