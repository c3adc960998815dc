import numpy as np
import pymc as pm
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


def frequencies(mechanism, statistic, n=200_000):
    """Empirical log masses of the released values that are not rare."""
    rng = pytensor.shared(np.random.default_rng(11))
    draws = evaluate(mechanism.noise_sample(rng, pt.full((n,), statistic))[1])
    values, counts = np.unique(draws, return_counts=True)
    common = counts > 200
    return values[common], counts[common]


def test_clipped_against_scipy():
    law = stats.norm(1.0, 2.0)
    mechanism = GaussianMechanism(2.0).clipped(-1.0, 4.0)
    value = np.array([-1.1, -1.0, 0.3, 3.999, 4.0, 4.001])
    expected = [-np.inf, law.logcdf(-1.0), *law.logpdf([0.3, 3.999]), law.logsf(4.0), -np.inf]
    np.testing.assert_allclose(evaluate(mechanism.logp(value, 1.0)), expected, rtol=1e-12)
    expected = [-np.inf, law.logcdf(-1.0), *law.logcdf([0.3, 3.999]), 0.0, 0.0]
    np.testing.assert_allclose(evaluate(mechanism.logcdf(value, 1.0)), expected, rtol=1e-12)
    p = np.array([0.01, 0.5, 0.99])
    expected = np.clip(law.ppf(p), -1.0, 4.0)
    np.testing.assert_allclose(evaluate(mechanism.icdf(p, 1.0)), expected, rtol=1e-12)


def test_clipped_one_side():
    law = stats.laplace(1.0, 2.0)
    lower, upper = LaplaceMechanism(2.0).clipped(lower=0), LaplaceMechanism(2.0).clipped(upper=0)
    value = np.array([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(
        evaluate(lower.logp(value, 1.0)), [-np.inf, law.logcdf(0), law.logpdf(1)], rtol=1e-12
    )
    np.testing.assert_allclose(
        evaluate(upper.logp(value, 1.0)), [law.logpdf(-1), law.logsf(0), -np.inf], rtol=1e-12
    )
    assert [p.data for p in lower.parameters] == [0.0, 2.0]
    assert len(LaplaceMechanism(2.0).clipped(0, 1).parameters) == 3


def test_clip_bounds_broadcast():
    """An infinite entry leaves that component alone."""
    mechanism = LaplaceMechanism(2.0).clipped(lower=[0.0, -np.inf], upper=[[1.0], [np.inf]])
    law = stats.laplace(0.0, 2.0)
    expected = [[law.logsf(1.0), law.logsf(1.0)], [law.logpdf(1.0), law.logpdf(1.0)]]
    np.testing.assert_allclose(evaluate(mechanism.logp(1.0)), expected, rtol=1e-12)
    expected = [[law.logcdf(0.0), law.logpdf(0.0)], [law.logcdf(0.0), law.logpdf(0.0)]]
    np.testing.assert_allclose(evaluate(mechanism.logp(0.0)), expected, rtol=1e-12)


def test_value_at_a_bound_has_the_gradient_of_its_tail():
    s = pt.scalar("s")
    mechanism = GaussianMechanism(2.0).clipped(lower=0.0)
    grad = pt.grad(mechanism.logp(0.0, s), s)
    law = stats.norm(3.0, 2.0)
    expected = -np.exp(law.logpdf(0.0) - law.logcdf(0.0))
    np.testing.assert_allclose(grad.eval({s: 3.0}, mode=PYTHON), expected, rtol=1e-10)
    assert np.isfinite(grad.eval({s: 1e6}, mode=PYTHON))


def test_rounded_against_scipy():
    law = stats.norm(0.37, 0.2)
    value = np.array([0.1, 0.3, 0.35, 0.4, 0.9])
    expected = np.log(law.cdf(value + 0.05) - law.cdf(value - 0.05))
    expected[2] = -np.inf
    actual = evaluate(GaussianMechanism(0.2).rounded(1).logp(value, 0.37))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    law = stats.laplace(12.0, 30.0)
    value = np.array([-40.0, 0.0, 10.0, 15.0, 130.0])
    expected = np.log(law.cdf(value + 5) - law.cdf(value - 5))
    expected[3] = -np.inf
    actual = evaluate(LaplaceMechanism(30.0).rounded(-1).logp(value, 12.0))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


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


@pytest.mark.parametrize(
    "mechanism",
    [
        LaplaceMechanism(3.0).rounded(0).clipped(-1.5, 2.0),
        # Bounds that are halves: the even neighbour gets them.
        LaplaceMechanism(3.0).clipped(-1.5, 2.5).rounded(0),
        LaplaceMechanism(3.0).clipped(-0.5, 3.5).rounded(0),
        # Bounds that rounding brings together.
        LaplaceMechanism(3.0).clipped(0.6, 1.4).rounded(0),
        # 1.015 * 100 is below 101.5 in floating point, so this bound is released as 1.01.
        LaplaceMechanism(0.02).clipped(upper=1.015).rounded(2),
        # Halves of the inner grid: 0.5 goes to 0, 1.5 to 2; cells of unequal width.
        GaussianMechanism(0.5).rounded(1).rounded(0),
        GaussianMechanism(0.02).rounded(3).rounded(2),
        LaplaceMechanism(8.0).rounded(0).rounded(-1),
        LaplaceMechanism(3.0).rounded(1).clipped(-0.5, 2.25).rounded(0).clipped(upper=1),
    ],
    ids=repr,
)
@pytest.mark.by_day(
    "LaplaceMechanism(scale=3.0).clipped(lower=-1.5, upper=2.5).rounded(0)",
    "GaussianMechanism(sigma=0.5).rounded(1).rounded(0)",
    "GaussianMechanism(sigma=0.02).rounded(3).rounded(2)",
    "LaplaceMechanism(scale=8.0).rounded(0).rounded(-1)",
)
def test_compositions_against_simulation(mechanism):
    """Atoms on the borders of cells are the hard part: compare with what the draws do."""
    s = 0.9
    values, counts = frequencies(mechanism, s)
    masses = np.exp(evaluate(mechanism.logp(values, s)))
    n = 200_000
    z = (counts - n * masses) / np.sqrt(n * masses * (1 - masses) + 1e-9)
    assert np.max(np.abs(z)) < 4.5
    assert abs(masses.sum() - counts.sum() / n) < 0.005
    below = np.exp(evaluate(mechanism.logcdf(values, s)))
    assert np.all(np.abs(below - np.cumsum(counts) / n) < 0.01)
    # Nothing is counted twice or lost.
    grid = np.arange(-40_000, 40_001) / 1000
    total = np.exp(evaluate(mechanism.logp(grid, s))).sum()
    tails = np.exp(
        evaluate(
            mechanism.log_interval(-np.inf, -40.0005, s), mechanism.log_interval(40.0005, np.inf, s)
        )
    ).sum()
    np.testing.assert_allclose(total + tails, 1.0, rtol=1e-12)


def test_half_goes_to_the_even_neighbour():
    mechanism = LaplaceMechanism(8.0).rounded(0).rounded(-1)
    whole = LaplaceMechanism(8.0).rounded(0)
    expected = evaluate(
        whole.log_interval(-5, 5, 2.0),  # eleven integers
        whole.log_interval(6, 14, 2.0),  # nine
        whole.log_interval(15, 25, 2.0),
    )
    actual = evaluate(mechanism.logp([0.0, 10.0, 20.0], 2.0))
    np.testing.assert_array_equal(actual, expected)


def test_dist_of_a_composition():
    mechanism = LaplaceMechanism([1.0, 5.0]).rounded(0).clipped(lower=0)
    rv = mechanism.dist([1.3, -4.0])
    draws = pm.draw(rv, draws=2000, random_seed=1)
    assert draws.shape == (2000, 2)
    assert np.all(draws >= 0)
    np.testing.assert_array_equal(draws, np.round(draws))
    zero = np.exp(evaluate(pm.logp(rv, np.zeros(2))))
    assert np.all(np.abs((draws == 0).mean(axis=0) - zero) < 0.04)


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


def test_repr_is_the_expression():
    mechanism = LaplaceMechanism([2.0, 3.0]).rounded(1).clipped(0).rounded(-1)
    assert (
        repr(mechanism)
        == "LaplaceMechanism(scale=[2., 3.]).rounded(1).clipped(lower=0.0).rounded(-1)"
    )


def test_spacing():
    inner = LaplaceMechanism(1.0)
    assert inner.spacing is None
    assert not inner.clipped(0).is_discrete
    assert inner.rounded(2).spacing == 0.01
    assert inner.rounded(-1).clipped(0).spacing == 10.0
    assert inner.rounded(0).clipped(0).is_discrete
