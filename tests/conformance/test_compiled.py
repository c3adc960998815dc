"""The package's ops give the same numbers in Python and compiled by numba, as users run them.

By day most graphs are evaluated in Python alone; here are all kinds of ops once in both.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.distributions import bessel
from pymc_dp.laws import tilting
from tests.models import gaussian

pytestmark = pytest.mark.compiled

x, p = pt.dscalars("x", "p")
WHOLE = np.array([-2, 0, 3])


def of_whole_numbers():
    """Skellam and Bessel laws."""
    skellam, bes = dp.Skellam.dist(x, 2 * x), dp.Bessel.dist(2, x)
    return [
        pm.logp(skellam, WHOLE), pm.logcdf(skellam, WHOLE),
        pm.logp(bes, WHOLE), pm.logcdf(bes, WHOLE), bessel.BesselMean.apply(2, x),
    ]  # fmt: skip


def of_laws():
    """Log densities, distribution functions and quantiles, of x = 1.7 and p = 0.3."""
    discrete, reports = dp.DiscreteGaussianMechanism(x), dp.RandomizedResponse(1 - p).counted(9)
    geometric = dp.GeometricMechanism(x)
    return [
        pm.logp(dp.TruncatedGammaMixture.dist(x, p, 2.0, 1.0), WHOLE + 0.5),
        *tilting.normal_tilted_mass(x, 0.1, 2.0, x, p),
        *tilting.gamma_tilted_mass(x, 0.1, 2.0, x, p),
        discrete.logp(WHOLE, 1), discrete.logcdf(WHOLE, 1), discrete.icdf(p, 1),
        geometric.logp(WHOLE, 1), geometric.icdf(p, 1),
        reports.logp([0, 4], 5), reports.log_interval(1, 4, 5), reports.icdf(p, 5),
    ]  # fmt: skip


def of_counts():
    """Marginals of counts: a Poisson and a Binomial, summed, and one with a closed form."""
    with pm.Model() as model:
        rate, share = pm.Gamma("rate", 2, 1), pm.Beta("share", 2, 2)
        geometric, gauss = dp.GeometricMechanism(2.0), dp.DiscreteGaussianMechanism(3.0)
        dp.PrivateObservation("a", pm.Poisson.dist(rate), geometric, observed=4)
        dp.PrivateObservation("b", pm.Binomial.dist(9, share), gauss, observed=-2)
        answers = pm.Bernoulli("answers", share, shape=20)
        dp.PrivateObservation("c", answers.sum(), dp.LaplaceMechanism(2.0), observed=11.3)
    return density(dp.collapse(model, "marginal"))


def of_bounded_records():
    """The marginal with public bounds, whose quadrature is placed by an op."""
    return density(dp.collapse(gaussian(bounds=(0, 1)), "marginal"), gradient=False)


def of_an_inverted_sum():
    """The marginal of a clamped mean, by its characteristic function."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        records = pm.Normal("records", mu, 1, shape=30)
        mechanism = dp.LaplaceMechanism(0.2)
        dp.PrivateObservation("z", pt.clip(records, -1, 1).mean(), mechanism, observed=0.4)
    return density(dp.collapse(model, "marginal"))


def density(model, gradient=True):
    values = {v: pt.constant(model.initial_point()[v.name]) + 0 * x for v in model.value_vars}
    found = [model.logp()]
    found += pytensor.grad(found[0], list(values)) if gradient else []
    return pytensor.graph.clone_replace(found, values, rebuild_strict=False)


@pytest.mark.by_day("of_whole_numbers", "of_counts")
@pytest.mark.parametrize(
    "graphs", [of_whole_numbers, of_laws, of_counts, of_bounded_records, of_an_inverted_sum]
)
def test_python_and_numba_agree(graphs):
    inputs, outputs = [x, p], graphs()
    plain, compiled = (
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")(1.7, 0.3)
        for mode in ("FAST_COMPILE", "NUMBA")
    )
    for expected, found in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
