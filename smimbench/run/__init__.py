"""From cells to records: the loop, its clock and rules, processes and clusters, the store."""
