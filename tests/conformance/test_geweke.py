"""Geweke's test of every step of the package, and of every compiled chain; see tests/geweke.py."""

from contextlib import suppress
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import CompoundStep

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.reading.model import Reading, privatized
from pymc_dp.step_methods import STEPS, FeasibleSlice
from pymc_dp.step_methods.base import point_function, value_writer
from pymc_dp.step_methods.records.graphs import CarriedGraphs
from pymc_dp.step_methods.weave import WeavingStep
from tests.geweke import check_invariance, feasible, normal_records, z_scores
from tests.night import test_record_calibration as records

# --- The test itself ------------------------------------------------------------------------------


def conjugate(rng, size, variance=1.0, weight=0.5):
    """A Normal mean, and its draw given a release; right for a variance 1 and a weight 1/2."""
    mu = rng.standard_normal(size)
    z = mu + rng.standard_normal(size)
    drawn = weight * z + np.sqrt(variance * (1 - weight)) * rng.standard_normal(size)
    return {"mu": mu}, {"mu": drawn}, {"z": z}


def test_a_right_draw_passes():
    check_invariance(*conjugate(np.random.default_rng(1), 20_000))


@pytest.mark.parametrize("wrong", [{"variance": 1.3}, {"weight": 0.3}, {"weight": 0.0}], ids=str)
def test_a_wrong_draw_fails(wrong):
    """With the weight 0 it draws from the prior, and the release is forgotten."""
    found = conjugate(np.random.default_rng(1), 20_000, **wrong)
    with pytest.raises(AssertionError, match="the law changes"):
        check_invariance(*found)
    by_itself = z_scores(*found)["mu * mu"]
    assert (abs(by_itself) < 4) == (wrong == {"weight": 0.0})


def test_a_draw_that_stands_still_fails():
    before, _, given = conjugate(np.random.default_rng(1), 20_000)
    with pytest.raises(AssertionError, match="mu moves in"):
        check_invariance(before, before, given)


# --- Through a step -------------------------------------------------------------------------------


def release(name, statistic, mechanism, **kwargs):
    """Publish a statistic; the value is that of the test."""
    statistic = pt.as_tensor(statistic)
    dtype = "int64" if mechanism.is_discrete else "float64"
    observed = pm.Data(f"{name}_observed", np.zeros(statistic.type.shape, dtype))
    dp.PrivateObservation(name, statistic, mechanism, observed=observed, **kwargs)


def draw_all(model, draws):
    """Draw the values of all variables from the prior, and the releases: arrays by name.

    The joint law is cut to what can be published and, where records are bounded, is feasible.
    """
    free = {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        free[model.rvs_to_values[rv].name] = value
    published = {rv.name: rv for rv in model.observed_RVs}
    moments = []
    for rv in model.observed_RVs:
        if getattr(rv.owner.op, "bounds", None) is not None:
            moments = list(rv.owner.op.split(rv.owner.inputs)[2])
            bounds, n = rv.owner.op.bounds, rv.owner.op.n
    names = [*free, *published]
    wanted = [*free.values(), *published.values(), *moments]
    draw, found = pm.compile([], wanted, mode=PLAIN_MODE, random_seed=1), []
    for _ in range(draws):
        with suppress(AssertionError):  # a statistic that the mechanism cannot publish
            found.append(draw())
    found = [np.array(values) for values in zip(*found, strict=True)]
    if moments:
        inside = feasible(*found[len(names) :], n=n, bounds=bounds)
        found = [values[inside] for values in found]
    found = dict(zip(names, found, strict=False))
    return {name: found[name] for name in free}, {name: found[name] for name in published}


def columns(arrays):
    """One column for each entry; of more than four the first one, the mean and the spread."""
    found = {}
    for name, values in arrays.items():
        flat = values.reshape(len(values), -1)
        if flat.shape[1] <= 4:
            found |= {f"{name}[{j}]": column for j, column in enumerate(flat.T)}
        else:
            found |= {f"{name}[0]": flat[:, 0], f"spread({name})": flat.std(1)}
            if np.ptp(total := flat.mean(1)) > 0.0:  # that of a table is fixed
                found[f"mean({name})"] = total
    return found


def compare(before, after, drawn, given):
    check_invariance(
        columns({name: before[name] for name in drawn}),
        columns({name: after[name] for name in drawn}),
        columns({name: before[name] for name in before if name not in drawn} | given),
    )


def drawn_by(model, steps):
    """Names of the values that the steps draw."""
    drawn = [v.name for own in steps for v in own.vars]
    for own in steps:
        for engine in (
            own.engines if isinstance(own, dp.RecordMetropolis) and own.interweave else ()
        ):
            drawn += [model.rvs_to_values[p].name for p in engine.parameters if not engine.fixed]
        for weave in getattr(own, "weaves", ()):
            drawn += [model.rvs_to_values[v].name for v in (*weave.parameters, *weave.latents)]
    return drawn


def values_of(model, natural):
    """Return arrays of values, as points hold them, by their names."""
    return {
        model.rvs_to_values[model[name]].name: value_writer(model, model[name])(draws)
        for name, draws in natural.items()
    }


def one_by_one(build, choose, replicates, prior=None, transitions=1):
    """Put one replicate after the other through the steps; the release is a pm.Data.

    `prior`: ``(rng, size)`` to draws of the variables and of the releases, by name. It takes less
    time than `draw_all`.
    """
    with pm.Model() as model:
        build()
    if prior is draw_bounded_statistics:
        model = dp.collapse(model, "statistics")
    steps = choose(model)
    rng = np.random.default_rng(2)
    for own in steps:
        own.rng = rng
        own.stop_tuning()
        own.started = True  # records are not drawn anew
        own.sweeps = 1
    if prior is None:
        before, given = draw_all(model, replicates)
    else:
        before, given = prior(rng, replicates)
        before = values_of(model, before)
    chain, after = CompoundStep(steps), {name: [] for name in before}
    # A latent statistic with the name s: what records tell of it is narrow beside the records.
    released = "s" in model.named_vars
    if released:
        statistic, inputs = point_function(model, model["s"])
    errors = [], []
    data = dict(zip(given, model.data_vars, strict=True))  # one for each release, in their order
    for t in range(len(next(iter(before.values())))):
        for name, shared in data.items():
            shared.set_value(given[name][t].astype(shared.dtype), borrow=True)
        start = point = {name: np.asarray(values[t]) for name, values in before.items()}
        for _ in range(transitions):
            point, _ = chain.step(point)
        for name, values in after.items():
            values.append(point[name])
        for found, at in zip(errors, (start, point), strict=True) if released else ():
            found.append(given["z"][t] - statistic(*[at[i] for i in inputs]))
    after = {name: np.array(values) for name, values in after.items()}
    if prior is draw_bounded_statistics:  # few draws come close to the walls
        s2, variance = (np.exp(after[name]) for name in ("s2_log__", "x_var_log__"))
        moments = after["mu"], s2, after["x_mean"], variance
        assert feasible(*moments, n=4, bounds=(-1e-9, 1 + 1e-9)).all()
    drawn = drawn_by(model, steps)
    if released:
        before["noise"], after["noise"] = map(np.array, errors)
        drawn.append("noise")
    compare(before, after, drawn, given)


def side_by_side(build, choose, transitions=1):
    """Put all replicates through the steps at once: they are entries of the variables."""
    with pm.Model() as model:
        build()
    steps = choose(model)
    for own in steps:
        own.rng = np.random.default_rng(2)
        own.stop_tuning()
    before, given = draw_all(model, 1)
    before, given = ({k: v[0] for k, v in found.items()} for found in (before, given))
    for value, shared in zip(given.values(), model.data_vars, strict=True):
        shared.set_value(value.astype(shared.dtype))
    chain, after = CompoundStep(steps), before
    for _ in range(transitions):
        after, _ = chain.step(after)
    compare(before, after, drawn_by(model, steps), given)


def updating(step, *names, **options):
    """Return a function of a model to one step for the named variables."""
    return lambda model: [step([model[name] for name in names], model=model, **options)]


SIZE = 20_000


def statistics():
    """Every kind of law that is tilted, under Laplace and Gaussian noise, in an affine release."""
    mu = pm.Normal("mu", 0, 1, shape=SIZE)
    rate = pm.Gamma("rate", 4, 2, shape=SIZE)
    a = pm.Normal("a", mu, 1.5, shape=SIZE)
    b = pm.Normal("b", mu, 1.5, shape=SIZE)
    c = pm.Gamma("c", 2.5, rate, shape=SIZE)
    d = pm.Gamma("d", 0.6, rate, shape=SIZE)
    e = pm.Exponential("e", rate, shape=SIZE)
    release("za", 3 - 2 * a, dp.LaplaceMechanism(1.5))
    release("zb", b / 2, dp.GaussianMechanism(0.7))
    release("zc", c, dp.GaussianMechanism(1.0))
    release("zd", 1 + 3 * d, dp.LaplaceMechanism(2.0))
    release("ze", -e, dp.LaplaceMechanism(0.3))


def counts():
    """Every law of counts, each under another mechanism."""
    rate = pm.Gamma("rate", 3, 0.5, shape=SIZE)
    p = pm.Beta("p", 2, 2, shape=SIZE)
    a = pm.Poisson("a", rate, shape=SIZE)
    b = pm.Binomial("b", 9, p, shape=SIZE)
    c = pm.NegativeBinomial("c", n=2.5, p=0.1 + 0.8 * p, shape=SIZE)
    d = pm.Poisson("d", rate, shape=SIZE)
    release("za", 2 - a, dp.GeometricMechanism(1.5))
    release("zb", b, dp.DiscreteGaussianMechanism(2.0))
    release("zc", c, dp.GeometricMechanism(2.0).clipped(0))
    release("zd", d, dp.LaplaceMechanism(2.0))


def variances():
    """Rates of the Gamma law on both sides of that of the noise."""
    s2 = pm.InverseGamma("s2", 3, 3, shape=SIZE)
    a = pm.Gamma("a", 2.5, 2.5 / s2, shape=SIZE)
    b = pm.Gamma("b", 0.5, 0.5 / s2, shape=SIZE)
    release("za", a, dp.LaplaceMechanism(0.4))
    release("zb", b, dp.LaplaceMechanism(3.0))


def normals():
    mu = pm.Normal("mu", 0, 2, shape=SIZE)
    y = pm.Normal("y", mu, 1.5, shape=SIZE)
    release("z", 1 - 2 * y, dp.LaplaceMechanism(1.5))


COV, SCALES = np.array([[1.0, 0.8, 0.1], [0.8, 1.5, -0.3], [0.1, -0.3, 0.7]]), [0.5, 1.0, 2.0]


def correlated_normals():
    mu = pm.Normal("mu", 0, 1, shape=3)
    y = pm.MvNormal("y", mu, COV)
    release("z", y, dp.LaplaceMechanism(SCALES))


def draw_correlated_normals(rng, size):
    mu = rng.standard_normal((size, 3))
    y = mu + rng.standard_normal((size, 3)) @ np.linalg.cholesky(COV).T
    return {"mu": mu, "y": y}, {"z": rng.laplace(y, SCALES)}


def skellam():
    """Noise of several scales, which are known numbers."""
    rate = pm.Gamma("rate", 1, 0.3, shape=SIZE)
    y = pm.Poisson("y", rate, shape=SIZE)
    release("z", -y, dp.GeometricMechanism(np.resize([0.4, 1.5, 4.0], SIZE)))


TABLES = 20_000


def multinomial_tables():
    """Tables of four cells: each cell, and the sum of two, with a total that is public."""
    p = pm.Dirichlet("p", np.ones(4), shape=(TABLES, 4))
    y = pm.Multinomial("y", n=12, p=p, shape=(TABLES, 4))
    release("cells", y, dp.GeometricMechanism(2.0))
    release("sums", y[:, :2].sum(axis=1), dp.GaussianMechanism(0.8))


def softmax_table():
    e = pm.Normal("e", 0, 1, shape=2)
    y = pm.Multinomial("y", 9, pt.special.softmax(pt.concatenate([[0.0], e])))
    release("cells", y, dp.GeometricMechanism(3.0))
    release("sum", y[:2].sum(), dp.LaplaceMechanism(2.0))


def poisson_tables(tables=TABLES):
    """Of three cells, with a weighted sum."""
    rate = pm.Gamma("rate", 3, 0.5, shape=(tables, 3))
    y = pm.Poisson("y", rate, shape=(tables, 3))
    release("cells", y, dp.DiscreteGaussianMechanism(3.0))
    release("sums", y[:, 0] + 2 * y[:, 2], dp.LaplaceMechanism(1.0))


def negative_binomial_tables(tables=TABLES):
    p = pm.Beta("p", 4, 4, shape=(tables, 2))
    y = pm.NegativeBinomial("y", n=2.5, p=p, shape=(tables, 2))
    release("cells", y, dp.LaplaceMechanism(3.0))
    release("sums", y.sum(axis=1), dp.GaussianMechanism(1.0))


def parts_of_counts():
    """Of which whole-number noise leaves some counts only."""
    rate = pm.Gamma("rate", 3, 0.5)
    y = pm.Poisson("y", rate, shape=2)
    release("z", (3 * y + 1) / 4, dp.GeometricMechanism([0.7, 2.0]))


def draw_parts_of_counts(rng, size):
    rate = rng.gamma(3, 2, 40 * size)
    y = rng.poisson(rate[:, None], (rate.size, 2))
    kept = np.flatnonzero(((3 * y + 1) % 4 == 0).all(1))[:size]
    rate, y = rate[kept], y[kept]
    noise = np.stack([geometric_noise(rng, scale, len(y)) for scale in (0.7, 2.0)], 1)
    return {"rate": rate, "y": y}, {"z": (3 * y + 1) // 4 + noise}


def mean_of_poisson_counts():
    """The mean of three, half of the fourth, the fifth, and a sum of the last two."""
    rate = pm.Gamma("rate", 3, 0.5)
    y = pm.Poisson("y", rate * np.array([1.0, 2.0, 0.5, 1.0, 1.0]), shape=5)
    release("z", [y[:3].mean(), (y[3] + 1) / 2, y[4]], dp.GeometricMechanism(1.0))
    release("sum", y[3] + 2 * y[4], dp.GaussianMechanism(1.5))


def draw_mean_of_poisson_counts(rng, size):
    rate = rng.gamma(3, 2, 20 * size)
    y = rng.poisson(rate[:, None] * [1.0, 2.0, 0.5, 1.0, 1.0])
    kept = (y[:, :3].sum(1) % 3 == 0) & (y[:, 3] % 2 == 1)
    rate, y = rate[kept][:size], y[kept][:size]
    statistic = np.stack([y[:, :3].sum(1) // 3, (y[:, 3] + 1) // 2, y[:, 4]], axis=1)
    z = statistic + geometric_noise(rng, 1.0, statistic.shape)
    return {"rate": rate, "y": y}, {"z": z, "sum": rng.normal(y[:, 3] + 2 * y[:, 4], 1.5)}


def some_families():
    """A mean and a variance that are tied to each other, a rate, and probabilities."""
    s2 = pm.InverseGamma("s2", 3, 2)
    mu = pm.Normal("mu", 0.5, pt.sqrt(s2 / 0.7))
    pm.Normal("x", mu, pt.sqrt(s2), shape=3)
    rate = pm.Gamma("rate", 2, 1)
    pm.Poisson("y", rate * np.array([1.0, 2.5]), shape=2)
    pi = pm.Dirichlet("pi", [0.7, 1.0, 2.0])
    pm.Multinomial("t", 4, pi)


def draw_some_families(rng, size):
    s2 = 2 / rng.gamma(3, size=size)
    mu = 0.5 + np.sqrt(s2 / 0.7) * rng.standard_normal(size)
    x = mu[:, None] + np.sqrt(s2)[:, None] * rng.standard_normal((size, 3))
    rate, pi = rng.gamma(2, size=size), rng.dirichlet([0.7, 1.0, 2.0], size)
    y, t = rng.poisson(rate[:, None] * [1.0, 2.5]), rng.multinomial(4, pi)
    return {"s2": s2, "mu": mu, "x": x, "rate": rate, "y": y, "pi": pi, "t": t}, {}


def other_families():
    tau = pm.Exponential("tau", 1)
    pm.Normal("v", 0, 1 / pt.sqrt(tau), shape=2)
    p = pm.Beta("p", 2, 1)
    pm.Binomial("c", 5, p)
    q = pm.Uniform("q", 0, 1)
    pm.Geometric("g", q)
    sd = pm.Uniform("sd", 0.5, 2)
    pm.Normal("u", 0, sd, shape=2)


def binomial_count(mechanism, statistic=lambda c: c):
    p = pm.Beta("p", 0.7, 1.2)
    c = pm.Binomial("c", 12, p)
    release("z", statistic(c), mechanism)


def draw_binomial_count(rng, size):
    """Under geometric noise."""
    p = rng.beta(0.7, 1.2, size)
    c = rng.binomial(12, p)
    return {"p": p, "c": c}, {"z": c + geometric_noise(rng, 2.0, size)}


def logit_count():
    """Of which the probability is not conjugate."""
    b = pm.Normal("b", -0.5, 1.2)
    c = pm.Binomial("c", 12, logit_p=b)
    release("z", c, dp.GeometricMechanism(4.0))


def draw_logit_count(rng, size):
    b = rng.normal(-0.5, 1.2, size)
    c = rng.binomial(12, 1 / (1 + np.exp(-b)))
    return {"b": b, "c": c}, {"z": c + geometric_noise(rng, 4.0, size)}


def levels():
    """Counts with a rate each, and the law of these."""
    scale = pm.Gamma("scale", 3, 1)
    rate = pm.Gamma("rate", 2.0, 1 / scale, shape=3)
    y = pm.Poisson("y", rate, shape=3)
    release("z", y, dp.GeometricMechanism([1.0, 4.0, 9.0]))


def draw_levels(rng, size):
    scale = rng.gamma(3, size=size)
    rate = scale[:, None] * rng.gamma(2.0, size=(size, 3))
    y = rng.poisson(rate)
    z = y + np.stack([geometric_noise(rng, s, size) for s in (1.0, 4.0, 9.0)], 1)
    return {"scale": scale, "rate": rate, "y": y}, {"z": z}


def geometric_noise(rng, scale, shape):
    one, other = (rng.geometric(-np.expm1(-1 / scale), shape) for _ in range(2))
    return one - other


def multinomial_count(mechanism, statistic):
    p = pm.Dirichlet("p", [0.6, 1.0, 2.5])
    k = pm.Multinomial("k", 9, p)
    release("z", statistic(k), mechanism)


def draw_multinomial_count(rng, size):
    """A weighted sum of two cells, and the third, under Laplace noise."""
    p = rng.dirichlet([0.6, 1.0, 2.5], size)
    k = rng.multinomial(9, p)
    return {"p": p, "k": k}, {"z": rng.laplace(np.stack([k[:, 0] + 2 * k[:, 1], k[:, 2]], axis=1))}


def factorization():
    theta = pm.Gamma("theta", 1.5, 0.8, shape=(2, 2))
    phi = pm.Gamma("phi", 1.5, 0.8, shape=(2, 2))
    observed = pm.Data("z_observed", np.zeros((2, 2), dtype=int))
    law = pm.Poisson.dist(theta @ phi)
    dp.PrivateObservation("z", law, dp.GeometricMechanism(1.5), observed=observed)


def draw_factorization(rng, size):
    theta, phi = rng.gamma(1.5, 1 / 0.8, (2, size, 2, 2))
    y = rng.poisson(theta @ phi)
    return {"theta": theta, "phi": phi}, {"z": y + geometric_noise(rng, 1.5, y.shape)}


def rows_of_columns():
    rows = dp.LogLinear("rows", {"a": 2, "b": 3, "c": 2}, [("a", "b"), ("b", "c")], 15)
    release("z", rows.margin("a", "b"), dp.LaplaceMechanism(2.0))
    release("w", rows.margin("c", "b"), dp.GaussianMechanism(1.5))
    return rows


def number_of_rows():
    n = pm.Poisson("n", pm.Gamma("mu", 3.0, 0.3))
    release("n_z", n, dp.GeometricMechanism(2.0))
    rows = dp.LogLinear("rows", {"a": 2, "b": 2, "c": 2}, [("a", "b")], n, concentration=3.0)
    release("z", rows.margin("a", "b"), dp.LaplaceMechanism(2.0))
    return rows


def draw_number_of_rows(rng, size):
    with pm.Model():
        rows = number_of_rows()
    mu = rng.gamma(3.0, 1 / 0.3, size)
    n = rng.poisson(mu)
    tables = rows.rv.owner.op.rng_fn(rng, n, 3.0, None)
    z = rows.margin("a", "b").owner.op.of(tables)
    noise = geometric_noise(rng, 2.0, n.shape), rng.laplace(0, 2.0, z.shape)
    return {"mu": mu, "n": n, "rows": tables}, {"n_z": n + noise[0], "z": z + noise[1]}


def weighted_rows():
    lam = pm.Normal("lam", 0, 1, shape=(2, 3))
    levels, terms = {"a": 2, "b": 3, "c": 2}, [("a", "b"), ("b", "c")]
    weights = {("a", "b"): lam, ("c", "b"): lam}
    rows = dp.LogLinear("rows", levels, terms, 15, weights=weights)
    release("z", rows.margin("a", "b"), dp.LaplaceMechanism(2.0))
    release("w", rows.margin("c", "b"), dp.GaussianMechanism(1.5))


def draw_rows_of_columns(rng, size):
    with pm.Model():
        rows = rows_of_columns()
    tables = rows.rv.owner.op.rng_fn(rng, 15, 6.0**0.5, (size,))
    ab, cb = (rows.margin(*pair).owner.op.of(tables) for pair in ("ab", "cb"))
    noise = rng.laplace(0, 2.0, ab.shape), rng.normal(0, 1.5, cb.shape)
    return {"rows": tables}, {"z": ab + noise[0], "w": cb + noise[1]}


def areas():
    """Counties, of one of which the tracts' shares are known; and ages of the people of each."""
    county = pm.Multinomial("county", 12, pm.Dirichlet("p", [0.7, 2.0]))
    tract = pm.Multinomial("tract", county, pm.Dirichlet("q", np.array([[0.6, 1, 1], [2, 1, 0.5]])))
    age = pm.Multinomial("age", county, [0.3, 0.7])
    release("z", tract, dp.LaplaceMechanism(1.0))
    release("w", age.sum(0), dp.GaussianMechanism(1.0))


def draw_areas(rng, size):
    p, q = rng.dirichlet([0.7, 2.0], size), np.empty((size, 2, 3))
    for k, a in enumerate(([0.6, 1, 1], [2, 1, 0.5])):
        q[:, k] = rng.dirichlet(a, size)
    county = rng.multinomial(12, p)
    tract, age = rng.multinomial(county, q), rng.multinomial(county, [0.3, 0.7])
    noise = rng.laplace(size=tract.shape), rng.normal(size=(size, 2))
    found = {"p": p, "q": q, "county": county, "tract": tract, "age": age}
    return found, {"z": tract + noise[0], "w": age.sum(1) + noise[1]}


def bounded_moments():
    mu = pm.Normal("mu", 0.4, 0.3)
    s2 = pm.InverseGamma("s2", 3, 0.5)  # as large as the bounds allow: they matter
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=4)
    release("z", [x.mean(), x.var(ddof=1)], dp.LaplaceMechanism([0.1, 0.05]), bounds=(0, 1))


def draw_bounded_statistics(rng, size):
    found = normal_records(rng, 50 * size, n=4, mu0=0.4, tau0=0.3**-2, b0=0.5, bounded=True)[:size]
    z = rng.laplace(found[:, 2:], [0.1, 0.05])
    return dict(zip(("mu", "s2", "x_mean", "x_var"), found.T, strict=True)), {"z": z}


def slices(model):
    with model:
        return [FeasibleSlice([model[name]]) for name in ("mu", "s2")]


def moving_records(model, **options):
    with model:
        return [dp.RecordMetropolis(privatized(Reading(model)), **options)]


without_moves = partial(moving_records, interweave=False)


ROWS = np.array([[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]])


def cells_of_a_regression():
    """Counts of four kinds of records in the three entries of X'y."""
    b = pm.Normal("b", 0, 0.7, shape=3)
    n = pm.Binomial("n", np.array([2, 3, 1, 4]), p=pm.math.invlogit(pt.dot(ROWS, b)), shape=4)
    release("z", pt.dot(ROWS.T, n), dp.GeometricMechanism(0.7))


def draw_cells(rng, size):
    b = rng.normal(0, 0.7, (size, 3))
    n = rng.binomial([2, 3, 1, 4], 1 / (1 + np.exp(-b @ ROWS.T)))
    return {"b": b, "n": n}, {"z": n @ ROWS + geometric_noise(rng, 0.7, (size, 3))}


def weighted_rates():
    """Counts of three kinds, weighed by numbers that are not whole, under Gaussian noise."""
    rate = pm.Gamma("rate", 3, 2)
    n = pm.Poisson("n", rate * np.array([1.0, 2.0, 0.5]), shape=3)
    weights = np.array([[1.0, 0.5, 0.25], [0.3, -0.7, 1.1]])
    release("z", pt.dot(weights, n), dp.GaussianMechanism(0.5))


def without_parameters(model):
    """Draw the counts alone: what moves the parameters would hide that they are drawn wrongly."""
    return [dp.CellGibbs([model["n"]], model=model, interweave=False)]


# For each step, by what it is tried on: the model, the variables or a function to the steps, and
# what `one_by_one` takes; without it all replicates are entries of the variables.
ON = {
    dp.TwoSidedGibbs: {
        "statistics": (statistics, "abcde"),
        "counts": (counts, "abcd"),
        "bounded": (bounded_moments, ["x_mean"], 4_000, draw_bounded_statistics),
        "parts of counts": (parts_of_counts, "y", 4_000, draw_parts_of_counts),
        "statistics, moved": (statistics, updating(dp.TwoSidedGibbs, *"abcde")),
        "counts, moved": (counts, updating(dp.TwoSidedGibbs, *"abcd")),
        "bounded, moved": (
            bounded_moments, updating(dp.TwoSidedGibbs, "x_mean"), 4_000, draw_bounded_statistics
        ),
        "levels, moved": (levels, updating(dp.TwoSidedGibbs, "y"), 3_000, draw_levels),
    },
    dp.TruncatedGammaMixtureGibbs: {
        "variances": (variances, "ab"),
        "bounded": (bounded_moments, ["x_var"], 4_000, draw_bounded_statistics),
    },
    dp.LaplaceScaleMixtureGibbs: {
        "independent": (normals, "y", None, None, 3),
        "jointly": (correlated_normals, "y", 2_000, draw_correlated_normals, 3),
        "jointly, moved": (
            correlated_normals,
            updating(dp.LaplaceScaleMixtureGibbs, "y"),
            3_000,
            draw_correlated_normals,
        ),
    },
    dp.SkellamBesselGibbs: {"counts": (skellam, "y", None, None, 3)},
    dp.TableGibbs: {
        "multinomial": (multinomial_tables, "y"),
        "multinomial, moved": (softmax_table, updating(dp.TableGibbs, "y"), 3_000),
        "Poisson": (poisson_tables, "y"),
        "negative binomial": (negative_binomial_tables, "y"),
        "mean of Poisson counts": (
            mean_of_poisson_counts, "y", 4_000, draw_mean_of_poisson_counts
        ),
    },
    dp.CellGibbs: {
        "binomial": (cells_of_a_regression, "n", 2_000, draw_cells),
        "binomial, alone": (cells_of_a_regression, without_parameters, 2_000, draw_cells),
        "Poisson": (weighted_rates, "n", 2_000),
    },
    dp.ConjugateGibbs: {
        "some families": (some_families, ["s2", "mu", "rate", "pi"], 2_000, draw_some_families),
        "other families": (other_families, ["tau", "p", "q", "sd"], 3_000),
        "bounded": (bounded_moments, ["mu", "s2"], 3_000, draw_bounded_statistics),
    },
    FeasibleSlice: {"bounded": (bounded_moments, slices, 1_500, draw_bounded_statistics)},
    dp.CountGibbs: {
        "binomial": (
            partial(binomial_count, dp.GeometricMechanism(2.0)), "cp", 3_000, draw_binomial_count
        ),
        "binomial, moved": (logit_count, updating(dp.CountGibbs, "c"), 4_000, draw_logit_count),
        "binomial, listed": (
            partial(binomial_count, dp.LaplaceMechanism(4.0), lambda c: (c - 5.0) ** 2), "cp", 4_000
        ),
        "multinomial": (
            partial(
                multinomial_count, dp.LaplaceMechanism(1.0), lambda k: [k[0] + 2 * k[1], k[2]]
            ),
            "kp",
            3_000,
            draw_multinomial_count,
        ),
        "multinomial, p held": (
            partial(multinomial_count, dp.GaussianMechanism(1.0), lambda k: k), "k", 4_000
        ),
        "multinomial, all states": (
            partial(multinomial_count, dp.GeometricMechanism(0.5), lambda k: (k[0] + 2 * k[1]) / 3),
            "kp",
            4_000,
        ),
    },
    dp.CliqueGibbs: {
        "two cliques": (rows_of_columns, ["rows"], 4_000, draw_rows_of_columns),
        "weights": (weighted_rows, ["rows"], 4_000),
        "number of rows": (number_of_rows, ["n", "rows"], 4_000, draw_number_of_rows),
    },
    dp.TreeGibbs: {
        "integrated": (areas, ["p", "county", "q", "tract", "age"], 4_000, draw_areas),
        "p held": (areas, updating(dp.TreeGibbs, "county", "tract", "age"), 4_000, draw_areas),
    },
    dp.FactorizationGibbs: {
        "released": (factorization, ["theta", "phi"], 2_000, draw_factorization, 2),
    },
    # What moves the parameters along would hide that records are taken too often.
    dp.RecordMetropolis: {
        "clamped normal, without moves": (records.clamped_normal, without_moves, 1_000, None, 5),
        "median, without moves": (records.median, without_moves, 2_000, None, 5),
    }
    | {
        name: (build, moving_records, 1_500, None, 2)
        for name, (build, _) in (records.CASES | records.MORE).items()
        if "," not in name
    },
}  # fmt: skip
CASES = {f"{step.__name__}: {case}": (step, *of[case]) for step, of in ON.items() for case in of}


def test_every_step_has_a_case():
    assert set(STEPS) <= set(ON)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.by_day(
    "TwoSidedGibbs: statistics",
    "TwoSidedGibbs: counts",
    "TwoSidedGibbs: bounded",
    "TwoSidedGibbs: parts of counts",
    "TruncatedGammaMixtureGibbs: variances",
    "TruncatedGammaMixtureGibbs: bounded",
    "LaplaceScaleMixtureGibbs: independent",
    "SkellamBesselGibbs: counts",
    "TableGibbs: multinomial",
    "TableGibbs: multinomial, moved",
    "CellGibbs: binomial",
    "TableGibbs: Poisson",
    "TableGibbs: mean of Poisson counts",
    "ConjugateGibbs: some families",
    "ConjugateGibbs: bounded",
    "CountGibbs: binomial",
    "CountGibbs: binomial, moved",
    "TwoSidedGibbs: statistics, moved",
    "TwoSidedGibbs: counts, moved",
    "TwoSidedGibbs: bounded, moved",
    "TwoSidedGibbs: levels, moved",
    "CountGibbs: multinomial",
    "FactorizationGibbs: released",
    "RecordMetropolis: clamped normal",
    "RecordMetropolis: clamped normal, without moves",
)
def test_steps_leave_the_joint_law_alone(case):
    step, build, names, *how = CASES[case]
    # What moves the parameters along would hide that latents are drawn wrongly.
    alone = {"interweave": False} if issubclass(step, WeavingStep) else {}
    choose = names if callable(names) else updating(step, *names, **alone)
    if how[:1] == [None] or not how:
        side_by_side(build, choose, *how[2:])
    else:
        one_by_one(build, choose, *how)


def test_a_wrong_move_fails(monkeypatch):
    """Counts that stay as they are when their probability moves keep no noise fixed."""
    monkeypatch.setattr(CarriedGraphs, "_coupling", lambda self: list(self.records.values()))
    with pytest.raises(AssertionError, match="the law changes"):
        one_by_one(logit_count, updating(dp.CountGibbs, "c"), 4_000, draw_logit_count)
