"""Families: what is known of sums over the records of one variable; `laws.sums` does the rest."""
