"""Runs cells and stores their records: the loop with its clock, processes and clusters, the store.

Import from its modules, ``from smimbench.run.loop import Status``: the attribute ``smimbench.run`` is the verb,
``smimbench.run(suite)``.
"""
