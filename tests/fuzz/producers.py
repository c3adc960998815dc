"""Random models of what producers publish by default, for PyMC and in plain numpy.

A number and a sum by group, of sizes that are not public; answers changed at random; rows with
noise of their own; tables that overlap; a regression of an unknown number of rows.
"""

from copy import copy
from itertools import groupby
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import special, stats

import pymc_dp as dp
from tests.fuzz import exact
from tests.fuzz.designs import EACH, MANY, SIGMA
from tests.fuzz.grammar import ENOUGH, WHOLE_NOISE, Drawn, average, chooser
from tests.fuzz.sizes import LINKS, NUMBERS, OF_NUMBER, OF_RECORDS, OF_SUM, UNKNOWN, Size

NORMAL = list(SIGMA)
PLAIN = [name for name in MANY if name not in WHOLE_NOISE]
WIDE = {
    name: (
        lambda m, make=make: make(8.0), lambda z, s, j, law=law: law.logpdf(z, s, 8.0),
        lambda rng, s, law=law: law.rvs(s, 8.0, s.shape, random_state=rng),
    )
    for name, make, law in (("Laplace(8)", dp.LaplaceMechanism, stats.laplace),
                            ("Gaussian(8)", dp.GaussianMechanism, stats.norm))
}  # fmt: skip
NOISE = MANY | WIDE
# By domain: the prior, where a parameter is near, a map to there and back.
DOMAINS = {
    "real": (lambda k, s: pm.Normal(k, 0, 1, shape=s), 0.0, np.asarray, np.asarray),
    "positive": (lambda k, s: pm.Gamma(k, 4, 4, shape=s), 0.0, np.exp, np.log),
    # Their priors are those of `NUMBERS`.
    "rate of numbers": (None, np.log(8.0), np.exp, np.log),
    "share of numbers": (None, 0.0, special.expit, special.logit),
    "share": (lambda k, s: pm.Beta(k, 2, 2, shape=s), 0.0, special.expit, special.logit),
    "simplex": (
        lambda k, s: pm.Dirichlet(k, np.ones(s)), 0.0, lambda v: special.softmax(v, -1), np.log
    ),
}  # fmt: skip


class Producer(Drawn):
    """A model of one kind.

    `shapes` are the domains and shapes of the parameters, `releases` what is released, `plain` the
    simplest values of other attributes. `choices` draws these, `write` its statistics for PyMC.
    """

    named = (*Drawn.named, "'x0", "'total'", "'y'", "no records to integrate out")
    plain = MappingProxyType({})

    def __init__(self, seed):
        self.seed, rng = seed, np.random.default_rng([seed, 1])
        self.choices(rng, chooser(rng))

    def __repr__(self):
        return f"{type(self).__name__}({vars(self)})"

    def but(self, **changes):
        other = copy(self)
        vars(other).update(changes)
        return other

    uses = property(lambda self: list(self.shapes))

    def draw_parameters(self, rng, near=None):
        """Draw the free parameters; or change those of another draw a little."""
        found = {}
        for name, (domain, shape) in self.shapes.items():
            _, middle, there, back = DOMAINS[domain]
            e = rng.normal(size=shape) * (0.5 if near is None else 0.25)
            found[name] = there(e + (middle if near is None else back(near[name])))
        return found

    def mechanism(self, i, m):
        return NOISE[self.releases[i][0]][0](m)

    def build(self, z):
        """Write the model for PyMC."""
        with pm.Model() as model:
            laws = {k: (DOMAINS[d][0], s) for k, (d, s) in self.shapes.items()}
            v = {k: law(k, shape) for k, (law, shape) in laws.items() if law}
            for i, (graph, value) in enumerate(zip(self.write(v), z, strict=True)):
                dp.PrivateObservation(f"z{i}", graph, self.mechanism(i, value.size), observed=value)
        return model

    def noisy(self, rng, statistics):
        """Return what is released of one set of records."""
        found = []
        for (name, *_), s in zip(self.releases, statistics, strict=True):
            z = NOISE[name][2](rng, s * 1.0)
            found.append(np.round(z) if name in WHOLE_NOISE else z)
        return found

    def log_noise(self, z, statistics):
        """Return the log density of the releases of many sets of records: their first axis."""
        return sum(
            NOISE[name][1](v, s[:, j], j)
            for (name, *_), value, s in zip(self.releases, z, statistics, strict=True)
            for j, v in enumerate(np.atleast_1d(value))
        )


class Groups(Producer):
    """Numbers and sums of groups, in any order and any number of releases."""

    plain = MappingProxyType(
        {"number": "Poisson(7)", "each": EACH[0], "summed": OF_SUM[0], "counted": OF_NUMBER[0]}
    )

    def choices(self, rng, choose):
        self.groups = m = int(rng.integers(1, 4))
        self.number, self.law = choose([*UNKNOWN, "5"], 0.2), choose(OF_RECORDS, 0.1)
        closed = self.law == "Normal" or OF_RECORDS[self.law][3] is not None
        self.each = choose(EACH, 0.6) if closed or rng.random() < 0.2 else choose(EACH[3:5])
        self.summed, self.counted = choose(OF_SUM, 0.4), choose(OF_NUMBER, 0.7)
        self.listed, self.common = bool(rng.random() < 0.4), bool(rng.random() < 0.3)
        kinds = (1,) if self.number == "5" else (0, 1)
        entries = [(j, k) for k in kinds for j in range(m)]
        if rng.random() < 0.2:  # some are missing
            entries = [e for e in entries if rng.random() < 0.8] or entries
        if rng.random() < 0.3:
            entries = [entries[i] for i in rng.permutation(len(entries))]
        split = choose((lambda e: e[1], lambda e: e[0], lambda e: 0, lambda e: e))
        parts = {key: [e for e in entries if split(e) == key] for key in map(split, entries)}
        self.releases = []
        for own in parts.values():
            whole = all(k == 0 for _, k in own) and rng.random() < 0.4
            noise = WHOLE_NOISE if whole else NORMAL if rng.random() < 0.4 else PLAIN
            self.releases.append((choose(noise), own))

    @property
    def shapes(self):
        m, free = (self.groups,), NUMBERS[self.number][0]
        found = {"theta": ("real", () if self.common else m)}
        found |= {"sigma": ("positive", ())} if self.law == "Normal" else {}
        return found | ({free: (f"{free} of numbers", m)} if free else {})

    def write(self, v):
        p, m = LINKS[OF_RECORDS[self.law][0]].graph(v["theta"]), self.groups
        n = NUMBERS[self.number][1](shape=(m,))

        summed, sums = self.summed, []
        for j in range(m if self.listed else 0):
            own = p[j] if p.type.ndim else p
            make, *arguments = OF_RECORDS[self.law][1](own, v.get("sigma"))
            x = make(f"x{j}", *arguments, shape=n[j] if hasattr(n, "owner") else int(n[j]))
            sums.append(summed.graph(n[j], self.each.graph(x)))
        if not self.listed:
            make, *arguments = OF_RECORDS[self.law][1](p, v.get("sigma"))
            of = self.each.graph if self.each is not EACH[0] else None
            total = dp.RecordSums("total", make.dist(*arguments), n, of=of, shape=m)
            h = SimpleNamespace(sum=lambda: total, mean=lambda: total / n)
            sums = (OF_SUM[0] if summed.label == "dot" else summed).graph(n, h)
        kinds = [self.counted.graph(n), pt.stack(sums) if self.listed else sums]
        for _, entries in self.releases:
            runs = [(k, [j for j, _ in own]) for k, own in groupby(entries, lambda e: e[1])]
            found = [kinds[k] if js == list(range(m)) else kinds[k][js] for k, js in runs]
            yield found[0] if len(found) == 1 else pt.concatenate(found)

    def of_group(self, j, point, released=()):
        """Return one group as a model of its own, and its parameters."""
        counted = (self.counted,) * sum(k == 0 for k, *_ in released)
        noise, places = (tuple(e[i] for e in released) for i in (2, 1))
        order = tuple(range(len(released)))
        size = Size(self.number, self.law, self.each, counted, self.summed, noise, order, False,
                    self.seed, places)  # fmt: skip
        return size, {k: v[j] if np.ndim(v) else v for k, v in point.items()}

    def published(self, rng, point):
        values = {}
        for j in range(self.groups):
            size, own = self.of_group(j, point)
            n = size.law_of_number(own).rvs(random_state=rng)
            x = OF_RECORDS[self.law][2](*size.record_parameters(own)).rvs(size=n, random_state=rng)
            with np.errstate(divide="ignore", invalid="ignore"):
                constant, slope = self.summed.array(np.asarray(n * 1.0))
                values[j, 1] = constant + slope * self.each.array(x).astype("float64").sum()
            values[j, 0] = self.counted.array(n)
        return self.noisy(rng, [np.array([values[e] for e in own]) for _, own in self.releases])

    def log_density(self, point, z, rng, size):
        found = []
        for j in range(self.groups):
            own = sorted(
                (k, place, name, value[place])
                for (name, entries), value in zip(self.releases, z, strict=True)
                for place, (group, k) in enumerate(entries)
                if group == j
            )
            if own:
                group, at = self.of_group(j, point, own)
                found.append(group.log_density(at, [value for *_, value in own], rng, size))
        return total_of(found)


BITS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
# Of each question, which answer a cell has.
TRUTH = {
    "binary": [np.eye(2)], "covariates": [np.eye(2)], "k-ary": [np.eye(3)],
    "questions": list(np.eye(2)[BITS.T]), "classes": list(np.eye(2)[BITS.T]),
    "one-hot": list(np.eye(2)[np.eye(3, dtype=int)]),
}  # fmt: skip


class Answers(Producer):
    """Answers changed at random, to one or several questions.

    A row is in a cell, which says all its answers.
    """

    def choices(self, rng, choose):
        self.kind, self.n, self.groups = choose(TRUTH), *map(int, rng.integers((2, 1), (7, 4)))
        self.g, self.x = rng.integers(0, self.groups, self.n), rng.normal(size=self.n).round(1)
        self.cells, categories = TRUTH[self.kind][0].shape
        several = len(TRUTH[self.kind]) > 1
        self.releases = []
        for _ in range(choose((1, 1, 2))):
            q = int(rng.integers(2)) if several and rng.random() < 0.4 else None
            rows = rng.permutation(self.n)[: rng.integers(1, self.n + 1)]
            rows = np.arange(self.n) if rng.random() < 0.7 else rows
            forms = ("truth", "epsilon", "matrix", "wide", "each")
            two = q is None and len(TRUTH[self.kind]) == 2
            form = choose(forms if two else forms[:-1])
            matrix = rng.dirichlet(np.ones(categories + (form == "wide")), categories).round(2)
            matrix[:, 0] += 1 - matrix.sum(1)
            self.releases.append((form, q, rows, matrix))

    @property
    def shapes(self):
        shares = {"binary": ("share", self.groups), "covariates": ("real", 2)}
        found = {
            "p": shares.get(
                self.kind, ("simplex", (self.groups, 2 if self.kind == "classes" else self.cells))
            )
        }
        return found | ({"q": ("share", (2, 2))} if self.kind == "classes" else {})

    def channels(self, i):
        """Return the mechanism of a release, and the matrix for each question or all."""
        form, _, _, matrix = self.releases[i]
        k, new = len(matrix), dp.RandomizedResponse
        mechanism, t = {
            "truth": lambda: (new(0.8, categories=k), [0.8]),
            "epsilon": lambda: (new.from_epsilon(1.0, categories=k), [np.e / (np.e + k - 1)]),
            "each": lambda: (new([0.8, 0.6]), [0.8, 0.6]),
        }.get(form, lambda: (new(matrix=matrix), []))()
        return mechanism, [np.where(np.eye(k), v, (1 - v) / (k - 1)) for v in t] or [matrix]

    def mechanism(self, i, m):
        return self.channels(i)[0]

    def write(self, v):
        p, n = v["p"], self.n
        if self.kind == "covariates":
            x = pm.Bernoulli("x", logit_p=p[0] + p[1] * self.x, shape=n)
        else:
            x = (pm.Bernoulli if self.kind == "binary" else pm.Categorical)("x", p[self.g], shape=n)
        if self.kind in ("questions", "one-hot"):
            x = (pt.as_tensor(BITS) if self.kind == "questions" else pt.eye(3))[x]
        if self.kind == "classes":
            x = pm.Bernoulli("y", v["q"][x], shape=(n, 2))
        for _, q, rows, _ in self.releases:
            found = x if q is None else x[:, q]
            yield found if len(rows) == n and (rows == np.arange(n)).all() else found[rows]

    def cells_of(self, point):
        """Return the probabilities of the cells of rows."""
        p = point["p"]
        p = special.expit(p[0] + p[1] * self.x) if self.kind == "covariates" else p[self.g]
        if self.kind == "classes":
            return p @ np.where(BITS, point["q"][:, None], 1 - point["q"][:, None]).prod(-1)
        return p if p.ndim == 2 else np.stack([1 - p, p], -1)

    def reports(self):
        """Yield by release its rows, and the probabilities of reports by cell and question."""
        truth = TRUTH[self.kind]
        for i, (_, q, rows, _) in enumerate(self.releases):
            own, t = truth if q is None else [truth[q]], self.channels(i)[1]
            yield rows, [answers @ t[min(k, len(t) - 1)] for k, answers in enumerate(own)]

    def published(self, rng, point):
        cells, z = [rng.choice(self.cells, p=w) for w in self.cells_of(point)], []
        for rows, laws in self.reports():
            drawn = [[rng.choice(law.shape[1], p=law[cells[i]]) for law in laws] for i in rows]
            z.append(np.array(drawn) if len(laws) > 1 else np.array(drawn)[:, 0])
        return z

    def log_density(self, point, z, rng, size):
        total = np.array(self.cells_of(point))
        for (rows, laws), value in zip(self.reports(), z, strict=True):
            for law, reported in zip(laws, value.reshape(len(rows), -1).T, strict=True):
                total[rows] *= law[:, reported].T
        with np.errstate(divide="ignore"):
            return np.log(total.sum(1)).sum(), 1e-12


class Rows(Producer):
    """Columns that are explained by others, released row by row; some not, some twice."""

    def choices(self, rng, choose):
        self.n, self.columns = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        self.g, self.spelling = rng.integers(0, 2, self.n), choose(("sum", "dot", "MvNormal"))
        self.x = rng.normal(size=self.n).round(1)
        self.releases = []
        for _ in range(choose((1, 1, 2))):
            own = rng.permutation(self.columns)[: rng.integers(1, self.columns + 1)]
            own = np.arange(self.columns) if rng.random() < 0.6 else own
            sd = rng.uniform(0.3, 1.0, (self.n, len(own)) if rng.random() < 0.3 else len(own))
            self.releases.append((own, sd.round(2)))

    @property
    def shapes(self):
        found = {"a": ("real", self.columns), "s": ("positive", self.columns)}
        if self.spelling == "MvNormal":
            return found
        return found | {"u": ("real", 2), "b": ("real", 3)}

    def mechanism(self, i, m):
        sd = self.releases[i][1]
        return dp.GaussianMechanism(sd if sd.shape[-1] > 1 else sd[..., 0])

    def write(self, v):
        n, a, s = self.n, v["a"], v["s"]
        if self.spelling == "MvNormal":
            rows = pm.MvNormal("x", a, pt.diag(s**2) + 0.5, shape=(n, self.columns))
            x = [rows[:, k] for k in range(self.columns)]
        else:
            u, b = v["u"], v["b"]
            x = [pm.Normal("x", a[0] + u[self.g] + b[2] * self.x, s[0], shape=n)]
            for k, name in enumerate(("y", "w")[: self.columns - 1]):
                mean = a[k + 1] + b[k] * x[-1]
                if self.spelling == "dot":
                    design = pt.stack([pt.ones(n), x[-1]], axis=1)
                    mean = design @ pt.stack([a[k + 1], b[k]])
                x.append(pm.Normal(name, mean, s[k + 1], shape=n))
        for own, _ in self.releases:
            yield x[own[0]] if len(own) == 1 else pt.stack([x[k] for k in own], axis=1)

    def moments(self, point):
        """Return the means of rows, and their covariance."""
        m, s = self.columns, point["s"]
        mean = np.tile(point["a"], (self.n, 1))
        if self.spelling == "MvNormal":
            return mean, np.diag(s**2) + 0.5
        mean[:, 0] += point["u"][self.g] + point["b"][2] * self.x
        load = np.linalg.inv(np.eye(m) - np.diag(point["b"][: m - 1], -1))
        return mean @ load.T, load * s**2 @ load.T

    def published(self, rng, point):
        mean, covariance = self.moments(point)
        x = mean + rng.multivariate_normal(np.zeros(self.columns), covariance, self.n)
        z = [x[:, own] + sd * rng.normal(size=(self.n, len(own))) for own, sd in self.releases]
        return [v[:, 0] if v.shape[1] == 1 else v for v in z]

    def log_density(self, point, z, rng, size):
        mean, covariance = self.moments(point)
        at = np.concatenate([own for own, _ in self.releases])
        value = np.concatenate([v.reshape(self.n, -1) for v in z], axis=1)
        sd = [np.broadcast_to(sd, (self.n, len(own))) for own, sd in self.releases]
        sd = np.concatenate(sd, axis=1)
        rows = zip(mean[:, at], value, sd**2, strict=True)
        covariance = covariance[np.ix_(at, at)]
        return total_of([exact.of_normals(m, covariance, v, s) for m, v, s in rows])


class Tables(Producer):
    """Linear functions of a table of counts that share cells; all tables are enumerated."""

    def choices(self, rng, choose):
        self.shape, self.law = choose(((3,), (2, 2), (4,))), choose(("Multinomial", "Poisson"))
        self.cells, self.people = int(np.prod(self.shape)), int(rng.integers(3, 9))
        self.prior = choose(("simplex", "log-linear", "public"))
        self.design = np.stack([np.ones(self.cells), rng.normal(size=self.cells).round(1)], 1)
        self.releases = []
        for _ in range(choose((1, 2, 2, 3))):
            numbers = [0, 1, 1, -1, 2] if rng.random() < 0.2 else [0, 1]
            matrix = rng.choice(numbers, (rng.integers(1, 4), self.cells))
            forms = (
                lambda c, m=matrix: m @ c, lambda c: c.sum()[None], lambda c: c,
                lambda c: c[:2].sum()[None],
                *(lambda c, k=k: c.reshape(self.shape).sum(axis=k) for k in (0, 1)),
            )  # fmt: skip
            form = choose(forms if len(self.shape) == 2 else forms[:4])
            weights = np.stack([form(cell) for cell in np.eye(self.cells)], -1)
            noise = choose(WHOLE_NOISE if rng.random() < 0.4 else PLAIN)
            self.releases.append((noise, form, weights))

    @property
    def shapes(self):
        simplex = "simplex" if self.law == "Multinomial" else "positive"
        shapes = {"simplex": {"p": (simplex, self.cells)}, "log-linear": {"b": ("real", 2)}}
        return shapes.get(self.prior, {})

    def write(self, v):
        eta = pt.as_tensor(self.design) @ v.get("b", np.array([0.0, 0.5]))
        if self.law == "Multinomial":
            c = pm.Multinomial("x", self.people, v.get("p", pm.math.softmax(eta)))
        else:
            c = pm.Poisson("x", v.get("p", pt.exp(eta)), shape=self.cells)
        return [form(c) for _, form, _ in self.releases]

    @property
    def priors(self):
        """Laws of PyMC and scipy's of the parameters, for bounded functions of them."""
        laws = {"simplex": stats.uniform(), "positive": stats.gamma(4, scale=0.25)}
        return {k: (None, laws.get(d, stats.norm())) for k, (d, _) in self.shapes.items()}

    def draw_prior(self, rng, size):
        """Draw the parameters, an array for each."""
        if self.shapes.get("p", ("",))[0] == "simplex":
            return [rng.dirichlet(np.ones(self.cells), size)]
        laws = zip(self.priors.values(), self.shapes.values(), strict=True)
        return [law.rvs(size=(size, s), random_state=rng) for (_, law), (_, s) in laws]

    def means(self, point):
        """Return the probabilities of cells, or their rates."""
        eta = point.get("b", np.array([0.0, 0.5])) @ self.design.T
        found = special.softmax(eta, -1) if self.law == "Multinomial" else np.exp(eta)
        return point.get("p", found)

    def draw(self, rng, parameters, size):
        """Draw tables, one for each set of parameters."""
        p = self.means(dict(zip(self.shapes, parameters, strict=True)))
        p = np.broadcast_to(p, (size, self.cells))
        return rng.multinomial(self.people, p) if self.law == "Multinomial" else rng.poisson(p)

    def published(self, rng, point):
        c = self.draw(rng, list(point.values()), 1)[0]
        return self.noisy(rng, [w @ c for *_, w in self.releases])

    def log_likelihood(self, z, x):
        """Return log p(z | x) of many tables."""
        return self.log_noise(z, [x @ w.T for *_, w in self.releases])

    def log_density(self, point, z, rng, size):
        p, poisson = self.means(point), self.law == "Poisson"
        c = np.indices((26 if poisson else self.people + 1,) * self.cells)
        c = c.reshape(self.cells, -1).T
        c = c if poisson else c[c.sum(1) == self.people]
        law = stats.poisson(p) if poisson else stats.multinomial(self.people, p)
        log = law.logpmf(c).sum(1) if poisson else law.logpmf(c)
        return special.logsumexp(log + self.log_likelihood(z, c)), 1e-9


class Regression(Producer):
    """X'X, X'y, y'y and the number of rows, that is not known, by draws of the rows."""

    def choices(self, rng, choose):
        self.number = choose(("DiscreteUniform(6, 11)", "DiscreteUniform(6, 11)", "Poisson(7)"))
        products = ("x", "y", "xx", "xy", "yy")
        split = choose(
            (("n", products), ("n", ("x", "xx"), ("y", "xy"), "yy"), (("n", *products),))
        )
        self.releases = [(choose(WIDE), (own,) if isinstance(own, str) else own) for own in split]

    shapes = {"m": ("real", ()), "b": ("real", 2), "s": ("positive", 2)}  # noqa: RUF012

    @staticmethod
    def statistics(n, x, y):
        found = {"x": x.sum(-1), "y": y.sum(-1), "xx": (x**2).sum(-1), "yy": (y**2).sum(-1)}
        return found | {"n": n, "xy": (x * y).sum(-1)}

    def write(self, v):
        n = NUMBERS[self.number][1]()
        x = pm.Normal("x", v["m"], v["s"][0], shape=n)
        y = pm.Normal("y", v["b"][0] + v["b"][1] * x, v["s"][1], shape=n)
        found = self.statistics(n, x, y)
        for _, names in self.releases:
            yield pt.stack([found[k] for k in names]) if len(names) > 1 else found[names[0]]

    def drawn(self, rng, point, size):
        n = NUMBERS[self.number][2](None).rvs(size=size, random_state=rng)
        there = np.arange(max(n.max(), 1)) < n[:, None]
        e = rng.normal(size=(2, *there.shape))
        x = point["m"] + point["s"][0] * e[0]
        y = point["b"][0] + point["b"][1] * x + point["s"][1] * e[1]
        found = self.statistics(n, x * there, y * there)
        return [np.stack([found[k] for k in names], -1) for _, names in self.releases]

    def published(self, rng, point):
        z = self.noisy(rng, [s[0] for s in self.drawn(rng, point, 1)])
        return [v if v.size > 1 else v[0] for v in z]

    def log_density(self, point, z, rng, size):
        for many in (size, 30 * size):
            found = average(self.log_noise(z, self.drawn(rng, point, many)))
            if found[1] < ENOUGH:
                break
        return found


def total_of(found):
    """Return the sum of log densities, and its error."""
    values, errors = np.array(found).T
    return values.sum(), np.sqrt((errors**2).sum())


KINDS = (Groups, Groups, Groups, Answers, Answers, Rows, Tables, Tables, Regression)


def random_spec(seed):
    """Draw a model; kinds with more forms come more often."""
    return KINDS[np.random.default_rng(seed).integers(len(KINDS))](seed)


def simpler(spec):
    """Yield models that are a little simpler."""
    for i in range(len(spec.releases) * (len(spec.releases) > 1)):
        yield spec.but(releases=spec.releases[:i] + spec.releases[i + 1 :])
    for name, value in spec.plain.items():
        if getattr(spec, name) is not value:
            yield spec.but(**{name: value})
