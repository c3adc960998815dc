"""Standard units: large offsets, heavy tails, equal values."""

import numpy as np
import pytest
from scipy import stats

from pymc_dp.neural.standard import Standard


def values():
    rng = np.random.default_rng(1)
    return np.column_stack(
        [
            1e9 + 2.0 * rng.normal(size=4000),
            3.0 + 2.0 * rng.standard_cauchy(4000),
            np.where(rng.random(4000) < 0.9, 0.0, rng.normal(size=4000)),
            np.full(4000, 7.0),
        ]
    )


def test_columns_are_standard_and_come_back():
    x = values()
    units = Standard.of(x)
    np.testing.assert_array_equal(units.heavy, [False, True, False, False])
    np.testing.assert_allclose(units.scale[[0, 1, 3]], [2.0, 4.0 / 1.349, 1.0], rtol=0.1)
    u = units.forward(x)
    assert np.abs(u).max() < 15
    assert stats.kstest(u[:, 0], "norm").pvalue > 1e-3
    np.testing.assert_allclose(units.back(u), x, rtol=1e-12, atol=1e-12)


def test_slopes_are_those_of_the_map():
    units, at = Standard.of(values()), np.array([[1e9 + 5.0, -40.0, 0.4, 7.5]])
    step = np.array([1e-3, 1e-5, 1e-5, 1e-5])
    slope = (units.forward(at + step) - units.forward(at - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(units.log_slope(at)), slope, rtol=1e-4)


@pytest.mark.filterwarnings("error")
def test_what_overflows_is_infinite():
    assert np.isposinf(Standard.of(values()).back(np.full(4, 1e4))[1])
