"""Random models with private releases, each a text that PyMC and numpy run alike.

`write` draws the text. Every choice has a name and a plainest value, which comes first: `simplest`
makes choices plain as long as a fault stays.
"""

import re
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import sparse as pts
from scipy import sparse

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
        "pm.Poisson(N, pt.exp({p}))", "pm.Bernoulli(N, logit_p={p})",
        "pm.Exponential(N, pm.math.exp({p}))", "pm.Binomial(N, 3, pm.math.sigmoid({p}))",
        "pm.Normal(N, {p}, pt.stack([q, 2 * q])[g])", "pm.Normal(N, {p}, tau=q)",
        "pm.HurdleLogNormal(N, 0.6, {p}, 0.5)", "pm.Uniform(N, -1, 2)",
    ),
    "positive": (
        "pm.Exponential(N, {p})", "pm.Poisson(N, {p})", "pm.Gamma(N, 2, {p})",
        "pm.HalfNormal(N, {p})", "pm.Weibull(N, 1.5, {p})", "pm.Uniform(N, 0, {p})",
        "pm.NegativeBinomial(N, mu={p}, alpha=3)", "pm.InverseGamma(N, 3, {p})",
        "pm.HurdlePoisson(N, 0.6, {p})", "pm.Normal(N, 1, {p})", "pm.Pareto(N, 2.5, {p})",
        "pm.Triangular(N, lower=0, c={p} / 2, upper=2 * {p})", "pm.HurdleGamma(N, 0.6, 2, {p})",
        "pm.Mixture(N, [0.3, 0.7], [pm.Exponential.dist({p}), pm.Gamma.dist(3, 2 * {p})])",
        "pm.Mixture(N, [0.3, 0.7], [pm.Poisson.dist({p}), pm.Poisson.dist(5 * {p})])",
        "pm.Censored(N, pm.Gamma.dist(2, {p}), None, 2)", "pm.Beta(N, {p} + 0.3, 2)",
        "pm.Censored(N, pm.Poisson.dist(3 * {p}), 1, 4)",
    ),
    "share": (
        "pm.Bernoulli(N, {p})", "pm.Binomial(N, 4, {p})", "pm.Geometric(N, {p})",
        "pm.ZeroInflatedPoisson(N, {p}, 3)", "pm.Beta(N, 1 + {p}, 2)",
        "pm.NegativeBinomial(N, p={p}, n=3)", "pm.DiscreteUniform(N, 0, 4)",
        "pm.Categorical(N, pt.stack([{p}, (1 - {p}) / 3, 2 * (1 - {p}) / 3], axis=-1))",
    ),
}  # fmt: skip
WHOLE = ("Poisson", "Binomial", "Bernoulli", "Geometric", "DiscreteU", "Categorical")
HYPER = 'pm.Normal("m0", 0, 1), pm.HalfNormal("tau", 1)'
PRIORS = {
    "real": (
        "pm.Normal(N, 0, 1)",
        "pm.StudentT(N, nu=5, mu=0, sigma=1)",
        "pm.Uniform(N, -1, 1)",
        f"pm.Normal(N, {HYPER})",
    ),
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
    ("shape=2", "X @ theta"), ("shape=2", "theta[g] + theta[1 - g]"),
    ("shape=2", "theta[0] + theta[1] * w"), ("", "pt.stack([9.0, theta])[None][0, 1]"),
    ("shape=2", 'pm.HalfNormal("tau", 1) * theta[g]'), ("", "(pt.floor(2 * theta) + 1) / 9"),
)  # fmt: skip
# Functions of each record h.
EACH = (
    "{h}", "2 * {h} - 1", "{h} / 2", "-{h}", "0.01 * {h}", "300 * {h}", "pt.clip({h}, 0, 2)",
    "{h} > 1", "{h} ** 2",
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
    "G @ {h}", "pt.dot(G, {h})", "pt.bincount(g, weights={h}, minlength=3)", "sparse_dot(G, {h})",
    "G @ {h} / pt.maximum(G.sum(axis=1), 1)", "pt.stack([pt.where(g == j, {h}, 0).sum() "
    "for j in range(3)])", "pt.dot({h}, {h})", "X.T @ {h}", "({h} * w).sum()",
    "pt.stack([{h}[g == j].var(ddof=1) for j in range(2)])", "pt.stack([{h}[0]] * 3).sum()",
    "pt.concatenate([G @ {h}, ({h} > 1).sum()[None]])", "pt.stack([{h}.sum(), ({h}**2).sum()])",
    "pt.concatenate([X.T @ {h}, pt.dot({h}, {h})[None]])", "pt.dot(pt.ones_like({h}), {h})",
    "pt.stack([{h}.sum(), {h}.sum()])", "G @ {h} - G @ (1.0 * ({h} > 1))",
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
    "dp.LaplaceMechanism(b).ceiled(2 * b)", "dp.GaussianMechanism(b).suppressed(above=m)",
    "dp.LaplaceMechanism(b).suppressed(above=m - b, below=m + b)", "dp.NoisyMax('gumbel', b)",
    "dp.NoisyMax(dp.LaplaceMechanism(b))", "dp.TulapMechanism(1.0, 0.05, b)",
    "dp.BoundedLaplaceMechanism(b, m - 2 * b, m + b)",
    "dp.FoldedLaplaceMechanism(b, m - 2 * b, m + b)", "dp.NoiseFactor(0.05, 0.25)",
    "dp.SnappingMechanism(b, m - 3.3 * b, m + 2.2 * b)", "dp.LaplaceMechanism(uneven)",
    "dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.2))", "dp.GaussianMechanism(uneven)", "logistic(b)",
)  # fmt: skip
# Its releases may be so many scales from the statistic, or at it, where densities bend.
MAY_BE_FAR = r"(Laplace|Gaussian|StudentT|Cauchy|Geometric)Mechanism\([^()]*\)$|^logistic"
WHOLE_NOISE = ("dp.GeometricMechanism(b)", "dp.DiscreteGaussianMechanism(b)",
               "dp.GeometricMechanism(b).clipped(lower=round(m))",
               "dp.GeometricMechanism(b).suppressed(below=round(m))",
               "dp.RandomRounding(3)", "dp.CellKey(TABLE)",
               "dp.GeometricMechanism(b).suppressed(above=round(m) - 2, below=round(m) + 2)",
               "dp.DiscreteGaussianMechanism(b).thresholded(round(m))")  # fmt: skip
# How many records there are; the last are not known.
SIZES = ("{n}", "{n}", "{n}", 'pm.Poisson("n", 5)', 'pm.Binomial("n", 8, 0.6)',
         'pm.Geometric("n", 0.3)', 'pm.NegativeBinomial("n", n=3, p=0.4)',
         'pm.Poisson("n", pm.Gamma("rate", 8, 1))', 'pm.Binomial("n", 8, pm.Beta("share", 2, 2))',
         'pm.DiscreteUniform("n", 2, 7)')  # fmt: skip
GROUP_SIZES = (*(size[:-1] + ", shape=m)" for size in SIZES[3:7]), "np.array([5, 3, 4])[:m]",
               'pm.Poisson("n", pm.Gamma("rate", 8, 1, shape=m), shape=m)',
               'pm.DiscreteUniform("n", 6, 11, shape=m)')  # fmt: skip
# What has the length of records whose number is public.
PUBLIC = re.compile(r"\b(g|w|A|G|X|gdata|wdata|column|group|row|shape=n)\b")
# Laws of answers, what is asked, and how many answers there are to it.
ANSWERS = (
    ('theta = pm.Beta("theta", 2, 2, shape=2); x = pm.Bernoulli("x", theta[g], shape=n)', "x", 2),
    ('theta = pm.Normal("theta", 0, 1, shape=2); x = pm.Bernoulli("x", logit_p=X @ theta)', "x", 2),
    ('theta = pm.Dirichlet("theta", np.ones((2, 3))); x = pm.Categorical("x", theta[g])', "x", 3),
    (
        'theta = pm.Dirichlet("theta", np.ones((2, 4))); x = pm.Categorical("x", theta[g]); '
        "y = pt.as_tensor(BITS)[x]",
        "y",
        2,
    ),
    (
        'theta = pm.Dirichlet("theta", np.ones(3)); x = pm.Categorical("x", theta, shape=n); '
        "y = pt.as_tensor(np.eye(3))[x]",
        "y",
        2,
    ),
    (
        'theta = pm.Beta("theta", 2, 2, shape=2); share = pm.Beta("share", 2, 2, shape=(2, 2)); '
        'x = pm.Bernoulli("x", theta[g], shape=n); y = pm.Bernoulli("y", share[x], shape=(n, 2))',
        "y",
        2,
    ),
)
CELLS = (
    'theta = pm.Dirichlet("theta", np.ones(4)); x = pm.Multinomial("x", n, theta)',
    'theta = pm.Normal("theta", 0, 1, shape=2); '
    'x = pm.Multinomial("x", n, pm.math.softmax(L @ theta))',
    'x = pm.Multinomial("x", n, [0.1, 0.2, 0.3, 0.4])',
    'theta = pm.Gamma("theta", 4, 4, shape=4); x = pm.Poisson("x", theta, shape=4)',
    'theta = pm.Normal("theta", 0, 1, shape=2); x = pm.Poisson("x", pt.exp(L @ theta))',
    'theta = pm.Gamma("theta", 4, 4); x = pm.Poisson("x", theta, shape=4)',
    'theta = pm.Beta("theta", 2, 2, shape=4); x = pm.Binomial("x", 3, theta)',
    'theta = pm.Gamma("theta", 4, 1, shape=4); x = pm.DirichletMultinomial("x", n, theta)',
)
OF_CELLS = ("x", "x.sum()[None]", "x.sum()", "x[:2].sum()", "x.reshape((2, 2)).sum(axis=0)",
            "x.reshape((2, 2)).sum(axis=1)", "T[:1] @ x", "T[1:] @ x", "T @ x", "pt.dot(T, x)",
            "x[2:]", "x[[3, 0]]", "pt.stack([x[0] + x[3], x[1]])", "x / x.sum()", "2 * x[0] - x[1]",
            "x.reshape((2, 2))", "pt.concatenate([x, x.sum()[None]])")  # fmt: skip
_LINE = 'b = pm.Normal("b", 0, 1, shape=2); s = pm.HalfNormal("s", 1) + 0.3; '
COLUMNS = (
    (
        _LINE
        + 'x = pm.Normal("x", 0.5, 1, shape=n); y = pm.Normal("y", b[0] + b[1] * x, s, shape=n)',
        "xy",
    ),
    (_LINE + 'x = pm.Normal("x", b[0], s, shape=n); y = pm.Normal("y", b[1], 1, shape=n)', "xy"),
    (_LINE + 'x = pm.Bernoulli("x", 0.4, shape=n); y = pm.Normal("y", b[x], s, shape=n)', "xy"),
    (
        _LINE + 'x = pm.Normal("x", 0, s, shape=n); '
        'y = pm.Bernoulli("y", logit_p=b[0] + b[1] * x, shape=n)',
        "xy",
    ),
    (
        _LINE + 'x = pm.Categorical("x", [0.3, 0.3, 0.4], shape=n); '
        'y = pm.Poisson("y", pt.exp(b[0] + b[1] * pt.eq(x, 1)), shape=n)',
        "xy",
    ),
    (_LINE + 'x = pm.Gamma("x", 2, s, shape=n); y = pm.Gamma("y", 3, pt.exp(b[1]), shape=n)', "xy"),
    (_LINE + 'x = pm.Poisson("x", s, shape=n); y = pm.Binomial("y", x, 0.4, shape=n)', "xy"),
    (
        _LINE + 'x = pm.Normal("x", w * b[0], s, shape=n); '
        'y = pm.Normal("y", pt.stack([pt.ones(n), x], axis=1) @ b, 0.8, shape=n)',
        "xy",
    ),
    (_LINE + 'y = pm.MvNormal("y", b, s**2 * np.eye(2) + 0.5, shape=(n, 2))', "y"),
)
OF_ROWS = ("y", "x", "pt.stack([x, y], axis=1)", "pt.stack([y, x], axis=-1)", "y[g == 0]", "y[1:]",
           "pt.stack([x, y])", "x + y", "x - 2 * y", "x * y", "pt.stack([x, y], axis=1)[:, 1]",
           "y > 0")  # fmt: skip
OF_COLUMNS = (
    "pt.stack([x.sum(), y.sum(), (x**2).sum(), (x * y).sum(), (y**2).sum()])", "(x * y).sum()",
    "pt.stack([(x**2).sum(), (x * y).sum()])", "y.sum()", "y.sum(axis=0)", "y.mean(axis=0)",
    "x.sum() / y.sum()", "y.sum() - x.sum()", "x.mean() - y.mean()", "pt.stack([x.sum(), y.sum()])",
    "pt.dot(x, y)", "pt.stack([y[pt.eq(x, k)].sum() for k in range(2)])", "(y * (x > 0)).sum()",
    "pt.stack([(y * pt.eq(x, k)).sum() for k in range(3)])", "y[:2].sum()", "(x + y).sum()",
    "pt.stack([(pt.eq(x, i) * pt.eq(y, j)).sum() for i in range(2) for j in range(2)])",
    "pt.concatenate([G @ x, G @ y])", "G @ (x * y)", "pt.concatenate([X.T @ y, G @ y**2])",
    "pt.clip(y, 0, 1).sum()", "pt.stack([pt.clip(x, 0, 1).sum(), pt.clip(y, 0, 2).sum()])",
    "((x > 0) & (y > 0)).sum()", "((x > 0) * (y > 0)).mean()", "x.sum() * y.sum()", "x.max()",
    "pt.stack([x.sum(), x.var(ddof=1), y.mean()])", "pt.stack([pt.ones(n), x], axis=1).T @ y",
)  # fmt: skip


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


def _spread(law):
    """Return the line of the second parameter q, if a law has it."""
    return ['q = pm.HalfNormal("q", 1) + 0.3'] * bool(re.search(r"\bq\b", law))


def _release(choose, i, s, noises, scales=(1.0, 0.3, 3.0)):
    noise, scale = choose(f"noise {i}", noises, 0.3), choose(f"scale {i}", scales)
    far = choose(f"far {i}", (None, 0.0, 7.0, -30.0), 0.8)
    place = f", {far}" if far is not None and re.search(MAY_BE_FAR, noise) else ""
    return f'release("z{i}", {s}, "{noise}", {scale}{place})'


def _noises(choose, i, law):
    """Return noise for a statistic of records of a law: of counts often whole numbers."""
    whole = any(w in law for w in WHOLE) and choose(f"whole {i}", (True, False))
    return WHOLE_NOISE if whole else NOISE


def _records(choose):
    """Functions of the records of one law, with labels or without."""
    size = choose("size", SIZES, 0.6).format(n=choose("number", (4, 1, 2, 3, 5, 7)))
    unknown = "pm." in size

    def chosen(name, options, plain):
        fits = [o for o in options if not (unknown and PUBLIC.search(str(o)))]
        return choose(name, fits, plain)

    domain = choose("domain", tuple(LAWS))
    law = chosen("law", LAWS[domain], 0.15)
    shapes = [s for s in SHAPES if not (unknown and "dims" in s)]
    shape = choose("shape", shapes, 0.9 if unknown else 0.5)
    own, p = chosen("parameter", PARAMETERS, 0.4)
    prior = choose("prior", PRIORS[domain], 0.5)
    lines = [f"n = {size}", "theta = " + _named(prior, "theta", own)]
    lines += ["theta0 = theta.ravel()[0]", *_spread(law)]
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
    last = choose("releases", (1, 1, 1, 2))
    for i in range(last):
        h = "x"
        for k in range(choose(f"depth {i}", (1, 0, 2, 3), 0.4)):
            h = chosen(f"each {i} {k}", EACH, 0.3).format(h=h if h == "x" else f"({h})")
        if label and choose(f"labelled {i}", (True, True, False)):
            form = choose(f"by label {i}", LABELLED)
            h = form.format(h=f"({h})")
        usual = REDUCE[:4] if choose(f"usual {i}", (True, False), 0.3) else REDUCE
        s = chosen(f"reduce {i}", usual, 0.0).format(h=f"({h})")
        s = choose(f"after {i}", AFTER, 0.7).format(s=f"({s})")
        lines.append(_release(choose, i, s, _noises(choose, i, law)))
    if unknown and choose("counted", (True, False)):
        s = choose("of number", ("n", "2 * n + 1", "n.astype('float64')"), 0.6)
        lines.append(_release(choose, last, s, NOISE[:2] + WHOLE_NOISE[:2]))
    return lines


def _groups(choose):
    """Numbers and sums of groups of unknown sizes, in one release or several."""
    m = choose("groups", (2, 1, 3))
    domain = choose("domain", tuple(LAWS))
    fits = [law for law in LAWS[domain] if "g]" not in law]
    law, own = choose("law", fits, 0.15), choose("common", ("shape=m", ""))
    size = choose("size", GROUP_SIZES, 0.3)
    lines = [f"m = {m}", f"n = {size}", "theta = " + _named(PRIORS[domain][0], "theta", own)]
    lines += _spread(law)
    h = choose("each", [e for e in EACH if not PUBLIC.search(e) and "theta" not in e], 0.4)
    if choose("listed", (False, True)):
        for j in range(m):
            p = f"theta[{j}]" if own else "theta"
            lines.append(f"x{j} = " + _named(law.format(p=p), f"x{j}", f"shape=n[{j}]"))
        sums = ", ".join(f"({h.format(h=f'x{j}')}).sum()" for j in range(m))
        lines.append(f"total = pt.stack([{sums}])")
    else:
        dist = _named(law.format(p="theta"), "", "").replace('("", ', ".dist(", 1)
        of = "" if h == "{h}" else f"of=lambda x: {h.format(h='x')}, "
        lines.append(f'total = dp.RecordSums("total", {dist}, n, {of}shape=m)')
    total = choose("summed", ("total", "total / n", "2 * total + 1", "total - n", "total[:1]"), 0.5)
    number = choose("of number", ("n", "2 * n + 1", "n.astype('float64')", "n[:1]"), 0.6)
    forms = ((number, total), (f"pt.concatenate([{number}, {total}])",), (total,), (number,),
             tuple(f"pt.stack([n[{j}], total[{j}]])" for j in range(m)))  # fmt: skip
    for i, s in enumerate(choose("split", forms, 0.4)):
        noises = NOISE[:2] + WHOLE_NOISE[:2] if s == number else NOISE
        lines.append(_release(choose, i, s, noises))
    return lines


def _answers(choose):
    """Answers changed at random, to one or several questions."""
    lines = [f"n = {choose('number', (4, 2, 5, 6))}"]
    laws, answers, k = choose("answers", ANSWERS)
    lines += laws.split("; ")
    for i in range(choose("releases", (1, 1, 2))):
        rows = choose(f"rows {i}", ("{a}", "{a}", "{a}[1:]", "{a}[[0, 1, 0][:n]]", "{a}[g == 0]"))
        one = answers == "y" and choose(f"one {i}", (False, True))
        s = rows.format(a=f"y[:, {choose(f'question {i}', (0, 1))}]" if one else answers)
        forms = [f"dp.RandomizedResponse(0.8, categories={k})",
                 f"dp.RandomizedResponse.from_epsilon(1.0, categories={k})",
                 f"dp.RandomizedResponse(matrix=MATRICES[{k}])",
                 f"dp.RandomizedResponse(matrix=MATRICES[{k}, {k + 1}])"]  # fmt: skip
        if answers == "y" and not one and k == 2 and "eye" not in laws:
            forms.append("dp.RandomizedResponse([0.8, 0.6])")
        lines.append(_release(choose, i, s, forms))
    return lines


def _tables(choose):
    """Linear functions of a table of counts that share cells."""
    lines = [f"n = {choose('people', (6, 3, 8))}", *choose("table", CELLS).split("; ")]
    for i in range(choose("releases", (1, 2, 2, 3))):
        s = choose(f"of cells {i}", OF_CELLS)
        lines.append(_release(choose, i, s, _noises(choose, i, "Poisson")))
    return lines


def _columns(choose):
    """Columns that are explained by others: their rows, products, ratios."""
    size = choose("size", ("{n}", "{n}", *SIZES[-3:])).format(n=choose("number", (4, 2, 3, 5)))
    unknown = "pm." in size
    laws, columns = choose("columns", COLUMNS)
    lines = [f"n = {size}", *laws.split("; ")]
    forms = OF_ROWS if not unknown and choose("by row", (True, False)) else OF_COLUMNS
    forms = [f for f in forms if columns == "xy" or "x" not in f]
    forms = [f for f in forms if not (unknown and PUBLIC.search(f))]
    for i in range(choose("releases", (1, 1, 2))):
        lines.append(_release(choose, i, choose(f"statistic {i}", forms), NOISE, (1.0, 3.0, 8.0)))
    return lines


KINDS = (*[_records] * 8, _groups, _groups, _answers, _tables, _tables, _columns, _columns)


def write(choose):
    """Return the text of a random model."""
    return "\n".join(choose("kind", KINDS)(choose))


# --- Its two readings -----------------------------------------------------------------------------


def public(n):
    """Return the public numbers of a text."""
    w = np.array([1.0, 2.0, -1.0, 0.5, 1.0, 3.0, 1.0, 2.0])[:n]
    g = np.arange(n) % 2
    return {
        "g": g, "w": w, "one": np.ones(1), "half": 0.5, "A": np.outer([1, 2], w), "wdata": w,
        "column": np.array([[1.0], [2.0]]), "gdata": g, "G": np.eye(3)[g].T,  # the third is empty
        "X": np.stack([np.ones(n), w], axis=1), "BITS": np.array([[0, 0], [1, 0], [0, 1], [1, 1]]),
        "T": np.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 2, -1]]),
        "L": np.array([[1.0, -0.4], [1.0, 0.3], [1.0, 1.1], [1.0, -1.2]]),
    }  # fmt: skip


CHANGED = {"wdata": lambda w: 1.5 * w[::-1], "gdata": lambda g: 1 - g}  # public data, later
TABLE = np.array([[0, 0, 1, 0, 0], [0, 0.6, 0, 0.2, 0.2], [0.1, 0, 0.7, 0.2, 0]])
MATRICES = {
    2: [[0.9, 0.1], [0.3, 0.7]], 3: [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0, 0.5, 0.5]],
    (2, 3): [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1]], (3, 4): np.eye(3, 4) / 2 + 0.125,
}  # fmt: skip


def _logistic(b):
    def logp(value, statistic):
        return pm.logp(pm.Logistic.dist(statistic, b), value)

    def random(statistic, rng=None, size=None):
        return rng.logistic(statistic, b, size)

    return dp.CustomMechanism(logp, random, log_concave=True)


def _sparse_dot(matrix, x):
    return pts.dot(pts.as_sparse_variable(sparse.csr_matrix(matrix)), x.astype("float64"))


def build(text, seed):
    """Return the model, a point, and the releases, whose values are drawn."""
    rng, pending = np.random.default_rng([seed, 5]), []
    stated = re.search(r"^n = (\d+)$", text, re.MULTILINE)
    known = int(stated[1]) if stated else 5
    names = {"pm": pm, "pt": pt, "np": np, "dp": dp, "sparse_dot": _sparse_dot, **public(known)}
    coords = {"row": range(known), "group": ["a", "b"], "column": [10, 20]}
    with pm.Model(coords=coords) as model:
        for name in CHANGED:
            if name in text:
                names[name] = pm.Data(name, names[name])
        names["release"] = lambda *what: pending.append(what)
        exec(text, names)
        statistics = [pt.as_tensor(s) for _, s, *_ in pending]
        draws = pm.draw(statistics, 60, random_seed=rng)
        released, places = [], []
        for (name, s, noise, scale, *far), many in zip(pending, draws, strict=True):
            many = np.asarray(many, dtype="float64")
            low, m, high = np.quantile(many[np.isfinite(many)], [0.16, 0.5, 0.84])
            spread = high - low if high - low > 1e-9 * (1 + abs(m)) else 2.0
            b, shape = float(f"{scale * spread / 2:.2g}"), many.shape[1:]
            uneven = b * np.resize([0.5, 1.0, 0.8], shape)
            given = {"b": b, "m": float(f"{m:.3g}"), "shape": shape, "uneven": uneven}
            given |= {"np": np, "dp": dp, "pm": pm, "logistic": _logistic}
            given |= {"TABLE": TABLE, "MATRICES": MATRICES}
            released.append((name, s, eval(noise, given)))
            places.append([round(f * b) if "Geometric" in noise else f * b for f in far])
        free = list(model.free_RVs)
        noisy = [release_rv(s, mechanism) for _, s, mechanism in released]
        of_dist = [names["x"]] if "x = " in text and "x" not in model.named_vars else []
        drawn = iter(pm.draw([*free, *noisy, *statistics, *of_dist], random_seed=rng))
    point = {v.name: next(drawn) for v in free}
    values, computed = ([next(drawn) for _ in statistics] for _ in range(2))
    values = [c + far[0] if far else z for z, c, far in zip(values, computed, places, strict=True)]
    released = [(*release, z) for release, z in zip(released, values, strict=True)]
    with suppress(NotImplementedError):
        values = point | dict(zip("x" * len(of_dist), drawn, strict=True))
        for theirs, s in zip(computed, numbers(text, values, known), strict=True):
            if theirs.shape != s.shape or not np.allclose(theirs, s, 2e-3, 1e-3, equal_nan=True):
                raise ReadOtherwise(f"numpy reads {s}, PyTensor {theirs}")
    return model, point, released


class ReadOtherwise(Exception):
    """Numpy and PyTensor compute different statistics."""


class _Law:
    """A law in numpy's reading: a call returns the value that the variable has."""

    def __init__(self, values):
        self.values = values

    def __call__(self, name, *arguments, **options):
        return self.values[name]

    def dist(self, *arguments, **options):
        return self.values.get("x")


class _Numpy:
    """The functions that a text takes from PyTensor, as numpy has them."""

    switch, where, dot = map(staticmethod, (np.where, np.where, np.dot))
    eq, ge = np.equal, np.greater_equal

    def __getattr__(self, name):
        return getattr(np, name)

    def as_tensor(self, x):
        return np.asarray(x)

    def softmax(self, x):
        return np.exp(x) / np.exp(x).sum()

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
    model = SimpleNamespace(Potential=lambda *_: None, Deterministic=lambda _, x: x, math=_Numpy())
    for name in {word.split("(")[0].split(".")[0] for word in text.split("pm.")[1:]}:
        if not hasattr(model, name):
            setattr(model, name, _Law(values))
    names = {"pm": model, "pt": _Numpy(), "np": np, "sparse_dot": np.dot, **public(known)}
    names["dp"] = SimpleNamespace(RecordSums=_Law(values))
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
