import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from pytensor.compile.mode import Mode
from scipy import stats

from pymc_dp.mechanisms import LaplaceMechanism

PYTHON = Mode(linker="py", optimizer=None)

# lower, upper, statistic, scale: around the statistic, beside it, far out, narrow, nearly certain,
# straddling by a hair, one-sided, and in units from 1e-12 to 1e12.
INTERVALS = np.array(
    [
        (-1.0, 2.0, 0.5, 1.0),
        (-0.3, 0.1, 0.0, 2.5),
        (1.0, 2.0, 0.0, 1.0),
        (-7.0, -6.5, 1.0, 0.5),
        (3000.0, 3000.5, 0.0, 1.0),
        (-3000.5, -3000.0, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.1, 0.3),
        (-(2.0**-50), 2.0**-50, 0.0, 1.0),
        (-3e-9, 5e-9, 0.0, 1.0),
        (-(2.0**-60), 3.0, 0.0, 1.0),
        (-45.0, 60.0, 0.0, 1.0),
        (-45.0, np.inf, 0.0, 1.0),
        (-np.inf, 40.0, 0.0, 1.0),
        (-np.inf, -40.0, 0.0, 1.0),
        (-np.inf, np.inf, 3.0, 1.0),
        (5000.0, np.inf, 0.0, 1.0),
        (1e-12, 3e-12, 2e-12, 1e-12),
        (0.5, 0.75, 0.25, 1e-12),
        (1e-3, 2e-3, -4.0, 1e12),
        (-1e15, 3e15, 1e3, 1e12),
    ]
)


def exact_interval(lower, upper, statistic, scale):
    mpmath.mp.dps = 60

    def end(x):
        return mpmath.mpf(float(x)) if np.isfinite(x) else mpmath.inf * np.sign(x)

    a, b = ((end(x) - end(statistic)) / end(scale) for x in (lower, upper))

    def below(x):
        return mpmath.exp(x) / 2

    if a >= 0:
        p = below(-a) - below(-b)
    elif b <= 0:
        p = below(b) - below(a)
    else:
        p = 1 - below(a) - below(-b)
    return float(mpmath.log(p)) if p != 1 else 0.0


@pytest.fixture(scope="module")
def compiled():
    """The four functions and their gradients, by night compiled as in a model."""
    value, s, scale, low, high, p = (
        pt.vector(name) for name in ("value", "s", "scale", "low", "high", "p")
    )
    mechanism = LaplaceMechanism(scale)
    graphs = [
        mechanism.logp(value, s),
        mechanism.log_interval(low, high, s),
        mechanism.logcdf(value, s),
        mechanism.icdf(p, s),
    ]
    variables = [value, s, scale, low, high, p]
    zero = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    grads = [pt.grad(graph.sum(), [s, scale], **zero) for graph in graphs]
    return pytensor.function(variables, graphs + [g for pair in grads for g in pair])


def call(compiled, value=0.0, s=0.0, scale=1.0, low=-1.0, high=1.0, p=0.5):
    arguments = np.broadcast_arrays(*(np.atleast_1d(x) for x in (value, s, scale, low, high, p)))
    return compiled(*(np.array(a, dtype=float) for a in arguments))


def test_interval_against_mpmath(compiled):
    low, high, s, scale = INTERVALS.T
    actual = call(compiled, s=s, scale=scale, low=low, high=high)
    expected = [exact_interval(*row) for row in INTERVALS]
    np.testing.assert_allclose(actual[1], expected, rtol=1e-12, atol=1e-300)
    assert np.all(np.isfinite(actual[6]))
    assert np.all(np.isfinite(actual[7]))


def test_interval_gradient_against_mpmath(compiled):
    """Narrow and far out, where finite differences say nothing: d log P / ds is +-1/b."""
    low = np.array([3000.0, -3000.5, 5.0])
    high = np.array([3000.5, -3000.0, 5.0 + 2.0**-40])
    actual = call(compiled, low=low, high=high, scale=2.0)
    np.testing.assert_allclose(actual[6], [0.5, -0.5, 0.5], rtol=1e-12)


def test_density_and_distribution_against_scipy(compiled):
    value = np.array([-50.0, -3.0, -0.1, 0.2, 0.25, 4.0, 90.0])
    p = np.array([1e-290, 1e-5, 0.3, 0.5, 0.75, 1 - 1e-9, 1.0])
    for scale in (1e-12, 0.3, 7.0, 1e12):
        actual = call(compiled, value=value * scale, s=0.2 * scale, scale=scale, p=p)
        law = stats.laplace(0.2 * scale, scale)
        np.testing.assert_allclose(actual[0], law.logpdf(value * scale), rtol=1e-12)
        np.testing.assert_allclose(actual[3], law.ppf(p), rtol=1e-12)
        np.testing.assert_allclose(np.exp(actual[2]), law.cdf(value * scale), rtol=1e-12)


def test_extremes_are_finite_and_right(compiled):
    value = np.array([1e-9, 1e6, -1e6, 1e15])
    actual = call(compiled, value=value, scale=1e-12)
    np.testing.assert_allclose(actual[0], -np.log(2e-12) - np.abs(value) / 1e-12, rtol=1e-12)
    np.testing.assert_allclose(actual[2][2], -np.log(2) - 1e18, rtol=1e-12)
    for grads in actual[4:]:
        assert np.all(np.isfinite(grads))
    assert np.all(np.isneginf(call(compiled, value=[np.inf, -np.inf])[0]))


def test_draw():
    draws = pm.draw(LaplaceMechanism([0.5, 20.0]).dist([1.0, -3.0]), draws=4000, random_seed=4)
    for column, s, scale in zip(draws.T, (1.0, -3.0), (0.5, 20.0), strict=True):
        assert stats.kstest(column, stats.laplace(s, scale).cdf).pvalue > 1e-3


def test_from_epsilon():
    mechanism = LaplaceMechanism.from_epsilon([0.25, 0.5], sensitivity=[[2.0], [1.0]])
    np.testing.assert_allclose(mechanism.scale.data, [[8.0, 4.0], [4.0, 2.0]])
    np.testing.assert_allclose(mechanism.epsilon([[2.0], [1.0]]), [[0.25, 0.5], [0.25, 0.5]])
    assert LaplaceMechanism(4).epsilon(1) == 0.25
    shared = pytensor.shared(np.array([1.0, 2.0]))
    np.testing.assert_allclose(LaplaceMechanism(2 * shared).epsilon(4.0), [2.0, 1.0])
    with pytest.raises(ValueError, match="privacy loss is a number, but scale is symbolic"):
        LaplaceMechanism(pt.scalar("b")).epsilon(1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_scale(bad):
    message = r"LaplaceMechanism: scale must be finite and > 0, got .* at index 1.*from_epsilon"
    for scale in ([1.0, bad], pytensor.shared(np.array([1.0, bad]))):
        with pytest.raises(ValueError, match=message):
            LaplaceMechanism(scale)
    with pytest.raises(ValueError, match=f"got {bad}"):
        LaplaceMechanism(bad)
    for name in ("epsilon", "sensitivity"):
        arguments = {"epsilon": 1.0, "sensitivity": 1.0, name: bad}
        with pytest.raises(ValueError, match=f"{name} must be finite and > 0, got {bad}"):
            LaplaceMechanism.from_epsilon(**arguments)
    with pytest.raises(ValueError, match="sensitivity must be finite"):
        LaplaceMechanism(1.0).epsilon(bad)


def test_not_a_number():
    with pytest.raises(TypeError, match="scale must be a number, an array or a tensor, got 'two'"):
        LaplaceMechanism("two")
    with pytest.raises(TypeError, match="epsilon must be a number"):
        LaplaceMechanism.from_epsilon(pt.scalar("e"), 1.0)
    with pytest.raises(ValueError, match="scale is empty"):
        LaplaceMechanism([])


def test_random_scale_is_refused():
    noise = pm.Exponential.dist(1.0, name="noise")
    mixture = pm.NormalMixture.dist([0.5, 0.5], [0, 1], [1, 1])
    for scale in (noise, 2 * pt.exp(noise), [1.0, noise], pt.abs(mixture)):
        with pytest.raises(TypeError, match=r"public and known, never estimated.*pm\.Data"):
            LaplaceMechanism(scale)
    with pytest.raises(TypeError, match="scale depends on the random variable 'noise'"):
        LaplaceMechanism(2 * pt.exp(noise))


def test_data_scale_can_change():
    with pm.Model() as model:
        data = pm.Data("noise_scale", [1, 4])
        mechanism = LaplaceMechanism(data)
        logp = mechanism.logp([1.0, 2.0])
        f = pytensor.function([], logp, mode=PYTHON)
        np.testing.assert_allclose(f(), stats.laplace(0, [1, 4]).logpdf([1.0, 2.0]), rtol=1e-12)
        pm.set_data({"noise_scale": [3, 5]}, model=model)
        np.testing.assert_allclose(f(), stats.laplace(0, [3, 5]).logpdf([1.0, 2.0]), rtol=1e-12)
        pm.set_data({"noise_scale": [3, -5]}, model=model)
        with pytest.raises(ParameterValueError, match="0 < scale < inf"):
            f()


def test_unverified_scale_is_checked_in_the_graph():
    b = pt.scalar("b")
    mechanism = LaplaceMechanism(b)
    for graph in (
        mechanism.logp(0.0),
        mechanism.log_interval(0.0, 1.0),
        mechanism.logcdf(0.0),
        mechanism.icdf(0.3),
    ):
        f = pytensor.function([b], graph, mode=PYTHON)
        assert np.isfinite(f(2.0))
        for bad in (-1.0, 0.0, np.inf, np.nan):
            with pytest.raises(ParameterValueError, match="0 < scale < inf"):
                f(bad)
    # A template may be rebuilt from any variable, and from numbers that nobody validated.
    assert LaplaceMechanism(1.0).with_parameters(-1.0).parameters[0].data == -1.0


def test_repr():
    assert repr(LaplaceMechanism([2.3, 0.4])) == "LaplaceMechanism(scale=[2.3, 0.4])"
    assert repr(LaplaceMechanism(3)) == "LaplaceMechanism(scale=3.0)"
    assert repr(LaplaceMechanism(pt.scalar("b"))) == "LaplaceMechanism(scale=b)"
    assert repr(LaplaceMechanism(2 * pt.scalar("b"))) == "LaplaceMechanism(scale=<symbolic>)"
    assert repr(LaplaceMechanism(pytensor.shared(2.0))) == "LaplaceMechanism(scale=2.0)"
