"""Mechanisms that a user states: density, draws, and what they say of themselves."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from tests.mechanisms.noise import evaluate

ROOT2 = np.sqrt(2)


def draws(name, *arguments):
    return lambda statistic, rng=None, size=None: getattr(rng, name)(statistic, *arguments, size)


def added(name, *arguments):
    def random(statistic, rng=None, size=None):
        return statistic + getattr(rng, name)(*arguments, size)

    return random


def logp_of(law, *arguments):
    return lambda value, statistic: pm.logp(law.dist(statistic, *arguments), value)


def geometric(value, statistic):
    return pt.log(pt.tanh(0.25)) - 0.5 * pt.abs(value - statistic)


def geometric_draws(statistic, rng=None, size=None):
    p = 1 - np.exp(-0.5)
    return statistic + rng.geometric(p, size) - rng.geometric(p, size)


def clipped_at_zero(value, statistic):
    law = dp.LaplaceMechanism(2.0).clipped(lower=0)
    return law.logp(value, statistic)


def zero_stays(value, statistic):
    step = pt.switch(pt.eq(statistic, 0), 0, 1)  # of a zero; others go to a neighbour
    return pt.switch(pt.eq(abs(value - statistic), step), -np.log(2.0) * step, -np.inf)


def zero_stays_draws(statistic, rng=None, size=None):
    return statistic + np.where(statistic == 0, 0, rng.choice([-1, 1], size))


def proportional(value, statistic):
    """A zero has no noise: a point with mass 1."""
    near = pt.abs(value - statistic) <= 0.5 * pt.abs(statistic)
    width = pt.switch(pt.eq(statistic, 0), 1.0, pt.abs(statistic))
    return pt.switch(near, -pt.log(width), -np.inf)


RIGHT = {
    "laplace": (logp_of(pm.Laplace, 3.0), draws("laplace", 3.0), {"rates": (1 / 3, 0.0)}),
    "normal": (logp_of(pm.Normal, 1e-6), draws("normal", 1e-6), {"rates": (0, 1e12)}),
    "huge": (logp_of(pm.Normal, 1e12), draws("normal", 1e12), {}),
    "cauchy": (
        logp_of(pm.Cauchy, 2.0),
        lambda s, rng=None, size=None: s + 2 * rng.standard_cauchy(size),
        {},
    ),
    "uniform": (
        lambda z, s: pt.switch(pt.abs(z - s) <= 4, -np.log(8.0), -np.inf),
        added("uniform", -4, 4),
        {},
    ),
    "geometric": (geometric, geometric_draws, {"discrete": True, "rates": (0.5, 0)}),
    "atom": (
        clipped_at_zero,
        lambda s, rng=None, size=None: np.maximum(rng.laplace(s, 2.0, size), 0),
        {},
    ),
    "a count that stays": (zero_stays, zero_stays_draws, {"discrete": True, "tried_at": (0, 6)}),
    "a number that stays": (
        proportional,
        lambda s, rng=None, size=None: s * rng.uniform(0.5, 1.5, size),
        {},
    ),
    "multiplied": (
        lambda z, s: pm.logp(pm.LogNormal.dist(pt.log(s), 0.3), z),
        lambda s, rng=None, size=None: s * rng.lognormal(0, 0.3, size),
        {"tried_at": (1.0, 100.0), "support": (0, np.inf)},
    ),
}
LAPLACE, NORMAL = RIGHT["laplace"], RIGHT["normal"]
with pm.Model():
    RANDOM = pm.HalfNormal("q")
SCALES = np.array([1.0, 2.0, 3.0])
WRONG = {
    "a rate for a scale": (LAPLACE[0], draws("laplace", 1 / 3), {}, "different laws"),
    "a variance for an sd": (logp_of(pm.Normal, 2.0), draws("normal", 4.0), {}, "different laws"),
    "fifteen per cent": (logp_of(pm.Normal, 2.0), draws("normal", 2.3), {}, "different laws"),
    "not normalised": (
        lambda z, s: -pt.abs(z - s) / 3,
        LAPLACE[1],
        {},
        r"has mass 6 .*normalise|mass (5\.99|6\.0)",
    ),
    "rates of another": (*LAPLACE[:2], {"rates": (0.0, 1 / 9)}, "are not those of logp"),
    "one draw for all": (
        LAPLACE[0],
        lambda s, rng=None, size=None: np.full(size, rng.laplace()),
        {},
        "must be independent",
    ),
    "one draw of a uniform law for all": (  # whose density is 1
        lambda z, s: pt.switch(pt.abs(z - s) <= 0.5, 0.0, -np.inf),
        lambda s, rng=None, size=None: s + np.full(size, rng.uniform(-0.5, 0.5)),
        {},
        "must be independent",
    ),
    "one draw of a count for all": (
        geometric,
        lambda s, rng=None, size=None: np.full(size, geometric_draws(s[0], rng)),
        {"discrete": True},
        "must be independent",
    ),
    "a count that stays in logp alone": (
        zero_stays,
        lambda s, rng=None, size=None: s + rng.choice([-1, 1], size),
        {"discrete": True},
        r"random gave -?1, of which logp is -inf",
    ),
    "noise of a whole vector": (
        lambda z, s: -pt.sqrt(((z - s) ** 2).sum(-1)),
        LAPLACE[1],
        {},
        "density is joint.*dp.SphericalLaplace",
    ),
    "no size": (LAPLACE[0], lambda s, rng=None, size=None: rng.laplace(), {}, r"gave \(\) numbers"),
    "no argument": (LAPLACE[0], lambda s: s, {}, "random.* ended in"),
    "no function": (1.0, LAPLACE[1], {}, "logp must be a function"),
    "outside": (
        RIGHT["uniform"][0],
        added("uniform", -5, 5),
        {},
        r"random gave .*, of which logp is -inf",
    ),
    "geometric with another scale": (
        geometric,
        lambda s, rng=None, size=None: s + rng.geometric(0.5, size) - rng.geometric(0.5, size),
        {"discrete": True},
        "different laws",
    ),
    "geometric that is clipped when it is drawn": (
        geometric,
        lambda s, rng=None, size=None: np.maximum(RIGHT["geometric"][1](s, rng, size), 0),
        {"discrete": True, "tried_at": (1.0,)},
        "different laws|has mass",
    ),
    "another distribution function": (
        *LAPLACE[:2],
        {"logcdf": dp.LaplaceMechanism(2.5).logcdf},
        "logcdf is that of another law",
    ),
    "another quantile function": (
        *LAPLACE[:2],
        {"icdf": dp.LaplaceMechanism(2.5).icdf},
        "icdf is that of another law",
    ),
    "no log-concave noise": (*RIGHT["cauchy"][:2], {"log_concave": True}, "bends upwards"),
    "support": (*LAPLACE[:2], {"support": (3, 1)}, "support must be"),
    "a random variable": (
        lambda z, s: -abs(z - s) / RANDOM - pt.log(2 * RANDOM),
        LAPLACE[1],
        {},
        r"logp depends on the random variable 'q'.*pm\.CustomDist\('z', x, q",
    ),
    "a random variable in the distribution function": (
        *LAPLACE[:2],
        {"logcdf": lambda z, s: dp.LaplaceMechanism(1.0).logcdf(z, s) + RANDOM},
        "logcdf depends on the random variable 'q'",
    ),
    "a vector in the density": (
        lambda z, s: -abs(z - s) / SCALES - np.log(2 * SCALES),
        LAPLACE[1],
        {},
        r"logp of 20000 values ended in.*\(20000,\) \(3,\).*each entry by itself.*number == k",
    ),
    "a vector in the draws": (
        LAPLACE[0],
        lambda s, rng=None, size=None: rng.laplace(s, SCALES, size),
        {},
        r"random of 20000 statistics ended in.*\(3,\).*each entry by itself.*number == k",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_pairs_are_taken(name):
    logp, random, more = RIGHT[name]
    mechanism = dp.CustomMechanism(logp, random, **more)
    z = 7.0
    expected = evaluate(pt.as_tensor(logp(pt.constant(z), pt.constant(5.0))))
    np.testing.assert_allclose(evaluate(mechanism.logp(z, 5.0)), expected, rtol=1e-6)  # PyMC's
    assert pm.draw(mechanism.dist(np.full(3, 5.0)), random_seed=1).shape == (3,)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pairs_are_refused(name):
    logp, random, more, match = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=match):
        dp.CustomMechanism(logp, random, **more)


def same_laplace(**more):
    """The Laplace mechanism, stated by its functions."""
    own = dp.LaplaceMechanism(3.0)
    return dp.CustomMechanism(
        own.logp,
        draws("laplace", 3.0),
        logcdf=own.logcdf,
        icdf=own.icdf,
        log_concave=True,
        **more,
    )


@pytest.mark.parametrize("rates", [None, (1 / 3, 0.0)])
@pytest.mark.parametrize(
    "after",
    [
        lambda m: m,
        lambda m: m.clipped(-1, 4),
        lambda m: m.rounded(base=5),
        lambda m: m.truncated(),
        lambda m: m.suppressed(below=2.0),
    ],
    ids=["itself", "clipped", "rounded", "truncated", "suppressed"],
)
def test_it_is_the_mechanism_that_it_states(rates, after):
    ours, theirs = after(same_laplace(rates=rates)), after(dp.LaplaceMechanism(3.0))
    z = np.array([-10.0, -1, 0, 2, 3, 4, 5, np.nan])
    found, expected = evaluate(ours.logp(z, 1.7), theirs.logp(z, 1.7))
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=1e-10)
    if ours.withholds:
        np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-10)
    else:
        assert np.isneginf(found[-1])


def test_without_a_distribution_function():
    mechanism = dp.CustomMechanism(*LAPLACE[:2])
    with pytest.raises(NotImplementedError, match=r"logcdf=\.\.\."):
        mechanism.rounded(1).logp(3.0, 2.0)


def test_rates_open_the_compiled_chain():
    """The same posterior as that of the mechanism, from the same route and seed."""
    found = []
    for mechanism in (same_laplace(rates=(1 / 3, 0.0)), dp.LaplaceMechanism(3.0)):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 10)
            x = pm.Normal("x", mu, 2, shape=50)
            dp.PrivateObservation("z", x.sum(), mechanism, observed=70.0)
        found.append(dp.collapse(model).compile_logp()({"mu": np.array(1.3)}))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_few_whole_numbers_are_listed():
    """Answers of 0, 1, 2 that a producer changed in a way of its own."""
    table = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.0, 0.3, 0.7]])

    def random(statistic, rng=None, size=None):
        cumulated = np.cumsum(table, axis=1)[np.asarray(statistic, int)]
        return (rng.random(size)[..., None] > cumulated).sum(axis=-1)

    mechanism = dp.CustomMechanism(
        lambda z, s: pt.log(pt.constant(table)[pt.cast(s, "int64"), pt.cast(z, "int64")]),
        random,
        discrete=True,
        support=(0, 2),
        tried_at=(0, 1, 2),
    )
    np.testing.assert_array_equal(mechanism.outcomes, [0, 1, 2])
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        x = pm.Categorical("x", p, shape=4)
        dp.PrivateObservation("z", x, mechanism, observed=[0, 2, 2, 1])
    marginal = dp.collapse(model)
    p = np.array([0.5, 0.2, 0.3])
    [expected] = [np.log(p @ table)[[0, 2, 2, 1]].sum()]
    with marginal:
        rv = marginal["z"]
        value = pm.logp(rv, marginal.rvs_to_values[rv]).sum()
        found = value.eval({marginal["p"]: p})
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pm.Model():
        x = pm.Categorical("x", p, shape=1)
        with pytest.raises(ValueError, match="cannot publish 3"):
            dp.PrivateObservation("z", x, mechanism, observed=[3])
