"""Which expressions are powers of a variable."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.graphs.powers import power, power_law


@pytest.mark.parametrize("join", [pt.stack, lambda e: pt.concatenate([i[None] for i in e])])
def test_every_entry_of_a_join_counts(join):
    v = pm.HalfNormal.dist()
    five, root = pt.constant(5.0), 3 * pt.sqrt(v)
    assert power(join([root, 2 * pt.sqrt(v)]), v) == 0.5
    assert power(join([five, five]), v) == 0.0
    assert power(join([five, root]), v) is None
    assert power(join([root, five]), v) is None
    assert power(join([root, five, five]), v) is None


def test_the_exponential_of_a_sum_of_logarithms_is_a_power():
    v = pm.Gamma.dist(2, 1)
    assert power(pt.exp(pt.log(v)), v, positive=True) == 1.0
    assert power(pt.exp(pt.log(3 * v**2) + 0.5), v, positive=True) == 2.0
    assert power(pt.exp(pt.log(v) + v), v, positive=True) is None
    assert power(pt.exp(pt.log(v) + pt.log(pt.exp(v))), v, positive=True) is None
    assert power(pt.exp(pt.log(v)), v) is None  # NaN where v is negative
    assert power(pt.exp(2 * pt.log(v)), v, positive=True) is None  # a power, not seen


def test_several_exponents_and_exponentials_are_no_power():
    v = pm.HalfNormal.dist()
    assert power(v ** np.array([0.5, 1.0]), v) is None
    assert power(pt.exp(v) * v, v) is None
    assert power(pt.reciprocal(pt.exp(v)), v) == np.inf
    assert power(pt.exp(v) ** -0.5, v) == np.inf
    assert power(pt.exp(v) * pt.exp(2 * v), v) == np.inf


# The factor and the exponent of expressions; those that are cut look like powers at a few points.
POWER_LAWS = [
    (lambda w: w, (1.0, 1.0)),
    (lambda w: 3 * w, (3.0, 1.0)),
    (lambda w: w**2, (1.0, 2.0)),
    (lambda w: (2 * w) ** 2, (4.0, 2.0)),
    (lambda w: 5 / w, (5.0, -1.0)),
    (lambda w: 3 / pt.sqrt(w), (3.0, -0.5)),
    (lambda w: pt.sqrt(w) ** 2, (1.0, 1.0)),
    (lambda w: w**0.25, (1.0, 0.25)),
    (lambda w: w + 1, None),
    (lambda w: -w, None),
    (lambda w: pt.log(w), None),
    (lambda w: w**2 + w, None),
    (lambda w: w * pm.Flat.dist(), None),
    (lambda w: pt.clip(w, 0, 9) ** 2, None),
    (lambda w: pt.maximum(w, 0.01), None),
    (pt.round, None),
]


@pytest.mark.parametrize(("expression", "expected"), POWER_LAWS)
def test_power_law(expression, expected):
    w = pm.HalfFlat.dist()
    found = power_law(expression(w), w)
    assert found is expected or found == pytest.approx(expected, rel=1e-12)


def test_power_law_marks_exponentials():
    w = pm.Flat.dist()
    assert power_law(pt.exp(2 * w), w)[1] == np.inf
