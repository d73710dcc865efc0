"""Types used by all contracts: capabilities, parameter errors, numbers with an error, cost of an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = Any
Host: TypeAlias = "np.ndarray[Any, Any]"


class ParameterError(ValueError):
    """Error raised when a parameter of an item has an invalid value.

    Parameters
    ----------
    key : str
        Name of the parameter.
    message : str
        What is wrong and what would be right, without the name: ``"must be > 0, got -1"``.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


def require(item: Any, key: str, holds: bool, rule: str) -> None:
    """Raise a ParameterError that says ``must be <rule>, got ...`` unless the condition ``holds`` is true."""
    if not holds:
        raise ParameterError(key, f"must be {rule}, got {getattr(item, key)!r}")


@dataclass(frozen=True)
class Capabilities:
    """Models, backends and data types that an item can be combined with.

    Attributes
    ----------
    models : tuple of str
        Names of the models it works for; ``("*",)`` stands for all.
    backends : tuple of str
        Names of array namespaces it runs on; ``("*",)`` stands for every array API namespace.
    dtypes : tuple of str
        Real data types it is accurate in. ``"mixed"`` says of a model that its products in float64 take inputs of float32 as
        they are; other models are given them widened.
    """

    models: tuple[str, ...] = ("*",)
    backends: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("float64", "float32")


class Uncertain(NamedTuple):
    """Computed number (or array) with its numerical error and the method that computed it.

    ``error`` is one standard error for Monte Carlo and an estimate of the absolute error for quadrature; it has the
    shape of ``value`` or is a scalar. ``method`` is ``"closed form"``, ``"quadrature"`` or ``"Monte Carlo"``, or a
    few words more.
    """

    value: Array
    error: Array
    method: str


class Cost(NamedTuple):
    """Minimum work of one iteration on any machine, in operations and bytes; efficiency is measured relative to it.

    Attributes
    ----------
    flops : float
        Floating-point operations of its matrix products, a multiplication and an addition counted as two.
    bytes : float
        Bytes that have to come from memory: what does not fit a cache, counted once for every time it is needed.
    denoiser : float
        Floating-point operations of one denoising step of a typical prior, to price a run.
    """

    flops: float
    bytes: float
    denoiser: float = 0.0
