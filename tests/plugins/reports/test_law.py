"""Records that are reported row by row: their density is the sum over all records."""

import itertools

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import logsumexp

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function

G = np.array([0, 1, 0, 1])
BITS = (np.arange(4)[:, None] >> np.arange(2)) & 1
X = np.array([[1.0, -1.0], [1.0, 0.3], [1.0, 0.3], [1.0, 2.0]])
RR = dp.RandomizedResponse
T = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2], [0.0, 0.1, 0.9]]


def ones(n=4):
    return pm.Bernoulli("x", pm.Beta("p", 1, 2, shape=2)[G], shape=n)


def codes(n=4):
    return pm.Categorical("x", pm.Dirichlet("p", [1.0, 2, 3, 4]), shape=n)


def classes():
    z = pm.Categorical("z", pm.Dirichlet("w", [2.0, 3.0]), shape=3)
    return z, pm.Beta("p", 1, 2, shape=(2, 2))


def answers():
    z, p = classes()
    return pm.Bernoulli("y", p[z], shape=(3, 2))


def pair():
    z, p = classes()
    return pm.Bernoulli("u", p[z][:, 0], shape=3), pm.Bernoulli("v", p[:, 1][z], shape=3)


def chain():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 2), shape=4)
    return x, pm.Bernoulli("y", pm.Beta("q", 1, 2, shape=2)[x], shape=4)


# Records, and what is released of them, by what noise; several releases are of the same records.
ROWS = {
    "one law": (lambda: pm.Bernoulli("x", pm.Beta("p", 1, 2), shape=4), [(lambda x: x, RR(0.8))]),
    "by group": (ones, [(lambda x: x, RR(0.8))]),
    "other labels": (ones, [(lambda x: 1 - x, RR(0.8))]),
    "k-ary": (codes, [(lambda x: x, RR(0.6, 4))]),
    "k-ary by group": (
        lambda: pm.Categorical("x", pm.Dirichlet("p", np.ones(3), shape=(2, 3))[G], shape=4),
        [(lambda x: x, RR(0.6, 3))],
    ),
    "regression": (
        lambda: pm.Bernoulli("x", logit_p=X @ pm.Normal("b", shape=2), shape=4),
        [(lambda x: x, RR(0.8))],
    ),
    "an effect for each row": (
        lambda: pm.Bernoulli("x", logit_p=pm.Normal("e", shape=4), shape=4),
        [(lambda x: x, RR(0.8))],
    ),
    "a law for each row": (
        lambda: pm.Categorical("x", pm.Dirichlet("p", np.ones(3), shape=(4, 3)), shape=4),
        [(lambda x: x, RR(0.6, 3))],
    ),
    "multinomial regression": (
        lambda: pm.Categorical("x", pm.math.softmax(
            X @ pm.Normal("b", shape=(2, 3)), axis=1), shape=4),
        [(lambda x: x, RR(0.6, 3))],
    ),
    "several questions": (codes, [(lambda x: pt.as_tensor(BITS)[x], RR(0.8))]),
    "questions of noise of their own": (
        codes, [(lambda x: pt.as_tensor(BITS)[x], RR([0.8, 0.6]))]
    ),
    "a list": (codes, [(lambda x: [x // 2, x % 2], RR(0.8))]),
    "a release a question": (
        codes, [(lambda x: pt.as_tensor(BITS)[x, 0], RR(0.8)), (lambda x: x % 2, RR(0.6))]
    ),
    "twice": (ones, [(lambda x: x, RR(0.8)), (lambda x: x, RR(0.6))]),
    "twice in one": (ones, [(lambda x: pt.stack([x, x], axis=1), RR(0.8))]),
    "group by group": (ones, [(lambda x: x[G == 0], RR(0.8)), (lambda x: x[G == 1], RR(0.6))]),
    "some once more": (ones, [(lambda x: pt.concatenate([x[:2], x[1:]]), RR(0.8))]),
    "noise by row": (ones, [(lambda x: x, RR([0.8, 0.8, 0.6, 0.7]))]),
    "one-hot": (codes, [(lambda x: pt.eye(4)[x], RR(0.8))]),
    "one-hot by equality": (codes, [(lambda x: pt.eq(x[:, None], np.arange(4)), RR(0.8))]),
    "Binomial": (
        lambda: pm.Binomial("x", 2, pm.Beta("p", 1, 2), shape=4), [(lambda x: x, RR(0.6, 3))]
    ),
    "DiscreteUniform": (
        lambda: pm.DiscreteUniform("x", 1, np.full(3, 3.0), shape=3),
        [(lambda x: x - 1, RR(0.6, 3))],
    ),
    "matrix": (codes, [(lambda x: x, RR(matrix=T))]),
    "unary": (codes, [(lambda x: pt.eye(4)[x], RR(matrix=[[0.7, 0.3], [0.2, 0.8]]))]),
    "latent classes": (answers, [(lambda y: y, RR(0.8))]),
    "latent classes, one more answer": (
        answers, [(lambda y: y, RR(0.8)), (lambda y: y[:, 1], RR(0.6))]
    ),
    "latent classes, variables": (pair, [(lambda u, v: u, RR(0.8)), (lambda u, v: v, RR(0.6))]),
    "latent classes, in one": (pair, [(lambda u, v: pt.stack([u, v], axis=1), RR(0.8))]),
    "one given another": (chain, [(lambda x, y: x, RR(0.8)), (lambda x, y: y, RR(0.6))]),
    "two variables": (
        lambda: (pm.Bernoulli("u", pm.Beta("p", 1, 2), shape=3),
                 pm.Categorical("v", pm.Dirichlet("q", np.ones(3)), shape=3)),
        [(lambda u, v: [u, pt.eq(v, 2)], RR(0.8))],
    ),
}  # fmt: skip


def written(name, data):
    records, released = ROWS[name]
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        own = records()
        own = own if isinstance(own, tuple) else (own,)
        for k, (statistic, mechanism) in enumerate(released):
            s = statistic(*own)
            shape = pt.stack(s).type.shape if isinstance(s, list) else s.type.shape
            z = rng.integers(0, len(mechanism.outcomes), shape)
            z = pm.Data(f"z{k}_released", z) if data else z
            dp.PrivateObservation(f"z{k}", s, mechanism, observed=z)
    return model


def log_density(model, points):
    inputs = [model.rvs_to_values[rv] for rv in model.free_RVs]
    function = plain_function(inputs, model.logp())
    return np.array([function(*(point[v.name] for v in inputs)) for point in points])


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_density_is_the_sum_over_all_records(name, data):
    model = written(name, data)
    on = dp.collapse(model, "marginal")
    gone = [rv for rv in model.free_RVs if rv.name not in on.named_vars]
    most = {"x": 4, "v": 3}
    spans = []
    for rv in gone:
        values = range(2 if rv.owner.op.name == "bernoulli" else most.get(rv.name, 2))
        spans.append(list(itertools.product(values, repeat=int(np.prod(rv.type.shape)))))
    point = {k: v + 0.3 * np.arange(v.size).reshape(v.shape)
             for k, v in on.initial_point().items()}  # fmt: skip
    points = [
        point | {rv.name: np.reshape(v, rv.type.shape) for rv, v in zip(gone, values, strict=True)}
        for values in itertools.product(*spans)
    ]
    expected = logsumexp(log_density(model, points))
    [found] = log_density(on, [point])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11)


def test_counts_of_each_cell_are_recovered():
    model, p = written("by group", False), np.array([0.3, 0.6])
    drawn = dp.recover(model, az.from_dict({"posterior": {"p": np.full((1, 4000, 2), p)}}))
    found = drawn["posterior"]["x_count"].to_numpy()[0]
    z = np.asarray(model.rvs_to_values[model["z0"]].data)
    one = p[G] * np.where(z == 1, 0.8, 0.2)
    chance = one / (one + (1 - p[G]) * np.where(z == 1, 0.2, 0.8))
    np.testing.assert_allclose(
        found.mean(axis=0), [chance[g == G].sum() for g in (0, 1)], atol=0.05
    )


@pytest.mark.parametrize(
    ("matrix", "match"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], "row 0 adds up to 0.9"),
        ([[1.1, -0.1], [0.5, 0.5]], r"matrix\[0, 1\] is -0.1"),
        ([0.5, 0.5], r"has the shape \(2,\)"),
        ([[1.0, np.nan], [0.5, 0.5]], r"matrix\[0, 1\] is nan"),
    ],
)
def test_matrices_that_are_no_channel_are_refused(matrix, match):
    with pytest.raises(ValueError, match=match):
        RR(matrix=matrix)
    with pytest.raises(TypeError, match="matrix= says all"):
        RR(0.75, matrix=matrix)


def test_privacy_loss_of_a_matrix():
    assert RR(matrix=[[0.75, 0.25], [0.25, 0.75]]).epsilon() == pytest.approx(np.log(3))
    assert RR(matrix=T).epsilon() == np.inf


def test_what_is_no_category_is_refused_by_name():
    with pm.Model() as model:
        dp.PrivateObservation("z", codes(), RR(0.8), observed=[0, 1, 1, 0])
    with pytest.raises(ValueError, match=r"'z'.*'x' can be 2, which is none"):
        dp.collapse(model, "marginal")
