"""Random small models with private releases, each written twice: for PyMC, and in plain numpy.

The numpy side knows nothing of the package: laws and noise are scipy's, an expression is evaluated
as numpy evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
    """Return a part that is written alike for both; `both` takes the module and the value."""
    return Part(label, lambda v: both(pt, v), lambda v: both(np, v))


# --- Priors, and laws of the records --------------------------------------------------------------

REAL = ("Normal(0, 1)", lambda: pm.Normal("theta", 0, 1), stats.norm(0, 1))
POSITIVE = ("Gamma(4, 2)", lambda: pm.Gamma("theta", 4, 2), stats.gamma(4, scale=0.5))
SHARE = ("Beta(2, 2)", lambda: pm.Beta("theta", 2, 2), stats.beta(2, 2))

# By name: the prior of theta, the records for PyMC, and draws of them for numpy.
LAWS = {
    "Normal(t, 1)": (
        REAL,
        lambda t, n: pm.Normal("x", t, 1, shape=n),
        lambda rng, t, size: rng.normal(t, 1, size),
    ),
    "Normal(1, t)": (
        POSITIVE,
        lambda t, n: pm.Normal("x", 1, t, shape=n),
        lambda rng, t, size: rng.normal(1, t, size),
    ),
    "Exponential(t)": (
        POSITIVE,
        lambda t, n: pm.Exponential("x", t, shape=n),
        lambda rng, t, size: rng.exponential(1 / t, size),
    ),
    "Gamma(2, t)": (
        POSITIVE,
        lambda t, n: pm.Gamma("x", 2, t, shape=n),
        lambda rng, t, size: rng.gamma(2, 1 / t, size),
    ),
    "Poisson(t)": (
        POSITIVE,
        lambda t, n: pm.Poisson("x", t, shape=n),
        lambda rng, t, size: rng.poisson(t, size),
    ),
    "Geometric(t)": (
        SHARE,
        lambda t, n: pm.Geometric("x", t, shape=n),
        lambda rng, t, size: rng.geometric(t, size),
    ),
    "Bernoulli(t)": (
        SHARE,
        lambda t, n: pm.Bernoulli("x", t, shape=n),
        lambda rng, t, size: rng.binomial(1, t, size),
    ),
    "Binomial(5, t)": (
        SHARE,
        lambda t, n: pm.Binomial("x", 5, t, shape=n),
        lambda rng, t, size: rng.binomial(5, t, size),
    ),
    "Categorical(t, ...)": (
        SHARE,
        lambda t, n: pm.Categorical("x", pt.stack([t, (1 - t) / 3, 2 * (1 - t) / 3]), shape=n),
        lambda rng, t, size: np.searchsorted(np.cumsum([t, (1 - t) / 3]), rng.random(size)),
    ),
    "Uniform(0, t)": (
        POSITIVE,
        lambda t, n: pm.Uniform("x", 0, t, shape=n),
        lambda rng, t, size: rng.uniform(0, t, size),
    ),
}

# What the law's parameter is of theta: positive and in (0, 1) where theta is.
PARAMETERS = (
    part("theta", lambda m, t: t),
    part("theta / 2", lambda m, t: t / 2),
    Part("[theta, 9][0]", lambda t: pt.stack([t, 9.0])[0], lambda t: t),
    Part("[9, theta][None][0, 1]", lambda t: pt.stack([9.0, t])[None][0, 1], lambda t: t),
    Part(
        "(floor(2 theta) + 1) / 9",
        lambda t: (pt.floor(2 * t) + 1) / 9,
        lambda t: (np.floor(2 * t) + 1) / 9,
    ),
    Part(
        "(int(2 theta) + 1) / 9",
        lambda t: ((2 * t).astype("int64") + 1) / 9,
        lambda t: (np.trunc(2 * t) + 1) / 9,
    ),
    Part(
        "switch(theta > .5, theta, .5)",
        lambda t: pt.switch(t > 0.5, t, 0.5),
        lambda t: np.where(t > 0.5, t, 0.5),
    ),
    Part("data * theta", lambda t: pm.Data("half", 0.5) * t, lambda t: 0.5 * t),
)

# --- Statistics -----------------------------------------------------------------------------------

EACH = (
    part("x", lambda m, x: x),
    part("2 x + 1", lambda m, x: 2 * x + 1),
    part("x / 2", lambda m, x: x / 2),
    part("-x", lambda m, x: -x),
    part("clip(x, 0, 2)", lambda m, x: m.clip(x, 0, 2)),
    part("x > 1", lambda m, x: x > 1),
    part("1 - (x > 1)", lambda m, x: 1 - (x > 1).astype("int64")),
    part("x ** 2", lambda m, x: x**2),
    part("abs(x - 1)", lambda m, x: abs(x - 1)),
    part("minimum(x, 1)", lambda m, x: m.minimum(x, 1)),
    Part("int(x)", lambda x: x.astype("int64"), lambda x: np.trunc(x).astype("int64")),
    Part("floor(x)", lambda x: pt.floor(x) if x.dtype == "float64" else x, np.floor),
    Part("x // 2", lambda x: x // 2, lambda x: x // 2),
    Part("bool(x)", lambda x: x.astype("bool"), lambda x: x != 0),
    Part("float(x)", lambda x: x.astype("float64"), lambda x: x.astype("float64")),
    Part("switch(x > 1, x, 0)", lambda x: pt.switch(x > 1, x, 0), lambda x: np.where(x > 1, x, 0)),
    Part("x[::-1]", lambda x: x[::-1], lambda x: x[..., ::-1]),
    Part("data x", lambda x: pm.Data("two", 2.0) * x, lambda x: 2.0 * x),
)


def _weights(n):
    return np.arange(n) % 3


REDUCE = (
    Part("sum", lambda x, n: x.sum(), lambda x, n: x.sum(-1)),
    Part("mean", lambda x, n: x.mean(), lambda x, n: x.mean(-1)),
    Part("dot ones", lambda x, n: pt.dot(np.ones(n), x), lambda x, n: x.sum(-1)),
    Part("dot weights", lambda x, n: pt.dot(_weights(n), x), lambda x, n: x @ _weights(n)),
    Part("first", lambda x, n: x[0], lambda x, n: x[..., 0]),
    Part("all but one", lambda x, n: x[1:].sum(), lambda x, n: x[..., 1:].sum(-1)),
    Part("[0, 0, 1]", lambda x, n: x[[0, 0, 1]].sum(), lambda x, n: x[..., [0, 0, 1]].sum(-1)),
    Part("joined", lambda x, n: pt.concatenate([x[1:], x[:1]]).sum(), lambda x, n: x.sum(-1)),
    Part("stacked", lambda x, n: pt.stack([x[i] for i in range(n)]).sum(), lambda x, n: x.sum(-1)),
    Part("max", lambda x, n: x.max(), lambda x, n: x.max(-1)),
    Part(
        "into zeros",
        lambda x, n: pt.inc_subtensor(pt.zeros(2)[0], x.sum())[0],
        lambda x, n: x.sum(-1),
    ),
)

SUMS = REDUCE[:3]

AFTER = (
    part("s", lambda m, s: s),
    part("3 s - 1", lambda m, s: 3 * s - 1),
    part("s / 2", lambda m, s: s / 2),
    part("1.0 s", lambda m, s: 1.0 * s),
    Part("int(s)", lambda s: s.astype("int64"), lambda s: np.trunc(s).astype("int64")),
    Part("round(s)", lambda s: pt.round(s.astype("float64")), np.round),
    part("s ** 2", lambda m, s: s**2),
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


# The mechanism, scipy's log density, draws, and whether its noise is of whole numbers.
MECHANISMS = {
    "Laplace(1)": (
        lambda: dp.LaplaceMechanism(1.0),
        lambda z, s: stats.laplace.logpdf(z, s, 1.0),
        lambda rng, s: s + rng.laplace(0, 1.0, np.shape(s)),
        False,
    ),
    "Gaussian(.7)": (
        lambda: dp.GaussianMechanism(0.7),
        lambda z, s: stats.norm.logpdf(z, s, 0.7),
        lambda rng, s: s + rng.normal(0, 0.7, np.shape(s)),
        False,
    ),
    "Laplace(1).clipped(0)": (
        lambda: dp.LaplaceMechanism(1.0).clipped(lower=0.0),
        _clipped,
        lambda rng, s: np.maximum(s + rng.laplace(0, 1.0, np.shape(s)), 0.0),
        False,
    ),
    "Geometric(2)": (
        lambda: dp.GeometricMechanism(2.0),
        _whole(lambda k: np.log((1 - _A) / (1 + _A)) - np.abs(k) / 2.0),
        lambda rng, s: s + rng.geometric(1 - _A, np.shape(s)) - rng.geometric(1 - _A, np.shape(s)),
        True,
    ),
    "DiscreteGaussian(1.5)": (
        lambda: dp.DiscreteGaussianMechanism(1.5),
        _whole(lambda k: -(k**2) / 2 / 1.5**2 - _NORMALISER),
        lambda rng, s: s + np.round(rng.normal(0, 1.5, np.shape(s))),  # near it: only a value
        True,
    ),
}


# --- A model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Release:
    """A statistic, one or two of them stacked, and a mechanism."""

    parts: tuple[tuple[Part, Part, Part], ...]
    mechanism: str

    def graph(self, x, n):
        """Return the statistic for PyTensor."""
        found = [after.graph(reduce.graph(each.graph(x), n)) for each, reduce, after in self.parts]
        return found[0] if len(found) == 1 else pt.stack(found)

    def array(self, x, n):
        """Return the statistic of many sets of records, the last axis its entries."""
        found = [after.array(reduce.array(each.array(x), n)) for each, reduce, after in self.parts]
        return np.stack([np.asarray(f, "float64") for f in found], axis=-1)


@dataclass(frozen=True)
class Spec:
    """A model: its law, the parameter of it, the number of records, and the releases."""

    law: str
    parameter: Part
    n: int
    releases: tuple[Release, ...]
    seed: int

    @property
    def prior(self):
        """The law of theta."""
        return LAWS[self.law][0][2]

    def draw(self, rng, theta, size):
        """Draw records given theta."""
        t = float(self.parameter.array(theta))
        return LAWS[self.law][2](rng, t, (size, self.n))

    def published(self):
        """Return values that the model might have released."""
        rng = np.random.default_rng(self.seed)
        x = self.draw(rng, self.prior.rvs(random_state=rng), 1)
        found = []
        for release in self.releases:
            s = release.array(x, self.n)[0]
            z = MECHANISMS[release.mechanism][2](rng, s)
            if MECHANISMS[release.mechanism][3]:
                z = np.round(z)
            found.append(z)
        return found

    def log_density(self, theta, z, rng, size):
        """Return log p(z | theta), averaged over draws of the records, and its standard error."""
        x = self.draw(rng, theta, size)
        total = np.zeros(size)
        for release, value in zip(self.releases, z, strict=True):
            logp = MECHANISMS[release.mechanism][1]
            total = total + logp(value, release.array(x, self.n)).sum(-1)
        return average(total)

    def build(self, z):
        """Write the model for PyMC."""
        _, prior, _ = LAWS[self.law][0]
        with pm.Model() as model:
            x = LAWS[self.law][1](self.parameter.graph(prior()), self.n)
            for i, (release, value) in enumerate(zip(self.releases, z, strict=True)):
                statistic = release.graph(x, self.n)
                observed = value[0] if len(release.parts) == 1 else value
                mechanism = MECHANISMS[release.mechanism][0]()
                dp.PrivateObservation(f"z{i}", statistic, mechanism, observed=observed)
        return model


def average(logs):
    """Return the log of the mean of exponentials, and its standard error."""
    top = logs.max()
    if not top > -np.inf:
        return -np.inf, np.inf
    weights = np.exp(logs - top)
    mean = weights.mean()
    return top + np.log(mean), weights.std() / mean / np.sqrt(weights.size)


def random_spec(seed):
    """Draw a model; the first of a choice, which most rungs take, comes more often."""
    rng = np.random.default_rng(seed)

    def choose(choice, plain=0.0):
        return choice[0] if rng.random() < plain else choice[rng.integers(len(choice))]

    law = choose(list(LAWS))
    parameter = choose(PARAMETERS[:4] if LAWS[law][0] is REAL else PARAMETERS, 0.6)
    releases = []
    for _ in range(choose([1, 1, 1, 1, 2])):
        parts = tuple(
            (choose(EACH, 0.6), choose(SUMS if rng.random() < 0.7 else REDUCE), choose(AFTER, 0.3))
            for _ in range(choose([1, 1, 1, 2]))
        )
        releases.append(Release(parts, choose(list(MECHANISMS))))
    labels = [each.label for release in releases for each, _, _ in release.parts]
    if labels.count("data x") > 1:  # one name can be there only once
        releases = [Release(releases[0].parts[:1], releases[0].mechanism)]
    return Spec(law, parameter, int(rng.integers(2, 7)), tuple(releases), seed)


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
            shorter = [(*release.parts[:j], p, *release.parts[j + 1 :]) for p in plain]
            for parts in [others] * bool(others) + shorter:
                new = replace(release, parts=parts)
                yield replace(spec, releases=(*spec.releases[:i], new, *spec.releases[i + 1 :]))
    if spec.parameter is not PARAMETERS[0]:
        yield replace(spec, parameter=PARAMETERS[0])
    if spec.n > 2:
        yield replace(spec, n=2)
