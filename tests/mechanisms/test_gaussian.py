import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from pytensor.compile.mode import Mode
from scipy import stats

from pymc_dp.mechanisms import GaussianMechanism

PYTHON = Mode(linker="py", optimizer=None)

# lower, upper, statistic, sigma; the cases of the Laplace test, and both sides of the switches
# between the three formulas (width times distance from the statistic equal to 1).
INTERVALS = np.array(
    [
        (-1.0, 2.0, 0.5, 1.0),
        (-0.3, 0.1, 0.0, 2.5),
        (1.0, 2.5, 0.0, 1.0),
        (-7.0, -6.5, 1.0, 0.5),
        (3000.0, 3000.5, 0.0, 1.0),
        (-3000.5, -3000.0, 0.0, 1.0),
        (3000.0, 3000.0 + 2.0**-30, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.0, 1.0),
        (5.0, 5.0 + 2.0**-40, 0.1, 0.3),
        (-(2.0**-50), 2.0**-50, 0.0, 1.0),
        (-3e-9, 5e-9, 0.0, 1.0),
        (-(2.0**-60), 3.0, 0.0, 1.0),
        (-6.5, 8.5, 0.0, 1.0),
        (-6.5, np.inf, 0.0, 1.0),
        (-np.inf, 6.0, 0.0, 1.0),
        (-np.inf, -40.0, 0.0, 1.0),
        (-np.inf, np.inf, 3.0, 1.0),
        (5000.0, np.inf, 0.0, 1.0),
        (1e-12, 3e-12, 2e-12, 1e-12),
        (0.5, 0.75, 0.25, 1e-12),
        (1e-3, 2e-3, -4.0, 1e12),
        (-1e15, 3e15, 1e3, 1e12),
        (-0.5, 0.5, 0.0, 1.0 - 1e-9),
        (-0.5, 0.5, 0.0, 1.0 + 1e-9),
        (0.0, 0.999, 0.0, 1.0),
        (0.0, 1.001, 0.0, 1.0),
        (9.95, 10.0499, 0.0, 1.0),
        (9.95, 10.0501, 0.0, 1.0),
        (-10.05, -9.949, 0.0, 1.0),
    ]
)


def exact_interval(lower, upper, statistic, sigma):
    mpmath.mp.dps = 60

    def end(x):
        return mpmath.mpf(float(x)) if np.isfinite(x) else mpmath.inf * np.sign(x)

    a, b = ((end(x) - end(statistic)) / end(sigma) / mpmath.sqrt(2) for x in (lower, upper))
    if a > -b:
        a, b = -b, -a
    # The nearer tail is now the one below b, and erfc never cancels beyond 60 digits.
    p = (mpmath.erfc(-b) - mpmath.erfc(-a)) / 2
    return float(mpmath.log(p))


@pytest.fixture(scope="module")
def compiled():
    """The four functions and their gradients, by night compiled as in a model."""
    value, s, sigma, low, high, p = (
        pt.vector(name) for name in ("value", "s", "sigma", "low", "high", "p")
    )
    mechanism = GaussianMechanism(sigma)
    graphs = [
        mechanism.logp(value, s),
        mechanism.log_interval(low, high, s),
        mechanism.logcdf(value, s),
        mechanism.icdf(p, s),
    ]
    zero = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    grads = [pt.grad(graph.sum(), [s, sigma], **zero) for graph in graphs]
    variables = [value, s, sigma, low, high, p]
    return pytensor.function(variables, graphs + [g for pair in grads for g in pair])


def call(compiled, value=0.0, s=0.0, sigma=1.0, low=-1.0, high=1.0, p=0.5):
    arguments = np.broadcast_arrays(*(np.atleast_1d(x) for x in (value, s, sigma, low, high, p)))
    return compiled(*(np.array(a, dtype=float) for a in arguments))


def test_interval_against_mpmath(compiled):
    low, high, s, sigma = INTERVALS.T
    actual = call(compiled, s=s, sigma=sigma, low=low, high=high)
    expected = [exact_interval(*row) for row in INTERVALS]
    np.testing.assert_allclose(actual[1], expected, rtol=1e-12, atol=1e-300)
    assert np.all(np.isfinite(actual[6]))
    assert np.all(np.isfinite(actual[7]))


def test_interval_gradient_against_mpmath(compiled):
    """d log P / ds = (phi(a) - phi(b)) / (sigma P), also where finite differences say nothing."""
    rows = np.array([row for row in INTERVALS if np.all(np.isfinite(row)) and row[3] == 1.0])
    low, high, s, sigma = rows.T
    actual = call(compiled, s=s, sigma=sigma, low=low, high=high)
    expected = []
    for a, b, s_, _ in rows:
        mpmath.mp.dps = 60
        log_p = mpmath.mpf(exact_interval(a, b, s_, 1.0))
        a, b = mpmath.mpf(float(a)) - float(s_), mpmath.mpf(float(b)) - float(s_)
        root = mpmath.sqrt(2 * mpmath.pi)
        difference = (mpmath.exp(-a * a / 2) - mpmath.exp(-b * b / 2)) / root
        expected.append(float(difference / mpmath.exp(log_p)))
    np.testing.assert_allclose(actual[6], expected, rtol=1e-8, atol=1e-12)


def test_density_and_distribution_against_scipy(compiled):
    value = np.array([-30.0, -3.0, -0.1, 0.2, 0.25, 4.0, 60.0])
    p = np.array([1e-290, 1e-5, 0.3, 0.5, 0.75, 1 - 1e-9, 1.0])
    for sigma in (1e-12, 0.3, 7.0, 1e12):
        actual = call(compiled, value=value * sigma, s=0.2 * sigma, sigma=sigma, p=p)
        law = stats.norm(0.2 * sigma, sigma)
        np.testing.assert_allclose(actual[0], law.logpdf(value * sigma), rtol=1e-12)
        np.testing.assert_allclose(actual[2], law.logcdf(value * sigma), rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(actual[3], law.ppf(p), rtol=1e-12)


def test_extremes_are_finite_and_right(compiled):
    value = np.array([1e-9, 1e6, -1e6, 1e15])
    actual = call(compiled, value=value, sigma=1e-12)
    expected = -0.5 * (value / 1e-12) ** 2 - np.log(1e-12 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(actual[0], expected, rtol=1e-12)
    np.testing.assert_allclose(actual[2][2], -0.5e36, rtol=1e-12)
    for grads in actual[4:]:
        assert np.all(np.isfinite(grads))
    assert np.all(np.isneginf(call(compiled, value=[np.inf, -np.inf])[0]))


def test_draw():
    draws = pm.draw(GaussianMechanism([0.5, 20.0]).dist([1.0, -3.0]), draws=4000, random_seed=4)
    for column, s, sigma in zip(draws.T, (1.0, -3.0), (0.5, 20.0), strict=True):
        assert stats.kstest(column, stats.norm(s, sigma).cdf).pvalue > 1e-3


def test_from_rho():
    mechanism = GaussianMechanism.from_rho([0.5, 2.0], sensitivity=[[1.0], [3.0]])
    np.testing.assert_allclose(mechanism.sigma.data, [[1.0, 0.5], [3.0, 1.5]])
    np.testing.assert_allclose(mechanism.rho([[1.0], [3.0]]), [[0.5, 2.0], [0.5, 2.0]])


# epsilon, delta over the range that the class promises, and where the profile changes its form.
BUDGETS = [
    (epsilon, delta)
    for epsilon in (1e-6, 1e-3, 0.1, 1.0, 30.0, 1e3, 1e6)
    for delta in (1e-300, 1e-30, 1e-10, 1e-5, 1e-2, 0.3, 0.5, 0.7, 0.999, 1 - 1e-12)
]


def exact_log_profile(epsilon, t):
    """Logs of delta and 1 - delta of Balle & Wang (2018), theorem 8, to 50 digits."""
    mpmath.mp.dps = 400  # delta is as small as 1e-300
    epsilon, t = mpmath.mpf(float(epsilon)), mpmath.mpf(t)

    def below(x):
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    delta = below(t / 2 - epsilon / t) - mpmath.exp(epsilon) * below(-t / 2 - epsilon / t)
    return mpmath.log(delta), mpmath.log(1 - delta)


def test_analytic_gaussian_against_mpmath():
    epsilon, delta = np.array(BUDGETS).T
    mechanism = GaussianMechanism.from_epsilon_delta(epsilon, delta, sensitivity=3.0)
    for e, d, sigma in zip(epsilon, delta, mechanism.sigma.data, strict=True):
        # The exact root lies within a relative 1e-13 of the sigma found.
        t = 3 / mpmath.mpf(float(sigma))
        less, _ = exact_log_profile(e, t * (1 - mpmath.mpf("1e-13")))
        more, _ = exact_log_profile(e, t * (1 + mpmath.mpf("1e-13")))
        assert less < mpmath.log(mpmath.mpf(float(d))) < more, (e, d)


def test_delta_against_mpmath():
    epsilon = np.array([0.0, 1e-9, 1e-6, 0.5, 1.0, 10.0, 1e4, 0.0, 3.0, 1e6])
    t = np.array([1.0, 1e-3, 1e-5, 0.04, 1.0, 0.6, 141.0, 1e-12, 9.0, 1400.0])
    delta = GaussianMechanism(1 / t).delta(epsilon, sensitivity=1.0)
    expected = [
        float(mpmath.exp(exact_log_profile(e, 1 / mpmath.mpf(1 / float(t_)))[0]))
        for e, t_ in zip(epsilon, t, strict=True)
    ]
    np.testing.assert_allclose(delta, expected, rtol=1e-11)
    # Hopeless budgets on either side.
    assert GaussianMechanism(1e12).delta(1.0, 1.0) == 0.0
    assert GaussianMechanism(1e-12).delta(1.0, 1.0) == 1.0


def test_epsilon_inverts_delta():
    epsilon, delta = np.array(BUDGETS).T
    mechanism = GaussianMechanism.from_epsilon_delta(epsilon, delta, sensitivity=1.0)
    back = mechanism.epsilon(1.0, delta)
    # At delta near 1 epsilon hardly matters, and so cannot be told from sigma.
    np.testing.assert_allclose(back, epsilon, rtol=1e-9, atol=1e-10)
    # delta is enough alone: the total variation distance is 2 Phi(t/2) - 1.
    assert GaussianMechanism(1.0).epsilon(1.0, 2 * stats.norm.cdf(0.5) - 1 + 1e-9) == 0.0
    assert GaussianMechanism(1.0).epsilon(1.0, 2 * stats.norm.cdf(0.5) - 1 - 1e-9) > 0.0


def test_privacy_loss_broadcasts():
    sigma = GaussianMechanism.from_epsilon_delta([0.5, 1.0], 1e-6, [[1.0], [2.0]])
    assert sigma.sigma.type.shape == (2, 2)
    np.testing.assert_allclose(sigma.epsilon([[1.0], [2.0]], 1e-6), [[0.5, 1.0], [0.5, 1.0]])
    np.testing.assert_allclose(sigma.delta([0.5, 1.0], [[1.0], [2.0]]), np.full((2, 2), 1e-6))
    assert np.ndim(GaussianMechanism(1.0).epsilon(1.0, 1e-6)) == 0
    # Known value: the classical formula asks for 4.84 at this budget, the exact one for less.
    scalar = GaussianMechanism.from_epsilon_delta(1.0, 1e-5, 1.0).sigma.data
    assert abs(scalar - 3.730632) < 1e-6


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match=r"GaussianMechanism: sigma must be .* got .*from_rho"):
        GaussianMechanism(bad)
    with pytest.raises(ValueError, match="rho must be finite and > 0"):
        GaussianMechanism.from_rho(bad, 1.0)
    with pytest.raises(ValueError, match="sensitivity must be finite and > 0"):
        GaussianMechanism(1.0).rho(bad)
    good = {"epsilon": 1.0, "delta": 1e-6, "sensitivity": 1.0}
    for name in good:
        with pytest.raises(ValueError, match=f"{name} must be "):
            GaussianMechanism.from_epsilon_delta(**(good | {name: bad}))
    with pytest.raises(ValueError, match=r"delta must be > 0 and < 1, got 1\.0"):
        GaussianMechanism(1.0).epsilon(1.0, 1.0)


def test_symbolic_sigma():
    sigma = pt.scalar("sigma")
    mechanism = GaussianMechanism(sigma)
    with pytest.raises(ValueError, match="sigma is symbolic"):
        mechanism.rho(1.0)
    for graph in (mechanism.logp(0.0), mechanism.log_interval(0.0, 1.0), mechanism.icdf(0.3)):
        f = pytensor.function([sigma], graph, mode=PYTHON)
        assert np.isfinite(f(2.0))
        with pytest.raises(ParameterValueError, match="0 < sigma < inf"):
            f(-1.0)
    with pytest.raises(TypeError, match="never estimated"):
        GaussianMechanism(pm.HalfNormal.dist(1.0))
