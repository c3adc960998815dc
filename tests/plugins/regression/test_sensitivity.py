"""Sensitivities of sums of products against the products on a grid of the box."""

import itertools

import numpy as np
import pytest

from pymc_dp.plugins.regression.sensitivity import regression_sensitivity

BOXES = {
    "unit": ([(0, 1)], (0, 1)),
    "symmetric": ([(-1, 1)], (-1, 1)),
    "off_centre": ([(5, 6)], (-3, -2)),
    "uneven": ([(-1, 3), (2, 2.5)], (-4, 1)),
    "one_value": ([(2, 2), (-1, 0)], (0, 0)),
    "none": ([], (-1, 3)),
}


@pytest.mark.parametrize("neighbours", ["replace", "add"])
@pytest.mark.parametrize("name", BOXES)
def test_against_a_grid(name, neighbours):
    x_bounds, y_bounds = BOXES[name]
    axes = [np.linspace(low, high, 21) for low, high in [*x_bounds, y_bounds]]
    for low, high in [*x_bounds, y_bounds]:
        assert low <= high
    axes = [np.append(a, 0.0) if a[0] < 0 < a[-1] else a for a in axes]
    rows = np.array([(1.0, *point) for point in itertools.product(*axes)])
    x, y = rows[:, :-1], rows[:, -1]
    d = x.shape[1]
    columns = [x[:, i] * x[:, j] for i in range(d) for j in range(i, d)][1:]
    products = np.column_stack([*columns, *(x[:, i] * y for i in range(d)), y * y])
    expected = np.abs(products).max(0) if neighbours == "add" else np.ptp(products, axis=0)
    found = regression_sensitivity(x_bounds, y_bounds, neighbours=neighbours)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sum_bounds_the_change_of_all_sums():
    x_bounds, y_bounds = BOXES["uneven"]
    total = regression_sensitivity(x_bounds, y_bounds).sum()
    rng = np.random.default_rng(0)
    low, high = np.array([*x_bounds, y_bounds]).T
    rows = rng.choice([0.0, 1.0], size=(500, 3)) * (high - low) + low
    full = np.column_stack([np.ones(500), rows])
    i, j = np.triu_indices(4)
    products = (full[:, i] * full[:, j])[:, 1:]
    apart = np.abs(products[:, None] - products[None]).sum(-1)
    assert 0.5 * total < apart.max() <= total


@pytest.mark.parametrize(
    ("x_bounds", "y_bounds", "neighbours", "message"),
    [
        ([(1, 0)], (0, 1), "replace", r"x_bounds\[0\] is \(1, 0\): write the lower end first"),
        ([(0, 1), 3], (0, 1), "replace", r"x_bounds\[1\] is 3, not a pair"),
        ([(0, 1)], (0, np.inf), "replace", r"y_bounds is \(0, inf\): .* clips"),
        ([(0, 1)], (0, 1, 2), "replace", "y_bounds is .* write \\(low, high\\)"),
        ([(0, 1)], (0, 1), "substitute", "write 'replace' or 'add'"),
    ],
)
def test_errors(x_bounds, y_bounds, neighbours, message):
    with pytest.raises(ValueError, match=message):
        regression_sensitivity(x_bounds, y_bounds, neighbours=neighbours)
