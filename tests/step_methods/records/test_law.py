"""The law of records as a function of sums over them, as compiled chains take it."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from pymc_dp.reading.factors import parameters
from pymc_dp.reading.model import Reading
from pymc_dp.routes.records_chain import covered
from pymc_dp.step_methods.records.engine import Layout
from pymc_dp.step_methods.records.law import ChainGraphs


def hurdle(a, b):
    return pm.HurdleGamma("x", psi=pm.math.sigmoid(a), alpha=2.0, beta=pm.math.exp(b), shape=5)


def censored(a, b):
    return pm.Censored("x", pm.Normal.dist(a, pm.math.exp(b)), lower=-1.0, upper=2.0, shape=5)


def mixture(a, b):
    parts = [pm.Exponential.dist(pm.math.exp(b)), pm.Normal.dist(-2.0, 1.0)]
    return pm.Mixture("x", pt.stack([pm.math.sigmoid(a), 1 - pm.math.sigmoid(a)]), parts, shape=5)


def of_the_user(a, b):
    def logp(value, mu):
        return pt.switch(pt.eq(value, 0.0), -pt.exp(mu), pt.log1mexp(-pt.exp(mu)) - value)

    def random(mu, rng=None, size=None):
        return rng.exponential(size=size) * (rng.random(size) > np.exp(-np.exp(mu)))

    return pm.CustomDist("x", a, logp=logp, random=random, shape=5)


LAWS = {
    "Normal": (lambda a, b: pm.Normal("x", a, pm.math.exp(b), shape=5), True),
    "Gamma": (lambda a, b: pm.Gamma("x", pm.math.exp(a), pm.math.exp(b), shape=5), True),
    "Beta": (lambda a, b: pm.Beta("x", pm.math.exp(a), pm.math.exp(b), shape=5), True),
    "Poisson": (lambda a, b: pm.Poisson("x", pm.math.exp(a), shape=5), True),
    "Binomial": (lambda a, b: pm.Binomial("x", 3, pm.math.sigmoid(a), shape=5), True),
    "probability cut off": (lambda a, b: pm.Binomial("x", 3, pt.clip(a, 0, 1), shape=5), False),
    "bounds that move": (lambda a, b: pm.Uniform("x", a, a + pm.math.exp(b), shape=5), False),
    "hurdle": (hurdle, False),
    "censored": (censored, False),
    "mixture": (mixture, False),
    "of the user": (of_the_user, True),
}


@pytest.mark.filterwarnings("ignore:No safe default transform")
@pytest.mark.parametrize("case", LAWS)
def test_sums_give_the_law_of_records(case):
    """What has atoms, or is impossible for one part of a law only, is not read as if it were not.

    The check at the records of one draw would not tell: these need not be at an atom.
    """
    make, by_sums = LAWS[case]
    with pm.Model() as model:
        q = pm.Normal("q", [0.5, 0.0])
        x = make(q[0], q[1])
        dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(1.0), observed=1.0)
    reading, start = Reading(model), model.initial_point()
    [block] = covered(reading)
    moving = parameters(reading, block)
    layout = Layout(model, moving, start)
    compiled = ChainGraphs(model, block, moving, layout.slices, [block], recorded=[])
    graphs, given = compiled.graphs, [*compiled.records.values(), *compiled.env.values()]
    env = [np.zeros(len(compiled.columns)) for source in compiled.sources]
    gather = plain_function(given, graphs["gather"][0])
    law, whole = (
        plain_function([compiled.theta, compiled.law_sums, *given], graphs[name][0])
        for name in ("law", "law, whole")
    )
    assert compiled.by_sums == by_sums
    for k, records in enumerate(pm.draw(x, 20, random_seed=1)):
        theta = layout.theta(start) + np.random.default_rng(k).normal(size=layout.size)
        sums = gather(records, *env)
        found, expected = (f(theta, sums, records, *env) for f in (law, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
