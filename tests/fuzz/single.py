"""Random models whose values are released one by one, for PyMC and by quadrature in numpy."""

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import optimize, special, stats

import pymc_dp as dp
from tests.fuzz import producers
from tests.fuzz.exact import _TAILS, _panels
from tests.fuzz.producers import Producer

# --- Laws -----------------------------------------------------------------------------------------

R, P, S = "real", "positive", "share"
# The domains of t, and of u where there is one; of t, u and the public unit c, the law for PyMC and
# scipy's: one, or parts with weights; the ends that values are censored at, in units.
LAWS: dict[str, Any] = {
    "Normal": (R + " " + P, lambda t, u, c: (pm.Normal, c * t, c * u),
               lambda t, u, c: stats.norm(c * t, c * u)),
    "StudentT": (R + " " + P, lambda t, u, c: (partial(_student, c * t, c * u),),
                 lambda t, u, c: stats.t(4, c * t, c * u)),
    "Cauchy": (R, lambda t, u, c: (pm.Cauchy, c * t, c), lambda t, u, c: stats.cauchy(c * t, c)),
    "Laplace": (R + " " + P, lambda t, u, c: (pm.Laplace, c * t, c * u),
                lambda t, u, c: stats.laplace(c * t, c * u)),
    "Uniform(-1, 2)": (R, lambda t, u, c: (pm.Uniform, -c, 2 * c),
                       lambda t, u, c: stats.uniform(-c, 3 * c)),
    "normals": (R, lambda t, u, c: (pm.Mixture, [0.3, 0.7], [pm.Normal.dist(c * t, c),
                                                             pm.Normal.dist(-c, 2 * c)]),
                lambda t, u, c: [(0.3, stats.norm(c * t, c)), (0.7, stats.norm(-c, 2 * c))]),
    "NormalMixture": (
        R, lambda t, u, c: (pm.NormalMixture, [0.3, 0.7], pt.stack([c * t, c * t + c], -1), c / 2),
        lambda t, u, c: [(0.3, stats.norm(c * t, c / 2)), (0.7, stats.norm(c * t + c, c / 2))]),
    "Censored": (R, lambda t, u, c: (pm.Censored, pm.Normal.dist(c * t, c), 0.2 * c, 1.2 * c),
                 lambda t, u, c: stats.norm(c * t, c), 0.2, 1.2),
    "LogNormal": (R, lambda t, u, c: (pm.LogNormal, t + np.log(c), 0.5),
                  lambda t, u, c: stats.lognorm(0.5, 0, c * np.exp(t))),
    "TruncatedNormal": (R, lambda t, u, c: (partial(_truncated, c * t, c),),
                        lambda t, u, c: stats.truncnorm(-t, np.inf, c * t, c)),
    "Gamma": (P + " " + P, lambda t, u, c: (pm.Gamma, u, t / c),
              lambda t, u, c: stats.gamma(u, 0, c / t)),
    "Exponential": (P, lambda t, u, c: (pm.Exponential, t / c),
                    lambda t, u, c: stats.expon(0, c / t)),
    "InverseGamma": (P, lambda t, u, c: (pm.InverseGamma, 3, c * t),
                     lambda t, u, c: stats.invgamma(3, 0, c * t)),
    "HalfNormal": (P, lambda t, u, c: (pm.HalfNormal, c * t),
                   lambda t, u, c: stats.halfnorm(0, c * t)),
    "Weibull": (P + " " + P, lambda t, u, c: (pm.Weibull, u + 0.5, c * t),
                lambda t, u, c: stats.weibull_min(u + 0.5, 0, c * t)),
    "Uniform(0, t)": (P, lambda t, u, c: (pm.Uniform, 0, c * t),
                      lambda t, u, c: stats.uniform(0, c * t)),
    "censored gammas": (P, lambda t, u, c: (pm.Censored, pm.Gamma.dist(2, t / c), None, 2 * c),
                        lambda t, u, c: stats.gamma(2, 0, c / t), -np.inf, 2.0),
    "Beta": (P + " " + P, lambda t, u, c: (pm.Beta, t + 0.3, u + 0.5),
             lambda t, u, c: stats.beta(t + 0.3, u + 0.5)),
    "Poisson": (P, lambda t, u, c: (pm.Poisson, 3 * t), lambda t, u, c: stats.poisson(3 * t)),
    "NegativeBinomial": (P + " " + P, lambda t, u, c: (pm.NegativeBinomial, 3 * t, u),
                         lambda t, u, c: stats.nbinom(u, u / (u + 3 * t))),
    "Binomial": (S, lambda t, u, c: (pm.Binomial, 9, t), lambda t, u, c: stats.binom(9, t)),
    "Bernoulli": (S, lambda t, u, c: (pm.Bernoulli, t), lambda t, u, c: stats.binom(1, t)),
    "ZeroInflated": (S, lambda t, u, c: (pm.ZeroInflatedPoisson, t, 4.0),
                     lambda t, u, c: [(1 - t, stats.randint(0, 1)), (t, stats.poisson(4.0))]),
    "DiscreteUniform": (S, lambda t, u, c: (pm.DiscreteUniform, 0, 6),
                        lambda t, u, c: stats.randint(0, 7)),
    "Geometric": (S, lambda t, u, c: (pm.Geometric, t), lambda t, u, c: stats.geom(t)),
    "poissons": (P, lambda t, u, c: (pm.Mixture, [0.3, 0.7], [pm.Poisson.dist(t),
                                                              pm.Poisson.dist(5 * t)]),
                 lambda t, u, c: [(0.3, stats.poisson(t)), (0.7, stats.poisson(5 * t))]),
    "censored counts": (P, lambda t, u, c: (pm.Censored, pm.Poisson.dist(3 * t), 1, 4),
                        lambda t, u, c: stats.poisson(3 * t), 1.0, 4.0),
}  # fmt: skip
NAMES = list(LAWS)
SHARES, WHOLE = ("Beta",), NAMES[NAMES.index("Poisson") :]
POSITIVE = NAMES[NAMES.index("LogNormal") :]


def _truncated(mu, sigma, *name, **size):
    new = pm.TruncatedNormal if name else pm.TruncatedNormal.dist
    return new(*name, mu=mu, sigma=sigma, lower=0, **size)


def _student(mu, sigma, *name, **size):
    return (pm.StudentT if name else pm.StudentT.dist)(*name, nu=4, mu=mu, sigma=sigma, **size)


# The function of a value; where it has a value; where it bends.
EACH: dict[str, Any] = {
    "x": (lambda m, x: x, lambda y: [y]),
    "2 x - 1": (lambda m, x: 2 * x - 1, lambda y: [(y + 1) / 2]),
    "3 x + 1": (lambda m, x: 3 * x + 1, lambda y: [(y - 1) / 3]),
    "-x": (lambda m, x: -x, lambda y: [-y]),
    "clip(x, 0, 2)": (lambda m, x: m.clip(x, 0, 2), lambda y: [y], 0, 2),
    "x ** 2": (lambda m, x: x**2, lambda y: [np.sqrt(y), -np.sqrt(y)], 0),
    "abs(x - 1)": (lambda m, x: abs(x - 1), lambda y: [1 - y, 1 + y], 1),
    "x > 1": (lambda m, x: x > 1, lambda y: [], 1),
    "clip(x, -1, 1)": (lambda m, x: m.clip(x, -1, 1), lambda y: [y], -1, 1),
    "exp(x)": (lambda m, x: m.exp(x), lambda y: [np.log(y)]),
    "sigmoid(x)": (lambda m, x: 1 / (1 + m.exp(-x)), lambda y: [special.logit(y)]),
    "pm sigmoid(x)": (lambda m, x: pm.math.sigmoid(x) if m is pt else special.expit(x),
                      lambda y: [special.logit(y)]),
    "log1p(x)": (lambda m, x: m.log1p(x), lambda y: [np.expm1(y)]),
    "sqrt(x)": (lambda m, x: m.sqrt(x), lambda y: [y * y]),
}  # fmt: skip
OF_ANY, OF_WHOLE = list(EACH)[:-2], list(EACH)[:8]
IN_UNITS = OF_ANY[:4]  # others are of values near one

# --- Noise ----------------------------------------------------------------------------------------


def _log1m(log):
    return np.log(-np.expm1(np.minimum(log, 0.0)))


@dataclass(frozen=True)
class Noise:
    """The mechanism, the log density of releases, where it bends, and a release of statistics."""

    mechanism: Any
    logp: Any
    kinks: Any
    near: Any
    log_below: Any = None
    """Log probability of less than a value, or at most it, of noise added from a symmetric law."""
    gap: float = 0.0
    """From a value to more than it."""

    def mass(self, low, high, s, closed=False):
        """Log probability of low <= Z < high, or <= high, by the nearer tail."""
        a, b = low - s, high - s
        most = np.where(a > 0, self.log_below(-a, True), self.log_below(b, closed))
        less = np.where(a > 0, self.log_below(-b, not closed), self.log_below(a, False))
        return most + _log1m(np.where(most > -np.inf, less - most, -np.inf))


def _added(mechanism, logp, log_cdf, b, kinks=(0.0,), whole=False, most=np.inf):
    kinks = np.array(kinks)

    def log_below(d, closed):
        return log_cdf((np.floor(d) if closed else np.ceil(d) - 1) if whole else d)

    def near(rng, s):
        z = s + np.clip(b * rng.laplace(size=np.shape(s)), -0.9 * most, 0.9 * most)
        return np.round(z) if whole else z

    return Noise(
        mechanism, lambda z, s: logp(z - s), lambda z: z - kinks, near, log_below, whole / 2
    )


def _of(mechanism, law, b, *kinks, **more):
    return _added(mechanism, law.logpdf, law.logcdf, b, kinks or (0.0,), **more)


def _laplace_cdf(d):
    return np.where(d < 0, np.minimum(d, 0) - np.log(2), np.log1p(-np.exp(-abs(d)) / 2))


def _lattice(mechanism, log_mass, b):
    k = np.arange(-(reach := int(60 * b + 3_000)), reach + 1)
    log = log_mass(k) - special.logsumexp(log_mass(k))

    def at(d, table, beyond):
        i = np.clip(np.nan_to_num(d), -reach - 1, reach + 1).astype(int) + reach
        inside = (i >= 0) & (i < table.size) & (d == np.round(d))
        found = table[np.clip(i, 0, table.size - 1)]
        return np.where(inside, found, np.where(d > 0, beyond, -np.inf))

    below = np.logaddexp.accumulate(log)
    return _added(
        mechanism, lambda d: at(d, log, -np.inf), lambda d: at(d, below, 0.0), b, whole=True
    )


def _stairs(mechanism, eps, b, gamma, cut=0.0):
    top = np.log(-np.expm1(-eps) / 2 / (gamma + np.exp(-eps) * (1 - gamma)))

    def log_tail(x):  # what is left of a step, and all further ones
        x = np.minimum(x, 1e6)
        j = np.floor(x + 1 - gamma)
        return top - j * eps + np.log(j + gamma - x + np.exp(-eps) / -np.expm1(-eps))

    end = np.inf
    if cut:
        end = optimize.brentq(lambda x: np.exp(log_tail(x)) - cut / 2, 0, 100, xtol=1e-15)

    def logp(d):
        height = top - np.floor(abs(d / b) + 1 - gamma) * eps - np.log(b * (1 - cut))
        return np.where(abs(d) <= b * end, height, -np.inf)

    def log_cdf(d):
        tail = log_tail(abs(d / b))
        if cut:
            tail = np.log(np.maximum(np.exp(tail) - cut / 2, 0) / (1 - cut))
        return np.where(d < 0, tail, _log1m(tail))

    j = gamma + np.arange(1200.0)
    j = np.append(j[j < end], [end] if cut else [])
    return _added(mechanism, logp, log_cdf, b, b * np.append(-j, j), most=b * end)


def _logistic(b):
    def random(s, rng=None, size=None):
        return rng.logistic(s, b, size)

    def law(s):
        return pm.Logistic.dist(s, b)

    mechanism = dp.CustomMechanism(
        lambda z, s: pm.logp(law(s), z), random, logcdf=lambda z, s: pm.logcdf(law(s), z),
        log_concave=True,
    )  # fmt: skip
    return _of(mechanism, stats.logistic(0, b), b)


def _piecewise(b):
    e = np.exp(0.5)
    c = (e + 1) / (e - 1)
    log_high, log_low = np.log(e / (e + 1) / (c - 1)), -np.log((e + 1) * (c + 1))

    def logp(z, s, m=np):
        left = (c + 1) / 2 * s - (c - 1) / 2
        where = pt.switch if m is pt else np.where
        far = where(abs(z) <= c, log_low, -np.inf)
        return where((z >= left) & (z <= left + c - 1), log_high, far)

    def random(s, rng=None, size=None):
        s = np.broadcast_to(s, np.shape(s) if size is None else size)
        left, u = (c + 1) / 2 * s - (c - 1) / 2, (c + 1) * rng.random(s.shape)
        inside = left + (c - 1) * rng.random(s.shape)
        return np.where(
            rng.random(s.shape) < e / (e + 1), inside, np.where(u < left + c, u - c, u - 1)
        )

    mechanism = dp.CustomMechanism(partial(logp, m=pt), random, tried_at=(-0.7, 0.0, 0.5))
    ends = np.array([-1, 1]) * (c - 1)
    return Noise(mechanism, logp, lambda z: (2 * z + ends) / (c + 1),
                 lambda rng, s: random(np.clip(s, -1, 1), rng))  # fmt: skip


def _growing(b):
    def logp(z, s):
        scale = b * (1 + 0.1 * abs(s))
        return -abs(z - s) / scale - (pt if hasattr(scale, "owner") else np).log(2 * scale)

    def random(s, rng=None, size=None):
        return rng.laplace(s, b * (1 + 0.1 * abs(s)), size)

    mechanism = dp.CustomMechanism(logp, random)
    return Noise(mechanism, logp, lambda z: [z, 0.0], lambda rng, s: random(s, rng))


def _bounded(name, b, m):
    low, high = m - 2 * b, m + b
    size = high - low
    mechanism = getattr(dp, name)(b, low, high)
    law = stats.laplace(0, b)

    def bounded(z, s):
        s = np.clip(s, low, high)
        return law.logpdf(z - s) - np.log(law.cdf(high - s) - law.cdf(low - s))

    def folded(z, s):
        s = (s - low) % (2 * size)
        near = [size - abs(d) % (2 * size) for d in (z - low - s, z - low + s)]
        images = special.logsumexp([v / b * sign for v in near for sign in (-1, 1)], axis=0)
        return images - size / b - np.log(2 * b) - np.log1p(-np.exp(-2 * size / b))

    logp = bounded if name == "BoundedLaplaceMechanism" else folded
    return Noise(
        mechanism, lambda z, s: np.where((z >= low) & (z <= high), logp(z, s), -np.inf),
        lambda z: np.add.outer([low, z, 2 * low - z], size * np.arange(-60, 61)).ravel()
        if logp is folded else [z, low, high],
        lambda rng, s: np.clip(s + b * rng.laplace(size=np.shape(s)), low, high),
    )  # fmt: skip


def _snapping(b, m):
    low, high, step = m - 3.3 * b, m + 2.2 * b, 2.0 ** np.ceil(np.log2(b))
    middle = (low + high) / 2
    noise = _of(dp.SnappingMechanism(b, low, high), stats.laplace(0, b), b)
    first = middle + step * (np.floor((low - middle) / step) + 0.5)
    last = middle + step * (np.ceil((high - middle) / step) - 0.5)

    def cell(z):
        return (-np.inf, first) if z <= low else (last, np.inf) if z >= high else (
            z - step / 2, z + step / 2)  # fmt: skip

    def near(rng, s):
        z = middle + step * np.round((noise.near(rng, np.clip(s, low, high)) - middle) / step)
        return np.clip(z, low, high)

    return Noise(noise.mechanism, lambda z, s: noise.mass(*cell(z), np.clip(s, low, high)),
                 lambda z: np.array([*cell(z), low, high]), near)  # fmt: skip


def _factor(mechanism, logp, ends, draw):
    def log_density(z, s):
        size = np.where(s == 0, 1.0, s)
        f = z / size
        found = np.where(f > 0, logp(np.where(f > 0, f, 1.0)) - np.log(abs(size)), -np.inf)
        return np.where(s == 0, np.where(z == 0, 0.0, -np.inf), found)

    return Noise(mechanism, log_density, lambda z: np.append(z / np.array(ends), 0.0),
                 lambda rng, s: s * draw(rng, np.shape(s)))  # fmt: skip


def _two_sided(d, low=0.05, high=0.25):
    d = abs(d - 1)
    height = 2 * np.log(high - low)
    return np.where((d >= low) & (d < high), np.log(np.maximum(high - d, 1e-300)) - height, -np.inf)


_TABLE = np.array([[0, 0, 1, 0, 0], [0, 0.6, 0, 0.2, 0.2], [0.1, 0, 0.7, 0.2, 0]])


def _cell_key(z, s):
    count = (s >= 0) & (s == np.floor(s)) & (abs(z - s) <= 2)
    row, column = np.where(count, np.minimum(s, 2), 0), np.where(count, z - s + 2, 0)
    return np.where(count, np.log(_TABLE[row.astype(int), column.astype(int)]), -np.inf)


def _whole_between(low, high, draw):
    return lambda rng, s: np.clip(draw(rng, s), low, high)


# Of a scale b and a middle m of the statistics.
NOISE: dict[str, Any] = {
    "Laplace": lambda b, m: _added(dp.LaplaceMechanism(b), stats.laplace(0, b).logpdf,
                                   lambda d: _laplace_cdf(d / b), b),
    "Gaussian": lambda b, m: _of(dp.GaussianMechanism(b), stats.norm(0, b), b),
    "StudentT": lambda b, m: _of(dp.StudentTMechanism(3, b), stats.t(3, 0, b), b),
    "Cauchy": lambda b, m: _of(dp.CauchyMechanism(b), stats.cauchy(0, b), b),
    "Uniform": lambda b, m: _of(dp.UniformMechanism(b), stats.uniform(-b, 2 * b), b, -b, b, most=b),
    "Staircase": lambda b, m: _stairs(dp.StaircaseMechanism(1.0, b), 1.0, b, special.expit(-0.5)),
    "Staircase(.75)": lambda b, m: _stairs(dp.StaircaseMechanism(3.0, b, 0.75), 3.0, b, 0.75),
    "Tulap": lambda b, m: _stairs(dp.TulapMechanism(1.0, 0.05, b), 1.0, b, 0.5,
                                  0.1 / (0.1 + np.expm1(1.0))),
    "logistic": lambda b, m: _logistic(b),
    "piecewise": lambda b, m: _piecewise(b),
    "growing": lambda b, m: _growing(b),
    "BoundedLaplace": lambda b, m: _bounded("BoundedLaplaceMechanism", b, m),
    "FoldedLaplace": lambda b, m: _bounded("FoldedLaplaceMechanism", b, m),
    "Snapping": _snapping,
    "NoiseFactor": lambda b, m: _factor(
        dp.NoiseFactor(0.05, 0.25), _two_sided, (0.75, 0.95, 1.05, 1.25),
        lambda rng, n: 1 + rng.choice([-1, 1], n) * rng.uniform(0.05, 0.25, n)),
    "NoiseFactor(LogNormal)": lambda b, m: _factor(
        dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.2)), stats.lognorm(0.2).logpdf, (1.0,),
        lambda rng, n: rng.lognormal(0, 0.2, n)),
    "Geometric": lambda b, m: _lattice(dp.GeometricMechanism(b), lambda k: -abs(k) / b, b),
    "DiscreteGaussian": lambda b, m: _lattice(
        dp.DiscreteGaussianMechanism(b), lambda k: -(k / b) ** 2 / 2, b),
    "CellKey": lambda b, m: Noise(
        dp.CellKey(_TABLE), _cell_key, lambda z: [],
        lambda rng, s: np.maximum(np.round(s) + rng.choice([-1, 0, 1], np.shape(s)), 0)),
    "RandomRounding": lambda b, m: Noise(
        dp.RandomRounding(3), lambda z, s: np.log(np.maximum(1 - abs(z - s) / 3, 0)),
        lambda z: [z - 3, z, z + 3], lambda rng, s: 3 * np.floor(s / 3 + rng.random(np.shape(s)))),
    "Binomial": lambda b, m: Noise(
        dp.BinomialMechanism(20, 0.5, 9),
        lambda z, s: stats.binom.logpmf(z, 20, (s + 0.5) / 10), lambda z: [],
        lambda rng, s: rng.binomial(20, np.clip((s + 0.5) / 10, 0, 1))),
    "Response": lambda b, m: Noise(
        dp.RandomizedResponse(0.8), lambda z, s: np.log(np.where(z == s, 0.8, 0.2)), lambda z: [],
        lambda rng, s: np.where(rng.random(np.shape(s)) < 0.8, s, 1 - s)),
}  # fmt: skip
OF_REAL, OF_COUNTS = list(NOISE)[:16], list(NOISE)[16:20]
ADDED = [*OF_REAL[:9], *OF_COUNTS[:2]]
LATTICE = OF_COUNTS[:2]


def _marked(withheld, log_mass, noise):
    def logp(z, s):
        return log_mass(s) if np.isnan(z) else noise.logp(z, s)

    return logp, lambda z: np.where(withheld(z), np.nan, z)


# Of noise, a step h and a middle m: what is done by the mechanism, the density, what is done to a
# value; values whose kinks are those of a release.
AFTERWARDS: dict[str, Any] = {
    "": lambda n, h, m: (n.mechanism, n.logp, np.asarray, lambda z: [z]),
    "clipped(m)": lambda n, h, m: (
        n.mechanism.clipped(lower=m),
        lambda z, s: n.mass(-np.inf, m, s, True) if z == m else n.logp(z, s),
        lambda z: np.maximum(z, m), lambda z: [z]),
    "clipped(m - 3 h, m + h)": lambda n, h, m: (
        n.mechanism.clipped(m - 3 * h, m + h),
        lambda z, s: n.mass(-np.inf, m - 3 * h, s, True) if z == m - 3 * h
        else n.mass(m + h, np.inf, s) if z == m + h else n.logp(z, s),
        lambda z: np.clip(z, m - 3 * h, m + h), lambda z: [z]),
    "rounded": lambda n, h, m: (
        n.mechanism.rounded(base=h), lambda z, s: n.mass(z - h / 2, z + h / 2, s),
        lambda z: h * np.round(z / h), lambda z: [z - h / 2, z + h / 2]),
    "floored": lambda n, h, m: (
        n.mechanism.floored(h), lambda z, s: n.mass(z, z + h, s),
        lambda z: h * np.floor(z / h), lambda z: [z, z + h]),
    "ceiled": lambda n, h, m: (
        n.mechanism.ceiled(h), lambda z, s: n.mass(z - h, z, s),
        lambda z: h * np.ceil(z / h), lambda z: [z - h, z]),
    "truncated": lambda n, h, m: (
        n.mechanism.truncated(h),
        lambda z, s: n.mass(z - h * (z <= 0), z + h * (z >= 0), s),
        lambda z: h * np.trunc(z / h), lambda z: [z - h, z, z + h]),
    "suppressed(below m)": lambda n, h, m: (
        n.mechanism.suppressed(below=m),
        *_marked(lambda z: z < m, lambda s: n.mass(-np.inf, m, s), n), lambda z: [z, m]),
    "suppressed(above m)": lambda n, h, m: (
        n.mechanism.suppressed(above=m),
        *_marked(lambda z: z > m, lambda s: n.mass(m + n.gap, np.inf, s), n),
        lambda z: [z, m]),
    "suppressed(between)": lambda n, h, m: (
        n.mechanism.suppressed(above=m - h, below=m + h),
        *_marked(lambda z: abs(z - m) < h,
                 lambda s: n.mass(m - h + n.gap, m + h, s), n),
        lambda z: [z, m - h, m + h]),
    "thresholded(m)": lambda n, h, m: (
        n.mechanism.thresholded(m),
        lambda z, s: n.mass(m, np.inf, s) if z else n.mass(-np.inf, m, s),
        lambda z: 1.0 * (z >= m), lambda z: [m]),
}  # fmt: skip
OF_LATTICE = [
    name for name in AFTERWARDS if name not in ("rounded", "floored", "ceiled", "truncated")
]

# --- The density ----------------------------------------------------------------------------------


def _log_integral(log, edges):
    """Log of the integral of an exponential; panels are halved until halves agree with them."""

    def rule(a, b):
        x, w = _panels(np.stack([a, b], axis=-1), 16)
        return special.logsumexp(np.nan_to_num(log(x), nan=-np.inf), b=w, axis=-1)

    a, b, done = edges[:-1], edges[1:], np.array([])
    for _ in range(60):
        middle = (a + b) / 2
        halves = np.logaddexp(rule(a, middle), rule(middle, b))
        total = special.logsumexp([*done, *halves])
        bad = np.abs(np.exp(rule(a, b) - total) - np.exp(halves - total)) > 1e-11
        bad &= (a < middle) & (middle < b)
        done = np.append(done, halves[~bad])
        if not bad.any():
            return total
        a, b, middle = a[bad], b[bad], middle[bad]
        a, b = np.append(a, middle), np.append(middle, b)
    raise ArithmeticError("an integral is not found")


def log_mean(law, log_noise, points, main):
    """Log of the mean of noise over a law; it bends at `points`, and is large near `main`."""
    if hasattr(law.dist, "pmf"):
        k = np.arange(8_000.0)
        with np.errstate(invalid="ignore"):
            return special.logsumexp(np.nan_to_num(law.logpmf(k) + log_noise(k), nan=-np.inf))
    lower, upper = law.support()
    middle, spread = law.median(), law.ppf(0.75) - law.ppf(0.25)
    ends = [e for e in (lower, upper) if np.isfinite(e)]
    wide = spread * 10.0 ** np.arange(-8, 15)
    wide = np.concatenate([-wide, [0], wide])
    around = np.add.outer([middle, *ends, *main], wide).ravel()
    tiny = 10.0 ** np.arange(-300, 0, 10) * spread
    around = [*around, *law.ppf(_TAILS), *law.isf(_TAILS), *points, *(tiny if lower == 0 else [])]
    around = np.array([p for p in around if np.isfinite(p) and lower <= p <= upper])
    return _log_integral(lambda x: law.logpdf(x) + log_noise(x), np.unique([*around, *ends]))


# --- A model --------------------------------------------------------------------------------------


class Single(Producer):
    """Values of one law, a function of each, and how they are released."""

    plain = MappingProxyType(
        {"each": "x", "afterwards": "", "place": "drawn", "size": 1, "unit": 1.0, "public": "t"}
    )
    named = (*Producer.named, "'z0_confidential'")
    withholds = True

    def choices(self, rng, choose):
        whole = rng.random() < 0.3
        self.law = choose(WHOLE) if whole else choose(NAMES[: -len(WHOLE)])
        each = OF_WHOLE if whole else OF_ANY
        self.each = choose([*each, *list(EACH)[-2:]] if self.law in POSITIVE else each, 0.3)
        scaled = self.each in IN_UNITS and self.law not in (*SHARES, *WHOLE)
        self.unit = choose([1.0, 0.01, 300.0]) if scaled and rng.random() < 0.4 else 1.0
        self.noise = choose(OF_COUNTS if whole and rng.random() < 0.6 else OF_REAL)
        if self.law in ("Binomial", *SHARES) and rng.random() < 0.1:
            self.noise, self.each = "Binomial", "x"
        if self.law == "Bernoulli" and rng.random() < 0.3:
            self.noise, self.each = "Response", "x"
        after = AFTERWARDS if self.noise in ADDED and rng.random() < 0.5 else [""]
        self.afterwards = choose(OF_LATTICE if self.noise in LATTICE and after != [""] else after)
        self.place = choose(("drawn", "drawn", "drawn", "far", "kinks"))
        self.size, self.magnitude = int(rng.integers(1, 7)), rng.uniform(-2, 2)
        self.public, self.latent = choose(("t", "t[group]", "t X")), bool(rng.random() < 0.75)
        self.releases = [("", ())]

    @property
    def shapes(self):
        domains = LAWS[self.law][0].split()
        found = {"theta": (domains[0], (2,) if self.public == "t[group]" else ())}
        return found | ({"phi": (domains[1], ())} if domains[1:] else {})

    def parameters(self, v):
        """Return t of each value, and u."""
        t, i = v["theta"], np.arange(self.size)
        t = (
            t[i % 2]
            if self.public == "t[group]"
            else t * (i + 1) / self.size
            if "X" in self.public
            else t
        )
        return t, v.get("phi")

    def laws(self, point):
        """Return the parts of the law of each value, with weights."""
        t, u = self.parameters(point)
        for own in np.broadcast_to(t, self.size):
            law = LAWS[self.law][2](own, u, self.unit)
            yield law if isinstance(law, list) else [(1.0, law)]

    def of_values(self, x):
        """Return statistics of values."""
        ends = LAWS[self.law][3:] or (-np.inf, np.inf)
        with np.errstate(over="ignore"):
            return EACH[self.each][0](np, np.clip(x, *np.multiply(ends, self.unit))) * 1.0

    def draw(self, rng, point):
        """Draw a statistic of each value."""
        which = [
            parts[rng.choice(len(parts), p=[w for w, _ in parts])] for parts in self.laws(point)
        ]
        return self.of_values(np.array([law.rvs(random_state=rng) for _, law in which]) * 1.0)

    @property
    def released(self):
        """The noise, and what is done afterwards."""
        rng, point = np.random.default_rng([self.seed, 3]), self.tried_first
        s = np.concatenate([self.draw(rng, point) for _ in range(60)])
        low, m, high = np.quantile(s, [0.16, 0.5, 0.84])
        b = float(f"{(0.5 * (high - low) or 1.0) * 10**self.magnitude:.2g}")
        m = float(np.round(m) if self.noise in LATTICE else f"{m:.3g}")
        h = max(1.0, np.round(b)) if self.noise in LATTICE else float(f"{1.3 * b:.2g}")
        noise = NOISE[self.noise](b, m)
        return noise, AFTERWARDS[self.afterwards](noise, h, m), b, high - low

    @property
    def tried_first(self):
        return self.draw_parameters(np.random.default_rng([self.seed, 0]))

    def write(self, v):
        t, u = self.parameters(v)
        law, *arguments = LAWS[self.law][1](t, u, self.unit)
        dist = law if isinstance(law, partial) else law.dist
        new = partial(law, "x") if self.latent else dist
        yield EACH[self.each][0](pt, new(*arguments, shape=self.size))

    def mechanism(self, i, m):
        return self.released[1][0]

    def published(self, rng, point):
        noise, (_, _, change, _), b, spread = self.released
        s = self.draw(rng, point)
        if self.place == "far":
            s = s + rng.choice([-1, 1], s.shape) * rng.uniform(5, 40, s.shape) * max(b, spread)
        if self.place == "kinks":
            bends = [
                k for k in (*EACH[self.each][2:], *LAWS[self.law][3:], 0.0, 1.0) if np.isfinite(k)
            ]
            s = self.of_values(rng.choice(bends, s.shape) * self.unit)
            z = np.array([rng.choice(np.append(noise.kinks(v), v)) for v in s])
            z = np.where(z == 0, s, z)  # a factor makes a zero of zeros only
        else:
            z = noise.near(rng, s)
        z = np.round(z) if self.noise in (*OF_COUNTS, "Binomial", "Response") else z
        return [change(z)]

    def log_density(self, point, z, rng, size):
        """Return the log density of the releases, and its error."""
        noise, (_, logp, _, values), _, _ = self.released
        _, inverse, *bends = EACH[self.each]
        ends = [e * self.unit for e in LAWS[self.law][3:] if np.isfinite(e)]
        total = 0.0
        with np.errstate(all="ignore"):
            for value, parts in zip(np.ravel(z[0]), self.laws(point), strict=True):
                kinks = [k for v in values(value) for k in noise.kinks(v)]
                main = [x for v in values(value) for x in inverse(np.asarray(v))]
                points = [*bends, *ends, *np.ravel(inverse(np.array(kinks)))]
                found = [
                    np.log(w)
                    + log_mean(law, lambda x, v=value: logp(v, self.of_values(x)), points, main)
                    for w, law in parts
                ]
                total = total + special.logsumexp(found)
        return total, 0.0


random_spec, simpler = Single, producers.simpler
