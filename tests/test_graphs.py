"""What graphs are, decided by their ops."""

import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.graphs import power


@pytest.mark.parametrize("join", [pt.stack, lambda e: pt.concatenate([i[None] for i in e])])
def test_every_entry_of_a_join_counts(join):
    v = pm.HalfNormal.dist()
    five, root = pt.constant(5.0), 3 * pt.sqrt(v)
    assert power(join([root, 2 * pt.sqrt(v)]), v) == 0.5
    assert power(join([five, five]), v) == 0.0
    assert power(join([five, root]), v) is None
    assert power(join([root, five]), v) is None
    assert power(join([root, five, five]), v) is None
