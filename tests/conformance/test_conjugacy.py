"""Every conjugate pair against its conditional, computed from the model's own log density."""

import itertools
from functools import partial

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace, vectorize_graph
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.conjugacy import registry
from pymc_dp.step_methods.conjugate import conditional
from tests.agreement import follows
from tests.chains import chain, step_of

DRAWS = 10_000
REAL = np.array([0.4, -1.3, 2.2, 0.9])
POSITIVE = np.array([0.3, 1.2, 2.5, 0.8])
COUNTS = np.array([0, 3, 1, 2])
ONCE = np.array([1, 4, 2, 1])
BINARY = np.array([1, 0, 1, 1])
CATEGORIES = np.array([0, 2, 2, 1, 2])
TABLE = np.array([[1, 0, 3], [0, 2, 2]])


def bounded(mu, sigma):
    """Records whose release states their bounds; the release itself says nothing more."""
    x = pm.Normal("x", mu, sigma, shape=4)
    dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.0, bounds=(-3.0, 3.0))


def two_children(p):
    pm.Exponential("x", p, shape=4)
    pm.Poisson("y", [1.0, 2.5] * p, observed=[2, 1])


def scale(p):
    return pm.Exponential("x", scale=p, shape=4)


def variance(p, n=4):
    return pm.Normal("x", 0.5, pt.sqrt(p), shape=n)


MEAN, SD = partial(pm.Normal, "x", sigma=1.5, shape=4), partial(pm.Normal, "x", 0.5, shape=4)
RATE, SUCCESS = partial(pm.Exponential, "x", shape=4), partial(pm.Bernoulli, "x", shape=4)
NORMAL, ROOT = partial(pm.Normal, "p", 1, 2), partial(pm.Uniform, "p", 0, 1.2)
GAMMA, INVERSE = partial(pm.Gamma, "p", 2, 3), partial(pm.InverseGamma, "p", 2, 3)
BETA, DIRICHLET = partial(pm.Beta, "p", 2, 3), partial(pm.Dirichlet, "p", [0.7, 2.0, 1.5])
FLAT, HALF_FLAT = partial(pm.Flat, "p"), partial(pm.HalfFlat, "p")

# A prior of "p", its children (latent records "x", and what is observed), the value of x.
CASES = {
    # Priors
    "normal": (NORMAL, MEAN, REAL),
    "flat": (FLAT, MEAN, REAL),
    "uniform mean": (partial(pm.Uniform, "p", -3, 0.5), MEAN, REAL),
    "uniform mean, far": (partial(pm.Uniform, "p", 5, 7), MEAN, REAL),
    "gamma": (partial(pm.Gamma, "p", 2.5, 3), RATE, POSITIVE),
    "chi squared": (partial(pm.ChiSquared, "p", 3), RATE, POSITIVE),
    "exponential": (partial(pm.Exponential, "p", 3), RATE, POSITIVE),
    "half flat rate": (HALF_FLAT, RATE, POSITIVE),
    "uniform rate": (partial(pm.Uniform, "p", 0.6, 1.1), RATE, POSITIVE),
    "uniform rate from 0": (partial(pm.Uniform, "p", 0, 0.8), RATE, POSITIVE),
    "inverse gamma": (INVERSE, scale, POSITIVE),
    "half flat variance": (HALF_FLAT, variance, REAL),
    "uniform variance": (partial(pm.Uniform, "p", 0.5, 4), variance, REAL),
    "uniform variance, one record": (  # the shape is -1/2
        partial(pm.Uniform, "p", 0, 4),
        partial(variance, n=1),
        REAL[:1],
    ),
    "uniform mean of an exponential": (partial(pm.Uniform, "p", 0, 1.5), scale, POSITIVE),
    "half flat sd": (HALF_FLAT, SD, REAL),
    "uniform sd": (partial(pm.Uniform, "p", 0, 1.3), SD, REAL),
    "uniform sd away from 0": (partial(pm.Uniform, "p", 1, 1.7), lambda p: SD(2 * p), REAL),
    "beta": (partial(pm.Beta, "p", 2.5, 0.7), SUCCESS, BINARY),
    "uniform probability": (partial(pm.Uniform, "p", 0, 1), SUCCESS, BINARY),
    "dirichlet": (DIRICHLET, partial(pm.Categorical, "x", shape=5), CATEGORIES),
    # Children of a location
    "linear location": (
        NORMAL,
        lambda p: pm.Normal("x", 3 - 2 * p * np.array([1, 2, 0, 1]), [1, 2, 3, 1], shape=4),
        REAL,
    ),
    "group mean": (  # a child that is a parameter itself
        NORMAL,
        lambda p: pm.Normal("y", pm.Normal("x", p, 0.7), 1.0, observed=REAL),
        REAL[0],
    ),
    "location with another parameter": (
        NORMAL,
        lambda p: MEAN(p + 2 * pm.Normal("other", 50, 1)),
        REAL,
    ),
    "bounded mean": (NORMAL, lambda p: bounded(p, 2.5), REAL),
    # Children of rates
    "gamma, gamma": (GAMMA, lambda p: pm.Gamma("x", [2, 1.5, 3, 1], 2 * p, shape=4), POSITIVE),
    "gamma, poisson": (
        GAMMA,
        lambda p: pm.Poisson("x", p * np.array([1, 2, 0.5, 3]), shape=4),
        COUNTS,
    ),
    "gamma, inverse gamma": (GAMMA, lambda p: pm.InverseGamma("x", 1.5, p / 2, shape=4), POSITIVE),
    "gamma, tau": (GAMMA, lambda p: SD(tau=3 * p), REAL),
    "gamma, tau itself": (GAMMA, lambda p: SD(tau=p), REAL),
    "gamma, bounded": (GAMMA, lambda p: bounded(0.5, 1 / pt.sqrt(p)), REAL),
    "gamma, bounded tau": (
        GAMMA,
        lambda p: bounded(0.5, pt.abs(p) ** -0.5 * pt.sign(p)),  # as pm.Normal writes it
        REAL,
    ),
    "two children": (GAMMA, two_children, POSITIVE),
    "rate with another parameter": (GAMMA, lambda p: RATE(p * pm.Gamma("other", 500, 1)), POSITIVE),
    # Children of variances and scales
    "inverse gamma, gamma": (INVERSE, lambda p: pm.Gamma("x", 2.5, 1 / (2 * p), shape=4), POSITIVE),
    "inverse gamma, poisson": (INVERSE, lambda p: pm.Poisson("x", 2 / p, shape=4), COUNTS),
    "inverse gamma, inverse gamma": (
        INVERSE,
        lambda p: pm.InverseGamma("x", 1.5, 2 / p, shape=4),
        POSITIVE,
    ),
    "inverse gamma, bounded": (INVERSE, lambda p: bounded(0.5, pt.sqrt(2 * p)), REAL),
    # Children of standard deviations
    "root, exponential": (ROOT, lambda p: scale(p**2), POSITIVE),
    "root, gamma": (ROOT, lambda p: pm.Gamma("x", 1.5, 1.5 / p**2, shape=4), POSITIVE),
    "root, poisson": (ROOT, lambda p: pm.Poisson("x", 2 / p**2, shape=4), COUNTS),
    "root, inverse gamma": (ROOT, lambda p: pm.InverseGamma("x", 1.5, 1 / p**2, shape=4), POSITIVE),
    "root, bounded": (HALF_FLAT, lambda p: bounded(0.5, 2 * p), REAL),
    # Children of probabilities
    "beta, binomial": (BETA, lambda p: pm.Binomial("x", [4, 5, 6, 7], p, shape=4), COUNTS),
    "beta, geometric": (BETA, partial(pm.Geometric, "x", shape=4), ONCE),
    "beta, negative binomial": (
        BETA,
        lambda p: pm.NegativeBinomial("x", n=2.5, p=p, shape=4),
        COUNTS,
    ),
    "dirichlet, multinomial": (
        DIRICHLET,
        lambda p: pm.Multinomial("x", [4, 4], p, shape=(2, 3)),
        TABLE,
    ),
    "dirichlet, one table": (DIRICHLET, partial(pm.Multinomial, "x", 4), TABLE[0]),
}


def built(case):
    prior, child, records = CASES[case]
    with pm.Model() as model:
        child(prior())
    point = model.initial_point()
    if "other" in model.named_vars:  # far from its prior, from which it must not be drawn
        point[model.rvs_to_values[model["other"]].name] = np.array(0.3)
    name = model.rvs_to_values[model["x"]].name
    point[name] = np.log(records) if name.endswith("_log__") else records
    return model, point


def drawn(model, point, draws=DRAWS):
    """Draws of "p", on the scale of its value variable, each from where the last one ended."""
    step = step_of(dp.ConjugateGibbs, model, "p")
    return step.vars[0].name, chain(step, point, draws)[step.vars[0].name]


def conditional_logp(model, point, name):
    """Log density of the model in one value, the others held: of all values of a first axis."""
    values = {v.name: v for v in model.value_vars}
    value = values.pop(name)
    others = {v: pt.constant(point[key], dtype=v.dtype) for key, v in values.items()}
    many = pt.tensor(dtype=value.dtype, shape=(None, *value.type.shape))
    logp = clone_replace(model.logp(), others, rebuild_strict=False)
    return pytensor.function([many], vectorize_graph(logp, {value: many}))


def tabulated(log_density):
    """Return a grid on the real line where the mass of a density is, and the density there."""
    low, high = -60.0, 60.0
    for count in (4001, 2001, 4001):  # wide, then where it matters
        grid = np.linspace(low, high, count)
        logs = log_density(grid)
        [heavy] = np.nonzero(logs > np.nanmax(logs) - 30)
        low, high = grid[max(heavy[0] - 1, 0)], grid[min(heavy[-1] + 1, count - 1)]
    return grid, np.exp(np.where(np.isnan(logs), -np.inf, logs) - np.nanmax(logs))


@pytest.mark.by_day(
    "root, gamma",
    "uniform sd",
    "uniform variance, one record",
    "uniform mean, far",
    "gamma, bounded",
    "two children",
    "beta, negative binomial",
    "inverse gamma, gamma",
    "linear location",
    "half flat sd",
    "normal",
    "flat",
    "half flat variance",
    "group mean",
    "exponential",
    "beta",
    "gamma, tau",
    "chi squared",
)
@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("dirichlet")])
def test_conditional(case, night):
    model, point = built(case)
    name, found = drawn(model, point, DRAWS if night else DRAWS // 10)
    follows(found, tabulated(conditional_logp(model, point, name)))


@pytest.mark.by_day("dirichlet, multinomial")
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("dirichlet")])
def test_conditional_of_a_simplex(case, night):
    model, point = built(case)
    name, found = drawn(model, point, DRAWS if night else DRAWS // 5)
    log_density = conditional_logp(model, point, name)
    axis = np.linspace(-7.0, 5.0, 161)
    logs = log_density(list(itertools.product(axis, axis))).reshape(axis.size, -1)
    weight = special.softmax(logs)
    assert np.concatenate([weight[[0, -1]], weight[:, [0, -1]].T]).max() < 1e-6
    for j in range(2):
        follows(found[:, j], (axis, weight.sum(1 - j)))
    product = found[:, 0] * found[:, 1]
    expected = (weight * np.outer(axis, axis)).sum()
    assert abs(product.mean() - expected) < 4 * product.std() / np.sqrt(len(found))


def test_every_registered_pair_has_a_case():
    priors, pairs = set(), set()
    for case in CASES:
        model, _ = built(case)
        rv = model["p"]
        family, _ = conditional(Reading(model), rv)
        priors.add((family, type(rv.owner.op)))
        pairs |= {(family, type(c.owner.op)) for c in dp.reading.model.children(Reading(model), rv)}
    assert priors == set(registry.PRIORS)
    assert pairs == set(registry.CHILDREN)


# --- Edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.Beta("p", 1e-3, 1e-3),
        lambda: pm.Beta("p", 1e9, 1e-9),
        lambda: pm.Gamma("p", 1e-3, 1),
        lambda: pm.InverseGamma("p", 1e-3, 1),
        lambda: pm.Dirichlet("p", [1e-3, 1e-3, 5.0]),
    ],
)
def test_draws_stay_off_the_ends_of_the_support(prior):
    with pm.Model() as model:
        prior()
    _, found = drawn(model, model.initial_point())
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("data", [-1e8, 1e8])
def test_truncated_draws_stay_off_the_ends_of_the_range(data):
    with pm.Model() as model:
        p = pm.Uniform("p", -1, 2)
        pm.Normal("x", p, 1e-3, observed=[data])
    _, found = drawn(model, model.initial_point())
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("bounds", [(0, 1), (-2, 3), (1, 5)])
def test_uniform_prior_without_children(bounds):
    with pm.Model() as model:
        pm.Uniform("p", *bounds, default_transform=None)
    _, found = drawn(model, model.initial_point())
    follows(found, stats.uniform(bounds[0], bounds[1] - bounds[0]))


def test_data_is_read_at_each_draw(night):
    with pm.Model() as model:
        upper, exposure = pm.Data("upper", 2.0), pm.Data("exposure", [1.0, 1.0])
        p = pm.Uniform("p", 0, upper)
        pm.Poisson("x", p * exposure, observed=[20, 25])
        step = dp.ConjugateGibbs([p])
    name, [value] = step.vars[0].name, model.value_vars
    natural = model.compile_fn(
        model.rvs_to_transforms[p].backward(value, *p.owner.inputs), inputs=[value]
    )
    for top, size in ((2.0, 1.0), (400.0, 0.1)):
        pm.set_data({"upper": top, "exposure": [size, size]}, model=model)
        values = chain(step, model.initial_point(), DRAWS if night else DRAWS // 5)[name]
        found = [natural({name: value}) for value in values]
        law = stats.gamma(46, scale=1 / (2 * size))
        follows(found, lambda x, law=law, top=top: law.cdf(x) / law.cdf(top))


def test_counts_of_small_integers_do_not_overflow():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(2))
        pm.Categorical("x", p, observed=np.ones(100_000, dtype="int8"))
        q = pm.Beta("q", 1, 1)
        pm.Bernoulli("y", q, observed=np.ones(100_000, dtype="int8"))
    point, _ = step_of(dp.ConjugateGibbs, model, "p", "q").step(model.initial_point())
    assert point["p_simplex__"][0] < -4
    assert point["q_logodds__"] > 8


# --- Refusals -------------------------------------------------------------------------------------


UNIT, EVEN = partial(pm.Uniform, "p", 0, 1), partial(pm.Beta, "p", 1, 1)
RATE_1, SCALE_1 = partial(pm.Gamma, "p", 1, 1), partial(pm.InverseGamma, "p", 1, 1)
Interval = pm.distributions.transforms.Interval
DECLINED = [
    (partial(pm.HalfNormal, "p"), lambda p: pm.Normal("x", 0, p), "prior halfnormal"),
    (partial(pm.HalfCauchy, "p", 1), lambda p: pm.Normal("x", 0, p), "prior halfcauchy"),
    (UNIT, lambda p: pm.Bernoulli("x", logit_p=p), "the probability of 'x' is not it"),
    (EVEN, lambda p: pm.Bernoulli("x", p / 2), "the probability of 'x' is not it"),
    (
        partial(pm.Uniform, "p", 0, 0.5),
        SUCCESS,
        "'p' has no conjugate update: its prior is not uniform on .0, 1.$",
    ),
    (
        lambda: pm.Uniform("p", 0, pm.Data("top", 1.0)),
        SUCCESS,
        "its prior is not uniform on .0, 1.",
    ),
    (
        partial(pm.Uniform, "p", -1, 1),
        lambda p: pm.Exponential("x", p),
        "its lower bound is no constant that is 0 or more",
    ),
    (
        lambda: pm.Uniform("p", 0, pm.Exponential("top", 1)),
        lambda p: pm.Normal("x", p, 1),
        "the bounds of its prior are random",
    ),
    (
        partial(UNIT, default_transform=Interval(0.2, 0.5)),
        lambda p: pm.Bernoulli("x", p),
        "'p' has the transform .* may cut its support",
    ),
    (EVEN, lambda p: pm.Normal("x", p, 1), "its child 'x' is not conjugate to its prior"),
    (
        EVEN,
        lambda p: pm.Binomial("x", pt.ceil(4 * p), p),
        "the number of trials of 'x' depends on it",
    ),
    (
        EVEN,
        lambda p: pm.NegativeBinomial("x", n=1 + p, p=p),
        "the number of successes of 'x' depends on it",
    ),
    (RATE_1, lambda p: pm.Gamma("x", p, p), "the shape of 'x' depends on it"),
    (RATE_1, lambda p: pm.InverseGamma("x", p, p), "the shape of 'x' depends on it"),
    (RATE_1, lambda p: pm.Normal("x", p, tau=p), "the location of 'x' depends on it"),
    (
        RATE_1,
        lambda p: pm.Exponential("x", p + 1),
        r"the scale of 'x' is not proportional to it\*\*-1",
    ),
    (
        RATE_1,
        lambda p: pm.Exponential("x", scale=p),
        r"the scale of 'x' is not proportional to it\*\*-1",
    ),
    (RATE_1, lambda p: pm.Poisson("x", pt.sqrt(p)), "the mean of 'x' is not proportional to it$"),
    (SCALE_1, lambda p: pm.Normal("x", 0, tau=p), "the variance of 'x' is not proportional to it$"),
    (
        partial(pm.InverseGamma, "p", 2, 3),  # proportional at one value of the power, at no other
        lambda p: pm.Normal("x", 0, pt.sqrt(p ** pm.HalfNormal("power"))),
        "not proportional to it",
    ),
    (
        partial(pm.Uniform, "p", -1, 1),
        lambda p: pm.Normal("x", 0, pt.exp(p)),
        "the spread of 'x' depends on it",
    ),
    (SCALE_1, lambda p: bounded(p, 1.0), "the location of 'x' depends on it"),
    (
        partial(pm.Dirichlet, "p", np.ones((2, 3))),
        lambda p: pm.Categorical("x", p),
        "'p' is a batch of vectors, not one vector",
    ),
    (partial(RATE_1, shape=2), lambda p: pm.Exponential("x", p), "'p' is not a scalar"),
    (
        partial(pm.Dirichlet, "p", np.ones(3)),
        lambda p: pm.Categorical("x", logit_p=p),
        "the vector of probabilities of 'x' is not it",
    ),
    (EVEN, lambda p: pm.Potential("x", pt.log(p)), "its child 'x' is not conjugate to its prior"),
    (
        RATE_1,
        lambda p: pm.Truncated("x", pm.Exponential.dist(p), upper=2.0),
        "its child 'x' is not conjugate to its prior",
    ),
    (
        UNIT,
        lambda p: (pm.Bernoulli("x", p), pm.Normal("y", p, 1)),
        "its child 'y' is not conjugate to its prior; its child 'x' is",
    ),
]


@pytest.mark.parametrize(("prior", "child", "match"), DECLINED)
def test_declined(prior, child, match):
    with pm.Model() as model:
        p = prior()
        child(p)
    with pytest.raises(Declined, match=match):
        conditional(Reading(model), p)
    with model, pytest.raises(ValueError, match="ConjugateGibbs cannot update 'p'"):
        dp.ConjugateGibbs([p])
