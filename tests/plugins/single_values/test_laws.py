"""Laws and functions of values that are released one by one, against integrals by scipy."""

from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

pytestmark = pytest.mark.filterwarnings("ignore:No safe default transform")  # of PyMC, of mixtures

LAPLACE, NARROW = dp.LaplaceMechanism(0.5), dp.UniformMechanism(0.001)
STUDENT = dp.StudentTMechanism(3.0, 0.8)
K = np.arange(80)


def laplace(e):
    return stats.laplace.pdf(e, 0, 0.5)


def uniform(e):
    return (np.abs(e) <= 0.001) / 0.002


def student(e):
    return stats.t.pdf(e, 3, 0, 0.8)


def no_function(x):
    return x


def gaps(x):
    return pt.switch(x > 0.3, x, 0.0)


# The law at a parameter of 1, its density or masses (points, masses), a function, noise, releases.
CASES = {
    "one end": (lambda m: pm.TruncatedNormal("x", m, 2, lower=0, shape=2),
                lambda x: stats.truncnorm.pdf(x, -0.5, np.inf, 1, 2), no_function, LAPLACE, laplace,
                [0.7, -2.0], [0, 80]),
    "two ends": (lambda m: pm.Truncated("x", pm.StudentT.dist(4, m, sigma=2), 0.5, 3, shape=2),
                 lambda x: stats.t.pdf(x, 4, 1, 2) / np.diff(stats.t.cdf([0.5, 3], 4, 1, 2)),
                 no_function, LAPLACE, laplace, [0.7, 4.0], [0.5, 3]),
    "hurdle": (lambda m: pm.HurdlePoisson("x", 0.6, m, shape=2),
               (K, np.where(K == 0, 0.4, 0.6 * stats.poisson.pmf(K, 1) / (1 - np.exp(-1)))),
               no_function, STUDENT, student, [0.4, 6.0], None),
    "continuous hurdle": (lambda m: pm.HurdleGamma("x", 0.6, 2.0, m, shape=2),
                          lambda x: 0.6 * stats.gamma.pdf(x, 2), no_function, LAPLACE, laplace,
                          [0.4, 2.0], [0, 60]),
    "a label times a value": (
        lambda m: pm.Bernoulli("b", 0.6, shape=2) * pm.Normal("x", m, 2, shape=2),
        lambda x: 0.6 * stats.norm.pdf(x, 1, 2), no_function, LAPLACE, laplace, [0.4, 2.0],
        [-20, 22]),
    "one of two": (
        lambda m: pt.switch(pm.Bernoulli("b", 0.6, shape=2), pm.Normal("x", m, 2, shape=2),
                            pm.Gamma("y", 2, m, shape=2)),
        lambda x: 0.6 * stats.norm.pdf(x, 1, 2) + 0.4 * stats.gamma.pdf(x, 2), pt.exp, LAPLACE,
        laplace, [0.4, 5.0], [-20, 0, 20]),
    "floor": (lambda m: pm.Normal("x", m, 2, shape=2), lambda x: stats.norm.pdf(x, 1, 2), pt.floor,
              LAPLACE, laplace, [0.4, 7.0], [-15, *range(-14, 16)]),
    "switch": (lambda m: pm.Normal("x", m, 2, shape=2), lambda x: stats.norm.pdf(x, 1, 2), gaps,
               LAPLACE, laplace, [0.4, -0.2], [-20, 0.3, 20]),
    "part of the line": (lambda m: pm.Normal("x", m, 2, shape=2),
                         lambda x: stats.norm.pdf(x, 1, 2) * (x > 0), pt.sqrt, LAPLACE, laplace,
                         [0.4, 2.2], [0, 20]),
    "narrow": (lambda m: pm.Normal("x", m, 2, shape=2), lambda x: stats.norm.pdf(x, 1, 2),
               lambda x: abs(x - 3), NARROW, uniform, [0.0004, 1.7], [-20, 20]),
    "a parabola": (lambda m: pm.Normal("x", m, 2, shape=2), lambda x: stats.norm.pdf(x, 1, 2),
                   lambda x: 1 + x + x**2, NARROW, uniform, [0.7504, 4.0], [-20, -0.5, 20]),
    "logit": (lambda m: pm.Beta("x", 2, 1 + m, shape=2), lambda x: stats.beta.pdf(x, 2, 2),
              pm.math.logit, LAPLACE, laplace, [0.4, -3.0], [1e-9, 1 - 1e-9]),
    "logit scale": (lambda m: pm.Normal("x", m, 2, shape=2), lambda x: stats.norm.pdf(x, 1, 2),
                    pm.math.sigmoid, NARROW, uniform, [0.4, 0.99], [-20, 20]),
}  # fmt: skip


WITH_ZEROS = "continuous hurdle", "a label times a value"


def integral(density, f, noise, z, ends):
    """Integrate law times noise between the ends and where the function is near a release."""
    x = np.linspace(ends[0], ends[-1], 400_001)
    jump = np.flatnonzero(np.diff((np.abs(f(x) - z) < 0.01).astype(int)))
    knots = np.unique(np.concatenate([ends, x[jump]]))
    fine = np.concatenate([np.linspace(a, b, 4_001) for a, b in pairwise(knots)])
    nodes, weights = np.polynomial.legendre.leggauss(8)
    low, width = fine[:-1, None], np.diff(fine)[:, None]
    points = low + 0.5 * width * (1.0 + nodes)
    return np.sum(0.5 * width * weights * density(points) * noise(z - f(points)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_density(case):
    """Ends of the support, points, jumps, several branches, parts where a function is not."""
    law, density, function, mechanism, noise, released, ends = CASES[case]
    with pm.Model() as model:
        m = pm.Gamma("m", 2, 1)
        dp.PrivateObservation("z", function(law(m)), mechanism, observed=released)
    collapsed = dp.collapse(model)
    got = collapsed.compile_logp([collapsed["z"]], sum=False)({"m_log__": np.array(0.0)})[0]
    x = pt.vector()
    f = np.vectorize(lambda v: v) if function is no_function else None
    f = f or (lambda v: function(x).eval({x: v.ravel()}, mode=PLAIN_MODE).reshape(v.shape))
    for z, found in zip(released, got, strict=True):
        if ends is None:
            points, masses = density
            truth = masses @ noise(z - points)
        else:
            truth = integral(density, f, noise, z, ends)
            truth += 0.4 * noise(z) if case in WITH_ZEROS else 0.0
        rtol = 2e-3 if mechanism is NARROW else 1e-6  # of the truth: the noise jumps
        np.testing.assert_allclose(np.exp(found), truth, rtol=rtol)


@pytest.mark.parametrize("clipped", [True, False])
def test_bends_are_ends_of_panels(clipped):
    """Where many are interpolated the sum of the log densities is that of the integrals."""
    with pm.Model() as model:
        m = pm.Normal("m", 0.5, 1)
        y = pm.Normal.dist(m, 1.0)
        x = (
            pm.Normal("x", m, 1, shape=1_000)
            if clipped
            else pm.Censored("x", y, -1, 1, shape=1_000)
        )
        z = np.random.default_rng(1).normal(0.0, 1.2, 1_000)
        released = pt.clip(x, -1, 1) if clipped else x
        dp.PrivateObservation("z", released, LAPLACE, observed=z)
    got = dp.collapse(model)
    got = got.compile_logp([got["z"]])({"m": np.array(0.8)})
    low, high = stats.norm.cdf(-1, 0.8, 1), stats.norm.sf(1, 0.8, 1)
    points, weights = np.polynomial.legendre.leggauss(400)
    inside = laplace(z[:, None] - points) @ (weights * stats.norm.pdf(points, 0.8, 1))
    rest = low * laplace(z + 1) + high * laplace(z - 1)
    # Of the kink at z this rule of Gauss knows nothing: 1e-5 each, of both signs.
    np.testing.assert_allclose(got, np.log(inside + rest).sum(), atol=5e-3)


def test_a_step_of_a_support_that_moves_is_declined():
    """The slopes know of no mass that passes a jump."""
    with pm.Model() as model:
        top = pm.Exponential("top", 1.0)
        x = pm.Uniform("x", 0, top, shape=2)
        dp.PrivateObservation("z", pt.floor(x), LAPLACE, observed=[0.3, 1.0])
    with pytest.raises(NotImplementedError, match=r"move with 'top'.*no gradient"):
        dp.collapse(model)


def test_nuts_declines_records_with_points():
    """A value of a hurdle law under noise that no rung integrates is not moved by NUTS."""
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.HurdleGamma("x", p, 2, 1, shape=5)
        dp.PrivateObservation("z", x, dp.LaplaceMechanism(0.5), observed=np.ones(5))
        dp.PrivateObservation("again", x, dp.LaplaceMechanism(0.5), observed=np.ones(5))
    with pytest.raises(ValueError, match="no route on the rung 'records'"):
        dp.sample(model, draws=10, tune=10, rung="records")


def test_what_cannot_have_been_published_is_named():
    """No start is possible: the error names the release and what was tried."""
    with pm.Model() as model:
        a = pm.Uniform("a", 0, 1)
        dp.PrivateObservation("z", a, dp.UniformMechanism(0.1), observed=5.0)
    with pytest.raises(ValueError, match=r"no start was found: 'z' .* tried for 'a'"):
        dp.sample(model, draws=10, tune=10, quiet=True)


def test_a_truncated_law_without_a_name_has_its_shape():
    """PyMC does not tell the static shape of a truncated draw."""
    with pm.Model() as model:
        x = pm.Truncated.dist(pm.Poisson.dist(2.0), lower=1, shape=3)
        z = np.array([1.2, 0.1, 4.0])
        dp.PrivateObservation("z", x, LAPLACE, observed=z)
    masses = np.where(K > 0, stats.poisson.pmf(K, 2.0), 0.0) / (1 - np.exp(-2.0))
    np.testing.assert_allclose(
        model.compile_logp()({}), np.log(laplace(z[:, None] - K) @ masses).sum(), rtol=1e-9
    )
