"""Every conjugate pair against its conditional, computed from the model's own log density."""

import itertools

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace, vectorize_graph
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.conjugacy import registry
from pymc_dp.step_methods.conjugate import conditional

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


# A prior of "p", its children (latent records "x", and what is observed), the value of x.
CASES = {
    # Priors
    "normal": (
        lambda: pm.Normal("p", 1, 2),
        lambda p: pm.Normal("x", p, 1.5, shape=4),
        REAL,
    ),
    "flat": (lambda: pm.Flat("p"), lambda p: pm.Normal("x", p, 1.5, shape=4), REAL),
    "uniform mean": (
        lambda: pm.Uniform("p", -3, 0.5),
        lambda p: pm.Normal("x", p, 1.5, shape=4),
        REAL,
    ),
    "uniform mean, far": (
        lambda: pm.Uniform("p", 5, 7),
        lambda p: pm.Normal("x", p, 1.5, shape=4),
        REAL,
    ),
    "gamma": (lambda: pm.Gamma("p", 2.5, 3), lambda p: pm.Exponential("x", p, shape=4), POSITIVE),
    "chi squared": (
        lambda: pm.ChiSquared("p", 3),
        lambda p: pm.Exponential("x", p, shape=4),
        POSITIVE,
    ),
    "exponential": (
        lambda: pm.Exponential("p", 3),
        lambda p: pm.Exponential("x", p, shape=4),
        POSITIVE,
    ),
    "half flat rate": (
        lambda: pm.HalfFlat("p"),
        lambda p: pm.Exponential("x", p, shape=4),
        POSITIVE,
    ),
    "uniform rate": (
        lambda: pm.Uniform("p", 0.6, 1.1),
        lambda p: pm.Exponential("x", p, shape=4),
        POSITIVE,
    ),
    "uniform rate from 0": (
        lambda: pm.Uniform("p", 0, 0.8),
        lambda p: pm.Exponential("x", p, shape=4),
        POSITIVE,
    ),
    "inverse gamma": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.Exponential("x", scale=p, shape=4),
        POSITIVE,
    ),
    "half flat variance": (
        lambda: pm.HalfFlat("p"),
        lambda p: pm.Normal("x", 0.5, pt.sqrt(p), shape=4),
        REAL,
    ),
    "uniform variance": (
        lambda: pm.Uniform("p", 0.5, 4),
        lambda p: pm.Normal("x", 0.5, pt.sqrt(p), shape=4),
        REAL,
    ),
    "uniform variance, one record": (  # the shape is -1/2
        lambda: pm.Uniform("p", 0, 4),
        lambda p: pm.Normal("x", 0.5, pt.sqrt(p), shape=1),
        REAL[:1],
    ),
    "uniform mean of an exponential": (
        lambda: pm.Uniform("p", 0, 1.5),
        lambda p: pm.Exponential("x", scale=p, shape=4),
        POSITIVE,
    ),
    "half flat sd": (lambda: pm.HalfFlat("p"), lambda p: pm.Normal("x", 0.5, p, shape=4), REAL),
    "uniform sd": (
        lambda: pm.Uniform("p", 0, 1.3),
        lambda p: pm.Normal("x", 0.5, p, shape=4),
        REAL,
    ),
    "uniform sd away from 0": (
        lambda: pm.Uniform("p", 1, 1.7),
        lambda p: pm.Normal("x", 0.5, 2 * p, shape=4),
        REAL,
    ),
    "beta": (lambda: pm.Beta("p", 2.5, 0.7), lambda p: pm.Bernoulli("x", p, shape=4), BINARY),
    "uniform probability": (
        lambda: pm.Uniform("p", 0, 1),
        lambda p: pm.Bernoulli("x", p, shape=4),
        BINARY,
    ),
    "dirichlet": (
        lambda: pm.Dirichlet("p", [0.7, 2.0, 1.5]),
        lambda p: pm.Categorical("x", p, shape=5),
        CATEGORIES,
    ),
    # Children of a location
    "linear location": (
        lambda: pm.Normal("p", 1, 2),
        lambda p: pm.Normal("x", 3 - 2 * p * np.array([1, 2, 0, 1]), [1, 2, 3, 1], shape=4),
        REAL,
    ),
    "group mean": (  # a child that is a parameter itself
        lambda: pm.Normal("p", 1, 2),
        lambda p: pm.Normal("y", pm.Normal("x", p, 0.7), 1.0, observed=REAL),
        REAL[0],
    ),
    "location with another parameter": (
        lambda: pm.Normal("p", 1, 2),
        lambda p: pm.Normal("x", p + 2 * pm.Normal("other", 50, 1), 1.5, shape=4),
        REAL,
    ),
    "bounded mean": (lambda: pm.Normal("p", 1, 2), lambda p: bounded(p, 2.5), REAL),
    # Children of rates
    "gamma, gamma": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.Gamma("x", [2, 1.5, 3, 1], 2 * p, shape=4),
        POSITIVE,
    ),
    "gamma, poisson": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.Poisson("x", p * np.array([1, 2, 0.5, 3]), shape=4),
        COUNTS,
    ),
    "gamma, inverse gamma": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.InverseGamma("x", 1.5, p / 2, shape=4),
        POSITIVE,
    ),
    "gamma, tau": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.Normal("x", 0.5, tau=3 * p, shape=4),
        REAL,
    ),
    "gamma, tau itself": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.Normal("x", 0.5, tau=p, shape=4),
        REAL,
    ),
    "gamma, bounded": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: bounded(0.5, 1 / pt.sqrt(p)),
        REAL,
    ),
    "gamma, bounded tau": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: bounded(0.5, pt.abs(p) ** -0.5 * pt.sign(p)),  # as pm.Normal writes it
        REAL,
    ),
    "two children": (lambda: pm.Gamma("p", 2, 3), two_children, POSITIVE),
    "rate with another parameter": (
        lambda: pm.Gamma("p", 2, 3),
        lambda p: pm.Exponential("x", p * pm.Gamma("other", 500, 1), shape=4),
        POSITIVE,
    ),
    # Children of variances and scales
    "inverse gamma, gamma": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.Gamma("x", 2.5, 1 / (2 * p), shape=4),
        POSITIVE,
    ),
    "inverse gamma, poisson": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.Poisson("x", 2 / p, shape=4),
        COUNTS,
    ),
    "inverse gamma, inverse gamma": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.InverseGamma("x", 1.5, 2 / p, shape=4),
        POSITIVE,
    ),
    "inverse gamma, bounded": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: bounded(0.5, pt.sqrt(2 * p)),
        REAL,
    ),
    # Children of standard deviations
    "root, exponential": (
        lambda: pm.Uniform("p", 0, 1.2),
        lambda p: pm.Exponential("x", scale=p**2, shape=4),
        POSITIVE,
    ),
    "root, gamma": (
        lambda: pm.Uniform("p", 0, 1.2),
        lambda p: pm.Gamma("x", 1.5, 1.5 / p**2, shape=4),
        POSITIVE,
    ),
    "root, poisson": (
        lambda: pm.Uniform("p", 0, 1.2),
        lambda p: pm.Poisson("x", 2 / p**2, shape=4),
        COUNTS,
    ),
    "root, inverse gamma": (
        lambda: pm.Uniform("p", 0, 1.2),
        lambda p: pm.InverseGamma("x", 1.5, 1 / p**2, shape=4),
        POSITIVE,
    ),
    "root, bounded": (lambda: pm.HalfFlat("p"), lambda p: bounded(0.5, 2 * p), REAL),
    # Children of probabilities
    "beta, binomial": (
        lambda: pm.Beta("p", 2, 3),
        lambda p: pm.Binomial("x", [4, 5, 6, 7], p, shape=4),
        COUNTS,
    ),
    "beta, geometric": (
        lambda: pm.Beta("p", 2, 3),
        lambda p: pm.Geometric("x", p, shape=4),
        ONCE,
    ),
    "beta, negative binomial": (
        lambda: pm.Beta("p", 2, 3),
        lambda p: pm.NegativeBinomial("x", n=2.5, p=p, shape=4),
        COUNTS,
    ),
    "dirichlet, multinomial": (
        lambda: pm.Dirichlet("p", [0.7, 2.0, 1.5]),
        lambda p: pm.Multinomial("x", [4, 4], p, shape=(2, 3)),
        TABLE,
    ),
    "dirichlet, one table": (
        lambda: pm.Dirichlet("p", [0.7, 2.0, 1.5]),
        lambda p: pm.Multinomial("x", 4, p),
        TABLE[0],
    ),
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
    with model:
        step = dp.ConjugateGibbs([model["p"]])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    name = step.vars[0].name
    out = []
    for _ in range(draws):
        point, _ = step.step(point)
        out.append(point[name])
    return name, np.array(out)


def conditional_logp(model, point, name):
    """Log density of the model in one value, the others held: of all values of a first axis."""
    values = {v.name: v for v in model.value_vars}
    value = values.pop(name)
    others = {v: pt.constant(point[key], dtype=v.dtype) for key, v in values.items()}
    many = pt.tensor(dtype=value.dtype, shape=(None, *value.type.shape))
    logp = clone_replace(model.logp(), others, rebuild_strict=False)
    return pytensor.function([many], vectorize_graph(logp, {value: many}))


def grid_cdf(log_density):
    """Distribution function of a density on the real line, tabulated where its mass is."""
    low, high = -60.0, 60.0
    for count in (4001, 2001, 4001):  # wide, then where it matters
        grid = np.linspace(low, high, count)
        logs = log_density(grid)
        [heavy] = np.nonzero(logs > np.nanmax(logs) - 30)
        low, high = grid[max(heavy[0] - 1, 0)], grid[min(heavy[-1] + 1, count - 1)]
    density = np.exp(np.where(np.isnan(logs), -np.inf, logs) - np.nanmax(logs))
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    return lambda x: np.interp(x, grid, cdf / cdf[-1])


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
    cdf = grid_cdf(conditional_logp(model, point, name))
    assert stats.kstest(found, cdf).pvalue > 1e-3


@pytest.mark.by_day("dirichlet, multinomial")
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("dirichlet")])
def test_conditional_of_a_simplex(case, night):
    model, point = built(case)
    name, found = drawn(model, point, DRAWS if night else DRAWS // 5)
    log_density = conditional_logp(model, point, name)
    axis = np.linspace(-7.0, 5.0, 161)
    logs = log_density(list(itertools.product(axis, axis))).reshape(axis.size, -1)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    assert np.concatenate([weight[[0, -1]], weight[:, [0, -1]].T]).max() < 1e-6
    for j in range(2):
        marginal = weight.sum(1 - j)
        cdf = integrate.cumulative_trapezoid(marginal, axis, initial=0.0)
        at = lambda x, cdf=cdf: np.interp(x, axis, cdf / cdf[-1])  # noqa: E731
        assert stats.kstest(found[:, j], at).pvalue > 1e-3
    product = found[:, 0] * found[:, 1]
    expected = (weight * np.outer(axis, axis)).sum()
    assert abs(product.mean() - expected) < 4 * product.std() / np.sqrt(DRAWS)


def test_every_registered_pair_has_a_case():
    priors, pairs = set(), set()
    for case in CASES:
        model, _ = built(case)
        rv = model["p"]
        family, _ = conditional(Reading(model), rv)
        priors.add((type(rv.owner.op), family))
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
    assert stats.kstest(found, stats.uniform(bounds[0], bounds[1] - bounds[0]).cdf).pvalue > 1e-3


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
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    for top, size in ((2.0, 1.0), (400.0, 0.1)):
        with model:
            pm.set_data({"upper": top, "exposure": [size, size]})
        found, point = [], model.initial_point()
        for _ in range(DRAWS if night else DRAWS // 5):
            point, _ = step.step(point)
            found.append(natural({name: point[name]}))
        law = stats.gamma(46, scale=1 / (2 * size))
        cut = lambda x, law=law, top=top: law.cdf(x) / law.cdf(top)  # noqa: E731
        assert stats.kstest(found, cut).pvalue > 1e-3


def test_counts_of_small_integers_do_not_overflow():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(2))
        pm.Categorical("x", p, observed=np.ones(100_000, dtype="int8"))
        q = pm.Beta("q", 1, 1)
        pm.Bernoulli("y", q, observed=np.ones(100_000, dtype="int8"))
        step = dp.ConjugateGibbs([p, q])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point, _ = step.step(model.initial_point())
    assert point["p_simplex__"][0] < -4
    assert point["q_logodds__"] > 8


# --- Refusals -------------------------------------------------------------------------------------


Interval = pm.distributions.transforms.Interval
DECLINED = {
    "half normal": (lambda: pm.HalfNormal("p"), lambda p: pm.Normal("x", 0, p), "prior halfnormal"),
    "half cauchy": (
        lambda: pm.HalfCauchy("p", 1),
        lambda p: pm.Normal("x", 0, p),
        "prior halfcauchy",
    ),
    "logit": (
        lambda: pm.Uniform("p", 0, 1),
        lambda p: pm.Bernoulli("x", logit_p=p, shape=4),
        "the probability of 'x' is not it",
    ),
    "half of a probability": (
        lambda: pm.Beta("p", 1, 1),
        lambda p: pm.Bernoulli("x", p / 2, shape=4),
        "the probability of 'x' is not it",
    ),
    "part of a range": (
        lambda: pm.Uniform("p", 0, 0.5),
        lambda p: pm.Bernoulli("x", p, shape=4),
        "'p' has no conjugate update: its prior is not uniform on .0, 1.$",
    ),
    "a range of data": (
        lambda: pm.Uniform("p", 0, pm.Data("top", 1.0)),
        lambda p: pm.Bernoulli("x", p, shape=4),
        "its prior is not uniform on .0, 1.",
    ),
    "a negative scale": (
        lambda: pm.Uniform("p", -1, 1),
        lambda p: pm.Exponential("x", p),
        "its lower bound is no constant that is 0 or more",
    ),
    "random bounds": (
        lambda: pm.Uniform("p", 0, pm.Exponential("top", 1)),
        lambda p: pm.Normal("x", p, 1),
        "the bounds of its prior are random",
    ),
    "another interval": (
        lambda: pm.Uniform("p", 0, 1, default_transform=Interval(0.2, 0.5)),
        lambda p: pm.Bernoulli("x", p),
        "'p' has the transform .* may cut its support",
    ),
    "log odds mean": (
        lambda: pm.Beta("p", 1, 1),
        lambda p: pm.Normal("x", p, 1),
        "its child 'x' is not conjugate to its prior",
    ),
    "trials": (
        lambda: pm.Beta("p", 1, 1),
        lambda p: pm.Binomial("x", pt.ceil(4 * p), p),
        "the number of trials of 'x' depends on it",
    ),
    "successes": (
        lambda: pm.Beta("p", 1, 1),
        lambda p: pm.NegativeBinomial("x", n=1 + p, p=p),
        "the number of successes of 'x' depends on it",
    ),
    "shape": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Gamma("x", p, p),
        "the shape of 'x' depends on it",
    ),
    "shape of an inverse gamma": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.InverseGamma("x", p, p),
        "the shape of 'x' depends on it",
    ),
    "location and precision": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Normal("x", p, tau=p),
        "the location of 'x' depends on it",
    ),
    "shifted rate": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Exponential("x", p + 1),
        r"the scale of 'x' is not proportional to it\*\*-1",
    ),
    "scale as a rate": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Exponential("x", scale=p),
        r"the scale of 'x' is not proportional to it\*\*-1",
    ),
    "mean": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Poisson("x", pt.sqrt(p)),
        "the mean of 'x' is not proportional to it$",
    ),
    "precision of an inverse gamma": (
        lambda: pm.InverseGamma("p", 1, 1),
        lambda p: pm.Normal("x", 0, tau=p),
        "the variance of 'x' is not proportional to it$",
    ),
    "log sd": (
        lambda: pm.Uniform("p", -1, 1),
        lambda p: pm.Normal("x", 0, pt.exp(p)),
        "the spread of 'x' depends on it",
    ),
    "sd in the bounds": (
        lambda: pm.InverseGamma("p", 1, 1),
        lambda p: bounded(p, 1.0),
        "the location of 'x' depends on it",
    ),
    "batch": (
        lambda: pm.Dirichlet("p", np.ones((2, 3))),
        lambda p: pm.Categorical("x", p),
        "'p' is a batch of vectors, not one vector",
    ),
    "vector": (
        lambda: pm.Gamma("p", 1, 1, shape=2),
        lambda p: pm.Exponential("x", p),
        "'p' is not a scalar",
    ),
    "softmax": (
        lambda: pm.Dirichlet("p", np.ones(3)),
        lambda p: pm.Categorical("x", logit_p=p),
        "the vector of probabilities of 'x' is not it",
    ),
    "potential": (
        lambda: pm.Beta("p", 1, 1),
        lambda p: pm.Potential("x", pt.log(p)),
        "its child 'x' is not conjugate to its prior",
    ),
    "truncated child": (
        lambda: pm.Gamma("p", 1, 1),
        lambda p: pm.Truncated("x", pm.Exponential.dist(p), upper=2.0),
        "its child 'x' is not conjugate to its prior",
    ),
    "children of two families": (
        lambda: pm.Uniform("p", 0, 1),
        lambda p: (pm.Bernoulli("x", p), pm.Normal("y", p, 1)),
        "its child 'y' is not conjugate to its prior; its child 'x' is",
    ),
}


@pytest.mark.parametrize(("prior", "child", "match"), DECLINED.values(), ids=DECLINED)
def test_declined(prior, child, match):
    with pm.Model() as model:
        p = prior()
        child(p)
    with pytest.raises(Declined, match=match):
        conditional(Reading(model), p)
    with model, pytest.raises(ValueError, match="ConjugateGibbs cannot update 'p'"):
        dp.ConjugateGibbs([p])
