"""Algorithms that ship with smimbench, one per file."""

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_algorithms(register):
    """Register what is in this folder."""
    from smimbench_algorithms.adam import Adam
    from smimbench_algorithms.gamp import Gamp

    for algorithm in (Gamp, Adam):
        register(algorithm)
