"""Sums over records of any smooth law, by inversion of their characteristic functions."""
