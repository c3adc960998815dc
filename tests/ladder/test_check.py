"""`check`, against densities that are right and wrong."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model
from scipy import stats

import pymc_dp as dp
from pymc_dp.ladder.check import Releases, _integrated
from pymc_dp.ladder.check.words import in_words
from pymc_dp.reading.frozen import read

QUICK = {"random_seed": 1, "progressbar": False, "seconds": 20.0, "points": 2}


def means(wider=1.0):
    """Groups of Normal records, in one release."""
    group = np.repeat(np.arange(6), 5)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1, shape=6)
        x = pm.Normal("x", theta[group], 1, shape=30)
        means = pt.stack([x[group == k].mean() for k in range(6)])
        dp.PrivateObservation(
            "z", means, dp.LaplaceMechanism(0.5 * wider), observed=np.linspace(-2, 2, 6)
        )
    return model


def alone():
    """Values that are integrated out where they are released."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pt.tanh(pm.Normal.dist(mu, 1, shape=3))
        dp.PrivateObservation("z", x, dp.LaplaceMechanism(0.3), observed=[0.1, 0.7, -2.0])
    return model


def counts(wider=1.0):
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        x = pm.Bernoulli("x", p, shape=200)
        dp.PrivateObservation("z", x.sum(), dp.GeometricMechanism(2.0 * wider), observed=71)
    return model


def statistics(wider=1.0):
    """A rung whose latent statistics are drawn."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        x = pm.Normal("x", mu, sigma, shape=8)
        dp.PrivateObservation("z", x.var(ddof=1), dp.LaplaceMechanism(wider), observed=1.5)
    return model


@pytest.mark.compiled
@pytest.mark.parametrize("build", [means, alone, counts, statistics])
def test_what_is_right_agrees(build):
    found = dp.check(build(), **QUICK)
    assert found.agrees, found
    assert repr(found).startswith("agrees within")
    assert (found.table["error"] < 0.3).all()


@pytest.mark.compiled
def test_at_draws_of_a_posterior():
    model = counts()
    with model:
        idata = pm.sample_prior_predictive(50, random_seed=1)
    idata["posterior"] = idata["prior"]
    found = dp.check(model, idata, **QUICK)
    assert found.agrees
    np.testing.assert_array_equal(found.table["p"], idata["prior"]["p"].to_numpy()[0, [0, 49]])


@pytest.mark.compiled
def test_what_is_wrong_differs():
    model = alone()
    statistic, mechanism = model["z"].tag.dp_written
    model["z"].tag.dp_written = 1.2 * statistic, mechanism
    found = dp.check(model, **QUICK)
    assert found.agrees is False
    assert repr(found).startswith("differs by")
    assert "Please report the model" in repr(found)


@pytest.mark.compiled
@pytest.mark.parametrize("build", [means, counts, statistics])
def test_what_is_wrong_with_a_rung_differs(build, monkeypatch):
    other = _integrated(read(build(wider=1.5), ""))
    monkeypatch.setattr("pymc_dp.ladder.check._integrated", lambda reading: other)
    assert dp.check(build(), **QUICK).agrees is False


@pytest.mark.compiled
def test_a_rare_mode_is_not_called_a_difference():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 0.1)
        x = pm.NormalMixture.dist([1 - 1e-5, 1e-5], pt.stack([mu, mu + 100]), 1.0, shape=1)
        dp.PrivateObservation("z", x, dp.LaplaceMechanism(10.0), observed=[100.0])
    assert dp.check(model, **QUICK | {"seconds": 2.0}).agrees is not False


LAWS = {
    "of nothing given": lambda mu: pm.Normal("x", 0, 1, shape=3),
    "public components": lambda mu: pm.NormalMixture("x", [0.3, 0.7], [0, 2], 0.5, shape=3),
    "components": lambda mu: pm.NormalMixture(
        "x", [0.3, 0.7], pt.stack([mu, mu + 2]), 0.5, shape=3
    ),
    "random share": lambda mu: pm.Binomial("x", 5, pm.Beta("share", 1, 1), shape=3),
    "random rates": lambda mu: pm.Poisson("x", pm.Gamma.dist(2, 1, shape=3)),
    "random scale": lambda mu: pm.Normal("x", mu, pt.exp(pm.Normal("s")), shape=3),
    "truncated": lambda mu: pm.TruncatedNormal("x", mu, 1, lower=0, shape=3),
    "rows": lambda mu: pm.MvNormal("x", pt.stack([mu, mu, 0.0]), np.eye(3)),
}


@pytest.mark.compiled
@pytest.mark.parametrize("law", LAWS)
def test_each_row_is_drawn(law):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = LAWS[law](mu)
        dp.PrivateObservation("z", x.sum() + mu, dp.LaplaceMechanism(1.0), observed=1.0)
    releases = Releases(model, ["mu"], written=True)
    first, second = (
        releases.draw(np.random.default_rng(seed), [np.array(0.5)], 1_500)[0][0] for seed in (1, 2)
    )
    assert (first != second).any()
    total = pm.do(model, {"mu": 0.5})["x"].sum() + 0.5
    one_by_one = pm.draw(total, 1_500, random_seed=3, mode="FAST_COMPILE")
    assert stats.ks_2samp(first, one_by_one).pvalue > 1e-4


@pytest.mark.compiled
def test_narrow_noise_beside_many_records():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, shape=2_000)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1e-9), observed=71.3)
    found = dp.check(model, **QUICK)
    assert found.agrees is None
    assert set(found.table["compared"]) == {"simulated"}
    assert repr(found).startswith("cannot tell")


@pytest.mark.compiled
def test_errors_are_those_of_repeated_draws():
    model = means()
    theta = np.linspace(-1.5, 2.5, 6)
    written = Releases(model, ["theta"], written=True)
    value = written.observed()
    law = stats.norm(theta[:, None], 0.2**0.5)
    u, w = np.polynomial.legendre.leggauss(4_000)
    s = 8 * u
    noise = stats.laplace.pdf(value[0][:, None], s, 0.5)
    exact = np.log((law.pdf(s) * noise) @ w * 8).sum()
    rng = np.random.default_rng(1)
    found = np.array([written.log_density([theta], [value], rng, 0.0) for _ in range(40)])
    assert len(written._parts) == 6
    off = (found[:, 0] - exact) / found[:, 1]
    assert abs(off.mean()) < 4 / 40**0.5
    assert 0.7 < off.std() < 1.4


@pytest.mark.compiled
def test_a_release_that_another_depends_on_is_given():
    """The density of a noisy sum of an unknown number is that given the noisy number."""
    with pm.Model() as model:
        rate, mu = pm.Gamma("rate", 8, 1), pm.Normal("mu")
        n = pm.Poisson("n", rate)
        x = pm.Normal("x", mu, 1, shape=n)
        dp.PrivateObservation("number", n, dp.LaplaceMechanism(1.0), observed=6.0)
        dp.PrivateObservation("total", x.sum(), dp.LaplaceMechanism(2.0), observed=9.0)
    found = dp.check(model, **QUICK)
    assert found.agrees, found
    assert {*found.table["compared"]} == {"published"}


@pytest.mark.compiled
def test_a_copy_has_variables_of_its_own():
    copy = clone_model(alone())
    found = dp.check(copy, **QUICK)
    assert found.agrees, found


def test_one_point_of_many_is_no_agreement():
    with pm.Model() as model:
        pm.Normal("a")
    points = [[np.array(k)] for k in range(4)]
    rows = [(-1.0, -1.0, 0.0, 0.1), *[(-1.0, 3.0, -4.0, np.inf)] * 3]
    assert in_words(model, ["a"], points, rows, "published").agrees is None
    rows[1:3] = [(-1.0, -1.1, 0.1, 0.1)] * 2
    assert str(in_words(model, ["a"], points, rows, "published")).startswith(
        "agrees within 0.2 at 3 of 4 points"
    )
    rows[3] = (np.nan, -1.0, np.nan, 0.1)
    assert in_words(model, ["a"], points, rows, "published").agrees is False


def test_what_cannot_be_compared():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=1_000)
        dp.PrivateObservation("z", x.max(), dp.LaplaceMechanism(1.0), observed=3.0)
    with pytest.raises((ValueError, NotImplementedError), match=r"'z'|'x'"):
        dp.check(model, **QUICK)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, shape=9)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1.0))
    with pytest.raises(ValueError, match="'z' has no value: write observed="):
        dp.check(model, **QUICK)
    model = counts()
    with pytest.raises(ValueError, match="points=0"):
        dp.check(model, points=0)
    with pytest.raises(ValueError, match="no draws of 'p'"):
        dp.check(model, {"posterior": {}}, progressbar=False)
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(ValueError, match="there is no release"):
        dp.check(model, progressbar=False)


def test_reports_of_the_same_records():
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        x = pm.Bernoulli("x", p, shape=3)
        dp.PrivateObservation("z", x, dp.RandomizedResponse(0.8), observed=[1, 0, 1])
        dp.PrivateObservation("again", x[1:], dp.RandomizedResponse(0.7), observed=[0, 0])
    found = dp.check(model, random_seed=1, progressbar=False)
    assert found.agrees, found
