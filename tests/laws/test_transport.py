"""Records that move along with their parameters keep their law, there and back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType
from scipy import stats

from pymc_dp.laws.transport import transport
from tests.agreement import counts_follow

N = 20_000
PLAIN = Mode(linker="py", optimizer="fast_compile")
P_VALUE = 1e-4  # of some 70 tests with fixed seeds; a wrong coupling gives 1e-10 and less


@dataclass(frozen=True)
class Example:
    """A law, two sets of its parameters, and SciPy's version of it.

    `exact` tells how well the way there and back recovers the records; None where fresh random
    numbers are part of it.
    """

    law: Callable
    old: tuple
    new: tuple
    scipy: Callable
    exact: float | None = 1e-9


class Law:
    """A distribution given its distribution function and the inverse of it."""

    def __init__(self, cdf, ppf):
        self.cdf, self.ppf = cdf, ppf

    def rvs(self, size, random_state):
        return self.ppf(random_state.random(size))


def kumaraswamy(a, b):
    return Law(lambda x: 1 - (1 - x**a) ** b, lambda u: (1 - (1 - u) ** (1 / b)) ** (1 / a))


def truncated(law, lower, upper):
    low, high = law.cdf(lower), law.cdf(upper)
    return Law(
        lambda x: np.clip((law.cdf(x) - low) / (high - low), 0, 1),
        lambda u: law.ppf(low + u * (high - low)),
    )


def upper_part(law, lower):
    """Where the probability below says nothing."""
    return Law(
        lambda x: 1 - law.sf(np.maximum(x, lower)) / law.sf(lower),
        lambda u: law.isf((1 - u) * law.sf(lower)),
    )


def cut_exponential(rate, lower, upper):
    width = upper - lower
    return Law(
        lambda x: np.expm1(-rate * (x - lower)) / np.expm1(-rate * width),
        lambda u: lower - np.log1p(u * np.expm1(-rate * width)) / rate,
    )


def cut_laplace(m, s, lower, upper):
    """Exponential where its centre is outside."""
    if m < lower:
        return cut_exponential(1 / s, lower, upper)
    return (
        negative(cut_laplace(-m, s, -upper, -lower))
        if m > upper
        else truncated(stats.laplace(m, s), lower, upper)
    )


def negative(law):
    return Law(lambda x: 1 - law.cdf(-x), lambda u: -law.ppf(1 - u))


def censored(law, lower, upper):
    return Law(
        lambda x: np.where(x < lower, 0.0, np.where(x >= upper, 1.0, law.cdf(x))),
        lambda u: np.clip(law.ppf(u), lower, upper),
    )


def point(c):
    return Law(lambda x: 1.0 * (x >= c), lambda u: np.full_like(u, c))


class Mixture:
    def __init__(self, weights, laws):
        self.weights, self.laws = np.asarray(weights), laws

    def cdf(self, x):
        return sum(w * law.cdf(x) for w, law in zip(self.weights, self.laws, strict=True))

    def rvs(self, size, random_state):
        label = random_state.choice(len(self.laws), p=self.weights, size=size)
        return np.choose(label, [law.rvs(size, random_state=random_state) for law in self.laws])


EXAMPLES = {
    "Normal": Example(pm.Normal.dist, (1.0, 2.0), (-0.5, 0.7), stats.norm),
    "Laplace": Example(pm.Laplace.dist, (1.0, 2.0), (-0.5, 0.7), stats.laplace),
    "Logistic": Example(pm.Logistic.dist, (1.0, 2.0), (-0.5, 0.7), stats.logistic),
    "Cauchy": Example(pm.Cauchy.dist, (1.0, 2.0), (-0.5, 0.7), stats.cauchy),
    "Gumbel": Example(pm.Gumbel.dist, (1.0, 2.0), (-0.5, 0.7), stats.gumbel_r),
    "Moyal": Example(pm.Moyal.dist, (1.0, 2.0), (-0.5, 0.7), stats.moyal),
    "HalfNormal": Example(pm.HalfNormal.dist, (2.0,), (0.7,), lambda s: stats.halfnorm(0, s)),
    "HalfCauchy": Example(pm.HalfCauchy.dist, (2.0,), (0.7,), lambda s: stats.halfcauchy(0, s)),
    "HalfStudentT": Example(
        lambda s, **kw: pm.HalfStudentT.dist(nu=3.0, sigma=s, **kw), (2.0,), (0.7,),
        lambda s: Law(
            lambda x: np.maximum(2 * stats.t(3).cdf(x / s) - 1, 0),
            lambda u: s * stats.t(3).ppf((1 + u) / 2),
        ),
    ),
    "Uniform": Example(
        pm.Uniform.dist, (-1.0, 2.0), (3.0, 4.5), lambda a, b: stats.uniform(a, b - a)
    ),
    "Exponential": Example(pm.Exponential.dist, (3.0,), (0.4,), lambda r: stats.expon(0, 1 / r)),
    "LogNormal": Example(
        pm.LogNormal.dist, (0.5, 0.8), (-1.0, 1.5), lambda m, s: stats.lognorm(s, 0, np.exp(m))
    ),
    "Gamma": Example(
        lambda r, **kw: pm.Gamma.dist(2.5, r, **kw), (2.0,), (0.3,),
        lambda r: stats.gamma(2.5, 0, 1 / r),
    ),
    "Gamma, shape": Example(
        pm.Gamma.dist, (2.5, 2.0), (0.8, 0.3), lambda a, r: stats.gamma(a, 0, 1 / r), None
    ),
    "InverseGamma": Example(
        lambda b, **kw: pm.InverseGamma.dist(2.5, b, **kw), (2.0,), (0.3,),
        lambda b: stats.invgamma(2.5, 0, b),
    ),
    "InverseGamma, shape": Example(
        pm.InverseGamma.dist, (2.5, 2.0), (4.0, 0.3), lambda a, b: stats.invgamma(a, 0, b), None
    ),
    "StudentT": Example(
        lambda m, s, **kw: pm.StudentT.dist(4.0, mu=m, sigma=s, **kw), (1.0, 2.0), (0.3, 0.1),
        lambda m, s: stats.t(4.0, m, s),
    ),
    "StudentT, degrees": Example(
        lambda nu, m, s, **kw: pm.StudentT.dist(nu, mu=m, sigma=s, **kw),
        (4.0, 1.0, 2.0), (9.0, 0.3, 0.1), stats.t, None,
    ),
    "HalfStudentT, degrees": Example(
        lambda nu, s, **kw: pm.HalfStudentT.dist(nu=nu, sigma=s, **kw), (4.0, 2.0), (9.0, 0.7),
        lambda nu, s: truncated(stats.t(nu, 0, s), 0, np.inf), None,
    ),
    "Beta": Example(pm.Beta.dist, (2.0, 3.0), (0.8, 5.0), stats.beta, None),
    "Beta, mean": Example(
        lambda mu, sigma, **kw: pm.Beta.dist(mu=mu, sigma=sigma, **kw), (0.4, 0.1), (0.5, 0.2),
        lambda m, s: stats.beta(m * (m * (1 - m) / s**2 - 1), (1 - m) * (m * (1 - m) / s**2 - 1)),
        None,
    ),
    "Kumaraswamy": Example(
        pm.Kumaraswamy.dist, (2.0, 3.0), (0.8, 5.0),
        kumaraswamy, 1e-6,
    ),
    "Weibull": Example(
        pm.Weibull.dist, (2.0, 3.0), (0.8, 5.0), lambda a, b: stats.weibull_min(a, 0, b)
    ),
    "Pareto": Example(pm.Pareto.dist, (2.0, 3.0), (0.8, 5.0), lambda a, m: stats.pareto(a, 0, m)),
    "TruncatedNormal": Example(
        lambda m, s, **kw: pm.TruncatedNormal.dist(m, s, lower=-1, upper=2, **kw),
        (0.0, 1.0), (1.5, 3.0), lambda m, s: stats.truncnorm((-1 - m) / s, (2 - m) / s, m, s), 1e-6,
    ),
    "Truncated": Example(
        lambda m, s, **kw: pm.Truncated.dist(pm.Gumbel.dist(m, s), lower=-1, upper=2, **kw),
        (0.0, 1.0), (1.5, 3.0),
        lambda m, s: truncated(stats.gumbel_r(m, s), -1, 2), 1e-6,
    ),
    "Truncated, moving bound": Example(
        lambda m, a, **kw: pm.Truncated.dist(pm.Gumbel.dist(m, 1.0), lower=a, **kw),
        (0.0, -1.0), (1.5, 0.5), lambda m, a: truncated(stats.gumbel_r(m, 1.0), a, np.inf), 1e-6,
    ),
    "Truncated exponential": Example(
        lambda r, **kw: pm.Truncated.dist(pm.Exponential.dist(r), upper=2, **kw),
        (1.0,), (3.0,), lambda r: cut_exponential(r, 0.0, 2.0), 1e-6,
    ),
    "Truncated exponential, tail": Example(
        lambda r, a, **kw: pm.Truncated.dist(pm.Exponential.dist(r), lower=a, **kw),
        (1.0, 40.0), (3.0, 0.5), lambda r, a: stats.expon(a, 1 / r), 1e-6,
    ),
    "Truncated Laplace": Example(
        lambda m, s, **kw: pm.Truncated.dist(pm.Laplace.dist(m, s), lower=-1, upper=2, **kw),
        (0.0, 1.0), (1.5, 3.0), lambda m, s: cut_laplace(m, s, -1.0, 2.0), 1e-6,
    ),
    "Truncated Gamma": Example(
        lambda a, r, **kw: pm.Truncated.dist(pm.Gamma.dist(a, r), lower=0.5, upper=3, **kw),
        (2.5, 2.0), (0.8, 0.3), lambda a, r: truncated(stats.gamma(a, 0, 1 / r), 0.5, 3.0), 1e-6,
    ),
    "Truncated Gamma, tail": Example(
        lambda a, r, **kw: pm.Truncated.dist(pm.Gamma.dist(a, r), lower=60, **kw),
        (2.5, 1.0), (0.8, 0.5),
        lambda a, r: upper_part(stats.gamma(a, 0, 1 / r), 60.0), 1e-6,
    ),
    "Truncated Beta": Example(
        lambda a, b, **kw: pm.Truncated.dist(pm.Beta.dist(a, b), lower=0.1, upper=0.9, **kw),
        (2.0, 3.0), (0.8, 5.0), lambda a, b: truncated(stats.beta(a, b), 0.1, 0.9), 1e-6,
    ),
    "Truncated StudentT": Example(
        lambda nu, m, **kw: pm.Truncated.dist(
            pm.StudentT.dist(nu, mu=m, sigma=1.0), lower=-1, upper=2, **kw
        ),
        (4.0, 0.0), (9.0, 1.5), lambda nu, m: truncated(stats.t(nu, m), -1, 2), 1e-6,
    ),
    "Censored Gamma": Example(
        lambda a, r, **kw: pm.Censored.dist(pm.Gamma.dist(a, r), lower=0.5, upper=3, **kw),
        (2.5, 2.0), (0.8, 0.3), lambda a, r: censored(stats.gamma(a, 0, 1 / r), 0.5, 3.0), None,
    ),
    "Censored": Example(
        lambda m, s, **kw: pm.Censored.dist(pm.Normal.dist(m, s), lower=-1, upper=2, **kw),
        (0.0, 1.0), (1.5, 3.0), lambda m, s: censored(stats.norm(m, s), -1.0, 2.0), None,
    ),
    "CustomDist": Example(
        lambda m, **kw: pm.CustomDist.dist(
            m, dist=lambda m, size: -pt.exp(pm.Normal.dist(m, 1.0, size=size)), **kw
        ),
        (0.0,), (1.5,), lambda m: negative(stats.lognorm(1.0, 0, np.exp(m))), 1e-6,
    ),
    "Poisson": Example(pm.Poisson.dist, (4.0,), (6.5,), stats.poisson, None),
    "Poisson, large": Example(pm.Poisson.dist, (400.0,), (380.0,), stats.poisson, None),
    "Bernoulli": Example(pm.Bernoulli.dist, (0.3,), (0.55,), stats.bernoulli, None),
    "Binomial": Example(
        lambda p, **kw: pm.Binomial.dist(9, p, **kw), (0.3,), (0.55,),
        lambda p: stats.binom(9, p), None,
    ),
    "NegativeBinomial": Example(
        lambda mu, **kw: pm.NegativeBinomial.dist(mu=mu, alpha=2.5, **kw), (4.0,), (7.0,),
        lambda mu: stats.nbinom(2.5, 2.5 / (2.5 + mu)), None,
    ),
    "NegativeBinomial, alpha": Example(
        lambda mu, a, **kw: pm.NegativeBinomial.dist(mu=mu, alpha=a, **kw), (4.0, 2.5), (5.0, 0.8),
        lambda mu, a: stats.nbinom(a, a / (a + mu)), None,
    ),
    "BetaBinomial": Example(
        lambda a, b, **kw: pm.BetaBinomial.dist(n=9, alpha=a, beta=b, **kw), (2.0, 3.0), (0.8, 2.5),
        lambda a, b: stats.betabinom(9, a, b), None,
    ),
    "Geometric": Example(pm.Geometric.dist, (0.3,), (0.12,), stats.geom, None),
    "DiscreteUniform": Example(
        pm.DiscreteUniform.dist, (1, 6), (-2, 9), lambda a, b: stats.randint(a, b + 1), None
    ),
    "Categorical": Example(
        pm.Categorical.dist, ([0.2, 0.5, 0.0, 0.3],), ([0.4, 0.1, 0.3, 0.2],),
        lambda p: stats.rv_discrete(values=(np.arange(4), p)), None,
    ),
    "DiracDelta": Example(pm.DiracDelta.dist, (2.0,), (5.0,), point),
    "NormalMixture": Example(
        lambda w, m, **kw: pm.NormalMixture.dist(w, m, pt.stack([1.0, 0.5, 2.0]), **kw),
        ([0.2, 0.5, 0.3], [-2.0, 0.0, 3.0]), ([0.4, 0.1, 0.5], [-1.0, 0.5, 2.0]),
        lambda w, m: Mixture(w, [stats.norm(*a) for a in zip(m, (1, 0.5, 2), strict=True)]),
        None,
    ),
    "Point mass and Normal": Example(
        lambda w, m, **kw: pm.Mixture.dist(
            w, [pm.DiracDelta.dist(0.0), pm.Normal.dist(m, 0.1)], **kw
        ),
        ([0.4, 0.6], 0.0), ([0.7, 0.3], 0.05),
        lambda w, m: Mixture(w, [point(0.0), stats.norm(m, 0.1)]), None,
    ),
    "ZeroInflatedPoisson": Example(
        pm.ZeroInflatedPoisson.dist, (0.7, 4.0), (0.5, 6.0),
        lambda w, r: Mixture([w, 1 - w], [stats.poisson(r), stats.randint(0, 1)]), None,
    ),
}  # fmt: skip


@cache
def coupling(name):
    """Return the op of an example and its compiled map ``(rng, x, parameters, new ones) -> x``."""
    example = EXAMPLES[name]
    old, new = ([pt.tensor(dtype="float64", shape=np.shape(p)) for p in example.old] for _ in "ab")
    laws = [example.law(*symbols, shape=N) for symbols in (old, new)]
    value = pt.vector("value", dtype=laws[0].dtype)
    moved = transport(laws[0].owner.op, *laws, value, draw).astype(value.dtype)
    generators = [v for v in graph_inputs([moved]) if isinstance(v.type, RandomType)]
    own = [v.type() for v in generators]
    moved = graph_replace(moved, dict(zip(generators, own, strict=True)), strict=False)
    function = pytensor.function([*own, value, *old, *new], moved, on_unused_input="ignore")

    def move(rng, x, here, there):
        arguments = [np.asarray(p, dtype="float64") for p in (*here, *there)]
        return function(*rng.spawn(len(own)), np.asarray(x, dtype=value.dtype), *arguments)

    return laws[0].owner.op, move


def draw(law, *arguments):
    return law(*arguments, rng=pt.random.shared_rng(seed=None), return_next_rng=True)[1]


def edges(x, most):
    """Quantiles of draws, each value at most once."""
    return np.unique(np.quantile(x, np.linspace(0, 1, most + 1)[1:-1], method="inverted_cdf"))


def agrees(x, law, where=""):
    """In bins of about the same probability: some laws have atoms."""
    at = edges(x, 40)
    chances = np.maximum(np.diff(law.cdf(at), prepend=0.0, append=1.0), 0.0)
    counts = np.bincount(np.searchsorted(at, x), minlength=chances.size)
    counts_follow(counts, chances, P_VALUE, where)


def same_pairs(first, second):
    """P value of two samples of pairs having one law."""
    at = [edges(np.concatenate(both), 7) for both in zip(first, second, strict=True)]
    counts = []
    for pair in (first, second):
        rows, columns = (np.searchsorted(a, x) for a, x in zip(at, pair, strict=True))
        cells = (at[0].size + 1) * (at[1].size + 1)
        counts.append(np.bincount(rows * (at[1].size + 1) + columns, minlength=cells))
    counts = np.array(counts)
    often = counts.sum(0) >= 10
    rare = counts[:, ~often].sum(1, keepdims=True)
    table = np.hstack([counts[:, often], rare]) if rare.sum() >= 10 else counts[:, often]
    return stats.chi2_contingency(table).pvalue


def test_every_registered_law_has_an_example():
    found = {type(coupling(name)[0]) for name in EXAMPLES}
    found |= {type(vector_coupling(name)[0]) for name in VECTORS}
    assert set(transport.registry) - {object} <= found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_way_back_has_the_same_law(name):
    example, (_, move) = EXAMPLES[name], coupling(name)
    rng = np.random.default_rng(2)
    x = example.scipy(*example.old).rvs(size=N, random_state=rng)
    there = move(rng, x, example.old, example.new)
    if example.exact is not None:
        back = move(rng, there, example.new, example.old)
        np.testing.assert_allclose(back, x, rtol=example.exact, atol=example.exact)
        return
    y = example.scipy(*example.new).rvs(size=N, random_state=rng)
    back = move(rng, y, example.new, example.old)
    assert same_pairs((x, there), (back, y)) > P_VALUE


@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_that_stay_leave_the_records(name):
    """The noise is held fixed, as far as the records tell what it is."""
    example, (_, move) = EXAMPLES[name], coupling(name)
    rng = np.random.default_rng(3)
    x = example.scipy(*example.old).rvs(size=N, random_state=rng)
    moved = move(rng, x, example.old, example.old)
    np.testing.assert_allclose(moved, x, rtol=1e-6, atol=1e-6)


# Laws of vectors: the law, two sets of its parameters, and draws from it.
COV, SHARES = np.array([[2.0, 0.6], [0.6, 1.0]]), np.linspace(0, 1, N)[:, None]


def covariances(scale):
    return scale * COV + SHARES[..., None] * np.eye(2)


def normal_rows(rng, mean, cov):
    return mean + (np.linalg.cholesky(cov) @ rng.normal(size=(N, 2, 1)))[..., 0]


def normal_components(rng, weights, *means):
    label = rng.choice(len(weights), p=weights, size=N)
    return np.array(means)[label] + normal_rows(rng, 0.0, COV)


def row_chances(p, q):
    return SHARES * p + (1 - SHARES) * q


VECTORS = {
    "Dirichlet": (pm.Dirichlet.dist, ([2.5, 1.1, 3.2],), ([2.0, 1.5, 3.2],),
                  lambda rng, a: rng.dirichlet(a, N)),
    "Dirichlet, far": (pm.Dirichlet.dist, ([0.05, 2.0, 1e4],), ([1.5, 0.05, 0.9e4],),
                       lambda rng, a: rng.dirichlet(a, N)),
    "MvNormal, mean": (lambda m, **kw: pm.MvNormal.dist(m, COV, **kw),
                       ([1.0, -2.0],), ([0.0, 3.0],), lambda rng, m: normal_rows(rng, m, COV)),
    "MvNormal": (
        lambda m, s, **kw: pm.MvNormal.dist(m, s * COV + np.eye(2), **kw),
        ([1.0, -2.0], 0.5), ([0.0, -1.0], 3.0),
        lambda rng, m, s: normal_rows(rng, m, s * COV + np.eye(2)),
    ),
    "MvNormal, several": (
        lambda m, s, **kw: pm.MvNormal.dist(m, covariances(s), **kw),
        ([1.0, -2.0], 0.5), ([0.0, -1.0], 3.0),
        lambda rng, m, s: normal_rows(rng, m, covariances(s)),
    ),
    "Multinomial": (
        lambda p, **kw: pm.Multinomial.dist(12, p, **kw),
        ([0.2, 0.5, 0.0, 0.3],), ([0.4, 0.1, 0.3, 0.2],),
        lambda rng, p: rng.multinomial(12, p, N),
    ),
    "Multinomial, far": (
        lambda p, **kw: pm.Multinomial.dist(10**4, p, **kw),
        ([1e-4, 0.4999, 0.5],), ([0.4999, 0.5, 1e-4],),
        lambda rng, p: rng.multinomial(10**4, p, N),
    ),
    "Multinomial, rows": (
        lambda p, q, **kw: pm.Multinomial.dist(12, row_chances(p, q), **kw),
        ([0.2, 0.5, 0.3], [0.1, 0.1, 0.8]), ([0.4, 0.4, 0.2], [0.1, 0.8, 0.1]),
        lambda rng, p, q: rng.multinomial(12, row_chances(p, q)),
    ),
    "DirichletMultinomial": (
        lambda a, **kw: pm.DirichletMultinomial.dist(12, a, **kw),
        ([2.5, 0.7, 3.2],), ([2.0, 1.5, 3.2],),
        lambda rng, a: rng.multinomial(12, rng.dirichlet(a, N)),
    ),
    "mixture": (
        lambda w, m, k, **kw: pm.Mixture.dist(
            w, [pm.MvNormal.dist(m, COV), pm.MvNormal.dist(k, COV)], **kw
        ),
        ([0.4, 0.6], [-2.0, 1.0], [2.0, 0.0]), ([0.7, 0.3], [-1.0, 2.0], [3.0, 0.0]),
        normal_components,
    ),
    "mixture of one batch": (
        lambda w, m, k, **kw: pm.Mixture.dist(w, pm.MvNormal.dist(pt.stack([m, k]), COV), **kw),
        ([0.4, 0.6], [-2.0, 1.0], [2.0, 0.0]), ([0.7, 0.3], [-1.0, 2.0], [3.0, 0.0]),
        normal_components,
    ),
}  # fmt: skip


@cache
def vector_coupling(name):
    law, here, _, sample = VECTORS[name]
    width = sample(np.random.default_rng(0), *map(np.asarray, here)).shape[-1]
    sets = [[pt.tensor(dtype="float64", shape=np.shape(p)) for p in here] for _ in "ab"]
    old, new = (law(*symbols, shape=(N, width)) for symbols in sets)
    value = pt.matrix("value", dtype=old.dtype)
    # Numba takes half a minute for Cholesky factors.
    inputs, moved = [value, *sets[0], *sets[1]], transport(old.owner.op, old, new, value, draw)
    return old.owner.op, pytensor.function(inputs, moved, mode=PLAIN, on_unused_input="ignore")


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    """Their law in pairs of entries, the joint law there and back, and records that stay."""
    _, *sets, sample = VECTORS[name]
    here, there = ([np.asarray(p, dtype="float64") for p in group] for group in sets)
    rng, move = np.random.default_rng(4), vector_coupling(name)[1]
    x, y, other = sample(rng, *here), sample(rng, *there), sample(rng, *there)
    moved, back = move(x, *here, *there), move(y, *there, *here)
    assert np.all(np.isfinite(np.stack([moved, back])))
    last = x.shape[1] - 1
    for j in range(last):
        assert same_pairs((moved[:, j], moved[:, last]), (other[:, j], other[:, last])) > P_VALUE
    for j, k in np.ndindex(last + 1, last + 1):
        assert same_pairs((x[:, j], moved[:, k]), (back[:, j], y[:, k])) > P_VALUE
    np.testing.assert_allclose(move(x, *here, *here), x, rtol=1e-9, atol=1e-9)


# Parameters here and there, and records.
EXTREMES = {
    "Bernoulli": [
        ((0.0,), (1e-300,), [0]), ((1.0,), (1 - 1e-16,), [1]), ((1e-300,), (1.0,), [0, 1]),
        ((1 - 1e-16,), (0.0,), [0, 1]), ((0.5,), (np.nan,), [0, 1]), ((0.0,), (0.0,), [0]),
    ],
    "Binomial": [
        ((0.0,), (1e-300,), [0]), ((1.0,), (1 - 1e-16,), [9]), ((1e-300,), (1.0,), [0, 4, 9]),
        ((0.5,), (np.nan,), [0, 4, 9]), ((1.0,), (1.0,), [9]),
    ],
    "Poisson": [
        ((1e-300,), (1e-308,), [0]), ((1e-300,), (5.0,), [0]), ((1e9,), (1e-300,), [10**9]),
        ((5.0,), (1e15,), [4]), ((5.0,), (np.inf,), [4]), ((5.0,), (np.nan,), [4]),
        ((0.0,), (3.0,), [0]), ((np.inf,), (3.0,), [4]),
    ],
    "NegativeBinomial": [
        ((1e-300,), (5.0,), [0]), ((5.0,), (1e-300,), [0, 7]), ((5.0,), (1e12,), [0, 7]),
        ((5.0,), (np.inf,), [3]), ((5.0,), (np.nan,), [3]),
    ],
    "Geometric": [
        ((1e-12,), (0.5,), [1, 10**12]), ((0.5,), (1e-300,), [1, 60]), ((0.5,), (1.0,), [1, 60]),
        ((1 - 1e-16,), (0.5,), [1]), ((1.0,), (0.5,), [1]), ((0.5,), (np.nan,), [3]),
    ],
    "DiscreteUniform": [((0, 0), (5, 5), [0]), ((0, 10**9), (-(10**9), 0), [0, 10**9])],
    "Categorical": [
        (([1.0, 0, 0, 0],), ([0, 0, 0, 1.0],), [0]), (([0.25] * 4,), ([0, 1e-300, 0, 1],), [0, 3]),
        (([0.25] * 4,), ([np.nan] * 4,), [0, 1, 2, 3]),
    ],
    "NormalMixture": [
        (([1.0, 0, 0], [0.0] * 3), ([0, 0, 1.0], [1e300] * 3), [0.0, 1e6]),
        (([0.2, 0.5, 0.3], [-1e6, 0, 1e6]), ([0.3, 0.4, 0.3], [0.0] * 3), [-1e6, 5e5, 3e300]),
    ],
    "ZeroInflatedPoisson": [
        ((1e-12, 4.0), (1.0, 1e-12), [0, 3]), ((1.0, 1e-300), (0.5, 1e6), [0]),
    ],
    "Gamma, shape": [
        ((1e-3, 1.0), (1e-2, 1.0), [1e-300, 1e-30, 10.0]),
        ((2.0, 1.0), (3.0, 1.0), [1e-300, 900.0]),
        ((2.0, 1.0), (1e6, 1e-6), [1.0, 200.0]),
    ],
    "InverseGamma, shape": [((2.0, 1.0), (3.0, 1.0), [1e-9, 1e300]), ((1e-3, 1), (5, 1), [1e200])],
    "StudentT, degrees": [
        ((0.1, 0, 1), (5.0, 0, 1), [-1e100, 1e100]),
        ((1e9, 0, 1), (1, 0, 1), [9]),
    ],
    "Beta": [
        ((2.0, 3.0), (0.01, 0.02), [1e-300, 0.5, 1 - 1e-16]),
        ((1e-3, 1e-3), (1e6, 1e6), [1e-9, 0.4]),
        ((2.0, 3.0), (1.0, 1.0), [0.0, 1.0]),
    ],
    "Censored": [
        ((0.0, 1e-3), (1.0, 1e-3), [-1.0, 0.0, 2.0]),
        ((90.0, 1.0), (-90.0, 1.0), [2.0, -1.0]),
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_raise_nothing(name):
    _, move = coupling(name)
    for here, there, x in EXTREMES[name]:
        moved = move(np.random.default_rng(5), np.resize(x, N), here, there)
        assert moved.shape == (N,)
        if moved.dtype.kind == "i":
            assert np.all(np.abs(moved) <= 2**60)
            if name in ("Bernoulli", "Binomial", "Categorical"):
                assert np.all((moved >= 0) & (moved <= 9))


# Parameters at the edge of what floating point resolves, between which records still can move.
FAR = {
    "Normal": [(1e6, 1e-6), (-1e-9, 1e9)],
    "Laplace": [(1e6, 1e-3), (-1e-9, 1e9)],
    "Logistic": [(1e6, 1e-3), (-1e-9, 1e9)],
    "Cauchy": [(1e6, 1e-3), (-1e-9, 1e9)],
    "Gumbel": [(1e6, 1e-3), (-1e-9, 1e9)],
    "Moyal": [(1e6, 1e-3), (-1e-9, 1e9)],
    "HalfNormal": [(1e-130,), (1e130,)],
    "HalfCauchy": [(1e-130,), (1e130,)],
    "HalfStudentT": [(1e-9,), (1e9,)],
    "Uniform": [(-1e-9, 1e-9), (1e6, 1e6 + 1e-3)],
    "Exponential": [(1e-130,), (1e130,)],
    "LogNormal": [(-300.0, 10.0), (300.0, 1e-3)],
    "Gamma": [(1e-130,), (1e130,)],
    "Gamma, shape": [(0.05, 1e-9), (1e4, 1e9), (1.1e4, 1.0), (0.05, 1.0)],
    "InverseGamma": [(1e-130,), (1e130,)],
    "InverseGamma, shape": [(0.05, 1e-9), (1e4, 1e9)],
    "HalfStudentT, degrees": [(0.6, 1e-3), (1e5, 1e3)],
    "StudentT": [(1e6, 1e-3), (-1e-9, 1e9)],
    "StudentT, degrees": [(0.6, 1.0, 1e-3), (1e5, -1e3, 1e3)],
    "Beta": [(0.3, 0.4), (300.0, 2e4), (0.05, 1e4), (1e4, 1.1e4), (0.05, 2.0)],
    "Beta, mean": [(1e-3, 1e-3), (0.5, 1e-4)],
    "Kumaraswamy": [(0.2, 0.3), (20.0, 500.0)],
    "Weibull": [(0.1, 1e-9), (50.0, 1e9)],
    "Pareto": [(0.1, 1e-9), (50.0, 1e9)],
    "TruncatedNormal": [(-20.0, 1.0), (15.0, 0.5), (0.0, 1e6)],
    "Truncated": [(-1.0, 0.2), (0.0, 1e6)],
    "Truncated, moving bound": [(1.0, -1.0), (1.0, 8.0)],
    "Truncated exponential": [(1e-9,), (500.0,)],
    "Truncated exponential, tail": [(1.0, 700.0), (1e-6, 3.0)],
    "Truncated Laplace": [(-40.0, 1.0), (40.0, 1.0), (0.0, 1e6)],
    "Truncated Gamma": [(0.05, 1e-3), (1e4, 1e4), (50.0, 1.0)],
    "Truncated Gamma, tail": [(0.05, 10.0), (1e3, 1.0)],
    "Truncated Beta": [(0.05, 0.05), (1e4, 1e4), (1.0, 30.0)],
    "Truncated StudentT": [(0.6, -40.0), (1e5, 20.0)],
    "Censored Gamma": [(0.05, 1.0), (1e4, 1e4)],
    "Censored": [(-40.0, 20.0), (1.0, 1e-3)],
    "CustomDist": [(-300.0,), (300.0,)],
    "Poisson": [(1e-9,), (1e6,), (0.01,)],
    "Poisson, large": [],
    "Bernoulli": [(1e-9,), (1 - 1e-9,), (0.5,)],
    "Binomial": [(1e-9,), (1 - 1e-9,), (0.5,)],
    "NegativeBinomial": [(1e-9,), (1e4,), (0.01,)],
    "NegativeBinomial, alpha": [(4.0, 0.05), (400.0, 1e4), (1e-9, 1.0)],
    "BetaBinomial": [(0.05, 0.05), (1e4, 1.0), (1.0, 1e4)],
    "Geometric": [(1e-9,), (1 - 1e-9,), (0.5,)],
    "DiscreteUniform": [(0, 0), (-(10**9), 10**9)],
    "Categorical": [([1.0, 0.0, 0.0, 0.0],), ([0.0, 1e-9, 0.5, 0.5 - 1e-9],)],
    "DiracDelta": [(-1e300,), (1e-300,)],
    "NormalMixture": [([1.0, 0.0, 0.0], [1e3] * 3), ([0.0, 0.5, 0.5], [0.0, -1e3, 1e3])],
    "Point mass and Normal": [([1e-9, 1 - 1e-9], 40.0), ([0.9, 0.1], -40.0)],
    "ZeroInflatedPoisson": [(1e-9, 1e4), (1 - 1e-9, 1e-2)],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_far_parameters(name):
    """From each of them to the next and to everyday ones: in the support, and of the right law."""
    example, (_, move) = EXAMPLES[name], coupling(name)
    rng = np.random.default_rng(6)
    stops = [example.old, *FAR[name], example.new, example.old]
    for here, there in pairwise(stops):
        x = example.scipy(*here).rvs(size=N, random_state=rng)
        moved = move(rng, x, here, there)
        law = example.scipy(*there)
        assert np.all(np.isfinite(moved)), (here, there)
        assert np.all(law.cdf(moved) > 0)
        agrees(moved, law, where=f"{here} -> {there}")


REFUSED = {
    "clipped": lambda m, **kw: pm.CustomDist.dist(
        m, dist=lambda m, size: pt.clip(pm.Normal.dist(m, 1.0, size=size), -1, 1), **kw
    ),
    "scaled counts": lambda m, **kw: pm.CustomDist.dist(
        m, dist=lambda m, size: 0.5 * pm.Geometric.dist(pm.math.sigmoid(m), size=size), **kw
    ),
    "censored in a custom law": lambda m, **kw: pm.CustomDist.dist(
        m,
        dist=lambda m, size: (
            2.0 * pm.Censored.dist(pm.Normal.dist(m, 1.0, size=size), lower=0, upper=1)
        ),
        **kw,
    ),
    "truncated counts": lambda m, **kw: pm.Truncated.dist(
        pm.Geometric.dist(pm.math.sigmoid(m)), lower=2, **kw
    ),
    "censored counts": lambda m, **kw: pm.Censored.dist(
        pm.Poisson.dist(pt.exp(m)), lower=1, upper=None, **kw
    ),
    "hurdle": lambda m, **kw: pm.HurdleGamma.dist(0.5, pt.exp(m), 1.0, **kw),
    "censored in a mixture": lambda m, **kw: pm.Mixture.dist(
        [0.5, 0.5],
        [pm.Censored.dist(pm.Normal.dist(m, 1.0), lower=0, upper=None), pm.Normal.dist(m, 1.0)],
        **kw,
    ),
    "no inverse": lambda m, **kw: pm.Wald.dist(pt.exp(m), 1.0, **kw),
    "no distribution function": lambda m, **kw: pm.SkewNormal.dist(mu=m, sigma=1, alpha=2, **kw),
    "counts": lambda m, **kw: pm.DiscreteWeibull.dist(q=0.5, beta=pt.exp(m), **kw),
    "trials": lambda m, **kw: pm.Binomial.dist(pt.exp(m).astype(int), 0.4, **kw),
    "trials of tables": lambda m, **kw: pm.Multinomial.dist(
        pt.exp(m).astype(int), [0.4, 0.6], **{"shape": (9, 2)}
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_has_no_such_map(name):
    """A law with atoms has a distribution function that PyMC inverts, too."""
    old, new = (REFUSED[name](pt.scalar(), shape=9) for _ in "ab")
    value = old.type()
    with pytest.raises(NotImplementedError):
        transport(old.owner.op, old, new, value, draw)


def test_parents_do_not_matter():
    """Atoms of a parameter are no atoms of the records."""
    count = pm.Poisson.dist(3.0)
    laws = [pm.Beta.dist(pt.clip(m, 0.1, 9.0) + count, 2.0, shape=3) for m in pt.scalars("a", "b")]
    assert transport(laws[0].owner.op, *laws, pt.vector(), draw).type.ndim == 1
