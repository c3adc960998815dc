"""A billion like records: what is released of them is read at no cost of their number."""

import resource

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

N = 10**9


def halves(x):
    return pt.stack([x[: N // 2].sum(), x[N // 2 :].sum()])


# Records, what is released of n, and mean and variance of its entries. The exact laws differ from
# the Normal one by 1e-5 at these n; so do their log densities within a spread of the middle.
CASES = {
    "Poisson": (lambda p: pm.Poisson("x", p, shape=N), pt.sum, [0.3 * N], 0.3 * N),
    "halves": (lambda p: pm.Poisson("x", p, shape=N), halves, [0.15 * N] * 2, 0.15 * N),
    "rows": (
        lambda p: pm.Poisson("x", p * np.array([[1.0], [2.0]]), shape=(2, N)),
        lambda x: x.sum(axis=1), [0.3 * N, 0.6 * N], N * np.array([0.3, 0.6]),
    ),
    "negative binomial": (
        lambda p: pm.NegativeBinomial("x", mu=p, alpha=1.0, shape=N),
        lambda x: 2 * x.mean() * N + 1, [0.6 * N + 1], 4 * 0.39 * N,
    ),
    "Gamma": (lambda p: pm.Gamma("x", 2.0, p, shape=N), pt.sum, [2 / 0.3 * N], 2 / 0.09 * N),
    "Normal halves": (lambda p: pm.Normal("x", p, 2.0, shape=N), halves, [0.15 * N] * 2, 2.0 * N),
    "Binomial": (lambda p: pm.Binomial("x", 3, p, shape=N), pt.sum, [0.9 * N], 0.63 * N),
    "share": (
        lambda p: pm.Bernoulli("x", p, shape=N), lambda x: x.mean() * N, [0.3 * N], 0.21 * N
    ),
    "zero-inflated, clipped": (
        lambda p: pm.ZeroInflatedPoisson("x", p, 2.0, shape=N), lambda x: x.clip(0, 1).sum(),
        [0.3 * (1 - np.exp(-2)) * N], N * (q := 0.3 * (1 - np.exp(-2))) * (1 - q),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_billion_records_take_no_memory(name):
    records, statistic, mean, variance = CASES[name]
    mean, spread = np.array(mean), np.sqrt(variance)
    noise = 0.5 * np.min(spread)
    z = np.round(mean + 0.7 * spread)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pm.Model() as model:
        released = statistic(records(pm.Beta("p", 1, 1, default_transform=None)))
        z = z if released.type.ndim else z[0]
        dp.PrivateObservation("z", released, dp.GaussianMechanism(noise), observed=z)
    marginal = pm.do(dp.collapse(model, "marginal"), {"p": 0.3})
    with marginal:
        logp = marginal.logp(vars=[marginal["z"]], jacobian=False)
    expected = stats.norm(mean, np.hypot(spread, noise)).logpdf(z).sum()
    assert logp.eval(mode=PLAIN_MODE) == pytest.approx(expected, abs=2e-4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # in KB


def test_slices_of_other_lengths_keep_one_weight():
    n = 10
    with pm.Model() as model:
        x = pm.Poisson("x", pm.Gamma("r", 1, 1), shape=n)
        released = [x[:3].mean() + 1, x[3:].mean()]
        dp.PrivateObservation("z", pt.stack(released), dp.GaussianMechanism(0.2), observed=[2.0, 1])
    marginal = pm.do(dp.collapse(model, "marginal"), {"r": 1.4})
    found = marginal.logp(vars=[marginal["z"]], jacobian=False).eval(mode=PLAIN_MODE)
    k, expected = np.arange(80), 0.0
    for z, size, added in ((2.0, 3, 1), (1.0, 7, 0)):
        noise = stats.norm(k / size + added, 0.2).logpdf(z)
        expected += special.logsumexp(stats.poisson(1.4 * size).logpmf(k) + noise)
    assert found == pytest.approx(expected, abs=1e-9)
