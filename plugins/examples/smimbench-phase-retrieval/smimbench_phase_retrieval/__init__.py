"""Real and complex phase retrieval as channels of smimbench: labels show the modulus of a projection, not its sign or phase."""

from typing import Any

from smimbench import hookimpl
from smimbench_phase_retrieval.complex_modulus import ComplexModulus
from smimbench_phase_retrieval.modulus import Modulus
from smimbench_phase_retrieval.square import NoisySquare

__all__ = ["ComplexModulus", "Modulus", "NoisySquare"]


@hookimpl
def smimbench_register_channels(register: Any) -> None:
    """Register the channels of this package with smimbench."""
    for channel in (Modulus, NoisySquare, ComplexModulus):
        register(channel)
