"""Laws that are not listed: the density of their clamped sums, from distribution functions."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import signal, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN

N, LOWER, UPPER, STEP = 6, 0.1, 1.4, 1e-3

LAWS = {
    "weibull": lambda theta, **kwargs: pm.Weibull.dist(theta, 0.8, **kwargs),
    "half cauchy": lambda theta, **kwargs: pm.HalfCauchy.dist(theta, **kwargs),
    "half student": lambda theta, **kwargs: pm.HalfStudentT.dist(3, theta, **kwargs),
    "kumaraswamy": lambda theta, **kwargs: pm.Kumaraswamy.dist(theta, 2.0, **kwargs),
    "pareto": lambda theta, **kwargs: pm.Pareto.dist(theta, 0.2, **kwargs),
    "skew student": lambda theta, **kwargs: pm.SkewStudentT.dist(
        a=theta, b=2.0, mu=0.2, sigma=1.0, **kwargs
    ),
}


def model_of(law, noise, theta=1.3, n=N):
    with pm.Model() as model:
        theta = pm.Gamma("theta", 4, 4 / theta)
        x = model.register_rv(LAWS[law](theta, shape=n), "x")
        released = pt.clip(x, LOWER, UPPER).sum()
        dp.PrivateObservation("z", released, noise, observed=4.0)
    return model


def log_density(law, theta, noise):
    """From the masses of one clamped record on a grid, convolved."""
    edges = LOWER + (np.arange(round((UPPER - LOWER) / STEP)) + 0.5) * STEP
    if law == "half student":  # which has no distribution function in PyMC
        below = 2 * stats.t(3, scale=theta).cdf(edges) - 1
    else:
        below = np.exp(pm.logcdf(LAWS[law](theta), edges).eval(mode=PLAIN))
    one = np.diff([0.0, *below, 1.0])
    total = one
    for _ in range(N - 1):
        total = np.maximum(signal.fftconvolve(total, one), 0.0)
    sums = N * LOWER + np.arange(total.size) * STEP
    return np.log(total @ noise.pdf(4.0 - sums))


@pytest.mark.parametrize("law", LAWS)
def test_density_of_clamped_sums(law):
    sigma, theta = 0.4, 1.1
    collapsed = dp.collapse(model_of(law, dp.GaussianMechanism(sigma)))
    z, value = collapsed["z"], collapsed["theta"]
    logp = pm.logp(z, collapsed.rvs_to_values[z]).sum()
    found, slope = pm.compile([value], [logp, pt.grad(logp, value)], mode=PLAIN)(theta)
    points, law_of_noise = theta + np.array([-1e-3, 0.0, 1e-3]), stats.norm(0, sigma)
    around = [log_density(law, t, law_of_noise) for t in points]
    assert found == pytest.approx(around[1], abs=2e-6)
    assert slope == pytest.approx((around[2] - around[0]) / 2e-3, rel=1e-4)


def test_groups_and_unknown_numbers_of_such_records():
    """Two groups are the sum of each; a number that is known is one."""
    g = np.repeat([0, 1], [7, 9])
    with pm.Model() as model:
        theta = pm.Gamma("theta", 2, 2, shape=2)
        c = pt.clip(pm.Weibull("x", 1.2, theta[g], shape=16), 0, 2)
        sums = pt.inc_subtensor(pt.zeros(2)[g], c)
        dp.PrivateObservation("z", sums, dp.LaplaceMechanism(1.0), observed=[4.0, 7.0])
    alone = []
    for n, z in ((7, 4.0), (9, 7.0)):
        with pm.Model() as one:
            m = pm.DiscreteUniform("n", n, n)
            x = pm.Weibull("x", 1.2, pm.Gamma("theta", 2, 2), shape=m)
            total = pt.clip(x, 0, 2).sum()
            dp.PrivateObservation("z", total, dp.LaplaceMechanism(1.0), observed=z)
        alone.append(one)

    def density(model, theta):
        on = dp.collapse(model)
        logp = pm.logp(on["z"], on.rvs_to_values[on["z"]]).sum()
        return pm.compile([on["theta"]], logp, mode=PLAIN)(theta)

    expected = sum(density(one, t) for one, t in zip(alone, (0.7, 1.4), strict=True))
    assert density(model, np.array([0.7, 1.4])) == pytest.approx(expected, rel=1e-10)


def mixture():
    components = [pm.Normal.dist(0, 1), pm.Normal.dist(pm.Normal("m"), 1)]
    return pm.Mixture("x", [0.5, 0.5], components, shape=7)


KINK = {"lower": 0.0, "upper": 1.0, "shape": 7}


@pytest.mark.parametrize(
    ("records", "match"),
    [
        (lambda: pm.VonMises("x", pm.Normal("mu"), 2.0, shape=7), "live on a .* support"),
        (lambda: pm.AsymmetricLaplace("x", kappa=2, mu=pm.Normal("m"), b=1, shape=7), "of 0.9999"),
        (lambda: pm.Triangular("x", c=pm.Beta("c", 2, 3), **KINK), "mass of"),
        (lambda: pm.Interpolated("x", np.arange(3.0), np.eye(3)[1], shape=7), "vectors"),
        (lambda: pm.ExGaussian("x", 0.1, 0.5, nu=pm.HalfNormal("nu"), shape=7), "no derivative"),
    ],
)
def test_what_is_not_found_whole_is_refused(records, match):
    with pm.Model() as model:
        total = pt.clip(records(), 0, 1).sum()
        dp.PrivateObservation("z", total, dp.GaussianMechanism(1.0), observed=1.0)
    with pytest.raises(Declined, match=match):
        dp.collapse(model)
