"""Algorithms shipped with smimbench, one per file or folder."""

from collections.abc import Callable
from typing import Any

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_algorithms(register: Callable[[Any], None]) -> None:
    """Register the algorithms in this folder."""
    from smimbench_algorithms.adam import Adam, AdamW
    from smimbench_algorithms.averaged import Averaged
    from smimbench_algorithms.erm import Erm
    from smimbench_algorithms.gamp import Gamp
    from smimbench_algorithms.hmc import Hmc
    from smimbench_algorithms.nuclear import Nuclear
    from smimbench_algorithms.ridge import Ridge
    from smimbench_algorithms.sgd import Muon, Sgd, SignSgd
    from smimbench_algorithms.spectral import Spectral

    for algorithm in (Gamp, Spectral, Sgd, SignSgd, Muon, Adam, AdamW, Averaged, Ridge, Nuclear, Erm, Hmc):
        register(algorithm)
