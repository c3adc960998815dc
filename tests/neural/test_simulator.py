"""Reading parameters, prior and simulator off a model. None of this needs torch."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.neural.prior import Prior
from pymc_dp.neural.simulator import confidential, model_problem, parameters


def regression(**kwargs):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 2)
        x = pm.Normal("x", 1, 1, shape=50)
        y = pm.Normal("y", beta[0] + beta[1] * x, sigma, shape=50)
        statistic = [x.mean(), y.mean(), (x * y).mean()]
        dp.PrivateObservation(
            "z", statistic, dp.LaplaceMechanism(0.1), **{"observed": [1.0, 2.0, 3.0]} | kwargs
        )
    return model


def names(variables):
    return [rv.name for rv in variables]


def test_covariates_and_responses_are_confidential():
    model = regression()
    assert names(confidential(model)) == ["x", "y"]
    assert names(parameters(model)) == ["beta", "sigma"]


def test_hierarchies_keep_all_levels_above_the_data():
    with pm.Model() as model:
        top = pm.Normal("top")
        group = pm.Normal("group", top, 1, shape=3)
        unrelated = pm.Normal("unrelated")
        records = pm.Poisson("records", pm.math.exp(group), shape=(20, 3))
        dp.PrivateObservation("z", records.sum(0), dp.GeometricMechanism(1.0), observed=[9, 8, 7])
    assert names(confidential(model)) == ["records"]
    assert names(parameters(model)) == ["top", "group"]
    assert names(parameters(model, ["top"])) == ["top"]
    for wrong, message in [
        (["group"], "prior of 'group' depends on 'top'"),
        ([unrelated.name], "no release depends on 'unrelated'"),
        (["nothing"], "'nothing' is no free variable"),
        ("top", "var_names='top': write a list"),
    ]:
        with pytest.raises(ValueError, match=message):
            parameters(model, wrong)


def test_released_latents_without_parents_need_names():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        noise = pm.Normal("noise", shape=5)
        dp.PrivateObservation("z", (rate * noise).sum(), dp.LaplaceMechanism(1.0), observed=2.0)
    assert names(parameters(model)) == ["rate", "noise"]
    assert names(parameters(model, ["rate"])) == ["rate"]


def test_prior_has_the_density_of_its_draws():
    """Bounded, positive and simplex parameters, and one whose bounds are parameters."""
    with pm.Model() as model:
        top = pm.Gamma("top", 3, 2)
        low = pm.Uniform("low", 0, top)
        share = pm.Dirichlet("share", np.array([2.0, 3.0, 4.0]))
        records = pm.Normal("records", low * share[0], 1, shape=4)
        dp.PrivateObservation("z", records.sum(), dp.LaplaceMechanism(1.0), observed=2.0)
    prior = model_problem(model).prior
    assert prior.names == ["top", "low", "share"]
    assert prior.width == 4
    theta = prior.draw(4000, np.random.default_rng(1))
    natural = prior.natural(theta)
    assert stats.kstest(natural["top"], stats.gamma(3, scale=0.5).cdf).pvalue > 1e-3
    assert stats.kstest(natural["low"] / natural["top"], "uniform").pvalue > 1e-3
    np.testing.assert_allclose(natural["share"].mean(0), [2 / 9, 3 / 9, 4 / 9], atol=0.01)
    # The mean of q/p over draws from p is 1 for any density q.
    normal = stats.multivariate_normal(theta.mean(0), 0.5 * np.cov(theta.T))
    ratio = np.exp(normal.logpdf(theta) - prior.logp(theta))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(len(ratio))


def test_simulations_follow_the_model_and_the_seed():
    problem = model_problem(regression())
    theta = np.tile([0.5, -1.0, np.log(0.3)], (3000, 1))
    found = problem.simulate(theta, np.random.default_rng(1))
    assert found.shape == (3000, 3)
    sd = np.array([1, np.sqrt(1 + 0.09)]) / np.sqrt(50)
    np.testing.assert_allclose(found[:, :2].mean(0), [1, -0.5], atol=0.01)
    np.testing.assert_allclose(found[:, :2].std(0), sd, rtol=0.06)
    again = problem.simulate(theta[:5], np.random.default_rng(2))
    np.testing.assert_array_equal(again, problem.simulate(theta[:5], np.random.default_rng(2)))
    assert len(np.unique(again)) == again.size
    problem.check_seeded(theta[:2], 3)


# PyMC builds its Simulator in a way that PyTensor deprecates.
@pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Calling a RandomVariable without:DeprecationWarning")
def test_simulators_of_pymc():
    def walk(rng, drift, size=None):
        return drift * np.arange(4) + rng.normal(size=size)

    with pm.Model() as model:
        drift = pm.Normal("drift", 0, 3)
        path = pm.Simulator("path", walk, drift, shape=(4,))
        dp.PrivateObservation("z", path, dp.LaplaceMechanism(1.0), observed=np.zeros(4))
    problem = model_problem(model)
    found = problem.simulate(np.full((500, 1), 2.0), np.random.default_rng(1))
    np.testing.assert_allclose(found.mean(0), [0, 2, 4, 6], atol=0.2)


def test_what_cannot_be_simulated_is_named():
    with pytest.raises(ValueError, match="'z' has no observed value"):
        model_problem(regression(observed=None))
    with regression() as model:
        pm.Normal("also", model["sigma"], observed=1.0)
    with pytest.raises(NotImplementedError, match="'also': neural estimation simulates"):
        model_problem(model)
    with pm.Model() as counts:
        rate = pm.Poisson("rate", 3)
        x = pm.Poisson("x", rate, shape=5)
        dp.PrivateObservation("z", x.sum(), dp.GeometricMechanism(1.0), observed=9)
    with pytest.raises(ValueError, match="parameter 'rate' is discrete"):
        model_problem(counts)
    with pm.Model() as flat:
        mu = pm.Flat("mu")
        x = pm.Normal("x", mu, shape=5)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=9.0)
    with pytest.raises(NotImplementedError, match="give 'mu' proper priors"):
        model_problem(flat).prior.draw(2, np.random.default_rng(1))
    with pytest.raises(ValueError, match="no private release"):
        model_problem(pm.Model())


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.Beta("p", 0.001, 0.001),
        lambda: pm.Gamma("p", 0.0001, 1.0),
        lambda: pm.Normal("p", shape=2, transform=pm.distributions.transforms.ordered),
    ],
    ids=["beta", "gamma", "ordered"],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_draws_on_the_border_are_named(prior):
    with pm.Model() as model:
        prior()
    with pytest.raises(ValueError, match=r"the prior of 'p': \d+ of 100 draws have no finite"):
        Prior(model).draw(100, np.random.default_rng(1))


def test_a_row_without_density_leaves_the_others_theirs():
    with pm.Model() as model:
        s = pm.HalfNormal("s", default_transform=None)
        pm.Normal("mu", 0, s, shape=2)
    rows = np.array([[1.0, 0.5, 0.0], [-1.0, 0.5, 0.0], [2.0, 0.1, 0.2], [np.nan, 0.0, 0.0]])
    exact = stats.halfnorm.logpdf(rows[:, 0])
    with np.errstate(invalid="ignore"):
        exact = exact + stats.norm.logpdf(rows[:, 1:], 0, rows[:, :1]).sum(1)
    exact[[1, 3]] = -np.inf
    np.testing.assert_allclose(Prior(model).logp(rows), exact)
