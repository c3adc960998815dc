"""The Normal law of noisy margins, against all rows of a small table."""

import numpy as np
import pytest
from scipy import stats

from pymc_dp.plugins.log_linear.cliques import junction_tree
from pymc_dp.plugins.log_linear.normal import (
    cells_of_tree,
    joint_chances,
    log_normal,
    mean_covariance,
)

LEVELS = {"a": 2, "b": 3, "c": 2, "d": 2, "e": 2, "f": 3}
TERMS = [("a", "b"), ("b", "c"), ("c", "d", "e"), ("b", "d")]  # b, c, d: filled in; f is alone
MARGINS = [("b", "a"), ("c",), ("e", "d"), ("f",), ("b", "d"), ("c", "b")]
TREES = {
    "one clique": ({"a": 2, "b": 3}, [("a", "b")], [("a",), ("a", "b")]),
    "tree": (LEVELS, TERMS, MARGINS),
}


def case(name):
    """Return a tree, its margins, their cells and conditional rows of every clique."""
    levels, terms, margins = TREES[name]
    tree, rng = junction_tree(levels, terms), np.random.default_rng(3)
    rows = []
    for clique, separator in zip(tree.cliques, tree.separators, strict=True):
        groups, p = tree.cells_of(clique, separator), rng.gamma(1.0, size=tree.size(clique))
        rows.append(p / np.bincount(groups, p)[groups])
    return tree, margins, cells_of_tree(tree, margins), np.concatenate(rows)


def by_all_rows(tree, margins, rows, cells):
    """Return mean and covariance of the released cells, summed over all rows."""
    places = np.indices([*tree.levels.values()])
    full = {c: place.ravel() for c, place in zip(tree.levels, places, strict=True)}

    def numbers(columns):
        return np.ravel_multi_index([full[c] for c in columns], tree.shape(columns))

    p = np.ones(full[next(iter(full))].size)
    for clique, start in zip(tree.cliques, cells.first, strict=False):
        p *= rows[start + numbers(clique)]
    np.testing.assert_allclose(p.sum(), 1.0)
    s = np.hstack([np.eye(tree.size(m))[numbers(m)] for m in margins])
    mean = p @ s
    return mean, (s * p[:, None]).T @ s - np.outer(mean, mean)


@pytest.mark.parametrize("name", TREES)
def test_moments_and_density_are_those_of_all_rows(name):
    tree, margins, cells, rows = case(name)
    mean, covariance = by_all_rows(tree, margins, rows, cells)
    found = mean_covariance(joint_chances(rows, cells), cells, mean.size)
    np.testing.assert_allclose(found[0], mean, rtol=1e-12)
    np.testing.assert_allclose(found[1], covariance, atol=1e-15)
    rng, n = np.random.default_rng(1), 300
    variances = rng.uniform(1.0, 9.0, mean.size)
    z = n * mean + rng.normal(0.0, 5.0, mean.size)
    exact = stats.multivariate_normal(n * mean, n * covariance + np.diag(variances)).logpdf(z)
    np.testing.assert_allclose(log_normal(rows, z, n, variances, cells)[0], exact, rtol=1e-10)


@pytest.mark.parametrize("name", TREES)
def test_gradient_is_that_of_finite_differences(name):
    _, _, cells, rows = case(name)
    rng, n, count = np.random.default_rng(2), 300.0, cells.target.max() + 1
    variances, z = rng.uniform(1.0, 9.0, count), rng.uniform(0.0, 200.0, count)
    _, by_rows, by_z, by_variances = log_normal(rows, z, n, variances, cells)

    def slope(i, at, of):
        step = np.zeros(at.size)
        step[i] = 1e-5 * at[i]
        values = [of(at + k * step) for k in (-2, -1, 1, 2)]
        return np.dot([1.0, -8.0, 8.0, -1.0], values) / (12.0 * step[i])

    numeric = [slope(i, rows, lambda r: log_normal(r, z, n, variances, cells)[0])
               for i in range(rows.size)]  # fmt: skip
    np.testing.assert_allclose(by_rows, numeric, rtol=1e-6, atol=1e-6 * np.abs(by_rows).max())
    numeric = [slope(i, variances, lambda v: log_normal(rows, z, n, v, cells)[0])
               for i in range(count)]  # fmt: skip
    np.testing.assert_allclose(by_variances, numeric, rtol=1e-6, atol=1e-8)
    numeric = [slope(i, z, lambda x: log_normal(rows, x, n, variances, cells)[0])
               for i in range(count)]  # fmt: skip
    np.testing.assert_allclose(by_z, numeric, rtol=1e-6, atol=1e-8)
