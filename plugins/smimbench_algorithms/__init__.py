"""Algorithms that ship with smimbench, one per file."""

from collections.abc import Callable
from typing import Any

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_algorithms(register: Callable[[Any], None]) -> None:
    """Register what is in this folder."""
    from smimbench_algorithms.adam import Adam, AdamW
    from smimbench_algorithms.averaged import Averaged
    from smimbench_algorithms.erm.algorithm import Erm
    from smimbench_algorithms.gamp.algorithm import Gamp
    from smimbench_algorithms.nuclear.algorithm import Nuclear
    from smimbench_algorithms.ridge import Ridge
    from smimbench_algorithms.sgd import Sgd
    from smimbench_algorithms.spectral.algorithm import Spectral

    for algorithm in (Gamp, Spectral, Sgd, Adam, AdamW, Averaged, Ridge, Nuclear, Erm):
        register(algorithm)
