"""From cells to records: the loop, its clock and rules, processes and clusters, the store.

Import from its modules, ``from smimbench.run.loop import Status``: the attribute ``smimbench.run`` is the verb,
``smimbench.run(suite)``.
"""
