"""Posterior samplers as algorithms of smimbench."""

from collections.abc import Callable
from typing import Any

import smimbench


@smimbench.hookimpl
def smimbench_register_algorithms(register: Callable[[type[Any]], None]) -> None:
    """Register Hamiltonian Monte Carlo."""
    from smimbench_samplers.hmc import Hmc

    register(Hmc)
