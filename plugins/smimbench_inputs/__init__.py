"""Inputs shipped with smimbench: laws of the tokens."""

from collections.abc import Callable

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_inputs(register: Callable[[type], None]) -> None:
    """Register the inputs in this folder."""
    from smimbench_inputs.array import ArrayInputs
    from smimbench_inputs.correlated import CorrelatedTokens
    from smimbench_inputs.independent import Gaussian, HeavyTails, Sphere
    from smimbench_inputs.power_law import PowerLaw

    for inputs in (ArrayInputs, CorrelatedTokens, Gaussian, HeavyTails, PowerLaw, Sphere):
        register(inputs)
