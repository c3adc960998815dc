"""Random models of records of unknown number, for PyMC and in plain numpy."""

from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import special, stats

import pymc_dp as dp
from tests.fuzz import exact
from tests.fuzz.designs import COUNTS, EACH, KINKS, LAWS, LINEAR, LINKS, MANY, SIGMA
from tests.fuzz.grammar import ANY, ENOUGH, WHOLE_NOISE, Drawn, Part, average, chooser

MOST = 150  # records; beyond the priors have less than e-45


def _rate(size):
    return pm.Gamma("rate", 8, 1, **size)


def _share(size):
    return pm.Beta("share", 2, 2, **size)


# The free parameter; the prior for PyMC, of a shape, and of scipy.
NUMBERS = {
    "Poisson(rate)": (
        "rate", lambda **k: pm.Poisson("n", _rate(k), **k), lambda v: stats.poisson(v)
    ),
    "Poisson(7)": (None, lambda **k: pm.Poisson("n", 7, **k), lambda v: stats.poisson(7)),
    "Binomial(12, share)": (
        "share", lambda **k: pm.Binomial("n", 12, _share(k), **k), lambda v: stats.binom(12, v)
    ),
    "NegativeBinomial(3, .3)": (
        None,
        lambda **k: pm.NegativeBinomial("n", n=3, p=0.4, **k),
        lambda v: stats.nbinom(3, 0.4),
    ),
    "NegativeBinomial(mu=rate)": (
        "rate",
        lambda **k: pm.NegativeBinomial("n", mu=_rate(k), alpha=4.0, **k),
        lambda v: stats.nbinom(4, 4 / (4 + v)),
    ),
    "Geometric(.5)": (None, lambda **k: pm.Geometric("n", 0.5, **k), lambda v: stats.geom(0.5)),
    "DiscreteUniform(6, 11)": (
        None, lambda **k: pm.DiscreteUniform("n", 6, 11, **k), lambda v: stats.randint(6, 12)
    ),
    "DiscreteUniform(0, 5)": (
        None, lambda **k: pm.DiscreteUniform("n", 0, 5, **k), lambda v: stats.randint(0, 6)
    ),
}  # fmt: skip
UNKNOWN = list(NUMBERS)
NUMBERS["5"] = (
    None,
    lambda **k: np.broadcast_to(5, k.get("shape", ())),
    lambda v: stats.randint(5, 6),
)


class Mixture:
    """A law of scipy's parts, with their weights."""

    def __init__(self, *parts):
        self.parts = parts

    def rvs(self, size, random_state):
        which = random_state.choice(len(self.parts), p=[w for w, _ in self.parts], size=size)
        drawn = [law.rvs(size=size, random_state=random_state) for _, law in self.parts]
        return np.choose(which, drawn)


class Censored:
    """A Normal law whose values beyond 0.2 and 1.2 are these."""

    def __init__(self, mean):
        self.law = stats.norm(mean, 1)

    def rvs(self, **size):
        return self.law.rvs(**size).clip(0.2, 1.2)

    def ppf(self, u):
        return self.law.ppf(u).clip(0.2, 1.2)

    def cdf(self, kinks):
        return self.law.cdf([*kinks, 0.2, 1.2])  # it has these of its own


_ZERO = stats.uniform(0, 1e-300)
OF_RECORDS = LAWS | {
    "HurdleLogNormal": (
        "real", lambda p, s: (pm.HurdleLogNormal, 0.6, p, 0.5),
        lambda p, s: Mixture((0.4, _ZERO), (0.6, stats.lognorm(0.5, scale=np.exp(p)))), None
    ),
    "HurdleGamma": (
        "positive", lambda p, s: (pm.HurdleGamma, 0.6, 2.0, p),
        lambda p, s: Mixture((0.4, _ZERO), (0.6, stats.gamma(2, scale=1 / p))), None
    ),
    "Mixture": (
        "positive",
        lambda p, s: (
            pm.Mixture, [0.3, 0.7], [pm.Exponential.dist(p), pm.Gamma.dist(3.0, 2.0 * p)]
        ),
        lambda p, s: Mixture((0.3, stats.expon(0, 1 / p)), (0.7, stats.gamma(3, scale=0.5 / p))),
        None,
    ),
    "NormalMixture": (
        "real",
        lambda p, s: (pm.NormalMixture, [0.3, 0.7], pt.stack([p, p + 2.0], axis=-1), 0.5),
        lambda p, s: Mixture((0.3, stats.norm(p, 0.5)), (0.7, stats.norm(p + 2, 0.5))), None
    ),
    "Censored": (
        "real", lambda p, s: (pm.Censored, pm.Normal.dist(p, 1.0), 0.2, 1.2),
        lambda p, s: Censored(p), None
    ),
}  # fmt: skip


# Of the number n: the graph, and numbers.
OF_NUMBER = (
    Part("n", lambda n: n, lambda n: n),
    Part("2 n + 1", lambda n: 2 * n + 1, lambda n: 2 * n + 1),
    Part("float(n)", lambda n: n.astype("float64"), lambda n: n),
)
# Of n and h(x): the graph; the constant and the slope of an entry, which is linear in the sum.
OF_SUM = (
    Part("sum", lambda n, h: h.sum(), lambda n: (0 * n, 1)),
    Part("mean", lambda n, h: h.mean(), lambda n: (0 * n, 1 / n)),
    Part("2 sum + 1", lambda n, h: 2 * h.sum() + 1, lambda n: (0 * n + 1, 2)),
    Part("sum / n", lambda n, h: h.sum() / n, lambda n: (0 * n, 1 / n)),
    Part("sum - n", lambda n, h: h.sum() - n, lambda n: (-n, 1)),
    Part("dot", lambda n, h: pt.dot(pt.ones_like(h), h), lambda n: (0 * n, 1)),
)


@dataclass(frozen=True)
class Size(Drawn):
    """A model: the prior of the number, the law of the records, and what was released."""

    number: str
    law: str
    each: Part
    counted: tuple[Part, ...]
    """Functions of the number that are released."""
    summed: Part
    noise: tuple[str, ...]
    """Of these, and then of the sum."""
    order: tuple[int, ...]
    together: bool
    """Whether all are in one release."""
    seed: int
    places: tuple[int, ...] = ()
    """Of entries in releases, where they are not all in one or each in one."""

    def draw_parameters(self, rng, near=None):
        """Draw the free parameters; or change those of another draw a little."""
        e = rng.normal(size=3)
        free, domain = NUMBERS[self.number][0], OF_RECORDS[self.law][0]
        found = {"theta": 0.5 * e[0]} if near is None else {"theta": near["theta"] + 0.3 * e[0]}
        if self.law == "Normal":
            found["sigma"] = np.exp(0.3 * e[1]) * (near["sigma"] if near else 1.0)
        if free == "rate":
            found["rate"] = np.exp(0.2 * e[2]) * (near["rate"] if near else 8.0)
        if free == "share":
            start = special.logit(near["share"]) if near else 0.0
            found["share"] = special.expit(start + 0.5 * e[2])
        assert domain in LINKS
        return found

    @property
    def uses(self):
        return list(self.draw_parameters(np.random.default_rng(0)))

    def law_of_number(self, point):
        free, _, law = NUMBERS[self.number]
        return law(point[free] if free else None)

    def record_parameters(self, point):
        p = LINKS[OF_RECORDS[self.law][0]].array(np.asarray(point["theta"]))
        return p, point.get("sigma", 1.0)

    def entries(self, n, total):
        """Return the entries in order, for numbers of records and their sums of h."""
        with np.errstate(divide="ignore", invalid="ignore"):
            constant, slope = self.summed.array(np.asarray(n, dtype="float64"))
            found = [*(part.array(n) for part in self.counted), constant + slope * total]
        return [found[k] for k in self.order]

    def published(self, rng, point):
        """Return values that the model might have released: a list of one, or of one for each."""
        n = self.law_of_number(point).rvs(random_state=rng)
        law = OF_RECORDS[self.law][2](*self.record_parameters(point))
        x = law.rvs(size=n, random_state=rng)
        s = self.entries(n, self.each.array(x).astype("float64").sum())
        found = []
        for k, value in zip(self.order, s, strict=True):
            z = MANY[self.noise[k]][2](rng, np.array([value], dtype="float64"))[0]
            found.append(np.round(z) if self.noise[k] in WHOLE_NOISE else z)
        return [np.array(found)] if self.together else found

    def build(self, z):
        """Write the model for PyMC."""
        with pm.Model() as model:
            n = NUMBERS[self.number][1]()
            p = LINKS[OF_RECORDS[self.law][0]].graph(pm.Normal("theta", 0, 1))
            spread = pm.HalfNormal("sigma", 1) if self.law == "Normal" else None
            law, *arguments = OF_RECORDS[self.law][1](p, spread)
            h = self.each.graph(law("x", *arguments, shape=n))
            graphs = [*(part.graph(n) for part in self.counted), self.summed.graph(n, h)]
            graphs = [graphs[k] for k in self.order]
            if self.together:
                mechanism = MANY[self.noise[0]][0](len(graphs))
                dp.PrivateObservation("z0", pt.stack(graphs), mechanism, observed=z[0])
            else:
                for i, (k, graph, value) in enumerate(zip(self.order, graphs, z, strict=True)):
                    mechanism = MANY[self.noise[k]][0](1)
                    dp.PrivateObservation(f"z{i}", graph, mechanism, observed=value)
        return model

    def log_density(self, point, z, rng, size):
        """Return the log density of all releases given the parameters, and its standard error."""
        n = np.arange(MOST)
        z = list(z[0]) if self.together else z
        log = self.law_of_number(point).logpmf(n)
        places = self.places or (
            list(range(len(self.order))) if self.together else [0] * len(self.order)
        )
        for i, k in enumerate(self.order):
            if k < len(self.counted):
                log = log + MANY[self.noise[k]][1](z[i], self.counted[k].array(n), places[i])
        if len(self.counted) not in self.order:
            return special.logsumexp(log), 1e-10
        place = self.order.index(len(self.counted))
        noise, value = self.noise[-1], z[place]

        def log_noise(s):
            return MANY[noise][1](value, s, places[place])

        with np.errstate(divide="ignore"):
            constant, slope = (np.broadcast_to(v, n.shape) for v in self.summed.array(n * 1.0))
        kept = (log > log.max() - 60) & np.isfinite(slope)
        n, log, constant, slope = n[kept], log[kept], constant[kept], slope[kept]
        sigma = SIGMA[noise][places[place]] if noise in SIGMA else None
        known = self._exact(point, n, constant, slope, value, log_noise, sigma)
        if known is not None:
            found, errors = known
            total = special.logsumexp(log + found)
            with np.errstate(invalid="ignore"):
                shares = np.exp(log + found - total)
                return total, np.nansum(shares * np.minimum(errors, 1e9))
        law = OF_RECORDS[self.law][2](*self.record_parameters(point))
        for many in (size, 30 * size):
            x = law.rvs(size=(many, max(n.max(), 1)), random_state=rng)
            h = self.each.array(x).astype("float64")
            sums = np.concatenate([np.zeros((many, 1)), np.cumsum(h, axis=1)], axis=1)[:, n]
            found = average(special.logsumexp(log + log_noise(constant + slope * sums), axis=1))
            if found[1] < ENOUGH:
                break
        return found

    def _exact(self, point, n, constant, slope, value, log_noise, sigma):
        """Return the log density of the noisy sum for each number, and errors; or None."""
        p, spread = self.record_parameters(point)
        label, filled = self.each.label, n > 0
        m = np.maximum(n, 1)
        total = OF_RECORDS[self.law][3]
        if label in LINEAR and (self.law == "Normal" or total is not None):
            a, b = LINEAR[label]
            c, w = (constant + slope * b * n)[:, None], (slope * a)[:, None]
            m = m[:, None]
            law = stats.norm(m * p, np.sqrt(m) * spread) if total is None else total(m, p)
            found, errors = exact.of_value(
                law, lambda s: log_noise(c + w * s), (value - c) / w, 1.0 / abs(w)
            )
        elif label in KINKS and sigma is not None and self.law not in COUNTS:
            law = OF_RECORDS[self.law][2](p, spread)
            z, noise = (value - constant) / slope, sigma / abs(slope)
            found, errors = exact.of_sums(law, self.each.array, KINKS[label], m, z, noise)
            found = found - np.log(abs(slope))
        else:
            return None
        return np.where(filled, found, log_noise(constant)), errors


def random_spec(seed):
    """Draw a model; what most rungs take comes more often."""
    rng = np.random.default_rng(seed)

    choose = chooser(rng)

    number, law = choose(UNKNOWN, 0.3), choose(OF_RECORDS, 0.2)
    each, summed = choose(EACH, 0.5), choose(OF_SUM, 0.4)
    counted = [choose(OF_NUMBER, 0.7) for _ in range(choose((1, 1, 1, 1, 0, 2)))]
    if each.label in KINKS and rng.random() < 0.5:  # whose smooth sums need five records
        number = "DiscreteUniform(6, 11)"
    whole = rng.random() < 0.5
    noise = [choose(WHOLE_NOISE if whole else ANY[:4]) for _ in counted]
    of_sum = WHOLE_NOISE if law in COUNTS and rng.random() < 0.5 else ANY[:4]
    noise.append(choose(of_sum if rng.random() < 0.3 or law in COUNTS else ANY[:2]))
    together = bool(rng.random() < 0.3)
    if together:
        noise = [choose(("Laplace([...])", "Gaussian([...])", "Laplace(1)"))] * len(noise)
    order = tuple(int(k) for k in rng.permutation(len(noise)))
    return Size(number, law, each, tuple(counted), summed, tuple(noise), order, together, seed)


def simpler(size):
    """Yield models that are a little simpler."""
    if size.counted and not size.together:
        new = [k for k in size.order if k != len(size.counted) - 1]
        order = tuple(k - (k == len(size.counted)) for k in new)
        noise = (*size.noise[: len(size.counted) - 1], size.noise[-1])
        yield replace(size, counted=size.counted[:-1], noise=noise, order=order)
    if size.number != "Poisson(7)":
        yield replace(size, number="Poisson(7)")
    if size.each is not EACH[0]:
        yield replace(size, each=EACH[0])
    if size.summed is not OF_SUM[0]:
        yield replace(size, summed=OF_SUM[0])
    if any(part is not OF_NUMBER[0] for part in size.counted):
        yield replace(size, counted=(OF_NUMBER[0],) * len(size.counted))
