"""Sums and sums of squares of Normal records with a public design, against the records."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace, vectorize_graph
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from tests.models import route_table

X = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]])
G = np.array([0, 1, 0])
M = (np.arange(2)[:, None] == G) * 1.0
B, S = np.array([0.4, -0.7]), np.array([0.8, 1.3])
NOISE = 2.0
NUTS = "NUTS on the statistics"


def same_spread(b, s):
    return X @ b, s[0]


def by_group(b, s):
    return b[G], s[G]


# The means and spreads of three records, a statistic of them, and how many coordinates and residual
# sums of squares it has.
CASES = {
    "X'y and y'y": (same_spread, lambda y: [X.T @ y, [y @ y]], (2, 1)),
    "y'y by a power": (same_spread, lambda y: [[(y**2).sum()], X.T @ y / 4], (2, 1)),
    "squares by group": (by_group, lambda y: [[y.sum()], M @ y**2], (2, 1)),
    "squares beside a part": (
        lambda b, s: (b[0], s[0]), lambda y: [[y.mean()], [y[::2].var(ddof=1)]], (2, 1)
    ),
    "a sum outside of the design": (
        lambda b, s: (X[:, 1] * b[0], s[1]), lambda y: [[y.sum()], [(y * y).sum()]], (2, 1)
    ),
    "a variance beside a weighted sum": (
        lambda b, s: (b[1], s[0]), lambda y: [[y.var()], [X[:, 1] @ y]], (2, 1)
    ),
    "saturated": (same_spread, lambda y: [y, [y @ y]], (3, 0)),
    "unequal spreads": (lambda b, s: (b[0], s[G]), lambda y: [[y.sum()], [y @ y]], (2, 1)),
    "sums alone": (same_spread, lambda y: [[y.sum()], M @ y], (2, 0)),
}  # fmt: skip


def model_of(case, releases=1):
    law, statistic, _ = CASES[case]
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 1, shape=2), pm.Exponential("s", 1, shape=2)
        y = pm.Normal("y", *law(b, s), shape=3)
        parts = [pt.as_tensor(part) for part in statistic(y)]
        if releases == 1:
            parts = [pt.concatenate(parts)]
        start = 0
        for k, part in enumerate(parts):
            size = int(part.type.shape[0])
            z = np.linspace(0.5, 3.0, 6)[start : start + size]
            dp.PrivateObservation(f"z{k}", part, dp.GaussianMechanism(NOISE), observed=z)
            start += size
    return model


def grid(low, high, step):
    """Return points and log weights of the trapezoid rule, exact for what is smooth."""
    points = np.arange(low, high, step)
    return points, np.full(points.size, np.log(step))


def over(*rules):
    """Return the points and log weights of a product of rules."""
    points, weights = (np.array(list(product(*parts))) for parts in zip(*rules, strict=True))
    return points, weights.sum(axis=1)


def by_records(case):
    """Log density of the releases, the records integrated out one by one."""
    law, statistic, _ = CASES[case]
    mu, sigma = law(B, S)
    e, log_weight = over(*[grid(-6, 6, 0.25)] * 3)
    of = np.array([np.concatenate(statistic(y)) for y in mu + sigma * e])
    z = np.linspace(0.5, 3.0, 6)[: of.shape[1]]
    density = stats.norm.logpdf(e).sum(axis=1) + stats.norm.logpdf(z, of, NOISE).sum(axis=1)
    return special.logsumexp(log_weight + density)


def by_latents(case, releases=1):
    """Log density of the releases, the latents of the rung integrated out."""
    collapsed = dp.collapse(model_of(case, releases), "statistics")
    latent = collapsed["y_latents"]
    value = collapsed.rvs_to_values[latent]
    given = {collapsed.rvs_to_values[collapsed["b"]]: B,
             collapsed.rvs_to_values[collapsed["s"]]: np.log(S)}  # fmt: skip
    [logp] = graph_replace([collapsed.logp([latent, *collapsed.observed_RVs])], given, strict=False)
    points = pt.matrix(dtype="float64")
    logp = pytensor.function([points], vectorize_graph(logp, {value: points}))
    coordinates, residuals = CASES[case][-1]
    assert collapsed.initial_point()[value.name].shape == (coordinates + residuals,)
    # Logarithms of Gamma variables have long tails to the left.
    e, log_weight = over(*[grid(-7, 7, 0.5)] * coordinates, *[grid(-25, 8, 0.25)] * residuals)
    return special.logsumexp(logp(e) + log_weight)


@pytest.mark.parametrize("case", [case for case in CASES if case != "sums alone"])
def test_density_against_the_records(case):
    np.testing.assert_allclose(by_latents(case), by_records(case), atol=1e-5)


@pytest.mark.parametrize("case", ["X'y and y'y", "sums alone"])
def test_several_releases_of_the_same_records(case):
    np.testing.assert_allclose(by_latents(case, releases=2), by_records(case), atol=1e-5)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_records_of_a_matrix_are_those_of_a_vector(layout):
    """A mean for each row or column, which is broadcast along the other axis."""
    shape, j = (2, 3), np.indices((2, 3))[int(layout == "columns")]
    x = np.linspace(-1, 1, 6)
    found = []
    for as_matrix in (True, False):
        with pm.Model() as model:
            b = pm.Normal("b", 0, 1, shape=3)
            mean = (b[:2, None] if layout == "rows" else b)[...] if as_matrix else b[j.ravel()]
            y = pm.Normal("y", 2 * mean + b[0], 1, shape=shape if as_matrix else 6)
            released = pt.stack([x @ y.ravel(), (y**2).sum()])
            dp.PrivateObservation("z", released, dp.GaussianMechanism(NOISE), observed=[1.0, 4.0])
        collapsed = dp.collapse(model, "statistics")
        point = collapsed.initial_point() | {"b": np.array([0.5, -1.0, 2.0])}
        found.append(collapsed.compile_logp()(point))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_many_records():
    n = 200_000
    x = np.random.default_rng(0).normal(size=(n, 3))
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 1, shape=3), pm.Exponential("s", 1)
        y = pm.Normal("y", x @ b, s, shape=n)
        released = pt.concatenate([x.T @ y, [pt.dot(y, y)]])
        dp.PrivateObservation("z", released, dp.LaplaceMechanism(10.0), observed=np.ones(4))
    collapsed = dp.collapse(model, "statistics")
    assert np.isfinite(collapsed.compile_logp()(collapsed.initial_point()))
    assert max(route_table(model), key=lambda row: row[1])[0].name == NUTS


def test_covariates_that_may_change_are_said_to_be_the_reason():
    n = 6000
    with pm.Model() as model:
        x = pm.Data("covariates", np.ones((n, 2)))
        y = pm.Normal("y", x @ pm.Normal("b", 0, 1, shape=2), 1, shape=n)
        released = pt.stack([y.sum(), (y**2).sum()])
        dp.PrivateObservation("z", released, dp.GaussianMechanism(1.0), observed=[1.0, 6000.0])
    with pytest.raises(Declined, match=r"computed from 'covariates', .* Write numbers in its"):
        dp.collapse(model, "statistics")
