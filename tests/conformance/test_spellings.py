"""One statistic, every spelling: the same rungs, the same route, the same density."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.model import Reading
from pymc_dp.routes import routes
from tests.agreement import same_law

N, CUT, CELLS = 60, 0.5, 3
ONES = np.ones(N)
GROUP = np.repeat([0, 1, 2], [30, 20, 10])
MEMBER = np.eye(3)[GROUP].T  # the incidence matrix of the groups
SIZES = MEMBER.sum(axis=1)


def centred(x):
    return x - x.mean()


# The first spelling of each is what the others are compared with.
NORMAL = {
    "mean": [
        lambda x: x.mean(),
        lambda x: x.mean(axis=0),
        lambda x: x.sum() / N,
        lambda x: x.sum() / x.shape[0],
        lambda x: (x / N).sum(),
        lambda x: (2 * x + 1).mean() / 2 - 0.5,
        lambda x: pt.dot(ONES / N, x),
        lambda x: x @ (ONES / N),
        lambda x: (np.ones((1, N)) @ x)[0] / N,
        lambda x: pt.tensordot(x, ONES, 1) / N,
    ],
    "sum": [
        lambda x: x.sum(),
        lambda x: N * x.mean(),
        lambda x: x.mean() * x.size,
        lambda x: ONES @ x,
        lambda x: pt.dot(x, ONES),
        lambda x: x[None, :].sum(axis=1)[0],
        lambda x: (np.ones((1, N)) @ x[:, None])[0, 0],
    ],
    "variance, ddof=1": [
        lambda x: x.var(ddof=1),
        lambda x: x.var() * N / (N - 1),
        lambda x: (centred(x) ** 2).sum() / (N - 1),
        lambda x: pt.sqr(centred(x)).sum() / (N - 1),
        lambda x: (x * centred(x)).sum() / (N - 1),
        lambda x: pt.dot(centred(x), centred(x)) / (N - 1),
        lambda x: (centred(x)[None, :] @ centred(x)[:, None])[0, 0] / (N - 1),
        lambda x: ((x**2).sum() - N * x.mean() ** 2) / (N - 1),
        lambda x: (x @ x - x.sum() ** 2 / N) / (N - 1),
        lambda x: x.std(ddof=1) ** 2,
    ],
    "variance, ddof=0": [
        lambda x: x.var(),
        lambda x: x.var(ddof=1) * (N - 1) / N,
        lambda x: (centred(x) ** 2).mean(),
        lambda x: (x**2).mean() - x.mean() ** 2,
        lambda x: x @ x / N - x.mean() ** 2,
        lambda x: x.std() ** 2,
    ],
    "standard deviation": [
        lambda x: x.std(),
        lambda x: pt.sqrt(x.var()),
        lambda x: ((x**2).mean() - x.mean() ** 2) ** 0.5,
        lambda x: pt.sqrt((centred(x) ** 2).mean()),
        lambda x: pt.sqrt(pt.dot(centred(x), centred(x)) / N),
        lambda x: pt.linalg.norm(centred(x)) / np.sqrt(N),
    ],
    "sum of squares": [
        lambda x: (x**2).sum(),
        lambda x: pt.sqr(x).sum(),
        lambda x: (x * x).sum(),
        lambda x: x @ x,
        lambda x: (x[None, :] @ x[:, None])[0, 0],
        lambda x: N * (x**2).mean(),
        lambda x: (N - 1) * x.var(ddof=1) + N * x.mean() ** 2,
        lambda x: pt.linalg.norm(x) ** 2,
    ],
    "share above": [
        lambda x: (x > CUT).mean(),
        lambda x: (x > CUT).sum() / N,
        lambda x: pt.lt(CUT, x).mean(),
        lambda x: 1 - (x <= CUT).mean(),
        lambda x: (~(x <= CUT)).sum() / N,
        lambda x: (x > CUT).astype("float64").mean(),
        lambda x: pt.switch(x > CUT, 1, 0).mean(),
        lambda x: pt.dot((x > CUT).astype("float64"), ONES) / N,
    ],
    "clipped sum": [
        lambda x: x.clip(0, 1).sum(),
        lambda x: pt.clip(x, 0, 1).sum(),
        lambda x: x.clip(0, 1).mean() * N,
        lambda x: pt.minimum(pt.maximum(x, 0), 1).sum(),
        lambda x: pt.maximum(pt.minimum(x, 1), 0).sum(),
        lambda x: pt.switch(x < 0, 0, pt.switch(x > 1, 1, x)).sum(),
        lambda x: ONES @ x.clip(0, 1),
    ],
    "means of groups": [
        lambda x: pt.stack([x[g == GROUP].mean() for g in range(3)]),
        lambda x: pt.stack([x[np.flatnonzero(g == GROUP)].mean() for g in range(3)]),
        lambda x: pt.stack([(x * (g == GROUP)).sum() / SIZES[g] for g in range(3)]),
        lambda x: pt.stack([x[:30].mean(), x[30:50].mean(), x[50:].mean()]),
        lambda x: pt.stack([pt.dot(x, MEMBER[g]) / SIZES[g] for g in range(3)]),
        lambda x: MEMBER @ x / SIZES,
        lambda x: pt.dot(MEMBER / SIZES[:, None], x),
        lambda x: (pt.as_tensor(MEMBER) * x).sum(axis=1) / SIZES,
        lambda x: pt.zeros(3)[GROUP].inc(x) / SIZES,
    ],
}
BERNOULLI = {
    "share": [
        lambda x: x.mean(),
        lambda x: x.sum() / N,
        lambda x: pt.eq(x, 1).mean(),
        lambda x: pt.neq(x, 0).sum() / N,
        lambda x: 1 - (1 - x).mean(),
        lambda x: pt.switch(x, 1, 0).mean(),
        lambda x: pt.dot(x, ONES) / N,
        lambda x: pt.bincount(x, minlength=2)[1] / N,
    ],
}
CATEGORICAL = {
    "histogram": [
        lambda x: pt.stack([pt.eq(x, k).sum() for k in range(CELLS)]),
        lambda x: pt.bincount(x, minlength=CELLS),
        lambda x: pt.eq(x[:, None], np.arange(CELLS)).sum(axis=0),
        lambda x: pt.eq(np.arange(CELLS)[:, None], x).sum(axis=1),
        lambda x: pt.as_tensor(np.eye(CELLS))[x].sum(axis=0),
        lambda x: pt.stack([pt.switch(pt.eq(x, k), 1, 0).sum() for k in range(CELLS)]),
        lambda x: pt.zeros(CELLS)[x].inc(1),
        lambda x: pt.stack([pt.eq(x, 0).sum(), pt.eq(x, 1).sum(), pt.ge(x, 2).sum()]),
    ],
}
PAIR = {
    "covariance": [
        lambda x, y: (centred(x) * centred(y)).sum() / (N - 1),
        lambda x, y: (x * centred(y)).sum() / (N - 1),
        lambda x, y: pt.dot(centred(x), centred(y)) / (N - 1),
        lambda x, y: pt.dot(centred(x), y) / (N - 1),
        lambda x, y: ((x * y).sum() - N * x.mean() * y.mean()) / (N - 1),
        lambda x, y: (x @ y - x.sum() * y.sum() / N) / (N - 1),
        lambda x, y: ((x * y).mean() - x.mean() * y.mean()) * N / (N - 1),
        lambda x, y: pt.cov(pt.stack([x, y]))[0, 1],
    ],
}


def normal(shape):
    return pm.Normal("x", pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1), shape=shape)


def bernoulli(shape):
    return pm.Bernoulli("x", pm.Beta("p", 2, 2), shape=shape)


def categorical(shape):
    return pm.Categorical("x", p=pm.Dirichlet("p", np.ones(CELLS)), shape=shape)


def vector(law):
    return (law(N),)


def one_column(law):
    return (law((N, 1))[:, 0],)


def a_column(law):
    return (law((N, 3))[:, 1],)


def beside_another(law):
    """A vector beside another one with a release of its own."""
    x = law(N)
    y = pm.Normal("other", 1, 2, shape=N)
    dp.PrivateObservation("z_other", y.mean(), dp.LaplaceMechanism(0.5), observed=0.3)
    return (x,)


def two_vectors(law):
    x = law(N)
    return x, pm.Normal("y", 1 + 0.5 * x, 1, shape=N)


SHAPES = [vector, one_column, a_column, beside_another]
CASES = [
    # By day all spellings of a vector, and the second one of the other shapes.
    pytest.param(
        law, name, shape, k, marks=[pytest.mark.nightly] * (shape is not vector and k != 1)
    )
    for law, statistics in ((normal, NORMAL), (bernoulli, BERNOULLI), (categorical, CATEGORICAL))
    for name, spellings in statistics.items()
    for shape in SHAPES
    for k in range(len(spellings))
] + [(normal, "covariance", two_vectors, k) for k in range(len(PAIR["covariance"]))]
STATISTICS = NORMAL | BERNOULLI | CATEGORICAL | PAIR


@cache
def found(law, name, shape, k, night):
    """Return the open routes, the one taken, and densities on the rungs; by day on the last one."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):  # each is evaluated twice
        with pm.Model() as model:
            statistic = STATISTICS[name][k](*shape(law))
            observed = np.full(CELLS if name in ("histogram", "means of groups") else (), 0.4)
            dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(0.7), observed=observed)
        reading = Reading(model)
        plans = {r.name: plan for r, plan in routes(reading) if not isinstance(plan, Declined)}
        densities, rungs = {}, {}
        for rung in ("statistics", "marginal"):
            try:
                rungs[rung] = collapsed(reading, rung).model
            except Declined:
                continue
        for rung, model in list(rungs.items())[0 if night else -1 :]:
            point = model.initial_point()
            moved = {k: v + 0.3 * (np.asarray(v).dtype.kind == "f") for k, v in point.items()}
            logp = model.compile_logp(mode=PLAIN_MODE)
            densities[rung] = [float(logp(p)) for p in (point, moved)]
    return {*plans}, max(plans, key=lambda name: plans[name].rate), densities


@pytest.mark.parametrize(
    ("law", "name", "shape", "k"), CASES, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_every_spelling_is_read_alike(law, name, shape, k, night):
    opened, taken, densities = found(law, name, shape, k, night)
    first = vector if shape is one_column or shape is a_column else shape
    first_opened, _, first_densities = found(law, name, first, 0, night)
    assert opened == first_opened
    # Columns that nothing was released of are swept over, too: the route is one of the shape.
    assert taken == found(law, name, shape, 0, night)[1]
    assert densities.keys() == first_densities.keys()
    for rung, values in densities.items():
        np.testing.assert_allclose(values, first_densities[rung], rtol=1e-10)


@pytest.mark.parametrize("name", STATISTICS)
def test_rungs_without_records_open(name):
    law = {**dict.fromkeys(NORMAL, normal), "share": bernoulli, "histogram": categorical}
    opened, _, _ = found(
        law.get(name, normal), name, two_vectors if name in PAIR else vector, 0, False
    )
    statistics = {"Gibbs on the statistics", "NUTS on the statistics"} & opened
    assert bool(statistics) == (name not in {"share above", "clipped sum"})


@pytest.mark.parametrize(("law", "name"), [(normal, "clipped sum"), (bernoulli, "share")])
def test_draws_of_a_column_are_those_of_a_vector(law, name):
    drawn = []
    for shape in (vector, a_column):
        with pm.Model() as model:
            statistic = STATISTICS[name][0](*shape(law))
            dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(0.1), observed=0.4)
        released = dp.collapse(model, "marginal")["z"]
        drawn.append(pm.draw(released, 1000, random_seed=len(drawn)))
    same_law(*drawn)
