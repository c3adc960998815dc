import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import stats

from pymc_dp.mechanisms import (
    ClippedMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RoundedMechanism,
)
from tests.mechanisms.noise import PYTHON, evaluate


def test_clip_bounds_broadcast():
    """An infinite entry leaves that component alone."""
    mechanism = LaplaceMechanism(2.0).clipped(lower=[0.0, -np.inf], upper=[[1.0], [np.inf]])
    law = stats.laplace(0.0, 2.0)
    expected = [[law.logsf(1.0), law.logsf(1.0)], [law.logpdf(1.0), law.logpdf(1.0)]]
    np.testing.assert_allclose(evaluate(mechanism.logp(1.0)), expected, rtol=1e-12)
    expected = [[law.logcdf(0.0), law.logpdf(0.0)], [law.logcdf(0.0), law.logpdf(0.0)]]
    np.testing.assert_allclose(evaluate(mechanism.logp(0.0)), expected, rtol=1e-12)


def test_rounded_far_out_keeps_its_digits():
    """A difference of distribution functions would be zero here."""
    mechanism = LaplaceMechanism(0.5).rounded(0)
    expected = np.log(np.sinh(1.0)) - 2 * np.array([1e3, 1e6])
    np.testing.assert_allclose(evaluate(mechanism.logp([1e3, -1e6])), expected, rtol=1e-12)


def test_grid_tolerates_floating_point_only():
    mechanism = LaplaceMechanism(2.0).rounded(1)
    exact = evaluate(mechanism.logp(0.3, 1.0))
    for value in (0.1 + 0.2, np.float64(np.float32(0.3)), np.float32(0.3)):
        assert evaluate(mechanism.logp(value, 1.0)) == exact
    for value in (0.3001, 0.2999, 0.35, np.nan):
        assert np.isneginf(evaluate(mechanism.logp(value, 1.0)))
    large = np.float64(np.float32(34212.3))
    assert np.isfinite(evaluate(mechanism.logp(large, 34212.0)))
    assert np.isneginf(evaluate(mechanism.logp(34212.35, 34212.0)))


def test_bad_bounds():
    inner = LaplaceMechanism(1.0)
    with pytest.raises(ValueError, match="without a bound nothing is clipped"):
        inner.clipped()
    for arguments in ({"lower": np.nan}, {"upper": np.nan}, {"lower": np.inf}, {"upper": -np.inf}):
        with pytest.raises(ValueError, match=r"must be a number, got .* was not clipped"):
            inner.clipped(**arguments)
    for bounds in ((1.0, 1.0), (2.0, 1.0), ([0.0, 2.0], 1.0)):
        with pytest.raises(ValueError, match="lower must be below upper"):
            inner.clipped(*bounds)
    with pytest.raises(TypeError, match="must be a number"):
        inner.clipped(lower="zero")
    with pytest.raises(TypeError, match="must be a mechanism"):
        ClippedMechanism(1.0, 0.0)
    lower, upper = pt.scalar("lower"), pt.scalar("upper")
    f = pytensor.function([lower, upper], inner.clipped(lower, upper).logp(0.0), mode=PYTHON)
    assert np.isfinite(f(-1.0, 1.0))
    with pytest.raises(ParameterValueError, match="lower <= upper"):
        f(1.0, -1.0)


def test_bad_digits():
    for digits in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="digits must be an integer"):
            LaplaceMechanism(1.0).rounded(digits)
    with pytest.raises(ValueError, match="digits must lie between -22 and 22"):
        LaplaceMechanism(1.0).rounded(23)
    with pytest.raises(TypeError, match="must be a mechanism"):
        RoundedMechanism(1.0)
    assert LaplaceMechanism(1.0).rounded(np.int64(2)).digits == 2


def test_nothing_is_done_after_a_sentinel():
    """It might be made of a value as well."""
    withheld = LaplaceMechanism(2.0).suppressed(below=3, sentinel=-1)
    for how in ("rounded", "truncated", "thresholded", "suppressed"):
        with pytest.raises(ValueError, match="leave sentinel= out, and write NaN"):
            getattr(withheld, how)(*[1] * (how in ("thresholded", "suppressed")))


def test_spacing():
    inner = LaplaceMechanism(1.0)
    assert inner.spacing is None
    assert not inner.clipped(0).is_discrete
    assert inner.rounded(2).spacing == 0.01
    assert inner.rounded(-1).clipped(0).spacing == 10.0
    assert inner.rounded(0).clipped(0).is_discrete


def test_halves_go_where_floating_point_rounds_them():
    inner, z = GaussianMechanism(0.02).rounded(3), np.arange(860, 941) / 1000
    masses, found = evaluate(inner.logp(z, 0.9), inner.rounded(2).logp([0.88, 0.89, 0.92], 0.9))
    expected = [np.exp(masses)[np.round(z * 100) == k].sum() for k in (88, 89, 92)]
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)
    clipped = LaplaceMechanism(0.02).clipped(upper=1.015)
    # 1.015 * 100 is below 101.5, so that this bound is released as 1.01.
    upper = evaluate(clipped.log_interval(1.005, np.inf, 0.9), clipped.rounded(2).logp(1.01, 0.9))
    np.testing.assert_allclose(*upper, rtol=1e-12)
