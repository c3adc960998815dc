"""Posteriors that were wrong in silence: what a model says is read as it stands, or not at all."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.sampling import routes

OWN = {"fused Gibbs", "exact regression"}  # routes with densities of their own


def open_routes(model):
    return {route.name for route, rate, _ in routes(model) if rate > 0}


def rounded_spread():
    with pm.Model() as model:
        s, mu = pm.HalfNormal("s", 10), pm.Normal("mu", 0, 100)
        x = pm.Normal("x", mu, s.astype("int64"), shape=400)
        moments = [x.mean(), x.var(ddof=1)]
        dp.PrivateObservation("z", moments, dp.LaplaceMechanism([0.2, 0.1]), observed=[0, 15.2])
    return model


def rounded_variance():
    with pm.Model() as model:
        v = pm.InverseGamma("v", 30, 130)
        sd = pt.sqrt(v.astype("int64"))
        theta = pm.Normal("theta", 0, sd, shape=2)
        x = pm.Normal("x", 0, 1, shape=20)
        y = pm.Normal("y", theta[0] + theta[1] * x, sd, shape=20)
        sums = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
        z = [0.0, 20.0, 1.0, 1.0, 80.0]
        dp.PrivateObservation("z", sums, dp.LaplaceMechanism(1.0), observed=z)
    return model


@pytest.mark.parametrize("build", [rounded_spread, rounded_variance])
def test_a_rounded_parameter_is_not_the_parameter(build):
    assert not open_routes(build()) & OWN


@pytest.mark.parametrize("change", [pt.floor, lambda v: v.astype("int64"), lambda v: v // 1])
def test_a_rounded_rate_has_no_conjugate_update(change):
    with pm.Model() as model:
        rate = pm.Gamma("rate", 8, 2)
        pm.Poisson("y", change(rate), shape=3, observed=[1, 2, 3])
    with model, pytest.raises(ValueError, match="'rate'"):
        dp.ConjugateGibbs([rate])


def test_a_rounded_sum_is_not_the_sum():
    """A sum of eight exponential variables, cut to a whole number and released with noise."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        x = pm.Exponential("x", rate, shape=8)
        cut = x.sum().astype("int64")
        dp.PrivateObservation("z", cut, dp.GaussianMechanism(0.3), observed=4)
    assert open_routes(model) == {"Metropolis on the records", "NUTS on the records"}
    with pytest.raises(NotImplementedError, match=r"'z'.*int64"):
        dp.collapse(model, "marginal")


# --- Statistics whose possible values are not neighbours ------------------------------------------


def mean_of_bits(n):
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        x = pm.Bernoulli("x", p, shape=n)
        dp.PrivateObservation("z", x.mean(), dp.DiscreteGaussianMechanism(0.7), observed=1)
    return model


@pytest.mark.parametrize("n", [3, 49])
def test_counts_with_gaps_are_drawn_over_all_that_are_possible(n):
    """Of a mean of bits under whole-number noise only 0 and 1 are possible; 49 * (1 / 49) < 1."""
    model = dp.collapse(mean_of_bits(n), "statistics")
    with model:
        step = dp.CountGibbs([model["p"], model["x_count"]])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point, counts = model.initial_point(), []
    for _ in range(4_000):
        point, _ = step.step(point)
        counts.append(int(point["x_count"]))
    weight = stats.betabinom.pmf([0, n], n, 2, 2) * stats.norm.pdf([1.0, 0.0], 0, 0.7)
    share = weight[1] / weight.sum()
    assert set(counts) == {0, n}
    assert abs(np.mean(np.array(counts) == n) - share) < 4 * np.sqrt(share * (1 - share) / 4_000)


def test_tables_with_gaps_are_drawn_over_all_that_are_possible():
    """Moves of two cells do not reach (1, 1, 1), nor lead out of it."""
    with pm.Model() as model:
        k = pm.Multinomial("k", 3, [0.2, 0.3, 0.5])
        mean = (k[1] + 2 * k[2]) / 3
        dp.PrivateObservation("z", mean, dp.GeometricMechanism(1.0), observed=1)
    with model:
        step = dp.CountGibbs([k])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point, found = model.initial_point(), {}
    for _ in range(8_000):
        point, _ = step.step(point)
        table = tuple(point["k"].tolist())
        found[table] = found.get(table, 0) + 1
    exact = {
        table: stats.multinomial.pmf(table, 3, [0.2, 0.3, 0.5])
        * np.exp(-abs(1 - (table[1] + 2 * table[2]) / 3))
        for table in [(3, 0, 0), (0, 3, 0), (1, 1, 1), (0, 0, 3)]
    }
    assert set(found) == set(exact)
    expected = np.array(list(exact.values())) / sum(exact.values()) * 8_000
    assert stats.chisquare([found[table] for table in exact], expected).pvalue > 1e-3


def test_too_many_tables_with_gaps_are_refused():
    with pm.Model() as model:
        k = pm.Multinomial("k", 3_000, [0.2, 0.3, 0.5])
        mean = (k[1] + 2 * k[2]) / 3_000
        dp.PrivateObservation("z", mean, dp.GeometricMechanism(1.0), observed=1)
    with model, pytest.raises(ValueError, match=r"'k': 'z' has whole-number noise.*sum"):
        dp.CountGibbs([k])


def test_a_half_count_under_whole_number_noise_is_left_to_others():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        y = pm.Poisson("y", rate)
        dp.PrivateObservation("z", 0.5 * y, dp.GeometricMechanism(1.0), observed=1)
    with model, pytest.raises(ValueError, match=r"'y'.*whole"):
        dp.TwoSidedGibbs([y])


def test_the_marginal_of_a_mean_of_bits():
    model = dp.collapse(mean_of_bits(3), "marginal")
    density = model.compile_fn(model.logp(jacobian=False), inputs=model.value_vars, point_fn=False)
    p = np.array([0.2, 0.5, 0.8])
    found = np.array([float(density(np.log(v / (1 - v)))) for v in p])

    def exact(v):
        noise = np.exp(-(np.array([1.0, 0.0]) ** 2) / (2 * 0.49))
        return stats.beta.logpdf(v, 2, 2) + np.log([(1 - v) ** 3, v**3] @ noise)

    truth = np.array([exact(v) for v in p])
    np.testing.assert_allclose(found - found[0], truth - truth[0], atol=1e-10)
    total = integrate.quad(lambda v: np.exp(exact(v)), 0, 1)[0]
    mean = integrate.quad(lambda v: v * np.exp(exact(v)), 0, 1)[0] / total
    assert abs(mean - 0.600) < 1e-3
