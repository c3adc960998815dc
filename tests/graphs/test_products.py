"""Products of matrices in compiled graphs are NumPy's, of any layout and size."""

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_dp.graphs.compiled import Filling
from pymc_dp.graphs.products import BatchedProduct, Product, multiply
from pymc_dp.kernels.pointers import call

RNG = np.random.default_rng(1)
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "pieces": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
}


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 7, 1), (40, 30, 20), (5000, 3, 1), (1, 3, 5000)])
def test_layouts_and_sizes(first, second, shape):
    m, k, n = shape
    a, b = LAYOUTS[first](RNG.normal(size=(m, k))), LAYOUTS[second](RNG.normal(size=(k, n)))
    for out in (np.full((m, n), np.nan), np.full((n, m), np.nan).T):
        multiply(a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_nothing_to_add_up(shape):
    m, k, n = shape
    out = np.full((m, n), np.nan)
    multiply(np.ones((m, k)), np.ones((k, n)), out)
    np.testing.assert_array_equal(out, np.zeros((m, n)))


def test_shapes_that_do_not_match_are_an_error():
    for a, b, out in [((2, 3), (4, 5), (2, 5)), ((2, 3), (3, 5), (2, 4)), ((2, 3), (3, 5), (1, 5))]:
        with pytest.raises(ValueError, match="do not match"):
            multiply(np.ones(a), np.ones(b), np.ones(out))


def test_nan_and_infinity_pass_through():
    a, out = np.array([[np.nan, 1.0], [np.inf, 1.0], [0.0, 1.0]]), np.zeros((3, 1))
    multiply(a, np.ones((2, 1)), out)
    np.testing.assert_array_equal(out[:, 0], [np.nan, np.inf, 1.0])


@pytest.mark.compiled
@pytest.mark.parametrize("size", [3, 300])
def test_in_a_graph_with_its_gradient(size):
    x = pt.vector("x", shape=(size,))
    design = RNG.normal(size=(2 * size, size))  # a constant, which may not be written to
    stacked = pt.stack([x, 2.0 * x]).reshape((2, 1, size))
    both = pt.matmul(stacked, pt.constant(np.stack([design.T[:, :4]] * 2)))
    value = ((design @ x) ** 2).sum() + (x @ design.T @ design @ x) + both.sum()
    point, gradient = RNG.normal(size=size), np.empty(size)
    found = call(Filling(x, value, pt.grad(value, x)).function, point, gradient)
    square = design @ point
    linear = 3.0 * design[:4].sum(axis=0)
    np.testing.assert_allclose(found, 2.0 * square @ square + linear @ point, rtol=1e-10)
    np.testing.assert_allclose(gradient, 4.0 * design.T @ square + linear, rtol=1e-10)


def test_ops_compute_in_python_too():
    a, b = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))
    np.testing.assert_allclose(Product()(a, b).eval(mode="FAST_COMPILE"), a @ b)
    found = BatchedProduct()(np.stack([a, a]), np.stack([b, b])).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(found, np.stack([a @ b] * 2))
