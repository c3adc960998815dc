"""Noisy sums of whole numbers of each law that has them, against enumeration."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import plain_function

P, K = 0.4, np.arange(400)
POISSON = stats.poisson(10 * P).pmf(K)


def cut(mass, lower=0, upper=np.inf):
    mass = np.where((lower <= K) & (upper >= K), mass, 0.0)
    return mass / mass.sum()


def hurdle(mass, psi=0.6):
    return psi * cut(mass, 1) + (1 - psi) * (K == 0)


LAWS = {  # as written, and its masses
    "binomial, cut": (
        lambda p: pm.Truncated.dist(pm.Binomial.dist(10, p), 2, 8),
        cut(stats.binom(10, P).pmf(K), 2, 8),
    ),
    "beta-binomial": (
        lambda p: pm.BetaBinomial.dist(10 * p, 3.0, 9), stats.betabinom(9, 10 * P, 3.0).pmf(K),
    ),
    "uniform": (lambda p: pm.DiscreteUniform.dist(1, 9), cut(np.ones(K.size), 1, 9)),
    "geometric": (lambda p: pm.Geometric.dist(p), stats.geom(P).pmf(K)),
    "poisson, cut": (
        lambda p: pm.Truncated.dist(pm.Poisson.dist(10 * p), 2, 5), cut(POISSON, 2, 5),
    ),
    "poisson, cut between whole numbers": (
        lambda p: pm.Truncated.dist(pm.Poisson.dist(10 * p), 0.5, 5.5), cut(POISSON, 1, 5),
    ),
    "poisson, cut below": (
        lambda p: pm.Truncated.dist(pm.Poisson.dist(10 * p), lower=2), cut(POISSON, 2),
    ),
    "hurdle": (lambda p: pm.HurdlePoisson.dist(0.6, 10 * p), hurdle(POISSON)),
    "hurdle, wide": (
        lambda p: pm.HurdleNegativeBinomial.dist(0.6, 10 * p, 2.0),
        hurdle(stats.nbinom(2.0, 2.0 / (2.0 + 10 * P)).pmf(K)),
    ),
    "with and without an end": (
        lambda p: pm.Mixture.dist(
            [0.3, 0.5, 0.2],
            [
                pm.Binomial.dist(30, p), pm.Poisson.dist(10 * p),
                pm.Truncated.dist(pm.Poisson.dist(10 * p), 9),
            ],
        ),
        0.3 * stats.binom(30, P).pmf(K) + 0.5 * POISSON + 0.2 * cut(POISSON, 9),
    ),
}  # fmt: skip


def marginal(law, mechanism, of=lambda x: x.clip(0, 6), times=1.0):
    with pm.Model() as model:
        p = pm.Uniform("p", default_transform=None)
        total = dp.RecordSums("s", law(p), [3], of=of)
        dp.PrivateObservation("z", times * total, mechanism, observed=[7.0])
    collapsed = dp.collapse(model, "marginal")
    logp = collapsed.logp(collapsed.observed_RVs)
    return float(plain_function(collapsed.value_vars, logp)(P))


@pytest.mark.parametrize("law", LAWS)
def test_each_law(law):
    written, mass = LAWS[law]
    one = np.bincount(K.clip(0, 6), mass)
    of_three = np.convolve(np.convolve(one, one), one)
    noise = stats.laplace.pdf(7.0, np.arange(of_three.size), 2.0)
    found = marginal(written, dp.LaplaceMechanism(2.0))
    assert found == pytest.approx(np.log(of_three @ noise), abs=1e-9)


@pytest.mark.parametrize("of", [lambda x: 0.5 * x.clip(0, 6), lambda x: x.clip(0, 6) + 0.25])
def test_discrete_noise_does_not_fill_gaps(of):
    with pm.Model() as model:
        x = pm.Poisson("x", pm.Exponential("rate", 1.0), shape=3)
        dp.PrivateObservation("z", of(x).sum(), dp.GeometricMechanism(2.0), observed=7)
    with pytest.raises(Declined, match="'x' is no whole number, and GeometricMechanism adds"):
        dp.collapse(model, "marginal")
