"""Means and covariances of Normal records, exact and by the central limit theorem."""
