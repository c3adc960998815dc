"""Families: laws of sums over the records of one variable. `laws.sums` builds the rungs."""
