import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_dp as dp
from pymc_dp.mechanisms import GeometricMechanism

PYTHON = Mode(linker="py", optimizer=None)
SCALES = [1e-3, 0.02, 0.3, 1.0, 7.5, 1e3, 1e9]
# Ends in units of the scale, or of 1 where it is smaller.
ENDS = [
    (0, 0),
    (-1, 1),
    (0, 3),
    (-2, 0),
    (1, 2),
    (-5, -4),
    (-0.01, 4),
    (-40, 60),
    (-np.inf, 0),
    (-np.inf, -30),
    (-np.inf, 35),
    (0, np.inf),
    (-40, np.inf),
    (900, np.inf),
    (-np.inf, np.inf),
]


def evaluate(*graphs):
    values = pytensor.function([], list(graphs), mode=PYTHON)()
    return values[0] if len(graphs) == 1 else values


def exact_interval(first, last, scale):
    """Log probability of the noise, from its geometric series, in 60 digits."""
    mpmath.mp.dps = 60
    rate = 1 / mpmath.mpf(float(scale))
    a = mpmath.exp(-rate)

    def beyond(k):  # P(K >= k), k >= 0
        return mpmath.exp(-k * rate) / (1 + a) if np.isfinite(k) else mpmath.mpf(0)

    if last < 0:
        first, last = -last, -first
    if first >= 0:
        return float(mpmath.log(beyond(first) - beyond(last + 1)))
    return float(mpmath.log1p(-beyond(1 - first) - beyond(last + 1)))


@pytest.fixture(scope="module")
def compiled():
    """The functions and their gradients, by night compiled as in a model."""
    value, s, scale, low, high, p = (
        pt.vector(name) for name in ("value", "s", "scale", "low", "high", "p")
    )
    mechanism = GeometricMechanism(scale)
    graphs = [
        mechanism.logp(value, s),
        mechanism.log_interval(low, high, s),
        mechanism.icdf(p, s),
    ]
    grads = [pt.grad(graph.sum(), scale) for graph in graphs[:2]]
    return pytensor.function([value, s, scale, low, high, p], graphs + grads)


def call(compiled, value=0.0, s=0.0, scale=1.0, low=-1.0, high=1.0, p=0.5):
    arguments = np.broadcast_arrays(*(np.atleast_1d(x) for x in (value, s, scale, low, high, p)))
    return compiled(*(np.array(a, dtype=float) for a in arguments))


@pytest.mark.parametrize("scale", SCALES)
def test_interval_against_mpmath(compiled, scale):
    unit = max(scale, 1.0)
    low, high = np.trunc(np.array(ENDS).T * unit)
    for s in (0, -17):
        actual = call(compiled, low=low + s, high=high + s, s=s, scale=scale)
        expected = [exact_interval(*row, scale) for row in zip(low, high, strict=True)]
        np.testing.assert_allclose(actual[1], expected, rtol=2e-13, atol=1e-300)
        assert np.all(np.isfinite(actual[4]))


@pytest.mark.parametrize("scale", SCALES)
def test_mass_against_mpmath(compiled, scale):
    k = np.unique(np.trunc(np.array([0, 1, 3, 40, 5000]) * max(scale, 1.0)))
    k = np.append(k, 1e9)
    expected = [exact_interval(x, x, scale) for x in k]
    actual = call(compiled, value=-k + 4, s=4, scale=scale)
    np.testing.assert_allclose(actual[0], expected, rtol=1e-13, atol=1e-300)
    # d log P / d scale = |k| / b^2 - csch(1 / b) / b^2
    mpmath.mp.dps = 40
    b = mpmath.mpf(float(scale))
    slopes = [float((x - mpmath.csch(1 / b)) / b**2) for x in k]
    # It cancels at the mean of |k|.
    np.testing.assert_allclose(actual[3], slopes, rtol=1e-12, atol=1e-15 / scale)


def test_lattice(compiled):
    off = call(
        compiled, value=[0.5, 1e-9, 1.0, 3.5, 2.0, np.inf, np.nan], s=[0, 0, 0.5, 2.5, 0, 0, 0]
    )
    assert list(np.isfinite(off[0])) == [False, False, False, True, True, False, False]
    # Ends that a difference of doubles would move onto an atom.
    low, high = np.array([1e-20, -1.0, 0.0]), np.array([1.0, 1 - 1e-16, np.nextafter(1, 2)])
    actual = call(compiled, low=low, high=high, s=[1, 1, 1e9], scale=1e8)
    mass = call(compiled, value=[0, -1, -1e9 + 1], scale=1e8)[0]
    expected = [
        mass[0],
        np.logaddexp(mass[0] - 1e-8, mass[0] - 2e-8),
        mass[2] + np.log1p(np.exp(-1e-8)),
    ]
    np.testing.assert_allclose(actual[1], expected, rtol=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_icdf_is_the_least_value(scale):
    p = np.array([1e-300, 1e-9, 0.01, 0.4999, 0.5, 0.5001, 0.75, 1 - 1e-9])
    mechanism = GeometricMechanism(scale)
    z = mechanism.icdf(p, 5)
    at, before, values = evaluate(mechanism.logcdf(z, 5), mechanism.logcdf(z - 1, 5), z)
    assert np.all(values == np.round(values))
    assert np.all(at >= np.log(p) * (1 + 1e-14) - 1e-15)
    assert np.all(before < np.log(p))
    ends = evaluate(mechanism.icdf([0.0, 1.0, -0.1, 1.1, np.nan]))
    np.testing.assert_array_equal(ends, [-np.inf, np.inf, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("scale", [1e-3, 0.4, 3.0, 500.0, 1e9])
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(None, id="default", marks=pytest.mark.compiled),
    ],
)
def test_draws(scale, mode):
    mechanism = GeometricMechanism(scale)
    draws = pm.draw(mechanism.dist(np.full(20_000, 11)), random_seed=7, mode=mode)
    assert draws.dtype == "int64"
    edges = np.unique(evaluate(mechanism.icdf(np.linspace(0.02, 0.98, 25), 11)))
    cdf = np.exp(evaluate(mechanism.logcdf(edges, 11)))
    expected = 20_000 * np.diff(cdf, prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    keep = expected > 1e-6
    assert observed[~keep].sum() == 0
    chi2 = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert stats.chi2.sf(chi2, max(keep.sum() - 1, 1)) > 1e-3
    if scale == 1e9:
        assert len(np.unique(draws % 2)) == 2


def test_privacy_loss():
    mechanism = GeometricMechanism.from_epsilon([0.5, 2.0], sensitivity=2)
    np.testing.assert_allclose(mechanism.scale.data, [4.0, 1.0])
    np.testing.assert_allclose(mechanism.epsilon(2), [0.5, 2.0])
    assert mechanism.stated_epsilon((2,)) == 2.5
    assert mechanism.stated_epsilon((3, 2)) == 7.5
    assert mechanism.stated_epsilon((None,)) is None
    assert GeometricMechanism(2.0).stated_epsilon((2,)) is None
    # Neighbouring counts: the log ratio is exactly epsilon.
    mechanism = GeometricMechanism.from_epsilon(0.7)
    z = np.arange(-9, 10)
    ratio = evaluate(mechanism.logp(z, 3) - mechanism.logp(z, 4))
    np.testing.assert_allclose(np.abs(ratio), 0.7, rtol=1e-13)
    with pytest.raises(ValueError, match="scale is symbolic"):
        GeometricMechanism(pt.scalar("b")).epsilon()


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_scale(bad):
    message = r"GeometricMechanism: scale must be finite and > 0, got .* at index 1.*from_epsilon"
    with pytest.raises(ValueError, match=message):
        GeometricMechanism([1.0, bad])
    with pytest.raises(ValueError, match=r"epsilon must be finite and > 0"):
        GeometricMechanism.from_epsilon(bad)
    b = pt.scalar("b")
    f = pytensor.function([b], GeometricMechanism(b).logp(0), mode=PYTHON)
    with pytest.raises(ParameterValueError, match="0 < scale < inf"):
        f(bad)


def test_random_scale_is_refused():
    with pytest.raises(TypeError, match="public and known, never estimated"):
        GeometricMechanism(pm.Exponential.dist(1.0))


def test_draws_need_a_whole_statistic():
    with pytest.raises(AssertionError, match=r"whole number.*dp\.LaplaceMechanism"):
        pm.draw(GeometricMechanism(1.0).dist([1.0, 2.5]), mode=PYTHON)


def test_model():
    counts = np.array([3, 0, 7])
    for observed in ([4, -2, 7], [4.0, -2.0, 7.0], np.array([4, -2, 7]), None):
        with pm.Model() as model:
            x = pm.Poisson("x", 4.0, shape=3)
            published = pm.Data("published", [4.0, -2.0, 7.0]) if observed is None else observed
            z = dp.PrivateObservation("z", x, dp.GeometricMechanism(2.0), observed=published)
        assert z.dtype == "int64"
        logp = model.compile_logp(vars=[z])({**model.initial_point(), "x": counts})
        np.testing.assert_allclose(logp, 3 * np.log(np.tanh(0.25)) - (1 + 2 + 0) / 2, rtol=1e-13)
    with model:
        prior = pm.sample_prior_predictive(20, random_seed=1)
    assert prior.prior_predictive["z"].dtype == "int64"


def refused(mechanism, observed, match):
    with pm.Model() as model:
        x = pm.Poisson("x", 4.0, shape=np.shape(observed))
        with pytest.raises(ValueError, match=match):
            dp.PrivateObservation("z", x, mechanism, observed=observed)
    assert "z" not in model.named_vars


def test_what_is_not_a_whole_number_is_refused():
    mechanism = dp.GeometricMechanism(2.0)
    message = (
        r"'z': GeometricMechanism\(scale=2.0\) cannot publish 3\.4 at index 2: GeometricMechanism "
        r"releases whole numbers: use dp\.LaplaceMechanism for a release with continuous noise"
    )
    refused(mechanism, [3.0, 1.0, 3.4], message)
    refused(mechanism, 3.4, r"cannot publish 3\.4: ")
    refused(mechanism, [[1, 2], [0.5, 3]], r"cannot publish 0\.5 at index \(1, 0\)")
    refused(mechanism, [2.0**53, 2.0**53 + 2], r"at index 1: .*at most 2\*\*53")
    refused(mechanism, -1e300, r"at most 2\*\*53")
    # A post-processed release is refused for the noise, or else for the post-processing.
    refused(mechanism.clipped(lower=0), 3.4, "whole numbers: use dp.LaplaceMechanism")
    refused(mechanism.clipped(lower=0), 2.0**54, r"at most 2\*\*53")
    refused(mechanism.clipped(lower=0), -1, "limits, digits")
    refused(mechanism.rounded(-1), 14, "limits, digits")
    refused(mechanism.rounded(0), 3.4, "whole numbers: use dp.LaplaceMechanism")


def test_post_processed():
    z = np.arange(-60, 61)
    mechanism = GeometricMechanism(1.7)
    masses = np.exp(evaluate(mechanism.logp(z, 3)))
    clipped, rounded = mechanism.clipped(0, 8), mechanism.rounded(-1)
    by_value = np.bincount(np.clip(z, 0, 8), weights=masses)
    np.testing.assert_allclose(
        np.exp(evaluate(clipped.logp(np.arange(9), 3))), by_value, rtol=1e-12
    )
    tens = np.array([-20, -10, 0, 10, 20])
    expected = [masses[np.round(z / 10) * 10 == t].sum() for t in tens]
    np.testing.assert_allclose(np.exp(evaluate(rounded.logp(tens, 3))), expected, rtol=1e-11)
    assert list(evaluate(clipped.attainable([0, 3, 8, 9, -1, 2.5]))) == [True] * 3 + [False] * 3
    assert list(evaluate(rounded.attainable([0, 10, 5]))) == [True, True, False]
    draws = pm.draw(clipped.dist(np.full(200, 3)), random_seed=1, mode=PYTHON)
    assert set(np.unique(draws)) <= set(range(9))


def test_repr():
    assert repr(GeometricMechanism([2.3, 0.4])) == "GeometricMechanism(scale=[2.3, 0.4])"
