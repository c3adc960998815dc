"""Simulation-based calibration of the record rung: laws, statistics and mechanisms of many kinds.

One compiled model for each, whose release gets new values for every trial. A trial is a chain of
its own, from its own start and with its own tuning.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import CompoundStep
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading, privatized
from pymc_dp.step_methods.base import point_function
from tests.agreement import rank, uniform
from tests.night.test_calibration import simuk_ranks

DRAWS, BINS = 49, 10  # ranks 0..49 in 10 bins of five
SWEEPS, THIN, TUNE = 5, 2, 100  # ten sweeps apart, draws are all but independent
QUICK, FULL = 100, 300  # trials
# About 500 p-values come out of this file: one false alarm in twenty runs on other random numbers.
LEVEL = 1e-4


def release(statistic, mechanism, **kwargs):
    """Publish a statistic; the latent one is ranked, too."""
    statistic = pm.Deterministic("s", pt.as_tensor(statistic))
    observed = pm.Data("observed", np.zeros(statistic.type.shape))
    dp.PrivateObservation("z", statistic, mechanism, observed=observed, **kwargs)


# --- The models -----------------------------------------------------------------------------------


def clamped_normal():
    mu = pm.Normal("mu", 0, 1.5)
    x = pm.Normal("x", mu, 1, shape=20)
    release(pt.clip(x, -2, 2).mean(), dp.LaplaceMechanism(0.1))


def exponential():
    rate = pm.Gamma("rate", 2, 1)
    x = pm.Exponential("x", rate, shape=20)
    release(pt.clip(x, 0, 3).sum(), dp.GaussianMechanism(2.0))


def rows():
    b0, b1 = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 2)
    s2 = pm.InverseGamma("s2", 3, 1)
    x = pm.Uniform("x", -1, 1, shape=15)
    y = pm.Normal("y", b0 + b1 * x, pt.sqrt(s2), shape=15)
    sums = [y.sum(), (y**2).sum(), x.sum(), (x * y).sum(), (x**2).sum()]
    release(sums, dp.LaplaceMechanism(1.0))


def randomized_response():
    p = pm.Beta("p", 1, 1)
    x = pm.Bernoulli("x", p, shape=20)
    pm.Deterministic("s", x.sum())
    observed = pm.Data("observed", np.zeros(20, dtype=int))
    dp.PrivateObservation("z", x, dp.RandomizedResponse(0.75), observed=observed)


def median():
    mu = pm.Normal("mu", 0, 1)
    s2 = pm.InverseGamma("s2", 3, 2)
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=15)
    release(pt.sort(x)[7], dp.LaplaceMechanism(0.1))


def poisson():
    rate = pm.Gamma("rate", 2, 0.5)
    x = pm.Poisson("x", rate, shape=10)
    release(x.sum(), dp.LaplaceMechanism(2.0))


def histogram():
    pi = pm.Dirichlet("pi", np.ones(3))
    x = pm.Categorical("x", pi, shape=20)
    release(pt.eq(x[:, None], np.arange(3)).sum(0), dp.GaussianMechanism(1.5))


def labels():
    w = pm.Beta("w", 2, 2)
    gap = pm.Normal("gap", 2, 2)
    label = pm.Bernoulli("label", w, shape=20)
    x = pm.Normal("x", gap * label, 1, shape=20)
    release([x.mean(), (x**2).mean()], dp.LaplaceMechanism(0.2))


def mixture():
    w = pm.Dirichlet("w", np.ones(3))
    m = pm.Normal("m", [-2, 0, 2], 1, shape=3)
    label = pm.Categorical("label", w, shape=20)
    x = pm.Normal("x", m[label], 0.5, shape=20)
    release([x.mean(), (x**2).mean()], dp.LaplaceMechanism(0.3))


def logistic():
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 1, 1)
    x = pm.Normal("x", 0, 1, shape=20)
    y = pm.Bernoulli("y", pm.math.sigmoid(a + b * x), shape=20)
    release([y.sum(), (x * y).sum()], dp.LaplaceMechanism(1.0))


def matrix():
    """Two columns to a record."""
    mu = pm.Normal("mu", 0, 1, shape=2)
    sd = pm.Gamma("sd", 4, 4)
    x = pm.Normal("x", mu, sd, shape=(15, 2))
    release([x[:, 0].sum(), x[:, 1].sum(), (x[:, 0] * x[:, 1]).sum()], dp.LaplaceMechanism(2.0))


def multivariate():
    mu = pm.Normal("mu", 0, 1, shape=2)
    x = pm.MvNormal("x", mu, np.array([[1.0, 0.6], [0.6, 2.0]]), shape=(15, 2))
    release(pt.clip(x, -2, 2).sum(0), dp.GaussianMechanism(2.0))


def only_the_response():
    m, b = pm.Normal("m", 1, 1), pm.Normal("b", 0, 1)
    x = pm.Normal("x", m, 1, shape=20)
    y = pm.Normal("y", b * x, 0.5, shape=20)
    pm.Deterministic("hidden", x.sum())
    release(y.sum(), dp.GaussianMechanism(2.0))


def groups():
    m, tau = pm.Normal("m", 0, 1), pm.HalfNormal("tau", 1)
    theta = pm.Normal("theta", m, tau, shape=3)
    group = np.repeat(np.arange(3), 5)
    x = pm.Normal("x", theta[group], 1, shape=15)
    release((x[:, None] * np.eye(3)[group]).sum(0), dp.LaplaceMechanism(1.0))


def truncated():
    rate = pm.Gamma("rate", 2, 1)
    x = pm.Truncated("x", pm.Exponential.dist(rate), upper=2, shape=15)
    release(x.sum(), dp.LaplaceMechanism(1.0))


def truncated_normal():
    mu, sd = pm.Normal("mu", 0.5, 0.5), pm.Gamma("sd", 4, 10)
    x = pm.Truncated("x", pm.Normal.dist(mu, sd), lower=0, upper=1, shape=15)
    release([x.mean(), (x**2).mean()], dp.LaplaceMechanism(0.05))


def uniform_records():
    """The ends of the records, and so their transform, depend on a parameter."""
    top = pm.Gamma("top", 3, 1)
    x = pm.Uniform("x", 0, top, shape=15)
    release(x.sum(), dp.LaplaceMechanism(2.0))


def gamma():
    """Moves by independent parts: the shape is a parameter."""
    shape = pm.Gamma("shape", 4, 2)
    x = pm.Gamma("x", shape, 1, shape=10)
    release(x.sum(), dp.LaplaceMechanism(1.5))


def shares():
    theta = pm.Gamma("theta", 3, 2, shape=3)
    x = pm.Dirichlet("x", theta, shape=(12, 3))
    release(pt.log(x.clip(0.01, 1)).mean(0), dp.LaplaceMechanism(0.2))


def truncated_gamma():
    """Moves by the distribution function, from both ends."""
    shape = pm.Gamma("shape", 4, 2)
    x = pm.Truncated("x", pm.Gamma.dist(shape, 1), lower=0.5, upper=6, shape=10)
    release(x.sum(), dp.LaplaceMechanism(1.5))


def overdispersed():
    """Counts whose Gamma rates are drawn for the move."""
    alpha = pm.Gamma("alpha", 3, 2)
    x = pm.NegativeBinomial("x", mu=3.0, alpha=alpha, shape=12)
    release((x**2).clip(0, 20).mean(), dp.LaplaceMechanism(0.5))


def mixed_vectors():
    gap = pm.Normal("gap", 2, 1, shape=2)
    w = pm.Beta("w", 2, 2)
    laws = [pm.MvNormal.dist([0.0, 0.0], np.eye(2)), pm.MvNormal.dist(gap, np.eye(2))]
    x = pm.Mixture("x", pt.stack([w, 1 - w]), laws, shape=(15, 2))
    release([x[:, j].clip(-3, 5).mean() for j in range(2)], dp.LaplaceMechanism(0.3))


def moments(mechanism=dp.LaplaceMechanism, **kwargs):
    mu = pm.Normal("mu", 0.4, 0.3)
    s2 = pm.InverseGamma("s2", 3, 0.1)
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=12)
    release([x.mean(), x.var(ddof=1)], mechanism([0.05, 0.03]), **kwargs)


def bounded_moments():
    moments(bounds=(0, 1))


def bounded_gaussian_moments():
    moments(dp.GaussianMechanism, bounds=(0, 1))


def two_blocks():
    """Two kinds of records with a common parameter: each is data for the moves of the other."""
    mu = pm.Normal("mu", 0, 1)
    x = pm.Normal("x", mu, 1, shape=10)
    y = pm.Poisson("y", pt.exp(mu), shape=8)
    release([x.sum(), y.sum()], dp.GaussianMechanism([2.0, 2.0]))


# --- Ranks ----------------------------------------------------------------------------------------


def records_alone(model):
    """Parameters move with the records, by interweaving, and in no other way."""
    with model:
        return [dp.RecordMetropolis(privatized(Reading(model)))]


def records_without_moves(model):
    chosen = dp.steps(model)
    with model:
        first = dp.RecordMetropolis(privatized(Reading(model)), interweave=False, restart=False)
    return [first, *chosen[1:]]


def beside_a_slice_step(model):
    with model:
        return [*records_alone(model), pm.Slice([model["top"]])]


def simulate(model, quantities, trials, rng):
    """Draws of the quantities and of what is released of them; within the bounds if it has any."""
    wanted = [*quantities, model["z"]]
    draws = pm.draw(wanted, draws=3 * trials, random_seed=rng, mode=PLAIN_MODE)
    if model["z"].owner.op.bounds is not None:
        found = dict(zip((q.name for q in quantities), draws, strict=False))
        mu, s2, (mean, variance) = found["mu"], found["s2"], found["s"].T
        n = model["x"].type.shape[0]
        possible = (mu > 0) & (mu < 1) & (s2 <= mu * (1 - mu)) & (mean >= 0) & (mean <= 1)
        possible &= (n - 1) / n * variance <= mean * (1 - mean)
        draws = [d[possible] for d in draws]
    *truths, z = (d[:trials] for d in draws)
    return np.column_stack([t.reshape(trials, -1) for t in truths]), z


def beside_nuts(model):
    """What `pm.sample` assigns by itself."""
    chosen = records_alone(model)
    others = [rv for rv in model.free_RVs if model.rvs_to_values[rv] not in chosen[0].vars]
    with model:
        return [*chosen, pm.NUTS(others)]


def ranks(model, step, trials, seed, sweeps):
    """Rank of the truth among posterior draws, ties broken at random, and what was released.

    One row for each trial.
    """
    step[0].sweeps = sweeps
    records = {model.values_to_rvs[v] for v in step[0].vars}
    quantities = [v for v in model.unobserved_RVs if v not in records]
    rng = np.random.default_rng(seed)
    truths, z = simulate(model, quantities, trials, rng)
    function, inputs = point_function(model, quantities)
    start = feasible_point(model)
    chain = CompoundStep(step)
    found = np.empty(truths.shape, dtype=int)
    for t in range(trials):
        pm.set_data({"observed": z[t]}, model=model)
        chain.setup_chain(rng, TUNE, THIN * DRAWS)
        point, draws = start, []
        for i in range(TUNE + THIN * DRAWS):
            if i == TUNE:
                chain.stop_tuning()
            point, _ = chain.step(point)
            if i >= TUNE and (i - TUNE) % THIN == THIN - 1:
                values = function(*(point[name] for name in inputs))
                draws.append(np.concatenate([np.ravel(v) for v in values]))
        found[t] = rank(rng, truths[t], np.array(draws))
    z = z.reshape(trials, -1)
    return found, z if z.shape[1] <= 5 else z.sum(1, keepdims=True)


def p_values(ranks, z):
    """Of ranks that are uniform, and independent of the data.

    Mean and spread react to smaller errors than chi-square. Independence is what a sampler lacks
    that does not learn from the data: its ranks are uniform all the same.
    """
    u = (ranks + 0.5) / (DRAWS + 1) - 0.5
    yield 2 * stats.norm.sf(abs(u.mean()) * np.sqrt(12 * u.size))
    yield 2 * stats.norm.sf(abs((u**2).mean() - 1 / 12) * np.sqrt(180 * u.size))
    for column in z.T:
        yield stats.spearmanr(u, column).pvalue


CASES = {
    "clamped normal": (clamped_normal, dp.steps),
    "exponential": (exponential, dp.steps),
    "rows": (rows, dp.steps),
    "randomized response": (randomized_response, dp.steps),
    "median": (median, dp.steps),
    "Poisson": (poisson, dp.steps),
    "histogram": (histogram, dp.steps),
    "mixture": (mixture, records_alone),
    "only the response": (only_the_response, dp.steps),
    "groups": (groups, records_alone),
    "truncated": (truncated, records_alone),
    "uniform": (uniform_records, beside_a_slice_step),
    "two blocks": (two_blocks, records_alone),
    "moments": (moments, dp.steps),
    "bounded moments": (bounded_moments, dp.steps),
}
# Again with less: what helps one of two moves may hide that the other is wrong.
MORE = {
    "labels": (labels, dp.steps),
    "labels, beside NUTS": (labels, beside_nuts),
    "logistic": (logistic, records_alone),
    "matrix": (matrix, records_alone),
    "multivariate": (multivariate, records_alone),
    "bounded moments under Gaussian noise": (bounded_gaussian_moments, records_alone),
    "truncated normal": (truncated_normal, records_alone),
    "gamma": (gamma, records_alone),
    "shares": (shares, records_alone),
    "truncated gamma": (truncated_gamma, records_alone),
    "overdispersed": (overdispersed, records_alone),
    "mixture of vectors": (mixed_vectors, records_alone),
    "moments, beside NUTS": (moments, beside_nuts),
    **{
        f"{case}, alone": (build, records_alone)
        for case, (build, choose) in CASES.items()
        if choose is dp.steps
    },
    **{
        f"{case}, without moves": (CASES[case][0], records_without_moves)
        for case in ("clamped normal", "exponential", "median", "moments", "bounded moments")
    },
}


# By interweaving alone these two mix slowly: ten sweeps apart, their draws are no sample.
MORE_SWEEPS = {"rows, alone": 100, "only the response, alone": 300}


def calibrate(build, choose, trials, sweeps=SWEEPS):
    with pm.Model() as model:
        build()
    found, z = ranks(model, choose(model), trials, seed=7, sweeps=sweeps)
    uniform(found, DRAWS, BINS, LEVEL)
    for column in found.T:
        p = [float(p) for p in p_values(column, z)]
        assert min(p) > LEVEL, (p, np.bincount(column * BINS // (DRAWS + 1), minlength=BINS))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.nightly
def test_calibrated(case):
    calibrate(*CASES[case], QUICK)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_calibrated_closely(case):
    calibrate(*(CASES | MORE)[case], FULL, MORE_SWEEPS.get(case, SWEEPS))


# --- With simuk, as its users run it: the steps that `pm.sample` assigns --------------------------

SIMUK = {
    "clamped normal": (clamped_normal, ["mu"]),
    "exponential": (exponential, ["rate"]),
    "rows": (rows, ["b0", "b1", "s2"]),
    "randomized response": (randomized_response, ["p"]),
    "median": (median, ["mu", "s2"]),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", SIMUK)
def test_calibrated_under_simuk(case):
    (build, names), draws = SIMUK[case], 300
    with pm.Model() as model:
        build()
    uniform(simuk_ranks(model, names, FULL, draws, tune=300), draws)
