"""Random small models with private releases, each written twice: for PyMC, and in plain numpy.

The numpy side knows nothing of the package: laws and noise are scipy's, an expression is evaluated
as numpy evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats

import pymc_dp as dp


@dataclass(frozen=True)
class Part:
    """A piece of a model: what it is called, and what it is for PyTensor and for numpy."""

    label: str
    graph: Callable
    array: Callable

    def __repr__(self):
        return self.label


def part(label, both):
    """Return a part that is written alike for both; `both` takes the module and the values."""
    return Part(label, lambda *v: both(pt, *v), lambda *v: both(np, *v))


def _floor(x, n):
    return np.floor(x)


def _above_one(x, n):
    return np.where(x > 1, x, 0)


def _groups(x, n):
    return np.stack([x[..., ::2].sum(-1), x[..., 1::2].sum(-1)], -1)


def _weighted(x, n):
    return x @ (np.arange(x.shape[-1]) % 3)


def _into_zeros(x, n):
    return pt.inc_subtensor(pt.zeros(2)[0], x.sum())[0]


# Public data of a model: as it is built, and as it is changed to afterwards.
DATA = {"half": 0.5, "which": 0, "two": 2.0, "power": 2}
CHANGED = {"half": 0.3, "which": 1, "two": 1.5, "power": 1}


def _data(name):
    return pm.Data(name, np.asarray(DATA[name]))  # PyMC makes doubles of Python's whole numbers


# --- Priors, and laws of the records --------------------------------------------------------------

# By domain: priors as PyMC and scipy write them, the first of them the plainest.
PRIORS = {
    "real": (
        (lambda name: pm.Normal(name, 0, 1), stats.norm(0, 1)),
        (lambda name: pm.StudentT(name, nu=5, mu=0.5, sigma=1), stats.t(5, 0.5, 1)),
        (lambda name: pm.Uniform(name, -1, 2), stats.uniform(-1, 3)),
    ),
    "positive": (
        (lambda name: pm.Gamma(name, 4, 2), stats.gamma(4, scale=0.5)),
        (lambda name: pm.InverseGamma(name, 4, 3), stats.invgamma(4, scale=3)),
        (lambda name: pm.Exponential(name, 1), stats.expon()),
        (lambda name: pm.HalfNormal(name, 2), stats.halfnorm(scale=2)),
    ),
    "share": (
        (lambda name: pm.Beta(name, 2, 2), stats.beta(2, 2)),
        (lambda name: pm.Uniform(name, 0, 1), stats.uniform(0, 1)),
    ),
}


def _categories(t):
    return pt.stack([t, (1 - t) / 3, 2 * (1 - t) / 3], axis=-1)


def _drawn(draw):
    """What only draws, as scipy's laws do."""
    return SimpleNamespace(rvs=lambda size, random_state: draw(random_state, size))


def _zero_inflated(t):
    return _drawn(lambda rng, size: rng.binomial(1, t, size) * rng.poisson(3.0, size))


def _categorical(t):
    return _drawn(lambda rng, size: (rng.random(size) > t) * (1 + (rng.random(size) > 1 / 3)))


REAL, POSITIVE, SHARE, BOTH = ("real",), ("positive",), ("share",), ("real", "positive")
# By name: the domains of the parameters; of the parameters, the law for PyMC with what it takes,
# and scipy's.
LAWS = {
    "Normal(t, 1)": (REAL, lambda t: (pm.Normal, t, 1), lambda t: stats.norm(t, 1)),
    "Normal(1, t)": (POSITIVE, lambda t: (pm.Normal, 1, t), lambda t: stats.norm(1, t)),
    "Normal(t, u)": (BOTH, lambda t, u: (pm.Normal, t, u), stats.norm),
    "Normal(t, sqrt(u))": (
        BOTH, lambda t, u: (pm.Normal, t, pt.sqrt(u)), lambda t, u: stats.norm(t, np.sqrt(u))
    ),
    "Normal(t, tau=u)": (
        BOTH, lambda t, u: (pm.Normal, t, None, u), lambda t, u: stats.norm(t, u**-0.5)
    ),
    "Exponential(t)": (POSITIVE, lambda t: (pm.Exponential, t), lambda t: stats.expon(0, 1 / t)),
    "Gamma(2, t)": (POSITIVE, lambda t: (pm.Gamma, 2, t), lambda t: stats.gamma(2, 0, 1 / t)),
    "LogNormal(t, .5)": (
        REAL, lambda t: (pm.LogNormal, t, 0.5), lambda t: stats.lognorm(0.5, 0, np.exp(t))
    ),
    "Laplace(t, .5)": (REAL, lambda t: (pm.Laplace, t, 0.5), lambda t: stats.laplace(t, 0.5)),
    "Beta(1 + t, 2)": (POSITIVE, lambda t: (pm.Beta, 1 + t, 2), lambda t: stats.beta(1 + t, 2)),
    "Poisson(t)": (POSITIVE, lambda t: (pm.Poisson, t), stats.poisson),
    "NegativeBinomial(3, t)": (
        SHARE, lambda t: (pm.NegativeBinomial, None, None, t, 3), lambda t: stats.nbinom(3, t)
    ),
    "ZeroInflatedPoisson(t, 3)": (
        SHARE, lambda t: (pm.ZeroInflatedPoisson, t, 3.0), _zero_inflated
    ),
    "Geometric(t)": (SHARE, lambda t: (pm.Geometric, t), stats.geom),
    "Bernoulli(t)": (SHARE, lambda t: (pm.Bernoulli, t), lambda t: stats.binom(1, t)),
    "Binomial(5, t)": (SHARE, lambda t: (pm.Binomial, 5, t), lambda t: stats.binom(5, t)),
    "Categorical(t, ...)": (SHARE, lambda t: (pm.Categorical, _categories(t)), _categorical),
    "Uniform(0, t)": (POSITIVE, lambda t: (pm.Uniform, 0, t), lambda t: stats.uniform(0, t)),
}  # fmt: skip

# What the law's first parameter is of theta: positive and in (0, 1) where theta is. The last axis
# of an array is that of the records, of length one where all have the same.
PARAMETERS = (
    part("theta", lambda m, t, n: t),
    part("theta / 2", lambda m, t, n: t / 2),
    Part("[theta, 9][0]", lambda t, n: pt.stack([t, 9.0])[0], lambda t, n: t),
    Part("[9, theta][None][0, 1]", lambda t, n: pt.stack([9.0, t])[None][0, 1], lambda t, n: t),
    Part(
        "[theta, theta / 2][group]",
        lambda t, n: pt.stack([t, t / 2])[np.arange(n) % 2],
        lambda t, n: np.concatenate([t, t / 2], -1)[..., np.arange(n) % 2],
    ),
    part("theta (1, 2, ...) / n", lambda m, t, n: t * (np.arange(n) + 1) / n),
    Part("data * theta", lambda t, n: _data("half") * t, lambda t, n: DATA["half"] * t),
    Part(
        "[theta, theta / 2][data]",
        lambda t, n: pt.stack([t, t / 2])[_data("which")],
        lambda t, n: t / (1 + DATA["which"]),
    ),
    Part(
        "(floor(2 theta) + 1) / 9",
        lambda t, n: (pt.floor(2 * t) + 1) / 9,
        lambda t, n: (np.floor(2 * t) + 1) / 9,
    ),
    Part(
        "(int(2 theta) + 1) / 9",
        lambda t, n: ((2 * t).astype("int64") + 1) / 9,
        lambda t, n: (np.trunc(2 * t) + 1) / 9,
    ),
    Part(
        "switch(theta > .5, theta, .5)",
        lambda t, n: pt.switch(t > 0.5, t, 0.5),
        lambda t, n: np.where(t > 0.5, t, 0.5),
    ),
)
REAL_PARAMETERS = 8  # of these

# --- Statistics -----------------------------------------------------------------------------------

EACH = (
    part("x", lambda m, x, n: x),
    part("2 x + 1", lambda m, x, n: 2 * x + 1),
    part("x / 2", lambda m, x, n: x / 2),
    part("-x", lambda m, x, n: -x),
    part("clip(x, 0, 2)", lambda m, x, n: m.clip(x, 0, 2)),
    part("x > 1", lambda m, x, n: x > 1),
    part("1 - (x > 1)", lambda m, x, n: 1 - (x > 1).astype("int64")),
    part("x ** 2", lambda m, x, n: x**2),
    part("x * x", lambda m, x, n: x * x),
    part("abs(x - 1)", lambda m, x, n: abs(x - 1)),
    part("minimum(x, 1)", lambda m, x, n: m.minimum(x, 1)),
    Part("int(x)", lambda x, n: x.astype("int64"), lambda x, n: np.trunc(x).astype("int64")),
    Part("floor(x)", lambda x, n: pt.floor(x) if x.dtype == "float64" else x, _floor),
    part("x // 2", lambda m, x, n: x // 2),
    Part("bool(x)", lambda x, n: x.astype("bool"), lambda x, n: x != 0),
    part("float(x)", lambda m, x, n: x.astype("float64")),
    Part("switch(x > 1, x, 0)", lambda x, n: pt.switch(x > 1, x, 0), _above_one),
    Part("x[::-1]", lambda x, n: x[::-1], lambda x, n: x[..., ::-1]),
    Part("x[even]", lambda x, n: x[np.arange(n) % 2 == 0], lambda x, n: x[..., ::2]),
    Part("data x", lambda x, n: _data("two") * x, lambda x, n: DATA["two"] * x),
    Part("x ** data", lambda x, n: x ** _data("power"), lambda x, n: x ** DATA["power"]),
    Part("eq(x, 0)", lambda x, n: pt.eq(x, 0), lambda x, n: x == 0),
)
REDUCE = (
    Part("sum", lambda x, n: x.sum(), lambda x, n: x.sum(-1)),
    Part("mean", lambda x, n: x.mean(), lambda x, n: x.mean(-1)),
    Part("dot ones", lambda x, n: pt.dot(pt.ones_like(x), x), lambda x, n: x.sum(-1)),
    part("each", lambda m, x, n: x),
    Part("groups", lambda x, n: pt.stack([x[::2].sum(), x[1::2].sum()]), _groups),
    Part("weights", lambda x, n: (pt.arange(x.shape[0]) % 3 * x).sum(), _weighted),
    Part("first", lambda x, n: x[0], lambda x, n: x[..., 0]),
    part("all but one", lambda m, x, n: x[..., 1:].sum(-1)),
    part("[0, 0]", lambda m, x, n: x[..., [0, 0]].sum(-1)),
    Part("joined", lambda x, n: pt.concatenate([x[1:], x[:1]]).sum(), lambda x, n: x.sum(-1)),
    Part("stacked", lambda x, n: pt.stack([x[0], x[0], x[0]]).sum(), lambda x, n: 3 * x[..., 0]),
    part("max", lambda m, x, n: x.max(-1)),
    Part("var", lambda x, n: x.var(ddof=1), lambda x, n: x.var(-1, ddof=1)),
    Part("into zeros", _into_zeros, lambda x, n: x.sum(-1)),
)
SUMS, EACH_OF_THEM = REDUCE[:5], REDUCE[3]

AFTER = (
    part("s", lambda m, s, n: s),
    part("3 s - 1", lambda m, s, n: 3 * s - 1),
    part("s / 2", lambda m, s, n: s / 2),
    part("1.0 s", lambda m, s, n: 1.0 * s),
    part("n - s", lambda m, s, n: n - s),
    Part("int(s)", lambda s, n: s.astype("int64"), lambda s, n: np.trunc(s).astype("int64")),
    Part("round(s)", lambda s, n: pt.round(s.astype("float64")), lambda s, n: np.round(s)),
    part("s ** 2", lambda m, s, n: s**2),
)


# --- Noise ----------------------------------------------------------------------------------------


def _whole(log_mass):
    def logp(z, s):
        k = z - s
        near = np.round(k)
        with np.errstate(invalid="ignore"):
            return np.where(np.abs(k - near) < 1e-9, log_mass(near), -np.inf)

    return logp


_A = np.exp(-1 / 2.0)
_NORMALISER = np.log(np.exp(-(np.arange(-99, 100) ** 2) / 2 / 1.5**2).sum())


def _clipped(z, s):
    inside = stats.laplace.logpdf(z, s, 1.0)
    return np.where(z <= 0, stats.laplace.logcdf(0, s, 1.0), inside)


def _rounded(z, s):
    with np.errstate(divide="ignore"):
        return np.log(stats.norm.cdf(z + 0.05, s, 0.7) - stats.norm.cdf(z - 0.05, s, 0.7))


def _log_cell(law, low, high):
    """Log probability of a half-open cell by the nearer tail; the noise has no atoms."""
    with np.errstate(divide="ignore"):
        return np.log(
            np.where(
                np.abs(low) < np.abs(high),
                law.sf(low) - law.sf(high),
                law.cdf(high) - law.cdf(low),
            )
        )


def _truncated(z, s):
    low, high = np.where(z > 0, z, z - 1), np.where(z < 0, z, z + 1)
    return _log_cell(stats.norm(scale=0.7), low - s, high - s)


def _ceiled(z, s):
    return _log_cell(stats.laplace(), z - 2 - s, z - s)


def _withheld(z, s):
    """Laplace noise, withheld below 1."""
    value = np.where(np.isnan(z), 1.0, z)
    return np.where(np.isnan(z), stats.laplace.logcdf(1, s), stats.laplace.logpdf(value, s))


def _between(z, s):
    """Geometric noise, withheld between 0 and 3; it is on the whole numbers from s."""
    rest = s - np.floor(s)
    found = [np.where(rest + i > 0, _geometric(rest + i, s), -np.inf) for i in range(3)]
    value = np.where(np.isnan(z), 0.0, z)
    return np.where(np.isnan(z), np.logaddexp.reduce(found), _geometric(value, s))


def _random_rounding(z, s):
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(0.0, 1 - np.abs(z - s) / 3))


def _own():
    def logp(value, statistic):
        return pm.logp(pm.Logistic.dist(statistic, 1.0), value)

    def random(statistic, rng=None, size=None):
        return rng.logistic(statistic, 1.0, size)

    return dp.CustomMechanism(logp, random, log_concave=True)


_geometric = _whole(lambda k: np.log((1 - _A) / (1 + _A)) - np.abs(k) / 2.0)


# The mechanism, scipy's log density, draws.
MECHANISMS = {
    "Laplace(1)": (
        lambda: dp.LaplaceMechanism(1.0),
        lambda z, s: stats.laplace.logpdf(z, s, 1.0),
        lambda rng, s: s + rng.laplace(0, 1.0, np.shape(s)),
    ),
    "Gaussian(.7)": (
        lambda: dp.GaussianMechanism(0.7),
        lambda z, s: stats.norm.logpdf(z, s, 0.7),
        lambda rng, s: s + rng.normal(0, 0.7, np.shape(s)),
    ),
    "Laplace(1).clipped(0)": (
        lambda: dp.LaplaceMechanism(1.0).clipped(lower=0.0),
        _clipped,
        lambda rng, s: np.maximum(s + rng.laplace(0, 1.0, np.shape(s)), 0.0),
    ),
    "Gaussian(.7).rounded(1)": (
        lambda: dp.GaussianMechanism(0.7).rounded(1),
        _rounded,
        lambda rng, s: np.round(s + rng.normal(0, 0.7, np.shape(s)), 1),
    ),
    "Geometric(2)": (
        lambda: dp.GeometricMechanism(2.0),
        _geometric,
        lambda rng, s: s + rng.geometric(1 - _A, np.shape(s)) - rng.geometric(1 - _A, np.shape(s)),
    ),
    "DiscreteGaussian(1.5)": (
        lambda: dp.DiscreteGaussianMechanism(1.5),
        _whole(lambda k: -(k**2) / 2 / 1.5**2 - _NORMALISER),
        lambda rng, s: s + np.round(rng.normal(0, 1.5, np.shape(s))),  # near it: only a value
    ),
    "Gaussian(.7).truncated()": (
        lambda: dp.GaussianMechanism(0.7).truncated(),
        _truncated,
        lambda rng, s: np.trunc(s + rng.normal(0, 0.7, np.shape(s))),
    ),
    "Laplace(1).ceiled(2)": (
        lambda: dp.LaplaceMechanism(1.0).ceiled(base=2),
        _ceiled,
        lambda rng, s: 2 * np.ceil((s + rng.laplace(0, 1.0, np.shape(s))) / 2),
    ),
    "Laplace(1).suppressed(1)": (
        lambda: dp.LaplaceMechanism(1.0).suppressed(below=1.0),
        _withheld,
        lambda rng, s: (lambda z: np.where(z < 1, np.nan, z))(s + rng.laplace(0, 1, np.shape(s))),
    ),
    "Geometric(2).suppressed(1, 2)": (
        lambda: dp.GeometricMechanism(2.0).suppressed(above=0, below=3),
        _between,
        lambda rng, s: (lambda z: np.where((z > 0.5) & (z < 2.5), np.nan, z))(
            np.round(s + rng.laplace(0, 2.0, np.shape(s)))
        ),
    ),
    "RandomRounding(3)": (
        lambda: dp.RandomRounding(3),
        _random_rounding,
        lambda rng, s: 3 * np.floor(s / 3 + rng.random(np.shape(s))),
    ),
    "StudentT(3, 1)": (
        lambda: dp.StudentTMechanism(3, 1.0),
        lambda z, s: stats.t.logpdf(z, 3, s),
        lambda rng, s: s + rng.standard_t(3, np.shape(s)),
    ),
    "Uniform(2)": (
        lambda: dp.UniformMechanism(2.0),
        lambda z, s: stats.uniform.logpdf(z, s - 2, 4),
        lambda rng, s: s + rng.uniform(-2, 2, np.shape(s)),
    ),
    "Custom(logistic)": (
        _own,
        lambda z, s: stats.logistic.logpdf(z, s),
        lambda rng, s: rng.logistic(s, 1.0, np.shape(s)),
    ),
}
WHOLE_NOISE = ("Geometric(2)", "DiscreteGaussian(1.5)", "Geometric(2).suppressed(1, 2)")
# Of these statistics of binary records only: reports of each, and their number.
REPORTS = "RandomizedResponse(.8)"
MECHANISMS[REPORTS] = (
    lambda: dp.RandomizedResponse(0.8),
    lambda z, s: np.log(np.where(z == s, 0.8, 0.2)),
    lambda rng, s: np.where(rng.random(np.shape(s)) < 0.8, s, 1 - s),
)
MEMBERS = "Binomial(20, .5, 9)"
MECHANISMS[MEMBERS] = (
    lambda: dp.BinomialMechanism(20, 0.5, 9),
    lambda z, s: stats.binom.logpmf(z, 20, (s + 0.5) / 10),
    lambda rng, s: rng.binomial(20, (s + 0.5) / 10),
)
ANY = [name for name in MECHANISMS if name not in (REPORTS, MEMBERS)]


# --- A model --------------------------------------------------------------------------------------


LEVELS = ((0.25, 0.5), (0.6, 0.2), (0.9, 0.8))  # quantiles of the priors
ENOUGH = 2_000**-0.5  # the error of the log of a mean, of so many effective draws


@dataclass(frozen=True)
class Release:
    """A statistic, one or two of them joined, and a mechanism."""

    parts: tuple[tuple[Part, Part, Part], ...]
    mechanism: str

    def graph(self, x, n):
        """Return the statistic for PyTensor."""
        found = [
            after.graph(reduce.graph(each.graph(x, n), n), n) for each, reduce, after in self.parts
        ]
        if len(found) == 1:
            return found[0]
        if all(f.type.ndim == 0 for f in found):
            return pt.stack(found)
        return pt.concatenate([pt.atleast_1d(f) for f in found])

    def array(self, x, n):
        """Return the statistic of many sets of records, the last axis its entries."""
        found = []
        for each, reduce, after in self.parts:
            s = after.array(reduce.array(each.array(x, n), n), n).astype("float64")
            found.append(s if s.ndim > x.ndim - 1 else s[..., None])
        return np.concatenate(found, axis=-1)


@dataclass(frozen=True)
class Spec:
    """A model: its law, priors and the first parameter, the number of records, the releases."""

    law: str
    choices: tuple[int, ...]
    """Which priors the parameters have."""
    parameter: Part
    n: int
    releases: tuple[Release, ...]
    seed: int
    latent: bool = True
    """Whether the records are variables of the model."""

    @property
    def priors(self):
        """The priors by the names of the parameters, for PyMC and of scipy."""
        domains = LAWS[self.law][0]
        kinds = [PRIORS[d][k] for d, k in zip(domains, self.choices, strict=False)]
        return dict(zip(("theta", "phi"), kinds, strict=False))

    def draw(self, rng, parameters, size):
        """Draw records given parameters: one set of them, or arrays with a value for each set."""
        first, *others = (np.asarray(p, "float64")[..., None] for p in parameters)
        law = LAWS[self.law][2](self.parameter.array(first, self.n), *others)
        return law.rvs(size=(size, self.n), random_state=rng)

    def draw_prior(self, rng, size):
        """Draw the parameters, an array for each."""
        return [law.rvs(size=size, random_state=rng) for _, law in self.priors.values()]

    def published(self):
        """Return values that the model might have released."""
        rng = np.random.default_rng(self.seed)
        x = self.draw(rng, self.draw_prior(rng, 1), 1)
        found = []
        for release in self.releases:
            s = release.array(x, self.n)[0]
            z = MECHANISMS[release.mechanism][2](rng, s)
            found.append(np.round(z) if release.mechanism in WHOLE_NOISE else z)
        return found

    def log_likelihood(self, z, x):
        """Return log p(z | x) of many sets of records."""
        total = np.zeros(len(x))
        for release, value in zip(self.releases, z, strict=True):
            logp = MECHANISMS[release.mechanism][1]
            total = total + logp(value, release.array(x, self.n)).sum(-1)
        return total

    uses = property(lambda self: list(self.priors))
    named = ("'x'", "'z")  # in refusals

    def tried(self):
        """Return points to compare at, and what was released."""
        laws = {name: law for name, (_, law) in self.priors.items()}
        points = [
            {name: law.ppf(q) for (name, law), q in zip(laws.items(), at, strict=False)}
            for at in LEVELS
        ]
        return points, self.published()

    def log_density(self, point, z, rng, size):
        """Return log p(z | point), averaged over draws of the records, and its error.

        Where they come to fewer than 2,000 effective ones, many more are drawn.
        """
        for many in (size, 30 * size):
            found = average(self.log_likelihood(z, self.draw(rng, point.values(), many)))
            if found[1] < ENOUGH:
                break
        return found

    def build(self, z):
        """Write the model for PyMC."""
        with pm.Model() as model:
            first, *others = [prior(name) for name, (prior, _) in self.priors.items()]
            law, *arguments = LAWS[self.law][1](self.parameter.graph(first, self.n), *others)
            new = partial(law, "x") if self.latent else law.dist
            x = new(*arguments, shape=self.n)
            for i, (release, value) in enumerate(zip(self.releases, z, strict=True)):
                statistic = release.graph(x, self.n)
                observed = value if statistic.type.ndim else value[0]
                mechanism = MECHANISMS[release.mechanism][0]()
                dp.PrivateObservation(f"z{i}", statistic, mechanism, observed=observed)
        return model


class Drawn:
    """Models whose parameters are drawn: `draw_parameters`, `published`."""

    named = ("'x'", "x[", "_x'", "'z", "'n'")

    def tried(self):
        """Return points to compare at, one of them and two near it, and what was released."""
        rng = np.random.default_rng([self.seed, 0])
        first = self.draw_parameters(rng)
        points = [first, *(self.draw_parameters(rng, near=first) for _ in range(2))]
        return points, self.published(rng, first)


def average(logs):
    """Return the log of the mean of exponentials, and its standard error."""
    top = logs.max()
    if not top > -np.inf:
        return -np.inf, np.inf
    weights = np.exp(logs - top)
    mean = weights.mean()
    return top + np.log(mean), weights.std() / mean / np.sqrt(weights.size)


def chooser(rng):
    """Return the function that draws one of a choice, the first of it more often."""

    def choose(choice, plain=0.0):
        choice = list(choice)
        return choice[0] if rng.random() < plain else choice[rng.integers(len(choice))]

    return choose


def random_spec(seed):
    """Draw a model; the first of a choice, which most rungs take, comes more often."""
    rng = np.random.default_rng(seed)

    choose = chooser(rng)
    law = choose(LAWS)
    domains = LAWS[law][0]
    choices = tuple(choose(range(len(PRIORS[d])), 0.5) for d in domains)
    real = domains[0] == "real"
    parameter = choose(PARAMETERS[:REAL_PARAMETERS] if real else PARAMETERS, 0.6)
    latent = bool(rng.random() < 0.8)
    releases = []
    for _ in range(choose([1, 1, 1, 1, 2, 3]) if latent else 1):
        parts = tuple(
            (
                choose(EACH, 0.6),
                choose(SUMS if rng.random() < 0.7 else REDUCE, 0.3),
                choose(AFTER, 0.6),
            )
            for _ in range(choose([1, 1, 1, 2]))
        )
        if not latent and rng.random() < 0.8:  # what is integrated out is released as it is
            parts = ((EACH[0], EACH_OF_THEM, AFTER[0]),)
        releases.append(Release(parts, choose(ANY)))
    if law == "Bernoulli(t)" and rng.random() < 0.3:
        reduce, mechanism = choose([(EACH_OF_THEM, REPORTS), (REDUCE[0], MEMBERS)])
        releases = [Release(((EACH[0], reduce, AFTER[0]),), mechanism)]
    labels = [each.label for release in releases for each, _, _ in release.parts]
    if max(map(labels.count, ("data x", "x ** data"))) > 1:  # one name can be there only once
        releases = [Release(releases[0].parts[:1], releases[0].mechanism)]
    n = int(rng.integers(2, 7))
    return Spec(law, choices, parameter, n, tuple(releases), seed, latent)


def simpler(spec):
    """Yield models that are a little simpler: with fewer parts, records and releases."""
    for i, release in enumerate(spec.releases):
        rest = spec.releases[:i] + spec.releases[i + 1 :]
        if rest:
            yield replace(spec, releases=rest)
        for j, part in enumerate(release.parts):
            others = release.parts[:j] + release.parts[j + 1 :]
            plain = [
                (*part[:k], choice[0], *part[k + 1 :])
                for k, choice in enumerate((EACH, REDUCE, AFTER))
                if part[k] is not choice[0]
            ]
            if release.mechanism == REPORTS:
                continue
            shorter = [(*release.parts[:j], p, *release.parts[j + 1 :]) for p in plain]
            for parts in [others] * bool(others) + shorter:
                new = replace(release, parts=parts)
                yield replace(spec, releases=(*spec.releases[:i], new, *spec.releases[i + 1 :]))
    if spec.parameter is not PARAMETERS[0]:
        yield replace(spec, parameter=PARAMETERS[0])
    if any(spec.choices):
        yield replace(spec, choices=(0,) * len(spec.choices))
    if spec.n > 2:
        yield replace(spec, n=2)
