"""Random models with private releases, each a text that PyMC and numpy run alike.

`write` draws the text. Every choice has a name and a plainest value, which comes first: `simplest`
makes choices plain as long as a fault stays.
"""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp
from pymc_dp.mechanisms.release import release_rv

# --- What a text is made of -----------------------------------------------------------------------

# By domain of the first parameter p: laws of the records. `N` is where name and shape are written.
LAWS = {
    "real": (
        "pm.Normal(N, {p}, 1)", "pm.Normal(N, {p}, q)", "pm.Laplace(N, {p}, 0.5)",
        "pm.LogNormal(N, {p}, 0.5)", "pm.StudentT(N, nu=4, mu={p}, sigma=1)",
        "pm.Logistic(N, {p}, 0.5)", "pm.Gumbel(N, {p}, 0.7)", "pm.Cauchy(N, {p}, 1)",
        "pm.Censored(N, pm.Normal.dist({p}, 1), lower=0, upper=1.5)",
        "pm.TruncatedNormal(N, {p}, 1, lower=0)", "pm.SkewNormal(N, mu={p}, sigma=1, alpha=2)",
        "pm.NormalMixture(N, [0.3, 0.7], pt.stack([{p}, {p} + 2], axis=-1), 0.5)",
    ),
    "positive": (
        "pm.Exponential(N, {p})", "pm.Poisson(N, {p})", "pm.Gamma(N, 2, {p})",
        "pm.HalfNormal(N, {p})", "pm.Weibull(N, 1.5, {p})", "pm.Uniform(N, 0, {p})",
        "pm.NegativeBinomial(N, mu={p}, alpha=3)", "pm.InverseGamma(N, 3, {p})",
        "pm.HurdlePoisson(N, 0.6, {p})", "pm.Normal(N, 1, {p})", "pm.Pareto(N, 2.5, {p})",
        "pm.Triangular(N, lower=0, c={p} / 2, upper=2 * {p})",
    ),
    "share": (
        "pm.Bernoulli(N, {p})", "pm.Binomial(N, 4, {p})", "pm.Geometric(N, {p})",
        "pm.ZeroInflatedPoisson(N, {p}, 3)", "pm.Beta(N, 1 + {p}, 2)",
        "pm.NegativeBinomial(N, p={p}, n=3)", "pm.DiscreteUniform(N, 0, 4)",
        "pm.Categorical(N, pt.stack([{p}, (1 - {p}) / 3, 2 * (1 - {p}) / 3], axis=-1))",
    ),
}  # fmt: skip
WHOLE = ("Poisson", "Binomial", "Bernoulli", "Geometric", "DiscreteU", "Categorical")
PRIORS = {
    "real": ("pm.Normal(N, 0, 1)", "pm.StudentT(N, nu=5, mu=0, sigma=1)", "pm.Uniform(N, -1, 1)"),
    "positive": ("pm.Gamma(N, 4, 2)", "pm.HalfNormal(N, 2)", "pm.InverseGamma(N, 4, 3)"),
    "share": ("pm.Beta(N, 2, 2)", "pm.Uniform(N, 0, 1)"),
}
# Shapes of the records: how they are written, and lengths. n is the number of records.
SHAPES = ("shape=n", 'dims="row"', "shape=(n,)", "", "shape=(n, 1)", "shape=(1, n)", "shape=(n, 2)",
          "shape=1", "shape=()", "size=(n,)", "shape=(2, n)", 'dims=("row", "column")')  # fmt: skip
# The first parameter by theta: its shape; the expression, which has the shape of the records or is
# broadcast to it.
PARAMETERS = (
    ("", "theta"), ("shape=1", "theta"), ("shape=(1,)", "theta[0]"), ("", "theta / 2"),
    ("shape=2", "theta[g]"), ('dims="group"', "theta[g]"), ("shape=2", "theta[gdata]"),
    ("shape=n", "theta"), ('dims="row"', "theta"), ("shape=(n, 1)", "theta"),
    ("", "theta * w"), ("", "theta * wdata"), ("", "half * theta"), ("shape=(2,)", "theta[1]"),
    ("", "pt.switch(theta > 0.5, theta, 0.5)"), ("shape=(1, 1)", "theta"),
    ("", "pt.stack([theta, theta / 2])[g]"), ("shape=2", "theta.mean()"),
    ("shape=2", "theta[g][:, None]"), ("", "theta.astype('float32').astype('float64')"),
    ("", "pm.Deterministic('d', theta / 3)"), ("", "theta * pt.ones(n)"),
)  # fmt: skip
# Functions of each record h.
EACH = (
    "{h}", "2 * {h} - 1", "{h} / 2", "-{h}", "pt.clip({h}, 0, 2)", "{h} > 1", "{h} ** 2",
    "abs({h} - 1)", "pt.minimum({h}, 1)", "{h}.astype('int64')", "{h}.astype('int8')",
    "{h}.astype('bool')", "{h}.astype('float32')", "{h}.astype('float64')", "{h}.astype('int32')",
    "{h}.astype('uint8')", "pt.floor({h})", "pt.ceil({h})", "pt.round({h})", "pt.sign({h})",
    "pt.switch({h} > 1, {h}, 0)", "pt.where({h} > 0, 1, -1)", "pt.eq({h}, 1)", "{h} // 2",
    "{h} % 3", "{h} * w", "{h} + w", "{h} * one", "{h} - one", "{h} * wdata", "w / 2 - {h}",
    "pt.sqrt(abs({h}))", "pt.log1p(abs({h}))", "pt.exp({h})", "pt.expm1({h} / 2)", "1 - {h}",
    "pt.maximum({h}, one)", "pt.sigmoid({h})", "{h} * {h}", "half * {h}", "pt.abs({h})",
    "({h} > 0) & ({h} < 2)", "pt.clip({h}, w, 4)", "{h}[::-1]", "{h} * column", "pt.square({h})",
    "pt.tanh({h})", "{h} ** 3", "1 / (1 + {h} ** 2)", "pt.ge({h}, 1) * {h}", "{h} + theta0 * 0",
)  # fmt: skip
# Statistics of them.
REDUCE = (
    "{h}", "{h}.sum()", "{h}.mean()", "{h}.sum(axis=0)", "{h}.sum(axis=-1)", "{h}.mean(axis=0)",
    "pt.stack([{h}[g == j].sum() for j in range(2)])", "{h}[:2].sum()", "{h}[0]", "{h}[1:]",
    "pt.dot(w, {h})", "w @ {h}", "A @ {h}", "pt.cumsum({h})", "pt.diff({h})", "{h}.max()",
    "{h}.var()", "{h}.var(ddof=1)", "{h}.std()", "pt.stack([{h}.sum(), ({h} > 1).sum()])",
    "pt.stack([pt.eq({h}, k).sum() for k in range(3)])", "{h}[None]", "{h}[:, None]",
    "{h}.sum(keepdims=True)", "pt.concatenate([{h}[:1], {h}[1:]])", "{h}.ravel()", "{h}.prod()",
    "{h}.reshape((1, -1))", "{h}.T", "({h} * (g == 1)).sum()", "pt.stack([{h}, 2 * {h}])",
    "pt.set_subtensor(pt.zeros(n)[::-1], {h})", "{h}[g]", "{h}[np.array([0, 0])]", "pt.sum({h})",
    "{h}.sum() / n", "({h} - {h}.mean()).sum()", "({h} > 1).mean()", "pt.any({h} > 2)",
    "pt.inc_subtensor(pt.zeros(2)[g], {h})", "pt.stack([{h}.mean(), {h}.var(ddof=1)])",
)  # fmt: skip
LABELLED = (
    "{h} * y", "{h} * pt.eq(y, 1)", "pt.where(y > 0, {h}, 0)", "pt.switch(pt.eq(y, 0), {h}, 1)",
)  # fmt: skip
AFTER = (
    "{s}", "3 * {s} - 1", "{s} / 2", "{s}.astype('int64')", "{s}.astype('float32')", "{s} + one",
    "pt.round({s})", "pt.clip({s}, 0, 3)", "{s} * 1.0", "pt.sqrt(abs({s}))", "abs({s})",
    "pt.exp({s} / 4)", "{s} ** 2", "{s} * half", "pt.atleast_1d({s})", "pt.stack([{s}, {s}])",
)  # fmt: skip
# Of scales b, whole numbers where the statistic is one.
NOISE = (
    "dp.LaplaceMechanism(b)", "dp.GaussianMechanism(b)", "dp.LaplaceMechanism(np.full(1, b))",
    "dp.LaplaceMechanism(np.full(shape, b))", "dp.GaussianMechanism(np.full(shape, b))",
    "dp.LaplaceMechanism(2 * b).clipped(lower=m)", "dp.GaussianMechanism(b).rounded(base=b)",
    "dp.GaussianMechanism(b).clipped(m - b, m + 3 * b)", "dp.LaplaceMechanism(b).floored(2 * b)",
    "dp.LaplaceMechanism(b).suppressed(below=m)", "dp.GaussianMechanism(b).thresholded(m)",
    "dp.StudentTMechanism(3, b)", "dp.UniformMechanism(2 * b)", "dp.StaircaseMechanism(1.0, b)",
    "dp.CauchyMechanism(b)", "dp.LaplaceMechanism(b).truncated(b)",
)  # fmt: skip
WHOLE_NOISE = ("dp.GeometricMechanism(b)", "dp.DiscreteGaussianMechanism(b)",
               "dp.GeometricMechanism(b).clipped(lower=round(m))",
               "dp.GeometricMechanism(b).suppressed(below=round(m))",
               "dp.RandomRounding(3)")  # fmt: skip
SIZES = ("{n}", "{n}", "{n}", 'pm.Poisson("n", 5)', 'pm.Binomial("n", 8, 0.6)',
         'pm.DiscreteUniform("n", 2, 7)')  # fmt: skip


class Choices:
    """Named choices: drawn, or as they are stated."""

    def __init__(self, seed, stated=()):
        self.rng, self.stated, self.made = np.random.default_rng(seed), dict(stated), {}

    def __call__(self, name, options, plain=0.0):
        drawn = 0 if self.rng.random() < plain else int(self.rng.integers(len(options)))
        self.made[name] = i = min(self.stated.get(name, drawn), len(options) - 1)
        return options[i]


def _named(law, name, shape):
    """Return the text of a law with its name and shape."""
    return law.replace("(N, ", f'("{name}", ', 1)[:-1] + (f", {shape})" if shape else ")")


def write(choose):
    """Return the text of a random model."""
    domain = choose("domain", tuple(LAWS))
    law = choose("law", LAWS[domain], 0.15)
    number = choose("number", (4, 1, 2, 3, 5, 7))
    size = choose("size", SIZES, 0.7).format(n=number)
    shape = choose("shape", SHAPES, 0.5)
    own, p = choose("parameter", PARAMETERS, 0.4)
    lines = [f"n = {size}"]
    prior = choose("prior", PRIORS[domain], 0.5)
    lines.append("theta = " + _named(prior, "theta", own))
    lines.append("theta0 = theta.ravel()[0]")
    if "q" in law.replace("sq", ""):
        lines.append('q = pm.HalfNormal("q", 1) + 0.3')
    if choose("potential", (False, True), 0.7):
        lines.append('pm.Potential("potential", -(theta**2).sum())')
    law = law.format(p=p)
    if choose("dist", (False, True), 0.7) and "pm.Censored" not in law:
        shape = "shape=n" if "dims" in shape else shape
        lines.append("x = " + _named(law, "", shape).replace('("", ', ".dist(", 1))
    else:
        lines.append("x = " + _named(law, "x", shape))
    if label := choose("label", (False, True), 0.7):
        kind = choose("label law", ("pm.Bernoulli(N, 0.4)", "pm.Categorical(N, [0.5, 0.3, 0.2])"))
        form = choose("label shape", ("shape=n", "shape=1", "shape=(n, 1)", ""))
        lines.append("y = " + _named(kind, "y", form))
    for i in range(choose("releases", (1, 1, 1, 2))):
        h = "x"
        for k in range(choose(f"depth {i}", (1, 0, 2, 3), 0.4)):
            h = choose(f"each {i} {k}", EACH, 0.3).format(h=h if h == "x" else f"({h})")
        if label and choose(f"labelled {i}", (True, True, False)):
            form = choose(f"by label {i}", LABELLED)
            h = form.format(h=f"({h})")
        s = choose(
            f"reduce {i}", REDUCE[:4] if choose(f"usual {i}", (True, False), 0.3) else REDUCE
        )
        s = choose(f"after {i}", AFTER, 0.7).format(s="(" + s.format(h=f"({h})") + ")")
        noise = NOISE
        if any(w in law for w in WHOLE) and choose(f"whole {i}", (True, False)):
            noise = WHOLE_NOISE
        noise = choose(f"noise {i}", noise, 0.4)
        scale = choose(f"scale {i}", (1.0, 0.3, 3.0))
        lines.append(f'release("z{i}", {s}, "{noise}", {scale})')
    return "\n".join(lines)


# --- Its two readings -----------------------------------------------------------------------------


def public(n):
    """Return the public numbers of a text."""
    w = np.array([1.0, 2.0, -1.0, 0.5, 1.0, 3.0, 1.0, 2.0])[:n]
    return {"g": np.arange(n) % 2, "w": w, "one": np.ones(1), "half": 0.5, "A": np.outer([1, 2], w),
            "column": np.array([[1.0], [2.0]]), "wdata": w, "gdata": np.arange(n) % 2}  # fmt: skip


def build(text, seed):
    """Return the model, a point, and the shapes of the statistics; the releases are drawn."""
    rng, pending = np.random.default_rng([seed, 5]), []
    known = int(text.split("n = ")[1].split("\n")[0]) if "n = pm" not in text else 5
    names = {"pm": pm, "pt": pt, "np": np, "dp": dp, **public(known)}
    coords = {"row": range(known), "group": ["a", "b"], "column": [10, 20]}
    with pm.Model(coords=coords) as model:
        for name in ("wdata", "gdata"):
            if name in text:
                names[name] = pm.Data(name, names[name])
        names["release"] = lambda *what: pending.append(what)
        exec(text, names)
        statistics = [pt.as_tensor(s) for _, s, _, _ in pending]
        draws = pm.draw(statistics, 60, random_seed=rng)
        released = []
        for (name, s, noise, scale), many in zip(pending, draws, strict=True):
            many = np.asarray(many, dtype="float64")
            low, m, high = np.quantile(many[np.isfinite(many)], [0.16, 0.5, 0.84])
            spread = high - low if high - low > 1e-9 * (1 + abs(m)) else 2.0
            b = float(f"{scale * spread / 2:.2g}")
            given = {"b": b, "m": float(f"{m:.3g}"), "shape": many.shape[1:], "np": np, "dp": dp}
            released.append((name, s, eval(noise, given)))
        free = list(model.free_RVs)
        noisy = [release_rv(s, mechanism) for _, s, mechanism in released]
        *drawn, x = pm.draw([*free, *noisy, *statistics, names["x"]], random_seed=rng)
    point = dict(zip([v.name for v in free], drawn, strict=False))
    drawn_statistics = drawn[len(free) + len(noisy) :]
    with suppress(NotImplementedError):
        for s, drawn_s in zip(
            numbers(text, point | {"x": x}, known), drawn_statistics, strict=True
        ):
            if drawn_s.shape != s.shape or not np.allclose(drawn_s, s, 2e-3, 1e-3, equal_nan=True):
                raise ReadOtherwise(f"numpy reads {s}, PyTensor {drawn_s}")
    pairs = zip(released, drawn[len(free) :], strict=False)
    return model, point, [(*release, z) for release, z in pairs]


class ReadOtherwise(Exception):
    """Numpy and PyTensor compute different statistics."""


class _Law:
    """A law in numpy's reading: a call returns the value that the variable has."""

    def __init__(self, values):
        self.values = values

    def __call__(self, name, *arguments, **options):
        return self.values[name]

    def dist(self, *arguments, **options):
        return self.values["x"]


class _Numpy:
    """The functions that a text takes from PyTensor, as numpy has them."""

    switch, where, dot = map(staticmethod, (np.where, np.where, np.dot))
    eq, ge = np.equal, np.greater_equal

    def __getattr__(self, name):
        return getattr(np, name)

    def sigmoid(self, x):
        return 1 / (1 + np.exp(-np.asarray(x, dtype="float64")))

    def set_subtensor(self, view, x):
        view[...] = x
        return view if view.base is None else view.base

    def inc_subtensor(self, view, x):
        raise NotImplementedError  # numpy has copied the entries


def numbers(text, values, known):
    """Return the statistics that numpy computes, where random variables have these values."""
    found = []
    model = SimpleNamespace(Potential=lambda *_: None, Deterministic=lambda _, x: x)
    for name in {word.split("(")[0].split(".")[0] for word in text.split("pm.")[1:]}:
        if not hasattr(model, name):
            setattr(model, name, _Law(values))
    names = {"pm": model, "pt": _Numpy(), "np": np, **public(known)}
    exec(text, names | {"release": lambda name, s, *_: found.append(np.asarray(s))})
    return found


def simplest(seed, fails):
    """Return the plainest choices for which a text still fails."""
    choose = Choices(seed)
    write(choose)
    stated = dict(choose.made)
    for name in list(stated):
        for value in range(stated.get(name, 0)):
            trial = Choices(seed, stated | {name: value})
            text = write(trial)
            if fails(text, seed):
                stated = dict(trial.made)
                break
    return write(Choices(seed, stated))
