"""Moments of products of jointly Normal columns, by their definition."""

import numpy as np


def gaussian_moment(indices, mean, cov):
    """E of a product of jointly Normal variables, from its definition by recursion (Isserlis)."""
    if not indices:
        return 1.0
    first, rest = indices[0], indices[1:]
    total = mean[first] * gaussian_moment(rest, mean, cov)
    for at, other in enumerate(rest):
        total += cov[first, other] * gaussian_moment(rest[:at] + rest[at + 1 :], mean, cov)
    return total


def product_law(products, mean, cov):
    """Return the mean and the covariance matrix of products of jointly Normal variables."""
    m = np.array([gaussian_moment(p, mean, cov) for p in products])
    second = np.array([[gaussian_moment(p + q, mean, cov) for q in products] for p in products])
    return m, second - np.outer(m, m)
