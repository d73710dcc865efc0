"""Real and complex phase retrieval as channels of smimbench: the size of a projection is seen, its sign is lost."""

from typing import Any

from smimbench import hookimpl
from smimbench_phase_retrieval.complex_modulus import ComplexModulus
from smimbench_phase_retrieval.modulus import Modulus
from smimbench_phase_retrieval.square import NoisySquare

__all__ = ["ComplexModulus", "Modulus", "NoisySquare"]


@hookimpl
def smimbench_register_channels(register: Any) -> None:
    """Called by smimbench when it looks for channels."""
    for channel in (Modulus, NoisySquare, ComplexModulus):
        register(channel)
