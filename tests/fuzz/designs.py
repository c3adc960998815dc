"""Random models of records with public groups and covariates, for PyMC and in plain numpy.

Every statistic is ``A h(x)`` with public weights A and a function h of each record, or variances
of groups. Entries that use no record in common are independent given the parameters: the density of
a release is the product over such parts, each exact where scipy has a law of it or its sums can be
inverted, else averaged over draws of the records.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import sparse as pts
from scipy import sparse, special, stats

import pymc_dp as dp
from tests.fuzz import exact, grammar
from tests.fuzz.frames import PREDICTORS, SPREADS, Frame, random_frame
from tests.fuzz.grammar import ANY, ENOUGH, WHOLE_NOISE, Drawn, Part, average, part

# --- Laws of the records -------------------------------------------------------------------------

LINKS = {
    "real": part("", lambda m, eta: eta),
    "positive": part("exp", lambda m, eta: m.exp(eta)),
    "share": Part("sigmoid", pm.math.sigmoid, special.expit),
}


def _gamma(n, p):
    return stats.gamma(n, scale=1 / p)


# The domain of the parameter; the law for PyMC and scipy, of it and of the spread; the sum of n.
LAWS = {
    "Normal": ("real", lambda p, s: (pm.Normal, p, s), stats.norm, None),
    "Laplace": ("real", lambda p, s: (pm.Laplace, p, 0.5),
                lambda p, s: stats.laplace(p, 0.5), None),
    "LogNormal": ("real", lambda p, s: (pm.LogNormal, p, 0.5),
                  lambda p, s: stats.lognorm(0.5, scale=np.exp(p)), None),
    "Exponential": ("positive", lambda p, s: (pm.Exponential, p),
                    lambda p, s: _gamma(1, p), _gamma),
    "Gamma": ("positive", lambda p, s: (pm.Gamma, 2, p),
              lambda p, s: _gamma(2, p), lambda n, p: _gamma(2 * n, p)),
    "Poisson": ("positive", lambda p, s: (pm.Poisson, p),
                lambda p, s: stats.poisson(p), lambda n, p: stats.poisson(n * p)),
    "Bernoulli": ("share", lambda p, s: (pm.Bernoulli, p),
                  lambda p, s: stats.bernoulli(p), stats.binom),
    "Binomial": ("share", lambda p, s: (pm.Binomial, 3, p),
                 lambda p, s: stats.binom(3, p), lambda n, p: stats.binom(3 * n, p)),
    "NegativeBinomial": ("share", lambda p, s: (pm.NegativeBinomial, None, None, p, 3),
                         lambda p, s: stats.nbinom(3, p), lambda n, p: stats.nbinom(3 * n, p)),
}  # fmt: skip
COUNTS = ("Poisson", "Bernoulli", "Binomial", "NegativeBinomial")

# --- Statistics -----------------------------------------------------------------------------------

# Functions h of each record. Those in front are linear, h(x) = a x + b.
EACH = (
    part("x", lambda m, x: x),
    part("2 x - 1", lambda m, x: 2 * x - 1),
    part("x / 2", lambda m, x: x / 2),
    part("clip(x, 0, 1.5)", lambda m, x: m.clip(x, 0, 1.5)),
    part("minimum(abs(x), 1)", lambda m, x: m.minimum(abs(x), 1)),
    part("x ** 2", lambda m, x: x**2),
    part("x * x", lambda m, x: x * x),
    part("x > 1", lambda m, x: x > 1),
)
WHOLE = ("x", "2 x - 1", "x > 1")
LINEAR = {"x": (1.0, 0.0), "2 x - 1": (2.0, -1.0), "x / 2": (0.5, 0.0)}
KINKS = {"clip(x, 0, 1.5)": (0.0, 1.5), "minimum(abs(x), 1)": (-1.0, 0.0, 1.0)}


def _means(f):
    filled = f.sizes > 0
    return f.members[filled] / f.sizes[filled, None]


def _public_weights(f):
    return np.round(3 * np.cos(np.arange(f.n)), 1)[None] * (np.arange(f.n) % 3 > 0)


def _each_mask(f, form):
    return lambda h: pt.stack([form(h.ravel(), f.group == j, j) for j in range(f.groups)])


def _sum_along(h, f):
    if f.layout == "vector":
        return pt.dot(f.members, h)
    return h.sum(axis=1 if f.layout == "rows" else 0)


def _mean_along(h, f):
    if f.layout == "vector":
        return pt.stack([h[f.group == j].mean() for j in range(f.groups) if f.sizes[j]])
    return h.mean(axis=1 if f.layout == "rows" else 0)


def _sparse(h, f):
    return pts.dot(
        pts.as_sparse_variable(sparse.csr_matrix(f.members)), h.ravel().astype("float64")
    )


def _mask(form):
    return lambda h, f: pt.stack([form(h.ravel(), f.group == j) for j in range(f.groups)])


def _members(f):
    return f.members


def _totals(f):
    return np.vstack([f.members, (np.arange(2)[:, None] == f.other) * 1.0])


def _variances(h, f):
    return pt.stack([h.ravel()[f.group == j].var(ddof=1) for j in range(f.groups)])


def _variances_of(h, f):
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([h[..., f.group == j].var(-1, ddof=1) for j in range(f.groups)], -1)


def _number(h):
    """Return truth values as numbers: added up as they are, they mean or."""
    return h.ravel().astype("int64") if h.dtype == "bool" else h.ravel()


# The weights of the records, and h(x) for PyTensor.
REDUCE = {
    "sums by a matrix": (_members, lambda h, f: pt.dot(f.members, h.ravel())),
    "means by a matrix": (_means, lambda h, f: _means(f) @ h.ravel()),
    "along an axis": (_members, _sum_along),
    "means along an axis": (_means, _mean_along),
    "sums by a sparse matrix": (_members, _sparse),
    "sums by masks": (_members, _mask(lambda h, own: h[own].sum())),
    "sums by indices": (_members, _mask(lambda h, own: h[np.flatnonzero(own)].sum())),
    "sums by products": (_members, _mask(lambda h, own: (h * own).sum())),
    "sums by where": (_members, _mask(lambda h, own: pt.where(own, h, 0).sum())),
    "sums by adding": (
        _members, lambda h, f: pt.inc_subtensor(pt.zeros(f.groups)[f.group], h.ravel())
    ),
    "bincount": (
        _members, lambda h, f: pt.bincount(f.group, weights=_number(h), minlength=f.groups)
    ),
    "total": (lambda f: np.ones((1, f.n)), lambda h, f: h.sum()[None]),
    "mean": (lambda f: np.ones((1, f.n)) / f.n, lambda h, f: h.mean()[None]),
    "X' h": (lambda f: f.x.T, lambda h, f: f.x.T @ h.ravel()),
    "groups and others": (_totals, lambda h, f: pt.dot(_totals(f), h.ravel())),
    "each": (lambda f: np.eye(f.n), lambda h, f: h.ravel()),
    "the first": (lambda f: np.arange(f.n)[None] < 2, lambda h, f: h.ravel()[:2].sum()[None]),
    "weights": (_public_weights, lambda h, f: (_public_weights(f)[0] * h.ravel()).sum()[None]),
    "h' h": (None, lambda h, f: pt.dot(_number(h), _number(h))[None]),
    "variances": (None, _variances),
}  # fmt: skip
NONLINEAR = {
    "h' h": (lambda h, f: (h**2).sum(-1)[..., None], lambda f: np.ones((1, f.n))),
    "variances": (_variances_of, _members),
}
BY_GROUP = [name for name in REDUCE if "sums by" in name or "axis" in name or "means" in name]


@dataclass(frozen=True)
class Piece:
    """A statistic: a function of each record, weighted sums of it, and a change of its units."""

    each: Part
    reduce: str
    units: tuple[float, float] = (1.0, 0.0)

    def graph(self, x, f):
        scale, shift = self.units
        found = REDUCE[self.reduce][1](self.each.graph(x), f)
        return found if self.units == (1.0, 0.0) else scale * found + shift

    def array(self, x, f):
        h = self.each.array(x).astype("float64")
        scale, shift = self.units
        if self.reduce in NONLINEAR:
            return scale * NONLINEAR[self.reduce][0](h, f) + shift
        return scale * (h @ self.weights(f).T) + shift

    def weights(self, f):
        """The weights of h, not in the units; of what is no sum, which records it is of."""
        find = REDUCE[self.reduce][0] or NONLINEAR[self.reduce][1]
        return np.asarray(find(f), dtype="float64")

    def entries(self, f):
        """Return for each entry its weights and constant, if it is a linear function of records."""
        scale, shift = self.units
        weights = scale * self.weights(f)
        if self.reduce in NONLINEAR or self.each.label not in LINEAR:
            return [(row, None) for row in weights]
        a, b = LINEAR[self.each.label]
        return [(a * row, shift + b * row.sum()) for row in weights]


# --- Noise ----------------------------------------------------------------------------------------

SCALES = np.array([0.5, 1.0, 0.8])
MANY = {
    "Laplace([...])": (
        lambda m: dp.LaplaceMechanism(np.resize(SCALES, m)),
        lambda z, s, j: stats.laplace.logpdf(z, s, np.resize(SCALES, 99)[j]),
        lambda rng, s: s + rng.laplace(0, np.resize(SCALES, s.size)),
    ),
    "Gaussian([...])": (
        lambda m: dp.GaussianMechanism(np.resize(SCALES, m)),
        lambda z, s, j: stats.norm.logpdf(z, s, np.resize(SCALES, 99)[j]),
        lambda rng, s: s + rng.normal(0, np.resize(SCALES, s.size)),
    ),
} | {
    name: (lambda m, f=make: f(), lambda z, s, j, f=logp: f(z, s), draw)
    for name, (make, logp, draw) in grammar.MECHANISMS.items()
    if name in ANY
}
PLAIN = [name for name in MANY if name not in WHOLE_NOISE]
# Of Normal noise the standard deviations.
SIGMA = {"Gaussian(.7)": np.full(99, 0.7), "Gaussian([...])": np.resize(SCALES, 99)}

# --- A model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Release:
    """Statistics in a row, and a mechanism."""

    pieces: tuple[Piece, ...]
    mechanism: str

    def graph(self, x, f):
        found = [piece.graph(x, f) for piece in self.pieces]
        return found[0] if len(found) == 1 else pt.concatenate(found)

    def array(self, x, f):
        return np.concatenate([piece.array(x, f) for piece in self.pieces], axis=-1)

    def entries(self, f):
        return [(piece, *entry) for piece in self.pieces for entry in piece.entries(f)]

    def log_noise(self, z, s, j):
        """Log density of entry j."""
        return MANY[self.mechanism][1](z, s, j)


def _normal(name, **size):
    return pm.Normal(name, 0, 1, **size)


@dataclass(frozen=True)
class Design(Drawn):
    """A model: public data, the law of the records, and what was released."""

    frame: Frame
    law: str
    prior: str
    """Of theta: "plain", "hierarchical", "not centred", or "direct", without a link."""
    predictor: Part
    spread: Part
    releases: tuple[Release, ...]
    seed: int

    @property
    def domain(self):
        return LAWS[self.law][0]

    @property
    def uses(self):
        labels = self.predictor.label + " " + (self.spread.label if self.law == "Normal" else "")
        names = [n for n in ("theta", "b", "sigma", "spread") if n in labels]
        if "theta" in names and self.prior in ("hierarchical", "not centred"):
            first = "theta" if self.prior == "hierarchical" else "raw"
            names = ["m", "tau", first, *names[1:]]
        return names

    def draw_parameters(self, rng, near=None):
        """Draw the free parameters; or change those of another draw a little."""
        shapes = {"theta": self.frame.groups, "raw": self.frame.groups, "b": 2, "spread": 2}
        found = {}
        for name in self.uses:
            e = rng.normal(size=shapes.get(name, ()))
            direct = name == "theta" and self.prior == "direct" and self.domain
            if near is not None:
                logit = direct == "share"
                start = special.logit(near[name]) if logit else near[name]
                positive = name in ("tau", "sigma", "spread") or direct == "positive"
                value = start * np.exp(0.2 * e) if positive else start + 0.3 * e
                found[name] = special.expit(value) if logit else value
            elif direct == "positive" or name in ("sigma", "spread", "tau"):
                found[name] = np.exp(0.4 * e)
            elif direct == "share":
                found[name] = special.expit(e)
            else:
                found[name] = 0.7 * e
        return found

    def values(self, point):
        """Return what the records' parameters are computed from."""
        if "raw" in point:
            return point | {"theta": point["m"] + point["tau"] * point["raw"]}
        return point

    def record_parameters(self, point):
        """Return the parameter and the spread of each record."""
        v = self.values(point)
        eta = self.predictor.array(v, self.frame)
        p = eta if self.prior == "direct" else LINKS[self.domain].array(eta)
        return p, self.spread.array(v, self.frame) if self.law == "Normal" else np.ones(p.size)

    def variables(self):
        """Write the priors for PyMC."""
        v, size = {}, {"shape": self.frame.groups}
        for name in self.uses:
            match name:
                case "theta" if self.prior == "direct" and self.domain == "positive":
                    v[name] = pm.Gamma(name, 4, 2, **size)
                case "theta" if self.prior == "direct" and self.domain == "share":
                    v[name] = pm.Beta(name, 2, 2, **size)
                case "theta" if self.prior == "hierarchical":
                    v[name] = pm.Normal(name, v["m"], v["tau"], **size)
                case "theta" | "raw":
                    v[name] = _normal(name, **size)
                case "b":
                    v[name] = _normal(name, shape=2)
                case "spread":
                    v[name] = pm.Exponential(name, 1, shape=2)
                case "m":
                    v[name] = _normal(name)
                case _:
                    v[name] = pm.HalfNormal(name, 1)
        if "raw" in v:
            v["theta"] = pm.Deterministic("theta", v["m"] + v["tau"] * v["raw"])
        return v

    def build(self, z):
        """Write the model for PyMC."""
        f = self.frame
        with pm.Model() as model:
            v = self.variables()
            eta = self.predictor.graph(v, f)
            p = eta if self.prior == "direct" else LINKS[self.domain].graph(eta)
            spread = self.spread.graph(v, f) if self.law == "Normal" else None
            law, *arguments = LAWS[self.law][1](p, spread)
            x = law("x", *arguments, shape=f.shape)
            for i, (release, value) in enumerate(zip(self.releases, z, strict=True)):
                mechanism = MANY[release.mechanism][0](value.size)
                dp.PrivateObservation(f"z{i}", release.graph(x, f), mechanism, observed=value)
        return model

    def draw(self, rng, point, size):
        """Draw sets of records, raveled."""
        law = LAWS[self.law][2](*self.record_parameters(point))
        return law.rvs(size=(size, self.frame.n), random_state=rng)

    def published(self, rng, point):
        """Return values that the model might have released."""
        x, found = self.draw(rng, point, 1), []
        for release in self.releases:
            z = MANY[release.mechanism][2](rng, release.array(x, self.frame)[0])
            found.append(np.round(z) if release.mechanism in WHOLE_NOISE else z)
        return found

    def log_density(self, point, z, rng, size):
        """Return the log density of all releases given the parameters, and its standard error."""
        entries = [
            _Entry(i, j, *entry, z[i][j])
            for i, release in enumerate(self.releases)
            for j, entry in enumerate(release.entries(self.frame))
        ]
        found, others = [], []
        for own in _apart(entries):
            known = self._exact(own, point)
            found.append(known) if known is not None else others.append(own)
        for many in (size, 30 * size):
            drawn = self._by_draws(others, point, z, rng, many) if others else []
            if all(error < ENOUGH for _, error in drawn):
                break
        values, errors = np.array([*found, *drawn]).T
        return values.sum(), np.sqrt((errors**2).sum())

    def _by_draws(self, parts, point, z, rng, size):
        x = self.draw(rng, point, size)
        s = [release.array(x, self.frame) for release in self.releases]
        return [
            average(sum(self.releases[e.release].log_noise(e.z, s[e.release][:, e.place], e.place)
                        for e in own))
            for own in parts
        ]  # fmt: skip

    def _exact(self, entries, point):
        """Return the log density of entries that share records, and its error; or None."""
        p, s = self.record_parameters(point)
        linear = all(e.constant is not None for e in entries)
        sigma = [SIGMA.get(self.releases[e.release].mechanism) for e in entries]
        if self.law == "Normal" and linear and all(v is not None for v in sigma):
            rows = np.array([e.weights for e in entries])
            mean = rows @ p + [e.constant for e in entries]
            variances = [v[e.place] ** 2 for v, e in zip(sigma, entries, strict=True)]
            return exact.of_normals(mean, rows * s**2 @ rows.T, [e.z for e in entries], variances)
        if len(entries) > 1:
            return None
        [entry], [sigma] = entries, sigma
        return self._exact_of_one(entry, p, s, sigma)

    def _exact_of_one(self, entry, p, s, sigma):
        own = np.flatnonzero(entry.weights)
        log_noise = partial(self.releases[entry.release].log_noise, entry.z, j=entry.place)
        if entry.constant is None:
            return self._inverted(entry, own, p, s, sigma)
        w = entry.weights[own]
        if not own.size:
            return float(log_noise(entry.constant)), 0.0
        if self.law == "Normal":
            law, w = stats.norm(w @ p[own], np.sqrt(w**2 @ s[own] ** 2)), np.ones(1)
        elif own.size == 1:
            law = LAWS[self.law][2](p[own[0]], s[own[0]])
        elif np.ptp(w) or LAWS[self.law][3] is None:
            return None
        elif self.law == "Poisson":
            law = stats.poisson(p[own].sum())
        elif np.ptp(p[own]):
            return None
        else:
            law = LAWS[self.law][3](own.size, p[own[0]])
        around, width = (entry.z - entry.constant) / w[0], 1.0 / abs(w[0])
        return exact.of_value(law, lambda k: log_noise(w[0] * k + entry.constant), around, width)

    def _inverted(self, entry, own, p, s, sigma):
        """Return the density of a sum of one function of iid records, under Normal noise."""
        h, weights = entry.piece.each, entry.weights[own]
        if sigma is None or h.label not in KINKS or self.law in COUNTS or not own.size:
            return None
        if entry.piece.reduce in NONLINEAR:
            return None
        if np.ptp(weights) or np.ptp(p[own]) or np.ptp(s[own]):
            return None
        law, w = LAWS[self.law][2](p[own[0]], s[own[0]]), weights[0]
        z, noise = (entry.z - entry.piece.units[1]) / w, sigma[entry.place] / abs(w)
        found, error = exact.of_sums(law, h.array, KINKS[h.label], [own.size], z, noise)
        return found[0] - np.log(abs(w)), error[0]


@dataclass(frozen=True, eq=False)
class _Entry:
    """An entry of a release: its weights, those of h where it is not linear, and its value."""

    release: int
    place: int
    piece: Piece
    weights: np.ndarray
    constant: float | None
    z: float


def _apart(entries):
    """Return the entries in parts of which no two use the same record."""
    parts = []
    for entry in entries:
        mine = [
            own
            for own in parts
            if any(((e.weights != 0) & (entry.weights != 0)).any() for e in own)
        ]
        parts = [own for own in parts if own not in mine]
        parts.append([entry, *(e for own in mine for e in own)])
    return parts


def random_spec(seed):
    """Draw a model; what most rungs take comes more often."""
    rng = np.random.default_rng(seed)

    choose = grammar.chooser(rng)

    frame, law = random_frame(rng), choose(LAWS, 0.3)
    domain = LAWS[law][0]
    predictor = choose(PREDICTORS, 0.2 if law in ("Normal", "Poisson") else 0.6)
    prior = choose(("plain", "hierarchical", "not centred"))
    if predictor is PREDICTORS[0] and domain != "real" and rng.random() < 0.6:
        prior = "direct"
    releases = []
    for _ in range(choose((1, 1, 1, 1, 2))):
        if law == "Normal" and rng.random() < 0.35:  # X'y and y'y, sums and squares by group
            squares = [(EACH[0], "h' h"), (EACH[5], choose(BY_GROUP)), (EACH[6], "total"),
                       (EACH[0], "variances")]  # fmt: skip
            pieces = [Piece(EACH[0], choose(["X' h", "X' h", *REDUCE])), Piece(*choose(squares))]
        else:
            pieces = []
            for _ in range(choose((1, 1, 1, 1, 1, 2))):
                units = (1.0, 0.0) if rng.random() < 0.7 else choose([(3.0, -1.0), (-0.5, 2.0)])
                reduce = choose(BY_GROUP if rng.random() < 0.7 else REDUCE)
                clamped = LAWS[law][3] is None and rng.random() < (0.2 if law == "Normal" else 0.8)
                each = choose(EACH[3:5]) if clamped else choose(EACH, 0.75)
                pieces.append(Piece(each, reduce, units))
        whole = all(p.each.label in WHOLE and "mean" not in p.reduce for p in pieces)
        if (law in COUNTS and whole and rng.random() < 0.6) or rng.random() < 0.03:
            mechanism = choose(WHOLE_NOISE)
        else:
            mechanism = choose(SIGMA) if rng.random() < 0.5 else choose(PLAIN)
        releases.append(Release(tuple(pieces), mechanism))
    return Design(frame, law, prior, predictor, choose(SPREADS, 0.4), tuple(releases), seed)


def simpler(design):
    """Yield models that are a little simpler."""
    for i, release in enumerate(design.releases):
        others = design.releases[:i] + design.releases[i + 1 :]
        if others:
            yield replace(design, releases=others)
        for j, piece in enumerate(release.pieces):
            rest = release.pieces[:j] + release.pieces[j + 1 :]
            changed = [replace(piece, units=(1.0, 0.0))] * (piece.units != (1.0, 0.0))
            changed += [replace(piece, each=EACH[0])] * (piece.each is not EACH[0])
            new = [rest] * bool(rest)
            new += [(*release.pieces[:j], c, *release.pieces[j + 1 :]) for c in changed]
            for pieces in new:
                own = replace(release, pieces=pieces)
                yield replace(
                    design, releases=(*design.releases[:i], own, *design.releases[i + 1 :])
                )
    if design.prior not in ("plain", "direct"):
        yield replace(design, prior="plain")
    if design.spread is not SPREADS[1]:
        yield replace(design, spread=SPREADS[1])
