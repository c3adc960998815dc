"""Which numbers of records matter where nobody knows how many there are, by enumeration."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

N = np.arange(400)
TWO_MODES = np.zeros(201)
TWO_MODES[[10, 200]] = 0.5


def model_of(prior, statistic, value, noise=1.0):
    with pm.Model() as model:
        n = prior()
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=n)
        dp.PrivateObservation("z", statistic(n, x), dp.GaussianMechanism(noise), observed=value)
    return model


def density(model, **values):
    collapsed = dp.collapse(model)
    logp = collapsed.logp(collapsed.observed_RVs)
    found = pm.compile(collapsed.value_vars, logp, mode=PLAIN_MODE, on_unused_input="ignore")
    return float(found(**{v.name: values[v.name] for v in collapsed.value_vars}))


def of_sum(z, mu, times=1.0):
    return stats.norm.logpdf(z, times * N * mu, np.sqrt(1 + times**2 * N))


# A prior, what is released, and the log density of both for each number of records.
CASES = {
    "a sum that is left out of small numbers": (
        lambda: pm.Poisson("n", 20), lambda n, x: x.sum() * (n >= 18), 0.3,
        lambda mu: stats.poisson.logpmf(N, 20) + of_sum(0.3, mu, N >= 18),
    ),
    "a prior of two modes": (
        lambda: pm.Categorical("n", TWO_MODES), lambda n, x: x.sum(), 140.0,
        lambda mu: np.log(np.r_[TWO_MODES, np.zeros(199)]) + of_sum(140.0, mu),
    ),
    "a number up to its sign": (
        lambda: pm.DiscreteUniform("n", 0, 200), lambda n, x: pt.stack([pt.abs(n - 50.0), x.sum()]),
        [30.0, 70.0],
        lambda mu: np.where(N <= 200, -np.log(201), -np.inf)
        + stats.norm.logpdf(30.0, abs(N - 50.0)) + of_sum(70.0, mu),
    ),
    "joined": (
        lambda: pm.Poisson("n", 20),
        lambda n, x: pt.concatenate([n.reshape((1,)).astype("float64"), x.sum(keepdims=True)]),
        [22.0, 11.0],
        lambda mu: stats.poisson.logpmf(N, 20) + stats.norm.logpdf(22.0, N) + of_sum(11.0, mu),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mu", [0.04, 0.7])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_density_against_enumeration(case, mu):
    *model, log_density = CASES[case]
    expected = special.logsumexp(log_density(mu))
    assert density(model_of(*model), mu=mu) == pytest.approx(expected, abs=1e-9)


def test_data_that_decide_which_numbers_matter_stay_as_they_are():
    with pm.Model() as model:
        n = pm.Poisson("n", pm.Gamma("rate", 2, 0.01))
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=n)
        published = pm.Data("published", 100.0)
        scale, total = pm.Data("scale", 2.0), pm.Data("total", 10.0)
        dp.PrivateObservation("count", n, dp.LaplaceMechanism(scale), observed=published)
        dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(1.0), observed=total)
    collapsed = dp.collapse(model)
    for name in ("published", "scale"):
        with pytest.raises(TypeError, match=f"The variable `{name}` must be"):
            pm.set_data({name: 400.0}, model=collapsed)
    pm.set_data({"published": 300.0}, model=model)
    log = stats.poisson.logpmf(N, 300.0) + stats.laplace.logpdf(300.0, N, 2.0) + of_sum(10.0, 0.04)
    found = density(model, mu=0.04, rate_log__=np.log(300.0))
    assert found == pytest.approx(special.logsumexp(log), abs=1e-9)
