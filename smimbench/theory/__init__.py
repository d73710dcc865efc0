"""State evolution, thresholds and prediction errors: pure mathematics, no clock, no printing, no files.

Import from its modules, ``from smimbench.theory.predictions import solve``: the attribute ``smimbench.theory`` is the verb,
``smimbench.theory(suite)``.
"""
