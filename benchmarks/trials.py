"""Models that people write: `dp.sample` beside the best exact model that one would write by hand.

``python -m benchmarks.trials [ROW ...] [--draws 1000] [--limit 120]`` runs the rows that are
named, by default all, which takes an hour or two; ``--list`` names them. By hand, what was released
is a latent variable, or is integrated out in closed form or by a sum where that is known, and
nutpie samples, with a target_accept of 0.9 where it diverges otherwise. Each variant has a process
of its own, in which the call is made twice; the second is timed, in CPU time. ESS is that of the
slowest hyperparameter, the same ones on both sides. Ours is divided by the best variant by hand
whose R-hat is below 1.02. z is the largest difference of posterior means and standard deviations
from those of that variant, in Monte Carlo standard errors.
"""

import argparse
import logging
import multiprocessing
import resource
import signal
import time
import warnings
from functools import cache
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import normal_lcdf
from rich.console import Console
from scipy.stats import binom, poisson

import pymc_dp as dp

CONVERGED, Z = 1.02, 4.0
BOTH = ("centred", "non-centred")


class Row(NamedTuple):
    """A model, in the form for dp.sample and in those by hand, and what is compared."""

    build: Any
    ours: str
    by_hand: tuple[str, ...]
    names: tuple[str, ...]


ROWS: dict[str, Row] = {}


def row(name: str, names: str, *by_hand: str, ours: str = "", **arguments):
    """Register a builder under a name, with hyperparameters and what it can write by hand."""

    def register(write):
        build = builder(write, **arguments)
        ROWS[name] = Row(build, f"ours, {ours}".rstrip(", "), by_hand, tuple(names.split()))
        return write

    return register


@cache  # so that rows of the same models share what is measured by hand
def builder(write, **arguments):
    def build(form):
        with pm.Model() as model:
            write(form, **arguments)
        return model

    return build


# Noise: of data, released or observed by hand, and summed over or integrated out by hand.


def noisy(rng, noise, scale, values):
    """Add noise to data."""
    if noise == "Geometric":
        one, other = rng.geometric(1 - np.exp(-1 / scale), (2, len(values)))
        return values + one - other
    if noise == "DiscreteGaussian":
        return values + rng.normal(0, scale, np.shape(values)).round().astype(int)
    return values + (rng.laplace if noise == "Laplace" else rng.normal)(0, scale, np.shape(values))


def publish(form, noise, scale, released, z, name="z"):
    """Release a statistic, or observe by hand a variable that stands for it."""
    if form.startswith("ours"):
        mechanism = getattr(dp, f"{noise}Mechanism")(scale)
        dp.PrivateObservation(name, released, mechanism, observed=z)
    else:
        (pm.Laplace if noise == "Laplace" else pm.Normal)(name, released, scale, observed=z)


def log_noise(noise, scale, k):
    return -np.abs(k) / scale if noise == "Geometric" else -(k**2) / (2 * scale**2)


def summed(noise, scale, eta, rest, base, z):
    """Observe by hand counts of density exp(k eta - rest + base(k)), summed over those near z."""
    reach = int(scale * (20 if noise == "Geometric" else 6))  # noise below 2e-8
    k = z[:, None] + np.arange(-reach, reach + 1)
    terms = k * eta[:, None] + base(k) + log_noise(noise, scale, k - z[:, None])
    pm.Potential("z", (pm.math.logsumexp(terms, axis=1).flatten() - rest).sum())


def poisson_counts(form, noise, scale, eta, z):
    if form.startswith("ours"):
        publish(form, noise, scale, pm.Poisson("x", pt.exp(eta), shape=len(z)), z)
    else:
        summed(noise, scale, eta, pt.exp(eta), lambda k: poisson.logpmf(k, 1), z)


def binomial_counts(noise, scale, logit, n, z):
    summed(
        noise, scale, logit, n * pt.softplus(logit), lambda k: binom.logpmf(k, n[:, None], 0.5), z
    )


def laplace_normal(d, sd, b):
    """Log density, at a distance d from the mean, of a Normal variable plus Laplace noise."""
    right, left = normal_lcdf(0, 1, -d / sd - sd / b), normal_lcdf(0, 1, d / sd - sd / b)
    return (sd / b) ** 2 / 2 + pt.logaddexp(left - d / b, right + d / b) - np.log(2 * b)


def noisy_normal(form, noise, scale, mean, sd, z):
    """Observe by hand Normal variables under noise."""
    if noise == "Gaussian":
        pm.Normal("z", mean, pt.sqrt(sd**2 + scale**2), observed=z)
    elif "convolved" in form:
        pm.Potential("z", laplace_normal(z - mean, sd, scale).sum())
    else:
        y = mean + sd * pm.Normal("e", shape=len(z)) if "non" in form else pm.Normal("y", mean, sd)
        publish(form, noise, scale, y, z)


def effects(form, level, spread, shape):
    if "non-centred" in form:
        return level + spread * pm.Normal("raw", shape=shape)
    return pm.Normal("theta", level, spread, shape=shape)


def members(rng, groups):
    """Return sizes of groups, the group of each record, and the matrix that sums them up."""
    sizes = rng.integers(20, 60, groups)
    group = np.repeat(np.arange(groups), sizes)
    return sizes, group, np.eye(groups)[group].T


# The models. Each function writes the form that is asked for, on the same data.


def rows_of_means(write):
    for noise, more in (("Laplace", ("y alone", "y alone, non-centred")), ("Gaussian", ())):
        for ours in (*BOTH, "elementwise, non-centred", "matrix, centred", "product, centred"):
            name = f"means-{noise}-{ours.split(',')[0]}"
            forms = (*BOTH, *more, "convolved")
            row(name, "level tau s", *forms, ours=ours, noise=noise, equal="matrix" in ours)(write)
    return write


@rows_of_means
def means(form, noise, equal, J=50):
    """Noisy means of 50 groups; a matrix has as many records in each."""
    rng = np.random.default_rng(3)
    sizes, group, M = members(rng, J)
    sizes = np.full(J, 40) if equal else sizes
    z = noisy(rng, noise, 0.3, rng.normal(rng.normal(5, 2, J), 3 / np.sqrt(sizes)))
    level, tau, s = pm.Normal("level", 0, 10), pm.HalfNormal("tau", 5), pm.HalfNormal("s", 5)
    sd = s / np.sqrt(sizes)
    if "alone" in form or "convolved" in form:  # the effects integrated out
        return noisy_normal(form, noise, 0.3, level, pt.sqrt(tau**2 + sd**2), z)
    theta = effects(form, level, tau, J)
    if not form.startswith("ours"):
        return noisy_normal(form, noise, 0.3, theta, sd, z)
    if "elementwise" in form:
        y = pm.Normal("y", theta, sd)
    elif "matrix" in form:
        y = pm.Normal("x", theta[:, None], s, shape=(J, 40)).mean(axis=1)
    else:
        x = pm.Normal("x", theta[group], s, shape=group.size)
        y = M / sizes[:, None] @ x if "product" in form else pt.zeros(J)[group].inc(x) / sizes
    return publish(form, noise, 0.3, y, z)


@row("clipped-means", "level tau s", *BOTH, "non-centred, standard records")
def clipped(form, J=50):
    rng = np.random.default_rng(3)
    sizes, group, M = members(rng, J)
    data = rng.normal(rng.normal(5, 2, J)[group], 3).clip(0, 10)
    z = noisy(rng, "Laplace", 0.3, M @ data / sizes)
    level, tau, s = pm.Normal("level", 0, 10), pm.HalfNormal("tau", 5), pm.HalfNormal("s", 5)
    theta = effects(form, level, tau, J)[group]
    if "standard" in form:
        x = theta + s * pm.Normal("e", shape=group.size)
    else:
        x = pm.Normal("x", theta, s, shape=group.size)
    publish(form, "Laplace", 0.3, pt.zeros(J)[group].inc(x.clip(0, 10)) / sizes, z)


@row("design-Gaussian", "beta s", "convolved", "rotated", noise="Gaussian", squares=False)
@row("design-Laplace", "beta s", *BOTH, noise="Laplace", squares=False)
@row("design-squares", "beta s", *BOTH, noise="Gaussian", squares=True)
def design(form, noise, squares, n=500):
    """X'y, and y'y, of public covariates."""
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(n), rng.uniform(-1, 1, n), rng.normal(size=n)])
    y, G = X @ [0.5, 0.3, -0.8] + rng.normal(0, 0.9, n), X.T @ X
    z = noisy(rng, noise, 5.0, np.append(X.T @ y, [y @ y] * squares))
    beta, s = pm.Normal("beta", 0, 2, shape=3), pm.HalfNormal("s", 2)
    if form == "rotated":
        values, Q = np.linalg.eigh(G)
        return noisy_normal(form, noise, 5.0, Q.T @ G @ beta, s * np.sqrt(values), Q.T @ z)
    if form == "convolved":
        return pm.MvNormal("z", G @ beta, cov=G * s**2 + 25 * np.eye(3), observed=z)
    if form.startswith("ours"):
        y = pm.Normal("y", X @ beta, s, shape=n)
        t, last = X.T @ y, y @ y
    else:  # X'y, and what y'y holds beyond it
        root = np.linalg.cholesky(G)
        if form == "non-centred":
            t = G @ beta + s * (root @ pm.Normal("e", shape=3))
        else:
            t = pm.MvNormal("t", G @ beta, chol=s * root)
        last = t @ np.linalg.inv(G) @ t
        last += s**2 * pm.ChiSquared("rest", n - 3) if squares else 0
    return publish(form, noise, 5.0, pt.concatenate([t, [last]]) if squares else t, z)


@row("regression-groups", "a0 tau b s mx sx", *BOTH)
def regression(form, J=12, n=42):
    """Five noisy sums of the confidential x and y of each of 12 groups."""
    rng = np.random.default_rng(4)
    x = rng.normal(1, 1, (J, n))
    y = rng.normal(rng.normal(2, 0.7, (J, 1)) + 0.5 * x, 0.8)
    z = noisy(rng, "Laplace", 3.0, np.ravel([v.sum(axis=1) for v in (x, x**2, y, x * y, y**2)]))
    mx, sx = pm.Normal("mx", 0, 2), pm.HalfNormal("sx", 2)
    a0, tau, b = pm.Normal("a0", 0, 3), pm.HalfNormal("tau", 2), pm.Normal("b", 0, 2)
    s = pm.HalfNormal("s", 2)
    a = effects(form, a0, tau, J)
    if form.startswith("ours"):
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


@row("arms", "p", "summed")
def arms(form, n=1100):
    """Release the sums of the two arms of an experiment together."""
    p, z = pm.Beta("p", 1, 1, shape=2), np.array([118, 143])
    if form.startswith("ours"):
        a, b = (pm.Bernoulli(name, p[i], shape=n) for i, name in enumerate("ab"))
        publish(form, "Geometric", 2.0, pt.stack([a.sum(), b.sum()]), z)
    else:
        binomial_counts("Geometric", 2.0, pm.math.logit(p), np.array([n, n]), z)


@row("Bernoulli-groups", "level tau", *BOTH)
def shares(form, J=12):
    rng = np.random.default_rng(5)
    sizes, group, M = members(rng, J)
    z = rng.binomial(sizes, 1 / (1 + np.exp(-rng.normal(-0.5, 0.8, J))))
    z = noisy(rng, "Geometric", 2.0, z)
    theta = effects(form, pm.Normal("level", 0, 1.5), pm.HalfNormal("tau", 1), J)
    if form.startswith("ours"):
        y = pm.Bernoulli("y", logit_p=theta[group], shape=group.size)
        publish(form, "Geometric", 2.0, M.astype(int) @ y, z)
    else:
        binomial_counts("Geometric", 2.0, theta, sizes, z)


@row("Exponential-groups", "level tau", *BOTH, "non-centred, standard sums")
def durations(form, J=12):
    rng = np.random.default_rng(6)
    sizes, group, M = members(rng, J)
    z = noisy(rng, "Laplace", 5.0, rng.gamma(sizes, np.exp(rng.normal(0.7, 0.4, J))))
    rate = pt.exp(-effects(form, pm.Normal("level", 0, 1.5), pm.HalfNormal("tau", 1), J))
    if form.startswith("ours"):
        total = M @ pm.Exponential("x", rate[group], shape=group.size)
    else:
        standard = "standard" in form
        total = pm.Gamma("g", sizes, 1) / rate if standard else pm.Gamma("g", sizes, rate)
    publish(form, "Laplace", 5.0, total, z)


@row("Exponential-clipped", "rate", "records", "standard records")
def clipped_sum(form, n=500):
    rng = np.random.default_rng(7)
    z = rng.exponential(2, n).clip(0, 5).sum() + rng.laplace(0, 5)
    rate, standard = pm.Gamma("rate", 2, 1), "standard" in form
    x = pm.Exponential("x", 1 if standard else rate, shape=n)
    publish(form, "Laplace", 5.0, (x / rate if standard else x).clip(0, 5).sum(), z)


@row("Weibull", "alpha scale", "records", "standard records")
def weibull(form, n=500):
    """Release a clipped mean and a share."""
    rng = np.random.default_rng(8)
    data, noise = 1.5 * rng.weibull(1.4, n), [0.03, 0.01]
    z = noisy(rng, "Laplace", noise, np.array([data.clip(0, 3).mean(), (data > 2).mean()]))
    alpha, scale = pm.Gamma("alpha", 4, 2), pm.Gamma("scale", 4, 2)
    if "standard" in form:
        x = scale * pm.Exponential("e", 1, shape=n) ** (1 / alpha)
    else:
        x = pm.Weibull("x", alpha, scale, shape=n)
    publish(form, "Laplace", noise, pt.stack([x.clip(0, 3).mean(), (x > 2).mean()]), z)


@row("zero-inflated", "psi mu", "summed")
def zeros(form, n=200):
    rng = np.random.default_rng(9)
    z = noisy(rng, "Geometric", 2.0, rng.poisson(4, n) * rng.binomial(1, 0.6, n))
    psi, mu, k = pm.Beta("psi", 2, 2), pm.Gamma("mu", 2, 0.5), np.arange(100)
    if form.startswith("ours"):
        publish(form, "Geometric", 2.0, pm.ZeroInflatedPoisson("x", psi, mu, shape=n), z)
    else:  # once for those that are alike
        values, times = np.unique(z, return_counts=True)
        terms = log_noise("Geometric", 2.0, values[:, None] - k)
        terms += pm.logp(pm.ZeroInflatedPoisson.dist(psi, mu), k)
        pm.Potential("z", (times * pm.math.logsumexp(terms, axis=1).flatten()).sum())


@row("Dirichlet-multinomial", "a", "convolved", "convolved given the proportions")
def tables(form, J=12, n=40):
    """Release counts of 12 groups in four cells, under a Dirichlet law to be learned."""
    rng = np.random.default_rng(10)
    counts = np.array([rng.multinomial(n, p) for p in rng.dirichlet([4, 3, 2, 1], J)])
    z, k = noisy(rng, "DiscreteGaussian", 3.0, counts), np.arange(n + 1)
    a, joint = pm.Gamma("a", 2, 0.5, shape=4), 0.0
    if form == "convolved":
        logs = pt.gammaln(k + a[:, None]) - pt.gammaln(a)[:, None]
        joint = J * (pt.gammaln(a.sum()) - pt.gammaln(n + a.sum()))
    else:
        p = pm.Dirichlet("p", a, shape=(J, 4))
        logs = k * pt.log(p)[..., None]
    if form.startswith("ours"):
        counts = pm.Multinomial("counts", n, p, shape=(J, 4))
        return publish(form, "DiscreteGaussian", 3.0, counts, z)
    # The sum over all tables with n records is a convolution over the cells.
    logs += poisson.logpmf(k, 1) + log_noise("DiscreteGaussian", 3.0, k - z[..., None])
    top = logs.max(axis=-1, keepdims=True)
    w, lag = pt.exp(logs - top), k[:, None] - k
    shifted = w[:, ::2][..., np.maximum(lag, 0)] * (lag >= 0)
    pairs = (shifted * w[:, 1::2, None]).sum(axis=-1)
    total = pt.log((pairs[:, 0] * pairs[:, 1, ::-1]).sum(axis=1))
    return pm.Potential("z", total.sum() + top.sum() + joint)


@row("logistic", "beta", "PyMC's own steps")
def logistic(form, n=500):
    """X'y of binary outcomes with public covariates."""
    rng = np.random.default_rng(11)
    X = np.column_stack([np.ones(n), rng.uniform(-1, 1, n), rng.normal(size=n)])
    y = rng.binomial(1, 1 / (1 + np.exp(-X @ [0.2, 1.0, -0.7])))
    beta = pm.Normal("beta", 0, 1.5, shape=3)
    released = X.T @ pm.Bernoulli("y", logit_p=X @ beta, shape=n)
    publish(form, "Laplace", 5.0, released, noisy(rng, "Laplace", 5.0, X.T @ y))


@row("walk", "s", *BOTH, ours="centred")
def walk(form, n=100):
    rng = np.random.default_rng(3)
    truth = np.exp(3 + rng.normal(0, 0.1, n).cumsum())
    s = pm.HalfNormal("s", 1)
    if form == "non-centred":
        steps = pt.cumsum(pm.Normal("raw", shape=n - 1))
        w = pm.Normal("start", 3, 2) + s * pt.concatenate([[0.0], steps])
    else:
        w = pm.GaussianRandomWalk("w", sigma=s, init_dist=pm.Normal.dist(3, 2), shape=n)
    poisson_counts(form, "Geometric", 2.0, w, noisy(rng, "Geometric", 2.0, rng.poisson(truth)))


@row("areas", "level b s", *BOTH, neighbours=False)
@row("areas-ICAR", "level b s", "summed", neighbours=True)
def areas(form, neighbours, shape=(50, 60)):
    """Poisson regression over 3,000 areas."""
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


@row("HSGP", "level eta ell", "summed")
def curve(form, n=60):
    rng, t = np.random.default_rng(13), np.linspace(0, 1, n)
    z = noisy(rng, "Geometric", 2.0, rng.poisson(np.exp(2.5 + 0.6 * np.sin(7 * t))))
    level, eta, ell = pm.Normal("level", 2, 1), pm.HalfNormal("eta", 1), pm.InverseGamma("ell", 5)
    cov = eta**2 * pm.gp.cov.ExpQuad(1, ell)
    f = pm.gp.HSGP(m=[20], c=1.5, cov_func=cov).prior("f", t[:, None])
    poisson_counts(form, "Geometric", 2.0, level + f, z)


@row("public-private", "mu s", *BOTH, "convolved, non-centred")
def public(form, n=500):
    """Public records beside a noisy mean and variance of private ones."""
    rng = np.random.default_rng(14)
    known, x, scale = rng.normal(1, 2, 50), rng.normal(1, 2, n), np.array([0.1, 0.5])
    z = noisy(rng, "Laplace", scale, np.array([x.mean(), x.var(ddof=1)]))
    mu, s = pm.Normal("mu", 0, 5), pm.HalfNormal("s", 5)
    pm.Normal("known", mu, s, observed=known)
    if form.startswith("ours"):
        x = pm.Normal("x", mu, s, shape=n)
        return publish(form, "Laplace", scale, pt.stack([x.mean(), x.var(ddof=1)]), z)
    noisy_normal(form, "Laplace", scale[0], mu, s / np.sqrt(n), z[:1])
    if form == "centred":
        var = pm.Gamma("var", (n - 1) / 2, (n - 1) / (2 * s**2))
    else:
        var = s**2 * pm.ChiSquared("rest", n - 1) / (n - 1)
    return publish(form, "Laplace", scale[1], var, z[1], "z2")


@row("unknown-number", "rate mean spread", "summed")
def unknown(form, number=203, total=1030.5):
    rate = pm.Gamma("rate", 2, 0.01)
    mean, spread = pm.Normal("mean", 5, 5), pm.HalfNormal("spread", 5)
    if form.startswith("ours"):
        n = pm.Poisson("n", rate)
        publish(form, "Geometric", 2.0, n, number, "count")
        publish(form, "Laplace", 20.0, pm.Normal("x", mean, spread, shape=n).sum(), total)
    else:
        n = number + np.arange(-80, 81)
        law = n * pt.log(rate) - rate + poisson.logpmf(n, 1)
        law += log_noise("Geometric", 2.0, n - number)
        law += laplace_normal(total - n * mean, spread * np.sqrt(n), 20.0)
        pm.Potential("z", pm.math.logsumexp(law).sum())


# What is measured.


def measure(pipe, build, form, names, draws, limit) -> None:
    """Send what the second of two calls gave, or what went wrong."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(2 * limit), resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    log, said = logging.getLogger("pymc"), [""]
    log.setLevel(logging.INFO)
    log.handlers = [handler := logging.Handler()]
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    options: dict[str, Any] = dict(draws=draws, tune=draws, chains=2, cores=1, random_seed=1)
    options |= dict(progressbar=False, compute_convergence_checks=False)
    try:
        model = build(form)
        sample = dp.sample if form.startswith("ours") else pm.sample
        if not form.startswith("ours") and not model.discrete_value_vars:
            options["nuts_sampler"] = "nutpie"
        for _ in range(2):
            began = time.process_time()
            with model:
                tree = sample(**options)
            found: dict[str, Any] = {"seconds": time.process_time() - began}
            stats = tree["sample_stats"] if "sample_stats" in tree.children else {}
            found["diverged"] = int(np.sum(stats["diverging"])) if "diverging" in stats else 0
            if found["diverged"] and not form.startswith("ours"):
                options["target_accept"] = 0.9
        posterior = tree["posterior"]
        routes = [text[7:] for text in said if text.startswith("Route: ")]
        found["route"] = routes[-1] if routes else options.get("nuts_sampler", "PyMC")
        found["sampling"] = posterior.attrs.get("sampling_time", np.nan)
        each = [np.reshape(posterior[name].to_numpy(), (2, draws, -1)) for name in names]
        found["draws"] = np.moveaxis(np.concatenate(each, axis=2), 2, 0)
        found["ess"] = min(float(az.ess(x)) for x in found["draws"])
        found["rhat"] = max(float(az.rhat(x)) for x in found["draws"])
        found["rate"] = found["ess"] / found["seconds"]
        pipe.send(found)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}".split("\n")[0][:200])


@cache
def variant(build, form: str, names: tuple[str, ...], draws: int, limit: float) -> Any:
    """Measure in a process of its own, for two calls of the limit of CPU seconds each at most."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    arguments = (there, build, form, names, draws, limit)
    process = context.Process(target=measure, args=arguments, daemon=True)
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        late = process.exitcode == -signal.SIGXCPU
        return f"over {2 * limit:.0f} CPU s for two calls" if late else "the process died"
    finally:
        process.kill()
        process.join()


def difference(ours, other) -> float:
    """Return the z-score of means and standard deviations that is farthest from zero."""
    scores = []
    for x, y in zip(ours, other, strict=True):
        for method, value in (("mean", np.mean), ("sd", np.std)):
            one, two = (float(az.mcse(v, method=method)) for v in (x, y))
            scores.append(float(value(x) - value(y)) / np.hypot(one, two))
    return max(scores, key=abs)


def run(names: list[str], draws: int = 1000, limit: float = 120) -> None:
    """Print the table, each line as soon as it is known."""
    print("| row | form | route | ESS | R-hat | div. | CPU s | sampling s | ESS / CPU s |", end="")
    print(" ours / by hand | z |\n|" + " --- |" * 11, flush=True)
    for name in names:
        build, ours, by_hand, parameters = ROWS[name]
        best: Any = None
        for form in (*by_hand, ours):
            found = variant(build, form, parameters, draws, limit)
            if isinstance(found, str):
                print(f"| {name} | {form} | {found} |" + " |" * 8, flush=True)
                continue
            last = " | "
            if form != ours:
                mixed = found["rhat"] < CONVERGED
                if mixed and (best is None or found["rate"] > best["rate"]):
                    best = found
                last = " | " if mixed else "not converged | "
            elif best is not None:
                z = difference(found["draws"], best["draws"])
                last = f"{found['rate'] / best['rate']:.2f} | {z:.1f}{' !' if abs(z) > Z else ''}"
            text = "{route} | {ess:,.0f} | {rhat:.3f} | {diverged} | {seconds:.2f} | {sampling:.2f}"
            print(f"| {name} | {form} | {text.format(**found)} |", end="")
            print(f" {found['rate']:,.1f} | {last} |", flush=True)


def main(console: Console) -> None:
    """Print the whole table."""
    run(list(ROWS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="by default all")
    parser.add_argument("--draws", type=int, default=1000, help="as many again for tuning")
    parser.add_argument("--limit", type=float, default=120, help="CPU seconds a call")
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args()
    if options.list:
        print(*ROWS, sep="\n")
    elif wrong := [name for name in options.rows if name not in ROWS]:
        parser.error(f"unknown row {wrong[0]!r}: {', '.join(ROWS)}")
    else:
        run(options.rows or list(ROWS), options.draws, options.limit)
