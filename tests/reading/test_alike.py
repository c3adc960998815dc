"""Like records are read as one that stands for all: the same densities, whatever their number."""

import resource

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.reading.alike import alike
from pymc_dp.reading.model import Reading

N = 10**9


def density(records, statistic, z, noise, *, is_alike=True):
    """Return the log density of z at p = 0.3, with one record for each run or with all of them."""
    with pm.Model() as model:
        x = records(pm.Beta("p", 1, 1, default_transform=None))
        dp.PrivateObservation("z", statistic(x), dp.GaussianMechanism(noise), observed=z)
    _, times = alike(Reading(model), x).parts(x)
    assert (times.max() > 1) == is_alike
    marginal = pm.do(dp.collapse(model, "marginal"), {"p": 0.3})
    return marginal.logp(vars=[marginal["z"]], jacobian=False).eval(mode=PLAIN_MODE)


# Records with parameters p, given as a number or as equal numbers for each record.
LAWS = {
    "Poisson": lambda p: pm.Poisson("x", p, shape=60),
    "negative binomial": lambda p: pm.NegativeBinomial("x", mu=2 * p, alpha=p, shape=60),
    "Gamma": lambda p: pm.Gamma("x", 2.0, 1 / p, shape=60),
    "Exponential": lambda p: pm.Exponential("x", 1 / p, shape=60),
    "Normal": lambda p: pm.Normal("x", p, 2 * p, shape=60),
    "Bernoulli": lambda p: pm.Bernoulli("x", p, shape=60),
}
STATISTICS = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "slice": lambda x: x[:7].sum(),
    "slices": lambda x: pt.stack([x[:20].mean(), 1 + x[20:-3].mean(), x[-3:].mean()]),
    "affine": lambda x: 2 * x.sum() + 1,
    "shifted": lambda x: (3 * (x - 0.25)).sum() / x.shape[0],
    "cast": lambda x: x.astype("float32").sum().astype("float64"),
    "centred": lambda x: x.sum() - 2 * (x - x.mean()).sum() / 3,
}
OVERLAPS = {
    "total": lambda x: pt.stack([x.sum(), x[:7].sum()]),
    "overlap": lambda x: pt.stack([x[:40].sum(), x[20:].mean()]),
}
SQUARES = {
    "variance": lambda x: x.var(ddof=1),
    "mean and variance": lambda x: pt.stack([x.mean(), x.var(ddof=1)]),
    "two groups": lambda x: pt.stack([x[:20].var(ddof=1), x[20:].var(ddof=1), x[:20].mean()]),
}
CLIPPED = {
    "share": lambda x: (x > 0).mean(),
    "clipped": lambda x: x.clip(0, 2).sum(),
    "clipped slice": lambda x: x.clip(0, 2)[7:].sum(),
}
PAIRS = [(law, s) for law in LAWS for s in STATISTICS]
PAIRS += [("Normal", s) for s in [*OVERLAPS, *SQUARES]] + [("Bernoulli", "total")]
PAIRS += [(law, s) for law in ("Poisson", "negative binomial") for s in CLIPPED]


@pytest.mark.parametrize(("law", "statistic"), PAIRS)
def test_one_record_for_many_has_the_density_of_all(law, statistic, monkeypatch):
    monkeypatch.setattr("pymc_dp.reading.alike._FEW", 1)
    records = LAWS[law]
    release = {**STATISTICS, **OVERLAPS, **SQUARES, **CLIPPED}[statistic]
    z = np.full(release(pt.vector(shape=(60,))).type.shape, 0.4)
    found = density(records, release, z, 0.7)
    each = density(lambda p: records(p * np.ones(60)), release, z, 0.7, is_alike=False)
    assert found == pytest.approx(each, rel=1e-9)


def halves(x):
    return pt.stack([x[: N // 2].sum(), x[N // 2 :].sum()])


# Records, what is released of n, and mean and variance of its entries. The exact laws differ from
# the Normal one by 1e-5 at these n; so do their log densities within a spread of the middle.
MANY = {
    "Poisson": (lambda p: pm.Poisson("x", p, shape=N), pt.sum, [0.3 * N], 0.3 * N),
    "halves": (lambda p: pm.Poisson("x", p, shape=N), halves, [0.15 * N] * 2, 0.15 * N),
    "clipped": (
        lambda p: pm.Poisson("x", p, shape=N), lambda x: x.clip(0, 1).sum(),
        [N * (q := -np.expm1(-0.3))], N * q * (1 - q),
    ),
    "negative binomial": (
        lambda p: pm.NegativeBinomial("x", mu=p, alpha=1.0, shape=N),
        lambda x: 2 * x.mean() * N + 1, [0.6 * N + 1], 4 * 0.39 * N,
    ),
    "Gamma": (lambda p: pm.Gamma("x", 2.0, p, shape=N), pt.sum, [2 / 0.3 * N], 2 / 0.09 * N),
    "Normal": (
        lambda p: pm.Normal("x", p, 2.0, shape=N), lambda x: x.mean() * N, [0.3 * N], 4.0 * N
    ),
    "Normal halves": (lambda p: pm.Normal("x", p, 2.0, shape=N), halves, [0.15 * N] * 2, 2.0 * N),
    "Binomial": (lambda p: pm.Binomial("x", 3, p, shape=N), pt.sum, [0.9 * N], 0.63 * N),
    "share": (
        lambda p: pm.Bernoulli("x", p, shape=N), lambda x: x.mean() * N, [0.3 * N], 0.21 * N
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_a_billion_records_take_no_memory(name):
    records, statistic, mean, variance = MANY[name]
    mean, spread = np.array(mean), np.sqrt(variance)
    noise = 0.5 * np.min(spread)
    z = np.round(mean + 0.7 * spread)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = density(records, statistic, z if z.size > 1 else z[0], noise)
    expected = stats.norm(mean, np.hypot(spread, noise)).logpdf(z).sum()
    assert found == pytest.approx(expected, abs=2e-4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # in KB


def test_slices_of_other_lengths_keep_one_weight(monkeypatch):
    monkeypatch.setattr("pymc_dp.reading.alike._FEW", 1)
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
