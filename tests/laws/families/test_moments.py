"""Means and variances of groups, against quadrature and closed forms."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs import substitution
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN
from pymc_dp.routes import gibbs
from tests.agreement import follows

SIZES = np.array([2, 5, 4])
G = np.random.default_rng(7).permutation(np.repeat(np.arange(3), SIZES))
N = G.size
THETA, SIGMA = np.array([0.4, -1.0, 2.0]), np.array([0.7, 0.3, 1.2])
MEANS, VARIANCES = np.array([0.1, -0.4, 1.5]), np.array([0.6, -0.2, 2.5])
LAPLACE, GAUSSIAN = dp.LaplaceMechanism, dp.GaussianMechanism


def density(model, to="marginal"):
    collapsed = dp.collapse(model, to)
    logps = [pm.logp(r, collapsed.rvs_to_values[r]).sum() for r in collapsed.observed_RVs]
    inputs = [collapsed["theta"], collapsed["sigma"]]
    logp = pm.compile(inputs, sum(logps), mode=PLAIN, on_unused_input="ignore")
    return float(logp(THETA, SIGMA))


def convolved(law, noise, z, lower):
    ends = lower, 60.0
    f = lambda s: law.pdf(s) * noise.pdf(z - s)  # noqa: E731
    points = sorted({max(z, lower), *(lower + np.geomspace(1e-6, 10, 8)), 0.0})
    points = [p for p in points if p > lower]
    return np.log(integrate.quad(f, *ends, points=points, epsabs=0, epsrel=1e-11, limit=900)[0])


@pytest.mark.parametrize("releases", [1, 2])
def test_rows_of_a_matrix_with_noise_of_their_own(releases):
    with pm.Model() as model:
        theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma", shape=3)
        x = pm.Normal("x", theta[:, None], sigma[:, None], shape=(3, 6))
        scale = np.array([[0.2, 0.3, 0.4], [0.5, 0.6, 0.7]])
        both = [(x.mean(axis=1), scale[0], MEANS), (2 * x.var(axis=1), scale[1], VARIANCES)]
        if releases == 1:
            both = [(pt.stack([of for of, *_ in both]), scale, np.stack([MEANS, VARIANCES]))]
        for k, (statistic, noise, z) in enumerate(both):
            dp.PrivateObservation(f"z{k}", statistic, GAUSSIAN(noise), observed=z)
    total = 0.0
    for j in range(3):
        mean = stats.norm(THETA[j], SIGMA[j] / np.sqrt(6))
        total += convolved(mean, stats.norm(scale=scale[0, j]), MEANS[j], -60.0)
        variance = stats.gamma(2.5, scale=2 * SIGMA[j] ** 2 * 5 / 6 / 2.5)
        total += convolved(variance, stats.norm(scale=scale[1, j]), VARIANCES[j], 0.0)
    assert density(model) == pytest.approx(total, rel=1e-8)


def test_lengths_in_a_statistic_are_those_of_all_records():
    with pm.Model() as model:
        theta, sigma = pm.Normal("theta", shape=3), pm.HalfNormal("sigma", shape=3)
        x = pm.Normal("x", theta[:, None], sigma[:, None], shape=(3, 6))
        statistic = x.var(axis=1, ddof=1) * x.shape[0] / x.size * 6
        dp.PrivateObservation("z", statistic, GAUSSIAN(0.4), observed=VARIANCES)
    total = sum(
        convolved(stats.gamma(2.5, scale=s**2 / 2.5), stats.norm(scale=0.4), v, 0.0)
        for s, v in zip(SIGMA, VARIANCES, strict=True)
    )
    assert density(model) == pytest.approx(total, rel=1e-8)


def test_moments_of_several_releases_have_names_of_their_own():
    draws = 3000
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), 1.0, shape=20)
        for name, part, z in (("a", x[:10], 2.0), ("b", x[10:], -2.0)):
            moments = pt.stack([part.mean(), part.var(ddof=1)])
            dp.PrivateObservation(name, moments, GAUSSIAN(0.5), observed=[z, 1.0])
    posterior = az.from_dict({"posterior": {"mu": np.zeros((1, draws))}})
    found = dp.recover(model, posterior, random_seed=1)["posterior"]
    assert {*found} == {"mu", "x_a_mean", "x_a_var", "x_b_mean", "x_b_var"}
    for name, z in (("a", 2.0), ("b", -2.0)):
        law = stats.norm(z * 0.1 / 0.35, np.sqrt(0.1 * 0.25 / 0.35))
        follows(law.cdf(found[f"x_{name}_mean"].values[0, :, 0]), "uniform")


SPELLINGS = {
    "a list": lambda x, g, k: pt.stack([x[g == j].mean() for j in range(k)]),
    "sums by adding": lambda x, g, k: pt.zeros(k)[g].inc(x) / np.bincount(g),
    "some variances": lambda x, g, k: pt.stack(
        [s for j in range(k) for s in (x[g == j].mean(), x[g == j].var())[: 1 + (j % 3 > 0)]]
    ),
}


@pytest.mark.parametrize("statistic", SPELLINGS.values(), ids=SPELLINGS)
def test_work_does_not_grow_with_the_number_of_groups(statistic, monkeypatch):
    """200 clinics are read with a few rewrites, and their density has as few ops."""
    rewrites, simplifier = [], substitution._simplifier
    monkeypatch.setattr(substitution, "_simplifier", lambda: rewrites.append(1) or simplifier())
    monkeypatch.setattr(gibbs, "read_block", None)  # would read all for a route that is not taken
    work = []
    for k in (6, 18):
        g = np.repeat(np.arange(k), 4)
        rewrites.clear()
        with pm.Model() as model:
            theta = pm.Normal("theta", pm.Normal("mu"), shape=k)
            x = pm.Normal("x", theta[g], pm.HalfNormal("sigma"), shape=g.size)
            released = statistic(x, g, k)
            observed = np.ones(released.type.shape)
            dp.PrivateObservation("z", released, GAUSSIAN(0.3), observed=observed)
        assert "dp.sample takes it" in str(dp.explain(model, details=True))
        rungs = [dp.collapse(model, to=to).logp() for to in ("statistics", "marginal")]
        work.append([len(rewrites), *(len(list(ancestors([rung]))) for rung in rungs)])
    assert work[0] == work[1]


def test_variances_are_not_integrated_out_by_quadrature():
    """Under Gaussian noise each costs 80 nodes a gradient: NUTS keeps them, be they few or many."""
    taken = []
    for k in (2, 40):
        g = np.repeat(np.arange(k), 4)
        with pm.Model() as model:
            x = pm.Normal("x", pm.Normal("theta", shape=k)[g], pm.HalfNormal("sigma"), shape=g.size)
            variances = pt.stack([x[g == j].var() for j in range(k)])
            dp.PrivateObservation("z", variances, GAUSSIAN(0.3), observed=np.ones(k))
        taken += [
            route
            for _, route, state, _ in dp.explain(model, details=True).tables[1][2]
            if "takes" in state
        ]
    assert taken == ["NUTS on the statistics"] * 2
