"""Generalised linear models and small two-layer networks as channels of smimbench: labels that are signs."""

from typing import Any

from smimbench import hookimpl
from smimbench_glm.perceptron import Probit, Sign
from smimbench_glm.votes import Committee, SignProduct

__all__ = ["Committee", "Probit", "Sign", "SignProduct"]


@hookimpl
def smimbench_register_channels(register: Any) -> None:
    """Called by smimbench when it looks for channels."""
    for channel in (Sign, Probit, Committee, SignProduct):
        register(channel)
