"""Rectified projections, a periodic neuron and small two-layer networks as channels of smimbench."""

from typing import Any

from smimbench_attention.channels.sequence.perceptron import Probit, Sign

from smimbench import hookimpl
from smimbench_glm.periodic import Periodic
from smimbench_glm.relu import Relu
from smimbench_glm.votes import Committee, SignProduct

__all__ = ["Committee", "Periodic", "Probit", "Relu", "Sign", "SignProduct"]


@hookimpl
def smimbench_register_channels(register: Any) -> None:
    """Register the channels of this package with smimbench."""
    for channel in (Relu, Committee, SignProduct, Periodic):
        register(channel)
