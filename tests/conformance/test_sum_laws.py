"""Every law of sums: its rungs have the law of what is released of simulated records.

A row is a law of records, cells, a statistic and a mechanism. Simulated records are the reference
of all: the statistics of the rung "statistics" have their law, the density of the rung "marginal"
is the mean of the noise over them, exactly where the law is scipy's, and integrates to one, its
draws are theirs, what is recovered is what the release leaves of them, and other spellings have
the same density.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import sparse as pts
from scipy import sparse, special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.ladder.check import Releases
from pymc_dp.reading.model import mechanism_of, release_statistic, releases
from tests.fuzz import exact
from tests.fuzz.judging import beside

N, G = 12, np.repeat([0, 1, 3], [3, 7, 2])  # of the four groups one is empty
MEMBER = np.eye(4)[G].T
SIZES = np.array([3, 7, 2])  # of those that are not
X = np.linspace(-1, 1, N)
THREE = np.minimum(G, 2)
A = np.array([0.3, 0.6, 0.8])
OVERLAP = np.array([np.ones(N), np.arange(N) < 5, np.arange(N) > 2]) * 1.0
DESIGN = np.stack([np.ones(N), X])
NESTED = np.vstack([MEMBER[[0, 1, 3]], np.ones(N), 0.5 * X])
OTHER = np.arange(N) % 2  # groups across the first
DRAWS, RECOVERED = 3_000, 800


class Row(NamedTuple):
    """Records and what is released of them, as written in a model.

    Attributes
    ----------
    records : writes the records, from priors with the names in `theta`.
    theta : parameters, at which all is compared.
    statistic : of the records; more than one are spellings of it.
    mechanism : of a width that is multiplied by `noise`, of the order of the statistic's spread.
    shown : names in results, of what function of the statistic.
    rungs : those that there are.
    laws : scipy's of the entries that vary, given theta, and what they are of those values if not
        these; or one of all entries, of Normal values.
    """

    records: Callable[[], Any]
    theta: dict[str, Any]
    statistic: tuple[Callable, ...]
    mechanism: Any
    noise: Any
    shown: dict[str, Callable] | None = None
    rungs: str = "statistics marginal"
    laws: Callable | None = None


def each(s):
    return s


def in_groups(x):
    return pt.zeros(4)[G].inc(x)


GROUPS = (
    in_groups,
    lambda x: MEMBER @ x,
    lambda x: pt.stack([x[g == G].sum() for g in range(4)]),
    lambda x: (MEMBER * x).sum(axis=1),
    lambda x: pt.stack([pt.where(g == G, x, 0).sum() for g in range(4)]),
    lambda x: pt.bincount(G, weights=x, minlength=4),
)


def by_sparse_matrix(x):  # not known to be whole
    return pts.dot(pts.as_sparse_variable(sparse.csr_matrix(MEMBER)), x) * np.ones(4)


TOTAL = (lambda x: x.sum(), lambda x: x.mean() * N, lambda x: np.ones(N) @ x)
LAPLACE, GAUSSIAN, GEOMETRIC = dp.LaplaceMechanism, dp.GaussianMechanism, dp.GeometricMechanism


def normal(mean=None):
    def write():
        mu = pm.Normal("mu", shape=3)[THREE] if mean is None else mean()
        return pm.Normal("x", mu, pm.HalfNormal("s"), shape=N)

    return write


def pair_of_columns():
    x = pm.Normal("x", pm.Normal("m"), 1.0, shape=N)
    return x, pm.Normal("y", 0.5 + pm.Normal("b") * x, pm.HalfNormal("s"), shape=N)


def columns_by_group():
    x = pm.Normal("x", pm.Normal("m"), 1.0, shape=N)
    return x, pm.Normal("y", 0.5 + pm.Normal("b", shape=2)[np.arange(N) // 6] * x, 0.7, shape=N)


def of_unknown_number(records=lambda n: pm.Normal("x", pm.Normal("mu"), 1.0, shape=n)):
    n = pm.Poisson("n", 6)
    dp.PrivateObservation("size", n, GEOMETRIC(2.0), observed=pm.Data("size_released", 5))
    return records(n)


def clipped(pmf):
    """Masses of a count clipped to [0, 3]."""
    below = pmf(np.arange(3))
    return np.append(below, 1 - below.sum())


def truncated(pmf):
    """Masses of a count that is not zero."""
    return lambda k: np.where(k > 0, pmf(k) / (1 - pmf(0)), 0.0)


def added(p, n):
    """The law of a sum of n draws of 0, 1, ... with these masses."""
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, p)
    return stats.rv_discrete(values=(np.arange(law.size), law / law.sum()))()


def chi2(n, s):
    """The law of a variance of n Normal records."""
    return stats.gamma((n - 1) / 2, scale=2 * s**2 / (n - 1))


def gaussian(weights, mean, s, noise, constant=0.0):
    """The law of weighted sums of Normal records, with Normal noise."""
    covariance = weights * s**2 @ weights.T + noise**2 * np.eye(len(weights))
    return stats.multivariate_normal(weights @ mean + constant, covariance)


def moments(x):
    return pt.stack([x.mean(), x.var(ddof=1)])


ROWS = {
    "Normal, moments": Row(
        normal(lambda: pm.Normal("mu")), {"mu": 0.4, "s": 1.3},
        (moments, lambda x: [x.sum() / N, ((x - x.mean()) ** 2).sum() / (N - 1)]),
        LAPLACE, [0.3, 0.5], {"x_mean": lambda s: s[:, 0], "x_var": lambda s: s[:, 1]},
        laws=lambda mu, s: [stats.norm(mu, s / N**0.5), chi2(N, s)],
    ),
    "Normal, sums of groups": Row(
        normal(), {"mu": A, "s": 1.3}, (*GROUPS, by_sparse_matrix), LAPLACE, 2.0, {"x_sum": each},
        laws=lambda mu, s: [*map(stats.norm, SIZES * mu, s * SIZES**0.5)],
    ),
    "Normal, moments of groups": Row(
        normal(), {"mu": A, "s": 1.3},
        (
            lambda x: [f(x[own]) for f in (pt.mean, lambda v: v.var(ddof=1))
                       for own in (slice(0, 3), slice(3, 10))],
            lambda x: pt.stack([x[:3].mean(), x[3:10].mean(), 1.5 * x[:3].var(),
                                x[3:10].var() * 7 / 6]),
            lambda x: pt.stack([moments(x[:3]), moments(x[3:10])]).T,
            lambda x: pt.stack([x[:3].mean(), x[3:10].mean(), x[:3].var(ddof=1),
                                x[3:10].var(ddof=1)]).reshape((2, 2)),
        ),
        LAPLACE, 0.6, {"x_mean": lambda s: s[:, :2], "x_var": lambda s: s[:, 2:]},
        laws=lambda mu, s: [*map(stats.norm, mu[:2], s / SIZES[:2] ** 0.5), chi2(3, s),
                            chi2(7, s)],
    ),
    "Normal, sums that overlap": Row(
        normal(), {"mu": A, "s": 1.3},
        (lambda x: pt.stack([x.sum(), x[:5].sum(), x[3:].sum()]),
         lambda x: OVERLAP @ x),
        GAUSSIAN, 3.0, {"x_sum": each},
        laws=lambda mu, s: gaussian(OVERLAP, mu[THREE], s, 3.0),
    ),
    "Normal, weighted": Row(
        normal(), {"mu": A, "s": 1.3}, (lambda x: X @ x + 2, lambda x: (X * x).sum() + 2),
        LAPLACE, 2.0, {"z_confidential": each},
        laws=lambda mu, s: [stats.norm(X @ mu[THREE] + 2, s * (X @ X) ** 0.5)],
    ),
    "Normal, design": Row(
        normal(lambda: pm.Normal("a") + pm.Normal("b") * X), {"a": 0.4, "b": 1.0, "s": 1.3},
        (lambda x: pt.stack([x.sum(), X @ x, (x**2).sum()]),
         lambda x: [x.mean() * N, (X * x).sum(), x @ x]),
        LAPLACE, 4.0, rungs="statistics",
    ),
    "Normal, one by one": Row(
        normal(), {"mu": A, "s": 1.3}, (lambda x: x,), GAUSSIAN, 1.5, {"x": each}, "marginal",
        laws=lambda mu, s: [stats.norm(m, s) for m in mu[THREE]],
    ),
    "Normal, means and constants": Row(
        normal(), {"mu": A, "s": 1.3},
        (lambda x: MEMBER @ x / [3, 7, 1, 2] + [5, 5, 8, 5],), LAPLACE, 0.5,
        {"x_mean": lambda s: s - [5, 5, 8, 5]},
        laws=lambda mu, s: [*map(stats.norm, mu + 5, s / SIZES**0.5)],
    ),
    "Normal, X'y": Row(
        normal(lambda: pm.Normal("a") + pm.Normal("b") * X), {"a": 0.4, "b": 1.0, "s": 1.3},
        (lambda x: DESIGN @ x,), GAUSSIAN, 2.0,
        laws=lambda a, b, s: gaussian(DESIGN, a + b * X, s, 2.0),
    ),
    "Normal, nested sums": Row(
        lambda: pm.Normal("x", pm.Normal("mu", shape=3)[THREE] - 2 * pm.Normal("b") * X + 0.1,
                          pm.HalfNormal("s", shape=3)[THREE], shape=N),
        {"mu": A, "b": 0.4, "s": A + 0.5}, (lambda x: NESTED @ x + 3,), GAUSSIAN, 2.0,
        laws=lambda mu, b, s: gaussian(NESTED, mu[THREE] - 2 * b * X + 0.1, s[THREE], 2.0, 3),
    ),
    "Normal, crossed groups": Row(
        lambda: pm.Normal("x", pm.Normal("mu", shape=3)[THREE] + pm.Normal("b", shape=2)[OTHER],
                          pm.HalfNormal("s", shape=2)[OTHER] * np.arange(1.0, N + 1), shape=N),
        {"mu": A, "b": A[:2], "s": A[:2]}, (lambda x: (MEMBER * X)[[0, 1, 3]] @ x,), GAUSSIAN, 2.0,
        laws=lambda mu, b, s: gaussian((MEMBER * X)[[0, 1, 3]], mu[THREE] + b[OTHER],
                                       s[OTHER] * np.arange(1.0, N + 1), 2.0),
    ),
    "rows": Row(
        pair_of_columns, {"m": 0.3, "b": 0.8, "s": 0.6},
        (lambda x, y: pt.stack([x.sum(), y.sum(), (x * y).sum(), (x * x).sum(), (y * y).sum()]),
         lambda x, y: [x.mean() * N, y.sum(), x @ y, (x**2).sum(), y @ y]),
        LAPLACE, 4.0, rungs="statistics",
    ),
    "rows by group": Row(
        columns_by_group, {"m": 0.3, "b": A[:2]},
        (lambda x, y: [f(x[own], y[own]) for own in (slice(0, 6), slice(6, N))
                       for f in (lambda u, v: u @ v, lambda u, v: u @ u)],),
        LAPLACE, 4.0, rungs="statistics",
    ),
    "rows one by one": Row(
        pair_of_columns, {"m": 0.3, "b": 0.8, "s": 0.6},
        (lambda x, y: pt.stack([x, y], axis=1), lambda x, y: pt.stack([x, y]).T,
         lambda x, y: pt.concatenate([x[:, None], (y + 2 - 2)[:, None]], axis=1)),
        GAUSSIAN, 3.0, {"x": lambda s: s[:, ::2], "y": lambda s: s[:, 1::2]}, "marginal",
        laws=lambda m, b, s: stats.multivariate_normal(
            np.tile([m, 0.5 + b * m], N),
            np.kron(np.eye(N), [[10, b], [b, b**2 + s**2 + 9]]),
        ),
    ),
    "Bernoulli, sum": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N), {"p": 0.3}, TOTAL,
        GEOMETRIC, 1.5, {"x_count": each},
        laws=lambda p: [stats.binom(N, p)],
    ),
    "Bernoulli, function of the count": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N), {"p": 0.3},
        (lambda x: x.mean() ** 2, lambda x: (x.sum() / N) ** 2), LAPLACE, 0.1,
        {"x_count": lambda s: N * np.sqrt(s)},
        laws=lambda p: [(stats.binom(N, p), lambda k: (k / N) ** 2)],
    ),
    "Bernoulli, groups": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A}, GROUPS,
        GEOMETRIC, 1.0, {"x_count": each},
        laws=lambda p: [*map(stats.binom, SIZES, p)],
    ),
    "Bernoulli, several chances": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A}, TOTAL,
        LAPLACE, 1.5, {"x_sum": each},
        laws=lambda p: [stats.poisson_binom(p[THREE])],
    ),
    "Bernoulli, sums that overlap": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A},
        (lambda x: pt.stack([x.sum(), x[:5].sum()]),), GEOMETRIC, 1.0,
    ),
    "Bernoulli, one by one": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N), {"p": 0.3}, (lambda x: x,),
        dp.RandomizedResponse, 0.8, {"x_count": lambda s: s.sum(axis=1)}, "marginal",
        laws=lambda p: [stats.binom(1, p)] * N,
    ),
    "Bernoulli, shares": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A},
        (lambda x: 1 - MEMBER[[0, 1, 3]] @ x / SIZES,), LAPLACE, 0.2,
        {"x_count": lambda s: (1 - s) * SIZES},
        laws=lambda p: [(stats.binom(n, q), lambda k, n=n: 1 - k / n)
                        for n, q in zip(SIZES, p, strict=True)],
    ),
    "Bernoulli, means of several chances": Row(
        lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A},
        (lambda x: pt.concatenate([x.reshape((2, 6)).mean(axis=1) + 0.5, pt.zeros(1) + 2.0]),),
        LAPLACE, 0.1,
        laws=lambda p: [(stats.poisson_binom(q), lambda k: k / 6 + 0.5)
                        for q in p[THREE].reshape((2, 6))],
    ),
    "Bernoulli, of kinds": Row(
        lambda: pm.Bernoulli("x", pm.math.invlogit(pm.Normal("a") + pm.Normal("b") * OTHER),
                             shape=N), {"a": 0.3, "b": -0.7},
        (lambda x: pt.stack([x.sum(), OTHER @ x]), lambda x: [x.mean() * N, (OTHER * x).sum()]),
        LAPLACE, 1.5, {"x_count": lambda s: np.column_stack([s[:, 0] - s[:, 1], s[:, 1]])},
    ),
    "Binomial, groups alike": Row(
        lambda: pm.Binomial("x", 3, pm.Beta("p", 1, 1), shape=N), {"p": 0.3},
        (lambda x: pt.stack([x[:6].sum(), x[6:].sum()]),), GEOMETRIC, 1.5, {"x_sum": each},
        laws=lambda p: [stats.binom(18, p)] * 2,
    ),
    "Binomial, one by one": Row(
        lambda: pm.Binomial("x", 3, pm.Beta("p", 1, 1), shape=N), {"p": 0.3}, (lambda x: x,),
        GEOMETRIC, 1.5, {"x": each}, "marginal", laws=lambda p: [stats.binom(3, p)] * N,
    ),
    "zero-inflated, one by one": Row(
        lambda: pm.ZeroInflatedPoisson("x", pm.Beta("p", 1, 1), pm.Gamma("r", 1, 1), shape=N),
        {"p": 0.7, "r": 2.5}, (lambda x: x,), GEOMETRIC, 0.9, {"x": each}, "marginal",
        laws=lambda p, r: [stats.rv_discrete(values=(
            np.arange(60), p * stats.poisson(r).pmf(np.arange(60)) + (1 - p) * np.eye(60)[0]
        ))()] * N,
    ),
    "Categorical, histogram": Row(
        lambda: pm.Categorical("x", pm.Dirichlet("p", np.ones(3)), shape=N),
        {"p": [0.2, 0.3, 0.5]},
        (lambda x: pt.stack([pt.eq(x, k).sum() for k in range(3)]),
         lambda x: pt.bincount(x, minlength=3)),
        GEOMETRIC, 1.5, rungs="statistics",
    ),
    "Binomial, groups": Row(
        lambda: pm.Binomial("x", 4, pm.Beta("p", 1, 1, shape=3)[THREE], shape=N), {"p": A}, GROUPS,
        LAPLACE, 2.0, {"x_sum": each},
        laws=lambda p: [*map(stats.binom, 4 * SIZES, p)],
    ),
    "Poisson, groups": Row(
        lambda: pm.Poisson("x", pm.Gamma("r", 1, 1, shape=3)[THREE] * (2 + X), shape=N), {"r": A},
        GROUPS, GEOMETRIC, 2.0, {"x_sum": each},
        laws=lambda r: [*map(stats.poisson, MEMBER[[0, 1, 3]] @ (r[THREE] * (2 + X)))],
    ),
    "negative binomial, groups": Row(
        lambda: pm.NegativeBinomial("x", pm.Gamma("r", 1, 1, shape=3)[THREE], 2.0, shape=N),
        {"r": A}, GROUPS, GEOMETRIC, 2.0, {"x_sum": each},
        laws=lambda r: [*map(stats.nbinom, 2 * SIZES, 2 / (2 + r))],
    ),
    "Exponential, groups": Row(
        lambda: pm.Exponential("x", pm.Gamma("r", 1, 1, shape=3)[THREE], shape=N), {"r": A}, GROUPS,
        LAPLACE, 3.0, {"x_sum": each},
        laws=lambda r: [stats.gamma(n, scale=1 / v) for n, v in zip(SIZES, r, strict=True)],
    ),
    "Gamma, sum": Row(
        lambda: pm.Gamma("x", 0.7, pm.Gamma("r", 1, 1), shape=N), {"r": 1.2}, TOTAL,
        GAUSSIAN, 2.0, {"x_sum": each},
        laws=lambda r: [stats.gamma(0.7 * N, scale=1 / r)],
    ),
    "two variables": Row(
        lambda: (pm.Poisson("x", pm.Gamma("r", 1, 1), shape=5),
                 pm.Normal("y", pm.Normal("m"), 1.3, shape=7)),
        {"r": 1.2, "m": 0.4},
        (lambda x, y: pt.stack([x.sum(), y[:4].sum(), y[4:].sum()]),
         lambda x, y: [np.ones(5) @ x, 4 * y[:4].mean(), y[4:].sum()]),
        LAPLACE, 2.0, {"x_sum": lambda s: s[:, 0], "y_sum": lambda s: s[:, 1:]},
        laws=lambda r, m: [stats.poisson(5 * r), stats.norm(4 * m, 2.6),
                           stats.norm(3 * m, 1.3 * 3**0.5)],
    ),
    "two variables, empty groups": Row(
        lambda: (pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=5),
                 pm.Normal("y", pm.Normal("m"), 1.3, shape=7)),
        {"p": 0.4, "m": 0.4},
        (lambda x, y: pt.concatenate([pt.zeros(3)[[0, 0, 0, 1, 1]].inc(x),
                                      pt.zeros(3)[[0, 0, 2, 2, 2, 2, 2]].inc(y)]),),
        LAPLACE, 2.0, {"x_count": lambda s: s[:, :3], "y_sum": lambda s: s[:, 3:]},
        laws=lambda p, m: [stats.binom(3, p), stats.binom(2, p), stats.norm(2 * m, 1.3 * 2**0.5),
                           stats.norm(5 * m, 1.3 * 5**0.5)],
    ),
    "two variables, one by kinds": Row(
        lambda: (pm.Poisson("y", pm.Gamma("r", 1, 1), shape=5),
                 pm.Bernoulli("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N)),
        {"r": 1.2, "p": A},
        (lambda y, x: pt.stack([x.sum(), y.sum(), x[3:].sum() + 2]),), LAPLACE, 2.0,
        rungs="statistics",
    ),
    "Beta, by inversion": Row(
        lambda: pm.Beta("x", 2.0, pm.Gamma("b", 1, 1), shape=N), {"b": 1.5}, TOTAL,
        LAPLACE, 0.8, {"x_sum": each}, "marginal",
    ),
    "clipped, by inversion": Row(
        lambda: pm.Normal("x", pm.Normal("mu"), 1.0, shape=N), {"mu": 0.4},
        (lambda x: x.clip(-1, 1).sum(), lambda x: pt.minimum(pt.maximum(x, -1), 1).mean() * N),
        LAPLACE, 2.0, {"z_confidential": each}, "marginal",
    ),
    "Beta, groups by inversion": Row(
        lambda: pm.Beta("x", 2.0, pm.Gamma("b", 1, 1, shape=3)[THREE], shape=N), {"b": A + 1},
        GROUPS, GAUSSIAN, 0.8, {"x_sum": each}, "marginal",
    ),
    "Poisson, clipped": Row(
        lambda: pm.Poisson("x", pm.Gamma("r", 1, 1), shape=N), {"r": 1.7},
        (lambda x: x.clip(0, 3).sum(), lambda x: np.ones(N) @ pt.minimum(x, 3),
         lambda x: pt.constant([0, 1, 2, 3])[x.clip(0, 3)].sum()),
        LAPLACE, 2.0, {"z_confidential": each}, "marginal",
        laws=lambda r: [added(clipped(stats.poisson(r).pmf), N)],
    ),
    "zero-inflated, clipped": Row(
        lambda: pm.ZeroInflatedPoisson("x", pm.Beta("p", 1, 1), pm.Gamma("r", 1, 1), shape=N),
        {"p": 0.7, "r": 2.5}, (lambda x: x.clip(0, 3).sum(),), GEOMETRIC, 1.5,
        {"z_confidential": each}, "marginal",
        laws=lambda p, r: [added(p * clipped(stats.poisson(r).pmf) + (1 - p) * np.eye(4)[0], N)],
    ),
    "hurdle, clipped by group": Row(
        lambda: pm.HurdlePoisson("x", 0.7, pm.Gamma("r", 1, 1, shape=3)[THREE], shape=N), {"r": A},
        (lambda x: MEMBER @ x.clip(0, 3) - MEMBER.sum(axis=1),), GEOMETRIC, 1.5,
        {"z_confidential": each}, "marginal",
        laws=lambda r: [
            (added(0.3 * np.eye(4)[0] + 0.7 * clipped(truncated(stats.poisson(v).pmf)), n),
             lambda k, n=n: k - n) for n, v in zip(SIZES, r, strict=True)
        ],
    ),
    "mixture, clipped": Row(
        lambda: pm.Mixture("x", [0.3, 0.7], [pm.NegativeBinomial.dist(pm.Gamma("r", 1, 1), 2.0),
                                             pm.Geometric.dist(0.4)], shape=N),
        {"r": 1.2}, (lambda x: (0.5 * x.clip(0, 3)).sum() + 1,), GAUSSIAN, 1.0,
        {"z_confidential": each}, "marginal",
        laws=lambda r: [(added(
            0.3 * clipped(stats.nbinom(2, 2 / (2 + r)).pmf) + 0.7 * clipped(stats.geom(0.4).pmf), N
        ), lambda k: 0.5 * k + 1)],
    ),
    "Categorical, by a table": Row(
        lambda: pm.Categorical("x", pm.Dirichlet("p", np.ones(3)), shape=N),
        {"p": [0.2, 0.3, 0.5]}, (lambda x: pt.constant([-1.5, 0.0, 6.0])[x].sum(),), LAPLACE, 2.0,
        {"z_confidential": each}, "marginal",
        laws=lambda p: [(added(np.r_[p[0], p[1], 0, 0, 0, p[2]], N), lambda k: 1.5 * (k - N))],
    ),
    "counts of unknown number, clipped": Row(
        lambda: of_unknown_number(lambda n: pm.ZeroInflatedPoisson("x", 0.7, pm.Gamma("r", 1, 1),
                                                                   shape=n)), {"r": 1.5},
        (lambda x: x.clip(0, 3).sum(), lambda x: (x.clip(0, 3) - 0.3).sum() + 0.3 * x.shape[0]),
        LAPLACE, 2.0, {"n": lambda s: s[:, 0], "z_confidential": lambda s: s[:, 1]}, "marginal",
    ),
    "of unknown number": Row(
        of_unknown_number, {"mu": 0.4},
        (lambda x: x.sum(), lambda x: (2 * x).sum() / 2, lambda x: (x - 1).sum() + x.shape[0]),
        LAPLACE, 2.0, {"n": lambda s: s[:, 0], "x_sum": lambda s: s[:, 1]}, "marginal",
    ),
    "of no records": Row(
        normal(), {"mu": A, "s": 1.3}, (lambda x: x[G == 2].sum() + 3,), LAPLACE, 1.0,
        {"z_confidential": each}, "marginal",
        laws=lambda mu, s: [],
    ),
}  # fmt: skip
TOGETHER = {  # entries with one density
    "Bernoulli, sums that overlap", "Bernoulli, of kinds", "of unknown number",
    "counts of unknown number, clipped",
}  # fmt: skip
DRAWN_ONE_BY_ONE = {"zero-inflated, one by one"}  # too few to tell
SLOW_TO_DRAW = {"hurdle, clipped by group", "counts of unknown number, clipped", "rows by group"}
SLOW = {"Beta, groups by inversion", "Beta, by inversion", "clipped, by inversion"}  # to compile


def of_rung(rung):
    return [
        pytest.param(name, marks=[pytest.mark.nightly] if name in SLOW and rung else [])
        for name, row in ROWS.items()
        if rung in row.rungs
    ]


def written(name, spelling=0):
    row = ROWS[name]
    with pm.Model() as model:
        records = row.records()
        z = row.statistic[spelling](*(records if isinstance(records, tuple) else [records]))
        z = pt.as_tensor(z)
        z = pt.stack(z) if isinstance(z, list) else z
        zeros = np.zeros(z.type.shape)
        if row.mechanism in (GEOMETRIC, dp.RandomizedResponse):
            zeros = zeros.astype(int)
        released = pm.Data("z_released", zeros)
        dp.PrivateObservation("z", z, row.mechanism(row.noise), observed=released)
    return model


@cache
def simulated(name, rung="") -> np.ndarray:
    """Draw what is released: a row a draw, with the entries of all releases."""
    model = written(name)
    on = dp.collapse(model, rung) if rung else model
    given = pm.do(on, {k: np.asarray(v) for k, v in ROWS[name].theta.items()})
    graphs = [
        release_statistic(rv).astype("float64").ravel()
        for rv in (given[r.name] for r in releases(model))
    ]
    with pm.Model():
        found = pm.draw(pt.concatenate(graphs), DRAWS, random_seed=bool(rung) + 1, mode=PLAIN_MODE)
    return found


@cache
def noise_density(name):
    """Return the log density of all releases, by their values and rows of statistics."""
    mine = releases(written(name))
    z, s = pt.dvector("z"), pt.dmatrix("s")
    total, at = pt.zeros(s.shape[0]), 0
    for rv in mine:
        shape = rv.type.shape
        own = slice(at, at := at + int(np.prod(shape)))
        each_one = mechanism_of(rv).logp(
            z[own].reshape(shape).astype(rv.dtype), s[:, own].reshape((-1, *shape))
        )
        total += each_one.reshape((s.shape[0], -1)).sum(axis=1)
    return pytensor.function([z, s], total, mode=PLAIN_MODE)


def publish(model, z):
    """Set what was released, of all releases."""
    at = 0
    for data in (model[name] for name in model.named_vars if name.endswith("_released")):
        before = data.get_value()
        own = z[at : (at := at + before.size)]
        data.set_value(own.reshape(before.shape).astype(before.dtype))


def marginal(name, spelling=0, z=None):
    """Return the rung "marginal" with the parameters given, and the log densities of releases."""
    model = written(name, spelling)
    if z is not None:
        publish(model, z)
    theta = {k: np.asarray(v) for k, v in ROWS[name].theta.items()}
    given = pm.do(dp.collapse(model, "marginal"), theta)
    found = [given[rv.name] for rv in releases(model) if rv.name in given.named_vars]
    assert len(found) == len(given.basic_RVs)  # nothing is latent
    return given, given.logp(vars=found, sum=False, jacobian=False)


def log_marginal(name, z, spelling=0):
    _, logps = marginal(name, spelling, z)
    return sum(np.sum(x) for x in pytensor.function([], logps, mode=PLAIN_MODE)())


def releases_to_try(name):
    """Near the middle of what is released, and away from it."""
    s = simulated(name)
    points = s.mean(axis=0) + np.array([[0.0], [1.0], [-1.5]]) * (s.std(axis=0) + 0.1)
    if ROWS[name].mechanism is dp.RandomizedResponse:
        return (np.arange(N) < np.array([[2], [5], [9]])) * 1.0
    discrete = [rv.dtype.startswith("int") for rv in releases(written(name))]
    return np.round(points) if any(discrete) else points


@pytest.mark.parametrize("name", of_rung("statistics"))
def test_statistics_have_the_law_of_those_of_records(name):
    expected, found = simulated(name), simulated(name, "statistics")
    for samples in zip(expected.T, found.T, strict=True):
        pvalue = stats.ks_2samp(*np.round(samples, 9), method="asymp").pvalue
        assert np.isnan(pvalue) or pvalue > 1e-4  # both are the same number
    spread = expected.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    first, second = (np.cov((s / spread).T).ravel() for s in (expected, found))
    np.testing.assert_allclose(first, second, atol=0.2)


def exactly(name, z):
    """Return the log density of releases, of the laws of a row."""
    row, s = ROWS[name], simulated(name)
    laws = row.laws(**row.theta)
    if not isinstance(laws, list):
        return laws.logpdf(z)
    laws, total = iter(laws), 0.0
    for z_j, s_j, width in zip(z, s.T, np.broadcast_to(row.noise, z.shape), strict=True):
        law = next(laws) if s_j.std() > 0 else stats.randint(s_j[0], s_j[0] + 1)
        law, of = law if isinstance(law, tuple) else (law, each)

        def noise(value, at=z_j, of=of, width=width):
            graph = row.mechanism(width).logp(np.float64(at), pt.as_tensor(of(value) * 1.0))
            return graph.eval(mode=PLAIN_MODE)

        total += exact.of_value(law, noise, z_j, width)[0]
    return total


@pytest.mark.parametrize("name", [p for p in of_rung("marginal") if ROWS[p.values[0]].laws])
def test_the_marginal_is_that_of_the_law(name):
    for z in releases_to_try(name):
        np.testing.assert_allclose(log_marginal(name, z), exactly(name, z), rtol=1e-8)


@pytest.mark.parametrize("name", of_rung(""))
def test_densities_agree_with_the_oracle(name, night):
    if name in SLOW_TO_DRAW and not night:
        pytest.skip("slow to draw: by night")
    row, model, rng = ROWS[name], written(name), np.random.default_rng(5)
    point = [np.asarray(v) for v in row.theta.values()]
    oracle = Releases(model, [*row.theta], written=True)
    told, rungs = set(), row.rungs.split()
    if row.laws and not night:  # the marginal is compared with them
        rungs = [rung for rung in rungs if rung != "marginal"]
    for z in releases_to_try(name)[: None if night and not row.laws else 1]:
        publish(model, z)
        for rung in rungs:
            density = Releases(dp.collapse(model, rung), [*row.theta], written=False)
            for seconds in (0.3, 3.0):  # some releases are rare
                values = [density.observed()], oracle, [oracle.observed()]
                found, expected, error = beside(density, *values, point, rng, seconds)
                if error < 0.25:
                    assert abs(found - expected) < 5 * error + 1e-6, (rung, z)
                    told.add(rung)
                if rung in told:
                    break
    assert told == {*rungs} or name in DRAWN_ONE_BY_ONE


@pytest.mark.by_day(
    "Normal, means and constants", "Bernoulli, several chances", "Bernoulli, function of the count",
    "Bernoulli, of kinds", "two variables", "Binomial, groups alike", "Normal, sums that overlap",
)  # fmt: skip
@pytest.mark.parametrize("name", [p for p in of_rung("marginal") if p.values[0][:3] != "of "])
def test_draws_of_the_marginal_are_releases(name):
    drawn, model = [], written(name)
    for on in (model, dp.collapse(model, "marginal")):
        given = pm.do(on, {k: np.asarray(v) for k, v in ROWS[name].theta.items()})
        found = pt.concatenate([given[rv.name].ravel() for rv in releases(model)])
        with pm.Model():
            drawn.append(pm.draw(found, 1_000, random_seed=4 + len(drawn), mode=PLAIN_MODE))
    for samples in zip(*(d.T for d in drawn), strict=True):
        assert stats.ks_2samp(*samples, method="asymp").pvalue > 1e-4


@pytest.mark.parametrize(
    "name",
    [p for p in of_rung("marginal") if not (ROWS[p.values[0]].laws or p.values[0] in TOGETHER)],
)
def test_the_marginal_integrates_to_one(name):
    row, s = ROWS[name], simulated(name)
    model, logps = marginal(name)
    density = pytensor.function([], logps, mode=PLAIN_MODE)
    step = 1.0 if model["z_released"].dtype.startswith("int") else 0.04 * np.min(row.noise)
    far = 12 * s.std(axis=0).max() + 20 * np.max(row.noise)
    grid = np.arange(-np.ceil(far / step), far / step + 1) * step
    mass = 0.0
    for at in np.round(s.mean(axis=0)) + grid[:, None]:
        publish(model, at)
        mass += step * np.exp(np.concatenate([np.ravel(x) for x in density()]))
    assert mass.size == s.shape[1]
    np.testing.assert_allclose(mass, 1.0, atol=2e-3)


@pytest.mark.parametrize("name", [p for p in of_rung("") if ROWS[p.values[0]].shown])
def test_what_is_recovered_is_what_the_release_leaves(name):
    row, z = ROWS[name], releases_to_try(name)[1]
    model = written(name)
    publish(model, z)
    theta = {k: np.broadcast_to(v, (1, RECOVERED, *np.shape(v))) for k, v in row.theta.items()}
    found = dp.recover(model, az.from_dict({"posterior": theta}), random_seed=3)["posterior"]
    weights = special.softmax(noise_density(name)(z, simulated(name)))
    effective = 1 / (weights**2).sum()
    for shown, function in row.shown.items():
        s = function(simulated(name)).reshape(DRAWS, -1)
        drawn = found[shown].to_numpy().reshape(RECOVERED, -1)
        mean = weights @ s
        sd = np.sqrt(weights @ (s - mean) ** 2)
        error = sd * np.sqrt(1 / effective + 1 / RECOVERED)
        np.testing.assert_array_less(abs(drawn.mean(axis=0) - mean), 5 * error + 1e-9)
        np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=8 / np.sqrt(effective), atol=1e-9)
        for expected, own in zip(s.T.round(9), drawn.T.round(9), strict=True):
            order, at = np.argsort(expected), np.concatenate([expected, own])
            mass = np.append(0.0, np.cumsum(weights[order]))
            below = mass[np.searchsorted(expected[order], at, "right")]
            share = np.searchsorted(np.sort(own), at, "right") / RECOVERED
            # Kolmogorov's distance, passed by one of a hundred thousand of the same law.
            assert abs(share - below).max() < 2.5 * np.sqrt(1 / effective + 1 / RECOVERED)


SPELLINGS = [
    pytest.param(name, k, marks=[pytest.mark.nightly] if name in SLOW else [])
    for name, row in ROWS.items()
    for k in range(1, len(row.statistic))
    if "marginal" in row.rungs
]


@pytest.mark.parametrize(("name", "spelling"), SPELLINGS)
def test_spellings_have_one_density(name, spelling):
    for z in releases_to_try(name):
        found, expected = (log_marginal(name, z, k) for k in (spelling, 0))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def two(first, second):
    def write():
        laws = {
            "x": lambda: pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("s"), shape=N),
            "y": lambda: pm.Poisson("y", pm.Gamma("r", 1, 1), shape=5),
        }
        found = {name: laws[name]() for name in (first, second)}
        return found["x"], found["y"]

    return write


BOTH = "beside other records: write two releases"
S, M = "statistics", "marginal"


def rates(law):
    return lambda: law("x", pm.Beta("p", 1, 1, shape=3)[THREE], shape=N)


def logistic(n, covariate):
    return lambda: pm.Bernoulli(
        "x", pm.math.invlogit(pm.Normal("a") + pm.Normal("b") * covariate), shape=n
    )


def exponential(several=False):
    scale = lambda: pm.HalfNormal("s", shape=3)[THREE] if several else pm.HalfNormal("s")  # noqa: E731
    return lambda: pm.Exponential("x", scale=scale(), shape=N)


def numbered(prior=lambda: pm.Poisson("n", 50), shape=each):
    """A number of records, and these."""

    def write():
        n = prior()
        return n, pm.Normal("x", pm.Normal("mu"), 1, shape=shape(n))

    return write


def ones_of_unknown_number():
    n = pm.Poisson("n", 9)
    return n, pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=n)


def few(n, x):
    return ((x > 0) * 1.0 + (x > 1)).sum()


OF_SHAPE = lambda n, x: x.sum(), "computed from 'n': write shape=n", M
FROM_2, FROM_6 = (lambda k=k: pm.DiscreteUniform("n", k, 9) for k in (2, 6))
NO_ENDS = lambda: pm.CustomDist("n", logp=lambda v: 0 * v, random=np.zeros, dtype="int64")  # noqa: E731
REFUSED = {  # by name, on both rungs if none is told, and under Laplace noise
    "twice, beside others": (two("x", "y"), lambda x, y: [y.sum(), x.sum(), x.sum() + 1], BOTH),
    "twice, after others": (two("y", "x"), lambda x, y: [y.sum(), x.sum(), x.sum() + 1], BOTH),
    "squares beside others": (
        two("y", "x"), lambda x, y: [y.sum(), (x**2).sum()], "'x': .* one release for each variable"
    ),
    "square of a count beside others": (
        lambda: (pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N), pm.Poisson("y", 3.0, shape=5)),
        lambda x, y: [y.sum(), x.sum() ** 2], "'x': .* one release for each variable",
    ),
    "variance of one record": (normal(), lambda x: [x.sum(), x[:1].var()], "a group has 1"),
    "covariates beside others": (
        lambda: (pm.Bernoulli("x", pm.math.invlogit(pm.Normal("a") + X), shape=N),
                 pm.Poisson("y", pm.Gamma("r", 1, 1), shape=5)),
        lambda x, y: [x.sum(), y.sum()], "'x' with different parameters",
    ),
    "of pm.Data": (normal(), lambda x: pm.Data("w", X) @ x, "'w', which pm.set_data may change"),
    "each times pm.Data": (
        lambda: (pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N),),
        lambda x: pm.Data("w", 2.0) * x, "'w', which pm.set_data may change", S,
    ),
    "unequal weights": (
        exponential(), lambda x: MEMBER * np.arange(1, N + 1) @ x, "weighs the records 'x' uneq", S,
    ),
    "different parameters": (
        exponential(True), lambda x: pt.stack([x.sum()]),
        "adds records of 'x' with different parameters", S,
    ),
    "shared records": (
        exponential(), lambda x: [x[:4].sum(), x[2:].sum()], "use entries of 'x' more than once", S,
    ),
    "not finite": (
        normal(), lambda x: np.where(MEMBER, np.nan, 0.0) @ x, "numbers that are not finite", S
    ),
    "not linear": (
        normal(), lambda x: MEMBER @ x**3,
        "not linear in 'x': `Pow`|of sums of the records and their products|products of 3", S,
    ),
    "maximum by group": (
        normal(), lambda x: [x[:3].max(), x[:1].sum()], "linear in .x.: `Max", S
    ),
    "several groups": (
        normal(), lambda x: [x[:4].var() + x[4:].var(), x[:2].mean()], "of several groups", S
    ),
    "square of one": (
        normal(), lambda x: [x[-1:].sum() ** 2, x[:3].mean()], "squares and variances are read", S,
    ),
    "entry of no records": (
        normal(lambda: pm.Normal("mu")), lambda x: [x[:5].var(), 0 * x[5:].var() + 5],
        "an entry of the release 'z' is of no records", M, GAUSSIAN(1.0),
    ),
    "rows that are not alike": (
        lambda: pm.Normal("x", pm.Normal("m", shape=3)[:, None], 1, shape=(3, 6)),
        lambda x: x.var(axis=1, ddof=1) * (1 + pt.arange(x.shape[0])), "not alike", S,
    ),
    "NaN in a rate": (
        lambda: pm.Poisson("x", pt.exp(pm.Normal("b") * np.where(G, 1.0, np.nan)), shape=N),
        lambda x: MEMBER @ x, "NaN",
    ),
    "NaN in a mean": (
        normal(lambda: pm.Normal("b") * np.where(G, 1.0, np.nan)), lambda x: x.sum(),
        "records .x.: .* NaN", M,
    ),
    "clipped beside counts": (
        logistic(N, OTHER), lambda x: [x.sum(), OTHER @ x], "made by ClippedMechanism", S,
        LAPLACE(1.0).clipped(0, 4),
    ),
    "many states": (
        logistic(240, np.arange(240) % 3 > 0),
        lambda x: [x.sum(), (np.arange(240) % 3 > 0) @ x], "values of their counts are too many", M,
    ),
    "many kinds": (
        logistic(500, np.arange(500) // 2), lambda x: [x.sum(), np.arange(500) // 2 @ x],
        "the 500 records of 'x' in 'z' are of 250 kinds", S,
    ),
    "some of unknown number": (numbered(), lambda n, x: x[:3].sum(), "selects the records", M),
    "variance of unknown number": (numbered(), lambda n, x: x.var(), "several sums over them", M),
    "sums of unknown number": (
        numbered(), lambda n, x: [x.sum(), (x**2).sum()], "no marginal .* use to='statistics'", M
    ),
    "classes that overlap": (
        numbered(), lambda n, x: [(x < 0).sum(), (x < 1).sum()], "several classes", M
    ),
    "some of binary records of unknown number": (
        ones_of_unknown_number, lambda n, x: [n, x[:2].sum()], "not computed record by record", M
    ),
    "cumulated ones of unknown number": (
        ones_of_unknown_number, lambda n, x: [n, pt.cumsum(x).sum()], "not computed record by", M
    ),
    "classes and sums": (
        numbered(), lambda n, x: [(x < 0).sum(), x.clip(0, 1).sum()], "several sums", M
    ),
    "no release of the number": (
        numbered(lambda: pm.Poisson("n", pm.Gamma("r", 2, 0.1))), lambda n, x: x.sum(),
        "is not released", M,
    ),
    "records and their number": (
        numbered(), lambda n, x: (x + x.shape[0]).sum(), "depends on their number", M
    ),
    "clipped by their number": (
        numbered(), lambda n, x: x.clip(0, x.size).sum(), "depends on their number 'n'", M
    ),
    "too many": (numbered(lambda: pm.Poisson("n", 1e12)), lambda n, x: x.sum(), "too many", M),
    "shape n + 5": (numbered(shape=lambda n: n + 5), *OF_SHAPE),
    "shape 2 n": (numbered(shape=lambda n: 2 * n), *OF_SHAPE),
    "shape of a maximum": (numbered(shape=lambda n: pt.maximum(n, 7)), *OF_SHAPE),
    "counts of several classes": (
        numbered(FROM_6), few, "the release 'z': it counts the records 'x' in more than", M
    ),
    "distance of a number": (
        numbered(), lambda n, x: [abs(n - 9.0), x.sum()], "linear functions", M, GAUSSIAN(1.0)
    ),
    "root of a number": (
        numbered(), lambda n, x: [pt.sqrt(n), x.sum()], "linear functions", M, GAUSSIAN(1.0)
    ),
    "number without ends": (
        numbered(NO_ENDS), lambda n, x: [n, x.sum()], "with a prior such as", M, GAUSSIAN(1.0)
    ),
    "zero-inflated": (
        lambda: pm.ZeroInflatedPoisson("x", 0.3, pm.Gamma("r", 1, 1), shape=N),
        lambda x: x.sum(), "'x', whose values have no end, .* clip", M,
    ),
    "weighted counts": (
        lambda: pm.Poisson("x", pm.Gamma("r", 1, 1), shape=N),
        lambda x: X @ x.clip(0, 5), "weighs the records 'x' unequally", M,
    ),
    "counts of irrational values": (
        lambda: pm.DiscreteUniform("x", 0, 9, shape=N), lambda x: pt.sqrt(x).sum(),
        "of the records 'x' is not whole multiples of a number", M,
    ),
    "clipped at a parameter": (
        lambda: pm.Poisson("x", pm.Gamma("r", 1, 1), shape=N),
        lambda x: x.clip(0, pm.Poisson("top", 3)).sum(), "'z' mixes the records 'x' with 'top'", M,
    ),
    "unclipped counts of unknown number": (
        lambda: (n := pm.Poisson("n", 9), pm.ZeroInflatedPoisson("x", 0.3, 2.0, shape=n)),
        lambda n, x: [n, x.sum()], "'x', whose values have no end, .* clip", M,
    ),
    "number that is observed": (
        numbered(lambda: pm.Poisson("n", pm.Gamma("r", 2, 0.1), observed=12)),
        lambda n, x: x.sum(), "'n', which is observed: write this number", M, GAUSSIAN(1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        (name, rung)
        for name, case in REFUSED.items()
        for rung in (S, M)
        if rung in (*case, f"{S} {M}")[3]
    ],
)
def test_what_has_no_law_is_refused_by_name(name, rung):
    records, statistic, why, *how = REFUSED[name]
    mechanism = how[1] if len(how) > 1 else LAPLACE(1.0)
    with pm.Model() as model:
        found = records()
        z = statistic(*(found if isinstance(found, tuple) else [found]))
        z = pt.stack(z) if isinstance(z, list) else z
        zeros = np.zeros(z.type.shape, int if z.dtype.startswith("int") else float)
        dp.PrivateObservation("z", z, mechanism, observed=zeros)
    with pytest.raises((NotImplementedError, ValueError), match=why):
        dp.collapse(model, rung)


@pytest.mark.parametrize("rung", ["statistics", "marginal"])
@pytest.mark.parametrize("records", [normal(lambda: pm.Normal("mu")), two("x", "y")])
def test_a_release_without_entries_changes_nothing(records, rung):
    with pm.Model() as model:
        found = records()
        several = isinstance(found, tuple)
        released = pt.concatenate([x.sum()[None] for x in found]) if several else moments(found)
        nothing = pt.concatenate([x[:0] for x in found]) if several else found[:0]
        dp.PrivateObservation("z", released, LAPLACE(1.0), observed=np.ones(2))
        alone = dp.collapse(model, rung)
        dp.PrivateObservation("nothing", nothing, LAPLACE(1.0), observed=np.zeros(0))
    assert len(dp.collapse(model, rung).observed_RVs) == 2
    if not several:
        assert {*dp.collapse(model, rung).named_vars} == {*alone.named_vars, "nothing"}


@pytest.mark.parametrize(
    ("name", "statistic", "shown"),
    [("Bernoulli, sum", lambda x: x.sum(), "x_count"), ("Normal, moments", pt.mean, "x_mean")],
)
def test_a_list_of_one_shows_one_value_on_both_rungs(name, statistic, shown):
    with pm.Model() as model:
        x = ROWS[name].records()
        dp.PrivateObservation("z", pt.stack([statistic(x)]), LAPLACE(1.0), observed=[2.0])
    theta = {k: np.broadcast_to(v, (1, 4)) for k, v in ROWS[name].theta.items()}
    found = dp.recover(model, az.from_dict({"posterior": theta}), random_seed=3)["posterior"]
    assert found[shown].shape[2:] == dp.collapse(model, "statistics")[shown].type.shape == ()
