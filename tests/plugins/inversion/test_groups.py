"""Clamped sums by group, against the density of one group, which has tests of its own."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN
from tests.agreement import same_law

SIZES = np.array([7, 20, 9])
G = np.random.default_rng(3).permutation(np.repeat(np.arange(3), SIZES))
N = G.size
M = (np.arange(3)[:, None] == G).astype(float)
THETA, Z = np.array([0.2, 0.5, 0.9]), np.array([0.3, 0.5, 0.6])
LAWS = {
    "normal": lambda name, theta, **kwargs: pm.Normal(name, theta, 0.4, **kwargs),
    "exponential": lambda name, theta, **kwargs: pm.Exponential(name, scale=theta, **kwargs),
}
NOISES = {"laplace": dp.LaplaceMechanism(0.05), "gaussian": dp.GaussianMechanism(0.05)}


def value_and_slope(model, point):
    collapsed = dp.collapse(model)
    z, theta = collapsed["z"], collapsed["theta"]
    logp = pm.logp(z, collapsed.rvs_to_values[z]).sum()
    return pm.compile([theta], [logp, pt.grad(logp, theta)], mode=PLAIN)(point)


def clamped_means(law, noise, statistic, index=G):
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = LAWS[law]("x", theta[index], shape=N)
        dp.PrivateObservation("z", statistic(x), NOISES[noise], observed=Z)
    return model


def by_mask(clipped):
    return pt.stack([clipped[j == G].mean() for j in range(3)])


def each_by_itself(law, noise, part=lambda x: pt.clip(x, 0, 1), sizes=SIZES):
    found = []
    for j, n in enumerate(sizes):
        with pm.Model() as model:
            theta = pm.HalfNormal("theta")
            x = LAWS[law]("x", theta, shape=int(n))
            dp.PrivateObservation("z", part(x).mean(), NOISES[noise], observed=Z[j])
        found.append(value_and_slope(model, THETA[j]))
    return sum(value for value, _ in found), np.array([slope for _, slope in found])


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("law", LAWS)
def test_groups_have_the_density_of_each(law, noise):
    value, slope = each_by_itself(law, noise)
    spellings = [
        lambda x: pt.dot(M, pt.clip(x, 0, 1)) / SIZES,
        lambda x: by_mask(pt.clip(x, 0, 1)),
        lambda x: pt.inc_subtensor(pt.zeros(3)[G], pt.clip(x, 0, 1)) / SIZES,
    ]
    for statistic in spellings[: 3 if law == "normal" else 1]:
        found = value_and_slope(clamped_means(law, noise, statistic), THETA)
        np.testing.assert_allclose(found[0], value, rtol=1e-11)
        np.testing.assert_allclose(found[1], slope, rtol=1e-9, atol=1e-12)


def test_rows_of_a_matrix():
    value, slope = each_by_itself("normal", "laplace", lambda x: pt.abs(x), [8, 8, 8])
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = pm.Normal("x", theta[:, None], 0.4, shape=(3, 8))
        dp.PrivateObservation("z", pt.abs(x).mean(axis=1), NOISES["laplace"], observed=Z)
    found = value_and_slope(model, THETA)
    np.testing.assert_allclose(found[0], value, rtol=1e-11)
    np.testing.assert_allclose(found[1], slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "statistic",
    [
        lambda x: (x * x[:, ::-1]).mean(axis=1),
        lambda x: pt.tanh(x + x[:, ::-1]).mean(axis=1),
        lambda x: pt.tanh(pt.cumsum(x, axis=1) + x).mean(axis=1),
        lambda x: pt.tanh(x * x[:, :1]).mean(axis=1),
        lambda x: pt.tanh(x * x.shape[1]).mean(axis=1) * 0 + (x * x.sum()).mean(axis=1),
        lambda x: pt.clip(x * np.arange(1, 7.0), -1, 1).mean(axis=1),
    ],
)
def test_functions_of_several_records_are_none_of_one(statistic):
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = pm.Normal("x", theta[:, None], 0.4, shape=(3, 6))
        dp.PrivateObservation("z", statistic(x), NOISES["gaussian"], observed=Z)
    with pytest.raises(Declined):
        dp.collapse(model)
    dp.explain(model, details=True)


def test_records_that_a_public_mask_chooses():
    found = []
    for statistic in (
        lambda x: pt.switch(np.arange(6) < 3, pt.clip(x, -1, 1), 0).mean(axis=1),
        lambda x: pt.clip(x, -1, 1)[:, :3].sum(axis=1) / 6,
    ):
        with pm.Model() as model:
            theta = pm.HalfNormal("theta", shape=3)
            x = pm.Normal("x", theta[:, None], 0.4, shape=(3, 6))
            dp.PrivateObservation("z", statistic(x), NOISES["gaussian"], observed=Z)
        collapsed = dp.collapse(model)
        found.append(collapsed.compile_logp()(collapsed.initial_point()))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


@pytest.mark.parametrize("added", [0.0, -0.5])
def test_records_as_they_are_and_what_is_added_to_each(added):
    """Sums of inverse Gaussian records are inverse Gaussian themselves."""
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = pm.Wald("x", theta[G], 2.0, shape=N)
        z = Z * SIZES
        noise = dp.GaussianMechanism(0.7)
        dp.PrivateObservation("z", M @ (x + added), noise, observed=z + added * SIZES)
    expected = 0.0
    for n, mu, total in zip(SIZES, THETA, z, strict=True):
        law, of_noise = stats.invgauss(mu / (2.0 * n), scale=2.0 * n**2), stats.norm(total, 0.7)
        both = lambda s, a=law, b=of_noise: a.pdf(s) * b.pdf(s)  # noqa: E731
        expected += np.log(integrate.quad(both, 0, 60, points=[total, n * mu], epsabs=0)[0])
    assert value_and_slope(model, THETA)[0] == pytest.approx(expected, rel=1e-7)


def test_one_sum_of_records_by_position():
    with pm.Model() as model:
        theta = pm.HalfNormal("theta")
        x = pm.Normal("x", theta, 0.4, shape=7)
        s = pt.clip(x, 0, 1)
        joined = pt.concatenate([s[1:], s[:1]]).mean()
        dp.PrivateObservation("z", joined, NOISES["laplace"], observed=Z[0])
    with pm.Model() as alone:
        theta = pm.HalfNormal("theta")
        x = pm.Normal("x", theta, 0.4, shape=7)
        dp.PrivateObservation("z", pt.clip(x, 0, 1).mean(), NOISES["laplace"], observed=Z[0])
    found, expected = (value_and_slope(m, THETA[0]) for m in (model, alone))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert pm.draw(dp.collapse(model)["z"], random_seed=1).shape == ()


def test_noise_of_length_one():
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = pm.Normal("x", theta[G], 0.4, shape=N)
        means = pt.dot(M, pt.clip(x, 0, 1)) / SIZES
        dp.PrivateObservation("z", means, dp.LaplaceMechanism([0.05]), observed=Z)
    value, _ = each_by_itself("normal", "laplace")
    assert value_and_slope(model, THETA)[0] == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize(
    ("statistic", "released"),
    [(lambda x: pt.dot(M, pt.clip(x, 0, 1)), Z * SIZES), (lambda x: pt.clip(x, 0, 1).sum(), 18.0)],
)
def test_records_of_single_precision(statistic, released):
    found = []
    for dtype in ("float32", "float64"):
        with pm.Model() as model:
            theta = pm.HalfNormal("theta")
            x = pm.Normal("x", theta, 0.4, shape=N, dtype=dtype)
            dp.PrivateObservation("z", statistic(x), NOISES["gaussian"], observed=released)
        found.append(value_and_slope(model, 0.3))
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize(("factor", "added"), [(1.0, 0.0), (-2.0, 1e9)])
def test_moments_of_one_sum(factor, added):
    """For a Normal surrogate; the density is that of the sum, wherever it is put."""
    law, n = stats.weibull_min(1.3, scale=4.0), 20
    values = []
    for a, b in [(factor, added), (1.0, 0.0)]:
        with pm.Model() as model:
            theta = pm.HalfNormal("theta")
            x = pm.Weibull("x", 1.3, 4.0 * theta, shape=n)
            noise = dp.LaplaceMechanism(3.0 * abs(a))
            statistic = a * pt.clip(x, 0, 5).sum() + b
            dp.PrivateObservation("z", statistic, noise, observed=a * 60.0 + b)
        values.append(value_and_slope(model, 1.0)[0] + np.log(abs(a)))
    assert values[0] == pytest.approx(values[1], abs=1e-11)
    op = dp.collapse(model)["z"].owner.op
    mean, variance = pm.draw(op.law.mean_variance(*map(pt.constant, (1.3, 4.0))))
    first, second = (law.expect(lambda v, k=k: min(v, 5.0) ** k) for k in (1, 2))
    assert mean == pytest.approx(n * first, rel=1e-3)
    assert variance == pytest.approx(n * (second - first**2), rel=1e-2)


def test_an_empty_group_is_noise_alone():
    weights = np.vstack([M / SIZES[:, None], np.zeros(N)])
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        x = pm.Normal("x", theta[G], 0.4, shape=N)
        z = [*Z, 0.1]
        dp.PrivateObservation("z", weights @ pt.clip(x, 0, 1), NOISES["laplace"], observed=z)
    value, slope = each_by_itself("normal", "laplace")
    found = value_and_slope(model, THETA)
    assert found[0] == pytest.approx(value + stats.laplace(scale=0.05).logpdf(0.1), rel=1e-11)
    np.testing.assert_allclose(found[1], slope, rtol=1e-9, atol=1e-12)


def test_draws_are_of_the_model():
    model = clamped_means("normal", "laplace", lambda x: pt.dot(M, pt.clip(x, 0, 1)) / SIZES)
    collapsed = dp.collapse(model)
    draws = [pm.draw(m["z"], 3000, random_seed=k) for k, m in enumerate((model, collapsed))]
    same_law(*draws)


@pytest.mark.parametrize(
    ("statistic", "match"),
    [
        (
            lambda x: pt.dot(M * (np.arange(N) + 1), pt.clip(x, 0, 1)),
            "unequally",
        ),
        (lambda x: pt.dot(np.ones((3, N)), pt.clip(x, 0, 1)), "used more than once"),
        (lambda x: pt.dot(M[:, ::-1], pt.clip(x, 0, 1)), "with different parameters"),
        (lambda x: pt.dot(M, pt.tanh(x) + x.mean()), "one function of a single record"),
        (lambda x: pt.stack([pt.clip(x, 0, 1).sum(), pt.clip(x, 0, 2).sum(), 0]), "write it once"),
        (
            lambda x: pt.dot(M * (M.cumsum(1) <= [[9], [4], [9]]), pt.clip(x, 0, 1)),
            "over a group of 4 records",
        ),
        (lambda x: pt.dot(M * [[1], [1], [1e6]], pt.clip(x, 0, 1)), "noise of scale 5e-08"),
        (lambda x: pt.dot(M, (x > 0) * 1.0 + (x > 1)), "in more than two classes"),
    ],
)
def test_refusals_say_why(statistic, match):
    with pytest.raises(Declined, match=match):
        dp.collapse(clamped_means("normal", "laplace", statistic))
