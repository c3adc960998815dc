"""The example of an A/B test."""

import numpy as np

import pymc_dp as dp
from pymc_dp.examples import ab_test


def test_visitors_are_integrated_out():
    collapsed = dp.collapse(ab_test.build(ab_test.simulate(1)))
    assert {v.name for v in collapsed.free_RVs} == {"conversion", "level"}


def test_what_a_visitor_spends_has_these_moments():
    rng = np.random.default_rng(1)
    spent = (rng.random(10**6) < 0.06) * rng.lognormal(np.log(25.0), ab_test.SPREAD, 10**6)
    mean, variance = (v.eval() for v in ab_test.moments(0.06, np.log(25.0)))
    clamped = spent.clip(0, ab_test.CAP)
    assert abs(clamped.mean() - mean) < 4 * clamped.std() / 1e3
    np.testing.assert_allclose(clamped.var(), variance, rtol=0.02)
