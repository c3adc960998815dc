"""The marginal laws as graphs: values, gradients, and compilation."""

from functools import partial

import mpmath as mp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key
from pytensor.tensor.random.basic import _gamma, cauchy, exponential, normal
from scipy import stats

from pymc_dp.kernels.functions import tilting as kernels
from pymc_dp.laws import tilting
from tests.kernels.functions.laplace import laplace_log_marginal_gamma

INF = np.inf


@pytest.fixture(autouse=True)
def _many_digits():
    with mp.workdps(60):
        yield


def gamma_log_marginal(z, lam, a, scale):
    """Return log p(z) in closed form, at the working precision."""
    z, lam, a, scale = map(mp.mpf, (z, lam, a, scale))
    beta = 1 / scale
    constant = a * mp.log(beta) - mp.loggamma(a)
    if z <= 0:
        return mp.log(lam / 2) + lam * z - a * mp.log1p(lam / beta)
    left = z**a / a * mp.exp(-beta * z) * mp.hyp1f1(1, a + 1, (beta - lam) * z)
    right = mp.exp(lam * z) * (beta + lam) ** -a * mp.gammainc(a, (beta + lam) * z)
    return mp.log(lam / 2) + constant + mp.log(left + right)


def normal_log_marginal(z, lam, m, sd, lo=-mp.inf, hi=mp.inf):
    z, lam, m, sd = map(mp.mpf, (z, lam, m, sd))
    total = mp.mpf(0)
    for t, low, high in [(lam, lo, min(z, hi)), (-lam, max(z, lo), hi)]:
        if low < high:
            ends = [(end - m - t * sd**2) / sd / mp.sqrt(2) for end in (low, high)]
            if ends[1] < -ends[0]:  # the nearer tail is the left one
                ends = [-ends[1], -ends[0]]
            mass = (mp.erfc(ends[0]) - mp.erfc(ends[1])) / 2
            total += mp.exp(t * (m - z) + (t * sd) ** 2 / 2) * mass
    return mp.log(lam / 2) + mp.log(total)


def slopes(f, *args):
    """Return the partial derivatives of f, by central differences in high precision."""
    args = [mp.mpf(x) for x in args]
    out = []
    for i, x in enumerate(args):
        h = mp.mpf(10) ** -22 * max(abs(x), mp.mpf(10) ** -6)
        up, down = (f(*args[:i], x + d, *args[i + 1 :]) for d in (h, -h))
        out.append((up - down) / (2 * h))
    return out


GAMMA_POINTS = np.array(
    [  # z, lam, shape, scale
        (2.0, 1.5, 3.0, 1.0),
        (2.0, 0.2, 3.0, 1.0),
        (2.0, 1.0, 3.0, 1.0),  # the tilt cancels the rate
        (2.0, 1e6, 3.0, 1.0),  # hardly any noise
        (2.0, 1e-6, 3.0, 1.0),  # hardly any information
        (0.3, 5.0, 0.4, 2.0),
        (9.0, 5.0, 0.4, 2.0),
        (-3.0, 2.0, 3.0, 1.0),
        (-1e-9, 2.0, 0.5, 1.0),
        (40.0, 2.0, 3.0, 1.0),
        (61.0, 0.3, 45.0, 1.1),
        (30.0, 7.0, 45.0, 1.1),
        (2224.8, 0.01, 21.0, 19.0),
    ]
)


@pytest.fixture(scope="module")
def gamma_graph():
    """Compile log p and its gradient once, for all points."""
    inputs = pt.dvectors("z", "lam", "shape", "scale")
    logp = tilting.laplace_log_marginal(_gamma, inputs[0], inputs[1], *inputs[2:])
    return pytensor.function(inputs, [logp, *pytensor.grad(logp.sum(), inputs)])


def agree(reference, points, logp, *gradient):
    for i, point in enumerate(points):
        expected = reference(*point)
        assert abs(logp[i] - expected) < 1e-12 * max(1, abs(expected)), point
        for x, y in zip(gradient, slopes(reference, *point), strict=True):
            # Derivatives in lam vanish with the noise: only their size relative to 1/lam counts.
            assert abs(x[i] - y) < 1e-9 * max(abs(y), 1e-3), (point, x[i], y)


def test_gamma_marginal_and_gradient(gamma_graph):
    agree(gamma_log_marginal, GAMMA_POINTS, *gamma_graph(*GAMMA_POINTS.T))


def test_gamma_marginal_far_out(gamma_graph):
    """Extremes stay finite, gradients included."""
    points = np.array(
        [
            (2.0, 1e15, 3.0, 1.0),
            (2.0, 1e-12, 3.0, 1.0),
            (-1e8, 5.0, 3.0, 1.0),
            (1e9, 5.0, 3.0, 1.0),
            (1.00001, 1e3, 5e8, 2e-9),
            (1e-300, 1.0, 2.0, 1.0),
            (1.0, 1.0, 1e-3, 1.0),
        ]
    )
    for values in gamma_graph(*points.T):
        assert np.isfinite(values).all()


def test_noise_that_vanishes_leaves_the_law(gamma_graph):
    """With 1/lam small, p is the density of the statistic: its score must not drown in lam."""
    z, a, scale = 2.0, 3.0, 1.5
    logp, dz, _, da, dscale = gamma_graph(*[[x] for x in (z, 1e13, a, scale)])
    assert logp[0] == pytest.approx(stats.gamma.logpdf(z, a, scale=scale), abs=1e-12)
    assert dz[0] == pytest.approx((a - 1) / z - 1 / scale, abs=1e-9)
    assert da[0] == pytest.approx(float(mp.log(z / scale) - mp.digamma(a)), abs=1e-9)
    assert dscale[0] == pytest.approx(z / scale**2 - a / scale, abs=1e-9)


NORMAL_POINTS = np.array(
    [  # z, lam, mu, sigma
        (0.3, 1.0, 0.5, 1.4),
        (0.5, 1.0, 0.5, 1.4),  # a tie between the two sides
        (30.0, 0.7, 0.5, 1.4),
        (-30.0, 7.0, 0.5, 1.4),
        (1.2, 1e6, 0.5, 1.4),
        (1.2, 1e-6, 0.5, 1.4),
        (34.3, 0.4, 30.0, 7.0),
    ]
)


def test_normal_marginal_and_gradient():
    inputs = pt.dvectors("z", "lam", "mu", "sigma")
    logp = tilting.laplace_log_marginal(normal, inputs[0], inputs[1], *inputs[2:])
    cut = tilting.laplace_log_marginal(normal, *inputs, lo=0.0, hi=1.0)
    outputs = [x for f in (logp, cut) for x in (f, *pytensor.grad(f.sum(), inputs))]
    values = pytensor.function(inputs, outputs)(*NORMAL_POINTS.T)

    agree(normal_log_marginal, NORMAL_POINTS, *values[:5])
    agree(partial(normal_log_marginal, lo=0, hi=1), NORMAL_POINTS, *values[5:])


def test_interval_ends_are_differentiable():
    t, lo, hi = pt.dscalars("t", "lo", "hi")
    mass = tilting.log_tilted_mass(_gamma, t, 2.5, lo, hi, 3.0, 0.5)
    f = pytensor.function([t, lo, hi], [mass, *pytensor.grad(mass, [t, lo, hi])])

    def reference(t, lo, hi):
        kernel = mp.quad(lambda s: s**2 * mp.exp(-2 * s + t * (s - mp.mpf(2.5))), [lo, hi])
        return mp.log(4 * kernel)

    for point in [(1.3, 0.4, 2.0), (-1.3, 0.4, 2.0), (5.0, 1.0, 1.1)]:
        log_mass, *gradient = f(*point)
        assert log_mass == pytest.approx(float(reference(*map(mp.mpf, point))), abs=1e-12)
        with mp.workdps(50):
            expected = [float(x) for x in slopes(reference, *point)]
        np.testing.assert_allclose(gradient, expected, rtol=1e-10)
    log_mass, *gradient = f(1.0, 2.0, 1.0)
    assert log_mass == -INF
    assert gradient[1:] == [0.0, 0.0]


def test_exponential_is_gamma_with_shape_one():
    z = np.array([-1.0, 0.5, 3.0])
    got = tilting.laplace_log_marginal(exponential, z, 2, 3).eval()  # small integers on purpose
    expected = [laplace_log_marginal_gamma(x, 2.0, 1.0, 1 / 3, 0.0, INF) for x in z]
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert got.dtype == "float64"


def test_broadcasts():
    logp = tilting.laplace_log_marginal(normal, np.zeros((3, 1)), 2.0, np.arange(4.0), 1.0)
    assert logp.eval().shape == (3, 4)


def test_logaddexp():
    x, y = pt.dvectors("x", "y")
    out = tilting.logaddexp(x, y)
    f = pytensor.function([x, y], [out, *pytensor.grad(out.sum(), [x, y])])
    value, dx, dy = f([1.0, 2.0, -INF, 3.0, -2000.0], [1.0, 1.0, 1.0, -INF, -2001.0])
    np.testing.assert_allclose(value, np.logaddexp([1, 2, -INF, 3, -2000], [1, 1, 1, -INF, -2001]))
    np.testing.assert_allclose(dx + dy, 1.0)
    np.testing.assert_allclose(dx[[0, 2, 3]], [0.5, 0.0, 1.0])
    assert f([-INF], [-INF])[0] == [-INF]


def test_python_and_numba_agree():
    inputs = pt.dscalars("t", "lo", "hi", "a", "beta")
    outputs = tilting.gamma_tilted_mass(*inputs)
    point = (0.7, 0.1, 2.0, 3.0, 1.0)
    expected = kernels.gamma_tilted_parts(*point)
    for mode in ("FAST_COMPILE", "NUMBA"):
        parts = pytensor.function(inputs, outputs, mode=mode)(*point)
        # machines with fused multiply-add differ in the last bit
        np.testing.assert_allclose(parts, expected, rtol=1e-14)


def test_compiles_to_a_cacheable_numba_function():
    for mass in (tilting.gamma_tilted_mass, tilting.normal_tilted_mass):
        node = mass.make_scalar_node(*pt.dscalars("t", "lo", "hi", "a", "beta"))
        _, key = numba_funcify_and_cache_key(node.op, node=node)
        assert key is not None


def test_second_derivatives_are_refused():
    a = pt.dscalar("a")
    slope = pytensor.grad(tilting.laplace_log_marginal(_gamma, 1.0, 1.0, a, 1.0), a)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        pytensor.grad(slope, a)


def test_unknown_law_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"CauchyRV.*GammaRV, NormalRV"):
        tilting.laplace_log_marginal(cauchy, 1.0, 1.0, 0.0, 1.0)


def test_gamma_logpdf():
    s, a, beta = pt.dvectors("s", "a", "beta")
    f = pytensor.function([s, a, beta], tilting.gamma_logpdf(s, a, beta))
    points = [(2.0, 3.0, 1.5), (1e-8, 0.01, 1.0), (1.00003, 5e8, 5e8), (50.0, 10.5, 1.0)]
    for x, got in zip(points, f(*np.array(points).T), strict=True):
        x = [mp.mpf(q) for q in x]
        expected = x[1] * mp.log(x[2]) - mp.loggamma(x[1]) + (x[1] - 1) * mp.log(x[0]) - x[2] * x[0]
        assert abs(got - expected) < 2e-11 * max(1, abs(expected))
