"""Sums over a count, draws of counts, sweeps over tables."""
