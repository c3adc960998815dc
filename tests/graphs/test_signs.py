"""Which graphs have no negative values."""

import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.graphs.signs import is_nonnegative


@pytest.mark.parametrize(
    ("graph", "nonnegative"),
    [
        (lambda a, s, u: s, True),
        (lambda a, s, u: a, False),
        (lambda a, s, u: u, False),
        (lambda a, s, u: u + 2, False),  # not read, though true
        (lambda a, s, u: pm.Uniform("v", 0.0, 3.0), True),
        (lambda a, s, u: pm.Uniform("v", s, 3.0), False),
        (lambda a, s, u: pm.TruncatedNormal("v", 0, 1, lower=0.5), True),
        (lambda a, s, u: pm.TruncatedNormal("v", 0, 1, upper=0.5), False),
        (lambda a, s, u: pt.exp(a) + a**2 + abs(a), True),
        (lambda a, s, u: s - 1, False),
        (lambda a, s, u: s**a, True),
        (lambda a, s, u: pt.abs(s) ** -0.5 * pt.sign(s), True),  # as pm.Normal writes tau
        (lambda a, s, u: pt.sign(a), False),
        (lambda a, s, u: a**s, False),
        (lambda a, s, u: pt.maximum(a, 0.1), True),
        (lambda a, s, u: pt.minimum(s, a), False),
        (lambda a, s, u: pt.stack([s, s]).sum() * 0.5, True),
        (lambda a, s, u: pt.stack([s, a]), False),
        (lambda a, s, u: pt.concatenate([s[None], a[None]]), False),
        (lambda a, s, u: pt.concatenate([s[None], s[None] / 2])[1:], True),
        (lambda a, s, u: pt.as_tensor([0.5, -0.5]), False),
    ],
)
def test_what_has_no_negative_entry(graph, nonnegative):
    with pm.Model():
        built = graph(pm.Normal("a"), pm.HalfNormal("s"), pm.Uniform("u", -1.0, 1.0))
    assert is_nonnegative(pt.as_tensor(built)) == nonnegative
