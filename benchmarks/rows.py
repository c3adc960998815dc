"""The models of the benchmark: each for `dp.sample`, and as one would write it by hand.

A builder writes the form that it is asked for, "ours" or one by hand, on the same data. By hand,
what was released is a latent variable, or is integrated out in closed form or by a sum where that
is known. A form whose name says so is approximate: there is no exact one that one would write.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import normal_lcdf
from scipy.special import gammaln
from scipy.stats import binom, poisson

import pymc_dp as dp

OURS = "ours"
BOTH = ("centred", "non-centred")
QUICK = 3000, 3000  # draws of both sides, where 1000 take too short a time to be measured


class Row(NamedTuple):
    """A model: its forms by hand, the parameters whose slowest counts, and what it may take.

    Attributes
    ----------
    draws : of each of two chains, after as many for tuning; ours, and by hand.
    limit : CPU seconds of a side's calls after the first.
    paper : a speed that was published, with its source.
    """

    build: Callable[[str], pm.Model]
    forms: tuple[str, ...]
    names: tuple[str, ...]
    draws: tuple[int, int]
    limit: float
    paper: str


ROWS: dict[str, Row] = {}


def row(name, names, *forms, draws=(1000, 1000), limit=20.0, paper="", **arguments):
    """Register a builder under a name."""

    def register(write):
        found = partial(built, partial(write, **arguments))
        ROWS[name] = Row(found, forms, tuple(names.split()), draws, limit, paper)
        return write

    return register


def built(write, form: str) -> pm.Model:
    """Return the model of a form."""
    with pm.Model() as model:
        write(form)
    return model


# Noise: of data, released or observed by hand, and summed over or integrated out by hand.


def noisy(rng, noise, scale, values):
    """Add noise to data."""
    if noise == "Geometric":
        one, other = rng.geometric(1 - np.exp(-1 / scale), (2, *np.shape(values)))
        return values + one - other
    if noise == "DiscreteGaussian":
        return values + rng.normal(0, scale, np.shape(values)).round().astype(int)
    return values + (rng.laplace if noise == "Laplace" else rng.normal)(0, scale, np.shape(values))


def publish(form, noise, scale, released, z, name="z"):
    """Release a statistic, or observe by hand a variable that stands for it."""
    if form == OURS:
        mechanism = getattr(dp, f"{noise}Mechanism")(scale)
        dp.PrivateObservation(name, released, mechanism, observed=z)
    else:
        (pm.Laplace if noise == "Laplace" else pm.Normal)(name, released, scale, observed=z)


def log_noise(noise, scale, k):
    return -np.abs(k) / scale if noise == "Geometric" else -(k**2) / (2 * scale**2)


def summed(noise, scale, z, log_mass, times=1):
    """Observe by hand counts of a log mass, summed over those near z."""
    reach = int(scale * (20 if noise == "Geometric" else 6))  # noise below 2e-8
    k = z[:, None] + np.arange(-reach, reach + 1)
    terms = log_mass(np.maximum(k, 0)) + np.where(k < 0, -np.inf, 0)
    terms += log_noise(noise, scale, k - z[:, None])
    pm.Potential("z", (times * pm.math.logsumexp(terms, axis=1)).sum())


def summed_alike(noise, scale, z, law):
    """Observe by hand counts of one law, once those that are alike."""
    values, times = np.unique(z, return_counts=True)
    summed(noise, scale, values, lambda k: pm.logp(law, k), times)


def poisson_counts(form, noise, scale, eta, z):
    if form == OURS:
        publish(form, noise, scale, pm.Poisson("x", pt.exp(eta), shape=len(z)), z)
    else:
        eta = eta[:, None]
        summed(noise, scale, z, lambda k: k * eta - pt.exp(eta) + poisson.logpmf(k, 1))


def laplace_normal(d, sd, b):
    """Log density, at a distance d from the mean, of a Normal variable plus Laplace noise."""
    right, left = normal_lcdf(0, 1, -d / sd - sd / b), normal_lcdf(0, 1, d / sd - sd / b)
    return (sd / b) ** 2 / 2 + pt.logaddexp(left - d / b, right + d / b) - np.log(2 * b)


def clamped_moments(mean, spread, low, high):
    """Return the mean and the variance of a clamped Normal record: sums are then near Normal."""
    a, b = (low - mean) / spread, (high - mean) / spread
    below, above = pm.math.exp(normal_lcdf(0, 1, a)), pm.math.exp(normal_lcdf(0, 1, -b))
    at, to = (pt.exp(-(v**2) / 2) / np.sqrt(2 * np.pi) for v in (a, b))
    within = 1 - below - above
    first = mean * within + spread * (at - to)
    second = mean * first + spread**2 * within + spread * (low * at - high * to)
    first, second = first + high * above + low * below, second + high**2 * above + low**2 * below
    return first, second - first**2


def effects(form, level, spread, shape):
    if form.startswith("non-centred"):
        return level + spread * pm.Normal("raw", shape=shape)
    return pm.Normal("theta", level, spread, shape=shape)


def members(rng, groups):
    """Return sizes of groups, and the group of each record."""
    sizes = rng.integers(20, 60, groups)
    return sizes, np.repeat(np.arange(groups), sizes)


def summing(group):
    """Return the matrix that sums up the records of each group."""
    return np.eye(group.max() + 1)[group].T


# Normal records: their means, variances, and clamped sums.


@row("blood-lead-flat", "mu sigma2", *BOTH, "convolved", draws=(20_000, 20_000), prior="flat")
@row("blood-lead-informative", "mu sigma2", *BOTH, "convolved", draws=(20_000, 20_000),
     prior="informative")  # fmt: skip
def lead(form, prior):
    """Release the mean and the variance of 43 records (Kazan & Reiter)."""
    n, z = 43, (34.3027, 2224.8)
    scale = np.array([100 / n, 100**2 / n]) / 0.25
    if prior == "flat":
        mu, sigma2 = pm.Flat("mu", initval=z[0]), pm.HalfFlat("sigma2", initval=300.0)
    else:
        sigma2 = pm.InverseGamma("sigma2", 0.5, 0.5 * 3.8**2)
        mu = pm.Normal("mu", 12.5, pt.sqrt(sigma2))
    sd = pt.sqrt(sigma2 / n)
    if form == OURS:
        x = pm.Normal("x", mu, pt.sqrt(sigma2), shape=n)
        return publish(form, "Laplace", scale, [x.mean(), x.var(ddof=1)], z)
    if form == "centred":
        mean = pm.Normal("mean", mu, sd)
        var = pm.Gamma("var", (n - 1) / 2, (n - 1) / (2 * sigma2))
    else:
        var = sigma2 * pm.ChiSquared("rest", n - 1) / (n - 1)
        mean = mu + sd * pm.Normal("e") if form == "non-centred" else mu
    if form == "convolved":
        pm.Potential("z", laplace_normal(z[0] - mu, sd, scale[0]))
    else:
        publish(form, "Laplace", scale[0], mean, z[0])
    return publish(form, "Laplace", scale[1], var, z[1], "z2")


@row("clamped-normal-100", "mu sigma", "records", "standard records", n=100)
@row("clamped-normal-1000", "mu sigma", "records", "standard records", n=1000)
@row("clamped-normal-10000", "mu sigma", "records", "standard records", n=10_000,
     draws=(1000, 200), limit=60)  # fmt: skip
def clamped(form, n):
    """Release the means of clamped records and of their squares, epsilon 1."""
    rng = np.random.default_rng(2)
    scale = 2 / n

    def sums(x):
        u = x.clip(0, 10) / 10
        return [u.mean(), (u**2).mean()]

    z = noisy(rng, "Laplace", scale, np.array(sums(rng.normal(6, 3, n))))
    mu, sigma = pm.Normal("mu", 5, 5), pm.HalfNormal("sigma", 5)
    if form == "standard records":
        x = mu + sigma * pm.Normal("e", shape=n)
    else:
        x = pm.Normal("x", mu, sigma, shape=n)
    publish(form, "Laplace", scale, pt.stack(sums(x)), z)


@row("means-Laplace", "level tau s", *BOTH, "y alone", "y alone, non-centred", "convolved")
def means(form, J=50):
    """Release noisy means of 50 groups."""
    rng = np.random.default_rng(3)
    sizes, group = members(rng, J)
    z = noisy(rng, "Laplace", 0.3, rng.normal(rng.normal(5, 2, J), 3 / np.sqrt(sizes)))
    level, tau, s = pm.Normal("level", 0, 10), pm.HalfNormal("tau", 5), pm.HalfNormal("s", 5)
    sd = s / np.sqrt(sizes)
    wide = pt.sqrt(tau**2 + sd**2)  # the effects integrated out
    if form == "convolved":
        return pm.Potential("z", laplace_normal(z - level, wide, 0.3).sum())
    if form.startswith("y alone"):
        raw = form.endswith("non-centred")
        y = level + wide * pm.Normal("e", shape=J) if raw else pm.Normal("y", level, wide)
        return publish(form, "Laplace", 0.3, y, z)
    theta = effects(form, level, tau, J)
    if form == OURS:
        x = pm.Normal("x", theta[group], s, shape=group.size)
        y = pt.zeros(J)[group].inc(x) / sizes
    else:
        y = theta + sd * pm.Normal("e", shape=J) if "non" in form else pm.Normal("y", theta, sd)
    return publish(form, "Laplace", 0.3, y, z)


@row("clipped-means", "level tau s", *BOTH, "non-centred, standard records", draws=(400, 500),
     limit=80)  # fmt: skip
def clipped(form, J=50):
    """Release noisy means of the clipped records of 50 groups."""
    rng = np.random.default_rng(3)
    sizes, group = members(rng, J)
    M = summing(group)
    data = rng.normal(rng.normal(5, 2, J)[group], 3).clip(0, 10)
    z = noisy(rng, "Laplace", 0.3, M @ data / sizes)
    level, tau, s = pm.Normal("level", 0, 10), pm.HalfNormal("tau", 5), pm.HalfNormal("s", 5)
    theta = effects(form, level, tau, J)[group]
    if form.endswith("standard records"):
        x = theta + s * pm.Normal("e", shape=group.size)
    else:
        x = pm.Normal("x", theta, s, shape=group.size)
    publish(form, "Laplace", 0.3, pt.zeros(J)[group].inc(x.clip(0, 10)) / sizes, z)


@row("unknown-size", "rate mean spread", "summed, CLT (approximate)", limit=40, draws=(500, 1000))
def unknown(form, number=203, total=1030.5):
    """Release how many records there are, and the sum of the clamped ones."""
    low, high = 0.0, 20.0
    rate = pm.Gamma("rate", 2, 0.01)
    mean, spread = pm.Normal("mean", 5, 5), pm.HalfNormal("spread", 5)
    if form == OURS:
        n = pm.Poisson("n", rate)
        publish(form, "Geometric", 2.0, n, number, "count")
        x = pm.Normal("x", mean, spread, shape=n).clip(low, high)
        return publish(form, "Laplace", 20.0, x.sum(), total)
    first, var = clamped_moments(mean, spread, low, high)
    n = number + np.arange(-80, 81)
    law = n * pt.log(rate) - rate + poisson.logpmf(n, 1) + log_noise("Geometric", 2.0, n - number)
    law += laplace_normal(total - n * first, pt.sqrt(n * var), 20.0)
    return pm.Potential("z", pm.math.logsumexp(law).sum())


CLT = ("centred, CLT (approximate)", "non-centred, CLT (approximate)")


@row("clinics-12", "rate level tau s", *CLT, J=12, draws=(300, 1000), limit=200)  # it compiles long
@row("clinics-200", "rate level tau s", *CLT, J=200, draws=(300, 500), limit=300)
def clinics(form, J, low=0.0, high=30.0):
    """Release the number of patients and the clamped sum of each clinic, sizes confidential.

    By hand, the number is a real one and the sum is Normal.
    """
    rng = np.random.default_rng(21)
    sizes = rng.poisson(60, J)
    stays = [rng.normal(rng.normal(8, 2), 4, k).clip(low, high).sum() for k in sizes]
    counts, sums = noisy(rng, "Laplace", 2.0, sizes), noisy(rng, "Laplace", 60.0, stays)
    rate = pm.Gamma("rate", 2, 0.02)
    level, tau = pm.Normal("level", 10, 10), pm.HalfNormal("tau", 5)
    s = pm.HalfNormal("s", 10)
    theta = effects(form, level, tau, J)
    if form == OURS:
        n = pm.Poisson("n", rate, shape=J)
        law = pm.Normal.dist(theta, s)
        total = dp.RecordSums("total", law, n, of=lambda x: x.clip(low, high), shape=J)
        publish(form, "Laplace", 2.0, n, counts, "count")
        return publish(form, "Laplace", 60.0, total, sums)
    n = pm.math.maximum(rate + pt.sqrt(rate) * pm.Normal("of_n", shape=J), 1.0)
    first, var = clamped_moments(theta, s, low, high)
    publish(form, "Laplace", 2.0, n, counts, "count")
    return pm.Potential("z", laplace_normal(sums - n * first, pt.sqrt(n * var), 60.0).sum())


@row("revenue-two-arms", "psi mu", "CLT (approximate)", draws=(500, 1000), limit=200)
def revenue(form, cap=60.0):
    """Release visitors and clamped revenue of two arms of a test, one in eight buying.

    By hand, the number is a real one and the revenue Normal, of moments in closed form.
    """
    rng = np.random.default_rng(22)
    visitors, mean = rng.poisson(1200, 2), np.array([2.0, 2.3])
    spent = [
        (rng.random(k) < 0.125) * rng.lognormal(m, 0.8, k)
        for k, m in zip(visitors, mean, strict=True)
    ]
    total = np.array([own.clip(0, cap).sum() for own in spent])
    counts, sums = noisy(rng, "Laplace", 2.0, visitors), noisy(rng, "Laplace", 100.0, total)
    psi, mu = pm.Beta("psi", 20, 140, shape=2), pm.Normal("mu", 2, 0.5, shape=2)
    if form == OURS:
        n = pm.Poisson("n", 1200, shape=2)
        for j in range(2):
            buys = pm.Bernoulli(f"buys{j}", psi[j], shape=n[j])
            spend = pm.LogNormal(f"spend{j}", mu[j], 0.8, shape=n[j])
            publish(form, "Laplace", 100.0, (buys * spend).clip(0, cap).sum(), sums[j], f"z{j}")
        return publish(form, "Laplace", 2.0, n, counts, "count")
    n = 1200 + np.sqrt(1200) * pm.Normal("of_n", shape=2)
    top = (np.log(cap) - mu) / 0.8

    def moment(k):
        below = pt.exp(k * mu + 0.5 * (k * 0.8) ** 2) * pt.exp(normal_lcdf(0, 1, top - k * 0.8))
        return psi * (below + cap**k * pt.exp(normal_lcdf(0, 1, -top)))

    first = moment(1)
    sd = pt.sqrt(n * (moment(2) - first**2))
    publish(form, "Laplace", 2.0, n, counts, "count")
    return pm.Potential("z", laplace_normal(sums - n * first, sd, 100.0).sum())


@row("zero-inflated-200", "psi lam", "CLT (approximate)")
def visits(form, n=200, most=8):
    """Release the clipped sum of counts with many zeros. By hand it is Normal."""
    rng = np.random.default_rng(23)
    counts = (rng.random(n) < 0.6) * rng.poisson(3, n)
    z = noisy(rng, "Laplace", 8.0, float(counts.clip(0, most).sum()))
    psi, lam = pm.Beta("psi", 6, 4), pm.Gamma("lam", 6, 2)
    if form == OURS:
        x = pm.ZeroInflatedPoisson("x", psi, lam, shape=n)
        return publish(form, "Laplace", 8.0, x.clip(0, most).sum(), z)
    k = np.arange(most + 1)
    chance = pt.exp(k * pt.log(lam) - lam - gammaln(k + 1.0))
    chance = psi * pt.set_subtensor(chance[-1], 1 - chance[:-1].sum())
    first, second = (chance * k).sum(), (chance * k**2).sum()
    sd = pt.sqrt(n * (second - first**2))
    return pm.Potential("z", laplace_normal(z - n * first, sd, 8.0))


# Regression.


@row("design-Laplace", "beta s", *BOTH)
def design(form, n=500):
    """Release X'y of public covariates."""
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(n), rng.uniform(-1, 1, n), rng.normal(size=n)])
    y, G = X @ [0.5, 0.3, -0.8] + rng.normal(0, 0.9, n), X.T @ X
    z = noisy(rng, "Laplace", 5.0, X.T @ y)
    beta, s = pm.Normal("beta", 0, 2, shape=3), pm.HalfNormal("s", 2)
    root = np.linalg.cholesky(G)
    if form == OURS:
        t = X.T @ pm.Normal("y", X @ beta, s, shape=n)
    elif form == "non-centred":
        t = G @ beta + s * (root @ pm.Normal("e", shape=3))
    else:
        t = pm.MvNormal("t", G @ beta, chol=s * root)
    publish(form, "Laplace", 5.0, t, z)


@row("regression-2", "theta sigma2", "Bartlett", d=2,
     paper="430 to 1,100 ESS / CPU s, Bernstein & Sheldon's sampler (measured by us)")  # fmt: skip
@row("regression-10", "theta sigma2", "Bartlett", d=10, draws=(2000, 500), limit=40)
@row("regression-30", "theta sigma2", "Bartlett", d=30, draws=(1000, 300), limit=120)
def regression(form, d, n=1000):
    """Release all sums of squares and products of d - 1 confidential covariates and a response."""
    rng = np.random.default_rng(2)
    i, j = np.triu_indices(d - 1)
    truth = rng.normal(size=d) / np.sqrt(d)
    x = rng.normal(size=(n, d - 1))
    y = rng.normal(truth[0] + x @ truth[1:], 0.5)
    s = np.concatenate([x.sum(0), (x.T @ x)[i, j], [y.sum()], x.T @ y, [y @ y]])
    z = noisy(rng, "Laplace", 5.0, s)
    sigma2 = pm.InverseGamma("sigma2", 3, 0.5)
    sigma = pt.sqrt(sigma2)
    intercept = pm.Normal("intercept", 0.0, 2 * sigma)
    theta = pm.Normal("theta", 0.0, 2 * sigma, shape=d - 1)
    if form == OURS:
        x = pm.Normal("x", 0.0, 1.0, shape=(n, d - 1))
        y = pm.Normal("y", intercept + x @ theta, sigma, shape=n)
        parts = [x.sum(0), (x.T @ x)[i, j], y.sum()[None], x.T @ y, (y**2).sum()[None]]
    else:  # a root L of [1, x]'[1, x], then L'[1, x]y, and what y'y holds beyond its square
        below = np.tril_indices(d, -1)
        L = pt.zeros((d, d))[below].set(pm.Normal("below", shape=len(below[0])))
        L = L[0, 0].set(np.sqrt(n))
        rest = pm.ChiSquared("rest", np.append(n - np.arange(1.0, d), n - d), shape=d)
        at = np.arange(1, d)
        L = L[at, at].set(pt.sqrt(rest[:-1]))
        u = L.T @ pt.concatenate([intercept[None], theta]) + sigma * pm.Normal("e", shape=d)
        xx, xy = L @ L.T, L @ u
        yy = (u**2).sum() + sigma2 * rest[-1]
        parts = [xx[0, 1:], xx[1:, 1:][i, j], xy, yy[None]]
    publish(form, "Laplace", 5.0, pt.concatenate(parts), z)


@row("regression-groups", "a0 tau b s mx sx", *BOTH, limit=60)
def grouped(form, J=12, n=42):
    """Release five noisy sums of the confidential x and y of each of 12 groups."""
    rng = np.random.default_rng(4)
    x = rng.normal(1, 1, (J, n))
    y = rng.normal(rng.normal(2, 0.7, (J, 1)) + 0.5 * x, 0.8)
    z = noisy(rng, "Laplace", 3.0, np.ravel([v.sum(axis=1) for v in (x, x**2, y, x * y, y**2)]))
    mx, sx = pm.Normal("mx", 0, 2), pm.HalfNormal("sx", 2)
    a0, tau, b = pm.Normal("a0", 0, 3), pm.HalfNormal("tau", 2), pm.Normal("b", 0, 2)
    s = pm.HalfNormal("s", 2)
    a = effects(form, a0, tau, J)
    if form == OURS:
        group = np.repeat(np.arange(J), n)
        M = np.eye(J)[group].T
        x = pm.Normal("x", mx, sx, shape=J * n)
        y = pm.Normal("y", a[group] + b * x, s, shape=J * n)
        sums = [M @ x, M @ x**2, M @ y, M @ (x * y), M @ y**2]
    else:  # means, and sums of squares around them, by Bartlett's decomposition
        e = pm.Normal("e", shape=(3, J))
        xx = sx**2 * pm.ChiSquared("xx", n - 1, shape=J)
        x = mx + sx / np.sqrt(n) * e[0]
        y = a + b * x + s / np.sqrt(n) * e[1]
        slope = b + s / pt.sqrt(xx) * e[2]
        yy = slope**2 * xx + s**2 * pm.ChiSquared("yy", n - 2, shape=J)
        sums = [n * x, xx + n * x**2, n * y, slope * xx + n * x * y, yy + n * y**2]
    publish(form, "Laplace", 3.0, pt.concatenate(sums), z)


@row("regression-unknown-n", "b0 b1 s mx sx", "Bartlett, n real (approximate)",
     draws=(500, 1000), limit=60)  # fmt: skip
def counted(form, number=1000):
    """Release how many rows there are, and their X'X, X'y and y'y (Awan, Barrientos & Ju)."""
    rng = np.random.default_rng(22)
    x = rng.normal(1, 1, number)
    y = rng.normal(0.5 + 0.8 * x, 0.6)
    z = noisy(rng, "Laplace", 5.0, [x.sum(), x @ x, y.sum(), x @ y, y @ y])
    zn = noisy(rng, "Geometric", 2.0, number)
    rate = pm.Gamma("rate", 2, 0.002)
    mx, sx = pm.Normal("mx", 0, 2), pm.HalfNormal("sx", 2)
    b0, b1, s = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 2), pm.HalfNormal("s", 2)
    if form == OURS:
        n = pm.Poisson("n", rate)
        x = pm.Normal("x", mx, sx, shape=n)
        y = pm.Normal("y", b0 + b1 * x, s, shape=n)
        publish(form, "Geometric", 2.0, n, zn, "count")
        sums = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
        return publish(form, "Laplace", 5.0, pt.stack(sums), z)
    n = pm.math.maximum(rate + pt.sqrt(rate) * pm.Normal("of_n"), 3.0)
    publish(form, "Laplace", 2.0, n, zn, "count")
    e = pm.Normal("e", shape=3)
    xx = sx**2 * pm.ChiSquared("xx", n - 1)
    x = mx + sx / pt.sqrt(n) * e[0]
    y = b0 + b1 * x + s / pt.sqrt(n) * e[1]
    slope = b1 + s / pt.sqrt(xx) * e[2]
    yy = slope**2 * xx + s**2 * pm.ChiSquared("yy", n - 2)
    sums = [n * x, xx + n * x**2, n * y, slope * xx + n * x * y, yy + n * y**2]
    return publish(form, "Laplace", 5.0, pt.stack(sums), z)


@row("noisy-rows-500", "b0 b1 s mx sx", "integrated", "latents", n=500, draws=QUICK)
@row("noisy-rows-100000", "b0 b1 s mx sx", "integrated", n=100_000, draws=(200, 200), limit=240)
def rows(form, n):
    """Release rows of a covariate and a response, each number with noise of its own."""
    rng = np.random.default_rng(23)
    vx, vy = rng.uniform(0.3, 1.0, (2, n)) ** 2
    zx = rng.normal(0.3, 1.2, n)
    zy = rng.normal(0.5 + 0.8 * zx, 0.6) + rng.normal(0, np.sqrt(vy))
    zx = zx + rng.normal(0, np.sqrt(vx))
    mx, sx = pm.Normal("mx", 0, 2), pm.HalfNormal("sx", 2)
    b0, b1, s = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 2), pm.HalfNormal("s", 2)
    if form == "integrated":  # zx, and zy given it
        wide, mean = sx**2 + vx, b0 + b1 * (mx + sx**2 / (sx**2 + vx) * (zx - mx))
        pm.Normal("zx", mx, pt.sqrt(wide), observed=zx)
        return pm.Normal("zy", mean, pt.sqrt(s**2 + vy + b1**2 * sx**2 * vx / wide), observed=zy)
    x = pm.Normal("x", mx, sx, shape=n)
    y = pm.Normal("y", b0 + b1 * x, s, shape=n) if form == OURS else b0 + b1 * x
    publish(form, "Gaussian", np.sqrt(vx), x, zx, "zx")
    if form == OURS:
        return publish(form, "Gaussian", np.sqrt(vy), y, zy, "zy")
    return pm.Normal("zy", y, pt.sqrt(s**2 + vy), observed=zy)


@row("SOMA-regression", "beta sigma2", "records", "standard records", limit=30, draws=QUICK,
     paper="0.12 ESS / s, SOMA's own code")  # fmt: skip
def soma(form, n=100, epsilon=1.0):
    """Release nine sums of clamped covariates and response (Xiong & Ju, 2025)."""
    rng = np.random.default_rng(15)
    scale, reach = 13 / (n * epsilon), 6.0

    def products(x, y):
        u, y = x.clip(-reach, reach) / reach, y.clip(-reach, reach) / reach
        u, v = u[:, 0], u[:, 1]
        return [w.mean() for w in (y, u * y, v * y, y * y, u, v, u * u, u * v, v * v)]

    x = rng.normal(size=(n, 2))
    y = rng.normal(x @ [1.0, -1.0], 1)
    z = noisy(rng, "Laplace", scale, np.array(products(x, y)))
    sigma2 = pm.InverseGamma("sigma2", 10, 10)
    beta = pm.Normal("beta", 0, pt.sqrt(2 * sigma2), shape=3)
    x = pm.Normal("x", 0, 1, shape=(n, 2))
    mean, sd = beta[0] + x @ beta[1:], pt.sqrt(sigma2)
    if form == "standard records":
        y = mean + sd * pm.Normal("e", shape=n)
    else:
        y = pm.Normal("y", mean, sd, shape=n)
    publish(form, "Laplace", scale, pt.stack(products(x, y)), z)


# Counts and categories.


@row("table-2x2", "p", "convolved")
def table(form, n=200):
    """Release the four counts of 200 persons."""
    rng = np.random.default_rng(10)
    z = noisy(rng, "Geometric", 2.0, rng.multinomial(n, [0.4, 0.3, 0.2, 0.1]))
    p = pm.Dirichlet("p", np.ones(4))
    if form == OURS:
        return publish(form, "Geometric", 2.0, pm.Multinomial("counts", n, p), z)
    # The sum over all tables with n records is a convolution over the cells: of Poisson masses, as
    # the factor n each cancels.
    k = np.arange(n + 1)
    logs = k * pt.log(n * p)[:, None] + poisson.logpmf(k, 1) - np.abs(k - z[:, None]) / 2.0
    top = logs.max(axis=-1, keepdims=True)
    w, lag = pt.exp(logs - top), k[:, None] - k
    pairs = ((w[::2][:, np.maximum(lag, 0)] * (lag >= 0)) * w[1::2, None]).sum(axis=-1)
    return pm.Potential("z", pt.log((pairs[0] * pairs[1, ::-1]).sum()) + top.sum())


@row("two-way-marginals", "p", "Normal (approximate)", draws=(2000, 500), limit=60)
def marginals(form, shape=(4, 3, 4), n=2000):
    """Release all two-way marginals of a table of 48 cells."""
    rng = np.random.default_rng(16)
    cells = np.arange(np.prod(shape)).reshape(shape)
    M = np.concatenate(
        [
            (np.moveaxis(cells, axis, -1).reshape(-1, shape[axis])[..., None]
             == np.arange(cells.size)).any(axis=1)
            for axis in range(3)
        ]
    ).astype(int)  # fmt: skip
    counts = rng.multinomial(n, rng.dirichlet(np.ones(cells.size)))
    z = noisy(rng, "Gaussian", 10.0, M @ counts)
    p = pm.Dirichlet("p", np.ones(cells.size))
    if form == OURS:
        return publish(form, "Gaussian", 10.0, M @ pm.Multinomial("counts", n, p), z)
    mean = M @ p
    cov = n * ((M * p) @ M.T - mean[:, None] * mean) + 100 * np.eye(len(M))
    return pm.MvNormal("z", n * mean, cov=cov, observed=z)


@row("adult", "rows", draws=(1000, 1000), limit=60)
def columns(form, n=46_043, sigma=25.0):
    """Release ten two-way margins of ten columns, with the levels of Adult."""
    levels = {
        "age": 5, "workclass": 8, "education": 16, "marital": 7, "race": 5, "sex": 2, "gain": 2,
        "loss": 2, "hours": 5, "income": 2,
    }  # fmt: skip
    pairs = [("age", c) for c in ("income", "marital", "workclass")] + [("race", "sex")]
    pairs += [(c, "income") for c in ("education", "race", "sex", "gain", "loss", "hours")]
    rng, rows = np.random.default_rng(18), {}
    strength = rng.normal(size=n)
    for name, count in levels.items():
        score = 0.8 * strength + rng.normal(size=n)
        ends = np.linspace(0, 1, count + 1)[1:-1] ** 0.5
        rows[name] = np.searchsorted(np.quantile(score, ends), score)
    counted = dp.LogLinear("rows", levels, pairs, n)
    for pair in pairs:
        truth = np.zeros([levels[c] for c in pair])
        np.add.at(truth, tuple(rows[c] for c in pair), 1)
        z = noisy(rng, "Gaussian", sigma, truth)
        publish(form, "Gaussian", sigma, counted.margin(*pair), z, name=" x ".join(pair))


@row("tracts", "county", "continuous counts (approximate)", draws=(400, 200), limit=120)
def tracts(form, kinds=24, counties=6, width=25, n=600_000):
    """Release counts of 24 kinds of people in 150 tracts, in their counties and in the state."""
    rng = np.random.default_rng(19)
    state = rng.multinomial(n, rng.dirichlet(np.full(kinds, 0.6)))
    county = rng.multinomial(state, rng.dirichlet(np.full(counties, 3.0), kinds))
    tract = rng.multinomial(county, rng.dirichlet(np.full(width, 4.0), (kinds, counties)))
    p = pm.Dirichlet("p", np.ones(kinds))
    q = pm.Dirichlet("q", np.ones((kinds, counties)))
    r = pm.Dirichlet("r", np.ones((kinds, counties, width)))
    if form == OURS:
        levels = [pm.Multinomial("state", n, p)]
        levels.append(pm.Multinomial("county", levels[0], q))
        levels.append(pm.Multinomial("tract", levels[1], r))
    else:  # with flat priors of the shares, the shares of the counts are nearly Dirichlet, too
        levels = [n * p, pm.Deterministic("county", n * p[:, None] * q)]
        levels.append(levels[1][..., None] * r)
    for counts, truth, sd in zip(levels, (state, county, tract), (3.0, 6.0, 12.0), strict=True):
        z = noisy(rng, "DiscreteGaussian", sd, truth)
        publish(form, "DiscreteGaussian", sd, counts, z, name=f"z{truth.ndim}")


@row("poisson-latents", "a b", "summed", "integrated", draws=(3000, 2000), limit=30)
def latents(form, n=200):
    """Release 200 counts, each of a rate of its own."""
    rng = np.random.default_rng(17)
    z = noisy(rng, "Geometric", 2.0, rng.poisson(rng.gamma(3, 2, n)))
    a, b = pm.Gamma("a", 2, 0.5), pm.Gamma("b", 2, 2)
    if form == "integrated":
        return summed_alike("Geometric", 2.0, z, pm.NegativeBinomial.dist(mu=a / b, alpha=a))
    rate = pm.Gamma("rate", a, b, shape=n)
    return poisson_counts(form, "Geometric", 2.0, pt.log(rate), z)


@row("areas", "level b s", *BOTH, draws=(300, 150), limit=60)
@row("areas-ICAR", "level b s", "summed", draws=(300, 150), limit=60)
def areas(form, shape=(50, 60), neighbours=False):
    """Release counts of 3,000 areas, of a Poisson regression with effects."""
    rng, n = np.random.default_rng(12), shape[0] * shape[1]
    expected, x = rng.gamma(4, 3, n), rng.normal(size=n)
    truth = expected * np.exp(0.1 + 0.3 * x + rng.normal(0, 0.4, n))
    level, b, s = pm.Normal("level", 0, 1), pm.Normal("b", 0, 1), pm.HalfNormal("s", 1)
    if neighbours:
        place = np.indices(shape).reshape(2, -1)
        near = np.abs(place[:, :, None] - place[:, None]).sum(axis=0) == 1
        u = s * pm.ICAR("phi", W=near.astype(int))
    else:
        u = effects(form, 0, s, n)
    z = noisy(rng, "DiscreteGaussian", 4.0, rng.poisson(truth))
    poisson_counts(form, "DiscreteGaussian", 4.0, np.log(expected) + level + b * x + u, z)


@row("walk", "s", *BOTH)
def walk(form, n=100):
    """Release counts along a random walk."""
    rng = np.random.default_rng(3)
    truth = np.exp(3 + rng.normal(0, 0.1, n).cumsum())
    s = pm.HalfNormal("s", 1)
    if form == "non-centred":
        steps = pt.cumsum(pm.Normal("raw", shape=n - 1))
        w = pm.Normal("start", 3, 2) + s * pt.concatenate([[0.0], steps])
    else:
        w = pm.GaussianRandomWalk("w", sigma=s, init_dist=pm.Normal.dist(3, 2), shape=n)
    poisson_counts(form, "Geometric", 2.0, w, noisy(rng, "Geometric", 2.0, rng.poisson(truth)))


@row("Bernoulli-groups", "level tau", *BOTH)
def shares(form, J=12):
    """Release the numbers of ones of 12 groups."""
    rng = np.random.default_rng(5)
    sizes, group = members(rng, J)
    M = summing(group)
    z = rng.binomial(sizes, 1 / (1 + np.exp(-rng.normal(-0.5, 0.8, J))))
    z = noisy(rng, "Geometric", 2.0, z)
    theta = effects(form, pm.Normal("level", 0, 1.5), pm.HalfNormal("tau", 1), J)
    if form == OURS:
        y = pm.Bernoulli("y", logit_p=theta[group], shape=group.size)
        return publish(form, "Geometric", 2.0, M.astype(int) @ y, z)
    logit, n = theta[:, None], sizes[:, None]
    rest = n * pt.softplus(logit)
    return summed("Geometric", 2.0, z, lambda k: k * logit - rest + binom.logpmf(k, n, 0.5))


@row("Exponential-groups", "level tau", *BOTH, "non-centred, standard sums", draws=QUICK)
def durations(form, J=12):
    """Release the sums of the Exponential records of 12 groups."""
    rng = np.random.default_rng(6)
    sizes, group = members(rng, J)
    M = summing(group)
    z = noisy(rng, "Laplace", 5.0, rng.gamma(sizes, np.exp(rng.normal(0.7, 0.4, J))))
    rate = pt.exp(-effects(form, pm.Normal("level", 0, 1.5), pm.HalfNormal("tau", 1), J))
    if form == OURS:
        total = M @ pm.Exponential("x", rate[group], shape=group.size)
    else:
        standard = form.endswith("standard sums")
        total = pm.Gamma("g", sizes, 1) / rate if standard else pm.Gamma("g", sizes, rate)
    publish(form, "Laplace", 5.0, total, z)


@row("zero-inflated", "psi mu", "summed")
def zeros(form, n=200):
    """Release 200 zero-inflated counts."""
    rng = np.random.default_rng(9)
    z = noisy(rng, "Geometric", 2.0, rng.poisson(4, n) * rng.binomial(1, 0.6, n))
    psi, mu = pm.Beta("psi", 2, 2), pm.Gamma("mu", 2, 0.5)
    if form == OURS:
        publish(form, "Geometric", 2.0, pm.ZeroInflatedPoisson("x", psi, mu, shape=n), z)
    else:
        summed_alike("Geometric", 2.0, z, pm.ZeroInflatedPoisson.dist(psi, mu))


@row("randomized-response", "theta", "reports", draws=QUICK)
@row("randomized-response-8", "theta", "reports", J=8, n=4000, draws=QUICK)
def answers(form, J=6, K=4, t=0.6, n=1000):
    """Report one of four answers each, of persons in some groups, by randomized response."""
    rng = np.random.default_rng(18)
    group = rng.integers(0, J, n)
    law = rng.dirichlet([4, 3, 2, 1], J)
    T = np.full((K, K), (1 - t) / (K - 1)) + np.eye(K) * (t - (1 - t) / (K - 1))
    z = (rng.random(n)[:, None] > (law @ T)[group].cumsum(axis=1)).sum(axis=1).clip(0, K - 1)
    theta = pm.Dirichlet("theta", np.ones(K), shape=(J, K))
    if form == OURS:
        x = pm.Categorical("x", theta[group], shape=n)
        dp.PrivateObservation("z", x, dp.RandomizedResponse(t, categories=K), observed=z)
    else:
        counts = np.array([np.bincount(z[group == g], minlength=K) for g in range(J)])
        pm.Multinomial("z", counts.sum(axis=1), theta @ T, observed=counts)


@row("four-questions", "p", "reports", limit=40)
def questions(form, Q=4, t=0.8, n=2000):
    """Report four answers each, changed one by one: a table of 16 cells."""
    rng = np.random.default_rng(24)
    bits = (np.arange(2**Q)[:, None] >> np.arange(Q)) & 1
    z = bits[rng.choice(2**Q, n, p=rng.dirichlet(np.ones(2**Q)))]
    z = np.where(rng.random(z.shape) < t, z, 1 - z)
    p = pm.Dirichlet("p", np.ones(2**Q))
    if form == OURS:
        x = pm.Categorical("x", p, shape=n)
        answers = pt.as_tensor(bits)[x]
        dp.PrivateObservation("z", answers, dp.RandomizedResponse(t), observed=z)
    else:
        same = (bits[:, None] == bits).sum(axis=-1)
        counts = np.bincount(z @ 2 ** np.arange(Q), minlength=2**Q)
        pm.Multinomial("z", n, p @ (t**same * (1 - t) ** (Q - same)), observed=counts)


@row("logistic-answers-400", "b", "reports", n=400, draws=QUICK)
@row("logistic-answers-100000", "b", "reports", n=100_000, draws=(500, 200), limit=120)
def logistic(form, n, t=0.75):
    """Report yes or no by randomized response, of persons with three covariates."""
    rng = np.random.default_rng(25)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    x = rng.random(n) < 1 / (1 + np.exp(-X @ [-0.5, 1.0, -0.7, 0.3]))
    z = np.where(rng.random(n) < t, x, ~x).astype(int)
    b = pm.Normal("b", 0, 1.5, shape=4)
    if form == OURS:
        x = pm.Bernoulli("x", logit_p=X @ b, shape=n)
        dp.PrivateObservation("z", x, dp.RandomizedResponse(t), observed=z)
    else:
        pm.Bernoulli("z", 1 - t + (2 * t - 1) * pm.math.sigmoid(X @ b), observed=z)


@row("time-use", "theta", "records", draws=(300, 100), limit=120)
def time_use(form, n=6656, epsilon=1.0):
    """Release the means of clamped logarithms of three shares of the day (Xiong & Ju, 2025)."""
    rng, least = np.random.default_rng(19), 0.0006944
    scale = 3 * 7.27 / (n * epsilon)
    shares = rng.dirichlet([2.5, 1.1, 3.2], n)
    z = noisy(rng, "Laplace", scale, np.log(shares.clip(least, 1)).mean(axis=0))
    theta = pm.Gamma("theta", 1, 0.1, shape=3)
    x = pm.Dirichlet("x", theta, shape=(n, 3))
    publish(form, "Laplace", scale, pt.log(x.clip(least, 1)).mean(axis=0), z)


@row("factorization", "rates", "summed", draws=(500, 300), limit=30,
     paper="553 ns a cell a sweep, Schein et al.'s code (measured by us)")  # fmt: skip
def factors(form, shape=(30, 20), K=3):
    """Release a table of counts of a Poisson factorization; the rates of its corner."""
    rng = np.random.default_rng(20)
    true = rng.gamma(1, 1, (shape[0], K)) @ rng.gamma(1, 2, (K, shape[1]))
    z = noisy(rng, "Geometric", 2.0, rng.poisson(true))
    theta = pm.Gamma("theta", 1, 1, shape=(shape[0], K))
    rate = theta @ pm.Gamma("phi", 1, 0.5, shape=(K, shape[1]))
    pm.Deterministic("rates", rate[:4, :4])  # the components have no order
    if form == OURS:
        publish(form, "Geometric", 2.0, pm.Poisson("x", rate, shape=shape), z)
    else:
        poisson_counts(form, "Geometric", 2.0, pt.log(rate).flatten(), z.ravel())
