"""Inputs shipped with smimbench: laws of the tokens."""

from collections.abc import Callable

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_inputs(register: Callable[[type], None]) -> None:
    """Register the inputs in this folder."""
    from smimbench_inputs.array import ArrayInputs
    from smimbench_inputs.correlated import CorrelatedTokens
    from smimbench_inputs.independent import Gaussian, HeavyTails, OneHot, Sphere
    from smimbench_inputs.power_law import PowerLaw
    from smimbench_inputs.text import Text

    for inputs in (ArrayInputs, CorrelatedTokens, Gaussian, HeavyTails, OneHot, PowerLaw, Sphere, Text):
        register(inputs)
