"""Releases of no records: the noise alone, whatever the law of the records and the spelling."""

import itertools
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

G = np.repeat([0, 2], [4, 5])
KINDS = G / 2
B = 1.5


def logistic(t):
    return pm.math.invlogit(t)


def columns(t, n):
    x = pm.Normal("x", 0.0, 1.0, shape=n)
    return pm.Normal("y", t * x, 1.0, shape=n) * x


LAWS = {
    "Normal": lambda t, n: pm.Normal("x", t, 2.0, shape=n),
    "rows": lambda t, n: pm.Normal("x", t, 2.0, shape=(n, 2)),
    "vectors": lambda t, n: pm.MvNormal("x", [t, 0.0], np.eye(2), shape=(n, 2)),
    "columns": columns,
    "Exponential": lambda t, n: pm.Exponential("x", pt.exp(t), shape=n),
    "Gamma": lambda t, n: pm.Gamma("x", 2.0, pt.exp(t), shape=n),
    "Gammas": lambda t, n: pm.Gamma("x", 2.0, pt.exp(t + KINDS[:n]), shape=n),
    "Poisson": lambda t, n: pm.Poisson("x", pt.exp(t), shape=n),
    "Bernoulli": lambda t, n: pm.Bernoulli("x", logistic(t), shape=n),
    "Bernoullis": lambda t, n: pm.Bernoulli("x", logistic(t + KINDS[:n]), shape=n),
    "Binomial": lambda t, n: pm.Binomial("x", 3, logistic(t), shape=n),
    "Categorical": lambda t, n: pm.Categorical("x", pm.math.softmax([0.0, t, 0.0]), shape=n),
    "clipped": lambda t, n: pt.clip(pm.Normal("x", t, 2.0, shape=n), -1.0, 1.0),
    "LogNormal": lambda t, n: pm.LogNormal("x", t, 1.0, shape=n),
}
ALONE = {  # what there is to release of records, and its value
    "a sum": (lambda x: x[G == 1].sum(), 0.0),
    "a factor": (lambda x: 3.0 - 2.0 * x[:0].sum(), 3.0),
    "a vector": (lambda x: pt.stack([x[j == G].sum() for j in (1, 5)]), [0.0, 0.0]),
    "a row of zeros": (lambda x: pt.dot(np.zeros((1, 9)), x).sum(), 0.0),
    "a mask": (lambda x: pt.switch((G == 1)[(..., *[None] * (x.ndim - 1))], x, 0).sum(), 0.0),
    "none": (lambda x: x.sum(), 0.0),
}


def model_of(law, statistic, n=9, value=1.25):
    with pm.Model() as model:
        x = LAWS[law](pm.Normal("t"), n)
        released = pt.as_tensor(statistic(x))
        value = np.full(released.type.shape, value)
        dp.PrivateObservation("z", released, dp.LaplaceMechanism(B), observed=value)
    return model


def density(model, slope=False):
    point = model.initial_point() | {"t": np.array(0.3)}
    found = model.compile_dlogp() if slope else model.compile_logp(vars=model.observed_RVs)
    return float(np.squeeze(found(point)))


def noise(value, statistic=0.0):
    return np.sum(-np.log(2 * B) - abs(value - np.asarray(statistic)) / B)


@pytest.mark.parametrize("law", LAWS)
def test_is_the_noise_alone(law):
    rungs = itertools.cycle(["statistics", "marginal"])
    for (name, (statistic, expected)), to in zip(ALONE.items(), rungs, strict=False):
        model = model_of(law, statistic, n=0 if name == "none" else 9)
        found = dp.collapse(model, to)
        assert [rv.name for rv in found.free_RVs] == ["t"], name
        np.testing.assert_allclose(density(found), noise(1.25, expected), err_msg=name)
        assert pm.draw(found["z"], 2, mode=PLAIN_MODE).shape == (2, *np.shape(expected))


GROUPED = ("Normal", "Gamma", "Gammas", "Poisson", "Bernoulli", "Bernoullis", "Binomial")
BESIDE = {
    "a list": lambda x, groups: [x[j == G].sum() for j in groups],
    "rows": lambda x, groups: pt.dot((np.array(groups)[:, None] == G) * 1.0, x),
    "by index": lambda x, groups: pt.zeros(3)[G].inc(x)[np.array(groups)],
}


@pytest.mark.parametrize("law", GROUPED)
def test_an_empty_group_beside_others_is_a_factor(law):
    for name, statistic in BESIDE.items():
        without, beside = (
            dp.collapse(model_of(law, partial(statistic, groups=g), value=2.0))
            for g in ((0, 2), (0, 1, 2))
        )
        np.testing.assert_allclose(density(beside), density(without) + noise(2.0), err_msg=name)
        slopes = [density(on, slope=True) for on in (beside, without)]
        np.testing.assert_allclose(*slopes, rtol=1e-9, err_msg=name)


def test_an_empty_group_of_several_variables_is_a_factor():
    def model(*empty):
        with pm.Model() as model:
            t = pm.Normal("t")
            x, y = pm.Normal("x", t, 1.0, shape=4), pm.Poisson("y", pt.exp(t), shape=3)
            parts = pt.stack([x.sum(), *(v[:0].sum() + 1.0 for v in (x, y)[: len(empty)]), y.sum()])
            value = np.array([1.0, *empty, 2.0])
            dp.PrivateObservation("z", parts, dp.LaplaceMechanism(B), observed=value)
        return dp.collapse(model)

    np.testing.assert_allclose(
        density(model(2.0, 3.0)), density(model()) + noise(np.array([2.0, 3.0]), 1.0)
    )


def test_recover_gives_the_public_number():
    model = model_of("Normal", ALONE["a factor"][0])
    posterior = {"t": (("chain", "draw"), np.zeros((2, 3)))}
    idata = DataTree.from_dict({"posterior": DataTree().to_dataset().assign(posterior)})
    found = dp.recover(model, idata)["posterior"]["z_confidential"]
    np.testing.assert_array_equal(found, np.full((2, 3), 3.0))


@pytest.mark.parametrize("law", LAWS)
def test_a_mean_over_no_records_is_refused(law):
    means = lambda x: x[G == 1].mean(), lambda x: pt.stack([x.sum(), x[:0].mean()])
    for statistic in (*means, lambda x: x[G == 1].var(ddof=1)):
        with pytest.raises(ValueError, match=r"'z' has a mean .*over no records of 'x'.*leave it"):
            model_of(law, statistic)


@pytest.mark.parametrize("law", ["Normal", "clipped"])
def test_is_explained(law):
    assert "of no records" in str(dp.explain(model_of(law, ALONE["a sum"][0]), details=True))


@pytest.mark.nightly
@pytest.mark.parametrize("law", ["Poisson", "clipped"])
def test_is_sampled_without_the_records(law):
    idata = dp.sample(
        model_of(law, ALONE["a sum"][0]), draws=100, tune=100, chains=2, random_seed=1
    )
    assert "t" in idata.posterior
    assert "x" not in idata.posterior
